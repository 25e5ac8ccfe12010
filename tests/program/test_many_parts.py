"""Files that Python's own compiler would take long for."""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Iterator

import pytest

from ddp_lint.program import many_parts
from ddp_lint.program.mentions import mentions_of

WRAPS = re.compile("DistributedDataParallel")
HEAD = "import torch.distributed as dist\n"
#: What a function binds, as one of both readings of an instruction may take it for used; the iterator that the compiler
#: gives a comprehension by a call; keywords, of which the compiler lists no more than some.
_ELSE = re.compile(r"[fy]\d+|dist|\.0|\(\)|_|[vwt]|a\d+")
LAMBDAS = "".join(
    f"    f{i} = lambda y, *z, k=w{i}: f(y, key{i}=z) if y > {i} else dist.all_reduce(y)\n" for i in range(40)
)
LISTS = "".join(f"    y{i} = [a.g{i}(v, w) for v, (w, _) in x if v > {i}]\n" for i in range(40))
DICTIONARIES = "".join(f"    y{i} = {{v: w{i} for v in x if (t := v)}}\n" for i in range(40))
AWAITED = "".join(f"    y{i} = [await a.g{i}(v) async for v in x]\n" for i in range(40))
CLASS = f"    class B(A, {', '.join(f'a{i}=b{i}' for i in range(60))}):\n      pass\n"
NAMES = ", ".join(f"y{i}" for i in range(60))
MATCH = (
    f"    match x:\n        case A.B(k={{m.K: [{NAMES}]}}) if g(y1):\n            dist.barrier()\n"
    f"        case A.C({', '.join(f'key{i}=y{i}' for i in range(60))}):\n            h(y2)\n"
    "        case _:\n            dist.all_reduce(x)\n"
)
KEYWORDS = f"    g(x, {', '.join(f'a{i}=b{i}' for i in range(60))})\n"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


@pytest.mark.parametrize("body", [LAMBDAS, LISTS, DICTIONARIES, KEYWORDS, CLASS, MATCH, f"{LAMBDAS}{LISTS}{KEYWORDS}"])
@pytest.mark.parametrize("head", ["def f(x):\n", "class A:\n  def f(self, x):\n", "if x:\n"])
def test_what_has_many_parts_mentions_the_same(head: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{HEAD}{head}{body}"
    whole = mentions_of(text, WRAPS)
    assert whole is not None
    monkeypatch.setattr(many_parts, "_MANY_INNER", 20)
    monkeypatch.setattr(many_parts, "_MANY_KEYWORDS", 40)
    monkeypatch.setattr(many_parts, "_MANY_PATTERNS", 40)
    parts = mentions_of(text, WRAPS)
    assert parts is not None and len(parts.functions) == len(whole.functions)
    for before, after in zip(whole.functions, parts.functions, strict=True):
        assert before.name == after.name
        used, then_used = ({w for w in each.words if not _ELSE.fullmatch(w)} for each in (before, after))
        assert used == then_used


#: From Python 3.12 on comprehensions are no code of their own, whatever is in them.
_AWAITED_LEFT = 42 if sys.version_info < (3, 12) else 2


@pytest.mark.parametrize(("body", "left"), [(LAMBDAS, 2), (LISTS, 2), (DICTIONARIES, 2), (AWAITED, _AWAITED_LEFT)])
def test_lambdas_and_comprehensions_of_one_function_are_no_code_of_their_own(
    body: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compiler would compare each with each; what a function awaits in one has to be in one."""
    text = f"async def f(x):\n{body}"
    assert many_parts.may_have_many(text * 60)
    assert not many_parts.may_have_many(text)
    monkeypatch.setattr(many_parts, "_MANY_INNER", 20)
    assert len([*_codes(compile(many_parts.without_many(ast.parse(text)), "<file>", "exec"))]) == left


def test_a_call_with_many_keywords_becomes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_parts, "_MANY_KEYWORDS", 40)
    tree = many_parts.without_many(ast.parse(f"def f(x):\n{KEYWORDS}"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert max(len(call.keywords) for call in calls) == 5
    assert sum(len(call.keywords) for call in calls) == 60


def test_what_a_pattern_of_many_parts_binds_is_bound_by_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler moves all that was bound before for each name: gigabytes for thousands of them."""
    text = f"def f(x):\n    match x:\n        case [{', '.join(f'y{i}' for i in range(60))}]:\n            g(y1)\n"
    assert many_parts.may_have_many(text * 20)
    assert not many_parts.may_have_many(text)
    monkeypatch.setattr(many_parts, "_MANY_PATTERNS", 40)
    tree = many_parts.without_many(ast.parse(text))
    assert [type(n.pattern) for n in ast.walk(tree) if isinstance(n, ast.match_case)] == [ast.MatchAs]
    code = next(c for c in _codes(compile(tree, "<file>", "exec")) if c.co_name == "f")
    assert {f"y{i}" for i in range(60)} <= {*code.co_varnames}

"""Focus leaves out what no rule can care for, and nothing else."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator

import libcst as cst
import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.checking import Checker
from ddp_lint.engine.file_visit import visit
from ddp_lint.engine.focus import Selection, words
from ddp_lint.engine.traits import traits
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.registry import Declaration, declared
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import ImportTable, SourceFile

from .samples import found, write

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
CASES = sorted(p for p in FIXTURES.glob("*/DDP*") if p.is_dir() or p.suffix == ".py")


@functools.cache
def project_at(root: pathlib.Path) -> Project:
    """One for all files of a project, with and without focus: what does not depend on the focus is found once."""
    return Project(root)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_focus_changes_no_finding(case: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = case if case.is_dir() else case.parent
    monkeypatch.chdir(root)
    project = project_at(root)
    for path in sorted(case.rglob("*.py")) if case.is_dir() else [case]:
        assert found(path, focus=True, project=project) == found(path, focus=False, project=project)


class Sample(Rule):
    """A rule outside of the families."""

    code, slug = "DDP999", "sample"


class Loads(Sample):
    """Cares for definitions that hold `load`."""

    triggers = Triggers("load")

    def visit_Call(self, node: cst.Call) -> None:
        """Only that it visits matters here."""


class OutsideTests(Loads):
    """Finds nothing in tests."""

    triggers = Triggers("load", tests=False)


class Writes(Sample):
    """Cares for functions that no word tells."""

    triggers = Triggers(Trait.WRITES, file=("torch",))

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        """Only that it visits matters here."""


class Everything(Sample):
    """Says nothing of what it cares for."""

    def visit_Call(self, node: cst.Call) -> None:
        """Only that it visits matters here."""


class SeesLoads(Loads):
    """Tells what it sees."""

    def visit_Call(self, node: cst.Call) -> None:
        self.report(node, "seen")


class SeesSaves(SeesLoads):
    """The same for another word."""

    code, triggers = "DDP998", Triggers("save")


class Asking(Sample):
    """Visits nothing: it asks `ast`."""


TEXT = '''\
"""Docstring with load."""
import torch
from torch import load as fetch
LIMIT = 3


def idle(a,
         b=1):
    # no load
    return a


@torch.no_grad()
def one(): return torch.load("x")


class Net(torch.nn.Module):
    """Docstring."""

    size: int = 3

    def __init__(self):
        self.a = 1

    @property
    def other(self) -> int:
        self.a += 1
        return 2

    def aliased(self):
        return fetch("x")


class Idle:
    x = 1
    def method(self): pass


if LIMIT: LIMIT = 4; torch.load("y")
'''


def kept(text: str, *rules: type[Rule]) -> str:
    tree = ast.parse(text)
    facts = ModuleFacts("m", SourceFile("m.py", text), tree, ImportTable.of(tree, "m", False))
    focus = Selection(map(Declaration.of, rules)).concerned(text)
    source = focus.source(facts)
    lines = facts.file.lines
    if source.line_map is not None:
        for number, line in zip(source.line_map, source.text.splitlines(), strict=True):
            assert lines[number - 1] == line or line.strip() == "..."
    cst.parse_module(source.text)
    return source.text


def test_definitions_without_a_trigger_keep_their_header_only() -> None:
    assert (
        kept(TEXT, Loads)
        == '''\
from torch import load as fetch
LIMIT = 3
def idle(a,
         b=1):
    # no load
 ...
@torch.no_grad()
def one(): return torch.load("x")
class Net(torch.nn.Module):
    """Docstring."""

    size: int = 3

    def __init__(self):
        self.a = 1

    @property
    def other(self) -> int:
        self.a += 1
        return 2

    def aliased(self):
        return fetch("x")
class Idle:
 ...
if LIMIT: LIMIT = 4; torch.load("y")
'''
    )


def test_code_beside_a_text_counts() -> None:
    assert kept('"load"\n# load\nx = 1\n', Loads) == ""
    assert kept('"text"; torch.load(y)\n', Loads)
    assert kept('torch.load(y); "text"\n', Loads)


def test_a_class_is_kept_whole_and_a_function_also_for_what_no_word_shows() -> None:
    assert "self.a += 1" in kept(TEXT, Loads)
    writing = "import torch\ndef one(x):\n    x += 1\ndef two(x):\n    return fetch(x)\n"
    assert kept(writing, Writes) == "def one(x):\n    x += 1\ndef two(x):\n ...\n"


def test_a_branch_on_a_name_is_one_on_what_the_name_was_given() -> None:
    inside = "def f(x):\n    inside = (x > 0).all()\n    if not inside:\n        return x\n"
    assert Trait.BRANCHES in traits_of(inside)
    assert Trait.BRANCHES not in traits_of(inside.replace("(x > 0).all()", "x"))
    assert Trait.BRANCHES not in traits_of(inside.replace("if not inside", "if x is None"))


def traits_of(text: str) -> frozenset[Trait]:
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    return traits(function)


def test_rules_that_say_nothing_see_all_and_rules_that_visit_nothing_cost_nothing() -> None:
    assert kept(TEXT, Everything) == TEXT
    assert kept(TEXT, Asking) == ""
    assert kept(TEXT.replace("load", "save"), Loads) == ""


def test_a_file_concerns_the_rules_whose_words_it_holds() -> None:
    selection = Selection(map(Declaration.of, [Loads, Writes, Everything, Asking]))
    assert selection.concerned("x = loads").rules == [Everything, Asking]
    assert selection.concerned("x.load()").rules == [Loads, Everything, Asking]
    assert selection.concerned("import torch").rules == [Writes, Everything, Asking]


class Commands(Sample):
    triggers = Triggers("system", file=("Popen", "os.system"))

    def visit_Call(self, node: cst.Call) -> None: ...


def test_of_a_dotted_name_a_file_holds_all_parts() -> None:
    selection = Selection([Declaration.of(Commands)])
    assert selection.concerned('os.system("nvidia-smi")').rules == [Commands]
    assert selection.concerned('from os import system\nsystem("nvidia-smi")').rules == [Commands]
    assert selection.concerned("Popen(system)").rules == [Commands]
    assert selection.concerned('{"role": "system"}').rules == []


PARTS = """\
load(0)
def one(): return load(1)
def other(): return save(2)
class Net:
    def __init__(self): self.a = made(5)
    def one(self): return load(6)
    def other(self): return save(7)
    class Inner:
        def one(self): return load(9)
class Other:
    def one(self): return load(11)
"""


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        (SeesLoads, [1, 2, 5, 6, 7, 9, 11]),
        (SeesSaves, [1, 3, 5, 6, 7, 9]),
    ],
)
def test_a_rule_sees_what_concerns_it_and_not_what_is_kept_for_others(
    rule: type[Rule], lines: list[int], tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "m.py"
    path.write_text(PARTS, encoding="utf-8")
    focus = Selection(map(Declaration.of, {SeesLoads, rule})).concerned(PARTS)
    findings, _ = visit(SourceFile.read(path, "m.py"), path, Project(tmp_path), focus, True)
    assert sorted(finding.span.line for finding in findings if finding.code == rule.code) == lines


def test_words() -> None:
    assert words("a.b_1 (c)é+'d e'\ud800") >= {b"a", b"b_1", b"d", b"e"}


def _odd_layouts() -> Iterator[str]:
    yield "class A:\n\tdef f(self):\n\t\treturn 1\n\tdef g(self):\n\t\treturn load()\n"
    yield "class A: x = load()\n"
    yield "class A:\n    @dec(\n        1)\n    def f(self,\n          b): return 1\n    def g(self): load()\n"
    yield "def f(\n    a,\n): ...\nclass A(\n    B,\n): pass\ndef g(): load()\n"
    yield "async def f(x: int\n) -> int:\n    return 1\ndef g(): load()\n"
    yield "def f():\n    return 1; \ndef g(): load()"
    yield "x = '''\n''' ; y = load()\ndef f():\n    '''doc\n    '''\n    return 1\n"
    yield "if a:\n    def f():\n        pass\nelse:\n    f = load\n"
    yield "class A(\n  B,\n):\n  class C:\n    def h(self):\n      pass\n  def g(self):\n    load()\n"
    yield "def f(\n  a,  # why\n):  # no body\n\n  # comment\n  @dec\n  def g(): pass\n  return g\nload()\n"


@pytest.mark.parametrize("text", list(_odd_layouts()))
def test_odd_layouts_stay_parsable(text: str) -> None:
    assert "load" in kept(text, Loads)


def test_tests_do_not_concern_a_rule_that_finds_nothing_there() -> None:
    selection = Selection(map(Declaration.of, [Loads, OutsideTests]))
    assert selection.concerned("x.load()").rules == [Loads, OutsideTests]
    assert selection.concerned("x.load()", test=True).rules == [Loads]


@pytest.mark.parametrize("name", ["test_net.py", "net_test.py", "conftest.py", "tests/net.py", "pkg/test/net.py"])
def test_a_file_is_a_test_by_its_name(name: str) -> None:
    assert SourceFile(name, "").is_test
    assert not SourceFile("pkg/latest_tests.py", "").is_test


def test_a_file_is_asked_whether_it_is_a_test(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = FIXTURES / "compile" / "DDP302.py"
    monkeypatch.chdir(tmp_path)
    for name in ("net.py", "test_net.py"):
        (tmp_path / name).write_text(net.read_text())
        codes = {finding.code for finding in found(tmp_path / name, focus=True, project=Project(tmp_path))}
        assert ("DDP302" in codes) == (name == "net.py")


def test_rules_whose_findings_a_place_leaves_out_do_not_look_there(tmp_path: pathlib.Path) -> None:
    """Readings give the lowest class to findings in tests: unasked, none is shown, so none is looked for."""
    head = "import torch.distributed as dist\ndist.init_process_group()\n"
    text = f"{head}if dist.get_rank() == 0:\n    dist.barrier()\nx = 1  # noqa: DDP101\n"
    wrong = "import torch\ndef broken(:\n"
    paths = write(tmp_path, {"train.py": text, "tests/test_train.py": text, "tests/test_wrong.py": wrong})
    every = frozenset(declared())
    rules = frozenset(code for code in every if declared()[code].looks)

    def found_in(sure: frozenset[str]) -> list[list[str]]:
        checker = Checker(Settings(tmp_path, every, sure=sure))
        return [[finding.code for finding in checker.check(path).findings] for path in paths]

    assert found_in(rules) == [["DDP101", "DDP002"], [], ["DDP000"]]
    assert found_in(frozenset()) == [["DDP101", "DDP002"], ["DDP101", "DDP002"], ["DDP000"]]
    assert found_in(rules - {"DDP101"}) == [["DDP101", "DDP002"], ["DDP101", "DDP002"], ["DDP000"]]

"""What evaluations may take: bounds that hold whatever was evaluated before, and are said."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.divergence.analyse import analyse, result_of
from ddp_lint.divergence.summaries import Summaries
from ddp_lint.divergence.why import explain
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts

HEAD = "import torch.distributed as dist\n"
RANK = "    if dist.get_rank() == 0:\n        dist.barrier()\n"
#: Ten statements, those of `lower` included; `f` has three more.
HELPER = "def helper(x):\n    lower(x)\n" + "    x = x + 1\n" * 4 + "\n\ndef lower(x):\n" + "    x = x + 1\n" * 5


def _skipped(folder: pathlib.Path, order: str, *, records: bool = True) -> dict[str, list[str]]:
    """The functions that are left out of each file."""
    project = Project(folder)
    if not records:
        project.stop_recording()
    found = {}
    for name in order:
        facts = project.modules.facts_of(folder / f"{name}.py")
        assert facts is not None
        found[name] = [left_out for _, left_out in result_of(facts, project).skipped]
    return found


@pytest.fixture
def three(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "helpers.py").write_text(HEAD + HELPER)
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(f"{HEAD}import helpers\ndef f(x):\n    helpers.helper(x)\n{RANK}")
    (tmp_path / "c.py").write_text(f"{HEAD}import a\nimport helpers\ndef g(x):\n    helpers.helper(x)\n    a.f(x)\n")
    return tmp_path


@pytest.mark.parametrize("order", ["abc", "cba", "bca", "bac"])
@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize(("bound", "left_out"), [(9, "abc"), (10, "c"), (12, "c"), (13, "")])
def test_the_bound_of_a_function_counts_what_was_kept(
    bound: int, left_out: str, records: bool, order: str, three: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summaries, "BOUND", bound)
    found = _skipped(three, order, records=records)
    assert {name for name in found if found[name]} == {*left_out}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_bound_of_a_file_leaves_out_what_comes_last_and_says_so(
    order: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summaries, "BOUND_OF_FILE", 25)
    monkeypatch.setattr(Summaries, "BOUND_OF_LINE", 0)
    (tmp_path / "pyproject.toml").touch()
    helpers = "".join(HELPER.replace("helper", f"helper{n}").replace("lower", f"lower{n}") for n in range(4))
    (tmp_path / "b.py").write_text(f"{HEAD}{helpers}")
    calls = "".join(f"def f{n}(x):\n    b.helper{n}(x)\n{RANK}" for n in range(4))
    (tmp_path / "a.py").write_text(f"{HEAD}import b\n{calls}")
    assert _skipped(tmp_path, order)["a"] == ["f2", "f3"]
    explained = {each.what: each.reason for each in explain(tmp_path / "a.py", Project(tmp_path))}
    assert "its file as a whole, is too large" in explained["f2"]
    monkeypatch.setattr(Summaries, "BOUND_OF_LINE", 1)  # 22 lines
    assert _skipped(tmp_path, order)["a"] == []


def test_what_several_functions_of_a_file_call_counts_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summaries, "BOUND_OF_FILE", 40)
    monkeypatch.setattr(Summaries, "BOUND_OF_LINE", 0)
    (tmp_path / "b.py").write_text(f"{HEAD}{HELPER}")
    (tmp_path / "a.py").write_text(f"{HEAD}import b\n" + "".join(f"def f{n}():\n    b.helper(1)\n" for n in range(20)))
    assert _skipped(tmp_path, "ba") == {"a": [], "b": []}


MANY = "".join(f"    leaf({n}, x)\n" for n in range(1, 20))


@pytest.mark.parametrize("calls_many", [True, False], ids=["many argument lists below", "few"])
def test_what_was_evaluated_before_decides_nothing(calls_many: bool, tmp_path: pathlib.Path) -> None:
    """How many argument lists a function is summarised for is bounded: those of other callers do not count, which
    another file may have asked for or not."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "b.py").write_text(f"{HEAD}def leaf(n, x):\n    log(x)\n    return n\n\ndef many(x):\n{MANY}")
    first = "    b.many(x)\n" if calls_many else ""
    (tmp_path / "a.py").write_text(
        f"{HEAD}import b\n\ndef f(x):\n{first}"
        "    if b.leaf(30, x) == 0 and dist.get_rank() == 0:  # never\n        dist.barrier()\n"
    )
    alone = Project(tmp_path)
    found = analyse(_facts(alone, tmp_path / "a.py"), alone)
    after = Project(tmp_path)
    analyse(_facts(after, tmp_path / "b.py"), after)
    assert found == analyse(_facts(after, tmp_path / "a.py"), after) == ()


def _facts(project: Project, path: pathlib.Path) -> ModuleFacts:
    facts = project.modules.facts_of(path)
    assert facts is not None
    return facts


def _chain(length: int) -> str:
    """Functions that call the next one twice with numbers of their own: without a bound, argument lists double."""
    links = (
        f"def f{n}(a, b, c):\n    f{n + 1}(b, c, {2 * n})\n    f{n + 1}(a, b, {2 * n + 1})\n" for n in range(length)
    )
    return f"{HEAD}{''.join(links)}def f{length}(a, b, c):\n    if a > b:\n        return\n    dist.all_reduce(a)\n"


def _steps(folder: pathlib.Path, code: str) -> int:
    (folder / "a.py").write_text(code)
    project = Project(folder)
    assert result_of(_facts(project, folder / "a.py"), project).skipped == ()
    return project.effort.whole.steps


def test_argument_lists_that_double_take_no_more_than_their_share(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    assert _steps(tmp_path, _chain(80)) < 2.3 * _steps(tmp_path, _chain(40)) < 3000


def _doubling(length: int, first: str, second: str) -> str:
    """Functions that call the next one twice with something else, of which each keeps the last eight."""
    names = [f"p{n}" for n in range(8)]
    given, kept = ", ".join(names), ", ".join(names[1:])
    links = "".join(
        f"def f{n}(x, {given}):\n    f{n + 1}(x, {kept}, {first})\n    f{n + 1}(x, {kept}, {second})\n"
        for n in range(length)
    )
    last = f"def f{length}(x, {given}):\n    if p0(x) and p1(x):\n        return p2(x)\n    dist.all_reduce(x)\n"
    made = "def g(x):\n    return x\n\ndef h(x):\n    return x + 1\n\nclass G:\n    pass\n\nclass H:\n    pass\n"
    return f"{HEAD}{made}{links}{last}"


@pytest.mark.parametrize(("more", "steps"), [(30, 3), (40, 4), (400, 15)])
def test_calls_of_many_arguments_count_more(more: int, steps: int, tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    names = ", ".join(f"p{n}" for n in range(more))
    assert _steps(tmp_path, f"{HEAD}def f({names}):\n    dist.barrier()\ndef g({names}):\n    f({names})\n") == steps


def _generators(length: int) -> str:
    """Generators that each go through the one before, and a loop over the last one."""
    links = "".join(f"def g{n + 1}(x):\n    for y in g{n}(x):\n        yield y\n" for n in range(length))
    first = "def g0(x):\n    for y in x:\n        dist.all_reduce(y)\n        yield y\n"
    return f"{HEAD}{first}{links}def f(x):\n    for y in g{length}(x):\n        log(y)\n{RANK}"


def test_generators_count_as_often_as_they_lie_within_each_other(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    statements = 2 * 2 * 20  # of twenty more generators, each run as a root and for its callers
    levels = sum(range(21, 41))
    assert _steps(tmp_path, _generators(40)) - _steps(tmp_path, _generators(20)) == statements + levels


def test_a_long_chain_of_generators_is_left_out_and_said(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "a.py").write_text(_generators(300))
    project = Project(tmp_path)
    assert "f" in [name for _, name in result_of(_facts(project, tmp_path / "a.py"), project).skipped]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("g", "h"), ("G()", "H()"), ("lambda: p0(x)", "lambda: p1(x)"), ("(p0, g)", "(p1, h)"),
        ("dist.get_rank() == 0", "dist.get_rank() > 1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("length", [20, 40])
def test_what_a_few_functions_do_again_and_again_ends_before_the_bound_of_a_large_file(
    first: str, second: str, length: int, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "a.py").write_text(f"{_doubling(length, first, second)}\ndef own(x):\n{RANK}")
    project = Project(tmp_path)
    skipped = [name for _, name in result_of(_facts(project, tmp_path / "a.py"), project).skipped]
    assert "f0" in skipped
    assert project.effort.whole.steps < 6_000


def test_a_large_program_may_take_as_many_steps_where_it_repeats_few(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near miss: each function is called for some argument lists, and there are many functions."""
    monkeypatch.setattr(Summaries, "REPEATED", 100)
    (tmp_path / "pyproject.toml").touch()
    helpers = "".join(f"def h{n}(x, a):\n    log(x)\n    log(a)\n    return a\n\n" for n in range(100))
    calls = "".join(f"    h{n}(x, {k})\n" for n in range(100) for k in range(10))
    (tmp_path / "a.py").write_text(f"{HEAD}{helpers}def f(x):\n{calls}{RANK}")
    project = Project(tmp_path)
    result = result_of(_facts(project, tmp_path / "a.py"), project)
    assert len(result.mismatches) == 1 and result.skipped == ()
    assert project.effort.whole.steps > 3_000


def test_repeated_steps_count_the_same_whether_they_were_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summaries, "REPEATED", 150)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "a.py").write_text(_doubling(8, "g", "h"))
    (tmp_path / "b.py").write_text(f"{HEAD}import a\n\ndef own(x):\n    a.f0(x, *range(8))\n{RANK}")
    (tmp_path / "c.py").write_text(f"{HEAD}import a\n\ndef own(x):\n    a.f7(x, *range(8))\n{RANK}")
    each = [_skipped(tmp_path, order) for order in ("abc", "cba", "bca", "cab")]
    assert all(found == each[0] for found in each)
    assert each[0]["b"] == ["own"] and each[0]["c"] == []


@pytest.mark.parametrize(
    ("calls", "given", "test", "found"),
    [
        (4, "3", "a != 3", False), (6, "3", "a != 3", True), (5, "True", "not a", False), (7, "True", "not a", True),
        (12, "dist.get_rank()", "a == 0 and b", True), (12, "dist.get_rank()", "a == a and b", False),
    ],
)  # fmt: skip
def test_numbers_and_flags_are_followed_through_some_calls_and_ranks_through_all(
    calls: int, given: str, test: str, found: bool, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "pyproject.toml").touch()
    links = "".join(f"def f{n}(a, b):\n    f{n + 1}(a, b)\n\n" for n in range(1, calls))
    last = f"def f{calls}(a, b):\n    if {test}:\n        dist.barrier()\n\n"
    guard = "" if "rank" in given else "    if dist.get_rank() == 0:\n    "
    (tmp_path / "a.py").write_text(f"{HEAD}{links}{last}def main(x):\n{guard}    f1({given}, 7)\n")
    project = Project(tmp_path)
    assert bool(analyse(_facts(project, tmp_path / "a.py"), project)) == found

"""How often the parts of a program are evaluated: what cannot come out otherwise is evaluated once."""

import gc
import importlib
import pathlib
import textwrap

import pytest

from ddp_lint.divergence.analyse import graph_of, roots, summaries_of
from ddp_lint.divergence.event_graph import Choice, EventGraph, EventNode, Node, guards_of_all
from ddp_lint.divergence.values import Symbol, unknown
from ddp_lint.project import Project
from ddp_lint.project.modules import Modules

analysis = importlib.import_module("ddp_lint.divergence.analyse")


def _graph(folder: pathlib.Path, source: str, name: str = "f") -> tuple[EventGraph, Node, int]:
    """The event graph of a function, and the statements that it took."""
    (folder / "pyproject.toml").touch()
    path = folder / "program.py"
    path.write_text("import torch.distributed as dist\n" + textwrap.dedent(source))
    project = Project(folder, folder)
    facts = project.modules.facts_of(path)
    assert facts is not None
    summaries = summaries_of(project)
    root = next(root for root in roots(facts, summaries) if root.name == name)
    graph, start = graph_of(root, facts, summaries)
    return graph, start, project.effort.part.steps


ONE_ROUND = {
    "nothing is left for the next round": """
        def f(xs):
            for x in xs:
                y = x + 1
                dist.all_reduce(y)
        """,
    "a part of what each round makes anew": """
        def f(xs):
            for x in xs:
                x.seen = True
                dist.all_reduce(x)
        """,
    "a manager's name": """
        def f(paths):
            for path in paths:
                with open(path) as file:
                    dist.all_reduce(file)
        """,
    "what only some rounds set": """
        def f(xs):
            y = None
            for x in xs:
                if x.ready:
                    y = x
                dist.all_reduce(x)
        """,
    "what each way through a round sets": """
        def f(xs):
            for x in xs:
                if x.ready:
                    y = x
                else:
                    y = x.other
                dist.all_reduce(y)
        """,
    "what a round sets, or goes on to the next": """
        def f(xs):
            for x in xs:
                try:
                    y = x.load()
                except OSError:
                    continue
                for part in y:
                    z = part
                    dist.all_reduce(z)
        """,
}
TWO_ROUNDS = {
    "a number that grows": """
        def f(xs):
            n = 0
            for x in xs:
                n = n + 1
                dist.all_reduce(x)
        """,
    "what only some rounds set before it is read": """
        def f(xs):
            y = None
            for x in xs:
                if x.ready:
                    y = x
                dist.all_reduce(y)
        """,
    "what a loop in a round may not set": """
        def f(xs):
            y = None
            for x in xs:
                for part in x:
                    y = part
                dist.all_reduce(y)
        """,
    "what is read before it is set": """
        def f(xs):
            last = 0
            for x in xs:
                dist.all_reduce(last)
                last = x
        """,
}


def _statements(source: str) -> int:
    """The statements of the function's body, those of its loop once."""
    lines = [line for line in source.splitlines() if line.strip() and not line.lstrip().startswith(("else", "except"))]
    return len(lines[1:])


@pytest.mark.parametrize("case", ONE_ROUND)
def test_a_loop_that_leaves_nothing_is_evaluated_once(case: str, tmp_path: pathlib.Path) -> None:
    *_, took = _graph(tmp_path, ONE_ROUND[case])
    assert took == _statements(ONE_ROUND[case])


@pytest.mark.parametrize("case", TWO_ROUNDS)
def test_a_loop_whose_rounds_follow_from_each_other_is_evaluated_again(case: str, tmp_path: pathlib.Path) -> None:
    *_, took = _graph(tmp_path, TWO_ROUNDS[case])
    assert took > _statements(TWO_ROUNDS[case])


NESTED = """
    def outer(flag, x):
        size = {seen}
        def inner(y):
            y = y + size
            y = y * 2
            dist.all_reduce(y)
        inner(x)

    def f(x, z):
        outer(True, x)
        outer(False, z)
"""


def test_a_nested_function_that_sees_the_same_is_evaluated_once(tmp_path: pathlib.Path) -> None:
    *_, once = _graph(tmp_path, NESTED.format(seen="3"))
    *_, twice = _graph(tmp_path, NESTED.format(seen="flag"))
    assert twice - once == 3


def test_the_order_of_keywords_makes_no_other_call(tmp_path: pathlib.Path) -> None:
    source = "def g(a, b):\n    dist.barrier()\ndef f():\n    g(a=1, b=2)\n    g({})\n"
    *_, same = _graph(tmp_path, source.format("b=2, a=1"))
    *_, other = _graph(tmp_path, source.format("b=3, a=1"))
    assert other - same == 1


def test_guards_are_the_conditions_without_which_there_is_no_event(tmp_path: pathlib.Path) -> None:
    source = """
        def f(a, b, c, d, xs):
            if a:
                if b:
                    return
                for x in xs:
                    if c or d:
                        dist.barrier()
    """
    graph, start, _ = _graph(tmp_path, source)
    conditions = {n.condition.truths: n.condition for n in graph.nodes if isinstance(n, Choice)}
    reached = {c.text: [_reaches(start, c.truths, outcome) for outcome in (False, True)] for c in conditions.values()}
    found = {condition.text: outcome for condition, outcome in guards_of_all(graph, start)}
    assert found == {text: ways[1] for text, ways in reached.items() if ways[0] != ways[1]} == {"a": True, "b": False}


def _reaches(node: Node, truths: object, outcome: bool) -> bool:
    if isinstance(node, EventNode):
        return True
    if isinstance(node, Choice):
        ways = [node.yes, node.no]
        if node.condition.truths == truths:
            ways = [node.yes if outcome else node.no]
        return any(_reaches(way, truths, outcome) for way in ways)
    below = (getattr(node, name, None) for name in ("body", "after"))
    return any(_reaches(way, truths, outcome) for way in below if way is not None)


def test_symbols_that_nobody_has_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(Symbol, "_many", len(Symbol._of) + 100)
    kept = [unknown(("kept", number)).components[0] for number in range(50)]
    for number in range(100_000):
        unknown((unknown(("inside", number)).components[0], "outside"))
    assert len(Symbol._of) < 110_000
    assert all(Symbol(("kept", number)) is symbol for number, symbol in enumerate(kept))


def test_an_attribute_costs_what_it_rests_on(tmp_path: pathlib.Path) -> None:
    training = "\n".join(f"        step_{n} = self.step({n})" for n in range(50))
    source = f"""
class Trainer:
    def train(self, loader):
        self.size = len(loader)
{training}

    def step(self, n):
        loss = n + 1
        return loss

    def stop(self):
        if self.size > 3:
            dist.barrier()
"""
    *_, cost = _graph(tmp_path, source, "Trainer.stop")
    assert cost == 3  # two of its own, and the store


def test_calls_within_each_other_are_told_apart_some_deep_alone(tmp_path: pathlib.Path) -> None:
    source = """
        def f(n):
            dist.barrier()
            g([n])

        def g(n):
            f((n,))
        """
    *_, cost = _graph(tmp_path, source)
    assert cost == 11


@pytest.mark.parametrize(("names", "read", "events"), [(3, 3, 1), (30, 0, 0)], ids=["few", "all of a library"])
def test_a_table_of_many_imported_names_is_not_followed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, names: int, read: int, events: int
) -> None:
    """To know what a table holds, the modules of all that it names are read."""
    for n in range(names):
        (tmp_path / f"m{n}.py").write_text(f"import torch.distributed as dist\ndef f{n}(x):\n    dist.barrier()\n")
    imported = "".join(f"from m{n} import f{n}\n" for n in range(names))
    table = ", ".join(f"'{n}': f{n}" for n in range(names))
    parsed = set[str]()
    read_file = Modules._read
    monkeypatch.setattr(
        Modules, "_read", lambda self, path: parsed.add(pathlib.Path(path).stem) or read_file(self, path)
    )
    graph, _, _ = _graph(tmp_path, f"{imported}TABLE = {{{table}}}\ndef f(x):\n    TABLE['0'](x)\n")
    assert sum(isinstance(node, EventNode) for node in graph.nodes) == events
    assert len(parsed - {"program"}) == read


def test_functions_that_cannot_communicate_are_not_even_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which functions can is known by name beforehand (`program.reach`); the others are most of a project."""
    path = tmp_path / "program.py"
    (tmp_path / "pyproject.toml").touch()
    path.write_text(
        "import torch.distributed as dist\n"
        "def idle(x):\n    return len(x)\n"
        "def sync(x, rank):\n    if rank == 0:\n        dist.broadcast(x, 0)\n"
    )
    project = Project(tmp_path, tmp_path)
    project.communication.reach = {str(path): frozenset({"sync"})}
    facts = project.modules.facts_of(path)
    assert facts is not None
    read = set[str]()
    has_calls = analysis._can_part
    monkeypatch.setattr(analysis, "_can_part", lambda node: read.add(node.name) or has_calls(node))
    assert [mismatch.span.line for mismatch in analysis.analyse(facts, project)] == [6]
    assert read == {"sync"}


def _steps_of(folder: pathlib.Path, classes: int) -> int:
    """The statements that a file takes whose classes hand their attributes to one function."""
    used = "def use(a, b):\n" + "    b(a)\n" * 50 + "    if a.rank == 0:\n        dist.barrier()\n"
    run = "(abc.ABC):\n    def run(self, other):\n        use(self.a, other.b)\n        use(other.a, self.b)\n"
    path = folder / "program.py"
    path.write_text(
        "import abc\nimport torch.distributed as dist\n" + used + "".join(f"class C{n}{run}" for n in range(classes))
    )
    project = Project(folder, folder)
    facts = project.modules.facts_of(path)
    assert facts is not None
    assert len(analysis.result_of(facts, project).mismatches) == 1
    steps: int = project.effort.whole.steps
    return steps


def test_a_function_is_evaluated_once_for_attributes_of_many_classes(tmp_path: pathlib.Path) -> None:
    """What an attribute is an attribute of makes no difference to who gets it."""
    assert _steps_of(tmp_path, 9) - _steps_of(tmp_path, 1) < 8 * 10


def test_what_functions_leave_in_a_module_is_evaluated_once_for_each(tmp_path: pathlib.Path) -> None:
    """One function sets all groups of a module, and reads each before: ``assert _A is None``."""

    def steps(groups: int) -> int:
        names = [f"_GROUP_{n}" for n in range(groups)]
        setting = "".join(f"    global {name}\n    assert {name} is None\n    {name} = make(ranks)\n" for name in names)
        reading = "".join(f"def get{name}():\n    return {name}\n" for name in names)
        used = "".join(f"    dist.all_reduce(x, group=get{name}())\n" for name in names)
        source = "".join(f"{name} = None\n" for name in names)
        source += f"def make(ranks):\n    return dist.new_group(ranks)\ndef set_up(ranks):\n{setting}"
        source += "def tear_down():\n" + "".join(f"    global {name}\n    {name} = None\n" for name in names)
        return _graph(tmp_path, f"{source}{reading}def f(x):\n{used}", "f")[2]

    assert steps(16) <= 2 * steps(8)

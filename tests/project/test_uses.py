"""Uses of a name in a file: all of them, without going over what does not hold the name."""

from __future__ import annotations

import ast
import pathlib

import pytest

from ddp_lint.project import Project
from ddp_lint.project import uses as module
from ddp_lint.project.uses import constructions, uses

TEXT = """
@wrap(Net)
def decorated(x):
    return x

class Outer(
    Net
):
    def build(self, size):
        self.net = Net(
            size,
        )
        return later(size, models.Net)

def other(size):
    if size:
        return size + 1
    return size
"""


def _project(tmp_path: pathlib.Path, text: str = TEXT) -> Project:
    (tmp_path / "a.py").write_text(text)
    return Project(tmp_path)


def test_uses_in_decorators_bases_calls_and_arguments(tmp_path: pathlib.Path) -> None:
    project = _project(tmp_path)
    facts = project.modules.facts_of(project.root / "a.py")
    assert facts is not None
    found = sorted((use.node.lineno, use.call is not None, use.given is not None) for use in uses(facts, "Net"))
    assert found == [(2, False, True), (7, False, False), (10, True, False), (13, False, True)]
    assert {use.owner.name for use in uses(facts, "Net") if use.owner is not None and use.around is not None} == {
        "Outer"
    }
    assert not [*uses(facts, "Absent")]


def test_names_of_a_functions_own_are_no_uses(tmp_path: pathlib.Path) -> None:
    """A parameter or a variable is another thing than the function of that name, but for one that is declared."""
    text = """
def run():
    pass

def given(run):
    return run

@keep(run)
def by_default(run=run):
    return run

def set_here():
    run = 1
    return run

def set_there():
    global run
    run = 1

def called():
    run()
    self.run()
"""
    project = _project(tmp_path, text)
    facts = project.modules.facts_of(project.root / "a.py")
    assert facts is not None
    assert sorted(use.node.lineno for use in uses(facts, "run")) == [8, 9, 18, 21, 22]


def test_statements_without_the_name_are_passed_over(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = _project(tmp_path)
    facts = project.modules.facts_of(project.root / "a.py")
    entered: list[ast.AST] = []
    below = module.below
    monkeypatch.setattr(module, "below", lambda node: entered.append(node) or below(node))
    assert facts is not None and [*uses(facts, "Net")]
    assert not [node for node in entered if isinstance(node, (ast.If, ast.Return)) and node.lineno != 13]


def test_what_makes_objects_is_looked_for_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = _project(tmp_path, "class Net:\n    pass\n\n\ndef make():\n    return Net(1)\n")
    asked: list[str] = []
    monkeypatch.setattr(module, "uses", lambda facts, name: asked.append(name) or uses(facts, name))
    assert [[call.lineno for _, _, call in constructions(project, "a.Net", 4)] for _ in range(3)] == [[6]] * 3
    assert asked == ["Net"]

"""What a result rests on: the parts of other files that it looked at, and nothing else of them."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Callable

import pytest

import ddp_lint
from ddp_lint.divergence.definitions import handing_over
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import calls_on_self, touch
from ddp_lint.source import SourceFile

SOURCE = '''\
"""A module."""
import os

LIMIT = 3


def first(x):
    """Says # nothing."""
    y = x + 1  # one more
    return y


class Net:
    size = 2

    def __init__(self, rank):
        self.rank = rank

    def forward(self, x):
        self.seen = x
        return x

    def backward(self):
        return self.rank


def count():
    global LIMIT
    LIMIT += 1
'''


def body_of_first(project: Project, facts: ModuleFacts) -> object:
    return ast.dump(ast.Module(facts.definitions["first"].body, []))


def names(project: Project, facts: ModuleFacts) -> object:
    return sorted(facts.definitions), sorted(facts.values)


def stored_rank(project: Project, facts: ModuleFacts) -> object:
    cls = project.classes.find("m.Net")
    assert cls is not None
    return [ast.dump(value) for value, _ in cls.attribute("rank")]


def called(project: Project, facts: ModuleFacts) -> object:
    cls = facts.definitions["Net"]
    assert isinstance(cls, ast.ClassDef)
    methods = project.classes.of(facts, cls).methods
    return [sorted(calls_on_self(cls, method)) for method in methods.values()]


def all_of_net(project: Project, facts: ModuleFacts) -> object:
    touch(facts.definitions["Net"])
    return None


def all_of_module(project: Project, facts: ModuleFacts) -> object:
    touch(facts.tree)
    return None


def text(project: Project, facts: ModuleFacts) -> object:
    return facts.file.text


def everything(project: Project, facts: ModuleFacts) -> object:
    return ast.dump(facts.tree)


Look = Callable[[Project, ModuleFacts], object]
NET = {all_of_net, all_of_module}
#: What rests on the outline: all but the text.
OUTLINE: set[Look] = {body_of_first, names, stored_rank, called, *NET, text, everything}


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("x + 1", "x + 2", {body_of_first, all_of_module, text, everything}),
        ("# one more", "# two more", {text}),
        ("  # one more", "", {text}),
        ("\n\nclass Net", "\n# A class.\n\n\nclass Net", {text}),
        ("Says # nothing", "Says # less", {text}),
        ("LIMIT = 3", "LIMIT = 4", OUTLINE),
        ("def first(x)", "def first(x, *more)", OUTLINE),
        ("self.seen = x", "self.seen = y", {*NET, text, everything}),
        ("self.seen = x", "self.rank = x", {*NET, stored_rank, text, everything}),
        ("self.rank = rank", "self.rank = 0", {*NET, stored_rank, text, everything}),
        ("return self.rank", "return self.seen", {*NET, text, everything}),
        ("return self.rank", "return self.forward(1)", {*NET, called, text, everything}),
        ("self.seen = x", "getattr(self, x)()", {*NET, called, text, everything}),
        # Who rebinds a variable and what is imported belong to the outline.
        (
            "        return self.rank",
            "        global LIMIT",
            OUTLINE,
        ),
        (
            "        return self.rank",
            "        import sys",
            OUTLINE,
        ),
    ],
)
def test_an_edit_changes_what_rests_on_the_edited_part(
    tmp_path: pathlib.Path, old: str, new: str, changes: set[Look]
) -> None:
    looks: list[Look] = [body_of_first, names, stored_rank, called, all_of_net, all_of_module, text, everything]
    path = tmp_path / "m.py"
    path.write_text(SOURCE)
    assert old in SOURCE
    for look in looks:
        path.write_text(SOURCE)
        project = Project(tmp_path)
        with project.recording() as asked:
            facts = project.modules.facts("m")
            assert facts is not None
            look(project, facts)
        kept = project.answers.dependencies(asked)
        assert all(Project(tmp_path).answers.holds(question, answer) for question, answer in kept.items())
        path.write_text(SOURCE.replace(old, new))
        holds = all(Project(tmp_path).answers.holds(question, answer) for question, answer in kept.items())
        assert holds is (look not in changes), look.__name__


def test_who_gets_what_is_kept_of_a_part_rests_on_it(tmp_path: pathlib.Path) -> None:
    """The second reader reads nothing by itself."""
    (tmp_path / "m.py").write_text(SOURCE)
    project = Project(tmp_path)

    def asked() -> set[str]:
        with project.recording() as found:
            facts = project.modules.facts("m")
            assert facts is not None
            stored_rank(project, facts)
            assert facts.prose
        return set(project.answers.dependencies(found))

    first = asked()
    assert asked() == first and "file:m.py" in first


def test_a_file_that_is_shown_is_rested_on_as_a_whole(tmp_path: pathlib.Path) -> None:
    """A finding that points into a file says at which line."""
    (tmp_path / "m.py").write_text(SOURCE)
    project = Project(tmp_path)
    with project.recording() as asked:
        assert project.modules.facts("m") is not None
    assert "file:m.py" not in project.answers.dependencies(asked)
    assert "file:m.py" in project.answers.dependencies(asked, ["m.py"])
    assert "file:m.py" in project.answers.dependencies(asked, places=True)


#: What is kept by nodes and rests on the outline of a file alone, or on an expression in hand; `kept_by_node` itself.
_OUTLINE_ALONE = {
    "_names_of",
    "_parameter_before",
    "_text_of_opposite",
    "assignments_in",
    "defaults_of",
    "is_never_none",
    "kept",
    "text_of",
}


def test_nothing_is_kept_by_a_node_behind_the_back_of_who_gets_it() -> None:
    """A function that keeps what it finds in a body notes who asks: `kept_by_node`, not `functools.lru_cache`."""
    found = set()
    for path in pathlib.Path(ddp_lint.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.args.args:
                kept = any("cache" in ast.unparse(decorator) for decorator in node.decorator_list)
                annotation = node.args.args[0].annotation
                text = ast.unparse(annotation) if annotation is not None else ""
                if kept and ("ast." in text or text.rpartition(".")[2] in ("Function", "FunctionNode", "Definition")):
                    found.add(node.name)
    assert found == _OUTLINE_ALONE


def test_what_is_derived_of_a_class_holds_while_its_methods_give_the_same(tmp_path: pathlib.Path) -> None:
    """Whoever asks what a class hands over depends on that, not on what else its methods do."""
    text = "class Net:\n    def wrap(self):\n        shard(self.model, 1)\n\n    def other(self):\n        return 1\n"
    (tmp_path / "a.py").write_text(text)

    def answers(changed: str) -> bool:
        project = Project(tmp_path)
        facts = project.modules.facts_of(tmp_path / "a.py")
        assert facts is not None
        with project.recording() as asked:
            handing_over(facts.definitions["Net"])  # type: ignore[arg-type]
        kept = project.answers.dependencies(asked)
        assert list(kept) == ["sums:handing_over.Net.:a.py"]
        later = Project(tmp_path)
        later.modules.hold(tmp_path / "a.py", SourceFile("a.py", changed, "a.py"))
        return all(later.answers.holds(*question) for question in kept.items())

    assert answers(text.replace("return 1", "total = 2\n        return total"))
    assert answers("# a comment\n" + text)
    assert not answers(text.replace("self.model, 1", "self.model, 2"))
    assert not answers(text.replace("return 1", "return shard(self.head)"))

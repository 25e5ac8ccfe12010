"""How long the syntax trees of a project's files are kept."""

from __future__ import annotations

import ast
import gc
import pathlib
import sys
import weakref

import libcst as cst
import pytest

from ddp_lint.config import Settings
from ddp_lint.divergence import analyse
from ddp_lint.divergence.analyse import summaries_of
from ddp_lint.divergence.definitions import attributes_in
from ddp_lint.engine.checking import Checker
from ddp_lint.gc_tuning import let_go_of_trees
from ddp_lint.project import Project
from ddp_lint.project import modules as module
from ddp_lint.project.parts import inside


@pytest.fixture
def project(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of two files that keeps the tree of one."""
    (tmp_path / "a.py").write_text("class Base:\n    def step(self):\n        return 1\n")
    (tmp_path / "b.py").write_text("from a import Base\n\n\nclass Net(Base):\n    pass\n")
    monkeypatch.setattr(module, "_KEPT_SOURCE", 1)
    return Project(tmp_path)


def test_a_file_is_not_read_again_as_long_as_its_tree_is_in_use(project: Project) -> None:
    first = project.modules.facts_of(project.root / "a.py")
    project.modules.facts_of(project.root / "b.py")
    assert project.modules.known_facts(project.root / "a.py") is None
    assert project.modules.facts_of(project.root / "a.py") is first


def test_a_file_has_the_text_that_is_held_of_it(project: Project) -> None:
    first = project.modules.facts_of(project.root / "a.py")
    project.modules.facts_of(project.root / "b.py")
    assert first is not None
    project.modules.hold(project.root / "a.py", module.SourceFile("a.py", "class Other:\n    pass\n", "a.py"))
    held = project.modules.facts_of(project.root / "a.py")
    assert held is not None
    assert list(held.definitions) == ["Other"]


def test_what_is_known_of_a_class_keeps_no_tree(project: Project) -> None:
    assert project.classes.lineage("b.Net") == ("b.Net", "a.Base")
    found = project.classes.find("a.Base")
    assert found is not None
    assert list(found.methods) == ["step"]
    tree = weakref.ref(found.module)
    del found
    project.modules.facts_of(project.root / "b.py")
    gc.collect()
    assert tree() is None
    assert project.classes.find("a.Base") is not None


def test_a_tree_of_libcst_ends_with_the_check_of_its_file(tmp_path: pathlib.Path) -> None:
    """Also without a search for garbage: what reads a function in the order of execution is in no cycle."""
    path = tmp_path / "net.py"
    path.write_text("import torch\n\n\ndef halve(x: torch.Tensor):\n    y = x.exp()\n    y /= 2\n    return y\n")
    checker = Checker(Settings(tmp_path, frozenset({"DDP203"})))
    gc.collect()
    gc.disable()
    try:
        assert checker.check(path).parsed
        assert not [each for each in gc.get_objects() if type(each) is cst.FunctionDef and each.name.value == "halve"]
    finally:
        gc.enable()


def test_summaries_start_again_once_there_are_too_many_trees(tmp_path: pathlib.Path) -> None:
    """What they have let go of is worked out again, with the same result; whoever holds the trees, they count."""
    lines = "".join(f"    y{n} = x\n" for n in range(50))
    for name in "abcdef":
        call = "" if name == "a" else "    from a import a\n    a(rank)\n"
        (tmp_path / f"{name}.py").write_text(
            "import torch.distributed as dist\n\n\n"
            f"def {name}(rank, x=0):\n{lines}{call}    if rank == 0:\n        dist.barrier()\n"
        )
    paths, settings = sorted(tmp_path.glob("*.py")), Settings(tmp_path, frozenset({"DDP101"}))
    whole = Project(tmp_path)
    expected = [Checker(settings, project=whole).check(path).findings for path in paths]
    assert all(expected)
    size = sum(path.stat().st_size for path in paths)
    assert whole.modules.source_in_memory == size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_KEPT_SOURCE", size // 3)
        patch.setattr(sys.modules[analyse.__module__], "_MOST_SOURCE", size // 3)
        bounded = Project(tmp_path)
        for path, findings in zip(paths, expected, strict=True):
            assert Checker(settings, project=bounded).check(path).findings == findings
            assert bounded.modules.source_in_memory <= size // 3 + 2 * size // len(paths)


def test_what_summaries_do_not_use_goes_before_they_start_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("import torch.distributed as dist\n\n\ndef f():\n    dist.barrier()\n")
    (tmp_path / "b.py").write_text("def g(): ...\n" * 20)
    project, bounds = Project(tmp_path), sys.modules[analyse.__module__]
    Checker(Settings(tmp_path, frozenset({"DDP101"})), project=project).check(tmp_path / "a.py")
    kept = summaries_of(project)
    project.modules.facts_of(tmp_path / "b.py")
    project.modules.facts_of(tmp_path / "a.py")
    size = project.modules.source_in_memory
    monkeypatch.setattr(module, "_LEAST_SOURCE", 1)
    monkeypatch.setattr(bounds, "_MOST_SOURCE", size - 1)
    assert summaries_of(project) is kept
    assert project.modules.source_in_memory == (tmp_path / "a.py").stat().st_size
    monkeypatch.setattr(bounds, "_MOST_SOURCE", 1)
    assert summaries_of(project) is not kept


def test_symbols_keep_no_tree_once_summaries_start_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is unknown is known by what it was computed from: here by an object of a class of the file."""
    (tmp_path / "a.py").write_text(
        "import torch.distributed as dist\nfrom elsewhere import ask\n\n\nclass Net:\n    pass\n\n\n"
        "def run():\n    first = ask(Net())\n    if ask(first, Net()):\n        dist.barrier()\n"
    )
    (tmp_path / "b.py").write_text("import torch.distributed as dist\n\n\ndef f():\n    dist.barrier()\n")
    monkeypatch.setattr(module, "_KEPT_SOURCE", 1)
    monkeypatch.setattr(sys.modules[analyse.__module__], "_MOST_SOURCE", 1)
    project = Project(tmp_path)
    checker = Checker(Settings(tmp_path, frozenset({"DDP101"})), project=project)
    checker.check(tmp_path / "a.py")
    facts = project.modules.known_facts(tmp_path / "a.py")
    assert facts is not None
    tree = weakref.ref(facts)
    del facts
    checker.check(tmp_path / "b.py")
    checker.check(tmp_path / "b.py")
    assert tree() is None


def test_what_holds_no_more_than_names_stays_once_summaries_start_again(project: Project) -> None:
    """What was found in all files, such as the calls of a function, holds their trees; a fact about it need not."""
    computed: list[str] = []

    def found(what: object) -> object:
        computed.append("again")
        return what

    path = project.root / "a.py"
    names = {"Base": ("a.Base", None, frozenset({1, 2}))}
    project.remember(("names",), lambda: found(names))
    project.remember(("calls",), lambda: found([(project.modules.facts_of(path), "Base")]))
    tree = weakref.ref(project.modules.facts_of(path))
    project.modules.facts_of(project.root / "b.py")
    gc.collect()
    assert tree() is not None
    project.forget_memories()
    gc.collect()
    assert tree() is None
    project.remember(("names",), lambda: found(names))
    project.remember(("calls",), lambda: found(None))
    assert len(computed) == 3


def test_caches_by_node_hold_no_tree_once_trees_are_let_go_of() -> None:
    (function,) = ast.parse("def step(self):\n    return self.x\n").body
    assert inside(function)
    assert attributes_in(function) == {"x"}
    gone = weakref.ref(function)
    del function
    let_go_of_trees()
    assert gone() is None

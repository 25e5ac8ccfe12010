"""A project whose files change while it is in use: what was kept is what a new run finds."""

from __future__ import annotations

import pathlib
import random
import shutil
from typing import Any

import pytest

from ddp_lint.config import Configuration, Overrides, Settings
from ddp_lint.divergence.frame import Frame, span_of
from ddp_lint.divergence.references import FunctionRef
from ddp_lint.divergence.summaries import Summaries
from ddp_lint.divergence.values import Value
from ddp_lint.engine.checking import Checker
from ddp_lint.findings import Finding
from ddp_lint.source import SourceFile

from . import random_edits

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"
#: How many edits each of them gets: fewer where all of it takes long to check.
PROJECTS = {
    "collectives/DDP101_project": 25,
    "data/DDP701_helper": 25,
    "compile/DDP301_project": 8,
    "collectives/DDP109_own_wrappers": 25,
}
LINES = [
    "dist.barrier()",
    "return",
    "if rank == 0:",
    "x.item()",
    "import torch.distributed as dist",
    "def f(x):",
    "pass",
]


@pytest.mark.slow
@pytest.mark.parametrize("folder", PROJECTS)
def test_after_any_changes_the_findings_are_those_of_a_new_run(folder: str, tmp_path: pathlib.Path) -> None:
    texts, settings = copied(folder, tmp_path)
    kept = Checker(settings, changing=True)
    chance = random.Random(folder)
    for path, text in texts.items():
        kept.change(path, file_of(kept, path, text))
    for _ in range(PROJECTS[folder]):
        path = chance.choice(list(texts))
        texts[path] = edited(texts[path], chance)
        kept.change(path, file_of(kept, path, texts[path]))
        new = Checker(settings, changing=True)
        for other, text in texts.items():
            new.change(other, file_of(new, other, text))
        assert {p: found(kept, p, t) for p, t in texts.items()} == {p: found(new, p, t) for p, t in texts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("folder", PROJECTS)
def test_after_edits_within_lines_the_findings_are_those_of_a_new_run(folder: str, tmp_path: pathlib.Path) -> None:
    """What rests on other functions of an edited file is kept."""
    texts, settings = copied(folder, tmp_path)
    kept = Checker(settings, changing=True)
    chance = random.Random(folder)
    for path, text in texts.items():
        kept.change(path, file_of(kept, path, text))
        found(kept, path, text)
    grafted = 0
    for _ in range(PROJECTS[folder]):
        path = chance.choice(list(texts))
        text = random_edits.edited(texts[path], chance)
        if text.count("\n") != texts[path].count("\n"):
            continue
        facts = kept.project.modules.known_facts(path)
        texts[path] = text
        kept.change(path, file_of(kept, path, text))
        grafted += facts is not None and kept.project.modules.known_facts(path) is facts
        new = Checker(settings, changing=True)
        for other, text in texts.items():
            new.change(other, file_of(new, other, text))
        assert {p: found(kept, p, t) for p, t in texts.items()} == {p: found(new, p, t) for p, t in texts.items()}
    assert grafted


def copied(folder: str, place: pathlib.Path) -> tuple[dict[pathlib.Path, str], Settings]:
    """The texts of a project of the fixtures, as a project of its own: not one of all files around the fixtures."""
    root = place / "project"
    shutil.copytree(FIXTURES / folder, root)
    if not (root / "ddp-lint.toml").exists():
        (root / "pyproject.toml").write_text("")
    settings = Configuration(Overrides(select=("ALL",), preview=True)).of(root)
    assert settings.root == root
    return {path: path.read_text() for path in sorted(root.rglob("*.py"))}, settings


def found(checker: Checker, path: pathlib.Path, text: str) -> tuple[Finding, ...]:
    file = file_of(checker, path, text)
    result = checker.project.remember(("test", file.path, file.digest), lambda: checker.check_file(file, path))
    assert not result.error
    return result.findings


def file_of(checker: Checker, path: pathlib.Path, text: str) -> SourceFile:
    return SourceFile.of_text(checker.project.paths.shown(path), text, checker.project.paths.inside(path))


def edited(text: str, chance: random.Random) -> str:
    """The text with a line more, a line less, a line twice, or a line moved in or out."""
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    kind = chance.randrange(5)
    if kind == 0:
        lines.insert(at, indent + chance.choice(LINES))
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines.insert(at, lines[at])
    elif kind == 3:
        lines[at] = "    " + lines[at]
    else:
        lines[at] = lines[at].replace("rank", "rang") if "rank" in lines[at] else f"{lines[at]}  # seen"
    return "\n".join(lines) or "\n"


def test_a_helper_that_changes_changes_what_is_found_at_its_caller(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    helper, train = tmp_path / "helper.py", tmp_path / "train.py"
    helper.write_text("def save():\n    pass\n")
    train.write_text(
        "import torch.distributed as dist\nfrom helper import save\n\n\nif dist.get_rank() == 0:\n    save()\n"
    )
    checker = Checker(Configuration().of(tmp_path), changing=True)
    assert not found(checker, train, train.read_text())
    text = "import torch.distributed as dist\n\n\ndef save():\n    dist.barrier()\n"
    checker.change(helper, file_of(checker, helper, text))
    assert [f.code for f in found(checker, train, train.read_text())] == ["DDP101"]
    checker.change(helper, None)  # closed without saving
    assert not found(checker, train, train.read_text())
    helper.write_text(text)
    checker.change(helper, None)
    assert [f.code for f in found(checker, train, train.read_text())] == ["DDP101"]


def test_a_function_ends_where_its_last_line_ends_after_an_edit(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    checker = Checker(Configuration(Overrides(isolated=True)).of(tmp_path), changing=True)

    def end_of_function(text: str) -> int:
        checker.change(path, file_of(checker, path, text))
        facts = checker.project.modules.facts_of(path)
        assert facts is not None
        return span_of(facts, facts.definitions["f"]).end_column

    assert end_of_function("def f(x):\n    g(x)\n") == len("    g(x)") + 1
    facts = checker.project.modules.known_facts(path)
    assert end_of_function("def f(x):\n    g(x, x)\n") == len("    g(x, x)") + 1
    assert checker.project.modules.known_facts(path) is facts  # the tree was edited, not read again


def test_a_variable_that_changes_counts_with_its_new_value(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    place, train = tmp_path / "place.py", tmp_path / "train.py"
    place.write_text("")
    train.write_text(
        "import torch.distributed as dist\nfrom place import mine\n\n\nif mine == 0:\n    dist.barrier()\n"
    )
    checker = Checker(Configuration().of(tmp_path), changing=True)
    for value, codes in (("1", []), ("dist.get_rank()", ["DDP101"]), ("dist.get_world_size()", [])):
        text = f"import torch.distributed as dist\n\nmine = {value}\nif mine == 0:\n    dist.barrier()\n"
        checker.change(place, file_of(checker, place, text))
        assert [f.code for f in found(checker, place, text)] == codes
        assert [f.code for f in found(checker, train, train.read_text())] == codes


DOCUMENTED = '''"""All of it."""
import torch.distributed as dist


class Meter:
    """What is counted."""

    def update(self):
        """Add one."""
        dist.barrier()


def report(meter):
    """Say it.

    meter : Meter
        What was counted.
    """
    if dist.get_rank() == 0:
        meter.update()
'''


def test_a_docstring_is_no_code_but_for_the_classes_that_it_gives(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    train = tmp_path / "train.py"
    train.write_text(DOCUMENTED)
    checker = Checker(Configuration().of(tmp_path), changing=True)
    evaluated: list[str] = []
    evaluate = Summaries.evaluate

    def counting(self: Summaries, function: FunctionRef, env: dict[str, Value], **others: Any) -> Frame:
        evaluated.append(function.name)
        return evaluate(self, function, env, **others)

    monkeypatch.setattr(Summaries, "evaluate", counting)

    def codes(text: str) -> list[str]:
        evaluated.clear()
        checker.change(train, file_of(checker, train, text))
        return [f.code for f in found(checker, train, text)]

    assert codes(DOCUMENTED) == ["DDP101"] and evaluated
    for prose in ("Say it.", "What is counted.", "Add one.", "All of it.", "What was counted."):
        assert codes(DOCUMENTED.replace(prose, f"{prose} Barriers are no code.")) == ["DDP101"]
        assert not evaluated, prose
    assert codes(DOCUMENTED.replace("meter : Meter", "meter : float")) == []
    assert evaluated == ["report"]
    assert codes(DOCUMENTED) == ["DDP101"]


def test_what_is_kept_does_not_grow_with_the_number_of_changes(tmp_path: pathlib.Path) -> None:
    path = FIXTURES / "collectives" / "DDP101.py"
    text = path.read_text()
    checker = Checker(Configuration(Overrides(isolated=True)).of(path.parent), changing=True)

    def kept() -> int:
        memories = (checker.project._memo, *checker.project._memories.values())
        resting = checker.project._resting
        assert resting is not None
        return sum(map(len, memories)) + len(resting) + sum(map(len, resting.values()))

    sizes = []
    for number in range(6):
        changed = f"{text}\nlast = {number}\n"
        checker.change(path, file_of(checker, path, changed))
        found(checker, path, changed)
        sizes.append(kept())
    assert sizes[-1] <= sizes[1]

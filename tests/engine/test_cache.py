"""Kept results: used while all that they rest on is unchanged, and never a reason to fail."""

from __future__ import annotations

import json
import pathlib
import random
import shutil

import pytest

from ddp_lint.engine.cache import decode, encode
from ddp_lint.findings import Applicability, Confidence, Edit, Finding, Fix, Label, RankTrace, Span

from . import random_edits
from .samples import ALL, HAZARD, OPS, check, codes, write

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    write(tmp_path / "project", {"ops.py": OPS, "a.py": HAZARD, "sub/__init__.py": "", "sub/b.py": "import torch\n"})
    return tmp_path / "project"


def test_the_second_run_is_answered_from_the_cache(root: pathlib.Path) -> None:
    cache = root / ".ddp_lint_cache"
    first, second = check(root, cache=cache), check(root, cache=cache)
    assert (first.statistics.cached, second.statistics.cached) == (0, 4)
    assert first.findings == second.findings and codes(second) == ["DDP250"]
    assert (cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert (cache / ".gitignore").read_text() == "*\n"


def test_a_change_in_another_file_that_the_finding_rests_on_counts(root: pathlib.Path) -> None:
    cache = root / ".ddp_lint_cache"
    assert codes(check(root, cache=cache)) == ["DDP250"]
    write(root, {"ops.py": "def softmax(x, dim):\n    return x\n"})
    report = check(root, cache=cache)
    assert codes(report) == []
    assert report.statistics.cached == 2
    write(root, {"ops.py": OPS})
    assert codes(check(root, cache=cache)) == ["DDP250"]


def test_a_change_in_a_callee_of_a_callee_counts_for_every_caller(tmp_path: pathlib.Path) -> None:
    """The second caller's summary of the callee was made for the first one; it rests on the same files."""
    cache = tmp_path / ".ddp_lint_cache"
    caller = "import torch.distributed as dist\nfrom saving import save\n\nif dist.get_rank() == 0:\n    save()\n"
    apart, together = "def end():\n    pass\n", "import torch.distributed as dist\n\ndef end():\n    dist.barrier()\n"
    saving = "import ending\n\ndef save():\n    ending.end()\n"
    write(tmp_path, {"a.py": caller, "b.py": caller, "saving.py": saving, "ending.py": apart, "pyproject.toml": ""})
    only = frozenset({"DDP101"})
    assert codes(check(tmp_path, cache=cache, codes=only)) == []
    write(tmp_path, {"ending.py": together})
    report = check(tmp_path, cache=cache, codes=only)
    assert [pathlib.Path(finding.span.path).name for finding in report.findings] == ["a.py", "b.py"]
    write(tmp_path, {"ending.py": apart})
    assert codes(check(tmp_path, cache=cache, codes=only)) == []


@pytest.mark.parametrize("folder", ["collectives/DDP101_project", "compile/DDP301_project"])
def test_after_random_edits_the_cache_gives_what_a_new_run_finds(folder: str, tmp_path: pathlib.Path) -> None:
    """A result rests on parts of other files; an edit of another part leaves it."""
    cache, chance, kept = tmp_path / ".ddp_lint_cache", random.Random(folder), 0
    shutil.copytree(FIXTURES / folder, tmp_path / "project")
    root = tmp_path / "project"
    (root / "pyproject.toml").touch()
    check(root, cache=cache)
    for _ in range(20):
        path = chance.choice(sorted(root.rglob("*.py")))
        path.write_text(random_edits.edited(path.read_text(), chance))
        report = check(root, cache=cache)
        kept += report.statistics.cached
        assert report.findings == check(root).findings
    assert kept


def test_a_file_that_appears_where_one_was_looked_for_counts(root: pathlib.Path) -> None:
    cache = root / ".ddp_lint_cache"
    (root / "ops.py").unlink()
    assert codes(check(root, "a.py", cache=cache)) == []
    assert check(root, "a.py", cache=cache).statistics.cached == 1
    write(root, {"ops.py": OPS})
    assert codes(check(root, "a.py", cache=cache)) == ["DDP250"]


def test_settings_and_working_directory_are_part_of_the_key(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = root / ".ddp_lint_cache"
    check(root, cache=cache)
    assert codes(check(root, cache=cache, codes=ALL - {"DDP250"})) == []
    monkeypatch.chdir(root)
    assert [finding.span.path for finding in check(root, cache=cache).findings] == ["a.py"]


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"a.py": {}}\n[{}, []]',
        '{"a.py": []}\n[[], {"a.py": [9]}]',
        '{"a.py": [["DDP250"]]}\n[[], {"a.py": []}]',
        '{"a.py": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]}\n[[], {"a.py": []}]',
        '{"a.py": []}\n[[1], {"a.py": "no"}]',
        '{"files": {"a.py": [1]}, "folders": [], "results": 3}\n[]',
        '{"files": {"a.py": ["", null]}, "folders": {}, "results": ["a.py"]}\n[["a.py"], {"torch": [7]}]',
        "[" * 100_000,
    ],
)
def test_a_damaged_cache_is_computed_again(root: pathlib.Path, damage: str) -> None:
    cache = root / ".ddp_lint_cache"
    check(root, cache=cache)
    for shard in cache.rglob("*.json"):
        shard.write_text(damage)
    assert codes(check(root, cache=cache)) == ["DDP250"]
    assert codes(check(root, cache=cache)) == ["DDP250"]


def test_a_cache_that_cannot_be_written_is_done_without(root: pathlib.Path) -> None:
    (root / "occupied").write_text("a file, not a folder")
    assert codes(check(root, cache=root / "occupied")) == ["DDP250"]


def test_old_generations_are_removed(root: pathlib.Path) -> None:
    cache = root / ".ddp_lint_cache"
    for number in range(12):
        check(root, cache=cache, codes=frozenset({"DDP250", f"DDP{800 + number}"}))
    assert len([path for path in cache.iterdir() if path.is_dir()]) <= 8


def test_findings_survive_the_way_through_json() -> None:
    span = Span("a.py", 1, 2, 3, 4)
    finding = Finding(
        code="DDP101",
        slug="slug",
        message="é \ud800",
        span=span,
        confidence=Confidence.MEDIUM,
        labels=(Label(span, "here"),),
        notes=("one", "two"),
        help="help",
        witness=(RankTrace("rank 0", (Label(span, "step"),)),),
        fix=Fix("fix", Applicability.UNSAFE, (Edit(span, "text"),)),
        fingerprint="f" * 32,
    )
    assert decode(Finding, json.loads(json.dumps(encode(finding)))) == finding

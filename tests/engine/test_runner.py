"""Files in, findings out: the same whatever the order, the number of processes and the working directory."""

from __future__ import annotations

import os
import pathlib
import sys

import libcst as cst
import pytest

from ddp_lint.config import Settings
from ddp_lint.engine import file_visit
from ddp_lint.engine.checking import Checker
from ddp_lint.engine.report import FileResult, rule_crashed
from ddp_lint.engine.runner import check_paths, check_text
from ddp_lint.engine.walk import walk
from ddp_lint.findings import Finding
from ddp_lint.knowledge.project_names import Names
from ddp_lint.program import index, reach
from ddp_lint.program.mentions import FileMentions
from ddp_lint.project.communication import Reach
from ddp_lint.rules.base import Rule
from ddp_lint.source import ImportTable, SourceFile
from ddp_lint.view import Module

from .samples import ALL, HAZARD, OPS, check, codes, write


def test_the_report_is_the_same_for_any_number_of_processes(tmp_path: pathlib.Path) -> None:
    write(tmp_path, {"ops.py": OPS, "broken.py": "def f(:\n"} | {f"m{i}.py": HAZARD for i in range(20)})
    (tmp_path / "binary.py").write_bytes(b"x\0y")
    one, three = check(tmp_path, jobs=1), check(tmp_path, jobs=3)
    assert one.findings == three.findings
    assert one.errors == three.errors
    assert codes(one) == ["DDP000"] + ["DDP250"] * 20
    assert [path for path, _ in one.errors] == [str(tmp_path / "binary.py")]


@pytest.mark.parametrize(("scripts", "wanted"), [(0, False), (1, False), (8, True)])
def test_what_can_communicate_is_asked_where_much_of_a_project_can(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, scripts: int, wanted: bool
) -> None:
    """Else it costs more than it saves: files without a framework are not evaluated."""
    asked: list[str] = []

    def reach_of(files: dict[str, FileMentions], names: Names) -> Reach:
        asked.extend(files)
        return reach.reach_of(files, names)

    monkeypatch.setattr(sys.modules[index.__module__], "reach_of", reach_of)
    script = "import torch.distributed as dist\n\nif dist.get_rank() == 0:\n    dist.barrier()\n"
    write(tmp_path, {f"m{i}.py": "import json\n" + "x = 1\n" * 20 for i in range(30)})
    write(tmp_path, {f"s{i}.py": script for i in range(scripts)})
    assert codes(check(tmp_path)) == ["DDP101"] * scripts
    assert bool(asked) == wanted


def test_work_on_another_file_is_charged_to_that_file(tmp_path: pathlib.Path) -> None:
    helper = (
        "import torch.distributed as dist\n\ndef sync(x):\n" + "    x = x + 1\n" * 3000 + "    dist.all_reduce(x)\n"
    )
    user = "import torch.distributed as dist\nfrom b import sync\nif dist.get_rank() == 0:\n    sync(1)\n"
    write(tmp_path, {"b.py": helper, "a.py": user, "unread.py": helper})
    done = check(tmp_path, "a.py").statistics
    charged = done.charged
    assert done.for_others[str(tmp_path / "b.py")] == charged[str(tmp_path / "b.py")]
    assert str(tmp_path / "a.py") not in done.for_others
    assert {path.rpartition("/")[2] for path in charged} <= {"a.py", "b.py", ""}
    assert charged[str(tmp_path / "b.py")] > charged[str(tmp_path / "a.py")] > 0


def test_a_file_named_twice_is_checked_once_and_findings_are_sorted(tmp_path: pathlib.Path) -> None:
    write(tmp_path, {"ops.py": OPS, "a.py": HAZARD, "b.py": HAZARD})
    report = check(tmp_path, "b.py", "a.py", "b.py")
    assert [finding.span.path for finding in report.findings] == [str(tmp_path / "a.py"), str(tmp_path / "b.py")]


def test_paths_are_relative_to_the_working_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"ops.py": OPS, "sub/a.py": HAZARD})
    monkeypatch.chdir(tmp_path)
    assert [f.span.path for f in check(tmp_path, "sub/a.py").findings] == ["sub/a.py"]


def test_what_is_a_test_is_so_wherever_one_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its place in its project: not by the folders above, and also seen from inside the folder of the tests."""
    root = tmp_path / "test" / "project"
    write(root, {"ops.py": OPS, "tests/a.py": HAZARD, "src/a.py": HAZARD})
    for here in (tmp_path, root, root / "tests", root / "src"):
        monkeypatch.chdir(here)
        found = check(root, "tests/a.py", "src/a.py").findings
        assert [pathlib.Path(f.span.path).absolute() for f in found] == [root / "src" / "a.py"]
        settings = Settings(root, ALL)
        told = [check_text(HAZARD, root / name / "a.py", settings).findings for name in ("tests", "src")]
        assert [len(findings) for findings in told] == [0, 1]


def test_fingerprints_survive_moved_lines_and_tell_twins_apart(tmp_path: pathlib.Path) -> None:
    twins = HAZARD + "\n\ndef again(x):\n    return torch.log(softmax(x, dim=-1))\n"
    write(tmp_path, {"ops.py": OPS, "a.py": twins})
    before = [finding.fingerprint for finding in check(tmp_path, "a.py").findings]
    write(tmp_path, {"a.py": "# a comment\n\n" + twins.replace("softmax(x, dim=-1))", "softmax(x,\n        dim=-1))")})
    after = [finding.fingerprint for finding in check(tmp_path, "a.py").findings]
    assert len(set(before)) == 2
    assert before[0] != "" and len(before[0]) == 32
    assert check(tmp_path, "a.py").findings[0].span.line == 8
    assert len(set(after)) == 2


def test_text_that_is_not_on_disk_is_checked_in_its_place(tmp_path: pathlib.Path) -> None:
    write(tmp_path, {"ops.py": OPS, "a.py": "pass\n"})
    report = check_text("\ufeff" + HAZARD.replace("\n", "\r\n"), tmp_path / "a.py", Settings(tmp_path, ALL))
    assert [(f.code, f.span.line, f.span.column) for f in report.findings] == [("DDP250", 6, 12)]


def test_text_that_was_saved_has_the_result_that_is_kept(tmp_path: pathlib.Path) -> None:
    """As long as it would be the same: not of other text, and not when a file that it rests on has changed."""
    write(tmp_path, {"ops.py": OPS, "a.py": HAZARD})
    settings, kept = Settings(tmp_path, ALL), tmp_path / ".ddp_lint_cache"
    report = check_paths([tmp_path / "a.py"], settings, cache_dir=kept)

    def again(text: str) -> tuple[int, bool]:
        told = check_text(text, tmp_path / "a.py", settings, cache_dir=kept)
        assert told.findings == check_text(text, tmp_path / "a.py", settings).findings
        return told.statistics.cached, told.findings == report.findings

    assert again(HAZARD) == again(HAZARD.replace("\n", "\r\n")) == (1, True)
    assert again(f"{HAZARD}\n\n{HAZARD}") == (0, False)
    write(tmp_path, {"ops.py": "def softmax(x, dim):\n    return x\n"})
    assert again(HAZARD) == (0, False)


def test_what_cannot_be_read_is_an_error_with_a_reason(tmp_path: pathlib.Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "nb.ipynb").write_text("{}")
    (tmp_path / "nul.py").write_bytes(b"a = 1\0")
    (tmp_path / "odd.py").write_bytes(b"# coding: no-such-codec\n")
    (tmp_path / "bad.py").write_bytes(b"x = '\xff'\n")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    names = ["folder.py", "nb.ipynb", "nul.py", "odd.py", "bad.py", "loop.py", "missing.py"]
    errors = {pathlib.Path(path).name: reason for path, reason in check(tmp_path, *names).errors}
    assert set(errors) == set(names)
    assert "not a notebook" in errors["nb.ipynb"]
    assert "NUL" in errors["nul.py"]
    assert "no-such-codec" in errors["odd.py"]
    assert all(reason and "\n" not in reason for reason in errors.values())


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_an_error(tmp_path: pathlib.Path) -> None:
    (path,) = write(tmp_path, {"a.py": "pass\n"})
    path.chmod(0)
    assert check(tmp_path, "a.py").errors == [(str(path), "Permission denied")]


class Crashing(Rule):
    """A rule with a defect."""

    code, slug = "DDP998", "crashing"

    def visit_Call(self, node: cst.Call) -> None:
        raise RuntimeError("two\nlines")


class Counting(Rule):
    """A rule that reports each call."""

    code, slug = "DDP997", "counting"

    def visit_Call(self, node: cst.Call) -> None:
        self.report(node, "a call")


class Unmade(Counting):
    """A rule whose construction fails."""

    code = "DDP996"

    def __init__(self, module: Module, emit: object) -> None:
        raise RuntimeError("no")


def test_a_rule_that_raises_is_dropped_and_told_and_the_others_go_on() -> None:
    file = SourceFile("a.py", "f()\ng()\n")
    module = Module(file, cst.parse_module(file.text), ImportTable({}))
    crashes: list[Finding] = []
    findings = walk(
        module,
        [Crashing, Counting, Unmade],
        lambda rule, error: crashes.append(rule_crashed(file, rule, error)),
    )
    assert [finding.code for finding in findings] == ["DDP997", "DDP997"]
    assert sorted(finding.message for finding in crashes) == [
        "rule DDP996 (counting) failed on this file: RuntimeError: no",
        "rule DDP998 (crashing) failed on this file: RuntimeError: two lines",
    ]
    assert {finding.code for finding in crashes} == {"DDP001"}


def test_a_worker_that_dies_costs_its_file_only(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"ops.py": OPS} | {f"m{i:02}.py": HAZARD for i in range(12)})
    real = Checker.check

    def deadly(self: Checker, path: pathlib.Path) -> FileResult:
        if path.name in ("m00.py", "m07.py"):
            os._exit(3)
        return real(self, path)

    monkeypatch.setattr(Checker, "check", deadly)  # forked workers inherit it
    report = check_paths(sorted(tmp_path.glob("*.py")), Settings(tmp_path, ALL), jobs=2)
    assert [pathlib.Path(path).name for path, _ in report.errors] == ["m00.py", "m07.py"]
    assert all("exit status 3" in reason for _, reason in report.errors)
    assert codes(report) == ["DDP250"] * 10


def test_a_defect_of_the_engine_costs_one_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"ops.py": OPS, "a.py": HAZARD, "b.py": HAZARD})
    real = file_visit.walk

    def failing(module: Module, *rest: object) -> list[Finding]:
        if module.name == "a":
            raise KeyError("defect")
        return real(module, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(file_visit, "walk", failing)
    report = check(tmp_path, "a.py", "b.py")
    assert len(report.errors) == 1 and "KeyError" in report.errors[0][1]
    assert codes(report) == ["DDP250"]

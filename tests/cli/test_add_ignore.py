"""--add-ignore: comments at the right place, and no line broken."""

from __future__ import annotations

import ast
import pathlib

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.report import Report
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.fixes import apply_edits
from ddp_lint.ignoring import ignoring, with_ignores

from .conftest import Check
from .samples import HAZARD, UNUSED

FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


def test_findings_get_a_comment_with_a_reason_to_fill_in(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_bytes(HAZARD.replace("\n", "\r\n").encode())
    result = check("--add-ignore")
    assert (result.exit_code, result.stderr) == (0, "1 finding ignored in 1 file: fill in the reasons\n")
    text = (project / "a.py").read_bytes().decode()
    assert ".mean()  # ddp-lint: ignore[DDP601] TODO: say why\r\n" in text
    assert text.count("\n") == text.count("\r\n") == HAZARD.count("\n")
    assert check().exit_code == 0


def test_what_no_comment_hides_is_told(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(UNUSED)
    result = check("--add-ignore")
    assert result.exit_code == 1
    assert "no comment: a.py:1: DDP002" in result.stderr
    assert (project / "a.py").read_text() == UNUSED


def test_files_are_checked_together_and_those_where_comments_do_nothing_are_as_before(
    check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "b.py"):
        (project / name).write_text(HAZARD)
    checked: list[list[str]] = []

    def hides_nothing_in_b(paths: list[pathlib.Path], settings: Settings, *, jobs: int | None) -> Report:
        checked.append([path.name for path in paths])
        assert all("ddp-lint: ignore" in path.read_text() for path in paths)
        (project / "b.py").write_text(HAZARD)
        return check_paths(paths, settings, jobs=jobs)

    monkeypatch.setattr("ddp_lint.cli.ignoring.check_paths", hides_nothing_in_b)
    result = check("--add-ignore")
    assert checked == [["a.py", "b.py"]]
    assert result.exit_code == 1 and "no comment: b.py" in result.stderr and "no comment: a.py" not in result.stderr
    assert "1 finding ignored in 1 file" in result.stderr
    assert "ddp-lint: ignore" in (project / "a.py").read_text()
    assert (project / "b.py").read_text() == HAZARD


def ignored(text: str, line: int, end: int = 0, python: bool = True, code: str = "DDP101") -> str:
    finding = Finding(code, "slug", "message", Span("a.py", line, 1, end or line, 2), Confidence.HIGH)
    return with_ignores(text, [finding], python=python)


COMMENT = "# ddp-lint: ignore[DDP101] TODO: say why"


@pytest.mark.parametrize(
    ("text", "line", "after"),
    [
        ("f(x)\n", 1, f"f(x)  {COMMENT}\n"),
        ("if x:\n    f('''\n  text\n''')\n", 2, f"if x:\n    {COMMENT}\n    f('''\n  text\n''')\n"),
        ("if x:\n    f(a + \\\n      b)\n", 2, f"if x:\n    {COMMENT}\n    f(a + \\\n      b)\n"),
        ("f(x)  # type: ignore\n", 1, f"{COMMENT}\nf(x)  # type: ignore\n"),
        (f"f({'x' * 90})\n", 1, f"{COMMENT}\nf({'x' * 90})\n"),
        ("f(x)  # ddp-lint: ignore[DDP4] ours\n", 1, "f(x)  # ddp-lint: ignore[DDP4, DDP101] ours\n"),
        ("f(\n    x,\n)\n", 2, f"f(\n    x,  {COMMENT}\n)\n"),
    ],
)
def test_where_the_comment_goes(text: str, line: int, after: str) -> None:
    assert ignored(text, line) == after
    finding = Finding("DDP101", "slug", "message", Span("a.py", line, 1, line, 2), Confidence.HIGH)
    edit = ignoring(finding, text.split("\n"), python=True)
    assert edit is not None
    assert apply_edits(text, [edit]) == after  # as an editor's code action does it


def test_an_editor_is_offered_no_comment_where_none_can_be() -> None:
    assert (
        ignoring(Finding("DDP101", "slug", "m", Span("a.py", 2, 1, 2, 2), Confidence.HIGH), ["", ""], python=True)
        is None
    )


def test_other_files_get_it_on_a_line_of_its_own() -> None:
    assert ignored("ENV A=1\n", 1, python=False) == f"{COMMENT}\nENV A=1\n"
    assert ignored("torchrun \\\n  train.py\n", 2, python=False) == "torchrun \\\n  train.py\n"


def test_no_line_of_any_fixture_is_broken() -> None:
    for file in sorted(FIXTURES.glob("*/*.py")):
        text = file.read_text()
        findings = [
            Finding("DDP101", "slug", "m", Span(file.name, n, 1, n, 2), Confidence.HIGH)
            for n in range(1, text.count("\n") + 1, 3)
        ]
        after = with_ignores(text, findings, python=True)
        assert after != text
        assert ast.dump(ast.parse(after)) == ast.dump(ast.parse(text))

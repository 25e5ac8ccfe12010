"""--write-baseline, --baseline, --prune: what is accepted, what is new, what is gone."""

from __future__ import annotations

import json
import pathlib

from .conftest import Check
from .samples import CLEAN, HAZARD, UNUSED

FILE = "ddp-lint-baseline.json"


def test_what_is_accepted_is_not_told_also_when_lines_move(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(HAZARD)
    assert check("--write-baseline").exit_code == 0
    rows = json.loads((project / FILE).read_text())["findings"]
    assert [(row["path"], row["code"]) for row in rows] == [("a.py", "DDP601")]
    assert check().exit_code == 1  # nothing is hidden unasked
    (project / "a.py").write_text(f"# moved\n\n{HAZARD}")
    result = check("--baseline", FILE)
    assert (result.exit_code, result.stdout) == (0, "Nothing found in 1 file. 1 more in the baseline.\n")
    (project / "a.py").write_text(HAZARD + UNUSED)
    assert "DDP002" in check("--baseline", FILE, "--output-format", "concise").stdout
    assert "DDP601" not in check("--baseline", FILE, "--output-format", "concise").stdout


def test_a_second_hazard_like_an_accepted_one_is_new(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(HAZARD)
    check("--write-baseline")
    (project / "a.py").write_text(HAZARD + HAZARD.replace("def train", "def again"))
    assert len(json.loads(check("--baseline", FILE, "--output-format", "json").stdout)["findings"]) == 1


def test_what_is_gone_is_told_and_pruned(check: Check, project: pathlib.Path) -> None:
    for name in ("a.py", "b.py", "c.py"):
        (project / name).write_text(HAZARD)
    check("--write-baseline")
    (project / "a.py").write_text(CLEAN)
    (project / "b.py").unlink()
    result = check("--baseline", FILE)
    assert result.exit_code == 0
    assert "gone: a.py: DDP601" in result.stderr
    assert f"2 findings of {FILE} no longer occur: remove them with --prune" in result.stderr
    # Not looked at, or not looked for: nothing is known of it.
    assert "a.py" not in check("--baseline", FILE, "c.py").stderr
    assert "gone: a.py" not in check("--baseline", FILE, "--select", "DDP4").stderr
    assert "2 findings removed" in check("--baseline", FILE, "--prune").stderr
    assert [row["path"] for row in json.loads((project / FILE).read_text())["findings"]] == ["c.py"]
    assert check("--baseline", FILE).stderr == ""


def test_writing_again_keeps_what_was_not_checked(check: Check, project: pathlib.Path) -> None:
    for name in ("a.py", "b.py"):
        (project / name).write_text(HAZARD)
    check("--write-baseline")
    (project / "a.py").write_text(CLEAN)
    check("--write-baseline", "a.py")
    assert [row["path"] for row in json.loads((project / FILE).read_text())["findings"]] == ["b.py"]


def test_the_configuration_names_it(check: Check, project: pathlib.Path) -> None:
    (project / "pyproject.toml").write_text('[tool.ddp-lint]\nbaseline = "known.json"\n')
    (project / "a.py").write_text(HAZARD)
    missing = check()
    assert (missing.exit_code, missing.stderr) == (
        2,
        "error: baseline known.json does not exist: create it with --write-baseline\n",
    )
    assert check("--write-baseline").exit_code == 0
    assert check().exit_code == 0
    (project / "syntax.py").write_text("def f(:\n")
    check("--write-baseline")
    assert check().exit_code == 1  # a file that nobody could check never looks clean


def test_wrong_use_is_told(check: Check, project: pathlib.Path) -> None:
    (project / "broken.json").write_text("{")
    (project / "a.py").write_text(CLEAN)
    for args, message in (
        (("--baseline", "broken.json"), "broken.json is not a baseline: write it again with --write-baseline"),
        (("--prune",), "--prune needs a baseline: name it with --baseline"),
        (("--write-baseline", "--fix"), "--write-baseline and --fix cannot be combined: run one after the other"),
        (("--write-baseline", "-"), "--write-baseline cannot be used with - (standard input)"),
    ):
        result = check(*args)
        assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")

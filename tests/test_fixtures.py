"""Every rule on its fixtures: what is marked is found, what is not marked is not.

A fixture is a file `fixtures/<family>/DDPNNN*.py`, or a folder of that name holding a small project. A line that must
be flagged ends with ``# expect: DDP201`` (several codes separated by commas); every other line must stay silent for
every rule of the family that the fixture is named after. ``# doubtful: DDP301`` marks what is found with low
confidence, and so reported with --preview alone. What a `ddp-lint.toml` in the folder says of the project's own
names counts.
"""

from __future__ import annotations

import collections
import functools
import pathlib
import re

import pytest

from ddp_lint.config import Configuration, Overrides, Settings
from ddp_lint.engine.report import Report
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import HEADLINE, Confidence
from ddp_lint.rules.registry import all_rules

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
EXPECT = re.compile(r"# (expect|doubtful): (DDP\d{3}(?:, DDP\d{3})*)")
CASES = sorted(p for p in FIXTURES.glob("*/DDP*") if p.is_dir() or p.suffix == ".py")


Marked = collections.Counter[tuple[str, int, str, bool]]


def expected(files: list[pathlib.Path]) -> Marked:
    """File, line, code, and whether the finding is doubtful; what a rule off by default finds is neither."""
    found: Marked = collections.Counter()
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            for match in EXPECT.finditer(line):
                for code in match[2].split(", "):
                    found[file.name, number, code, match[1] == "doubtful"] += 1
    return found


@functools.cache
def reported(root: pathlib.Path, family: str) -> Report:
    """What the rules of a family find in a project: a fixture that is a folder, or all of a family that are files."""
    files = sorted(path for path in CASES if path.parent == root and path.suffix == ".py") or sorted(root.rglob("*.py"))
    codes = frozenset(code for code in all_rules() if code.startswith(family))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return check_paths(files, Settings(root, codes, names=Configuration(Overrides()).of(root).names))


@pytest.mark.parametrize("case", CASES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_fixture(case: pathlib.Path) -> None:
    files = sorted(case.rglob("*.py")) if case.is_dir() else [case]
    report = reported(case if case.is_dir() else case.parent, case.name[:4])
    found = [f for f in report.findings if case.is_dir() or f.span.path == case.name]
    rules = all_rules()
    got = collections.Counter(
        (pathlib.Path(f.span.path).name, f.span.line, f.code, rules[f.code].default and f.confidence is Confidence.LOW)
        for f in found
    )
    assert not report.errors
    assert not [f.message for f in found if len(f.message) > HEADLINE or f.message.endswith("…")]
    assert got == expected(files)


def test_every_rule_has_a_fixture_that_flags_and_one_that_is_silent() -> None:
    """A rule without near-misses is a rule that nobody tried to fool."""
    text = {code: [p for p in CASES if p.name.startswith(code)] for code in all_rules()}
    missing = [code for code, cases in text.items() if not cases]
    assert not missing, f"rules without a fixture: {missing}"

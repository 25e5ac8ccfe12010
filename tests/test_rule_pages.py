"""A rule's docstring is its page: it has every section, and its examples are what the rule really does."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import HEADLINE
from ddp_lint.rules.page import Page
from ddp_lint.rules.registry import all_rules

RULES = all_rules()
#: The sections of every page, in order.
SECTIONS = [
    "What it does", "Why it breaks", "Example", "Use instead", "When it is silent", "How to confirm", "Fix safety",
    "References",
]  # fmt: skip


@pytest.mark.parametrize("code", RULES)
def test_page_has_every_section(code: str) -> None:
    assert list(Page.of(RULES[code]).sections) == SECTIONS


@pytest.mark.parametrize("code", RULES)
def test_example_is_flagged_where_marked_and_use_instead_is_clean(
    code: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = Page.of(RULES[code])
    assert flagged(page.example, code, tmp_path) == marked(page.example, code)
    assert marked(page.example, code), "the Example marks no line with `# <- CODE`"
    assert flagged(page.code("Use instead"), code, tmp_path) == []


def marked(source: str, code: str) -> list[int]:
    return [n for n, line in enumerate(source.splitlines(), 1) if line.endswith(f"# <- {code}")]


def flagged(source: str, code: str, folder: pathlib.Path) -> list[int]:
    file = folder / "train.py"
    file.write_text(source)
    report = check_paths([file], Settings(folder, frozenset({code})))
    assert all(f.code == code for f in report.findings), report.findings
    assert not [f.message for f in report.findings if len(f.message) > HEADLINE or f.message.endswith("…")]
    return [f.span.line for f in report.findings]


def test_pages_are_there_where_python_leaves_docstrings_out() -> None:
    show = "import sys; from ddp_lint.cli import main; main(['rule', '--all', '--color', 'never'])"
    told = [
        subprocess.run([sys.executable, *options, "-c", show], capture_output=True, check=True).stdout
        for options in ((), ("-OO",))
    ]
    assert told[0] == told[1]
    assert b"## What it does" in told[1]

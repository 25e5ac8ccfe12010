"""Applying fixes: which, where, and what never happens to a file."""

from __future__ import annotations

import collections
import functools
import itertools
import pathlib

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_text
from ddp_lint.findings import Applicability, Confidence, Edit, Finding, Fix, Span
from ddp_lint.fixes import applicable, apply_edits, fixed, fixpoint, preview, unified_diff
from ddp_lint.rules.registry import all_rules


def edit(line: int, column: int, end_column: int, text: str, end_line: int = 0) -> Edit:
    return Edit(Span("t.py", line, column, end_line or line, end_column), text)


def finding(*edits: Edit, applicability: Applicability = Applicability.SAFE, code: str = "DDP201") -> Finding:
    return Finding(code, "s", "m", edits[0].span, Confidence.HIGH, fix=Fix("f", applicability, edits))


def test_several_on_one_line_and_over_lines() -> None:
    text = "f(a, b)\ng(\n  c\n)\n"
    assert (
        apply_edits(text, [edit(1, 3, 4, "x"), edit(1, 6, 7, "long"), edit(2, 2, 2, "(c)", 4)]) == "f(x, long)\ng(c)\n"
    )
    assert apply_edits(text, [edit(1, 1, 1, "import os\n")]) == "import os\n" + text
    assert apply_edits(text, [edit(1, 8, 1, "", 2)]) == "f(a, b)g(\n  c\n)\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends_stay_what_they_are(newline: str) -> None:
    text = newline.join(["a = 1", "b = 2", "c = 3", ""])
    after = apply_edits(text, [edit(2, 1, 6, "b = 1\nb = 2"), edit(3, 5, 99, "4")])
    assert after == newline.join(["a = 1", "b = 1", "b = 2", "c = 4", ""])


def test_positions_beyond_the_text_are_its_end() -> None:
    assert apply_edits("a", [edit(9, 1, 1, "\nb")]) == "a\nb"
    assert apply_edits("a\n", [edit(1, 50, 60, "b")]) == "ab\n"


@pytest.mark.parametrize(
    ("applicability", "unsafe", "applied"),
    [
        (Applicability.SAFE, False, True),
        (Applicability.UNSAFE, False, False),
        (Applicability.UNSAFE, True, True),
        (Applicability.DISPLAY, True, False),
    ],
)
def test_applicability(applicability: Applicability, unsafe: bool, applied: bool) -> None:
    result = fixed("x = 1\n", [finding(edit(1, 5, 6, "2"), applicability=applicability)], unsafe=unsafe)
    assert result.text == ("x = 2\n" if applied else "x = 1\n")
    assert len(result.applied) == applied


def test_overlapping_fixes_wait_and_a_fix_is_never_torn() -> None:
    both = finding(edit(1, 1, 2, "y"), edit(2, 1, 2, "y"))
    other = finding(edit(2, 1, 5, "z"), code="DDP202")
    result = fixed("x = 1\nx = 1\n", [both, other], unsafe=False)
    assert (result.text, result.applied) == ("y = 1\ny = 1\n", (both,))


def test_the_same_edit_of_two_fixes_is_made_once() -> None:
    insert = edit(1, 1, 1, "import sys\n")
    findings = [finding(edit(n, 1, 5, "exit"), insert) for n in (1, 2)]
    assert fixed("quit()\nquit()\n", findings, unsafe=False).text == "import sys\nexit()\nexit()\n"


def test_two_insertions_at_one_place_wait_for_each_other() -> None:
    findings = [finding(edit(1, 1, 1, "import a\n")), finding(edit(1, 1, 1, "import b\n"), code="DDP202")]
    assert fixed("x\n", findings, unsafe=False).text == "import a\nx\n"


def test_a_file_that_would_not_parse_is_not_made() -> None:
    good, bad = finding(edit(1, 5, 6, "2")), finding(edit(2, 5, 6, "("), code="DDP202")
    result = fixed("x = 1\ny = 1\n", [good, bad], unsafe=False)
    assert (result.text, result.applied) == ("x = 2\ny = 1\n", (good,))


def test_a_fix_of_another_file_is_left_alone() -> None:
    elsewhere = finding(edit(1, 1, 2, "y"), Edit(Span("other.py", 1, 1, 1, 2), "y"))
    assert fixed("x = 1\n", [elsewhere], unsafe=False).applied == ()


def test_rounds_go_on_until_nothing_is_left_and_end_when_rules_disagree() -> None:
    def shorten(text: str) -> list[Finding]:
        return [finding(edit(1, 1, 3, "x"))] if text.startswith("xx") else []

    assert fixpoint("xxxxx = 1\n", shorten, unsafe=False).text == "x = 1\n"

    def swap(text: str) -> list[Finding]:
        return [finding(edit(1, 1, 2, "y" if text[0] == "x" else "x"))]

    assert fixpoint("x = 1\n", swap, unsafe=False).text in ("x = 1\n", "y = 1\n")


def test_preview_shows_the_lines_that_change() -> None:
    lines = ["a", "b(", "  1,", ")", "c"]
    fix = finding(edit(2, 3, 1, "1", end_line=4)).fix
    assert fix is not None
    assert preview(fix, lines) == [("-", 2, "b("), ("-", 3, "  1,"), ("-", 4, ")"), ("+", 2, "b(1)")]


def test_unified_diff_of_a_file_without_last_newline() -> None:
    assert unified_diff("t.py", "a\nb", "a\nc").endswith(
        "-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
    )


# ---- any edits

SOURCE = "import os\nif os:\n    x = [1, 2]\n    y = {3: 4}\nz = (5)\n"
_spans = st.tuples(st.integers(1, 6), st.integers(1, 14), st.integers(0, 1), st.integers(0, 6)).map(
    lambda t: Span("t.py", t[0], t[1], t[0] + t[2], t[1] + t[3] if not t[2] else max(1, t[3]))
)
_texts = st.sampled_from(["", "0", "(", ")", "\n", "import sys\n", "pass", " ", "x + 1", "'"])
_edits = st.builds(Edit, _spans, _texts)
_fixes = st.builds(
    Fix, st.just("f"), st.sampled_from(Applicability), st.lists(_edits, min_size=1, max_size=3).map(tuple)
)
_findings = st.builds(
    lambda fix, code: Finding(code, "s", "m", fix.edits[0].span, Confidence.HIGH, fix=fix),
    _fixes,
    st.sampled_from(["DDP201", "DDP202", "DDP203"]),
)


@given(st.lists(_findings, max_size=5), st.booleans())
def test_any_fixes_leave_a_file_that_parses(findings: list[Finding], unsafe: bool) -> None:
    result = fixed(SOURCE, findings, unsafe=unsafe)
    cst.parse_module(result.text)
    assert all(f.fix and f.fix.applicability is not Applicability.DISPLAY for f in result.applied)
    assert unsafe or all(f.fix and f.fix.applicability is Applicability.SAFE for f in result.applied)
    assert result.applied or result.text == SOURCE


@given(st.lists(_findings, max_size=4))
def test_the_order_of_findings_does_not_matter(findings: list[Finding]) -> None:
    distinct = list({f.sort_key: f for f in findings}.values())
    results = {fixed(SOURCE, list(order), unsafe=True).text for order in itertools.permutations(distinct)}
    assert len(results) == 1


# ---- the rules' own fixes

_FIXTURES = pathlib.Path(__file__).parents[1] / "fixtures"


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    sorted(p for p in _FIXTURES.glob("*/DDP*") if p.is_dir() or p.suffix == ".py"),
    ids=lambda p: f"{p.parent.name}/{p.name}",
)
def test_fixes_of_rules_parse_settle_and_mend(case: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """On every fixture: the fixed file parses, a second run changes nothing, and no fixed finding is found again. A
    file is a project of its own: all others of its family would be read again for each text."""
    root = case if case.is_dir() else tmp_path
    settings = Settings(root, frozenset(all_rules()))
    for file in sorted(case.rglob("*.py")) if case.is_dir() else [case]:
        path, text = root / file.relative_to(case if case.is_dir() else case.parent), file.read_text(encoding="utf-8")

        @functools.cache  # a text is asked for again and again
        def check(content: str, path: pathlib.Path = path, settings: Settings = settings) -> list[Finding]:
            return check_text(content, path, settings).findings

        before = check(text)
        if not any(applicable(f.fix, unsafe=True) for f in before):
            continue
        once = fixpoint(text, check, unsafe=True)
        assert fixpoint(once.text, check, unsafe=True).applied == (), path
        cst.parse_module(once.text)
        after = collections.Counter(f.code for f in check(once.text))
        mended = collections.Counter(f.code for f in once.applied)
        was = collections.Counter(f.code for f in before)
        assert all(after[code] < was[code] for code in mended), f"{path}: {was} -> {after} by {mended}"


def test_reentrant_checkpoints_of_one_layer_change_together(tmp_path: pathlib.Path) -> None:
    """One that stays reentrant still marks the parameter ready twice, though nothing repeats any more."""
    fixture = (_FIXTURES / "wrapping" / "DDP613.py").read_text(encoding="utf-8")
    twice = fixture[: fixture.index("class Once")] + "\n\ndef wraps(net):\n    return DDP(net)\n"
    found = check_text(twice, tmp_path / "t.py", Settings(tmp_path, frozenset({"DDP613"}))).findings
    assert "use_reentrant=True" not in fixed(twice, found, unsafe=True).text


def test_an_optimizer_is_shown_below_the_wrap_and_never_moved(tmp_path: pathlib.Path) -> None:
    text = "\n".join(
        [
            "import torch",
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
            "def train(net, subnet, lr):",
            "    optimizer = torch.optim.SGD(",
            "        [*net.parameters(), *subnet.parameters()], lr=lr",
            "    )",
            "    model = FSDP(net)",
            "    return model, optimizer",
            "",
        ]
    )
    settings = Settings(tmp_path, frozenset({"DDP604"}))
    (found,) = check_text(text, tmp_path / "t.py", settings).findings
    assert fixed(text, [found], unsafe=True).text == text
    assert found.fix is not None
    lines = apply_edits(text, found.fix.edits).splitlines()
    assert lines[2:] == [
        "def train(net, subnet, lr):",
        "    model = FSDP(net)",
        "    optimizer = torch.optim.SGD(",
        "        [*model.parameters(), *subnet.parameters()], lr=lr",
        "    )",
        "    return model, optimizer",
    ]

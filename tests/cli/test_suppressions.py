"""Suppression comments: which findings they hide, which of them are unused, and what never is one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_lint.engine.suppressions import apply, suppressions
from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.rules.registry import all_rules, documented
from ddp_lint.source import SourceFile

ALL = frozenset(documented())


@pytest.fixture(scope="module")
def rule() -> tuple[str, str]:
    """Code and slug of some rule that is on by default."""
    return next((code, r.slug) for code, r in all_rules().items() if r.default)


def left(text: str, *spans: tuple[int, int], rule: tuple[str, str], **options: bool) -> list[tuple[str, int]]:
    """(code, line) of what is reported when `rule` finds something on each of the `spans` (first and last line)."""
    file = SourceFile("t.py", text)
    found = [Finding(*rule, "m", Span("t.py", a, 1, b, 2), Confidence.HIGH) for a, b in spans]
    return sorted((f.code, f.span.line) for f in apply(file, found, ALL, **options))


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa", "# NoQA", "# noqa: {0}", "# noqa:E501,{0}", "# noqa: E501 {0}", "# noqa: DDP",
        "# type: ignore  # noqa: {0}", "# ddp-lint: ignore", "# ddp-lint: ignore[{0}]", "#ddp-lint:ignore[ {0} ]",
        "# ddp-lint: ignore[{1}] rank 0 alone runs this",
    ],
)  # fmt: skip
def test_comment_beside_the_code(comment: str, rule: tuple[str, str]) -> None:
    text = f"a = 1\nb = 2  {comment.format(*rule)}\n"
    assert left(text, (2, 2), rule=rule) == []
    assert (rule[0], 1) in left(text, (1, 1), rule=rule)


@pytest.mark.parametrize("tail", ["[{0}", " {0}", ": {0}", "({0})", "={1}", "[]", "[", " [ ] why"])
def test_who_names_a_code_does_not_mean_them_all(tail: str, rule: tuple[str, str]) -> None:
    text = f"a = 1  # ddp-lint: ignore{tail.format(*rule)}\n"
    assert left(text, (1, 1), rule=rule) == [("DDP002", 1), (rule[0], 1)]
    for reason in (" the DDP wrapper is the caller's", ": no rank reads it", " (one rank)"):
        assert left(f"a = 1  # ddp-lint: ignore{reason}\n", (1, 1), rule=rule) == []


def test_any_line_of_the_primary_span_counts(rule: tuple[str, str]) -> None:
    text = f"f(\n  1,  # noqa: {rule[0]}\n)\n"
    assert left(text, (1, 3), rule=rule) == []
    assert left(text, (3, 3), rule=rule) == [("DDP002", 2), (rule[0], 3)]


def test_own_line_covers_the_statement_below(rule: tuple[str, str]) -> None:
    comment = f"# ddp-lint: ignore[{rule[0]}]"
    assert left(f"{comment}\n# why\n\nf(\n  1,\n)\ng()\n", (5, 5), rule=rule) == []
    assert left(f"{comment}\nf()\ng()\n", (3, 3), rule=rule) == [("DDP002", 1), (rule[0], 3)]
    assert left(f"{comment}\n@deco\n@deco(\n  1)\ndef f():\n  g()\n", (5, 5), rule=rule) == []
    assert left(f"{comment}\n@deco\ndef f():\n  g()\n", (4, 4), rule=rule) == [("DDP002", 1), (rule[0], 4)]
    assert left(f"f(\n  {comment}\n  1,\n  2)\n", (3, 3), rule=rule) == []
    assert left(f"f(\n  {comment}\n  1,\n  2)\n", (4, 4), rule=rule) == [("DDP002", 2), (rule[0], 4)]


def test_noqa_on_its_own_line_is_for_that_line_alone_as_in_flake8(rule: tuple[str, str]) -> None:
    assert left(f"# noqa: {rule[0]}\nf()\n", (2, 2), rule=rule) == [("DDP002", 1), (rule[0], 2)]


@pytest.mark.parametrize("name", ["launch.sh", "Dockerfile.gpu", "job.yaml"])
def test_comments_of_other_languages(name: str, rule: tuple[str, str]) -> None:
    text = f"export A=$#  # ddp-lint: ignore[{rule[0]}]\n# ddp-lint: ignore\nrun 'it\\'s'\nrun a#noqa\n"
    found = [Finding(*rule, "m", Span(name, n, 1, n, 2), Confidence.HIGH) for n in (1, 3, 4)]
    assert [f.span.line for f in apply(SourceFile(name, text), found, ALL)] == [4]


@pytest.mark.parametrize("comment", ["# ddp-lint: ignore-file[{0}]", "# ddp-lint: ignore-file", "# flake8: noqa"])
def test_whole_file(comment: str, rule: tuple[str, str]) -> None:
    assert left(f"f()\ng()\n{comment.format(*rule)} reason\n", (1, 1), (2, 2), rule=rule) == []


@pytest.mark.parametrize("text", ['s = "# noqa"\n', 's = """\n# ddp-lint: ignore\n"""\n', "s = f'# noqa: DDP'\n"])
def test_strings_are_not_comments(text: str, rule: tuple[str, str]) -> None:
    assert left(text, (1, 2), rule=rule) == [(rule[0], 1)]


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("# noqa", None),  # may well be another tool's
        ("# noqa: E501", None),
        ("# noqa: {0}", "{0} is suppressed here, but there is no such finding"),
        ("# noqa: E501, DDP599", "no rule is called DDP599"),
        ("# ddp-lint: ignore", "this comment suppresses nothing: there is no finding here"),
        ("# ddp-lint: ignore[no-such-slug]", "no rule is called no-such-slug"),
        (
            "# ddp-lint: ignroe[{0}]",
            "'ddp-lint: ignroe' suppresses nothing: 'ignore' and 'ignore-file' do; did you mean 'ignore'?",
        ),
        ("# ddp-lint: ignore[DDP002]", None),
        ("# ddp-lint: ignore[{0}", "this comment suppresses nothing: codes belong in brackets, ignore[{0}]"),
        ("# ddp-lint: ignore-file {1}", "this comment suppresses nothing: codes belong in brackets, ignore-file[{1}]"),
        (
            "# ddp-lint: ignore[]",
            "this comment suppresses nothing: it names no rule; ignore[DDP101] does, ignore alone means all",
        ),
    ],
)
def test_unused(comment: str, said: str | None, rule: tuple[str, str]) -> None:
    reported = apply(SourceFile("t.py", f"x = 1  {comment.format(*rule)}\n"), [], ALL)
    assert [f.message for f in reported] == ([said.format(*rule)] if said else [])


def test_a_rule_that_did_not_run_leaves_its_suppression_alone(rule: tuple[str, str]) -> None:
    file = SourceFile("t.py", f"x = 1  # noqa: {rule[0]}\ny = 1  # ddp-lint: ignore\n")
    assert apply(file, [], ALL - {rule[0]}) == []
    assert apply(file, [], ALL - {"DDP002"}) == []


def test_noqa_can_be_left_to_flake8(rule: tuple[str, str]) -> None:
    text = f"f()  # noqa: {rule[0]}\ng()  # ddp-lint: ignore\nh()  # noqa: {rule[0]}\n"
    assert left(text, (1, 1), (2, 2), rule=rule, noqa=False) == [("DDP002", 3), (rule[0], 1)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # noqa: {0}", "x = 1"),
        ("x = 1  # noqa: {0} because\ny = 2", "x = 1\ny = 2"),
        ("x = 1  # noqa: E501, {0},W291", "x = 1  # noqa: E501, W291"),
        ("x = 1  # noqa: {0}  # type: ignore", "x = 1  # type: ignore"),
        ("x = 1  # type: ignore  # noqa: {0}", "x = 1  # type: ignore"),
        ("# ddp-lint: ignore[{0}] why\nx = 1", "x = 1"),
        ("x = 1  # ddp-lint: ignore[{0}, {1}]", "x = 1"),
    ],
)
def test_the_fix_removes_what_is_not_needed(before: str, after: str, rule: tuple[str, str]) -> None:
    from ddp_lint.fixes import fixed

    text = before.format(*rule) + "\n"
    findings = apply(SourceFile("t.py", text), [], ALL)
    assert fixed(text, findings, unsafe=False).text == after + "\n"


@pytest.mark.parametrize(
    "text", ["x = (  # noqa: DDP1\n", "if x:\n y  # noqa\n  z\n z\n", "'''\n# noqa", "\\ # noqa", "\t\f# noqa: DDP1"]
)
def test_what_does_not_tokenize_is_no_error(text: str) -> None:
    list(suppressions(SourceFile("t.py", text)))


@given(st.text(alphabet="# noqa:DP12ignore-fl[]()\"'\n\\@ddp-lint", max_size=60))
def test_any_text(text: str) -> None:
    finding = Finding("DDP101", "x", "m", Span("t.py", 1, 1, 1, 2), Confidence.HIGH)
    apply(SourceFile("t.py", text), [finding], ALL)

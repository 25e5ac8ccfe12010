"""Nothing that a file can hold ends a run or is placed wrongly."""

from __future__ import annotations

import pathlib
import sys
import sysconfig

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesmith import from_grammar

from ddp_lint.config import Settings
from ddp_lint.engine.parsing import of_file
from ddp_lint.engine.runner import check_paths, check_text
from ddp_lint.project import Project
from ddp_lint.source.parsing import CannotParse

from .samples import ALL, HAZARD, OPS, check, codes, write

IMPORTS, FUNCTION = HAZARD.split("\n\n\n")
LOG = "torch.log(torch.softmax(x, dim=-1))"


@pytest.mark.parametrize(
    ("name", "before", "line", "column"),
    [
        ("tab", b"import torch\nif True:\n\tdef f(x):\n\t\treturn %s\n", 4, 10),
        ("wide", "import torch\ndef f(x):\n    return ('日本語', %s)\n".encode(), 3, 20),
        ("latin-1", b"# coding: latin-1\nimport torch\nbar = '\xe9'; foo = lambda x: %s\n", 3, 28),
        ("crlf", b"import torch\r\ndef f(x):\r\n    return %s\r\n", 3, 12),
        ("old mac", b"import torch\rdef f(x):\r    return %s\r", 3, 12),
        ("bom", b"\xef\xbb\xbfimport torch\nfoo = lambda x: %s\n", 2, 17),
        ("form feed", b"import torch\n\x0c\ndef f(x):\n    return %s\n", 4, 12),
        ("no newline", b"import torch\nfoo = lambda x: %s", 2, 17),
        ("semicolons", b"import torch; bar = 1; foo = lambda x: %s; baz = 2", 1, 40),
        ("string above", b"import torch\nbar = '''\n\n''' ; foo = lambda x: %s\n", 4, 23),
        ("backslash", b"import torch\nfoo = \\\n  lambda x: %s\n", 3, 13),
        ("decorated", b"import torch\n@print\n# why\n@print\ndef f(x): return %s\n", 5, 18),
        ("surrogates", b"import torch\nbar = '\\ud800'\nfoo = lambda x: %s\n", 3, 17),
    ],
)
def test_findings_are_placed_right(tmp_path: pathlib.Path, name: str, before: bytes, line: int, column: int) -> None:
    (tmp_path / "a.py").write_bytes(before % LOG.encode())
    report = check(tmp_path)
    assert not report.errors
    assert [(f.span.line, f.span.column) for f in report.findings if f.code == "DDP250"] == [(line, column)]
    (finding,) = (f for f in report.findings if f.code == "DDP250")
    assert finding.span.end_column == column + len(LOG)


@pytest.mark.parametrize("text", ["", "\n", "\x0c", "#", "\\\n", "'''", "import torch", "\ufeff", "if 1:", "\t", "é=1"])
def test_odd_small_files(tmp_path: pathlib.Path, text: str) -> None:
    write(tmp_path, {"a.py": text})
    report = check(tmp_path)
    assert not report.errors
    assert not set(codes(report)) - {"DDP000"}


DEEP = {
    "brackets": "(" * 2000 + ")" * 2000,
    "unclosed": "[" * 2000,
    "after an error": "x = = 1\n" + "(" * 2000 + ")" * 2000,
    "minus": "-" * 5000 + "1",
    "attributes": "torch" + ".log" * 20_000,
    "calls": "torch" + ".log()" * 20_000,
    "sum": "1" + "+1" * 50_000,
    "and": "1" + " and 1" * 20_000,
    "elif": "if 1: pass\n" + "elif 1: pass\n" * 5000,
    "indents": "".join(" " * n + "if 1:\n" for n in range(300)) + " " * 300 + "pass",
    "strings": "(" + "'a'\n" * 5000 + ")",
    "lambdas": "lambda: " * 3000 + "1",
    "powers": "1" + "**1" * 5000,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP.keys())
def test_what_is_nested_too_deeply_is_told_and_costs_one_file(tmp_path: pathlib.Path, text: str) -> None:
    deep = (
        "import torch\nx = torch.softmax, torch.log, " if "\n" not in text else "import torch, softmax, log\nx = log\n"
    )
    write(tmp_path, {"ops.py": OPS, "a.py": deep + text + "\n", "b.py": HAZARD})
    report = check(tmp_path, codes=frozenset({"DDP250"}))
    assert not report.errors
    assert "DDP250" in codes(report)
    assert set(codes(report)) <= {"DDP000", "DDP250"}


@pytest.mark.slow
def test_a_line_of_a_megabyte(tmp_path: pathlib.Path) -> None:
    data = "data = [" + "1, " * 350_000 + "]\n"
    write(tmp_path, {"ops.py": OPS, "a.py": data + HAZARD, "b.py": f"import torch\nx = '{'softmax log ' * 90_000}'\n"})
    report = check(tmp_path, codes=frozenset({"DDP250"}))
    assert not report.errors
    assert [(f.code, f.span.line) for f in report.findings] == [("DDP250", 7)]


def test_a_syntax_error_is_a_finding_where_python_sees_it(tmp_path: pathlib.Path) -> None:
    write(tmp_path, {"a.py": f"{IMPORTS}\nx = softmax, log\nprint(1 +\n"})
    (finding,) = check(tmp_path).findings
    assert (finding.code, finding.span.line) == ("DDP000", 4)
    assert "was never closed" in finding.message


def test_what_python_parses_and_libcst_does_not_is_told_as_that(tmp_path: pathlib.Path) -> None:
    text = HAZARD.replace("    return", "    for y in x:\n\x0c        return")
    compile(text, "a.py", "exec")
    write(tmp_path, {"ops.py": OPS, "a.py": text})
    (finding,) = check(tmp_path).findings
    assert finding.message.startswith("the file is not checked, LibCST cannot parse it: ")


@pytest.mark.parametrize("part", ["'a'", "f'{x[0]} {{'", "b'a'"])
def test_more_strings_in_a_row_than_libcst_takes_are_told_as_that(part: str, tmp_path: pathlib.Path) -> None:
    rows = "\n    ".join([f"{part}  # here", *[part] * 3_999])
    function = FUNCTION.replace("    return", f"    print({rows})\n    return")
    text = f"{IMPORTS}\n\n\ndef other(x):\n    return x\n\n\n{function}"
    write(tmp_path, {"a.py": text, "b.py": HAZARD, "ops.py": OPS})
    wrong, right = sorted(check(tmp_path).findings, key=lambda finding: finding.span.path)
    reason = "4000 strings in a row are too many for it: join some of them"
    assert wrong.message == f"the file is not checked, LibCST cannot parse it: {reason}"
    assert wrong.span.line == next(number for number, line in enumerate(text.splitlines(), 1) if "# here" in line)
    assert right.code == "DDP250"


def test_what_libcst_cannot_parse_is_placed_in_the_file_of_which_it_gets_a_part(tmp_path: pathlib.Path) -> None:
    write(tmp_path, {"a.py": "x = 1\n" * 40})
    facts = Project(tmp_path).modules.facts_of(tmp_path / "a.py")
    assert facts is not None
    placed = [of_file(CannotParse("?", line, 7), facts, [1, 30, 31]).line for line in (0, 1, 2, 3, 9)]
    assert placed == [1, 1, 30, 31, 31]
    assert of_file(CannotParse("?", 9, 7), facts, None).line == 9


def test_few_strings_beside_what_libcst_does_not_take_are_not_blamed(tmp_path: pathlib.Path) -> None:
    text = HAZARD.replace("    return", "    y = '" + "a" * 9_000 + "' 'b'\n    for y in x:\n\x0c        return")
    write(tmp_path, {"ops.py": OPS, "a.py": text})
    (finding,) = check(tmp_path).findings
    assert finding.code == "DDP000" and "in a row" not in finding.message


def test_syntax_newer_than_the_running_python(tmp_path: pathlib.Path) -> None:
    newer = f"{HAZARD}\ntry:\n    pass\nexcept ValueError, TypeError:\n    pass\ny = t'{{1}}'\ntype X = int\n"
    write(tmp_path, {"ops.py": OPS, "a.py": newer})
    report = check(tmp_path, "a.py")
    assert [(f.code, f.span.line) for f in report.findings] == [("DDP250", 6)]


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(from_grammar())
def test_generated_programs(tmp_path: pathlib.Path, text: str) -> None:
    # The words of all rules in a comment: none of them passes the file by.
    report = check_text(text + "\n#" + WORDS, tmp_path / "generated.py", Settings(tmp_path, ALL))
    assert not report.errors
    assert not [f for f in report.findings if f.code == "DDP001"]


def _words() -> str:
    from ddp_lint.rules.registry import all_rules

    return " ".join(
        sorted({word for rule in all_rules().values() for word in (*rule.triggers.words, *rule.triggers.file)})
    )


WORDS = _words()


@pytest.mark.slow
def test_a_sample_of_the_standard_library() -> None:
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    files = [p for p in sorted(stdlib.glob("*.py")) if p.stat().st_size < 40_000][::24]
    report = check_paths(files, Settings(stdlib, ALL), jobs=1)
    assert not report.errors
    assert not set(codes(report)) & {"DDP000", "DDP001"}


def test_recursion_limit_is_left_alone(tmp_path: pathlib.Path) -> None:
    limit = sys.getrecursionlimit()
    write(tmp_path, {"a.py": "import torch\nx = " + "[" * 150 + LOG + "]" * 150 + "\n"})
    assert [f.code for f in check(tmp_path, codes=frozenset({"DDP250"})).findings] == ["DDP250"]
    assert sys.getrecursionlimit() == limit

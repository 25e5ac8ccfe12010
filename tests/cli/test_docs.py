"""Generated documentation is fresh, no page is left half written, and the scaffold makes a rule that works."""

from __future__ import annotations

import csv
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from ddp_lint.cli.check import check
from ddp_lint.config import Settings
from ddp_lint.dev.calibration import NEWEST, RECENT, class_of, first_readings, keeps_promise, refuted, toml
from ddp_lint.dev.docs import stale
from ddp_lint.dev.rule_lists import complaints, symptoms
from ddp_lint.dev.scaffold import FILL_IN, ScaffoldError, new_rule
from ddp_lint.dev.studies import Judgement, read
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence
from ddp_lint.rules.calibrated import calibrated
from ddp_lint.rules.page import Page
from ddp_lint.rules.registry import all_rules, documented

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_docs_are_fresh() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in stale(ROOT)]
    assert not files, f"stale: {files}; run `ddp-lint dev docs`"


@pytest.mark.parametrize("code", all_rules())
def test_nothing_is_left_to_fill_in(code: str) -> None:
    source = pathlib.Path(sys.modules[all_rules()[code].__module__].__file__ or "").read_text(encoding="utf-8")
    left = [f"line {n}: {line.strip()}" for n, line in enumerate(source.splitlines(), 1) if FILL_IN in line]
    assert not left, "\n".join(left)


def _prose(document: pathlib.Path) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(encoding="utf-8"), flags=re.S)


def test_nothing_is_above_the_title_of_the_changelog() -> None:
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").startswith("# Changelog\n")


def test_links_between_documents_lead_somewhere() -> None:
    documents = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", _prose(document))
        if not (document.parent / target).exists()
    ]
    assert not broken


def test_commands_in_documents_have_options_that_exist() -> None:
    known = {opt for parameter in check.params for opt in (*parameter.opts, *parameter.secondary_opts)}
    for document in (ROOT / "docs").glob("*.md"):
        for command in re.findall(r"ddp-lint check [^`\n]*", document.read_text(encoding="utf-8")):
            assert set(re.findall(r"(?<=\s)--[a-z-]+", command)) <= known | {"--nproc"}, f"{document.name}: {command}"


def test_every_rule_is_found_by_a_symptom() -> None:
    told = [code for symptom in symptoms(ROOT) for code in symptom.codes]
    assert set(told) == set(documented())


def test_complaints_are_found_by_default_and_proven(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample is the Example of the rule's page, which `verify` has to confirm on two ranks."""
    monkeypatch.chdir(tmp_path)
    rules = all_rules()
    default = frozenset(code for code, rule in rules.items() if rule.default)
    for complaint in complaints(ROOT):
        example, mark = Page.of(rules[complaint.code]).example, f"# <- {complaint.code}"
        (tmp_path / "train.py").write_text(example)
        report = check_paths([tmp_path / "train.py"], Settings(tmp_path, default))
        shown = {(f.span.line, f.code) for f in report.findings if f.confidence is not Confidence.LOW}
        marked = {(n, complaint.code) for n, line in enumerate(example.splitlines(), 1) if line.endswith(mark)}
        assert marked and marked <= shown, complaint
        assert rules[complaint.code].oracles


def test_there_are_fifteen_complaints_each_of_its_own() -> None:
    assert len({complaint.code for complaint in complaints(ROOT)}) == 15


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "studies").glob("[!.]*.tsv")), ids=lambda path: path.name)
def test_judgements_of_studies_can_be_read(path: pathlib.Path) -> None:
    others = ("silent.tsv", "real-fixes.tsv", "fresh-fixes.tsv", "whole-programs.tsv", "written-programs.tsv")
    if not path.name.endswith(".repositories.tsv") and path.name not in others:
        assert read(path)


@pytest.mark.parametrize("study", ["real-fixes", "fresh-fixes", "whole-programs", "written-programs"])
def test_the_tables_of_fixes_count_their_rows(study: str) -> None:
    studies = ROOT / "docs" / "studies"
    with (studies / f"{study}.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    text = (studies / f"{study}.md").read_text()
    for number in {row.get("round", "") for row in rows}:
        of = [row for row in rows if row.get("round", "") == number]
        counts = (len(of), *(sum(row[when] == "yes" for row in of) for when in ("first", "now")))
        assert "| **all** | " + " | ".join(f"**{count}**" for count in counts) in text


# ---- how sure a finding is


def test_the_classes_of_rules_are_those_of_the_readings() -> None:
    table = ROOT / "src" / "ddp_lint" / "knowledge" / "calibration.toml"
    assert table.read_text(encoding="utf-8") == toml(ROOT / "docs" / "studies")


@pytest.mark.parametrize(
    ("true", "arguable", "false", "expected"),
    [
        (18, 2, 0, Confidence.HIGH),
        (10, 10, 0, Confidence.MEDIUM),
        (18, 0, 6, Confidence.MEDIUM),
        (2, 2, 8, Confidence.LOW),
        (1, 11, 0, Confidence.LOW),
        (5, 7, 0, Confidence.MEDIUM),
        (3, 0, 0, Confidence.MEDIUM),
        (0, 0, 3, Confidence.MEDIUM),
    ],
)
def test_a_class_keeps_its_promise(true: int, arguable: int, false: int, expected: Confidence) -> None:
    verdicts = ["true"] * true + ["arguable"] * arguable + ["false"] * false
    rows = [Judgement("owner/name", "0", "a.py:1", "DDP101", verdict, "") for verdict in verdicts]
    assert class_of(rows, (0.9, 0.5)) is expected


def test_a_rule_that_was_read_is_high_by_its_readings_alone() -> None:
    read_rules = {j.code for j in first_readings(ROOT / "docs" / "studies")}
    unproven = {code: rule.confidence for code, rule in documented().items() if calibrated("rules", code) is None}
    assert not {code for code, sure in unproven.items() if sure is Confidence.HIGH} & read_rules


def test_no_finding_is_surer_than_the_readings(tmp_path: pathlib.Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    text = 'import os\nimport torch\nos.environ["OMP_NUM_THREADS"] = "1"\n'
    for name in ("train.py", "benchmarks/train.py"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = [tmp_path / "train.py", tmp_path / "benchmarks" / "train.py"]
    found = check_paths(files, Settings(tmp_path, frozenset({"DDP801"}))).findings
    rule = calibrated("rules", "DDP801") or Confidence.HIGH
    place = calibrated("places", "benchmark") or Confidence.HIGH
    sure = {pathlib.Path(f.span.path): f.confidence for f in found}
    assert sure == dict(zip(files, (rule, rule.at_most(place)), strict=True))


# ---- the scaffold


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout of its own, without the other rules' fixtures."""
    ignore = shutil.ignore_patterns("__pycache__", "fixtures", "golden")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignore)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "fixtures").mkdir()
    return tmp_path


@pytest.mark.slow
def test_a_new_rule_works_and_says_what_is_to_be_filled_in(copy: pathlib.Path) -> None:
    files = new_rule(copy, "DDP7xx", "seed-set-on-one-rank", "torch.manual_seed", "data")
    code = f"DDP{files[0].name[3:6]}"
    assert code not in documented()
    assert [file.relative_to(copy).as_posix() for file in files] == [
        f"src/ddp_lint/rules/data/{code.lower()}_seed_set_on_one_rank.py",
        f"tests/fixtures/data/{code}.py",
    ]
    env = {**os.environ, "PYTHONPATH": str(copy / "src")}
    run = lambda *args: subprocess.run(  # noqa: E731
        [sys.executable, "-m", *args], cwd=copy, env=env, capture_output=True, text=True, check=False
    )
    structure = run("pytest", "tests/test_fixtures.py", "tests/test_rule_pages.py", "-k", f"{code} and not launch")
    assert structure.returncode == 0, structure.stdout
    unfilled = run("pytest", "tests/cli/test_docs.py", "-k", f"fill_in and {code}")
    assert unfilled.returncode == 1
    assert f"{FILL_IN}: one line that says what breaks" in unfilled.stdout
    assert (
        run("ruff", "check", "--isolated", "--select", "E,F,I", "--line-length", "120", str(files[0])).returncode == 0
    )


@pytest.mark.parametrize(
    ("code", "slug", "call", "family", "said"),
    [
        ("DDP601", "a-b", "torch.x", None, "DDP601 is taken by forward-bypasses-wrapper; DDP6xx stands for"),
        ("DDP6", "a-b", "torch.x", None, "'DDP6' is no code"),
        ("DDP6xx", "Loud", "torch.x", None, "'Loud' is no slug"),
        ("DDP6xx", "forward-bypasses-wrapper", "torch.x", None, "there is a rule called forward-bypasses-wrapper"),
        ("DDP6xx", "a-b", "barrier", None, "'barrier' is no full name of an API"),
        ("DDP2xx", "a-b", "torch.x", None, "say with --family"),
    ],
)
def test_what_the_scaffold_refuses(
    tmp_path: pathlib.Path, code: str, slug: str, call: str, family: str | None, said: str
) -> None:
    with pytest.raises(ScaffoldError, match=re.escape(said)):
        new_rule(tmp_path, code, slug, call, family)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "verdicts", "blocks_ago", "is_refuted"),
    [
        ("DDP708", {"true": 8, "false": 8}, 1, True),
        ("DDP708", {"true": 9, "false": 7}, 1, False),
        ("DDP708", {"true": 7, "false": 8}, 1, False),  # too few
        ("DDP708", {"true": 8, "false": 8}, RECENT + 1, True),  # since then it was not read
        ("DDP708", {"true": 8, "false": 8}, 0, False),  # the block that measures
        ("DDP708", {"arguable": 5, "false": 3}, 1, True),  # never real
        ("DDP708", {"arguable": 4, "false": 3}, 1, False),
        ("DDP708", {"arguable": 8}, 1, False),  # nor false
        ("DDP103", {"false": 16}, 1, False),  # ranks that wait for each other
        ("DDP203", {"false": 16}, 1, False),  # an error of the first run
    ],
)
def test_first_readings_make_a_rule_low(code: str, verdicts: dict[str, int], blocks_ago: int, is_refuted: bool) -> None:
    assert (code in refuted(_read(code, verdicts, int(NEWEST[0]) - blocks_ago))) is is_refuted


def test_newer_readings_that_keep_the_promise_make_a_rule_shown_again() -> None:
    before = _read("DDP708", {"true": 8, "false": 8}, int(NEWEST[0]) - RECENT - 2)
    assert "DDP708" not in refuted(before + _read("DDP708", {"true": 6, "false": 2}, int(NEWEST[0]) - 1))
    assert "DDP708" in refuted(before + _read("DDP708", {"true": 5, "false": 3}, int(NEWEST[0]) - 1))


@pytest.mark.parametrize(
    ("verdicts", "is_kept"),
    [
        ({"true": 3, "arguable": 3, "false": 2}, True),
        ({"true": 2, "arguable": 4, "false": 2}, False),  # too few are real
        ({"true": 5, "false": 3}, False),  # too many are false
        ({"true": 7}, False),  # too few
    ],
)
def test_findings_behind_preview_that_keep_the_promise_make_a_rule_shown_again(
    verdicts: dict[str, int], is_kept: bool
) -> None:
    before = _read("DDP708", {"true": 8, "false": 8}, int(NEWEST[0]) - 2)
    hidden = _read("DDP708", verdicts, int(NEWEST[0]) - 1)
    since = {"DDP708": int(NEWEST[0]) - 1} if keeps_promise(hidden) else {}
    assert keeps_promise(hidden) is is_kept
    assert ("DDP708" in refuted(before, since)) is not is_kept


def _read(code: str, verdicts: dict[str, int], block: int) -> list[Judgement]:
    """Readings of a rule in one block, each of another code base."""
    each = [verdict for verdict, count in verdicts.items() for _ in range(count)]
    return [
        Judgement(f"{block}/{n}", "c0ffee", "x.py:1", code, verdict, "", str(block)) for n, verdict in enumerate(each)
    ]

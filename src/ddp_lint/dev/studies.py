"""The studies' tables, made from their judgement files: `docs/studies/*.tsv` hold a row for each finding that was read.

A table is in a guide below a comment that says what it is of: ``<!-- table of: studies/head.tsv by rule -->``.
Kinds: `by repository` (with the numbers of files of ``NAME.repositories.tsv`` where there is one), `by rule`,
`by block` (first readings, one block of code bases after the other), `findings`, `true`, which takes several files and
holds what was true, with links to the code, damage by damage, and `in small`, which holds the verdicts of `verify` on
small programs with the bugs of others (`benchmarks/real_bugs.py`).
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import importlib
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence

from ddp_lint.rules.base import Documented, Rule
from ddp_lint.rules.registry import documented

_TABLE = re.compile(
    r"(?P<head><!-- table of: (?P<files>\S+\.tsv(?: and \S+\.tsv)*) (?P<kind>[a-z ]+?) -->\n\n)"
    r"(?P<old>.*?)(?P<end>\n?<!-- end of table -->)",
    re.DOTALL,
)
_VERDICTS = ("true", "arguable", "false")


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A finding on public code that was read: where it is, and whether it is true, and why."""

    repository: str
    commit: str
    place: str
    code: str
    verdict: str
    reason: str
    #: Code bases that were read together, with one state of the linter.
    block: str = ""

    @property
    def link(self) -> str:
        path, _, line = self.place.rpartition(":")
        url = f"https://github.com/{self.repository}/blob/{self.commit}/{path}#L{line}"
        return f"[`{self.place}`]({url})"


def read(path: pathlib.Path) -> list[Judgement]:
    """Raises ValueError for a row that is not as it must be."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [Judgement(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    wrong = [
        row for row in rows if row.verdict not in _VERDICTS or ":" not in row.place or row.code not in documented()
    ]
    if wrong:
        raise ValueError(f"{path}: {wrong[0]}")
    return rows


def with_tables(guide: str, folder: pathlib.Path) -> str:
    """A guide in `folder` with its tables made again."""

    def table(match: re.Match[str]) -> str:
        files = [folder / name for name in match["files"].split(" and ")]
        return f"{match['head']}{_KINDS[match['kind']](files)}{match['end']}"

    return _TABLE.sub(table, guide)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: int = 0) -> str:
    """A Markdown table whose last `numbers` columns are numbers."""
    ruler = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    lines = [head, ruler, *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _counts(judgements: Iterable[Judgement]) -> list[int]:
    counts = collections.Counter(judgement.verdict for judgement in judgements)
    return [counts[verdict] for verdict in _VERDICTS]


def _by_repository(files: Sequence[pathlib.Path]) -> str:
    (path,) = files
    judgements = read(path)
    known = path.with_suffix(".repositories.tsv")
    sizes: dict[tuple[str, str], str] = dict.fromkeys(((j.repository, j.commit) for j in judgements), "")
    if known.exists():
        lines = known.read_text(encoding="utf-8").splitlines()[1:]
        sizes = {(name, commit): files for name, commit, files in (line.split("\t") for line in lines)}
    rows: list[list[object]] = []
    for (name, commit), number in sorted(sizes.items(), key=lambda item: item[0][0].lower()):
        counts = _counts(j for j in judgements if j.repository == name)
        rows.append([name, commit, *([number] if known.exists() else []), *counts])
    total = sum(int(number) for number in sizes.values()) if known.exists() else 0
    rows.append([f"**all ({len(rows)})**", "", *([total] if known.exists() else []), *_counts(judgements)])
    head = ["repository", "commit", *(["files"] if known.exists() else []), *_VERDICTS]
    return _table(head, rows, len(head) - 2)


def _by_rule(files: Sequence[pathlib.Path]) -> str:
    (path,) = files
    judgements = read(path)
    codes = sorted({j.code for j in judgements})
    rows: list[list[object]] = [[code, *_counts(j for j in judgements if j.code == code)] for code in codes]
    return _table(["rule", *_VERDICTS], [*rows, ["**all**", *_counts(judgements)]], len(_VERDICTS))


def _by_block(files: Sequence[pathlib.Path]) -> str:
    """First readings, in the order in which the blocks were read: code bases without a finding are in none."""
    (path,) = files
    blocks: dict[str, list[Judgement]] = {}
    for judgement in read(path):
        blocks.setdefault(judgement.block, []).append(judgement)
    rows: list[list[object]] = []
    for block, read_in_it in (*blocks.items(), ("**all**", read(path))):
        counts = _counts(read_in_it)
        repositories = len({j.repository for j in read_in_it})
        shares = (100 * part / len(read_in_it) for part in (counts[0] + counts[1], counts[0]))
        rows.append([block, repositories, *counts, *(f"{share:.0f} %" for share in shares)])
    return _table(["block", "repositories", *_VERDICTS, "not false", "real"], rows, 6)


def _findings(files: Sequence[pathlib.Path]) -> str:
    (path,) = files
    rows = [[j.repository, f"`{j.place}`", j.code, j.verdict, j.reason] for j in read(path)]
    return _table(["repository", "place", "code", "verdict", "reason"], rows)


def _true(files: Sequence[pathlib.Path]) -> str:
    """What was true, family by family and rule by rule; places with one reason are one row."""
    found: dict[str, dict[tuple[str, str], dict[str, Judgement]]] = {}
    seen: set[tuple[str, str, str]] = set()
    for judgement in (j for path in files for j in read(path) if j.verdict == "true" and j.code > "DDP1"):
        if (judgement.repository, judgement.place, judgement.code) in seen:
            continue  # two studies have read it
        seen.add((judgement.repository, judgement.place, judgement.code))
        places = found.setdefault(judgement.code, {}).setdefault((judgement.repository, judgement.reason), {})
        places.setdefault(judgement.place, judgement)
    parts: list[str] = []
    family = ""
    for code in sorted(found):
        rule = documented()[code]
        package = importlib.import_module(rule.__module__.rpartition(".")[0])
        title = (package.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        parts += [f"## {title}\n\n"] if title != family else []
        family = title
        parts.append(f"### [{code}](rules/{code}.md): {rule.slug}\n\n{rule.summary} {_proof(rule)}\n\n")
        rows = [
            [name, "<br>".join(j.link for j in places.values()), reason]
            for (name, reason), places in found[code].items()
        ]
        parts.append(_table(["Repository", "Place", "What happens"], rows) + "\n")
    return "".join(parts).rstrip("\n") + "\n"


def _in_small(files: Sequence[pathlib.Path]) -> str:
    """The verdicts of `verify` on the small programs, as benchmarks/real_bugs.py wrote it down."""
    (path,) = files
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    table: list[list[object]] = []
    for row in rows:
        first = path.with_name(f"{row['program']}.py").read_text(encoding="utf-8").partition("\n")[0]
        happens = first.strip('"').partition(": ")[2].rstrip(".")
        program = f"[`{row['program']}.py`](real-bugs/{row['program']}.py)"
        rule = f"[{row['code']}](rules/{row['code']}.md)"
        table.append([row["repository"], happens, program, rule, f"**{row['verdict']}**: {row['reason']}"])
    return _table(["Repository", "What happens", "In small", "Rule", "`verify`"], table)


def _proof(rule: type[Documented]) -> str:
    """What `verify` says of the example of the rule's page, which the tests prove."""
    if not issubclass(rule, Rule) or not rule.oracles:
        return ""
    where = "on two GPUs" if rule.needs_cuda else "on two ranks"
    return f"`verify` confirms the example of its page {where}."


def _by_class(files: Sequence[pathlib.Path]) -> str:
    from ddp_lint.dev.calibration import judgements, report

    rows = list(report(judgements(files[0].parent)))
    return _table(["class", "readings", "not false", "real"], rows, 3)


_KINDS: dict[str, Callable[[Sequence[pathlib.Path]], str]] = {
    "by repository": _by_repository,
    "by class": _by_class,
    "by rule": _by_rule,
    "by block": _by_block,
    "findings": _findings,
    "true": _true,
    "in small": _in_small,
}

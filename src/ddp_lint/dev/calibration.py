"""Confidence from readings: the class of a rule's findings, and of the findings in a kind of place.

The readings are the rows of `docs/studies/*.tsv`. Half of the code bases calibrate, by a digest of their names; of a
rule with few readings there, all do. The block that was read last never does. `report` is of what did not calibrate.
Findings that the linter of today does not report any more are listed in `silent.tsv` and count for neither half: they
are no findings of it. But what a fix takes away from code that was read says little about code that nobody has read:
there all findings are first readings. So a rule whose findings were often false when they were first read is not
`high`, and one that was wrong nearly as often as right in the newest blocks is `low`.
"""

from __future__ import annotations

import collections
import csv
import hashlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ddp_lint.dev.studies import Judgement, read
from ddp_lint.findings import Confidence
from ddp_lint.rules.calibrated import kind_of, surest_at
from ddp_lint.rules.registry import all_rules, documented

#: What a class promises: the least share that is not false, the least share that is real.
PROMISES = {Confidence.HIGH: (0.90, 0.70), Confidence.MEDIUM: (0.75, 1 / 3)}
#: Fewer readings do not suffice to be `high`, nor to be `low`; that counts for a rule that has none in this half, too,
#: if it was ever read: what it finds on public code is not what it was made for, as long as nobody has counted.
ENOUGH = 8
#: Readings of a rule in the newest blocks of some time from which on few that were not false make it `low`.
MANY = 16
#: Where a half has fewer readings of a rule, those of both halves say its class: the newest block measures it then. Of
#: 19 readings of DDP107 in the one half 47 % were not false, of 44 in the other 91 %.
DECIDING = 24
#: As many readings of all rules together are added to those of one rule, so that a few do not decide alone. More would
#: hide what a rule's own readings say: it takes few of them to show that hardly any finding is real.
PRIOR = 4.0
#: Blocks whose first readings say how a rule does on unread code. Of shares over 10 to 90 blocks, with what was fixed
#: since counted in part or whole, those over 20 blocks with all of it foretold best how each next block was read.
RECENT = 20
#: Less than that not false, or real, when it was first read there, makes a rule `low`.
LEAST, HARDLY = 0.55, 1 / 20
#: Rules of which some first readings are about more than the rule says now, and the last block of those.
NARROWED = {"DDP201": 89, "DDP206": 104, "DDP250": 96, "DDP401": 109, "DDP408": 95, "DDP601": 96}
#: The blocks that were read last, with the classes of one calibration, measure these. They calibrate when the next one
#: is read.
NEWEST = ("110",)
_FILES = ("head.tsv", "divergence.tsv", "readings_divergence.tsv", "readings_other.tsv")
#: Readings of what `low` rules would report if they were shown.
_HIDDEN = "readings_preview.tsv"
_NEAR = 2
_HEAD = """\
# The class of a rule's findings, and of findings in a kind of place, by the readings of docs/studies: made by
# `ddp-lint dev calibrate`. A rule that is not here has not been read, and says of itself how sure it is.
"""


def judgements(studies: pathlib.Path) -> list[Judgement]:
    """The readings that calibrate or report: one for each finding that the linter of today still reports."""
    gone = _silent(studies)
    return [j for j in first_readings(studies) if (j.repository, j.place, j.code) not in gone]


def first_readings(studies: pathlib.Path) -> list[Judgement]:
    """All readings, those of findings that are no longer reported too."""
    found = {(j.repository, j.place, j.code): j for name in (*_FILES, _HIDDEN) for j in read(studies / name)}
    return list(found.values())


def calibrates(judgement: Judgement) -> bool:
    """Whether a reading is of the half of the code bases that calibrates, and not of the newest blocks."""
    return judgement.block not in NEWEST and hashlib.sha256(judgement.repository.lower().encode()).digest()[0] % 2 == 0


def classes(studies: pathlib.Path) -> dict[str, dict[str, str]]:
    """The content of `knowledge/calibration.toml`: the class of each rule and kind of place that has been read."""
    known, first = [j for j in judgements(studies) if j.block not in NEWEST], first_readings(studies)
    prior = _shares([j for j in known if calibrates(j)])
    doubted, low = _doubted(first), refuted(first, _since(read(studies / _HIDDEN)))
    rules, places = _grouped(known)
    rules = {j.code: list[Judgement]() for j in first} | rules
    found_classes = {
        name: {key: class_of(_that_calibrate(rows), prior, loud=_is_loud(key)) for key, rows in sorted(groups.items())}
        for name, groups in (("rules", rules), ("places", places))
    }
    limits = dict.fromkeys(doubted, Confidence.MEDIUM) | dict.fromkeys(low, Confidence.LOW)
    return {
        name: {key: sure.at_most(limits.get(key, Confidence.HIGH)).value for key, sure in rows.items()}
        for name, rows in found_classes.items()
    }


def _grouped(known: Iterable[Judgement]) -> tuple[dict[str, list[Judgement]], dict[str, list[Judgement]]]:
    """The readings of each rule, and those in each kind of place that is counted apart."""
    rules, places = (collections.defaultdict[str, list[Judgement]](list) for _ in range(2))
    for judgement in known:
        kind = _kind(judgement)
        (places[kind] if kind else rules[judgement.code]).append(judgement)
    return rules, places


def _that_calibrate(rows: Sequence[Judgement]) -> Sequence[Judgement]:
    """Those of the half that calibrates; all where it has so few that the choice of the half would decide."""
    half = _of_many(judgement for judgement in rows if calibrates(judgement))
    return half if len(half) >= DECIDING else _of_many(rows)


def _of_many(rows: Iterable[Judgement]) -> list[Judgement]:
    """No more readings of one code base than suffice: fifty copies of a script say no more of a rule than a few."""
    by_repository = _by(rows, lambda judgement: judgement.repository)
    return [judgement for read in by_repository.values() for judgement in read[:ENOUGH]]


def _by(rows: Iterable[Judgement], key: Callable[[Judgement], str]) -> dict[str, list[Judgement]]:
    """Readings by something of each."""
    found = collections.defaultdict[str, list[Judgement]](list)
    for judgement in rows:
        found[key(judgement)].append(judgement)
    return found


def _doubted(first: Iterable[Judgement]) -> set[str]:
    """Rules of which less than `medium` promises was not false when it was first read."""
    rows = _by((judgement for judgement in first if judgement.block not in NEWEST), lambda judgement: judgement.code)
    return {code for code, read in rows.items() if _shares(read)[0] < PROMISES[Confidence.MEDIUM][0]}


def _since(hidden: Iterable[Judgement]) -> dict[str, int]:
    """The rules whose findings keep the promise of `medium` where they were read behind `--preview`, with the last
    block of these readings."""
    rows = _by(hidden, lambda judgement: judgement.code)
    return {code: max(map(_number, (j.block for j in read))) for code, read in rows.items() if keeps_promise(read)}


def keeps_promise(read: Sequence[Judgement]) -> bool:
    """Whether enough readings have the shares that `medium` promises."""
    not_false, real = _shares(_of_many(read))
    least, least_real = PROMISES[Confidence.MEDIUM]
    return len(_of_many(read)) >= ENOUGH and not_false >= least and real >= least_real


def refuted(first: Iterable[Judgement], since: Mapping[str, int] = MappingProxyType({})) -> set[str]:
    """Rules whose findings were false nearly as often as not when they were first read, or hardly ever real.

    A collective that some ranks miss is shown nevertheless: the night and the cluster that a hang costs are more than
    the minutes of two false findings. So is what is `loud`. Of rules in `since` what was read after that block counts.
    """
    counted = (
        judgement
        for judgement in first
        if _number(judgement.block) > max(NARROWED.get(judgement.code, 0), since.get(judgement.code, 0))
    )
    rows = _by(counted, lambda judgement: judgement.code)
    return {code for code, read in rows.items() if not (_is_of_hangs(code) or _is_loud(code)) and _is_refuted(read)}


def _is_refuted(read: Sequence[Judgement]) -> bool:
    """Whether the newest blocks of some time refuted a rule, and none since keeps what `medium` promises. What is not
    shown is not read any more: that old readings leave the newest blocks makes a rule no better."""
    low = False
    for end in range(1, int(NEWEST[0]) + 1):
        window = _of_many(judgement for judgement in read if end - RECENT <= _number(judgement.block) < end)
        not_false, real = _shares(window)
        promised = not_false >= PROMISES[Confidence.MEDIUM][0]
        if len(window) >= MANY and not_false < LEAST:
            low = True
        elif len(window) >= ENOUGH:
            low = (low or real < HARDLY) and not promised
    return low


def _number(block: str) -> int:
    """The number of a block; 0 of the studies that were not read in numbered blocks."""
    return int(block) if block.isdigit() else 0


def _is_of_hangs(code: str) -> bool:
    """Whether a rule is about ranks that wait for each other (DDP1xx)."""
    return code.startswith("DDP1")


def _is_loud(code: str) -> bool:
    """Whether what a rule finds ends the first run with an error. Published code that has it is code that nobody runs:
    that it is not real there does not say how real it is in code that is being written."""
    rule = all_rules().get(code)
    return rule is not None and rule.oracles[:1] == ("exception",)


def class_of(rows: Sequence[Judgement], prior: tuple[float, float], *, loud: bool = False) -> Confidence:
    """The best class whose promises the readings keep; `medium` where they are too few to say, and where what is
    `loud` is not false."""
    if len(rows) < ENOUGH:
        return Confidence.MEDIUM
    shares = _shares(rows)
    not_false, real = (
        (share * len(rows) + before * PRIOR) / (len(rows) + PRIOR) for share, before in zip(shares, prior, strict=True)
    )
    for sure, (least, least_real) in PROMISES.items():
        if not_false >= least and (real >= least_real or (loud and sure is Confidence.MEDIUM)):
            return sure
    return Confidence.LOW


def _shares(rows: Sequence[Judgement]) -> tuple[float, float]:
    """Which share of the readings is not false, and which is real."""
    verdicts = collections.Counter(j.verdict for j in rows)
    count = max(1, len(rows))
    return 1 - verdicts["false"] / count, verdicts["true"] / count


def toml(studies: pathlib.Path) -> str:
    tables = classes(studies)
    parts = [
        f"[{name}]\n" + "".join(f'{key} = "{sure}"\n' for key, sure in rows.items()) for name, rows in tables.items()
    ]
    return _HEAD + "\n" + "\n".join(parts)


def report(found: Iterable[Judgement]) -> Iterator[list[object]]:
    """For each class: readings that did not calibrate, the share that is not false, the share that is real.

    The class is the one that the rule has by default: a finding that the rule itself calls less sure counts there too.
    """
    known = list(found)
    grouped = _grouped(judgement for judgement in known if judgement.block not in NEWEST)
    calibrating = {judgement for each in grouped for rows in each.values() for judgement in _that_calibrate(rows)}
    groups = collections.defaultdict[str, list[Judgement]](list)
    for judgement in known:
        if judgement not in calibrating:
            kind = _kind(judgement)
            sure = documented()[judgement.code].confidence.value
            groups[f"{kind}s" if kind else sure].append(judgement)
    for name in (*(c.value for c in Confidence), "tests", "examples", "benchmarks", "leftovers"):
        if groups[name]:
            not_false, real = _shares(groups[name])
            yield [name, len(groups[name]), f"{not_false:.0%}", f"{real:.0%}"]


def _kind(judgement: Judgement) -> str:
    """The kind of place whose readings a judgement belongs to; '' where it belongs to those of its rule."""
    rule = documented().get(judgement.code)
    return kind_of(judgement.place.rpartition(":")[0], in_tests_too=rule is not None and rule.in_tests_too)


# ---- what is not reported any more


def _silent(studies: pathlib.Path) -> set[tuple[str, str, str]]:
    with (studies / "silent.tsv").open(encoding="utf-8", newline="") as file:
        return {(row["repository"], row["place"], row["code"]) for row in csv.DictReader(file, delimiter="\t")}


def reread(studies: pathlib.Path, checkouts: pathlib.Path) -> tuple[int, int]:
    """Check the files of all readings again and rewrite `silent.tsv`; returns how many are silent, and how many could
    not be checked. `checkouts` holds a tree of each code base at the commit of its readings, as ``owner+name``."""
    every = (judgement for name in (*_FILES, _HIDDEN) for judgement in read(studies / name))
    by_repository = _by(every, lambda judgement: judgement.repository)
    silent, absent = dict.fromkeys(sorted(_silent(studies))), 0
    for repository, rows in sorted(by_repository.items()):
        tree = checkouts / repository.replace("/", "+")
        if not tree.is_dir():
            absent += len(rows)
            continue
        lines = _reported(tree, sorted({j.place.rpartition(":")[0] for j in rows}))
        for judgement in rows:
            path, _, line = judgement.place.rpartition(":")
            still = any(abs(number - int(line)) <= _NEAR for number in lines.get((path, judgement.code), ()))
            silent.pop((repository, judgement.place, judgement.code), None)
            if not still:
                silent[repository, judgement.place, judgement.code] = None
    text = "".join("\t".join(row) + "\n" for row in [("repository", "place", "code"), *sorted(silent)])
    (studies / "silent.tsv").write_text(text, encoding="utf-8")
    return len(silent), absent


def _reported(tree: pathlib.Path, paths: list[str]) -> dict[tuple[str, str], list[int]]:
    """The lines that findings of the files point at, labels included, by path and code."""
    files = [path for path in paths if (tree / path).is_file()]
    command = [sys.executable, "-m", "ddp_lint", "check", "--isolated", "--no-cache", "--preview"]
    command += ["--output-format", "json", *files]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    lines = collections.defaultdict[tuple[str, str], list[int]](list)
    for finding in json.loads(done.stdout)["findings"] if files and done.stdout else ():
        if _waits_by_itself(finding):
            continue
        for place in (finding, *finding["labels"]):
            lines[place.get("path") or finding["path"], finding["code"]].append(place["line"])
    return lines


def _waits_by_itself(finding: dict[str, Any]) -> bool:
    """Whether the rule itself is unsure of it, which no class makes it: by default it is not reported."""
    rule = documented()[finding["code"]]
    allowed = rule.ceiling.at_most(surest_at(finding["path"], in_tests_too=rule.in_tests_too))
    return finding["confidence"] == Confidence.LOW.value and allowed is not Confidence.LOW

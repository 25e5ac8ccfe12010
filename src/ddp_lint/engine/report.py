"""The result of a run: findings, files that could not be read, and what the run did."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ddp_lint.findings import Confidence, Finding, Span

if TYPE_CHECKING:
    from ddp_lint.rules.base import Rule
    from ddp_lint.source import SourceFile


@dataclasses.dataclass(frozen=True)
class FileResult:
    """The outcome for one file. `error` says, in one line, why the file could not be checked ('' when it was).

    `dependencies`, needed by a cache, are the questions that the findings depend on, each with its answer (see
    `project.Project.recording`); `parsed` says whether LibCST had to parse any of it; `outcomes` is what is known of
    functions of the file (see `project.outcomes`), with the questions about the file that each depends on.
    """

    path: str
    findings: tuple[Finding, ...] = ()
    error: str = ""
    dependencies: tuple[tuple[str, str], ...] = ()
    #: Words that were searched for in the project's files, each with the files that hold it.
    searched: tuple[tuple[str, tuple[str, ...]], ...] = ()
    outcomes: tuple[tuple[str, bool, tuple[tuple[str, str], ...]], ...] = ()
    #: CPU seconds of the check by the file that they were spent on, the other files that it had to read included.
    charges: tuple[tuple[str, float], ...] = ()
    parsed: bool = False
    cached: bool = False

    def without_basis(self) -> FileResult:
        """The result without what it depends on, which is much more, once that is kept elsewhere."""
        return dataclasses.replace(self, dependencies=(), searched=(), outcomes=())


@dataclasses.dataclass
class Statistics:
    """What the engine did: how many files it was given, parsed with LibCST, and answered from the cache."""

    files: int = 0
    parsed: int = 0
    cached: int = 0
    #: CPU seconds by file, '' for the project as a whole. Not wall: what else runs must not change them.
    charged: dict[str, float] = dataclasses.field(default_factory=dict)
    #: What of these was spent on a file while others were checked, which call what is in it.
    for_others: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def slowest(self) -> list[tuple[str, float]]:
        return sorted(self.charged.items(), key=lambda item: -item[1])[:10]


@dataclasses.dataclass
class Report:
    """The outcome of a run: sorted findings, and what could not be read (path, reason); the same for any `jobs`."""

    findings: list[Finding]
    errors: list[tuple[str, str]]
    statistics: Statistics = dataclasses.field(default_factory=Statistics)

    @classmethod
    def merged(cls, reports: Iterable[Report], errors: Iterable[tuple[str, str]] = ()) -> Report:
        """One report of several runs, and of what else went wrong."""
        parts = list(reports)
        return cls(
            findings=sorted((f for r in parts for f in r.findings), key=lambda f: f.sort_key),
            errors=sorted({*errors, *(e for r in parts for e in r.errors)}),
            statistics=Statistics(
                files=sum(r.statistics.files for r in parts),
                parsed=sum(r.statistics.parsed for r in parts),
                cached=sum(r.statistics.cached for r in parts),
                charged=_added(charge for r in parts for charge in r.statistics.charged.items()),
                for_others=_added(charge for r in parts for charge in r.statistics.for_others.items()),
            ),
        )

    @classmethod
    def of(cls, results: Iterable[FileResult]) -> Report:
        """The report of a run over these files."""
        return cls.merged(map(cls._of_file, results))

    @classmethod
    def _of_file(cls, result: FileResult) -> Report:
        charged = _added(result.charges)
        for_others = {path: seconds for path, seconds in charged.items() if path != result.path}
        statistics = Statistics(1, result.parsed, result.cached, charged, for_others)
        return cls([*result.findings], [(result.path, result.error)] if result.error else [], statistics)


def _added(charges: Iterable[tuple[str, float]]) -> dict[str, float]:
    added: dict[str, float] = collections.defaultdict(float)
    for path, seconds in charges:
        added[path] += seconds
    return dict(added)


def rule_crashed(file: SourceFile, rule: type[Rule], error: Exception) -> Finding:
    return Finding(
        "DDP001",
        "rule-crashed",
        " ".join(f"rule {rule.code} ({rule.slug}) failed on this file: {type(error).__name__}: {error}".split()),
        Span(file.path, 1, 1, 1, 1),
        Confidence.HIGH,
        help="This is a defect of ddp-lint, please report it with this message; the other rules did run.",
    )

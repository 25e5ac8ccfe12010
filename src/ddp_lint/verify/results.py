"""What a verification found: the currency of the reports, a pure function of findings and traces."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from ddp_lint.findings import Finding
from ddp_lint.verify.match import Row


class Verdict(str, enum.Enum):
    """What the runs say about one finding."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    NOT_REACHED = "not reached"
    INCONCLUSIVE = "inconclusive"


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One thing that was seen, where and by whom: a reader can check it.

    `kind` is the name of the oracle, or "lines" for how often a line ran, "guard" for which way a condition went,
    "backend" for what this backend cannot decide. `rank` is None where the ranks were compared with each other.
    """

    wrap: str
    rank: int | None
    kind: str
    message: str
    path: str = ""
    line: int = 0


@dataclasses.dataclass(frozen=True)
class Judged:
    """A finding, its verdict, and why in one sentence."""

    finding: Finding
    verdict: Verdict
    reason: str
    evidence: tuple[Evidence, ...] = ()


@dataclasses.dataclass(frozen=True)
class Discovery:
    """What a run showed and no finding named. `code` is that of the rule which looks for it, '' where none does."""

    kind: str
    message: str
    code: str = ""
    cause: str = ""
    fix: str = ""
    evidence: tuple[Evidence, ...] = ()


@dataclasses.dataclass(frozen=True)
class RankEnd:
    """How one rank ended; `last` holds the last collective, module and user line as text."""

    rank: int
    exit: int | None
    signal: str
    last: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """One launch: a wrap (and a stimulus), how it ended, what its ranks called.

    `outcome` is "completed", "failed" (an exception or a death), "hung" or "not started".
    """

    wrap: str
    outcome: str
    seconds: float
    ranks: tuple[RankEnd, ...] = ()
    mismatch: str = ""
    stimuli: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    detail: str = ""

    @property
    def name(self) -> str:
        return f"{self.wrap} (skewed)" if self.stimuli else self.wrap


@dataclasses.dataclass(frozen=True)
class Verification:
    """All of it. `environment` holds torch, device, backend, nproc and wraps."""

    target: str
    environment: Mapping[str, Any]
    findings: tuple[Judged, ...] = ()
    discovered: tuple[Discovery, ...] = ()
    runs: tuple[RunSummary, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: every run came to its end and nothing was confirmed or discovered; 1 otherwise."""
        broken = any(run.outcome != "completed" for run in self.runs)
        confirmed = any(judged.verdict is Verdict.CONFIRMED for judged in self.findings)
        return int(broken or confirmed or bool(self.discovered))

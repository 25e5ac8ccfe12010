"""What a verification found: the currency of the reports, a pure function of findings and traces."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from ddp_lint.findings import Finding
from ddp_lint.verify.branches import apart_since
from ddp_lint.verify.damage import Cause
from ddp_lint.verify.match import Cells, Kind, Mismatch, Row, mismatches, rows
from ddp_lint.verify.options import RunResult
from ddp_lint.verify.outcome import aligned
from ddp_lint.verify.replica_drift import averaged_flat
from ddp_lint.verify.trace import Collective, Start, Trace


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
    #: What ties it to the finding: "place" (it happened on a line that the finding names), "name" (it concerns a
    #: parameter that the finding's statement names), or "" for damage of the run as a whole.
    tie: str = "place"
    #: The class of the model whose run showed it, "" for a script.
    model: str = ""

    @property
    def linked(self) -> bool:
        return bool(self.tie)


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
    #: The parameters that it concerns, as far as they are known.
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, message: str, cause: Cause, evidence: Evidence, names: Sequence[str] = ()) -> Discovery:
        return cls(kind, message, cause.code, cause.text, cause.fix, (evidence,), tuple(names))

    @property
    def path(self) -> str:
        """The file of the first place that is known, "" without one."""
        return next((one.path for one in self.evidence if one.line), "")

    @property
    def line(self) -> int:
        """The line of the first place that is known, 0 without one."""
        return next((one.line for one in self.evidence if one.line), 0)


@dataclasses.dataclass(frozen=True)
class Examined:
    """One launch and what the matcher says of it: the aligned collectives, and where they diverge (the cause first)."""

    run: RunResult
    rows: tuple[Row, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()

    @property
    def completed(self) -> bool:
        return self.run.outcome == "completed"

    @property
    def traces(self) -> tuple[Trace, ...]:
        return tuple(outcome.trace for outcome in self.run.ranks)

    @property
    def streams(self) -> dict[int, tuple[Collective, ...]]:
        """The collectives of each rank."""
        return {trace.rank: tuple(trace.of(Collective)) for trace in self.traces}

    def before(self, mismatch: Mismatch) -> list[Cells]:
        """The calls of its group that met before."""
        rows = (row for row in self.rows if row.group == mismatch.group and row.position < mismatch.position)
        return [row.calls for row in rows]

    def origin(self, mismatch: Mismatch) -> Mismatch:
        """Where the ranks' calls are apart since: the mismatch, or a call before it that met another one by luck."""
        earlier = self.before(mismatch)
        since = apart_since(mismatch, earlier) if not mismatch.direct else None
        if since is None:
            return mismatch
        return Mismatch(Kind.ORDER, mismatch.group, since, earlier[since])

    @property
    def communicates(self) -> bool:
        """A rank made a process group or issued a collective."""
        return any(trace.communicates for trace in self.traces)

    @property
    def collectives(self) -> bool:
        """A rank issued a collective."""
        return any(trace.last(Collective) is not None for trace in self.traces)

    @property
    def world(self) -> int:
        """Ranks of the whole job: more than were seen here when it spans several machines."""
        starts = (trace.last(Start) for trace in self.traces)
        return max((start.world for start in starts if start), default=self.run.nproc)


def examine(run: RunResult) -> Examined:
    """Aligns the ranks' streams of a run."""
    traces = averaged_flat([outcome.trace for outcome in run.ranks]) if run.ranks else []
    ranks = tuple(dataclasses.replace(one, trace=trace) for one, trace in zip(run.ranks, traces, strict=True))
    run = dataclasses.replace(run, ranks=ranks)
    streams, endings = aligned(run.ranks)
    return Examined(run, tuple(rows(streams, endings)), tuple(mismatches(streams, endings)))


@dataclasses.dataclass(frozen=True)
class Verification:
    """All of it. `environment` holds torch, device, backend, nproc and wraps."""

    target: str
    environment: Mapping[str, Any]
    findings: tuple[Judged, ...] = ()
    discovered: tuple[Discovery, ...] = ()
    runs: tuple[Examined, ...] = ()
    #: Why each model that could not be built was left out, by its name.
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: What the target lacks to run at all, "" when it ran.
    lacks: str = ""

    @property
    def not_run(self) -> tuple[str, ...]:
        """What was not looked at, in words: models left out, ways of training, scripts that made no process group."""
        found = [f"{name} was left out" for name in self.left_out]
        found += [f"{e.run.model or 'the model'}: {e.run.not_run}" for e in self.runs if e.run.not_run]
        if any(e.completed and e.run.wrap == "script" and not e.communicates for e in self.runs):
            found.append("nothing distributed ran: the script made no process group")
        return tuple(dict.fromkeys(found))

    @property
    def exit_code(self) -> int:
        """0: every run completed and nothing was confirmed or discovered; 2: the target could not run, or a part
        of it was not run and the rest shows nothing; 1 otherwise.

        How a run with a stimulus ended does not count: the stimulus provokes failures.
        """
        confirmed = any(judged.verdict is Verdict.CONFIRMED for judged in self.findings)
        if self.lacks:
            return 1 if confirmed else 2
        broken = any(not examined.completed for examined in self.runs if not examined.run.stimuli)
        wrong = broken or confirmed or bool(self.discovered)
        return 1 if wrong else 2 if self.not_run else 0

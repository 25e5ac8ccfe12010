"""A dry run: chosen ranks of a job of any size, each alone in its process, and what they would call compared.

For hangs that two ranks cannot show: `rank // 8`, pipeline stages, uneven shards, the last rank. Nothing is sent, so a
dry run knows nothing of the values that ranks receive: `child/dry.py` says what replaces them.
"""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
import time

from ddp_lint.verify import launch
from ddp_lint.verify.dry_run.simulate import Waits, stuck
from ddp_lint.verify.launch import Progress
from ddp_lint.verify.match import Ending, describe, mismatches, place, rows
from ddp_lint.verify.options import Options, RankOutcome, RunResult, UsageError, Watch
from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.outcome import rank_outcome
from ddp_lint.verify.pool import processes, workspace
from ddp_lint.verify.results import Discovery, Evidence, Examined, Judged, Verdict
from ddp_lint.verify.spec import Spec
from ddp_lint.verify.target import Target
from ddp_lint.verify.trace import Collective, MadeUp
from ddp_lint.verify.wording import of_ranks

#: Ranks to a machine where --nproc does not say it.
_TO_A_MACHINE = 8
#: Oracles that a run without communication can answer.
_ORACLES = frozenset({"sequence", "stall"})
#: Kinds of discoveries that need no received value.
_SEEN = ("mismatch", "exception", "death", "exit")
_WITHOUT = "a dry run sends nothing, so it cannot decide this"


def run(target: Target, options: Options, watch: Watch, progress: Progress) -> Examined:
    """Run the chosen ranks of a script. Raises UsageError for a target that is no script."""
    if target.kind != launch.SCRIPT:
        raise UsageError(f"{target.path}: a dry run (--world-size) takes a training script, not a model")
    torch, _ = launch.installed_torch()
    with workspace(options.traces) as folder:
        spec = specification(target, options, watch, folder / "dry")
        progress(f"dry run: {len(options.ranks)} of {options.world} ranks, one after the other")
        started = time.monotonic()
        zygote([spec], folder)
        seconds = time.monotonic() - started
        examined = examine(spec, seconds, torch)
    progress(f"dry run: {examined.run.message} ({seconds:.1f} s)")
    return examined


def specification(target: Target, options: Options, watch: Watch, directory: pathlib.Path) -> Spec:
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.iterdir():
        stale.unlink() if stale.is_file() else None
    return dataclasses.replace(
        launch.specification(target, options, watch, directory),
        files=False,
        world=options.world,
        ranks=options.ranks,
        local_world=min(options.world, options.nproc if options.nproc > 2 else _TO_A_MACHINE),
    )


def zygote(specs: list[Spec], folder: pathlib.Path) -> None:
    """One process runs all of them. Raises UsageError when it could not begin."""
    paths = []
    for spec in specs:
        paths.append(str(pathlib.Path(spec.directory, "spec.json")))
        spec.save(pathlib.Path(paths[-1]))
    command = [sys.executable, "-m", "ddp_lint.verify.dry_run.zygote", *paths]
    log = folder / "zygote.log"
    with log.open("wb") as output, processes(folder) as environment:
        environment["CUDA_VISIBLE_DEVICES"] = ""
        code = subprocess.run(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, check=False
        ).returncode
    if code:
        raise UsageError(f"the dry run could not start: {log.read_text(encoding='utf-8', errors='replace')[-500:]}")


def examine(spec: Spec, seconds: float, torch: str) -> Examined:
    """What the ranks would call, each trace up to the first value that it read and that is unknown."""
    directory = pathlib.Path(spec.directory)
    ranks = tuple(rank_outcome(directory, rank) for rank in spec.ranks)
    streams = {outcome.rank: _known(outcome) for outcome in ranks}
    endings = {outcome.rank: _ending(outcome) for outcome in ranks}
    unknown = frozenset(rank for rank, ending in endings.items() if ending is Ending.UNKNOWN)
    found = mismatches(streams, endings)
    waits = [] if found else stuck(streams, unknown)
    failed = [outcome for outcome in ranks if outcome.how in ("exception", "exit", "signal", "oom")]
    outcome, message = "completed", "completed"
    if found:
        outcome, message = "hang", str(found[0])
    elif waits:
        outcome, message = "hang", _in_words(waits)
    elif failed:
        outcome, message = "exception", f"rank {failed[0].rank} {failed[0].message}"
    result = RunResult(
        name="dry", wrap=launch.SCRIPT, model="", stimuli=(), outcome=outcome, message=message, seconds=seconds,
        nproc=len(ranks), device="cpu", backend="none (dry run)", torch=torch, ranks=ranks, directory=directory,
    )  # fmt: skip
    return Examined(result, tuple(rows(streams, endings)), tuple(found))


def _cut(outcome: RankOutcome) -> int | None:
    """The number of the event at which a trace stops to count."""
    read = next(outcome.trace.of(MadeUp), None)
    return read.n if read is not None else None


def _known(outcome: RankOutcome) -> tuple[Collective, ...]:
    cut = _cut(outcome)
    return tuple(call for call in outcome.trace.of(Collective) if cut is None or call.n < cut)


def _ending(outcome: RankOutcome) -> Ending:
    if _cut(outcome) is not None or outcome.how in ("stopped", "not_started", "stalled"):
        return Ending.UNKNOWN
    return Ending.COMPLETED if outcome.how == "completed" else Ending.FAILED


def _in_words(waits: list[Waits]) -> str:
    return "; ".join(_wait(one) for one in waits[:4]) + (f"; and {len(waits) - 4} more" if len(waits) > 4 else "")


def _wait(one: Waits) -> str:
    ranks = of_ranks(one.missing)
    line = place(one.call)[1]
    what = describe(one.call)
    at = f" (line {line})" if line else ""
    if one.call.peer is not None:
        verb = "sends it" if one.call.op == "recv" else "receives it"
        return f"rank {one.rank} waits in {what}{at} for rank {one.call.peer}, which never {verb}"
    return f"rank {one.rank} waits in {what}{at} for {ranks}"


def discover(examined: Examined, found: list[Discovery]) -> list[Discovery]:
    """What the dry run shows besides what the comparison of sequences finds: ranks that wait for each other."""
    found = [one for one in found if one.kind in _SEEN]
    if examined.mismatches or examined.run.outcome != "hang":
        return found
    streams = {outcome.rank: _known(outcome) for outcome in examined.run.ranks}
    unknown = frozenset(o.rank for o in examined.run.ranks if _ending(o) is Ending.UNKNOWN)
    evidence = []
    for one in stuck(streams, unknown):
        path, line = place(one.call)
        evidence.append(Evidence(launch.SCRIPT, one.rank, "stall", _wait(one), shown(path) if path else "", line))
    return [Discovery("hang", examined.run.message, evidence=tuple(evidence)), *found]


def limited(judged: list[Judged], examined: Examined, oracles: dict[str, tuple[str, ...]]) -> list[Judged]:
    """The verdicts that a run without communication can give: none on values, and no refutation where a rank's way
    depended on an unknown value. A refutation by some of the ranks says so."""
    guessed = any(_cut(outcome) is not None for outcome in examined.run.ranks)
    return [_limited(one, guessed, frozenset(oracles[one.finding.code]), examined) for one in judged]


def _limited(one: Judged, guessed: bool, oracles: frozenset[str], examined: Examined) -> Judged:
    if one.verdict is Verdict.REFUTED and (guessed or not oracles <= _ORACLES):
        why = "its way depended on values that it would have received" if guessed else _WITHOUT
        return dataclasses.replace(one, verdict=Verdict.INCONCLUSIVE, reason=f"{why}: {one.reason}")
    if one.verdict is Verdict.REFUTED and len(examined.run.ranks) < examined.world:
        ranks = ", ".join(str(outcome.rank) for outcome in examined.run.ranks)
        return dataclasses.replace(one, reason=f"as far as ranks {ranks} can tell: {one.reason}")
    if one.verdict is Verdict.CONFIRMED and not {e.kind for e in one.evidence} & (_ORACLES | {"exception"}):
        return dataclasses.replace(one, verdict=Verdict.INCONCLUSIVE, reason=f"{_WITHOUT}: {one.reason}")
    return one

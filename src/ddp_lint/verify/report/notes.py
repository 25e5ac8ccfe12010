"""What a reader has to know of a run besides how it ended: what was replaced, what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddp_lint.verify.compare import REPLICAS_EQUAL, compared
from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.results import Examined
from ddp_lint.verify.trace import BY_HAND, SPLIT_BY_HAND, TENSOR_PARALLEL, Frame, Mapped, Note
from ddp_lint.verify.wording import spoken


def notes(examined: Examined) -> list[str]:
    """One line each, the same of several ranks once."""
    return list(dict.fromkeys(_notes(examined)))


def all_notes(runs: Sequence[Examined]) -> list[str]:
    """The notes of all runs, the same of several runs once, with the model where there are several."""
    several = len({examined.run.model for examined in runs}) > 1
    found: dict[str, None] = {}
    for examined in runs:
        for text in notes(examined):
            found[f"{examined.run.model}: {text}" if several else text] = None
    return list(found)


def _notes(examined: Examined) -> Iterator[str]:
    run = examined.run
    if run.inputs:
        yield run.inputs
    if run.left_out:
        yield (
            f"not trained, because the guessed inputs do not reach it: {spoken(run.left_out, 8)}; "
            "add a ddp_lint_example() with inputs that do to check it too"
        )
    if run.shared_gpus:
        gpus = f"{run.shared_gpus} GPU{'s' * (run.shared_gpus > 1)}"
        yield f"{run.nproc} ranks share {gpus}: each index means one of them, and NCCL talks over sockets"
    yield from _mapped(examined)
    if run.wrap == "script" and examined.completed and examined.communicates and not examined.collectives:
        yield "the ranks made a process group, but no collective ran: each ran on its own"
    yield from _looked_at(examined)
    for outcome in run.ranks:
        yield from (event.text for event in outcome.trace.of(Note))


def _looked_at(examined: Examined) -> Iterator[str]:
    """What silence rests on."""
    run = examined.run
    if run.wrap != "script" or run.stimuli or not examined.completed or examined.mismatches or not examined.collectives:
        return
    calls = sorted({len(stream) for stream in examined.streams.values()})
    looked = compared(examined.traces, "parameters", REPLICAS_EQUAL, ("ddp", BY_HAND))
    parts = compared(examined.traces, "parameters", REPLICAS_EQUAL, (TENSOR_PARALLEL, SPLIT_BY_HAND))
    parameters = "were not compared, because no model has replicas"
    if looked.times or parts.times:
        parameters = f"were {looked}" if looked.times else f"that are not split were {parts}"
    yield f"the ranks' collectives line up ({' to '.join(map(str, calls))} on each); parameters {parameters}"


def _mapped(examined: Examined) -> Iterator[str]:
    seen: dict[tuple[str, str], Frame] = {}
    for outcome in examined.run.ranks:
        for event in outcome.trace.of(Mapped):
            if event.site is None:  # requested by `verify` itself
                continue
            requested = "cuda" if event.requested.startswith(("cuda:", "torch.cuda")) else event.requested
            if not event.actual.startswith("cuda:"):  # of shared GPUs one line is enough
                seen.setdefault((requested, event.actual), event.site)
    if seen:
        pairs = [
            f"{requested} ran as {actual} ({shown(site.path)}:{site.line})"
            for (requested, actual), site in seen.items()
        ]
        yield f"{', '.join(pairs)}; --no-shim leaves the script as it is"

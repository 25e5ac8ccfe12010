"""What the loaders gave the ranks to train on."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.damage import Cause
from ddp_lint.verify.discoveries._evidence import discovery
from ddp_lint.verify.results import Discovery, Examined
from ddp_lint.verify.sampling import copies, describe_order, epoch_not_set, overlap, same_order, unlike_parts
from ddp_lint.verify.wording import of_ranks

_SAMPLES, _EPOCHS = ("samples", "samples"), ("epochs", "epochs")
#: An iterable dataset has no length: what it is called, and the damage of one that gives all ranks the same.
_ITERABLE = ("an iterable dataset", "undivided-iterable")


def unlike_batches(examined: Examined) -> Iterator[Discovery]:
    """What the loaders gave the ranks to train on."""
    traces = examined.traces
    copied = copies(traces) if examined.completed else None
    if copied is not None:
        event, ranks = copied
        who = "all ranks" if len(ranks) == examined.world else of_ranks(ranks)
        what, why = ("a loader", "undivided") if event.dataset is not None else _ITERABLE
        if event.replicas:
            why = "sampler-for-few" if event.replicas < len(ranks) else "sampler-of-one-rank"
        message = f"{who} train on the same samples: {what} gave each of them the same batches"
        cause = Cause.of(why, replicas=event.replicas, ranks=len(ranks))
        yield discovery(examined, _SAMPLES, message, event.site, cause)
    found = overlap(traces) if examined.completed and copied is None else None
    if found is not None:
        one, other = found.ranks
        message = f"the ranks train on parts of the data that overlap: {found.shared} of {found.among} samples of rank "
        message += f"{one} that were compared are among those of rank {other}"
        yield discovery(examined, _SAMPLES, message, found.event.site, Cause.of("own-parts"))
    parts = unlike_parts(traces) if len(traces) > 1 else None
    if parts is not None:
        message = f"each rank has split the data differently: {parts.sampler} divides different subsets"
        yield discovery(examined, _SAMPLES, message, parts.site, Cause.of("unlike-splits-of-data"))
    events = epoch_not_set(traces) if copied is None else ()
    if events:
        elsewhere = ", ".join(str(trace.rank) for trace in traces if not same_order(trace))
        told = [call.arguments["epoch"] for call in traces[0].calls("set_epoch")]
        always = "epoch-always-one" if len(told) > 1 and len(set(told)) == 1 else "epoch-not-set"
        cause = Cause.of("epoch-set-on-some" if elsewhere else always, ranks=elsewhere, epoch=next(iter(told), 0))
        yield discovery(examined, _EPOCHS, describe_order(events), events[0].site, cause)

"""What the loaders gave the ranks to train on."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.discoveries._evidence import evidence_of
from ddp_lint.verify.results import Discovery, Examined
from ddp_lint.verify.sampling import copies, describe_order, epoch_not_set, overlap, same_order, unlike_parts

#: By whether the dataset has no length: the rule of a loader that gives all ranks the same, what it is, and the fix.
_UNDIVIDED = {
    False: ("DDP707", "a loader", "give the loader a DistributedSampler, or each rank its own part of the data"),
    True: (
        "DDP706",
        "an iterable dataset",
        "let its __iter__ take every world_size-th sample from this rank's on (itertools.islice), or its own files",
    ),
}
#: Cause and fix where each rank has made a part of the data for itself.
_OWN_PARTS = (
    "each rank divides the data by itself, not in an order that all ranks share (a shuffle without a common seed): "
    "some samples are on several ranks, some may be on none",
    "shuffle with the same seed on all ranks before the data is divided: random.Random(0).shuffle(...)",
)
#: The rule of a sampler without `set_epoch`.
_EPOCH_NOT_SET = "DDP701"


def unlike_batches(examined: Examined) -> Iterator[Discovery]:
    """What the loaders gave the ranks to train on."""
    traces = [outcome.trace for outcome in examined.run.ranks]
    copied = copies(traces) if examined.completed else None
    if copied is not None:
        event, ranks = copied
        code, what, fix = _UNDIVIDED[event.dataset is None]
        who = "all ranks" if len(ranks) == examined.world else f"ranks {', '.join(map(str, ranks))}"
        message = f"{who} train on the same samples: {what} gave each of them the same batches"
        evidence = evidence_of(examined, None, "samples", message, event.site)
        cause = "the data is not divided between the ranks: they average copies of one gradient"
        if event.replicas and event.replicas < len(ranks):
            cause = f"its DistributedSampler was made for {event.replicas} of the {len(ranks)} ranks (num_replicas)"
            fix = "omit num_replicas and rank: the sampler takes them from the process group"
        elif event.replicas:
            cause = "its DistributedSampler was given one rank on all of them"
            fix = "omit num_replicas and rank: the sampler takes them from the process group"
        yield Discovery("samples", message, code, cause, fix, (evidence,))
    found = overlap(traces) if examined.completed and copied is None else None
    if found is not None:
        one, other = found.ranks
        message = f"the ranks train on parts of the data that overlap: {found.shared} of {found.among} samples of rank "
        message += f"{one} that were compared are among those of rank {other}"
        evidence = evidence_of(examined, None, "samples", message, found.event.site)
        yield Discovery("samples", message, "", *_OWN_PARTS, evidence=(evidence,))
    parts = unlike_parts(traces) if len(traces) > 1 else None
    if parts is not None:
        message = f"each rank has split the data differently: {parts.sampler} divides different subsets"
        evidence = evidence_of(examined, None, "samples", message, parts.site)
        cause = (
            "the indices of the Subset are others on each rank: some samples are drawn on several ranks, some on none, "
        )
        cause += "and what one rank holds out another one trains on"
        fix = "use the same split on all ranks: random_split(..., generator=torch.Generator().manual_seed(0))"
        yield Discovery("samples", message, "", cause, fix, (evidence,))
    events = epoch_not_set(traces) if copied is None else ()
    if events:
        message = describe_order(events)
        evidence = evidence_of(examined, None, "epochs", message, events[0].site)
        cause = "it shuffles by the epoch number, which was never set"
        fix = "call sampler.set_epoch(epoch) before each epoch"
        elsewhere = [str(trace.rank) for trace in traces if not same_order(trace)]
        if elsewhere:
            cause = f"set_epoch was called on rank {', '.join(elsewhere)} only: the ranks divide different orders, in "
            cause += "which some samples are on several ranks and some on none"
            fix = "call sampler.set_epoch(epoch) on all ranks"
        yield Discovery("epochs", message, _EPOCH_NOT_SET, cause, fix, (evidence,))

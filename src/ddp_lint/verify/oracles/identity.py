"""Parameters compared by object and by storage, before and after the wrap, and with what the optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.compare import spoken
from ddp_lint.verify.cpu_limits import undecided
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.results import Evidence
from ddp_lint.verify.trace import Storage


def testify(case: Case) -> Opinion:
    looks = [(trace.rank, event) for trace in case.traces for event in trace.of(Storage)]
    if not looks:
        return Opinion(blind="the run ended before a model's storages could be examined")
    fired = [evidence for rank, event in looks for evidence in _seen(case, rank, event)]
    if fired:
        return Opinion(tuple(fired))
    shared = [event for _, event in looks if _overlaps(case, event)]
    if shared and case.run.device == "cpu" and not case.sharded:
        return Opinion(backend=f"{' and '.join(shared[0].overlaps[0])} share memory, and {undecided('overlap')}")
    return Opinion(
        silent="no two parameters share memory, none was replaced after the wrap, and the optimizer holds the "
        "wrapped model's parameters"
    )


def _seen(case: Case, rank: int, event: Storage) -> Iterator[Evidence]:
    if event.foreign:
        text = f"the optimizer holds {len(event.foreign)} tensors that are not parameters of the wrapped model"
        yield case.evidence("identity", text, rank=rank, linked=False)
    changes = (
        (event.replaced, "are other objects than when the model was wrapped"),
        (event.added, "were added after the model was wrapped"),
        (event.removed, "were removed after the model was wrapped"),
        (event.moved if case.sharded else (), "had their storage exchanged after FSDP took it over"),
    )
    for names, what in changes:
        if names:
            yield case.evidence("identity", f"{spoken(names)} {what}", rank=rank, linked=case.speaks_of(names))
    for pair in event.untied:
        text = f"{' and '.join(pair)} were one parameter before the wrap and are two after it, trained separately"
        yield case.evidence("identity", text, rank=rank, linked=case.speaks_of(pair))
    overlaps = _overlaps(case, event)
    if overlaps and case.run.device != "cpu":
        when = event.when.replace("_", " the ")
        text = f"{' and '.join(overlaps[0])} share memory {when}: optimizers lose updates on CUDA"
        yield case.evidence("identity", text, rank=rank)
    elif overlaps and case.sharded and event.when == "before_wrap":
        text = f"{' and '.join(overlaps[0])} share memory before the wrap; FSDP splits them into separate tensors"
        yield case.evidence("identity", text, rank=rank)


def _overlaps(case: Case, event: Storage) -> list[tuple[str, str]]:
    """Pairs that the finding's statement names: an overlap elsewhere is another finding's."""
    return [pair for pair in event.overlaps if case.speaks_of(pair)]

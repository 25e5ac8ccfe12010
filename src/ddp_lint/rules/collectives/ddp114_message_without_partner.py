from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.divergence.frame import span_of
from ddp_lint.divergence.one_process import is_name_of_one_process, is_of_one_process
from ddp_lint.findings import Confidence, Label, RankTrace
from ddp_lint.messages.find import Hang, hangs
from ddp_lint.messages.meet import Waiting
from ddp_lint.messages.values import Message, Operation, Together, Wait
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.collectives.mismatch import is_meant, names_around
from ddp_lint.rules.triggers import Triggers

#: The last operations of a rank that are shown.
_SHOWN = 3


class MessageWithoutPartner(Rule):
    """A send or a receive waits for ever: its peer never makes the call that answers it.

    ## What it does

    Carries out what the ranks of a job of two, three and four processes send and receive, where the peers are known
    (constants, `rank + 1`, `(rank + 1) % world_size`, `1 - rank`), and finds ranks that never go on: a `send` without a
    `recv` on its peer, or the reverse; loops that send three times and receive four times; a receive from the rank
    itself; two ranks that both receive, or both send, before they do the other; a `barrier` or an `all_reduce` between
    the two on one side alone; lists for `batch_isend_irecv` that do not match.

    ## Why it breaks

    A message needs both ends: each `send` meets one `recv` of its peer, in their order. Rank 1's additional `recv`
    waits until the timeout of the process group, or for an error once rank 0 has ended. Measured with gloo on two ranks
    (torch 2.13): `recv` and `send` without a partner, `irecv(...).wait()`, four receives for three sends, one `irecv`
    too many in a batch and a second `recv_object_list` all end in "Timed out waiting for recv operation" or in a closed
    connection. A `send` does not return before its message is taken, however small it is: that both ranks send first
    hangs with 16 bytes, on gloo and on NCCL.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    part = torch.ones(4, device=device)
    if rank == 0:
        for step in range(3):
            dist.send(part, dst=1)
    elif rank == 1:
        for step in range(4):
            dist.recv(part, src=0)  # <- DDP114
    print(rank, part.sum().item())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    part = torch.ones(4, device=device)
    for step in range(3):
        if rank == 0:
            dist.send(part, dst=1)
        elif rank == 1:
            dist.recv(part, src=0)
    print(rank, part.sum().item())

    dist.destroy_process_group()
    ```

    ## When it is silent

    If any peer, or whether a rank sends at all, depends on what only the run knows: a parameter, received data, a
    process group's members. If the program ends in one of the jobs that it can run in. In functions with one end of a
    message alone (`send_forward`), whose callers pair them. Tags are not compared.

    ## How to confirm

    `ddp-lint verify train.py`: a rank waits in the send or receive, which its peer never answers.

    ## Fix safety

    No automatic fix: which of the two ranks is wrong is not to be seen.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#point-to-point-communication
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(communicating=True)
    oracles = ("sequence", "stall")

    def finish(self) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or is_of_one_process(self.module.file):
            return
        for hang in hangs(facts, project):
            message = hang.first.message
            place = message.seen_from(facts) if message is not None else None
            if message is None or place is None:
                continue
            around = names_around(place.lineno, facts.tree)
            if is_meant(self.module.file, around) or any(map(is_name_of_one_process, around)):
                continue
            self.report(
                span_of(facts, place),
                _headline(hang.first, message),
                labels=[(label.span, label.message) for label in _others(hang, facts)],
                notes=[*_counted(hang.first, hang), f"carried out for a job of {hang.size} ranks"],
                help=_remedy(hang.first, message),
                witness=_witness(hang),
            )


def _headline(first: Waiting, message: Message) -> str:
    call = f"`{_call(message)}`"
    if message.peer is None:
        return f"{call} on rank {first.rank} waits for ever: no rank sends to it any more"
    if message.peer == first.rank:
        return f"{call} on rank {first.rank} waits for the rank itself"
    if first.meanwhile is None:
        never = "receives it" if message.sends else "sends it"
        return f"{call} on rank {first.rank} waits for ever: rank {message.peer} never {never}"
    return (
        f"{call} on rank {first.rank} waits for ever: rank {message.peer} waits in `{_call(first.meanwhile)}` meanwhile"
    )


def _call(operation: Operation) -> str:
    return operation.message.text if isinstance(operation, Wait) else operation.text


def _remedy(first: Waiting, message: Message) -> str:
    if message.peer == first.rank:
        return "leave the rank itself out: copy the tensor"
    if first.meanwhile is None:
        return "make as many calls, under the same conditions, on the rank at the other end"
    if isinstance(first.meanwhile, Together):
        return "make the collective before the message on both ranks, or behind it on both"
    return "receive first on one of the two, or start all of them before the first wait(): `batch_isend_irecv`"


def _counted(first: Waiting, hang: Hang) -> Iterator[str]:
    """How many messages there are from the one to the other."""
    message = first.message
    if message is None or message.peer is None or message.peer == first.rank:
        return
    sender, receiver = (first.rank, message.peer) if message.sends else (message.peer, first.rank)
    sent = sum(m.sends and m.peer == receiver for m in hang.programs[sender].messages)
    received = sum(not m.sends and m.peer == sender for m in hang.programs[receiver].messages)
    if sent != received:
        yield f"rank {sender} sends {_times(sent)} to rank {receiver}, which receives {_times(received)} from it"


def _times(number: int) -> str:
    return {0: "nothing", 1: "once"}.get(number, f"{number} times")


def _others(hang: Hang, facts: ModuleFacts) -> Iterator[Label]:
    """Where the other ranks wait."""
    first = hang.first.message
    assert first is not None
    shown = {id(first.node)} if first.facts is facts else set[int]()
    for other in hang.waiting if first.facts is not facts else hang.waiting[1:]:
        operation = other.message or other.operation
        if id(operation.node) not in shown:
            shown.add(id(operation.node))
            yield Label(span_of(operation.facts, operation.node), f"rank {other.rank} waits here")


def _witness(hang: Hang) -> Iterator[RankTrace]:
    """What the rank and its peer do last."""
    first = hang.first
    left = {each.rank: each.operation for each in hang.waiting}
    for rank in dict.fromkeys([first.rank, first.peer if first.peer is not None else first.rank]):
        done = hang.programs[rank].operations
        until = done.index(left[rank]) if rank in left else len(done)
        steps = [_step(each, waits=each is left.get(rank)) for each in done[max(until - _SHOWN + 1, 0) : until + 1]]
        if rank not in left and first.message is not None:
            end = steps[-1].span if steps else span_of(first.message.facts, first.message.node)
            steps.append(Label(end, "ends"))
        yield RankTrace(f"rank {rank}", tuple(steps))


def _step(operation: Operation, *, waits: bool) -> Label:
    text = f"{'waits in' if waits else 'calls'} {_call(operation)}()"
    if isinstance(operation, Wait):
        text = f"{'waits for the work' if waits else 'has waited for the work'} of {_call(operation)}()"
    peer = operation.message.peer if isinstance(operation, Wait) else getattr(operation, "peer", None)
    return Label(span_of(operation.facts, operation.node), text if peer is None else f"{text} (rank {peer})")

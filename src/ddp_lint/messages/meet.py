"""Which ranks wait for ever: the operations of all ranks of a job, carried out as far as they can be."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from ddp_lint.messages.values import Message, Operation, Together, Wait


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A rank that waits for ever in an operation: for a message, or for the others at a collective."""

    rank: int
    operation: Operation
    #: Of a message the rank waits for: it and its peer.
    message: Message | None
    #: What the peer does for ever: another operation, or nothing because its program has ended.
    peer: int | None
    meanwhile: Operation | None


def waiting(programs: Sequence[Sequence[Operation]]) -> list[Waiting]:
    """The ranks that never end; empty where all of them do, and where it is not the messages that keep one."""
    job = _Job(programs)
    while job.advance():
        pass
    return job.left()


class _Job:
    def __init__(self, programs: Sequence[Sequence[Operation]]) -> None:
        self._programs = programs
        self._at = [0] * len(programs)
        self._posted: set[int] = set()
        self._done: set[int] = set()
        #: Messages that wait for their partner, by sender and receiver; of any sender by receiver.
        self._sent: dict[tuple[int, int], collections.deque[Message]] = collections.defaultdict(collections.deque)
        self._awaited: dict[tuple[int, int], collections.deque[Message]] = collections.defaultdict(collections.deque)
        self._of_any: dict[int, collections.deque[Message]] = collections.defaultdict(collections.deque)

    def advance(self) -> bool:
        moved = any(self._runs(rank) for rank in range(len(self._programs)))
        here = [self._operation(rank) for rank in range(len(self._programs))]
        if all(isinstance(operation, Together) for operation in here):
            self._at = [at + 1 for at in self._at]
            return True
        return moved

    def left(self) -> list[Waiting]:
        here = [self._operation(rank) for rank in range(len(self._programs))]
        if any(isinstance(operation, Together) for operation in here) and None in here:
            return []  # a collective that some ranks never call: another mistake
        found = []
        for rank, operation in enumerate(here):
            if operation is None:
                continue
            message = operation if isinstance(operation, Message) else None
            message = operation.message if isinstance(operation, Wait) else message
            peer = message.peer if message is not None else None
            found.append(Waiting(rank, operation, message, peer, here[peer] if peer is not None else None))
        return found if any(each.message is not None for each in found) else []

    def _operation(self, rank: int) -> Operation | None:
        at = self._at[rank]
        return self._programs[rank][at] if at < len(self._programs[rank]) else None

    def _runs(self, rank: int) -> bool:
        """Let a rank run until it waits; whether it moved."""
        moved = False
        while (operation := self._operation(rank)) is not None:
            if isinstance(operation, Together):
                break
            message = operation.message if isinstance(operation, Wait) else operation
            if isinstance(operation, Message) and id(message) not in self._posted:
                moved = True
                self._posted.add(id(message))
                self._post(rank, message)
            waits = isinstance(operation, Wait) or message.blocks
            if waits and id(message) not in self._done:
                break
            self._at[rank] += 1
            moved = True
        return moved

    def _post(self, rank: int, message: Message) -> None:
        if message.sends:
            assert message.peer is not None
            self._sent[rank, message.peer].append(message)
        elif message.peer is None:
            self._of_any[rank].append(message)
        else:
            self._awaited[message.peer, rank].append(message)
        self._match(rank if not message.sends else message.peer or 0)

    def _match(self, receiver: int) -> None:
        for sender in range(len(self._programs)):
            sent, awaited = self._sent[sender, receiver], self._awaited[sender, receiver]
            while sent and (awaited or self._of_any[receiver]):
                received = (awaited or self._of_any[receiver]).popleft()
                self._done |= {id(sent.popleft()), id(received)}

"""What the divergence analysis hands to the rules: the places where two ranks diverge."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

from ddp_lint.divergence.event_graph import Called, as_written
from ddp_lint.divergence.values import BY_RANK_OR_PLACE
from ddp_lint.findings import Confidence, Label, RankTrace, Span


class Kind(str, enum.Enum):
    """How the ranks diverge."""

    #: A collective that only the ranks on one side of a rank test reach.
    BRANCH = "rank-branch"
    #: The same, through an API whose name does not say that it communicates.
    IMPLICIT = "implicit-collective"
    #: A collective under a condition that differs with each rank's data, clock, files or exceptions.
    CONDITION = "data-condition"
    #: All ranks communicate, but in different orders.
    ORDER = "order"
    #: The same collective with another root or reduce operation, or with tensors that do not agree.
    ARGUMENT = "argument"
    #: A process group or mesh that not all ranks of the world create.
    GROUP = "new-group"
    #: A collective in a loop that ranks leave after different numbers of rounds.
    LOOP = "loop-count"
    #: Optimizer, scheduler or backward under a condition that differs between ranks.
    STEP = "optimizer-step"
    #: The wrapped model runs on some ranks only.
    FORWARD = "one-rank-forward"


class Meeting(enum.Enum):
    """What a rank that makes a forward by itself meets there."""

    #: It is another call, or the others wait in another one.
    NONE = "none"
    #: The next forward of the others.
    FORWARD = "forward"
    #: Nobody: without gradients a model is in evaluation mode, in which its layers share no statistics.
    NOBODY = "nobody"
    #: The function ends for the others: what its callers do next is not seen.
    END = "end"


#: Calls missed for the same reason that are shown with the first.
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """One point at which ranks of a group take part in different collectives.

    `span` is the collective call, or the call in the checked file that reaches it; `branch` is where the ranks diverge
    (the test of an `if`, the loop, the `try`), None where an argument alone differs. `op` is the collective's name
    (``all_reduce``), `call` the call as written at `span` (``self.save``), `group` a readable group ('' is the world),
    `cause` why the condition differs: 'rank', 'membership', 'failure' (of what only this rank does) or a cause of
    `knowledge.communication`; `description` the divergent value in words, for use after "depends on". `ranks` names the
    two sides of the witness, the side that communicates first. `when` is the condition under which an implicit
    collective communicates, '' for always; `evident` shows whether the code shows that this condition holds. `reason`
    distinguishes the kinds where one kind has several: for ARGUMENT 'root', 'reduce op', 'payload' or 'key' (the name
    of what is combined), for GROUP 'members' where each rank makes another group, for STEP the knowledge kind ('step'
    or 'backward'), 'decides' where all ranks step, each by a number of its own, or 'loose' where all go backward, but
    the loss of some is a tensor that they have just made.
    """

    kind: Kind
    span: Span
    op: str
    call: str
    confidence: Confidence
    #: Why the confidence is low, for a reader.
    doubt: str = ""
    branch: Span | None = None
    condition: str = ""
    cause: str = "rank"
    description: str = ""
    group: str = ""
    when: str = ""
    evident: bool = True
    reason: str = ""
    ranks: tuple[str, str] = ("rank 0", "rank 1")
    labels: tuple[Label, ...] = ()
    #: Those of the labels that lead from the call to the collective in a callee.
    way: tuple[Called, ...] = ()
    #: The calls that are missed for the same reason, each with its way.
    beside: tuple[Called, ...] = ()
    #: The call that the second of `ranks` reaches instead, as it is written; '' where it reaches none.
    instead: str = ""
    #: Whether the branch is a handler, which only a rank that has caught an exception enters.
    caught: bool = False
    #: Whether it is that rank which makes the call, and the others that miss it.
    called_in_handler: bool = False
    #: Whether the test is about the node: true on one rank of each, or on all ranks of one.
    by_node: bool = False
    #: Whether one of the compared ranks alone has the choice: the others make no such call whatever they choose.
    alone: bool = False
    #: What the forward that some ranks make alone meets (`replicas`).
    meets: Meeting = Meeting.NONE
    #: Whether the branch is a loop that ranks go round another number of times, which makes them diverge.
    rounds: bool = False
    #: Where the ranks that miss the call have left, if an early exit makes them diverge.
    exit: Span | None = None
    #: Whether that exit is a `continue`, which ends the round alone.
    skips: bool = False
    #: What the program itself says as it leaves ("remote sync failed"), '' where it says nothing.
    excuse: str = ""
    #: Whether the test of the exit is for NaN.
    sees_nan: bool = False
    witness: tuple[RankTrace, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def by_rank_or_place(self) -> bool:
        return self.cause in BY_RANK_OR_PLACE

    def with_similar(self, others: Iterable[Mismatch]) -> Mismatch:
        """This mismatch with labels at calls that one side misses for the same reason; a note counts those left out.

        A call that only leads to one of the others is that one again, seen by the caller.
        """
        others = [other for other in others if other.confidence is not Confidence.LOW]
        shown = {label.span for label in self.labels} | {self.span}
        missed = {self.span, *(other.span for other in others)}
        alike = {
            other.span: other
            for other in others
            if other.span.path == self.span.path
            and other.span not in shown
            and not any(label.span in missed for label in other.way)
        }
        labels = [
            Label(span, f"{other.ranks[1]} misses {as_written(other.call, other.op)}, too")
            for span, other in sorted(alike.items())[:_SHOWN]
        ]
        left_out = len(alike) - len(labels)
        note = (f"{left_out} more calls are skipped in the same way",) if left_out else ()
        beside = (site for other in alike.values() for site in (Called(other.span, "", other.call), *other.way[:-1]))
        return dataclasses.replace(
            self, labels=(*self.labels, *labels), notes=(*self.notes, *note), beside=(*self.beside, *beside)
        )

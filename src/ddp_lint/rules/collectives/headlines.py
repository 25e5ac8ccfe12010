"""What a mismatch means for the user, in one sentence, and what to write instead.

One analysis finds all mismatches; the words follow from its typed outcome: the kind, the cause, the exit.
"""

from __future__ import annotations

import pathlib

from ddp_lint.divergence import Kind, Mismatch
from ddp_lint.divergence.event_graph import as_written

_SKIP = "let all ranks skip the iteration together: all_reduce the decision before the `continue` (MAX: any rank skips)"
_EXIT = "let all ranks leave together: broadcast the decision before the exit, or raise an error, which ends the job"
#: Cause to what a condition depends on.
_DEPENDS = {
    "clock": "each rank's own clock",
    "data": "each rank's own data",
    "file": "the time and the node at which each rank looks",
    "future": "each rank's own background work",
    "host": "each rank's own host",
    "made": "which rank looks first",
    "memory": "each rank's own memory",
    "random": "each rank's own random numbers",
    "signal": "each rank's own signals",
}
#: Which rank a handler is for, by cause.
_CATCHES = {
    "memory": "a rank that runs out of memory in this `try`",
    "data": "a rank whose batch raises in this `try`",
    "failure": "a rank whose own work fails in this `try`",
}
_ARGUMENTS = {
    "root": (
        "has a different root on each rank: every rank sends its own data, or all wait",
        "name one root, e.g. src=0; `group_src` counts within the group",
    ),
    "reduce op": (
        "reduces with one operation on {first} and another on {second}: the result is meaningless",
        "pass the same reduce operation on all ranks",
    ),
    "payload": (
        "gets tensors of different shapes on the ranks: it hangs, aborts or returns wrong numbers",
        "exchange the sizes first and pad to the largest, or gather objects",
    ),
    "key": (
        "combines values of different names: each rank takes the name from its own data",
        "log the same names on all ranks, in the same order; sum for each name, and count, where a rank may have none",
    ),
}


def headline(mismatch: Mismatch) -> str:
    """What goes wrong, and where."""
    return _HEADLINES[mismatch.kind](mismatch)


def remedy(mismatch: Mismatch) -> str:
    """What to write instead."""
    if mismatch.exit is not None and mismatch.kind is not Kind.ARGUMENT:
        return _SKIP if mismatch.skips else _EXIT
    return _REMEDIES[mismatch.kind](mismatch)


def facts(mismatch: Mismatch) -> tuple[str, ...]:
    """Further facts, one line each: when the call communicates, which rank the third one is."""
    found = []
    if mismatch.when and (mismatch.kind is not Kind.IMPLICIT or mismatch.exit is not None):
        found.append(f"it communicates {mismatch.when}")
    if mismatch.group:
        found.append(f"the ranks of {mismatch.group} have to take part")
    if mismatch.by_node and "rank 8" in mismatch.ranks:
        found.append("rank 8 is the first rank of a second node: its local rank is 0")
    return (*found, *mismatch.notes)


# ---- a call that some ranks miss


def _missed(mismatch: Mismatch) -> str:
    """A collective that some ranks reach and others do not, because of a rank test."""
    waits, missing = mismatch.ranks
    what = called(mismatch)
    if mismatch.exit is not None:
        why = f" ({mismatch.excuse})" if mismatch.excuse else ""
        hangs = f"the others hang in {what}" if mismatch.way else "the others hang here"
        return f"if {missing} {_leaves(mismatch)}{why}, {hangs}"
    if mismatch.by_node and mismatch.instead and not mismatch.when:
        test = f"`{mismatch.condition}`"
        enters = f"{test} tests local_rank, so one rank of every node enters"
        return f"{enters}: {missing} runs `{mismatch.instead}()` while {waits} waits here"
    if mismatch.when:
        return f"{_only(mismatch)} reaches {what}; it hangs {mismatch.when}"
    return f"{_only(mismatch)} reaches {what} and waits {'there' if mismatch.way else 'here'}: {missing} never joins"


def _forward(mismatch: Mismatch) -> str:
    if not mismatch.by_rank_or_place:
        return _condition(mismatch)
    hangs = f"it hangs {mismatch.when}" if mismatch.when else f"{mismatch.ranks[1]} never joins"
    if mismatch.exit is not None:
        return f"if {mismatch.ranks[1]} {_leaves(mismatch)}, the others hang in the forward of {called(mismatch)}"
    return f"{_only(mismatch)} runs the forward of {called(mismatch)}, which communicates: {hangs}"


def _condition(mismatch: Mismatch) -> str:
    what, test = called(mismatch), f"`{mismatch.condition}`"
    if mismatch.caught:
        who = _CATCHES.get(mismatch.cause, f"a rank that ends in {test}")
        if mismatch.called_in_handler:
            return f"only {who} calls {what}, and waits in it"
        return f"{who} skips {what}; the others wait in it"
    if mismatch.rounds:
        return f"the loop over {test} runs a different number of times on each rank: the longest hangs in {what}"
    if not mismatch.condition:
        return f"which ranks reach {what} depends on {_depends(mismatch)}: they wait for the others"
    if mismatch.exit is not None:
        return f"{_leaver(mismatch)} {_leaves(mismatch)} and skips {what}; the others wait in it"
    return f"{test} may differ between ranks: one side hangs in {what}"


def _only(mismatch: Mismatch) -> str:
    """Who gets there: "only rank 0", or "not every rank"."""
    if mismatch.by_node:
        return "no first rank of a node" if mismatch.ranks[0] == "rank 1" else "only the first rank of a node"
    if mismatch.ranks[0] == "rank 0":
        return "only rank 0"
    if mismatch.ranks == ("rank 1", "rank 0"):
        return "every rank but rank 0"
    return "not every rank"


def _leaves(mismatch: Mismatch) -> str:
    assert mismatch.exit is not None
    return f"{'skips the iteration' if mismatch.skips else 'leaves'} at line {mismatch.exit.line}"


def _leaver(mismatch: Mismatch) -> str:
    if mismatch.by_rank_or_place:
        return mismatch.ranks[1]
    return "a rank that sees a NaN" if mismatch.sees_nan else f"if `{mismatch.condition}` differs, a rank"


def _depends(mismatch: Mismatch) -> str:
    return "the rank" if mismatch.cause == "rank" else _DEPENDS.get(mismatch.cause, "what each rank knows alone")


def called(mismatch: Mismatch) -> str:
    """The call as written; the collective itself, with its place, where a callee has it."""
    last = mismatch.way[-1] if mismatch.way else None
    text = last.callee if last is not None else mismatch.call
    written = text if mismatch.kind is Kind.FORWARD else as_written(text, mismatch.op)
    place = f" ({pathlib.PurePosixPath(last.span.path).name}:{last.span.line})" if last is not None else ""
    return f"`{written}`{place}"


# ---- other kinds


def _order(mismatch: Mismatch) -> str:
    first, second = mismatch.ranks
    what = called(mismatch)
    if mismatch.cause == "order":
        return f"the order here differs between processes: {what} on one rank pairs with another call of its peer"
    if mismatch.reason == "tensors":
        return f"{what} gets the tensors in another order on {second}: the wrong ones are combined, without an error"
    return f"{what} comes first on {first}, another collective on {second}: the two pair, or both wait"


def _argument(mismatch: Mismatch) -> str:
    first, second = mismatch.ranks
    return f"{called(mismatch)} {_ARGUMENTS[mismatch.reason][0].format(first=first, second=second)}"


def _group(mismatch: Mismatch) -> str:
    if mismatch.reason == "members":
        return f"{called(mismatch)} creates a different group on each rank, but every rank has to create every group"
    if not mismatch.by_rank_or_place:
        return _condition(mismatch)
    return f"{_only(mismatch)} calls {called(mismatch)}, but every rank of the world has to call it, member or not"


def _loop(mismatch: Mismatch) -> str:
    what = called(mismatch)
    if mismatch.exit is not None:
        line, depends = mismatch.exit.line, _depends(mismatch)
        return f"the exit from the loop at line {line} depends on {depends}: the others hang in {what}"
    loop = f"the loop over `{mismatch.condition}`" if mismatch.condition else "the loop"
    return f"ranks leave {loop} after different numbers of iterations: the longest hangs in {what}"


def _step(mismatch: Mismatch) -> str:
    what = called(mismatch)
    backward = mismatch.reason == "backward"
    after = "the others hang in its all_reduce" if backward else "the replicas drift apart"
    if mismatch.reason == "decides":
        return f"{what} depends on {_depends(mismatch)}: {after}"
    if mismatch.reason == "loose":
        return f"where `{mismatch.condition}` differs, a rank's loss has no gradients: the others hang in {what}"
    if mismatch.rounds:
        after = "one hangs in the all_reduce of its backward" if backward else after
        return f"the loop over `{mismatch.condition}` runs a different number of times on each rank: {after}"
    if mismatch.by_rank_or_place and mismatch.exit is None:
        return f"{_only(mismatch)} runs {what}: {after}"
    if mismatch.exit is not None:
        return f"{_leaver(mismatch)} {_leaves(mismatch)} and skips this {'backward' if backward else 'step'}: {after}"
    if mismatch.caught:
        who = _CATCHES.get(mismatch.cause, f"a rank that ends in `{mismatch.condition}`")
        return f"{f'only {who} runs' if mismatch.called_in_handler else f'{who} skips'} {what}: {after}"
    return f"`{mismatch.condition}` may differ between ranks: where one skips {what}, {after}"


_HEADLINES = {
    Kind.BRANCH: _missed,
    Kind.IMPLICIT: _missed,
    Kind.FORWARD: _forward,
    Kind.CONDITION: _condition,
    Kind.ORDER: _order,
    Kind.ARGUMENT: _argument,
    Kind.GROUP: _group,
    Kind.LOOP: _loop,
    Kind.STEP: _step,
}


# ---- what to write instead


def _outside(mismatch: Mismatch) -> str:
    test = f"`{mismatch.condition}`" if mismatch.condition else "the rank test"
    return f"call it on all ranks of the group, outside {test}; keep only work of one rank under it (print, write)"


def _forward_on_all(mismatch: Mismatch) -> str:
    if mismatch.by_rank_or_place:
        return "evaluate on all ranks; under DDP a single rank may call the inner module, `model.module(...)`"
    return (
        "run it equally often on all ranks: on an input of zeros where a rank has none (times 0 into the loss), or "
        "until all are done (all_reduce a flag)"
    )


def _one_order(mismatch: Mismatch) -> str:
    if mismatch.cause == "order":
        return "iterate over a sorted sequence, so that all ranks issue their collectives in the same order"
    return "issue the collectives in the same order on all ranks, outside the rank test"


def _agreed(mismatch: Mismatch) -> str:
    if mismatch.cause == "file":
        return "let rank 0 look and broadcast the answer, then branch on it"
    if mismatch.cause == "exception":
        return "store the failure, all_reduce it after the handler, then let all ranks raise or continue together"
    return "agree first: all_reduce the decision (MAX for any rank, MIN for all) or broadcast rank 0's, then branch"


def _together(mismatch: Mismatch) -> str:
    if mismatch.reason == "decides":
        return "average the number over the ranks (all_reduce) before the step"
    if mismatch.reason == "loose":
        return "make the loss without targets from the model's output, too: `output.sum() * 0`"
    if mismatch.rounds:
        return "give all ranks the same number of iterations (pad the shares), or wrap the loop in `Join`"
    if mismatch.by_rank_or_place:
        return "run it on all ranks, outside the rank test"
    return "agree on the condition first (all_reduce it), then let all ranks run or skip it together"


_REMEDIES = {
    Kind.BRANCH: _outside,
    Kind.IMPLICIT: lambda _: "call it on all ranks; it writes on one rank what has to be written once",
    Kind.FORWARD: _forward_on_all,
    Kind.CONDITION: _agreed,
    Kind.ORDER: _one_order,
    Kind.ARGUMENT: lambda mismatch: _ARGUMENTS[mismatch.reason][1],
    Kind.GROUP: lambda _: (
        "create every group on every rank, in the same order, and let each rank keep the one that it belongs to"
    ),
    Kind.LOOP: lambda _: (
        "move it after the loop, or agree in each iteration whether to continue (all_reduce a flag); for DDP see `Join`"
    ),
    Kind.STEP: _together,
}

"""What a parting means for the user, in one sentence, and what to write instead.

One analysis finds all partings; what is said follows from its typed outcome: the kind, the cause, the exit.
"""

from __future__ import annotations

import pathlib

from ddp_lint.divergence import Kind, Parting

_SKIP = "let all ranks skip the round together: all_reduce the decision before the `continue` (MAX: any rank skips)"
_EXIT = "let all ranks leave together: broadcast the decision before the exit, or raise an error, which ends the job"
#: What is assigned, not called.
_LEARNING_RATE = "learning rate"
#: Cause to what a condition depends on.
_DEPENDS = {
    "clock": "each rank's own clock",
    "data": "each rank's own data",
    "file": "when and where each rank looks",
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
    "data": "a rank whose own batch is refused in this `try`",
    "failure": "a rank whose own work fails in this `try`",
}
_ARGUMENTS = {
    "root": (
        "names another root on each rank: every rank sends its own data, or all wait",
        "name one root, e.g. src=0; `group_src` counts within the group",
    ),
    "reduce op": (
        "reduces with one operation on {first} and another on {second}: the result means nothing",
        "pass the same reduce operation on all ranks",
    ),
    "payload": (
        "gets a tensor of another shape on each rank: it hangs, aborts or returns wrong numbers",
        "exchange the sizes first and pad to the largest, or gather objects",
    ),
}


def headline(parting: Parting) -> str:
    """What goes wrong, and where."""
    return _HEADLINES[parting.kind](parting)


def remedy(parting: Parting) -> str:
    """What to write instead."""
    if parting.exit is not None and parting.kind is not Kind.ARGUMENT:
        return _SKIP if parting.skips else _EXIT
    return _REMEDIES[parting.kind](parting)


def facts(parting: Parting) -> tuple[str, ...]:
    """Further facts, one line each: when the call communicates, which rank the third one is."""
    found = []
    if parting.when and (parting.kind is not Kind.IMPLICIT or parting.exit is not None):
        found.append(f"it communicates {parting.when}")
    if parting.group:
        found.append(f"the ranks of {parting.group} have to take part")
    if parting.by_node and "rank 8" in parting.ranks:
        found.append("rank 8 stands for the first rank of a second node, with local rank 0")
    return (*found, *parting.notes)


# ---- a call that some ranks miss


def _missed(parting: Parting) -> str:
    """A collective that some ranks reach and others do not, because of a rank test."""
    waits, missing = parting.ranks
    what = called(parting)
    if parting.exit is not None:
        why = f" ({parting.excuse})" if parting.excuse else ""
        hangs = f"the others hang in {what}" if parting.way else "the others hang here"
        return f"if {missing} {_leaves(parting)}{why}, {hangs}"
    if parting.by_node and parting.instead:
        test = f"`{parting.condition}`"
        enters = f"{test} tests local_rank, so one rank of every node enters"
        return f"{enters}: {missing} runs `{parting.instead}()` while {waits} waits here"
    if parting.when:
        return f"{_only(parting)} reaches {what}; it hangs {parting.when}"
    return f"{_only(parting)} reaches {what} and waits {'there' if parting.way else 'here'}: {missing} never joins"


def _forward(parting: Parting) -> str:
    if parting.cause not in ("rank", "membership"):
        return _condition(parting)
    hangs = f"it hangs {parting.when}" if parting.when else f"{parting.ranks[1]} never joins"
    if parting.exit is not None:
        return f"if {parting.ranks[1]} {_leaves(parting)}, the others hang in the forward of {called(parting)}"
    return f"{_only(parting)} runs the forward of {called(parting)}, which communicates: {hangs}"


def _condition(parting: Parting) -> str:
    what, test = called(parting), f"`{parting.condition}`"
    if parting.caught:
        who = _CATCHES.get(parting.cause, f"a rank that ends in {test}")
        return f"{who} skips {what}; the others wait in it"
    if parting.rounds:
        return f"ranks go round the loop over {test} unequally often: the longest waits in {what}"
    if not parting.condition:
        return f"which ranks reach {what} depends on {_depends(parting)}: they wait for the others"
    if parting.exit is not None:
        return f"{_leaver(parting)} {_leaves(parting)} and skips {what}; the others wait in it"
    return f"{test} may differ between ranks: those in {what} wait for the others"


def _only(parting: Parting) -> str:
    """Who gets there: "only rank 0", or "not every rank"."""
    if parting.by_node:
        return "no first rank of a node" if parting.ranks[0] == "rank 1" else "only the first rank of a node"
    if parting.ranks[0] == "rank 0":
        return "only rank 0"
    if parting.ranks == ("rank 1", "rank 0"):
        return "every rank but rank 0"
    return "not every rank"


def _leaves(parting: Parting) -> str:
    assert parting.exit is not None
    return f"{'skips the round' if parting.skips else 'returns'} at line {parting.exit.line}"


def _leaver(parting: Parting) -> str:
    if parting.cause in ("rank", "membership"):
        return parting.ranks[1]
    return "a rank that sees a NaN" if parting.sees_nan else f"by its own `{parting.condition}` a rank"


def _depends(parting: Parting) -> str:
    return "the rank" if parting.cause == "rank" else _DEPENDS.get(parting.cause, "what each rank knows alone")


def called(parting: Parting) -> str:
    """The call as written; the collective itself, with its place, where a callee has it."""
    last = parting.way[-1] if parting.way else None
    text = last.callee if last is not None else parting.call
    brackets = "" if parting.op == _LEARNING_RATE or parting.kind is Kind.FORWARD else "()"
    place = f" ({pathlib.PurePosixPath(last.span.path).name}:{last.span.line})" if last is not None else ""
    return f"`{text}{brackets}`{place}"


# ---- other kinds


def _order(parting: Parting) -> str:
    first, second = parting.ranks
    what = called(parting)
    if parting.cause == "order":
        return f"each process has an order of its own here: {what} on one rank pairs with another call of its peer"
    if parting.reason == "tensors":
        return f"{what} gets the same tensors in another order on {second}: wrong ones pair, without an error"
    return f"{what} comes first on {first}, another collective on {second}: the two pair, or both wait"


def _argument(parting: Parting) -> str:
    first, second = parting.ranks
    return f"{called(parting)} {_ARGUMENTS[parting.reason][0].format(first=first, second=second)}"


def _group(parting: Parting) -> str:
    if parting.reason == "members":
        return f"{called(parting)} makes another group on each rank, where every rank has to make every group"
    if parting.cause not in ("rank", "membership"):
        return _condition(parting)
    return f"{_only(parting)} calls {called(parting)}, which every rank of the world has to, members or not"


def _loop(parting: Parting) -> str:
    what = called(parting)
    if parting.exit is not None:
        line, depends = parting.exit.line, _depends(parting)
        return f"a rank that leaves the loop at line {line} by {depends} lets the others hang in {what}"
    loop = f"the loop over `{parting.condition}`" if parting.condition else "the loop"
    return f"ranks leave {loop} after different numbers of rounds: the longest hangs in {what}"


def _step(parting: Parting) -> str:
    what = called(parting)
    backward = parting.reason == "backward"
    after = "the others hang in its all_reduce" if backward else "the replicas drift apart"
    if parting.reason == "decides":
        return f"{what} decides by {_depends(parting)}: {after}"
    if parting.rounds:
        after = "one hangs in the all_reduce of its backward" if backward else after
        return f"ranks go round the loop over `{parting.condition}` unequally often: {after}"
    if parting.cause in ("rank", "membership") and parting.exit is None:
        return f"{_only(parting)} runs {what}: {after}"
    if parting.exit is not None:
        return f"{_leaver(parting)} {_leaves(parting)} and skips this {'backward' if backward else 'step'}: {after}"
    if parting.caught:
        who = _CATCHES.get(parting.cause, f"a rank that ends in `{parting.condition}`")
        return f"{who} skips {what}: {after}"
    return f"`{parting.condition}` may differ between ranks: where one skips {what}, {after}"


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


def _outside(parting: Parting) -> str:
    test = f"`{parting.condition}`" if parting.condition else "the rank test"
    return f"call it on all ranks of the group, outside {test}; keep under it what one rank does alone (print, write)"


def _one_order(parting: Parting) -> str:
    if parting.cause == "order":
        return "walk a sorted sequence, so that all ranks issue their collectives in one order"
    return "issue the collectives in one order on all ranks, outside the rank test"


def _agreed(parting: Parting) -> str:
    if parting.cause == "file":
        return "let rank 0 look and broadcast the answer, then branch on it"
    if parting.cause == "exception":
        return "note the failure, let all ranks reduce it behind the handler, then raise or go on together"
    return "agree first: all_reduce the decision (MAX for any rank, MIN for all) or broadcast rank 0's, then branch"


def _together(parting: Parting) -> str:
    if parting.reason == "decides":
        return "average the number over the ranks (all_reduce) before the step"
    if parting.rounds:
        return "give all ranks as many rounds (pad the shares to one length), or wrap the loop in `Join`"
    if parting.cause in ("rank", "membership"):
        return "run it on all ranks, outside the rank test"
    return "agree on the condition first (all_reduce it), then let all ranks run or skip it together"


_REMEDIES = {
    Kind.BRANCH: _outside,
    Kind.IMPLICIT: lambda _: "call it on all ranks; it lets one rank alone write what has to be written once",
    Kind.FORWARD: lambda _: (
        "evaluate on all ranks; under DDP one rank alone may call the module inside, `model.module(...)`"
    ),
    Kind.CONDITION: _agreed,
    Kind.ORDER: _one_order,
    Kind.ARGUMENT: lambda parting: _ARGUMENTS[parting.reason][1],
    Kind.GROUP: lambda _: (
        "make every group on every rank, in one order, and let each rank keep the one that it belongs to"
    ),
    Kind.LOOP: lambda _: (
        "move it behind the loop, or agree in each round on going on (all_reduce a flag); for DDP see `Join`"
    ),
    Kind.STEP: _together,
}

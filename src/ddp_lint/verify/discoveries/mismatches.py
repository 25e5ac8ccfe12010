"""Collectives of the ranks that do not match, and why."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.branches import (
    asked_anew,
    between,
    joined,
    left_loop,
    left_while_received,
    made_of,
    on_the_way_out,
    passed_by,
    paths_apart,
    rounds_apart,
    unlike_messages,
    unlike_root,
)
from ddp_lint.verify.discoveries._evidence import evidence_of
from ddp_lint.verify.discoveries.waiting import stuck_elsewhere
from ddp_lint.verify.match import Kind, Mismatch, describe, place, walked_apart
from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.results import Discovery, Evidence, Examined
from ddp_lint.verify.trace import Call, Collective, Exit

#: What to do where one rank has left a loop, and where the ranks are in different rounds or under different conditions.
_EQUALLY_OFTEN = (
    "run it the same number of times on all ranks: equally many batches, or a condition on a value that all ranks have "
    "(the result of an all_reduce)"
)
SAME_CALLS = "make the same calls in the same order on all ranks, independent of their data"
LUCK = "tensors of different sizes met: gloo aborts, NCCL hangs or returns wrong values"
#: Cause and fix where one line is given different tensors.
_UNLIKE_TENSORS = (
    "one line got different tensors: their source (a batch, a model) differs between the ranks",
    "give every rank the same shape and dtype (pad to the largest), or exchange the sizes first",
)
#: Cause where the same calls of several lines come in another order on each rank.
_UNLIKE_TURNS = "the ranks make the same calls in a different order: numbers with different meanings are summed"
#: Cause and fix where ranks go through the same names in different orders.
_UNLIKE_NAMES = (
    "each rank iterates over the same names in a different order (that of their first use, or that of a set): "
    "numbers with different meanings are summed",
    "iterate over them in the same order on all ranks: sorted(names)",
)
#: Cause and fix where one line moves other parameters on each rank.
_UNLIKE_ORDER = (
    "each rank has the tensors in a different order, because the order of a set differs between processes",
    "iterate over them in the same order on all ranks: sorted(names), or that of named_parameters()",
)
#: What to do where one rank receives more often than another one sends.
_AS_MANY = "send and receive equally often: let both sides count alike, or send the number first"
#: What to do where the ranks' models are not the same.
_ONE_MODEL = "build the same model on all ranks: decide its structure by values that all ranks share"
#: What to do where each rank names another one that sends.
_ONE_ROOT = "agree on it first: all_gather the input of the decision, and let all ranks choose from that"
#: What to do where a message and the tensor for it are of different size.
_FITTING = (
    "send and receive the same shape: divide the batch evenly (drop the rest, or pad it), or send the shape first"
)
#: What to do where ranks communicate as an object is let go of, and where they do inside of `Join`.
_BY_NAME = "communicate in a method that all ranks call, such as the __exit__ of a context manager"
_OUTSIDE = "communicate after the Join, or end all ranks together: Join(..., throw_on_early_termination=True)"
#: What to do where a rank communicates amid an exception, and where the loss decides how often gradients are averaged.
_LET_PASS = (
    "communicate only without an exception (`if exc_type is None`): the exception then ends the job on all ranks"
)
_ONE_LOSS = "all_reduce the loss (and the gradients) in it, so that all ranks search equally, or use no line search"
#: What the calls that matched and the source at their stacks show by themselves, and what to do then.
_BY_THE_CALLS = (
    (joined, _OUTSIDE), (on_the_way_out, _LET_PASS), (unlike_root, _ONE_ROOT), (asked_anew, _ONE_LOSS)
)  # fmt: skip
#: Cause and fix where the sizes of an all_to_all do not fit.
_SPLITS = (
    "the size that a rank expects from another is not the size that it sends",
    "exchange the sizes first: an all_to_all_single of how many go to each rank says how many come from it",
)
#: Cause and fix where ranks send and receive with unlike tags, and where they use several groups in unlike orders.
_TAGS = (
    "a message is received with the tag that it was sent with, and waits for ever otherwise",
    "use the same tag on both sides",
)
_CROSSED = (
    "each of these ranks waits, in a call on one group, for a rank that waits in a call on another group",
    "use the groups in the same order on all ranks",
)
#: The rule of a group that not all ranks create.
_OWN_GROUPS = "DDP106"


def mismatched(examined: Examined, first: Mismatch) -> Discovery:
    stuck = stuck_elsewhere(examined, first)
    if stuck is not None:
        return stuck
    origin = examined.origin(first)
    sites = {rank: place(call) for rank, call in origin.calls.items() if call is not None}
    known = [(rank, site) for rank, site in sites.items() if site[1]]
    rank, (path, line) = known[0] if known else (None, ("", 0))
    evidence = Evidence(
        examined.run.wrap, rank, "sequence", str(first), shown(path) if path else "", line, model=examined.run.model
    )
    if first.own_groups:
        return _own_groups(examined, first, evidence)
    why = cause_and_fix(examined, origin)
    if not why[0] and len(set(sites.values())) == 1 and first.kind in (Kind.SHAPE, Kind.DTYPE, Kind.BUFFER):
        why = _UNLIKE_ORDER if first.kind is Kind.BUFFER else _UNLIKE_TENSORS
    message = f"the ranks call different collectives: {since_origin(origin, first)}"
    return Discovery("mismatch", message, "", *why, evidence=(evidence,))


def led_to(examined: Examined, first: Mismatch, error: Discovery) -> Discovery:
    """Calls that met although they have nothing to do with each other, and the error that came of it."""
    rank, (path, line) = next((rank, place(call)) for rank, call in first.calls.items() if call is not None)
    evidence = Evidence(examined.run.wrap, rank, "sequence", str(first), shown(path), line, model=examined.run.model)
    message = f"the ranks call different collectives: {first}: these matched by chance; then {error.message}"
    return Discovery("mismatch", message, "", *cause_and_fix(examined, first), evidence=(evidence,))


def since_origin(origin: Mismatch, first: Mismatch) -> str:
    """A mismatch in words, behind the calls that met by luck before it."""
    return str(first) if origin is first else f"{origin}: these matched by chance; then {first}"


def _own_groups(examined: Examined, first: Mismatch, evidence: Evidence) -> Discovery:
    """A group that is made by its members alone: the ranks no longer count their groups alike."""
    made = {rank: call for rank, call in first.calls.items() if call is not None and call.op == "new_group"}
    if first.kind is Kind.MEMBERS:
        calls = ", ".join(f"rank {rank} calls {describe(call)}" for rank, call in made.items())
        message = f"the ranks create different groups (line {evidence.line}): {calls}"
        why = "groups are named by a counter: these have the same name, and their members connect to the wrong peers"
    else:
        others = ", ".join(str(rank) for rank in first.calls if rank not in made)
        message = (
            f"new_group is called by rank {', '.join(map(str, made))} and not by rank {others}: {first.description}"
        )
        why = "; ".join(filter(None, (between(first), "all ranks must create each group, members or not")))
    if examined.completed:
        message += "; this run completed, the next group that the ranks make will not fit"
    fix = "create all groups in the same order on all ranks, or pass use_local_synchronization=True"
    return Discovery("mismatch", message, _OWN_GROUPS, why, fix, (evidence,))


def cause_and_fix(examined: Examined, first: Mismatch) -> tuple[str, str]:
    """Cause and fix of a mismatch, as far as the calls and the source above them show it."""
    for outcome in examined.run.ranks:
        left = outcome.trace.last(Exit)
        if outcome.rank in first.absent and left is not None and left.site is not None:
            place_of = f"{shown(left.site.path)}:{left.site.line}"
            fix = "let all ranks leave together: agree on it (all_reduce a flag), or raise an error, which ends the job"
            return f"rank {outcome.rank} left by {left.how}({left.status}) in {left.site.function} ({place_of})", fix
    if first.direct:
        return _why_messages(examined, first)
    if first.kind is Kind.SPLITS:
        return _SPLITS
    if first.kind is Kind.CROSSED:
        return "; ".join(filter(None, (_CROSSED[0], between(first)))), _CROSSED[1]
    let_go = next((rank for rank, call in first.calls.items() if call is not None and _let_go(call)), None)
    if let_go is not None:
        others = ", ".join(str(rank) for rank in first.calls if rank != let_go)
        text = f"rank {let_go} is in a __del__, which runs when the last reference to the object goes: rank {others} "
        return f"{text}may hold one longer, or have let go of it before", _BY_NAME
    made = made_of(first)
    if made:
        return made, _UNLIKE_TENSORS[1]
    built = _unlike_models(examined, first)
    if built:
        return built, _ONE_MODEL
    known = next(((text, fix) for explain_calls, fix in _BY_THE_CALLS if (text := explain_calls(first))), None)
    if known is not None:
        return known
    earlier = examined.before(first)
    apart = rounds_apart(first, earlier)
    rounds = apart.text if apart is not None else ""
    branch = between(first)
    skipped = apart is not None and apart.skips  # a rank skipped the call in a round, and has left no loop too early
    over = left_loop(first, earlier) if not branch and not skipped else None
    if apart is not None and apart.inner is not None and not branch and (over is None or over.line != apart.inner.line):
        over = apart.inner
    loop = over.text if over is not None else ""
    passed = passed_by(first, earlier) if not (branch or loop or rounds) else ""
    cause = "; ".join(filter(None, (branch or loop or passed, rounds)))
    if loop:
        return cause, _EQUALLY_OFTEN
    return cause, SAME_CALLS if passed or rounds else ""


def _why_messages(examined: Examined, first: Mismatch) -> tuple[str, str]:
    """The same where ranks send to each other."""
    if first.kind is Kind.TAG:
        return _TAGS
    calls = [call for call in first.calls.values() if call is not None]
    if len(calls) > 1 and all(call.op == "send" for call in calls):
        early = ": wait() right behind isend() makes a send of it" if all(call.asynchronous for call in calls) else ""
        fix = "receive first on one of them, or start all of them before the first wait(): batch_isend_irecv()"
        return f"each sends first and waits until the other one receives{early}", fix
    streams = {one.rank: tuple(one.trace.of(Collective)) for one in examined.run.ranks}
    ended = left_while_received(first, streams)
    if ended:
        return ended, _AS_MANY
    if len(calls) > 1 and all(call.op == "recv" for call in calls):
        return "each receives first and waits for what the other one sends afterwards", "send first on one of them"
    return misled(examined)[1:]


def misled(examined: Examined) -> tuple[str, str, str]:
    """Messages that no longer belong together, or do not fit, which an error of one rank may come of."""
    unlike = next((one for one in examined.mismatches if one.direct and one.kind is Kind.SHAPE), None)
    if unlike is not None:
        return "", f"a message does not fill the tensor that it is received into: {unlike.description}", _FITTING
    splits = next((one for one in examined.mismatches if one.kind is Kind.SPLITS), None)
    if splits is not None:
        return "", f"{_SPLITS[0]}: {splits.description}", _SPLITS[1]
    cause = unlike_messages({one.rank: tuple(one.trace.of(Collective)) for one in examined.run.ranks})
    return "", cause, "send and receive equally often in each iteration" if cause else ""


def _unlike_models(examined: Examined, first: Mismatch) -> str:
    """Of a call in a module that is of another class on another rank: the models that were wrapped are not the same."""
    inside = {
        call.module for call in first.calls.values() if call is not None and call.phase in ("forward", "backward")
    }
    built = {one.rank: [c for c in one.trace.of(Call) if c.name == "wrapped"] for one in examined.run.ranks}
    for models in zip(*built.values(), strict=False):
        classes = dict(zip(built, [model.arguments["classes"] for model in models], strict=True))
        for name in sorted(inside & set.union(*map(set, classes.values()))):
            found = {rank: of.get(name, "nothing") for rank, of in classes.items()}
            if len(set(found.values())) > 1:
                kinds = " and ".join(f"{kind} on rank {rank}" for rank, kind in found.items())
                where = f" (wrapped at line {models[0].site.line})" if models[0].site is not None else ""
                return f"the ranks have built different models{where}: `{name}` is {kinds}"
    return ""


def _let_go(call: Collective) -> bool:
    return any(frame.function == "__del__" for frame in call.frames)


def in_another_order(examined: Examined) -> Iterator[Discovery]:
    """Sums of different names that met, in a run whose calls all fit."""
    streams = {one.rank: tuple(one.trace.of(Collective)) for one in examined.run.ranks}
    found = walked_apart(streams) if examined.completed and not examined.mismatches else None
    if found is not None:
        (rank, one), (other, another) = found.one, found.other
        message = f"{one.api or one.op} of rank {rank} ({one.label}) met that of rank {other} ({another.label})"
        evidence = evidence_of(examined, None, "sequence", message, one.site)
        why = _UNLIKE_NAMES
        if place(one) != place(another):
            parted = paths_apart({rank: one, other: another})
            why = f"{_UNLIKE_TURNS}{'; ' + parted[0] if parted is not None else ''}", SAME_CALLS
        yield Discovery("mismatch", message, "", *why, evidence=(evidence,))

"""Collectives of the ranks that do not match, and why."""

from __future__ import annotations

from collections.abc import Iterator

from ddp_lint.verify.branches import (
    asked_anew,
    between,
    came_alone,
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
from ddp_lint.verify.damage import Cause
from ddp_lint.verify.discoveries._evidence import discovery, evidence_of
from ddp_lint.verify.discoveries.waiting import stuck_elsewhere
from ddp_lint.verify.match import Kind, Mismatch, describe, place, present, walked_apart
from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.results import Discovery, Evidence, Examined
from ddp_lint.verify.trace import Collective, Exit
from ddp_lint.verify.wording import of_ranks

LUCK = "tensors of different sizes met: gloo aborts, NCCL hangs or returns wrong values"
#: What the calls that matched and the source at their stacks show by themselves, by the damage that it is.
_BY_THE_CALLS = {
    "joined": joined, "on-the-way-out": on_the_way_out, "unlike-root": unlike_root, "asked-anew": asked_anew
}  # fmt: skip


def mismatched(examined: Examined, first: Mismatch) -> Discovery:
    stuck = stuck_elsewhere(examined, first)
    if stuck is not None:
        return stuck
    origin = examined.origin(first)
    calls = present(origin.calls)
    rank, site = next(((rank, call.site) for rank, call in calls if call.site is not None), (None, None))
    evidence = evidence_of(examined, rank, "sequence", str(first), site)
    if first.own_groups:
        return _own_groups(examined, first, evidence)
    why = cause_of_mismatch(examined, origin)
    at_one_line = len({place(call) for _, call in calls}) == 1
    if not why.text and at_one_line and first.kind in (Kind.SHAPE, Kind.DTYPE, Kind.BUFFER):
        why = Cause.of("unlike-order" if first.kind is Kind.BUFFER else "unlike-tensors")
    message = f"the ranks call different collectives: {since_origin(origin, first)}"
    return Discovery.of("mismatch", message, why, evidence)


def led_to(examined: Examined, first: Mismatch, error: Discovery) -> Discovery:
    """Calls that met although they have nothing to do with each other, and the error that came of it."""
    rank, call = present(first.calls)[0]
    evidence = evidence_of(examined, rank, "sequence", str(first), call.site)
    message = f"the ranks call different collectives: {first}: these matched by chance; then {error.message}"
    return Discovery.of("mismatch", message, cause_of_mismatch(examined, first), evidence)


def since_origin(origin: Mismatch, first: Mismatch) -> str:
    """A mismatch in words, behind the calls that met by luck before it."""
    return str(first) if origin is first else f"{origin}: these matched by chance; then {first}"


def _own_groups(examined: Examined, first: Mismatch, evidence: Evidence) -> Discovery:
    """A group that is made by its members alone: the ranks no longer count their groups alike."""
    made = {rank: call for rank, call in first.calls.items() if call is not None and call.op == "new_group"}
    if first.kind is Kind.MEMBERS:
        calls = ", ".join(f"rank {rank} calls {describe(call)}" for rank, call in made.items())
        message = f"the ranks create different groups (line {evidence.line}): {calls}"
        why = Cause.of("own-groups")
    else:
        others = ", ".join(str(rank) for rank in first.calls if rank not in made)
        message = (
            f"new_group is called by rank {', '.join(map(str, made))} and not by rank {others}: {first.description}"
        )
        branch = between(first)
        why = Cause.of("group-of-some", where=f"{branch}; " if branch else "")
    if examined.completed:
        message += "; this run completed, the next group that the ranks make will not fit"
    return Discovery.of("mismatch", message, why, evidence)


def cause_of_mismatch(examined: Examined, first: Mismatch) -> Cause:
    """The cause of a mismatch, as far as the calls and the source above them show it."""
    for outcome in examined.run.ranks:
        left = outcome.trace.last(Exit)
        if outcome.rank in first.absent and left is not None and left.site is not None:
            at, function = f"{shown(left.site.path)}:{left.site.line}", left.site.function
            return Cause.of("left", rank=outcome.rank, how=left.how, status=left.status, function=function, place=at)
    if first.direct:
        return _why_messages(examined, first)
    if first.kind is Kind.SPLITS:
        return Cause.of("unlike-splits", sizes="")
    branch = between(first)
    if first.kind is Kind.CROSSED:
        return Cause.of("crossed-groups", where=f"; {branch}" if branch else "")
    let_go = next((rank for rank, call in present(first.calls) if _in_del(call)), None)
    if let_go is not None:
        others = ", ".join(str(rank) for rank in first.calls if rank != let_go)
        return Cause.of("let-go", rank=let_go, others=others)
    made = made_of(first)
    if made:
        return Cause.of("unlike-dtypes" if first.kind is Kind.DTYPE else "unlike-sizes", why=made)
    for damage, text in _shown(examined, first):
        if text:
            return Cause.of(damage, why=text)
    earlier = examined.before(first)
    branch = branch or came_alone(first, earlier)
    apart = rounds_apart(first, earlier)
    rounds = apart.text if apart is not None else ""
    skipped = apart is not None and apart.skips  # a rank skipped the call in a round, and has left no loop too early
    over = left_loop(first, earlier) if not branch and not skipped else None
    if apart is not None and apart.inner is not None and not branch and (over is None or over.line != apart.inner.line):
        over = apart.inner
    loop = over.text if over is not None else ""
    passed = passed_by(first, earlier) if not (branch or loop or rounds) else ""
    cause = "; ".join(filter(None, (branch or loop or passed, rounds)))
    if loop:
        return Cause.of("left-loop", why=cause)
    return Cause.of("other-path", why=cause) if cause else Cause()


def _shown(examined: Examined, first: Mismatch) -> Iterator[tuple[str, str]]:
    """Damage that the calls show by themselves, each in words, which are empty where they do not show it."""
    for damage, explain_run in _BY_THE_RUN.items():
        yield damage, explain_run(examined, first)
    for damage, explain_calls in _BY_THE_CALLS.items():
        yield damage, explain_calls(first)


def _why_messages(examined: Examined, first: Mismatch) -> Cause:
    """The same where ranks send to each other."""
    if first.kind is Kind.TAG:
        return Cause.of("tags")
    calls = [call for _, call in present(first.calls)]
    if len(calls) > 1 and all(call.op == "send" for call in calls):
        early = ": wait() right behind isend() makes a send of it" if all(call.asynchronous for call in calls) else ""
        return Cause.of("both-send", early=early)
    ended = left_while_received(first, examined.streams)
    if ended:
        return Cause.of("ended-sender", why=ended)
    if len(calls) > 1 and all(call.op == "recv" for call in calls):
        return Cause.of("both-receive")
    return misled(examined)


def misled(examined: Examined) -> Cause:
    """Messages that no longer belong together, or do not fit, which an error of one rank may come of."""
    unlike = next((one for one in examined.mismatches if one.direct and one.kind is Kind.SHAPE), None)
    if unlike is not None:
        return Cause.of("unfitting-message", sizes=unlike.description)
    splits = next((one for one in examined.mismatches if one.kind is Kind.SPLITS), None)
    if splits is not None:
        return Cause.of("unlike-splits", sizes=f": {splits.description}")
    rounds = unlike_messages(examined.streams)
    return Cause.of("misled-message", why=rounds) if rounds else Cause()


def _unlike_groups(examined: Examined, first: Mismatch) -> str:
    """A rank that is missing in a call has made it, as often at this line as the other one, on another group."""
    for rank, call in present(first.calls):
        for other in first.absent:
            one, another = ([c for c in examined.streams[r] if _same_place(c, call)] for r in (rank, other))
            number = one.index(call) if call in one else len(another)
            if number < len(another) and another[number].ranks != call.ranks:
                line = place(call)[1]
                groups = ((rank, call.ranks), (other, another[number].ranks))
                where = " and ".join(f"in that of {of_ranks(ranks)} by rank {caller}" for caller, ranks in groups)
                return f"the call of line {line} is made in another group on each rank: {where}"
    return ""


def _same_place(one: Collective, other: Collective) -> bool:
    return one.op == other.op and one.site is not None and one.site == other.site


def _unlike_models(examined: Examined, first: Mismatch) -> str:
    """Of a call in a module that is of another class on another rank: the models that were wrapped are not the same."""
    inside = {call.module for _, call in present(first.calls) if call.phase in ("forward", "backward")}
    built = {one.rank: [*one.trace.calls("wrapped")] for one in examined.run.ranks}
    for models in zip(*built.values(), strict=False):
        classes = dict(zip(built, [model.arguments["classes"] for model in models], strict=True))
        for name in sorted(inside & set.union(*map(set, classes.values()))):
            found = {rank: of.get(name, "nothing") for rank, of in classes.items()}
            if len(set(found.values())) > 1:
                kinds = " and ".join(f"{kind} on rank {rank}" for rank, kind in found.items())
                where = f" (wrapped at line {models[0].site.line})" if models[0].site is not None else ""
                return f"the ranks have built different models{where}: `{name}` is {kinds}"
    return ""


def _in_del(call: Collective) -> bool:
    return any(frame.function == "__del__" for frame in call.frames)


#: What the calls of a whole run show, by the damage that it is.
_BY_THE_RUN = {"unlike-groups": _unlike_groups, "unlike-models": _unlike_models}


def in_another_order(examined: Examined) -> Iterator[Discovery]:
    """Sums of different names that met, in a run whose calls all fit."""
    found = walked_apart(examined.streams) if examined.completed and not examined.mismatches else None
    if found is not None:
        (rank, one), (other, another) = found.one, found.other
        message = f"{one.api or one.op} of rank {rank} ({one.label}) met that of rank {other} ({another.label})"
        cause = Cause.of("unlike-names")
        if place(one) != place(another):
            condition = paths_apart({rank: one, other: another})
            cause = Cause.of("unlike-turns", where=f"; {condition[0]}" if condition is not None else "")
        yield discovery(examined, ("mismatch", "sequence"), message, one.site, cause)

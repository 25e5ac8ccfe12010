"""Exceptions of a rank, with their causes."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from ddp_lint.knowledge.signatures import Signature, explain, secondary, signature
from ddp_lint.verify.causes import switched_cause
from ddp_lint.verify.cpu_limits import cpu_limit
from ddp_lint.verify.damage import Cause
from ddp_lint.verify.discoveries._evidence import evidence_of
from ddp_lint.verify.discoveries.mismatches import misled
from ddp_lint.verify.match import describe, place
from ddp_lint.verify.missing_requirements import FILES, is_behind
from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.results import Discovery, Examined
from ddp_lint.verify.trace import Collective, Done, NoGrad, Phase, Raised, Storage, Switched
from ddp_lint.verify.usage import used_below
from ddp_lint.verify.wording import at_line, of_ranks, on_one_line, spoken

#: The signature of a backward that left parameters of a DDP model out.
_UNFINISHED = "ddp-unfinished-reduction"
#: The signature of a gradient that DDP got twice in one backward.
_READY_TWICE, _TWICE = "ddp-ready-twice", 2
#: What using None raises.
_OF_NONE = ("AttributeError", "TypeError")
#: The signatures of an allocation that failed, and of a host that has no memory left, whose rule looks at checkpoints.
_ALLOCATION, _HOST_MEMORY = "host-allocation", "host-oom"


def exceptions_of(examined: Examined) -> Iterator[Discovery]:
    """The first exception that is not the consequence of another rank's end."""
    for outcome in examined.run.ranks:
        for event in outcome.trace.of(Raised):
            text = f"{event.type}: {_last(event)}"
            if event.where in ("caught", "ignored") or secondary(text):
                continue
            known = _of_a_checkpoint(event) or explain(text)
            limit = cpu_limit(text, event.phase) if examined.run.device == "cpu" else ""
            if known and known.role == "hang" and examined.mismatches:
                continue
            where = "" if event.where == "main" else f" in a {event.where}"
            missing, names = _without_gradient(outcome, known)
            error = on_one_line(text).partition(". ")[0] if missing else on_one_line(text)
            message = f"rank {outcome.rank} raised {error}{where}{missing}"
            evidence = evidence_of(examined, outcome.rank, "exception", on_one_line(text), event.site)
            cause = Cause.of("cpu-limit", why=limit) if limit else _cause(examined, outcome, event, known)
            if event.where == "thread" and not cause.text:
                cause = _waits_for_thread(examined, outcome) or cause
            yield Discovery.of("exception", message, cause, evidence, () if limit else names)
            return


def _cause(examined: Examined, outcome: RankOutcome, event: Raised, known: Signature | None) -> Cause:
    # Another rank that died of the same may have told more before its end.
    alike = [outcome, *(one for one in examined.run.ranks if one.message == outcome.message and one is not outcome)]
    looks = [(look, one) for look in _CAUSES.get(known.id, ()) for one in alike] if known is not None else []
    causes = (look(one, known) for look, one in looks if known is not None)
    return (
        next(filter(None, causes), None)
        or _other_file(examined, outcome, event)
        or _too_early(examined, outcome, event)
        or _outwaited(examined, outcome, known)
        or _made_first(examined, outcome, event)
        or (_none_here(examined, outcome, event) if known is None else None)
        or (of_signature(known) if known is not None else misled(examined))
    )


def _waits_for_thread(examined: Examined, outcome: RankOutcome) -> Cause | None:
    """The rank is stuck, and not in a collective: what it waits for the thread would have brought."""
    at = outcome.last.frame
    absent = examined.mismatches[0].absent if examined.mismatches else ()
    if outcome.how != "stalled" or outcome.rank not in absent or at is None:
        return None
    return Cause.of("dead-thread", rank=outcome.rank, line=at.line, function=at.function)


def _of_a_checkpoint(event: Raised) -> Signature | None:
    """Memory that ran out in torch.load is that of a checkpoint."""
    known = explain(f"{event.type}: {event.message}")
    loads = known is not None and known.id == _ALLOCATION and "torch/serialization.py" in event.inner
    return signature(_HOST_MEMORY) if loads else None


def _last(event: Raised) -> str:
    """The message; of an error in a DataLoader's worker what was raised there, without the traceback before it."""
    lines = [line.strip() for line in event.message.splitlines() if line.strip()]
    return lines[-1].removeprefix(f"{event.type}: ") if event.where == "worker" and lines else event.message


def _without_gradient(outcome: RankOutcome, known: Signature | None) -> tuple[str, Sequence[str]]:
    """Which parameters a reduction that never finished had waited for: torch's message gives indices at most."""
    if known is None or known.id != _UNFINISHED:
        return "", ()
    switched = outcome.trace.last(Switched)
    if switched is not None and switched.frozen:
        return f"; frozen since DDP was built: {spoken(switched.frozen, 12)}", switched.frozen
    names = _names_without_gradient(outcome)
    return (f"; parameters without a gradient: {spoken(names, 12)}" if names else ""), names


def _frozen(outcome: RankOutcome, _: Signature) -> Cause | None:
    """The reducer waits for gradients of parameters that were frozen behind its back."""
    switched = outcome.trace.last(Switched)
    return switched_cause(switched) if switched is not None and switched.frozen else None


def _replaced(outcome: RankOutcome, _: Signature) -> Cause | None:
    """The reducer waits for gradients of parameters that are no longer part of the model."""
    events = list(outcome.trace.of(Storage))
    gone = [name for event in events for name in (*event.replaced, *event.removed)]
    tied = [pair for event in events if event.when == "end" for pair in event.tied]
    built = next(outcome.trace.calls("DistributedDataParallel"), None)
    if not gone or built is None:
        return None
    if tied and {name for name, _ in tied} >= set(gone):
        names, others = (spoken(dict.fromkeys(side)) for side in zip(*tied, strict=True))
        return Cause.of("tied-after-wrap", names=names, others=others, line=at_line(built.site))
    return Cause.of("replaced-after-wrap", names=spoken(dict.fromkeys(gone)), line=at_line(built.site))


def _too_early(examined: Examined, outcome: RankOutcome, event: Raised) -> Cause | None:
    """One rank missed a file that another one did not miss, and may have been about to make."""
    missed_not = [one for one in examined.run.ranks if all(e.type != event.type for e in one.trace.of(Raised))]
    others = [one for one in missed_not if one.how != "stopped" or not is_behind(one, outcome)]
    at = others[0].last.frame if others else None
    if event.type not in FILES or at is None:
        return None
    facts = {"rank": outcome.rank, "other": others[0].rank, "line": at.line, "function": at.function}
    return Cause.of("missed-file", **facts)


def _other_file(examined: Examined, outcome: RankOutcome, event: Raised) -> Cause | None:
    """One rank missed a file whose path it has made up by itself: another one loads it at this line, or saved one of
    this name, elsewhere."""
    passed = [one for one in examined.run.ranks if all(e.type != event.type for e in one.trace.of(Raised))]
    used = [(one.rank, call) for one in passed for call in one.trace.calls("torch.load", "torch.save")]
    paths = [(rank, call, str(call.arguments.get("path", ""))) for rank, call in used]
    if event.type not in FILES or not event.file or any(path == event.file for _, _, path in paths):
        return None
    found = [(r, c, p) for r, c, p in paths if p and c.name == "torch.load" and c.site == event.site]
    found += [
        (r, c, p)
        for r, c, p in paths
        if c.name == "torch.save" and pathlib.Path(p).name == pathlib.Path(event.file).name
    ]
    if not found:
        return None
    rank, call, path = found[0]
    above = os.path.commonpath((path, event.file))
    missed, there = (os.path.relpath(one, above) for one in (event.file, path))
    how = "loads" if call.name == "torch.load" else "saved"
    facts = {"rank": outcome.rank, "missed": missed, "other": rank, "how": how, "line": at_line(call.site)}
    return Cause.of("other-file", path=there, **facts)


def _made_first(examined: Examined, outcome: RankOutcome, event: Raised) -> Cause | None:
    """A file or folder that one rank found made, as it was to make it, and another one did not."""
    others = [one.rank for one in examined.run.ranks if all(e.type != event.type for e in one.trace.of(Raised))]
    if event.type != "FileExistsError" or not others:
        return None
    return Cause.of("made-first", other=others[0], ranks=of_ranks([outcome.rank]))


def _none_here(examined: Examined, outcome: RankOutcome, event: Raised) -> Cause | None:
    """What a rank has not got that failed on it alone: another rank, which came by the place, has it."""
    site = event.site
    if event.type not in _OF_NONE or not event.none or site is None:
        return None
    passed = [one.rank for one in examined.run.ranks if all(e.type != event.type for e in one.trace.of(Raised))]
    failed = [one.rank for one in examined.run.ranks if one.rank not in passed]
    if not passed:
        return None
    names = " and ".join(f"`{name}`" for name in event.none)
    return Cause.of("none-here", names=names, ranks=of_ranks(failed), others=of_ranks(passed))


def _outwaited(examined: Examined, outcome: RankOutcome, known: Signature | None) -> Cause | None:
    """A rank gave up waiting, as its group has a short timeout, for one that is at other work and has called nothing
    that does not belong there."""
    call = outcome.trace.last(Collective)
    if known is None or known.role != "hang" or call is None:
        return None
    for other in examined.run.ranks:
        latest, at = other.trace.last(Collective), other.last.frame
        back = latest is None or any(event.of == latest.n for event in other.trace.of(Done))
        if other.how == "stopped" and other.rank in call.ranks and back and at is not None:
            made = next((call for call in outcome.trace.calls("init_process_group") if call.site), None)
            group = at_line(made.site if made is not None else None)
            waiting = {"rank": outcome.rank, "call": describe(call), "line": place(call)[1], "group": group}
            return Cause.of("outwaited", other=other.rank, at=at.line, function=at.function, **waiting)
    return None


def _names_without_gradient(outcome: RankOutcome) -> list[str]:
    return list(dict.fromkeys(name for event in outcome.trace.of(NoGrad) for name in event.names))


def _cut_off(outcome: RankOutcome, _: Signature) -> Cause | None:
    """A gather on the way to the loss is why all the parameters without a gradient have none."""
    names = set(_names_without_gradient(outcome))
    calls = [call for call in outcome.trace.of(Collective) if call.site is not None and names & set(call.cut_off)]
    if not calls or not names <= {name for call in calls for name in call.cut_off}:
        return None
    return Cause.of("cut-off", api=calls[0].api or calls[0].op, line=place(calls[0])[1])


def _forward_twice(outcome: RankOutcome, _: Signature) -> Cause | None:
    """Each forward of a DDP model that looks for unused parameters marks those that it leaves out as ready."""
    built = outcome.trace.calls("DistributedDataParallel")
    searches = any(call.arguments.get("find_unused_parameters") for call in built)
    if not searches:
        return None
    phases = [event.phase for event in outcome.trace.of(Phase)]
    since = phases[len(phases) - phases[::-1].index("step") :] if "step" in phases else phases
    forwards = since.count("forward")
    return Cause.of("forward-twice", times=forwards) if forwards >= _TWICE else None


def _not_used(outcome: RankOutcome, known: Signature) -> Cause | None:
    """The parts of the model without a gradient are used below a condition."""
    names = _names_without_gradient(outcome)
    wrapped = [call.arguments for call in outcome.trace.calls("wrapped")]
    files = {path for model in wrapped for path in model.get("files", ())}
    classes = {name: kind for model in wrapped for name, kind in model.get("classes", {}).items()}
    conditions = used_below(sorted(files), classes, names) if names else ""
    if not conditions:
        return None
    text = f"{conditions}: in a step without that they get no gradient, and DDP waits for it"
    return Cause(text, known.fix, code=known.code)


#: What a trace shows besides the exception, by the signature of that.
_CAUSES: Mapping[str, Sequence[Callable[[RankOutcome, Signature], Cause | None]]] = {
    _UNFINISHED: (_frozen, _replaced, _cut_off, _not_used),
    _READY_TWICE: (_forward_twice,),
}


def of_signature(known: Signature | None) -> Cause:
    """The rule for what an exception shows, its cause and what to do."""
    if known is None or known.role == "secondary":
        return Cause()
    return Cause(known.cause, known.fix, code=known.code)

"""What the runs showed and no finding named: damage without a static finding, explained as far as it is known."""

from __future__ import annotations

import ast
import collections
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from ddp_lint.knowledge.signatures import Signature, explain, secondary, signature
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
    polling,
    rounds_apart,
    unlike_messages,
    unlike_root,
    used_below,
)
from ddp_lint.verify.causes import Cause, cause_of, statistics_cause, switched_cause
from ddp_lint.verify.compare import REPLICAS_EQUAL, Desync, desyncs, deviation, of_ranks, spoken
from ddp_lint.verify.cpu_limits import cpu_limit, on_one_line
from ddp_lint.verify.match import Kind, Mismatch, describe, place, present, unrelated, walked_apart
from ddp_lint.verify.missing_requirements import FILES, is_behind
from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.oracles import shown
from ddp_lint.verify.oracles._across_ranks import moment
from ddp_lint.verify.replica_drift import averages_alone, loaded_alone, unlike_modes
from ddp_lint.verify.results import Discovery, Evidence, Examined, Judged, Verdict
from ddp_lint.verify.sampling import copies, describe_order, epoch_not_set, overlap, same_order, unlike_parts
from ddp_lint.verify.statistics import assigned, evaluated, unshared
from ddp_lint.verify.trace import (
    COPY,
    REPLICATED,
    Call,
    Clocked,
    Collective,
    Crossing,
    Done,
    Environment,
    Exit,
    Frame,
    Mapped,
    NoGrad,
    Orphaned,
    Phase,
    Race,
    Raised,
    Reference,
    Stall,
    Switched,
    Unordered,
)

#: Which kinds of damage one confirmed finding accounts for: what a rank-dependent write also desynchronises is one
#: fault, not two.
_EXPLAINS = {
    "sequence": {"mismatch", "stall", "exception", "death"},
    "stall": {"mismatch", "stall", "exception", "death"},
    "exception": {"exception", "death", "stall", "mismatch", "gradients", "parameters"},
    "exit": {"exit", "exception", "mismatch", "stall", "death"},
    "write": {"parameters", "reference", "exception", "gradients"},
    "gradient": {"gradients", "parameters", "reference", "nograd"},
    "parameter": {"gradients", "parameters", "reference", "buffers"},
    "reference": {"reference", "parameters", "gradients", "nograd"},
    "identity": {"reference", "parameters", "gradients", "nograd", "exception"},
    "nograd": {"nograd", "reference", "gradients", "parameters"},
    "value": {"race", "reference", "parameters", "gradients"},
    "streams": {"race", "reference", "parameters", "gradients"},
    "finite": {"reference", "exception"},
    "samples": {"reference", "samples"},
    "epochs": {"reference", "epochs"},
    "environment": {"exception", "stall", "death", "mismatch"},
    "device": {"exception", "death"},
}

#: The signature of a backward that left parameters of a DDP model out.
_UNFINISHED = "ddp-unfinished-reduction"
#: The signature of a gradient that DDP got twice in one backward.
_READY_TWICE, _TWICE = "ddp-ready-twice", 2
#: The signatures of an allocation that failed, and of a host that has no memory left, whose rule looks at checkpoints.
_ALLOCATION, _HOST_MEMORY = "host-allocation", "host-oom"
#: Cause and fix where a rank waits for a lock that nothing releases.
_LOCKED = (
    "no thread is left to release the lock: the thread that took it has not released it (an exception in between?)",
    "use `with lock:`, which always releases it",
)
#: What to do where one rank has left a loop, and where the ranks are in different rounds or under different conditions.
_EQUALLY_OFTEN = (
    "run it the same number of times on all ranks: equally many batches, or a condition on a value that all ranks have "
    "(the result of an all_reduce)"
)
_SAME_CALLS = "make the same calls in the same order on all ranks, independent of their data"
_LUCK = "tensors of different sizes met: gloo aborts, NCCL hangs or returns wrong values"
_UNLIKE_CALLS = f"calls of different lines met, which do not belong together ({_LUCK})"
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
#: Operations that combine the values of all ranks.
_SUMS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
#: What gloo aborts over, as tensors of different size meet.
_UNLIKE_SIZES = (Kind.SHAPE, Kind.DTYPE, Kind.SPLITS, Kind.ORDER, Kind.BUFFER)
#: Cause and fix where each rank reads its own time.
_CLOCK = (
    "the clock of each rank decides whether it continues: this time all left in the same iteration; a rank that "
    "runs one more waits for the others forever",
    "let one rank decide, and broadcast it in each iteration; or all_reduce the flag",
)
#: Cause and fix where ranks share a GPU.
_OWN_DEVICE = (
    'NCCL takes one GPU for each rank, and ends with "Duplicate GPU detected": torchrun passes the local rank in the '
    "environment, not as --local_rank",
    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])), unless the launcher shows each rank only its own GPU',
)
_NO_DEVICE = (
    'no rank chooses a GPU, so all use the first one: NCCL takes one GPU for each rank, and ends with "Duplicate GPU '
    'detected"',
    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the group is created, unless the launcher shows each '
    "rank only its own GPU",
)
#: Cause and fix where a rank evaluates as others train.
_EVALUATES = (
    "dropout and batch norm behave differently there: the ranks train different functions of one model",
    "call train() again after each eval(), or before each epoch, on all ranks",
)
#: Cause and fix where batch norms evaluate with what each rank has gathered.
_OWN_STATISTICS = (
    "batch norm gathers these from each rank's own batches, and DDP does not broadcast them (broadcast_buffers=False): "
    "each rank evaluates another model, and a checkpoint has those of the rank that writes it",
    "use nn.SyncBatchNorm.convert_sync_batchnorm(model), or average the running statistics before the evaluation",
)
#: What to do where a rank waits for one that has much to do.
_LONGER = "pass init_process_group a timeout= that is longer than that work, or do the work before the group is created"
#: What to do where a rank waits for a key.
_SET_KEY = "set it under the very name, and prefix, that the others use (without a rank in it), on every path"
#: What to do where one rank receives more often than another one sends.
_AS_MANY = "send and receive equally often: let both sides count alike, or send the number first"
#: What to do where a rank looks again and again for what does not come.
_WAIT_TOGETHER = "wait in a dist.barrier() that the other rank calls after its part, and use the same path on all ranks"
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
#: Cause and fix where two threads communicate in one group.
_TWO_THREADS = (
    "calls in one group meet in the order in which each rank makes them, and two threads make them in any order",
    "give the thread a separate group: dist.new_group() on all ranks, and group=... in its calls",
)
#: Cause and fix where a process communicates that a rank has forked.
_FORKED = (
    "a process group belongs to the process that created it: in a fork (a DataLoader worker) no peer answers",
    "communicate in the rank itself, and pass the result to the workers",
)
#: Cause and fix where a group is never complete.
_TOO_MANY = (
    "a group is complete when world_size processes have called init_process_group",
    "pass the number of started processes as world_size, or start those of the other nodes as well",
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
#: The rule of ranks that meet in one collective with different numbers of bytes.
_SIZES = "DDP105"
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
#: The rule of a sampler without `set_epoch`, and of a group that not all ranks create.
_EPOCH_NOT_SET, _OWN_GROUPS = "DDP701", "DDP106"
#: Signals by which the ranks of a run are ended that the user interrupts.
_ENDED_BY_US = ("SIGTERM", "SIGINT", "SIGKILL")
_ON_CUDA = "run on GPUs with --device cuda, or let the script use the CPU without a GPU"


def discover(runs: Sequence[Examined], judged: Sequence[Judged]) -> list[Discovery]:
    """Damage of plain runs that no confirmed finding of the same run explains, once for all wraps.

    A run with a stimulus discovers nothing: the stimulus provokes failures.
    """
    explained = _explained(judged)
    found: dict[tuple[str, str], list[Discovery]] = {}
    for examined in runs:
        if examined.run.stimuli:
            continue
        for discovery in _damage(examined):
            if (examined.run.wrap, discovery.kind) not in explained:
                evidence = discovery.evidence[0]
                place_of = f"{evidence.path}:{evidence.line}" if evidence.line else discovery.message
                place_of += f" {evidence.model}"
                found.setdefault((discovery.kind, place_of), []).append(discovery)
    return [_merged(same) for same in found.values()]


def _explained(judged: Sequence[Judged]) -> set[tuple[str, str]]:
    return {
        (evidence.wrap, kind)
        for one in judged
        if one.verdict is Verdict.CONFIRMED
        for evidence in one.evidence
        for kind in _EXPLAINS.get(evidence.kind, ())
    }


def _merged(same: Sequence[Discovery]) -> Discovery:
    first = same[0]
    evidence = tuple(dict.fromkeys(e for discovery in same for e in discovery.evidence))
    return Discovery(first.kind, first.message, first.code, first.cause, first.fix, evidence)


def _damage(examined: Examined) -> Iterator[Discovery]:
    """The cause first: a rank that died by itself makes its peers wait, and a mismatch ends in a timeout."""
    raised, crossing = list(_raised(examined)), list(_crossing(examined))
    strangers = unrelated(examined.rows) if raised else None
    if strangers is not None:
        raised = [_led_to(examined, strangers, raised[0])]
    yield from crossing
    orphans = list(_orphaned(examined))
    yield from orphans
    if orphans and not examined.completed:
        return
    if crossing and not examined.completed:
        yield from raised  # how else it ended comes of the order in which the threads happened to call
        return
    causes = [*raised, *_deaths(examined)]
    mismatches = [_mismatch(examined, examined.mismatches[0])] if examined.mismatches else []
    if mismatches and not causes:
        yield from mismatches
    yield from causes
    if not causes and not mismatches:
        yield from _stalls(examined)
    yield from _hidden(examined)
    yield from _overwritten(examined)
    yield from _unordered(examined)
    yield from _in_another_order(examined)
    yield from _one_device(examined)
    yield from _by_the_clock(examined)
    yield from _unlike_modes(examined)
    yield from _silent(examined)
    yield from _fed(examined)


def _crossing(examined: Examined) -> Iterator[Discovery]:
    """A thread that calls on a group while another one is in a call on it: the first time."""
    for outcome in examined.run.ranks:
        event = next(outcome.trace.of(Crossing), None)
        if event is not None:
            line = f" (line {event.earlier[0].line})" if event.earlier else ""
            message = f"rank {outcome.rank} calls {event.op} in thread {event.thread} while another thread is in "
            message += f"{event.amid}{line} of the same group"
            evidence = _evidence(examined, outcome.rank, "sequence", message, event.site)
            yield Discovery("race", message, "", *_TWO_THREADS, evidence=(evidence,))
            return


def _orphaned(examined: Examined) -> Iterator[Discovery]:
    """A process that a rank has forked calls on the rank's group: the first one."""
    for outcome in examined.run.ranks:
        event = next(outcome.trace.of(Orphaned), None)
        if event is not None:
            message = f"a process that rank {outcome.rank} has forked calls {event.op} on a group of the rank's"
            evidence = _evidence(examined, outcome.rank, "sequence", message, event.site)
            yield Discovery("stall", message, "", *_FORKED, evidence=(evidence,))
            return


def _mismatch(examined: Examined, first: Mismatch) -> Discovery:
    stuck = _standing(examined, first)
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
    why = _why(examined, origin)
    if not why[0] and len(set(sites.values())) == 1 and first.kind in (Kind.SHAPE, Kind.DTYPE, Kind.BUFFER):
        why = _UNLIKE_ORDER if first.kind is Kind.BUFFER else _UNLIKE_TENSORS
    message = f"the ranks call different collectives: {_since(origin, first)}"
    return Discovery("mismatch", message, "", *why, evidence=(evidence,))


def _led_to(examined: Examined, first: Mismatch, error: Discovery) -> Discovery:
    """Calls that met although they have nothing to do with each other, and the error that came of it."""
    rank, (path, line) = next((rank, place(call)) for rank, call in first.calls.items() if call is not None)
    evidence = Evidence(examined.run.wrap, rank, "sequence", str(first), shown(path), line, model=examined.run.model)
    message = f"the ranks call different collectives: {first}: these matched by chance; then {error.message}"
    return Discovery("mismatch", message, "", *_why(examined, first), evidence=(evidence,))


def _since(origin: Mismatch, first: Mismatch) -> str:
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


def _why(examined: Examined, first: Mismatch) -> tuple[str, str]:
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
    return cause, _SAME_CALLS if passed or rounds else ""


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
    return _misled(examined)[1:]


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


def _standing(examined: Examined, first: Mismatch) -> Discovery | None:
    """A rank that is stuck outside of any collective is what its peers wait for: its line is the place."""
    for outcome in examined.run.ranks:
        waiting = present(first.calls)
        frame = outcome.last.frame
        if outcome.rank in first.absent and outcome.how == "stalled" and not first.direct and frame is not None:
            rank, call = waiting[0]
            message = (
                f"rank {outcome.rank} is stuck at line {frame.line} in {frame.function}; "
                f"rank {rank} waits for it in {describe(call)} (line {place(call)[1]})"
            )
            stall = outcome.trace.last(Stall)
            waits = _LOCKED if stall is not None and stall.reason == "lock" else _keyless(outcome, frame)
            why = waits if waits[0] else (polling(frame), _WAIT_TOGETHER)
            why = why if why[0] else ("", "")
            evidence = (_evidence(examined, outcome.rank, "stall", message, frame),)
            return Discovery("stall", message, "", *why, evidence=evidence)
    return None


def _keyless(outcome: RankOutcome, frame: Frame) -> tuple[str, str]:
    """It waits for a key of a store."""
    call = next((c for c in reversed([*outcome.trace.of(Call)]) if c.name == "store" and c.site == frame), None)
    if call is None:
        return "", ""
    return f"{call.arguments['asks']}() waits until a rank has set {call.arguments['key']!r} in this store", _SET_KEY


def _raised(examined: Examined) -> Iterator[Discovery]:
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
            missing = _without_gradient(outcome, known)
            error = on_one_line(text).partition(". ")[0] if missing else on_one_line(text)
            message = f"rank {outcome.rank} raised {error}{where}{missing}"
            evidence = _evidence(examined, outcome.rank, "exception", on_one_line(text), event.site)
            if limit:
                yield Discovery("exception", message, "", limit, _ON_CUDA, (evidence,))
            else:
                cause = (
                    _frozen(outcome, known)
                    or _cut_off(outcome, known)
                    or _not_used(outcome, known)
                    or _forward_twice(outcome, known)
                    or _too_early(examined, outcome, event)
                    or _outwaited(examined, outcome, known)
                    or (_known(known) if known is not None else _misled(examined))
                )
                yield Discovery("exception", message, *cause, (evidence,))
            return


def _of_a_checkpoint(event: Raised) -> Signature | None:
    """Memory that ran out in torch.load is that of a checkpoint."""
    known = explain(f"{event.type}: {event.message}")
    loads = known is not None and known.id == _ALLOCATION and "torch/serialization.py" in event.inner
    return signature(_HOST_MEMORY) if loads else None


def _last(event: Raised) -> str:
    """The message; of an error in a DataLoader's worker what was raised there, without the traceback before it."""
    lines = [line.strip() for line in event.message.splitlines() if line.strip()]
    return lines[-1].removeprefix(f"{event.type}: ") if event.where == "worker" and lines else event.message


def _without_gradient(outcome: RankOutcome, known: Signature | None) -> str:
    """Which parameters a reduction that never finished had waited for: torch's message gives indices at most."""
    if known is None or known.id != _UNFINISHED:
        return ""
    switched = outcome.trace.last(Switched)
    if switched is not None and switched.frozen:
        return f"; frozen since DDP was built: {spoken(switched.frozen, 12)}"
    names = _names_without_gradient(outcome)
    return f"; parameters without a gradient: {spoken(names, 12)}" if names else ""


def _frozen(outcome: RankOutcome, known: Signature | None) -> tuple[str, str, str] | None:
    """The reducer waits for gradients of parameters that were frozen behind its back."""
    switched = outcome.trace.last(Switched) if known is not None and known.id == _UNFINISHED else None
    found = switched_cause(switched) if switched is not None and switched.frozen else None
    return (found.code, found.text, found.fix) if found is not None else None


def _too_early(examined: Examined, outcome: RankOutcome, event: Raised) -> tuple[str, str, str] | None:
    """One rank missed a file that another one did not miss, and may have been about to make."""
    missed_not = [one for one in examined.run.ranks if all(e.type != event.type for e in one.trace.of(Raised))]
    others = [one for one in missed_not if one.how != "stopped" or not is_behind(one, outcome)]
    at = others[0].last.frame if others else None
    if event.type not in FILES or at is None:
        return None
    other = others[0].rank
    cause = f"only rank {outcome.rank} missed it: rank {other} got as far as line {at.line} in {at.function}"
    return "", cause, f"if rank {other} makes that file, let the others wait for it: dist.barrier() after it"


def _outwaited(examined: Examined, outcome: RankOutcome, known: Signature | None) -> tuple[str, str, str] | None:
    """A rank gave up waiting, as its group has a short timeout, for one that is at other work and has called nothing
    that does not belong there."""
    call = outcome.trace.last(Collective)
    if known is None or known.role != "hang" or call is None:
        return None
    for other in examined.run.ranks:
        latest, at = other.trace.last(Collective), other.last.frame
        back = latest is None or any(event.of == latest.n for event in other.trace.of(Done))
        if other.how == "stopped" and other.rank in call.ranks and back and at is not None:
            made = next((c for c in outcome.trace.of(Call) if c.name == "init_process_group" and c.site), None)
            group = f" (line {made.site.line})" if made is not None and made.site is not None else ""
            cause = (
                f"rank {outcome.rank} waited in {describe(call)} (line {place(call)[1]}) for as long as the timeout "
            )
            cause += f"of the process group{group} lets it; rank {other.rank} was not there yet: it was at line "
            return "", f"{cause}{at.line} in {at.function}", _LONGER
    return None


def _misled(examined: Examined) -> tuple[str, str, str]:
    """Messages that no longer belong together, or do not fit, which an error of one rank may come of."""
    unlike = next((one for one in examined.mismatches if one.direct and one.kind is Kind.SHAPE), None)
    if unlike is not None:
        return "", f"a message does not fill the tensor that it is received into: {unlike.description}", _FITTING
    splits = next((one for one in examined.mismatches if one.kind is Kind.SPLITS), None)
    if splits is not None:
        return "", f"{_SPLITS[0]}: {splits.description}", _SPLITS[1]
    cause = unlike_messages({one.rank: tuple(one.trace.of(Collective)) for one in examined.run.ranks})
    return "", cause, "send and receive equally often in each iteration" if cause else ""


def _names_without_gradient(outcome: RankOutcome) -> list[str]:
    return list(dict.fromkeys(name for event in outcome.trace.of(NoGrad) for name in event.names))


def _cut_off(outcome: RankOutcome, known: Signature | None) -> tuple[str, str, str] | None:
    """A gather on the way to the loss is why all the parameters without a gradient have none."""
    names = set(_names_without_gradient(outcome)) if known is not None and known.id == _UNFINISHED else set()
    calls = [call for call in outcome.trace.of(Collective) if call.site is not None and names & set(call.cut_off)]
    if not calls or not names <= {name for call in calls for name in call.cut_off}:
        return None
    api = calls[0].api or calls[0].op
    text = f"{api} (line {place(calls[0])[1]}) returns no gradient"
    cause = f"{text}: the loss is computed from what it returned, and nothing behind that is trained"
    return "", cause, f"gather with torch.distributed.nn.functional.{api}, or put this rank's own tensor back"


def _forward_twice(outcome: RankOutcome, known: Signature | None) -> tuple[str, str, str] | None:
    """Each forward of a DDP model that looks for unused parameters marks those that it leaves out as ready."""
    built = [call for call in outcome.trace.of(Call) if call.name == "DistributedDataParallel"]
    searches = any(call.arguments.get("find_unused_parameters") for call in built)
    if known is None or known.id != _READY_TWICE or not searches:
        return None
    phases = [event.phase for event in outcome.trace.of(Phase)]
    since = phases[len(phases) - phases[::-1].index("step") :] if "step" in phases else phases
    forwards = since.count("forward")
    if forwards < _TWICE:
        return None
    cause = f"the model ran forward {forwards} times before this backward, and with find_unused_parameters=True each "
    cause += "forward marks the parameters that it does not use as ready"
    return "", cause, "call the model once for each backward (one forward that does both), or omit the argument"


def _not_used(outcome: RankOutcome, known: Signature | None) -> tuple[str, str, str] | None:
    """The parts of the model without a gradient are used below a condition."""
    names = _names_without_gradient(outcome) if known is not None and known.id == _UNFINISHED else []
    wrapped = [call.arguments for call in outcome.trace.of(Call) if call.name == "wrapped"]
    files = {path for model in wrapped for path in model.get("files", ())}
    classes = {name: kind for model in wrapped for name, kind in model.get("classes", {}).items()}
    conditions = used_below(sorted(files), classes, names) if names else ""
    if known is None or not conditions:
        return None
    return known.code, f"{conditions}: in a step without that they get no gradient, and DDP waits for it", known.fix


def _deaths(examined: Examined) -> Iterator[Discovery]:
    for outcome in examined.run.ranks:
        if outcome.how in ("signal", "oom", "exit", "not_started"):
            if examined.run.outcome == "interrupted" and (
                outcome.how == "not_started" or outcome.signal in _ENDED_BY_US
            ):
                continue
            known = explain(f"{outcome.message}\n{outcome.log}")
            met = examined.mismatches[0] if examined.mismatches else None
            how = _how(outcome)
            code, cause, fix = _known(known)
            frame = outcome.last.frame
            if known is not None and known.code == _SIZES and met is not None and met.kind in _UNLIKE_SIZES:
                origin = examined.origin(met)
                how = f"died of {outcome.signal}: {_since(origin, met)}"  # torch's own words name no line, and no peer
                why, remedy = _why(examined, origin)
                calls = [call for call in origin.calls.values() if call is not None]
                if len(set(map(place, calls))) > 1:
                    code, cause, fix = "", _UNLIKE_CALLS, _SAME_CALLS
                if origin is not met:
                    frame = calls[0].site
                cause, fix = (f"{why} ({_LUCK})", remedy or fix) if why else (cause, fix)
            message = f"rank {outcome.rank} {how}"
            evidence = _evidence(examined, outcome.rank, "exception", message, frame)
            yield Discovery("death", message, code, cause, fix, (evidence,))


def _known(known: Signature | None) -> tuple[str, str, str]:
    """The rule for what an exception shows, its cause and what to do."""
    if known is None or known.role == "secondary":
        return "", "", ""
    return known.code, known.cause, known.fix


def _how(outcome: RankOutcome) -> str:
    end = {
        "signal": f"died of {outcome.signal}",
        "oom": "was killed by the system's out-of-memory killer",
        "exit": f"ended itself with status {outcome.exit} before its end",
        "not_started": "never started",
    }[outcome.how]
    return f"{end}: {on_one_line(outcome.message)}" if outcome.message else end


def _stalls(examined: Examined) -> Iterator[Discovery]:
    for outcome in examined.run.ranks:
        if outcome.how == "stalled":
            waiting = f" in {outcome.last.collective}" if outcome.last.collective else ""
            joining = _joining(examined, outcome)
            message = f"rank {outcome.rank} is stuck{waiting or joining}"
            evidence = _evidence(examined, outcome.rank, "stall", message, outcome.last.frame)
            why = _TOO_MANY if joining and not waiting else ("", "")
            yield Discovery("stall", message, "", *why, evidence=(evidence,))
            return


def _joining(examined: Examined, outcome: RankOutcome) -> str:
    """It waits for the group to be complete."""
    call = outcome.trace.last(Call)
    if call is None or call.name != "init_process_group":
        return ""
    asked = call.arguments.get("world_size", -1)
    expected = f" for {asked} ranks" if isinstance(asked, int) and asked > examined.world else ""
    return f" in init_process_group, which waits{expected}: {examined.world} were started"


def _hidden(examined: Examined) -> Iterator[Discovery]:
    for outcome in examined.run.ranks:
        for event in outcome.trace.of(Exit):
            if event.status == 0 and event.pending:
                message = f"rank {outcome.rank} calls {event.how}(0) while {event.pending} is in flight"
                evidence = _evidence(examined, outcome.rank, "exit", message, event.site)
                cause = "the launcher reports success despite a failure"
                yield Discovery("exit", message, "", cause, "re-raise the exception, or exit with 1", (evidence,))
        for race in outcome.trace.of(Race):
            if not race.waited and (race.access != "never" or outcome.how == "completed"):
                message = f"rank {outcome.rank} uses a tensor ({race.op}) before the wait() of the collective on it"
                evidence = _evidence(examined, outcome.rank, "value", message, race.site)
                yield Discovery("race", message, "", "", "call wait() on the handle first", (evidence,))
                return


def _overwritten(examined: Examined) -> Iterator[Discovery]:
    """A gather that was given one tensor for what comes from several ranks."""
    for outcome in examined.run.ranks:
        call = next((call for call in outcome.trace.of(Collective) if call.overlapping), None)
        if call is not None:
            message = f"{call.api or call.op} puts what comes from {len(call.outputs)} ranks into one tensor"
            evidence = _evidence(examined, outcome.rank, "value", message, call.site)
            cause = "the output list has one tensor several times, as in `[tensor] * world_size`: the last one wins"
            fix = "create a tensor for each rank: [torch.empty_like(x) for _ in range(world_size)]"
            yield Discovery("overwritten", message, "", cause, fix, (evidence,))
            return


def _unordered(examined: Examined) -> Iterator[Discovery]:
    """Memory that two CUDA streams use, one of them writing, with nothing that orders them: the first of them."""
    for outcome in examined.run.ranks:
        for event in outcome.trace.of(Unordered):
            if event.site is None or not event.earlier:
                continue
            earlier = f"{event.earlier_op} of line {event.earlier[0].line} on {event.streams[0]}"
            message = (
                f"rank {outcome.rank}: {event.op} on {event.streams[1]} uses memory of {earlier}; nothing orders them"
            )
            evidence = _evidence(examined, outcome.rank, "streams", message, event.site)
            fix = "wait_stream() (or wait for an event) before the tensor is used on another stream"
            yield Discovery(
                "race", message, "", "the order of the streams decides which value is read", fix, (evidence,)
            )
            return


def _in_another_order(examined: Examined) -> Iterator[Discovery]:
    """Sums of different names that met, in a run whose calls all fit."""
    streams = {one.rank: tuple(one.trace.of(Collective)) for one in examined.run.ranks}
    found = walked_apart(streams) if examined.completed and not examined.mismatches else None
    if found is not None:
        (rank, one), (other, another) = found.one, found.other
        message = f"{one.api or one.op} of rank {rank} ({one.label}) met that of rank {other} ({another.label})"
        evidence = _evidence(examined, None, "sequence", message, one.site)
        why = _UNLIKE_NAMES
        if place(one) != place(another):
            parted = paths_apart({rank: one, other: another})
            why = f"{_UNLIKE_TURNS}{'; ' + parted[0] if parted is not None else ''}", _SAME_CALLS
        yield Discovery("mismatch", message, "", *why, evidence=(evidence,))


def _one_device(examined: Examined) -> Iterator[Discovery]:
    """A script that requests NCCL gives one GPU to all ranks: NCCL refuses that. On the CPU, and where ranks share
    GPUs, nothing else shows it."""
    ranks = examined.run.ranks
    speaks = all(any(event.requested.startswith("nccl") for event in one.trace.of(Mapped)) for one in ranks)
    shares = examined.run.shared_gpus and examined.run.wrap == "script"
    hides = any(e.name == "CUDA_VISIBLE_DEVICES" for one in ranks for e in one.trace.of(Environment))
    if len(ranks) == 1 or hides or not (speaks or shares):
        return
    chosen = [next(iter(_chosen_devices(one, bool(shares))), None) for one in ranks]
    if None not in chosen and len(set(chosen)) == 1:
        message = f"all ranks of this machine choose device {chosen[0]}"
        calls = (call.site for call in ranks[0].trace.of(Call) if call.name in ("set_device", "init_process_group"))
        evidence = _evidence(examined, None, "device", message, next(calls, None))
        chooses = any(call.name == "set_device" for call in ranks[0].trace.of(Call))
        yield Discovery("device", message, "", *(_OWN_DEVICE if chooses else _NO_DEVICE), evidence=(evidence,))


def _chosen_devices(outcome: RankOutcome, shares: bool) -> Iterator[str]:
    """The index of the GPU that a rank has chosen. A tensor on one index is a choice, too, and who names none has the
    first; FSDP2 gives each rank a GPU of its own."""
    for call in collections.deque((c for c in outcome.trace.of(Call) if c.name == "set_device"), maxlen=1):
        yield call.arguments["device"].rpartition(":")[2]
    named = {event.requested for event in outcome.trace.of(Mapped) if event.requested.partition(":")[0] == "cuda"}
    tensors = (tensor for call in outcome.trace.of(Collective) for tensor in call.tensors)
    uses = any(tensor.device.startswith("cuda") for tensor in tensors) if shares else bool(named)
    indices = sorted(named - {"cuda"})
    if uses and len(indices) < 2 and not any(call.name == "fully_shard" for call in outcome.trace.of(Call)):
        yield indices[0].rpartition(":")[2] if indices else "0"


def _by_the_clock(examined: Examined) -> Iterator[Discovery]:
    """A loop with collectives in it whose end depends on the time: in this run all ranks left in the same round."""
    for outcome in examined.run.ranks if examined.completed and examined.run.nproc > 1 else ():
        calls = [call for call in outcome.trace.of(Collective) if len(call.ranks) > 1]
        for event in outcome.trace.of(Clocked):
            at, (first, last) = event.asked[0], event.body
            lines = {
                call.n: [f.line for f in call.frames if (f.path, f.function) == (at.path, at.function)]
                for call in calls
            }
            inside = [n for n, found in lines.items() if any(line in range(first, last + 1) for line in found)]
            agreed = any(at.line in found for found in lines.values())
            if inside and not agreed and max(inside) < event.since:
                left = f"rank {outcome.rank} left a loop because of its own clock (line {at.line})"
                message = f"{left}, and ranks communicate in it"
                evidence = _evidence(examined, outcome.rank, "sequence", message, at)
                yield Discovery("clock", message, "", *_CLOCK, evidence=(evidence,))
                return


def _unlike_modes(examined: Examined) -> Iterator[Discovery]:
    """A module that evaluates on one rank and trains on another one, in a forward that is learnt from."""
    found = unlike_modes([outcome.trace for outcome in examined.run.ranks])
    if found is not None:
        event, ranks = found
        who = of_ranks(ranks)
        what = spoken(event.names) if event.names[0] else "the model"
        step = event.update + 1
        message = f"{what} is in evaluation mode on {who} only while the model trains, from optimizer step {step} on"
        evidence = _evidence(examined, ranks[0], "parameter", message, event.site)
        yield Discovery("modes", message, "", *_EVALUATES, evidence=(evidence,))


def _silent(examined: Examined) -> Iterator[Discovery]:
    """Damage without an error: only runs that completed are compared."""
    if not examined.completed:
        return
    traces = [outcome.trace for outcome in examined.run.ranks]
    for what, when, wraps in (("gradients", ("before_step",), ("ddp",)), ("parameters", REPLICAS_EQUAL, REPLICATED)):
        for desync in desyncs(traces, what, when, wraps):
            yield _apart(examined, desync, cause_of(traces, desync) or _mixed(examined, desync))
            return
    alone = averages_alone(traces) or loaded_alone(traces)
    if alone is not None:
        message, cause = alone
        evidence = _evidence(examined, None, "parameter", message, cause.site)
        yield Discovery("parameters", message, cause.code, cause.text, cause.fix, (evidence,))
        return
    # A model that `verify` wraps by itself may well be meant for a wrap that broadcasts its buffers.
    apart = (unshared(traces) if examined.run.wrap == "script" else None) or assigned(traces)
    if apart is not None:
        yield _apart(examined, apart[0], statistics_cause(apart[1]))
        return
    unlike = evaluated(traces)
    if unlike is not None:
        yield _apart(examined, unlike, Cause(*_OWN_STATISTICS, None))
        return
    for trace in traces:
        reference = trace.last(Reference)
        found = deviation(reference) if reference and reference.repeatable and not reference.error else None
        if found:
            name, difference = found.largest
            message = f"{found.what} differ from a single process on the full batch: {name} by {difference:.2g}"
            evidence = _evidence(examined, trace.rank, "reference", message, None)
            yield Discovery("reference", message, evidence=(evidence,))
            return
    for trace in traces:
        for event in trace.of(NoGrad):
            names = [name for name in event.names if name not in event.reference]
            if names and event.reference:
                message = f"trainable, but without a gradient at the optimizer's step: {spoken(names, 12)}"
                evidence = _evidence(examined, trace.rank, "nograd", message, event.site)
                yield Discovery("nograd", message, evidence=(evidence,))
                return


def _mixed(examined: Examined, desync: Desync) -> Cause | None:
    """Averages of unlike lines met before replicas came apart: what they are for was summed."""
    ended = desync.step - (desync.when == "after_step")
    for row in examined.rows:
        calls = [call for call in row.calls.values() if call is not None and call.op in _SUMS]
        found = paths_apart(row.calls) if len(calls) > 1 and calls[0].step <= ended else None
        if found is not None:
            text, site = found
            mixed = f"{calls[0].op} of different lines matched, and what they sum is mixed: {text}"
            return Cause(mixed, _SAME_CALLS, site)
    return None


def _fed(examined: Examined) -> Iterator[Discovery]:
    """What the loaders gave the ranks to train on."""
    traces = [outcome.trace for outcome in examined.run.ranks]
    copied = copies(traces) if examined.completed else None
    if copied is not None:
        event, ranks = copied
        code, what, fix = _UNDIVIDED[event.dataset is None]
        who = "all ranks" if len(ranks) == examined.world else f"ranks {', '.join(map(str, ranks))}"
        message = f"{who} train on the same samples: {what} gave each of them the same batches"
        evidence = _evidence(examined, None, "samples", message, event.site)
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
        evidence = _evidence(examined, None, "samples", message, found.event.site)
        yield Discovery("samples", message, "", *_OWN_PARTS, evidence=(evidence,))
    parts = unlike_parts(traces) if len(traces) > 1 else None
    if parts is not None:
        message = f"each rank has split the data differently: {parts.sampler} divides different subsets"
        evidence = _evidence(examined, None, "samples", message, parts.site)
        cause = (
            "the indices of the Subset are others on each rank: some samples are drawn on several ranks, some on none, "
        )
        cause += "and what one rank holds out another one trains on"
        fix = "use the same split on all ranks: random_split(..., generator=torch.Generator().manual_seed(0))"
        yield Discovery("samples", message, "", cause, fix, (evidence,))
    events = epoch_not_set(traces) if copied is None else ()
    if events:
        message = describe_order(events)
        evidence = _evidence(examined, None, "epochs", message, events[0].site)
        cause = "it shuffles by the epoch number, which was never set"
        fix = "call sampler.set_epoch(epoch) before each epoch"
        elsewhere = [str(trace.rank) for trace in traces if not same_order(trace)]
        if elsewhere:
            cause = f"set_epoch was called on rank {', '.join(elsewhere)} only: the ranks divide different orders, in "
            cause += "which some samples are on several ranks and some on none"
            fix = "call sampler.set_epoch(epoch) on all ranks"
        yield Discovery("epochs", message, _EPOCH_NOT_SET, cause, fix, (evidence,))


def _apart(examined: Examined, desync: Desync, cause: Cause | None) -> Discovery:
    """Replicas that differ, at the line of the cause where it is known, else at that of the update."""
    of = " of a copy of the model under DDP" if desync.wrap == COPY else ""
    message = f"{desync.what}{of} differ between the ranks {moment(desync)}: {spoken(desync.names)}"
    site = (cause.site if cause else None) or desync.site
    evidence = _evidence(examined, None, desync.what.removesuffix("s"), message, site)
    known = (cause.code, cause.text, cause.fix) if cause else ("", "", "")
    return Discovery(desync.what, message, *known, evidence=(evidence,))


def placed(discoveries: Sequence[Discovery], path: pathlib.Path) -> list[Discovery]:
    """The discoveries, each with a place: where a run shows none, the line of the target that creates the parameter
    or defines the model."""
    return [_placed(discovery, path) for discovery in discoveries]


def _placed(discovery: Discovery, path: pathlib.Path) -> Discovery:
    if discovery.line or not discovery.evidence:
        return discovery
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return discovery
    first, *rest = discovery.evidence
    line = _defined(tree, discovery.message, first.model) or 1
    first = dataclasses.replace(first, path=shown(str(path)), line=line)
    return dataclasses.replace(discovery, evidence=(first, *rest))


def _defined(tree: ast.Module, message: str, model: str) -> int:
    """The line that assigns `self.NAME` for a parameter NAME.weight of the message, else the class's."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and model in ("", node.name)]
    words = {word.strip(",;:").partition(".")[0] for word in message.split() if "." in word}
    for node in (inner for cls in classes for inner in ast.walk(cls)):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) and t.attr in words for t in node.targets):
            return node.lineno
    return classes[0].lineno if classes else 0


def _evidence(examined: Examined, rank: int | None, kind: str, message: str, frame: Frame | None) -> Evidence:
    path, line = (shown(frame.path), frame.line) if frame else ("", 0)
    return Evidence(examined.run.wrap, rank, kind, message, path, line, model=examined.run.model)

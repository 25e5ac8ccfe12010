"""Ranks waited in a collective: which rank is missing, and where it was instead."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ddp_lint.diagnose.records import Diagnosis, Event, Quote, Reading, Stack, Work, site_of, usual_place
from ddp_lint.knowledge.signatures import signature
from ddp_lint.verify.trace import Frame
from ddp_lint.verify.wording import of_ranks

_IN_COLLECTIVE = re.compile(r"torch/distributed/|_engine_run_backward|nccl|gloo", re.IGNORECASE)
_PROGRESS = re.compile(r"\d+%\||\d+/\d+ \[|(?:it|examples|batch|s)/s|\.\.\.\s*$")
_LEFT = re.compile(r"Connection (?:closed|reset) by peer|Broken pipe")
_PAIR = re.compile(r"[/\\]pipelining[/\\]|:(?:i?send|i?recv|batch_isend_irecv|(?:send|recv)_object_list)$")
#: The last that a rank says after a timeout.
_GOES_DOWN = "we are taking the entire process down"
_BACKWARD = ("backward", "_engine_run_backward", "run_backward")


def hung(events: Sequence[Event], reading: Reading, absent: set[int]) -> Diagnosis | None:
    """The fields of a diagnosis, None where no rank waited."""
    waited = [e for e in events if e.role == "hang"]
    barrier = [e for e in waited if e.kind == "monitored-barrier"]
    if barrier:
        return _barrier(barrier, events, absent)
    told = [e for e in events if e.known is not None and e.known.id == "monitored-victim"]
    if told and not any(e.shaped for e in waited):
        # What timed out, or was closed, is the exception that it quotes: the second only where rank 0 has left.
        left = any(e.known is not None and e.known.id == "peer-closed" for e in events) or _LEFT.search(told[0].text)
        rank = told[0].named[0] if told[0].named and left else None
        return Diagnosis.of(told[0], root=(told[0].quote,), rank=rank, sure="low")
    store = [e for e in waited if e.kind == "store-timeout"]
    if store and not any(e.kind in ("nccl-timeout", "gloo-timeout") and e.order < store[0].order for e in waited):
        return _store(store[0], reading)
    if any(e.kind == "gloo-timeout" for e in waited):
        return _gloo([e for e in waited if e.kind == "gloo-timeout"], events, reading, absent)
    if any(e.kind == "nccl-timeout" for e in waited) or any(w.timed_out for w in reading.works):
        return _nccl([e for e in waited if e.kind == "nccl-timeout"], events, reading, absent)
    if waited:
        return _plain(waited[0])
    return None


# ---- stacks of processes that still hang


def stuck(reading: Reading) -> Diagnosis | None:
    """What the stacks of several processes say: most wait in a collective, one is elsewhere."""
    stacks = [stack for stack in reading.stacks.values() if site_of(stack.frames).user]
    waiting = [stack for stack in stacks if _waits(stack)]
    if not waiting:
        return None
    places = Counter(site_of(stack.frames).user for stack in stacks)
    most = places.most_common(1)[0][0]
    apart = [s for s in stacks if not _waits(s)] or [s for s in stacks if site_of(s.frames).user != most]
    one = apart[0] if len(apart) == 1 and len(stacks) > 1 else None
    if one is not None and len(stacks) == 2 and _waits(one):
        one = None  # two ranks in two collectives: who is right is not to be seen
    here = one or waiting[0]
    where = [f"{_named(s)} {'waits' if _waits(s) else 'is'} at {_place_words(s)}" for s in stacks[:6]]
    return Diagnosis(
        kind="gloo-timeout" if any("gloo" in f.path for s in stacks for f in s.frames) else "nccl-timeout",
        subkind="" if one is None else "slow-rank" if not _waits(one) else "rank-conditional",
        rank=one.rank if one is not None else None,
        place=site_of(here.frames).user,
        root=(here.quote,),
        known=signature("nccl-timeout-work"),
        sure="medium" if one is not None else "low",
        what="the stacks of processes that hang",
        who="; ".join(where),
    )


def _waits(stack: Stack) -> bool:
    return any(_IN_COLLECTIVE.search(f"{f.path}:{f.function}") for f in stack.frames[:12])


def _named(stack: Stack) -> str:
    return f"rank {stack.rank}" if stack.rank is not None else f"process {stack.process}"


def _place_words(stack: Stack) -> str:
    user = site_of(stack.frames).user
    return f"{user.path.rpartition('/')[2]}:{user.line}" if user else "?"


def _plain(event: Event) -> Diagnosis:
    return Diagnosis.of(event, root=tuple(event.quotes[:4]), what=event.text.partition("\n")[0])


# ---- monitored barriers


def _barrier(barrier: Sequence[Event], events: Sequence[Event], absent: set[int]) -> Diagnosis:
    event = next((e for e in barrier if e.named), barrier[0])
    answer = _plain(event)
    named = Counter(rank for e in barrier for rank in e.named if rank != e.rank)
    if len(named) == 1:
        answer.rank = next(iter(named))
    rank = answer.rank
    its = [e for e in events if e.rank == rank and e.site.user] if rank is not None else []
    waiting = next((e.site.user for e in events if e.rank != rank and e.site.user), None)
    place = its[0].site.user if its else None
    answer.place = place or waiting
    if rank is not None and rank in absent:
        answer.subkind = "missing-rank"
    elif place is not None and waiting is not None and place[:2] != waiting[:2]:
        answer.subkind = "rank-conditional"
    elif rank is not None:
        answer.subkind = "slow-rank"
    elif len(named) > 1:
        answer.subkind, answer.who = "missing-rank", f"{of_ranks(sorted(named))} did not come"
    answer.sure = "high" if rank is not None else "medium"
    return answer


# ---- the store


def _store(event: Event, reading: Reading) -> Diagnosis:
    answer = _plain(event)
    counted = re.search(r"world_size=(\d+), worker_count=(\d+)", event.text)
    joined = re.search(r"(\d+)/(\d+) clients joined", event.text)
    if counted:
        answer.subkind = "stale-rendezvous" if int(counted[2]) > int(counted[1]) else "missing-rank"
    elif joined:
        answer.subkind = "missing-rank"
    host = re.search(
        r"\[(\d+)\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId from \[(\d+)\]", event.text
    )
    if host:
        answer.rank = int(host[2])
    output = reading.output_before.get(None) or reading.output_before.get(0)
    if answer.rank == 0 and output is not None and _PROGRESS.search(output.text):
        answer.root, answer.subkind = (output,), "slow-rank"  # it was still at work
        if output.text.rstrip().endswith("..."):  # it had begun something, and nothing shows that it went on
            answer.root = (output, event.quote)
    return answer


# ---- gloo


def _gloo(waited: Sequence[Event], events: Sequence[Event], reading: Reading, absent: set[int]) -> Diagnosis:
    event = next((e for e in waited if e.site.user), waited[0])
    answer = _plain(event)
    waiting = {e.rank for e in waited if e.rank is not None}
    lost = [e for e in reversed(events) if e.role == "secondary" and e.shaped and e.rank not in waiting]
    late = {e.rank: e for e in lost if e.rank is not None}
    answer.rank, answer.place, answer.subkind = _who_was_late(waited, late, reading, absent)
    answer.place = answer.place or event.site.user
    rank = answer.rank
    if absent and rank in absent:
        answer.kind = "early-exit-zero"
        answer.subkind = ""
        answer.known = None
    if answer.subkind == "rank-conditional":
        answer.root = (*answer.root, *_code_of([*waited, *lost]))
    output = (
        reading.output_before.get(rank)
        if rank is not None and answer.subkind in ("uneven-inputs", "rank-conditional")
        else None
    )
    if output is not None:
        answer.root = (*answer.root[:3], output)
    answer.who = _where_all_are([*waited, *lost])
    return answer


def _code_of(events: Iterable[Event]) -> list[Quote]:
    """The lines of the tracebacks that show where each rank was."""
    shown = [quote for event in events for quote in event.code[:2] if event.site.user]
    return list(dict.fromkeys(shown))[:6]


def _where_all_are(events: Iterable[Event]) -> str:
    """`rank 1 is at val.py:12; ranks 0, 2 are at val.py:23`."""
    at: dict[int, str] = {}
    for e in events:
        user = e.site.user
        if e.rank is not None and user is not None:
            at.setdefault(e.rank, f"{user.path.rpartition('/')[2]}:{user.line}")
    alike: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(at):
        alike[at[rank]].append(rank)
    return "; ".join(
        f"{of_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} at {place}" for place, ranks in alike.items()
    )


def _who_was_late(
    waited: Sequence[Event], late: dict[int, Event], reading: Reading, absent: set[int]
) -> tuple[int | None, Frame | None, str]:
    """Rank, its line and the sub-kind."""
    waiting = {e.rank for e in waited if e.rank is not None}
    if _between_two(waited):
        return None, usual_place(waited), ""
    size = reading.size or 0
    silent = set(range(size)) - waiting - set(late)
    whole = reading.world is not None or bool(reading.ends)  # else the highest rank may not be in the log
    if len(silent) == 1 and waiting and whole:
        rank = next(iter(silent))
        return rank, None, "missing-rank" if rank in absent or rank in reading.last_output else "slow-rank"
    apart = _apart([*waited, *late.values()])
    if apart is not None:
        return apart.rank, apart.site.user, "uneven-inputs" if _left_a_loop(apart, waited, late) else "rank-conditional"
    common = usual_place(waited)
    if not late:
        return _minority(waited)
    same = [rank for rank, e in late.items() if e.site.user == common]
    elsewhere = [rank for rank, e in late.items() if e.site.user is not None and e.site.user != common]
    if common is not None and len(elsewhere) == len(late) > 1 and len(waiting) == 1:
        # One rank is in a collective that all the others passed by.
        return next(iter(waiting)), common, _how_diverged(waited, [late[r] for r in elsewhere])
    if len(elsewhere) == 1 and waiting == {0} and not _trains([*waited, late[elsewhere[0]]]):
        return 0, common, "rank-conditional"  # a branch on rank 0 is the most frequent of all
    if len(elsewhere) == 1 and len(waiting) == 1 and not _trains(waited) and _trains([late[elsewhere[0]]]):
        # It has left the loop in which the other one still trains.
        return next(iter(waiting)), common, "uneven-inputs"
    if len(elsewhere) == 1:
        rank = elsewhere[0]
        return rank, late[rank].site.user, _how_diverged(waited, [late[rank]])
    if len(same) == len(late) == 1:
        return same[0], common, "slow-rank"
    return None, common, ""


def _between_two(events: Iterable[Event]) -> bool:
    """They wait in a send or recv (as a pipeline has them), which concerns no rank but the other end."""
    return any(_PAIR.search(f"{frame.path}:{frame.function}") for event in events for frame in event.frames)


def _apart(events: Sequence[Event]) -> Event | None:
    """What the one rank says that is at another line than all the others, of whom there are several."""
    at = {e.rank: e for e in reversed(events) if e.rank is not None and e.site.user is not None}
    places = Counter(e.site.user for e in at.values())
    if len(places) != 2 or len(at) < 3:
        return None
    alone = [e for e in at.values() if places[e.site.user] == 1]
    return alone[0] if len(alone) == 1 else None


def _left_a_loop(apart: Event, waited: Sequence[Event], late: dict[int, Event]) -> bool:
    others = [e for e in (*waited, *late.values()) if e is not apart]
    return not _trains([apart]) and _trains(others)


def _minority(waited: Sequence[Event]) -> tuple[int | None, Frame | None, str]:
    """All ranks wait: those at another line than most went another way."""
    places: dict[Frame, set[int]] = defaultdict(set)
    for event in waited:
        if event.site.user and event.rank is not None:
            places[event.site.user].add(event.rank)
    if len(places) < 2:
        return None, next(iter(places), None), ""
    ranked = sorted(places.items(), key=lambda item: len(item[1]))
    (place, few), (_, next_few) = ranked[0], ranked[1]
    if len(few) == 1 and len(next_few) > 1:
        return next(iter(few)), place, "rank-conditional"
    left = [e for e in waited if not _trains([e])]
    if len(left) == 1 and len(waited) > 1:  # the others still train
        return left[0].rank, left[0].site.user, "uneven-inputs"
    zero = next((e for e in waited if e.rank == 0), None)
    if zero is not None and len(waited) == 2 and not _trains(waited):
        return 0, zero.site.user, "rank-conditional"  # a branch on rank 0 is the most frequent of all
    return None, place, "mismatch"


def _how_diverged(waited: Sequence[Event], late: Sequence[Event]) -> str:
    return "uneven-inputs" if _trains(waited) and not _trains(late) else "rank-conditional"


def _trains(events: Iterable[Event]) -> bool:
    return any(frame.function in _BACKWARD for e in events for frame in e.frames)


# ---- NCCL


def _nccl(waited: Sequence[Event], events: Sequence[Event], reading: Reading, absent: set[int]) -> Diagnosis:
    named = next((e for e in waited if e.named), None)
    blames = {rank for e in waited if named is not None and e.stream == named.stream for rank in e.named}
    works = _one_for_each_rank(reading.works)
    first = next((w for w in reading.works if w.timed_out), None)
    quote = first.quote if first else waited[0].quote
    event = next((e for e in waited if e.quote == quote), waited[0] if waited else None)
    rank, subkind, blamed = (None, "", []) if _mixed(reading.works) else _behind(works, reading, absent)
    if event is not None and event.known is not None and event.known.subkind:  # the timeout is none
        rank, subkind, blamed = None, event.known.subkind, []
    if named is not None and len(blames) == 1:
        rank, subkind = named.named[0], subkind or (named.known.subkind if named.known is not None else "")
    root: list[Quote] = [w.quote for w in blamed] or [quote]
    if not reading.works and event is not None:
        root += [q for q in event.quotes if q != quote and event.known and event.known.searches.search(q.text)][:1]
    if blamed and "OpType" not in root[0].text:
        root += [w.quote for w in reading.works if w.op and w.rank == blamed[0].rank][:1]
    if named is not None and named.quote not in root:
        root.insert(0, named.quote)
    output = _last_words(rank, reading, {w.rank for w in works.values()})
    if output is not None:
        root = [output]
    place = _place_of(rank, events)
    return Diagnosis(
        kind="nccl-timeout",
        subkind=subkind,
        rank=rank,
        place=place,
        root=tuple(root[:3]),
        known=event.known if event else signature("nccl-timeout-work"),
        sure="medium" if rank is not None else "low",
        what=(blamed[0].quote if blamed else quote).text.strip(),
        who=waits_text(works.values()),
        event=event,
    )


def _mixed(works: Iterable[Work]) -> bool:
    """Lines that name no group are of several: a group gives its work up in order. Their numbers do not compare."""
    told: dict[int | None, set[int]] = defaultdict(set)
    for work in works:
        if work.group or work.seq is None or not work.op:
            continue
        before = told[work.rank]
        if before and work.seq < max(before) and work.seq not in before:
            return True
        before.add(work.seq)
    return False


def _one_for_each_rank(works: Iterable[Work]) -> dict[int, Work]:
    """What each rank says, of the group that most ranks complain of: the first timeout with what later lines add."""
    works = _in_their_groups([w for w in works if w.rank is not None])
    groups = Counter(w.group for w in works if w.timed_out and w.group)
    group = groups.most_common(1)[0][0] if groups else ""
    found: dict[int, Work] = {}
    for work in works:
        if group and work.group and work.group != group:
            continue
        assert work.rank is not None
        known = found.get(work.rank)
        if known is None:
            found[work.rank] = work
            continue
        found[work.rank] = Work(
            rank=work.rank,
            group=known.group or work.group,
            seq=known.seq if known.seq is not None else work.seq,
            op=known.op or work.op,
            numel=known.numel if known.numel is not None else work.numel,
            quote=known.quote if known.timed_out or not work.timed_out else work.quote,
            order=known.order,
            enqueued=known.enqueued if known.enqueued is not None else work.enqueued,
            completed=known.completed if known.completed is not None else work.completed,
            timed_out=known.timed_out or work.timed_out,
        )
    return found


def _in_their_groups(works: Sequence[Work]) -> list[Work]:
    """With the group of a timeout whose own line names none, where a later line of the rank names it for that work."""
    named = {(w.rank, w.seq or 0): w.group for w in works if w.group and w.seq is not None}
    return [dataclasses.replace(w, group=w.group or named.get((w.rank, w.seq or 0), "")) for w in works]


def _behind(works: dict[int, Work], reading: Reading, absent: set[int]) -> tuple[int | None, str, list[Work]]:
    """The rank that is behind (or did not come), how, and what its own line or the first one says."""
    timed = {rank: w for rank, w in works.items() if w.timed_out}
    first = sorted(timed.values(), key=lambda w: w.order)
    if not timed:
        return None, "", []
    seqs = {rank: w.seq for rank, w in timed.items() if w.seq is not None}
    # A rank that never issued the collective in which the others wait.
    lowest = min(seqs.values(), default=None)
    short = [r for r, w in works.items() if w.enqueued is not None and lowest is not None and w.enqueued < lowest]
    if len(short) == 1:
        return short[0], "missing-rank", first[:1]
    at = [w for w in timed.values() if w.seq == lowest]
    unlike = len({w.op for w in at if w.op}) > 1 or len({w.numel for w in at if w.numel is not None}) > 1
    others = len({w.seq for w in timed.values() if w.seq is not None}) > 1
    if (unlike or others) and reading.world is not None and len(timed) < reading.world - 1:
        return None, "", first[:1]  # most ranks are not in this log: one of them may be further behind
    if unlike or others:
        rank = _least(at)
        mismatch = unlike or len({w.op for w in timed.values() if w.op}) > 1
        return rank, "mismatch" if mismatch else "", [works[rank]] if rank is not None else first[:1]
    missing = set(range(reading.size or 0)) - set(timed)
    if len(missing) == 1 and _all_but_one_speak(len(timed), reading):
        rank = next(iter(missing))
        return rank, "slow-rank" if rank not in absent else "missing-rank", first[:1]
    if lowest is not None and lowest <= 1:
        return None, "network", first[:1]
    enqueued = max((w.enqueued or 0) - (w.seq or 0) for w in timed.values())
    return None, "missing-rank" if enqueued > 1 else "", first[:1]


def _all_but_one_speak(timed: int, reading: Reading) -> bool:
    """The number of ranks is known, or it is a likely one: a log that was cut off shows just some of the ranks."""
    size = reading.size or 0
    return reading.world == size or (timed > 2 and size % 2 == 0 and _goes_on(timed, reading))


def _goes_on(timed: int, reading: Reading) -> bool:
    """The log does not end among the timeouts: the launcher speaks, or each rank says that it goes down."""
    told = [e for e in reading.events if e.known is not None and e.known.id in ("nccl-follow-up", "nccl-taken-down")]
    down = sum(e.count for e in told if _GOES_DOWN in e.text)  # older releases say it in the line of the follow-up
    return bool(reading.ends) or down >= timed


def _least(at: Sequence[Work]) -> int | None:
    """Of the ranks at the lowest number, the one that has issued least after it."""
    if len(at) == 1:
        return at[0].rank
    if any(w.enqueued is None for w in at):
        return None
    ordered = sorted(at, key=lambda w: w.enqueued or 0)
    return ordered[0].rank if (ordered[0].enqueued or 0) < (ordered[1].enqueued or 0) else None


def _last_words(rank: int | None, reading: Reading, speaking: set[int | None]) -> Quote | None:
    """What the rank that did not come wrote last; in a log without prefixes it is rank 0 that writes."""
    if rank is None or rank in speaking:
        return None
    output = reading.output_before.get(rank)
    return output or (reading.output_before.get(None) if rank == 0 else None)


def _place_of(rank: int | None, events: Sequence[Event]) -> Frame | None:
    located = [e for e in events if e.site.user and e.role in ("secondary", "hang", "own")]
    its = [e for e in located if rank is not None and e.rank == rank]
    return usual_place(its or located)


def waits_text(works: Iterable[Work]) -> str:
    """`rank 0 waits in ALLREDUCE (work 7106); ...`, one text for ranks that wait in the same."""
    works = list(works)
    named = {(work.seq, work.op) for work in works if work.op}
    times = Counter(seq for seq, _ in named)
    ops = {seq: op for seq, op in named if times[seq] == 1}
    alike: dict[str, list[int]] = defaultdict(list)
    for work in works:
        if work.rank is None:
            continue
        size = f" of {work.numel} elements" if work.numel is not None else ""
        number = f" (work {work.seq})" if work.seq is not None else ""
        alike[f"{work.op or ops.get(work.seq, 'a collective')}{size}{number}"].append(work.rank)
    parts = []
    for text, ranks in alike.items():
        parts.append(f"{of_ranks(sorted(ranks))} wait{'s' * (len(ranks) == 1)} in {text}")
    return "; ".join(parts)

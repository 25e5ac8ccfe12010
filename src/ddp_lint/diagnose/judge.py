"""Which event is the root, which are consequences, and which rank is to blame.

The order of precedence: what a rank reports of its own failure; how a process was killed; messages that show that the
ranks did different things; a wait that timed out; a rank that left with code 0; and only then what can only be a
consequence. Within one class the earliest wins.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ddp_lint.diagnose import hangs
from ddp_lint.diagnose.mismatch import diverged
from ddp_lint.diagnose.records import Diagnosis, End, Event, Quote, Reading, first_line, site_of, usual_place
from ddp_lint.knowledge.signatures import explain, meets_all_ranks, signature
from ddp_lint.verify.trace import Frame
from ddp_lint.verify.wording import of_ranks

#: Errors that often follow from what was before them: they count only where nothing else does.
_WEAK = frozenset(
    {
        "nccl-system",
        "hccl-system",
        "nccl-connect",
        "ckpt-size",
        "load-missing",
        "dynamo",
        "rendezvous-connection",
        "rendezvous-closed",
        "cuda-kernel",
        "gloo-connection",
    }
)
_SIGNALS = {-9: "sigkill", -11: "sigsegv", -7: "sigbus", -4: "sigill", -6: "sigabrt", -8: "sigsegv"}
_LOADING = re.compile(r"torch[/\\]serialization\.py|load_checkpoint|load_state_dict|from_pretrained|_load_from")
_SHARING = re.compile(r"multiprocessing[/\\](?:synchronize|reductions?|heap|shared_memory)\.py")
_OTHER_DTYPE = re.compile(r"same dtype|expected scalar type|but found \w+16|expected dtype")
_KEYS = re.compile(r"(Missing|Unexpected) key\(s\) in state_dict: ([^\n]*)")
_TORCHRUN_STOPS = re.compile(r"multiprocessing[/.]api(?:\.py)?:?\d*\]?:?\s?Sending process \d+ closing signal SIGTERM")
#: What a watchdog says after a timeout and after any other error.
_AFTER_AN_ERROR = frozenset({"nccl-follow-up", "nccl-taken-down", "nccl-watchdog-ended"})
#: What a skipped step leaves of the loss scale.
_SCALE = re.compile(r"(?:reducing|loss scale) to:? (\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\b")
#: SIGHUP, SIGINT and SIGTERM: somebody asked the process to end.
_REQUESTS = frozenset({-1, -2, -15})
_SECONDARY_SHOWN = 12
#: Seconds between two failures of which the earlier one is the first: one launcher sees them at once.
_APART = 2
#: torchrun's line of the process that failed first, and the lines of its block.
_TORCHRUN = re.compile(r"local_rank: \d+|^\W*(?:traceback|exitcode|rank)\s*:")


def judge(reading: Reading) -> Diagnosis:
    """The diagnosis of everything that was read."""
    cases = _Cases(reading)
    found = (
        cases.own()
        or cases.killed()
        or cases.diverged()
        or cases.hung()
        or cases.vanished()
        or cases.weak()
        or cases.stopped_on_request()
        or cases.aborted()
        or cases.warned()
        or cases.stuck()
        or cases.victims()
        or cases.unfinished(known=True)
        or cases.launcher_only()
        or cases.unfinished()
        or cases.mentioned()
        or Diagnosis("unknown", sure="low")
    )
    return dataclasses.replace(found, secondary=cases.secondary(found), launcher=_launcher(reading, found))


class _Cases:
    """Each method tries one class of causes, and is called only where none before it applied."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        events = [event for event in reading.events if not _superseded(event)]
        self.events = [e for e in events if not (_waits_to_start(e) and e.order < reading.registered)]
        self.ranks = reading.ranks
        self._lost_peer = _lost_peer(self.events)

    # ---- own failures

    def own(self) -> Diagnosis | None:
        own = [e for e in self.events if e.role == "own" and not e.soft and not _weak(e)]
        own = [e for e in own if not self._follows(e)]
        if not own:
            return None
        if _autotuning_went_on(own, self.events):
            return self._warning(next(e for e in self.events if e.kind == "triton-resources" and _harmless(e)))
        if told := self._told(own):
            return told
        shaped = [e for e in own if e.shaped]
        root = min(shaped or own, key=lambda e: e.order)
        end = self._ended_in(root)
        if root.kind == "python-exception" and not root.known:
            # A signature of the same process says more than the exception that it ended in.
            same = [e for e in own if e.known and e.order < root.order and not e.shaped and e.rank in (None, root.rank)]
            return self._of_own(same[0] if same else root, own, root)
        elif shaped and not root.shaped:
            root = shaped[0]
        return self._of_own(root, own, end)

    def _told(self, own: Sequence[Event]) -> Diagnosis | None:
        """What the first failure only passes on is the root, although a mere line says it, or a later one."""
        first = min(own, key=lambda e: (not e.shaped, e.order))
        told = [e for e in self.events if _reports(first, e)]
        if not told:
            return None
        ids = {e.known.id for e in told if e.known is not None}
        alike = [
            first,
            *(e for e in own if e is not first and e.known is not None and not ids.isdisjoint(e.known.reports)),
        ]
        rank = self._rank_of(told[0].kind, told[0], [*told, *alike])
        place = next((e for e in alike if e.site.user), first)
        return Diagnosis.of(
            told[0],
            subkind=told[0].known.subkind if told[0].known else "",
            rank=rank,
            place=place.place or self._cut_off(rank),
            root=tuple(_once([e.quote for e in told]))[:3],
            sure="high" if first.shaped else "medium",
            event=place,
            who=self._who([*told, *alike], rank),
        )

    def _ended_in(self, root: Event) -> Event | None:
        """The exception in which the process of a line without a traceback then ended."""
        if root.shaped:
            return None
        later = (e for e in self.events if e.order > root.order and e.shaped and e.site.user and e.rank == root.rank)
        return next((e for e in later if e.stream == root.stream and e.role == "own"), None)

    def _follows(self, event: Event) -> bool:
        """The rank had already timed out or lost a peer when it failed."""
        return event.rank is not None and self._lost_peer.get(event.rank, event.order) < event.order

    def _of_own(self, root: Event, own: Sequence[Event], end: Event | None = None) -> Diagnosis:
        """`end` is the exception that the process ended in, where that is another event."""
        kind = _refined(root)
        alike = [e for e in own if _refined(e) == kind and e.shaped >= root.shaped]
        if kind == "python-exception":
            alike = [e for e in alike if e.type == root.type]
        rank = self._rank_of(kind, root, alike)
        event = next((e for e in alike if e.rank == rank and e.site.user), root) if rank is not None else root
        if event.site.user is None:
            event = next((e for e in alike if e.site.user), event)
        sure = "high" if root.shaped and (root.known or event.site.user) else "medium"
        return Diagnosis.of(
            root,
            kind=kind,
            subkind=root.known.subkind if root.known else "",
            rank=rank,
            place=event.place or (end.place if end is not None else None) or self._cut_off(rank),
            root=tuple(
                _once([*self._warned(root), *root.quotes[:10], *self._soft(root), *_same_rank(root, own), *event.code])
            ),
            sure=sure,
            event=event,
            who=self._who(alike, rank),
        )

    def _warned(self, root: Event) -> list[Quote]:
        """NCCL's own warning before the exception, which names the call that failed."""
        if root.kind != "nccl-system-error":
            return []
        warns = (e for e in self.events if e.kind == root.kind and not e.shaped and "NCCL WARN" in e.quote.text)
        return [e.quote for e in warns if e.order < root.order][:1]

    def _soft(self, root: Event) -> list[Quote]:
        """Warnings that say the same in more words."""
        return [e.quote for e in self.reading.events if e.soft and e.kind == root.kind][:2]

    def _cut_off(self, rank: int | None) -> Frame | None:
        """The user's line of a traceback that the log cuts off, where no other line is known."""
        frames = [(cut.rank, site_of(cut.frames).user) for cut in self.reading.cut_off]
        fits = [user for of, user in frames if user is not None and (rank is None or of in (None, rank))]
        return fits[-1] if fits else None

    def _who(self, alike: Sequence[Event], rank: int | None) -> str:
        ranks = sorted({e.rank for e in alike if e.rank is not None})
        if rank is None and len(ranks) > 1:
            return f"{of_ranks(ranks)} failed in the same way"
        return ""

    def _rank_of(self, kind: str, root: Event, alike: Sequence[Event]) -> int | None:
        if len(root.named) == 1 and (kind != "ddp-param-mismatch" or "inconsistent 0 params" in root.text):
            stale = kind == "fsdp-device" and root.rank not in (None, root.named[0])
            return None if stale else root.named[0]
        if kind == "ddp-param-mismatch":
            return None  # which of the two models is the right one is not to be seen
        ranks = {e.rank for e in alike if e.rank is not None}
        if kind == "shape-mismatch-gather":
            return _odd_shape(root.text)
        if meets_all_ranks(kind) and len(ranks) == 1 and self._others_are_victims(ranks):
            return next(iter(ranks))
        if meets_all_ranks(kind):
            return None
        if len(ranks) == 1 and self._cut_off_alike(ranks, alike):
            return None
        if len(ranks) == 1 and kind == "python-exception" and self._failed_unseen() - ranks:
            return None
        if len(ranks) == 1:
            # What only rank 0 printed may have been printed by all: often only its output is kept.
            alone = ranks == {0} == self.ranks and not self._rank_by_exit() and not self._others_were_stopped()
            return None if alone else next(iter(ranks))
        if len(ranks) > 1:
            return None
        first = {end.rank for end in self.reading.ends if end.first} if kind == "host-oom" else set()
        return next(iter(first)) if len(first) == 1 else self._rank_by_exit()

    def _cut_off_alike(self, ranks: set[int], alike: Sequence[Event]) -> bool:
        """The log cuts off a traceback of another rank that went the same way."""
        way = {(frame.path, frame.function) for event in alike for frame in event.frames}
        others = [cut for cut in self.reading.cut_off if cut.rank is not None and cut.rank not in ranks]
        return any((frame.path, frame.function) in way for cut in others for frame in cut.frames)

    def _failed_unseen(self) -> set[int]:
        """Ranks that failed first by the launcher's list and have no word in the log: they may have failed alike."""
        spoke = {event.rank for event in self.reading.events}
        return {end.rank for end in self.reading.ends if end.first and end.rank is not None and end.rank not in spoke}

    def _others_are_victims(self, ranks: set[int]) -> bool:
        """Another rank lost its peer, or was stopped while it worked, and did not fail in the same way."""
        lost = {e.rank for e in self.events if e.role in ("secondary", "hang") and e.shaped} - ranks - {None}
        return bool(lost)

    def _others_were_stopped(self) -> bool:
        """torchrun shows what all its ranks write, and had to stop one that had not failed."""
        return any(end.stopped and _TORCHRUN_STOPS.search(end.quote.text) for end in self.reading.ends)

    def _rank_by_exit(self) -> int | None:
        """The one rank that failed by itself, by the launcher's list."""
        failed = {end.rank for end in self.reading.ends if end.rank is not None and not end.stopped and end.code != 0}
        others = any(end.stopped for end in self.reading.ends) or len(self.reading.ranks) > 1
        return next(iter(failed)) if len(failed) == 1 and others else None

    # ---- killed

    def killed(self) -> Diagnosis | None:
        return self._ended((-9, -11, -7, -4, -8))

    def aborted(self) -> Diagnosis | None:
        return self._ended((-6,))

    def _ended(self, codes: tuple[int, ...]) -> Diagnosis | None:
        stopped = {e.quote for e in self.reading.ends if e.stopped}
        ends = [e for e in self.reading.ends if e.code in codes and not e.stopped]
        exits = [e for e in self.events if e.role == "exit" and _code_of(e) in codes and e.quote not in stopped]
        if codes != (-6,):
            exits += [e for e in self.events if e.role == "exit" and _code_of(e) == 0]
        if not ends and not exits:
            return None
        fatal = next((e for e in exits if e.shaped), None)
        code = _code_of(fatal) if fatal else ends[0].code if ends else 0
        known = signature(_SIGNALS[code]) if code in _SIGNALS else exits[0].known
        assert known is not None
        first = [e for e in ends if e.first] or ends
        ranks = {e.rank for e in ends if e.rank is not None}
        everybody = len(ranks) > 1 and len(ranks) >= (self.reading.size or 0)
        rank = None if everybody or not ranks else next(iter(ranks)) if len(ranks) == 1 else first[0].rank
        if rank is None and not ends:
            rank = next((e.rank for e in exits if e.rank is not None), None)
        quotes = [e.quote for e in exits] + [e.quote for e in sorted(ends, key=lambda e: not e.first)]
        place = fatal.site.user if fatal else self._last_place(rank)
        return Diagnosis(
            kind=known.kind,
            rank=rank,
            place=place,
            root=tuple(_once(quotes))[:6],
            known=known,
            sure="high" if fatal else "medium",
            what=first_line(quotes[0].text),
            event=fatal,
        )

    def _last_place(self, rank: int | None) -> Frame | None:
        """Where the other ranks met the loss of this one: the collective that it did not reach."""
        return usual_place(e for e in self.events if e.rank != rank and e.role in ("secondary", "hang"))

    # ---- the ranks did different things, or a rank waited

    def diverged(self) -> Diagnosis | None:
        events = [e for e in self.events if e.role == "diverged"]
        if not events:
            return None
        seen = diverged(events, self.reading)
        seen.place = seen.place or self._cut_off(None)
        return seen

    def hung(self) -> Diagnosis | None:
        seen = hangs.hung(self.events, self.reading, self.absent())
        if seen is not None:
            seen.place = seen.place or self._cut_off(seen.rank)
        return seen

    def stopped_on_request(self) -> Diagnosis | None:
        """Only the follow-ups of a timeout are there: the watchdog's own hang, the signal to dump."""
        events = [e for e in self.events if e.role == "secondary" and e.kind == "nccl-timeout"]
        if not events:
            return None
        others = [e for e in self.events if e.role == "secondary" and e.kind == "nccl-remote-error"]
        if others and all(e.known is not None and e.known.id in _AFTER_AN_ERROR for e in events):
            return None  # the watchdog says the same after an error of NCCL
        heartbeat = next((e for e in events if e.known and e.known.id == "nccl-heartbeat"), events[0])
        root = tuple(heartbeat.quotes[:2])
        return Diagnosis.of(heartbeat, rank=None, place=self._cut_off(None), root=root, sure="low")

    def stuck(self) -> Diagnosis | None:
        return hangs.stuck(self.reading)

    def absent(self) -> set[int]:
        """Ranks that the launcher neither lists as failed nor had to stop: they had left with code 0."""
        ends = self.reading.ends
        blamed = {end.rank for end in ends if end.rank is not None}
        listed = {end.pid for end in ends if end.rank is not None}
        stopped = {end.pid for end in ends if end.stopped and end.rank is None} - listed
        size = self.reading.size
        if not any(end.first and not end.alone for end in ends) or not size:
            return set()
        finished = {e.rank for e in self.events if e.rank is not None and e.role != "warning"}
        missing = set(range(size)) - blamed - finished
        return missing if len(missing) > len(stopped) else set()

    def vanished(self) -> Diagnosis | None:
        missing = self.absent()
        victims = [e for e in self.events if e.role in ("secondary", "hang") and e.shaped]
        if not victims:
            return None
        stopped = self._stopped_while_leaving(victims)
        if not missing and stopped is None and not self._alone(victims):
            return None
        if missing:
            rank = next(iter(missing)) if len(missing) == 1 else None
        else:
            rank = stopped if stopped is not None else _gap({e.rank for e in victims})
        output = self.reading.last_output.get(rank) if rank is not None else None
        place = self._last_place(rank)
        quotes = [output] if output else [victims[0].quote]
        return Diagnosis(
            kind="early-exit-zero",
            rank=rank,
            place=place,
            root=tuple(quotes),
            sure="medium",
            what=(
                "a rank closed its connections without an error"
                if stopped is not None
                else "a rank is missing from the launcher's list of failures"
            ),
        )

    def _stopped_while_leaving(self, victims: Sequence[Event]) -> int | None:
        """The one rank that says nothing, where every other rank lost its peer and the launcher had to stop this one.

        It had closed its connections and was still shutting down when the launcher's SIGTERM came: nobody else can
        have closed them. Where the store was lost, or one rank more says nothing, that does not follow.
        """
        if any(e.known is None or e.known.id != "peer-closed" for e in victims):
            return None
        ends = self.reading.ends
        listed = {end.pid for end in ends if end.rank is not None}
        # A rank that then ended by itself is not listed: the launcher names its process alone, as it sends the signal.
        unlisted = {end.pid for end in ends if end.stopped and end.rank is None} - listed
        size = max(self.reading.size or 0, len(listed | unlisted))
        silent = set(range(size)) - {e.rank for e in victims}
        if len(silent) != 1 or any(e.rank in silent for e in self.events if e.role != "warning"):
            return None
        rank = next(iter(silent))
        stopped = {end.rank for end in ends if end.stopped and end.rank is not None}
        return rank if stopped == {rank} or (not stopped and len(unlisted) == 1) else None

    def _alone(self, victims: Sequence[Event]) -> bool:
        """torchrun lists one failure, which is a victim, and had no process to stop."""
        ends = [end for end in self.reading.ends if end.rank is not None]
        ranks = {end.rank for end in ends}
        stopped = any(end.stopped for end in self.reading.ends)
        return (
            bool(ends)
            and not stopped
            and ranks <= {e.rank for e in victims}
            and len(ranks) < max(2, self.reading.size or 2)
        )

    # ---- what is left

    def weak(self) -> Diagnosis | None:
        end = min((e.order for e in self.events if e.kind == "job-cancelled"), default=None)
        own = [e for e in self.events if e.role == "own" and not e.soft and (end is None or e.order < end)]
        if end is not None:  # the rendezvous is closed because the job was ended
            own = [e for e in own if e.known is None or e.known.id != "rendezvous-closed"]
        if not own:
            return None
        return self._told(own) or self._of_own(min(own, key=lambda e: (not e.shaped, e.order)), own)

    def warned(self) -> Diagnosis | None:
        warnings = [e for e in self.events if e.role == "warning" or e.soft]
        if self._shows_a_failure():  # what is harmless by itself does not explain it
            warnings = [e for e in warnings if not _harmless(e)]
        if not warnings or any(e.role in ("secondary",) and e.shaped for e in self.events):
            return None
        order = {"nan-loss": 0, "loss-scale": 0, "recompile-limit": 1, "triton-resources": 1, "nccl-timeout": 2}
        return self._warning(min(warnings, key=lambda e: (_harmless(e), order.get(e.kind, 3), e.order)))

    def _warning(self, event: Event) -> Diagnosis:
        assert event.known is not None
        place = next((f for e in (event, *self.events) if e.kind == event.kind for f in e.frames[:1]), None)
        subkind = event.known.subkind
        if event.known.id == "loss-scale-skip" and not self._shows_a_failure() and _scales(self.events):
            subkind = "benign"
        return Diagnosis.of(event, subkind=subkind, place=place, sure="low")

    def _shows_a_failure(self) -> bool:
        """Anything at all tells that the job ended otherwise than it should, or that it hangs."""
        reading = self.reading
        ended = any(end.stopped or end.code not in (0, None) for end in reading.ends)
        told = any(event.role not in ("warning", "note") and not event.soft for event in self.events)
        return ended or told or bool(reading.cut_off or reading.stacks or reading.works or reading.mentioned)

    def victims(self) -> Diagnosis | None:
        """Nobody but victims: the end that went away is not in this log."""
        victims = [
            e
            for e in self.events
            if e.role == "secondary" and e.kind not in ("child-failed-no-traceback", "nccl-timeout")
        ]
        if not victims:
            return None
        # The thread that speaks to the network says that it failed, whatever it was that failed.
        victims = [e for e in victims if e.known is None or e.known.id != "nccl-proxy-call"] or victims
        remote = [e for e in victims if "remote=[" in e.text]
        event = (remote or [e for e in victims if e.shaped] or victims)[0]
        host = event.kind == "store-peer-closed" and (
            remote or any(e.known and e.known.id.startswith("store") for e in victims)
        )
        told = next((e.last_error for e in victims if e.kind == event.kind and e.last_error), None)
        known = explain(told.text) if told is not None else None
        known = known if known is not None and known.kind == event.kind else event.known
        root = (told,) if told is not None else tuple(event.quotes[:3])
        subkind = known.subkind if known is not None else ""
        silent = self._silent({e.rank for e in victims})
        place = usual_place(victims) or (None if event.shaped else self._cut_off(None))
        rank = silent if silent is not None else 0 if host and 0 not in {e.rank for e in victims} else None
        return Diagnosis.of(event, rank=rank, place=place, sure="low", root=root, known=known, subkind=subkind)

    def _silent(self, speaking: set[int | None]) -> int | None:
        """The one rank that says nothing while all others complain."""
        size = self.reading.size
        if not size or size < 2 or None in speaking:
            return None
        silent = set(range(size)) - {rank for rank in speaking if rank is not None}
        return next(iter(silent)) if len(silent) == 1 and size > 2 else None

    def launcher_only(self) -> Diagnosis | None:
        cancelled = next((e for e in self.events if e.kind == "job-cancelled"), None)
        if cancelled is not None and not self._failed_before(cancelled.quote):
            return Diagnosis.of(cancelled, rank=None, place=None, root=tuple(cancelled.quotes[:2]), event=None)
        launcher = [e for e in self.events if e.role == "launcher"]
        ends = [e for e in self.reading.ends if e.code not in (0, None) and not e.stopped]
        stopped = [e for e in self.reading.ends if e.stopped]
        if not launcher and not ends and not stopped:
            return None
        failed = {e.rank for e in ends if e.rank is not None}
        asked = bool(ends) and all(e.code in _REQUESTS for e in ends)
        quotes = [e.quote for e in ends if "To enable" in e.quote.text] or [e.quote for e in ends]
        quotes = quotes or [_telling(e) for e in launcher[:1]] or [e.quote for e in stopped]
        if asked:
            return Diagnosis("job-cancelled", root=tuple(_once(quotes))[:3], known=signature("cancelled"), sure="low")
        named = {rank for e in launcher for rank in e.named} if not ends else set()
        rank = next(iter(failed)) if len(failed) == 1 and (stopped or self.reading.no_others) else _earliest(ends)
        return Diagnosis(
            kind="child-failed-no-traceback",
            rank=next(iter(named)) if len(named) == 1 else rank,
            root=tuple(_once(quotes))[:3],
            known=launcher[0].known if launcher and not ends else signature("no-record"),
            sure="low",
            what=first_line(quotes[0].text),
        )

    def _failed_before(self, quote: Quote) -> bool:
        """A task had failed by itself when the scheduler ended the job: because of that."""
        ends = [e for e in self.reading.ends if e.code not in (0, None, *_REQUESTS) and not e.stopped]
        return any(e.quote.source == quote.source and e.quote.number < quote.number for e in ends)

    def unfinished(self, *, known: bool = False) -> Diagnosis | None:
        """Only tracebacks that the log cuts off before their exception; `known`: of ranks, not of a launcher."""
        cuts = [cut for cut in self.reading.cut_off if cut.code and site_of(cut.frames).user is not None]
        cuts = [cut for cut in cuts if cut.rank is not None or not known]
        if not cuts:
            return None
        cut, ranks = cuts[0], {cut.rank for cut in self.reading.cut_off}
        return Diagnosis(
            kind="python-exception",
            rank=cut.rank if len(ranks) == 1 and ranks != {0} else None,
            place=site_of(cut.frames).user,
            root=cut.code[-3:],
            sure="low",
            cut_off=True,
        )

    def mentioned(self) -> Diagnosis | None:
        """Nothing but an exception that somebody quotes in a sentence."""
        event = next(iter(self.reading.mentioned), None)
        return Diagnosis.of(event, rank=event.rank, sure="low") if event is not None else None

    # ---- consequences

    def secondary(self, found: Diagnosis) -> tuple[Quote, ...]:
        """The lines that follow from the root, which its own lines are not among."""
        root = {(quote.source, quote.number) for quote in found.root}
        quotes = [e.quote for e in self.reading.events if e is not found.event and self._is_consequence(e, found)]
        quotes += [end.quote for end in self.reading.ends if end.stopped]
        quotes += [end.quote for end in self.reading.ends if end.rank != found.rank and not end.stopped]
        return tuple(q for q in _once(quotes) if (q.source, q.number) not in root)[:_SECONDARY_SHOWN]

    def _is_consequence(self, event: Event, found: Diagnosis) -> bool:
        if event.role in ("secondary", "launcher"):
            return True
        if event.role in ("hang", "diverged", "exit"):
            return found.kind != event.kind
        return event.role == "own" and event.kind != found.kind


def _same_rank(root: Event, own: Sequence[Event]) -> list[Quote]:
    """What else the same process says of the same failure: the exception that a caller raises anew may say less."""
    kind = _refined(root)
    alike = [e for e in own if _refined(e) == kind and (e.type == root.type or kind != "python-exception")]
    return [e.quote for e in alike if e is not root and e.rank == root.rank and e.stream == root.stream][:2]


def _odd_shape(text: str) -> int | None:
    """The one process whose shape differs from all the others'."""
    shapes = {int(m[1]): m[2] for m in re.finditer(r"Process (\d+): (\[[^\n]*\])", text)}
    counts = Counter(shapes.values())
    odd = [process for process, shape in shapes.items() if counts[shape] == 1]
    return odd[0] if len(odd) == 1 and len(shapes) > 2 else None


def _earliest(ends: Sequence[End]) -> int | None:
    """The rank that failed before all the others, by the seconds that torchrun's lists have."""
    timed = sorted((end.time, end.rank) for end in ends if end.time is not None and end.rank is not None)
    if len(timed) < 2 or len(timed) < len({end.rank for end in ends}):
        return None
    return timed[0][1] if timed[1][0] - timed[0][0] >= _APART else None


def _gap(ranks: set[int | None]) -> int | None:
    """The one number that is missing among the ranks in the log, else the next one: all others would be in it, too."""
    speaking = {rank for rank in ranks if rank is not None}
    if not speaking:
        return None
    missing = set(range(max(speaking) + 1)) - speaking
    return next(iter(missing)) if len(missing) == 1 else None if missing else max(speaking) + 1


def _lost_peer(events: Iterable[Event]) -> dict[int, int]:
    """For each rank, the order of its first timeout or lost peer."""
    first: dict[int, int] = {}
    for event in events:
        if event.rank is None or event.role not in ("hang", "secondary") or not event.shaped:
            continue
        if "monitoredBarrier" not in event.text:
            first[event.rank] = min(event.order, first.get(event.rank, event.order))
    return first


def _superseded(event: Event) -> bool:
    """An exception that was raised while another one was handled, or the one that led to it: the telling one stays."""
    after = event.leads_to
    if after is None:
        return False
    if after.role in ("secondary", "hang", "launcher"):
        return False
    if event.known and event.role == "own":
        return False
    return event.site.user is None or (after.known is not None and event.known is None)


def _waits_to_start(event: Event) -> bool:
    """A rank says that it waits for the others to start; it says otherwise when it gives up."""
    return event.known is not None and event.known.id == "store-barrier" and not event.shaped


def _weak(event: Event) -> bool:
    return event.known is not None and (event.known.id in _WEAK or event.role != "own")


def _telling(event: Event) -> Quote:
    """The line of its message that has the known words."""
    known = event.known
    return next((q for q in event.quotes if known is not None and known.searches.search(q.text)), event.quote)


def _reports(event: Event, of: Event) -> bool:
    """The one only passes on what the other says, for all that the ranks tell."""
    if event.known is None or of.known is None or of.known.id not in event.known.reports:
        return False
    return of.rank is None or event.rank is None or of.rank == event.rank


def _harmless(event: Event) -> bool:
    return event.known is not None and event.known.subkind == "benign"


def _scales(events: Iterable[Event]) -> bool:
    """The loss scale has some way to go: a scaler begins far too high on purpose, and looks for its value by skips."""
    reached = [m for e in events if e.known and e.known.id == "loss-scale-skip" for m in _SCALE.finditer(e.text)]
    return bool(reached) and float(reached[-1][1]) > 1


def _autotuning_went_on(own: Sequence[Event], events: Sequence[Event]) -> bool:
    benign = any(e.kind == "triton-resources" and _harmless(e) for e in events)
    return benign and all(e.kind == "triton-resources" and not e.frames for e in own)


def _refined(event: Event) -> str:
    """The kind of an event, with what its traceback adds."""
    if event.kind == "cuda-oom" and any(_LOADING.search(f"{f.path} {f.function}") for f in event.frames[:8]):
        return "oom-rank0-load"
    if event.kind == "python-exception" and any("/fsdp/" in f.path for f in event.frames):
        if _OTHER_DTYPE.search(event.text):
            return "fsdp-dtype"
        if "on the same device" in event.text:
            return "fsdp-device"
    if event.kind == "python-exception" and "No space left on device" in event.text and _shares(event.frames):
        return "dataloader-shm"
    if "key(s) in state_dict" in event.text and _differ_by_a_prefix(event.text):
        return "ckpt-prefix"
    return event.kind


def _shares(frames: Sequence[Frame]) -> bool:
    """The program was making a lock, or handing memory to another process: both are files in /dev/shm."""
    return any(_SHARING.search(frame.path) for frame in frames[:8])


def _differ_by_a_prefix(text: str) -> bool:
    """A name that is missing is one of those that are too many, but for what is before it."""
    listed = {m[1]: set(re.findall(r'"([^"]+)"', m[2])) for m in _KEYS.finditer(text)}
    missing, unexpected = listed.get("Missing", set()), listed.get("Unexpected", set())
    tails = {name.partition(".")[2] for name in missing | unexpected}
    return any(name in tails and f".{name}" in f" {' '.join(missing | unexpected)}" for name in missing | unexpected)


def _code_of(event: Event) -> int:
    return next((code for code, name in _SIGNALS.items() if event.known and name == event.known.id), 1)


def _once(quotes: Iterable[Quote]) -> list[Quote]:
    return list(dict.fromkeys(quotes))


def _launcher(reading: Reading, found: Diagnosis) -> str:
    """Whether torchrun's "first observed failure" is the rank that is to blame."""
    first: list[End] = [end for end in reading.ends if end.first and end.rank is not None]
    if not first or found.rank is None:
        return ""
    named = first[-1].rank
    who = "torchrun's block" if any(_TORCHRUN.search(end.quote.text) for end in first) else "the launcher"
    if named == found.rank:
        return f"{who} agrees: it names rank {named}"
    if all(event.rank != named for event in reading.events):
        return f"{who} names rank {named}, whose own error is not in this log"
    return f"{who} names rank {named}: it failed first, but as a consequence"

"""Dumps of PyTorch's Flight Recorder (NCCL and gloo, pickle and JSON): read with nothing executed, and aligned."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import pathlib
import pickle
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddp_lint.diagnose.records import Diagnosis, Quote, is_library
from ddp_lint.knowledge.signatures import signature
from ddp_lint.verify import match
from ddp_lint.verify.match import Ending, Mismatch
from ddp_lint.verify.trace import Collective, Frame, Tensor
from ddp_lint.verify.wording import of_ranks

_LARGEST = 256 << 20
_PEEK = 1 << 16
#: Values that a byte of a pickle may stand for: its frames are in many entries.
_WRITTEN_OUT = 20
#: Memory that reading any takes.
_SPARE = 256 << 20
_CONTAINERS = (dict, list, tuple, set, frozenset)
_LAST_DIGITS = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|bin|dump))?$")
#: How many of the last positions of a group a table shows.
_SHOWN = 6
_OPS = {
    "allreduce": "all_reduce", "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor", "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor", "alltoall": "all_to_all",
    "all_reduce_barrier": "barrier", "_broadcast_oop": "broadcast", "_reduce_oop": "reduce",
}  # fmt: skip
#: What C++ may name in a dump: typed lists, which are plain lists for us.
_LISTS = {f"build_{kind}list" for kind in ("int", "double", "bool", "tensor")}


class BadDump(Exception):
    """A file that is no dump, or one that wants to run code; the message says which."""


@dataclasses.dataclass(frozen=True)
class Dump:
    """The collectives that one rank recorded, the oldest first."""

    rank: int
    name: str
    calls: tuple[Collective, ...]
    #: By event number: completed, started or scheduled.
    states: Mapping[int, str]
    #: Members of the groups that the dump lists, by the name of the group.
    groups: Mapping[str, tuple[int, ...]]
    version: str = ""
    stacks: bool = True


def looks_like_dump(data: bytes) -> bool:
    """By the first bytes of a file: a pickle, or JSON with the recorder's keys."""
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    start = data[:_PEEK].lstrip()
    keys = (b'"entries"', b'"pg_config"', b'"pg_status"', b'"nccl_version"', b'"comm_lib_version"')
    return start[:1] == b"{" and any(key in start for key in keys)


def load(path: pathlib.Path, name: str) -> Dump:
    """One dump. Raises BadDump, OSError."""
    if path.stat().st_size > _LARGEST:
        raise BadDump(f"{name}: larger than {_LARGEST >> 20} MiB, not a dump of the Flight Recorder")
    data = path.read_bytes()
    content = _unpickled(data, name) if data[:1] == b"\x80" else _parsed(data, name)
    if not isinstance(content, dict):
        raise BadDump(f"{name}: not a dump of the Flight Recorder (a {type(content).__name__})")
    rank = _rank(path, content)
    if rank is None:
        raise BadDump(f"{name}: its name does not end in the rank (nccl_trace_rank_3): rename it")
    try:
        return _dump(rank, name, content)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as e:
        raise BadDump(f"{name}: not a supported dump of the Flight Recorder ({type(e).__name__}: {e})") from e


class _Unpickler(pickle.Unpickler):
    """Plain data only: anything that names a class or a function is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch.jit._pickle" and name in _LISTS:
            return list
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not plain data: rejected")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside of the file: rejected")


def _unpickled(data: bytes, name: str) -> Any:
    try:
        with _memory_for(data):
            content = _Unpickler(io.BytesIO(data)).load()
        if not _is_bounded(content, _WRITTEN_OUT * len(data)):
            raise pickle.UnpicklingError("parts of it are in each other again and again: rejected")
        return content
    except pickle.UnpicklingError as e:
        raise BadDump(f"{name}: {e}") from e
    except Exception as e:  # a damaged pickle can raise anything
        raise BadDump(f"{name}: a damaged pickle ({type(e).__name__})") from e


@contextlib.contextmanager
def _memory_for(data: bytes) -> Iterator[None]:
    """Memory in proportion to a pickle: eight bytes of one can make the unpickler take 64 GB. On Linux alone."""
    try:
        import resource

        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + _SPARE + _WRITTEN_OUT * 8 * len(data)
    limits = [limit for limit in (*before, wanted) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _is_bounded(content: Any, limit: int) -> bool:
    """Whether data that shares parts has, written out, no more values than the limit. Lists of twice the same list, and
    so on, are a few bytes in a pickle, and take for ever to print or to compare; a list may hold itself."""
    sizes: dict[int, int] = {}
    entered: set[int] = set()
    stack: list[Any] = [content]
    while stack:
        value = stack[-1]
        parts = _parts(value)
        waiting = [part for part in parts if id(part) not in sizes and isinstance(part, _CONTAINERS)]
        if waiting and id(value) in entered:  # one of them is in itself
            return False
        entered.add(id(value))
        stack += waiting
        if not waiting:
            stack.pop()
            sizes[id(value)] = 1 + sum(sizes.get(id(part), 1) for part in parts)
            if sizes[id(value)] > limit:
                return False
    return True


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, _CONTAINERS) else []


def _parsed(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as e:
        raise BadDump(f"{name}: damaged JSON ({e})") from e


def _rank(path: pathlib.Path, content: Mapping[str, Any]) -> int | None:
    rank = content.get("rank")
    if isinstance(rank, int):
        return rank
    named = _LAST_DIGITS.search(path.name)
    return int(named[1]) if named else None


def _dump(rank: int, name: str, content: Mapping[str, Any]) -> Dump:
    groups = {}
    for key, group in dict(content.get("pg_config") or {}).items():
        ranks = group.get("ranks") if isinstance(group, Mapping) else None
        members = json.loads(ranks) if isinstance(ranks, str) else ranks or []
        if members:
            groups[str(key)] = tuple(int(member) for member in members)
    calls, states, seen = [], {}, Counter[str]()
    for n, entry in enumerate(content.get("entries") or ()):
        call = _call(n, entry, groups, seen)
        calls.append(call)
        states[n] = _state(entry)
    stacks = any(call.frames for call in calls)
    return Dump(rank, name, tuple(calls), states, groups, str(content.get("version", "")), stacks)


def _state(entry: Mapping[str, Any]) -> str:
    if entry.get("time_discovered_completed_ns"):
        return "completed"
    return str(entry.get("state", ""))


def _call(n: int, entry: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]], seen: Counter[str]) -> Collective:
    group = entry.get("process_group") or (str(entry.get("pg_id", 0)), "")
    name, description = (str(group[0]), str(group[1])) if not isinstance(group, str) else (group, "")
    op, peer = _operation(str(entry.get("profiling_name", "")))
    label = (
        "world"
        if "default" in description or name in ("0", "default_pg")
        else f"{name}" + (f" ({description})" if description and description != "undefined" else "")
    )
    seen[label] += 1
    seq = entry.get("collective_seq_id", entry.get("seq_id"))
    p2p = bool(entry.get("is_p2p")) or op in ("send", "recv")
    return Collective(
        n=n,
        group=label,
        # Once is enough for the matcher, and a thousand ranks in each of a thousand ranks' calls are too many.
        ranks=groups.get(name, ()) if seen[label] == 1 else (),
        seq=int(seq) if seq is not None else seen[label],
        op=op,
        tensors=_tensors(entry, "input"),
        outputs=_tensors(entry, "output"),
        peer=peer if p2p else None,
        frames=_users(entry.get("frames") or ()),
        t=float(entry.get("time_created_ns") or 0) / 1e9,
    )


@functools.lru_cache(maxsize=4096)
def _operation(name: str) -> tuple[str, int]:
    """`nccl:send 0->1` is a send to rank 1; -1 where no peer is named."""
    op = name.rpartition(":")[2].partition(" ")[0]
    peers = re.search(r"(\d+)(?:->|<-)(\d+)", name)
    return _OPS.get(op.lower(), op), int(peers[2]) if peers else -1


def _tensors(entry: Mapping[str, Any], which: str) -> tuple[Tensor, ...]:
    sizes = entry.get(f"{which}_sizes") or ()
    types = entry.get(f"{which}_dtypes") or ()
    return _made(tuple(map(tuple, sizes)), tuple(types))


@functools.lru_cache(maxsize=65536)
def _made(sizes: tuple[tuple[int, ...], ...], types: tuple[str, ...]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(shape=tuple(int(n) for n in size), dtype=str(types[k]) if k < len(types) else "")
        for k, size in enumerate(sizes)
    )


def _users(frames: Sequence[Mapping[str, Any]]) -> tuple[Frame, ...]:
    """The user's frames, innermost first: the place of a call is where the user made it."""
    return _kept(tuple((f.get("filename", ""), f.get("line", 0), f.get("name", "")) for f in frames))


@functools.lru_cache(maxsize=65536)
def _kept(frames: tuple[tuple[str, int, str], ...]) -> tuple[Frame, ...]:
    return tuple(Frame(str(path), int(line), str(name)) for path, line, name in frames if not is_library(str(path)))


# ---- all ranks together


@dataclasses.dataclass(frozen=True)
class Flight:
    """The dumps of a job aligned: where its groups diverge, and the last rows of the group that does so first."""

    dumps: tuple[Dump, ...]
    mismatches: tuple[Mismatch, ...] = ()
    rows: tuple[match.Row, ...] = ()
    #: Ranks that the groups name and that left no dump.
    without: tuple[int, ...] = ()

    def state(self, rank: int, call: Collective) -> str:
        return next((dump.states.get(call.n, "") for dump in self.dumps if dump.rank == rank), "")


def align(dumps: Sequence[Dump]) -> Flight:
    """The dumps of one job, in any order; of two for one rank the longer counts."""
    by_rank: dict[int, Dump] = {}
    for dump in dumps:
        if dump.rank not in by_rank or len(by_rank[dump.rank].calls) < len(dump.calls):
            by_rank[dump.rank] = dump
    streams = _from_a_common_start(by_rank)
    endings = dict.fromkeys(by_rank, Ending.STALLED)
    found = [m for m in match.mismatches(streams, endings) if _stuck(m, by_rank)]
    group = found[0].group if found else "world"
    table = [row for row in match.rows(streams, endings) if row.group == group]
    position = found[0].position if found else len(table)
    named = {rank for dump in dumps for members in dump.groups.values() for rank in members}
    kept = [row for row in table if position - _SHOWN < row.position <= position + 1]
    return Flight(
        tuple(by_rank[rank] for rank in sorted(by_rank)),
        tuple(found),
        tuple(kept[-_SHOWN:]),
        tuple(sorted(named - set(by_rank))),
    )


def _from_a_common_start(dumps: Mapping[int, Dump]) -> dict[int, list[Collective]]:
    """The recorder is a ring: what one rank has overwritten is left out on all, by its number."""
    first: dict[str, int] = {}
    for dump in dumps.values():
        starts: dict[str, int] = {}
        for call in dump.calls:
            if call.peer is None:
                starts[call.group] = min(call.seq, starts.get(call.group, call.seq))
        for group, seq in starts.items():
            first[group] = max(seq, first.get(group, seq))
    return {
        rank: [call for call in dump.calls if call.peer is not None or call.seq >= first[call.group]]
        for rank, dump in dumps.items()
    }


def _stuck(mismatch: Mismatch, dumps: Mapping[int, Dump]) -> bool:
    """A complete call matched those of all peers, regardless of what they recorded of it."""
    if mismatch.kind is not match.Kind.MISSING:
        return True
    return any(
        call is not None and dumps[rank].states.get(call.n, "") != "completed" for rank, call in mismatch.calls.items()
    )


def diagnosis(flight: Flight) -> Diagnosis | None:
    """What the dumps say, None where all ranks did the same."""
    if not flight.mismatches:
        return _behind_without_dump(flight)
    first = flight.mismatches[0]
    absent = [rank for rank, call in first.calls.items() if call is None]
    missing = first.kind is match.Kind.MISSING
    kind = "fr-missing-rank" if missing else "fr-mismatch"
    rank, place = _blamed(first, absent)
    if missing and place is None:
        place = _any_site(first)
    known = signature("fr-missing" if missing else "fr-mismatched")
    of_tensors = (match.Kind.SHAPE, match.Kind.DTYPE)
    return Diagnosis(
        kind=kind,
        subkind="rank-conditional" if missing else "shape" if first.kind in of_tensors else "mismatch",
        rank=rank,
        place=place,
        root=tuple(_quotes(flight, first)),
        known=known,
        sure="high",
        what=f"the dumps diverge at call {_seq(first)} of {_group(first.group)}: {first.kind.value}",
        who=_in_words(first),
    )


def _behind_without_dump(flight: Flight) -> Diagnosis | None:
    """All that left a dump agree and wait; those that left none are who they wait for."""
    waiting = [
        (dump, call)
        for dump in flight.dumps
        for call in dump.calls[-1:]
        if dump.states.get(call.n) not in ("completed", "")
    ]
    if not waiting or not flight.without:
        return None
    dump, call = waiting[0]
    rank = flight.without[0] if len(flight.without) == 1 else None
    return Diagnosis(
        kind="fr-missing-rank",
        subkind="missing-rank",
        rank=rank,
        place=call.site,
        root=(Quote(dump.name, call.n, f"rank {dump.rank} waits in {match.describe(call)}", dump.rank),),
        known=signature("fr-missing"),
        sure="medium",
        what="the ranks with a dump agree; a rank without a dump is missing",
        who=f"no dump of rank{'s' * (len(flight.without) > 1)} {', '.join(map(str, flight.without[:8]))}",
    )


def _blamed(first: Mismatch, absent: Sequence[int]) -> tuple[int | None, Frame | None]:
    """The one rank that differs, and the line of the call that not all made."""
    place = next((call.collective.site for call in first.culprits if call.collective.site), None)
    if len(absent) == 1:
        return absent[0], place
    present = [rank for rank, call in first.calls.items() if call is not None]
    if absent and len(present) == 1:
        return present[0], place
    alike: dict[object, list[int]] = {}
    for rank, call in first.calls.items():
        if call is not None:
            alike.setdefault((call.op, call.tensors), []).append(rank)
    ranked = sorted(alike.values(), key=len)
    if len(ranked) > 1 and len(ranked[0]) == 1 and len(ranked[1]) > 1:
        rank = ranked[0][0]
        call = first.calls[rank]
        return rank, place or (call.site if call else None)
    return None, place or _any_site(first)


def _quotes(flight: Flight, first: Mismatch) -> Iterable[Quote]:
    names = {dump.rank: dump.name for dump in flight.dumps}
    for rank, call in list(first.calls.items())[:6]:
        yield Quote(names.get(rank, ""), call.n if call else 0, f"rank {rank} {_action(call)}", rank)


def _any_site(first: Mismatch) -> Frame | None:
    return next((call.site for call in first.calls.values() if call is not None and call.site), None)


def _action(call: Collective | None) -> str:
    if call is None:
        return "makes no further call"
    return f"calls {match.describe(call)}" + (f" at {call.site.path}:{call.site.line}" if call.site else "")


def _seq(first: Mismatch) -> int:
    return next((call.seq for call in first.calls.values() if call is not None), first.position)


def _group(name: str) -> str:
    return "the world group" if name == "world" else f"group {name}"


def _in_words(first: Mismatch) -> str:
    alike: dict[str, list[int]] = {}
    for rank, call in first.calls.items():
        alike.setdefault(_action(call), []).append(rank)
    return "; ".join(f"{of_ranks(ranks)} {action}" for action, ranks in alike.items())

"""Lines that say more than that something failed: which rank, which collective, which exit code."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

from ddp_lint.diagnose.records import End, Print, Quote, Work

# ---- time

_STAMPS = (
    re.compile(r"[EWIF](?P<month>\d\d)(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)"),
    re.compile(r"\d{4}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"),
    re.compile(r"[EWIF](?P<month>\d)(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)"),
)


def time_in(text: str) -> float | None:
    """Seconds since the begin of the year (all months of 31 days): an order within one job, never a date."""
    for stamp in _STAMPS:
        if match := stamp.search(text[:120]):
            days = int(match["month"]) * 31 + int(match["day"])
            return days * 86400.0 + int(match["h"]) * 3600 + int(match["m"]) * 60 + float(match["s"].replace(",", "."))
    return None


# ---- process groups of NCCL

_SEQ = re.compile(r"SeqNum=(\d+)")
_OP = re.compile(r"OpType=(\w+)\W")  # without what follows it may be cut off
_NUMEL = re.compile(r"NumelIn=(\d+)")
_STATUS = re.compile(
    r"(?:detected by watchdog at work(?: sequence id)?|Timeout at NCCL work): (?P<seq>\d+)"
    r"[\s\S]{0,40}?[Ll]ast enqueued (?:NCCL )?work: (?P<enq>-?\d+), last completed (?:NCCL )?work: (?P<done>-?\d+)"
)
_LAST = re.compile(r"[Ll]ast enqueued (?:NCCL )?work: (?P<enq>-?\d+), last completed (?:NCCL )?work: (?P<done>-?\d+)")
_GROUP = re.compile(r"\[PG (?:ID )?(?P<id>\w+) ?(?:PG )?(?:GUID )?(?P<guid>[^\s\]]*) Rank (?P<rank>\d+)\]")
_RANK_PREFIX = re.compile(r"\[[Rr]ank (\d+)\]")


def work_in(text: str, rank: int | None, quote: Quote, order: int) -> Work | None:
    """What a watchdog says of a collective. The rank in its text is that of the group: good for the default group."""
    status = _STATUS.search(text) or _LAST.search(text)
    own = "collective timeout from this local rank" in text
    timed_out = own or "Watchdog caught collective op" in text  # the end of the line may be cut off
    if status is None and not timed_out:
        return None
    group = _GROUP.search(text)
    name = f"{group['id']} {group['guid']}" if group else ""
    if rank is None:
        local = group["rank"] if group and _is_default(name) else None
        named = _RANK_PREFIX.search(text)
        rank = int(local) if local else int(named[1]) if named and (not group or _is_default(name)) else None
    values: dict[str, Any] = status.groupdict() if status else {}
    seq = _number(_SEQ.search(text))
    if own and seq is None and (done := _int(values.get("done"))) is not None:
        seq = done + 1
    return Work(
        rank=rank,
        group=name,
        seq=seq if seq is not None else _int(values.get("seq")),
        op=match[1] if (match := _OP.search(text)) else "",
        numel=_number(_NUMEL.search(text)),
        quote=quote,
        order=order,
        enqueued=_int(values.get("enq")),
        completed=_int(values.get("done")),
        timed_out=timed_out or "failure detected" in text or "Timeout at" in text,
    )


_WATCHDOG = re.compile(r"(?:ProcessGroup\w+\.cpp:\d+\]|what\(\):) +\[Rank (?P<rank>\d+)\]")


def watchdog_rank(text: str) -> int | None:
    """The rank that a process group's own line begins with: that of the job in the default group, and in releases
    that name no groups."""
    if group := _GROUP.search(text):
        return int(group["rank"]) if _is_default(f"{group['id']} {group['guid']}") else None
    match = _WATCHDOG.search(text)
    return int(match["rank"]) if match else None


def _is_default(name: str) -> bool:
    return "default" in name or name.partition(" ")[0] in ("0", "")


def _number(match: re.Match[str] | None) -> int | None:
    return int(match[1]) if match else None


def _int(text: str | None) -> int | None:
    return int(text) if text is not None else None


# ---- messages that name ranks

_PRINT = re.compile(
    r"Rank (?P<rank>\d+) is running (?:inconsistent )?collective: "
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d+)(?:, ?)?)?"
    r"OpType=(?P<op>\w+)(?:, ?TensorShape=\[(?P<shape>[^\]]*)\])?(?:, ?TensorDtypes=(?P<dtype>\w+))?"
)
_NAMED = (
    re.compile(r"\b[Rr]anks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier"),
    re.compile(r"check rank (?P<ranks>\d+) logs for faulty rank"),
    re.compile(r"while rank (?P<ranks>\d+) has inconsistent"),
    re.compile(r"\[(?P<ranks>\d+)\]: params\[\d+\] in this process"),
    re.compile(r"`?device_id`? on rank (?P<ranks>\d+)"),
    re.compile(r"missing ranks: \{(?P<ranks>[\d, ]+)\}"),
    re.compile(r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks"),
    re.compile(r"\b[Rr]ank (?P<ranks>\d+): found (?:NaN|Inf)"),
    re.compile(r"[Uu]nexpected result \S+ on rank (?P<ranks>\d+)"),
    re.compile(r"(?:lagging|dead|mismatched) ranks[^\[]{0,60}: \[?(?P<ranks>\d+(?:, ?\d+)*)"),
    re.compile(
        r"^[ \t-]*\[(?P<ranks>\d+(?:, ?\d+)*)\] "
        r"(?:joined but didn't finish|never joined|finished collective #\d+, but didn't join)",
        re.M,
    ),
    re.compile(r"Worker proc VllmWorker-(?P<ranks>\d+) died"),
)
_CULPRITS = re.compile(r"Culprit rank (\d+)")


def prints_in(text: str) -> list[Print]:
    return [
        Print(int(m["rank"]), m["op"], m["shape"] or "", m["dtype"] or "", _int(m["seq"]))
        for m in _PRINT.finditer(text)
    ]


def named_in(text: str) -> tuple[int, ...]:
    """The ranks that a message blames."""
    for pattern in _NAMED:
        if match := pattern.search(text):
            return tuple(int(rank) for rank in match["ranks"].split(",") if rank.strip())
    return tuple(dict.fromkeys(int(rank) for rank in _CULPRITS.findall(text)))


# ---- how processes ended

_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\)(?: for .{1,200}?)? (?:with )?local_rank: (?P<rank>\d+)"
    r"(?: \(\D{1,12}(?P<pid>\d+)\))?"
)
_SENDING = re.compile(
    r"(?:Sending process|Terminating process) (?P<pid>\d+) (?:closing|via) signal SIG|Killing subprocess (?P<sub>\d+)"
)
_RETURNED = re.compile(r"exits with return code = (?P<code>-?\d+)")
_LOCAL = re.compile(r"--local[-_]rank[=', ]+(\d+)")
_SRUN = re.compile(
    r"(?:srun: error: )?[\w.-]+: tasks? (?P<tasks>\d[\d,-]*): (?P<how>Killed|Exited with exit code (?P<code>\d+)|"
    r"Segmentation fault|Aborted|Bus error|Out [Oo]f [Mm]emory|Terminated)"
)
_SPAWNED = re.compile(r"[Pp]rocess (?P<rank>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))")
_MPIRUN = re.compile(
    r"process rank (?P<rank>\d+) with PID (?:(?P<pid>\d+)|\S+) on node \S+ exited on signal (?P<signal>\d+)"
)
#: Lightning's launcher, and the engine of vLLM.
_CHILD = re.compile(
    r"(?:\[rank: (?P<rank>\d+)\] )?(?:Child process with PID|(?P<engine>Worker) \w+ pid) (?P<pid>\d+) "
    r"(?:terminated with code|died, exit code:) (?P<code>-?\d+)"
)
#: Composer's launcher, and Horovod's.
_RANK_ENDED = re.compile(
    r"\b(?:Global rank|Rank) (?P<rank>\d+) (?:\(PID (?P<pid>\d+)\) exited|crashed) with (?:exit )?code (?P<code>-?\d+)|"
    r"^Process (?P<process>\d+) exit with status code (?P<status>\d+)"
)
_DIED = re.compile(r"died with <Signals\.(?P<signal>SIG\w+)")
#: What a shell says of a command of a script.
_SHELL = re.compile(r": line \d+: +(?P<pid>\d+) (?P<how>Killed|Segmentation fault|Aborted|Bus error|Terminated)\b")
_WORDS = {"Killed": -9, "Segmentation fault": -11, "Aborted": -6, "Bus error": -7, "Terminated": -15}
_MAYBE = re.compile(
    r"exitcode|Sending process|Terminating process|Killing|return code|tasks? \d|terminated with|exited on signal|"
    r"died with|died, exit|: line \d+: |ed with (?:exit )?code -?\d|exit with status"
)


def ends_in(text: str, rank: int | None, quote: Quote) -> Iterator[End]:
    """How processes ended, in one line. (torchrun's block has several lines: the reader has a state for it.)"""
    if not _MAYBE.search(text):
        return
    time = time_in(text)
    if match := _FAILED.search(text):
        yield End(int(match["rank"]), status(match["code"]), quote, _int(match["pid"]), first=True, time=time)
    elif match := _SENDING.search(text):
        yield End(None, None, quote, int(match["pid"] or match["sub"]), stopped=True, time=time)
    elif match := _RETURNED.search(text):
        # DeepSpeed shows the command that it started last, whichever of its processes failed.
        alone = (local := _LOCAL.search(text)) is not None and int(local[1]) == 0
        yield End(0 if alone else rank, status(match["code"]), quote, first=True, time=time)
    elif match := _SRUN.search(text):
        code = int(match["code"]) if match["code"] else _WORDS.get(match["how"], -9)
        code = 128 - code if 128 < code < 160 else code
        ran_out = match["how"].lower() == "out of memory"  # the others' tasks are only killed with it
        for task in _numbers(match["tasks"]):
            yield End(task, code, quote, first=ran_out, stopped=code == -15, time=time)
    elif match := _CHILD.search(text):
        code = status(match["code"])
        stopped = code == -15 and match["engine"] is not None  # as the engine shuts down
        yield End(_int(match["rank"]), code, quote, int(match["pid"]), first=True, stopped=stopped, time=time)
    elif match := _RANK_ENDED.search(text):
        who, ended = match["rank"] or match["process"], match["code"] or match["status"]
        yield End(int(who), status(ended), quote, _int(match["pid"]), first=True, time=time)
    elif match := _SPAWNED.search(text):
        yield End(int(match["rank"]), _code(match), quote, first=True, time=time)
    elif match := _MPIRUN.search(text):
        yield End(int(match["rank"]), -int(match["signal"]), quote, _int(match["pid"]), first=True, time=time)
    elif match := _SHELL.search(text):
        code = _WORDS[match["how"]]
        yield End(rank, code, quote, int(match["pid"]), first=True, stopped=code == -15, time=time)
    elif match := _DIED.search(text):
        yield End(rank, _signal(match["signal"]), quote, first=True, time=time)


def _code(match: re.Match[str]) -> int:
    return _signal(match["signal"]) if match["signal"] else status(match["code"])


#: How Windows says that a process crashed: an access violation, a full stack, an instruction that the CPU does not
#: have, a division by zero, a broken heap, and what `abort()` ends in.
_OF_WINDOWS = {
    0xC0000005: -11, 0xC00000FD: -11, 0xC000001D: -4, 0xC0000094: -8, 0xC0000374: -6, 0xC0000409: -6,
}  # fmt: skip


def status(text: str) -> int:
    """The code that a process ended with, negative for a signal, or for what Windows has in its place."""
    code = int(text)
    return _OF_WINDOWS.get(code & 0xFFFFFFFF, code) if abs(code) > 0xFFFF else code


def _signal(name: str) -> int:
    try:
        return -int(signal.Signals[name])
    except KeyError:
        return -1


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low:
            yield from range(int(low), min(int(high or low), int(low) + 4096) + 1)


# ---- how many ranks there are

_WORLD = (
    re.compile(r"\b(?:world[_ ]?size|WORLD_SIZE|num_processes|n_gpus_total)[\"':= ]{1,6}(\d{1,6})\b"),
    re.compile(r"Starting with (\d{1,6}) processes"),
    re.compile(r"MEMBER: \d+/(\d{1,6})"),
    re.compile(r"\brank[ :]+\d+ ?/ ?(\d{1,6})\b"),
    re.compile(r"expected ranks: \{[\d, ]*?(\d+)\}"),
)


def world_in(text: str) -> int | None:
    for index, pattern in enumerate(_WORLD):
        if match := pattern.search(text):
            found = int(match[1]) + (index == 4)
            return found if 0 < found < 200_000 else None
    return None

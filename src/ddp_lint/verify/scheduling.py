"""What the kernel says of the threads of a process: for how long they ran, and had to wait for a processor."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from ddp_lint.verify.spec import Marks

#: Share of the time that a rank must compute to count as busy: it may have to share the machine with many.
_BUSY_SHARE = 0.02
#: Share of the time that it must compute, or be kept from computing by others, to count as busy.
_WANTED_SHARE = 0.5
#: Shares of a process in which nothing is under way: the threads of gloo look for messages many times a second.
_IDLE_SHARE, _IDLY_WANTED_SHARE = 0.02, 0.3


class Stillness:
    """For how long the processes of ranks have been asleep, as far as is known: then nothing is under way, nor waits
    for a processor."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        #: When each fell asleep at the latest, when it was looked at last, and its seconds of CPU and of waiting then.
        self._seen: dict[int, tuple[float, float, float, float]] = {}

    def look(self, rank: int, now: float) -> float:
        """The seconds until now: 0 where the kernel does not say, and at the first look."""
        pid, _, watching = self._marks.text(rank, "watch").partition(" ")
        threads = list(_scheduled(int(pid), int(watching))) if watching else []
        cpu, starved = sum(ran for ran, _ in threads), sum(waited for _, waited in threads)
        since, last, cpu_then, starved_then = self._seen.get(rank, (now, now, 0.0, 0.0))
        computed = cpu - cpu_then
        wanted = computed + starved - starved_then
        idle = computed <= _IDLE_SHARE * (now - last) and wanted <= _IDLY_WANTED_SHARE * (now - last)
        self._seen[rank] = (since if idle and threads else now, now, cpu, starved)
        return now - self._seen[rank][0]


def busy(computed: float, starved: float, seconds: float) -> bool:
    """Whether a process that computed, and was kept from it, for so long in `seconds` is at work."""
    return computed > _BUSY_SHARE * seconds or computed + starved > _WANTED_SHARE * seconds


def starved_seconds(pid: int, but: int) -> float:
    """For how long threads of a process could run and had no processor, without one of them; 0 if it is unknown."""
    return sum(delay for _, delay in _scheduled(pid, but))


def cpu_of_threads(pid: int, but: int) -> Iterator[float]:
    """CPU time of each living thread of a process, without one of them."""
    return (cpu for cpu, _ in _scheduled(pid, but))


def _scheduled(pid: int, but: int) -> Iterator[tuple[float, float]]:
    """Of each living thread of a process but one the seconds that it ran, and that it waited for a processor."""
    for task in listed(pathlib.Path(f"/proc/{pid}/task")):
        if task.name != str(but):
            try:
                ran, waited, _ = (task / "schedstat").read_text(encoding="ascii").split()
            except (OSError, ValueError):
                continue
            yield int(ran) / 1e9, int(waited) / 1e9


def listed(path: pathlib.Path) -> list[pathlib.Path]:
    """What is in a folder, nothing where it is gone."""
    try:
        return list(path.iterdir())
    except OSError:
        return []

"""What the readers hand to the judge: quoted lines, events, ends of processes, work of process groups."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from ddp_lint.knowledge.signatures import Signature, verdict
from ddp_lint.verify.trace import Frame

#: Files of Python, of what it has installed (checkouts of well-known libraries included), and of the launchers.
_LIBRARY = re.compile(
    r"(^|[/\\])(site|dist)-packages[/\\]|(^|[/\\])lib(64)?[/\\]python\d(\.\d+)?[/\\]|[/\\]bin[/\\][\w.-]+$|"
    r"^<(?![^<>]+>.*[/\\])|"  # <string>, but not <home>/train.py, whose begin somebody has left out
    r"(^|[/\\])torch[/\\](distributed|nn|autograd|utils|_\w+|cuda|optim|multiprocessing|testing)[/\\]|^torch[/\\]|"
    r"[/\\](?P<checkout>fairscale|deepspeed|transformers|accelerate|lightning|pytorch_lightning|apex|xformers|peft|timm|"
    r"torchvision|datasets|ray|vllm|flash_attn|diffusers)[/\\](src[/\\])?(?P=checkout)[/\\]|"
    r"[/\\]megatron[/\\]core[/\\]|"
    # of Windows: the standard library has no folder of its version there
    r"^[A-Za-z]:\\.*\\[Ll]ib\\((multiprocessing|concurrent|asyncio|importlib|ctypes)\\|"
    r"(runpy|threading|subprocess|queue|contextlib|pickle|socket|selectors)\.py$)|\\Scripts\\[\w.-]+\.exe\\|"
    r"^(multiprocessing|threading|concurrent|asyncio|importlib|runpy|ctypes|socket)([/\\.]|$)|\.(so|cpp|cc|cu|h|hpp|c)$"
)
#: Libraries that every program runs through: their frames say nothing about who called.
_PLUMBING = re.compile(
    r"[/\\](torch|accelerate|transformers|lightning\w*|pytorch_lightning|deepspeed|apex|numpy|ray|click|fire|hydra|"
    r"torchrun|contextlib2|tqdm|wandb|datasets)[/\\]"
)


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


class Quote(NamedTuple):
    """One line as it is in the log. `number` is 1-based; `rank` is None where the line does not show it."""

    source: str
    number: int
    text: str
    rank: int | None = None


class Site(NamedTuple):
    """A frame of the user's code and the innermost of the program's frames below a library that is not torch."""

    user: Frame | None
    library: Frame | None


def is_library(path: str) -> bool:
    """The file is no part of the user's own code, judged by its name alone: the log comes from another machine."""
    return _LIBRARY.search(path) is not None


@dataclasses.dataclass(eq=False)
class Event:
    """Something that a rank (or the launcher, or the kernel) wrote into a log.

    `frames` are those of its traceback, innermost first; `shaped` distinguishes an exception, a C++ error or a stack
    dump from a line that merely contains the words. `named` are ranks that the text itself blames.
    """

    order: int
    rank: int | None
    text: str
    quotes: list[Quote]
    known: Signature | None = None
    type: str = ""
    shaped: bool = False
    frames: tuple[Frame, ...] = ()
    named: tuple[int, ...] = ()
    time: float | None = None
    count: int = 1
    #: A warning with the words of an error: it only counts together with the error itself.
    soft: bool = False
    #: The lines of its traceback that show the innermost frame and the user's one.
    code: tuple[Quote, ...] = ()
    #: The stream (a process, as far as prefixes show) that it came from.
    stream: str = ""
    #: What was raised while this one was handled, or by it.
    leads_to: Event | None = None
    #: The line that NCCL gives below its result: what went wrong last.
    last_error: Quote | None = None

    @property
    def kind(self) -> str:
        return self.known.kind if self.known else "python-exception"

    @property
    def role(self) -> str:
        return self.known.role if self.known else "own"

    @property
    def quote(self) -> Quote:
        return self.quotes[0]

    @property
    def site(self) -> Site:
        return site_of(self.frames)

    @property
    def place(self) -> Frame | None:
        """The line to show: the user's innermost."""
        return self.site.user


@functools.lru_cache(maxsize=4096)
def site_of(frames: tuple[Frame, ...]) -> Site:
    user = next((frame for frame in frames if not is_library(frame.path)), None)
    library = next(
        (f for f in frames if "-packages" in f.path and not _PLUMBING.search(f.path.rpartition("-packages")[2])), None
    )
    return Site(user, library)


def usual_place(events: Iterable[Event]) -> Frame | None:
    """The line of the user's code that most of some events are at."""
    places = Counter(event.place for event in events if event.place is not None)
    return places.most_common(1)[0][0] if places else None


@dataclasses.dataclass(eq=False)
class Diagnosis:
    """The answer. `rank` is None where the log does not determine it; `place` the line of the user's code, or None.

    `sure` is high, medium or low. `root` and `secondary` are lines of the log; `who` says in words what the ranks did.
    """

    kind: str
    subkind: str = ""
    rank: int | None = None
    place: Frame | None = None
    root: tuple[Quote, ...] = ()
    secondary: tuple[Quote, ...] = ()
    known: Signature | None = None
    sure: str = "medium"
    what: str = ""
    who: str = ""
    launcher: str = ""
    event: Event | None = None
    #: The log ends in a traceback, before its exception.
    cut_off: bool = False

    @classmethod
    def of(cls, event: Event, /, **fields: Any) -> Diagnosis:
        """What an event shows by itself, with these fields otherwise."""
        rank = event.named[0] if len(event.named) == 1 else None
        seen = {"kind": event.kind, "rank": rank, "place": event.place, "root": tuple(event.quotes[:3])}
        return cls(**{**seen, "known": event.known, "what": first_line(event.text), "event": event, **fields})

    @property
    def verdict(self) -> str:
        return "OK" if self.benign else verdict(self.kind) if self.kind != "unknown" else "UNKNOWN"

    @property
    def benign(self) -> bool:
        return self.subkind in ("benign", "false-positive")

    @property
    def found(self) -> bool:
        """A cause is named: not only victims, and not nothing."""
        return self.verdict != "UNKNOWN"


@dataclasses.dataclass(frozen=True)
class End:
    """How a process ended, as its launcher reports it. `code` is negative for a signal."""

    rank: int | None
    code: int | None
    quote: Quote
    pid: int | None = None
    #: Named by the launcher as the first failure.
    first: bool = False
    #: The launcher tells of the first failure alone: that it names no other rank says nothing of the others.
    alone: bool = False
    #: Ended by the launcher because of another one.
    stopped: bool = False
    time: float | None = None


@dataclasses.dataclass(frozen=True)
class Work:
    """A collective of NCCL that a watchdog has given up. Numbers that the line does not have are None."""

    rank: int | None
    group: str
    seq: int | None
    op: str
    numel: int | None
    quote: Quote
    order: int
    enqueued: int | None = None
    completed: int | None = None
    timed_out: bool = True


class Stack(NamedTuple):
    """Where the main thread of a process was, innermost first. `process` is its id, '' where the dump has none."""

    rank: int | None
    process: str
    frames: tuple[Frame, ...]
    quote: Quote


class CutOff(NamedTuple):
    """A traceback that the log cuts off before its exception: frames, innermost first, and the code of the last one."""

    rank: int | None
    frames: tuple[Frame, ...]
    code: tuple[Quote, ...]


class Print(NamedTuple):
    """One side of a collective that did not match: CollectiveFingerPrint(...)."""

    rank: int
    op: str
    shape: str
    dtype: str
    seq: int | None


@dataclasses.dataclass
class Reading:
    """Everything that was found in the files."""

    events: list[Event] = dataclasses.field(default_factory=list)
    ends: list[End] = dataclasses.field(default_factory=list)
    works: list[Work] = dataclasses.field(default_factory=list)
    #: The last line that each rank wrote for people to read; None holds what no rank is known for.
    last_output: dict[int | None, Quote] = dataclasses.field(default_factory=dict)
    #: The same before the first failure.
    output_before: dict[int | None, Quote] = dataclasses.field(default_factory=dict)
    ranks: set[int] = dataclasses.field(default_factory=set)
    world: int | None = None
    #: Tracebacks that the log cuts off before it reaches the exception.
    cut_off: list[CutOff] = dataclasses.field(default_factory=list)
    #: Exceptions in the middle of a line, as people quote them.
    mentioned: list[Event] = dataclasses.field(default_factory=list)
    #: torchrun says of a failure that it was the only one.
    no_others: bool = False
    #: Stacks of processes that still ran.
    stacks: dict[str, Stack] = dataclasses.field(default_factory=dict)
    #: When a rank said last that all ranks had come to the start of the group; 0 where none said so.
    registered: int = 0
    #: For each source, the line at which the scheduler began to end all tasks.
    ending: dict[str, int] = dataclasses.field(default_factory=dict)
    lines: int = 0
    sources: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)

    @property
    def size(self) -> int | None:
        """The number of ranks, where the log has it or at least shows the highest."""
        highest = max(self.ranks, default=None)
        if self.world is not None and (highest is None or highest < self.world):
            return self.world
        return highest + 1 if highest is not None else None

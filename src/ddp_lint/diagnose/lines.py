"""Lines of a log as they come from launchers, schedulers and containers: whose they are, and what the process wrote."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: Colours and other sequences for terminals; some logs have lost the escape character itself.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\[(?:0|1|3\d|1;3\d|0;3\d)m")
#: Characters of a line that are looked at; of a longer one the begin and the end.
_LONGEST = 6000
#: Marks of direction among them: they show a line otherwise than it is.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
#: No number that a log has is as long; Python refuses to read one of more than 4,300 digits.
_DIGITS = re.compile(r"\d{1000,}")

#: [rank3]: of torch itself, [default3]: of torchrun --tee; the number of the latter counts on its node.
_BRACKET = re.compile(r"\[([A-Za-z][A-Za-z_]*?)(\d{1,6})\]: ?")
_TORN = re.compile(r"(?<=.)(?=\[rank\d{1,6}\]:)")
_MPI = re.compile(r"\[(?:\d+,)?(\d+)\]<std(?:out|err)>: ?")  # Horovod's own launcher gives the rank alone
_RAY = re.compile(
    r"\(([\w.<>-]+)(?:\([^)]*\))? (?:pid|rank)=(\d+)(?:, ip=[\d.a-f:]+)?(?:, [^)]*)?\)(?: \[repeated[^\]]*\])? ?"
)
#: Ray Train says once which process is which rank.
_RAY_TABLE = re.compile(r"\bpid=(\d+)\)? world_rank=(\d+), local_rank=\d+")
_POD = re.compile(r"\[pod/([\w.-]+)/[\w.-]+\] ?")
_CRI = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) (?:(?:stdout|stderr) [FP] )?")
_STREAM = re.compile(r"(?:stdout|stderr): ")
_SRUN = re.compile(r" *(\d{1,6}): ?")
_HOST = re.compile(r"([A-Za-z][\w.-]{1,60}): ")
#: What a program itself prints to say which rank it is: good enough where nothing better is known.
_OWN = re.compile(r"\W{0,2}(?:global[ _])?rank[ :=_#]*(\d{1,6})\b", re.IGNORECASE)
#: What is on the line before a traceback begins; of `ExceptionGroup` it is a part of the traceback.
_HEADED = re.compile(r"(?=[^\s+])((?:(?!%\|).){0,120}?(?:[^\w\s]|\d)\s*)Traceback \(most recent call last\):")
#: A frame in the middle of a line, and an exception.
_JOINED = re.compile(r'(?:^|(?<=\s))File "[^"\n]+", line \d+, in (?:<\w+>|\w+)(?=\s|$)')
_ENDING = re.compile(r"(?:(?<=\s)|^)((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt):)")
#: A traceback in a string of JSON: torchrun prints its own errors so.
_ESCAPED = '\\n  File \\"'
#: What is on the line before a frame.
_FRAMED = re.compile(r'(?=[^\s+])((?:(?!%\|).){0,120}?(?:[^\w\s]|\d)\s*)  File "[^"]+", line \d+, in ')
#: What differs between two lines of one process: numbers and hashes.
_VARYING = re.compile(r"[0-9a-f]*\d[0-9a-f]*(?![A-Za-z])|[0-9a-f]{8,}|\d+|(?P<gap>\s+)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\S*|\d\d:\d\d:\d\d\S*")
_NAMED_RANK = re.compile(r"(?<!local)(?<!local_)rank[\s:=_-]{0,3}(\d{1,6})(?!\d)", re.IGNORECASE)
#: Where collectors that write one JSON object a line keep what the process wrote.
_MESSAGES = ("message", "msg", "log", "textPayload", "text")
_MOST_LEARNED = 32
#: How many of the first lines of a log have a prefix at least, and which part of them: of many nodes each has its own.
_FEWEST, _PART = 3, 0.05


class Piece(NamedTuple):
    """What one process wrote on one line. `stream` distinguishes processes as far as the prefixes do.

    `rank` comes from a prefix; `hint` from what the program itself printed at the start of the line.
    """

    rank: int | None
    stream: str
    text: str
    hint: int | None = None
    #: With its prefixes.
    whole: str = ""


@dataclasses.dataclass(slots=True)
class Prefixes:
    """The prefixes of one log: those that look like text and are only taken off when most of its lines have them, and
    those of collectors that are not known here. What a line has before a traceback begins is before its other lines."""

    srun: bool = False
    hosts: frozenset[str] = frozenset()
    sample: tuple[str, ...] = ()
    #: What a collector puts before `[rank3]:`; where it has lost the ends of lines, it is after them, too.
    marks: tuple[re.Pattern[str], ...] = ()
    #: By their shape; None for one that no other line has.
    learned: dict[str, re.Pattern[str] | None] = dataclasses.field(default_factory=dict)
    #: Ranks by the process ids of Ray's lines; None for an id that processes of two hosts have.
    processes: dict[str, int | None] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, sample: Iterable[str]) -> Prefixes:
        lines = [line for line in sample if line.strip()][:400]
        if len(lines) < 3:
            return cls()
        numbered = [m for line in lines if (m := _SRUN.match(line))]
        srun = len(numbered) >= 0.8 * len(lines) and len({m[1] for m in numbered}) < max(2, len(numbered) / 2)
        counts = Counter(m[1] for line in lines if (m := _HOST.match(line)))
        often = {name for name, n in counts.items() if n >= 3 and not _looks_like_text(name)}
        enough = sum(counts[name] for name in often) >= 0.6 * len(lines)
        marks = Counter(_shape(head) for line in lines if "[rank" in line and _is_mark(head := _TORN.split(line, 1)[0]))
        return cls(
            srun,
            frozenset(often if enough and not srun else ()),
            tuple(lines),
            tuple(re.compile(shape) for shape, times in marks.items() if times >= _FEWEST),
        )

    def learn(self, text: str) -> None:
        """From a line that may begin a traceback or hold a frame, where other lines of the log begin like it."""
        match = _HEADED.match(text) or _FRAMED.match(text)
        if match is None or len(self.learned) == _MOST_LEARNED or (shape := _shape(match[1])) in self.learned:
            return
        pattern = re.compile(shape)
        like = sum(pattern.match(_without_known(line, self)[0]) is not None for line in self.sample)
        self.learned[shape] = pattern if like >= max(_FEWEST, _PART * len(self.sample)) else None

    def learn_process(self, process: str, rank: int) -> None:
        self.processes[process] = rank if self.processes.get(process, rank) == rank else None

    def without_learned(self, text: str) -> re.Match[str] | None:
        found = (pattern.match(text) for pattern in self.learned.values() if pattern is not None)
        return next((match for match in found if match is not None), None)


def _is_mark(head: str) -> bool:
    """What is before `[rank3]:` may be a collector's mark, and no output of another process."""
    return 0 < len(head) <= 120 and "%|" not in head and "[rank" not in head


def _shape(prefix: str) -> str:
    """A pattern for a prefix: other numbers, names as wide as others. The lines of a traceback may be empty."""
    bare = prefix.rstrip()
    parts, end = [], 0
    for match in _VARYING.finditer(bare):
        parts += [re.escape(bare[end : match.start()]), r"\s+" if match["gap"] else r"[0-9a-f]+"]
        end = match.end()
    gap = len(prefix) - len(bare)
    return "".join([*parts, re.escape(bare[end:]), rf"(?:\s{{{gap}}}|$)" if gap else ""])


def _looks_like_text(name: str) -> bool:
    return bool(re.search(r"(Error|Exception|Warning)$|^(INFO|DEBUG|WARNING|ERROR|Epoch|Step|loss|step|epoch)$", name))


def clean(line: str) -> str:
    """Without colours and control characters; of a line that a progress bar rewrote, all that it ever showed."""
    if "\x1b" in line or "[" in line:
        line = _ANSI.sub("", line)
    if "\r" in line:
        line = _last_shown(line)
    if not line.isprintable():
        line = _CONTROL.sub("", line)
    if len(line) >= 1000:
        line = _DIGITS.sub("...", line)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST * 2 // 3]} ... {line[-_LONGEST // 3 :]}"


def _last_shown(line: str) -> str:
    """A progress bar overwrites itself: the last state, unless an earlier one holds more than the bar."""
    parts = [part for part in line.split("\r") if part.strip()]
    if not parts:
        return ""
    telling = [part for part in parts[:-1] if re.search(r"rror|xception|Traceback|Watchdog|\[rank\d", part)]
    return " ".join([*telling, parts[-1]])


def pieces(line: str, prefixes: Prefixes, rank: int | None = None, stream: str = "") -> Iterator[Piece]:
    """The parts of a line by who wrote them: two processes can have written at the same time.

    `rank` and `stream` are what the file is known to hold.
    """
    if line[:1] == "{" and (message := _logged(line)) is not None:
        rank = rank if message[1] is None else message[1]
        for text in message[0].splitlines():
            yield _piece(clean(text), prefixes, rank, f"{stream}|{rank}")._replace(whole=line)
        return
    if _ESCAPED in line:
        text, rank, stream = _without_known(line, prefixes, rank, stream)
        for part in text.replace("\\n", "\n").replace('\\"', '"').split("\n"):
            yield Piece(rank, stream, part, whole=part)
        return
    parts = _TORN.split(line) if "[rank" in line else [line]
    mark = next((mark for mark in prefixes.marks if mark.fullmatch(parts[0])), None) if len(parts) > 1 else None
    if mark is not None:
        parts = [_without_end(part, mark) for part in parts[1:]]
    for part in parts:
        for text in _unjoined(part) if part.count('File "') > 1 else (part,):
            yield _piece(text, prefixes, rank, stream)


def _unjoined(part: str) -> Iterator[str]:
    """The lines of a traceback whose ends were lost: header, frames with their code, exception."""
    end = 0
    for match in _JOINED.finditer(part):
        if before := part[end : match.start()].strip():
            yield from _without_exception(before) if end else (before,)
        yield f"  {match[0].strip()}"
        end = match.end()
    yield from _without_exception(part[end:].strip()) if end else (part,)


def _without_exception(text: str) -> Iterator[str]:
    """The code of a frame, and the exception that may follow it."""
    code, raised, rest = _ENDING.split(text, maxsplit=1) if _ENDING.search(text) else (text, "", "")
    if code.strip():
        yield f"    {code.strip()}"
    if raised:
        yield f"{raised}{rest}"


def _without_end(part: str, mark: re.Pattern[str]) -> str:
    """Without the mark of the line that was after this one."""
    ends = [match.end() for match in re.finditer(r"\s(?=\S)", part) if mark.fullmatch(part, match.end())]
    return part[: ends[0]].rstrip() if ends else part


def _logged(line: str) -> tuple[str, int | None] | None:
    """What a process wrote, and its rank, from a line that is a JSON object of a collector."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    message = next((found[key] for key in _MESSAGES if isinstance(found.get(key), str)), None)
    rank = next((found[key] for key in ("rank", "global_rank") if type(found.get(key)) is int), None)
    return (message, rank) if message else None


def _piece(text: str, prefixes: Prefixes, rank: int | None, stream: str) -> Piece:
    whole = text
    text, rank, stream = _without_known(text, prefixes, rank, stream)
    if "world_rank=" in text and (named := _RAY_TABLE.search(text)):
        prefixes.learn_process(named[1], int(named[2]))
    if "Traceback (m" in text or '  File "' in text[1:]:
        prefixes.learn(text)
    if prefixes.learned and (match := prefixes.without_learned(text)) is not None:
        named = _NAMED_RANK.search(match[0])
        rank = int(named[1]) if named else rank
        stream, text = f"{stream}|{_TIME.sub('', match[0])}", text[match.end() :]
    own = _OWN.match(text)
    return Piece(rank, stream, text, int(own[1]) if own else None, whole)


def _without_known(
    text: str, prefixes: Prefixes, rank: int | None = None, stream: str = ""
) -> tuple[str, int | None, str]:
    """What is left of a line without the prefixes that are known here."""
    for _ in range(4):
        rest, rank, stream = _without_prefix(text, prefixes, rank, stream)
        if rest == text:
            break
        text = rest
    return text, rank, stream


def _without_prefix(text: str, prefixes: Prefixes, rank: int | None, stream: str) -> tuple[str, int | None, str]:
    first = text[:1]
    if first == "[":
        if match := _BRACKET.match(text):
            return text[match.end() :], int(match[2]), f"{stream}|{match[1]}{match[2]}"
        if match := _MPI.match(text):
            return text[match.end() :], int(match[1]), f"{stream}|{match[1]}"
        if match := _POD.match(text):
            return text[match.end() :], rank, f"{stream}|{match[1]}"
    elif first == "(":
        if match := _RAY.match(text):
            rank = prefixes.processes.get(match[2], rank)
            return text[match.end() :], rank, f"{stream}|{match[2]}"
    elif first.isdigit() or first == " ":
        if match := _CRI.match(text):
            return text[match.end() :], rank, stream
        if prefixes.srun and "srun" not in stream and (match := _SRUN.match(text)):
            return text[match.end() :], int(match[1]), f"{stream}|srun{match[1]}"
    elif first == "s" and (match := _STREAM.match(text)):
        return text[match.end() :], rank, stream
    if prefixes.hosts and (match := _HOST.match(text)) and match[1] in prefixes.hosts:
        return text[match.end() :], rank, f"{stream}|{match[1]}"
    return text, rank, stream

"""From lines to events: one state machine for each process that writes into a log."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import OrderedDict
from collections.abc import Sequence

from ddp_lint.diagnose.lines import Piece
from ddp_lint.diagnose.patterns import ends_in, named_in, status, time_in, watchdog_rank, work_in, world_in
from ddp_lint.diagnose.records import CutOff, End, Event, Quote, Reading, Stack, is_library
from ddp_lint.knowledge.signatures import Signature, explain, signature
from ddp_lint.verify.trace import Frame

_HEADER = "Traceback (most recent call last):"
#: A distributed checkpoint shows on each rank what all ranks raised. SGLang names the rank of its one group of tensor
#: parallelism in the line that a traceback begins on.
_OF_RANK = re.compile(
    r"\(most recent call last\): \(RANK (?P<told>\d+)\)|"
    r"^\[\d{4}-[-\d :.,]+ TP(?P<tensor>\d+)\] .*\(most recent call last\)"
)
#: Forums turn the quotation marks and drop `<module>` and the indentation.
_FRAME = re.compile(
    r'^(?P<indent>\s*)File ["\u201c](?P<path>[^"\u201c\u201d\n]+)["\u201d], line (?P<line>\d+)'
    r"(?:,? in(?: (?P<function>(?:(?!Error:|Exception:).)+))?)?\s*$"
)
_AT = re.compile(r"^\s*(?P<function>\S+) at (?P<path>(?:/|\w:\\|<|\w)\S*?):(?P<line>\d+)\s*$")
_RAISED = re.compile(r"^(?P<type>(?:[A-Za-z_][\w<>]*\.)*[A-Za-z_]\w*(?:\([\w.]+\))?)(?:: ?(?P<message>.*)|\s*)$")
_RAISING = re.compile(r"(?:.*\s)?raise (?P<what>(?:\w+\.)*(?P<type>[A-Z]\w+|_\w+_error)\(.*)")
#: Code that is nothing but the text of a message.
_SAID = re.compile(r"""^(?:\[rank\d+\]:)?\s*[rfbu]{0,2}["'](?P<message>[A-Z].{20,})""")
_RAISED_ALONE = re.compile(
    r"^(?:[A-Z]+ *[:|-] *)?(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout))"
    r"(?P<of>\([\w.]+\))?:(?: (?P<message>.*)|\s*)$"
)
#: An exception in the middle of a line.
_MENTIONED = re.compile(
    r"(?<![\w.`'\"])(?:(?P<type>(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): \S.{9,}|\[Errno \d+\] [A-Z]\w+ \w.{4,})"
)
#: rich's tracebacks, in a box.
_RICH_HEADER = re.compile(r"^\s*[╭┌].{0,40}Traceback \(most recent call last\)")
_RICH_FRAME = re.compile(
    r"^\s*[│|]\s*(?P<path>(?:/|\w:\\|\.{0,2}[\w-])[^│|]*?\.py):(?P<line>\d+) in\s*"
    r"(?P<function>[\w<>.]*)(?P<indent>)\s*[│|]?\s*$"
)
_RICH = re.compile(r"^\s*[│|╰└╭┌]")
_FATAL = re.compile(r"Fatal Python error: |^(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
#: py-spy's: a process, a thread, a frame.
_PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<command>.+)$")
_RANK_ARGUMENT = re.compile(r"--(?:local[-_]|global[-_]|node[-_])?rank[= ](\d+)")
_THREAD = re.compile(r"^Thread (?:0x[0-9A-Fa-f]+|\d+) \([\w+ ]+\)(?:: \"(?P<name>[^\"]*)\")?\s*$")
_SPY_FRAME = re.compile(r"^ {4}(?P<function>\S.*?) \((?P<path>[^()]+):(?P<line>\d+)\)(?P<indent>)\s*$")
_WHAT = re.compile(r"^\s*what\(\):\s*(?P<message>.*)")
#: What a worker's exception is raised again with; the exception itself follows.
_CAUGHT = re.compile(r"Caught \w+ in (?:DataLoader worker|pin memory thread|replica)|\braised:\s*$")
#: What mpirun says of a process, and goes on with on the next line.
_WRAPPED = re.compile(r"process rank \d+ with PID \d+ on node \S+ exited on\s*$")
#: The function that torch.compile complains of.
_COMPILED = re.compile(r"function: '(?P<function>[^']+)' \((?P<path>[^()]+):(?P<line>\d+)\)")
_CHAINED = re.compile(r"During handling of the above exception|The above exception was the direct cause")
#: torch 1.1 and older raise a worker's traceback as the message.
_INNER = re.compile(
    r"Original Traceback \(most recent call last\):|"
    r"^\s*(?P<type>\w+(?:Error|Exception)): Traceback \(most recent call last\):"
)
_SPAWNED = re.compile(r"-- Process (\d+) terminated with the\b")
_PSEUDO_CODE = re.compile(r"^\s*[\^~ ]+$|^\s*\[Previous line repeated \d+ more times?\]|^\s*\.\.\.")
#: A line that cannot be the continuation of an exception's message: something else has begun.
_BEGINS = re.compile(
    r"^\s*(?:Traceback|={10,}|-{20,}|\[(?:E|W|I|F)[\d ]|[EWIF]\d{3,4} \d\d:|\[?\d{4}[-/]\d\d[-/]\d\d|terminate called|"
    r"frame #\d+|Exception raised from|srun:|slurmstepd|Killing |INFO|WARNING|ERROR|DEBUG|Fatal Python|wandb:|"
    r"\[\d{4}-|\[[\w .-]{1,40}\] \d{4}-\d\d-\d\d [\d:]{8},\d|[\w.-]+:\d+:\d+ \[\d+\]|Root Cause|Failures:|"
    r"During handling|The above exception|Exception in thread|"
    r"\[\d\d:\d\d:\d\d\] |Exception ignored|Process \w+:|[^|]{0,60}\d%\||[Ee]poch|[Ss]tep\b|\[W |\[E |"
    r"\S+\.py:\d+: \w*Warning)"
)
#: What a launcher or a C++ stack adds, which says nothing about the cause.
_NOISE = re.compile(
    r"^\s*(?:frame #\d+|Exception raised from|\*{5,}|={5,}|-{5,}|Compile with `TORCH_USE_CUDA_DSA|"
    r"For debugging consider passing CUDA_LAUNCH|CUDA kernel errors might be asynch)"
)
#: Lines without anything of interest.
_TELLING = re.compile(
    r"rror|xception|[Ff]ail|FAIL|[Ff]atal|[Tt]ime|illed|[Kk]illing|ignal|SIG|exit|oom|OOM|emory|NCCL|\bn[ac]|[Nn]a[Nn]|\binf\b|"
    r"[Aa]ssert|Watchdog|barrier|ollective|closed|[Cc]losing|[Rr]ank|abort|Abort|fault|ECC|Xid|GPU|limit|[Oo]verflow|"
    r"OVERFLOW|choice|[Ii]nvalid|[Cc]annot|[Uu]nable|refused|address|reset|pipe|worker|stor|CANCEL|DUE TO|[Ll]oss|"
    r"expected|[Ee]xpect|resource|shm|state_dict|key\(s\)|version|world|WORLD|MEMBER|processes|Thread 0x|found|"
    r"traceback|function: |NVLink|bus\b|[Bb]reak|mismatch|desync|knowledge|joined|not required|peer|captur(?:e|ing)|"
    r"marked as|erminat|Errno|Process name|Exit code"
)
#: NCCL's own warnings (old releases leave out its name), and what is between a result and the words that explain it.
_NCCL_WARNS = re.compile(r"NCCL WARN|:\d+:\d+ \[\d+\] \S+:\d+ WARN ")
_LAST_ERROR = re.compile(r"^\s*Last error:\s*$")
_REGISTERED = re.compile(r"Completed store-based barrier for key|All distributed processes registered")
#: SLURM ends all tasks of a step, and says so before it lists them.
_STEP_ENDS = re.compile(
    r"srun: .{0,40}(?:Terminating (?:StepId|job step)|Job step aborted)|"
    r"slurmstepd: error: \*\*\* (?:STEP|JOB) .{0,80}CANCELLED AT"
)
#: mpirun's words for the process that failed first.
_MPI_PROCESS = re.compile(r"^\s*Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]")
_MPI_CODE = re.compile(r"^\s*Exit code:\s+(?P<code>\d+)")
_ALONE = re.compile(r"<NO_OTHER_FAILURES>|but 1 process returned")
_BLOCK = re.compile(r"^\s*(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)$")
_BLOCK_RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
#: The same on one line, as logs that were copied from a picture have it.
_BLOCK_LINE = re.compile(
    r"^\s*rank ?:?\s*(?P<rank>\d+) \(local[_ ]rank: \d+\)\s*exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)"
)
_BLOCK_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")
_WARNING = re.compile(r"\w*Warning\b|\bWARN(?:ING)?\b(?! NCCL)|^\s*\[?W[\d ]\d{2,3} |\[W[\d ]")
_LAUNCHER_TYPES = re.compile(
    r"(?:ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|SystemExit|SignalException|"
    r"RayTaskError|RayActorError|ActorDiedError|TrainingFailedError|TuneError|WorkerCrashedError)(?:\([\w.]+\))?$"
)
_STARTS = re.compile(r"multiprocessing[/\\]popen_\w+\.py$")
#: What a socket or a pipe raises that the other end has closed, and whose code talks to ranks and workers.
_CLOSED = frozenset({"BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError"})
_RANKS_TALK = re.compile(r"[/\\](torch|multiprocess(?:ing)?|horovod|deepspeed|ray|mpi4py|accelerate|lightning\w*)[/\\]")
_LOADS = re.compile(r"torch[/\\]serialization\.py$")
_COPIES = re.compile(r"[/\\]python\d[\d.]*[/\\]copy\.py$")
_JOINS = re.compile(r"torch[/\\]multiprocessing[/\\]spawn\.py$")
#: torchrun's own part before any rank is started: what waits there is a launcher, for those of other nodes.
_AGENT = re.compile(r"torch[/\\]distributed[/\\](?:launcher[/\\]api|elastic[/\\](?:agent|rendezvous)[/\\].*)\.py$")
_WORD = re.compile(r"[A-Za-z]{3}")
_FR_REPORT = re.compile(
    r"Not all ranks joining collective|Collective sequence number: \S+ has errors|"
    r"Input/output mismatch in the collective"
)
#: Exceptions of the standard library in lower case.
_SMALL = frozenset({"error", "timeout", "herror", "gaierror"})
#: At most so many events are kept of one kind and rank, and lines of one message.
_KEPT, _MESSAGE_LINES = 20, 60
#: Seconds after the first failure. torchrun waits for 30 between SIGTERM and SIGKILL; its times are rounded.
_GRACE = 25
_STREAMS, _SHAPES = 20_000, 50_000
_DIGITS = re.compile(r"\d+")
#: Lines whose numbers matter: they are examined each time.
_COUNTS = re.compile(r"exit|[Ss]ignal|code|Xid|rror|world|WORLD|rank \d+ ?/|MEMBER|processes")
#: What the first line of a message may say although later ones know better.
_UNSPECIFIC = frozenset({"nccl-system", "hccl-system", "load-missing", "dynamo"})


class Reader:
    """Takes the pieces of all lines, in order; `reading` holds what they say once `finish` was called."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        #: Lines, with their numbers left out, that had no information: training logs repeat a few of them.
        self.dull: set[str] = set()
        #: By rank, kind and process: what was kept, by the line that it was first seen in.
        self._kept: dict[tuple[int | None, str, str], dict[str, Event]] = {}
        self.order = 0

    def take(self, piece: Piece, source: str, number: int) -> None:
        key = f"{source}\0{piece.stream}"
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(self, piece.stream)
            if len(self._streams) > _STREAMS:
                self._streams.popitem(last=False)[1].finish()
        if piece.rank is not None:
            self.reading.ranks.add(piece.rank)
        self.order += 1
        stream.take(piece, Quote(source, number, piece.whole, piece.rank))

    def finish(self) -> Reading:
        for stream in self._streams.values():
            stream.finish()
        self._streams.clear()
        self.reading.ends = _with_ended(_with_stopped(self.reading.ends), self.reading.ending)
        self.reading.events.sort(key=lambda event: event.order)
        return self.reading

    def keep(self, event: Event) -> Event:
        """The event, or the one of the same rank and text that was kept before."""
        key = (event.rank, event.known.id if event.known else event.type, event.stream)
        known = self._kept.setdefault(key, {})
        same = known.get(event.quote.text)
        if same is not None or len(known) >= _KEPT:
            same = same or next(reversed(known.values()))
            same.count += 1
            if not same.frames and event.frames:
                same.frames, same.shaped = event.frames, True
            return same
        known[event.quote.text] = event
        event.named = named_in(event.text)
        self.reading.events.append(event)
        if not self.reading.output_before and event.role not in ("warning", "note"):
            self.reading.output_before = dict(self.reading.last_output)
        return event


def _with_stopped(ends: list[End]) -> list[End]:
    """Processes that had not ended when the launcher asked them to, because of another one, and were killed then."""
    first = next((end for end in ends if end.first and end.time is not None), None)
    if first is None or first.time is None:
        return ends
    late = first.time + _GRACE
    return [
        dataclasses.replace(end, stopped=True) if end.code == -9 and end.time is not None and end.time >= late else end
        for end in ends
    ]


def _with_ended(ends: list[End], ending: dict[str, int]) -> list[End]:
    """Tasks that SLURM killed after one of them had failed by itself."""
    failed = {
        end.quote.source
        for end in ends
        if end.code not in (0, None) and not end.stopped and end.quote.number < ending.get(end.quote.source, 0)
    }
    return [
        dataclasses.replace(end, stopped=True)
        if end.code == -9 and end.quote.source in failed and end.quote.number > ending[end.quote.source]
        else end
        for end in ends
    ]


class _Stream:
    """What one process writes: at any time it is in a traceback, in a message, in torchrun's block, or in neither."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._frames: list[Frame] | None = None
        self._code: list[Quote] = []
        self._user_code: list[Quote] = []
        self._rank: int | None = None
        #: The last event that was a line by itself.
        self._last: Event | None = None
        #: What NCCL calls the last error, on the next line, explains this one.
        self._explained: Event | None = None
        self._innermost_first = False
        self._indent = 0
        #: The traceback has lost its indentation: the line after a frame is its code.
        self._flat = False
        self._patience = 0
        self._message: Event | None = None
        self._inner_of: Event | None = None
        self._block: dict[str, str] = {}
        self._in_root = False
        self._mpi_rank: int | None = None
        self._mpi_quote: Quote | None = None
        self._block_quotes: list[Quote] = []
        self._rank_of_next: int | None = None
        #: Whose the traceback is, where another rank shows it.
        self._rank_shown: int | None = None
        self._fatal: Event | None = None
        self._report: Event | None = None
        self._previous: Event | None = None
        self._chained = False
        self._wrapped = ""
        self._process = ""
        self._process_rank: int | None = None

    # ---- one line

    def take(self, piece: Piece, quote: Quote) -> None:
        text = piece.text
        if self._message is not None and self._continue(text, quote):
            return
        if self._frames is not None and self._in_traceback(text, quote, piece):
            return
        if self._report is not None and self._in_report(text, quote):
            return
        self._idle(text, quote, piece)

    def finish(self) -> None:
        self._close_message()
        if self._fatal is not None:
            self._end_dump()
        if "exitcode" in self._block and "traceback" not in self._block:
            self._end_block("", self._block_quotes[-1])
        self._finish_traceback()
        self._cut_off()
        self._frames = None
        self._report = None

    # ---- neither traceback nor message

    def _idle(self, text: str, quote: Quote, piece: Piece) -> None:
        if self._wrapped:
            text, self._wrapped = f"{self._wrapped} {text.strip()}", ""
        elif _WRAPPED.search(text):
            self._wrapped = text.rstrip()
            return
        if self._explains(text, quote) or self._begins_something(text, quote, piece):
            return
        if not _TELLING.search(text) and not self._is_known(text):
            self._say(text, quote, piece)
            return
        if self._in_block(text, quote) or _NOISE.match(text):
            return
        shape = None if _COUNTS.search(text) else _DIGITS.sub("0", text[:500])
        if shape is not None and shape in self._reader.dull:
            self._say(text, quote, piece)
        elif not self._look(text, quote, piece) and shape is not None and len(self._reader.dull) < _SHAPES:
            self._reader.dull.add(shape)

    def _explains(self, text: str, quote: Quote) -> bool:
        """Whether the line has the words of NCCL's result above it, where the exception before both is lost."""
        event, self._explained = self._explained, None
        if event is None:
            if _LAST_ERROR.match(text) and self._last is not None and self._last.known is not None:
                self._explained = self._last if self._last.known.id in (*_UNSPECIFIC, "nccl-remote") else None
            return self._explained is not None
        event.last_error = quote if text.strip() else None
        known = explain(text)
        if known is None:
            return False
        event.known = known
        event.text += f"\n{text}"
        event.quotes.insert(0, quote)
        return True

    def _is_known(self, text: str) -> bool:
        """A line without any word of an error may have those of a message, which lost its begin."""
        if not _WORD.search(text) or (shape := _DIGITS.sub("0", text[:500])) in self._reader.dull:
            return False
        known = explain(text) is not None
        if not known and len(self._reader.dull) < _SHAPES:
            self._reader.dull.add(shape)
        return known

    def _begins_something(self, text: str, quote: Quote, piece: Piece) -> bool:
        """A traceback, a stack, or the words between two of them."""
        if _RICH_HEADER.match(text):
            self._begin(0, text)
            return True
        if _HEADER in text:
            before = text.partition(_HEADER)[0]
            if explain(before) is not None and not _RAISED_ALONE.match(before.strip()):
                self._look(before, quote, piece)
            else:
                self._reader.reading.ends.extend(ends_in(before, piece.rank, quote))
                self._say(before, quote, piece)
            self._begin(0 if before.strip() else len(before), text)
            return True
        if (frame := _FRAME.match(text)) and self._fatal is None:
            self._begin(max(0, len(frame["indent"]) - 2), text)
            self._add(frame, quote)
            return True
        if _CHAINED.search(text):
            self._chained = True
            return True
        if match := _SPAWNED.search(text):
            self._rank_of_next = int(match[1])
            return True
        if self._rank_of_next is not None and _ends_like_exception(name := text.strip()) and _RAISED.match(name):
            self._raise(name, text, quote, piece.rank, ())  # all else of its traceback was left out
            return True
        if match := _PROCESS.match(text):
            argument = _RANK_ARGUMENT.search(match["command"])
            self._process, self._process_rank = match["pid"], int(argument[1]) if argument else None
            return True
        if match := _THREAD.match(text):
            if match["name"] in (None, "MainThread"):
                self._fatal = self._event(text, quote, piece.rank, None, shaped=True)
                self._begin(0, text, innermost_first=True)
            return True
        return False

    def _look(self, text: str, quote: Quote, piece: Piece) -> bool:
        """A line that may have information by itself; whether it has."""
        reading, rank = self._reader.reading, piece.rank
        reading.world = world_in(text) or reading.world
        self._follow_the_job(text, quote)
        ended = False
        for end in ends_in(text, rank, quote):
            reading.ends.append(end)
            ended = True
        work = work_in(text, rank, quote, self._reader.order)
        if work is not None:
            reading.works.append(work)
            rank = work.rank
        what = _WHAT.match(text)
        if fatal := _FATAL.search(text):
            self._fatal = self._event(text, quote, rank, explain(text), shaped=True)
            self._begin(0, text, innermost_first=True)
            if "Fatal" in fatal[0]:
                self._fatal = self._keep(self._fatal)
            return True
        raised = _RAISED_ALONE.match(text.strip())
        if raised and not ended:
            self._raise(raised["type"], text, quote, rank, ())
            return True
        known = explain(text)
        if rank is None and known is not None and known.role == "own":
            rank = watchdog_rank(text)
        if what and known is None:
            known = signature("sigabrt")
        if known is None:
            return self._look_for_less(text, quote, rank, piece) or ended or work is not None
        shaped = bool(what) or "watchdog thread terminated" in text or known.id == "device-assertion"
        event = self._event(text, quote, rank, known, shaped=shaped)
        event.soft = known.role == "own" and not shaped and bool(_WARNING.search(text)) and not _NCCL_WARNS.search(text)
        if known.id == "gather-shape":
            self._message = event  # the shapes of all ranks follow
            return True
        event = self._last = self._keep(event)
        if _FR_REPORT.search(text):
            self._report = event
        if known.role in ("warning", "note"):
            self._say(text, quote, piece)
        return True

    def _follow_the_job(self, text: str, quote: Quote) -> None:
        """What a line says of the job as a whole: all ranks have started, or all are being ended."""
        if _REGISTERED.search(text):
            self._reader.reading.registered = self._reader.order
        elif _STEP_ENDS.search(text):
            self._reader.reading.ending.setdefault(quote.source, quote.number)

    def _look_for_less(self, text: str, quote: Quote, rank: int | None, piece: Piece) -> bool:
        """A line that has no known words: what belongs to the line before, or an exception that a sentence quotes."""
        place, last, quoted = _COMPILED.search(text), self._last, _MENTIONED.search(text)
        if place and last is not None and last.kind == "recompile-limit" and not last.frames:
            last.frames = (Frame(place["path"], int(place["line"]), place["function"]),)
        mentioned = self._reader.reading.mentioned
        if quoted and len(mentioned) < _KEPT:
            event = self._event(text.strip(), quote, rank, None, shaped=False)
            event.type = (quoted["type"] or "OSError").rpartition(".")[2]
            mentioned.append(event)
        self._say(text, quote, piece)
        return place is not None or quoted is not None

    def _say(self, text: str, quote: Quote, piece: Piece) -> None:
        if _WORD.search(text) and not _NOISE.match(text):
            rank = piece.rank if piece.rank is not None else piece.hint
            if piece.hint is not None and piece.hint < 100_000:
                self._reader.reading.ranks.add(piece.hint)
            self._reader.reading.last_output[rank] = quote

    # ---- tracebacks

    def _begin(self, indent: int, text: str, *, innermost_first: bool = False) -> None:
        self._inner_of = self._message if _INNER.search(text) else None
        if self._inner_of is None:
            self._close_message()
        self._message = None
        self._cut_off()
        self._frames, self._indent, self._patience = [], indent, 0
        self._code, self._user_code = [], []
        self._innermost_first = innermost_first
        of = _OF_RANK.search(text)
        self._rank_shown = int(of["told"] or of["tensor"]) if of is not None else None

    def _finish_traceback(self) -> None:
        """The log ends before the exception: the `raise` has its name, and what carries a worker's exception."""
        frames = tuple(self._frames or ())
        if self._inner_of is not None:
            outer, self._inner_of = self._inner_of, None
            outer.frames, self._frames, self._message = (*frames, *outer.frames), None, outer
        elif frames and (raising := self._raising()):
            self._frames = None
            self._raise(raising["type"], raising["what"], self._code[-1], self._rank, frames)
        elif frames and (message := self._saying()):
            self._frames = None
            self._raise("", message, self._code[-1], self._rank, frames)
        self._close_message()

    def _raising(self) -> re.Match[str] | None:
        """The `raise` that is the code of the last frame."""
        found = _RAISING.match(self._code[-1].text) if len(self._code) == 2 else None
        if found is not None and found["type"][0] == "_" and explain(found["what"]) is None:
            return None  # a function that makes the exception, whose words are not known
        return found

    def _saying(self) -> str:
        """The known message that is the code of the last frame: the last line of a `raise` that has several."""
        said = _SAID.match(self._code[-1].text) if len(self._code) == 2 else None
        return said["message"] if said is not None and explain(said["message"]) is not None else ""

    def _cut_off(self) -> None:
        if self._frames:
            code = self._shown_code()
            rank = self._rank if self._rank is not None else self._rank_of_next
            rank = self._block_rank() if rank is None else rank
            self._reader.reading.cut_off.append(CutOff(rank, tuple(self._frames), code))
            del self._reader.reading.cut_off[_KEPT:]

    def _add(self, match: re.Match[str], quote: Quote | None = None) -> None:
        assert self._frames is not None
        frame = Frame(match["path"], int(match["line"]), match["function"] or "")
        self._frames.insert(len(self._frames) if self._innermost_first else 0, frame)
        del self._frames[200:]
        if quote is not None:
            self._rank = quote.rank
            self._flat = not match["indent"]
            self._code = [quote]
            if not is_library(frame.path):
                self._user_code = self._code

    def _in_traceback(self, text: str, quote: Quote, piece: Piece) -> bool:
        """Whether the line belongs to the traceback; False for one that another process wrote in between."""
        if frame := _FRAME.match(text):
            self._add(frame, quote)
            return True
        if self._innermost_first and (frame := _SPY_FRAME.match(text)):
            self._add(frame)
            return True
        if self._innermost_first:
            return self._in_dump(text)
        if not text.strip() or _PSEUDO_CODE.match(text):
            return True
        if _RICH.match(text):
            if frame := _RICH_FRAME.match(text):
                self._add(frame)
            return True
        if _HEADER in text:
            if self._frames and (inner := _INNER.search(text)) and inner["type"]:
                frames, self._frames = tuple(self._frames), None
                self._raise(inner["type"], text, quote, piece.rank, frames)
                self._begin(0, text)
                return True
            if self._frames:
                self._frames = None
                return False
            return True
        return self._is_code(text, quote) or self._is_raised(text, quote, piece)

    def _is_code(self, text: str, quote: Quote) -> bool:
        here = len(text) - len(text.lstrip())
        if here >= self._indent + 4 and not _WHAT.match(text):
            if len(self._code) == 1:
                self._code.append(quote)
            return True
        if self._flat and len(self._code) == 1 and not ((raised := _RAISED.match(text)) and raised["message"]):
            self._code.append(quote)
            return True
        return False

    def _is_raised(self, text: str, quote: Quote, piece: Piece) -> bool:
        """Whether the line is the last one of the traceback."""
        raised = _RAISED.match(text.strip())
        if raised and (raised["message"] is not None or _is_name(raised["type"])):
            frames, self._frames = tuple(self._frames or ()), None
            name = raised["type"]
            if raised["message"] is None and not _ends_like_exception(name):
                name = raising["type"] if (raising := self._raising()) else name  # the line itself is cut off
            self._raise(name, text, quote, piece.rank, frames)
            return True
        self._patience += 1
        if self._patience > 40:
            self._frames = None
        return False

    def _in_dump(self, text: str) -> bool:
        """faulthandler's stacks, of the thread that failed first; those of other threads are left alone."""
        if not text.strip() or text.startswith(("  <", "  ...")):
            return True
        if _FATAL.search(text) and not self._frames:
            return True
        if text.startswith("Current thread 0x") and self._fatal is not None and "Fatal" in self._fatal.text:
            self._frames = []  # the threads before it did not crash
            return True
        self._end_dump()
        return text.startswith(("Thread 0x", "Current thread 0x", "Extension modules:", "  "))

    def _end_dump(self) -> None:
        """The stack of a process that crashed, or (faulthandler's and py-spy's) of one that hangs."""
        event, frames = self._fatal, tuple(self._frames or ())
        self._frames, self._fatal, self._innermost_first = None, None, False
        if event is None or not frames:
            return
        if "Fatal" in event.text:
            event.frames = event.frames or frames
            return
        rank = event.rank if event.rank is not None else self._process_rank
        name = f"{event.stream}|{self._process}"
        self._reader.reading.stacks.setdefault(name, Stack(rank, self._process, frames, event.quote))

    def _raise(self, name: str, text: str, quote: Quote, rank: int | None, frames: tuple[Frame, ...]) -> None:
        """The last line of a traceback: its message may go on."""
        if self._inner_of is not None:
            outer, self._inner_of = self._inner_of, None
            outer.frames = (*frames, *outer.frames)
            outer.quotes.append(quote)
            outer.code = self._shown_code()
            outer.text += f"\n{text}"
            self._message = outer
            return
        if self._rank_shown is not None:
            rank, self._rank_shown = self._rank_shown, None
        if rank is None:
            rank = self._block_rank()
        if self._rank_of_next is not None and rank is None:
            rank, self._rank_of_next = self._rank_of_next, None
        event = self._event(text.strip(), quote, rank, None, shaped=True)
        event.type, event.frames = name.rpartition(".")[2], frames
        event.code = self._shown_code() if frames else ()
        if self._chained and self._previous is not None:
            self._previous.leads_to = event
        self._chained = False
        self._message = self._previous = event

    def _shown_code(self) -> tuple[Quote, ...]:
        return tuple(dict.fromkeys([*self._user_code, *self._code]))

    def _continue(self, text: str, quote: Quote) -> bool:
        """Whether the line goes on with the message of an exception."""
        event = self._message
        assert event is not None
        if _INNER.search(text):
            self._begin(0, text)
            return True
        if match := _SPAWNED.search(text):
            self._rank_of_next = int(match[1])
            return True
        if _CAUGHT.search(event.text) and "\n" not in event.text and _RAISED_ALONE.match(text):
            event.text += f"\n{text}"
            event.quotes.append(quote)
            return True
        if (
            _HEADER in text
            or _FRAME.match(text)
            or (_BEGINS.match(text) and not text.startswith("\t"))
            or _RAISED_ALONE.match(text)
            or event.text.count("\n") > _MESSAGE_LINES
            or _WHAT.match(text)
        ):
            self._close_message()
            return False
        if not text.strip():
            if event.text.endswith("\n\n"):
                self._close_message()
            else:
                event.text += "\n"
            return True
        if event.text.endswith("\n") and not text.startswith((" ", "\t")) and not _TELLING.search(text):
            self._close_message()
            return False
        event.text += f"\n{text}"
        if len(event.quotes) < 12 and not _NOISE.match(text):
            event.quotes.append(quote)
        return True

    def _close_message(self) -> None:
        event, self._message = self._message, None
        if event is None:
            return
        event.text = event.text.strip("\n")
        event.known = _explained(event)
        event.last_error = _after_last_error(event.quotes)
        work = work_in(event.text, event.rank, event.quote, event.order)
        if work is not None:
            self._reader.reading.works.append(work)
        self._reader.reading.ends.extend(ends_in(event.text, event.rank, event.quote))
        kept = self._keep(event)
        self._previous = kept

    # ---- torchrun's block, torchfrtrace's report

    def _in_block(self, text: str, quote: Quote) -> bool:
        """torchrun's list of failures. True for a line that is only a part of it."""
        if _ALONE.search(text):
            self._reader.reading.no_others = True
            return "<NO" in text
        if (process := _MPI_PROCESS.match(text)) is not None:
            self._mpi_rank, self._mpi_quote = int(process["rank"]), quote
            return True
        if self._mpi_rank is not None and (code := _MPI_CODE.match(text)) is not None:
            self._in_root = True
            self._ended(self._mpi_rank, status(code["code"]), None, self._mpi_quote or quote, alone=True)
            self._in_root, self._mpi_rank = False, None
            return True
        if "Root Cause (first observed failure)" in text:
            self._in_root = True
            self._block = {}
            return True
        if (line := _BLOCK_LINE.match(text)) is not None:
            self._ended(int(line["rank"]), status(line["code"]), int(line["pid"]), quote)
            return True
        match = _BLOCK.match(text)
        if match is None:
            if text.startswith("====="):
                self._in_root, self._block = False, {}
            return False
        if match["key"] == "time":
            self._block, self._block_quotes = {}, []
        self._block[match["key"]] = match["value"]
        if match["key"] in ("exitcode", "traceback"):
            self._block_quotes.append(quote)
        if match["key"] == "traceback":
            self._end_block(match["value"], quote)
        return True

    def _end_block(self, value: str, quote: Quote) -> None:
        rank, code = (
            _BLOCK_RANK.search(self._block.get("rank", "")),
            _BLOCK_CODE.search(self._block.get("exitcode", "")),
        )
        if rank is None or code is None:
            return
        ended = status(code[1])
        has_error = ended >= 0 and "To enable" not in value
        self._ended(int(rank[1]), ended, int(code[2]), self._block_quotes[0] if has_error else quote)
        if "Traceback" in value:
            self._begin(0, value)

    def _block_rank(self) -> int | None:
        """The rank of the entry of torchrun's list that the lines belong to."""
        match = _BLOCK_RANK.search(self._block.get("rank", ""))
        return int(match[1]) if match else None

    def _ended(self, rank: int, code: int, pid: int | None, quote: Quote, *, alone: bool = False) -> None:
        self._reader.reading.ranks.add(rank)
        self._reader.reading.ends.append(
            End(
                rank=rank, code=code, quote=quote, pid=pid, first=self._in_root, alone=alone, stopped=code == -15,
                time=time_in(self._block.get("time", "")),
            )
        )  # fmt: skip

    def _in_report(self, text: str, quote: Quote) -> bool:
        """torchfrtrace's words about one collective, up to the end of its stack."""
        event = self._report
        assert event is not None
        frame = _AT.match(text)
        if frame:
            place = Frame(frame["path"], int(frame["line"]), frame["function"])
            event.frames = (*event.frames, place)
        elif _FR_REPORT.search(text) or event.frames or not text.strip() or event.text.count("\n") > 40:
            self._report = None
            return False
        event.text += f"\n{text}"
        if len(event.quotes) < 14 and not frame:
            event.quotes.append(quote)
        event.named = named_in(event.text) or event.named
        self._reader.reading.world = world_in(text) or self._reader.reading.world
        return True

    # ---- events

    def _event(self, text: str, quote: Quote, rank: int | None, known: Signature | None, *, shaped: bool) -> Event:
        return Event(
            order=self._reader.order,
            rank=rank,
            text=text,
            quotes=[quote],
            known=known,
            shaped=shaped,
            time=time_in(text),
            stream=f"{quote.source}|{self._name}",
        )

    def _keep(self, event: Event) -> Event:
        if event.rank is not None:
            self._reader.reading.ranks.add(event.rank)
        return self._reader.keep(event)


def _after_last_error(quotes: Sequence[Quote]) -> Quote | None:
    """The line below NCCL's `Last error:`."""
    pairs = itertools.pairwise(quotes)
    return next((quote for before, quote in pairs if before.text.rstrip().endswith("Last error:")), None)


def _explained(event: Event) -> Signature | None:
    """What is known of an exception, by its last words and then by all of them."""
    first = explain(event.text.partition("\n")[0][:2000])
    joins = event.frames and _JOINS.search(event.frames[0].path)  # torch 1.7 and older raise a plain Exception
    if _LAUNCHER_TYPES.search(event.type) or (joins and event.type == "Exception"):
        if first is not None and first.id == "compiler-failed":
            return first
        told = explain(event.text[:6000])
        return told if told is not None and told.role == "launcher" else explain("ChildFailedError")
    if event.type in _CLOSED and event.frames and not any(_RANKS_TALK.search(frame.path) for frame in event.frames):
        return signature("helper-closed")
    if event.type == "BrokenPipeError" and any(_STARTS.search(frame.path) for frame in event.frames):
        return None  # it was starting a process of its own, no rank
    if first is not None and first.kind == "store-timeout" and _agent_waits(event.frames):
        return signature("exit-barrier" if _leaves(event.frames) else "rendezvous-timeout")
    if first is not None and first.id == "not-picklable" and any(_COPIES.search(f.path) for f in event.frames):
        return signature("fsdp-deepcopy")
    if first is not None and first.id == "gather-size" and any(_LOADS.search(f.path) for f in event.frames):
        return signature("file-damaged")  # what is no pickle is a file, and no message of another rank
    if first is None or first.id in _UNSPECIFIC:
        found = explain(event.text[:6000])
        # What a launcher writes next to it is no part of the message.
        return found if found is not None and (found.role != "launcher" or not event.type) else first
    return first


def _agent_waits(frames: Sequence[Frame]) -> bool:
    """A launcher waited for those of other nodes."""
    return any(_AGENT.search(frame.path) for frame in frames)


def _leaves(frames: Sequence[Frame]) -> bool:
    """At the end, when its own ranks had ended."""
    return any(frame.function == "_exit_barrier" for frame in frames)


def _is_name(name: str) -> bool:
    """A name that is an exception's also without a message; `ray.e` is one that the log cuts off."""
    last = name.rpartition(".")[2]
    return _ends_like_exception(name) or ("." in name and (last[:1].isupper() or last in _SMALL))


def _ends_like_exception(name: str) -> bool:
    return name.endswith(
        ("Error", "Exception", "Interrupt", "Exit", "Iteration", "Warning", "Timeout", "Empty", "Full")
    )

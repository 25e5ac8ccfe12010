"""What a target lacks to run at all: a package that works, a file, its own arguments. That is no verdict on it."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

from ddp_lint.knowledge import table
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.verify.cpu_limits import cpu_limit
from ddp_lint.verify.frames import is_user
from ddp_lint.verify.options import RankOutcome, RunResult
from ddp_lint.verify.sources import tree_of
from ddp_lint.verify.trace import Collective, Event, Exit, Frame, Phase, Raised

#: Errors by which a program says that something outside of it is not there.
_ABSENT = ("FileNotFoundError", "ImportError", "ModuleNotFoundError", "NotADirectoryError")
#: Those of them that one rank may meet alone, because another one has not made the file yet.
FILES = frozenset({"FileNotFoundError", "NotADirectoryError"})
#: Errors of a program that downloads, by libraries that do (torch's own rendezvous raises others).
_NETWORK = frozenset(
    {"URLError", "HTTPError", "ConnectionError", "ConnectTimeout", "ProxyError", "SSLError", "MaxRetryError",
     "LocalEntryNotFoundError", "OfflineModeIsEnabled"}
)  # fmt: skip
#: Errors of a line that takes an argument, or a variable of the environment, which is not there.
_UNMET = ("IndexError", "ValueError", "KeyError")
#: What the number of ranks is called.
_COUNTS = frozenset({"world_size", "world", "get_world_size", "WORLD_SIZE", "num_ranks", "n_ranks"})
_ARGUMENTS = ("sys.argv", "argv")
#: Variables that every rank has under torchrun: a program that misses one starts its ranks in a wrong way.
_OF_TORCHRUN = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
_SHOWN_LINES = 12
#: The status of parsers (argparse, click) for wrong arguments, and how a target gets its own.
_USAGE, _AFTER = 2, "\nthe target's own arguments follow after --: ddp-lint verify TARGET -- ARGUMENTS"
#: A line of a traceback, and the beginnings of paths of ours.
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line \d+, in ')
_OURS = (str(pathlib.Path(__file__).parents[1]), "<frozen runpy>")
#: An ImportError about a name that a module does not have.
_NO_SUCH_NAME = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)' \((?P<path>[^)]+)\)")
#: What Python prints of a warning; the line of source that raised it comes below.
_WARNING = re.compile(r"(?P<path>/\S+):\d+: \w*Warning: ")


def missing_module(name: str) -> str:
    """What to do about a module that cannot be imported."""
    top = name.partition(".")[0]
    if top != name and importlib.util.find_spec(top) is not None:
        owners = importlib.metadata.packages_distributions().get(top, [])
        owner = f" (of {' and '.join(sorted(set(owners)))})" if owners and owners != [top] else ""
        missing = name.removeprefix(top + ".")
        return f"{top}{owner} is installed, and has no {missing}: the target needs another version of it"
    own = f"if {top} is your own code: PYTHONPATH=FOLDER, or run it with -m"
    known = table("distributions")
    if top in known["elsewhere"]:
        source = known["elsewhere"][top]
        return (
            f"{top} is not on PyPI (what may have its name there is another package): pip install {source}  (or, {own})"
        )
    distribution = known["pypi"].get(name) or known["pypi"].get(top, top)
    return f"pip install {distribution}  (or, {own})"


def lacking(runs: Sequence[RunResult]) -> str:
    """Why the target could not run, "" when it could: all ranks ended alike, by its own word or for want of a module or
    a file, before any of them trained."""
    plain = [run for run in runs if not run.stimuli]
    texts = [_of_run(run) or _of_device(run) for run in plain]
    return texts[0] if texts and all(texts) else ""


def _of_device(run: RunResult) -> str:
    """A rank stopped at something that a CPU cannot do, however far it came."""
    raised = [event for rank in run.ranks for event in rank.trace.of(Raised) if event.where == "main"]
    for event in raised if run.device == "cpu" else ():
        text = f"{event.type}: {event.message}"
        limit = cpu_limit(text, event.phase)
        if limit:
            todo = "run on GPUs with --device cuda, or let the script use the CPU without a GPU"
            return f"{text}{_at(event)}\n{limit}: {todo}"
    return ""


def _of_run(run: RunResult) -> str:
    ended = [rank for rank in run.ranks if rank.how not in ("stopped", "not_started")]
    if not ended or any(_trained(rank) for rank in run.ranks):
        return ""
    texts = [_of_rank(rank) for rank in ended]
    others = [rank for rank in run.ranks if rank not in ended]
    if any(_lacks_file(rank) and not is_behind(other, rank) for rank in ended for other in others):
        return ""  # the other rank was ahead: one of them creates the file, and this one does not wait for it
    return texts[0] if all(texts) else ""


def is_behind(rank: RankOutcome, other: RankOutcome) -> bool:
    """`rank` was last seen where `other` had been before it ended: it had not come as far yet."""
    at = rank.last.frame
    sites = (event.site for event in other.trace.events)
    return at is not None and any(site is not None and (site.path, site.line) == (at.path, at.line) for site in sites)


def _at(event: Event) -> str:
    return f" ({event.site.path}:{event.site.line})" if event.site else ""


def _raised(rank: RankOutcome) -> Raised | None:
    return next((event for event in rank.trace.of(Raised) if event.where == "main"), None)


def _lacks_file(rank: RankOutcome) -> bool:
    raised = _raised(rank)
    return raised is not None and raised.type in FILES


def _trained(rank: RankOutcome) -> bool:
    """It was on its way: it communicated by itself (wrappers do so as they are built), or made an optimizer step."""
    calls = any(call.issued_by == "user" for call in rank.trace.of(Collective))
    return calls or any(phase.phase == "step" for phase in rank.trace.of(Phase))


def _of_rank(rank: RankOutcome) -> str:
    raised = _raised(rank)
    if raised is not None and (raised.type in (*_NETWORK, *_ABSENT) or raised.importing or _builds(raised)):
        return "\n".join(filter(None, (f"{raised.type}: {raised.message}{_at(raised)}", _what_to_do(raised))))
    asked = _asks_for(raised) if raised is not None else ""
    if raised is not None and asked:
        return f"{raised.type}: {raised.message}{_at(raised)}\n{asked}"
    left = rank.trace.last(Exit)
    if left is not None and left.how == "os.exec":
        return f"the target becomes another program by os.exec*(){_at(left)}, which is not observed: run verify on that"
    if rank.how == "exit" and rank.exit and not any(rank.trace.calls("init_process_group")):
        return f"the target ended itself with status {rank.exit}:\n{last_lines(rank)}{_AFTER * (rank.exit == _USAGE)}"
    return ""


def _asks_for(raised: Raised) -> str:
    """What the line that raised asks for and does not get: an argument of the program, or an environment variable."""
    site = raised.site
    if site is not None and raised.type == "AssertionError":
        return _asks_for_ranks(site)
    if site is None or raised.type not in _UNMET:
        return ""
    nodes = [node for node in ast.walk(tree_of(site.path)) if getattr(node, "lineno", 0) == site.line]
    if raised.type == "ValueError" and not raised.message.startswith("not enough values to unpack"):
        return ""
    if raised.type != "KeyError":
        reads = any(isinstance(node, ast.Attribute | ast.Name) and dotted_ast(node) in _ARGUMENTS for node in nodes)
        return f"the target takes arguments that it was not given{_AFTER}" if reads else ""
    entries = [node for node in nodes if isinstance(node, ast.Subscript) and last_part(node.value) == "environ"]
    name = raised.message.strip("'\"")
    if name in _OF_TORCHRUN or name not in {one.slice.value for one in entries if isinstance(one.slice, ast.Constant)}:
        return ""
    return f"the target needs the environment variable {name}: set it before you run ddp-lint verify"


def _asks_for_ranks(site: Frame) -> str:
    """An assertion of the target's about the number of ranks."""
    tests = (n.test for n in ast.walk(tree_of(site.path)) if isinstance(n, ast.Assert) and n.lineno == site.line)
    test = next(tests, None)
    if test is None or not any(last_part(node) in _COUNTS for node in ast.walk(test)):
        return ""
    return f"the target does not run on this number of ranks (`{ast.unparse(test)}`): pass another --nproc"


def _builds(raised: Raised) -> bool:
    """It was raised by what compiles an extension of torch, such as a kernel of the target's own."""
    return raised.inner.partition(".py:")[0].endswith("torch/utils/cpp_extension")


def _what_to_do(raised: Raised) -> str:
    if _builds(raised):
        return "the target builds an extension of torch: this machine lacks a compiler for it, or the CUDA toolkit"
    if raised.type in _NETWORK:
        return "the target needs a download that is not available here: download it first, or name a local copy"
    name = raised.message.partition("'")[2].partition("'")[0]
    if raised.type == "ModuleNotFoundError" and name:
        return missing_module(name)
    gone = _NO_SUCH_NAME.match(raised.message)
    if gone is not None and not is_user(gone["path"]):
        package = gone["module"].partition(".")[0]
        return f"{package} is installed, and has no {gone['name']}: the target needs another version of it"
    if raised.importing and raised.type not in FILES:
        return f"a package that the target imports does not work here (raised at {raised.inner})"
    return ""


def last_lines(rank: RankOutcome, most: int = _SHOWN_LINES) -> str:
    """The last lines that a rank printed, without the warnings of libraries and without frames of our own."""
    printed = _without_own_frames(_without_warnings(rank.log.splitlines()))
    lines = [line.rstrip() for line in printed if line.strip(" ^~")]
    return "\n".join(f"  {line[:300]}" for line in lines[-most:])


def _without_warnings(lines: Iterable[str]) -> Iterator[str]:
    """The lines without what Python prints of a warning in a library: its place and text, and the line below."""
    quoted = False
    for line in lines:
        warned = _WARNING.match(line)
        if warned is not None and not is_user(warned["path"]):
            quoted = True
        elif not (quoted and line.startswith("  ")):
            quoted = False
            yield line


def _without_own_frames(lines: Iterable[str]) -> Iterator[str]:
    """The lines without those that a traceback has on frames of ours, and on what runs the target for us."""
    own = False
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            own = frame["path"].startswith(_OURS)
        elif not line.startswith("    "):
            own = False
        if not own:
            yield line

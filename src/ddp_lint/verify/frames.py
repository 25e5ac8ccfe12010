"""Which frames of a stack are the user's."""

from __future__ import annotations

import dis
import functools
import importlib.machinery
import itertools
import linecache
import os
import pathlib
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType, TracebackType

from ddp_lint.verify.trace import Frame

_LIMIT = 12
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_SCHEMES = ("stdlib", "platstdlib", "purelib", "platlib")


def _installed() -> set[str]:
    """Folders of the import path that packages were installed into, also by `pip install --target`; and torch, which
    may come from a source tree. Without that its frames would pass for the user's."""
    folders = {entry for entry in sys.path if entry and any(pathlib.Path(entry).glob("*.dist-info"))}
    torch = importlib.machinery.PathFinder.find_spec("torch")
    return folders | set(torch.submodule_search_locations or () if torch else ())


_LIBRARIES = tuple(
    sorted(
        {
            os.path.realpath(path) + os.sep
            for path in (
                *(sysconfig.get_paths()[name] for name in _SCHEMES),
                *site.getsitepackages(),
                site.getusersitepackages(),
                str(pathlib.Path(__file__).parents[1]),
                *_installed(),
            )
        }
    )
)
#: Files, and folders with a separator at their end, that are the user's wherever they lie: the target and its package.
_targets: set[str] = set()


def add_target(path: str, *, package: bool = False) -> None:
    """`path` is the user's even when it lies in a library folder; with `package` all of the package that holds it."""
    folder = pathlib.Path(path).parent
    while package and (folder.parent / "__init__.py").exists():
        folder = folder.parent
    _targets.update({path, *([f"{os.path.realpath(folder)}{os.sep}"] if package else [])})
    is_user.cache_clear()


def in_package(path: pathlib.Path) -> tuple[pathlib.Path, str]:
    """The folder above the outermost package that holds a file, and the file's dotted name from there."""
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


@functools.cache
def is_user(path: str) -> bool:
    """The file is no library, no part of Python or of ddp-lint, and no code without a file."""
    if path.startswith("<"):
        return False
    real = os.path.realpath(path)
    folders = tuple(target for target in _targets if target.endswith(os.sep))
    return path in _targets or real in _targets or real.startswith(folders) or not real.startswith(_LIBRARIES)


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def as_frame(frame: FrameType) -> Frame:
    code = frame.f_code
    return Frame(absolute(code.co_filename), frame.f_lineno, code.co_name)


@functools.cache
def absolute(path: str) -> str:
    return path if path.startswith("<") else os.path.abspath(path)  # noqa: PTH100 (resolving would follow links)


def user_frames(frame: FrameType | None) -> tuple[Frame, ...]:
    """The user's frames among `frame` and its callers, innermost first."""
    found = []
    for here in outwards(frame):
        if is_user(here.f_code.co_filename):
            found.append(as_frame(here))
            if len(found) == _LIMIT:
                break
    return tuple(found)


_TRACED = re.compile(r'^\s*File "([^"]+)", line (\d+), in (\S+)$', re.MULTILINE)


def frames_in_text(text: str) -> list[Frame]:
    """The user's frames of a traceback that another process printed, innermost first."""
    found = [(path, int(line), function) for path, line, function in _TRACED.findall(text)]
    return [Frame(absolute(path), line, function) for path, line, function in reversed(found) if is_user(path)][:_LIMIT]


def traceback_frames(trace: TracebackType | None) -> tuple[list[Frame], str]:
    """The user's frames of a traceback, innermost first, and its innermost frame of all as "path:line function"."""
    found: list[Frame] = []
    inner = ""
    while trace is not None:
        here = trace.tb_frame.f_code
        frame = Frame(absolute(here.co_filename), trace.tb_lineno, here.co_name)
        inner = f"{frame.path}:{frame.line} {frame.function}"
        if is_user(here.co_filename):
            found.insert(0, frame)
        trace = trace.tb_next
    return found[:_LIMIT], inner


def none_at(trace: TracebackType | None) -> list[str]:
    """The variables and attributes that are None in what the innermost of the user's frames was computing."""
    innermost = None
    while trace is not None:
        innermost = trace if is_user(trace.tb_frame.f_code.co_filename) else innermost
        trace = trace.tb_next
    if innermost is None:
        return []
    code = innermost.tb_frame.f_code
    text = linecache.getline(code.co_filename, innermost.tb_lineno)
    if sys.version_info >= (3, 11):
        first, last, start, end = next(itertools.islice(code.co_positions(), innermost.tb_lasti // 2, None))
        if first is not None and first == last:
            text = text.encode()[start:end].decode()
    names = _DOTTED.findall(text)
    parts = (part for whole in names for part in itertools.accumulate(whole.split("."), "{}.{}".format))
    return [part for part in dict.fromkeys(parts) if _value(innermost.tb_frame, part) is None]


def _value(frame: FrameType, name: str) -> object:
    """What a local variable holds, or an attribute of one that its object keeps; what is no such is not None."""
    first, *rest = name.split(".")
    held: object = frame.f_locals.get(first, ...)
    for attribute in rest:
        held = getattr(held, "__dict__", {}).get(attribute, ...)
    return held


def message_of(error: BaseException) -> str:
    """What the target's exception says of itself; nothing where saying it fails."""
    try:
        return str(error)
    except Exception:
        return ""


def in_an_import(trace: TracebackType | None) -> bool:
    """The innermost of the user's frames imports something of a library, which raised this."""
    found = False
    while trace is not None:
        code = trace.tb_frame.f_code
        # A traceback leaves out the frames of the import itself, and a library that is not in Python has none.
        if is_user(code.co_filename):
            found = code.co_code[trace.tb_lasti] == dis.opmap["IMPORT_NAME"]
        else:
            found = found or code.co_name == "<module>"
        trace = trace.tb_next
    return found

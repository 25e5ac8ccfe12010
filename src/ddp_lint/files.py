"""Reading and writing files of a checkout that nobody vouches for: nothing in it makes a read wait or fill the memory,
and no write is ever seen half done or lands behind a link."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pathlib
import re
import secrets
import stat
from typing import BinaryIO

#: Source is text that people wrote; what is larger is data, and costs a hundred times its size in memory to parse.
LIMIT = 16 * 2**20
#: What goes wrong where a file is read that an earlier run has written: it is not there, or not of the form of today.
MALFORMED = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
_TEMPORARY = re.compile(r"\.ddp-lint-(\d+)-[0-9a-f]+\.tmp")
_KINDS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISDIR, "a folder"))


def read(path: str | os.PathLike[str], limit: int = LIMIT) -> bytes:
    """The content of a regular file. Raises OSError, also for what is no regular file or has more bytes than `limit`:
    a named pipe is waited for by who opens it, a device may have no end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:  # noqa: PTH123 (an open handle)
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "a device")
            raise OSError(errno.EINVAL, f"it is {kind}, not a file")
        return read_stream(file, limit)


def read_stream(file: BinaryIO | None, limit: int = LIMIT) -> bytes:
    """What is left of an open file, whatever that is. Raises OSError where it has more bytes than `limit`."""
    if file is None:  # of standard input, which nobody has opened
        raise OSError(errno.EBADF, "it is closed")
    data = file.read(limit + 1)
    if data is None:  # of a regular file: one of the kernel's, with nothing to say yet
        raise OSError(errno.EAGAIN, "reading it would wait")
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit // 2**20} MiB")
    return data


def is_endless(file: BinaryIO) -> bool:
    """Is it a device that may have no end? A terminal has one, and so has the null device."""
    state = os.fstat(file.fileno())
    device = stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode)
    return device and not file.isatty() and state.st_rdev != pathlib.Path(os.devnull).stat().st_rdev


def read_or_nothing(path: str) -> bytes:
    try:
        return read(path)
    except OSError:
        return b""


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether anything is seen at a path that anybody may have written: nothing is where the name is too long, or in a
    folder that may not be entered, where `pathlib` raises."""
    return _mode(path) != 0


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file is seen at a path, as `exists` sees it."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is seen at a path, as `exists` sees it."""
    return stat.S_ISDIR(_mode(path))


def _mode(path: str | os.PathLike[str]) -> int:
    try:
        return pathlib.Path(path).stat().st_mode
    except (OSError, ValueError):
        return 0


def lies_in(path: pathlib.Path, folder: pathlib.Path) -> bool:
    """Whether an absolute path is the folder or below it. By the texts: pathlib makes a path of each folder above,
    which costs the square of the depth."""
    inside, outside = os.path.normcase(path), os.path.normcase(folder)
    return inside == outside or inside.startswith(inner(outside))


def inner(folder: str) -> str:
    """How the paths of what is in a folder begin; of the root of all files with one separator, not two."""
    return folder if folder.endswith(os.sep) else folder + os.sep


def absolute(path: str | os.PathLike[str]) -> pathlib.Path:
    """The absolute path of a file. A link keeps its own name: `resolve` would follow it."""
    return pathlib.Path(os.path.abspath(path))  # noqa: PTH100


def reason_of(error: Exception) -> str:
    """Why a file cannot be read or written, without its name."""
    return getattr(error, "strerror", None) or str(error)


def behind_links(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Where a write to `path` lands. Raises OSError where that is outside of `folder`."""
    place = pathlib.Path(os.path.realpath(path))
    if not lies_in(place, pathlib.Path(os.path.realpath(folder))):
        raise OSError(errno.EPERM, f"it links to {place}, which lies outside of {folder}")
    return place


def shown(path: pathlib.Path) -> str:
    """A path as findings and messages show it: relative to the working directory when below it."""
    return shown_from(pathlib.Path.cwd(), path)


def shown_from(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> str:
    """A path as one who works in `folder` is shown it."""
    return below(os.fspath(folder), os.path.normpath(path))


def below(folder: str, path: str) -> str:
    """The path from `folder` on, with slashes; all of it where it is elsewhere."""
    start = inner(folder)
    rest = path[len(start) :] if path.startswith(start) and path != folder else ("." if path == folder else path)
    return rest.replace(os.sep, "/")


def write(path: pathlib.Path, data: bytes, mode: int | None = None) -> None:
    """Write a file as a whole: whoever reads it, whenever this process ends, finds the old or the new content.

    Raises OSError. `mode`: the permissions of the file; those of the file before, or what is usual for a new one.
    """
    remove_leftovers(path.parent)
    if mode is None:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(path.lstat().st_mode)
    temporary = path.with_name(f".ddp-lint-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    try:
        _write_new(temporary, data, mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_new(path: pathlib.Path, data: bytes, mode: int | None) -> None:
    # O_EXCL: a link that waits under this name is not followed.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o666), "wb") as file:  # noqa: PTH123 (an open handle)
        file.write(data)
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), mode)


@functools.cache
def remove_leftovers(folder: pathlib.Path) -> None:
    """Remove the temporary files of processes that were killed while they wrote into a folder (asked once a folder)."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 (names alone)
            found = _TEMPORARY.fullmatch(name)
            if found and not is_running(int(found[1])):
                (folder / name).unlink(missing_ok=True)


def is_running(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    if not hasattr(os, "fork"):  # elsewhere a signal of 0 is no question but an order
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True

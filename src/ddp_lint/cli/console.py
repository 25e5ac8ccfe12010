"""What the verbs share: colour, errors, and writing text to a terminal or a file."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, TextIO

import click

from ddp_lint.files import absolute, behind_links, lies_in, reason_of, shown
from ddp_lint.files import write as write_whole
from ddp_lint.output import visible
from ddp_lint.output.style import Style
from ddp_lint.source.file import Unreadable

#: Exit statuses.
CLEAN, FOUND, FAILED, INTERRUPTED = 0, 1, 2, 130
#: Options that several verbs have.
COLOR = click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress.")
OUTPUT_FILE = click.option(
    "-o",
    "--output-file",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    help="Write the report to this file.",
)


def wants_color(choice: str, stream: TextIO | None) -> bool:
    """--color, then NO_COLOR and FORCE_COLOR (any value but an empty one), then whether the stream is a terminal.

    There is no stream where the shell has closed it (``>&-``).
    """
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def write(text: str | bytes, file: pathlib.Path | None) -> None:
    """Print, or write to a file in UTF-8; bytes as they are. What the terminal's encoding lacks is shown escaped."""
    if file is None:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")
        click.echo(text, nl=False, color=True)
        return
    try:
        _write_file(file, text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace"))
    except (OSError, ValueError) as e:  # a name that no file can have
        fail(f"cannot write {file}: {reason_of(e).lower()}")


def _write_file(file: pathlib.Path, data: bytes) -> None:
    """Write a report as a whole. A name within the working directory, which may be anybody's checkout, leads out of
    it through no link; any other is the user's own. Raises OSError."""
    here, path = pathlib.Path.cwd(), absolute(file)
    if lies_in(path, here):
        behind_links(path, here)
    if not path.is_symlink() and (path.is_file() or not path.exists()):
        try:
            write_whole(path, data)
        except OSError as e:
            if e.errno not in (errno.EACCES, errno.EBUSY):  # a file that may be written, in a folder that may not
                raise
        else:
            return
    path.write_bytes(data)


def say(text: str, color: str = "auto") -> None:
    """A line for the person at the terminal, on standard error."""
    style = Style(wants_color(color, sys.stderr))
    text = visible(text)
    kind, _, rest = text.partition(": ")
    paint = {"error": style.red, "warning": style.yellow}.get(kind)
    if hasattr(sys.stderr, "reconfigure"):
        sys.stderr.reconfigure(errors="backslashreplace")
    with contextlib.suppress(OSError):  # it cannot be shown; the exit status stays the same
        click.echo(f"{paint(kind)}: {rest}" if paint else text, err=True, color=True)


#: Errors of a file that was opened for us: a full disk, a limit, a descriptor that cannot be written to.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def not_printed(error: OSError) -> NoReturn:
    """End a run that could not write to standard output, also `--help`, with a message and the status for that. A
    reader who has seen enough (`| head`) is none of that: click ends the run. Raises any other error."""
    if error.filename is not None or error.errno not in _NO_ROOM:
        raise error
    sys.stdout = None  # or what it holds is written, and fails, once more at the end
    fail(f"cannot write to standard output: {reason_of(error).lower()}")


def fail(message: str, color: str = "auto") -> NoReturn:
    """End with one line and the status for usage, configuration and files that cannot be read."""
    say(f"error: {message}", color)
    sys.exit(FAILED)


def say_errors(errors: Iterable[tuple[str, str]], color: str) -> None:
    """The files that could not be read or written, each with the reason."""
    for path, reason in errors:
        say(f"error: {path}: {reason}", color)


@contextlib.contextmanager
def failing_alone(path: pathlib.Path, what: str, failures: list[tuple[str, str]]) -> Iterator[None]:
    """An error of one file is noted under `failures`, and the other files are done all the same."""
    try:
        yield
    except (OSError, ValueError, SyntaxError, LookupError, Unreadable) as e:
        failures.append((shown(path), f"{what}: {reason_of(e)}"))


def end_with(run: Callable[[], int], error: type[Exception], color: str = "auto") -> NoReturn:
    """End with the exit status that `run` returns, or with a message if it raises `error` or is interrupted."""
    try:
        sys.exit(run())
    except error as e:
        fail(str(e), color)
    except KeyboardInterrupt:
        say("error: interrupted")
        sys.exit(INTERRUPTED)


def listed(values: Iterable[str]) -> tuple[str, ...]:
    """The parts of comma-separated values."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

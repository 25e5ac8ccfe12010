"""`ddp-lint diagnose`: from the log of a job that died to the line that did it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from ddp_lint.cli import completing
from ddp_lint.cli.console import CLEAN, COLOR, FOUND, OUTPUT_FILE, QUIET, end_with, fail, say, wants_color, write
from ddp_lint.config import ConfigError

_FORMATS = ("full", "json", "html")
#: Below so many bytes there is nothing to watch.
_LARGE = 64 << 20


@click.command()
@click.argument("paths", nargs=-1, metavar="[LOG|DUMP_DIR|-]...", shell_complete=completing.files)
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path),
    metavar="DIR",
    help="The source tree of the job, to show its lines and to run `check` on them. [default: the working directory]",
)
@click.option("--no-source", is_flag=True, help="Read only the logs, no source.")
@click.option("--text", metavar="TEXT", help="Explain an error text, and exit.")
@click.option("--output-format", type=click.Choice(_FORMATS), default="full", show_default=True)
@OUTPUT_FILE
@click.option("-v", "--verbose", is_flag=True, help="Also list all events, and the last collectives of each rank.")
@QUIET
@COLOR
def diagnose(paths: tuple[str, ...], **given: Any) -> None:
    """Read the logs and dumps of a job and report what happened, which rank caused it, and at which line.

    Takes logs (of one rank or of all, plain or gzip), folders (torchrun's --log-dir, SLURM's files, dumps of the Flight
    Recorder, stacks of py-spy), or - for standard input. Nothing is executed and nothing leaves the machine.

    Exit status: 0 a cause was found, 1 none was, 2 something could not be read.
    """
    end_with(lambda: _run(paths, given), ConfigError, given["color"])


def _run(paths: tuple[str, ...], given: dict[str, Any]) -> int:
    """The whole of it; the exit status. Raises ConfigError."""
    color = given["output_file"] is None and wants_color(given["color"], sys.stdout)
    if given["text"] is not None:
        if paths:
            raise click.UsageError("--text and logs cannot be combined: give one of them")
        return _explain(given["text"], given["output_format"], given["output_file"], color)
    if not paths and (sys.stdin is None or sys.stdin.isatty()):
        raise click.UsageError("name a log, a folder of logs or dumps, or - for standard input")
    from ddp_lint.diagnose.session import diagnose as run
    from ddp_lint.diagnose.text import Unreadable

    paths = paths or ("-",)
    source = None if given["no_source"] else given["source"] or pathlib.Path.cwd()
    try:
        with _progress(paths, given["quiet"]) as progress:
            answer = run(paths, source, progress)
    except Unreadable as e:
        fail(str(e), given["color"])
    for problem in answer.problems:
        say(f"warning: {problem}", given["color"])
    write(_rendered(answer, given["output_format"], color, given["verbose"]), given["output_file"])
    return CLEAN if answer.diagnosis.found else FOUND


def _rendered(answer: Any, output_format: str, color: bool, verbose: bool) -> str:
    from ddp_lint.diagnose import report
    from ddp_lint.output.style import Style

    if output_format == "json":
        return report.as_json(answer)
    if output_format == "html":
        from ddp_lint.diagnose.page import page

        return page(answer)
    return report.full(answer, Style(color), verbose)


@contextlib.contextmanager
def _progress(paths: tuple[str, ...], quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, for what takes a while."""
    size = sum(os.path.getsize(p) for p in paths if p != "-" and os.path.isfile(p))  # noqa: PTH113, PTH202
    if quiet or size < _LARGE or sys.stderr is None or not sys.stderr.isatty():
        yield lambda n: None
        return
    with click.progressbar(length=size, label="reading", file=sys.stderr) as bar:
        yield bar.update


def _explain(text: str, output_format: str, file: pathlib.Path | None, color: bool) -> int:
    """One entry of the table of error texts."""
    import json

    from ddp_lint.knowledge.signatures import explain, kind_in_words
    from ddp_lint.output.style import Style

    known = explain(text)
    if known is None:
        if output_format == "json":
            write("null\n", file)
        else:
            say("this text contains no known error; give the whole log instead: ddp-lint diagnose LOG")
        return FOUND
    if output_format == "json":
        content = {"id": known.id, "kind": known.kind, "role": known.role, "cause": known.cause, "fix": known.fix}
        write(json.dumps({**content, "codes": list(known.codes), "seen": known.seen}, indent=2) + "\n", file)
        return CLEAN
    style = Style(color)
    lines = [
        f"{style.bold(known.kind)}: {kind_in_words(known.kind)} [{known.id}]",
        f"  cause: {known.cause}",
        f"  fix:   {known.fix}",
    ]
    if known.role == "secondary":
        lines.insert(1, "  only a consequence: another rank failed first")
    lines += [f"  rules: {', '.join(known.codes)} (ddp-lint rule CODE)"] if known.codes else []
    write("\n".join(lines) + "\n", file)
    return CLEAN

"""Why a collective is reported, or is not: `check --why FILE:LINE`, and all that are not under `check -v`."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterable, Iterator

from ddp_lint.cli.console import CLEAN, FAILED, say, shown, wants_color, write
from ddp_lint.config import ConfigError, Configuration, Settings
from ddp_lint.divergence.why import Explanation, explain
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.output import Sources
from ddp_lint.output.full import excerpt
from ddp_lint.output.style import Style
from ddp_lint.project import Project


def why(place: str, configuration: Configuration, color: str) -> int:
    """Print what the analysis knows about the collectives at FILE:LINE; the exit status. Raises ConfigError."""
    name, _, line = place.rpartition(":")
    if not name or not line.isdigit():
        raise ConfigError(f"--why takes FILE:LINE, not '{place}'")
    path = pathlib.Path(name).absolute()
    if not path.is_file():
        say(f"error: {name}: no such file", color)
        return FAILED
    settings = configuration.of(path.parent)
    reported = _reported([path], settings)
    found = explain(path, Project(settings.root), int(line))
    style = Style(wants_color(color, sys.stdout))
    if not found:
        write(f"{shown(path)}:{line}: there is no call here\n", None)
    write("\n".join(_block(e, e.span in reported, style) for e in found), None)
    return CLEAN


def silence(files: Iterable[pathlib.Path], settings: Settings) -> Iterator[str]:
    """One line for every collective of the files that is not reported."""
    files = list(files)
    reported = _reported(files, settings)
    project = Project(settings.root)
    for path in files:
        for e in explain(path, project):
            if e.span not in reported:
                yield f"{e.span.path}:{e.span.line}: {e.what} is not reported: {_reason(e, False)}"


def _reported(files: list[pathlib.Path], settings: Settings) -> set[Span]:
    """The spans of the divergence rules' findings."""
    return {f.span for f in check_paths(files, settings).findings if f.code.startswith("DDP1")}


def _reason(e: Explanation, reported: bool) -> str:
    hidden = e.parts and not reported
    return f"{e.reason}, but its rule is off, unsure or suppressed here" if hidden else e.reason


def _block(e: Explanation, reported: bool, style: Style) -> str:
    state = style.red("reported") if reported else style.green("not reported")
    place = Finding("", "", "", e.span, Confidence.HIGH, labels=e.labels)
    head = f"{style.bold(e.what)} is {state}: {_reason(e, reported)}"
    return "\n".join([head, *excerpt(place, Sources(), style)]) + "\n"

"""Why a collective is reported, or is not: `check --why FILE:LINE`, and the same for all of them under `check -v`."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterable, Iterator

from ddp_lint.cli.console import CLEAN, FAILED, say, wants_color, write
from ddp_lint.config import ConfigError, Configuration, Settings
from ddp_lint.divergence.why import Explanation, explain
from ddp_lint.findings import Confidence, Finding
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
    found = explain(path, Project(settings.root), settings, int(line))
    style = Style(wants_color(color, sys.stdout))
    if not found:
        write(f"{place}: no collective here, and none in a function that is called here\n", None)
    write("\n".join(_block(e, style) for e in found), None)
    return CLEAN


def silence(files: Iterable[pathlib.Path], settings: Settings) -> Iterator[str]:
    """One line for every collective of the files that is not reported."""
    project = Project(settings.root)
    for path in files:
        for e in explain(path, project, settings):
            if not e.reported:
                yield f"{e.span.path}:{e.span.line}: {e.what} is not reported: {e.reason}"


def _block(e: Explanation, style: Style) -> str:
    state = style.red("reported") if e.reported else style.green("not reported")
    finding = Finding("", "", "", e.span, Confidence.HIGH, labels=e.labels)
    return "\n".join([f"{style.bold(e.what)} is {state}: {e.reason}", *excerpt(finding, Sources(), style)]) + "\n"

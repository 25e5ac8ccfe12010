"""Why a collective is reported, or is not: `check --why FILE:LINE`, and all that are not under `check -v`."""

from __future__ import annotations

import ast
import pathlib
import sys
from collections.abc import Iterable, Iterator

from ddp_lint.cli.console import CLEAN, FAILED, say, wants_color, write
from ddp_lint.config import ConfigError, Configuration, Settings
from ddp_lint.divergence.analyse import summaries_of
from ddp_lint.divergence.why import Explanation, explain
from ddp_lint.engine.runner import check_paths
from ddp_lint.files import is_file, shown
from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.launch.ranks import is_for_one_process
from ddp_lint.messages.find import result_of as messages_of
from ddp_lint.output import Sources, visible, visible_finding
from ddp_lint.output.full import excerpt
from ddp_lint.output.style import Style
from ddp_lint.project import Project
from ddp_lint.project.facts import MOST_BASES
from ddp_lint.rules.calibrated import surest_at
from ddp_lint.source import notebook
from ddp_lint.source.file import place_kind

#: Digits of the number of a line: Python reads none of thousands.
_LONGEST = 9


def why(place: str, configuration: Configuration, color: str) -> int:
    """Print what the analysis knows about the collectives at FILE:LINE; the exit status. Raises ConfigError."""
    name, _, line = place.rpartition(":")
    if not name or not line.isdecimal():
        raise ConfigError(f"--why takes FILE:LINE, not '{place}'")
    path = pathlib.Path(name).absolute()
    if not is_file(path):
        say(f"error: {name}: no such file", color)
        return FAILED
    if path.suffix == notebook.SUFFIX:
        raise ConfigError("--why takes a line of a Python file, not of a notebook")
    settings = configuration.of(path.parent)
    project = Project(settings.root, names=settings.names)
    facts = project.modules.facts_of(path)
    if facts is None:
        problem = project.modules.problem(path)
        raise ConfigError(f"{name} cannot be {f'parsed: {problem.reason}' if problem else 'read'}")
    if len(line) > _LONGEST or not 1 <= int(line) <= len(facts.file.lines):
        raise ConfigError(f"{name} has no line {line[: 2 * _LONGEST]}")
    reported = _of_divergence(check_paths([path], settings).findings)
    found = explain(path, project, int(line))
    style = Style(wants_color(color, sys.stdout))
    if not found:
        write(f"{visible(shown(path))}:{line}: there is no call here\n", None)
    blocks = (_block(e, reported.get(e.span), _held_back(path, project, settings, e.span.line), style) for e in found)
    write("\n".join(blocks), None)
    return CLEAN


def silence(
    files: Iterable[pathlib.Path], settings: Settings, project: Project, findings: Iterable[Finding]
) -> Iterator[str]:
    """One line for every collective of the files that is not reported. `findings`: what the run has found in them, in
    this project: what it has evaluated is not evaluated again."""
    reported = _of_divergence(findings)
    for path in (path for path in files if path.suffix != notebook.SUFFIX):
        for e in explain(path, project):
            if e.span not in reported:
                yield f"{e.span.path}:{e.span.line}: {_silent(e, _held_back(path, project, settings, e.span.line))}"
        yield from _unfollowed_messages(path, project)
        yield from _long_lineages(path, project)
    for name, line, variable in sorted(summaries_of(project).variables.tables):
        yield f"{name}:{line}: `{variable}` has too many imported names: what it holds was not followed"


def _unfollowed_messages(path: pathlib.Path, project: Project) -> Iterator[str]:
    """What of a file was not searched for messages that no rank answers."""
    facts = project.modules.facts_of(path)
    for line, name, reason in messages_of(facts, project).left_out if facts is not None else ():
        of = f"`{name}`" if name else "the module"
        yield f"{project.paths.shown(path)}:{line}: the sends and receives of {of} were not followed: {reason}"


def _long_lineages(path: pathlib.Path, project: Project) -> Iterator[str]:
    """The classes of a file that inherit from more classes than count."""
    facts = project.modules.facts_of(path)
    if facts is None:
        return
    classes = project.classes
    for node in facts.definitions.values():
        if isinstance(node, ast.ClassDef) and len(classes.lineage(classes.of(facts, node).name)) >= MOST_BASES:
            said = f"`{node.name}` inherits from very many classes: the {MOST_BASES} nearest were looked at"
            yield f"{project.paths.shown(path)}:{node.lineno}: {said}"


def _of_divergence(findings: Iterable[Finding]) -> dict[Span, Finding]:
    """The divergence rules' findings by their spans."""
    return {f.span: f for f in findings if f.code.startswith("DDP1")}


def _held_back(path: pathlib.Path, project: Project, settings: Settings, line: int) -> str:
    """Why no finding at a line of this file is shown, or shown unasked; '' where they are."""
    facts = project.modules.facts_of(path)
    if settings.sure and surest_at(project.paths.inside(path)) is Confidence.LOW:
        return f"findings in a {place_kind(project.paths.inside(path))} are shown only with --preview"
    alone = facts is not None and is_for_one_process(facts, project, line)
    return "each program that comes here is one process" if alone else ""


def _silent(e: Explanation, held_back: str) -> str:
    reason = (held_back or "its rule is off, or it is suppressed") if e.reported else e.reason
    return f"`{e.what}` is not reported: {reason}"


def _block(e: Explanation, finding: Finding | None, held_back: str, style: Style) -> str:
    head = f"`{e.what}` is reported: {finding.code} {finding.message}" if finding else _silent(e, held_back)
    place = Finding("", "", "", e.span, Confidence.HIGH, labels=e.labels)
    return "\n".join([style.bold(visible(head)), *excerpt(visible_finding(place), Sources(), style)]) + "\n"

"""Why a collective was not reported: silence as a result that can be explained."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Iterable, Iterator

from ddp_lint.divergence.analyse import (
    Result,
    Root,
    classes_in,
    communicating_roots,
    graph_of,
    hooked,
    result_of,
    summaries_of,
)
from ddp_lint.divergence.event_graph import Choice, EventGraph, EventNode, Loop, Projection, TooLarge
from ddp_lint.divergence.frame import span_of, text_of
from ddp_lint.divergence.mismatches import Mismatch
from ddp_lint.divergence.summaries import Summaries
from ddp_lint.divergence.values import Condition
from ddp_lint.findings import Confidence, Label, Span
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import calls_below


@dataclasses.dataclass(frozen=True)
class Explanation:
    """`reason` is one line that says why the collective `what` at `span` is or is not reported."""

    span: Span
    what: str
    reported: bool
    reason: str
    labels: tuple[Label, ...] = ()


def explain(path: pathlib.Path, project: Project, line: int | None = None) -> list[Explanation]:
    """One explanation for each collective of the file; with a line only for those whose call covers it, or, if there
    is none, for those of the function around it. Empty for a file that cannot be parsed."""
    facts = project.modules.facts_of(path)
    if facts is None:
        return _not_analysed(path, project)
    summaries = summaries_of(project)
    result = result_of(facts, project)
    own = [_of_root(root, facts, summaries, result, line) for root in communicating_roots(facts, summaries)]
    inherited = [_of_root(root, facts, summaries, result, line) for root in _inherited(own, facts, summaries)]
    found: dict[Span, Explanation] = {}
    for read in (*inherited, *own):
        for explanation in read.explanations:
            found.setdefault(explanation.span, explanation)
    every = sorted(found.values(), key=lambda explanation: explanation.span)
    if line is None:
        return every
    here = [e for e in every if e.span.line <= line <= e.span.end_line]
    return here or _silent_calls(facts, line) or every


@dataclasses.dataclass(frozen=True)
class _Read:
    """A root with what is said of the collectives of the file that it comes to."""

    root: Root
    explanations: tuple[Explanation, ...] = ()


def _of_root(root: Root, facts: ModuleFacts, summaries: Summaries, result: Result, line: int | None) -> _Read:
    """Nothing where `line` is in another function."""
    region = span_of(root.function.facts if root.function else facts, root.node)
    if line is not None and root.function is not None and not region.line <= line <= region.end_line:
        return _Read(root)
    graph = None
    if (getattr(root.node, "lineno", 1), root.name) not in result.skipped:
        with contextlib.suppress(TooLarge, RecursionError):
            graph, _ = graph_of(root, facts, summaries)
    if graph is None:
        header = dataclasses.replace(region, end_line=region.line, end_column=region.column + 1)
        reason = "the function, or its file as a whole, is too large for the analysis, so it was not analysed"
        return _Read(root, (Explanation(header, root.name, False, reason),))
    mismatches = {mismatch.span: mismatch for mismatch in result.mismatches}
    nodes = (node for node in graph.nodes if isinstance(node, EventNode) and node.event.span.path == facts.file.path)
    return _Read(root, tuple(_explained(node, graph, mismatches.get(node.event.span)) for node in nodes))


def _inherited(own: Iterable[_Read], facts: ModuleFacts, summaries: Summaries) -> Iterator[Root]:
    """The inherited methods that call a method of the file with a collective."""
    called = collections.defaultdict[ast.AST | None, set[str]](set)
    for read in own:
        if read.explanations and read.root.function is not None:
            called[read.root.owner].add(getattr(read.root.node, "name", ""))
    classes = (of for of in classes_in(facts, summaries) if of.node in called)
    return (root for of in classes for root in hooked(of, summaries, called[of.node]))


def _not_analysed(path: pathlib.Path, project: Project) -> list[Explanation]:
    """Of a file that this Python cannot parse, and LibCST perhaps can: its rules look at it, the analysis does not."""
    problem = project.modules.problem(path)
    if problem is None:
        return []
    place = Span(project.paths.shown(path), problem.line, 1, problem.line, 2)
    version = ".".join(map(str, sys.version_info[:2]))
    reason = f"Python {version} cannot parse the file ({problem.reason}), no collective of it was analysed"
    return [Explanation(place, "a collective", False, reason)]


def _silent_calls(facts: ModuleFacts, line: int) -> list[Explanation]:
    """Calls on the line that are not known to communicate."""
    found = []
    for node in calls_below(facts.tree):
        if node.func.lineno <= line <= (node.func.end_lineno or line):
            reason = "not known to communicate: the callee is not resolved, or neither it nor what it calls does"
            found.append(Explanation(span_of(facts, node), text_of(node.func), False, reason))
    return found


def _explained(node: EventNode, graph: EventGraph, mismatch: Mismatch | None) -> Explanation:
    event = node.event
    what = event.call if event.call.endswith(event.op) else f"{event.call} ({event.op})"
    if mismatch is not None and mismatch.confidence is not Confidence.LOW:
        return Explanation(event.span, what, True, f"reported: {mismatch.kind.value}", mismatch.labels)
    if mismatch is not None:
        return Explanation(event.span, what, False, f"in doubt: {mismatch.doubt}", mismatch.labels)
    guards = _guards(node, graph)
    varying = [guard for guard in guards if guard.condition.varies is not None]
    if not guards:
        return Explanation(event.span, what, False, "every rank runs this: it is under no condition")
    if not varying:
        texts = " and ".join(f"`{guard.condition.text}`" for guard in guards[-2:])
        reason = f"the guard is uniform: nothing here makes {texts} differ between ranks"
        return Explanation(event.span, what, False, reason, _labels(guards[-2:]))
    projection = Projection(graph, event.stream)
    guard = varying[-1]
    assert guard.condition.varies is not None
    if not projection.separates(guard.condition):
        reason = f"only whole groups run this: `{guard.condition.text}` is the same for all members of the group"
    elif guard.condition.varies.call_depth:
        reason = f"`{guard.condition.text}` differs only if a caller passes a value that differs"
    else:
        reason = f"equal events: the ranks for which `{guard.condition.text}` differs call it elsewhere, or all end"
    return Explanation(event.span, what, False, reason, _labels([guard]))


def _guards(node: EventNode, graph: EventGraph) -> list[Choice]:
    """The choices of which only one arm leads to the event, outermost first."""
    reaches = [False] * len(graph.nodes)
    guards: list[Choice] = []
    for other in graph.nodes:
        if other is node:
            reaches[other.number] = True
        elif isinstance(other, EventNode):
            reaches[other.number] = reaches[other.after.number]
        elif isinstance(other, Loop):
            reaches[other.number] = reaches[other.body.number] or reaches[other.after.number]
        elif isinstance(other, Choice):
            yes, no = reaches[other.yes.number], reaches[other.no.number]
            reaches[other.number] = yes or no
            if yes != no:
                guards.append(other)
    return guards[::-1]


def _labels(guards: list[Choice]) -> tuple[Label, ...]:
    labels = [Label(guard.span, f"guarded by `{guard.condition.text}`") for guard in guards]
    return tuple(labels + [origin for guard in guards if (origin := _origin(guard.condition)) is not None])


def _origin(condition: Condition) -> Label | None:
    return condition.varies.origin if condition.varies is not None else None

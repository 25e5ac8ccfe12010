"""Which findings touch a change: those with a place in changed lines, or in a function that holds or uses them."""

from __future__ import annotations

import ast
import bisect
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator

from ddp_lint.changes import EVERY_LINE, Change, overlap
from ddp_lint.findings import Finding, Span, spans_in
from ddp_lint.source.file import SourceFile, Unreadable
from ddp_lint.source.imports import last_part
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.source.syntax import FunctionNode, calls_below, first_line, last_line, walk


class Touched:
    """The lines that a change touches: changed ones, and all of the functions that hold them.

    A changed statement of a module or class also touches the functions there that use the names that it binds.
    """

    def __init__(self, change: Change) -> None:
        self._change = change
        self._lines: dict[pathlib.Path, _Lines] = {}
        self._calls: dict[pathlib.Path, dict[int, set[str]]] = {}
        self._here = pathlib.Path.cwd()

    def by(self, finding: Finding) -> bool:
        """Whether the finding is in what has changed, or any of its places is: a label, a step of a rank, a call on its
        way. Also where its ranks diverge around a call of a changed function: what that does no more has no place."""
        places = spans_in(dataclasses.replace(finding, fix=None))
        return any(map(self._holds, places)) or (finding.cause is not None and self._calls_changed(finding))

    def _holds(self, span: Span) -> bool:
        return self._of(self._here / span.path).meet(span.line, span.end_line)

    def _of(self, path: pathlib.Path) -> _Lines:
        if path not in self._lines:
            ranges = self._change.lines.get(path)
            self._lines[path] = _Lines() if ranges is None else _touched(path, ranges)
        return self._lines[path]

    def _calls_changed(self, finding: Finding) -> bool:
        names = {name for path in self._change.lines for name in self._of(path).functions}
        path = self._here / finding.span.path
        if path not in self._calls:
            self._calls[path] = _calls_by_line(path) if names else {}
        places = (finding.span, finding.cause.place) if finding.cause is not None else ()
        lines = {n for span in places if span.path == finding.span.path for n in range(span.line, span.end_line + 1)}
        return any(names & called for line, called in self._calls[path].items() if line in lines)


@dataclasses.dataclass
class _Lines:
    """Touched lines of one file, as ranges in order, and the names of its touched functions."""

    ranges: tuple[range, ...] = ()
    functions: frozenset[str] = frozenset()

    def meet(self, first: int, last: int) -> bool:
        at = bisect.bisect_right(self.ranges, last, key=lambda lines: lines.start)
        return any(lines.stop > first for lines in self.ranges[:at])


def _touched(path: pathlib.Path, changed: tuple[range, ...]) -> _Lines:
    tree = _tree(path)
    if tree is None:
        return _Lines((EVERY_LINE,))
    functions = [node for node in walk(tree) if isinstance(node, FunctionNode)]
    if EVERY_LINE in changed:
        return _Lines(changed, frozenset(function.name for function in functions))
    bound = set(_bound(tree, changed))
    using = (function for function in functions if bound and bound & set(_used(function)))
    touched = [*_functions_around(functions, changed), *using]
    ranges = sorted((*changed, *map(_range, touched)), key=lambda lines: lines.start)
    return _Lines(tuple(ranges), frozenset(function.name for function in touched))


def _functions_around(functions: Iterable[FunctionNode], changed: Iterable[range]) -> Iterator[FunctionNode]:
    """The innermost functions that hold changed lines."""
    functions = sorted(functions, key=lambda function: -_range(function).start)
    for lines in changed:
        left = set(lines)
        for function in functions:  # of functions within each other, the innermost first
            inside = left & set(_range(function))
            if inside:
                left -= inside
                yield function


def _bound(tree: ast.Module, changed: tuple[range, ...]) -> Iterator[str]:
    """Names that changed statements of the module and of its classes bind."""
    bodies: list[list[ast.stmt]] = [tree.body]
    while bodies:
        for statement in bodies.pop():
            if isinstance(statement, ast.ClassDef):
                bodies.append(statement.body)
            elif not isinstance(statement, FunctionNode) and overlap(_range(statement), changed):
                for node in walk(statement):
                    if isinstance(node, ast.alias):
                        yield (node.asname or node.name).partition(".")[0]
                    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        yield node.id


def _used(function: FunctionNode) -> Iterator[str]:
    for node in walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _range(node: ast.stmt) -> range:
    """The lines of a statement, with its decorators."""
    return range(first_line(node), last_line(node) + 1)


def _calls_by_line(path: pathlib.Path) -> dict[int, set[str]]:
    """The last parts of the names that each line calls."""
    found: dict[int, set[str]] = {}
    tree = _tree(path)
    for call in calls_below(tree) if tree is not None else ():
        found.setdefault(call.lineno, set()).add(last_part(call.func))
    return found


def _tree(path: pathlib.Path) -> ast.Module | None:
    """The `ast` of a file; None for one that is gone, broken or no Python."""
    try:
        return parse(SourceFile.read(path, str(path)).text) if path.suffix in (".py", ".pyi") else None
    except (Unreadable, CannotParse):
        return None

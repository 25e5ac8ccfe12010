"""Where a finding is in its file: which lines show that it ran, and which conditions had to hold for that."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator

from ddp_lint.findings import Finding, Span
from ddp_lint.source.syntax import Block, FunctionNode, blocks_at, first_line, last_line, nested
from ddp_lint.verify.options import Watch

_WORD = re.compile(r"[A-Za-z_]\w*")
#: What is observed for one oracle alone.
_WANTED_BY = {"graph_breaks": "graph_break", "streams": "streams", "files": "files"}


@dataclasses.dataclass(frozen=True)
class Guard:
    """A condition between a function's entry and the finding: the finding's line runs when the test is `wanted`.

    `wanted` is None for a loop, an exception handler or a case, whose header is no test; `first` is the first line of
    the arm that holds the finding.
    """

    line: int
    text: str
    wanted: bool | None
    first: int


@dataclasses.dataclass(frozen=True)
class Loop:
    """The lines of a loop's body, and the two that show whether a rank has left it: the header runs once more than what
    each round runs once."""

    header: int
    each: int
    body: range


@dataclasses.dataclass(frozen=True)
class Situation:
    """`lines`: the statement that the primary span begins in (of a compound statement its header); `ran`: the lines
    of which one must run for the finding to be reached; `named`: (path, line) of everything that the finding points
    at; `tests`: lines of tests among those; `words`: identifiers and strings in the statement."""

    finding: Finding
    path: str
    lines: frozenset[int]
    ran: frozenset[int]
    guards: tuple[Guard, ...]
    named: frozenset[tuple[str, int]]
    tests: frozenset[int]
    words: frozenset[str]
    function: str = ""
    entry: int = 0
    #: The loop around the finding that is its cause.
    loop: Loop | None = None


def situation(finding: Finding, lines: list[str]) -> Situation:
    """The situation of a finding in the file of these lines; bare lines when the file is no Python that parses here."""
    path = os.path.realpath(finding.span.path)
    span = range(finding.span.line, finding.span.end_line + 1)
    named = frozenset(_named(finding))
    blank = Situation(finding, path, frozenset(span), frozenset(span), (), named, frozenset(), frozenset())
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return blank
    chain = blocks_at(tree, finding.span.line)
    if not chain:
        return blank
    here = _header(chain[-1])
    function = next((block for block in reversed(chain) if isinstance(block, FunctionNode)), None)
    inside = chain[chain.index(function) :] if function else chain
    text = " ".join(lines[line - 1] for line in here if line <= len(lines))
    return Situation(
        finding,
        path,
        lines=frozenset(here),
        ran=frozenset(_header(chain[-1].body[0]) if isinstance(chain[-1], FunctionNode) else here),
        guards=tuple(_guards(inside)),
        named=named,
        tests=frozenset(_tests(tree)) & {line for at, line in named if at == path},
        words=frozenset(_WORD.findall(text)),
        function=function.name if function else "",
        entry=function.body[0].lineno if function else 0,
        loop=_loop(finding, inside),
    )


def watch(situations: Iterable[Situation], oracles: Collection[str]) -> Watch:
    """What the observers must look at for these findings and their oracles."""
    lines: dict[str, set[int]] = {}
    guards: dict[str, set[int]] = {}
    for at in situations:
        firsts = {guard.first for guard in at.guards} | ({at.entry} if at.entry else set())
        firsts |= {at.loop.header, at.loop.each} if at.loop else set()
        lines.setdefault(at.path, set()).update(at.lines | at.ran | firsts)
        guards.setdefault(at.path, set()).update({guard.line for guard in at.guards} | at.tests)
        for path, line in at.named:
            lines.setdefault(path, set()).add(line)
    wanted = {name: oracle in oracles for name, oracle in _WANTED_BY.items()}
    return Watch(_frozen(lines), _frozen(guards), **wanted)


def _frozen(table: dict[str, set[int]]) -> dict[str, frozenset[int]]:
    return {path: frozenset(lines) for path, lines in table.items()}


def _named(finding: Finding) -> Iterator[tuple[str, int]]:
    steps = [step.span for trace in finding.witness for step in trace.steps]
    spans: list[Span] = [finding.span, *(label.span for label in finding.labels), *steps]
    for span in spans:
        path = os.path.realpath(span.path)
        yield from ((path, line) for line in range(span.line, min(span.end_line, span.line + 40) + 1))


def _loop(finding: Finding, chain: list[Block]) -> Loop | None:
    cause = finding.cause.place.line if finding.cause else 0
    for block in chain:
        if isinstance(block, (ast.For, ast.AsyncFor, ast.While)) and block.lineno == cause:
            first = _once_in_a_round(block.body)
            while isinstance(first, (ast.With, ast.AsyncWith)):  # its line runs at the end of the block, too
                first = first.body[0]
            return Loop(cause, first.lineno, range(block.body[0].lineno, last_line(block.body[-1]) + 1))
    return None


def _once_in_a_round(body: list[ast.stmt]) -> ast.stmt:
    """The first statement of a loop's body whose line runs once in each round: that of a comprehension runs for each of
    its items."""
    for node in body:
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
            break
        if not any(isinstance(inner, ast.comprehension | ast.Lambda) for inner in ast.walk(node)):
            return node
    return body[0]


def _header(block: Block) -> range:
    """The lines of a simple statement, or those of a compound one down to its body."""
    start, inner = first_line(block), next(iter(nested(block)), None)
    end = max(start, first_line(inner) - 1) if inner else last_line(block)
    return range(start, end + 1)


def _guards(chain: list[Block]) -> Iterator[Guard]:
    for block, inner in itertools.pairwise(chain):
        if isinstance(block, (ast.If, ast.While)):
            taken = inner in block.body
            arm = block.body if taken else block.orelse
            wanted = None if isinstance(block.test, ast.Constant) else taken  # `while True` has one outcome
            yield Guard(block.lineno, ast.unparse(block.test), wanted, arm[0].lineno)
        elif isinstance(block, (ast.For, ast.AsyncFor)):
            text = f"for {ast.unparse(block.target)} in {ast.unparse(block.iter)}"
            yield Guard(block.lineno, text, None, block.body[0].lineno)
        elif isinstance(block, ast.ExceptHandler):
            text = f"except {ast.unparse(block.type)}" if block.type else "except"
            yield Guard(block.lineno, text, None, block.body[0].lineno)
        elif isinstance(block, ast.match_case):
            yield Guard(block.pattern.lineno, f"case {ast.unparse(block.pattern)}", None, block.body[0].lineno)


def _tests(tree: ast.Module) -> Iterator[int]:
    tests = (node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.While)))
    return (node.lineno for node in tests if not isinstance(node.test, ast.Constant))

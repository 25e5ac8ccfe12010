"""LibCST trees, and clear words for what cannot be parsed. LibCST overflows the stack, and ends the process, on what
is nested too deeply: that is told from the `ast` before."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.project.facts import CannotParse, ModuleFacts
from ddp_lint.source import SourceFile
from ddp_lint.source.syntax import below

#: CPython allows 200 brackets inside each other. A chain of 1,000 operators takes LibCST 0.3 s, with the square of it.
_MAX_BRACKETS = 200
_MAX_DEPTH = 1000
_OPENING = frozenset("([{")
_TOO_DEEP = "it is nested too deeply to be read"


@contextlib.contextmanager
def _unvalidated() -> Iterator[None]:
    """LibCST looks at each node for what no source can hold (a keyword without a space behind it). That is for those
    who make nodes by hand; of a text that was parsed it takes a sixth of the time to tell what is known."""
    kept = cst.CSTNode.__post_init__
    cst.CSTNode.__post_init__ = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        cst.CSTNode.__post_init__ = kept  # type: ignore[method-assign]


def tree_of(text: str) -> cst.Module:
    """The LibCST tree of a text. Raises CannotParse."""
    try:
        with _unvalidated():
            return cst.parse_module(text)
    except cst.ParserSyntaxError as e:
        raise CannotParse(e.message, e.raw_line, e.raw_column, parser="LibCST") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # a panic of the native parser is no Exception
        raise CannotParse(f"{type(e).__name__}: {e}", parser="LibCST") from None


def tree_of_new_syntax(file: SourceFile, problem: CannotParse) -> cst.Module:
    """The tree of a file that the running Python cannot parse, for `problem`: LibCST may know its syntax.

    Raises `problem` where it does not either: CPython's messages are the better ones.
    """
    if problem.too_deep or _brackets(file.text) > _MAX_BRACKETS:
        raise problem
    try:
        return tree_of(file.text)
    except CannotParse:
        raise problem from None


def check_depth(facts: ModuleFacts) -> None:
    """Raises CannotParse for a file with a statement that LibCST must not be given."""
    lines = facts.file.lines
    long_lines = [number for number, line in enumerate(lines, 1) if len(line) > _MAX_DEPTH]
    for statement in facts.tree.body:
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        # A level takes a character at least, and in well laid out code a new line every few levels.
        suspect = last - first > _MAX_DEPTH // 4 or any(first <= number <= last for number in long_lines)
        if suspect and _depth(statement) > _MAX_DEPTH:
            raise CannotParse(_TOO_DEEP, first, too_deep=True, parser="LibCST")


def _depth(statement: ast.stmt) -> int:
    """How deep LibCST's tree of a statement is, about: `ast` flattens ``a and b and c``, LibCST nests it."""
    deepest = 0
    stack: list[tuple[ast.AST, int]] = [(statement, 0)]
    while stack:
        node, depth = stack.pop()
        depth += len(node.values) if isinstance(node, ast.BoolOp) else 1
        deepest = max(deepest, depth)
        stack.extend((child, depth) for child in below(node))
    return deepest


def _brackets(text: str) -> int:
    """The depth of brackets in a text, those in strings and comments included."""
    depth = deepest = 0
    for bracket in re.findall(r"[(\[{)\]}]", text):
        depth = depth + 1 if bracket in _OPENING else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest

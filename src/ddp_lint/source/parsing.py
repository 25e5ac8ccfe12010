"""The `ast` of a text, or why Python cannot parse it. A text that would take too much memory is not tried."""

from __future__ import annotations

import ast
import warnings

TOO_LARGE = "it holds too much data to be read"
#: Texts of fewer characters have fewer marks than any limit.
_SMALL = 300_000
#: A tree takes about 1 kB of memory for each mark: 1 GB at most.
_MOST_MARKS = 1_000_000
_NO_MARKS = bytes(code for code in range(256) if chr(code).isalnum() or chr(code) in " \t\n_\"'\\#" or code > 127)
#: Messages of Python about a text that a newer Python does not take either.
_BEYOND = ("too many nested parentheses", "too many levels of indentation", "integer string conversion")


class CannotParse(Exception):
    """`ast` does not take the text: a syntax error, syntax newer than the running Python, or too deep nesting; or what
    `ast` takes LibCST does not, or must not be given."""

    def __init__(
        self, reason: str, line: int = 1, column: int = 0, *, too_deep: bool = False, parser: str = "Python"
    ) -> None:
        super().__init__(reason)
        self.reason, self.line, self.column, self.too_deep, self.parser = reason, line, column, too_deep, parser


def marks(text: str) -> int:
    """How many brackets, commas and operators a text has, those in strings included: the size of a tree goes with
    that."""
    return len(text.encode("utf-8", "surrogatepass").translate(None, _NO_MARKS)) if len(text) > _SMALL else 0


def is_too_large(text: str) -> bool:
    """Whether Python's parser must not be given a text: it would take more memory than there may be."""
    return marks(text) > _MOST_MARKS


def parse(text: str) -> ast.Module:
    """The `ast` of a text, without its warnings. Raises CannotParse."""
    if is_too_large(text):
        raise CannotParse(TOO_LARGE, too_deep=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as e:
        reason = e.msg or "invalid syntax"
        beyond = any(message in reason for message in _BEYOND)
        raise CannotParse(reason, e.lineno or 1, max((e.offset or 1) - 1, 0), too_deep=beyond) from None
    except (RecursionError, MemoryError):
        raise CannotParse("it is nested too deeply to be read", too_deep=True) from None
    except (ValueError, OverflowError) as e:
        raise CannotParse(str(e)) from None


def parse_expression(text: str) -> ast.expr | None:
    """The `ast` of an expression, without its warnings; None for a text that is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

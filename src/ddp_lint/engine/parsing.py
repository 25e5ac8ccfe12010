"""LibCST trees, and clear messages for what cannot be parsed. LibCST overflows the stack, and ends the process, on what
is nested too deeply: the `ast` shows it before."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import itertools
import re
import tokenize
from collections.abc import Iterator

import libcst as cst

from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.parsing import TOO_LARGE, CannotParse, marks, parse
from ddp_lint.source.syntax import below, first_line, nested, walk

#: CPython allows 200 brackets inside each other. A chain of 1,000 operators takes LibCST 0.3 s, with the square of it,
#: and our own functions a few frames a level.
_MAX_BRACKETS = 200
_MAX_DEPTH = 500
_OPENING = frozenset("([{")
#: Brackets, commas, operators: `ast` takes about 1 kB of memory for each, LibCST 4 kB.
_MOST_MARKS = 300_000
_TOO_DEEP = "it is nested too deeply to be read"
#: LibCST reads what is in a bracket of a pattern twice, in a mapping four times: 3 us for each time it visits a
#: part, so 2 s at most.
_MOST_PATTERN_STEPS = 2**19
#: At the start of a line, which is looked for behind the word: at each line it would take long. A longer indentation
#: than this is taken for the start of a line.
_CASE = re.compile(r"case\b")
_INDENT = 400
_IN_A_CASE = re.compile(
    r"""'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^'\\\r\n])*'|"(?:\\.|[^"\\\r\n])*"|\#[^\r\n]*
    |[][(){},:|\r\n]|\bif\b""",
    re.VERBOSE | re.DOTALL,
)
#: Where LibCST's messages say it in what it was given, which may be a part of the file.
_WHERE = re.compile(r"^parser error: (error at \d+:\d+: )?")
#: Strings in a row, without an operator: LibCST nests them, and takes about 3,000.
_MOST_IN_A_ROW = 2_000
_TIMES = {"(": 1, "[": 1, "{": 2}


#: Whitespace and punctuation, three in five of the nodes of a tree.
_TRIVIA: dict[str, type[cst.CSTNode]] = {
    kind.__name__: kind
    for kind in (
        cst.AssignEqual, cst.Colon, cst.Comma, cst.Comment, cst.Dot, cst.EmptyLine, cst.LeftCurlyBrace, cst.LeftParen,
        cst.LeftSquareBracket, cst.Newline, cst.RightCurlyBrace, cst.RightParen, cst.RightSquareBracket,
        cst.SimpleWhitespace, cst.TrailingWhitespace,
    )
}  # fmt: skip
#: No rule visits them, so that those that read the same are one object: what the native parser calls instead.
_SHARED = {name: functools.lru_cache(maxsize=1024)(kind) for name, kind in _TRIVIA.items()}


@contextlib.contextmanager
def _quick() -> Iterator[None]:
    """LibCST looks at each node for what no source can hold (a keyword without a space behind it). That is for those
    who make nodes by hand; of a text that was parsed it takes a sixth of the time to set what is known."""
    validate = cst.CSTNode.__post_init__
    cst.CSTNode.__post_init__ = lambda self: None  # type: ignore[method-assign]
    vars(cst).update(_SHARED)
    try:
        yield
    finally:
        cst.CSTNode.__post_init__ = validate  # type: ignore[method-assign]
        vars(cst).update(_TRIVIA)


def tree_of(text: str) -> cst.Module:
    """The LibCST tree of a text. Raises CannotParse."""
    if marks(text) > _MOST_MARKS:
        raise CannotParse(TOO_LARGE, parser="LibCST")
    _check_patterns(text)
    try:
        with _quick():
            return cst.parse_module(text)
    except cst.ParserSyntaxError as e:
        raise CannotParse(_WHERE.sub("", e.message), e.raw_line, e.raw_column, parser="LibCST") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:  # a panic of the native parser is no Exception
        raise CannotParse(f"{type(e).__name__}: {e}", parser="LibCST") from None


def of_file(problem: CannotParse, facts: ModuleFacts, line_map: list[int] | None) -> CannotParse:
    """What LibCST says of a text that is made of these lines of a file, where the file has it and as its author knows
    it: Python takes the file."""
    for node in walk(facts.tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and (count := _in_a_row(node, facts)) > _MOST_IN_A_ROW:
            reason = f"{count} strings in a row are too many for it: join some of them"
            return CannotParse(reason, node.lineno, node.col_offset, parser=problem.parser)
    line = line_map[min(max(problem.line, 1), len(line_map)) - 1] if line_map else problem.line
    return CannotParse(problem.reason, line, problem.column, too_deep=problem.too_deep, parser=problem.parser)


def _in_a_row(node: ast.Constant | ast.JoinedStr, facts: ModuleFacts) -> int:
    """How many strings a text is written as."""
    lines = facts.file.lines[node.lineno - 1 : node.end_lineno]
    lines[0] = lines[0].encode(errors="replace")[node.col_offset :].decode(errors="replace")
    if sum(map(len, lines)) < 2 * _MOST_IN_A_ROW:
        return 1
    count = inside = 0
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        # In a bracket, so that it may go on in the next line.
        for token in itertools.islice(tokenize.generate_tokens(io.StringIO("(" + "\n".join(lines)).readline), 1, None):
            kind = tokenize.tok_name[token.type]
            if not inside and "STRING" not in kind and kind not in ("NL", "COMMENT"):
                break
            count += not inside and "STRING" in kind
            inside += kind.endswith("STRING_START") - kind.endswith("STRING_END")
    return count


def _check_patterns(text: str) -> None:
    """Raises CannotParse for a text with patterns (of `match`) that LibCST would read for ever. A line of a string that
    looks like a pattern counts as one."""
    steps, left = 0, 4 * len(text) + 2**20
    for case in _CASE.finditer(text):
        before = text[max(0, case.start() - _INDENT) : case.start()].rstrip(" \t\f")
        if before and before[-1] not in "\r\n":
            continue
        end, found = _pattern_steps(text, case.end())
        steps, left = steps + found, left - (end - case.end())
        if steps > _MOST_PATTERN_STEPS or left < 0:
            line = text.count("\n", 0, case.end()) + 1
            raise CannotParse(_TOO_DEEP, line, too_deep=True, parser="LibCST")


def _pattern_steps(text: str, start: int) -> tuple[int, int]:
    """Where the pattern that starts there ends, and how often LibCST visits a part of it, about."""
    inside: list[int] = []
    times = steps = 1
    for token in _IN_A_CASE.finditer(text, start):
        mark = token[0]
        if mark in _TIMES:
            inside.append(times)
            times <<= _TIMES[mark]
        elif mark in ")]}":
            times = inside.pop() if inside else 1
        elif not inside and mark in ("\r", "\n", ":", "if"):
            return token.start(), steps
        steps += times
        if steps > _MOST_PATTERN_STEPS:
            return token.start(), steps
    return len(text), steps


def parses(text: str) -> bool:
    """Whether a text is Python, of this version or a newer one."""
    try:
        parse(text)
    except CannotParse as problem:
        with contextlib.suppress(CannotParse):
            tree_of_new_syntax(text, problem)
            return True
        return False
    return True


def tree_of_new_syntax(text: str, problem: CannotParse) -> cst.Module:
    """The tree of a text that the running Python cannot parse, for `problem`: LibCST may know its syntax.

    Raises `problem` where it does not either: CPython's messages are the better ones.
    """
    if problem.too_deep or _brackets(text) > _MAX_BRACKETS:
        raise problem
    try:
        return tree_of(text)
    except CannotParse:
        raise problem from None


def check_depth(facts: ModuleFacts) -> None:
    """Raises CannotParse for a file with a statement that LibCST must not be given."""
    ends = list(itertools.accumulate((len(line) + 1 for line in facts.file.lines), initial=0))
    stack: list[tuple[ast.AST, int]] = [(statement, 1) for statement in facts.tree.body]
    while stack:
        node, depth = stack.pop()
        inside = nested(node)
        first, last = _header(node, inside)
        # A level takes a character at least.
        suspect = not first or ends[min(last, len(ends) - 1)] - ends[first - 1] > _MAX_DEPTH
        if depth > _MAX_DEPTH or (suspect and depth + _depth(node, inside) > _MAX_DEPTH):
            raise CannotParse(_TOO_DEEP, first or 1, too_deep=True, parser="LibCST")
        stack += ((statement, depth + 1) for statement in inside)


def _header(node: ast.AST, inside: list[ast.AST]) -> tuple[int, int]:
    """The first and the last line of a statement without those in it; 0 and 0 where nothing shows."""
    first = first_line(node)
    last: int = getattr(inside[0] if inside else node, "lineno" if inside else "end_lineno", 0)
    return (first, last) if first and last >= first else (0, 0)


def _depth(statement: ast.AST, inside: list[ast.AST]) -> int:
    """How deep LibCST's tree of a statement is, about, without those in it: `ast` flattens ``a and b and c``, LibCST
    nests it."""
    deepest = 0
    without = set(inside)
    stack: list[tuple[ast.AST, int]] = [(child, 0) for child in below(statement) if child not in without]
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

"""Comments that suppress a finding: `# noqa`, `# ddp-lint: ignore[...]`, `# ddp-lint: ignore-file[...]`.

Comments are found with Python's tokenizer, so that the same words inside a string are just a string. A comment covers
its line; `# ddp-lint: ignore` on a line of its own also covers the statement below it. A finding is suppressed when any
line of its primary span is covered.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator

from ddp_lint.findings import UNCHECKED, Applicability, Confidence, Edit, Finding, Fix, Span
from ddp_lint.rules.registry import declared, rules_for_text
from ddp_lint.source.file import SourceFile
from ddp_lint.source.occurring import occurs

# flake8's own pattern, so that both doors read a comment alike: codes follow the colon, anything else makes it bare.
_NOQA = re.compile(r"#\s*(?P<file>flake8[:=]\s*)?noqa(?::\s?(?P<codes>(?:[A-Z]+[0-9]+(?:[,\s]+)?)+))?", re.IGNORECASE)
_OURS = re.compile(r"#\s*ddp-lint:\s*(?P<verb>[\w-]*)\s*(?:\[(?P<codes>[^\]#]*)\])?", re.IGNORECASE)
_MAYBE = re.compile(r"noqa|ddp-lint\s*:", re.IGNORECASE)
#: Words whose presence makes an unused suppression possible.
_MAYBE_UNUSED = re.compile(r"noqa.*DDP|ddp-lint\s*:", re.IGNORECASE)
_VERBS = ("ignore", "ignore-file")
_TOOL = UNCHECKED | {"DDP002"}


@dataclasses.dataclass
class Suppression:
    """One comment. `codes` is empty for all codes; `first`..`last` are the lines it covers, the whole file for 0..inf.

    `wrong` says why it suppresses nothing, where it is not written as it must be. `used` collects those of `codes` that
    suppressed a finding ('' for a comment without codes).
    """

    noqa: bool
    at: Span
    codes: tuple[str, ...]
    first: float
    last: float
    wrong: str = ""
    used: set[str] = dataclasses.field(default_factory=set)

    def covers(self, finding: Finding) -> bool:
        """Whether the comment suppresses the finding; remembers by which of its codes."""
        if self.wrong or self.first > finding.span.end_line or self.last < finding.span.line:
            return False
        if not self.codes:
            # A bare comment means the hazard on its line, never the remark that a comment next to it is unused.
            hit = {""} if finding.code != "DDP002" else set()
        else:
            hit = {code for code in self.codes if _matches(code, finding)}
        self.used |= hit
        return bool(hit)


@dataclasses.dataclass(frozen=True)
class _Comment:
    """A comment: its line from 1, its column from 0, and the last line that it covers."""

    line: int
    column: int
    text: str
    last: int


def apply(file: SourceFile, findings: list[Finding], active: frozenset[str], *, noqa: bool = True) -> list[Finding]:
    """The findings that no comment suppresses, and a DDP002 for every comment that suppresses nothing.

    `active` are the codes that were looked for in this file: a suppression of another code is not called unused.
    With `noqa` False, `# noqa` hides nothing (flake8 does that itself) but an unused one is still reported.
    """
    if not occurs(_MAYBE if findings else _MAYBE_UNUSED, file.text):
        return findings
    comments = _Covering(suppressions(file))
    left = [f for f in findings if not _suppressed(f, comments, noqa)]
    if "DDP002" in active:
        unused = [f for comment in comments.all for f in _unused(comment, file, active)]
        left += [f for f in unused if not _suppressed(f, comments, noqa)]
    return left


class _Covering:
    """The comments of a file, found by the lines that they cover: there may be one on each of many lines."""

    #: A comment that covers more lines than this is compared with each finding.
    _FEW = 8

    def __init__(self, comments: Iterable[Suppression]) -> None:
        self.all = list(comments)
        self._far: list[Suppression] = []
        self._by_line: dict[int, list[Suppression]] = {}
        for comment in self.all:
            if comment.last - comment.first > self._FEW:
                self._far.append(comment)
            else:
                for line in range(int(comment.first), int(comment.last) + 1):
                    self._by_line.setdefault(line, []).append(comment)

    def of(self, finding: Finding) -> list[Suppression]:
        """The comments that cover the finding, each once. It is noted in them."""
        near = [c for n in range(finding.span.line, finding.span.end_line + 1) for c in self._by_line.get(n, ())]
        asked = {id(comment): comment for comment in (*self._far, *near)}
        return [comment for comment in asked.values() if comment.covers(finding)]


def suppressions(file: SourceFile) -> Iterator[Suppression]:
    """All suppressing comments of a file."""
    for comment in _comments(file):
        line, column = comment.line, comment.column
        for part in _parts(comment.text):
            at = Span(file.path, line, column + part.start + 1, line, column + part.end + 1)
            first = 0 if part.whole_file else line
            last = float("inf") if part.whole_file else line if part.noqa else comment.last
            yield Suppression(part.noqa, at, part.codes, first, last, part.wrong)


@dataclasses.dataclass(frozen=True)
class _Part:
    """A suppression within a comment: its first column and the one behind its last, from 0."""

    start: int
    end: int
    noqa: bool
    whole_file: bool
    codes: tuple[str, ...]
    wrong: str = ""


def _parts(comment: str) -> Iterator[_Part]:
    """Each suppression in one comment token: it begins with a `#` of its own, and ends where the next `#` begins."""
    starts = [m.start() for m in re.finditer("#", comment)]
    for start, end in zip(starts, [*starts[1:], len(comment)], strict=True):
        part = comment[start:end].rstrip()
        if ours := _OURS.match(part):
            verb = ours["verb"].lower()
            codes = tuple(c.strip() for c in (ours["codes"] or "").split(",") if c.strip())
            wrong = _wrong_verb(verb) or ("" if codes else _wrong_codes(part[ours.end("verb") :], verb))
            yield _Part(start, start + len(part), False, verb == "ignore-file", codes, wrong)
        elif noqa := _NOQA.match(part):
            codes = tuple(c for c in re.split(r"[,\s]+", noqa["codes"] or "") if c)
            yield _Part(start, start + len(part), True, bool(noqa["file"]), codes)


def _wrong_verb(verb: str) -> str:
    if verb in _VERBS:
        return ""
    near = difflib.get_close_matches(verb, _VERBS, 1, 0.4)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"'ddp-lint: {verb}' suppresses nothing: 'ignore' and 'ignore-file' do{hint}"


def _wrong_codes(rest: str, verb: str) -> str:
    """What is wrong behind a verb that no code in brackets follows: who names a code does not mean them all."""
    word = re.match(r"[\s\[(:=]*([\w-]*)", rest)
    name = word[1] if word else ""
    if re.fullmatch(r"DDP\d+", name, re.IGNORECASE) or any(rule.slug == name.lower() for rule in declared().values()):
        return f"this comment suppresses nothing: codes belong in brackets, {verb}[{name}]"
    if rest.lstrip().startswith("["):
        return f"this comment suppresses nothing: it names no rule; {verb}[DDP101] does, {verb} alone means all"
    return ""


def _comments(file: SourceFile) -> Iterator[_Comment]:
    """Comments that may suppress, with the last line that each covers; it covers from its own line on.

    A comment behind code covers that line. One on a line of its own covers the statement line below it (a call over
    five lines is one), decorators included; within brackets, the line below it.
    """
    name = file.path.rpartition("/")[2]
    return _line_comments(file) if rules_for_text(name, file.first_line) else _python_comments(file)


def _line_comments(file: SourceFile) -> Iterator[_Comment]:
    """The comments of a shell script, a Dockerfile or a YAML file: from a `#` that begins a word."""
    for number, line in enumerate(file.lines, 1):
        match = re.search(r"(?:^|(?<=\s))#.*", line) if _MAYBE.search(line) else None
        if match:
            own_line = not line[: match.start()].strip()
            yield _Comment(number, match.start(), match[0], number + own_line)


def _python_comments(file: SourceFile) -> Iterator[_Comment]:
    """Comments as Python's tokenizer finds them. Where it gives up, the rest of the file has none: what it cannot read,
    no rule has read either.
    """
    above: list[_Comment] = []  # own-line comments that wait for their statement
    inside: list[_Comment] = []  # own-line comments within brackets
    started = decorated = False
    try:
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
            if token.type in _LAYOUT:
                continue
            if token.type == tokenize.COMMENT:
                if not _MAYBE.search(token.string):
                    continue
                line, column = token.start
                comment = _Comment(line, column, token.string, line)
                if file.lines[line - 1][:column].strip():
                    yield comment
                else:
                    (inside if started else above).append(comment)
            elif token.type == tokenize.NEWLINE:
                if not decorated:
                    yield from (dataclasses.replace(comment, last=token.end[0]) for comment in above)
                    above.clear()
                started = decorated = False
            else:
                decorated = decorated or (not started and token.string == "@")
                started = True
                yield from (dataclasses.replace(comment, last=token.start[0]) for comment in inside)
                inside.clear()
    except (tokenize.TokenError, SyntaxError):
        pass
    yield from (*above, *inside)


_LAYOUT = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def _suppressed(finding: Finding, comments: _Covering, noqa: bool) -> bool:
    return any(noqa or not comment.noqa for comment in comments.of(finding))


def _matches(code: str, finding: Finding) -> bool:
    return finding.code.startswith(code.upper()) or finding.slug == code.lower()


# ---- unused ones


def _unused(comment: Suppression, file: SourceFile, active: frozenset[str]) -> Iterator[Finding]:
    """The DDP002 findings about one comment: at most one."""
    if comment.wrong:
        yield _finding(comment, comment.wrong, None)
        return
    if not comment.codes:
        if not comment.noqa and not comment.used and _all_ran("DDP", active):
            message = "this comment suppresses nothing: there is no finding here"
            yield _finding(comment, message, _without(comment, file))
        return
    ours = [code for code in comment.codes if not comment.noqa or code.upper().startswith("DDP")]
    unknown = [code for code in ours if not _codes_of(code)]
    idle = [code for code in ours if code not in comment.used and _all_ran(code, active)]
    if unknown:
        yield _finding(comment, f"no rule is called {_list(unknown)}", _without(comment, file, unknown))
    if idle:
        message = f"{_list(idle)} is suppressed here, but there is no such finding"
        yield _finding(comment, message, _without(comment, file, idle))


@functools.lru_cache(maxsize=1024)
def _codes_of(code: str) -> list[str]:
    """The codes that a code, prefix or slug in a comment includes."""
    known = declared()
    return [c for c, rule in known.items() if c.startswith(code.upper()) or rule.slug == code.lower()]


def _all_ran(code: str, active: frozenset[str]) -> bool:
    """Whether this run has looked for all that the suppression is for, as far as it is on by default."""
    known = declared()
    codes = [c for c in _codes_of(code) if c not in _TOOL]
    wanted = codes if len(codes) == 1 else [c for c in codes if known[c].default]
    return bool(wanted) and active.issuperset(wanted)


def _list(codes: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(codes[:-1]), codes[-1]]))


def _finding(comment: Suppression, message: str, fix: Fix | None) -> Finding:
    return Finding("DDP002", "unused-suppression", message, comment.at, Confidence.HIGH, fix=fix)


def _without(comment: Suppression, file: SourceFile, codes: Iterable[str] = ()) -> Fix:
    """Remove codes from a comment; the comment, with its reason, when none is left; its line, when that is empty."""
    at, line = comment.at, file.lines[comment.at.line - 1]
    gone = frozenset(codes)
    keep = [code for code in comment.codes if code not in gone]
    if keep:
        text = line[at.column - 1 : at.end_column - 1]
        begin = text.index(comment.codes[0])
        end = text.index(comment.codes[-1], begin) + len(comment.codes[-1])
        span = dataclasses.replace(at, column=at.column + begin, end_column=at.column + end)
        return Fix("remove the codes that are not needed", Applicability.SAFE, (Edit(span, ", ".join(keep)),))
    before, after = line[: at.column - 1].rstrip(), line[at.end_column - 1 :].lstrip()
    if after:
        span = dataclasses.replace(at, end_column=len(line) - len(after) + 1)
    elif before:
        span = dataclasses.replace(at, column=len(before) + 1, end_column=len(line) + 1)
    else:
        span = Span(at.path, at.line, 1, at.line + 1, 1)
    return Fix("remove the comment", Applicability.SAFE, (Edit(span, ""),))

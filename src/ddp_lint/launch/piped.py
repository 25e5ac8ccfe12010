"""Commands of shell scripts that start ranks and hand what they print to `tee`, whose exit status takes their place."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final, Literal

from ddp_lint.findings import Span
from ddp_lint.launch.started import start_of
from ddp_lint.source import SourceFile

#: What looks at the status: `set -e`, a test, what comes behind `&&` or `||`, or the next line with `$?`.
Reader = Literal["errexit", "test", "next", "status"]

#: Files that are shell scripts, by their names.
SCRIPTS: Final = ("*.sh", "*.bash", "*.zsh", "*.slurm", "*.sbatch")
#: One command line, with the lines that it goes on in.
_LINE = re.compile(r"(?:[^\\\n]|\\[\s\S])+")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_BETWEEN = re.compile(r"\|\||&&|\|&|\||;|(?<![>&])&(?![>&\d])")
#: A text that a command reads from the script itself: what is in it, another shell runs, or none.
_HERE = re.compile(r"(?<!<)<<-?\s*[\"']?(\w+)[\"']?(?!<)")
#: The status of each command of a pipe is asked for, or that of the whole is the first one that is not 0.
_OF_EACH = re.compile(r"pipefail|pipestatus", re.IGNORECASE)
_SETS = re.compile(r"(?<![\w$-])set\s+(?P<sign>[-+])(?:o\s+errexit\b|(?!o\s)[a-z]*e)")
_SHEBANG = re.compile(r"#!.*\bsh\s+-\w*e|#!.*sh\s+-\w*e")
_TESTS = re.compile(r"\s*(?:if|elif|while|until|!)\s")
_TEE = re.compile(r"\s*(?:\S*/)?tee\s")
_SAYS = re.compile(r"\s*(?:echo|printf|cat|:)\b|\s*(?:export\s+|local\s+)?\w+=[\"']")
_GIVES_UP = re.compile(r"\s*(?:true|:)(?=\s|$)")
#: Files that scripts read which leave the options of the shell as they are.
_PLAIN = re.compile(r"(?:activate|\.?(?:bash|zsh)?rc|\.?(?:bash_|z)?profile|conda\.sh|setvars\.sh)$")
_SOURCES = re.compile(r"(?m)^\s*(?:\.|source)\s+[\"']?([^\s\"';&]+)")


@dataclasses.dataclass(frozen=True)
class Piped:
    """A command whose status `tee` replaces, and what looks at the status."""

    span: Span
    reader: Reader
    #: No file that the script reads may turn `pipefail` on.
    sure: bool


@dataclasses.dataclass(frozen=True)
class _Part:
    """A command of a line, and what is between it and the next one."""

    start: int
    text: str
    between: str


def piped(file: SourceFile) -> Iterator[Piped]:
    """The commands of a script that start ranks, whose status nothing sees although something looks at it."""
    text = file.text
    if _OF_EACH.search(text) is not None or _TEE.search(text) is None:
        return
    sure = all(_PLAIN.search(path) is not None for path in _SOURCES.findall(text))
    stops = _SHEBANG.match(text) is not None
    lines = list(_code(text))
    for number, (start, line) in enumerate(lines):
        for found in _SETS.finditer(line):
            stops = found["sign"] == "-"
        below = lines[number + 1][1] if number + 1 < len(lines) else ""
        parts = list(_parts(start, line))
        for place, part in enumerate(parts):
            reader = _reader(parts, place, below, stops=stops) if _starts_ranks(part, line, start) else None
            if reader is not None:
                yield Piped(_span(file, part), reader, sure)


def _code(text: str) -> Iterator[tuple[int, str]]:
    """The command lines of a script with their places, without comments and the texts that it gives to commands."""
    until = ""
    for found in _LINE.finditer(text):
        if until:
            until = "" if found[0].strip() == until else until
            continue
        line = _COMMENT.sub("", found[0])
        here = _HERE.search(line)
        until = here[1] if here is not None else ""
        if line.strip():
            yield found.start(), line


def _parts(start: int, line: str) -> Iterator[_Part]:
    at = 0
    for found in _BETWEEN.finditer(line):
        yield _Part(start + at, line[at : found.start()], found[0])
        at = found.end()
    yield _Part(start + at, line[at:], "")


def _starts_ranks(part: _Part, line: str, start: int) -> bool:
    """Whether a command is one of the script itself that starts ranks, and no text that it prints or keeps."""
    before = line[: part.start - start]
    quoted = any(each.count(mark) % 2 for each in (before, part.text) for mark in "\"'")
    if quoted or part.between not in ("|", "|&") or _SAYS.match(part.text) is not None:
        return False
    found = start_of(part.text.replace("\\\n", " "))
    return found is not None and bool(found.launcher or found.how == "several")


def _reader(parts: list[_Part], place: int, below: str, *, stops: bool) -> Reader | None:
    """What looks at the status of the pipe that a command begins, where `tee` ends it; None where nothing does, or the
    shell does not wait for it."""
    last = place + 1
    while parts[last].between in ("|", "|&"):
        last += 1
    if _TEE.match(parts[last].text) is None or parts[last].between == "&":
        return None
    behind = parts[last + 1].text if last + 1 < len(parts) else ""
    if parts[last].between == "||" and _GIVES_UP.match(behind) is not None:
        return None
    if _TESTS.match(parts[place].text) is not None:
        return "test"
    if parts[last].between in ("&&", "||"):
        return "next"
    if stops:
        return "errexit"
    return "status" if "$?" in (behind if behind.strip() else below) else None


def _span(file: SourceFile, part: _Part) -> Span:
    """The first line of a command."""
    command = part.text.lstrip()
    begin = part.start + len(part.text) - len(command)
    number = file.text.count("\n", 0, begin) + 1
    column = begin - (file.text.rfind("\n", 0, begin) + 1) + 1
    first = command.split("\n")[0].rstrip("\\").rstrip()
    return Span(file.path, number, column, number, column + len(first))

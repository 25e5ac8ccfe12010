"""Jupyter notebooks: the code cells as one Python module, and where each line of it lies.

The module holds every code cell below a line that marks it. A line that is IPython's and not Python's (a magic, a shell
command, a question for help) is replaced by a statement of the same indentation, with the line itself in a comment, so
that both are found again when a notebook is written back. A cell that is indented as a whole loses its indentation, as
it does in IPython; the line that marks it says how much. Only the `source` of the cells that changed is written; the
rest of the file stays as it is, byte by byte.
"""

from __future__ import annotations

import bisect
import dataclasses
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ddp_lint.findings import Edit, Finding, Fix, Label, RankTrace, Span
from ddp_lint.source.parsing import CannotParse, parse

SUFFIX = ".ipynb"
_CELL = "# %% code cell "
_IPYTHON = "# ipython:> "
#: Cell magics whose body is Python that this kernel runs.
_PYTHON_CELLS = re.compile(r"%%(time|timeit|capture|prun|debug|python3?|py|pypy)\b")
#: Commands that IPython takes without a sign in front of them, or that a cell shows for a shell, with an argument, as
#: no expression of Python has one.
_COMMANDS = "cd|ls|cat|cp|mv|rm|mkdir|rmdir|pip|conda|python3?|torchrun|bash|git|wget"
_COMMAND = rf"({_COMMANDS}) +(?!(in|is|if|or|and|not|for|else|as)\b)(-\w|[\w.~/$*'\"])"
_MAGIC = re.compile(rf"\s*(%{{1,2}}[A-Za-z_]|!|\?{{1,2}}[A-Za-z_%]|[A-Za-z_%][\w.]*\?{{1,2}}\s*$|{_COMMAND})")
_ASSIGNED = re.compile(r"(\s*)([A-Za-z_][\w., \[\]'\"]*?)\s*=\s*([!%](?!=).*)$")
_MARKER = re.compile(rf"^{re.escape(_CELL)}(\d+)(?:, indented by (\d+) (space|tab)s)?$", re.MULTILINE)
_SIGNS = {"space": " ", "tab": "\t"}
_INDENT = re.compile(r"(?: +|\t+)(?=[^ \t])")
_STAND_IN = re.compile(rf"^.*?{re.escape(_IPYTHON)}(.*)$", re.MULTILINE)
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
#: The first line of what Git has in the place of a large file that was not downloaded.
_POINTER = "version https://git-lfs.github.com/spec/"


class NotANotebook(ValueError):
    """The text is no notebook that holds Python; the message says why, in one line."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A code cell: its number among all cells, from 1, its text, and where `source` is in the file."""

    number: int
    text: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Notebook:
    """A notebook's text with its code cells; none where its language is another one."""

    text: str
    cells: tuple[Cell, ...]

    @classmethod
    def of(cls, text: str) -> Notebook:
        """Raises NotANotebook. A text of no more than spaces is a file that was made and not yet written: no cells."""
        if not text.strip():
            return cls(text, ())
        if text.startswith(_POINTER):
            raise NotANotebook("a Git LFS pointer, not the notebook itself: `git lfs pull` brings it")
        try:
            document = json.loads(text)
        except ValueError as e:
            raise NotANotebook(f"not a notebook: {e}") from None
        except RecursionError:
            raise NotANotebook("not a notebook: it is nested too deeply") from None
        if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
            raise NotANotebook("not a notebook of format 4: it has no list of cells")
        if _language(document) not in ("", "python", "ipython"):
            return cls(text, ())
        try:
            return cls(text, tuple(_cells(text)))
        except (KeyError, TypeError, IndexError) as e:
            raise NotANotebook(f"not a notebook: a cell is not as it must be ({type(e).__name__}: {e})") from None

    @property
    def module(self) -> str:
        """The code cells as one Python module."""
        return module_of((cell.number, cell.text) for cell in self.cells)

    def with_module(self, module: str) -> str:
        """The notebook's text with the code cells of a changed module. Raises ValueError where its cells are lost."""
        parts = _MARKER.split(module)
        numbers = [int(number) for number in parts[1::4]]
        if numbers != [cell.number for cell in self.cells]:
            raise ValueError("the borders of the cells were lost")
        out, done = [], 0
        indents = map(_indent_of, parts[2::4], parts[3::4])
        for cell, indent, part in zip(self.cells, indents, parts[4::4], strict=True):
            after = _indented(_STAND_IN.sub(lambda match: match[1], part.removeprefix("\n")), indent)
            if not cell.text.endswith("\n"):
                after = after.removesuffix("\n")
            if after != cell.text:
                out += [self.text[done : cell.start], _replaced(self.text[cell.start : cell.end], cell.text, after)]
                done = cell.end
        return "".join([*out, self.text[done:]])


def module_of(cells: Iterable[tuple[int, str]]) -> str:
    """The Python module of code cells, each a number and a text."""
    parts = []
    for number, text in cells:
        indent = _common_indent(text)
        sign = next((sign for sign, written in _SIGNS.items() if indent.startswith(written)), "")
        note = f", indented by {len(indent)} {sign}s" if indent else ""
        parts.append(f"{_CELL}{number}{note}\n{_as_python(_without(text, indent))}")
    return "".join(part if part.endswith("\n") else part + "\n" for part in parts)


@dataclasses.dataclass(frozen=True)
class Lines:
    """Which cell each line of a notebook's module belongs to: (its first line in the module, its number, the
    indentation that it has lost)."""

    starts: tuple[tuple[int, int, str], ...]

    @classmethod
    def of(cls, module: str) -> Lines:
        """The cells of a module as `Notebook.module` makes them."""
        numbered = enumerate(module.split("\n"), 1)
        found = ((line + 1, m) for line, text in numbered if (m := _MARKER.fullmatch(text)))
        return cls(tuple((line, int(m[1]), _indent_of(m[2], m[3])) for line, m in found))

    def text(self, module: str, cell: int) -> str:
        """The text of a cell, with its own lines in place of their replacements."""
        lines = module.split("\n")
        ends = [*(start[0] for start in self.starts[1:]), len(lines) + 1]
        for (first, number, indent), after in zip(self.starts, ends, strict=True):
            if number == cell:
                text = _STAND_IN.sub(lambda match: match[1], "\n".join(lines[first - 1 : after - 2]))
                return _indented(text, indent)
        return ""

    def located(self, finding: Finding) -> Finding:
        """A finding of the module with its places as cells and lines within them."""
        path = finding.span.path
        fix = finding.fix
        return dataclasses.replace(
            finding,
            span=self._span(finding.span, path),
            labels=tuple(self._label(label, path) for label in finding.labels),
            witness=tuple(
                RankTrace(trace.rank, tuple(self._label(step, path) for step in trace.steps))
                for trace in finding.witness
            ),
            fix=fix and Fix(fix.message, fix.applicability, tuple(self._edit(edit, path) for edit in fix.edits)),
        )

    def _label(self, label: Label, path: str) -> Label:
        return Label(self._span(label.span, path), label.message)

    def _edit(self, edit: Edit, path: str) -> Edit:
        if edit.span.path != path or not self.starts:
            return edit
        first, *others = edit.text.split("\n", 1)
        indent = self._start(edit.span.line)[2]
        return Edit(self._span(edit.span, path), "\n".join([first, *(_indented(text, indent) for text in others)]))

    def _start(self, line: int) -> tuple[int, int, str]:
        """The start of the cell that a line of the module belongs to."""
        return self.starts[max(bisect.bisect_right(self.starts, line, key=lambda start: start[0]) - 1, 0)]

    def _span(self, span: Span, path: str) -> Span:
        if span.path != path or not self.starts:
            return span
        first, cell, indent = self._start(span.line)
        line, end_line = max(span.line - first + 1, 1), max(span.end_line - first + 1, 1)
        column, end = span.column + len(indent), span.end_column + len(indent)
        return Span(path, line, column, end_line, end, cell)


# ---- the file


def _language(document: dict[str, Any]) -> str:
    """The language of the kernel, '' where the notebook does not say."""
    metadata = document.get("metadata")
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        info = metadata.get(key) if isinstance(metadata, dict) else None
        if isinstance(info, dict) and isinstance(info.get(name), str):
            return str(info[name]).lower()
    return ""


def _is_of_another_language(metadata: object) -> bool:
    """Whether an editor keeps a cell as one of another language: ``{"vscode": {"languageId": "shellscript"}}``."""
    editor = metadata.get("vscode") if isinstance(metadata, dict) else None
    language = editor.get("languageId") if isinstance(editor, dict) else None
    return language not in (None, "", "python")


def _cells(text: str) -> Iterator[Cell]:
    """The code cells in Python; the text is JSON with a list of cells."""
    start = dict(_members(text, _skip(text, 0)))["cells"]
    for number, (at, _) in enumerate(_items(text, start), 1):
        members = dict(_members(text, at))
        if _DECODER.raw_decode(text, members["cell_type"])[0] != "code":
            continue
        if "metadata" in members and _is_of_another_language(_DECODER.raw_decode(text, members["metadata"])[0]):
            continue
        source, end = _DECODER.raw_decode(text, members["source"])
        yield Cell(number, source if isinstance(source, str) else "".join(source), members["source"], end)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _members(text: str, at: int) -> Iterator[tuple[str, int]]:
    """The keys of the object at `at`, each with the place of its value."""
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        yield key, at
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
        at = _skip(text, at + 1) if text[at] == "," else at


def _items(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Start and end of the items of the array at `at`."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        end = _DECODER.raw_decode(text, at)[1]
        yield at, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _replaced(raw: str, before: str, after: str) -> str:
    """The JSON of a changed source, in the layout of the JSON that it had. Lines that stay keep their spelling."""
    escaped = raw.isascii() and not before.isascii()
    if raw.startswith('"'):
        return json.dumps(after, ensure_ascii=escaped)
    items = list(_items(raw, 0))
    spelled = {json.loads(raw[start:end]): raw[start:end] for start, end in items}
    lines = re.findall(r"[^\n]*\n|[^\n]+$", after)
    rows = [spelled.get(line) or json.dumps(line, ensure_ascii=escaped) for line in lines]
    if not items or not rows:
        return f"[{', '.join(rows)}]"
    between = raw[items[0][1] : items[1][0]] if len(items) > 1 else "," + raw[1 : items[0][0]]
    return raw[: items[0][0]] + between.join(rows) + raw[items[-1][1] :]


# ---- IPython's lines


def _common_indent(cell: str) -> str:
    """The indentation that all lines of a cell have which have text: IPython takes that of the first one away."""
    lines = [line for line in cell.split("\n") if line.strip()]
    match = _INDENT.match(lines[0]) if lines else None
    return match[0] if match and all(line.startswith(match[0]) for line in lines) else ""


def _without(cell: str, indent: str) -> str:
    return "\n".join(line.removeprefix(indent) if line.strip() else line for line in cell.split("\n"))


def _indented(text: str, indent: str) -> str:
    """The opposite of `_without`."""
    return "\n".join(indent + line if line.strip() else line for line in text.split("\n")) if indent else text


def _indent_of(number: str | None, sign: str | None) -> str:
    """The indentation that the line above a cell notes."""
    return _SIGNS[sign] * int(number) if number and sign else ""


def _as_python(cell: str) -> str:
    """A cell with a statement for each line that is not Python's."""
    lines = cell.split("\n")
    # Colab reads a cell magic below comments too, such as its `#@title`
    first = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    if first.startswith("%%") and not _PYTHON_CELLS.match(first):
        return "\n".join(f"pass  {_IPYTHON}{line}" if line.strip() else line for line in lines)
    if not any(map(_stand_in, lines)) or _parses(cell):
        return cell
    within = _within_tokens(lines)
    out: list[str] = []
    continued = ""
    for number, line in enumerate(lines, 1):
        is_end = not line and number == len(lines)  # behind the last line's end: it is none itself
        stand_in = "" if is_end else continued or (_stand_in(line) if number not in within else "")
        out.append(f"{stand_in}  {_IPYTHON}{line}" if stand_in else line)
        indent = stand_in[: len(stand_in) - len(stand_in.lstrip())]
        continued = f"{indent}pass" if stand_in and line.endswith("\\") else ""
    return "\n".join(out)


def _stand_in(line: str) -> str:
    """The statement that replaces a line of IPython's; '' for Python."""
    if _MAGIC.match(line):
        return line[: len(line) - len(line.lstrip())] + "pass"
    if match := _ASSIGNED.match(line):
        return f"{match[1]}{match[2]} = None"
    return ""


def _parses(cell: str) -> bool:
    try:
        parse(cell)
    except CannotParse:
        return False
    return True


def _within_tokens(lines: Sequence[str]) -> set[int]:
    """The lines that begin inside a string or a bracket, where `%` and `!` mean what they mean in Python."""
    python = [_stand_in(line) or line for line in lines]
    inside: set[int] = set()
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(python) + "\n").readline):
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
            if depth > 0 and token.type in (tokenize.NL, tokenize.COMMENT):
                inside.add(token.start[0] + 1)
            inside.update(range(token.start[0] + 1, token.end[0] + 1))  # a string over several lines
    except (tokenize.TokenError, SyntaxError):
        pass
    return inside

"""Reading a source file: bytes to text as Python itself would decode them."""

from __future__ import annotations

import ast
import codecs
import dataclasses
import functools
import hashlib
import io
import pathlib
import re
import tokenize

from ddp_lint import files
from ddp_lint.findings import Span
from ddp_lint.source import notebook
from ddp_lint.source.occurring import may_occur
from ddp_lint.source.searching import SearchedText

#: Characters of what is said of a file that cannot be decoded.
_REASON = 200
#: Texts, in which a `#` begins no comment, and comments.
_TEXT_OR_COMMENT = re.compile(
    r'''("""|\'{3})(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>#[^\n]*)''', re.DOTALL
)


class Unreadable(Exception):
    """The file is not Python text; the message says why, in one line."""


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """One file: `path` as findings show it, `text` with newlines normalised to ``\\n`` and no byte order mark.

    `inside` is the path in its project. The classification of a file depends on it, not on the working directory. The
    text of a notebook is that of its code cells, whose lines `cells` knows.
    """

    path: str
    text: str
    inside: str = ""
    cells: notebook.Lines | None = None

    @classmethod
    def read(cls, file: pathlib.Path, shown_as: str, inside: str = "") -> SourceFile:
        """Raises Unreadable for what is neither Python text nor a notebook."""
        try:
            data = files.read(file)
            # YAML may be UTF-16 (what PowerShell writes by `conda env export > environment.yml`), Python may not.
            utf16 = file.suffix in (".yaml", ".yml") and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            return cls.of_text(shown_as, data.decode("utf-16") if utf16 else decode(data), inside)
        except OSError as e:
            raise Unreadable(e.strerror or str(e)) from None
        except ValueError as e:  # a name that no file can have, or half of a character in UTF-16
            raise Unreadable(str(e)) from None

    @classmethod
    def of_text(cls, shown_as: str, text: str, inside: str = "") -> SourceFile:
        """Text that was decoded already; it may still have a byte order mark and any newlines. Raises Unreadable for
        what has the name of a notebook and is none."""
        text = normalised(text)
        if not shown_as.endswith(notebook.SUFFIX):
            return cls(shown_as, text, inside)
        try:
            module = normalised(notebook.Notebook.of(text).module)
        except notebook.NotANotebook as e:
            raise Unreadable(str(e)) from None
        return cls(shown_as, module, inside, notebook.Lines.of(module))

    @property
    def place(self) -> str:
        """The path in its project, where that is known."""
        return self.inside or self.path

    @functools.cached_property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    @functools.cached_property
    def code(self) -> str:
        """The text without its comments, line by line: where a word shows what a program does, ``# TODO: set_epoch``
        does not."""
        if "#" not in self.text:
            return self.text
        parts, end = [], 0
        for match in _TEXT_OR_COMMENT.finditer(self.text):
            if match.lastgroup == "comment":
                parts.append(self.text[end : match.start()])
                end = match.end()
        return "".join((*parts, self.text[end:]))

    def span_of(self, node: ast.AST) -> Span:
        """Where a node of the file's `ast` is: 1-based, end exclusive, columns in characters."""
        line: int = getattr(node, "lineno", 1)
        end_line: int = getattr(node, "end_lineno", None) or line
        start = self._characters(line, getattr(node, "col_offset", 0))
        end = self._characters(end_line, getattr(node, "end_col_offset", None) or 0)
        return Span(self.path, line, start + 1, end_line, end + 1)

    def _characters(self, line: int, column: int) -> int:
        """`ast` counts UTF-8 bytes, findings count characters."""
        if column == 0 or self.text.isascii() or not 0 < line <= len(self.lines):
            return column
        return len(self.lines[line - 1].encode("utf-8", "surrogatepass")[:column].decode(errors="ignore"))

    def holds(self, word: str) -> bool:
        """Whether the text holds a word, or any other text: searched for once."""
        return self._searched.holds(word)

    def shows(self, pattern: re.Pattern[str]) -> bool:
        """Whether a pattern occurs in the text without its comments (`code`): searched for once, as a rule may ask at
        each of thousands of calls."""
        if pattern not in self._shown:
            self._shown[pattern] = may_occur(pattern, self.text) and pattern.search(self.code) is not None
        return self._shown[pattern]

    @functools.cached_property
    def _shown(self) -> dict[re.Pattern[str], bool]:
        return {}

    @functools.cached_property
    def _searched(self) -> SearchedText:
        return SearchedText(self.text)

    @property
    def first_line(self) -> str:
        """What may say which program the file is for."""
        return self.text.partition("\n")[0]

    @functools.cached_property
    def is_test(self) -> bool:
        """Whether it is a test by its name: one process runs it, and its files were written by that process."""
        return place_kind(self.place) == "test"

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


#: Folders of what no training job runs as it is.
_FOLDERS = {
    "test": {"test", "tests"},
    "example": {"example", "examples", "demo", "demos", "tutorial", "tutorials"},
    "benchmark": {"bench", "benchmark", "benchmarks"},
    # "old" and "legacy" are not among these: of what was found there a third is real, as projects still run it.
    "leftover": {
        "abandoned", "archive", "archived", "attic", "backup", "backups", "bak", "deprecated", "failed", "garbage",
        "junk", "obsolete", "rubbish", "snapshots", "trash",
    },
}  # fmt: skip


def place_kind(path: str) -> str:
    """``test``, ``example``, ``benchmark`` or ``leftover`` by the path of a file in its project; '' for anything
    else."""
    *folders, name = path.split("/")
    if name.startswith(("test_", "conftest")) or name.endswith("_test.py"):
        return "test"
    return next((kind for kind, words in _FOLDERS.items() if not words.isdisjoint(folders)), "")


def decode(data: bytes) -> str:
    """Decode by PEP 263 (byte order mark, coding comment, UTF-8 otherwise). Raises Unreadable."""
    if b"\0" in data:
        raise Unreadable("the file has NUL bytes: it is binary, or UTF-16; Python cannot run it")
    return normalised(as_written(data)[0])


def as_written(data: bytes) -> tuple[str, str]:
    """The text with its line ends and its byte order mark, and its encoding. Raises Unreadable."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding), encoding
    except (SyntaxError, LookupError, ValueError) as e:  # a codec may raise any UnicodeError
        raise Unreadable(f"the file cannot be decoded: {_shortened(str(e))}") from None
    except Exception as e:  # codecs are many, and some fail on what is no text in ways of their own
        raise Unreadable(f"the file cannot be decoded: {type(e).__name__}: {_shortened(str(e))}") from None


def _shortened(reason: str) -> str:
    """The file names its encoding, and so what is said of it."""
    return reason if len(reason) <= _REASON else f"{reason[:_REASON]}…"


def normalised(text: str) -> str:
    """A text without a byte order mark, its lines ended by a line feed."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")

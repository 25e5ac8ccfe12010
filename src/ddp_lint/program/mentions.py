"""What each function of a file mentions, read from its bytecode.

Python's compiler lists the names that a function uses (`co_names`, `co_varnames`, constants) at the speed of C, faster
than `ast.parse` builds its tree. Nothing of the file is executed. Names are not resolved here: the lists are for
questions that may be answered with "perhaps" (`program.reach`).
"""

from __future__ import annotations

import ast
import bisect
import collections
import dataclasses
import opcode
import re
import types
import warnings
from collections.abc import Iterator
from typing import Any

from ddp_lint.program.many_parts import may_have_many, without_many
from ddp_lint.source.imports import imports_in
from ddp_lint.source.occurring import occurs
from ddp_lint.source.parsing import is_too_large
from ddp_lint.source.wrap_evidence import in_code, may_unwrap, without_unwrapping

_WORD = re.compile(r"[^\W\d]\w*")
#: Classes with bases. The end of a class's head is its colon: what a base's own arguments hold counts as well.
_CLASS = re.compile(r"^[ \t]*class\s+(\w+)\s*(?:\[[^\]]*\])?\s*\(([^:]*)\)\s*:", re.M)
_VARIABLE = re.compile(r"^(\w+)\s*(?::[^=\n]*)?=[^=]", re.M)
#: A definition's head is over at the latest after this many lines: the rest of a longer one is not read.
_HEAD_LINES = 200
#: A comment at the end of a line; where it holds a quotation mark, it may be the end of a string.
_COMMENT = re.compile(r"#[^\"']*$")
#: Lines that a function's last call may go on for after the last line that its bytecode names.
_LAST_CALL = 3
#: What is before the first parameter where a function is defined, and so many characters of it are looked at.
_OPENING, _OPENING_LENGTH = re.compile(r"\bdef\s+\w+\(\s*\Z"), 120
#: Instructions of module and class bodies that use a name; the others bind it, which mentions nothing.
_USING = frozenset(
    opcode.opmap[name]
    for name in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "LOAD_FROM_DICT_OR_GLOBALS")
    if name in opcode.opmap
)
_IMPORTING = frozenset({opcode.opmap["IMPORT_NAME"], opcode.opmap["IMPORT_FROM"]})
_STORING = opcode.opmap["STORE_ATTR"]
_BINDING = opcode.opmap["STORE_NAME"]
_BUILDING = frozenset(number for name, number in opcode.opmap.items() if name.startswith("BUILD_"))
#: What a module exports, which nothing looks anything up in.
_LISTING = frozenset({"__all__"})
_EXTENDED = opcode.opmap["EXTENDED_ARG"]
#: `co_flags` of functions, as opposed to the bodies of modules and classes.
_OPTIMIZED = 0x1
#: ``getattr`` of a variable, with a name that is no constant, as ``"on_" + kind``. Where the variable itself is the
#: default, what it gives is an object of that kind and no method.
_GETATTR = re.compile(r"\bgetattr\(\s*(\w+)\s*,(?!\s*[rbuRBU]*([\"'])\w*\2\s*[,)])(?![^()]*,\s*\1\s*\))")
#: A variable that is given an object of a class, or annotated with one.
_OBJECT = re.compile(r"\b(\w+)\s*=\s*(?:\w+\.)*_*[A-Z]\w*\(|\b(\w+)\s*:\s*[\"']?(?:\w+[.\[])*_*[A-Z]")
#: A constant string after the first argument of a call.
_ARGUMENT = re.compile(r",\s*[\"'](\w+)[\"']\s*[,)]")
#: Mentioned by a function that gets attributes by computed names: of its first parameter, of another object whose class
#: it can know.
OF_FIRST, COMPUTED = "getattr(self)", "getattr()"
#: Mentioned by a method that does more with its object than to name an attribute of it: it may call it.
OWN = "self()"
#: Mentioned by a function that calls anything, by one that puts anything into a text, and by one that enters a manager:
#: with these instructions, whose names change from version to version. Where none of them is known, every function is
#: taken to do so.
CALLING, WRITING, ENTERING = "()", "f-string", "with"
_INSTRUCTIONS = {
    CALLING: ("CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX", "CALL_METHOD"),
    WRITING: ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"),
    ENTERING: ("BEFORE_WITH", "BEFORE_ASYNC_WITH", "SETUP_WITH", "SETUP_ASYNC_WITH", "LOAD_SPECIAL"),
}  # fmt: skip
_DOING = {
    what: frozenset(opcode.opmap[name] for name in names if name in opcode.opmap) or frozenset(opcode.opmap.values())
    for what, names in _INSTRUCTIONS.items()
}
#: Among the words of bases: one of them is an attribute, whose name may be that of another class of the file.
DOTTED = "."
#: The module's own statements, as the name of a function.
MODULE = ""


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionMentions:
    """The words of one function, those of functions defined inside it included.

    `name` has the classes and functions around it (``Outer.method``), `method_of` the place of its class among the
    file's classes, -1 for none. `top`: defined at the top level of the module, so that others can import it. `stores`:
    it assigns attributes.
    """

    name: str
    words: tuple[str, ...]
    method_of: int = -1
    top: bool = False
    stores: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ClassMentions:
    """A class: the words of its bases, and those that its body uses outside of its methods."""

    name: str
    bases: tuple[str, ...]
    words: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FileMentions:
    """One file. `imports` pair what it imports anywhere, as a dotted name (relative with its dots, ``a.*`` for a star),
    with the name that this gets; `variables` are the names that its top level assigns; `tables` those of them that are
    made of functions and classes, with the words of these; `wraps`: its text shows that it wraps models for several
    ranks."""

    functions: tuple[FunctionMentions, ...]
    classes: tuple[ClassMentions, ...]
    variables: tuple[str, ...]
    tables: tuple[tuple[str, tuple[str, ...]], ...]
    imports: tuple[tuple[str, str], ...]
    wraps: bool

    def encoded(self) -> list[Any]:
        """As JSON."""
        functions = [[f.name, " ".join(f.words), f.method_of, f.top, f.stores] for f in self.functions]
        classes = [[c.name, " ".join(c.bases), " ".join(c.words)] for c in self.classes]
        imports = " ".join(f"{target}={name}" for target, name in self.imports)
        tables = [[name, " ".join(words)] for name, words in self.tables]
        return [functions, classes, " ".join(self.variables), tables, imports, self.wraps]

    @classmethod
    def decoded(cls, value: Any) -> FileMentions:
        """The inverse of `encoded`. Raises TypeError or ValueError for anything else."""
        functions, classes, variables, tables, imports, wraps = value
        return cls(
            tuple(FunctionMentions(n, tuple(w.split()), int(m), bool(t), bool(s)) for n, w, m, t, s in functions),
            tuple(ClassMentions(n, tuple(b.split()), tuple(w.split())) for n, b, w in classes),
            tuple(variables.split()),
            tuple((name, tuple(words.split())) for name, words in tables),
            tuple((target, name) for target, _, name in (pair.partition("=") for pair in imports.split())),
            bool(wraps),
        )


def mentions_of(text: str, wraps: re.Pattern[str]) -> FileMentions | None:
    """What a file mentions; None where Python cannot compile it, and nothing is known. `wraps` finds the wrapping of
    models in its text."""
    if is_too_large(text):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapping = occurs(wraps, text)
            if wrapping:
                tree = ast.parse(text)
                if may_unwrap(text):
                    text = without_unwrapping(text, tree, wraps)
                wrapping = occurs(wraps, in_code(text, tree))
            source = without_many(ast.parse(text)) if may_have_many(text) else text
            code = compile(source, "<file>", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None
    return _Reader(text).read(code, wrapping)


class _Reader:
    """Collects the mentions of one file."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.split("\n")
        self._imports = tuple(dict.fromkeys(_imports(text)))
        self._originals: dict[str, set[str]] = collections.defaultdict(set)
        for target, name in self._imports:
            original = target.rpartition(".")[2]
            if original != name:
                self._originals[name].add(original)
        self._bases: dict[str, set[str]] = collections.defaultdict(set)
        for name, bases in _CLASS.findall(text):
            dotted = {DOTTED} if "." in bases else set()
            self._bases[name] |= self._with_originals(set(_WORD.findall(bases))) | dotted
        self._functions: list[FunctionMentions] = []
        self._classes: list[ClassMentions] = []
        self._starts: list[int] = []
        #: By the name of a first parameter: the lines that have it without an attribute.
        self._bare: dict[str, list[int]] = {}

    def read(self, code: types.CodeType, wraps: bool) -> FileMentions:
        self._starts = sorted(_starts(code))
        module = self._visit(code, "", -1, top=True)
        self._functions.append(FunctionMentions(MODULE, tuple(module)))
        variables = tuple(dict.fromkeys(_VARIABLE.findall(self._text)))
        defined = {f.name for f in self._functions if f.top} | {c.name for c in self._classes}
        own = defined | {name for _, name in self._imports}
        made = ((name, words & own) for name, words in _tables(code).items() if name not in defined)
        tables = tuple((name, tuple(held)) for name, held in made if held)
        return FileMentions(tuple(self._functions), tuple(self._classes), variables, tables, self._imports, wraps)

    def _visit(self, code: types.CodeType, prefix: str, of: int, *, top: bool) -> set[str]:
        """The words of a body, with those of the functions that it runs or passes on: all but methods and, at the top
        level of a module, the functions defined there."""
        words = self._words(code)
        for inner in code.co_consts:
            if not isinstance(inner, types.CodeType):
                continue
            if inner.co_name.startswith("<"):  # a lambda or a comprehension
                words |= self._visit(inner, prefix, -1, top=False)
            elif inner.co_flags & _OPTIMIZED:
                name = prefix + inner.co_name
                below = self._visit(inner, f"{name}.", -1, top=False)
                below |= self._with_originals(self._head(inner.co_firstlineno))
                if of >= 0 and self._uses_own_object(inner):
                    below.add(OWN)
                self._functions.append(FunctionMentions(name, tuple(below), of, top, _STORING in inner.co_code[::2]))
                if not top and of < 0:
                    words |= below
            else:
                words |= self._visit_class(inner, top=top)
        return words

    def _visit_class(self, code: types.CodeType, *, top: bool) -> set[str]:
        """The words of a class that a function defines: all of it; of one at the top level: none."""
        place = len(self._classes)
        bases = tuple(self._bases.get(code.co_name, ()))
        self._classes.append(ClassMentions(code.co_name, bases, ()))
        first = len(self._functions)
        words = self._visit(code, f"{code.co_name}.", place, top=False)
        self._classes[place] = ClassMentions(code.co_name, bases, tuple(words))
        if top:
            return set()
        return words.union(*(function.words for function in self._functions[first:]))

    def _words(self, code: types.CodeType) -> set[str]:
        if code.co_flags & _OPTIMIZED:
            words = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}
            if "getattr" in words:
                words.update(self._gotten_by(code))
            # names of keyword arguments
            words.update(n for names in code.co_consts if isinstance(names, tuple) for n in names if isinstance(n, str))
        else:
            words = _used(code)
        operations = set(code.co_code[::2])
        words.update(what for what, doing in _DOING.items() if not operations.isdisjoint(doing))
        return self._with_originals(words)

    def _uses_own_object(self, method: types.CodeType) -> bool:
        """Is the first parameter there without an attribute, other than where a function is defined? Up to the next
        definition beside the method or around it."""
        if not method.co_varnames:
            return False
        own = method.co_varnames[0]
        if own not in self._bare:
            self._bare[own] = self._lines_with_bare(own)
        lines, first = self._bare[own], method.co_firstlineno
        place, behind = bisect.bisect_left(lines, first), bisect.bisect_right(self._starts, first)
        end = self._starts[behind] if behind < len(self._starts) else len(self._lines) + 1
        return place < len(lines) and lines[place] < end

    def _lines_with_bare(self, name: str) -> list[int]:
        found, line, counted = [], 1, 0
        for match in re.finditer(rf"\b{name}\b(?!\s*\.)", self._text):
            line, counted = line + self._text.count("\n", counted, match.start()), match.start()
            if not _OPENING.search(self._text, match.start() - _OPENING_LENGTH, match.start()):
                found.append(line)
        return found

    def _gotten_by(self, code: types.CodeType) -> Iterator[str]:
        """The names that a function gets by `getattr`; OF_FIRST where it computes them for its first parameter,
        COMPUTED for a variable whose class it can know: one that it makes of a class or annotates."""
        last = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
        source = "\n".join(self._lines[code.co_firstlineno - 1 : last + _LAST_CALL])
        yield from _ARGUMENT.findall(source)
        own = code.co_varnames[:1] if code.co_argcount else ()
        objects = {name for pair in _OBJECT.findall(source) for name in pair}
        for name in {name for name, _ in _GETATTR.findall(source)}:
            yield from [what for what, names in ((OF_FIRST, own), (COMPUTED, objects)) if name in names]

    def _with_originals(self, words: set[str]) -> set[str]:
        """With what the words are other names of: ``import a as b``."""
        for alias in words & self._originals.keys():
            words |= self._originals[alias]
        return words

    def _head(self, first: int) -> set[str]:
        """The words of a definition's decorators, parameters, annotations and defaults, by its first line."""
        taken: list[str] = []
        depth = 0
        for line in self._lines[first - 1 : first - 1 + _HEAD_LINES]:
            code = _COMMENT.sub("", line)
            taken.append(code)
            depth += code.count("(") + code.count("[") - code.count(")") - code.count("]")
            if depth <= 0 and ":" in code and not code.lstrip().startswith("@"):
                break
        return set(_WORD.findall(" ".join(taken)))


def _starts(code: types.CodeType) -> Iterator[int]:
    """Where the classes and functions begin that are in no function: the lines of their first decorators."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and not inner.co_name.startswith("<"):
            yield inner.co_firstlineno
            if not inner.co_flags & _OPTIMIZED:
                yield from _starts(inner)


def _imports(text: str) -> Iterator[tuple[str, str]]:
    """What is imported anywhere in a text, with the name that it gets."""
    for target, name in imports_in(text):
        first = target.partition(".")[0]
        yield (target, name) if name else (first, first)


def _used(code: types.CodeType) -> set[str]:
    """The names that the body of a module or class uses."""
    return set().union(*(names for operation, names in _operations(code) if operation in _USING))


def _tables(code: types.CodeType) -> dict[str, set[str]]:
    """For each name that the body of a module gives a list or a dictionary, the names that are used since the
    assignment before."""
    made: dict[str, set[str]] = {}
    words: set[str] = set()
    builds = False
    for operation, names in _operations(code):
        if operation in _USING:
            words |= names
        elif operation in _BUILDING:
            builds = True
        else:
            for name in names if builds and not names & _LISTING else ():
                made.setdefault(name, set()).update(words)
            words, builds = set(), False
    return made


def _operations(code: types.CodeType) -> Iterator[tuple[int, set[str]]]:
    """The instructions that use or bind a name, other than by an import, with what it may be, and those that build
    containers. In some versions the lowest bit is a flag, so that one of both readings names what is used, the other
    too much."""
    extended = 0
    imports = False
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        place = argument | extended
        extended = place << 8 if operation == _EXTENDED else 0
        if operation in _IMPORTING:
            imports = True
        elif operation == _BINDING and imports:
            imports = False
        elif operation in _USING:
            yield operation, {code.co_names[p] for p in {place, place >> 1} if p < len(code.co_names)}
        elif operation in _BUILDING or (operation == _BINDING and place < len(code.co_names)):
            yield operation, {code.co_names[place]} if operation == _BINDING else set()

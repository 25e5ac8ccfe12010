"""What one module of the project holds, read from its `ast`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ddp_lint.project.parts import OUTLINE, PART, by_asker, kept_by_node, note_stores, unnoted
from ddp_lint.source.file import SourceFile
from ddp_lint.source.imports import ImportTable, dotted_ast
from ddp_lint.source.syntax import FunctionNode, blocks_at, first_name, statements

Definition = FunctionNode | ast.ClassDef


@dataclasses.dataclass(frozen=True)
class ModuleFacts:
    """A module of the project, as other files need it: its `ast`, its imports, its definitions by name."""

    name: str
    #: The file for who needs its path or places in it, which no result depends on but by what it shows of them.
    source: SourceFile
    tree: ast.Module
    imports: ImportTable
    #: What `Project.remember` keeps as long as the module.
    kept: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    #: Notes a question about the file.
    note: Callable[[str], None] = dataclasses.field(default=lambda question: None, compare=False, repr=False)

    @property
    def file(self) -> SourceFile:
        """The file for who reads its text."""
        self.note(f"file:{self.source.inside}")
        return self.source

    def note_outline(self) -> None:
        """A result depends on all but the bodies of functions, if the facts do not come from the project."""
        self.note(f"{PART}:{OUTLINE}:{self.source.inside}")

    def renew(self, source: SourceFile) -> None:
        """The file has another text, whose syntax tree this one is by now (`grafting`)."""
        object.__setattr__(self, "source", source)
        self.__dict__.pop("_prose", None)

    @functools.cached_property
    def definitions(self) -> dict[str, Definition]:
        """Top-level functions and classes, also those under a top-level `if`, `try` or `with`."""
        found: dict[str, Definition] = {}
        for node in _statements(self.tree.body):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.setdefault(node.name, node)
        return found

    def method_at(self, line: int) -> tuple[ast.ClassDef, FunctionNode] | None:
        """The method that a line is in, with its class of `definitions`. Each of thousands of lines may ask."""
        around = blocks_at(self.tree, line)
        for owner, method in itertools.pairwise(around):
            if isinstance(owner, ast.ClassDef) and self.definitions.get(owner.name) is owner:
                return (owner, method) if isinstance(method, FunctionNode) else None
        return None

    @functools.cached_property
    def values(self) -> dict[str, ast.expr]:
        """Module-level names and the expression that each was assigned last."""
        found: dict[str, ast.expr] = {}
        for node in _statements(self.tree.body):
            found.update(_assigned(node))
        return found

    @property
    def prose(self) -> frozenset[int]:
        """The lines of docstrings and comments: a function that mentions a thing does not do it."""
        self.note(f"file:{self.source.inside}")
        return self._prose

    @functools.cached_property
    def _prose(self) -> frozenset[int]:
        lines = self.source.lines
        found = {number for number, line in enumerate(lines, 1) if line.lstrip().startswith("#")}
        for node in statements(self.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and _alone(node, lines):
                found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return frozenset(found)

    def qualified(self, node: ast.AST | str | None) -> str:
        """The dotted name that an expression of this module refers to: imported, or defined at its top level; ''
        for anything else. Re-exports are not followed (`Meanings.canonical` does)."""
        name = node if isinstance(node, str) else dotted_ast(node)
        target = self.imports.resolve(name) if name else None
        if target is None and name.partition(".")[0] in self.definitions:
            target = f"{self.name}.{name}" if self.name else name
        return target or ""


def _alone(node: ast.stmt, lines: list[str]) -> bool:
    """Whether a statement has its lines for itself."""
    first, last = lines[node.lineno - 1], lines[(node.end_lineno or node.lineno) - 1]
    return not first[: node.col_offset].strip() and not last.encode()[node.end_col_offset :].strip()


#: Of the classes that a class inherits from, so many count, the nearest ones: a chain of classes can have any length.
MOST_BASES = 64


@dataclasses.dataclass(frozen=True)
class ClassFacts:
    """A class of the project. `bases` are canonical dotted names, '' for a base that is no plain name."""

    name: str
    module: ModuleFacts
    node: ast.ClassDef
    bases: tuple[str, ...]

    @functools.cached_property
    def methods(self) -> dict[str, FunctionNode]:
        return methods_of(self.node)

    def attribute(self, name: str) -> Sequence[tuple[ast.expr, FunctionNode | None]]:
        """What is assigned to an attribute: values (annotations where there is no value) from the class body, and from
        ``self.name = ...`` in any method, each with the method, in source order."""
        note_stores(self.node, name)
        with unnoted(self.node):
            return _attributes_of(self.node).get(name, ())


@kept_by_node(4096, noted=by_asker)
def _attributes_of(class_: ast.ClassDef) -> dict[str, list[tuple[ast.expr, FunctionNode | None]]]:
    found: dict[str, list[tuple[ast.expr, FunctionNode | None]]] = {}
    for statement in _statements(class_.body):
        for name, value in _assigned(statement):
            found.setdefault(name, []).append((value, None))
    for method in _functions_of(class_):
        this = first_name(method)
        if this:
            for name, value in _assigned_below(method, f"{this}."):
                found.setdefault(name, []).append((value, method))
    return found


def methods_of(class_: ast.ClassDef) -> dict[str, FunctionNode]:
    """The methods of a class by name: of a property what reads it."""
    return {node.name: node for node in _functions_of(class_) if not is_setter(node)}


def _functions_of(class_: ast.ClassDef) -> Iterator[FunctionNode]:
    return (n for n in _statements(class_.body) if isinstance(n, FunctionNode))


def is_setter(function: FunctionNode) -> bool:
    """``@size.setter``: called where the property is assigned to or deleted."""
    return any(isinstance(d, ast.Attribute) and d.attr in ("setter", "deleter") for d in function.decorator_list)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, through `if`, `try`, `with` and loops, not into definitions."""
    stack = list(reversed(body))
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        nested: list[ast.stmt] = []
        for field in ("body", "orelse", "finalbody"):
            nested += getattr(node, field, ())
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            nested += part.body
        stack.extend(reversed(nested))


def statements_of(function: FunctionNode) -> Iterator[ast.stmt]:
    """The statements of a function in source order, not those of definitions inside it."""
    return _statements(function.body)


def _assigned(node: ast.stmt, of: Callable[[ast.expr], str] = dotted_ast) -> list[tuple[str, ast.expr]]:
    """(dotted target, value) of an assignment; the annotation where there is no value. What is unpacked is left out,
    but for ``a, b = x, y``."""
    if isinstance(node, ast.Assign):
        pairs = [pair for target in node.targets for pair in paired(target, node.value)]
        return [(of(target), value) for target, value in pairs if of(target)]
    if isinstance(node, ast.AnnAssign) and of(node.target):
        return [(of(node.target), node.value or node.annotation)]
    return []


def paired(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """What an assignment gives each of its targets; one that unpacks something else is left whole."""
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple) or len(target.elts) != len(value.elts):
        return [(target, value)]
    starred = any(isinstance(each, ast.Starred) for each in (*target.elts, *value.elts))
    return [(target, value)] if starred else list(zip(target.elts, value.elts, strict=True))


def _assigned_below(function: FunctionNode, prefix: str) -> Iterator[tuple[str, ast.expr]]:
    for statement in statements_of(function):
        for name, value in _assigned(statement):
            attribute = name.removeprefix(prefix)
            if attribute != name and "." not in attribute:
                yield attribute, value


def assigned_in(function: FunctionNode, name: str) -> list[ast.expr]:
    """The values that a function assigns to a dotted name, in source order."""
    return list(_all_assigned(function).get(name, ()))


@kept_by_node(256)  # many names are looked up in one function
def _all_assigned(function: FunctionNode) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for statement in statements_of(function):
        for target, value in _assigned(statement):
            found.setdefault(target, []).append(value)
    return found

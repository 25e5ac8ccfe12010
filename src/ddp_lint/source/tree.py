"""Walking a LibCST tree over what has meaning: no whitespace, commas, parentheses or comments."""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Iterator

import libcst as cst


class _Concrete(abc.ABCMeta):
    """Of classes whose objects are those of the class and of what inherits from it: nobody registers others."""

    __instancecheck__ = type.__instancecheck__


def _in_c(kind: type[cst.CSTNode]) -> None:
    """Rules look nodes up and test their types a million times a file. LibCST says in Python, in each of its types,
    that nodes are equal by identity, and `abc` tests types in Python: in C the one is free, the other takes half."""
    kind.__hash__ = object.__hash__  # type: ignore[method-assign]
    for below in kind.__subclasses__():
        _in_c(below)
    kind.__class__ = _Concrete  # type: ignore[assignment]


_in_c(cst.CSTNode)  # type: ignore[type-abstract]

_TRIVIA = (
    "whitespace", "comma", "semicolon", "lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace", "leading_lines",
    "lines_after_", "header", "footer", "trailing_", "equal", "indent", "dot", "colon", "first_colon", "second_colon",
    "asynchronous", "default_indent", "default_newline", "encoding", "has_trailing_newline", "star", "comment",
    "empty_lines", "newline", "separator", "first_line", "last_line",
)  # fmt: skip
# Fields whose names start like trivia but hold meaning.
_MEANING = {"star_arg", "star_kwarg"}


_PLAIN = re.compile(r"<class '(str|bool)'>|typing\.(Optional\[str\]|Literal\[.*\]|Optional\[typing\.Literal\[.*\]\])$")


@functools.cache
def fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """The fields of a node type that can hold nodes with meaning, in source order."""
    return tuple(
        f.name
        for f in dataclasses.fields(kind)
        if (f.name in _MEANING or not f.name.startswith(_TRIVIA)) and not _PLAIN.match(str(f.type))
    )


@functools.cache
def is_leaf(kind: type[cst.CSTNode]) -> bool:
    """Whether nodes of this type have nothing with meaning below them: names, numbers, operators."""
    return not fields(kind)


_Getter = Callable[[cst.CSTNode], "tuple[object, ...]"]


@functools.cache
def _getter(kind: type[cst.CSTNode]) -> _Getter:
    names = fields(kind)
    if len(names) == 1:
        (name,) = names
        return lambda node: (getattr(node, name),)
    return operator.attrgetter(*names) if names else lambda node: ()


class _Shapes(dict[type, int]):
    """What the values of fields are, by their type: 1 a node, 2 a sequence of nodes, 0 neither."""

    def __missing__(self, kind: type) -> int:
        # Asking an abstract base class is slow, and each type is met a million times.
        self[kind] = 1 if issubclass(kind, cst.CSTNode) else 2 if issubclass(kind, (list, tuple)) else 0
        return self[kind]


_SHAPES = _Shapes()


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """The nodes with meaning directly below `node`, in source order."""
    found: list[cst.CSTNode] = []
    for value in _getter(type(node))(node):
        shape = _SHAPES[type(value)]
        if shape == 1:
            found.append(value)  # type: ignore[arg-type]
        elif shape == 2:
            found += value  # type: ignore[arg-type]
    return found


def descendants(node: cst.CSTNode, *, into_definitions: bool = True) -> Iterator[cst.CSTNode]:
    """All nodes with meaning below `node`, in source order; without those of nested definitions if `into_definitions`
    is False."""
    stack = children(node)[::-1]
    while stack:
        item = stack.pop()
        yield item
        if into_definitions or type(item) not in DEFINITIONS:
            stack.extend(children(item)[::-1])


def subtree(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all below it."""
    yield node
    yield from descendants(node)


def names_in(node: cst.CSTNode) -> set[str]:
    """The names and dotted names in an expression: `a.b` and `a` of ``f(a.b)``."""
    return {dotted(n) for n in subtree(node) if isinstance(n, (cst.Name, cst.Attribute))} - {""}


# Node types are abstract base classes, for which `isinstance` is slow: hot loops compare the type itself.
DEFINITIONS = {cst.FunctionDef, cst.ClassDef, cst.Lambda}


def calls_as_run(node: cst.CSTNode) -> list[cst.Call]:
    """The calls of a block, without those of nested definitions, in the order in which they run: what is given to a
    call, or called before it, ends before it."""
    found: list[cst.Call] = []
    stack = children(node)
    while stack:  # from the last to the first, a node before what is in it
        item = stack.pop()
        if type(item) is cst.Call:
            found.append(item)
        if type(item) not in DEFINITIONS:
            stack += children(item)
    return found[::-1]


def dotted(node: cst.CSTNode | None) -> str:
    """`a.b.c` for a chain of names and attributes, else ''."""
    parts: list[str] = []
    while type(node) is cst.Attribute:
        parts.append(node.attr.value)
        node = node.value
    if type(node) is not cst.Name:
        return ""
    parts.append(node.value)
    return ".".join(reversed(parts))


def asks_for_program(test: cst.BaseExpression) -> bool:
    """Whether a test asks whether the file is the program: ``__name__ == "__main__"``. Of a tree of the standard
    library's, `syntax.main_guards` answers that."""
    return isinstance(test, cst.Comparison) and "__name__" in (
        dotted(test.left),
        *(dotted(target.comparator) for target in test.comparisons),
    )


def called(call: cst.Call) -> str:
    """The last part of the name that is called: `step` of ``optimizers[i].step()`` and of ``step()``."""
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)


def method_of(node: cst.CSTNode | None) -> str:
    """`step` of the call ``optimizers[i].step()``; '' for any other call or node."""
    return node.func.attr.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else ""


def parameters_of(function: cst.FunctionDef | cst.Lambda) -> list[cst.Param]:
    """The parameters that have a name of their own: all but ``*args`` and ``**kwargs``."""
    return [*positional_of(function), *function.params.kwonly_params]


def positional_of(function: cst.FunctionDef | cst.Lambda) -> list[cst.Param]:
    """The parameters that a call can give by their place."""
    return [*function.params.posonly_params, *function.params.params]

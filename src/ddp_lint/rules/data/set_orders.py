"""Words that are numbered in the order of a set: the hash of a text is another one in each process."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from ddp_lint.knowledge import table
from ddp_lint.launch.by_rank import Place, assigned_above, called_function
from ddp_lint.project import Project
from ddp_lint.project.bound import bound_in
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, parameters, statements, walk

_DEPTH: Final = 20
#: Methods of a text whose result is one, those that give a list of them, and calls that give names.
_TEXTS: Final = frozenset(
    {"lower", "upper", "strip", "lstrip", "rstrip", "replace", "casefold", "title", "read", "decode"}
)
_LISTS: Final = frozenset({"split", "rsplit", "splitlines", "findall", "listdir", "glob", "iglob"})
_PASS_ON: Final = frozenset({"set", "frozenset", "list", "tuple", "sorted", "Counter", "iter", "reversed"})
_OF_TEXTS: Final = frozenset(
    {f"{kind}[str]" for kind in ("list", "List", "Iterable", "Sequence", "set", "Set")} | {"str"}
)

_Generators = tuple[ast.comprehension, ...]


@dataclasses.dataclass(frozen=True)
class Numbered:
    """What is numbered, under which name, the set whose order it takes, and the function."""

    order: ast.expr
    name: str
    set: ast.expr
    function: FunctionNode


def numbered_by_set(project: Project, facts: ModuleFacts) -> Iterator[Numbered]:
    """The dictionaries of a file that give each word its place in a list which a set was turned into:
    ``words = list(set(tokens))``, ``stoi = {w: i for i, w in enumerate(words)}``."""
    names = table("data")["numberings"]
    for function in (n for n in walk(facts.tree) if isinstance(n, FunctionNode)):
        place = Place(facts, function)
        for node in statements(function):
            for name, order in _numberings(node):
                found = _Sets(project, place).order_of(order, _DEPTH) if name in names else None
                if found is not None:
                    yield Numbered(order, name, found, function)


def _numberings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The last name of a dictionary that numbers, and what it goes through."""
    if isinstance(node, ast.Assign):
        name, value = last_part(node.targets[0]), node.value
        if isinstance(value, ast.DictComp) and len(value.generators) == 1:
            through = value.generators[0]
            order = _enumerated(through.iter, through.target, dotted_ast(value.key), dotted_ast(value.value))
            yield from [(name, order)] if order is not None else []
        elif isinstance(value, ast.Call) and dotted_ast(value.func) == "dict" and len(value.args) == 1:
            zipped = value.args[0]
            if isinstance(zipped, ast.Call) and dotted_ast(zipped.func) == "zip" and len(zipped.args) == 2:
                second = zipped.args[1]
                if isinstance(second, ast.Call) and last_part(second.func) in ("range", "count"):
                    yield name, zipped.args[0]
    elif isinstance(node, ast.For):
        for inner in (n for n in node.body if isinstance(n, ast.Assign)):
            target = inner.targets[0]
            if isinstance(target, ast.Subscript):
                order = _enumerated(node.iter, node.target, dotted_ast(target.slice), dotted_ast(inner.value))
                yield from [(last_part(target.value), order)] if order is not None else []


def _enumerated(iterated: ast.expr, target: ast.expr, key: str, value: str) -> ast.expr | None:
    """What ``for i, w in enumerate(words)`` goes through, where `w` is the key and `i` the value."""
    if not isinstance(iterated, ast.Call) or dotted_ast(iterated.func) != "enumerate" or not iterated.args:
        return None
    parts = [dotted_ast(each) for each in target.elts] if isinstance(target, ast.Tuple) else []
    return iterated.args[0] if parts == [value, key] and key else None


class _Sets:
    """Follows the values of one function."""

    def __init__(self, project: Project, place: Place) -> None:
        self._project, self._place = project, place
        assert place.around is not None
        self._around = place.around

    def order_of(self, value: ast.expr, depth: int) -> ast.expr | None:
        """The set of texts whose order a value has, as it is or in a part of it."""
        if not depth:
            return None
        if isinstance(value, ast.SetComp) or (isinstance(value, ast.Call) and dotted_ast(value.func) == "set"):
            return value if self._are_texts(value, (), depth - 1) else None
        if isinstance(value, ast.Call) and dotted_ast(value.func) in ("list", "tuple") and len(value.args) == 1:
            return self.order_of(value.args[0], depth - 1)
        if isinstance(value, ast.Starred):
            return self.order_of(value.value, depth - 1)
        parts: Sequence[ast.expr] = ()
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            parts = (value.left, value.right)
        elif isinstance(value, (ast.List, ast.Tuple)):
            parts = value.elts
        elif dotted_ast(value):
            return self._order_of_name(dotted_ast(value), value.lineno, depth)
        return next((found for part in parts if (found := self.order_of(part, depth - 1)) is not None), None)

    def _order_of_name(self, name: str, line: int, depth: int) -> ast.expr | None:
        """The same of what a name was last given; not where the list is sorted."""
        if any(dotted_ast(call.func) == f"{name}.sort" for call in calls_below(self._around)):
            return None
        last = next(iter(assigned_above(self._place, name, line)), None)
        if isinstance(last, ast.Call) and dotted_ast(last.func) == "set" and not last.args:
            put = [each for each in bound_in(self._around).get(name, ()) if each.put_in and each.value is not None]
            texts = bool(put) and all(each.value and self._is_text(each.value, (), depth - 1) for each in put)
            return last if texts else None
        return self.order_of(last, depth - 1) if last is not None else None

    def _are_texts(self, value: ast.expr, around: _Generators, depth: int) -> bool:
        """Whether whoever goes through a value gets texts."""
        if not depth:
            return False
        if isinstance(value, (ast.SetComp, ast.ListComp, ast.GeneratorExp)):
            return self._is_text(value.elt, (*around, *value.generators), depth - 1)
        if isinstance(value, ast.Call):
            name = last_part(value.func)
            if name in _LISTS or name == "read":
                return True
            if name in _PASS_ON and len(value.args) == 1:
                return self._are_texts(value.args[0], around, depth - 1)
            return self._returns_texts(value, depth)
        if isinstance(value, ast.Name):
            given = next(iter(assigned_above(self._place, value.id, value.lineno)), None)
            if given is not None:
                return self._are_texts(given, (), depth - 1)
            return self._annotation_of(value.id) in _OF_TEXTS
        return False

    def _returns_texts(self, call: ast.Call, depth: int) -> bool:
        found = called_function(self._project, call, self._place)
        if found is None:
            return False
        inside = _Sets(self._project, self._place.called(call, *found))
        returned = [n.value for n in statements(found[1]) if isinstance(n, ast.Return)]
        return bool(returned) and all(v is not None and inside._are_texts(v, (), depth - 1) for v in returned)

    def _annotation_of(self, name: str) -> str:
        given = (each.annotation for each in parameters(self._around) if each.arg == name and each.annotation)
        return next((ast.unparse(each) for each in given), "")

    def _is_text(self, value: ast.expr, around: _Generators, depth: int) -> bool:
        if not depth:
            return False
        if isinstance(value, ast.JoinedStr):
            return True
        if isinstance(value, ast.Call):
            of_text = isinstance(value.func, ast.Attribute) and value.func.attr in _TEXTS
            return of_text or dotted_ast(value.func) == "str"
        if isinstance(value, ast.Subscript):
            return not isinstance(value.slice, ast.Slice) and self._are_texts(value.value, around, depth - 1)
        if not isinstance(value, ast.Name):
            return False
        for generator in reversed(around):
            if value.id in {n.id for n in walk(generator.target) if isinstance(n, ast.Name)}:
                return self._gives_text(generator.target, generator.iter, value.id, around, depth)
        loops = [
            n
            for n in statements(self._around)
            if isinstance(n, ast.For) and value.id in map(dotted_ast, walk(n.target))
        ]
        assigned = assigned_above(self._place, value.id, value.lineno)
        if loops and not assigned:
            return all(self._gives_text(each.target, each.iter, value.id, around, depth) for each in loops)
        return bool(assigned) and not loops and self._is_text(assigned[0], (), depth - 1)

    def _gives_text(self, target: ast.expr, iterated: ast.expr, name: str, around: _Generators, depth: int) -> bool:
        """Whether a loop gives one of its names texts: the keys of a counter, or what is enumerated, or what it goes
        through."""
        if isinstance(target, ast.Name):
            return self._are_texts(iterated, around, depth - 1)
        if not isinstance(target, ast.Tuple) or not isinstance(iterated, ast.Call):
            return False
        at = [dotted_ast(each) for each in target.elts].index(name) if name in map(dotted_ast, target.elts) else -1
        if (
            at == 0
            and last_part(iterated.func) in ("items", "most_common")
            and isinstance(iterated.func, ast.Attribute)
        ):
            return self._are_texts(iterated.func.value, around, depth - 1)
        of_enumerate = at == 1 and dotted_ast(iterated.func) == "enumerate" and iterated.args
        return bool(of_enumerate) and self._are_texts(iterated.args[0], around, depth - 1)

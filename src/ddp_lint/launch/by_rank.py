"""Whether a value is another one on each rank: the rank is in it, also through names, settings, what functions return
and what their callers give them."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from ddp_lint.knowledge import table
from ddp_lint.launch.callers import CallSite, sites_in_project
from ddp_lint.project import Project
from ddp_lint.project.bound import bound_in
from ddp_lint.project.facts import ModuleFacts, paired
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, below, defaults, holds_line, is_none, parameters, statements, walk

#: Names and calls that are followed from a value to the rank.
_DEPTH = 8
#: Of class evidence for one expression.
_CLASSES = 4
#: Functions that hand on what they are given, in a number or a text.
_PASS_ON = frozenset({"int", "hash", "abs", "max", "min", "sum", "str", "float", "round", "pow", "repr"})
#: Packages whose functions make a value of what they are given.
_COMPUTE = frozenset({"torch", "numpy", "math", "hashlib", "zlib"})
_NAMED = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
_ASSIGNS = (ast.Assign, ast.AugAssign, ast.AnnAssign)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an expression is: its file, the function around it, and the calls that led there, the last one first;
    without any of them all calls count that the project shows."""

    facts: ModuleFacts
    around: FunctionNode | None
    way: tuple[CallSite, ...] = ()

    def called(self, call: ast.Call, facts: ModuleFacts, function: FunctionNode) -> Place:
        """The body of a function that is called here."""
        owner, _ = facts.method_at(function.lineno) or (None, None)
        site = CallSite(self.facts, call, self.around, bound=owner is not None)
        return Place(facts, function, (site, *self.way))

    def callers(self, project: Project) -> tuple[tuple[CallSite, Place], ...]:
        """The calls of the function around, each with the place that it is at."""
        if self.around is None:
            return ()
        sites = self.way[:1] or sites_in_project(project, self.facts, self.around)
        return tuple((site, Place(site.facts, site.around, self.way[1:])) for site in sites)


def is_by_rank(project: Project, value: ast.expr, place: Place) -> bool:
    """Whether the number of the rank takes part in a value; a test of it does not."""
    return _is_by_rank(_Search(project), value, place, _DEPTH)


def takes_rank(project: Project, value: ast.expr, place: Place) -> bool:
    """Whether the number of the rank takes part anywhere in an expression, also in an entry, a slice or a test of it,
    and in what its names are given: ``files[rank::world]``."""
    return _takes_rank(_Search(project), value, place, _DEPTH // 2)


class _Search:
    """One question about the rank, and where it was looked for in vain: many callers may give the same in turn."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._seen: dict[tuple[object, ...], tuple[int, ast.expr, Place]] = {}

    def is_done(self, kind: str, value: ast.expr, place: Place, depth: int) -> bool:
        """Whether a value at a place was looked at before, at this depth or farther; else it is from now on."""
        way = tuple(id(site.node) for site in place.way)
        # What callers have as an attribute of what they give is a node that is made for the question.
        of = (id(value.value), value.attr) if isinstance(value, ast.Attribute) else (id(value),)
        key = (kind, value.lineno, *of, id(place.facts), id(place.around), *way)
        before = self._seen.get(key)
        if before is not None and before[0] >= depth:
            return True
        self._seen[key] = (depth, value, place)
        return False


def _is_by_rank(search: _Search, value: ast.expr, place: Place, depth: int) -> bool:
    if depth <= 0 or search.is_done("value", value, place, depth):
        return False
    return any(_says_rank(search, part, place, depth) for part in _parts(place, value))


def _takes_rank(search: _Search, value: ast.expr, place: Place, depth: int) -> bool:
    if search.is_done("any part", value, place, depth):
        return False
    for part in walk(value):
        if isinstance(part, _NAMED) and _is_by_rank(search, part, place, _DEPTH):
            return True
        for held, at in _sources(search.project, part, place) if depth > 0 else ():
            if _takes_rank(search, held, at, depth - 1):
                return True
    return False


def _sources(project: Project, part: ast.AST, place: Place) -> list[tuple[ast.expr, Place]]:
    """What a name or attribute is given, here or by the callers."""
    if isinstance(part, ast.Attribute):
        return list(_of_attribute(project, part, place))
    if not isinstance(part, ast.Name):
        return []
    assigned = assigned_above(place, part.id, part.lineno)
    if assigned or place.around is None or part.id not in {each.arg for each in parameters(place.around)}:
        return [(value, place) for value in assigned]
    return [(value, at) for value, at in _given(project, part.id, place) if value is not None]


def called_function(project: Project, call: ast.Call, place: Place) -> tuple[ModuleFacts, FunctionNode] | None:
    """The function or method of the project that a call runs."""
    found = project.meanings.definition(project.meanings.of(place.facts, call.func))
    if found is not None and isinstance(found[1], FunctionNode):
        return found[0], found[1]
    if not isinstance(call.func, ast.Attribute):
        return None
    owner = _class_of(project, call.func.value, place)
    for name in project.classes.lineage(owner) if owner else ():
        held = project.meanings.definition(name)
        methods = held[1].body if held is not None and isinstance(held[1], ast.ClassDef) else ()
        for method in methods:
            if held is not None and isinstance(method, FunctionNode) and method.name == call.func.attr:
                return held[0], method
    return None


def _class_of(project: Project, value: ast.expr, place: Place) -> str:
    """The class of an object: as its own file shows it, or as the calls do that hand it over, or its default."""
    cls, around = None, place.around
    if around is not None:
        owner, _ = place.facts.method_at(around.lineno) or (None, None)
        cls = project.classes.of(place.facts, owner) if owner is not None else None
        if cls is not None and isinstance(value, ast.Name) and value.id == "self":
            return cls.name
        found = project.types.of(value, place.facts, around, cls, _CLASSES)
        if found or not isinstance(value, ast.Name):
            return found
        default = next((given for name, given in defaults(around.args) if name.arg == value.id), None)
        if default is not None and not is_none(default):
            return project.types.of(default, place.facts, None, None, _CLASSES)
        kinds = {_class_of(project, given, at) for given, at in _given(project, value.id, place) if given is not None}
        return kinds.pop() if len(kinds) == 1 else ""
    return project.types.of(value, place.facts, None, None, _CLASSES)


def _parts(place: Place, value: ast.AST) -> Iterator[ast.expr]:
    """The names, attributes, entries and calls that a value is computed from."""
    if isinstance(value, (ast.Compare, ast.Lambda)):
        return
    if isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)):
        yield value
        return
    inner: list[ast.AST] = below(value)
    if isinstance(value, ast.Call):
        yield value
        root = place.facts.qualified(value.func).partition(".")[0]
        passes_on = root in _COMPUTE or (isinstance(value.func, ast.Name) and value.func.id in _PASS_ON)
        inner = [*value.args, *(keyword.value for keyword in value.keywords)] if passes_on else []
    elif isinstance(value, ast.IfExp):
        inner = [value.body, value.orelse]
    for each in inner:
        yield from _parts(place, each)


def _says_rank(search: _Search, part: ast.expr, place: Place, depth: int) -> bool:
    names = table("data")["rank_names"]
    if isinstance(part, ast.Call):
        return _returns_rank(search, part, place, depth)
    if isinstance(part, ast.Subscript):
        return _is_variable(part.slice) and last_part(part.value) == "environ"
    if isinstance(part, ast.Attribute):
        if part.attr in names:
            return True
        return any(
            _is_by_rank(search, value, at, depth - 1) for value, at in _of_attribute(search.project, part, place)
        )
    if not isinstance(part, ast.Name):
        return False
    return _is_name_of_rank(search, part, place, depth)


def _returns_rank(search: _Search, call: ast.Call, place: Place, depth: int) -> bool:
    """Whether a call asks for the rank, or runs a function of the project that returns what the rank takes part in."""
    if last_part(call.func) in table("data")["rank_calls"]:
        return True
    if last_part(call.func) in ("get", "getenv") and call.args and _is_variable(call.args[0]):
        return True
    found = called_function(search.project, call, place) if depth > 1 else None
    if found is None:
        return False
    inside = place.called(call, *found)
    returned = (n.value for n in statements(found[1]) if isinstance(n, ast.Return) and n.value is not None)
    return any(_is_by_rank(search, value, inside, depth - 1) for value in returned)


def _is_variable(name: ast.expr) -> bool:
    return isinstance(name, ast.Constant) and name.value in table("data")["rank_variables"]


def _is_name_of_rank(search: _Search, name: ast.Name, place: Place, depth: int) -> bool:
    by_name, around = name.id in table("data")["rank_names"], place.around
    if around is None:
        held = place.facts.values.get(name.id)
        return by_name or (held is not None and _is_by_rank(search, held, place, depth - 1))
    assigned = [v for v in _assigned_before(around, name.id, name.lineno) if not _is_off(search.project, v, place)]
    if assigned:
        return any(_is_by_rank(search, value, place, depth - 1) for value in assigned)
    if name.id in {each.arg for each in parameters(around)}:
        given = _given(search.project, name.id, place)
        if not given:
            return by_name
        return any(value is not None and _is_by_rank(search, value, at, depth - 1) for value, at in given)
    unpacked = bound_in(around).get(name.id, ())
    if unpacked:
        return by_name
    outside = place.facts.values.get(name.id)
    at = Place(place.facts, None)
    return by_name or (outside is not None and _is_by_rank(search, outside, at, depth - 1))


def assigned_above(place: Place, target: str, line: int) -> list[ast.expr]:
    """What a name or attribute is assigned above a line of the function around, or of the file."""
    return list(_assigned_before(place.around or place.facts.tree, target, line))


def _assigned_before(scope: ast.AST, target: str, line: int) -> Iterator[ast.expr]:
    """What a name or attribute is assigned in a function above a line, the last one first, up to one that is assigned
    whatever happens."""
    found = (n for n in statements(scope) if isinstance(n, _ASSIGNS) and (n.end_lineno or n.lineno) < line)
    for node in sorted(found, key=lambda each: each.lineno, reverse=True):
        values = [value for each, value in _assigned(node) if dotted_ast(each) == target]
        yield from values
        if values and not isinstance(node, ast.AugAssign) and node in getattr(scope, "body", ()):
            return


def _assigned(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> list[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment, each with its value, also of ``a, b = x, y``."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [pair for target in targets if node.value is not None for pair in paired(target, node.value)]


def _is_off(project: Project, value: ast.expr, place: Place) -> bool:
    """Whether a value is assigned under a test of a parameter that the calls of the function leave off:
    ``if by_rank: seed += rank``."""
    around = place.around
    branches = (n for n in statements(around) if isinstance(n, ast.If)) if around is not None else ()
    tests = [n.test for n in branches if holds_line(n.body, value.lineno)]
    for test in (each for each in tests if isinstance(each, ast.Name)):
        given = [each for each, _ in _given(project, test.id, place)]
        if given and all(isinstance(each, ast.Constant) and not each.value for each in given):
            return True
    return False


def _given(project: Project, name: str, place: Place) -> list[tuple[ast.expr | None, Place]]:
    """What the calls of the function around give a parameter, each with the place of the call; a default is one."""
    if place.around is None:
        return []
    default = next((given for each, given in defaults(place.around.args) if each.arg == name), None)
    found = []
    for site, at in place.callers(project):
        value = site.given(place.around, name)
        found.append((value, at) if value is not None else (default, Place(place.facts, None)))
    return found


def _of_attribute(project: Project, part: ast.Attribute, place: Place) -> Iterator[tuple[ast.expr, Place]]:
    """What an attribute is given above the place, here or where what holds it comes from; one of ``self`` in any
    constructor of its class."""
    around, text = place.around, dotted_ast(part)
    if around is None or not text:
        return
    assigned = list(_assigned_before(around, text, part.lineno))
    yield from ((value, place) for value in assigned)
    root = part.value.id if isinstance(part.value, ast.Name) else ""
    if assigned or not root:
        return
    owner, _ = place.facts.method_at(around.lineno) or (None, None)
    if root == "self" and owner is not None:
        made = (n for n in owner.body if isinstance(n, FunctionNode) and n.name == "__init__" and n is not around)
        for method in made:
            last = (method.end_lineno or method.lineno) + 1
            yield from ((value, Place(place.facts, method)) for value in _assigned_before(method, text, last))
    elif root in {each.arg for each in parameters(around)}:
        for site, at in place.callers(project):
            held = site.given(around, root)
            if isinstance(held, (ast.Name, ast.Attribute)):
                yield ast.copy_location(ast.Attribute(held, part.attr, ast.Load()), site.node), at

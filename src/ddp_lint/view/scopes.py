"""What is known of a local name: where it is bound, to what, and as an instance of which class."""

from __future__ import annotations

import ast
import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import libcst as cst

from ddp_lint.project.types import is_class_name, named
from ddp_lint.source.parsing import parse_expression
from ddp_lint.source.tree import children, dotted, parameters_of, positional_of

if TYPE_CHECKING:
    from ddp_lint.view.module import Module

_SCOPES = (cst.Module, cst.FunctionDef, cst.Lambda, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
_DEFINITIONS = {*_SCOPES, cst.ClassDef}
_DEPTH = 8


@dataclasses.dataclass(eq=False, slots=True)
class Binding:
    """One place that binds a name (or a dotted target such as ``self.model``).

    `kind`: assign, augment, parameter, with, for, except, import, function, class, delete.
    `node`: the statement, parameter, `with` item or import alias. `value`: the assigned expression, the parameter's
    default, the context manager or the iterable. `index`: where inside `value` the name is unpacked from, () for all
    of it: in ``model, opt = prepare(model, opt)`` the bindings have the same value and the indices (0,) and (1,).
    `order`: grows in source order inside a scope.
    """

    name: str
    kind: str
    node: cst.CSTNode
    value: cst.BaseExpression | None = None
    index: tuple[int, ...] = ()
    annotation: cst.BaseExpression | None = None
    order: int = 0


class Scopes:
    """The bindings of one module, scope by scope, each computed at its first use."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._bound: dict[cst.CSTNode, dict[str, list[Binding]]] = {}
        self._orders: dict[cst.CSTNode, dict[cst.CSTNode, int]] = {}
        self._on_self: dict[cst.ClassDef, dict[str, list[Binding]]] = {}
        #: By the import statement of a function: what its names refer to.
        self._imported: dict[cst.CSTNode, dict[str, str]] = {}
        self._classes: dict[tuple[cst.BaseExpression, int], str] = {}
        self._around: dict[cst.CSTNode, tuple[cst.CSTNode, ...]] = {module.tree: (module.tree,)}
        self._walrus = ":=" in module.file.text

    # ---- bindings

    def bindings(self, name: str, at: cst.CSTNode) -> list[Binding]:
        """The bindings of a name or dotted name as seen from `at`, in source order, those after `at` included.

        ``self.x`` in a method: wherever a method of the class assigns it, and `x` in the class body.
        """
        first, dot, rest = name.partition(".")
        scope = self.scope_of(first, at)
        if dot:
            owner = self._class_of_self(first, scope)
            if owner is not None and "." not in rest:
                return self._attributes(owner).get(rest, [])
            # An attribute is set where it is assigned: in a function, of an object that the module or other code
            # created.
            around = (self.bound_in(s).get(name) for s in self._scopes_around(at))
            return next(filter(None, around), [])
        return self.bound_in(scope).get(name, []) if scope is not None else []

    def scope_of(self, name: str, at: cst.CSTNode) -> cst.CSTNode | None:
        """The node of the scope that binds a simple name as seen from `at`; None for a builtin or an unknown."""
        for number, scope in enumerate(self._scopes_around(at)):
            if isinstance(scope, cst.ClassDef) and number:
                continue
            bound = self.bound_in(scope).get(name)
            if bound and bound[0].kind == "global":
                return self._module.tree if self.bound_in(self._module.tree).get(name) else None
            if bound and bound[0].kind != "nonlocal":
                return scope
        return None

    def _scopes_around(self, at: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
        """The nodes of the scopes that `at` is evaluated in, from the inside outwards."""
        unknown: list[cst.CSTNode] = []
        up: cst.CSTNode | None = at
        while up is not None and up not in self._around:
            unknown.append(up)
            up = self._module.parent(up)
        found = self._around[up] if up is not None else ()
        for node in reversed(unknown):
            if up is not None and up is not self._module.tree and type(up) in _DEFINITIONS and _is_inside(node, up):
                found = (up, *found)
            self._around[node] = found
            up = node
        return found

    def bound_in(self, scope: cst.CSTNode) -> dict[str, list[Binding]]:
        """Name to bindings of one scope."""
        if scope not in self._bound:
            self._bound[scope], self._orders[scope] = self._collected(scope)
        return self._bound[scope]

    def _collected(self, scope: cst.CSTNode) -> tuple[dict[str, list[Binding]], dict[cst.CSTNode, int]]:
        kept = self._module.kept
        if kept is None or isinstance(scope, (cst.Module, cst.ClassDef)):
            return _collect(scope, self._walrus)
        found = kept.bound.get((scope, self._walrus))
        if found is None:
            found = kept.bound[scope, self._walrus] = _collect(scope, self._walrus)
        return found

    def _class_of_self(self, first: str, scope: cst.CSTNode | None) -> cst.ClassDef | None:
        """The class whose instance `first` is by being the first parameter of a method."""
        if not isinstance(scope, cst.FunctionDef):
            return None
        names = [p.name.value for p in positional_of(scope)]
        owner = self._module.parent(self._module.parent(scope) or scope)
        if not isinstance(owner, cst.ClassDef) or names[:1] != [first]:
            return None
        return owner if not any(dotted(each.decorator) == "staticmethod" for each in scope.decorators) else None

    def _attributes(self, owner: cst.ClassDef) -> dict[str, list[Binding]]:
        if owner not in self._on_self:
            found: dict[str, list[Binding]] = {
                name: list(bindings) for name, bindings in self.bound_in(owner).items() if "." not in name
            }
            for statement in owner.body.body:
                if isinstance(statement, cst.FunctionDef):
                    parameters = positional_of(statement)
                    prefix = f"{parameters[0].name.value}." if parameters else ""
                    for name, bindings in self.bound_in(statement).items():
                        attribute = name.removeprefix(prefix)
                        if prefix and attribute != name and "." not in attribute:
                            found.setdefault(attribute, []).extend(bindings)
            self._on_self[owner] = found
        return self._on_self[owner]

    def before(self, binding: Binding, at: cst.CSTNode) -> bool:
        """Whether `at` comes after a binding of the same scope in the source (a place elsewhere counts as after)."""
        for scope in self._scopes_around(at):
            order = self._orders.get(scope, {})
            if binding.node in order:
                place = self._place(at, order)
                # The right side of an assignment still sees what the name was before.
                return place is None or (place > order[binding.node] and not self._within(at, binding.node))
        return True

    def last_before(self, bindings: Sequence[Binding], at: cst.CSTNode) -> Iterator[Binding]:
        """Those of the bindings of one name that come before `at`, the last first."""
        end = len(bindings)
        scope = next((s for s in self._scopes_around(at) if end and bindings is self._ordered(s, bindings[0])), None)
        if scope is not None and (place := self._place(at, self._orders[scope])) is not None:
            end = bisect.bisect_right(bindings, place, key=lambda binding: binding.order)
        return (bindings[number] for number in range(end - 1, -1, -1) if self.before(bindings[number], at))

    def _ordered(self, scope: cst.CSTNode, binding: Binding) -> list[Binding] | None:
        """All bindings of a name in a scope, where they are in the order of the source."""
        declared = binding.kind in ("global", "nonlocal")  # comes first wherever it is
        return None if declared else self._bound.get(scope, {}).get(binding.name)

    def _place(self, at: cst.CSTNode, order: dict[cst.CSTNode, int]) -> int | None:
        """Where in the order of a scope's statements `at` is; None where it is in none of them."""
        place: cst.CSTNode | None = at
        while place is not None and place not in order:
            place = self._module.parent(place)
        return order[place] if place is not None else None

    def _within(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        return node is outer or any(a is outer for a in self._module.ancestors(node))

    def import_of(self, binding: Binding) -> str | None:
        """The absolute dotted name that an import inside a function binds."""
        statement = self._module.parent(binding.node)
        if not isinstance(statement, (cst.Import, cst.ImportFrom)):
            return None
        if statement not in self._imported:  # once for all of its names, of which there may be thousands
            parsed = ast.parse(self._module.tree.code_for_node(statement))
            self._imported[statement] = self._module.import_table(parsed).names
        return self._imported[statement].get(binding.name)

    # ---- classes

    def constructed_by(self, node: cst.BaseExpression, depth: int = _DEPTH) -> str:
        """The canonical name of the class that an expression is an instance of; '' where it is not known."""
        if not depth:
            return ""
        if (node, depth) not in self._classes:  # names that are assigned to each other lead to it by very many ways
            self._classes[node, depth] = self._constructed_by(node, depth)
        return self._classes[node, depth]

    def _constructed_by(self, node: cst.BaseExpression, depth: int) -> str:
        if isinstance(node, cst.Await):
            node = node.expression
        if isinstance(node, cst.Call):
            return self._module.types.of_call(self.callee(node, depth - 1)) if self._module.types else ""
        if isinstance(node, cst.IfExp):
            return self.constructed_by(node.body, depth - 1) or self.constructed_by(node.orelse, depth - 1)
        if isinstance(node, cst.BooleanOperation):
            return self.constructed_by(node.left, depth - 1) or self.constructed_by(node.right, depth - 1)
        if isinstance(node, cst.NamedExpr):
            return self.constructed_by(node.value, depth - 1)
        name = dotted(node)
        if not name:
            return ""
        return self._by_bindings(name, node, depth) or self._by_attribute(node, depth)

    def _by_bindings(self, name: str, node: cst.BaseExpression, depth: int) -> str:
        bindings = self.bindings(name, node)
        earlier = self.last_before(bindings, node)
        last = next(earlier, None)
        for binding in itertools.chain([last], earlier) if last is not None else reversed(bindings):
            kind = self._of_binding(binding, depth)
            if kind:
                return kind
            if binding.kind == "assign" and binding.value is not None and binding.index:
                return ""  # unpacked from a call that nothing is known of: older bindings say nothing any more
        return ""

    def _of_binding(self, binding: Binding, depth: int) -> str:
        if binding.annotation is not None:
            kind = self.annotated(binding.annotation)
            if kind:
                return kind
        if binding.kind == "parameter":
            function = self._module.function_of(binding.node)
            owner = self._class_of_self(binding.name, function)
            if owner is not None:
                return self._module.name_of(owner)
            return self.constructed_by(binding.value, depth - 1) if binding.value is not None else ""
        if binding.kind in {"assign", "with"} and binding.value is not None and not binding.index:
            return self.constructed_by(binding.value, depth - 1)
        return ""

    def _by_attribute(self, node: cst.BaseExpression, depth: int) -> str:
        if not isinstance(node, cst.Attribute) or self._module.types is None:
            return ""
        owner = self.constructed_by(node.value, depth - 1)
        return self._module.types.of_attribute(owner, node.attr.value) if owner else ""

    def annotated(self, annotation: cst.BaseExpression) -> str:
        """The canonical name of the class that an annotation names, through quotes, `Optional` and ``| None``."""
        parts = named(parse_expression(self._module.code(annotation)))
        names = (self._module.meaning(ast.unparse(part)) for part in parts)
        return next((name for name in names if is_class_name(name)), "")

    def callee(self, call: cst.Call, depth: int = _DEPTH) -> str:
        """The canonical name of what is called: an imported function, a class or function of this file, or a method
        by the class of its receiver: ``accelerator.wait_for_everyone`` -> ``accelerate.Accelerator.wait_for_everyone``.
        '' where it is not known."""
        name = self._module.qualified(call.func) or self._defined_here(call.func)
        if name or not isinstance(call.func, cst.Attribute):
            return name
        owner = self.constructed_by(call.func.value, depth)
        return f"{owner}.{call.func.attr.value}" if owner else ""

    def _defined_here(self, func: cst.BaseExpression) -> str:
        if isinstance(func, cst.Name) and self.scope_of(func.value, func) in (None, self._module.tree):
            return self._module.meaning(func.value)
        return ""


# ---- collecting the bindings of one scope


def _collect(scope: cst.CSTNode, walrus: bool) -> tuple[dict[str, list[Binding]], dict[cst.CSTNode, int]]:
    """The bindings of a scope, and the order of its statements. Expressions are entered for `walrus` operators only."""
    found: dict[str, list[Binding]] = {}
    order: dict[cst.CSTNode, int] = {}
    for binding in _parameters(scope):
        found.setdefault(binding.name, []).append(binding)
        order[binding.node] = -1
    comprehension = isinstance(scope, _COMPREHENSIONS)
    stack = list(_roots(scope))[::-1]
    while stack:
        node = stack.pop()
        kind = type(node)
        if not walrus and not comprehension and _is_expression(kind):
            continue
        order[node] = len(order)
        binds = _BINDERS.get(kind)
        if binds is not None and (not comprehension or kind is cst.CompFor):
            for binding in binds(node):
                binding.order = order[node]
                found.setdefault(binding.name, []).append(binding)
        stack.extend(reversed(list(_evaluated_outside(node)) if kind in _DEFINITIONS else children(node)))
    for bindings in found.values():
        bindings.sort(key=lambda b: (b.kind not in {"global", "nonlocal"}, b.order))
    return found, order


@functools.cache
def _is_expression(kind: type[cst.CSTNode]) -> bool:
    return issubclass(kind, cst.BaseExpression)


def _roots(scope: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes of a scope that are evaluated inside it."""
    if isinstance(scope, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
        yield scope.body
    else:
        yield from children(scope)


def _evaluated_outside(definition: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What a nested definition evaluates in the scope around it: decorators, defaults, bases; walrus targets leak out
    of comprehensions."""
    for child in children(definition):
        if isinstance(definition, _COMPREHENSIONS):
            if isinstance(child, cst.CompFor):
                yield child.iter
        elif child is not definition.body:  # type: ignore[attr-defined]
            yield child


def _is_inside(node: cst.CSTNode, scope: cst.CSTNode) -> bool:
    """Whether the direct child `node` of a scope is evaluated in it (a function's body, not its decorators)."""
    if isinstance(scope, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
        return node is scope.body or isinstance(node, cst.Parameters)
    return True


def _parameters(scope: cst.CSTNode) -> Iterator[Binding]:
    if not isinstance(scope, (cst.FunctionDef, cst.Lambda)):
        return
    params = scope.params
    stars = [p for p in (params.star_arg, params.star_kwarg) if isinstance(p, cst.Param)]
    for param in parameters_of(scope):
        annotation = param.annotation.annotation if param.annotation else None
        yield Binding(param.name.value, "parameter", param, param.default, annotation=annotation)
    for param in stars:
        yield Binding(param.name.value, "parameter", param)


def _targets(
    target: cst.CSTNode, value: cst.BaseExpression | None, kind: str, node: cst.CSTNode, index: tuple[int, ...] = ()
) -> Iterator[Binding]:
    if isinstance(target, (cst.Tuple, cst.List)):
        parts = value.elements if isinstance(value, (cst.Tuple, cst.List)) and not index else ()
        paired = len(parts) == len(target.elements) and not any(
            isinstance(e, cst.StarredElement) for e in (*parts, *target.elements)
        )
        for number, element in enumerate(target.elements):
            if paired:
                yield from _targets(element.value, parts[number].value, kind, node)
            else:
                yield from _targets(element.value, value, kind, node, (*index, number))
    elif isinstance(target, cst.StarredElement):
        yield from _targets(target.value, value, kind, node, index)
    elif name := dotted(target):
        yield Binding(name, kind, node, value, index)


def _assign(node: cst.Assign) -> Iterator[Binding]:
    for target in node.targets:
        yield from _targets(target.target, node.value, "assign", node)


def _annotated_assign(node: cst.AnnAssign) -> Iterator[Binding]:
    for binding in _targets(node.target, node.value, "assign", node):
        binding.annotation = node.annotation.annotation
        yield binding


def _with_item(node: cst.WithItem) -> Iterator[Binding]:
    if node.asname is not None:
        yield from _targets(node.asname.name, node.item, "with", node)


def _except(node: cst.ExceptHandler) -> Iterator[Binding]:
    if node.name is not None:
        yield from _targets(node.name.name, None, "except", node)


def _import_alias(node: cst.ImportAlias) -> Iterator[Binding]:
    name = dotted(node.asname.name) if node.asname else dotted(node.name).partition(".")[0]
    yield Binding(name, "import", node)


def _declared(node: cst.Global | cst.Nonlocal) -> Iterator[Binding]:
    kind = "global" if isinstance(node, cst.Global) else "nonlocal"
    return (Binding(item.name.value, kind, node) for item in node.names)


def _match_as(node: cst.MatchAs) -> Iterator[Binding]:
    if node.name is not None:
        yield Binding(node.name.value, "assign", node)


#: The bindings that a node makes by itself, not through its children.
_BINDERS: dict[type[cst.CSTNode], Callable[[Any], Iterator[Binding]]] = {
    cst.Assign: _assign,
    cst.AnnAssign: _annotated_assign,
    cst.AugAssign: lambda node: _targets(node.target, node.value, "augment", node),
    cst.NamedExpr: lambda node: _targets(node.target, node.value, "assign", node),
    cst.For: lambda node: _targets(node.target, node.iter, "for", node),
    cst.CompFor: lambda node: _targets(node.target, node.iter, "for", node),
    cst.WithItem: _with_item,
    cst.ExceptHandler: _except,
    cst.FunctionDef: lambda node: iter([Binding(node.name.value, "function", node)]),
    cst.ClassDef: lambda node: iter([Binding(node.name.value, "class", node)]),
    cst.ImportAlias: _import_alias,
    cst.Global: _declared,
    cst.Nonlocal: _declared,
    cst.Del: lambda node: _targets(node.target, None, "delete", node),
    cst.MatchAs: _match_as,
}

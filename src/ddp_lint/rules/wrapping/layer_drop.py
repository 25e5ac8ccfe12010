"""Layers that a forward leaves out at random while it trains: LayerDrop, stochastic depth over a list of layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.launch.callers import constructions
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.imports import of_self
from ddp_lint.source.tree import called, descendants, parameters_of
from ddp_lint.view import Module

#: What draws a number from 0 to 1.
_DRAWS = frozenset(
    {
        "random.random",
        "random.uniform",
        "numpy.random.rand",
        "numpy.random.random",
        "numpy.random.uniform",
        "torch.rand",
    }
)
#: The bounds that `uniform` may be given.
_UNIT: tuple[list[str], ...] = ([], ["0", "1"], ["0.0", "1.0"])


def dropped_layers(module: Module, owner: cst.ClassDef) -> Iterator[tuple[cst.BaseExpression, str]]:
    """The tests of a module's forward that leave a layer of a list out at random, each with the list's name: ``for
    layer in self.layers: if self.training and random.random() < 0.1: continue``. Only where the layer is used in no
    other way, and the probability is a number between 0 and 1."""
    forward = next((n for n in owner.body.body if isinstance(n, cst.FunctionDef) and n.name.value == "forward"), None)
    loops = [n for n in descendants(forward.body) if isinstance(n, cst.For)] if forward is not None else []
    for loop in loops:
        layer, layers = _layer_of(loop)
        if not layer or not _is_list(module, owner, layers):
            continue
        uses = [n for n in descendants(loop.body) if isinstance(n, cst.Name) and n.value == layer]
        calls = [n for n in descendants(loop.body) if isinstance(n, cst.Call) and dotted(n.func) == layer]
        inside = set(descendants(loop.body))
        tests = [{(test, taken) for test, taken in conditions(module, use) if test in inside} for use in uses]
        for test, taken in set.intersection(*tests) if calls else ():
            if _is_drawn(module, owner, test, taken):
                yield test, layers


def _layer_of(loop: cst.For) -> tuple[str, str]:
    """The name of one layer, and that of the list: of ``for i, layer in enumerate(self.layers)`` too."""
    over = loop.iter
    target: cst.BaseExpression = loop.target
    if isinstance(over, cst.Call) and dotted(over.func) == "enumerate" and len(over.args) == 1:
        over = over.args[0].value
        target = target.elements[-1].value if isinstance(target, cst.Tuple) else over
    return (target.value, dotted(over)) if isinstance(target, cst.Name) and of_self(dotted(over)) else ("", "")


def _is_list(module: Module, owner: cst.ClassDef, layers: str) -> bool:
    values = [b.value for b in module.bindings(layers, _first(owner))]
    made = [v for v in values if isinstance(v, cst.Call) and module.qualified(v.func) == "torch.nn.ModuleList"]
    return len(values) == len(made) == 1


def _first(owner: cst.ClassDef) -> cst.CSTNode:
    """A place in a method, from which attributes of ``self`` are looked up."""
    return next(n for n in owner.body.body if isinstance(n, cst.FunctionDef)).body


def _is_drawn(module: Module, owner: cst.ClassDef, test: cst.BaseExpression, taken: bool) -> bool:
    """Whether chance alone, and training, decide a test that must have this outcome for the layer to be used."""
    joined = cst.Or if taken else cst.And  # `not self.training or draw > p`, `self.training and draw < p`
    parts = [test]
    while isinstance(parts[0], cst.BooleanOperation):
        if not isinstance(parts[0].operator, joined):
            return False
        parts[:1] = [parts[0].left, parts[0].right]
    draws = [part for part in parts if _is_draw(module, owner, part)]
    trains = [part for part in parts if dotted(_without_not(part, taken)) == "self.training"]
    return len(draws) == 1 and len(draws) + len(trains) == len(parts)


def _without_not(part: cst.BaseExpression, negated: bool) -> cst.BaseExpression | None:
    if not negated:
        return part
    return part.expression if isinstance(part, cst.UnaryOperation) and isinstance(part.operator, cst.Not) else None


def _is_draw(module: Module, owner: cst.ClassDef, part: cst.BaseExpression) -> bool:
    """``random.random() < self.layerdrop``, also through a name that holds the number."""
    if not isinstance(part, cst.Comparison) or len(part.comparisons) != 1:
        return False
    sides = [part.left, part.comparisons[0].comparator]
    drawn = [side for side in sides if _draws(module, side)]
    if len(drawn) != 1 or not isinstance(
        part.comparisons[0].operator, (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)
    ):
        return False
    return _is_probability(module, owner, next(side for side in sides if side is not drawn[0]))


def _draws(module: Module, side: cst.BaseExpression) -> bool:
    if isinstance(side, cst.Name):
        values = [b.value if not b.index else None for b in module.bindings(side)]
        return len(values) == 1 and values[0] is not None and _draws(module, values[0])
    if not isinstance(side, cst.Call):
        return False
    if called(side) == "item" and isinstance(side.func, cst.Attribute):
        return _draws(module, side.func.value)
    if module.qualified(side.func) not in _DRAWS:
        return False
    return called(side) != "uniform" or [module.code(arg.value) for arg in side.args] in (
        [],
        ["0", "1"],
        ["0.0", "1.0"],
    )


def _is_probability(module: Module, owner: cst.ClassDef, value: cst.BaseExpression) -> bool:
    """Whether a value is between 0 and 1: a number, or an attribute that every object of the class gets such a one
    for."""
    if not of_self(dotted(value)):
        return _is_between(value)
    bound = module.bindings(dotted(value), _first(owner))
    given = bound[0].value if len(bound) == 1 and bound[0].kind == "assign" and not bound[0].index else None
    around = module.function_of(bound[0].node) if given is not None else None
    if given is None or around is None or around.name.value != "__init__":
        return False
    parameter = next((p for p in parameters_of(around) if p.name.value == dotted(given)), None)
    if parameter is None:
        return _is_between(given)
    if any(b.kind != "parameter" for b in module.bindings(parameter.name, around.body)):
        return False
    sites = constructions(module, owner)
    by_default = parameter.default is not None and _is_between(parameter.default)
    values = [(site, site.given(around, parameter.name.value)) for site in sites]
    return bool(values) and all(
        not site.has_stars()
        and (by_default if each is None else isinstance(each, ast.Constant) and _between(each.value))
        for site, each in values
    )


def _is_between(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Float) and _between(value.evaluated_value)


def _between(value: object) -> bool:
    return isinstance(value, float) and 0 < value < 1

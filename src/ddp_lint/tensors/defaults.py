"""What no call of the project asks for: arms that need another value of a parameter than its default."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.launch.texts import is_installed, named_in_texts
from ddp_lint.source import Module, dotted
from ddp_lint.source.control_flow import conditions, conjuncts
from ddp_lint.source.tree import descendants, positional_of
from ddp_lint.source.wraps import argument
from ddp_lint.tensors.callers import sites_of

#: Defaults that a test of the parameter itself finds false.
_FALSE = ("False", "None", "0", "''", '""')


def needs_other_than_default(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is reached only where a parameter has another value than its default, which no call in the
    project gives it: ``def save(state, is_best=False): if is_best: (here)``. False where calls may not be seen: a
    package that is installed, a function that is handed on or that a text of the project names."""
    return any(
        _keeps_default(module, name, defaults)
        for test, taken in conditions(module, node)
        for name, defaults in _asked(test, taken)
    )


def _asked(test: cst.BaseExpression, taken: bool) -> Iterator[tuple[cst.Name, tuple[str, ...]]]:
    """The names that a test asks for on this way, each with the defaults for which the way is not taken."""
    for part in conjuncts(test) if taken else (test,):
        if isinstance(part, cst.UnaryOperation) and isinstance(part.operator, cst.Not):
            yield from _asked(part.expression, not taken)
        elif isinstance(part, cst.Name) and taken:
            yield part, _FALSE
        elif isinstance(part, cst.Comparison) and isinstance(part.left, cst.Name) and len(part.comparisons) == 1:
            other = part.comparisons[0]
            without = cst.IsNot if taken else cst.Is
            if isinstance(other.operator, without) and dotted(other.comparator) == "None":
                yield part.left, ("None",)


def _keeps_default(module: Module, name: cst.Name, defaults: tuple[str, ...]) -> bool:
    project, function, bound = module.project, module.function_of(name), module.bindings(name)
    if project is None or function is None or len(bound) != 1 or bound[0].kind != "parameter":
        return False
    default = bound[0].value
    if default is None or module.code(default) not in defaults or is_installed(project):
        return False
    word = function.name.value
    if module.function_of(bound[0].node) is not function or named_in_texts(project, word):
        return False
    if module.function_of(function) is not None:
        return _is_left_out_around(module, function, name.value)
    sites = sites_of(module, function)
    return bool(sites) and all(_leaves_out(site.node) and site.given(function, name.value) is None for site in sites)


def _is_left_out_around(module: Module, function: cst.FunctionDef, name: str) -> bool:
    """Whether the function around another one only calls that, and gives it no such argument."""
    outer, places = module.function_of(function), [p.name.value for p in positional_of(function)]
    if outer is None or name not in places or module.class_of(function) is not None:
        return False
    word = function.name.value
    like = (n for n in descendants(outer) if isinstance(n, cst.Name) and n.value == word and n is not function.name)
    used = [n for n in like if getattr(module.parent(n), "attr", None) is not n]  # not the ``save`` of ``torch.save``
    calls = [up for n in used if isinstance(up := module.parent(n), cst.Call)]
    if not calls or len(calls) != len(used) or any(arg.star for call in calls for arg in call.args):
        return False
    return all(argument(call, places.index(name), name) is None for call in calls)


def _leaves_out(call: ast.Call) -> bool:
    """Whether all that a call gives is seen."""
    stars = any(isinstance(argument, ast.Starred) for argument in call.args)
    return not stars and all(keyword.arg is not None for keyword in call.keywords)

"""Where a number comes from: the global rank, the local rank."""

from __future__ import annotations

import functools
import re

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.source import Module, dotted
from ddp_lint.source.scopes import Binding

_DEPTH = 4
_CASTS = ("int", "str")
_ENVIRONMENT = ("os.environ.get", "os.getenv", "os.environ.pop", "os.environ.setdefault")


@functools.cache
def _known(section: str, kind: str) -> frozenset[str]:
    return frozenset(table("devices")[section].get(kind, ()))


def rank_source(module: Module, node: cst.BaseExpression, section: str, depth: int = _DEPTH) -> cst.CSTNode | None:
    """The expression that yields the rank (`section`: global_rank or local_rank) that `node` holds unchanged.

    Looks through ``int(...)``, and through a name that is bound to such a rank on one path and to a constant or the
    other kind of rank on the rest.
    None where the value was computed with (``% device_count()``), or nothing proves what it is.
    """
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in _CASTS and node.args:
        return rank_source(module, node.args[0].value, section, depth)
    if variable_read(module, node) in _known(section, "environment"):
        return node
    if isinstance(node, cst.Call):
        group = next((a for a in node.args if a.keyword is None or a.keyword.value == "group"), None)
        return node if module.qualified(node.func) in _known(section, "calls") and group is None else None
    if isinstance(node, cst.IfExp):
        return _either(module, node, section, depth)
    if not isinstance(node, (cst.Name, cst.Attribute)) or not depth:
        return None
    return _bound_to(module, node, section, depth) or _attribute(module, node, section)


def _either(module: Module, node: cst.IfExp, section: str, depth: int) -> cst.CSTNode | None:
    arms = [arm for arm in (node.body, node.orelse) if not is_constant(arm)]
    found = [rank_source(module, arm, section, depth) for arm in arms]
    return found[0] if found and all(found) else None


def _bound_to(module: Module, node: cst.BaseExpression, section: str, depth: int) -> cst.CSTNode | None:
    bound = [b for b in module.bindings(node) if b.kind == "assign" and not b.index]
    sources = {b: rank_source(module, b.value, section, depth - 1) for b in bound if b.value is not None}
    if not any(sources.values()):
        return None  # most names: no need to ask where their bindings stand
    other = "local_rank" if section == "global_rank" else "global_rank"
    found: list[cst.CSTNode] = []
    for binding in _before(module, node):
        source = sources.get(binding)
        if source is not None:
            found.append(source)
        elif binding not in sources or not _is_harmless(module, binding.value, other, depth):
            return None
    return found[0] if found else None


def _is_harmless(module: Module, value: cst.BaseExpression | None, other: str, depth: int) -> bool:
    """Whether a name may be bound to the value besides: a constant, the other kind of rank."""
    return value is not None and (is_constant(value) or rank_source(module, value, other, depth - 1) is not None)


def _before(module: Module, node: cst.BaseExpression) -> list[Binding]:
    """The bindings of a name that its use can see: not those further down in the same function, unless in a loop."""
    bindings, function = module.bindings(node), module.function_of(node)
    if any(isinstance(up, (cst.For, cst.While)) for up in module.ancestors(node)):
        return bindings
    line = module.span(node).line
    seen = [b for b in bindings if module.function_of(b.node) is not function or module.span(b.node).line <= line]
    return seen or bindings


def is_constant(node: cst.BaseExpression) -> bool:
    """A number (also negative), a string, or None."""
    inner = node.expression if isinstance(node, cst.UnaryOperation) else node
    return isinstance(inner, (cst.Integer, cst.SimpleString)) or dotted(inner) == "None"


def variable_read(module: Module, node: cst.BaseExpression) -> str:
    """`RANK` for ``os.environ["RANK"]``, ``os.environ.get("RANK", 0)``, ``os.getenv("RANK")``; else ''."""
    if isinstance(node, cst.Subscript) and module.qualified(node.value) == "os.environ" and len(node.slice) == 1:
        index = node.slice[0].slice
        return _text(index.value) if isinstance(index, cst.Index) else ""
    if isinstance(node, cst.Call) and module.qualified(node.func) in _ENVIRONMENT and node.args:
        return _text(node.args[0].value)
    return ""


def _text(node: cst.BaseExpression) -> str:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else ""
    return value if isinstance(value, str) else ""


def _attribute(module: Module, node: cst.BaseExpression, section: str) -> cst.CSTNode | None:
    """Attributes that are the global rank by their name, where the local one stands beside it."""
    if section != "global_rank" or not isinstance(node, cst.Attribute):
        return None
    name = node.attr.value
    if name in _known(section, "attributes"):
        return node
    if name not in _known(section, "beside_local"):
        return None
    return node if any(re.search(rf"\b{word}\b", _home(module, node)) for word in _known(section, "local")) else None


def _home(module: Module, node: cst.Attribute) -> str:
    """The text of the class or module that defines the object whose attribute `node` is."""
    owner = node.value
    if isinstance(owner, cst.Name) and owner.value == "self":
        definition = module.class_of(node)
        return module.tree.code_for_node(definition) if definition is not None else ""
    made = owner.func if isinstance(owner, cst.Call) else owner
    name = module.qualified(made)
    found = module.project.split(name) if name and module.project is not None else None
    return found[0].file.text if found and found[1] else ""

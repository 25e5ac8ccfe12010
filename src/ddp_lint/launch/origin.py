"""Where a number comes from: the global rank, the local rank."""

from __future__ import annotations

import ast
import functools
import re
import weakref

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.knowledge.communication import load
from ddp_lint.knowledge.project_names import rank_value
from ddp_lint.launch.callers import sites_of
from ddp_lint.launch.environment import READS, variable_read
from ddp_lint.launch.helpers import Helper, helper_of
from ddp_lint.project.facts import ModuleFacts, statements_of
from ddp_lint.project.parts import assigned_to
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, walk
from ddp_lint.source.tree import descendants
from ddp_lint.view import Module
from ddp_lint.view.scopes import Binding
from ddp_lint.view.wraps import argument

_DEPTH = 4
_JOIN = "torch.distributed.init_process_group"
_CASTS = ("int", "str")


#: What names hold, for each module.
_named: weakref.WeakKeyDictionary[Module, dict[tuple[cst.CSTNode, str, int], cst.CSTNode | None]] = (
    weakref.WeakKeyDictionary()
)


@functools.cache
def _known(section: str, kind: str) -> frozenset[str]:
    """What is known to hold a rank (`section`: global_rank or local_rank): calls, environment variables, attributes."""
    if kind not in ("call", "environment"):
        return frozenset(table("devices")[section].get(kind, ()))
    value = {"global_rank": "rank"}.get(section, section)
    return frozenset(name for (what, name), rank in load().ranks.items() if what == kind and rank.value == value)


def rank_source(module: Module, node: cst.BaseExpression, section: str, depth: int = _DEPTH) -> cst.CSTNode | None:
    """The expression that yields the rank (`section`: global_rank or local_rank) that `node` holds unchanged.

    Looks through ``int(...)``, and through a name that is bound to such a rank on one path and to a constant or the
    other kind of rank on the rest.
    None where the value was computed with (``% device_count()``), or nothing proves what it is.
    """
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in _CASTS and node.args:
        return rank_source(module, node.args[0].value, section, depth)
    variable = variable_read(module, node)
    if variable in _known(section, "environment") or _is_configured(module, node, variable, section):
        return node
    if isinstance(node, cst.Call):
        group = next((a for a in node.args if a.keyword is None or a.keyword.value == "group"), None)
        own = module.qualified(node.func) in _known(section, "call") and group is None
        return node if own or returns_rank(module, node, (), section) else None
    if isinstance(node, cst.IfExp):
        return _either(module, node, section, depth)
    if not isinstance(node, (cst.Name, cst.Attribute)) or not depth:
        return None
    known = _named.setdefault(module, {})
    if (node, section, depth) not in known:  # names that are assigned to each other lead to it by very many ways
        found = (
            _bound_to(module, node, section, depth)
            or _attribute(module, node, section)
            or _set_elsewhere(module, node, section)
            or _given(module, node, section)
            or _registered(module, node, section)
        )
        known[node, section, depth] = found
    return known[node, section, depth]


def _is_configured(module: Module, node: cst.BaseExpression, variable: str, section: str) -> bool:
    """Whether the configuration says that an expression, or the environment variable that it reads, holds the rank."""
    if module.project is None or not module.project.own.ranks:
        return False
    given = isinstance(node, cst.Call) and bool(node.args) and not variable
    listed = "" if given else module.project.own.ranks.find(variable) or module.listed("ranks", node)
    counted = any(binding.kind == "for" for binding in module.bindings(node)) if listed else False
    return bool(listed) and not counted and rank_value(listed) == {"global_rank": "rank"}.get(section, section)


def returns_rank(module: Module, call: cst.Call, index: tuple[int, ...], section: str) -> bool:
    """Whether a function of the project, called with nothing, returns the rank there or a constant."""
    helper = helper_of(module, call) if not call.args else None
    if helper is None:
        return False
    returned = [helper.part(value, index) for value in helper.returned]
    found = [value for value in returned if value is None or not isinstance(value, ast.Constant)]
    return bool(found) and all(value is not None and _is_rank(helper, value, section) for value in found)


def _is_rank(helper: Helper, value: ast.expr, section: str, depth: int = _DEPTH) -> bool:
    if isinstance(value, ast.Name) and depth:
        values = [v for v in assigned_to(value.id, helper.function) if not isinstance(v, ast.Constant)]
        return bool(values) and all(_is_rank(helper, v, section, depth - 1) for v in values)
    if isinstance(value, ast.Attribute):
        return _is_set_to_rank(helper.facts, dotted_ast(value), section, depth)
    if isinstance(value, ast.Subscript):
        return helper.facts.qualified(value.value) == "os.environ" and _key(value.slice) in _known(
            section, "environment"
        )
    if not isinstance(value, ast.Call):
        return False
    name = helper.facts.qualified(value.func)
    if isinstance(value.func, ast.Name) and value.func.id in _CASTS and value.args:
        return _is_rank(helper, value.args[0], section, depth)
    if name in READS and value.args:
        return _key(value.args[0]) in _known(section, "environment")
    default = all(isinstance(a, ast.Name) and a.id in helper.parameters for a in value.args)
    return name in _known(section, "call") and default and not value.keywords


def _set_elsewhere(module: Module, node: cst.BaseExpression, section: str) -> cst.CSTNode | None:
    """An attribute that other functions of the file set to the rank on an object by the same name:
    ``args.gpu = int(os.environ["RANK"])``."""
    if not isinstance(node, cst.Attribute) or dotted(node.value) in ("", "self") or module.bindings(node):
        return None
    facts, text = module.facts, dotted(node)
    return node if facts is not None and _is_set_to_rank(facts, text, section, _DEPTH) else None


def _given(module: Module, node: cst.BaseExpression, section: str) -> cst.CSTNode | None:
    """A parameter that everything in the project that calls the function, or makes the object, gives the rank."""
    function = module.function_of(node)
    if not isinstance(node, cst.Name) or function is None or [b.kind for b in module.bindings(node)] != ["parameter"]:
        return None
    given = [(site, site.given(function, node.value)) for site in sites_of(module, function)]
    helpers = ((Helper(site.facts, site.around), value) for site, value in given if site.around is not None)
    ranks = [value is not None and _is_rank(helper, value, section) for helper, value in helpers]
    return node if ranks and len(ranks) == len(given) and all(ranks) else None


def _registered(module: Module, node: cst.BaseExpression, section: str) -> cst.CSTNode | None:
    """What the function that a name is used in has put together of the node's number, ``node * gpus + gpu``, and has
    registered as the rank of the job: ``init_process_group(rank=rank)``."""
    function, name = module.function_of(node), dotted(node)
    if section != "global_rank" or function is None or not name:
        return None
    line = module.span(node).line
    nodes = [n for n in descendants(function.body) if isinstance(n, (cst.Assign, cst.Call))]
    assigned = [n for n in nodes if isinstance(n, cst.Assign) and any(dotted(t.target) == name for t in n.targets)]
    above = [n for n in assigned if module.span(n).line < line]
    joins = [n for n in nodes if isinstance(n, cst.Call) and module.qualified(n.func) == _JOIN]
    registers = any((given := argument(call, 4, "rank")) is not None and dotted(given) == name for call in joins)
    # One value, or several of which the last is the number on several nodes: ``rank = 0`` is that of one process.
    counted = registers and bool(above) and _counts_nodes(above[-1].value) and len(above) == len(assigned)
    return above[-1].value if counted else None


def _counts_nodes(value: cst.BaseExpression) -> bool:
    """``node * gpus + gpu``, in either order, of names alone."""
    if not isinstance(value, cst.BinaryOperation) or not isinstance(value.operator, cst.Add):
        return False
    sides = (value.left, value.right)
    product = next(
        (s for s in sides if isinstance(s, cst.BinaryOperation) and isinstance(s.operator, cst.Multiply)), None
    )
    if product is None:
        return False
    other = next(s for s in sides if s is not product)
    return all(dotted(part) for part in (product.left, product.right, other))


def _is_set_to_rank(facts: ModuleFacts, name: str, section: str, depth: int) -> bool:
    """Whether functions of a file set an attribute of an object to the rank, and to nothing else but constants."""
    if not depth or f"{name} =" not in facts.file.text:
        return False
    functions = (n for n in walk(facts.tree) if isinstance(n, FunctionNode))
    given = [
        (function, node.value)
        for function in functions
        for node in statements_of(function)
        if isinstance(node, ast.Assign) and any(dotted_ast(target) == name for target in node.targets)
    ]
    ranks = [(function, value) for function, value in given if not isinstance(value, ast.Constant)]
    return bool(ranks) and all(_is_rank(Helper(facts, f), value, section, depth - 1) for f, value in ranks)


def _key(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _either(module: Module, node: cst.IfExp, section: str, depth: int) -> cst.CSTNode | None:
    arms = [arm for arm in (node.body, node.orelse) if not is_constant(arm)]
    found = [rank_source(module, arm, section, depth) for arm in arms]
    return found[0] if found and all(found) else None


def _bound_to(module: Module, node: cst.BaseExpression, section: str, depth: int) -> cst.CSTNode | None:
    bound = [b for b in module.bindings(node) if b.kind == "assign"]
    sources = {b: _source_of(module, b, section, depth) for b in bound if b.value is not None}
    if not any(sources.values()):
        return None  # most names: no need to look up their bindings
    other = "local_rank" if section == "global_rank" else "global_rank"
    found: list[cst.CSTNode] = []
    for binding in _before(module, node):
        source = sources.get(binding)
        if source is not None:
            found.append(source)
        elif binding not in sources or binding.index or not _is_harmless(module, binding.value, other, depth):
            return None
    return found[0] if found else None


def _is_harmless(module: Module, value: cst.BaseExpression | None, other: str, depth: int) -> bool:
    """Whether a name may be bound to the value besides: a constant, the other kind of rank."""
    return value is not None and (is_constant(value) or rank_source(module, value, other, depth - 1) is not None)


def _source_of(module: Module, binding: Binding, section: str, depth: int) -> cst.CSTNode | None:
    """The rank that a name is bound to, also by ``world_size, rank = self.where_am_i()``."""
    if binding.value is None or not binding.index:
        return rank_source(module, binding.value, section, depth - 1) if binding.value is not None else None
    call = binding.value
    return call if isinstance(call, cst.Call) and returns_rank(module, call, binding.index, section) else None


def _before(module: Module, node: cst.BaseExpression) -> list[Binding]:
    """The bindings of a name that its use can see: not those further down in the same function, unless in a loop."""
    bindings, function = module.bindings(node), module.function_of(node)
    if any(isinstance(up, (cst.For, cst.While)) for up in module.ancestors(node)):
        return bindings
    line = module.span(node).line
    return [b for b in bindings if module.function_of(b.node) is not function or module.span(b.node).line <= line]


def is_constant(node: cst.BaseExpression) -> bool:
    """A number (also negative), a string, or None."""
    inner = node.expression if isinstance(node, cst.UnaryOperation) else node
    return isinstance(inner, (cst.Integer, cst.SimpleString)) or dotted(inner) == "None"


def _attribute(module: Module, node: cst.BaseExpression, section: str) -> cst.CSTNode | None:
    """Attributes that are the global rank by their name, where the same object has the local one, too."""
    if section != "global_rank" or not isinstance(node, cst.Attribute):
        return None
    name = node.attr.value
    if name in _known(section, "attributes"):
        return None if _is_local_property(module, node) else node
    if name not in _known(section, "beside_local"):
        return None
    return node if any(re.search(rf"\b{word}\b", _home(module, node)) for word in _known(section, "local")) else None


def _is_local_property(module: Module, node: cst.Attribute) -> bool:
    """Whether a class of the project has the local rank there, as a property: ``int(os.environ["LOCAL_RANK"])``."""
    owner = module.class_of(node) if dotted(node.value) == "self" else None
    if owner is None or module.project is None:
        return False
    found = module.project.classes.method(f"{module.name}.{owner.name.value}", node.attr.value)
    names = {words for part in walk(found[1]) for words in _names_of(part)} if found is not None else set()
    return not names.isdisjoint((*_known("global_rank", "local"), *_known("local_rank", "environment")))


def _names_of(node: ast.AST) -> tuple[str, ...]:
    """The name of a variable, an attribute or a string."""
    named = (getattr(node, field, None) for field in ("id", "attr", "value"))
    return tuple(name for name in named if isinstance(name, str))


def _home(module: Module, node: cst.Attribute) -> str:
    """The text of the class or module that defines the object whose attribute `node` is."""
    owner = node.value
    if isinstance(owner, cst.Name) and owner.value == "self":
        definition = module.class_of(node)
        return module.tree.code_for_node(definition) if definition is not None else ""
    made = owner.func if isinstance(owner, cst.Call) else owner
    name = module.qualified(made)
    found = module.project.meanings.split(name) if name and module.project is not None else None
    return found[0].file.text if found and found[1] else ""

"""Parts of a model that the project shards by themselves: their forward gathers parameters from all ranks.

``for block in model.vision.blocks: fully_shard(block)`` makes each element of `blocks` such a part, and a call of
`vision` runs them; a wrap policy names the classes of the parts. ZeRO-3 makes one of every module.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.definitions import defaults_of, stores_of
from ddp_lint.divergence.effects import EventStep
from ddp_lint.divergence.event_graph import PART, Event
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.groups import Group
from ddp_lint.divergence.resolve import Linker
from ddp_lint.divergence.values import Value, unknown
from ddp_lint.findings import Confidence
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.framework_imports import SHARDING
from ddp_lint.project.parts import called_on_self, children, inside, kept_by_node
from ddp_lint.project.results import OfNames
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import calls_below, statements, walk

#: What shards its first argument; keywords and calls that take the classes of the parts.
_SHARDING: Final = frozenset({"fully_shard", "FSDP", "FullyShardedDataParallel"})
_CLASSES_BY: Final = ("transformer_layer_cls", "module_classes")
_POLICIES: Final = frozenset({"ModuleWrapPolicy"})
_ZERO_3: Final = re.compile(r"[\"']stage[\"']\s*:\s*3\b|\bzero_?stage\s*=\s*3\b|\bstage\s*=\s*3\b")
#: What a whole model is called, which its own class does not call so.
_WHOLE: Final = frozenset({"model", "module", "net", "network", "self"})
#: Methods and functions that hand out the elements of what they are given.
_HANDING_ON: Final = frozenset({"enumerate", "list", "reversed", "zip", "tqdm", "values", "items", "children",
                                "named_children"})  # fmt: skip
_CONTAINERS: Final = frozenset({"ModuleList", "ModuleDict", "Sequential"})
#: The class of a list of parts, and of a part of no known class.
PARTS: Final = "builtins.sharded_parts"
_PART: Final = "builtins.sharded_part"


@dataclasses.dataclass(frozen=True)
class Units(OfNames):
    """What is sharded by itself: attributes that are a part, or hold some, names of lists of parts, of classes of which
    each object is one, and of classes of which each module inside is one."""

    attributes: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    wholes: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.attributes or self.lists or self.classes or self.wholes)

    def __or__(self, other: Units) -> Units:
        return Units(
            self.attributes | other.attributes,
            self.lists | other.lists,
            self.classes | other.classes,
            self.wholes | other.wholes,
        )


def units_of(project: Project) -> Units:
    """The parts that the project's code shards, tests aside."""
    return project.remember(("shard units",), lambda: _units_of(project))


def _units_of(project: Project) -> Units:
    found = Units()
    for facts in project.modules.but_tests(sorted({p for word in SHARDING for p in project.contents.holding(word)})):
        found |= _units_in(facts)
        text = facts.source.text
        if "deepspeed.initialize" in text and _ZERO_3.search(text) and "z3_leaf" not in text:
            calls = calls_below(facts.tree)
            found |= Units(wholes=frozenset(call.func.id for call in calls if isinstance(call.func, ast.Name)))
    return found


def _units_in(facts: ModuleFacts) -> Units:
    found = Units()
    for scope in (facts.tree, *(n for n in statements(facts.tree) if isinstance(n, ast.FunctionDef))):
        for call in (node for node in children(scope) if isinstance(node, ast.Call)):
            named = [k.value for k in call.keywords if k.arg in _CLASSES_BY]
            named += call.args[:1] if last_part(call.func) in _POLICIES else []
            found |= Units(classes=frozenset(last_part(part) for value in named for part in _elements(value)))
            if last_part(call.func) in _SHARDING and call.args:
                found |= _sharded(scope, call.args[0])
    return found


def _elements(value: ast.expr) -> list[ast.expr]:
    return value.elts if isinstance(value, (ast.Set, ast.List, ast.Tuple)) else []


def _sharded(scope: ast.AST, argument: ast.expr) -> Units:
    """What ``fully_shard(argument)`` says."""
    if isinstance(argument, ast.Attribute):
        return Units(attributes=frozenset({argument.attr}) - _WHOLE)
    if isinstance(argument, ast.Call) and getattr(argument.func, "id", "") == "getattr" and len(argument.args) > 1:
        return Units(attributes=frozenset(_texts(scope, argument.args[1])) - _WHOLE)
    if not isinstance(argument, ast.Name):
        return Units()
    loops = [n for n in children(scope) if isinstance(n, ast.For) and argument.id in _names(n.target)]
    if not loops:
        made = _assigned(scope, argument)
        return _sharded(scope, made) if isinstance(made, ast.Attribute) else Units()
    found = Units()
    for loop in loops:
        over = _gone_through(scope, loop.iter)
        if over is None:
            found |= Units(classes=frozenset(_asked_for(loop, argument.id)))
        elif isinstance(over, ast.Attribute):
            above = frozenset(_path(over.value))
            found |= Units(lists=frozenset({over.attr}), attributes=above - _WHOLE)
    return found


def _texts(scope: ast.AST, name: ast.expr) -> Iterator[str]:
    """The texts that a name stands for in turn: ``for name in ("vision", "audio"):``."""
    bound = getattr(name, "id", "")
    loops = [n for n in children(scope) if isinstance(n, ast.For) and getattr(n.target, "id", "") == bound]
    given = [name, *(element for loop in loops for element in _elements(loop.iter))]
    yield from (each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in walk(target) if isinstance(node, ast.Name)}


def _assigned(scope: ast.AST, name: ast.Name) -> ast.expr | None:
    if not isinstance(scope, ast.FunctionDef):
        return None
    values = assigned_in(scope, name.id)
    return values[0] if len(values) == 1 else None


def _gone_through(scope: ast.AST, node: ast.expr) -> ast.expr | None:
    """The container whose elements a loop goes through; None where it goes through all modules of a model."""
    while isinstance(node, ast.Call):
        name = last_part(node.func)
        if name in ("modules", "named_modules"):
            return None
        if name not in _HANDING_ON:
            return node
        node = node.func.value if isinstance(node.func, ast.Attribute) else node.args[0] if node.args else node.func
    if isinstance(node, ast.Name) and (made := _assigned(scope, node)) is not None:
        return made
    return node


def _path(node: ast.expr) -> Iterator[str]:
    """The attributes on the way to the container: those of the model that hold it."""
    while isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value


def _asked_for(loop: ast.For, name: str) -> Iterator[str]:
    """The classes that the modules in a loop are asked for: ``isinstance(module, (Block, Layer))``."""
    for call in (node for node in children(loop) if isinstance(node, ast.Call)):
        if getattr(call.func, "id", "") == "isinstance" and len(call.args) == 2 and name in _names(call.args[0]):
            asked = call.args[1]
            yield from (last_part(part) for part in (_elements(asked) or [asked]))


# ---- in the code of a model


def may_part(linker: Linker, of: ref.ClassRef, function: ast.AST) -> bool:
    """Is it the `forward` of a class, or a method that this calls, and uses a part of the class?"""
    if not linker.is_module(of) or getattr(function, "name", "") not in _run_by_forward(linker, of):
        return False
    units = units_of(linker.project)  # last: it parses every file that shards anything
    if not units:
        return False
    used = {node.attr for node in inside(function) if isinstance(node, ast.Attribute)}
    return any(_kind(linker, of, name, units) or _holds_part(linker, of, name, units) for name in sorted(used))


def _run_by_forward(linker: Linker, of: ref.ClassRef) -> frozenset[str]:
    """`forward` and the methods of the class that it calls, however indirectly."""
    members = linker.members(of)
    found = {"forward"} & members.keys()
    stack = list(found)
    while stack:
        new = called_on_self(members[stack.pop()]) & members.keys() - found
        found |= new
        stack += new
    return frozenset(found)


def _holds_part(linker: Linker, of: ref.ClassRef, name: str, units: Units, depth: int = 3) -> bool:
    """Is the attribute an object of a class of the project that has parts itself?"""
    for _, value in stores_of(of.node, name):
        made = linker.expression(of.facts, value.func) if isinstance(value, ast.Call) else None
        if not isinstance(made, ref.ClassRef) or not linker.is_module(made) or not depth:
            continue
        used = (n.attr for m in linker.members(made).values() for n in inside(m) if isinstance(n, ast.Attribute))
        for each in dict.fromkeys(used):
            if _kind(linker, made, each, units) or _holds_part(linker, made, each, units, depth - 1):
                return True
    return False


def is_input(linker: Linker, function: ref.FunctionRef, parameter: ast.arg) -> bool:
    """Is it a tensor that such a `forward` gets, and so each rank's own? Flags have a default or another class."""
    if function.owner is None or parameter in function.node.args.kwonlyargs:
        return False
    named = parameter.annotation is None or "Tensor" in ast.unparse(parameter.annotation)
    if not named or defaults_of(function.node).get(parameter.arg) is not None:
        return False
    return may_part(linker, function.owner, function.node)


def part_of(frame: Frame, of: ref.ClassRef, name: str, value: Value | None) -> Value | None:
    """The attribute of a module, marked where it is a part or a list of parts; None for anything else."""
    if not frame.linker.is_module(of):
        return None
    units = units_of(frame.linker.project)
    if not units:
        return None
    instance = value.reference if value is not None and isinstance(value.reference, ref.Instance) else None
    kind = _kind(frame.linker, of, name, units)
    if kind == PARTS:
        return unknown((PARTS, name), ref.Instance(PARTS, unit=name))
    if kind == _PART:
        own = instance if instance is not None and isinstance(instance.of, ref.ClassRef) else ref.Instance(_PART)
        return unknown((_PART, name), dataclasses.replace(own, unit=name))
    return None


def _kind(linker: Linker, of: ref.ClassRef, name: str, units: Units) -> str:
    for owner in linker.linearised(of)[0]:
        by_class = _class_of_unit(owner.node, name, units)
        if by_class:
            return by_class
        stores = stores_of(owner.node, name)
        if not stores:
            continue
        held = {last_part(value.func) for _, value in stores if isinstance(value, ast.Call)}
        if held & _CONTAINERS:
            return PARTS if name in units.lists or owner.node.name in units.wholes else ""
        whole = owner.node.name in units.wholes and _may_be_module(stores[0][1])
        return _PART if name in units.attributes or whole else ""
    return ""


def _may_be_module(stored: ast.expr) -> bool:
    """An object that is made there, ``Head(dim)``, or that the constructor is given."""
    return isinstance(stored, ast.Name) or (isinstance(stored, ast.Call) and last_part(stored.func)[:1].isupper())


def _class_of_unit(class_: ast.ClassDef, name: str, units: Units) -> str:
    """The kind of an attribute by the class that it, or each element of it, is an object of."""
    for _, value in stores_of(class_, name):
        if not isinstance(value, ast.Call):
            continue
        if last_part(value.func) in units.classes:
            return _PART
        if last_part(value.func) in _CONTAINERS and _made_in(value) & units.classes:
            return PARTS
    return ""


@kept_by_node(1024)
def _made_in(container: ast.Call) -> frozenset[str]:
    """The classes of what a container is made with: ``ModuleList([Block(dim) for _ in range(depth)])``."""
    given = [node for argument in container.args for node in walk(argument)]
    return frozenset(last_part(node.func) for node in given if isinstance(node, ast.Call))


def element_of_parts(value: Value) -> Value | None:
    """An element of a list of parts; None for anything else."""
    of = value.reference
    if not isinstance(of, ref.Instance) or of.of != PARTS:
        return None
    return unknown((_PART, of.unit), ref.Instance(_PART, unit=of.unit))


def gather(frame: Frame, instance: ref.Instance, node: ast.Call) -> None:
    """The call of a part: all ranks have to make it."""
    event = Event(
        f"forward of `{instance.unit}`", PART, Group(), frame.span(node), frame.text(node.func),
        implicit=True, confidence=Confidence.MEDIUM,
    )  # fmt: skip
    frame.effects.append(EventStep(event))

"""What the attributes of an `nn.Module` are: parameters, buffers, layers. Read from `ast`, across files."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import re
from collections.abc import Iterator, Mapping

import libcst as cst

from ddp_lint.knowledge import canonical
from ddp_lint.knowledge.tensors import layer_kind, names, words_of
from ddp_lint.project import Project
from ddp_lint.project.facts import MOST_BASES, ModuleFacts, is_setter
from ddp_lint.source.imports import dotted_ast, of_self
from ddp_lint.source.syntax import argument_at, below, calls_below, defaults, is_none, parameters, statements, walk
from ddp_lint.tensors.contexts import body_without_gradient
from ddp_lint.view import Module
from ddp_lint.view.wraps import unmoved

PARAMETER_MAKERS = frozenset({"torch.nn.Parameter", "torch.nn.UninitializedParameter"})


def is_module_class(project: Project | None, name: str) -> bool:
    """Whether a canonical name is a class of modules: a layer of ``torch.nn``, or what inherits from its `Module`."""
    if name.startswith("torch.nn.") and name not in PARAMETER_MAKERS:
        return name.rpartition(".")[2][:1].isupper()
    return bool(name) and project is not None and project.classes.subclass_of(name, "torch.nn.Module")


def makes_module(module: Module, value: cst.BaseExpression) -> bool:
    """Whether an expression makes a module: ``nn.Linear(4, 2).to(device)``, ``Head()``."""
    made = unmoved(value)
    return isinstance(made, cst.Call) and is_module_class(module.project, module.constructed_by(made))


_CLASSES_LIMIT = 4096
#: Methods by which a class makes an object of itself.
_LOADING = frozenset({"from_pretrained", "from_config", "load_from_checkpoint"})
#: Methods of a dictionary that take keys out of it.
_TAKE_OUT = frozenset({"clear", "pop", "popitem"})
_MODULE_NAME = re.compile(r"(Module|Layer|Block|Model|Net|Encoder|Decoder|Loss|Criterion|Embedding|Attention)\w{0,3}$")


class Role(enum.Enum):
    PARAMETER = "parameter"
    BUFFER = "buffer"
    LAYER = "layer"


@dataclasses.dataclass(frozen=True)
class Attribute:
    """What an attribute of a module is. `maker`: canonical name of the class or function that made it, '' if unknown;
    `value`: the expression that it was assigned; `method`: where."""

    role: Role
    maker: str
    value: ast.expr | None
    method: str
    facts: ModuleFacts


@dataclasses.dataclass(frozen=True)
class Reached:
    """How training reaches a method: `chain`, the methods on the way; `gradient`: whether gradients are on there;
    `entry`: the method that the wrapped module runs, `forward` or Lightning's `training_step`."""

    chain: tuple[str, ...]
    gradient: bool
    entry: str = "forward"


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleClass:
    """A class that derives from `torch.nn.Module`, with its attributes and methods and those of its project bases."""

    name: str
    facts: ModuleFacts
    node: ast.ClassDef
    bases: tuple[ModuleClass, ...]

    @functools.cached_property
    def lineage(self) -> tuple[ModuleClass, ...]:
        """The class and its project bases, nearest first, each once; of very many the nearest."""
        found: dict[ModuleClass, None] = {}
        stack = [self]
        while stack and len(found) < MOST_BASES:
            cls = stack.pop()
            if cls not in found:
                found[cls] = None
                stack += reversed(cls.bases)
        return tuple(found)

    @functools.cached_property
    def attributes(self) -> dict[str, tuple[Attribute, ...]]:
        """Name to everything that is assigned to it, for parameters, buffers and layers."""
        found: dict[str, list[Attribute]] = {}
        for cls in self.lineage:
            for name, attribute in _own_attributes(cls):
                found.setdefault(name, []).append(attribute)
        return {name: tuple(attributes) for name, attributes in found.items()}

    def attribute(self, name: str) -> Attribute | None:
        """What `self.name` is, None when unknown or when it is several things in turn."""
        found = self.attributes.get(name, ())
        return found[0] if found and len({a.role for a in found}) == 1 else None

    @functools.cached_property
    def works_in_place(self) -> bool:
        """Whether any of its layers was made with ``inplace=True``."""
        made = (getattr(a.value, "keywords", ()) for attributes in self.attributes.values() for a in attributes)
        return any(keyword.arg == "inplace" for keywords in made for keyword in keywords)

    def freezes(self, name: str) -> bool:
        """Whether the methods that make ``self.codes`` switch off the gradients of ``self.codes.weight``, or of all of
        it, in every case: ``self.codes.weight.requires_grad = False``. It is registered like a parameter, trained like
        a buffer."""
        made = {attribute.method for attribute in self.attributes.get(name.split(".")[1] if "." in name else "", ())}
        frozen = (self._frozen_in.get(method, ()) for method in made)
        return bool(made) and all(any(f"{name}.".startswith(f"{each}.") for each in names) for names in frozen)

    @functools.cached_property
    def _frozen_in(self) -> dict[str, tuple[str, ...]]:
        methods = ((name, method.body) for name, (_, method) in self.methods.items())
        return {name: tuple(n for step in body for n in _switched_off(step)) for name, body in methods}

    @functools.cached_property
    def methods(self) -> dict[str, tuple[ModuleClass, ast.FunctionDef]]:
        """Method name to the class that defines it and the definition, by Python's order of bases: ``size.setter`` to
        what sets a property, as no reading runs it."""
        found: dict[str, tuple[ModuleClass, ast.FunctionDef]] = {}
        for cls in self.lineage:
            for item in cls.node.body:
                if isinstance(item, ast.FunctionDef):
                    found.setdefault(_key(item), (cls, item))
        return found

    @functools.cached_property
    def forward_methods(self) -> dict[str, Reached]:
        """Methods that run in every training forward, and how `forward` reaches them."""
        return self._methods_from("forward")

    @functools.cached_property
    def training_methods(self) -> dict[str, Reached]:
        """The same with those of a LightningModule's `training_step`, which Lightning runs as the wrapped module's
        forward. A step that updates the parameters by itself knows when it writes to them: it is left out."""
        (entry,) = names("training_steps", "methods")
        _, step = self.methods.get(entry, (self, None))
        if step is None or not self._is_lightning or _updates(step):
            return self.forward_methods
        return {**self._methods_from(entry), **self.forward_methods}

    @functools.cached_property
    def _memos(self) -> frozenset[str]:
        """The dictionaries of the object that its methods only add to: ``self.conditions`` of
        ``self.conditions[path] = self.encode(path)``."""
        tables: set[str] = set()
        others: set[str] = set()
        for _, method in self.methods.values():
            for node in walk(method):
                if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete)):
                    targets = [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else node.targets
                    empty = isinstance(value := getattr(node, "value", None), ast.Dict) and not value.keys
                    found = tables if empty and method.name == "__init__" else others
                    found.update(map(dotted_ast, targets))
                    if isinstance(node, ast.Delete):
                        others.update(dotted_ast(t.value) for t in targets if isinstance(t, ast.Subscript))
                elif isinstance(node, ast.Attribute) and node.attr in _TAKE_OUT:
                    others.add(dotted_ast(node.value))
        return frozenset(tables - others - {""})

    @property
    def _is_lightning(self) -> bool:
        written = (dotted_ast(base) for cls in self.lineage for base in cls.node.bases)
        return any(name.rpartition(".")[2] in names("training_steps", "classes") for name in written)

    def _methods_from(self, entry: str) -> dict[str, Reached]:
        """Calls in a branch that evaluation alone takes lead nowhere."""
        reached: dict[str, Reached] = {}
        queue = [(entry, Reached((), True, entry))]
        while queue:
            name, how = queue.pop(0)
            if name in reached or name not in self.methods:
                continue
            cls, node = self.methods[name]
            if words_of(node.name) & names("branches", "evaluation"):
                continue
            gradient = how.gradient and not body_without_gradient(node, cls.facts)
            reached[name] = Reached(how.chain, gradient, entry)
            for used, with_gradient in uses_of_self(node, cls.facts, self._memos):
                queue.append((used, Reached((*how.chain, name), gradient and with_gradient, entry)))
        return reached


class ModuleClasses:
    """The `nn.Module` classes of one file and of what it imports from its project."""

    def __init__(self, facts: ModuleFacts, project: Project | None) -> None:
        self._facts = facts
        self._project = project
        self._known: dict[str, ModuleClass | None] = {}
        self._here = {n.name: n for n in statements(facts.tree) if isinstance(n, ast.ClassDef)}

    def named(self, name: str) -> ModuleClass | None:
        """The module class of that name in this file; None when there is none, or when it is no module."""
        node = self._here.get(name)
        return self._built(self._facts, node) if node is not None else None

    def imported(self, qualified: str) -> ModuleClass | None:
        """The module class of the project that a canonical dotted name refers to."""
        if self._project is None or not qualified:
            return None
        facts, node = self._project.meanings.definition(qualified) or (None, None)
        return self._built(facts, node) if facts is not None and isinstance(node, ast.ClassDef) else None

    def resolve(self, name: str, facts: ModuleFacts) -> ModuleClass | None:
        """The module class that a dotted name means inside a file of the project."""
        if facts is self._facts and name in self._here:
            return self._built(facts, self._here[name])
        if name in facts.definitions:
            node = facts.definitions[name]
            return self._built(facts, node) if isinstance(node, ast.ClassDef) else None
        return self.imported(self.qualified(name, facts))

    def function(self, name: str, facts: ModuleFacts) -> tuple[ModuleFacts, ast.FunctionDef] | None:
        """The top-level function of the project that a dotted name means inside one of its files."""
        here = facts.definitions.get(name)
        found = (facts, here) if here is not None else None
        if found is None and self._project is not None:
            found = self._project.meanings.definition(self.qualified(name, facts))
        return (found[0], found[1]) if found is not None and isinstance(found[1], ast.FunctionDef) else None

    def qualified(self, name: str, facts: ModuleFacts) -> str:
        """The canonical dotted name of a name inside a file of the project; '' when it was not imported."""
        target = facts.imports.resolve(name) if name else None
        if target is None:
            return ""
        return canonical(self._project.meanings.canonical(target) if self._project else target)

    def _built(self, facts: ModuleFacts, node: ast.ClassDef) -> ModuleClass | None:
        key = f"{facts.source.path}:{node.lineno}:{node.name}"
        if key not in self._known:
            self._known[key] = None  # a class that derives from itself through a cycle of names is no module
            if len(self._known) < _CLASSES_LIMIT:
                self._known[key] = self._build(facts, node)
        return self._known[key]

    def _build(self, facts: ModuleFacts, node: ast.ClassDef) -> ModuleClass | None:
        bases: list[ModuleClass] = []
        is_module = unknown_base = False
        for base in node.bases:
            written = dotted_ast(base.value if isinstance(base, ast.Subscript) else base)
            qualified = self.qualified(written, facts)
            if qualified in names("layers", "not_modules") or written in names("layers", "not_modules"):
                continue
            if qualified in names("layers", "modules") or layer_kind(qualified):
                is_module = True
                continue
            project_base = self.resolve(written, facts) if written != node.name else None
            if project_base is not None:
                bases.append(project_base)
            elif written not in facts.definitions and bool(_MODULE_NAME.search(written)):
                unknown_base = True  # an external class by a module's name: its `forward` decides
        has_forward = any(isinstance(i, ast.FunctionDef) and i.name == "forward" for i in node.body)
        if is_module or bases or (unknown_base and has_forward and not _is_static(node)):
            return ModuleClass(node.name, facts, node, tuple(bases))
        return None

    def without_buffers(self, cls: ModuleClass, seen: frozenset[str] = frozenset()) -> bool:
        """Whether all that a module makes and calls is seen, and backward needs none of its buffers."""
        if cls.name in seen:
            return True
        for each in cls.lineage:
            methods = [m for m in each.node.body if isinstance(m, ast.FunctionDef)]
            used = {dotted_ast(n.func) for m in methods for n in calls_below(m)}
            for method in methods:
                known = self._named_layers(method.body, each.facts)
                for node in walk(method):
                    if isinstance(node, ast.Call) and self.may_have_buffers(node, each.facts, seen | {cls.name}, known):
                        return False
                    targets = node.targets if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) else []
                    if any(dotted_ast(target) in used for target in targets):
                        return False  # it was made elsewhere
        buffers = {f"self.{n}" for n, found in cls.attributes.items() if any(a.role is Role.BUFFER for a in found)}
        return not any(
            _needed(method, each.facts) & buffers
            for each in cls.lineage
            for method in each.node.body
            if isinstance(method, ast.FunctionDef)
        )

    def has_buffers(self, cls: ModuleClass, seen: frozenset[str] = frozenset(), *, running: bool = False) -> bool:
        """Whether a module surely has buffers: it makes them, or a part that has some, under no condition, or in both
        arms of one. With `running` only running statistics count, which backward surely reads."""
        if cls.name in seen:
            return False
        seen |= {cls.name}
        return any(
            self._body_makes_buffers(method.body, each.facts, seen, running, {})
            for each in cls.lineage
            for method in each.node.body
            if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        )

    def _body_makes_buffers(
        self, body: list[ast.stmt], facts: ModuleFacts, seen: frozenset[str], running: bool, known: Mapping[str, str]
    ) -> bool:
        """`known`: the layers that names are, by the caller of a function: ``norm`` of ``block(8, nn.BatchNorm2d)``."""
        known = {**known, **self._named_layers(body, facts)}

        def makes(statement: ast.stmt) -> bool:
            if not isinstance(statement, ast.If):
                calls = calls_below(statement)
                return any(self.makes_buffers(call, facts, seen, running=running, known=known) for call in calls)
            arms = [statement.body] if _is_given(statement.test, known) else [statement.body, statement.orelse]
            return all(self._body_makes_buffers(arm, facts, seen, running, known) for arm in arms)

        return any(map(makes, _unconditional(body)))

    def _named_layers(self, body: list[ast.stmt], facts: ModuleFacts) -> dict[str, str]:
        """The classes of layers that a function gives names, once each: ``norm = nn.BatchNorm2d``."""
        stored = [n.id for s in body for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        named = (s for s in body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name))
        found = {dotted_ast(s.targets[0]): self.qualified(dotted_ast(s.value), facts) for s in named}
        return {name: layer for name, layer in found.items() if layer_kind(layer) and stored.count(name) == 1}

    def has_parameters(self, cls: ModuleClass, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a module surely has parameters that are trained: nothing of it may be frozen."""
        nodes = (node for each in cls.lineage for node in walk(each.node))
        if cls.name in seen or any(isinstance(n, ast.Attribute) and "requires_grad" in n.attr for n in nodes):
            return False
        made = [attribute for found in cls.attributes.values() for attribute in found]
        layers = ((a.value, a.facts) for a in made if a.role is Role.LAYER and isinstance(a.value, ast.Call))
        return any(a.role is Role.PARAMETER for a in made) or any(
            self.makes_parameters(call, facts, seen | {cls.name}) for call, facts in layers
        )

    def makes_parameters(self, call: ast.Call, facts: ModuleFacts, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a call surely makes a parameter, a layer of torch.nn that has some, or a module of the project that
        does."""
        written = dotted_ast(call.func)
        maker = self.qualified(written, facts)
        if isinstance(call.func, ast.Attribute) and call.func.attr in names("views", "maybe"):  # ``.to(device)``
            of = call.func.value
            return isinstance(of, ast.Call) and self.makes_parameters(of, facts, seen)
        kind = layer_kind(maker)
        if kind == "Sequential":
            return any(isinstance(arg, ast.Call) and self.makes_parameters(arg, facts, seen) for arg in call.args)
        if kind and maker not in PARAMETER_MAKERS:
            return kind in names("saves_input", "parametric")
        inner = self.resolve(written, facts)
        return maker in PARAMETER_MAKERS or (inner is not None and self.has_parameters(inner, seen))

    def makes_buffers(
        self,
        call: ast.Call,
        facts: ModuleFacts,
        seen: frozenset[str] = frozenset(),
        *,
        running: bool = False,
        known: Mapping[str, str] | None = None,
    ) -> bool:
        """Whether a call surely registers a buffer, or makes a module that has some, also by a method of its class, or
        by a function that returns what it makes: ``Decoder.from_pretrained(config)``, ``conv_bn(3, 8)``. With `running`
        only running statistics count (SyncBatchNorm keeps them, but its backward reads none). `known`: the layers that
        names are."""
        written = dotted_ast(call.func)
        kind = layer_kind((known or {}).get(written) or self.qualified(written, facts))
        if kind.startswith("BatchNorm"):
            return not any(keyword.arg in ("track_running_stats", None) for keyword in call.keywords)
        if written == "self.register_buffer":  # that of another object, ``text.mask``, may be None
            value = argument_at(call, 1, "tensor")
            return not running and not (isinstance(value, ast.Attribute) or is_none(value))
        if kind.startswith("SyncBatchNorm"):
            return not running
        owner, _, method = written.rpartition(".")
        inner = self.resolve(owner if method in _LOADING else written, facts)
        if inner is not None:
            return self.has_buffers(inner, seen, running=running)
        made = self.function(written, facts) if written else None
        if made is None or made[1].name in seen:
            return False
        there, function = made
        last = function.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            return False
        # `nn.Sequential(*layers)`, or the list itself: `layers + [nn.ReLU()]`
        called = isinstance(last.value, ast.Call)
        listed = isinstance(last.value, ast.Call) and any(isinstance(arg, ast.Starred) for arg in last.value.args)
        if not called and not _is_list(last.value, function):
            return False
        given = self._layers_given(call, facts, function, known or {})
        body: list[ast.stmt] = [last] if called and not listed else function.body
        return self._body_makes_buffers(body, there, seen | {function.name}, running, given)

    def _layers_given(
        self, call: ast.Call, facts: ModuleFacts, function: ast.FunctionDef, known: Mapping[str, str]
    ) -> dict[str, str]:
        """The parameters of a function that a call gives the class of a layer, which the function leaves as it is."""
        stored = {n.id for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        found = dict[str, str]()
        for place, each in enumerate(parameters(function)):
            value = dotted_ast(argument_at(call, place, each.arg))
            layer = known.get(value) or self.qualified(value, facts)
            if layer_kind(layer) and each.arg not in stored:
                found[each.arg] = layer
        return found

    def may_have_buffers(
        self,
        call: ast.Call,
        facts: ModuleFacts,
        seen: frozenset[str] = frozenset(),
        known: Mapping[str, str] | None = None,
    ) -> bool:
        """Whether a call makes, or may make, a module with buffers that backward needs. `known`: the layers that names
        are."""
        written = dotted_ast(call.func)
        name = (known or {}).get(written) or self.qualified(written, facts)
        if layer_kind(name).startswith("InstanceNorm"):
            return any(keyword.arg in ("track_running_stats", None) for keyword in call.keywords)
        if "Norm" in layer_kind(name) or name.startswith("torch.nn.utils"):
            return name.rpartition(".")[2] not in _UNNEEDED
        inner = self.resolve(written, facts)
        if inner is not None:
            return not self.without_buffers(inner, seen)
        here = facts.definitions.get(written)
        if isinstance(here, ast.FunctionDef):
            return here.name not in seen and self._function_may_make(here, facts, seen | {here.name})
        return bool(name) and name.partition(".")[0] not in ("torch", "math", "numpy", "functools")

    def _function_may_make(self, function: ast.FunctionDef, facts: ModuleFacts, seen: frozenset[str]) -> bool:
        """Whether a function makes, or may make, a module with such buffers: what it calls of what it is given may."""
        taken = {each.arg for each in parameters(function)}
        calls = list(calls_below(function))
        return any(dotted_ast(c.func) in taken or self.may_have_buffers(c, facts, seen) for c in calls)


def method_key(function: cst.FunctionDef) -> str:
    """The name under which `ModuleClass.methods` has a method of this file."""
    decorators = (each.decorator for each in function.decorators)
    sets = any(isinstance(d, cst.Attribute) and d.attr.value in ("setter", "deleter") for d in decorators)
    return _setter(function.name.value) if sets else function.name.value


def _key(function: ast.FunctionDef) -> str:
    return _setter(function.name) if is_setter(function) else function.name


def _setter(name: str) -> str:
    return f"{name}.setter"


#: What keeps no buffers for backward: it has none, or works with copies of them (spectral_norm) or with none
#: (SyncBatchNorm).
_UNNEEDED = ("LayerNorm", "GroupNorm", "RMSNorm", "SyncBatchNorm", "weight_norm", "spectral_norm")


def _needed(method: ast.FunctionDef, facts: ModuleFacts) -> frozenset[str]:
    """The attributes of `self` that a method reads so that backward may need them. It needs nothing that is compared,
    added, joined, copied, written in place, asked for its shape, or read where gradients are off."""
    if body_without_gradient(method, facts):
        return frozenset()
    needed: set[str] = set()
    stack: list[tuple[ast.AST, bool]] = [(statement, True) for statement in method.body]
    while stack:
        node, counts = stack.pop()
        if isinstance(node, ast.With) and body_without_gradient(node, facts):
            continue
        name = dotted_ast(node) if isinstance(node, ast.Attribute) else ""
        if of_self(name):
            needed |= {name} if counts and isinstance(getattr(node, "ctx", None), ast.Load) else set()
            continue
        # `self.mask[:n] == 0`, `x + self.shift`, `cat([self.prefix, x])`, `self.count.add_(1)`, `self.mask.shape`
        plain = (
            isinstance(node, ast.Compare)
            or (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)))
            or (isinstance(node, ast.Call) and facts.qualified(node.func) in _JOINS)
        )
        asked = isinstance(node, ast.Attribute) and (node.attr in _ASKED or node.attr.endswith("_"))
        sliced = not counts and isinstance(node, (ast.Subscript, ast.Slice, ast.Attribute, ast.List, ast.Tuple))
        stack += [(child, not (plain or asked or sliced)) for child in below(node)]
    return frozenset(needed)


#: Attributes and methods of a tensor that hold no values of it, give them to the host, or copy them.
_ASKED = frozenset({"shape", "size", "device", "dtype", "ndim", "dim", "numel", "item", "clone"})
#: Functions whose backward needs the shapes of what they join alone.
_JOINS = frozenset(f"torch.{name}" for name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack"))


def _unconditional(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that surely run, with those of loops; of an `if`, the whole."""
    for statement in body:
        if isinstance(statement, (ast.For, ast.With)):
            yield from _unconditional(statement.body)
        elif not isinstance(statement, (ast.Try, ast.While)):
            yield statement


def _is_given(test: ast.expr, known: Mapping[str, str]) -> bool:
    """Whether a test asks for a layer that is given: ``if norm:``, ``if norm is not None:``."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot):
        return is_none(test.comparators[0]) and dotted_ast(test.left) in known
    return dotted_ast(test) in known


def _is_list(value: ast.expr, function: ast.FunctionDef) -> bool:
    """Whether what a function returns is a list that it makes: ``layers``, ``layers + [nn.ReLU()]``."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _is_list(value.left, function) and _is_list(value.right, function)
    if isinstance(value, ast.Name):
        assigned = [n for n in walk(function) if isinstance(n, ast.Assign) and dotted_ast(n.targets[0]) == value.id]
        return bool(assigned) and all(isinstance(each.value, (ast.List, ast.BinOp)) for each in assigned)
    return isinstance(value, ast.List)


def _updates(step: ast.FunctionDef) -> bool:
    """Whether a training step runs the optimizer by itself."""
    calls = (node.func for node in calls_below(step))
    return any(isinstance(f, ast.Attribute) and f.attr in names("training_steps", "updates") for f in calls)


def _is_static(node: ast.ClassDef) -> bool:
    """Whether `forward` is a static method: an autograd function, not a module."""
    return any(
        isinstance(item, ast.FunctionDef)
        and item.name == "forward"
        and any(dotted_ast(d) == "staticmethod" for d in item.decorator_list)
        for item in node.body
    )


def _own_attributes(cls: ModuleClass) -> Iterator[tuple[str, Attribute]]:
    for method in cls.node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        by_default = _layers_by_default(method)
        for node in walk(method):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                given = by_default.get(node.value.id) if isinstance(node.value, ast.Name) else None
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if name := of_self(dotted_ast(target)):
                        attribute = _attribute(given or node.value, method.name, cls)
                        if attribute is not None:
                            yield name, attribute
            elif isinstance(node, ast.Call):
                registered = _registered(node, method.name, cls)
                if registered is not None:
                    yield registered


def _layers_by_default(method: ast.FunctionDef) -> dict[str, ast.expr]:
    """The layers that a constructor makes when its caller gives none: ``def __init__(self, act=nn.ReLU())``."""
    return {argument.arg: made for argument, made in defaults(method.args) if isinstance(made, ast.Call)}


def _attribute(value: ast.expr, method: str, cls: ModuleClass) -> Attribute | None:
    if isinstance(value, ast.IfExp):
        return _attribute(value.body, method, cls) or _attribute(value.orelse, method, cls)
    if not isinstance(value, ast.Call):
        return None
    written = dotted_ast(value.func)
    maker = canonical(cls.facts.imports.resolve(written) or written)
    if maker in PARAMETER_MAKERS:
        role = Role.BUFFER if is_frozen(value) else Role.PARAMETER
        return Attribute(role, maker, value, method, cls.facts)
    if maker == "torch.nn.Buffer":
        return Attribute(Role.BUFFER, maker, value, method, cls.facts)
    last = written.rpartition(".")[2]
    if layer_kind(maker) or (last[:1].isupper() and written and not written.startswith("self.")):
        return Attribute(Role.LAYER, maker, value, method, cls.facts)
    return None


def _switched_off(statement: ast.stmt) -> Iterator[str]:
    """What a statement takes the gradients from: a parameter, or the layer over whose parameters it loops."""
    if isinstance(statement, ast.For):
        over = dotted_ast(statement.iter.func) if isinstance(statement.iter, ast.Call) else ""
        layer, _, method = over.rpartition(".")
        variable = dotted_ast(statement.target)
        if method == "parameters" and any(variable in _switched_off(step) for step in statement.body):
            yield layer
    elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
        names_set = (dotted_ast(target).rpartition(".") for target in statement.targets)
        yield from (owner for owner, _, last in names_set if last == "requires_grad" and statement.value.value is False)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        owner, _, last = dotted_ast(statement.value.func).rpartition(".")
        flags = [*statement.value.args, *(keyword.value for keyword in statement.value.keywords)]
        if last == "requires_grad_" and any(isinstance(flag, ast.Constant) and flag.value is False for flag in flags):
            yield owner


def is_frozen(call: ast.Call) -> bool:
    """``nn.Parameter(.., requires_grad=False)``: registered like a parameter, trained like a buffer."""
    flags = [k.value for k in call.keywords if k.arg == "requires_grad"] or call.args[1:2]
    return any(isinstance(flag, ast.Constant) and flag.value is False for flag in flags)


def _registered(call: ast.Call, method: str, cls: ModuleClass) -> tuple[str, Attribute] | None:
    role = {
        "self.register_buffer": Role.BUFFER,
        "self.register_parameter": Role.PARAMETER,
        "self.add_module": Role.LAYER,
        "self.register_module": Role.LAYER,
    }.get(dotted_ast(call.func))
    if role is None or not call.args or not isinstance(call.args[0], ast.Constant):
        return None
    value = call.args[1] if len(call.args) > 1 else None
    if isinstance(value, ast.Constant):  # register_parameter("bias", None)
        return None
    maker = ""
    if isinstance(value, ast.Call):
        written = dotted_ast(value.func)
        maker = canonical(cls.facts.imports.resolve(written) or written)
    return str(call.args[0].value), Attribute(role, maker, value, method, cls.facts)


def uses_of_self(
    function: ast.FunctionDef, facts: ModuleFacts, memos: frozenset[str] = frozenset()
) -> list[tuple[str, bool]]:
    """Attributes of `self` that a function uses outside of evaluation, each with whether gradients are on there; what
    is assigned to counts as a use of its setter. What fills one of the `memos` runs once for each key: no step of
    training could keep what it computes with gradients."""
    found: list[tuple[str, bool]] = []
    stack: list[tuple[ast.AST, bool]] = [(node, True) for node in reversed(_until_trained(function.body))]
    while stack:
        node, gradient = stack.pop()
        if isinstance(node, ast.With) and body_without_gradient(node, facts):
            gradient = False
        if isinstance(node, ast.If) and (trained := in_training(node)) is not None:
            stack.extend((n, gradient) for n in reversed(trained))
            continue
        if isinstance(node, ast.If) and (_happens_once(node) or _fills_memo(node, memos)):
            stack.extend((n, gradient) for n in reversed(node.orelse))
            continue
        # Also `checkpoint(self.block, x)`: a reference is as good as a call.
        if isinstance(node, ast.Attribute) and (name := of_self(dotted_ast(node))):
            found.append((name if isinstance(node.ctx, ast.Load) else _setter(name), gradient))
        stack.extend((child, gradient) for child in reversed(list(below(node))))
    return found


def _until_trained(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a function up to ``if self.training: return losses``: what follows is evaluation."""
    leaving = (i for i, s in enumerate(body) if isinstance(s, ast.If) and _is_training(s.test) and _leaves(s))
    return body[: next(leaving, len(body)) + 1]


def _leaves(branch: ast.If) -> bool:
    return isinstance(branch.body[-1], (ast.Return, ast.Raise))


def in_training(branch: ast.If) -> list[ast.stmt] | None:
    """The arm that training takes, where a test of `self.training` leaves the other one to evaluation."""
    if _is_training(branch.test):
        return branch.body
    return branch.orelse if _needs_evaluation(branch.test) else None


def _fills_memo(branch: ast.If, memos: frozenset[str]) -> bool:
    """``if key not in self.memo: self.memo[key] = ..``."""
    test = branch.test
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.NotIn):
        return False
    memo, key = dotted_ast(test.comparators[0]), ast.dump(test.left)
    targets = (t for s in branch.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Subscript))
    return memo in memos and any(dotted_ast(t.value) == memo and ast.dump(t.slice) == key for t in targets)


def _happens_once(branch: ast.If) -> bool:
    """``if self._unset: self._set_up(x); self._unset = False``: the first forward alone, which sees to it that no other
    does."""
    test = branch.test.operand if isinstance(branch.test, ast.UnaryOp) else branch.test
    if isinstance(test, ast.Compare):
        test = test.left
    switch = dotted_ast(test)
    return switch.startswith("self.") and any(
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and any(dotted_ast(target) == switch for target in statement.targets)
        for statement in branch.body
    )


def _is_training(test: ast.expr) -> bool:
    return dotted_ast(test) == "self.training"


def _needs_evaluation(test: ast.expr) -> bool:
    """``not self.training``, also with further conditions."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_needs_evaluation(part) for part in test.values)
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_training(test.operand)

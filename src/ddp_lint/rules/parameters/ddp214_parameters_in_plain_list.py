from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.tensors import layer_kind
from ddp_lint.project.framework_imports import SHARDING
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, of_self
from ddp_lint.source.queries import is_false
from ddp_lint.source.syntax import walk
from ddp_lint.source.tree import called, descendants, names_in, subtree
from ddp_lint.tensors import Kind, ModuleClass, TensorFile

_PLAIN = (cst.List, cst.Tuple, cst.Dict, cst.ListComp, cst.DictComp)
_REGISTERING = {"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
_REGISTERING_METHODS = {"add_module", "register_module", "register_parameter", "setattr"}


class ParametersInPlainList(Rule):
    """Parameters or layers are kept in a plain list and used in forward.

    ## What it does

    Finds `self.layers = [nn.Linear(..), ..]`, a dict or comprehension of such or of the project's own modules with
    parameters, `self.layers.append(nn.Linear(..))`, such a list that a function of the project returns
    (`self.layers = make_layers(depth)`), and lists of the module's own parameters
    (`self.weights = [self.a.weight, self.b.weight]`), when `forward` reads the list and nothing registers its elements.

    ## Why it breaks

    `nn.Module` does not see the elements of a list. New layers in it are not in `parameters()`: no optimizer trains
    them, `.to()` leaves them on the CPU, DDP does not broadcast them, so rank 0 and rank 1 compute with different
    random weights. A second reference to a registered parameter is outdated when the wrapper replaces the parameter:
    FSDP1 raises in forward, FSDP2 reads the old tensor, which gets no gradient, without an error (0.01 off a
    single-process run after two steps; measured on 2 x H200 with NCCL, torch 2.11, and gloo, torch 2.13). Under DDP
    such a reference is correct.

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.scale = nn.Parameter(torch.ones(8))
            self.scales = [self.scale]  # <- DDP214

        def forward(self, x):
            return self.fc(x) * self.scales[0]


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return self.fc(x) * self.scale


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    The elements are registered too: passed to `nn.Sequential`, `nn.ModuleList`, `add_module`, `setattr`. The list is
    not read in forward. Classes that are not an `nn.Module`. Layers whose gradients are turned off by name
    (`self.filters[0].requires_grad_(False)`), and modules that freeze themselves. A list for one module of the project,
    which keeps it from being registered (`self.teacher = [Teacher()]`). Modules that hand the parameters of the list
    out by a method. Only with `--preview`: second references to registered parameters, in a
    project that shards no model.

    ## How to confirm

    `ddp-lint verify model.py --wrap fsdp2`: a parameter without a gradient, or the difference from the single-process
    reference.

    ## Fix safety

    No automatic fix: `nn.ModuleList` or `nn.ParameterList` for new elements, the registered attribute for old ones.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.ModuleList.html
    """

    triggers = Triggers(Trait.KEEPS, file=("torch",))
    oracles = ("nograd", "reference", "exception", "identity")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        owner = TensorFile.of(self.module).owner(node)
        if node.name.value != "__init__" or owner is None or "forward" not in owner.methods:
            return
        lists: dict[str, cst.CSTNode] = {}
        for item in descendants(node.body):
            name = self._filled(item, node)
            if name is not None and name not in lists:
                lists[name] = item
        for name, item in lists.items():
            if self._is_fixed(name, node):
                continue
            if self._read_in_forward(name, node) and not self._registered(name, node):
                self._report(item, name, makes_new=_makes(item))

    def _filled(self, node: cst.CSTNode, function: cst.FunctionDef) -> str | None:
        """The attribute whose plain list this assignment or `append` fills with parameters or layers."""
        if isinstance(node, cst.Assign) and isinstance(node.value, _PLAIN):
            name, value = dotted(node.targets[0].target), node.value
            elements: list[cst.CSTNode] = list(_elements(value))
            if isinstance(value, cst.List) and len(elements) == 1 and self._hides(elements[0]):
                return None
        elif isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
            name = dotted(node.targets[0].target)
            return name if of_self(name) and self._made_by_function(node.value) else None
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "append":
            name, elements = dotted(node.func.value), [a.value for a in node.args]
            if not self._starts_as_list(name, function):
                return None
        else:
            return None
        return name if of_self(name) and any(self._is_trained(e, function) for e in elements) else None

    def _hides(self, element: cst.CSTNode) -> bool:
        """``self.teacher = [Teacher()]``: a list for one module of the project's keeps it from being registered."""
        return isinstance(element, cst.Call) and not layer_kind(self.module.qualified(element.func))

    def _is_fixed(self, name: str, function: cst.FunctionDef) -> bool:
        """Whether gradients are switched off for what the list holds: ``self.filters[0].requires_grad_(False)``."""
        for call in descendants(function.body):
            if isinstance(call, cst.Call) and called(call) == "requires_grad_" and call.args:
                of = call.func.value if isinstance(call.func, cst.Attribute) else None
                if is_false(call.args[0].value) and isinstance(of, cst.Subscript) and dotted(of.value) == name:
                    return True
        return False

    def _starts_as_list(self, name: str, function: cst.FunctionDef) -> bool:
        return any(
            isinstance(n, cst.Assign) and dotted(n.targets[0].target) == name and isinstance(n.value, cst.List)
            for n in descendants(function.body)
        )

    def _is_trained(self, element: cst.CSTNode, function: cst.FunctionDef) -> bool:
        """Whether an element is a parameter, or a layer that has some."""
        if isinstance(element, cst.Call):
            return self._makes_parameters(element)
        value = TensorFile.of(self.module).flow(function).value(element)
        return value.kind is Kind.PARAMETER and bool(value.name)

    def _makes_parameters(self, made: cst.Call) -> bool:
        call = ast.parse(self.module.tree.code_for_node(made).strip(), mode="eval").body
        tensors = TensorFile.of(self.module)
        return isinstance(call, ast.Call) and tensors.classes.makes_parameters(call, tensors.facts)

    def _made_by_function(self, made: cst.Call) -> bool:
        """Whether a function of the project or a method returns a plain list of layers: ``make_layers(depth)``."""
        tensors, written = TensorFile.of(self.module), dotted(made.func)
        owner, own = self.module.class_of(made), written.removeprefix("self.")
        cls = tensors.classes.named(owner.name.value) if owner is not None else None
        if own != written and cls is not None:
            of, method = cls.methods.get(own, (None, None))
            found = (of.facts, method) if of is not None and method is not None else None
        else:
            found = tensors.classes.function(written, tensors.facts)
        return found is not None and any(
            isinstance(element, ast.Call) and tensors.classes.makes_parameters(element, found[0])
            for element in _returned(found[1])
        )

    def _read_in_forward(self, name: str, function: cst.FunctionDef) -> bool:
        owner = TensorFile.of(self.module).owner(function)
        if owner is None:
            return False
        reading = set(_methods_reading(owner, name[5:]))
        given = any(_gives_parameters(owner.methods[method][1]) for method in reading - {"forward", "__init__"})
        return not given and not reading.isdisjoint(owner.forward_methods)

    def _registered(self, name: str, function: cst.FunctionDef) -> bool:
        for node in descendants(function.body):
            if isinstance(node, cst.Call):
                called = dotted(node.func).rpartition(".")[2]
                uses = any(dotted(n) == name for a in node.args for n in subtree(a.value))
                if uses and (called in _REGISTERING or called in _REGISTERING_METHODS):
                    return True
            if isinstance(node, cst.For) and name in names_in(node.iter):
                return True  # registered one by one
        return False

    def _report(self, node: cst.CSTNode, name: str, *, makes_new: bool) -> None:
        if makes_new:
            what = "is a plain list: the optimizer and the wrapper do not see its parameters, so they are never trained"
        else:
            what = "holds second references to parameters: FSDP1 raises, FSDP2 reads tensors without a gradient"
        self.report(
            node,
            f"`{name}` {what}",
            help="use nn.ModuleList or nn.ParameterList, or read the registered attribute",
            confidence=None if makes_new or self._is_sharded() else Confidence.LOW,
        )

    def _is_sharded(self) -> bool:
        """Whether the project shards any model: nothing else minds a second reference."""
        project = self.module.project
        return project is None or any(project.contents.holding(word) for word in SHARDING)


def _elements(value: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    if isinstance(value, (cst.List, cst.Tuple, cst.Dict)):
        yield from (e.value for e in value.elements)
    elif isinstance(value, cst.ListComp):
        yield value.elt
    elif isinstance(value, cst.DictComp):
        yield value.value


def _returned(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The elements of the one list, tuple or dictionary that a function returns."""
    returns = [node.value for node in walk(function) if isinstance(node, ast.Return)]
    value = returns[0] if len(returns) == 1 else None
    if isinstance(value, ast.Name):
        stores = [n.value for n in walk(function) if isinstance(n, ast.Assign) and dotted_ast(n.targets[0]) == value.id]
        if len(stores) == 1 and isinstance(stores[0], ast.List):
            adding = (
                n for n in walk(function) if isinstance(n, ast.Call) and dotted_ast(n.func) == f"{value.id}.append"
            )
            yield from (call.args[0] for call in adding if call.args)
        value = stores[0] if len(stores) == 1 else None
    if isinstance(value, (ast.List, ast.Tuple)):
        yield from value.elts
    elif isinstance(value, ast.Dict):
        yield from value.values
    elif isinstance(value, ast.ListComp):
        yield value.elt
    elif isinstance(value, ast.DictComp):
        yield value.value


def _methods_reading(owner: ModuleClass, attribute: str) -> Iterator[str]:
    """Names of the methods that read `self.attribute`."""
    for name, (_, node) in owner.methods.items():
        for inner in walk(node):
            if isinstance(inner, ast.Attribute) and inner.attr == attribute and isinstance(inner.ctx, ast.Load):
                yield name
                break


def _gives_parameters(method: ast.FunctionDef) -> bool:
    """Whether a method hands out parameters by itself: those of a plain list for an optimizer, or to freeze them."""
    words = ("parameters", "named_parameters", "requires_grad_", "requires_grad")
    return any(isinstance(node, ast.Attribute) and node.attr in words for node in walk(method))


def _makes(node: cst.CSTNode) -> bool:
    """Whether the elements are built on the spot: in no other place can they be registered."""
    if isinstance(node, cst.Assign):
        return isinstance(node.value, cst.Call) or any(isinstance(e, cst.Call) for e in _elements(node.value))
    return isinstance(node, cst.Call) and any(isinstance(a.value, cst.Call) for a in node.args)

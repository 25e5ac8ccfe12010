from __future__ import annotations

import ast
import collections
import functools
import itertools
from typing import TypeGuard

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import canonical
from ddp_lint.knowledge.tensors import layer_kind
from ddp_lint.launch.helpers import helper_of
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import chosen_apart, exclusive
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.syntax import FunctionNode, calls_below
from ddp_lint.tensors import TensorFile
from ddp_lint.tensors.classes import ModuleClass, ModuleClasses
from ddp_lint.tensors.contexts import without_gradient
from ddp_lint.view.accumulation import is_backward
from ddp_lint.view.wraps import Wrap, argument

#: What an expression that ends with it has no gradients of.
_DETACHING = frozenset({"detach", "data", "item"})
_DDP = "torch.nn.parallel.DistributedDataParallel"


_CONVERTS = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"


class TwoForwardsBeforeBackward(Rule):
    """A DDP model with buffers runs forward twice before one backward.

    ## What it does

    Finds two calls of the same DDP model, the first with gradients and not detached, before the `backward()` of the
    first, when `broadcast_buffers` was left on: the two passes of a discriminator, of a siamese or contrastive loss,
    also inside a function that gets the model and returns the loss. The wrap may be in a base class, also in another
    file.

    ## Why it breaks

    Each forward of DDP first broadcasts the buffers of rank 0 in place. Running statistics, position ids and the like
    that the first forward saved for its backward are overwritten by the second: with torch 2.12 and older
    `backward()` raises "modified by an inplace operation" on every rank, for BatchNorm in train and eval mode and for
    buffers that are only read. Measured on 2 x H200 (NCCL) and gloo with torch 2.11; torch 2.13 does not raise.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(net.to(device))


    def train_step(real, fake):
        real_score = model(real)
        fake_score = model(fake)  # <- DDP206
        (fake_score.mean() - real_score.mean()).backward()


    train_step(torch.randn(4, 8, device=device), torch.randn(4, 8, device=device))
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(net.to(device))


    def train_step(real, fake):
        real_score, fake_score = model(torch.cat([real, fake])).chunk(2)
        (fake_score.mean() - real_score.mean()).backward()


    train_step(torch.randn(4, 8, device=device), torch.randn(4, 8, device=device))
    dist.destroy_process_group()
    ```

    ## When it is silent

    `broadcast_buffers=False`, a backward between the two calls, a first call under `torch.no_grad()` or whose result is
    read with `.detach()` alone, calls in different branches of an `if`, models whose wrap is not found, models whose
    complete definition is found and has no buffers that backward needs (SyncBatchNorm saves none; nor does what only
    compares, adds, joins, copies or updates a buffer), tests; and every file if `target-torch` is 2.13 or newer.
    Only with `--preview`: models that do not surely have BatchNorm. The class that is wrapped, or the layers in place,
    must be seen and make it under no condition; whether backward reads another buffer, and what a function chooses that
    makes models by their names, is not certain.

    ## How to confirm

    `ddp-lint verify train.py` with torch 2.12 or older: the exception in backward. Torch 2.13 refutes it.

    ## Fix safety

    No automatic fix: one forward over the concatenated batch, or `broadcast_buffers=False` (then synchronise BatchNorm
    statistics in another way, such as SyncBatchNorm).

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    confidence = Confidence.MEDIUM
    # a test that passes has shown that it does not raise
    triggers = Triggers("backward", file=("torch",), tests=False)
    oracles = ("exception",)
    gone_in = (2, 13)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        open_calls: dict[str, cst.Call] = {}  # DDP models called with a graph that waits for its backward
        for call in self.module.calls_as_run(node):
            name = dotted(call.func)
            if is_backward(call):
                self._report_pending(open_calls)
                open_calls.clear()
                continue
            for given in self._scored_twice(call):
                open_calls.setdefault(given, call)
                self._pending.setdefault(given, (call, call))
            first = open_calls.get(name)
            if first is not None and not (
                exclusive(self.module, first, call) or chosen_apart(self.module, first, call)
            ):
                self._pending[name] = (first, call)
            is_open = first is None and self._keeps_graph(call) and self._is_wrapped(name, call)
            if is_open and not self._is_read_without(call):
                open_calls[name] = call
        self._pending.clear()

    def start(self) -> None:
        self._pending: dict[str, tuple[cst.Call, cst.Call]] = {}
        self._names: dict[cst.FunctionDef, dict[str, list[cst.Name]]] = {}

    def _scored_twice(self, call: cst.Call) -> list[str]:
        """The DDP models that a call gives to a function of the project which calls each twice, whatever else it does,
        for what it returns: ``loss = d_loss(d, real, fake)``."""
        names = [dotted(arg.value) for arg in call.args if arg.keyword is None and not arg.star]
        wrapped = [name for name in names if self._is_wrapped(name, call)]
        helper = helper_of(self.module, call) if wrapped and self._keeps_graph(call) else None
        if helper is None or len(helper.returned) != 1 or helper.function.decorator_list:
            return []
        given = {name: place for name, place in zip(names, helper.positional, strict=False) if name in wrapped}
        return [name for name, place in given.items() if _always_called(helper.function, place) > 1]

    def _report_pending(self, open_calls: dict[str, cst.Call]) -> None:
        for name, (first, second) in self._pending.items():
            if name in open_calls:
                self.report(
                    second,
                    f"`{name}` runs forward twice before backward: DDP overwrites its buffers between, and "
                    "backward raises",
                    labels=[(first, "the first forward saves the buffers for its backward")],
                    notes=["only if the model has buffers, as BatchNorm has; torch 2.13 does not raise"],
                    help="run one forward over torch.cat of the batches, or use DDP(.., broadcast_buffers=False)",
                    confidence=None if self._surely_has_statistics(name, first) else Confidence.LOW,
                )
        self._pending.clear()

    def _keeps_graph(self, call: cst.Call) -> bool:
        return not self._is_detached(call) and not without_gradient(self.module, call)

    def _is_detached(self, node: cst.CSTNode) -> bool:
        """Whether an expression is part of one whose result has no gradients: ``loss(output, y).detach()``."""
        for each in itertools.chain((node,), self.module.ancestors(node)):
            after = self.module.parent(each)
            if isinstance(after, cst.Attribute) and after.value is each and after.attr.value in _DETACHING:
                return True
            if not isinstance(each, cst.BaseExpression | cst.Arg):
                break
        return False

    def _is_read_without(self, call: cst.Call) -> bool:
        """Whether the name that a result is given is read in such expressions alone, up to where it is given another
        one, and nowhere above."""
        assign, function = self.module.parent(call), self.module.function_of(call)
        name = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
        if function is None or not isinstance(name, cst.Name):
            return False
        place = self._names_in(function)[name.value].index(name)
        later = self._names_in(function)[name.value][place + 1 :]
        read = list(itertools.takewhile(lambda n: not isinstance(self.module.parent(n), cst.AssignTarget), later))
        above = self._names_in(function)[name.value][:place]
        return bool(read) and not above and all(map(self._is_detached, read))

    def _names_in(self, function: cst.FunctionDef) -> dict[str, list[cst.Name]]:
        """The names in a function, each where it is, in source order."""
        if function not in self._names:
            found = self._names[function] = collections.defaultdict(list)
            for node in self.module.inside(function):
                if type(node) is cst.Name:
                    found[node.value].append(node)
        return self._names[function]

    def _is_wrapped(self, name: str, at: cst.Call) -> bool:
        if not name:
            return False
        wrap = self.module.wraps.of(name, at) or self._at_top_level(name)
        if wrap is not None:
            kept = self._has_no_buffers(wrap) or wrap.inner in self._synchronised
            return all(map(_broadcasts, self._ways(wrap))) and not kept
        return bool(of_self(name)) and self._wrapped_by_class(of_self(name), at)

    def _ways(self, wrap: Wrap) -> list[Wrap]:
        """All wraps that a function gives one name: who leaves the buffers alone in one arm knows which models have
        them."""
        function = self.module.function_of(wrap.call)
        return [wrap, *(w for w in self.module.wraps.made_in(wrap.outer, function) if not w.tested)]

    def _has_no_buffers(self, wrap: Wrap) -> bool:
        classes, made = TensorFile.of(self.module).classes, self._class_of(wrap)
        if made is not None:
            return classes.without_buffers(made)
        makers = self._makers(wrap)
        of_layers = wrap.handed is not None or all(
            isinstance(value, ast.Call) and layer_kind(facts.qualified(value.func)) for value, facts in makers
        )
        return bool(makers) and of_layers and all(_is_without_buffers(*maker, classes) for maker in makers)

    def _surely_has_statistics(self, name: str, at: cst.Call) -> bool:
        """Whether all that makes the model is seen to make running statistics, which backward reads."""
        wrap = self.module.wraps.of(name, at) or self._at_top_level(name)
        if wrap is None:
            return False
        classes, made = TensorFile.of(self.module).classes, self._class_of(wrap)
        if made is not None:
            return classes.has_buffers(made, running=True)
        makers = self._makers(wrap)
        return bool(makers) and all(_makes_statistics(*maker, classes) for maker in makers)

    def _makers(self, wrap: Wrap) -> list[tuple[ast.expr, ModuleFacts]]:
        """What makes a model whose class is not seen: in the file that hands it over, or, also by a name, beside the
        wrap: ``DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))``."""
        if wrap.handed is not None:
            name, facts = wrap.outer.rpartition(".")[2], wrap.handed.facts
            handed = [_unwrapped(value, facts) for value in wrap.handed.made_from(name)]
            return [(value, facts) for value in handed if dotted_ast(value) != name]
        model, here = argument(wrap.call, 0, "module"), self.module.facts
        if model is None or here is None:
            return []
        values = self.module.assignments(model) if isinstance(model, cst.Name) else [model]
        trees = [ast.parse(self.module.code(value), mode="eval").body for value in values]
        return [(_unwrapped(tree, here), here) for tree in trees]

    def _class_of(self, wrap: Wrap) -> ModuleClass | None:
        model = argument(wrap.call, 0, "module")
        kind = self.module.constructed_by(model) if model is not None else ""
        classes = TensorFile.of(self.module).classes
        return classes.imported(kind) or classes.named(kind.removeprefix(f"{self.module.name}."))

    @functools.cached_property
    def _synchronised(self) -> frozenset[str]:
        """The models whose normalisation was converted to SyncBatchNorm, whose backward needs no buffers."""
        calls = (c for c in self.module.of_type(cst.Call) if c.args and self.module.qualified(c.func) == _CONVERTS)
        return frozenset(filter(None, (dotted(call.args[0].value) for call in calls)))

    def _at_top_level(self, name: str) -> Wrap | None:
        """The wrap of a module-level name that functions use."""
        return next((wrap for wrap in self.module.wraps.made_in(name, None) if wrap.kind == "ddp"), None)

    def _wrapped_by_class(self, attribute: str, at: cst.Call) -> bool:
        """Whether the class of `at`, or a base of it in another file, assigns a DDP model to the attribute."""
        owner, project = self.module.class_of(at), self.module.project
        if owner is None or project is None:
            return False
        below = self.module.name_of(owner)
        for name in project.classes.lineage(below):
            facts = project.classes.find(name)
            for value, _ in facts.attribute(attribute) if facts is not None else ():
                if isinstance(value, ast.Call) and self._makes_ddp(value, name, below):
                    return True
        return False

    def _makes_ddp(self, call: ast.Call, class_name: str, below: str) -> bool:
        """Whether a call in a class is DDP itself, or a method whose body wraps with DDP and returns: the one that
        objects of the class `below` have, which may override it."""
        project = self.module.project
        facts = project.classes.find(class_name) if project is not None else None
        if project is None or facts is None:
            return False
        called = dotted_ast(call.func)
        if canonical(project.meanings.canonical(facts.module.imports.resolve(called) or "")) == _DDP:
            return _broadcasts_ast(call)
        name = project.meanings.of(facts.module, call.func)
        if project.own.wrappers.find(called, name):
            own = project.own.wrapping(name)
            return own.kind == "ddp" and own.given is not None and "broadcast_buffers" not in own.given
        if not called.startswith("self.") or called.count(".") != 1:
            return False
        found = project.classes.method(below, called[5:])
        if found is None:
            return False
        imports = found[0].module.imports
        wraps = [
            inner
            for inner in calls_below(found[1])
            if canonical(project.meanings.canonical(imports.resolve(dotted_ast(inner.func)) or "")) == _DDP
        ]
        return bool(wraps) and all(_broadcasts_ast(inner) for inner in wraps)


def _always_called(function: FunctionNode, name: str) -> int:
    """How often a function calls a parameter for a result with gradients, outside of branches, loops and blocks."""
    straight = [s for s in function.body if isinstance(s, (ast.Assign, ast.AnnAssign, ast.Expr, ast.Return))]
    calls = [call for statement in straight for call in calls_below(statement)]
    if any(last_part(call.func) in ("backward", "grad") for call in calls_below(function)):
        return 0
    detached = {part.value for s in straight for part in ast.walk(s) if _is_detaching(part)}
    return sum(dotted_ast(call.func) == name and call not in detached for call in calls)


def _is_detaching(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr in _DETACHING


def _broadcasts(wrap: Wrap) -> bool:
    hidden = any(arg.star for arg in wrap.call.args)
    given = argument(wrap.call, 4, "broadcast_buffers") is not None or not wrap.lacks("broadcast_buffers")
    return wrap.kind == "ddp" and not hidden and not given


def _unwrapped(value: ast.expr, facts: ModuleFacts) -> ast.expr:
    """``Net()`` of ``DDP(Net().to(device))``."""
    while isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cuda"):
            value = value.func.value
        elif value.args and canonical(facts.qualified(value.func)) == _DDP:
            value = value.args[0]
        else:
            break
    return value


def _is_without_buffers(value: ast.expr, facts: ModuleFacts, classes: ModuleClasses) -> bool:
    """Whether all calls in what makes a model are seen to make nothing with buffers; its parts are made there, too."""
    if not isinstance(value, ast.Call):
        return False
    parts = value.args if layer_kind(facts.qualified(value.func)) == "Sequential" else []
    if any(isinstance(part, (ast.Name, ast.Starred)) for part in parts):
        return False
    return not any(classes.may_have_buffers(n, facts) for n in calls_below(value))


def _makes_statistics(value: ast.expr, facts: ModuleFacts, classes: ModuleClasses) -> bool:
    """Whether a call, or one of what it is given, surely makes layers with running statistics that stay as they are."""
    calls = list(calls_below(value)) if isinstance(value, ast.Call) else []
    if any(facts.qualified(call.func) == _CONVERTS for call in calls):
        return False
    return any(classes.makes_buffers(call, facts, running=True) for call in calls)


def _broadcasts_ast(call: ast.Call) -> bool:
    return not any(k.arg in ("broadcast_buffers", None) for k in call.keywords)

from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.handed_on import Handed
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import calls_in, literal_text, path_of
from ddp_lint.source.syntax import calls_below, function_at, walk
from ddp_lint.source.tree import descendants, method_of
from ddp_lint.tensors.classes import is_module_class, makes_module
from ddp_lint.view.wraps import Wrap, argument

#: The kinds of wrapper that register parameters when they are made.
_REGISTERING = ("ddp", "fsdp1")
_DTYPES = ("float16", "half", "bfloat16", "float64", "double")


#: Words of a model that may be on a GPU when it is made.
_GPU = re.compile(r"cuda|device|gpu", re.IGNORECASE)


class LayersChangeAfterWrap(Rule):
    """Layers are added to a model, or cast, after DDP has registered its parameters.

    ## What it does

    Finds `model.head = nn.Linear(...)`, `add_module`, `.half()`, `.bfloat16()`, `.double()` and `.to(dtype)` on a
    model that is already wrapped with DDP, and layers added to a model already wrapped with FSDP1; also by a method of
    the model's own class. `.cuda()` and `.to(device)` of a model that was on the CPU when DDP wrapped it; `.cpu()` of a
    model on a GPU that the same function moves back, as to make room or to save it, also where another file wraps the
    model, hands it over and trains it afterwards.

    ## Why it breaks

    DDP registers its gradient hooks in the constructor, on the parameters that exist then. A layer added later has no
    hook: rank 0 and rank 1 train it on their own batches, without an error. A cast replaces the parameters that the
    buckets were built for, and so does a move. Measured on 2 x H200 (NCCL, torch 2.11) and on gloo (torch 2.13): no
    error, ranks differ by 0.0065 (added layer) and 0.0099 (cast) after two steps; FSDP1 behaves like DDP for an added
    layer. Moved from the CPU over gloo, they differ by 0.14; over NCCL alone DDP raises on parameters on the CPU. What
    is changed and changed back has lost its hooks as well: with each change of its device or type a parameter gets a
    new end of its graph (gloo, to double and back to float: 0.24 after two steps).

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 4)).to(device))
    model.module.add_module("head", torch.nn.Linear(4, 1).to(device))  # <- DDP602
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4)).to(device)
    net.add_module("head", torch.nn.Linear(4, 1).to(device))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Changes before the wrap; `.float()`, and `.to(device)` of a model that something may have moved before, which
    usually change nothing; casts under FSDP (measured harmless); changes after the last `backward()`, as for
    evaluation; a change after which the model is wrapped again; models whose wrap is not seen in the function or the
    constructor of the class.

    ## How to confirm

    `ddp-lint verify train.py`: the gradients of the added layer differ between the ranks.

    ## Fix safety

    No automatic fix: the change has to move above the wrap.

    ## References

    - https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    - https://github.com/pytorch/pytorch/issues/104336
    """

    triggers = Triggers(
        "DistributedDataParallel",
        "FullyShardedDataParallel",
        "add_module",
        "append",
        "insert",
        "half",
        "bfloat16",
        "double",
        "to",
        "cuda",
        "cpu",
        file=("DistributedDataParallel", "FullyShardedDataParallel", "cpu"),
    )
    oracles = ("gradient", "parameter", "identity")

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(node.func, cst.Attribute):
            return
        method = node.func.attr.value
        wrap = self.module.wraps.around(path_of(node.func.value), node)
        if wrap is None or wrap.kind not in _REGISTERING:
            return
        grows = method in ("append", "insert") and bool(node.args) and makes_module(self.module, node.args[-1].value)
        if grows or method in ("add_module", "register_module") or self._grows_by(node, method, wrap):
            self._report(node, wrap, "a layer is added")
        elif wrap.kind == "ddp" and (method in ("half", "bfloat16", "double") or self._casts(node, method)):
            self._report(node, wrap, "the parameters are cast")
        elif wrap.kind == "ddp" and self._moves(node, method, wrap) and self._is_on_host(wrap):
            self._report(node, wrap, "the parameters are moved from the CPU")
        elif wrap.kind == "ddp" and (back := self._moves_back(node, method, wrap)) is not None:
            self._report_round_trip(node, back, wrap)

    def _moves_back(self, node: cst.Call, method: str, wrap: Wrap) -> cst.Call | None:
        """The call that moves a model to the GPU again, behind one that moves it from there to the CPU."""
        name = _of_model(node)
        if not self._is_to_host(node, method) or self.module.wraps.of(name, node) != wrap:
            return None
        if wrap.tested or (wrap.lacks("device_ids") and not self.module.file.holds("cuda")):
            return None
        calls = (call for call in calls_in(self.module.scope_of(node)) if self.module.wraps.follows(call, node))
        ways = ((call, method_of(call)) for call in calls if _of_model(call) == name)
        moves = (call for call, way in ways if way == "cuda" or (way == "to" and not self._is_to_host(call, way)))
        return next((call for call in moves if not exclusive(self.module, call, node)), None)

    def _is_to_host(self, node: cst.Call, method: str) -> bool:
        """``model.cpu()``, ``model.to("cpu")``"""
        given = node.args[0].value if node.args else None
        if isinstance(given, cst.Call) and self.module.qualified(given.func) == "torch.device" and given.args:
            given = given.args[0].value
        return method == "cpu" or (method == "to" and given is not None and literal_text(given) == "cpu")

    def _report_round_trip(self, node: cst.Call, back: cst.Call, wrap: Wrap) -> None:
        if self._wrapped_again(node, wrap) or not self._trains_in_rounds(node, wrap):
            return
        self.report(
            node,
            f"`{wrap.outer}` is moved to the CPU and back, and loses the hooks of DDP: the replicas drift apart",
            notes=["rank 0 and rank 1 train it on their own batches, without an error"],
            labels=[(back, "moves it back, without the hooks"), (wrap.place, "DDP places its gradient hooks here")],
            help="copy the state to the CPU, or wrap the model again",
            confidence=Confidence.MEDIUM,
        )

    def _trains_in_rounds(self, node: cst.CSTNode, wrap: Wrap) -> bool:
        """Whether a backward can follow, also in the next round of a loop around; where another function wraps the
        model and hands it over, in a round of that one."""
        if wrap.handed is not None and not self._backwards_in(self.module.scope_of(node)):
            return _goes_on_training(wrap.handed)
        if self._trains_afterwards(node):
            return True
        loops = (up for up in self.module.ancestors(node) if isinstance(up, (cst.For, cst.While)))
        return any(method_of(call) == "backward" for loop in loops for call in calls_in(loop))

    def _moves(self, node: cst.Call, method: str, wrap: Wrap) -> bool:
        moved = (f"{wrap.outer}.{method}", f"{wrap.outer}.module.{method}")
        return method in ("to", "cuda") and path_of(node.func) in moved

    def _is_on_host(self, wrap: Wrap) -> bool:
        """Whether a wrap surely gets a model on the CPU: it is made in the same function, and nothing moves it."""
        model, project = argument(wrap.call, 0, "module"), self.module.project
        bound = self.module.bindings(model, wrap.call) if model is not None and wrap.lacks("device_ids") else []
        made = next(self.module.scopes.last_before(bound, wrap.call), None)
        if made is None or project is None or made.kind != "assign" or not isinstance(made.value, cst.Call):
            return False
        definition = project.meanings.definition(self.module.callee(made.value))
        if definition is None or not isinstance(definition[1], ast.ClassDef) or _GPU.search(ast.unparse(definition[1])):
            return False
        moved = (f"{wrap.inner}.{way}" for way in ("to", "cuda"))
        before = {dotted(c.func) for c in self.module.of_type(cst.Call) if self.module.wraps.before(c, wrap)}
        return before.isdisjoint(moved) and not _GPU.search(self.module.code(made.value))

    def _grows_by(self, node: cst.Call, method: str, wrap: Wrap) -> bool:
        """Whether a call is of a method of the wrapped module's own class that adds a layer to it."""
        project, name = self.module.project, path_of(node.func).rpartition(".")[0]
        inner = argument(wrap.call, 0, "module")
        if project is None or inner is None or name not in (f"{wrap.outer}.module", wrap.inner):
            return False
        found = project.classes.method(self.module.constructed_by(inner), method)
        if found is None:
            return False
        facts, function = found[0].module, found[1]
        parts = list(walk(function))
        made = {
            dotted_ast(part.targets[0])
            for part in parts
            if isinstance(part, ast.Assign) and _is_layer(project, facts, part.value)
        }
        return any(_adds_layer(project, facts, part, made) for part in parts)

    def _wrapped_again(self, node: cst.CSTNode, wrap: Wrap) -> bool:
        """Whether the same function wraps the model anew behind a place."""
        wraps = self.module.wraps
        return any(w.outer == wrap.outer and not w.tested and wraps.before(node, w) for w in wraps.all)

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if not isinstance(target, cst.Attribute) or not makes_module(self.module, node.value):
            return
        wrap = self.module.wraps.around(path_of(target.value), node)
        if wrap is not None and wrap.kind in _REGISTERING:
            self._report(node, wrap, "a layer is added")

    def _casts(self, node: cst.Call, method: str) -> bool:
        names = [self.module.qualified(arg.value) for arg in node.args]
        return method == "to" and any(name.rpartition(".")[2] in _DTYPES for name in names)

    def _trains_afterwards(self, node: cst.CSTNode) -> bool:
        """Whether a backward can follow: in this function one does, or none is in it at all."""
        backwards = self._backwards_in(self.module.scope_of(node))
        return not backwards or any(self.module.wraps.follows(c, node) for c in backwards)

    def _backwards_in(self, scope: cst.CSTNode) -> list[cst.Call]:
        return [n for n in descendants(scope) if isinstance(n, cst.Call) and method_of(n) == "backward"]

    def _report(self, node: cst.CSTNode, wrap: Wrap, what: str) -> None:
        if not self._trains_afterwards(node) or self._wrapped_again(node, wrap):
            return
        self.report(
            node,
            f"{what} after `{wrap.outer}` was wrapped, which has no hook for it: the replicas drift apart",
            notes=["rank 0 and rank 1 train it on their own batches, without an error"],
            labels=[(wrap.place, "the wrapper registers the parameters here")],
            help="change the model first, wrap it last",
        )


def _goes_on_training(handed: Handed) -> bool:
    """Whether the function that hands a model over has a backward behind the call, or in a loop around it."""
    line = handed.call.lineno
    around = function_at(handed.facts.tree, line)
    if around is None or around.name == "__init__":
        return False
    loops = [n for n in walk(around) if isinstance(n, (ast.For, ast.While)) and handed.call in walk(n)]
    behind = (c for c in calls_below(around) if c.lineno > line)
    inside = (c for loop in loops for c in calls_below(loop))
    return any(last_part(call.func) == "backward" for call in (*behind, *inside))


def _of_model(call: cst.Call) -> str:
    """The model that a method is called of, without `.module`."""
    return dotted(call.func).rpartition(".")[0].removesuffix(".module")


def _adds_layer(project: Project, facts: ModuleFacts, node: ast.AST, made: set[str]) -> bool:
    """Whether a line of a method gives its object a layer: ``self.head = nn.Linear(..)``, ``self.heads.append(..)``,
    also by a name that it is `made` under."""

    def is_layer(value: ast.expr) -> bool:
        return dotted_ast(value) in made - {""} or _is_layer(project, facts, value)

    if isinstance(node, ast.Assign):
        return dotted_ast(node.targets[0]).startswith("self.") and is_layer(node.value)
    if not isinstance(node, ast.Call) or not dotted_ast(node.func).startswith("self."):
        return False
    method = last_part(node.func)
    return method == "add_module" or (method in ("append", "insert") and bool(node.args) and is_layer(node.args[-1]))


def _is_layer(project: Project, facts: ModuleFacts, value: ast.expr) -> bool:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("to", "cuda"):
        value = value.func.value
    return isinstance(value, ast.Call) and is_module_class(project, project.meanings.of(facts, value.func))

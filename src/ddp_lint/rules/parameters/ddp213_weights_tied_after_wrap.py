from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import is_false, path_of
from ddp_lint.source.syntax import FunctionNode, calls_below
from ddp_lint.source.tree import method_of
from ddp_lint.view.wraps import Wrap, argument


class WeightsTiedAfterWrap(Rule):
    """Weights are tied after the model was wrapped with DDP or FSDP1.

    ## What it does

    Finds `model.module.head.weight = model.module.embed.weight` on a model that DDP or FSDP1 has already wrapped in
    the same function or class; also by a method of the model's own class.

    ## Why it breaks

    DDP has a hook on each of the two parameters; after the tie one of them never gets a gradient. The second step
    raises "Expected to have finished reduction in the prior iteration" on both ranks. FSDP1 raises on one rank while
    the other waits in its collective. Measured on two GPUs (NCCL, torch 2.11) and gloo (torch 2.13).

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
    net = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Tanh(), torch.nn.Linear(8, 8, bias=False))
    model = DistributedDataParallel(net.to(device))
    model.module[2].weight = model.module[0].weight  # <- DDP213
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8, device=device)).square().mean().backward()
        optimizer.step()
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
    net = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Tanh(), torch.nn.Linear(8, 8, bias=False))
    net[2].weight = net[0].weight
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8, device=device)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Ties before the wrap (in `__init__`, while building the model; a method that has tied them then may do so again):
    measured right under every wrap. Ties after `fully_shard`, which gave the right result there, and ties after DDP
    with `find_unused_parameters=True`: the weights of two ranks were equal after four steps, with NCCL and with gloo.

    ## How to confirm

    `ddp-lint verify train.py`: the exception of the second step.

    ## Fix safety

    No automatic fix: tie first, wrap last.

    ## References

    - https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """

    triggers = Triggers(
        "weight",
        "bias",
        "DistributedDataParallel",
        "FullyShardedDataParallel",
        file=("DistributedDataParallel", "FullyShardedDataParallel"),
    )
    oracles = ("exception", "identity")

    def visit_Assign(self, node: cst.Assign) -> None:
        target, value = node.targets[0].target, node.value
        if not (_is_weight(target) and _is_weight(value)):
            return
        left, right = path_of(target), path_of(value)
        wrap = self.module.wraps.around(left.rpartition(".")[0], node)
        if wrap is not None and left.partition(".")[0] == right.partition(".")[0]:
            self._report(node, wrap)

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(node.func, cst.Attribute):
            return
        path = path_of(node.func.value)
        wrap = self.module.wraps.around(path, node)
        inner = argument(wrap.call, 0, "module") if wrap is not None else None
        if wrap is None or inner is None or path not in (f"{wrap.outer}.module", wrap.inner):
            return
        project, method = self.module.project, node.func.attr.value
        owner = self.module.constructed_by(inner)
        found = project.classes.method(owner, method) if project is not None else None
        if project is None or found is None or not _ties(found[1]) or self._is_tied_before(node, wrap, method):
            return
        init = project.classes.method(owner, "__init__")
        if init is None or all(last_part(call.func) != method for call in calls_below(init[1])):
            self._report(node, wrap)

    def _is_tied_before(self, node: cst.Call, wrap: Wrap, method: str) -> bool:
        """Whether the same method has tied the weights before the wrap: another call changes nothing."""
        calls = (call for call in self.module.of_type(cst.Call) if method_of(call) == method and call is not node)
        return any(self.module.wraps.before(call, wrap) or self._is_inside(call, wrap) for call in calls)

    def _is_inside(self, call: cst.Call, wrap: Wrap) -> bool:
        return any(up is wrap.call for up in self.module.ancestors(call))

    def _report(self, node: cst.CSTNode, wrap: Wrap) -> None:
        if wrap.kind not in ("ddp", "fsdp1"):
            return
        unused = argument(wrap.call, None, "find_unused_parameters")
        if unused is not None and not is_false(unused):  # it waits for the gradients of those alone that are used
            return
        self.report(
            node,
            f"weights are tied after `{wrap.outer}` was wrapped: the second step raises",
            notes=["the wrapper waits for a gradient that never arrives"],
            labels=[(wrap.place, "the wrapper registers the parameters here")],
            help="tie first, wrap last",
        )


def _ties(method: FunctionNode) -> bool:
    """Whether a method ties two weights of its object, whatever it gets: ``self.head.weight = self.embed.weight``."""
    for statement in method.body:
        if isinstance(statement, ast.Assign) and all(
            _is_own_weight(dotted_ast(each)) for each in (statement.targets[0], statement.value)
        ):
            return True
    return False


def _is_own_weight(name: str) -> bool:
    return name.startswith("self.") and name.count(".") > 1 and name.endswith((".weight", ".bias"))


def _is_weight(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value in ("weight", "bias")

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.view.wraps import Wrap, root_name

_READS = ("item", "tolist")
_CASTS = ("float", "bool", "int")
_REDUCTIONS = frozenset({"norm", "sum", "max", "min", "mean", "any", "all", "amax", "amin"})


def _reduced(read: cst.Call, given: Mapping[str, cst.BaseExpression]) -> cst.Call | None:
    """The reduction that a host read takes its number from: `p.norm()` of `p.norm().item()` and `float(p.norm())`;
    `given` are the values of names."""
    if called(read) in _READS and isinstance(read.func, cst.Attribute):
        operand = read.func.value
    elif dotted(read.func) in _CASTS and len(read.args) == 1:
        operand = read.args[0].value
    else:
        return None
    operand = given.get(dotted(operand), operand)
    # sqrt() and std() redistribute a DTensor first
    return operand if isinstance(operand, cst.Call) and called(operand) in _REDUCTIONS else None


def _speaks_of(node: cst.CSTNode, own: set[str]) -> bool:
    return any(isinstance(n, cst.Name) and n.value in own for n in subtree(node))


def _parameter_of(reduction: cst.Call) -> str:
    """The model whose parameter is reduced by its name: `model` of `model.layers[0].weight.grad.abs().max()`."""
    node: cst.BaseExpression = reduction
    while isinstance(node, (cst.Call, cst.Attribute)):
        if isinstance(node, cst.Attribute) and node.attr.value in ("weight", "bias"):
            return root_name(node.value).partition(".")[0]
        node = node.func if isinstance(node, cst.Call) else node.value
    return ""


class ShardReadAsWhole(Rule):
    """A norm, sum or test of a sharded parameter is used on each rank as if it were global.

    ## What it does

    Finds `p.norm().item()`, `p.grad.sum().item()`, `float(p.abs().max())`, `torch.isnan(p).any()` and the like,
    with `p` from the parameters of a model that FSDP wrapped in the same scope, or that comes wrapped from another
    file, or named as `model.fc.weight`.

    ## Why it breaks

    A rank holds a shard. FSDP1 reduces the local part; FSDP2's DTensor gives a partial result whose `.item()` is
    the local number. Measured on 2 x H200 (NCCL, torch 2.11) and on gloo (torch 2.13): the true norm is 1.0108,
    FSDP1 gives 1.0108 and 0.0, FSDP2 gives 0.7675 on rank 0 and 0.6577 on rank 1, without an error. A decision on
    such a number (a NaN test, a clip) then differs between the ranks.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Linear(4, 4, device=device)
    fully_shard(model)
    for name, p in model.named_parameters():
        norm = p.norm().item()  # <- DDP612
        print(dist.get_rank(), name, norm)

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Linear(4, 4, device=device)
    fully_shard(model)
    for name, p in model.named_parameters():
        norm = p.full_tensor().norm().item()
        print(dist.get_rank(), name, norm)

    dist.destroy_process_group()
    ```

    ## When it is silent

    `full_tensor()`, an all_reduce of the number in the same function, `summon_full_params`, DDP models,
    `p.pow(2).sum().sqrt()` and `std()` under FSDP2 (measured right), shapes and element counts.

    ## How to confirm

    `ddp-lint verify train.py`: the number differs between the ranks at the line.

    ## Fix safety

    No automatic fix: `full_tensor()` is a collective, which every rank has to call.

    ## References

    - https://pytorch.org/docs/stable/distributed.tensor.html#torch.distributed.tensor.DTensor.full_tensor
    """

    triggers = Triggers(
        "parameters",
        "named_parameters",
        "fully_shard",
        "FullyShardedDataParallel",
        file=("torch", "FullyShardedDataParallel"),
    )
    oracles = ("value",)

    def visit_For(self, node: cst.For) -> None:
        if not isinstance(node.iter, cst.Call) or called(node.iter) not in ("parameters", "named_parameters"):
            return
        wrap = self._sharded(root_name(node.iter).removesuffix(".module"), node)
        if wrap is None:
            return
        elements = node.target.elements if isinstance(node.target, cst.Tuple) else None
        parameter = dotted(elements[-1].value if elements else node.target)
        given: dict[str, cst.BaseExpression] = {}
        own = {parameter}  # and the names of what is computed from it
        for part in descendants(node.body):
            if isinstance(part, cst.Assign) and _speaks_of(part.value, own):
                own |= {dotted(target.target) for target in part.targets} - {""}
                given |= {dotted(target.target): part.value for target in part.targets}
            reduction = _reduced(part, given) if isinstance(part, cst.Call) else None
            if reduction is not None and isinstance(part, cst.Call) and _speaks_of(reduction, own):
                self._report(part, wrap)

    def visit_Call(self, node: cst.Call) -> None:
        reduction = _reduced(node, {})
        model = _parameter_of(reduction) if reduction is not None else ""
        wrap = self._sharded(model, node) if model else None
        if wrap is not None:
            self._report(node, wrap)

    def _sharded(self, model: str, at: cst.CSTNode) -> Wrap | None:
        """The wrap that shards `model`, None where nothing does or the function makes numbers global."""
        wrap = self.module.wraps.of(model, at)
        function = self.module.scope_of(at)
        return wrap if wrap and wrap.kind in ("fsdp1", "fsdp2") and not self._made_global(function) else None

    def _report(self, read: cst.CSTNode, wrap: Wrap) -> None:
        self.report(
            read,
            f"{self.module.quoted(read)} is the value of this rank's shard, not of the whole parameter",
            notes=["rank 0 and rank 1 read different values"],
            labels=[(wrap.place, "sharded here")],
            help="compute it from `p.full_tensor()`, or all_reduce the number, on every rank",
        )

    def _made_global(self, function: cst.CSTNode) -> bool:
        return any(
            isinstance(n, cst.Call) and called(n) in ("all_reduce", "full_tensor", "summon_full_params", "all_gather")
            for n in descendants(function)
        )

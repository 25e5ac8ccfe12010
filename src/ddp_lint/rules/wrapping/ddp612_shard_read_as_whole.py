from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.source import dotted
from ddp_lint.source.tree import called, descendants
from ddp_lint.source.wraps import root_name

_READS = ("item", "tolist")
_CASTS = ("float", "bool", "int")
_REDUCTIONS = frozenset({"norm", "sum", "max", "min", "mean", "any", "all", "amax", "amin"})


def _is_local_number(read: cst.Call, parameter: str, kind: str) -> bool:
    """`p.norm().item()`, `float(p.grad.abs().max())`: a host read of a reduction over the parameter or its gradient."""
    if called(read) in _READS and isinstance(read.func, cst.Attribute):
        operand = read.func.value
    elif dotted(read.func) in _CASTS and len(read.args) == 1:
        operand = read.args[0].value
    else:
        return False
    methods = [called(n) for n in (operand, *descendants(operand)) if isinstance(n, cst.Call)]
    if not methods or methods[0] not in _REDUCTIONS:
        return False  # sqrt() and std() redistribute a DTensor first
    return any(isinstance(n, cst.Name) and n.value == parameter for n in descendants(operand))


class ShardReadAsWhole(Rule):
    """A norm, sum or test of a sharded parameter is read on each rank as if it were global.

    ## What it does

    Finds `p.norm().item()`, `p.grad.sum().item()`, `float(p.abs().max())`, `torch.isnan(p).any()` and the like,
    with `p` from the parameters of a model that FSDP wrapped in the same scope.

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

    No automatic fix: `full_tensor()` gathers, which every rank has to do.

    ## References

    - https://pytorch.org/docs/stable/distributed.tensor.html#torch.distributed.tensor.DTensor.full_tensor
    """

    triggers = ("parameters", "named_parameters", "fully_shard", "FullyShardedDataParallel")
    requires = ("fully_shard", "FullyShardedDataParallel")
    oracles = ("value",)

    def start(self) -> None:
        self._wraps = self.module.wraps

    def visit_For(self, node: cst.For) -> None:
        if not isinstance(node.iter, cst.Call) or called(node.iter) not in ("parameters", "named_parameters"):
            return
        wrap = self._wraps.of(root_name(node.iter).removesuffix(".module"), node)
        function = self.module.function_of(node) or self.module.tree
        if wrap is None or wrap.kind not in ("fsdp1", "fsdp2") or self._made_global(function):
            return
        elements = node.target.elements if isinstance(node.target, cst.Tuple) else None
        parameter = dotted(elements[-1].value if elements else node.target)
        for read in descendants(node.body):
            if isinstance(read, cst.Call) and _is_local_number(read, parameter, wrap.kind):
                self.report(
                    read,
                    f"`{self.module.code(read)}` is the number of this rank's shard: rank 0 and rank 1 read different "
                    "values, and neither is the whole parameter's",
                    labels=[(wrap.call, "sharded here")],
                    help="take it of `p.full_tensor()`, or all_reduce the number, on every rank",
                )

    def _made_global(self, function: cst.CSTNode) -> bool:
        return any(
            isinstance(n, cst.Call) and called(n) in ("all_reduce", "full_tensor", "summon_full_params", "all_gather")
            for n in descendants(function)
        )

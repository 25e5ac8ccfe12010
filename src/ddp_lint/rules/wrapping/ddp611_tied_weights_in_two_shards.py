from __future__ import annotations

import itertools

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.source import dotted
from ddp_lint.source.wraps import Wrap


class TiedWeightsInTwoShards(Rule):
    """Weights that are tied are sharded as two FSDP units.

    ## What it does

    Finds `fully_shard(model.head)` and `fully_shard(model.embed)` (or two FSDP1 wraps) of modules whose weights the
    file ties with `a.weight = b.weight`.

    ## Why it breaks

    Each unit shards and gathers its own parameters, so the tie is split. Measured on 2 x H200 (NCCL, torch 2.11)
    and on gloo (torch 2.13): with torch 2.11 FSDP2 trains two different weights without an error (0.011 off after
    two steps), torch 2.13 raises at the wrap, and FSDP1 fails in forward.

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


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Linear(4, 4, bias=False)
            self.head = torch.nn.Linear(4, 4, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(torch.tanh(self.embed(x)))


    model = Net().to(device)
    fully_shard(model.embed)
    fully_shard(model.head)  # <- DDP611
    fully_shard(model)
    model(torch.randn(8, 4, device=device)).square().mean().backward()


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


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Linear(4, 4, bias=False)
            self.head = torch.nn.Linear(4, 4, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(torch.tanh(self.embed(x)))


    model = Net().to(device)
    fully_shard([model.embed, model.head])
    fully_shard(model)
    model(torch.randn(8, 4, device=device)).square().mean().backward()


    dist.destroy_process_group()
    ```

    ## When it is silent

    Tied modules in one unit (`fully_shard([embed, head])`, or left to the root), ties that are not seen in the
    file.

    ## How to confirm

    `ddp-lint verify train.py`: the exception at the wrap, or the difference from the single-process reference.

    ## Fix safety

    No automatic fix: put both into one unit.

    ## References

    - https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    triggers = ("fully_shard", "FullyShardedDataParallel", "weight")
    requires = ("fully_shard", "FullyShardedDataParallel")
    oracles = ("exception", "reference", "identity")

    def start(self) -> None:
        self._ties: list[tuple[cst.Assign, str, str]] = []  # the tie, and the attribute names of its two modules

    def visit_Assign(self, node: cst.Assign) -> None:
        left, right = dotted(node.targets[0].target), dotted(node.value)
        if left.endswith(".weight") and right.endswith(".weight"):
            self._ties.append((node, left.split(".")[-2], right.split(".")[-2]))

    def finish(self) -> None:
        if not self._ties:
            return
        units = [w for w in self.module.wraps.all if w.kind in ("fsdp1", "fsdp2") and "." in w.inner]
        function_of = self.module.function_of
        for first, second in itertools.combinations(units, 2):
            owner, _, name = first.inner.rpartition(".")
            other_owner, _, other = second.inner.rpartition(".")
            tie = next((t for t, a, b in self._ties if {a, b} == {name, other} and a != b), None)
            if tie is not None and owner == other_owner and function_of(first.call) is function_of(second.call):
                self._report(second, first, tie)

    def _report(self, second: Wrap, first: Wrap, tie: cst.Assign) -> None:
        self.report(
            second.call,
            f"`{second.inner}` and `{first.inner}` share a weight but become two FSDP units: each rank trains two "
            "different weights (torch 2.11), or the wrap fails (torch 2.13)",
            labels=[(first.call, "the other unit"), (tie, "tied here")],
            help=f"shard them as one unit: fully_shard([{first.inner}, {second.inner}])",
        )

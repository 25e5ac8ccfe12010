from __future__ import annotations

import dataclasses
import itertools

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants
from ddp_lint.view.wraps import Wrap


@dataclasses.dataclass(frozen=True)
class _Tie:
    """`node` makes the modules named `ends` share a weight; `owner`: the class whose method ties parts of `self`."""

    node: cst.Assign
    ends: tuple[str, str]
    owner: str


class TiedWeightsInTwoShards(Rule):
    """Tied weights are sharded as two FSDP units.

    ## What it does

    Finds `fully_shard(model.head)` and `fully_shard(model.embed)` (or two FSDP1 wraps) of modules whose weights the
    file ties with `a.weight = b.weight`, and `fully_shard(model.embed)` with the tied head left to
    `fully_shard(model)`, which is a unit too.

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

    Tied modules in one unit (`fully_shard([embed, head])`, or both left to the root), ties that are not seen in the
    file.

    ## How to confirm

    `ddp-lint verify train.py`: the exception at the wrap, or the difference from the single-process reference.

    ## Fix safety

    No automatic fix: put both into one unit.

    ## References

    - https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    triggers = Triggers(
        "fully_shard", "FullyShardedDataParallel", "weight", file=("fully_shard", "FullyShardedDataParallel")
    )
    oracles = ("exception", "reference", "identity")

    def start(self) -> None:
        self._ties: list[_Tie] = []

    def visit_Assign(self, node: cst.Assign) -> None:
        left, right = dotted(node.targets[0].target), dotted(node.value)
        if left.endswith(".weight") and right.endswith(".weight"):
            ends = (left.removesuffix(".weight"), right.removesuffix(".weight"))
            owner = self.module.class_of(node) if left.startswith("self.") else None
            self._ties.append(_Tie(node, ends, self.module.name_of(owner) if owner is not None else ""))

    def finish(self) -> None:
        units = [w for w in self.module.wraps.all if w.kind in ("fsdp1", "fsdp2")] if self._ties else []
        function_of = self.module.function_of
        for first, second in itertools.combinations(units, 2):
            if function_of(first.call) is function_of(second.call):
                tie = next((tie for tie in self._ties if self._split(tie, first, second)), None)
                if tie is not None:
                    self._report(second, first, tie.node)

    def _split(self, tie: _Tie, first: Wrap, second: Wrap) -> bool:
        """Whether one end of a tie belongs to the one unit, the other end to the other."""
        if "." not in first.inner:
            return False
        if first.inner.startswith(f"{second.inner}."):
            return self._left_to_the_root(tie, first, second)
        ends = [end.rpartition(".")[2] for end in tie.ends]
        owner, _, name = first.inner.rpartition(".")
        other_owner, _, other = second.inner.rpartition(".")
        return owner == other_owner and {name, other} == set(ends) and name != other

    def _left_to_the_root(self, tie: _Tie, part: Wrap, root: Wrap) -> bool:
        """Whether `part` takes one end of a tie out of the model and leaves the other end to the model's own unit."""
        function_of = self.module.function_of
        if tie.owner and self.module.constructed_by(root.call.args[0].value) != tie.owner:
            return False
        if not tie.owner and function_of(tie.node) is not function_of(root.call):
            return False
        start = "self." if tie.owner else f"{root.inner}."
        ends = [f"{root.inner}.{end.removeprefix(start)}." for end in tie.ends if end.startswith(start)]
        elsewhere = [end for end in ends if not end.startswith(f"{part.inner}.")]
        return len(ends) == 2 and len(elsewhere) == 1 and not self._is_sharded(root, elsewhere[0])

    def _is_sharded(self, root: Wrap, end: str) -> bool:
        """Whether the root's function shards a module itself, alone or in a list with others."""
        place = self.module.function_of(root.call)
        shards = [wrap.call for wrap in self.module.wraps.all if self.module.function_of(wrap.call) is place]
        named = (dotted(node) for call in shards for node in descendants(call) if isinstance(node, cst.Attribute))
        return any(end.startswith(f"{name}.") for name in named)

    def _report(self, second: Wrap, first: Wrap, tie: cst.Assign) -> None:
        self.report(
            second.call,
            f"`{second.inner}` and `{first.inner}` share a weight but are two FSDP units: they are no longer tied",
            notes=["each rank trains two different weights (torch 2.11), or the wrap fails (torch 2.13)"],
            labels=[(first.call, "the other unit"), (tie, "tied here")],
            help="shard the modules that share it as one unit: fully_shard([embed, head])",
        )

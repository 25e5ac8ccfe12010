from __future__ import annotations

import libcst as cst

from ddp_lint.rules.parameters.in_place import InPlaceRule
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source.queries import path_of
from ddp_lint.tensors import Code, Reached, Write
from ddp_lint.tensors.classes import PARAMETER_MAKERS
from ddp_lint.view.wraps import Wrap


class ParameterReplacedAfterWrap(InPlaceRule):
    """A parameter is replaced after the model was wrapped.

    ## What it does

    Finds `model.fc.weight = nn.Parameter(..)` and `register_parameter` on a model that is already wrapped by DDP,
    FSDP1 or `fully_shard`, and `p.data = ..` on the parameters of a model that `fully_shard` has sharded.

    ## Why it breaks

    The wrapper identifies parameters by object. Under DDP the new one has no hook: the second step raises "Expected to
    have finished reduction in the prior iteration" on both ranks, and with `find_unused_parameters=True` it is silent
    and the ranks train different values. FSDP1 raises on one rank, the other waits; FSDP2 raises an AttributeError.
    `p.data = new` on a sharded parameter swaps the local shard under FSDP2: no error, 0.23 to 0.37 off a
    single-process run after two steps (measured on 2 x H200 with NCCL, torch 2.11, and gloo, torch 2.13).

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

    net = torch.nn.Linear(8, 8).to(device)
    model = DistributedDataParallel(net)
    model.module.bias = torch.nn.Parameter(torch.zeros(8, device=device))  # <- DDP204
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

    net = torch.nn.Linear(8, 8).to(device)
    net.bias = torch.nn.Parameter(torch.zeros(8, device=device))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8, device=device)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Before the wrap, `p.data = ..` under DDP and FSDP1 (the hooks stay with the parameter: measured harmless), a wrap
    in the other arm of an `if`, models whose wrap is not seen in the same function or class.

    ## How to confirm

    `ddp-lint verify train.py`: the exception of the second step, or the difference from the single-process reference.

    ## Fix safety

    No automatic fix: replace parameters first, wrap last; on a sharded model use `p.copy_` with a DTensor.

    ## References

    - https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    - https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    # a parameter that is replaced there is no longer what is tested
    triggers = Triggers(
        "parameters",
        "named_parameters",
        "Parameter",
        "register_parameter",
        Trait.WRITES,
        file=("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "prepare"),
    )
    oracles = ("exception", "identity", "reference")
    needs_wrap = True

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if not isinstance(target, cst.Attribute) or not isinstance(node.value, cst.Call):
            return
        if self.module.qualified(node.value.func) in PARAMETER_MAKERS:
            self._replaced(node, path_of(target.value))

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "register_parameter":
            self._replaced(node, path_of(node.func.value))

    def check(self, write: Write, function: Code, reached: Reached | None) -> None:
        target = write.target
        name = write.value.name
        if not (isinstance(target, cst.Attribute) and target.attr.value == "data" and name.endswith("parameters()")):
            return
        wrap = self.module.wraps.around(name.rpartition(".")[0], write.node)
        if wrap is not None and wrap.kind == "fsdp2":
            self._report(write.node, wrap, "`.data` of a sharded parameter is swapped: each rank trains the new local "
                         "tensor and no rank raises, or optimizer.step() fails on every rank")  # fmt: skip

    def _replaced(self, node: cst.CSTNode, owner: str) -> None:
        wrap = self.module.wraps.around(owner, node)
        if wrap is not None:
            self._report(node, wrap, "the wrapper has no hook for the new parameter: the second step raises on both "
                         "ranks, or rank 0 and rank 1 train different values")  # fmt: skip

    def _report(self, node: cst.CSTNode, wrap: Wrap, what: str) -> None:
        self.report(
            node,
            f"a parameter is replaced after `{wrap.outer}` was wrapped: the new one is not synchronised",
            notes=[what],
            labels=[(wrap.place, "the wrapper registers the parameters here")],
            help="replace parameters first, wrap last",
        )

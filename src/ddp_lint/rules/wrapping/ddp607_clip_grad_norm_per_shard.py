from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Applicability, Edit, Fix
from ddp_lint.launch.callers import call_sites
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.sharded import CallOnSharded, owner_of
from ddp_lint.source.tree import parameters_of
from ddp_lint.view.wraps import Wrap, argument

_PLAIN = frozenset({"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm"})


class ClipGradNormPerShard(CallOnSharded):
    """torch.nn.utils.clip_grad_norm_ on an FSDP1 model clips each shard by its own norm.

    ## What it does

    Finds `torch.nn.utils.clip_grad_norm_(model.parameters(), ...)` where `model` is a FullyShardedDataParallel,
    also one that another file wraps and hands over. So is a call of a parameter to which every call in the project
    gives that function: `clip(model.parameters(), limit)` after `train(model, torch.nn.utils.clip_grad_norm_)`.

    ## Why it breaks

    An FSDP1 rank holds only its shard of each gradient. The plain function computes the norm of that shard, so rank 0
    and rank 1 see different norms and scale their shards differently: the update is not a multiple of the gradient.
    Measured (gloo and NCCL): true norm 0.303, rank 0 sees 0.174 and rank 1 sees 0.248. The plain function is correct
    with FSDP2's DTensors and with DDP.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = FSDP(torch.nn.Linear(4, 4).to(device), use_orig_params=True, device_id=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(8, 4, device=device)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # <- DDP607
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = FSDP(torch.nn.Linear(4, 4).to(device), use_orig_params=True, device_id=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(8, 4, device=device)).square().mean().backward()
        model.clip_grad_norm_(0.1)
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    DDP and FSDP2 models, `model.clip_grad_norm_`, and the `else` arm of an `isinstance(model, FSDP)` test.

    ## How to confirm

    `ddp-lint verify train.py`: the returned norm differs between the ranks.

    ## Fix safety

    Safe: `model.clip_grad_norm_` takes the same `max_norm` and `norm_type`.

    ## References

    - https://pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_
    """

    triggers = Triggers(
        "clip_grad_norm_",
        "clip_grad_norm",
        "parameters",
        "FullyShardedDataParallel",
        file=("torch", "FullyShardedDataParallel"),
    )
    oracles = ("value",)

    kinds = ("fsdp1",)

    def model_of(self, node: cst.Call) -> str:
        parameters = argument(node, 0, "parameters")
        model = owner_of(parameters, "parameters") if isinstance(parameters, cst.Call) else ""
        return model if model and (self.module.qualified(node.func) in _PLAIN or self._is_given(node)) else ""

    def _is_given(self, node: cst.Call) -> bool:
        """Whether what is called is a parameter of the function, to which each call in the project gives the plain
        function."""
        function, name = self.module.function_of(node), node.func
        if function is None or not isinstance(name, cst.Name):
            return False
        own = any(each.name.value == name.value for each in parameters_of(function))
        if not own or self.module.assignments(name):
            return False
        sites = call_sites(self.module, function)
        given = [(site.facts, site.given(function, name.value)) for site in sites]
        return bool(given) and all(value is not None and facts.qualified(value) in _PLAIN for facts, value in given)

    def found(self, node: cst.Call, name: str, wrap: Wrap) -> None:
        self.report(
            node,
            f"each rank's shard of `{name}` is clipped by its own norm: the direction of the update is wrong",
            notes=["rank 0 and rank 1 scale their shards differently"],
            labels=[(wrap.place, "sharded with FSDP1 here")],
            help=f"call `{name}.clip_grad_norm_(max_norm)`, which sums the norm over all ranks",
            fix=self._fix(node, name),
        )

    def _fix(self, node: cst.Call, owner: str) -> Fix | None:
        rest = node.args[1:]
        if self.module.qualified(node.func) not in _PLAIN:
            return None  # of a parameter the next caller may give another one
        if any(arg.star or (arg.keyword and arg.keyword.value not in ("max_norm", "norm_type")) for arg in rest):
            return None
        arguments = ", ".join(self.module.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in rest)
        edit = Edit(self.module.span(node), f"{owner}.clip_grad_norm_({arguments})")
        return Fix("clip by the norm over all ranks", Applicability.SAFE, (edit,))

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Fix
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.optimizers import made_in, makes_optimizer, models_of
from ddp_lint.source import dotted
from ddp_lint.source.queries import is_false
from ddp_lint.source.tree import descendants
from ddp_lint.view.edits import move_below
from ddp_lint.view.wraps import Wrap, argument, assigned_name

_NAMES = {"fsdp1": "FullyShardedDataParallel", "fsdp2": "fully_shard"}


def _replaces_parameters(wrap: Wrap) -> bool:
    flatten = argument(wrap.call, None, "flatten_parameters")  # FairScale's
    if is_false(flatten):
        return False
    if wrap.kind == "fsdp1":
        value = argument(wrap.call, None, "use_orig_params")
        return wrap.lacks("use_orig_params") or is_false(value)
    return wrap.kind == "fsdp2"


class OptimizerBeforeShard(Rule):
    """The optimizer is built before FSDP replaces the parameters, so it trains nothing.

    ## What it does

    Finds an optimizer that takes `model.parameters()` before `fully_shard(model)`, or before `FSDP(model)` without
    `use_orig_params=True`, in the same function or in a method of the class that the function calls afterwards, or
    that another method calls below it; or in the constructor of a class that steps it, where another method shards.
    Functions of the project that build the optimizer, also together with the model, or shard the model, and methods of
    the model that build it, count as what they do.

    ## Why it breaks

    `fully_shard` swaps every parameter for a sharded DTensor, and FSDP1 for a flat parameter. The optimizer keeps the
    old tensors, which no longer get a gradient: on every rank `step()` changes nothing that the model uses, without an
    error. Measured on 2 x H200 (NCCL, torch 2.11) and on gloo (torch 2.13): the model stays at its initial weights,
    0.038 off after two steps.

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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # <- DDP604
    fully_shard(model)
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device)).square().mean()
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
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Linear(4, 4, device=device)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Under DDP, and under FSDP1 with `use_orig_params=True` (measured right); optimizers passed to `accelerator.prepare`
    or Lightning, which rebuild them; an optimizer that is built again after the wrap.

    ## How to confirm

    `ddp-lint verify train.py`: the optimizer's parameters are not the model's.

    ## Fix safety

    Display only: the optimizer's line has to move below the wrap.

    ## References

    - https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    triggers = Triggers("fully_shard", "FullyShardedDataParallel", "optim", "optimizer", "zero_grad", file=("torch",))
    oracles = ("identity", "nograd", "reference")

    def start(self) -> None:
        self._replacing: dict[str, list[Wrap]] = collections.defaultdict(list)
        for wrap in filter(_replaces_parameters, self.module.wraps.all):
            self._replacing[wrap.inner].append(wrap)

    def visit_Call(self, node: cst.Call) -> None:
        if not self._replacing or not makes_optimizer(self.module, node):
            return
        for wrap in (wrap for model in sorted(models_of(self.module, node)) for wrap in self._replacing.get(model, ())):
            wraps = self.module.wraps
            first = wraps.before(node, wrap) or wraps.leads_to(node, wrap) or wraps.is_called_first(node, wrap)
            if first or (wraps.is_constructed_first(node, wrap) and self._is_kept(node, wrap)):
                if self._rebuilt(node, wrap):
                    return
                made = made_in(self.module, node)
                self.report(
                    node,
                    f"the optimizer takes the parameters of `{wrap.inner}` before {_NAMES[wrap.kind]} replaces them: "
                    "nothing is trained",
                    notes=["step() changes tensors that no rank's model uses any more"],
                    labels=[
                        (wrap.place, "the parameters are replaced here"),
                        *([(made, "the optimizer is made here")] if made is not None else ()),
                    ],
                    help="wrap first, then build the optimizer",
                    fix=self._fix(node, wrap),
                )
                return

    def _fix(self, node: cst.Call, wrap: Wrap) -> Fix | None:
        if not self.module.wraps.before(node, wrap):
            return None
        edits = move_below(self.module, node, wrap.call, (wrap.inner, wrap.outer or wrap.inner))
        return Fix("build the optimizer below the wrap", Applicability.DISPLAY, edits) if edits else None

    def _rebuilt(self, node: cst.Call, wrap: Wrap) -> bool:
        """Whether the same name gets another optimizer after the wrap."""
        name = assigned_name(self.module, node)
        return bool(name) and any(
            other is not node
            and makes_optimizer(self.module, other)
            and assigned_name(self.module, other) == name
            and (self.module.wraps.after(wrap, other) or self._is_behind_call(node, other, wrap))
            for other in descendants(self.module.tree)
            if isinstance(other, cst.Call)
        )

    def _is_kept(self, node: cst.Call, wrap: Wrap) -> bool:
        """Whether the class steps the optimizer that it makes, and neither it nor the model becomes another one: both
        are set once, and the optimizer is given to nothing that could fill it anew."""
        name, owner = assigned_name(self.module, node), self.module.class_of(node)
        if not name.startswith("self.") or owner is None:
            return False
        here, there = self.module.function_of(node), self.module.function_of(wrap.call)
        nodes = list(descendants(owner.body))
        read = {dotted(each) for each in nodes if isinstance(each, cst.Attribute)}
        if not read.isdisjoint((f"{name}.param_groups", f"{name}.add_param_group")):
            return False
        stored = list(_stored(nodes))
        models = (each for part, each in stored if part == wrap.inner and self.module.function_of(each) is not here)
        if [part for part, _ in stored].count(name) != 1 or any(each.value is not wrap.call for each in models):
            return False
        calls = [each for each in nodes if isinstance(each, cst.Call)]
        handed = (arg for call in calls if self.module.function_of(call) is there for arg in call.args)
        if any(dotted(arg.value) in (name, "self") for arg in handed):
            return False
        return any(dotted(call.func) == f"{name}.step" for call in calls)

    def _is_behind_call(self, node: cst.Call, other: cst.Call, wrap: Wrap) -> bool:
        """Whether `other` is behind the call of the method that wraps, and `node` before it."""
        wraps = self.module.wraps
        together = self.module.function_of(other) is self.module.function_of(node)
        return together and wraps.leads_to(node, wrap) and not wraps.leads_to(other, wrap)


def _stored(nodes: Iterable[cst.CSTNode]) -> Iterator[tuple[str, cst.Assign]]:
    """What assignments set, also as parts of a tuple, each with its assignment."""
    for node in (each for each in nodes if isinstance(each, cst.Assign)):
        for whole in (target.target for target in node.targets):
            for part in (each.value for each in whole.elements) if isinstance(whole, cst.Tuple) else (whole,):
                yield dotted(part), node

from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.launch.ranks import meets_no_ranks, several_ranks
from ddp_lint.rules.parameters.in_place import InPlaceRule, is_moving_average
from ddp_lint.rules.parameters.replicas import Replicas
from ddp_lint.tensors import Code, Kind, Reached, TensorFile, Write


class ParameterWrittenInForward(InPlaceRule):
    """A parameter is written inside `forward`.

    ## What it does

    Finds writes to a parameter of the module (`self.weight.data.mul_(..)`, `self.fc.weight.copy_(..)`,
    `self.scale.data = ..`, `self.weight.data[i] = ..`), in `forward` or in a method that `forward` calls. The same for
    the `training_step` of a LightningModule, which Lightning runs as the forward of the wrapped module.

    ## Why it breaks

    Under FSDP1 and FSDP2 `forward` works on gathered copies of the parameters, which are freed after it: each rank
    writes into its copy and the write is lost, without an error through `.data` (0.09 off a single-process run after
    two steps; 0.35, with a wrong gradient, if the parameter was used before the write), and with an exception under
    FSDP1 otherwise. Under DDP every rank writes its own replica, and nothing synchronises it: if the value depends on
    the batch or on the rank, rank 0 and rank 1 train different models (0.0006 apart after two steps for a scale by a
    batch statistic). Measured on 2 x H200 (NCCL, torch 2.11) and gloo (torch 2.13).

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            self.fc.weight.data.mul_(1 + 0.1 * x.mean())  # <- DDP201
            return self.fc(x)


    def ddp_lint_example():
        return Net(), (torch.rand(4, 8),)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x * (1 + 0.1 * x.mean()))


    def ddp_lint_example():
        return Net(), (torch.rand(4, 8),)
    ```

    ## When it is silent

    Initialisation, optimizers, clamps and moving averages outside of `forward`, buffers, parameters that were made
    with `requires_grad=False` or that are frozen where they are made, evaluation branches. The moving average of a
    momentum encoder in `forward`, which is correct under DDP (FSDP loses it). In a project that uses DDP and never
    mentions FSDP, writes that are the same on all ranks: clamps, a norm that is set to 1, a value that a function of
    the project computes from the parameter only; in a project that mentions FSDP, these need `--preview` if the file
    does not mention it. Writes that raise at once (a leaf with gradients on) are DDP205. A `training_step` that calls
    its optimizers by itself (manual optimization). Only with `--preview`: what nothing shows to run
    on several ranks, where the file does not mention FSDP, and a class that programs of one process alone are seen to
    use, also where other programs of the project run several ranks.

    ## How to confirm

    `ddp-lint verify model.py --wrap ddp,fsdp2`: the write to the parameter's storage, and the parameters of the ranks
    against each other (DDP) or against the single-process reference (FSDP).

    ## Fix safety

    No automatic fix: compute the value out of place, or write after `optimizer.step()`, where all ranks do the same.

    ## References

    - https://pytorch.org/docs/stable/fsdp.html
    - https://pytorch.org/docs/stable/notes/ddp.html
    """

    oracles = ("write", "parameter", "reference", "exception")
    in_training_step = True

    def check(self, write: Write, function: Code, reached: Reached | None) -> None:
        value = write.value
        if not value.name or reached is None or value.kind is Kind.LAYER or self._goes_on(write):
            return
        owner = TensorFile.of(self.module).owner(function)
        if owner is not None and owner.freezes(value.name):
            return
        raises_at_once = write.gradient and reached.gradient and not value.detached
        if raises_at_once or is_moving_average(self.module, write, function):
            return
        flow = self.flow(function)
        alike = Replicas(self.module, flow).write_alike(write)
        if alike and self._has_replicas_only():
            return
        from_batch = any(flow.value(n).inputs for n in self.operands(write))
        ranks = (
            "rank 0 and rank 1 write different values from their own batches and drift apart"
            if from_batch
            else "replicas stay equal only if all ranks write the same values"
        )
        way = self.way(reached) if reached.entry == "forward" else ""
        self.report(
            write.node,
            f"{reached.entry} writes the parameter `{value.name}`{way}: FSDP loses the write, DDP replicas may drift "
            "apart",
            notes=[f"under FSDP each rank writes a gathered copy; under DDP {ranks}"],
            help="compute with a new tensor (`weight = self.weight * scale`), or write after optimizer.step()",
            confidence=Confidence.LOW if self._is_unlikely(write, alike=alike) else None,
        )

    def _goes_on(self, write: Write) -> bool:
        """What a write returns is written again: ``weight.mul_(decay).add_(x)`` is one finding."""
        method = self.module.parent(write.node)
        if not isinstance(method, cst.Attribute) or not method.attr.value.endswith("_"):
            return False
        return isinstance(self.module.parent(method), cst.Call)

    def _is_unlikely(self, write: Write, *, alike: bool) -> bool:
        """Whether no harm of a write is seen: its file does not shard, and all ranks write the same or nothing shows
        that several ranks come to it; or only programs of one process do."""
        if meets_no_ranks(self.module, write.node):
            return True
        return not self._speaks_of_sharding() and (alike or several_ranks(self.module, write.node) is None)

    def _speaks_of_sharding(self) -> bool:
        return any(map(self.module.file.holds, table("wrappers")["sharding"]))

    def _has_replicas_only(self) -> bool:
        """Whether the project wraps by DDP and never mentions FSDP: writes that are the same on all ranks do no harm.

        A model whose project wraps nothing may come under either.
        """
        project, known = self.module.project, table("wrappers")
        if project is None or any(project.contents.holding(word) for word in known["sharding"]):
            return False
        replicating = (*known["replicating"], *project.own.names.beside(known["replicating"]))
        return any(project.contents.holding(word) for word in replicating)

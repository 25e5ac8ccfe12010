from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants, subtree
from ddp_lint.tensors import TensorFile
from ddp_lint.tensors.contexts import evaluation_only, logging_only
from ddp_lint.tensors.on_host import is_on_host


class ReadPerElement(Rule):
    """A loop reads the elements of a tensor one by one on the host.

    ## What it does

    Finds `lengths[i].item()` in a loop over `i`, and `t.item()` in a loop or comprehension over a list of tensors, in
    functions that place tensors on a device.

    ## Why it breaks

    Each `.item()` waits until the GPU has finished everything that was queued before it: a batch of 64 costs 64 waits
    where one is enough, on every rank and in every step. The numbers are correct. Measured (H100, torch 2.11): a mask
    of 64 rows by such a loop has 64 waits and takes 2 ms on an idle GPU, by one comparison none and 0.05 ms.

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            h = self.fc(x)
            keep = torch.ones(h.shape, device=h.device)
            lengths = h.abs().sum(1).long().clamp(max=8)
            for i in range(h.shape[0]):
                keep[i, lengths[i].item() :] = 0.0  # <- DDP306
            return h * keep


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
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
            h = self.fc(x)
            lengths = h.abs().sum(1).long().clamp(max=8)
            keep = torch.arange(8, device=h.device) < lengths.unsqueeze(1)
            return h * keep


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    Tensors made on the host, one `.tolist()` before the loop, functions that never mention a device, logging and
    evaluation. Only with `--preview`: numbers that do more than say which part of a tensor is written, as they may be
    needed on the host (sizes of messages, logs).

    ## How to confirm

    `ddp-lint verify model.py` on CUDA: `torch.cuda.set_sync_debug_mode` reports one wait for each element;
    `torch._dynamo.explain` a graph break where the loop is unrolled.

    ## Fix safety

    No automatic fix: compare with an `arange`, or call `.tolist()` once before the loop.

    ## References

    - https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    """

    confidence = Confidence.MEDIUM
    of_small_harm = True
    triggers = Triggers(Trait.READS, file=("torch",))
    oracles = ("sync", "graph_break")

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "item" or node.args:
            return
        function = self.module.function_of(node)
        loop = self._loop_over(node.func.value, node)
        if function is None or loop is None or not self._speaks_of_device(function):
            return
        if evaluation_only(self.module, node) or logging_only(self.module, node):
            return
        value = TensorFile.of(self.module).flow(function).value(node.func.value)
        if value.on_host or not (value.tensorish or value.inputs) or is_on_host(self.module, node.func.value):
            return
        self.report(
            node,
            f"{self.module.quoted(node)} waits for the GPU for each element of the loop, on every rank in every step",
            labels=[(loop, "the loop")],
            help="compare with torch.arange, or call `.tolist()` once before the loop",
            confidence=Confidence.MEDIUM if self._fills(node, function) else Confidence.LOW,
        )

    def _fills(self, read: cst.Call, function: cst.FunctionDef) -> bool:
        """Whether the number only says which part of a tensor on a device is written: ``mask[i, : n[i].item()] = 0``,
        which one comparison does for all `i`."""
        place = next((up for up in self.module.ancestors(read) if isinstance(up, (cst.AssignTarget, cst.Assign))), None)
        if not isinstance(place, cst.AssignTarget) or not isinstance(place.target, cst.Subscript):
            return False
        written: cst.BaseExpression = place.target
        while isinstance(written, cst.Subscript):
            written = written.value
        value = TensorFile.of(self.module).flow(function).value(written)
        return value.tensor and not value.on_host

    def _loop_over(self, receiver: cst.BaseExpression, node: cst.Call) -> cst.CSTNode | None:
        """The loop whose variable picks the element that is read."""
        used = {dotted(n) for n in subtree(receiver) if isinstance(n, cst.Name)}
        direct = isinstance(receiver, (cst.Name, cst.Subscript))
        for up in self.module.ancestors(node) if direct else ():
            if isinstance(up, (cst.For, cst.CompFor)) and dotted(up.target) in used:
                return up.iter
            if isinstance(up, (cst.ListComp, cst.GeneratorExp)) and dotted(up.for_in.target) in used:
                return up.for_in.iter
        return None

    def _speaks_of_device(self, function: cst.FunctionDef) -> bool:
        return any(isinstance(n, cst.Name) and n.value in ("device", "cuda") for n in descendants(function))

from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.parameters.in_place import makes_parameter
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants
from ddp_lint.tensors import TensorFile, Value
from ddp_lint.view.wraps import assigned_name


class ParameterOverAnotherOnesStorage(Rule):
    """Two parameters share one storage without being one object.

    ## What it does

    Finds `self.b = nn.Parameter(self.a.view(-1))`, `nn.Parameter(self.a.data)`, `nn.Parameter(self.enc.weight[:2])`
    and `self.dec.weight.data = self.enc.weight.data`, where both parameters stay in use.

    ## Why it breaks

    `parameters()` counts two, so the optimizer updates the same memory twice. On CUDA the default (foreach) and fused
    optimizers do that in one kernel without a check for overlap: updates are lost, even on one GPU and without any
    wrapper (error 0.2 after two steps of lr 0.1; 80 to 100 % of the overlapping elements), and under DDP rank 0 and
    rank 1 lose different ones (0.11 to 0.28 apart). FSDP copies each parameter into its own shard: the tie is gone,
    without an error. Measured on 2 x H200 (NCCL, torch 2.11) and gloo (torch 2.13); without FSDP a CPU run cannot show
    it.

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(8, 8, bias=False)
            self.decoder = nn.Linear(8, 8, bias=False)
            self.decoder.weight = nn.Parameter(self.encoder.weight.data)  # <- DDP211

        def forward(self, x):
            return self.decoder(torch.tanh(self.encoder(x)))


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
            self.encoder = nn.Linear(8, 8, bias=False)
            self.decoder = nn.Linear(8, 8, bias=False)
            self.decoder.weight = self.encoder.weight

        def forward(self, x):
            return self.decoder(torch.tanh(self.encoder(x)))


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    The parameter takes the place of the one it is made from (`self.w = nn.Parameter(self.w[:n])`), or the old one is
    deleted; a module that takes over another module's weight; copies (`.clone()`, `.to(..)`, indexing by a mask);
    `requires_grad=False`; tied weights that are one object.

    ## How to confirm

    `ddp-lint verify model.py`: storage shared by two entries of `parameters()` before the wrap, and the difference
    from the single-process reference under FSDP.

    ## Fix safety

    No automatic fix: share the object to tie, `.clone()` to start from the same values, or compute the view in
    forward.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html
    """

    triggers = Triggers("Parameter", "data", file=("torch",))
    oracles = ("identity", "reference", "parameter")

    def visit_Call(self, node: cst.Call) -> None:
        if not makes_parameter(self.module, node):
            return
        target = assigned_name(self.module, node)
        self._look(node, target, node.args[0].value)

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if isinstance(target, cst.Attribute) and target.attr.value == "data" and isinstance(node.value, cst.Attribute):
            owner = self._value(target.value)
            if owner is not None and owner.name:
                self._look(node, dotted(target.value), node.value)

    def _value(self, node: cst.BaseExpression) -> Value | None:
        function = self.module.function_of(node)
        return TensorFile.of(self.module).flow(function).value(node) if function is not None else None

    def _look(self, node: cst.CSTNode, target: str, source: cst.BaseExpression) -> None:
        value = self._value(source)
        if value is None or not value.tensor or not value.name or not target or value.name == target:
            return
        same_owner = target.partition(".")[0] == value.name.partition(".")[0] or "." not in target + value.name
        if not same_owner or value.name.endswith("()") or self._given_up(value.name, node):
            return
        self.report(
            node,
            "two Parameters share memory: CUDA optimizers race, and each rank loses different updates",
            notes=[f"`{target}` and `{value.name}` share one storage; FSDP splits them, and each trains its own copy"],
            help=f"share the object (`{target} = {value.name}`) to tie them, or `.clone()` to start from equal values",
        )

    def _given_up(self, name: str, at: cst.CSTNode) -> bool:
        """Whether the older parameter is deleted or replaced later in the same function."""
        function = self.module.function_of(at)
        passed = False
        for node in descendants(function.body) if function is not None else ():
            passed = passed or node is at
            if passed and isinstance(node, (cst.Del, cst.AssignTarget)) and dotted(node.target) == name:
                return True
        return False

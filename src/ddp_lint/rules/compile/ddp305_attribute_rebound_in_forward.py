from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.compile.host import HostRule
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants


class AttributeReboundInForward(HostRule):
    """Forward rebinds an attribute of its module to a moved or changed version of itself.

    ## What it does

    Finds `self.freqs = self.freqs.to(x.device)` and `self.steps += 1` in the training forward of an `nn.Module` or in
    a function that `torch.compile` reaches.

    ## Why it breaks

    `torch.compile` guards on the attributes that it has read. A tensor attribute that is another object after each call,
    or a Python number that changes, fails the guard: the function is compiled again, until "torch._dynamo hit
    config.recompile_limit (8)" and it runs uncompiled from then on, on every rank, without an error (torch 2.11).

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.freqs = torch.arange(8.0)

        def forward(self, x):
            self.freqs = self.freqs.to(x.device)  # <- DDP305
            return self.fc(x) * self.freqs


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
            self.register_buffer("freqs", torch.arange(8.0))

        def forward(self, x):
            return self.fc(x) * self.freqs


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    Local variables, in-place updates of buffers, attributes that forward never reads, `torch.compiler.disable`,
    evaluation and logging branches.

    ## How to confirm

    `TORCH_LOGS=recompiles`; `ddp-lint verify model.py` counts the graphs of three calls.

    ## Fix safety

    No automatic fix: register a buffer, or use a local variable.

    ## References

    - https://pytorch.org/docs/stable/torch.compiler_troubleshooting.html
    """

    confidence = Confidence.LOW
    default = False
    triggers = ("forward",)
    oracles = ("graph_break",)

    def visit_Assign(self, node: cst.Assign) -> None:
        target = dotted(node.targets[0].target)
        moved = isinstance(node.value, cst.Call) and isinstance(node.value.func, cst.Attribute)
        if moved and isinstance(node.value, cst.Call) and target == dotted(getattr(node.value.func, "value", None)):
            self._look(node, target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        function = self.module.function_of(node)
        if function is not None and not self.value(node.target, function).tensorish:
            self._look(node, dotted(node.target))

    def _look(self, node: cst.CSTNode, target: str) -> None:
        if not target.startswith("self.") or target.count(".") != 1:
            return
        place = self.place(node)
        if place is None:
            return
        reads = [n for n in descendants(place.function.body) if isinstance(n, cst.Attribute) and dotted(n) == target]
        inside = sum(1 for n in descendants(node) if isinstance(n, cst.Attribute) and dotted(n) == target)
        if len(reads) > inside:
            self.report(
                node,
                f"`{target}` is rebound in every forward: torch.compile compiles again for each new value, and gives up "
                "after 8 times on every rank",
                labels=place.labels,
                help="register a buffer and update it in place, or use a local variable",
            )

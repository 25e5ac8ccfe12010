from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.tensors import names
from ddp_lint.launch.texts import is_worded_in_texts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.parameters.in_place import makes_parameter
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants, method_of
from ddp_lint.view.wraps import assigned_name

_EXPANDED = {"expand", "expand_as", "broadcast_to"}
_TURNED = {"t", "transpose", "permute", "swapaxes", "movedim"}
_TURNED_ATTRIBUTES = {"T", "mT", "H", "mH"}
#: What a project has whose parameters are sharded one by one: torch's function, and settings of frameworks for it.
_SHARDING = ("fully_shard", "fsdp_version", "fsdp2", "FSDP2", "ModelParallelStrategy")
_SHARDS = re.compile("|".join(_SHARDING))


class ParameterNotContiguous(Rule):
    """A parameter is an expanded or transposed view.

    ## What it does

    Finds `nn.Parameter(x.expand(..))`, `nn.Parameter(x.t())`, `.T`, `.transpose(..)` and `.permute(..)` without a
    following `.contiguous()` or `.clone()`.

    ## Why it breaks

    Elements of an expanded tensor share memory: the first in-place update of the optimizer, or the broadcast at the DDP
    wrap, raises "more than one element of the written-to tensor refers to a single memory location" on every rank.
    A transposed one works under DDP, but `fully_shard` raises "FSDP does not support non-contiguous parameters yet"
    on every rank. Measured on 2 x H200 (NCCL, torch 2.11) and gloo (torch 2.13).

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(1, 8).expand(8, 8))  # <- DDP212

        def forward(self, x):
            return x @ self.weight


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
            self.weight = nn.Parameter(torch.randn(1, 8))

        def forward(self, x):
            return x @ self.weight.expand(8, 8)


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    A copy of the view (`.contiguous()`, `.clone()`, arithmetic), `requires_grad=False`, tests. Only with `--preview`:
    transposed parameters of a project in which nothing uses `fully_shard` or asks a framework for it
    (`fsdp_version: 2`).

    ## How to confirm

    `ddp-lint verify model.py --wrap ddp,fsdp2`: the exception at the wrap or in the first step.

    ## Fix safety

    No automatic fix: `.contiguous()` for a transposed tensor; keep the small tensor and expand it in forward.

    ## References

    - https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    # often the very thing that is tested
    triggers = Triggers("Parameter", file=("torch",), tests=False)
    oracles = ("exception", "identity")

    def visit_Call(self, node: cst.Call) -> None:
        if not makes_parameter(self.module, node):
            return
        last = _last_step(node.args[0].value) if self._is_kept(node) else ""
        if last in _EXPANDED:
            self.report(
                node,
                f"the parameter is made by `{last}`, its elements share memory: the wrap or the first step "
                "raises on every rank",
                help="keep the small tensor as the parameter and expand it in forward",
            )
        elif last in _TURNED | _TURNED_ATTRIBUTES:
            self.report(
                node,
                f"the parameter is made by `{last}` and not contiguous: fully_shard raises on every rank",
                help="add `.contiguous()`",
                confidence=Confidence.MEDIUM if self._may_be_sharded() else Confidence.LOW,
            )

    def _may_be_sharded(self) -> bool:
        """Whether the project uses `fully_shard`, or settings of it ask a framework for that."""
        project = self.module.project
        if self.module.file.shows(_SHARDS) or project is None or any(map(project.contents.holding, _SHARDING)):
            return True
        return is_worded_in_texts(project, _SHARDS)

    def _is_kept(self, node: cst.Call) -> bool:
        """Whether the parameter becomes one of a module, or at least gets a name."""
        registered = self.module.parent(self.module.parent(node) or node)
        by_call = isinstance(registered, cst.Call) and dotted(registered.func).endswith("register_parameter")
        name = assigned_name(self.module, node)
        return by_call or (bool(name) and not self._is_only_copied(name, node))

    def _is_only_copied(self, name: str, node: cst.Call) -> bool:
        """Whether the parameter is a local one whose values go into another: ``weight.copy_(turned)``."""
        function = self.module.function_of(node)
        if "." in name or function is None:
            return False
        reads = [n for n in descendants(function.body) if isinstance(n, cst.Name) and n.value == name]
        uses = [n for n in reads if not isinstance(self.module.parent(n), cst.AssignTarget)]
        return bool(uses) and all(self._is_copied(use) for use in uses)

    def _is_copied(self, use: cst.Name) -> bool:
        up = self.module.parent(use)
        if isinstance(up, cst.Attribute) and up.attr.value in names("python_values", "attributes") | names(
            "python_values", "methods"
        ):
            return True  # what its shape is changes nothing
        call = self.module.parent(up or use)
        return method_of(call) == "copy_"


def _last_step(node: cst.BaseExpression) -> str:
    """The method or attribute that an expression ends in."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value
    if isinstance(node, cst.Attribute) and node.attr.value in _TURNED_ATTRIBUTES:
        return node.attr.value
    return ""

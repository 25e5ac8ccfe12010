from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.preparing import prepares
from ddp_lint.source import dotted
from ddp_lint.source.queries import calls_in, model_path
from ddp_lint.source.tree import descendants
from ddp_lint.tensors.classes import makes_module
from ddp_lint.view.wraps import Wrap

_GROWS = ("append", "insert", "add_module", "register_module", "register_parameter")


class ModelChangedOnOneRank(Rule):
    """Layers are added or frozen on one rank only before the model is wrapped.

    ## What it does

    Finds, under a test for rank 0 (or `is_main_process`), changes to the trainable parameters of a model that the same
    function wraps later, by a wrapper or by `accelerator.prepare`: `model.head = nn.Linear(..)`,
    `model.layers.append(..)`, `p.requires_grad = False`, `model.backbone.requires_grad_(False)`.

    ## Why it breaks

    The wrapper pairs the parameters of the ranks by their position in the list of those that need gradients. If rank 0
    has different ones than rank 1, DDP raises `DDP expects same model across all ranks` on one rank, or a mismatch of
    shapes (`appears to not match sizes of the same param in process 0`), while the other ranks wait in the
    constructor; FSDP does not compare, and hangs or mixes up shards. Measured on 2 x H200 with NCCL and on gloo.
    (Loading weights on rank 0 only is correct, because DDP sends those of rank 0 to all ranks.)

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


    def build():
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
        if dist.get_rank() == 0:
            model[0].requires_grad_(False)  # <- DDP626
        return DDP(model)


    model = build()
    model(torch.randn(8, 4, device=device)).square().mean().backward()
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


    def build():
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
        model[0].requires_grad_(False)
        if dist.get_rank() == 0:
            print(model)
        return DDP(model)


    model = build()
    model(torch.randn(8, 4, device=device)).square().mean().backward()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Weights that only rank 0 loads or initialises under DDP; other attributes than layers, parameters and
    `requires_grad`; a model that this function does not wrap afterwards, or wraps on the same rank alone.

    ## How to confirm

    `ddp-lint verify train.py`: the constructor raises, or the other rank does not join its collective.

    ## Fix safety

    No automatic fix: move the change out of the branch.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "prepare", tests=False)
    oracles = ("exception", "sequence", "stall")

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if isinstance(target, cst.Attribute) and target.attr.value == "requires_grad":
            if dotted(node.value) == "True" and self._is_followed_by_freezing(node):
                return
            self._check(node, target.value, "freezes or unfreezes parameters")
        elif isinstance(target, (cst.Attribute, cst.Subscript)) and self._makes_module(node.value):
            self._check(node, target.value, "gives the model another layer")

    def _is_followed_by_freezing(self, node: cst.Assign) -> bool:
        """Whether the loop sets all parameters to what they are, before it freezes some: that is the change."""
        loop = next((up for up in self.module.ancestors(node) if isinstance(up, cst.For)), None)
        others = (n for n in descendants(loop.body) if isinstance(n, cst.Assign)) if loop is not None else ()
        return any(
            dotted(n.value) == "False" and dotted(n.targets[0].target) == dotted(node.targets[0].target) for n in others
        )

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(node.func, cst.Attribute):
            return
        method = node.func.attr.value
        if method == "requires_grad_":
            self._check(node, node.func.value, "freezes or unfreezes parameters")
        elif method in _GROWS and any(self._makes_module(arg.value) for arg in node.args):
            self._check(node, node.func.value, "gives the model another layer")

    def _makes_module(self, value: cst.BaseExpression) -> bool:
        made = self.module.assignments(value) if isinstance(value, cst.Name) else [value]
        return bool(made) and all(makes_module(self.module, each) for each in made)

    def _check(self, node: cst.CSTNode, changed: cst.BaseExpression, what: str) -> None:
        if not on_one_rank(self.module, node):
            return
        name = model_path(self.module, changed)
        wrap = self._wrapped_later(node, name)
        call = wrap.call if wrap is not None else self._prepared_later(node, name)
        if call is not None:
            self.report(
                node,
                f"only one rank {what} before the wrap: the others hang, or average the wrong parameters",
                notes=["rank 0 and rank 1 pass different parameters to the wrapper"],
                labels=[(call, "the wrapper pairs the parameters of all ranks here")],
                help="make the same change on every rank",
            )

    def _wrapped_later(self, node: cst.CSTNode, name: str) -> Wrap | None:
        wraps = self.module.wraps
        return next(
            (
                wrap
                for wrap in wraps.all
                if name
                and not wrap.tested
                and f"{name}.".startswith(f"{wrap.inner}.")
                and wrap.inner
                and wraps.before(node, wrap)
                and not on_one_rank(self.module, wrap.call)
            ),
            None,
        )

    def _prepared_later(self, node: cst.CSTNode, name: str) -> cst.Call | None:
        """The call further down by which a framework wraps the model: ``accelerator.prepare(model)``."""
        function = self.module.scope_of(node)
        for call in calls_in(function):
            given = any(dotted(arg.value) and f"{name}.".startswith(f"{dotted(arg.value)}.") for arg in call.args)
            if name and given and self.module.wraps.follows(call, node) and prepares(self.module, call):
                return None if on_one_rank(self.module, call) else call
        return None

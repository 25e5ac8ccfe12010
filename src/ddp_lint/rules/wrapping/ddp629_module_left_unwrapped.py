from __future__ import annotations

import ast
import functools
import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.launch.helpers import helper_of
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.optimizers import is_optimizer, models_of
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.syntax import calls_below
from ddp_lint.source.tree import descendants, subtree
from ddp_lint.tensors.classes import makes_module
from ddp_lint.view.wraps import Wrap, unmoved

#: What averages gradients, or broadcasts parameters, by hand.
_BY_HAND = re.compile(
    r"(average|sync|all_?reduce|reduce)\w*_(grad|param|model)|(grad|param)\w*_(average|sync|all_?reduce)|all_?reduce\(.*\bgrad\b"
)
#: What a function has that may wrap what it is given, hand it on to what does, or average it.
_SPREADS = re.compile(r"Parallel|DDP|FSDP|fully_shard|prepare|wrap|all_?reduce|broadcast|average")
_IN_HAND = ("broadcast_coalesced", "_broadcast_coalesced", "DistributedOptimizer", "ZeroRedundancyOptimizer")
#: Modules that have parameters of their parts alone.
_LISTS = frozenset(f"torch.nn.{name}" for name in ("ModuleList", "ModuleDict", "Sequential"))


class ModuleLeftUnwrapped(Rule):
    """A module is trained beside a DDP model without a wrapper of its own: each rank trains another one.

    ## What it does

    Finds an optimizer that takes the parameters of a module (a head, a loss with weights, the discriminator of a GAN)
    which the file makes and never wraps, while it wraps another model with DDP or FSDP in the same function or class.

    ## Why it breaks

    A wrapper averages the gradients of the parameters that it holds, and of no others. Every rank updates the module
    by its own batches alone, so the ranks train different modules: rank 0 saves one that has seen its part of the data,
    and the DDP model is trained against another loss on each rank. No error. They do not even start alike, unless
    all ranks have the same seed: nothing broadcasts the parameters. Measured on two gloo ranks (torch 2.13).

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
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 8).to(device))
    head = torch.nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)  # <- DDP629
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        optimizer.zero_grad()
        head(model(torch.randn(4, 4, device=device))).square().mean().backward()
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
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 8).to(device))
    head = DistributedDataParallel(torch.nn.Linear(8, 2).to(device))
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        optimizer.zero_grad()
        head(model(torch.randn(4, 4, device=device))).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Modules that are given to anything but the optimizer and functions of the project that wrap nothing: another module
    may hold them, a function may wrap them. Lists of modules that are made empty or of names, whose parts may be
    wrapped. Files that average gradients or broadcast parameters by hand. Modules that no class of modules is seen to
    make, and branches for one process.

    ## How to confirm

    `ddp-lint verify train.py`: after a step the parameters of this optimizer differ between the ranks.

    ## Fix safety

    No automatic fix: `DistributedDataParallel` wants every parameter of the module to be used in each step.

    ## References

    - https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "parameters", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard",
        file=("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"), tests=False,
    )  # fmt: skip
    oracles = ("apart",)

    def visit_Call(self, node: cst.Call) -> None:
        if not is_optimizer(self.module, node) or self._averages or not self.module.wraps.all:
            return
        for name in sorted(models_of(self.module, node)):
            wrap = self._wrap_beside(name, node)
            made = self._made(name, node) if wrap is not None else None
            if wrap is not None and made is not None and not self._is_given_away(name, made):
                self.report(
                    node,
                    f"`{name}` is trained, but nothing averages its gradients: each rank trains another one",
                    labels=[(made, "made here, and never wrapped"), (wrap.place, f"`{wrap.outer}` is wrapped")],
                    help=f"wrap it as well: `{name} = DistributedDataParallel({name})`",
                )
                return

    @functools.cached_property
    def _averages(self) -> bool:
        code = self.module.file.code
        return _BY_HAND.search(code) is not None or any(map(self.module.file.holds, _IN_HAND))

    def _wrap_beside(self, name: str, node: cst.Call) -> Wrap | None:
        """The wrap of another model in the same function, or in the class of an attribute; None if the module itself is
        wrapped anywhere."""
        here, owner = self.module.function_of(node), self.module.class_of(node)
        wraps = [wrap for wrap in self.module.wraps.all if not wrap.tested]
        elsewhere = "." in name or here is None
        own = [w for w in wraps if elsewhere or self.module.function_of(w.call) in (here, None)]
        if any(name in (wrap.inner, wrap.outer) for wrap in own):
            return None
        for wrap in wraps:
            together = self.module.function_of(wrap.call) is here
            of_class = name.startswith("self.") and owner is not None and self.module.class_of(wrap.call) is owner
            if wrap.outer and (together or of_class) and not exclusive(self.module, wrap.call, node):
                return wrap
        return None

    def _made(self, name: str, node: cst.Call) -> cst.CSTNode | None:
        """The constructor that makes the module, the last of several; None where the name is given anything else."""
        made = None
        for binding in self.module.bindings(name, node):
            value = binding.value
            if binding.kind != "assign" or value is None or binding.index:
                return None
            if dotted(unmoved(value)) == name:  # `head = head.cuda()`
                continue
            if not makes_module(self.module, value) or self._holds_others(value):
                return None
            made = value
        return made

    def _holds_others(self, made: cst.BaseExpression) -> bool:
        """Whether a module is a list that is made without modules of its own: what it is given later, or by name, may
        be wrapped by itself."""
        if not isinstance(made, cst.Call) or self.module.qualified(made.func) not in _LISTS:
            return False
        return not any(isinstance(n, cst.Call) for arg in made.args for n in subtree(arg.value))

    def _is_given_away(self, name: str, made: cst.CSTNode) -> bool:
        """Whether the module itself is put or handed anywhere, where it may be wrapped or become a part of a model."""
        owner = self.module.class_of(made)
        around = owner if owner is not None and name.startswith("self.") else self.module.scope_of(made)
        mentions = (n for n in descendants(around) if isinstance(n, (cst.Name, cst.Attribute)) and dotted(n) == name)
        return any(not self._is_used(mention) for mention in mentions)

    def _is_used(self, mention: cst.CSTNode) -> bool:
        """``head(x)``, ``head.parameters()``, ``head = ..``, ``train(model, head)``."""
        up = self.module.parent(mention)
        if isinstance(up, cst.Arg):
            call = self.module.parent(up)
            return isinstance(call, cst.Call) and self._only_uses(call)
        if isinstance(up, cst.Attribute):
            if up.value is not mention:
                return True  # the last part of another dotted name, or a keyword
            method = self.module.parent(up)
            moves = up.attr.value in table("tensors")["layers"]["returning_module"]
            return not moves or not isinstance(method, cst.Call) or self._stays(method)
        return isinstance(up, cst.AssignTarget) or (isinstance(up, cst.Call) and up.func is mention)

    def _only_uses(self, call: cst.Call) -> bool:
        """Whether a function of the project is called, and none that wraps or averages anything."""
        helper = helper_of(self.module, call)
        calls = calls_below(helper.function) if helper is not None else ()
        return helper is not None and not any(_SPREADS.search(ast.unparse(each.func)) for each in calls)

    def _stays(self, call: cst.Call) -> bool:
        """Whether the module that a method returns goes nowhere else: ``head.train()``, ``head = head.to(device)``."""
        up = self.module.parent(call)
        if isinstance(up, cst.Assign):
            name = dotted(call.func).rpartition(".")[0]
            return any(dotted(target.target) == name for target in up.targets)
        return isinstance(up, cst.Expr)

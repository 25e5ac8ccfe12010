from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers

_FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"
_WRAP = "torch.distributed.fsdp.wrap."
_TRANSFORMER = _WRAP + "transformer_auto_wrap_policy"
_FUNCTIONS = (
    _WRAP + "size_based_auto_wrap_policy",
    _TRANSFORMER,
    _WRAP + "lambda_auto_wrap_policy",
    _WRAP + "always_wrap_policy",
)


class AutoWrapPolicyNotCallable(Rule):
    """auto_wrap_policy is given a class, or a policy that was called instead of bound.

    ## What it does

    Finds `auto_wrap_policy=` of FSDP1 that is a layer class or a collection of classes, a policy function that is
    called instead of bound with `functools.partial`, `transformer_auto_wrap_policy` without its classes, and
    `transformer_layer_cls=` that is one class instead of a set.

    ## Why it breaks

    FSDP calls the policy for every submodule with `module`, `recurse` and `nonwrapped_numel`. A class or the result of
    a call does not accept these arguments: the constructor raises on every rank, or wraps nothing, so that each rank
    gathers the whole model at once.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
    model = FSDP(net, auto_wrap_policy=size_based_auto_wrap_policy(min_num_params=10), device_id=device)  # <- DDP608
    model(torch.randn(8, 4, device=device)).square().mean().backward()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    import functools

    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=10)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).to(device)
    model = FSDP(net, auto_wrap_policy=policy, device_id=device)
    model(torch.randn(8, 4, device=device)).square().mean().backward()

    dist.destroy_process_group()
    ```

    ## When it is silent

    `functools.partial`, `ModuleWrapPolicy`, `CustomPolicy`, lambdas, names and calls whose value is not known; a set
    of classes for anything but FSDP itself (Lightning's strategies and torchtune convert it to a policy).

    ## How to confirm

    `ddp-lint verify train.py`: TypeError at the line on every rank.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel
    """

    triggers = Triggers("auto_wrap_policy", "transformer_layer_cls")
    oracles = ("exception",)

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is None:
            return
        problem = ""
        if node.keyword.value == "auto_wrap_policy":
            problem = self._policy_problem(node)
        elif node.keyword.value == "transformer_layer_cls" and self._is_class(node.value):
            problem = "is one class, but FSDP needs a set of classes: TypeError on every rank"
        if problem:
            self.report(
                node,
                f"{self.module.quoted(node.value)} {problem}",
                help="bind a policy function with functools.partial, or use ModuleWrapPolicy({Block})",
            )

    def _policy_problem(self, arg: cst.Arg) -> str:
        value = arg.value
        if isinstance(value, cst.Call) and self.module.qualified(value.func).startswith(_FUNCTIONS):
            return "calls the policy instead of binding it: FSDP fails on every rank"
        if self.module.qualified(value) == _TRANSFORMER:
            return "needs its transformer_layer_cls: the constructor fails on every rank"
        if self._is_class(value):
            return "is a layer class, which FSDP would call for every submodule: the constructor fails on every rank"
        holds_class = isinstance(value, (cst.Set, cst.List, cst.Tuple)) and any(
            self._is_class(e.value) for e in value.elements
        )
        if holds_class and self._goes_to_fsdp(arg):
            return "is a collection of classes, which FSDP cannot call: the constructor fails on every rank"
        return ""

    def _goes_to_fsdp(self, arg: cst.Arg) -> bool:
        """Whether the argument is FSDP's own: strategies of frameworks make a policy out of a set of classes."""
        call = self.module.parent(arg)
        if not isinstance(call, cst.Call):
            return False
        bound = call.args[0].value if self.module.qualified(call.func) == "functools.partial" else call.func
        return self.module.qualified(bound) == _FSDP

    def _is_class(self, value: cst.BaseExpression) -> bool:
        """A layer of torch.nn, or a class that this file defines."""
        name = self.module.qualified(value)
        if name.startswith("torch.nn."):
            return name.rpartition(".")[2][:1].isupper()
        definitions = self.module.facts.definitions if self.module.facts is not None else {}
        return isinstance(value, cst.Name) and isinstance(definitions.get(value.value), ast.ClassDef)

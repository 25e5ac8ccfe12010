from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants
from ddp_lint.view.wraps import argument, root_name

_SIDES = ("cpu", "cuda", "npu", "xpu")


class GradientLeftOnOtherDevice(Rule):
    """An autograd function moves a tensor to another device and leaves its gradient there.

    ## What it does

    Finds a `torch.autograd.Function` (offloading or fetching weights and activations) whose `forward` returns an
    argument on another device, `x.cuda()`, `x.cpu()` or `x.to(device)`, and whose `backward` returns its gradient
    unchanged.

    ## Why it breaks

    The gradient of a tensor has to be on the tensor's device. For a plain tensor rank 0 and rank 1 raise "Function
    UploadBackward returned an invalid gradient at index 0 - expected device cpu but got cuda:0". For a DTensor (a
    parameter of `fully_shard`) there is no such check, and the next node, which is on the CPU and has no stream, ends
    the backward with "opt_ready_stream && opt_parent_stream INTERNAL ASSERT FAILED" from autograd's engine, a message
    that names neither. Measured on an H200 (torch 2.11) under `fully_shard(offload_policy=CPUOffloadPolicy())`;
    `x.to(device)` without a custom function moves the gradient back by itself, and `save_on_cpu` and similar tools are
    correct under FSDP2.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl")


    class Upload(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight.to("cuda")  # <- DDP907

        @staticmethod
        def backward(ctx, gradient):
            return gradient


    model = torch.nn.Linear(4, 4)
    fully_shard(model, offload_policy=CPUOffloadPolicy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        penalty = Upload.apply(model.weight).square().sum().full_tensor()
        loss = model(torch.randn(8, 4, device=device)).square().mean() + 0.01 * penalty
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
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl")


    class Upload(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            ctx.device = weight.device
            return weight.to("cuda")

        @staticmethod
        def backward(ctx, gradient):
            return gradient.to(ctx.device)


    model = torch.nn.Linear(4, 4)
    fully_shard(model, offload_policy=CPUOffloadPolicy())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        penalty = Upload.apply(model.weight).square().sum().full_tensor()
        loss = model(torch.randn(8, 4, device=device)).square().mean() + 0.01 * penalty
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    `x.to(dtype)`; a gradient that `backward` moves or computes in another way; functions that return several tensors.

    ## How to confirm

    `ddp-lint verify train.py --device cuda`: the exception in backward.

    ## Fix safety

    No automatic fix: `forward` has to keep the device that `backward` needs.

    ## References

    - https://pytorch.org/docs/stable/notes/extending.html#extending-torch-autograd
    - https://github.com/pytorch/pytorch/issues/161129
    """

    triggers = Triggers("backward", file=("Function",))
    oracles = ("exception",)
    needs_cuda = True

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        if not self.module.is_subclass(node, "torch.autograd.Function"):
            return
        methods = {part.name.value: part for part in node.body.body if isinstance(part, cst.FunctionDef)}
        forward, backward = methods.get("forward"), methods.get("backward")
        if forward is None or backward is None:
            return
        inputs = _parameters(forward)[0 if "setup_context" in methods else 1 :]
        gradient = _parameters(backward)[1:]
        returned = _returned(forward)
        moved = root_name(returned) if returned is not None and _is_move(returned) else ""
        if moved not in inputs or len(gradient) != 1 or returned is None:
            return
        back = _handed_back(backward, inputs.index(moved))
        if isinstance(back, cst.Name) and back.value == gradient[0] and not _is_bound(backward, gradient[0]):
            self.report(
                returned,
                f"`{moved}` goes to another device and its gradient stays there: backward raises on every rank",
                notes=[
                    "for a DTensor in autograd's engine with 'opt_ready_stream && opt_parent_stream "
                    "INTERNAL ASSERT FAILED'"
                ],
                labels=[(back, "returned on its current device")],
                help=f"keep `ctx.device = {moved}.device` and return `{gradient[0]}.to(ctx.device)`",
            )


def _parameters(function: cst.FunctionDef) -> list[str]:
    return [parameter.name.value for parameter in function.params.params]


def _returned(function: cst.FunctionDef) -> cst.BaseExpression | None:
    """What the function's only `return` gives."""
    found = [n.value for n in descendants(function.body, into_definitions=False) if isinstance(n, cst.Return)]
    return found[0] if len(found) == 1 else None


def _handed_back(backward: cst.FunctionDef, position: int) -> cst.BaseExpression | None:
    """The gradient of the argument at this position."""
    value = _returned(backward)
    if isinstance(value, cst.Tuple):
        return value.elements[position].value if position < len(value.elements) else None
    return value if position == 0 else None


def _is_move(node: cst.BaseExpression) -> bool:
    """`x.cuda()`, `x.cpu()`, `x.to("cuda")`, `x.to(device)`."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    if node.func.attr.value in _SIDES:
        return True
    to = argument(node, 0, "device") if node.func.attr.value == "to" else None
    if isinstance(to, cst.SimpleString):
        return str(to.evaluated_value).startswith(_SIDES)
    named = dotted(to.func if isinstance(to, cst.Call) else to) if to is not None else ""
    return named.rpartition(".")[2].endswith("device")


def _is_bound(function: cst.FunctionDef, name: str) -> bool:
    """Whether the function gives the name another value."""
    targets = (n.target for n in descendants(function.body) if isinstance(n, (cst.AssignTarget, cst.AugAssign)))
    return any(isinstance(target, cst.Name) and target.value == name for target in targets)

from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.launch.backend import makes_tensors_on_gpus
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import called, descendants
from ddp_lint.tensors import ModuleClass, TensorFile
from ddp_lint.tensors.classes import Attribute, Role, method_key, uses_of_self
from ddp_lint.tensors.values import Kind

_MOVES = frozenset({"to", "cuda", "register_buffer", "to_empty"})


class BufferReplacedOnHost(Rule):
    """A registered buffer is replaced by a tensor on the CPU while the model trains on a GPU.

    ## What it does

    Finds `self.ready = torch.tensor(True)` and the like, without a device, where `ready` is a registered buffer of the
    module (or of a part of it: `self.codebook.ready = ..`), in code that runs when the model is on its device: in
    `forward`, in a `training_step`, and in methods that call layers of the module with tensors.

    ## Why it breaks

    A module moves its buffers once, by `.to(device)`. What is assigned afterwards stays on the CPU. DDP broadcasts the
    buffers before each forward, and NCCL takes tensors on GPUs alone: the next forward raises "No backend type
    associated with device type cpu" on every rank, also for a flag that a single process uses without an error. Where
    no buffers are broadcast, the next operation with a CUDA tensor raises, unless the buffer has no dimension. Measured
    on 2 x H200 with torch 2.11.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("scale", torch.ones(8))

        def forward(self, x):
            y = self.fc(x) * self.scale
            self.scale = torch.full((8,), 0.5)  # <- DDP410
            return y


    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    model = DistributedDataParallel(Net().cuda(), device_ids=[local_rank])
    for _ in range(2):
        model(torch.randn(4, 8, device="cuda")).sum().backward()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("scale", torch.ones(8))

        def forward(self, x):
            y = self.fc(x) * self.scale
            self.scale = torch.full((8,), 0.5, device=x.device)
            return y


    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    model = DistributedDataParallel(Net().cuda(), device_ids=[local_rank])
    for _ in range(2):
        model(torch.randn(4, 8, device="cuda")).sum().backward()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Constructors and what they call, functions that load or initialise weights, and any function that calls no layer
    with a tensor: they may run before the model is moved. Tensors with a device, `fill_` and `copy_`, a function that
    moves the buffer or the module afterwards, attributes that are no buffers, projects that set a default device,
    tests.

    ## How to confirm

    `ddp-lint verify train.py --device cuda` on two GPUs: the exception of the next forward.

    ## Fix safety

    No fix: `self.ready.fill_(True)` keeps the device, but also writes to what others may hold.

    ## References

    - https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer
    - https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "tensor",
        "zeros",
        "ones",
        "full",
        "empty",
        "arange",
        "eye",
        "randn",
        "rand",
        "LongTensor",
        "FloatTensor",
        "BoolTensor",
        "from_numpy",
        file=("torch",),
        tests=False,
    )
    oracles = ("exception",)
    needs_cuda = True

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if not isinstance(target, cst.Attribute) or not dotted(target).startswith("self."):
            return
        function, project = self.module.function_of(node), self.module.project
        if function is None or project is None or not isinstance(node.value, cst.Call):
            return
        tensors = TensorFile.of(self.module)
        owner = tensors.owner(function)
        if owner is None or not any(owner.attributes):
            return
        attribute = self._buffer(target, function, owner)
        value = tensors.flow(function).value(node.value)
        if attribute is None or not value.tensor or not value.on_host or makes_tensors_on_gpus(project):
            return
        if self._runs_on_device(function, owner) and not self._moved_after(node, function):
            self._report(node, attribute)

    def _report(self, node: cst.Assign, attribute: Attribute) -> None:
        name = node.targets[0].target
        labels: list[tuple[cst.CSTNode | Span, str]] = []
        if attribute.value is not None:
            labels = [(attribute.facts.file.span_of(attribute.value), "a buffer, which moves with the module")]
        self.report(
            node,
            f"the buffer {self.module.quoted(name)} becomes a tensor on the CPU: under NCCL the next forward raises",
            notes=["DDP broadcasts the buffers before each forward; the new one is not moved with the module"],
            labels=labels,
            help="write into it (`.fill_(..)`, `.copy_(..)`), or make the new one with device=",
        )

    def _buffer(self, target: cst.Attribute, function: cst.FunctionDef, owner: ModuleClass) -> Attribute | None:
        """The buffer that is assigned to: of the module itself, or of a layer of it."""
        holder: ModuleClass | None = owner
        if dotted(target.value) != "self":
            tensors = TensorFile.of(self.module)
            value = tensors.flow(function).value(target.value)
            maker = value.maker if value.kind is Kind.LAYER else ""
            holder = tensors.classes.imported(maker) if "." in maker else tensors.classes.named(maker)
        attribute = holder.attribute(target.attr.value) if holder is not None else None
        registered = attribute is not None and attribute.role is Role.BUFFER
        return attribute if registered else None

    def _runs_on_device(self, function: cst.FunctionDef, owner: ModuleClass) -> bool:
        """Whether the model is on its device when the function runs: in training, or as it computes with a layer."""
        tensors = TensorFile.of(self.module)
        if tensors.reached(function, training_step=True) is not None:
            return True
        if function.name.value == "__init__" or _is_called_by_constructor(function, owner):
            return False
        flow = tensors.flow(function)
        for call in (n for n in descendants(function.body) if isinstance(n, cst.Call)):
            receiver = call.func.value if isinstance(call.func, cst.Attribute) else call.func
            is_layer = Kind.LAYER in (flow.value(call.func).kind, flow.value(receiver).kind)
            if is_layer and any(flow.value(arg.value).computed for arg in call.args):
                return True
        return False

    def _moved_after(self, node: cst.Assign, function: cst.FunctionDef) -> bool:
        """Whether the function assigns the buffer again, or moves it or the module, below."""
        name, line = dotted(node.targets[0].target), self.module.span(node).line
        for other in descendants(function.body):
            if other is node or self.module.span(other).line <= line:
                continue
            if isinstance(other, cst.Assign) and any(dotted(t.target) == name for t in other.targets):
                return True
            if isinstance(other, cst.Call) and called(other) in _MOVES and isinstance(other.func, cst.Attribute):
                holder = dotted(other.func.value)
                if holder and f"{name}.".startswith(f"{holder}."):
                    return True
        return False


def _is_called_by_constructor(function: cst.FunctionDef, owner: ModuleClass) -> bool:
    cls, constructor = owner.methods.get("__init__", (None, None))
    if cls is None or constructor is None:
        return False
    return method_key(function) in {name for name, _ in uses_of_self(constructor, cls.facts)}

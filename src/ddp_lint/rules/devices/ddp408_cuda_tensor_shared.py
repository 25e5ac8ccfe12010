from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.knowledge.tensors import is_factory, names
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted

_DEPTH = 4
#: Methods whose result lies where their tensor lies.
_STAYS = {
    "clone",
    "detach",
    "contiguous",
    "requires_grad_",
    "float",
    "half",
    "double",
    "long",
    "int",
    "bool",
    "bfloat16",
}
_KINDS = ("cuda",)


class CudaTensorShared(Rule):
    """`share_memory_()` is called on a CUDA tensor, where it does nothing.

    ## What it does

    Finds `tensor.share_memory_()` and `model.share_memory()` if the tensor or the model is certainly on CUDA.

    ## Why it breaks

    Shared memory is memory of the host. On a CUDA tensor the call returns at once: `is_shared()` was true before, the
    address stays the same (measured on 2 x H200, torch 2.11). Another process gets a handle to the sender's GPU
    memory, which has two conditions that the call does not show. Each worker that receives it opens a CUDA context on
    the sender's GPU: with rank 1's workers on `cuda:0` too, GPU 0 fills up. And the memory is freed with the sender:
    when rank 0 drops the tensor or ends, its workers read freed memory. Forked workers cannot use it at all.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    table = torch.zeros(1024, device=f"cuda:{local_rank}")
    table.share_memory_()  # <- DDP408
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    table = torch.zeros(1024)
    table.share_memory_()
    on_device = table.to(f"cuda:{local_rank}", non_blocking=True)
    dist.barrier()
    dist.destroy_process_group()
    ```

    Share the tensor while it is on the CPU, and let each process copy it to its own GPU.

    ## When it is silent

    Tensors on the CPU, also if they were on a GPU before; a device that is known only at run time (`device` of an
    argument, `"cuda" if torch.cuda.is_available() else "cpu"`); programs of one process: the workers that it starts
    then mean to use its GPU, and find the tensor there with the call and without it; tests.

    ## How to confirm

    `ddp-lint verify train.py` on two GPUs: the device of the tensor that the line shares.

    ## Fix safety

    No fix: the place of the copy to the GPU is the author's choice.

    ## References

    - https://docs.pytorch.org/docs/stable/generated/torch.Tensor.share_memory_.html
    - https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-cuda-tensors
    """

    confidence = Confidence.HIGH
    triggers = Triggers("share_memory_", "share_memory", file=("cuda",), tests=False)
    oracles = ("device",)
    needs_cuda = True

    def visit_Call(self, node: cst.Call) -> None:
        func = node.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in self.triggers.words:
            return
        moved = self._moved(func.value, node)
        if moved is not None and several_ranks(self.module, node) is not None:
            what = "model" if func.attr.value == "share_memory" else "tensor"
            self.report(
                node,
                f"the {what} is on CUDA, where `{func.attr.value}()` does nothing: each worker opens a context on this "
                "rank's GPU",
                labels=[(moved, "put on the GPU here")],
                notes=["the memory is freed when the process that allocated it ends"],
                help="share it while it is on the CPU, and copy it to each process's own GPU",
            )

    # ---- where it lies

    def _moved(self, receiver: cst.BaseExpression, use: cst.CSTNode) -> cst.CSTNode | None:
        """What put a tensor or a module on CUDA for certain, None where that is not known."""
        moved = self._on_cuda(receiver, _DEPTH)
        if moved is None and isinstance(use, cst.Call) and dotted(use.func).endswith(".share_memory"):
            return self._moved_in_place(dotted(receiver), use)
        return moved

    def _on_cuda(self, value: cst.BaseExpression, depth: int) -> cst.CSTNode | None:
        if not depth:
            return None
        if isinstance(value, cst.Call):
            return self._made_on_cuda(value, depth)
        if isinstance(value, (cst.Name, cst.Attribute)) and dotted(value):
            bindings = self.module.bindings(value)
            if any(b.kind != "assign" or b.value is None or b.index for b in bindings):
                return None
            found = None
            for binding in bindings:
                found = self._on_cuda(binding.value, depth - 1) if binding.value is not None else None
                if found is None:
                    return None
            return found
        return None

    def _made_on_cuda(self, call: cst.Call, depth: int) -> cst.CSTNode | None:
        if is_factory(self.module.qualified(call.func)):
            device = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "device"), None)
            return call if device is not None and self._is_cuda(device, depth) else None
        if not isinstance(call.func, cst.Attribute):
            return None
        method = call.func.attr.value
        if method == "cuda":
            return call
        if method == "to":
            where = [a.value for a in call.args if a.keyword is None or a.keyword.value == "device"][:1]
            return call if any(self._is_cuda(w, depth) for w in where) else None
        stays = method in _STAYS or method in names("views", "methods")
        returns = method in table("tensors")["layers"]["returning_module"] and method != "cpu"
        return self._on_cuda(call.func.value, depth - 1) if stays or returns else None

    def _is_cuda(self, device: cst.BaseExpression, depth: int) -> bool:
        """Whether a device is a GPU for certain: ``"cuda"``, ``f"cuda:{rank}"``, ``torch.device("cuda", 0)``."""
        if not depth:
            return False
        if isinstance(device, cst.SimpleString):
            return str(device.evaluated_value).startswith(_KINDS)
        if isinstance(device, cst.FormattedString):
            first = device.parts[0] if device.parts else None
            return isinstance(first, cst.FormattedStringText) and first.value.startswith(_KINDS)
        if isinstance(device, cst.Call):
            is_device = self.module.qualified(device.func) == "torch.device" and bool(device.args)
            return is_device and self._is_cuda(device.args[0].value, depth - 1)
        if isinstance(device, cst.Name):
            bindings = self.module.bindings(device)
            given = [b.value for b in bindings if b.kind == "assign" and b.value is not None and not b.index]
            return bool(given) and len(given) == len(bindings) and all(self._is_cuda(g, depth - 1) for g in given)
        return False

    def _moved_in_place(self, name: str, use: cst.CSTNode) -> cst.CSTNode | None:
        """The statement ``model.cuda()`` before, in the same block or in one around it: modules move as they are."""
        around = {id(up) for up in self.module.ancestors(use)}
        for block in (up for up in self.module.ancestors(use) if isinstance(up, (cst.BaseSuite, cst.Module))):
            for line in block.body:
                if id(line) in around:
                    break
                for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                    call = statement.value if isinstance(statement, cst.Expr) else None
                    moves = isinstance(call, cst.Call) and dotted(call.func) in (f"{name}.cuda", f"{name}.to")
                    if name and moves and isinstance(call, cst.Call) and self._made_on_cuda(call, _DEPTH) is not None:
                        return call
            if isinstance(self.module.parent(block), cst.FunctionDef):
                return None
        return None

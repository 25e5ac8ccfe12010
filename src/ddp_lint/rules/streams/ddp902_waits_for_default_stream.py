from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted


class WaitsForDefaultStream(Rule):
    """A communication stream waits for the default stream instead of the one that produces the data.

    ## What it does

    Finds `side.wait_stream(torch.cuda.default_stream())`, and the same with an accelerator abstraction, in code that
    has its own streams.

    ## Why it breaks

    The default stream is one particular stream, not the one in use. Autograd runs the backward of an operation on
    the stream of its forward, and callers may have switched streams; then `side` waits for an idle stream and a
    rank reduces gradients that are still being written: NaN or wrong values, dependent on timing, on one rank or on
    all.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    side = torch.cuda.Stream()
    work = torch.cuda.Stream()


    def reduce():
        with torch.cuda.stream(work):
            x = torch.zeros(1 << 24, device=device)
            for _ in range(50):
                x += 0.02
            side.wait_stream(torch.cuda.default_stream())  # <- DDP902
            with torch.cuda.stream(side):
                dist.all_reduce(x)
            work.wait_stream(side)
            return x.mean().item()


    print(dist.get_rank(), reduce())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    side = torch.cuda.Stream()
    work = torch.cuda.Stream()


    def reduce():
        with torch.cuda.stream(work):
            x = torch.zeros(1 << 24, device=device)
            for _ in range(50):
                x += 0.02
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                dist.all_reduce(x)
            work.wait_stream(side)
            return x.mean().item()


    print(dist.get_rank(), reduce())

    dist.destroy_process_group()
    ```

    ## When it is silent

    `current_stream()`, and files without a collective (CUDA graph capture waits for the default stream by design).

    ## How to confirm

    `ddp-lint verify train.py --device cuda` follows launches, events and waits, and names two accesses to one memory
    that nothing orders, whether or not the first happened to finish in time.

    ## Fix safety

    Unsafe: `current_stream()` is nearly always what is meant.

    ## References

    - https://pytorch.org/docs/stable/notes/cuda.html#cuda-streams
    """

    triggers = Triggers(
        "default_stream",
        file=(
            "all_reduce",
            "allreduce",
            "reduce_scatter",
            "reduce_scatter_tensor",
            "all_gather",
            "broadcast",
            "isend",
        ),
    )
    oracles = ("streams",)
    needs_cuda = True
    confidence = Confidence.MEDIUM

    def visit_Call(self, node: cst.Call) -> None:
        if not dotted(node.func).endswith(".wait_stream") or len(node.args) != 1:
            return
        awaited = node.args[0].value
        if not isinstance(awaited, cst.Call) or not isinstance(awaited.func, cst.Attribute):
            return
        if awaited.func.attr.value != "default_stream":
            return
        side = dotted(node.func).rpartition(".")[0]
        edit = Edit(self.module.span(awaited.func.attr), "current_stream")
        self.report(
            node,
            f"`{side}` waits only for the default stream: a rank may send values that are still being written",
            notes=["if the data is produced on another stream (autograd follows the stream of the forward)"],
            help="wait for the current stream, which is the one that produces the data",
            fix=Fix("wait for the current stream", Applicability.UNSAFE, (edit,)),
        )

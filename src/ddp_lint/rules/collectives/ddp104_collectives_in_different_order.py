from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class CollectivesInDifferentOrder(MismatchRule):
    """All ranks communicate, but not in the same order.

    ## What it does

    Finds code in which two ranks issue different collectives first, because of a rank test or because they iterate
    over something whose order differs between processes (a `set`, or a list or generator filled from one); two
    branches of a rank test that reduce the same two tensors in opposite order; also two groups that ranks enter in
    opposite order.

    ## Why it breaks

    Collectives have no names: the first call of rank 0 on a group pairs with the first call of rank 1. Swapped calls
    of equal size give wrong numbers without any error (measured: 101 and 101 instead of 2 and 200); with different
    sizes gloo aborts and NCCL hangs; `all_reduce` against `broadcast` hangs on both.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    loss, steps = torch.ones(1, device=device), torch.full((1,), 100.0, device=device)
    if rank == 0:
        dist.all_reduce(loss)  # <- DDP104
        dist.broadcast(steps, src=0)
    else:
        dist.broadcast(steps, src=0)
        dist.all_reduce(loss)

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    loss, steps = torch.ones(1, device=device), torch.full((1,), 100.0, device=device)
    dist.all_reduce(loss)
    dist.broadcast(steps, src=0)

    dist.destroy_process_group()
    ```

    ## When it is silent

    If both branches have the same collectives in the same order, with any buffers. If the calls are on groups that
    share fewer than two ranks. If the loop iterates over a sorted sequence.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks' logs of collectives, aligned call by call, differ at this line.

    ## Fix safety

    No automatic fix: either order is right, as long as all ranks keep it.

    ## References

    - PyTorch, `torch.distributed`: "collectives from one process group must be issued in the same order on all ranks".
    """

    kind = Kind.ORDER
    oracles = ("sequence", "stall", "value")

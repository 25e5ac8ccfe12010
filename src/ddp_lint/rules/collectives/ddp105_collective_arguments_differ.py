from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class CollectiveArgumentsDiffer(MismatchRule):
    """All ranks make the call, with another root, reduce operation or shape on each.

    ## What it does

    Finds collectives whose root (`src`, `dst`) or reduce operation is computed from the rank, as in
    `broadcast(t, src=dist.get_rank())` or `op = SUM if rank == 0 else MAX`, and the two arms of a rank test that make
    the same call with another root or reduce operation. Also finds tensors that have another shape on each rank where
    all ranks must send the same: made of a size that follows from the rank (`torch.zeros(rank + 1)`), selected from
    its own data (`x[mask]`, `torch.nonzero(x)`), and, gathered from all ranks, what `model.generate(...)` returns or
    `batch["input_ids"]`, as long as the longest of each rank's own; also where a helper makes the call.

    ## Why it breaks

    The ranks meet in the call, but with different arguments. Measured on two ranks: `broadcast(src=rank)`
    leaves every rank with its own data on NCCL, silently, and hangs on gloo; SUM against MAX returns a number without
    an error on both, and `TORCH_DISTRIBUTED_DEBUG=DETAIL` does not notice. With another shape on each rank gloo
    aborts; on NCCL `all_reduce` hangs until the watchdog ends it, and `all_gather` returns wrong numbers silently.

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

    weights = torch.full((4,), float(rank), device=device)
    dist.broadcast(weights, src=rank)  # <- DDP105
    print(rank, weights.tolist())

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

    weights = torch.full((4,), float(rank), device=device)
    dist.broadcast(weights, src=0)
    print(rank, weights.tolist())

    dist.destroy_process_group()
    ```

    ## When it is silent

    Values that differ between ranks are what collectives are for: only root and operation count. A root that is the
    same for all members of the group (`get_tensor_model_parallel_src_rank()`) or that a loop over the ranks counts up
    is right; one that is a rank by a parameter's name alone is not doubted. Other shapes, and dtypes, that differ
    between ranks are left to `verify`.

    ## How to confirm

    `ddp-lint verify train.py`: the logs of the ranks differ in root or reduce operation at this line.

    ## Fix safety

    No automatic fix.

    ## References

    - PyTorch, `torch/distributed/distributed_c10d.py`: `broadcast`, `reduce`, `all_reduce`.
    """

    kind = Kind.ARGUMENT
    oracles = ("sequence", "stall", "exception")

from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class CollectiveArgumentsDiffer(MismatchRule):
    """The root, reduce operation or shape of a collective differs between ranks.

    ## What it does

    Finds collectives whose root (`src`, `dst`) or reduce operation is computed from the rank, as in `broadcast(t,
    src=dist.get_rank())` or `op = SUM if rank == 0 else MAX`, and two branches of a rank test that make the same call
    with different roots or reduce operations. Also finds tensors whose shape differs between ranks where all ranks
    must send the same shape: a size computed from the rank (`torch.zeros(rank + 1)`), a selection of the rank's own
    data (`x[mask]`, `torch.nonzero(x)`), the bytes of an object (`torch.ByteTensor(list(pickle.dumps(results)))`), and
    in gathers the result of `model.generate(...)` or `batch["input_ids"]`, which are as long as the longest sample of
    the rank. And metrics of Lightning that the ranks combine under names of their own batches
    (`self.log(f"error_{kind(batch)}", error, sync_dist=True)`). The call may be in a helper.

    ## Why it breaks

    The ranks meet in the call, but with different arguments. Measured on two ranks: `broadcast(src=rank)` silently
    leaves every rank with its own data on NCCL, and hangs on gloo; SUM against MAX returns a number without an error
    on both, and `TORCH_DISTRIBUTED_DEBUG=DETAIL` does not detect it. With different shapes gloo aborts; on NCCL
    `all_reduce` hangs until the watchdog ends it, and `all_gather` returns wrong numbers silently.

    Lightning reduces the metrics of an epoch one after the other, in the order in which each rank has first logged
    them, and sends no names. Measured on two ranks (gloo, Lightning 2.6): of values with a mean of 2.75 under `low` and
    14 under `high`, rank 0, which met `low` first, gets 8.25 and 8.5, and rank 1, which met `high` first, 8.5 and 8.25.
    A name that one rank alone has logged hangs.

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

    Values that differ between ranks are normal; only roots, operations, shapes and the names of metrics are checked. A
    root that is the same for all members of the group (`get_tensor_model_parallel_src_rank()`), or the variable of a
    loop over the ranks, is correct. A root that is known to be a rank only by a parameter's name is not reported. What
    one rank makes to send it, and the others to receive it, is compared by DDP116. Other shapes and dtypes that differ
    between ranks are found by `verify`.

    ## How to confirm

    `ddp-lint verify train.py`: the logs of the ranks differ in root or reduce operation at this line.

    ## Fix safety

    No automatic fix.

    ## References

    - PyTorch, `torch/distributed/distributed_c10d.py`: `broadcast`, `reduce`, `all_reduce`.
    """

    kind = Kind.ARGUMENT
    oracles = ("sequence", "stall", "exception")

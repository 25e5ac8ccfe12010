from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class CollectiveUnderLocalCondition(MismatchRule):
    """A collective under a condition that each rank decides from its own data or clock.

    ## What it does

    Finds collectives, also implicit ones, whose condition mentions no rank and still differs between ranks: a value of
    this rank's batch (`loss.item()`, `isnan`, an empty selection, `masks.numel() == 0`, images that its samples lack),
    the wall clock, a future that has finished here but not there, free memory, an exception caught where only this rank
    works, or a barrier for those alone that found a file missing which one of them makes. Other conditions on files are
    DDP111, other exceptions DDP112.

    ## Why it breaks

    Rank 0 sees a NaN in its batch and skips the `all_reduce`; rank 1 does not and waits in it. Clocks differ by
    microseconds, which is enough once in ten thousand steps. A third of the real hangs that were studied are of this
    kind, and no search for `rank == 0` finds them.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    data = torch.arange(8.0)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))

    for batch in loader:
        loss = batch.to(device).mean()
        if loss.item() > 3.5:
            dist.all_reduce(loss)  # <- DDP103

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    data = torch.arange(8.0)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))

    for batch in loader:
        loss = batch.to(device).mean()
        largest = loss.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        if largest.item() > 3.5:
            dist.all_reduce(loss)

    dist.destroy_process_group()
    ```

    ## When it is silent

    Where the deciding value came out of an `all_reduce`, `broadcast` or `all_gather`; where both outcomes run the same
    collectives; where the condition depends on configuration, step numbers or world size. What cannot be shown to
    differ between ranks is taken to be the same on all.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks' logs of collectives differ at this line. verify feeds each rank other data,
    a short shard and a NaN, so that such conditions come out differently.

    ## Fix safety

    No automatic fix: which rank's decision counts (any, all, rank 0) is for the author to say.

    ## References

    - PyTorch, `torch.distributed.all_reduce` with `ReduceOp.MAX` (any rank) or `MIN` (all ranks).
    - Lightning, `Strategy.reduce_boolean_decision`.
    """

    kind = Kind.CONDITION

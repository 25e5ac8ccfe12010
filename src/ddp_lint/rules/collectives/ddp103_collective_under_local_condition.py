from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class CollectiveUnderLocalCondition(MismatchRule):
    """A collective under a condition that each rank decides from its own data or clock.

    ## What it does

    Finds collectives, also implicit ones, whose condition does not mention the rank but differs between ranks: a value
    of this rank's batch (`loss.item()`, `isnan`, an empty selection, `masks.numel() == 0`, missing images), the wall
    clock, a future that has finished on some ranks only, free memory, an exception that this rank's own data raises
    (`except ValueError: continue`), a list that is gathered unless this rank has put nothing into it, or a barrier only
    for the ranks that found a file missing which one of them creates. Other conditions on files are DDP111, other
    exceptions DDP112.

    ## Why it breaks

    Rank 0 sees a NaN in its batch and skips the `all_reduce`; rank 1 does not and waits in it. Clocks differ by
    microseconds, which is enough to diverge once in ten thousand steps. A third of the real hangs that were studied
    are of this kind, and a search for `rank == 0` does not find them.

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

    If the condition depends on the result of an `all_reduce`, `broadcast` or `all_gather`, or on configuration, step
    numbers or world size. If both outcomes run the same collectives. A value is assumed to be the same on all ranks
    unless the code shows that it differs. The question whether a batch has any sample (`labels.size(0) == 0`), where no
    function of the project that puts samples together leaves some out. What Lightning reduces at the end of the epoch
    (`self.log(.., sync_dist=True)` in `validation_step` without `on_step=True`), which only a rank without any such
    batch would lack.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks' logs of collectives differ at this line. verify gives each rank different
    data, a shorter shard and a NaN, so that such conditions have different outcomes.

    ## Fix safety

    No automatic fix: which rank's decision counts (any, all, rank 0) is the author's decision.

    ## References

    - PyTorch, `torch.distributed.all_reduce` with `ReduceOp.MAX` (any rank) or `MIN` (all ranks).
    - Lightning, `Strategy.reduce_boolean_decision`.
    """

    kind = Kind.CONDITION

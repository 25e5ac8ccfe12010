from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class CollectiveUnderRankCondition(MismatchRule):
    """Only the ranks on one side of a rank test reach this collective.

    ## What it does

    Finds collectives of `torch.distributed` and its mirrors that some ranks of their group reach and others do not:
    under `if rank == 0:`, after an early `return` of the other ranks, after `rank == 0 and ...`, in a function that is
    called from only one side, or behind a decorator such as `@rank_zero_only`.

    ## Why it breaks

    A collective is complete when every rank of the group has joined it. Rank 0 joins and waits; rank 1 has gone on to
    its next collective, or to the end of the program. Either both wait until the watchdog kills the job, 10 minutes
    later with NCCL and 30 with gloo, or the single call pairs with the *next* collective of rank 1 and the numbers are
    wrong from there on. Measured on 2 x H200 (NCCL, torch 2.11) and gloo (torch 2.13): an `all_reduce` on one rank
    before three common ones printed 101 instead of 100, 11 and 101 instead of 2, and the last one hung.

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

    loss = torch.ones(1, device=device)
    if rank == 0:
        dist.all_reduce(loss)  # <- DDP101
        print("mean loss", loss.item() / dist.get_world_size())

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

    loss = torch.ones(1, device=device)
    dist.all_reduce(loss)
    if rank == 0:
        print("mean loss", loss.item() / dist.get_world_size())

    dist.destroy_process_group()
    ```

    ## When it is silent

    If all ranks make the same calls in the end: both branches call the same collective, the barriers of `if rank != 0:
    barrier()` and a later `if rank == 0: barrier()` complete each other, an early exit issues the collective that its
    peers issue later, or a skipping rank runs a mirrored loop. If the test is about the group itself (`if rank in
    ranks:` before a collective on that group), or only about the launcher (`rank != -1`, `world_size > 1`). If the
    condition is the result of a collective. Send and receive are not collectives. A call that cannot be resolved is
    not reported.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks' logs of collectives differ at this line, or rank 0 stalls in it.

    ## Fix safety

    No automatic fix: whether all ranks should do the work before the call is the author's decision.

    ## References

    - PyTorch, `torch/distributed/distributed_c10d.py`.
    - Zhang and Duesterwald, Barrier matching for programs with textually unaligned barriers, PPoPP 2007.
    - https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp (timeouts)
    """

    kind = Kind.BRANCH

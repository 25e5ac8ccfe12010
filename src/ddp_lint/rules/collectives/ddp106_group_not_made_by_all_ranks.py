from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class GroupNotMadeByAllRanks(MismatchRule):
    """Only some ranks create a process group or device mesh.

    ## What it does

    Finds `new_group`, `init_device_mesh`, `initialize_model_parallel` and the like under a rank or membership test,
    and `new_group(ranks)` with `ranks` computed from the rank, so that each rank creates only its own group; so with a
    call in each arm of the test, for other ranks.

    ## Why it breaks

    `new_group(ranks)` is a collective of the whole *world*: ranks outside the group have to call it too, and all in
    the same order, because the new group gets its name from a counter and its members meet at a store barrier. If only
    the members call it, they wait there for the others, or the ranks' counters no longer agree and the next group
    connects the wrong peers. Measured on gloo: a hang that ignores the default group's timeout; on NCCL the same
    program completed by chance. With gloo, four ranks that each created only their own pair got sums over the wrong
    ranks and then hung: both pairs have the same name and use the same store key.

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

    writers = [0]
    if rank in writers:
        group = dist.new_group(writers)  # <- DDP106
    everyone = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1, device=device), group=everyone)

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

    writers = [0]
    group = dist.new_group(writers)
    everyone = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1, device=device), group=everyone)

    dist.destroy_process_group()
    ```

    ## When it is silent

    If every rank creates every group and only *keeps* its own (`group = new_group(ranks)` outside, `if rank in ranks:
    mine = group` inside). With `use_local_synchronization=True`. If the test is the same on all ranks (a cache that
    all ranks fill in the same way, a configuration flag, the world size).

    ## How to confirm

    `ddp-lint verify train.py`: `new_group` is in the log of one rank and not of the other, or a rank stalls in it.

    ## Fix safety

    No automatic fix: usually the call can be moved out of the test unchanged.

    ## References

    - PyTorch, `torch.distributed.new_group`: "requires that all processes in the main group enter this function, even
      if they are not going to be members of the group".
    """

    kind = Kind.GROUP

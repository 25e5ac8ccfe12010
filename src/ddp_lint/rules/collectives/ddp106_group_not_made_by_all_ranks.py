from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class GroupNotMadeByAllRanks(MismatchRule):
    """A process group or device mesh that only some ranks create.

    ## What it does

    Finds `new_group`, `init_device_mesh`, `initialize_model_parallel` and the like under a rank or membership test,
    and `new_group(ranks)` where `ranks` follow from the rank, so that each rank makes its own group alone.

    ## Why it breaks

    `new_group(ranks)` is a collective of the whole *world*: ranks outside the group have to call it too, and all in
    the same order, because the new group gets its name from a counter and its members meet at a store barrier. If
    only the members call it, they wait there for the others, or the ranks' counters no longer agree and the next
    group is wired to the wrong peers. Measured on gloo: a hang that does not even obey the default group's timeout;
    on NCCL the same program went on, by the luck of its schedule. Four ranks that each made only the pair they were in
    (gloo) got sums over the wrong ranks, then hung: both pairs have one name, and meet at one store key.

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

    Where every rank makes every group and only *keeps* its own (`group = new_group(ranks)` outside, `if rank in
    ranks: mine = group` inside); with `use_local_synchronization=True`; where the test is the same on all ranks (a
    cache that all fill alike, a configuration flag, the world size).

    ## How to confirm

    `ddp-lint verify train.py`: `new_group` is in the log of one rank and not of the other, or a rank stalls in it.

    ## Fix safety

    No automatic fix: usually the call moves out of the test as it is.

    ## References

    - PyTorch, `torch.distributed.new_group`: "requires that all processes in the main group enter this function, even
      if they are not going to be members of the group".
    """

    kind = Kind.GROUP

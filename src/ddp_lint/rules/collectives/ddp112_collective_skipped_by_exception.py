from __future__ import annotations

from ddp_lint.divergence import Mismatch
from ddp_lint.rules.collectives.mismatch import MismatchRule, by_exception


class CollectiveSkippedByException(MismatchRule):
    """A rank that catches an exception skips a collective, or runs one alone.

    ## What it does

    Finds collectives in an `except` handler, and collectives that an exception skips.

    ## Why it breaks

    An exception occurs on one rank only: rank 0 reads a bad file or runs out of memory, rank 1 does not. If rank 0
    swallows the error and continues, it has skipped a collective that rank 1 waits in, or adds one that rank 1 never
    joins. Measured on two ranks: a swallowed exception before one `all_reduce` changed the next sums from 20 to 110
    and then hung, with NCCL and with gloo.

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
    total = torch.ones(1, device=device)


    def load(index):
        if index == 1:
            raise OSError("unreadable shard")


    try:
        load(rank)
    except OSError:
        dist.all_reduce(total)  # <- DDP112

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
    failed = torch.zeros(1, device=device)


    def load(index):
        if index == 1:
            raise OSError("unreadable shard")


    try:
        load(rank)
    except OSError:
        failed += 1
    dist.all_reduce(failed)

    dist.destroy_process_group()
    ```

    ## When it is silent

    Handlers that raise again or end the program, because the launcher then ends the other ranks. The rule is off by
    default: most exceptions that code handles, a lack of memory included, occur on all ranks at once, or never.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks' logs of collectives differ at this line.

    ## Fix safety

    No automatic fix.

    ## References

    - Issues of the kind: one rank fails to download a checkpoint, the others wait at the barrier behind it.
    """

    default = False

    def concerns(self, mismatch: Mismatch) -> bool:
        return mismatch.caught and by_exception(mismatch)

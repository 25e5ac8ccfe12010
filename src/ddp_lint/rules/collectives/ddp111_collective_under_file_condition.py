from __future__ import annotations

from ddp_lint.divergence import Mismatch
from ddp_lint.rules.collectives.mismatch import MismatchRule


class CollectiveUnderFileCondition(MismatchRule):
    """A collective depends on whether the rank finds a file.

    ## What it does

    Finds collectives, also inside helpers, under `os.path.exists`, `isfile`, `listdir` and the like, and in loops over
    the files of a folder.

    ## Why it breaks

    Rank 0 finds the folder missing, enters the helper and creates the folder; rank 1 looks a moment later, finds the
    folder and skips the helper. Rank 0 waits in the helper's barrier, rank 1 in its next collective. On several nodes
    with local disks no race is needed: the file is on one node and not on the other.

    ## Example

    ```python
    import os
    import pathlib
    import tempfile

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    flag = torch.ones(1, device=device)
    dist.all_reduce(flag)

    folder = tempfile.mkdtemp()
    pathlib.Path(folder, "done-on-rank-0").touch()
    if os.path.exists(os.path.join(folder, f"done-on-rank-{rank}")):
        dist.all_reduce(flag)  # <- DDP111

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os
    import pathlib
    import tempfile

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    flag = torch.ones(1, device=device)
    dist.all_reduce(flag)

    folder = tempfile.mkdtemp()
    pathlib.Path(folder, "done-on-rank-0").touch()
    found = torch.tensor([float(os.path.exists(os.path.join(folder, f"done-on-rank-{rank}")))], device=device)
    dist.broadcast(found, src=0)
    if found.item() > 0:
        dist.all_reduce(flag)

    dist.destroy_process_group()
    ```

    ## When it is silent

    If rank 0 looks and broadcasts the result, or if both outcomes run the same collectives. A barrier for the ranks
    that found the file missing is DDP103, because there the code itself creates the file. The rule is off by default:
    on a shared disk that does not change at this moment, all ranks find the same.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks' logs of collectives differ at this line.

    ## Fix safety

    No automatic fix.

    ## References

    - PyTorch, `torch.distributed.broadcast_object_list`.
    """

    default = False

    def concerns(self, mismatch: Mismatch) -> bool:
        return mismatch.cause == "file"

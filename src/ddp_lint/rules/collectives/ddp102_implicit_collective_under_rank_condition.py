from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class ImplicitCollectiveUnderRankCondition(MismatchRule):
    """Only some ranks make a call that communicates internally.

    ## What it does

    Finds framework calls under a rank test whose name does not show that all ranks must take part: saving or
    consolidating sharded state (`dcp.save`, FSDP `state_dict`, `DTensor.full_tensor`, `trainer.save_checkpoint`,
    `accelerator.save_state`, `engine.save_checkpoint`), metrics that sync when computed (`metric.compute()`), building
    DDP, `self.log(..., sync_dist=True)`. More than half of the real hangs that were studied go through such a call.

    ## Why it breaks

    Only rank 0 writes the file, but first every rank has to send its part: the call contains an `all_gather`, a
    `broadcast` or a `barrier`. Only rank 0 starts it, and waits; rank 1 is in its next training step. The job dies
    when the watchdog's timeout expires, or the collective pairs with another one of rank 1.

    ## Example

    ```python
    import os
    import tempfile

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 4).to(device)

    if rank == 0:
        dcp.save(model.state_dict(), checkpoint_id=tempfile.mkdtemp())  # <- DDP102

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os
    import pathlib
    import tempfile

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 4).to(device)

    dcp.save(model.state_dict(), checkpoint_id=pathlib.Path(tempfile.gettempdir(), "checkpoint"))

    dist.destroy_process_group()
    ```

    ## When it is silent

    If the call communicates only for sharded models and nothing shows that this one is sharded, neither its own file
    nor one that calls the function, as with `state_dict()` or `get_model_state_dict` of a DDP model (for
    `accelerator.save_state`: no script in the same folder supports FSDP or DeepSpeed either, or nothing in the
    project enables one). If the object is of a class of the project that has a method of the same name. If the rank
    test does not apply in the modes that communicate (`if is_main or sharded:`). And in all cases in which DDP101 is
    silent.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks' logs of collectives differ at this line, or rank 0 stalls in it. A call
    that communicates only for sharded models needs `--wrap fsdp2`.

    ## Fix safety

    No automatic fix: move the call out of the test, and use its result only on the rank that writes.

    ## References

    - PyTorch, `torch/distributed/checkpoint/utils.py`: `_DistWrapper`.
    - Lightning, `trainer.save_checkpoint` "needs to be called on all processes".
    - DeepSpeed: "all processes must call this method and not just the process with rank 0".
    """

    kind = Kind.IMPLICIT

from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class ForwardOnOneRank(MismatchRule):
    """The wrapped model runs forward on some ranks only.

    ## What it does

    Finds calls of a model that is wrapped in DDP, FSDP or a DeepSpeed engine on one side of a rank test: an evaluation
    or sample generation on rank 0 with the training wrapper. Also in a loop that each rank leaves by itself, and a part
    of a sharded model (`fully_shard`, a wrap policy, ZeRO-3) that `forward` runs under a condition of the rank's own
    batch: a vision tower behind `if pixel_values is not None`, experts without tokens. And the loop in which a sharded
    model writes text, where it ends as soon as the texts of this rank are complete (`if done.all(): break`).

    ## Why it breaks

    The wrapper's forward communicates. DDP broadcasts rank 0's buffers (BatchNorm statistics, masks) before each
    forward that is not inside `no_sync`, FSDP gathers the parameters of each layer. Rank 0 evaluates and waits in that
    collective; rank 1 waits at the next barrier or trains on. Measured: with FSDP every such forward hangs; a DDP model
    without buffers works until someone adds one. With BatchNorm and gradients on, each forward broadcasts. Under
    `no_grad` only the first does, and rank 0's next training forward leaves its own broadcast out, so that it may take
    the part of the one that rank 1 makes there: such an evaluation hangs where a barrier or another collective comes
    before that forward, and after exactly one step of training (the second step exchanges the sizes of the buckets,
    but not with `find_unused_parameters=True`); after none or three steps it went through (2 x H200, NCCL; and gloo).

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model = DDP(net.to(device))
    x = torch.randn(8, 4, device=device)
    model(x).square().mean().backward()
    if rank == 0:
        with torch.no_grad():
            print(model(x).mean())  # <- DDP110
    model(x).square().mean().backward()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model = DDP(net.to(device))
    x = torch.randn(8, 4, device=device)
    model(x).square().mean().backward()
    if rank == 0:
        with torch.no_grad():
            print(model.module(x).mean())
    model(x).square().mean().backward()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Forwards of the inner module (`model.module(x)` under DDP), forwards on all ranks, DDP models without known
    buffers or wrapped with `broadcast_buffers=False` (with a flag that is not known: `--preview` only), models whose
    wrapping is not found, and parts that both sides of the condition run (a dummy input). And under `no_grad`, where
    all that the other ranks may come to next is a forward of a DDP model, also in what calls the function; but not
    after one step of training in each round of a loop. And `SyncBatchNorm` under `no_grad`: in evaluation mode it
    communicates with nobody.

    ## How to confirm

    `ddp-lint verify train.py`: a broadcast or all_gather at this line is in the log of one rank only, or it stalls.

    ## Fix safety

    No automatic fix: evaluate on all ranks, or under DDP through `model.module`. A rank without images runs the part
    on zeros and adds its result times 0.

    ## References

    - PyTorch, `torch/nn/parallel/distributed.py`: `_pre_forward`, `_sync_buffers`.
    - PyTorch, `torch/distributed/fsdp/_fully_shard/_fsdp_state.py`: `_pre_forward`.
    """

    kind = Kind.FORWARD

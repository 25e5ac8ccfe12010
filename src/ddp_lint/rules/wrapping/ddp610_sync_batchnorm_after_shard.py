from __future__ import annotations

import libcst as cst

from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.sharded import CallOnSharded, first_argument
from ddp_lint.source import dotted
from ddp_lint.view.wraps import Wrap


class SyncBatchnormAfterShard(CallOnSharded):
    """SyncBatchNorm conversion runs after FSDP has sharded the model.

    ## What it does

    Finds `convert_sync_batchnorm(model)` on a model that FSDP1 or `fully_shard` has already wrapped.

    ## Why it breaks

    The conversion makes new modules around parameters that are shards by then. Measured on 2 x H200: FSDP1 fails in
    backward ("SyncBatchNormBackward returned an invalid gradient"), FSDP2 in forward ("got mixed torch.Tensor and
    DTensor"), on every rank. After a DDP wrap the conversion is right.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(device)
    fully_shard(model)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # <- DDP610
    model(torch.randn(8, 4, device=device)).square().mean().backward()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(device)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    fully_shard(model)
    model(torch.randn(8, 4, device=device)).square().mean().backward()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Conversion before the wrap, and after a DDP wrap (measured right).

    ## How to confirm

    `ddp-lint verify train.py --device cuda`: the exception; SyncBatchNorm needs GPUs.

    ## Fix safety

    No automatic fix: the conversion has to move above the wrap.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """

    triggers = Triggers(
        "convert_sync_batchnorm", "fully_shard", "FullyShardedDataParallel", file=("convert_sync_batchnorm",)
    )
    oracles = ("exception",)
    needs_cuda = True

    def model_of(self, node: cst.Call) -> str:
        return first_argument(node) if dotted(node.func).endswith("convert_sync_batchnorm") else ""

    def found(self, node: cst.Call, name: str, wrap: Wrap) -> None:
        self.report(
            node,
            f"`{name}` is converted after its parameters were sharded: forward or backward fails on every rank",
            labels=[(wrap.place, "sharded here")],
            help="convert first, wrap last",
        )

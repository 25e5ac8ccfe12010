from __future__ import annotations

from ddp_lint.findings import Confidence
from ddp_lint.rules.parameters.in_place import InPlaceRule, is_moving_average
from ddp_lint.tensors import Code, Reached, Write


class MomentumEncoderUpdatedInForward(InPlaceRule):
    """A momentum encoder is updated inside `forward`.

    ## What it does

    Finds the moving average `p_k.data = p_k.data * m + p_q.data * (1 - m)` (or `mul_`/`lerp_`) over parameters of the
    module in `forward`, or in a method that `forward` calls, as MoCo writes it.

    ## Why it breaks

    Under DDP it is right: all ranks average the same replicas. Under FSDP `forward` sees gathered copies: what each
    rank writes there is lost, the momentum encoder stays where it was, and no rank raises (0.16 off a single-process
    run after two steps; measured on 2 x H200 with NCCL, torch 2.11, and gloo, torch 2.13).

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Linear(8, 8)
            self.key = nn.Linear(8, 8).requires_grad_(False)

        def forward(self, x):
            for q, k in zip(self.query.parameters(), self.key.parameters()):
                k.data.mul_(0.9).add_(q.data, alpha=1 - 0.9)  # <- DDP209
            return self.query(x) * self.key(x)


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Linear(8, 8)
            self.key = nn.Linear(8, 8).requires_grad_(False)

        @torch.no_grad()
        def update_key(self):
            for q, k in zip(self.query.parameters(), self.key.parameters()):
                k.lerp_(q, 0.1)

        def forward(self, x):
            return self.query(x) * self.key(x)


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    Moving averages that are updated from the training loop, after `optimizer.step()`.

    ## How to confirm

    `ddp-lint verify model.py --wrap fsdp2`: the parameters against the single-process reference.

    ## Fix safety

    No automatic fix: call the update from the training loop, on the sharded parameters.

    ## References

    - https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """

    confidence = Confidence.MEDIUM
    default = False
    oracles = ("write", "reference")

    def check(self, write: Write, function: Code, reached: Reached | None) -> None:
        if write.value.name and reached is not None and is_moving_average(self.module, write, function):
            self.report(
                write.node,
                f"the moving average over `{write.value.name}` is written in forward{self.way(reached)}: right under "
                "DDP, but under FSDP each rank writes a gathered copy and the update is lost",
                help="update the momentum encoder from the training loop, after optimizer.step()",
            )

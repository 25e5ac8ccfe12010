from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class StepUnderLocalCondition(MismatchRule):
    """Optimizer, scheduler or `backward()` under a condition that differs between ranks.

    ## What it does

    Finds `optimizer.step()`, `scheduler.step()`, `scaler.update()`, gradient clipping and `loss.backward()` that only
    some ranks run: under a rank test, under a test of this rank's own loss or data, or in a `try` whose handler skips
    a batch that raised an exception and continues. Also `ReduceLROnPlateau.step(loss)` with each rank's own loss, and
    a `backward()` of what is on some ranks a tensor that was made on the spot (`loss = torch.tensor(0.0)` where a batch
    has no targets): all ranks call it, but there it reaches no parameter. Lightning goes backward from what
    `training_step` returns: a rank that returns None or such a tensor skips it.

    ## Why it breaks

    Under DDP all replicas start equal and stay equal only because every rank does the same arithmetic. A step or a
    learning rate on rank 0 only makes its parameters differ from those of rank 1. Nothing is printed, training
    continues with gradients averaged over different models, and the checkpoint has one of them. If one rank skips a
    `backward()`, its peer waits in the gradients' `all_reduce`, or pairs it with that of the next step. Measured on
    two ranks, with NCCL and with gloo: after a step on rank 0 alone parameters differ by 0.0012, after clipping on
    rank 0 alone by 0.013. With `torch.tensor(0.0, requires_grad=True)` for a loss on rank 1, that rank goes through
    all its steps without an error while rank 0 waits in its first one (gloo). The same from the `training_step` of
    Lightning 2.6; where that returns None on rank 1, rank 0 ends with "Connection closed by peer".

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

    model = DDP(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if rank == 0:
            optimizer.step()  # <- DDP109

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

    model = DDP(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Steps under conditions that all ranks share (accumulation counters, schedules), steps of models that one rank trains
    alone because nothing in the file is distributed, or in a function that takes its model as it is, next to functions
    that train what they wrap, optimizers of tensors alone that the function makes, keeps in no object and exchanges
    with no rank (coefficients that are fitted to one picture), conditions that are results of a collective, loops over
    loaders whose batches one process hands out (`dispatch_batches=True`), and loops inside of `Join` that call no
    collective by themselves. Losses without targets that are made of the model's output (`output.sum() * 0`), and those
    to which another term is added; training steps with manual optimization.

    ## How to confirm

    `ddp-lint verify train.py`: the parameters differ between ranks after the step, or a rank stalls in backward.

    ## Fix safety

    No automatic fix.

    ## References

    - PyTorch, `torch/nn/parallel/distributed.py`: DDP averages gradients, not parameters.
    - https://pytorch.org/docs/stable/notes/ddp.html
    """

    kind = Kind.STEP
    oracles = ("parameter", "gradient", "sequence", "stall")

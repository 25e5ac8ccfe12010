from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.source import dotted

_SEEDERS = frozenset({"random.seed", "numpy.random.seed", "set_random_seed"})


class OneAugmentationSeed(Rule):
    """Every rank seeds its augmentation alike, so all ranks crop and flip in step.

    ## What it does

    Finds code that several ranks run where Python's or NumPy's generator gets a seed without the rank, next to a
    data loader or a sampler.

    ## Why it breaks

    Random crops, flips and noise come from these generators. With one seed rank 0 and rank 1 draw the same numbers
    for their different samples: half the variety at twice the cost, without an error. Seeding torch alike for the
    initial weights is right.

    ## Example

    ```python
    import random

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    random.seed(0)  # <- DDP708
    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    for (x,) in DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset, shuffle=False)):
        print(dist.get_rank(), (x + random.random()).flatten().tolist())
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import random

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    random.seed(dist.get_rank())
    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    for (x,) in DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset, shuffle=False)):
        print(dist.get_rank(), (x + random.random()).flatten().tolist())
    dist.destroy_process_group()
    ```

    ## When it is silent

    Seeds that mention the rank on the way, files without a loader, seeds inside a worker's init function. Off by
    default: many projects seed alike on purpose and augment elsewhere.

    ## How to confirm

    `ddp-lint verify train.py`: both ranks draw the same random numbers at the line.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/notes/randomness.html
    """

    triggers = ("seed", "set_random_seed", "set_seed")
    requires = ("DataLoader", "DistributedSampler", "create_dataloader", "build_dataloader")
    oracles = ("seeds",)
    confidence = Confidence.LOW
    default = False

    def visit_Call(self, node: cst.Call) -> None:
        name = self.module.qualified(node.func) or dotted(node.func).rpartition(".")[2]
        if name not in _SEEDERS or not node.args or several_ranks(self.module) is None:
            return
        seed = node.args[0].value
        texts = [self.module.code(v) for v in (seed, *self.module.assignments(seed))]
        if any("rank" in text.lower() or "process_index" in text or "worker" in text for text in texts):
            return
        self.report(
            node,
            "seeds the generator of the augmentation alike everywhere: rank 0 and rank 1 draw the same crops and noise",
            help="add the rank to the seed of random and numpy; keep torch's seed alike for the initial weights",
        )

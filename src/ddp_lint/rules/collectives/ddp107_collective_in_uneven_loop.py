from __future__ import annotations

from ddp_lint.divergence import Kind
from ddp_lint.rules.collectives.mismatch import MismatchRule


class CollectiveInUnevenLoop(MismatchRule):
    """A collective in a loop that runs a different number of times on each rank.

    ## What it does

    Finds loops with a collective in them, explicit or implicit (a DDP or FSDP forward, `metric.compute()`), whose
    number of iterations depends on the rank: a shard such as `files[rank::world]`, also in a generator or as the length
    of a data set whose loader has no sampler, `range` of a number that the rank counts, `while not done` with a local
    `done`, a `break` on local data, a loader over an `IterableDataset` that ends, the part of a data set that
    `split_dataset_by_node`, `shard()` or a node splitter of webdataset gives to a rank, an iterator or generator of
    batches in a file that has no `DistributedSampler` and no `Join`, a dictionary whose keys follow from the rank's own
    batches (`hits[name] += 1`), one that a module or an object keeps and that some ranks alone add a key to (times by
    the name of a function that rank 0 alone calls), what a rank selects from its own batch (`labels.unique()`,
    `mask.nonzero()`).

    ## Why it breaks

    Rank 0 has three batches, rank 1 has two. In the third iteration rank 0 enters the collective and waits. Rank 1 has
    left the loop, and its next collective pairs with that of rank 0.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    shards = list(range(5))
    for shard in shards[rank::world]:
        size = torch.tensor([float(shard)], device=device)
        dist.all_reduce(size)  # <- DDP107

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
    rank, world = dist.get_rank(), dist.get_world_size()

    shards = list(range(5))
    size = torch.zeros(1, device=device)
    for shard in shards[rank::world]:
        size += shard
    dist.all_reduce(size)

    dist.destroy_process_group()
    ```

    ## When it is silent

    Loops over a range or a length that all ranks share, over a loader whose `DistributedSampler` pads the shards to one
    length, over the samples of one batch (`range(len(batch))`), or over a share of data that was cut or filled up to a
    multiple of the world size. Loops of a forward over pieces of its batch (`range(0, len(x), 8)`) where nothing shows
    that batches hold unlike numbers of samples: a batch sampler, buckets, a stream. Loops that first agree on whether
    to continue (`all_reduce` of a flag, then `break`), loops that a loop around starts again until a number of steps is
    made, loops behind which a rank makes the same call until all are done (`while busy: busy = all_reduce(..)`), and
    loops inside `Join`. Only with `--preview`: several loops of a function with rounds that are computed from
    the rank and that come to one collective, as the phases of a pipeline do, whose rounds add up to one number.

    ## How to confirm

    `ddp-lint verify train.py`: one rank's log of collectives ends earlier, and the other rank stalls at this line.
    verify runs a pass in which one rank gets one batch fewer.

    ## Fix safety

    No automatic fix: reduce once after the loop, agree on the number of rounds, or use `Join`.

    ## References

    - PyTorch, `torch.distributed.algorithms.Join`: uneven inputs.
    - PyTorch, `torch.utils.data.distributed.DistributedSampler`: pads with repeated samples.
    """

    kind = Kind.LOOP

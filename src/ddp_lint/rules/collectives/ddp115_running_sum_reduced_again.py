from __future__ import annotations

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.collectives.running_sums import resummed
from ddp_lint.rules.collectives.summed_metrics import summed_metrics
from ddp_lint.rules.triggers import Triggers


class RunningSumReducedAgain(Rule):
    """A running sum is summed over the ranks in every round of a loop, with what earlier rounds have summed.

    ## What it does

    Finds a variable that a loop adds to (`total += loss`) and sums over the ranks in the same loop, so that it holds
    the sum afterwards: by `dist.all_reduce(total)`, by a function of the project that does so, or through a tensor that
    is made of it and read back (`t = torch.tensor(total)`, `dist.all_reduce(t)`, `total = t.item()`). And the result of
    `compute()` of a metric of torchmetrics, which is over all ranks, where the program sums it over the ranks again.

    ## Why it breaks

    After the call each rank holds the sum of all ranks. The next call adds up these sums: with two ranks, what the
    first round has added counts twice as much after the second one, four times after the third, and so on. There is no
    error, and an average by a count that is treated alike looks plausible: it is that of the first rounds. Measured on
    two ranks (gloo, torch 2.13): of four rounds that add 1 on each rank, 30 is left instead of 8. A metric of
    torchmetrics combines what the ranks have counted when `compute()` is called: measured with release 1.9, a
    `SumMetric` with 5 on each of two ranks gives 10, and 20 after another `all_reduce`.

    ## Example

    ```python
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    total = torch.zeros(1)
    for batch in range(4):
        total += torch.ones(1)
        dist.all_reduce(total)  # <- DDP115
    print(dist.get_rank(), total)

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    total = torch.zeros(1)
    for batch in range(4):
        total += torch.ones(1)
    dist.all_reduce(total)
    print(dist.get_rank(), total)

    dist.destroy_process_group()
    ```

    ## When it is silent

    Sums that the loop sets to zero, divides, scales or replaces anywhere; averages (`ReduceOp.AVG`, a division by the
    world size): the average of equal numbers is the number; a loop that ends in the round in which the sum is no longer
    zero (`if stopped > 0: break`); a call that only one round makes (under a test of what the loop changes, or before a
    `break`); attributes (`self.total`), which other methods may reset. Results of metrics that were made with
    `sync_on_compute` or another way to combine them, or that the function divides or multiplies.

    ## How to confirm

    `ddp-lint verify train.py`: the collective sums a tensor that holds what it has summed before.

    ## Fix safety

    No automatic fix: whether the sum is read in the loop, too, decides where the call belongs.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(tests=False, communicating=True)
    oracles = ("resummed",)

    def finish(self) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None:
            return
        span = facts.file.span_of
        for metric in summed_metrics(facts, project):
            self.report(
                span(metric.call),
                f"`{metric.name}` is summed over the ranks again: `compute()` of the metric has done that",
                notes=["rank 0 and rank 1 both hold the result of all ranks: it is counted once for each rank"],
                labels=[(span(metric.computed), "this combines what all ranks have counted")],
                help="leave the call out, or make the metric with sync_on_compute=False",
            )
        for found in resummed(facts, project):
            self.report(
                span(found.call),
                f"`{found.name}` is summed over the ranks in every round, with what earlier rounds have summed",
                notes=["rank 0 and rank 1 both add up the sums of all ranks again: the first round counts the most"],
                labels=[
                    (span(found.added), "adds to what the round before has summed over the ranks"),
                    (span(found.loop.target if hasattr(found.loop, "target") else found.loop.test), "in each round"),
                ],
                help="sum a tensor of this round alone, and add that up; or make the call behind the loop",
            )

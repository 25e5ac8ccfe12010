from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.launch.ranks import runs_alone
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.trainers import uses_lightning
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants, subtree

#: The flags by which a framework's loop ends, by what their objects are called: Lightning's `Trainer`, and the
#: `TrainerControl` of transformers, whose flags have names of their own.
_FLAGS = {"should_stop": "trainer", "should_training_stop": "control", "should_epoch_stop": "control"}


class StoppedOnOneRank(Rule):
    """One rank alone tells the trainer to stop: it leaves the loop, and the others wait for it.

    ## What it does

    Finds `trainer.should_stop = True` of Lightning, and `control.should_training_stop = True` or
    `control.should_epoch_stop = True` of transformers, under a test of the rank (`trainer.is_global_zero`,
    `state.is_world_process_zero`), or in a hook that a decorator keeps to one rank (`@rank_zero_only`).

    ## Why it breaks

    The flag is a plain attribute of each process, and neither framework sends it to the other ranks: the loop of each
    rank asks its own. Rank 0 leaves the loop, and the others wait for it in the gradients of the next batch, or for a
    batch of the validation that rank 0 begins. The job ends with the timeout of the process group. A barrier behind
    the test does not help: the ranks then wait for each other, and go on with different flags. Measured with Lightning
    2.6 on two gloo ranks, where rank 0 sets the flag in the fourth batch, with and without a barrier: rank 0 ends
    after 4 steps, and rank 1 fails in the gradients of the fifth with `Connection closed by peer`. With NCCL it waits
    there for the timeout. With `reduce_boolean_decision` both end after 4 steps.

    Lightning's own `EarlyStopping` and `Timer` set the flag on all ranks, from a decision that
    `strategy.reduce_boolean_decision` or `strategy.broadcast` has brought to all of them.

    ## Example

    ```python
    import os
    import pathlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    class TrainerCallback:  # as that of transformers
        def on_step_end(self, state, control): ...


    class StopFile(TrainerCallback):
        def on_step_end(self, state, control):
            if state.is_world_process_zero and pathlib.Path(__file__).exists():
                control.should_training_stop = True  # <- DDP118


    class Trainer:  # as that of transformers: the loop of each process asks its own flag
        should_training_stop = False

        def __init__(self, callback):
            self.callback, self.is_world_process_zero = callback, dist.get_rank() == 0

        def train(self, model, batches):
            for batch in batches:
                if self.should_training_stop:
                    return
                model(batch).sum().backward()
                self.callback.on_step_end(self, self)


    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    Trainer(StopFile()).train(DDP(torch.nn.Linear(4, 1).to(device)), torch.ones(3, 2, 4, device=device))
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os
    import pathlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    class TrainerCallback:  # as that of transformers
        def on_step_end(self, state, control): ...


    class StopFile(TrainerCallback):
        def on_step_end(self, state, control):
            asked = torch.tensor(state.is_world_process_zero and pathlib.Path(__file__).exists(), device=device)
            dist.broadcast(asked, 0)
            control.should_training_stop = bool(asked)


    class Trainer:  # as that of transformers: the loop of each process asks its own flag
        should_training_stop = False

        def __init__(self, callback):
            self.callback, self.is_world_process_zero = callback, dist.get_rank() == 0

        def train(self, model, batches):
            for batch in batches:
                if self.should_training_stop:
                    return
                model(batch).sum().backward()
                self.callback.on_step_end(self, self)


    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    Trainer(StopFile()).train(DDP(torch.nn.Linear(4, 1).to(device)), torch.ones(3, 2, 4, device=device))
    dist.destroy_process_group()
    ```

    In Lightning, `trainer.should_stop = trainer.strategy.reduce_boolean_decision(asked, all=False)` on every rank.

    ## When it is silent

    Where the same function sets the flag outside of the test too, from what a call returns (`strategy.broadcast(..)`);
    where the flag is set to False; in programs of one process; in tests. A decision that each rank takes for itself
    (its own loss, its own clock) is not looked for.

    ## How to confirm

    `ddp-lint verify train.py`: one rank ends, or is in the validation, while the others wait in a collective of the
    next batch.

    ## Fix safety

    No automatic fix: all ranks have to take part in the decision.

    ## References

    - https://lightning.ai/docs/pytorch/stable/common/trainer.html
    - https://huggingface.co/docs/transformers/main_classes/callback
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(*_FLAGS, tests=False)
    oracles = ("sequence", "stall")

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if not isinstance(target, cst.Attribute) or dotted(node.value) != "True" or not self._is_flag(target):
            return
        if not on_one_rank(self.module, node) or self._is_told_to_all(node, target):
            return
        if self.module.file.is_test or runs_alone(self.module, node):
            return
        self.report(
            node,
            f"`{dotted(target)}` is set on one rank: it leaves the loop, and the others wait for it",
            notes=["rank 0 ends the training here, rank 1 waits for it in the next batch"],
            help="let all ranks decide: set it from `strategy.reduce_boolean_decision(..)`, or from a broadcast",
        )

    def _is_flag(self, target: cst.Attribute) -> bool:
        """Whether an attribute is the flag of a framework's loop, by its name, its owner's and the file's imports."""
        owner = _FLAGS.get(target.attr.value)
        name = dotted(target.value).rpartition(".")[2]
        is_named = owner is not None and name.endswith(owner)
        facts = self.module.facts
        return is_named and (owner != "trainer" or (facts is not None and uses_lightning(facts)))

    def _is_told_to_all(self, node: cst.Assign, target: cst.Attribute) -> bool:
        """Whether the function gives all ranks the flag: it sets it elsewhere from what a call returns."""
        function = self.module.function_of(node)
        others = descendants(function) if function is not None else ()
        return any(
            isinstance(other, cst.Assign)
            and other is not node
            and dotted(other.targets[0].target) == dotted(target)
            and any(isinstance(part, cst.Call) for part in subtree(other.value))
            and not on_one_rank(self.module, other)
            for other in others
        )

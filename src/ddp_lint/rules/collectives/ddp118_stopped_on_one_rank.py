from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.launch.ranks import runs_alone
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants

#: The flags by which a framework's loop ends, by what their objects are called: Lightning's `Trainer`, and the
#: `TrainerControl` of transformers.
_FLAGS = {"should_stop": "trainer", "should_training_stop": "control", "should_epoch_stop": "control"}
_PACKAGES = ("lightning", "pytorch_lightning", "transformers", "trl", "sentence_transformers")


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
    import pathlib

    from lightning.pytorch import Callback


    class StopFile(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if trainer.is_global_zero and pathlib.Path("stop").exists():
                trainer.should_stop = True  # <- DDP118
    ```

    ## Use instead

    ```python
    import pathlib

    from lightning.pytorch import Callback


    class StopFile(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            asked = trainer.is_global_zero and pathlib.Path("stop").exists()
            trainer.should_stop = trainer.strategy.reduce_boolean_decision(asked, all=False)
    ```

    With transformers, `asked = accelerate.utils.broadcast_object_list([asked])[0]` on every rank, and the flag by that.

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
        return owner is not None and name.endswith(owner) and self._uses_framework()

    def _uses_framework(self) -> bool:
        facts = self.module.facts
        meant = facts.imports.names.values() if facts is not None else ()
        return any(name.partition(".")[0] in _PACKAGES for name in meant)

    def _is_told_to_all(self, node: cst.Assign, target: cst.Attribute) -> bool:
        """Whether the function gives all ranks the flag: it sets it elsewhere from what a call returns."""
        function = self.module.function_of(node)
        others = descendants(function) if function is not None else ()
        return any(
            isinstance(other, cst.Assign)
            and other is not node
            and dotted(other.targets[0].target) == dotted(target)
            and any(isinstance(part, cst.Call) for part in (other.value, *descendants(other.value)))
            and not on_one_rank(self.module, other)
            for other in others
        )

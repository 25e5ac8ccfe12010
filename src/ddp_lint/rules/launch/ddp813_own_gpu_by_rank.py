from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.cuda import Initialiser, asks_driver, runs_before
from ddp_lint.launch.environment import Write, writes
from ddp_lint.launch.gpu_index import index_in_name, indices_of
from ddp_lint.launch.origin import rank_source
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, exclusive

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_KINDS = ("local_rank", "global_rank")


class OwnGpuByRank(Rule):
    """A rank shows itself one GPU alone, and then takes the GPU of its rank's number, which it does not see.

    ## What it does

    Finds `os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]` (or `str(rank)`) before the program uses
    CUDA, where the same program takes a GPU by the rank afterwards: `torch.cuda.set_device(local_rank)`,
    `torch.device("cuda", local_rank)`, `f"cuda:{local_rank}"`, `device_ids=[local_rank]`.

    ## Why it breaks

    The variable renumbers the GPUs of the process: the one that it shows is `cuda:0`, whichever it is on the machine.
    Rank 0 finds `cuda:0`. Rank 1 asks for `cuda:1` and ends with "CUDA error: invalid device ordinal", and rank 0 waits
    for it.

    ## Example

    ```python
    import os

    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]  # <- DDP813

    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Programs that take `cuda:0` afterwards, or set `LOCAL_RANK` or the name that has it anew; a variable that is set
    after CUDA was used, as it has no effect then (DDP801), or under a test; a GPU that is taken under a test of how
    many there are; a variable that is set in another file, or in another function; tests.

    ## How to confirm

    `ddp-lint verify train.py` on two GPUs: rank 1 ends with the exception.

    ## Fix safety

    No automatic fix: either the variable is left alone, or all ranks take `cuda:0`.

    ## References

    - https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
    - https://github.com/OpenBioML/chemnlp/issues/334
    """

    confidence = Confidence.HIGH
    triggers = Triggers(
        _VISIBLE, "set_device", "device", "device_ids", "device_id", "cuda", file=(_VISIBLE,), tests=False
    )
    oracles = ("exception", "device")
    needs_cuda = True

    def start(self) -> None:
        self._writes: list[Write] = []
        self._taken: list[cst.BaseExpression] = []
        self._renumbers = False

    def visit_Assign(self, node: cst.Assign) -> None:
        for write in writes(self.module, node):
            if write.own and write.name == _VISIBLE:
                self._writes.append(write)
            self._renumbers = self._renumbers or write.name in ("LOCAL_RANK", "RANK")

    def visit_Call(self, node: cst.Call) -> None:
        self._taken += indices_of(self.module, node)

    def visit_FormattedString(self, node: cst.FormattedString) -> None:
        index = index_in_name(node)
        self._taken += [index] if index is not None else []

    def finish(self) -> None:
        if len(self._writes) != 1 or self._renumbers or not self._taken:
            return
        write = self._writes[0]
        taken = next(self._taken_by_rank(write), None) if self._shows_one(write) else None
        if taken is not None and not self._comes_late(write):
            self.report(
                write.key,
                "the rank shows itself one GPU, which is `cuda:0` to it, and takes the GPU of its rank's number",
                notes=["rank 1 asks for `cuda:1`, which it does not see: invalid device ordinal"],
                labels=[(taken, "taken by the rank here")],
                help="leave CUDA_VISIBLE_DEVICES to the launcher, or take cuda:0 on every rank",
            )

    def _shows_one(self, write: Write) -> bool:
        """Whether the variable gets the number of the rank, under no condition."""
        if write.value is None or next(conditions(self.module, write.node), None) is not None:
            return False
        return self._is_rank(_as_number(write.value))

    def _taken_by_rank(self, write: Write) -> Iterator[cst.BaseExpression]:
        here, order = self.module.function_of(write.node), self.module.order
        for value in self._taken:
            if here is not None and self.module.function_of(value) is not here:
                continue
            if order[value] < order[write.node] or exclusive(self.module, write.node, value):
                continue
            tests = (self.module.code(test) for test, _ in conditions(self.module, value))
            if not any("device_count" in test or _VISIBLE in test for test in tests) and self._is_rank(value):
                yield value

    def _is_rank(self, value: cst.BaseExpression) -> bool:
        """Whether a value is the rank, and the name that has it gets nothing else."""
        number = _as_number(value)
        if dotted(number) and len(self.module.assignments(number)) > 1:
            return False
        return any(rank_source(self.module, number, kind) is not None for kind in _KINDS)

    def _comes_late(self, write: Write) -> bool:
        """Whether the program has asked the driver before, in this file: the variable has no effect any more."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None:
            return True
        above = runs_before(facts.tree, self.module.span(write.node).line)
        return any(Initialiser(project, asks_driver, set()).of(facts, each) is not None for each in above)


def _as_number(value: cst.BaseExpression) -> cst.BaseExpression:
    """What a text is the number of: ``str(rank)``, ``f"{rank}"``, and a number of a text: ``int(rank)``."""
    if isinstance(value, cst.Call) and dotted(value.func) in ("str", "int") and len(value.args) == 1:
        return _as_number(value.args[0].value)
    parts = value.parts if isinstance(value, cst.FormattedString) else ()
    only = parts[0] if len(parts) == 1 else None
    return only.expression if isinstance(only, cst.FormattedStringExpression) else value

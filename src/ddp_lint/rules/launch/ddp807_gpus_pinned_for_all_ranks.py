from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.launch.environment import Write, writes
from ddp_lint.launch.ranks import joins_ranks
from ddp_lint.launch.search import importers
from ddp_lint.rules.base import Rule
from ddp_lint.rules.launch.variables import default_instead
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import conditions

#: What a script of one process makes as well.
_ALONE = ("Accelerator", "accelerate.Accelerator")


class GpusPinnedForAllRanks(Rule):
    """A fixed `CUDA_VISIBLE_DEVICES` is set in code that several ranks run, or that others import.

    ## What it does

    Finds `os.environ["CUDA_VISIBLE_DEVICES"] = ...` with a value that is the same on every rank, in a file that several
    ranks run, and at the top level of a module that other files of the project import.

    ## Why it breaks

    The launcher or the scheduler chose the GPUs of the job: `"0"` hides all but one, so rank 0 and rank 1 share it
    (NCCL then fails with `Duplicate GPU detected`, or `set_device(1)` with `invalid device ordinal`). At the top level
    of an imported module the importing trainer does not show the line, and its effect depends on whether CUDA was used
    before.

    ## Example

    ```python
    import os

    os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # <- DDP807

    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0,1")

    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## When it is silent

    `setdefault`; values that come from the rank, from arguments or from a test that the variable is unset; scripts of
    one process (a single GPU with an `Accelerator`); scripts that spawn a rank for each GPU that they have chosen; an
    empty value, which hides the GPUs on purpose; tests.

    ## How to confirm

    `ddp-lint verify train.py` on two GPUs: rank 1 fails, or both ranks work on GPU 0.

    ## Fix safety

    Unsafe: with `setdefault` the value of the job is kept if there is one.

    ## References

    - https://docs.pytorch.org/docs/stable/elastic/run.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("CUDA_VISIBLE_DEVICES", tests=False)
    oracles = ("exception", "device", "environment")
    needs_cuda = True

    def visit_Assign(self, node: cst.Assign) -> None:
        for write in writes(self.module, node):
            if write.own and write.name == "CUDA_VISIBLE_DEVICES" and self._is_one_for_all(write):
                self._check(write)

    def _is_one_for_all(self, write: Write) -> bool:
        if next(conditions(self.module, write.node), None) is not None:
            return False
        if write.value is None or self.module.code(write.value).strip("\"'") in ("", "-1"):
            return False
        return isinstance(write.value, cst.SimpleString) or bool(self.module.qualified(write.value))

    def _check(self, write: Write) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None:
            return
        own = joins_ranks(facts, project)
        if own is not None:
            if own.word in _ALONE and "," not in self.module.code(write.value or write.key):
                return  # one GPU for an object that serves one process as well: the script is started without ranks
            if all(map(self.module.file.holds, ("spawn", "device_count"))):
                return  # the process that chooses the GPUs starts a rank for each of them
            self._report(
                write,
                [(own.span, own.text)],
                "rank 0 and rank 1 get the same GPUs, independent of what the job was given",
            )
            return
        if self.module.function_of(write.node) is not None or not self.module.name:
            return
        user = next(importers(project, self.module.name, holding=("import",)), None)
        if user is not None:
            reason = f"importing this module ({user.file.path} does) chooses the GPUs of the whole process"
            self._report(write, [], reason)

    def _report(self, write: Write, labels: list[tuple[cst.CSTNode | Span, str]], reason: str) -> None:
        self.report(
            write.key,
            f"CUDA_VISIBLE_DEVICES is fixed here: {reason}",
            labels=labels,
            help="leave it to the launcher, or os.environ.setdefault in the script's own entry",
            fix=default_instead(self.module, write, "keep the value of the job"),
        )

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Finding, Fix
from ddp_lint.knowledge import table
from ddp_lint.launch.environment import TEXT_FILES, in_text, writes
from ddp_lint.rules.base import Rule
from ddp_lint.source import SourceFile


class VariableRenamed(Rule):
    """A variable is set by its old name, which torchrun's own setting of the new one overrides.

    ## What it does

    Finds the old names of torch's NCCL variables (`NCCL_ASYNC_ERROR_HANDLING`, `NCCL_BLOCKING_WAIT`,
    `TORCH_NCCL_TRACE_BUFFER_SIZE` ...), in Python, shell scripts, Dockerfiles and YAML.

    ## Why it breaks

    torch reads both names, with a warning, and the new one wins where both are set. torchrun exports
    `TORCH_NCCL_ASYNC_ERROR_HANDLING=1` to its workers unless it is set already: `NCCL_ASYNC_ERROR_HANDLING=0` then does
    nothing on any rank, and the watchdog that the script wants off still ends rank 1 when rank 0 is late. The others
    still act; they go away with some later release.

    ## Example

    ```python
    import os

    os.environ["NCCL_ASYNC_ERROR_HANDLING"] = "0"  # <- DDP803

    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"

    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Where the file sets the new name as well; `PYTORCH_CUDA_ALLOC_CONF`, which works as it did (DDP809 tells of it).

    ## How to confirm

    `ddp-lint verify train.py`: the value in force under torchrun is not the one that was set.

    ## Fix safety

    Unsafe: the setting then takes effect, and torch before 2.2 does not know the new names.

    ## References

    - https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """

    confidence = Confidence.MEDIUM
    triggers = tuple(table("environment")["renamed"])
    oracles = ("environment",)
    files = TEXT_FILES
    renamed = "renamed"

    def visit_Assign(self, node: cst.Assign) -> None:
        self._visit(node)

    def visit_Call(self, node: cst.Call) -> None:
        self._visit(node)

    def _visit(self, node: cst.Assign | cst.Call) -> None:
        for write in writes(self.module, node):
            new = table("environment")[self.renamed].get(write.name)
            if new and new not in self.module.file.text:
                text = self.module.code(write.key).replace(write.name, new)
                fix = Fix(f"write {new}", Applicability.UNSAFE, (Edit(self.module.span(write.key), text),))
                self.report(write.key, self._message(write.name, new), help=f"write {new}", fix=fix)

    @classmethod
    def in_text(cls, file: SourceFile) -> Iterator[Finding]:
        for name, span in in_text(file):
            new = table("environment")[cls.renamed].get(name)
            if new and new not in file.text:
                fix = Fix(f"write {new}", Applicability.UNSAFE, (Edit(span, new),))
                yield cls.finding(span, cls._message(name, new), help=f"write {new}", fix=fix)

    @classmethod
    def _message(cls, name: str, new: str) -> str:
        if name == "NCCL_ASYNC_ERROR_HANDLING":
            return f"{name} does nothing under torchrun, which exports {new}"
        return f"{name} is the old name of {new}: it acts only while the new one is unset"

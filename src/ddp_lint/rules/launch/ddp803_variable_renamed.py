from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.launch.environment import Write, text_of
from ddp_lint.rules.launch.variables import Misnamed, NameRule
from ddp_lint.rules.triggers import Triggers

#: The old name of what torchrun exports as 1.
_EXPORTED = "NCCL_ASYNC_ERROR_HANDLING"
_ONE = ('"1"', "'1'", "str(1)", "1")
#: ``NAME=1``, ``NAME: "1"``, ``ENV NAME 1``; in a list of variables in YAML ``name: NAME``, ``value: "1"`` below it.
_AS_EXPORTED = re.compile(rf"""\b{_EXPORTED}\b["']?([=: ]\s*|[ \t]*\n\s*value:\s*)["']?1\b""")


class VariableRenamed(NameRule):
    """A variable is set by its old name, but torchrun sets the new name, which takes precedence.

    ## What it does

    Finds the old names of torch's NCCL variables (`NCCL_ASYNC_ERROR_HANDLING`, `NCCL_BLOCKING_WAIT`,
    `TORCH_NCCL_TRACE_BUFFER_SIZE` ...), in Python, shell scripts, Dockerfiles and YAML.

    ## Why it breaks

    torch reads both names, with a warning, and the new one takes precedence if both are set. torchrun exports
    `TORCH_NCCL_ASYNC_ERROR_HANDLING=1` to its workers unless it is set already: `NCCL_ASYNC_ERROR_HANDLING=0` then has
    no effect on any rank, and the watchdog that the script wants to turn off still ends rank 1 when rank 0 is late.
    The other old names still have an effect; a later release will remove them. They are shown with `--preview` alone.

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

    If the file sets the new name as well, or `NCCL_ASYNC_ERROR_HANDLING` to 1 as torchrun does, or in a dictionary with
    `RANK` or `LOCAL_RANK`: then the file makes the workers' environment, and torchrun does not;
    `PYTORCH_CUDA_ALLOC_CONF`, which still works (DDP809 reports it).

    ## How to confirm

    `ddp-lint verify train.py`: the value in force under torchrun is not the one that was set.

    ## Fix safety

    Unsafe: the setting then takes effect, and torch before 2.2 does not know the new names.

    ## References

    - https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(*tuple(table("environment")["renamed"]))
    oracles = ("environment",)
    renamed = "renamed"

    @classmethod
    def problem(cls, name: str) -> Misnamed | None:
        new = table("environment")[cls.renamed].get(name)
        if not new:
            return None
        if name == _EXPORTED:
            return Misnamed(f"{name} has no effect under torchrun, which exports {new}", f"write {new}", new)
        message = f"{name} is the old name of {new}: it has an effect only if the new one is unset"
        return Misnamed(message, f"write {new}", new, Confidence.LOW)  # it works, and torch itself warns

    def is_meant(self, write: Write, found: Misnamed) -> bool:
        """Whether the file sets the new one, too, or to what torchrun exports as well, or gives the workers all of
        their environment in place of torchrun."""
        value = self.module.code(write.value) if write.value is not None else ""
        if write.name == _EXPORTED and self._makes_environment(write):
            return True
        return self.module.file.holds(found.right) or (write.name == _EXPORTED and value in _ONE)

    def _makes_environment(self, write: Write) -> bool:
        """Whether the variable is given together with the worker's rank, as an agent for elastic training does."""
        entry = self.module.parent(write.key)
        given = self.module.parent(entry) if entry is not None else None
        entries = given.elements if isinstance(given, cst.Dict) else ()
        return any(
            isinstance(each, cst.DictElement) and text_of(each.key) in ("RANK", "LOCAL_RANK") for each in entries
        )

    @classmethod
    def is_meant_in_text(cls, name: str, found: Misnamed, text: str) -> bool:
        return found.right in text or (name == _EXPORTED and _AS_EXPORTED.search(text) is not None)

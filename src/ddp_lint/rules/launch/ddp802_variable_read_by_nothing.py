from __future__ import annotations

import ast
import re

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.launch.environment import Write, misspelt
from ddp_lint.rules.launch.variables import Misnamed, NameRule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import walk


class VariableReadByNothing(NameRule):
    """An environment variable is set that no library reads, so it has no effect.

    ## What it does

    Finds variables that look like settings of torch or NCCL and are read by neither (`NCCL_TIMEOUT`,
    `TORCH_COMPILE_DISABLE_CUDAGRAPHS`), and near-misspellings of those that are, in Python, shell scripts, Dockerfiles
    and YAML.

    ## Why it breaks

    A job that sets `NCCL_TIMEOUT=3600` still has the process group's default of ten minutes: when rank 0 writes a
    checkpoint for eleven minutes, the watchdog of rank 1 ends the job although the job script seems to prevent it. The
    sources and libraries of torch 2.13 and NCCL 2.28 were searched: they do not contain these names.

    ## Example

    ```python
    import os

    os.environ["NCCL_TIMEOUT"] = "3600"  # <- DDP802

    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import datetime

    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3600))
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Variables that the project itself reads; those that begin with a name which the file has as a word
    (`PYTORCH3D_VERSION` where `pytorch3d` is built); one for the timeout in a file that passes it as an argument
    (`init_process_group(timeout=...)`); names that differ from a known one by more than a typing
    error, by a number or by a whole word.

    ## How to confirm

    `ddp-lint verify train.py` confirms that the line ran and set one of the names that the sources and libraries of
    torch 2.13 and NCCL 2.28 do not contain. It observes the write; that no library reads it is known from the search.
    For misspelt names it is inconclusive.

    ## Fix safety

    Unsafe, only for misspellings: the variable then takes effect.

    ## References

    - https://docs.pytorch.org/docs/stable/torch_environment_variables.html
    - https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    confidence = Confidence.HIGH
    triggers = Triggers("environ", "putenv", "env", *table("environment")["unread"])
    oracles = ("environment",)

    @classmethod
    def problem(cls, name: str) -> Misnamed | None:
        instead = table("environment")["unread"].get(name)
        if instead:
            message = f"no code in torch or NCCL reads {name}: every rank runs with the default"
            return Misnamed(message, f"use {instead}")
        right = misspelt(name)
        message = f"no code reads {name}; {right} is read: every rank runs with its default"
        return Misnamed(message, f"write {right}", right) if right else None

    def is_meant(self, write: Write, found: Misnamed) -> bool:
        """Whether a file of the project reads the variable, or an argument sets what it is to set."""
        project = self.module.project
        if project is None:
            return False
        if self._is_set_by_argument(write.name) or _has_own_prefix(write.name, found, self.module.file.text):
            return True
        texts = (project.contents.text(path) or "" for path in project.contents.holding(write.name))
        return any(_read(write.name).search(text) for text in texts)

    def _is_set_by_argument(self, name: str) -> bool:
        section = table("environment")
        arguments = section["arguments"].get(section["set_by_argument"].get(name), {})
        facts = self.module.facts
        calls = (n for n in walk(facts.tree) if isinstance(n, ast.Call)) if facts is not None and arguments else ()
        given = ((last_part(call.func), keyword.arg) for call in calls for keyword in call.keywords)
        return any(argument is not None and arguments.get(function) == argument for function, argument in given)

    @classmethod
    def is_meant_in_text(cls, name: str, found: Misnamed, text: str) -> bool:
        """Whether the file that sets a variable reads it: ``$NAME``, ``${NAME}``, ``${{ env.NAME }}``."""
        if _has_own_prefix(name, found, text):
            return True
        return re.search(rf"\$\{{?{re.escape(name)}\b|\benv\.{re.escape(name)}\b", text) is not None


def _has_own_prefix(name: str, found: Misnamed, text: str) -> bool:
    """Whether a variable begins with the name of something else that the text is about, and not with the misspelt
    beginning of the one that is read: ``PYTORCH3D_VERSION`` where ``pytorch3d`` is built."""
    first = name.partition("_")[0]
    if not found.right or first == found.right.partition("_")[0]:
        return False
    return re.search(rf"(?<![\w$]){re.escape(first.lower())}(?![\w])", text) is not None


def _read(name: str) -> re.Pattern[str]:
    quoted = rf"""["']{re.escape(name)}["']"""
    return re.compile(
        rf"(environ\.get|getenv|environ\.pop)\(\s*{quoted}|environ\[{quoted}\](?!\s*=[^=])|{quoted}\s+(not\s+)?in\s"
    )

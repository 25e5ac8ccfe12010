from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Finding, Fix
from ddp_lint.knowledge import table
from ddp_lint.launch.environment import TEXT_FILES, Write, in_text, misspelt, writes
from ddp_lint.rules.base import Rule
from ddp_lint.source import SourceFile


class VariableReadByNothing(Rule):
    """An environment variable is set that nothing reads: the setting that it names stays as it was.

    ## What it does

    Finds variables that look like settings of torch or NCCL and are read by neither (`NCCL_TIMEOUT`,
    `TORCH_COMPILE_DISABLE_CUDAGRAPHS`), and near-misspellings of those that are, in Python, shell scripts, Dockerfiles
    and YAML.

    ## Why it breaks

    A job that sets `NCCL_TIMEOUT=3600` still has the process group's default of ten minutes: when rank 0 writes a
    checkpoint for eleven, the watchdog of rank 1 ends the job, and the variable in the job script says that it cannot.
    Checked against the sources and libraries of torch 2.13 and NCCL 2.28: no such name in them.

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

    Variables that the project itself reads; names that differ from a known one in more than a slip of the pen, in a
    number or in a whole word.

    ## How to confirm

    `ddp-lint verify train.py` confirms that the line ran and set one of the names that the sources and libraries of
    torch 2.13 and NCCL 2.28 do not hold. It watches the write: that nobody reads it is known from that search. On
    misspelt names it stays inconclusive.

    ## Fix safety

    Unsafe, for misspellings alone: the variable then starts to act.

    ## References

    - https://docs.pytorch.org/docs/stable/torch_environment_variables.html
    - https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    confidence = Confidence.HIGH
    triggers = ("environ", "putenv", "env", *table("environment")["unread"])
    oracles = ("environment",)
    files = TEXT_FILES

    def visit_Assign(self, node: cst.Assign) -> None:
        self._visit(node)

    def visit_Call(self, node: cst.Call) -> None:
        self._visit(node)

    def _visit(self, node: cst.Assign | cst.Call) -> None:
        for write in writes(self.module, node):
            told = problem(write.name)
            if told is not None and not self._is_read_here(write):
                message, advice, right = told
                fix = None
                if right:
                    text = self.module.code(write.key).replace(write.name, right)
                    fix = Fix(f"write {right}", Applicability.UNSAFE, (Edit(self.module.span(write.key), text),))
                self.report(write.key, message, help=advice, fix=fix)

    def _is_read_here(self, write: Write) -> bool:
        """Whether a file of the project asks for the variable."""
        project = self.module.project
        if project is None:
            return False
        texts = (project.text(path) or "" for path in project.holding(write.name))
        return any(_READ(write.name).search(text) for text in texts)

    @classmethod
    def in_text(cls, file: SourceFile) -> Iterator[Finding]:
        for name, span in in_text(file):
            told = problem(name)
            if told is not None and not _is_used(name, file.text):
                fix = Fix(f"write {told[2]}", Applicability.UNSAFE, (Edit(span, told[2]),)) if told[2] else None
                yield cls.finding(span, told[0], help=told[1], fix=fix)


def _is_used(name: str, text: str) -> bool:
    """Whether the file that sets a variable reads it: ``$NAME``, ``${NAME}``, ``${{ env.NAME }}``."""
    return re.search(rf"\$\{{?{re.escape(name)}\b|\benv\.{re.escape(name)}\b", text) is not None


def problem(name: str) -> tuple[str, str, str] | None:
    """Message, advice and right spelling ('' when there is none) of a variable that nothing reads."""
    instead = table("environment")["unread"].get(name)
    if instead:
        return f"nothing in torch or NCCL reads {name}: every rank runs with the default", f"use {instead}", ""
    right = misspelt(name)
    if right:
        message = f"nothing reads {name}; {right} is read: every rank runs with its default"
        return message, f"write {right}", right
    return None


def _READ(name: str) -> re.Pattern[str]:
    quoted = rf"""["']{re.escape(name)}["']"""
    return re.compile(
        rf"(environ\.get|getenv|environ\.pop)\(\s*{quoted}|environ\[{quoted}\](?!\s*=[^=])|{quoted}\s+(not\s+)?in\s"
    )

from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.queries import last_name


class KillCountedAsSuccess(Rule):
    """A worker killed by SIGKILL (out of memory) counts as a success.

    ## What it does

    Finds tests of `returncode` or `exitcode` that treat -9 (or 137, `-signal.SIGKILL`) like 0.

    ## Why it breaks

    -9 is the status of a process that the kernel's out-of-memory killer or the scheduler has killed. A launcher that
    treats it as 0, usually because it kills the remaining workers itself, reports success for a run in which rank 1
    ran out of memory and rank 0 was then killed in its collective.

    ## Example

    ```python
    import os
    import signal
    import subprocess
    import sys

    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    os.kill(worker.pid, signal.SIGKILL)  # what the out-of-memory killer does
    worker.wait()
    if worker.returncode not in (0, -9):  # <- DDP504
        sys.exit(f"worker failed with status {worker.returncode}")
    ```

    ## Use instead

    ```python
    import subprocess
    import sys

    worker = subprocess.Popen([sys.executable, "-c", "pass"])
    worker.wait()
    if worker.returncode != 0:
        sys.exit(f"worker failed with status {worker.returncode}")
    ```

    A launcher that kills the remaining workers after a first failure should store that failure first.

    ## When it is silent

    Tests for -9 only that report or raise, and tests of anything but a status.

    ## How to confirm

    `ddp-lint verify train.py`: a process that was killed is followed by status 0.

    ## Fix safety

    No fix: the rule does not know whether the launcher killed the worker itself.

    ## References

    - https://docs.python.org/3/library/subprocess.html#subprocess.Popen.returncode
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("returncode", "exitcode", "poll", "exit_code")
    oracles = ("exit",)

    def visit_Comparison(self, node: cst.Comparison) -> None:
        if last_name(_uncalled(node.left)) not in ("returncode", "exitcode", "exit_code", "poll", "wait"):
            return
        for target in node.comparisons:
            values = target.comparator
            if not isinstance(target.operator, (cst.In, cst.NotIn)) or not isinstance(
                values, (cst.Tuple, cst.List, cst.Set)
            ):
                continue
            members = [self.module.code(e.value) for e in values.elements]
            if "0" in members and any(_is_kill(m) for m in members):
                self.report(
                    node,
                    "a killed worker (-9) counts as success: the launcher exits 0 although a rank died",
                    notes=["the out-of-memory killer and the scheduler kill with -9"],
                    help="treat every status but 0 as a failure, and record which workers the launcher stopped itself",
                )


def _uncalled(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node


def _is_kill(text: str) -> bool:
    return text in ("-9", "137") or "SIGKILL" in text

from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix, Span
from ddp_lint.knowledge import table
from ddp_lint.launch.environment import text_of
from ddp_lint.launch.loader_workers import is_stage, loaders_use_workers, makes_samples
from ddp_lint.launch.ranks import has_ranks, meets_no_ranks, runs_alone, several_ranks
from ddp_lint.launch.single_process import one_process
from ddp_lint.rules.base import Rule
from ddp_lint.rules.failures.failure_handling import (
    Exit,
    asks_for_failure,
    caught,
    exits_with_success,
    in_forked_child,
    initializers,
    is_signal_handler,
    logs_an_error,
    messages,
    speaks_of_failure,
)
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.queries import enclosing
from ddp_lint.source.tree import descendants
from ddp_lint.view import Module
from ddp_lint.view.edits import replace

_ASKS = re.compile(r"exc|succe|ok|fail|err|status|code|done|finish|clean", re.IGNORECASE)
_HIDDEN = "torchrun sees a success, and ranks that did not fail hang"


class ExitHidesFailure(Rule):
    """A failure ends with exit status 0, so the launcher, CI and the scheduler report success.

    ## What it does

    Finds `os._exit(0)`, `sys.exit()`, `sys.exit(0)`, `exit()`, `raise SystemExit` and `pytest.exit(returncode=0)` in a
    `finally`, in an `except` that catches real failures, and in a branch that reports one.

    ## Why it breaks

    torchrun decides by exit status. When rank 1 raises and a `finally` calls `os._exit(0)`, the traceback is lost and
    torchrun sees a success; rank 0 waits for a peer that is gone, and its watchdog blames rank 0. When all ranks do
    so, the whole job reports success. `sys.exit()` without an argument is status 0 too. Measured on 2 x H200 (NCCL)
    and on gloo: `finally: os._exit(0)` and `except: sys.exit(0)` on all ranks give launcher status 0; on rank 1 alone
    `finally: os._exit(0)` gives 0 after 28 s.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist


    def train():
        dist.init_process_group("gloo")
        loss = torch.tensor(float("nan"))
        if not torch.isfinite(loss):
            raise RuntimeError(f"loss is {loss}")


    try:
        train()
    finally:
        os._exit(0)  # <- DDP501
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist


    def train():
        dist.init_process_group("gloo")
        loss = torch.tensor(1.0)
        if not torch.isfinite(loss):
            raise RuntimeError(f"loss is {loss}")


    train()
    dist.barrier()
    dist.destroy_process_group()
    ```

    If a teardown hangs and the process must exit at once, use the correct status: `os._exit(1)` in `except`, and
    `os._exit(0)` only as the last line of a successful run.

    ## When it is silent

    A non-zero status or a message (`sys.exit("...")` is status 1); `except KeyboardInterrupt`, `SystemExit`, end of
    input, import fallbacks; signal handlers; the child after `os.fork`; `os._exit(0)` at the end of a run that worked,
    outside of `except` and `finally`; a `finally` that tests whether something failed; a branch that tests for
    KeyboardInterrupt; methods of datasets, generators that a stream of samples goes through, transforms of samples and
    collate functions where loaders have workers (of trainers of transformers: `--dataloader_num_workers`): the exit
    ends a worker, and the rank gets an exception (measured). Only with `--preview`: a branch that reports a failure in
    a file without evidence of several ranks (a tool that converts one model), a handler in code that serves or deploys
    a model, in a program or a project without evidence of several ranks, or in what only programs of one process use,
    unless the handler takes any exception of a program that trains.

    ## How to confirm

    `ddp-lint verify train.py`: a rank ends with status 0 while an exception is pending, or before it reached the end.

    ## Fix safety

    Unsafe: the process then ends with a failure, also for callers that relied on status 0.

    ## References

    - https://docs.python.org/3/library/os.html#os._exit
    - https://docs.pytorch.org/docs/stable/elastic/errors.html
    """

    confidence = Confidence.HIGH
    in_tests_too = True
    of_small_harm = True
    triggers = Triggers("_exit", "exit", "quit", "SystemExit")
    oracles = ("exit",)

    def start(self) -> None:
        self._initializers = initializers(self.module)

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(self.module.parent(node), cst.Raise):
            self._visit_exit(node)

    def visit_Raise(self, node: cst.Raise) -> None:
        self._visit_exit(node)

    def _visit_exit(self, node: Exit) -> None:
        function = self.module.function_of(node)
        if not exits_with_success(self.module, node) or is_signal_handler(function):
            return
        if function is not None and function.name.value in self._initializers:
            return
        in_loader = function is not None and (makes_samples(self.module, function) or is_stage(self.module, function))
        if in_loader and loaders_use_workers(self.module):
            return  # it ends a worker, after which the loader raises in the rank
        if self._in_finally(node) or in_forked_child(self.module, node) or self._is_killed_before(node):
            return
        if any(
            "KeyboardInterrupt" in self.module.code(test) and taken for test, taken in conditions(self.module, node)
        ):
            return  # the user ends it
        handler = enclosing(self.module, node, cst.ExceptHandler)
        if isinstance(handler, cst.ExceptHandler):
            self._visit_handler(node, handler)
        else:
            self._visit_branch(node)

    def _is_killed_before(self, node: Exit) -> bool:
        """Whether the process has sent itself a signal just before: it ends by that, and not with this status."""
        lines = [up for up in self.module.ancestors(node) if isinstance(up, cst.SimpleStatementLine)]
        block = self.module.parent(lines[0]) if lines else None
        before = block.body[: list(block.body).index(lines[0])] if isinstance(block, cst.BaseSuite) else ()
        return any(
            isinstance(n, cst.Call)
            and self.module.qualified(n.func) == "os.kill"
            and bool(n.args)
            and isinstance(n.args[0].value, cst.Call)
            and self.module.qualified(n.args[0].value.func) == "os.getpid"
            for line in before
            for n in descendants(line)
        )

    # ---- finally

    def _in_finally(self, node: Exit) -> bool:
        block = enclosing(self.module, node, cst.Finally)
        if not isinstance(block, cst.Finally) or in_forked_child(self.module, node):
            return False
        attempt = self.module.parent(block)
        if not isinstance(attempt, cst.Try) or _leaves_on_failure(self.module, attempt):
            return True
        if not self._asks_for_failure(node, block):
            written = self.module.quoted(node)
            self.report(
                node,
                f"{written} in `finally` exits 0 after an exception: {_HIDDEN}",
                notes=["an exception on rank 1 is dropped here; rank 0 waits for it in the next collective"],
                labels=[(attempt.body.body[0], "an exception raised here is lost in the `finally`")],
                help="remove it, or exit with 0 only after success and with 1 in `except`",
                fix=self._without(node),
            )
        return True

    def _asks_for_failure(self, node: Exit, block: cst.Finally) -> bool:
        """Whether a test inside the `finally` checks whether something failed."""
        for up in self.module.ancestors(node):
            if up is block:
                return False
            if isinstance(up, cst.If) and _ASKS.search(self.module.code(up.test)):
                return True
        return False

    def _without(self, node: Exit) -> Fix:
        return Fix("let the exception through", Applicability.UNSAFE, (self._removal(node),))

    def _removal(self, node: Exit) -> Edit:
        """Take the whole line away when the call is on it alone, else write `pass`."""
        statement = self.module.parent(node) if isinstance(node, cst.Call) else node
        line = self.module.parent(statement) if statement is not None else None
        block = self.module.parent(line) if line is not None else None
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        if alone and isinstance(block, cst.IndentedBlock) and len(block.body) > 1:
            span = self.module.span(node)
            if span.line == span.end_line:
                return Edit(Span(span.path, span.line, 1, span.line + 1, 1), "")
        return replace(self.module, node, "pass")

    # ---- except

    def _visit_handler(self, node: Exit, handler: cst.ExceptHandler) -> None:
        kinds = [k for k in caught(handler) if k not in table("failures")["benign_exceptions"]]
        if not kinds:
            return
        broad = any(k in table("failures")["broad_exceptions"] for k in kinds)
        if not broad and not (speaks_of_failure(messages(handler.body)) or logs_an_error(handler.body)):
            return
        what = " or ".join(k or "any exception" for k in kinds)
        alone = self._is_alone(node) or self._asks_for_launcher(handler)
        harm = "whoever started the training sees success" if alone else _HIDDEN
        self.report(
            node,
            f"this handler exits 0 after {'an exception' if broad else what}: {harm}",
            notes=[] if alone else [f"{what} on rank 1 ends here; rank 0 waits for it in the next collective"],
            labels=[(handler, f"takes {what}")],
            help="re-raise, or exit with a status other than 0",
            confidence=self._sureness(broad, alone),
            fix=Fix("raise the exception again", Applicability.UNSAFE, (replace(self.module, node, "raise"),)),
        )

    def _asks_for_launcher(self, handler: cst.ExceptHandler) -> bool:
        """Whether a handler takes that a variable is not there which every launcher of ranks sets: no rank comes here,
        but the process that was started without one."""
        attempt = self.module.parent(handler)
        if set(caught(handler)) != {"KeyError"} or not isinstance(attempt, cst.Try):
            return False
        known = set(table("launch")["several_ranks"]["environment"])
        read = [n for n in descendants(attempt.body) if isinstance(n, cst.Subscript)]
        return bool(read) and all(
            self.module.qualified(each.value) == "os.environ" and text_of(index.slice.value) in known
            for each in read
            for index in each.slice
            if isinstance(index.slice, cst.Index)
        )

    def _is_alone(self, node: Exit) -> bool:
        """Whether nothing shows that several ranks come by. A helper may be used by any program, except where all that
        come to it are seen to be one process."""
        script = self.module.file.holds("__main__") or self.module.function_of(node) is None
        program = script or one_process(self.module)
        if not has_ranks(self.module) or (program and several_ranks(self.module) is None):
            return True
        return runs_alone(self.module, node) or meets_no_ranks(self.module, node)

    def _sureness(self, broad: bool, alone: bool) -> Confidence:
        """A program that trains is started by something that reads its status, also where it is one process."""
        if alone:
            return Confidence.MEDIUM if broad and self.module.file.holds("backward") else Confidence.LOW
        return Confidence.HIGH if broad else Confidence.MEDIUM

    # ---- a branch that reports a failure

    def _visit_branch(self, node: Exit) -> None:
        branch = next(
            (a for a in self.module.ancestors(node) if isinstance(a, (cst.If, cst.Else, cst.FunctionDef))), None
        )
        if not isinstance(branch, (cst.If, cst.Else)):
            return
        own = " ".join(filter(None, [messages(branch.body), self._reason(node)]))
        test = self.module.code(branch.test) if isinstance(branch, cst.If) else ""
        if speaks_of_failure(own) or logs_an_error(branch.body) or (own and asks_for_failure(test)):
            self.report(
                node,
                f"this branch reports a failure and exits 0 by {self.module.quoted(node)}: the launcher and "
                "CI report success",
                help="raise an exception, or exit with a status other than 0",
                confidence=Confidence.MEDIUM if several_ranks(self.module) is not None else Confidence.LOW,
                fix=self._with_status_one(node),
            )

    def _reason(self, node: Exit) -> str:
        if isinstance(node, cst.Call) and self.module.qualified(node.func) == "pytest.exit" and node.args:
            return self.module.code(node.args[0].value)
        return ""

    def _with_status_one(self, node: Exit) -> Fix | None:
        if not isinstance(node, cst.Call) or self.module.qualified(node.func) == "pytest.exit":
            return None
        text = f"{self.module.code(node.func)}(1)"
        return Fix("exit with status 1", Applicability.UNSAFE, (replace(self.module, node, text),))


def _leaves_on_failure(module: Module, attempt: cst.Try) -> bool:
    """Whether a handler of the same `try` ends the process at once: the `finally` never runs after a failure."""
    for handler in attempt.handlers:
        for line in handler.body.body:
            for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                call = statement.value if isinstance(statement, cst.Expr) else None
                if isinstance(call, cst.Call) and module.qualified(call.func) == "os._exit" and call.args:
                    return not exits_with_success(module, call)
    return False

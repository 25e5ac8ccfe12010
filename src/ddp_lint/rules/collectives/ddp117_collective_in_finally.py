from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.backend import for_hosts_alone
from ddp_lint.launch.communicating import (
    Code,
    asks_for_group,
    communicating,
    has_backward,
    leaving,
    shows_or_takes,
    waits,
)
from ddp_lint.launch.helpers import helper_of
from ddp_lint.launch.one_process import is_world_of_one
from ddp_lint.launch.ranks import runs_alone, several_ranks
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.requirements import requires_older
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.imports import last_part
from ddp_lint.source.queries import last_name
from ddp_lint.source.syntax import function_at, statements
from ddp_lint.source.tree import called, descendants

#: How many functions of the project are followed from the `try`.
_DEPTH = 3
#: The torch from which on `destroy_process_group` shuts NCCL down: up to 2.2 it drops references to the group, while
#: the traceback of the error and the wrapped model keep theirs (distributed_c10d.py of 2.2.2 and 2.3.0).
_SHUTS_DOWN_SINCE = "2.3"


class CollectiveInFinally(Rule):
    """A barrier in `finally` behind training: the rank that fails waits in it, and its error is not seen.

    ## What it does

    Finds a collective in the `finally` of a `try` in which the ranks communicate: another collective, a backward, also
    in the functions and methods of the project that it calls. And `destroy_process_group()` in such a `finally`, also
    in a function of the project that it calls, unless the group is for gloo alone.

    ## Why it breaks

    An error mostly occurs on one rank alone. `finally` runs before the error leaves: rank 1 waits in the barrier, while
    rank 0 is still in the `try` and waits in the `all_reduce` of its next backward. Neither goes on, nothing is
    printed, and the launcher sees two processes that run. The job ends with the timeout of the group, 10 minutes with
    NCCL and 30 with gloo, and the error of rank 1 comes among those of the timeout. Measured with a timeout of 25
    seconds on two ranks: rank 0 left after 25 seconds with the barrier, and after 2 without it (gloo, torch 2.13).

    `destroy_process_group()` does the same with NCCL: it waits for what the group has begun. The watchdog of rank 0
    reports an `ALLREDUCE` that timed out, and blames a collective; the error of rank 1 is printed after that. Measured
    on two GPUs (torch 2.11), where rank 1 raises `OSError` in the third step:

    | `finally` | timeout of the group | error of rank 1 printed after | job ends after |
    | --- | --- | --- | --- |
    | none | any | at once | 11 s |
    | `destroy_process_group()` | 20 s | 86 s | 95 s |
    | `destroy_process_group()` | 60 s | 126 s | 135 s |

    With the default of 10 minutes it is not seen for about 11 minutes. With gloo nothing waits: the connections close,
    the error is printed at once, and the job ends after 4 seconds with or without the `finally` (CPU, torch 2.13).

    ## Example

    ```python
    import torch
    import torch.distributed as dist


    def read(step):
        if dist.get_rank() == 1 and step == 2:
            raise OSError("a sample cannot be read")
        return torch.ones(1)


    dist.init_process_group("gloo")
    try:
        for step in range(4):
            total = read(step)
            dist.all_reduce(total)
    finally:
        dist.barrier()  # <- DDP117
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist


    def read(step):
        return torch.ones(1)


    dist.init_process_group("gloo")
    for step in range(4):
        total = read(step)
        dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()
    ```

    Without the `finally` a rank that fails ends at once, and the launcher ends the others. What has to be done in any
    case (closing files) stays in the `finally`, without communication. `destroy_process_group()` is for the normal end:
    a process that fails needs none. Where it has to stay, print the error before it:
    `except Exception: traceback.print_exc(); raise`. The job then still waits, but says why.

    ## When it is silent

    A `try` in which nothing communicates: the barrier is then what the other ranks wait in, and a rank that fails must
    come to it. Collectives in functions that the `try` calls, where nothing trains, and a barrier in the `finally`:
    they mostly meet again there. A collective, or the end of the group, under a test of anything but the group
    (`if not failed`). `destroy_process_group` of a group for gloo or MPI alone, of a group of one rank, of one group of
    several, behind a handler that takes the error or prints it, or where the `finally` calls `os._exit`; in a project
    that requires a torch before 2.3, which does not shut NCCL down there. Tests.

    ## How to confirm

    `ddp-lint verify train.py`: one rank waits in the `finally`, the other one in the `try`, and the table of the runs
    has the exception that the first one raised. With gloo nothing waits in `destroy_process_group`: `verify` on the CPU
    leaves these undecided, though it shows the exception, and `--device cuda` can show them.

    ## Fix safety

    No automatic fix.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "finally",  # functions of any name leave the group
        "destroy_process_group",
        "barrier",
        "wait_for_everyone",
        "all_reduce",
        "all_gather",
        "synchronize",
        file=("finally",),
        tests=False,
        communicating=True,
    )
    oracles = ("sequence", "stall")

    def visit_Try(self, node: cst.Try) -> None:
        if node.finalbody is None or self.module.file.is_test:
            return
        for call in descendants(node.finalbody.body):
            if isinstance(call, cst.Call) and self._waits(call) and self._is_of_all(call, node):
                before = next(self._communicating(node.body), None)
                if before is not None and several_ranks(self.module) is not None:
                    self._report(call, before)
                return
        self._visit_leaving(node, node.finalbody)

    def _report(self, call: cst.Call, before: cst.Call) -> None:
        name = dotted(call.func)
        self.report(
            call,
            f"a rank that fails in this `try` waits in `{name}()`, and the others in what it has not done there",
            notes=["rank 1 raises and waits here, rank 0 waits in the `try`: the error shows when the group times out"],
            labels=[(before, "the others wait here")],
            help="take it out of the `finally`: a rank that fails then ends, and the launcher ends the others",
        )

    def _visit_leaving(self, node: cst.Try, block: cst.Finally) -> None:
        """The end of the process group, which with NCCL waits for the collectives that the others are in."""
        facts, project = self.module.facts, self.module.project
        line = self.module.span(node).line
        attempt = self._attempts.get(line)
        if facts is None or project is None or attempt is None or shows_or_takes(attempt):
            return
        method = facts.method_at(line)
        owner = project.classes.of(facts, method[0]) if method is not None else None
        within = Code(facts, attempt.finalbody, function_at(facts.tree, line), owner)
        call = self._same(next(leaving(project, within), None), block.body)
        if call is None or self._exits(block) or for_hosts_alone(project, facts):
            return
        if requires_older(project, "torch", _SHUTS_DOWN_SINCE, facts.source.inside):
            return
        first = next(communicating(project, dataclasses.replace(within, statements=attempt.body)), None)
        before = self._same(first, node.body)
        if before is not None and self._has_ranks(facts, node):
            self._report_leaving(call, before)

    @functools.cached_property
    def _attempts(self) -> dict[int, ast.Try]:
        """The `try` statements of the file by their lines, in the syntax tree that other files are followed in."""
        tree = self.module.facts.tree if self.module.facts is not None else ast.Module([], [])
        return {node.lineno: node for node in statements(tree) if isinstance(node, ast.Try)}

    def _has_ranks(self, facts: ModuleFacts, node: cst.Try) -> bool:
        """Whether several ranks leave the group. Where another file forms it, that the program leaves it is enough."""
        project = self.module.project
        if facts.file.holds("init_process_group") and project is not None:
            return several_ranks(self.module, node) is not None and not is_world_of_one(facts, project)
        return not runs_alone(self.module, node)

    def _report_leaving(self, call: cst.Call, before: cst.Call) -> None:
        name = dotted(call.func)
        self.report(
            call,
            f"a rank that fails waits in `{name}()` with NCCL, and its error shows when the group times out",
            notes=[
                "rank 1 raises and waits in `destroy_process_group`, rank 0 waits in the `try`; with gloo nothing waits"
            ],
            labels=[(before, "the others wait here")],
            help="call it behind the `try`, or print the error first: `except Exception: traceback.print_exc(); raise`",
            needs_cuda=True,
        )

    def _same(self, call: ast.Call | None, body: cst.BaseSuite) -> cst.Call | None:
        """A call of the syntax tree that other files are followed in, as this rule's own has it."""
        if call is None:
            return None
        calls = (n for n in descendants(body) if isinstance(n, cst.Call) and last_name(n.func) == last_part(call.func))
        return next((n for n in calls if self.module.span(n).line == call.lineno), None)

    def _exits(self, block: cst.Finally) -> bool:
        """Whether a `finally` ends the process by itself."""
        calls = (n for n in descendants(block.body) if isinstance(n, cst.Call))
        return any(self.module.qualified(call.func) == "os._exit" for call in calls)

    def _waits(self, call: cst.Call) -> bool:
        """Whether a call of the `finally` is a collective that says so by its name."""
        name = self.module.callee(call) or self.module.qualified(call.func)
        return waits(name, called(call))

    def _is_of_all(self, call: cst.Call, around: cst.Try) -> bool:
        """Whether no test in the `finally` keeps the rank that has failed away from the collective."""
        inside = set(descendants(around.finalbody.body)) if around.finalbody is not None else set()
        tests = (test for test, _ in conditions(self.module, call) if test in inside)
        return all(asks_for_group(self.module.code(test)) for test in tests)

    def _communicating(self, body: cst.BaseSuite) -> Iterator[cst.Call]:
        """The calls of a `try` in which the ranks wait for each other."""
        inside = set(descendants(body))
        for call in descendants(body):
            if not isinstance(call, cst.Call):
                continue
            nested = any(isinstance(up, cst.Finally) for up in self.module.ancestors(call) if up in inside)
            if called(call) == "backward" or (self._waits(call) and not nested):
                yield call
                continue
            helper, project = helper_of(self.module, call), self.module.project
            if helper is not None and has_backward(helper.facts, helper.function, _DEPTH):
                yield call
            owner, _, method = self.module.callee(call).rpartition(".")
            cls = project.classes.method(owner, method) if helper is None and owner and project is not None else None
            # Of an object that trains, it does not matter here which of its methods does.
            if cls is not None and any(has_backward(cls[0].module, each) for each in cls[0].methods.values()):
                yield call

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import Any

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix, Span
from ddp_lint.knowledge import frameworks, table
from ddp_lint.launch.callers import call_sites
from ddp_lint.launch.cuda import (
    Initialiser,
    asks_driver,
    asks_driver_beside_nvml,
    asks_nvml,
    makes_context,
    runs_before,
)
from ddp_lint.launch.environment import Write, hands_on_visible, makes_engine, names_first_gpus, read_at, writes
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.launch.variables import WriteRule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.queries import calls_in

#: What starts fresh processes, which read the variable when they start.
_STARTS = re.compile(
    r"\b(spawn|start_processes|Popen|Process|Pool|elastic_launch|notebook_launcher|subprocess|execv\w*|"
    r"ProcessPoolExecutor|ray\.init)\b"
)
_FORKS = re.compile(r"\b(multiprocessing|mp)\.(Pool|Process)\b|\bfrom multiprocessing import .*\b(Pool|Process)\b")
_COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "barrier", "reduce_scatter_tensor", "all_gather_object",
                "broadcast_object_list", "all_gather_into_tensor", "reduce", "all_to_all_single")  # fmt: skip


@functools.lru_cache(maxsize=8)  # asked for each write of a file
def _starts(text: str) -> bool:
    return bool(_STARTS.search(text))


#: The points that lie in the project's own use of a GPU, with the calls that are such a use.
_ON_GPU = {"driver": asks_driver, "cuda": makes_context, "allocation": makes_context}

#: The statement that uses a GPU, and where that is: its file and node.


class EnvironmentSetTooLate(WriteRule):
    """An environment variable is set after it was read, so it has no effect.

    ## What it does

    Finds `os.environ[...] = ...` (and `setdefault`, `update`, `putenv`) for variables that are read once, if the file
    shows that they were read before: `TORCH_DISTRIBUTED_DEBUG`, `OMP_NUM_THREADS`, `TORCH_LOGS` after `import torch`;
    `TORCHINDUCTOR_*` after `DDP(...)` or `torch.compile`; `TORCH_NCCL_*` after `init_process_group`; `NCCL_*` after
    the first collective; `CUDA_VISIBLE_DEVICES` after the first query of GPUs (`torch.cuda.is_available()` is one),
    and the allocator's settings after CUDA was used, also by a call into the project or by a file that an import runs,
    and in a function that is called only after that.

    ## Why it breaks

    Nothing is printed: the job runs with the old value on rank 0 and rank 1, so the debug level, the number of threads
    or the GPUs are not those that the script states. Measured: each of them is ignored after its point.
    `CUDA_VISIBLE_DEVICES` after `import torch`, even after `device_count()` or `manual_seed_all()`, is honoured, so
    that is not flagged; after `is_available()`, `set_device()` or `GradScaler()` it is not: the process uses the first
    GPU of the machine, although `device_count()` counts by the new value (2 x H200, torch 2.11). With
    `PYTORCH_NVML_BASED_CUDA_CHECK=1`, `is_available()` does not ask the driver, and the write after it is honoured.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"  # <- DDP801

    dist.init_process_group("gloo")
    print(dist.get_debug_level())
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    print(dist.get_debug_level())
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Writes for child processes (a copy of the environment, or a file that starts processes, which read it again, also by
    an engine for generation: `sglang.Engine(..)`, `vllm.LLM(..)`), `CUDA_VISIBLE_DEVICES` where it gets the value of
    another variable that was in force (`os.environ.pop("HIP_VISIBLE_DEVICES")`), writes after `import torch` of
    variables that are read later, `is_available()` in a file that names `PYTORCH_NVML_BASED_CUDA_CHECK`, or in a
    program that imports Lightning, which sets it, other branches of an `if`, tests, and variables that are read on
    every use. Only with `--preview`: PYTHONHASHSEED, and `CUDA_VISIBLE_DEVICES` where it is the first GPUs in their
    order ("0", "0,1"), which the process uses all the same.

    ## How to confirm

    `ddp-lint verify train.py`: the value in force is not the one that was set.

    ## Fix safety

    Unsafe: a constant that a script sets at its top level is moved before the first import. Elsewhere no fix.

    ## References

    - https://docs.pytorch.org/docs/stable/threading_environment_variables.html
    - https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("environ", "putenv")
    oracles = ("environment",)

    def check(self, write: Write) -> None:
        point = read_at(write.name) if write.own and not self.module.file.is_test else None
        if point is not None and not hands_on_visible(self.module, write):
            self._check(write, point)

    def _check(self, write: Write, point: dict[str, Any]) -> None:
        if point["at"] == "start":
            if not self._starts_processes():
                # True, but hardly anything in training depends on it: of the readings, three in four were arguable.
                self._report(write, point, None, "the interpreter started", Confidence.LOW)
        elif point["at"] == "import":
            place = self._torch_import(write)
            if place is not None and not self._starts_processes() and not self._done_otherwise(write, point):
                self._report(write, point, place, "torch is imported here")
        elif point["at"] in _ON_GPU:
            used = self._used(write, point)
            if used is not None:
                self._report(write, point, *used, sure=Confidence.LOW if self._leaves_first_gpu(write) else None)
            elif write.name == "CUDA_VISIBLE_DEVICES" and self._in_forked_worker(write):
                self._report_fork(write)
        else:
            call = next(self._calls_before(write, point["at"]), None)
            if call is not None:
                self._report(write, point, call, f"{point['point']}: it was read here")

    def _done_otherwise(self, write: Write, point: dict[str, Any]) -> bool:
        """Whether the file also calls what works after the import: the variable is then meant for children."""
        name = point.get("instead", {}).get(write.name, "").partition("(")[0].rpartition(".")[2]
        return bool(name) and self.module.file.holds(name)

    def _leaves_first_gpu(self, write: Write) -> bool:
        """Whether the process uses the GPU that it is to use, also without the variable: the first one. Of their order
        only machines with GPUs of several models know, and only where others are chosen than the first ones."""
        if write.name == "CUDA_DEVICE_ORDER":
            return all(names_first_gpus(self.module, chosen) for chosen in self._chosen_beside(write))
        return write.name == "CUDA_VISIBLE_DEVICES" and names_first_gpus(self.module, write.value)

    def _chosen_beside(self, write: Write) -> Iterator[cst.BaseExpression | None]:
        """The values that the statements around a write give the variable for the visible GPUs."""
        line = self.module.parent(write.node)
        line = self.module.parent(line) if isinstance(line, cst.Expr) else line
        block = self.module.parent(line) if line is not None else None
        for each in block.children if block is not None else ():
            for statement in each.body if isinstance(each, cst.SimpleStatementLine) else ():
                node = statement.value if isinstance(statement, cst.Expr) else statement
                yield from (w.value for w in writes(self.module, node) if w.name == "CUDA_VISIBLE_DEVICES")

    def _starts_processes(self) -> bool:
        facts = self.module.facts
        return _starts(self.module.file.text) or (facts is not None and makes_engine(facts))

    # ---- after the import

    def _torch_import(self, write: Write) -> Span | None:
        """The import of torch (or of a package that imports it) at the top of the file, before the write."""
        facts = self.module.facts
        if facts is None:
            return None
        line = self.module.span(write.node).line
        inside = self.module.function_of(write.node) is not None
        for statement in _top_imports(facts.tree.body):
            if statement.lineno > line and not inside:
                return None
            if not _importing_torch().isdisjoint(name.partition(".")[0] for name in _names(statement)):
                return self.module.file.span_of(statement)
        return None

    # ---- after a call

    def _calls_before(self, write: Write, point: str) -> Iterator[cst.Call]:
        """The calls of a kind above the write in its function, but for those in another arm of the same
        branch."""
        function = self.module.function_of(write.node)
        calls = self._calls(function.body if function is not None else self.module.tree, point)
        line = self.module.span(write.node).line if calls else 0
        for call in calls:
            if self.module.span(call).line < line and not exclusive(self.module, call, write.node):
                yield call

    def _calls(self, scope: cst.CSTNode, point: str) -> list[cst.Call]:
        """The calls in a scope that read the environment, sought once for all the writes there."""
        key = (scope, point)
        if key not in self._found:
            self._found[key] = [call for call in calls_in(scope) if self._is_point(call, point)]
        return self._found[key]

    @functools.cached_property
    def _found(self) -> dict[tuple[cst.CSTNode, str], list[cst.Call]]:
        return {}

    def _is_point(self, call: cst.Call, point: str) -> bool:
        name = self.module.qualified(call.func)
        package, _, last = name.rpartition(".")
        if point == "group":
            return name == "torch.distributed.init_process_group"
        if point == "collective":
            return package == "torch.distributed" and last in _COLLECTIVES
        if point == "wrap":
            listed = self.module.listed("wrappers", call)
            return bool(listed) or name in ("torch.nn.parallel.DistributedDataParallel", "torch.compile")
        return False

    # ---- after a use of the GPU, also by another place of the project

    def _used(self, write: Write, point: dict[str, Any]) -> tuple[Span, str] | None:
        """The import, the call or the line above the write that surely uses a GPU, and what it says of the place. Not
        in a program that starts processes: the variable may be meant for these."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or self._starts_processes():
            return None
        found = self._used_above(facts, self.module.span(write.node).line, point)
        function = self.module.function_of(write.node)
        if found is None and function is not None:  # a helper that is called too late by all who call it
            sites = call_sites(self.module, function)
            used = [self._used_above(site.facts, site.node.lineno, point) for site in sites]
            found = used[0] if all(used) and used else None
        return found

    def _used_above(self, facts: ModuleFacts, line: int, point: dict[str, Any]) -> tuple[Span, str] | None:
        project = self.module.project
        if project is None or _starts(facts.file.text):
            return None
        statements, at = runs_before(facts.tree, line), point["at"]
        uses = asks_driver_beside_nvml if at == "driver" and asks_nvml(project, facts) else _ON_GPU[at]
        # Each write asks for all that is above it: what is known of a statement counts for all before it, too.
        known = next((n for n in range(len(statements), 0, -1) if (at, statements[n - 1]) in self._first_uses), 0)
        found, seen = self._first_uses[at, statements[known - 1]] if known else (None, frozenset[str]())
        for statement in statements[known:] if found is None else ():
            initialiser = Initialiser(project, uses, set(seen))
            place = initialiser.of(facts, statement)
            found = (statement, *place) if place is not None else None
            seen = frozenset(initialiser.seen)
            self._first_uses[at, statement] = found, seen
            if found is not None:
                break
        if found is None:
            return None
        self._first_uses[at, statements[-1]] = found, seen
        statement, owner, use = found
        there = f" ({owner.file.path}:{getattr(use, 'lineno', 1)})" if owner is not facts else ""
        return facts.file.span_of(statement), f"{point['point']}{there}: it was read here"

    @functools.cached_property
    def _first_uses(
        self,
    ) -> dict[tuple[str, ast.stmt], tuple[tuple[ast.stmt, ModuleFacts, ast.AST] | None, frozenset[str]]]:
        """By a statement and the use that is sought: the first statement up to it that uses a GPU, with the place of
        the use, and the modules that are imported by then."""
        return {}

    # ---- in a forked worker

    def _in_forked_worker(self, write: Write) -> bool:
        """The write is in a function that a forked pool runs, in a file that uses torch at its top level."""
        function, text = self.module.function_of(write.node), self.module.file.text
        if function is None or "set_start_method" in text or "get_context" in text or not _FORKS.search(text):
            return False
        parameters = [p.name.value for p in function.params.params]
        takes_rank = any(p in ("gpu_id", "gpu", "rank", "worker_id", "device_id", "local_rank") for p in parameters)
        return takes_rank and bool(re.search(r"^(import torch|from torch|from \w+.* import)", text, re.MULTILINE))

    def _report_fork(self, write: Write) -> None:
        self.report(
            write.key,
            "set in a forked worker: if its parent has used CUDA, this is ignored and all workers use GPU 0",
            help='start the workers with get_context("spawn"), or give each its device: f"cuda:{gpu_id}"',
            confidence=Confidence.LOW,
        )

    # ---- the finding

    def _report(
        self,
        write: Write,
        point: dict[str, Any],
        where: cst.CSTNode | Span | None,
        label: str,
        sure: Confidence | None = None,
    ) -> None:
        instead = point.get("instead", {}).get(write.name)
        self.report(
            write.key,
            f"{write.name} is read at {point['point']}, before this line: the write has no effect",
            labels=[(where, label)] if where is not None else [],
            help=f"{point['set_by']}{f'; after it, {instead} works' if instead else ''}",
            confidence=Confidence.HIGH if point["at"] == "import" else sure,
            fix=self._move_up(write, where) if isinstance(where, Span) else None,
        )

    def _move_up(self, write: Write, where: Span) -> Fix | None:
        """Move a whole-line write of a constant at the top level to before the first import of torch."""
        line = self.module.parent(write.node)
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        at_top = self.module.parent(line) is self.module.tree and self._imported_before("os", where.line)
        if not at_top or not isinstance(write.value, cst.SimpleString):
            return None
        span = self.module.span(line)
        text = self.module.file.lines[span.line - 1]
        if span.line != span.end_line:
            return None
        edits = (
            Edit(Span(span.path, where.line, 1, where.line, 1), f"{text}\n"),
            Edit(Span(span.path, span.line, 1, span.line + 1, 1), ""),
        )
        return Fix("set it before torch is imported", Applicability.UNSAFE, edits)

    def _imported_before(self, name: str, line: int) -> bool:
        facts = self.module.facts
        return facts is not None and any(
            name in _names(s) and s.lineno < line for s in _top_imports(facts.tree.body) if isinstance(s, ast.Import)
        )


def _top_imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run when the module is loaded, also those under `try` and `if`, in order."""
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement
        elif isinstance(statement, ast.Try):
            yield from _top_imports(statement.body)


def _names(statement: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(statement, ast.ImportFrom):
        return [statement.module] if statement.module and not statement.level else []
    return [alias.name for alias in statement.names]


@functools.cache
def _importing_torch() -> frozenset[str]:
    """Packages whose import imports torch."""
    return frameworks.packages(lambda each: each.imports_torch) | {*table("environment")["imports"]["torch"]}

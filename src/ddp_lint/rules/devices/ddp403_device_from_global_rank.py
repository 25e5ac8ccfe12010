from __future__ import annotations

import functools
import re

import libcst as cst

from ddp_lint.findings import Applicability, Cause, Confidence, Fix
from ddp_lint.launch.gpu_index import DEVICE, index_in_name, indices_of
from ddp_lint.launch.origin import rank_source
from ddp_lint.launch.single_process import counts_one_node, gives_local_ranks, is_benchmark, on_one_node
from ddp_lint.launch.started import started_on_one_node
from ddp_lint.launch.unread import is_never_read, kept_in
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conjuncts, holding
from ddp_lint.source.queries import literal_text
from ddp_lint.view.edits import replace
from ddp_lint.view.wraps import argument

_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: What a list of the GPUs of one node is called.
_GPUS = re.compile(r"(^|[\W_])gpu(s|_?ids|_?list)?([\W_]|$)|CUDA_VISIBLE_DEVICES|device_ids")


class DeviceFromGlobalRank(Rule):
    """The global rank is used as a GPU index: on the second node there is no such GPU.

    ## What it does

    Finds `get_rank()`, `RANK`, `process_index`, functions of the project that return them when called without
    arguments (`comm.get_rank()`), and variables with them, used as a device index: in `set_device`,
    `torch.device("cuda", rank)`, `f"cuda:{rank}"`, `DDP(device_ids=[rank])`, `barrier(device_ids=[rank])`,
    `.cuda(rank)`, and used to pick from a list of GPUs, `set_device(args.gpus[rank])`; in a file without any of these,
    also the first `.to(rank)` or `torch.tensor(x, device=rank)`. The same of the number that a rank writes into
    `CUDA_VISIBLE_DEVICES`, of its own environment or of a program that it starts.

    ## Why it breaks

    GPUs are numbered per node, ranks per job. On the first of two 8-GPU nodes rank 0 takes GPU 0, which works; on the
    second node rank 8 selects GPU 8: `CUDA error: invalid device ordinal`, and rank 0 waits for it. The same happens
    on one node when each rank sees only its own GPU (`CUDA_VISIBLE_DEVICES` per task under Slurm).

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]  # one GPU a task, as many schedulers do
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank())  # <- DDP403
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

    `rank % torch.cuda.device_count()` and any other arithmetic; local ranks; the index that `mp.spawn` passes to its
    function; names that are not proven to be the global rank; code that only rank 0 runs; tests and files that
    rendezvous on `localhost`, or form a group of `torch.cuda.device_count()` ranks, also by a function of the project
    that they join by, because there is only one node; `barrier(device_ids=[rank])` behind `set_device(rank)`; a device
    that is kept and that nothing reads. Of low
    confidence where every command of the project starts the program on one node, and it has no option for more and
    takes no rank modulo the GPUs of a node.

    ## How to confirm

    `ddp-lint verify train.py` on two GPUs: rank 1 fails with `invalid device ordinal`.

    ## Fix safety

    Unsafe: `% torch.cuda.device_count()` changes nothing on one node, and is correct on several nodes if the ranks of
    each node use its GPUs in order; `LOCAL_RANK` is correct if the launcher sets it.

    ## References

    - https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """

    confidence = Confidence.HIGH
    triggers = Triggers(
        "set_device",
        "set_device_index",
        "device",
        "cuda",
        "device_ids",
        "device_id",
        "barrier",
        "map_location",
        "CUDA_VISIBLE_DEVICES",
        "to",
        "DistributedDataParallel",
        "FullyShardedDataParallel",
        "DDP",
        "FSDP",
        file=("get_rank", "RANK", "process_index", "rank", "global_rank", "SLURM_PROCID", "world_rank"),
    )
    oracles = ("exception", "device")
    needs_cuda = True

    def start(self) -> None:
        self._reported: set[cst.CSTNode] = set()
        self._chosen: list[tuple[cst.BaseExpression, str]] = []
        self._moved: list[tuple[cst.BaseExpression, str]] = []

    @functools.cached_property
    def _one_node(self) -> bool:
        """Whether the ranks of the file are on one node: looked for in its importers, once there is anything to
        report."""
        project = self.module.project
        local = project is not None and project.remember("local ranks", lambda: gives_local_ranks(project))
        return local or self.module.file.is_test or on_one_node(self.module) or counts_one_node(self.module)

    def visit_Call(self, node: cst.Call) -> None:
        name = self.module.qualified(node.func)
        for value in indices_of(self.module, node):
            self._visit_index(value, name.rpartition(".")[2], node)
        method = node.func.attr.value if isinstance(node.func, cst.Attribute) and not name else ""
        if method == "to" or name.startswith("torch."):
            given = argument(node, 0 if method else None, "device")
            self._moved += [(given, ".to()" if method else "`device`")] if given is not None else []
        if method == "cuda" and node.args:
            self._visit_index(node.args[0].value, ".cuda()")
        elif method == "format" and isinstance(node.func, cst.Attribute) and len(node.args) == 1:
            self._visit_name(literal_text(node.func.value).removesuffix("{}"), node.args[0].value)

    def finish(self) -> None:
        """What is moved to the GPU of that number follows a choice of it that is reported; the first one does alone."""
        for value, where in self._moved:
            if not self._reported:
                self._visit_index(value, where)

    def visit_Assign(self, node: cst.Assign) -> None:
        """``env["CUDA_VISIBLE_DEVICES"] = str(rank)``."""
        targets = (each.target for each in node.targets)
        if any(isinstance(each, cst.Subscript) and _key(each) == _VISIBLE for each in targets):
            self._visit_index(_as_number(node.value), _VISIBLE)

    def visit_FormattedString(self, node: cst.FormattedString) -> None:
        self._visit_index(index_in_name(node), "the device's name")

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        if isinstance(node.operator, cst.Add):
            self._visit_name(literal_text(node.left), node.right)
        elif isinstance(node.operator, cst.Modulo):
            self._visit_name(literal_text(node.left).removesuffix("%d").removesuffix("%s"), node.right)

    def _visit_name(self, start: str, index: cst.BaseExpression) -> None:
        if DEVICE.match(start):
            self._visit_index(index, "the device's name")

    def _visit_index(self, value: cst.BaseExpression | None, where: str, call: cst.Call | None = None) -> None:
        """Report the global rank as an index. `call` may take it twice: ``device_ids=[rank], output_device=rank``."""
        if value is None or value in self._reported or self._one_node:
            return
        source = rank_source(self.module, value, "global_rank")
        picks = source is None
        source = source if source is not None else self._picking(value)
        if source is None or self._is_first(value) or (where == "barrier" and self._is_set_above(value)):
            return
        kept = kept_in(self.module, value)
        if kept is not None and is_never_read(self.module, kept):
            return
        self._reported.add(value)
        self._chosen.append((value, where))
        labels = [(source, "the global rank")] if source is not value else []
        self.report(
            value,
            f"the global rank picks the GPU in {where} from a list for one node: on the second node there is no entry"
            if picks
            else f"the global rank is the GPU index in {where}: on the second node no GPU has that number",
            notes=["on two nodes with 8 GPUs, rank 8 selects GPU 8: invalid device ordinal"] if not picks else [],
            labels=labels,
            confidence=Confidence.LOW
            if is_benchmark(self.module) or started_on_one_node(self.module.project, self.module.facts)
            else None,
            help='use the local rank: int(os.environ["LOCAL_RANK"])',
            fix=self._fix(value) if not picks and where != _VISIBLE else None,  # to count the GPUs there is too early
            cause=Cause(self.module.span(call)) if call is not None else None,
        )

    def _picking(self, value: cst.BaseExpression, depth: int = 3) -> cst.CSTNode | None:
        """The global rank that picks one of a node's GPUs: ``int(args.gpus[rank])``, also by its name."""
        if isinstance(value, cst.Call) and dotted(value.func) == "int" and len(value.args) == 1:
            return self._picking(value.args[0].value, depth)
        if isinstance(value, cst.Name) and depth:
            made = self.module.assignments(value)
            return self._picking(made[0], depth - 1) if len(made) == 1 else None
        if not isinstance(value, cst.Subscript) or not _GPUS.search(self.module.code(value.value)):
            return None
        index = value.slice[0].slice
        return rank_source(self.module, index.value, "global_rank") if isinstance(index, cst.Index) else None

    def _is_first(self, value: cst.BaseExpression) -> bool:
        """Whether a test around the line says that this is rank 0: ``if rank == 0: model.cuda(rank)``."""
        first = f"{self.module.code(value)} == 0"
        tests = (part for test in holding(self.module, value) for part in conjuncts(test))
        return any(self.module.code(part) == first for part in tests)

    def _is_set_above(self, value: cst.BaseExpression) -> bool:
        """Whether the rank has set the GPU of that number before, in the same function: it has failed there."""
        function = self.module.function_of(value)
        above = (each for each, where in self._chosen if where == "set_device" and each.deep_equals(value))
        return any(self.module.function_of(each) is function for each in above)

    def _fix(self, value: cst.BaseExpression) -> Fix | None:
        around = self.module.parent(value)
        joined = isinstance(around, cst.BinaryOperation)
        if self.module.imports.resolve("torch") != "torch" or (joined and isinstance(value, cst.Call)):
            return None  # of ``"cuda:" + str(rank)`` the argument would have to change
        text = f"{self.module.code(value)} % torch.cuda.device_count()"
        text = f"({text})" if joined else text
        return Fix("count the GPUs of the node", Applicability.UNSAFE, (replace(self.module, value, text),))


def _key(target: cst.Subscript) -> str:
    index = target.slice[0].slice
    key = index.value if isinstance(index, cst.Index) else None
    return literal_text(key) if isinstance(key, cst.SimpleString) else ""


def _as_number(value: cst.BaseExpression) -> cst.BaseExpression:
    """What a text is the number of: ``str(rank)``, ``f"{rank}"``."""
    if isinstance(value, cst.Call) and dotted(value.func) == "str" and len(value.args) == 1:
        return value.args[0].value
    parts = value.parts if isinstance(value, cst.FormattedString) else ()
    only = parts[0] if len(parts) == 1 else None
    return only.expression if isinstance(only, cst.FormattedStringExpression) else value

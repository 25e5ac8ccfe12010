from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.communication import Collective, load
from ddp_lint.launch.backend import forms_none, makes_tensors_on_gpus, nccl_alone
from ddp_lint.launch.callers import CallSite, call_sites
from ddp_lint.project import Project
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import holding
from ddp_lint.tensors import Code, TensorFile
from ddp_lint.tensors.on_host import gives_host
from ddp_lint.view.wraps import argument

_PACKAGE = "torch.distributed."
#: Functions that make a tensor of something: of a tensor they make one on its device.
_CONVERTING = frozenset({"torch.tensor", "torch.as_tensor", "torch.Tensor"})
#: Functions whose result is on the device of a tensor that they get.
_FOLLOWING = frozenset({"torch.multinomial", "torch.bernoulli", "torch.normal"})
_NUMBERS = frozenset({"float", "int", "bool", "len", "sum", "round", "list", "range", "sorted"})


class HostTensorInCollective(Rule):
    """A tensor on the CPU is given to a collective of a group that is for GPUs alone.

    ## What it does

    Finds `dist.all_reduce(t)` and the like with a tensor that was made without a device (`torch.tensor(x)`,
    `torch.zeros(n)`, `torch.randint(..)`, `torch.from_numpy(a)`) or moved to the host (`t.cpu()`), in a project whose
    groups all have the backend `nccl`, and in modules of a package that forms no group itself. Also a parameter of the
    function around, if a call gives it such a tensor.

    ## Why it breaks

    NCCL takes tensors on GPUs alone: the call raises "No backend type associated with device type cpu" on every rank
    that comes to it. It passes every test that runs in one process, or on gloo. Measured on 2 x H200 with torch 2.11
    for six collectives; a collective with a tensor on the GPU still works after it.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    seed = torch.randint(0, 10_000, ())
    dist.broadcast(seed, 0)  # <- DDP409
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    seed = torch.randint(0, 10_000, (), device="cuda")
    dist.broadcast(seed, 0)
    dist.destroy_process_group()
    ```

    ## When it is silent

    Projects that name a backend for the CPU anywhere (`gloo`, `mpi`, `cpu:gloo,cuda:nccl`), or form a group without a
    backend, which since torch 2.0 is for both; projects that set a default device; a `group` argument that another
    function made; a tensor that another branch moves to a device; `torch.tensor(x)` of something that may be a tensor
    on a GPU; the branch for a machine without CUDA; tests.

    ## How to confirm

    `ddp-lint verify train.py --device cuda` on two GPUs: the exception at this line.

    ## Fix safety

    No fix: the device depends on the program (`device=torch.cuda.current_device()`, that of a tensor at hand).

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#backends
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "all_reduce",
        "broadcast",
        "all_gather",
        "all_gather_into_tensor",
        "reduce",
        "reduce_scatter_tensor",
        "all_to_all_single",
        file=("torch",),
        tests=False,
    )
    oracles = ("exception",)
    needs_cuda = True

    def visit_Call(self, node: cst.Call) -> None:
        name, project = self.module.qualified(node.func), self.module.project
        entry = load().collectives.get(name) if name.startswith(_PACKAGE) else None
        if entry is None or not entry.payload or project is None or self.module.file.is_test:
            return
        if makes_tensors_on_gpus(project) or self._is_of_other_group(node, entry) or self._is_without_cuda(node):
            return
        if not nccl_alone(project) and not (forms_none(project) and self.module.file.holds("Module")):
            return
        for parameter in entry.payload:
            given = argument(node, entry.takes.index(parameter), parameter)
            if given is not None and self._check(node, given):
                return

    def _check(self, node: cst.Call, given: cst.BaseExpression) -> bool:
        """Report a call that is given something on the host."""
        function: Code = self.module.function_of(node) or self.module.tree
        value = TensorFile.of(self.module).flow(function).value(given)
        if value.tensor and value.on_host and self._surely(given):
            self._report(node, given, [(made, "made on the CPU") for made in self._made(given)[:1]])
            return True
        if not value.argument or value.name or isinstance(function, cst.Module):
            return False
        site = self._giving_host(function, value.argument, given)
        if site is not None:
            self._report(node, given, [(site.span, "this call gives it a tensor on the CPU")])
        return site is not None

    def _report(self, node: cst.Call, given: cst.BaseExpression, labels: list[tuple[object, str]]) -> None:
        project = self.module.project
        group = "NCCL takes no such tensor" if project is None or forms_none(project) else "the group is for GPUs alone"
        self.report(
            node,
            f"{self.module.quoted(given)} is on the CPU, and {group}: the call raises on every rank",
            labels=labels,  # type: ignore[arg-type]
            help="make it on the rank's GPU: `device=..`, or `.cuda()` before the call",
        )

    def _giving_host(self, function: cst.FunctionDef, name: str, given: cst.BaseExpression) -> CallSite | None:
        """A call of the function whose argument is a tensor on the host, where the function hands it on as it is."""
        bindings = self.module.bindings(given)
        if not isinstance(given, cst.Name) or [b.kind for b in bindings] != ["parameter"]:
            return None
        project = self.module.project
        if project is None:
            return None
        return next((s for s in call_sites(self.module, function) if _makes_on_host(project, s, function, name)), None)

    def _is_of_other_group(self, node: cst.Call, entry: Collective) -> bool:
        group = argument(node, entry.takes.index(entry.group), entry.group) if entry.group else None
        return group is not None and self.module.code(group) not in ("None", "dist.group.WORLD", "group.WORLD")

    def _is_without_cuda(self, node: cst.Call) -> bool:
        """Whether a test around the call asks for the device: it knows where its tensors are."""
        tests = map(self.module.code, holding(self.module, node))
        return any("cpu" in test or "cuda" in test or "device" in test for test in tests)

    def _made(self, given: cst.BaseExpression) -> list[cst.BaseExpression]:
        return self.module.assignments(given) if isinstance(given, cst.Name) else [given]

    def _surely(self, given: cst.BaseExpression) -> bool:
        """Whether nothing that the tensor is made of may be a tensor on a GPU."""
        return all(self._is_of_numbers(made) for made in self._made(given))

    def _is_of_numbers(self, made: cst.BaseExpression) -> bool:
        function: Code = self.module.function_of(made) or self.module.tree
        if not isinstance(made, cst.Call):
            return True
        qualified = self.module.qualified(made.func)
        if qualified in _FOLLOWING:
            return False
        if qualified not in _CONVERTING:
            inner = made.func.value if isinstance(made.func, cst.Attribute) and not qualified else None
            return self._is_of_numbers(inner) if inner is not None else True
        content = made.args[0].value if made.args else None
        if content is None or isinstance(content, (cst.List, cst.Tuple, cst.ListComp, cst.BaseNumber)):
            return True
        if isinstance(content, cst.Call) and self.module.code(content.func) in _NUMBERS:
            return True
        value = TensorFile.of(self.module).flow(function).value(content)
        return value.kind.value in ("python", "group")


def _makes_on_host(project: Project, site: CallSite, function: cst.FunctionDef, name: str) -> bool:
    """Whether a call makes a tensor on the host of numbers, and gives it: ``mean(torch.tensor([loss.item()]))``."""
    given = site.given(function, name)
    if not isinstance(given, ast.Call) or not gives_host(project, site, function, name):
        return False
    made = site.facts.qualified(given.func)
    if made in _CONVERTING:
        return bool(given.args) and isinstance(given.args[0], (ast.List, ast.Tuple, ast.ListComp, ast.Constant))
    return made.startswith("torch.") and made not in _FOLLOWING

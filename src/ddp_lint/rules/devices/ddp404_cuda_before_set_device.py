from __future__ import annotations

import ast
import collections
import functools
import re
from collections.abc import Callable

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import frameworks
from ddp_lint.launch.actors import has_own_gpus
from ddp_lint.launch.cuda import Initialiser, Place, makes_context
from ddp_lint.launch.environment import shows_own_gpu
from ddp_lint.launch.helpers import helper_of
from ddp_lint.launch.origin import is_constant
from ddp_lint.launch.ranks import runs_alone, several_ranks
from ddp_lint.launch.reached.walk import is_reached_from
from ddp_lint.launch.search import importers
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.requirements import requires_older
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import calls_below, parameters, statements
from ddp_lint.source.tree import asks_for_program
from ddp_lint.view.wraps import argument

_SETS = ("torch.cuda.set_device", "torch.accelerator.set_device_index")
#: Collectives that pick the current device when no call before them has set this rank's GPU.
_OF_OBJECTS = tuple(
    f"torch.distributed.{name}"
    for name in (
        "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list",
        "send_object_list", "recv_object_list",
    )
)  # fmt: skip
_GUESSING = ("torch.distributed.barrier", *_OF_OBJECTS)
#: Before this release of torch `barrier` takes the GPU of the rank's number modulo the GPUs of the machine alone.
_BARRIER_SINCE = "2.0"
#: Anything that gives each rank a GPU of its own without set_device.
_OWN_GPU = re.compile(
    r"set_device|CUDA_VISIBLE_DEVICES|LOCAL_RANK|local_rank|cuda:\{|\"cuda:\"|'cuda:'|device_ids|Accelerator\(|torch\.cuda\.device\("
)
#: What chooses a rank's GPU as the current one, other than a number that only names it.
_CHOOSES_GPU = re.compile(
    r"set_device|CUDA_VISIBLE_DEVICES|\b(?:Accelerator|PartialState|deepspeed\.init_distributed)\(|torch\.cuda\.device\("
)
_WRAPPER = "torch.nn.parallel.DistributedDataParallel"
_TENSOR_METHODS = ("cuda", "to")
#: What a file has that makes ranks or chooses their GPUs.
_CHOOSES = re.compile(r"\b(set_device|set_device_index|init_process_group|get_context)\b")


class CudaBeforeSetDevice(Rule):
    """CUDA is used before `set_device`, so every rank uses GPU 0.

    ## What it does

    Finds CUDA work that names no GPU (`.cuda()`, `device="cuda"`, object collectives, `barrier()`) before the rank
    calls `torch.cuda.set_device`, in code that several ranks run, by itself or by functions of the project; the same
    in scripts that use NCCL and never choose a GPU, or that wrap a model which is on the current GPU with
    `device_ids=[local_rank]` and never call `set_device`; `torch.cuda.device(local_rank)` as a statement, which is a
    context manager that nothing enters; and spawned workers that get a rank, never call `set_device`, and use the
    current GPU (`torch.cuda.synchronize()`).

    ## Why it breaks

    Until `set_device`, "cuda" is `cuda:0` on every rank. A tensor there costs a CUDA context (some 500 MB) of each
    rank on GPU 0. A collective there ends the job: rank 0 and rank 1 both use cuda:0, and NCCL fails with
    `Duplicate GPU detected : rank 0 and rank 1 both on CUDA device`. Measured on 2 x H200 (torch 2.11): after
    `barrier()` or a tensor on "cuda" before `set_device` rank 1 has a context on both GPUs; `all_gather_object` and
    `broadcast_object_list` fail. `set_device` directly after `init_process_group` is correct, because that call uses
    no GPU. A worker that unpickles a CUDA tensor and copies it to the host has a context on that tensor's GPU alone;
    one that calls `torch.cuda.synchronize()` has one on GPU 0 as well.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, f"rank {dist.get_rank()}")  # <- DDP404
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
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
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, f"rank {dist.get_rank()}")
    dist.destroy_process_group()
    ```

    ## When it is silent

    Devices with an index, `barrier(device_ids=[...])`, `is_available()` and `device_count()` (they use no GPU), the
    other branch of an `if`, code of one process, and scripts that give each rank its GPU in another way (`LOCAL_RANK`,
    `CUDA_VISIBLE_DEVICES`, `f"cuda:{i}"`, or a launcher: `assert torch.cuda.device_count() == 1`), also in a file that
    imports them. Classes that the project hands to `ray.remote`, if it gives actors GPUs (`num_gpus`): each actor sees
    its own. A loss without weights, which has no tensor (`nn.CrossEntropyLoss().cuda()`). `with torch.cuda.device(i):`,
    and the statement where the file, one that it imports, or what its program comes to, calls `set_device`. Functions
    of a helper that only programs without a group use. `barrier()` in a project that requires a torch before 2.0, where
    it takes the GPU of the rank's number.

    ## How to confirm

    `ddp-lint verify train.py` on two GPUs: rank 1 holds memory on `cuda:0`, or fails with `Duplicate GPU detected`.

    ## Fix safety

    No fix: the place at which the rank is known first depends on the script.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
    - https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_device.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "set_device",
        "set_device_index",
        "cuda",
        "barrier",
        "broadcast_object_list",
        "all_gather_object",
        "gather_object",
        "scatter_object_list",
        "Process",
        "init_process_group",
        "device",
        "device_ids",
        file=("set_device", "set_device_index", "init_process_group", "get_context", "local_rank", "rank"),
    )
    of_several = True
    oracles = ("device", "exception")
    needs_cuda = True

    def visit_Module(self, node: cst.Module) -> None:
        switches = self._switches()
        chooses = switches or self.module.file.shows(_CHOOSES) or self._imports_setter()
        if not chooses or several_ranks(self.module) is None:
            return
        self._calls: dict[cst.FunctionDef | None, list[cst.Call]] = collections.defaultdict(list)
        for call in self._all_calls():
            self._calls[self.module.function_of(call)].append(call)
        scopes: list[cst.FunctionDef | cst.Module] = [self.module.tree]
        scopes += self.module.of_type(cst.FunctionDef)
        first = next((call for call in self._all_calls() if self.module.qualified(call.func) in _SETS), None)
        reported = [self._visit_scope(scope, first) for scope in scopes]
        if not any(reported):
            self._visit_never(scopes)
        self._visit_switches(switches)
        for call in self._all_calls():
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "Process":
                self._visit_worker(call)

    # ---- before set_device

    def _visit_scope(self, scope: cst.FunctionDef | cst.Module, first: cst.Call | None) -> bool:
        """`first`: the first call in the file that sets the device, if one does."""
        calls = self._calls[scope] if isinstance(scope, cst.FunctionDef) else list(calls_in(scope))
        setting = next((i for i, call in enumerate(calls) if self._sets(call)), None)
        label = calls[setting] if setting is not None else None
        if label is None and scope is self.module.tree:
            label, setting = first, len(calls)
        if label is None or setting is None:
            return False
        for call in calls[:setting]:
            what = self._on_current_gpu(call, calls[:setting])
            if (
                what
                and not self._in_main_guard(call, label)
                and not exclusive(self.module, call, label)
                and not has_own_gpus(self.module, call)
            ):
                self._report(call, what, label)
                return True
        return False

    def _sets(self, call: cst.Call) -> bool:
        """Whether a call chooses the rank's GPU, by itself or by the function of the project that it calls."""
        return self.module.qualified(call.func) in _SETS or self._runs(call, _chooses_gpu) is not None

    def _runs(self, call: cst.Call, counts: Callable[[ModuleFacts, ast.Call], bool]) -> Place | None:
        """The first such call that a call of a function of the project surely leads to."""
        helper, project = helper_of(self.module, call), self.module.project
        if helper is None or project is None:
            return None
        facts, function = helper.facts, helper.function

        def first() -> Place | None:
            return Initialiser(project, counts).within(facts, function.body)

        found: Place | None = project.remember(("first use of a GPU", function, counts), first, facts.kept)
        return found

    def _all_calls(self) -> list[cst.Call]:
        return self.module.of_type(cst.Call)

    def _in_main_guard(self, call: cst.Call, label: cst.Call) -> bool:
        """A `__main__` block may call the function that sets the device before it reaches the line."""
        guarded = any(isinstance(a, cst.If) and asks_for_program(a.test) for a in self.module.ancestors(call))
        return guarded and self.module.function_of(label) is not None

    def _on_current_gpu(self, call: cst.Call, before: list[cst.Call]) -> str:
        """What a call does on the current GPU without naming one; '' when it does not."""
        name = self.module.qualified(call.func)
        started = any(self.module.qualified(c.func) == "torch.distributed.init_process_group" for c in before)
        if name in (_OF_OBJECTS if self._counts_gpus else _GUESSING):
            named = argument(call, None, "device_ids") or argument(call, None, "device")
            return "" if named is not None or not started else f"`{name.rpartition('.')[2]}` uses cuda:0 on every rank"
        if self._runs(call, _chooses_gpu) is None:
            if self._runs(call, _uses_current_gpu) is not None:
                return f"{self.module.quoted(call.func)} puts a tensor on cuda:0 on every rank"
            if started and self._runs(call, self._guesses) is not None:
                return f"{self.module.quoted(call.func)} uses cuda:0 on every rank"
        if not name and isinstance(call.func, cst.Attribute) and call.func.attr.value in _TENSOR_METHODS:
            if self._holds_no_tensor(call.func.value):
                return ""
            bare = call.func.attr.value == "cuda" and not call.args
            moved = bool(call.args) and call.func.attr.value == "to" and self._is_bare(call.args[0].value)
            return "puts a tensor on cuda:0 on every rank" if bare or moved else ""
        if name.startswith("torch.") and name != "torch.device" and self._is_bare(argument(call, None, "device")):
            return "makes a tensor on cuda:0 on every rank"
        return ""

    @functools.cached_property
    def _counts_gpus(self) -> bool:
        """Whether the torch that the project requires has `barrier` take the GPU of the rank's number, and nothing
        else: later ones also make a tensor on the current GPU."""
        project, facts = self.module.project, self.module.facts
        if project is None or facts is None:
            return False
        return requires_older(project, "torch", _BARRIER_SINCE, facts.source.inside)

    @property
    def _guesses(self) -> Callable[[ModuleFacts, ast.Call], bool]:
        return _guesses_gpu_for_objects if self._counts_gpus else _guesses_gpu

    def _holds_no_tensor(self, receiver: cst.BaseExpression) -> bool:
        """Whether it is a loss of PyTorch's without weights, which has nothing to move: ``nn.CrossEntropyLoss()``."""
        made = receiver if isinstance(receiver, cst.Call) else next(iter(self.module.assignments(receiver)), None)
        if not isinstance(made, cst.Call):
            return False
        name = self.module.qualified(made.func)
        weighed = any(arg.keyword is None or arg.keyword.value.endswith("weight") for arg in made.args)
        return name.startswith("torch.nn.") and name.endswith("Loss") and not weighed

    def _is_bare(self, node: cst.BaseExpression | None, depth: int = 3) -> bool:
        """Whether a device is the current GPU wherever there is one: ``"cuda"``, ``torch.device("cuda")``, a name for
        such a device, also where it is the CPU on a machine without GPUs."""
        if isinstance(node, cst.SimpleString):
            return bool(node.evaluated_value == "cuda")
        if isinstance(node, cst.IfExp):
            return self.module.code(node.test) == "torch.cuda.is_available()" and self._is_bare(node.body, depth)
        if isinstance(node, cst.Call):
            made = self.module.qualified(node.func) == "torch.device" and len(node.args) == 1
            return made and self._is_bare(node.args[0].value, depth)
        if not isinstance(node, (cst.Name, cst.Attribute)) or not depth:
            return False
        bound = self.module.bindings(node)
        return bool(bound) and all(b.kind == "assign" and self._is_bare(b.value, depth - 1) for b in bound)

    def _report(self, call: cst.Call, what: str, label: cst.Call) -> None:
        self.report(
            call,
            f"{what} before set_device: every rank opens a CUDA context on GPU 0",
            notes=["a collective there fails with 'Duplicate GPU detected'"],
            labels=[(label, "the rank chooses its GPU only here")],
            help="call torch.cuda.set_device(local_rank) first in each rank",
        )

    # ---- never

    def _chosen_by_framework(self) -> bool:
        """Whether a framework chooses the rank's GPU before the file's code runs."""
        choosing = frameworks.packages(lambda framework: framework.chooses_device)
        return not choosing.isdisjoint(self.module.imports.packages)

    def _uses_choosing_framework(self) -> bool:
        """Whether more of such a framework is imported than functions, as the one that seeds."""
        choosing = frameworks.packages(lambda framework: framework.chooses_device)
        found = (t for t in self.module.imports.names.values() if t.partition(".")[0] in choosing)
        return any("." not in target or target.rpartition(".")[2][:1].isupper() for target in found)

    def _visit_never(self, scopes: list[cst.FunctionDef | cst.Module]) -> None:
        text = self.module.file.code
        if "init_process_group" not in text or _CHOOSES_GPU.search(text) or self._is_chosen_elsewhere():
            return
        if _OWN_GPU.search(text):
            self._visit_wraps()
        elif re.search(r"""["'](cuda:)?nccl""", text) and not self._chosen_by_framework():
            self._visit_current(scopes)

    def _visit_current(self, scopes: list[cst.FunctionDef | cst.Module]) -> None:
        """Report the first tensor on the current GPU in a file that names no other."""
        for scope in scopes:
            body = scope.body if isinstance(scope, cst.FunctionDef) else scope
            for call in calls_in(body):
                if (
                    self._on_current_gpu(call, []).startswith("puts")
                    and not runs_alone(self.module, call)
                    and not has_own_gpus(self.module, call)
                ):
                    self.report(
                        call,
                        "no code chooses a GPU for the rank: all ranks put their tensors on cuda:0, and NCCL fails",
                        notes=["the first NCCL collective fails with 'Duplicate GPU detected'"],
                        help='torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group',
                    )
                    return

    def _visit_wraps(self) -> None:
        """Report a model on the current GPU that is wrapped for the rank's own: `device_ids` moves the inputs alone."""
        if self._uses_choosing_framework():
            return
        for wrap in self.module.calls_named(_WRAPPER.rpartition(".")[2]):
            ids = argument(wrap, 1, "device_ids") if self.module.qualified(wrap.func) == _WRAPPER else None
            one = ids.elements[0].value if isinstance(ids, (cst.List, cst.Tuple)) and len(ids.elements) == 1 else None
            model = argument(wrap, 0, "module")
            if one is None or model is None or is_constant(one) or runs_alone(self.module, wrap):
                continue
            moved = self._moved(model, wrap)
            if moved is not None and not has_own_gpus(self.module, wrap):
                self.report(
                    moved,
                    "puts the model on cuda:0 on every rank: no code chooses a GPU, and `device_ids` does not move it",
                    notes=["NCCL fails with 'Duplicate GPU detected', or the inputs are on another GPU than the model"],
                    labels=[(one, "the inputs of each rank go to this GPU")],
                    help="call torch.cuda.set_device(local_rank) first in each rank",
                )
                return

    def _moved(self, model: cst.BaseExpression, wrap: cst.Call) -> cst.Call | None:
        """The call that put a model on the current GPU last before it is wrapped."""
        if isinstance(model, cst.Call):
            return model if self._on_current_gpu(model, []).startswith("puts") else None
        name, scope = dotted(model), self.module.function_of(wrap)
        moves: list[cst.Call] = []
        for call in self._calls[scope] if name else ():
            if call is wrap:
                break
            if isinstance(call.func, cst.Attribute) and dotted(call.func.value) == name:
                moves += [call] if call.func.attr.value in _TENSOR_METHODS else []
        last = moves[-1] if moves else None
        return last if last is not None and self._on_current_gpu(last, []).startswith("puts") else None

    def _is_chosen_elsewhere(self) -> bool:
        """Whether another file that the program comes to, or the environment, chooses the rank's GPU."""
        if shows_own_gpu(self.module) or self._setter_imports():
            return True
        return self._comes_to_setter() if self.module.file.holds("__main__") else self._imports_setter()

    def _comes_to_setter(self) -> bool:
        """Whether the program may come to a call of set_device in another file."""
        project, program = self.module.project, self.module.facts
        if project is None or program is None:
            return False
        return any(
            is_reached_from(project, program.name, facts, call.lineno)
            for facts in map(project.modules.facts_of, project.contents.holding("set_device("))
            if facts is not None
            for call in calls_below(facts.tree)
            if last_part(call.func) == "set_device"
        )

    def _imports_setter(self) -> bool:
        """Whether a module that the file imports from calls set_device: a helper of the project may do it."""
        project = self.module.project
        if project is None:
            return False
        holders = set(project.contents.holding("set_device("))
        found = (project.meanings.split(target) for target in self.module.imports.names.values())
        return any(f is not None and project.modules.find(f[0].name) in holders for f in found)

    def _setter_imports(self) -> bool:
        """Whether a module that imports the file calls set_device: the caller may do it before it calls."""
        project = self.module.project
        return project is not None and any(importers(project, self.module.name, holding=("set_device(",)))

    # ---- a context manager that nothing enters

    def _switches(self) -> list[cst.Call]:
        """``torch.cuda.device(local_rank)`` on a line of its own."""
        calls = [s.value for s in self.module.of_type(cst.Expr) if isinstance(s.value, cst.Call)]
        switches = [call for call in calls if self.module.qualified(call.func) == "torch.cuda.device"]
        return [call for call in switches if call.args and not is_constant(call.args[0].value)]

    def _visit_switches(self, switches: list[cst.Call]) -> None:
        """They choose nothing; reported in a file that sets the device nowhere."""
        for call in switches:
            if self._is_set_elsewhere():
                continue
            self.report(
                call,
                "`torch.cuda.device` outside of `with` chooses no GPU: every rank stays on cuda:0",
                notes=["it is a context manager, which changes the device only while it is entered"],
                help=f"torch.cuda.set_device({self.module.code(call.args[0].value)})",
            )

    def _is_set_elsewhere(self) -> bool:
        in_file = any(self.module.qualified(call.func) in _SETS for call in self._all_calls())
        if in_file or self._imports_setter() or self._chosen_by_framework():
            return True
        return self.module.file.holds("__main__") and self._comes_to_setter()

    # ---- spawned workers

    def _visit_worker(self, process: cst.Call) -> None:
        """A spawned worker that takes its rank, never chooses a GPU by it, and uses the current one."""
        target = argument(process, 1, "target")
        name = dotted(target).rpartition(".")[2]
        spawns = isinstance(process.func, cst.Attribute) and any(
            isinstance(maker, cst.Call) and "spawn" in self.module.code(maker)
            for maker in self.module.assignments(process.func.value)
        )
        if not spawns or not name or self.module.facts is None or not self.module.file.holds("torch.cuda"):
            return
        for worker in statements(self.module.facts.tree):
            if isinstance(worker, ast.FunctionDef) and worker.name == name and _needs_device(worker):
                self._visit_uses(worker, self.module.facts, process)

    def _visit_uses(self, worker: ast.FunctionDef, facts: ModuleFacts, process: cst.Call) -> None:
        """A CUDA tensor that is sent to the worker stays on its own GPU, also where it is copied to the host from."""
        uses = (n for n in calls_below(worker) if _is_on_current_gpu(facts, n))
        use = next(uses, None)
        if use is not None:
            self.report(
                self.module.file.span_of(use),
                f"the spawned worker `{worker.name}` never calls set_device: it opens a context on GPU 0 on every rank",
                labels=[(process, "started here, once per rank")],
                help="call torch.cuda.set_device with the rank's device at the start of the worker",
            )


def _chooses_gpu(facts: ModuleFacts, call: ast.Call) -> bool:
    return (facts.imports.resolve(dotted_ast(call.func)) or "") in _SETS


def _guesses_gpu(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call is a collective that takes the current GPU, as none is named."""
    named = any(keyword.arg in ("device_ids", "device", None) for keyword in call.keywords)
    return not named and (facts.imports.resolve(dotted_ast(call.func)) or "") in _GUESSING


def _guesses_gpu_for_objects(facts: ModuleFacts, call: ast.Call) -> bool:
    return _guesses_gpu(facts, call) and (facts.imports.resolve(dotted_ast(call.func)) or "") in _OF_OBJECTS


def _uses_current_gpu(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call puts a tensor on the current GPU without naming it; a loss may have none."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    on = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(on, ast.Call) and last_part(on.func).endswith("Loss"):
        return False
    places = [a for a in call.args[:1] if method == "to"] + [k.value for k in call.keywords if k.arg == "device"]
    bare = any(isinstance(place, ast.Constant) and place.value == "cuda" for place in places)
    return makes_context(facts, call) and (bare or (method == "cuda" and not call.args and not call.keywords))


def _is_on_current_gpu(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call opens a context on the current GPU: ``x.cuda()``, ``torch.cuda.synchronize()``."""
    waits = (facts.imports.resolve(dotted_ast(call.func)) or "") == "torch.cuda.synchronize"
    return _uses_current_gpu(facts, call) or (waits and not call.args and not call.keywords)


def _needs_device(worker: ast.FunctionDef) -> bool:
    """Whether a worker takes its rank and never chooses a GPU by it."""
    takes_rank = any(p.arg in ("rank", "local_rank", "device", "gpu") for p in parameters(worker))
    return takes_rank and not re.search(r"set_device|init_process_group|cuda:", ast.unparse(worker))

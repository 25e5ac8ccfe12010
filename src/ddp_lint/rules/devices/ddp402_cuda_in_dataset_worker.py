from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Fix
from ddp_lint.launch.callers import CallSite, constructions
from ddp_lint.launch.cuda import Initialiser, makes_context, surely_cuda
from ddp_lint.launch.helpers import helper_of
from ddp_lint.launch.loader_workers import (
    METHODS,
    SAMPLES,
    is_read_without_workers,
    is_set_where_workers_are_spawned,
    loaders_use_workers,
    makes_samples,
)
from ddp_lint.launch.options import default_of
from ddp_lint.project.facts import ClassFacts, ModuleFacts, assigned_in
from ddp_lint.rules.base import Rule
from ddp_lint.rules.devices.checkpoint_devices import saved_from_cpu, saves_samples
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.imports import dotted_ast, of_self
from ddp_lint.source.parsing import parse_expression
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import argument_at, parameters
from ddp_lint.source.tree import descendants, method_of, parameters_of
from ddp_lint.view.edits import add_argument
from ddp_lint.view.scopes import Binding
from ddp_lint.view.wraps import argument

_DEVICES = re.compile(r"cuda|device", re.IGNORECASE)


class CudaInDatasetWorker(Rule):
    """A Dataset uses CUDA in the worker processes of its DataLoader.

    ## What it does

    Finds, in the methods of a Dataset (or a collate function) that DataLoader workers run: `.cuda()`, `.to("cuda")`,
    `device="cuda"`, `torch.load` without `map_location`, calls of functions of the project that use CUDA; methods of
    the dataset that do so with the device it was given, also as the default of an option (`--device`); and tensors that
    `__init__` put on the GPU and `__getitem__` returns. An object that all makers of the dataset give it counts, if
    what is called of it uses CUDA, with the device that it was made with (`Data(files, Features(device))`). Only where
    a DataLoader in the file or the project uses workers.

    ## Why it breaks

    Workers are forked from a rank that has initialised CUDA: their first CUDA call, also the unpickling of a stored
    CUDA tensor, fails with `Cannot re-initialize CUDA in forked subprocess` or `CUDA error: initialization error`.
    Under `spawn` nothing fails, but the workers of every rank put their tensors on `cuda:0`: none of them called
    set_device. And `pin_memory=True` fails on CUDA items: `only dense CPU tensors can be pinned`. Measured on 2 x
    H200. (`share_memory_()` on a CUDA tensor is not the cause: it does nothing.)

    ## Example

    ```python
    import torch
    from torch.utils.data import DataLoader, Dataset


    class Squares(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.tensor([float(index**2)]).cuda()  # <- DDP402


    if __name__ == "__main__":
        torch.ones(1, device="cuda")
        for batch in DataLoader(Squares(), batch_size=4, num_workers=1):
            print(batch.sum())
    ```

    ## Use instead

    ```python
    import torch
    from torch.utils.data import DataLoader, Dataset


    class Squares(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.tensor([float(index**2)])


    if __name__ == "__main__":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for batch in DataLoader(Squares(), batch_size=4, num_workers=1, pin_memory=device == "cuda"):
            print(batch.to(device, non_blocking=True).sum())
    ```

    ## When it is silent

    Loaders with `num_workers=0` (or without it), also beside others if no other gets the dataset, and code without a
    known DataLoader with workers; `.to(device)` with a
    device that may be the CPU although there is a GPU (the device that creates the Dataset is followed through the
    project); `torch.load` with a `map_location`, in `__init__`, or of files that were saved from the CPU, or by
    the class itself, if nothing in it names a GPU; branches on `get_worker_info()`; a GPU that the dataset takes from
    an attribute which only programs set that have their workers spawned (`x.cuda(self.args.gpu)`): these use it.

    ## How to confirm

    `ddp-lint verify train.py` on a GPU: the worker raises, or its tensors are on `cuda:0` in both ranks.

    ## Fix safety

    `map_location="cpu"` is added to loads, unsafe: the training loop must then move the sample to the GPU.

    ## References

    - https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(*METHODS, file=("torch",))
    oracles = ("exception", "device")
    needs_cuda = True

    def start(self) -> None:
        self._workers: bool | None = None

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if not makes_samples(self.module, node):
            return
        owner = self.module.parent(self.module.parent(node) or node)
        if isinstance(owner, cst.ClassDef) and is_read_without_workers(self.module, owner):
            return
        for call, what in (*self._on_gpu(node), *self._through_functions(node)):
            if self._runs_in_worker(call):
                self._report(call, what, (node.name, "runs in the workers"))
        if isinstance(owner, cst.ClassDef) and node.name.value in SAMPLES:
            self._visit_methods(owner, node)
        if isinstance(owner, cst.ClassDef) and node.name.value in SAMPLES:
            for call, read in self._kept_on_gpu(owner, node):
                if self._runs_in_worker(call):
                    self._report(call, "puts on a GPU what is read", (read, "read in the workers"))
            for call in calls_in(node.body):
                if self._calls_what_uses_gpu(owner, call) and self._runs_in_worker(call):
                    self._report(call, "uses a GPU", (node.name, "runs in the workers"))

    def _calls_what_uses_gpu(self, owner: cst.ClassDef, call: cst.Call) -> bool:
        """Whether a call of an object that every maker of the dataset gives it surely uses a GPU: ``self.features(x)``
        after ``Data(files, Features(device))``."""
        attribute, _, method = of_self(dotted(call.func)).partition(".")
        bound = self.module.bindings(f"self.{attribute}", call) if attribute else []
        init = self.module.function_of(bound[0].node) if len(bound) == 1 else None
        if init is None or init.name.value != "__init__" or bound[0].kind != "assign":
            return False
        name = _stored(bound[0])
        if not any(each.name.value == name for each in parameters_of(init)):
            return False
        sites = constructions(self.module, owner)
        return bool(sites) and all(self._is_given_user(site, site.given(init, name), method) for site in sites)

    def _is_given_user(self, site: CallSite, given: ast.expr | None, method: str) -> bool:
        """Whether a maker gives an object of the project whose method surely uses a GPU."""
        project = self.module.project
        if isinstance(given, ast.Name) and site.around is not None:
            values = assigned_in(site.around, given.id)
            given = values[0] if len(values) == 1 else None
        if project is None or not isinstance(given, ast.Call):
            return False
        made, name = given, project.meanings.of(site.facts, given.func)
        found = project.classes.method(name, method or "__call__") if name else None
        if found is None and name and not method:
            found = project.classes.method(name, "forward")
        if found is None:
            return False
        cls, function = found

        def counts(facts: ModuleFacts, call: ast.Call) -> bool:
            moved = isinstance(call.func, ast.Attribute) and call.func.attr == "to" and bool(call.args)
            on_gpu = moved and facts is cls.module and _is_gpu_of(cls, call.args[0], made, site)
            return on_gpu or _uses_gpu(facts, call)

        return Initialiser(project, counts).within(cls.module, function.body) is not None

    def _visit_methods(self, owner: cst.ClassDef, sample: cst.FunctionDef) -> None:
        """Report the first use of a GPU in each method of the dataset that it calls for a sample, if what the method
        shows by itself is not enough for `_through_functions`: a device that the object keeps."""
        methods = {f"self.{m.name.value}": m for m in owner.body.body if isinstance(m, cst.FunctionDef)}
        left, seen = [sample], {sample}
        while left:
            method = left.pop()
            for call in calls_in(method.body):
                called = methods.get(dotted(call.func))
                if called is None or called in seen or called.name.value in SAMPLES or not self._runs_in_worker(call):
                    continue
                seen.add(called)
                left.append(called)
                used = next((place for place in self._on_gpu(called) if self._runs_in_worker(place[0])), None)
                if used is not None and not self._is_followed(call):
                    self._report(*used, (sample.name, "runs in the workers"))

    def _kept_on_gpu(self, owner: cst.ClassDef, method: cst.FunctionDef) -> Iterator[tuple[cst.Call, cst.CSTNode]]:
        """What `__init__` puts on a GPU under an attribute, with the first place where `method` reads it."""
        reads: dict[str, cst.CSTNode] = {}
        for node in descendants(method.body):
            if isinstance(node, cst.Attribute) and dotted(node.value) == "self":
                reads.setdefault(dotted(node), node)
        for init in owner.body.body:
            if not isinstance(init, cst.FunctionDef) or init.name.value != "__init__":
                continue
            methods = {f"self.{m.name.value}": m for m in owner.body.body if isinstance(m, cst.FunctionDef)}
            # A file that is read once, for all samples, is data that somebody has prepared: not saved from a GPU here.
            made = [call for call, _ in self._on_gpu(init) if self.module.qualified(call.func) != "torch.load"]
            for call in descendants(init.body):
                maker = methods.get(dotted(call.func)) if isinstance(call, cst.Call) else None
                if isinstance(call, cst.Call) and maker is not None and self._returns_on_gpu(maker):
                    made.append(call)
            for call in made:
                name = self._attribute_of(call)
                if name in reads:
                    yield call, reads[name]

    def _returns_on_gpu(self, method: cst.FunctionDef) -> bool:
        made = {call for call, _ in self._on_gpu(method)}
        returned = (n for n in descendants(method.body) if isinstance(n, cst.Return))
        return any(statement.value in made for statement in returned)

    def _attribute_of(self, call: cst.Call) -> str:
        """`self.table` for a call in the value that is assigned to it."""
        for up in self.module.ancestors(call):
            if isinstance(up, cst.Assign):
                return dotted(up.targets[0].target)
            if isinstance(up, cst.BaseStatement):
                break
        return ""

    def _on_gpu(self, function: cst.FunctionDef) -> Iterator[tuple[cst.Call, str]]:
        for node in descendants(function.body):
            if not isinstance(node, cst.Call):
                continue
            method = method_of(node)
            name = self.module.qualified(node.func)
            if (method == "cuda" and not name) or (method == "to" and node.args and self._is_gpu(node.args[0].value)):
                yield node, "puts the sample on a GPU"
            elif name.startswith("torch.") and self._is_gpu(argument(node, None, "device")):
                yield node, "makes a tensor on a GPU"
            elif name == "torch.load" and (self._keeps_device(node) or self._is_brought_back(node)):
                yield node, "loads a tensor onto the GPU that it was saved from"

    def _through_functions(self, function: cst.FunctionDef) -> Iterator[tuple[cst.Call, str]]:
        """The calls of functions of the project that surely put something on a GPU."""
        for call in calls_in(function.body) if self.module.project is not None else ():
            if self._is_followed(call):
                yield call, "uses a GPU"

    def _is_followed(self, call: cst.Call) -> bool:
        """Whether the function of the project that is called surely uses a GPU, as far as it shows by itself."""
        project, helper = self.module.project, helper_of(self.module, call)
        if project is None or helper is None:
            return False
        return Initialiser(project, _uses_gpu).within(helper.facts, helper.function.body) is not None

    def _is_gpu(self, node: cst.BaseExpression | None, depth: int = 3) -> bool:
        """Whether a device is a GPU wherever there is one, as far as names, attributes and constructors show."""
        if node is None or self.module.facts is None:
            return False
        if isinstance(node, (cst.Name, cst.Attribute)):
            bound = self.module.bindings(node) if depth else []
            return bool(bound) and all(self._binds_gpu(binding, depth - 1) for binding in bound)
        expression = parse_expression(self.module.code(node))
        return expression is not None and surely_cuda(self.module.facts, expression)

    def _binds_gpu(self, binding: Binding, depth: int) -> bool:
        if binding.kind == "assign":
            return not binding.index and self._is_gpu(binding.value, depth)
        function = self.module.function_of(binding.node)
        owner = self.module.class_of(function) if function is not None else None
        if binding.kind != "parameter" or function is None or owner is None or function.name.value != "__init__":
            return False
        for site in constructions(self.module, owner):
            given = site.given(function, binding.name)
            if self._is_given_gpu(site, given) if given is not None else self._is_gpu(binding.value, depth):
                return True
        return False

    def _is_given_gpu(self, site: CallSite, given: ast.expr) -> bool:
        """Whether a program gives a dataset a GPU, by an option that is one where no command says otherwise, too."""
        project = self.module.project
        default = default_of(project, site.facts, site.around, given) if project is not None else None
        return surely_cuda(site.facts, given if default is None else default, site.around)

    def _keeps_device(self, call: cst.Call) -> bool:
        if any(arg.star for arg in call.args) or argument(call, 1, "map_location") is not None:
            return False
        facts, text = self.module.facts, self.module.file.text
        owner = self.module.class_of(call)
        made = self.module.code(owner) if owner is not None else ""
        if "torch.save" in made and _DEVICES.search(made) is None:
            return False  # the class prepares its own samples, and nothing in it takes them to a GPU
        return "cuda" in text and facts is not None and saves_samples(facts) and not saved_from_cpu(facts, facts.tree)

    def _is_brought_back(self, call: cst.Call) -> bool:
        """Whether what is loaded is copied to the CPU at once."""
        copied = self.module.parent(self.module.parent(call) or call)
        while isinstance(copied, cst.Call) and method_of(copied) in ("detach", "clone"):
            copied = self.module.parent(self.module.parent(copied) or copied)
        expression = parse_expression(self.module.code(copied)) if isinstance(copied, cst.Call) else None
        facts = self.module.facts
        return facts is not None and isinstance(expression, ast.Call) and _copies_what_it_loads(facts, expression)

    def _runs_in_worker(self, call: cst.Call) -> bool:
        for test, _ in conditions(self.module, call):
            if "worker_info" in self.module.code(test) or "is_available" in self.module.code(test):
                return False
        if self._names_gpu_of_spawning(call):
            return False
        if self._workers is None:
            self._workers = loaders_use_workers(self.module, forked=True)
        return self._workers

    def _names_gpu_of_spawning(self, call: cst.Call) -> bool:
        """Whether a call takes the GPU from an attribute that only programs set which have their workers spawned, each
        of which then uses that GPU: ``x.cuda(self.args.gpu)``."""
        project, device = self.module.project, call.args[0].value if call.args else argument(call, None, "device")
        if project is None or not isinstance(device, cst.Attribute):
            return False
        return is_set_where_workers_are_spawned(project, device.attr.value)

    def _report(self, call: cst.Call, what: str, label: tuple[cst.CSTNode, str]) -> None:
        fix = None
        if self.module.qualified(call.func) == "torch.load":
            edit = add_argument(self.module, call, "map_location", '"cpu"')
            fix = Fix("load to the CPU", Applicability.UNSAFE, (edit,))
        self.report(
            call,
            f"{what} in a DataLoader worker: forked ones fail, spawned ones all use cuda:0",
            notes=["a forked worker of a rank that uses CUDA raises 'Cannot re-initialize CUDA in forked subprocess'"],
            labels=[label],
            help="keep samples on the CPU; move the batch in the training loop, with pin_memory and non_blocking",
            fix=fix,
        )


def _stored(binding: Binding) -> str:
    """The name that an attribute gets the object of, '' for anything else."""
    return dotted(binding.value) if isinstance(binding.value, cst.Name) and not binding.index else ""


def _is_gpu_of(cls: ClassFacts, device: ast.expr, made: ast.Call, site: CallSite) -> bool:
    """Whether a device that an object keeps is a GPU, as the call that makes the object gives it."""
    name = of_self(dotted_ast(device))
    stored = cls.attribute(name) if name else ()
    value, init = stored[0] if len(stored) == 1 else (None, None)
    if value is None or init is None or init.name != "__init__":
        return False
    places = [each.arg for each in parameters(init)]
    if not isinstance(value, ast.Name) or value.id not in places:
        return surely_cuda(cls.module, value, init)
    given = argument_at(made, places.index(value.id) - 1, value.id)
    return given is not None and surely_cuda(site.facts, given, site.around)


def _uses_gpu(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call by itself puts something on a GPU, or shows that what is loaded comes onto one."""
    return makes_context(facts, call) or _copies_what_it_loads(facts, call)


def _copies_what_it_loads(facts: ModuleFacts, call: ast.Call) -> bool:
    """``torch.load(path).detach().cpu()``: it is copied because it was saved from a GPU, onto which it is loaded."""
    made: ast.expr = call
    copies = False
    while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and isinstance(made.func.value, ast.Call):
        if made.func.attr not in ("cpu", "detach", "clone"):
            return False
        copies = copies or made.func.attr == "cpu"
        made = made.func.value
    if not copies or not isinstance(made, ast.Call) or facts.imports.resolve(dotted_ast(made.func)) != "torch.load":
        return False
    return len(made.args) == 1 and all(keyword.arg not in ("map_location", None) for keyword in made.keywords)

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.tensors import layer_kind, names
from ddp_lint.launch.callers import CallSite, constructions
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.rules.wrapping.fitted_classes import fitted_classes
from ddp_lint.rules.wrapping.layer_drop import dropped_layers
from ddp_lint.rules.wrapping.wrapped_classes import searched_classes, wrapped_classes
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conjuncts, holding
from ddp_lint.source.imports import of_self
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import descendants, parameters_of
from ddp_lint.tensors import TensorFile
from ddp_lint.tensors.classes import PARAMETER_MAKERS

#: What uses parameters without their names, or says that some get no gradient.
_BY_OTHER_NAMES = re.compile(
    r"\b(children|named_children|modules|named_modules|_modules|_parameters|__dict__|getattr|setattr|delattr|"
    r"requires_grad_|register_forward_hook|automatic_optimization)\b|\.requires_grad\b"
)
#: What tells DDP later to expect such parameters.
_TOLD_LATER = "_set_static_graph"
#: What leaves a switch off, by how it is asked: for its truth, for a number above 0, for anything but None.
_OFF = frozenset({"False", "None", "0", "0.0"})
_NOT_ABOVE = frozenset({"False", "0", "0.0"})
_ABOVE = re.compile(r"\s*(>|!=)\s*0(\.0*)?")
_GIVEN = re.compile(r"\s*is\s+not\s+None")
#: How a LightningModule keeps the parameters of its constructor, and where. Source: core/mixins/hparams_mixin.py.
_SAVES, _SAVED = "save_hyperparameters", "hparams."
_LIGHTNING = "lightning.pytorch.LightningModule"


@dataclasses.dataclass(frozen=True)
class _Switch:
    """An attribute of a module, of `self` or of its saved settings, and what leaves it off."""

    attribute: str
    off: frozenset[str]

    @property
    def name(self) -> str:
        """The parameter of the constructor that it is."""
        return self.attribute.removeprefix(_SAVED)


class ParametersNeverUsed(Rule):
    """A layer or parameter is registered, but no code in the project uses it.

    ## What it does

    Finds `self.x = nn.Linear(..)`, another layer with parameters, or `nn.Parameter(..)` in the constructor of a module
    that a file of the project wraps in DDP or gives `accelerator.prepare`, directly or as a part, if the name `x`
    occurs nowhere else; or if the methods of the class use it only under `if self.switch:`, `if self.switch > 0:` or
    `if self.switch is not None:`, where `switch` is a parameter of the constructor that is off by default and that
    nothing in the project gives. A module that Lightning (2.0 or later) fits with `strategy="ddp"` counts as well, and
    so does `self.hparams.switch` of it. Finds a `forward` as well
    that leaves layers of a list out at random (`if self.training and random.random() < self.layerdrop: continue`), if
    the probability is known to be between 0 and 1.

    ## Why it breaks

    DDP waits in every backward until each parameter that it was built with has a gradient. This one never gets any, so
    the reduction of step 1 never ends: the forward of step 2 raises "Expected to have finished reduction in the prior
    iteration before starting a new one" on rank 0 and rank 1 (measured on gloo, torch 2.13). With one process there is
    no error. With `find_unused_parameters=True` there is no error, and every step pays for the search.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.pooler = nn.Linear(4, 4)  # <- DDP624

        def forward(self, x):
            return self.fc(x)


    dist.init_process_group("gloo")
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x)


    dist.init_process_group("gloo")
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Names that any file of the project reads, also as a string, unless under a switch that is off; classes with a base
    that the project does not have (it may use the layer), that iterate over their children, or that set
    `requires_grad`; modules that a DDP call wraps with `find_unused_parameters` or `static_graph`, or that none in the
    project is known to wrap; with accelerate also projects that use `DistributedDataParallelKwargs`, and files that
    configure DeepSpeed or FSDP.

    ## How to confirm

    `ddp-lint verify train.py`: the error in step 2, or a parameter without a gradient.

    ## Fix safety

    No automatic fix: checkpoints may contain the layer.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(Trait.CONSTRUCTS, file=("torch",), tests=False)
    oracles = ("exception", "nograd")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        project, owner = self.module.project, self.module.class_of(node)
        if node.name.value != "__init__" or project is None or owner is None:
            return
        if TensorFile.of(self.module).owner(node) is None:
            return
        # Whether a name is read takes a search through the project: tested last.
        name_of_class = self.module.name_of(owner)
        if (
            project.contents.holding(_TOLD_LATER)
            or name_of_class not in (wrapped_classes(project) | fitted_classes(project)) - searched_classes(project)
            or not _is_whole(project, name_of_class)
        ):
            return
        for test, layers in dropped_layers(self.module, owner):
            self._report_dropped(test, layers)
        for line, name in self._layers(node):
            switch = self._switch_off(node, owner, name) if self._is_read(project, name) else ""
            if switch or not self._is_read(project, name):
                self._report(line, name, switch)

    def _report(self, line: cst.CSTNode, name: str, switch: str) -> None:
        said = f'no forward uses `self.{name}`: under DDP step 2 raises "Expected to have finished reduction"'
        if switch:
            said = f"`self.{name}` is used only if `self.{switch}`, which is off: under DDP step 2 raises"
        self.report(
            line,
            f"{said} on every rank",
            help=f"make it only if `{switch.removeprefix(_SAVED)}` is on"
            if switch
            else "delete it; or, if a later step uses it, pass find_unused_parameters=True",
        )

    def _report_dropped(self, test: cst.BaseExpression, layers: str) -> None:
        self.report(
            test,
            f"a layer of `{layers}` that is left out gets no gradient: under DDP the next forward raises",
            help="pass find_unused_parameters=True to DDP, or run the layer and multiply what it adds by 0",
        )

    # ---- what a switch keeps from being used

    def _switch_off(self, constructor: cst.FunctionDef, owner: cst.ClassDef, name: str) -> str:
        """The attribute, a parameter of the constructor, that decides whether a layer is used at all, if everything
        that makes an object of the class in the project leaves it off; '' otherwise."""
        reads = self._reads_outside(constructor, owner).get(f"self.{name}", ())
        switches = [{*self._switches(read)} for read in reads]
        for switch in sorted(set.intersection(*switches), key=lambda each: each.attribute) if switches else ():
            if self._is_off(constructor, owner, switch) and not self._is_asked_for(owner, name):
                return switch.attribute
        return ""

    def _reads_outside(self, constructor: cst.FunctionDef, owner: cst.ClassDef) -> dict[str, list[cst.Attribute]]:
        """The attributes in the methods of a class but its constructor, by name: asked for each of its layers."""
        if constructor not in self._reads:
            found = self._reads[constructor] = collections.defaultdict(list)
            methods = (m for m in owner.body.body if isinstance(m, cst.FunctionDef) and m is not constructor)
            for node in (node for method in methods for node in descendants(method.body)):
                if isinstance(node, cst.Attribute):
                    found[dotted(node)].append(node)
        return self._reads[constructor]

    @functools.cached_property
    def _reads(self) -> dict[cst.FunctionDef, dict[str, list[cst.Attribute]]]:
        return {}

    def _switches(self, read: cst.CSTNode) -> Iterator[_Switch]:
        """The attributes of the module under which alone a line runs: ``if self.aux:``, ``if self.weight > 0:``."""
        for test in holding(self.module, read):
            for part in conjuncts(test):
                asked, off = self._asked(part)
                name = dotted(asked).removeprefix("self.")
                if dotted(asked).startswith("self.") and "." not in name.removeprefix(_SAVED):
                    yield _Switch(name, off)

    def _asked(self, test: cst.BaseExpression) -> tuple[cst.BaseExpression, frozenset[str]]:
        """What a test asks for, and the values with which it does not hold."""
        if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
            return test, _OFF
        how = self.module.code(test.comparisons[0])
        if _ABOVE.fullmatch(how):
            return test.left, _NOT_ABOVE
        return test.left, frozenset({"None"} if _GIVEN.fullmatch(how) else ())

    def _is_off(self, constructor: cst.FunctionDef, owner: cst.ClassDef, switch: _Switch) -> bool:
        """Whether an attribute is the constructor's parameter of that name, which is off by default and never given."""
        parameter = next((p for p in parameters_of(constructor) if p.name.value == switch.name), None)
        if parameter is None or not self._is_kept(constructor, owner, switch):
            return False
        if parameter.default is None or self.module.code(parameter.default) not in switch.off:
            return False
        sites = constructions(self.module, owner)
        return bool(sites) and all(self._leaves_off(site, constructor, switch) for site in sites)

    def _is_kept(self, constructor: cst.FunctionDef, owner: cst.ClassDef, switch: _Switch) -> bool:
        """Whether the object keeps the parameter as it is, itself or among the settings that Lightning saves."""
        values = [
            (node.value, target.target)
            for node in descendants(owner)
            if isinstance(node, cst.Assign)
            for target in node.targets
            if dotted(target.target) == f"self.{switch.attribute}"
        ]
        if switch.attribute != switch.name:
            saves = (call for call in calls_in(constructor) if dotted(call.func) == f"self.{_SAVES}")
            return not values and any(not call.args for call in saves)
        return len(values) == 1 and dotted(values[0][0]) == switch.name

    def _leaves_off(self, site: CallSite, constructor: cst.FunctionDef, switch: _Switch) -> bool:
        given = site.given(constructor, switch.name)
        hidden = any(k.arg is None for k in site.node.keywords) or any(
            isinstance(a, ast.Starred) for a in site.node.args
        )
        return not hidden and (given is None or (isinstance(given, ast.Constant) and repr(given.value) in switch.off))

    def _is_asked_for(self, owner: cst.ClassDef, name: str) -> bool:
        """Whether another class may use the layer, or set its switch: one that inherits from this one, or has it."""
        project = self.module.project
        texts = (
            (project.contents.text(path) or "" for path in project.contents.holding(owner.name.value))
            if project is not None
            else ()
        )
        inherits = re.compile(rf"^class \w+\([^)]*\b{re.escape(owner.name.value)}\b", re.MULTILINE)
        other = re.compile(rf"(?<!\bself)\.{re.escape(name)}\b")
        return any(inherits.search(text) or other.search(text) for text in texts)

    def _layers(self, function: cst.FunctionDef) -> Iterator[tuple[cst.CSTNode, str]]:
        """The assignments of layers with parameters, and of parameters, that the constructor always makes."""
        for line in function.body.body:
            for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
                    name = of_self(dotted(statement.targets[0].target))
                    if name and isinstance(statement.value, cst.Call) and self._has_parameters(statement.value):
                        yield statement, name

    def _has_parameters(self, call: cst.Call) -> bool:
        maker = self.module.qualified(call.func)
        if maker in PARAMETER_MAKERS:
            return not any(a.keyword is not None and a.keyword.value == "requires_grad" for a in call.args)
        if layer_kind(maker) in names("saves_input", "parametric"):
            return not any(a.keyword is not None and a.keyword.value in _WITHOUT for a in call.args)
        inner = [n for n in descendants(call) if isinstance(n, cst.Call)]
        return layer_kind(maker) in ("Sequential", "ModuleList") and any(self._has_parameters(n) for n in inner)

    def _is_read(self, project: Project, name: str) -> bool:
        """Whether the name occurs anywhere in the project but in assignments to it."""
        if name in self._read_here:  # as most are: known for all of them at once
            return True
        use = re.compile(rf"\b{re.escape(name)}\b{_NOT_ASSIGNED}")
        texts = (project.contents.text(path) or "" for path in project.contents.holding(name))
        return any(_occurs(use, text) for text in texts)

    @functools.cached_property
    def _read_here(self) -> frozenset[str]:
        lines = self.module.file.code.split("\n")
        return frozenset(word for line in lines for word in _READ_WORD.findall(line))


_NOT_ASSIGNED = r"(?!\s*(?::[^=\n]+)?=[^=])"
_READ_WORD = re.compile(rf"\b\w+\b{_NOT_ASSIGNED}")
#: Arguments that leave a layer of normalisation without parameters.
_WITHOUT = frozenset({"affine", "elementwise_affine"})


def _occurs(use: re.Pattern[str], text: str) -> bool:
    for match in use.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if "#" not in line:
            return True
    return False


def _is_whole(project: Project, name: str) -> bool:
    """Whether a class and all that it inherits from are in the project, down to `torch.nn.Module`, and none of it
    uses parameters but by their names."""
    for ancestor in project.classes.lineage(name):
        facts = project.classes.find(ancestor)
        if facts is None:
            if ancestor not in ("torch.nn.Module", "object", _LIGHTNING):
                return False
            continue
        if "" in facts.bases or _BY_OTHER_NAMES.search(_text_of(facts)):
            return False
    steps = ("forward", "training_step") if project.classes.subclass_of(name, _LIGHTNING) else ("forward",)
    return any(project.classes.method(name, step) is not None for step in steps)


def _text_of(cls: ClassFacts) -> str:
    return "\n".join(cls.module.file.lines[cls.node.lineno - 1 : cls.node.end_lineno])

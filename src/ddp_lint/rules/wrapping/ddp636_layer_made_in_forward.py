from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from ddp_lint.findings import Confidence
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.uses import constructions
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.wrapped_classes import wrapped_classes, wraps_with
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.syntax import argument_at, calls_below, defaults, function_at, is_none, is_text, positional, walk
from ddp_lint.tensors.classes import ModuleClass, ModuleClasses

#: How a forward asks for a layer that is not there yet.
_ASKS = re.compile(r"\bif\s[^\n]*(self\.\w+ is None|not hasattr\(self\b|not self\.\w+\s*:)")
#: By what the optimizer is told of later parameters.
_TOLD_LATER = "add_param_group"
#: Files that give an argument of a name; where more do, one of them may mean the class.
_FILES = 200
_SITES = 50


class _Late(NamedTuple):
    """A layer that a forward makes, the test that it is made under, and where."""

    name: str
    test: ast.expr
    node: ast.Assign


class LayerMadeInForward(Rule):
    """A layer is made in the first forward, when DDP has registered the parameters and the optimizer has got them.

    ## What it does

    Finds `self.head = nn.Linear(...)` and the like in a method that the training forward of a module runs, under `if
    self.head is None:` or `if not hasattr(self, "head"):`, where no constructor or other method makes the layer, in
    classes whose objects, or which as parts of others, the project wraps in DDP.

    ## Why it breaks

    DDP broadcasts and hooks the parameters that the module has when it is wrapped, and an optimizer updates those that
    it was given. The layer is in neither: rank 0 and rank 1 keep different random weights for it, its gradients are
    not averaged, and no step ever changes it. Everything before it trains against a layer that differs from rank to
    rank. Nothing raises, and a strict load of the checkpoint fails later on. Measured on two ranks with gloo (torch
    2.13): the weights of the layer differ by 0.5 between the ranks, and are the same after ten steps as after one.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(dist.get_rank())


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(8, 4)
            self.head = None

        def forward(self, x):
            x = self.body(x)
            if self.head is None:
                self.head = torch.nn.Linear(x.size(-1), 1).to(x.device)  # <- DDP636
            return self.head(x)


    model = DDP(Net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 8, device=device)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(dist.get_rank())


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(8, 4)
            self.head = torch.nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.body(x))


    model = DDP(Net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 8, device=device)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is silent

    A layer without parameters; a constructor that makes the layer for some arguments, if the project gives one of
    these by its name or gives what is not seen; another method that makes it; a forward that a program runs before the
    wrap; `add_param_group` anywhere in the project; classes that the project does not wrap itself.

    ## How to confirm

    `ddp-lint verify train.py`: the parameters of the layer differ between the ranks.

    ## Fix safety

    No automatic fix: make the layer in the constructor, or run one forward before the wrap and the optimizer.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design
    - https://github.com/prism-science/WaterFlow/pull/78
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(file=("torch",), tests=False)
    oracles = ("parameter", "gradient", "nograd")

    def finish(self) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or not self.module.file.shows(_ASKS):
            return
        classes = ModuleClasses(facts, project)
        for name, node in facts.definitions.items():
            cls = classes.named(name) if isinstance(node, ast.ClassDef) else None
            late = list(_made_late(cls, classes, facts)) if cls is not None else []
            if cls is None or not late or f"{facts.name}.{name}" not in wrapped_classes(project):
                continue
            if project.contents.holding(_TOLD_LATER) or _runs_before_wrap(project, f"{facts.name}.{name}"):
                continue
            for each in late:
                if _is_missing(project, cls, each, f"{facts.name}.{name}"):
                    self._report(facts, each)

    def _report(self, facts: ModuleFacts, late: _Late) -> None:
        self.report(
            facts.file.span_of(late.node),
            f"`self.{late.name}` is made in the first forward: DDP does not reduce it, and the optimizer does not "
            "have it",
            labels=[(facts.file.span_of(late.test), "holds in the first forward")],
            notes=["rank 0 and rank 1 keep different random weights"],
            help="make it in the constructor, or run one forward before the wrap",
        )


def _made_late(cls: ModuleClass, classes: ModuleClasses, facts: ModuleFacts) -> Iterator[_Late]:
    """The layers with parameters that a training forward of a class makes if they are not there yet."""
    for name, reached in cls.forward_methods.items():
        owner, method = cls.methods[name]
        if owner is not cls or not reached.gradient or name == "__init__":
            continue
        for branch in walk(method):
            lacked = _lacked(branch.test) if isinstance(branch, ast.If) else ""
            if not isinstance(branch, ast.If) or not lacked:
                continue
            for node in (node for statement in branch.body for node in walk(statement)):
                if not isinstance(node, ast.Assign) or of_self(dotted_ast(node.targets[0])) != lacked:
                    continue
                if isinstance(node.value, ast.Call) and classes.makes_parameters(node.value, facts):
                    yield _Late(lacked, branch.test, node)


def _lacked(test: ast.expr) -> str:
    """The attribute of the object that a test says it does not have yet."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return (
            of_self(dotted_ast(test.left)) if isinstance(test.ops[0], ast.Is) and is_none(test.comparators[0]) else ""
        )
    if not isinstance(test, ast.UnaryOp) or not isinstance(test.op, ast.Not):
        return ""
    asked = test.operand
    if isinstance(asked, ast.Call) and last_part(asked.func) == "hasattr" and len(asked.args) == 2:
        name = asked.args[1]
        of_object = dotted_ast(asked.args[0]) == "self"
        return str(name.value) if of_object and isinstance(name, ast.Constant) and is_text(name) else ""
    return of_self(dotted_ast(asked))


def _is_missing(project: Project, cls: ModuleClass, late: _Late, whole: str) -> bool:
    """Whether the layer surely is not there before the forward: nothing else gives the object one."""
    constructors = (node for each in cls.lineage for node in each.node.body if isinstance(node, ast.FunctionDef))
    methods = {method for _, method in cls.methods.values()}
    for method in {*methods, *(node for node in constructors if node.name == "__init__")}:
        for node in (node for node in walk(method) if node is not late.node):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not any(of_self(dotted_ast(target)) == late.name for target in targets):
                continue
            if method.name != "__init__" or not _is_left_out(project, method, node.value, whole):
                return False
    texts = (project.contents.text(path) or "" for path in project.contents.holding(f".{late.name} ="))
    set_by_others = re.compile(rf"(?<!\bself)\.{re.escape(late.name)} = ")
    return not any(set_by_others.search(text) for text in texts)


def _is_left_out(project: Project, constructor: ast.FunctionDef, value: ast.expr, whole: str) -> bool:
    """Whether what a constructor gives an attribute is None for all objects that the project makes: a written None, or
    the other arm of a test of a parameter that is None unless it is given, and that nothing gives."""
    if is_none(value):
        return True
    if not isinstance(value, ast.IfExp) or not is_none(value.orelse):
        return False
    asked = value.test
    if isinstance(asked, ast.Compare) and isinstance(asked.ops[0], ast.IsNot) and is_none(asked.comparators[0]):
        asked = asked.left
    name = dotted_ast(asked)
    default = {each.arg: value for each, value in defaults(constructor.args)}.get(name)
    return default is not None and is_none(default) and not _is_given(project, constructor, name, whole)


def _is_given(project: Project, constructor: ast.FunctionDef, name: str, whole: str) -> bool:
    """Whether a call in the project may give a constructor a parameter."""
    paths = dict.fromkeys((*project.contents.holding(f"{name}="), *project.contents.holding(f"{name} =")))
    if len(paths) > _FILES:
        return True
    for facts in map(project.modules.facts_of, paths):
        for call in calls_below(facts.tree) if facts is not None and not facts.source.is_test else ():
            if any(each.arg == name and not is_none(each.value) for each in call.keywords):
                return True
    place = [each.arg for each in positional(constructor)].index(name) - 1
    sites = constructions(project, whole, _SITES)
    return not sites or any(
        argument_at(call, place, name) is not None or _hides(facts, call) for facts, _, call in sites
    )


def _hides(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call hands on arguments that are not seen; those that the function around got by their names are
    looked for everywhere."""
    around = function_at(facts.tree, call.lineno)
    own = around.args.kwarg.arg if around is not None and around.args.kwarg is not None else ""
    unseen = (each.value for each in call.keywords if each.arg is None)
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    return starred or any(not own or dotted_ast(value) != own for value in unseen)


def _runs_before_wrap(project: Project, whole: str) -> bool:
    """Whether a program runs a model before it wraps it, which makes what the forward makes."""
    for facts, wrap in wraps_with(project, whole):
        name = dotted_ast(wrap.args[0]) if wrap.args else ""
        around = function_at(facts.tree, wrap.lineno) or facts.tree
        before = (call for call in calls_below(around) if name and call.lineno < wrap.lineno)
        if any(dotted_ast(call.func) in (name, f"{name}.forward") for call in before):
            return True
    return False

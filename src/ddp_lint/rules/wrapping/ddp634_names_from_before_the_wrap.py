from __future__ import annotations

import ast
import enum
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.knowledge import canonical
from ddp_lint.project.facts import ClassFacts, assigned_in
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, parameters, statements, text_of, walk
from ddp_lint.view.wraps import Wrap, assigned_name

#: apex's wrapper of that name keeps the same prefix, but is not measured.
_DDP = "torch.nn.parallel.DistributedDataParallel"
#: Methods that give the tensors of a model with their names.
_NAMED = ("named_parameters", "named_buffers")
#: What a class has that knows of the prefix, or takes the model out of its wrapper.
_HANDLED = re.compile(r"module\b|unwrap|prefix|replace\(|strip|split\(|Parallel")
_LEAVES = (ast.Continue, ast.Raise, ast.Return)


class _Outcome(enum.Enum):
    """What a loop over the names of the wrapper does where none is known."""

    SKIPPED = "no tensor matches, and nothing is updated"
    RAISED = "the first one raises on every rank"


class NamesFromBeforeTheWrap(Rule):
    """An object that keeps tensors by the names of the plain model is given the DDP wrapper, whose names differ.

    ## What it does

    Finds an object that is made from a model before `model = DDP(model)` and keeps a dictionary of its tensors by
    their names (`{name: p.clone() for name, p in model.named_parameters()}`: the shadow of a moving average, the
    anchor of a penalty), if one of its methods then gets the wrapper and looks its names up in this dictionary.

    ## Why it breaks

    DDP keeps the model as its attribute `module`, so each of its names begins with `module.`. A method that skips what
    it does not know (`if name in self.shadow`) skips every tensor, on rank 0 and on rank 1: the average stays what the
    model was before training, and that is what is evaluated and saved, without an error. One that looks the names up
    raises `KeyError: 'module.weight'`. In one process, where nothing is wrapped, the same code works. Measured with two
    gloo ranks, torch 2.13: the shadow is equal to the first weights after all steps.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    class Average:
        def __init__(self, model, decay=0.9):
            self.decay = decay
            self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

        @torch.no_grad()
        def update(self, model):
            for name, p in model.named_parameters():
                self.shadow[name].lerp_(p, 1 - self.decay)


    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 4)
    average = Average(model)
    model = DDP(model)
    model(torch.randn(8, 4)).square().mean().backward()
    average.update(model)  # <- DDP634
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    class Average:
        def __init__(self, model, decay=0.9):
            self.decay = decay
            self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

        @torch.no_grad()
        def update(self, model):
            for name, p in model.named_parameters():
                self.shadow[name].lerp_(p, 1 - self.decay)


    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 4)
    average = Average(model)
    model = DDP(model)
    model(torch.randn(8, 4)).square().mean().backward()
    average.update(model.module)
    dist.destroy_process_group()
    ```

    ## When it is silent

    Objects that are made from the wrapper as well, or get the inner module; a class that takes the model out of its
    wrapper or the prefix off its names, or that enters names which it does not know; FSDP; names that a class of
    another package keeps.

    ## How to confirm

    `ddp-lint verify train.py`: the method raises on every rank. Where it skips what it does not know, compare what it
    keeps with the model after some steps.

    ## Fix safety

    No automatic fix: checkpoints may have the names of either side.

    ## References

    - https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("DistributedDataParallel", file=("DistributedDataParallel",), tests=False)
    of_several = True
    oracles = ("exception",)

    def visit_Call(self, node: cst.Call) -> None:
        receiver = node.func.value if isinstance(node.func, cst.Attribute) else None
        name = dotted(receiver) if receiver is not None else ""
        if not name or not node.args or name == "self":
            return
        given = [arg for arg in node.args if arg.star == "" and dotted(arg.value)]
        for arg in given:
            wrap = self.module.wraps.of(dotted(arg.value), node)
            if wrap is not None and self._is_of_ddp(wrap) and wrap.outer == dotted(arg.value):
                self._look_at(node, receiver, arg, wrap)

    def _is_of_ddp(self, wrap: Wrap) -> bool:
        return not wrap.tested and canonical(self.module.qualified(wrap.call.func)) == _DDP

    def _look_at(self, call: cst.Call, receiver: cst.BaseExpression | None, arg: cst.Arg, wrap: Wrap) -> None:
        made = self.module.assignments(receiver) if receiver is not None else ()
        maker = made[0] if len(made) == 1 else None
        if not isinstance(maker, cst.Call) or not self.module.wraps.before(maker, wrap):
            return
        of_class = self._class_of(maker)
        before = next((a for a in maker.args if dotted(a.value) == wrap.inner and wrap.inner), None)
        if of_class is None or before is None or assigned_name(self.module, maker) != dotted(receiver):
            return
        kept = self._keeps(of_class, maker, before)
        found = self._looked_up(of_class, call, arg, kept) if kept else None
        if found is None:
            return
        outcome, place = found
        self.report(
            call,
            f"the names of a DDP model begin with `module.`, those kept here do not: {outcome.value}",
            labels=[
                (maker, "its names are kept here"),
                (wrap.place, "wrapped here, behind that"),
                (place, "the names of the wrapper are looked up here"),
            ],
            help=f"give it the inner model: `{dotted(arg.value)}.module`",
        )

    def _class_of(self, maker: cst.Call) -> ClassFacts | None:
        project = self.module.project
        return project.classes.find(self.module.callee(maker)) if project is not None else None

    def _keeps(self, of_class: ClassFacts, maker: cst.Call, arg: cst.Arg) -> frozenset[str]:
        """The attributes in which the constructor keeps tensors of what it gets for an argument, by their names."""
        found = self._method(of_class, "__init__")
        parameter = _parameter(found[1], maker, arg) if found is not None else ""
        if found is None or not parameter or _HANDLED.search(_code_of(found[0])):
            return frozenset()
        return frozenset(_kept_by_name(found[1], parameter))

    def _looked_up(
        self, of_class: ClassFacts, call: cst.Call, arg: cst.Arg, kept: frozenset[str]
    ) -> tuple[_Outcome, Span] | None:
        """What a method does with the names of what it gets for an argument, where it looks them up."""
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        found = self._method(of_class, method)
        parameter = _parameter(found[1], call, arg) if found is not None else ""
        if found is None or not parameter or _HANDLED.search(_code_of(found[0])):
            return None
        for loop, name in _loops(found[1], parameter):
            outcome = _outcome(loop, name, kept)
            if outcome is not None:
                return outcome, found[0].module.file.span_of(loop.iter)
        return None

    def _method(self, of_class: ClassFacts, name: str) -> tuple[ClassFacts, FunctionNode] | None:
        project = self.module.project
        found = project.classes.method(of_class.name, name) if project is not None else None
        return found if found is not None and isinstance(found[1], FunctionNode) else None


def _code_of(of_class: ClassFacts) -> str:
    """The code of a class without its docstrings."""
    return text_of(of_class.node)


def _parameter(function: FunctionNode, call: cst.Call, arg: cst.Arg) -> str:
    """The parameter of a method that an argument is for, '' where it is given something else before it is read."""
    names = [each.arg for each in parameters(function)][1:]
    place = call.args.index(arg)
    if any(each.star for each in call.args[: place + 1]):
        return ""
    name = arg.keyword.value if arg.keyword is not None else names[place] if place < len(names) else ""
    return name if name in names and not assigned_in(function, name) else ""


def _loops(function: FunctionNode, parameter: str) -> Iterator[tuple[ast.For, str]]:
    """The loops of a function over the named tensors of a parameter, each with what it calls the name."""
    for node in statements(function):
        if isinstance(node, ast.For) and _is_named(node.iter, parameter) and isinstance(node.target, ast.Tuple):
            name = dotted_ast(node.target.elts[0])
            if name and len(node.target.elts) == 2:
                yield node, name


def _is_named(value: ast.expr, parameter: str) -> bool:
    """``model.named_parameters()`` or ``model.state_dict().items()`` of a parameter."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.args or value.keywords:
        return False
    of = value.func.value
    if value.func.attr == "items" and isinstance(of, ast.Call):
        return last_part(of.func) == "state_dict" and dotted_ast(of.func) == f"{parameter}.state_dict"
    return value.func.attr in _NAMED and dotted_ast(of) == parameter


def _kept_by_name(init: FunctionNode, parameter: str) -> Iterator[str]:
    """The attributes that get a dictionary of the named tensors of a parameter."""
    for node in statements(init):
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(value, ast.DictComp) and len(value.generators) == 1 and target is not None:
            made = value.generators[0]
            named = made.target.elts[0] if isinstance(made.target, ast.Tuple) else made.target
            if _is_named(made.iter, parameter) and dotted_ast(value.key) == dotted_ast(named) != "":
                yield dotted_ast(target)
    for loop, name in _loops(init, parameter):
        for node in statements(loop):
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if isinstance(target, ast.Subscript) and dotted_ast(target.slice) == name:
                yield dotted_ast(target.value)


def _outcome(loop: ast.For, name: str, kept: frozenset[str]) -> _Outcome | None:
    """What a loop does with names that are not among those kept; None where it does not look them up, or takes them."""
    asked = [node for node in walk(loop) if isinstance(node, ast.Compare) and _asks_for(node, name, kept)]
    if any(isinstance(node.ops[0], ast.NotIn) and not _leaves(loop, node) for node in asked):
        return None
    reads = [n for n in walk(loop) if isinstance(n, ast.Subscript) and _is_entry(n, name, kept)]
    if not any(isinstance(node.ctx, ast.Load) for node in reads) and not asked:
        return None
    if any(isinstance(node, (ast.Try, ast.FunctionDef)) for node in statements(loop)):
        return None
    asserted = any(isinstance(node, ast.Assert) for node in statements(loop))
    return _Outcome.SKIPPED if asked and not asserted else _Outcome.RAISED if reads else None


def _asks_for(test: ast.Compare, name: str, kept: frozenset[str]) -> bool:
    asks = len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.NotIn)) and dotted_ast(test.left) == name
    return asks and _is_kept(test.comparators[0], kept)


def _is_kept(value: ast.expr, kept: frozenset[str]) -> bool:
    """The dictionary, or its keys: ``self.shadow.keys()``."""
    keys = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "keys"
    return dotted_ast(value.func.value if keys else value) in kept  # type: ignore[attr-defined]


def _is_entry(node: ast.Subscript, name: str, kept: frozenset[str]) -> bool:
    return dotted_ast(node.slice) == name and dotted_ast(node.value) in kept


def _leaves(loop: ast.For, test: ast.Compare) -> bool:
    """Whether what a test is the condition of leaves the round: ``if name not in self.shadow: continue``."""
    tests = [node for node in statements(loop) if isinstance(node, ast.If) and node.test is test]
    return all(isinstance(node.body[-1], _LEAVES) for node in tests) and bool(tests)

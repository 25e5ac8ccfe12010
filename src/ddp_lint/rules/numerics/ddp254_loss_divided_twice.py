from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, opposed
from ddp_lint.source.imports import last_part
from ddp_lint.source.queries import is_false, literal_text
from ddp_lint.source.syntax import calls_below, text_of, walk
from ddp_lint.source.tree import called, subtree
from ddp_lint.view.accumulation import calls_of_round, guards, is_backward, loop_of
from ddp_lint.view.wraps import argument

_ENGINE = "deepspeed.DeepSpeedEngine"
_ACCELERATOR = "accelerate.Accelerator"
_LIGHTNING = "lightning.pytorch.LightningModule"
#: The arguments that tell accelerate how many micro-batches a step is for.
_ROUNDS = frozenset({"gradient_accumulation_steps", "num_steps"})
#: Words of names that hold the number of micro-batches of a step; `update_freq` is one, too.
_ACCUMULATES = frozenset({"accum", "accumulate", "accumulation"})
_UPDATES = frozenset({"update", "freq"})
#: Words of what has a `backward` and a `step`, and is no engine.
_NO_ENGINE = frozenset({"optim", "optimizer", "optimiser", "scaler", "loss", "criterion", "amp"})
_OPTIMIZES_BY_HAND = "automatic_optimization"


class _Division(NamedTuple):
    """Where a loss is divided, and what by."""

    node: cst.CSTNode
    divisor: cst.BaseExpression


class LossDividedTwice(Rule):
    """A loss is divided by the number of accumulated micro-batches, which the framework divides it by as well.

    ## What it does

    Finds a loss that is divided by the number of micro-batches of a step and then given to `engine.backward(loss)` of
    DeepSpeed, to `accelerator.backward(loss)` of an Accelerator that was told that number, or to a `backward` of the
    project that divides what it gets, or that is returned from `training_step` to Lightning.

    ## Why it breaks

    All of these divide the loss: DeepSpeed's `backward` by `gradient_accumulation_steps` of its configuration
    (`scale_wrt_gas=True`), accelerate's by that of the Accelerator, Lightning by `accumulate_grad_batches`. With 8
    micro-batches the gradients are an eighth of what they should be, on rank 0 and on rank 1, and nothing raises: SGD
    steps an eighth as far, a clipping at 1.0 clips at 8.0, weight decay weighs more. Adam hides most of it. Measured
    on two ranks with gloo (torch 2.13, accelerate 1.15), 4 micro-batches: the gradient is a quarter of that of the
    full batch; without the division it is equal.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    class Engine:
        def __init__(self, model, optimizer, accumulation_steps):
            self.model, self.optimizer, self.accumulation_steps, self.rounds = model, optimizer, accumulation_steps, 0

        def backward(self, loss):
            loss = loss / self.accumulation_steps
            loss.backward()

        def step(self):
            self.rounds += 1
            if self.rounds % self.accumulation_steps == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()


    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
    accumulation_steps = 4
    model = DDP(torch.nn.Linear(4, 1).to(device))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation_steps)
    for _ in range(8):
        loss = model(torch.randn(8, 4, device=device)).square().mean()
        loss = loss / accumulation_steps  # <- DDP254
        engine.backward(loss)
        engine.step()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    class Engine:
        def __init__(self, model, optimizer, accumulation_steps):
            self.model, self.optimizer, self.accumulation_steps, self.rounds = model, optimizer, accumulation_steps, 0

        def backward(self, loss):
            loss = loss / self.accumulation_steps
            loss.backward()

        def step(self):
            self.rounds += 1
            if self.rounds % self.accumulation_steps == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()


    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
    accumulation_steps = 4
    model = DDP(torch.nn.Linear(4, 1).to(device))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation_steps)
    for _ in range(8):
        loss = model(torch.randn(8, 4, device=device)).square().mean()
        engine.backward(loss)
        engine.step()
    dist.destroy_process_group()
    ```

    ## When it is silent

    An Accelerator that is not told the number of micro-batches, or 1; `scale_wrt_gas=False`; an engine that steps in
    some rounds only, which may be configured for one micro-batch a step; a division under a test that the backward is
    not under; `automatic_optimization = False`; a loss that is divided in another function.

    ## How to confirm

    `ddp-lint verify train.py`: the loss was divided by the same number twice before the backward.

    ## Fix safety

    No automatic fix: the gradients become larger, and the learning rate may have been tuned for the small ones.

    ## References

    - https://deepspeed.readthedocs.io/en/latest/training.html#backward-propagation
    - https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("backward", "training_step", file=("backward", "training_step"), tests=False)
    oracles = ("redivided",)

    def visit_Call(self, node: cst.Call) -> None:
        if not is_backward(node) or not isinstance(node.func, cst.Attribute) or not node.args:
            return
        division = self._division(node.args[0].value, node)
        if division is None:
            return
        receiver = dotted(node.func.value)
        if not receiver:
            return
        if self._divides_as_accelerator(node.func.value, division):
            self._report(node, division, "accelerate")
        elif self._divides_as_engine(node, node.func.value, division):
            self._report(node, division, "DeepSpeed")
        elif self._divides_itself(node.func):
            self._report(node, division, f"`{called(node)}`")

    def visit_Return(self, node: cst.Return) -> None:
        function, owner = self.module.function_of(node), self.module.class_of(node)
        if node.value is None or function is None or owner is None or function.name.value != "training_step":
            return
        division = self._division(_loss_in(node.value), node)
        if division is None or self.module.file.holds(_OPTIMIZES_BY_HAND):
            return
        if self._last_of(division.divisor) == "accumulate_grad_batches" and self.module.is_subclass(owner, _LIGHTNING):
            self._report(node, division, "Lightning")

    def _report(self, node: cst.CSTNode, division: _Division, framework: str) -> None:
        self.report(
            division.node,
            f"{framework} divides the loss by the number of micro-batches, and so does the program: gradients are "
            "n times too small",
            notes=["the same on all ranks, and nothing raises"],
            labels=[(node, f"{framework} divides here")],
            help="leave the division out",
        )

    # ---- the division

    def _division(self, loss: cst.BaseExpression, at: cst.CSTNode) -> _Division | None:
        """The division of a loss by a number of micro-batches right before a place, which all runs to the place take
        that have several."""
        found = self._divided(loss, at)
        if found is None or not self._counts_rounds(found.divisor) or opposed(self.module, found.node, at):
            return None
        shared, counted = dict(conditions(self.module, at)), self.module.code(found.divisor)
        own = (test for test, _ in conditions(self.module, found.node) if test not in shared)
        return found if all(counted in self.module.code(test) for test in own) else None

    def _divided(self, loss: cst.BaseExpression, at: cst.CSTNode) -> _Division | None:
        if isinstance(loss, cst.BinaryOperation):
            return _Division(loss, loss.right) if isinstance(loss.operator, cst.Divide) else None
        if not isinstance(loss, cst.Name):
            return None
        last = next(self.module.scopes.last_before(self.module.bindings(loss, at), at), None)
        if last is None or last.index:
            return None
        if isinstance(last.node, cst.AugAssign):
            divides = isinstance(last.node.operator, cst.DivideAssign)
            return _Division(last.node, last.node.value) if divides else None
        value = last.value if last.kind == "assign" else None
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Divide):
            return _Division(value, value.right)
        return None

    def _counts_rounds(self, divisor: cst.BaseExpression) -> bool:
        """Whether a divisor is the number of micro-batches of a step, by its name or by what the name was bound to."""
        given = self.module.assignments(divisor) if isinstance(divisor, cst.Name) else []
        return any(_is_number_of_rounds(self._last_of(each)) for each in (divisor, *given))

    def _last_of(self, node: cst.BaseExpression) -> str:
        """The last name of an expression: of ``engine.gradient_accumulation_steps()`` and ``config["accum"]``, too."""
        if isinstance(node, cst.Call):
            return called(node)
        if isinstance(node, cst.Subscript):
            index = node.slice[0].slice
            key = index.value if isinstance(index, cst.Index) else None
            return str(key.evaluated_value) if isinstance(key, cst.SimpleString) else ""
        return dotted(node).rpartition(".")[2]

    # ---- a backward of the project

    def _divides_itself(self, func: cst.Attribute) -> bool:
        """Whether a method of the project, called with a loss, divides it by a number of micro-batches in all runs."""
        project = self.module.project
        found = project.classes.method(self.module.constructed_by(func.value), func.attr.value) if project else None
        method = found[1] if found is not None else None
        if not isinstance(method, ast.FunctionDef) or len(method.args.args) < 2:
            return False
        given = method.args.args[1].arg
        values = (each.value for each in method.body if isinstance(each, (ast.Assign, ast.AugAssign, ast.Expr)))
        return any(_divides(value, given) for value in values) or any(
            isinstance(each, ast.AugAssign)
            and isinstance(each.op, ast.Div)
            and last_part(each.target) == given
            and _is_number_of_rounds(last_part(each.value))
            for each in method.body
        )

    # ---- accelerate

    def _divides_as_accelerator(self, receiver: cst.BaseExpression, division: _Division) -> bool:
        """Whether an object is an Accelerator that has the divisor for its number of micro-batches."""
        name = dotted(receiver)
        known = self.module.constructed_by(receiver)
        if known not in ("", _ACCELERATOR) or (not known and name.rpartition(".")[2].strip("_") != "accelerator"):
            return False
        if not known and not self.module.imports.packages & {"accelerate"}:
            return False
        if any(dotted(each) == f"{name}.gradient_accumulation_steps" for each in self._values_of(division.divisor)):
            return True
        wanted, given = self.module.code(division.divisor).removeprefix("self."), list(self._given_rounds())
        return bool(given) and all(text_of(each).removeprefix("self.") == wanted for each in given)

    def _values_of(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        return [node, *(self.module.assignments(node) if isinstance(node, cst.Name) else ())]

    def _given_rounds(self) -> Iterator[ast.expr]:
        """What the Accelerators and their plugins in the file get as the number of micro-batches."""
        facts = self.module.facts
        for call in calls_below(facts.tree) if facts is not None else ():
            if last_part(call.func) in ("Accelerator", "GradientAccumulationPlugin"):
                yield from (each.value for each in call.keywords if each.arg in _ROUNDS)

    # ---- DeepSpeed

    def _divides_as_engine(self, node: cst.Call, receiver: cst.BaseExpression, division: _Division) -> bool:
        """Whether an object is an engine of DeepSpeed, which counts the rounds itself."""
        if is_false(argument(node, 2, "scale_wrt_gas")):
            return False
        name = dotted(receiver)
        asked = any(_is_asked(each, name) for each in self._values_of(division.divisor))
        if asked and self._shows_deepspeed():
            return True
        steps = [
            call
            for call in calls_of_round(self.module, loop_of(self.module, node))
            if dotted(call.func) == f"{name}.step" and not opposed(self.module, call, node)
        ]
        around = set(guards(self.module, node))
        if not any(around.issuperset(guards(self.module, step)) for step in steps):
            return False
        return self._is_engine(receiver) or self._is_used_as_engine(node, name)

    def _is_engine(self, receiver: cst.BaseExpression) -> bool:
        values = (each.value for each in self.module.bindings(receiver) if each.index == (0,))
        made = (each for each in values if isinstance(each, cst.Call))
        if any(self.module.qualified(each.func) == "deepspeed.initialize" for each in made):
            return True
        return self.module.constructed_by(receiver) == _ENGINE

    def _is_used_as_engine(self, node: cst.Call, name: str) -> bool:
        """Whether an object of no known class has a forward, a `backward` of the loss and a `step`, in a project that
        makes engines: no optimizer has the first."""
        words = words_of(name.rpartition(".")[2])
        if words & _NO_ENGINE or len(node.args) != 1 or not isinstance(node.func, cst.Attribute):
            return False
        if self.module.constructed_by(node.func.value) or not self._shows_deepspeed():
            return False
        scope = self.module.scope_of(node)
        calls = (each for each in subtree(scope) if isinstance(each, cst.Call) and each is not node)
        return any(
            dotted(each.func) == name or any(dotted(argument.value) == name for argument in each.args) for each in calls
        )

    def _shows_deepspeed(self) -> bool:
        project = self.module.project
        return project is not None and bool(project.contents.holding("deepspeed.initialize"))


def _is_number_of_rounds(name: str) -> bool:
    words = words_of(name)
    return bool(words & _ACCUMULATES) or words == _UPDATES


def _divides(value: ast.expr, loss: str) -> bool:
    """Whether an expression holds a loss divided by a number of micro-batches."""
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Div)
        and last_part(part.left) == loss
        and _is_number_of_rounds(last_part(part.right))
        for part in walk(value)
    )


def _is_asked(node: cst.BaseExpression, engine: str) -> bool:
    """``engine.gradient_accumulation_steps()``"""
    return isinstance(node, cst.Call) and dotted(node.func) == f"{engine}.gradient_accumulation_steps"


def _loss_in(value: cst.BaseExpression) -> cst.BaseExpression:
    """The loss in what a training step returns: ``{"loss": loss}``."""
    if isinstance(value, cst.Dict):
        keyed = (each for each in value.elements if isinstance(each, cst.DictElement))
        return next((each.value for each in keyed if literal_text(each.key) == "loss"), value)
    return value

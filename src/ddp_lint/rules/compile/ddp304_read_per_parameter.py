from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.callers import calls_in_file
from ddp_lint.launch.uncalled import is_in_no_step
from ddp_lint.project.parts import kept_by_node
from ddp_lint.rules.base import Rule
from ddp_lint.rules.compile.host import CONVERSIONS, read_by
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import holding, raises
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import calls_below, walk
from ddp_lint.source.tree import called, descendants, method_of, subtree
from ddp_lint.tensors import Kind, TensorFile
from ddp_lint.tensors.contexts import SELDOM, evaluation_only, logging_only, once_in
from ddp_lint.tensors.values import Value
from ddp_lint.view.accumulation import loop_of

#: A test that holds in an optimizer's first step.
_FIRST = re.compile(r"""^["']\w+["'] not in \w+|^len\(\w+\) == 0$|^not state$""")
#: Hooks that run once in an epoch, or in a training.
_OF_EPOCH = re.compile(r"on_(?!step|batch)\w*(epoch|fit|train)_(start|end|begin)")

#: What a loop over steps counts, and what counts the parts of one step, or all steps of an epoch.
_STEPS = frozenset({"step", "steps", "iter", "iters", "iteration", "batch", "itr"})
_OTHERS = frozenset({"micro", "accum", "accumulation", "sub", "inner", "epoch", "epochs", "size"})
#: How many first steps are few.
_FEW = 10
_MANY_READS = "stack the values and read them once after the loop, or keep them as tensors (torch.where)"
_ONE_READ = "keep the value as a tensor: torch.where, torch.clamp and arithmetic take one"


class ReadPerParameter(Rule):
    """An optimizer step or a loop over gradients reads tensors on the host.

    ## What it does

    Finds `.item()`, `float(t)` and the like in `step` of an optimizer class, and on gradients or parameters inside a
    loop over them, also when the loop calls a helper of the same class or file (`if self.has_inf(p.grad)`).

    ## Why it breaks

    Each read waits until the GPU has finished everything before it. In a loop over parameters that is one wait for
    each of them, in every step, on every rank, and the GPU idles in between; the step cannot be captured in a CUDA
    graph. The numbers are correct.

    ## Example

    ```python
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


    def gradient_norm():
        total = 0.0
        for p in net.parameters():
            total += p.grad.norm().item() ** 2  # <- DDP304
        return total**0.5


    net(torch.randn(4, 8)).square().mean().backward()
    gradient_norm()
    optimizer.step()
    ```

    ## Use instead

    ```python
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


    def gradient_norm():
        return torch.nn.utils.get_total_norm([p.grad for p in net.parameters()])


    net(torch.randn(4, 8)).square().mean().backward()
    gradient_norm()
    optimizer.step()
    ```

    ## When it is silent

    One read after the loop; step counters and hyperparameters of an optimizer (`state["step"].item()`), which are on
    the host; the first step, which creates the state (`if "norm" not in state`), and branches that few steps
    take (`step % 500 == 0`); one weight's gradient in a loop over steps; the gradients of inputs; a script that looks
    at the gradients of one batch, without an optimizer; what a test has shown to be on the host (the other arm of `if
    p.grad.is_cuda`); a branch that ends with an error; functions and branches for logging, debugging and evaluation.
    Only with `--preview`: functions that nothing in the project calls, and those that it calls in few steps; a read in
    a loop over epochs, beside the loop that makes the steps; notebooks that step no optimizer.

    ## How to confirm

    `ddp-lint verify train.py` on CUDA: `torch.cuda.set_sync_debug_mode` reports one wait for each parameter.

    ## Fix safety

    No automatic fix: gather the values in a tensor (`torch.stack`, `torch._foreach_norm`, `get_total_norm`) and read it
    once, or not at all (`torch.where`).

    ## References

    - https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    """

    confidence = Confidence.MEDIUM
    # waiting in a test costs nothing
    of_small_harm = True
    triggers = Triggers("item", "tolist", "float", "bool", file=("grad", "Optimizer"), tests=False)
    oracles = ("sync",)
    needs_cuda = True

    def visit_Call(self, node: cst.Call) -> None:
        read = _read(node)
        function = self.module.function_of(node)
        if read is None or function is None or self._is_host_value(read):
            return
        if isinstance(read, cst.Call) and _read(read) is not None:
            return  # ``float(norm.item())`` waits once
        if evaluation_only(self.module, node) or logging_only(self.module, node) or self._runs_seldom(node):
            return
        if self._fails(node) or self._checks_once(function):
            return
        why = self._why(node, read, function)
        if why:
            self.report(
                node,
                f"{self.module.quoted(node)} waits for the GPU {why}, in every step",
                help=_ONE_READ if self._steps(function) and not self._loops(node) else _MANY_READS,
                confidence=Confidence.LOW if self._is_in_no_step(node, function) else None,
            )

    def _why(self, node: cst.Call, read: cst.BaseExpression, function: cst.FunctionDef) -> str:
        often = self._how_often(node, read, function)
        return "" if often and self._value(read, function).on_host and not self._is_moved(read) else often

    def _how_often(self, node: cst.Call, read: cst.BaseExpression, function: cst.FunctionDef) -> str:
        loops = self._loops(node)
        mentions_gradient = any(_is_gradient_of_parameter(n) for n in subtree(read)) and (
            self._over_parameters(loops) or self._changes(read, loops)
        )
        converted = isinstance(node.func, cst.Name)
        if loops and (mentions_gradient or self._over_parameters(loops)):
            value = self._value(read, function)
            if mentions_gradient or (value.kind is Kind.TENSOR and value.learned):
                counts = not converted or value.tensorish or mentions_gradient
                return "for every parameter" if counts else ""
        if self._steps(function) and not converted and self._is_computed(read):
            return "in the optimizer's step"
        if self._gets_gradients(function):
            value = self._value(read, function)
            is_tensor = value.tensorish or not converted or _is_reduction(read)
            if is_tensor and (value.argument or value.inputs):
                return f"for every gradient that `{function.name.value}` is called with"
        return ""

    def _loops(self, node: cst.Call) -> list[cst.CSTNode]:
        return [a for a in self.module.ancestors(node) if isinstance(a, (cst.For, cst.CompFor, cst.ListComp))]

    def _value(self, read: cst.BaseExpression, function: cst.FunctionDef) -> Value:
        return TensorFile.of(self.module).flow(function).value(read)

    def _is_moved(self, read: cst.BaseExpression) -> bool:
        """Whether the value came to the host just for this: ``norm.cpu().item()`` waits at the copy."""
        name = read
        while isinstance(name, cst.Subscript):
            name = name.value
        sources = (read, *self.module.assignments(name))
        return any(isinstance(n, cst.Call) and called(n) in ("cpu", "to") for value in sources for n in subtree(value))

    def _fails(self, node: cst.Call) -> bool:
        """Whether the branch around looks for what to say in the error that it ends with: no step comes by again."""
        below: cst.CSTNode = node
        for up in self.module.ancestors(node):
            if isinstance(up, cst.FunctionDef):
                return False
            if isinstance(up, cst.If) and below is up.body and raises(up.body):
                return True
            below = up
        return False

    def _checks_once(self, function: cst.FunctionDef) -> bool:
        """Whether the function goes backward outside of a loop in a script that steps no optimizer: it looks at the
        gradients of one batch."""
        if not self.module.file.holds("__main__") or self.module.file.holds(".step("):
            return False
        return any(method_of(n) == "backward" and loop_of(self.module, n) is function for n in subtree(function))

    def _is_in_no_step(self, node: cst.Call, function: cst.FunctionDef) -> bool:
        """Whether nothing in the project calls the function, or code of this file alone, in a few steps, or a
        framework once in an epoch, or the function reads once in an epoch."""
        if self._is_beside_steps(node) or _OF_EPOCH.fullmatch(function.name.value):
            return True
        file = self.module.file
        if file.cells is not None and not any(map(file.holds, (".step(", ".fit(", ".train("))):
            return True  # a notebook without an optimizer looks at gradients
        calls = self._calls_here(function)
        if calls and all(map(self._runs_seldom, calls)):
            return True
        facts, project = self.module.facts, self.module.project
        return facts is not None and project is not None and is_in_no_step(project, facts, self.module.span(node).line)

    def _is_beside_steps(self, node: cst.Call) -> bool:
        """Whether a loop around has another loop, without the read, that makes the steps: it goes over epochs."""
        below: cst.CSTNode = node
        for up in self.module.ancestors(node):
            if isinstance(up, cst.FunctionDef):
                return False
            if isinstance(up, cst.IndentedBlock) and isinstance(self.module.parent(up), (cst.For, cst.While)):
                others = (each for each in up.body if each is not below and isinstance(each, (cst.For, cst.While)))
                if any(method_of(n) == "step" for each in others for n in descendants(each)):
                    return True
            below = up
        return False

    def _calls_here(self, function: cst.FunctionDef) -> Sequence[cst.Call]:
        """The calls of a function, where this file has all of them; also of one inside another function."""
        around = self.module.function_of(function)
        if around is None:
            return calls_in_file(self.module, function)
        named = [n for n in subtree(around) if isinstance(n, cst.Name) and n.value == function.name.value]
        calls = [up for n in named if isinstance(up := self.module.parent(n), cst.Call) and up.func is n]
        return calls if len(calls) == len(named) - 1 else ()

    def _runs_seldom(self, node: cst.Call) -> bool:
        """Whether a few steps alone read it, or the first one, to make a state: ``if "norm" not in state``."""
        tests = [*holding(self.module, node)]
        return any(_is_seldom(test) or _FIRST.search(self.module.code(test)) is not None for test in tests)

    def _changes(self, read: cst.BaseExpression, loops: Sequence[cst.CSTNode]) -> bool:
        """Whether a loop gives what is read another value each time. The gradient of one weight in the loop over the
        steps is one read in a step."""
        given = set[str]().union(*(_given_by(loop) for loop in loops))
        found, new = set[str](), _names(read)
        while new:
            found |= new
            bound = (b.value for name in new for b in self.module.bindings(name, read) if b.value is not None)
            new = set[str]().union(*map(_names, bound)) - found
        return not given.isdisjoint(found)

    def _over_parameters(self, loops: Sequence[cst.CSTNode]) -> bool:
        return any(isinstance(x, cst.For) and "parameters(" in self.module.code(x.iter) for x in loops)

    def _steps(self, function: cst.FunctionDef) -> bool:
        owner = self.module.class_of(function)
        is_step = function.name.value == "step" and owner is not None
        return is_step and owner is not None and self.module.is_subclass(owner, "torch.optim.Optimizer")

    def _is_computed(self, read: cst.BaseExpression) -> bool:
        """Whether the value comes out of a call: a norm, a reduction; not an entry of the state."""
        inner = read
        while isinstance(inner, (cst.Subscript, cst.Attribute)):
            inner = inner.value
        return isinstance(inner, cst.Call)

    def _is_host_value(self, read: cst.BaseExpression) -> bool:
        text = self.module.code(read)
        return any(word in text for word in ("step", "numel(", "shape", "size(", "len("))

    def _gets_gradients(self, function: cst.FunctionDef) -> bool:
        """Whether a loop of this file calls the function on one gradient after another."""
        facts = self.module.facts
        if facts is None or not self.module.file.holds("grad"):
            return False
        calls = _calls_in_loops(facts.tree).get(function.name.value, ())
        return any(_is_gradient(argument) for call in calls for argument in call.args)


def _read(node: cst.Call) -> cst.BaseExpression | None:
    value = read_by(node)
    if isinstance(node.func, cst.Attribute):
        return value
    return value if isinstance(value, cst.Call) and dotted(value.func) not in CONVERSIONS else None


def _given_by(loop: cst.CSTNode) -> set[str]:
    """The names that a loop gives a value for each round."""
    inner: cst.CSTNode | None = loop.for_in if isinstance(loop, cst.ListComp) else loop
    found = set[str]()
    while isinstance(inner, (cst.For, cst.CompFor)):
        found |= _names(inner.target)
        inner = inner.inner_for_in if isinstance(inner, cst.CompFor) else None
    return found


def _names(node: cst.CSTNode) -> set[str]:
    """The names in an expression, without those of attributes."""
    attributes = {n.attr for n in subtree(node) if isinstance(n, cst.Attribute)}
    return {n.value for n in subtree(node) if isinstance(n, cst.Name) and n not in attributes}


def _is_seldom(test: cst.BaseExpression) -> bool:
    """Whether a test lets only a few steps through: ``step % 500 == 0 or step < 3``, ``step == start_step``."""
    if isinstance(test, cst.BooleanOperation):
        parts = [_is_seldom(test.left), _is_seldom(test.right)]
        return all(parts) if isinstance(test.operator, cst.Or) else any(parts)
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1 or not _counts_steps(test.left):
        return False
    operator, limit = test.comparisons[0].operator, test.comparisons[0].comparator
    number = limit.evaluated_value if isinstance(limit, cst.Integer) else None
    if isinstance(operator, (cst.LessThan, cst.LessThanEqual)):
        return number is not None and number <= _FEW
    if not isinstance(operator, cst.Equal):
        return False
    if isinstance(test.left, cst.BinaryOperation):
        every = once_in(test, True)
        return isinstance(every, cst.Integer) and every.evaluated_value >= SELDOM
    return number is not None or "start" in words_of(dotted(limit))


def _counts_steps(node: cst.BaseExpression) -> bool:
    words = {word for name in _names(node) for word in words_of(name)}
    return not _STEPS.isdisjoint(words) and _OTHERS.isdisjoint(words)


def _is_gradient_of_parameter(node: cst.CSTNode) -> bool:
    """``p.grad``, not the gradient of an input, which is looked at to explain or to verify a model."""
    if not isinstance(node, cst.Attribute) or node.attr.value != "grad":
        return False
    return not words_of(dotted(node.value)) & {"input", "inputs"}


def _is_reduction(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in (
        "sum", "norm", "max", "min", "mean", "any", "all"
    )  # fmt: skip


@kept_by_node(8)
def _calls_in_loops(tree: ast.AST) -> dict[str, list[ast.Call]]:
    """By the last part of the name that is called."""
    found: dict[str, list[ast.Call]] = {}
    loops = (node for node in walk(tree) if isinstance(node, (ast.For, ast.ListComp, ast.GeneratorExp)))
    for call in dict.fromkeys(n for loop in loops for n in calls_below(loop)):
        found.setdefault(dotted_ast(call.func).rpartition(".")[2], []).append(call)
    return found


def _is_gradient(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in walk(node))

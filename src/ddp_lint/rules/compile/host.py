"""What the rules on graph breaks and synchronisations share: in which code a read of a tensor costs anything."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge.tensors import names
from ddp_lint.launch.callers import (
    call_sites,
    calls_in_file,
    constant_arguments,
)
from ddp_lint.launch.loader_workers import goes_to_datasets
from ddp_lint.launch.ranks import meets_no_ranks
from ddp_lint.launch.reached.walk import is_unreached_in_package
from ddp_lint.launch.single_process import one_process, transforms_samples
from ddp_lint.rules.base import Rule
from ddp_lint.source.control_flow import asks_for_none, conditions, raises, stops
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, parameters
from ddp_lint.source.tree import descendants, names_in, parameters_of
from ddp_lint.tensors import Reached, TensorFile, Value
from ddp_lint.tensors.compiled import Compiled, compiled_functions
from ddp_lint.tensors.contexts import (
    comes_untrained,
    evaluation_only,
    first_forward_only,
    inside_graphs,
    logging_only,
    outside_of_graphs,
    runs_seldom,
    without_gradient,
)
from ddp_lint.tensors.evaluated import called_for_evaluation, made_for_evaluation
from ddp_lint.tensors.on_host import host_arguments, is_on_host

#: Functions that are called one by the other, which are gone through.
_CALLERS = 3
_READS = ("item", "tolist")
#: Builtins that turn a tensor into a Python number.
CONVERSIONS = ("float", "int", "bool")
#: Functions of tensors whose result is a Python truth value.
COMPARISONS = frozenset({"torch.allclose", "torch.is_nonzero"})


def read_by(call: cst.Call) -> cst.BaseExpression | None:
    """The tensor that a call reads on the host: `x` of ``x.item()``, ``x.tolist()`` and ``float(x)``."""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in _READS and not call.args:
        return call.func.value
    is_conversion = isinstance(call.func, cst.Name) and call.func.value in CONVERSIONS and len(call.args) == 1
    return call.args[0].value if is_conversion else None


def truth_values(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The parts of a condition that are taken for truth values by themselves: `a` and `b` of ``not a or b``."""
    stack = [test]
    while stack:
        part = stack.pop()
        if isinstance(part, cst.BooleanOperation):
            stack += (part.right, part.left)
        elif isinstance(part, cst.UnaryOperation) and isinstance(part.operator, cst.Not):
            stack.append(part.expression)
        else:
            yield part


def _truth(test: cst.BaseExpression, constants: dict[str, bool]) -> bool | None:
    """The outcome of a test of one argument whose value is known."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        truth = _truth(test.expression, constants)
        return None if truth is None else not truth
    return constants.get(test.value) if isinstance(test, cst.Name) else None


def _is_number(value: ast.expr | None, around: FunctionNode | None) -> bool:
    """Whether an expression is a number by its form, or by the name of what it reads: ``x.shape[0]``, ``num_nodes``
    that is not passed on by the function around, which may have none."""
    if isinstance(value, ast.Name):
        passed_on = around is not None and any(p.arg == value.id for p in parameters(around))
        return value.id.startswith("num_") and not passed_on
    if isinstance(value, ast.Attribute):
        return value.attr.startswith("num_")
    if isinstance(value, ast.Subscript):
        return isinstance(value.value, ast.Attribute) and value.value.attr == "shape"
    if isinstance(value, ast.Call):
        return dotted_ast(value.func) in ("len", "int", "max", "min", "sum")
    return isinstance(value, ast.BinOp) or (isinstance(value, ast.Constant) and value.value is not None)


def _name_in(test: cst.BaseExpression) -> str:
    """The name of a test of one name, '' for any other."""
    while isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        test = test.expression
    return test.value if isinstance(test, cst.Name) else ""


def _bound_for_error(body: cst.BaseSuite) -> set[str] | None:
    """The names that a block binds, if it does nothing but bind names, test them, loop and raise; else None."""
    bound: set[str] = set()
    stack: list[cst.CSTNode] = [*body.body]
    while stack:
        node = stack.pop()
        if isinstance(node, cst.SimpleStatementLine):
            stack += node.body
        elif isinstance(node, cst.Assign) and all(isinstance(t.target, (cst.Name, cst.Tuple)) for t in node.targets):
            bound.update(*(names_in(target.target) for target in node.targets))
        elif isinstance(node, cst.For) and node.orelse is None and isinstance(node.target, (cst.Name, cst.Tuple)):
            bound |= names_in(node.target)
            stack += node.body.body
        elif isinstance(node, cst.If):
            stack += [*node.body.body, *([node.orelse] if node.orelse is not None else [])]
        elif isinstance(node, cst.Else):
            stack += node.body.body
        elif not isinstance(node, (cst.Raise, cst.Pass, cst.Continue, cst.Break)):
            return None
    return bound


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an expression runs. `compiled`: in compiled code, and how; `reached`: in a module's training forward."""

    function: cst.FunctionDef
    compiled: Compiled | None
    reached: Reached | None

    @property
    def labels(self) -> list[tuple[Span, str]]:
        """Where `torch.compile` was called, with the way from there."""
        if self.compiled is None:
            return []
        way = f", which calls `{'` -> `'.join(self.compiled.chain)}`" if self.compiled.chain else ""
        happens = "tests here whether it is compiled" if self.compiled.assumed else "is compiled here"
        return [(self.compiled.root, f"{self.compiled.what} {happens}{way}")]

    @property
    def surely_compiled(self) -> bool:
        return self.compiled is not None and not self.compiled.assumed

    def costs(self, value: Value) -> bool:
        """Whether reading a tensor of this value costs anything here: in compiled code always, else only if the GPU
        computes it."""
        return value.computed or self.surely_compiled

    @property
    def outcome(self) -> str:
        """What a read on the host costs here."""
        if self.compiled is None or self.compiled.assumed:
            way = (
                f" (reached from `{self.reached.chain[0]}`)" if self.reached is not None and self.reached.chain else ""
            )
            waits = f"on CUDA each rank waits for its GPU in every {'forward' if self.reached else 'call'}{way}"
            return f"{waits}, and under torch.compile the graph breaks here"
        if self.compiled.fullgraph:
            return self.breaks
        return f"{self.breaks}, and on CUDA each rank waits for its GPU in every call"

    @property
    def breaks(self) -> str:
        """What becomes of the compiled graph, whether or not a tensor is read."""
        if self.compiled is not None and self.compiled.fullgraph:
            return "torch.compile(fullgraph=True) raises here on every rank"
        return "the compiled graph breaks here"


class HostRule(Rule):
    """A rule on what a function reads from the device: where a node runs and what expressions are."""

    def _meets_no_run(self, where: cst.CSTNode | Span) -> bool:
        """As for all rules; outside of compiled code also where no program of several ranks comes by, or none that
        trains: a wait costs a training that all ranks take part in."""
        if super()._meets_no_run(where):
            return True
        if not isinstance(where, cst.CSTNode) or self._is_surely_compiled(where):
            return False
        facts, project, line = self.module.facts, self.module.project, self.module.span(where).line
        if facts is not None and project is not None and is_unreached_in_package(project, facts, line):
            return True
        return comes_untrained(self.module, where) or meets_no_ranks(self.module, where)

    def _is_surely_compiled(self, node: cst.CSTNode) -> bool:
        function = self.module.function_of(node)
        compiled = self._compiled(node, function) if function is not None else None
        return compiled is not None and not compiled.assumed

    def value(self, node: cst.BaseExpression, function: cst.FunctionDef) -> Value:
        """What an expression of a function is."""
        return TensorFile.of(self.module).flow(function).value(node)

    def costs(self, node: cst.BaseExpression, place: Place) -> bool:
        """Whether reading an expression costs anything at a place, also by what the callers of the function give."""
        value = self.value(node, place.function)
        if not place.costs(value) or place.surely_compiled:
            return place.costs(value)
        on_host = host_arguments(self.module, place.function) if value.inputs else frozenset()
        if on_host and not place.costs(TensorFile.of(self.module).flow(place.function, on_host).value(node)):
            return False
        return not is_on_host(self.module, node)

    def may_run(self, function: cst.FunctionDef | None) -> TypeGuard[cst.FunctionDef]:
        """Whether `place` can find anything in a function; what it computes has to be known only there. Of one that
        belongs to no class the calls decide, which `place` looks for."""
        if function is None:
            return False
        if self.module.class_of(function) is None or self._as_operation(function) is not None:
            return True
        return TensorFile.of(self.module).reached(function) is not None or self._compiled_as(function) is not None

    def place(self, node: cst.CSTNode) -> Place | None:
        """The compiled code or training forward that `node` runs in; None where the cost does not matter."""
        function = self.module.function_of(node)
        if function is None or outside_of_graphs(self.module, node) or self._is_disabled(function):
            return None
        if one_process(self.module) or transforms_samples(self.module, node) or goes_to_datasets(self.module, node):
            return None
        if evaluation_only(self.module, node) or self._is_for_failure(node):
            return None
        compiled = self._compiled(node, function)
        # A function that is compiled by itself is worth it: it runs in every step, also one that computes a metric.
        by_itself = compiled is not None and not compiled.chain and not compiled.assumed
        if logging_only(self.module, node, by_name=not by_itself) or first_forward_only(self.module, node):
            return None
        tensors = TensorFile.of(self.module)
        reached = tensors.reached(function) or self._as_operation(function) or tensors.called(function)
        place = Place(function, compiled, reached)
        if compiled is None and reached is None:
            return None
        in_training = not without_gradient(self.module, node) and (reached is None or reached.gradient)
        if not place.surely_compiled and not (in_training and not self._is_for_evaluation(function)):
            return None
        return None if self._is_never_reached(node, function) else place

    def _is_for_evaluation(self, function: cst.FunctionDef) -> bool:
        """Whether evaluations alone call the function, or make the objects of its class."""
        owner = self.module.class_of(function)
        is_of_metric = owner is not None and made_for_evaluation(self.module, owner)
        return is_of_metric or called_for_evaluation(self.module, function)

    def _is_never_reached(self, node: cst.CSTNode, function: cst.FunctionDef) -> bool:
        """Whether what every caller gives the function keeps it from the line: ``if not normalize: return``."""
        taken_in = {param.name.value for param in parameters_of(function)}
        for test, taken in conditions(self.module, node):
            name, is_none = asks_for_none(test)
            if name in taken_in and taken is is_none and self._is_always_given(function, name, test):
                return True
            if _name_in(test) in taken_in:
                truth = _truth(test, constant_arguments(self.module, function))
                if truth is not None and truth != taken:
                    return True
        return False

    def _is_always_given(self, function: cst.FunctionDef, name: str, test: cst.BaseExpression) -> bool:
        """Whether every call of a function is seen, and gives a parameter a number, which it still has at a test."""
        line = self.module.span(test).line
        bound = (b.node for b in self.module.bindings(name, test) if b.kind != "parameter")
        if any(self.module.span(node).line < line for node in bound):
            return False
        sites = call_sites(self.module, function)
        return bool(sites) and all(_is_number(site.given(function, name), site.around) for site in sites)

    def _as_operation(self, function: cst.FunctionDef) -> Reached | None:
        """`forward` and `backward` of a `torch.autograd.Function` run in every training step too."""
        owner = self.module.class_of(function)
        is_pass = function.name.value in ("forward", "backward") and owner is not None
        is_operation = is_pass and owner is not None and self.module.is_subclass(owner, "torch.autograd.Function")
        return Reached((), gradient=True) if is_operation else None

    def _compiled_as(self, function: cst.FunctionDef) -> Compiled | None:
        if self.module.project is None:
            return None
        return compiled_functions(self.module.project).get(self.module.name_of(function))

    def _compiled(self, node: cst.CSTNode, function: cst.FunctionDef) -> Compiled | None:
        found = self._compiled_as(function)
        # A function that tests whether it is compiled is made for both: only the arm for compiled code surely is.
        if found is not None and found.assumed and not found.chain and not inside_graphs(self.module, node):
            return None
        return found

    def _is_for_failure(self, node: cst.CSTNode, depth: int = _CALLERS) -> bool:
        """Whether few steps run the line, or those alone that fail, also by where its function is called."""
        if self._reports_failure(node) or runs_seldom(self.module, node):
            return True
        function = self.module.function_of(node)
        calls = calls_in_file(self.module, function) if depth and function is not None else ()
        return bool(calls) and all(self._is_for_failure(call, depth - 1) for call in calls)

    def _reports_failure(self, node: cst.CSTNode) -> bool:
        """Whether the line runs when something is wrong already: the message of an `assert` or a warning, a `raise`
        or what leads up to it, a handler; or where somebody looks for that, and the program ends."""
        below = node
        for up in self.module.ancestors(node):
            if isinstance(up, (cst.Raise, cst.ExceptHandler)) or (isinstance(up, cst.Assert) and below is up.msg):
                return True
            if isinstance(up, cst.Call) and self.module.qualified(up.func) == "warnings.warn":
                return True
            if isinstance(up, cst.FunctionDef):
                return False
            if isinstance(up, cst.If) and below in (up.body, up.orelse) and self._runs_once(up, below):
                return True
            below = up
        return False

    def _runs_once(self, branch: cst.If, arm: cst.CSTNode) -> bool:
        """Whether no run comes by an arm of a branch a second time: it raises, ends the program or stops in a
        debugger."""
        if arm is branch.body and self._looks_for_error(branch):
            return True
        block = arm.body if isinstance(arm, cst.Else) else arm
        if not isinstance(block, cst.BaseSuite):
            return False
        return raises(block) or (stops(block) and self._is_part_of_step(branch))

    def _is_part_of_step(self, branch: cst.If) -> bool:
        """Whether a step of a training runs the function around a branch: a whole training may be followed by the end
        of the program."""
        function = self.module.function_of(branch)
        if function is None:
            return False
        tensors = TensorFile.of(self.module)
        reached = tensors.reached(function) or self._as_operation(function) or tensors.called(function)
        return reached is not None or self._compiled_as(function) is not None

    def _looks_for_error(self, branch: cst.If) -> bool:
        """Whether a branch that is taken for what a tensor holds only looks for what to say in the error that it
        raises: ``if not torch.allclose(a, b): for i in ..: if a[i] != b[i]: raise ..``."""
        function = self.module.function_of(branch)
        if function is None or not any(self._is_read(part, function) for part in truth_values(branch.test)):
            return False
        bound = _bound_for_error(branch.body)
        if bound is None or not any(isinstance(n, cst.Raise) for n in descendants(branch.body)):
            return False
        inside = {n for n in descendants(branch.body) if isinstance(n, cst.Name)}
        return not any(isinstance(n, cst.Name) and n.value in bound and n not in inside for n in descendants(function))

    def _is_read(self, part: cst.BaseExpression, function: cst.FunctionDef) -> bool:
        """Whether the truth of an expression comes from a tensor."""
        compares = isinstance(part, cst.Call) and self.module.qualified(part.func) in COMPARISONS
        return compares or self.value(part, function).tensorish

    def _is_disabled(self, function: cst.FunctionDef) -> bool:
        around = [function, *(a for a in self.module.ancestors(function) if isinstance(a, cst.FunctionDef))]
        return any(
            self.module.qualified(d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator)
            in names("compile", "disabled")
            for f in around
            for d in f.decorators
        )

"""Does a value take part in training: does it flow into a `backward()`, with gradients recorded?"""

from __future__ import annotations

import libcst as cst

from ddp_lint.source import Module, dotted
from ddp_lint.source.tree import called, descendants

_NO_GRAD = ("no_grad", "inference_mode")


def backward_of(module: Module, value: cst.CSTNode) -> cst.Call | None:
    """The `backward()` call in the same function that `value` flows into, None when there is none.

    Names are followed through assignments in source order, twice so that loops are covered; attributes and
    containers are followed by their first name. `detach()` cuts the flow.
    """
    function = module.function_of(value)
    if function is None or without_grad(module, value):
        return None
    flow = _Flow(value)
    body = list(descendants(function.body, into_definitions=False))
    for _ in range(2):
        for node in body:
            flow.step(node)
            if flow.backward is not None:
                return flow.backward
    return None


def without_grad(module: Module, node: cst.CSTNode) -> bool:
    """Whether `node` runs under no_grad or inference_mode: an enclosing `with`, or a decorator."""
    for up in module.ancestors(node):
        if isinstance(up, cst.With) and any(_is_no_grad(item.item) for item in up.items):
            return True
        if isinstance(up, cst.FunctionDef) and any(_is_no_grad(d.decorator) for d in up.decorators):
            return True
    return False


def _is_no_grad(expression: cst.BaseExpression) -> bool:
    target = expression.func if isinstance(expression, cst.Call) else expression
    return dotted(target).rpartition(".")[2] in _NO_GRAD


class _Flow:
    """The set of names that hold (something computed from) the value."""

    def __init__(self, value: cst.CSTNode) -> None:
        self.value = value
        self.names: set[str] = set()
        self.backward: cst.Call | None = None

    def step(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Assign):
            if self.holds(node.value):
                for target in node.targets:
                    self._bind(target.target)
        elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)):
            if node.value is not None and self.holds(node.value):
                self._bind(node.target)
        elif isinstance(node, cst.Call) and self._is_backward(node):
            self.backward = node

    def holds(self, expression: cst.CSTNode) -> bool:
        if expression is self.value:
            return True
        if isinstance(expression, cst.Name):
            return expression.value in self.names
        if (
            isinstance(expression, cst.Call)
            and isinstance(expression.func, cst.Attribute)
            and called(expression) in ("detach", "item", "tolist")
        ):
            return False
        if isinstance(expression, cst.Attribute):
            return dotted(expression) in self.names or self.holds(expression.value)
        return any(
            self.holds(child)
            for child in descendants(expression, into_definitions=False)
            if child is self.value or isinstance(child, cst.Name)
        )

    def _bind(self, target: cst.BaseExpression) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._bind(element.value)
        elif isinstance(target, cst.Subscript):
            self._bind(target.value)
        elif dotted(target):
            self.names.add(dotted(target))

    def _is_backward(self, call: cst.Call) -> bool:
        """`loss.backward()`, `accelerator.backward(loss)`, `scaler.scale(loss).backward()`, `manual_backward(loss)`."""
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)
        if name not in ("backward", "manual_backward"):
            return False
        receiver = [call.func.value] if isinstance(call.func, cst.Attribute) else []
        return any(self.holds(part) for part in (*receiver, *(arg.value for arg in call.args)))

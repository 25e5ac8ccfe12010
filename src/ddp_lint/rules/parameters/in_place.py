"""What the rules on in-place writes share: which functions hold one, how a write reads, its out-of-place twin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

import libcst as cst

from ddp_lint.findings import Applicability, Edit, Fix
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import holding
from ddp_lint.source.tree import descendants, subtree
from ddp_lint.tensors import Code, Flow, Reached, TensorFile, Write
from ddp_lint.tensors.classes import PARAMETER_MAKERS
from ddp_lint.tensors.contexts import evaluation_only, only_infers
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

_SIGNS = {cst.AddAssign: "+", cst.SubtractAssign: "-", cst.MultiplyAssign: "*", cst.DivideAssign: "/"}
_COMPLEMENT = re.compile(r"\b1(\.0?)? - |\* 0?\.\d+ \+ .* \* 0?\.\d+")
_METHODS = {"add_", "sub_", "mul_", "div_", "clamp_", "masked_fill_", "exp_", "sigmoid_", "tanh_", "relu_", "scatter_"}


def is_moving_average(module: Module, write: Write, function: Code) -> bool:
    """Whether a write over ``parameters()`` is an exponential moving average: it mixes two weights that add up to one
    (``m`` and ``1 - m``), is a `lerp_`, or is in a function that is named after one."""
    if not write.value.name.endswith("parameters()"):
        return False
    name = "" if isinstance(function, cst.Module) else function.name.value
    if words_of(name) & {"momentum", "ema", "average", "moving", "teacher", "target"}:
        return True
    text = module.code(write.node)
    return "lerp_(" in text or bool(_COMPLEMENT.search(text))


class InPlaceRule(Rule):
    """A rule on writes to tensors, one call of `check` for each write that training can come by."""

    #: Not in tests: one that passes has shown that its writes do no harm.
    triggers: ClassVar[Triggers] = Triggers(Trait.WRITES, file=("torch",), tests=False)
    #: A write in a LightningModule's `training_step` is one in forward.
    in_training_step: ClassVar[bool] = False
    #: Only writes to what this file wraps count.
    needs_wrap: ClassVar[bool] = False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._look_into(node)

    def visit_Module(self, node: cst.Module) -> None:
        self._look_into(node)

    def _look_into(self, node: Code) -> None:
        if self.module.file.is_test:  # for the rules that have more to look for there
            return
        if self.needs_wrap and not self.module.wraps.all:
            return
        tensors = TensorFile.of(self.module)
        writes_here = tensors.writes(node)
        if not writes_here or only_infers(self.module.project):
            return
        reached = tensors.reached(node, training_step=self.in_training_step)
        for write in writes_here:
            if not evaluation_only(self.module, write.node) and not self._asked_for(write):
                self.check(write, node, reached)

    def _asked_for(self, write: Write) -> bool:
        """Whether the write is behind a switch of that name: ``if self.inplace:``. Whoever sets it knows."""
        tests = map(self.module.code, holding(self.module, write.node))
        return any("inplace" in test.replace("_", "").lower() for test in tests)

    def check(self, write: Write, function: Code, reached: Reached | None) -> None:
        """Look at one write: `reached` says how the module's forward reaches `function`, None when it does not."""
        raise NotImplementedError

    def flow(self, function: Code) -> Flow:
        """The reading of a function of this file."""
        return TensorFile.of(self.module).flow(function)

    def operands(self, write: Write) -> Iterator[cst.CSTNode]:
        """The expressions that a write takes its new values from."""
        node = write.node
        if isinstance(node, (cst.Assign, cst.AugAssign)):
            yield node.value
            yield from descendants(node.value)
        elif isinstance(node, cst.Call):
            for arg in node.args:
                yield from subtree(arg.value)

    def way(self, reached: Reached) -> str:
        """The chain of methods from `forward`, for a message: '' in `forward` itself."""
        return f" (reached from `{reached.chain[0]}`)" if reached.chain else ""

    def out_of_place(self, write: Write) -> Fix | None:
        """``x += y`` as ``x = x + y``, ``x.add_(y)`` as ``x = x.add(y)``; None for writes to a part of a tensor."""
        edit, target = self._edit(write), dotted(write.target)
        if edit is None:
            return None
        # The caller of a function sees what is written to an argument, and may count on it; so does whoever reads the
        # tuple or list again that a loop takes the tensor from.
        looped = any(b.kind == "for" for b in self.module.bindings(target, write.node))
        safe = not write.value.argument and not looped
        applicability = Applicability.SAFE if safe else Applicability.UNSAFE
        return Fix("write the result to a new tensor", applicability, (edit,))

    def _edit(self, write: Write) -> Edit | None:
        node, target = write.node, dotted(write.target)
        if not target or "." in target:
            return None
        if isinstance(node, cst.AugAssign) and type(node.operator) in _SIGNS:
            value = self.module.tree.code_for_node(node.value)
            if isinstance(node.value, (cst.BinaryOperation, cst.IfExp, cst.BooleanOperation, cst.Comparison)):
                value = value if node.value.lpar else f"({value})"
            return Edit(self.module.span(node), f"{target} = {target} {_SIGNS[type(node.operator)]} {value}")
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _METHODS:
            if not isinstance(self.module.parent(node), cst.Expr):
                return None
            plain = node.with_changes(func=node.func.with_changes(attr=cst.Name(node.func.attr.value[:-1])))
            return Edit(self.module.span(node), f"{target} = {self.module.tree.code_for_node(plain)}")
        return None


def makes_parameter(module: Module, node: cst.Call) -> bool:
    """``nn.Parameter(x)``, which may get a gradient."""
    flag = argument(node, 1, "requires_grad")
    trained = flag is None or dotted(flag) == "True"
    return module.qualified(node.func) in PARAMETER_MAKERS and bool(node.args) and trained

from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.compile.host import HostRule
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.syntax import is_int, walk
from ddp_lint.tensors import TensorFile

_GROWING = {"append", "extend", "add"}


def _counts_on(node: ast.Assign) -> bool:
    """``self.calls = self.calls + 1``."""
    value, target = node.value, node.targets[0]
    if not isinstance(target, ast.Attribute) or not isinstance(value, ast.BinOp) or not is_int(value.right):
        return False
    return isinstance(value.op, (ast.Add, ast.Sub)) and ast.dump(value.left) == ast.dump(_read(target))


def _read(target: ast.Attribute) -> ast.Attribute:
    return ast.Attribute(target.value, target.attr, ast.Load())


class CounterInCompiledCode(HostRule):
    """A number or list of a module changes in every compiled forward, so it is compiled again each time.

    ## What it does

    Finds `self.calls += 1` (and `self.calls = self.calls + 1`) on an attribute that starts as a whole number,
    `self.counts["seen"] += 1` on one that starts as a dictionary, and `self.history.append(..)` on one that starts as a
    list, in methods of modules that `torch.compile` reaches, also from another file of the project.

    ## Why it breaks

    TorchDynamo treats whole numbers of a module, and the contents of its lists and dictionaries, as constants and
    guards on them. With each call the guard fails and the function is compiled again: 8 versions for 8 calls, then
    `hit config.recompile_limit (8)`, and the function runs without being compiled for the rest of the job (measured on
    torch 2.13). Ranks that compile at different moments wait for each other in the next collective: minutes for a
    large model, which may exceed the timeout of the process group.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.calls = 0

        def forward(self, x):
            self.calls += 1  # <- DDP307
            return self.fc(x)


    dist.init_process_group("gloo")
    model = torch.compile(Net(), backend="eager")
    for _ in range(6):
        model(torch.randn(8, 4)).square().mean().backward()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x)


    dist.init_process_group("gloo")
    model = torch.compile(Net(), backend="eager")
    calls = 0
    for _ in range(6):
        calls += 1
        model(torch.randn(8, 4)).square().mean().backward()
    dist.destroy_process_group()
    ```

    A buffer also works: `self.calls.add_(1)` on a registered tensor is part of the graph.

    ## When it is silent

    Tensors and buffers; attributes that start as anything but a whole number, a list or a dictionary (a float is
    compiled once more, as a variable, and then not again); lists that the same method empties; code that
    `torch.compile` is not known to reach, evaluation and logging branches, code under a test of
    `torch.compiler.is_compiling()`; projects that set `allow_unspec_int_on_nn_module`.

    ## How to confirm

    `ddp-lint verify train.py`: TorchDynamo compiles the function again and again for this line.

    ## Fix safety

    No automatic fix: the readers of the attribute are not known.

    ## References

    - https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html
    """

    confidence = Confidence.HIGH
    triggers = Triggers(Trait.COUNTS, file=("torch",), tests=False)
    oracles = ("recompile",)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        target = node.target
        kept = target.value if isinstance(target, cst.Subscript) else target
        attribute, kind = dotted(kept), ast.Constant if kept is target else ast.Dict
        if isinstance(node.value, cst.Integer) and self._starts_as(node, attribute, kind):
            self._visit(node, attribute, "counts")

    def visit_Assign(self, node: cst.Assign) -> None:
        target, value = node.targets[0].target, node.value
        counts = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, (cst.Add, cst.Subtract))
        if not counts or not isinstance(value, cst.BinaryOperation) or not isinstance(value.right, cst.Integer):
            return
        attribute = dotted(target)
        if attribute and dotted(value.left) == attribute and self._starts_as(node, attribute, ast.Constant):
            self._visit(node, attribute, "counts")

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in _GROWING:
            attribute = dotted(node.func.value)
            if self._starts_as(node, attribute, ast.List) and not self._is_emptied(node, attribute):
                self._visit(node, attribute, "grows")

    def _visit(self, node: cst.CSTNode, attribute: str, changes: str) -> None:
        place = self.place(node)
        if place is None or not place.surely_compiled or self.module.file.holds("allow_unspec_int_on_nn_module"):
            return
        if any(True for _ in conditions(self.module, node)):  # what runs now and then is compiled now and then
            return
        self.report(
            node,
            f"`{attribute}` {changes} in every call: torch.compile compiles the function again each time, up to its "
            "limit of 8",
            labels=place.labels,
            help="count outside of the compiled code, or in a buffer (`self.calls.add_(1)`)",
        )

    def _starts_as(self, node: cst.CSTNode, attribute: str, kind: type[ast.expr]) -> bool:
        """Whether all that the class assigns to an attribute, but what counts it on, is a whole number (`kind`
        Constant), a list or a dictionary."""
        function = self.module.function_of(node)
        owner = TensorFile.of(self.module).owner(function) if function is not None else None
        if owner is None or not attribute.startswith("self.") or attribute.count(".") != 1:
            return False
        values = [
            n.value
            for cls in owner.lineage
            for n in walk(cls.node)
            if isinstance(n, ast.Assign) and not _counts_on(n) and any(ast.unparse(t) == attribute for t in n.targets)
        ]
        kinds = [is_int(v) if kind is ast.Constant else isinstance(v, kind) for v in values]
        return bool(kinds) and all(kinds)

    def _is_emptied(self, node: cst.CSTNode, attribute: str) -> bool:
        function = self.module.function_of(node)
        text = self.module.code(function.body) if function is not None else ""
        return any(f"{attribute}{what}" in text for what in (" =", ".clear(", ".pop("))

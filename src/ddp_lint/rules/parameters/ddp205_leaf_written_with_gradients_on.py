from __future__ import annotations

import libcst as cst

from ddp_lint.rules.parameters.in_place import InPlaceRule
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.tensors import Code, Reached, TensorFile, Write
from ddp_lint.tensors.classes import method_key, uses_of_self


class LeafWrittenWithGradientsOn(InPlaceRule):
    """A parameter is written in place while gradients are on.

    ## What it does

    Finds `p.add_(..)` in a hand-written optimizer loop, `self.weight[i] = ..` in `__init__`, `self.scale += ..` in
    forward, and writes in a method that `__init__` calls (also to a view: `b = layer.bias.view(3, -1); b[:, 4] += 1`),
    if the target is certainly a trained parameter and not under `torch.no_grad()`.

    ## Why it breaks

    A parameter is a leaf of the graph: autograd rejects a write to it ("a leaf Variable that requires grad is being
    used in an in-place operation", or "a view of a leaf Variable .."). The line raises on every rank as soon as it
    runs, and if only one rank reaches it, the others wait in their next collective.

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x):
            self.scale *= 0.9  # <- DDP205
            return x * self.scale


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * (self.scale * 0.9)


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    Under `torch.no_grad()`, also as a decorator, through `.data` or `detach()`, in other helpers (weight conversion,
    moving averages: their callers usually hold `no_grad`), in tests, for parameters with
    `requires_grad=False` or that are frozen some lines above (`self.embed.weight.requires_grad = False`), after a test
    that ``isinstance(self.x, nn.Parameter)`` is false.

    ## How to confirm

    `ddp-lint verify model.py`: the exception with this line in its traceback.

    ## Fix safety

    No automatic fix: put the write under `with torch.no_grad():`.

    ## References

    - https://pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
    """

    triggers = Triggers("parameters", "named_parameters", Trait.WRITES, file=("torch",), tests=False)
    oracles = ("exception",)

    def check(self, write: Write, function: Code, reached: Reached | None) -> None:
        value = write.value
        if not value.name or value.detached or not write.gradient:
            return
        if self._is_no_parameter_here(write) or self._is_frozen(write):
            return
        in_forward = reached is not None and reached.gradient
        if in_forward or self._constructs(function, value.name) or self._steps_by_hand(write):
            self.report(
                write.node,
                f"{self.module.quoted(write.target)} is a parameter and gradients are on: this write "
                "raises on every rank",
                help="put the write under `with torch.no_grad():`",
            )

    def _constructs(self, function: Code, name: str) -> bool:
        """Whether the function runs when an object is made: its constructor, which writes to a parameter of it, or a
        method that the constructor calls with gradients on, for any parameter that has a name."""
        if not isinstance(function, cst.FunctionDef) or "()" in name:
            return False
        if function.name.value == "__init__":
            return name.startswith("self.")
        owner = TensorFile.of(self.module).owner(function)
        cls, constructor = owner.methods.get("__init__", (None, None)) if owner is not None else (None, None)
        used = uses_of_self(constructor, cls.facts) if constructor is not None and cls is not None else []
        return (method_key(function), True) in used

    def _is_no_parameter_here(self, write: Write) -> bool:
        """Whether a test has shown that the attribute, which is a parameter elsewhere, is none yet."""
        failed = (test for test, taken in conditions(self.module, write.node) if not taken)
        return any(
            isinstance(n, cst.Call)
            and dotted(n.func) == "isinstance"
            and len(n.args) == 2
            and dotted(n.args[0].value) == write.value.name
            and self.module.qualified(n.args[1].value) == "torch.nn.Parameter"
            for test in failed
            for n in subtree(test)
        )

    def _is_frozen(self, write: Write) -> bool:
        """Whether the parameter, or a module that has it, is frozen above the write, in a block around it: a leaf that
        gets no gradient takes any write."""
        below: cst.CSTNode = write.node
        for up in self.module.ancestors(write.node):
            if isinstance(up, cst.IndentedBlock):
                for statement in reversed(up.body[: up.body.index(below)]):
                    switched = [s for n in subtree(statement) if (s := _switches(n, write.value.name)) is not None]
                    if switched:  # under a condition it is frozen on some ways only
                        return isinstance(statement, cst.SimpleStatementLine) and not switched[-1]
            if isinstance(up, cst.FunctionDef):
                return False
            below = up
        return False

    def _steps_by_hand(self, write: Write) -> bool:
        """Whether the write is a step of gradient descent on ``model.parameters()``: it reads the gradient."""
        if not write.value.name.endswith("parameters()"):
            return False
        gradient = f"{dotted(write.target)}.grad"
        return any(isinstance(n, cst.Attribute) and dotted(n) == gradient for n in descendants(write.node))


def _switches(node: cst.CSTNode, name: str) -> bool | None:
    """Whether the parameter `name` gets gradients behind a node; None where the node changes nothing about that."""
    if isinstance(node, cst.Assign):
        targets = [dotted(target.target) for target in node.targets]
        if f"{name}.requires_grad" in targets:
            return dotted(node.value) != "False"
        return True if any(target and f"{name}.".startswith(f"{target}.") for target in targets) else None
    if isinstance(node, cst.Call) and called(node) == "requires_grad_":
        owner = dotted(node.func).rpartition(".")[0]
        off = bool(node.args) and dotted(node.args[0].value) == "False"
        return not off if f"{name}.".startswith(f"{owner}.") else None
    return None

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.tensors import is_log
from ddp_lint.rules.compile.host import HostRule, Place, truth_values
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.queries import receiver
from ddp_lint.source.tree import called, subtree
from ddp_lint.tensors import TensorFile


class TensorPrinted(HostRule):
    """A tensor is printed or logged in forward or in compiled code.

    ## What it does

    Finds `print(h.mean())`, f-strings over tensors that are printed or logged, in the training forward of any
    `nn.Module`, and any `print` or logging call in a function that `torch.compile` reaches, also from another file.

    ## Why it breaks

    Formatting a tensor copies it to the host: every rank waits for its GPU in every forward, and every rank prints.
    Under `torch.compile` each call breaks the graph, also one that prints plain text (3 graphs for 2 calls; an
    error with `fullgraph=True`; measured on torch 2.11 and 2.13).

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            h = self.fc(x)
            print("mean", h.mean())  # <- DDP303
            return h


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
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x)


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    What is printed under a test of a tensor's values; shapes and Python values outside of compiled code;
    `logger.info("%s", t)` outside of compiled code (it formats only at its level); branches for debugging, logging or
    evaluation, arms that end the program, tests, `torch.compiler.disable`, `is_compiling()`, functions that are called
    before an error or for values that are not finite alone. Only with `--preview`: a text without a tensor under a test
    in compiled code, which is in the graph only where the test holds; outside of compiled code what only programs of
    one process come to, or only programs that train nothing.

    ## How to confirm

    `ddp-lint verify model.py`: `torch._dynamo.explain` names this line as the reason of a break; on CUDA
    `torch.cuda.set_sync_debug_mode` reports the wait.

    ## Fix safety

    No automatic fix: return the value and print it in the training loop, on one rank, every n steps.

    ## References

    - https://pytorch.org/docs/stable/torch.compiler_faq.html#graph-breaks
    """

    confidence = Confidence.MEDIUM
    of_small_harm = True
    triggers = Triggers(Trait.PRINTS, file=("torch",), tests=False)
    oracles = ("graph_break", "sync")

    def visit_Call(self, node: cst.Call) -> None:
        name = dotted(node.func)
        prints = name == "print"
        if not prints and not is_log(name):
            return
        function = self.module.function_of(node)
        if not self.may_run(function) or not TensorFile.of(self.module).flow(function).has_tensors:
            return
        place = self.place(node)
        if place is None or self._on_failure_path(node, place):
            return
        tensor = self._tensor_in(node, place, formatted_only=not prints)
        if tensor is None and not place.surely_compiled:
            return
        if tensor is None:
            self._report_call(node, name, place)
            return
        self.report(
            node,
            f"{self.module.quoted(tensor)} is printed in {'compiled code' if place.surely_compiled else 'forward'}: "
            "each rank waits for its GPU, and a compiled graph breaks",
            notes=[place.outcome],
            labels=place.labels,
            help="return the value and print it in the training loop, on one rank, every n steps",
            confidence=Confidence.HIGH if place.surely_compiled else None,
        )

    def _report_call(self, node: cst.Call, name: str, place: Place) -> None:
        """A text is printed and no tensor. Under a test, the graph has the call only where the test holds as it is
        compiled: hardly ever for what warns of a rare shape."""
        tested = any(True for _ in conditions(self.module, node))
        self.report(
            node,
            f"`{name}` is called in compiled code: the graph breaks here",
            notes=[place.breaks],
            labels=place.labels,
            help="call it outside of the compiled code, or behind `if not torch.compiler.is_compiling()`",
            confidence=Confidence.LOW if tested else Confidence.HIGH,
        )

    def _on_failure_path(self, node: cst.Call, place: Place) -> bool:
        """Whether a branch on a tensor decides over the call, as in ``if h.isnan().any(): print(..)``, also where it
        reads it first (``torch.isnan(h).item()``): that branch is what costs (DDP301, DDP302), the call runs when
        something is wrong already."""
        parts = (part for test, _ in conditions(self.module, node) for part in truth_values(test))
        return any(self.value(each, place.function).tensor for part in parts for each in (part, *_read_in(part)))

    def _tensor_in(self, node: cst.Call, place: Place, *, formatted_only: bool) -> cst.BaseExpression | None:
        for arg in node.args:
            parts = _formatted(arg.value)
            for part in parts if formatted_only else (arg.value, *parts):
                if self.value(part, place.function).tensor and self.value(part, place.function).computed:
                    return part
        return None


def _formatted(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The expressions inside an f-string."""
    if isinstance(node, cst.FormattedString):
        for part in node.parts:
            if isinstance(part, cst.FormattedStringExpression):
                yield part.expression
    elif isinstance(node, cst.ConcatenatedString):
        yield from _formatted(node.left)
        yield from _formatted(node.right)


def _read_in(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """What a test reads on the host: `x` of ``x.item() > 0``."""
    for part in subtree(test):
        if isinstance(part, cst.Call) and not part.args and called(part) == "item":
            read = receiver(part)
            if read is not None:
                yield read

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from ddp_lint.findings import Applicability, Edit, Fix, Span
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.wrapped_classes import SEARCHES, ddp_calls, wrapped_classes
from ddp_lint.source import dotted
from ddp_lint.source.queries import is_true
from ddp_lint.view.wraps import Wrap, argument

_TWICE = "its gradients are not averaged: rank 0 and rank 1 drift apart, or backward fails on every rank"
_UNUSED = "backward fails on every rank"


class ReentrantCheckpointUnderDdp(Rule):
    """Reentrant activation checkpointing marks a parameter ready twice under DDP.

    ## What it does

    Finds `checkpoint(..., use_reentrant=True)` of one layer twice in a forward, and `use_reentrant=True`, or
    `checkpoint_wrapper` with `CheckpointImpl.REENTRANT`, in a file that wraps with `find_unused_parameters=True`, or in
    a module that the project wraps in this way alone.

    ## Why it breaks

    The reentrant variant runs a second backward inside backward, so DDP's hook of one parameter fires twice, or fires
    for a parameter that was declared unused. Measured on gloo (torch 2.13): a layer checkpointed twice keeps gradients
    that are not averaged and differ between rank 0 and rank 1, and the ranks drift apart without an error; with
    `find_unused_parameters` backward raises "Expected to mark a variable ready only once" on every rank.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.checkpoint import checkpoint

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            x = checkpoint(self.layer, x, use_reentrant=True)
            return checkpoint(self.layer, x, use_reentrant=True)  # <- DDP613


    model = DDP(Net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    x = torch.randn(8, 4, device=device, requires_grad=True)
    model(x).square().mean().backward()
    optimizer.step()


    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.checkpoint import checkpoint

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            x = checkpoint(self.layer, x, use_reentrant=False)
            return checkpoint(self.layer, x, use_reentrant=False)


    model = DDP(Net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    x = torch.randn(8, 4, device=device, requires_grad=True)
    model(x).square().mean().backward()
    optimizer.step()


    dist.destroy_process_group()
    ```

    ## When it is silent

    `use_reentrant=False`; one checkpoint of each layer without `find_unused_parameters` (measured right);
    `static_graph=True`; files without DDP.

    ## How to confirm

    `ddp-lint verify train.py`: the exception in backward, or gradients that differ between the ranks before the
    optimizer's step.

    ## Fix safety

    Unsafe: `use_reentrant=False` is PyTorch's recommendation, but it keeps other tensors alive.

    ## References

    - https://pytorch.org/docs/stable/checkpoint.html#torch.utils.checkpoint.checkpoint
    """

    triggers = Triggers("use_reentrant", "checkpoint_impl", "find_unused_parameters", file=("torch",))
    oracles = ("exception", "gradient")

    def start(self) -> None:
        #: The reentrant checkpoints of the file, and those of each layer in one function.
        self._all: list[cst.Call] = []
        self._of_layer: dict[tuple[cst.FunctionDef | None, str], list[cst.Call]] = {}

    def visit_Call(self, node: cst.Call) -> None:
        if self._flag(node) is not None and node.args:
            self._all.append(node)
            layer = dotted(node.args[0].value)
            if layer and is_true(argument(node, None, "use_reentrant")):
                self._of_layer.setdefault((self.module.function_of(node), layer), []).append(node)

    def _flag(self, call: cst.Call) -> tuple[cst.BaseExpression, str] | None:
        """The argument that makes a checkpoint reentrant, and what to pass instead."""
        flag = argument(call, None, "use_reentrant")
        if flag is not None and is_true(flag):
            return flag, "False"
        variant = argument(call, None, "checkpoint_impl")
        if isinstance(variant, cst.Attribute) and variant.attr.value == "REENTRANT":
            return variant, f"{self.module.code(variant.value)}.NO_REENTRANT"
        return None

    def finish(self) -> None:
        for (_, layer), calls in self._of_layer.items():
            first, *again = calls
            for call in again:
                self._report(
                    call,
                    calls,
                    [(first, "checkpointed here first")],
                    f"`{layer}` is checkpointed a second time",
                    _TWICE,
                )
        unused = next((wrap.place for wrap in self.module.wraps.all if self._looks_for_unused(wrap)), None)
        unused = self._wrapped_elsewhere() if unused is None and self._all else unused
        if unused is not None and self._all:
            labels = [(unused, "find_unused_parameters=True here")]
            what = "this checkpoint is reentrant under find_unused_parameters=True"
            self._report(self._all[0], self._all, labels, what, _UNUSED)

    def _wrapped_elsewhere(self) -> Span | None:
        """Where another file wraps the module around the first checkpoint, if all wraps of the project search."""
        project, owner = self.module.project, self.module.class_of(self._all[0])
        calls = ddp_calls(project) if project is not None and owner is not None else ()
        given = [{k.arg: k.value for k in call.keywords if k.arg in SEARCHES} for _, call in calls]
        searching = all([*each] == [SEARCHES[0]] and ast.unparse(each[SEARCHES[0]]) == "True" for each in given)
        if project is None or owner is None or not given or not searching:
            return None
        facts, call = calls[0]
        return facts.file.span_of(call) if self.module.name_of(owner) in wrapped_classes(project) else None

    def _looks_for_unused(self, wrap: Wrap) -> bool:
        unused = argument(wrap.call, None, "find_unused_parameters")
        asked = wrap.kind == "ddp" and is_true(unused)
        return asked and argument(wrap.call, None, "static_graph") is None

    def _report(
        self,
        node: cst.Call,
        reentrant: Sequence[cst.Call],
        labels: Sequence[tuple[cst.CSTNode | Span, str]],
        what: str,
        then: str,
    ) -> None:
        """`reentrant`: the calls that have to change together, since one that is left still fires the hook."""
        flags = list(filter(None, map(self._flag, reentrant)))
        edits = tuple(Edit(self.module.span(flag), instead) for flag, instead in flags)
        self.report(
            node,
            f"{what}: a gradient hook of DDP fires twice, and backward fails",
            notes=[f"it fires twice for one parameter, and {then}"],
            labels=labels,
            help=f"pass {flags[0][1]}" if flags[0][1] != "False" else "pass use_reentrant=False",
            fix=Fix("use the non-reentrant variant", Applicability.UNSAFE, edits),
        )

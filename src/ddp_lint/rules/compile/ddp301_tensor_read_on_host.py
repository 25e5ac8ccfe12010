from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Cause, Confidence
from ddp_lint.rules.compile.host import COMPARISONS, HostRule, Place, read_by
from ddp_lint.rules.compile.host_reads import avoidable, repeated, wanted_by_compiler
from ddp_lint.rules.compile.waits import wait_before, waited_before
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, conjuncts, holding
from ddp_lint.source.queries import line_around
from ddp_lint.source.tree import subtree
from ddp_lint.tensors.contexts import half_precision_only
from ddp_lint.view.wraps import argument


class TensorReadOnHost(HostRule):
    """Forward or compiled code reads a tensor into a Python value.

    ## What it does

    Finds `.item()`, `.tolist()`, `float(t)`, `int(t)`, `bool(t)`, `torch.allclose`, `torch.is_nonzero` and
    `x.new_full(size, t)` on tensors that are computed from arguments, parameters or layers: in any function that
    `torch.compile` reaches, also from another file of the project, and in the training forward of any `nn.Module`
    or `autograd.Function`.

    ## Why it breaks

    The host has to wait until the GPU has computed the value: every rank stalls in every step, and all ranks wait for
    the slowest one. `torch.compile` ends its graph there and starts another: 4 graphs for 3 reads, and DDP's buckets
    and FSDP's units are split as well (from 1 to 4 compiled calls without a wrapper and with FSDP2, from 4 to 6 with
    DDP). With `fullgraph=True` scalars are captured: `.item()`, `float` and `int` work, `bool` and `.tolist()` of
    floats raise. If ranks take different branches for the values that they read, they run different collectives.
    Measured on torch 2.11 and 2.13 with the same counts, the waits on CUDA.

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
            scale = h.abs().max().item()  # <- DDP301
            return h / scale


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
            h = self.fc(x)
            scale = h.abs().max().detach()
            return h / scale


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    Shapes, `len`, `numel()`, tensors made on the host (`torch.arange(n).tolist()`, `torch.rand(1).item()`), the sizes
    and lengths of packed sequences, which are on the host; code under a test of `torch.compiler.is_compiling()` or
    under `torch.compiler.disable`, in branches and functions for logging, debugging, evaluation or generation, in
    set-up that only the first forward runs, what runs once in many calls (`step % 500 == 0`) or for values that are not
    finite (`if torch.isnan(x).any()`), methods that fill a memo once for each key, what a failed check of a tensor runs
    to say what is wrong in its error, arms that end the program (`sys.exit()`) or stop it in a debugger, also in
    functions that are called at such places alone, in tests, under `torch.no_grad()`; buffers and attributes that are
    read without computation, since they may be on the host; loops of training scripts outside of forward; arguments
    that every caller passes from the host (`self.assign(boxes.cpu())`, `tokenizer(texts,
    return_tensors="pt").input_ids`), branches that no caller reaches, modules that go to data sets alone, single
    integers (under a test of the dtype and of the shape). With `capture_scalar_outputs` or `fullgraph=True`, the reads
    that are captured. Reads that follow one another with no more than small operations between are one finding: only
    the first waits, for the others the GPU has next to nothing left to do. So are those in a loop behind the first,
    whose rounds have no more than that. Only with `--preview`, and outside of compiled code: a read once per forward
    whose value the host may need (the size of an allocation, the split sizes of an all-to-all); one right after an
    operation that waits itself (`mask.nonzero()`, `x[x > 0]`, `.cpu()`), but in a loop, where they add up; one that
    only programs of one process come to, or only programs that train nothing. The same read in a loop over layers or
    items, in a helper that several functions of one file call, or of a value that is only used in arithmetic or
    reports, is reported.

    ## How to confirm

    `ddp-lint verify model.py`: `torch._dynamo.explain` names this line as the reason of a break; on CUDA
    `torch.cuda.set_sync_debug_mode` reports the wait.

    ## Fix safety

    No automatic fix: keep the value as a tensor (`torch.where`, mask arithmetic, `.detach()`), pass sizes in as
    integers, or read once per step, after backward.

    ## References

    - https://pytorch.org/docs/stable/torch.compiler_faq.html#graph-breaks
    """

    confidence = Confidence.MEDIUM
    of_small_harm = True
    triggers = Triggers(Trait.READS, file=("torch",), tests=False)
    oracles = ("graph_break", "sync")

    def start(self) -> None:
        self._reported: set[tuple[int, str]] = set()
        self._first_reads: dict[cst.CSTNode, cst.CSTNode] = {}

    def visit_Call(self, node: cst.Call) -> None:
        read, function = self._read(node), self.module.function_of(node)
        if read is None or not self.may_run(function):
            return
        value = self.value(read, function)
        surely_read = isinstance(node.func, cst.Attribute) and read_by(node) is not None
        if not (value.tensor or (surely_read and value.tensorish)):
            return
        place = self.place(node)
        if place is None or not self.costs(read, place) or self._is_read_by_condition(node):
            return
        if self._is_captured(node, place) or self._is_count(read, node):
            return
        read_at = (self.module.span(node).line, self.module.code(node))
        if read_at not in self._reported:  # ``[x.item() + 1], x.item() + 1``
            self._reported.add(read_at)
            self._report(node, place)

    def _read(self, node: cst.Call) -> cst.BaseExpression | None:
        """The expression that a call reads on the host; None when the call reads nothing."""
        if node.args and self.module.qualified(node.func) in COMPARISONS:
            return node.args[0].value
        return read_by(node) or self._filled_with(node)

    def _filled_with(self, node: cst.Call) -> cst.BaseExpression | None:
        """The value that ``x.new_full(size, value)`` takes as a number."""
        named = self.module.qualified(node.func) == "torch.full_like"
        method = isinstance(node.func, cst.Attribute) and node.func.attr.value == "new_full"
        return argument(node, 1, "fill_value") if named or method else None

    def _is_read_by_condition(self, node: cst.Call) -> bool:
        """Whether the branch that the read is in has read the same: ``if x.item() > 1: warn(x.item())``."""
        tests = [test for test, _ in conditions(self.module, node)]
        return any(node.deep_equals(n) for test in tests for n in subtree(test))

    def _is_count(self, read: cst.BaseExpression, node: cst.Call) -> bool:
        """Whether tests around the read say that it is of one integer: ``x.dtype == torch.int64 and not x.shape``. What
        layers compute are floats; such a number is what a caller has put into a tensor."""
        name = dotted(read)
        held = {self.module.code(part) for test in holding(self.module, node) for part in conjuncts(test)}
        whole = {f"{name}.dtype == torch.{kind}" for kind in ("int64", "long", "int32", "int", "bool")}
        single = {f"not {name}.shape", f"{name}.ndim == 0", f"{name}.dim() == 0", f"{name}.shape == ()"}
        return bool(name) and not held.isdisjoint(whole) and not held.isdisjoint(single)

    def _is_captured(self, node: cst.Call, place: Place) -> bool:
        """Whether the compiled graph takes the value up as a symbol."""
        if place.compiled is None or not place.compiled.captures_scalars:
            return False
        is_item = isinstance(node.func, cst.Attribute) and node.func.attr.value == "item"
        return is_item or dotted(node.func) in ("float", "int")

    def _sureness(self, node: cst.Call, place: Place) -> Confidence:
        """A level less where the host may need the value, once in a forward: the size of an allocation."""
        # What a layer reads of its own results, the split sizes of its experts, no caller can hand down.
        read = self._read(node)
        own = read is not None and self.value(read, place.function).learned
        can_go = repeated(self.module, node, per_layer=not own) or any(
            asks(self.module, node, place.function) for asks in (avoidable, wanted_by_compiler)
        )
        if place.surely_compiled:
            return Confidence.HIGH if can_go else Confidence.MEDIUM
        if waited_before(self.module, node, place.function):
            return Confidence.LOW
        return Confidence.MEDIUM if can_go and not half_precision_only(self.module, node) else Confidence.LOW

    def _report(self, node: cst.Call, place: Place) -> None:
        self.report(
            node,
            f"{self.module.quoted(node)} reads a tensor on the host: each rank waits for its GPU, and a "
            "compiled graph breaks",
            notes=[place.outcome],
            labels=place.labels,
            help="keep the value as a tensor (torch.where, mask arithmetic, .detach()), or pass sizes in as integers",
            confidence=self._sureness(node, place),
            cause=self._statement(node, place),
        )

    def _statement(self, node: cst.Call, place: Place) -> Cause | None:
        """Reads in one statement are changed together: ``ends[i].item() - ends[i - 1].item()``. So are those that
        follow one another with no more than small operations between: the first waits, the GPU has hardly anything
        left to do for the others."""
        statement = line_around(self.module, node)
        if statement is None:
            return None
        if statement not in self._first_reads:
            wait = wait_before(self.module, node, place.function)
            before = wait.statement if wait is not None and wait.reads else None
            self._first_reads[statement] = self._first_reads.get(before, before) if before is not None else statement
        return Cause(self.module.span(self._first_reads[statement]))

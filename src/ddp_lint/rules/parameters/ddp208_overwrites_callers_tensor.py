from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.single import transforms_samples
from ddp_lint.project.facts import assigned_in, parameters
from ddp_lint.rules.parameters.in_place import InPlaceRule
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import walk
from ddp_lint.source.tree import descendants, subtree
from ddp_lint.tensors import Code, ModuleClass, Reached, TensorFile, Write
from ddp_lint.tensors.callers import CallSite, call_sites
from ddp_lint.tensors.operations import keeps_output, layer_kind, names, words_of

#: Attributes and methods of a tensor that look at it and keep nothing.
_ASKED = {"shape", "size", "dim", "ndim", "device", "dtype", "is_cuda", "numel", "new_zeros", "new_ones"}
_ARITHMETIC = {"add_", "sub_", "mul_", "div_", "pow_", "exp_", "sqrt_", "sigmoid_", "tanh_", "softmax_", "neg_", "abs_"}


class OverwritesCallersTensor(InPlaceRule):
    """A module's forward writes in place to a tensor that its caller still holds.

    ## What it does

    Finds `x += y`, `x *= s`, `x[i] = y` and `x.add_(y)` in the forward of an `nn.Module` (or in a method that forward
    calls) where `x` is an argument, or a view of one, and still the caller's object.

    ## Why it breaks

    The function cannot know who made the argument. If it is the output of a softmax, a sigmoid or an LSTM, or was
    the input of a layer that the caller called before, autograd keeps it, and `backward()` raises "modified by an
    inplace operation" on every rank, far from this line. If the caller only uses it again (a residual, a second
    head, activation checkpointing that computes forward twice) it computes with the changed values: no error.

    ## Example

    ```python
    import torch
    from torch import nn


    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 8)

        def forward(self, hidden):
            hidden += self.embed(torch.ones_like(hidden))  # <- DDP208
            return hidden


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.positions = Positions()

        def forward(self, x):
            return self.positions(torch.sigmoid(self.fc(x)))


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 8)

        def forward(self, hidden):
            return hidden + self.embed(torch.ones_like(hidden))


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.positions = Positions()

        def forward(self, x):
            return self.positions(torch.sigmoid(self.fc(x)))


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    Places that are filled and not computed from what was there (`x[mask] = 0`, `masked_fill_`), or get a boolean
    (`x[0] = torch.logical_not(x[0])`). The argument was replaced first (`x = x.clone()`, `x = x + 1`, `x =
    self.norm(x)`), masks, tokens, indices, lengths, caches and states (they carry no gradient, or are there to be
    written), audio and image frontends, augmentation, the arm where `x.requires_grad` is false, code under
    `torch.no_grad()`, evaluation, inference and tests, helpers that return nothing (they are called for the write),
    helpers that get a fresh tensor of a caller that takes the result in its place (`x = self.fc(x); x =
    self._scale(x)`). With `--preview` alone: a module that gets such a tensor wherever the project calls it, and
    whose callers do not read it again (`loss, parts = self.balance(loss)`, `self.drop(self.attend(x))`). Where the
    function itself shows what keeps the tensor, DDP203 reports it instead.

    ## How to confirm

    `ddp-lint verify model.py`: the exception in backward when the caller's tensor was kept. A batch from the loader
    written in place trains right, and verify then refutes the finding.

    ## Fix safety

    `x += y` becomes `x = x + y`: unsafe, because the caller may count on seeing the write.

    ## References

    - https://pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
    """

    confidence = Confidence.MEDIUM
    oracles = ("exception", "gradient")

    def check(self, write: Write, function: Code, reached: Reached | None) -> None:
        argument = write.value.argument
        kept = write.save is not None and write.save.certain
        if not argument or kept or not write.value.tensor or not write.gradient:
            return
        if reached is None or not reached.gradient or write.value.detached or write.value.name:
            return
        if words_of(argument) & names("in_place", "written_arguments") or not _computes(write):
            return
        if self._is_data(write):
            return
        if reached.chain and (not _returns(function) or self._is_given_up(function, reached)):
            return
        doubtful = not reached.chain and self._is_taken_back(function, argument)
        self.report(
            write.node,
            "forward overwrites the caller's tensor "
            f"{self.module.quoted(write.target)}{self.way(reached)}: `backward()` may raise",
            notes=[
                "if autograd kept it, `backward()` raises on every rank; or the caller reads other values than it wrote"
            ],
            help=f"make a new tensor: `{argument} = {argument} + ..`, or start with `{argument} = {argument}.clone()`",
            confidence=Confidence.LOW if doubtful else None,
            fix=self.out_of_place(write),
        )

    def _is_taken_back(self, function: Code, argument: str) -> bool:
        """Whether every call of the module's `forward` gives away what it was given, which a call had made that keeps
        nothing of it as far as one can see: ``loss, parts = self.balance(loss)``, ``self.drop(self.attend(x))``."""
        if isinstance(function, cst.Module) or function.name.value != "forward":
            return False
        sites = call_sites(self.module, function)
        return bool(sites) and all(_is_given_away(site, function, argument) for site in sites)

    def _is_data(self, write: Write) -> bool:
        """Whether no gradient flows to the argument: in a frontend, and where ``x.requires_grad`` is false."""
        owner = self.module.class_of(write.node)
        if transforms_samples(self.module, write.node):
            return True
        if owner is not None and words_of(owner.name.value) & names("in_place", "data_classes"):
            return True
        asked = f"{self.module.code(write.target).partition('[')[0]}.requires_grad"
        return any(self.module.code(test) == asked and not taken for test, taken in conditions(self.module, write.node))

    def _is_given_up(self, function: Code, reached: Reached) -> bool:
        """Whether the method that calls the helper made the tensor itself, by a layer that keeps nothing of it, and
        takes the result in its place: ``x = self.fc(x)``, ``x = self._scale(x)``."""
        owner = TensorFile.of(self.module).owner(function)
        caller = owner.methods.get(reached.chain[-1]) if owner is not None else None
        if owner is None or caller is None or isinstance(function, cst.Module):
            return False
        calls = list(_calls_of(f"self.{function.name.value}", caller[1]))
        return bool(calls) and all(_is_replaced(call, into, caller) for call, into in calls)


def _is_given_away(site: CallSite, function: cst.FunctionDef, argument: str) -> bool:
    """Whether the caller made the tensor by a call, and does not read it again under its name."""
    given = site.given(function, argument)
    if isinstance(given, ast.Call):
        return not _keeps_result(given, site)
    if site.around is None or not isinstance(given, ast.Name) or given.id in {p.arg for p in parameters(site.around)}:
        return False
    made = assigned_in(site.around, given.id)
    if not made or not all(isinstance(m, ast.Call) and (m is site.node or not _keeps_result(m, site)) for m in made):
        return False
    into = next((n for n in walk(site.around) if isinstance(n, ast.Assign) and n.value is site.node), None)
    bound = {n.id for t in into.targets for n in walk(t) if isinstance(n, ast.Name)} if into is not None else set()
    names_read = (n for n in walk(site.around) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    last = site.node.end_lineno or site.node.lineno
    return given.id in bound or not any(n.id == given.id and n.lineno > last for n in names_read)


def _keeps_result(made: ast.Call, site: CallSite) -> bool:
    """Whether a function or method of PyTorch's keeps its result for backward: ``torch.sigmoid(x)``."""
    method = f".{made.func.attr}" if isinstance(made.func, ast.Attribute) else ""
    return keeps_output(site.facts.qualified(made.func)) or keeps_output(method)


def _calls_of(name: str, function: ast.FunctionDef) -> Iterator[tuple[ast.Call, str]]:
    """The calls of a method, each with the name that the result gets."""
    into = {id(n.value): dotted_ast(n.targets[0]) for n in walk(function) if isinstance(n, ast.Assign)}
    for node in walk(function):
        if isinstance(node, ast.Call) and dotted_ast(node.func) == name:
            yield node, into.get(id(node), "")


def _is_replaced(call: ast.Call, into: str, caller: tuple[ModuleClass, ast.FunctionDef]) -> bool:
    cls, function = caller
    given = {dotted_ast(a) for a in (*call.args, *(k.value for k in call.keywords))}
    name = into if into in given else next((n for n in given if n and _is_spent(n, call, function)), "")
    made = [
        n
        for n in walk(function)
        if isinstance(n, ast.Assign) and n.lineno < call.lineno and name and name in _bound(n.targets[0])
    ]
    return bool(made) and _is_fresh(made[-1].value, cls) and not _kept_between(name, made[-1], call, function)


def _bound(target: ast.expr) -> set[str]:
    return {dotted_ast(t) for t in (target.elts if isinstance(target, ast.Tuple) else [target])}


def _is_spent(name: str, call: ast.Call, function: ast.FunctionDef) -> bool:
    """Whether a local name is not read any more once the call has it."""
    if name in {p.arg for p in parameters(function)}:  # unless the function has given it another value, see `made`
        made = any(name in _bound(n.targets[0]) for n in walk(function) if isinstance(n, ast.Assign))
        if not made:
            return False
    last = call.end_lineno or call.lineno
    reads = (n for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return not any(n.id == name and n.lineno > last for n in reads)


def _kept_between(name: str, made: ast.Assign, call: ast.Call, function: ast.FunctionDef) -> bool:
    """Whether what lies between may keep the tensor for backward. Asking for its shape and packing it, which copies it,
    does not."""
    around = {id(c): parent for parent in walk(function) for c in ast.iter_child_nodes(parent)}
    for node in walk(function):
        between = isinstance(node, ast.Name) and made.lineno < node.lineno < call.lineno
        if not isinstance(node, ast.Name) or not between or node.id != name:
            continue
        parent = around.get(id(node))
        asked = isinstance(parent, ast.Attribute) and parent.attr in _ASKED
        copied = isinstance(parent, ast.Call) and dotted_ast(parent.func).rpartition(".")[2] == "pack_padded_sequence"
        if not asked and not copied:
            return True
    return False


def _is_fresh(value: ast.expr, cls: ModuleClass) -> bool:
    """Whether a value comes out of a layer of PyTorch's that does not keep its output, or out of a packed sequence."""
    written = dotted_ast(value.func) if isinstance(value, ast.Call) else ""
    if written.rpartition(".")[2] == "pad_packed_sequence":
        return True
    layer = cls.attribute(written[5:]) if written.startswith("self.") else None
    return layer is not None and bool(layer_kind(layer.maker)) and not keeps_output(layer.maker)


def _last(function: cst.BaseExpression) -> str:
    return function.attr.value if isinstance(function, cst.Attribute) else dotted(function)


def _returns(function: Code) -> bool:
    """Whether a helper returns anything: one that does not is called for what it writes."""
    nodes = descendants(function, into_definitions=False)
    return any(isinstance(n, cst.Return) and n.value is not None for n in nodes)


def _computes(write: Write) -> bool:
    """Whether new values come from the old ones of the same place. Filling (``x[mask] = 0``) is how masking is done,
    before anything keeps the tensor; ``mask |= other`` and ``torch.logical_not(x)`` carry no gradient."""
    node = write.node
    if isinstance(node, cst.AugAssign):
        return not isinstance(node.operator, (cst.BitAndAssign, cst.BitOrAssign, cst.BitXorAssign))
    if isinstance(node, cst.Assign):
        if isinstance(node.value, cst.Call) and _last(node.value.func).startswith(("logical_", "bitwise_")):
            return False
        place = node.targets[0].target
        return any(place.deep_equals(n) for n in subtree(node.value))
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _ARITHMETIC

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.tensors import names, words_of
from ddp_lint.launch.callers import CallSite, call_sites, calls_in_file
from ddp_lint.launch.single_process import transforms_samples
from ddp_lint.rules.parameters.in_place import InPlaceRule
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import walk
from ddp_lint.source.tree import descendants, method_of, subtree
from ddp_lint.tensors import Code, ModuleClass, Reached, TensorFile, Write
from ddp_lint.tensors.kept import Keeping, Kept

#: Attributes and methods of a tensor that look at it and keep nothing.
_ASKED = {"shape", "size", "dim", "ndim", "device", "dtype", "is_cuda", "numel", "new_zeros", "new_ones"}
_ARITHMETIC = {"add_", "sub_", "mul_", "div_", "pow_", "exp_", "sqrt_", "sigmoid_", "tanh_", "softmax_", "neg_", "abs_"}


class OverwritesCallersTensor(InPlaceRule):
    """A module's forward writes in place to a tensor that its caller still uses.

    ## What it does

    Finds `x += y`, `x *= s`, `x[i] = y` and `x.add_(y)` in the forward of an `nn.Module` (or in a method that forward
    calls) if `x` is an argument or a view of one, and a call in the project passes a tensor that is needed afterwards:
    a softmax, a sigmoid or an earlier layer saves it for backward, or the caller reads it again. A function of the file
    that forward calls counts where no test decides the write, if the tensor comes from parameters and is saved.

    ## Why it breaks

    The function cannot know who made the argument. If it is the output of a softmax, a sigmoid or an LSTM, or was the
    input of a layer that the caller called before, autograd saves it, and `backward()` raises "modified by an inplace
    operation" on every rank, far from this line. If the caller only uses it again (a residual, a second head,
    activation checkpointing that computes forward twice) it computes with the changed values: no error.

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

    No code in the project needs the tensor afterwards: the caller has just created it and replaces it with the result
    (`x = self.fc(x); x = self._scale(x)`), or the batch comes from the loader. Elements that are filled and not
    computed from their old value (`x[mask] = 0`, `masked_fill_`), or set to a boolean (`x[0] =
    torch.logical_not(x[0])`). The argument was replaced first (`x = x.clone()`, `x = x + 1`, `x = self.norm(x)`),
    masks, tokens, indices, lengths, caches and states (they have no gradient, or are meant to be written), audio and
    image frontends, augmentation, the branch where `x.requires_grad` is false, code under `torch.no_grad()`,
    evaluation, inference and tests, helpers that return nothing (they are called for the write). If the function
    itself has the operation that saves the tensor, DDP203 reports it instead. Only with `--preview`: a caller that
    reads the tensor again, where nothing is seen to have saved it. None of the 25 findings of this rule that were read
    in public code was an error: the write was meant, or nothing used the value that it replaced.

    ## How to confirm

    `ddp-lint verify model.py`: the exception in backward if the caller's tensor was saved.

    ## Fix safety

    `x += y` becomes `x = x + y`: unsafe, because the caller may rely on the write.

    ## References

    - https://pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
    """

    confidence = Confidence.MEDIUM
    #: Classes with a constructor too: a method of one may be what calls the function that writes.
    triggers = Triggers(Trait.WRITES, Trait.CONSTRUCTS, file=("torch",), tests=False)
    oracles = ("exception", "gradient")

    def check(self, write: Write, function: Code, reached: Reached | None) -> None:
        argument = write.value.argument
        kept = write.save is not None and write.save.certain
        if not argument or kept or not write.value.tensor or not write.gradient:
            return
        helper = reached is None
        if helper and not any(conditions(self.module, write.node)):
            reached = TensorFile.of(self.module).called(function)
        if reached is None or not reached.gradient or write.value.detached or write.value.name:
            return
        # What a function of the file gets shows whether it has a gradient; of what a module gets its name tells.
        if (not helper and words_of(argument) & names("in_place", "written_arguments")) or not _computes(write):
            return
        if self._is_data(write):
            return
        held = self._held(function, argument) if not reached.chain or _returns(function) else None
        if held is None or (helper and not (held[1].saved and self._has_gradient(function, argument, held[0]))):
            return
        site, need = held
        self.report(
            write.node,
            "forward overwrites the caller's tensor "
            f"{self.module.quoted(write.target)}{self.way(reached)}: `backward()` may raise",
            labels=[(site.span, f"this caller still needs it: {need.why}")],
            help=f"make a new tensor: `{argument} = {argument} + ..`, or start with `{argument} = {argument}.clone()`",
            confidence=None if need.saved else Confidence.LOW,
            fix=self.out_of_place(write),
        )

    def _is_data(self, write: Write) -> bool:
        """Whether no gradient flows to the argument: in a frontend, and where ``x.requires_grad`` is false."""
        owner = self.module.class_of(write.node)
        if transforms_samples(self.module, write.node):
            return True
        if owner is not None and words_of(owner.name.value) & names("in_place", "data_classes"):
            return True
        asked = f"{self.module.code(write.target).partition('[')[0]}.requires_grad"
        return any(self.module.code(test) == asked and not taken for test, taken in conditions(self.module, write.node))

    def _has_gradient(self, function: Code, argument: str, site: CallSite) -> bool:
        """Whether what a call in this file gives a function comes from parameters."""
        calls = calls_in_file(self.module, function) if isinstance(function, cst.FunctionDef) else ()
        for call in calls:
            span, around = self.module.span(call), self.module.function_of(call)
            if (span.line, span.column) == (site.span.line, site.span.column) and around is not None:
                given = site.given(function, argument) if isinstance(function, cst.FunctionDef) else None
                place = next((i for i, each in enumerate(site.node.args) if each is given), None)
                value = self.flow(around).value(call.args[place].value) if place is not None else None
                return value is not None and value.carries_gradient and not value.detached
        return False

    def _held(self, function: Code, argument: str) -> tuple[CallSite, _Need] | None:
        """A call that passes a tensor which is needed afterwards, with what needs it."""
        if isinstance(function, cst.Module):
            return None
        for site in call_sites(self.module, function):
            given = site.given(function, argument)
            tensors = TensorFile.of(self.module)
            caller = _Caller(site, tensors.class_around(site), tensors.keeping)
            if caller.owner is None and self.module.class_of(function) is None:
                continue  # no module calls the function there
            need = caller.needs(given) if given is not None else None
            if need is not None:
                return site, need
        return None


class _Need(NamedTuple):
    """Why a caller needs a tensor, and whether autograd has saved it."""

    why: str
    saved: bool


@dataclasses.dataclass(frozen=True)
class _Caller:
    """The function around a call: what happens to a tensor that the call gets."""

    site: CallSite
    owner: ModuleClass | None
    keeping: Keeping

    def needs(self, given: ast.expr) -> _Need | None:
        """What still needs the tensor once the call has it, None where nothing is seen to."""
        maker = self._saving_result(given)
        if maker or not isinstance(given, ast.Name) or self.site.around is None:
            return _Need(f"`{maker}` saves its result for backward", saved=True) if maker else None
        mentions = [
            n for n in walk(self.site.around) if isinstance(n, ast.Name) and n.id == given.id and n is not given
        ]
        made = [n for n in mentions if isinstance(n.ctx, ast.Store) and n.lineno < given.lineno]
        since = max((n.lineno for n in made), default=0)
        if len(made) == 1 and (maker := self._saving_result(self._made_by(made[0]))):
            return _Need(f"`{maker}` saves its result for backward", saved=True)
        for read in (n for n in mentions if isinstance(n.ctx, ast.Load) and not self._is_asked(n)):
            if since < read.lineno < given.lineno and (layer := self._saving(read)):
                return _Need(f"`{layer}` saves it for backward", saved=True)
            if self._is_after(read):
                return _Need(f"line {read.lineno} reads it again", saved=False)
        return None

    @functools.cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        around = self.site.around
        nodes = walk(around) if around is not None else ()
        return {child: parent for parent in nodes for child in ast.iter_child_nodes(parent)}

    def _saving_result(self, made: ast.AST | None) -> str:
        """The function, method or layer that makes something and saves it for backward, as it is written."""
        if not isinstance(made, ast.Call):
            return ""
        return self._written(made) if self._kept_by(made).output is not None else ""

    def _saving(self, read: ast.Name) -> str:
        """What saves a tensor for backward where it is read, as it is written."""
        by = self._parents.get(read)
        if isinstance(by, ast.BinOp) and isinstance(by.op, (ast.Mult, ast.Div, ast.MatMult)):
            return ast.unparse(by)
        if isinstance(by, ast.Attribute) and isinstance(by.value, ast.Name):  # `x.log()`
            method = self._parents.get(by)
            by, place = (method if isinstance(method, ast.Call) and method.func is by else None), 0
        elif isinstance(by, ast.Call) and read in by.args:
            place = by.args.index(read)
        else:
            return ""
        return self._written(by) if isinstance(by, ast.Call) and place in self._kept_by(by).inputs else ""

    def _written(self, call: ast.Call) -> str:
        return dotted_ast(call.func) or ast.unparse(call.func).rpartition(".")[2]

    def _kept_by(self, call: ast.Call) -> Kept:
        return self.keeping.of_call(call, self.site.facts, self.owner)

    def _made_by(self, bound: ast.Name) -> ast.AST | None:
        statement = self._parents.get(bound)
        return statement.value if isinstance(statement, ast.Assign) else None

    def _is_asked(self, read: ast.Name) -> bool:
        """``x.shape``, ``x is None``: the values are not read."""
        parent = self._parents.get(read)
        return isinstance(parent, ast.Compare) or (isinstance(parent, ast.Attribute) and parent.attr in _ASKED)

    def _is_after(self, read: ast.Name) -> bool:
        """Whether a name is read in the same expression, or below the call while it still refers to the tensor."""
        call, statement = self.site.node, self._statement(self.site.node)
        if self._statement(read) is statement:
            return not any(n is read for n in walk(call))
        if self._are_apart(call, read):
            return False
        names_bound = (n for n in self._parents if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        bound = [n.lineno for n in names_bound if n.id == read.id and n.lineno >= call.lineno]
        return read.lineno > (call.end_lineno or call.lineno) and not any(line <= read.lineno for line in bound)

    def _are_apart(self, one: ast.AST, other: ast.AST) -> bool:
        """Whether two places are in different arms of one test."""
        arms = dict(self._arms(one))
        return any(arms.get(test, arm) != arm for test, arm in self._arms(other))

    def _arms(self, node: ast.AST) -> Iterator[tuple[ast.If, bool]]:
        while (up := self._parents.get(node)) is not None:
            if isinstance(up, ast.If):
                yield up, node in up.orelse
            node = up

    def _statement(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, ast.stmt) and node in self._parents:
            node = self._parents[node]
        return node


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
    return method_of(node) in _ARITHMETIC

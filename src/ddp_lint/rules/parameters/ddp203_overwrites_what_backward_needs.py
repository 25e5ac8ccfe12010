from __future__ import annotations

import itertools
import re

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge import table
from ddp_lint.project.requirements import requires_older
from ddp_lint.rules.parameters.in_place import InPlaceRule
from ddp_lint.rules.parameters.saved_by_hand import overwritten
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source.control_flow import conditions, exclusive
from ddp_lint.source.queries import options
from ddp_lint.source.tree import called, names_in, subtree
from ddp_lint.tensors import Code, Reached, Write
from ddp_lint.tensors.state import Save

#: What returns several views of one tensor at once; `tensor_split`, `hsplit` and the like make one after the other.
_SPLITS = ("chunk", "split", "unbind")


class OverwritesWhatBackwardNeeds(InPlaceRule):
    """A tensor that autograd saved for backward is written in place.

    ## What it does

    Finds `x += y`, `x[i] = y`, `x.add_(y)`, an activation or dropout with `inplace=True`, and the like on a tensor that
    an earlier operation of the same function saves for backward: its input (convolutions, linear layers, norms, matmul,
    pooling, GELU, `log`, `gather`, ...) or its output (softmax, sigmoid, tanh, ReLU, `exp`, `sqrt`, ...), if parameters
    are involved, so that gradients are certainly needed. The order of execution is taken into account: branches of an
    `if` are separate, and loops are read twice, so that a write is also compared with operations of the previous
    iteration. Where one arm of an `if` saves and the other does not, a write to its result behind it counts if its own
    tests name nothing that the test of the `if` names. The same on one of the views that `chunk`, `split` or `unbind`
    return: `q, k, v = self.qkv(x).chunk(3)`, `q *= s`; and on an argument that the `forward` of an autograd function
    has given to `ctx.save_for_backward`.

    ## Why it breaks

    Backward needs the tensor as it was. Autograd counts writes and raises "one of the variables needed for gradient
    computation has been modified by an inplace operation" in `backward()`, on every rank, with or without DDP. It does
    not count writes through `.data`: there is no error, and the gradient is wrong (0.031 off in a two-parameter model,
    the same under DDP, FSDP1 and FSDP2; measured on 2 x H200 with NCCL, torch 2.11, and gloo, torch 2.13). What each
    operation saves was measured. A write to one of several views raises at once, where the tensor has a gradient. An
    autograd function saves what its tensors are when its `forward` ends, so that nothing notices a write in it: with
    `ctx.save_for_backward(x)` before `x.mul_(torch.sigmoid(x))` the gradient at -1 is 0.37 in place of 0.07 (measured).

    ## Example

    ```python
    import torch
    from torch import nn


    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.norm = nn.LayerNorm(8)

        def forward(self, x):
            h = self.fc(x)
            y = self.norm(h)
            h += y  # <- DDP203
            return h


    def ddp_lint_example():
        return Block(), (torch.randn(4, 8),)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.norm = nn.LayerNorm(8)

        def forward(self, x):
            h = self.fc(x)
            y = self.norm(h)
            h = h + y
            return h


    def ddp_lint_example():
        return Block(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    A residual added to the fresh output of a layer (`out = self.conv(x); out += x`), `inplace=True` after convolutions,
    linear layers and norms: that output is not saved, and the result was measured to be right. Operations that save
    nothing: addition, views, dropout, embeddings, `cat`, `mean`. A linear layer that takes `x.transpose(1, 2)` or
    `x.permute(0, 2, 1)`: it saves a copy, where the batch is over 1 (tried). Code under `torch.no_grad()` or
    `torch.inference_mode()`, evaluation branches, tests, and tensors that depend on the function's arguments alone, as
    these may not need a gradient. What a round of a loop saves under a test of its own. Another element of a list in
    each round of a loop (`outs[i]`); what the first round of a loop binds again before the others write it. Under
    autocast a layer may save a cast copy instead; then the write is harmless until autocast is turned off. The result
    of a ReLU in a project that requires a torch before 1.10, where it keeps its input.

    ## How to confirm

    `ddp-lint verify model.py`: the exception in backward with this line's tensor; for `.data`, a gradient that differs
    from that of the out-of-place program.

    ## Fix safety

    `x += y` becomes `x = x + y`: safe for a tensor made in the function, unsafe for an argument, because the caller
    may rely on the write. There is no fix for writes to a part of a tensor (use `torch.where` or `torch.cat`).

    ## References

    - https://pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd
    """

    triggers = Triggers(Trait.WRITES, "save_for_backward", file=("torch",), tests=False)
    oracles = ("exception", "gradient")

    def start(self) -> None:
        self._seen: set[cst.CSTNode | Span] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        super().visit_FunctionDef(node)
        for write, name, save in overwritten(self.module, node):
            if write in self._seen:
                continue  # several call the function that it is in
            self._seen.add(write)
            self.report(
                write,
                f"`{name}` is overwritten after `save_for_backward` kept it: gradients are wrong, without an error",
                labels=[(save, "backward gets the tensor as it will be then, not as it is here")],
                help="compute a new tensor; one that works in place marks it (`ctx.mark_dirty(x)`) and saves that",
            )

    def check(self, write: Write, function: Code, reached: Reached | None) -> None:
        views = self._one_of_views(write, function) if write.gradient else None
        if views is not None:
            self._report_view(write, views)
            return
        save = write.save or self._on_one_arm(write)
        if save is None or not save.certain or not write.gradient or write.value.name:
            return
        if self._is_another_each_round(write.target, save.node, function) or self._is_bound_anew(write, save.node):
            return
        if self._keeps_input_instead(save):
            return
        tensor = self.module.code(write.target)
        role = "its result" if save.as_output else "its input"
        if write.value.detached:
            outcome = "gradients are wrong, without an error"
        else:
            outcome = "`backward()` raises on every rank"
        self.report(
            write.node,
            f"`{tensor}` is overwritten after `{save.what}` saved it for backward: {outcome}",
            labels=[(save.node, f"`{save.what}` saves {role} for backward")],
            help="make a new tensor instead: `x = x + y` for `x += y`, torch.where or cat for a part",
            fix=self.out_of_place(write),
        )

    def _keeps_input_instead(self, save: Save) -> bool:
        """Whether the torch that the project requires has the operation keep its input, where today's keeps the result:
        an older `relu`, but for one that works in place."""
        project, facts = self.module.project, self.module.facts
        if project is None or facts is None or not save.as_output or self.module.file.holds("inplace"):
            return False
        since = table("tensors")["saves_output_since"]
        done = {part.lower() for part in re.findall(r"\w+", save.what)}
        return any(
            name in done and requires_older(project, "torch", version, facts.source.inside)
            for name, version in since.items()
        )

    def _on_one_arm(self, write: Write) -> Save | None:
        """What has kept the tensor in the one arm of an `if` whose other arm makes another one, where the test for the
        write has nothing to do with that: ``g = proj(x).sigmoid() if gated else ones; if mask is not None: g *= mask``.
        """
        save = write.perhaps
        if save is None or not save.as_output or not isinstance(write.target, cst.Name):
            return None
        earlier = self.module.scopes.last_before(self.module.bindings(write.target, write.node), write.node)
        made = options([b.value for b in earlier if b.kind == "assign" and b.value is not None and not b.index])
        if all(value is not save.node for value in made):
            return None  # the arm goes on with another tensor
        above = {*self.module.ancestors(write.node)}
        around = itertools.takewhile(lambda up: not isinstance(up, cst.FunctionDef), self.module.ancestors(save.node))
        if any(isinstance(up, (cst.For, cst.While)) for up in around):
            return None  # of the rounds the last one may have saved nothing
        own = [up for up in self.module.ancestors(save.node) if isinstance(up, (cst.If, cst.IfExp)) and up not in above]
        kept_by = {name for up in own for name in names_in(up.test)}
        tests = {name for test, _ in conditions(self.module, write.node) for name in names_in(test)}
        return save if own and kept_by.isdisjoint(tests - {"self"}) else None

    def _is_another_each_round(self, target: cst.CSTNode, saved: cst.CSTNode, function: Code) -> bool:
        """Whether what is saved below the write, in an earlier round of a loop, is another element of a list:
        ``outs[i]``, where the loop counts `i`. Elements of a tensor share its count of writes."""
        code, line = self.module.code(target), self.module.span(target).line
        alike = any(isinstance(n, cst.Subscript) and self.module.code(n) == code for n in subtree(saved))
        if not alike or self.module.span(saved).line <= line:
            return False
        names, whole = set[str](), target
        while isinstance(whole, cst.Subscript):
            names |= {name for part in whole.slice for name in names_in(part)}
            whole = whole.value
            if self.flow(function).value(whole).tensor:
                return False
        loops = (up for up in self.module.ancestors(target) if isinstance(up, cst.For))
        return any(not names.isdisjoint(names_in(loop.target)) for loop in loops)

    def _is_bound_anew(self, write: Write, saved: cst.CSTNode) -> bool:
        """Whether a round before the write binds the name again, where what is saved is behind the loop and comes back
        to it by a loop around: ``for p in range(n): if p == 1: total = x / d; else: total += x / d``."""
        name, inner = write.target, list[cst.CSTNode]()
        if not isinstance(name, cst.Name):
            return False
        for up in self.module.ancestors(write.node):
            inner.append(up)
            if isinstance(up, (cst.For, cst.While)):
                break
        if not isinstance(inner[-1], (cst.For, cst.While)) or any(node is saved for node in subtree(inner[-1])):
            return False
        arms = [up for up in inner if isinstance(up, cst.If)]
        bound = (b.node for b in self.module.bindings(name) if b.kind == "assign")
        return any(arm in set(self.module.ancestors(node)) for node in bound for arm in arms)

    def _one_of_views(self, write: Write, function: Code) -> cst.Call | None:
        """The call that returned what is written, together with other views of a tensor with a gradient."""
        target = write.target
        while isinstance(target, cst.Subscript):
            target = target.value
        if not isinstance(target, cst.Name):
            return None
        earlier = self.module.scopes.last_before(self.module.bindings(target, write.node), write.node)
        whole = (b for b in earlier if b.kind != "augment" and not exclusive(self.module, b.node, write.node))
        bound = next(whole, None)
        made = bound.value if bound is not None and bound.kind == "assign" and bound.index else None
        if not isinstance(made, cst.Call) or called(made) not in _SPLITS:
            return None
        method = isinstance(made.func, cst.Attribute) and self.module.qualified(made.func) == ""
        base = made.func.value if method and isinstance(made.func, cst.Attribute) else made.args[0].value
        value = self.flow(function).value(base)
        return made if value.tensor and value.carries_gradient and not value.detached else None

    def _report_view(self, write: Write, views: cst.Call) -> None:
        self.report(
            write.node,
            f"`{self.module.code(write.target)}` is one of the views that `{called(views)}` returns: writing it raises",
            labels=[(views, "returns several views of one tensor")],
            help="make a new tensor instead: `x = x * y` for `x *= y`",
            fix=self.out_of_place(write),
        )

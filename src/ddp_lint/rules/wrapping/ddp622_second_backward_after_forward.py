from __future__ import annotations

import ast
import bisect
import builtins
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.training import backwards_of
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import of_self
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import calls_below, parameters, walk
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.tensors.contexts import without_gradient
from ddp_lint.view.accumulation import is_backward
from ddp_lint.view.wraps import Wrap, argument

_CONDITIONAL = (cst.If, cst.Else, cst.ExceptHandler, cst.MatchCase, cst.IfExp, cst.Lambda, cst.While)
_LEAVES = (cst.Return, cst.Raise, cst.Continue, cst.Break)
#: Names of what averages gradients by hand, or leaves it out.
_BY_HAND = frozenset({"no_sync", "all_reduce", "reduce_scatter_tensor", "all_gather"})
_STEPPING = frozenset({"zero_grad", "step"})
_OPTIMIZING = frozenset({*_STEPPING, "update", "unscale_", "backward", "scale", "manual_backward"})


class SecondBackwardAfterForward(Rule):
    """Two backward passes follow a forward of one DDP model: the gradients of the second are not averaged.

    ## What it does

    Finds two `backward()` calls in one function on outputs of the same DistributedDataParallel model, with no forward
    of the model between them: two losses on one output (`retain_graph=True`), or two outputs followed by two backward
    passes; also one `backward()` in a loop without a forward.

    ## Why it breaks

    A forward of DDP prepares the averaging for one backward. The first backward after it averages; in the next one the
    hooks do nothing, rank 0 and rank 1 add the gradients of their own batches, and no error is raised. Measured on
    gloo (torch 2.13): the gradients of the ranks differ by 0.2 (one output) and 0.33 (two outputs), with and without
    `find_unused_parameters` and `static_graph`; on 2 x H200 (NCCL, torch 2.11) the parameters by 0.0094. FSDP1 raises,
    FSDP2 is correct.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


    def train():
        model = DDP(torch.nn.Linear(4, 4).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            out = model(torch.randn(8, 4, device=device) + dist.get_rank())
            out.square().mean().backward(retain_graph=True)
            out.abs().mean().backward()  # <- DDP622
            optimizer.step()
            optimizer.zero_grad()


    train()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


    def train():
        model = DDP(torch.nn.Linear(4, 4).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            out = model(torch.randn(8, 4, device=device) + dist.get_rank())
            (out.square().mean() + out.abs().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()


    train()
    dist.destroy_process_group()
    ```

    ## When it is silent

    A forward between the two, also in a function that is called in between; another forward and backward of the model
    before the step, which average all that was added up (measured on two ranks); two branches of one `if`; a first
    backward that only some runs reach; outputs that were detached, also by the forward of the model that gets them;
    `backward(inputs=...)`; functions that mention `no_sync` or reduce the gradients by hand.

    ## How to confirm

    `ddp-lint verify train.py`: the gradients of the ranks differ at `optimizer.step()`.

    ## Fix safety

    No automatic fix: add the losses and call `backward()` once, or run the second forward after the first backward.

    ## References

    - https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """

    triggers = Triggers("backward", "DistributedDataParallel", file=("DistributedDataParallel",))
    oracles = ("gradient", "parameter", "reference")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        calls = list(calls_in(node.body))
        if not any(map(is_backward, calls)) or self._by_hand(node):
            return
        forwards: dict[str, list[tuple[cst.Call, Wrap]]] = {}
        for call in calls:
            name = dotted(call.func)  # a function may have another one for it than where it is wrapped
            wrap = self.module.wraps.of(name, call) if name else None
            if wrap is not None and wrap.kind == "ddp" and not without_gradient(self.module, call):
                forwards.setdefault(name, []).append((call, wrap))
        detached = [(name, arg) for name, made in forwards.items() for one in made for arg in self._detached(*one)]
        order = _Order(calls)
        for model, made in forwards.items():
            ends = frozenset(arg for name, arg in detached if name != model)
            reached = backwards_of(self.module, [call for call, _ in made], ends)
            inside = [call for call in reached if call in order.places and argument(call, None, "inputs") is None]
            self._check(model, made[0][1], order, sorted(inside, key=order.places.__getitem__))

    def _by_hand(self, function: cst.FunctionDef) -> bool:
        """The function decides itself when gradients are averaged."""
        words = {word for word in _BY_HAND if self.module.file.holds(word)}
        return bool(words) and any(type(n) is cst.Name and n.value in words for n in self.module.inside(function))

    def _detached(self, call: cst.Call, wrap: Wrap) -> Iterator[cst.Arg]:
        """The arguments of a forward of which the model inside uses nothing but what it detaches."""
        model, project = argument(wrap.call, 0, "module"), self.module.project
        kind = self.module.constructed_by(model) if model is not None else ""
        found = project.classes.method(kind, "forward") if project is not None and kind else None
        if found is None:
            return
        taken = [p.arg for p in parameters(found[1])][1:]
        for place, arg in enumerate(call.args):
            name = arg.keyword.value if arg.keyword is not None else taken[place] if place < len(taken) else ""
            if name in taken and not arg.star and _is_always_detached(name, found[1]):
                yield arg

    def _check(self, model: str, wrap: Wrap, order: _Order, backwards: list[cst.Call]) -> None:
        place = order.places
        following = _Following(order, backwards, lambda call: self._readies(model, calls_in(call)))
        for first, second in itertools.pairwise(backwards):
            between = (*order.calls[place[first] + 1 : place[second]], *calls_in(second))
            # A forward of the model and its backward follow before a step: they average all that was added up.
            later = following.backward_after(place[second])
            caught_up = later is not None and self._always_before(later, second)
            if self._always_before(first, second) and not self._readies(model, between) and not caught_up:
                self._report(model, wrap, second, [(first, "averages the gradients")])
                return
        loops: dict[cst.For, bool] = {}
        for only in backwards:
            loop = next((up for up in self.module.ancestors(only) if isinstance(up, (cst.For, cst.While))), None)
            if isinstance(loop, cst.For):
                if loop not in loops:
                    loops[loop] = self._goes_round_without(model, loop)
                if loops[loop]:
                    self._report(model, wrap, only, [])
                    return

    def _goes_round_without(self, model: str, loop: cst.For) -> bool:
        """Whether a loop has calls, and none that is a forward of the model: not where it may be one round only."""
        inside = [n for n in descendants(loop.body) if isinstance(n, cst.Call)]
        return bool(inside) and not self._leaves(loop) and not self._readies(model, inside)

    def _report(self, model: str, wrap: Wrap, node: cst.Call, labels: list[tuple[cst.CSTNode, str]]) -> None:
        self.report(
            node,
            f"no forward of `{model}` prepares DDP for this backward: its gradients are not averaged",
            notes=["rank 0 and rank 1 step with the gradients of their own batches"],
            labels=[*labels, (wrap.place, "wrapped here")],
            help="add the losses and call backward() once, or run a forward between the two",
        )

    def _always_before(self, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        """Every run that reaches `second` has passed `first`."""
        before, after = set(self.module.ancestors(first)), set(self.module.ancestors(second))
        sometimes = any(isinstance(up, _CONDITIONAL) for up in before - after)
        instead = any(isinstance(up, cst.ExceptHandler) for up in after - before)
        return not sometimes and not instead and not exclusive(self.module, first, second)

    def _leaves(self, loop: cst.CSTNode | None) -> bool:
        """The loop may be one round only: it is left early, or tried again."""
        return loop is not None and any(isinstance(n, _LEAVES) for n in descendants(loop))

    def _readies(self, model: str, calls: Iterable[cst.Call]) -> bool:
        """One of the calls is a forward of the model, or may run one."""
        return any(self._may_run(model, call) for call in calls)

    def _may_run(self, model: str, call: cst.Call) -> bool:
        name = dotted(call.func)
        own = bool(of_self(name))
        if called(call) in _OPTIMIZING and not own:
            return False
        given = (n for arg in call.args for n in subtree(arg.value))
        if name == model or any(dotted(n) == model for n in given):
            return True
        if own:
            return model.startswith("self.")
        if not name or "." in name or hasattr(builtins, name):
            return False
        bound = self.module.bindings(name, call)
        return not bound or any(b.kind == "function" or isinstance(b.value, cst.Lambda) for b in bound)


class _Order:
    """The calls of a function in their order, with the places of those that are a step of an optimizer."""

    def __init__(self, calls: Sequence[cst.Call]) -> None:
        self.calls = calls
        self.places = {call: place for place, call in enumerate(calls)}
        self.steps = [place for place, call in enumerate(calls) if called(call) in _STEPPING]


class _Following:
    """What follows a call of a function, asked for calls in their order: each is looked at once for all of them."""

    def __init__(self, order: _Order, backwards: Iterable[cst.Call], is_ready: Callable[[cst.Call], bool]) -> None:
        self._order, self._is_ready = order, is_ready
        self._backwards = [order.places[call] for call in backwards]
        #: The place of the first call that readies the model, or that was not looked at so far.
        self._ready = 0

    def backward_after(self, place: int) -> cst.Call | None:
        """The first of the backwards behind a call that readies the model, before the next step."""
        calls, steps = self._order.calls, self._order.steps
        step = bisect.bisect_right(steps, place)
        last = steps[step] if step < len(steps) else len(calls) - 1
        self._ready = max(self._ready, place + 1)
        while self._ready <= last and not self._is_ready(calls[self._ready]):
            self._ready += 1
        found = bisect.bisect_left(self._backwards, self._ready)
        behind = self._ready <= last and found < len(self._backwards) and self._backwards[found] <= last
        return calls[self._backwards[found]] if behind else None


def _is_always_detached(name: str, function: ast.AST) -> bool:
    """Whether all that a function does with a parameter is to detach it, or a part of it: ``out["image"].detach()``."""
    uses = sum(isinstance(n, ast.Name) and n.id == name for n in walk(function))
    detached = 0
    for node in calls_below(function):
        part = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "detach" else None
        while isinstance(part, (ast.Subscript, ast.Attribute)):
            part = part.value
        detached += isinstance(part, ast.Name) and part.id == name
    return 0 < uses == detached

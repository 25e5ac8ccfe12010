from __future__ import annotations

import functools

import libcst as cst

from ddp_lint.knowledge.tensors import words_of
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import opposed
from ddp_lint.source.queries import is_false
from ddp_lint.source.tree import called, subtree
from ddp_lint.view.accumulation import calls_of_round, guards, is_backward, is_step, loop_of

_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"})
#: Words in a condition by which it may be the one that the optimizer steps under, in other words.
_ROUNDS = frozenset({"accumulate", "accumulated", "accumulation", "boundary", "last", "step", "sync", "update"})


class ClipOnEveryMicroBatch(Rule):
    """Accumulated gradients are clipped after every micro-batch instead of once before the step.

    ## What it does

    Finds a clipping of gradients that runs after each `backward()`, in a loop where the optimizer steps only in every
    n-th iteration, and `accelerator.clip_grad_norm_` under `with accelerator.accumulate(model)` without a test of
    `accelerator.sync_gradients`.

    ## Why it breaks

    The accumulated gradient is scaled to `max_norm` before each further micro-batch is added: the early micro-batches
    have almost no weight, the step follows the last one, and the logged norm is that of the last one. With a
    GradScaler that is unscaled before the clipping there is an error: the second micro-batch raises "unscale_() has
    already been called on this optimizer since the last update()". Under `no_sync` rank 0 and rank 1 each clip by the
    norm of their own batches before anything is averaged. Without a scaler there is no error; in fp16 accelerate
    unscales twice and raises. Measured on gloo (torch 2.13), two ranks, four micro-batches of equal size,
    `max_norm=1`: the direction of the step is 19 degrees off, and the norm is 6.3 instead of 21.3.

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

    model = DDP(torch.nn.Linear(4, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(4):
        (model(torch.randn(8, 4, device=device)).square().sum() / 4).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- DDP252
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

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

    model = DDP(torch.nn.Linear(4, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(4):
        (model(torch.randn(8, 4, device=device)).square().sum() / 4).backward()
        if (i + 1) % 4 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    The clipping is under the condition of the step, or under another condition; another optimizer steps in every
    iteration (an actor that trains less often than its critic); the gradients are set to zero in every iteration; the
    clipping is in a loop of another depth than the backward; an Accelerator in a file that never mentions gradient
    accumulation; a function that is called with the clipping turned off (`clip_grad=False`).

    ## How to confirm

    `ddp-lint verify train.py`: how often the line clipped before one step.

    ## Fix safety

    No automatic fix: the steps change, and the learning rate may have been tuned for the old ones.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
    - https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation#the-finished-code
    """

    triggers = Triggers("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", file=("backward",))
    oracles = ("clipped",)

    def visit_Call(self, node: cst.Call) -> None:
        if called(node) in _CLIPS and not any(is_false(arg.value) for arg in node.args if arg.keyword is not None):
            where, what = self._by_accelerate(node) or self._by_round(node) or (None, "")
            unscaled = self._unscaled(node) if where is not None else None
            if where is not None and unscaled is not None:
                self.report(
                    node,
                    "with a GradScaler the second micro-batch raises: unscale_() has already been called since the "
                    "last update()",
                    labels=[(unscaled, "unscales in every micro-batch"), (where, what)],
                    notes=["without one, the gradients of the early micro-batches are clipped again and again"],
                    help="unscale and clip once, right before scaler.step",
                )
            elif where is not None:
                self.report(
                    node,
                    "accumulated gradients are clipped after every micro-batch, so the early ones repeatedly",
                    notes=["under no_sync rank 0 and rank 1 clip by their own norms"],
                    labels=[(where, what)],
                    help="clip once, right before the step",
                )

    def _unscaled(self, node: cst.Call) -> cst.Call | None:
        """The ``scaler.unscale_(optimizer)`` that runs as often as the clipping."""
        around = set(guards(self.module, node))
        calls = (c for _, c in self._round(node).schedule if called(c) == "unscale_")
        same = (c for c in calls if not opposed(self.module, c, node))
        return next((c for c in same if around.issuperset(guards(self.module, c))), None)

    def _by_accelerate(self, node: cst.Call) -> tuple[cst.CSTNode, str] | None:
        """``with accelerator.accumulate(model)``, inside of which the optimizer steps in the last round only."""
        if not self.module.file.holds("gradient_accumulation"):
            return None
        for up in self.module.ancestors(node):
            if isinstance(up, cst.If) and "sync_gradients" in self.module.code(up.test):
                return None
            if isinstance(up, cst.FunctionDef):
                return None
            for item in up.items if isinstance(up, cst.With) else ():
                if isinstance(item.item, cst.Call) and called(item.item) == "accumulate":
                    return item.item, "the optimizer steps in the last of these iterations"
        return None

    def _by_round(self, node: cst.Call) -> tuple[cst.CSTNode, str] | None:
        """The condition, true in every n-th round, under which every optimizer of the loop steps."""
        place = self._round(node).clips.get(node)
        if place is None:
            return None
        calls = [(at, c) for at, c in self._round(node).schedule if not opposed(self.module, c, node)]
        steps = [c for at, c in calls if at > place and is_step(c)]
        backwards = [c for at, c in calls if at < place and is_backward(c) and self._round_of(c) is None]
        if not steps or not backwards or self._round_of(node) is not None:
            return None
        rounds = [self._round_of(c) for c in steps]
        around, shared = set(guards(self.module, node)), set(guards(self.module, steps[0]))
        cleared = any(called(c) == "zero_grad" and around.issuperset(guards(self.module, c)) for _, c in calls)
        if cleared or None in rounds or any(_speaks_of_rounds(test) for test in around - shared):
            return None
        return (rounds[0], "steps only in these iterations") if rounds[0] is not None else None

    def _round(self, node: cst.Call) -> _Round:
        """The calls that run as often as this one."""
        loop = loop_of(self.module, node)
        if loop not in self._by_loop:
            self._by_loop[loop] = _Round(calls_of_round(self.module, loop))
        return self._by_loop[loop]

    @functools.cached_property
    def _by_loop(self) -> dict[cst.CSTNode, _Round]:
        return {}

    def _round_of(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        """The condition around a node that counts rounds: ``(i + 1) % n == 0``."""
        return next((test for test in guards(self.module, node) if self._counts(test)), None)

    def _counts(self, test: cst.BaseExpression) -> bool:
        """``(i + 1) % n == 0``, also under a name, or of a counter that is cut so: ``state.micro %= n``."""
        counters = [p for p in subtree(test) if isinstance(p, (cst.Name, cst.Attribute)) and dotted(p)]
        values = [test, *(value for counter in counters for value in self.module.assignments(counter))]
        return any(
            isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Modulo)
            for value in values
            for part in subtree(value)
        )


class _Round:
    """The calls of one round of a loop: where it clips, and what else its schedule is made of, each with its place."""

    def __init__(self, calls: list[cst.Call]) -> None:
        self.clips = {call: place for place, call in enumerate(calls) if called(call) in _CLIPS}
        made_of = ((place, call) for place, call in enumerate(calls) if call not in self.clips)
        self.schedule = [
            (place, call)
            for place, call in made_of
            if called(call) in ("unscale_", "zero_grad") or is_step(call) or is_backward(call)
        ]


def _speaks_of_rounds(test: cst.BaseExpression) -> bool:
    names = (part.value for part in subtree(test) if isinstance(part, cst.Name))
    return any(words_of(name) & _ROUNDS for name in names)

"""Writes to the storages of parameters and buffers, also through `.data`, which the version counter does not see.

What each Call's arguments hold:
stale: name (of a parameter that backward reads), op (which wrote it, at the event's frames, after forward had used it)
"""

from __future__ import annotations

import collections
import functools
import hashlib
import sys
import weakref
from typing import Any

import torch
from torch import nn

from ddp_lint.verify import trace
from ddp_lint.verify.child.dispatch import arguments, is_mutable, is_random, namespace, tensors, written
from ddp_lint.verify.child.models import Model, Place, local, pointer
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.locks import SHOWING
from ddp_lint.verify.frames import is_user, outwards

#: Parts of torch that write parameters by design.
_WRAPPERS = ("torch/distributed/fsdp/", "torch/distributed/_composable/", "torch/nn/parallel/")
_OWNERS = (*_WRAPPERS, "torch/optim/")
#: What gives a parameter its first values.
_MAKERS = (*_WRAPPERS, "torch/nn/init.py")
#: Optimizer steps in which edits of gradients are looked for, and operators of each: what edits one edits them all.
_STEPS_LOOKED_AT, _ASKED = 5, 16
#: Parts of torch that write buffers by design (running statistics).
_BUFFER_OWNERS = ("torch/nn/modules/", "torch/nn/functional.py")


class Writes(Observer):
    """A Write for each parameter or buffer that an operator mutates, an Assign when its storage was exchanged."""

    def prepare(self) -> None:
        self._storages: dict[tuple[int, str], int] = {}
        #: Storages of parameters that autograd has used since the last backward.
        self._used: set[int] = set()
        #: By their storages the parameters that were written through `.data` behind such a use, each with what did.
        self._changed: dict[int, tuple[str, str, tuple[trace.Frame, ...]]] = {}
        #: Storages of the buffers that the user's code writes, and of those among them that forwards compute with.
        self._own: set[int] = set()
        self._computed_with: set[int] = set()
        #: Parameters of no known model, with the first operator of the user's code that wrote each and where: a copy of
        #: a model is known only when it runs.
        self._unknown: dict[int, tuple[weakref.ref[nn.Parameter], str, tuple[trace.Frame, ...]]] = {}
        #: Steps in which an optimizer was seen to draw random numbers.
        self._drawn: set[int] = set()
        #: By step the number of operators whose gradients are edited.
        self._asked: collections.Counter[int] = collections.Counter()

    def wants(self, op: Any) -> bool:
        return op.namespace in ("aten", "c10d") or bool(op._schema.is_mutable)

    def before(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.recorder.phase == "step" and is_random(op):
            self._note_draw(op)
        if self.recorder.phase in ("step", "wrap") or not self.models:
            return None
        if not is_mutable(op) and namespace(op) == "aten":
            self._note_use(op, args)
            return None
        targets = (
            tensors(list(arguments(op, args, kwargs).values())) if op.namespace == "c10d" else written(op, args, kwargs)
        )
        if namespace(op) == "aten" and self.recorder.phase == "after_backward":
            self._note_gradient(op, targets, _given(args, kwargs))
        places = [place for place in map(self._place, targets) if place is not None]
        if not places:
            self._note_unknown(op, targets)
            return None
        if _by_design(_OWNERS + (_BUFFER_OWNERS if all(place.role == "buffer" for place in places) else ())):
            return None
        numbers = tuple(float(n) for n in (*args, *kwargs.values()) if isinstance(n, int | float))
        return op, places, [place.tensor._version for place in places], numbers

    def after(self, token: Any, result: Any) -> None:
        op, places, versions, numbers = token
        if self.recorder.phase != "forward":
            self.recorder.parameters_written = True
        for place, version in zip(places, versions, strict=True):
            through_data = place.tensor._version == version  # autograd cannot know of it
            if place.role == "buffer":
                self._own.add(pointer(place.tensor))
            elif through_data and pointer(place.tensor) in self._used and self.recorder.phase != "after_backward":
                what = place.name, f"{op.namespace}.{op._opname}", self.recorder.here()
                self._changed.setdefault(pointer(place.tensor), what)
            self.recorder.emit(
                trace.Write,
                op=f"{op.namespace}.{op._opname}",
                name=place.name,
                role=place.role,
                wrap=place.wrap,
                numbers=numbers,
                sharded=place.sharded and not self._gathered(place),
                computed_with=pointer(place.tensor) in self._computed_with,
            )

    def _note_stale(self, args: tuple[Any, ...]) -> None:
        """Backward reads parameters that have changed since forward has used them."""
        for tensor in tensors(args):
            name, op, frames = self._changed.pop(pointer(tensor), ("", "", ()))
            if name:
                self.recorder.emit(trace.Call, frames=frames, name="stale", arguments={"name": name, "op": op})

    def _note_gradient(self, op: Any, targets: list[torch.Tensor], numbers: tuple[float, ...]) -> None:
        """A gradient that the user's own line edits between backward and step: some of the first steps' ones."""
        step = self.recorder.step
        if step >= _STEPS_LOOKED_AT or self._asked[step] >= _ASKED or not _of_users_line():
            return
        self._asked[step] += 1
        what = f"{op.namespace}.{op._opname}"
        for name, divided in map(self.models.gradient, targets):
            if name:
                self.recorder.emit(trace.Write, op=what, name=name, role="gradient", sharded=divided, numbers=numbers)

    def _note_unknown(self, op: Any, targets: list[torch.Tensor]) -> None:
        """Parameters of a module that has not run yet."""
        for tensor in targets:
            new = isinstance(tensor, nn.Parameter) and self._written_before(tensor) is None
            if new and not _by_design(_MAKERS):
                name = f"{op.namespace}.{op._opname}"
                self._unknown[id(tensor)] = weakref.ref(tensor), name, self.recorder.here()

    def _written_before(self, parameter: nn.Parameter) -> tuple[str, tuple[trace.Frame, ...]] | None:
        """What wrote it first while it belonged to no known model, and where."""
        held, op, frames = self._unknown.get(id(parameter), (None, "", ()))
        return (op, frames) if held is not None and held() is parameter else None

    def _note_draw(self, op: Any) -> None:
        """An optimizer of the user's own draws random numbers: the first time in a step."""
        step = self.recorder.step
        if step >= _STEPS_LOOKED_AT or step in self._drawn or not _of_users_line():
            return
        self._drawn.add(step)
        state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:16]
        self.recorder.emit(trace.Call, name="draws", arguments={"op": op._opname, "state": state})

    def _place(self, tensor: torch.Tensor) -> Place | None:
        """In backward, where autograd accumulates gradients in place all the time, by the storages at its start."""
        return self.models.place(tensor, as_of_backward=self.recorder.phase == "backward")

    def _gathered(self, place: Place) -> bool:
        """Under FSDP1 the modules' parameters are whole while a forward or backward runs."""
        return self.recorder.phase in ("forward", "backward") and local(place.tensor) is place.tensor

    def _note_use(self, op: Any, args: tuple[Any, ...]) -> None:
        """Remember the parameters (and views of them), and the buffers that the user's code writes, that an operator
        computes with while autograd records."""
        if self.recorder.phase == "backward":
            self._used.clear()
            if self._changed and not _is_view(op):
                self._note_stale(args)
        elif self.recorder.phase in ("forward", "between") and not _is_view(op) and torch.is_grad_enabled():
            for tensor in args:
                if isinstance(tensor, torch.Tensor) and isinstance(
                    tensor if tensor._base is None else tensor._base, nn.Parameter
                ):
                    self._used.add(pointer(tensor))
            if self._own:
                self._computed_with |= self._own & set(map(pointer, tensors(args)))

    # ---- p.data = tensor

    def wrapped(self, model: Model) -> None:
        self._storages = {}
        if model.replicated == trace.COPY:
            for name, parameter in model.parameters().items():
                noted = self._written_before(parameter)
                if noted is not None:
                    op, frames = noted
                    self.recorder.emit(trace.Write, frames=frames, op=op, name=name, wrap=trace.COPY)

    def before_step(self, optimizer: Any) -> None:
        self._changed.clear()
        self._look()

    def after_step(self, optimizer: Any) -> None:
        self._look()

    def _look(self) -> None:
        """Compare each parameter's storage with the last look (FSDP1 exchanges storages by design)."""
        for model in self.models:
            if model.wrap == "fsdp1":
                continue
            for name, parameter in model.parameters().items():
                address = pointer(parameter)
                if self._storages.setdefault((model.number, name), address) != address:
                    self._storages[model.number, name] = address
                    self.recorder.emit(trace.Assign, frames=(), name=name)


def _by_design(owners: tuple[str, ...]) -> bool:
    """torch itself writes there: between the operator and the user's frame lies one of its owners."""
    for here in outwards(sys._getframe(3)):
        path = here.f_code.co_filename
        if is_user(path):
            return False
        if any(owner in path for owner in owners):
            return True
    return True


def _of_users_line() -> bool:
    """The operator that is shown now is called by the user's line, by no function of torch between them."""
    files = (here.f_code.co_filename for here in outwards(sys._getframe(3)))
    return is_user(next((path for path in files if not any(part in path for part in SHOWING)), "<>"))


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, ...]:
    """The numbers that an operator changes its first argument by, on the host also as tensors."""
    values = [*args[1:], *kwargs.values()]
    return tuple(float(value) for value in values if isinstance(value, int | float) or _is_number(value))


def _is_number(value: Any) -> bool:
    """A tensor that can be read without a wait, and is one real number."""
    return (
        isinstance(value, torch.Tensor)
        and not value.dim()
        and value.device.type == "cpu"
        and local(value) is value
        and not value.is_complex()
    )


@functools.cache
def _is_view(op: Any) -> bool:
    """The operator gives another look at its argument and computes nothing."""
    return any(argument.alias_info is not None for argument in op._schema.arguments)

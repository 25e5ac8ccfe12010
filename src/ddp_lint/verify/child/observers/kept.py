"""State dicts that the program keeps, and whether their tensors were written since.

What each Call's arguments hold:
state_dict: serial (of the call) · kept: serial, written (how many of the tensors were), tensors (how many there are)
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.observers.base import Observer


class Kept(Observer):
    """Looks at them whenever the program loads or saves something: that is what they were kept for."""

    def prepare(self) -> None:
        #: By serial number what `state_dict()` returned, while the program holds it, and the versions of its tensors.
        self._held: dict[int, tuple[weakref.ref[Any], list[int]]] = {}
        self._calls = 0

    def install(self) -> None:
        patching.after(nn.Module, "state_dict", self._returned)
        patching.before(nn.Module, "load_state_dict", lambda *_, **__: self._look())
        patching.before(torch.serialization, "save", lambda *_, **__: self._look())

    def _returned(self, state: Any, _module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not self.recorder.active or args or "destination" in kwargs or not self.recorder.here():
            return
        self._calls += 1
        self._held[self._calls] = (weakref.ref(state), _versions(state))
        self.recorder.emit(trace.Call, name="state_dict", arguments={"serial": self._calls})

    def _look(self) -> None:
        for serial, (held, before) in list(self._held.items()):
            state = held()
            now = _versions(state) if state is not None else []
            if state is None or len(now) != len(before):
                del self._held[serial]
            elif written := sum(one != other for one, other in zip(now, before, strict=True)):
                del self._held[serial]
                arguments = {"serial": serial, "written": written, "tensors": len(now)}
                self.recorder.emit(trace.Call, name="kept", arguments=arguments)


def _versions(state: Any) -> list[int]:
    tensors = (value for value in state.values() if isinstance(value, torch.Tensor))
    return [tensor._version for tensor in tensors if not tensor.is_inference()]

"""Threads of the program that communicate in a group while another thread is in a call on it.

The mode that shows operators to observers is that of one thread. What other threads call is no part of the trace: when
they do is chance, and often of no account. That two of them are in one group at a time is a fault of its own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.dispatch import OWN_DISPATCH, arguments
from ddp_lint.verify.child.models import Models
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.collectives import APIS, Collectives
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.frames import outwards, user_frames


class Threads(Observer):
    """Writes a Crossing, the first time on each group."""

    def __init__(self, recorder: Recorder, models: Models, collectives: Collectives) -> None:
        super().__init__(recorder, models)
        self._collectives = collectives
        self._started = False
        #: By thread the group and the name of its latest call.
        self._called: dict[int, tuple[str, str]] = {}
        self._reported: set[str] = set()

    def install(self) -> None:
        patching.before(threading.Thread, "start", self._starts)

    def _starts(self, thread: threading.Thread) -> None:
        if self.recorder.quiet or thread.name.startswith("ddp-lint"):
            return
        self._started = True
        run = thread.run

        def shown() -> None:
            with _Mode(self._calls):
                run()

        thread.run = shown  # type: ignore[method-assign]

    def wants(self, op: Any) -> bool:
        return op.namespace == "c10d" and self._collectives.wants(op)

    def before(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._started:
            self._calls(op, args, kwargs)

    def _calls(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = self._collectives.name_of(op)
        if not self.wants(op) or name in ("send", "recv"):
            return
        group = self._collectives.group_of(arguments(op, args, kwargs))[0]
        me = threading.get_ident()
        for other, (of, called) in list(self._called.items()):
            frame = sys._current_frames().get(other) if other != me and of == group else None
            if group not in self._reported and any(here.f_code.co_filename.endswith(APIS) for here in outwards(frame)):
                self._reported.add(group)
                self.recorder.emit(trace.Crossing, op=name, group=group, amid=called, earlier=user_frames(frame))
        self._called[me] = (group, name)


class _Mode(TorchDispatchMode):
    """Shows the operators of one thread."""

    def __init__(self, notice: Callable[..., None]) -> None:
        super().__init__()
        self._notice = notice

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(cls.__name__ in OWN_DISPATCH for cls in types):
            return NotImplemented
        if func.namespace == "c10d":
            self._notice(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

"""Environment variables that user code sets, what had happened by then, and what is in force."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

from ddp_lint import knowledge
from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.frames import is_user, outwards


class EnvironmentWrites(Observer):
    """An Environment event for each write, and one more (`final`) for each variable written, at the end."""

    def install(self) -> None:
        self._written: dict[str, str | None] = {}
        patching.before(type(os.environ), "__setitem__", lambda _, name, value: self._set(name, value))
        patching.before(type(os.environ), "__delitem__", lambda _, name: self._set(name, None))

    def _set(self, name: Any, value: Any) -> None:
        if self.recorder.quiet or not isinstance(name, str) or not _by_user():
            return
        self._written[name] = None if value is None else str(value)
        self._emit(name, final=False)

    def finish(self) -> None:
        for name in self._written:
            self._emit(name, final=True)

    def _emit(self, name: str, *, final: bool) -> None:
        self.recorder.emit(
            trace.Environment,
            **({"frames": ()} if final else {}),
            name=name,
            value=self._written[name],
            previous=os.environ.get(name),
            in_force=in_force(name),
            final=final,
            **_facts(self),
        )


def _facts(observer: Observer) -> dict[str, Any]:
    """What has happened in this process that reads environment variables."""
    torch = sys.modules.get("torch")
    complete = torch is not None and hasattr(torch, "compile")
    distributed = getattr(torch, "distributed", None) if complete else None
    return {
        "torch_imported": complete,
        "cuda_initialized": complete and _cuda_initialized(torch),
        "group_up": bool(distributed is not None and distributed.is_available() and distributed.is_initialized()),
        "ddp_built": observer._models is not None and any(model.wrap == "ddp" for model in observer.models),
    }


def in_force(name: str) -> str | None:
    """The value that the variable's reader uses, for those that can be queried without a side effect."""
    table = knowledge.table("environment")
    if name in table["renamed"]:
        return os.environ.get(table["renamed"][name], os.environ.get(name))
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compile"):
        return None
    if name in table["renamed"].values():
        # Read when the process group is created; a later value has no effect.
        return None if torch.distributed.is_initialized() else os.environ.get(name)
    if name == "OMP_NUM_THREADS":
        return str(torch.get_num_threads())
    if name == "TORCH_DISTRIBUTED_DEBUG":
        return str(torch.distributed.get_debug_level().name)
    if name == "CUDA_VISIBLE_DEVICES" and _cuda_initialized(torch):
        return _visible(os.environ.get(name, ""), torch._C._cuda_getDeviceCount())
    return None


def _cuda_initialized(torch: Any) -> bool:
    """Whether there is a context on a GPU, regardless of what is reported to the user's code."""
    return bool(inspect.unwrap(torch.cuda.is_initialized)())


def _visible(written: str, count: int) -> str:
    """The list as written where CUDA sees as many devices, which is all that can be checked; else their number."""
    named = [device for device in written.split(",") if device.strip()]
    return written if len(named) == count else f"{count} devices"


def _by_user() -> bool:
    """The innermost frame outside Python's own `os` and this package is the user's."""
    for here in outwards(sys._getframe(2)):
        path = here.f_code.co_filename
        if (
            not path.startswith("<")
            and not path.endswith(("/os.py", "/_collections_abc.py"))
            and "ddp_lint" not in path
        ):
            return is_user(path)
    return False

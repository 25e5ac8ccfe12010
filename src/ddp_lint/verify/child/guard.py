"""An error of an observer is no error of the program that it observes: it ends the rank as what it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, TypeVar

_Result = TypeVar("_Result")
#: What ends the rank (of the session that began last).
_ends: list[Callable[[Exception], None]] = []
#: Code in place of a function of another package, which passes the errors of that on.
_replacing: set[CodeType] = set()


def install(end: Callable[[Exception], None]) -> None:
    """`end` is called with each error of an observer from here on."""
    _ends[:] = [end]


def failed(error: Exception) -> None:
    """An observer raised this. What a GPU did before is reported to whoever asks next, which may be an observer."""
    of_device = type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)
    if _ends and not of_device:
        _ends[0](error)


def guarded(callback: Callable[..., _Result]) -> Callable[..., _Result]:
    """The same, for something that only observes."""

    @functools.wraps(callback)
    def run(*args: Any, **kwargs: Any) -> _Result:
        try:
            return callback(*args, **kwargs)
        except Exception as error:
            failed(error)
            raise

    return run


def passes_on(replacement: Callable[..., Any]) -> None:
    """What this function raises by itself is raised by what it replaces."""
    code = getattr(replacement, "__code__", None)
    if code is not None:
        _replacing.add(code)


def is_own(trace: TracebackType | None) -> bool:
    """The innermost frame of a traceback is an observer's."""
    code = None
    while trace is not None:
        code, trace = trace.tb_frame.f_code, trace.tb_next
    return code is not None and "/verify/child/observers/" in code.co_filename and code not in _replacing

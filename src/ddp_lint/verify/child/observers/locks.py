"""Whether a thread waits for a lock that nothing is left to release, and whether all threads wait in collectives."""

from __future__ import annotations

import ast
import dis
import inspect
import itertools
import linecache
import sys
import threading
from types import FrameType
from typing import Any

from ddp_lint.verify.frames import outwards

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
#: Functions in which `Thread.join` waits (by version of Python), what a collective, or a backward, runs through, and
#: what calls one without that.
_JOINING = ("join", "_wait_for_tstate_lock")
_CALLS = ("torch/distributed/distributed_c10d.py", "torch/autograd/graph.py")
_CALLED_BY = ("torch/distributed/utils.py", "torch/nn/parallel/distributed.py")
#: What lies between an operator and who shows it.
SHOWING = ("/verify/child/", "torch/_dynamo/", "torch/_compile.py", "torch/_ops.py", "torch/utils/_python_dispatch.py")
#: Threads of this package do not touch the program's locks.
_OWN = "ddp-lint"


def waits_for_ever(frame: FrameType | None) -> bool:
    """The main thread is in `lock.acquire()` or `with lock`, without a time limit, and no other thread can run code
    of Python. Told by the source at the frame: False where that is not to be had (before Python 3.11)."""
    if frame is None or any(_may_release(thread) for thread in threading.enumerate()):
        return False
    wanted = _taken(frame)
    return wanted is not None and isinstance(_value(wanted, frame), _LOCKS)


def waits_in_calls() -> str:
    """Where every thread of the program is in a collective, or in a backward, or joins one that does: "threads"
    when there are others than the main one, else "main"; "" where one of them is anywhere else."""
    frames = sys._current_frames()
    seen = [
        (thread is threading.main_thread(), frames[thread.ident])
        for thread in threading.enumerate()
        if thread.ident in frames and not thread.name.startswith(_OWN)
    ]
    if not all(_joins(frame) or _calls(frame) for _, frame in seen):
        return ""
    return "main" if all(main for main, _ in seen) else "threads"


def _joins(frame: FrameType) -> bool:
    return frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name in _JOINING


def _calls(frame: FrameType) -> bool:
    files = [here.f_code.co_filename for here in outwards(frame)]
    innermost = next((path for path in files if not any(part in path for part in SHOWING)), "")
    return innermost.endswith(_CALLED_BY) or any(path.endswith(_CALLS) for path in files)


def _may_release(thread: threading.Thread) -> bool:
    """A thread that was not started from Python (autograd's, which stays in the list once a hook ran on it) runs Python
    only when it is given work, which a thread that waits does not do."""
    if thread is threading.main_thread() or thread.name.startswith(_OWN):
        return False
    return not isinstance(thread, threading._DummyThread) or thread.ident in sys._current_frames()


def _taken(frame: FrameType) -> ast.expr | None:
    """The expression of the lock that the frame takes at its instruction."""
    code = frame.f_code
    if not hasattr(code, "co_positions"):
        return None
    first, last, start, end = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    if first is None or last is None or start is None or end is None:
        return None
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        (statement,) = ast.parse(b"".join(lines).decode()).body
    except (SyntaxError, ValueError):
        return None
    if dis.opname[code.co_code[frame.f_lasti]] == "BEFORE_WITH":
        return _entered(statement)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or call.args or call.keywords or not isinstance(call.func, ast.Attribute):
        return None
    return call.func.value if call.func.attr == "acquire" else None


def _entered(statement: ast.stmt) -> ast.expr | None:
    """What a `with` of one item enters; versions of Python differ in whether the instruction spans all of it."""
    if isinstance(statement, ast.With) and len(statement.items) == 1:
        return statement.items[0].context_expr
    return statement.value if isinstance(statement, ast.Expr) else None


def _value(node: ast.expr, frame: FrameType) -> Any:
    """The object of a name or a chain of attributes, without running code of the program; else None."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return inspect.getattr_static(_value(node.value, frame), node.attr, None)
    return None

"""How often the lines of findings run, and which way their guards go.

On Python 3.12 and later by `sys.monitoring`, which costs nothing on other lines; before that by `sys.settrace`, which
traces only functions of the files that are watched.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import inspect
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import calls_below, last_line
from ddp_lint.verify import trace
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.frames import absolute, message_of, outwards, traceback_frames
from ddp_lint.verify.sources import tree_of

_TOOL_IDS = (4, 3, 5)
_REPR_LIMIT = 60
#: The largest prime below 2 ** 61: digests of outcomes are taken modulo it.
_PRIME = (1 << 61) - 1
#: In a test: operands that may not be evaluated, and comparisons that read no value.
_PASSED_BY = (ast.BoolOp, ast.IfExp, ast.Is, ast.IsNot)


@dataclasses.dataclass(frozen=True)
class _Guard:
    """An `if` or `while` test: its lines, the lines of its body, and the names and the called functions in the test."""

    line: int
    end: int
    body_first: int
    body_last: int
    names: tuple[str, ...]
    #: The names of each called function: ("self", "stopper", "should_stop").
    calls: tuple[tuple[str, ...], ...]
    #: The body returns or raises: any other line that runs next says that the test was false.
    leaves: bool
    #: The test reads the value of each name: it waits for tensors of the GPU in any case.
    reads: bool


class Lines(Observer):
    """Counts lines and the outcomes of guards; a guard's outcome is known from the line that runs next."""

    def prepare(self) -> None:
        spec = self.recorder.spec
        self._wanted = {path: frozenset(lines) for path, lines in spec.lines.items()}
        self._guards = {path: _guards(path, frozenset(lines)) for path, lines in spec.guards.items()}
        self._counts: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self._taken: dict[str, dict[int, list[int]]] = collections.defaultdict(dict)
        self._orders: dict[str, dict[int, int]] = collections.defaultdict(dict)
        #: Guards that were tested while a model was there, by path.
        self._late: dict[str, set[int]] = collections.defaultdict(set)
        self._values: dict[str, dict[int, dict[str, str]]] = collections.defaultdict(dict)
        #: The guard that a frame has just tested.
        self._tested: dict[FrameType, _Guard] = {}
        #: The functions that a guard calls: what they return is recorded while it is tested.
        self._called: set[CodeType] = set()
        #: Makes returns of a function events (from Python 3.12 on).
        self._watch_returns: Callable[[CodeType], None] | None = None
        #: The exception that a frame may be handling, and the lines that it has run since.
        self._handling: dict[FrameType, tuple[BaseException, int]] = {}
        self._changed = False
        #: Lines that have called a collective.
        self._calling: set[tuple[CodeType, int]] = set()

    def install(self) -> None:
        files = set(self._wanted) | set(self._guards)
        if not files:
            return
        if sys.version_info >= (3, 12):
            self._monitor(files)
        else:
            self._trace(files)

    # ---- Python 3.12 and later

    def _monitor(self, files: set[str]) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        tool = next((number for number in _TOOL_IDS if monitoring.get_tool(number) is None), None)
        if tool is None:
            self.recorder.emit(trace.Note, text="lines are not counted: all monitoring tools of Python are in use")
            return
        monitoring.use_tool_id(tool, "ddp-lint")
        events = monitoring.events

        def on_line(code: CodeType, line: int) -> Any:
            path = absolute(code.co_filename)
            if path not in files:
                return monitoring.DISABLE
            self._line(sys._getframe(1), path, line)
            return None

        def on_return(code: CodeType, _offset: int, value: Any) -> Any:
            frame = sys._getframe(1)
            if code in self._called:
                self._returned(frame, value)
            elif absolute(code.co_filename) not in files:
                return monitoring.DISABLE
            self._leave(frame)
            return None

        def on_unwind(code: CodeType, _offset: int, error: BaseException) -> None:
            if absolute(code.co_filename) in files:
                self._handling.pop(sys._getframe(1), None)

        def on_handled(code: CodeType, _offset: int, error: BaseException) -> None:
            if absolute(code.co_filename) in files:
                self._caught_soon(sys._getframe(1), error)

        def watch_returns(code: CodeType) -> None:
            if absolute(code.co_filename) not in files:
                monitoring.restart_events()  # it may have returned before, which has disabled this event of it

        self._watch_returns = watch_returns
        monitoring.register_callback(tool, events.LINE, on_line)
        monitoring.register_callback(tool, events.PY_RETURN, on_return)
        monitoring.register_callback(tool, events.PY_UNWIND, on_unwind)
        monitoring.register_callback(tool, events.EXCEPTION_HANDLED, on_handled)
        monitoring.set_events(tool, events.LINE | events.PY_RETURN | events.PY_UNWIND | events.EXCEPTION_HANDLED)

    # ---- before Python 3.12

    def _trace(self, files: set[str]) -> None:
        def on_call(frame: FrameType, event: str, _arg: Any) -> Any:
            if absolute(frame.f_code.co_filename) in files:
                return on_event
            return on_end if frame.f_code in self._called else None

        def on_end(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "return":
                self._returned(frame, arg)
            return on_end

        def on_event(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                self._line(frame, absolute(frame.f_code.co_filename), frame.f_lineno)
            elif event == "return":
                if frame.f_code in self._called:
                    self._returned(frame, arg)
                self._leave(frame)
            elif event == "exception":
                if frame.f_back is not None:
                    self._handling.pop(frame.f_back, None)
                self._caught_soon(frame, arg[1])
            return on_event

        threading.settrace(on_call)
        sys.settrace(on_call)
        for here in outwards(sys._getframe(1)):  # of a program that starts its own ranks: it is under way
            if absolute(here.f_code.co_filename) in files:
                here.f_trace = on_event

    # ---- both

    def _line(self, frame: FrameType, path: str, line: int) -> None:
        if self.recorder.quiet:
            return
        self.recorder.ticks += 1
        if line in self._wanted.get(path, ()):
            self._counts[path][line] += 1
            self._changed = True
        self._decide(frame, line)
        guard = self._guards.get(path, {}).get(line)
        if guard is not None:
            self._test(frame, path, guard)
        if self._handling:
            self._handled_line(frame)

    def _test(self, frame: FrameType, path: str, guard: _Guard) -> None:
        self._tested[frame] = guard
        values = ((name, _value(name, frame)) for name in guard.names)
        with self.recorder.quieted():
            found = {name: _show(_number(value) if guard.reads else value) for name, value in values}
        self._values[path][guard.line] = {name: text for name, text in found.items() if text is not None}
        for names in guard.calls:
            code = _code(names, frame)
            if code is not None and code not in self._called:
                self._called.add(code)
                if self._watch_returns is not None:
                    self._watch_returns(code)

    def _returned(self, frame: FrameType, value: object) -> None:
        """A function returns to the guard that calls it."""
        caller = frame.f_back
        guard = self._tested.get(caller) if caller is not None else None
        text = _show(value)
        if caller is not None and guard is not None and value is not None and text is not None:
            self._values[absolute(caller.f_code.co_filename)][guard.line][f"{frame.f_code.co_name}()"] = text

    def _decide(self, frame: FrameType, line: int) -> None:
        """The guard that the frame tested last went the way of the line that runs now."""
        guard = self._tested.get(frame)
        if guard is None or guard.line <= line <= guard.end:
            return
        del self._tested[frame]
        if guard.body_first > guard.end or guard.leaves:
            self._count(frame, guard, guard.body_first <= line <= guard.body_last)

    def _leave(self, frame: FrameType) -> None:
        guard = self._tested.pop(frame, None)
        if guard is not None:
            self._count(frame, guard, guard.body_first <= guard.end and guard.line <= frame.f_lineno <= guard.body_last)
        self._handling.pop(frame, None)

    def _count(self, frame: FrameType, guard: _Guard, outcome: bool) -> None:
        path = absolute(frame.f_code.co_filename)
        counts = self._taken[path].setdefault(guard.line, [0, 0])
        counts[0 if outcome else 1] += 1
        self._orders[path][guard.line] = (self._orders[path].get(guard.line, 1) * 3 + outcome) % _PRIME
        if self.recorder.phase != trace.SCRIPT_PHASE:
            self._late[path].add(guard.line)
        self._changed = True

    def _caught_soon(self, frame: FrameType, error: BaseException) -> None:
        if not isinstance(error, StopIteration | GeneratorExit | StopAsyncIteration) and not self.recorder.quiet:
            self._handling[frame] = (error, 0)

    def _handled_line(self, frame: FrameType) -> None:
        """The second line after an exception runs in its frame: the first is the `except` itself."""
        held = self._handling.get(frame)
        if held is None:
            return
        error, lines = held
        if lines == 0:
            self._handling[frame] = (error, 1)
            return
        del self._handling[frame]
        frames, inner = traceback_frames(error.__traceback__)
        self.recorder.emit(
            trace.Raised,
            frames=tuple(frames),
            type=type(error).__name__,
            message=message_of(error)[:1000],
            where="caught",
            inner=inner,
        )

    def flush(self) -> None:
        """Write the counts when they have changed since the last time. The main thread and the watchdog call this."""
        with self.recorder.writer.lock:
            if self._changed:
                self._changed = False
                self._write()

    def _write(self) -> None:
        self.recorder.emit(
            trace.Lines,
            frames=(),
            counts={path: dict(counts) for path, counts in list(self._counts.items())},
            guards={path: dict(guards) for path, guards in list(self._taken.items())},
            values={path: dict(values) for path, values in list(self._values.items())},
            orders={path: dict(orders) for path, orders in list(self._orders.items())},
            early={path: tuple(guards.keys() - self._late[path]) for path, guards in list(self._taken.items())},
        )

    def before_call_at(self, code: CodeType, line: int) -> None:
        """Before the first collective of a line: the process may end in it (gloo aborts) without another word."""
        if (code, line) not in self._calling:
            self._calling.add((code, line))
            self.flush()

    def finish(self) -> None:
        self.flush()


def _guards(path: str, lines: frozenset[int]) -> dict[int, _Guard]:
    """The guards at these lines. A file that cannot be read or parsed has none."""
    found = {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.If | ast.While) and node.test.lineno in lines:
            names = tuple(dict.fromkeys(inner.id for inner in ast.walk(node.test) if isinstance(inner, ast.Name)))
            called = (dotted_ast(inner.func) for inner in calls_below(node.test))
            calls = tuple(dict.fromkeys(tuple(name.split(".")) for name in called if name))
            body_last = last_line(node.body[-1])
            leaves = isinstance(node.body[-1], ast.Return | ast.Raise)
            end = last_line(node.test)
            first = node.body[0].lineno
            reads = not any(isinstance(inner, _PASSED_BY) for inner in ast.walk(node.test))
            found[node.test.lineno] = _Guard(node.test.lineno, end, first, body_last, names, calls, leaves, reads)
    return found


def _value(name: str, frame: FrameType) -> object:
    return frame.f_locals.get(name, frame.f_globals.get(name, inspect.Parameter.empty))


def _number(value: Any) -> Any:
    """The number that a tensor holds, or what else it is."""
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", ())  # the target imports it, later or never
    if isinstance(value, tensor) and value.dim() == 0:
        with contextlib.suppress(RuntimeError):  # a tensor without storage, or the stream is captured
            return value.item()
    return value


def _show(value: object) -> str | None:
    """A plain number, string or None as text."""
    return repr(value)[:_REPR_LIMIT] if value is None or isinstance(value, bool | int | float | str) else None


def _code(names: tuple[str, ...], frame: FrameType) -> CodeType | None:
    """The code of a Python function that is called by these names; no property runs to find it."""
    found = _value(names[0], frame)
    for name in names[1:]:
        found = inspect.getattr_static(found, name, None)
    found = found.__func__ if isinstance(found, staticmethod | classmethod | MethodType) else found
    return found.__code__ if isinstance(found, FunctionType) else None

"""Graph breaks and recompilations: those that torch.compile makes in user code, from its own log."""

from __future__ import annotations

import logging
import re
from typing import Any

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.frames import is_user

_PLACE = re.compile(r'(?:from user code at|in user code at|File) "?(?P<path>[^"\n]+?)(?:", line |:)(?P<line>\d+)')
#: The log names the function's file and line, then each guard that failed with its line.
_ANEW = re.compile(r"Recompiling function (?P<function>\S+) in (?P<path>[^\n]+):(?P<line>\d+)")
_GUARD = re.compile(r"- \S+: (?P<reason>.+?)\s+#.*?:(?P<line>\d+) in ")
#: Why, in the first of these that a message has: the line above torch's explanation is shorter than its general reason.
_REASONS = (
    re.compile(r"^(\S.*)\n\s+Explanation:", re.MULTILINE),
    re.compile(r"Reason:\s*(.+)", re.IGNORECASE),
    re.compile(r"Graph break[^:]*:\s*(.+)", re.IGNORECASE),
)


class Breaks(Observer):
    """A GraphBreak for each break that TorchDynamo logs, a Recompile for each recompilation; `explain` runs it on
    a model."""

    def install(self) -> None:
        import torch

        patching.before(torch, "compile", lambda *args, **kwargs: self.listen())

    def listen(self) -> None:
        """Turn TorchDynamo's artifact logs on and read them."""
        import torch._logging

        torch._logging.set_logs(graph_breaks=True, recompiles=True)
        handler = _Handler(self)
        anew = torch._logging.getArtifactLogger("torch._dynamo.guards", "recompiles")
        if not any(isinstance(known, _Handler) for known in anew.handlers):
            anew.addHandler(handler)
        anew.propagate = False
        for name in ("torch._dynamo.symbolic_convert", "torch._dynamo.exc", "torch._dynamo.convert_frame"):
            logger = torch._logging.getArtifactLogger(name, "graph_breaks")
            if not any(isinstance(known, _Handler) for known in logger.handlers):
                logger.addHandler(handler)
            logger.propagate = False

    def explain(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A GraphBreak for each break that compiling the model makes; a Note when it cannot be compiled at all."""
        import torch._dynamo

        try:
            explained = torch._dynamo.explain(model)(*args, **kwargs)
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            self.recorder.emit(trace.Note, frames=(), text=f"torch._dynamo.explain failed: {reason}")
            self.recorder.emit(trace.Call, frames=(), name="explain", arguments={"error": reason})
            return
        counts = {"graphs": explained.graph_count, "breaks": explained.graph_break_count, "error": ""}
        self.recorder.emit(trace.Call, frames=(), name="explain", arguments=counts)
        for found in explained.break_reasons:
            stack = [trace.Frame(frame.filename, frame.lineno or 0, frame.name) for frame in found.user_stack]
            frames = tuple(frame for frame in reversed(stack) if is_user(frame.path))
            self.recorder.emit(trace.GraphBreak, frames=frames, reason=str(found.reason))

    def note(self, message: str) -> None:
        places = [trace.Frame(match["path"].strip(), int(match["line"]), "") for match in _PLACE.finditer(message)]
        frames = tuple(frame for frame in places if is_user(frame.path))
        matches = filter(None, (pattern.search(message) for pattern in _REASONS))
        reason = next((match[1] for match in matches), message.strip().partition("\n")[0])
        self.recorder.emit(trace.GraphBreak, frames=frames[-1:], reason=reason.strip())

    def note_recompilation(self, message: str) -> None:
        function, guard = _ANEW.search(message), _GUARD.search(message)
        if function is None:
            return
        line = int((guard or function)["line"])
        frame = trace.Frame(function["path"], line, function["function"])
        reason = guard["reason"] if guard else message.strip().rpartition("\n")[2].strip()
        self.recorder.emit(trace.Recompile, frames=(frame,) if is_user(frame.path) else (), reason=reason)


class _Handler(logging.Handler):
    def __init__(self, observer: Breaks) -> None:
        super().__init__(logging.DEBUG)
        self._observer = observer

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "raph break" in message:
            self._observer.note(message)
        elif "Recompiling function" in message:
            self._observer.note_recompilation(message)

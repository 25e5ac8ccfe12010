"""Which stream a block runs on."""

from __future__ import annotations

import libcst as cst

from ddp_lint.source import dotted
from ddp_lint.source.queries import options
from ddp_lint.view import Module


def stream_of(module: Module, context: cst.BaseExpression) -> str:
    """The dotted name of the stream in ``with torch.cuda.stream(side)``, '' for any other context.

    Accelerator abstractions (``get_accelerator().stream(side)``) have the same shape and count.
    """
    return dotted(context.args[0].value) if isinstance(context, cst.Call) and enters_stream(module, context) else ""


def enters_stream(module: Module, context: cst.BaseExpression) -> bool:
    """Whether a context is ``torch.cuda.stream(side)``, whatever expression the stream is."""
    if not isinstance(context, cst.Call) or len(context.args) != 1 or not isinstance(context.func, cst.Attribute):
        return False
    return context.func.attr.value == "stream" or module.qualified(context.func) == "torch.cuda.stream"


def side_stream(module: Module, context: cst.BaseExpression) -> str:
    """The same through a name, also one that is called, and where there may be no stream at all:
    ``context = nullcontext() if side is None else torch.cuda.stream(side)``, ``enter = partial(torch.cuda.stream,
    stream=side)`` and ``with enter():``."""
    made = context.func if isinstance(context, cst.Call) and not context.args else context
    values = module.assignments(made) if isinstance(made, cst.Name) else [context]
    arms = options(values)
    find = stream_of if made is context else _stream_of_partial
    return next(filter(None, (find(module, arm) for arm in arms)), "")


def _stream_of_partial(module: Module, made: cst.BaseExpression) -> str:
    """The stream in ``partial(torch.cuda.stream, stream=side)``."""
    if not isinstance(made, cst.Call) or module.qualified(made.func) != "functools.partial" or len(made.args) != 2:
        return ""
    return stream_of(module, cst.Call(made.args[0].value, made.args[1:]))

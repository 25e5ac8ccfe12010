"""Models under torch.compile without the minutes that inductor takes: no hazard of ranks lies in the code it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ddp_lint.verify.child import patching

NOTE = "torch.compile: TorchDynamo's graphs ran as they were traced (aot_eager): no code was generated for them"


def trace_only(notice: Callable[[], None]) -> None:
    """From here on what TorchDynamo hands to inductor runs as it was traced: graph breaks, guards and recompilations
    are those of the program. Where a mode or options are requested (CUDA graphs), inductor compiles it. `notice` is
    called for each graph."""

    def call(original: Callable[..., Any], wrapper: Any, graph: Any, inputs: Any, **kwargs: Any) -> Any:
        if wrapper.config:
            return original(wrapper, graph, inputs, **kwargs)
        notice()
        from torch._dynamo.backends.debugging import aot_eager  # takes as long as a whole run of a small model

        return aot_eager(graph, inputs)

    patching.around(torch._TorchCompileInductorWrapper, "__call__", call)

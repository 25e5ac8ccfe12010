"""Put on the path of programs that start their own ranks: Python imports it at the start of each of their processes."""

import contextlib
import importlib
import pathlib
import sys


def _next() -> None:
    """The sitecustomize that this one hides, where there is one."""
    here = pathlib.Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry or ".") != here]
    del sys.modules["sitecustomize"]
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")


_next()

from ddp_lint.verify.child import self_launched  # noqa: E402 - the path is as the program would have it

self_launched.begin()

"""What goes into each module and what comes out of it, in the first forward of a model that the user's code splits."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ddp_lint.verify import trace
from ddp_lint.verify.child import guard
from ddp_lint.verify.child.dispatch import tensors
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.hashes import fingerprint
from ddp_lint.verify.frames import absolute, is_user

#: Modules that are looked at, at most.
_MOST = 1000


class Activations(Observer):
    """Writes an Activations after the first forward of a model without a wrapper in which ranks sum."""

    def prepare(self) -> None:
        #: The models that have run.
        self._seen: set[int] = set()

    def before_forward(self, root: Any) -> None:
        model = self.models.find(root)
        if model is None or model.number in self._seen or self.recorder.world < 2:
            return
        self._seen.add(model.number)
        if model.wrap == "none" and torch.is_grad_enabled() and isinstance(root, nn.Module) and not _is_compiled(root):
            _Forward(self, root)

    def record(self, passed: list[trace.Passed]) -> None:
        if self.models.running is not None and self.models.running.replicated == trace.SPLIT_BY_HAND:
            self.recorder.emit(trace.Activations, passed=tuple(passed))


class _Forward:
    """One forward, until it returns."""

    def __init__(self, observer: Activations, root: nn.Module) -> None:
        self._observer = observer
        self._root = root
        self._open: list[tuple[nn.Module, int]] = []
        self._passed: list[trace.Passed] = []
        self._hooks = contextlib.ExitStack()
        self._hooks.callback(register_module_forward_pre_hook(guard.guarded(self._enters)).remove)
        self._hooks.callback(register_module_forward_hook(guard.guarded(self._leaves), always_call=True).remove)
        self._note(root)

    def _enters(self, module: nn.Module, _given: Any) -> None:
        if torch.compiler.is_compiling() or self._observer.recorder.quiet:
            return
        if len(self._passed) < _MOST:
            self._note(module)

    def _note(self, module: nn.Module) -> None:
        self._open.append((module, len(self._passed)))
        code = getattr(type(module).forward, "__code__", None)
        path = absolute(code.co_filename) if code is not None else ""
        name = self._observer.models.name_of_module(module)
        line = code.co_firstlineno if code is not None and is_user(path) else 0
        self._passed.append(trace.Passed(name, type(module).__name__, path if line else "", line, "", ""))

    def _leaves(self, module: nn.Module, given: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._open and self._open[-1][0] is module and not self._observer.recorder.quiet:
            number = self._open.pop()[1]
            self._passed[number] = self._passed[number]._replace(given=_sums(given), made=_sums(output))
        if module is self._root:
            self._hooks.close()
            self._observer.record(self._passed)


def _is_compiled(root: nn.Module) -> bool:
    """Whether a part is compiled: TorchDynamo traces global hooks, and compiles again once they are removed."""
    return any(hasattr(part, "_orig_mod") or part._compiled_call_impl is not None for part in root.modules())


def _sums(value: Any) -> str:
    """A number for each tensor, '' where there is none."""
    with torch.no_grad():
        found = fingerprint(tensors(value))
    return " ".join(map(str, found.tolist())) if found is not None else ""

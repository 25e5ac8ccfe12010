"""Replacing functions of other packages, wherever they have been imported to."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ddp_lint.verify.child import guard

_looked_up: dict[str, Any] = {}


def replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the attribute `name` of a class or module by `make(original)`.

    Modules of torch that imported the function by name get the replacement too; nothing happens where it is absent.
    """
    original = owner.__dict__.get(name, getattr(owner, name, None))
    if original is None:
        return
    plain = original.__func__ if isinstance(original, staticmethod | classmethod) else original
    made = make(plain)
    guard.passes_on(made)
    replacement = functools.wraps(plain)(made)
    setattr(
        owner, name, type(original)(replacement) if isinstance(original, staticmethod | classmethod) else replacement
    )
    tell_torchscript(original, replacement)
    if isinstance(owner, ModuleType):
        holders = holders_of_functions()
        for module, key in holders.get(id(original), ()):
            if vars(module).get(key) is original:
                setattr(module, key, replacement)
                holders.setdefault(id(replacement), []).append((module, key))
        holders.setdefault(id(replacement), []).append((owner, name))


def tell_torchscript(original: Any, replacement: Any) -> None:
    """TorchScript knows torch's functions by identity, and would compile the source of any other."""
    table = getattr(sys.modules.get("torch.jit._builtins"), "_builtin_table", None)
    if table and id(original) in table:
        table[id(replacement)] = table[id(original)]


def holders_of_functions() -> dict[int, list[tuple[ModuleType, str]]]:
    """Where torch's modules hold each function, by identity: looked up again when one of them has been imported."""
    if _looked_up.get("all") != len(sys.modules):  # to go through them for each function that is replaced takes longest
        modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "torch" and module]
        if _looked_up.get("count") != len(modules):
            _looked_up.update(count=len(modules), table=_holders(modules))
        _looked_up["all"] = len(sys.modules)
    found: dict[int, list[tuple[ModuleType, str]]] = _looked_up["table"]
    return found


def _holders(modules: list[ModuleType]) -> dict[int, list[tuple[ModuleType, str]]]:
    table: dict[int, list[tuple[ModuleType, str]]] = {}
    for module in modules:
        for key, value in list(vars(module).items()):
            if callable(value):
                table.setdefault(id(value), []).append((module, key))
    return table


def around(owner: Any, name: str, run: Callable[..., Any]) -> None:
    """Call `run(original, *args, **kwargs)` in place of `owner.name`."""
    guard.passes_on(run)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: run(original, *args, **kwargs)

    replace(owner, name, make)


def before(owner: Any, name: str, notice: Callable[..., None]) -> None:
    """Call `notice` with the arguments of every call of `owner.name` before the call."""
    notice = guard.guarded(notice)

    def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        notice(*args, **kwargs)
        return original(*args, **kwargs)

    around(owner, name, run)


def after(owner: Any, name: str, notice: Callable[..., None]) -> None:
    """Call `notice(result, *args, **kwargs)` after every call of `owner.name` that returned."""
    notice = guard.guarded(notice)

    def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        notice(result, *args, **kwargs)
        return result

    around(owner, name, run)


def when_imported(name: str, notice: Callable[[ModuleType], None]) -> None:
    """Call `notice` with the module `name`: now when it is imported already, else right after anyone imports it."""
    notice = guard.guarded(notice)
    if name in sys.modules:
        notice(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, notice))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `notice` once, right after its module has been executed."""

    def __init__(self, name: str, notice: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.notice = notice
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """What the other finders find (some may wait for the module, too), with a loader that runs the callbacks."""
        if fullname != self.name or self._asking:
            return None
        self._asking = True
        try:
            found = (finder.find_spec(fullname, path, target) for finder in list(sys.meta_path))
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            after(spec.loader, "exec_module", lambda _, module: self._executed(module))
        return spec

    def _executed(self, module: ModuleType) -> None:
        sys.meta_path.remove(self)
        self.notice(module)

"""Which expressions of a function are tensors, where they come from, what autograd keeps of them, who compiles it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddp_lint.tensors.classes import Attribute, ModuleClass, ModuleClasses, Reached, Role
    from ddp_lint.tensors.evaluation import Code
    from ddp_lint.tensors.file import TensorFile
    from ddp_lint.tensors.flow import Flow
    from ddp_lint.tensors.state import Save, Write
    from ddp_lint.tensors.values import Kind, Value

__all__ = [
    "Attribute",
    "Code",
    "Flow",
    "Kind",
    "ModuleClass",
    "ModuleClasses",
    "Reached",
    "Role",
    "Save",
    "TensorFile",
    "Value",
    "Write",
]

#: By module, what comes with LibCST: imported at its first use, as `operations` has no need of it.
_WITH_LIBCST = {
    **dict.fromkeys(("Attribute", "ModuleClass", "ModuleClasses", "Reached", "Role"), "classes"),
    "Code": "evaluation",
    "TensorFile": "file",
    "Flow": "flow",
    **dict.fromkeys(("Save", "Write"), "state"),
    **dict.fromkeys(("Kind", "Value"), "values"),
}


def __getattr__(name: str) -> object:
    if name not in _WITH_LIBCST:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"{__name__}.{_WITH_LIBCST[name]}"), name)

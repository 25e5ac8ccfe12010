"""Which expressions of a function are tensors, where they come from, what autograd keeps of them, who compiles it."""

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

"""Methods of frameworks that wrap what they are given: ``accelerator.prepare(model, optimizer)``."""

from __future__ import annotations

import functools

import libcst as cst

from ddp_lint.knowledge import communication, frameworks
from ddp_lint.launch.started import launched_under
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import dotted
from ddp_lint.view import Module

#: Settings of a launcher under which what a framework wraps is no DDP.
_FORWARDING = frozenset({"DEEPSPEED", "FSDP", "MEGATRON_LM"})


def prepares(module: Module, call: cst.Call) -> bool:
    """Whether a call wraps its arguments in plain DDP, as far as the file configures nothing else."""
    bound = module.assignments(call.func) if isinstance(call.func, cst.Name) else ()
    method = bound[0] if len(bound) == 1 else call.func  # ``prepare = accelerator.prepare``
    receiver, _, name = dotted(method).rpartition(".")
    owner = _known_as().get(receiver.rpartition(".")[2].lstrip("_"), "")
    made, methods = module.callee(call), frameworks.wrapping_methods()
    if method is not call.func and isinstance(method, cst.Attribute):
        made = f"{module.constructed_by(method.value)}.{name}"
    entry = methods.get(made) or methods.get(f"{owner}.{name}")
    if entry is None or any(word in module.file.code for word in entry.unless):
        return False
    return module.project is None or module.facts is None or not forwards_attributes(module.project, module.facts)


def forwards_attributes(project: Project, facts: ModuleFacts) -> bool:
    """Whether all launches of a program that the project has choose a backend whose wrapper forwards attributes to the
    model."""
    backends = launched_under(project, facts)
    return bool(backends) and backends <= _FORWARDING


@functools.cache
def _known_as() -> dict[str, str]:
    """What receivers are called that are taken for an object of a class when nothing else shows what they are."""
    return {name: type_.name for type_ in communication.load().types.values() for name in type_.known_as}

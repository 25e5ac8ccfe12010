"""Which backend the process groups of a project have, as far as its files say."""

from __future__ import annotations

import ast
import re

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import argument_at, calls_below, is_none

_FORMS_GROUP = "torch.distributed.init_process_group"
#: A backend that takes tensors on the host, as a text of its own or as a part of ``"cpu:gloo,cuda:nccl"``.
_HOST_BACKEND = re.compile(r"""["'](\w+:)?(gloo|mpi|ucc|ccl)\b|["']cpu:|\bBackend\.(GLOO|MPI|UCC)\b""", re.IGNORECASE)
#: After these a tensor that names no device is not on the host.
_DEFAULT_DEVICE = ("set_default_device", "set_default_tensor_type")
_WORDS = ("gloo", "GLOO", "mpi", "MPI", "ucc", "ccl", "cpu")


def nccl_alone(project: Project) -> bool:
    """Whether all groups that a project forms are for CUDA alone: some file names NCCL, none a backend for the host,
    and no group is formed without a backend, which since torch 2.0 has one for each kind of device."""

    def found() -> bool:
        names_it = bool(project.contents.holding("nccl") or project.contents.holding("NCCL"))
        return names_it and not _names_host_backend(project) and not _leaves_it_open(project)

    return project.remember(("nccl alone",), found)


def for_hosts_alone(project: Project, facts: ModuleFacts) -> bool:
    """Whether the groups that a file forms, or where it forms none those of the project, are for tensors on the host
    alone: all name such a backend, and none NCCL."""
    here = [call for call in calls_below(facts.tree) if facts.qualified(call.func) == _FORMS_GROUP]
    if here:
        return all(_is_for_host(facts, call) for call in here)

    def found() -> bool:
        names_it = bool(project.contents.holding("nccl") or project.contents.holding("NCCL"))
        return not names_it and _names_host_backend(project) and not _leaves_it_open(project)

    return project.remember(("for hosts alone",), found)


def _is_for_host(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call forms a group with a backend for the host: by its text, or by that of the file where a name has
    it."""
    given = argument_at(call, 0, "backend")
    if _has_no_backend(call) or given is None:
        return False
    text = ast.unparse(given) if isinstance(given, ast.Constant) else facts.file.text
    return _HOST_BACKEND.search(text) is not None and "nccl" not in text.lower()


def forms_none(project: Project) -> bool:
    """Whether a project neither forms a group nor names a backend: its users do."""

    def found() -> bool:
        return not any(map(project.contents.holding, ("init_process_group", "nccl"))) and not _names_host_backend(
            project
        )

    return project.remember(("forms no group",), found)


def makes_tensors_on_gpus(project: Project) -> bool:
    """Whether the project changes where tensors lie that name no device."""
    return project.remember(("default device",), lambda: any(map(project.contents.holding, _DEFAULT_DEVICE)))


def _names_host_backend(project: Project) -> bool:
    paths = dict.fromkeys(path for word in _WORDS for path in project.contents.holding(word))
    return any(_HOST_BACKEND.search(project.contents.text(path) or "") is not None for path in paths)


def _leaves_it_open(project: Project) -> bool:
    held = (project.modules.facts_of(path) for path in project.contents.holding("init_process_group"))
    return any(_forms_open_group(facts) for facts in held if facts is not None)


def _forms_open_group(facts: ModuleFacts) -> bool:
    calls = (call for call in calls_below(facts.tree) if facts.qualified(call.func) == _FORMS_GROUP)
    return any(_has_no_backend(call) for call in calls)


def _has_no_backend(call: ast.Call) -> bool:
    if any(keyword.arg is None for keyword in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args):
        return False
    given = argument_at(call, 0, "backend")
    return given is None or is_none(given)

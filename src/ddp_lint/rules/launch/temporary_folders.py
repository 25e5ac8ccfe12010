"""Temporary folders of one node whose name all ranks get."""

from __future__ import annotations

import libcst as cst

from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.queries import path_of
from ddp_lint.source.tree import called, descendants, names_in
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

#: Calls that make a folder below the node's ``/tmp``, unless they are told where.
MAKERS = frozenset({"tempfile.mkdtemp", "tempfile.TemporaryDirectory"})
_SHARING = frozenset({"broadcast", "broadcast_object_list"})


def shared_folder(module: Module, function: cst.FunctionDef, calls: list[cst.Call]) -> tuple[cst.Call, cst.Call] | None:
    """Of the calls of one function the one with which one rank of the job alone makes a temporary folder on its own
    node, and the one that gives its name to all ranks. One rank of each node, and groups of some ranks, are left out:
    they may be all on one node."""
    for made in calls:
        if module.qualified(made.func) not in MAKERS or argument(made, 2, "dir") is not None:
            continue
        if not on_one_rank(module, made) or any("local" in module.code(test) for test, _ in conditions(module, made)):
            continue
        holding = _holders(function, made)
        sharing = next((c for c in calls if _gives_to_all(c, holding)), None)
        if sharing is not None:
            return made, sharing
    return None


def _holders(function: cst.FunctionDef, made: cst.Call) -> frozenset[str]:
    """What a function puts the name of a folder into, in the order of its assignments: ``text[:n] = encode(name)``."""
    held: set[str] = set()
    for node in descendants(function.body):
        if isinstance(node, cst.Assign):
            inside = made in descendants(node.value) or node.value is made
            if inside or names_in(node.value) & held:
                held.update(filter(None, (path_of(each.target) for each in node.targets)))
    return frozenset(held)


def _gives_to_all(call: cst.Call, held: frozenset[str]) -> bool:
    """Whether a call gives one of the names to all ranks of the job: not to those of a group."""
    if called(call) not in _SHARING or not call.args or argument(call, 2, "group") is not None:
        return False
    return bool(names_in(call.args[0].value) & held)

"""Whether a script starts its own ranks, so that torchrun would start each of them several times. Reads the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.verify.target import Target, trees

#: Functions that start ranks, by the last part of their name, with the packages that they come from.
_STARTERS = {
    "spawn": ("torch.multiprocessing", "torch.multiprocessing.spawn", "mp"),
    "start_processes": ("torch.multiprocessing", "torch.multiprocessing.spawn", "mp"),
    "elastic_launch": ("torch.distributed.launcher", "torch.distributed.launcher.api"),
    "notebook_launcher": ("accelerate",),
}
#: What a command that starts ranks holds.
_LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
_COMMANDS = frozenset({"run", "call", "check_call", "check_output", "Popen", "system", "execv", "execvp"})


def starts_own_ranks(target: Target) -> bool:
    """A call of `mp.spawn`, of a process for each rank, or of torchrun is in the script, or in what it imports."""
    return target.kind == "script" and any(map(_starts_ranks, trees(target)))


def _starts_ranks(tree: ast.Module) -> bool:
    names = dict(_imports(tree))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(_starts(call, names) for call in calls) or _calls_launcher(tree, calls) or _processes(calls, names)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each name that an import binds, with its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (a.asname or a.name.split(".")[0], a.name if a.asname else a.name.split(".")[0]) for a in node.names
            )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of an expression of names and attributes, "" for any other."""
    if isinstance(node, ast.Attribute):
        left = _dotted(node.value, names)
        return f"{left}.{node.attr}" if left else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def _starts(call: ast.Call, names: dict[str, str]) -> bool:
    package, _, function = _dotted(call.func, names).rpartition(".")
    return package in _STARTERS.get(function, ())


def _calls_launcher(tree: ast.Module, calls: list[ast.Call]) -> bool:
    """A command is run, and the words of torchrun's are in the script (a docstring's do not count)."""
    if not any(isinstance(c.func, ast.Attribute | ast.Name) and _last(c.func) in _COMMANDS for c in calls):
        return False
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple | ast.Call | ast.BinOp)]
    texts = [part for node in inside for part in ast.iter_child_nodes(node) if isinstance(part, ast.Constant)]
    words = {word for text in texts if isinstance(text.value, str) for word in text.value.split()}
    return bool(words & _LAUNCHERS)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _processes(calls: list[ast.Call], names: dict[str, str]) -> bool:
    """Processes are started, and a rank passes its number to init_process_group."""
    starts = any(_last(c.func) == "Process" and any(k.arg == "target" for k in c.keywords) for c in calls)
    tells = any(_last(c.func) == "init_process_group" and any(k.arg == "rank" for k in c.keywords) for c in calls)
    return starts and tells

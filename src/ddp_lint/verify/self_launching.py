"""Whether a script starts its own ranks, so that torchrun would start each of them several times. Reads the source."""

from __future__ import annotations

import ast

from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import calls_below
from ddp_lint.verify.target import Target, modules

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
    return target.kind == "script" and any(map(_starts_ranks, modules(target)))


def _starts_ranks(facts: ModuleFacts) -> bool:
    calls = list(calls_below(facts.tree))
    return any(_starts(facts, call) for call in calls) or _calls_launcher(facts.tree, calls) or _processes(calls)


def _starts(facts: ModuleFacts, call: ast.Call) -> bool:
    package, _, function = facts.qualified(call.func).rpartition(".")
    return package in _STARTERS.get(function, ())


def _calls_launcher(tree: ast.Module, calls: list[ast.Call]) -> bool:
    """A command is run, and the words of torchrun's are in the script (a docstring's do not count)."""
    if not any(isinstance(c.func, ast.Attribute | ast.Name) and last_part(c.func) in _COMMANDS for c in calls):
        return False
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple | ast.Call | ast.BinOp)]
    texts = [part for node in inside for part in ast.iter_child_nodes(node) if isinstance(part, ast.Constant)]
    words = {word for text in texts if isinstance(text.value, str) for word in text.value.split()}
    return bool(words & _LAUNCHERS)


def _processes(calls: list[ast.Call]) -> bool:
    """Processes are started, and a rank passes its number to init_process_group."""
    starts = any(last_part(c.func) == "Process" and any(k.arg == "target" for k in c.keywords) for c in calls)
    named = any(last_part(c.func) == "init_process_group" and any(k.arg == "rank" for k in c.keywords) for c in calls)
    return starts and named

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
    return (
        any(_starts(facts, call) for call in calls)
        or _calls_launcher(facts.tree, calls)
        or _processes(facts.tree, calls)
    )


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


def _processes(tree: ast.Module, calls: list[ast.Call]) -> bool:
    """Processes are started, and a rank passes its number to init_process_group, or sets the variable for it."""
    starts = any(last_part(c.func) == "Process" and any(k.arg == "target" for k in c.keywords) for c in calls)
    named = any(last_part(c.func) == "init_process_group" and any(k.arg == "rank" for k in c.keywords) for c in calls)
    return starts and (named or _sets_rank(tree, calls))


def _sets_rank(tree: ast.Module, calls: list[ast.Call]) -> bool:
    """``os.environ["RANK"] = ..``, ``os.environ.update(RANK=..)``, ``os.environ.setdefault("RANK", ..)``."""
    stored = (n for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
    if any(last_part(n.value) == "environ" and _is_rank(n.slice) for n in stored):
        return True
    for call in calls:
        if isinstance(call.func, ast.Attribute) and last_part(call.func.value) == "environ":
            keys = [key for value in call.args if isinstance(value, ast.Dict) for key in value.keys]
            if any(k.arg == "RANK" for k in call.keywords) or any(map(_is_rank, keys)):
                return True
            if call.func.attr == "setdefault" and any(map(_is_rank, call.args[:1])):
                return True
    return False


def _is_rank(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value == "RANK"

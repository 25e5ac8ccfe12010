"""Where the tensors of a file lie that `torch.save` writes: what was saved from the CPU is loaded onto the CPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import assigned_to, walk
from ddp_lint.tensors.operations import is_factory


def saved_from_cpu(facts: ModuleFacts) -> bool:
    """Whether a module saves, and all that it saves by `torch.save` comes from the CPU."""
    calls = [n for n in walk(facts.tree) if isinstance(n, ast.Call) and n.args]
    saved = [call.args[0] for call in calls if facts.qualified(call.func) == "torch.save"]
    return bool(saved) and all(_is_on_cpu(value, facts) for value in saved)


def _is_on_cpu(value: ast.expr, facts: ModuleFacts) -> bool:
    """Whether a value lies on the CPU, or one of those that its name gets. In a dict, what is no state may be anything
    as long as something does."""
    if isinstance(value, ast.Dict):
        others = [part for part in value.values if not _is_on_cpu(part, facts)]
        return len(others) < len(value.values) and not any(".state_dict()" in ast.unparse(part) for part in others)
    if isinstance(value, ast.Name):
        given = list(assigned_to(value.id, facts.tree))
        return any(_comes_from_cpu(v, facts) for v in given) and not any(_calls(v, "cuda") for v in given)
    return _comes_from_cpu(value, facts)


def _comes_from_cpu(value: ast.expr, facts: ModuleFacts) -> bool:
    if isinstance(value, ast.Call) and is_factory(facts.qualified(value.func)):
        return not any(keyword.arg in ("device", None) for keyword in value.keywords)
    return _calls(value, "cpu") or any(
        isinstance(arg, ast.Constant) and arg.value == "cpu"
        for call in _calls_of(value, "to")
        for arg in (*call.args, *(keyword.value for keyword in call.keywords))
    )


def _calls(value: ast.expr, method: str) -> bool:
    return any(True for _ in _calls_of(value, method))


def _calls_of(value: ast.expr, method: str) -> Iterator[ast.Call]:
    for node in walk(value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node

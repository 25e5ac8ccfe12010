"""Which code uses CUDA, followed through the functions and classes of the project."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import walk

_DEPTH = 3
#: Calls below torch.cuda that ask the driver nothing that a forked child could not ask as well.
_HARMLESS = ("is_available", "device_count", "is_initialized", "amp", "nvtx", "GradScaler", "autocast")


def uses_cuda(project: Project, facts: ModuleFacts, node: ast.AST, depth: int = _DEPTH) -> ast.AST | None:
    """The first place below `node` (a function, a class, an expression) that puts work on a GPU, as far as it can be
    followed: `.cuda()`, `.to("cuda")`, ``device="cuda"``, `torch.cuda.synchronize`, an NCCL process group."""
    for part in _executed(node):
        if touches_cuda(facts, part):
            return part
    if depth:
        for call in (n for n in _executed(node) if isinstance(n, ast.Call)):
            found = resolve(project, facts, call.func)
            if found is not None and found[1] is not node and uses_cuda(project, *found, depth - 1) is not None:
                return call
    return None


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a function is called: its body; for a class, that of its constructor."""
    if isinstance(node, ast.ClassDef):
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "run", "__call__"):
                yield from walk(method)
    else:
        yield from walk(node)


def touches_cuda(facts: ModuleFacts, node: ast.AST) -> bool:
    """Whether one expression puts work on a GPU by itself, or names one as the device to use."""
    if isinstance(node, ast.Assign):
        return _is_device(node.value)
    if not isinstance(node, ast.Call):
        return False
    if any(_is_device(argument) for argument in node.args):
        return True
    name = facts.imports.resolve(dotted_ast(node.func)) or ""
    if name.startswith("torch.cuda."):
        return not any(part in _HARMLESS for part in name.split("."))
    if name == "torch.distributed.init_process_group":
        return any(_is_text(a, "nccl") for a in (*node.args, *(k.value for k in node.keywords)))
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method == "cuda":
        return True
    if method == "to" and node.args and _is_text(node.args[0], "cuda"):
        return True
    return any(k.arg == "device" and _is_text(k.value, "cuda") for k in node.keywords) and name.startswith("torch")


def _is_device(node: ast.AST) -> bool:
    """`"cuda"` or `"cuda:1"`, also as an f-string."""
    value = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    text = value.value if isinstance(value, ast.Constant) else None
    return isinstance(text, str) and (text == "cuda" or text.startswith("cuda:"))


def _is_text(node: ast.AST, start: str) -> bool:
    if isinstance(node, ast.JoinedStr) and node.values:
        return _is_text(node.values[0], start)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and start in node.value


def resolve(project: Project, facts: ModuleFacts, func: ast.expr) -> tuple[ModuleFacts, ast.AST] | None:
    """The function or class of the project that a name stands for, with its module."""
    name = facts.qualified(func)
    found = project.split(project.canonical(name)) if name else None
    if found is None or "." in found[1] or found[1] not in found[0].definitions:
        return None
    return found[0], found[0].definitions[found[1]]

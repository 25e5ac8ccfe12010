"""Asynchronous collectives that nobody waits for: the work handle is dropped, or bound to a name that is never read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint import knowledge
from ddp_lint.divergence.expressions import dotted
from ddp_lint.divergence.frame import span_of, text_of
from ddp_lint.divergence.partings import Kind, Parting
from ddp_lint.divergence.resolve import children, known
from ddp_lint.findings import Confidence, Label, RankTrace
from ddp_lint.knowledge.communication import Collective
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import statements

#: Calls that wait for everything on the device, and so for the work too.
_WAITS = frozenset({"synchronize", "wait", "wait_stream", "wait_all", "waitall"})


def unwaited(facts: ModuleFacts, project: Project) -> Iterator[Parting]:
    """In each function: a call with ``async_op=True`` whose handle cannot be waited for."""
    if "async_op" not in facts.file.text:
        return
    for function in statements(facts.tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes = list(children(function))
            if not any(_waits(node) for node in nodes):
                yield from _dropped(nodes, facts, project)


def _waits(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _WAITS


def _dropped(nodes: list[ast.AST], facts: ModuleFacts, project: Project) -> Iterator[Parting]:
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in nodes:
        call: ast.expr | None = None
        if isinstance(node, ast.Expr):
            call = node.value
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            call = node.value if node.targets[0].id not in read else None
        entry = _asynchronous(call, facts, project) if isinstance(call, ast.Call) else None
        if entry is None or not isinstance(call, ast.Call):
            continue
        span, written = span_of(facts, call), text_of(call.func)
        step = Label(span, f"starts {written}() and goes on without the result")
        yield Parting(
            Kind.ASYNC, span, entry.op, written, Confidence.MEDIUM, reason="never waited", says="when the work is done",
            witness=(RankTrace("rank 0", (step,)), RankTrace("rank 1", (step,))),
        )  # fmt: skip


def _asynchronous(call: ast.Call, facts: ModuleFacts, project: Project) -> Collective | None:
    """The collective, if the call resolves to one and asks for it to be asynchronous."""
    flag = next((keyword.value for keyword in call.keywords if keyword.arg == "async_op"), None)
    if not isinstance(flag, ast.Constant) or flag.value is not True:
        return None
    name = facts.imports.resolve(dotted(call.func)) if dotted(call.func) else None
    entry = known().collectives.get(knowledge.canonical(project.canonical(name))) if name else None
    return entry if entry is not None and entry.asynchronous else None

"""Loops that train, and whether the host waits for the GPU in each of their rounds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, below, blocks_at, calls_below, walk

#: Files with a backward that are looked at, and calls of the project's functions that are followed.
_FILES, _DEPTH = 25, 2
_LOOPS = (ast.For, ast.While)
#: Methods of a tensor that give its values to the host.
_READS = frozenset({"item", "tolist", "cpu"})
#: Expressions that may not evaluate what is in them.
_MAY_SKIP = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def all_wait(project: Project) -> bool:
    """Whether the project trains, in loops alone that read a value of each round on the host and keep their batch up to
    the next one: by the time a batch is freed, the GPU has read it."""
    return project.remember(("training loops wait",), lambda: _all_wait(project))


def _all_wait(project: Project) -> bool:
    paths = project.contents.holding("backward(")
    held = [
        facts for path in paths if (facts := project.modules.facts_of(path)) is not None and not facts.source.is_test
    ]
    loops = [(facts, loop) for facts in held[: _FILES + 1] for loop in _training(facts)]
    return (
        bool(loops)
        and len(held) <= _FILES
        and all(
            loop is not None and not _frees(loop) and _waits(project, facts, loop.body, _DEPTH) for facts, loop in loops
        )
    )


def _training(facts: ModuleFacts) -> Iterator[ast.For | ast.While | None]:
    """The innermost loop around each backward in a file; None for one in no loop of its function."""
    for call in calls_below(facts.tree):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
            continue
        found: ast.For | ast.While | None = None
        for block in blocks_at(facts.tree, call.lineno):
            if isinstance(block, FunctionNode):
                found = None
            elif isinstance(block, _LOOPS):
                found = block
        yield found


def _frees(loop: ast.AST) -> bool:
    return any(isinstance(node, ast.Delete) for node in walk(loop))


def _waits(project: Project, facts: ModuleFacts, body: Sequence[ast.stmt], depth: int) -> bool:
    """Whether statements read a tensor on the host, under no condition."""
    for statement in body:
        if isinstance(statement, ast.With):
            if _waits(project, facts, statement.body, depth):
                return True
        elif isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)):
            if any(_is_wait(project, facts, call, depth) for call in _calls(statement)):
                return True
        elif isinstance(statement, ast.If) and any(isinstance(n, ast.Return) for n in walk(statement)):
            return False
    return False


def _calls(statement: ast.AST) -> Iterator[ast.Call]:
    """The calls that a statement surely makes."""
    stack = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call):
            yield node
        stack += () if isinstance(node, _MAY_SKIP) else below(node)


def _is_wait(project: Project, facts: ModuleFacts, call: ast.Call, depth: int) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in _READS and not call.args:
        return True
    if facts.qualified(call.func) == "torch.cuda.synchronize":
        return True
    called = _called(project, facts, call) if depth > 0 else None
    return called is not None and _waits(project, called[0], called[1].body, depth - 1)


def _called(project: Project, facts: ModuleFacts, call: ast.Call) -> tuple[ModuleFacts, FunctionNode] | None:
    """The function or the method of the same object that is called."""
    owner, _, name = dotted_ast(call.func).rpartition(".")
    if owner == "self":
        around = facts.method_at(call.lineno)
        found = project.classes.method(f"{facts.name}.{around[0].name}", name) if around is not None else None
        return (found[0].module, found[1]) if found is not None else None
    definition = project.meanings.definition(project.meanings.of(facts, call.func))
    if definition is None or not isinstance(definition[1], FunctionNode):
        return None
    return definition[0], definition[1]

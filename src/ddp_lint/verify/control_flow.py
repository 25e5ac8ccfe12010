"""The tests and loops around a line of a frame, by the source: what decides whether, and how often, a rank is there."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence

from ddp_lint.knowledge import table
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, blocks_at, calls_below, last_line, nested
from ddp_lint.verify.sources import lines_of, tree_of
from ddp_lint.verify.trace import Frame

#: The largest number of conditions that are named: with more of them, any one could be the cause.
MOST = 3
#: Arguments of a `range` with a step.
_WITH_STEP = 3


Loop = ast.For | ast.While


def divides(frame: Frame, loop: Loop) -> bool:
    """The loop hands out rounds to the ranks: `range(rank, count, world)`, or a name for `data[rank::world]`."""
    if not isinstance(loop, ast.For):
        return False
    nodes = list(ast.walk(loop.iter))
    steps = any(isinstance(node, ast.Call) and len(node.args) == _WITH_STEP for node in nodes)
    if steps or any(isinstance(node, ast.Slice) for node in nodes) or names_rank(loop.iter):
        return True
    names = names_of(loop.iter) if not _is_range(loop.iter) else set()
    made = [value for one in ast.walk(tree_at(frame)) for to, value in assigned(one) if last_part(to) in names]
    return any(isinstance(value, ast.Subscript) and _is_share(value.slice) for value in made)


def _is_share(index: ast.expr) -> bool:
    return isinstance(index, ast.Slice) and (index.step is not None or names_rank(index))


def names_rank(node: ast.AST) -> bool:
    """It holds a name by which code calls the number of a rank."""
    return not _rank_words().isdisjoint(names_of(node))


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "range"


@functools.cache
def _rank_words() -> frozenset[str]:
    """How code calls the number of a rank, as the last part of a name."""
    return frozenset(name.rpartition(".")[2] for row in table("ranks")["rank"] for name in row["names"]) | {"rank"}


Gate = tuple[str, bool]


def tests_of(gates: Iterator[Gate]) -> str:
    """Tests as text, only those of the rank where there are any; '' where there are too many."""
    known = list(gates)
    asked = [text for text, asks in known if asks] or [text for text, _ in known]
    return " and ".join(asked) if len(asked) <= MOST else ""


def rank_tests(path: str, line: int) -> str:
    """The tests of the rank on the way to a line."""
    return tests_of(gate for gate in gates_before(Frame(path, line, "")) if gate[1])


def gates_before(frame: Frame, *, in_round: bool = False, below: bool = True) -> Iterator[Gate]:
    """The tests on the way to a line of its function (of the innermost loop around it), the outermost first: those
    that it is below (with `below`), and those before it that leave. With each whether it tests the rank."""
    found: list[ast.If] = []
    for block in (tree_at(frame), *blocks_at(tree_at(frame), frame.line)):
        if isinstance(block, FunctionNode) or (in_round and _is_loop(block)):
            found.clear()
        elif below and isinstance(block, ast.If):
            found.append(block)
        tests = (node for node in nested(block) if isinstance(node, ast.If) and last_line(node) < frame.line)
        found += filter(_leaves, tests)
    for test in found:
        yield f"`if {ast.unparse(test.test)}` (line {test.lineno})", _tests_rank(frame, test)


def _tests_rank(frame: Frame, node: ast.If) -> bool:
    """It names the rank, or a function of its file, a variable or an attribute whose value does."""
    tree, names = tree_at(frame), names_of(node.test)
    made: list[ast.AST] = [one for one in functions_in(tree) if one.name in names]
    made += [value for one in ast.walk(tree) for target, value in assigned(one) if last_part(target) in names]
    return not _rank_words().isdisjoint(names.union(*map(names_of, made)))


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What an assignment assigns to what, each part of a tuple by itself."""
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else []
        yield from zip(parts, values if len(values) == len(parts) > 1 else [node.value] * len(parts), strict=True)


def names_of(node: ast.AST) -> set[str]:
    """Every name in some code, also those of attributes."""
    return {getattr(inner, "id", getattr(inner, "attr", "")) for inner in ast.walk(node)} - {""}


def functions_in(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _is_loop(node: ast.AST) -> bool:
    return isinstance(node, ast.For | ast.While | ast.AsyncFor)


def _leaves(node: ast.If) -> bool:
    return any(arm and isinstance(arm[-1], ast.Return | ast.Continue | ast.Break) for arm in (node.body, node.orelse))


def loops_around(frame: Frame) -> list[Loop]:
    """The loops around a line in its function, the outermost first."""
    found: list[Loop] = []
    for block in blocks_at(tree_at(frame), frame.line):
        if isinstance(block, FunctionNode):
            found.clear()
        elif isinstance(block, ast.For | ast.While) and frame.line in lines_of(block.body):
            found.append(block)
    return found


def is_counted(loop: Loop) -> bool:
    """`for epoch in range(...)` without another way out: all ranks repeat it as often."""
    return isinstance(loop, ast.For) and _is_range(loop.iter) and not any(ways_out(loop.body))


def is_fixed(loop: Loop) -> bool:
    """`for step in range(100)`: no rank can repeat it more often."""
    return is_counted(loop) and isinstance(loop, ast.For) and not any(isinstance(n, ast.Name) for n in _bounds(loop))


def _bounds(loop: ast.For) -> list[ast.AST]:
    arguments = loop.iter.args if isinstance(loop.iter, ast.Call) else [loop.iter]
    return [node for argument in arguments for node in ast.walk(argument)]


def handler_around(loop: Loop, line: int) -> ast.ExceptHandler | None:
    """What swallows an exception that is raised before a line of a loop."""
    tries = (node for node in blocks_at(loop, line) if isinstance(node, ast.Try) and line in lines_of(node.body))
    handlers = (one for node in tries for one in node.handlers)
    return next((one for one in handlers if not any(isinstance(node, ast.Raise) for node in ast.walk(one))), None)


def handler_before(loop: Loop, line: int) -> ast.ExceptHandler | None:
    """What goes on with the next round of a loop after an exception, before it comes to a line."""
    blocks = [block for block in (loop, *blocks_at(loop, line)) if not isinstance(block, ast.Try)]
    tries = (node for block in blocks for node in nested(block) if isinstance(node, ast.Try) and last_line(node) < line)
    return next((one for node in tries for one in node.handlers if isinstance(one.body[-1], ast.Continue)), None)


def head(loop: Loop) -> str:
    if isinstance(loop, ast.While):
        return f"while {ast.unparse(loop.test)}"
    return f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"


def ways_out(body: Sequence[ast.AST], own: bool = True) -> Iterator[ast.Break | ast.Return]:
    """The statements that leave a loop; `own`: a break here is not one of an inner loop."""
    for node in body:
        if isinstance(node, ast.Return) or (own and isinstance(node, ast.Break)):
            yield node
        if isinstance(node, FunctionNode | ast.ClassDef):
            continue
        yield from ways_out(nested(node), own and not _is_loop(node))


def below_test(loop: Loop, way: ast.stmt) -> str:
    """The innermost test that a way out is below."""
    tests = [node for node in blocks_at(loop, way.lineno) if isinstance(node, ast.If)]
    return f", below `if {ast.unparse(tests[-1].test)}` (line {tests[-1].lineno})" if tests else ""


def tree_at(frame: Frame) -> ast.Module:
    return tree_of(frame.path)


def calls_at(frame: Frame) -> list[ast.Call]:
    return [node for node in calls_below(tree_at(frame)) if node.lineno == frame.line]


def conditions_above(frame: Frame, other: int) -> Iterator[tuple[str, range, bool]]:
    """The tests above a line, the outermost first, each with the lines of the arm that the line is in, and whether it
    tests the rank.

    Where both ways have an arm, and the other line is in neither, the test is not what makes them diverge.
    """
    for node in blocks_at(tree_at(frame), frame.line):
        if not isinstance(node, ast.If) or (node.orelse and other not in lines_of([node])):
            continue
        for arm, word in ((node.body, ""), (node.orelse, "the else of ")):
            lines = lines_of(arm) if arm else range(0)
            if frame.line in lines:
                yield f"{word}`if {ast.unparse(node.test)}` (line {node.lineno})", lines, _tests_rank(frame, node)


def averaged_where(frame: Frame) -> str:
    """The test that decides whether `no_sync` is around a line: `with nullcontext() if last else model.no_sync():`,
    also by a name that is assigned."""
    tree = tree_at(frame)
    blocks = (block for block in blocks_at(tree, frame.line) if isinstance(block, ast.With))
    entered = [item.context_expr for block in blocks if frame.line in lines_of(block.body) for item in block.items]
    names = {node.id for node in entered if isinstance(node, ast.Name)}
    made = [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and names & set().union(*map(names_of, n.targets))
    ]
    for chosen in (node for node in (*entered, *made) if isinstance(node, ast.IfExp)):
        skips = ["no_sync" in names_of(arm) for arm in (chosen.body, chosen.orelse)]
        if any(skips):
            negated = "" if skips[1] else "not "
            return f"`{negated}{ast.unparse(chosen.test)}` (line {chosen.lineno})"
    return ""

"""Lists that an object fills with what it is given, until a method gathers them: on each rank its own."""

from __future__ import annotations

import ast

from ddp_lint.divergence.calls_by_name import is_collective_name
from ddp_lint.divergence.definitions import collects
from ddp_lint.divergence.expressions import dotted
from ddp_lint.divergence.frame import Frame
from ddp_lint.project.parts import inside, kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import walk


def asks_for_collected(frame: Frame, node: ast.expr) -> bool:
    """``self.rows``, ``len(self.rows)``: is it a list that another method fills with what it is given, and that this
    one hands to a collective as it is? A rank that was given nothing has none."""
    of = node.args[0] if isinstance(node, ast.Call) and dotted(node.func) == "len" and node.args else node
    path = dotted(of)
    if frame.owner is None or frame.function is None or not path.startswith("self.") or path in frame.env:
        return False
    filled = collects(frame.owner.node).get(path.removeprefix("self."), ())
    name = getattr(frame.function, "name", "")
    return any(method != name for method in filled) and path in _gathered(frame.function)


@kept_by_node(4096)
def _gathered(function: ast.AST) -> frozenset[str]:
    """The attributes in what a function hands to a collective, by itself or in a variable that holds nothing else."""
    made = {
        target.id: node.value
        for node in inside(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = (n for n in inside(function) if isinstance(n, ast.Call) and is_collective_name(last_part(n.func)))
    given = [argument for call in calls for argument in (*call.args, *(each.value for each in call.keywords))]
    given += [made[argument.id] for argument in given if isinstance(argument, ast.Name) and argument.id in made]
    return frozenset(dotted(part) for each in given for part in walk(each) if isinstance(part, ast.Attribute))

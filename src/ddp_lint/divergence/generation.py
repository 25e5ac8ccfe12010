"""Sequences that a model writes token by token: each rank's own end where its own model ends them."""

from __future__ import annotations

import ast
from typing import Final

from ddp_lint.divergence.calls_by_name import functions_behind, held, is_wrapped, made_by
from ddp_lint.divergence.expressions import dotted
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.values import Variation
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge import table
from ddp_lint.project.parts import inside, kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, names_in

#: Functions that choose the next token by what a model gives.
_CHOOSING: Final = frozenset(table("tensors")["selection"]["choosing"])


def own_tokens(frame: Frame, node: ast.Compare) -> Variation | None:
    """Why ``token == eos_id`` differs between ranks, if it does: a model that several ranks run together has chosen
    the token, in a loop that gives it back to the model. With data parallelism each rank writes its own text."""
    if not isinstance(node.ops[0], (ast.Eq, ast.NotEq)) or not isinstance(frame.function, FunctionNode):
        return None
    if not any(map(frame.facts.file.holds, _CHOOSING)):  # most files: their functions need not be looked through
        return None
    if not fed_back(frame.function) or not any(_is_chosen(frame, side) for side in (node.left, node.comparators[0])):
        return None
    origin = Label(frame.span(node), "the model has chosen these tokens for the texts of this rank")
    return Variation.of_data("tokens", origin, Confidence.MEDIUM)


def _is_chosen(frame: Frame, token: ast.expr) -> bool:
    behind = functions_behind(frame, token)
    if not any(last_part(function) in _CHOOSING for function in behind):
        return False
    assert isinstance(frame.function, FunctionNode)
    written = {dotted(function) for function in behind} & fed_back(frame.function)
    return any(is_wrapped(held(frame, function)) for function in behind if dotted(function) in written)


@kept_by_node(1024)
def fed_back(function: ast.AST) -> frozenset[str]:
    """The functions that a loop calls with what follows from what they have returned, by name. Only of a function that
    chooses tokens: what follows from what is worked out for each call of each loop."""
    calls = (node for node in inside(function) if isinstance(node, ast.Call))
    if not any(last_part(call.func) in _CHOOSING for call in calls):
        return frozenset()
    return frozenset(_of_loops(function))


def _of_loops(function: ast.AST) -> set[str]:
    found: set[str] = set()
    for loop in inside(function):
        if isinstance(loop, (ast.For, ast.While)):
            calls = [node for node in inside(loop) if isinstance(node, ast.Call)]
            found |= {dotted(call.func) for call in calls if _gets_its_own(loop, call)}
    return found - {""}


def _gets_its_own(loop: ast.For | ast.While, call: ast.Call) -> bool:
    given = frozenset(name for part in (*call.args, *(k.value for k in call.keywords)) for name in names_in(part))
    return dotted(call.func) in {dotted(function) for function in made_by(loop, given)}

"""Whether the host has just waited for the GPU where it reads a tensor: the queue of kernels is empty then, and the
read costs hardly more than a copy. The first wait is what has to go."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import libcst as cst

from ddp_lint.knowledge.tensors import is_log, is_tensor_function, is_tensor_method, names
from ddp_lint.rules.compile.host import CONVERSIONS, read_by, truth_values
from ddp_lint.source import dotted
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.tensors import TensorFile
from ddp_lint.tensors.flow import Flow
from ddp_lint.view import Module

#: What Python does with its own objects.
_BUILTINS = frozenset(
    {*CONVERSIONS, "len", "range", "enumerate", "zip", "list", "tuple", "dict", "set", "str", "print", "max", "min"}
    | {"sum", "isinstance", "getattr", "hasattr", "sorted", "round", "abs", "any", "all"}
)
_OF_CONTAINERS = frozenset({"append", "extend", "update", "get", "items", "keys", "values", "format", "join", "pop"})
#: Methods that copy a tensor to the host.
_COPIES = frozenset({"cpu", "numpy"})


@dataclasses.dataclass(frozen=True)
class Wait:
    """What a statement that waits does: whether it reads a tensor by a call, as DDP301 reports, and whether a loop of
    its function runs over it."""

    statement: cst.CSTNode
    reads: bool
    in_loop: bool


def wait_before(module: Module, node: cst.CSTNode, function: cst.FunctionDef) -> Wait | None:
    """The last statement before a place that surely waits for the GPU, in the same round of the innermost loop, if what
    runs between gives the GPU no more than small operations on tensors: no layer, no function of the project, no
    product of matrices, no loop. Also a read before a loop whose rounds have no more than that either: each of them
    begins where the one before has waited."""
    flow, around = TensorFile.of(module).flow(function), list(module.ancestors(node))
    below = _statement_around(node, around)
    if below is None or isinstance(below, cst.While):
        return None
    found: tuple[cst.CSTNode, bool] | None = None
    in_loop = False
    for up in around:
        if isinstance(up, cst.FunctionDef):
            break
        if isinstance(up, (cst.For, cst.While)):
            in_loop = True
            if found is not None or below is not up.body or not _is_small_round(module, up, flow):
                break
        elif found is None:
            found, small = _last_wait(module, _parts_above(up, below), flow)
            if not small or isinstance(up, (cst.With, cst.Try)):
                return None
            if in_loop and found is not None and not found[1]:
                return None
        below = up
    return Wait(*found, in_loop) if found is not None else None


def _statement_around(node: cst.CSTNode, around: Iterable[cst.CSTNode]) -> cst.CSTNode | None:
    """The part of a statement that a place is in; None in a comprehension, which is a loop of its own, but for what it
    goes over."""
    below = node
    for up in around:
        if isinstance(up, cst.CompIf) or (isinstance(up, cst.BaseComp) and below is not up.for_in):
            return None
        below = up
        if isinstance(up, cst.BaseStatement):
            break
    return below


def _parts_above(up: cst.CSTNode, below: cst.CSTNode) -> list[cst.CSTNode]:
    """What runs in a block, or as the test of a branch, before one of its parts."""
    if isinstance(up, cst.IndentedBlock):
        return list(itertools.takewhile(lambda each: each is not below, up.body))
    return [up.test] if isinstance(up, cst.If) else []


def _last_wait(module: Module, parts: list[cst.CSTNode], flow: Flow) -> tuple[tuple[cst.CSTNode, bool] | None, bool]:
    """The last of some parts that surely waits for the GPU, with whether it reads a tensor by a call; and whether what
    runs behind it gives the GPU little to do."""
    for part in reversed(parts):
        if not _is_small(module, part, flow):
            return None, False
        kinds = set(_waits(module, part, flow))
        if kinds:
            return (part, True in kinds), True
    return None, True


def waited_before(module: Module, node: cst.CSTNode, function: cst.FunctionDef) -> bool:
    """Whether a wait before a place, which is no read that DDP301 reports, makes one there cost next to nothing: once
    in a call of the function, as in a loop they add up."""
    wait = wait_before(module, node, function)
    return wait is not None and not wait.reads and not wait.in_loop


def _waits(module: Module, part: cst.CSTNode, flow: Flow) -> Iterator[bool]:
    """How a statement, or the test of a branch, surely waits for the GPU: True for a read that is a call, False for
    anything else."""
    test = part.test if isinstance(part, cst.If) else part
    if isinstance(test, cst.BaseExpression):
        yield from (False for each in truth_values(test) if flow.value(each).computed)
    elif not isinstance(test, cst.SimpleStatementLine):
        return
    for node in subtree(test):
        if isinstance(node, cst.Call):
            read = read_by(node)
            if read is not None and flow.value(read).computed:
                yield True
            elif _selects_or_copies(module, node, flow):
                yield False
        elif isinstance(node, cst.Subscript) and _is_selection(node) and flow.value(node.value).computed:
            yield False


def _selects_or_copies(module: Module, call: cst.Call, flow: Flow) -> bool:
    """Whether the size of what an operation gives depends on the values (``mask.nonzero()``, ``torch.where(mask)``), or
    it copies a tensor to the host."""
    if module.qualified(call.func).startswith("torch."):
        operand = call.args[0].value if call.args else None
        copies = False
    else:
        operand = call.func.value if isinstance(call.func, cst.Attribute) else None
        copies = called(call) in _COPIES
    if operand is None or not flow.value(operand).computed:
        return False
    finds = called(call) == "where" and len(call.args) == 1
    return copies or finds or called(call) in names("selection", "selecting")


def _is_selection(node: cst.Subscript) -> bool:
    """``x[x > 0]``, ``x[~mask]``"""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    value = index.value if isinstance(index, cst.Index) else None
    return isinstance(value, cst.Comparison) or (
        isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.BitInvert)
    )


def _is_small_round(module: Module, loop: cst.For | cst.While, flow: Flow) -> bool:
    """Whether a round of a loop gives the GPU little to do, and what the loop goes over does."""
    if isinstance(loop, cst.While) or loop.orelse is not None:
        return False
    return all(_is_small(module, part, flow) for part in (loop.iter, *loop.body.body))


def _is_small(module: Module, part: cst.CSTNode, flow: Flow) -> bool:
    """Whether a part of a function gives the GPU little to do."""
    if isinstance(part, (cst.For, cst.While, cst.With, cst.Try)):
        return False
    for node in (part, *descendants(part)):
        if isinstance(node, (cst.For, cst.While, cst.Await, cst.Yield, cst.MatrixMultiply)):
            return False
        if isinstance(node, cst.Call) and not _is_small_call(module, node, flow):
            return False
    return True


def _is_small_call(module: Module, call: cst.Call, flow: Flow) -> bool:
    name, last, qualified = dotted(call.func), called(call), module.qualified(call.func)
    if last.rstrip("_") in names("compile", "large"):
        return False
    if name in _BUILTINS or is_log(name) or qualified.partition(".")[0] in ("math", "numpy"):
        return True
    if is_tensor_function(qualified):
        return qualified.rpartition(".")[0] in ("torch", "torch.Tensor")
    if not isinstance(call.func, cst.Attribute) or dotted(call.func.value) == "self":
        return False
    return last in _OF_CONTAINERS or last in _COPIES or is_tensor_method(last) or flow.value(call.func.value).tensorish

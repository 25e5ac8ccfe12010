"""Loaders that give all ranks the same batches: nothing divides their data among the ranks."""

from __future__ import annotations

import ast
import re

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.lengths import assigned_once
from ddp_lint.divergence.values import Known, Value
from ddp_lint.project.facts import assigned_in
from ddp_lint.project.parts import kept_by_node
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, names_in, walk

_SEQUENTIAL = re.compile(r"(^|\.)SequentialSampler$")
_SAMPLERS = ("sampler", "batch_sampler")
#: Words of a class of data that may divide them among the ranks, or give each of them others.
_DIVIDING = re.compile(
    r"rank|world|replica|shard|dist(?!ance)|islice|split_by|split_dataset|rand|shuffle|sampler|sampling|worker|seed|num_(parts|processes|nodes)"
    r"|process_(index|id)|host|environ|queue|socket|gpu|accelerat",
    re.IGNORECASE,
)


def is_whole(frame: Frame, node: ast.Call, arguments: Arguments) -> bool:
    """Does a ``DataLoader(dataset, 32)`` hand out all of the data in their order, on every rank?"""
    samplers = [keyword for keyword in node.keywords if keyword.arg in _SAMPLERS and not _is(None, keyword, arguments)]
    divided = [keyword for keyword in samplers if not (keyword.arg == "sampler" and _is_in_order(frame, keyword.value))]
    shuffles = (keyword for keyword in node.keywords if keyword.arg == "shuffle")
    shuffled = any(not _is(False, keyword, arguments) for keyword in shuffles)
    starred = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
    return not divided and not shuffled and len(node.args) <= 2 and not starred


def _is(wanted: bool | None, keyword: ast.keyword, arguments: Arguments) -> bool:
    value = arguments.keywords.get(keyword.arg or "")
    return value is not None and value.constant == Known(wanted)


def _is_in_order(frame: Frame, node: ast.expr) -> bool:
    sampler = assigned_once(frame, node)
    return _SEQUENTIAL.search(frame.text(getattr(sampler, "func", sampler))) is not None


def hands_out_all(frame: Frame, dataset: Value | None, node: ast.expr | None) -> bool:
    """Does an object of a class of the project go through all of its data on every rank: does neither the class speak
    of ranks, nor what is given to it where the function makes it?"""
    of = dataset.reference.of if dataset is not None and isinstance(dataset.reference, ref.Instance) else None
    if not isinstance(of, ref.ClassRef) or node is None or not isinstance(frame.function, FunctionNode):
        return False
    values = [node] if isinstance(node, ast.Call) else assigned_in(frame.function, dotted_ast(node))
    if len(values) != 1 or not isinstance(values[0], ast.Call):
        return False
    held = (frame.env.get(name) for name in names_in(values[0]))
    if any(value is not None and value.varies is not None for value in held):
        return False
    above, _ = frame.linker.linearised(of)
    return not _may_divide(values[0]) and not any(_may_divide(each.node) for each in above)


@kept_by_node(1024)
def _may_divide(part: ast.AST) -> bool:
    """Does code have a name or a text in it that speaks of ranks?"""
    words = (
        getattr(node, field, None) or ""
        for node in walk(part)
        for field in ("id", "attr", "arg", "name", "value")
        if isinstance(getattr(node, field, None), str)
    )
    return any(map(_DIVIDING.search, words))

"""Assignments: what a name, an attribute or an entry holds from here on."""

from __future__ import annotations

import ast
import dataclasses
import re

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.collectives import communicate
from ddp_lint.divergence.expressions import dotted, evaluate, passed_on
from ddp_lint.divergence.frame import Frame, Handlers
from ddp_lint.divergence.lengths import extent_of, grown_by_key, is_extent, is_size, size_of
from ddp_lint.divergence.losses import written
from ddp_lint.divergence.project_names import as_configured
from ddp_lint.divergence.resolve import known
from ddp_lint.divergence.values import Value, Variation, dictionary, divergent, filled, is_new_container, unknown
from ddp_lint.findings import Confidence
from ddp_lint.source.syntax import FunctionNode, first_name

#: A name for a dimension that the model sets, whatever the samples are: ``num_classes = logits.shape[1]``.
_OF_LAYOUT = re.compile(r"(^|_)(classes|categories|channels|segments|heads|queries|feat(ure)?s?)$")
#: Entries that are kept of a dictionary.
_ENTRIES = 64


def bind(frame: Frame, target: ast.expr, value: Value, source: ast.AST, *, counted: bool = False) -> None:
    """Assign to a target; `counted` where a loop does, in each of its rounds."""
    if isinstance(target, ast.Starred):
        target = target.value
    if isinstance(target, (ast.Tuple, ast.List)):
        _bind_parts(frame, target, value, source, counted=counted)
        return
    path = dotted(target)
    if isinstance(target, ast.Subscript):
        key, base = evaluate(frame, target.slice), evaluate(frame, target.value)
        _store(frame, target, base)
        written(frame, target.value)
        if _enter(frame, target, base, key, value):
            return
    if not path:
        if value.agreed and isinstance(target, ast.Subscript) and not any(test.varying() for test in frame.path):
            frame.agreed.add(frame.text(target))
        return
    if isinstance(target, ast.Name) and target.id in frame.global_names:
        frame.summaries.variables.set_global(frame, target.id, value)
    frame.env.forget_parts(path)
    frame.env[path] = value = value if counted else _as_named(frame, value, target, path)
    if not isinstance(target, ast.Name) and _follows_from_rank(value):
        _keep_apart(frame, path)


def _bind_parts(frame: Frame, target: ast.Tuple | ast.List, value: Value, source: ast.AST, *, counted: bool) -> None:
    """``x, y = value``"""
    starred = any(isinstance(part, ast.Starred) for part in target.elts)
    items = value.items if value.items is not None and (starred or len(value.items) == len(target.elts)) else ()
    for index, part in enumerate(target.elts):
        if index < len(items):
            item = items[index]
        elif value.varies is not None and is_size(value) and index == 0:
            item = size_of((value.key, index), value.varies)
        elif value.varies is not None and is_size(value):
            item = extent_of(frame.linker.project, (value.key, index), value.varies)
        elif value.varies is not None and value.open:
            item = divergent(("part", frame.key(source), index), value.varies)
        else:
            item = unknown(("part", frame.key(source), frame.key(target), index), agreed=value.agreed)
        if not index and value.loose is not None:
            item = dataclasses.replace(item, loose=value.loose)
        bind(frame, part, item, source, counted=counted)


def _follows_from_rank(value: Value) -> bool:
    return value.varies is not None and value.varies.cause == "rank" and not value.varies.local_only and not value.open


def _keep_apart(frame: Frame, path: str) -> None:
    """``config.saves = rank == 0``: what the object is given to sees it. The methods of an object see its attributes
    by its class."""
    function, (of, _, attribute) = frame.function, path.partition(".")
    this = first_name(function) if frame.owner is not None and isinstance(function, FunctionNode) else ""
    if of != this or not attribute.isidentifier():
        frame.apart.add(path)


def _as_named(frame: Frame, value: Value, target: ast.expr, path: str) -> Value:
    """The value with what its name says of it, by itself or by the configuration."""
    if is_extent(value) and _OF_LAYOUT.search(path):
        return unknown(("layout", value.key))
    if frame.summaries.own is None or value.constant is not None:
        return value
    return as_configured(frame, value, target, path)


def _store(frame: Frame, target: ast.Subscript, base: Value) -> None:
    """``param_group["lr"] = lr``: what the knowledge says of a key of this object."""
    of = base.reference.of if isinstance(base.reference, ref.Instance) else None
    entry = known().method(of, "__setitem__") if isinstance(of, str) else None
    if entry is not None:
        call = ast.copy_location(ast.Call(func=target, args=[target.slice], keywords=[]), target)
        communicate(frame, entry, Arguments((evaluate(frame, target.slice),)), call, confidence=Confidence.MEDIUM)


def _enter(frame: Frame, target: ast.Subscript, base: Value, key: Value, value: Value) -> bool:
    """``stats["kl"] = kl``: an entry of a dictionary that this function has made, by key as far as that is known.
    Returns whether it is kept there."""
    path = dotted(target.value)
    if base.entries is None or not path or len(base.entries) >= _ENTRIES:
        return False
    own = passed_on(frame, target, [value]).varies
    if key.constant is None:
        if (grown := grown_by_key(frame, target, target.slice, key)) is not None:
            frame.env[path] = grown
        else:
            fill(frame, path, target, own)
        return False
    entries = {**base.entries, key.constant.value: value}
    varies = base.varies if base.varies is not None and base.open else own
    frame.env.forget_parts(dotted(target) or path)
    frame.env[path] = dictionary(("stored", frame.key(target), base.key), entries, varies)
    return True


def fill(frame: Frame, path: str, at: ast.AST, own: Variation | None) -> None:
    """From here on an empty list or dictionary holds values of which some are each rank's own, as many on all ranks."""
    before = frame.env.get(path)
    if own is not None and before is not None and is_new_container(before):
        frame.env[path] = filled(frame.key(at), own)


def _walrus(frame: Frame, node: ast.NamedExpr) -> Value:
    value = evaluate(frame, node.value)
    bind(frame, node.target, value, node)
    return value


HANDLERS: Handlers = {ast.NamedExpr: _walrus}

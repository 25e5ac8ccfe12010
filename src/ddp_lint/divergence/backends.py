"""Under which backend the launcher runs a job, where a program asks for it, and what communicates under some of them.

The backend is the same on all ranks. A question about it and a call that communicates under it alone share one
condition: the ``else`` of ``if accelerator.distributed_type == DistributedType.DEEPSPEED`` is of other jobs.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Mapping
from typing import Final

from ddp_lint.divergence import worlds
from ddp_lint.divergence.effects import Branch, Effect, EventStep
from ddp_lint.divergence.expressions import dotted
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.values import Condition, Test, Value, negated, unknown
from ddp_lint.knowledge.communication import Collective
from ddp_lint.knowledge.frameworks import Backend, every
from ddp_lint.knowledge.project_names import last
from ddp_lint.source.imports import last_part

_BACKEND: Final = "backend of the job"
_SAME: Final = (ast.Eq, ast.Is, ast.In)
_OTHER: Final = (ast.NotEq, ast.IsNot, ast.NotIn)
_LISTS: Final = (ast.Tuple, ast.List, ast.Set)


def answer(frame: Frame, node: ast.Compare) -> Value | None:
    """What ``accelerator.distributed_type == DistributedType.FSDP``, ``in (...)`` or ``.deepspeed_plugin is None``
    gives, which the backend decides; None for another question."""
    operation, right, path = type(node.ops[0]), node.comparators[0], dotted(node.left)
    if operation not in (*_SAME, *_OTHER):
        return None
    entry = _asked().get(last(path))
    if entry is not None:
        listed = isinstance(right, _LISTS)
        members = [last_part(member) for member in (right.elts if isinstance(right, _LISTS) else [right])]
        if listed is not (operation in (ast.In, ast.NotIn)) or not all(name.isupper() for name in members):
            return None
        tests = tuple(_of_member(entry, name, f"{path} == {name}") for name in members)
        test = tests[0] if len(tests) == 1 else Test("or", tests)
        return _value(test, operation in _SAME)
    plugin = _plugins().get(last(path), "") if "state" in path.split(".") else ""
    if plugin and isinstance(right, ast.Constant) and right.value is None:
        return _value(_under(plugin, f"{path} is not None"), operation in _OTHER)
    return None


def under_its_backends(frame: Frame, entry: Collective, step: EventStep) -> Effect:
    """The event under the backends where the call communicates: where there is evidence, under those it is of."""
    evidence = frame.summaries.evidence
    shown = evidence.backends(frame.facts, frame.owner, entry.backends) if step.event.evident else ()
    tests = tuple(_under(name, f"the job runs under {name}") for name in shown or entry.backends)
    return Branch(tests[0] if len(tests) == 1 else Test("or", tests), [step], [], step.event.span)


def is_asked(condition: Condition) -> bool:
    """Is it the question for a backend: what communicates under another one does so behind either answer?"""
    truth = condition.truths[0]
    return isinstance(truth, tuple) and truth[0] == _BACKEND


def _of_member(entry: Backend, member: str, text: str) -> Test:
    """Whether the job has the backend of this member of the enumeration: it has none of the others then."""
    if member in entry.members:
        return _under(entry.members[member], text)
    others = tuple(negated(_under(name, f"the job runs under {name}")) for name in sorted(set(entry.members.values())))
    return Test("and", (_under(member, text), *others))


def _under(name: str, text: str) -> Test:
    return Test("atom", atom=Condition(((_BACKEND, name),) * worlds.COUNT, text))


def _value(test: Test, positive: bool) -> Value:
    test = test if positive else negated(test)
    return dataclasses.replace(unknown((_BACKEND, test)), test=test)


@functools.cache
def _asked() -> Mapping[str, Backend]:
    """The attributes that say which backend a job has."""
    return {entry.asked: entry for entry in every(lambda framework: framework.backend)}


@functools.cache
def _plugins() -> Mapping[str, str]:
    """The attributes that are there under one backend alone, and which."""
    return {name: of for entry in _asked().values() for name, of in entry.plugins.items()}

"""The one walk: every active rule sees every node of a file once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable

import libcst as cst

from ddp_lint.findings import Finding
from ddp_lint.rules.base import Rule
from ddp_lint.source import Module
from ddp_lint.source.tree import children

Visit = Callable[[cst.CSTNode], None]


def walk(
    module: Module, kinds: Iterable[type[Rule]], crashed: Callable[[type[Rule], Exception], None]
) -> list[Finding]:
    """The findings of `kinds` on one module. A rule that raises is dropped from the walk and told to `crashed`."""
    found: list[Finding] = []
    rules = [kind(module, found.append) for kind in kinds]
    dead: set[Rule] = set()

    def call(rule: Rule, method: Callable[..., None], *args: cst.CSTNode) -> None:
        if rule in dead:
            return
        try:
            method(*args)
        except Exception as e:  # one rule's defect must not cost the file
            dead.add(rule)
            crashed(type(rule), e)

    for rule in rules:
        call(rule, rule.start)
    stack: list[tuple[cst.CSTNode, bool]] = [(module.tree, False)]
    while stack:
        node, leaving = stack.pop()
        name = type(node).__name__
        if leaving:
            for rule in rules:
                if name in _methods(type(rule), "leave_"):
                    call(rule, getattr(rule, f"leave_{name}"), node)
            continue
        if any(name in _methods(kind, "leave_") for kind in map(type, rules)):
            stack.append((node, True))
        for rule in rules:
            if name in _methods(type(rule), "visit_"):
                call(rule, getattr(rule, f"visit_{name}"), node)
        stack.extend([(child, False) for child in children(node)][::-1])
    for rule in rules:
        call(rule, rule.finish)
    return found


@functools.cache
def _methods(kind: Hashable, prefix: str) -> frozenset[str]:
    return frozenset(name.removeprefix(prefix) for name in dir(kind) if name.startswith(prefix))

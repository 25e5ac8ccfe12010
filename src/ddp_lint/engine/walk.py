"""The one walk: every active rule sees every node of a file once."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping

import libcst as cst

from ddp_lint.findings import Finding
from ddp_lint.rules.base import Rule
from ddp_lint.source.tree import is_leaf
from ddp_lint.view import Module

Handler = tuple[Rule, Callable[[cst.CSTNode], None]]
_Call = Callable[..., None]
_NONE: tuple[Handler, ...] = ()
_EVERYWHERE: Mapping[cst.CSTNode, frozenset[str]] = types.MappingProxyType({})


def walk(
    module: Module,
    kinds: Iterable[type[Rule]],
    crashed: Callable[[type[Rule], Exception], None],
    limits: Mapping[cst.CSTNode, frozenset[str]] = _EVERYWHERE,
) -> list[Finding]:
    """The findings of `kinds` on one module. A rule that raises is dropped from the walk and given to `crashed`.

    `limits`: definitions that are for the rules with these codes only. Of a class the others see the node itself.
    """
    found: list[Finding] = []
    rules: list[Rule] = []
    for kind in kinds:
        try:
            rules.append(kind(module, found.append))
        except Exception as e:
            crashed(kind, e)
    call = _guarded(crashed)
    for rule in rules:
        call(rule, rule.start)
    _visit(module, _Audiences(rules), call, limits)
    for rule in rules:
        call(rule, rule.finish)
    return found


def _guarded(crashed: Callable[[type[Rule], Exception], None]) -> _Call:
    """Calls methods of rules: one rule's defect must not cost the file, nor be reported twice."""
    dead: set[Rule] = set()

    def call(rule: Rule, method: Callable[..., None], *args: cst.CSTNode) -> None:
        if rule in dead:
            return
        try:
            method(*args)
        except Exception as e:
            dead.add(rule)
            crashed(type(rule), e)

    return call


def _visit(module: Module, audiences: _Audiences, call: _Call, limits: Mapping[cst.CSTNode, frozenset[str]]) -> None:
    """Go through the tree, from the top down, for the rules that listen to each part of it."""
    stack: list[tuple[cst.CSTNode, _Audience, bool]] = [(module.tree, audiences[None], False)]
    while stack:
        node, audience, leaving = stack.pop()
        name = type(node).__name__
        if leaving:
            for rule, method in audience.leave[name]:
                call(rule, method, node)
            continue
        inside = audiences[limits[node]] if node in limits else audience
        if name != "ClassDef":
            audience = inside
        if name in audience.leave:
            stack.append((node, audience, True))
        for rule, method in audience.enter.get(name, _NONE):
            call(rule, method, node)
        if inside.listens:
            wanted = inside.wanted
            below = [(child, inside, False) for child in module.children(node) if wanted[type(child)]]
            below.reverse()
            stack += below


class _Audience:
    """Some rules, and what they visit."""

    def __init__(self, rules: list[Rule]) -> None:
        self.enter, self.leave = _handlers(rules, "visit_"), _handlers(rules, "leave_")
        self.listens = bool(self.enter or self.leave)
        self.wanted = _Wanted({*self.enter, *self.leave})


class _Audiences(dict["frozenset[str] | None", _Audience]):
    """The audience of the rules with these codes; None: all."""

    def __init__(self, rules: list[Rule]) -> None:
        super().__init__()
        self._rules = rules

    def __missing__(self, codes: frozenset[str] | None) -> _Audience:
        self[codes] = found = _Audience([rule for rule in self._rules if codes is None or rule.code in codes])
        return found


class _Wanted(dict[type[cst.CSTNode], bool]):
    """Whether the walk has to go to nodes of a type: what has nothing below it may be passed by."""

    def __init__(self, visited: set[str]) -> None:
        super().__init__()
        self._visited = visited

    def __missing__(self, kind: type[cst.CSTNode]) -> bool:
        self[kind] = kind.__name__ in self._visited or not is_leaf(kind)
        return self[kind]


def _handlers(rules: Iterable[Rule], prefix: str) -> dict[str, tuple[Handler, ...]]:
    """Node type to the methods that are called for it, in the order of the rules."""
    found: dict[str, tuple[Handler, ...]] = {}
    for rule in rules:
        for method in _methods(type(rule).__mro__, prefix):
            name = method.removeprefix(prefix)
            found[name] = (*found.get(name, ()), (rule, getattr(rule, method)))
    return found


@functools.cache
def _methods(lineage: tuple[type, ...], prefix: str) -> tuple[str, ...]:
    return tuple(sorted({name for kind in lineage for name in vars(kind) if name.startswith(prefix)}))

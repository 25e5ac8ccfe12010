"""What the callers of a function say of the places where it makes the ranks diverge by itself.

A function is analysed for arguments unknown. Where the project calls it, and never so that the ranks diverge there (a
flag that skips the branch, a loop over all ranks, a caller that compensates it), the ranks do not.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from ddp_lint.divergence import worlds
from ddp_lint.divergence.calls_by_name import is_wrapped
from ddp_lint.divergence.definitions import MODEL, stores_in
from ddp_lint.divergence.frame import span_of
from ddp_lint.divergence.generation import fed_back
from ddp_lint.divergence.mismatches import Meeting, Mismatch
from ddp_lint.divergence.parameters import general
from ddp_lint.divergence.references import FunctionRef
from ddp_lint.divergence.resolve import known
from ddp_lint.divergence.summaries import Given, Summaries
from ddp_lint.divergence.values import BATCH, ELEMENT, INDEX, Test, Value, argument_key
from ddp_lint.findings import Confidence, Span
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import inside, kept_by_node
from ddp_lint.project.uses import uses
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import parameters, walk

#: Files and functions that a function is called in; beyond it, it is taken to be called in any way.
_FILES, _CALLERS, _CONTEXTS = 8, 12, 8
#: Calls from a function up to the test that says which rank runs it.
_UPWARDS = 3


class HasNode(Protocol):
    """A root of the analysis, as far as this module needs it."""

    @property
    def node(self) -> ast.AST: ...

    @property
    def function(self) -> FunctionRef | None: ...


R = TypeVar("R", bound=HasNode)


@dataclasses.dataclass(frozen=True)
class Callers(Generic[R]):
    """`roots` lists those of a file, `evaluate` runs one for the calls that it makes, `mismatches` gives where the
    ranks diverge in one, for the arguments in `env`: None where it is too large."""

    project: Project
    summaries: Summaries
    #: Summaries in which callers see everything that a callee does.
    open: Summaries
    roots: Callable[[ModuleFacts, Summaries], Iterable[R]]
    evaluate: Callable[[R, ModuleFacts, Summaries], None]
    mismatches: Callable[[R, ModuleFacts, Summaries, dict[str, Value] | None], tuple[Mismatch, ...] | None]

    def confirmed(self, root: R, function: FunctionRef, found: tuple[Mismatch, ...]) -> tuple[Mismatch, ...]:
        """Those of the mismatches of a function that a caller brings about; all of them where none is known."""
        callers = list(self._callers(function))
        if not callers or len(callers) > _CALLERS:
            return found
        calls = list(self._calls(function, callers))
        if not all(p.by_rank_or_place for p in found) and self._is_of_rank_0(function, calls):
            return tuple(p for p in found if p.by_rank_or_place)  # nothing else parts a rank from itself
        contexts = self._contexts(function, calls)
        if not contexts or len(contexts) > _CONTEXTS:
            return found
        kept = self._places(root, function, (full for full, _ in contexts))
        if kept is None:
            return found
        by_rank = (p for p in found if _place(p) in kept and p.by_rank_or_place)
        doubted = [p for p in by_rank if p.branch is not None]  # what an argument makes, no other call makes up for
        if doubted:
            # What depends on the name of a parameter alone is none of what a caller could compensate.
            by_callers = self._places(root, function, (given for _, given in contexts)) or set()
            seen = [self.mismatches(caller, facts, self.open, None) for facts, caller in callers]
            body = span_of(function.facts, function.node)
            kept -= {
                _place(p)
                for p in doubted
                # A caller that is too large to be read shows nothing that compensates it.
                if _place(p) in by_callers
                and not any(m is None or any(_concerns(other, p, body) for other in m) for m in seen)
            }
        return tuple(mismatch for mismatch in found if _place(mismatch) in kept)

    def with_wrapped(self, function: FunctionRef) -> Iterator[tuple[dict[str, Value], ModuleFacts]]:
        """The arguments that callers give, where a wrapped model is among them, and the file of the caller."""
        callers = list(self._callers(function))
        giving = (
            (given, facts)
            for facts, caller in (callers if len(callers) <= _CALLERS else ())
            for _, given in self._contexts(function, self._calls(function, [(facts, caller)]))
        )
        for given, facts in itertools.islice(giving, _CONTEXTS):
            if any(is_wrapped(value) for value in given.values()):
                yield given, facts

    def missed_in_callers(self, function: FunctionRef) -> frozenset[Span] | None:
        """The calls that the callers of a function make some ranks miss, with those on the way: they see what the ranks
        do after it. None where no caller is known."""
        callers = list(self._callers(function))[:_CALLERS]
        read = [self.mismatches(caller, facts, self.open, None) or () for facts, caller in callers]
        found = (m for m in itertools.chain(*read) if m.confidence is not Confidence.LOW and m.meets is Meeting.NONE)
        return frozenset(step.span for m in found for step in m.way) if callers else None

    def _places(self, root: R, function: FunctionRef, contexts: Iterable[dict[str, Value]]) -> set[object] | None:
        """Where the ranks diverge in a function for some arguments; None where it is too large for one of them."""
        found = [self.mismatches(root, function.facts, self.summaries, env) for env in contexts]
        if None in found:
            return None
        return {_place(mismatch) for mismatches in found for mismatch in mismatches or ()}

    def _callers(self, function: FunctionRef) -> Iterator[tuple[ModuleFacts, R]]:
        """Functions and modules that hold a call of this name, none at all where there are too many files."""
        paths = self.project.contents.holding(f"{function.name}(")
        if len(paths) > _FILES:
            return
        files = [facts for path in paths if (facts := self.project.modules.facts_of(path)) is not None]
        if not function.facts.source.is_test:  # a test calls what others call in other ways
            files = [facts for facts in files if not facts.source.is_test]
        if any(_is_handed_on(facts, function.name) for facts in files):
            return  # a handler of signals, a hook: called from elsewhere, too
        for facts in files:
            for root in self.roots(facts, self.summaries):
                if root.node is not function.node and function.name in _called_in(root.node):
                    yield facts, root

    def _calls(
        self, function: FunctionRef, callers: Iterable[tuple[ModuleFacts, R]]
    ) -> Iterator[tuple[R, list[Given]]]:
        """What each caller gives the function, and by which tests it comes there."""
        for facts, caller in callers:
            with self.summaries.watching(function.node) as given:
                self.evaluate(caller, facts, self.summaries)
            yield caller, given

    def _is_of_rank_0(
        self, function: FunctionRef, calls: Iterable[tuple[R, list[Given]]], depth: int = _UPWARDS
    ) -> bool:
        """Does rank 0 alone run the function: is each call of it under a test of the rank, or in such a function?"""
        called = False
        for caller, given in calls:
            if not given and function.owner is None:
                continue  # another function of this name
            called = True
            if given and all(any(map(_is_rank_0, path)) for _, path in given):
                continue
            above = list(self._callers(caller.function)) if depth and caller.function is not None else []
            if caller.function is None or not above or len(above) > _CALLERS:
                return False
            if not self._is_of_rank_0(caller.function, self._calls(caller.function, above), depth - 1):
                return False
        return called

    def _contexts(
        self, function: FunctionRef, calls: Iterable[tuple[R, list[Given]]]
    ) -> list[tuple[dict[str, Value], dict[str, Value]]]:
        """The arguments that the callers give, what they know nothing of as the function takes it by itself; and as
        they are given."""
        alone = general(self.summaries, function, heuristic=True)
        found: dict[object, tuple[dict[str, Value], dict[str, Value]]] = {}
        for _, given in calls:
            for env, _ in given:
                full = {name: _more_specific(env.get(name), value) for name, value in alone.items()}
                found[tuple((name, argument_key(value)) for name, value in full.items())] = full, {**alone, **env}
        return list(found.values())


def _is_rank_0(test: Test) -> bool:
    """Does the test hold for no rank but the first of all? That of each node, or of each group, is another one."""
    world = all(atom.varies is None or atom.varies.scope == "world" for atom in test.atoms())
    return world and test.truth(0) is not False and not any(test.truth(n) is not False for n in range(1, worlds.COUNT))


def may_run_on_some(function: FunctionRef) -> bool:
    """Does the function take a model, and either test the rank, take a slice by the rank, or leave a loop, a round of
    it, or itself by a test, where it calls the model?"""
    models = {parameter.arg for parameter in parameters(function.node) if MODEL.search(parameter.arg)}
    if not models:
        return False
    if not models.isdisjoint(fed_back(function.node)):
        return True
    return _leaves(function.node, models) or any(_may_differ(node) for node in inside(function.node))


def may_run_own_on_some(function: FunctionRef) -> bool:
    """Does a method test the rank, and use a model that its object holds, which may have been given wrapped? Or does it
    go backward, which not all rounds or calls of it need do, or give the model what it has made of its output?"""
    models = _models_of(function.owner.node) if function.owner else None
    if not models:
        return False
    nodes = list(inside(function.node))
    if not any(isinstance(node, ast.Attribute) and node.attr in models for node in nodes):
        return False
    if any(name.removeprefix("self.") in models for name in fed_back(function.node)):
        return True
    goes_backward = any(isinstance(node, ast.Call) and last_part(node.func) == "backward" for node in nodes)
    return goes_backward or any(isinstance(node, ast.If) and _tests_rank(node.test) for node in nodes)


@kept_by_node(1024)
def _models_of(owner: ast.ClassDef) -> frozenset[str]:
    """The attributes that are named after a model."""
    return frozenset(name for name in stores_in(owner) if MODEL.search(name))


def _may_differ(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return _tests_rank(node.test)
    if isinstance(node, ast.Slice):
        return any(bound is not None and _tests_rank(bound) for bound in (node.lower, node.step))
    return False


def _leaves(function: ast.AST, models: set[str]) -> bool:
    """Is there a jump, but for a `return` at the end, in a function that calls one of its models?"""
    below = list(inside(function))
    runs = any(isinstance(n, ast.Call) and getattr(n.func, "id", "") in models for n in below)
    tested = (n for n in below if runs and isinstance(n, (ast.If, ast.ExceptHandler)))
    return any(isinstance(n, (ast.Break, ast.Continue, ast.Return)) for test in tested for n in inside(test))


def _tests_rank(test: ast.expr) -> bool:
    for node in walk(test):
        name = last_part(node)
        asked = (("name", name), ("attribute", name), ("call", f"*.{name}"))
        if name and any(known().rank(what, of) for what, of in asked):
            return True
    return False


def _more_specific(given: Value | None, alone: Value) -> Value:
    """What is given, if that says more than the parameter's own name and class do."""
    if given is None or (given.open and given.varies is not None and alone.varies is not None):
        return alone  # each rank has its own, as the name says
    plain = given.constant is None and given.varies is None and not given.agreed and given.kind not in _COUNTED
    return alone if plain and (alone.varies is not None or given.reference is None) else given


#: What a loop hands out is no rank's own.
_COUNTED = frozenset({ELEMENT, BATCH, INDEX})


@kept_by_node(8192)
def _called_in(node: ast.AST) -> frozenset[str]:
    """The last parts of the names that a function calls, or passes on to be called."""
    calls = [child for child in inside(node) if isinstance(child, ast.Call)]
    called = [*(call.func for call in calls), *(call.args[0] for call in calls if _takes_closure(call))]
    return frozenset(map(last_part, called))


def _takes_closure(call: ast.Call) -> bool:
    """``optimizer.step(closure)``, which calls it there and then."""
    return getattr(call.func, "attr", "") == "step" and len(call.args) == 1


def _is_handed_on(facts: ModuleFacts, name: str) -> bool:
    """Is a function of this name an argument somewhere, of a call that keeps it for later?"""
    return any(use.given is not None and not _takes_closure(use.given) for use in uses(facts, name))


def _place(mismatch: Mismatch) -> tuple[object, Span]:
    return mismatch.kind, mismatch.span


def _concerns(other: Mismatch, mismatch: Mismatch, body: Span) -> bool:
    """Does the mismatch of a caller come about at the same branch or the same call, or elsewhere in the function, so
    that the caller does not come as far?"""
    places = {other.span, other.branch, *(label.span for label in other.labels)}
    same = mismatch.span in places or (mismatch.branch is not None and mismatch.branch in places)
    return same or any(place is not None and place.starts_in(body) for place in places)

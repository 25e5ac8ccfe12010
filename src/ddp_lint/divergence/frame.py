"""The state of one function's evaluation, and what all evaluations share."""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

from ddp_lint.divergence import worlds
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.effects import Effect
from ddp_lint.divergence.evidence import Evidence
from ddp_lint.divergence.inheritance import Answers
from ddp_lint.divergence.references import HANDED, ClassRef, FunctionRef, Generator, Instance, Reference
from ddp_lint.divergence.resolve import Linker, known
from ddp_lint.divergence.values import Condition, Known, Test, Value, Variation, constant, divergent, per_rank, unknown
from ddp_lint.findings import Confidence, Label, Span
from ddp_lint.knowledge.communication import Rank
from ddp_lint.knowledge.project_names import rank_value
from ddp_lint.project import Answered
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.project_names import Own
from ddp_lint.source import syntax
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.names import Names
from ddp_lint.tensors.contexts import body_without_gradient

#: Expressions that have no dotted name.
_BARE = ("name", "environment")

#: The rank of a matrix, not of a process.
_OF_MATRIX: Final = re.compile(r"(lora|peft|adapter|svd|galore|low_?rank)\w*\.rank$")
#: The name of the number of processes that a job is started with: a variable of the environment that a program can set.
JOB_SIZE: Final = "os.environ['WORLD_SIZE']"
#: ... whether it has left the job.
LEFT_JOB: Final = "destroy_process_group()"
_ONE: Final = (Known(1), Known("1"))

#: Kinds of expressions to what evaluates them.
Handlers: TypeAlias = "Mapping[type[ast.expr], Callable[[Frame, Any], Value]]"


class Store(Protocol):
    """The variables of modules, classes and objects, as an evaluation reads and sets them (`variables.Variables`)."""

    def module_name(self, frame: Frame, node: ast.Name) -> Value: ...
    def variable_at(self, name: str) -> Value | None: ...
    def class_variable(self, of: ClassRef, name: str) -> Value | None: ...
    def attribute_of(self, of: ClassRef, name: str) -> Value | None: ...
    def attribute_before(self, of: ClassRef, name: str, method: ast.AST | None) -> Value | None: ...
    def is_size(self, of: ClassRef, name: str) -> bool: ...
    def set_global(self, frame: Frame, name: str, value: Value) -> None: ...
    def rebound(self) -> Hashable: ...
    def switched(self, variables: Mapping[tuple[str, str], Value]) -> AbstractContextManager[None]: ...
    def hand_over(self, frame: Frame) -> None: ...


class Evaluation(Protocol):
    """What all evaluations of a project share (`summaries.Summaries`), as the evaluation of one function uses it."""

    #: What evaluates each kind of expression.
    handlers: ClassVar[Handlers]
    linker: Linker
    #: The project's own names, None where the configuration lists none.
    own: Own | None
    whole: bool
    evidence: Evidence
    #: Parameters for functions of which no call is known (`parameters.general`).
    parameters: dict[Hashable, Answered[tuple[dict[str, Value], Answers]]]

    @property
    def variables(self) -> Store: ...
    def spend(self) -> None: ...
    def enter(self, frame: Frame, function: FunctionRef, arguments: Arguments, node: ast.Call) -> Value: ...
    def enter_unseen(self, frame: Frame, function: FunctionRef, at: ast.expr) -> Value: ...
    def property_value(self, frame: Frame, function: FunctionRef, base: Value, node: ast.AST) -> Value: ...
    def names_after(self, function: FunctionRef) -> dict[str, Value] | None: ...
    def attribute_after(self, method: FunctionRef, attribute: str) -> Value | None: ...
    def entries_after(self, method: FunctionRef, attribute: str) -> Value | None: ...


class Returned(NamedTuple):
    """A `return`: the tests that lead there, what it gives, and the attributes that were set by then."""

    test: Test | None
    value: Value
    attributes: Mapping[str, Value] = {}


@dataclasses.dataclass(eq=False, slots=True)
class Frame:
    """One activation: names, effects so far, returned values, and the tests that lead to the current statement."""

    summaries: Evaluation
    facts: ModuleFacts
    function: ast.AST | None
    owner: ClassRef | None = None
    receiver: Value | None = None
    env: Names[Value] = dataclasses.field(default_factory=Names)
    closure: dict[str, Value] | None = None
    effects: list[Effect] = dataclasses.field(default_factory=list)
    returned: list[Returned] = dataclasses.field(default_factory=list)
    path: list[Test] = dataclasses.field(default_factory=list)
    #: Tests after which this round of a loop goes on: the negations of those under which it has gone to the next one.
    staying: list[Test] = dataclasses.field(default_factory=list)
    global_names: frozenset[str] = frozenset()
    alive: bool = True
    loops: int = 0
    #: Set within a loop that has the order of a set.
    order: Variation | None = None
    #: Set within a loop that ranks run a different number of times.
    uneven: Variation | None = None
    depth: int = 0
    #: Through how many calls the constants among its arguments have come (`parameters.passed_on`).
    came: int = 0
    #: Variables of modules at the last `yield`.
    switched: dict[tuple[str, str], Value] = dataclasses.field(default_factory=dict)
    #: What each `yield` passes.
    yielded: list[Value] = dataclasses.field(default_factory=list)
    #: Names that a collective has made the same on all ranks.
    agreed: set[str] = dataclasses.field(default_factory=set)
    #: Names that a call has made an object of another class (``fully_shard(model)``).
    turned: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Attributes that are not the same on all ranks since some of them have set them to a constant.
    apart: set[str] = dataclasses.field(default_factory=set)
    #: Variables that some ranks alone have given a value, each with that value and the test that holds for these ranks:
    #: the others fail where they read one.
    unset: dict[str, tuple[Value, Test]] = dataclasses.field(default_factory=dict)
    #: Only the values of names are needed: constructors are not evaluated for their effects.
    values_alone: bool = False
    #: Within ``with torch.no_grad():``.
    quiet: bool = False

    @property
    def is_quiet(self) -> bool:
        """Are gradients off at the statement at hand, as far as the function itself says?"""
        return self.quiet or (
            isinstance(self.function, syntax.FunctionNode)
            and bool(self.function.decorator_list)
            and body_without_gradient(self.function, self.facts)
        )

    @property
    def linker(self) -> Linker:
        return self.summaries.linker

    @property
    def single(self) -> str:
        """By which name the function has set up a job of one process, or left the job, so that there is no other rank
        to communicate with; '' if it has not."""
        sizes = ((name, self.env.get(name)) for name in (JOB_SIZE, LEFT_JOB))
        return next((name for name, size in sizes if size is not None and size.constant in _ONE), "")

    def span(self, node: ast.AST) -> Span:
        return span_of(self.facts, node)

    def key(self, node: ast.AST, what: str = "") -> Hashable:
        """A name for what the expression at this place gives."""
        return (self.facts.name, getattr(node, "lineno", 0), getattr(node, "col_offset", 0), what)

    def text(self, node: ast.AST) -> str:
        return text_of(node)

    def rank_value(self, entry: Rank, node: ast.AST, group: str = "", text: str = "") -> Value:
        """The value of an expression that reads the rank."""
        scope = {"world": "world", "node": "node"}.get(entry.scope, entry.scope)
        if entry.value in ("local_rank", "is_local_first", "is_local_last"):
            scope = "node"
        if entry.value == "node_rank":
            scope = "nodes"
        if (entry.value in ("group_rank", "coordinate") and entry.scope == "world") or (
            group and entry.value == "rank"
        ):
            scope = f"group:{group}"
        description = "the rank"
        weak = (entry.what in ("name", "attribute") and not entry.on) or entry.name.startswith("*.")
        origin = Label(self.span(node), f"`{text or self.text(node)}` differs between ranks")
        varies = Variation("rank", description, scope, origin, Confidence.MEDIUM if weak else Confidence.HIGH)
        numbers = worlds.known(entry.value)
        if numbers is None:
            return divergent(("member", self.text(node)), dataclasses.replace(varies, cause="membership"))
        if entry.negated:
            numbers = tuple(not number for number in numbers)
        value = per_rank(numbers, varies)
        if entry.item >= 0:
            pair = [unknown(("item", self.text(node)))] * 2
            pair[entry.item] = value
            return dataclasses.replace(unknown(self.key(node)), items=tuple(pair))
        return value

    def named_rank(self, what: str, name: str, node: ast.AST, on: str = "") -> Value | None:
        configured = self.configured_rank(node, name) if self.summaries.own is not None and what in _BARE else None
        if configured is not None:
            return configured
        entry = known().named_rank(what, name, on)
        if entry is None or _OF_MATRIX.search(self.text(node).lower()):
            return None
        return self.rank_value(entry, node)

    def configured_rank(self, node: ast.AST, *spelled: str, group: str = "") -> Value | None:
        """The value of an expression that the configuration calls a rank expression, None for any other."""
        own = self.summaries.own
        name = own.ranks.find(*spelled) if own is not None else ""
        return self.rank_value(Rank(name=name, what="call", value=rank_value(name)), node, group) if name else None


def either_way(frame: Frame, node: ast.AST | None) -> Test:
    """A test of which nothing is known: all ranks come out alike."""
    return Test("atom", atom=Condition((("either", frame.facts.name, getattr(node, "lineno", 0)),) * worlds.COUNT, ""))


def span_of(facts: ModuleFacts, node: ast.AST) -> Span:
    """1-based, end exclusive, columns in characters; a module's is the whole file."""
    if isinstance(node, ast.Module):
        lines = facts.source.lines or [""]
        return Span(facts.source.path, 1, 1, len(lines), len(lines[-1].rstrip()) + 1)
    span: Span | None = node.__dict__.get("span")  # each evaluation asks for the place of the same nodes
    if span is None:
        span = node.__dict__["span"] = facts.source.span_of(node)
    return span


# An expression is worded each time that its function is evaluated.
@functools.lru_cache(maxsize=32_768)
def text_of(node: ast.AST, limit: int = 60) -> str:
    """The expression as source, on one line, shortened."""
    if isinstance(node, (ast.Name, ast.Attribute)) and (name := dotted_ast(node)) and len(name) <= limit:
        return name  # what `unparse` takes twenty times as long for
    try:
        start = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, _CHAINED) else None
        if isinstance(start, (ast.Call, *_CHAINED)) and (text := text_of(start, limit)).endswith("…"):
            return text  # a long chain of calls: the rest is cut off
        if (start_of := _start_of(node, limit)).endswith("…"):
            return start_of
        text = " ".join(syntax.text_of(node).split())
    except (RecursionError, ValueError):
        return type(node).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


_CHAINED = (ast.Attribute, ast.Subscript)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)


def _start_of(node: ast.AST, limit: int) -> str:
    """How a comprehension over another one begins, cut where `text_of` cuts it; '' of any other expression. Of those
    that lie in each other each is worded."""
    if not isinstance(node, _COMPREHENSIONS) or not isinstance(node.generators[0].iter, _COMPREHENSIONS):
        return ""
    text = text_of(node.elt, limit)
    if not text.endswith("…") and isinstance(node.generators[0].target, ast.Name):
        text += f" for {node.generators[0].target.id} in {text_of(node.generators[0].iter, limit)}"
    text = ("[" if isinstance(node, ast.ListComp) else "{" if isinstance(node, ast.SetComp) else "(") + text
    return text if len(text) <= limit else text[: limit - 1] + "…"


def entering(value: Value) -> Value:
    """An argument as the callee sees it: its variation comes from outside there."""
    return _across_call(value, 1)


def leaving(value: Value) -> Value:
    """A returned value as the caller sees it."""
    return _across_call(value, -1)


def _across_call(value: Value, by: int) -> Value:
    if isinstance(value.reference, (Generator, Instance)):
        value = _handed(value, value.reference, by)
    if value.items or value.entries:
        value = _held_across_call(value, by)
    if value.varies is None or value.varies.call_depth + by < 0:
        return value
    varies = dataclasses.replace(value.varies, call_depth=value.varies.call_depth + by)
    test, missing, loose = (_shifted(test, by) for test in (value.test, value.missing, value.loose))
    return value.varying(varies, test, missing, loose)


def _held_across_call(value: Value, by: int) -> Value:
    """What a tuple, a list or a dictionary holds varies by as many calls as what is given by itself."""
    items = tuple(_across_call(item, by) for item in value.items or ())
    entries = {name: _across_call(entry, by) for name, entry in (value.entries or {}).items()}
    if all(map(operator.is_, items, value.items or ())) and all(
        entries[n] is e for n, e in (value.entries or {}).items()
    ):
        return value
    return dataclasses.replace(value, items=value.items and items, entries=value.entries and entries)


def _handed(value: Value, reference: Generator | Instance, by: int) -> Value:
    """Sets and generators vary by the order of their elements, which is another one further up, too; loaders by how
    many batches they have."""
    if isinstance(reference, Generator):
        call = dataclasses.replace(reference.call, handed=max(0, reference.call.handed + by))
        return value.with_reference(dataclasses.replace(reference, call=call))
    if (reference.streams or reference.of in HANDED) and reference.handed + by >= 0:
        return value.with_reference(dataclasses.replace(reference, handed=reference.handed + by))
    return value


def _shifted(test: Test | None, by: int) -> Test | None:
    if test is None:
        return None
    atom = test.atom
    if atom is not None and atom.varies is not None:
        varies = dataclasses.replace(atom.varies, call_depth=max(0, atom.varies.call_depth + by))
        atom = dataclasses.replace(atom, varies=varies)
    parts = tuple(shifted for part in test.parts if (shifted := _shifted(part, by)) is not None)
    return Test(test.op, parts, atom)


def reference_of(value: Value | None) -> Reference | None:
    return value.reference if value is not None else None


def none() -> Value:
    return constant(None)


def bound(function: FunctionRef, receiver: Value, of: ClassRef | str | None) -> FunctionRef:
    return dataclasses.replace(function, receiver=receiver, of=of)

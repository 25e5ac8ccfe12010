"""What is known of a value on each rank: a constant, an unknown that all ranks share, or one that differs.

A value has one component for each world of `worlds.WORLDS`: `Known` or `Symbol` (unknown). Equal symbols are equal on
all ranks. A `Variation` says that ranks may differ although no world shows how: their clocks, files, batches.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from ddp_lint.divergence import worlds
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge.communication import ASPECTS, Aspect, Source

# What follows is made by the hundred thousand, and never changed: a frozen dataclass would take three times as long to
# make.


@dataclasses.dataclass(eq=False, slots=True)
class Known:
    """A Python constant: bool, int, str, float or None."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and type(self.value) is type(other.value) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)  # of 1 and True, too: they are told apart where they meet


class Symbol:
    """An unknown; the key says which.

    There is one object for each key, so that comparing and hashing symbols costs nothing: keys are made of the
    symbols that they were computed from, and would be walked to the bottom each time.
    """

    __slots__ = ("key",)
    key: Hashable
    _of: ClassVar[dict[Hashable, Symbol]] = {}
    #: Number of symbols from which on it pays to look for unused ones.
    _many: ClassVar[int] = 50_000

    def __new__(cls, key: Hashable) -> Symbol:
        found = cls._of.get(key)
        if found is None:
            if len(cls._of) >= cls._many:
                cls.let_go_of_unused()
            found = super().__new__(cls)
            found.key = key
            cls._of[key] = found
        return found

    @classmethod
    def let_go_of_unused(cls) -> None:
        """Let go of what is held here alone, the latest first, until nothing is: symbols hold those that they were
        computed from, and functions with the trees of their files. Cheaper than weak references, which make each symbol
        dearer for the sake of its end."""
        before = -1
        while before != len(cls._of):
            before = len(cls._of)
            for key in reversed(list(cls._of)):
                if sys.getrefcount(cls._of[key]) <= _HELD_HERE:
                    del cls._of[key]
        cls._many = max(50_000, 2 * len(cls._of))

    def __repr__(self) -> str:
        return f"symbol({self.key!r})"


#: References to a symbol that only `Symbol` itself holds, while they are counted.
_HELD_HERE: Final = 2

Component = Known | Symbol

#: Causes of what the rank's own number decides: itself, or by the rank's place in a group ("membership").
BY_RANK_OR_PLACE: Final = frozenset({"rank", "membership"})


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Variation:
    """Why and over which ranks a value varies.

    `cause` is 'rank', 'membership' or a cause of the knowledge; `description` completes "depends on"; `scope` is the
    axis that the value varies over: 'world', 'node', a parallel axis, or ``group:<key>``; `origin` where the value came
    from; `call_depth` through how many calls it came in as an argument (0: it arose in the function at hand). What a
    test sets that is `local_only` is not taken to vary. `aspect` is what of the rank's data it follows from.
    """

    cause: str
    description: str
    scope: str = "world"
    origin: Label | None = None
    confidence: Confidence = Confidence.HIGH
    call_depth: int = 0
    local_only: bool = False
    aspect: Aspect = ""

    @classmethod
    def of_data(cls, aspect: Aspect, origin: Label, confidence: Confidence, *, local_only: bool = False) -> Variation:
        return cls("data", ASPECTS[aspect], "world", origin, confidence, local_only=local_only, aspect=aspect)

    @classmethod
    def of_source(cls, source: Source, origin: Label) -> Variation:
        """Of a value that the knowledge names."""
        return cls(source.cause, source.description, "world", origin, Confidence.MEDIUM, aspect=source.aspect)

    @property
    def by_rank_or_place(self) -> bool:
        return self.cause in BY_RANK_OR_PLACE


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Condition:
    """The truth of an expression in each world: True, False, or a key for "the same unknown choice".

    `varies` is set when ranks may choose differently; `open` when they may do so within one world (no world decides).
    """

    truths: tuple[bool | Hashable, ...]
    text: str
    varies: Variation | None = None
    open: bool = False

    def outcome(self, world: int) -> bool | Hashable | None:
        """What it comes to in a world; None where each of its ranks decides for itself."""
        return None if self.open else self.truths[world]

    @property
    def caught(self) -> bool:
        """Whether it is that a handler has caught an exception."""
        first = self.truths[0]
        return isinstance(first, tuple) and first[:1] in (("raised",), ("refused",))

    @property
    def by_rank(self) -> bool:
        """Whether the rank's own number decides it."""
        return self.varies is not None and self.varies.cause == "rank"

    @property
    def by_node(self) -> bool:
        """Whether it differs between the ranks of one node, and is the same on the first ranks of two nodes."""
        first, second, other_node = self.truths[:3]
        of_node = self.varies is not None and self.varies.scope == "node"
        separates = isinstance(first, bool) and not self.open and of_node
        return separates and first == other_node and first != second

    @property
    def may_diverge(self) -> bool:
        """Whether two ranks may choose differently at all."""
        return self.varies is not None or self.truths.count(self.truths[0]) < len(self.truths)


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Test:
    """A Boolean formula over conditions: an atom, or `not`, `and`, `or` of parts."""

    op: str
    parts: tuple[Test, ...] = ()
    atom: Condition | None = None
    #: The number of its parts, of theirs, and so on: one that occurs twice counts twice.
    size: int = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.size = 1 + sum([part.size for part in self.parts]) if self.parts else 1

    def atoms(self) -> list[Condition]:
        if self.atom is not None:
            return [self.atom]
        return [atom for part in self.parts for atom in part.atoms()]

    def truth(self, world: int) -> bool | None:
        """True or False where all ranks of the world must choose so, None where it is open."""
        if self.atom is not None:
            truth = self.atom.outcome(world)
            return truth if isinstance(truth, bool) else None
        if self.op == "not":
            inner = self.parts[0].truth(world)
            return None if inner is None else not inner
        decisive, known = self.op == "or", True
        for part in self.parts:
            truth = part.truth(world)
            if truth is decisive:
                return decisive
            known = known and truth is not None
        return not decisive if known else None

    @property
    def settled(self) -> bool | None:
        """The outcome where all worlds have the same one."""
        if self.atom is not None and (self.atom.open or not isinstance(self.atom.truths[0], bool)):
            return None  # as nearly always
        first = self.truth(0)
        alike = first is not None and all(self.truth(world) is first for world in range(1, worlds.COUNT))
        return first if alike else None

    def varying(self) -> Variation | None:
        if self.atom is not None:
            return self.atom.varies
        for part in self.parts:
            varies = part.varying()
            if varies is not None:
                return varies
        return None


def _of_truth(choice: Hashable) -> Hashable:
    """The key of the value whose truth a choice is; None for another choice."""
    symbol = choice[1] if isinstance(choice, tuple) and len(choice) == 2 and choice[0] == "truth" else None
    return getattr(symbol, "key", None)


def equality(choice: Hashable) -> tuple[Hashable, Hashable] | None:
    """What is compared and with which text, number or member of an enumeration, for the choice of an ``x == "a"``."""
    key = _of_truth(choice)
    compared = key[0] if isinstance(key, tuple) and key else None
    if not isinstance(compared, tuple) or compared[:2] != ("compare", "Eq"):
        return None
    left, right = compared[2]
    other = right[0] if isinstance(right, tuple) and right else None
    if isinstance(other, Known):
        return (left, other) if isinstance(other.value, (str, int)) and not isinstance(other.value, bool) else None
    name = other.key if isinstance(other, Symbol) and isinstance(other.key, tuple) else ()
    return (left, other) if name[:1] == ("class",) and str(name[-1]).isupper() else None


class Bound(NamedTuple):
    """A comparison of something that all ranks share with a number: ``count > 1``."""

    of: Hashable
    operation: str
    number: float


_BOUNDS: dict[str, Callable[[float, float], bool]] = {"Eq": operator.eq, "Gt": operator.gt, "Lt": operator.lt}


def comparison(choice: Hashable) -> Bound | None:
    """The comparison with a number that the choice is, if it is one."""
    key = _of_truth(choice)
    compared = key[0] if isinstance(key, tuple) and key else None
    if not isinstance(compared, tuple) or compared[:1] != ("compare",) or compared[1] not in _BOUNDS:
        return None
    left, right = compared[2]
    number = right[0].value if isinstance(right, tuple) and right and isinstance(right[0], Known) else None
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        return None
    return Bound(left, compared[1], number)


def implied(bound: Bound, known: Sequence[tuple[Bound, bool]]) -> bool | None:
    """How the comparison comes out where others of the same number have come out like this; None for either way."""
    numbers = [bound.number, *(other.number for other, _ in known)]
    tried = (number + by for number in numbers for by in (-0.5, 0, 0.5))
    left = [n for n in tried if all(_BOUNDS[o.operation](n, o.number) is chosen for o, chosen in known)]
    outcomes = {_BOUNDS[bound.operation](n, bound.number) for n in left} if known else set()
    return outcomes.pop() if len(outcomes) == 1 else None


#: A variable of the environment holds text, and "0" is as true as "1"; only as a number do ranks differ in it.
SET: Final = Test("atom", atom=Condition((True,) * worlds.COUNT, "is set"))


#: How the key of a part of something begins, which may be a collection but hardly a number.
_PARTS = frozenset({"item", "element", "batch", "attribute", "part"})
#: How the key of an object begins that a constructor has just made.
MADE: Final = "object"


#: How the key begins of what a loop hands out.
ELEMENT: Final = "element"
#: ... of the batch that it hands out of a loader.
BATCH: Final = "batch"
#: ... of what it hands out of a field of a rank's own batch: ``for name in batch["dataset"]``.
FIELD: Final = "field"
#: How the key of a number begins to which each batch of a loader has added how much it holds: 0 on no rank.
TOTAL: Final = "total"
#: How the key of a list or a dictionary begins that has become longer on some ranks.
GROWN: Final = "grown"
#: ... of a list that some ranks have made and filled for themselves, which may well be as long as that of the others.
OF_ARM: Final = "list of an arm"
#: ... of a dictionary that has a key once it was asked for one.
KEYED: Final = "keyed"
#: How the key of the number of a round begins, which an ``enumerate()`` hands out.
INDEX: Final = "index"
#: How the key of a number of ranks begins, followed by the group that it counts ("" is the world).
WORLD_SIZE: Final = "world size"
#: How the key of the question begins whether that is one.
ALONE: Final = "alone"


def world_size(group: str) -> Value:
    """The number of ranks of a group: 1 where nothing is distributed, which needs no name of its own."""
    return unknown((WORLD_SIZE, group))


def counted_ranks(value: Value) -> str | None:
    """The group whose ranks the number counts; None if it counts no ranks."""
    key = getattr(value.components[0], "key", None)
    return key[1] if isinstance(key, tuple) and key[:1] == (WORLD_SIZE,) else None


def is_last_number(component: object) -> bool:
    """Is it the number of all ranks less one, which is the last of them?"""
    key = getattr(component, "key", None)
    parts = key[0] if isinstance(key, tuple) and key and isinstance(key[0], tuple) else ()
    if len(parts) != 3 or parts[0] != "Sub":
        return False
    return bool(parts[1] == world_size("").key and parts[2] == constant(1).key)


def alone_in(choice: Hashable) -> str | None:
    """The group that has a single rank where this choice is True ("" is the world); None for another choice."""
    key = _of_truth(choice)
    return key[1] if isinstance(key, tuple) and key[:1] == (ALONE,) else None


def made_of_range(value: Value) -> tuple[Hashable, ...]:
    """The keys of the arguments of the `range` that it is; () for anything else."""
    key = getattr(value.components[0], "key", None)
    made = key[0] if isinstance(key, tuple) and key and isinstance(key[0], tuple) else ()
    return made[1] if made[:1] == ("range",) else ()


def is_every_rank(value: Value) -> bool:
    """Are these the numbers of all ranks, ``range(dist.get_world_size())``, or None, by which a group has all?"""
    counted = made_of_range(value) == (world_size("").key,)
    return value.varies is None and (counted or value.constant == Known(None))


#: How the key of what a framework has prepared begins: models, optimizers and loaders, of which a model is called.
PREPARED: Final = "prepared"
#: How the key of the question begins whether a model or a tensor is sharded.
SHARDED: Final = "sharded"


def whether_sharded(key: Hashable, text: str) -> Value:
    """``isinstance(model, FSDP)``: the same for all ranks, and False in a job that only replicates its models."""
    value = unknown((SHARDED, key))
    return dataclasses.replace(
        value, test=Test("atom", atom=Condition((("truth", value.components[0]),) * worlds.COUNT, text))
    )


def asks_for_shards(condition: Condition) -> bool:
    """Is it true only where something is sharded?"""
    first = condition.truths[0]
    key = getattr(first[1], "key", None) if isinstance(first, tuple) and len(first) == 2 else None
    return isinstance(key, tuple) and key[:1] == (SHARDED,)


def needs_shards(test: Test) -> bool:
    """Does the test hold only where something is sharded?"""
    if test.atom is not None:
        return asks_for_shards(test.atom)
    if test.op == "not" or not test.parts:
        return False
    return (any if test.op == "and" else all)(map(needs_shards, test.parts))


def is_whether_sharded(value: Value) -> bool:
    """Is it true only where something is sharded?"""
    return needs_shards(value.test) if value.test is not None else value.kind == SHARDED


def negated(test: Test) -> Test:
    return test.parts[0] if test.op == "not" else Test("not", (test,))


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """`reference` says what kind of object it is (see `references`), `items` the elements of a tuple or list, `entries`
    the values of a dictionary whose keys are all known."""

    components: tuple[Component, ...]
    varies: Variation | None = None
    open: bool = False
    reference: Any = None
    items: tuple[Value, ...] | None = None
    entries: Mapping[Hashable, Value] | None = None
    test: Test | None = None
    #: A collective has made it the same on all ranks.
    agreed: bool = False
    #: Same length on all ranks, regardless of its values; of a number: the size of a batch, or what follows from it.
    even: bool = False
    #: When it is None, where assignments of None and of something else show it.
    missing: Test | None = None
    #: When it is a tensor that was made on the spot, from which backward reaches no parameter, where arms show it.
    loose: Test | None = None
    #: How many containers with known elements lie within each other.
    depth: int = 0

    @property
    def constant(self) -> Known | None:
        """The one constant that it is on all ranks, if it is one."""
        first = self.components[0]
        if self.open or not isinstance(first, Known):
            return None
        for component in self.components:
            if component is not first and component != first:
                return None
        return first

    @property
    def same(self) -> bool:
        """True when it is the same on all ranks, known or not."""
        return self.varies is None

    @property
    def by_rank(self) -> bool:
        """Does the rank's own number decide it?"""
        return self.varies is not None and self.varies.cause == "rank"

    @property
    def made(self) -> bool:
        """Is it an object that a constructor has made, and not one that may be missing?"""
        return self.varies is None and self.kind == MADE

    @property
    def kind(self) -> str:
        """How the key of an unknown begins, which says what it is ("size", "filled", ...); '' where nothing does."""
        key = getattr(self.components[0], "key", None)
        return key[0] if isinstance(key, tuple) and key and isinstance(key[0], str) else ""

    @property
    def key(self) -> Hashable:
        return self.components if self.reference is None else (self.components, self.reference)

    @property
    def _is_field(self) -> bool:
        """Is it a field of a batch, or of what a model made of it? Asked for alone, whether it is there: a tensor of
        several numbers has no truth, and the configuration decides which fields there are."""
        return self.varies is not None and self.varies.aspect == "batches" and self.kind in ("item", "attribute")

    def truth(self, text: str) -> Test:
        if self.test is not None:
            return self.test
        if self.missing is not None and self.missing.parts and self.kind in _PARTS:
            return negated(self.missing)  # there, or not: what it holds is no number
        plain = self.reference is not None and self.varies is None and not isinstance(self.components[0], Known)
        if plain or is_filled(self) or self._is_field or self.kind == TOTAL:  # a list is true for its length
            return Test("atom", atom=Condition((("truth", self.components[0]),) * worlds.COUNT, text))
        truths: tuple[bool | Hashable, ...] = tuple(_truth(component) for component in self.components)
        if self.varies is not None and not self.open:
            symbols = [t for t in truths if not isinstance(t, bool)]
            if len(symbols) == len(truths):  # unknown in every world: no world shows that they differ
                return Test("atom", atom=Condition((("truth", symbols[0]),) * worlds.COUNT, text))
        varies = self.varies if self.open or len(set(truths)) > 1 else None
        return Test("atom", atom=Condition(truths, text, varies, self.open))

    def with_reference(self, reference: Any) -> Value:
        made = Value(*_ALL_OF(self))
        made.reference = reference
        return made

    def varying(self, varies: Variation, test: Test | None, missing: Test | None, loose: Test | None) -> Value:
        made = Value(*_ALL_OF(self))
        made.varies, made.test, made.missing, made.loose = varies, test, missing, loose
        return made


#: All fields of a value: `dataclasses.replace` takes them one by one.
_ALL_OF: Final = operator.attrgetter(*(field.name for field in dataclasses.fields(Value)))


class ArgumentKey(NamedTuple):
    """What of an argument matters to the callee: constants, variation, kind of object."""

    components: Hashable
    varies: Hashable
    open: bool
    reference: Any
    items: Hashable
    entries: Hashable
    agreed: bool
    even: bool
    made: bool
    missing: Hashable
    loose: Hashable


def argument_key(value: Value) -> ArgumentKey:
    plain = value.varies is None and all(isinstance(component, Symbol) for component in value.components)
    varies = value.varies and (value.varies.cause, value.varies.scope, value.varies.call_depth)
    items = tuple(argument_key(item) for item in value.items) if value.items is not None else None
    entries = tuple((k, argument_key(v)) for k, v in value.entries.items()) if value.entries is not None else None
    components = None if plain else value.components
    return ArgumentKey(
        components, varies, value.open, value.reference, items, entries, value.agreed, value.even, value.made,
        value.missing, value.loose,
    )  # fmt: skip


def filled(of: Hashable, varies: Variation) -> Value:
    """A list of values that are each rank's own, as many on all ranks."""
    return divergent(("filled", of), varies)


def is_filled(value: Value) -> bool:
    return value.kind == "filled"


def _truth(component: Component) -> bool | Hashable:
    return bool(component.value) if isinstance(component, Known) else ("truth", component)


def unknown(key: Hashable, reference: Any = None, *, agreed: bool = False) -> Value:
    """The same unknown on all ranks."""
    return Value((Symbol(key),) * worlds.COUNT, reference=reference, agreed=agreed)


def constant(value: Any) -> Value:
    return _literal(value, type(value).__name__) if type(value) in _LITERALS else _every(value)


_LITERALS = {str, int, bool, type(None)}


@functools.lru_cache(maxsize=4096)
def _literal(value: Any, kind: str) -> Value:
    """One object for each literal; by their `kind`, since 1 equals True."""
    return _every(value)


def _every(value: Any) -> Value:
    return Value((Known(value),) * worlds.COUNT)


def divergent(key: Hashable, varies: Variation, *, even: bool = False) -> Value:
    """An unknown that each rank has a value of its own for."""
    return Value((Symbol(key),) * worlds.COUNT, varies, open=True, even=even)


def per_rank(values: tuple[Any, ...], varies: Variation) -> Value:
    """What the worlds know; the same on all ranks if it happens to be."""
    components = tuple(Known(value) for value in values)
    return Value(components, varies if len(set(components)) > 1 else None)


def weaker(*values: Value) -> Variation | None:
    """The variation that a result of these values has: data and clocks before ranks, which worlds can decide."""
    found: Variation | None = None
    for value in values:
        if value.varies is not None:
            if value.open:
                return value.varies
            found = found or value.varies
    return found


COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
#: Bytes or elements of a constant that is worked out: no memory holds ``"a" * 10_000_000_000``.
_LARGEST = 100_000


def _size(value: object) -> int:
    if isinstance(value, int):
        return value.bit_length() // 8 + 1
    return len(value) if isinstance(value, (str, bytes, tuple)) else 1


def _added(left: Any, right: Any) -> Any:
    if _size(left) + _size(right) > _LARGEST:
        raise OverflowError
    return left + right


def _multiplied(left: Any, right: Any) -> Any:
    size = _size(left) + _size(right)
    for one, other in ((left, right), (right, left)):
        if isinstance(one, (str, bytes, tuple)) and isinstance(other, int):
            size = len(one) * other
    if size > _LARGEST:
        raise OverflowError
    return left * right


def _remainder(left: Any, right: Any) -> Any:
    if isinstance(left, (str, bytes)):  # a format, which may have any width
        raise TypeError
    return left % right


ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: _added, ast.Sub: operator.sub, ast.Mult: _multiplied, ast.FloorDiv: operator.floordiv,
    ast.Mod: _remainder, ast.Div: operator.truediv, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}  # fmt: skip


def combine(function: Callable[..., Any], arguments: tuple[Value, ...], key: Hashable) -> Value:
    """`function` of the arguments in each world where all are known; otherwise unknown, and divergent where they are.

    A rank that compares with an unknown (``rank == src``) gives a choice that each rank makes for itself: open.
    """
    by_world = list(zip(*(argument.components for argument in arguments), strict=True)) or [()] * worlds.COUNT
    of_first, *of_others = by_world
    first = _combined(function, of_first, key)
    components = [first, *(first if parts == of_first else _combined(function, parts, key) for parts in of_others)]
    varies = weaker(*arguments)
    if varies is None or (len(set(components)) == 1 and isinstance(components[0], Known)):
        return Value(tuple(components)) if varies is None else constant(components[0].value)  # type: ignore[union-attr]
    if any(argument.open for argument in arguments):
        return divergent(key, varies, even=follow_from_sizes(arguments))
    if all(isinstance(component, Symbol) for component in components):
        return divergent(key, varies)
    return Value(tuple(components), varies)


#: How the key of a list begins that is as long on all ranks, whose elements differ by more than sizes do.
LISTED: Final = "listed"


def follow_from_sizes(values: Sequence[Value]) -> bool:
    """Is all that differs between these how much each rank's batch holds, in which a loader makes ranks alike?"""
    return all(value.even and value.kind != LISTED for value in values if value.varies is not None)


def _combined(function: Callable[..., Any], parts: tuple[Component, ...], key: Hashable) -> Component:
    """The result in one world, a symbol where an operand is one that only the run knows, or a wrong one."""
    unknowns = tuple(part for part in parts if isinstance(part, Symbol))
    if not unknowns:
        try:
            result = Known(function(*(part.value for part in parts if isinstance(part, Known))))
            hash(result)
            return result
        except Exception:  # anything that the operands raise
            pass
    return Symbol((key, unknowns))


_CEILING = 24
#: The largest formula that a value is known by: flags of flags of flags double it with each assignment.
LARGEST_FORMULA: Final = 400
#: The number of ranks where nothing is distributed.
_UNCOUNTED = (Known(1), Known(0), Known(-1))


def merge(test: Test, yes: Value, no: Value, key: Hashable) -> Value:
    """The value after ``if test: x = yes`` / ``else: x = no``."""
    varies = test.varying()
    if varies is not None and varies.local_only and _formula(test, yes, no) is None:
        test, varies = Test("atom", atom=Condition((("local_only", key),) * worlds.COUNT, "")), None
    merged = _merged(test, yes, no, key)
    if varies is None:
        even = (yes.even or no.even) and all(value.even or value.varies is None for value in (yes, no))
    else:  # another object on some ranks, which may well be as long
        alike = all((value.varies is None or value.even) and value.constant is None for value in (yes, no))
        even = alike and merged.kind != GROWN
    missing = _missing(test, yes, no) if merged.constant is None else None
    first, second = loose_of(yes), loose_of(no)
    loose = None if first is None and second is None else _either(test, first or NEVER, second or NEVER)
    if merged.even == even and merged.missing == missing and merged.loose == loose:
        return merged
    return dataclasses.replace(merged, even=even, missing=missing, loose=loose)


#: What is never true.
NEVER: Final = Test("or")
#: What always is.
ALWAYS: Final = Test("and")


def missing_of(value: Value) -> Test | None:
    """When the value is None, `NEVER` and `ALWAYS` included; None where that is not known."""
    if value.missing is not None:
        return value.missing
    if value.constant is not None:
        return ALWAYS if value.constant.value is None else NEVER
    made = value.made or value.items is not None or value.entries is not None
    return NEVER if made or (value.varies is not None and value.open and value.varies.cause == "data") else None


def loose_of(value: Value) -> Test | None:
    """When the value, or the loss that it begins with, is a tensor that was made on the spot: ``return loss, outputs``,
    ``return {"loss": loss}``."""
    if value.loose is not None or (value.items is None and value.entries is None):
        return value.loose
    held = value.items[0] if value.items else (value.entries or {}).get("loss")
    return held.loose if held is not None else None


def _is_none(value: Value) -> bool:
    constant = value.constant
    return constant is not None and constant.value is None


def _missing(test: Test, yes: Value, no: Value) -> Test | None:
    """When the value of an ``if`` is None; only where one arm or both set None."""
    if yes.missing is None and no.missing is None and not (_is_none(yes) or _is_none(no)):
        return None
    first, second = missing_of(yes), missing_of(no)
    if test.varying() is not None:  # ``if rank == 0: out = make()``: None is for the other ranks
        first, second = first or NEVER, second or NEVER
    return None if first is None or second is None else _either(test, first, second)


def _either(test: Test, first: Test, second: Test) -> Test | None:
    """The first where the test holds, else the second; None for a formula that is too large."""
    if first is second or first == second:
        return first
    if (first, second) == (ALWAYS, NEVER):
        return test
    if (first, second) == (NEVER, ALWAYS):
        return negated(test)
    if first.size + second.size + test.size > _CEILING:
        return None
    return Test("or", (Test("and", (test, first)), Test("and", (negated(test), second))))


def _merged(test: Test, yes: Value, no: Value, key: Hashable) -> Value:
    if yes is no or (yes.key == no.key and yes.varies == no.varies and yes.test is no.test and yes.items == no.items):
        return yes
    reference = yes.reference if _is_empty(no) else no.reference if _is_empty(yes) else None
    if reference is None and yes.reference == no.reference:
        reference = yes.reference
    if (common := _of_common_arm(test, yes, no)) is not None:
        return common
    varies = test.varying()
    special = (
        _of_several(yes, no) or _filled_in_loop(yes, no) if varies is None else _longer_in_one_arm(test, yes, no, key)
    )
    if special is not None:
        return special
    if (entries := _merged_entries(test, yes, no, key)) is not None:
        own = next((entry.varies for entry in entries.values() if entry.varies is not None), None)
        return dictionary(key, entries, own, reference)
    outcomes = [test.truth(world) for world in range(worlds.COUNT)]
    by_rank = test.varying() is not None
    if by_rank and all(outcome is not None for outcome in outcomes):
        return _by_worlds(test, outcomes, yes, no, reference)
    formula = _formula(test, yes, no)
    if formula is not None:
        varies = formula.varying()
        return Value((Symbol(key),) * worlds.COUNT, varies, varies is not None, reference, test=formula)
    for candidate, other in ((yes, no), (no, yes)):
        if candidate.varies is not None and (other.constant is not None or other.varies is not None or not by_rank):
            return dataclasses.replace(candidate, reference=reference)
    if by_rank and test.varying() is not None:
        if any(outcome is not None for outcome in outcomes) and yes.same and no.same:
            return _partly(test, outcomes, yes, no, key, reference)
        varies = test.varying()
        assert varies is not None
        return dataclasses.replace(divergent(key, varies), reference=reference)
    varies = weaker(yes, no)
    if varies is not None:
        return dataclasses.replace(divergent(key, varies), reference=reference)
    return holding(unknown(key, reference), _merged_items(test, yes, no, key))


def _of_common_arm(test: Test, yes: Value, no: Value) -> Value | None:
    """What all ranks have where there are several, as a single process differs from none; the same of two values on
    each of which they have agreed. None for anything else."""
    several = _asks_for_several(test)
    if several is not None:
        return yes if several else no
    return yes if yes.agreed and no.agreed else None


def _asks_for_several(test: Test) -> bool | None:
    """Whether a test that asks for the number of ranks holds where there are several; None for any other test."""
    if test.op == "not":
        inner = _asks_for_several(test.parts[0])
        return None if inner is None else not inner
    is_alone = test.atom is not None and alone_in(test.atom.truths[0]) == ""
    return False if is_alone else None


def _by_worlds(test: Test, outcomes: list[bool | None], yes: Value, no: Value, reference: Any) -> Value:
    """The value where each world is in one arm."""
    picked = tuple((yes if outcome else no).components[world] for world, outcome in enumerate(outcomes))
    formula = _formula(test, yes, no)
    open_ = next((v for v in (yes, no) if v.open), None)
    received = yes if open_ is None or open_ is no else no
    if received.agreed and outcomes[1:] == [received is yes] * (worlds.COUNT - 1):
        return received  # ``if rank != 0: stop = received[0]``: what rank 0 has sent
    if open_ is not None and _is_looked_up(open_, no if open_ is yes else yes):
        # The ranks of one arm alone look: that all see the same files does not make the arms alike.
        return dataclasses.replace(open_, varies=test.varying(), reference=reference, test=formula)
    if open_ is not None:
        return dataclasses.replace(open_, reference=reference, test=formula or open_.test)
    varies = test.varying() if len(set(picked)) > 1 else None
    return Value(picked, varies, reference=reference, test=formula)


def _is_looked_up(one: Value, other: Value) -> bool:
    """Does the one follow from files, and the other at most from the rank, as what a round before has left does?"""
    return one.varies is not None and one.varies.cause == "file" and (other.varies is None or other.by_rank)


#: Containers within each other whose elements are distinguished: ``a, b = (a, b), (b, a)`` doubles what they hold.
_DEEPEST: Final = 6


def is_too_deep(held: Iterable[Value]) -> bool:
    """Would a container of these be one too many within each other?"""
    return any(value.depth >= _DEEPEST for value in held)


def holding(
    value: Value, items: tuple[Value, ...] | None = None, entries: Mapping[Hashable, Value] | None = None
) -> Value:
    """The value as a container of these elements, unless too many containers lie within each other."""
    held = items if entries is None else entries.values()
    if held is None or is_too_deep(held):
        plain = value.items is None and value.entries is None
        return value if plain else dataclasses.replace(value, items=None, entries=None)
    made = Value(*_ALL_OF(value))
    made.items, made.entries = items, entries
    made.depth = 1 + max([each.depth for each in held], default=0)
    return made


def dictionary(
    of: Hashable, entries: Mapping[Hashable, Value], varies: Variation | None, reference: Any = None
) -> Value:
    """A dictionary with these entries; `varies` where some of them are each rank's own."""
    return holding(unknown(of, reference) if varies is None else filled(of, varies), entries=entries)


def _merged_items(test: Test, yes: Value, no: Value, key: Hashable) -> tuple[Value, ...] | None:
    """The elements of what is one of two tuples, or of a tuple where the other is None."""
    if _is_none(yes) or _is_none(no):
        return no.items if _is_none(yes) else yes.items
    if yes.items is None or no.items is None or len(yes.items) != len(no.items):
        return None
    return tuple(merge(test, *pair, (key, index)) for index, pair in enumerate(zip(yes.items, no.items, strict=True)))


def _merged_entries(test: Test, yes: Value, no: Value, key: Hashable) -> dict[Hashable, Value] | None:
    """The entries of what is one of two dictionaries with the same keys, of which an arm may have set some."""
    if yes.entries is None or no.entries is None or yes.entries.keys() != no.entries.keys():
        return None
    if GROWN in (yes.kind, no.kind):
        return None
    pairs = ((name, entry, no.entries[name]) for name, entry in yes.entries.items())
    return {name: entry if entry is other else merge(test, entry, other, (key, name)) for name, entry, other in pairs}


def _of_several(yes: Value, no: Value) -> Value | None:
    """What the arm for several processes sets, where one is that: it counts them, or they have agreed on it."""
    for one, other in ((yes, no), (no, yes)):
        if (one.agreed and not other.agreed) or (one.kind == WORLD_SIZE and other.constant in _UNCOUNTED):
            return one
    return None


def _filled_in_loop(yes: Value, no: Value) -> Value | None:
    """A list that an arm has made, after a loop that fills it."""
    for one, other in ((yes, no), (no, yes)):
        if one.kind == OF_ARM and is_new_container(other):
            return one
    return None


def _longer_in_one_arm(test: Test, yes: Value, no: Value, key: Hashable) -> Value | None:
    """A dictionary to which one arm has added an entry, or a list to which it has added an element; None for anything
    else. The entries that both have are known."""
    varies = test.varying()
    assert varies is not None
    if yes.entries is not None and no.entries is not None and MADE not in (yes.kind, no.kind):
        if yes.entries.keys() == no.entries.keys() and GROWN not in (yes.kind, no.kind):
            return None
        both = [name for name in yes.entries if name in no.entries]
        held = {name: merge(test, yes.entries[name], no.entries[name], (key, name)) for name in both}
        return holding(divergent((GROWN, key), varies), entries=held)
    if is_new_container(yes) is not is_new_container(no):
        other = no if is_new_container(yes) else yes
        longer = other.constant is None and not other.agreed
    elif yes.kind in _GROWN and no.kind in _GROWN:  # both arms add to it
        return filled(key, varies)
    else:
        longer = any(v.kind in _GROWN for v in (yes, no)) and all(
            v.kind in _GROWN or v.items is not None for v in (yes, no)
        )
    return divergent((GROWN, key), varies) if longer else None


_GROWN: Final = frozenset({GROWN, OF_ARM})


def _is_empty(value: Value) -> bool:
    """Is it what a name holds before it holds an object: None, or an empty list?"""
    return _is_none(value) or is_new_container(value)


def is_numbered(value: Value) -> bool:
    """Is it a number of a round, or what an ``enumerate()`` hands out?"""
    return value.kind == INDEX or any(item.kind == INDEX for item in value.items or ())


def is_new_container(value: Value) -> bool:
    """Is it a list, a tuple or a dictionary that nothing was put into yet?"""
    return value.items == () or value.entries == {}


def _partly(test: Test, outcomes: list[bool | None], yes: Value, no: Value, key: Hashable, reference: Any) -> Value:
    """Some worlds know the outcome (``rank == 0 and flag``): those take their value, the others an unknown."""
    picked = tuple(
        Symbol(key) if outcome is None else (yes if outcome else no).components[world]
        for world, outcome in enumerate(outcomes)
    )
    return Value(picked, test.varying(), reference=reference)


def _formula(test: Test, yes: Value, no: Value) -> Test | None:
    """A Boolean assigned in the arms of a test, as a formula: ``flag = False; if test: flag = True`` is the test."""
    first, second = yes.constant, no.constant
    if test.size > _CEILING or (yes.test is None and no.test is None and (first is None or second is None)):
        return None
    if (first, second) in ((Known(True), Known(False)), (Known(False), Known(True))):
        return test if first == Known(True) else negated(test)
    if second == Known(False) and yes.test is not None and yes.test.size < _CEILING:
        return Test("and", (test, yes.test))
    if first == Known(False) and no.test is not None and no.test.size < _CEILING:
        return Test("and", (negated(test), no.test))
    if second == Known(True) and yes.test is not None and yes.test.size < _CEILING:
        return Test("or", (negated(test), yes.test))
    if first == Known(True) and no.test is not None and no.test.size < _CEILING:
        return Test("or", (test, no.test))
    if yes.test is not None and no.test is not None and yes.test.size + no.test.size < _CEILING:
        return Test("or", (Test("and", (test, yes.test)), Test("and", (negated(test), no.test))))
    return None


#: Parts of a key that are looked at in search of a symbol.
_LOOKED_AT = 400


def symbols_in(keys: Iterable[Hashable]) -> frozenset[Symbol]:
    """The symbols that these keys were made of, near their tops."""
    found: set[Symbol] = set()
    stack: list[Hashable] = list(keys)
    for _ in range(_LOOKED_AT):
        if not stack:
            break
        part = stack.pop()
        if isinstance(part, Symbol):
            if part not in found:
                found.add(part)
                stack.append(part.key)
        elif isinstance(part, tuple):
            stack += part
    return frozenset(found)


def leaves(value: Value) -> tuple[Component, ...]:
    """What a value and the elements that are known of it are in each world."""
    parts = (*(value.items or ()), *(value.entries or {}).values())
    return (*value.components, *(component for part in parts for component in leaves(part)))


def is_absent(value: Value) -> bool:
    """Is it what a variable holds before the job has started: None, 0 or -1?"""
    return value.constant in (Known(None), Known(-1), Known(0))


def is_on(flag: Value | None) -> bool | None:
    """Whether a flag is on that is on where it is not given; None if its value is not known."""
    if flag is None:
        return True
    return bool(flag.constant.value) if flag.constant is not None else None

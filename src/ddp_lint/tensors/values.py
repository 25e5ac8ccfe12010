"""What is known of the value of an expression: is it a tensor, from what was it computed, whose storage is it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable


class Kind(enum.Enum):
    TENSOR = "tensor"  #: surely a tensor
    LIKELY = "likely"  #: came out of a call on tensors: a tensor, or a structure of them
    PARAMETER = "parameter"
    BUFFER = "buffer"
    LAYER = "layer"
    GROUP = "group"  #: a tuple, list or iterator; see `items` and `each`
    PYTHON = "python"  #: a number, a shape, a string, None: no tensor
    UNKNOWN = "unknown"


@dataclasses.dataclass(unsafe_hash=True, slots=True)  # never changed: a frozen one takes three times as long to make
class Value:
    """`storages`: which storages it may be (empty: unknown); `inputs`: computed from arguments of the function;
    `learned`: computed from parameters or layers with gradients on; `cut`: computed from them by way of indices or
    truth values, which no gradient flows out of; `on_host`: made on the CPU;
    `argument`: the argument that it is, or is a view of; `name`: the attribute that a parameter or layer is (also of
    a view of the parameter); `detached`: a view that autograd does not see, through `.data` or `detach()`;
    `maker`: canonical name of a layer's class; `items`: elements of a tuple, or values of a
    dictionary under `keys`; `each`: the element of an iterable;
    `depth`: how many tuples lie within each other.
    """

    kind: Kind
    storages: frozenset[int] = frozenset()
    inputs: bool = False
    learned: bool = False
    cut: bool = False
    on_host: bool = False
    argument: str = ""
    name: str = ""
    detached: bool = False
    maker: str = ""
    items: tuple[Value, ...] = ()
    keys: tuple[str, ...] = ()
    each: Value | None = None
    depth: int = dataclasses.field(default=0, compare=False)

    @property
    def tensor(self) -> bool:
        """Surely a tensor (parameters and buffers are)."""
        return self.kind in (Kind.TENSOR, Kind.PARAMETER, Kind.BUFFER)

    @property
    def tensorish(self) -> bool:
        return self.tensor or self.kind is Kind.LIKELY

    @property
    def carries_gradient(self) -> bool:
        """Whether a gradient flows out of it."""
        return (self.learned and not self.cut) or self.kind is Kind.PARAMETER

    @property
    def computed(self) -> bool:
        """A tensor that the device computes: from arguments, parameters or layers, not on the host."""
        return self.tensorish and not self.on_host and (self.inputs or self.learned or self.kind is Kind.PARAMETER)

    @property
    def element(self) -> Value:
        """What iterating over it gives."""
        if self.each is not None:
            return self.each
        if self.items:
            return join(self.items)
        if self.kind is Kind.PYTHON:
            return self
        if self.kind is Kind.LAYER:
            return Value(Kind.LAYER, name=self.name)
        return dataclasses.replace(self, maker="", name="")

    def without_gradient(self) -> Value:
        """The same as a result that no gradient flows out of."""
        return dataclasses.replace(self, learned=False)

    def with_parameters(self) -> Value:
        """The same as a result that parameters took part in."""
        return dataclasses.replace(self, learned=True, cut=False)

    def discrete(self) -> Value:
        """The same as an index, a count or a truth value: computed as before, and no gradient flows out of it."""
        return dataclasses.replace(self, cut=self.learned)

    def view(self, *, detached: bool = False) -> Value:
        """A view of it; `detached` for `.data` and `detach()`."""
        kind = Kind.TENSOR if self.tensor else self.kind
        learned = not detached and (self.learned or self.kind is Kind.PARAMETER)
        return dataclasses.replace(self, kind=kind, learned=learned, detached=self.detached or detached)


PYTHON = Value(Kind.PYTHON)
UNKNOWN = Value(Kind.UNKNOWN)


def join(values: Iterable[Value]) -> Value:
    """What is known when the value is one of several."""
    several = list(values)
    if not several:
        return UNKNOWN
    if all(value is several[0] for value in several):  # mostly: what no arm has changed
        return several[0]
    several = list(dict.fromkeys(several))
    if len(several) == 1:
        return several[0]
    kinds = {v.kind for v in several}
    if len(kinds) == 1:
        kind = kinds.pop()
    elif kinds <= {Kind.TENSOR, Kind.PARAMETER, Kind.BUFFER}:
        kind = Kind.TENSOR
    elif all(v.tensorish for v in several):
        kind = Kind.LIKELY
    else:
        kind = Kind.UNKNOWN
    if kind is Kind.GROUP:
        held = [v.element for v in several if v.items or v.each is not None]
        return Value(kind, inputs=any(v.inputs for v in several), each=join(held) if held else None)
    arguments, makers, called = ({getattr(v, f) for v in several} for f in ("argument", "maker", "name"))
    return Value(
        kind,
        storages=frozenset().union(*(v.storages for v in several)),
        inputs=any(v.inputs for v in several),
        learned=any(v.learned for v in several),
        cut=is_cut(several),
        on_host=all(v.on_host for v in several),
        detached=all(v.detached for v in several),
        argument=arguments.pop() if len(arguments) == 1 else "",
        maker=makers.pop() if len(makers) == 1 else "",
        name=called.pop() if len(called) == 1 else "",
    )


def is_cut(operands: Iterable[Value]) -> bool:
    """Whether what is computed from parameters among them is so by indices or truth values alone."""
    known = list(operands)
    return any(v.learned for v in known) and not any(v.carries_gradient for v in known)


def computed_from(operands: Iterable[Value], kind: Kind, storage: int) -> Value:
    """A new tensor computed from operands."""
    known = list(operands)
    tensors = [v for v in known if v.tensorish or v.kind is Kind.GROUP]
    return Value(
        kind,
        storages=frozenset({storage}),
        inputs=any(v.inputs for v in known),
        learned=any(v.learned or v.kind is Kind.PARAMETER for v in known),
        cut=is_cut(known),
        on_host=bool(tensors) and all(v.on_host for v in tensors),
    )


#: Elements of a tuple that are distinguished: ``parts += (part,)`` in a loop adds one each time.
_MOST = 16
#: Tuples within each other whose elements are distinguished: ``a, b = (a, b), (b, a)`` doubles what they hold.
_DEEPEST = 5


def group(items: Iterable[Value]) -> Value:
    """A tuple or list of known elements."""
    elements = tuple(items)
    depth = 1 + max((v.depth for v in elements), default=0)
    return Value(
        Kind.GROUP,
        inputs=any(v.inputs for v in elements),
        learned=any(v.learned for v in elements),
        cut=is_cut(elements),
        on_host=bool(elements) and all(v.on_host or v.kind is Kind.PYTHON for v in elements),
        storages=frozenset().union(*(v.storages for v in elements)),
        items=elements if depth <= _DEEPEST else (),
        depth=min(depth, _DEEPEST),
    )


def concatenated(*groups: Value) -> Value:
    """What ``a + b`` of tuples or lists is; the elements of what is not known are one of all."""
    known = all(g.items or g == EMPTY for g in groups)
    items = [item for g in groups for item in g.items]
    if known and len(items) <= _MOST:
        return group(items)
    elements = [g.element for g in groups if g != EMPTY]
    return dataclasses.replace(group(elements), items=(), each=join(elements))


EMPTY = group(())

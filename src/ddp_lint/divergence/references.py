"""What kind of object a value is: a function, a class, an instance, a process group, something of another package."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from ddp_lint.divergence.groups import Group
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import Definition

# Made by the ten thousand and never changed: not frozen, for the reason that `values` gives.


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class External:
    """Something of a package outside the project, by its canonical dotted name."""

    name: str


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class ModuleRef:
    """A module of the project, or a package prefix of one."""

    name: str


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class ClassRef:
    node: ast.ClassDef
    facts: ModuleFacts = dataclasses.field(compare=False)


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Instance:
    """An object of a project class, or of an external class by dotted name."""

    of: ClassRef | str
    #: The class was guessed from the receiver's name.
    guessed: bool = False
    #: A loader that gives all ranks the same batches: nothing divides its data, nothing shuffles it.
    whole: bool = False
    #: A loader whose batches come from a stream of this rank's own, and end with it.
    streams: bool = False
    #: Of a wrapped model: the class of the module inside, where the project has it.
    inside: ClassRef | None = None
    #: Of a wrapped model: where it was wrapped, there is evidence that it has buffers.
    buffered: bool = False
    #: Of a wrapped model: whether its forward broadcasts the buffers; None if a flag decides that is not known.
    broadcasts: bool | None = True
    #: Of what is in `HANDED`, and of a loader that `streams`: through how many calls it came in as an argument (see
    #: `Variation.call_depth`).
    handed: int = 0
    #: Of a list in the order of a set: the loop over the set that has filled it.
    filled: Any = dataclasses.field(default=None, compare=False)
    #: Of a part of a model that is sharded by itself, or a list of such parts: the attribute's name.
    unit: str = ""
    #: Attributes that the constructor was given as a flag or a group, and nothing sets again.
    given: tuple[tuple[str, bool | GroupRef | None], ...] = ()


#: An object of a framework that works on one device, or in a group of its own.
ON_ONE_DEVICE = Instance("builtins.alone")


def is_decorated(function: ast.AST, by: str) -> bool:
    """Whether a function has a decorator of that name: ``@classmethod``."""
    return any(isinstance(d, ast.Name) and d.id == by for d in getattr(function, "decorator_list", ()))


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class FunctionRef:
    """A function of the project; with `receiver` a bound method, with `closure` a nested function."""

    node: Definition
    facts: ModuleFacts = dataclasses.field(compare=False)
    owner: ClassRef | None = None
    receiver: Any = dataclasses.field(default=None, compare=False)
    #: Class of the receiver: the same method does other things on another class.
    of: ClassRef | str | None = None
    closure: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False)
    #: Decorators were applied, this is what they wrapped.
    bare: bool = False

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "<lambda>")

    @property
    def is_bound(self) -> bool:
        """Whether a call of it gives the receiver as its first argument: not where it is static, nor where it is a
        function within a method, which sees the object of that."""
        return self.receiver is not None and self.closure is None and not is_decorated(self.node, "staticmethod")

    @property
    def takes_class(self) -> bool:
        return is_decorated(self.node, "classmethod")


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Method:
    """A method of an external class, or of a receiver that nothing resolves (`of` is ''). It holds nothing else of
    where it was read: what differs in it makes another summary of each function that it is handed to."""

    of: str
    name: str
    guessed: bool = False
    #: ``super().setup_model``
    inherited: bool = False
    #: What it is a method of, where that is an object of a project class, or a tensor, which the call may give back.
    instance: Instance | None = None


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Partial:
    """`functools.partial`, or a wrapper that calls `function` with what it is given."""

    function: Any = dataclasses.field(compare=False)
    arguments: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    keywords: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), compare=False)
    identity: int = 0


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class GroupRef:
    group: Group


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Generator:
    """A generator that was made and not run: its effects happen where it is consumed."""

    call: Any = dataclasses.field(compare=False)
    identity: int = 0
    #: Variables of modules while it is suspended.
    switched: Mapping[tuple[str, str], Any] = dataclasses.field(default_factory=dict, compare=False)
    #: For each position of the tuples that it yields, whether each `yield` has a literal there; () for anything else.
    literal: tuple[bool, ...] = dataclasses.field(default=(), compare=False)
    #: What it yields, position by position, where that is a number that all ranks share, or a pair with one.
    yields: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    #: Whether it makes what it yields, and takes it from nothing that it is given.
    makes: bool = dataclasses.field(default=False, compare=False)
    #: What it goes through and yields as often as that has elements, where it does nothing but that and without events.
    hands_on: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Super:
    """`super()`: methods of the classes after `after` in the resolution order of `of`."""

    of: ClassRef
    after: ClassRef
    receiver: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Dynamic:
    """`getattr(self, name)` with a computed name: any method that the class of the object defines and whose name begins
    with the text that the computed one begins with."""

    of: ClassRef
    prefix: str = ""
    receiver: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class OneOf:
    """What may be any of several objects of the project, or the method of this name of any of them: the element of
    ``[Accuracy(), Loss()]``, or a model that is wrapped in one of several ways. `values` are these objects or methods,
    `tests` say when it is which, where that is known."""

    values: tuple[Any, ...]
    tests: tuple[Any, ...] = ()


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class ListOf:
    """A list of these objects of the project, some of which are there on some ranks alone."""

    of: OneOf


@dataclasses.dataclass(unsafe_hash=True, slots=True)
class Counter:
    """A progress bar that some ranks turn off, by a flag of these values: how many rounds it has counted."""

    off: Any
    counted: Any = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Enumerated:
    """``enumerate(x)``: pairs of a number and an `element` of what `of` refers to."""

    of: Any
    element: Any = dataclasses.field(default=None, compare=False)


#: The class of sets.
SET: Final = "builtins.set"
#: Tensors of another shape on each rank: what its own data select, what is made of a size that follows from the rank,
#: and sequences as long as the longest of its own.
SELECTION: Final = "builtins.selection"
SIZED: Final = "builtins.sized"
PADDED: Final = "builtins.padded"
#: Lists of such tensors.
LISTED: Final = {SELECTION: f"{SELECTION}s", PADDED: f"{PADDED}s"}
#: Classes of objects that differ between ranks by what they are, also where they were handed to another function.
HANDED: Final = frozenset({SET, SELECTION, SIZED, PADDED, *LISTED.values()})

Reference = (
    External | ModuleRef | ClassRef | Instance | FunctionRef | Method | Partial | GroupRef | Generator | Super | Dynamic
    | Enumerated | OneOf | ListOf | Counter
)  # fmt: skip

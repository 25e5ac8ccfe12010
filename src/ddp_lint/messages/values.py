"""What the interpreter knows of a value on one rank, and the operations that a rank carries out."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Hashable
from typing import Any

from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import FunctionNode


class GiveUp(Exception):
    """The source does not decide what the rank does: nothing is reported of the program."""


class TooMuch(GiveUp):
    """The source may decide it, by more work than there may be."""


class Impossible(Exception):
    """The program is not for a job of this size: it asserts another one, or sends to a rank that is not there."""


class Exits(Exception):
    """The process ends, without an error."""


class Steps:
    """How much work is left, in steps: expressions that are evaluated, statements that are carried out."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self) -> None:
        """Raises TooMuch when none are left: what a few lines make a program do may take for ever."""
        self._left -= 1
        if self._left < 0:
            raise TooMuch


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A value that only the run knows. Two ranks have the same one where the keys are equal, unless it is `own`.
    `counted`: it follows from the number of a round and from settings alone, so that ranks go through it together."""

    key: Hashable
    own: bool = False
    counted: bool = False


@dataclasses.dataclass(frozen=True)
class External:
    """A function, class or module of another package, by its canonical name."""

    name: str


@dataclasses.dataclass(eq=False)
class Object:
    """An object of a class of the project."""

    of: ast.ClassDef
    facts: ModuleFacts
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class Function:
    """A function of the project; `around` are the variables of the function that defines it, `given` what its defaults
    were when it was defined."""

    node: FunctionNode
    facts: ModuleFacts
    receiver: Object | None = None
    around: Scope | None = None
    given: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Class:
    node: ast.ClassDef
    facts: ModuleFacts


@dataclasses.dataclass(frozen=True)
class Bound:
    """A method of a value that is no object of the project: ``works.append``."""

    of: Any
    name: str


@dataclasses.dataclass(eq=False)
class Message:
    """A send or a receive; `peer` is None for a receive from any rank. `blocks`: the rank goes on when it is done.
    `way` are the calls that lead there, outermost first."""

    sends: bool
    peer: int | None
    node: ast.Call
    facts: ModuleFacts
    text: str
    blocks: bool
    way: tuple[tuple[ModuleFacts, ast.Call], ...] = ()

    def seen_from(self, facts: ModuleFacts) -> ast.Call | None:
        """The call itself, or the one in this file that leads there."""
        if self.facts is facts:
            return self.node
        return next((node for of, node in reversed(self.way) if of is facts), None)


@dataclasses.dataclass(eq=False)
class Wait:
    """The rank goes on when a message is done."""

    message: Message
    node: ast.Call
    facts: ModuleFacts


@dataclasses.dataclass(eq=False)
class Together:
    """The rank goes on when all ranks have reached such a call."""

    node: ast.Call
    facts: ModuleFacts
    text: str


Operation = Message | Wait | Together


@dataclasses.dataclass(eq=False)
class Scope:
    """The variables of one call of a function, or of a module."""

    facts: ModuleFacts
    function: FunctionNode | None = None
    names: dict[str, Any] = dataclasses.field(default_factory=dict)
    around: Scope | None = None
    globals: frozenset[str] = frozenset()


@dataclasses.dataclass
class Program:
    """What one rank does."""

    operations: list[Operation] = dataclasses.field(default_factory=list)
    #: How often it was asked what only the run knows, which decides how often or whether it goes on.
    asked: dict[Hashable, int] = dataclasses.field(default_factory=dict)
    #: Whether it has made the process group itself.
    joined: bool = False
    #: Functions that were run.
    entered: set[FunctionNode] = dataclasses.field(default_factory=set)

    @property
    def messages(self) -> list[Message]:
        return [operation for operation in self.operations if isinstance(operation, Message)]

"""What holds at one point of a function: names, what autograd keeps, whether gradients are on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Set

import libcst as cst

from ddp_lint.source.names import Names
from ddp_lint.tensors.values import UNKNOWN, Value, join


@dataclasses.dataclass(frozen=True)
class Save:
    """Autograd keeps a tensor for backward. `node`: the operation; `what`: its name; `as_output`: it keeps its result,
    not its input; `certain`: gradients surely flow there (from parameters), not only if an argument requires them."""

    node: cst.CSTNode
    what: str
    as_output: bool
    certain: bool


@dataclasses.dataclass(frozen=True)
class Write:
    """A write into a tensor's storage. `node`: the statement or call; `target`: the expression written to;
    `save`: what had kept the tensor by then; `gradient`: whether gradients were on; `perhaps`: what had kept one of
    the tensors that the target may be, after an `if` in one arm of which none was kept."""

    node: cst.CSTNode
    target: cst.CSTNode
    value: Value
    save: Save | None
    gradient: bool
    perhaps: Save | None = None


@dataclasses.dataclass
class State:
    """`names`: local names and attributes (dotted) to values; `saved`: storage to what keeps it;
    `left`: the function, or this arm of it, has been left."""

    names: Names[Value]
    saved: dict[int, Save] = dataclasses.field(default_factory=dict)
    gradient: bool = True
    left: bool = False

    def copy(self) -> State:
        return State(Names(self.names), dict(self.saved), self.gradient, self.left)

    def become(self, outcomes: Iterable[State]) -> None:
        """Go on from where any of the outcomes ended that did not leave. A local that one of them does not bind cannot
        be read afterwards; an attribute can: it has an older value."""
        before = self.saved.keys()
        going_on = [s for s in outcomes if not s.left]
        self.left = not going_on
        every = [s.names for s in going_on]
        first = every[0] if every else Names[Value]()
        names = first.gone_on_from(self.names)
        for name in {name: None for other in every[1:] for name in first.differing(other)}:
            if any(each.get(name) is not first.get(name) for each in every):  # seldom: most are what no arm has changed
                names[name] = join(each.get(name, UNKNOWN) for each in every if name in each or "." in name)
        self.names = names
        self.saved = {storage: s.saved[storage] for s in reversed(going_on) for storage in _kept(s, before)}


def _kept(state: State, before: Set[int]) -> list[int]:
    """The saved storages of an arm that count after it: what it saved and then lost the name of is not what the name
    stands for afterwards."""
    if state.saved.keys() <= before:
        return list(state.saved)
    held = frozenset[int]().union(*(value.storages for value in state.names.values()))
    return [storage for storage in state.saved if storage in before or storage in held]

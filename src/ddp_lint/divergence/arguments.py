"""The arguments of a call, evaluated."""

from __future__ import annotations

import ast
import dataclasses

from ddp_lint.divergence.values import Value


@dataclasses.dataclass(eq=False, slots=True)
class Arguments:
    """Evaluated arguments; `starred` when `*args` or `**kwargs` hide some, `spread` what these are: ``model(**batch)``
    follows from the batch."""

    positional: tuple[Value, ...] = ()
    keywords: dict[str, Value] = dataclasses.field(default_factory=dict)
    nodes: dict[int | str, ast.expr] = dataclasses.field(default_factory=dict)
    starred: bool = False
    spread: tuple[Value, ...] = ()
    #: All of them, in the order of the call.
    values: tuple[Value, ...] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.values = self.positional
        if self.keywords or self.spread:
            self.values = (*self.positional, *self.keywords.values(), *self.spread)

    def get(self, name: str, takes: tuple[str, ...]) -> tuple[Value | None, ast.expr | None]:
        """The argument for a parameter of a callee whose positional parameters are `takes`."""
        if name in self.keywords:
            return self.keywords[name], self.nodes.get(name)
        if name in takes and takes.index(name) < len(self.positional):
            return self.positional[takes.index(name)], self.nodes.get(takes.index(name))
        return None, None

    def given_to(self, takes: tuple[str, ...]) -> dict[str, Value]:
        """All arguments by the parameter of a callee whose positional parameters are `takes`."""
        return {**dict(zip(takes, self.positional, strict=False)), **self.keywords}

"""Where a rule looks: the words and traits by which a definition concerns it, and the files."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable


class Trait(str, enum.Enum):
    """What a function does that no single word shows. `engine.traits` finds all of them in one pass."""

    WRITES = "x += y, x[i] = y, x.add_(y)"
    READS = "x.item(), float(x)"
    BRANCHES = "if x.any(), if error > limit"
    PRINTS = "print(x), logger.info(x)"
    COUNTS = "self.calls += 1, self.seen.append(x)"
    CONSTRUCTS = "def __init__"
    KEEPS = "self.layers = [...], self.layers = make(...), in a constructor"
    DELEGATES = "self.model.module(x), in a forward"


@dataclasses.dataclass(init=False)
class Triggers:
    """What concerns a rule: the functions, classes and statements of a module that hold one of `what`.

    Of a class that holds one the rule sees all methods. Where `what` is empty, a rule with `visit_` or `leave_` methods
    sees every definition, and one without sees none: it uses `module.facts` (`ast`).
    """

    #: Identifiers in the code (not in comments and texts alone), and traits.
    what: tuple[str | Trait, ...]
    #: Identifiers of which the file must contain one besides, e.g. "torch"; a dotted name stands for all of its parts.
    #: Empty: any file.
    file: tuple[str, ...]
    #: False: not in the files of tests.
    tests: bool
    #: Only in files that can communicate (`project.communication`).
    communicating: bool

    def __init__(
        self, *what: str | Trait, file: Iterable[str] = (), tests: bool = True, communicating: bool = False
    ) -> None:
        traits = {trait.value: trait for trait in Trait}  # a trait that comes from JSON is a text
        self.what, self.file = tuple(traits.get(word, word) for word in what), tuple(file)
        self.tests, self.communicating = tests, communicating

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(word for word in self.what if not isinstance(word, Trait))

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset(trait for trait in self.what if isinstance(trait, Trait))

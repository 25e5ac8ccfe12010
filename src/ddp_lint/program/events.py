"""The words by which a function can communicate, from the knowledge and from the configuration's own names."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping

from ddp_lint.knowledge import communication, frameworks, table
from ddp_lint.knowledge.communication import LEARNING_RATE, Collective, Knowledge
from ddp_lint.knowledge.project_names import Names, last

#: What an element of ``optimizer.param_groups`` is.
PARAMETER_GROUP = "builtins.parameter_group"
#: Methods of these kinds count only for models that are wrapped for several ranks.
_OF_WRAPPED = frozenset({"backward", "step", "forward", "leave"})
#: Methods that a call of the object itself runs.
_CALLED = frozenset({"__call__", "forward", "__init__", "__setitem__"})


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What must be mentioned besides, for a word to be a communicating call: all the `words`; `wrapped`: files that
    wrap models."""

    words: frozenset[str]
    wrapped: bool
    #: Of a function: the module that it is in.
    module: str = ""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Words of communicating calls.

    `alone`: on any object, anywhere; `alone_wrapped`: in a file that wraps models. `functions`: functions of
    modules whose names must be imported. `methods`: by name, what shows an object that has them. `objects`: what shows
    an object whose very call communicates.
    """

    alone: frozenset[str]
    alone_wrapped: frozenset[str]
    functions: Mapping[str, frozenset[Need]]
    methods: Mapping[str, frozenset[Need]]
    objects: frozenset[Need]
    #: Classes whose construction communicates.
    classes: frozenset[str]
    #: Words of packages all of whose classes are of a kind (``torch.optim``).
    packages: frozenset[str]

    @property
    def showing(self) -> frozenset[str]:
        """All words that show an object or a module."""
        needs = [*self.objects]
        for entries in (*self.functions.values(), *self.methods.values()):
            needs += entries
        return frozenset(word for need in needs for word in need.words)


@functools.cache
def vocabulary(names: Names) -> Vocabulary:
    """The words for a project whose configuration lists `names`."""
    known = communication.load()
    functions: dict[str, set[Need]] = collections.defaultdict(set)
    methods: dict[str, set[Need]] = collections.defaultdict(set)
    objects: set[Need] = set()
    classes: set[str] = set()
    for entry in known.collectives.values():
        if entry.kind in ("p2p", "local"):
            continue
        wrapped = entry.kind in _OF_WRAPPED and entry.op != LEARNING_RATE
        wrapped = wrapped and (entry.kind != "backward" or entry.name.startswith("torch."))  # an engine's is anywhere
        head, _, name = entry.name.rpartition(".")
        if head not in known.types and not last(head)[:1].isupper() and name not in _CALLED:
            functions[name].add(Need(frozenset(head.split(".")), wrapped, head))
            if name[:1].isupper():
                classes.add(name)
            continue
        needs = {Need(frozenset({word}), wrapped) for word in _shown_by(known, head)}
        if name in _CALLED:
            objects |= needs
        else:
            methods[name] |= needs
    objects |= {Need(frozenset({last(name)}), False) for name in names.wrappers}
    gates = {last(gate.name) for gate in known.gates.values() if gate.then}
    alone = {*frameworks.distinctive(), "full_tensor"} | gates | {last(name) for name in names.collectives}
    return Vocabulary(
        frozenset(alone),
        frozenset({"backward", *table("tensors")["steps"]["methods"]}),
        {name: frozenset(needs) for name, needs in functions.items()},
        {name: frozenset(needs) for name, needs in methods.items()},
        frozenset(objects),
        frozenset(classes),
        frozenset(_word_of(maker) for type_ in known.types.values() for maker in type_.made_by if maker[-1] == "*"),
    )


def _shown_by(known: Knowledge, type_: str) -> Iterator[str]:
    """Words one of which is mentioned wherever an object of a class comes from: its name, the functions that make it
    and its names; those of classes below it, too."""
    candidates = {*known.types, *frameworks.bases()}
    below = [name for name in candidates if type_ in _ancestors(known, name)]
    for name in (type_, *below):
        yield _word_of(name)
        entry = known.types.get(name)
        if entry is not None:
            yield from entry.known_as
            yield from map(_word_of, entry.made_by)
    if type_ == PARAMETER_GROUP:
        yield "param_groups"
    for call in known.collectives.values():
        if type_ in _made(call):
            maker, _, name = call.name.rpartition(".")
            yield from (last(maker), *known.types[maker].known_as) if maker in known.types else (name,)


def _word_of(name: str) -> str:
    """The word that a mention of a class or function holds for certain. Of a package all of whose classes are of a
    kind: the framework's name, as ``torchmetrics.image`` ends in a word that any program has; of torch's, which all
    programs import, the last part."""
    package = name.rstrip("*").removesuffix(".")
    first = package.partition(".")[0]
    return last(package) if package == name or first == "torch" else first


def _made(entry: Collective) -> frozenset[str]:
    return frozenset((*entry.result, *entry.turns.values()))


def _ancestors(known: Knowledge, name: str) -> list[str]:
    found = [name]
    hierarchy = frameworks.bases()
    for current in found:
        entry = known.types.get(current)
        above = [*(entry.bases if entry else ()), *(hierarchy.get(current) or ())]
        found += [base for base in above if base not in found]
    return found


__all__ = ["PARAMETER_GROUP", "Need", "Vocabulary", "vocabulary"]

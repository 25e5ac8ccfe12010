"""What the divergence analysis knows about PyTorch and its frameworks: who communicates, who reads a rank.

The data are the events of each framework (`frameworks`) and what holds for the names of any program (ranks.toml,
divergent.toml). A malformed entry is refused: an unknown key, an unknown word or a name that is listed twice raises
`KnowledgeError` with file and entry.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ddp_lint.knowledge import table
from ddp_lint.knowledge.frameworks import frameworks
from ddp_lint.knowledge.schema import KnowledgeError, values_of

#: What a call does to the ranks' common order. A "collective" is matched call by call within its group; "group" makes
#: process groups and involves the whole world, members or not; "p2p" is pairwise and never demanded of all; "local"
#: does not communicate and is listed for what it turns its arguments into;
#: "forward" and "backward" run a wrapped model's hooks, "part" those of a part of a sharded model; "step" changes
#: parameters or learning rate, so replicas must do it together; "leave" ends the process group.
Kind = Literal["collective", "group", "p2p", "local", "forward", "part", "backward", "step", "leave"]

#: The operation of a write that sets a learning rate, which is no call.
LEARNING_RATE = "learning rate"

#: When the call communicates; '' is always.
Condition = Literal["", "sharded", "buffers", "metric-sync", "statistics", "launched"]

#: How the words of `Condition` read in a message, after "it communicates".
CONDITIONS: Mapping[str, str] = {
    "": "",
    "sharded": "under FSDP and ZeRO-3",
    "buffers": "if the model has buffers",
    "metric-sync": "as the metric syncs on compute",
    "statistics": "if the module trains in a group",
    "launched": "under FSDP and DeepSpeed",
}

#: Which ranks take part where the call has no group argument, and which ranks share a value of `Rank`.
Scope = Literal[
    "world", "node", "tensor", "pipeline", "data", "expert", "expert tensor", "context", "model", "embedding", "shard"
]

#: What the call gives back: one value on all ranks, a value of each rank, an async handle, a process group.
Returns = Literal["", "uniform", "local", "work", "group"]

#: What an expression says about the rank. Numbers: rank, local_rank, node_rank, group_rank. Booleans: the others.
RankValue = Literal[
    "rank", "local_rank", "node_rank", "group_rank", "coordinate",
    "is_first", "is_local_first", "is_last", "is_local_last", "is_node_first", "is_member",
]  # fmt: skip

#: Why a value differs between ranks although no rank is mentioned.
Cause = Literal["clock", "file", "data", "exception", "memory", "order", "random", "future", "host", "signal", "length"]

#: What of a rank's own data a value follows from, where it matters: the batches themselves, whether something that was
#: made of one is there at all, how large one is, how many one of them asks for, how many elements the rank's share of a
#: collection has, whether it has any, whether its samples have a field, or a caller gives a parameter of that name.
Aspect = Literal[
    "", "batches", "contents", "size", "count", "share", "emptiness", "modality", "parameter", "gradients", "tokens"
]

#: How they read in a message, after "depends on".
ASPECTS: Mapping[Aspect, str] = {
    "batches": "the batches of this rank",
    "contents": "the batches of this rank",
    "size": "a number in this rank's own batch",
    "count": "a number in this rank's own batch",
    "share": "the number of elements in this rank's share",
    "emptiness": "whether this rank's own data yields any elements",
    "modality": "whether this rank's own samples have it",
    "parameter": "whether this rank's own samples have it",
    "gradients": "whether this rank's own parameters have gradients",
    "tokens": "the tokens that the model has chosen on this rank",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """A function or method that communicates.

    `takes` names its positional parameters (without `self`); `group`, `root`, `reduce_op`, `asynchronous` and `ranks`
    are names of parameters, `peer` that of the rank at the other end of a message (`dst`, `src`), `decides` that of a
    number by which the call decides what it does, `key` that of the name under which the ranks combine their values,
    `buffers` that of the flag by which a wrapper's forward broadcasts
    the module's buffers. Tensors in `payload` must agree in shape and dtype on all ranks,
    unless the parameter `objects` is given, which lets them be anything;
    after the call those in `uniform` hold one value everywhere, and those in `receives` what this rank was sent.
    `backends`: it communicates under these of the launcher alone (`frameworks.Backend`).
    `out_of_place`: it leaves its first argument as it is,
    and what it computes is only in what it returns.
    `result` is the class that it returns (several for a tuple, '' where unknown); `turns` says what it makes of an
    argument (``fully_shard(model)``). The call communicates only if the keywords in `only_if` have these values, and
    not if those in `unless` do. `wraps_overriding`: the class makes the methods of this name communicate that override
    it, too. `models`: it communicates for models alone, and takes loaders as well. `since`: the release of its package
    from which on that holds; `earlier`: when it communicated before. `at_once`: the flag by which it communicates at
    each call; without it, in the methods `at_end_in`, it does so at the end of the epoch for all calls together.
    """

    name: str
    op: str
    kind: Kind = "collective"
    takes: tuple[str, ...] = ()
    group: str = ""
    root: str = ""
    reduce_op: str = ""
    asynchronous: str = ""
    ranks: str = ""
    peer: str = ""
    decides: str = ""
    key: str = ""
    buffers: str = ""
    payload: tuple[str, ...] = ()
    objects: str = ""
    uniform: tuple[str, ...] = ()
    receives: tuple[str, ...] = ()
    out_of_place: bool = False
    returns: Returns = ""
    result: tuple[str, ...] = ()
    turns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    when: Condition = ""
    backends: tuple[str, ...] = ()
    only_if: Mapping[str, bool | str | int] = dataclasses.field(default_factory=dict)
    unless: Mapping[str, bool | str | int] = dataclasses.field(default_factory=dict)
    implicit: bool = False
    context: bool = False
    wraps_overriding: bool = False
    models: bool = False
    since: str = ""
    earlier: Condition = ""
    at_once: str = ""
    at_end_in: tuple[str, ...] = ()
    scope: Scope = "world"
    evidence: str

    @property
    def condition(self) -> str:
        """When the call communicates, in words that follow "it communicates"; '' for always."""
        return CONDITIONS[self.when]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Type:
    """A class whose methods communicate, and how an object of it is recognised.

    `made_by` are calls that return one besides the class itself: ``package.*`` stands for every class directly in that
    package, ``package.**`` also for those of its modules; `known_as` are the last parts of receivers
    (``self.accelerator``) that are taken for one when nothing else shows what they are; `bases` are classes whose
    entries hold too. `wraps`: attributes that it lacks are those of the module inside. An object that is made with
    one of the arguments `silent_if` does not communicate (``"*"``: with any value but None).
    """

    name: str
    made_by: tuple[str, ...] = ()
    known_as: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    wraps: bool = False
    silent_if: Mapping[str, bool | str] = dataclasses.field(default_factory=dict)
    evidence: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """An expression that gives a process its rank.

    `on` is the class that an attribute or method belongs to, '' for any receiver that nothing resolves. `scope` is
    what a group rank counts in when no `group` argument says so; `absent` is the value for "no launcher" (comparing
    with it is the same on all ranks); `item` is the index of the rank in a returned pair, -1 for the whole value.
    """

    name: str
    what: Literal["call", "method", "environment", "attribute", "name", "entry"]
    value: RankValue
    negated: bool = False
    takes: tuple[str, ...] = ()
    group: str = ""
    scope: Scope = "world"
    absent: tuple[str, ...] = ()
    item: int = -1
    on: str = ""
    evidence: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gate:
    """A decorator, base class or context that lets only some ranks run what is inside.

    `runs_on` is a boolean `RankValue`; afterwards all ranks do the collectives in `then`. For base classes `methods`
    are those that the gate covers ('on_*' by prefix). With `calls` the gate is a function that runs its first argument.
    """

    name: str
    what: Literal["decorator", "base", "call"]
    runs_on: RankValue
    then: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    argument: str = ""
    evidence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupSource:
    """A call that returns, or a name that has, a process group whose members share all coordinates but `scope`."""

    name: str
    scope: Scope
    evidence: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A value that differs between ranks without a rank test; `description` goes into messages after "depends on".

    It is the same on all ranks if the keywords in `unless` have these values; `takes` names the parameters, those of a
    "hook" (a method that the framework calls) as far as the one that differs.
    """

    name: str
    what: Literal["call", "method", "attribute", "iterate", "except", "hook"]
    cause: Cause
    description: str
    aspect: Aspect = ""
    takes: tuple[str, ...] = ()
    unless: Mapping[str, bool | str | int] = dataclasses.field(default_factory=dict)
    evidence: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uniform:
    """A value that is the same on all ranks although its name or its arguments suggest otherwise. "first" and "second":
    it is that argument of a method which holds such a value afterwards, ``comm.Allreduce(MPI.IN_PLACE, loss)``."""

    name: str
    what: Literal["call", "method", "attribute", "name", "first", "second"]
    evidence: str = ""


@dataclasses.dataclass(frozen=True)
class Knowledge:
    """All of it, each kind by name. Names are canonical dotted ones; methods are ``package.Class.method``."""

    collectives: Mapping[str, Collective]
    types: Mapping[str, Type]
    gates: Mapping[str, Gate]
    groups: Mapping[str, GroupSource]
    ranks: Mapping[tuple[str, str], Rank]
    sources: Mapping[tuple[str, str], Source]
    uniforms: Mapping[tuple[str, str], Uniform]


@functools.cache
def load() -> Knowledge:
    """Everything that the package knows. Raises KnowledgeError for a file that is wrong."""
    known = [(f"frameworks/{framework.name}", framework.events) for framework in frameworks()]
    return build([*known, ("ranks", table("ranks")), ("divergent", table("divergent"))])


#: What the object is called that runs the program, with the name of its class.
PROGRAMS = {name.lower(): name for name in ("Trainer", "Runner", "Engine", "Learner", "Solver")}
#: Letters of a name that hardly two classes have by chance.
_TELLING = 8


@functools.lru_cache(maxsize=32_768)
def is_telling(name: str) -> bool:
    """Does a method's name say by itself whose it is, if a project has one of the name? It is of several words, no
    entry is for another of that name, and modules of other packages have none such."""
    return len(name) >= _TELLING and "_" in name.strip("_") and not name.startswith("__") and name not in _last_parts()


@functools.cache
def _last_parts() -> frozenset[str]:
    all_ = load()
    values = (name for _, name in (*all_.ranks, *all_.sources, *all_.uniforms))
    names = (*all_.collectives, *all_.gates, *all_.groups, *values)
    of_modules = (name for kind in ("module_attributes", "plain_module_methods") for name in table("wrappers")[kind])
    return frozenset((*(name.rpartition(".")[2] for name in names), *of_modules))


def build(files: list[tuple[str, dict[str, Any]]]) -> Knowledge:
    """Knowledge from parsed files: (name of the file for messages, its content)."""
    kinds: dict[str, type[Any]] = {
        "collective": Collective, "type": Type, "gate": Gate, "group": GroupSource, "rank": Rank, "source": Source,
        "uniform": Uniform,
    }  # fmt: skip
    found: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for file, content in files:
        for kind, entries in content.items():
            if kind not in kinds:
                raise KnowledgeError(f"{file}.toml: [[{kind}]] is not one of {', '.join(kinds)}")
            for entry in entries:
                found[kind] += _entries(kinds[kind], entry, f"{file}.toml [[{kind}]]")
    return Knowledge(
        collectives=_by_name("collective", found["collective"]),
        types=_by_name("type", found["type"]),
        gates=_by_name("gate", found["gate"]),
        groups=_by_name("group", found["group"]),
        ranks=_by_kind_and_name("rank", found["rank"]),
        sources=_by_kind_and_name("source", found["source"]),
        uniforms=_by_kind_and_name("uniform", found["uniform"]),
    )


def _entries(kind: type[Any], entry: Mapping[str, Any], where: str) -> Iterator[Any]:
    """One object for each of the entry's `names`; `op` defaults to the last part of the name."""
    names = entry.get("names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise KnowledgeError(f"{where}: 'names' must be a list of one or more names")
    values = {key: value for key, value in entry.items() if key != "names"}
    if kind is Collective:
        values.setdefault("op", "")
    values = values_of(kind, {**values, "name": names[0]}, f"{where} {names[0]}")
    for name in names:
        default = {"op": values["op"] or name.rpartition(".")[2]} if kind is Collective else {}
        yield kind(**{**values, **default, "name": name})


def _by_name(kind: str, entries: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in entries:
        if entry.name in found:
            raise KnowledgeError(f"[[{kind}]]: '{entry.name}' is listed twice")
        found[entry.name] = entry
    return found


def _by_kind_and_name(kind: str, entries: list[Any]) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for entry in entries:
        key = (entry.what, f"{entry.on}.{entry.name}" if getattr(entry, "on", "") else entry.name)
        if key in found:
            raise KnowledgeError(f"[[{kind}]]: {entry.what} '{key[1]}' is listed twice")
        found[key] = entry
    return found

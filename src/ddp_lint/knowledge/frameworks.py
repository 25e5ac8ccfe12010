"""What is known of each framework: `frameworks/<name>.toml`, found by listing the folder.

`Framework` is the schema. To teach the tool a framework, add one file: what is not in it holds for none of its names,
and every analysis that knows frameworks reads this. The tables of events (`[[collective]]`, `[[type]]`, `[[gate]]`,
`[[group]]`, `[[rank]]`, `[[source]]`, `[[uniform]]`) have the schema of `communication`.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from ddp_lint.derived import derived
from ddp_lint.knowledge.schema import KnowledgeError, parsed, values_of

FOLDER = pathlib.Path(__file__).with_name("frameworks")
#: The tables that `communication` reads.
EVENTS = ("collective", "type", "gate", "group", "rank", "source", "uniform")

#: How a model is wrapped: ddp (replicas, gradients averaged by hooks), fsdp1 (FullyShardedDataParallel: flat or
#: original parameters), fsdp2 (fully_shard: parameters become DTensors), either (configuration decides).
Kind = Literal["ddp", "fsdp1", "fsdp2", "either"]
#: What the text of a file can show, besides that it wraps models.
Shown = Literal[
    "wraps", "sharded", "buffers", "metric-sync", "statistics", "launched", "deepspeed", "fsdp", "named-checkpoints"
]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """What shows that several ranks run a file: `identifiers` and `modules` that it uses, `bases` of its classes. Where
    there are `words`, an import of `modules` shows it only if the file has one of them as well; `offline` are parts of
    them for programs of one process, which convert what ranks have written. `starts` are the
    identifiers in files that ranks run themselves; `commands` are patterns of the command lines that start ranks.
    `decorators` keep a function to one rank. `rank_hosts_store`: at the address that the launcher gives the ranks, it
    hosts no store of its own as torchrun does, but rank 0 does."""

    identifiers: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    offline: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()
    rank_hosts_store: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shows:
    """Patterns of a file's text. `wraps`: it wraps models for several ranks; the others are the conditions (`when`) of
    events: it shards models, has modules with buffers, metrics that ranks synchronise, modules that share statistics,
    a launcher that may configure sharding, or one of the backends of `Backend`, or that checkpoints are given their
    names, for which ranks wait."""

    wraps: tuple[str, ...] = ()
    sharded: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    metric_sync: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    launched: tuple[str, ...] = ()
    deepspeed: tuple[str, ...] = ()
    fsdp: tuple[str, ...] = ()
    named_checkpoints: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
    """How a program reads the backend under which the launcher runs it: the attribute `asked` is compared with a
    member of an enumeration, `members` says which backend of `Shown` it stands for, and a job has but one. `plugins`
    are attributes of the state that are None under other backends."""

    asked: str
    members: Mapping[str, str]
    plugins: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapper:
    """Calls that wrap a module. `module` is the argument that is wrapped (position 0 and this keyword); `in_place`: the
    module itself becomes the wrapped one, otherwise the call's result is; `looks_again`: each forward finds out which
    parameters require gradients, so that a part may be frozen later."""

    names: tuple[str, ...]
    kind: Kind
    module: str = "module"
    in_place: bool = False
    looks_again: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrappingMethod:
    """Methods whose arguments come back wrapped, in plain DDP when the job runs on several GPUs without further
    configuration. A file that has one of `unless` configures something else, which forwards attributes."""

    names: tuple[str, ...]
    unless: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenWrapped:
    """Methods that a trainer, of one of `classes`, calls with the model as it has wrapped it. Those that `train` return
    the loss, or take its backward; under `raw` the object itself keeps the model without its wrapper."""

    classes: tuple[str, ...]
    methods: tuple[str, ...]
    parameter: str
    raw: str = ""
    train: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptWrapped:
    """Trainers, of one of `classes`, that keep the model as they have wrapped it in an attribute; `parts` are
    attributes of the model itself, which the wrapper has not. A read of one has all of these names: those of
    `found_by` are the rarest."""

    classes: tuple[str, ...]
    attribute: str
    parts: tuple[str, ...]
    found_by: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caught:
    """Methods of subclasses of `classes` that the framework calls in a `try` on every rank: it catches what they raise
    and exchanges it between the ranks, so a rank that raises does not end but communicates."""

    classes: tuple[str, ...]
    methods: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twins:
    """The framework wraps the modules of one container and also hands the raw objects to the user through another:
    calling ``raw.x(...)`` in `methods` runs the twin that no wrapper knows of. The block `yaml_block` of the files
    `yaml` lists which these are; without one, `module_words` in a name show a trained module, `other_words` none."""

    classes: tuple[str, ...]
    wrapped: str
    raw: str
    methods: tuple[str, ...]
    yaml: str
    yaml_block: str
    module_words: tuple[str, ...]
    other_words: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Searching:
    """Calls that build DDP with a search for unused parameters, by `argument`: True, or one of the `strategies`, each
    with the name of the one that does not search."""

    names: tuple[str, ...]
    argument: str
    strategies: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distinctive:
    """Collectives by methods that no other library has, on any object; `confidence`: how certain that is."""

    names: tuple[str, ...]
    confidence: Literal["low", "high"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Framework:
    """One file. `packages` are the names that it is imported by. `imports_torch`: importing it imports torch;
    `asks_nvml`: importing it makes ``torch.cuda.is_available`` ask NVML instead of the driver; `sets_epoch`: its loops
    call ``set_epoch`` on the sampler of the loader that they are given (`loops`, where given, are words of which a file
    that uses its loops holds one); `chooses_device`: it chooses the rank's GPU before the user's code runs; `actors`
    make processes of a class that they are given, `actor_gpus` are the arguments that say how many GPUs each gets;
    `batches_per_rank`: its model parallelism takes a batch of each rank. `unwrapping` are functions and methods that
    return the module inside a wrapper; `trains` are texts of which a program that has it run the backward holds one;
    `sends_states` are classes whose objects send the states of what they are given from rank 0 to the others before
    they train; `freezes` are functions and classes that put adapters into a model and freeze its own weights.
    `pythons`: its releases from which on it needs that Python; `removed`: modules that it had, and the release from
    which on it has them no more; `held_below`: releases of other packages, each with its own release from which on none
    of them runs with it. `holds` are frameworks whose objects its own have as attributes.

    `aliases`: the documented name of an API, and the other paths that it can be imported from (an alias of a module
    covers everything below it). `bases`: what its classes inherit from, as far as a rule may ask; ``package.*`` stands
    for every class directly in that package. `events` are the tables that `communication` reads.
    """

    name: str
    packages: tuple[str, ...]
    holds: tuple[str, ...] = ()
    imports_torch: bool = False
    asks_nvml: bool = False
    sets_epoch: bool = False
    loops: tuple[str, ...] = ()
    chooses_device: bool = False
    actors: tuple[str, ...] = ()
    actor_gpus: tuple[str, ...] = ()
    batches_per_rank: bool = False
    unwrapping: tuple[str, ...] = ()
    trains: tuple[str, ...] = ()
    sends_states: tuple[str, ...] = ()
    freezes: tuple[str, ...] = ()
    launch: Launch = Launch()
    shows: Shows = Shows()
    backend: tuple[Backend, ...] = ()
    wrapper: tuple[Wrapper, ...] = ()
    wrapping_method: tuple[WrappingMethod, ...] = ()
    given_wrapped: tuple[GivenWrapped, ...] = ()
    kept_wrapped: tuple[KeptWrapped, ...] = ()
    caught: tuple[Caught, ...] = ()
    twins: tuple[Twins, ...] = ()
    searching: tuple[Searching, ...] = ()
    distinctive: tuple[Distinctive, ...] = ()
    pythons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    removed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    held_below: Mapping[str, str] = dataclasses.field(default_factory=dict)
    aliases: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    bases: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    events: dict[str, Any] = dataclasses.field(default_factory=dict)


@functools.cache
def frameworks() -> tuple[Framework, ...]:
    """All that are known, by name. Raises KnowledgeError for a file that is wrong."""
    files = derived(FOLDER / "all", _contents)
    return tuple(read(name, content) for name, content in files.items())


def read(name: str, content: Mapping[str, Any]) -> Framework:
    """A framework from its parsed file; messages name the file."""
    own = {key: value for key, value in content.items() if key not in EVENTS}
    if reserved := {"name", "events"} & own.keys():
        raise KnowledgeError(f"frameworks/{name}.toml: unknown key '{min(reserved)}'")
    events = {key: value for key, value in content.items() if key in EVENTS}
    return Framework(**values_of(Framework, {**own, "name": name}, f"frameworks/{name}.toml"), events=events)


def _contents() -> dict[str, Any]:
    return {file.stem: parsed(file) for file in sorted(FOLDER.glob("*.toml"))}


def every(of: Callable[[Framework], Iterable[_T]]) -> tuple[_T, ...]:
    """What all frameworks have of something, in their order."""
    return tuple(found for framework in frameworks() for found in of(framework))


def packages(that: Callable[[Framework], bool]) -> frozenset[str]:
    """The import names of the frameworks of which something holds."""
    return frozenset(every(lambda framework: framework.packages if that(framework) else ()))


@functools.cache
def all_packages() -> frozenset[str]:
    """The import names of all frameworks."""
    return packages(lambda framework: True)


@functools.cache
def wrapping_methods() -> Mapping[str, WrappingMethod]:
    """The methods that wrap what they are given, each with what is known of it: ``accelerator.prepare(model)``."""
    return {name: entry for entry in every(lambda each: each.wrapping_method) for name in entry.names}


@functools.cache
def called_to_wrap() -> frozenset[str]:
    """What calls of these name."""
    return frozenset(name.rpartition(".")[2] for name in wrapping_methods())


@functools.cache
def bases() -> Mapping[str, tuple[str, ...]]:
    """Class of a framework to the classes that it inherits from."""
    return {name: above for framework in frameworks() for name, above in framework.bases.items()}


@functools.cache
def wrappers() -> Mapping[str, Wrapper]:
    """Dotted name of a call to how it wraps."""
    return {name: entry for framework in frameworks() for entry in framework.wrapper for name in entry.names}


@functools.cache
def caught() -> frozenset[tuple[str, str]]:
    """Pairs of a class and a method whose exceptions the framework catches."""
    entries = every(lambda framework: framework.caught)
    return frozenset((class_, method) for each in entries for class_ in each.classes for method in each.methods)


@functools.cache
def distinctive() -> Mapping[str, tuple[str, Literal["low", "high"]]]:
    """Method to the collective that it is on any object, and how certain that is."""
    entries = every(lambda framework: framework.distinctive)
    return {name.rpartition(".")[2]: (name, entry.confidence) for entry in entries for name in entry.names}


@functools.cache
def commands() -> re.Pattern[str]:
    """What a command line that starts ranks has."""
    return re.compile("|".join(every(lambda framework: framework.launch.commands)), re.IGNORECASE)


@functools.cache
def shows(what: Shown, *others: str) -> re.Pattern[str]:
    """What the text of a file has that shows something; `others` are further patterns."""
    field = what.replace("-", "_")
    return re.compile("|".join((*every(lambda framework: getattr(framework.shows, field)), *others)))

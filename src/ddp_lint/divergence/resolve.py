"""From names to things: classes and their methods across files, and what the knowledge says about the rest."""

from __future__ import annotations

import ast
import functools
import re
from typing import NamedTuple

from ddp_lint import knowledge
from ddp_lint.divergence.inheritance import Question, Questions
from ddp_lint.divergence.references import ClassRef, External, FunctionRef, ModuleRef, Reference
from ddp_lint.knowledge import communication, frameworks
from ddp_lint.knowledge.communication import Collective, Gate, GroupSource, Rank, Source, Type
from ddp_lint.project import Answered, Project
from ddp_lint.project.facts import MOST_BASES, ModuleFacts, methods_of
from ddp_lint.source.syntax import FunctionNode

#: Names that mean the rank on any object.
_TELLING = re.compile(r"global_rank|local_rank|is_.*(zero|main|process|master)|process_index")


class Linker:
    """Names of one project. All answers are kept."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._classes: dict[int, ClassRef] = {}
        self._linearised: dict[ClassRef, Answered[tuple[list[ClassRef], tuple[str, ...]]]] = {}
        self._linearising: set[ClassRef] = set()
        self._members: dict[ClassRef, dict[str, FunctionNode]] = {}
        self._names: dict[str, Answered[Reference]] = {}
        self._named_classes: dict[ClassRef, Answered[tuple[tuple[str, ...], frozenset[str]]]] = {}
        self._only_methods: dict[str, Answered[FunctionRef | None]] = {}
        self._only_classes: dict[str, Answered[ClassRef | None]] = {}
        #: The questions about classes and their objects.
        self.questions = Questions()

    def class_ref(self, node: ast.ClassDef, facts: ModuleFacts) -> ClassRef:
        return self._classes.setdefault(id(node), ClassRef(node, facts))

    def let_go(self, facts: ModuleFacts) -> None:
        """Let go of the classes of a module."""
        for number in [number for number, of in self._classes.items() if of.facts is facts]:
            self._members.pop(self._classes.pop(number), None)

    def dotted(self, name: str) -> Reference:
        """What an absolute dotted name means."""
        return self.project.remember(name, lambda: self._dotted(name), self._names)

    def _dotted(self, name: str) -> Reference:
        name = self.project.meanings.canonical(name)
        found = self.project.meanings.split(name)
        if found is None:
            return External(knowledge.canonical(name))
        facts, rest = found
        if not rest:
            return ModuleRef(facts.name)
        first, _, more = rest.partition(".")
        definition = facts.definitions.get(first)
        if isinstance(definition, ast.ClassDef):
            owner = self.class_ref(definition, facts)
            if not more:
                return owner
            method = self.method(owner, more)
            return method or External(name)
        if definition is not None and not more:
            return FunctionRef(definition, facts)
        return ModuleRef(name) if definition is None else External(name)

    def in_module(self, facts: ModuleFacts, name: str) -> Reference | None:
        """A top-level name of a module: a definition or an import; None for variables."""
        definition = facts.definitions.get(name)
        if isinstance(definition, ast.ClassDef):
            return self.class_ref(definition, facts)
        if definition is not None:
            return FunctionRef(definition, facts)
        target = facts.imports.resolve(name)
        if target is None:
            stars = self.project.meanings.own_stars(facts.imports)
            star = next((star for star in stars if self._exports(star, name)), None)
            target = f"{star}.{name}" if star else None
        return self.dotted(target) if target else None

    def _exports(self, module: str, name: str) -> bool:
        facts = self.project.modules.facts(module)
        return facts is not None and (name in facts.definitions or name in facts.imports.names)

    # ---- classes

    def linearised(self, of: ClassRef) -> tuple[list[ClassRef], tuple[str, ...]]:
        """The project classes in resolution order (depth first, good enough for lookups), and the external bases."""
        if of in self._linearising:
            return [of], ()  # what a class that inherits from itself sees
        return self.project.remember(of, lambda: self._in_order(of), self._linearised)

    def _in_order(self, of: ClassRef) -> tuple[list[ClassRef], tuple[str, ...]]:
        self._linearising.add(of)
        classes, external = [of], list[str]()
        for base in of.node.bases:
            reference = self.expression(of.facts, base)
            if isinstance(reference, ClassRef) and len(classes) < MOST_BASES:
                above, outside = self.linearised(reference)
                classes += [c for c in above if c not in classes]
                external += [name for name in outside if name not in external]
            elif isinstance(reference, External):
                external.append(reference.name)
        self._linearising.discard(of)
        return classes[:MOST_BASES], tuple(external)

    def expression(self, facts: ModuleFacts, node: ast.expr) -> Reference | None:
        """A dotted expression at module level, also subscripted (``Generic[T]``)."""
        if isinstance(node, ast.Subscript):
            node = node.value
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        reference = self.in_module(facts, node.id)
        for part in reversed(parts):
            reference = self.attribute(reference, part)
        return reference

    def attribute(self, of: Reference | None, name: str) -> Reference | None:
        if isinstance(of, External):
            return External(knowledge.canonical(f"{of.name}.{name}"))
        if isinstance(of, ModuleRef):
            return self.dotted(f"{of.name}.{name}")
        if isinstance(of, ClassRef):
            return self.method(of, name)
        return None

    def members(self, of: ClassRef) -> dict[str, FunctionNode]:
        if of not in self._members:
            self._members[of] = methods_of(of.node)
        return self._members[of]

    def method(self, of: ClassRef, name: str, after: ClassRef | None = None) -> FunctionRef | None:
        """The method that an object of the class has, or the next one after `after` (for `super()`)."""
        found = self._method(of, name, after)
        self.questions.note(Question(of, "method", name, after), found and found.node)
        return found

    def _method(self, of: ClassRef, name: str, after: ClassRef | None) -> FunctionRef | None:
        classes = self.linearised(of)[0]
        if after is not None:
            classes = classes[classes.index(after) + 1 :] if after in classes else []
        for owner in classes:
            node = self.members(owner).get(name)
            if node is not None:
                return FunctionRef(node, owner.facts, owner, of=of)
        return None

    def only_method(self, name: str, *, telling: bool = False) -> FunctionRef | None:
        """The method that a call on an object of no known class means, as the project has just one of this name.

        A name of several words, that no framework has for anything that communicates: others are had by many objects.
        `telling`: the caller knows that it says whose it is.
        """
        if not telling and not communication.is_telling(name):
            return None
        return self.project.remember(name, lambda: self._only_method(name), self._only_methods)

    def _only_method(self, name: str) -> FunctionRef | None:
        found: list[FunctionRef] = []
        for path in self.project.contents.holding(f"def {name}("):
            facts = self.project.modules.facts_of(path)
            if facts is None or facts.source.is_test:
                continue
            for node in facts.tree.body:
                if isinstance(node, ast.ClassDef):
                    of = self.class_ref(node, facts)
                    method = self.members(of).get(name)
                    found += [FunctionRef(method, facts, of, of=of)] if method is not None else []
                elif isinstance(node, FunctionNode) and node.name == name:
                    return None
            if len(found) > 1:
                return None
        return found[0] if found else None

    def only_class(self, name: str, of: ClassRef | None) -> ClassRef | None:
        """The class of an object that is only known to be called `trainer` or the like, as the project has just one so
        called: what a hook is given, or is put into it from outside. Not in what derives from a framework's class."""
        if name not in communication.PROGRAMS or (of is not None and self.outside(of)):
            return None
        return self.project.remember(name, lambda: self._only_class(communication.PROGRAMS[name]), self._only_classes)

    def _only_class(self, name: str) -> ClassRef | None:
        files = (self.project.modules.facts_of(path) for path in self.project.contents.holding(f"class {name}"))
        held = ((facts, facts.definitions.get(name)) for facts in files if facts and not facts.source.is_test)
        found = [self.class_ref(node, facts) for facts, node in held if isinstance(node, ast.ClassDef)]
        return found[0] if len(found) == 1 and not self.outside(found[0]) else None

    def outside(self, of: ClassRef) -> tuple[str, ...]:
        """The classes of other packages that it inherits from."""
        found = self.linearised(of)[1]
        self.questions.note(Question(of, "bases"), found)
        return found

    def wrapper(self, of: ClassRef) -> str:
        """The wrapper for several ranks that a class of the project inherits from, and of which it leaves alone what
        communicates: ``class MyDDP(DistributedDataParallel)`` with a ``__getattr__``."""
        for name in self.outside(of):
            if known().wraps(name):
                return "" if any(self.method(of, method) for method in _communicating(name)) else name
        return ""

    def names(self, of: ClassRef) -> tuple[str, ...]:
        """The absolute names of the class and of all that it inherits from."""
        found, listed = self._names_and_listed(of)
        self.questions.note(Question(of, "listed"), listed)
        return found

    def listed(self, of: ClassRef) -> frozenset[str]:
        """What the configuration lists of its methods and attributes."""
        return self._names_and_listed(of)[1]

    def _names_and_listed(self, of: ClassRef) -> tuple[tuple[str, ...], frozenset[str]]:
        return self.project.remember(of, lambda: self._named(of), self._named_classes)

    def _named(self, of: ClassRef) -> tuple[tuple[str, ...], frozenset[str]]:
        classes, outside = self.linearised(of)
        found = (*(f"{each.facts.name}.{each.node.name}" for each in classes), *outside)
        return found, self.project.own.of_class(found)

    def is_module(self, of: ClassRef) -> bool:
        """Does calling an object of it run `forward`?"""
        return any(
            name.rpartition(".")[2] in ("Module", "LightningModule", "PreTrainedModel") or name.startswith("torch.nn.")
            for name in self.outside(of)
        )


class Called(NamedTuple):
    """What the knowledge has for a call on whatever object, by its last name."""

    uniform: bool
    rank: Rank | None
    gate: Gate | None
    source: Source | None


class Known:
    """The knowledge, indexed as the evaluation needs it."""

    def __init__(self) -> None:
        self._all = communication.load()
        self.collectives = self._all.collectives
        self.types = self._all.types
        self.gates = self._all.gates
        self.groups = self._all.groups
        self._made: dict[str, str] = {}
        #: What makes them in a package, and in all that is below a package.
        self._packages: dict[str, str] = {}
        self._below: list[tuple[str, str]] = []
        self._known_as: dict[str, str] = {}
        for type_ in self.types.values():
            for maker in type_.made_by:
                if maker.endswith(".**"):
                    self._below.append((maker[:-2], type_.name))
                elif maker.endswith(".*"):
                    self._packages[maker[:-2]] = type_.name
                else:
                    self._made[maker] = type_.name
            for name in type_.known_as:
                self._known_as.setdefault(name, type_.name)
        self._loose: dict[tuple[str, str], Rank] = {}
        for (what, _), rank in self._all.ranks.items():
            if rank.on and what in ("attribute", "method") and _TELLING.search(rank.name):
                self._loose.setdefault((what, rank.name), rank)
        #: Names of methods by which an object of a framework wraps a model: ``fabric.setup(model)``.
        named = ((*name.rpartition(".")[::2], entry.result) for name, entry in self.collectives.items())
        self.wrapping_methods = frozenset(
            method for of, method, result in named if of in self.types and any(map(self.is_parallel, result))
        )

    def rank(self, what: str, name: str, on: str = "") -> Rank | None:
        """The entry for a call, method, environment variable, attribute or name; `on` is the receiver's class."""
        ranks = self._all.ranks
        for class_ in self.ancestors(on) if on else ():
            found = ranks.get((what, f"{class_}.{name}"))
            if found is not None:
                return found
        return ranks.get((what, name)) or self._loose.get((what, name))

    @functools.lru_cache(maxsize=65_536)  # noqa: B019 - one object lives as long as the process
    def named_rank(self, what: str, name: str, on: str = "") -> Rank | None:
        """The same for a name that is not said to be the same on all ranks."""
        return None if self.is_uniform(what, name) else self.rank(what, name, on)

    @functools.lru_cache(maxsize=16_384)  # noqa: B019 - one object lives as long as the process
    def called(self, name: str) -> Called:
        anywhere = f"*.{name}"
        return Called(
            self.is_uniform("call", anywhere),
            self.rank("call", anywhere),
            self.gates.get(anywhere),
            self.source("method", name),
        )

    @functools.lru_cache(maxsize=16_384)  # noqa: B019 - one object lives as long as the process
    def source(self, what: str, name: str) -> Source | None:
        found = self._all.sources.get((what, name))
        if found is None and "." in name:
            found = self._all.sources.get((what, name.rpartition(".")[0] + ".*"))
        return found

    def is_uniform(self, what: str, name: str) -> bool:
        return (what, name) in self._all.uniforms

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - one object lives as long as the process
    def ancestors(self, name: str) -> tuple[str, ...]:
        """The type and the types whose entries hold for it, nearest first."""
        found = [name]
        for current in found:
            type_ = self.types.get(current)
            found += [base for base in type_.bases if base not in found] if type_ else []
            found += [base for base in _bases(current) if base not in found]
        return tuple(found)

    def type_of(self, call: str) -> str:
        """The class of what an external call returns; '' when unknown."""
        if call in self.types:
            return call
        if call in self._made:
            return self._made[call]
        entry = self.collectives.get(call)
        if entry is not None and len(entry.result) == 1:
            return entry.result[0]
        head, _, last = call.rpartition(".")
        if last[:1].isupper():
            below = (name for prefix, name in self._below if call.startswith(prefix))
            if name := self._packages.get(head) or next(below, ""):
                return name
            return call if any(base in self.types for base in _bases(call)) else ""
        return ""

    def guessed_type(self, receiver: str) -> str:
        return self._known_as.get(receiver.rpartition(".")[2], "")

    @functools.lru_cache(maxsize=256)  # noqa: B019 - one object lives as long as the process
    def known_as(self, class_: str) -> tuple[str, ...]:
        """Other classes whose objects have a name in common with those of this one."""
        names = set(self.types[class_].known_as) if class_ in self.types else set[str]()
        return tuple(of.name for of in self.types.values() if of.name != class_ and names & set(of.known_as))

    def method(self, class_: str, name: str) -> Collective | None:
        for ancestor in self.ancestors(class_):
            entry = self.collectives.get(f"{ancestor}.{name}")
            if entry is not None:
                return entry
        return None

    def group(self, name: str) -> GroupSource | None:
        return self.groups.get(name) or self.groups.get("*." + name.rpartition(".")[2])

    def gate(self, name: str) -> Gate | None:
        return self.gates.get(name) or self.gates.get("*." + name.rpartition(".")[2])

    def wraps(self, class_: str) -> bool:
        type_: Type | None = self.types.get(class_)
        return type_ is not None and type_.wraps

    def is_metric(self, class_: str) -> bool:
        """Is it a class of what ranks combine their counts with: ``torchmetrics.Accuracy``?"""
        return self.method(class_, "compute") is not None

    def is_parallel(self, class_: str) -> bool:
        """Is it the class of a model whose forward concerns all ranks, wrapped or sharded in place?"""
        forward = self.method(class_, "__call__") if class_ in self.types else None
        return self.wraps(class_) or (forward is not None and forward.kind == "forward")

    def is_replica(self, class_: str) -> bool:
        """Is it the class of a model that each rank has all of? The module inside it communicates with nobody."""
        forward = self.method(class_, "__call__") if class_ in self.types else None
        return forward is not None and forward.kind == "forward" and forward.when == "buffers"


@functools.lru_cache(maxsize=4096)
def _bases(name: str) -> tuple[str, ...]:
    bases = frameworks.bases()
    return bases.get(name) or bases.get(f"{name.rpartition('.')[0]}.*") or ()


@functools.lru_cache(maxsize=256)
def _communicating(class_: str) -> tuple[str, ...]:
    """The methods by which its objects communicate."""
    return tuple(name.rpartition(".")[2] for name in known().collectives if name.rpartition(".")[0] == class_)


def iterated(node: ast.AST) -> ast.expr | None:
    """What ``enumerate(loader)``, ``tqdm(iterable=loader)`` goes over; None where the call does not name it."""
    if not isinstance(node, ast.Call):
        return None
    return node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "iterable"), None)


@functools.cache
def known() -> Known:
    return Known()

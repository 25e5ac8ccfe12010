"""The walk from what is started to what it comes to.

A program imports modules, names functions and classes, and calls methods. The walk follows all of that by names: what a
name leads to where imports and definitions show it, any method of that name of a class that is reached where they do
not. So it finds more than what runs, and what it does not find runs in no program of the project. Names that the code
does not have (in settings and commands, computed ones) lead to all that they may mean.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import posixpath
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeAlias, TypeVar

from ddp_lint.launch.reached.index import TELLING, Bodies, Body, top_folder
from ddp_lint.launch.reached.names import (
    ANY_OBJECT,
    MODULE,
    OWN_MODULE,
    PROGRAM,
    SUPER,
    FileNames,
    Names,
    body_at,
    names_of,
)
from ddp_lint.launch.texts import calls_of_notebooks, calls_of_texts, is_installed, words_of_settings, words_of_texts
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.results import OfNames
from ddp_lint.source.file import place_kind

_T = TypeVar("_T", bound=Hashable)
_OWN_OBJECT = frozenset({"self", "cls"})
#: For whom something is found: the programs that come to it, as bits.
_Bits: TypeAlias = dict[_T, int]
#: Files of a project that are read: in a larger one all counts as reached.
_FILES = 2500
#: Letters of a part of a name by which a name that is put together is found.
_PART = 3
#: Methods that torch and other packages call by their names on any object, or that Python does.
CALLED = re.compile(
    r"__\w+__|_(?!get_name|named_)[a-z]\w*_(hook|impl|dict)|on_\w+|configure_\w+|\w+_(step|dataloader|hook|begin|end)"
    r"|forward|backward|setup_context|step|train|eval|fit|predict|transform|collate|process|run|setup|teardown|close|write"
    r"|flush|read|update|compute|reset|reset_parameters|extra_repr|state_dict|load_state_dict|parameters|to|cuda|apply|_apply"
)


@dataclasses.dataclass(frozen=True)
class Reached(OfNames):
    """The files that are started, and for each body which of them come to it, as bits: the first file is the lowest.
    The bit above is that of all of them together: a module that one of them imports by its name is not what another
    one may import by a computed name. Above that each has a second bit, for what its own code and the settings come to:
    a notebook or a page calls what others start."""

    programs: tuple[str, ...] = ()
    bits: Mapping[Body, int] = dataclasses.field(default_factory=dict)

    def coming_to(self, body: Body) -> frozenset[str]:
        """The files of the programs that come to a body."""
        bits = self.bits.get(body, 0)
        return frozenset(file for place, file in enumerate(self.programs) if bits >> place & 1)

    def coming_by_code(self, body: Body) -> frozenset[str]:
        """The files of the programs that come to a body themselves, not only what a notebook or a page calls."""
        bits = self.bits.get(body, 0) >> (len(self.programs) + 1)
        return frozenset(file for place, file in enumerate(self.programs) if bits >> place & 1)

    def has(self, body: Body) -> bool:
        """Whether all of them together come to a body."""
        return bool(self.bits.get(body, 0) >> len(self.programs) & 1)


def is_never_reached_from_programs(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether no program of the project comes to the function, class or method that a line of a file is in, where one
    imports the module. False where the programs are not seen: of a package that is installed, of a project without
    any."""
    if facts.source.is_test:
        return False
    body = body_at(facts.tree, line)
    left: bool = project.remember(("never reached", body), lambda: _is_apart(project, facts, body), facts.kept)
    return left


def _is_apart(project: Project, facts: ModuleFacts, body: str) -> bool:
    path = project.modules.find(facts.name)
    if path is None or is_installed(project, facts):
        return False
    inside, found = project.paths.inside(path), reached(project)
    # Of a module that no program imports, the users are not seen.
    return found.has((inside, MODULE)) and not found.has((inside, body))


def is_never_imported(project: Project, facts: ModuleFacts) -> bool:
    """Whether no program of the project imports the module of a file, while they import another one of its folder.
    False where the programs are not seen, and of what lies at the root of the project."""
    path, found = project.modules.find(facts.name), reached(project)
    inside = project.paths.inside(path) if path is not None else ""
    bodies = _bodies(project) if inside and found.programs else None
    if bodies is None or inside not in bodies.modules or found.has((inside, MODULE)):
        return False
    folder = posixpath.dirname(inside)
    beside = (file for file in bodies.modules if posixpath.dirname(file) == folder and file not in found.programs)
    return folder != "" and any(found.has((file, MODULE)) for file in beside)


def is_unreached_in_package(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether no program of a project that is installed as a package comes to the function, class or method that a line
    is in, while it has programs. Others may use that, but nothing here shows how, and whether they train by it."""
    path, found = project.modules.find(facts.name), reached(project)
    if path is None or facts.source.is_test or not is_installed(project, facts) or not found.programs:
        return False
    return not found.has((project.paths.inside(path), body_at(facts.tree, line)))


def is_reached_from(project: Project, program: str, facts: ModuleFacts, line: int) -> bool:
    """Whether one program, by the name of its module, may come to what a line of a file is in. True where that is not
    seen."""
    start, path = project.modules.find(program), project.modules.find(facts.name)
    if start is None or path is None:
        return True
    file, body = project.paths.inside(start), (project.paths.inside(path), body_at(facts.tree, line))
    found = reached(project)
    if file not in found.programs:  # nothing else shows that it is started
        found = project.remember(("reached bodies", file), lambda: _walked(project, file))
    return not found.programs or file in found.coming_to(body)


def reached(project: Project) -> Reached:
    """What the programs of the project come to; nothing where they are not seen."""
    return project.remember(("reached bodies",), lambda: _walked(project, ""))


def _walked(project: Project, program: str) -> Reached:
    """What all programs come to, or one file, which nothing else shows to be one."""
    bodies = _bodies(project)
    settings, texts = words_of_settings(project), [calls_of_notebooks(project), calls_of_texts(project)]
    if bodies is None or settings is None or None in texts or (program and program not in bodies.modules):
        return Reached()
    named = settings.union(*(words or () for words in texts))
    with project.recording(apart=True):  # where modules lie follows from the names of the files
        started = [(program, MODULE)] if program else list(bodies.programs(named))
        programs = tuple(dict.fromkeys(file for file, _ in started))
        together = 1 << len(programs)
        by_code = together << 1
        own = {file: 1 << place | by_code << place | together for place, file in enumerate(programs)}
        every = (by_code << len(programs)) - 1
        told = by_code - 1
        found = dict.fromkeys(named - settings, told) | dict.fromkeys(settings, every)
        walk = _Walk(bodies, found, words_of_texts(project), every, told)
        return Reached(programs, walk.reached((file, body, own[file]) for file, body in started))


def _bodies(project: Project) -> Bodies | None:
    """The bodies of the files of the project; None where they are too many."""
    return project.remember(("bodies",), lambda: _bodies_of(project))


def _bodies_of(project: Project) -> Bodies | None:
    files = [inside for inside in project.contents.named("*.py") if place_kind(inside) != "test"]
    if len(files) > _FILES:
        return None
    tables = {inside: found for inside in files if (found := _names_in(project, inside)) is not None}
    with project.recording(apart=True):  # where modules lie follows from the names of the files
        return Bodies(project, tables)


def _names_in(project: Project, inside: str) -> FileNames | None:
    """What a file names: it is read again only after it has changed, not with each change of another one."""
    return project.remember(("names of bodies", inside), lambda: _names(project, inside))


def _names(project: Project, inside: str) -> FileNames | None:
    text = project.texts.read_for(inside, "names")
    return names_of(text) if text is not None else None


def _stem(inside: str) -> str:
    """The name of the module in a file, of a package that of its folder."""
    return posixpath.basename(inside.removesuffix("/__init__.py")).removesuffix(".py")


def plain(name: str) -> str:
    """A name in one spelling: ``unet_small`` and `UNetSmall` are one."""
    return name.replace("_", "").lower()


def _added(found: _Bits[_T], key: _T, bits: int) -> int:
    """Add bits to what something has; those that it lacked."""
    had = found.get(key, 0)
    new = bits & ~had
    if new:
        found[key] = had | new
    return new


class _Walk:
    """One walk over the bodies of a project, for all programs at once: what is found is found for some of them, whose
    bits it has. `named`: what settings name, and what texts and notebooks call, each for these. `words`: all that texts
    hold, None for anything. `every`: the bits of all programs; `told`: those of them for what texts call too."""

    def __init__(
        self, bodies: Bodies, named: Mapping[str, int], words: frozenset[str] | None, every: int, told: int
    ) -> None:
        self._bodies = bodies
        self._modules = bodies.modules
        self._outside = named
        self._words = words
        self._every = every
        self._told = told
        #: Modules are imported by names that are computed; by those of the files in folders; from below a folder of
        #: this name, or from below this path; all that such a module has is taken.
        self._computed = 0
        self._listed = 0
        self._below: _Bits[str] = {}
        self._around: _Bits[str] = {}
        self._all_of_them = 0
        #: The files of which something may take all that they have.
        self._whole: _Bits[str] = {}
        #: Something is looked up by a name that the code does not have, in an object of any kind; in anything but the
        #: object itself.
        self._by_names = 0
        self._taking = 0
        self._found: _Bits[Body] = {}
        #: What is to be followed, for which programs.
        self._queue = collections.OrderedDict[Body, int]()
        #: What bodies that are reached mention: attributes, strings, parts of names that they put together.
        self._attributes: _Bits[str] = {}
        self._strings: _Bits[str] = {}
        self._composed: _Bits[str] = {}
        #: Classes of which objects are made, and the methods that these have.
        self._made: _Bits[Body] = {}
        self._had: _Bits[Body] = {}
        #: By family of classes: the methods that are called on its objects, and those that methods call as a base has
        #: them ("" for any).
        self._asked: dict[int, _Bits[str]] = collections.defaultdict(dict)
        self._of_base: dict[int, _Bits[str]] = collections.defaultdict(dict)

    def reached(self, started: Iterable[tuple[str, str, int]]) -> _Bits[Body]:
        for inside, body, bits in started:
            self._add_module(inside, bits)
            self._add(inside, body, bits)
        while self._queue or self._add_others():
            while self._queue:
                (inside, body), bits = self._queue.popitem(last=False)
                self._follow(inside, body, bits)
        return self._found

    def _add(self, inside: str, body: str, bits: int) -> None:
        """A body that is run; of a class, objects may be made."""
        if bits and body in self._modules[inside].names.bodies:
            self._enter(inside, body, bits)
            if body in self._modules[inside].names.bases:
                self._make(inside, body, bits)

    def _enter(self, inside: str, body: str, bits: int) -> None:
        """A body that is run, of a class no more than that: another one inherits from it."""
        new = _added(self._found, (inside, body), bits)
        if new:
            self._queue[inside, body] = self._queue.get((inside, body), 0) | new

    def _add_module(self, inside: str, bits: int) -> None:
        """A module that is imported runs its statements, and those of the packages around it; what a registry gets by
        a decorator is found there by whoever asks it."""
        new = bits & ~self._found.get((inside, MODULE), 0)
        if not new:
            return
        self._enter(inside, MODULE, new)
        names = self._modules[inside].names
        for name, given in names.decorators.items():
            if "." not in name and not all(self._bodies.keeps_name(inside, each) for each in given):
                self._add(inside, name, new)
        folder = posixpath.dirname(inside)
        while folder:
            package = f"{folder}/__init__.py"
            if package in self._modules:
                self._add_module(package, new)
            folder = posixpath.dirname(folder)

    def _add_others(self) -> bool:
        """Add what names that the code does not have may lead to, once all else is found."""
        composed = self._composed_of(set(map(_stem, self._modules))) if self._computed else {}
        for inside in self._modules if self._computed else ():
            self._add_computed(inside, composed.get(_stem(inside), 0))
        named = {name: self._outside[name] for name in self._outside.keys() & self._bodies.with_name.keys()}
        # Nothing in the code leads from a string to what it names where nothing takes anything by a name.
        taking = self._taking if self._bodies.taking_kinds == frozenset() else self._every
        for name in self._strings.keys() & self._bodies.with_name.keys():
            _added(named, name, self._strings[name] & (self._told | taking))
        if self._computed:
            for name in self._bodies.with_name:
                bits = self._attributes.get(name, 0) | (self._every if self._is_worded(name) else 0)
                _added(named, name, bits & self._computed)
            for name, bits in self._composed_of(self._bodies.with_name).items():
                _added(named, name, bits & self._computed)
        for name, bits in named.items():
            for inside, body in self._bodies.with_name[name]:
                self._add(inside, body, bits & self._found.get((inside, MODULE), 0))
        if self._by_names:
            for name, bits in self._composed_of(self._bodies.with_method).items():
                self._mention([name], bits & self._by_names)
        return bool(self._queue)

    def _add_computed(self, inside: str, composed: int) -> None:
        """Add a module that may be what is imported by a computed name: the name is in a text or a string of the
        project, or is put together (`composed`: by which programs), or is that of a file in a folder. Who takes all
        that a module has may use that."""
        new = self._computed & ~(self._found.get((inside, MODULE), 0))
        if new:
            worded = self._is_worded(_stem(inside))
            named = new if worded else new & (composed | self._folders_named(inside))
            self._add_module(inside, named)
            # Of one that nothing has the name of, who uses what it holds is not seen.
            for body in self._modules[inside].names.bodies.keys() - {PROGRAM} if named and not worded else ():
                self._add(inside, body, named)
        of_kinds = not self._bodies.taking_kinds.isdisjoint(("", top_folder(inside)))
        whole = (self._computed if of_kinds else self._all_of_them) & self._found.get((inside, MODULE), 0)
        for body in self._modules[inside].names.bodies.keys() - {PROGRAM} if whole else ():
            self._add(inside, body, whole)

    def _folders_named(self, inside: str) -> int:
        """The programs that list folders for the names of modules, or name a folder in which a module lies."""
        bits = self._listed
        for folder in posixpath.dirname(inside.removesuffix("/__init__.py")).split("/"):
            bits |= self._below.get(folder, 0) | self._composed.get(folder, 0)
        above = posixpath.dirname(inside)
        while True:
            bits |= self._around.get(above, 0)
            if not above:
                return bits
            above = posixpath.dirname(above)

    def _is_worded(self, name: str) -> bool:
        """Whether a string or a text of the project has a name, in whatever spelling: ``unet_small`` of `UNetSmall`."""
        return self._words is None or plain(name) in self._spellings

    @functools.cached_property
    def _spellings(self) -> frozenset[str]:
        bodies = (body for module in self._modules.values() for body in module.names.bodies.values())
        strings = (text for body in bodies for text in body.strings)
        parts = (part for text in strings for part in (text, *re.split(r"[.:/]", text.removesuffix(".py"))))
        return frozenset(map(plain, (*parts, *(self._words or ()))))

    def _compute(self, inside: str, names: Names, bits: int) -> None:
        """Modules are imported by names that a body of a file computes."""
        self._computed |= bits
        table = self._modules[inside].names
        self._listed |= bits if table.lists else 0
        self._all_of_them |= bits if table.takes_all else 0
        if table.beside:
            _added(self._around, posixpath.dirname(inside), bits)
        for text in names.strings:
            for part in re.split(r"[.:/]", text):
                _added(self._below, part, bits)

    def _composed_of(self, names: Iterable[str]) -> _Bits[str]:
        """Those of some names that the code may put together: of a part that it has, or by changing the case of a
        string."""
        parts = [part for part in self._composed if len(part) >= _PART]
        either = re.compile("|".join(map(re.escape, parts))) if parts else None
        found: _Bits[str] = {}
        for name in names:
            if either is not None and either.search(name):
                ends = range(_PART, len(name) + 1)
                pieces = {name[start:end] for end in ends for start in range(end - _PART + 1)}
                found[name] = functools.reduce(int.__or__, (self._composed.get(piece, 0) for piece in pieces))
        if "" in self._composed:
            strings = {text.lower(): self._every for text in self._outside}
            for text, bits in self._strings.items():
                _added(strings, text.lower(), bits)
            for name in names:
                _added(found, name, self._composed[""] & strings.get(name.lower(), 0))
        return found

    # ---- one body

    def _follow(self, inside: str, body: str, bits: int) -> None:
        names = self._modules[inside].names.bodies[body]
        owner = body.rpartition(".")[0]
        for target in names.imports:
            for file in self._bodies.files_of(inside, target):
                self._add_module(file, bits)
        for dotted in names.dotted:
            self._follow_name(inside, owner, dotted, bits)
        self._mention(names.attributes, bits)
        for made in names.on_made:
            call, _, attribute = made.partition(":")
            self._follow_made(inside, call, attribute, bits)
        self._follow_strings(names, bits)
        for part in names.composed:
            _added(self._composed, part, bits)
        for of in names.looked_up:
            self._look_up(inside, owner, of, bits)
        if names.imports_computed or not names.looked_up <= _OWN_OBJECT:
            self._taking |= bits
        if names.imports_computed:
            self._compute(inside, names, bits)
        if body in self._modules[inside].names.bases:
            self._inherit(inside, body, bits)

    def _mention(self, attributes: Iterable[str], bits: int) -> None:
        """An attribute of some object: any method of that name."""
        for name in attributes:
            new = _added(self._attributes, name, bits)
            for method in self._bodies.with_method.get(name, ()) if new else ():
                self._add_if_had(*method, new)

    def _follow_strings(self, names: Names, bits: int) -> None:
        for text in names.strings:
            parts = re.split(r"[.:/]", text.removesuffix(".py"))
            for part in (text, parts[-1]):
                _added(self._strings, part, bits)
            self._mention(parts[-1:], bits)
            if len(parts) > 1 or (names.imports_computed and len(text) >= TELLING):
                counts = range(len(parts), 0, -1)
                files = next(filter(None, (self._bodies.named_by(parts, count) for count in counts)), [])
                for file in files:
                    self._add_module(file, bits)

    def _follow_name(self, inside: str, owner: str, dotted: str, bits: int) -> None:
        first, _, rest = dotted.partition(".")
        if first in ("self", "cls") and owner:
            name, _, others = rest.partition(".")
            if name:
                self._add_methods(inside, owner, name, bits)
            self._mention(others.split(".") if others else (), bits)
            return
        if first == SUPER and owner:
            self._add_of_base(inside, owner, rest, bits)
            return
        found = self._bodies.meanings(inside, first, rest)
        for file, name in found:
            self._add_meaning(file, name, bits)
        made = self._modules[inside].names.made.get(first) if rest and not found else None
        if made is not None:
            attribute, _, others = rest.partition(".")
            self._follow_made(inside, made, attribute, bits)
            self._mention(others.split(".") if others else (), bits)
            return
        # What a variable holds, of the function or of a module, may be an object of any class.
        if rest and not any(name for _, name in found) and not self._bodies.is_foreign(inside, first):
            self._mention(rest.split("."), bits)

    def _follow_made(self, inside: str, call: str, attribute: str, bits: int) -> None:
        """What a variable has that holds the object that a call gives: of a class of the project its own methods, else
        any of that name."""
        first, _, rest = call.partition(".")
        found = self._bodies.meanings(inside, first, rest)
        if found and all(self._bodies.makes_own_objects(*each) for each in found):
            for file, name in found:
                self._add_methods(file, name, attribute, bits)
        else:
            self._mention([attribute], bits)

    def _add_meaning(self, file: str, name: str, bits: int) -> None:
        """What a name of a module is, with what follows it: ``Trainer.load``, ``make.cache``."""
        head, _, rest = name.partition(".")
        self._add_module(file, bits)
        if not head:
            return
        method, _, others = rest.partition(".")
        if rest and head in self._modules[file].names.bases:
            self._add_on_class(file, head, method, bits)
        else:
            self._add(file, head, bits)
            self._mention([method] if rest else (), bits)
        self._mention(others.split(".") if others else (), bits)

    def _inherit(self, inside: str, owner: str, bits: int) -> None:
        """What a class comes to as it is defined: those that it inherits from, methods that a decorator keeps, and what
        methods of those that inherit from it have called."""
        for file, base in self._bodies.inherited_by((inside, owner)):
            self._enter(file, base, bits)
        names, called = self._modules[inside].names, self._of_base[self._bodies.family_of[inside, owner]]
        for body in self._bodies.methods_of[inside, owner]:
            kept = all(self._bodies.keeps_name(inside, each) for each in names.decorators.get(body, set()))
            asked = called.get("", 0) | called.get(body.rpartition(".")[2], 0)
            self._add(inside, body, bits & asked if kept else bits)

    def _make(self, inside: str, owner: str, bits: int) -> None:
        """The methods of a class that are called without the code of the project naming them on one of its objects."""
        new = _added(self._made, (inside, owner), bits)
        if not new:
            return
        foreign = self._bodies.has_foreign_base((inside, owner))
        asked = self._asked[self._bodies.family_of[inside, owner]]
        for name, methods in self._bodies.had_by((inside, owner)).items():
            called = self._attributes.get(name, 0) | asked.get(name, 0) | asked.get("", 0)
            for method in methods:
                _added(self._had, method, new)
                self._add(*method, new if foreign or CALLED.fullmatch(name) else new & called)

    def _add_methods(self, inside: str, owner: str, name: str, bits: int) -> None:
        """A method that is called on an object of a class: that of the class, of those that it inherits from and of
        those that inherit from it, and so on; "" for any."""
        family = self._bodies.family_of.get((inside, owner))
        new = _added(self._asked[family], name, bits) if family is not None else 0
        for method in self._methods(family, name) if family is not None and new else ():
            self._add_if_had(*method, new)

    def _methods(self, family: int, name: str) -> Iterable[Body]:
        methods = self._bodies.methods[family]
        return methods.get(name, ()) if name else itertools.chain(*methods.values())

    def _add_of_base(self, inside: str, owner: str, name: str, bits: int) -> None:
        """A method that one of a class calls as a class has it that the object's own inherits from; "" for any."""
        family = self._bodies.family_of.get((inside, owner))
        new = _added(self._of_base[family], name, bits) if family is not None else 0
        for file, method in self._methods(family, name) if family is not None and new else ():
            self._add(file, method, new & self._found.get((file, method.rpartition(".")[0]), 0))

    def _add_on_class(self, inside: str, owner: str, name: str, bits: int) -> None:
        """What is taken from a class itself: a function needs no object of it."""
        found = self._bodies.had_by((inside, owner)).get(name, set())
        kinds = (self._modules[file].names.decorators.get(method, set()) for file, method in found)
        if not found or any(kind - {"staticmethod"} for kind in kinds):
            self._add(inside, owner, bits)
            self._add_methods(inside, owner, name, bits)
        self._enter(inside, owner, bits)
        for method in found:
            self._add(*method, bits)

    def _add_if_had(self, inside: str, method: str, bits: int) -> None:
        self._add(inside, method, bits & self._had.get((inside, method), 0))

    def _look_up(self, inside: str, owner: str, of: str, bits: int) -> None:
        """Something is taken by a name that the code does not have: all that it may be."""
        first, _, rest = of.partition(".")
        if of == ANY_OBJECT:
            self._by_names |= bits
        elif of == OWN_MODULE:
            self._add_all(inside, bits)
        elif of in ("self", "cls") and owner:
            self._add_methods(inside, owner, "", bits)
        else:
            known = self._bodies.meanings(inside, first, rest) if first != "self" else ()
            for file, name in known:
                if not name:
                    self._add_all(file, bits)
                elif name in self._modules[file].names.bases:
                    for method in itertools.chain(*self._bodies.had_by((file, name)).values()):
                        self._add_if_had(*method, bits)
            # In an object of any kind.
            if not known and not self._bodies.is_foreign(inside, first):
                self._by_names |= bits

    def _add_all(self, inside: str, bits: int) -> None:
        """All definitions that a module has, those that it imports too."""
        if not _added(self._whole, inside, bits):
            return
        self._add_module(inside, bits)
        names = self._modules[inside].names
        for body in names.bodies:
            if body != PROGRAM and "." not in body:
                self._add(inside, body, bits)
        for local, targets in names.imported_as.items():
            for file, name in self._bodies.meanings(inside, local, ""):
                self._add_meaning(file, name, bits)
            for target in targets if local == "*" else ():
                for file in self._bodies.files_of(inside, target):
                    self._add_all(file, bits)

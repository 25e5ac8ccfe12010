"""The walk from what is started to what it comes to.

A program imports modules, names functions and classes, and calls methods. The walk follows all of that by names: what a
name leads to where imports and definitions show it, any method of that name of a class that is reached where they do
not. So it finds more than what runs, and what it does not find runs in no program of the project. Names that the code
does not have (in settings and commands, computed ones) lead to all that they may mean.
"""

from __future__ import annotations

import collections
import itertools
import pathlib
import posixpath
import re
from collections.abc import Iterable

from ddp_lint.launch.reached.index import TELLING, Bodies, Body
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
from ddp_lint.launch.texts import calls_of_notebooks, calls_of_texts, is_installed, words_of_settings
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.file import place_kind

#: Files of a project that are read: in a larger one all counts as reached.
_FILES = 600
#: Letters of a part of a name by which a name that is put together is found.
_PART = 3
#: Methods that torch and other packages call by their names on any object, or that Python does.
_CALLED = re.compile(
    r"__\w+__|_(?!get_name|named_)[a-z]\w*_(hook|impl|dict)|on_\w+|configure_\w+|\w+_(step|dataloader|hook|begin|end)"
    r"|forward|backward|setup_context|step|train|eval|fit|predict|transform|collate|process|run|setup|teardown|close|write"
    r"|flush|read|update|compute|reset|reset_parameters|extra_repr|state_dict|load_state_dict|parameters|to|cuda|apply|_apply"
)


def is_never_reached_from_programs(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether no program of the project comes to the function, class or method that a line of a file is in, where one
    imports the module. False where the programs are not seen: of a package that is installed, of a project without
    any."""
    path = project.find(facts.name)
    if path is None or facts.source.is_test or is_installed(project):
        return False
    inside, reached = project.inside(path), _reached(project)
    # Of a module that no program imports, the users are not seen.
    return (inside, MODULE) in reached and (inside, body_at(facts.tree, line)) not in reached


def is_reached_from(project: Project, program: ModuleFacts, facts: ModuleFacts, line: int) -> bool:
    """Whether one program, a file that is started, may come to what a line of a file is in. True where that is not
    seen."""
    start, path = project.find(program.name), project.find(facts.name)
    reached = _reached(project, project.inside(start)) if start is not None else frozenset[Body]()
    return not reached or path is None or (project.inside(path), body_at(facts.tree, line)) in reached


def _reached(project: Project, program: str = "") -> frozenset[Body]:
    """The bodies that all programs of the project come to, or the one in a file; none where that is not seen."""
    return project.remember(("reached bodies", program), lambda: _walked(project, program))


def _walked(project: Project, program: str) -> frozenset[Body]:
    bodies = _bodies(project)
    texts = [words_of_settings(project), calls_of_notebooks(project), calls_of_texts(project)]
    if bodies is None or None in texts or (program and program not in bodies.modules):
        return frozenset()
    named = frozenset[str]().union(*(words or () for words in texts))
    with project.recording(apart=True):  # where modules lie follows from the names of the files
        started = project.remember(("started bodies",), lambda: list(bodies.programs(named)))
        if program:
            started = [(program, MODULE), *(each for each in started if each[0] == program)]
        return _Walk(bodies, named).reached(started) if started else frozenset()


def _bodies(project: Project) -> Bodies | None:
    """The bodies of the files of the project; None where they are too many."""
    return project.remember(("bodies",), lambda: _bodies_of(project))


def _bodies_of(project: Project) -> Bodies | None:
    files = [inside for inside in project.named("*.py") if place_kind(inside) != "test"]
    if len(files) > _FILES:
        return None
    tables = {inside: found for inside in files if (found := _names(project, inside)) is not None}
    with project.recording(apart=True):  # where modules lie follows from the names of the files
        return Bodies(project, tables)


def _names(project: Project, inside: str) -> FileNames | None:
    path = project.absolute(inside)
    if not project.tested(path, "names"):
        return None
    with project.recording(apart=True):  # it depends on no more of the text
        return names_of(project.text(pathlib.Path(path)) or "")


class _Walk:
    """One walk over the bodies of a project. `named`: what settings name, and what texts and notebooks call."""

    def __init__(self, bodies: Bodies, named: frozenset[str]) -> None:
        self._bodies = bodies
        self._modules = bodies.modules
        self._outside = named
        #: Modules are imported by names that the code does not have.
        self._all_modules = False
        #: Something is looked up by a name that the code does not have, in an object of any kind.
        self._by_names = False
        self._found = set[Body]()
        self._queue: list[Body] = []
        #: What bodies that are reached mention: attributes, strings, parts of names that they put together.
        self._attributes, self._strings, self._composed = set[str](), set[str](), set[str]()
        #: Classes of which objects are made, and the methods that these have.
        self._made, self._had = set[Body](), set[Body]()
        #: By family of classes: the methods that are called on its objects, and those that methods call as a base has
        #: them ("" for any).
        self._asked, self._of_base = (collections.defaultdict[int, set[str]](set) for _ in range(2))

    def reached(self, started: Iterable[Body]) -> frozenset[Body]:
        for inside, body in started:
            self._add_module(inside)
            self._add(inside, body)
        while self._queue or self._add_others():
            while self._queue:
                self._follow(*self._queue.pop())
        return frozenset(self._found)

    def _add(self, inside: str, body: str) -> None:
        """A body that is run; of a class, objects may be made."""
        if body in self._modules[inside].names.bodies:
            self._enter(inside, body)
            if body in self._modules[inside].names.bases and (inside, body) not in self._made:
                self._make(inside, body)

    def _enter(self, inside: str, body: str) -> None:
        """A body that is run, of a class no more than that: another one inherits from it."""
        if (inside, body) not in self._found:
            self._found.add((inside, body))
            self._queue.append((inside, body))

    def _add_module(self, inside: str) -> None:
        """A module that is imported runs its statements, and those of the packages around it; what a registry gets by
        a decorator is found there by whoever asks it."""
        if (inside, MODULE) in self._found:
            return
        self._add(inside, MODULE)
        names = self._modules[inside].names
        for name, given in names.decorators.items():
            if "." not in name and not all(self._bodies.keeps_name(inside, each) for each in given):
                self._add(inside, name)
        folder = posixpath.dirname(inside)
        while folder:
            package = f"{folder}/__init__.py"
            if package in self._modules:
                self._add_module(package)
            folder = posixpath.dirname(folder)

    def _add_others(self) -> bool:
        """Add what names that the code does not have may lead to, once all else is found."""
        before = len(self._found)
        for inside, module in self._modules.items() if self._all_modules else ():
            # Whoever imports it by a computed name may do anything with what it has.
            if (inside, MODULE) not in self._found:
                self._add_module(inside)
                for body in module.names.bodies:
                    self._add(inside, body)
        named = self._strings | self._outside
        if self._all_modules:
            named |= self._attributes | self._composed_of(self._bodies.with_name)
        for name in named & self._bodies.with_name.keys():
            for inside, body in self._bodies.with_name[name]:
                if (inside, MODULE) in self._found:
                    self._add(inside, body)
        if self._by_names:
            self._mention(self._composed_of(self._bodies.with_method))
        return len(self._found) > before

    def _composed_of(self, names: Iterable[str]) -> set[str]:
        """Those of some names that the code may put together: of a part that it has, or by changing the case of a
        string."""
        parts = [part for part in self._composed if len(part) >= _PART]
        either = re.compile("|".join(map(re.escape, parts))) if parts else None
        found = {name for name in names if either is not None and either.search(name)}
        if "" in self._composed:
            strings = {text.lower() for text in (*self._strings, *self._outside)}
            found |= {name for name in names if name.lower() in strings}
        return found

    # ---- one body

    def _follow(self, inside: str, body: str) -> None:
        names = self._modules[inside].names.bodies[body]
        owner = body.rpartition(".")[0]
        for target in names.imports:
            for file in self._bodies.files_of(inside, target):
                self._add_module(file)
        for dotted in names.dotted:
            self._follow_name(inside, owner, dotted)
        self._mention(names.attributes)
        self._follow_strings(names)
        self._composed |= names.composed
        for of in names.looked_up:
            self._look_up(inside, owner, of)
        self._all_modules |= names.imports_computed
        if body in self._modules[inside].names.bases:
            self._inherit(inside, body)

    def _mention(self, attributes: Iterable[str]) -> None:
        """An attribute of some object: any method of that name."""
        for name in set(attributes) - self._attributes:
            self._attributes.add(name)
            for file, method in self._bodies.with_method[name]:
                self._add_if_had(file, method)

    def _follow_strings(self, names: Names) -> None:
        for text in names.strings:
            parts = re.split(r"[.:/]", text.removesuffix(".py"))
            self._strings.update((text, parts[-1]))
            self._mention(parts[-1:])
            if len(parts) > 1 or names.imports_computed:
                for count in range(len(parts), 0, -1):
                    if parts[count - 1] in self._bodies.stems and (len(parts) > 1 or len(parts[0]) >= TELLING):
                        for file in self._bodies.stems[parts[count - 1]]:
                            self._add_module(file)
                        break

    def _follow_name(self, inside: str, owner: str, dotted: str) -> None:
        first, _, rest = dotted.partition(".")
        if first in ("self", "cls") and owner:
            name, _, others = rest.partition(".")
            self._add_methods(inside, owner, name)
            self._mention(others.split(".") if others else ())
            return
        if first == SUPER and owner:
            self._add_of_base(inside, owner, rest)
            return
        found = self._bodies.meanings(inside, first, rest)
        for file, name in found:
            self._add_meaning(file, name)
        # What a variable holds, of the function or of a module, may be an object of any class.
        if rest and not any(name for _, name in found) and not self._bodies.is_foreign(inside, first):
            self._mention(rest.split("."))

    def _add_meaning(self, file: str, name: str) -> None:
        """What a name of a module is, with what follows it: ``Trainer.load``, ``make.cache``."""
        head, _, rest = name.partition(".")
        self._add_module(file)
        if not head:
            return
        method, _, others = rest.partition(".")
        if rest and head in self._modules[file].names.bases:
            self._add_on_class(file, head, method)
        else:
            self._add(file, head)
            self._mention([method] if rest else ())
        self._mention(others.split(".") if others else ())

    def _inherit(self, inside: str, owner: str) -> None:
        """What a class comes to as it is defined: those that it inherits from, methods that a decorator keeps, and what
        methods of those that inherit from it have called."""
        for file, base in self._bodies.inherited_by((inside, owner)):
            self._enter(file, base)
        names, called = self._modules[inside].names, self._of_base[self._bodies.family_of[inside, owner]]
        for body in self._bodies.methods_of[inside, owner]:
            kept = all(self._bodies.keeps_name(inside, each) for each in names.decorators.get(body, set()))
            if not kept or "" in called or body.rpartition(".")[2] in called:
                self._add(inside, body)

    def _make(self, inside: str, owner: str) -> None:
        """The methods of a class that are called without the code of the project naming them on one of its objects."""
        self._made.add((inside, owner))
        foreign = self._bodies.has_foreign_base((inside, owner))
        asked = self._asked[self._bodies.family_of[inside, owner]]
        for name, methods in self._bodies.had_by((inside, owner)).items():
            self._had |= methods
            if foreign or _CALLED.fullmatch(name) or name in self._attributes or name in asked:
                for method in methods:
                    self._add(*method)

    def _add_methods(self, inside: str, owner: str, name: str) -> None:
        """A method that is called on an object of a class: that of the class, of those that it inherits from and of
        those that inherit from it, and so on."""
        family = self._bodies.family_of.get((inside, owner))
        if family is None or name in self._asked[family]:
            return
        self._asked[family].add(name)
        for method in self._bodies.methods[family].get(name, ()):
            self._add_if_had(*method)

    def _add_of_base(self, inside: str, owner: str, name: str) -> None:
        """A method that one of a class calls as a class has it that the object's own inherits from; "" for any."""
        family = self._bodies.family_of.get((inside, owner))
        if family is None or name in self._of_base[family]:
            return
        self._of_base[family].add(name)
        methods = self._bodies.methods[family]
        for file, method in methods.get(name, ()) if name else itertools.chain(*methods.values()):
            if (file, method.rpartition(".")[0]) in self._found:
                self._add(file, method)

    def _add_on_class(self, inside: str, owner: str, name: str) -> None:
        """What is taken from a class itself: a function needs no object of it."""
        found = self._bodies.had_by((inside, owner)).get(name, set())
        kinds = (self._modules[file].names.decorators.get(method, set()) for file, method in found)
        if not found or any(kind - {"staticmethod"} for kind in kinds):
            self._add(inside, owner)
            self._add_methods(inside, owner, name)
        self._enter(inside, owner)
        for method in found:
            self._add(*method)

    def _add_if_had(self, inside: str, method: str) -> None:
        if (inside, method) in self._had:
            self._add(inside, method)

    def _look_up(self, inside: str, owner: str, of: str) -> None:
        """Something is taken by a name that the code does not have: all that it may be."""
        first, _, rest = of.partition(".")
        if of == ANY_OBJECT:
            self._by_names = True
        elif of == OWN_MODULE:
            self._add_all(inside)
        elif of in ("self", "cls") and owner:
            family = self._bodies.methods.get(self._bodies.family_of.get((inside, owner), -1), {})
            for file, each in itertools.chain(*family.values()):
                self._add_if_had(file, each)
        else:
            known = self._bodies.meanings(inside, first, rest) if first != "self" else ()
            for file, name in known:
                if not name:
                    self._add_all(file)
                elif name in self._modules[file].names.bases:
                    self._add_all_of_class(file, name)
            # In an object of any kind.
            self._by_names |= not known and not self._bodies.is_foreign(inside, first)

    def _add_all(self, inside: str) -> None:
        """All definitions that a module has, those that it imports too."""
        self._add_module(inside)
        names = self._modules[inside].names
        for body in names.bodies:
            if body != PROGRAM and "." not in body:
                self._add(inside, body)
        for local in names.imported_as:
            for file, name in self._bodies.meanings(inside, local, ""):
                self._add_meaning(file, name)
                if local == "*":
                    self._add_all(file)

    def _add_all_of_class(self, inside: str, owner: str) -> None:
        for body in self._bodies.methods_of[inside, owner]:
            self._add_if_had(inside, body)

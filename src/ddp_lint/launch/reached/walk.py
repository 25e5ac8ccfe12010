"""The walk from what is started to what it comes to.

A program imports modules, names functions and classes, and calls methods. The walk follows all of that by names: what a
name leads to where imports and definitions show it, any method of that name of a class that is reached where they do
not. So it finds more than what runs, and what it does not find runs in no program of the project. Names that the code
does not have (in settings and commands, computed ones) lead to all that they may mean.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pathlib
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator

from ddp_lint.knowledge import frameworks
from ddp_lint.launch.reached.names import (
    MODULE,
    OWN_MODULE,
    PROGRAM,
    FileNames,
    Names,
    body_at,
    names_of,
)
from ddp_lint.launch.texts import calls_of_notebooks, calls_of_texts, is_installed, words_of_settings
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.file import place_kind
from ddp_lint.source.imports import absolute_target

#: Files of a project that are read: in a larger one all counts as reached.
_FILES = 600
#: Imports that are followed from one name to the next.
_HOPS = 12
#: Letters of the name of a file that a word of another meaning hardly has.
_TELLING = 5
#: Letters of a part of a name by which a name that is put together is found.
_PART = 3
#: What shows that a package outside of the project finds modules and classes of it by names in settings or commands.
_BY_SETTINGS = (
    "_target_",
    "hydra",
    "class_path",
    "LightningCLI",
    "jsonargparse",
    "custom_imports",
    "user_dir",
    "locate",
)
#: Decorators after which a definition is used by its name as before.
_KEEPS_NAME = re.compile(
    r"(torch|functools|abc|typing|contextlib|dataclasses|numba)\.(?!library|hub)[\w.]+|staticmethod|classmethod|property"
    r"|[\w.]+\.(setter|getter|deleter)"
)
#: Classes whose methods are called by their names by nothing but the project, but for `_CALLED`.
_PLAIN = frozenset(
    {"object", "Exception", "dict", "list", "str", "int", "float", "tuple", "torch.nn.Module", "torch.nn.Sequential"}
    | {"abc.ABC", "enum.Enum", "typing.Generic", "typing.Protocol", "typing.NamedTuple", "torch.autograd.Function"}
    | {f"torch.utils.data.{name}" for name in ("Dataset", "IterableDataset", "Sampler")}
)
#: Methods that torch and other packages call by their names on any object, or that Python does.
_CALLED = re.compile(
    r"__\w+__|_(?!get_name|named_)[a-z]\w*_(hook|impl|dict)|on_\w+|configure_\w+|\w+_(step|dataloader|hook|begin|end)"
    r"|forward|backward|setup_context|step|train|eval|fit|predict|transform|collate|process|run|setup|teardown|close|write"
    r"|flush|read|update|compute|reset|reset_parameters|extra_repr|state_dict|load_state_dict|parameters|to|cuda|apply|_apply"
)
#: Functions that whoever starts a file calls.
_IS_MAIN = re.compile(r"main|main_\w+|\w+_main|hydra_main|cli")
#: Packages by whose names no module of a project is meant.
_FOREIGN = (
    sys.stdlib_module_names | frameworks.packages(lambda _: True) | {"torch", "torchvision", "torchaudio", "numpy"}
)
#: A body: its file, and its name there.
_Body = tuple[str, str]


def is_never_reached_from_programs(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether no program of the project comes to the function, class or method that a line of a file is in, where one
    imports the module. False where the programs are not seen: of a package that is installed, of a project without
    any."""
    path = project.find(facts.name)
    if path is None or facts.source.is_test or is_installed(project):
        return False
    reached: frozenset[_Body] | None = project.remember(("reached bodies",), lambda: _reached(project))
    inside = project.inside(path)
    # Of a module that no program imports, the users are not seen.
    if reached is None or (inside, MODULE) not in reached:
        return False
    return (inside, body_at(facts.tree, line)) not in reached


def _reached(project: Project) -> frozenset[_Body] | None:
    """The bodies that the programs of the project come to; None where they are not seen."""
    files = [inside for inside in project.named("*.py") if place_kind(inside) != "test"]
    if len(files) > _FILES:
        return None
    tables = {inside: found for inside in files if (found := _names(project, inside)) is not None}
    outside = [words_of_settings(project), calls_of_notebooks(project), calls_of_texts(project)]
    if None in outside:
        return None
    with project.recording(apart=True):  # where modules lie follows from the names of the files
        return _Walk(project, tables, frozenset().union(*(words or () for words in outside))).reached()


def _names(project: Project, inside: str) -> FileNames | None:
    path = project.absolute(inside)
    if not project.tested(path, "names"):
        return None
    with project.recording(apart=True):  # it depends on no more of the text
        return names_of(project.text(pathlib.Path(path)) or "")


@dataclasses.dataclass(slots=True)
class _Module:
    """A file of the project: its table, and how its imports are resolved."""

    inside: str
    path: pathlib.Path
    name: str
    is_package: bool
    names: FileNames


class _Walk:
    """One walk over the bodies of a project."""

    def __init__(self, project: Project, tables: dict[str, FileNames], outside: frozenset[str]) -> None:
        self._project = project
        self._modules = {inside: self._module(inside, names) for inside, names in tables.items()}
        self._stems = collections.defaultdict[str, list[str]](list)
        self._with_method = collections.defaultdict[str, list[_Body]](list)
        self._methods_of = collections.defaultdict[_Body, list[str]](list)
        self._with_name = collections.defaultdict[str, list[_Body]](list)
        for inside, names in tables.items():
            stem = posixpath.basename(inside).removesuffix(".py")
            self._stems[posixpath.basename(posixpath.dirname(inside)) if stem == "__init__" else stem].append(inside)
            for body in names.bodies:
                owner, _, last = body.rpartition(".")
                (self._with_method if owner else self._with_name)[last].append((inside, body))
                if owner:
                    self._methods_of[inside, owner].append(body)
        self._targets: dict[tuple[str, str], list[tuple[str, str]]] = {}
        #: What files of settings name, and what notebooks and texts call.
        self._outside = outside
        self._found = set[_Body]()
        self._queue: list[_Body] = []
        #: What bodies that are reached mention: attributes, strings, parts of names that they put together.
        self._attributes, self._strings, self._composed = set[str](), set[str](), set[str]()
        #: Something is looked up by a name that the code does not have, in an object of any kind.
        self._by_names = False
        #: By family of classes: the methods that are called on its objects.
        self._asked = collections.defaultdict[int, set[str]](set)
        self._bases = {each: list(self._bases_of(*each)) for each in self._classes()}
        self._family_of = self._families()
        #: By family of classes, and by name: their methods.
        self._methods = collections.defaultdict[int, dict[str, list[_Body]]](dict)
        for (inside, owner), family in self._family_of.items():
            for body in self._methods_of[inside, owner]:
                self._methods[family].setdefault(body.rpartition(".")[2], []).append((inside, body))
        self._all_modules = any(map(project.holding, _BY_SETTINGS))

    def _module(self, inside: str, names: FileNames) -> _Module:
        path = pathlib.Path(self._project.absolute(inside))
        return _Module(inside, path, *self._project.module_name(path), names)

    # ---- the walk

    def reached(self) -> frozenset[_Body] | None:
        started = list(self._programs())
        if not started:
            return None
        for inside, body in started:
            self._add_module(inside)
            self._add(inside, body)
        while self._queue or self._add_others():
            while self._queue:
                self._follow(*self._queue.pop())
        return frozenset(self._found)

    def _programs(self) -> Iterator[_Body]:
        """What is started: what files do below their test for it; what one does at its top with definitions of the
        project, if no file imports it, or a script names it; and a function `main` of a file without that test."""
        imported = {target for inside in self._modules for target in self._imported_by(inside)}
        for inside, module in self._modules.items():
            stem = posixpath.basename(inside).removesuffix(".py")
            bodies, left = module.names.bodies, inside not in imported
            if PROGRAM in bodies:
                yield inside, PROGRAM
            elif module.names.acts and (left or stem in self._outside) and self._uses_definitions(inside):
                yield inside, MODULE
            mains = [name for name in bodies if _IS_MAIN.fullmatch(name)] if PROGRAM not in bodies else []
            # Who starts a file that none imports may call all of it.
            yield from ((inside, name) for name in (bodies if left and mains else mains))

    def _uses_definitions(self, inside: str) -> bool:
        """Whether what a module does at its top uses a function or class of the project."""
        parts = (dotted.partition(".") for dotted in self._modules[inside].names.bodies[MODULE].dotted)
        return any(name for first, _, rest in parts for _, name in self._meanings(inside, first, rest))

    def _imported_by(self, inside: str) -> Iterator[str]:
        for body in self._modules[inside].names.bodies.values():
            for target in body.imports:
                yield from self._files_of(inside, target)

    def _add(self, inside: str, body: str) -> None:
        if (inside, body) not in self._found and body in self._modules[inside].names.bodies:
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
            if "." not in name and not all(self._keeps_name(inside, each) for each in given):
                self._add(inside, name)
        folder = posixpath.dirname(inside)
        while folder:
            package = f"{folder}/__init__.py"
            if package in self._modules:
                self._add_module(package)
            folder = posixpath.dirname(folder)

    def _keeps_name(self, inside: str, decorator: str) -> bool:
        first, dot, rest = decorator.partition(".")
        targets = self._modules[inside].names.imported_as.get(first, [first])
        return any(_KEEPS_NAME.fullmatch(target + dot + rest) for target in targets)

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
            named |= self._attributes | self._composed_of(self._with_name)
        for name in named & self._with_name.keys():
            for inside, body in self._with_name[name]:
                if (inside, MODULE) in self._found:
                    self._add(inside, body)
        if self._by_names:
            self._mention(self._composed_of(self._with_method))
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
            for file in self._files_of(inside, target):
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
            self._add_class(inside, body)

    def _mention(self, attributes: Iterable[str]) -> None:
        """An attribute of some object: any method of that name."""
        for name in set(attributes) - self._attributes:
            self._attributes.add(name)
            for file, method in self._with_method[name]:
                self._add_if_made(file, method)

    def _follow_strings(self, names: Names) -> None:
        for text in names.strings:
            parts = re.split(r"[.:/]", text.removesuffix(".py"))
            self._strings.update((text, parts[-1]))
            self._mention(parts[-1:])
            if len(parts) > 1 or names.imports_computed:
                for count in range(len(parts), 0, -1):
                    if parts[count - 1] in self._stems and (len(parts) > 1 or len(parts[0]) >= _TELLING):
                        for file in self._stems[parts[count - 1]]:
                            self._add_module(file)
                        break

    def _follow_name(self, inside: str, owner: str, dotted: str) -> None:
        first, _, rest = dotted.partition(".")
        if first in ("self", "cls") and owner:
            name, _, others = rest.partition(".")
            self._add_methods(inside, owner, name)
            self._mention(others.split(".") if others else ())
            return
        found = list(self._meanings(inside, first, rest))
        for file, name in found:
            self._add_meaning(file, name)
        # What a variable holds, of the function or of a module, may be an object of any class.
        if rest and not any(name for _, name in found) and not self._is_foreign(inside, first):
            self._mention(rest.split("."))

    def _add_meaning(self, file: str, name: str) -> None:
        """What a name of a module is, with what follows it: ``Trainer.load``, ``make.cache``."""
        head, _, rest = name.partition(".")
        self._add_module(file)
        if not head:
            return
        self._add(file, head)
        if rest:
            method, _, others = rest.partition(".")
            if head in self._modules[file].names.bases:
                self._add_methods(file, head, method)
            else:
                self._mention([method])
            self._mention(others.split(".") if others else ())

    def _add_class(self, inside: str, owner: str) -> None:
        """The methods of a class that are called without the code of the project naming them on one of its objects."""
        foreign = self._has_foreign_base((inside, owner))
        asked = self._asked[self._family_of[inside, owner]]
        names = self._modules[inside].names
        for body in self._methods_of[inside, owner]:
            name = body.rpartition(".")[2]
            kept = all(self._keeps_name(inside, each) for each in names.decorators.get(body, set()))
            if foreign or not kept or _CALLED.fullmatch(name) or name in self._attributes or name in asked:
                self._add(inside, body)

    def _add_methods(self, inside: str, owner: str, name: str) -> None:
        """A method that is called on an object of a class: that of the class, of those that it inherits from and of
        those that inherit from it, and so on."""
        family = self._family_of.get((inside, owner))
        if family is None or name in self._asked[family]:
            return
        self._asked[family].add(name)
        for file, each in self._methods[family].get(name, ()):
            self._add_if_made(file, each)

    def _add_if_made(self, inside: str, method: str) -> None:
        if (inside, method.rpartition(".")[0]) in self._found:
            self._add(inside, method)

    def _look_up(self, inside: str, owner: str, of: str) -> None:
        """Something is taken by a name that the code does not have: all that it may be."""
        first, _, rest = of.partition(".")
        if of == OWN_MODULE:
            self._add_all(inside)
        elif of in ("self", "cls") and owner:
            family = self._methods.get(self._family_of.get((inside, owner), -1), {})
            for file, each in itertools.chain(*family.values()):
                self._add_if_made(file, each)
        else:
            known = list(self._meanings(inside, first, rest)) if first != "self" else []
            for file, name in known:
                if not name:
                    self._add_all(file)
                elif name in self._modules[file].names.bases:
                    self._add_all_of_class(file, name)
            # In an object of any kind.
            self._by_names |= not known and not self._is_foreign(inside, first)

    def _add_all(self, inside: str) -> None:
        """All definitions that a module has, those that it imports too."""
        self._add_module(inside)
        names = self._modules[inside].names
        for body in names.bodies:
            if body != PROGRAM and "." not in body:
                self._add(inside, body)
        for local in names.imported_as:
            for file, name in self._meanings(inside, local, ""):
                self._add_meaning(file, name)
                if local == "*":
                    self._add_all(file)

    def _add_all_of_class(self, inside: str, owner: str) -> None:
        for body in self._methods_of[inside, owner]:
            self._add_if_made(inside, body)

    # ---- classes

    def _classes(self) -> Iterator[_Body]:
        return ((inside, name) for inside, module in self._modules.items() for name in module.names.bases)

    def _bases_of(self, inside: str, owner: str) -> Iterator[_Body | str]:
        """The bases of a class: those of the project as bodies, the others by their full names."""
        names = self._modules[inside].names
        for base in names.bases[owner]:
            first, dot, rest = base.partition(".")
            known = [
                (file, name)
                for file, name in self._meanings(inside, first, rest)
                if name in self._modules[file].names.bases and (file, name) != (inside, owner)
            ]
            yield from known
            if not known:
                yield from (target + dot + rest for target in names.imported_as.get(first, [first]))

    def _families(self) -> dict[_Body, int]:
        """For each class a number that it shares with those that it inherits from, and with those that inherit from
        it."""
        beside = collections.defaultdict[_Body, set[_Body]](set)
        for each, bases in self._bases.items():
            for base in bases:
                if not isinstance(base, str):
                    beside[each].add(base)
                    beside[base].add(each)
        found: dict[_Body, int] = {}
        for number, each in enumerate(self._bases):
            stack = [each] if each not in found else []
            while stack:
                other = stack.pop()
                if other not in found:
                    found[other] = number
                    stack += beside[other]
        return found

    def _has_foreign_base(self, each: _Body) -> bool:
        """Whether a class inherits, directly or not, from one of another package which may call its methods."""
        stack, seen = [each], {each}
        while stack:
            for base in self._bases[stack.pop()]:
                if isinstance(base, str):
                    if base.partition("[")[0] not in _PLAIN:
                        return True
                elif base not in seen:
                    seen.add(base)
                    stack.append(base)
        return False

    # ---- names

    def _meanings(self, inside: str, first: str, rest: str, hops: int = _HOPS) -> Iterator[tuple[str, str]]:
        """What a name in a file is, with what follows it: files of the project, each with the name in it ("" for the
        module itself)."""
        names = self._modules[inside].names
        whole = f"{first}.{rest}" if rest else first
        if first in names.bodies and first != PROGRAM:
            yield inside, whole
        if not hops:
            return
        resolved = [
            (file, name)
            for target in (names.imported_as.get(first, ()) if first != "*" else ())
            for file, name in self._resolved(inside, f"{target}.{rest}" if rest else target)
        ]
        for file, name in resolved:
            yield from self._passed_on(file, name, hops - 1)
        # A name from elsewhere may be what is taken where that is not installed.
        if first not in names.bodies and not resolved:
            for target in names.imported_as.get("*", ()):
                for file, _ in self._resolved(inside, target):
                    if file != inside:
                        yield from self._meanings(file, first, rest, hops - 1)

    def _passed_on(self, file: str, name: str, hops: int) -> Iterator[tuple[str, str]]:
        """A name of a module, or what the module has imported by that name from another one of the project."""
        head, _, rest = name.partition(".")
        if not head or head in self._modules[file].names.bodies:
            yield file, name
        else:
            found = list(self._meanings(file, head, rest, hops))
            yield from found or self._anywhere(file, name)

    def _anywhere(self, file: str, name: str) -> Iterator[tuple[str, str]]:
        """Of a name that a module has from nowhere that is seen: the module, and all definitions that have the name."""
        yield file, ""
        head, _, rest = name.partition(".")
        if head not in self._modules[file].names.assigned:
            for other, body in self._with_name[head]:
                yield other, f"{body}.{rest}" if rest else body

    def _is_foreign(self, inside: str, first: str) -> bool:
        """Whether a name is imported from outside of the project: its attributes are none of a class of it."""
        targets = self._modules[inside].names.imported_as.get(first, ())
        return bool(targets) and not any(self._resolved(inside, target) for target in targets)

    def _files_of(self, inside: str, target: str) -> Iterator[str]:
        """The files that importing a target runs, but for the packages around them."""
        return (file for file, _ in self._resolved(inside, target))

    def _resolved(self, inside: str, target: str) -> list[tuple[str, str]]:
        """The files that a target of an import may be of, each with the rest of the name."""
        target = target.removesuffix(".*")
        key = (inside, target)
        if key not in self._targets:
            self._targets[key] = list(dict.fromkeys(self._resolve(inside, target)))
        return self._targets[key]

    def _resolve(self, inside: str, target: str) -> Iterator[tuple[str, str]]:
        module = self._modules[inside]
        if target.startswith("."):
            names = {absolute_target(target, module.name, module.is_package)}
        else:
            started = PROGRAM in module.names.bodies or module.names.acts
            names = {self._project.locate(target, module.path, script) for script in (started, False)}
        known = False
        for name in names:
            head, rest = name, ""
            while head:
                path = self._project.find(head)
                file = self._project.inside(path) if path is not None else ""
                if file in self._modules:
                    known = True
                    yield file, rest
                    yield from self._bound_by_package(head, file, rest)
                    break
                head, _, last = head.rpartition(".")
                rest = f"{last}.{rest}" if rest else last
        first = target.partition(".")[0]
        if not known and first and first not in _FOREIGN:
            yield from self._by_stem(target)

    def _bound_by_package(self, name: str, file: str, rest: str) -> Iterator[tuple[str, str]]:
        """What the package of a module has by the name of the module: ``from .LARS import LARS`` in its `__init__`."""
        last = name.rpartition(".")[2]
        package = f"{posixpath.dirname(file)}/__init__.py"
        if package in self._modules and package != file and last in self._modules[package].names.imported_as:
            yield package, f"{last}.{rest}" if rest else last

    def _by_stem(self, target: str) -> Iterator[tuple[str, str]]:
        """Modules that are called like a part of a target whose place is not seen: the project may be put in a folder
        of another name."""
        parts = target.split(".")
        for count in range(len(parts), 1, -1):
            if len(parts[count - 1]) >= _TELLING and parts[count - 1] in self._stems:
                for file in self._stems[parts[count - 1]]:
                    yield file, ".".join(parts[count:])
                return

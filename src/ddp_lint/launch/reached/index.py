"""The bodies of a project's files, and what the names in them lead to: modules, definitions, classes that inherit from
each other, and what is started."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ddp_lint.knowledge import frameworks
from ddp_lint.launch.reached.names import MODULE, PROGRAM, FileNames
from ddp_lint.project import Project
from ddp_lint.project.results import OfNames
from ddp_lint.source.imports import absolute_target

#: A body: its file, and its name there.
Body: TypeAlias = tuple[str, str]
#: What a name may be: files of the project, each with the name in it, "" for the module itself.
Meanings: TypeAlias = tuple[tuple[str, str], ...]
#: Imports that are followed from one name to the next.
_HOPS = 12
#: Letters of the name of a file that a word of another meaning hardly has.
TELLING = 5
#: Decorators after which a definition is used by its name as before.
_KEEPS_NAME = re.compile(
    r"(torch|functools|abc|typing|contextlib|dataclasses|numba)\.(?!library|hub)[\w.]+|staticmethod|classmethod|property"
    r"|[\w.]+\.(setter|getter|deleter)"
)
#: Classes whose methods are called by their names by nothing but the project, but for those that any package calls.
PLAIN = frozenset(
    {"object", "Exception", "dict", "list", "str", "int", "float", "tuple", "torch.nn.Module", "torch.nn.Sequential"}
    | {"abc.ABC", "enum.Enum", "typing.Generic", "typing.Protocol", "typing.NamedTuple", "torch.autograd.Function"}
    | {f"torch.utils.data.{name}" for name in ("Dataset", "IterableDataset", "Sampler")}
)
#: Methods by which an object is another one, or has what another one has.
_OTHERS_ATTRIBUTES = frozenset({"__new__", "__getattr__", "__getattribute__"})
#: Functions that whoever starts a file calls.
_IS_MAIN = re.compile(r"main|main_\w+|\w+_main|hydra_main|cli")
#: Packages by whose names no module of a project is meant.
_FOREIGN = (
    sys.stdlib_module_names | frameworks.packages(lambda _: True) | {"torch", "torchvision", "torchaudio", "numpy"}
)


@dataclasses.dataclass(slots=True)
class Module:
    """A file of the project: its table, and how its imports are resolved."""

    inside: str
    path: pathlib.Path
    name: str
    is_package: bool
    names: FileNames


class Bodies(OfNames):
    """What the files of a project have, by their tables. `modules`: by file. `with_method` and `with_name`: by their
    last names the methods, and the functions and classes at the top of files. `methods_of`: of a class. `family_of`:
    for each class a number that it shares with those that it inherits from, and with those that inherit from it.
    `methods`: by family and name."""

    def __init__(self, project: Project, tables: Mapping[str, FileNames]) -> None:
        self._project = project
        self.modules = {inside: self._module(inside, names) for inside, names in tables.items()}
        #: The folders at the root with code that takes all classes of a kind that there are, "" for the root itself.
        self.taking_kinds = frozenset(top_folder(file) for file, each in self.modules.items() if each.names.takes_kinds)
        self.stems = collections.defaultdict[str, list[str]](list)
        self.with_method = collections.defaultdict[str, list[Body]](list)
        self.with_name = collections.defaultdict[str, list[Body]](list)
        self.methods_of = collections.defaultdict[Body, list[str]](list)
        for inside, names in tables.items():
            stem = posixpath.basename(inside).removesuffix(".py")
            self.stems[posixpath.basename(posixpath.dirname(inside)) if stem == "__init__" else stem].append(inside)
            for body in names.bodies:
                owner, _, last = body.rpartition(".")
                (self.with_method if owner else self.with_name)[last].append((inside, body))
                if owner:
                    self.methods_of[inside, owner].append(body)
        self._targets: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
        self._meanings: dict[tuple[str, str, str], Meanings] = {}
        self._bases = {each: list(self._bases_of(*each)) for each in self._classes()}
        self._had: dict[Body, dict[str, set[Body]]] = {}
        self.family_of = self._families()
        self.methods = collections.defaultdict[int, dict[str, list[Body]]](dict)
        for (inside, owner), family in self.family_of.items():
            for body in self.methods_of[inside, owner]:
                self.methods[family].setdefault(body.rpartition(".")[2], []).append((inside, body))

    def _module(self, inside: str, names: FileNames) -> Module:
        path = pathlib.Path(self._project.paths.absolute(inside))
        return Module(inside, path, *self._project.modules.name_of(path), names)

    # ---- what is started

    def programs(self, named: frozenset[str]) -> Iterator[Body]:
        """What is started: what files do below their test for it; what one does at its top with definitions of the
        project, if no file imports it, or a script has its name (`named`); and a function `main` of a file without that
        test."""
        imported = {target for inside in self.modules for target in self._imported_by(inside)}
        for inside, module in self.modules.items():
            stem = posixpath.basename(inside).removesuffix(".py")
            bodies, left = module.names.bodies, inside not in imported
            if PROGRAM in bodies:
                yield inside, PROGRAM
            elif module.names.acts and (left or stem in named) and self._uses_definitions(inside):
                yield inside, MODULE
            mains = [name for name in bodies if _IS_MAIN.fullmatch(name)] if PROGRAM not in bodies else []
            # Who starts a file that none imports may call all of it.
            yield from ((inside, name) for name in (bodies if left and mains else mains))

    def _uses_definitions(self, inside: str) -> bool:
        """Whether what a module does at its top uses a function or class of the project."""
        parts = (dotted.partition(".") for dotted in self.modules[inside].names.bodies[MODULE].dotted)
        return any(name for first, _, rest in parts for _, name in self.meanings(inside, first, rest))

    def _imported_by(self, inside: str) -> Iterator[str]:
        for body in self.modules[inside].names.bodies.values():
            for target in body.imports:
                yield from self.files_of(inside, target)

    # ---- classes

    def _classes(self) -> Iterator[Body]:
        return ((inside, name) for inside, module in self.modules.items() for name in module.names.bases)

    def _bases_of(self, inside: str, owner: str) -> Iterator[Body | str]:
        """The bases of a class: those of the project as bodies, the others by their full names."""
        names = self.modules[inside].names
        for base in names.bases[owner]:
            first, dot, rest = base.partition(".")
            known = [
                (file, name)
                for file, name in self.meanings(inside, first, rest)
                if name in self.modules[file].names.bases and (file, name) != (inside, owner)
            ]
            yield from known
            if not known:
                yield from (target + dot + rest for target in names.imported_as.get(first, [first]))

    def inherited_by(self, each: Body) -> list[Body]:
        """The classes of the project that a class inherits from directly."""
        return [base for base in self._bases[each] if not isinstance(base, str)]

    def had_by(self, each: Body) -> dict[str, set[Body]]:
        """The methods that an object of a class has, by their names: its own, and those that it inherits. Of several
        bases each counts."""
        stack = [each] if each not in self._had else []
        begun = set[Body]()
        while stack:
            owner = stack[-1]
            above = [base for base in self.inherited_by(owner) if base not in self._had and base not in begun]
            if owner not in begun:
                begun.add(owner)
                stack += above
                if above:
                    continue
            stack.pop()
            found = {body.rpartition(".")[2]: {(owner[0], body)} for body in self.methods_of[owner]}
            own = set(found)
            for base in self.inherited_by(owner):
                for name, bodies in self._had.get(base, {}).items():
                    if name not in own:
                        found.setdefault(name, set()).update(bodies)
            self._had[owner] = found
        return self._had[each]

    def _families(self) -> dict[Body, int]:
        """For each class a number that it shares with those that it inherits from, and with those that inherit from
        it."""
        beside = collections.defaultdict[Body, set[Body]](set)
        for each, bases in self._bases.items():
            for base in bases:
                if not isinstance(base, str):
                    beside[each].add(base)
                    beside[base].add(each)
        found: dict[Body, int] = {}
        for number, each in enumerate(self._bases):
            stack = [each] if each not in found else []
            while stack:
                other = stack.pop()
                if other not in found:
                    found[other] = number
                    stack += beside[other]
        return found

    def has_foreign_base(self, each: Body) -> bool:
        """Whether a class inherits, directly or not, from one of another package which may call its methods."""
        stack, seen = [each], {each}
        while stack:
            for base in self._bases[stack.pop()]:
                if isinstance(base, str):
                    if base not in PLAIN:
                        return True
                elif base not in seen:
                    seen.add(base)
                    stack.append(base)
        return False

    def makes_own_objects(self, inside: str, name: str) -> bool:
        """Whether a name is that of a class whose objects are its own and have what it defines: no other package makes
        them, no decorator replaces it, and it hands on no attributes of others."""
        names = self.modules[inside].names
        if name not in names.bases or not all(self.keeps_name(inside, each) for each in names.decorators.get(name, ())):
            return False
        return _OTHERS_ATTRIBUTES.isdisjoint(self.had_by((inside, name))) and not self.has_foreign_base((inside, name))

    def keeps_name(self, inside: str, decorator: str) -> bool:
        first, dot, rest = decorator.partition(".")
        targets = self.modules[inside].names.imported_as.get(first, [first])
        return any(_KEEPS_NAME.fullmatch(target + dot + rest) for target in targets)

    # ---- names

    def meanings(self, inside: str, first: str, rest: str) -> Meanings:
        """What a name in a file is, with what follows it: files of the project, each with the name in it ("" for the
        module itself)."""
        key = (inside, first, rest)
        if key not in self._meanings:
            self._meanings[key] = self._meant(*key, _HOPS, {})
        return self._meanings[key]

    def _meant(self, inside: str, first: str, rest: str, hops: int, seen: dict[tuple[str, str], Meanings]) -> Meanings:
        """`seen`: what names are that were met on the way, as modules import from each other in circles."""
        names = self.modules[inside].names
        whole = f"{first}.{rest}" if rest else first
        known = seen.get((inside, whole))
        if known is not None or not hops:
            return known or ()
        seen[inside, whole] = ()
        found = [(inside, whole)] if first in names.bodies and first != PROGRAM else []
        resolved = [
            (file, name)
            for target in (names.imported_as.get(first, ()) if first != "*" else ())
            for file, name in self._resolved(inside, target, rest)
        ]
        for file, name in resolved:
            # A name of a module, or what the module has imported by that name from another one of the project.
            head, _, others = name.partition(".")
            if not head or head in self.modules[file].names.bodies:
                found.append((file, name))
            else:
                found += self._meant(file, head, others, hops - 1, seen) or self._anywhere(file, name)
        # A name from elsewhere may be what is taken where that is not installed.
        if first not in names.bodies and not resolved:
            for target in names.imported_as.get("*", ()):
                for file, _ in self._resolved(inside, target):
                    if file != inside:
                        found += self._meant(file, first, rest, hops - 1, seen)
        seen[inside, whole] = tuple(dict.fromkeys(found))
        return seen[inside, whole]

    def _anywhere(self, file: str, name: str) -> Iterator[tuple[str, str]]:
        """Of a name that a module has from nowhere that is seen: the module, and all definitions that have the name."""
        yield file, ""
        head, _, rest = name.partition(".")
        if head not in self.modules[file].names.assigned:
            for other, body in self.with_name[head]:
                yield other, f"{body}.{rest}" if rest else body

    def is_foreign(self, inside: str, first: str) -> bool:
        """Whether a name is imported from outside of the project: its attributes are none of a class of it."""
        targets = self.modules[inside].names.imported_as.get(first, ())
        return bool(targets) and not any(self._resolved(inside, target) for target in targets)

    def files_of(self, inside: str, target: str) -> Iterator[str]:
        """The files that importing a target runs, but for the packages around them."""
        return (file for file, _ in self._resolved(inside, target))

    def _resolved(self, inside: str, target: str, rest: str = "") -> list[tuple[str, str]]:
        """The files that a target of an import may be of, with what follows it, each with the rest of the name."""
        target = target.removesuffix(".*")
        key = (inside, target, rest)
        if key not in self._targets:
            self._targets[key] = list(dict.fromkeys(self._resolve(inside, target, rest)))
        return self._targets[key]

    def _resolve(self, inside: str, imported: str, rest: str) -> Iterator[tuple[str, str]]:
        target = f"{imported}.{rest}" if rest else imported
        module = self.modules[inside]
        if target.startswith("."):
            names = {absolute_target(target, module.name, module.is_package)}
        else:
            started = PROGRAM in module.names.bodies or module.names.acts
            below = module.names.on_path
            names = {self._project.modules.locate(target, module.path, script, below) for script in (started, False)}
        known = False
        for name in names:
            head, behind = name, ""
            while head:
                path = self._project.modules.find(head)
                file = self._project.paths.inside(path) if path is not None else ""
                if file in self.modules:
                    known = True
                    yield file, behind
                    yield from self._bound_by_package(head, file, behind)
                    break
                head, _, last = head.rpartition(".")
                behind = f"{last}.{behind}" if behind else last
        first = target.partition(".")[0]
        if not known and first and first not in _FOREIGN:
            # What follows an import is no part of where the module lies: ``boto3.session``.
            found = ((file, [*filter(None, (name, rest))]) for file, name in self._by_stem(imported))
            yield from ((file, ".".join(parts)) for file, parts in found)

    def _bound_by_package(self, name: str, file: str, rest: str) -> Iterator[tuple[str, str]]:
        """What the package of a module has by the name of the module: ``from .LARS import LARS`` in its `__init__`."""
        last = name.rpartition(".")[2]
        package = f"{posixpath.dirname(file)}/__init__.py"
        if package in self.modules and package != file and last in self.modules[package].names.imported_as:
            yield package, f"{last}.{rest}" if rest else last

    def named_by(self, parts: list[str], count: int) -> list[str]:
        """The files that a string may name by some of its parts, the first of them: ``models.resnet.resnet50``, not
        ``config.json``. They have what follows, and lie in a folder that is called like the part before."""
        folder, behind = parts[count - 2] if count > 1 else "", parts[count : count + 1]
        return [
            file
            for file in self.stems.get(parts[count - 1], ())
            if (not folder or not posixpath.dirname(file) or _is_in(file, folder)) and self._has(file, behind)
        ]

    def _has(self, inside: str, names: list[str]) -> bool:
        """Whether a module has names, or may have any from another one."""
        own = self.modules[inside].names
        return "*" in own.imported_as or all(
            n in own.bodies or n in own.assigned or n in own.imported_as for n in names
        )

    def _by_stem(self, target: str) -> Iterator[tuple[str, str]]:
        """Modules that are called like a part of a target whose place is not seen, and lie in a folder that is called
        like the part before, but for the first: the project may be put in a folder of another name."""
        parts = target.split(".")
        for count in range(len(parts), 1, -1):
            last, folder = parts[count - 1], parts[count - 2] if count > 2 else ""
            files = [file for file in self.stems.get(last, ()) if not folder or _is_in(file, folder)]
            if len(last) >= TELLING and files:
                for file in files:
                    yield file, ".".join(parts[count:])
                return


def top_folder(file: str) -> str:
    """The folder at the root of the project that a file is below, "" for none."""
    return file.partition("/")[0] if "/" in file else ""


def _is_in(file: str, folder: str) -> bool:
    """Whether a module, or the package that a file is of, lies in a folder of a name."""
    around = posixpath.dirname(file.removesuffix("/__init__.py"))
    return posixpath.basename(around) == folder

"""Which functions of a project can communicate, by what they and all that they may call mention.

An over-approximation: a function that is left out never communicates in the divergence analysis, so that evaluating it
can find nothing. Names are matched by their spelling, objects by the classes that are mentioned anywhere on the way:

1. A function communicates by itself where it mentions a communicating call.
2. It calls every function whose name it mentions or that is in a table whose name it mentions, every method that it
   mentions of every class in sight (its own, those it mentions, those that its class mentions, those that who makes an
   object of its class mentions), and the constructors of the classes that it mentions. Methods that no word calls
   (`forward`, `__str__`, `__enter__`) count where something is called, becomes text or is entered: those of its own
   class only where it uses its object for more than an attribute.
3. A method whose name no other class has is meant on any object (`communication.is_telling`).
4. Objects travel: a function also communicates if, on all ways from it, one class is in sight and one method of that
   class is mentioned that communicates (`program.travelling`).

The cost is linear in what is mentioned. tests/program compares the answer with the evaluation of every function.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from ddp_lint.knowledge import table
from ddp_lint.knowledge.communication import PROGRAMS, is_telling
from ddp_lint.knowledge.project_names import Names
from ddp_lint.program.events import Vocabulary, vocabulary
from ddp_lint.program.mentions import (
    CALLING,
    COMPUTED,
    DOTTED,
    ENTERING,
    MODULE,
    OF_FIRST,
    OWN,
    WRITING,
    FileMentions,
    FunctionMentions,
)
from ddp_lint.program.travelling import MAKING, Travelling
from ddp_lint.project.communication import Reach
from ddp_lint.project.facts import MOST_BASES

_AS_TEXT = frozenset({"__format__", "__str__", "__repr__"})
#: Methods that the evaluation enters without their being mentioned: where anything is called, where it becomes text,
#: where a manager is entered.
_IMPLICIT = {
    CALLING: frozenset({"__call__", "forward"}),
    **dict.fromkeys((WRITING, "print", "str", "repr"), _AS_TEXT),
    ENTERING: frozenset({"__enter__", "__exit__"}),
}
#: Methods from whose result a framework goes backward.
_FOLLOWED_BY_BACKWARD = frozenset(table("tensors")["followed_by_backward"])
#: Methods of one name, those of tests among them, of which a call on an object of no known class may mean one.
_FEW = 8
#: So many classes that are mentioned together are kept as one set for all of them: else each of n classes that one
#: function makes has a set of n.
_MANY = 32
#: What a function mentions that calls the methods of the classes that its own inherits from.
_ABOVE = "super"

#: The number of a file, and what is in a table that it makes.
_Table = tuple[int, frozenset[str]]


def reach_of(files: Mapping[str, FileMentions], names: Names) -> Reach:
    """The functions that can communicate, for all files of a project by their paths."""
    return _Graph(files, vocabulary(names), words_that_count(files.values(), names)).answer()


def words_that_count(files: Collection[FileMentions], names: Names) -> frozenset[str]:
    """The words of functions and classes that can lead anywhere: another answer needs others of these."""
    functions = {f.name.rpartition(".")[2] for file in files for f in file.functions if f.method_of >= 0 or f.top}
    classes = {class_.name for file in files for class_ in file.classes}
    variables = {name for file in files for name in file.variables}
    bound = {name for file in files for _, name in file.imports}
    events = vocabulary(names)
    explicit = {*events.alone, *events.alone_wrapped, *events.functions, *events.methods, *events.showing}
    return frozenset(
        {*functions, *classes, *variables, *bound, *explicit, *PROGRAMS, *_IMPLICIT, COMPUTED, OF_FIRST, OWN, _ABOVE}
    )


@dataclasses.dataclass(slots=True, eq=False)
class _Class:
    name: str
    file: int
    bases: tuple[str, ...]
    methods: dict[str, list[int]]
    #: What its body and the methods that assign attributes mention.
    words: frozenset[str] = frozenset()
    #: Itself and all that it may inherit from, by number.
    lineage: tuple[int, ...] = ()
    #: Making an object of it communicates: it inherits from such a class of a framework.
    communicates: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Spelling:
    """Words that are mentioned together where a communicating function is called; `wrapped`: it counts in files that
    wrap models."""

    words: frozenset[str]
    wrapped: bool
    #: What a name that is alone must be imported from.
    imported: str = ""


class _Graph:
    """Functions and classes of a project as numbers, and what they lead to."""

    def __init__(self, files: Mapping[str, FileMentions], events: Vocabulary, known: frozenset[str]) -> None:
        self._events, self._showing = events, events.showing
        self._paths = list(files)
        self._files = list(files.values())
        self._functions: list[FunctionMentions] = []
        self._file_of: list[int] = []
        self._class_of: list[int] = []
        self._classes: list[_Class] = []
        self._top: dict[str, list[int]] = collections.defaultdict(list)
        self._named: dict[str, list[int]] = collections.defaultdict(list)
        self._modules: list[int] = []
        #: For each file the parts of what it imports, and of its own path.
        self._imported_parts = [_parts(file) for file in self._files]
        self._place_parts = [_place(path) for path in self._paths]
        #: First parts of the names that the project's own modules can have.
        self._packages = {part for path in self._paths for part in _folders(path)}
        #: By class, and by the names of classes, as many may have one: the most frequent queries.
        self._by_name: dict[str, dict[str, list[int]]] = {}
        self._by_import: dict[tuple[str, int], list[int]] = {}
        self._top_of: dict[str, tuple[dict[int, list[int]], dict[str, list[int]]]] = {}
        self._shared: list[list[int]] = []
        #: By a set of classes in sight of many functions: the methods of all of them, and the words that show them.
        self._by_classes: dict[frozenset[str], dict[str, list[int]]] = {}
        self._shown_by_classes: dict[frozenset[str], frozenset[str]] = {}
        self._by_table: dict[tuple[int, frozenset[str]], list[int]] = {}
        self._classes_of_words: dict[frozenset[str], frozenset[str]] = {}
        self._mentioned_by: dict[str, frozenset[str]] = {}
        self._held: dict[int, frozenset[str]] = {}
        #: By the name of a variable, the files that make a table of it, each with what is in it.
        self._tables: dict[str, list[_Table]] = collections.defaultdict(list)
        self._meant_tables: dict[tuple[str, int], list[_Table]] = {}
        self._shown_by_class: dict[int, frozenset[str]] = {}
        self._shown_by_name: dict[str, frozenset[str]] = {}
        #: For each file the names that its imports bind.
        self._bound = [{name for _, name in file.imports} for file in self._files]
        self._number()
        for class_ in range(len(self._classes)):
            self._inherit(class_)
        for each in self._classes:
            bases = (base for above in each.lineage for base in self._classes[above].bases)
            each.communicates = not events.classes.isdisjoint(bases)
        self._wraps = self._wrapping()
        self._known = known
        self._telling = self._methods_by_telling_names()
        self._used = [self._meaning(function) for function in self._functions]
        #: By the name of a class, the classes that the functions mention which mention it; where these are many, the
        #: set of each such function.
        self._beside: dict[str, set[str]] = collections.defaultdict(set)
        self._among: dict[str, list[frozenset[str]]] = collections.defaultdict(list)
        for number in range(len(self._functions)):
            self._note_beside(number)

    # ---- numbers

    def _number(self) -> None:
        """Number the classes and the functions of all files, and collect the tables that the files make."""
        for place, file in enumerate(self._files):
            first = len(self._classes)
            self._classes += [_Class(c.name, place, c.bases, {}, frozenset(c.words)) for c in file.classes]
            for number, class_ in enumerate(file.classes, first):
                self._named[class_.name].append(number)
            for function in file.functions:
                self._add(function, place, first)
            for name, words in file.tables:
                self._tables[name].append((place, frozenset(words)))

    def _add(self, function: FunctionMentions, place: int, first_class: int) -> None:
        number = len(self._functions)
        self._functions.append(function)
        self._file_of.append(place)
        of = first_class + function.method_of if function.method_of >= 0 else -1
        self._class_of.append(of)
        name = function.name.rpartition(".")[2]
        if of >= 0:
            self._classes[of].methods.setdefault(name, []).append(number)
            if function.stores:
                self._classes[of].words |= frozenset(function.words)
        elif function.top:
            self._top[name].append(number)
        elif function.name == MODULE:
            self._modules.append(number)

    def _inherit(self, start: int) -> None:
        """Fill in the lineage of a class, after those of its bases."""
        stack, entered = [start], set[int]()
        while stack:
            number = stack[-1]
            class_ = self._classes[number]
            if class_.lineage:
                stack.pop()
                continue
            bases = [base for name in class_.bases for base in self._meant(name, number)]
            waiting = [base for base in bases if not self._classes[base].lineage and base not in entered]
            entered.add(number)
            if waiting:
                stack += waiting
                continue
            above = dict.fromkeys((number, *bases, *(a for base in bases for a in self._classes[base].lineage)))
            class_.lineage = tuple(above)[:MOST_BASES]
            stack.pop()

    def _meant(self, name: str, class_: int) -> list[int]:
        """The classes that the name of a base of a class may mean: others of its file, else any."""
        found = [number for number in self._named.get(name, ()) if number != class_]
        if len(found) < 2 or DOTTED in self._classes[class_].bases:
            return found
        file = self._classes[class_].file
        own = [number for number in found if self._classes[number].file == file]
        return own if own and self._bound[file].isdisjoint((name, "*")) else found

    def _meaning(self, function: FunctionMentions) -> frozenset[str]:
        """What a function mentions that counts, with the methods that its operations run and the class of `trainer`."""
        implicit = (names for what, names in _IMPLICIT.items() if what in function.words)
        programs = (PROGRAMS[name] for name in PROGRAMS.keys() & function.words)
        return self._known.intersection((*function.words, *programs)).union(*implicit)

    def _methods_by_telling_names(self) -> dict[str, list[int]]:
        """Methods that are meant on any object, as hardly another class has one of the name."""
        found: dict[str, list[int]] = collections.defaultdict(list)
        for class_ in self._classes:
            for name, numbers in class_.methods.items():
                if is_telling(name):
                    found[name] += numbers
        return {name: numbers for name, numbers in found.items() if len(numbers) <= _FEW}

    # ---- edges

    def _edges(self) -> list[list[int]]:
        """What each function calls, by number. The methods of one name of all classes of one name are called through
        a number of their own, behind those of the functions: a project may have hundreds of classes named A. So are the
        functions that one name can mean in one file."""
        edges = [list(dict.fromkeys(self._callees(number))) for number in range(len(self._functions))]
        return edges + self._shared

    def _callees(self, number: int) -> Iterator[int]:
        used = self._used[number]
        for name in used & self._top.keys():
            yield from self._imported(name, self._file_of[number])
        for file, held in self._tables_of(number):
            yield from self._in_table(file, held)
        of = self._class_of[number]
        if of >= 0:
            yield from self._of_class(of, used if self._uses_own_object(number) else self._mentioned(number))
        made = used | MAKING
        for class_ in used & self._named.keys():
            yield from self._of_name(class_, made)
        named = used - MAKING
        for classes in self._in_sight(number):
            yield from _of_names(self._methods_of_all(classes), named)
        explicit = used - _IMPLICIT[CALLING] - _AS_TEXT - MAKING
        for methods in map(self._methods_of_all, self._beside_class(of)):
            yield from _of_names(methods, explicit)
        for name in used & self._telling.keys():
            yield from self._telling[name]
        if of >= 0 and _ABOVE in used:
            mentioned = self._mentioned(number)
            for above in self._classes[of].lineage[1:]:
                yield from _of_names(self._classes[above].methods, mentioned)
        for computed in self._with_computed_names(number):
            for numbers in self._classes[computed].methods.values():
                yield from numbers

    def _with_computed_names(self, number: int) -> Iterator[int]:
        """The classes of the objects that a function gets attributes of by computed names."""
        if OF_FIRST in self._used[number] and self._class_of[number] >= 0:
            yield self._class_of[number]
        if COMPUTED in self._used[number]:
            yield from self._direct(number) - {self._class_of[number]}

    def _mentioned(self, number: int) -> frozenset[str]:
        """What a function mentions by a word of its own."""
        return self._used[number].intersection(self._functions[number].words)

    def _uses_own_object(self, number: int) -> bool:
        return OWN in self._functions[number].words

    def _tables_of(self, number: int) -> Iterator[tuple[int, frozenset[str]]]:
        """The tables that a function mentions, of its own file or of one that it imports."""
        place = self._file_of[number]
        for name in self._used[number] & self._tables.keys():
            found = self._meant_tables.get((name, place))
            if found is None:
                parts, places = self._imported_parts[place], self._place_parts
                tables = self._tables[name]
                meant = (t for t in tables if t[0] == place or name in parts or not parts.isdisjoint(places[t[0]]))
                found = self._meant_tables[name, place] = list(meant)
            yield from found

    def _in_table(self, file: int, held: frozenset[str]) -> list[int]:
        """The functions in a table of a file."""
        found = self._by_table.get((file, held))
        if found is None:
            meant = dict.fromkeys(f for name in held & self._top.keys() for f in self._imported(name, file))
            found = self._by_table[file, held] = self._as_one(list(meant))
        return found

    def _imported(self, name: str, file: int) -> list[int]:
        """The functions that a name can mean in a file: its own, those that it imports by name or whose module it
        imports, under whatever name."""
        found = self._by_import.get((name, file))
        if found is None:
            parts = self._imported_parts[file]
            if name in parts or "*" in parts:
                meant = list(self._top[name])
            else:
                by_file, by_part = self._tops_of(name)
                imported = (function for part in parts if part in by_part for function in by_part[part])
                meant = sorted({*by_file.get(file, ()), *imported})
            found = self._by_import[name, file] = self._as_one(meant)
        return found

    def _tops_of(self, name: str) -> tuple[dict[int, list[int]], dict[str, list[int]]]:
        """The functions of a name, which each of thousands of files may have, by their files, and by the parts of where
        these are."""
        if name not in self._top_of:
            by_file, by_part = (
                collections.defaultdict[int, list[int]](list),
                collections.defaultdict[str, list[int]](list),
            )
            for function in self._top[name]:
                file = self._file_of[function]
                by_file[file].append(function)
                for part in self._place_parts[file]:
                    by_part[part].append(function)
            self._top_of[name] = dict(by_file), dict(by_part)
        return self._top_of[name]

    def _of_name(self, class_: str, names: frozenset[str]) -> Iterator[int]:
        """The methods of these names that an object of a class of this name has."""
        if len(self._named[class_]) == 1:
            yield from self._of_class(self._named[class_][0], names)
        else:
            yield from _of_names(self._methods(class_), names)

    def _methods(self, class_: str) -> dict[str, list[int]]:
        """The methods by name that an object of one of the classes of this name has."""
        if len(self._named[class_]) == 1:
            return self._inherited(self._named[class_][0])
        found = self._by_name.get(class_)
        if found is None:
            found = self._by_name[class_] = self._merged(map(self._inherited, self._named[class_]))
        return found

    def _methods_of_all(self, classes: frozenset[str]) -> dict[str, list[int]]:
        """The methods by name that objects of these classes have."""
        found = self._by_classes.get(classes)
        if found is None:
            found = self._by_classes[classes] = self._merged(map(self._methods, classes))
        return found

    def _merged(self, several: Iterable[Mapping[str, list[int]]]) -> dict[str, list[int]]:
        """The methods by name of several classes together."""
        merged: dict[str, dict[int, None]] = collections.defaultdict(dict)
        for methods in several:
            for name, numbers in methods.items():
                merged[name].update(dict.fromkeys(numbers))
        return {name: self._as_one(list(numbers)) for name, numbers in merged.items()}

    def _as_one(self, functions: list[int]) -> list[int]:
        if len(functions) < 2:
            return functions
        self._shared.append(functions)
        return [len(self._functions) + len(self._shared) - 1]

    def _inherited(self, class_: int) -> dict[str, list[int]]:
        """All methods of a class by name, each from the nearest class that has it."""
        found: dict[str, list[int]] = {}
        for above in self._classes[class_].lineage:
            for name, numbers in self._classes[above].methods.items():
                found.setdefault(name, numbers)
        return found

    def _of_class(self, class_: int, names: frozenset[str]) -> Iterator[int]:
        """Those of `_inherited` that have one of the names."""
        left = names
        for above in self._classes[class_].lineage:
            methods = self._classes[above].methods
            # Thousands of bases have few methods each: an intersection goes over all of what is given first or second.
            found = left.intersection(methods) if len(methods) < len(left) else left & methods.keys()
            if found:
                left -= found
                yield from _of_names(methods, found)

    def _direct(self, number: int) -> set[int]:
        """The classes that a function is of or mentions itself."""
        of = self._class_of[number]
        found = {c for name in self._used[number] & self._named.keys() for c in self._named[name]}
        return found | {of} if of >= 0 else found

    def _in_sight(self, number: int) -> Iterator[frozenset[str]]:
        """The names of classes in sight of a function beside those that it mentions: those that its class mentions,
        where attributes are assigned, those of the tables that it mentions, and, where it uses variables of the module,
        those that the module's statements mention. Each set is that of many functions."""
        of = self._class_of[number]
        if of >= 0:
            yield self._held_by_class(of)
        file = self._file_of[number]
        if not self._used[number].isdisjoint(self._files[file].variables):
            yield self._classes_among(self._used[self._modules[file]])
        for _, held in self._tables_of(number):
            yield self._classes_among(held)

    def _classes_among(self, words: frozenset[str]) -> frozenset[str]:
        """Of words that many functions share."""
        if words not in self._classes_of_words:
            self._classes_of_words[words] = frozenset(words & self._named.keys())
        return self._classes_of_words[words]

    def _note_beside(self, number: int) -> None:
        """Note which classes a function mentions together, by itself or in a function that it calls: one may be made
        with an object of the other."""
        named = self._named.keys()
        mentioned = frozenset(self._used[number] & named)
        if not mentioned:
            return
        together = mentioned.union(*map(self._mentioned_in, self._used[number] & self._top.keys()))
        for class_ in mentioned if len(together) > 1 else ():
            if len(together) > _MANY:
                self._among[class_].append(together)
            else:
                self._beside[class_] |= together

    def _mentioned_in(self, function: str) -> frozenset[str]:
        """The classes that the functions of a name mention."""
        if function not in self._mentioned_by:
            used = (self._used[each] for each in self._top[function])
            self._mentioned_by[function] = frozenset(frozenset[str]().union(*used) & self._named.keys())
        return self._mentioned_by[function]

    def _beside_class(self, class_: int) -> Iterator[frozenset[str]]:
        """The names of classes that the functions mention which mention this one."""
        name = self._classes[class_].name if class_ >= 0 else ""
        if name in self._beside:
            yield frozenset(self._beside[name])
        yield from self._among.get(name, ())

    def _held_by_class(self, class_: int) -> frozenset[str]:
        if class_ not in self._held:
            words = (self._classes[above].words for above in self._classes[class_].lineage)
            self._held[class_] = frozenset(frozenset[str]().union(*words) & self._named.keys())
        return self._held[class_]

    # ---- events

    def _communicates(self, number: int, spelled: Mapping[str, list[_Spelling]]) -> bool:
        """Does it communicate by what it mentions itself?"""
        used, events = self._used[number], self._events
        place = self._file_of[number]
        wraps = self._wraps[number]
        if not used.isdisjoint(events.alone):
            return True
        if wraps and not used.isdisjoint(events.alone_wrapped):
            return True
        if any(self._classes[class_].communicates for class_ in self._direct(number)):
            return True
        function = self._functions[number]
        if function.method_of >= 0 and function.name.rpartition(".")[2] in _FOLLOWED_BY_BACKWARD:
            return True
        if function.top and self._is_of_framework(function.name, place):
            return True
        return any(
            spelling.words <= used
            and (wraps or not spelling.wrapped)
            and (not spelling.imported or self._may_import(place, name, spelling.imported))
            for name in used & spelled.keys()
            for spelling in spelled[name]
        )

    def _may_import(self, place: int, name: str, target: str) -> bool:
        """Does a file get a name from an import of `target`, or from a module of the project, which may hand it on?"""
        origins = [origin for origin, own in self._files[place].imports if own in (name, "*")]
        return any(o == target or o.startswith(".") or o.partition(".")[0] in self._packages for o in origins)

    def _is_of_framework(self, name: str, place: int) -> bool:
        """Is it the code of a framework's collective itself, by its name and the place of its file?"""
        parts = set(re.split(r"[/\\.]", self._paths[place]))
        return any(need.words <= parts for need in self._events.functions.get(name, ()))

    def _spellings(self) -> dict[str, list[_Spelling]]:
        """How the project's files can spell each communicating function: by the names that any of them gives to it or
        to the modules that it is in. By the word that a mention of it holds for certain."""
        bound: dict[str, set[str]] = collections.defaultdict(set)
        for file in self._files:
            for target, name in file.imports:
                bound[target].add(name)
        found: dict[str, list[_Spelling]] = collections.defaultdict(list)
        for name, needs in self._events.functions.items():
            for need in needs:
                for own in bound.get(f"{need.module}.{name}", ()):
                    found[own].append(_Spelling(frozenset({own}), need.wrapped, f"{need.module}.{name}"))
                if f"{need.module}.*" in bound:
                    found[name].append(_Spelling(frozenset({name}), need.wrapped))
                parts = need.module.split(".")
                for length in range(1, len(parts) + 1):
                    for own in bound.get(".".join(parts[:length]), ()):
                        found[name].append(_Spelling(frozenset({name, own, *parts[length:]}), need.wrapped))
        return found

    def answer(self) -> Reach:
        words_of_files = self._words_of_files()
        found = bytearray(len(self._functions))
        spelled = self._spellings()
        for number in range(len(self._functions)):
            found[number] = self._communicates(number, spelled)
        edges = self._edges()
        shared = len(edges) - len(found)
        nothing = [frozenset[str]()] * shared
        found += bytearray(shared)
        _spread(found, edges)
        shown = self._shown(words_of_files) + [()] * shared
        wraps = self._wraps + [False] * shared
        travelling = Travelling(self._events, shown, wraps, self._used + nothing, edges)
        while True:
            new = travelling.more(self._communicating_methods(found), found)
            if not new:
                break
            for number in new:
                found[number] = True
            _spread(found, edges)
        by_file: dict[str, set[str]] = {path: set() for path in self._paths}
        for function, place, communicates in zip(self._functions, self._file_of, found, strict=False):
            if communicates:
                by_file[self._paths[place]].add(function.name)
        return {path: frozenset(names) for path, names in by_file.items()}

    def _words_of_files(self) -> list[frozenset[str]]:
        showing = self._showing
        words: list[set[str]] = [set(showing.intersection(_parts(file))) for file in self._files]
        for number, file in enumerate(self._file_of):
            words[file] |= showing & self._used[number]
        return [frozenset(each) for each in words]

    def _shown(self, words_of_files: list[frozenset[str]]) -> list[tuple[frozenset[str], ...]]:
        """For each function the words that show objects and name classes in sight: its own, its class's, its file's
        imports, those of the files whose functions its class mentions, and the names of all that the classes in sight
        inherit from. Its own class is in sight where it uses its object for more than an attribute: what it calls of it
        is an edge. As sets of its own and of many functions."""
        showing, packages = self._showing, self._events.packages
        shown, by_class = [], dict[int, frozenset[str]]()
        for number, file in enumerate(self._file_of):
            of = self._class_of[number]
            words = set(showing & self._used[number] | words_of_files[file] & packages)
            words.update(*map(self._named_above, self._used[number] & self._named.keys()))
            of_others = [*map(self._named_above_all, self._in_sight(number))]
            if of >= 0:
                if of not in by_class:
                    made_by = (f for name in self._classes[of].words & self._top.keys() for f in self._top[name])
                    of_files = (words_of_files[self._file_of[function]] & packages for function in made_by)
                    own = (showing.intersection(self._classes[above].bases) for above in self._classes[of].lineage)
                    by_class[of] = (showing & self._classes[of].words).union(*own, *of_files)
                of_others.append(by_class[of])
                if self._uses_own_object(number):
                    of_others.append(self._above(of))
            shown.append((frozenset(words), *of_others))
        return shown

    def _named_above_all(self, classes: frozenset[str]) -> frozenset[str]:
        """The words that show what objects of classes of these names are."""
        if classes not in self._shown_by_classes:
            self._shown_by_classes[classes] = frozenset[str]().union(*map(self._named_above, classes))
        return self._shown_by_classes[classes]

    def _named_above(self, class_: str) -> frozenset[str]:
        """The words that show what objects of a class of this name are."""
        if class_ not in self._shown_by_name:
            self._shown_by_name[class_] = frozenset[str]().union(*map(self._above, self._named[class_]))
        return self._shown_by_name[class_]

    def _above(self, class_: int) -> frozenset[str]:
        if class_ not in self._shown_by_class:
            lineage = [self._classes[above] for above in self._classes[class_].lineage]
            bases = (self._showing.intersection(above.bases) for above in lineage)
            self._shown_by_class[class_] = frozenset({above.name for above in lineage}.union(*bases))
        return self._shown_by_class[class_]

    def _wrapping(self) -> list[bool]:
        """For each function whether its file wraps models, or one that its class inherits from does."""
        wraps = [file.wraps for file in self._files]
        found = []
        for number, file in enumerate(self._file_of):
            of = self._class_of[number]
            above = self._classes[of].lineage if of >= 0 else ()
            found.append(wraps[file] or any(wraps[self._classes[c].file] for c in above))
        return found

    def _communicating_methods(self, found: bytearray) -> dict[str, set[str]]:
        """Names of methods that communicate, each with the names of the classes whose objects have it."""
        methods: dict[str, set[str]] = collections.defaultdict(set)
        for class_ in self._classes:
            for name, numbers in class_.methods.items():
                if any(found[number] for number in numbers):
                    methods[name].add(class_.name)
        return methods


def _of_names(methods: Mapping[str, list[int]], names: frozenset[str]) -> Iterator[int]:
    for name in names & methods.keys():
        yield from methods[name]


def _place(path: str) -> frozenset[str]:
    """The names by which a module can be imported: that of its file, or of its folder."""
    folder, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    return frozenset({stem} if stem != "__init__" else {os.path.basename(folder)})


def _folders(path: str) -> Iterator[str]:
    """The names of all folders above a file, and its own."""
    return (part.removesuffix(".py") for part in re.split(r"[/\\]", path) if part)


def _parts(file: FileMentions) -> set[str]:
    """The parts of all dotted names that a file imports."""
    return {part for target, _ in file.imports for part in target.split(".")}


def _spread(found: bytearray, edges: list[list[int]]) -> None:
    """Mark all that leads to what is marked."""
    callers: list[list[int]] = [[] for _ in edges]
    for caller, callees in enumerate(edges):
        if not found[caller]:
            for callee in callees:
                callers[callee].append(caller)
    stack = [number for number, marked in enumerate(found) if marked]
    while stack:
        for caller in callers[stack.pop()]:
            if not found[caller]:
                found[caller] = True
                stack.append(caller)

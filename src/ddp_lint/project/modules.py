"""The Python modules of a project: which file a name means, and what each holds, parsed on demand."""

from __future__ import annotations

import ast
import collections
import os
import pathlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from ddp_lint.project.contents import Contents
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.grafting import graft
from ddp_lint.project.layout import Layout
from ddp_lint.project.parts import OUTLINE, PART, Basis, Parts, parts_of
from ddp_lint.project.paths import Paths
from ddp_lint.project.results import KeptResults
from ddp_lint.source.file import SourceFile
from ddp_lint.source.imports import ImportTable, folders_put_on_path, is_script
from ddp_lint.source.parsing import CannotParse, parse

#: Characters of source whose syntax trees are kept; a tree takes some 26 bytes a character. Where others keep trees of
#: more than there may be in memory, those of so many are.
_KEPT_SOURCE, _LEAST_SOURCE = 4_000_000, 500_000


class _Characters:
    """Characters of all that was added, as long as anything refers to it."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, facts: ModuleFacts, characters: int) -> None:
        self.total += characters
        weakref.finalize(facts, self._gone, characters).atexit = False

    def _gone(self, characters: int) -> None:
        self.total -= characters


class Modules:
    """The modules below one root."""

    def __init__(self, results: KeptResults, paths: Paths, layout: Layout, contents: Contents) -> None:
        self._results = results
        self._paths = paths
        self._layout = layout
        self._contents = contents
        self._facts: collections.OrderedDict[str, ModuleFacts | None] = collections.OrderedDict()
        self._problems: dict[str, CannotParse] = {}
        self._kept_source = 0
        #: Those of files that are kept here no longer, as long as anything else refers to them.
        self._used: weakref.WeakValueDictionary[str, ModuleFacts] = weakref.WeakValueDictionary()
        self._in_memory = _Characters()
        #: By path, what the facts of a file depend on, and its parts.
        self._bases: dict[str, Basis] = {}
        self._parts: dict[str, Parts] = {}

    # ---- names

    def name_of(self, path: pathlib.Path) -> tuple[str, bool]:
        """The dotted name of the module in a file, unique in the project, and whether it is a package's `__init__`."""
        return self._layout.name_of(os.path.normpath(path))

    def find(self, name: str) -> pathlib.Path | None:
        """The file of a project module by its dotted name."""
        path = self.place(name)
        return pathlib.Path(path) if path else None

    def place(self, name: str) -> str | None:
        """`find`, for who asks often: the path as a text."""
        path = self._layout.find(name)
        self._results.ask(f"find:{name}", self._paths.relative(path) if path else "")
        return path

    def locate(self, name: str, path: pathlib.Path, script: bool, below: tuple[str, ...] = ()) -> str:
        """What an absolute import of `name` means in the file `path`, as a name that `find` and `Meanings` take.

        A recipe's ``from utils import x`` means the `utils` in its folder; what the project does not have is returned
        as it is. `script`: the file is started itself (`is_script`). `below`: what it puts on the path of modules
        (`folders_put_on_path`).
        """
        return self.locate_from(name, os.path.dirname(os.path.normpath(path)), script, below)

    def locate_from(self, name: str, folder: str, script: bool, below: tuple[str, ...]) -> str:
        """`locate`, for a file in a folder."""
        found = self._layout.locate(name, folder, script, below)
        folders = " ".join((str(int(script)), *below))
        self._results.ask(f"locate:{folders}:{name}:{self._paths.relative(folder)}", found)
        return found

    def imports(self, tree: Any, path: pathlib.Path, text: str) -> ImportTable:
        """The import table of a file, its absolute imports taken as they are meant at its place."""
        name, is_package = self.name_of(path)
        folder, script = os.path.dirname(os.path.normpath(path)), is_script(text)
        below = folders_put_on_path(text)
        return ImportTable.of(tree, name, is_package, lambda target: self.locate_from(target, folder, script, below))

    # ---- what they hold

    def facts(self, name: str) -> ModuleFacts | None:
        """The facts of a project module by name; None when it is no project module or cannot be read."""
        path = self.place(name)
        return self.facts_at(path) if path else None

    def facts_of(self, path: pathlib.Path) -> ModuleFacts | None:
        """The facts of the module in a file; None when it cannot be read or parsed."""
        return self.facts_at(os.path.normpath(path))

    def facts_at(self, path: str) -> ModuleFacts | None:
        """`facts_of`, for a path that is normal."""
        if path in self._facts:
            self._facts.move_to_end(path)
        else:
            self._keep(path, self._still_used(path) or self._read_for_all(path))
        self._results.note(self._bases[path])
        return self._facts[path]

    def but_tests(self, paths: Iterable[pathlib.Path], most: int | None = None) -> Iterator[ModuleFacts]:
        """The facts of the modules in files, but for tests, each once; none where there are more files than `most`."""
        each = dict.fromkeys(paths)
        for path in each if most is None or len(each) <= most else ():
            facts = self.facts_of(path)
            if facts is not None and not facts.source.is_test:
                yield facts

    def known_facts(self, path: str | pathlib.Path) -> ModuleFacts | None:
        """The facts of the module in a file, if they were read."""
        return self._facts.get(os.path.normpath(path))

    def problem(self, path: pathlib.Path) -> CannotParse | None:
        """Why `ast` cannot parse a file whose `facts_of` is None; None also when it cannot be read."""
        return self._problems.get(os.path.normpath(path))

    def parts(self, path: str) -> Parts | None:
        """The parts of a file; None where it cannot be parsed."""
        if path not in self._parts:
            self.facts_at(path)
        return self._parts.get(path)

    @property
    def source_in_memory(self) -> int:
        """Characters of the modules whose syntax trees are in memory, kept here or by who uses them."""
        return self._in_memory.total

    def _still_used(self, path: str) -> ModuleFacts | None:
        """The facts of a file that were kept once and that others still refer to: a second tree of it would make them
        start again."""
        facts, held = self._used.get(path), self._contents.held(path)
        return facts if facts is not None and (held is None or held.text == facts.source.text) else None

    def _read_for_all(self, path: str) -> ModuleFacts | None:
        before = self._results.charges.turn_to(self._paths.shown(path))
        try:
            with self._results.recording(apart=True) as asked:
                facts = self._read(path)
        finally:
            self._results.charges.turn_to(before)
        self._bases[path] = self._results.basis_of(asked)
        return facts

    def _read(self, path: str) -> ModuleFacts | None:
        results, file, inside = self._results, self._contents.read(path), self._paths.relative(path)
        try:
            tree = parse(file.text) if file else None
        except CannotParse as e:
            self._problems[path] = e
            tree = None
        if file is None or tree is None:
            results.note(f"file:{inside}")
            return None
        name, _ = self._layout.name_of(path)
        imports = self.imports(tree, pathlib.Path(path), file.text)
        besides = repr((name, imports)) if results.is_recording else ""
        parts = parts_of(tree, file.text, besides, results.recorder, inside, digested=results.is_recording)
        if parts is not None:
            self._parts[path] = parts
        results.note(f"{PART}:{OUTLINE}:{inside}")
        facts = ModuleFacts(name, file, tree, imports, note=results.note)
        self._in_memory.add(facts, len(file.text))
        return facts

    # ---- which are kept

    def _keep(self, path: str, facts: ModuleFacts | None) -> None:
        self._facts[path] = facts
        self._kept_source += len(facts.source.text) if facts else 0
        self._keep_at_most(_KEPT_SOURCE)

    def keep_least(self) -> None:
        """Let go of what nobody else uses, but for the latest."""
        self._keep_at_most(_LEAST_SOURCE)

    def _keep_at_most(self, characters: int) -> None:
        while self._kept_source > characters and len(self._facts) > 1:
            gone, dropped = self._facts.popitem(last=False)
            self._kept_source -= len(dropped.source.text) if dropped else 0
            self._let_go(dropped)
            if dropped is not None and not self._results.is_changing:
                self._used[gone] = dropped

    def _let_go(self, facts: ModuleFacts | None) -> None:
        """Break the circles of a module and what is kept with it, which would keep its tree until Python looks for
        garbage."""
        if facts is not None:
            self._results.forget_memory(facts.kept)

    def let_go_of_trees(self) -> None:
        """Let go of the syntax trees that are kept here no longer."""
        for facts in list(self._used.values()):
            self._let_go(facts)

    # ---- files that change

    def hold(self, path: pathlib.Path, file: SourceFile) -> None:
        """Take `file` as the content of `path`: it was read already, or is not on disk (an editor's buffer)."""
        key = os.path.normpath(path)
        self._contents.hold(key, file)
        if key in self._facts and ((known := self._facts[key]) is None or known.source.text != file.text):
            del self._facts[key]

    def forget(self, path: str) -> None:
        """A file has other content from now on."""
        self._let_go(self._facts.pop(path, None))
        self._problems.pop(path, None)
        self._parts.pop(path, None)

    def edit(self, path: str, file: SourceFile) -> list[ast.AST] | None:
        """Give a module the text of `file` where it differs within functions and moves no line: the functions that
        have changed. None for any other edit: nothing is done."""
        facts, earlier = self._facts.get(path), self._parts.get(path)
        if facts is None or earlier is None:
            return None
        try:
            tree = parse(file.text)
        except CannotParse:
            return None
        imports, inside = self.imports(tree, pathlib.Path(path), file.text), self._paths.relative(path)
        parts = parts_of(tree, file.text, repr((facts.name, imports)), self._results.recorder, inside)
        if (
            parts is None
            or parts.digests.keys() != earlier.digests.keys()
            or parts.digests[OUTLINE] != earlier.digests[OUTLINE]
        ):
            return None
        changed = graft(facts.tree, tree, facts.source.text, file.text)
        if changed is not None:
            facts.renew(file)
            self._parts[path] = parts
        return changed

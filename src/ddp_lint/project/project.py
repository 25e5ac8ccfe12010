"""Modules of the project by name, parsed on demand."""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import hashlib
import importlib
import os
import pathlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from ddp_lint import files
from ddp_lint.knowledge import canonical, frameworks
from ddp_lint.knowledge.project_names import Names, wrapping_pattern
from ddp_lint.project import layout
from ddp_lint.project.facts import MOST_BASES, ClassFacts, Definition, ModuleFacts
from ddp_lint.project.framework_imports import SHARDING, FrameworkImports
from ddp_lint.project.grafting import graft
from ddp_lint.project.outcomes import NO_OUTCOMES, Earlier, Outcomes
from ddp_lint.project.parts import (
    ALL,
    CALLS,
    OF_FILE,
    OUTLINE,
    PART,
    SAYS,
    SHOWS,
    STORES,
    SUMS,
    TESTED,
    TESTS,
    Asked,
    Basis,
    Parts,
    digest_derived,
    digest_of_calls,
    digest_of_stores,
    file_of,
    parts_of,
)
from ddp_lint.project.project_names import Own
from ddp_lint.project.results import KeptResults
from ddp_lint.project.types import Types
from ddp_lint.project.words import WordSearch
from ddp_lint.source.file import SourceFile, Unreadable
from ddp_lint.source.imports import ImportTable, dotted_ast, folders_put_on_path, is_script
from ddp_lint.source.occurring import occurs
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.source.wrap_evidence import in_code

if TYPE_CHECKING:
    from ddp_lint.program import Reach


def digest_in(answer: str) -> str:
    """The digest of the whole file in the answer to a question about one or about a part of one."""
    return answer.partition(":")[0]


class _Characters:
    """Characters of all that was added, as long as anything refers to it."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, facts: ModuleFacts, characters: int) -> None:
        self.total += characters
        weakref.finalize(facts, self._gone, characters).atexit = False

    def _gone(self, characters: int) -> None:
        self.total -= characters


_REEXPORT_LIMIT = 16
#: What answers the questions about what all methods of a class do.
_OF_METHODS = {STORES: digest_of_stores, CALLS: digest_of_calls, SUMS: digest_derived}
#: Kinds of questions that the text alone answers, without a tree of it.
_OF_TEXT = frozenset({SAYS, SHOWS, TESTED})
#: Characters of source whose syntax trees are kept; a tree takes some 50 bytes a character.
_KEPT_SOURCE = 4_000_000


@functools.lru_cache(maxsize=65_536)
def _path(name: str) -> pathlib.Path:
    """A path by its name. To take a name apart costs as much as it is long, for each file that asks and each found."""
    return pathlib.Path(name)


class Project(KeptResults):
    """The Python modules below one root. Nothing is read before it is needed.

    What is read of other files is recorded as a *question* (`KeptResults`), whose answer is a digest (`answer`). `own`:
    what the configuration says of names of the project's own, whose changes are no questions: the key of the cache
    includes all settings.

    With `changing`, files may change while the project is in use, as in an editor: `change` has to be called.
    """

    def __init__(
        self, root: pathlib.Path, cwd: pathlib.Path | None = None, names: Names | None = None, *, changing: bool = False
    ) -> None:
        super().__init__(changing=changing)
        self.root = root
        self.own = Own(self, names or Names())
        self._cwd = os.path.normpath(cwd or pathlib.Path.cwd())
        self._layout = layout.Layout(root)
        self._facts: collections.OrderedDict[str, ModuleFacts | None] = collections.OrderedDict()
        self._problems: dict[str, CannotParse] = {}
        self._kept_source = 0
        #: Those of files that are kept here no longer, as long as anything else refers to them.
        self._used: weakref.WeakValueDictionary[str, ModuleFacts] = weakref.WeakValueDictionary()
        self._in_memory = _Characters()
        self._held: dict[str, SourceFile] = {}
        #: What is taken as the content of files instead of what is on disk.
        self._instead: dict[str, SourceFile] = {}
        #: By path, what the facts of a file depend on, and its parts.
        self._bases: dict[str, Basis] = {}
        self._parts: dict[str, Parts] = {}
        self._answers: dict[str, str] = {}
        self._holding: dict[str, tuple[str, ...]] = {}
        self._words = WordSearch(self._layout.files)
        self._searched: list[str] = []
        self._digests: Mapping[str, str] = {}
        #: What was worked out of files that have changed since results were kept, by questions about their parts.
        self.answers_of_parts: dict[str, str] = {}
        #: Which functions can communicate, once a run looks at a large part of the project.
        self.reach: Reach | None = None
        self._read_reach: Callable[[], Reach | None] = lambda: None
        #: What is known of the functions of the files that were analysed, and how to learn of an earlier run's.
        self._outcomes: dict[str, Outcomes] = {}
        self._earlier_outcomes: Callable[[str], Earlier] = lambda inside: NO_OUTCOMES
        self._open: dict[str, SourceFile] = {}
        #: What an analysis keeps for as long as the project lives. It refers to the project, so a table of its own with
        #: the project as a weak key would never be emptied.
        self.attached: dict[str, Any] = {}

    @functools.cached_property
    def types(self) -> Types:
        """Which class an expression is an instance of, across the project's files."""
        return Types(self)

    # ---- names of modules

    def module_name(self, path: pathlib.Path) -> tuple[str, bool]:
        """The dotted name of the module in a file, unique in the project, and whether it is a package's `__init__`."""
        return self._layout.name_of(os.path.normpath(path))

    def find(self, name: str) -> pathlib.Path | None:
        """The file of a project module by its dotted name."""
        path = self._find(name)
        return pathlib.Path(path) if path else None

    def _find(self, name: str) -> str | None:
        path = self._layout.find(name)
        self._ask(f"find:{name}", self._relative(path) if path else "")
        return path

    def locate(self, name: str, path: pathlib.Path, script: bool, below: tuple[str, ...] = ()) -> str:
        """What an absolute import of `name` means in the file `path`, as a name that `find` and `canonical` take.

        A recipe's ``from utils import x`` means the `utils` in its folder; what the project does not have is returned
        as it is. `script`: the file is started itself (`is_script`). `below`: what it puts on the path of modules
        (`folders_put_on_path`).
        """
        return self._locate(name, os.path.dirname(os.path.normpath(path)), script, below)

    def _locate(self, name: str, folder: str, script: bool, below: tuple[str, ...]) -> str:
        found = self._layout.locate(name, folder, script, below)
        self._ask(f"locate:{' '.join((str(int(script)), *below))}:{name}:{self._relative(folder)}", found)
        return found

    def imports(self, tree: Any, path: pathlib.Path, text: str) -> ImportTable:
        """The import table of a file, its absolute imports taken as they are meant at its place."""
        name, is_package = self.module_name(path)
        folder, script = os.path.dirname(os.path.normpath(path)), is_script(text)
        below = folders_put_on_path(text)
        return ImportTable.of(tree, name, is_package, lambda target: self._locate(target, folder, script, below))

    # ---- paths

    def shown(self, path: pathlib.Path) -> str:
        """The path as findings show it: relative to the working directory when below it."""
        return files.shown_from(self._cwd, path)

    def inside(self, path: str | pathlib.Path) -> str:
        """The path relative to the project's root: what settings and fingerprints go by, wherever one runs from."""
        return self._relative(os.path.normpath(path))

    def inside_of_shown(self, path: str) -> str:
        """The path relative to the root for one as findings show it."""
        return self._relative(os.path.normpath(os.path.join(self._cwd, path)))

    def _relative(self, path: str) -> str:
        return files.below(self._layout.root, path)

    def absolute(self, path: str) -> str:
        """The inverse of `inside`."""
        return os.path.normpath(os.path.join(self._layout.root, path))

    # ---- facts

    def text(self, path: pathlib.Path) -> str | None:
        """The text of any file, Python or not; None when it cannot be read."""
        file = self._file(os.path.normpath(path))
        return file.text if file else None

    def holding(self, word: str) -> tuple[pathlib.Path, ...]:
        """The Python files below the root whose text holds `word`, by a scan of all of them, once a word."""
        question = f"holding:{word}"
        if word not in self._holding:
            # Where files change, they are read again.
            words = self._words if self._resting is None else WordSearch(self._layout.files)
            self._holding[word] = words.holding(word)
            self._searched.append(word)
            inside = "\n".join(map(self._relative, self._holding[word]))
            self._answers[question] = hashlib.sha256(inside.encode("utf-8", "surrogatepass")).hexdigest()
        self._ask(question, self._answers[question])
        # What is held counts with the text at hand, which need not be the one on disk.
        found = [path for path in self._holding[word] if path not in self._held]
        found += [path for path, file in self._held.items() if file.holds(word)]
        return tuple(map(_path, sorted(found)))

    def searched(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The words that were searched for since the last call, each with the paths below the root that hold it."""
        words, self._searched = self._searched, []
        return ((word, tuple(map(self._relative, self._holding[word]))) for word in words)

    def facts(self, name: str) -> ModuleFacts | None:
        """The facts of a project module by name; None when it is no project module or cannot be read."""
        path = self._find(name)
        return self._facts_of(path) if path else None

    def facts_of(self, path: pathlib.Path) -> ModuleFacts | None:
        """The facts of the module in a file; None when it cannot be read or parsed."""
        return self._facts_of(os.path.normpath(path))

    def _facts_of(self, path: str) -> ModuleFacts | None:
        if path in self._facts:
            self._facts.move_to_end(path)
        else:
            self._keep(path, self._still_used(path) or self._read_for_all(path))
        self._note(self._bases[path])
        return self._facts[path]

    def _still_used(self, path: str) -> ModuleFacts | None:
        """The facts of a file that were kept once and that others still refer to: a second tree of it would make them
        start again."""
        facts, held = self._used.get(path), self._held.get(path)
        return facts if facts is not None and (held is None or held.text == facts.source.text) else None

    def _read_for_all(self, path: str) -> ModuleFacts | None:
        before = self.charges.turn_to(self.shown(pathlib.Path(path)))
        try:
            with self.recording(apart=True) as asked:
                facts = self._read(path)
        finally:
            self.charges.turn_to(before)
        self._bases[path] = self._basis(asked)
        return facts

    def _keep(self, path: str, facts: ModuleFacts | None) -> None:
        self._facts[path] = facts
        self._kept_source += len(facts.source.text) if facts else 0
        while self._kept_source > _KEPT_SOURCE and len(self._facts) > 1:
            gone, dropped = self._facts.popitem(last=False)
            self._kept_source -= len(dropped.source.text) if dropped else 0
            self._let_go(dropped)
            if dropped is not None and not self.is_changing:
                self._used[gone] = dropped

    def _let_go(self, facts: ModuleFacts | None) -> None:
        """Break the circles of a module and what is kept with it, which would keep its tree until Python looks for
        garbage."""
        if facts is not None:
            self._memories.pop(id(facts.kept), None)
            facts.kept.clear()

    def known_facts(self, path: pathlib.Path) -> ModuleFacts | None:
        """The facts of the module in a file, if they were read."""
        return self._facts.get(os.path.normpath(path))

    def problem(self, path: pathlib.Path) -> CannotParse | None:
        """Why `ast` cannot parse a file whose `facts_of` is None; None also when it cannot be read."""
        return self._problems.get(os.path.normpath(path))

    def _read(self, path: str) -> ModuleFacts | None:
        file = self._content(path)
        whole = f"file:{self._relative(path)}"
        try:
            tree = parse(file.text) if file else None
        except CannotParse as e:
            self._problems[path] = e
            tree = None
        if file is None or tree is None:
            self._note(whole)
            return None
        name, _ = self._layout.name_of(path)
        imports = self.imports(tree, pathlib.Path(path), file.text)
        inside = self._relative(path)
        besides = repr((name, imports)) if self._records else ""
        parts = parts_of(tree, file.text, besides, self._recorder, inside, digested=self._records)
        if parts is not None:
            self._parts[path] = parts
        self._note(f"{PART}:{OUTLINE}:{inside}")
        facts = ModuleFacts(name, file, tree, imports, note=self._note)
        self._in_memory.add(facts, len(file.text))
        return facts

    @property
    def source_in_memory(self) -> int:
        """Characters of the modules whose syntax trees are in memory, kept here or by who uses them."""
        return self._in_memory.total

    def _file(self, path: str) -> SourceFile | None:
        self._note(f"file:{self._relative(path)}")
        return self._content(path)

    def _content(self, path: str) -> SourceFile | None:
        """A file, for who says what of it a result depends on."""
        file = self._held.get(path) or self._instead.get(path)
        if file is None:
            try:
                file = SourceFile.read(pathlib.Path(path), files.below(self._cwd, path), self._relative(path))
            except Unreadable:
                file = None
        self._answers[f"file:{self._relative(path)}"] = file.digest if file else ""
        return file

    def digest_now(self, path: str) -> str:
        """The digest of a file as it is on disk, '' where it cannot be read."""
        try:
            return SourceFile.read(pathlib.Path(path), path, self._relative(path)).digest
        except Unreadable:
            return ""

    def hold(self, path: pathlib.Path, file: SourceFile) -> None:
        """Take `file` as the content of `path`: it was read already, or is not on disk (an editor's buffer)."""
        key = os.path.normpath(path)
        self._held = {**self._open, key: file}
        self._ask(f"file:{self._relative(key)}", file.digest)
        if key in self._facts and ((known := self._facts[key]) is None or known.source.text != file.text):
            del self._facts[key]

    def take_instead(self, texts: Mapping[pathlib.Path, SourceFile]) -> None:
        """Before anything is asked: take these as what is on disk."""
        self._instead = {os.path.normpath(path): file for path, file in texts.items()}
        self._words = WordSearch(self._layout.files, read=self._bytes)

    def _bytes(self, path: str) -> bytes:
        file = self._instead.get(path)
        return file.text.encode("utf-8", "surrogatepass") if file is not None else files.read_or_nothing(path)

    # ---- what can communicate

    def uses_frameworks(self, inside: str) -> bool:
        """Whether a file, by its path below the root, or one that it imports, uses a framework of several ranks, in a
        project that has several ranks anywhere."""
        question = f"uses:{inside}"
        imports, path = self._framework_imports, self.absolute(inside)
        uses = bool(self.own) or (imports.reach(path) and imports.has_ranks(path))
        self._ask(question, str(int(uses)))
        return uses

    def may_communicate(self, inside: str) -> bool:
        """Whether anything in a file, by its path below the root, can communicate: it uses a framework, or the project
        shards parts of models, which any file may call."""
        return not inside or self.uses_frameworks(inside) or any(map(self.holding, SHARDING))

    @functools.cached_property
    def _framework_imports(self) -> FrameworkImports:
        return FrameworkImports(self._layout, self._text_now)

    def _text_now(self, path: str) -> str | None:
        """The text of a file, for who says what of it a result depends on."""
        facts = self._facts.get(path)
        file = facts.source if facts is not None else self._held.get(path) or self._instead.get(path)
        try:  # as it is read to be checked: a notebook is its cells
            return (file or SourceFile.read(pathlib.Path(path), path)).text
        except Unreadable:
            return None

    def communicating(self, inside: str) -> frozenset[str] | None:
        """The functions that can communicate in a file, by its path below the root: their names, '' for the file's own
        statements (`program.reach`). None where that is not known, and any may."""
        if self.reach is None:
            return None
        found = self.reach.get(self.absolute(inside))
        self._ask(f"reach:{inside}", _digest_of(found))
        return found

    def find_reach_by(self, read: Callable[[], Reach | None]) -> None:
        """How to learn what can communicate, when an earlier result depends on it; None: only by more work than the
        result saves."""
        self._read_reach = read

    def find_outcomes_by(self, find: Callable[[str], Earlier]) -> None:
        """How to learn what an earlier run knows of the functions of a file, by its path below the root."""
        self._earlier_outcomes = find

    def outcomes(self, inside: str) -> Outcomes:
        """What is known of the functions of a file, by its path below the root."""
        found = self._outcomes.get(inside)
        if found is None:
            found = self._outcomes[inside] = Outcomes(self.note_all, inside, self._earlier_outcomes(inside))
        return found

    def take_outcomes(self, inside: str) -> Iterator[tuple[str, bool, tuple[tuple[str, str], ...]]]:
        """The outcomes in a file with the questions about it that they depend on and their answers; it is done with."""
        found = self._outcomes.pop(inside, None)
        for name, outcome in found.made.items() if found is not None else ():
            whole = self._answers[f"file:{inside}"]
            yield name, outcome.value, tuple((q, f"{whole}:{self._part_answer(q)}") for q in outcome.questions)

    @property
    def layout(self) -> layout.Layout:
        """Where the modules lie."""
        return self._layout

    def python_files(self) -> list[str]:
        """All Python files below the root, as absolute paths."""
        return self._layout.files()

    def know(self, digests: Mapping[str, str], words: WordSearch, answers: Mapping[str, str]) -> None:
        """Use what is known of the files from an earlier run: the digests of those that have not changed, by their
        paths below the root, what was worked out of their parts, and which of them hold the words that were searched
        for."""
        self._digests, self._words = digests, words
        self.answers_of_parts.update(answers)
        self._answers.update(answers)

    def named(self, patterns: str) -> tuple[str, ...]:
        """The files that lie in the folders of the project's Python files, or around them, and have a name like one of
        the patterns (between spaces, in lower case): their paths below the root, sorted."""
        found = tuple(map(self._relative, self._layout.named(patterns)))
        self._ask(f"named:{patterns}", hashlib.sha256("\n".join(found).encode("utf-8", "surrogatepass")).hexdigest())
        return found

    def prepare_search(self) -> None:
        """Read all files, for a run that is going to search them for many words."""
        self._words.prepare()

    # ---- files that change

    def edit(self, path: pathlib.Path, file: SourceFile) -> bool:
        """`change`, where the edit lies within functions and moves no line: what depends on other parts of the file is
        kept, with the nodes of its syntax tree. False for any other edit: nothing is done."""
        key = os.path.normpath(path)
        facts, earlier, inside = self._facts.get(key), self._parts.get(key), self._relative(key)
        if facts is None or earlier is None:
            return False
        try:
            tree = parse(file.text)
        except CannotParse:
            return False
        imports = self.imports(tree, path, file.text)
        parts = parts_of(tree, file.text, repr((facts.name, imports)), self._recorder, inside)
        if (
            parts is None
            or parts.digests.keys() != earlier.digests.keys()
            or parts.digests[OUTLINE] != earlier.digests[OUTLINE]
        ):
            return False
        changed = graft(facts.tree, tree, facts.source.text, file.text)
        if changed is None:
            return False
        before = self._words_held(key)
        self._open[key] = file
        self._held = dict(self._open)
        facts.renew(file)
        self._parts[key] = parts
        gone = {f"file:{inside}", *(node.__dict__["question"] for node in changed)}
        for question, answer in self._questions_about(inside).items():
            kind = question.partition(":")[0]
            if (kind in _OF_METHODS and changed) or (kind in _OF_TEXT and answer != self._part_answer(question)):
                gone.add(question)
        self._forget([*gone, *self._about_frameworks(key), *self._about_words(before, key)])
        return True

    def _about_words(self, before: set[str], key: str) -> Iterator[str]:
        """The questions about words that a changed file holds now or held before."""
        return (f"holding:{word}" for word in before ^ self._words_held(key))

    def _about_frameworks(self, key: str) -> list[str]:
        """The questions about the use of frameworks that may have other answers now that a file has changed."""
        if not self._framework_imports.changed(key):
            return []
        found = [question for question in self._answers if question.startswith("uses:")]
        for question in found:
            del self._answers[question]
        return found

    def _words_held(self, key: str) -> set[str]:
        return {word for word in self._holding if self._holds(word, key)}

    def _questions_about(self, inside: str) -> dict[str, str | None]:
        """The questions about a file that kept results depend on, with the answers until now, which are forgotten."""
        about = [question for question in self._answers if question.endswith(f":{inside}")]
        known = {question: self._answers.pop(question) for question in about}
        asked = (item for item in self._resting or () if isinstance(item, str) and item.endswith(f":{inside}"))
        return {question: known.get(question) for question in asked}

    def _answer_of(self, kind: str, what: str, file: SourceFile | None) -> str:
        """What the text of a file says to a question about it that is not about its syntax."""
        if kind == SAYS:
            return str(int(file is not None and what in file.text))
        return self._shown_by(file, what) if kind == SHOWS else _tested(file, what)

    def change(self, path: pathlib.Path, file: SourceFile | None) -> None:
        """From now on `file` is the content of `path`, regardless of the disk; None: the file on disk, as it is now.
        What depends on the content is computed again at its next use; a result that rests on something that the text
        says still is kept. Needs `changing`."""
        key = os.path.normpath(path)
        before = self._words_held(key)
        if file is None:
            self._open.pop(key, None)
        else:
            self._open[key] = file
        self._held = dict(self._open)
        self._let_go(self._facts.pop(key, None))
        self._problems.pop(key, None)
        self._parts.pop(key, None)
        if file is None:
            self._look_again(key)
        gone = [
            question
            for question, answer in self._questions_about(self._relative(key)).items()
            if question.partition(":")[0] not in _OF_TEXT or answer != self._part_answer(question)
        ]
        self._forget([*gone, *self._about_frameworks(key), *self._about_words(before, key)])

    def _holds(self, word: str, key: str) -> bool:
        file = self._held.get(key)
        return word in file.text if file else key in self._holding[word]

    def _look_again(self, key: str) -> None:
        """Which of the words that were searched for a file on disk holds now."""
        data = files.read_or_nothing(key) if key.endswith(".py") else b""
        for word, paths in self._holding.items():
            if (word.encode() in data) is not (key in paths):
                self._holding[word] = tuple(sorted({*paths} ^ {key}))

    def forget_memories(self) -> None:
        """Let go of the syntax trees as well that are kept here no longer."""
        super().forget_memories()
        for facts in list(self._used.values()):
            self._let_go(facts)

    # ---- names of things

    def split(self, name: str) -> tuple[ModuleFacts, str] | None:
        """The project module that a dotted name starts with, and the rest of the name inside it."""
        head, rest = name, ""
        while head:
            facts = self.facts(head)
            if facts is not None:
                return facts, rest
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
        return None

    def definition(self, name: str) -> tuple[ModuleFacts, Definition] | None:
        """The function or class of the project with a canonical dotted name, with its module."""
        found = self.split(name) if name else None
        node = found[0].definitions.get(found[1]) if found is not None else None
        return (found[0], node) if found is not None and node is not None else None

    def canonical(self, name: str) -> str:
        """Follow re-exports: `pkg.all_reduce` -> `torch.distributed.all_reduce` where pkg/__init__ imports it.

        A name that the project defines itself, or does not know, is returned as it is.
        """
        if not self._is_own(name):
            return name
        return self.remember(("canonical", name), lambda: self._canonical(name))

    def _is_own(self, name: str) -> bool:
        """Whether the project has anything by the first part of the name: cheap, and no for most names."""
        first = name.partition(".")[0]
        own = self._layout.holds(first)
        self._ask(f"own:{first}", str(int(own)))
        return own

    def _canonical(self, name: str) -> str:
        for _ in range(_REEXPORT_LIMIT):
            found = self.split(name)
            if found is None or not found[1]:
                return name
            facts, rest = found
            first = rest.partition(".")[0]
            if first in facts.definitions:
                return f"{facts.name}.{rest}"
            target = facts.imports.resolve(rest)
            if target is None and first not in facts.values:
                target = self.star_target(facts.imports, rest)
            if target is None or target == name:
                return name
            name = target
        return name

    def star_target(self, imports: ImportTable, name: str) -> str | None:
        """What a name means that came by ``from module import *``, as far as the project's modules show."""
        first = name.partition(".")[0]
        if not imports.stars or first.startswith("_"):  # a star leaves those behind
            return None
        return next((f"{star}.{name}" for star in self.own_stars(imports) if self._exports(star, first)), None)

    def own_stars(self, imports: ImportTable) -> tuple[str, ...]:
        """The modules of ``from module import *`` that are the project's: each unknown name is looked for in them."""
        stars = imports.stars
        return self.remember(("own stars", stars), lambda: tuple(s for s in stars if self._find(s))) if stars else ()

    def _exports(self, module: str, name: str) -> bool:
        return self.remember(("exports", module, name), lambda: self._has(module, name))

    def _has(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
        path = None if module in seen else self._find(module)
        # Without the word it has the name from nowhere but another star: no reason to parse it.
        if path is None or not (self._says(name, path) or self._says("import *", path)):
            return False
        facts = self._facts_of(path)
        if facts is None:
            return False
        if name in facts.definitions or name in facts.imports.names or name in facts.values:
            return True
        return any(self._has(star, name, seen | {module}) for star in facts.imports.stars)

    def shows(self, facts: ModuleFacts, what: str) -> bool:
        """Whether the text of a module shows something (`frameworks.Shown`), or, for ``wraps``, has one of the
        project's own wrappers."""
        question = f"{SHOWS}:{what}:{facts.source.inside}"
        self._note(question)
        if question not in self._answers:
            self._answers[question] = self._shown_by(facts.source, what, facts.tree)
        return self._answers[question] == "1"

    def _shown_by(self, file: SourceFile | None, what: str, tree: ast.Module | None = None) -> str:
        if file is None or what not in get_args(frameworks.Shown):
            return "?"
        pattern = wrapping_pattern(self.own.names) if what == "wraps" else frameworks.shows(what)
        shown = occurs(pattern, file.text)
        if shown and what == "wraps":
            with contextlib.suppress(CannotParse):
                shown = occurs(pattern, in_code(file.text, tree or parse(file.text)))
        return str(int(shown))

    def tested(self, path: str | pathlib.Path, test: str) -> str:
        """A digest of what one of the `TESTS` finds in the text of a file, '' for nothing: the caller depends on that
        alone."""
        key = os.path.normpath(path)
        question = f"{TESTED}:{test}:{self._relative(key)}"
        self._note(question)
        return self._part_answer(question)

    # ---- classes

    def class_facts(self, name: str) -> ClassFacts | None:
        """A class of the project by its canonical name."""
        place = self.remember(("class", name), lambda: self._class_place(name)) if self._is_own(name) else None
        if place is None:
            return None
        path, rest = place
        facts = self._facts_of(path)
        return self.class_of(facts, facts.definitions[rest]) if facts is not None else None

    def _class_place(self, name: str) -> tuple[str, str] | None:
        """The file of a class and its name there: the class itself would keep the syntax tree of its file."""
        found = self.split(name)
        if found is None:
            return None
        facts, rest = found
        path = self._find(name.removesuffix(f".{rest}"))
        is_class = facts.definitions.get(rest).__class__.__name__ == "ClassDef"
        return (path, rest) if is_class and path is not None else None

    def class_of(self, facts: ModuleFacts, node: Any) -> ClassFacts:
        """A class of a module by its definition."""
        found: ClassFacts = self.remember(node, lambda: self._class_of(facts, node), facts.kept)
        return found

    def _class_of(self, facts: ModuleFacts, node: Any) -> ClassFacts:
        bases = tuple(self.meaning(facts, base) for base in node.bases)
        return ClassFacts(f"{facts.name}.{node.name}" if facts.name else node.name, facts, node, bases)

    def meaning(self, facts: ModuleFacts, node: Any) -> str:
        """The canonical name of an expression of a module, '' when it is neither imported nor defined there."""
        name = facts.qualified(node) or self.star_target(facts.imports, dotted_ast(node))
        return canonical(self.canonical(name)) if name else ""

    def lineage(self, name: str) -> tuple[str, ...]:
        """The canonical names of a class and of all that it inherits from, nearest first, as far as they are known; of
        very many the nearest."""
        return self.remember(("lineage", name), lambda: tuple(self._lineage(name)))

    def _lineage(self, name: str) -> list[str]:
        found: dict[str, None] = {}
        queue = [canonical(self.canonical(name))]
        while queue and len(found) < MOST_BASES:
            name = queue.pop(0)
            if name and name not in found:
                found[name] = None
                facts = self.class_facts(name)
                queue += facts.bases if facts else foreign_bases(name)
            if len(queue) == 1 and ("lineage", queue[0]) in self._memo:
                return list(dict.fromkeys((*found, *self.lineage(queue[0]))))[:MOST_BASES]
        return list(found)

    def subclass_of(self, name: str, base: str) -> bool:
        """Whether the class `name` is `base` or inherits from it, through the project and through what is known of
        other packages (`Framework.bases`)."""
        return canonical(base) in self.lineage(name)

    def method(self, name: str, method: str) -> tuple[ClassFacts, Any] | None:
        """The class of the project that defines `method` for instances of the class `name`, and the method."""
        for ancestor in self.lineage(name):
            facts = self.class_facts(ancestor)
            if facts is not None and method in facts.methods:
                return facts, facts.methods[method]
        return None

    # ---- what a result depends on

    def _ask(self, question: str, answer: str) -> None:
        self._answers[question] = answer
        self._note(question)

    def _says(self, words: str, path: str) -> bool:
        """Whether the text of a file has the words."""
        inside = self._relative(path)
        if self._resting is None and path not in self._held and f"file:{inside}" in self._answers and words.isascii():
            says = self._words.holds(path, words)  # its digest is known, so that it need not be decoded again
        else:
            file = self._content(path)
            says = file is not None and words in file.text
        self._ask(f"{SAYS}:{words}:{inside}", str(int(says)))
        return says

    def dependencies(self, asked: set[Asked], shown: Iterable[str] = (), *, places: bool = False) -> dict[str, str]:
        """The questions behind what was recorded, each with the digest of its answer. `shown`: files, by their paths
        below the root, that the result shows places in; `places`: it may show places in any."""
        whole = {f"file:{inside}" for inside in shown}
        stack, seen = [*asked, *whole], {*asked, *whole}
        while stack:
            item = stack.pop()
            if not isinstance(item, str):
                inner = item.asked - seen
                seen |= inner
                stack.extend(inner)
        questions = {item for item in seen if isinstance(item, str)}
        if places:
            questions |= {f"file:{inside}" for question in questions if (inside := file_of(question)) is not None}
        return self._together(questions)

    def _together(self, questions: Iterable[str]) -> dict[str, str]:
        """Questions with their answers; those about parts of one file together, none if there is one about all of
        it."""
        found: dict[str, str] = {}
        parts: dict[str, list[str]] = {}
        for question in questions:
            kind, _, rest = question.partition(":")
            if kind in OF_FILE:
                parts.setdefault(rest.partition(":")[2], []).append(question)
            else:
                found[question] = self.answer(question)
        for inside, several in parts.items():
            whole = f"file:{inside}"
            if whole not in found:
                found |= {q: f"{self._answers[whole]}:{self._part_answer(q)}" for q in _joined(several, inside)}
        return found

    def holds(self, question: str, answer: str) -> bool:
        """Whether a recorded question still has the answer. One about a part of a file has it where the file has not
        changed."""
        kind, _, rest = question.partition(":")
        if kind not in OF_FILE:
            return self.answer(question) == answer and not (kind == "holding" and self._is_held_otherwise(rest))
        digest, _, part = answer.partition(":")
        if self.answer(f"file:{file_of(question)}") == digest:
            return True
        found = self.answers_of_parts[question] = self._part_answer(question)
        return found == part

    def _is_held_otherwise(self, word: str) -> bool:
        """Whether the text at hand of a file has a word which the one on disk has not, or the reverse."""
        return any((path in self._holding[word]) is not file.holds(word) for path, file in self._held.items())

    def _part_answer(self, question: str) -> str:
        """What a part of a file is now."""
        if question not in self._answers:
            kind, what, inside = question.split(":", 2)
            path = self.absolute(inside)
            if kind in _OF_TEXT:
                self._answers[question] = self._answer_of(kind, what, self._content(path))
            elif kind in _OF_METHODS:
                with self.recording(apart=True):
                    facts = self._facts_of(path)
                self._answers[question] = _OF_METHODS[kind](facts.tree, what) if facts else "?"
            else:
                if path not in self._parts:
                    self._facts_of(path)
                parts = self._parts.get(path)
                self._answers[question] = parts.digest_of(what.split()) if parts else "?"
        return self._answers[question]

    def _reach_of(self, inside: str) -> str:
        """What can communicate in a file, "?" where that is not known without going through the whole project."""
        if self.reach is None:
            self.reach, self._read_reach = self._read_reach(), lambda: None
        return "?" if self.reach is None else _digest_of(self.reach.get(self.absolute(inside)))

    def answer(self, question: str) -> str:
        """The answer to a recorded question as the files are now."""
        if question not in self._answers:
            kind, _, rest = question.partition(":")
            if kind == "file" and rest in self._digests:
                self._ask(question, self._digests[rest])
            elif kind == "file":
                self._file(self.absolute(rest))
            elif kind == "find":
                self._find(rest)
            elif kind == "holding":
                self.holding(rest)
            elif kind == "own":
                self._is_own(rest)
            elif kind == "named":
                self.named(rest)
            elif kind == "uses":
                self.uses_frameworks(rest)
            elif kind == "reach":
                self._ask(question, self._reach_of(rest))
            elif kind == "locate":
                how, name, folder = rest.split(":", 2)
                script, *below = how.split(" ")
                self._locate(name, self.absolute(folder), script == "1", tuple(below))
        return self._answers.get(question, "?")


def _tested(file: SourceFile | None, test: str) -> str:
    if test not in TESTS:
        return "?"
    module, name = TESTS[test]
    found = getattr(importlib.import_module(module), name)(file.text) if file is not None else ""
    return hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()[:20] if found else ""


def _joined(questions: Iterable[str], inside: str) -> Iterator[str]:
    """Questions about one file, those about its parts as one."""
    names = []
    for question in questions:
        if question.startswith(f"{PART}:"):
            names.append(question.split(":", 2)[1])
        else:
            yield question
    if names:
        beginnings = tuple(name.removesuffix(ALL) for name in names if name.endswith(ALL))
        apart = {n for n in names if n.endswith(ALL) or not n.startswith(beginnings)} if beginnings else set(names)
        yield f"{PART}:{' '.join(sorted(filter(None, apart)))}:{inside}"


def _digest_of(names: frozenset[str] | None) -> str:
    if names is None:
        return "-"
    return hashlib.sha256("\n".join(sorted(names)).encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def foreign_bases(name: str) -> tuple[str, ...]:
    """What is known of the bases of a class outside of the project: `Framework.bases`."""
    entries = frameworks.bases()
    head, _, last = name.rpartition(".")
    bases = entries.get(name) or (entries.get(f"{head}.*") if last[:1].isupper() else None) or ()
    return tuple(base for base in bases if base != name)

"""From a file to its mismatches."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping

from ddp_lint.divergence import references as ref
from ddp_lint.divergence import worlds
from ddp_lint.divergence.build import build
from ddp_lint.divergence.callers import Callers, may_run_on_some, may_run_own_on_some
from ddp_lint.divergence.compare import Comparison, Difference, TooLong
from ddp_lint.divergence.definitions import refusals
from ddp_lint.divergence.early_exit import one_for_each_exit
from ddp_lint.divergence.effects import Effect, choices
from ddp_lint.divergence.event_graph import PART, Event, EventGraph, EventNode, Node, Projection, TooLarge, streams_of
from ddp_lint.divergence.file_race import is_no_race
from ddp_lint.divergence.frame import Frame, span_of
from ddp_lint.divergence.mismatches import Kind, Meeting, Mismatch
from ddp_lint.divergence.parameters import general
from ddp_lint.divergence.rank_programs import roles
from ddp_lint.divergence.references import ClassRef, FunctionRef
from ddp_lint.divergence.replicas import meeting
from ddp_lint.divergence.resolve import Linker
from ddp_lint.divergence.shards import may_part, units_of
from ddp_lint.divergence.statements import run
from ddp_lint.divergence.summaries import Summaries
from ddp_lint.divergence.values import Symbol, Value, unknown
from ddp_lint.divergence.witness import mismatch_of, needs_shards, wrong_arguments
from ddp_lint.findings import Confidence, Span
from ddp_lint.gc_tuning import let_go_of_trees
from ddp_lint.knowledge.communication import Condition
from ddp_lint.knowledge.frameworks import caught
from ddp_lint.launch.joining import flags_of_joining
from ddp_lint.program.mentions import MODULE
from ddp_lint.project import Asked, Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import calls_on_self, children, inside
from ddp_lint.source.names import Names
from ddp_lint.source.syntax import FunctionNode, first_name, function_at, nested, positional, statements, walk

_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MANAGER = ("__enter__", "__exit__")
#: Calls of Python's that an analysis may nest: several times what calls within calls and blocks within blocks take.
_FRAMES = 3_000
#: Characters of files whose syntax trees may be in memory: beyond it the summaries, which keep most of them, start
#: again. A tree takes some 32 bytes a character.
_MOST_SOURCE = 10_000_000

#: What is kept is kept by these nodes.
_KEYS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

#: Names of the summaries that are attached to a project.
_CLOSED, _OPEN = "summaries", "open summaries"


def summaries_of(project: Project) -> Summaries:
    """All that is known of what functions do; what keeps more trees in memory than there may be is let go of first."""
    if _CLOSED in project.attached and project.modules.source_in_memory > _MOST_SOURCE:
        project.modules.keep_least()
        if project.modules.source_in_memory > _MOST_SOURCE:
            _start_again(project)
    return _attached(project, _CLOSED, whole=True)


def open_summaries_of(project: Project) -> Summaries:
    """Summaries that keep what makes the ranks diverge in a callee as it is, for a look at its callers."""
    return _attached(project, _OPEN, whole=False)


def _attached(project: Project, name: str, *, whole: bool) -> Summaries:
    found: Summaries | None = project.attached.get(name)
    if found is None:
        found = project.attached[name] = Summaries(project, whole=whole)
    return found


def _start_again(project: Project) -> None:
    project.forget_memories()
    for name in (_CLOSED, _OPEN):
        old: Summaries | None = project.attached.pop(name, None)
        if old is not None:
            old.let_go_of_all()
    let_go_of_trees()
    Symbol.let_go_of_unused()


@dataclasses.dataclass(frozen=True)
class Result:
    """What the analysis found in one file, and what it had to leave out."""

    mismatches: tuple[Mismatch, ...]
    #: Functions beyond the bound, as (line, name).
    skipped: tuple[tuple[int, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Root:
    """A function that is analysed on its own: the place where the ranks are together at its start."""

    name: str
    node: ast.AST
    function: FunctionRef | None
    #: Set for a base class's method seen from a class of this file: only events in this class count.
    seen_from: ClassRef | None = None
    #: Called through its decorators, which may let only some ranks in; else its body alone.
    decorated: bool = False

    @property
    def owner(self) -> ast.ClassDef | None:
        """The class that a method is defined in."""
        return self.function.owner.node if self.function is not None and self.function.owner is not None else None


def analyse(facts: ModuleFacts, project: Project) -> tuple[Mismatch, ...]:
    """The mismatches of a file, by line. Made once per file and project."""
    return result_of(facts, project).mismatches


def result_of(facts: ModuleFacts, project: Project) -> Result:
    # Kept with the module: what a result depends on, and that on, is much of what was ever worked out.
    key = ("divergence", hash(facts.file.text))
    with _room_to_recurse():
        found: Result = project.remember(key, lambda: _analyse(facts, project), facts.kept)
    return found


@contextlib.contextmanager
def _room_to_recurse() -> Iterator[None]:
    """As deep from wherever it is called: a finding must not depend on how many calls lead here (a worker, flake8)."""
    frame, depth = sys._getframe(), 0
    while frame := frame.f_back:  # type: ignore[assignment]
        depth += 1
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + _FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def let_go(project: Project, path: pathlib.Path) -> None:
    """Let go of what is kept for the syntax tree of a file that is about to change (`project.changing.change`)."""
    found, facts = project.attached.get(_CLOSED), project.modules.known_facts(path)
    if found is None or facts is None:
        return
    gone = {id(node) for node in statements(facts.tree) if isinstance(node, _KEYS)}

    def is_gone(key: object) -> bool:
        if isinstance(key, tuple):
            return any(is_gone(part) for part in key[:3])
        return id(key.node if isinstance(key, ClassRef) else key) in gone

    project.drop(result for key, result in project.kept() if is_gone(key))
    found.let_go(facts)


def let_go_of_edited(project: Project) -> None:
    """Let go of what depends on functions that were edited (`project.changing.edit`)."""
    found = project.attached.get(_CLOSED)
    if found is not None:
        found.let_go_of_stale()


def _analyse(facts: ModuleFacts, project: Project) -> Result:
    summaries = summaries_of(project)
    reader = _Reader(facts, summaries)
    own, inherited = _reads_of(reader, facts, summaries)
    if reader.has_earlier and summaries.is_half_exhausted:
        # With what the other roots took, it may be too much for one file: decide as a run without outcomes would.
        reader = _Reader(facts, summaries, afresh=True)
        own, inherited = _reads_of(reader, facts, summaries)
    reader.keep()
    found: dict[object, Mismatch] = {}
    # A function shows its mismatch by itself best; the statements of the module lead there by its callers.
    for read in (*inherited, *sorted(own, key=lambda read: read.root.function is None)):
        for mismatch in read.mismatches:
            first = found.setdefault((mismatch.kind, mismatch.span), mismatch)
            doubted = first.confidence is Confidence.LOW and first.meets is Meeting.NONE
            if doubted or _tells_more(mismatch, first):
                found[mismatch.kind, mismatch.span] = mismatch
    skipped = [(getattr(r.root.node, "lineno", 1), r.root.name) for r in (*own, *inherited) if r.skipped]
    shown = _with_rounds_that_add_up(_without_choices_of_one(list(found.values())), facts)
    mismatches = one_for_each_exit(_first_of_each(_without_repeated(shown, facts)), facts)
    return Result(tuple(sorted(mismatches, key=lambda mismatch: (mismatch.span, mismatch.kind))), tuple(skipped))


def _with_rounds_that_add_up(mismatches: list[Mismatch], facts: ModuleFacts) -> list[Mismatch]:
    """In doubt where several loops of a function, each with a number of rounds that is computed from the rank, come to
    the same collective: what a rank lacks in one, as the phases of a pipeline, it may do in another."""

    def place(mismatch: Mismatch) -> tuple[object, ...]:
        by_rank = mismatch.kind is Kind.LOOP and mismatch.cause == "rank" and mismatch.way
        return (function_at(facts.tree, mismatch.span.line), mismatch.way[-1].span) if by_rank else ()

    loops = collections.Counter(map(place, mismatches))
    doubt = "other loops come to the same call: what a rank lacks in one it may do in another"
    return [
        dataclasses.replace(mismatch, confidence=Confidence.LOW, doubt=mismatch.doubt or doubt)
        if place(mismatch) and loops[place(mismatch)] > 1
        else mismatch
        for mismatch in mismatches
    ]


def _tells_more(mismatch: Mismatch, first: Mismatch) -> bool:
    """Does something decide over a call that is sure to differ between ranks, and not only an exception that one of
    them may raise?"""
    sure = mismatch.confidence is not Confidence.LOW and mismatch.cause not in _BY_EXCEPTION
    return sure and first.cause in _BY_EXCEPTION


#: Causes of what may fail on one rank alone.
_BY_EXCEPTION = frozenset({"exception", "failure"})


def _reads_of(reader: _Reader, facts: ModuleFacts, summaries: Summaries) -> tuple[list[_Read], list[_Read]]:
    """The roots of a file, and those that its classes inherit."""
    summaries.start_file(len(facts.file.lines))
    own = _without_managers([reader.read(root) for root in communicating_roots(facts, summaries)])
    project = summaries.linker.project
    callers = Callers(project, summaries, open_summaries_of(project), roots, _evaluate, _mismatches_of)
    own = [reader.among_callers(read, callers) for read in own]
    # What inherited methods find in a class is at its own calls: none of them communicates, nothing is to be found.
    communicating: dict[ast.ClassDef | None, set[str]] = collections.defaultdict(set)
    for read in own:
        if read.communicates and read.root.function is not None:
            communicating[read.root.owner].add(getattr(read.root.node, "name", ""))
    classes = [of for of in classes_in(facts, summaries) if of.node in communicating]
    seen_from = (root for of in classes for root in hooked(of, summaries, communicating[of.node]))
    return own, list(map(reader.read_for_class, seen_from))


def communicating_roots(facts: ModuleFacts, summaries: Summaries) -> Iterator[Root]:
    """The roots without those that cannot communicate, where that is known beforehand."""
    linker, inside = summaries.linker, facts.source.inside
    uses = not inside or linker.project.communication.uses_frameworks(inside)
    if not uses and not units_of(linker.project):
        return
    known = linker.project.communication.functions_in(inside) if inside and uses else None
    for root in roots(facts, summaries):
        name = root.name if root.function is not None else MODULE
        can = known is None or name in known or (root.function is not None and _may_run_model(root.function))
        if ((uses and can) or _may_part(root, linker)) and (root.function is None or _can_part(root.node)):
            yield root


def _may_run_model(function: FunctionRef) -> bool:
    return may_run_on_some(function) or may_run_own_on_some(function)


def _may_part(root: Root, linker: Linker) -> bool:
    """Is it where a model runs its parts, some of which may be sharded by themselves?"""
    owner = root.function.owner if root.function is not None else None
    return owner is not None and may_part(linker, owner, root.node)


@dataclasses.dataclass(frozen=True)
class _Read:
    """A root with its mismatches; whether it communicates at all, and whether it had to be left out."""

    root: Root
    mismatches: tuple[Mismatch, ...] = ()
    communicates: bool = True
    skipped: bool = False
    #: The name under which it is kept for later runs that nothing is found.
    outcome: str = ""


class _Reader:
    """Reads the roots of one file. One that an earlier run has found nothing in is not read again, as long as nothing
    has changed that this depends on (`project.outcomes`).

    Outcomes are kept of a run that read all roots of the file and took less than half of what a file may take: with the
    other half for the roots that are read again, a run without them decides the same.
    """

    def __init__(self, facts: ModuleFacts, summaries: Summaries, *, afresh: bool = False) -> None:
        self._facts = facts
        self._summaries = summaries
        self._project = summaries.linker.project
        self._outcomes = self._project.outcomes.of(facts.source.inside)
        if afresh:
            self._outcomes.forget()
        #: Whether an outcome of an earlier run was used.
        self.has_earlier = False
        self._made: list[tuple[_Read, set[Asked]]] = []
        self._keeps = self._project.is_recording and not self._project.is_changing
        self._asked: dict[str, set[Asked]] = {}
        self._names: collections.Counter[str] = collections.Counter()

    def read(self, root: Root) -> _Read:
        """By itself; `among_callers` completes it."""
        name = self._name_of(root, "@" if root.decorated else "")
        known = self._known(name) if not _is_of_manager(root) else None
        if known is not None:
            return _Read(root, communicates=known, outcome=name)
        with self._project.recording() as asked:
            read = _read_once(root, self._facts, self._summaries)
        self._asked[name] = asked
        return dataclasses.replace(read, outcome=name)

    def among_callers(self, read: _Read, callers: Callers[Root]) -> _Read:
        """With what the callers of the root show."""
        if read.outcome not in self._asked:
            return read
        with self._project.recording() as asked:
            full = _as_given(_as_called(read, callers), self._facts, self._summaries, callers)
            full = _as_followed(full, callers)
        if not _is_of_manager(read.root):
            self._made.append((full, asked))
        return full

    def read_for_class(self, root: Root) -> _Read:
        """A root that is inherited."""
        name = self._name_of(root, "^")
        known = self._known(name)
        if known is not None:
            return _Read(root, communicates=known)
        with self._project.recording() as asked:
            read = dataclasses.replace(_read_once(root, self._facts, self._summaries), outcome=name)
        self._made.append((read, asked))
        return read

    def _known(self, name: str) -> bool | None:
        known = self._outcomes.known(name)
        self.has_earlier |= known is not None
        return known

    def _name_of(self, root: Root, kind: str) -> str:
        """Of the root among those of its file, where several can be called the same."""
        name = f"{root.name}{kind}"
        self._names[name] += 1
        return f"{name}'{self._names[name]}"

    def keep(self) -> None:
        if not self._keeps or self.has_earlier or self._summaries.is_half_exhausted:
            return
        for read, asked in self._made:
            if not read.mismatches and not read.skipped:
                self._outcomes.keep(read.outcome, read.communicates, asked | self._asked.get(read.outcome, set()))


def _as_called(read: _Read, callers: Callers[Root]) -> _Read:
    """Without the mismatches that no call of the project brings about."""
    function = read.root.function
    if function is None or not read.mismatches or _is_of_manager(read.root):
        return read
    return dataclasses.replace(read, mismatches=callers.confirmed(read.root, function, read.mismatches))


def _as_followed(read: _Read, callers: Callers[Root]) -> _Read:
    """With what the callers show of what the other ranks do after the function."""
    function = read.root.function
    if function is None or not any(mismatch.meets is Meeting.END for mismatch in read.mismatches):
        return read
    missed = callers.missed_in_callers(function)
    if missed is None:
        return read
    followed = (
        dataclasses.replace(m, confidence=Confidence.LOW, doubt=m.doubt or _MET)
        if m.meets is Meeting.END and not missed & {m.span, *(step.span for step in m.way)}
        else m
        for m in read.mismatches
    )
    return dataclasses.replace(read, mismatches=tuple(followed))


def _as_given(read: _Read, facts: ModuleFacts, summaries: Summaries, callers: Callers[Root]) -> _Read:
    """With the mismatches that come about by the wrapped models which callers pass: ``evaluate(ddp_model)``."""
    function = read.root.function
    if function is None or read.root.decorated or summaries.is_exhausted or not may_run_on_some(function):
        return read
    reads = [_read(read.root, facts, summaries, env, giver) for env, giver in callers.with_wrapped(function)]
    more = {(m.kind, m.span): m for each in reads for m in each.mismatches}
    added = tuple(mismatch for mismatch in more.values() if mismatch not in read.mismatches)
    communicates = read.communicates or any(each.communicates for each in reads)
    return dataclasses.replace(read, mismatches=(*read.mismatches, *added), communicates=communicates)


def _evaluate(root: Root, facts: ModuleFacts, summaries: Summaries) -> None:
    """What a root does, for the calls that are made on the way."""
    with contextlib.suppress(TooLarge, RecursionError):
        _effects_of(root, facts, summaries, None)


def _mismatches_of(
    root: Root, facts: ModuleFacts, summaries: Summaries, env: dict[str, Value] | None
) -> tuple[Mismatch, ...] | None:
    """Those of a root, None where it had to be left out."""
    read = _read(root, facts, summaries, env)
    return None if read.skipped else read.mismatches


def _read_once(root: Root, facts: ModuleFacts, summaries: Summaries) -> _Read:
    """Kept where files change, until the root or what it calls does."""
    if summaries.is_exhausted:
        return _Read(root, communicates=False, skipped=True)
    project = summaries.linker.project

    def read() -> _Read:
        facts.note_outline()
        return _read(root, facts, summaries)

    if not project.is_changing:
        return read()
    key = (root.node, root.seen_from, root.decorated, root.name)
    found: _Read = project.remember(key, read, summaries.reads)
    return found


def _read(
    root: Root,
    facts: ModuleFacts,
    summaries: Summaries,
    env: dict[str, Value] | None = None,
    giver: ModuleFacts | None = None,
) -> _Read:
    """`giver`: the file that gives the function the arguments in `env`."""
    found: list[Mismatch] = []
    owner = root.function.owner if root.function is not None else None

    def shown(when: Condition) -> bool:
        evidence = summaries.evidence
        return evidence.shows(facts, owner, when) or (giver is not None and evidence.shows(giver, None, when))

    try:
        graph, start = graph_of(root, facts, summaries, env, shown)
        if not any(isinstance(node, EventNode) for node in graph.nodes):
            return _Read(root, communicates=False)
        sharded = functools.partial(shown, "sharded")
        for mismatch in _mismatches(root, facts, graph, start, sharded, summaries.linker):
            found.append(mismatch)
    except (TooLarge, TooLong, RecursionError):
        return _Read(root, tuple(found), skipped=True)
    return _Read(root, tuple(found))


def _without_managers(reads: list[_Read]) -> list[_Read]:
    """Without `__enter__` and `__exit__` where both communicate: half a barrier each; a `with` has both."""
    halves = [
        {read.root.owner for read in reads if read.communicates and read.root.name.endswith(f".{name}")}
        for name in _MANAGER
    ]
    managers = halves[0] & halves[1] - {None}
    return [read for read in reads if read.root.owner not in managers or not _is_of_manager(read.root)]


def _is_of_manager(root: Root) -> bool:
    return root.name.rpartition(".")[2] in _MANAGER


def _without_choices_of_one(mismatches: list[Mismatch]) -> list[Mismatch]:
    """Without what one rank alone decides, where it is shown that the other ranks make no such call at all."""
    parted = {m.span for m in mismatches if not m.alone and m.confidence is not Confidence.LOW}
    return [m for m in mismatches if not m.alone or m.span not in parted]


def _without_repeated(mismatches: list[Mismatch], facts: ModuleFacts) -> list[Mismatch]:
    """Without those that lead to a call which is reported itself, where no call on the way is under their branch. A
    branch beside the first call is a cause of its own, if it is another than the one reported."""
    reported: dict[Span, set[str]] = collections.defaultdict(set)
    for mismatch in mismatches:
        if not mismatch.way and mismatch.confidence is not Confidence.LOW:
            reported[mismatch.span].add(mismatch.cause)
    functions = [span_of(facts, n) for n in walk(facts.tree) if isinstance(n, _FUNCTIONS)] if reported else []

    def around(place: Span) -> Span | None:
        return max((each for each in functions if place.starts_in(each)), default=None)

    def repeated(mismatch: Mismatch) -> bool:
        places = [mismatch.span, *(step.span for step in mismatch.way)]
        branch, causes = mismatch.branch, reported.get(places[-1])
        if branch is None or not mismatch.way or causes is None or any(place.starts_in(branch) for place in places):
            return False
        return mismatch.cause in causes or around(branch) != around(mismatch.span)

    return [mismatch for mismatch in mismatches if not repeated(mismatch)]


def _first_of_each(mismatches: list[Mismatch]) -> list[Mismatch]:
    """One branch, one mismatch of a kind: what comes after the first difference is shown with it."""
    reported = {mismatch.span for mismatch in mismatches if mismatch.cause != "failure"}
    mismatches = [mismatch for mismatch in mismatches if mismatch.cause != "failure" or mismatch.span not in reported]
    by_branch: dict[object, list[Mismatch]] = {}
    for mismatch in sorted(mismatches, key=lambda p: (p.confidence is Confidence.LOW, not _is_under_branch(p), p.span)):
        by_branch.setdefault((mismatch.kind, mismatch.branch or mismatch.span), []).append(mismatch)
    return [first.with_similar(others) for first, *others in by_branch.values()]


def _is_under_branch(mismatch: Mismatch) -> bool:
    """Is the call right there, and not the one that leads to the function with the branch?"""
    return mismatch.branch is not None and mismatch.span.starts_in(mismatch.branch)


# ---- roots


def roots(facts: ModuleFacts, summaries: Summaries) -> Iterator[Root]:
    """The module's own statements and all functions."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    if any(not isinstance(node, definitions) for node in facts.tree.body):
        yield Root("the module", facts.tree, None)
    stack: list[tuple[ast.AST, ClassRef | None, str, dict[str, Value] | None]] = [(facts.tree, None, "", None)]
    while stack:
        node, owner, prefix, around = stack.pop()
        for child in nested(node):
            if isinstance(child, ast.ClassDef):
                stack.append((child, summaries.linker.class_ref(child, facts), f"{child.name}.", None))
            elif isinstance(child, FunctionNode):
                function = _as_root(child, facts, owner, around)
                own = {first_name(child): function.receiver} if function.receiver is not None else around
                stack.append((child, None, f"{prefix}{child.name}.", own))
                root = Root(prefix + child.name, child, function)
                yield root
                if child.decorator_list:
                    yield dataclasses.replace(root, decorated=True)
            else:
                stack.append((child, owner, prefix, around))


def _can_part(node: ast.AST) -> bool:
    """Is there a call at all? Whether it is decorated, gated or collective only the evaluation can show."""
    return any(isinstance(child, ast.Call) for child in inside(node))


def _as_root(
    node: FunctionNode,
    facts: ModuleFacts,
    owner: ClassRef | None,
    around: dict[str, Value] | None,
) -> FunctionRef:
    """`around`: the object that a function within a method sees as `self`."""
    receiver = None
    if owner is not None and positional(node):
        receiver = unknown(("object", owner.node.name), ref.Instance(owner))
    return FunctionRef(node, facts, owner, receiver, owner, around, bare=True)


def classes_in(facts: ModuleFacts, summaries: Summaries) -> Iterator[ClassRef]:
    """The classes of a file, those within functions too."""
    return (summaries.linker.class_ref(n, facts) for n in statements(facts.tree) if isinstance(n, ast.ClassDef))


def hooked(of: ClassRef, summaries: Summaries, called: set[str]) -> Iterator[Root]:
    """Inherited methods that call one of these methods which the class defines itself."""
    linker = summaries.linker
    own = set(linker.members(of))
    inherited: dict[str, tuple[ClassRef, FunctionNode]] = {}
    for base in linker.linearised(of)[0][1:]:
        for name, node in linker.members(base).items():
            if name not in own:
                inherited.setdefault(name, (base, node))
    calls = {name: calls_on_self(base.node, node) for name, (base, node) in inherited.items()}
    for name in _reaching(calls, called):
        base, node = inherited[name]
        if _can_part(node):
            receiver = unknown(("object", of.node.name), ref.Instance(of))
            yield Root(f"{of.node.name}.{name}", node, FunctionRef(node, base.facts, base, receiver, of, bare=True), of)


def _reaching(calls: Mapping[str, frozenset[str]], own: set[str]) -> list[str]:
    """The inherited methods that call an own one, by name, by computed name (which a special method has none of) or
    through another inherited one."""
    computed = any(not name.startswith("__") for name in own)
    found = {name for name, called in calls.items() if called & own or (computed and "" in called)}
    while True:
        more = {name for name, called in calls.items() if name not in found and called & found}
        if not more:
            return [name for name in calls if name in found]
        found |= more


# ---- one root


#: Why a forward on one rank may well hang nobody.
_MET = "its broadcast may be the one of the others' next forward: without gradients DDP sends the buffers once"
_EVALUATES = "a model that runs without gradients is mostly in evaluation mode, where it communicates with nobody"

_MOST_MISMATCHES = 200
#: Groups over which one function communicates; a program has a handful.
_MOST_STREAMS = 200


def _mismatches(
    root: Root, facts: ModuleFacts, graph: EventGraph, start: Node, sharded: Callable[[], bool], linker: Linker
) -> Iterator[Mismatch]:
    """Those of one root; `sharded` returns whether its file shows that something is sharded."""
    region = span_of(root.function.facts if root.function else facts, root.node)
    given = roles(graph)
    of_model, is_caught = _may_part(root, linker), _is_caught(root.function, linker)
    flags = flags_of_joining(linker.project)
    for stream in _streams(graph):
        if stream == PART and not of_model:  # on one rank a model may be a whole one: for an export, for a sample
            continue
        seen: set[object] = set()
        projection = Projection(graph, stream)
        telling: Comparison | None = None
        for difference in _differences(graph, projection, start, flags):
            doubtful = difference.event.confidence is Confidence.LOW
            key = (difference.event.span, doubtful, id(difference.fork.condition))
            telling = telling or Comparison(graph, projection, flags)
            if key in seen or id(difference.fork.condition) in given or telling.is_of_no_value_listed(difference):
                continue
            seen.add(key)
            if len(seen) > _MOST_MISMATCHES:  # each is sought through the whole graph
                raise TooLong
            mismatch = _at_branch(mismatch_of(difference, telling, region), region)
            if stream == PART and mismatch.cause != "data":
                continue
            mismatch = _of_failure(mismatch) if is_caught else mismatch
            mismatch = _as_met(mismatch, meeting(difference, graph, projection), root)
            mismatch = _in_doubt(mismatch, difference, root, facts, sharded)
            placed = _in_class(mismatch, root.seen_from) if root.seen_from else mismatch
            if root.function is not None and placed is not None and placed.span.line == region.line:
                placed = _in_body(placed, region)
            if placed is not None:
                yield placed
    yield from wrong_arguments(graph, start)


def _as_met(mismatch: Mismatch, met: Meeting, root: Root) -> Mismatch:
    """The mismatch with what the forward of one rank alone meets (`replicas`)."""
    if met is Meeting.NONE or mismatch.cause != "rank":
        return mismatch
    mismatch = dataclasses.replace(mismatch, meets=met)
    if met is Meeting.END and root.function is not None:
        return mismatch
    doubt = mismatch.doubt or (_MET if met is not Meeting.NOBODY else _EVALUATES)
    return dataclasses.replace(mismatch, confidence=Confidence.LOW, doubt=doubt)


def _in_doubt(
    mismatch: Mismatch, difference: Difference, root: Root, facts: ModuleFacts, sharded: Callable[[], bool]
) -> Mismatch:
    """The mismatch, of low confidence where what is around the call leaves a doubt."""
    doubt = ""
    if _is_of_recursion(difference.event, root) and not _is_once_for_some_ranks(mismatch, root, facts):
        doubt = "the function calls itself, and the ranks may meet in another of its calls"
    elif needs_shards(difference) and not sharded():
        doubt = "it needs sharded parameters, and there is no evidence of any"
    elif difference.event.at_end and mismatch.cause == "data":
        doubt = "it communicates at the end of the epoch: a rank that comes there in one batch takes part"
    elif is_no_race(mismatch, facts):
        doubt = "the files exist before, or all ranks create them"
    doubt = doubt or mismatch.doubt
    return dataclasses.replace(mismatch, confidence=Confidence.LOW, doubt=doubt) if doubt else mismatch


def _streams(graph: EventGraph) -> list[Hashable]:
    """The streams of a graph, which is walked for each."""
    streams = list(streams_of(graph.nodes))
    if len(streams) > _MOST_STREAMS:
        raise TooLong
    return streams


def _of_failure(mismatch: Mismatch) -> Mismatch:
    """The mismatch where an exception ends no rank."""
    return dataclasses.replace(mismatch, cause="failure") if mismatch.cause == "exception" else mismatch


def _is_of_recursion(event: Event, root: Root) -> bool:
    """Is the event in a recursive call? What the ranks do there is evaluated to a limited depth only,
    and where they diverge in it, they diverge at its first call."""
    name = getattr(root.node, "name", "")
    return bool(event.chain) and event.call in (name, f"self.{name}") and not root.decorated


def _is_once_for_some_ranks(mismatch: Mismatch, root: Root, facts: ModuleFacts) -> bool:
    """Does the branch at fault test the rank and contain the call, so that its first call divides the ranks? A loop of
    such calls goes through a nested structure."""
    branch = mismatch.branch
    if mismatch.cause != "rank" or branch is None or not mismatch.span.starts_in(branch):
        return False
    loops = (node for node in walk(root.node) if isinstance(node, _LOOPS))
    return not any(mismatch.span.starts_in(span_of(facts, loop)) for loop in loops)


def _differences(graph: EventGraph, projection: Projection, start: Node, flags: frozenset[str]) -> Iterator[Difference]:
    comparison = Comparison(graph, projection, flags)
    if comparison.always_fails(start):
        return
    for first, second in worlds.PAIRS:
        yield from comparison.of_worlds(start, first, second)
    yield from comparison.of_open_choices(start)
    yield from comparison.of_rounds(start)
    yield from comparison.of_crossings()


def _at_branch(mismatch: Mismatch, region: Span) -> Mismatch:
    """A mismatch in a nested function, placed at the call that its branch holds."""
    branch = mismatch.branch
    if branch is None or not branch.starts_in(region) or mismatch.span.starts_in(branch):
        return mismatch
    return _placed_at(mismatch, branch) or mismatch


def _in_body(mismatch: Mismatch, region: Span) -> Mismatch:
    """A mismatch that a decorator brings about, placed at the call in the function's body."""
    return _placed_at(mismatch, region) or mismatch


def _in_class(mismatch: Mismatch, of: ClassRef) -> Mismatch | None:
    """A mismatch in a base class's method, placed at the class of this file that it is about; None if there is none."""
    return _placed_at(mismatch, span_of(of.facts, of.node))


def _placed_at(mismatch: Mismatch, region: Span) -> Mismatch | None:
    """The mismatch at the first call within the region on the way to the collective."""
    for number, step in enumerate(mismatch.way):
        if step.span.starts_in(region) and step.span != region:
            way = mismatch.way[number + 1 :]
            return dataclasses.replace(mismatch, span=step.span, call=step.callee, way=way)
    return None


def graph_of(
    root: Root,
    facts: ModuleFacts,
    summaries: Summaries,
    env: dict[str, Value] | None = None,
    shown: Callable[[Condition], bool] = lambda when: False,
) -> tuple[EventGraph, Node]:
    """The event graph of a root, for arguments unknown or for those in `env`, where `shown` is known of the job. Raises
    TooLarge."""
    graph = EventGraph()
    is_caught = _is_caught(root.function, summaries.linker)
    effects = _effects_of(root, facts, summaries, env)
    summaries.check()  # what was kept counts, too, and no statement may have been run since
    return graph, build(effects, graph, caught=is_caught, whole=summaries.whole, shown=shown)


def _is_caught(function: FunctionRef | None, linker: Linker) -> bool:
    """Does the framework that calls the method catch what it raises?"""
    of = function.of if function is not None else None
    if function is None or not isinstance(of, ClassRef) or not any(name == function.name for _, name in caught()):
        return False
    return any((class_, function.name) in caught() for class_ in linker.outside(of))


def _effects_of(root: Root, facts: ModuleFacts, summaries: Summaries, env: dict[str, Value] | None) -> list[Effect]:
    scope = root.function.node if root.function is not None else facts.tree
    nodes = inside(scope) if root.function is not None else children(scope)
    summaries.forget(sum(isinstance(node, ast.stmt) for node in nodes))
    if root.function is None:
        frame = Frame(summaries, facts, None)
        run(frame, facts.tree.body)
    elif root.decorated:
        frame = summaries.decorated(root.function, env) or Frame(summaries, facts, None)
    else:
        frame = summaries.evaluate(root.function, env or general(summaries, root.function, heuristic=True))
        return [*_refused_before(root.function, summaries), *frame.effects]
    return frame.effects


def _refused_before(function: FunctionRef, summaries: Summaries) -> list[Effect]:
    """The object of a method is there: its constructor has not raised for the settings that it refuses together."""
    if function.receiver is None or not isinstance(function.of, ClassRef) or function.name == "__init__":
        return []
    constructor = summaries.linker.method(function.of, "__init__")
    if constructor is None or constructor.owner is None or isinstance(constructor.node, ast.Lambda):
        return []
    lines = refusals(constructor.owner.node, constructor.node)
    if not lines:
        return []
    env = Names({first_name(constructor.node): function.receiver})
    frame = Frame(
        summaries, constructor.facts, constructor.node, constructor.owner, function.receiver, env, values_alone=True
    )
    run(frame, lines)
    return [] if any(choice.may_diverge for choice in choices(frame.effects)) else frame.effects


__all__ = ["Result", "analyse", "classes_in", "graph_of", "hooked", "result_of", "roots", "summaries_of"]

"""Models that a project wraps and hands to its functions, and what is read of them: by `ast`, because the function and
its callers may be in different files."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from ddp_lint.findings import Span
from ddp_lint.knowledge.frameworks import Kind, wrappers
from ddp_lint.project.facts import ClassFacts, ModuleFacts, assigned_in
from ddp_lint.project.parts import kept_by_node
from ddp_lint.project.project import Project
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, below, calls_below, function_at, parameters, walk

#: Files that wrap, or call what returns a wrapped model; a project with more is a framework.
_FILES = 60
_DEPTH = 3  # calls that hand a model on
_CLASS_DEPTH = 4  # of class evidence for one expression

#: A test with one of these words checks whether the model is wrapped, or how many ranks there are.
ASKS = ("ddp", "distributed", "parallel", "world_size", "num_gpu", "n_gpu", "num_processes", "multi", "module", "fsdp",
        "deepspeed")  # fmt: skip
ASKING = frozenset({"hasattr", "isinstance", "getattr", "type"})


@dataclasses.dataclass(frozen=True)
class Handed:
    """A call that gives a function a wrapped model, and the file that it is in."""

    facts: ModuleFacts
    call: ast.Call

    @property
    def span(self) -> Span:
        return self.facts.file.span_of(self.call)

    def made_from(self, name: str) -> list[ast.expr]:
        """What the function around the call assigns to an argument of that name; nothing where there is none."""
        given = {dotted_ast(value) for value in (*self.call.args, *(k.value for k in self.call.keywords))}
        around = function_at(self.facts.tree, self.call.lineno)
        return assigned_in(around, name) if around is not None and name in given else []


@dataclasses.dataclass(frozen=True)
class Wrapping:
    """What a function of the project wraps. `returned`: where in what it returns the wrapped model is, -1 for all of
    it, else the places in a tuple; `of`: the parameter that comes back wrapped, if one does; `in_place`: those that are
    wrapped when it has run. A parameter is its place and its name."""

    returned: frozenset[int]
    of: tuple[int, str] | None
    in_place: tuple[tuple[int, str], ...]


#: By the canonical name of a function and its parameter, or of a class and an attribute of it (``self.model``).
Given = Mapping[tuple[str, str], Handed]
_Found = tuple[tuple[str, str], Handed]
#: By the canonical names of functions.
Wrappings = Mapping[str, Wrapping]
#: Calls whose result holds wrapped models, each with the places of these (`Wrapping.returned`).
Made = Mapping[ast.Call, frozenset[int]]


def given_wrapped(project: Project, kind: Kind = "ddp") -> Given:
    """The parameters that a call in the project gives a model that is wrapped in a way."""
    return project.remember(("given wrapped", kind), lambda: _given(project, kind))


def given_by(project: Project, made: Iterable[tuple[ModuleFacts, Made]]) -> Given:
    """The same for models that some calls wrap, by file: those by which a framework wraps them in DDP."""
    new = [pair for facts, calls in made for pair in _handed_in(project, facts, "ddp", {}, calls)]
    return _followed(project, new, "ddp", {})


def wrapping_functions(project: Project, kind: Kind) -> Wrappings:
    """The functions of a project that wrap a model in a way."""
    return project.remember(("wrapping functions", kind), lambda: _wrapping_functions(project, kind))


def keywords_given(project: Project, kind: Kind) -> frozenset[str] | None:
    """The keywords that any call in the project wraps with in a way, None where one of them cannot be seen."""
    return project.remember(("keywords of wraps", kind), lambda: _keywords_given(project, kind))


def _keywords_given(project: Project, kind: Kind) -> frozenset[str] | None:
    found: set[str | None] = set()
    for facts in project.modules.but_tests(_wrapping_files(project, kind), _FILES):
        for call in calls_below(facts.tree):
            if project.meanings.of(facts, call.func) in _calls(kind):
                found |= {keyword.arg for keyword in call.keywords} | ({None} if len(call.args) > 1 else set())
    return None if None in found else frozenset(filter(None, found))


def reads_of(project: Project, facts: ModuleFacts, function: FunctionNode, parameter: str) -> Iterator[ast.Attribute]:
    """The attributes that a function reads of a wrapped model that it gets, where no test asks how it is wrapped."""
    found: list[ast.Attribute] = []
    others = frozenset(p.arg for p in parameters(function))
    reading = _Walk(project, facts, None, "ddp", {}, _Callbacks(read=found.append), others)
    reading.block(function.body, frozenset({parameter}))
    return iter(found)


@functools.cache
def _calls(kind: Kind) -> Mapping[str, bool]:
    """The calls that wrap in a way, each with whether in place."""
    return {name: entry.in_place for name, entry in wrappers().items() if entry.kind == kind}


def _wrapping_files(project: Project, kind: Kind) -> list[pathlib.Path]:
    words = dict.fromkeys(name.rpartition(".")[2] for name in _calls(kind))
    return list(dict.fromkeys(path for word in words for path in project.contents.holding(word)))


def _wrapping_functions(project: Project, kind: Kind) -> Wrappings:
    files = list(project.modules.but_tests(_wrapping_files(project, kind), _FILES))
    found = {name: wrapping for facts in files for name, wrapping in _wrappings(project, facts, kind, {})}
    if not found:  # there is nothing that others could call
        return found
    return found | {name: wrapping for facts in files for name, wrapping in _wrappings(project, facts, kind, found)}


def _given(project: Project, kind: Kind) -> Given:
    paths, wrapping = _wrapping_files(project, kind), wrapping_functions(project, kind)
    calling = (path for name in wrapping for path in project.contents.holding(f"{name.rpartition('.')[2]}("))
    files = project.modules.but_tests([*paths, *calling], _FILES)
    new = [pair for facts in files for pair in _handed_in(project, facts, kind, wrapping, {})]
    return _followed(project, new, kind, wrapping)


def _followed(project: Project, new: list[_Found], kind: Kind, wrapping: Wrappings) -> Given:
    """What is handed over, and what those who get it hand on."""
    found: dict[tuple[str, str], Handed] = {}
    for _ in range(_DEPTH):
        new = [(key, handed) for key, handed in new if found.setdefault(key, handed) is handed]
        new = [pair for key, handed in new for pair in _handed_on(project, key, handed, kind, wrapping)]
    return found


def _scopes(project: Project, facts: ModuleFacts) -> Iterator[tuple[FunctionNode, ClassFacts | None]]:
    for node in facts.definitions.values():
        if isinstance(node, ast.ClassDef):
            owner = project.classes.of(facts, node)
            yield from ((method, owner) for method in owner.methods.values())
        else:
            yield node, None


def _wrappings(project: Project, facts: ModuleFacts, kind: Kind, known: Wrappings) -> Iterator[tuple[str, Wrapping]]:
    """The functions of a file that wrap, with those that are `known`."""
    names = _wrapping_names(facts, kind, known)
    for name, node in facts.definitions.items():
        if isinstance(node, ast.FunctionDef) and _calls_any(node, names):
            places: set[int] = set()
            of: list[str] = []
            callbacks = _Callbacks(returned=places.add, wrapped=of.append)
            reading = _Walk(project, facts, None, kind, known, callbacks)
            left = reading.block(node.body, frozenset())
            taken = [(place, p.arg) for place, p in enumerate(parameters(node))]
            placed = tuple(each for each in taken if each[1] in left and each[1] in reading.placed)
            if places or placed:
                given = next((each for each in taken if each[1] in of), None)
                yield (f"{facts.name}.{name}" if facts.name else name), Wrapping(frozenset(places), given, placed)


def _wrapping_names(facts: ModuleFacts, kind: Kind, wrapping: Wrappings) -> frozenset[str]:
    """The last parts of the names by which a file may call what wraps."""
    names = {name.rpartition(".")[2] for name in (*_calls(kind), *wrapping)}
    return frozenset(names | {own for own, t in facts.imports.names.items() if t.rpartition(".")[2] in names})


def _calls_any(function: FunctionNode, names: frozenset[str]) -> bool:
    """Whether a function calls one of these: without, nothing in it is wrapped."""
    return not names.isdisjoint(_called_in(function))


@kept_by_node(8192)
def _called_in(function: ast.AST) -> frozenset[str]:
    """The last parts of the names of what a function calls."""
    return frozenset(last_part(node.func) for node in calls_below(function))


def _handed_in(project: Project, facts: ModuleFacts, kind: Kind, wrapping: Wrappings, made: Made) -> list[_Found]:
    """The calls of a file that give a model which the file wraps, or gets wrapped from a function or by what is
    `made`."""
    found: list[_Found] = []

    def reading(owner: ClassFacts | None) -> _Walk:
        return _Walk(project, facts, owner, kind, wrapping, _noting_handed(found, facts), made=made)

    reading(None).block(facts.tree.body, frozenset())
    kept: dict[str, frozenset[str]] = {}
    scopes = list(_scopes(project, facts))
    names = _wrapping_names(facts, kind, wrapping) | {last_part(call.func) for call in made}
    for function, owner in scopes:
        if not _calls_any(function, names):
            continue
        left = reading(owner).block(function.body, frozenset())
        if owner is not None:
            own = frozenset(name for name in left if name.startswith("self."))
            kept[owner.name] = kept.get(owner.name, frozenset()) | own
    for function, owner in scopes:
        if owner is not None and kept.get(owner.name) and function.name != "__init__":
            reading(owner).block(function.body, kept[owner.name])
    return found


def _handed_on(project: Project, key: tuple[str, str], by: Handed, kind: Kind, wrapping: Wrappings) -> list[_Found]:
    """What a function that gets a model hands it on to; what a constructor keeps is handed to all methods."""
    place = function_of(project, key[0])
    if place is None:
        return []
    facts, function, owner = place
    found: list[_Found] = []
    reading = _Walk(project, facts, owner, kind, wrapping, _noting_handed(found, facts))
    left = reading.block(function.body, frozenset({key[1]}))
    if owner is not None and function.name == "__init__":
        own = frozenset(name for name in left if name.startswith("self."))
        found += [((owner.name, name), by) for name in own]
        for method in owner.methods.values() if own else ():
            if method is not function:
                reading.block(method.body, own)
    return found


def function_of(project: Project, name: str) -> tuple[ModuleFacts, FunctionNode, ClassFacts | None] | None:
    """A function by its canonical name, a method by that of its class, a constructor by the class."""
    found = project.meanings.definition(name)
    if found is not None and isinstance(found[1], ast.FunctionDef):
        return found[0], found[1], None
    owner, _, method = name.rpartition(".") if found is None else (name, "", "__init__")
    of_class = project.classes.method(owner, method) if project.classes.find(owner) is not None else None
    return (of_class[0].module, of_class[1], of_class[0]) if of_class is not None else None


def _nothing(*_: object) -> None: ...


@dataclasses.dataclass(frozen=True)
class _Callbacks:
    """What is called with each attribute that is read of a wrapped model, parameter that gets one, place of one in what
    is returned, and name of what is wrapped."""

    read: Callable[[ast.Attribute], object] = _nothing
    handed: Callable[[tuple[str, str], ast.Call], object] = _nothing
    returned: Callable[[int], object] = _nothing
    wrapped: Callable[[str], object] = _nothing


def _noting_handed(found: list[_Found], facts: ModuleFacts) -> _Callbacks:
    """Adds each parameter that gets a wrapped model to what is found."""
    return _Callbacks(handed=lambda to, call: found.append((to, Handed(facts, call))))


class _Walk:
    """One pass through a block in source order. The state is the names that hold a wrapped model."""

    def __init__(
        self,
        project: Project,
        facts: ModuleFacts,
        owner: ClassFacts | None,
        kind: Kind,
        wrapping: Wrappings,
        callbacks: _Callbacks,
        parameters: frozenset[str] = frozenset(),
        made: Made | None = None,
    ) -> None:
        self._project, self._facts, self._owner, self._wrapping = project, facts, owner, wrapping
        self._calls, self._callbacks, self._parameters = _calls(kind), callbacks, parameters
        self._made = made or {}
        #: The names of what was wrapped in place.
        self.placed: set[str] = set()
        self._last = _wrapping_names(facts, kind, wrapping)

    def block(self, body: list[ast.stmt], state: frozenset[str], muted: frozenset[str] = frozenset()) -> frozenset[str]:
        """The state behind a block. Reads of `muted` names are left out: a test around asks how they are wrapped."""
        for statement in body:
            state = self._statement(statement, state, muted)
        return state

    def _statement(self, node: ast.stmt, state: frozenset[str], muted: frozenset[str]) -> frozenset[str]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return state
        if isinstance(node, ast.If):
            return self._branches(node, state, muted)
        if isinstance(node, ast.Try):
            inside = self.block(node.body, state, muted | state if node.handlers else muted)
            blocks = (*(handler.body for handler in node.handlers), node.orelse, node.finalbody)
            for block in blocks:
                inside = self.block(block, inside, muted)
            return inside
        for part in below(node):
            if isinstance(part, (ast.expr, ast.withitem)):
                self._expression(part, state - muted if muted else state)  # a copy of thousands is not free
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)):
            state = self.block(node.body, state, muted)
            return self.block(getattr(node, "orelse", []), state, muted)
        for call in (n for n in below(node) if isinstance(n, ast.Call)):
            placed = self._placed(call)
            state = state | placed if placed else state
        if isinstance(node, ast.Return) and node.value is not None:
            self._return(node.value, state)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                state = self._assigned(target, node.value, state)
        return state

    def _return(self, returned: ast.expr, state: frozenset[str]) -> None:
        values = returned.elts if isinstance(returned, ast.Tuple) else [returned]
        for place, value in enumerate(values):
            if self._is_wrapped(value, state) is not None:
                self._callbacks.returned(place if isinstance(returned, ast.Tuple) else -1)

    def _branches(self, node: ast.If, state: frozenset[str], muted: frozenset[str]) -> frozenset[str]:
        self._expression(node.test, state - muted)
        inner = muted | state if _asks(node.test) or self._is_decided_by_caller(node.test) else muted
        taken, other = self.block(node.body, state, inner), self.block(node.orelse, state, inner)
        # What one branch takes out of its wrapper is not wrapped behind it: where the other one runs, it never was.
        return frozenset(name for name in taken | other if name not in state or name in taken & other)

    def _is_decided_by_caller(self, test: ast.expr) -> bool:
        """Whether a test is of what the function was given: those who give the wrapped model may never take the arm."""
        tested = test.operand if isinstance(test, ast.UnaryOp) else test.left if isinstance(test, ast.Compare) else test
        return isinstance(tested, ast.Name) and tested.id in self._parameters

    def _assigned(self, target: ast.expr, value: ast.expr, state: frozenset[str]) -> frozenset[str]:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            held = [self._is_wrapped(part, state) for part in value.elts]  # of all parts before one gets its name
            names = [dotted_ast(part) for part in target.elts]
            return (state - {*names}) | {n for n, at in zip(names, held, strict=True) if n and at and -1 in at}
        places = self._is_wrapped(value, state)
        if isinstance(target, ast.Tuple):
            names = [dotted_ast(element) for element in target.elts]
            wrapped = {name for place, name in enumerate(names) if name and places and place in places}
            return (state - {*names}) | wrapped
        name = dotted_ast(target)
        if not name:
            return state
        is_wrapped = places is not None and -1 in places
        if is_wrapped is (name in state):
            return state
        return state | {name} if is_wrapped else state - {name}

    def _is_wrapped(self, value: ast.expr, state: frozenset[str]) -> frozenset[int] | None:
        """The places of a value that hold a wrapped model, -1 for the value itself."""
        if isinstance(value, ast.IfExp):  # ``DDP(net) if several else net``, not ``net.module if wrapped else net``
            arms = [self._is_wrapped(arm, state) for arm in (value.body, value.orelse)]
            makes = next((arm for arm in arms if arm and ast.Call in (type(value.body), type(value.orelse))), None)
            return arms[0] if all(arms) else makes
        if not isinstance(value, ast.Call):
            return frozenset({-1}) if dotted_ast(value) in state else None
        if value in self._made:
            return self._made[value]
        meaning = self._meaning(value)
        if meaning in self._calls:
            self._callbacks.wrapped(dotted_ast(value.args[0]) if value.args else "")
            return frozenset({-1})
        if meaning in self._wrapping:
            self._callbacks.wrapped(given_for(self._wrapping[meaning].of, value))
            return self._wrapping[meaning].returned
        moved = value.func.value if isinstance(value.func, ast.Attribute) else None
        if moved is not None and last_part(value.func) in ("to", "cuda", "train", "eval"):
            return self._is_wrapped(moved, state)
        return None

    def _meaning(self, call: ast.Call) -> str:
        """The canonical name of what a call wraps with, '' for another call."""
        return self._project.meanings.of(self._facts, call.func) if last_part(call.func) in self._last else ""

    def _placed(self, call: ast.Call) -> frozenset[str]:
        """The names of the models that a call wraps in place."""
        meaning = self._meaning(call)
        if meaning in self._calls:
            found = [dotted_ast(call.args[0])] if self._calls[meaning] and call.args else []
        else:
            places = self._wrapping[meaning].in_place if meaning in self._wrapping else ()
            found = [given_for(place, call) for place in places]
        self.placed.update(found)
        return frozenset(found) - {""}

    def _expression(self, node: ast.AST, state: frozenset[str]) -> None:
        """Report what an expression reads of the wrapped models, and which calls it hands them to."""
        if not state or (isinstance(node, (ast.IfExp, ast.BoolOp)) and _asks(node)):
            return
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and dotted_ast(node.value) in state:
            self._callbacks.read(node)
        if isinstance(node, ast.Call):
            self._call(node, state)
        for child in below(node):
            self._expression(child, state)

    def _call(self, call: ast.Call, state: frozenset[str]) -> None:
        """Report the parameters that a call gives a wrapped model."""
        positional = [dotted_ast(arg) in state for arg in call.args]
        keywords = [k.arg for k in call.keywords if k.arg is not None and dotted_ast(k.value) in state]
        name = self._callee(call) if keywords or any(positional) else ""
        found = function_of(self._project, name) if name else None
        if found is None or any(isinstance(arg, ast.Starred) for arg in call.args):
            return
        names = [p.arg for p in parameters(found[1])][found[2] is not None :]
        for parameter in (*itertools.compress(names, positional), *keywords):
            self._callbacks.handed((name, parameter), call)

    def _callee(self, call: ast.Call) -> str:
        if self._owner is not None and dotted_ast(call.func) == f"self.{last_part(call.func)}":
            found = self._project.classes.method(self._owner.name, last_part(call.func))
            return f"{found[0].name}.{last_part(call.func)}" if found is not None else ""
        return self._project.meanings.of(self._facts, call.func) or self._method(call.func)

    def _method(self, func: ast.expr) -> str:
        """The canonical name of a method of an object whose class is one of the project: ``trainer.fit``."""
        if not isinstance(func, ast.Attribute):
            return ""
        around = function_at(self._facts.tree, func.lineno)
        of = self._project.types.of(func.value, self._facts, around, self._owner, _CLASS_DEPTH)
        found = (
            self._project.classes.method(of, func.attr) if of and self._project.classes.find(of) is not None else None
        )
        return f"{found[0].name}.{func.attr}" if found is not None else ""


def given_for(parameter: tuple[int, str] | None, call: ast.Call) -> str:
    """The dotted name that a call gives a parameter, '' where it cannot be seen."""
    return dotted_ast(argument_at(call, *parameter)) if parameter is not None else ""


def _asks(test: ast.AST) -> bool:
    """Whether an expression asks how a model is wrapped, or how many ranks there are."""
    names = (last_part(node).lower() for node in walk(test))
    return any(name in ASKING or any(word in name for word in ASKS) for name in names if name)

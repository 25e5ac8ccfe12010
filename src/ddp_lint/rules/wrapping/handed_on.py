"""Models that a project wraps in DDP and hands to its functions, and what is read of them: by `ast`, because the
function and its callers may be in different files."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from ddp_lint.findings import Span
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, FunctionNode, ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import parameters

_DDP = "torch.nn.parallel.DistributedDataParallel"
#: Files that wrap, or call what returns a wrapped model; a project with more is a framework.
_FILES = 60
_DEPTH = 3  # calls that hand a model on

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


#: By the canonical name of a function and its parameter.
Given = Mapping[tuple[str, str], Handed]
_Found = tuple[tuple[str, str], Handed]
#: The canonical names of functions that return a wrapped model: alone (-1), or at places of a tuple.
Returning = Mapping[str, frozenset[int]]


def given_wrapped(project: Project) -> Given:
    """The parameters that a call in the project gives a model in its DDP wrapper."""
    return project.remember(("given wrapped",), lambda: _given(project))


def reads_of(project: Project, facts: ModuleFacts, function: FunctionNode, parameter: str) -> Iterator[ast.Attribute]:
    """The attributes that a function reads of a wrapped model that it gets, where no test asks how it is wrapped."""
    found: list[ast.Attribute] = []
    others = frozenset(p.arg for p in parameters(function))
    walk = _Walk(project, facts, None, {}, read=found.append, parameters=others)
    walk.block(function.body, frozenset({parameter}))
    return iter(found)


def _given(project: Project) -> Given:
    paths = project.holding("DistributedDataParallel")
    returning = {name: places for facts in _files(project, paths) for name, places in _returning(project, facts)}
    calling = (path for name in returning for path in project.holding(f"{name.rpartition('.')[2]}("))
    found: dict[tuple[str, str], Handed] = {}
    new = [pair for facts in _files(project, [*paths, *calling]) for pair in _handed_in(project, facts, returning)]
    for _ in range(_DEPTH):
        new = [(key, handed) for key, handed in new if found.setdefault(key, handed) is handed]
        new = [pair for key, _ in new for pair in _handed_on(project, key, returning)]
    return found


def _files(project: Project, paths: Iterable[pathlib.Path]) -> Iterator[ModuleFacts]:
    each = dict.fromkeys(paths)
    for path in each if len(each) <= _FILES else ():
        facts = project.facts_of(path)
        if facts is not None and not facts.source.is_test:
            yield facts


def _scopes(project: Project, facts: ModuleFacts) -> Iterator[tuple[FunctionNode, ClassFacts | None]]:
    for node in facts.definitions.values():
        if isinstance(node, ast.ClassDef):
            owner = project.class_of(facts, node)
            yield from ((method, owner) for method in owner.methods.values())
        else:
            yield node, None


def _returning(project: Project, facts: ModuleFacts) -> Iterator[tuple[str, frozenset[int]]]:
    """The functions of a file that return a model wrapped in DDP: alone (-1), or at a place of a tuple."""
    for name, node in facts.definitions.items():
        if isinstance(node, ast.FunctionDef):
            places: set[int] = set()
            _Walk(project, facts, None, {}, returned=places.add).block(node.body, frozenset())
            if places:
                yield (f"{facts.name}.{name}" if facts.name else name), frozenset(places)


def _handed_in(project: Project, facts: ModuleFacts, returning: Returning) -> list[_Found]:
    """The calls of a file that give a model which the file wraps, or gets wrapped from a function."""
    found: list[_Found] = []

    def walk(owner: ClassFacts | None) -> _Walk:
        return _Walk(project, facts, owner, returning, handed=lambda to, call: found.append((to, Handed(facts, call))))

    walk(None).block(facts.tree.body, frozenset())
    kept: dict[str, frozenset[str]] = {}
    scopes = list(_scopes(project, facts))
    for function, owner in scopes:
        left = walk(owner).block(function.body, frozenset())
        if owner is not None:
            own = frozenset(name for name in left if name.startswith("self."))
            kept[owner.name] = kept.get(owner.name, frozenset()) | own
    for function, owner in scopes:
        if owner is not None and kept[owner.name] and function.name != "__init__":
            walk(owner).block(function.body, kept[owner.name])
    return found


def _handed_on(project: Project, key: tuple[str, str], returning: Returning) -> list[_Found]:
    """What a function that gets a model hands it on to."""
    place = function_of(project, key[0])
    if place is None:
        return []
    facts, function, owner = place
    found: list[_Found] = []
    walk = _Walk(project, facts, owner, returning, handed=lambda to, call: found.append((to, Handed(facts, call))))
    walk.block(function.body, frozenset({key[1]}))
    return found


def function_of(project: Project, name: str) -> tuple[ModuleFacts, FunctionNode, ClassFacts | None] | None:
    """A function by its canonical name, or a method by that of its class."""
    found = project.definition(name)
    if found is not None and isinstance(found[1], ast.FunctionDef):
        return found[0], found[1], None
    owner, _, method = name.rpartition(".")
    of_class = project.method(owner, method) if project.class_facts(owner) is not None else None
    return (of_class[0].module, of_class[1], of_class[0]) if of_class is not None else None


def _nothing(*_: object) -> None: ...


class _Walk:
    """One pass through a block in source order. The state is the names that hold a wrapped model."""

    def __init__(
        self,
        project: Project,
        facts: ModuleFacts,
        owner: ClassFacts | None,
        returning: Returning,
        *,
        read: Callable[[ast.Attribute], object] = _nothing,
        handed: Callable[[tuple[str, str], ast.Call], object] = _nothing,
        returned: Callable[[int], object] = _nothing,
        parameters: frozenset[str] = frozenset(),
    ) -> None:
        self._project, self._facts, self._owner, self._returning = project, facts, owner, returning
        self._read, self._handed, self._returned = read, handed, returned
        self._parameters = parameters
        self._last = frozenset(name.rpartition(".")[2] for name in returning)

    def block(self, body: list[ast.stmt], state: frozenset[str], muted: frozenset[str] = frozenset()) -> frozenset[str]:
        """The state behind a block. Nothing is told of `muted` names: a test around asks how they are wrapped."""
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
        for part in ast.iter_child_nodes(node):
            if isinstance(part, (ast.expr, ast.withitem)):
                self._expression(part, state - muted)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)):
            state = self.block(node.body, state, muted)
            return self.block(getattr(node, "orelse", []), state, muted)
        if isinstance(node, ast.Return) and node.value is not None:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for place, value in enumerate(values):
                if self._is_wrapped(value, state) is not None:
                    self._returned(place if isinstance(node.value, ast.Tuple) else -1)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                state = self._assigned(target, node.value, state)
        return state

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
        places = self._is_wrapped(value, state)
        if isinstance(target, ast.Tuple):
            names = [dotted_ast(element) for element in target.elts]
            wrapped = {name for place, name in enumerate(names) if name and places and place in places}
            return (state - {*names}) | wrapped
        name = dotted_ast(target)
        if not name:
            return state
        return state | {name} if places and -1 in places else state - {name}

    def _is_wrapped(self, value: ast.expr, state: frozenset[str]) -> frozenset[int] | None:
        """The places of a value that hold a wrapped model, -1 for the value itself."""
        if isinstance(value, ast.IfExp):  # ``DDP(net) if several else net``, not ``net.module if wrapped else net``
            arms = [self._is_wrapped(arm, state) for arm in (value.body, value.orelse)]
            makes = next((arm for arm in arms if arm and ast.Call in (type(value.body), type(value.orelse))), None)
            return arms[0] if all(arms) else makes
        if not isinstance(value, ast.Call):
            return frozenset({-1}) if dotted_ast(value) in state else None
        if last_part(value.func) in self._last:
            return self._returning.get(self._project.meaning(self._facts, value.func))
        moved = value.func.value if isinstance(value.func, ast.Attribute) else None
        if moved is not None and last_part(value.func) in ("to", "cuda", "train", "eval"):
            return self._is_wrapped(moved, state)
        return frozenset({-1}) if self._project.meaning(self._facts, value.func) == _DDP else None

    def _expression(self, node: ast.AST, state: frozenset[str]) -> None:
        """Tell what an expression reads of the wrapped models, and which calls it hands them to."""
        if not state or (isinstance(node, (ast.IfExp, ast.BoolOp)) and _asks(node)):
            return
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and dotted_ast(node.value) in state:
            self._read(node)
        if isinstance(node, ast.Call):
            self._call(node, state)
        for child in ast.iter_child_nodes(node):
            self._expression(child, state)

    def _call(self, call: ast.Call, state: frozenset[str]) -> None:
        """Tell of the parameters that a call gives a wrapped model."""
        positional = [dotted_ast(arg) in state for arg in call.args]
        keywords = [k.arg for k in call.keywords if k.arg is not None and dotted_ast(k.value) in state]
        name = self._callee(call) if keywords or any(positional) else ""
        found = function_of(self._project, name) if name else None
        if found is None or any(isinstance(arg, ast.Starred) for arg in call.args):
            return
        names = [p.arg for p in parameters(found[1])][found[2] is not None :]
        for parameter in (*itertools.compress(names, positional), *keywords):
            self._handed((name, parameter), call)

    def _callee(self, call: ast.Call) -> str:
        if self._owner is not None and dotted_ast(call.func) == f"self.{last_part(call.func)}":
            found = self._project.method(self._owner.name, last_part(call.func))
            return f"{found[0].name}.{last_part(call.func)}" if found is not None else ""
        return self._project.meaning(self._facts, call.func)


def _asks(test: ast.AST) -> bool:
    """Whether an expression asks how a model is wrapped, or how many ranks there are."""
    names = (last_part(node).lower() for node in ast.walk(test))
    return any(name in ASKING or any(word in name for word in ASKS) for name in names if name)

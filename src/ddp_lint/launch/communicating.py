"""Whether code communicates with the other ranks, or leaves the process group, itself or in what it calls."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator

from ddp_lint.knowledge import frameworks, table
from ddp_lint.knowledge.communication import load
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.helpers import Helper
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, below, calls_below, is_none, text_of

#: Tests that ask whether there are other ranks; any other one may tell the rank that has failed.
_GROUP = re.compile(r"dist|ddp|world|initialized|available|rank|num_processes|multi_gpu", re.IGNORECASE)
#: Functions of the project that are followed, one in the other, and how many in all.
_DEPTH, _MOST = 6, 300
#: ... to the end of the process group: a function that does more is no teardown.
_TO_THE_END = 2
#: How far the class of an object is looked for.
_TYPE = 6
#: What runs later, if at all.
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
#: Handlers of these take what makes one rank fail.
_BROAD = frozenset({"", "Exception", "BaseException"})


@dataclasses.dataclass(frozen=True)
class Code:
    """Statements of a file, perhaps in a function and a class of it."""

    facts: ModuleFacts
    statements: list[ast.stmt]
    function: FunctionNode | None = None
    owner: ClassFacts | None = None

    @classmethod
    def of(cls, helper: Helper) -> Code:
        """The body of a function of the project."""
        return cls(helper.facts, helper.function.body, helper.function, helper.owner)


def asks_for_group(test: str) -> bool:
    """Whether a test asks for the group, so that a rank which has failed passes it as others do."""
    return _GROUP.search(test) is not None


def is_collective(name: str) -> bool:
    """Whether a canonical name is that of a collective that says so by its name."""
    entry = load().collectives.get(name)
    return entry is not None and entry.kind == "collective" and not entry.implicit and not entry.backends


def waits(name: str, last: str) -> bool:
    """Whether the ranks wait for each other in a call: by its canonical name, or where that is '', not known, by the
    last part of what is called."""
    return is_collective(name) or (not name and last in frameworks.distinctive())


def starts_work(name: str, receiver: str | None, given: bool) -> bool:
    """Whether a call trains by its name: not ``head.train()``, which sets a mode. `receiver`: the last name of the
    object that a method is called on; `given`: whether the call has arguments."""
    if name not in failure_words("work"):
        return False
    if name != "train" or receiver is None or given:
        return True
    return receiver in ("", "self", "cls") or bool(words_of(receiver) & failure_words("trainers"))


def communicating(project: Project, code: Code) -> Iterator[ast.Call]:
    """The calls of some code after which other ranks may wait for this one: collectives, backwards, what trains, and
    functions of the project that do so. Not where a handler takes the error, or shows it, before it leaves."""
    for call in _unhandled(code.statements):
        if _communicates(project, code, call):
            yield call
        else:
            helper = called_helper(project, code, call)
            if helper is not None and _reaches_communication(project, helper):
                yield call


def has_backward(facts: ModuleFacts, function: FunctionNode, depth: int = 0) -> bool:
    """Whether a function has a backward, itself or in what it calls of its own file, one in the other as often as
    `depth` says."""
    for call in calls_below(function):
        last = last_part(call.func)
        if last == "backward":
            return True
        other = facts.definitions.get(last) if depth and isinstance(call.func, ast.Name) else None
        if isinstance(other, FunctionNode) and other is not function and has_backward(facts, other, depth - 1):
            return True
    return False


def leaving(project: Project, code: Code, depth: int = _TO_THE_END) -> Iterator[ast.Call]:
    """The calls of some code that destroy the process group of all ranks, also in a rank that has failed."""
    for call, tests in _under_tests(code.statements):
        if not all(map(asks_for_group, tests)):
            continue
        if called_name(project, code, call) in _destroyers():
            if not call.args + call.keywords or all(map(is_none, _values(call))):
                yield call
            continue
        helper = called_helper(project, code, call) if depth else None
        if helper is not None and next(leaving(project, Code.of(helper), depth - 1), None) is not None:
            yield call


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _reaches_communication(project: Project, helper: Helper) -> bool:
    def found() -> bool:
        seen, level = {helper.function}, [helper]
        for _ in range(_DEPTH):
            following: list[Helper] = []
            for each in level:
                code = Code.of(each)
                for call in _unhandled(code.statements):
                    if _communicates(project, code, call):
                        return True
                    inner = called_helper(project, code, call)
                    if inner is not None and inner.function not in seen and len(seen) < _MOST:
                        seen.add(inner.function)
                        following.append(inner)
            level = following
        return False

    key = ("reaches communication", helper.function)
    answer: bool = project.remember(key, found, helper.facts.kept)
    return answer


def _communicates(project: Project, code: Code, call: ast.Call) -> bool:
    """Whether a call communicates by its name."""
    name, last = called_name(project, code, call), last_part(call.func)
    if last == "backward" or waits(name, last):
        return True
    if _is_own(project, name):
        return False
    receiver = last_part(call.func.value) if isinstance(call.func, ast.Attribute) else None
    return starts_work(last, receiver, bool(call.args or call.keywords))


def _is_own(project: Project, name: str) -> bool:
    owner, _, method = name.rpartition(".")
    return bool(name) and (
        project.meanings.definition(name) is not None or (project.classes.method(owner, method) is not None)
    )


def called_name(project: Project, code: Code, call: ast.Call) -> str:
    """The canonical name of what is called, of a method by the class of its object; '' where it is not known."""
    name = project.meanings.of(code.facts, call.func)
    if name or not isinstance(call.func, ast.Attribute):
        return name
    kind = project.types.of(call.func.value, code.facts, code.function, code.owner, _TYPE)
    return f"{kind}.{call.func.attr}" if kind else ""


def called_helper(project: Project, code: Code, call: ast.Call) -> Helper | None:
    """The function or method of the project that is called; of a class its constructor."""
    name = called_name(project, code, call)
    found = project.meanings.definition(name)
    if found is not None and isinstance(found[1], FunctionNode):
        return Helper(found[0], found[1])
    if found is not None:
        made = project.classes.method(name, "__init__")
        return Helper(made[0].module, made[1], made[0]) if made is not None else None
    owner, _, method = name.rpartition(".")
    of = project.classes.method(owner, method) if owner else None
    return Helper(of[0].module, of[1], of[0]) if of is not None else None


@functools.cache
def _destroyers() -> frozenset[str]:
    entries = load().collectives.values()
    return frozenset(e.name for e in entries if e.kind == "leave" and e.op == "destroy_process_group")


@functools.cache
def failure_words(kind: str) -> frozenset[str]:
    """Names of functions by which a failure is judged (`failures.toml`)."""
    return frozenset(table("failures")[kind])


# ---- the calls of statements


def _unhandled(statements: list[ast.stmt]) -> Iterator[ast.Call]:
    """The calls whose errors leave the statements, with nothing said of them before."""
    for statement in statements:
        if isinstance(statement, ast.Try) and shows_or_takes(statement):
            parts = [*statement.orelse, *statement.finalbody]
            yield from _unhandled(parts)
        else:
            yield from _calls_in(statement)


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    if isinstance(node, ast.Call):
        yield node
    for part in below(node):
        if isinstance(part, ast.Try):
            yield from _unhandled([part])
        elif not isinstance(part, _DEFINES):
            yield from _calls_in(part)


def _under_tests(statements: list[ast.stmt], tests: tuple[str, ...] = ()) -> Iterator[tuple[ast.Call, tuple[str, ...]]]:
    """The calls of statements with the tests that lead to them."""
    for statement in statements:
        if isinstance(statement, _DEFINES):
            continue
        if isinstance(statement, ast.If):
            inner = (*tests, text_of(statement.test))
            yield from _under_tests(statement.body, inner)
            yield from _under_tests(statement.orelse, inner)
            if isinstance(statement.body[-1], _ENDS):
                tests = inner
            continue
        for part in below(statement):
            if isinstance(part, ast.stmt):
                yield from _under_tests([part], tests)
            elif isinstance(part, ast.ExceptHandler):
                continue  # runs after another error alone
            else:
                yield from ((call, tests) for call in _calls_in(part))


def shows_or_takes(node: ast.Try) -> bool:
    """Whether the handlers of a `try` take the error that makes a rank fail, or print it before they raise it again."""
    for handler in node.handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if not _BROAD & {dotted_ast(kind).rpartition(".")[2] if kind is not None else "" for kind in kinds}:
            continue
        raises = any(isinstance(n, ast.Raise) for s in handler.body for n in ast.walk(s))
        return not raises or any(
            last_part(c.func) in failure_words("logging") for s in handler.body for c in _calls_in(s)
        )
    return False

"""Exceptions that one rank may get alone: where a `try` ends for this rank, and the others go on."""

from __future__ import annotations

import ast
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence import worlds
from ddp_lint.divergence.calls_by_name import functions_behind, held, is_collective_name, is_wrapped
from ddp_lint.divergence.definitions import calls_in
from ddp_lint.divergence.expressions import dotted, evaluate
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.lengths import equalised
from ddp_lint.divergence.stop_iteration import own_end
from ddp_lint.divergence.values import ELEMENT, Condition, Variation, unknown
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge import table
from ddp_lint.project.parts import children, inside, kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, names_in, parameters, positional, walk

#: Exceptions that one rank may get alone; others are mistakes that all ranks make.
_LOCAL_ERRORS: Final = frozenset(table("failures")["local_exceptions"])
#: Calls that do not fail on one rank alone.
_HARMLESS: Final = frozenset(table("failures")["safe_calls"])


def may_fail(frame: Frame, statement: ast.stmt) -> bool:
    """Does the statement call something that can raise on one rank alone? Collectives fail on all ranks, and what a
    constructor is given it only keeps."""
    own = frame.summaries.own
    together = own.collectives.words if own is not None else frozenset[str]()
    return any(
        name not in _HARMLESS
        and name not in together
        and not is_collective_name(name)
        and not (isinstance(function, ast.Name) and _only_keeps(frame, function))
        for name, function in _called_in(statement)
    )


@kept_by_node(8192)
def _called_in(statement: ast.stmt) -> tuple[tuple[str, ast.expr], ...]:
    """What a statement calls that may raise, one of each name, by the last part of that."""
    calls = (child for child in (statement, *children(statement)) if isinstance(child, ast.Call))
    return tuple({last_part(call.func): call.func for call in calls if not _ignores_errors(call)}.items())


def _ignores_errors(call: ast.Call) -> bool:
    """``shutil.rmtree(folder, ignore_errors=True)``."""
    given = (keyword.value for keyword in call.keywords if keyword.arg == "ignore_errors")
    return any(isinstance(value, ast.Constant) and value.value is True for value in given)


def _only_keeps(frame: Frame, function: ast.Name) -> bool:
    """Is it a class of the project whose constructor does nothing but keep what it is given?"""
    of = frame.linker.expression(frame.facts, function)
    init = frame.linker.method(of, "__init__") if isinstance(of, ref.ClassRef) else None
    return init is not None and not isinstance(init.node, ast.Lambda) and all(map(_is_kept, init.node.body))


def _is_kept(statement: ast.stmt) -> bool:
    """``self.model = model``, or a text."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return isinstance(statement.value, (ast.Name, ast.Constant))
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


#: What lets one rank alone in where something else went wrong before: files lie where all ranks see them, mostly.
_SHARED = ("exception", "file")


def whether_raised(frame: Frame, node: ast.Try, handler: ast.ExceptHandler) -> Condition:
    """ "The body raised": each rank for itself if it is an exception that may hit one rank alone."""
    names = names_of(handler)
    key = ("raised", frame.key(handler))
    text = f"except {', '.join(sorted(names))}".rstrip()
    if (ends := own_end(frame, node, handler, names)) is not None:
        return Condition((key,) * worlds.COUNT, text, ends, open=True)
    if names == {"StopIteration"} and equalised(frame.linker.project, frame.facts):
        return Condition((key,) * worlds.COUNT, text)
    if _survives_lack_of_memory(frame, handler, names) and not _makes_up_for(frame, handler):
        origin = Label(frame.span(handler), "a rank that runs out of memory continues here")
        description = "whether this rank has run out of memory"
        return Condition(
            (key,) * worlds.COUNT,
            text,
            Variation("memory", description, origin=origin, confidence=Confidence.MEDIUM),
            True,
        )
    if names & _LOCAL_ERRORS and any(may_fail(frame, statement) for statement in node.body):
        origin = Label(frame.span(node.body[0]), "this may raise on one rank only")
        description, cause = "an exception that only this rank may have raised", "exception"
        if is_of_one_rank(frame, node) or any(
            v.cause not in _SHARED for test in frame.path if (v := test.varying()) is not None
        ):
            description, cause = "whether the work of this rank has failed here", "failure"
        varies = Variation(cause, description, origin=origin, confidence=Confidence.MEDIUM)
        return Condition((key,) * worlds.COUNT, text, varies, open=True)
    return Condition((key,) * worlds.COUNT, text)


def _survives_lack_of_memory(frame: Frame, handler: ast.ExceptHandler, names: frozenset[str]) -> bool:
    """Is the handler there for a lack of memory, which hits the rank with the longest batch? It says so itself, or asks
    a function of the project: ``if not is_out_of_memory(error): raise``."""
    if "OutOfMemoryError" in names:
        return True
    if not names & {"RuntimeError", "Exception"}:
        return False
    if any(map(_speaks_of_memory, handler.body)):
        return True
    given = {handler.name} if handler.name else set()
    tests = [n.test for part in handler.body for n in (part, *children(part)) if isinstance(n, ast.If)]
    calls = (call for test in tests for call in calls_below(test))
    asking = (call.func for call in calls if any(names_in(argument) & given for argument in call.args))
    asked = (frame.linker.expression(frame.facts, function) for function in asking if isinstance(function, ast.Name))
    return any(isinstance(of, ref.FunctionRef) and _speaks_of_memory(of.node) for of in asked)


@kept_by_node(4096)
def _speaks_of_memory(node: ast.AST) -> bool:
    texts = (part.value for part in walk(node) if isinstance(part, ast.Constant))
    return any(isinstance(text, str) and "out of memory" in text.lower() for text in texts)


def _makes_up_for(frame: Frame, handler: ast.ExceptHandler) -> bool:
    """Does the handler count what has failed, ``failed += 1``, and is a method of the object then given that number,
    to run as many rounds again: ``if failed > 0: self.run_again(failed)``?"""
    adding = (n for part in handler.body for n in (part, *children(part)) if isinstance(n, ast.AugAssign))
    counters = {n.target.id for n in adding if isinstance(n.op, ast.Add) and isinstance(n.target, ast.Name)}
    if not counters or frame.function is None or frame.owner is None:
        return False
    tests = (n for n in children(frame.function) if isinstance(n, ast.If) and counters & names_in(n.test))
    calls = (call for test in tests for call in calls_in(test.body) if dotted(call.func).startswith("self."))
    again = (call for call in calls if last_part(call.func) in frame.linker.members(frame.owner))
    return any(counters & names_in(argument) for call in again for argument in call.args)


def names_of(handler: ast.ExceptHandler) -> frozenset[str]:
    if handler.type is None:
        return frozenset({"Exception"})
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return frozenset(dotted(type_).rpartition(".")[2] for type_ in types)


def refuses_own(frame: Frame, node: ast.Try, handler: ast.ExceptHandler) -> Condition | None:
    """ "This rank's own data was refused": an exception that a function of the project raises by a test of what this
    rank has given it, after which the rank goes on; or any, where the rank works through its own share of a whole."""
    names = names_of(handler)
    if isinstance(handler.body[-1], ast.Raise):
        return None
    calls = [call for call in calls_in(node.body) if last_part(call.func) not in _HARMLESS]
    if not names & _GENERAL and any(_raises(frame, call, names) for call in calls):
        what = f"whether this rank's own data raises {' or '.join(sorted(names))}"
    elif any(_is_of_share(frame, argument) for call in calls for argument in call.args):
        what = "whether an element of this rank's own share fails here"
    else:
        return None
    origin = Label(frame.span(handler), "a rank whose own data fails continues here")
    varies = Variation("data", what, origin=origin, confidence=Confidence.MEDIUM)
    text = f"except {', '.join(sorted(names))}"
    return Condition((("refused", frame.key(handler)),) * worlds.COUNT, text, varies, open=True)


#: Handlers of these are for whatever may happen, not for what one function raises.
_GENERAL = frozenset({"Exception", "BaseException"})


def _is_of_share(frame: Frame, argument: ast.expr) -> bool:
    """Is it an element of what falls to this rank alone: ``for name in names[rank::world_size]``?"""
    value = frame.env.get(dotted(argument))
    own = value.varies.aspect == "share" if value is not None and value.varies is not None else False
    return value is not None and value.kind == ELEMENT and own


def _raises(frame: Frame, call: ast.Call, names: frozenset[str]) -> bool:
    """Does the function that is called raise one of these by what it is given of this rank's own data?"""
    outer, frame.effects = frame.effects, []
    function = evaluate(frame, call.func).reference
    frame.effects = outer
    if isinstance(function, ref.Instance) and isinstance(function.of, ref.ClassRef):
        function = frame.linker.method(function.of, "__call__") or frame.linker.method(function.of, "forward")
    if not isinstance(function, ref.FunctionRef) or isinstance(function.node, ast.Lambda):
        return False
    raising = _raising(function.node, names)
    if not raising:
        return False
    bound = function.owner is not None and not ref.is_decorated(function.node, "staticmethod")
    taken = [parameter.arg for parameter in positional(function.node)][bound:]
    given = dict(zip(taken, call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    own = {name for name, argument in given.items() if _is_own(frame, argument)}
    return not raising.isdisjoint(own)


def _is_own(frame: Frame, argument: ast.expr) -> bool:
    """Is it of this rank's own batch, or what a model that several ranks run together gave for that?"""
    outer, frame.effects = frame.effects, []
    value = evaluate(frame, argument) if not isinstance(argument, ast.Starred) else unknown(("starred",))
    behind = functions_behind(frame, argument) if isinstance(argument, ast.Name) else []
    wrapped = any(is_wrapped(held(frame, function)) for function in behind)
    frame.effects = outer
    return wrapped or (value.open and value.varies is not None and value.varies.cause == "data")


@kept_by_node(4096)
def _raising(function: FunctionNode, names: frozenset[str]) -> frozenset[str]:
    """The parameters by whose tests a function raises one of these exceptions."""
    found: set[str] = set()
    for node in inside(function):
        if isinstance(node, ast.If):
            raised = (part.exc for part in node.body if isinstance(part, ast.Raise) and part.exc is not None)
            if not names.isdisjoint(last_part(getattr(of, "func", of)) for of in raised):
                found |= names_in(node.test)
    made = {
        target.id: names_in(node.value)
        for node in inside(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    left = list(found)
    while left:
        more = made.get(left.pop(), frozenset()) - found
        found |= more
        left += more
    return frozenset(found & {parameter.arg for parameter in parameters(function)})


def is_of_one_rank(frame: Frame, node: ast.Try) -> bool:
    """Can nothing in a `try` fail on one rank alone but what is under a test of the rank: ``if rank == 0: download()``,
    and then a barrier?"""
    found = False
    for statement in node.body:
        if not may_fail(frame, statement):
            continue
        if not isinstance(statement, ast.If) or statement.orelse:
            return False
        outer, frame.effects = frame.effects, []
        value = evaluate(frame, statement.test)
        frame.effects = outer
        if not value.by_rank or value.open:
            return False
        found = True
    return found

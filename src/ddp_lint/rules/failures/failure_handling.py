"""What the DDP5xx rules share: exits with status 0, exception handlers, and what messages say."""

from __future__ import annotations

import functools
import re

import libcst as cst

from ddp_lint.knowledge import frameworks, table
from ddp_lint.launch.communicating import failure_words, has_backward, starts_work
from ddp_lint.launch.helpers import helper_of
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.source import dotted
from ddp_lint.source.queries import last_name, literal_text, statements
from ddp_lint.source.tree import descendants
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

Exit = cst.Call | cst.Raise

_EXITS = {"os._exit": "os._exit", "sys.exit": "sys.exit"}
_ZERO = ("0", "None", "False", "EX_OK")


def exits_with_success(module: Module, node: Exit) -> bool:
    """Whether a call or `raise` ends the process (or raises SystemExit) with status 0."""
    if isinstance(node, cst.Raise):
        return _raises_success(node)
    name = module.qualified(node.func)
    if name == "pytest.exit":
        return _is_zero(argument(node, 1, "returncode"))
    if name in _EXITS:
        return _is_zero(node.args[0].value) if node.args else name == "sys.exit"
    if isinstance(node.func, cst.Name) and node.func.value in ("exit", "quit") and not module.bindings(node.func):
        return not node.args or _is_zero(node.args[0].value)
    return False


def _raises_success(node: cst.Raise) -> bool:
    raised = node.exc
    if isinstance(raised, cst.Call) and dotted(raised.func) == "SystemExit":
        return not raised.args or _is_zero(raised.args[0].value)
    return dotted(raised) == "SystemExit"


def _is_zero(value: cst.BaseExpression | None) -> bool:
    if isinstance(value, cst.Integer):
        return value.value == "0"
    return dotted(value).rpartition(".")[2] in _ZERO[1:]


def caught(handler: cst.ExceptHandler) -> list[str]:
    """The last parts of the names of the exceptions that a handler takes; [''] for a bare `except`."""
    kind = handler.type
    if kind is None:
        return [""]
    kinds = [e.value for e in kind.elements] if isinstance(kind, cst.Tuple) else [kind]
    return [dotted(k).rpartition(".")[2] for k in kinds]


def only_logs(body: cst.BaseSuite) -> bool:
    """Whether a body does nothing but print, log, or pass."""
    return all(is_log(statement) for statement in statements(body))


def is_log(statement: cst.CSTNode) -> bool:
    """Whether a statement prints, logs or makes a text, or does nothing."""
    if isinstance(statement, (cst.Pass, cst.Continue, cst.Import, cst.ImportFrom)):
        return True
    if isinstance(statement, cst.If):
        return only_logs(statement.body) and (statement.orelse is None or only_logs(statement.orelse.body))
    if isinstance(statement, cst.Assign):
        return isinstance(statement.value, (cst.FormattedString, cst.SimpleString))
    if not isinstance(statement, cst.Expr):
        return False
    value = statement.value
    if isinstance(value, cst.Call):
        return last_name(value.func) in failure_words("logging")
    return isinstance(value, (cst.SimpleString, cst.ConcatenatedString, cst.Ellipsis))


def does_work(module: Module, call: cst.Call) -> bool:
    """Whether a call does the job's work or starts it: by its name (`train`, or a `main` that several ranks run), or
    because it is of a function of the project with a backward pass."""
    name = last_name(call.func)
    if name in failure_words("work"):
        receiver = last_name(call.func.value) if isinstance(call.func, cst.Attribute) else None
        return starts_work(name, receiver, bool(call.args))
    if name in failure_words("entries") and (several_ranks(module) is not None or starts_ranks(module.file.text)):
        return True
    helper = helper_of(module, call)
    if helper is None:
        return name in failure_words("starters")  # one of the project's own may start anything
    return has_backward(helper.facts, helper.function)


@functools.cache
def _pattern(kind: str) -> re.Pattern[str]:
    return re.compile("|".join(table("failures")[kind]), re.IGNORECASE)


def speaks_of_failure(text: str) -> bool:
    """Whether a message or a condition says that something failed, and not that something was finished."""
    spaced = re.sub(r"[_\-]+", " ", text)
    return bool(_pattern("failure_words").search(spaced)) and not _pattern("success_words").search(spaced)


def starts_ranks(text: str) -> bool:
    """Whether a command, or a file, names a launcher or a training script."""
    return any(pattern.search(text) for pattern in (frameworks.commands(), _pattern("launchers")))


def asks_for_failure(test: str) -> bool:
    """Whether a condition tests for something that is missing, invalid or failed."""
    return bool(_pattern("failure_conditions").search(re.sub(r"[_\-]+", " ", test)))


def messages(body: cst.BaseSuite) -> str:
    """The texts of the string literals in the calls that a body makes directly."""
    found: list[str] = []
    for statement in statements(body):
        if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
            found += [literal_text(node) for node in descendants(statement.value)]
    return " ".join(filter(None, found))


def logs_an_error(body: cst.BaseSuite) -> bool:
    """Whether a body calls `logger.error`, `.critical`, `.exception`, or prints a traceback."""
    loud = ("error", "critical", "exception", "print_exc", "print_exception")
    return any(
        isinstance(s, cst.Expr) and isinstance(s.value, cst.Call) and last_name(s.value.func) in loud
        for s in statements(body)
    )


def is_signal_handler(function: cst.FunctionDef | None) -> bool:
    """A function of (signum, frame), which the user or the scheduler triggers."""
    if function is None:
        return False
    names = [p.name.value for p in function.params.params]
    return (
        any(n.strip("_") in ("frame", "stack", "sig", "signum", "signal") for n in names)
        or "signal" in function.name.value
    )


def initializers(module: Module) -> frozenset[str]:
    """The functions that a pool runs at the start of each worker, ``Pool(8, initializer=encoder.prepare)``: the
    worker's status is not that of the program."""
    calls = module.of_type(cst.Call) if module.file.holds("initializer") else ()
    given = (argument(call, None, "initializer") for call in calls)
    return frozenset(dotted(value).rpartition(".")[2] for value in given if value is not None)


def in_forked_child(module: Module, node: cst.CSTNode) -> bool:
    """Whether the function around `node` forks: its child must leave by `os._exit`."""
    function = module.function_of(node)
    body = function.body if function is not None else module.tree
    return any(isinstance(n, cst.Call) and module.qualified(n.func) == "os.fork" for n in descendants(body))

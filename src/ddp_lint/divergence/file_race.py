"""One rank makes a file and the others wait for it, but only those that found it missing wait."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Sequence
from typing import Final

from ddp_lint.divergence.compare import Difference, under
from ddp_lint.divergence.event_graph import Called
from ddp_lint.divergence.frame import text_of
from ddp_lint.divergence.mismatches import Mismatch
from ddp_lint.divergence.values import Variation
from ddp_lint.launch.file_access import LOOKS
from ddp_lint.launch.locks import is_machine_lock
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import calls_below, function_at, walk

#: Calls that only wait: where a file is missing, they wait for the rank that creates it.
_WAITS = frozenset({"barrier", "monitored_barrier", "rendezvous"})
_MISSES = "except FileNotFoundError"
#: Calls that make no file of what they are given: they look for it, read it, fetch it from a hub, or report it.
_MAKES_NONE = re.compile(
    r"^(_*[A-Z]|exists|is_?(file|dir)|load|read|list|get_|from_pretrained|snapshot_|hf_hub_|join|dirname|basename|abspath|"
    r"Path|open|print|log|info|warn|error|debug|format|str|len)|_(load|rank0|once)$"
)
#: What is asked before a wait: whether there are other ranks, and which one this is.
_ASKS = frozenset({"is_available", "is_initialized", "get_rank", "get_world_size"})
#: Modes in which `open` makes a file.
_WRITES = re.compile(r"[rbt+]*[wxa][rbt+]*")
#: Calls between the look and the wait, what wraps a barrier aside: a helper that makes the file and waits.
_HELPER = 1
#: The cause of a variation that is such a race.
MADE: Final = "made"


def race_of(difference: Difference, varies: Variation, chosen: bool | None) -> Variation:
    """The variation; a race with the rank that creates the file, where it is one.

    ``if not exists(path): (rank 0 makes it); barrier()``: a rank that looks after the file was created skips the
    barrier. It requires no local disk, unlike other conditions on files: the code itself changes the answer. An early
    return is no such wait: its file may be created much later, or never (a path that must not be a file).
    """
    text = difference.fork.condition.text
    if not under(difference.event, difference.fork.span):
        return varies
    looks = varies.cause == "file" and chosen is False and LOOKS.search(text)
    misses = varies.cause == "exception" and chosen is True and text == _MISSES
    # What waits deep in what the arm calls is the rest of the program, not a wait for the file.
    chain = difference.event.chain
    waits = difference.event.op in _WAITS and (not chain or _wait_in(chain[:_HELPER]) is not None)
    if not waits or not (looks or misses):
        return varies
    return dataclasses.replace(
        varies, cause=MADE, description="whether the file was made before this rank looked for it"
    )


def is_no_race(mismatch: Mismatch, facts: ModuleFacts) -> bool:
    """Is it impossible that the file exists when the others look for it?

    Those that miss it make another one or none (``if not exists(given): torch.save(x, initial)``), or wait for each
    other before they make it; or all of them make it, no one of them for the others (of those that were read,
    none was real). And who holds a lock over it is alone there: these are jobs that follow each other.
    """
    branch, line = mismatch.branch, mismatch.span.line
    if mismatch.cause != MADE or branch is None or branch.path != mismatch.span.path or branch.path != facts.file.path:
        return False
    if _is_locked(facts, line):
        return True
    node = next((n for n in walk(facts.tree) if isinstance(n, ast.If) and n.lineno == branch.line), None)
    arms = (node.body, node.orelse) if node is not None else ()
    arm = next((arm for arm in arms if any(part.lineno <= line <= (part.end_lineno or line) for part in arm)), ())
    first = arm[0].value if arm and isinstance(arm[0], ast.Expr) else None
    if node is None or (isinstance(first, ast.Call) and last_part(first.func) in _WAITS):
        return node is not None
    if _asks_for_what_was_made(facts, node):
        return True
    calls = [part for statement in arm for part in calls_below(statement)]
    making = [call for call in calls if _makes(call)]
    # What is made behind the wait is made when every rank has looked. A ``with main_process_first():`` waits behind
    # its body, too.
    waiting = next((p for part in arm for p in walk(part) if isinstance(p, ast.With) and p.lineno == line), None)
    last = waiting.end_lineno if waiting is not None and waiting.end_lineno else line
    making = [call for call in making if call.lineno <= last and not _waits_first(call, mismatch, facts)]
    helper = _wait_in(mismatch.way)
    deciding: Sequence[ast.stmt] = _around(facts, helper) if helper is not None else arm
    if arm and not any(isinstance(part, (ast.If, ast.Assert)) for statement in deciding for part in walk(statement)):
        return True
    asked = _names_in(node.test) - _libraries(facts, node.test)
    given = ((getattr(call.func, "value", call.func), *call.args, *call.keywords) for call in making)
    return not any(asked & _given(part) for parts in given for part in parts)


def _waits_first(call: ast.Call, mismatch: Mismatch, facts: ModuleFacts) -> bool:
    """Is it the call that leads to the wait, of a function of the file that makes nothing before it waits?"""
    wait = _wait_in(mismatch.way[:1])
    if wait is None or call.lineno != mismatch.span.line or wait.span.path != facts.file.path:
        return False
    helper = function_at(facts.tree, wait.span.line)
    if helper is None or getattr(helper, "name", "") != last_part(call.func):
        return False
    before = (part for part in calls_below(helper) if part.lineno < wait.span.line)
    return not any(_makes(part) and last_part(part.func) not in _ASKS for part in before)


def _asks_for_what_was_made(facts: ModuleFacts, node: ast.If) -> bool:
    """``if model is None:``, where a look for another file has decided whether it was loaded: nothing here makes that
    file."""
    function = function_at(facts.tree, node.lineno)
    names = {part.id for part in walk(node.test) if isinstance(part, ast.Name)}
    held = [value for name in names for value in assigned_in(function, name)] if function is not None else []
    return bool(held) and not any(LOOKS.search(text_of(part)) for part in (node.test, *held))


def _wait_in(way: Sequence[Called]) -> Called | None:
    """The first call on the way to a barrier that waits by its name, so that the rest only wraps the barrier."""
    return next((step for step in way if step.callee.rpartition(".")[2] in _WAITS), None)


def _around(facts: ModuleFacts, wait: Called) -> Sequence[ast.stmt]:
    """The body of the file's function that a wait is in: a helper that makes the file, on one rank alone if it asks."""
    function = function_at(facts.tree, wait.span.line) if wait.span.path == facts.file.path else None
    return function.body if function is not None else ()


def _makes(call: ast.Call) -> bool:
    """May the call make a file of what it is given?"""
    name = last_part(call.func)
    if name == "open":
        modes = (
            each.value for each in (*call.args, *(k.value for k in call.keywords)) if isinstance(each, ast.Constant)
        )
        return any(isinstance(mode, str) and _WRITES.fullmatch(mode) for mode in modes)
    return not _MAKES_NONE.search(name) and name not in _WAITS


def _is_locked(facts: ModuleFacts, line: int) -> bool:
    """Is the line in a ``with FileLock(path):``?"""
    around = (n for n in walk(facts.tree) if isinstance(n, ast.With) and n.lineno <= line <= (n.end_lineno or line))
    managers = (item.context_expr for node in around for item in node.items)
    made = (call.func for call in managers if isinstance(call, ast.Call))
    return any(is_machine_lock(facts.qualified(func) or dotted_ast(func)) for func in made)


def _names_in(node: ast.AST) -> set[str]:
    """The variables that an expression consists of: names that are no part of what is called."""
    called = {id(part.func) for part in calls_below(node)}
    paths = (part for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute)) and id(part) not in called)
    return {name for part in paths if (name := dotted_ast(part))}


def _libraries(facts: ModuleFacts, test: ast.AST) -> set[str]:
    """``os`` and ``os.path`` of ``os.path.exists(x)``: the library that looks, no part of what it looks for. Of
    ``PATH.exists()`` it is what is looked for, also where it is imported."""
    looks = [p for p in calls_below(test) if p.args and LOOKS.search(text_of(p.func) + "(")]
    found: set[str] = set()
    for look in looks:
        path = dotted_ast(look.func).rpartition(".")[0]
        while path and facts.imports.resolve(path) is not None:
            found.add(path)
            path = path.rpartition(".")[0]
    return found - set().union(*(_names_in(argument) for look in looks for argument in look.args))


def _given(node: ast.AST) -> set[str]:
    """The variables that an argument, or the object of a method, consists of: another field of an object is not the
    object that has the path (``tokenize(batch, args.workers)`` under a test of ``args.file``)."""
    fields = {id(part.value) for part in walk(node) if isinstance(part, ast.Attribute)}
    paths = (part for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute)) and id(part) not in fields)
    return {name for part in paths if (name := dotted_ast(part))}

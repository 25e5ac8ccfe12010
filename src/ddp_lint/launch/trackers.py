"""Which calls start a run of an experiment tracker, and whether each process that makes one has a run of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.knowledge.trackers import Tracker, switched_off
from ddp_lint.launch.by_rank import Place, takes_rank
from ddp_lint.launch.callers import CallSite
from ddp_lint.launch.own_paths import values_of
from ddp_lint.launch.search import imported_through
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, conditions_at
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, statements, text_of, walk
from ddp_lint.view import Module
from ddp_lint.view.as_ast import as_ast

#: What the text of a value or a test has that is another one on each rank.
_OF_RANK = re.compile(r"rank|main_proc|is_main|master|primary|process_(?:index|id)|procid|is_chief", re.IGNORECASE)
#: A test of which GPU the process has, where each has one.
_OF_GPU = re.compile(r"\w*gpu\w*(?:\(\))? *(?:[=!]=|[<>]|not in\b|in\b) *[(\[{\d-]", re.IGNORECASE)
#: What settings of a tracker have that say which process starts a run, or that all write to one.
_SETS_MODE = re.compile(r"mode|shared|disable|primary|rank", re.IGNORECASE)
#: Files that hold a name, which are asked for what it is given.
_FILES = 25
#: Names that are followed to what gives them their value.
_DEPTH = 2
#: The last part of a name: of ``args.track`` the rank decides where it decides of any ``track``.
_LAST = re.compile(r"(?<![\w.\"'])(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)")
#: Names that are the same on all ranks, though it is by a rank that a program learns of it: ``args.distributed``.
_OF_ALL = re.compile(
    r"not|and|or|is|in|None|True|False|self|args|\w*(?:distributed|ddp|world_size|wandb)", re.IGNORECASE
)


def starts_own(module: Module, call: cst.Call, tracker: Tracker) -> bool:
    """Whether a process that makes a call has a run of its own by it, and not on purpose: no argument joins runs, says
    that there is none, or has the rank."""
    if tracker.unless_spawned and module.file.holds("spawn"):
        return False
    for arg in call.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        if name in tracker.contents:
            continue
        if arg.star == "*" or (arg.star and not _is_seen(module, arg.value, tracker)):
            return False
        value = module.code(arg.value)
        if name and name == tracker.mode:
            if not _may_be_on(module, arg.value, tracker):
                return False
            continue
        joins = name in tracker.joined or (not name and not arg.star and tracker.by_place)
        if joins and value not in ("None", "False"):
            return False
        if name == "settings" and any(_SETS_MODE.search(text) for text in _texts(module, arg.value)):
            return False
        if any(_OF_RANK.search(text) for text in _texts(module, arg.value)):
            return False
    return not _takes_rank(module, call, tracker)


def _may_be_on(module: Module, mode: cst.BaseExpression, tracker: Tracker) -> bool:
    """Whether what a call is told of the mode may be one with a run, on all ranks alike: a constant, or a setting that
    nothing makes of the rank."""
    if isinstance(mode, cst.IfExp):
        arms = (_may_be_on(module, arm, tracker) for arm in (mode.body, mode.orelse))
        return any(arms) and not _is_by_rank(module, mode.test)
    if isinstance(mode, cst.SimpleString):
        return mode.evaluated_value in tracker.modes
    return bool(dotted(mode)) and not any(_is_by_rank(module, value) for value in values_of(module, mode))


def _is_by_rank(module: Module, value: cst.BaseExpression) -> bool:
    """Whether the rank decides about a value, by its text or by what something in the project gives its names."""
    text = module.code(value)
    return _tells_rank(text) or any(_is_given_by_rank(module, name) for name in _LAST.findall(text))


def _tells_rank(text: str) -> bool:
    return _OF_RANK.search(text) is not None or _OF_GPU.search(text) is not None


def _texts(module: Module, value: cst.BaseExpression) -> Iterator[str]:
    return map(module.code, values_of(module, value))


def _is_seen(module: Module, settings: cst.BaseExpression, tracker: Tracker) -> bool:
    """Whether what a call unpacks is a dictionary that the function writes down, without one of the arguments by which
    runs belong together."""
    values = list(values_of(module, settings))[1:] if isinstance(settings, cst.Name) else [settings]
    written = [v for v in values if isinstance(v, cst.Dict) or (isinstance(v, cst.Call) and dotted(v.func) == "dict")]
    if not written or [b for b in module.bindings(settings) if b.kind == "parameter"]:
        return False
    named = re.compile(rf"\b({'|'.join((*sorted(tracker.joined), tracker.mode or 'mode'))})\b|\*\*")
    if any(named.search(module.code(each)) for each in written):
        return False
    # ``settings["group"] = name``
    text = module.code(settings)
    added = re.compile(rf"\b{re.escape(text)}(\[[\"']({'|'.join(sorted(tracker.joined))}|mode)|\.update\()")
    return added.search(module.file.code) is None


def _takes_rank(module: Module, call: cst.Call, tracker: Tracker) -> bool:
    """Whether the rank takes part in what a call is given, also through names and what callers give."""
    project, facts = module.project, module.facts
    if project is None or facts is None:
        return False
    node = as_ast(module, call)
    if not isinstance(node, ast.Call):
        return False
    place = Place(facts, function_at(facts.tree, node.lineno))
    given = [*node.args, *(k.value for k in node.keywords if k.arg not in tracker.contents)]
    return any(takes_rank(project, value, place) for value in given)


def is_left_to_rank(module: Module, call: cst.Call, way: tuple[CallSite, ...] = ()) -> bool:
    """Whether a setting that the tests around a call ask for may be another one on each rank, as something in the
    project gives its name what the rank decides: ``args.wandb = args.wandb and rank == 0``."""
    texts = [module.code(test) for test, _ in conditions(module, call)]
    for site in way:
        texts += _tests(site.around or site.facts.tree, site.node)
    names = {part for text in texts for part in _LAST.findall(text)}
    return any(map(_tells_rank, texts)) or any(_is_given_by_rank(module, name) for name in names)


def _is_given_by_rank(module: Module, name: str, depth: int = _DEPTH) -> bool:
    """Whether a file of the project gives a variable, attribute, entry or argument of a name what the rank decides,
    also by way of other names. Of a name that many files have, those count that the file of `module` imports."""
    project, facts = module.project, module.facts
    if project is None or facts is None or _OF_ALL.fullmatch(name):
        return False
    paths = project.contents.holding(name)
    files = list(filter(None, map(project.modules.facts_of, paths))) if len(paths) <= _FILES else []
    if not files:
        imported = map(project.modules.facts, imported_through(project, facts))
        files = [facts, *(each for each in imported if each and each.file.holds(name))]
    texts = [text for each in files for text in _given(project, each, name)]
    if any(map(_tells_rank, texts)):
        return True
    words = {word for text in texts for word in _LAST.findall(text)} - {name}
    return depth > 0 and any(_is_given_by_rank(module, each, depth - 1) for each in words)


def _given(project: Project, facts: ModuleFacts, name: str) -> list[str]:
    """What a file gives a name, with the tests around that, and what functions of that name return."""
    found: list[str] = project.remember(("given to a name", name), lambda: list(_values_given(facts, name)), facts.kept)
    return found


def _values_given(facts: ModuleFacts, name: str) -> Iterator[str]:
    for node in walk(facts.tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_named(target) == name for target in targets):
                yield text_of(node.value)
                yield from _tests(function_at(facts.tree, node.lineno) or facts.tree, node)
        elif isinstance(node, ast.keyword) and node.arg == name:
            yield text_of(node.value)
        elif isinstance(node, FunctionNode) and node.name == name:
            yield from (text_of(s) for s in statements(node) if isinstance(s, ast.Return))


def _named(target: ast.expr) -> str:
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return last_part(target)


def _tests(scope: FunctionNode | ast.Module, node: ast.AST) -> Iterator[str]:
    return (cst.Module(()).code_for_node(test) for test, _ in conditions_at(scope, node))


def is_switched_off(project: Project, facts: ModuleFacts) -> bool:
    """Whether a file, or one that it imports, may switch trackers off in some processes, apart from the calls that
    start runs: ``os.environ["WANDB_MODE"] = "disabled"`` under a test of the rank."""
    names = (facts.name, *imported_through(project, facts))
    files = (facts, *filter(None, map(project.modules.facts, names[1:])))
    return any(_switches_off(each) for each in files if each is not None)


def _switches_off(facts: ModuleFacts) -> bool:
    if not switched_off().search(facts.file.text):
        return False
    for statement in statements(facts.tree):
        if isinstance(statement, (ast.Expr, ast.Assign, ast.Return)) and switched_off().search(text_of(statement)):
            if _OF_RANK.search(text_of(statement)):
                return True
            if any(map(_tells_rank, _tests(function_at(facts.tree, statement.lineno) or facts.tree, statement))):
                return True
    return False


def is_for_agent(facts: ModuleFacts) -> bool:
    """Whether a file hands its training to an agent of a sweep, which starts a run for each trial: `wandb.agent`."""
    return facts.file.holds("wandb") and any(dotted_ast(n.func) == "wandb.agent" for n in calls_below(facts.tree))

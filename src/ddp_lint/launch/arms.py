"""Arms of tests in which a process is alone: the launcher has told it no rank, or the group is made for another value
of the same setting."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.launch.alone import MAY_JOIN, has_runner
from ddp_lint.launch.callers import sites_in_project, sites_of
from ddp_lint.launch.joining import joining_functions, joins_of_project, joins_otherwise
from ddp_lint.launch.unused import does_something
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, conditions_at, conjuncts, outcomes
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import function_at, statements
from ddp_lint.view import Module

_VARIABLE = r"""["'](?:LOCAL_|)(?:RANK|WORLD_SIZE)["']"""
_ENVIRON = r"(?:os\.)?environ(?:\.keys\(\))?"
#: Tests of whether a launcher has told the process its rank: ``"RANK" in os.environ and "WORLD_SIZE" in os.environ``.
_TOLD = re.compile(rf"{_VARIABLE} in {_ENVIRON}(?: and {_VARIABLE} in {_ENVIRON})*")
_UNTOLD = re.compile(rf"{_VARIABLE} not in {_ENVIRON}(?: or {_VARIABLE} not in {_ENVIRON})*")


#: What makes the group where there is none.
_JOINS_TOO = ("deepspeed.initialize",)


#: Calls of a function, and of those that make one, which are followed to the setting that they stand under.
_DEPTH = 3


class _Choice(NamedTuple):
    """The last part of a setting's name, and the text that it has to be, or not to be; '' where its truth decides."""

    setting: str
    value: str
    equal: bool

    def excludes(self, other: _Choice) -> bool:
        if self.setting != other.setting:
            return False
        if not self.value or not other.value:
            return self.value == other.value and self.equal != other.equal
        return self.equal != other.equal if self.value == other.value else self.equal and other.equal


def is_told_no_rank(module: Module, test: cst.BaseExpression, taken: bool) -> bool:
    """Whether an outcome of a test says that no launcher has told the process its rank, in a project whose ranks have
    theirs from a launcher alone."""
    told, project = _TOLD if not taken else _UNTOLD, module.project
    if project is None or told.fullmatch(module.code(test)) is None:
        return False
    return not any(project.contents.holding(word) for word in table("launch")["joining"]["without_variables"])


def is_joined_elsewhere(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is run for one value of a setting, and everything in its file that makes the group or may do so
    for other values: ``if args.dist == "off": (here) elif args.dist == "on": init_process_group()``; in a program also
    by the truth of a setting: ``if args.distributed: .. else: (here)``."""
    facts, project = module.facts, module.project
    if facts is None or project is None:
        return False
    here = [*_choices(module, node)]
    if not facts.file.holds("__main__") and not does_something(facts):
        # What imports a file may make the group, whatever the settings of this one.
        here = [choice for choice in here if choice.value]
    if not here or has_runner(facts, project):
        return False
    return _excludes_all(
        here, project.remember(("choices of joins",), lambda: tuple(_of_joins(module, facts, project)), facts.kept)
    )


def is_off_where_joined(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is run where a setting is off, ``if self.args.use_multi_gpu: .. else: (here)``, and all calls of
    the project that make the group or start ranks are made where it is on, in whatever file."""
    facts, project = module.facts, module.project
    if facts is None or project is None or has_runner(facts, project):
        return False
    # A plain name may be another one elsewhere.
    tests = (each for each in outcomes(conditions(module, node)) if "." in module.code(each[0]))
    here = [choice for part, taken in tests for choice in _choice(part, taken) if not choice.value]
    if not here or joins_otherwise(project) or project.contents.holding("start_processes("):
        return False
    return _excludes_all(
        here, project.remember(("choices of joins of project",), lambda: tuple(_of_all_joins(project)))
    )


def _excludes_all(here: Sequence[_Choice], joins: Sequence[Sequence[_Choice]]) -> bool:
    """Whether there are joins, and the choices of a place exclude what each of them needs."""
    return bool(joins) and all(any(own.excludes(other) for own in here for other in join) for join in joins)


def _of_all_joins(project: Project) -> Iterator[tuple[_Choice, ...]]:
    for facts, call in joins_of_project(project):
        yield from _ways_to(project, facts, call, _DEPTH)


def _ways_to(project: Project, facts: ModuleFacts, call: ast.Call, depth: int) -> Iterator[tuple[_Choice, ...]]:
    """The choices that a call needs, once for each way that leads to it."""
    function = function_at(facts.tree, call.lineno)
    tests = outcomes(conditions_at(function or facts.tree, call))
    own = tuple(choice for part, taken in tests for choice in _choice(part, taken))
    sites = sites_in_project(project, facts, function) if function is not None and depth else ()
    for site in sites:
        yield from ((*own, *above) for above in _ways_to(project, site.facts, site.node, depth - 1))
    if not sites:
        yield own


def _choices(module: Module, node: cst.CSTNode) -> Iterator[_Choice]:
    for part, taken in outcomes(conditions(module, node)):
        yield from _choice(part, taken)


def _choice(test: cst.BaseExpression, taken: bool) -> Iterator[_Choice]:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        yield from _choice(test.expression, not taken)
    elif isinstance(test, (cst.Name, cst.Attribute)):
        yield _Choice(dotted(test).rpartition(".")[2], "", taken)
    elif isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        operator, value = test.comparisons[0].operator, test.comparisons[0].comparator
        name = dotted(test.left).rpartition(".")[2]
        if name and isinstance(operator, (cst.Equal, cst.NotEqual)) and isinstance(value, cst.SimpleString):
            yield _Choice(name, str(value.evaluated_value), isinstance(operator, cst.Equal) == taken)


def _of_joins(module: Module, facts: ModuleFacts, project: Project) -> Iterator[tuple[_Choice, ...]]:
    """For each call of a file that joins a group, or may do so by its name, the choices that it needs. Of a function of
    the file itself the calls inside count."""
    joining = joining_functions(project) | {*table("launch")["joining"]["calls"], *_JOINS_TOO}
    lasts = {name.rpartition(".")[2] for name in joining}
    for call in module.of_type(cst.Call):
        name = dotted(call.func)
        last = name.rpartition(".")[2]
        if name in facts.definitions:
            continue
        if MAY_JOIN.search(last) or (last in lasts and module.callee(call) in joining):
            yield (*_choices(module, call), *_implied(module, facts, call))


def _implied(module: Module, facts: ModuleFacts, node: cst.CSTNode) -> Iterator[_Choice]:
    """The settings that are on where `node` runs since another one is, which the file sets once from them, or whose
    value all callers give: ``args.spawns = args.only and args.parallel``."""
    for test, taken in conditions(module, node):
        for part in conjuncts(test) if taken else ():
            if isinstance(part, (cst.Name, cst.Attribute)):
                yield from (_Choice(setting, "", True) for setting in _set_from(facts, _given(module, part)))


def _given(module: Module, name: cst.Name | cst.Attribute) -> str:
    """The last part of a name, or of what all calls of the function give it where it is a parameter."""
    function, written = module.function_of(name), dotted(name)
    bound = module.bindings(name) if function is not None else []
    if function is not None and [b.kind for b in bound] == ["parameter"]:
        given = {dotted_ast(site.given(function, written)) for site in sites_of(module, function)}
        written = given.pop() if len(given) == 1 else ""
    return written.rpartition(".")[2]


def _set_from(facts: ModuleFacts, setting: str) -> Iterator[str]:
    """The settings that one is set from, where the file sets it once, to whether all of them are on."""
    set_to = [
        node.value
        for node in (statements(facts.tree) if setting else ())
        if isinstance(node, ast.Assign) and any(last_part(target) == setting for target in node.targets)
    ]
    value = set_to[0] if len(set_to) == 1 else None
    if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And):
        yield from filter(None, (dotted_ast(part).rpartition(".")[2] for part in value.values))

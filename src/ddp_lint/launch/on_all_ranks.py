"""Which functions of a project all ranks run, by what they call and by who calls them.

A function that joins the process group or wraps a model is run by all ranks, and so is one that calls a builder which
does so. What such a function calls outside of a test for the rank all ranks run as well, also methods of objects."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge import table
from ddp_lint.launch.callers import CallSite, sites_that_run
from ddp_lint.launch.communicating import Code, asks_for_group, called_helper, called_name
from ddp_lint.launch.helpers import Helper
from ddp_lint.launch.joining import is_before_ranks, spawned_functions
from ddp_lint.launch.one_process import is_kept_to_one_process, is_one
from ddp_lint.launch.one_rank import all_ranks_call, first_rank_test, is_on_first
from ddp_lint.launch.ranks import evidence_in, program_of_ranks
from ddp_lint.launch.search import imported_through
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.control_flow import conditions_at, outcomes
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, statements, text_of
from ddp_lint.view import Module

#: Functions that are followed into what they call, one in the other, and how many in all.
_BELOW, _MOST = 4, 200
#: Callers that are followed, one above the other, and how many in all.
_ABOVE, _CALLERS = 4, 40
#: Calls of all ranks that are followed up to a file that shows several ranks.
_WAY = 5
#: A test of how many GPUs there are, or of what starts the ranks.
_ASKS_FOR_GPUS = re.compile(r"gpu|cuda|launcher|parallel|RANK|process_group", re.IGNORECASE)
#: How far the class of an object is looked for.
_TYPE = 6


@dataclasses.dataclass(frozen=True)
class Reached:
    """What shows that all ranks run a function: the call, in the function that they run for certain, and the calls
    that lead from there to the function, the last one first."""

    facts: ModuleFacts
    call: ast.AST
    way: tuple[CallSite, ...] = ()

    @property
    def span(self) -> Span:
        """Where the function is called, or what it calls itself."""
        return self.way[0].span if self.way else self.facts.file.span_of(self.call)


def reached_by_all(
    module: Module, definition: cst.FunctionDef, starts_several: Callable[[ModuleFacts], bool] | None = None
) -> Reached | None:
    """What shows that all ranks of a program run a function of `module`, if anything does. `starts_several`: what else
    says of a program that it is run by several processes."""
    project, facts = module.project, module.facts
    function = function_at(facts.tree, module.span(definition.name).line) if facts is not None else None
    if project is None or facts is None or function is None:
        return None
    level: list[tuple[ModuleFacts, FunctionNode, tuple[CallSite, ...]]] = [(facts, function, ())]
    seen = {function}
    for _ in range(_ABOVE):
        above: list[tuple[ModuleFacts, FunctionNode, tuple[CallSite, ...]]] = []
        for within, each, way in level:
            call = _joins(project, within, each)
            if call is not None and all(_is_for_all(module, project, site) for site in way[-1:]):
                return Reached(within, call, way)
            for site in _sites(module, project, within, each):
                if site.around in seen or len(seen) > _CALLERS:
                    continue
                if not _is_of(project, within, each, site) or not _is_for_all(module, project, site):
                    continue
                if site.around is not None:
                    seen.add(site.around)
                    above.append((site.facts, site.around, (*way, site)))
                elif (call := _joins_at_top(project, site.facts)) is not None:
                    return Reached(site.facts, call, (*way, site))
                elif starts_several is not None and starts_several(site.facts):
                    return Reached(site.facts, site.node, (*way, site))
        level = above
    return None


def calls_of_all_lead_to(project: Project, site: CallSite, above: int = _WAY) -> bool:
    """Whether calls that all ranks make lead to a place, from a file that shows several ranks itself. Stricter than
    `reached_by_all`: each call of the way counts, with barriers before it, and one that a decorator is put on ends
    it."""
    around = site.around
    if around is None:
        return program_of_ranks(site.facts, project, site.node.lineno) is not None
    if around.decorator_list or _is_tested_for_first(site) or not all_ranks_call(site, project):
        return False
    evidence = evidence_in(site.facts, project)
    if evidence is not None and evidence.own:
        return True
    sites = sites_that_run(project, site.facts, around) if above else ()
    return any(calls_of_all_lead_to(project, each, above - 1) for each in sites if each.around is not around)


def _is_of(project: Project, facts: ModuleFacts, function: FunctionNode, site: CallSite) -> bool:
    """Whether a call by the name of a method is one of this method: by the class of its object, or where that is not
    known as the only method by the name that the calling file comes to."""
    called = site.node.func
    owner, _ = facts.method_at(function.lineno) or (None, None)
    if owner is None or not isinstance(called, ast.Attribute) or dotted_ast(called.value) == "self":
        return True
    of_class, _ = site.facts.method_at(site.node.lineno) or (None, None)
    around = project.classes.of(site.facts, of_class) if of_class is not None else None
    kind = project.types.of(called.value, site.facts, site.around, around, _TYPE)
    if kind:
        return project.classes.of(facts, owner).name in project.classes.lineage(kind)
    defined = f"def {function.name}("
    alone = len(project.contents.holding(defined)) == 1 and facts.file.text.count(defined) == 1
    return alone and (site.facts is facts or facts.name in imported_through(project, site.facts))


def _sites(module: Module, project: Project, facts: ModuleFacts, function: FunctionNode) -> Iterator[CallSite]:
    """The calls that run a function. Of a constructor not those behind one that the first rank alone makes, in the same
    code: the others find what it has done."""
    sites = sites_that_run(project, facts, function)
    made = sites if function.name == "__init__" else ()
    first = [site for site in made if is_on_first(module, site.facts, site.node)]
    for site in sites:
        ahead = (each for each in first if each.facts is site.facts and each.around is site.around)
        if not any(each.node.lineno < site.node.lineno for each in ahead):
            yield site


def _is_for_all(module: Module, project: Project, site: CallSite) -> bool:
    """Whether a call is kept neither to one rank nor to a program of one process."""
    scope = site.around or site.facts.tree
    if is_on_first(module, site.facts, site.node) or _is_tested_for_first(site):
        return False
    holding = [part for part, taken in _tests(scope, site.node) if taken]
    if any(first_rank_test(part, False) or _is_set_by_rank(site.facts, part) for part in holding):
        return False  # ``if rank != 0: load()``, behind what the first rank has done
    if site.around is not None and is_before_ranks(site.facts, project, site.node, site.around):
        return False
    return not is_kept_to_one_process(scope, site.node)


def _is_tested_for_first(site: CallSite) -> bool:
    """Whether a test around a call, also in its expression, keeps it to the first rank: ``Log() if rank == 0 else
    None``."""
    return any(first_rank_test(part, taken) for part, taken in _tests(site.around or site.facts.tree, site.node))


def _tests(scope: FunctionNode | ast.Module, node: ast.AST) -> Iterator[tuple[str, bool]]:
    """The tests around a node of a function, with the outcomes that lead there: of one that holds each of its parts."""
    for part, taken in outcomes(conditions_at(scope, node)):
        yield cst.Module(()).code_for_node(part), taken


def _is_set_by_rank(facts: ModuleFacts, name: str) -> bool:
    """Whether a file gives a name what holds on the first rank alone: ``args.saves = is_master(args)``."""
    if not name.replace(".", "_").isidentifier() or not facts.file.holds(name.rpartition(".")[2]):
        return False
    assigned = (node for node in statements(facts.tree) if isinstance(node, ast.Assign))
    values = [node.value for node in assigned if any(dotted_ast(target) == name for target in node.targets)]
    return any(first_rank_test(text_of(value), True) for value in values)


def _joins(project: Project, facts: ModuleFacts, function: FunctionNode) -> ast.AST | None:
    """The call by which a function joins the group or wraps a model, itself or in what it calls; of one that a program
    spawns for each rank the function itself. None in the process that starts the ranks."""

    def found() -> ast.AST | None:
        if f"{facts.name}.{function.name}" in spawned_functions(project):
            return function
        owner, method = facts.method_at(function.lineno) or (None, None)
        of_class = project.classes.of(facts, owner) if owner is not None and method is function else None
        level = [(call, Helper(facts, function, of_class), call) for call in calls_below(function)]
        seen: set[ast.AST] = {function}
        for _ in range(_BELOW):
            below: list[tuple[ast.Call, Helper, ast.Call]] = []
            for first, within, call in level:
                code = Code.of(within)
                name = called_name(project, code, call)
                joins = name in table("launch")["all_ranks"]["calls"]
                helper = None if joins else called_helper(project, code, call)
                if not joins and (helper is None or helper.function in seen or len(seen) > _MOST):
                    continue
                if is_kept_to_one_process(within.function, call):
                    continue
                if within.function is not function and not _is_for_ranks(within.function, call):
                    continue
                if helper is None:
                    if any(keyword.arg == "world_size" and is_one(keyword.value) for keyword in call.keywords):
                        continue
                    return first
                seen.add(helper.function)
                if not _starts(helper.function):
                    below += ((first, helper, inner) for inner in calls_below(helper.function))
            level = below
        return None

    if _starts(function):
        return None
    answer: ast.AST | None = project.remember(("joins the ranks", function), found, facts.kept)
    return answer


def _is_for_ranks(function: FunctionNode, call: ast.Call) -> bool:
    """Whether a helper makes a call because there are several ranks: under no test, or under one that asks for them.
    What some models alone need shows nothing of the programs that load others."""
    tests = [cst.Module(()).code_for_node(test) for test, _ in conditions_at(function, call)]
    return not tests or any(asks_for_group(test) or _ASKS_FOR_GPUS.search(test) is not None for test in tests)


def _joins_at_top(project: Project, facts: ModuleFacts) -> ast.Call | None:
    """The call outside of functions by which a program joins the group or wraps a model, itself or in the constructor
    of what it makes: ``Trainer(model).fit()``. None in a program that starts the ranks. What a helper joins says less:
    recipes call one that joins where they are launched so."""

    def found() -> ast.Call | None:
        code = Code(facts, facts.tree.body)
        calls = [call for call in calls_below(facts.tree) if function_at(facts.tree, call.lineno) is None]
        if any(last_part(call.func) in table("launch")["all_ranks"]["starters"] for call in calls):
            return None
        for call in calls:
            if is_kept_to_one_process(facts.tree, call):
                continue
            if called_name(project, code, call) in table("launch")["all_ranks"]["calls"]:
                return call
            helper = called_helper(project, code, call)
            made = helper is not None and helper.function.name == "__init__"
            if helper is not None and made and _joins(project, helper.facts, helper.function) is not None:
                return call
        return None

    answer: ast.Call | None = project.remember(("joins the ranks at its top",), found, facts.kept)
    return answer


def _starts(function: FunctionNode) -> bool:
    """Whether a function starts processes: what it goes on to call itself it calls where there are none."""
    return any(last_part(call.func) in table("launch")["all_ranks"]["starters"] for call in calls_below(function))

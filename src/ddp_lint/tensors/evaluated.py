"""What evaluations alone run, by all that calls a function or makes the objects of a class."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from ddp_lint.knowledge.tensors import names, words_of
from ddp_lint.launch.callers import CallSite, call_sites, constructions, sites_in_project
from ddp_lint.project import Project
from ddp_lint.source.syntax import FunctionNode, statements, walk
from ddp_lint.tensors.contexts import body_without_gradient, evaluation_only_at
from ddp_lint.view import Module

#: Functions that call each other which are gone through.
_ABOVE = 3
#: Methods that torch calls.
_BY_TORCH = frozenset({"forward", "backward"})


def made_for_evaluation(module: Module, owner: cst.ClassDef) -> bool:
    """Whether functions named after evaluation alone make objects of a class, and nothing in the project inherits from
    it or hands it on: a metric, which no training step runs."""
    project, name = module.project, owner.name.value
    around = [site.around for site in constructions(module, owner)]
    words = names("branches", "evaluation")
    if project is None or not around or not all(each is not None and words & words_of(each.name) for each in around):
        return False
    # Asked for last: each search goes through all texts.
    return not any(project.contents.holding(text) for text in (f"({name})", f"({name},", f", {name}):"))


def called_for_evaluation(module: Module, function: cst.FunctionDef) -> bool:
    """Whether all calls of a function are seen, and no training comes to them: they are behind ``if self.training:
    return losses``, where gradients are off, or in functions which are called so themselves. Not a `forward`: of the
    calls of objects not all are seen."""
    if function.name.value == "forward":
        return False
    return _is_called_for_evaluation(module.project, call_sites(module, function), _ABOVE)


def _is_called_for_evaluation(project: Project | None, sites: Sequence[CallSite], depth: int) -> bool:
    return bool(sites) and all(_evaluates(project, site, depth) for site in sites)


def _evaluates(project: Project | None, site: CallSite, depth: int) -> bool:
    around = site.around
    if around is None or project is None:
        return False
    if evaluation_only_at(site.facts, around, site.node) or called_without_gradient(site):
        return True
    above = sites_in_project(project, site.facts, around) if depth and around.name not in _BY_TORCH else ()
    return _is_called_for_evaluation(project, above, depth - 1)


def called_without_gradient(site: CallSite) -> bool:
    """Whether a call is below ``with torch.no_grad():`` in its function, or that is decorated so, or it is in a method
    of an autograd function, which computes its gradient itself."""
    line = site.node.lineno
    classes = (node for node in site.facts.tree.body if isinstance(node, ast.ClassDef))
    around = next((node for node in classes if node.lineno <= line <= (node.end_lineno or line)), None)
    if around is not None and any(site.facts.qualified(base) in names("no_grad", "functions") for base in around.bases):
        return True
    if site.around is None:
        return False
    blocks = (block for block in statements(site.around) if isinstance(block, (ast.With, FunctionNode)))
    return any(
        body_without_gradient(block, site.facts) and any(node is site.node for node in walk(block)) for block in blocks
    )

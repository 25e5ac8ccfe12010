"""Wrappers whose forward nothing in a project runs, while a part of what is inside trains by another name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

from ddp_lint.knowledge import table
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.syntax import FunctionNode, calls_below, walk
from ddp_lint.tensors.contexts import evaluation_only_at

#: Methods of a wrapper that run no forward: reading parameters, checkpoints, modes.
PLAIN: Final = frozenset(table("wrappers")["plain_module_methods"])
#: How a program averages gradients itself.
_AVERAGES: Final = re.compile(
    r"(average|sync|reduce|allreduce)\w*_grad|\.grad\b[\s\S]*all_?reduce|all_?reduce[^\n]*grad"
)
_FILES: Final = 200


def trained_beside(
    project: Project, facts: ModuleFacts, wrap: ast.Assign, files: Iterable[ModuleFacts]
) -> ast.Call | None:
    """For ``self.ddp = DDP(self.net)`` the first call of a part of the model that the class keeps by a name of its own
    (``self.body = self.net.body``), where nothing in the project runs the forward of the wrapper and `files`, those of
    its programs, train."""
    call, found = wrap.value, facts.method_at(wrap.lineno)
    if not isinstance(call, ast.Call) or not call.args or found is None:
        return None
    wrapper, inner = of_self(dotted_ast(wrap.targets[0])), of_self(dotted_ast(call.args[0]))
    if not wrapper or not inner or "." in wrapper or wrapper == inner:
        return None
    parts = frozenset(_parts(found[0], inner))
    if not parts or _may_run(project, wrapper):
        return None
    held = list(files)
    if not any("backward(" in each.file.code for each in held) or averages(held):
        return None
    return next(_calls(facts, found[0], parts), None)


def averages(files: Iterable[ModuleFacts]) -> bool:
    """Whether any of the files averages gradients itself."""
    return any(_AVERAGES.search(each.file.code) for each in files)


def _parts(owner: ast.ClassDef, inner: str) -> Iterator[str]:
    """The attributes that a class gives a part of its attribute `inner`, and nothing else."""
    given: dict[str, list[str]] = {}
    for node in walk(owner):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                given.setdefault(of_self(dotted_ast(target)), []).append(dotted_ast(node.value))
    for name, values in given.items():
        if name and all(value.startswith(f"self.{inner}.") for value in values):
            yield name


def _may_run(project: Project, wrapper: str) -> bool:
    """Whether anything in the project may run the forward of what an attribute of this name holds."""
    paths = project.contents.holding(wrapper)
    every = [facts for path in paths if (facts := project.modules.facts_of(path)) is not None]
    return len(paths) > _FILES or any(_runs(facts, wrapper) for facts in every)


def _runs(facts: ModuleFacts, wrapper: str) -> bool:
    tree = facts.tree
    plain = {id(n.value) for n in walk(tree) if isinstance(n, ast.Attribute) and n.attr in PLAIN}
    for node in walk(tree):
        if isinstance(node, ast.Constant) and node.value == wrapper:
            return True
        used = isinstance(node, ast.Attribute) and node.attr == wrapper and not isinstance(node.ctx, ast.Store)
        if used and id(node) not in plain:
            return True
    return False


def _calls(facts: ModuleFacts, owner: ast.ClassDef, parts: frozenset[str]) -> Iterator[ast.Call]:
    """The calls of these parts, or of parts of them, in methods that train."""
    for method in owner.body:
        if not isinstance(method, FunctionNode) or method.name == "__init__":
            continue
        for call in calls_below(method):
            root, _, path = dotted_ast(call.func).partition(".")
            name, _, rest = path.partition(".")
            runs = root == "self" and name in parts and (not rest or last_part(call.func) not in PLAIN)
            if runs and not evaluation_only_at(facts, method, call):
                yield call

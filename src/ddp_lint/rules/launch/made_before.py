"""Folders that are there where a test asks for them: each rank has made them above, or failed there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from ddp_lint.launch.callers import CallSite, sites_of
from ddp_lint.launch.file_access import LOOKS
from ddp_lint.project import Project
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, function_at, holds_line
from ddp_lint.source.tree import called
from ddp_lint.view import Module

#: Methods of the path of a file that leave its folder.
_CUTTING = frozenset({"replace", "removesuffix"})
#: Assignments and parts that a path is followed through.
_STEPS = 6
#: Calls whose first argument the path that they return begins with.
_JOINING = frozenset({"join", "Path", "joinpath", "str", "abspath"})


def is_made_before(module: Module, call: cst.Call, path: cst.BaseExpression) -> bool:
    """Whether a call that makes a folder is under a test for whether it is there, and that folder or one in it has been
    made: above in the function, above all calls of that, or by the object that has the path; or that it is the folder
    of a file which the function loads further down. Where it is made first, ranks may fail, and not here."""
    facts, project = module.facts, module.project
    if (
        facts is None
        or project is None
        or not any(LOOKS.search(module.code(test)) for test, _ in conditions(module, call))
    ):
        return False
    line = module.span(call).line
    around = function_at(facts.tree, line)
    for value in _values(module, path):
        if around is not None and _is_of_loaded(module, around, value, line):
            return True
        text = dotted(value)
        if text and _is_among(_before(around or facts.tree, line), text):
            return True
        if text and (_by_object(module, project, value, text) or _by_callers(module, call, text)):
            return True
    return False


def _values(module: Module, path: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """A path, and what its name is assigned, where that is one value."""
    for _ in range(_STEPS):
        yield path
        assigned = module.assignments(path) if isinstance(path, cst.Name) else ()
        if len(assigned) != 1:
            return
        path = assigned[0]


def _before(scope: ast.AST, line: int) -> Iterator[ast.stmt]:
    """The statements that a run has gone through when it comes to a line of a function or a file."""
    block: Sequence[ast.stmt] = getattr(scope, "body", ())
    while block:
        inside = next((each for each in block if each.lineno <= line <= (each.end_lineno or each.lineno)), None)
        yield from (each for each in block if (each.end_lineno or each.lineno) < line and each is not inside)
        bodies = (getattr(inside, name, None) for name in ("body", "orelse", "finalbody"))
        block = next((b for b in bodies if isinstance(b, list) and b and holds_line(b, line)), ())


def _is_of_loaded(module: Module, around: FunctionNode, folder: cst.BaseExpression, line: int) -> bool:
    """Whether a folder is cut off the path of a file that a function surely loads below a line: where that is missing,
    no run goes on."""
    if not isinstance(folder, cst.Call):
        return False
    name = called(folder)
    cut = folder.func.value if name in _CUTTING and isinstance(folder.func, cst.Attribute) else None
    if name == "dirname" and folder.args:
        cut = folder.args[0].value
    file = dotted(cut) if cut is not None else ""
    below = (each for each in around.body if file and each.lineno > line and isinstance(each, (ast.Assign, ast.Expr)))
    return any(_loads(call, file) for each in below for call in calls_below(each))


def _loads(call: ast.Call, file: str) -> bool:
    """Whether a call says by its name, or that of what it is given, that it loads a file."""
    by_name = "load" in last_part(call.func) and any(dotted_ast(each) == file for each in call.args)
    return by_name or any("load" in (k.arg or "") and dotted_ast(k.value) == file for k in call.keywords)


def _is_among(statements: Iterable[ast.stmt], text: str) -> bool:
    """Whether one of some statements makes a folder that has a name, or one in it."""
    assigned: dict[str, ast.expr] = {}
    for each in statements:
        if isinstance(each, ast.Assign) and len(each.targets) == 1:
            assigned[dotted_ast(each.targets[0])] = each.value
        made = _made(_if_missing(each))
        if made is not None and _begins(made, text, assigned):
            return True
    return False


def _if_missing(statement: ast.stmt) -> ast.stmt:
    """What a statement does unless a folder is there: ``if not os.path.exists(path): os.mkdir(path)``. In any other
    case the statement itself."""
    if not isinstance(statement, ast.If) or statement.orelse or not isinstance(statement.test, ast.UnaryOp):
        return statement
    asked, made = statement.test.operand, _made(statement.body[0])
    if made is None or not isinstance(asked, ast.Call) or not isinstance(statement.test.op, ast.Not):
        return statement
    path, looks = ast.unparse(made), last_part(asked.func)
    same = ast.unparse(asked) == f"{path}.{looks}()" or any(ast.unparse(each) == path for each in asked.args)
    return statement.body[0] if same and LOOKS.search(f"{looks}(") else statement


def _made(statement: ast.stmt) -> ast.expr | None:
    """What a statement makes: ``os.makedirs(path)``, ``path.mkdir()``."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return None
    maker = dotted_ast(call.func)
    if last_part(call.func) == "makedirs" or maker == "os.mkdir":
        return argument_at(call, 0, "name") or argument_at(call, 0, "path")
    return call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" else None


def _begins(path: ast.expr, text: str, assigned: dict[str, ast.expr], steps: int = _STEPS) -> bool:
    """Whether a path is the one of a name, or is put together from it and what follows."""
    if dotted_ast(path) == text:
        return True
    if not steps:
        return False
    inner: ast.expr | None = assigned.get(dotted_ast(path))
    if isinstance(path, ast.Call) and last_part(path.func) in _JOINING and path.args:
        inner = path.args[0]
    elif isinstance(path, ast.BinOp):
        inner = path.left
    elif isinstance(path, ast.JoinedStr) and isinstance(path.values[0], ast.FormattedValue):
        inner = path.values[0].value
    return inner is not None and _begins(inner, text, assigned, steps - 1)


def _by_object(module: Module, project: Project, value: cst.BaseExpression, text: str) -> bool:
    """Whether the class of the object that has the path makes it whenever it makes an object."""
    if not isinstance(value, cst.Attribute):
        return False
    owner = module.class_of(value) if text.startswith("self.") and text.count(".") == 1 else None
    kind = module.name_of(owner) if owner is not None else module.constructed_by(value.value)
    start = project.classes.method(kind, "__init__") if kind else None
    if start is None or not isinstance(start[1], ast.FunctionDef):
        return False
    own = f"self.{value.attr.value}"
    if _is_among(start[1].body, own):
        return True
    for each in start[1].body:
        asked = dotted_ast(each.value.func) if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) else ""
        method = (
            project.classes.method(kind, asked[5:]) if asked.startswith("self.") and asked.count(".") == 1 else None
        )
        if method is not None and _is_among(method[1].body, own):
            return True
    return False


def _by_callers(module: Module, call: cst.Call, text: str) -> bool:
    """Whether all that call the function around have made the folder that they give it."""
    function = module.function_of(call)
    sites = sites_of(module, function) if function is not None else ()
    return bool(sites) and all(function is not None and _by_caller(s, function, text) for s in sites)


def _by_caller(site: CallSite, function: cst.FunctionDef, text: str) -> bool:
    name, dot, rest = text.partition(".")
    given = dotted_ast(site.given(function, name))
    scope: FunctionNode | ast.Module = site.around or site.facts.tree
    return bool(given) and _is_among(_before(scope, site.node.lineno), f"{given}{dot}{rest}")

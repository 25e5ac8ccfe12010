"""Places that no run comes to, as the program has failed before: a name that is not there, an option that no parser
defines, a variable without a value, a call that a function of the project does not take, a result or an object that
has not what is taken from it."""

from __future__ import annotations

import ast
import bisect
import itertools
from collections.abc import Iterator, Sequence

from ddp_lint.launch.lacking import has_heirs, kind_of, lacks, named_class
from ddp_lint.launch.returned import is_no_member, is_unpacked_wrongly
from ddp_lint.launch.texts import is_installed, named_in_texts
from ddp_lint.launch.unassigned import unassigned
from ddp_lint.launch.undefined import called_definition, is_refused, unbound, undefined_option
from ddp_lint.launch.unused import is_found_by_name
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, ModuleFacts
from ddp_lint.project.uses import uses
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import Block, FunctionNode, below, blocks_at, defaults, function_at, nested, walk

#: Functions on the way to a place that are gone through, and into calls that fail.
_DEPTH = 5
#: Files that hold the name of a function; where more do, not all of them are read.
_FILES = 25
#: Calls of the project's functions that are looked into for one question.
_CALLS = 200
#: Decorators of methods that need no object.
_OF_CLASS = frozenset({"staticmethod", "classmethod"})


def fails_before(project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether every run that comes near a line has failed before it."""
    if not facts.name or facts.source.is_test:
        return False
    found: bool = project.remember(("fails before", line), lambda: _Search(project).is_behind(facts, line), facts.kept)
    return found


class _Search:
    """One question: what was looked at on the way, and how much may still be."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._above: set[tuple[str, str]] = set()
        self._failing: dict[tuple[str, str], bool] = {}
        self._left = _CALLS
        self._deep = 0

    # ---- what leads to a place

    def is_behind(self, facts: ModuleFacts, line: int, depth: int = _DEPTH) -> bool:
        return self._is_behind(facts, blocks_at(facts.tree, line), depth)

    def _is_behind(self, facts: ModuleFacts, blocks: Sequence[Block], depth: int) -> bool:
        """Whether something fails before the last of these blocks, each of which is in the one before."""
        places = [place for place, block in enumerate(blocks[:-1]) if isinstance(block, FunctionNode)]
        first = places[-1] if places else -1
        function = blocks[first] if places else None
        around = function if isinstance(function, FunctionNode) else None
        above: ast.AST = around if around is not None else facts.tree
        for block in blocks[first + 1 :]:
            if self._fails_above(facts, around, above, block):
                return True
            if block is not blocks[-1] and self._fails_at_all(facts, around, _head(block)):
                return True
            above = block
        if around is None or not depth:
            return False
        if first and self._is_of_no_object(facts, blocks[first - 1], around):
            return True
        return self._is_never_called(facts, blocks[: first + 1], depth - 1)

    def _is_of_no_object(self, facts: ModuleFacts, owner: ast.AST, method: FunctionNode) -> bool:
        """Whether a method is called on objects alone that cannot be made."""
        if not isinstance(owner, ast.ClassDef) or facts.definitions.get(owner.name) is not owner:
            return False
        if method.name in ("__init__", "__new__") or {dotted_ast(d) for d in method.decorator_list} & _OF_CLASS:
            return False
        found = self._project.classes.of(facts, owner)
        return self._cannot_be_made(found) and not has_heirs(self._project, found)

    def _fails_above(self, facts: ModuleFacts, around: FunctionNode | None, above: ast.AST, block: Block) -> bool:
        """Whether a statement fails that a run goes through in the block `above` before it comes to one of it."""
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(above, field, None)
            place = _place_in(statements, block) if isinstance(statements, list) else None
            if place is not None:
                return _first_failing(self._project, facts, around, statements or []) < place
        return False

    def first_of(self, facts: ModuleFacts, around: FunctionNode | None, statements: Sequence[ast.stmt]) -> int:
        """The place of the first of some statements that fails whenever it is reached; behind the last where none
        does."""
        places = (place for place, each in enumerate(statements) if self._fails(facts, around, each))
        return next(places, len(statements))

    def _is_never_called(self, facts: ModuleFacts, blocks: Sequence[Block], depth: int) -> bool:
        """Whether everything that mentions a function, the last of these blocks, or the class that it is in, is behind
        what fails."""
        top = blocks[0]
        if not isinstance(top, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if facts.definitions.get(top.name) is not top or top.decorator_list:
            return False
        if len(blocks) > 1 and not isinstance(top, ast.ClassDef):
            return self._is_behind(facts, blocks, depth)  # a function inside another one, where that defines it
        project, name = self._project, top.name
        if is_installed(project, facts):
            return False
        if (facts.name, name) in self._above:
            return True
        self._above.add((facts.name, name))
        # The words of all texts last: what asks for them depends on each of them.
        if not self._are_behind(facts, top, depth) or is_found_by_name(project, facts, name, None):
            return False
        return not named_in_texts(project, name)

    def _are_behind(self, facts: ModuleFacts, top: ast.ClassDef | FunctionNode, depth: int) -> bool:
        project, whole, found = self._project, f"{facts.name}.{top.name}", False
        paths = project.contents.holding(top.name)
        for path in paths if len(paths) <= _FILES else ():
            user = project.modules.facts_of(path)
            for use in uses(user, top.name) if user is not None and not user.source.is_test else ():
                line = use.node.lineno
                if user is None or project.meanings.of(user, use.node) != whole:
                    continue
                if user is facts and top.lineno <= line <= (top.end_lineno or line):
                    continue
                found = True
                given = (*use.call.args, *(k.value for k in use.call.keywords)) if use.call is not None else ()
                if self._fails_at_all(user, function_at(user.tree, line), given):
                    continue
                if not self.is_behind(user, line, depth):
                    return False
        return found

    # ---- what fails

    def _fails(self, facts: ModuleFacts, around: FunctionNode | None, statement: ast.AST) -> bool:
        """Whether a statement fails whenever it is reached."""
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            return False
        if isinstance(statement, ast.If):
            arms = (statement.body, statement.orelse)
            return self._fails_at_all(facts, around, [statement.test]) or all(
                any(self._fails(facts, around, each) for each in arm) for arm in arms
            )
        if isinstance(statement, ast.Try):
            arm = [] if statement.handlers else statement.body
            return any(self._fails(facts, around, each) for each in (*arm, *statement.finalbody))
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            caught = any(
                "suppress" in ast.unparse(i.context_expr) or "raises" in ast.unparse(i.context_expr)
                for i in statement.items
            )
            arm = [] if caught else statement.body
            return self._fails_at_all(facts, around, _head(statement)) or any(
                self._fails(facts, around, each) for each in _up_to_exit(arm)
            )
        if is_unpacked_wrongly(self._project, facts, statement):
            return True
        return self._fails_at_all(facts, around, _head(statement))

    def _fails_at_all(self, facts: ModuleFacts, around: FunctionNode | None, parts: Sequence[ast.AST]) -> bool:
        missing = unbound(self._project, facts) if parts else frozenset()
        late = unassigned(around) if parts and around is not None else frozenset()
        for node in _evaluated(parts):
            if isinstance(node, ast.Name) and (node in missing or node in late):
                return True
            if isinstance(node, ast.Attribute) and (
                undefined_option(self._project, facts, around, node)
                or is_no_member(self._project, facts, around, node)
                or lacks(self._project, facts, around, node)
            ):
                return True
            if isinstance(node, ast.Call) and self._left > 0 and self._call_fails(facts, around, node):
                return True
        return False

    def _call_fails(self, facts: ModuleFacts, around: FunctionNode | None, call: ast.Call) -> bool:
        """Whether a function, a method or the constructor of a class of the project fails before it may return, or does
        not take what it is given."""
        project = self._project
        found = called_definition(project, facts, call)
        if found is None:
            return self._method_fails(facts, around, call)
        self._left -= 1
        if is_refused(project, facts, call):
            return True
        home, function = found
        if isinstance(function, ast.ClassDef):
            return self._cannot_be_made(project.classes.of(home, function))
        return isinstance(function, ast.FunctionDef) and self._never_returns(home, function, function.name)

    def _method_fails(self, facts: ModuleFacts, around: FunctionNode | None, call: ast.Call) -> bool:
        """Whether a method fails that is called on an object of a class of the project which no other one inherits
        from."""
        project = self._project
        if around is None or not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
            return False
        kind = kind_of(project, facts, around, call.func.value)
        method = project.classes.method(kind.name, call.func.attr) if kind is not None else None
        if kind is None or method is None or not isinstance(method[1], ast.FunctionDef) or method[1].decorator_list:
            return False
        self._left -= 1
        owner, function = method
        fails = self._never_returns(owner.module, function, f"{owner.node.name}.{function.name}")
        return fails and not has_heirs(project, kind)

    def _never_returns(self, home: ModuleFacts, function: ast.FunctionDef, name: str) -> bool:
        """Whether a function, by its name in its file, fails before it may return."""
        key = (home.name, name)
        if key not in self._failing:
            self._failing[key] = False  # one that calls itself does not fail by that
            self._deep += 1
            before = self._project.charges.turn_to(home.source.path)  # the work is about that file, whichever asks
            self._failing[key] = (
                self._deep <= _DEPTH
                and not _yields(function)
                and any(self._fails(home, function, each) for each in _up_to_exit(function.body))
            )
            self._project.charges.turn_to(before)
            self._deep -= 1
        return self._failing[key]

    def _cannot_be_made(self, owner: ClassFacts) -> bool:
        """Whether the constructor of a class always fails, or needs an object of a class whose constructor does."""
        constructor = owner.methods.get("__init__")
        if not isinstance(constructor, ast.FunctionDef) or constructor.decorator_list:
            return False
        if owner.node.keywords or "__new__" in owner.methods:
            return False
        key = (owner.module.name, owner.node.name)
        if key not in self._failing:
            self._failing[key] = False
            self._failing[key] = self._never_returns(
                owner.module, constructor, f"{owner.node.name}.__init__"
            ) or self._needs_what_cannot_be_made(owner, constructor)
        return self._failing[key]

    def _needs_what_cannot_be_made(self, owner: ClassFacts, constructor: ast.FunctionDef) -> bool:
        for parameter, default in defaults(constructor.args):
            if default is not None or parameter.annotation is None or self._deep > _DEPTH:
                continue
            kind = named_class(self._project, owner.module, parameter.annotation)
            if kind is not None and self._cannot_be_made(kind) and not has_heirs(self._project, kind):
                return True
        return False


def _first_failing(
    project: Project, facts: ModuleFacts, around: FunctionNode | None, statements: Sequence[ast.stmt]
) -> int:
    """`_Search.first_of`, once for a block: each of thousands of places in it may ask."""
    first = statements[0]
    found: int = project.remember(
        ("first failing", first.lineno, first.col_offset),
        lambda: _Search(project).first_of(facts, around, statements),
        facts.kept,
    )
    return found


def _place_in(statements: Sequence[ast.AST], block: Block) -> int | None:
    """The place of a statement among some, which are in the order of their lines."""
    line = getattr(block, "lineno", 0)
    place = bisect.bisect_left(statements, line, key=lambda each: getattr(each, "lineno", 0))
    alike = itertools.takewhile(
        lambda each: getattr(each, "lineno", 0) == line, itertools.islice(statements, place, None)
    )
    return next((n for n, each in enumerate(alike, place) if each is block), None)


def _head(statement: ast.AST) -> list[ast.AST]:
    """What a statement evaluates itself, before the statements in it or without any."""
    if isinstance(statement, FunctionNode):
        return [*statement.decorator_list, *(d for d in below(statement.args) if isinstance(d, ast.expr))]
    if isinstance(statement, ast.ClassDef):
        return [*statement.decorator_list, *statement.bases]
    if isinstance(statement, (ast.ExceptHandler, ast.match_case, ast.Try, ast.Import, ast.ImportFrom)):
        return []
    if isinstance(statement, ast.AnnAssign):
        return [statement.value] if statement.value is not None else []
    inside = {id(each) for each in nested(statement)}
    return [each for each in below(statement) if id(each) not in inside]


#: Of these a part is not evaluated, or not always.
_PARTLY = {
    ast.Assert, ast.BoolOp, ast.Compare, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.Lambda, ast.ListComp,
    ast.SetComp,
}  # fmt: skip


def _evaluated(parts: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The expressions in some, themselves included, that are evaluated whenever those are."""
    stack = list(parts)
    while stack:
        node = stack.pop()
        yield node
        if node.__class__ not in _PARTLY:
            stack += below(node)
        elif isinstance(node, ast.IfExp):
            stack.append(node.test)
        elif isinstance(node, ast.BoolOp):
            stack.append(node.values[0])
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            stack.append(node.generators[0].iter)
        elif isinstance(node, ast.Compare):
            stack += [node.left, node.comparators[0]]
        elif isinstance(node, ast.Assert):
            stack.append(node.test)


def _up_to_exit(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a block up to the first in which a run may leave it."""
    for statement in block:
        yield statement
        if any(isinstance(n, (ast.Return, ast.Break, ast.Continue)) for n in walk(statement)):
            return


def _yields(function: ast.AST) -> bool:
    return any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(function))

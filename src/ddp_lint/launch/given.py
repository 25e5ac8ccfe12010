"""What no call of the project asks for: places that none of the values leads to which a name is given."""

from __future__ import annotations

import ast
import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import libcst as cst

from ddp_lint.launch.callers import calls_in_file, sites_of
from ddp_lint.launch.options import is_left_off, options_of
from ddp_lint.launch.texts import called_in_texts, is_installed, named_in_texts, words_of_settings
from ddp_lint.launch.unused import is_plain, may_be_called_by_text
from ddp_lint.project import Project
from ddp_lint.project.bound import bound_in
from ddp_lint.project.facts import ModuleFacts, assigned_in, statements_of
from ddp_lint.project.uses import calls_through, uses
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import (
    FunctionNode,
    argument_at,
    blocks_at,
    defaults,
    function_at,
    parameters,
    positional,
    walk,
)
from ddp_lint.source.tree import descendants, dotted, parameters_of, positional_of
from ddp_lint.view import Module
from ddp_lint.view.scopes import Binding
from ddp_lint.view.wraps import argument

#: Functions that hand a parameter on which are gone through, one in the other.
_DEPTH = 5
#: Names of one place that are looked at, and values that a name may have.
_NAMES = 8
_VALUES = 16
#: Files that hold the name of a function; where more do, the name says too little to look for its calls.
_FILES = 25
#: Decorators after which a function is called as before: of others nothing is known, which may call it themselves.
_TRANSPARENT = re.compile(r"torch\.\w.*|staticmethod|classmethod|functools\.(?:lru_)?cache|typing\.\w+")
#: Methods that torch calls on modules and their parts, or Python on any object.
_CALLED_BY_TORCH = re.compile(
    r"__\w+__|train|eval|to|cpu|cuda|half|float|double|apply|_apply|zero_grad|requires_grad_|\w*state_dict"
)
#: By what an object may be given attributes that are not seen.
_SETS_ANY = re.compile(r"setattr\(|__dict__|\bvars\(")


@dataclasses.dataclass(frozen=True)
class _Constant:
    """A value, apart from others that Python finds equal: 1 and True."""

    value: object
    kind: type

    @classmethod
    def of(cls, value: object) -> _Constant:
        return cls(value, type(value))


#: None where any value may be given.
_Values = frozenset[_Constant] | None


def needs_other_values(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is reached for none of the values that a name is given: constants that the function around sets
    it to, or the defaults and constants that all calls in the project give a parameter: ``if is_best: (here)`` in ``def
    save(state, is_best=False)``, ``if scheme == "naive": .. else: (here)`` after ``convert("naive")``. So is what a
    function does that is called at such places alone. False where calls may not be seen: a package that is installed, a
    function that is handed on or that a text of the project names. Whoever calls it, what the statements right above a
    test set decides it: ``self.small = False`` above ``if self.small: (here)``."""
    return _is_met_by_none(module, node, _DEPTH)


def _is_met_by_none(module: Module, node: cst.CSTNode, depth: int) -> bool:
    tests = [*conditions(module, node)]
    names: dict[str, cst.BaseExpression] = {}
    for test, _ in tests:
        for each in _names_of(test):
            names.setdefault(dotted(each), each)
            if len(names) == _NAMES:
                break
    if any(_is_ruled_out(module, tests, name, each) for name, each in names.items()):
        return True
    if any(_is_set_otherwise(module, test, taken) for test, taken in tests):
        return True
    calls = _calls_here(module, node) if depth else ()
    return (
        bool(calls) and all(_is_met_by_none(module, call, depth - 1) for call in calls) and not _is_named(module, node)
    )


def _is_named(module: Module, node: cst.CSTNode) -> bool:
    """Whether a text of the project names the function around a place. Who asks depends on the words of all texts."""
    function, project = module.function_of(node), module.project
    if function is None or project is None:
        return True
    return _may_be_called(module, project, function)


def _may_be_called(module: Module, project: Project, function: cst.FunctionDef) -> bool:
    """Whether a text of the project may be what calls a function: not one that another function has inside."""
    if module.function_of(function) is not None:
        return False
    name = function.name.value
    if module.class_of(function) is not None or module.facts is None:
        # What a text says of replacing something calls no method by the name.
        settings = words_of_settings(project)
        return settings is None or name in settings or called_in_texts(project, name)
    return may_be_called_by_text(project, module.facts, name)


def _calls_here(module: Module, node: cst.CSTNode) -> Sequence[cst.Call]:
    """The calls of the function around a place, where this file has all of them, each under a test."""
    function, project = module.function_of(node), module.project
    if (
        function is None
        or project is None
        or module.function_of(function) is not None
        or is_installed(project, module.facts)
    ):
        return ()
    name, owner = function.name.value, module.class_of(function)
    if function.decorators or (name.startswith("__") and name.endswith("__")):
        return ()
    if name == "forward" or (owner is not None and not is_plain(project, module.name_of(owner))):
        return ()
    return calls_in_file(module, function)


def needs_option_left_off(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is reached only where an option of the program is on that is off by itself, and that no command
    of the project passes which starts it: ``if args.profile: (here)``. So is what a function does that is called at
    such places alone."""
    return _needs_option(module, node, _DEPTH)


def needs_constant_changed(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is reached only where somebody edits a constant at the top of its file that is a switch, and is
    off: ``DISTRIBUTED = False`` above ``if DISTRIBUTED: (here)``."""
    return any(
        _is_switched_off(module, each, test, taken)
        for test, taken in conditions(module, node)
        for each in _names_of(test)
        if isinstance(each, cst.Name)
    )


def _is_switched_off(module: Module, name: cst.Name, test: cst.BaseExpression, taken: bool) -> bool:
    project = module.project
    if project is None or not isinstance(module.scopes.scope_of(name.value, name), cst.Module):
        return False
    bound = module.bindings(name)
    value = bound[0].value if len(bound) == 1 and bound[0].kind == "assign" and not bound[0].index else None
    known = _literal(value) if value is not None else None
    if known is None or known.kind not in (bool, type(None)):
        return False
    if _outcome(test, name.value, known.value) is not (not taken):
        return False
    sets = re.compile(rf"\.{name.value}\s*=(?!=)|\bglobal\b[^\n]*\b{name.value}\b|[\"']{name.value}[\"']")
    return not any(sets.search(project.contents.text(path) or "") for path in project.contents.holding(name.value))


def _needs_option(module: Module, node: cst.CSTNode, depth: int) -> bool:
    if any(_is_for_option(module, test, taken, node) for test, taken in conditions(module, node)):
        return True
    calls = _calls_here(module, node) if depth else ()
    return bool(calls) and all(_needs_option(module, call, depth - 1) for call in calls) and not _is_named(module, node)


def _is_for_option(module: Module, test: cst.BaseExpression, taken: bool, node: cst.CSTNode) -> bool:
    facts, project = module.facts, module.project
    if facts is None or project is None:
        return False
    for each in _options_in(test):
        around = function_at(facts.tree, module.span(node).line)
        options = options_of(project, facts, around, dotted(each.value))
        for name, value in options.off if options is not None else ():
            turns = name == each.attr.value and _outcome(test, dotted(each), value) is (not taken)
            if turns and options is not None and is_left_off(project, options, name):
                return True
    return False


def _options_in(test: cst.BaseExpression) -> Iterator[cst.Attribute]:
    """What may be options of a program in a test: ``args.profile``."""
    if isinstance(test, cst.BooleanOperation):
        yield from _options_in(test.left)
        yield from _options_in(test.right)
    elif isinstance(test, cst.UnaryOperation):
        yield from _options_in(test.expression)
    elif isinstance(test, cst.Comparison):
        yield from _options_in(test.left)
    elif isinstance(test, cst.Attribute) and isinstance(test.value, cst.Name) and test.value.value != "self":
        yield test


def _names_of(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The names, and the attributes of ``self``, that decide a test."""
    if isinstance(test, cst.BooleanOperation):
        yield from _names_of(test.left)
        yield from _names_of(test.right)
    elif isinstance(test, cst.UnaryOperation):
        yield from _names_of(test.expression)
    elif isinstance(test, cst.Comparison):
        for part in (test.left, *(each.comparator for each in test.comparisons)):
            yield from _names_of(part)
    elif dotted(test) not in ("", *_LITERALS) and (isinstance(test, cst.Name) or _is_own(test)):
        yield test


def _is_own(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Attribute) and dotted(node) == f"self.{node.attr.value}"


def _is_ruled_out(
    module: Module, tests: list[tuple[cst.BaseExpression, bool]], name: str, at: cst.BaseExpression
) -> bool:
    values = _values_of(module, at, _DEPTH)
    return bool(values) and all(
        any(_outcome(test, name, each.value) is (not taken) for test, taken in tests) for each in values or ()
    )


def _is_set_otherwise(module: Module, test: cst.BaseExpression, taken: bool) -> bool:
    """Whether the function sets a name, or an attribute of ``self``, to a constant in the same block above a test, and
    nothing between the two mentions it or may change it, so that the test comes to the other outcome."""
    branch = module.parent(test)
    while isinstance(parent := module.parent(branch) if isinstance(branch, cst.If) else None, cst.If):
        branch = parent
    block = module.parent(branch) if isinstance(branch, cst.If) else None
    if not isinstance(block, cst.IndentedBlock) or module.function_of(test) is None:
        return False
    above = block.body[: next(place for place, each in enumerate(block.body) if each is branch)]
    for each in _names_of(test):
        value = _set_last(above, dotted(each))
        if value is not None and _outcome(test, dotted(each), value.value) is (not taken):
            return True
    return False


def _set_last(above: Sequence[cst.BaseStatement], name: str) -> _Constant | None:
    """The constant that the last of some statements sets a name to which has to do with it."""
    for statement in reversed(above):
        parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        only = parts[0] if len(parts) == 1 else None
        if isinstance(only, cst.Assign) and [dotted(each.target) for each in only.targets] == [name]:
            return _literal(only.value)
        # A method may set any attribute of the object.
        calls = "." in name
        if any(dotted(n) == name or (calls and isinstance(n, (cst.Call, cst.Await))) for n in descendants(statement)):
            return None
        if any(isinstance(n, (cst.Global, cst.Nonlocal, cst.Del)) for n in descendants(statement)):
            return None
    return None


# ---- tests


def _outcome(test: cst.BaseExpression, name: str, value: object) -> bool | None:
    """What a test comes to where a name has a value; None where that does not decide it."""
    if isinstance(test, cst.BooleanOperation):
        sides = {_outcome(test.left, name, value), _outcome(test.right, name, value)}
        decides = isinstance(test.operator, cst.Or)
        return decides if decides in sides else None if None in sides else not decides
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        found = _outcome(test.expression, name, value)
        return None if found is None else not found
    if isinstance(test, cst.Comparison):
        return _compared(test, name, value)
    known = _value_in(test, name, value)
    return bool(known.value) if known is not None else None


_COMPARISONS: dict[type[cst.BaseCompOp], Callable[[Any, Any], bool]] = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.Is: lambda left, right: type(left) is type(right) and left == right,
    cst.IsNot: lambda left, right: type(left) is not type(right) or left != right,
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
    cst.In: lambda left, right: left in right,
    cst.NotIn: lambda left, right: left not in right,
}


def _compared(test: cst.Comparison, name: str, value: object) -> bool | None:
    if len(test.comparisons) != 1:
        return None
    left, right = (_value_in(side, name, value) for side in (test.left, test.comparisons[0].comparator))
    compare = _COMPARISONS.get(type(test.comparisons[0].operator))
    if left is None or right is None or compare is None:
        return None
    try:
        return compare(left.value, right.value)
    except TypeError:
        return None


_LITERALS: dict[str, object] = {"None": None, "True": True, "False": False}


def _value_in(node: cst.BaseExpression, name: str, value: object) -> _Constant | None:
    """What an expression is where a name has a value, as far as that is known."""
    if dotted(node) == name:
        return _Constant.of(value)
    if isinstance(node, (cst.List, cst.Tuple, cst.Set)):
        parts = [_value_in(each.value, name, value) for each in node.elements if isinstance(each, cst.Element)]
        known = [each.value for each in parts if each is not None]
        return _Constant.of(tuple(known)) if len(known) == len(node.elements) else None
    return _literal(node)


def _literal(node: cst.BaseExpression) -> _Constant | None:
    if isinstance(node, cst.Name) and node.value in _LITERALS:
        return _Constant.of(_LITERALS[node.value])
    if isinstance(node, (cst.SimpleString, cst.Integer, cst.Float)):
        return _Constant.of(node.evaluated_value)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        number = node.expression
        return _Constant.of(-number.evaluated_value) if isinstance(number, (cst.Integer, cst.Float)) else None
    return None


# ---- values


def _joined(found: Iterable[_Values]) -> _Values:
    """All of the values together; None where one of them may be any, or there are none."""
    values: set[_Constant] = set()
    for each in found:
        if each is None:
            return None
        values |= each
    return frozenset(values) if values and len(values) <= _VALUES else None


def _values_of(module: Module, node: cst.BaseExpression, depth: int) -> _Values:
    """The values that an expression may have: a constant, one of two, or a name that is given constants alone."""
    known = _literal(node)
    if known is not None:
        return frozenset({known})
    if isinstance(node, cst.IfExp):
        return _joined(_values_of(module, each, depth) for each in (node.body, node.orelse))
    if not depth or not isinstance(node, (cst.Name, cst.Attribute)):
        return None
    if isinstance(node, cst.Attribute):
        return _of_attribute(module, node, depth) if _is_own(node) else None
    scope = module.scopes.scope_of(node.value, node)
    # Who runs a program edits the constants at its top: those are settings.
    if not isinstance(scope, cst.FunctionDef) or f"nonlocal {node.value}" in module.file.text:
        return None
    return _joined(_of_binding(module, each, depth) for each in module.bindings(node))


def _of_binding(module: Module, binding: Binding, depth: int) -> _Values:
    if binding.kind == "parameter":
        return _of_parameter(module, binding, depth)
    if binding.kind != "assign" or binding.value is None or binding.index:
        return None
    return _values_of(module, binding.value, depth - 1)


def _of_attribute(module: Module, node: cst.Attribute, depth: int) -> _Values:
    """What the methods of a class set an attribute to, where nothing else does: no class inherits from it, and no code
    of the project sets one by that name of another object."""
    owner, project, word = module.class_of(node), module.project, node.attr.value
    if owner is None or project is None or _SETS_ANY.search(module.file.text):
        return None
    if not _is_made_here(module, project, owner):
        return None
    given = re.compile(rf"(?<!self)\.{word}\s*(?:=(?!=)|[-+*/|&]=|:\s*\w[\w.\[\]]* =|,[\w., ]+ =(?!=))")
    if any(given.search(project.contents.text(path) or "") for path in project.contents.holding(f".{word}")):
        return None
    bound = module.bindings(node)
    if any(module.class_of(each.node) is not owner for each in bound):
        return None
    return _joined(_of_binding(module, each, depth) for each in bound)


def _of_parameter(module: Module, binding: Binding, depth: int) -> _Values:
    """The values that all calls of a function give a parameter."""
    project, function = module.project, module.function_of(binding.node)
    if (
        project is None
        or function is None
        or binding.node not in parameters_of(function)
        or is_installed(project, module.facts)
    ):
        return None
    if not all(_is_transparent(module, each) for each in function.decorators):
        return None
    owner, default = module.class_of(function), _literal(binding.value) if binding.value is not None else None
    if owner is not None and function.name.value == "__init__":
        seen = _is_made_here(module, project, owner)
    else:
        seen = owner is None or _is_called_by_name(module, project, owner, function.name.value)
    if not seen:
        return None
    if module.function_of(function) is not None:
        return _given_around(module, function, binding.name, default, depth)
    sites = sites_of(module, function)
    found = [(site.facts, site.node, site.around, site.given(function, binding.name)) for site in sites]
    if function.name.value == "forward" and any(value is not None for *_, value in found):
        # Not all calls of objects are seen, but what is given by the name.
        return frozenset({default}) if default is not None and _is_never_given(project, binding.name, default) else None
    of = _Given(project, binding.name, default)
    values = _joined(of.by(facts, call, around, value, depth - 1) for facts, call, around, value in found)
    # The words of all texts last: what asks for them depends on each of them.
    return None if values is not None and _may_be_called(module, project, function) else values


def _is_never_given(project: Project, name: str, default: _Constant) -> bool:
    """Whether all that the project gives by a name is the constant that functions have by themselves, or what they have
    got by that name: ``layer(x, bias=bias)`` in ``def forward(self, x, bias=None)``."""
    return project.remember(("never given", name, default), lambda: not any(_given_apart(project, name, default)))


def _given_apart(project: Project, name: str, default: _Constant) -> Iterator[bool]:
    """Whether each place of the project that gives something by a name gives another value than the default."""
    paths = project.contents.holding(name)
    if len(paths) > _FILES:
        yield True
    for facts in map(project.modules.facts_of, paths if len(paths) <= _FILES else ()):
        if facts is None or facts.source.is_test:
            continue
        given = [*_given_by_name(facts.tree, name)]
        yield any(not _is_as_before(facts, value, name, default) for _, value in given)
        keys = {id(key) for key, _ in given}
        texts = (n for n in walk(facts.tree) if isinstance(n, ast.Constant) and n.value == name)
        yield any(id(text) not in keys for text in texts)


def _given_by_name(tree: ast.AST, name: str) -> Iterator[tuple[ast.AST | None, ast.expr]]:
    """What calls give a keyword, or dictionaries hold under a key, with the key; and what calls get by place which has
    that name."""
    for node in walk(tree):
        if isinstance(node, ast.Call):
            yield from ((None, each.value) for each in node.keywords if each.arg == name)
            yield from ((None, each) for each in node.args if isinstance(each, ast.Name) and each.id == name)
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from ((key, value) for key, value in pairs if isinstance(key, ast.Constant) and key.value == name)


def _is_as_before(facts: ModuleFacts, value: ast.expr, name: str, default: _Constant) -> bool:
    """Whether a value is the default, or the parameter of that name which has it."""
    if isinstance(value, ast.Constant):
        return _Constant.of(value.value) == default
    around = function_at(facts.tree, value.lineno)
    if not isinstance(value, ast.Name) or value.id != name or around is None:
        return False
    return _is_only_parameter(around, name) and _defaults_of(around).get(name) == default


def _is_called_by_name(module: Module, project: Project, owner: cst.ClassDef, method: str) -> bool:
    """Whether nothing but the project calls a method: no base class of another package, and no method of torch's."""
    return is_plain(project, module.name_of(owner)) and not _CALLED_BY_TORCH.fullmatch(method)


def _is_transparent(module: Module, decorator: cst.Decorator) -> bool:
    called = decorator.decorator.func if isinstance(decorator.decorator, cst.Call) else decorator.decorator
    return _TRANSPARENT.fullmatch(module.qualified(called) or dotted(called)) is not None


def _is_made_here(module: Module, project: Project, owner: cst.ClassDef) -> bool:
    """Whether all that makes objects of a class are calls by its name: nothing inherits from it, hands it on or finds
    it by a text."""
    word, name = owner.name.value, module.name_of(owner)
    paths = project.contents.holding(word)
    if owner.decorators or is_installed(project, module.facts) or len(paths) > _FILES:
        return False
    for path in paths:
        facts = project.modules.facts_of(path)
        for use in uses(facts, word) if facts is not None and not facts.source.is_test else ():
            if facts is None or use.call is not None or project.meanings.of(facts, use.node) != name:
                continue
            if calls_through(project, facts, use) is None:
                return False
    return not named_in_texts(project, word)


def _given_around(
    module: Module, function: cst.FunctionDef, name: str, default: _Constant | None, depth: int
) -> _Values:
    """What the function around another one gives it, where it only calls that."""
    outer, places = module.function_of(function), [p.name.value for p in positional_of(function)]
    if outer is None or module.class_of(function) is not None:
        return None
    word = function.name.value
    like = (n for n in descendants(outer) if isinstance(n, cst.Name) and n.value == word and n is not function.name)
    used = [n for n in like if getattr(module.parent(n), "attr", None) is not n]  # not the ``save`` of ``torch.save``
    calls = [up for n in used if isinstance(up := module.parent(n), cst.Call)]
    if not calls or len(calls) != len(used) or any(arg.star for call in calls for arg in call.args):
        return None
    given = [argument(call, places.index(name) if name in places else None, name) for call in calls]
    kept = frozenset({default}) if default is not None else None
    return _joined(_values_of(module, each, depth - 1) if each is not None else kept for each in given)


@dataclasses.dataclass(frozen=True)
class _Given:
    """What calls give a parameter by its name; `default`: what it has where a call gives it nothing."""

    project: Project
    name: str
    default: _Constant | None

    def by(
        self, facts: ModuleFacts, call: ast.Call, around: FunctionNode | None, value: ast.expr | None, depth: int
    ) -> _Values:
        """What one call gives: `value`, what is spread out in the call, or else the default."""
        if any(isinstance(each, ast.Starred) for each in call.args):
            return None
        if value is not None:
            return _values_at(self.project, facts, around, value, depth)
        found = [self._in_mapping(facts, around, each.value, depth) for each in call.keywords if each.arg is None]
        if None in found:
            return None
        given = frozenset[_Constant]().union(*(each for each in found if each is not None))
        missing = all(each is not None and (not each or _ABSENT in each) for each in found)
        kept = frozenset({self.default}) if self.default is not None else None
        given -= {_ABSENT}
        return given if not missing else None if kept is None else given | kept

    def _in_mapping(
        self, facts: ModuleFacts, around: FunctionNode | None, node: ast.expr, depth: int, open_: str = ""
    ) -> _Values:
        """What a dictionary that a call spreads out has for the name; `_ABSENT` among it where it may have none."""
        if isinstance(node, ast.Name) and around is not None and depth >= 0:
            kwarg, bound = around.args.kwarg, bound_in(around).get(node.id, ())
            if any(each.value is None or each.steps or each.put_in for each in bound):
                return None
            values = [each.value for each in bound if each.value is not None]
            found = [self._in_mapping(facts, around, value, depth, node.id) for value in values]
            if kwarg is not None and kwarg.arg == node.id:
                found.append(self._handed_on(facts, around, depth))
            if not found:
                return None
        elif isinstance(node, ast.Call) and last_part(node.func) == "update":
            given = [each.value for each in node.keywords if each.arg == self.name]
            if not given:
                return None if any(each.arg is None for each in node.keywords) else frozenset()
            return _values_at(self.project, facts, around, given[0], depth)
        elif isinstance(node, ast.Dict) or (
            isinstance(node, ast.Call) and dotted_ast(node.func) == "dict" and not node.args
        ):
            pairs = _pairs(node)
            if pairs is None:
                return None
            if self.name in pairs:
                return _values_at(self.project, facts, around, pairs[self.name], depth)
            spread = [value for value in _spread(node) if dotted_ast(value) != open_ or not open_]
            if not spread:
                # A dictionary that is made of itself has nothing else for the name.
                return frozenset({_ABSENT}) if not _spread(node) else frozenset()
            found = [self._in_mapping(facts, around, value, depth, open_) for value in spread]
        else:
            return None
        return None if None in found else frozenset[_Constant]().union(*(each for each in found if each is not None))

    def _handed_on(self, facts: ModuleFacts, around: FunctionNode, depth: int) -> _Values:
        """What all calls of a function give by the name to its ``**kwargs``."""
        if self.name in {each.arg for each in parameters(around)}:
            return frozenset({_ABSENT})
        owner = _owner_of(facts, around)
        return _given_by_all(self.project, facts, around, self.name, depth - 1, owner, _ABSENT)


#: What a dictionary has for a name that it has not.
_ABSENT = _Constant("absent", _Constant)


def _pairs(node: ast.Dict | ast.Call) -> dict[str, ast.expr] | None:
    """The keys of a dictionary with their values; None where one is not written out."""
    if isinstance(node, ast.Call):
        return {each.arg: each.value for each in node.keywords if each.arg is not None}
    keys = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
    texts = {key.value: value for key, value in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return texts if len(texts) == len(keys) else None


def _spread(node: ast.Dict | ast.Call) -> list[ast.expr]:
    """What is spread out in a dictionary."""
    if isinstance(node, ast.Call):
        return [each.value for each in node.keywords if each.arg is None]
    return [value for key, value in zip(node.keys, node.values, strict=True) if key is None]


def _owner_of(facts: ModuleFacts, function: FunctionNode) -> ast.ClassDef | None:
    """The class at the top of a file that a function is the constructor of."""
    owner, method = facts.method_at(function.lineno) or (None, None)
    return owner if method is function and function.name == "__init__" else None


def _values_at(
    project: Project, facts: ModuleFacts, around: FunctionNode | None, value: ast.expr, depth: int
) -> _Values:
    """`_values_of` for an expression in any file."""
    if isinstance(value, ast.Constant):
        return frozenset({_Constant.of(value.value)})
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub) and isinstance(value.operand, ast.Constant):
        number = value.operand.value
        return frozenset({_Constant.of(-number)}) if isinstance(number, (int, float)) else None
    if isinstance(value, ast.IfExp):
        return _joined(_values_at(project, facts, around, each, depth) for each in (value.body, value.orelse))
    if not isinstance(value, ast.Name) or around is None or not depth or not _is_plain(around, value.id):
        return None
    assigned = assigned_in(around, value.id)
    found = [_values_at(project, facts, around, each, depth - 1) for each in assigned]
    if value.id in {each.arg for each in parameters(around)}:
        found.append(_handed_on(project, facts, around, value.id, depth - 1))
    return _joined(found)


def _is_plain(function: FunctionNode, name: str) -> bool:
    """Whether a function gives a name values by plain assignments alone, and by its parameters."""
    stored = sum(isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in walk(function))
    declared = (n.names for n in statements_of(function) if isinstance(n, (ast.Global, ast.Nonlocal)))
    return stored == len(assigned_in(function, name)) and not any(name in each for each in declared)


def _handed_on(project: Project, facts: ModuleFacts, function: FunctionNode, name: str, depth: int) -> _Values:
    """What all calls of a function at the top of a file, or of a constructor, give a parameter."""
    key = ("handed on", depth, facts.name, function.name, function.lineno, name)
    owner = _owner_of(facts, function)
    return project.remember(key, lambda: _given_by_all(project, facts, function, name, depth, owner))


def _given_by_all(
    project: Project,
    facts: ModuleFacts,
    function: FunctionNode,
    name: str,
    depth: int,
    owner: ast.ClassDef | None = None,
    missing: _Constant | None = None,
) -> _Values:
    """The same of a function, or of the constructor of its `owner`; nothing where nobody calls it. `missing`: what it
    has where a call gives it nothing and there is no default."""
    definition = owner or function
    word = definition.name
    if facts.definitions.get(word) is not definition or definition.decorator_list or function.decorator_list:
        return None
    paths, whole = project.contents.holding(word), f"{facts.name}.{word}"
    if len(paths) > _FILES:
        return None
    places = [each.arg for each in positional(function)][owner is not None :]
    if depth < 0:
        return None
    given = _Given(project, name, _defaults_of(function).get(name, missing))
    found: list[_Values] = []
    for user in project.modules.but_tests(paths):
        for use in uses(user, word):
            if project.meanings.of(user, use.node) != whole:
                continue
            calls = [(user, use, use.call)] if use.call is not None else owner and calls_through(project, user, use)
            if not calls:
                return None
            for _, _, call in calls:
                place = places.index(name) if name in places else len(call.args)
                value = argument_at(call, place, name)
                found.append(given.by(user, call, use.around, value, depth))
    values = _joined(found) if found else frozenset()
    return None if values is not None and may_be_called_by_text(project, facts, word) else values


def is_always(
    project: Project, facts: ModuleFacts, function: FunctionNode, name: str, values: Sequence[object]
) -> bool:
    """Whether all that a function, or the constructor of a class, is given for a parameter are some of these values:
    ``devices=1``, where no call of the project gives another number. False where calls may not be seen."""
    if is_installed(project, facts) or not _is_only_parameter(function, name):
        return False
    blocks = blocks_at(facts.tree, function.lineno)
    owner = blocks[0] if len(blocks) == 2 and isinstance(blocks[0], ast.ClassDef) else None
    if owner is not None and function.name != "__init__":
        return False
    given = _given_by_all(project, facts, function, name, _DEPTH, owner)
    return given is not None and bool(given) and given <= {_Constant.of(value) for value in values}


def _is_only_parameter(function: FunctionNode, name: str) -> bool:
    return (
        name in {each.arg for each in parameters(function)}
        and not assigned_in(function, name)
        and _is_plain(function, name)
    )


def _defaults_of(function: FunctionNode) -> dict[str, _Constant]:
    """The parameters that have a constant as their default."""
    pairs = defaults(function.args)
    return {each.arg: _Constant.of(value.value) for each, value in pairs if isinstance(value, ast.Constant)}

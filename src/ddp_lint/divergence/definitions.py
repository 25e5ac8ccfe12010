"""What the text of a module, a class or a function says before anything is evaluated."""

from __future__ import annotations

import ast
import collections
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ddp_lint.project.facts import assigned_in, paired
from ddp_lint.project.parts import (
    by_asker,
    children,
    classes_documented,
    docstring_of,
    inside,
    kept_by_class,
    kept_by_node,
    note_stores,
    rebinding,
    touch,
    unnoted,
)
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import (
    Definition,
    FunctionNode,
    calls_below,
    defaults,
    first_name,
    names_in,
    nested,
    parameters,
    positional,
    statements,
    walk,
)


@kept_by_class
def handing_over(node: ast.ClassDef) -> dict[str, list[ast.Call]]:
    """The calls in a class that get one of its objects' attributes first, by the attribute: ``shard(self.model)``."""
    found: dict[str, list[ast.Call]] = {}
    methods = (method for method in node.body if isinstance(method, FunctionNode))
    for call in (n for method in methods for n in inside(method) if isinstance(n, ast.Call)):
        given = call.args[0] if call.args else None
        if isinstance(given, ast.Attribute) and getattr(given.value, "id", "") == "self":
            found.setdefault(given.attr, []).append(call)
    return found


#: What a model is called that a function or a constructor is given.
MODEL: Final = re.compile(r"(^|_)(model|net|network|engine|policy|lm)$")


@kept_by_node(16384)
def is_generator(node: ast.AST) -> bool:
    return not isinstance(node, ast.Lambda) and any(
        isinstance(child, (ast.Yield, ast.YieldFrom)) for child in inside(node)
    )


@kept_by_node(4096)
def makes_what_it_yields(node: ast.AST) -> bool:
    """Whether a generator goes through nothing but numbers and lists that it makes, so that what it yields are no
    batches of a loader: ``while True: for x in [make() for _ in range(10)]: yield x``."""
    parts = list(inside(node))
    made = {
        target.id
        for each in parts
        if isinstance(each, ast.Assign) and isinstance(each.value, (ast.List, ast.ListComp))
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    taken = [each.iter for each in parts if isinstance(each, (ast.For, ast.AsyncFor, ast.comprehension))]
    return not any(isinstance(each, ast.YieldFrom) or _asks_for_next(each) for each in parts) and all(
        isinstance(each, (ast.List, ast.ListComp))
        or (isinstance(each, ast.Name) and each.id in made)
        or (isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "range")
        for each in taken
    )


def _asks_for_next(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "next"


@kept_by_node(4096)
def hands_on(node: ast.AST) -> str:
    """The parameter of a generator that yields once for each element of what it is given, whatever it does besides:
    ``for item in items: log(); yield item``. '' for any other one."""
    yields = [each for each in inside(node) if isinstance(each, (ast.Yield, ast.YieldFrom))]
    loops = [each for each in inside(node) if isinstance(each, (ast.For, ast.AsyncFor))]
    if len(yields) != 1 or len(loops) != 1 or any(isinstance(each, _LEAVING) for each in inside(node)):
        return ""
    once = any(isinstance(each, ast.Expr) and each.value is yields[0] for each in loops[0].body)
    given = {parameter.arg for parameter in parameters(node)} if isinstance(node, FunctionNode) else set()
    of = loops[0].iter
    while isinstance(of, ast.Call) and getattr(of.func, "id", "") in _COUNTING and of.args:
        of = of.args[0]
    whole = isinstance(node, FunctionNode) and loops[0] in node.body
    return of.id if whole and once and isinstance(of, ast.Name) and of.id in given else ""


#: What leaves a loop, or a round of it, before its end.
_LEAVING = (ast.Break, ast.Continue, ast.Return, ast.While, ast.Try)
#: What hands out as much as it is given first.
_COUNTING = frozenset({"enumerate", "tqdm"})


@kept_by_node(4096)
def literals_yielded(node: ast.AST) -> tuple[bool, ...]:
    """For each position of the tuples that a generator yields, whether each `yield` has a literal there; () for one
    that yields anything else."""
    yields = [child for child in inside(node) if isinstance(child, (ast.Yield, ast.YieldFrom))]
    tuples = [
        child.value.elts for child in yields if isinstance(child, ast.Yield) and isinstance(child.value, ast.Tuple)
    ]
    if len(tuples) < len(yields) or len({len(elements) for elements in tuples}) != 1:
        return ()
    return tuple(all(isinstance(part, ast.Constant) for part in parts) for parts in zip(*tuples, strict=True))


def is_flag(parameter: ast.arg, default: ast.expr | None) -> bool:
    """Is it a Boolean, by its annotation, its default or its name: ``is_main``?"""
    by_default = isinstance(default, ast.Constant) and isinstance(default.value, bool)
    by_annotation = parameter.annotation is not None and getattr(parameter.annotation, "id", "") == "bool"
    return by_default or by_annotation or (parameter.annotation is None and parameter.arg.startswith("is_"))


def documented(node: ast.AST) -> Mapping[str, tuple[str, ...]]:
    """What the docstring of a function or a class says of the classes of parameters."""
    if not isinstance(node, ast.ClassDef):  # that of a class is in the outline
        touch(node)
    found = docstring_of(node)
    return classes_documented(str(found.value)) if found is not None else {}


@functools.lru_cache(maxsize=8192)
def defaults_of(node: Definition) -> dict[str, ast.expr]:
    return {parameter.arg: default for parameter, default in defaults(node.args) if default is not None}


@functools.lru_cache(maxsize=512)
def assignments_in(tree: ast.Module) -> dict[str, list[tuple[ast.expr, ast.expr]]]:
    """Top-level assignments by name, also those under `if` and `try`."""
    found: dict[str, list[tuple[ast.expr, ast.expr]]] = {}
    stack: list[ast.stmt] = list(tree.body)[::-1]
    while stack:
        node = stack.pop()
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        elif isinstance(node, (ast.If, ast.Try)):
            blocks = [*node.body, *node.orelse]
            stack.extend(blocks[::-1])
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                if isinstance(part, ast.Name):
                    found.setdefault(part.id, []).append((target, value))
    return found


@kept_by_node(512, noted=rebinding)
def rebinders_in(tree: ast.Module) -> dict[str, list[ast.FunctionDef]]:
    """The module's functions that assign to its variables, by variable."""
    found: dict[str, list[ast.FunctionDef]] = {}
    own = {id(node) for node in tree.body}
    for function in (
        node for node in rebinding(tree) for node in statements(node) if isinstance(node, ast.FunctionDef)
    ):
        if id(function) in own:
            for name in (name for child in children(function) if isinstance(child, ast.Global) for name in child.names):
                found.setdefault(name, []).append(function)
    return found


@kept_by_node(512, noted=rebinding)
def rebound_in(tree: ast.Module) -> dict[str, str]:
    """Module variables that functions rebind: 'counted' when only by `+=` and `-=`, 'switched' when a generator sets
    them to True or False and back, else 'assigned'."""
    found: dict[str, str] = {}
    functions = (node for part in rebinding(tree) for node in statements(part))
    for function in (node for node in functions if isinstance(node, FunctionNode)):
        nodes = list(children(function))
        names = {name for child in nodes if isinstance(child, ast.Global) for name in child.names}
        for child in nodes if names else ():
            targets = (
                child.targets
                if isinstance(child, ast.Assign)
                else [child.target]
                if isinstance(child, (ast.AugAssign, ast.AnnAssign))
                else []
            )
            parts = (part for t in targets for part in (t.elts if isinstance(t, ast.Tuple) else (t,)))
            for target in parts:
                if isinstance(target, ast.Name) and target.id in names:
                    how = _how(child, function)
                    found[target.id] = how if found.get(target.id, how) == how else "assigned"
    return found


def _how(statement: ast.AST, function: FunctionNode) -> str:
    if isinstance(statement, ast.AugAssign):
        return "counted"
    value = getattr(statement, "value", None)
    is_switch = isinstance(value, ast.Constant) and isinstance(value.value, bool) and is_generator(function)
    return "switched" if is_switch else "assigned"


@kept_by_node(4096, noted=by_asker)
def set_in_body(node: ast.ClassDef) -> Mapping[str, ast.expr]:
    """What the body of a class assigns to its variables at first."""
    found: dict[str, ast.expr] = {}
    for statement in (s for s in node.body if isinstance(s, ast.Assign)):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, statement.value)
    return found


@kept_by_node(4096, noted=by_asker)
def declared_in_body(node: ast.ClassDef) -> Mapping[str, ast.expr]:
    """The annotations of the variables of a class, the first of each: ``trainer: Trainer``."""
    declared = (statement for statement in reversed(node.body) if isinstance(statement, ast.AnnAssign))
    return {s.target.id: s.annotation for s in declared if isinstance(s.target, ast.Name)}


#: Modules that take the sizes of their parameters, and functions that take the size of a tensor.
_LAYERS: Final = frozenset({"Linear", "Embedding", "Conv1d", "Conv2d", "Conv3d", "LayerNorm"})
_MAKERS: Final = frozenset({"empty", "ones", "rand", "randn", "zeros"})


@kept_by_node(4096)
def _sizes_in(constructor: Definition) -> frozenset[str]:
    """The names that a constructor makes parameters of: ``nn.Linear(n, rank)``, ``nn.Parameter(zeros(rank, n))``."""
    found: set[str] = set()
    for call in (node for node in inside(constructor) if isinstance(node, ast.Call)):
        name = last_part(call.func)
        below = [inner for given in call.args for inner in calls_below(given)] if name == "Parameter" else []
        makers = [call] if name in _LAYERS else [inner for inner in below if last_part(inner.func) in _MAKERS]
        elements = (part for maker in makers for given in maker.args for part in _elements(given))
        found |= {part.id for part in elements if isinstance(part, ast.Name)}
    return frozenset(found)


def _is_positive(default: ast.expr | None) -> bool:
    """`rank: int = 8` is the rank of a matrix."""
    return (
        isinstance(default, ast.Constant)
        and isinstance(default.value, int)
        and default.value > 0
        and default.value is not True
    )


def is_rank_of_matrix(function: Definition, name: str) -> bool:
    """Is a parameter the rank of a matrix, by its default or by the parameters that a constructor makes of it?"""
    if _is_positive(defaults_of(function).get(name)):
        return True
    return getattr(function, "name", "") == "__init__" and name in _sizes_in(function)


def _elements(given: ast.expr) -> list[ast.expr]:
    return given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]


Stores = Sequence[tuple[FunctionNode, ast.expr]]


@kept_by_node(16384)
def attributes_in(function: ast.AST) -> frozenset[str]:
    """The names of the attributes that a function reads, of whatever object."""
    nodes = (node for node in inside(function) if isinstance(node, ast.Attribute))
    return frozenset(node.attr for node in nodes if isinstance(node.ctx, ast.Load))


@kept_by_class
def stores_in(node: ast.ClassDef) -> Mapping[str, Stores]:
    """`self.x = value` in the methods of a class, `__init__` first."""
    found: dict[str, list[tuple[FunctionNode, ast.expr]]] = {}
    methods = [m for m in node.body if isinstance(m, FunctionNode) and positional(m)]
    for method in sorted(methods, key=lambda m: m.name != "__init__"):
        for attribute, value in _stored_first(method).items():
            found.setdefault(attribute, []).append((method, value))
    return found


def stores_of(node: ast.ClassDef, attribute: str) -> Stores:
    """Those of one attribute."""
    note_stores(node, attribute)
    with unnoted(node):
        return stores_in(node).get(attribute, ())


def begins_empty(node: ast.ClassDef, attribute: str) -> bool:
    """Does the constructor of a class set an attribute to a collection that holds nothing yet?"""
    return any(method.name == "__init__" and _holds_nothing(value) for method, value in stores_of(node, attribute))


def _holds_nothing(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        made = last_part(value.func)
        return made in _COLLECTIONS and len(value.args) <= (made == "defaultdict") and not value.keywords
    return (isinstance(value, ast.Dict) and not value.keys) or (isinstance(value, ast.List) and not value.elts)


_COLLECTIONS: Final = frozenset({"dict", "list", "set", "defaultdict", "OrderedDict", "Counter", "deque"})


def _stored_first(method: FunctionNode) -> Mapping[str, ast.expr]:
    """What a method assigns to each attribute of its object at first."""
    this, found = first_name(method), dict[str, ast.expr]()
    for child in inside(method):
        if isinstance(child, ast.Assign):
            targets, value = child.targets, child.value
        elif isinstance(child, ast.AnnAssign) and child.value is not None:
            targets, value = [child.target], child.value
        else:
            continue
        for target in targets:
            for each, given in paired(target, value):
                for part in each.elts if each is target and isinstance(each, ast.Tuple) else [each]:
                    if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == this:
                        found.setdefault(part.attr, given)
    return found


@kept_by_node(4096)
def remade_in(method: FunctionNode) -> frozenset[str]:
    """The attributes that a method makes of what they hold, once: ``self.model = DDP(self.model)``. Not in a loop, nor
    under a test by which a second call would leave them alone: of them, or of another attribute that it sets."""
    stores, this = list(_stores_under(method.body, ())), first_name(method)
    written = {target for target, _, _ in stores}
    found, kept = set[str](), set[str]()
    for target, value, around in stores:
        if isinstance(value, ast.Call) and target in _dotted_below(value):
            asked = frozenset[str]().union(*map(_dotted_below, around))
            (kept if asked & (written | _ASKING) else found).add(target)
    return frozenset(path.partition(".")[2] for path in found - kept if path.partition(".")[0] == this)


#: Builtins that ask what an object is, or has become.
_ASKING = frozenset({"isinstance", "hasattr", "getattr", "type"})
_LOOP = ast.Name("isinstance")  # a second round is as a second call


def _stores_under(
    body: Sequence[ast.AST], around: tuple[ast.expr, ...]
) -> Iterator[tuple[str, ast.expr, tuple[ast.expr, ...]]]:
    """The assignments of a function to one place each, with the tests around, without functions in it."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield from ((dotted_ast(target), statement.value, around) for target in statement.targets)
        elif not isinstance(statement, _NESTED):
            test = statement.test if isinstance(statement, ast.If) else _LOOP if isinstance(statement, _LOOPS) else None
            yield from _stores_under(nested(statement), around if test is None else (*around, test))


_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _dotted_below(node: ast.AST) -> frozenset[str]:
    """The names and attributes that an expression reads."""
    return frozenset(dotted_ast(part) for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute)))


#: Methods of meters that record samples.
_ADDING = frozenset({"update", "add", "record", "accumulate", "__call__"})
_ADDED = re.compile(r"(^|_)(counts?|num\w*|n|samples|weights?)(_|$)")


@kept_by_class
def counts_of(node: ast.ClassDef) -> frozenset[str]:
    """The attributes that `update` adds a number of samples to which it is given, so that they are 0 on a rank that
    has had none; a number of calls is none."""
    found = set[str]()
    for method in node.body:
        if not isinstance(method, FunctionNode) or method.name not in _ADDING:
            continue
        given = {parameter.arg for parameter in parameters(method)}
        for child in inside(method):
            if isinstance(child, ast.AugAssign) and isinstance(child.op, ast.Add):
                target, added = child.target, getattr(child.value, "id", "")
                if isinstance(target, ast.Attribute) and added in given and _ADDED.search(added):
                    found.add(target.attr)
    return frozenset(found)


@kept_by_class
def collects(node: ast.ClassDef) -> dict[str, list[str]]:
    """The attributes that are lists which methods make longer by what they are given, ``self.rows.append(row)``, each
    with the names of those methods."""
    found = collections.defaultdict[str, list[str]](list)
    for method in node.body:
        if not isinstance(method, FunctionNode) or method.name == "__init__" or not positional(method):
            continue
        this, *given = [parameter.arg for parameter in positional(method)]
        for call in inside(method):
            if isinstance(call, ast.Call) and last_part(call.func) in ("append", "extend") and call.args:
                path = dotted_ast(call.func).split(".")
                if path[0] == this and path[2:3] in (["append"], ["extend"]) and _follows(method, call.args[0], given):
                    found[path[1]].append(method.name)
    return dict(found)


def _follows(method: FunctionNode, added: ast.expr, given: Sequence[str]) -> bool:
    """Is it one of these, or an element of a loop over one?"""
    names = set(given)
    for loop in inside(method):
        if isinstance(loop, ast.For) and names_in(loop.iter) & names:
            names |= names_in(loop.target)
    return bool(names_in(added) & names)


#: What a method calls the batch that it is given.
_BATCH: Final = re.compile(r"(^|_)(batch|inputs?|samples?|examples?)$")


@kept_by_class
def keyed_by_batches(node: ast.ClassDef) -> frozenset[str]:
    """The attributes that hold a dictionary with a key for each that the batches have: ``self.hits[name] += 1`` in a
    loop over ``zip(batch["dataset"], scores)``."""
    found = set[str]()
    for method in node.body:
        if isinstance(method, FunctionNode) and positional(method):
            found.update(_keyed_in(method, first_name(method)))
    return frozenset(found)


def _keyed_in(method: FunctionNode, this: str) -> Iterator[str]:
    entries = [n for n in inside(method) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Attribute)]
    own = [n for n in entries if isinstance(n.value, ast.Attribute) and getattr(n.value.value, "id", "") == this]
    if not own:
        return
    batches = {parameter.arg for parameter in parameters(method) if _BATCH.search(parameter.arg)}
    loops = [n for n in inside(method) if isinstance(n, ast.For)]
    keys = {name for loop in loops for name in _names_of_fields(loop.target, loop.iter, batches)}
    for entry in own:
        if getattr(entry.slice, "id", "") in keys or _is_field(entry.slice, batches):
            assert isinstance(entry.value, ast.Attribute)
            yield entry.value.attr


def _is_field(node: ast.expr, batches: set[str]) -> bool:
    """``batch["dataset"]``, ``batch["dataset"][i]``"""
    while isinstance(node, ast.Subscript) and isinstance(node.value, ast.Subscript):
        node = node.value
    named = isinstance(node, ast.Subscript) and isinstance(getattr(node.slice, "value", None), str)
    return named and isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in batches


def _names_of_fields(target: ast.expr, over: ast.expr, batches: set[str]) -> Iterator[str]:
    """The names that a loop binds to the entries of a batch's field."""
    while isinstance(over, ast.Call) and getattr(over.func, "id", "") == "enumerate" and over.args:
        over, target = over.args[0], target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
    if isinstance(over, ast.Call) and getattr(over.func, "id", "") == "zip" and isinstance(target, ast.Tuple):
        pairs = list(zip(target.elts, over.args, strict=False))
    else:
        pairs = [(target, over)]
    yield from (part.id for part, of in pairs if isinstance(part, ast.Name) and _is_field(of, batches))


@kept_by_class
def entering(node: ast.ClassDef) -> Mapping[str, tuple[FunctionNode, ...]]:
    """The methods that add a key to a dictionary in an attribute under a condition."""
    found: dict[str, tuple[FunctionNode, ...]] = {}
    for method in node.body:
        if isinstance(method, FunctionNode) and positional(method):
            for name in sorted(_entered_in(method, first_name(method))):
                found[name] = (*found.get(name, ()), method)
    return found


def _entered_in(method: FunctionNode, this: str) -> set[str]:
    branches = (n for n in inside(method) if isinstance(n, ast.If))
    entries = (n for branch in branches for n in children(branch) if isinstance(n, ast.Subscript))
    own = (n.value for n in entries if isinstance(n.slice, ast.Constant) and isinstance(n.value, ast.Attribute))
    return {attribute.attr for attribute in own if getattr(attribute.value, "id", "") == this}


@kept_by_node(1024)
def given_by_name(node: ast.ClassDef) -> frozenset[str]:
    """The names of all arguments that the methods of a class give by name."""
    methods = [m for m in node.body if isinstance(m, FunctionNode)]
    below = (child for method in methods for child in children(method))
    return frozenset(child.arg for child in below if isinstance(child, ast.keyword) and child.arg)


@kept_by_node(4096)
def stored_by(method: Definition) -> dict[str, None]:
    """The attributes of its first argument that a method assigns, in source order."""
    this = first_name(method)
    targets = (target for node in inside(method) for target in _targets(node))
    parts = (part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else (target,)))
    names = (p for p in parts if isinstance(p, ast.Attribute) and isinstance(p.value, ast.Name) and p.value.id == this)
    return dict.fromkeys(part.attr for part in names)


def plainly_kept(of: ast.ClassDef, constructor: FunctionNode, what: str) -> dict[str, str]:
    """The parameters from which a constructor computes an attribute (``self.runs = main or shared``), and which it
    keeps as they are in another one that nothing else sets (``self.shared = shared``): that one by the parameter."""
    values = [value for method, value in stores_of(of, what) if method is constructor]
    used = {name for value in values if not isinstance(value, ast.Name) for name in names_in(value)}
    given = {parameter.arg for parameter, _ in defaults(constructor.args)}
    used = {name for name in used & given if not assigned_in(constructor, name)}
    kept = ((name, attribute) for name in used for attribute in _attributes_set_to(constructor).get(name, ()))
    return {name: attribute for name, attribute in kept if len(stores_of(of, attribute)) == 1}


@kept_by_node(4096)
def _attributes_set_to(method: FunctionNode) -> Mapping[str, Sequence[str]]:
    """The attributes of its object that a method sets to a name as it is, by that name."""
    found: dict[str, list[str]] = {}
    for attribute, value in _stored_first(method).items():
        if isinstance(value, ast.Name):
            found.setdefault(value.id, []).append(attribute)
    return found


def refusals(of: ast.ClassDef, constructor: FunctionNode) -> list[ast.stmt]:
    """The statements of a constructor, and of methods that it calls without arguments, which raise for settings that
    it alone stores: ``if self.sharded and self.compiled: raise ValueError(...)``."""
    this = first_name(constructor)
    lines: list[ast.stmt] = []
    for line in constructor.body:
        called = _own_method(of, line, this)
        lines += [line] if called is None else called.body
    return [line for line in lines if isinstance(line, ast.If) and _refuses(of, line, this)]


def _own_method(of: ast.ClassDef, line: ast.stmt, this: str) -> FunctionNode | None:
    """The method that a ``self.check()`` calls."""
    call = line.value if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call) else None
    func = call.func if call is not None and not call.args and not call.keywords else None
    if not isinstance(func, ast.Attribute) or getattr(func.value, "id", "") != this:
        return None
    methods = (m for m in of.body if isinstance(m, FunctionNode) and m.name == func.attr)
    return next((m for m in methods if first_name(m) == this), None)


def _refuses(of: ast.ClassDef, line: ast.If, this: str) -> bool:
    if line.orelse or not isinstance(line.body[-1], ast.Raise):
        return False
    nodes = list(walk(line.test))
    if {node.id for node in nodes if isinstance(node, ast.Name)} != {this} or any(map(_calls, nodes)):
        return False
    own = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    return all(method.name == "__init__" for attribute in own for method, _ in stores_of(of, attribute))


def _calls(node: ast.AST) -> bool:
    return isinstance(node, (ast.Call, ast.Await, ast.NamedExpr))


def _targets(node: ast.AST) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []


def returns_pairs(function: ast.AST) -> bool:
    values = [node.value for node in statements(function) if isinstance(node, ast.Return)]
    return all(not isinstance(value, ast.Tuple) or len(value.elts) == 2 for value in values)


#: Classes whose objects are there, as annotations name them, with their parameters or without.
_CONTAINERS = frozenset(
    {"dict", "list", "tuple", "set", "frozenset", "str", "bytes", "int", "float", "bool", "Mapping", "MutableMapping",
     "OrderedDict", "defaultdict", "Sequence", "Iterable", "Iterator", "Tensor", "Module", "Path"}
)  # fmt: skip


#: Annotations that do not say that something is there.
_PERHAPS_NONE = frozenset({"Any", "Optional", "Union", "Literal", "Annotated", "NoReturn", "Never", "TypeVar", "Self"})


@kept_by_node(8192)
def least_statements(function: ast.AST) -> int:
    """How many statements one evaluation of a function runs at least, if it goes through all of it."""
    found, stack = 0, nested(function)
    while stack:
        node = stack.pop()
        found += isinstance(node, ast.stmt)
        if not isinstance(node, (FunctionNode, ast.ClassDef)):
            stack += nested(node)
    return max(found, 1)


@functools.lru_cache(maxsize=8192)
def is_never_none(function: ast.AST) -> bool:
    """Does the annotation say that something is returned: ``-> Dict[str, Any]``, not ``-> Optional[...]``?"""
    returns = getattr(function, "returns", None)
    of = returns.value if isinstance(returns, ast.Subscript) else returns
    name = last_part(of)
    is_class = len(name) > 1 and name[0].isupper() and not name.isupper() and name not in _PERHAPS_NONE
    return is_class or name in _CONTAINERS or name.lower() in _CONTAINERS


@kept_by_node(8192)
def made_anew(loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
    """Names that a round of a loop sets and never looks at before: what the last round left in them decides nothing."""
    round_, known = _Round(), set[str]()
    if isinstance(loop, ast.While):
        round_.look(loop.test, known)
    else:
        round_.bind(loop.target, known)
    round_.follow(loop.body, known)
    return frozenset(round_.made - round_.looked)


class _Round:
    """One round of a loop: the names that it may set, and those that it may look at before it has set them. `known`:
    those that are set for certain where a statement begins."""

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.looked: set[str] = set()

    def look(self, node: ast.AST, known: set[str]) -> None:
        self.looked |= names_in(node) - known

    def bind(self, target: ast.expr, known: set[str]) -> None:
        for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            if isinstance(part, ast.Name):
                self.made.add(part.id)
                known.add(part.id)
            else:
                self.look(part, known)

    def follow(self, body: Sequence[ast.stmt], known: set[str]) -> bool:
        """Goes through a block, and adds to `known` what it sets; whether its end can be reached."""
        reached = True
        for statement in body:
            reached = self._one(statement, known) and reached
        return reached

    def _one(self, statement: ast.stmt, known: set[str]) -> bool:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            self.look(statement.value, known)
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                self.bind(target, known)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                self.look(item.context_expr, known)
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, known)
            return self.follow(statement.body, known)
        elif isinstance(statement, ast.If):
            self.look(statement.test, known)
            return self._either([statement.body, statement.orelse], known)
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            self.look(statement.iter, known)
            inner = set(known)
            self.bind(statement.target, inner)
            self.follow(statement.body, inner)
            self.follow(statement.orelse, set(known))
        elif isinstance(statement, ast.Try):
            self.follow(statement.finalbody, set(known))
            for named in (handler.type for handler in statement.handlers if handler.type is not None):
                self.look(named, known)
            handlers = [handler.body for handler in statement.handlers]
            return self._either([[*statement.body, *statement.orelse], *handlers], known)
        else:
            self.look(statement, known)
        return not isinstance(statement, (ast.Return, ast.Raise, ast.Continue, ast.Break))

    def _either(self, ways: list[list[ast.stmt]], known: set[str]) -> bool:
        """One of several blocks: what all of them set whose ends can be reached is set."""
        ends: list[set[str]] = []
        for body in ways:
            inner = set(known)
            if self.follow(body, inner):
                ends.append(inner)
        known |= set.intersection(*ends) if ends else set()
        return bool(ends)


def calls_in(body: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    for statement in body:
        yield from calls_within(statement)


@kept_by_node(8192)
def calls_within(statement: ast.stmt) -> tuple[ast.Call, ...]:
    return tuple(child for child in children(statement) if isinstance(child, ast.Call))

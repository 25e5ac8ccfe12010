"""What each definition of a file names: the functions, classes and methods that it may run, and how it finds others.

A *body* is what runs together: the statements of a module, those below its test for whether it is the program, a class
outside of its methods, a function at the top of the module, a method. Functions inside of functions belong to the body
around them. Nothing is resolved here: a table depends on the text of its file alone.
"""

from __future__ import annotations

import ast
import bisect
import collections
import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from ddp_lint.project.parts import kept_by_node
from ddp_lint.project.results import OfNames
from ddp_lint.source.imports import dotted_ast, folders_put_on_path, last_part
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.source.syntax import FunctionNode, below, decorators, first_line, main_guards, statements, walk
from ddp_lint.source.torch_versions import holds_today

#: The names of the bodies of a module, and of what it does when it is started.
MODULE, PROGRAM = "", "__main__"
#: What a body looks things up in by names that are not in the code: its own module, and an object of any kind.
OWN_MODULE, ANY_OBJECT = "globals()", "getattr()"
#: The first part of what a method takes from the classes that its own inherits from: ``super().step``.
SUPER = "super"
#: Calls that ask whether something is an object of a class, and make none.
_ASKS = frozenset({"isinstance", "issubclass"})
#: Calls that import a module by its name.
_IMPORTS = frozenset(
    {"import_module", "__import__", "run_module", "run_path", "spec_from_file_location", "iter_modules"}
)
#: Words of files in which another package finds modules and classes of the project by names in settings or commands,
#: and what they are there, not ``v_target_old`` or ``allocate(``.
SETTINGS_WORDS = (
    "_target_", "locate(", "hydra", "class_path", "LightningCLI", "jsonargparse", "custom_imports", "user_dir",
)  # fmt: skip
BY_SETTINGS = re.compile(
    r"(?<!\w)(?:(?:_target_|class_path|custom_imports|user_dir)(?!\w)|locate\()|hydra|LightningCLI|jsonargparse"
)
#: Methods by which a module adds something to what it has from elsewhere: ``ALL_NORMS.append(RMSNorm)``.
_ADDING = frozenset({"add", "append", "extend", "insert", "register", "setdefault", "update"})
#: Calls, and attributes, by which a module finds what it has itself.
_OF_ITSELF = frozenset({"globals", "eval", "exec", "locals", "vars", "Fire"})
#: Strings that name something: ``models.resnet``, ``resnet50``, ``pkg.module:function``.
_NAME = re.compile(r"[A-Za-z_][\w./:-]*")
#: Strings in which a name is put: ``"{}Loss".format(kind)``, ``"train_%s" % kind``, ``"models.{}".format(kind)``.
_TEMPLATE = re.compile(r"([\w.]*)(?:\{\w*\}|%s)([\w.]*)")
#: How a file that imports modules by computed names gets these from folders, gets all that such a module has, and
#: imports what lies beside it.
_LISTS_FOLDERS = re.compile(r"\b(?:listdir|scandir|r?glob|iterdir|iter_modules|walk_packages|os\.walk)\b")
_TAKES_ALL = re.compile(
    r"\bvars\(|(?:(?<! in )|\bfor \w+ in )\bdir\(|\bglobals\(\)(?!, *locals\b)|__dict__|\w\.__all__\b"
)
_BESIDE = re.compile(r"__package__|(?<!getLogger\()\b__name__(?! ==)|(?:import_module|__import__)\(\s*f?[\"']\.")
#: How code gets all classes that there are of a kind, wherever it is.
_TAKES_KINDS = re.compile(r"getmembers|__subclasses__|__init_subclass__")
_PART = re.compile(r"[\w.]+")
#: A longer string is a text.
_LONGEST = 120
#: A base or a decorator that is no name.
_UNNAMED = "?"
_BLOCKS = ("body", "orelse", "finalbody")
#: Methods that give back the object that they are called on.
_MOVING = frozenset({"to", "cuda", "cpu"})
_PATTERNS = (ast.MatchAs, ast.MatchStar)
_NONE_MADE: Mapping[str, str] = {}


@dataclasses.dataclass(slots=True)
class Names:
    """What one body names.

    `dotted`: chains of names, as `losses.total`, `self.step`, and `super.step` of a base. `attributes`: those of values
    that are no names, ``make().step``. `on_made`: those of a variable that the function gives nothing but an object,
    each with the name of what it calls for that, `Trainer:load`. `strings`: constants that may name a definition or a
    module, as they are. `composed`: what names that it puts together have in them, ``Loss`` of ``f"{kind}Loss"``, ""
    for anything. `imports`: what it imports, relative with its dots, ``a.*`` for a star. `looked_up`: where it takes
    something by a name that the code does not have (a dotted name, OWN_MODULE or ANY_OBJECT). `imports_computed`: it
    imports modules by such names, or the file of the module has another package do it.
    """

    dotted: set[str] = dataclasses.field(default_factory=set)
    attributes: set[str] = dataclasses.field(default_factory=set)
    on_made: set[str] = dataclasses.field(default_factory=set)
    strings: set[str] = dataclasses.field(default_factory=set)
    composed: set[str] = dataclasses.field(default_factory=set)
    imports: set[str] = dataclasses.field(default_factory=set)
    looked_up: set[str] = dataclasses.field(default_factory=set)
    imports_computed: bool = False


@dataclasses.dataclass(slots=True)
class FileNames(OfNames):
    """The bodies of a file by their names (`Class.method` of a method), the bases of its classes, the decorators of its
    definitions, what each name is imported as, whether the module does anything when it is imported, its variables, by
    what it makes those that it gives nothing but an object, and what it puts on the path of modules. `lists`,
    `takes_all`, `beside`: where it imports modules by computed names, the names are of files in folders, it takes all
    that a module has, and modules beside it may be meant. `takes_kinds`: it takes all classes of a kind."""

    bodies: dict[str, Names] = dataclasses.field(default_factory=dict)
    bases: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    decorators: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    imported_as: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    acts: bool = False
    assigned: set[str] = dataclasses.field(default_factory=set)
    made: dict[str, str] = dataclasses.field(default_factory=dict)
    on_path: tuple[str, ...] = ()
    lists: bool = False
    takes_all: bool = False
    beside: bool = False
    takes_kinds: bool = False


def naming(text: str) -> str:
    """What a text names, for a result that depends on nothing else of it (`parts.TESTS`)."""
    found = names_of(text)
    if found is None:
        return ""
    bodies = [
        (
            name,
            *map(sorted, (b.dotted, b.attributes, b.on_made, b.strings, b.composed, b.imports, b.looked_up)),
            b.imports_computed,
        )
        for name, b in found.bodies.items()
    ]
    decorated = {name: sorted(each) for name, each in found.decorators.items()}
    how = found.lists, found.takes_all, found.beside, found.takes_kinds
    others = found.imported_as, found.acts, sorted(found.assigned), sorted(found.made.items()), found.on_path, how
    return repr((bodies, found.bases, decorated, *others))


@functools.lru_cache(maxsize=2)  # `naming` and who uses the table ask for the same text, one after the other
def names_of(text: str) -> FileNames | None:
    """The table of a text; None where Python cannot parse it."""
    try:
        tree = parse(text)
    except CannotParse:
        return None
    found = FileNames(on_path=folders_put_on_path(text))
    _Reader(found).read(tree)
    if any(body.imports_computed for body in found.bodies.values()):
        found.lists, found.takes_all, found.beside = (
            each.search(text) is not None for each in (_LISTS_FOLDERS, _TAKES_ALL, _BESIDE)
        )
    found.takes_kinds = _TAKES_KINDS.search(text) is not None
    found.bodies[MODULE].imports_computed |= BY_SETTINGS.search(text) is not None
    return found


def body_at(tree: ast.Module, line: int) -> str:
    """The name of the body that a line of a file is in."""
    firsts, spans = _spans(tree)
    place = bisect.bisect_right(firsts, line) - 1
    # A method lies in its class, which begins before it.
    while place >= 0:
        last, name, around = spans[place]
        if line <= last:
            return name
        place = around
    return MODULE


@kept_by_node(32)
def _spans(tree: ast.Module) -> tuple[list[int], list[tuple[int, str, int]]]:
    """The first lines of the bodies of a file, in order, and of each the last line, the name, and the place of the body
    around it, -1 for none."""
    found: list[tuple[int, int, str]] = []
    for guard in main_guards(tree):
        if not guard.orelse:
            found.append((guard.lineno, guard.end_lineno or guard.lineno, PROGRAM))
    for node in _definitions(tree):
        found.append((first_line(node), node.end_lineno or node.lineno, node.name))
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, FunctionNode):
                last = method.end_lineno or method.lineno
                found.append((first_line(method), last, f"{node.name}.{method.name}"))
    found.sort(key=lambda each: (each[0], -each[1]))
    spans: list[tuple[int, str, int]] = []
    open_at: list[int] = []
    for first, last, name in found:
        while open_at and spans[open_at[-1]][0] < first:
            open_at.pop()
        spans.append((last, name, open_at[-1] if open_at else -1))
        open_at.append(len(spans) - 1)
    return [first for first, _, _ in found], spans


def _definitions(tree: ast.Module) -> list[FunctionNode | ast.ClassDef]:
    """The functions and classes at the top of a module, those below a condition of it too."""
    found: list[FunctionNode | ast.ClassDef] = []
    stack: list[ast.AST] = [*tree.body]
    while stack:
        node = stack.pop()
        if isinstance(node, (FunctionNode, ast.ClassDef)):
            found.append(node)
        else:
            stack += [inner for inner in below(node) if isinstance(inner, (ast.stmt, ast.excepthandler))]
    return found


class _Reader:
    """Fills the table of one file."""

    def __init__(self, table: FileNames) -> None:
        self._table = table

    def read(self, tree: ast.Module) -> None:
        self._body(MODULE)
        guards = {id(guard) for guard in main_guards(tree) if not guard.orelse}
        for node in statements(tree):
            self._bind(node)
        self._table.made = _made_in(tree)
        self._statements(tree.body, MODULE, guards)

    def _body(self, name: str) -> Names:
        return self._table.bodies.setdefault(name, Names())

    def _bind(self, node: ast.AST) -> None:
        """Note what the names of an import are, wherever it stands."""
        for local, target in _bound(node):
            targets = self._table.imported_as.setdefault(local, [])
            if target not in targets:
                targets.append(target)

    def _statements(self, nodes: Iterable[ast.AST], body: str, guards: set[int]) -> None:
        """The statements of a module: what it does itself, and its definitions, also below a condition."""
        stack = [(node, body) for node in nodes]
        while stack:
            node, around = stack.pop()
            if isinstance(node, FunctionNode):
                self._function(node, node.name, around)
            elif isinstance(node, ast.ClassDef):
                self._class(node, around)
            elif id(node) in guards and isinstance(node, ast.If):
                self._body(PROGRAM)
                stack += [(inner, PROGRAM) for inner in node.body]
            elif isinstance(node, ast.If) and last_part(node.test) == "TYPE_CHECKING":
                stack += [(inner, around) for inner in node.orelse]  # no run imports what is for the types alone
            elif isinstance(node, ast.If) and (taken := holds_today(node.test)) is not None:
                stack += [(inner, around) for inner in (node.body if taken else node.orelse)]
            elif isinstance(node, (ast.excepthandler, ast.match_case)) or any(getattr(node, b, None) for b in _BLOCKS):
                self._table.acts |= around == MODULE and isinstance(node, (ast.For, ast.While, ast.With))
                stack += [(inner, around) for inner in below(node)]
            else:
                self._table.acts |= around == MODULE and _acts(node)
                self._read(node, self._body(around))

    def _class(self, node: ast.ClassDef, around: str) -> None:
        body = self._body(node.name)
        self._decorated(node, node.name, around)
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        self._table.bases.setdefault(node.name, []).extend(dotted_ast(base) or _UNNAMED for base in bases)
        # A base is named by the table of bases alone: inheriting from a class makes no object of it.
        for part in (*(base for base in bases if not dotted_ast(base)), *node.keywords):
            self._read(part, body)
        for inner in node.body:
            if isinstance(inner, FunctionNode):
                self._function(inner, f"{node.name}.{inner.name}", node.name)
            else:
                self._read(inner, body)

    def _function(self, node: FunctionNode, name: str, around: str) -> None:
        body, own, made = self._body(name), _own_variables(node), _made_in(node)
        self._decorated(node, name, around)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self._read(default, self._body(around))
        computed = body.imports_computed
        for statement in node.body:
            self._read(statement, body, own, made)
        body.imports_computed &= computed or not _asks_versions(node)

    def _decorated(self, node: FunctionNode | ast.ClassDef, name: str, around: str) -> None:
        self._table.decorators.setdefault(name, set()).update(dotted_ast(each) or _UNNAMED for each in decorators(node))
        for decorator in node.decorator_list:
            self._read(decorator, self._body(around))

    def _read(
        self, node: ast.AST, body: Names, own: frozenset[str] = frozenset(), made: Mapping[str, str] = _NONE_MADE
    ) -> None:
        """Add what is below a node to a body; `own`: variables of the function, whose names are of nothing else;
        `made`: by what it makes those that it gives nothing but an object."""
        stack = [node]
        while stack:
            each = _name_of_own(stack.pop())
            instead = _read_instead(each, body, own, made)
            if instead is not None:
                stack += instead
                continue
            if isinstance(each, ast.Name):
                if each.id not in own:
                    body.dotted.add(each.id)
                if body is self._table.bodies[MODULE] and not isinstance(each.ctx, ast.Load):
                    self._table.assigned.add(each.id)
            elif isinstance(each, ast.Constant):
                if isinstance(each.value, str) and len(each.value) < _LONGEST:
                    _add_text(each.value, body)
            elif isinstance(each, (ast.JoinedStr, ast.BinOp)):
                parts = each.values if isinstance(each, ast.JoinedStr) else [each.left, each.right]
                texts = filter(_is_part, (n.value for n in parts if isinstance(n, ast.Constant)))
                body.composed.update(part for text in texts for part in text.split(".") if part)
            elif isinstance(each, (ast.Import, ast.ImportFrom)):
                body.imports.update(target for _, target in _bound(each))
            elif isinstance(each, ast.Call):
                _looks_up(each, body)
                if last_part(each.func) in _ASKS and len(each.args) > 1:
                    stack += [each.args[0], *_not_named(each.args[1])]
                    continue
            stack += below(each)


def _read_instead(node: ast.AST, body: Names, own: frozenset[str], made: Mapping[str, str]) -> Sequence[ast.AST] | None:
    """What is left to read of a docstring, of a branch for an old torch, and of a chain of attributes, which is added;
    None for any other node."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return []
    if isinstance(node, ast.If) and (taken := holds_today(node.test)) is not None:
        return node.body if taken else node.orelse
    return _of_chain(node, body, own, made) if isinstance(node, ast.Attribute) else None


def _of_chain(node: ast.Attribute, body: Names, own: frozenset[str], made: Mapping[str, str]) -> list[ast.AST]:
    """Add a chain of attributes to a body; what is left to read below it."""
    parts: list[str] = []
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    if "__dict__" in parts:
        body.looked_up.add(dotted_ast(node).partition(".__dict__")[0] or OWN_MODULE)
    if isinstance(value, ast.Name) and value.id not in own:
        body.dotted.add(".".join([value.id, *reversed(parts)]))
        return []
    if isinstance(value, ast.Name) and value.id in made:
        body.on_made.add(f"{made[value.id]}:{parts.pop()}")
    of_base = isinstance(value, ast.Call) and last_part(value.func) == "super"
    if of_base:
        body.dotted.add(f"{SUPER}.{parts.pop()}")
    body.attributes.update(parts)
    return [] if of_base or isinstance(value, ast.Name) else [value]


def _name_of_own(node: ast.AST) -> ast.AST:
    """The name by which code takes something of its own module, where it has the name: ``globals()["__file__"]``."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)):
        return node
    of = node.value
    is_own = isinstance(of, ast.Call) and isinstance(of.func, ast.Name) and of.func.id == "globals"
    return node.slice if is_own else node


def _not_named(classes: ast.expr) -> list[ast.expr]:
    """What is no name, of the classes that a call asks for: ``(Head, *others())``."""
    parts = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    return [part for part in parts if not dotted_ast(part)]


def _looks_up(call: ast.Call, body: Names) -> None:
    """Note how a call finds something by a name that the code does not have."""
    name = last_part(call.func)
    if name in _IMPORTS and not (call.args and isinstance(call.args[0], ast.Constant)):
        body.imports_computed = True
    elif name == "getattr" and len(call.args) > 1 and not _is_value(call):
        of, attribute = dotted_ast(call.args[0]), call.args[1]
        body.looked_up.add(of or ANY_OBJECT)
        # The name itself is a string somewhere, or put together from some.
        if isinstance(attribute, ast.Call) and not of:
            body.composed.add("")
    elif name in _OF_ITSELF and not isinstance(call.func, ast.Attribute):
        body.looked_up.add(dotted_ast(call.args[0]) or OWN_MODULE if name == "vars" and call.args else OWN_MODULE)
        if name in ("eval", "exec"):
            body.looked_up.add(ANY_OBJECT)
    elif name == "Fire":
        body.looked_up.add(OWN_MODULE)


def _asks_versions(function: FunctionNode) -> bool:
    """Whether a function imports packages for their versions alone: ``Version(import_module(name).__version__)``."""
    imported, kept, versions = set[int](), dict[str, int](), set[int]()
    for node in walk(function):
        if isinstance(node, ast.Call) and last_part(node.func) in _IMPORTS:
            imported.add(id(node))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            kept[node.targets[0].id] = id(node.value)
        if isinstance(node, ast.Attribute) and node.attr == "__version__":
            versions.add(id(node.value))
        elif isinstance(node, ast.Call) and last_part(node.func) == "getattr" and _is_of_version(node):
            versions.add(id(node.args[0]))
    read = (n for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    others = {name.id for name in read if id(name) not in versions}
    versions |= {value for name, value in kept.items() if name not in others}
    return imported <= versions


def _is_of_version(call: ast.Call) -> bool:
    return len(call.args) > 1 and isinstance(call.args[1], ast.Constant) and call.args[1].value == "__version__"


def _is_value(call: ast.Call) -> bool:
    """Whether `getattr` has the name of what it takes, or takes no function: ``getattr(self, kind, 0)``."""
    default = call.args[2] if len(call.args) > 2 else ast.Constant(None)
    return isinstance(call.args[1], ast.Constant) or (isinstance(default, ast.Constant) and default.value is not None)


def _is_part(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) < _LONGEST and _PART.fullmatch(value) is not None


def _add_text(text: str, body: Names) -> None:
    """Add a string that may name something, or in which something is put that makes it a name."""
    if _NAME.fullmatch(text):
        body.strings.add(text)
    template = _TEMPLATE.fullmatch(text)
    if template is not None:
        body.composed.update(part for group in template.groups() for part in group.split(".") if part)


def _bound(node: ast.AST) -> list[tuple[str, str]]:
    """The names that an import binds, each with what it is; a star binds "*"."""
    if isinstance(node, ast.Import):
        whole = [
            (alias.name.partition(".")[0], alias.name.partition(".")[0]) for alias in node.names if not alias.asname
        ]
        # ``import package.module`` binds the package, and runs the module as well.
        return [*whole, *((alias.asname or "", alias.name) for alias in node.names)]
    if isinstance(node, ast.ImportFrom):
        base = "." * node.level + (f"{node.module}." if node.module else "")
        return [(alias.asname or alias.name, base + alias.name) for alias in node.names]
    return []


def _own_variables(function: FunctionNode) -> frozenset[str]:
    """The parameters of a function, and the names that it assigns without declaring them global."""
    found, shared = set[str](), set[str]()
    stack: list[ast.AST] = [function.args, *function.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            shared.update(node.names)
        stack += below(node)
    return frozenset(found - shared - {"self", "cls"})


def _made_in(scope: FunctionNode | ast.Module) -> dict[str, str]:
    """The variables of a function or a module that get nothing but one object, each with the name of what is called for
    that: ``trainer = Trainer(model).to(device)``."""
    stores, made = collections.Counter[str](), dict[str, str]()
    stack: list[ast.AST] = [*scope.body] if isinstance(scope, ast.Module) else [scope.args, *scope.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (name := _called_for(node.value)):
            made[node.targets[0].id] = name
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stores[node.id] += 1
        elif isinstance(node, (ast.arg, ast.alias, ast.ExceptHandler, ast.Global, ast.Nonlocal, *_PATTERNS)):
            stores.update(2 * _bound_otherwise(node))
        if not isinstance(scope, ast.Module) or not isinstance(node, (FunctionNode, ast.ClassDef)):
            stack += below(node)
        else:
            stores.update(2 * [name for each in walk(node) if isinstance(each, ast.Global) for name in each.names])
    return {name: call for name, call in made.items() if stores[name] == 1}


def _bound_otherwise(node: ast.AST) -> list[str]:
    """The names that a node binds that is no assignment."""
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    name = getattr(node, "asname", None) or getattr(node, "name", None) or getattr(node, "arg", None)
    return [name] if name else []


def _called_for(value: ast.expr) -> str:
    """The name of what is called for an object, which is put on a device there: ``Net().cuda()``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _MOVING:
        value = value.func.value
    return dotted_ast(value.func) if isinstance(value, ast.Call) else ""


def _acts(node: ast.AST) -> bool:
    """Whether a statement of a module is a call for what it does: not one that adds a definition to a list."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and not adds(call)


def adds(call: ast.Call) -> bool:
    """Whether a call adds something to what a module has: ``ALL_NORMS.append(RMSNorm)``."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in _ADDING

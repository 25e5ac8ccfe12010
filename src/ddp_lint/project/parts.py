"""The parts of a file that a result can depend on: the body of each function, and all the rest, the outline.

A result that has looked at two functions of another file holds as long as these two and the outline are as they were.
What was looked at is noted by the syntax tree itself: a function of a module or of a class whose `body` is read.
Comments, empty lines, docstrings and places in the file are no part of anything; a result that uses them depends on the
whole text. Of a docstring a part has what it says of the classes of parameters.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

from ddp_lint.source.syntax import FunctionNode, below, first_line, gives_object, statements

F = TypeVar("F", bound=Callable[..., Any])

#: A string or a comment.
_APART = re.compile(
    r'''"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'''
    r"""|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"""
    r"""|"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'|\#[^\n]*""",
    re.DOTALL,
)
#: Questions about a file that depend on a part of its text, as ``kind:what:path``: its parts by their names (``*`` for
#: all, ``Class.*`` for those of a class); whether it has some words, or shows something; what one of `TESTS` finds in
#: it; what the methods of a class assign to an attribute (``Class.attribute``), which methods of their own object they
#: call (``Class.``), and what one of `DERIVED` says of a class (``counts.Class.``).
PART, SAYS, SHOWS, TESTED, STORES, CALLS, SUMS = "part", "says", "shows", "tested", "stores", "calls", "sums"
OF_FILE = frozenset({PART, SAYS, SHOWS, TESTED, STORES, CALLS, SUMS})
#: What else of a text is used, by name: the module and the function that says it ('' for none of these). A
#: kept result may name one before its module is imported.
TESTS: Final[Mapping[str, tuple[str, str]]] = {
    "compiles": ("ddp_lint.tensors.compiled", "compiling"),
    "equalises": ("ddp_lint.divergence.lengths", "equalising"),
    "copes": ("ddp_lint.divergence.lengths", "coping"),
    "dispatches": ("ddp_lint.divergence.lengths", "dispatching"),
    "seeds": ("ddp_lint.divergence.draws", "seeding"),
    "starts": ("ddp_lint.launch.started", "starting"),
    "words": ("ddp_lint.launch.texts", "holding_words"),
    "calls": ("ddp_lint.launch.texts", "holding_calls"),
    "options": ("ddp_lint.launch.options", "holding_options"),
    "names": ("ddp_lint.launch.reached.names", "naming"),
}
#: Likewise, what is worked out of all methods of a class and is small next to them (`kept_by_class`).
DERIVED: Final[Mapping[str, tuple[str, str]]] = {
    name: ("ddp_lint.divergence.definitions", name)
    for name in ("collects", "counts_of", "entering", "handing_over", "keyed_by_batches", "stores_in")
}
#: What a function has that may bind names of its module.
_REBINDS = "global "
#: The outline's own name among the parts of a file, and what ends the beginning of many names.
OUTLINE, ALL = "", "*"


def file_of(question: str) -> str | None:
    """The file, by its path below the root, whose content a question is about; None where it is about none."""
    kind, _, rest = question.partition(":")
    return rest if kind == "file" else rest.partition(":")[2] if kind in OF_FILE else None


class Basis:
    """What a kept result depends on: questions, and what other results depend on; `stale` once one has another answer.
    It is separate from the result, which need not live as long."""

    __slots__ = ("asked", "stale")

    def __init__(self, asked: set[Asked]) -> None:
        self.asked = asked
        self.stale = False


#: A question, or what a kept result depends on.
Asked: TypeAlias = "str | Basis"


class Recorder:
    """Where questions are recorded, if they are."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked: set[Any] | None = None


def _body(node: ast.AST) -> list[ast.stmt]:
    fields = node.__dict__
    asked = fields["recorder"].asked
    if asked is not None:
        asked.add(fields["question"])
    body: list[ast.stmt] = fields["body"]
    return body


class FunctionPart(ast.FunctionDef):
    """A function whose body is a part: who reads it is noted."""

    __slots__ = ()
    body = property(_body)


class AsyncFunctionPart(ast.AsyncFunctionDef):
    """The same for a coroutine."""

    __slots__ = ()
    body = property(_body)


# What names a node by its type names it as Python does.
FunctionPart.__name__, AsyncFunctionPart.__name__ = "FunctionDef", "AsyncFunctionDef"
#: Types of nodes, each with the one of a part.
PART_OF: Final[Mapping[type[ast.AST], type[Any]]] = {
    ast.FunctionDef: FunctionPart,
    ast.AsyncFunctionDef: AsyncFunctionPart,
}
_PARTS = frozenset(PART_OF.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """Digests of the parts of one file by their names, the outline's among them."""

    digests: dict[str, str]

    def digest_of(self, names: Iterable[str]) -> str:
        """One for several parts, whichever of them there are, by names and beginnings of names (`Class.*`); always
        with the outline."""
        found = {name: self.digests.get(name, "") for name in (OUTLINE, *names) if not name.endswith(ALL)}
        beginnings = tuple(name.removesuffix(ALL) for name in names if name.endswith(ALL))
        if beginnings:
            found |= {name: digest for name, digest in self.digests.items() if name.startswith(beginnings)}
        return _digest("\n".join(f"{name}={digest}" for name, digest in sorted(found.items())))


def parts_of(
    tree: ast.Module, text: str, besides: str, recorder: Recorder, inside: str, *, digested: bool = True
) -> Parts | None:
    """The parts of a file; from now on the tree notes in `recorder` which of them are looked at. `besides`: what else
    belongs to the outline; `inside`: the path of the file below the root. Not `digested`, None: most of the work is in
    the digests, which a run that keeps nothing has no use for."""
    lines = _without_docstrings(tree, text.split("\n")) if digested or _REBINDS in text else None
    outline: list[str] = [besides]
    digests: dict[str, str] = {}
    rebinding: list[ast.AST] = []
    written_before = collections.Counter[str]()
    tree.__dict__["rebinding"] = rebinding
    end = 0
    for written, node in sorted(_functions(tree, recorder, inside), key=lambda found: found[1].lineno):
        first = first_line(node.body[0])
        last = node.end_lineno or first
        if first <= max(end, node.lineno) or _head_end(node) >= first:
            rebinding.append(node)
            continue  # on the line of its head
        number = written_before[written]
        written_before[written] += 1
        name = f"{written}'{number}" if number else written
        outline += lines[end : first - 1] if lines is not None else ()
        code = _code("\n".join(lines[first - 1 : last])) if lines is not None else ""
        digests[name] = _digest(code) if digested else ""
        if _REBINDS in code:
            rebinding.append(node)
            outline.append(f"global in {name}")
        end = last
        if digested:
            _mark(node, recorder, f"{PART}:{name}:{inside}")
        else:  # nobody asks who reads it, and a property takes longer than an attribute
            node.__dict__["recorder"] = recorder
    if not digested or lines is None:
        return None
    outline += lines[end:]
    digests[OUTLINE] = _digest(_code("\n".join(outline)))
    return Parts(digests)


def docstring_of(node: ast.AST) -> ast.Constant | None:
    """The docstring of a module, a class or a function. It is no part of its code: a result that uses it uses
    `classes_documented`. Nothing is noted."""
    body = node.__dict__.get("body") if isinstance(node, _DOCUMENTED) else None
    first = body[0] if body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    return first.value if isinstance(first.value.value, str) else None


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_PARAMETER = re.compile(r"^\s*(\w+)\s*(?::|\()\s*(.+)$", re.M)
_CLASS_NAME = re.compile(r"[A-Za-z_][\w.]*\.[A-Z]\w*|\b[A-Z]\w+")


@functools.lru_cache(maxsize=1024)
def classes_documented(documentation: str) -> Mapping[str, tuple[str, ...]]:
    """What may be names of classes in the first line that a docstring has for a parameter:
    ``name : Optional[package.Class]``."""
    found: dict[str, tuple[str, ...]] = {}
    for name, what in _PARAMETER.findall(documentation):
        found.setdefault(name, tuple(_CLASS_NAME.findall(what)))
    return {name: classes for name, classes in found.items() if classes}


def _without_docstrings(tree: ast.Module, lines: list[str]) -> list[str]:
    """The lines of a module with the classes that its docstrings give in the place of these, where nothing else is on
    their lines."""
    for node in statements(tree):
        found = docstring_of(node)
        if found is None:
            continue
        first, last = found.lineno - 1, (found.end_lineno or found.lineno) - 1
        before = lines[first].encode("utf-8", "surrogatepass")[: found.col_offset]
        after = lines[last].encode("utf-8", "surrogatepass")[found.end_col_offset :].strip()
        if not before.strip() and (not after or after.startswith(b"#")):
            given = repr(classes_documented(str(found.value)))
            lines[first : last + 1] = [before.decode() + repr(given), *[""] * (last - first)]
    return lines


def _head_end(node: FunctionNode) -> int:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    parts = [*arguments, *node.args.defaults, *node.args.kw_defaults, node.returns]
    return max((part.end_lineno or 0 for part in parts if part is not None), default=node.lineno)


def _mark(node: ast.AST, recorder: Recorder, question: str) -> None:
    fields = node.__dict__
    fields["recorder"], fields["question"] = recorder, question
    node.__class__ = PART_OF[node.__class__]


def _functions(node: ast.AST, recorder: Recorder, inside: str, prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """The functions of a module or a class, also those under an `if` or `try`; not those within functions."""
    stack: list[ast.AST] = list(getattr(node, "body", ()))
    parts: list[ast.AST] = []
    while stack:
        found = stack.pop()
        if isinstance(found, FunctionNode):
            parts.append(found)
            yield prefix + found.name, found
        elif isinstance(found, ast.ClassDef):
            yield from _functions(found, recorder, inside, f"{prefix}{found.name}.")
            parts.append(found)
        else:
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                stack += getattr(found, block, None) or ()
    fields = node.__dict__
    fields["parts"], fields["recorder"], fields["question"] = parts, recorder, (prefix, inside)


def _code(text: str) -> str:
    """A text without what means nothing to Python: comments, empty lines, spaces at the end of a line."""
    strings: list[str] = []

    def without(found: re.Match[str]) -> str:
        part = found[0]
        if part[0] == "#":
            return ""
        if "\n" in part:
            strings.append(part)
            return '"\0"'
        return part

    lines = _APART.sub(without, text).split("\n")
    return "\n".join((*filter(None, map(str.rstrip, lines)), *strings))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def is_part(node: ast.AST) -> bool:
    """Whether it is a function whose body is a part."""
    return node.__class__ in _PARTS


def parts_below(node: ast.AST) -> Iterator[ast.AST]:
    """The functions and classes of a module or a class, and of the classes in it."""
    for part in node.__dict__.get("parts", ()):
        yield part
        yield from parts_below(part)


def touch(node: ast.AST) -> None:
    """Note that a result depends on all of a function, a class or a module: what is kept of it was made of that."""
    if node.__class__ in _PARTS:
        _body(node)
    else:
        _note(node, PART, after=ALL)


def _note(node: ast.AST, kind: str, *, before: str = "", after: str = "") -> None:
    """Note a question about a module, or about the classes of one name in it."""
    fields = node.__dict__
    recorder = fields.get("recorder")
    if recorder is not None and recorder.asked is not None:
        prefix, inside = fields["question"]
        recorder.asked.add(f"{kind}:{before}{prefix}{after}:{inside}")


@contextlib.contextmanager
def unnoted(node: ast.AST) -> Iterator[None]:
    """Nothing is noted in the block of what is looked at in the file of a class: who looks says what it depends on."""
    recorder = node.__dict__.get("recorder") or Recorder()
    asked, recorder.asked = recorder.asked, None
    try:
        yield
    finally:
        recorder.asked = asked


def note_stores(node: ast.ClassDef, attribute: str) -> None:
    """Note that a result depends on what the methods of a class assign to an attribute, and on nothing else of them."""
    _note(node, STORES, after=attribute)


def digest_of_stores(tree: ast.Module, what: str) -> str:
    """What the methods of all classes of a name assign to an attribute: ``Class.attribute``."""
    prefix, _, attribute = what.rpartition(".")
    return _digest(
        "\n".join(found for node in _classes(tree, f"{prefix}.") for found in _stores(node).get(attribute, ()))
    )


def digest_of_calls(tree: ast.Module, prefix: str) -> str:
    """What the methods of all classes of a name call on their own object: ``Class.``."""
    parts = (part for node in _classes(tree, prefix) for part in node.__dict__["parts"])
    return _digest("\n".join(f"{p.name} {sorted(called_on_self(p))}" for p in parts if is_part(p)))


def digest_derived(tree: ast.Module, what: str) -> str:
    """What one of `DERIVED` says of all classes of a name: ``counts_of.Class.``."""
    name, _, prefix = what.partition(".")
    if name not in DERIVED:
        return "?"
    module, function = DERIVED[name]
    derive = getattr(importlib.import_module(module), function)
    return _digest("\n".join(repr(_plain(derive(node))) for node in _classes(tree, prefix)))


def _plain(value: Any) -> Any:
    """What was derived, without places: functions by their names, since who looks into one depends on its part."""
    if isinstance(value, FunctionNode):
        return value.name
    if isinstance(value, ast.AST):
        return ast.dump(value)
    if isinstance(value, Mapping):
        return [(key, _plain(item)) for key, item in value.items()]
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _classes(tree: ast.Module, prefix: str) -> Iterator[ast.ClassDef]:
    """The classes of a name, which is followed by a dot. Nothing is noted of what is looked at in them."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        fields = node.__dict__
        if fields.get("question", ("",))[0] == prefix and isinstance(node, ast.ClassDef):
            with unnoted(node):
                yield node
        elif not isinstance(node, FunctionNode):
            stack += fields.get("parts", ())


def calls_on_self(class_: ast.ClassDef, method: ast.AST) -> frozenset[str]:
    """Names of the methods that a method calls on its own object; '' for a computed name. The answer for all
    methods of the class is all that a result depends on."""
    _note(class_, CALLS)
    with unnoted(class_):
        return called_on_self(method)


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes below, without those of nested functions and classes."""
    stack = below(node)
    while stack:
        child = stack.pop()
        yield child
        kind = child.__class__
        if kind not in _DEFINITIONS and kind is not ast.Name and kind is not ast.Constant:
            stack += below(child)


_DEFINITIONS = {ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *PART_OF.values()}


def rebinding(tree: ast.Module) -> list[ast.AST]:
    """The functions of a module and its classes that may rebind its variables."""
    found: list[ast.AST] | None = tree.__dict__.get("rebinding")
    return [tree] if found is None else found


def by_asker(_node: ast.AST) -> tuple[ast.AST, ...]:
    """Nothing is noted of a node (`kept_by_node`)."""
    return ()


def _as_cache(known: Any, kept: Any) -> Any:
    """The cache behind a function can be emptied by the function's name (`gc_tuning.let_go_of_trees`)."""
    known.cache_parameters, known.cache_clear = kept.cache_parameters, kept.cache_clear
    return known


def kept_by_node(size: int, *, noted: Callable[[Any], Iterable[ast.AST]] | None = None) -> Callable[[F], F]:
    """Keep what a function gives for its first argument, a node; who gets it depends on the parts of that node, or of
    those that `noted` names: `by_asker` where the caller records more precisely what is used."""

    def keeping(function: F) -> F:
        @functools.lru_cache(maxsize=size)
        def kept(node: ast.AST, version: int, *others: Any) -> Any:
            return function(node, *others)

        @functools.wraps(function)
        def known(node: ast.AST, *others: Any) -> Any:
            recorder = node.__dict__.get("recorder")
            if recorder is None or recorder.asked is not None:
                for part in (node,) if noted is None else noted(node):
                    touch(part)
            return kept(node, node.__dict__.get("version", 0), *others)

        return cast("F", _as_cache(known, kept))

    return keeping


def kept_by_class(function: F) -> F:
    """Keep what one of `DERIVED` gives for a class; who gets it depends on that, and on nothing else of its methods."""
    assert function.__name__ in DERIVED
    name = f"{function.__name__}."

    @functools.lru_cache(maxsize=4096)
    def kept(node: ast.ClassDef, version: int) -> Any:
        with unnoted(node):
            return function(node)

    @functools.wraps(function)
    def known(node: ast.ClassDef) -> Any:
        _note(node, SUMS, before=name)
        return kept(node, node.__dict__.get("version", 0))

    return cast("F", _as_cache(known, kept))


@kept_by_node(2048)
def inside(function: ast.AST) -> tuple[ast.AST, ...]:
    """`children` of a function, which is walked once for all queries."""
    return tuple(children(function))


@kept_by_node(256, noted=by_asker)
def _stores(class_: ast.AST) -> Mapping[str, list[str]]:
    """The assignments of the methods of a class by the attributes that they assign to."""
    found: dict[str, list[str]] = {}
    for method in class_.__dict__["parts"]:
        for node in statements(method) if not isinstance(method, ast.ClassDef) else ():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            parts = (part for target in targets for part in getattr(target, "elts", (target,)))
            for attribute in {part.attr for part in parts if isinstance(part, ast.Attribute)}:
                found.setdefault(attribute, []).append(f"{method.name} {ast.dump(node)}")
    return found


@kept_by_node(4096, noted=by_asker)
def called_on_self(method: ast.AST) -> frozenset[str]:
    """`calls_on_self`, for who says what it depends on."""
    called: set[str] = set()
    for node in children(method):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "getattr" and node.args:
                own = isinstance(node.args[0], ast.Name) and node.args[0].id == "self"
                called |= {""} if own and not gives_object(node) else set()
            elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                called |= {function.attr} if function.value.id == "self" else set()
    return frozenset(called)


def assigned_to(name: str, tree: ast.AST) -> list[ast.expr]:
    """What a plain name is assigned anywhere below `tree`, level by level."""
    return _assignments_below(tree).get(name, [])


@kept_by_node(256)  # many names are looked up in one file or function
def _assignments_below(tree: ast.AST) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in (n for n in statements(tree) if isinstance(n, ast.Assign)):
        for name in {t.id: None for t in node.targets if isinstance(t, ast.Name)}:
            found.setdefault(name, []).append(node.value)
    return found

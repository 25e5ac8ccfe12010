"""The view of one file that a rule works on."""

from __future__ import annotations

import ast
import builtins
import functools
import io
import itertools
import pathlib
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge import canonical
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.project_names import Listed
from ddp_lint.project.types import Types
from ddp_lint.source.file import SourceFile
from ddp_lint.source.imports import ImportTable
from ddp_lint.source.positions import Place, Positions
from ddp_lint.source.tree import called, calls_as_run, children, dotted, subtree
from ddp_lint.view.closures import Closures
from ddp_lint.view.scopes import Binding, Scopes

if TYPE_CHECKING:
    from ddp_lint.view.wraps import Wraps

N = TypeVar("N", bound=cst.CSTNode)

_QUOTED = 60
#: How a file gets names that nothing in its text binds; a notebook has those that its magics make.
_MAKES_GLOBALS = re.compile(r"\bglobals\(|\bexec\(|\bbuiltins\b|get_ipython|^\s*[%!]", re.MULTILINE)


#: Nodes in source order, what each is in, and what is directly in each that has any.
Structure = tuple[list[cst.CSTNode], dict[cst.CSTNode, cst.CSTNode], dict[cst.CSTNode, list[cst.CSTNode]]]


class Kept:
    """What is known of the functions of a tree regardless of their surroundings, for the next tree that has them: their
    nodes with the parents of these, and the bindings of scopes."""

    def __init__(self) -> None:
        self.structures: dict[cst.CSTNode, Structure] = {}
        self.bound: dict[tuple[cst.CSTNode, bool], Any] = {}
        #: The functions that the last edit has put in; None: all may be new.
        self.edited: frozenset[cst.FunctionDef] | None = None

    def let_go(self, function: cst.CSTNode) -> None:
        """A function is not in the next tree."""
        self.structures.pop(function, None)
        gone = {id(node) for node in subtree(function)}
        self.bound = {key: found for key, found in self.bound.items() if id(key[0]) not in gone}


class Module:
    """One file: its (focused) LibCST tree and the queries of rules.

    The tree may leave out definitions that no active rule could have an interest in (see `engine.focus`);
    `text` is then what the tree was made of, and `line_map[i]` the file's line of its line i+1: spans are always
    those of the file.
    """

    def __init__(
        self,
        file: SourceFile,
        tree: cst.Module,
        imports: ImportTable,
        *,
        name: str = "",
        project: Project | None = None,
        path: pathlib.Path | None = None,
        line_map: list[int] | None = None,
        text: str | None = None,
    ) -> None:
        #: Where files change.
        self.kept: Kept | None = None
        self.file = file
        self.tree = tree
        self.imports = imports
        self.name = name
        self.project = project
        self.path = path
        self._line_map = line_map
        self._text = file.text if text is None else text

    def let_go(self) -> None:
        """Drop the tree and all that was computed, when no rule needs it any more: reference cycles would keep it
        until Python collects garbage."""
        vars(self).clear()

    # ---- structure

    @functools.cached_property
    def _structure(self) -> Structure:
        return _structure_of(self.tree, self.kept.structures if self.kept else None)

    @property
    def nodes(self) -> Iterator[cst.CSTNode]:
        """All nodes with meaning below the tree, in source order: its `descendants`, found once for all callers."""
        return itertools.islice(self._structure[0], 1, None)

    def of_type(self, kind: type[N]) -> list[N]:
        """The nodes below the tree that are of a type, in source order; not those of types derived from it."""
        return self._by_type.get(kind, [])  # type: ignore[return-value]

    @functools.cached_property
    def _by_type(self) -> dict[type[cst.CSTNode], list[cst.CSTNode]]:
        found: dict[type[cst.CSTNode], list[cst.CSTNode]] = {}
        for node in self.nodes:
            found.setdefault(type(node), []).append(node)
        return found

    @functools.cached_property
    def order(self) -> dict[cst.CSTNode, int]:
        """The numbers of the nodes below the tree, in source order."""
        return {node: number for number, node in enumerate(self.nodes)}

    @functools.cached_property
    def _parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        return self._structure[1]

    @functools.cached_property
    def _below(self) -> dict[cst.CSTNode, list[cst.CSTNode]]:
        return self._structure[2]

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def children(self, node: cst.CSTNode) -> Sequence[cst.CSTNode]:
        """The nodes with meaning directly below a node of the tree, in source order."""
        return self._below.get(node, ())

    def inside(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """The `descendants` of a node of the tree: those that follow it, up to its last one."""
        last, below = node, self._below
        while last in below:
            last = below[last][-1]
        if last is node:
            return []
        start = self.order[node] + 1 if node is not self.tree else 0
        return self._structure[0][start + 1 : self.order[last] + 2]  # the tree itself is the first, without a number

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the parent outwards to the module."""
        up = self._parents.get(node)
        while up is not None:
            yield up
            up = self._parents.get(up)

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The nearest enclosing `def` (lambdas and comprehensions are looked through)."""
        parents = self._parents
        up = parents.get(node)
        while up is not None and type(up) is not cst.FunctionDef:
            up = parents.get(up)
        return up

    def following(self, statement: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The statements after one in its block."""
        block = self.parent(statement)
        if isinstance(block, (cst.BaseSuite, cst.Module)):
            if block not in self._places:
                self._places[block] = {each: number for number, each in enumerate(block.body)}
            start = self._places[block][statement] + 1
            yield from (block.body[number] for number in range(start, len(block.body)))

    @functools.cached_property
    def _places(self) -> dict[cst.CSTNode, dict[cst.CSTNode, int]]:
        """The numbers of the statements of the blocks that `following` was called for."""
        return {}

    @functools.cached_property
    def blocks(self) -> dict[cst.CSTNode, Any]:
        """What the statements of blocks mention, as far as `rules.wrapping.training` was asked."""
        return {}

    @functools.cached_property
    def without_gradient(self) -> dict[cst.CSTNode, bool]:
        """Whether gradients are off in a block, as far as `tensors.contexts` was asked."""
        return {}

    def calls_as_run(self, function: cst.FunctionDef) -> list[cst.Call]:
        """The calls of a function in the order in which they run, found once for all rules."""
        if function not in self._calls_as_run:
            self._calls_as_run[function] = calls_as_run(function.body)
        return self._calls_as_run[function]

    @functools.cached_property
    def _calls_as_run(self) -> dict[cst.FunctionDef, list[cst.Call]]:
        return {}

    def calls_to(self, names: Iterable[str]) -> list[cst.Call]:
        """The calls of what has one of some canonical names, in source order: each of thousands of places may ask."""
        found = [self._calls_by_meaning[name] for name in {*names} if name in self._calls_by_meaning]
        return found[0] if len(found) == 1 else sorted(itertools.chain(*found), key=self.order.__getitem__)

    @functools.cached_property
    def _calls_by_meaning(self) -> dict[str, list[cst.Call]]:
        found: dict[str, list[cst.Call]] = {}
        for call in self.of_type(cst.Call):
            found.setdefault(self.qualified(call.func), []).append(call)
        return found

    def calls_named(self, name: str) -> Sequence[cst.Call]:
        """The calls of what has a name at its end (`tree.called`), in source order."""
        return self._calls_by_name.get(name, ())

    @functools.cached_property
    def _calls_by_name(self) -> dict[str, list[cst.Call]]:
        found: dict[str, list[cst.Call]] = {}
        for call in self.of_type(cst.Call):
            found.setdefault(called(call), []).append(call)
        return found

    @functools.cached_property
    def for_first(self) -> dict[tuple[cst.BaseExpression, bool], bool]:
        """Whether an outcome of a test keeps what follows to one rank, as far as `launch.one_rank` was asked."""
        return {}

    def scope_of(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """The nearest enclosing `def`, else the file."""
        return self.function_of(node) or self.tree

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """The nearest enclosing class, also from inside one of its methods."""
        parents = self._parents
        up = parents.get(node)
        while up is not None and type(up) is not cst.ClassDef:
            up = parents.get(up)
        return up

    # ---- names

    @functools.cached_property
    def wraps(self) -> Wraps:
        """Where the file wraps modules for several ranks."""
        from ddp_lint.view.wraps import Wraps

        return Wraps(self)

    @functools.cached_property
    def scopes(self) -> Scopes:
        return Scopes(self)

    @functools.cached_property
    def closures(self) -> Closures:
        return Closures(self)

    @functools.cached_property
    def facts(self) -> ModuleFacts | None:
        """The whole file by its `ast`, elided definitions included; None when `ast` cannot parse it."""
        return self.project.modules.facts_of(self.path) if self.project is not None and self.path is not None else None

    @functools.cached_property
    def types(self) -> Types | None:
        return self.project.types if self.project is not None else None

    def import_table(self, tree: ast.Module) -> ImportTable:
        """The table of import statements as they are meant in this file."""
        if self.project is None or self.path is None:
            return ImportTable.of(tree, self.name, False)
        return self.project.modules.imports(tree, self.path, self.file.text)

    def qualified(self, node: cst.CSTNode | None) -> str:
        """The canonical dotted name that an expression refers to through this file's imports.

        ``DDP`` -> ``torch.nn.parallel.DistributedDataParallel`` after ``from torch.nn.parallel import
        DistributedDataParallel as DDP``. '' for anything that does not start at an imported name: a local that
        merely shares a name with an API, or shadows an import, is never that API.
        """
        if node is None:
            return ""
        found = self._qualified.get(node)
        if found is None:
            found = self._qualified[node] = self._qualify(node)
        return found

    @functools.cached_property
    def _qualified(self) -> dict[cst.CSTNode, str]:
        return {}

    def _qualify(self, node: cst.CSTNode) -> str:
        name = dotted(node)
        target = self._imported(name) if name else None
        if target is None:
            return ""
        first, _, rest = name.partition(".")
        scope = self.scopes.scope_of(first, node)
        if scope is not None and scope is not self.tree:
            imported = [b for b in self.scopes.bound_in(scope)[first] if b.kind == "import"]
            own = self.scopes.import_of(imported[0]) if imported else None
            if own is None:
                return ""
            target = f"{own}.{rest}" if rest else own
        if self.project is not None:
            target = self.project.meanings.canonical(target)
        return canonical(target)

    def _imported(self, name: str) -> str | None:
        target = self.imports.resolve(name)
        if target is None and self.imports.stars and self.project is not None:
            own = self.facts is not None and name.partition(".")[0] in self.facts.definitions
            return None if own else self.project.meanings.star_target(self.imports, name)
        return target

    def meaning(self, name: str) -> str:
        """The canonical name that a dotted name has at the top level of this file: imported, or defined here."""
        if self.project is not None and self.facts is not None:
            return self.project.meanings.of(self.facts, name)
        return canonical(self.imports.resolve(name) or "")

    def listed(self, key: Literal["ranks", "wrappers", "collectives"], node: cst.CSTNode) -> str:
        """The name that the configuration lists under a key and that an expression matches, '' for none; a call matches
        by what it calls."""
        listed: Listed | None = getattr(self.project.own, key) if self.project is not None else None
        return listed.find(*self.spellings(node)) if listed else ""

    def spellings(self, node: cst.CSTNode) -> tuple[str, ...]:
        """An expression as it is written, and by its absolute names as far as they are known; of a call, what
        it calls."""
        named = node.func if isinstance(node, cst.Call) else node
        name = dotted(named) or (f".{named.attr.value}" if isinstance(named, cst.Attribute) else "")
        known = self.callee(node) if isinstance(node, cst.Call) else self.qualified(node)
        known = known or (self.meaning(name) if dotted(named) else "")
        free = not known and dotted(named) and self.scopes.scope_of(name.partition(".")[0], named) is None
        return (name, *self.imports.starred(name)) if free else (name, known)

    def bindings(self, target: cst.BaseExpression | str, at: cst.CSTNode | None = None) -> list[Binding]:
        """Where a name, a dotted name or ``self.x`` is bound, as seen from `at` (default: from `target`).

        All bindings of its scope in source order; ``self.x``: those of the class. See `view.scopes.Binding`.
        """
        if isinstance(target, str):
            return self.scopes.bindings(target, at or self.tree)
        name = dotted(target)
        return self.scopes.bindings(name, at or target) if name else []

    def is_undefined(self, name: cst.Name) -> bool:
        """Whether nothing in the file gives a name that is read a value, so that it raises: no binding, no import, no
        built-in function. False where a ``from x import *`` may bring it, or what the file does with ``globals()``."""
        if hasattr(builtins, name.value) or self.imports.stars or self.file.shows(_MAKES_GLOBALS):
            return False
        return not self.bindings(name) and self.imports.resolve(name.value) is None

    def assignments(self, target: cst.BaseExpression | str, at: cst.CSTNode | None = None) -> list[cst.BaseExpression]:
        """The expressions that a name, a dotted name or ``self.x`` is assigned as a whole, in source order."""
        bindings = self.bindings(target, at)
        return [b.value for b in bindings if b.kind == "assign" and b.value is not None and not b.index]

    def constructed_by(self, node: cst.BaseExpression) -> str:
        """The canonical name of the class that an expression is an instance of, '' where it is not known.

        By the last constructor before it, annotations, `with ... as`, ``self.x`` in any method or base class of the
        project, and what functions of the project return.
        """
        return self.scopes.constructed_by(node)

    def callee(self, call: cst.Call) -> str:
        """The canonical name of what is called; a method by the class of its receiver
        (``acc.wait_for_everyone()`` -> ``accelerate.Accelerator.wait_for_everyone``). '' where it is not known."""
        return self.scopes.callee(call)

    def name_of(self, definition: cst.ClassDef | cst.FunctionDef) -> str:
        """The dotted name of a class or function of this file: module, enclosing definitions, name."""
        around = [a.name.value for a in self.ancestors(definition) if isinstance(a, (cst.ClassDef, cst.FunctionDef))]
        return ".".join(filter(None, [self.name, *reversed(around), definition.name.value]))

    def is_subclass(self, definition: cst.ClassDef, base: str) -> bool:
        """Whether a class of this file inherits from `base` (a dotted name), through the project's files too."""
        base = canonical(base)
        known = self._subclasses.setdefault(base, {})
        stack, seen, found = [definition], {definition}, False
        while stack and not found:
            current = stack.pop()
            if current in known:
                found = known[current]
                continue
            local, found = self._bases(current, base)
            new = [each for each in local if each not in seen]
            stack += new
            seen.update(new)
        known.update({definition: True} if found else dict.fromkeys(seen, False))
        return found

    @functools.cached_property
    def _subclasses(self) -> dict[str, dict[cst.ClassDef, bool]]:
        """Of each class that was looked up, which classes inherit from it: chains of classes can be long."""
        return {}

    def _bases(self, definition: cst.ClassDef, base: str) -> tuple[list[cst.ClassDef], bool]:
        """The bases of a class that are in this file, and whether one of the others is, or inherits from, `base`."""
        local: list[cst.ClassDef] = []
        for argument in definition.bases:
            bindings = self.bindings(argument.value)
            here = next((b.node for b in bindings if isinstance(b.node, cst.ClassDef)), None)
            if here is not None and here is not definition:
                local.append(here)
                continue
            name = self.qualified(argument.value) or self.meaning(dotted(argument.value))
            if name and (name == base or (self.project is not None and self.project.classes.subclass_of(name, base))):
                return local, True
        return local, False

    # ---- places

    @functools.cached_property
    def _positions(self) -> Positions:
        return Positions(self.tree, self._text)

    def _place(self, node: cst.CSTNode) -> Place:
        return self._positions.place(node, self.ancestors(node))

    def span(self, node: cst.CSTNode, end: cst.CSTNode | None = None) -> Span:
        """The span of a node, or from `node` to the end of `end`. Positions are computed on first use."""
        first, last = self._place(node), self._place(end or node)
        return Span(self.file.path, self._line(first[0]), first[1] + 1, self._line(last[2]), last[3] + 1)

    def _line(self, line: int) -> int:
        return self._line_map[line - 1] if self._line_map else line

    def code(self, node: cst.CSTNode) -> str:
        """The source text of a node, on one line, without comments."""
        found = self._codes.get(node)
        if found is None:
            found = self._codes[node] = " ".join(_joined(self.tree.code_for_node(node)).split())
        return found

    @functools.cached_property
    def _codes(self) -> dict[cst.CSTNode, str]:
        """Many rules ask what leads to a place, and read the same tests."""
        return {}

    def quoted(self, node: cst.CSTNode) -> str:
        """The source text of a node as a message has it: in backticks, cut where a reader would lose the thread."""
        text = self.code(node)
        return f"`{text if len(text) <= _QUOTED else text[: _QUOTED - 1] + '…'}`"


def _joined(text: str) -> str:
    """Lines as they read when they are put on one: without comments, and what ends a line that goes on."""
    if "\n" not in text or not ("#" in text or "\\\n" in text):
        return text
    lines = text.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"({text}\n)").readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][: column - (row == 1)]
    except (tokenize.TokenError, SyntaxError):
        return text
    return "\n".join(line.removesuffix("\\") for line in lines)


def _structure_of(tree: cst.CSTNode, kept: dict[cst.CSTNode, Structure] | None) -> Structure:
    """A node and all below it in source order, and what each is in. `kept`: those of functions, if they are kept."""
    nodes: list[cst.CSTNode] = []
    parents: dict[cst.CSTNode, cst.CSTNode] = {}
    below: dict[cst.CSTNode, list[cst.CSTNode]] = {}
    stack: list[cst.CSTNode] = [tree]
    while stack:
        node = stack.pop()
        if kept is not None and type(node) is cst.FunctionDef:  # those within it are with it
            if node not in kept:
                kept[node] = _structure_of(node, None)
            nodes += kept[node][0]
            parents.update(kept[node][1])
            below.update(kept[node][2])
            continue
        nodes.append(node)
        inside = children(node)
        if inside:
            below[node] = inside
            for child in inside:
                parents[child] = node
            stack += reversed(inside)
    return nodes, parents, below

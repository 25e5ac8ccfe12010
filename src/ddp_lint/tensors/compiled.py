"""Which functions of a project `torch.compile` reaches: from the compiled function or module through the calls that
it makes, across files."""

from __future__ import annotations

import ast
import bisect
import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterable, Iterator

from ddp_lint.findings import Span
from ddp_lint.knowledge import canonical
from ddp_lint.knowledge.tensors import names
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts, ModuleFacts
from ddp_lint.project.parts import touch, unnoted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, below, calls_below, decorators, nested, walk
from ddp_lint.tensors.classes import in_training, is_module_class

#: What a file must hold that has to do with the compiler at all.
_WORDS = ("compil", "optimize")
_MENTIONS = re.compile(r"torch\.compile\b|(?<!\bre)\.compile\(|import compile\b|is_compiling|is_dynamo_compiling")
#: What a file must hold besides to compile anything, or to test whether it is compiled. Most files that mention the
#: compiler do neither, and need not be parsed.
_STARTS = re.compile(
    r"(?<!\bre\.)\b(compile|optimize)\(|^[ \t]*@.*(compile|optimize)|\bpartial\(\s*[\w.]*(compile|optimize)\b|"
    r"\b\w*(compil\w*|optimize)[ \t]+as\b|_compiling\(",
    re.MULTILINE,
)
#: What a line must hold to call the compiler, or to test for it, under its own name.
_CALLS = (("compil", "compil"), ("optimize", r"\boptimize\b"))
_TESTS = re.compile(
    r"(^|/)(tests?/|test_[^/]*$|[^/]*_test\.py$|conftest\.py$|(micro)?bench(mark(s|ing)?)?(_\w+)?(/|\.py$))",
    re.IGNORECASE,
)
_DEPTH = 4  # of class evidence for one expression
_LIMIT = 20_000  # functions; a project where more are reached is cut off there


@dataclasses.dataclass(frozen=True)
class Compiled:
    """How a function comes to be compiled. `root`: where `torch.compile` is called; `what`: what it is called on;
    `chain`: functions on the way from there; `fullgraph`: a graph break is an error;
    `captures_scalars`: `.item()` does not break the graph; `assumed`: no code is seen to compile it, but the function
    tests `is_compiling()`, so its author expects it to be compiled."""

    root: Span
    what: str
    chain: tuple[str, ...]
    fullgraph: bool
    captures_scalars: bool
    assumed: bool = False


@dataclasses.dataclass(frozen=True)
class _Code:
    """A function of the project, with the class whose instances it runs for (perhaps one that inherits it)."""

    name: str
    facts: ModuleFacts
    node: FunctionNode
    owner: ClassFacts | None


def compiled_functions(project: Project) -> dict[str, Compiled]:
    """Canonical name of a function or method (``pkg.mod.Net.forward``) to how it is compiled."""
    return project.remember(("compiled",), lambda: _Reach(project).run())


class _Reach:
    """One search through a project."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._found: dict[str, Compiled] = {}
        self._seen: set[tuple[str, str]] = set()

    def run(self) -> dict[str, Compiled]:
        queue = sorted(self._roots(), key=lambda root: root[1].assumed)  # what is surely compiled comes first
        for code, compiled in queue:  # grows while it is read: breadth first
            key = (code.name, code.owner.name if code.owner else "")
            if key in self._seen or len(self._seen) > _LIMIT or self._is_disabled(code):
                continue
            self._seen.add(key)
            self._found.setdefault(code.name, compiled)
            further = dataclasses.replace(compiled, chain=(*compiled.chain, code.name.rpartition(".")[2]))
            queue.extend((called, further) for called in self._called(code))
        return self._found

    # ---- where compilation starts

    def _roots(self) -> Iterator[tuple[_Code, Compiled]]:
        for path in self._project.contents.holding("compil"):
            if _TESTS.search(self._project.paths.inside(path)):
                continue  # a test or a benchmark compiles what is not compiled in training
            yield from self._project.remember(("compiled in", path), functools.partial(_roots_in, self._project, path))

    def _is_disabled(self, code: _Code) -> bool:
        disabled = names("compile", "disabled")
        return any(self._project.meanings.of(code.facts, each) in disabled for each in decorators(code.node))

    # ---- where it goes

    def _called(self, code: _Code) -> Iterator[_Code]:
        """The functions that a function calls, outside of the arm that `is_compiling()` keeps from compiled code."""
        for node in _compiled_nodes(code.node, code.facts, self._project):
            if not isinstance(node, ast.Call):
                continue
            yield from self._targets(node.func, code)
            for arg in node.args[:1]:  # checkpoint(self.block, x), map(f, xs): passed on to be called
                if isinstance(arg, (ast.Name, ast.Attribute)):
                    yield from self._targets(arg, code, only_functions=True)
        if code.owner is not None and code.node.name == "forward":
            yield from self._submodules(code.owner)

    def _targets(self, callee: ast.expr, code: _Code, *, only_functions: bool = False) -> Iterator[_Code]:
        named = self._project.meanings.of(code.facts, callee)
        if named:
            yield from function_named(self._project, named)
            return
        if not isinstance(callee, ast.Attribute):
            return
        receiver = self._project.types.of(callee.value, code.facts, code.node, code.owner, _DEPTH)
        if receiver:
            method = self._project.classes.method(receiver, callee.attr)
            if method is not None:
                yield from methods_of(self._project, receiver, callee.attr)
            elif not only_functions:
                of_attribute = self._project.types.of_attribute(receiver, callee.attr)
                yield from methods_of(self._project, of_attribute, "forward")

    def _submodules(self, owner: ClassFacts) -> Iterator[_Code]:
        """`forward` of the modules that a class builds in its constructor, in any container."""
        for name in self._project.classes.lineage(owner.name):
            facts = self._project.classes.find(name)
            constructor = facts.methods.get("__init__") if facts is not None else None
            if facts is None or constructor is None:
                continue
            for node in walk(constructor):
                if isinstance(node, ast.Call):
                    built = self._project.meanings.of(facts.module, node.func)
                    if is_module_class(self._project, built):
                        yield from methods_of(self._project, built, "forward")


def _roots_in(project: Project, path: pathlib.Path) -> tuple[tuple[_Code, Compiled], ...]:
    """What a file compiles. Kept for each, so that an edit of one leaves what the others compile."""
    facts = project.modules.facts_of(path) if project.texts.tested(path, "compiles") else None
    return tuple(_Roots(project, facts).found()) if facts is not None else ()


def compiling(text: str) -> str:
    """The lines by which a file compiles anything or tests whether it is compiled, '' where it does neither: what
    `_Roots` finds in it follows from these and from the functions that they are in (`parts.TESTS`)."""
    passages = list(_passages(text)) if "torch" in text else []
    mentions = "torch._dynamo" in text or any(map(_MENTIONS.search, passages))
    if not mentions or not any(map(_STARTS.search, passages)):
        return ""
    renamed, lines = _renamed(text), text.split("\n")
    calls = [lines[number - 1] for number in _calling(text, renamed)]
    decorators = [line for line in lines if line.lstrip().startswith("@")]
    return "\n".join((*passages, *calls, *decorators, *sorted(renamed), str(_captures(text)), str(_asks(text))))


def _renamed(text: str) -> set[str]:
    return set(re.findall(r"\bas (\w+)", text))


def _calling(text: str, names: Iterable[str]) -> list[int]:
    """The lines that call the compiler, by its own name or by one of `names`."""
    called = ((f"{name}(", rf"\b{name}\(") for name in names)
    return sorted({n for word, pattern in (*_CALLS, *called) for n in _lines_with(text, word, pattern)})


def _captures(text: str) -> bool:
    return "capture_scalar_outputs = True" in text or "capture_scalar_outputs=True" in text


def _asks(text: str) -> bool:
    return "_compiling" in text


def _passages(text: str) -> Iterator[str]:
    """The lines that hold one of the words, each with the line before: to search in all of them takes far longer."""
    for word in _WORDS:
        place = text.find(word)
        while place >= 0:
            start = text.rfind("\n", 0, max(text.rfind("\n", 0, place), 0)) + 1
            end = text.find("\n", place)
            yield text[start : end if end >= 0 else len(text)]
            place = text.find(word, end) if end >= 0 else -1


def _lines_with(text: str, word: str, pattern: str) -> Iterator[int]:
    """The lines in which a pattern that starts with a word matches: found by the word, which takes far less time."""
    match = re.compile(pattern).match
    place, line, counted = text.find(word), 1, 0
    while place >= 0:
        if match(text, place):
            line += text.count("\n", counted, place)
            counted = place
            yield line
        place = text.find(word, place + 1)


class _Roots:
    """The calls of `torch.compile` and the compiled functions of one file."""

    def __init__(self, project: Project, facts: ModuleFacts) -> None:
        self._project = project
        self._facts = facts
        text = facts.source.text  # by `compiling`
        imported = {name for name, target in facts.imports.names.items() if "compil" in target}
        self._renamed = imported | _renamed(text)
        self._lines = _calling(text, self._renamed)
        self._asks, self._captures = _asks(text), _captures(text)

    def found(self) -> Iterator[tuple[_Code, Compiled]]:
        with unnoted(self._facts.tree):
            places = list(self._places())
        for node, function, owner, prefix, part in places:
            if isinstance(node, ast.Call):
                touch(part)
                yield from self._compiling_call(node, function, owner, prefix)
            else:
                for compiled in self._decorated(node):
                    touch(part)
                    yield _Code(prefix or node.name, self._facts, node, self._class(owner)), compiled

    def _places(self) -> Iterator[_Place]:
        """The functions of the file, and the calls by which it may compile any; each with the function of the module
        or the class that it is in."""
        stack: list[tuple[ast.AST, FunctionNode | None, ast.ClassDef | None, str, ast.AST | None]] = [
            (node, None, None, self._facts.name, None) for node in self._facts.tree.body
        ]
        while stack:
            node, function, owner, prefix, part = stack.pop()
            name = f"{prefix}.{node.name}" if isinstance(node, _DEFINITIONS) and prefix else prefix
            if isinstance(node, ast.ClassDef):
                owner, function = node, None
            elif isinstance(node, FunctionNode):
                part = part or node
                yield node, function, owner, name, part
                function = node
            elif isinstance(node, ast.Call) and self._may_compile(node):
                yield node, function, owner, prefix, part or node
            calls_none = isinstance(node, ast.stmt) and not _between(self._lines, node)
            stack += [(child, function, owner, name, part) for child in (nested(node) if calls_none else below(node))]

    def _may_compile(self, node: ast.Call) -> bool:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else dotted_ast(node.func)
        return called in ("compile", "optimize") or called in self._renamed

    def _class(self, node: ast.ClassDef | None) -> ClassFacts | None:
        return self._project.classes.of(self._facts, node) if node is not None else None

    def _decorated(self, function: FunctionNode) -> Iterator[Compiled]:
        for decorator in function.decorator_list:
            callee = decorator.func if isinstance(decorator, ast.Call) else decorator
            partial = isinstance(decorator, ast.Call) and decorator.args and dotted_ast(callee).endswith("partial")
            if partial and isinstance(decorator, ast.Call):
                callee = decorator.args[0]
            if self._project.meanings.of(self._facts, callee) in names("compile", "entries"):
                yield self._compiled(decorator, f"`{function.name}`")
        asks = self._asks and _between(self._lines, function)
        calls = calls_below(function) if asks else ()
        for node in calls:
            asked = self._project.meanings.of(self._facts, node.func)
            if asked in names("branches", "tracing") and asked.endswith("compiling"):
                yield dataclasses.replace(self._compiled(node, f"`{function.name}`"), assumed=True)
                return

    def _compiling_call(
        self, node: ast.Call, function: FunctionNode | None, inside: ast.ClassDef | None, prefix: str
    ) -> Iterator[tuple[_Code, Compiled]]:
        owner = self._class(inside)
        if self._project.meanings.of(self._facts, node.func) in names("compile", "entries"):
            target = node.args[0] if node.args else None
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "compile":
            target = node.func.value
            receiver = self._project.types.of(target, self._facts, function, owner, _DEPTH)
            if not is_module_class(self._project, receiver):
                return
        else:
            return
        if target is None:
            return
        compiled = self._compiled(node, f"`{dotted_ast(target) or 'it'}`")
        for code in self._code_of(target, function, owner, prefix):
            yield code, compiled

    def _code_of(
        self, target: ast.expr, function: FunctionNode | None, owner: ClassFacts | None, prefix: str
    ) -> Iterator[_Code]:
        """The functions that run when the compiled object is called."""
        if isinstance(target, ast.Name) and function is not None:
            for node in walk(function):  # a function defined next to the call
                if isinstance(node, ast.FunctionDef) and node is not function and node.name == target.id:
                    yield _Code(f"{prefix}.{node.name}", self._facts, node, owner)
                    return
        named = self._project.meanings.of(self._facts, target)
        if named:
            yield from function_named(self._project, named)
        kind = self._project.types.of(target, self._facts, function, owner, _DEPTH)
        if kind:
            yield from methods_of(self._project, kind, "forward")
        elif isinstance(target, ast.Attribute):
            receiver = self._project.types.of(target.value, self._facts, function, owner, _DEPTH)
            if receiver:
                yield from methods_of(self._project, receiver, target.attr)

    def _compiled(self, node: ast.expr, what: str) -> Compiled:
        flags = {k.arg: k.value for k in node.keywords} if isinstance(node, ast.Call) else {}
        fullgraph = flags.get("fullgraph")
        is_full = isinstance(fullgraph, ast.Constant) and fullgraph.value is True
        return Compiled(self._facts.source.span_of(node), what, (), is_full, self._captures or is_full)


#: A function or a call; the function, the class and the names around it; the part of the file that it is in.
_Place = tuple["FunctionNode | ast.Call", "FunctionNode | None", "ast.ClassDef | None", str, ast.AST]
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _between(lines: list[int], node: ast.stmt) -> bool:
    """Whether one of the sorted `lines` is within a statement."""
    place = bisect.bisect_left(lines, node.lineno)
    return place < len(lines) and lines[place] <= (node.end_lineno or node.lineno)


def function_named(project: Project, name: str) -> Iterator[_Code]:
    """The function of the project with a canonical name, also a method ``pkg.mod.Net.encode``."""
    found = project.meanings.split(name)
    if found is None:
        return
    facts, rest = found
    node = facts.definitions.get(rest)
    if isinstance(node, FunctionNode):
        yield _Code(f"{facts.name}.{rest}", facts, node, None)
    elif "." in rest:
        owner, _, method = name.rpartition(".")
        yield from methods_of(project, owner, method)


def methods_of(project: Project, owner: str, method: str) -> Iterator[_Code]:
    """The method that instances of a class run, named after the class that defines it."""
    found = project.classes.method(owner, method) if owner else None
    instance = project.classes.find(owner) if owner else None
    if found is not None:
        yield _Code(f"{found[0].name}.{method}", found[0].module, found[1], instance)


def _compiled_nodes(function: FunctionNode, facts: ModuleFacts, project: Project) -> Iterator[ast.AST]:
    """The nodes of a function without those that `if not is_compiling():` keeps from compiled code, and those of
    evaluation."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.If):
            bare = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
            asked = canonical(project.meanings.of(facts, bare.func)) if isinstance(bare, ast.Call) else ""
            if asked in names("branches", "tracing"):
                stack.extend(node.orelse if isinstance(node.test, ast.UnaryOp) else node.body)
                continue
            if (trained := in_training(node)) is not None:
                stack.extend(trained)
                continue
        stack.extend(below(node))

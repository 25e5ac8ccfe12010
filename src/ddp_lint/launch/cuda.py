"""Which code uses CUDA, followed through the functions and classes of the project."""

from __future__ import annotations

import ast
import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Final

from ddp_lint.knowledge import frameworks, table
from ddp_lint.launch.search import imported_through, imports_any
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import FunctionNode, below, calls_below, defaults, holds_line, parameters, walk, yields

_DEPTH = 3
#: What below torch.cuda does nothing before the first use of a GPU, and what makes no context there.
_WAIT: Final = frozenset(table("devices")["cuda"]["wait"])
_NO_WORK: Final = _WAIT | frozenset(table("devices")["cuda"]["no_work"])
_WITHOUT_CONTEXT: Final = _NO_WORK | frozenset(table("devices")["cuda"]["without_context"])
#: What does not query the driver, and what does under another name.
_ASKS_NOBODY: Final = _WAIT | frozenset(table("devices")["cuda"]["ask_nobody"])
_ASKS: Final = frozenset(table("devices")["cuda"]["ask_driver"])
#: Set to 1, it makes `torch.cuda.is_available` ask NVML instead, which settles nothing.
_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_IS_AVAILABLE = "torch.cuda.is_available"


def uses_cuda(project: Project, facts: ModuleFacts, node: ast.AST, depth: int = _DEPTH) -> ast.AST | None:
    """The first place below `node` (a function, a class, an expression) that puts work on a GPU, as far as it can be
    followed: `.cuda()`, `.to("cuda")`, ``device="cuda"``, `torch.cuda.synchronize`, an NCCL process group."""
    bodies = list(_executed(node))
    for body in bodies:
        around = body if isinstance(body, FunctionNode) else None
        for part in walk(body):
            if touches_cuda(facts, part, around):
                return part
    if depth:
        for call in (n for body in bodies for n in calls_below(body)):
            found = resolve(project, facts, call.func)
            if found is not None and found[1] is not node and uses_cuda(project, *found, depth - 1) is not None:
                return call
    return None


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a function is called: itself; for a class, its constructor."""
    if not isinstance(node, ast.ClassDef):
        yield node
        return
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "run", "__call__"):
            yield method


def touches_cuda(facts: ModuleFacts, node: ast.AST, around: FunctionNode | None = None) -> bool:
    """Whether one expression of the function `around` puts work on a GPU by itself, or names one as the device to
    use."""
    if isinstance(node, ast.Assign):
        return _is_device(node.value)
    if not isinstance(node, ast.Call):
        return False
    if any(_is_device(argument) for argument in node.args):
        return True
    name = facts.imports.resolve(dotted_ast(node.func)) or ""
    if name.startswith("torch.cuda."):
        return not any(part in _NO_WORK for part in name.split("."))
    if name == "torch.distributed.init_process_group":
        return any(_is_text(a, "nccl") for a in (*node.args, *(k.value for k in node.keywords)))
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method == "cuda":
        return True
    places = [a for a in node.args[:1] if method == "to"]
    places += [k.value for k in node.keywords if k.arg == "device" and name.startswith("torch")]
    return any(_is_text(place, "cuda") or surely_cuda(facts, place, around) for place in places)


def _is_device(node: ast.AST) -> bool:
    """`"cuda"` or `"cuda:1"`, also as an f-string."""
    value = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    text = value.value if isinstance(value, ast.Constant) else None
    return isinstance(text, str) and (text == "cuda" or text.startswith("cuda:"))


def _is_text(node: ast.AST, start: str) -> bool:
    if isinstance(node, ast.JoinedStr) and node.values:
        return _is_text(node.values[0], start)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and start in node.value


def resolve(project: Project, facts: ModuleFacts, func: ast.expr) -> tuple[ModuleFacts, ast.AST] | None:
    """The function or class of the project that a name refers to, with its module."""
    name = facts.qualified(func)
    return project.meanings.definition(project.meanings.canonical(name)) if name else None


#: Files of the project that one import may lead to.
_IMPORTS_READ = 60


#: A node with the module that it is in.
Place = tuple[ModuleFacts, ast.AST]


@dataclasses.dataclass
class Initialiser:
    """Where the code that a place surely runs first uses a GPU, imports and calls of the project included. `counts`:
    which calls do so, `makes_context` where nothing is given. `seen`: the modules that were imported before."""

    project: Project
    counts: Callable[[ModuleFacts, ast.Call], bool] | None = None
    seen: set[str] = dataclasses.field(default_factory=set)

    def within(self, facts: ModuleFacts, body: list[ast.stmt], depth: int = _DEPTH) -> Place | None:
        """The first such place in statements that run one after the other, in them or in what they call;
        None where nothing does, or only in one arm of a branch."""
        for statement in body:
            found = self.of(facts, statement, depth)
            if found is not None:
                return found
        return None

    def of(self, facts: ModuleFacts, statement: ast.stmt, depth: int = _DEPTH) -> Place | None:
        """The same for one statement."""
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            return self._imported(facts, statement)
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return self._defined(facts, statement, depth)
        if isinstance(statement, ast.If):
            has_gpu = ast.unparse(statement.test) in _IF_THERE_IS_ONE
            found = self._expressions(facts, statement.test, depth)
            return found or (self.within(facts, statement.body, depth) if has_gpu else None)
        if isinstance(statement, (ast.With, ast.Try)):
            return self.within(facts, statement.body, depth)
        if isinstance(statement, (ast.For, ast.While, ast.Match, ast.AsyncFor, ast.AsyncWith)):
            return None
        return self._expressions(facts, statement, depth)

    def _defined(self, facts: ModuleFacts, node: FunctionNode | ast.ClassDef, depth: int) -> Place | None:
        """What a definition runs at once: decorators, bases and the body of a class, defaults of parameters."""
        made_from = list[ast.expr](node.decorator_list)
        if isinstance(node, ast.ClassDef):
            made_from += [*node.bases, *(keyword.value for keyword in node.keywords)]
        else:
            made_from += filter(None, (default for _, default in defaults(node.args)))
        found = next(filter(None, (self._expressions(facts, each, depth) for each in made_from)), None)
        return found or (self.within(facts, node.body, depth) if isinstance(node, ast.ClassDef) else None)

    def _expressions(self, facts: ModuleFacts, node: ast.AST, depth: int) -> Place | None:
        for call in _run_now(node):
            if (self.counts or makes_context)(facts, call):
                return facts, call
            found = resolve(self.project, facts, call.func) if depth else None
            if found is None:
                continue
            for body in _bodies_of(found[1]):
                inside = self.within(found[0], body, depth - 1)
                if inside is not None:
                    return inside
        return None

    def _imported(self, facts: ModuleFacts, node: ast.Import | ast.ImportFrom) -> Place | None:
        for name in imported_modules(facts, node):
            known = name in self.seen or len(self.seen) >= _IMPORTS_READ
            target = self.project.modules.facts(name) if not known else None
            if target is None:
                continue
            self.seen.add(name)
            found = self.within(target, target.tree.body)
            if found is not None:
                return found
        return None


def runs_before(tree: ast.Module, line: int) -> list[ast.stmt]:
    """The statements that ran when the line `line` is reached: those above it, in each block around it, and the tests
    that led into these."""
    found: list[ast.stmt] = []
    block: list[ast.stmt] = tree.body
    while block:
        # Each of thousands of lines may ask: what is above is no more than cut off.
        above = bisect.bisect_left(block, line, key=lambda s: s.end_lineno or s.lineno)
        found += block[:above]
        inside = [*itertools.takewhile(lambda s: s.lineno <= line, itertools.islice(block, above, None))]
        for s in inside:
            if isinstance(s, ast.If) and s.body[0].lineno <= line:
                all_hold = (
                    isinstance(s.test, ast.BoolOp) and isinstance(s.test.op, ast.And) and holds_line(s.body, line)
                )
                parts = s.test.values if all_hold and isinstance(s.test, ast.BoolOp) else [s.test]
                found += (ast.copy_location(ast.Expr(part), part) for part in parts)
        block = next((arm for s in inside for arm in _arms(s) if arm and holds_line(arm, line)), [])
    return found


def _arms(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a statement, of which one runs; the one of a class has its methods run later, from outside."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body


_IF_THERE_IS_ONE = ("torch.cuda.is_available()", "cuda.is_available()", "torch.cuda.device_count()")


def imported_modules(facts: ModuleFacts, node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules of the project, or of others, that an import statement may run, as the project finds them: packages
    before what is in them."""
    if isinstance(node, ast.Import):
        targets = [facts.imports.resolve(alias.asname) if alias.asname else alias.name for alias in node.names]
    else:
        targets = [facts.imports.resolve(alias.asname or alias.name) for alias in node.names if alias.name != "*"]
    parts = [target.split(".") for target in targets if target]
    return list(dict.fromkeys(".".join(each[: i + 1]) for each in parts for i in range(len(each))))


def _run_now(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of a statement that run with it: none in a lambda, in an arm of a conditional expression, or behind
    `and` and `or`."""
    if isinstance(node, (ast.Lambda, ast.GeneratorExp)):
        return
    if isinstance(node, ast.IfExp):
        yield from _run_now(node.test)
        return
    if isinstance(node, ast.BoolOp):
        yield from _run_now(node.values[0])
        return
    for part in below(node):
        yield from _run_now(part)
    if isinstance(node, ast.Call):
        yield node


def _bodies_of(definition: ast.AST) -> Iterator[list[ast.stmt]]:
    """What a call of a function, or of a class, runs of the project; a generator runs nothing yet."""
    if isinstance(definition, ast.ClassDef):
        for method in definition.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                yield method.body
    elif isinstance(definition, ast.FunctionDef) and not yields(definition):
        yield definition.body


def makes_context(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call by itself puts something on a GPU, as it is written."""
    name = facts.imports.resolve(dotted_ast(call.func)) or ""
    if name.startswith("torch.cuda."):
        return not any(part in _WITHOUT_CONTEXT for part in name.split("."))
    method = call.func.attr if isinstance(call.func, ast.Attribute) and not name else ""
    if method == "cuda" and not isinstance(call.func, ast.Name):
        return True
    places = [a for a in call.args[:1] if method == "to"] + [k.value for k in call.keywords if k.arg == "device"]
    return (method == "to" or name.startswith("torch.")) and any(surely_cuda(facts, place) for place in places)


def asks_driver(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call by itself queries the driver for its GPUs: from then on CUDA_VISIBLE_DEVICES is settled, and
    forked children cannot use CUDA."""
    name = facts.imports.resolve(dotted_ast(call.func)) or ""
    if name == _IS_AVAILABLE and facts.file.holds(_BY_NVML):
        return False
    if name.startswith("torch.cuda.") and name not in _ASKS:
        parts = name.split(".")[2:]
        return _ASKS_NOBODY.isdisjoint(parts) and "memory" not in parts[0]
    return name in _ASKS or makes_context(facts, call)


def surely_cuda(facts: ModuleFacts, node: ast.expr, around: FunctionNode | None = None, depth: int = 2) -> bool:
    """Whether a device is a GPU wherever there is one: `"cuda"`, `torch.device("cuda", 0)`, a name for one that the
    function `around` or the module binds; also where it is the CPU on a machine without GPUs."""
    if _is_device(node):
        return True
    if isinstance(node, ast.Call) and facts.imports.resolve(dotted_ast(node.func)) == "torch.device" and node.args:
        return surely_cuda(facts, node.args[0], around, depth)
    if isinstance(node, ast.IfExp) and ast.unparse(node.test) in _IF_THERE_IS_ONE:
        return surely_cuda(facts, node.body, around, depth)
    if not isinstance(node, ast.Name) or not depth:
        return False
    given = assigned_in(around, node.id) if around is not None else []
    if not given and node.id in facts.values and not (around and node.id in {p.arg for p in parameters(around)}):
        given, around = [facts.values[node.id]], None
    return bool(given) and all(surely_cuda(facts, value, around, depth - 1) for value in given)


def asks_driver_beside_nvml(facts: ModuleFacts, call: ast.Call) -> bool:
    """The same in a program that has set `is_available` to ask NVML."""
    return asks_driver(facts, call) and facts.imports.resolve(dotted_ast(call.func)) != _IS_AVAILABLE


def asks_nvml(project: Project, facts: ModuleFacts) -> bool:
    """Whether a file, or one of the project that it imports, imports a package that sets `is_available` to ask NVML."""

    def found() -> bool:
        return any(_imports_nvml(project, name) for name in sorted(imported_through(project, facts)))

    answer: bool = project.remember(("asks NVML", facts.name), lambda: _sets_nvml(facts) or found())
    return answer


def _imports_nvml(project: Project, name: str) -> bool:
    """Whether a module imports such a package itself: asked once, as many programs come to it."""

    def found() -> bool:
        facts = project.modules.facts(name)
        return facts is not None and _sets_nvml(facts)

    return project.remember(("imports NVML", name), found)


def _sets_nvml(facts: ModuleFacts) -> bool:
    return imports_any(facts, frameworks.packages(lambda framework: framework.asks_nvml))

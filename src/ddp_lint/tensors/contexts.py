"""Under which conditions a line runs: gradients off, evaluation only, logging only, outside of compiled graphs."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.knowledge import canonical, frameworks
from ddp_lint.knowledge.tensors import names, words_of
from ddp_lint.launch.alone import modules_around
from ddp_lint.launch.environment import variable_read
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, conditions_at, conjuncts, holding
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import FunctionNode, walk
from ddp_lint.source.tree import asks_for_program, called, descendants, subtree
from ddp_lint.view import Module

_NO_GRAD = ("no_grad", "inference_mode")
_SWITCH = "set_grad_enabled"


def without_gradient(module: Module, node: cst.CSTNode) -> bool:
    """Whether gradients are off at `node`: inside ``with torch.no_grad()``, in a function decorated with it, or after
    ``torch.set_grad_enabled(False)`` in its function."""
    function = module.function_of(node)
    if function is not None and _switched_off(module, function, node):
        return True
    known, blocks, off = module.without_gradient, [], False
    up: cst.CSTNode | None = node
    while up is not None and not off:
        if type(up) is cst.IndentedBlock:
            if up in known:
                off = known[up]
                break
            blocks.append(up)
        elif type(up) is cst.With:
            off = any(turns_off_gradient(module, item.item) for item in up.items)
        elif type(up) is cst.FunctionDef:
            off = any(turns_off_gradient(module, each.decorator) for each in up.decorators)
        up = module.parent(up)
    known.update(dict.fromkeys(blocks, off))
    return off


def turns_off_gradient(module: Module, expression: cst.BaseExpression) -> bool:
    """``torch.no_grad()``, ``torch.inference_mode``, ``torch.set_grad_enabled(False)``, bare or called; whatever else
    is called no_grad."""
    callee, args = (expression.func, expression.args) if isinstance(expression, cst.Call) else (expression, ())
    false = any(dotted(arg.value) == "False" for arg in args)
    return _is_off(module.qualified(callee), dotted(callee), false=false)


def body_without_gradient(node: ast.With | FunctionNode, facts: ModuleFacts) -> bool:
    """Whether a `with` or a decorator turns gradients off in the body of a statement."""
    around = [item.context_expr for item in node.items] if isinstance(node, ast.With) else node.decorator_list
    return any(_turns_off(expression, facts) for expression in around)


def is_method_without_gradient(module: Module, method: str) -> bool:
    """Whether all methods and functions of a name that the project has turn gradients off in their body."""
    project = module.project
    if project is None or not method:
        return False
    found = [
        body_without_gradient(node, facts)
        for facts in project.modules.but_tests(project.contents.holding(f"def {method}("))
        for node in walk(facts.tree)
        if isinstance(node, FunctionNode) and node.name == method
    ]
    return bool(found) and all(found)


def _turns_off(expression: ast.expr, facts: ModuleFacts) -> bool:
    callee, args = (expression.func, expression.args) if isinstance(expression, ast.Call) else (expression, [])
    false = any(isinstance(arg, ast.Constant) and arg.value is False for arg in args)
    written = dotted_ast(callee)
    return _is_off(canonical(facts.imports.resolve(written) or ""), written, false=false)


def _is_off(name: str, written: str, *, false: bool) -> bool:
    """By the canonical name of what is entered, and as it is written; `false`: it gets False."""
    if name == f"torch.{_SWITCH}":
        return false
    return name in names("no_grad", "names") or written.rpartition(".")[2] in _NO_GRAD


def _switched_off(module: Module, function: cst.FunctionDef, node: cst.CSTNode) -> bool:
    """Whether the last ``torch.set_grad_enabled(..)`` statement before `node` in its function, or before an `if` or a
    loop around it, turns gradients off."""
    named = _switches(function) if module.file.holds(_SWITCH) else ()
    switches = {call for call in named if module.qualified(call.func) == f"torch.{_SWITCH}"}
    if not switches:
        return False
    around = {id(up) for up in module.ancestors(node)}
    state = False
    for call in descendants(function.body, into_definitions=False):
        if call is node:
            return state
        if call not in switches or not isinstance(call, cst.Call):
            continue
        line = module.parent(module.parent(call) or call)
        block = module.parent(line) if isinstance(line, cst.SimpleStatementLine) else None
        if block is not None and id(block) in around and isinstance(module.parent(call), cst.Expr):
            state = turns_off_gradient(module, call)
    return False


@functools.lru_cache(maxsize=64)
def _switches(function: cst.FunctionDef) -> frozenset[cst.Call]:
    """The calls in a function that may be ``torch.set_grad_enabled``, by their name alone."""
    return frozenset(call for call in calls_in(function.body) if dotted(call.func).endswith(_SWITCH))


#: One of these is in the text of a file that trains, also by a framework.
_TRAINS = (
    ".backward(", "Trainer", "training_step", "manual_backward(", "autograd.grad",
    *frameworks.every(lambda framework: framework.trains),
)  # fmt: skip

#: The same in what is imported: ``from xtuner.tools.train import main``.
_IS_TRAINING = re.compile(r"(^|[._])train(er|ers|ing)?\b")


def only_infers(project: Project | None) -> bool:
    """Whether the programs of a project run models and train none. A project without programs is a library, whose
    models others train."""

    def found() -> bool:
        assert project is not None
        return bool(project.contents.holding("__main__")) and not any(map(project.contents.holding, _TRAINS))

    return project is not None and project.remember(("only infers",), found)


def comes_untrained(module: Module, node: cst.CSTNode) -> bool:
    """Whether the programs that come to a place are seen, and no module of theirs trains or imports what may: others of
    the project may train other models."""
    facts, project = module.facts, module.project
    if facts is None or project is None:
        return False

    def found() -> bool:
        names = modules_around(facts, project, line)
        return bool(names) and not any(may_train(project.modules.facts(name)) for name in names)

    line = module.span(node).line
    untrained: bool = project.remember(("comes untrained", line), found, facts.kept)
    return untrained


def may_train(facts: ModuleFacts | None) -> bool:
    """Whether a module holds a word of training, or imports something named after it."""
    if facts is None or any(map(facts.file.holds, _TRAINS)):
        return facts is not None
    targets = (*facts.imports.names.values(), *facts.imports.stars)
    return any(_IS_TRAINING.search(target) for target in targets)


def evaluation_only(module: Module, node: cst.CSTNode) -> bool:
    """Whether training does not come by: `if not self.training:`, the other arm of `if self.training:`, what follows
    an `if self.training:` that returns, what needs the cache of generation, and functions, branches and packages named
    after evaluation or inference."""
    function, owner = module.function_of(node), module.class_of(node)
    return any(_is_taken_by_evaluation(test, taken) for test, taken in conditions(module, node)) or _is_of_evaluation(
        module.name,
        function.name.value if function is not None else "",
        owner.name.value if owner is not None else "",
    )


def evaluation_only_at(facts: ModuleFacts, function: FunctionNode, node: ast.AST) -> bool:
    """The same for a node of the `ast` of a function in any file."""
    owner, _ = facts.method_at(function.lineno) or (None, None)
    return any(_is_taken_by_evaluation(test, taken) for test, taken in conditions_at(function, node)) or (
        _is_of_evaluation(facts.name, function.name, owner.name if owner is not None else "")
    )


def _is_taken_by_evaluation(test: cst.BaseExpression, taken: bool) -> bool:
    """Whether no training comes to the arm of a test."""
    if any(_asks_for_evaluation(part) for part in conjuncts(test)) if taken else _is_training(test):
        return True
    _, negated = _without_not(test)
    return taken and not negated and bool(_words(test) & names("branches", "evaluation"))


def _is_of_evaluation(module: str, function: str, owner: str) -> bool:
    """Whether the packages, the file, the function or the class of a place is named after evaluation."""
    *packages, file = module.split(".")
    if any(words_of(package) & names("branches", "evaluation_packages") for package in packages):
        return True
    if words_of(file) & names("branches", "evaluation_files") or words_of(function) & names("branches", "evaluation"):
        return True
    return "postprocess" in owner.lower() or bool(words_of(owner) & names("branches", "evaluation_classes"))


def _is_training(test: cst.BaseExpression) -> bool:
    """``self.training``, or a flag that a caller gives: ``def forward(self, x, train=True)``."""
    return dotted(test).rpartition(".")[2] == "training" or dotted(test) in ("train", "is_train", "is_training")


def _asks_for_evaluation(test: cst.BaseExpression) -> bool:
    bare, negated = _without_not(test)
    return _has_cache(test) or (negated and _is_training(bare))


def _has_cache(test: cst.BaseExpression) -> bool:
    """``kv_cache is not None``: generation has kept the keys of earlier tokens."""
    if not isinstance(test, cst.Comparison) or not isinstance(test.comparisons[0].operator, cst.IsNot):
        return False
    kept = dotted(test.left).rpartition(".")[2]
    return kept in names("branches", "generation_caches") and dotted(test.comparisons[0].comparator) == "None"


def half_precision_only(module: Module, node: cst.CSTNode) -> bool:
    """Whether the line runs for tensors of half precision alone, by a test of the dtype around it or in its own
    condition: ``if hidden.dtype == torch.float16 and torch.isinf(hidden).any()``. Under autocast what layers add up is
    of single precision, and in bfloat16 the test fails before anything is read."""
    return any(_asks_for_half(module, part) for test in holding(module, node) for part in conjuncts(test))


def _asks_for_half(module: Module, test: cst.BaseExpression) -> bool:
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    other = test.comparisons[0]
    same = isinstance(other.operator, (cst.Equal, cst.Is)) and dotted(test.left).rpartition(".")[2] == "dtype"
    return same and module.qualified(other.comparator) in ("torch.float16", "torch.half")


def logging_only(module: Module, node: cst.CSTNode, *, by_name: bool = True) -> bool:
    """Whether the line is in a branch or a function whose condition, environment variable or name mentions logging
    or debugging, or that runs once in a while (``random.random() < 0.002``) or when the file is tried out by itself.
    Without `by_name` the name of the function says nothing."""
    for test in holding(module, node):
        if _words_asked(module, test) & names("branches", "logging") or _is_rare(module, test):
            return True
    function = module.function_of(node) if by_name else None
    return function is not None and bool(words_of(function.name.value) & names("branches", "logging"))


#: Steps from which on what runs once in so many costs nothing.
SELDOM = 50


def runs_seldom(module: Module, node: cst.CSTNode) -> bool:
    """Whether the function leaves before the line in most calls, by ``if self.calls % self.interval != 0: return``,
    or ``if self.calls % 500 == 0`` is around it, or ``if torch.isnan(loss).any()``."""
    return any(_is_seldom(module, test, taken) for test, taken in conditions(module, node))


def _is_seldom(module: Module, test: cst.BaseExpression, taken: bool) -> bool:
    test, negated = _without_not(test)
    taken = taken != negated
    if isinstance(test, cst.BooleanOperation):
        both = (_is_seldom(module, each, taken) for each in (test.left, test.right))
        return any(both) if isinstance(test.operator, cst.And) == taken else all(both)
    if _finds_not_finite(test, taken):
        return True
    every = once_in(test, taken)
    if isinstance(every, cst.Integer):
        return every.evaluated_value >= SELDOM
    return every is not None and bool(_words(every) & names("branches", "intervals"))


def _finds_not_finite(test: cst.BaseExpression, taken: bool) -> bool:
    """Whether a test has an outcome for values alone that no training goes on with: ``torch.isnan(loss).any()``."""
    asked = {called(n) for n in subtree(test) if isinstance(n, cst.Call)}
    return bool(asked & ({"isnan", "isinf"} if taken else {"isfinite"})) and not isinstance(test, cst.Comparison)


def once_in(test: cst.BaseExpression, taken: bool) -> cst.BaseExpression | None:
    """The number of rounds in which a test has an outcome once: of ``step % 500 == 0`` where it holds, of
    ``step % 500`` where it does not."""
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        shows = isinstance(test.comparisons[0].operator, cst.Equal if taken else cst.NotEqual)
        test = test.left
    else:
        shows = not taken
    divides = isinstance(test, cst.BinaryOperation) and isinstance(test.operator, cst.Modulo)
    return test.right if shows and divides and isinstance(test, cst.BinaryOperation) else None


def first_forward_only(module: Module, node: cst.CSTNode) -> bool:
    """Whether the line runs until the object has what it computes: ``if self.grid is None: ..; self.grid = grid``."""
    for up in module.ancestors(node):
        if isinstance(up, cst.FunctionDef):
            return False
        if isinstance(up, cst.If) and (name := _lacked(up.test)):
            sets = (target.target for n in descendants(up.body) if isinstance(n, cst.Assign) for target in n.targets)
            if any(dotted(target) == name for target in sets):
                return True
    return False


def _lacked(test: cst.BaseExpression) -> str:
    """The attribute of the object that a test says it does not have yet: ``self.grid is None``, ``not self.ready``."""
    if isinstance(test, cst.UnaryOperation):
        name = dotted(test.expression) if isinstance(test.operator, cst.Not) else ""
    elif isinstance(test, cst.Comparison) and isinstance(test.comparisons[0].operator, cst.Is):
        name = dotted(test.left) if dotted(test.comparisons[0].comparator) == "None" else ""
    else:
        name = ""
    return name if name.startswith("self.") else ""


def _words_asked(module: Module, test: cst.BaseExpression) -> set[str]:
    """The words of the names in a test and of the environment variables that it reads."""
    asked = (n for n in subtree(test) if isinstance(n, (cst.Call, cst.Subscript)))
    return _words(test).union(*(words_of(variable_read(module, node)) for node in asked))


#: A chance below which a branch is there to look at a few steps, not to compute.
_RARE = 0.05


def _is_rare(module: Module, test: cst.BaseExpression) -> bool:
    """``random.random() < 0.002`` or ``__name__ == "__main__"``, alone or as parts of an `or`."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        return _is_rare(module, test.left) and _is_rare(module, test.right)
    if asks_for_program(test):
        return True
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return any(_is_rare(module, part) for part in conjuncts(test) if part is not test)
    limit = test.comparisons[0].comparator
    drawn = isinstance(test.left, cst.Call) and module.qualified(test.left.func) == "random.random"
    return drawn and isinstance(limit, cst.Float) and float(limit.value) < _RARE


def outside_of_graphs(module: Module, node: cst.CSTNode) -> bool:
    """Whether the author keeps the line out of compiled, traced or scripted code by a test of `is_compiling()`."""
    for test, taken in conditions(module, node):
        _, negated = _without_not(test)
        if names("branches", "tracing") & {module.qualified(n) for n in _names_in(test)} and taken == negated:
            return True
    return False


def inside_graphs(module: Module, node: cst.CSTNode) -> bool:
    """Whether the line is in the arm that `if torch.compiler.is_compiling():` keeps for compiled code."""
    for test, taken in conditions(module, node):
        bare, negated = _without_not(test)
        asked = module.qualified(bare.func) if isinstance(bare, cst.Call) else ""
        if asked.endswith("compiling") and asked in names("branches", "tracing") and taken != negated:
            return True
    return False


def _without_not(test: cst.BaseExpression) -> tuple[cst.BaseExpression, bool]:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression, True
    return test, False


def _names_in(test: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    for node in subtree(test):
        if isinstance(node, (cst.Name, cst.Attribute)):
            yield node


def _words(test: cst.BaseExpression) -> set[str]:
    return {word for node in _names_in(test) if isinstance(node, cst.Name) for word in words_of(node.value)}

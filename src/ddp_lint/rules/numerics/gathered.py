"""Tensors that a function gathers from all ranks without gradients: under which names it has them, and where they meet
what the rank has itself."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping

from ddp_lint.knowledge.tensors import words_of
from ddp_lint.project.facts import ModuleFacts, paired
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, parameters, walk
from ddp_lint.tensors.contexts import body_without_gradient

#: What puts the parts of all ranks together, or changes how they lie in memory, and keeps all of them.
_PUTS_TOGETHER = frozenset({"cat", "concat", "stack", "vstack", "tuple", "list"})
_KEEPS = frozenset({
    "contiguous", "float", "half", "to", "view", "reshape", "flatten", "t", "transpose", "permute", "type_as", "clone",
    "squeeze", "unsqueeze", "unbind",
})  # fmt: skip
#: What multiplies each tensor of one operand with each of another one.
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "einsum", "cdist", "cosine_similarity", "linear"})
#: What has no gradient: a flow to the loss ends there.
_DECIDES = frozenset({
    "argmax", "argmin", "argsort", "sort", "topk", "max", "min", "eq", "ne", "gt", "ge", "lt", "le", "item", "tolist",
    "nonzero", "multinomial", "detach",
})  # fmt: skip
_LOSSES = frozenset({"loss", "criterion", "entropy", "nll", "logsumexp", "crossentropy", "ce"})
#: Words by which the author deals with gradients: of an own autograd function, of a copy without gradient.
_SWITCHES = frozenset({"no_grad", "inference_mode"})
_OF_GRADIENTS = frozenset({"apply", "requires_grad", "requires_grad_", "detach", "data", *_SWITCHES})
_WITH_GRADIENT = "distributed.nn"


@dataclasses.dataclass(frozen=True)
class Product:
    """Where a tensor of the rank meets what was gathered from all ranks: ``image @ text_all.t()``."""

    node: ast.expr
    own: str
    gathered: str


def is_taken_care_of(function: FunctionNode) -> bool:
    """Whether a function speaks of gradients itself, as where it gathers in another way if they are needed."""
    return any(
        (isinstance(node, ast.Attribute) and (node.attr in _OF_GRADIENTS or dotted_ast(node).endswith(_WITH_GRADIENT)))
        or (isinstance(node, ast.Name) and node.id in _SWITCHES)
        for statement in function.body
        for node in walk(statement)
    )


def root_of(value: ast.expr | None) -> str:
    """The name behind an expression that hands on the tensor of that name: ``x.contiguous()``; '' for anything else."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _KEEPS:
        value = value.func.value
    return dotted_ast(value) if value is not None else ""


def names_with(function: FunctionNode, parts: str) -> frozenset[str] | None:
    """The names that hold what was gathered into a list, as a whole; None where the function puts something into it,
    as the tensor of its own rank, or does with it what is not understood."""
    found = {parts}
    nodes = [node for statement in function.body for node in walk(statement)]
    for _ in range(len(nodes)):
        new = {name for node in nodes for name in _passed_to(node, found)} - found
        if not new:
            break
        found |= new
    return None if any(_is_changed(node, found) for node in nodes) else frozenset(found)


def _passed_to(node: ast.AST, names: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_whole(node.value, names):
        yield dotted_ast(node.targets[0]) or ""
    elif isinstance(node, ast.For) and isinstance(node.iter, ast.Name) and node.iter.id in names:
        yield dotted_ast(node.target)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        yield from (dotted_ast(node.func.value) for each in node.args if _is_whole(each, names))


def _is_whole(value: ast.expr, names: set[str]) -> bool:
    """Whether an expression is what one of some names holds, all of it."""
    if isinstance(value, (ast.Name, ast.Attribute)):
        return dotted_ast(value) in names if dotted_ast(value) else _is_transposed(value, names)
    if isinstance(value, ast.ListComp) and len(value.generators) == 1:
        each = value.generators[0]
        inner = {dotted_ast(each.target)} if _is_whole(each.iter, names) and not each.ifs else set()
        return bool(inner) and _is_whole(value.elt, inner)
    if not isinstance(value, ast.Call):
        return False
    name = last_part(value.func)
    if name in _PUTS_TOGETHER:
        return bool(value.args) and _is_whole(value.args[0], names)
    return name in _KEEPS and isinstance(value.func, ast.Attribute) and _is_whole(value.func.value, names)


def _is_transposed(value: ast.expr, names: set[str]) -> bool:
    """``torch.cat(parts).T``"""
    return isinstance(value, ast.Attribute) and value.attr in ("T", "mT") and _is_whole(value.value, names)


def _is_changed(node: ast.AST, names: set[str]) -> bool:
    """``parts[rank] = x``, ``parts.pop(rank)``, ``del parts[rank]``, ``parts += [x]``."""
    if isinstance(node, (ast.Subscript, ast.Name)) and isinstance(node.ctx, ast.Del):
        return dotted_ast(node.value if isinstance(node, ast.Subscript) else node) in names
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store) and dotted_ast(node.value) in names
    if isinstance(node, ast.AugAssign):
        return dotted_ast(node.target) in names
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and dotted_ast(node.func.value) in names:
        adds = node.func.attr in ("append", "extend")  # of what was gathered as well, or of something else
        other = adds and not (node.args and _is_whole(node.args[0], names))
        return node.func.attr in ("insert", "pop", "remove", "copy_") or other
    return False


def returns_alone(function: FunctionNode, names: frozenset[str]) -> bool:
    """Whether a function returns what it has gathered, and else what it was given, as where there is one rank."""
    given = {each.arg for each in parameters(function)}
    returned = [n.value for n in walk(function) if isinstance(n, ast.Return) and n.value is not None]
    gathered = [value for value in returned if _is_whole(value, set(names))]
    return bool(gathered) and all(value in gathered or dotted_ast(value) in given for value in returned)


def place_returned(function: FunctionNode, names: frozenset[str]) -> int | None:
    """At which place of the tuple that a function returns it has what it has gathered: ``return torch.cat(images),
    torch.cat(texts)``; None where it returns anything else."""
    returned = [n.value for n in walk(function) if isinstance(n, ast.Return)]
    if len(returned) != 1 or not isinstance(returned[0], ast.Tuple):
        return None
    places = [place for place, each in enumerate(returned[0].elts) if _is_whole(each, set(names))]
    return places[0] if len(places) == 1 else None


def source_in(function: FunctionNode, sent: str) -> tuple[str, bool] | None:
    """The parameter that a tensor comes from which a function sends, and whether it is one of several in it:
    ``for x in tensors``."""
    given = {each.arg for each in parameters(function)}
    for _ in range(3):
        if sent in given:
            return sent, False
        loops = (node for node in walk(function) if isinstance(node, (ast.For, ast.comprehension)))
        around = next((loop for loop in loops if dotted_ast(loop.target) == sent), None)
        if around is not None:
            return (dotted_ast(around.iter), True) if dotted_ast(around.iter) in given else None
        assigned = [n.value for n in walk(function) if isinstance(n, ast.Assign) and dotted_ast(n.targets[0]) == sent]
        if len(assigned) != 1:
            return None
        sent = root_of(assigned[0])
    return None


def bound_by(function: FunctionNode, call: ast.Call, given: ast.expr) -> dict[str, str]:
    """The names that get what a helper returns, each with the name of the tensor that was gathered into it."""
    assigned = [node for node in walk(function) if isinstance(node, ast.Assign)]
    pairs = [pair for node in assigned for target in node.targets for pair in paired(target, node.value)]
    target = next((target for target, value in pairs if value is call), None)
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(given, (ast.Tuple, ast.List)):
        several = zip(target.elts, given.elts, strict=False) if len(target.elts) == len(given.elts) else ()
        return {dotted_ast(name): root_of(value) for name, value in several if dotted_ast(name) and root_of(value)}
    return {dotted_ast(target): root_of(given)} if dotted_ast(target) and root_of(given) else {}


def bound_at(function: FunctionNode, call: ast.Call, given: ast.expr, place: int) -> dict[str, str]:
    """The name that gets what a helper returns at a place of its tuple, with that of the tensor which was gathered."""
    targets = [n.targets[0] for n in walk(function) if isinstance(n, ast.Assign) and n.value is call]
    if len(targets) != 1 or not isinstance(targets[0], ast.Tuple) or place >= len(targets[0].elts):
        return {}
    name, source = dotted_ast(targets[0].elts[place]), root_of(given)
    return {name: source} if name and source else {}


def products_alone(function: FunctionNode, gathered: Mapping[str, str], facts: ModuleFacts) -> list[Product]:
    """Where two gathered tensors meet, of two tensors of the rank, with gradients on: neither has one."""
    return [
        Product(node, one, other)
        for node in _with_gradients(function, facts)
        for left, right in _operands(node)
        for one in sorted(_names_in(left) & gathered.keys())
        for other in sorted(_names_in(right) & gathered.keys())
        if gathered[one] != gathered[other] and not (_names_in(left) | _names_in(right)) & set(gathered.values())
    ]


def products(function: FunctionNode, gathered: Mapping[str, str], facts: ModuleFacts) -> list[Product]:
    """Where tensors that were gathered meet the same ones of the rank alone, with gradients on. All tensors that take
    part as those of the rank alone are gathered, too: so one of them has a gradient, or nothing has."""
    found = [
        Product(node, own, whole)
        for node in _with_gradients(function, facts)
        for left, right in _operands(node)
        for whole in _names_in(right) & gathered.keys()
        for own in _names_in(left) & set(gathered.values())
    ]
    met = {gathered[each.gathered] for each in found}
    return [each for each in found if each.own in met]


def _with_gradients(node: ast.AST, facts: ModuleFacts) -> Iterator[ast.expr]:
    """The expressions below a node that are evaluated with gradients on."""
    stack = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, (ast.With, ast.FunctionDef, ast.AsyncFunctionDef)) and body_without_gradient(each, facts):
            continue
        if isinstance(each, ast.expr):
            yield each
        stack += ast.iter_child_nodes(each)


def _operands(node: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield node.left, node.right
        yield node.right, node.left
    elif isinstance(node, ast.Call) and last_part(node.func) in _PRODUCTS:
        given = [each for each in node.args if not isinstance(each, ast.Constant)]
        if isinstance(node.func, ast.Attribute) and len(given) == 1:  # ``x.matmul(y)``
            given.insert(0, node.func.value)
        if len(given) >= 2:
            yield given[0], given[1]
            yield given[1], given[0]


def _names_in(value: ast.expr) -> set[str]:
    """The names in an expression, if nothing in it is detached."""
    parts = list(walk(value))
    if any(isinstance(part, ast.Attribute) and part.attr in ("detach", "data") for part in parts):
        return set()
    return {dotted_ast(part) for part in parts if isinstance(part, (ast.Name, ast.Attribute))} - {""}


def loss_of(function: FunctionNode, product: Product) -> ast.AST | None:
    """The call of a loss that a product flows into, or the return of a function that is named after a loss."""
    held: set[str] = set()
    statements = [node for node in walk(function) if isinstance(node, ast.stmt)]
    for statement in sorted(statements, key=lambda each: each.lineno):
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.expr):
            continue
        parts = list(walk(value))
        takes = product.node in parts or any(dotted_ast(part) in held for part in parts if isinstance(part, ast.Name))
        if not takes:
            continue
        for call in calls_below(value):
            if words_of(last_part(call.func)) & _LOSSES and _takes(call, product, held):
                return call
        if isinstance(statement, ast.Return) and "loss" in words_of(function.name):
            return statement
        if isinstance(statement, (ast.Assign, ast.AugAssign)) and not _decides(value):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            held |= {dotted_ast(part) for target in targets for part in walk(target) if isinstance(part, ast.Name)}
    return None


def _takes(call: ast.Call, product: Product, held: set[str]) -> bool:
    parts = [part for each in (*call.args, *(k.value for k in call.keywords)) for part in walk(each)]
    return product.node in parts or any(dotted_ast(part) in held for part in parts if isinstance(part, ast.Name))


def _decides(value: ast.expr) -> bool:
    return any(last_part(call.func) in _DECIDES for call in calls_below(value)) or isinstance(value, ast.Compare)


def sent_by(call: ast.Call) -> tuple[str, str]:
    """The names of the list that a gather fills and of the tensor that it sends, '' for what is no name."""
    parts = argument_at(call, 0, "tensor_list") or argument_at(call, 0, "output_tensor")
    sent = argument_at(call, 1, "tensor") or argument_at(call, 1, "input_tensor")
    return dotted_ast(parts), root_of(sent)

"""Tensors that have another shape on each rank: what a mask or `nonzero` selects of its own data, sequences that are
generated from them or padded to the longest of its own batch."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Sequence
from typing import Final

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.lengths import assigned_once, is_loader_name, of_batches
from ddp_lint.divergence.values import Value, Variation, divergent, unknown
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge import table
from ddp_lint.project.parts import assigned_to, inside, kept_by_node
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, defaults, is_none, names_in, parameters, walk

SELECTION: Final = ref.SELECTION
SIZED: Final = ref.SIZED
PADDED: Final = ref.PADDED
#: Lists of the tensors of a kind, which have its shape once they are one tensor.
LISTED: Final = ref.LISTED
_KIND_OF: Final = {listed: kind for kind, listed in LISTED.items()}
#: How the key begins of where a rank is in a list of ranks, and whether it does: ``(ranks == rank).nonzero()``.
PLACES: Final = "places"
#: How the key of a list of gradients begins, and of its length.
GRADIENTS: Final = "gradients"
_KNOWN = table("tensors")["selection"]
#: Functions that make a tensor of a size, with the number of leading arguments that are sizes (0: all are).
MAKING: Final[dict[str, int]] = _KNOWN["making"]
SELECTING: Final[tuple[str, ...]] = tuple(_KNOWN["selecting"])
SIZES: Final[frozenset[str]] = frozenset(_KNOWN["sizes"])
MODALITIES: Final[frozenset[str]] = frozenset(_KNOWN["modalities"])
#: Methods that count all elements of a tensor.
COUNTING: Final = frozenset({"numel", "nelement"})
_MASK = re.compile(r"(^|_)(masks?|valid|keep)$")


def is_mask(node: ast.expr) -> bool:
    """Is it an index that selects: ``x > 0``, ``~mask``, ``mask.bool()``, or a mask by name?"""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return True
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "bool"
    if isinstance(node, ast.Compare):
        return isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return isinstance(node.slice.value, str) and _MASK.search(node.slice.value) is not None
    name = last_part(node)
    return _MASK.search(name) is not None


def is_comparison(value: Value) -> bool:
    """Is it the outcome of a comparison of tensors, element by element: ``keep = labels > 0``? No rank is one."""
    key = getattr(value.components[0], "key", None)
    made = key[0] if isinstance(key, tuple) and key and isinstance(key[0], tuple) else key
    compared = isinstance(made, tuple) and (made[:1] == ("compare",) or _is_negated(made))
    return compared and (value.varies is None or (value.open and value.varies.cause == "data"))


def _is_negated(made: tuple[object, ...]) -> bool:
    """The same of one that is the opposite of another: ``labels != -100``."""
    return made[:1] == ("formula",) and made[2:3] == ("Compare",)


def selection(frame: Frame, node: ast.AST, parts: Sequence[Value]) -> Value:
    """What is selected by these; the same number on all ranks if they have agreed on any of it."""
    if any(part.agreed for part in parts):
        return unknown(frame.key(node), agreed=True)
    varies = next((part.varies for part in parts if part.open and of_batches(part.varies)), None)
    chosen = unknown(frame.key(node)) if varies is None else divergent(frame.key(node), varies)
    return chosen.with_reference(ref.Instance(SELECTION))


def of_one_shape(value: Value) -> Value:
    """What a function gives that was told the number on which the ranks have agreed: it has filled the tensor up."""
    if value.items is None and not kind_of(value):
        return value
    items = tuple(map(of_one_shape, value.items)) if value.items is not None else None
    return dataclasses.replace(value, items=items, reference=None if kind_of(value) else value.reference)


def with_kept_shape(frame: Frame, node: ast.AST, function: Value, method: ref.Method) -> Value:
    """What a method gives that keeps the shape of a tensor that has one of its own on each rank: ``x.contiguous()``."""
    tensor = method.instance or ref.Instance(method.of)
    return unknown(frame.key(node), None if function.agreed else tensor, agreed=function.agreed)


def is_selection(value: Value) -> bool:
    return _is(value, SELECTION)


def is_padded(value: Value) -> bool:
    return _is(value, PADDED)


def is_sized(value: Value) -> bool:
    return _is(value, SIZED)


def _is(value: Value, kind: str) -> bool:
    return isinstance(value.reference, ref.Instance) and value.reference.of == kind


def kind_of(value: Value) -> str:
    """`SELECTION` or `PADDED` for such a tensor and for a list of them, else ''."""
    reference = tensor_in(value)
    return reference.of if reference is not None and isinstance(reference.of, str) else ""


def tensor_in(value: Value) -> ref.Instance | None:
    """What such a tensor refers to, or one of a list of them; None for anything else.

    Another element may pad it to a common length: ``[x, zeros(longest - len(x))]``.
    """
    reference = value.reference
    if isinstance(reference, ref.Instance) and reference.of in LISTED:
        return reference
    if isinstance(reference, ref.Instance) and reference.of in _KIND_OF:
        return dataclasses.replace(reference, of=_KIND_OF[str(reference.of)])
    held = [tensor_in(item) for item in value.items or ()]
    return held[0] if held and None not in held else None


def is_generated(node: ast.Call, method: str) -> bool:
    """Does the call return sequences that end where the model ends them: ``generate`` without a fixed length?"""
    if method not in _KNOWN["generating"]:
        return False
    return not any(keyword.arg in _KNOWN["generating_other"] for keyword in node.keywords)


def is_padded_field(frame: Frame, node: ast.Subscript) -> bool:
    """``batch["input_ids"]`` of a batch that is given to this function, or what a language model predicts of one: a
    collator pads it to its own longest."""
    if _is_shifted(node):
        return True
    if not isinstance(node.value, ast.Name) or not isinstance(node.slice, ast.Constant) or frame.function is None:
        return False
    return node.slice.value in _KNOWN["padded_fields"] and node.value.id in _KNOWN["batches"]


def _is_shifted(node: ast.Subscript) -> bool:
    """``logits[..., :-1, :]``, ``labels[:, 1:]``: one token of each sequence against the next."""
    name = last_part(node.value)
    if isinstance(node.value, ast.Subscript) and isinstance(node.value.slice, ast.Constant):
        name = str(node.value.slice.value)
    parts = node.slice.elts[1:] if isinstance(node.slice, ast.Tuple) else []
    return name in _KNOWN["shifted"] and any(ast.unparse(part) in (":-1", "1:") for part in parts)


def is_of_each_token(frame: Frame, value: Value, node: ast.AST | None) -> bool:
    """Is it logits by name, as a model gave them, where others of the class or function are shifted by a token: those
    of a language model, as long as the rank's own longest sequence?"""
    name = last_part(node)
    scope = frame.owner.node if frame.owner is not None else frame.function
    if not name.endswith("logits") or scope is None or value.agreed:
        return False
    made = assigned_to(name, frame.function) if frame.function is not None else ()
    if any(isinstance(value, ast.Call) for value in made):  # ``logits = logits.mean()``, or the caller's choice
        return False
    parts = (part for part in walk(scope) if isinstance(part, ast.Subscript))
    return any(_is_shifted(part) and "logits" in ast.unparse(part.value) for part in parts)


def runs_to_end(index: ast.expr) -> bool:
    """``[:, start:]``: what is left of the longest is the longest of the rest."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(isinstance(part, ast.Slice) and part.upper is None and part.step is None for part in parts)


def needs_one_shape(op: str) -> bool:
    return op in _KNOWN["one_shape"]


def keeps(method: str) -> bool:
    """Has the result of the method as many elements as what it is called on?"""
    return method in _KNOWN["keeping"]


def handed(value: Value) -> int:
    """Through how many calls such a tensor came in as an argument."""
    return value.reference.handed if isinstance(value.reference, ref.Instance) else 0


def own_size(frame: Frame, node: ast.AST) -> Variation:
    """Why the number of elements is a rank's own."""
    origin = Label(frame.span(node), "the number of selected elements depends on each rank's own data")
    description = "the number of elements that this rank's own data selects"
    return Variation("data", description, origin=origin, confidence=Confidence.MEDIUM, aspect="count")


#: Tensors of a rank's own data by name; those of the model have one size on all ranks.
_OF_DATA = re.compile(rf"(^|[._])({'|'.join(_KNOWN['data'])})$")


def counted(node: ast.expr) -> ast.expr | None:
    """The tensor whose elements or rows an expression counts: ``x.numel()``, ``x.size(0)``, ``x.shape[0]``."""
    if isinstance(node, ast.Subscript):
        of = node.value
        first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        return of.value if first and isinstance(of, ast.Attribute) and of.attr == "shape" else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.keywords:
        return None
    first = [getattr(argument, "value", None) for argument in node.args] == [0]
    counts = (node.func.attr in COUNTING and not node.args) or (node.func.attr == "size" and first)
    return node.func.value if counts else None


def sums_up_batches(frame: Frame, node: ast.AugAssign, value: Value) -> bool:
    """``seen += labels.numel()`` in a loop over a loader: one batch may be empty, but not all that a rank has."""
    if not of_batches(value.varies) or not isinstance(frame.function, FunctionNode):
        return False
    added = assigned_once(frame, node.value)
    length = isinstance(added, ast.Call) and getattr(added.func, "id", "") == "len"
    if not length and counted(added) is None:
        return False
    loops = [n for n in inside(frame.function) if isinstance(n, ast.For) and node.lineno in range(n.lineno, _end(n))]
    return bool(loops) and is_loader_name(frame.text(max(loops, key=lambda loop: loop.lineno).iter))


def _end(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) + 1


def may_be_empty(frame: Frame, node: ast.expr) -> bool:
    """Is it the number of elements of a tensor of data by name, which one rank may have none of?"""
    of = counted(node)
    if of is not None:
        return _OF_DATA.search(frame.text(of)) is not None
    made = assigned_to(node.id, frame.function) if isinstance(node, ast.Name) and frame.function is not None else [node]
    return any(_sums_up_fields(total) for total in made)


def _sums_up_fields(node: ast.expr) -> bool:
    """``sum(len(target["labels"]) for target in targets)``"""
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "sum" or len(node.args) != 1:
        return False
    return isinstance(node.args[0], (ast.GeneratorExp, ast.ListComp)) and _counts_field(node.args[0].elt)


def _counts_field(node: ast.expr) -> bool:
    """``len(target["labels"])``, ``target["boxes"].shape[0]``: a field of one of the rank's own samples."""
    own_length = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len" and len(node.args) == 1
    of = node.args[0] if own_length and isinstance(node, ast.Call) else counted(node)
    field = getattr(of.slice, "value", None) if isinstance(of, ast.Subscript) else None
    return isinstance(field, str) and _OF_DATA.search(field) is not None


def may_select_nothing(frame: Frame, node: ast.expr) -> bool:
    """``mask.sum()``: is it the number of elements that a mask selects of a rank's own data?"""
    return _selects(frame, _reduced(assigned_once(frame, node), _COUNTS))


def asks_for_any(frame: Frame, node: ast.expr) -> bool:
    """``mask.any()``: does the mask select any of a rank's own data?"""
    return _selects(frame, _reduced(node, frozenset({"any"})))


_COUNTS: Final = frozenset({"sum", "count_nonzero"})


def _reduced(node: ast.expr, by: frozenset[str]) -> ast.expr | None:
    """What is counted as a whole: ``x`` of ``x.sum()``, ``x.sum().item()``, ``torch.sum(x)``; None for another call."""
    while isinstance(node, ast.Call) and not node.keywords:
        function = node.func
        if isinstance(function, ast.Name) and function.id in ("int", "float") and len(node.args) == 1:
            node = node.args[0]
        elif not isinstance(function, ast.Attribute):
            return None
        elif function.attr == "item" and not node.args:
            node = function.value
        elif function.attr in by:
            whole = node.args[0] if getattr(function.value, "id", "") == "torch" and len(node.args) == 1 else None
            return whole or (function.value if not node.args else None)
        else:
            return None
    return None


def _selects(frame: Frame, node: ast.expr | None) -> bool:
    """Is it a mask over a rank's own data, by its own name or by what it compares?"""
    made = assigned_once(frame, node) if node is not None else None
    if node is None or made is None or not (is_mask(made) or is_mask(node)):
        return False
    paths = (frame.text(part) for part in walk(made) if isinstance(part, (ast.Name, ast.Attribute)))
    return any(_OF_DATA.search(path) for path in paths)


def may_be_missing(node: ast.expr) -> bool:
    """Is it by name a field that some samples of a mixed data set have, and a rank's own may all lack?"""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get" and len(node.args) in (1, 2):
        node = node.args[0]
    elif isinstance(node, ast.Subscript):
        node = node.slice
    if isinstance(node, ast.Constant):
        return node.value in MODALITIES
    name = last_part(node)
    return name in MODALITIES


def may_be_lacking(field: ast.expr, of: ast.expr) -> bool:
    """``"pixel_values" in batch``: the same question."""
    name = last_part(of)
    named_so = isinstance(field, ast.Constant) and isinstance(field.value, str) and field.value in MODALITIES
    return named_so and name in _KNOWN["batches"]


def is_instead(frame: Frame, node: ast.expr) -> bool:
    """``images is None``: is it a parameter that a caller gives instead of others, which the function demands where it
    has not left with this one? Which of the two all ranks of a step give is a matter of the call."""
    return isinstance(node, ast.Name) and frame.function is not None and node.id in _instead(frame.function)


@kept_by_node(1024)
def _instead(function: ast.AST) -> frozenset[str]:
    if not isinstance(function, FunctionNode):
        return frozenset()
    optional = frozenset(parameter.arg for parameter, value in defaults(function.args) if is_none(value))
    found = set[str]()
    for place, branch in enumerate(function.body):
        if not isinstance(branch, ast.If) or branch.orelse or not isinstance(branch.body[-1], (ast.Return, ast.Raise)):
            continue
        elsewhere = [*function.body[:place], *function.body[place + 1 :]]
        used = frozenset[str]().union(*map(names_in, elsewhere))
        demanded = frozenset[str]().union(*map(_demanded, function.body[place + 1 :])) & optional
        here = optional & names_in(branch.test) - used
        if demanded:
            found |= {name for name in here if demanded.isdisjoint(_names_beside(branch.body, name))}
    return frozenset(found)


def _demanded(statement: ast.stmt) -> frozenset[str]:
    """The names without which a function raises an exception: ``if not views: raise ValueError()``."""
    raises = isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Raise)
    return names_in(statement.test) if raises and isinstance(statement, ast.If) else frozenset()


def _names_beside(body: list[ast.stmt], name: str) -> frozenset[str]:
    """The names that some statements use, but for what they take in the place of one: ``a if a is not None else b``."""
    parts = [part for statement in body for part in walk(statement)]
    chosen = [n for n in parts if isinstance(n, ast.IfExp) and name in names_in(n.test)]
    apart = {id(part) for choice in chosen for part in walk(choice)}
    return frozenset(n.id for n in parts if isinstance(n, ast.Name) and id(n) not in apart)


def own_modality(frame: Frame, node: ast.AST) -> Variation:
    """Why a field of the samples is missing on some ranks; a parameter by its name alone may be what a mode of the
    call goes by (``forward(views=None, images=None)``)."""
    origin = Label(frame.span(node), "a rank whose samples lack it has none here")
    function = frame.function
    given = (
        isinstance(node, ast.Name)
        and isinstance(function, FunctionNode)
        and node.id in {each.arg for each in parameters(function)}
    )
    return Variation.of_data("parameter" if given else "modality", origin, Confidence.MEDIUM, local_only=True)


#: Methods that a dictionary alone has.
OF_DICTIONARY: Final = frozenset({"values", "items", "keys"})


def is_dictionary(frame: Frame, node: ast.expr) -> bool:
    """Does the function use a name as a dictionary: ``losses.items()``, ``update(**losses)``? It is empty on all ranks
    or on none, as its keys are mostly names."""
    return isinstance(node, ast.Name) and frame.function is not None and node.id in _dictionaries(frame.function)


@kept_by_node(1024)
def _dictionaries(function: ast.AST) -> frozenset[str]:
    found = set[str]()
    for node in inside(function):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in OF_DICTIONARY:
            found.add(last_part(node.func.value))
        found |= {last_part(keyword.value) for keyword in node.keywords if keyword.arg is None}
    return frozenset(found)


#: A list of gradients by name, of which a rank may have none.
_GRADIENTS = re.compile(r"(^|_)(grads|gradients)(_|$)")


def are_gradients(name: str) -> bool:
    return _GRADIENTS.search(name) is not None


def own_gradients(frame: Frame, node: ast.AST) -> Variation:
    """Why no parameter has a gradient on some ranks."""
    origin = Label(frame.span(node), "a rank without gradients in its part of the parameters has none here")
    return Variation.of_data("gradients", origin, Confidence.MEDIUM, local_only=True)


def own_emptiness(frame: Frame, node: ast.AST) -> Variation:
    """Why a tensor is empty on some ranks."""
    origin = Label(frame.span(node), "a rank whose data yields nothing has an empty tensor here")
    return Variation.of_data("emptiness", origin, Confidence.MEDIUM, local_only=True)


def own_longest(frame: Frame, node: ast.AST) -> Variation:
    """Why sequences are as long as they are."""
    origin = Label(frame.span(node), "the sequences of each rank are as long as its longest one")
    return Variation("data", "the length of this rank's sequences", origin=origin, confidence=Confidence.MEDIUM)

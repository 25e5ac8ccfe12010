from __future__ import annotations

import ast
import collections
import re
from collections.abc import Sequence

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix
from ddp_lint.knowledge.tensors import is_factory, names, words_of
from ddp_lint.launch.alone import modules_around
from ddp_lint.launch.callers import CallSite, call_sites
from ddp_lint.launch.helpers import helper_of
from ddp_lint.launch.ranks import meets_no_ranks, several_ranks
from ddp_lint.launch.search import importers, programs
from ddp_lint.launch.texts import is_installed
from ddp_lint.launch.uncalled import is_in_no_step
from ddp_lint.launch.unused import does_something
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.rules.base import Rule
from ddp_lint.rules.numerics.cosines import returns_cosine
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import SourceFile, dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import calls_in, is_false, receiver
from ddp_lint.source.syntax import parameters, walk
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.tensors.contexts import comes_untrained, evaluation_only, may_train, without_gradient
from ddp_lint.tensors.evaluated import called_without_gradient
from ddp_lint.view.wraps import argument

#: Where small constants become 0; not in bfloat16, whose exponents are those of single precision: what may be either
#: says nothing beside it.
_HALF = re.compile(r"\.half\b|(?<!b)float16|fp16|GradScaler", re.IGNORECASE)
_EITHER = re.compile(r"autocast|\bamp\b|mixed_precision", re.IGNORECASE)
_BFLOAT = re.compile(r"bfloat16|\bbf16", re.IGNORECASE)
#: Under autocast, which computes these in single precision whatever their input is, no constant becomes 0.
_AUTOCAST = re.compile(r"autocast|\bamp\b|GradScaler|mixed_precision", re.IGNORECASE)
_KEPT_SINGLE = ("softmax", "gumbel_softmax")
#: Words by which the files are found that may train in half precision what another file defines.
_HALF_WORDS = ("autocast", "GradScaler", "fp16", "float16", "mixed_precision", "amp")
#: What takes the precision from settings that are no code: a JSON file for DeepSpeed, an option for the others.
_WHOLE = ("deepspeed",)  # makes the whole model one of half precision
_BY_SETTINGS = (*_WHOLE, "accelerate", "lightning", "pytorch_lightning", "TrainingArguments")

#: Methods that take elements of a tensor as they are.
_TAKES = ("gather", "index_select", "squeeze", "unsqueeze", "view", "reshape", "flatten", "transpose", "permute")
#: Methods that give numbers to be shown. What is detached may weigh a loss, and make that NaN.
_NUMBERS = ("item", "tolist")
_STEPS = 4  # names and parts that are followed
# What saturates: the advice, and the function that a fix may put instead ("" where none takes the same arguments).
_LAYERS = {"torch.nn.Softmax": "softmax", "torch.nn.Sigmoid": "sigmoid"}
_SATURATING = {
    "softmax": ("torch.nn.functional.log_softmax", "log_softmax"),
    "sigmoid": ("torch.nn.functional.logsigmoid", "logsigmoid"),
    "gumbel_softmax": ("the logits themselves, or clamp(min=eps) with an eps that the dtype can represent", ""),
}
#: What to use for the logarithm of 1 - p.
_OF_REST = {
    "softmax": "the logarithm of the sum of the other probabilities, torch.logsumexp of their log_softmax",
    "sigmoid": "torch.nn.functional.logsigmoid(-x)",
    "gumbel_softmax": "clamp(min=eps) with an eps that the dtype can represent",
}


_BOUNDED = ("cosine_similarity", "tanh")
_PRODUCTS = ("matmul", "mm", "bmm", "einsum")
#: What is 0 or more, and what is the largest of several: the exponential of the first, negated, is 1 at most, and so is
#: that of the difference of one of several and the second.
_NOT_NEGATIVE = ("abs", "relu", "square", "norm", "softplus", "sqrt", "cdist", "exp", "softmax", "sigmoid")
_LARGEST = ("max", "amax", "maximum", "logsumexp", "logaddexp")
#: What keeps a value below a bound that it is given, what gives no logarithm above 0.
_KEPT_BELOW = ("clamp", "clip", "clamp_max", "minimum", "min", "hardtanh")
#: What keeps a value above one, unless that is 0.
_KEPT_ABOVE = ("clamp", "clip", "clamp_min", "maximum")
_NOT_POSITIVE = ("logsigmoid", "log_softmax", "log_sigmoid")


def _whole(part: cst.BaseExpression) -> cst.BaseExpression | None:
    """What some elements are taken from, None where nothing is taken."""
    if isinstance(part, cst.Subscript):
        return part.value
    taken = isinstance(part, cst.Call) and isinstance(part.func, cst.Attribute) and part.func.attr.value in _TAKES
    return part.func.value if taken and isinstance(part, cst.Call) and isinstance(part.func, cst.Attribute) else None


def _is_shifted(powers: Sequence[cst.BaseExpression | None]) -> bool:
    """``exp(a - top) + exp(b - top)``, ``exp(-top) + exp(b - top)``: the larger of the two is 1."""
    taken = [p.right for p in powers if isinstance(p, cst.BinaryOperation) and isinstance(p.operator, cst.Subtract)]
    taken += [p.expression for p in powers if isinstance(p, cst.UnaryOperation) and isinstance(p.operator, cst.Minus)]
    return len(taken) == len(powers) and len({dotted(value) for value in taken} - {""}) == 1


def _is_call_of(value: cst.BaseExpression, functions: tuple[str, ...]) -> bool:
    return isinstance(value, cst.Call) and called(value) in functions


def _is_one(value: cst.BaseExpression) -> bool:
    return isinstance(value, (cst.Float, cst.Integer)) and float(value.evaluated_value) == 1


def _casts_to_single(assign: cst.Assign) -> bool:
    """``x = x.float()``, ``x = x.to(dtype=torch.float32)``."""
    target, made = assign.targets[0].target, assign.value
    on = receiver(made) if isinstance(made, cst.Call) else None
    if not isinstance(made, cst.Call) or on is None or not isinstance(target, cst.Name) or not target.deep_equals(on):
        return False
    to_single = any(dotted(arg.value).endswith(("float32", "torch.float")) for arg in made.args)
    return called(made) == "float" or (called(made) == "to" and to_single)


def _is_tiny(value: cst.BaseExpression) -> bool:
    """A literal constant below what half precision can add to 0."""
    return isinstance(value, (cst.Float, cst.Integer)) and 0 <= float(value.evaluated_value) < 6e-8


class LogOfSaturated(Rule):
    """The logarithm of a softmax or sigmoid that has already underflowed.

    ## What it does

    Finds `log(softmax(x))`, `log(sigmoid(x))`, `log(gumbel_softmax(x))` (as functions or methods, also through a
    variable, a function of the project that returns it, or a model that ends with it, also with a tiny constant
    added), `log(1 - softmax(x))` and `log(1 - sigmoid(x))`, `log(exp(a) + exp(b))`, `log(1 + exp(x))` and
    `log1p(exp(x))`, and the logarithm of a mask that is added to the input of a softmax.

    ## Why it breaks

    The inner function rounds to 0 (or the sum of exponentials to infinity) long before the logarithm is small:
    log(softmax([-200, 0, 200])) is [-inf, -inf, 0], and 1e-8 or 1e-10 added inside is 0 in fp16. 1 - sigmoid(17) is 0
    in single precision already: its logarithm is -inf, and the gradient NaN (measured). A row whose mask is 0
    everywhere is -inf everywhere, and its softmax is NaN. `log(1 + exp(x))` is infinite above 88.8, in fp16 above
    11.1, and its gradient is NaN there (measured). One infinity in rank 0's batch causes NaN gradients there, and the
    gradient all-reduce sends them to rank 1 and every other rank.

    ## Example

    ```python
    import torch


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.log(torch.softmax(1000 * self.linear(x), dim=-1))  # <- DDP250
    ```

    ## Use instead

    ```python
    import torch


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return torch.log_softmax(1000 * self.linear(x), dim=-1)
    ```

    ## When it is silent

    `clamp(min=...)` in between, a sigmoid or softmax of a cosine, a `tanh` or the difference of two, or of constants
    (`torch.arange(-6, 6)`), `log(1 + exp(x))` of a parameter (`self.rho`) and of what is no positive number
    (`-x.abs()`, `a - torch.max(a, b)`) or is clamped, a constant of 1e-6 or more (any constant in files without half
    precision, and any that is added to a softmax under autocast, which computes it in single precision), `log_softmax`,
    `logsigmoid`, `logsumexp`, the logarithm of a mask that is not added to anything, one that is only read with
    `item()` or `tolist()`, code under `no_grad` and functions that are called only there or with arrays alone
    (`torch.from_numpy`) or by autograd functions, which compute their gradient by hand, evaluation, inference and
    tests. Only with `--preview`: `log(sigmoid(x))` and the logarithms of exponentials in single precision and in
    bfloat16, where a sigmoid is 0 for a score below -88 alone, and an exponential overflows above 88. Float16 is what
    the file says, or one that imports it and trains, or what the programs that use it take from settings (DeepSpeed,
    accelerate, Lightning); autocast computes exponentials in single precision. A softmax of vectors' products
    (`features @ bank / t`), which are normalised more often than not, and of the cosines that a function of the project
    returns. Scores without gradients (`logits.detach()`). What
    no training of several ranks is seen to come to; a mask in a library needs none, as an empty row is NaN in every
    program.

    ## How to confirm

    `ddp-lint verify model.py`: a gradient that is not finite on both ranks.

    ## Fix safety

    Safe if one call contains the other: `log(softmax(x, dim))` and `log_softmax(x, dim)` are equal where both are
    finite.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.functional.log_softmax.html
    """

    confidence = Confidence.MEDIUM
    of_several = True
    triggers = Triggers(
        "log", "log1p", file=("softmax", "sigmoid", "gumbel_softmax", "exp", "Softmax", "Sigmoid"), tests=False
    )
    oracles = ("finite",)

    def start(self) -> None:
        self._named: dict[cst.FunctionDef, dict[str, list[cst.Name]]] = {}

    def visit_Call(self, node: cst.Call) -> None:
        operand, added = self._operand(node, "log"), self._operand(node, "log1p")
        operand = operand if added is None else added
        if operand is None or without_gradient(self.module, node) or self._is_only_shown(node):
            return
        if evaluation_only(self.module, node) or self._is_called_without_gradient(node):
            return
        power = self._power_beside_one(operand, is_added=added is not None)
        if power is not None and not self._is_kept_low(power):
            what = "the exponential overflows for a large input"
            self._report(node, what, "torch.nn.functional.softplus(x)", None, confidence=self._of_powers(node))
        if power is not None or added is not None:
            return
        if self._is_added_mask(node, operand):
            what = "the mask of a fully masked row is all 0"
            self._report(node, what, "(mask + tiny).log(), or masked_fill", None, of_any_input=True)
            return
        operand = self._behind_name(operand)
        if isinstance(operand, cst.BinaryOperation) and isinstance(operand.operator, cst.Add):
            powers = [self._operand(side, "exp") for side in (operand.left, operand.right)]
            if None not in powers and not _is_shifted(powers):
                what = "the sum of exponentials overflows"
                self._report(node, what, "torch.logaddexp(a, b)", None, confidence=self._of_powers(node))
                return
            added_to = self._behind_name(operand.left)
            kept = any(self._operand(added_to, name) is not None for name in _KEPT_SINGLE)
            if _is_tiny(operand.right) and self._in_half_precision(kept):  # in fp32 it is no zero
                operand = added_to
        self._visit_operand(node, operand)

    def _visit_operand(self, node: cst.Call, operand: cst.BaseExpression) -> None:
        """Report what saturates under the logarithm: by a function, or by a model that ends with it."""
        complement = self._taken_from_one(operand)
        for inner, (name, instead) in _SATURATING.items():
            if complement is not None and self._may_saturate(complement, inner) is not None:
                self._report(node, f"1 - {inner} rounds to 0 for a confident input", _OF_REST[inner], None)
            saturated = self._may_saturate(operand, inner)
            if saturated is not None:
                fix = self._fix(node, operand, saturated, instead)
                self._report(
                    node,
                    f"{inner} rounds to 0 for a confident input",
                    name,
                    fix,
                    confidence=self._sureness(node, inner, saturated),
                )
        of_rest = self._made(complement) if isinstance(complement, cst.Call) else ""
        if of_rest:
            self._report(node, f"1 - {of_rest} rounds to 0 for a confident input", _OF_REST[of_rest], None)
        made = self._made(operand) if isinstance(operand, cst.Call) else ""
        if made:
            what = f"{made} rounds to 0 for a confident input"
            labels = [(operand, f"ends with a {made}")]
            self._report(node, what, _SATURATING[made][0], None, labels, confidence=self._sureness(node, made))

    def _may_saturate(self, operand: cst.BaseExpression, function: str) -> cst.BaseExpression | None:
        """The argument of a function that saturates for it."""
        argument = self._operand(operand, function)
        return argument if argument is not None and not self._is_bounded(argument) else None

    def _taken_from_one(self, operand: cst.BaseExpression) -> cst.BaseExpression | None:
        """The p of ``1 - p``."""
        if not isinstance(operand, cst.BinaryOperation) or not isinstance(operand.operator, cst.Subtract):
            return None
        return self._behind_name(operand.right) if _is_one(operand.left) else None

    def _sureness(
        self, node: cst.CSTNode, saturating: str, scores: cst.BaseExpression | None = None
    ) -> Confidence | None:
        """In single precision a sigmoid is 0 for a score below -88 alone, which training hardly comes to; in half
        precision for one below -17. A softmax of vectors' products is 0 where these are not normalised."""
        if scores is not None and self._is_detached(scores):
            return Confidence.LOW
        if saturating == "sigmoid":
            return None if self._may_be_in_half_precision(node) else Confidence.LOW
        return Confidence.LOW if scores is not None and self._is_similarity(scores) else None

    def _is_detached(self, scores: cst.BaseExpression) -> bool:
        """Whether no gradient reaches the scores: ``logits.detach()``, which are there to be shown more often than to
        be trained by."""
        value = self._behind_name(scores)
        return isinstance(value, cst.Call) and called(value) == "detach"

    def _of_powers(self, node: cst.CSTNode) -> Confidence | None:
        """In single precision, which autocast computes exponentials in, they overflow for an input above 88 alone; in
        half precision for one above 11."""
        return None if self._may_be_in_half_precision(node, kept_single=True) else Confidence.LOW

    def _is_similarity(self, scores: cst.BaseExpression) -> bool:
        """Whether scores are the products of vectors, over a temperature or not: ``features @ bank / temperature``.
        Those are normalised more often than not, by the model that makes them or in a memory of them."""
        value = self._behind_name(scores)
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, (cst.Divide, cst.Multiply)):
            both = isinstance(value.operator, cst.Multiply) and self._is_of_cosines(value.right)
            return both or self._is_similarity(value.left)
        if isinstance(value, cst.BinaryOperation):
            return isinstance(value.operator, cst.MatrixMultiply)
        return isinstance(value, cst.Call) and (called(value) in _PRODUCTS or self._is_of_cosines(value))

    def _is_of_cosines(self, operand: cst.BaseExpression) -> bool:
        """Whether a function of the project returns cosines, over a temperature or not."""
        value = self._behind_name(operand)
        helper = helper_of(self.module, value) if isinstance(value, cst.Call) else None
        return helper is not None and returns_cosine(helper)

    def _power_beside_one(self, operand: cst.BaseExpression, *, is_added: bool) -> cst.BaseExpression | None:
        """The x of ``1 + exp(x)``; with `is_added` that of ``exp(x)``, to which the function adds 1."""
        operand = self._behind_name(operand)
        if is_added:
            return self._operand(operand, "exp")
        if not isinstance(operand, cst.BinaryOperation) or not isinstance(operand.operator, cst.Add):
            return None
        sides = [self._behind_name(side) for side in (operand.left, operand.right)]
        powers = [self._operand(side, "exp") for side in sides]
        return next((power for power, other in zip(powers, sides[::-1], strict=True) if _is_one(other)), None)

    def _is_kept_low(self, power: cst.BaseExpression) -> bool:
        """Whether nothing makes a large number of it: a parameter (an attribute), what is clamped or no positive
        number, and what `_is_bounded` knows."""
        value = self._behind_name(power)
        if isinstance(value, (cst.Attribute, cst.Integer, cst.Float)) or self._is_bounded(value):
            return True
        if self._is_made_of_clamped(power, _STEPS):
            return True
        if isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.Minus):
            return _is_call_of(self._behind_name(value.expression), _NOT_NEGATIVE)
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Subtract):
            return _is_call_of(self._behind_name(value.right), _LARGEST)
        return _is_call_of(value, (*_KEPT_BELOW, *_NOT_POSITIVE))

    def _is_made_of_clamped(self, value: cst.BaseExpression, depth: int) -> bool:
        """Whether each variable in an expression is clamped where it is assigned, or made of such ones: ``scale *
        (angle(cosine) - margin)`` after ``cosine = cosine.clamp(-1, 1)``. What the object has is a setting."""
        names = {n.value: n for n in subtree(value) if isinstance(n, cst.Name)}
        for each in (n for n in subtree(value) if isinstance(n, cst.Attribute)):
            names.pop(each.attr.value, None)
        names.pop("self", None)
        given = {name: [a for a in self.module.assignments(node) if a is not value] for name, node in names.items()}
        tensors = {name: values for name, values in given.items() if values}
        return depth > 0 and bool(tensors) and all(
            any(_is_call_of(each, _KEPT_BELOW) for each in values)
            or all(self._is_made_of_clamped(each, depth - 1) for each in values)
            for values in tensors.values()
        )  # fmt: skip

    def _is_only_shown(self, node: cst.Call) -> bool:
        """Whether what is made of it is there to be read, not trained by: ``entropy = -(p * log(p)).sum()``, of which
        only ``entropy.mean().item()`` is read."""
        if self._becomes_numbers(node):
            return True
        up = next((up for up in self.module.ancestors(node) if isinstance(up, cst.BaseSmallStatement)), None)
        function = self.module.function_of(node)
        target = up.targets[0].target if isinstance(up, cst.Assign) and len(up.targets) == 1 else None
        if function is None or not isinstance(target, cst.Name):
            return False
        names = self._names_in(function)[target.value]
        return len(names) > 1 and all(name is target or self._becomes_numbers(name) for name in names)

    def _names_in(self, function: cst.FunctionDef) -> dict[str, list[cst.Name]]:
        """The places of each name; collected once, as a function may have thousands of logarithms."""
        if function not in self._named:
            self._named[function] = collections.defaultdict(list)
            for node in descendants(function.body):
                if isinstance(node, cst.Name):
                    self._named[function][node.value].append(node)
        return self._named[function]

    def _becomes_numbers(self, node: cst.CSTNode) -> bool:
        """Whether the expression around makes numbers of it: by `item()` or `tolist()`."""
        inner = node
        for up in self.module.ancestors(node):
            if isinstance(up, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                return False
            if isinstance(up, cst.Attribute) and up.value is inner and up.attr.value in _NUMBERS:
                return True
            inner = up
        return False

    def _made(self, call: cst.Call) -> str:
        """Which saturating function gives what a function of the project, or a layer of the class, returns; '' for
        none."""
        helper = helper_of(self.module, call)
        if helper is not None:
            names = {_function_of(helper.facts, value) for value in helper.returned}
            name = names.pop() if len(names) == 1 else ""
            return name if name in _SATURATING else ""
        made = self.module.assignments(call.func)
        layer = made[0] if len(made) == 1 else None
        while isinstance(layer, cst.Call) and self.module.qualified(layer.func) == "torch.nn.Sequential" and layer.args:
            layer = layer.args[-1].value
        kind = self.module.qualified(layer.func) if isinstance(layer, cst.Call) else ""
        return _LAYERS.get(kind, "")

    def _is_bounded(self, operand: cst.BaseExpression, depth: int = _STEPS) -> bool:
        """Whether it lies near 0, where nothing rounds to 0: a cosine, a tanh, the sum or the difference of some, also
        out of a function of the file. No gradient reaches what is made of Python values."""
        value = self._behind_name(operand)
        if depth == 0:
            return False
        if isinstance(value, cst.UnaryOperation):
            return self._is_bounded(value.expression, depth)
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, (cst.Add, cst.Subtract)):
            return self._is_bounded(value.left, depth - 1) and self._is_bounded(value.right, depth - 1)
        if self._is_cosine(value):
            return True
        if not isinstance(value, cst.Call):
            return False
        return called(value) in _BOUNDED or self._is_made_of_values(value) or self._returns_bounded(value, depth - 1)

    def _is_cosine(self, value: cst.BaseExpression) -> bool:
        """The product of normalised vectors: ``a @ b.T``, ``torch.sum(a * b, 1)`` of ``a = F.normalize(a)``."""
        operator: type[cst.BaseBinaryOp] = cst.MatrixMultiply
        methods: tuple[str, ...] = ("matmul", "mm", "bmm")
        if isinstance(value, cst.Call) and called(value) == "sum":
            operator, methods = cst.Multiply, ("mul", "multiply")
            value = next(iter(self._operands_of(value)), value)
        if isinstance(value, cst.BinaryOperation):
            factors = [value.left, value.right] if isinstance(value.operator, operator) else []
        else:
            factors = self._operands_of(value) if isinstance(value, cst.Call) and called(value) in methods else []
        return len(factors) > 1 and all(map(self._is_normalised, factors))

    def _operands_of(self, call: cst.Call) -> list[cst.BaseExpression]:
        """The tensors of ``a.mm(b)`` and ``torch.mm(a, b)``, with the further arguments by position."""
        on = None if self.module.qualified(call.func) else receiver(call)
        return [*([on] if on is not None else []), *(arg.value for arg in call.args if arg.keyword is None)]

    def _is_normalised(self, vector: cst.BaseExpression) -> bool:
        value = self._behind_name(vector)
        if isinstance(value, cst.Attribute):  # `b.T`
            value = self._behind_name(value.value)
        return isinstance(value, cst.Call) and self.module.qualified(value.func) == "torch.nn.functional.normalize"

    def _is_made_of_values(self, call: cst.Call) -> bool:
        name, wanted = self.module.qualified(call.func), argument(call, None, "requires_grad")
        return is_factory(name) and name != "torch.as_tensor" and (wanted is None or is_false(wanted))

    def _returns_bounded(self, call: cst.Call, depth: int) -> bool:
        functions = [b.node for b in self.module.bindings(call.func) if b.kind == "function"]
        returned = (n for f in functions for n in descendants(f, into_definitions=False) if isinstance(n, cst.Return))
        values = [each.value for each in returned]
        return bool(values) and all(value is not None and self._is_bounded(value, depth) for value in values)

    def _is_called_without_gradient(self, node: cst.Call) -> bool:
        function = self.module.function_of(node)
        sites = call_sites(self.module, function) if function is not None else ()
        if function is None or not sites:
            return False
        calls = self.module.calls_named(function.name.value)
        evaluates = len(calls) == len(sites) and all(evaluation_only(self.module, call) for call in calls)
        return evaluates or all(called_without_gradient(site) or _is_given_data(site) for site in sites)

    def _is_added_mask(self, node: cst.Call, operand: cst.BaseExpression) -> bool:
        """``vector + mask.log()``, which a softmax makes NaN of where nothing is left of a row; not of a mask that is
        kept above 0: ``torch.max(1 - taken, eps)``."""
        added = isinstance(up := self.module.parent(node), cst.BinaryOperation) and isinstance(up.operator, cst.Add)
        if not added or "mask" not in words_of(dotted(operand).rpartition(".")[2]):
            return False
        function = self.module.function_of(node)
        softmax = function is not None and any("softmax" in called(call) for call in calls_in(function.body))
        return softmax and not self._is_kept_above(self._behind_name(operand))

    def _is_kept_above(self, value: cst.BaseExpression) -> bool:
        if isinstance(value, cst.BinaryOperation):
            return isinstance(value.operator, cst.Add) and isinstance(value.right, (cst.Float, cst.Integer))
        if not isinstance(value, cst.Call):
            return False
        of_two = called(value) == "max" and len(self._operands_of(value)) > 1 and argument(value, None, "dim") is None
        dimension = isinstance(self._operands_of(value)[-1], (cst.Integer, cst.UnaryOperation)) if of_two else False
        return (of_two and not dimension) or called(value) in _KEPT_ABOVE

    def _may_be_in_half_precision(self, node: cst.CSTNode, *, kept_single: bool = False) -> bool:
        """Whether the file is run in half precision, or the programs that come to a place use what takes the precision
        from settings; where these are not seen, this file or one that imports it. `kept_single`: of what autocast
        leaves in single precision."""
        if self._is_made_single(node):
            return False
        if self._in_half_precision(kept_single):
            return True
        words = _WHOLE if kept_single else _BY_SETTINGS
        around = self._modules_around(node, words)
        files = [each.file for each in around]
        of_bfloat = any(file.shows(_BFLOAT) for file in files) and not any(file.shows(_HALF) for file in files)
        return not of_bfloat and any(_imports(each, words) for each in around)

    def _is_made_single(self, node: cst.CSTNode) -> bool:
        """Whether the function around casts what it is given: ``logits = logits.float()``."""
        function = self.module.function_of(node)
        assigned = (n for n in descendants(function.body) if isinstance(n, cst.Assign)) if function is not None else ()
        return any(_casts_to_single(each) for each in assigned)

    def _modules_around(self, node: cst.CSTNode, words: tuple[str, ...]) -> list[ModuleFacts]:
        """The modules of the programs that come to a place; where these are not seen, this one and what imports it, of
        those that hold one of the words."""
        project, facts = self.module.project, self.module.facts
        if project is None or facts is None or not any(map(project.contents.holding, words)):
            return []
        around = modules_around(facts, project, self.module.span(node).line)
        seen = [each for each in map(project.modules.facts, around) if each is not None]
        users = seen or (facts, *(programs(project, self.module.name, holding=words) if self.module.name else ()))
        return [each for each in users if not _only_tries_out(each)]

    def _in_half_precision(self, kept_single: bool) -> bool:
        """Whether this file, or one that imports it, mentions half precision; `kept_single`: and no autocast."""
        project, name = self.module.project, self.module.name
        users = importers(project, name, holding=_HALF_WORDS) if project is not None and name else ()
        files = (self.module.file, *(user.file for user in users if not _only_tries_out(user)))
        halved = [file.code for file in files if _is_halved(file)]
        return bool(halved) and not (kept_single and any(map(_AUTOCAST.search, halved)))

    def _operand(self, node: cst.CSTNode, function: str) -> cst.BaseExpression | None:
        """The tensor of `torch.function(t)`, `F.function(t)` or `t.function(...)`."""
        if not isinstance(node, cst.Call):
            return None
        name = self.module.qualified(node.func)
        if name in (f"torch.{function}", f"torch.nn.functional.{function}", f"torch.special.{function}"):
            return node.args[0].value if node.args else None
        if not name and isinstance(node.func, cst.Attribute) and node.func.attr.value == function:
            return node.func.value if dotted(node.func.value) not in ("math", "np", "numpy", "self") else None
        return None

    def _behind_name(self, operand: cst.BaseExpression) -> cst.BaseExpression:
        """The one value that a local name was assigned, or that elements are taken from: ``p[:, 0]``,
        ``p.gather(1, actions)``."""
        for _ in range(_STEPS):
            values = self.module.assignments(operand) if isinstance(operand, cst.Name) else [_whole(operand)]
            if len(values) != 1 or values[0] is None:
                break
            operand = values[0]
        return operand

    def _report(
        self,
        node: cst.Call,
        what: str,
        instead: str,
        fix: Fix | None,
        labels: Sequence[tuple[cst.CSTNode, str]] = (),
        confidence: Confidence | None = None,
        of_any_input: bool = False,
    ) -> None:
        if confidence is None and self._harms_no_rank(node, of_any_input):
            confidence = Confidence.LOW
        self.report(
            node,
            f"{what} and its logarithm is infinite: one rank's NaN gradient reaches all",
            labels=labels,
            notes=["rank 0's NaN reaches rank 1 with the gradient all-reduce"],
            help=f"use {instead}",
            fix=fix,
            confidence=confidence,
        )

    def _harms_no_rank(self, node: cst.Call, of_any_input: bool) -> bool:
        """Whether no training of several ranks is seen to come to a place and go backward from there. What is infinite
        whatever the model computes (`of_any_input`) is so for the ranks of those, too, who use a library."""
        facts, project, owner = self.module.facts, self.module.project, self.module.class_of(node)
        if owner is not None and self.module.is_subclass(owner, "torch.autograd.Function"):
            return True  # it computes its gradient itself
        if facts is None or project is None:
            return True
        if comes_untrained(self.module, node) or meets_no_ranks(self.module, node):
            return True
        if is_in_no_step(project, facts, self.module.span(node).line):
            return True
        return several_ranks(self.module, node) is None and not (of_any_input and is_installed(project))

    def _fix(self, node: cst.Call, inner: cst.BaseExpression, argument: cst.BaseExpression, instead: str) -> Fix | None:
        """Only where one function call holds the other, and the file knows torch by its name."""
        nested = bool(node.args) and node.args[0].value is inner and isinstance(inner, cst.Call)
        if not instead or not nested or not isinstance(inner, cst.Call) or not inner.args:
            return None
        if argument is not inner.args[0].value or self.module.imports.resolve("torch") != "torch":
            return None
        rest = ", ".join(self.module.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in inner.args)
        edit = Edit(self.module.span(node), f"torch.nn.functional.{instead}({rest})")
        return Fix(f"use {instead}", Applicability.SAFE, (edit,))


def _imports(facts: ModuleFacts, words: tuple[str, ...]) -> bool:
    """Whether a module imports one of some packages, or something of such a name out of one."""
    targets = facts.imports.names.values()
    return any(part in words for target in targets for part in (target.partition(".")[0], target.rpartition(".")[2]))


def _only_tries_out(facts: ModuleFacts) -> bool:
    """Whether a file is a test, or a program that trains nothing, or is named after evaluation: a model that is trained
    in single precision may be tried out in half."""
    if facts.file.is_test or words_of(facts.name.rpartition(".")[2]) & names("branches", "evaluation"):
        return True
    return (facts.file.holds("__main__") or does_something(facts)) and not may_train(facts)


def _is_halved(file: SourceFile) -> bool:
    """Whether a file mentions half precision, or what may be of it, without bfloat16."""
    return file.shows(_HALF) or (file.shows(_EITHER) and not file.shows(_BFLOAT))


def _is_given_data(site: CallSite) -> bool:
    """Whether a call gives nothing but what comes from arrays, which no gradient flows to."""
    given = [*site.node.args, *(keyword.value for keyword in site.node.keywords)]
    return bool(given) and all(_is_data(value, site, _STEPS) for value in given)


def _is_data(value: ast.expr, site: CallSite, depth: int) -> bool:
    """Whether a value is made of arrays: by its names, up to `depth` of them, by methods, or by a comprehension."""
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)):
        return _is_data(value.elt, site, depth)
    if isinstance(value, ast.Call):
        name = site.facts.qualified(value.func)
        of = value.func.value if isinstance(value.func, ast.Attribute) and value.func.attr != "requires_grad_" else None
        return name == "torch.from_numpy" or (not name and of is not None and _is_data(of, site, depth))
    name, around = dotted_ast(value), site.around
    if not name or around is None or depth == 0 or name in (p.arg for p in parameters(around)):
        return False
    above = (n for n in walk(around) if isinstance(n, (ast.ListComp, ast.For)) and any(m is site.node for m in walk(n)))
    loops = (each for n in above for each in (n.generators if isinstance(n, ast.ListComp) else [n]))
    made = [*assigned_in(around, name), *(each.iter for each in loops if dotted_ast(each.target) == name)]
    return bool(made) and all(_is_data(each, site, depth - 1) for each in made)


def _function_of(facts: ModuleFacts, value: ast.expr) -> str:
    """The last part of the name of the function of torch, or of the method, that makes a value; '' for others."""
    if not isinstance(value, ast.Call):
        return ""
    name = facts.qualified(value.func)
    method = value.func.attr if isinstance(value.func, ast.Attribute) and not name else ""
    return name.rpartition(".")[2] if name.startswith("torch.") else method

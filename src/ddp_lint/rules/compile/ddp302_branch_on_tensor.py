from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.search import returned_by
from ddp_lint.rules.compile.host import HostRule, Place, truth_values
from ddp_lint.rules.compile.host_reads import repeated
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import holding
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import returned_values
from ddp_lint.source.tree import called, descendants, names_in, subtree
from ddp_lint.tensors.contexts import half_precision_only
from ddp_lint.tensors.evaluation import compares_objects


class BranchOnTensor(HostRule):
    """A branch in forward or in compiled code depends on the value of a tensor.

    ## What it does

    Finds `if torch.isnan(x).any():`, `while err.max() > tol:` and `a if mask.all() else b` where the condition is a
    tensor computed from arguments, parameters or layers: in any function that `torch.compile` reaches, also from
    another file of the project, and in the training forward of any `nn.Module`.

    ## Why it breaks

    Python needs the value to continue: the host waits for the GPU in every forward, and `torch.compile` breaks the
    graph at every such branch, also with scalar capture (4 graphs for 3 branches; an error with `fullgraph=True`;
    measured on torch 2.11 and 2.13). The value comes from the rank's own batch, so rank 0 and rank 1 can take
    different branches: if these use different layers, DDP raises at the second step, and FSDP2 is silently wrong (0.04
    off a single-process run) or hangs.

    ## Example

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            h = self.fc(x)
            if torch.isnan(h).any():  # <- DDP302
                h = torch.nan_to_num(h)
            return h


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## Use instead

    ```python
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return torch.nan_to_num(self.fc(x))


    def ddp_lint_example():
        return Net(), (torch.randn(4, 8),)
    ```

    ## When it is silent

    Conditions on shapes, dtypes, devices, `is None`, `len`, flags; `assert` of a tensor (it breaks no graph); branches
    under `torch.compiler.is_compiling()`, `torch.compiler.disable`, `if not self.training`, logging and debugging
    switches, `torch.no_grad()`, tests, what runs for values that are not finite, before an error or in an arm that ends
    the program alone; conditions that are not proven to be tensors; a tuple of tensors compared with a number;
    arguments that every caller passes from the host, branches that no caller reaches. Only with `--preview`: a check
    that only raises; a branch outside of compiled code that a forward reaches once, unless it sets a flag that is
    returned or fills in by the mask that it asks for (`if mask.any(): x = x.masked_fill(mask, 0)`); one that tests
    first whether the tensor is of half precision (`x.dtype == torch.float16 and torch.isinf(x).any()`); one outside of
    compiled code that only programs of one process come to, or only programs that train nothing. A branch in a loop
    over layers or items, or in a helper that several functions of one file call, is reported by default.

    ## How to confirm

    `ddp-lint verify model.py`: `torch._dynamo.explain` names this line as the reason of a break.

    ## Fix safety

    No automatic fix: `torch.where`, `torch.nan_to_num`, mask arithmetic, `torch.cond`.

    ## References

    - https://pytorch.org/docs/stable/torch.compiler_faq.html#graph-breaks
    """

    confidence = Confidence.MEDIUM
    of_small_harm = True
    triggers = Triggers(Trait.BRANCHES, file=("torch",), tests=False)
    oracles = ("graph_break", "sync")

    def visit_If(self, node: cst.If) -> None:
        self._look(node.test)

    def visit_While(self, node: cst.While) -> None:
        self._look(node.test)

    def visit_IfExp(self, node: cst.IfExp) -> None:
        self._look(node.test)

    def _look(self, test: cst.BaseExpression) -> None:
        candidates = [c for c in truth_values(test) if _may_be_tensor(c)]
        if not candidates or not self.may_run(self.module.function_of(test)):
            return
        for condition in candidates:
            place = self._place_of_tensor(condition, test)
            if place is not None:
                self.report(
                    test,
                    f"this branch reads {self.module.quoted(condition)}: each rank waits for its GPU, and "
                    "a compiled graph breaks",
                    labels=place.labels,
                    notes=[
                        place.outcome,
                        "each rank decides by its own batch: rank 0 and rank 1 may take different branches",
                    ],
                    help="use torch.where, torch.nan_to_num or mask arithmetic instead of the branch",
                    confidence=self._sureness(condition, test, place),
                )
                return

    def _sureness(self, condition: cst.BaseExpression, test: cst.BaseExpression, place: Place) -> Confidence:
        """A level less where one forward has to decide once by what it computed, and where half precision alone comes
        by. It has not to where the branch fills in by the mask that it asks for: that changes nothing where no element
        is set."""
        branch = self.module.parent(test)
        repeats = (
            repeated(self.module, test) or _sets_returned_flag(branch, place.function) or _fills_by(condition, branch)
        )
        if place.surely_compiled:
            return Confidence.HIGH if repeats else Confidence.MEDIUM
        if _only_raises(self.module.parent(test)):
            return Confidence.LOW  # a check of the input, on purpose
        if half_precision_only(self.module, condition):
            return Confidence.LOW
        return Confidence.MEDIUM if repeats else Confidence.LOW

    def _place_of_tensor(self, condition: cst.BaseExpression, test: cst.BaseExpression) -> Place | None:
        function = self.module.function_of(test)
        if function is None:
            return None
        value = self.value(condition, function)
        bare_argument = isinstance(condition, cst.Name) and bool(value.argument)
        if any(_number_checked(outer) & names_in(condition) for outer in holding(self.module, test)):
            return None
        if _asks_for_object(returned_by(self.module, condition)) or self._stands_for_sequence(condition, test):
            return None
        if not value.tensorish or bare_argument or _type_checked(test) & names_in(condition):
            return None
        place = self.place(condition)
        if place is None or not (value.tensor or place.surely_compiled):
            return None
        return place if self.costs(condition, place) else None

    def _stands_for_sequence(self, condition: cst.BaseExpression, test: cst.BaseExpression) -> bool:
        """Whether a number stands for a tuple or a list of tensors, which the branch makes: ``elif last == 0: last =
        (zeros, zeros)``. Python compares a sequence with a number without a look at what is in it."""
        branch = self.module.parent(test)
        if not isinstance(condition, cst.Comparison) or not isinstance(branch, cst.If):
            return False
        if not all(isinstance(each.comparator, cst.BaseNumber) for each in condition.comparisons):
            return False
        made = (n for n in descendants(branch.body) if isinstance(n, cst.Assign) and len(n.targets) == 1)
        name = dotted(condition.left)
        return any(dotted(n.targets[0].target) == name and isinstance(n.value, (cst.Tuple, cst.List)) for n in made)


def _may_be_tensor(condition: cst.BaseExpression) -> bool:
    """Whether a condition may be a tensor, by its form: the reading of a function takes long."""
    if isinstance(condition, cst.Comparison):
        return not compares_objects(condition)
    return isinstance(condition, (cst.Call, cst.Name, cst.Subscript))


def _asks_for_object(returned: ast.expr | None) -> bool:
    """Whether a helper looks at the object and not at its numbers: ``def exists(x): return x is not None``."""
    if isinstance(returned, ast.Compare):
        return all(isinstance(operator, (ast.Is, ast.IsNot)) for operator in returned.ops)
    return isinstance(returned, ast.Call) and dotted_ast(returned.func) == "isinstance"


def _sets_returned_flag(branch: cst.CSTNode | None, function: cst.FunctionDef) -> bool:
    """Whether the branch sets a flag that the function returns: ``skip = True``, ``return loss, skip``. What the caller
    then does it does on this rank alone."""
    if not isinstance(branch, cst.If):
        return False
    flags = {
        dotted(n.targets[0].target)
        for n in descendants(branch.body)
        if isinstance(n, cst.Assign) and dotted(n.value) in ("True", "False")
    } - {""}
    return bool(flags) and any(flags & names_in(value) for value in returned_values(function))


def _fills_by(condition: cst.BaseExpression, branch: cst.CSTNode | None) -> bool:
    """``if mask.any(): x = x.masked_fill(mask, 0)``"""
    if not isinstance(condition, cst.Call) or called(condition) != "any" or not isinstance(branch, cst.If):
        return False
    is_method = isinstance(condition.func, cst.Attribute) and not condition.args
    name = dotted(condition.func).rpartition(".")[0] if is_method else dotted(condition.args[0].value)
    calls = (n for n in descendants(branch.body) if isinstance(n, cst.Call) and called(n) in _FILLING)
    fills = (call for call in calls if len(call.args) > 1)  # `torch.where` of one looks for places
    return bool(name) and any(name in names_in(argument) for call in fills for argument in call.args)


#: Operations that take a mask and values for what it holds.
_FILLING = frozenset({"masked_fill", "masked_fill_", "where"})


def _only_raises(branch: cst.CSTNode | None) -> bool:
    """``if tokens.sum() != count: raise ValueError(..)``."""
    body = branch.body.body if isinstance(branch, cst.If) and isinstance(branch.body, cst.IndentedBlock) else ()
    lines = [line for line in body if isinstance(line, cst.SimpleStatementLine)]
    return len(body) == 1 == len(lines) and isinstance(lines[0].body[0], cst.Raise)


def _type_checked(test: cst.BaseExpression) -> set[str]:
    """Names whose type the same condition tests: ``isinstance(x, float) and x > 0``."""
    calls = [n for n in subtree(test) if isinstance(n, cst.Call) and n.args]
    asking = [c for c in calls if dotted(c.func).rpartition(".")[2] in ("isinstance", "is_tensor")]
    return {dotted(c.args[0].value) for c in asking}


def _number_checked(test: cst.BaseExpression) -> set[str]:
    """Names that a condition around says are numbers: ``isinstance(lengths, int)``."""
    if not isinstance(test, cst.Call) or dotted(test.func) != "isinstance" or len(test.args) != 2:
        return set()
    kinds = names_in(test.args[1].value)
    return {dotted(test.args[0].value)} if kinds and kinds <= {"int", "float", "bool", "str"} else set()

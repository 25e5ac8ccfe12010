from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import canonical, table
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.queries import model_path
from ddp_lint.source.tree import descendants, subtree
from ddp_lint.view.wraps import Wrap, unmoved

#: apex's wrapper of that name does not raise.
_DDP = "torch.nn.parallel.DistributedDataParallel"
#: Methods that leave it at what the parameters require, whatever they return.
_KEEP = frozenset(
    {*table("tensors")["layers"]["returning_module"], "load_state_dict", "state_dict"} - {"requires_grad_", "apply"}
)
_EVERY = ("parameters", "named_parameters")


class FrozenModelWrapped(Rule):
    """A model without any parameter that requires a gradient is wrapped with DDP, which raises.

    ## What it does

    Finds `DDP(model)` where the same function has frozen all parameters of the model before
    (`model.requires_grad_(False)`, or a loop over `model.parameters()`) and nothing between may give it a parameter
    that requires a gradient: the teacher of a distillation, a frozen encoder, the discriminator of a loss.

    ## Why it breaks

    DDP has nothing to reduce then, and its constructor raises on every rank: `DistributedDataParallel is not needed
    when a module doesn't have any parameters that require a gradient.` In one process, where the wrap is left out, the
    same code runs: so it is the first job with rank 0 and rank 1 that ends there. Measured on gloo and NCCL, torch 2.13
    and 2.11. What never gets a gradient needs no wrapper: it is equal on all ranks as long as they load the same
    weights.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same teacher on all ranks
    student, teacher = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    teacher.requires_grad_(False)
    student = DDP(student)
    teacher = DDP(teacher)  # <- DDP632
    x = torch.randn(8, 4)
    torch.nn.functional.mse_loss(student(x), teacher(x)).backward()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same teacher on all ranks
    student, teacher = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    teacher.requires_grad_(False)
    student = DDP(student)
    x = torch.randn(8, 4)
    torch.nn.functional.mse_loss(student(x), teacher(x)).backward()
    dist.destroy_process_group()
    ```

    ## When it is silent

    A model that something between the two may change: a part that is unfrozen or replaced, a function that is given the
    model, another name for it; a freeze under a test that does not hold for the wrap; a wrap under a test for what
    requires a gradient; FSDP, which wraps frozen models, and `accelerator.prepare`, which leaves them as they are.

    ## How to confirm

    `ddp-lint verify train.py`: the constructor raises on every rank.

    ## Fix safety

    No automatic fix: leave the wrapper out, and load the same weights on all ranks.

    ## References

    - https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("DistributedDataParallel", tests=False)
    oracles = ("exception",)

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if isinstance(target, cst.Attribute) and target.attr.value == "requires_grad" and dotted(node.value) == "False":
            self._check(node, target.value)

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "requires_grad_":
            return
        if [dotted(arg.value) for arg in node.args] == ["False"]:
            self._check(node, node.func.value)

    def _check(self, node: cst.CSTNode, frozen: cst.BaseExpression) -> None:
        whole = self._whole(node, frozen)
        name = model_path(self.module, frozen) if whole is not None else ""
        if whole is None or not name:
            return
        behind = (wrap for wrap in self._wraps[name] if self.module.wraps.before(whole, wrap))
        for wrap in itertools.islice(behind, 1):
            if self._is_frozen_at(whole, name, wrap):
                self.report(
                    wrap.call,
                    f"DDP raises here: no parameter of `{name}` requires a gradient",
                    notes=["rank 0 and rank 1 both end in the constructor; in one process, without the wrap, it runs"],
                    labels=[(node, "all its parameters are frozen here")],
                    help=f"use `{name}` without a wrapper: what gets no gradients has none to average",
                )

    @functools.cached_property
    def _wraps(self) -> dict[str, list[Wrap]]:
        """The wraps with DDP, by the name of what they wrap."""
        found = collections.defaultdict[str, list[Wrap]](list)
        for wrap in self.module.wraps.all:
            if not wrap.tested and canonical(self.module.qualified(wrap.call.func)) == _DDP:
                found[wrap.inner].append(wrap)
        return found

    def _whole(self, node: cst.CSTNode, frozen: cst.BaseExpression) -> cst.CSTNode | None:
        """The statement that freezes a model: a loop over all its parameters with nothing else in it, or a call on the
        model itself. None for some of the parameters."""
        up = self.module.parent(node)
        line = self.module.parent(up) if isinstance(up, cst.Expr) else up
        if not isinstance(line, cst.SimpleStatementLine):
            return None
        loop = next(
            (each for each in self.module.ancestors(line) if isinstance(each, (cst.For, cst.FunctionDef))), None
        )
        if not isinstance(loop, cst.For):
            return line if isinstance(node, cst.Call) else None
        over = loop.iter.func if isinstance(loop.iter, cst.Call) and not loop.iter.args else None
        if not isinstance(over, cst.Attribute) or over.attr.value not in _EVERY or loop.orelse is not None:
            return None
        names = {part.value for part in subtree(loop.target) if isinstance(part, cst.Name)}
        return loop if dotted(frozen) in names and list(loop.body.body) == [line] else None

    def _is_frozen_at(self, whole: cst.CSTNode, name: str, wrap: Wrap) -> bool:
        """Whether the model comes to the wrap as it was left."""
        around = [(self.module.code(test), taken) for test, taken in conditions(self.module, wrap.call)]
        left = [(self.module.code(test), taken) for test, taken in conditions(self.module, whole)]
        if any("requires_grad" in test for test, _ in around) or not all(each in around for each in left):
            return False
        return all(self._keeps(mention) for mention in self._between(whole, name, wrap))

    def _between(self, whole: cst.CSTNode, name: str, wrap: Wrap) -> Iterator[cst.CSTNode]:
        """Where the code between has the name."""
        order = self.module.order
        assign = next(
            (up for up in self.module.ancestors(wrap.call) if isinstance(up, cst.BaseSmallStatement)), wrap.call
        )
        inside = {id(node) for top in (whole, assign) for node in subtree(top)}
        for node in self._mentions(self.module.function_of(wrap.call))[name]:
            if order[whole] < order[node] < order[wrap.call] and id(node) not in inside:
                yield node

    @functools.cached_property
    def _mentioned(self) -> dict[cst.FunctionDef | None, dict[str, list[cst.CSTNode]]]:
        return {}

    def _mentions(self, function: cst.FunctionDef | None) -> dict[str, list[cst.CSTNode]]:
        """The names in a function, with the places that have them: found once for all models that it freezes."""
        if function not in self._mentioned:
            found = collections.defaultdict[str, list[cst.CSTNode]](list)
            for node in descendants(function.body if function is not None else self.module.tree):
                if isinstance(node, (cst.Name, cst.Attribute)):
                    found[dotted(node)].append(node)
            self._mentioned[function] = found
        return self._mentioned[function]

    def _keeps(self, mention: cst.CSTNode) -> bool:
        """Whether a mention of a model leaves it frozen: a method that does, a print, or a target of its own result."""
        up = self.module.parent(mention)
        if isinstance(up, cst.Attribute):
            around = self.module.parent(up)
            return up.attr.value in _KEEP and isinstance(around, cst.Call) and around.func is up
        if isinstance(up, cst.Arg):
            around = self.module.parent(up)
            return isinstance(around, cst.Call) and dotted(around.func) == "print"
        if isinstance(up, cst.AssignTarget):
            assign = self.module.parent(up)
            value = assign.value if isinstance(assign, cst.Assign) else None
            return value is not None and dotted(unmoved(value)) == dotted(mention)
        return False

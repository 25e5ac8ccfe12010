from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import canonical
from ddp_lint.project import Project
from ddp_lint.project.facts import ClassFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.wrapped_classes import kinds_of, with_parts
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.syntax import defaults, positional, statements, walk
from ddp_lint.view.as_ast import as_ast

_CONVERTS = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"
#: What the conversion replaces: these, and whatever inherits from them.
_NORMS = (
    "torch.nn.BatchNorm1d", "torch.nn.BatchNorm2d", "torch.nn.BatchNorm3d", "torch.nn.SyncBatchNorm",
    "torch.nn.modules.batchnorm._BatchNorm",
)  # fmt: skip
#: Methods of a tensor that give its dimensions another order: SyncBatchNorm takes the second one for the channels.
_REORDERS = frozenset({"transpose", "permute", "movedim", "swapaxes"})
_ARITHMETIC = (ast.Mult, ast.Add, ast.Sub, ast.Div)
#: Layers that leave what they get as it is.
_NOTHING = frozenset({"Identity", "None"})


class ForwardLostInConversion(Rule):
    """`convert_sync_batchnorm` replaces a subclass of BatchNorm that does more than normalise: its forward is lost.

    ## What it does

    Finds `convert_sync_batchnorm(model)` where the model has objects of a class of the project that inherits from
    `BatchNorm1d`, `2d` or `3d`, and whose own `forward` does something with what the batch norm returns (an activation,
    a scale and a shift), gives it another order of dimensions, or takes further arguments.

    ## Why it breaks

    The conversion replaces every instance of BatchNorm, also of subclasses, by a plain `SyncBatchNorm` with the same
    weights. The forward of the subclass does not run any more: an activation that was fused into it is gone, and the
    network is linear there. Nothing raises, on rank 0 or on rank 1, as the children of the layer stay registered. With
    one GPU, where nobody converts, the model is right. Measured on two ranks with gloo (torch 2.13): what a batch norm
    with a LeakyReLU returns has its negative values unchanged after the conversion; one whose forward takes two
    arguments raises a TypeError.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP


    class NormAct(nn.BatchNorm1d):
        def __init__(self, width):
            super().__init__(width)
            self.act = nn.LeakyReLU(0.1)

        def forward(self, x):
            return self.act(super().forward(x))


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 8), NormAct(8), nn.Linear(8, 1))

        def forward(self, x):
            return self.body(x)


    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model = Net().to(device)
    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model))  # <- DDP637
    model(torch.randn(16, 8, device=device)).square().mean().backward()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP


    class NormAct(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.BatchNorm1d(width)
            self.act = nn.LeakyReLU(0.1)

        def forward(self, x):
            return self.act(self.norm(x))


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 8), NormAct(8), nn.Linear(8, 1))

        def forward(self, x):
            return self.body(x)


    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model = Net().to(device)
    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(model))
    model(torch.randn(16, 8, device=device)).square().mean().backward()
    dist.destroy_process_group()
    ```

    ## When it is silent

    A forward that only changes the type of its argument or result, or computes the normalisation in another way; an
    activation that is `nn.Identity()`; models whose class is not seen to make such a layer; converters of other
    packages and of the project itself, such as timm's, which keep the activation.

    ## How to confirm

    `ddp-lint verify train.py`: the conversion replaced layers with a forward of their own.

    ## Fix safety

    No automatic fix: a module that has the batch norm as a part has other names in its checkpoints.

    ## References

    - https://github.com/pytorch/pytorch/issues/187298
    - https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("convert_sync_batchnorm", tests=False)
    oracles = ("converted",)

    def visit_Call(self, node: cst.Call) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or not node.args or self.module.file.is_test:
            return
        if canonical(self.module.qualified(node.func)) != _CONVERTS:
            return
        call = as_ast(self.module, node)
        if not isinstance(call, ast.Call) or not call.args:
            return
        for name in sorted(with_parts(project, kinds_of(project, facts, call, call.args[0]))):
            found = _lost(project, name)
            if found is None:
                continue
            cls, what = found
            self.report(
                node,
                f"SyncBatchNorm takes the place of `{cls.node.name}`: its forward, which {what}, is lost",
                notes=["the forward of the subclass does not run any more, on rank 0 nor on rank 1"],
                labels=[(cls.module.file.span_of(cls.methods["forward"]), "this is lost")],
                help="have the batch norm as a part of the layer, instead of inheriting from it",
            )
            return


def _lost(project: Project, name: str) -> tuple[ClassFacts, str] | None:
    """The class that defines the forward of a batch norm of the project, and what that does besides."""
    if not any(project.classes.subclass_of(name, norm) for norm in _NORMS):
        return None
    found = project.classes.method(name, "forward")
    if found is None or not isinstance(found[1], ast.FunctionDef):
        return None
    cls, forward = found
    what = _does_more(cls, forward) if any(project.classes.subclass_of(cls.name, norm) for norm in _NORMS) else ""
    return (cls, what) if what else None


def _does_more(cls: ClassFacts, forward: ast.FunctionDef) -> str:
    """What a forward does besides the normalisation, in words; '' for nothing that is seen."""
    optional = {each.arg for each, _ in defaults(forward.args)}
    if sum(each.arg not in optional for each in positional(forward)) > 2:
        return "takes another argument"
    normalised = set(_normalised(forward))
    for node in walk(forward):
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC) else ()
        if any(_is_of(side, normalised) for side in sides):
            return "scales or shifts the result"
        if not isinstance(node, ast.Call):
            continue
        if any(_is_of(given, normalised) for given in node.args) and _activates(cls, node):
            return f"calls `{dotted_ast(node.func)}`"
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in _REORDERS and _is_of(func.value, normalised):
            return "reorders the dimensions"
    return ""


def _normalised(forward: ast.FunctionDef) -> Iterator[ast.expr | str]:
    """The calls that normalise as the base class does, and the names that such a call alone gives a value."""
    calls = [node for node in walk(forward) if isinstance(node, ast.Call) and _normalises(node)]
    yield from calls
    for node in statements(forward):
        if isinstance(node, ast.Assign) and node.value in calls and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id


def _normalises(call: ast.Call) -> bool:
    """``super().forward(x)``, ``F.batch_norm(x, ...)``."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        return False
    of_super = isinstance(func.value, ast.Call) and last_part(func.value.func) == "super" and func.attr == "forward"
    return of_super or func.attr == "batch_norm" or (func.attr == "forward" and "BatchNorm" in dotted_ast(func.value))


def _is_of(node: ast.expr, normalised: set[ast.expr | str]) -> bool:
    """Whether an expression is what was normalised, also under a name below."""
    if not isinstance(node, ast.Name):
        return node in normalised
    lines = [each.lineno for each in normalised if isinstance(each, ast.expr)]
    return node.id in normalised and node.lineno > min(lines, default=node.lineno)


def _activates(cls: ClassFacts, call: ast.Call) -> bool:
    """Whether a call runs a layer of the object, or a function of `torch.nn.functional`, on its argument."""
    attribute = of_self(dotted_ast(call.func))
    if attribute:
        if attribute in cls.methods:
            return False
        made = [value for value, _ in cls.attribute(attribute)]
        names = {last_part(value.func) if isinstance(value, ast.Call) else ast.unparse(value) for value in made}
        return bool(names) and not names <= _NOTHING
    name = cls.module.qualified(call.func)
    return name.startswith("torch.nn.functional.") and not name.endswith(".batch_norm")

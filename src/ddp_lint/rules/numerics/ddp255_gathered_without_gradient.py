from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.callers import sites_in_project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.numerics.gathered import (
    Product,
    bound_at,
    bound_by,
    is_taken_care_of,
    loss_of,
    names_with,
    place_returned,
    products,
    products_alone,
    returns_alone,
    sent_by,
    source_in,
)
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at
from ddp_lint.tensors.contexts import evaluation_only_at, without_gradient
from ddp_lint.tensors.evaluated import called_without_gradient

_GATHERS = frozenset({"torch.distributed.all_gather", "torch.distributed.all_gather_into_tensor"})


class GatheredWithoutGradient(Rule):
    """Features are gathered by a collective that carries no gradient, and used in the loss as if they had one.

    ## What it does

    Finds `dist.all_gather` and `dist.all_gather_into_tensor` of a tensor which the loss multiplies with what was
    gathered, as a contrastive loss does (`image @ all_text.t()`, `text @ all_image.t()`), if nobody puts the tensor of
    the rank itself back among the gathered ones; and a loss of two gathered tensors (`all_image @ all_text.t()`), which
    trains nothing before the product. The gathering may be in a function of the project.

    ## Why it breaks

    What `torch.distributed.all_gather` fills has no graph: the features of rank 1 are constants on rank 0, and so are
    those of rank 0 on rank 0. The loss is that of the whole batch, its gradient is not: what pushes each feature away
    from, or to, those that it is compared with as one of the gathered ones is missing. Nothing raises, and the loss
    falls. Measured on two and on four ranks with gloo (torch 2.13), a CLIP loss of 16 pairs: the averaged gradient is
    34 degrees off that of one process and 0.62 times as long. With `torch.distributed.nn.functional.all_gather` it is
    equal; with `parts[rank] = x` and the loss of all pairs on each rank it has the same direction.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


    class TwoTowers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.text = torch.nn.Linear(8, 4), torch.nn.Linear(6, 4)

        def forward(self, x, y):
            return self.image(x), self.text(y)


    def gather(x):
        parts = [torch.zeros_like(x) for _ in range(world)]
        dist.all_gather(parts, x)  # <- DDP255
        return torch.cat(parts)


    def contrastive_loss(image, text):
        all_image, all_text = gather(image), gather(text)
        labels = len(image) * rank + torch.arange(len(image), device=device)
        return F.cross_entropy(image @ all_text.t(), labels) + F.cross_entropy(text @ all_image.t(), labels)


    model = DDP(TwoTowers().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        image, text = model(torch.randn(4, 8, device=device), torch.randn(4, 6, device=device))
        optimizer.zero_grad()
        contrastive_loss(image, text).backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.nn.functional import all_gather
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")


    class TwoTowers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.text = torch.nn.Linear(8, 4), torch.nn.Linear(6, 4)

        def forward(self, x, y):
            return self.image(x), self.text(y)


    def gather(x):
        return torch.cat(all_gather(x))


    def contrastive_loss(image, text):
        all_image, all_text = gather(image), gather(text)
        labels = len(image) * rank + torch.arange(len(image), device=device)
        return F.cross_entropy(image @ all_text.t(), labels) + F.cross_entropy(text @ all_image.t(), labels)


    model = DDP(TwoTowers().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        image, text = model(torch.randn(4, 8, device=device), torch.randn(4, 6, device=device))
        optimizer.zero_grad()
        contrastive_loss(image, text).backward()
        optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is silent

    `parts[rank] = x`; functions that speak of gradients themselves (`detach`, `no_grad`, `requires_grad`, a
    `Function.apply`), or whose callers turn them off, as for metrics, queues and memory banks; `autograd.Function`;
    what is gathered of a tensor that does not take part in the same products by itself (a teacher's features); losses
    of one gathered tensor alone; functions named after evaluation.

    ## How to confirm

    `ddp-lint verify train.py`: parameters lie behind what the line gathers, and the gathering cuts their gradients off.

    ## Fix safety

    No automatic fix: the gradient becomes another one, and the learning rate may have been tuned for the old one.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather
    - https://github.com/facebookresearch/SLIP/issues/31
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("all_gather", "all_gather_into_tensor", file=("torch",), tests=False)
    oracles = ("gathered",)

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) not in _GATHERS or without_gradient(self.module, node):
            return
        facts, owner = self.module.facts, self.module.class_of(node)
        if facts is None or (owner is not None and self.module.is_subclass(owner, "torch.autograd.Function")):
            return
        line = self.module.span(node).line
        function = function_at(facts.tree, line)
        calls = (call for call in calls_below(function) if call.lineno == line) if function is not None else ()
        call = next((call for call in calls if last_part(call.func).startswith("all_gather")), None)
        if function is None or call is None or is_taken_care_of(function):
            return
        parts, sent = sent_by(call)
        names = names_with(function, parts) if parts and sent else None
        if names is None:
            return
        for where, around, gathered in self._uses(facts, function, sent, names):
            for product in products(around, gathered, where):
                loss = loss_of(around, product)
                if loss is not None and not evaluation_only_at(where, around, product.node):
                    self._report(node, where, product, loss)
                    return
        self._of_gathered_alone(node, facts, function, call)

    def _of_gathered_alone(self, node: cst.Call, facts: ModuleFacts, function: FunctionNode, first: ast.Call) -> None:
        """A loss of gathered features alone (``all_image @ all_text.t()``), at the first gather of a function."""
        calls = [call for call in calls_below(function) if facts.qualified(call.func) in _GATHERS]
        if min(calls, key=lambda call: call.lineno, default=None) is not first:
            return
        met: dict[FunctionNode, tuple[ModuleFacts, dict[str, str]]] = {}
        for call in calls:
            parts, sent = sent_by(call)
            names = names_with(function, parts) if parts and sent else None
            if names is None:  # the tensor of the rank is put back, or what is done is not understood
                return
            for where, around, gathered in self._uses(facts, function, sent, names):
                met.setdefault(around, (where, {}))[1].update(gathered)
        for around, (where, gathered) in met.items():
            if around is not function and is_taken_care_of(around):
                continue
            for product in products_alone(around, gathered, where):
                loss = loss_of(around, product)
                if loss is not None and not evaluation_only_at(where, around, product.node):
                    self._report(node, where, product, loss, alone=True)
                    return

    def _uses(
        self, facts: ModuleFacts, function: FunctionNode, sent: str, names: frozenset[str]
    ) -> Iterator[tuple[ModuleFacts, FunctionNode, Mapping[str, str]]]:
        """The functions that have what is gathered: its names there, each with that of the tensor which was sent."""
        yield facts, function, dict.fromkeys(names, sent)
        source, project = source_in(function, sent), self.module.project
        if source is None or project is None:
            return
        alone = returns_alone(function, names)
        place = None if alone else place_returned(function, names)
        if not alone and place is None:
            return
        parameter, several = source
        found: dict[FunctionNode, tuple[ModuleFacts, dict[str, str]]] = {}
        for site in sites_in_project(project, facts, function):
            given = site.given(function, parameter)
            if site.around is None or given is None or called_without_gradient(site):
                continue
            if several == isinstance(given, (ast.List, ast.Tuple)):
                around, call = site.around, site.node
                bound = bound_by(around, call, given) if place is None else bound_at(around, call, given, place)
                found.setdefault(site.around, (site.facts, {}))[1].update(bound)
        for around, (where, gathered) in found.items():
            yield where, around, gathered

    def _report(
        self, node: cst.Call, where: ModuleFacts, product: Product, loss: ast.AST, *, alone: bool = False
    ) -> None:
        name = last_part(product.node.func) if isinstance(product.node, ast.Call) else "@"
        meets = f"`{product.gathered}` is constant in this `{name}`, `{product.own}` is not"
        if alone:
            meets = f"`{product.own}` and `{product.gathered}` are constant in this `{name}`: no gradient goes past it"
        self.report(
            node,
            "what this gathers has no gradient, not even for the own tensor: the loss takes all of it as constant",
            labels=[
                (where.file.span_of(product.node), meets),
                (where.file.span_of(loss), "leads to the loss"),
            ],
            notes=["the gradient on rank 0 and rank 1 is not that of the loss of the whole batch"],
            help="gather with torch.distributed.nn.functional.all_gather",
        )

from __future__ import annotations

import libcst as cst

from ddp_lint.findings import Applicability, Edit, Fix
from ddp_lint.knowledge import frameworks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.queries import is_true, literal_text
from ddp_lint.view.edits import remove_argument, set_argument
from ddp_lint.view.wraps import argument

_SEARCHING = {name: entry for entry in frameworks.every(lambda each: each.searching) for name in entry.names}


class SearchForUnusedParameters(Rule):
    """DDP searches for unused parameters after every forward, but there are none.

    ## What it does

    Finds `find_unused_parameters=True` in a call of DDP, Lightning's `DDPStrategy` or accelerate's
    `DistributedDataParallelKwargs`, Lightning's strategy "ddp_find_unused_parameters_true" and transformers'
    `ddp_find_unused_parameters=True`. Only a run shows whether a parameter is ever unused: `check` reports this only
    if the rule is selected; `verify` always checks it, and its verdict is the finding.

    ## Why it breaks

    Nothing breaks: the gradients are right. But after every forward rank 0 and rank 1 traverse the whole autograd
    graph, and in every backward they reduce one more tensor, the map of used parameters, and wait for it. Measured on
    two gloo ranks (torch 2.13), 200 small blocks with 800 parameters: forward and backward take 8 % more processor
    time. It also hides a layer that does not contribute to the loss by mistake, which otherwise raises at step 2.
    PyTorch prints this warning once, after the first forward: "find_unused_parameters=True was specified in DDP
    constructor, but did not find any unused parameters in the forward pass".

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = DDP(torch.nn.Linear(4, 4).to(device), find_unused_parameters=True)  # <- DDP621
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 4, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = DDP(torch.nn.Linear(4, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(8, 4, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    A value that is not the literal True; `static_graph=True` in the same call, which searches once. `verify` refutes
    the finding if some rank does not use a parameter in a backward whose gradients are averaged, even if `.grad` has a
    value afterwards: DDP sets it to the mean of the ranks that used it.

    ## How to confirm

    `ddp-lint verify train.py`: every parameter gets a gradient on every rank in every backward of the run. A branch
    that only later steps take is not seen by a short run.

    ## Fix safety

    Display only: without the search, a step with an unused parameter makes the next one raise. Remove the argument
    after a run has confirmed that there is no such step.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    default = False
    run_decides = True
    triggers = Triggers(
        *tuple(dict.fromkeys(word for entry in _SEARCHING.values() for word in entry.strategies or (entry.argument,)))
    )
    oracles = ("unused",)

    def visit_Call(self, node: cst.Call) -> None:
        entry = _SEARCHING.get(self.module.qualified(node.func))
        if entry is None:
            return
        arg = next((arg for arg in node.args if arg.keyword is not None and arg.keyword.value == entry.argument), None)
        if arg is None:
            return
        if entry.strategies:
            other = entry.strategies.get(literal_text(arg.value) or "")
            if other is not None:
                self._report(arg, f"use the strategy {other}", set_argument(self.module, arg, f'"{other}"'))
        elif is_true(arg.value) and not is_true(argument(node, None, "static_graph")):
            self._report(arg, "remove the argument", remove_argument(self.module, node, arg))

    def _report(self, arg: cst.Arg, title: str, edit: Edit) -> None:
        self.report(
            arg,
            "find_unused_parameters searches the autograd graph in every step: wasted time if all are used",
            help="remove the argument if `ddp-lint verify` confirms that every step uses all parameters",
            fix=Fix(title, Applicability.DISPLAY, (edit,)),
        )

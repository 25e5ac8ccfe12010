from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.helpers import helper_of
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import calls_below
from ddp_lint.view.wraps import assigned_name

_OPTIMIZER = "torch.distributed.optim.ZeroRedundancyOptimizer"
#: What brings the parts of the state together, on all ranks, before one of them asks for it.
_CONSOLIDATES = "consolidate_state_dict"


class StateOfShardedOptimizer(Rule):
    """The state of a ZeroRedundancyOptimizer is saved, and nothing has brought its parts together: it raises.

    ## What it does

    Finds `optimizer.state_dict()` of a `ZeroRedundancyOptimizer`, also in a function that gets the optimizer, in a
    project that never calls `consolidate_state_dict`.

    ## Why it breaks

    Each rank has the state of its share of the parameters alone. `state_dict()` of the whole needs
    `consolidate_state_dict(to=rank)` on all ranks before, and raises `RuntimeError` without: at the first checkpoint
    rank 0 ends, and the others wait for it in their next collective. Measured on two ranks with gloo (torch 2.13).

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
    model = DistributedDataParallel(torch.nn.Linear(4, 2).to(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9)
    model(torch.randn(2, 4, device=device)).sum().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        state = optimizer.state_dict()  # <- DDP638
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
    model = DistributedDataParallel(torch.nn.Linear(4, 2).to(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1, momentum=0.9)
    model(torch.randn(2, 4, device=device)).sum().backward()
    optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        state = optimizer.state_dict()
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Projects that call `consolidate_state_dict` anywhere; optimizers whose state nothing asks for; a state that is asked
    for in a `try`; tests.

    ## How to confirm

    `ddp-lint verify train.py`: the exception at the first checkpoint.

    ## Fix safety

    No automatic fix: `optimizer.consolidate_state_dict(to=0)` belongs where all ranks come by.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.optim.html#torch.distributed.optim.ZeroRedundancyOptimizer
    - https://github.com/zhijian-liu/torchpack/issues/18
    """

    confidence = Confidence.HIGH
    triggers = Triggers("ZeroRedundancyOptimizer", file=("ZeroRedundancyOptimizer",), tests=False)
    oracles = ("exception",)

    def visit_Call(self, node: cst.Call) -> None:
        project = self.module.project
        if self.module.qualified(node.func) != _OPTIMIZER or project is None or self.module.file.is_test:
            return
        name = assigned_name(self.module, node)
        if not name or project.contents.holding(_CONSOLIDATES):
            return
        asks = next(self._asks(node, name), None)
        if asks is not None:
            self.report(
                asks,
                "the state of a ZeroRedundancyOptimizer that nothing has consolidated: `state_dict()` raises",
                notes=["rank 0 ends here, and the others wait for it"],
                labels=[(node.func, "each rank has the state of its share alone")],
                help="optimizer.consolidate_state_dict(to=0) on all ranks first",
            )

    def _asks(self, made: cst.Call, name: str) -> Iterator[cst.Call]:
        """The calls that ask for the state of the optimizer, or give it to a function that does."""
        for call in self.module.of_type(cst.Call):
            if any(isinstance(up, cst.Try) for up in self.module.ancestors(call)):
                continue
            receiver = call.func.value if isinstance(call.func, cst.Attribute) else None
            if dotted(call.func) == f"{name}.state_dict" and receiver is not None and self._is_it(receiver, call, made):
                yield call
            for place, given in enumerate(call.args):
                is_given = dotted(given.value) == name and self._is_it(given.value, call, made)
                if is_given and not given.star and self._asks_inside(call, place, given):
                    yield call

    def _is_it(self, named: cst.BaseExpression, at: cst.Call, made: cst.Call) -> bool:
        return any(value is made for value in self.module.assignments(dotted(named), at))

    def _asks_inside(self, call: cst.Call, place: int, given: cst.Arg) -> bool:
        """Whether a function of the project asks for the state of what it gets."""
        helper = helper_of(self.module, call)
        if helper is None or not isinstance(helper.function, ast.FunctionDef):
            return False
        names = helper.positional
        name = given.keyword.value if given.keyword is not None else names[place] if place < len(names) else ""
        asked = f"{name}.state_dict"
        return bool(name) and any(dotted_ast(each.func) == asked for each in calls_below(helper.function))

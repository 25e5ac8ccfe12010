from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import is_sampler
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import calls_below
from ddp_lint.source.tree import descendants
from ddp_lint.view.wraps import argument


class SamplerBeforeProcessGroup(Rule):
    """The sampler is chosen before the process group exists, so nothing is divided between the ranks.

    ## What it does

    Finds code that builds a DistributedSampler only `if dist.is_initialized()`, and runs before
    `init_process_group` in the same program; and a sampler without explicit `num_replicas` and `rank` that is built
    before the group.

    ## Why it breaks

    Before `init_process_group`, `dist.is_initialized()` is False on every rank: each rank takes the branch for a
    single process and reads the whole dataset. Rank 0 and rank 1 train on the same samples, an epoch takes world size
    times as long, and nothing is printed. Without the guard the constructor raises on every rank.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


    def make_loader():
        dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
        sampler = DistributedSampler(dataset, shuffle=False) if dist.is_initialized() else None
        return DataLoader(dataset, batch_size=4, sampler=sampler)


    def main():
        loader = make_loader()  # <- DDP702
        dist.init_process_group("gloo")
        for (x,) in loader:
            print(dist.get_rank(), x.flatten().tolist())
        dist.destroy_process_group()


    if __name__ == "__main__":
        main()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


    def make_loader():
        dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
        sampler = DistributedSampler(dataset, shuffle=False) if dist.is_initialized() else None
        return DataLoader(dataset, batch_size=4, sampler=sampler)


    def main():
        dist.init_process_group("gloo")
        loader = make_loader()
        for (x,) in loader:
            print(dist.get_rank(), x.flatten().tolist())
        dist.destroy_process_group()


    if __name__ == "__main__":
        main()
    ```

    ## When it is silent

    `num_replicas` and `rank` given, the group initialised earlier in the function or by a known caller, branches of
    one `if`.

    ## How to confirm

    `ddp-lint verify train.py`: both ranks read the same indices.

    ## Fix safety

    No automatic fix: the group has to be initialised first.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    triggers = Triggers("init_process_group")
    oracles = ("samples", "exception")

    def visit_Call(self, node: cst.Call) -> None:
        if not self._initialises(node):
            return
        scope = self.module.scope_of(node)
        for call in descendants(scope, into_definitions=False):
            if call is node:
                return
            if not isinstance(call, cst.Call):
                continue
            if self._initialises(call) or exclusive(self.module, call, node):
                return
            how = self._samples(call)
            if how:
                self.report(
                    call,
                    f"{how} before the process group exists: rank 0 and rank 1 both read the whole dataset",
                    labels=[(node, "the group is initialised here")],
                    help="initialise the process group first",
                )

    def _initialises(self, call: cst.Call) -> bool:
        return self.module.qualified(call.func) == "torch.distributed.init_process_group"

    def _samples(self, call: cst.Call) -> str:
        """How a call builds a sampler that queries the process group, '' if it does not."""
        if is_sampler(self.module, call):
            explicit = argument(call, 1, "num_replicas") is not None and argument(call, 2, "rank") is not None
            return "" if explicit else "builds the sampler"
        definition = self._definition(self.module.callee(call))
        if definition is None:
            return ""
        for node in calls_below(definition):
            if dotted_ast(node.func).rpartition(".")[2] == "DistributedSampler":
                given = {keyword.arg for keyword in node.keywords}
                if not {"num_replicas", "rank"} <= given and len(node.args) < 3:
                    return "decides about the sampler"
        return ""

    def _definition(self, name: str) -> ast.AST | None:
        found = self.module.project.meanings.definition(name) if self.module.project is not None else None
        return found[1] if found is not None else None

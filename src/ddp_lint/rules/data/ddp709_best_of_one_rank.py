from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.ranks import on_one_rank
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import LOADER, is_sampler
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called, descendants
from ddp_lint.source.wraps import argument

#: What brings the ranks' parts together, by its name; and objects that do so by themselves.
_JOINS = re.compile(
    r"reduce|gather|synchroni[sz]e|broadcast|sync_|across|torchmetrics|\.compute\(|world_size", re.IGNORECASE
)
_BEST = re.compile(r"best|highest|lowest|min_|max_|_min|_max", re.IGNORECASE)
_SAVES = re.compile(r"save|checkpoint|state_dict", re.IGNORECASE)


class BestOfOneRank(Rule):
    """The best checkpoint is chosen by the metric of one rank's part of the validation data.

    ## What it does

    Finds a metric that a rank computes over a loader with a `DistributedSampler`, and that decides by a comparison with
    the best one so far whether the model is saved, where nothing brings the metrics of the ranks together.

    ## Why it breaks

    The sampler gives each rank its own part. With eight ranks rank 0 has seen an eighth of the validation data, and
    saves the model that happens to do well on it: another one than the best. Nothing raises, and the number in the log
    is that of the eighth. Where each rank decides for itself, some stop early or load other weights than the rest.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(0)


    def main(epochs=2):
        data = TensorDataset(torch.arange(16.0).unsqueeze(1))
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
        model = DDP(torch.nn.Linear(1, 1))
        best = float("inf")
        for _ in range(epochs):
            total = torch.zeros(())
            with torch.no_grad():
                for (x,) in loader:
                    total += (model(x) - 2 * x).square().mean()
            error = total.item() / len(loader)  # <- DDP709
            if error < best and dist.get_rank() == 0:
                best = error
                print("saved", {name: p.shape for name, p in model.module.state_dict().items()})


    main()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(0)


    def main(epochs=2):
        data = TensorDataset(torch.arange(16.0).unsqueeze(1))
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
        model = DDP(torch.nn.Linear(1, 1))
        best = float("inf")
        for _ in range(epochs):
            total = torch.zeros(())
            with torch.no_grad():
                for (x,) in loader:
                    total += (model(x) - 2 * x).square().mean()
            dist.all_reduce(total)
            error = total.item() / len(loader) / dist.get_world_size()
            if error < best and dist.get_rank() == 0:
                best = error
                print("saved", {name: p.shape for name, p in model.module.state_dict().items()})


    main()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Loaders that nothing shows to be divided; a function in which, or in whose evaluation, anything reduces, gathers or
    broadcasts; metrics of torchmetrics, which synchronise themselves; comparisons that save nothing; evaluations that
    another package does.

    ## How to confirm

    `ddp-lint verify train.py`: the value at the line differs between the ranks.

    ## Fix safety

    No automatic fix.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("DistributedSampler", file=("save", "state_dict"), tests=False)
    oracles = ("metric",)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        divided = self._divided_loaders(node)
        if not divided or _JOINS.search(self._without_sampler(node)):
            return
        for branch in descendants(node.body):
            metric = self._compared(branch) if isinstance(branch, cst.If) else ""
            made = next(iter(self.module.assignments(metric, branch)), None) if metric else None
            loader = self._read_by(made, divided, node) if made is not None else None
            if made is not None and loader is not None:
                self._report(metric, made, branch, divided[loader])
                return

    def _report(self, metric: str, made: cst.BaseExpression, branch: cst.CSTNode, loader: cst.CSTNode) -> None:
        who = "rank 0" if on_one_rank(self.module, branch) else "each rank"
        self.report(
            made,
            f"`{metric}` is that of this rank's part of the data, and decides which checkpoint is the best",
            notes=[f"{who} chooses by the samples that the sampler has given to it, not by all"],
            labels=[(loader, "each rank reads its own part"), (branch, "the best so far is decided here")],
            help="all_reduce the sums and counts before they are compared",
        )

    def _without_sampler(self, function: cst.FunctionDef) -> str:
        """The text of a function but for the making of samplers, which are told of all ranks."""
        text = self.module.code(function.body)
        for call in calls_in(function.body):
            if is_sampler(self.module, call):
                text = text.replace(self.module.code(call), "")
        return re.sub(r"init_process_group\([^)]*\)|get_world_size\(\)", "", text)

    def _divided_loaders(self, function: cst.FunctionDef) -> dict[str, cst.CSTNode]:
        """The names of loaders of a function whose sampler gives each rank its part."""
        found: dict[str, cst.CSTNode] = {}
        for node in descendants(function.body):
            if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call) and len(node.targets) == 1:
                made = node.value
                sampler = argument(made, 3, "sampler") if self.module.qualified(made.func) == LOADER else None
                values = [sampler, *self.module.assignments(sampler)] if sampler is not None else []
                if any(isinstance(v, cst.Call) and is_sampler(self.module, v) for v in values):
                    found[dotted(node.targets[0].target)] = made
        return found

    def _compared(self, branch: cst.If) -> str:
        """The metric of ``if metric > best: best = metric; save(..)``, '' for any other branch."""
        if not _SAVES.search(self.module.code(branch.body)):
            return ""
        for part in (branch.test, *descendants(branch.test)):
            if isinstance(part, cst.Comparison) and len(part.comparisons) == 1:
                sides = [dotted(part.left), dotted(part.comparisons[0].comparator)]
                best = next((side for side in sides if _BEST.search(side)), "")
                others = [side for side in sides if side and side != best]
                kept = [n for n in descendants(branch.body) if isinstance(n, cst.Assign)]
                if best and others and any(dotted(n.targets[0].target) == best for n in kept):
                    return others[0]
        return ""

    def _read_by(
        self, made: cst.BaseExpression, divided: dict[str, cst.CSTNode], function: cst.FunctionDef
    ) -> str | None:
        """The divided loader that a metric is computed over: what an evaluation of the project is given, or what the
        loop reads that adds up the metric's terms."""
        if isinstance(made, cst.Call) and self.module.qualified(made.func).partition(".")[0] not in ("torch", "float"):
            given = [name for arg in made.args if (name := dotted(arg.value)) in divided]
            return given[0] if given and self._evaluates_alone(made) else None
        terms = {dotted(n) for n in (made, *descendants(made)) if isinstance(n, (cst.Name, cst.Attribute))}
        for loop in descendants(function.body):
            if isinstance(loop, cst.For) and (name := dotted(loop.iter)) in divided:
                added = (n for n in descendants(loop.body) if isinstance(n, cst.AugAssign))
                if any(dotted(n.target) in terms for n in added):
                    return name
        return None

    def _evaluates_alone(self, call: cst.Call) -> bool:
        """Whether a function of the project is called that brings nothing together."""
        name, project = self.module.callee(call), self.module.project
        found = project.split(project.canonical(name)) if name and project is not None else None
        function = found[0].definitions.get(found[1]) if found is not None else None
        if not isinstance(function, ast.FunctionDef) or called(call).startswith(("train", "fit")):
            return False
        return not _JOINS.search(ast.unparse(function))

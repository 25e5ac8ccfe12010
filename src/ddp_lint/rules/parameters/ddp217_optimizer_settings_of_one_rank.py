from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.one_rank import comes_on_one_rank, on_one_rank
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.optimizers import is_optimizer
from ddp_lint.source import dotted
from ddp_lint.source.imports import last_part
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import calls_below, walk
from ddp_lint.source.tree import called, descendants

#: Arguments of an optimizer by which it makes a step; the second place is the learning rate.
_SETTINGS = frozenset({"lr", "weight_decay", "momentum", "betas", "eps", "nesterov", "alpha", "dampening"})
#: What brings the ranks' values together, or may.
_SHARES = re.compile(r"broadcast|scatter|gather|reduce|sync|share", re.IGNORECASE)
#: What a test asks that one rank alone answers with yes.
_BY_RANK = re.compile(r"rank|is_main|is_master|main_process|is_global_zero")
#: What makes one trial of all ranks, and what lets each rank suggest the same by itself.
_SHARED_TRIALS = ("TorchDistributedTrial", "FixedTrial", "seed=")


class OptimizerSettingsOfOneRank(Rule):
    """The ranks step by settings of their own: a learning rate that one rank alone sets, or that each one draws.

    ## What it does

    Finds an optimizer of a program with DDP whose learning rate, momentum, weight decay, .. is a variable, a key or an
    attribute that only one rank gets anew (`if rank == 0: config["lr"] = run.config.lr`), with no broadcast of it; or
    what `trial.suggest_float(..)` of Optuna has returned, where every rank has a study of its own.

    ## Why it breaks

    DDP averages gradients, and each rank makes its step by itself: the replicas are alike because all do the same.
    With another learning rate rank 0 and rank 1 have other weights after the first step, which nothing corrects. The
    averaged gradients are then those of different models, what is logged and saved is that of rank 0, and a search
    for hyperparameters finds nothing. There is no error. Measured on two ranks with gloo (torch 2.13): the weights
    differ after one step.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    config = {"lr": 0.1}


    def main():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
        if dist.get_rank() == 0:
            config["lr"] = 0.5  # as from the settings of a sweep, which only rank 0 has joined
        model = DistributedDataParallel(torch.nn.Linear(4, 2).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])  # <- DDP217
        for _ in range(2):
            model(torch.ones(2, 4, device=device)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()


    main()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    config = {"lr": 0.1}


    def main():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
        if dist.get_rank() == 0:
            config["lr"] = 0.5  # as from the settings of a sweep, which only rank 0 has joined
        box = [config]
        dist.broadcast_object_list(box, src=0, device=device)
        config.update(box[0])
        model = DistributedDataParallel(torch.nn.Linear(4, 2).to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        for _ in range(2):
            model(torch.ones(2, 4, device=device)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.destroy_process_group()


    main()
    ```

    ## When it is silent

    Functions that broadcast or gather anything; settings that all ranks, or the others, get anew before the optimizer
    is made; trials of `TorchDistributedTrial`, studies that one rank alone runs, samplers with a seed; programs without
    DDP; tests.

    ## How to confirm

    `ddp-lint verify train.py`: the parameters differ between the ranks.

    ## Fix safety

    No automatic fix: rank 0 broadcasts the settings to the others.

    ## References

    - https://github.com/wandb/wandb/issues/3883
    - https://optuna-integration.readthedocs.io/en/stable/reference/generated/optuna_integration.TorchDistributedTrial.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("lr", "parameters", file=("DistributedDataParallel",), tests=False)
    oracles = ("parameter", "state")

    def visit_Call(self, node: cst.Call) -> None:
        if not node.args or not is_optimizer(self.module, node) or self.module.file.is_test:
            return
        if comes_on_one_rank(self.module, node):
            return
        shares = self._shares(node)
        for setting in self._settings(node):
            alone = self._set_alone(setting, node) if not shares else None
            drawn = self._drawn(setting)
            found = alone or drawn
            if found is not None and several_ranks(self.module, node) is not None:
                who = "only one rank sets" if alone is not None else "each rank draws for itself"
                self.report(
                    setting,
                    f"the ranks step by other settings: {who} `{self.module.code(setting)}`, and the replicas drift",
                    notes=["rank 0 and rank 1 have the same gradients, and make other steps"],
                    labels=[(found, "one rank comes here" if alone is not None else "another value on each rank")],
                    help="broadcast the settings of rank 0 before the optimizer is made",
                )
                return

    def _settings(self, node: cst.Call) -> Iterator[cst.BaseExpression]:
        for place, arg in enumerate(node.args):
            named = arg.keyword.value in _SETTINGS if arg.keyword is not None else place == 1
            if named and not arg.star and isinstance(arg.value, (cst.Name, cst.Attribute, cst.Subscript)):
                yield arg.value

    def _shares(self, node: cst.Call) -> bool:
        calls = calls_in(self.module.scope_of(node))
        return any(_SHARES.search(dotted(call.func)) for call in calls)

    def _set_alone(self, setting: cst.BaseExpression, at: cst.Call) -> cst.CSTNode | None:
        """The assignment of a setting that one rank alone comes by, and that nothing follows before the optimizer."""
        text, last = self.module.code(setting), None
        for node in descendants(self.module.scope_of(at)):
            targets = [target.target for target in node.targets] if isinstance(node, cst.Assign) else []
            if any(self.module.code(each) == text for each in targets) and self.module.wraps.follows(at, node):
                last = node
        if last is None or not on_one_rank(self.module, last) or on_one_rank(self.module, at):
            return None
        return last

    def _drawn(self, setting: cst.BaseExpression) -> cst.CSTNode | None:
        """What a trial of the rank's own study has suggested."""
        if not isinstance(setting, cst.Name) or any(map(self.module.file.holds, _SHARED_TRIALS)):
            return None
        values = self.module.assignments(setting)
        value = values[0] if len(values) == 1 else None
        if not isinstance(value, cst.Call) or not called(value).startswith("suggest_"):
            return None
        return value if self._studies() else None

    def _studies(self) -> bool:
        """Whether the file has a study that it runs on every rank."""
        facts = self.module.facts
        if facts is None or not self.module.file.holds("create_study"):
            return False
        runs = {call for call in calls_below(facts.tree) if last_part(call.func) == "optimize"}
        tests = (
            node for node in walk(facts.tree) if isinstance(node, ast.If) and _BY_RANK.search(ast.unparse(node.test))
        )
        alone = {call for test in tests for call in calls_below(test)}
        return bool(runs) and runs.isdisjoint(alone)

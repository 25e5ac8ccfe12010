from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.launch.one_process import asserts_one_process
from ddp_lint.launch.one_rank import called_on_one_rank, comes_on_one_rank, first_rank_test, on_one_rank
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.failures.kept_by_objects import UsedInTraining
from ddp_lint.rules.failures.tracking import is_kept_above, started_on_first
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, conjuncts, leaves
from ddp_lint.source.tree import descendants, names_in, subtree

#: Code that asks whether there is a run, or leaves it to the environment.
_LOOKS_FOR_RUNS = re.compile(r"wandb\.run\b|WANDB_MODE")
_HANDLES_RUNS = re.compile(r"wandb\.run\b|WANDB_MODE|wandb\.setup|mode=")

_LOGGER = "WandbLogger"
#: Classes of Lightning whose methods all ranks run, and what asks whether this one logs.
_HOOKED = ("lightning.pytorch.LightningModule", "lightning.pytorch.Callback")
_ASKS_WHO = re.compile(r"rank|zero|main|master|wandb|logger|log_|use_log", re.IGNORECASE)


class NoneOnOtherRanks(Rule):
    """A value that only rank 0 has is None, or not there, on the other ranks, and is used there.

    ## What it does

    Finds `x.method()`, `x.attribute` and `x[i]` on every rank, where `x` is `None` on all ranks but the first because
    of `x = make() if rank == 0 else None`, or `x = None` and an assignment under a test for the rank. Also a local name
    that is only assigned under a test for the rank, and is read on every rank; and `wandb.log` on every rank, where
    only one calls `wandb.init`, here or in another file, or the WandbLogger of Lightning does. Of what an object has on
    the first rank alone (`self.writer = make() if rank == 0 else None`) the uses in its methods that have a backward or
    a collective, also in a function of the project that gets it there.

    ## Why it breaks

    Rank 0 continues, rank 1 raises "AttributeError: 'NoneType' object has no attribute", "TypeError: 'NoneType'
    object is not subscriptable", "UnboundLocalError: cannot access local variable" or "wandb.errors.Error: You must
    call wandb.init() before wandb.log()": the job ends with an error that does not occur with one process, or rank 0
    waits in its next collective for a rank that has ended.

    ## Example

    ```python
    import torch
    import torch.distributed as dist


    class Average:
        def __init__(self):
            self.updates = 0


    def main():
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        average = Average() if rank == 0 else None
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
            average.updates += 1  # <- DDP505
        dist.destroy_process_group()


    main()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist


    class Average:
        def __init__(self):
            self.updates = 0


    def main():
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        average = Average() if rank == 0 else None
        for _ in range(2):
            dist.all_reduce(torch.ones(1))
            if average is not None:
                average.updates += 1
        dist.destroy_process_group()


    main()
    ```

    ## When it is silent

    Uses under a condition, except one that counts steps (`step % 10 == 0`); names that other code may assign; names
    that are tested or asserted; what is behind an `assert` that there is one process (`not cfg.distributed`);
    attributes of objects in other methods, and where a function that gets one asks for it or for the rank; files
    that look for a run of wandb (`wandb.run`) or switch it off (`WANDB_MODE`); tests.

    ## How to confirm

    `ddp-lint verify train.py`: the error, on the ranks other than 0.

    ## Fix safety

    No automatic fix: what the other ranks should do is not known.

    ## References

    - https://docs.pytorch.org/docs/stable/elastic/run.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "rank",
        "RANK",
        "get_rank",
        "local_rank",
        "global_rank",
        "is_main_process",
        "is_master",
        "wandb",
        file=(
            *("init_process_group", "DistributedDataParallel", "torchrun", "RANK", "LOCAL_RANK", "Accelerator"),
            *("LightningModule", "Callback", "wandb"),
        ),
        tests=False,
    )
    of_several = True
    oracles = ("exception",)

    def start(self) -> None:
        self._runs: list[cst.Call] = []
        self._logs: list[cst.Call] = []

    def visit_Call(self, node: cst.Call) -> None:
        name = self.module.qualified(node.func)
        if name == "wandb.init":
            self._runs.append(node)
        elif name == "wandb.log":
            self._logs.append(node)

    def finish(self) -> None:
        if self._logs and not self._runs and not self.module.file.shows(_LOOKS_FOR_RUNS):
            self._look_at_other_files()
        if not self._logs or self.module.file.shows(_HANDLES_RUNS):
            return
        if not self._runs:
            self._look_at_hooks()
        elif all(comes_on_one_rank(self.module, run) for run in self._runs):
            self._look_behind_runs()

    def _look_at_hooks(self) -> None:
        """Report the first call in a hook of Lightning, whose logger has a run on the first rank alone."""
        project = self.module.project
        loggers = (
            [project.contents.text(path) or "" for path in project.contents.holding(_LOGGER)]
            if project is not None
            else []
        )
        if not loggers or any("wandb.init" in text for text in loggers):
            return
        for log in self._logs:
            owner = self.module.class_of(log)
            hooks = owner is not None and any(self.module.is_subclass(owner, base) for base in _HOOKED)
            asks = any(_ASKS_WHO.search(self.module.code(test)) for test, _ in conditions(self.module, log))
            free = not asks and not self._is_caught(log) and not comes_on_one_rank(self.module, log)
            if owner is not None and hooks and free and several_ranks(self.module):
                self._report(
                    log,
                    "Lightning's WandbLogger has a run on the first rank only: `wandb.log()` raises on the others",
                    (owner.name, "all ranks run these hooks"),
                    "log by self.logger.experiment, or on the first rank only",
                )
                return

    def _look_at_other_files(self) -> None:
        """Report the first call that all ranks come by, where other files call `wandb.init()` on one rank alone."""
        project, started = self.module.project, started_on_first(self.module)
        if started is None or project is None:
            return
        facts, run, names = started
        for log in self._logs:
            tests = list(conditions(self.module, log))
            parts = [part for test, _ in tests for part in conjuncts(test)]
            asked = all(taken for _, taken in tests) and all(
                dotted(part).rpartition(".")[2] in names or _counts_steps(part, "wandb") for part in parts
            )
            function = self.module.function_of(log)
            free = asked and function is not None and not self._is_caught(log)
            if not free or function is None or comes_on_one_rank(self.module, log):
                continue
            if not is_kept_above(self.module, project, function.name.value) and several_ranks(self.module):
                self._report(
                    log,
                    "only the first rank has called `wandb.init()`: `wandb.log()` raises on the others",
                    (facts.file.span_of(run), "only the first rank comes here"),
                    "log on the first rank only",
                )
                return

    def _look_behind_runs(self) -> None:
        """Report the first call that all ranks come by, where one of them has called `wandb.init()`."""
        under = {self.module.code(part) for run in self._runs for part in self._holding(run)}
        for log in self._logs:
            tests = [(part, taken) for test, taken in conditions(self.module, log) for part in conjuncts(test)]
            asked = all(
                taken and (self.module.code(part) in under or _counts_steps(part, "wandb")) for part, taken in tests
            )
            free = asked and not self._is_caught(log) and not comes_on_one_rank(self.module, log)
            if free and several_ranks(self.module):
                self._report(
                    log,
                    "only the first rank has called `wandb.init()`: `wandb.log()` raises on the others",
                    (self._runs[0], "only the first rank comes here"),
                    "log on the first rank only",
                )
                return

    def _holding(self, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
        """What holds where a rank comes by a place, part by part."""
        return (part for test, taken in conditions(self.module, node) if taken for part in conjuncts(test))

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if len(node.targets) != 1:
            return
        if dotted(target).startswith("self.") and isinstance(node.value, cst.IfExp):
            self._check_kept(node, target)
        if isinstance(target, cst.Name) and self._is_of_first_rank(node, target):
            use = next(self._used(node, target.value), None)
            if isinstance(use, (cst.Attribute, cst.Subscript)) and several_ranks(self.module) is not None:
                part = f".{use.attr.value}" if isinstance(use, cst.Attribute) else "[…]"
                error = "AttributeError" if isinstance(use, cst.Attribute) else "TypeError"
                self._report(
                    use,
                    f"`{target.value}` is None on all ranks but the first: `{part}` raises {error} there",
                    (node, "None on the other ranks"),
                    f"use it under `if {target.value} is not None:`",
                )
            return
        elements = target.elements if isinstance(target, cst.Tuple) else ()
        for name in [target, *(element.value for element in elements)]:
            if isinstance(name, cst.Name) and self._is_left_unbound(node, name):
                self._check_unbound(node, name.value)

    @functools.cached_property
    def _in_training(self) -> UsedInTraining:
        return UsedInTraining(self.module)

    def _check_kept(self, node: cst.Assign, target: cst.BaseAssignTargetExpression) -> None:
        """``self.writer = make() if rank == 0 else None``, which a method that all ranks run uses."""
        name = dotted(target)
        if not isinstance(target, cst.Attribute) or not self._is_of_first_rank(node, target):
            return
        for use in self._in_training.uses(node, name):
            tests = (test for test, _ in conditions(self.module, use))
            free = all(_counts_steps(test, name) for test in tests) and not self._is_caught(use)
            if free and not comes_on_one_rank(self.module, use) and several_ranks(self.module) is not None:
                self._report(
                    use,
                    f"`{name}` is None on all ranks but the first: this use of it raises there",
                    (node, "None on the other ranks"),
                    f"use it under `if {name} is not None:`",
                )
                return

    def _is_left_unbound(self, node: cst.Assign, name: cst.Name) -> bool:
        """Whether an assignment in a function is the first one of a name that one rank alone assigns."""
        if self.module.function_of(node) is None or not on_one_rank(self.module, node):
            return False
        bindings = self.module.bindings(name)
        first = bool(bindings) and bindings[0].node is node
        left = any(isinstance(up, cst.If) and _others_leave(up) for up in self.module.ancestors(node))
        return first and not left and all(b.kind == "assign" and on_one_rank(self.module, b.node) for b in bindings)

    def _check_unbound(self, node: cst.Assign, name: str) -> None:
        use = next(self._read(node, name), None)
        if use is not None and not called_on_one_rank(self.module, node) and several_ranks(self.module) is not None:
            self._report(
                use,
                f"only the first rank assigns `{name}`: UnboundLocalError on the others",
                (node, "only the first rank comes here"),
                "give it a value on every rank, or use it on the first rank only",
            )

    def _is_of_first_rank(self, node: cst.Assign, target: cst.Name | cst.Attribute) -> bool:
        """Whether an assignment, with what one rank alone assigns later, leaves None to the other ranks."""
        if (not isinstance(node.value, cst.IfExp) and dotted(node.value) != "None") or on_one_rank(self.module, node):
            return False
        others = [b for b in self.module.bindings(target) if b.node is not node and b.value is not node.value]
        if isinstance(node.value, cst.IfExp):
            test = self.module.code(node.value.test)
            by_first = dotted(node.value.orelse) == "None" and first_rank_test(test, True)
            by_others = dotted(node.value.body) == "None" and first_rank_test(test, False)
            return not others and (by_first or by_others)
        kinds = {binding.kind for binding in others}
        only = all(on_one_rank(self.module, binding.node) for binding in others)
        return kinds == {"assign"} and only

    def _used(self, made: cst.Assign, name: str) -> Iterator[cst.CSTNode]:
        """Where an attribute or an item of the name is read or set on every rank."""
        return self._on_all(
            made, name, lambda node: isinstance(node, (cst.Attribute, cst.Subscript)) and dotted(node.value) == name
        )

    def _read(self, made: cst.Assign, name: str) -> Iterator[cst.CSTNode]:
        """Where the name is read on every rank."""
        return (
            node
            for node in self._on_all(made, name, lambda node: isinstance(node, cst.Name) and node.value == name)
            if isinstance(node, cst.Name)
            and _is_read(node, iter(self.module.ancestors(node)))
            and any(binding.node is made for binding in self.module.bindings(node))  # not one of a comprehension
        )

    def _on_all(self, made: cst.Assign, name: str, wanted: Callable[[cst.CSTNode], bool]) -> Iterator[cst.CSTNode]:
        """Those of the nodes wanted that all ranks come by behind an assignment, whatever they have asked."""
        function = self.module.function_of(made)
        scope = function.body if function is not None else self.module.tree
        if any(isinstance(n, cst.Assert) and name in names_in(n.test) for n in descendants(scope)):
            return
        around = {test for test, _ in conditions(self.module, made)}
        for node in descendants(scope):
            if (
                wanted(node)
                and self.module.function_of(node) is function
                and self.module.wraps.follows(node, made)
                and not on_one_rank(self.module, node)
                and not asserts_one_process(self.module, node)
                and not self._is_caught(node)
                and all(test in around or _counts_steps(test, name) for test, _ in conditions(self.module, node))
            ):
                yield node

    def _is_caught(self, node: cst.CSTNode) -> bool:
        return any(isinstance(up, (cst.Try, cst.Lambda)) for up in self.module.ancestors(node))

    def _report(self, use: cst.CSTNode, headline: str, made: tuple[cst.CSTNode | Span, str], help: str) -> None:
        self.report(use, headline, notes=["rank 0 continues, rank 1 ends here"], labels=[made], help=help)


def _others_leave(branch: cst.If) -> bool:
    """Whether those who do not come by one arm of a test leave the function: ``else: return``."""
    other = branch.orelse.body if isinstance(branch.orelse, cst.Else) else None
    return other is not None and (leaves(other) or leaves(branch.body))


def _is_read(name: cst.Name, above: Iterator[cst.CSTNode]) -> bool:
    """Whether a name is read where it stands: as an argument, an operand, or what an attribute is read of, or it is
    what a function returns or another name is given, or a part of that."""
    parent = next(above)
    if isinstance(parent, (cst.Arg, cst.Attribute, cst.Subscript)):
        return parent.value is name
    if isinstance(parent, cst.Element):
        parent = next(up for up in above if not isinstance(up, (cst.Element, cst.Tuple, cst.List)))
    return isinstance(parent, _READING)


#: A name directly below one of these is read.
_READING = (cst.Arg, cst.Assign, cst.Return, cst.BinaryOperation, cst.Comparison, cst.FormattedStringExpression)


def _counts_steps(test: cst.BaseExpression, name: str) -> bool:
    parts = list(subtree(test))
    modulo = any(isinstance(p, cst.BinaryOperation) and isinstance(p.operator, cst.Modulo) for p in parts)
    return modulo and name not in names_in(test) and not any(isinstance(p, cst.BooleanOperation) for p in parts)

from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.knowledge.frameworks import wrappers
from ddp_lint.launch.never_none import needs_none
from ddp_lint.launch.one_process import uses_data_parallel
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import files_of_programs
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.freezing import change_of
from ddp_lint.rules.wrapping.thawing import thawed_behind_wrapper
from ddp_lint.source import dotted
from ddp_lint.source.queries import is_false, is_true
from ddp_lint.view.wraps import Wrap, argument

#: Wrappers whose hooks are on other parameters, or on all of them.
_OTHER_WRAPS = re.compile(r"FullyShardedDataParallel|fully_shard|deepspeed\.initialize|apex\.parallel|horovod")


def _model_and_part(name: str) -> tuple[str, str]:
    """`model.module.encoder` -> ("model", "encoder"); `self.net` -> ("self.net", "")."""
    parts = name.split(".")
    keep = 2 if parts[0] in ("self", "cls") else 1
    return ".".join(parts[:keep]), ".".join(p for p in parts[keep:] if p != "module")


def _holds(whole: str, part: str) -> bool:
    """Whether a part of a model is in another one, or holds it: `encoder` and `encoder.layers`."""
    return f"{part}.".startswith(f"{whole}." if whole else "") or whole.startswith(f"{part}.")


class RequiresGradAfterWrap(Rule):
    """Parameters are frozen or unfrozen after DDP has registered them.

    ## What it does

    Finds `requires_grad_(True)` or `p.requires_grad = True` on a DDP model for parameters that were frozen when it was
    wrapped, the freezing of a part of a wrapped model, also by a function of the project that does nothing else
    (`set_requires_grad(model.module.encoder, False)`), and assignments to `find_unused_parameters` of an existing DDP
    object. The unfreezing may be that of another object's model, as in a callback (`trainer.model.module.encoder`), if
    one class of the file alone wraps an attribute of that name, and has frozen that part, or what it is in, before.
    Also a method of the model that unfreezes what its constructor has frozen, where the project calls it behind the
    wrapper (`model.module.unfreeze()`).

    ## Why it breaks

    DDP hooks the parameters that require gradients when the constructor runs. Unfrozen later, a parameter has no hook:
    rank 0 and rank 1 step with local gradients and drift apart. Measured on 2 x H200 (NCCL, torch 2.11) and on gloo
    (torch 2.13): no error, ranks differ by 0.01 after two steps. Frozen later, a parameter keeps its place in a bucket
    that never fills: step 2 fails with "Expected to have finished reduction in the prior iteration".

    The reducer keeps the constructor's `find_unused_parameters`. Set to `True` later, the attribute has no effect. Set
    to `False`, `forward` gives the reducer nothing to search from, which then takes every parameter for unused: the
    next backward fails with "Expected to mark a variable ready only once" on every rank. Both measured on two ranks
    with gloo (torch 2.13).

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

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)).to(device)
    net[0].requires_grad_(False)
    model = DDP(net)
    model.module[0].requires_grad_(True)  # <- DDP603
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean()
        loss.backward()
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

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)).to(device)
    net[0].requires_grad_(True)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.randn(8, 4, device=device) + dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()
    ```

    ## When it is silent

    Under FSDP (measured harmless); a whole model turned off and on again, as in GAN training with the discriminator,
    because its hooks exist; freezing before the wrap; freezing with `find_unused_parameters=True`; a change after
    which the model is wrapped again; a wrap in the `else` of `args.gpu is not None` where that always has a value.

    ## How to confirm

    `ddp-lint verify train.py`: the gradients of the unfrozen layer differ between the ranks.

    ## Fix safety

    No automatic fix: wrap again after the change, or freeze by leaving the parameters out of the optimizer.

    ## References

    - https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """

    triggers = Triggers(
        "DistributedDataParallel",
        "requires_grad",
        "requires_grad_",
        "find_unused_parameters",
        file=("torch", "DistributedDataParallel"),
    )
    oracles = ("gradient", "parameter", "exception")

    def start(self) -> None:
        self._wraps = self.module.wraps
        self._frozen: list[tuple[str, cst.CSTNode]] = []  # what was frozen, and where
        self._parts: list[tuple[str, str, bool, cst.CSTNode]] = []  # a model, its part, what was set, and where
        self._thawed: list[tuple[str, cst.CSTNode]] = []  # what an unknown wrapper holds that was unfrozen, and where

    def finish(self) -> None:
        self._thawed_by_methods()
        for name, node in self._thawed:
            owner, _, part = name.partition(".module.")
            attribute = owner.rpartition(".")[2]
            wraps = [
                w for w in self._wraps.all if attribute in (w.outer.rpartition(".")[2], w.inner.rpartition(".")[2])
            ]
            wrap = wraps[0] if len(wraps) == 1 else None
            if wrap is None or wrap.kind != "ddp" or wrap.outer != f"self.{attribute}":
                continue
            models = (wrap.inner, wrap.outer)
            changed = [each for each in self._parts if each[0] in models and self._wraps.before(each[3], wrap)]
            last = next((each for each in reversed(changed) if _holds(each[1], part)), None)
            if last is not None and not last[2] and not self._wrapped_again(wrap, node):
                labels: list[tuple[cst.CSTNode, str]] = [(last[3], "frozen here, before the wrap")]
                self._report(node, wrap, "parameters are unfrozen", "the replicas drift apart", labels)

    def _thawed_by_methods(self) -> None:
        """Methods of a model that unfreeze a part which its constructor has frozen, called behind its wrapper."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or self.module.file.is_test or not facts.file.holds("requires_grad"):
            return
        for owner in (node for node in facts.tree.body if isinstance(node, ast.ClassDef)):
            for thawed in thawed_behind_wrapper(project, facts, owner):
                if several_ranks(self.module) is None or not self._replicates():
                    return
                self.report(
                    facts.file.span_of(thawed.place),
                    "parameters are unfrozen after the DDP wrap, whose hooks are already placed: the replicas drift "
                    "apart",
                    labels=[
                        (facts.file.span_of(thawed.frozen), "frozen here, before the wrap"),
                        (thawed.caller.file.span_of(thawed.call), "called behind the wrapper"),
                    ],
                    help="change requires_grad first, wrap last",
                    confidence=Confidence.MEDIUM,
                )

    def _replicates(self) -> bool:
        """Whether the programs of the file wrap by DDP, and by nothing else that has a `.module`, or no hooks."""
        files = list(files_of_programs(self.module))
        if any(uses_data_parallel(each.file) or each.file.shows(_OTHER_WRAPS) for each in files):
            return False
        return any(each.file.holds("DistributedDataParallel") for each in files)

    def visit_Call(self, node: cst.Call) -> None:
        change = change_of(self.module, node)
        if change is not None:
            self._change(node, *change)

    def visit_Assign(self, node: cst.Assign) -> None:
        change = change_of(self.module, node)
        if change is not None:
            self._change(node, *change)
            return
        target = node.targets[0].target
        if isinstance(target, cst.Attribute) and target.attr.value == "find_unused_parameters":
            wrap = self._wraps.of(dotted(target.value), node)
            effect = self._effect(wrap, node.value) if wrap is not None and wrap.kind == "ddp" else ""
            if wrap is not None and effect:
                self.report(
                    node,
                    f"`{dotted(target)}` changes after the wrap, and its reducer keeps the old value: {effect}",
                    labels=[(wrap.place, "known to be DDP here")],
                    help="pass it to the constructor, or wrap again",
                )

    def _effect(self, wrap: Wrap, value: cst.BaseExpression) -> str:
        """What a later `find_unused_parameters` does to an existing wrapper; '' if it is what the wrapper has."""
        given = argument(wrap.call, None, "find_unused_parameters")
        is_off = is_false(given) or (not wrap.tested and wrap.lacks("find_unused_parameters"))
        if is_false(value):
            raises = "the next backward raises" if is_true(given) else "the next backward raises, if that is True"
            return "" if is_off else raises
        return "" if is_true(value) and is_true(given) else "no effect"

    def _change(self, node: cst.CSTNode, name: str, value: cst.BaseExpression) -> None:
        if not isinstance(value, cst.Name) or value.value not in ("True", "False") or not name:
            return
        model, part = _model_and_part(name)
        wrap = self._made(self._wraps.around(name, node), node)
        self._parts.append((model, part, value.value == "True", node))
        if value.value == "False" and (wrap is None or wrap.kind != "ddp"):
            self._frozen.append((model, node))
        if value.value == "True" and wrap is None and ".module." in name and "." in name.partition(".module.")[0]:
            self._thawed.append((name, node))
        if wrap is None or wrap.kind != "ddp" or self._wrapped_again(wrap, node):
            return
        if value.value == "True":
            frozen = (at for was, at in self._frozen if was in (wrap.inner, wrap.outer))
            before = next((at for at in frozen if self._wraps.before(at, wrap)), None)
            if before is not None:
                self._report(
                    node,
                    wrap,
                    "parameters are unfrozen",
                    "the replicas drift apart",
                    [(before, "frozen here, before the wrap")],
                )
        elif part and not self._tolerates_unused(wrap):
            self._report(
                node,
                wrap,
                f"a part of `{model}` is frozen",
                "step 2 fails",
                [],
            )

    def _made(self, wrap: Wrap | None, node: cst.CSTNode) -> Wrap | None:
        """The wrap, or the one that is made in its place, where no run comes to it."""
        if wrap is None or isinstance(wrap.place, Span) or not needs_none(self.module, wrap.call):
            return wrap
        beside = self._wraps.made_in(wrap.outer, self.module.function_of(wrap.call))
        others = (each for each in beside if each is not wrap and self._wraps.after(each, node))
        return next((other for other in others if not needs_none(self.module, other.call)), None)

    def _wrapped_again(self, wrap: Wrap, node: cst.CSTNode) -> bool:
        """Whether the same model goes into a new wrapper after `node`: that one places its hooks again."""
        names = (wrap.inner, wrap.outer)
        return any(
            _model_and_part(later.inner)[0] in names and not later.tested
            for later in self._wraps.all
            if later.kind == "ddp" and self._wraps.before(node, later)
        )

    def _report(
        self, node: cst.CSTNode, wrap: Wrap, what: str, effect: str, labels: list[tuple[cst.CSTNode, str]]
    ) -> None:
        self.report(
            node,
            f"{what} after the DDP wrap, whose hooks are already placed: {effect}",
            labels=[*labels, (wrap.place, "DDP places its gradient hooks here")],
            help="change requires_grad first, wrap last",
        )

    def _tolerates_unused(self, wrap: Wrap) -> bool:
        entry = wrappers().get(self.module.qualified(wrap.call.func))
        if entry is not None and entry.looks_again:
            return True
        value = argument(wrap.call, None, "find_unused_parameters") or argument(wrap.call, None, "static_graph")
        if value is None:
            return not wrap.lacks("find_unused_parameters")
        return not is_false(value)

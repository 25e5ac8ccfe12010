from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.trainers import LIGHTNING, trainers_of
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.tree import descendants

_BASES = frozenset({"LightningDataModule", "LightningModule"})
#: Methods that Lightning calls in every process.
_ON_ALL = re.compile(
    r"setup$|\w*_dataloader$|\w*_step$|forward$|configure_(optimizers|model|sharded_model)$|on_\w+|transfer_batch_to_device$"
)
#: Who calls `prepare_data` by itself calls it in every process; a class that calls its base's does not.
_CALLED = re.compile(r"(?<!super\(\))\.prepare_data\(")
#: What a test may ask whose answer is another one on the first rank.
_BY_RANK = re.compile(r"rank|is_global_zero|hasattr|getattr", re.IGNORECASE)


class StateOfPrepareData(Rule):
    """What `prepare_data` keeps in attributes exists in one process of each node alone: the others raise.

    ## What it does

    Finds attributes that only `prepare_data` of a `LightningDataModule` or `LightningModule` assigns, where a method
    that all processes run reads them (`setup`, `train_dataloader`, `training_step`, ..), and the program's `Trainer`
    runs on several devices.

    ## Why it breaks

    Lightning calls `prepare_data` in one process of each node, for downloads, and `setup` in all of them. Rank 0 has
    the attribute. Rank 1 ends with `AttributeError`, and rank 0 waits for it in the next collective until the launcher
    stops it. On one device nothing of this shows. Measured on two ranks with gloo.

    ## Example

    ```python
    import torch
    import torch.distributed as dist


    class LightningDataModule:  # as Lightning's, whose trainer calls it
        def prepare_data(self): ...

        def setup(self, stage): ...


    class Words(LightningDataModule):
        def prepare_data(self):
            self.vocabulary = ["a", "b"]

        def setup(self, stage):
            self.size = len(self.vocabulary)  # <- DDP814


    def fit(data):
        if dist.get_rank() == 0:
            getattr(data, "prepare_data")()
        dist.barrier()
        data.setup("fit")


    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank())
    fit(Words())
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist


    class LightningDataModule:  # as Lightning's, whose trainer calls it
        def prepare_data(self): ...

        def setup(self, stage): ...


    class Words(LightningDataModule):
        def setup(self, stage):
            self.vocabulary = ["a", "b"]
            self.size = len(self.vocabulary)


    def fit(data):
        if dist.get_rank() == 0:
            getattr(data, "prepare_data")()
        dist.barrier()
        data.setup("fit")


    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank())
    fit(Words())
    dist.destroy_process_group()
    ```

    ## When it is silent

    Attributes that anything else assigns or declares, or whose existence the class asks for; projects that call
    `prepare_data()` by themselves, which they do in every process; classes with other bases; programs whose trainer
    has one device, or starts its processes by `spawn`; programs whose trainer is made by settings alone.

    ## How to confirm

    `ddp-lint verify train.py`: rank 1 ends with the exception.

    ## Fix safety

    No automatic fix: what `prepare_data` has written to disk is read in `setup`.

    ## References

    - https://lightning.ai/docs/pytorch/stable/data/datamodule.html#prepare-data
    - https://github.com/Lightning-AI/pytorch-lightning/issues/11220
    """

    confidence = Confidence.HIGH
    triggers = Triggers("prepare_data", file=tuple(sorted(_BASES)), tests=False)
    oracles = ("exception",)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        methods = {each.name.value: each for each in node.body.body if isinstance(each, cst.FunctionDef)}
        prepare = methods.get("prepare_data")
        bases = {dotted(base.value).rpartition(".")[2] for base in node.bases}
        if prepare is None or prepare.decorators or not bases or not bases <= _BASES or self.module.file.is_test:
            return
        made = {name: target for target, name in self._stored(prepare)}
        for name, target in made.items():
            read = None if self._is_known(node, methods, name) else self._read(methods, name)
            if read is not None and not self._is_called() and self._is_on_several(node):
                self.report(
                    read,
                    f"only the process that runs `prepare_data` has `self.{name}`: AttributeError in all others",
                    notes=["rank 0 continues, rank 1 ends here"],
                    labels=[(target, "one process of each node comes here")],
                    help="assign it in `setup`, from what `prepare_data` has written to disk",
                )
                return

    def _stored(self, function: cst.FunctionDef) -> Iterator[tuple[cst.Attribute, str]]:
        """The attributes of ``self`` that a method assigns, without those of functions in it."""
        for node in descendants(function.body):
            if isinstance(node, cst.Attribute) and dotted(node.value) == "self" and _is_target(self, node):
                yield node, node.attr.value

    def _is_known(self, owner: cst.ClassDef, methods: dict[str, cst.FunctionDef], name: str) -> bool:
        """Whether an attribute may come from elsewhere: another method, the class, another file."""
        others = (each for word, each in methods.items() if word != "prepare_data")
        if name in methods or any(name == stored for each in others for _, stored in self._stored(each)):
            return True
        code = self.module.code(owner)
        if re.search(rf"(?m)^    {name}\s*[:=]", code) or re.search(rf"[\"']{name}[\"']|setattr\(self|__dict__", code):
            return True
        assigned = rf"(?<!self)\.{name}\s*="
        project = self.module.project
        if project is None or re.search(assigned, self.module.file.code):
            return True
        return any(path != self.module.path for path in project.contents.holding(f".{name} ="))

    def _read(self, methods: dict[str, cst.FunctionDef], name: str) -> cst.Attribute | None:
        """Where a method that all processes run reads the attribute, whatever it has asked."""
        for word, method in methods.items():
            if not _ON_ALL.match(word) or on_one_rank(self.module, method.body):
                continue
            for node in descendants(method.body):
                if isinstance(node, cst.Attribute) and dotted(node) == f"self.{name}" and self._is_run(node):
                    return node
        return None

    def _is_run(self, node: cst.Attribute) -> bool:
        above = self.module.ancestors(node)
        if any(isinstance(up, (cst.Try, cst.Lambda)) for up in above) or on_one_rank(self.module, node):
            return False
        return not any(_BY_RANK.search(self.module.code(test)) for test, _ in conditions(self.module, node))

    def _is_called(self) -> bool:
        """Whether the project calls ``prepare_data`` by itself."""
        project = self.module.project
        paths = project.contents.holding(".prepare_data(") if project is not None else ()
        texts = (facts.file.code for path in paths if project and (facts := project.modules.facts_of(path)) is not None)
        return any(_CALLED.search(text) for text in texts)

    def _is_on_several(self, owner: cst.ClassDef) -> bool:
        """Whether a trainer of the programs runs on several devices, or ranks of the program's own do."""
        if any(self.module.qualified(base.value).split(".")[0] in LIGHTNING for base in owner.bases):
            return not self.module.file.holds("spawn") and any(each.is_shared for each in trainers_of(self.module))
        return several_ranks(self.module) is not None


def _is_target(rule: Rule, node: cst.Attribute) -> bool:
    parent = rule.module.parent(node)
    while isinstance(parent, (cst.Element, cst.Tuple, cst.List)):
        parent = rule.module.parent(parent)
    if isinstance(parent, cst.AnnAssign):
        return parent.target is node
    return isinstance(parent, cst.AssignTarget)

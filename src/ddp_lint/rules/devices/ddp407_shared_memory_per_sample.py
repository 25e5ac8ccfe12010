from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.queries import last_name
from ddp_lint.source.tree import descendants, method_of

_DATASET = "torch.utils.data.Dataset"
_CONSTRUCTION = (
    "__init__",
    "setup",
    "load",
    "preload",
    "_load",
    "_preload",
    "build",
    "_build",
    "_build_cache",
    "_load_cache",
)
_LOOPS = (cst.For, cst.While, cst.CompFor)


#: Methods by which a loop goes over a dictionary.
_OF_A_DICT = ("keys", "values", "items")
_FILLING = ("append", "extend", "insert", "setdefault", "update")


class SharedMemoryPerSample(Rule):
    """Every rank copies each sample of its dataset into a separate shared memory segment.

    ## What it does

    Finds `share_memory_()` on one tensor per sample (in a loop or comprehension) while a Dataset is built.

    ## Why it breaks

    A shared tensor is one segment in /dev/shm and one open file descriptor (the default sharing strategy on Linux). A
    dataset of 20,000 samples needs 20,000 of each, in every rank: rank 0 and rank 1 share nothing with each other,
    they have two complete copies. The constructor of the later rank then fails with `Too many open files`, or is
    killed by SIGBUS without a traceback when /dev/shm is full (64 MiB in a container by default), and the other rank
    waits in its first collective. Seen as a crash "during dataset initialisation" that came with DDP alone. That a
    tensor was once on CUDA is not the cause: on a CPU tensor its origin does not matter, and on a CUDA tensor
    `share_memory_()` does nothing (measured).

    ## Example

    ```python
    import resource

    import torch
    from torch.utils.data import Dataset

    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))  # a usual default


    class Preloaded(Dataset):
        def __init__(self, count):
            self.samples = []
            for index in range(count):
                sample = torch.full((4,), float(index))
                self.samples.append(sample.share_memory_())  # <- DDP407

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, index):
            return self.samples[index]


    if __name__ == "__main__":
        print(len(Preloaded(2000)))
    ```

    ## Use instead

    ```python
    import resource

    import torch
    from torch.utils.data import Dataset

    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))  # a usual default


    class Preloaded(Dataset):
        def __init__(self, count):
            samples = [torch.full((4,), float(index)) for index in range(count)]
            self.samples = torch.stack(samples).share_memory_()

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, index):
            return self.samples[index]


    if __name__ == "__main__":
        print(len(Preloaded(2000)))
    ```

    Forked workers share the parent's pages without `share_memory_()` as long as no process writes to them; and a
    memory-mapped file (`torch.load(..., mmap=True)`, `numpy.memmap`) is shared by all ranks of a node.

    ## When it is silent

    `share_memory_()` outside of loops, in a loop over what the code spells out (the keys of a dictionary that is
    written down and never filled), of a model or an optimizer's state (`model.share_memory()`), in code that builds no
    Dataset, and where the file chooses `set_sharing_strategy("file_system")`.

    ## How to confirm

    `ddp-lint verify train.py`: the constructor raises `Too many open files`, or a rank ends by SIGBUS.

    ## Fix safety

    No fix: how samples of different lengths go into one tensor is the author's choice.

    ## References

    - https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("share_memory_")
    oracles = ("exception", "exit")

    def visit_Call(self, node: cst.Call) -> None:
        func = node.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "share_memory_":
            return
        if self.module.file.holds("set_sharing_strategy"):
            return
        loop = next((a for a in self._inside(node) if isinstance(a, _LOOPS)), None) or self._comprehension(node)
        owner = self.module.class_of(node)
        if loop is None or owner is None or not self._is_dataset(owner) or not self._is_built_in(node):
            return
        around = [a for a in self._inside(node) if isinstance(a, (*_LOOPS, cst.BaseComp))]
        if self._is_repeated(node, loop) or all(self._is_over_fields(each, owner) for each in around):
            return
        self.report(
            node,
            "every sample needs a shared memory segment and an open file, on every rank",
            notes=[
                "rank 0 and rank 1 each have a complete copy in /dev/shm; if one runs out of files or space (SIGBUS), "
                "the other waits"
            ],
            labels=[(owner.name, "each rank builds this dataset")],
            help="share one stacked tensor (or none: forked workers share pages anyway), or memory-map the files",
        )

    def _inside(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        for up in self.module.ancestors(node):
            if isinstance(up, cst.FunctionDef):
                return
            yield up

    def _comprehension(self, node: cst.CSTNode) -> cst.CSTNode | None:
        kinds = (cst.ListComp, cst.DictComp, cst.GeneratorExp)
        return next((a for a in self._inside(node) if isinstance(a, kinds)), None)

    def _is_over_fields(self, loop: cst.CSTNode, owner: cst.ClassDef) -> bool:
        """Whether a loop is over what the code spells out one by one, which are no samples: the keys of
        ``{"image": .., "label": ..}``."""
        each = loop.for_in if isinstance(loop, cst.BaseComp) else loop
        if not isinstance(each, (cst.For, cst.CompFor)) or getattr(each, "inner_for_in", None) is not None:
            return False
        over = each.iter
        if isinstance(over, cst.Call) and isinstance(over.func, cst.Attribute) and method_of(over) in _OF_A_DICT:
            over = over.func.value
        name = dotted(over)
        values = self.module.assignments(over) if name else [over]
        if not values or not all(map(_is_spelled_out, values)):
            return False
        inside = {*descendants(loop)}
        return not name or not any(_fills(node, name) for node in descendants(owner) if node not in inside)

    def _is_dataset(self, owner: cst.ClassDef) -> bool:
        named = any(dotted(base.value).rpartition(".")[2].endswith("Dataset") for base in owner.bases)
        return named or self.module.is_subclass(owner, _DATASET)

    def _is_built_in(self, node: cst.Call) -> bool:
        function = self.module.function_of(node)
        return function is not None and any(word in function.name.value for word in _CONSTRUCTION)

    def _is_repeated(self, node: cst.Call, loop: cst.CSTNode) -> bool:
        """One finding a loop: later calls in the same loop say the same."""
        first = next(n for n in descendants(loop) if isinstance(n, cst.Call) and last_name(n.func) == "share_memory_")
        return first is not node


def _is_spelled_out(value: cst.BaseExpression) -> bool:
    """Whether the code has all elements of a container, and none that comes from another one: ``{**samples}``."""
    if not isinstance(value, (cst.Dict, cst.List, cst.Tuple)):
        return False
    return bool(value.elements) and all(isinstance(e, (cst.DictElement, cst.Element)) for e in value.elements)


def _fills(node: cst.CSTNode, name: str) -> bool:
    """Whether a node puts more into a container: ``name[key] = ..``, ``name += ..``, ``name.append(..)``."""
    if isinstance(node, cst.Assign):
        targets = [t.target for t in node.targets]
        return any(isinstance(t, cst.Subscript) and dotted(t.value) == name for t in targets)
    if isinstance(node, cst.AugAssign):
        return dotted(node.target) == name
    return isinstance(node, cst.Call) and dotted(node.func) in {f"{name}.{method}" for method in _FILLING}

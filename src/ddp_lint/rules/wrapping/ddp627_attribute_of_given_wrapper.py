from __future__ import annotations

import ast
import functools
import re

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.handed_on import Handed, function_of, given_wrapped, reads_of
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.wrapped_classes import prepared_wrapped

_ANSWERED = frozenset(
    name for kind in ("ddp_attributes", "module_attributes", "engine_attributes") for name in table("wrappers")[kind]
)
#: Further attributes that are reported with the first.
_MOST_LABELS = 3
#: What gives an object that is not the own one an attribute.
_SETS = re.compile(r"(?<!\bself)\.(\w+)\s*=(?!=)")


@functools.lru_cache(maxsize=16)
def _set_in(text: str) -> frozenset[str]:
    """The attributes of other objects that a text sets."""
    return frozenset(_SETS.findall(text))


class AttributeOfGivenWrapper(Rule):
    """A function reads an attribute of the model that its caller gives it in the DDP wrapper.

    ## What it does

    Finds `model.encode(x)`, `model.config` and the like in a function with the parameter `model`, if a call in the
    project, also in another file or of an object's method, gives it what `DistributedDataParallel(...)` or
    `accelerator.prepare(...)` returned, and neither DDP nor `nn.Module` has an attribute of that name.

    ## Why it breaks

    DDP forwards no attribute to the module inside it. On one process the caller wraps nothing and the line works; as
    soon as the job runs on two, rank 0 and rank 1 raise "AttributeError: 'DistributedDataParallel' object has no
    attribute". Often that is in the evaluation, after an epoch of training.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x)

        def predict(self, x):
            return self.linear(x).argmax(-1)


    def evaluate(model):
        return model.predict(torch.randn(8, 4))  # <- DDP627


    def main():
        model = DDP(Net())
        model(torch.randn(8, 4)).square().mean().backward()
        evaluate(model)


    main()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x)

        def predict(self, x):
            return self.linear(x).argmax(-1)


    def evaluate(model):
        return model.predict(torch.randn(8, 4))


    def main():
        model = DDP(Net())
        model(torch.randn(8, 4)).square().mean().backward()
        evaluate(model.module)


    main()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Attributes that a file of the project sets on an object by that name; code under a test of the type, of `hasattr`,
    or of whether the job is distributed, or that catches exceptions; parameters that are assigned again; subclasses of
    DDP, which may forward attributes; with accelerate also files that configure DeepSpeed or FSDP, and programs that
    the project launches with settings for these alone. DDP620 finds attributes in the function that wraps.

    ## How to confirm

    `ddp-lint verify train.py`: the AttributeError, on every rank.

    ## Fix safety

    No automatic fix: `model.module` for data and for evaluation; a forward under another name that is trained has to
    go through the wrapper's own forward, or its gradients are not averaged (DDP601).

    ## References

    - https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    confidence = Confidence.MEDIUM
    default = False  # no finding on public code has been read as true yet
    run_decides = True
    triggers = Triggers(file=("model", "net", "network", "module", "encoder", "generator"), tests=False)
    oracles = ("exception",)

    def finish(self) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None:
            return
        given = {**prepared_wrapped(project), **given_wrapped(project)}
        for (name, parameter), handed in given.items():
            place = function_of(project, name) if name.startswith(f"{facts.name}.") else None
            if place is None or place[0] is not facts:
                continue
            reads: dict[str, ast.Attribute] = {}
            for read in reads_of(project, facts, place[1], parameter):
                if read.attr not in reads and self._is_missing(read):
                    reads[read.attr] = read
            if reads:
                self._report(facts, list(reads.values()), parameter, handed)

    def _is_missing(self, read: ast.Attribute) -> bool:
        """Whether nothing in the project gives the wrapper the attribute: ``model.names = names``."""
        project = self.module.project
        if read.attr in _ANSWERED or read.attr.startswith("_") or project is None:
            return False
        return not any(
            read.attr in _set_in(project.contents.text(path) or "")
            for path in project.contents.holding(f".{read.attr}")
        )

    def _report(self, facts: ModuleFacts, reads: list[ast.Attribute], parameter: str, handed: Handed) -> None:
        """One function, one finding: the first attribute raises, the others wait behind it."""
        first, *others = reads
        self.report(
            facts.file.span_of(first),
            f"`{parameter}` is the DDP wrapper, which has no `{first.attr}`: AttributeError on several processes",
            notes=["on one process it works, because nothing is wrapped there"],
            labels=[
                (handed.span, "gives the wrapper"),
                *((facts.file.span_of(other), f"nor `{other.attr}`") for other in others[:_MOST_LABELS]),
            ],
            help=f"pass the inner module: `{parameter}.module`",
        )

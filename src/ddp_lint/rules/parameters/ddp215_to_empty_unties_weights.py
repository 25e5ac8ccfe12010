from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import frameworks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants, method_of
from ddp_lint.tensors.contexts import comes_untrained, evaluation_only

_TIES = re.compile(r"tie_weight|retie|tied|\.weight *= *[\w.\[\]]+\.weight\b")
_RETIES = re.compile(r"tie_weight|retie|tied_(weight|param|pointer|mod)")
#: What makes a model on the meta device only where its configuration ties no weights:
#: ``init_context(use_meta_tensor=not config.tie_word_embeddings)``.
_ASKING = "tie_word_embeddings"
_ASKS_FIRST = re.compile(rf"(init|meta)\w*(\(|\s*=)\s*not\s+[\w.]*{_ASKING}\b")
#: What freezes the weights of a model and trains adapters beside them.
_FREEZES = frozenset(frameworks.every(lambda each: each.freezes))


class ToEmptyUntiesWeights(Rule):
    """`to_empty` is called on one module after the other, which unties shared weights.

    ## What it does

    Finds `to_empty(..)` in a `param_init_fn` for FSDP (a function of that name, a lambda or function given as
    `param_init_fn=`, or assigned to it) if no code that passes such a function ties the weights again.

    ## Why it breaks

    `to_empty` allocates new storage for each module that it is called on. A weight that two modules share (embedding
    and head) becomes two: each rank trains them separately, the loss spikes, and no rank raises. FSDP calls
    `param_init_fn` for each module in turn, so a model that was built on the meta device loses all of its ties this
    way.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 8, bias=False)
            self.head = nn.Linear(8, 8, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(torch.tanh(self.embed(x)))


    def param_init_fn(module):
        module.to_empty(device=device, recurse=False)  # <- DDP215
        if isinstance(module, nn.Linear):
            module.reset_parameters()


    with torch.device("meta"):
        net = Net()
    model = FullyShardedDataParallel(net, param_init_fn=param_init_fn, use_orig_params=True, device_id=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8, device=device)).square().mean().backward()
    optimizer.step()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 8, bias=False)
            self.head = nn.Linear(8, 8, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(torch.tanh(self.embed(x)))


    with device:
        net = Net()
    model = FullyShardedDataParallel(net, use_orig_params=True, device_id=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8, device=device)).square().mean().backward()
    optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is silent

    `to_empty` on the whole model; projects that tie the weights again in this file or in another one that mentions
    `param_init_fn`; projects that build a model on the meta device only where its configuration ties no weights
    (`init_context(use_meta_tensor=not config.tie_word_embeddings)`); files that put PEFT's adapters into the model,
    whose own weights are frozen; files and programs that train nothing; and a model that the file itself builds from a
    class without ties. If the model comes from elsewhere, the finding applies to models with ties.

    ## How to confirm

    `ddp-lint verify train.py`: one parameter before the wrap becomes two after it.

    ## Fix safety

    No automatic fix: tie again after materialising, before the wrap.

    ## References

    - https://pytorch.org/docs/stable/fsdp.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("to_empty", "param_init_fn", file=("param_init_fn",))
    oracles = ("identity", "parameter")

    def visit_Call(self, node: cst.Call) -> None:
        if method_of(node) != "to_empty":
            return
        if not self._initialises_for_fsdp(node) or self._ties_again() or self._wraps_a_model_without_ties():
            return
        if self._builds_no_ties() or self._trains_adapters():
            return
        if evaluation_only(self.module, node) or comes_untrained(self.module, node):
            return  # two copies that nothing trains stay alike
        self.report(
            node,
            "`to_empty` module by module unties shared weights: each rank trains two weights instead of one",
            help="tie the weights again after materialising and before the wrap (`model.tie_weights()`)",
        )

    def _ties_again(self) -> bool:
        return self._is_said(_RETIES, "param_init_fn")

    def _builds_no_ties(self) -> bool:
        """Whether the project asks first whether the weights are tied, and builds on the meta device where not."""
        return self._is_said(_ASKS_FIRST, _ASKING)

    def _trains_adapters(self) -> bool:
        """Whether the file puts adapters into the model: its own weights are frozen, and two copies stay alike."""
        return any(self.module.qualified(call.func) in _FREEZES for call in self.module.of_type(cst.Call))

    def _is_said(self, pattern: re.Pattern[str], word: str) -> bool:
        """Whether a pattern is in this file, or in another one of the project that holds a word."""
        project = self.module.project
        others = (project.contents.text(path) for path in project.contents.holding(word)) if project is not None else ()
        return any(text is not None and pattern.search(text) for text in (self.module.file.code, *others))

    def _wraps_a_model_without_ties(self) -> bool:
        """Whether what the file wraps is built from a class of the project, in a file that mentions no ties."""
        project = self.module.project
        for wrap in self.module.wraps.all if project is not None else ():
            made = self.module.constructed_by(wrap.call.args[0].value) if wrap.call.args else ""
            home = project.meanings.split(made) if made and project is not None else None
            if home is not None and not _TIES.search(home[0].file.code):
                return True
        return False

    def _initialises_for_fsdp(self, node: cst.Call) -> bool:
        """Whether the call is in the function or lambda that FSDP gets as `param_init_fn`."""
        for up in self.module.ancestors(node):
            if isinstance(up, cst.FunctionDef):
                return "param_init_fn" in up.name.value or self._is_handed_over(up.name.value)
            if isinstance(up, cst.Arg) and up.keyword is not None and up.keyword.value == "param_init_fn":
                return True
            if isinstance(up, cst.Assign) and dotted(up.targets[0].target).endswith("param_init_fn"):
                return True
        return False

    def _is_handed_over(self, name: str) -> bool:
        return any(
            isinstance(n, cst.Arg)
            and n.keyword is not None
            and n.keyword.value == "param_init_fn"
            and dotted(n.value) == name
            for n in descendants(self.module.tree)
        )

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.knowledge import frameworks
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.one_rank import comes_on_one_rank, on_one_rank
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import last_part
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import calls_below

#: Words of a call that trains.
_TRAINS = frozenset({"backward", "train", "fit"})
#: Classes whose objects send the states of what they are given from rank 0 to the others.
_SENDS = frozenset(frameworks.every(lambda framework: framework.sends_states))


class StateLoadedOnOneRank(Rule):
    """Only one rank loads the optimizer's state, or the weights of a model that is wrapped already.

    ## What it does

    Finds, under a test for rank 0 (or `is_main_process`), or in a function that is only called there,
    `load_state_dict` of an optimizer, and of a model that DDP has wrapped before and that is trained afterwards.

    ## Why it breaks

    DDP sends rank 0's parameters to the other ranks once, when it wraps the model, and the state of an optimizer
    never. After that, all ranks get the same gradients, but rank 0 steps with its old moments and step count, or from
    its old weights, and rank 1 with new ones: each rank trains another model, and no rank raises. Measured on two ranks
    with gloo (torch 2.13): after two steps of Adam that rank 0 alone has resumed, the parameters are 1.3e-3 apart.

    ## Example

    ```python
    import os
    import tempfile

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    path = os.path.join(tempfile.gettempdir(), f"ddp_lint_{os.environ['MASTER_PORT']}.pt")


    def train(resume):
        model = DDP(torch.nn.Linear(4, 4).to(device))
        optimizer = torch.optim.Adam(model.parameters())
        if resume and dist.get_rank() == 0:
            optimizer.load_state_dict(torch.load(path, map_location="cpu"))  # <- DDP630
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4, device=device)).square().mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(optimizer.state_dict(), path)


    train(resume=False)
    train(resume=True)
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os
    import tempfile

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    path = os.path.join(tempfile.gettempdir(), f"ddp_lint_{os.environ['MASTER_PORT']}.pt")


    def train(resume):
        model = DDP(torch.nn.Linear(4, 4).to(device))
        optimizer = torch.optim.Adam(model.parameters())
        if resume:
            optimizer.load_state_dict(torch.load(path, map_location="cpu"))
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 4, device=device)).square().mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(optimizer.state_dict(), path)
        dist.barrier()


    train(resume=False)
    train(resume=True)
    dist.destroy_process_group()
    ```

    ## When it is silent

    Weights that rank 0 loads before the wrap, which DDP sends to all ranks; a model that is only evaluated afterwards;
    functions that broadcast something behind the load, or give the object to what does (Horovod's `TorchState`), or
    load the same object on the other ranks as well; FSDP.

    ## How to confirm

    `ddp-lint verify train.py`: the parameters of the ranks differ after a step, or what their optimizers keep does.

    ## Fix safety

    No automatic fix: load it on all ranks, with `map_location`.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("load_state_dict", file=("torch",), tests=False)
    oracles = ("parameter", "state")

    def visit_Call(self, node: cst.Call) -> None:
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "load_state_dict":
            return
        loaded = node.func.value
        if not comes_on_one_rank(self.module, node) or self._is_shared(node, loaded):
            return
        if several_ranks(self.module) is None:
            return
        if self._is_optimizer(loaded):
            self._report(node, "the state of", "its steps differ from those of the others", [])
            return
        wrap = self.module.wraps.around(dotted(loaded), node)
        if wrap is not None and wrap.kind == "ddp" and not wrap.tested and self._is_trained(node):
            labels = [(wrap.place, "the wrapper sends rank 0's parameters to the others here, and not again")]
            self._report(node, "the weights of", "the replicas differ from then on", labels)

    def _report(self, node: cst.Call, what: str, then: str, labels: Sequence[tuple[cst.CSTNode | Span, str]]) -> None:
        loaded = node.func.value if isinstance(node.func, cst.Attribute) else node.func
        self.report(
            node,
            f"only one rank loads {what} {self.module.quoted(loaded)}: {then}",
            notes=["rank 0 goes on from the checkpoint, rank 1 from what it has"],
            labels=[*labels, *((span, "only one rank comes by this call") for span in self._comes_by(node))],
            help="load it on every rank, with map_location",
        )

    def _comes_by(self, node: cst.Call) -> list[Span]:
        """The first call in this file of a function which loads without asking for the rank itself."""
        function, facts = self.module.function_of(node), self.module.facts
        if function is None or facts is None or on_one_rank(self.module, node):
            return []
        calls = (call for call in calls_below(facts.tree) if last_part(call.func) == function.name.value)
        return [facts.file.span_of(call) for call in itertools.islice(calls, 1)]

    def _is_optimizer(self, loaded: cst.BaseExpression) -> bool:
        made = self.module.constructed_by(loaded)
        if made:
            return made.startswith("torch.optim.") and "lr_scheduler" not in made
        words = words_of(dotted(loaded).rpartition(".")[2])
        return bool(words & {"optimizer", "optim", "opt"}) and not words & {"scheduler"}

    def _is_shared(self, node: cst.Call, loaded: cst.BaseExpression) -> bool:
        """Whether the function sends something to the other ranks afterwards, or has them load the same object."""
        for call in self._around(node):
            name = dotted(call.func)
            if "broadcast" in name.lower() and self.module.wraps.follows(call, node):
                return True
            given = self.module.qualified(call.func) in _SENDS and any(a.value.deep_equals(loaded) for a in call.args)
            if given and self.module.wraps.follows(call, node):
                return True
            if name == f"{dotted(loaded)}.load_state_dict" and not comes_on_one_rank(self.module, call):
                return True
        return False

    def _is_trained(self, node: cst.Call) -> bool:
        """Whether all ranks train further down in the same function."""
        return any(
            self.module.wraps.follows(call, node)
            and words_of(dotted(call.func).rpartition(".")[2]) & _TRAINS
            and (call.args or dotted(call.func).endswith("backward"))  # not ``model.train()``
            and not on_one_rank(self.module, call)
            for call in self._around(node)
        )

    def _around(self, node: cst.Call) -> Iterator[cst.Call]:
        return calls_in(self.module.scope_of(node))

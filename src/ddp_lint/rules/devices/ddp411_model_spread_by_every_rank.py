from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.launch.environment import shows_one_gpu, shows_own_gpu
from ddp_lint.launch.one_process import as_one_process
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.launch.ranks import Evidence, has_ranks, joins_ranks, runs_alone
from ddp_lint.launch.single_process import one_process
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.tree import called
from ddp_lint.tensors import TensorFile
from ddp_lint.view.wraps import argument


class ModelSpreadByEveryRank(Rule):
    """Every rank spreads the model over all GPUs, by `device_map="auto"`.

    ## What it does

    Finds `from_pretrained(.., device_map="auto")` (also `"balanced"`, `"balanced_low_0"` and `"sequential"`) in a
    program that forms a process group or prepares its model by accelerate, and in the constructor of a module of a
    project whose programs do.

    ## Why it breaks

    Each process computes the map for itself, over all GPUs that it sees: with 8 ranks on 8 GPUs every GPU holds a part
    of 8 models. accelerate refuses to prepare such a model for several processes, DDP refuses `device_ids` for it, and
    a batch on the rank's own GPU meets layers on another one ("Expected all tensors to be on the same device"). With
    one process, or one GPU, nothing of this shows. Measured on 2 x H200 with torch 2.11: the layers of both ranks lie
    on both GPUs, and DDP raises. That accelerate refuses is from its source (`Accelerator.prepare_model`).

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    class Net(nn.Sequential):
        @classmethod
        def from_pretrained(cls, device_map):
            count = torch.cuda.device_count()
            if device_map == "auto":  # as transformers does
                return cls(*(nn.Linear(8, 8).to(f"cuda:{i % count}") for i in range(8)))
            return cls(*(nn.Linear(8, 8) for _ in range(8))).to(device_map[""])


    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    model = Net.from_pretrained(device_map="auto")  # <- DDP411
    model = DistributedDataParallel(model, device_ids=[local_rank])
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


    class Net(nn.Sequential):
        @classmethod
        def from_pretrained(cls, device_map):
            count = torch.cuda.device_count()
            if device_map == "auto":  # as transformers does
                return cls(*(nn.Linear(8, 8).to(f"cuda:{i % count}") for i in range(8)))
            return cls(*(nn.Linear(8, 8) for _ in range(8))).to(device_map[""])


    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    model = Net.from_pretrained(device_map={"": local_rank})
    model = DistributedDataParallel(model, device_ids=[local_rank])
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Maps that depend on the rank, on a setting or on an argument; the branch for one process; a rank that loads alone;
    files that show each rank one GPU by `CUDA_VISIBLE_DEVICES`; programs that only use a `Trainer`, whose users start
    them by `python` to split the model; scripts that convert or serve a model; tests.

    ## How to confirm

    `ddp-lint verify train.py --device cuda` on two GPUs: the exception where the model is wrapped or first used.

    ## Fix safety

    No fix: `device_map={"": local_rank}` needs a GPU that holds the whole model; FSDP shards it otherwise.

    ## References

    - https://huggingface.co/docs/accelerate/concept_guides/big_model_inference
    - https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("device_map", tests=False)
    oracles = ("exception",)
    needs_cuda = True

    def visit_Call(self, node: cst.Call) -> None:
        given = argument(node, None, "device_map")
        if given is None or called(node) not in table("devices")["spreading"]["calls"] or not self._spreads(given):
            return
        found = self._ranks(node)
        if found is None or as_one_process(self.module, node) or on_one_rank(self.module, node) or self._asks(node):
            return
        if shows_one_gpu(self.module) or shows_own_gpu(self.module) or one_process(self.module):
            return
        self.report(
            given,
            f"every rank spreads the model over all GPUs (`device_map={self.module.code(given)}`): training raises",
            labels=[(found.span, found.text)] if isinstance(found, Evidence) else [],
            notes=["rank 0 and rank 1 both put layers on every GPU that they see"],
            help='device_map={"": local_rank}, or no device_map and .to(device)',
        )

    def _asks(self, node: cst.Call) -> bool:
        """Whether a test around the call asks how many ranks or GPUs there are, in whatever way."""
        return any(_ASKS.search(self.module.code(test)) for test, _ in conditions(self.module, node))

    def _spreads(self, given: cst.BaseExpression) -> bool:
        """Whether a map is one that is computed over all GPUs, whatever the rank."""
        made = [given] if isinstance(given, cst.SimpleString) else self.module.assignments(given)
        if not isinstance(given, cst.SimpleString) and len(made) < len(self.module.bindings(given)):
            return False
        texts = [value.evaluated_value for value in made if isinstance(value, cst.SimpleString)]
        return bool(texts) and len(texts) == len(made) and set(texts) <= set(table("devices")["spreading"]["maps"])

    def _ranks(self, node: cst.Call) -> Evidence | bool | None:
        """What shows that each of several ranks makes the model and trains it, None where nothing does."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or self.module.file.is_test or runs_alone(self.module, node):
            return None
        own = joins_ranks(facts, project)
        if own is not None:
            # An Accelerator serves one process as well: it refuses the model where it is to prepare it for several.
            return own if own.word not in _ALONE or self.module.file.holds("prepare") else None
        function = self.module.function_of(node)
        is_part = function is not None and function.name.value == "__init__"
        owner = TensorFile.of(self.module).owner(function) if function is not None and is_part else None
        return True if owner is not None and has_ranks(self.module) else None


_ASKS = re.compile(
    r"distributed|num_processes|world_size|n_gpu|num_gpus|device_count|local_rank|\bddp\b", re.IGNORECASE
)
_ALONE = ("Accelerator", "accelerate.Accelerator")

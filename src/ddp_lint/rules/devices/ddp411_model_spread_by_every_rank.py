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
from ddp_lint.launch.started import Launch, launched, place_of
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.imports import last_part
from ddp_lint.source.queries import literal_text
from ddp_lint.source.syntax import calls_below
from ddp_lint.source.tree import called
from ddp_lint.tensors import TensorFile
from ddp_lint.view.wraps import argument, assigned_name


class ModelSpreadByEveryRank(Rule):
    """Every rank spreads the model over all GPUs, by `device_map="auto"`, or puts it on one and the same GPU.

    ## What it does

    Finds `from_pretrained(.., device_map="auto")` (also `"balanced"`, `"balanced_low_0"` and `"sequential"`) in a
    program that forms a process group or prepares its model by accelerate, that a script of the project starts with
    several processes, and in the constructor of a module of a project whose programs do. So does
    `device_map={"": 0}` (or `"cuda:0"`), where the model is moved nowhere afterwards.

    ## Why it breaks

    Each process computes the map for itself, over all GPUs that it sees: with 8 ranks on 8 GPUs every GPU holds a part
    of 8 models. accelerate refuses to prepare such a model for several processes, DDP refuses `device_ids` for it, and
    a batch on the rank's own GPU meets layers on another one ("Expected all tensors to be on the same device"). With
    `{"": 0}` the models of all ranks lie on GPU 0, whose memory ends, and what wraps them raises the same. With
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
    files that show each rank one GPU by `CUDA_VISIBLE_DEVICES`; programs that only use a `Trainer` and that no script
    starts with several processes, whose users start them by `python` to split the model; scripts that convert or serve
    a model; tests.

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
        if given is None or called(node) not in table("devices")["spreading"]["calls"]:
            return
        spreads = self._spreads(given)
        if not spreads and not (self._is_one_gpu(given) and not self._is_moved(node)):
            return
        found = self._ranks(node, spreads)
        if found is None or as_one_process(self.module, node) or on_one_rank(self.module, node) or self._asks(node):
            return
        if shows_one_gpu(self.module) or shows_own_gpu(self.module) or one_process(self.module):
            return
        where, project = f"`device_map={self.module.code(given)}`", self.module.project
        what = "spreads the model over all GPUs" if spreads else "puts its model on one and the same GPU"
        notes = ["rank 0 and rank 1 both put layers on every GPU that they see" if spreads else _ON_FIRST]
        if isinstance(found, Launch) and project is not None:
            notes.append(f"{place_of(project, found)} starts it with several processes")
        self.report(
            given,
            f"every rank {what} ({where}): training raises",
            labels=[(found.span, found.text)] if isinstance(found, Evidence) else [],
            notes=notes,
            help='device_map={"": local_rank}, or no device_map and .to(device)',
        )

    def _is_one_gpu(self, given: cst.BaseExpression) -> bool:
        """Whether a map puts all of the model on a GPU by its number: ``{"": 0}``, ``"cuda:0"``."""
        values = self.module.assignments(given) if isinstance(given, cst.Name) else [given]
        value = values[0] if len(values) == 1 else None
        if isinstance(value, cst.Dict) and len(value.elements) == 1 and isinstance(value.elements[0], cst.DictElement):
            value = value.elements[0].value if literal_text(value.elements[0].key) == "" else None
        if isinstance(value, cst.Integer):
            return True
        return isinstance(value, cst.SimpleString) and re.fullmatch(r"cuda:\d", str(value.evaluated_value)) is not None

    def _is_moved(self, node: cst.Call) -> bool:
        """Whether the model is moved to a device of the rank afterwards."""
        name = assigned_name(self.module, node)
        return not name or any(self.module.file.holds(f"{name}.{method}(") for method in ("to", "cuda"))

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

    def _ranks(self, node: cst.Call, spreads: bool) -> Evidence | Launch | bool | None:
        """What shows that each of several ranks makes the model and trains it, None where nothing does."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or self.module.file.is_test or runs_alone(self.module, node):
            return None
        own = joins_ranks(facts, project)
        if own is not None:
            # An Accelerator serves one process as well: it refuses the model where it is to prepare it for several.
            return own if own.word not in _ALONE or (spreads and self.module.file.holds("prepare")) else None
        launch = launched(project, facts, "environment", several=True) if self._trains(facts) else None
        if launch is not None:
            return launch
        function = self.module.function_of(node)
        is_part = spreads and function is not None and function.name.value == "__init__"
        owner = TensorFile.of(self.module).owner(function) if function is not None and is_part else None
        return True if owner is not None and has_ranks(self.module) else None

    def _trains(self, facts: ModuleFacts) -> bool:
        """Whether the program gives its models to a trainer, which takes the rank's own GPU."""
        return any("Trainer" in last_part(call.func) for call in calls_below(facts.tree))


_ON_FIRST = "the models of rank 0 and rank 1 both lie on that GPU, and nothing lies on the others"
_ASKS = re.compile(
    r"distributed|num_processes|world_size|n_gpu|num_gpus|device_count|local_rank|\bddp\b", re.IGNORECASE
)
_ALONE = ("Accelerator", "accelerate.Accelerator")

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.launch.one_rank import comes_on_one_rank
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.sharded import owner_of
from ddp_lint.rules.wrapping.sharded_optimizers import sharded_by
from ddp_lint.rules.wrapping.zero_stages import sharding_engine
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called, subtree
from ddp_lint.view.wraps import argument

#: What makes whole tensors of shards, or lets the ranks exchange them.
_GATHERS = frozenset(
    {
        *("full_tensor", "get_model_state_dict", "get_state_dict", "unshard", "redistribute"),
        *("gather", "gather_object", "all_gather", "all_gather_object", "all_gather_into_tensor", "send", "isend"),
    }
)
#: What makes the whole state of an optimizer, or lets the ranks exchange it.
_GATHERS_MOMENTS = (_GATHERS - {"get_model_state_dict"}) | {
    *("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict", "get_optimizer_state_dict"),
    *("consolidate_state_dict", "all_reduce", "broadcast", "broadcast_object_list"),
}


@dataclasses.dataclass(frozen=True)
class _Shard:
    """What has sharded the state that is saved, and whether that is the state of an optimizer."""

    place: Span | cst.Call
    of_optimizer: bool


class ShardSavedAsWhole(Rule):
    """One rank saves the state dict of a model that FSDP2 has sharded: the file has that rank's shard alone.

    ## What it does

    Finds `torch.save(model.state_dict(), path)` on one rank, with the state dict given directly, by a name, in a
    dictionary, or with `to_local()` on its tensors, for a model that `fully_shard` has sharded in the same function or
    class, or that another file has sharded and hands over. One rank also saves in a function that all callers keep to
    one. Finds as well `optimizer.state_dict()` that one rank saves, of an optimizer over the parameters of a model that
    FSDP1 or FSDP2 has sharded, also where the function that saves gets both. Also
    `torch.save(engine.module.state_dict(), path)`, on any rank, for an engine of DeepSpeed whose settings (a dictionary
    or a JSON file) say ZeRO stage 3, in the function that makes it or one that gets it.

    ## Why it breaks

    `state_dict()` of FSDP2 gathers nothing: its tensors are DTensors, each with the part that this rank holds. Measured
    (gloo, torch 2.13, two ranks): the file of rank 0 has 2 of the 4 rows of a weight, `torch.load` succeeds, and
    `load_state_dict` into a plain model ends with "got mixed torch.Tensor and DTensor". The other half is lost. With
    `to_local()` the file has plain tensors of half the size, which no model of one process loads ("size mismatch").
    An optimizer knows the parameters of its rank alone: of four parameters under FSDP1 (`use_orig_params=True`) rank 0
    saves the moments of two. When all ranks load this file, nothing raises, and rank 1 trains on with moments of
    rank 0's parameters.
    ZeRO-3 leaves an empty tensor in place of each parameter outside of forward and backward: the file has these.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Linear(4, 4, device=device)
    fully_shard(model)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "shard.pt")  # <- DDP628

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    model = torch.nn.Linear(4, 4, device=device)
    fully_shard(model)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        torch.save(whole, "whole.pt")

    dist.destroy_process_group()
    ```

    ## When it is silent

    DDP models (their state dict is whole), FSDP1 models (their `state_dict()` communicates: DDP102), files that every
    rank writes, functions that call `get_model_state_dict` or `full_tensor` or exchange tensors, and
    `torch.distributed.checkpoint`; for optimizers functions that call `FSDP.optim_state_dict`,
    `get_optimizer_state_dict` or the like, and models that shard nothing (`NO_SHARD`); engines whose stage is not seen,
    or inside `deepspeed.zero.GatheredParameters`.

    ## How to confirm

    `ddp-lint verify train.py`: the call saves parts of sharded tensors, and not every rank makes it.
    Of what FSDP1 has sharded it cannot tell.

    ## Fix safety

    No automatic fix: `get_model_state_dict` is a collective, which every rank has to call.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
    - https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
    """

    confidence = Confidence.HIGH
    triggers = Triggers("save", "fully_shard", "FullyShardedDataParallel", file=("torch",))
    oracles = ("saved",)

    def start(self) -> None:
        self._gathering: dict[tuple[cst.CSTNode, frozenset[str]], bool] = {}

    def visit_Call(self, node: cst.Call) -> None:
        if self.module.qualified(node.func) != "torch.save":
            return
        saved = argument(node, 0, "obj")
        if saved is not None and self._is_of_zero(saved):
            return
        shard = next(itertools.chain(self._shards(saved), self._moments(saved)), None) if saved is not None else None
        if shard is None or not comes_on_one_rank(self.module, node):
            return
        if shard.of_optimizer:
            message = "the file gets the moments of this rank's shard alone: `optimizer.state_dict()` gathers nothing"
            call = "get_optimizer_state_dict(model, optimizer, "
        else:
            message = "the file gets the shard of this rank alone: `state_dict()` of FSDP2 gathers nothing"
            call = "get_model_state_dict(model, "
        self.report(
            node,
            message,
            notes=["rank 1 and the others hold the rest of each parameter, and save nothing"],
            labels=[(shard.place, "sharded here")],
            help=f"on every rank call {call}options=StateDictOptions(full_state_dict=True, cpu_offload=True)), and "
            "save the result on one",
        )

    def _is_of_zero(self, saved: cst.BaseExpression) -> bool:
        """A state dict of an engine that shards the parameters, outside of what gathers them."""
        if not self.module.imports.packages & {"deepspeed"} and not self._shows_deepspeed:
            return False
        engine, call = next(self._engines(saved), ("", saved))
        made = sharding_engine(self.module, engine, call) if engine else None
        if made is None or self._is_gathered(call):
            return False
        self.report(
            saved,
            f"the file gets empty tensors: ZeRO-3 keeps a part of each parameter on each rank, and `{engine}.module` "
            "has none",
            notes=["a `state_dict()` gathers nothing, on rank 0 and on rank 1 alike"],
            labels=[(made, "stage 3 shards the parameters here")],
            help=f"call {engine}.save_16bit_model(folder) or {engine}.save_checkpoint(folder) on every rank",
            confidence=Confidence.MEDIUM,
        )
        return True

    @functools.cached_property
    def _shows_deepspeed(self) -> bool:
        project = self.module.project
        return project is not None and bool(project.contents.holding("deepspeed.initialize"))

    def _engines(self, saved: cst.BaseExpression) -> Iterator[tuple[str, cst.Call]]:
        """The names of what may be engines whose state dicts are saved, each with the call."""
        named = (self.module.assignments(part) for part in subtree(saved) if isinstance(part, cst.Name))
        made = (values[0] for values in named if len(values) == 1)
        for call in (part for value in (saved, *made) for part in subtree(value) if isinstance(part, cst.Call)):
            model = owner_of(call, "state_dict")
            if model:
                yield model.removesuffix(".module"), call

    def _is_gathered(self, call: cst.CSTNode) -> bool:
        """Whether the parameters are whole here: ``with deepspeed.zero.GatheredParameters(..):``."""
        blocks = (up for up in self.module.ancestors(call) if isinstance(up, cst.With))
        items = (item.item for block in blocks for item in block.items)
        return any(isinstance(item, cst.Call) and called(item) == "GatheredParameters" for item in items)

    def _gathers_in(self, scope: cst.CSTNode, gathers: frozenset[str] = _GATHERS) -> bool:
        key = (scope, gathers)
        if key not in self._gathering:
            self._gathering[key] = any(called(call) in gathers for call in calls_in(scope))
        return self._gathering[key]

    def _shards(self, saved: cst.BaseExpression) -> Iterator[_Shard]:
        """What has sharded the models whose state dicts are saved."""
        if any(isinstance(part, cst.Call) and called(part) in _GATHERS for part in subtree(saved)):
            return  # one rank alone waits in it for the others: another rule's
        named = (self.module.assignments(part) for part in subtree(saved) if isinstance(part, cst.Name))
        made = [values[0] for values in named if len(values) == 1]
        # What has a name may be made whole before it is saved, one tensor after the other.
        values = (saved, *(() if made and self._gathers_in(self.module.scope_of(saved)) else made))
        for call in (part for value in values for part in subtree(value) if isinstance(part, cst.Call)):
            model = owner_of(call, "state_dict").removesuffix(".module")
            wrap = self.module.wraps.of(model, call) if model else None
            if wrap is not None and wrap.kind == "fsdp2":
                yield _Shard(wrap.place, of_optimizer=False)

    def _moments(self, saved: cst.BaseExpression) -> Iterator[_Shard]:
        """What has sharded the models whose optimizers' state dicts are saved."""
        if self._gathers_in(self.module.scope_of(saved), _GATHERS_MOMENTS):
            return
        for value in _entries(saved):
            made = self.module.assignments(value) if isinstance(value, cst.Name) else [value]
            call = made[0] if len(made) == 1 else None
            optimizer = owner_of(call, "state_dict") if isinstance(call, cst.Call) else ""
            place = sharded_by(self.module, optimizer, call) if isinstance(call, cst.Call) and optimizer else None
            if place is not None:
                yield _Shard(place, of_optimizer=True)


def _entries(saved: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """What is saved: itself, or the values of a dictionary."""
    if isinstance(saved, cst.Dict):
        yield from (element.value for element in saved.elements if isinstance(element, cst.DictElement))
    else:
        yield saved

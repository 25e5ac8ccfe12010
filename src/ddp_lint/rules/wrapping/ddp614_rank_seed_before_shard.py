from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import descendants, method_of, names_in, subtree
from ddp_lint.view.wraps import Wrap

#: What writes one value into a tensor, regardless of the generator.
_FILLS = frozenset({"fill_", "zero_"})
_FILLING = frozenset(f"torch.nn.init.{name}" for name in ("constant_", "ones_", "zeros_"))
#: What draws no bias, or builds one of zeros.
_WITHOUT_BIAS = re.compile(r"\bbias=False|Norm\w*\(")
_RANK_NAMES = frozenset({"rank", "local_rank", "global_rank", "get_rank", "process_index", "RANK", "LOCAL_RANK"})


class RankSeedBeforeShard(Rule):
    """Each rank uses another seed before it builds a model that FSDP shards without synchronising it.

    ## What it does

    Finds `torch.manual_seed(... rank ...)` before the model is built and wrapped with `fully_shard`, or with FSDP1
    without `sync_module_states=True`, in the same function.

    ## Why it breaks

    DDP broadcasts rank 0's parameters when it wraps; FSDP takes each rank's own. With a seed per rank, shard 0
    comes from one initialisation and shard 1 from another. Measured on 2 x H200 (NCCL, torch 2.11) and on gloo
    (torch 2.13): no error, parameters 0.66 (FSDP1) and 0.76 (FSDP2) off the single-process reference.

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

    torch.manual_seed(dist.get_rank())  # <- DDP614
    model = torch.nn.Linear(4, 4, device=device)
    fully_shard(model)
    model(torch.randn(8, 4, device=device)).square().mean().backward()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, device=device)
    fully_shard(model)
    torch.manual_seed(dist.get_rank())
    model(torch.randn(8, 4, device=device)).square().mean().backward()

    dist.destroy_process_group()
    ```

    ## When it is silent

    DDP (it broadcasts), FSDP1 with `sync_module_states=True`, a seed that is set to one value again before the model
    is built, a checkpoint loaded before the wrap, a model that was built (or copied from one) before the seed, on the
    meta device, or that is set to constants before the wrap: there the seed has no effect.

    ## How to confirm

    `ddp-lint verify train.py`: the full parameters before the wrap differ between the ranks.

    ## Fix safety

    No automatic fix: use the same seed to build the model, and a seed per rank afterwards.

    ## References

    - https://pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel
    """

    triggers = Triggers(
        "manual_seed",
        "seed_everything",
        "set_seed",
        "load_state_dict",
        "fully_shard",
        "FullyShardedDataParallel",
        file=("fully_shard", "FullyShardedDataParallel"),
    )
    oracles = ("reference", "parameter")

    def start(self) -> None:
        self._wraps = self.module.wraps
        self._seeds: list[tuple[cst.Call, bool]] = []  # each seeding, and whether it depends on the rank

    def visit_Call(self, node: cst.Call) -> None:
        name = dotted(node.func).rpartition(".")[2]
        if name in ("manual_seed", "manual_seed_all", "seed_everything", "set_seed") and node.args:
            self._seeds.append((node, self._mentions_rank(node.args[0].value)))
        elif name in ("load_state_dict", "from_pretrained", "load_checkpoint"):
            self._seeds.append((node, False))  # what was initialised is overwritten

    def finish(self) -> None:
        reported: set[cst.Call] = set()
        for wrap in self._wraps.all:
            if wrap.kind not in ("fsdp1", "fsdp2") or not wrap.lacks("sync_module_states"):
                continue
            before = [seed for seed in self._seeds if self._wraps.before(seed[0], wrap)]
            if before and before[-1][1] and before[-1][0] not in reported and self._builds_after(before[-1][0], wrap):
                reported.add(before[-1][0])
                self._report(before[-1][0], wrap)

    def _builds_after(self, seed: cst.Call, wrap: Wrap) -> bool:
        """The seed decides the weights: the model is built after it, and not copied from one that was there."""
        bound = [b for b in self.module.bindings(wrap.inner, wrap.call) if b.node is not self.module.parent(wrap.call)]
        built = [b for b in bound if b.value is not None and self._wraps.before(b.value, wrap)]
        if not built:
            return not bound
        last = built[-1]
        copied = isinstance(last.value, cst.Call) and self.module.qualified(last.value.func) == "copy.deepcopy"
        if last.kind == "for" or copied or last.value is None or not self._wraps.follows(last.value, seed):
            return False
        return not self._is_on_meta(last.value) and not self._is_filled(last.value, wrap)

    # ---- what no generator decides

    def _is_on_meta(self, built: cst.BaseExpression) -> bool:
        """Built without storage, by ``device="meta"`` or inside ``with torch.device("meta")``: nothing is drawn yet."""
        around = [up for up in self.module.ancestors(built) if isinstance(up, cst.With)]
        places: list[cst.CSTNode] = [built, *(item.item for up in around for item in up.items)]
        return any(
            isinstance(node, cst.SimpleString) and node.evaluated_value == "meta"
            for place in places
            for node in descendants(place)
        )

    def _is_filled(self, built: cst.BaseExpression, wrap: Wrap) -> bool:
        """Whether all that was drawn is written over with constants before the wrap."""
        filled = set(self._filled(built, wrap))
        without_bias = _WITHOUT_BIAS.search(self.module.code(built)) is not None
        return "parameters()" in filled or ("weight" in filled and ("bias" in filled or without_bias))

    def _filled(self, built: cst.BaseExpression, wrap: Wrap) -> Iterator[str]:
        """The parameters of the model that get constants between its making and the wrap; `parameters()` for all."""
        every = (f"{wrap.inner}.parameters", f"{wrap.inner}.named_parameters")
        for call in self.module.nodes:
            if not isinstance(call, cst.Call) or not self._wraps.before(call, wrap):
                continue
            target = self._filled_by(call) if self._wraps.follows(call, built) else None
            if target is None or any(self._varies(arg.value) for arg in call.args):
                continue
            name = dotted(target).removesuffix(".data")
            loops = [b.value for b in self.module.bindings(name, call) if b.kind == "for"]
            if any(isinstance(v, cst.Call) and dotted(v.func) in every for v in loops):
                yield "parameters()"
            elif name.startswith(f"{wrap.inner}."):
                yield name.removeprefix(f"{wrap.inner}.")

    def _filled_by(self, call: cst.Call) -> cst.BaseExpression | None:
        if self.module.qualified(call.func) in _FILLING and call.args:
            return call.args[0].value
        is_fill = method_of(call) in _FILLS
        return call.func.value if is_fill and isinstance(call.func, cst.Attribute) else None

    def _varies(self, value: cst.BaseExpression) -> bool:
        return self._mentions_rank(value) or any(isinstance(n, cst.Call) for n in subtree(value))

    def _report(self, seed: cst.Call, wrap: Wrap) -> None:
        self.report(
            seed,
            "each rank uses another seed before the model is built: FSDP shards a mixture of initial weights",
            notes=["rank 0 and rank 1 each contribute shards of their own initial weights"],
            labels=[(wrap.place, "sharded here without a broadcast")],
            help="use the same seed until the model is wrapped; for FSDP1 pass sync_module_states=True",
        )

    def _mentions_rank(self, seed: cst.BaseExpression) -> bool:
        bindings = self.module.bindings(seed) if isinstance(seed, cst.Name) else ()
        last = next(self.module.scopes.last_before(bindings, seed), None) if bindings else None
        given = [seed, *([last.value] if last is not None and last.value is not None else [])]
        names = {name.rpartition(".")[2] for value in given for name in names_in(value)}
        return not names.isdisjoint(_RANK_NAMES) or any(
            self.module.listed("ranks", node) for value in given for node in subtree(value)
        )

from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.by_rank import Place
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.launch.random_state import state_at
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.rules.data.loading import files_of_programs
from ddp_lint.rules.parameters.drawn_again import drawn_again, is_draw, over_parts_of
from ddp_lint.rules.parameters.in_place import InPlaceRule
from ddp_lint.rules.parameters.written_back import writes_back
from ddp_lint.rules.triggers import Trait, Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import calls_below, function_at
from ddp_lint.source.tree import called
from ddp_lint.tensors import Code, Reached, Write
from ddp_lint.view.accumulation import calls_of_round, is_backward, loop_of
from ddp_lint.view.as_ast import as_ast
from ddp_lint.view.wraps import Wrap

_RANK_CALLS = {
    "torch.distributed.get_rank",
    "torch.distributed.get_node_local_rank",
    "torch.distributed.get_group_rank",
}
#: What brings the replicas together again behind a draw.
_BROUGHT_TOGETHER = re.compile(r"broadcast|load_state_dict|load_checkpoint|_sync_module_states")
_RANK_WORDS = {"rank", "local_rank", "global_rank", "process_index", "local_process_index"}


class ParameterWrittenByRank(InPlaceRule):
    """Parameters of a wrapped model are written with a value that depends on the rank.

    ## What it does

    Finds `p.mul_(1 + rank)`, `p.data.add_(noise * dist.get_rank())` and the like on the parameters of a model that
    the same function has wrapped before. Also the call, on one rank alone and in each round of the training loop, of an
    object that writes back into the model which it was made with, as an average of the weights that only rank 0 keeps.
    And new random values behind the wrap, by a function of the project on the model (`init_weights(model)`,
    `model.apply(init_weights)`) or a loop over its parts, where the ranks draw from another state: the last seed above
    has the rank in it, or nothing in the program seeds.

    ## Why it breaks

    DDP broadcasts rank 0's parameters once, at the wrap. What a rank writes later stays on that rank: gradients are
    averaged, parameters are not, so rank 0 and rank 1 train different models and no rank raises (0.022 apart after
    two steps; FSDP 0.46 off a single-process run; measured on 2 x H200 with NCCL, torch 2.11, and gloo, torch 2.13).
    Layers drawn again behind the wrap, after `torch.manual_seed(seed + rank)`, were as far apart after five steps as at
    the start (2.2 of weights from a normal distribution; two ranks, gloo, torch 2.13).

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8).to(device))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + dist.get_rank())  # <- DDP207
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
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    net = torch.nn.Linear(8, 8).to(device)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(2)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8, device=device)).square().mean().backward()
    optimizer.step()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Before the wrap (DDP's broadcast overwrites it), values that are the same on all ranks, buffers, gradients; an
    object that writes back if it is told to, and is not; one with two methods that write to the model: one may restore
    it. Draws from one seed, or where the function or its callers broadcast or load the weights.

    ## How to confirm

    `ddp-lint verify train.py`: the parameters of the ranks differ after the step.

    ## Fix safety

    No automatic fix: compute the same value on all ranks, or broadcast it.

    ## References

    - https://pytorch.org/docs/stable/notes/ddp.html
    """

    triggers = Triggers(
        "parameters",
        "named_parameters",
        "DistributedDataParallel",
        Trait.WRITES,
        file=("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "prepare"),
        tests=False,
    )
    oracles = ("parameter", "reference")
    needs_wrap = True

    def check(self, write: Write, function: Code, reached: Reached | None) -> None:
        name = write.value.name
        rank = next((n for n in self.operands(write) if self._is_rank(n)), None) if name else None
        wrap = self.module.wraps.around(name.rpartition(".")[0], write.node) if rank is not None else None
        if rank is None or wrap is None:
            return
        self.report(
            write.node,
            f"the parameters of `{wrap.outer}` are written with {self.module.quoted(rank)}: the replicas "
            "differ afterwards",
            notes=["rank 0 and rank 1 have different values, and nothing synchronises them"],
            labels=[(wrap.place, "parameters were the same on all ranks after the wrap")],
            help="write the same value on every rank, or before the wrap",
        )

    def visit_Call(self, node: cst.Call) -> None:
        if not self.module.wraps.all or self.module.file.is_test:
            return
        wrap = self._wrap_of_given(node)
        if wrap is not None:
            self._visit_draw(node, wrap)
        self._visit_average(node)

    def _wrap_of_given(self, node: cst.Call) -> Wrap | None:
        """The wrap with DDP, above in the same function, of the model that a call may draw again."""
        if called(node) == "apply" and isinstance(node.func, cst.Attribute):
            name = dotted(node.func.value)
        elif called(node).endswith("_"):
            loop = next((up for up in self.module.ancestors(node) if isinstance(up, cst.For)), None)
            name = over_parts_of(ast.parse(self.module.code(loop.iter), mode="eval").body) if loop is not None else ""
        else:
            name = dotted(node.args[0].value) if len(node.args) == 1 else ""
        wrap = self.module.wraps.around(name, node) if name else None
        if wrap is None or wrap.kind != "ddp" or wrap.tested or wrap.handed is not None or wrap.call is node:
            return None
        return wrap if self.module.function_of(wrap.call) is self.module.function_of(node) else None

    def _visit_draw(self, node: cst.Call, wrap: Wrap) -> None:
        facts, project, call = self.module.facts, self.module.project, as_ast(self.module, node)
        if facts is None or project is None or not isinstance(call, ast.Call):
            return
        place = Place(facts, function_at(facts.tree, call.lineno))
        if not is_draw(facts, call) and drawn_again(project, call, place) is None:
            return
        scopes = (place.around or facts.tree, *(at.around or at.facts.tree for _, at in place.callers(project)))
        if any(_BROUGHT_TOGETHER.search(ast.unparse(scope)) for scope in scopes):
            return
        if on_one_rank(self.module, node) or several_ranks(self.module, node) is None:
            return
        apart = state_at(project, call, place, "torch", list(files_of_programs(self.module)))
        if apart is None:
            return
        self.report(
            node,
            f"each rank draws other weights for `{wrap.outer}` behind the wrap: the replicas differ from here on",
            notes=["DDP has broadcast the weights of rank 0 already, and nothing does so again"],
            labels=[
                (wrap.place, "the weights were the same on all ranks after the wrap"),
                *([(apart.seeded, "seeded by the rank")] if apart.seeded is not None else []),
            ],
            help="draw them before the wrap",
            confidence=Confidence.MEDIUM,
        )

    def _visit_average(self, node: cst.Call) -> None:
        """A call on one rank that writes back into the model."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or not isinstance(node.func, cst.Attribute) or not self.module.wraps.all:
            return
        if not on_one_rank(self.module, node) or not self._is_in_training_loop(node):
            return
        owner = project.classes.find(self.module.constructed_by(node.func.value))
        made = [each for each in self.module.assignments(node.func.value, node) if isinstance(each, cst.Call)]
        if owner is None or node.func.attr.value not in owner.methods or len(made) != 1:
            return
        line, name = self.module.span(made[0]).line, called(made[0])
        calls = (call for call in calls_below(facts.tree) if call.lineno == line and last_part(call.func) == name)
        found = next((writes_back(owner, node.func.attr.value, call) for call in calls), None)
        wrap = self.module.wraps.around(dotted_ast(found[1]), node) if found is not None else None
        if found is None or wrap is None or wrap.kind != "ddp":
            return
        self.report(
            node,
            f"only one rank calls this, and it writes into the parameters of `{wrap.outer}`: the replicas differ",
            notes=["rank 0 trains on with other values than rank 1, and nothing synchronises them"],
            labels=[(owner.module.file.span_of(found[0]), "writes here"), (made[0], "was made with the model")],
            help="call it on every rank",
        )

    def _is_in_training_loop(self, node: cst.Call) -> bool:
        """Whether the loop around runs backward in each round as well."""
        loop = loop_of(self.module, node)
        return isinstance(loop, (cst.For, cst.While)) and any(map(is_backward, calls_of_round(self.module, loop)))

    def _is_rank(self, node: cst.CSTNode) -> bool:
        if self.module.listed("ranks", node):
            return True
        if isinstance(node, cst.Call):
            return self.module.qualified(node.func) in _RANK_CALLS
        return dotted(node).rpartition(".")[2] in _RANK_WORDS

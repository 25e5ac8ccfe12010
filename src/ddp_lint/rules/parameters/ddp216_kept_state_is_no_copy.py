from __future__ import annotations

import functools
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.rules.base import Rule
from ddp_lint.rules.parameters.last_round import runs_in_last_round
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import exclusive, leaves
from ddp_lint.source.queries import calls_in, receiver
from ddp_lint.source.tree import called, descendants, method_of, names_in, subtree
from ddp_lint.view.wraps import argument

#: Calls that return a new dictionary with the same tensors.
_SHALLOW = ("dict", "collections.OrderedDict", "copy.copy")
#: Methods that change which tensors a dictionary holds.
_CHANGES = ("update", "pop", "clear", "setdefault", "popitem")
#: How names say that the last state is meant, and what else they have in them then.
_LAST = frozenset({"last", "latest", "final"})
_OF_STATES = frozenset(
    {"model", "net", "network", "state", "states", "dict", "weight", "weights", "wts", "params", "checkpoint", "ckpt"}
)
_LOOPS = (cst.For, cst.While)
#: What the best model so far is called.
_BEST = ("best_model", "best_net", "best_network", "best_module")
#: Methods of modules alone.
_OF_MODULES = ("train", "parameters", "named_parameters", "state_dict")


class KeptStateIsNoCopy(Rule):
    """A state dict is kept for later without a copy: training overwrites it.

    ## What it does

    Finds `best = model.state_dict()` under a test in a training loop, if `best` is read behind the loop; and `before =
    model.state_dict()` that is loaded back after another state was loaded into the model, or after it was trained. So
    with `self.best = ..`, a dictionary that holds the state dict, and shallow copies (`dict(..)`, `.copy()`). Also the
    model itself, by a name like `best_model`.

    ## Why it breaks

    `state_dict()` returns the tensors of the model, not copies. `optimizer.step()` and `load_state_dict()` write to
    these in place, so at the end the "best" state is the last one on every rank, and loading it back changes
    nothing: the model that is evaluated, saved or restored is not the one that was meant. No error, with and without a
    wrapper; DDP and FSDP2 the same. (FSDP1 gathers a full state dict into new tensors: that one is a copy.)

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
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5)  # too high: the first step is the best
    x, lowest, best = torch.ones(2, 4, device=device), float("inf"), None
    for epoch in range(4):
        loss = model(x).square().mean()
        if loss.item() < lowest:
            lowest = loss.item()
            best = model.state_dict()  # <- DDP216
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.load_state_dict(best)
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import copy
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.5)  # too high: the first step is the best
    x, lowest, best = torch.ones(2, 4, device=device), float("inf"), None
    for epoch in range(4):
        loss = model(x).square().mean()
        if loss.item() < lowest:
            lowest = loss.item()
            best = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.load_state_dict(best)
    dist.destroy_process_group()
    ```

    ## When it is silent

    States that are saved at once and not read behind the loop; a loop that ends there (`break`), that trains nothing,
    or that makes the model anew; state dicts whose entries are replaced afterwards (`state[key] = value.clone()`,
    `update`); optimizers, schedulers, samplers and scalers; models that FSDP1 has sharded; what all arms of a test keep
    (`if distributed: last = .. else: last = ..`), so that each round does and the last state is meant; what the last
    round keeps for certain, behind its steps (`if epoch % 10 == 0 or epoch == epochs - 1:`); names by which the last
    state is meant (`last_weights`).

    ## How to confirm

    `ddp-lint verify train.py`: tensors that the line kept were written before they were loaded or saved.

    ## Fix safety

    No automatic fix: `copy.deepcopy(model.state_dict())` needs memory for a second model, on the GPU; a copy to the CPU
    (`{k: v.cpu().clone() for k, v in ..}`) needs it there.

    ## References

    - https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html
    """

    confidence = Confidence.HIGH
    triggers = Triggers("state_dict", *_BEST, file=("torch",), tests=False)
    oracles = ("kept",)

    def visit_Assign(self, node: cst.Assign) -> None:
        kept = dotted(node.targets[0].target) if len(node.targets) == 1 else ""
        call = self._aliased(node.value)
        if not kept or (call is None and kept.rpartition(".")[2] not in _BEST):
            return
        model = dotted(node.value if call is None else receiver(call))
        if not model or words_of(model.rpartition(".")[2]) & _plain():
            return
        if self._is_changed(kept, node) or self._copies(model, node):
            return
        used = None
        if call is not None or self._is_module(model, node):
            used = self._read_behind_training(kept, model, node)
        if used is None and call is not None:
            used = self._loaded_back(kept, model, node) or self._loaded_by_another(kept, model, node)
        if used is not None:
            self.report(
                node.value if call is None else call,
                f"`{kept}` is no copy of `{model}`: it changes with every step, and is the last state when it is read",
                labels=[(used, "read here")],
                help=f"keep a copy: `{kept} = copy.deepcopy({model if call is None else self.module.code(call)})`",
            )

    # ---- what is kept

    def _aliased(self, value: cst.BaseExpression) -> cst.Call | None:
        """The call of `state_dict` whose tensors a value holds: itself, in a dictionary, or in a copy that is none."""
        if isinstance(value, cst.Dict):
            parts = (self._aliased(element.value) for element in value.elements)
            return next((part for part in parts if part is not None), None)
        if not isinstance(value, cst.Call):
            return None
        if method_of(value) == "state_dict":
            return value
        if method_of(value) == "copy" and not value.args and isinstance(value.func, cst.Attribute):
            return self._aliased(value.func.value)
        if len(value.args) == 1 and self.module.qualified(value.func) in _SHALLOW:
            return self._aliased(value.args[0].value)
        return None

    def _is_module(self, model: str, node: cst.CSTNode) -> bool:
        """Whether what a name for the best of something is given is a module: ``best_model = model``."""
        calls = (n for n in descendants(self._around(model, node)) if isinstance(n, cst.Call))
        return any(method_of(call) in _OF_MODULES and dotted(receiver(call)) == model for call in calls)

    def _copies(self, model: str, node: cst.CSTNode) -> bool:
        """Whether the state dict of a model is gathered into new tensors."""
        wrap = self.module.wraps.of(model, node)
        return wrap is not None and wrap.kind == "fsdp1"

    def _is_changed(self, kept: str, node: cst.CSTNode) -> bool:
        """Whether other tensors may come into the dictionary: ``kept[key] = ..``, ``kept.update(..)``."""
        for n in descendants(self._around(kept, node)):
            if isinstance(n, cst.Assign) and any(_is_entry(target.target, kept) for target in n.targets):
                return True
            if isinstance(n, cst.Call) and method_of(n) in _CHANGES and dotted(receiver(n)) == kept:
                return True
        return False

    def _around(self, kept: str, node: cst.CSTNode) -> cst.CSTNode:
        owner = self.module.class_of(node)
        return owner if owner is not None and kept.startswith("self.") else self.module.scope_of(node)

    # ---- what overwrites it before it is read

    def _read_behind_training(self, kept: str, model: str, node: cst.Assign) -> cst.CSTNode | None:
        """Where a state that some rounds of a loop keep is read behind the loop, in whose later rounds the model is
        trained."""
        within = list(self._up_to_function(node))
        loop = next((up for up in within if isinstance(up, _LOOPS)), None)
        branches = (up for up in within[: within.index(loop)] if isinstance(up, cst.If)) if loop is not None else ()
        if loop is None or all(_keeps_in_each_arm(branch, kept) for branch in branches):
            return None
        block = next(up for up in within if isinstance(up, cst.BaseSuite))
        if leaves(block) or self._is_made_in(model, loop) or not self._trains(model, loop, block):
            return None
        if runs_in_last_round(self.module, node) or _means_last(kept):
            return None
        read = next((n for n in self._reads(kept, node) if self._is_behind(n, loop)), None)
        return read if read is not None and not self._is_made_between(kept, loop, read) else None

    def _loaded_back(self, kept: str, model: str, node: cst.Assign) -> cst.CSTNode | None:
        """Where the state is loaded into its model again, which another state was loaded into before, or which was
        trained."""
        scope = self.module.scope_of(node)
        later = [c for c in calls_in(scope) if self._follows(c, node) and not exclusive(self.module, node, c)]
        loads = [c for c in later if method_of(c) == "load_state_dict" and dotted(receiver(c)) == model and c.args]
        back = next((c for c in loads if dotted(c.args[0].value) == kept), None)
        if back is None or len(self.module.assignments(kept, node)) > 1 or self._is_made_between(model, node, back):
            return None
        between = [c for c in later if self._follows(back, c) and not exclusive(self.module, c, back)]
        others = [c for c in between if c in loads and not _assigns(c) and kept not in names_in(c.args[0].value)]
        steps = any(method_of(c) == "step" for c in between) and any(dotted(c.func) == model for c in between)
        return back if others or (steps and any(method_of(c) == "backward" for c in between)) else None

    def _loaded_by_another(self, kept: str, model: str, node: cst.Assign) -> cst.CSTNode | None:
        """Where another method loads the state that an object keeps into the model that it is of: there would be no
        reason to, had the model not changed."""
        owner = self.module.class_of(node)
        nodes = descendants(owner) if owner is not None and kept.startswith("self.") else ()
        for call in (n for n in nodes if isinstance(n, cst.Call)):
            loads = method_of(call) == "load_state_dict" and call.args and dotted(call.args[0].value) == kept
            if loads and dotted(receiver(call)) == model:
                return None if self.module.function_of(call) is self.module.function_of(node) else call
        return None

    def _trains(self, model: str, loop: cst.CSTNode, block: cst.CSTNode) -> bool:
        """Whether a loop trains a model, elsewhere than where its state is kept."""
        inside = set(calls_in(block))
        outside = [call for call in calls_in(loop) if call not in inside]
        if any(method_of(call) == "backward" for call in outside) and any(method_of(c) == "step" for c in outside):
            return True
        return any(
            words_of(called(call)) & {"train", "fit"} and any(dotted(arg.value) == model for arg in call.args)
            for call in outside
        )

    def _reads(self, kept: str, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        for n in descendants(self._around(kept, node)):
            if isinstance(n, (cst.Name, cst.Attribute)) and dotted(n) == kept and not self._is_bound(n):
                yield n

    def _is_bound(self, node: cst.CSTNode) -> bool:
        return isinstance(self.module.parent(node), (cst.AssignTarget, cst.Del))

    def _is_behind(self, read: cst.CSTNode, loop: cst.CSTNode) -> bool:
        """Whether a name is read behind a loop in one function, and not only asked whether it is None."""
        if isinstance(self.module.parent(read), (cst.Comparison, cst.If)) or loop in self.module.ancestors(read):
            return False
        return self._follows(read, loop) and self.module.function_of(read) is self.module.function_of(loop)

    def _is_made_in(self, model: str, loop: cst.CSTNode) -> bool:
        root = model.partition(".")[0] if not model.startswith("self.") else model
        targets = (t.target for n in descendants(loop) if isinstance(n, cst.Assign) for t in n.targets)
        made = any(dotted(n) == root for target in targets for n in subtree(target))
        return made or (isinstance(loop, cst.For) and root in names_in(loop.target))

    def _is_made_between(self, name: str, first: cst.CSTNode, last: cst.CSTNode) -> bool:
        """Whether a name is bound anew behind one place and before another."""
        bound = [b.node for b in self.module.bindings(name, last) if self._follows(b.node, first)]
        return any(self._follows(last, node) and first not in self.module.ancestors(node) for node in bound)

    def _follows(self, later: cst.CSTNode, earlier: cst.CSTNode) -> bool:
        return self.module.wraps.follows(later, earlier)

    def _up_to_function(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        for up in self.module.ancestors(node):
            if isinstance(up, (cst.FunctionDef, cst.ClassDef)):
                return
            yield up


def _means_last(kept: str) -> bool:
    """Whether a name says that the last state is meant, which the model has anyway: ``last_model_weights``, not
    ``last_good_state``."""
    words = words_of(kept.removeprefix("self."))
    return bool(words & _LAST) and words <= _LAST | _OF_STATES


def _keeps_in_each_arm(branch: cst.If, kept: str) -> bool:
    """Whether all arms of a test keep a state under a name: each round of a loop does, and the last is meant."""
    arm: cst.If | cst.Else | None = branch
    while arm is not None:
        bound = (n for n in descendants(arm.body) if isinstance(n, cst.Assign))
        if not any(dotted(target.target) == kept for n in bound for target in n.targets):
            return False
        if isinstance(arm, cst.Else):
            return True
        arm = arm.orelse
    return False


def _assigns(load: cst.Call) -> bool:
    """``load_state_dict(state, assign=True)``: the model gets other tensors, and its old ones stay as they are."""
    return argument(load, None, "assign") is not None


def _is_entry(target: cst.BaseExpression, kept: str) -> bool:
    return isinstance(target, cst.Subscript) and dotted(target.value) == kept


@functools.cache
def _plain() -> frozenset[str]:
    """Words in the names of what has a state and is no model. Of an optimizer it is empty before the first step, and
    loading copies it."""
    known = table("checkpoints")
    return frozenset((*known["plain_receivers"], *known["optimizers"]))

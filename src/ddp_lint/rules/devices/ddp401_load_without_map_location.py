from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix, Span
from ddp_lint.knowledge import frameworks, table
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.actors import has_own_gpus, is_made_by_actors
from ddp_lint.launch.arms import is_off_where_joined
from ddp_lint.launch.callers import call_sites, sites_of
from ddp_lint.launch.environment import shows_one_gpu, shows_own_gpu
from ddp_lint.launch.joining import is_before_spawned_ranks
from ddp_lint.launch.one_process import as_one_process, uses_data_parallel
from ddp_lint.launch.one_rank import comes_on_one_rank
from ddp_lint.launch.ranks import (
    Evidence,
    called_in_one_process,
    joining_words,
    joins_ranks,
    program_of_ranks,
    several_ranks,
)
from ddp_lint.launch.reached.walk import is_unreached_in_package
from ddp_lint.launch.search import importers
from ddp_lint.launch.texts import is_installed
from ddp_lint.launch.uncalled import is_in_no_step
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.devices.checkpoint_devices import (
    models_saved_from_cpu,
    saved_elsewhere,
    saved_from_cpu,
    saved_here_without_states,
)
from ddp_lint.rules.devices.own_models import trains_unwrapped
from ddp_lint.rules.devices.saved_here import saves_what_fits
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import asks_for_none, conditions
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import options
from ddp_lint.source.syntax import FunctionNode, blocks_at, calls_below, function_at, main_guards, walk
from ddp_lint.source.tree import asks_for_program, children, descendants, method_of, parameters_of, subtree
from ddp_lint.view.as_ast import as_ast
from ddp_lint.view.edits import add_argument, set_argument
from ddp_lint.view.wraps import argument, assigned_name

_LOAD = "torch.load"
#: Calls that load what was saved, and where each takes its `map_location`.
_POSITION = {_LOAD: 1, "torch.hub.load_state_dict_from_url": 2, "torch.utils.model_zoo.load_url": 2}
_WRAP = "torch.nn.parallel.DistributedDataParallel"
#: Words of a function that trains as well: `train_and_test`.
_TRAINING = frozenset({"train", "training", "fit"})
#: What the code of a program has that joins the ranks of a job, or knows them.
_KNOWS_RANKS = re.compile(r"rank|distributed|\bddp\b|world_size", re.IGNORECASE)
#: How a file gives a process a GPU of its own, or leaves that to others.
_GIVES_GPU = re.compile(
    r"set_device|local_?rank|device_ids|\bgpu(?:_id|_index)?\b|\brank\b|\.(?:cuda|to)\((?!\)|non_blocking)|\bdevice\b(?!_count)"
    r"|accelerat|fabric|lightning|fsdp|deepspeed|horovod|\bhvd\b|\bxla\b",
    re.IGNORECASE,
)
_ON_FIRST_GPU = re.compile(r"\.cuda\(\)")
#: What removes a file.
_REMOVING = frozenset({"os.remove", "os.unlink"})
#: What saves the states of a run.
_SAVES = re.compile(
    r"\b(torch|accelerator|xm)\.save\(|\bsave_\w*(checkpoint|ckpt|model|state|weight|snapshot|network|learner)\w*\("
)
#: The file name that `torch.hub` asks of published weights, which end with a part of their digest. They are on the CPU.
_PUBLISHED = re.compile(r"-[0-9a-f]{8}\.pth\b")
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class _Uses:
    """What a scope does: subscripts by the name that they are of, assignments by each word of their value, calls of
    `load_state_dict` by each word of their arguments, with their place in the scope."""

    subscripts: dict[str, list[cst.Subscript]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )
    assigned: dict[str, list[cst.Assign]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    loads: dict[str, list[tuple[int, cst.Call]]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )


def _last_word(name: str) -> str:
    return name.rpartition(".")[2]


class LoadWithoutMapLocation(Rule):
    """Every rank loads a checkpoint onto the GPU that it was saved from.

    ## What it does

    Finds `torch.load` without `map_location`, or with one fixed GPU (`"cuda:0"`, `0`, and `"cuda"` where nothing calls
    `set_device`), in code that several ranks run, if the file may contain model or optimizer states. Also downloads
    (`torch.hub.load_state_dict_from_url`) in a function that takes a `map_location` and does not pass it on.

    ## Why it breaks

    A pickled storage records its device. Rank 0 saves from `cuda:0`; on load, rank 0 and rank 1 both put their copy on
    `cuda:0`. `torch.cuda.set_device(1)` does not change that. GPU 0 then holds one CUDA context and one full copy per
    rank, which is why resuming runs out of memory on GPU 0 only; and if that GPU does not exist (a job with fewer
    GPUs, `CUDA_VISIBLE_DEVICES`) the load fails with
    `Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1`. Measured on 2 x H200 (torch
    2.11): the tensors of both ranks are on `cuda:0`.

    ## Example

    ```python
    import os
    import tempfile

    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    model = torch.nn.Linear(4, 4).to("cuda" if cuda else "cpu")

    path = os.path.join(tempfile.gettempdir(), f"ddp_lint_{os.environ['MASTER_PORT']}.pt")
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    checkpoint = torch.load(path)  # <- DDP401
    model.load_state_dict(checkpoint)
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os
    import tempfile

    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    model = torch.nn.Linear(4, 4).to("cuda" if cuda else "cpu")

    path = os.path.join(tempfile.gettempdir(), f"ddp_lint_{os.environ['MASTER_PORT']}.pt")
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    checkpoint = torch.load(path, map_location="cpu")
    model.load_state_dict(checkpoint)
    dist.destroy_process_group()
    ```

    `f"cuda:{local_rank}"` is also correct; `"cpu"` needs no second copy on the GPU while the model is loaded.

    ## When it is silent

    The branch of a process without its own GPU (`if args.gpu is None`), or of one process (`if rank is None`, and the
    arm where a setting is off, `else` of `if args.parallel`, with which the project makes all its groups); a file whose
    name each process draws for itself (`uuid4`), or that the function has just saved in its own temporary folder,
    or saves, loads and removes. Tests, packages that export models, and files in which one process loads the parts of
    all ranks in a loop; a `map_location` that comes from a parameter, a variable or `**kwargs`; loads on one rank only,
    or in a function that only one rank calls, or a method that one rank calls in the training and others in programs of
    one process; files without evidence of several ranks, or that only programs come to which make no group while others
    of the project make theirs (a setting `args.distributed` is no evidence then), classes of a package that its
    programs of several ranks import with the rest, and make no object of, or that its scripts start with one
    process (`torchrun --nproc_per_node 1`) and others with several, or that spawn one rank (`nprocs=1`), or whose
    Lightning Trainers have one device; what is loaded above `fit()` of Trainers that are told `gpus=` alone, which
    spawn the ranks from there; the `main()` of a program of one process, of which programs of several ranks
    import other functions, or all names below which they define their own `main()`; ranks that end where they see more
    than one GPU (`assert torch.cuda.device_count() == 1`); programs that show themselves one GPU
    (`CUDA_VISIBLE_DEVICES`) and that no launcher starts for each rank; files that wrap for GPU 0 on every rank
    (`device_ids=[0]`), or that give all GPUs to one process (`DataParallel`) and read their rank with a number to fall
    back on, or give none of them a GPU of its own; actors of Ray, and classes of which they alone make objects, as each
    actor sees its own GPU as `cuda:0`; schedulers, vocabularies, statistics and other CPU data; bytes in memory, whose
    device the outer load decides; checkpoints that FSDP wrote with `offload_to_cpu`, files and projects that save only
    CPU tensors, also by a helper (`{k: v.cpu() for ..}`), and a `load_network` whose `save_network` moves them there;
    paths with the rank in them; arguments of `load_state_dict` of a loader, a sampler or a scheduler, files in which
    the project saves anything but states of models and optimizers, by the file's name or by the parts of a path that
    the same file loads, and published weights (`resnet50-19c8e357.pth`).
    Only with `--preview`: files whose content is known only from an ambiguous name (`init_states`), paths of pretrained
    weights (`args.pretrained`), and what nothing shows a run of the project to have saved (the file of the load saves
    nothing, or nothing with the parts that the load takes, no path speaks of a run, no optimizer is restored), as those
    are mostly published weights; functions that try a model out (`test`, `sample`), mostly on one rank; functions of an
    installed package that nothing in it calls; classes that make and train a model without a wrap, where all wraps of
    the project are in other classes that train.

    ## How to confirm

    `ddp-lint verify train.py` on two GPUs: the loaded storages of rank 1 are on `cuda:0`.

    ## Fix safety

    Safe where the result goes into `load_state_dict`, which copies to the parameters' own device; unsafe elsewhere:
    tensors that are used directly would then be on the CPU.

    ## References

    - https://docs.pytorch.org/docs/stable/generated/torch.load.html
    - https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    confidence = Confidence.HIGH
    triggers = Triggers("load", "load_state_dict_from_url", "load_url", file=("torch",), tests=False)
    of_several = True
    oracles = ("device", "exception")
    needs_cuda = True

    def visit_Call(self, node: cst.Call) -> None:
        name = self.module.qualified(node.func)
        if name not in _POSITION or any(arg.star for arg in node.args) or self._is_export():
            return
        where = self._destination(node, _POSITION[name])
        if where is None or not ((name == _LOAD and self._may_hold_states(node)) or self._drops_location(node)):
            return
        if not where and (self._is_own_file(node) or shows_own_gpu(self.module)):
            return
        if self._uses_first_gpu or has_own_gpus(self.module, node) or is_made_by_actors(self.module, node):
            return
        if comes_on_one_rank(self.module, node) or as_one_process(self.module, node):
            return
        if is_off_where_joined(self.module, node) or self._is_before_spawned_ranks(node):
            return
        evidence = several_ranks(self.module, node)
        if self._is_look(node) or (evidence is not None and not evidence.own and self._is_tool(node)):
            return
        own = evidence is not None and evidence.own
        if own and (self._is_kept_to_one_gpu() or self._drives_all_gpus or called_in_one_process(self.module, node)):
            return
        if evidence is None or self._saved_from_cpu(node) or self._saved_without_states(node):
            return
        if not self._is_asked_for_alone(node):
            self._report(node, where, evidence)

    def _is_before_spawned_ranks(self, call: cst.Call) -> bool:
        """Whether the process that spawns the ranks of Lightning makes the load before it does so."""
        facts, project, load = self.module.facts, self.module.project, as_ast(self.module, call)
        if facts is None or project is None or not isinstance(load, ast.Call):
            return False
        around = function_at(facts.tree, load.lineno)
        return around is not None and is_before_spawned_ranks(facts, project, load, around)

    def _is_export(self) -> bool:
        """Whether the file belongs to a package that converts models, or is a script that does: one process does."""
        *folders, name = self.module.file.place.split("/")
        if any(words_of(folder) & {"export", "onnx"} for folder in folders):
            return True
        return self.module.file.holds("__main__") and bool(words_of(name) & _known("converting"))

    def _is_kept_to_one_gpu(self) -> bool:
        """Whether the file is a program of one GPU: it shows itself no other, and is not started once for each rank."""
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or not shows_one_gpu(self.module):
            return False
        return joins_ranks(facts, project) is None

    @functools.cached_property
    def _uses_first_gpu(self) -> bool:
        """Whether the file wraps its models for GPU 0 on every rank: a rank that sees one GPU loads onto its own, and
        where all see the same, the fault is the wrap."""
        given = [argument(wrap, 1, "device_ids") for wrap in self.module.calls_to((_WRAP,))]
        return bool(given) and all(ids is not None and self.module.code(ids) == "[0]" for ids in given)

    @functools.cached_property
    def _drives_all_gpus(self) -> bool:
        """Whether each process of a program takes all GPUs that it sees, with its model on the first of them: the file
        joins them, wraps by `DataParallel`, and gives no process a GPU of its own."""
        file = self.module.file
        joins = file.holds("init_process_group") and file.shows(_ON_FIRST_GPU)
        return joins and uses_data_parallel(file) and not file.shows(_GIVES_GPU)

    def _is_asked_for_alone(self, call: cst.Call) -> bool:
        """Whether the line needs an argument that programs of one process alone give: of ``if path is not None:
        torch.load(path)`` the training leaves `path` to its default."""
        function, project = self.module.function_of(call), self.module.project
        if function is None or project is None:
            return False
        left = {p.name.value for p in parameters_of(function) if p.default is not None and dotted(p.default) == "None"}
        for test, taken in conditions(self.module, call):
            name, is_none = asks_for_none(test)
            needed = (name if taken is not is_none else "") if name else (dotted(test) if taken else "")
            if needed not in left:
                continue
            sites = sites_of(self.module, function)
            giving = [site for site in sites if site.has_stars() or not _is_none(site.given(function, needed))]
            if 0 < len(giving) < len(sites):
                return not any(program_of_ranks(site.facts, project, site.node.lineno) for site in giving)
        return False

    def _is_tool(self, call: cst.Call) -> bool:
        """Whether only programs of one process call the function: the ranks that import the file use others of it."""
        function, facts, project = self.module.function_of(call), self.module.facts, self.module.project
        if function is None or facts is None or project is None or self.module.class_of(call) is not None:
            return False
        names, tried = _callers_of(function.name.value, facts.tree)
        if not names:
            return False
        whole = (self.module.name, *(f"{self.module.name}.{name}" for name in names))
        called = tried or len(names) > 1
        users = [
            user
            for user in importers(project, self.module.name, holding=names)
            if not called or any(target in whole for target in user.imports.names.values()) or self._stars(user, names)
        ]
        return bool(users or tried) and all(program_of_ranks(user, project) is None for user in users)

    def _stars(self, user: ModuleFacts, names: tuple[str, ...]) -> bool:
        """Whether a file imports all names of this one, and keeps one of these: below ``from run import *`` it may
        define its own ``main()``."""
        return self.module.name in user.imports.stars and any(name not in user.definitions for name in names)

    def _is_look(self, call: cst.Call) -> bool:
        """Whether the line is below ``if __name__ == "__main__":`` of a file which joins no ranks there: the look at
        what it does, or the program that starts others."""
        project = self.module.project
        guards = (up for up in self.module.ancestors(call) if isinstance(up, cst.If) and asks_for_program(up.test))
        if project is None or self.module.function_of(call) is not None or (guard := next(guards, None)) is None:
            return False
        inside = self.module.code(guard.body)
        joins = any(re.search(rf"\b{re.escape(word)}\b", inside) for word in joining_words(project))
        return not joins and _KNOWS_RANKS.search(inside) is None

    # ---- where the load puts its tensors

    def _destination(self, call: cst.Call, position: int) -> str | None:
        """`the GPU it was saved from`, a fixed GPU, or None where each rank may decide."""
        given = argument(call, position, "map_location")
        if given is None or self._is_none_on_gpus(given):
            return "" if given is not None or not (self._in_cpu_arm(call) or self._has_no_gpu(call)) else None
        text = _moves_to(given) if isinstance(given, cst.Lambda) else self._literal(given)
        if text in ("cuda:0", "0"):
            return None if shows_own_gpu(self.module) else "cuda:0"
        if text == "cuda" and not self._sets_device():
            return "cuda"
        return None

    def _is_none_on_gpus(self, given: cst.BaseExpression) -> bool:
        """``None``, also as ``"cpu" if device == "cpu" else None``, or by a name for that."""
        arms = [*options([given, *self.module.assignments(given)])]
        values = [arm for arm in arms if not isinstance(arm, cst.Name) or arm.value == "None"]
        named_cpu = all(dotted(value) == "None" or self._literal(value) == "cpu" for value in values)
        return named_cpu and any(dotted(value) == "None" for value in values)

    def _literal(self, node: cst.BaseExpression, followed: frozenset[str] = frozenset()) -> str:
        """`cuda:0` for "cuda:0", 0, torch.device("cuda:0"), torch.device("cuda", 0); '' for what is not constant."""
        if isinstance(node, cst.Call) and self.module.qualified(node.func) == "torch.device" and node.args:
            parts = [self._literal(arg.value, followed) for arg in node.args]
            return ":".join(parts) if all(parts) else ""
        if isinstance(node, cst.SimpleString):
            return str(node.evaluated_value)
        if isinstance(node, cst.Integer):
            return node.value
        if not isinstance(node, cst.Name) or node.value in followed:  # ``device = torch.device(device)``
            return ""
        assigned = self.module.assignments(node)
        return self._literal(assigned[0], followed | {node.value}) if len(assigned) == 1 else ""

    def _in_cpu_arm(self, call: cst.Call) -> bool:
        """Whether the line runs on CPU-only machines alone: ``if not torch.cuda.is_available(): torch.load(path)``."""
        for test, taken in conditions(self.module, call):
            text = self.module.code(test)
            if "cuda.is_available" in text and " or " not in text:
                return taken == text.startswith("not ")
        return False

    def _has_no_gpu(self, call: cst.Call) -> bool:
        """Whether the line runs where the process was given no GPU of its own: ``if args.gpu is None: torch.load(..)``.
        It has all of them then, and is alone on its node."""
        for test, taken in conditions(self.module, call):
            name, is_none = asks_for_none(test)
            if taken is not is_none:
                continue
            if words_of(name.rpartition(".")[2]) & {"gpu", "device"} or self._is_always_given(name, call):
                return True
        return False

    def _is_always_given(self, name: str, call: cst.Call) -> bool:
        """Whether every caller gives the function around a parameter: ``load(path, map_location=device)``."""
        function = self.module.function_of(call)
        if function is None or name not in {p.name.value for p in parameters_of(function)}:
            return False
        sites = call_sites(self.module, function)
        return bool(sites) and all(site.given(function, name) is not None for site in sites)

    def _drops_location(self, call: cst.Call) -> bool:
        """Whether the function around takes a `map_location` that it never reads."""
        function = self.module.function_of(call)
        if function is None:
            return False
        if not any(p.name.value == "map_location" for p in parameters_of(function)):
            return False
        return not any(isinstance(n, cst.Name) and n.value == "map_location" for n in descendants(function.body))

    def _ignores_map_location(self, call: cst.Call) -> bool:
        """Whether a caller says where the tensors go, and the function around does not pass it on."""
        function = self.module.function_of(call)
        if function is None or not self._drops_location(call):
            return False
        return any(site.given(function, "map_location") is not None for site in call_sites(self.module, function))

    def _sets_device(self) -> bool:
        return self.module.file.holds("set_device") or bool(
            self.module.project and self.module.project.contents.holding("set_device(")
        )

    def _is_own_file(self, call: cst.Call) -> bool:
        """Whether the path names the rank, whose file was saved from its own GPU: ``f"state_{rank}.pt"``. Or it is new
        in each process: ``folder + uuid4().hex``."""
        source = argument(call, 0, "f")
        values = [source, *self.module.assignments(source)] if source is not None else []
        parts = [n for value in values for n in subtree(value)]
        if any(dotted(n).rpartition(".")[2] in _known("ranks") for n in parts) or self._is_just_saved(call):
            return True
        made = (value for n in parts if isinstance(n, cst.Name) for value in self.module.assignments(n))
        calls = (n for value in (*values, *made) for n in subtree(value) if isinstance(n, cst.Call))
        return any(self.module.qualified(n.func) in table("data")["drawn_anew"] for n in calls)

    def _is_just_saved(self, call: cst.Call) -> bool:
        """Whether the function has saved the file before, on each rank into a folder that this process made for itself,
        or only to load it and remove it: what comes back goes to the GPU that it came from."""
        source, line = argument(call, 0, "f"), self.module.span(call).line
        if source is None:
            return False
        own = any(self.module.qualified(n.func) in _own_folders() for n in self._made_from(source))
        if not own and not self._is_removed_below(call, source):
            return False
        for save in self._saves.get(self.module.code(source), ()):
            place = argument(save, 1, "f")
            before = self.module.span(save).line < line and self.module.scope_of(save) is self.module.scope_of(call)
            if before and place is not None and place.deep_equals(source):
                return not comes_on_one_rank(self.module, save)
        return False

    @functools.cached_property
    def _saves(self) -> dict[str, list[cst.Call]]:
        """The calls of `torch.save` by the code of the path that they write."""
        found: dict[str, list[cst.Call]] = {}
        for save in self.module.calls_to(("torch.save",)):
            place = argument(save, 1, "f")
            found.setdefault(self.module.code(place) if place is not None else "", []).append(save)
        return found

    def _is_removed_below(self, call: cst.Call, source: cst.BaseExpression) -> bool:
        """Whether the function removes a file behind where it loads it."""
        return any(
            c.args[0].value.deep_equals(source)
            and self.module.scope_of(c) is self.module.scope_of(call)
            and self.module.span(c).line > self.module.span(call).line
            for c in self._removed.get(self.module.code(source), ())
        )

    @functools.cached_property
    def _removed(self) -> dict[str, list[cst.Call]]:
        """The calls that remove a file, by the code of its path."""
        found: dict[str, list[cst.Call]] = {}
        for call in self.module.calls_to(_REMOVING):
            if call.args:
                found.setdefault(self.module.code(call.args[0].value), []).append(call)
        return found

    def _made_from(self, path: cst.BaseExpression) -> Iterator[cst.Call]:
        """The calls that make a path, up to three names away."""
        values: list[cst.BaseExpression] = [path]
        for _ in range(4):
            nodes = [n for value in values for n in subtree(value)]
            yield from (n for n in nodes if isinstance(n, cst.Call))
            bound = [b for n in nodes if isinstance(n, cst.Name) for b in self.module.bindings(n)]
            values = [b.value for b in bound if b.kind in ("assign", "with") and b.value is not None]

    # ---- what the file may hold

    def _may_hold_states(self, call: cst.Call) -> bool:
        """By the words of the path, else of the name that the result gets, else by what is done with it, else of the
        function and class around."""
        source = argument(call, 0, "f")
        made = [source, *(b.value for b in self.module.bindings(source) if b.value is not None)] if source else []
        if source is None or any(word in self.module.code(value) for value in made for word in _known("byte_streams")):
            return False
        if any(_PUBLISHED.search(self.module.code(value)) for value in made):
            return False
        function = self.module.function_of(call)
        if function is not None and words_of(function.name.value) & {"scheduler", "schedulers"}:
            return False
        receivers = self._receivers(call)
        if receivers and all(words_of(name) & _known("plain_receivers") for name in receivers):
            return False
        if words_of(self._target(call).rpartition(".")[2]) & _known("settings"):
            return False
        for words in (set(_words_in(source)), words_of(self._target(call).rpartition(".")[2])):
            if words & _known("plain"):
                return False
            if words & _known("states"):
                return True
        if self._is_loaded(call) or self._is_read_by_key(call):
            return True
        around = self._around(call)
        return bool(around & _known("states") and not around & _known("plain"))

    def _target(self, call: cst.Call) -> str:
        name = assigned_name(self.module, call)
        parent = self.module.parent(call)
        if not name and isinstance(parent, cst.Arg):
            outer = self.module.parent(parent)
            name = dotted(outer.func) if isinstance(outer, cst.Call) else ""
        return name

    def _is_loaded(self, call: cst.Call) -> bool:
        """Whether the result goes into `load_state_dict`, directly or by its name."""
        receivers = self._receivers(call)
        return any(not words_of(name) & _known("plain_receivers") for name in receivers)

    def _receivers(self, call: cst.Call) -> list[str]:
        """The last names of what the result is loaded into by `load_state_dict`, directly or by its name."""
        if self._goes_straight_into_load(call):
            outer = self.module.parent(self.module.parent(call) or call)
            return [_receiver(outer)] if isinstance(outer, cst.Call) else []
        name, scope = assigned_name(self.module, call), self.module.scope_of(call)
        if not name:
            return []
        return self._loaded_into(name, scope)

    def _loaded_into(self, name: str, scope: cst.CSTNode) -> list[str]:
        """The last names of what `name`, or a part of it, is loaded into in a scope."""
        if (name, scope) not in self._receivers_by_name:
            names = (name, *self._taken_out(name, scope))
            held = re.compile("|".join(rf"\b{re.escape(n)}\b" for n in names))
            loads = self._uses_in(scope).loads
            candidates = {place: node for n in names for place, node in loads.get(_last_word(n), ())}
            self._receivers_by_name[name, scope] = [
                _receiver(candidates[place])
                for place in sorted(candidates)
                if any(held.search(self.module.code(arg.value)) for arg in candidates[place].args)
            ]
        return self._receivers_by_name[name, scope]

    @functools.cached_property
    def _receivers_by_name(self) -> dict[tuple[str, cst.CSTNode], list[str]]:
        return {}

    def _is_doubtful(self, call: cst.Call) -> bool:
        """Whether a word that other things go by as well is all that mentions a model's state."""
        source = argument(call, 0, "f")
        if source is None or self._is_loaded(call) or self._is_read_by_key(call) or self._ignores_map_location(call):
            return False
        words = {*_words_in(source), *words_of(self._target(call).rpartition(".")[2]), *self._around(call)}
        return not (words & _known("states")) - _known("ambiguous")

    def _is_pretrained(self, call: cst.Call) -> bool:
        """Whether the path speaks of weights that somebody else has published, as a rule from the CPU, and not of what
        a run of the project has saved."""
        source = argument(call, 0, "f")
        words = set(_words_in(source)) if source is not None else set()
        return bool(words & _known("published")) and not words & _known("of_a_run")

    def _saved_without_states(self, call: cst.Call) -> bool:
        """Whether what the file saves under this path, or the project in a file of that name, is no state of a
        model."""
        source, project, facts = argument(call, 0, "f"), self.module.project, self.module.facts
        if source is None or project is None or facts is None:
            return False
        load = as_ast(self.module, call)
        if isinstance(load, ast.Call) and saved_here_without_states(facts, load):
            return True
        texts = [str(n.evaluated_value) for n in subtree(source) if isinstance(n, cst.SimpleString)]
        if not texts and isinstance(source, cst.Name):
            values = self.module.assignments(source)
            parts = (n for value in values for n in subtree(value))
            texts = [str(n.evaluated_value) for n in parts if isinstance(n, cst.SimpleString)]
        files = [text for text in texts if "." in text]
        return bool(files) and all(saved_elsewhere(project, file) for file in files)

    def _is_read_by_key(self, call: cst.Call) -> bool:
        """Whether a part is read by a key that only checkpoints have: ``torch.load(path)["state_dict"]``."""
        return any(words_of(key) & _known("keys") for key in self._keys(call))

    def _keys(self, call: cst.Call) -> Iterator[str]:
        """The keys by which parts of what is loaded are read."""
        name, parent = assigned_name(self.module, call), self.module.parent(call)
        subscripts = self._uses_in(self.module.scope_of(call)).subscripts.get(name, []) if name else []
        for node in (*subscripts, parent):
            if isinstance(node, cst.Subscript) and (node is not parent or node.value is call):
                inside = descendants(node.slice[0])
                yield from (str(n.evaluated_value) for n in inside if isinstance(n, cst.SimpleString))

    @functools.cached_property
    def _uses(self) -> dict[cst.CSTNode, _Uses]:
        return {}

    def _uses_in(self, scope: cst.CSTNode) -> _Uses:
        """What a scope does with names: asked for each of its loads."""
        if scope not in self._uses:
            found = self._uses[scope] = _Uses()
            for place, node in enumerate(descendants(scope)):
                if isinstance(node, cst.Subscript):
                    found.subscripts[dotted(node.value)].append(node)
                elif isinstance(node, cst.Assign):
                    for word in set(_WORD.findall(self.module.code(node.value))):
                        found.assigned[word].append(node)
                elif isinstance(node, cst.Call) and dotted(node.func).endswith("load_state_dict"):
                    for word in {w for arg in node.args for w in _WORD.findall(self.module.code(arg.value))}:
                        found.loads[word].append((place, node))
        return self._uses[scope]

    def _taken_out(self, name: str, scope: cst.CSTNode) -> Iterator[str]:
        """The names that parts of what was loaded get: ``weights = loaded["weights"]``."""
        part = re.compile(rf"\b{re.escape(name)}(\[|\.get\(|\.pop\()")
        for node in self._uses_in(scope).assigned.get(_last_word(name), ()):
            if part.search(self.module.code(node.value)):
                yield from filter(None, (dotted(n) for t in node.targets for n in subtree(t.target)))

    def _goes_straight_into_load(self, call: cst.Call) -> bool:
        parent = self.module.parent(call)
        outer = self.module.parent(parent) if isinstance(parent, cst.Arg) else None
        return isinstance(outer, cst.Call) and dotted(outer.func).endswith("load_state_dict")

    def _around(self, call: cst.Call) -> set[str]:
        function, owner = self.module.function_of(call), self.module.class_of(call)
        return {word for place in (function, owner) if place is not None for word in words_of(place.name.value)}

    def _saved_from_cpu(self, call: cst.Call) -> bool:
        facts = self.module.facts
        if facts is None or self._speaks_of_offloading:
            return facts is not None
        if self._file_saves_from_cpu or self._partner_saves_from_cpu(call, facts):
            return True
        names = (self._target(call).rpartition(".")[2], *self._receivers(call))
        words = {*_words_in(call), *(word for name in names for word in words_of(name))}
        project = self.module.project
        return project is not None and not words & _known("optimizers") and models_saved_from_cpu(project)

    @functools.cached_property
    def _speaks_of_offloading(self) -> bool:
        return any(word in self.module.file.text for word in _known("offloaded"))

    @functools.cached_property
    def _file_saves_from_cpu(self) -> bool:
        """Whether all that the file saves comes from the CPU: asked for each of its loads."""
        facts = self.module.facts
        return facts is not None and saved_from_cpu(facts, facts.tree, self.module.project)

    def _partner_saves_from_cpu(self, call: cst.Call, facts: ModuleFacts) -> bool:
        """Whether the `save_network` of the same class saves from the CPU what `load_network` loads."""
        function = self.module.function_of(call)
        name = "" if function is None else re.sub(r"(^|_)(load|restore|resume)(?=_|$)", r"\1save", function.name.value)
        if function is None or name == function.name.value:
            return False
        around = blocks_at(facts.tree, self.module.span(call).line)
        owner = next((block for block in around if isinstance(block, ast.ClassDef)), facts.tree)
        partners = [n for n in walk(owner) if isinstance(n, ast.FunctionDef) and n.name == name]
        return bool(partners) and all(saved_from_cpu(facts, partner) for partner in partners)

    # ---- the finding

    def _report(self, call: cst.Call, where: str, evidence: Evidence) -> None:
        target = where or "the GPU that the file was saved from, independent of set_device"
        missing = "" if where else "; without that GPU the load fails"
        called = self.module.quoted(call.func)
        message = f"{called} without `map_location` puts every rank's copy on the GPU it was saved from"
        if where:
            message = f"{called} puts every rank's copy on {where}"
        self.report(
            call,
            message,
            notes=[
                f"rank 0 and rank 1 both load onto {target}: it has a copy and a CUDA context of every rank{missing}"
            ],
            labels=[(evidence.span, evidence.text)],
            help="pass map_location=\"cpu\" (load_state_dict copies to each parameter's device), or this rank's device",
            confidence=self._sureness(call, where, evidence),
            fix=self._fix(call),
        )

    def _meets_no_run(self, where: cst.CSTNode | Span) -> bool:
        """As for all rules; also where nothing in the project calls the function, of a package that is installed too,
        or its programs make objects of the class and come to no such method: whether the ranks of a job load by it,
        nobody knows."""
        if super()._meets_no_run(where):
            return True
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or not facts.name or not is_installed(project, facts):
            return False
        line, cls = self._span_of(where).line, self.module.class_of(where) if isinstance(where, cst.CSTNode) else None
        if cls is not None and not is_unreached_in_package(project, facts, self.module.span(cls.name).line):
            return is_unreached_in_package(project, facts, line) or is_in_no_step(project, facts, line)
        return is_in_no_step(project, facts, line)

    def _sureness(self, call: cst.Call, where: str, evidence: Evidence) -> Confidence:
        if self._is_doubtful(call) or self._is_pretrained(call) or not (where or self._is_of_a_run(call)):
            return Confidence.LOW
        if self._tries_out(call) or (self._evaluates() and evidence.word not in _TRAINS):
            return Confidence.LOW
        if self._trains_unwrapped(call):
            return Confidence.LOW
        return Confidence.HIGH if evidence.own and self._is_loaded(call) else Confidence.MEDIUM

    def _trains_unwrapped(self, call: cst.Call) -> bool:
        """Whether the load is for a model that its class makes and trains without a wrap, beside classes that wrap."""
        facts, project = self.module.facts, self.module.project
        receivers = self._receivers(call)
        if facts is None or project is None or not receivers:
            return False
        line = self.module.span(call).line
        return all(trains_unwrapped(project, facts, line, name) for name in receivers)

    def _is_of_a_run(self, call: cst.Call) -> bool:
        """Whether a run of the project is seen to have saved what is loaded: the file saves states itself, the path
        speaks of a run, or there is an optimizer's state in it, which nobody publishes."""
        if self._ignores_map_location(call) or (self.module.file.shows(_SAVES) and self._may_be_of_file(call)):
            return True
        source, function = argument(call, 0, "f"), self.module.function_of(call)
        named = [self._target(call).rpartition(".")[2], *self._receivers(call)]
        words = {*(_words_in(source) if source is not None else ()), *(word for n in named for word in words_of(n))}
        words |= {word for key in self._keys(call) for word in words_of(key)}
        words |= words_of(function.name.value) if function is not None else set()
        return bool(words & _known("of_a_run"))

    def _may_be_of_file(self, call: cst.Call) -> bool:
        """Whether what the file saves, or another one, has the parts that the load takes."""
        facts, project, keys = self.module.facts, self.module.project, frozenset(self._keys(call))
        if facts is None or project is None or not (keys or self._goes_straight_into_load(call)):
            return True
        return saves_what_fits(project, facts, keys)

    def _tries_out(self, call: cst.Call) -> bool:
        """Whether the function is, by its name, the test of a model, which is hardly run on several ranks."""
        function = self.module.function_of(call)
        words = words_of(function.name.value) if function is not None else set()
        return bool(words & _known("trying_out")) and not words & _TRAINING

    def _evaluates(self) -> bool:
        """Whether the file is, by its name, a script that tries a model out."""
        name = self.module.file.place.rpartition("/")[2]
        return self.module.file.holds("__main__") and bool(words_of(name.removesuffix(".py")) & _known("trying_out"))

    def _fix(self, call: cst.Call) -> Fix:
        position = _POSITION[self.module.qualified(call.func)]
        given = next((arg for i, arg in enumerate(call.args) if _is_map_location(arg, i, position)), None)
        edit: Edit = (
            set_argument(self.module, given, '"cpu"')
            if given
            else add_argument(self.module, call, "map_location", '"cpu"')
        )
        safe = self._goes_straight_into_load(call)
        return Fix('load to the CPU: map_location="cpu"', Applicability.SAFE if safe else Applicability.UNSAFE, (edit,))


def _callers_of(name: str, tree: ast.Module) -> tuple[tuple[str, ...], bool]:
    """The functions of a file through which others come to one of them, itself first, and whether the file tries one of
    them out where it is a program. None where code of the file calls it that is in no function."""
    functions = [n for n in tree.body if isinstance(n, FunctionNode)]
    tests = main_guards(tree)
    names, tried = [name], False
    for each in names:  # grows as callers are found
        tried |= any(_calls(each, test) for test in tests)
        if any(_calls(each, node) for node in tree.body if node not in functions and node not in tests):
            return (), False
        names += (f.name for f in functions if f.name not in names and _calls(each, f))
    return tuple(names), tried


def _calls(name: str, node: ast.AST) -> bool:
    return any(dotted_ast(n.func) == name for n in calls_below(node))


def _is_none(given: ast.expr | None) -> bool:
    return given is None or (isinstance(given, ast.Constant) and given.value is None)


def _receiver(call: cst.Call) -> str:
    """``optimizer`` of ``self.optimizer.load_state_dict(..)``."""
    return dotted(call.func).rpartition(".")[0].rpartition(".")[2]


#: Evidence that a script which tries a model out does so on several ranks.
_TRAINS = {"torch.distributed", "LOCAL_RANK", "RANK", *frameworks.every(lambda each: each.launch.starts)}


def _moves_to(function: cst.Lambda) -> str:
    """`cuda:0` for ``lambda storage, _: storage.cuda(0)``, `cuda` for ``storage.cuda()``, '' for anything else."""
    body = function.body
    if not isinstance(body, cst.Call) or method_of(body) != "cuda":
        return ""
    index = body.args[0].value if body.args else None
    if index is None:
        return "cuda"
    return f"cuda:{index.value}" if isinstance(index, cst.Integer) else ""


def _is_map_location(arg: cst.Arg, index: int, position: int) -> bool:
    return arg.keyword.value == "map_location" if arg.keyword is not None else index == position


@functools.cache
def _known(kind: str) -> frozenset[str]:
    return frozenset(table("checkpoints")[kind])


def _own_folders() -> frozenset[str]:
    return frozenset(table("data")["own_folders"])


def _words_in(source: cst.CSTNode) -> Iterator[str]:
    """The words of a path expression: of its strings, its names, and the last part of its attributes."""
    if isinstance(source, (cst.SimpleString, cst.FormattedStringText)):
        text = source.value
        yield from (w for part in re.findall(r"[A-Za-z_]+", text) for w in words_of(part))
    elif isinstance(source, cst.Name):
        yield from words_of(source.value)
    elif isinstance(source, cst.Attribute):
        yield from words_of(source.attr.value)
    else:
        for child in children(source):
            yield from _words_in(child)

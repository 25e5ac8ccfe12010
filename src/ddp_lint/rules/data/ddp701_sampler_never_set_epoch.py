from __future__ import annotations

import ast
import collections
import itertools
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Edit, Fix, Span
from ddp_lint.knowledge import table
from ddp_lint.launch.callers import is_always_false
from ddp_lint.launch.ranks import joining_words, runs_alone
from ddp_lint.launch.search import programs
from ddp_lint.launch.unused import is_plain
from ddp_lint.project import Project
from ddp_lint.project.uses import uses
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.handed_out import places_of_samplers
from ddp_lint.rules.data.loading import (
    framework_loads,
    is_evaluation,
    is_sampler,
    programs_set_epoch,
    sets_epoch_nearby,
)
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import ImportTable
from ddp_lint.source.queries import calls_in, returned_values
from ddp_lint.source.syntax import FunctionNode, calls_below, positional, walk
from ddp_lint.source.tree import called, descendants, subtree
from ddp_lint.view.wraps import argument, assigned_name


class SamplerNeverSetEpoch(Rule):
    """A shuffling DistributedSampler is iterated for several epochs, but its epoch is never set.

    ## What it does

    Finds a DistributedSampler with shuffling on, in code that makes several passes (or hands its loader to a trainer of
    another file that does), where `set_epoch` is called nowhere: not in the file, its package or folder, what it
    imports, or what imports it. A call in another script of the same folder does not count, nor does one that sets the
    epoch of the dataset (`loader.dataset.set_epoch(epoch)`). Also a sampler that a
    function of the project returns together with its loader, in a program for several epochs that drops it
    (`loader, _ = make_loader(...)`) and sets no epoch.

    ## Why it breaks

    The sampler shuffles with `seed + epoch`, and the epoch stays 0 until `set_epoch` is called. Rank 0 and rank 1
    each see the same samples in the same order in every epoch: no error, less randomness than the author meant.
    Measured: the order of every epoch is identical.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    sampler = DistributedSampler(dataset)  # <- DDP701
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(2):
        for (x,) in loader:
            print(dist.get_rank(), epoch, x.flatten().tolist())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    dataset = TensorDataset(torch.arange(16.0).unsqueeze(1))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            print(dist.get_rank(), epoch, x.flatten().tolist())

    dist.destroy_process_group()
    ```

    ## When it is silent

    `shuffle=False`, validation and test data (also by the name of the loader), tests, one pass, loaders that
    accelerate, Lightning, ignite, mmengine, composer or transformers iterate (they set the epoch), samplers with a
    `set_epoch` nearby in code that runs with them, an epoch that the file assigns (`sampler.epoch = epoch`), attributes
    whose epoch any file sets (`model.train_sampler.set_epoch(epoch)`), samplers and loaders that an object keeps, where
    the program which makes the object by way of a helper sets an epoch, loaders that an object of a class gets which
    inherits from one of another package, where no loop over epochs is in sight, loaders that are read once, before the
    epochs, samplers of data that each epoch makes for itself (`Pages(epoch)`), and samplers that only programs of one
    process come to, where other programs of the project make the process group.

    ## How to confirm

    `ddp-lint verify train.py`: the sampler's indices are the same in two epochs.

    ## Fix safety

    Unsafe: the call goes to the top of a visible epoch loop; the order of the samples changes, as it should.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    triggers = Triggers(
        "DistributedSampler", "epoch", "epochs", "_", tests=False,
        file=("DistributedSampler", "DistributedDataParallel", "init_process_group"),
    )  # fmt: skip
    of_several = True
    oracles = ("epochs",)

    def start(self) -> None:
        self._samplers: list[cst.Call] = []
        self._loops: list[cst.For] = []
        self._dropped: list[cst.Assign] = []  # `loader, _ = make_loader(...)`
        self._restarts: list[cst.Call] = []  # `iter(loader)`, where a pass begins
        self._sets = False  # `loader.sampler.epoch = number`
        self._functions: dict[str, cst.FunctionDef] = {}
        #: The calls of each function by the sampler that they are given.
        self._takers: dict[cst.FunctionDef, dict[str, list[cst.Call]]] = {}

    def visit_Call(self, node: cst.Call) -> None:
        if dotted(node.func) == "iter" and node.args and "loader" in dotted(node.args[0].value):
            self._restarts.append(node)
        if is_sampler(self.module, node) and self._shuffles(node) and not self._is_new(node):
            target = assigned_name(self.module, self._whole(node))
            dataset = self.module.code(node.args[0].value) if node.args else ""
            function = self.module.function_of(node)
            around = function.name.value if function is not None else ""
            loaders = (self._loader_around(node), *self._loaders(target, function))
            if not any(map(is_evaluation, (target, dataset, around, *loaders))):
                self._samplers.append(node)

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        self._sets |= dotted(target).endswith("sampler.epoch")
        if isinstance(target, cst.Tuple) and isinstance(node.value, cst.Call) and len(node.targets) == 1:
            self._dropped.append(node)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._sets |= dotted(node.target).endswith("sampler.epoch")

    def _loaders(self, sampler: str, function: cst.FunctionDef | None) -> Iterator[str]:
        """The names of what the sampler is handed to, where the name means one sampler alone."""
        if not sampler or function is None:
            return
        if function not in self._takers:
            self._takers[function] = collections.defaultdict(list)
            for call in calls_in(function.body):
                self._takers[function][dotted(argument(call, None, "sampler"))].append(call)
        takers = self._takers[function][sampler]
        yield from (assigned_name(self.module, call) for call in takers if len(takers) == 1)

    def _loader_around(self, sampler: cst.Call) -> str:
        """The name of the loader whose call makes the sampler: ``val_loader = DataLoader(.., sampler=..)``."""
        given = self.module.parent(self._whole(sampler))
        loader = self.module.parent(given) if isinstance(given, cst.Arg) else None
        return assigned_name(self.module, loader) if isinstance(loader, cst.Call) else ""

    def _shuffles(self, sampler: cst.Call) -> bool:
        return not is_always_false(self.module, argument(sampler, 3, "shuffle"), sampler)

    def _is_new(self, sampler: cst.Call) -> bool:
        """Whether each round of a loop makes a sampler of its own, with the round in its seed, or in what makes its
        data there: ``DistributedSampler(Pages(epoch))``."""
        loops = [up for up in self.module.ancestors(sampler) if isinstance(up, cst.For)]
        rounds = {dotted(name) for loop in loops for name in subtree(loop.target)} - {""}
        data = argument(sampler, 0, "dataset")
        made = self.module.assignments(data) if isinstance(data, cst.Name) else [data]
        given = [argument(sampler, 4, "seed"), *(value for value in made if isinstance(value, cst.Call))]
        return any(dotted(part) in rounds for value in given if value is not None for part in subtree(value))

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._functions[node.name.value] = node

    def visit_For(self, node: cst.For) -> None:
        if "epoch" in dotted(node.target) and self.module.code(node.iter) != "range(1)":
            self._loops.append(node)

    def finish(self) -> None:
        self._check_dropped()
        if not self._samplers or framework_loads(self.module) or not self._several_passes():
            return
        if self._sets or sets_epoch_nearby(self.module):
            return
        for sampler in self._samplers:
            if self._set_elsewhere(sampler) or self._set_as_attribute(sampler) or runs_alone(self.module, sampler):
                continue
            if self._is_driven_by_unknown(sampler) or self._set_through_object(sampler) or self._is_read_once(sampler):
                continue
            loop = self._loop_for(sampler)
            self.report(
                sampler,
                "`set_epoch()` is never called, so every epoch repeats the same order",
                notes=["rank 0 and rank 1 each see their samples in the order of epoch 0, epoch after epoch"],
                labels=self._passes(loop),
                help="call sampler.set_epoch(epoch) at the top of the epoch loop",
                fix=self._fix(sampler, loop),
            )

    def _check_dropped(self) -> None:
        """Samplers that a function of the project returns with its loader, and that a program for several epochs does
        not take: nothing but the program could set their epoch."""
        loops = [loop for loop in self._loops if not is_evaluation(self.module.code(loop.target))]
        if not loops or "set_epoch" in self.module.file.code or framework_loads(self.module):
            return
        for node in self._dropped:
            if self._drops_sampler(node) and not runs_alone(self.module, node) and not self._imports_setter():
                self.report(
                    node,
                    "the sampler of this loader is dropped: nothing sets its epoch, and every epoch repeats one order",
                    notes=["rank 0 and rank 1 each see their samples in the order of epoch 0, epoch after epoch"],
                    labels=self._passes(loops[0]),
                    help="keep the sampler that is returned, and call sampler.set_epoch(epoch) in the epoch loop",
                )

    def _drops_sampler(self, node: cst.Assign) -> bool:
        target, value, project = node.targets[0].target, node.value, self.module.project
        if not isinstance(target, cst.Tuple) or not isinstance(value, cst.Call) or project is None:
            return False
        function = self.module.function_of(node)
        around = function.name.value if function is not None else ""
        if any(map(is_evaluation, (self.module.code(target), called(value), around))):
            return False
        places = places_of_samplers(project, self.module.meaning(dotted(value.func)))
        names = {place: dotted(element.value) for place, element in enumerate(target.elements)}
        return bool(places) and not any(self._is_read(names.get(place, ""), node) for place in places)

    def _is_read(self, name: str, node: cst.Assign) -> bool:
        """Whether a function mentions a name, or an attribute, besides in an assignment to it."""
        scope = self.module.scope_of(node)
        alike = (part for part in descendants(scope) if isinstance(part, cst.Name) and part.value == name)
        return name != "_" and (not name.isidentifier() or len(list(itertools.islice(alike, 2))) > 1)

    def _imports_setter(self) -> bool:
        """Whether something that the file imports sets an epoch, perhaps that of the loader which it is handed."""
        project = self.module.project
        targets = (
            (project.meanings.split(project.meanings.canonical(t)) for t in self.module.imports.names.values())
            if project
            else ()
        )
        return any(found is not None and found[0].file.holds("set_epoch") for found in targets)

    def _set_elsewhere(self, sampler: cst.Call) -> bool:
        """The function hands the sampler out, maybe in its loader, to other files, and one of the project sets an
        epoch."""
        name, function = assigned_name(self.module, sampler), self.module.function_of(sampler)
        if function is None or self.module.project is None or self.module.facts is None:
            return False
        returned = returned_values(function)
        values = [*returned, *(value for each in returned for value in self.module.assignments(each))]
        handed_out = any(
            part is sampler or (bool(name) and dotted(part) == name) for value in values for part in subtree(value)
        )
        used_here = any(use.call is not None for use in uses(self.module.facts, function.name.value))
        return handed_out and not used_here and any(self.module.project.contents.holding("set_epoch"))

    def _set_as_attribute(self, sampler: cst.Call) -> bool:
        """The object keeps the sampler, and a file of the project sets the epoch of an attribute of that name:
        ``model.train_sampler.set_epoch(epoch)``."""
        owner, _, name = assigned_name(self.module, self._whole(sampler)).rpartition(".")
        project = self.module.project
        return owner == "self" and project is not None and name in _attributes_with_epoch(project)

    def _is_read_once(self, sampler: cst.Call) -> bool:
        """Whether the function that has the epochs reads the loader before them alone, by a loop of its own or of one
        function that it is given to: the epochs go over what was kept of it."""
        function = self.module.function_of(sampler)
        target = assigned_name(self.module, self._whole(sampler))
        loaders = {self._loader_around(sampler), *self._loaders(target, function)} - {""}
        if (
            function is None
            or len(loaders) != 1
            or not any(self.module.function_of(x) is function for x in self._loops)
        ):
            return False
        (loader,) = loaders
        uses = [n for n in descendants(function.body) if isinstance(n, cst.Name) and n.value == loader]
        uses = [n for n in uses if not isinstance(self.module.parent(n), cst.AssignTarget)]
        read = [n for n in uses if not self._is_measured(n)]
        return bool(read) and all(map(self._reads_all, read))

    def _is_measured(self, use: cst.Name) -> bool:
        """``len(loader)``."""
        call = self.module.parent(self.module.parent(use) or use)
        return isinstance(call, cst.Call) and dotted(call.func) == "len"

    def _reads_all(self, use: cst.Name) -> bool:
        """Whether a loop of its own reads a loader, or that of a function of the project which gets it."""
        parent = self.module.parent(use)
        reader = parent if isinstance(parent, (cst.For, cst.CompFor)) and parent.iter is use else None
        if any(isinstance(up, (cst.For, cst.While)) and up is not reader for up in self.module.ancestors(use)):
            return False
        call, project = self.module.parent(parent) if isinstance(parent, cst.Arg) else None, self.module.project
        if reader is not None or not isinstance(call, cst.Call) or project is None or not isinstance(parent, cst.Arg):
            return reader is not None
        found = project.meanings.definition(project.meanings.canonical(self.module.callee(call)))
        if found is None or not isinstance(found[1], FunctionNode):
            return False
        taken = [each.arg for each in positional(found[1])]
        place = call.args.index(parent)
        name = parent.keyword.value if parent.keyword is not None else "".join(taken[place : place + 1])
        return bool(name) and _loops_over(found[1], name)

    def _set_through_object(self, sampler: cst.Call) -> bool:
        """The object keeps the sampler, or its loader, and a program gets it from there by way of a helper, and sets
        its epoch: ``loader = make_data(args).load_data()``, ``loader.sampler.set_epoch(epoch)``."""
        target = assigned_name(self.module, self._whole(sampler))
        kept = (target, self._loader_around(sampler), *self._loaders(target, self.module.function_of(sampler)))
        return any(name.startswith("self.") for name in kept) and programs_set_epoch(self.module)

    def _is_driven_by_unknown(self, sampler: cst.Call) -> bool:
        """Whether the loader goes to an object whose class inherits from one of another package, which may have the
        loop over the epochs and set them: ``engine = Engine(model, loader); engine(epochs)``."""
        function, project = self.module.function_of(sampler), self.module.project
        if function is None or project is None or self._loop_for(sampler) is not None:
            return False
        target = assigned_name(self.module, self._whole(sampler))
        loaders = {self._loader_around(sampler), *self._loaders(target, function)} - {""}
        takers = (call for call in calls_in(function.body) if any(dotted(arg.value) in loaders for arg in call.args))
        owners = (project.meanings.canonical(self.module.callee(call)) for call in takers)
        return any(project.classes.find(owner) is not None and not is_plain(project, owner) for owner in owners)

    def _several_passes(self) -> bool:
        """The data is read more than once: here, in a program of several ranks that imports this helper, maybe
        through another one, or in a file that trains and that this one or such a program imports."""
        pattern = table("data")["several_passes"]
        if self._loops or re.search(pattern, self.module.file.code):
            return True
        project = self.module.project
        if project is None:
            return False
        users = list(programs(project, self.module.name, holding=joining_words(project)))
        if any(re.search(pattern, user.file.code) for user in users):
            return True
        # What a program imports besides is another part of it, perhaps the one that sets the epoch.
        beside = [user.imports for user in users] if not project.contents.holding("set_epoch") else []
        return any(self._trains(pattern, project, table) for table in (self.module.imports, *beside))

    def _trains(self, pattern: str, project: Project, imports: ImportTable) -> bool:
        """Whether a file of the project that is imported trains for several epochs: it is handed the loader."""
        targets = (project.meanings.split(project.meanings.canonical(target)) for target in imports.names.values())
        files = {found[0].name: found[0].file for found in targets if found is not None}
        return any("backward(" in file.code and re.search(pattern, file.code) for file in files.values())

    def _passes(self, loop: cst.For | None) -> list[tuple[cst.CSTNode, str]]:
        """Where the passes are made that all look alike."""
        labels: list[tuple[cst.CSTNode, str]] = [(call, "an epoch starts here") for call in self._restarts[:2]]
        if loop is not None:
            labels.append((loop.iter, "each of these epochs repeats the first"))
            labels += [(inner.iter, "read in the same order in every epoch") for inner in self._read_by(loop)]
        return labels

    def _read_by(self, loop: cst.For) -> Iterator[cst.For]:
        """The loops over the data in the functions of this file that an epoch loop hands its epoch to."""
        epoch = dotted(loop.target)
        for call in descendants(loop.body, into_definitions=False):
            if isinstance(call, cst.Call) and any(dotted(arg.value) == epoch for arg in call.args):
                function = self._functions.get(called(call))
                inside = descendants(function.body, into_definitions=False) if function is not None else ()
                yield from itertools.islice((n for n in inside if isinstance(n, cst.For) and not _counts(n)), 1)

    def _whole(self, node: cst.CSTNode) -> cst.CSTNode:
        """The expression that is assigned, through `... if distributed else None`."""
        up = self.module.parent(node)
        return up if isinstance(up, cst.IfExp) else node

    def _loop_for(self, sampler: cst.Call) -> cst.For | None:
        """The epoch loop of the same function, else the only one of the file."""
        here = self.module.function_of(sampler)
        same = [loop for loop in self._loops if self.module.function_of(loop) is here]
        return same[0] if same else (self._loops[0] if self._loops else None)

    def _fix(self, sampler: cst.Call, loop: cst.For | None) -> Fix | None:
        name = assigned_name(self.module, sampler)
        if loop is None or not name or self.module.function_of(loop) is not self.module.function_of(sampler):
            return None
        if not isinstance(loop.target, cst.Name) or not isinstance(loop.body, cst.IndentedBlock):
            return None
        first = self.module.span(loop.body.body[0])
        where = Span(first.path, first.line, first.column, first.line, first.column)
        text = f"{name}.set_epoch({loop.target.value})\n" + " " * (first.column - 1)
        return Fix("set the epoch at the top of the loop", Applicability.UNSAFE, (Edit(where, text),))


def _attributes_with_epoch(project: Project) -> frozenset[str]:
    """The attributes whose epoch the files of a project set."""

    def found() -> frozenset[str]:
        files = filter(None, map(project.modules.facts_of, project.contents.holding("set_epoch")))
        calls = (call.func for facts in files for call in calls_below(facts.tree))
        set_of = (func.value for func in calls if isinstance(func, ast.Attribute) and func.attr == "set_epoch")
        return frozenset(of.attr for of in set_of if isinstance(of, ast.Attribute))

    return project.remember(("attributes with an epoch",), found)


def _loops_over(function: FunctionNode, name: str) -> bool:
    """Whether a function reads what a parameter is in one loop, in no other loop, and does nothing else with it."""
    loops = [n for n in walk(function) if isinstance(n, (ast.For, ast.While))]
    inner = {id(below) for loop in loops for statement in loop.body for below in walk(statement)}
    read = [loop.iter for loop in loops if isinstance(loop, ast.For) and id(loop) not in inner]
    uses = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == name]
    return len(uses) == 1 and uses[0] in read


def _counts(loop: cst.For) -> bool:
    """``for i in range(n)``, a loop over numbers."""
    return isinstance(loop.iter, cst.Call) and called(loop.iter) == "range"

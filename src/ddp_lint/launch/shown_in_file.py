"""What shows in a file that all ranks of a job run one of its functions: a call that it makes, or one of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import libcst as cst

from ddp_lint.knowledge import frameworks
from ddp_lint.launch.joining import joining_functions
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.launch.own_paths import parameters_left_open
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.source import dotted
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

#: Calls that every rank of a job makes: the function that holds one runs on all of them.
EVERY_RANK = (
    "torch.distributed.init_process_group",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.fsdp.fully_shard",
)
_ASKS_FOR_RANK = "torch.distributed.get_rank"
#: Collectives that a function runs on all ranks, together with the rest of its body.
_TOGETHER = frozenset(
    f"torch.distributed.{name}"
    for name in (
        "barrier", "all_reduce", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list", "reduce",
        "gather", "gather_object",
    )
)  # fmt: skip
#: Classes whose objects join the ranks when they are made, and prepare models.
_JOINING = frozenset(
    owner
    for owner in (name.rpartition(".")[0] for name in frameworks.wrapping_methods())
    if owner.rpartition(".")[2] in frameworks.every(lambda each: each.launch.starts)
)
#: What a file holds that shows anything here, apart from what it is followed into: for the triggers of rules.
WORDS = (
    "init_process_group",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "fully_shard",
    "get_rank",
    *(name.rpartition(".")[2] for name in sorted(_TOGETHER)),
    *sorted(frameworks.called_to_wrap()),
    *sorted(name.rpartition(".")[2] for name in _JOINING),
)


@dataclasses.dataclass(frozen=True)
class Shown:
    """The call that shows that all ranks run a function."""

    call: cst.Call
    #: Whether it counts for everything that the function does: programs of one process do not make such a call.
    surely: bool = True
    #: Whether the call joins the ranks by a function of the project: what comes behind it alone is run by all.
    joins: bool = False
    #: The parameters of the function that may have a value of each rank's own.
    open: frozenset[str] = frozenset()

    def of(self, calls: Sequence[cst.Call]) -> Sequence[cst.Call]:
        """Those of the calls of the function that all ranks make."""
        return calls[calls.index(self.call) :] if self.joins else calls


class ShownInFile:
    """What shows in the file of a module that all ranks run its functions."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def at_top(self, calls: Iterable[cst.Call]) -> Shown | None:
        """What shows it of the lines outside of functions, of which these are the calls."""
        every = next((c for c in calls if self._is_run_by_every_rank(c)), None)
        return Shown(every) if every is not None else None

    def prepared_at_top(self, calls: Iterable[cst.Call]) -> Shown | None:
        """What shows of the lines outside of functions that a framework prepares models there: accelerate's launcher
        starts the file as several processes, or as one."""
        prepares = (c for c in calls if called(c) in frameworks.called_to_wrap() and self._shows_ranks(c))
        every = next(prepares, None)
        return Shown(every, surely=False) if every is not None else None

    def of(self, function: cst.FunctionDef) -> Shown | None:
        """What shows it of a function."""
        calls = list(calls_in(function.body))
        every = next((c for c in calls if self._is_run_by_every_rank(c)), None) or self._joins_them(calls)
        if every is not None:
            return Shown(every)
        given = frozenset(parameters_left_open(self.module, function, self._calls_of(function)))
        trains = self._called_by_every_rank(function)
        if trains is not None:
            return Shown(trains, open=given)
        shows = next((c for c in calls if self._shows_ranks(c)), None)
        backward = self._backward(calls)
        if shows is None and backward is None:
            shows = self._called_beside_training(function)
        if shows is not None and not on_one_rank(self.module, shows):
            # Who prepares the models is the program.
            return Shown(
                shows, surely=False, open=frozenset() if called(shows) in frameworks.called_to_wrap() else given
            )
        if backward is not None:
            return Shown(backward, open=given)
        joined = self._joins_by_function(calls)
        # A program that takes its own function for joining, as an evaluation does, also runs without ranks.
        return Shown(joined, surely=False, joins=True, open=given) if joined is not None else None

    def _is_run_by_every_rank(self, call: cst.Call) -> bool:
        size = argument(call, None, "world_size")
        if isinstance(size, cst.Integer) and size.value == "1":
            return False
        listed = self.module.listed("wrappers", call) or self.module.listed("collectives", call)
        return self.module.qualified(call.func) in EVERY_RANK or bool(listed)

    def _joins_them(self, calls: list[cst.Call]) -> cst.Call | None:
        """The call that makes the object through which a framework joins the ranks (``Accelerator()``), in a function
        that keeps other calls to one rank: a program that counts on several."""
        joined = next((c for c in calls if self.module.qualified(c.func) in _JOINING), None)
        return joined if joined is not None and any(on_one_rank(self.module, c) for c in calls) else None

    def _joins_by_function(self, calls: list[cst.Call]) -> cst.Call | None:
        """The first call of a function of the project that makes the group."""
        project = self.module.project
        joining = joining_functions(project, starting=False) if project is not None else frozenset()
        last = {name.rpartition(".")[2] for name in joining}
        return next((c for c in calls if called(c) in last and self.module.callee(c) in joining), None)

    def _shows_ranks(self, call: cst.Call) -> bool:
        """Whether a function that makes the call runs on several ranks, by itself or with what a framework wraps: it
        reads its rank, communicates, or calls ``accelerator.prepare(model)``."""
        name = self.module.qualified(call.func)
        if name in _TOGETHER:
            return argument(call, None, "group") is None
        if name == _ASKS_FOR_RANK:
            return True
        return called(call) in frameworks.called_to_wrap() and self.module.callee(call) in frameworks.wrapping_methods()

    def _backward(self, calls: list[cst.Call]) -> cst.Call | None:
        """The backward of a function that trains, in a file that several ranks run."""
        evidence = several_ranks(self.module)
        trains = evidence is not None and evidence.own
        return next((c for c in calls if trains and called(c) == "backward"), None)

    def _called_by_every_rank(self, function: cst.FunctionDef) -> cst.Call | None:
        """The call of a function in the training loop of this file, where no call of it is kept to one rank."""
        calls = self._calls_on_all(function)
        return next((c for c in calls if self._trains(self.module.function_of(c))), None)

    def _called_beside_training(self, function: cst.FunctionDef) -> cst.Call | None:
        """The same of a loop that calls the function with the backward, in a file that shows several ranks itself. A
        decorator may keep the function to one rank."""
        evidence = several_ranks(self.module)
        calls = self._calls_on_all(function) if evidence is not None and evidence.own else []
        if function.decorators:
            return None
        return next((c for c in calls if self._calls_training(self.module.function_of(c))), None)

    def _calls_on_all(self, function: cst.FunctionDef) -> list[cst.Call]:
        """The calls of a function in a file that several ranks run, if none of them is kept to one rank."""
        calls = self._calls_of(function) if several_ranks(self.module) is not None else []
        return [] if any(on_one_rank(self.module, c) for c in calls) else calls

    def _calls_of(self, function: cst.FunctionDef) -> list[cst.Call]:
        """The calls of a function in this file; of a method those by the same class."""
        owner = self.module.class_of(function)
        name = f"self.{function.name.value}" if owner is not None else function.name.value
        found = [call for call in self.module.calls_named(function.name.value) if dotted(call.func) == name]
        return [c for c in found if self.module.class_of(c) is owner or owner is None]

    def _trains(self, function: cst.FunctionDef | None) -> bool:
        return function is not None and any(called(c) == "backward" for c in calls_in(function.body))

    def _calls_training(self, function: cst.FunctionDef | None) -> bool:
        """Whether a function calls one of its file or class that has the backward."""
        owner = self.module.class_of(function) if function is not None else None
        calls = calls_in(function.body) if function is not None else ()
        return any((dotted(call.func), owner if _is_own(call) else None) in self._training for call in calls)

    @functools.cached_property
    def _training(self) -> frozenset[tuple[str, cst.ClassDef | None]]:
        """The functions of the file that have a backward, as their callers write them, each method with its class."""
        found = (self.module.function_of(c) for c in self.module.calls_named("backward"))
        named = ((f.name.value, self.module.class_of(f)) for f in dict.fromkeys(found) if f is not None)
        return frozenset((f"self.{name}" if owner is not None else name, owner) for name, owner in named)


def _is_own(call: cst.Call) -> bool:
    return dotted(call.func).startswith("self.")

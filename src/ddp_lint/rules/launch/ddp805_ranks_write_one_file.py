from __future__ import annotations

import ast
import bisect
import enum
import functools
import re
from collections.abc import Iterator
from typing import Any

import libcst as cst

from ddp_lint.divergence.file_race import LOOKS
from ddp_lint.findings import Confidence, Span
from ddp_lint.knowledge import frameworks, table
from ddp_lint.launch.callers import CallSite, call_sites, calls_in_file, sites_of
from ddp_lint.launch.joining import joining_functions
from ddp_lint.launch.locks import is_machine_lock
from ddp_lint.launch.on_all_ranks import Reached, calls_of_all_lead_to, reached_by_all
from ddp_lint.launch.one_process import as_one_process
from ddp_lint.launch.one_rank import BARRIERS, all_ranks_call, is_kept_to_one_rank, mentions_own_rank, on_one_rank
from ddp_lint.launch.ranks import runs_alone, several_ranks
from ddp_lint.launch.waiting import ends_while_others_wait
from ddp_lint.project.parts import assigned_to
from ddp_lint.rules.base import Rule
from ddp_lint.rules.launch.made_before import is_made_before
from ddp_lint.rules.launch.made_folders import MAKING
from ddp_lint.rules.launch.own_paths import are_made_for_process
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.preparing import PREPARING
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, raises
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, walk
from ddp_lint.source.syntax import names_in as names_of
from ddp_lint.source.tree import called, names_in, subtree
from ddp_lint.view.wraps import argument

#: Calls that every rank of a job makes: the function that holds one runs on all of them.
_EVERY_RANK = (
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
    for owner in (name.rpartition(".")[0] for name in PREPARING)
    if owner.rpartition(".")[2] in frameworks.every(lambda each: each.launch.starts)
)
#: Calls behind a file that is emptied which are looked at.
_LOOKED_AT = 200
#: What no rank leaves before all have come.
_MEETING = frozenset(
    {
        *(f"torch.distributed.{name}" for name in ("barrier", "all_reduce", "all_gather", "all_gather_object")),
        "torch.nn.parallel.DistributedDataParallel",
    }
)
_RANKED = re.compile(
    r"rank|local|process_index|gpu|proc_id|worker|device|host|shard|pid|uuid|tempfile|mkdtemp|tmp", re.IGNORECASE
)

#: The time to the microsecond, which no two ranks share; a format may cut it to the second.
_MOMENT = re.compile(r"\bnow\(\)|\btime_ns\(\)|(?<!int\()\btime\.time\(\)")
_CUT = re.compile(r"strftime|timespec|%")
#: How a name gets what a path is made of.
_GIVES = ("assign", "augment", "for", "with")
#: What is no file, though it is written to like one.
_MEMORY = frozenset({"io.BytesIO", "io.StringIO"})
#: What each process draws for itself, before it has seeded or whatever it has seeded.
_SYSTEM = ("secrets.", "os.urandom")
_DRAWS = re.compile(r"secrets\.|os\.urandom|random\.(?!Random|seed)|numpy\.random\.(?!default_rng|[A-Z]|seed)")
#: How a process comes to the state of another one.
_FORKS = re.compile(r"\bfork\b|\bProcess\(")


class _Outcome(enum.Enum):
    """What becomes of the same call on several ranks, and what to do instead."""

    WRITTEN = "their bytes mix, or only the last write remains"
    MADE = "all but the first fail with FileExistsError"
    REMOVED = "all but the first fail with FileNotFoundError"
    DOWNLOADED = "one checks or reads what another still writes"


#: Modules of data sets with ``download=True``.
_DATA_SETS = tuple(f"{name}." for name in table("data")["downloading"])

#: Fetches what lies at an address straight into a path. wget and gdown fetch into a name of their own first.
_FETCHING = "urllib.request.urlretrieve"
#: Calls whose answer a function writes to a file by itself.
_REQUESTS = frozenset({"requests.get", "urllib.request.urlopen"})
#: What puts a file that is complete in its place.
_PLACES = frozenset({"os.replace", "os.rename", "shutil.move"})

#: Methods of a `pathlib.Path` that fail when it exists already or does not exist any more, and what allows that.
_PATH_METHODS = {"mkdir": "exist_ok", "unlink": "missing_ok", "rmdir": ""}
_PATHS = frozenset({"pathlib.Path", "pathlib.PosixPath"})

#: Calls that remove a path: its position and name, and what makes them tolerate a missing one.
_REMOVE = {
    "shutil.rmtree": ("path", "ignore_errors"),
    "shutil.move": ("src", ""),
    "os.remove": ("path", ""),
    "os.unlink": ("path", ""),
    "os.rmdir": ("path", ""),
    "os.rename": ("src", ""),
}


class RanksWriteOneFile(Rule):
    """All ranks write the same file, or create or remove the same folder, at the same time.

    ## What it does

    Finds `torch.save` and `open(..., "w")` to a path without the rank in it, `os.makedirs` without `exist_ok`, and
    calls that remove or move a file or folder (`shutil.rmtree`, `os.remove`, `os.rename`), outside of any test for the
    rank, in a function that every rank runs: it creates the process group or wraps the model, or makes accelerate's
    `Accelerator` and keeps other calls to one rank, or the training loop of its file calls it without such a test
    (with a path that it gets from there, if all ranks give it the same one), or it calls `backward()` in a file that
    shows that several ranks run it. It is followed through functions of the project: what calls a builder that wraps
    the model is run by every rank, and so is what it calls itself outside of a test for the rank, also methods of
    objects. Besides `torch.save` and `open`, the files of `logging.FileHandler(path, "w")`,
    `logging.basicConfig(filename=..., filemode="w")`, `Config.dump` of mmcv and mmengine, and `save_pretrained` of
    tokenizers and processors count.

    For folders and removals it is enough that a loop calls it beside the function that has the backward, that the
    function reads its rank, calls `accelerator.prepare`, or communicates itself, or that a function of another file,
    which every rank runs, calls it without such a test. `mkdir()` and `unlink()` of a `pathlib.Path` are read as well,
    and `download=True` of a data set of torchvision counts like the making of a folder, as do `urlretrieve(url, path)`
    and what a function requests and writes to `open(path, "wb")` by itself.

    ## Why it breaks

    Rank 0 and rank 1 open one file for writing and interleave their bytes: the checkpoint that resumes the job cannot
    be read (`invalid header or archive is corrupted`), or has the state of the rank that wrote last. `os.makedirs`
    succeeds on the first rank and raises `FileExistsError` on the others; `os.remove` and `shutil.rmtree` raise
    `FileNotFoundError` there, also after a test of `os.path.exists`, because all ranks test before one of them acts.
    A download that another rank begins anew empties the file that the first one is about to check: "File not found or
    corrupted", in the first run on a machine alone (measured with two processes, the second a second later).

    ## Example

    ```python
    import os

    import torch.distributed as dist


    def main():
        dist.init_process_group("gloo")
        folder = os.path.join(os.path.expanduser("~"), ".cache", f"ddp_lint_{os.environ['MASTER_PORT']}")
        dist.barrier()
        os.makedirs(folder)  # <- DDP805
        dist.destroy_process_group()


    main()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist


    def main():
        dist.init_process_group("gloo")
        folder = os.path.join(os.path.expanduser("~"), ".cache", f"ddp_lint_{os.environ['MASTER_PORT']}")
        dist.barrier()
        os.makedirs(folder, exist_ok=True)
        if dist.get_rank() == 0:
            torch.save({"step": 1}, os.path.join(folder, "last.pt"))
        dist.barrier()
        dist.destroy_process_group()


    main()
    ```

    ## When it is silent

    Writes under a test for the rank, the second part of a data set whose first one the lines above download,
    downloads to another name that is then put in place (`os.replace`), folders
    that all ranks have made before with `exist_ok` where a test asks for them, or that hold a file which is loaded
    next, downloads beside one of the first rank, beside a barrier of some ranks, or in `with main_process_first()`,
    downloads and writes under a lock for all processes (`with FileLock(path)`), folders that are asked for in such an
    order, calls in a `try` that does not raise again, paths with the rank (or a temporary name, the time to the
    microsecond, or what a function of the project makes with `uuid4()`) in them, paths of single samples, helpers that
    a caller may guard, or calls in the process that starts the ranks, tests, and distributed checkpoints, which are
    written by all ranks on purpose; files that are only emptied (`with open(path, "w"): pass`), if no rank writes to
    them before all have met. A function whose name a later one takes is not run. A function of the project that
    returns whether this is the first rank counts as such a test, as does a setting that is one wherever the project
    makes it (`params["saves"] = rank == 0`). What the first rank writes before it ends the program while the others
    wait for it in a barrier. Code that only programs without a group come to, where others of the project make one.

    Only with `--preview`: files that all ranks write (`torch.save`, `open(path, "w")`), and what is found through
    other functions of the project. On public code nobody had read, four in ten of these were false, as programs of one
    process write them, too; of folders, removals and downloads one in five.

    ## How to confirm

    `ddp-lint verify train.py`: a rank raises `FileExistsError`, or ranks write one path with no collective between
    them, also where both writes succeeded this time.

    ## Fix safety

    No fix: the following code may need all ranks to wait for the file.

    ## References

    - https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "save",
        "save_pretrained",
        "dump",
        "basicConfig",
        "FileHandler",
        "makedirs",
        "open",
        "mkdir",
        "download",
        "urlretrieve",
        *(name.rpartition(".")[2] for name in _REMOVE),
        file=(
            "init_process_group",
            "DistributedDataParallel",
            "FullyShardedDataParallel",
            "fully_shard",
            "get_rank",
            *(name.rpartition(".")[2] for name in sorted(_TOGETHER)),
            *(name.rpartition(".")[2] for name in PREPARING),
            *sorted(name.rpartition(".")[2] for name in _JOINING),
            "makedirs",
            "mkdir",
            "save",
            "save_pretrained",
            "dump",
            "basicConfig",
            "FileHandler",
            *(name.partition(".")[0] for name in _DATA_SETS),
        ),
        tests=False,
    )
    of_several = True
    oracles = ("files", "exception")

    def start(self) -> None:
        self._steps: dict[cst.CSTNode, list[cst.Call]] = {}
        calls = self.module.of_type(cst.Call)
        self._writing = {self.module.function_of(call) for call in calls if self._written(call) is not None}

    def visit_Module(self, node: cst.Module) -> None:
        calls = list(calls_in(node)) if None in self._writing else []
        every = next((c for c in calls if self._is_run_by_every_rank(c)), None)
        if every is not None:
            self._look_at(calls, every, set())

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if node not in self._writing:
            return
        calls = every_call = list(calls_in(node.body))
        if not any(self._written(call) is not None for call in calls):
            return
        every = next((c for c in calls if self._is_run_by_every_rank(c)), None) or self._joins_them(calls)
        given: set[str] = set()  # names whose values a caller decides, the rank perhaps among them
        if every is None:
            every = self._called_by_every_rank(node)
            written = {name for call in calls if (path := self._written(call)) is not None for name in names_in(path)}
            given = self._open_parameters(node, written)
        shows = next((c for c in calls if every is None and self._shows_ranks(c)), None)
        if every is None and shows is None and self._backward(calls) is None:
            shows = self._called_beside_training(node)
        if shows is not None and not on_one_rank(self.module, shows):
            every, calls = shows, [c for c in calls if self._outcome(c) is not _Outcome.WRITTEN]
            given = set() if called(shows) in _PREPARING_METHODS else given  # who prepares the models is the program
        if every is None:
            every = self._backward(calls)
        if every is None and (joined := self._joins_by_function(calls)) is not None:
            # A program that takes its own function for joining, as an evaluation does, also runs without ranks.
            every, calls = joined, [c for c in calls[calls.index(joined) :] if self._outcome(c) is not _Outcome.WRITTEN]
        if every is not None:
            self._look_at(calls, every, given)
        elif self._visit_helper(node, calls):
            return
        seen = set(calls) if every is not None else set()
        left = [call for call in every_call if call not in seen and self._written(call) is not None]
        reached = reached_by_all(self.module, node) if left else None
        if reached is not None:
            left = [call for call in left if not self._is_of_each(call, node, reached)]
            self._look_at(left, reached.span, self._given_own(node, reached), doubtful=True)

    def _is_of_each(self, call: cst.Call, function: cst.FunctionDef, reached: Reached) -> bool:
        """Whether a path is one of a sample or batch, of which each rank has its own: it has what a loop over more than
        numbers gives, here or where the function is called; or what a rank does when it has failed."""
        if any(isinstance(up, cst.ExceptHandler) for up in self.module.ancestors(call)):
            return True
        path = self._written(call)
        for value in self._values(path) if path is not None else ():
            for name in (part for part in subtree(value) if isinstance(part, (cst.Name, cst.Attribute))):
                loops = (b.value for b in self.module.bindings(name) if b.kind == "for" and b.value is not None)
                if any(not isinstance(each, cst.Call) or called(each) != "range" for each in loops):
                    return True
        names = names_in(path) if path is not None else set()
        return any(_comes_from_loop(reached.way, function, name) for name in names)

    def _given_own(self, function: cst.FunctionDef, reached: Reached) -> set[str]:
        """The parameters of a function that the calls which lead to it may give each rank a value of its own."""
        sites = reached.way
        names = {parameter.name.value for parameter in function.params.params} if sites else ()
        return {name for name in names if any(map(_RANKED.search, _texts_given(sites, function, name)))}

    def _look_at(
        self, calls: list[cst.Call], every: cst.Call | Span, given: set[str], *, doubtful: bool = False
    ) -> None:
        """Report what the ranks that come by a call write, make or remove in the same function."""
        if isinstance(every, cst.Call) and on_one_rank(self.module, every):
            return
        reported: set[cst.CSTNode] = set()
        for call in calls:
            path = self._written(call)
            # ``torch.save(x, open(path, "wb"))``, ``with open(path, "wb") as file: torch.save(x, file)``
            opened = (b.value for b in self.module.bindings(path)) if isinstance(path, cst.Name) else ()
            inside = any(up in reported for up in (*self.module.ancestors(call), *opened))
            if (
                path is not None
                and not given & names_in(path)
                and not inside
                and not on_one_rank(self.module, call)
                and not as_one_process(self.module, call)
                and not self._own_path(path)
                and not (self._outcome(call) is _Outcome.WRITTEN and self._is_locked(call))
            ):
                reported.add(call)
                self._report(call, every, doubtful=doubtful)

    def _visit_helper(self, function: cst.FunctionDef, calls: list[cst.Call]) -> bool:
        """Report folders that a helper makes or removes for a function of another file that every rank runs."""
        for call in calls:
            path = self._written(call) if self._outcome(call) is not _Outcome.WRITTEN else None
            if path is None or on_one_rank(self.module, call) or as_one_process(self.module, call):
                continue
            if self._own_path(path):
                continue
            downloads = self._outcome(call) is _Outcome.DOWNLOADED
            found = sites_of(self.module, function) if downloads else call_sites(self.module, function)
            site = next((s for s in found if self._is_for_ranks(s, function, path, call)), None)
            if site is not None:
                self._report(call, site.span)
                return True
        return False

    def _is_for_ranks(
        self, site: CallSite, function: cst.FunctionDef, path: cst.BaseExpression, call: cst.Call
    ) -> bool:
        """Whether a call of a helper is made by every rank, for one and the same path of a call in it."""
        downloads = self._outcome(call) is _Outcome.DOWNLOADED
        project, around = self.module.project, site.around
        if project is None or around is None:
            return False
        parts = [site.given(function, name) for name in names_in(path)]
        if any(part is not None and _RANKED.search(ast.unparse(part)) for part in parts):
            return False
        of_names = [site.given(function, name) for name in self._names(path)]
        if are_made_for_process(project, site.facts, [dotted_ast(each) for each in of_names if each is not None]):
            return False
        if downloads and self.module.qualified(call.func).startswith(_DATA_SETS):
            return all_ranks_call(site, project)
        if downloads:
            # Where one rank fetches, another call is for one process: ``if is_initialized(): .. else: fetch()``.
            alone = any(on_one_rank(self.module, each) for each in calls_in_file(self.module, function))
            return not alone and calls_of_all_lead_to(project, site)
        every = {*_EVERY_RANK, *joining_functions(project, starting=False)}
        made = calls_below(around)
        joins = any(project.meanings.of(site.facts, n.func) in every for n in made)
        kept = is_kept_to_one_rank(project, site.facts, site.node, around)
        return joins and self.module.class_of(function) is None and not kept

    def _is_run_by_every_rank(self, call: cst.Call) -> bool:
        size = argument(call, None, "world_size")
        if isinstance(size, cst.Integer) and size.value == "1":
            return False
        listed = self.module.listed("wrappers", call) or self.module.listed("collectives", call)
        return self.module.qualified(call.func) in _EVERY_RANK or bool(listed)

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
        if self.module.qualified(call.func) in _TOGETHER:
            return argument(call, None, "group") is None
        return self._asks(call) or (called(call) in _PREPARING_METHODS and self.module.callee(call) in PREPARING)

    def _asks(self, call: cst.Call) -> bool:
        return self.module.qualified(call.func) == _ASKS_FOR_RANK

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

    def _open_parameters(self, function: cst.FunctionDef, written: set[str]) -> set[str]:
        """The parameters in what is written of which the calls in this file do not show that all ranks get the same."""
        places = [p for p in function.params.params if p.name.value != "self"]
        named = [(i, p) for i, p in enumerate(places) if p.name.value in written]
        calls = self._calls_of(function) if named else []
        return {p.name.value for i, p in named if not calls or not all(self._is_shared(c, i, p) for c in calls)}

    def _is_shared(self, call: cst.Call, place: int, parameter: cst.Param) -> bool:
        """Whether all ranks that make a call give a parameter the same path, as far as the caller itself says it."""
        value = argument(call, place, parameter.name.value) or parameter.default
        if value is None or any(arg.star for arg in call.args) or self._own_path(value):
            return False
        return not isinstance(value, cst.Name) or all(b.kind != "parameter" for b in self.module.bindings(value))

    def _calls_of(self, function: cst.FunctionDef) -> list[cst.Call]:
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

    def _written(self, call: cst.Call) -> cst.BaseExpression | None:
        """The path that a call writes, makes and fails on when it exists, or removes and fails on when it does not."""
        name = self.module.qualified(call.func)
        if name in _REMOVE:
            keyword, bears = _REMOVE[name]
            tolerant = bool(bears) and argument(call, 1, bears) is not None
            return None if tolerant or self._asked_before(call) else argument(call, 0, keyword)
        if name in _writers():
            return self._written_by(call, _writers()[name])
        if name.startswith(_DATA_SETS):
            return self._downloaded_into(call, name)
        if name == _FETCHING:
            return None if self._is_in_turn(call) else argument(call, 1, "filename")
        if name in MAKING:
            allowed = argument(call, 2, "exist_ok")
            return None if allowed is not None or self._asked_before(call) else argument(call, 0, "name")
        if isinstance(call.func, cst.Name) and call.func.value == "open":
            if self._is_fetched(call) and self._is_in_turn(call):
                return None
            return argument(call, 0, "file") if self._opens_to_write(call, 1, "mode") else None
        if called(call) in _writing_methods() and isinstance(call.func, cst.Attribute):
            return self._written_by_method(call, call.func.value)
        return self._path_of(call) if not name else None

    def _opens_to_write(self, call: cst.Call, *place: int | str) -> bool:
        how = _mode(call, *place)
        return "x" in how or ("w" in how and not self._only_empties(call))

    def _written_by(self, call: cst.Call, writer: dict[str, Any]) -> cst.BaseExpression | None:
        """The path of a call of a function that writes a file."""
        writes = "modes" not in writer or self._opens_to_write(call, *writer["modes"])
        return argument(call, *writer["path"]) if writes else None

    def _written_by_method(self, call: cst.Call, receiver: cst.BaseExpression) -> cst.BaseExpression | None:
        """The path of a call of a method that writes a file, of an object that has it by its name or what made it."""
        for method in _writing_methods()[called(call)]:
            if "unless" in method and argument(call, None, method["unless"]) is not None:
                continue
            if dotted(receiver).lower().endswith(tuple(method.get("of", ()))) or self._is_made(receiver, method):
                return argument(call, *method["path"])
        return None

    def _is_made(self, receiver: cst.BaseExpression, method: dict[str, Any]) -> bool:
        made = (v for v in self.module.assignments(receiver) if isinstance(v, cst.Call)) if "made" in method else ()
        return any(self.module.qualified(value.func) in method["made"] for value in made)

    def _only_empties(self, call: cst.Call) -> bool:
        """``with open(path, "w"): pass``: what each rank leaves is the empty file that the others leave, too, unless
        one of them goes on to write before the ranks have met."""
        block = self.module.parent(self.module.parent(call) or call)
        if not isinstance(block, cst.With) or not all(map(_does_nothing, block.body.body)):
            return False
        path, line = argument(call, 0, "file"), self.module.span(block).line
        known = self._meeting_or_opening(self.module.scope_of(call))
        start = bisect.bisect_right(known, line, key=lambda each: self.module.span(each).line)
        for other in known[start : start + _LOOKED_AT]:
            if called(other) != "open":
                if not on_one_rank(self.module, other):
                    return True
            elif path is not None and any(arg.value.deep_equals(path) for arg in other.args):
                return False
        return len(known) - start <= _LOOKED_AT

    def _meeting_or_opening(self, scope: cst.FunctionDef | cst.Module) -> list[cst.Call]:
        """The calls of a function, in order, at which its ranks meet or open a file."""
        if scope not in self._steps:
            self._steps[scope] = [
                call
                for call in calls_in(scope.body if isinstance(scope, cst.FunctionDef) else scope)
                if called(call) in ("open", "backward") or self.module.qualified(call.func) in _MEETING
            ]
        return self._steps[scope]

    def _downloaded_into(self, call: cst.Call, name: str) -> cst.BaseExpression | None:
        """The folder of a data set that is downloaded, unless ranks of its function take turns."""
        download = argument(call, None, "download")
        if download is None or dotted(download) != "True" or self._is_in_turn(call, name):
            return None
        folder = argument(call, 0, "root")
        return None if folder is not None and self._is_downloaded_above(call, name, folder) else folder

    def _is_fetched(self, call: cst.Call) -> bool:
        """Whether what a call opens is written with the answer to a request, under its last name already."""
        function = self.module.function_of(call)
        if function is None or "b" not in _mode(call, 1, "mode"):
            return False
        if not any(map(self.module.file.holds, ("urlopen", "requests"))):
            return False
        names = {self.module.qualified(each.func) for each in calls_in(function.body)}
        return not names.isdisjoint(_REQUESTS) and names.isdisjoint(_PLACES)

    def _is_downloaded_above(self, call: cst.Call, name: str, folder: cst.BaseExpression) -> bool:
        """Whether the same data set is downloaded into the folder by a call above: its other part came with that."""
        function = self.module.function_of(call)
        for other in calls_in(function.body if function is not None else self.module.tree):
            if other is call:
                return False
            other_folder = argument(other, 0, "root") if self.module.qualified(other.func) == name else None
            if other_folder is not None and other_folder.deep_equals(folder) and argument(other, None, "download"):
                return self.module.function_of(other) is function
        return False

    def _is_in_turn(self, call: cst.Call, name: str = "") -> bool:
        """Whether the first rank comes by a call first: it alone has a barrier there, or a call of `name`."""
        around = (item.item for up in self.module.ancestors(call) if isinstance(up, cst.With) for item in up.items)
        if any("first" in self.module.code(each) for each in around):  # ``with accelerator.main_process_first():``
            return True
        if self._is_locked(call):
            return True
        function = self.module.function_of(call)
        for other in calls_in(function.body if function is not None else self.module.tree):
            waits = called(other) in BARRIERS
            if (waits or (name and self.module.qualified(other.func) == name)) and on_one_rank(self.module, other):
                return True
        return False

    def _is_locked(self, call: cst.Call) -> bool:
        """Whether a lock for all processes is held there: ``with FileLock(path):``, also by its name."""
        around = (item.item for up in self.module.ancestors(call) if isinstance(up, cst.With) for item in up.items)
        locks = (_taken(held) for held in around)
        made = (value for lock in locks for value in (lock, *self.module.assignments(lock)))
        makers = (value.func for value in made if isinstance(value, cst.Call))
        return any(is_machine_lock(self.module.qualified(maker) or dotted(maker)) for maker in makers)

    def _path_of(self, call: cst.Call) -> cst.BaseExpression | None:
        """The path whose method a call is, where the method fails if another rank was faster: ``path.mkdir()``."""
        if not isinstance(call.func, cst.Attribute) or any(arg.keyword is None for arg in call.args):
            return None
        method, path = call.func.attr.value, call.func.value
        allowing = _PATH_METHODS.get(method)
        if allowing is None or self._asked_before(call) or not self._is_path(path):
            return None
        allowed = argument(call, None, allowing) if allowing else None
        return path if allowed is None or dotted(allowed) == "False" else None

    def _is_path(self, node: cst.BaseExpression, depth: int = 3) -> bool:
        """Whether a value is a `pathlib.Path`: made from one, ``folder / "name"`` or annotated."""
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, cst.Divide)
        if depth <= 0:
            return False
        if isinstance(node, cst.Call):
            made = self.module.qualified(node.func) in _PATHS
            return made or (isinstance(node.func, cst.Attribute) and self._is_path(node.func.value, depth - 1))
        if isinstance(node, cst.Attribute) and node.attr.value in ("parent", "absolute"):
            return self._is_path(node.value, depth - 1)
        bound = self.module.bindings(node) if isinstance(node, (cst.Name, cst.Attribute)) else ()
        return any(b.kind == "assign" and b.value is not None and self._is_path(b.value, depth - 1) for b in bound)

    def _asked_before(self, call: cst.Call) -> bool:
        """In a `try` that takes FileExistsError, FileNotFoundError or OSError, under `contextlib.suppress`, or behind a
        question for the path that ranks ask in turn."""
        around = list(self.module.ancestors(call))
        held = (item.item for up in around if isinstance(up, cst.With) for item in up.items)
        suppressed = any(isinstance(each, cst.Call) and called(each) == "suppress" for each in held)
        if suppressed or any(isinstance(up, cst.Try) and _takes(up) for up in around):
            return True
        asked = any(LOOKS.search(self.module.code(test)) for test, _ in conditions(self.module, call))
        return asked and self._is_in_turn(call)

    def _own_path(self, path: cst.BaseExpression) -> bool:
        """Whether the path may hold the rank (it, or what its names are assigned, mentions one), or is no file."""
        if self.module.qualified(path) == "os.devnull":
            return True
        if any(isinstance(v, cst.Call) and self.module.qualified(v.func) in _MEMORY for v in self._values(path)):
            return True
        texts = list(self._texts(path))
        if any(map(_MOMENT.search, texts)) and not any(map(_CUT.search, texts)):
            return True
        if self._is_drawn(path):
            return True
        texts += self._set_elsewhere(path)
        project, facts = self.module.project, self.module.facts
        if project is not None and facts is not None and are_made_for_process(project, facts, self._names(path)):
            return True
        return any(_RANKED.search(text) or mentions_own_rank(self.module, text) for text in texts)

    def _set_elsewhere(self, path: cst.BaseExpression) -> Iterator[str]:
        """What other functions of the file set the attributes in the path to: ``args.log = f"log_{args.rank}"``."""
        named = {dotted(part) for part in subtree(path) if isinstance(part, cst.Attribute)} - {""}
        tree = self.module.facts.tree if named and self.module.facts is not None else None
        for node in walk(tree) if tree is not None else ():
            if isinstance(node, ast.Assign) and any(dotted_ast(target) in named for target in node.targets):
                yield ast.unparse(node.value)

    def _is_drawn(self, path: cst.BaseExpression) -> bool:
        """Whether a part of the path is random, drawn before the function seeds: Python and NumPy seed each process by
        itself. One that a program forks has the state of its parent."""
        drawn = [
            call
            for value in self._values(path)
            for call in subtree(value)
            if isinstance(call, cst.Call) and _DRAWS.match(self.module.qualified(call.func))
        ]
        if not drawn or self.module.file.shows(_FORKS) or not self.module.file.holds("__main__"):
            return False
        if any(self.module.qualified(call.func).startswith(_SYSTEM) for call in drawn):
            return True
        facts = self.module.facts
        if facts is None:
            return False
        # Of the whole file: a rule sees the functions alone that it may find something in.
        named = (n.lineno for n in calls_below(facts.tree) if "seed" in last_part(n.func).lower())
        seeds = {line: function_at(facts.tree, line) for line in named}
        # What a function does that is named for it, it does where it is called.
        seeds = {line: f for line, f in seeds.items() if f is None or "seed" not in f.name.lower()}
        lines = [self.module.span(call).line for call in drawn]
        around = {*seeds.values(), *(function_at(facts.tree, line) for line in lines)}
        return len(around) == 1 and min(seeds, default=max(lines) + 1) > max(lines)

    def _texts(self, path: cst.BaseExpression) -> Iterator[str]:
        """The path, and what its names are assigned, up to three assignments away."""
        return map(self.module.code, self._values(path))

    def _names(self, path: cst.BaseExpression) -> set[str]:
        """The names in the path and in what its names are assigned."""
        return {dotted(node) for value in self._values(path) for node in subtree(value)} - {""}

    def _values(self, path: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        reached, values = {path}, [path]
        for _ in range(4):
            yield from values
            nodes = (node for value in values for node in subtree(value))
            names = [node for node in nodes if isinstance(node, (cst.Name, cst.Attribute)) and dotted(node)]
            bound = [b for name in names for b in self.module.bindings(name) if b.kind in _GIVES]
            values = [value for value in dict.fromkeys(b.value for b in bound) if value and value not in reached]
            reached.update(values)

    def _outcome(self, call: cst.Call) -> _Outcome:
        name = self.module.qualified(call.func)
        method = called(call) if not name else ""
        if name.startswith(_DATA_SETS) or name == _FETCHING:
            return _Outcome.DOWNLOADED
        if called(call) == "open" and self._is_fetched(call):
            return _Outcome.DOWNLOADED
        if name in MAKING or method == "mkdir":
            return _Outcome.MADE
        return _Outcome.REMOVED if name in _REMOVE or method in _PATH_METHODS else _Outcome.WRITTEN

    def _report(self, call: cst.Call, every: cst.Call | Span, *, doubtful: bool = False) -> None:
        if runs_alone(self.module, call) or ends_while_others_wait(self.module, call):
            return
        outcome, path = self._outcome(call), self._written(call)
        if outcome is _Outcome.MADE and path is not None and is_made_before(self.module, call, path):
            return
        does, help_ = _OUTCOMES[outcome]
        # Of files that all ranks write, four in ten first readings were false: programs of one process write them, too.
        self.report(
            call,
            f"every rank {does} this path at the same time: {outcome.value}",
            confidence=Confidence.LOW if doubtful or outcome is _Outcome.WRITTEN else None,
            labels=[(every, "every rank runs this function")],
            help=help_,
        )


def _mode(call: cst.Call, *place: int | str) -> str:
    """The mode in which a call opens a file, '' where it is not written there."""
    mode = argument(call, *place)  # type: ignore[arg-type]
    return str(mode.evaluated_value) if isinstance(mode, cst.SimpleString) else ""


def _comes_from_loop(sites: tuple[CallSite, ...], function: cst.FunctionDef | FunctionNode, name: str) -> bool:
    """Whether the calls that lead to a function give one of its parameters what a loop over more than numbers gives."""
    value = sites[0].given(function, name) if sites else None
    around = sites[0].around if sites else None
    names = names_of(value) if value is not None else frozenset()
    for loop in (n for n in walk(around) if isinstance(n, ast.For)) if around is not None and names else ():
        over_numbers = isinstance(loop.iter, ast.Call) and last_part(loop.iter.func) == "range"
        if names_of(loop.target) & names and not over_numbers:
            return True
    return around is not None and any(_comes_from_loop(sites[1:], around, each) for each in names)


@functools.cache
def _writers() -> dict[str, dict[str, Any]]:
    """The functions that write a file, by their names."""
    return {name: entry for entry in table("launch")["writing"]["functions"] for name in entry["names"]}


@functools.cache
def _writing_methods() -> dict[str, list[dict[str, Any]]]:
    """The methods that write a file, by their names."""
    methods: dict[str, list[dict[str, Any]]] = {}
    for entry in table("launch")["writing"]["methods"]:
        methods.setdefault(entry["name"], []).append(entry)
    return methods


def _texts_given(sites: tuple[CallSite, ...], function: cst.FunctionDef | FunctionNode, name: str) -> Iterator[str]:
    """What calls that lead to a function, the last one first, give one of its parameters, and what the names in that
    are assigned."""
    value = sites[0].given(function, name) if sites else None
    around = sites[0].around if sites else None
    if value is None or around is None:
        return
    yield ast.unparse(value)
    for each in sorted(names_of(value)):
        yield from map(ast.unparse, assigned_to(each, around))
        yield from _texts_given(sites[1:], around, each)


def _is_own(call: cst.Call) -> bool:
    return dotted(call.func).startswith("self.")


def _taken(held: cst.BaseExpression) -> cst.BaseExpression:
    """The lock of ``with lock:`` and of ``with lock.acquire():``."""
    if isinstance(held, cst.Call) and isinstance(held.func, cst.Attribute) and called(held) == "acquire":
        return held.func.value
    return held


def _does_nothing(statement: cst.CSTNode) -> bool:
    """``pass``, ``...`` or a text, alone on its line."""
    parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
    return all(
        isinstance(part, cst.Pass)
        or (isinstance(part, cst.Expr) and isinstance(part.value, (cst.Ellipsis, cst.SimpleString)))
        for part in parts
    )


def _takes(block: cst.Try) -> bool:
    """Whether a `try` goes on after an exception that it takes: a handler does not raise again at its end."""
    bodies = [handler.body for handler in block.handlers if handler.body.body]
    return not bodies or not all(map(raises, bodies))


_PREPARING_METHODS = frozenset(name.rpartition(".")[2] for name in PREPARING)
_OUTCOMES = {
    _Outcome.WRITTEN: ("writes", "write on rank 0 only and let the others wait, or put the rank into the path"),
    _Outcome.MADE: ("makes", "exist_ok=True"),
    _Outcome.REMOVED: ("removes", "remove it on rank 0 only and let the others wait"),
    _Outcome.DOWNLOADED: ("downloads to", "download it on rank 0 first, behind dist.barrier() on the others"),
}

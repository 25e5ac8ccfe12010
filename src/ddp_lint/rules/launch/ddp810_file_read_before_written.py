from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterable, Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.callers import CallSite, call_sites, calls_in_file, constructions
from ddp_lint.launch.file_access import Accesses, plain_path
from ddp_lint.launch.helpers import helper_of
from ddp_lint.launch.joining import is_before_fit, is_prepared_alone
from ddp_lint.launch.one_process import as_one_process
from ddp_lint.launch.one_rank import (
    BARRIERS,
    IN_TURN,
    all_ranks_call,
    first_rank_test,
    is_kept_to_one_rank,
    on_one_rank,
    own_ranks,
)
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.launch.single_process import on_one_node
from ddp_lint.project import Project
from ddp_lint.rules.base import Rule
from ddp_lint.rules.launch.made_folders import folders_of, made_on_one_rank
from ddp_lint.rules.launch.temporary_folders import MAKERS, shared_folder
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, leaves, opposed
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import FunctionNode, calls_below, walk
from ddp_lint.source.tree import called, subtree
from ddp_lint.view.wraps import argument

_WRITES = Accesses(
    functions={
        "torch.save": (1, "f"),
        "numpy.save": (0, "file"),
        "numpy.savez": (0, "file"),
        "joblib.dump": (1, "filename"),
        "safetensors.torch.save_file": (1, "filename"),
    },
    methods={"write_text": None, "write_bytes": None, "to_csv": (0, "path_or_buf"), "to_parquet": (0, "path"),
             "save_pretrained": (0, "save_directory")},
    modes="wx",
)  # fmt: skip
_READS = Accesses(
    functions={
        "torch.load": (0, "f"),
        "numpy.load": (0, "file"),
        "joblib.load": (0, "filename"),
        "safetensors.torch.load_file": (0, "filename"),
        "pandas.read_csv": (0, "filepath_or_buffer"),
        "pandas.read_parquet": (0, "path"),
    },
    methods={"read_text": None, "read_bytes": None, "from_pretrained": (0, "pretrained_model_name_or_path")},
    modes="r",
)
#: Methods that call each other, and steps from an object to the call that makes it, which are followed.
_METHODS, _DEPTH = 2, 4
#: Words of calls after which the ranks have met, or a rank has waited for the file.
_WAITS = re.compile(
    r"barrier|wait|sync|broadcast|all_reduce|allreduce|all_gather|allgather|reduce|gather|scatter|rendezvous|exists|"
    r"isfile|is_file|DistributedDataParallel|DDP|fully_shard|FullyShardedDataParallel|prepare|main_process_first|backward",
    re.IGNORECASE,
)
#: A test of whether a file is there.
_IS_THERE = re.compile(r"\b(exists|isfile|is_file)\b")
_LOOKS = re.compile(r"\b(exists|isfile|is_file)\(")
#: Words of a test that one rank alone may meet: the cheap question before `on_one_rank`.
_OF_ONE = re.compile(r"rank|main|master|primary|chief|leader|first|zero|process|writes|saves", re.IGNORECASE)
#: What a path of one rank's own has in it.
_OWN = re.compile(r"rank|worker|gpu|pid|te?mp|uuid|process", re.IGNORECASE)


class FileReadBeforeWritten(Rule):
    """All ranks read a file that only rank 0 writes, or whichever rank comes first, without waiting for it.

    ## What it does

    Finds `torch.save`, `numpy.save` or `open(.., "w")` under a test for the first rank, and later in the same function
    a read of the same path outside of any such test, with no barrier and no other collective in between. Either of the
    two may be in a function that is called there with the path, and the test in one that hands on all that it is given
    (`save_on_master(state, path)`).

    Finds caches that every rank builds as well: a function that writes a path where it is missing and reads it where it
    exists, and that a program of several ranks calls (or makes an object whose constructor does so), on all ranks.

    A write of every rank (its own part of a checkpoint) into a folder that rank 0 alone makes in the same function.

    And `tempfile.mkdtemp()` on rank 0 alone whose name the function broadcasts: a folder on the first node.

    ## Why it breaks

    Rank 1 does not take the branch and is at the read while rank 0 still writes: it raises `FileNotFoundError`, or
    reads the first half of a checkpoint (`PytorchStreamReader failed reading zip archive`), or uses an older file if
    there is one. Whether this happens depends on milliseconds and on the file system: a network drive shows a new file
    late on other nodes, and `/tmp` of the first node is not there at all. Of ranks that build a cache, the first one
    writes while a later one finds that the file exists.

    ## Example

    ```python
    import os
    import tempfile
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")


    def start(model):
        path = os.path.join(tempfile.gettempdir(), f"ddp_lint_start_{os.environ['MASTER_PORT']}.pt")
        if dist.get_rank() == 0:
            time.sleep(2)  # a large model
            torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path, map_location="cpu"))  # <- DDP810


    start(torch.nn.Linear(4, 4))
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os
    import tempfile
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")


    def start(model):
        path = os.path.join(tempfile.gettempdir(), f"ddp_lint_started_{os.environ['MASTER_PORT']}.pt")
        if dist.get_rank() == 0:
            time.sleep(2)  # a large model
            torch.save(model.state_dict(), path)
        dist.barrier()
        model.load_state_dict(torch.load(path, map_location="cpu"))


    start(torch.nn.Linear(4, 4))
    dist.destroy_process_group()
    ```

    ## When it is silent

    Any collective, wrap, `wait` or test of existence between the two, also inside the branch; paths that are not
    written in the same way; reads on the same rank; code without evidence of several ranks; functions that all callers
    keep to one rank; tests; a file that is written only where it is there and read only where it is missing. For
    caches also locks, `main_process_first` and the like, in the function or around its call; what Lightning's
    `prepare_data` builds, and what a program of Lightning that no launcher starts does above `trainer.fit()`, where
    the other ranks start. A temporary folder with `dir=`, of the first rank of each node, or whose name goes to a
    group; files that say that all ranks are on one node.

    ## How to confirm

    `ddp-lint verify train.py`: rank 1 reads a path that rank 0 writes, and no collective stands between the two, also
    where the read succeeded this time.

    ## Fix safety

    No automatic fix: a barrier has to be reached by all ranks of the job.

    ## References

    - https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        *("save", "open", "dump", "savez", "save_file", "write_text", "write_bytes", "to_csv", "to_parquet"),
        *("load", "load_file", "read_csv", "read_parquet", "read_text", "read_bytes", "save_pretrained"),
        *("from_pretrained", "rank", "get_rank", "local_rank", "is_main_process"),
        file=("torch",),
        tests=False,
    )
    of_several = True
    oracles = ("files", "exception")

    def start(self) -> None:
        tests = [(node, " ".join(_words(node.test))) for node in self.module.of_type(cst.If)]
        #: The functions that test something that may be the rank, and those that test whether a file is there.
        self._parting: dict[cst.FunctionDef | None, list[cst.If]] = collections.defaultdict(list)
        for node, test in tests:
            if _OF_ONE.search(test):
                self._parting[self.module.function_of(node)].append(node)
        named = (call for call in self.module.of_type(cst.Call) if _OF_ONE.search(called(call)))
        self._saving = {self.module.function_of(call) for call in named if self._written_by_first(call)}
        self._looking = {self.module.function_of(node) for node, test in tests if _IS_THERE.search(test)}

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if node not in self._parting and node not in self._looking and node not in self._saving:
            return
        if node in self._parting and any(self.module.file.holds(name.rpartition(".")[2]) for name in MAKERS):
            self._visit_folder(node)
        if node in self._parting and (self.module.file.holds("makedirs") or self.module.file.holds("mkdir")):
            self._visit_made(node)
        branches = self._parting.get(node, [])
        inside = [node.body] if any(leaves(branch.body) for branch in branches) else branches
        written = dict(self._written(call for part in inside for call in calls_in(part)))
        calls = list(calls_in(node.body))
        if node in self._saving:
            written |= {named: call for call in calls if (named := self._written_by_first(call))}
        if not written and node not in self._looking:
            return
        if node in self._looking:
            self._visit_cache(node, calls)
        for call in calls if written else ():
            path = next((path for path in sorted(self._read(call)) if path in written), None)
            if path is None:
                continue
            write = written[path]
            if self._is_raced(calls, write, call) and self._run_by_several(node):
                self.report(
                    call,
                    "rank 1 reads while rank 0 still writes the file: it fails, or gets half of it or an older one",
                    labels=[(write, "only rank 0 writes it")],
                    help="call dist.barrier() between the two, on all ranks",
                )
                return

    def _run_by_several(self, function: cst.FunctionDef) -> bool:
        """Whether the file shows several ranks, and not all calls of a function are kept to one of them."""
        if several_ranks(self.module) is None:
            return False
        calls = calls_in_file(self.module, function)
        kept = (on_one_rank(self.module, call) or as_one_process(self.module, call) for call in calls)
        return not calls or not all(kept)

    def _visit_folder(self, function: cst.FunctionDef) -> None:
        found = shared_folder(self.module, function, list(calls_in(function.body)))
        if found is not None and not on_one_node(self.module):
            made, sharing = found
            self.report(
                made,
                "rank 0 makes this folder in the /tmp of its own node: on the second node there is none of that name",
                labels=[(sharing, "all ranks get its name here")],
                help="make it on a file system that the nodes share: tempfile.mkdtemp(dir=...)",
                needs_nodes=True,
            )

    def _visit_made(self, function: cst.FunctionDef) -> None:
        """Report a write of all ranks into a folder that one rank makes, for which the others do not wait."""
        calls = list(calls_in(function.body))
        made = made_on_one_rank(self.module, calls)
        for call in calls if made else ():
            path = _WRITES.path(self.module, call)
            folder = next((f for f in folders_of(self.module, path) if f in made), "") if path is not None else ""
            if not folder or on_one_rank(self.module, call) or not self._is_raced(calls, made[folder], call):
                continue
            if self._run_by_several(function):
                self.report(
                    call,
                    "rank 1 writes into a folder that rank 0 alone makes: it fails where that is late, or elsewhere",
                    labels=[(made[folder], "only rank 0 makes it")],
                    help="make it on every rank: os.makedirs(folder, exist_ok=True)",
                )
                return

    def _visit_cache(self, function: cst.FunctionDef, calls: list[cst.Call]) -> None:
        """Report what a function reads where it is there, and else writes, on all ranks."""
        for write in calls:
            path = _WRITES.path(self.module, write)
            name = self.module.code(path) if path is not None else ""
            around = (self.module.code(test) for test, _ in conditions(self.module, write) if name)
            if not any(name in test and _LOOKS.search(test) for test in around) or on_one_rank(self.module, write):
                continue
            made = self.module.assignments(path) if path is not None else ()
            if any(map(_OWN.search, (name, *map(self.module.code, made)))):
                continue
            read = next((call for call in calls if self._reads(call, name)), None)
            if read is None or any(map(self._waits, calls)) or self._is_exchanged(write, read, name):
                continue
            site = self._site_of_all(function)
            if site is not None:
                self.report(
                    read,
                    "a rank reads the cache while another one still writes it: it fails, or gets half of it",
                    labels=[(write, "every rank writes it where it is missing"), (site.span, "every rank comes here")],
                    help="build it on rank 0 while the others wait, or write to a temporary name and os.replace() it",
                )
                return

    def _is_exchanged(self, write: cst.Call, read: cst.Call, name: str) -> bool:
        """Whether the file is written only where it is there, and read only where it is missing: no rank reads what
        another one writes."""
        return self._finds(write, name) is True and self._finds(read, name) is False

    def _finds(self, call: cst.Call, name: str) -> bool | None:
        """Whether the file is there where a call is made, by the innermost test of that alone; None for any other."""
        for test, taken in conditions(self.module, call):
            text = self.module.code(test)
            if name in text and _LOOKS.search(text):
                negated = isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not)
                look = test.expression if isinstance(test, cst.UnaryOperation) else test
                alone = isinstance(look, cst.Call) and _LOOKS.search(self.module.code(look.func) + "(")
                return taken != negated if alone else None
        return None

    def _site_of_all(self, function: cst.FunctionDef) -> CallSite | None:
        """The first call of a function that all ranks make at once, and none of them alone before."""
        project, sites = self.module.project, self._sites(function)
        if project is None or any(s.around and is_prepared_alone(s.facts, s.around.name) for s in sites):
            return None
        together = (site for site in sites if all_ranks_call(site, project))
        return next((s for s in together if s.around and not is_before_fit(s.facts, project, s.node, s.around)), None)

    def _waits(self, call: cst.Call) -> bool:
        """Whether ranks wait for each other in a call, or in what a function of the project calls itself."""
        name, project = self.module.callee(call), self.module.project
        found = project.meanings.definition(project.meanings.canonical(name)) if name and project is not None else None
        inside = calls_below(found[1]) if found is not None else ()
        names = (self.module.code(call.func), *(dotted_ast(n.func) for n in inside))
        return any(map(IN_TURN.search, names))

    def _sites(self, function: cst.FunctionDef) -> tuple[CallSite, ...]:
        """The calls of a function; where the constructor of its class calls it, those that make the object."""
        owner, name = self.module.class_of(function), function.name.value
        if owner is None:
            return call_sites(self.module, function)
        made = next((f for f in self.module.of_type(cst.FunctionDef) if self._constructs(f, owner)), None)
        if made is not function:
            named = (dotted(call.func) for call in calls_in(made.body)) if made is not None else ()
            if f"self.{name}" not in named:
                return tuple(self._sites_of_method(function, owner))
        return constructions(self.module, owner)

    def _sites_of_method(
        self, function: cst.FunctionDef, owner: cst.ClassDef, above: int = _METHODS
    ) -> Iterator[CallSite]:
        """The calls of a method on objects that are known to be of its class, also by another method of theirs."""
        for site in call_sites(self.module, function):
            on = site.node.func.value if isinstance(site.node.func, ast.Attribute) else None
            if on is None or site.around is None:
                continue
            if dotted_ast(on) != "self":
                if self._is_of(on, site, owner):
                    yield site
            elif above and site.facts is self.module.facts and not _in_turns(self.module.project, site, site.around):
                methods = (f for f in self.module.of_type(cst.FunctionDef) if self.module.class_of(f) is owner)
                by = next((f for f in methods if f.name.value == site.around.name), None)
                yield from self._sites_of_method(by, owner, above - 1) if by is not None else ()

    def _is_of(self, on: ast.expr, site: CallSite, owner: cst.ClassDef) -> bool:
        """Whether an expression is an object of a class of this file, or the one that the file keeps for all who
        import it: ``loader = Loader()``."""
        project, facts = self.module.project, self.module.facts
        if project is None or facts is None:
            return False
        if project.types.of(on, site.facts, site.around, None, _DEPTH) == self.module.name_of(owner):
            return True
        made = ((n.targets[0], n.value) for n in facts.tree.body if isinstance(n, ast.Assign))
        own = (t for t, v in made if isinstance(v, ast.Call) and dotted_ast(v.func) == owner.name.value)
        return project.meanings.of(site.facts, on) in {f"{facts.name}.{dotted_ast(target)}" for target in own}

    def _constructs(self, function: cst.FunctionDef, owner: cst.ClassDef) -> bool:
        return function.name.value == "__init__" and self.module.class_of(function) is owner

    def _written(self, calls: Iterable[cst.Call]) -> Iterator[tuple[str, cst.Call]]:
        for call in calls:
            paths = _WRITES.paths(self.module, call)
            if paths and on_one_rank(self.module, call):
                yield from ((path, call) for path in paths)

    def _written_by_first(self, call: cst.Call) -> str:
        """What a function of the project writes on the first rank alone, with all that it is given:
        ``def save_on_master(*args): if is_main_process(): torch.save(*args)``."""
        helper = helper_of(self.module, call) if _OF_ONE.search(called(call)) else None
        if helper is None or helper.function.args.vararg is None or helper.function.args.args:
            return ""
        for inner in calls_below(helper.function):
            place = _WRITES.functions.get(helper.facts.qualified(inner.func))
            given = inner.args[0].value if inner.args and isinstance(inner.args[0], ast.Starred) else None
            if place is None or dotted_ast(given) != helper.function.args.vararg.arg:
                continue
            path = argument(call, *place)
            kept = is_kept_to_one_rank(self.module.project, helper.facts, inner, helper.function)
            return plain_path(self.module.code(path)) if path and kept else ""
        return ""

    def _read(self, call: cst.Call) -> set[str]:
        """What all ranks read here; not in a function that has a test for the first rank."""
        found = _READS.paths(self.module, call)
        if not found or on_one_rank(self.module, call):
            return set()
        helper = helper_of(self.module, call)
        tests = (n.test for n in walk(helper.function) if isinstance(n, ast.If | ast.IfExp)) if helper else ()
        own = own_ranks(self.module)
        kept = any(first_rank_test(ast.unparse(test), taken, own) for test in tests for taken in (True, False))
        return set() if kept else found

    def _reads(self, call: cst.Call, name: str) -> bool:
        path = _READS.path(self.module, call)
        return path is not None and self.module.code(path) == name and not on_one_rank(self.module, call)

    def _is_raced(self, calls: list[cst.Call], write: cst.Call, read: cst.Call) -> bool:
        """Whether the read is behind the write, on a way from it, and nothing between the two waits."""
        wraps = self.module.wraps
        if not wraps.follows(read, write) or opposed(self.module, write, read):
            return False
        between = [c for c in calls if wraps.follows(c, write) and not wraps.follows(c, read) and c is not read]
        if any(_WAITS.search(called(c)) or _WAITS.search(self.module.code(c.func)) for c in between):
            return False
        helpers = filter(None, (helper_of(self.module, call) for call in (write, *between, read)))
        inner = (n.func for helper in helpers for n in calls_below(helper.function))
        if any(_WAITS.search(ast.unparse(function)) for function in inner):
            return False
        tests = (up.test for up in self.module.ancestors(read) if isinstance(up, cst.If))
        return not any(_WAITS.search(self.module.code(test)) for test in tests)


def _in_turns(project: Project | None, site: CallSite, around: FunctionNode) -> bool:
    """Whether one rank alone makes a call, or a function that has ranks wait for each other."""
    waits = any(last_part(each.func) in BARRIERS for each in calls_below(around))
    return waits or is_kept_to_one_rank(project, site.facts, site.node, around)


def _words(test: cst.BaseExpression) -> Iterator[str]:
    """The names and texts in a test: cheaper than its code."""
    for node in subtree(test):
        if isinstance(node, cst.Name | cst.SimpleString):
            yield node.value

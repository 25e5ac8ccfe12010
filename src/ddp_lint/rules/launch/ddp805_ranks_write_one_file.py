from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.launch.callers import CallSite, call_sites
from ddp_lint.launch.joining import joining_functions
from ddp_lint.launch.on_all_ranks import reached_by_all
from ddp_lint.launch.one_process import as_one_process
from ddp_lint.launch.one_rank import is_kept_to_one_rank, on_one_rank
from ddp_lint.launch.own_paths import comes_from, is_given_own, is_of_each, is_own_path, parameters_given_own
from ddp_lint.launch.ranks import runs_alone
from ddp_lint.launch.shown_in_file import EVERY_RANK, WORDS, ShownInFile
from ddp_lint.launch.waiting import ends_while_others_wait
from ddp_lint.launch.written_paths import MAKING, REMOVING, WRITING, Outcome, WrittenPaths
from ddp_lint.rules.base import Rule
from ddp_lint.rules.launch.made_before import is_made_before
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import calls_below
from ddp_lint.source.tree import names_in

#: How the same call ends on the other ranks, and what to do instead.
_OUTCOMES = {
    Outcome.WRITTEN: (
        "their bytes mix, or only the last write remains",
        "write on rank 0 only and let the others wait, or put the rank into the path",
    ),
    Outcome.MADE: ("all but the first fail with FileExistsError", "exist_ok=True"),
    Outcome.REMOVED: (
        "all but the first fail with FileNotFoundError",
        "remove it on rank 0 only and let the others wait",
    ),
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
    objects, and the constructors of those that it makes. Besides `torch.save` and `open`, the files of
    `logging.FileHandler(path, "w")`, `logging.basicConfig(filename=..., filemode="w")`, `Config.dump` of mmcv and
    mmengine, and `save_pretrained` of tokenizers and processors count.

    For folders and removals it is enough that a loop calls it beside the function that has the backward, that the
    function reads its rank, calls `accelerator.prepare`, or communicates itself, or that a function of another file,
    which every rank runs, calls it without such a test. `mkdir()` and `unlink()` of a `pathlib.Path` are read as well.
    What all ranks download is [DDP812](DDP812.md).

    ## Why it breaks

    Rank 0 and rank 1 open one file for writing and interleave their bytes: the checkpoint that resumes the job cannot
    be read (`invalid header or archive is corrupted`), or has the state of the rank that wrote last. `os.makedirs`
    succeeds on the first rank and raises `FileExistsError` on the others; `os.remove` and `shutil.rmtree` raise
    `FileNotFoundError` there, also after a test of `os.path.exists`, because all ranks test before one of them acts.

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

    Writes under a test for the rank or a lock for all processes (`with FileLock(path)`), folders that the ranks ask for
    in such an order, that all ranks have made before with `exist_ok` where a test asks for them, or that hold a file
    which is loaded next, calls in a `try` that does not raise again, paths with the rank (or a temporary name, the time
    to the microsecond, or what a function of the project makes with `uuid4()`) in them, paths of single samples,
    helpers that a caller may guard, or calls in the process that starts the ranks, tests, and distributed checkpoints,
    which are written by all ranks on purpose; files that are only emptied (`with open(path, "w"): pass`), if no rank
    writes to them before all have met. A function whose name a later one takes is not run. A function of the project
    that returns whether this is the first rank counts as such a test, as does a setting that is one wherever the
    project makes it (`params["saves"] = rank == 0`). What the first rank writes before it ends the program while the
    others wait for it in a barrier. Code that only programs without a group come to, where others of the project make
    one.

    Only with `--preview`: programs of one process do all of this, too, and which of them are started with several is
    often not in the code. On public code that nobody had read, half of the findings were false.

    ## How to confirm

    `ddp-lint verify train.py`: a rank raises `FileExistsError`, or ranks write one path with no collective between
    them, also where both writes succeeded this time.

    ## Fix safety

    No fix: the following code may need all ranks to wait for the file.

    ## References

    - https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(*WRITING, *MAKING, *REMOVING, file=(*WORDS, *MAKING, *WRITING), tests=False)
    of_several = True
    oracles = ("files", "exception")

    def start(self) -> None:
        self._paths, self._shown = WrittenPaths(self.module), ShownInFile(self.module)
        found = (call for call in self.module.of_type(cst.Call) if self._paths.of(call) is not None)
        self._writing = {self.module.function_of(call) for call in found}

    def visit_Module(self, node: cst.Module) -> None:
        calls = list(calls_in(node)) if None in self._writing else []
        shown = self._shown.at_top(calls)
        if shown is not None and not on_one_rank(self.module, shown.call):
            self._look_at(calls, shown.call)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        calls = list(calls_in(node.body)) if node in self._writing else []
        if not any(self._paths.of(call) is not None for call in calls):
            return
        shown, left = self._shown.of(node), calls
        if shown is not None:
            counted = [c for c in shown.of(calls) if shown.surely or self._paths.outcome(c) is not Outcome.WRITTEN]
            if not on_one_rank(self.module, shown.call):
                self._look_at(counted, shown.call, shown.open)
            left = [call for call in calls if call not in set(counted)]
        elif self._visit_helper(node, calls):
            return
        written = [(call, path) for call in left if (path := self._paths.of(call)) is not None]
        reached = reached_by_all(self.module, node) if written else None
        if reached is not None:
            given = parameters_given_own(node, reached.way)
            shared = [(c, path) for c, path in written if not comes_from(self.module, path, given)]
            of_all = [c for c, path in shared if not is_of_each(self.module, c, path, node, reached.way)]
            self._look_at(of_all, reached.span, doubtful=True)

    def _look_at(
        self, calls: list[cst.Call], every: cst.Call | Span, given: Iterable[str] = (), *, doubtful: bool = False
    ) -> None:
        """Report what the ranks that come by a call write, make or remove in the same function; `given` are the
        parameters that may be each rank's own."""
        reported: set[cst.CSTNode] = set()
        for call in calls:
            path = self._paths.of(call)
            # ``torch.save(x, open(path, "wb"))``, ``with open(path, "wb") as file: torch.save(x, file)``
            opened = (b.value for b in self.module.bindings(path)) if isinstance(path, cst.Name) else ()
            inside = any(up in reported for up in (*self.module.ancestors(call), *opened))
            if path is not None and not inside and names_in(path).isdisjoint(given) and self._is_of_all(call, path):
                reported.add(call)
                self._report(call, every, doubtful=doubtful)

    def _is_of_all(self, call: cst.Call, path: cst.BaseExpression) -> bool:
        """Whether neither a test nor its path keeps a call to one of the ranks that come by."""
        alone = on_one_rank(self.module, call) or as_one_process(self.module, call)
        return not alone and not is_own_path(self.module, path)

    def _visit_helper(self, function: cst.FunctionDef, calls: list[cst.Call]) -> bool:
        """Report folders that a helper makes or removes for a function of another file that every rank runs."""
        for call in calls:
            path = self._paths.of(call) if self._paths.outcome(call) is not Outcome.WRITTEN else None
            if path is None or not self._is_of_all(call, path):
                continue
            found = call_sites(self.module, function)
            site = next((s for s in found if self._is_for_ranks(s, function, path)), None)
            if site is not None:
                self._report(call, site.span)
                return True
        return False

    def _is_for_ranks(self, site: CallSite, function: cst.FunctionDef, path: cst.BaseExpression) -> bool:
        """Whether a call of a helper is made by every rank, for one and the same path of a call in it."""
        project, around = self.module.project, site.around
        if project is None or around is None or is_given_own(self.module, site, function, path):
            return False
        every = {*EVERY_RANK, *joining_functions(project, starting=False)}
        joins = any(project.meanings.of(site.facts, n.func) in every for n in calls_below(around))
        kept = is_kept_to_one_rank(project, site.facts, site.node, around)
        return joins and self.module.class_of(function) is None and not kept

    def _report(self, call: cst.Call, every: cst.Call | Span, *, doubtful: bool = False) -> None:
        if runs_alone(self.module, call) or ends_while_others_wait(self.module, call):
            return
        outcome, path = self._paths.outcome(call), self._paths.of(call)
        if outcome is Outcome.MADE and path is not None and is_made_before(self.module, call, path):
            return
        ends, help_ = _OUTCOMES[outcome]
        # Of files that all ranks write, four in ten first readings were false: programs of one process write them, too.
        self.report(
            call,
            f"every rank {outcome.value} this path at the same time: {ends}",
            confidence=Confidence.LOW if doubtful or outcome is Outcome.WRITTEN else None,
            labels=[(every, "every rank runs this function")],
            help=help_,
        )

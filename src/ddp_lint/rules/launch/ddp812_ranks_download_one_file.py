from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.launch.callers import CallSite, calls_in_file, sites_in_project, sites_of
from ddp_lint.launch.downloads import Download, Downloads, comes_with, words
from ddp_lint.launch.joining import is_before_fit, is_done_before_ranks, is_prepared_alone
from ddp_lint.launch.locks import is_called_in_turn, is_way_in_turn
from ddp_lint.launch.on_all_ranks import calls_of_all_lead_to, reached_by_all
from ddp_lint.launch.one_process import as_one_process
from ddp_lint.launch.one_rank import all_ranks_call, is_on_first, on_one_rank
from ddp_lint.launch.own_paths import comes_from, is_given_own, is_of_each, is_own_path, parameters_given_own
from ddp_lint.launch.ranks import runs_alone
from ddp_lint.launch.shown_in_file import ShownInFile
from ddp_lint.launch.unjoined import group_comes_later
from ddp_lint.launch.waiting import ends_while_others_wait
from ddp_lint.project import Project
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.control_flow import conditions_at
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import names_in

#: Other downloads of a function that are shown with the first one, and functions with other parts of its data set.
_OTHERS = 3


class RanksDownloadOneFile(Rule):
    """All ranks download the same file or data set, or unpack the same archive, at the same time.

    ## What it does

    Finds data sets of torchvision with `download=True`, `urlretrieve(url, path)`, what a function requests and writes
    to `open(path, "wb")` by itself, `wget -O` and `curl -o` in `subprocess` and `os.system`, and `extractall` of an
    archive, outside of any test for the rank, in a function that every rank runs: it creates the process group, wraps
    the model, communicates, reads its rank or trains, or is called by such a function, also in another file. A test for
    whether the file is there does not help. Also a download under a test for rank 0 that takes each process for rank 0
    where there is no group (`dist.get_rank() if dist.is_initialized() else 0`), in a function that is called before the
    group is made. Each function has one finding, at its first download.

    ## Why it breaks

    In the first run on a machine no rank finds the file, and all of them download it to one path. A download that
    another rank begins anew empties the file that the first one is about to check or to read: "File not found or
    corrupted" (measured with two processes, the second a second later). A rank that comes later finds a file, or a
    folder, of which a part is there, and takes it for the whole: `BadZipFile`, `EOFError`, a data set with fewer
    samples than the other ranks have. It works on the machine of the author, where the data has long been there.

    ## Example

    ```python
    import os
    import pathlib
    import urllib.request

    import torch.distributed as dist

    SOURCE = pathlib.Path(__file__).resolve().as_uri()  # in place of https://...


    def main():
        dist.init_process_group("gloo")
        folder = os.path.join(os.path.expanduser("~"), ".cache")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"ddp_lint_data_{os.environ['MASTER_PORT']}")
        urllib.request.urlretrieve(SOURCE, path)  # <- DDP812
        with open(path, "rb") as file:
            print(len(file.read()), "bytes")
        dist.destroy_process_group()


    main()
    ```

    ## Use instead

    ```python
    import os
    import pathlib
    import urllib.request

    import torch.distributed as dist

    SOURCE = pathlib.Path(__file__).resolve().as_uri()  # in place of https://...


    def main():
        dist.init_process_group("gloo")
        folder = os.path.join(os.path.expanduser("~"), ".cache")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"ddp_lint_data_{os.environ['MASTER_PORT']}")
        if dist.get_rank() == 0 and not os.path.exists(path):  # LOCAL_RANK where nodes share no disk
            urllib.request.urlretrieve(SOURCE, path)
        dist.barrier()
        with open(path, "rb") as file:
            print(len(file.read()), "bytes")
        dist.destroy_process_group()


    main()
    ```

    ## When it is silent

    Downloads under a test for the rank, beside one of the first rank or a barrier of some ranks, under a lock for all
    processes (`with FileLock(path)`), in `with main_process_first()`, or by the process that starts the ranks; paths
    with the rank (or a temporary name) in them; downloads to another name that is then put in place (`os.replace`), as
    those of `torch.hub`, `huggingface_hub` and `gdown` are; files of single samples. Code that only programs without a
    group come to, where others of the project make one. What all ranks write by themselves is
    [DDP805](DDP805.md).

    ## How to confirm

    `ddp-lint verify train.py`: ranks write one path with no collective between them, also where all downloads
    succeeded this time. Remove the data first.

    ## Fix safety

    No fix: all ranks have to come by the barrier behind the download.

    ## References

    - https://docs.pytorch.org/vision/stable/datasets.html
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(*words(), tests=False)
    of_several = True
    oracles = ("files", "exception")

    def start(self) -> None:
        self._shown = ShownInFile(self.module)
        self._downloads: dict[cst.FunctionDef | None, list[Download]] = {}
        self._every: dict[cst.FunctionDef | None, list[Download]] = {}  # also those of which the ranks take turns
        downloads = Downloads(self.module)
        for call in self.module.of_type(cst.Call):
            for kept, found in ((self._every, downloads.whoever_runs(call)), (self._downloads, downloads.of(call))):
                if found is not None:
                    kept.setdefault(self.module.function_of(call), []).append(found)

    def visit_Module(self, node: cst.Module) -> None:
        shown = self._shown.at_top(calls_in(node)) if None in self._downloads else None
        if shown is not None and not on_one_rank(self.module, shown.call):
            self._report(self._of_all(None), shown.call)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if self._visit_unjoined(node):
            return
        found = self._of_all(node)
        shown = self._shown.of(node) if found else None
        if shown is not None and not on_one_rank(self.module, shown.call):
            calls = set(shown.of(list(calls_in(node.body))))
            shared = [d for d in found if d.call in calls and names_in(d.path).isdisjoint(shown.open)]
            if shared:
                self._report(shared, shown.call)
                return
        sites = self._sites_of_all(node) if found else ()
        site = next((s for d in found for s in sites if self._is_for_ranks(s, node, d)), None)
        if site is not None:
            self._report([d for d in found if not is_given_own(self.module, site, node, d.path)], site.span)
        elif found:
            self._visit_reached(node, found, {site.node for site in sites})

    def _visit_unjoined(self, function: cst.FunctionDef) -> bool:
        """Report a download under a test for the first rank that holds on all of them: there is no group yet."""
        for download in self._every.get(function, []):
            if not on_one_rank(self.module, download.call) or is_own_path(self.module, download.path):
                continue
            found = group_comes_later(self.module, download.call)
            if found is not None:
                self.report(
                    download.call,
                    "every process takes itself for rank 0 here, as there is no group yet: all download to this path",
                    labels=[
                        (found.site.span, "called before the group is made"),
                        (found.site.facts.file.span_of(found.joins), "makes the group"),
                    ],
                    help="make the process group first, or ask for the rank by the variable RANK",
                )
                return True
        return False

    def _visit_reached(self, function: cst.FunctionDef, found: list[Download], calls: set[ast.Call]) -> None:
        """Report the downloads of a function that all ranks run by way of others, if by one of its calls."""
        reached = reached_by_all(self.module, function)
        way = reached.way if reached is not None else ()
        if reached is None or any(map(is_called_in_turn, way)) or any(site.node not in calls for site in way[:1]):
            return
        given = parameters_given_own(function, way)
        shared = [d for d in found if not comes_from(self.module, d.path, given)]
        self._report(
            [d for d in shared if not is_of_each(self.module, d.call, d.path, function, way)],
            reached.span,
            doubtful=True,
        )

    def _of_all(self, function: cst.FunctionDef | None) -> list[Download]:
        """The downloads of a function that neither a test nor their path keeps to one of the ranks that come by."""
        found = self._downloads.get(function, [])
        if found and function is not None and self.module.facts is not None:
            found = [] if is_prepared_alone(self.module.facts, function.name.value) else found
        return [
            download
            for download in found
            if not on_one_rank(self.module, download.call)
            and not as_one_process(self.module, download.call)
            and not is_own_path(self.module, download.path)
            and not runs_alone(self.module, download.call)
            and not ends_while_others_wait(self.module, download.call)
            and (function is None or not self._is_there(download, function))
        ]

    def _sites_of_all(self, function: cst.FunctionDef) -> list[CallSite]:
        """The calls of a function without those that one rank makes, or lets the others make behind it. None where one
        process has prepared the data before, as the one that spawns the ranks."""
        project, sites = self.module.project, sites_of(self.module, function)
        if project is None or any(_is_prepared(project, site) or self._is_by_first(project, site) for site in sites):
            return []
        kept = {site.node: site.around for site in sites if is_on_first(self.module, site.facts, site.node)}
        left = [site for site in sites if site.node not in kept and not is_way_in_turn(project, site)]
        return [
            site
            for site in left
            if not any(around is site.around and first.lineno < site.node.lineno for first, around in kept.items())
            and not (site.around and is_before_fit(site.facts, project, site.node, site.around))
        ]

    def _is_by_first(self, project: Project, site: CallSite) -> bool:
        """Whether a call is in a function that one rank alone calls: ``if rank == 0: download()``."""
        above = sites_in_project(project, site.facts, site.around) if site.around is not None else ()
        return bool(above) and all(is_on_first(self.module, each.facts, each.node) for each in above)

    def _is_there(self, download: Download, function: cst.FunctionDef) -> bool:
        """Whether each rank has another part of the same data set already, from a function that is called above."""
        others = (f for f, found in self._downloads.items() if f is not None and f is not function and found)
        same = (f for f in others if any(comes_with(self.module, download, d) for d in self._downloads[f]))
        above = [site for each in itertools.islice(same, _OTHERS) for site in sites_of(self.module, each)]
        sites = sites_of(self.module, function) if above else ()
        return bool(sites) and all(any(_comes_behind(site, each) for each in above) for site in sites)

    def _is_for_ranks(self, site: CallSite, function: cst.FunctionDef, download: Download) -> bool:
        """Whether a call of a function is made by every rank, for one and the same path of a download in it."""
        project = self.module.project
        if project is None or site.around is None or is_given_own(self.module, site, function, download.path):
            return False
        if download.data_set:
            return all_ranks_call(site, project)
        # Where one rank fetches, another call is for one process: ``if is_initialized(): .. else: fetch()``.
        alone = any(on_one_rank(self.module, each) for each in calls_in_file(self.module, function))
        return not alone and calls_of_all_lead_to(project, site)

    def _report(self, found: Sequence[Download], every: cst.Call | Span, *, doubtful: bool = False) -> None:
        """Report the first download of a function, and where the others are. What is fixed for it is so for them."""
        first = next((d for d in found if not self._meets_no_run(d.call)), found[0] if found else None)
        if first is None:
            return
        does, meanwhile = ("unpacks", "reads") if first.unpacks else ("downloads", "checks or reads")
        others = [(d.call, "and here") for d in found if d is not first and not d.unpacks][:_OTHERS]
        self.report(
            first.call,
            f"every rank {does} to this path at the same time: one {meanwhile} what another still writes",
            confidence=Confidence.LOW if doubtful else None,
            labels=[(every, "every rank runs this function"), *others],
            help="do it on rank 0 first, behind dist.barrier() on the others",
        )


def _is_prepared(project: Project, site: CallSite) -> bool:
    """Whether one process makes a call before the others come to what it calls."""
    around = site.around
    if around is not None and is_prepared_alone(site.facts, around.name):
        return True
    return is_done_before_ranks(site.facts, project, site.node, around)


def _comes_behind(site: CallSite, other: CallSite) -> bool:
    """Whether a call is behind another one in the same function, which is under no more tests."""
    around = site.around
    if around is None or other.around is not around:
        return False
    if (other.span.line, other.span.column) >= (site.span.line, site.span.column):
        return False
    tests, others = (
        {(cst.Module(()).code_for_node(test), taken) for test, taken in conditions_at(around, each.node)}
        for each in (site, other)
    )
    return others <= tests

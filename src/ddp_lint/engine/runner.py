"""Files in, findings out."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ddp_lint.config import Settings
from ddp_lint.engine.cache import Cache
from ddp_lint.engine.report import FileResult, Report
from ddp_lint.engine.scheduling import processes_for, size_of
from ddp_lint.findings import Finding
from ddp_lint.gc_tuning import rare_collections
from ddp_lint.grouping import words_of
from ddp_lint.project import Project
from ddp_lint.project.layout import FILES_LIMIT
from ddp_lint.rules.registry import following_calls
from ddp_lint.source import SourceFile, Unreadable
from ddp_lint.source.file import normalised

if TYPE_CHECKING:
    from ddp_lint.project.communication import Reach

#: A look at the whole project pays where a run checks at least so many files or bytes, and one in `_SHARE` of the
#: project's bytes: to evaluate the functions of a file takes some ten times as long as to see what a file mentions.
_MANY_FILES, _MANY_BYTES, _SHARE = 12, 100_000, 8


def check_paths(
    paths: Sequence[pathlib.Path],
    settings: Settings,
    *,
    jobs: int | None = None,
    cache_dir: pathlib.Path | None = None,
    done: Callable[[], None] = lambda: None,
    project: Project | None = None,
) -> Report:
    """Check files. `jobs`: processes, None for as many as pay off; `cache_dir`: where results are kept, None for
    nowhere. The report does not depend on `jobs` and the cache. `done` is called once for every file, when it is
    checked or about to be. `project`: the one to use, which then knows what the run has learned of it."""
    files = list(dict.fromkeys(path.absolute() for path in paths))
    project = project or Project(settings.root, names=settings.names)
    cache = Cache(cache_dir, settings, project) if cache_dir else None
    reach = _ReachOfRun(project, settings, cache)
    if cache:
        project.communication.find_reach_by(lambda: reach.known(files))
        project.outcomes.find_earlier_by(cache.outcomes)
    kept = _kept(files, cache, done) if cache else {}
    results = dict(kept)
    shown = {project.paths.shown(path): path for path in files}
    left = [path for path in files if path not in kept]
    check = _Check(settings, project, reach, done, cache is not None)
    for result in check.results(left, jobs) if left else ():
        path = shown[result.path]
        results[path] = result.without_basis()
        if cache:
            cache.put(path, result)
    report = Report.of([results[path] for path in files])
    if cache:
        for word in words_of(report.findings):
            project.contents.holding(word)
        cache.save()
    return report


class _ReachOfRun:
    """What can communicate in the project, learned by a look at all of its files where a run checks many of them."""

    def __init__(self, project: Project, settings: Settings, cache: Cache | None) -> None:
        self._project = project
        self._cache = cache
        self._wanted = not settings.enabled.isdisjoint(following_calls())

    def is_wide(self, files: Sequence[pathlib.Path]) -> bool:
        """Whether a run that checks these files checks much of the project."""
        size = sum(map(size_of, files))
        if len(files) < _MANY_FILES and size < _MANY_BYTES:
            return False
        return size * _SHARE >= sum(size_of(path) for path in self._project.layout.files())

    def _evaluates_much(self, files: Sequence[pathlib.Path]) -> bool:
        """Whether those of the files that use a framework, which alone are evaluated, are much of the project."""
        left = sum(size_of(path) for path in self._project.layout.files()) // _SHARE
        for path in files:
            if self._project.communication.uses_frameworks(self._project.paths.inside(path)):
                left -= size_of(path)
            if left <= 0:
                return True
        return False

    def known(self, files: Sequence[pathlib.Path]) -> Reach | None:
        """For a run that checks these files; None where the look costs more than it saves."""
        if self._project.communication.reach is not None or not self._wanted:
            return self._project.communication.reach
        paths = self._project.layout.files()
        if len(paths) >= FILES_LIMIT:
            return None
        wide = self.is_wide(files)
        if not wide and self._cache is None:
            return None
        from ddp_lint.program import Place, index

        place = Place(str(self._project.root), self._cache.folder if self._cache else None)
        self._project.communication.reach = index(
            paths, self._project.own.names, place, read=lambda: wide and self._evaluates_much(files)
        )
        return self._project.communication.reach


def _kept(files: list[pathlib.Path], cache: Cache, done: Callable[[], None]) -> dict[pathlib.Path, FileResult]:
    """What the cache knows."""
    found = {}
    for path in files:
        if result := cache.get(path):
            found[path] = result
            done()
    return found


@dataclasses.dataclass(frozen=True)
class _Check:
    """Checks files that no earlier run knows."""

    settings: Settings
    project: Project
    reach: _ReachOfRun
    done: Callable[[], None]
    for_cache: bool

    def results(self, files: list[pathlib.Path], jobs: int | None) -> Iterator[FileResult]:
        """The results for files, in any order, from `jobs` processes."""
        with rare_collections():
            reach = self.reach.known(files)
        processes = processes_for(jobs, sum(map(size_of, files)), len(files))
        if processes > 1:
            from ddp_lint.engine import pool

            if self.reach.is_wide(files):
                self.project.contents.prepare_search()
            checked = pool.Checked(self.settings, self.for_cache, reach, self.project)
            yield from pool.run(files, processes, checked, self.done)
            return
        from ddp_lint.engine.checking import Checker  # not where the cache knows it all

        checker = Checker(self.settings, for_cache=self.for_cache, reach=reach, project=self.project)
        with rare_collections():
            for path in files:
                self.done()
                yield checker.check(path)


def check_text(text: str, path: pathlib.Path, settings: Settings, *, cache_dir: pathlib.Path | None = None) -> Report:
    """Check text that need not be on disk as if it were the content of `path` (standard input). `cache_dir`:
    where earlier runs have kept what they know of this text and of the other files; nothing is written there."""
    path = path.absolute()
    project = Project(settings.root, names=settings.names)
    cache = Cache(cache_dir, settings, project) if cache_dir is not None else None
    shown = project.paths.shown(path)
    try:
        file = SourceFile.of_text(shown, text, project.paths.inside(path))
    except Unreadable as e:
        return Report.of([FileResult(shown, error=str(e))])
    if cache is not None and len(project.layout.files()) < FILES_LIMIT:
        from ddp_lint.program import Place, index

        place, unsaved = Place(str(project.root), cache.kept_in), {str(path): file.text}
        reach = functools.cache(
            lambda: index(project.layout.files(), project.own.names, place, read=lambda: False, unsaved=unsaved)
        )
        project.communication.find_reach_by(reach)
        if project.contents.digest_now(str(path)) == file.digest and (kept := cache.get(path)):  # what was saved
            return Report.of([kept])
        project.communication.reach = reach()
        project.modules.hold(path, file)
        project.outcomes.find_earlier_by(cache.outcomes)
        project.outcomes.of(file.inside)  # as long as questions are recorded
    from ddp_lint.engine.checking import Checker

    with rare_collections():
        return Report.of([Checker(settings, reach=project.communication.reach, project=project).check_file(file, path)])


def check_texts(
    texts: Mapping[pathlib.Path, str], wanted: Iterable[pathlib.Path], settings: Settings
) -> dict[pathlib.Path, tuple[Finding, ...]]:
    """Check the wanted ones of texts, each of which is taken as the content of its path, together: what one needs of
    the others is worked out once. The text of a notebook is its module (`Notebook.module`), at whose lines its findings
    are."""
    project = Project(settings.root, names=settings.names)
    places = {path: path.absolute() for path in texts}
    opened = {
        places[path]: SourceFile(
            project.paths.shown(places[path]), normalised(text), project.paths.inside(places[path])
        )
        for path, text in texts.items()
    }
    project.contents.take_instead(opened)
    from ddp_lint.engine.checking import Checker

    checker = Checker(settings, project=project)
    with rare_collections():
        return {path: checker.check_file(opened[places[path]], places[path]).findings for path in wanted}

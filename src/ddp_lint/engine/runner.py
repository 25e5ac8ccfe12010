"""Files in, findings out."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence

from ddp_lint.config import Settings
from ddp_lint.engine.cache import Cache
from ddp_lint.engine.garbage import rare_collections
from ddp_lint.engine.report import FileResult, Report
from ddp_lint.engine.shares import processes_for, size_of
from ddp_lint.project import Project
from ddp_lint.source import SourceFile, Unreadable


def check_paths(
    paths: Sequence[pathlib.Path],
    settings: Settings,
    *,
    jobs: int | None = None,
    cache_dir: pathlib.Path | None = None,
    done: Callable[[], None] = lambda: None,
) -> Report:
    """Check files. `jobs`: processes, None for as many as pay off; `cache_dir`: where results are kept, None for
    nowhere. The report is the same whatever `jobs` and the cache say. `done` is called once for every file, when it is
    checked or about to be."""
    files = list(dict.fromkeys(path.absolute() for path in paths))
    project = Project(settings.root, names=settings.names)
    cache = Cache(cache_dir, settings, project) if cache_dir else None
    kept = _kept(files, cache, done) if cache else {}
    results = dict(kept)
    shown = {project.shown(path): path for path in files}
    new = [path for path in files if path not in kept]
    for result in _check(new, settings, jobs, done, for_cache=cache is not None):
        path = shown[result.path]
        results[path] = result
        if cache:
            cache.put(path, result)
    if cache:
        cache.save()
    return Report.of([results[path] for path in files])


def _kept(files: list[pathlib.Path], cache: Cache, done: Callable[[], None]) -> dict[pathlib.Path, FileResult]:
    """What the cache knows."""
    found = {}
    for path in files:
        if result := cache.get(path):
            found[path] = result
            done()
    return found


def _check(
    files: list[pathlib.Path], settings: Settings, jobs: int | None, done: Callable[[], None], *, for_cache: bool
) -> Iterator[FileResult]:
    processes = processes_for(jobs, sum(map(size_of, files)), len(files)) if files else 1
    if processes > 1:
        from ddp_lint.engine import pool

        yield from pool.run(files, settings, processes, done, for_cache=for_cache)
    elif files:
        from ddp_lint.engine.checking import Checker  # not where the cache knows it all

        checker = Checker(settings, for_cache=for_cache)
        with rare_collections():
            for path in files:
                done()
                yield checker.check(path)


def check_text(text: str, path: pathlib.Path, settings: Settings) -> Report:
    """Check text that is not (yet) on disk as if it were the content of `path`: standard input, flake8."""
    return _check_as(path, settings, lambda shown, inside: SourceFile.of_text(shown, text, inside))


def check_module(module: str, path: pathlib.Path, settings: Settings) -> Report:
    """Check what `Notebook.module` makes of the notebook at `path`; findings are at lines of the module."""
    return _check_as(path, settings, lambda shown, inside: SourceFile(shown, module, inside))


def _check_as(path: pathlib.Path, settings: Settings, read: Callable[[str, str], SourceFile]) -> Report:
    from ddp_lint.engine.checking import Checker

    path = path.absolute()
    checker = Checker(settings)
    shown = checker.project.shown(path)
    try:
        file = read(shown, checker.project.inside(path))
    except Unreadable as e:
        return Report.of([FileResult(shown, error=str(e))])
    return Report.of([checker.check_file(file, path)])

"""Which files a run is about: folders are searched for Python files and for the scripts and settings of launchers that
some rule reads; files that are named are taken as they are.
"""

from __future__ import annotations

import codecs
import dataclasses
import errno
import fnmatch
import os
import pathlib
import re
from collections.abc import Iterable, Iterator

from ddp_lint.config import LIMIT, ConfigError, Configuration, Settings
from ddp_lint.files import absolute, read, reason_of
from ddp_lint.globs import Globs, without
from ddp_lint.project.layout import DEPTH_LIMIT
from ddp_lint.rules.registry import is_for_rules, text_globs


@dataclasses.dataclass
class Discovered:
    """The files found (absolute, sorted, each once) with their settings, and what could not be looked into."""

    files: dict[pathlib.Path, Settings]
    errors: list[tuple[str, str]]

    def groups(self) -> Iterator[tuple[Settings, list[pathlib.Path]]]:
        """The files of each project that has settings of its own, in order."""
        groups: dict[int, tuple[Settings, list[pathlib.Path]]] = {}
        for file, settings in self.files.items():
            groups.setdefault(id(settings), (settings, []))[1].append(file)
        yield from groups.values()


def discover(paths: Iterable[str], configuration: Configuration) -> Discovered:
    """The files to check at and below `paths`.

    Below a folder, what `exclude` or a .gitignore leaves out is not entered, and symbolic links are not followed, so
    that loops do no harm. What is named is taken whatever it is called and wherever it lies, unless `force-exclude` is
    set. What a broken configuration file is responsible for is left out and reported under `errors`.
    """
    found: dict[pathlib.Path, Settings] = {}
    errors: dict[tuple[str, str], None] = {}
    for name in paths:
        path = absolute(name)
        try:
            os.stat(name)  # noqa: PTH116 (a Path of '' is the working directory)
            settings = configuration.of(path, path) if path.is_dir() else configuration.of(path.parent)
        except (OSError, ValueError, ConfigError) as e:
            errors[_row(name, e)] = None
            continue
        if is_left_out(path, settings):
            continue
        if path.is_dir():
            _search(path, configuration, found, errors)
        else:
            found[path] = settings
    return Discovered(dict(sorted(found.items())), list(errors))


def is_left_out(path: pathlib.Path, settings: Settings) -> bool:
    """Whether a file or folder (absolute) is left out although it is named.

    With force-exclude a tool has named it, which knows files by other marks than the rules do: pre-commit's YAML has
    the settings of clang-format in it.
    """
    if not settings.force_exclude:
        return False
    is_folder = path.is_dir()
    return any(globs.decide(str(path), is_folder) for globs in settings.exclude) or not (
        is_folder or _is_for_rules(path)
    )


def _is_for_rules(path: pathlib.Path) -> bool:
    try:
        first_line = read(path)[:200].partition(b"\n")[0].decode("utf-8", "replace")
    except OSError:  # for whoever reads it to report, or a name of standard input
        return True
    return is_for_rules(path.name, first_line)


def _search(
    start: pathlib.Path,
    configuration: Configuration,
    found: dict[pathlib.Path, Settings],
    errors: dict[tuple[str, str], None],
) -> None:
    """Put all files below `start` into `found`."""
    wanted = re.compile("|".join(map(fnmatch.translate, ("*.py", "*.ipynb", *text_globs())))).match
    above = tuple(without(globs, str(start)) for globs in _ignores_above(start))
    stack = [(start, above, 0)]
    while stack:
        folder, ignores, depth = stack.pop()
        try:
            if depth > DEPTH_LIMIT:
                raise OSError(errno.ENAMETOOLONG, "it is nested too deeply to be searched")
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
            settings = configuration.of(folder, start)
        except (OSError, ConfigError) as e:
            errors[_row(os.path.relpath(folder), e)] = None
            continue
        exclude = [without(globs, str(start)) for globs in settings.exclude]
        if settings.respect_gitignore:
            ignores = (*ignores, *_gitignore(folder / ".gitignore", folder))
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and not (wanted(entry.name) and entry.is_file(follow_symlinks=False)):
                continue
            if any(globs.decide(entry.path, is_folder, itself=True) for globs in exclude):
                continue
            if settings.respect_gitignore and _ignored(entry.path, is_folder, ignores):
                continue
            if is_folder:
                stack.append((pathlib.Path(entry.path), ignores, depth + 1))
            else:
                found[pathlib.Path(entry.path)] = settings


# ---- .gitignore


def _ignores_above(start: pathlib.Path) -> tuple[Globs, ...]:
    """The .gitignore files of the folders above `start` up to its repository, outermost first."""
    repository = next((folder for folder in (start, *start.parents) if (folder / ".git").exists()), start)
    above = [folder for folder in reversed(start.parents) if folder.is_relative_to(repository)]
    found = list(_gitignore(repository / ".git" / "info" / "exclude", repository))
    for folder in above:
        found += _gitignore(folder / ".gitignore", folder)
    return tuple(found)


def _gitignore(file: pathlib.Path, base: pathlib.Path) -> tuple[Globs, ...]:
    """The patterns of one ignore file (bytes, as names of files are); none where there is no such file."""
    try:
        lines = os.fsdecode(read(file, LIMIT).removeprefix(codecs.BOM_UTF8)).replace("\r\n", "\n").split("\n")
    except OSError:
        return ()
    return (Globs(base, tuple(line for line in lines if line.strip() and not line.startswith("#"))),)


def _ignored(path: str, is_folder: bool, ignores: tuple[Globs, ...]) -> bool:
    """Git's rule: the ignore file nearest to the path that has anything to say about it decides."""
    for globs in reversed(ignores):
        decision = globs.decide(path, is_folder, itself=True)
        if decision is not None:
            return decision
    return False


def _row(name: str, error: Exception) -> tuple[str, str]:
    if isinstance(error, ConfigError):
        return error.place, error.message
    return name, reason_of(error).lower()

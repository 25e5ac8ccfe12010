"""Which findings of a run are reported: those not in the baseline, those that touch a change, each cause once."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Sequence

from ddp_lint.baseline import DEFAULT, Baseline
from ddp_lint.changes import Change, since
from ddp_lint.cli.console import count, say
from ddp_lint.config import ConfigError, Settings
from ddp_lint.engine.report import Report
from ddp_lint.files import absolute, shown
from ddp_lint.findings import Finding
from ddp_lint.grouping import grouped
from ddp_lint.project import Project
from ddp_lint.touching import Touched

#: The largest number of obsolete rows of a baseline that are listed.
_LISTED = 5


@dataclasses.dataclass
class Part:
    """The files of one project that were checked with all rules, with its settings, and what was found in them and in
    those that depend on them."""

    settings: Settings
    files: list[pathlib.Path]
    report: Report
    project: Project
    #: What is left of the findings, each for itself.
    reported: list[Finding] = dataclasses.field(default_factory=list)


class Narrowing:
    """What is not reported, by the options. Raises ConfigError where that cannot be done."""

    def __init__(self, baseline: pathlib.Path | None, revision: str | None, staged: Sequence[str] | None) -> None:
        self._given = (baseline, revision, staged)
        self._file = baseline.absolute() if baseline else None
        self._change = _staged(staged) if staged is not None else since(revision) if revision else None
        self._touched = Touched(self._change) if self._change else None
        self._baselines: dict[pathlib.Path, Baseline] = {}
        self.hidden = 0

    def again(self) -> Narrowing:
        """The same for another run, after files have changed."""
        return Narrowing(*self._given)

    def files(
        self, settings: Settings, files: list[pathlib.Path], keep_in: pathlib.Path | None
    ) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
        """The files to check with all rules, and those that did not change themselves but depend on what did: there
        only rules that follow calls can have anything to report. `keep_in`: the folder of the cache."""
        if self._change is None:
            return files, []
        from ddp_lint.project.dependents import dependents

        changed = [path for path in self._change.lines if path.is_relative_to(settings.root)]
        depend = dependents(files, changed, Project(settings.root, names=settings.names), keep_in)
        return [path for path in files if path in self._change.lines], [path for path in files if path in depend]

    def reported(self, parts: Iterable[Part]) -> list[Finding]:
        """The findings to report, sorted."""
        found: list[Finding] = []
        for part in parts:
            part.reported = self._left(part)
            found += grouped(part.reported, part.project)
        return sorted(found, key=lambda f: f.sort_key)

    def _left(self, part: Part) -> list[Finding]:
        """The findings of a part that are neither in the baseline nor untouched by the change."""
        baseline = self._baseline(part.settings)
        left = baseline.new(part.report.findings) if baseline else part.report.findings
        self.hidden += len(part.report.findings) - len(left)
        return [finding for finding in left if self._touched is None or self._touched.by(finding)]

    # ---- the baseline

    def _baseline(self, settings: Settings) -> Baseline | None:
        file = self._file or settings.baseline
        if file is not None and file not in self._baselines:
            self._baselines[file] = Baseline.read(file)
        return self._baselines[file] if file is not None else None

    def say_gone(self, parts: Sequence[Part], *, prune: bool, color: str) -> None:
        """Tell of accepted findings that are no more, or take them out of their baselines. Raises ConfigError."""
        if prune and not self._baselines:
            raise ConfigError("--prune needs a baseline: name it with --baseline")
        for file, baseline in self._baselines.items():
            gone = sorted({row for part in parts for row in baseline.gone(part.files, part.settings.enabled)})
            if not gone:
                continue
            if prune:
                baseline.without(gone).write(self._within(parts[0].settings))
                say(f"{shown(file)}: {count(len(gone), 'finding')} removed", color)
                continue
            for row in gone[:_LISTED]:
                say(f"gone: {row.path}: {row.code} {row.message}", color)
            more = f" ({len(gone) - _LISTED} not listed)" if len(gone) > _LISTED else ""
            say(
                f"{count(len(gone), 'finding')} of {shown(file)} no longer occur{more}: remove them with --prune", color
            )

    def _within(self, settings: Settings) -> pathlib.Path | None:
        """The folder that a baseline is written in: what a configuration names lies in its project, what the user
        names lies anywhere."""
        return None if self._file else settings.root

    def write(self, parts: Sequence[Part], color: str) -> None:
        """Accept all findings of the files that were checked; what the baseline says of other files stays."""
        by_file: dict[pathlib.Path, list[Part]] = {}
        for part in parts:
            file = self._file or part.settings.baseline or pathlib.Path(DEFAULT).absolute()
            by_file.setdefault(file, []).append(part)
        for file, of_file in by_file.items():
            findings = [finding for part in of_file for finding in part.report.findings]
            before = Baseline.read(file) if os.path.exists(file) else Baseline(file)  # noqa: PTH110 (any name)
            new = before.renewed(findings, [path for part in of_file for path in part.files])
            new.write(self._within(of_file[0].settings))
            say(f"{shown(file)}: {count(len(new), 'finding')} accepted", color)


def _staged(named: Sequence[str]) -> Change:
    """What pre-commit's files have changed. It names changed files only, unless it runs on all or on some files: then
    they count as changed from end to end."""
    change = since(os.environ.get("PRE_COMMIT_FROM_REF") or "HEAD")
    paths = list(map(absolute, named))
    if any(path not in change.lines for path in paths):
        return Change({}).with_whole(paths)
    return Change({path: change.lines[path] for path in paths})

"""--add-ignore: comments that accept the findings of a run, with a reason to fill in."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ddp_lint.cli.console import failing_alone
from ddp_lint.config import Settings
from ddp_lint.discovery import Discovered
from ddp_lint.engine.runner import check_paths
from ddp_lint.files import shown
from ddp_lint.findings import Finding
from ddp_lint.fixes import Text
from ddp_lint.ignoring import with_ignores
from ddp_lint.rules.registry import rules_for_text


@dataclasses.dataclass
class Ignored:
    """How many findings got a comment, and in which files; which could get none; what could not be written."""

    findings: int = 0
    files: int = 0
    left: list[Finding] = dataclasses.field(default_factory=list)
    failures: list[tuple[str, str]] = dataclasses.field(default_factory=list)


def add_ignores(
    findings: Iterable[Finding], files: Mapping[pathlib.Path, Settings], jobs: int | None = None
) -> Ignored:
    """Write the comments. A file in which they would not do what they are for is as before in the end: all files are
    written and then checked together, as what one file needs of the others is worked out once for all of them."""
    by_file: dict[str, list[Finding]] = {}
    for finding in findings:
        by_file.setdefault(finding.span.path, []).append(finding)
    done = Ignored()
    written: dict[pathlib.Path, _Written] = {}
    for path, settings in files.items():
        wanted = by_file.get(shown(path), [])
        if not wanted:
            continue
        with failing_alone(path, "no comment can be added", done.failures):
            source = Text.read(path)
            text = _with_comments(source, wanted)
            if text == source.content:
                done.left += wanted
                continue
            source.write(text, settings.root)
            written[path] = _Written(source, wanted, settings)
    remaining = _found_in(written, jobs)
    for path, each in written.items():
        left = [finding for finding in each.wanted if _of(finding) in remaining]
        with failing_alone(path, "no comment can be added", done.failures):
            if left:  # the comments of the others stay
                kept = [finding for finding in each.wanted if _of(finding) not in remaining]
                each.source.write(_with_comments(each.source, kept), each.settings.root)
            done.left += left
            done.findings += len(each.wanted) - len(left)
            done.files += len(left) < len(each.wanted)
    return done


class _Written(NamedTuple):
    """A file that has its comments now, as it was before."""

    source: Text
    wanted: list[Finding]
    settings: Settings


def _with_comments(source: Text, findings: Iterable[Finding]) -> str:
    first_line = source.content.partition("\n")[0]
    return with_ignores(source.content, findings, python=not rules_for_text(source.path.name, first_line))


def _of(finding: Finding) -> tuple[str, str]:
    """What is the same of a finding wherever its line moves."""
    return finding.span.path, finding.fingerprint


def _found_in(written: Mapping[pathlib.Path, _Written], jobs: int | None) -> set[tuple[str, str]]:
    """What is found in the files now."""
    changed = Discovered({path: each.settings for path, each in written.items()}, [])
    reports = (check_paths(paths, settings, jobs=jobs) for settings, paths in changed.groups())
    return {_of(finding) for report in reports for finding in report.findings}

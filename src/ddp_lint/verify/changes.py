"""Which lines changed since a revision of git."""

from __future__ import annotations

import pathlib
import re
import subprocess
from collections.abc import Sequence

from ddp_lint.findings import Finding
from ddp_lint.verify.options import UsageError

_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def changed_only(findings: Sequence[Finding], revision: str, target: pathlib.Path) -> list[Finding]:
    """The findings of which a line changed since the revision; all without one. Raises UsageError where the git
    repository of the target knows no such revision, also when there are no findings."""
    if not revision:
        return list(findings)
    _known(target.resolve().parent, revision)
    lines = {path: changed_lines(pathlib.Path(path), revision) for path in {f.span.path for f in findings}}
    return [f for f in findings if _touches(lines[f.span.path], range(f.span.line, f.span.end_line + 1))]


def changed_lines(path: pathlib.Path, revision: str) -> set[int] | None:
    """The lines of the file, as it is now, that the revision does not have; None for a file that it does not know.

    Raises UsageError.
    """
    folder = path.resolve().parent
    _known(folder, revision)
    if _git(folder, "cat-file", "-e", f"{revision}:./{path.name}") is None:
        return None
    diff = _git(folder, "diff", "--no-ext-diff", "--no-color", "--unified=0", revision, "--", path.name) or ""
    hunks = [(int(start), int(count or 1)) for start, count in _HUNK.findall(diff)]
    return {line for start, count in hunks for line in range(start, start + count)}


def _known(folder: pathlib.Path, revision: str) -> None:
    if _git(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") is None:
        raise UsageError(f"--since {revision}: no such revision of a git repository at {folder}")


def _touches(changed: set[int] | None, lines: range) -> bool:
    return changed is None or any(line in changed for line in lines)


def _git(folder: pathlib.Path, *arguments: str) -> str | None:
    """What git prints, None when it fails."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    except OSError as error:
        raise UsageError(f"--since needs git: {error}") from error
    return done.stdout if done.returncode == 0 else None

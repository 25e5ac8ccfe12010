"""--add-ignore: comments that accept the findings of a run, with a reason to fill in."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_text
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


def add_ignores(findings: Iterable[Finding], files: Mapping[pathlib.Path, Settings]) -> Ignored:
    """Write the comments. A file in which they would not do what they are for stays as it is."""
    by_file: dict[str, list[Finding]] = {}
    for finding in findings:
        by_file.setdefault(finding.span.path, []).append(finding)
    done = Ignored()
    for path, settings in files.items():
        wanted = by_file.get(shown(path), [])
        if not wanted:
            continue
        try:
            source = Text.read(path)
            left = _write(source, wanted, settings)
        except (OSError, UnicodeError, SyntaxError, LookupError) as e:
            done.failures.append((shown(path), f"no comment can be added: {getattr(e, 'strerror', None) or e}"))
            continue
        done.left += left
        done.findings += len(wanted) - len(left)
        done.files += len(left) < len(wanted)
    return done


def _write(source: Text, wanted: list[Finding], settings: Settings) -> list[Finding]:
    """Write the comments for the findings of one file; those that are found all the same."""
    first_line = source.content.partition("\n")[0]
    python = not rules_for_text(source.path.name, first_line)
    text = with_ignores(source.content, wanted, python=python)
    if text == source.content:
        return wanted
    found = {f.fingerprint for f in check_text(text, source.path, settings).findings}
    left = [finding for finding in wanted if finding.fingerprint in found]
    if left:  # the comments of the others stay
        text = with_ignores(source.content, [f for f in wanted if f not in left], python=python)
    source.write(text, settings.root)
    return left

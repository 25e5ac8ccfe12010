"""--fix and --diff: the fixes of a run, applied to files or to standard input."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_module, check_text
from ddp_lint.files import shown
from ddp_lint.findings import Finding
from ddp_lint.fixes import Fixed, Text, applicable, fixpoint, unified_diff
from ddp_lint.source.file import Unreadable
from ddp_lint.source.notebook import SUFFIX, Notebook


@dataclasses.dataclass
class FixedFiles:
    """How many findings were (or would be) fixed, the patch that does it, and the files where it failed."""

    fixed: int = 0
    patch: str = ""
    failures: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    #: The text after fixes, of standard input.
    text: str = ""


def fix_files(
    findings: Iterable[Finding], files: Mapping[pathlib.Path, Settings], *, unsafe: bool, dry: bool
) -> FixedFiles:
    """Fix the files that have findings with a fix. With `dry` nothing is written."""
    wanted = {f.span.path for f in findings if applicable(f.fix, unsafe=unsafe)}
    outcome = FixedFiles()
    for path, settings in files.items():
        name = shown(path)
        if name not in wanted:
            continue
        try:
            source = Text.read(path)
            result = _fixed(source.content, path, settings, unsafe)
            if not dry and result.applied:
                source.write(result.text, settings.root)
        except (OSError, ValueError, SyntaxError, LookupError, Unreadable) as e:
            outcome.failures.append((name, f"cannot be fixed: {getattr(e, 'strerror', None) or e}"))
            continue
        outcome.fixed += len(result.applied)
        outcome.patch += unified_diff(name, source.content, result.text)
    return outcome


def fix_text(source: Text, settings: Settings, *, unsafe: bool) -> FixedFiles:
    """Fix text that is not on disk, as if it were the content of its path."""
    result = _fixed(source.content, source.path, settings, unsafe)
    patch = unified_diff(shown(source.path), source.content, result.text)
    return FixedFiles(len(result.applied), patch, text=result.text)


def _fixed(text: str, path: pathlib.Path, settings: Settings, unsafe: bool) -> Fixed:
    """Raises ValueError for what has the name of a notebook and is none."""
    if path.suffix == SUFFIX:
        notebook = Notebook.of(text)
        done = fixpoint(notebook.module, lambda module: check_module(module, path, settings).findings, unsafe=unsafe)
        return Fixed(notebook.with_module(done.text), done.applied)
    return fixpoint(text, lambda content: check_text(content, path, settings).findings, unsafe=unsafe)

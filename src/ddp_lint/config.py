"""[tool.ddp-lint] -> frozen Settings. One loader for the command line, flake8 and pre-commit."""

from __future__ import annotations

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of the project's own that the analyses should know, as dotted names or bare identifiers."""

    rank_expressions: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Settings:
    """What one run is told. `enabled` holds rule codes after select, ignore and preview were applied."""

    root: pathlib.Path
    enabled: frozenset[str]
    per_file_ignores: tuple[tuple[str, frozenset[str]], ...] = ()
    exclude: tuple[str, ...] = ()
    target_torch: tuple[int, int] | None = None
    names: Names = Names()

"""A baseline: findings that a project has accepted for now, by fingerprints that survive moved lines."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
from collections.abc import Collection, Iterable

from ddp_lint.config import ConfigError
from ddp_lint.files import LIMIT, behind_links, read, reason_of, shown, write
from ddp_lint.findings import UNCHECKED, Finding

#: Where it is written by default.
DEFAULT = "ddp-lint-baseline.json"
_VERSION = 1
#: Bytes that one may have: some 200,000 findings.
_LIMIT = 4 * LIMIT


@dataclasses.dataclass(frozen=True, order=True)
class Row:
    """One accepted finding; `path` is relative to the folder of the baseline, with forward slashes."""

    path: str
    code: str
    fingerprint: str
    message: str = dataclasses.field(compare=False)


class Baseline:
    """The rows of one file, and which of them a run has met."""

    def __init__(self, file: pathlib.Path, rows: Iterable[Row] = ()) -> None:
        self.file = file
        self._rows = list(rows)
        self._left = collections.Counter(self._rows)

    @classmethod
    def read(cls, file: pathlib.Path) -> Baseline:
        """Raises ConfigError."""
        try:
            document = json.loads(read(file, _LIMIT))
            if document["version"] != _VERSION:
                raise ConfigError(
                    f"baseline {shown(file)} is from another version of ddp-lint: write it again with --write-baseline"
                )
            rows = [Row(*(str(row[f.name]) for f in dataclasses.fields(Row))) for row in document["findings"]]
        except FileNotFoundError:
            raise ConfigError(f"baseline {shown(file)} does not exist: create it with --write-baseline") from None
        except OSError as e:
            raise ConfigError(f"baseline {shown(file)} cannot be read: {reason_of(e).lower()}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(f"{shown(file)} is not a baseline: write it again with --write-baseline") from None
        return cls(file, rows)

    def renewed(self, findings: Iterable[Finding], checked: Iterable[pathlib.Path]) -> Baseline:
        """The baseline that accepts these findings of the files that were checked, and what it did of other files."""
        seen = set(map(self._inside, checked))
        kept = [row for row in self._rows if row.path not in seen and self._exists(row)]
        return Baseline(self.file, [*kept, *(self._row(f) for f in findings if f.code not in UNCHECKED)])

    def __len__(self) -> int:
        return len(self._rows)

    def new(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings that are not in the baseline; remembers the rows of those that are."""
        found = []
        for finding in findings:
            row = self._row(finding)
            if finding.code in UNCHECKED or not self._left[row]:
                found.append(finding)
            else:
                self._left[row] -= 1
        return found

    def gone(self, checked: Iterable[pathlib.Path], codes: Collection[str]) -> list[Row]:
        """The rows that no finding has met, of `codes`, in files that were checked or do not exist any more."""
        seen = set(map(self._inside, checked))
        return sorted(
            row for row in self._left.elements() if row.code in codes and (row.path in seen or not self._exists(row))
        )

    def without(self, rows: Iterable[Row]) -> Baseline:
        left = collections.Counter(self._rows) - collections.Counter(rows)
        return Baseline(self.file, left.elements())

    def write(self, within: pathlib.Path | None) -> None:
        """One row a line, sorted, so that merges and reviews are easy; nowhere outside of the folder `within`, where
        there is one. Raises ConfigError."""
        rows = [json.dumps(dataclasses.asdict(row)) for row in sorted(self._rows)]
        text = ",\n    ".join(rows)
        body = f"[\n    {text}\n  ]" if rows else "[]"
        try:
            text = f'{{\n  "version": {_VERSION},\n  "findings": {body}\n}}\n'
            write(behind_links(self.file, within) if within else self.file, text.encode())
        except OSError as e:
            raise ConfigError(f"cannot write {shown(self.file)}: {reason_of(e).lower()}") from None

    def _exists(self, row: Row) -> bool:
        return os.path.exists(self.file.parent / row.path)  # noqa: PTH110 (False also for what no file can be called)

    def _row(self, finding: Finding) -> Row:
        return Row(self._inside(pathlib.Path(finding.span.path)), finding.code, finding.fingerprint, finding.message)

    def _inside(self, path: pathlib.Path) -> str:
        return pathlib.Path(os.path.relpath(path, self.file.parent)).as_posix()

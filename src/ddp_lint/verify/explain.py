"""What an error text means (`knowledge/signatures.toml`), and what a CPU run cannot decide (`backends.toml`)."""

from __future__ import annotations

import dataclasses
import functools
import re

from ddp_lint.knowledge import table


@dataclasses.dataclass(frozen=True)
class Signature:
    """A known error text: `kind` is crash, hang, silent, secondary (another rank's fault) or warning."""

    id: str
    pattern: str
    kind: str
    cause: str
    fix: str
    seen: str
    #: The rules that look for the cause.
    codes: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The one rule that looks for the cause, '' when there are several or none."""
        return self.codes[0] if len(self.codes) == 1 else ""


@functools.cache
def signatures() -> tuple[Signature, ...]:
    return tuple(
        Signature(
            **{key: row[key] for key in ("id", "pattern", "kind", "cause", "fix", "seen")},
            codes=tuple(row["codes"]),
        )
        for row in table("signatures")["signature"]
    )


@functools.lru_cache(maxsize=1024)
def explain(text: str) -> Signature | None:
    """The first signature that the text shows."""
    return next((known for known in signatures() if re.search(known.pattern, text)), None)


def secondary(text: str) -> bool:
    """The text tells of another rank's failure."""
    known = explain(text)
    return known is not None and known.kind == "secondary"


@functools.lru_cache(maxsize=1024)
def cpu_limit(text: str) -> str:
    """Why an error on CPU says nothing about CUDA; '' when it may."""
    rows = table("backends")["cpu_error"]
    return next((str(row["reason"]) for row in rows if re.search(row["pattern"], text)), "")


def undecided(fact: str) -> str:
    """Why a CPU run with this fact decides nothing: the reason of an entry of `[undecided]`."""
    return str(table("backends")["undecided"][fact])

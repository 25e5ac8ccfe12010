"""A discovery with its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from ddp_lint.verify.damage import Cause
from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.results import Discovery, Evidence, Examined
from ddp_lint.verify.trace import Frame


def evidence_of(examined: Examined, rank: int | None, kind: str, message: str, frame: Frame | None) -> Evidence:
    """What was seen at a line of the user's; `rank` is None where the ranks were compared, `kind` names the oracle."""
    path, line = (shown(frame.path), frame.line) if frame else ("", 0)
    return Evidence(examined.run.wrap, rank, kind, message, path, line, model=examined.run.model)


def discovery(
    examined: Examined,
    kinds: tuple[str, str],
    message: str,
    frame: Frame | None,
    cause: Cause | None = None,
    *,
    rank: int | None = None,
    names: Sequence[str] = (),
) -> Discovery:
    """`kinds`: of the discovery, and the oracle that would see it."""
    kind, oracle = kinds
    return Discovery.of(kind, message, cause or Cause(), evidence_of(examined, rank, oracle, message, frame), names)

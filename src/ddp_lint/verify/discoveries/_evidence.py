"""The evidence of a discovery."""

from __future__ import annotations

from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.results import Evidence, Examined
from ddp_lint.verify.trace import Frame


def evidence_of(examined: Examined, rank: int | None, kind: str, message: str, frame: Frame | None) -> Evidence:
    """What was seen at a line of the user's; `rank` is None where the ranks were compared, `kind` names the oracle."""
    path, line = (shown(frame.path), frame.line) if frame else ("", 0)
    return Evidence(examined.run.wrap, rank, kind, message, path, line, model=examined.run.model)

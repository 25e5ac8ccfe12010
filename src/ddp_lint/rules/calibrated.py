"""What readings of real code say of how sure findings are (`knowledge/calibration.toml`)."""

from __future__ import annotations

import functools
from typing import Literal

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.source.file import place_kind


@functools.cache
def calibrated(section: Literal["rules", "places"], key: str) -> Confidence | None:
    """The class that readings give to a rule, by its code, or to a kind of place; None where there are too few."""
    sure = table("calibration").get(section, {}).get(key)
    return Confidence(sure) if sure else None


def surest_at(place: str) -> Confidence:
    """No finding of a rule in a file is surer than this, by the path of the file in its project."""
    return calibrated("places", place_kind(place)) or Confidence.HIGH

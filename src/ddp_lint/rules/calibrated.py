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


def kind_of(place: str, *, in_tests_too: bool = False) -> str:
    """The kind of place, by the path of a file in its project, whose class limits what a rule finds there; '' for
    none. `in_tests_too`: the rule is about failures that a program hides, and a test that hides them harms no less."""
    kind = place_kind(place)
    return "" if in_tests_too and kind == "test" else kind


def surest_at(place: str, *, in_tests_too: bool = False) -> Confidence:
    """No finding of a rule in a file is surer than this."""
    return calibrated("places", kind_of(place, in_tests_too=in_tests_too)) or Confidence.HIGH

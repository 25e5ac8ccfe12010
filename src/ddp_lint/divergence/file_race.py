"""One rank makes a file and the others wait for it, but only those that found it missing come to wait."""

from __future__ import annotations

import dataclasses
import re

from ddp_lint.divergence.compare import Difference, under
from ddp_lint.divergence.values import Variation

#: Calls that only wait: where a file is missing they wait for whoever makes it.
_WAITS = frozenset({"barrier", "monitored_barrier", "rendezvous"})
_LOOKS = re.compile(r"(?:\.|\b)(?:exists|isfile|isdir|is_file|is_dir)\(")
_MISSES = "except FileNotFoundError"


def race_of(difference: Difference, varies: Variation, chosen: bool | None) -> Variation:
    """The variation, as a race with whoever makes the file where it is one.

    ``if not exists(path): (rank 0 makes it); barrier()``: a rank that looks once the file is there goes past the
    barrier. It takes no local disk, unlike other conditions on files: the code itself changes the answer. An early
    return is no such wait: what it looked for may be made much later, or never (a path that must not be a file).
    """
    text = difference.fork.condition.text
    if not under(difference.event, difference.fork.span):
        return varies
    looks = varies.cause == "file" and chosen is False and _LOOKS.search(text)
    misses = varies.cause == "exception" and chosen is True and text == _MISSES
    if difference.event.op not in _WAITS or not (looks or misses):
        return varies
    return dataclasses.replace(
        varies, cause="made", description="whether the file was made before this rank looked for it"
    )

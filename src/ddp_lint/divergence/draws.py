"""Random numbers: whether each rank draws its own, because a program seeds its generators by the rank."""

from __future__ import annotations

import re

from ddp_lint.divergence.frame import Frame
from ddp_lint.knowledge import table

_RANK = r"\b(\w+_)?(rank|get_rank|process_index)\b"


def draws_its_own(frame: Frame) -> bool:
    """Does a program of the project seed the generators of Python and NumPy by the rank?"""
    project = frame.linker.project

    def seeded() -> bool:
        found = (path for path in project.holding("seed") if project.tested(path, "seeds"))
        return any((facts := project.facts_of(path)) is not None and not facts.source.is_test for path in found)

    return project.remember(("draws",), seeded)


def seeding(text: str) -> str:
    """Whether a text seeds by the rank, '' where not (`parts.TESTS`): ``random.seed(seed + rank)``, also by a name."""
    helpers = table("data")["seed_helpers"]
    if not any(f"{seeder}(" in text for seeder in ("random.seed", *helpers)):
        return ""  # as nearly always, told by a look that costs nothing
    seeders = "|".join(("seed", *map(re.escape, helpers)))
    given = re.search(rf"\b({seeders})\([^\n]*{_RANK}", text)
    named = re.search(rf"\bseed\s*\+?=(?!=)[^\n]*{_RANK}", text) and re.search(rf"\b({seeders})\(\s*seed\b", text)
    seeds = re.search(rf"\brandom\.seed\(|\b({'|'.join(helpers)})\(", text)
    return "seeds" if seeds and (given or named) else ""

"""Random numbers: whether each rank draws its own, because the program seeds its generators by the rank."""

from __future__ import annotations

import re

from ddp_lint.divergence.frame import Frame
from ddp_lint.knowledge import table
from ddp_lint.launch.search import importers

_RANK = r"\b(\w+_)?(rank|get_rank|process_index)\b"


def draws_its_own(frame: Frame) -> bool:
    """Does the file of a call, or a program that imports it, seed the generators of Python and NumPy by the rank?"""
    project, facts = frame.linker.project, frame.facts

    def seeded() -> bool:
        users = importers(project, facts.name, holding=("seed",)) if facts.name else ()
        found = (project.absolute(each.source.inside) for each in users if not each.source.is_test)
        return any(project.tested(path, "seeds") for path in found)

    own = project.tested(project.absolute(facts.source.inside), "seeds")
    return bool(own) or project.remember(("draws", facts.name), seeded)


def seeding(text: str) -> str:
    """Whether a text seeds by the rank, '' where not (`parts.TESTS`): ``random.seed(seed + rank)``, also by a name."""
    seeders = "|".join(("seed", *map(re.escape, table("data")["seed_helpers"])))
    given = re.search(rf"\b({seeders})\([^\n]*{_RANK}", text)
    named = re.search(rf"\bseed\s*\+?=(?!=)[^\n]*{_RANK}", text) and re.search(rf"\b({seeders})\(\s*seed\b", text)
    seeds = re.search(rf"\brandom\.seed\(|\b({'|'.join(table('data')['seed_helpers'])})\(", text)
    return "seeds" if seeds and (given or named) else ""

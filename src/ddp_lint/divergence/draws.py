"""Random numbers: whether each rank draws its own, because a program seeds its generators by the rank."""

from __future__ import annotations

import re

from ddp_lint.divergence.frame import Frame
from ddp_lint.knowledge import table
from ddp_lint.launch.search import leads_to
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts

_RANK = r"\b(\w+_)?(rank|get_rank|process_index)\b"


def draws_its_own(frame: Frame) -> bool:
    """Does a program that a function may be part of seed the generators of Python and NumPy by the rank?"""
    project, facts = frame.linker.project, frame.facts

    def seeded() -> bool:
        return any(_in_one_program(project, facts, other) for other in _seeding_files(project))

    return project.remember(("draws", facts.name), seeded)


def _seeding_files(project: Project) -> tuple[ModuleFacts, ...]:
    def found() -> tuple[str, ...]:
        paths = (path for path in project.contents.holding("seed") if project.texts.tested(path, "seeds"))
        files = (facts for path in paths if (facts := project.modules.facts_of(path)) is not None)
        return tuple(facts.name for facts in files if not facts.source.is_test)

    names = project.remember(("seeding files",), found)
    return tuple(facts for name in names if (facts := project.modules.facts(name)) is not None)


def _in_one_program(project: Project, facts: ModuleFacts, other: ModuleFacts) -> bool:
    """May one run come to both files? Of a program and a file that it does not import, none does."""
    if facts.name == other.name or not (facts.file.holds("__main__") or other.file.holds("__main__")):
        return True
    return leads_to(project, facts, other.name) or leads_to(project, other, facts.name)


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

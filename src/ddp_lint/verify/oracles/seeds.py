"""Random seeds across ranks: the same seed on every rank draws the same augmentations on all of them."""

from __future__ import annotations

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Call


def testify(case: Case) -> Opinion:
    seeds: dict[str, dict[int, int]] = {}
    for rank, event, _ in case.hits(Call):
        seed = event.arguments.get("seed") if event.name == "manual_seed" else None
        if isinstance(seed, int):
            seeds.setdefault(str(event.arguments.get("generator", "torch")), {})[rank] = seed
    for generator, by_rank in seeds.items():
        if len(by_rank) > 1 and len(set(by_rank.values())) == 1:
            seed = next(iter(by_rank.values()))
            text = f"all {len(by_rank)} ranks seed {generator} with {seed}: they draw the same numbers"
            return Opinion((case.evidence("seeds", text),))
    if not seeds:
        return Opinion(blind="no seed was set here")
    return Opinion(silent="each rank uses a different seed")

"""Which ranks never reach a collective: event graphs, evaluated in a few worlds, compared for each group."""

from ddp_lint.divergence.analyse import analyse
from ddp_lint.divergence.mismatches import Kind, Mismatch

__all__ = ["Kind", "Mismatch", "analyse"]

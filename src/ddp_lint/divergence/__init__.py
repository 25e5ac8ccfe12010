"""Which ranks never reach a collective: words of effects, evaluated in a few worlds, compared for each group."""

from ddp_lint.divergence.analyse import analyse
from ddp_lint.divergence.partings import Kind, Parting

__all__ = ["Kind", "Parting", "analyse"]

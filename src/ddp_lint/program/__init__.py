"""The program as a whole: what each function mentions, and which functions can communicate at all."""

from ddp_lint.program.index import Place, index
from ddp_lint.program.reach import Reach

__all__ = ["Place", "Reach", "index"]

"""The program as a whole: what each function mentions, and which functions can communicate at all."""

from ddp_lint.program.index import Place, index

__all__ = ["Place", "index"]

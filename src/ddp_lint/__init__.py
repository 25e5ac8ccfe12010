"""ddp-lint: a linter for distributed PyTorch."""

__version__ = "0.1.0"

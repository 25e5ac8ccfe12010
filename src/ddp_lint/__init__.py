"""ddp-lint: a linter that tells the truth about distributed PyTorch."""

__version__ = "0.1.0"

"""``python -m ddp_lint``."""

from ddp_lint.cli import main

if __name__ == "__main__":
    main()

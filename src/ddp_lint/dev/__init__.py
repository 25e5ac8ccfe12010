"""What contributors run in a checkout: generated documentation, and the scaffold of a new rule."""

from __future__ import annotations

import pathlib


class NotACheckout(Exception):
    """The package does not lie in a checkout of ddp-lint, so there is nothing to write to."""


def checkout() -> pathlib.Path:
    """The root of the checkout that this package lies in. Raises NotACheckout."""
    root = pathlib.Path(__file__).resolve().parents[3]
    if not (root / "src" / "ddp_lint").is_dir() or not (root / "tests" / "fixtures").is_dir():
        raise NotACheckout("this works in a checkout of ddp-lint, installed with `pip install --editable .`")
    return root

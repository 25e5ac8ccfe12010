from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

import pytest

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare text with golden/NAME. `UPDATE_GOLDEN=1 pytest tests/output` writes it instead: then read the diff."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare

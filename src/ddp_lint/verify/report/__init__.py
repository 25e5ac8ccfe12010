"""A verification as text: one file a format, each with `render(verification, sources, color) -> str`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ddp_lint.output import Sources, in_json, in_markup

if TYPE_CHECKING:
    from ddp_lint.verify.results import Verification

FORMATS = ("full", "json", "sarif", "html")


def prepare(output_format: str) -> None:
    """Load what a report needs: while the ranks start nobody waits for that."""
    from ddp_lint.knowledge.signatures import explain

    importlib.import_module(f"{__name__}.{output_format}")
    explain("")


def render(verification: Verification, output_format: str, sources: Sources, color: bool = False) -> str:
    """The verification in one of FORMATS; ends with a newline."""
    module = importlib.import_module(f"{__name__}.{output_format}")
    text: str = module.render(verification, sources, color)
    if output_format == "full":  # there the escapes are our own colours
        return text
    return in_markup(text) if output_format == "html" else in_json(text)

"""`ddp-lint rule`: the pages of the rules."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import click

from ddp_lint.cli import completing
from ddp_lint.cli.console import COLOR, fail, wants_color, write
from ddp_lint.output.style import Style


@click.command()
@click.argument("name", required=False, metavar="[CODE|SLUG]", shell_complete=completing.codes)
@click.option("--all", "every", is_flag=True, help="Print the pages of all rules.")
@click.option("--list", "listing", is_flag=True, help="Print one line per rule.")
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@COLOR
def rule(name: str | None, every: bool, listing: bool, output_format: str, color: str) -> None:
    """Explain a rule: what it finds, why that breaks, what to write instead, and how to confirm it.

    CODE|SLUG is a code (DDP201), a prefix (DDP2) or a name (load-without-map-location). Without it, list all rules.
    """
    from ddp_lint.config import ConfigError, codes_of
    from ddp_lint.rules.registry import documented

    listing = listing or (name is None and not every)
    try:
        codes = codes_of(name or "ALL")
    except ConfigError as e:
        fail(str(e))
    rules = [entry for code, entry in documented().items() if code in codes]
    if output_format == "json":
        write(json.dumps([_as_dict(entry) for entry in rules], indent=2, ensure_ascii=False) + "\n", None)
        return
    style = Style(wants_color(color, sys.stdout))
    texts = [_line(entry, style) if listing else _page(entry, style) for entry in rules]
    write(("\n" if listing else f"\n\n{style.dim('-' * 80)}\n\n").join(texts) + "\n", None)


def _line(entry: Any, style: Style) -> str:
    off = "" if entry.default else style.dim(f" ({entry.state()})")
    return f"{style.red(entry.code)} {entry.slug}{off}: {entry.summary}"


def _page(entry: Any, style: Style) -> str:
    from ddp_lint.rules.page import Page

    text = Page.of(entry).markdown().rstrip("\n")
    return re.sub(r"(?m)^(#{1,2} .+)$", lambda heading: style.bold(heading[0]), text)


def _as_dict(entry: Any) -> dict[str, Any]:
    from ddp_lint.rules.page import Page

    page = Page.of(entry)
    return {
        "code": entry.code,
        "slug": entry.slug,
        "summary": entry.summary,
        "default": entry.default,
        "confidence": entry.confidence.value,
        "sections": page.sections,
        "markdown": page.markdown(),
    }

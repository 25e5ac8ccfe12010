"""`ddp-lint config`: the options of the configuration file."""

from __future__ import annotations

import json
import sys

import click
from click.shell_completion import CompletionItem

from ddp_lint.cli.console import COLOR, fail, wants_color, write
from ddp_lint.output.style import Style


def _keys(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from ddp_lint.config import OPTIONS

    return [CompletionItem(o.key, help=o.help) for o in OPTIONS if o.key.startswith(incomplete)]


@click.command()
@click.argument("key", required=False, metavar="[KEY]", shell_complete=_keys)
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@COLOR
def config(key: str | None, output_format: str, color: str) -> None:
    """Explain an option of [tool.ddp-lint], or list all options.

    `ddp-lint check --show-settings` prints the resulting settings of a project.
    """
    from ddp_lint.config import DEFAULT_EXCLUDE, OPTIONS, TYPES, did_you_mean

    by_key = {option.key: option for option in OPTIONS}
    name = (key or "").strip().replace("_", "-").lower()
    if key is not None and name not in by_key:
        fail(f"there is no option '{key}'{did_you_mean(name, by_key) or ' (`ddp-lint config` lists them)'}", color)
    chosen = [by_key[name]] if key is not None else list(OPTIONS)
    if output_format == "json":
        rows = [{"key": o.key, "type": TYPES[o.kind].words, "help": o.help, "example": o.example} for o in chosen]
        write(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", None)
        return
    style = Style(wants_color(color, sys.stdout))
    if key is None:
        width = max(map(len, by_key))
        write("".join(f"{style.bold(o.key.ljust(width))}  {o.help}\n" for o in chosen), None)
        return
    option = chosen[0]
    example = f"[tool.ddp-lint.{name}]\n" if option.kind == "ignores" else f"[tool.ddp-lint]\n{name} = "
    shown = option.example.strip("{ }") if option.kind == "ignores" else option.example
    default = "\nDefault: " + ", ".join(DEFAULT_EXCLUDE) + "\n" if name == "exclude" else ""
    write(
        f"{style.bold(name)}: {TYPES[option.kind].words}\n\n{option.help}\n{default}\n{style.dim('# pyproject.toml')}\n"
        f"{example}{shown}\n",
        None,
    )

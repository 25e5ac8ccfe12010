"""The command line, one file a verb. Verbs are imported when they run, so that --help is instant."""

from __future__ import annotations

import importlib
import os
import shlex
from typing import Any

import click

from ddp_lint import __version__

#: Verb -> (where its click command is, under the verb's name; its line in --help).
_VERBS = {
    "check": ("ddp_lint.cli.check", "Find hangs and silent errors under DDP and FSDP in files and folders."),
    "verify": ("ddp_lint.cli.verify", "Run a model or script on two ranks and report which findings are real."),
    "diagnose": (
        "ddp_lint.cli.diagnose",
        "Read the log of a job that hung or died: report the cause, the rank and the line.",
    ),
    "rule": ("ddp_lint.cli.rule", "Explain a rule, or list them all."),
    "server": ("ddp_lint.cli.server", "Run the language server for editors."),
    "config": ("ddp_lint.cli.config", "Explain a configuration option, or list them all."),
    "completion": ("ddp_lint.cli.completion", "Print the script that completes ddp-lint's commands in a shell."),
    "dev": ("ddp_lint.cli.dev", "For contributors: create a rule, update the generated documentation."),
}


class _Verbs(click.Group):
    """A group that knows its commands by name and imports the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command = getattr(importlib.import_module(_VERBS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            from ddp_lint.config import did_you_mean

            if os.path.exists(args[0]) or args[0].endswith((".py", ".ipynb", "/")):  # noqa: PTH110 (as given)
                ctx.fail(f"'{args[0]}' is not a command; did you mean `ddp-lint check {shlex.join(args)}`?")
            hint = did_you_mean(args[0], _VERBS) or f" (there are {', '.join(_VERBS)})"
            ctx.fail(f"there is no command '{args[0]}'{hint}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **extra)
        except OSError as e:
            from ddp_lint.cli.console import not_printed

            not_printed(e)

    def invoke(self, ctx: click.Context) -> Any:
        """Messages of click about wrong usage quote the arguments, which may be names of files."""
        try:
            return super().invoke(ctx)
        except click.ClickException as e:
            from ddp_lint.output import visible

            e.__dict__.update(message=visible(e.message))
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _VERBS.items()])


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, "-V", "--version")
def main() -> None:
    """Find what breaks PyTorch code under DDP and FSDP, and prove it on two ranks."""

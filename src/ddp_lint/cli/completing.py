"""What a shell is offered for a word that is being typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and folders, by the shell's own means."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def codes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes and slugs of rules, for the last of a comma-separated list."""
    from click.shell_completion import CompletionItem

    from ddp_lint.rules.registry import declared

    before, comma, word = incomplete.rpartition(",")
    found = [CompletionItem(before + comma + said.code, help=said.slug) for said in declared().values()]
    found += [CompletionItem(before + comma + said.slug, help=said.code) for said in declared().values()]
    return [item for item in found if item.value.lower().startswith((before + comma + word).lower())]

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
    found = [CompletionItem(before + comma + rule.code, help=rule.slug) for rule in declared().values()]
    found += [CompletionItem(before + comma + rule.slug, help=rule.code) for rule in declared().values()]
    return [item for item in found if item.value.lower().startswith((before + comma + word).lower())]

"""`ddp-lint completion`: shell completion, by click."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes ddp-lint's commands and options.

    \b
    bash: ddp-lint completion bash >> ~/.bashrc
    zsh:  ddp-lint completion zsh >> ~/.zshrc
    fish: ddp-lint completion fish > ~/.config/fish/completions/ddp-lint.fish
    """
    from ddp_lint.cli import main

    kind = get_completion_class(shell)
    assert kind is not None
    # `source` alone: click's bash class would first start bash to ask for its version.
    script = kind(main, {}, "ddp-lint", "_DDP_LINT_COMPLETE")
    click.echo(script.source_template % script.source_vars())

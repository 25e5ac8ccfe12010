"""`ddp-lint server`: the language server."""

from __future__ import annotations

import importlib.util
import sys
from typing import BinaryIO, cast

import click

from ddp_lint.cli.console import fail, say


@click.command()
@click.option("--stdio", is_flag=True, hidden=True, help="The default; accepted because some editors always pass it.")
def server(stdio: bool) -> None:
    """Serve findings to an editor: a language server on standard input and output.

    Started by the editor. Diagnostics when a file is opened, changed and saved; a rule's page on hover; fixes and
    comments that ignore a finding as code actions.
    """
    if importlib.util.find_spec("pygls") is None:
        fail("the language server needs pygls: pip install 'ddp-lint[lsp]'")
    if sys.stdin is None or sys.stdout is None:
        fail("the language server talks to an editor over standard input and output, which are closed")
    from ddp_lint.server.framing import Messages, log_in_lines
    from ddp_lint.server.server import make

    log_in_lines(say)
    make().start_io(cast(BinaryIO, Messages(sys.stdin.buffer, say)))

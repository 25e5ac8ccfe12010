"""`ddp-lint dev`: what contributors need in a checkout."""

from __future__ import annotations

import pathlib
import sys

import click

from ddp_lint.cli.console import FOUND, fail, say
from ddp_lint.dev import NotACheckout, checkout


@click.group()
def dev() -> None:
    """For contributors: make a rule, write the generated documentation."""


@dev.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 when something is stale.")
def docs(check: bool) -> None:
    """Write docs/rules, docs/options.md, the JSON schema, and the printed examples of the guides."""
    from ddp_lint.dev.docs import stale

    root = _root()
    files = stale(root)
    for path, text in files.items():
        say(f"{'stale' if check else 'written' if text is not None else 'removed'}: {path.relative_to(root)}")
        if check:
            continue
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if files and check:
        say("`ddp-lint dev docs` brings them up to date")
        sys.exit(FOUND)


@dev.command()
@click.option(
    "--checkouts",
    type=click.Path(path_type=pathlib.Path, exists=True, file_okay=False),
    help="Trees of the code bases as OWNER+NAME: their findings are looked for again before.",
)
def calibrate(checkouts: pathlib.Path | None) -> None:
    """Work out anew how sure each rule is, from the findings on public code that somebody has read."""
    from ddp_lint.dev.calibration import reread, toml

    root = _root()
    studies = root / "docs" / "studies"
    if checkouts is not None:
        silent, absent = reread(studies, checkouts)
        say(f"{silent} readings are of what is not reported any more; {absent} could not be looked at")
    target = root / "src" / "ddp_lint" / "knowledge" / "calibration.toml"
    target.write_text(toml(studies), encoding="utf-8")
    say(f"written: {target.relative_to(root)}; `ddp-lint dev docs` brings the tables up to date")


@dev.command("new-rule")
@click.argument("code", metavar="DDPNNN|DDPNxx")
@click.argument("slug")
@click.option(
    "--call", default="torch.distributed.monitored_barrier", show_default=True, help="The API it starts from."
)
@click.option("--family", help="The folder below rules/; by default that of the rules of the same hundred.")
def new_rule(code: str, slug: str, call: str, family: str | None) -> None:
    """Make a rule, its fixture and its page, which work and are to be filled in. DDP2xx is the next free code."""
    from ddp_lint.dev.scaffold import FILL_IN, ScaffoldError
    from ddp_lint.dev.scaffold import new_rule as make

    root = _root()
    try:
        written = make(root, code, slug, call, family)
    except ScaffoldError as e:
        fail(str(e))
    for path in written:
        say(f"written: {path.relative_to(root)}")
    made = f"DDP{written[0].name[3:6]}"
    say(f"Fill in what says {FILL_IN}, then:")
    say("  ddp-lint dev docs")
    say(f"  pytest tests/test_fixtures.py tests/test_rule_pages.py tests/cli/test_docs.py -k {made}")


def _root() -> pathlib.Path:
    try:
        return checkout()
    except NotACheckout as e:
        fail(str(e))

"""`ddp-lint dev`: what contributors need in a checkout."""

from __future__ import annotations

import pathlib
import sys

import click

from ddp_lint.cli.console import FOUND, fail, say
from ddp_lint.dev import NotACheckout, checkout


@click.group()
def dev() -> None:
    """For contributors: create a rule, update the generated documentation."""


@dev.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with status 1 if a file is stale.")
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
        say("`ddp-lint dev docs` updates them")
        sys.exit(FOUND)


@dev.command()
@click.option(
    "--checkouts",
    type=click.Path(path_type=pathlib.Path, exists=True, file_okay=False),
    help="Folder with checkouts named OWNER+NAME, in which the findings are searched again first.",
)
def calibrate(checkouts: pathlib.Path | None) -> None:
    """Compute the confidence of each rule from the findings on public code that were read."""
    from ddp_lint.dev.calibration import reread, toml

    root = _root()
    studies = root / "docs" / "studies"
    if checkouts is not None:
        silent, absent = reread(studies, checkouts)
        say(f"{silent} read findings are not reported any more; {absent} could not be checked")
    target = root / "src" / "ddp_lint" / "knowledge" / "calibration.toml"
    target.write_text(toml(studies), encoding="utf-8")
    say(f"written: {target.relative_to(root)}; `ddp-lint dev docs` updates the tables")


@dev.command("new-rule")
@click.argument("code", metavar="DDPNNN|DDPNxx")
@click.argument("slug")
@click.option(
    "--call",
    default="torch.distributed.monitored_barrier",
    show_default=True,
    help="The API whose calls the rule flags at first.",
)
@click.option("--family", help="The folder below rules/. [default: that of the rules with the same first digit]")
def new_rule(code: str, slug: str, call: str, family: str | None) -> None:
    """Create a rule with its page and its fixture, to be filled in. DDP2xx takes the next free code."""
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
    say(f"Replace each {FILL_IN}, then run:")
    say("  ddp-lint dev docs")
    say(f"  pytest tests/test_fixtures.py tests/test_rule_pages.py tests/cli/test_docs.py -k {made}")


def _root() -> pathlib.Path:
    try:
        return checkout()
    except NotACheckout as e:
        fail(str(e))

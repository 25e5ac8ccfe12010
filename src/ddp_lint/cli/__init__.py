"""The command line, one file a verb. Verbs import what they need when they run, so that --help is instant."""

from __future__ import annotations

import click

from ddp_lint import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version")
def main() -> None:
    """Find what breaks PyTorch code under DDP and FSDP, and prove it on two ranks."""


@main.command()
@click.argument("paths", nargs=-1)
@click.option("--output-format", default="json")
def check(paths: tuple[str, ...], output_format: str) -> None:
    """(scaffold of the first hour: the front doors replace it)"""
    import dataclasses
    import json
    import pathlib
    import sys

    from ddp_lint.config import Settings
    from ddp_lint.engine.runner import check_paths
    from ddp_lint.project import Project
    from ddp_lint.rules.registry import all_rules

    files: list[pathlib.Path] = []
    for p in map(pathlib.Path, paths or (".",)):
        files += sorted(p.resolve().rglob("*.py")) if p.is_dir() else [p.resolve()]
    settings = Settings(Project.root_of(files[0]), frozenset(all_rules()))
    report = check_paths(files, settings)
    rows = []
    for f in report.findings:
        row = dataclasses.asdict(f)
        row |= row.pop("span")
        row["labels"] = [{**d["span"], "message": d["message"]} for d in row["labels"]]
        rows.append(row)
    print(json.dumps({"version": __version__, "findings": rows, "errors": report.errors}, indent=1))
    sys.exit(1 if rows else 0)

"""Do fixes mend? Applies `--fix --unsafe-fixes` in memory to every file with a fixable finding and checks the result.

    python benchmarks/fixes.py PATH... [--list FILE] [--misses]
    python benchmarks/fixes.py --pages [--device cpu]

PATH are files or checkouts; a checkout is its own project. --list names a file with one `ROOT<tab>FILE` a line, for
files out of many checkouts. A fix counts as good when the file still parses, the rule no longer finds what it had
found, and a second run changes nothing. Fixes that are only displayed are counted apart. Nothing is written.

--pages fixes the examples of the rules' pages instead and runs what comes out: the rule's oracle has to refute it. Of
a rule that is about hidden failures the failure has to end the run instead: uncaught, and with a status that tells.
Prints one line a rule, and with --misses each fix that is not good.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import TextIO

import click

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_text
from ddp_lint.findings import Applicability, Confidence, Finding, Span
from ddp_lint.fixes import applicable, fixpoint
from ddp_lint.rules.page import Page
from ddp_lint.rules.registry import all_rules
from ddp_lint.verify.finding_context import situation
from ddp_lint.verify.options import Options, RunResult
from ddp_lint.verify.results import Verification
from ddp_lint.verify.session import prove
from ddp_lint.verify.target import resolve
from ddp_lint.verify.trace import Raised

#: Rules about failures that nobody sees: after a fix they are to be seen.
_HIDING = frozenset({"DDP501", "DDP502"})
_SURFACED = "surfaced"


@dataclasses.dataclass
class Tally:
    """What the fixes of one rule came to. `bad` says where and why one is not good."""

    applied: int = 0
    shown: int = 0
    parse: int = 0
    clean: int = 0
    settle: int = 0
    bad: list[str] = dataclasses.field(default_factory=list)

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self)))


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=pathlib.Path))
@click.option("--list", "listed", type=click.File(), help="A file with one ROOT<tab>FILE a line.")
@click.option("--misses", is_flag=True, help="Show each fix that is not good.")
@click.option("--pages", is_flag=True, help="Fix the pages' examples and run the results.")
@click.option("--device", default="cpu", show_default=True, help="What --pages runs on.")
def main(paths: tuple[pathlib.Path, ...], listed: TextIO | None, misses: bool, pages: bool, device: str) -> None:
    """Count the fixes that parse, mend and settle."""
    if pages:
        sys.exit(not run_pages(device))
    sites = [site for path in paths for site in files(path)]
    for line in listed or ():
        folder, _, name = line.rstrip("\n").partition("\t")
        sites.append((pathlib.Path(folder).absolute(), pathlib.Path(folder, name).absolute()))
    by_code: dict[str, Tally] = collections.defaultdict(Tally)
    for root, path in sites:
        for code, tally in fix_file(root, path).items():
            by_code[code] += tally
    report(by_code, len(sites), misses)


def files(path: pathlib.Path) -> Iterator[tuple[pathlib.Path, pathlib.Path]]:
    """The files of a checkout, with the checkout; a file with its folder."""
    if path.is_file():
        yield path.absolute().parent, path.absolute()
    else:
        yield from ((path.absolute(), found) for found in sorted(path.absolute().rglob("*.py")) if found.is_file())


@functools.cache
def fixing() -> frozenset[str]:
    """The rules on by default whose page says that they have a fix."""
    sections = {code: Page.of(rule).sections["Fix safety"] for code, rule in all_rules().items() if rule.default}
    return frozenset(code for code, text in sections.items() if not text.startswith("No "))


def fix_file(root: pathlib.Path, path: pathlib.Path) -> dict[str, Tally]:
    """The tally of each rule whose fixes apply to a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    settings = Settings(root, fixing())

    def check(content: str) -> list[Finding]:
        return check_text(content, path, settings).findings

    before = check(text)
    found = [f for f in before if f.fix is not None]
    tallies = {f.code: Tally() for f in found}
    for finding in found:
        tallies[finding.code].shown += finding.fix is not None and finding.fix.applicability is Applicability.DISPLAY
    if not any(applicable(f.fix, unsafe=True) for f in found):
        return tallies
    once = fixpoint(text, check, unsafe=True)
    after = check(once.text)
    parses = _parses(once.text)
    settles = fixpoint(once.text, check, unsafe=True).text == once.text
    was, left = (collections.Counter(f.code for f in findings) for findings in (before, after))
    for code, applied in collections.Counter(f.code for f in once.applied).items():
        gone = max(0, min(applied, was[code] - left[code]))
        good = parses and settles and gone == applied
        bad = [] if good else [f"{path}: {code} parses={parses} settles={settles} gone {gone} of {applied}"]
        tallies.setdefault(code, Tally())
        tallies[code] += Tally(applied, 0, applied * parses, gone, applied * settles, bad)
    return tallies


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def report(by_code: dict[str, Tally], number: int, misses: bool) -> None:
    """One line a rule, and the sum."""
    total = sum(by_code.values(), Tally())
    print(f"{'rule':8}{'applied':>9}{'parses':>8}{'clean':>7}{'settles':>9}{'shown only':>12}")
    for code, tally in [*sorted(by_code.items()), (f"{number} files", total)]:
        print(f"{code:8}{tally.applied:9}{tally.parse:8}{tally.clean:7}{tally.settle:9}{tally.shown:12}")
    for line in total.bad if misses else ():
        print(line)


# ---- the pages' examples, fixed and run


def run_pages(device: str) -> bool:
    """Whether the oracle of every rule refutes its own example once the rule's fix was applied."""
    good = True
    for code in sorted(fixing()):
        if all_rules()[code].needs_cuda and device == "cpu":
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "train.py")
            text = fixed_example(code, path)
            if text is None:
                continue
            path.write_text(text, encoding="utf-8")
            verdict = run(code, path, device)
        print(f"{code}: {verdict}", flush=True)
        good &= verdict.startswith(("refuted", _SURFACED))
    return good


def fixed_example(code: str, path: pathlib.Path) -> str | None:
    """A page's Example after the rule's own fixes, None where it has none to apply."""
    settings = Settings(path.parent, frozenset({code}))

    def check(content: str) -> list[Finding]:
        return check_text(content, path, settings).findings

    once = fixpoint(Page.of(all_rules()[code]).example, check, unsafe=True)
    return once.text if once.applied else None


def run(code: str, path: pathlib.Path, device: str) -> str:
    """What `verify` says of the rule's hazard anywhere in a program."""
    home = pathlib.Path.cwd()
    os.chdir(path.parent)
    try:
        seen = verify(code, path.name, device)
    finally:
        os.chdir(home)
    if code in _HIDING and all(surfaced(examined.run) for examined in seen.runs):
        return f"{_SURFACED} (a rank raised, and the launcher ended with a status that tells)"
    judged = seen.findings[0]
    return f"{judged.verdict.value} ({judged.reason})"


def surfaced(launch: RunResult) -> bool:
    """Whether a launch failed for all to see: by an exception that nothing caught."""
    raised = (event for rank in launch.ranks for event in rank.trace.of(Raised))
    return launch.outcome == "exception" and any(event.where == "main" for event in raised)


def verify(code: str, name: str, device: str) -> Verification:
    lines = pathlib.Path(name).read_text(encoding="utf-8").splitlines()
    numbers = frozenset(range(1, len(lines) + 1))
    finding = Finding(code, "", "", Span(name, 1, 1, len(lines), len(lines[-1]) + 1), Confidence.HIGH)
    case = dataclasses.replace(situation(finding, lines), lines=numbers, ran=numbers, guards=(), tests=frozenset())
    options = Options(wraps=("ddp", "fsdp2"), device=device, timeout=15.0)
    return prove(name, resolve(name, options), [case], options, lambda _: None)


if __name__ == "__main__":
    main()

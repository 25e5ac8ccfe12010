"""How many rank divergences does `ddp-lint check` find when they are planted in clean code?

    python benchmarks/mutation.py PATH... [--each 25] [--seed 0] [--misses]

PATH are checkouts of distributed training code. In functions that call a collective and that the linter leaves alone,
one statement is changed at a time, in memory:

    guard    the collective's statement moves under ``if get_rank() == 0:``
    else     it moves into the ``else`` of such a test: rank 0 alone skips it
    arm      of two arms that both call the collective one loses its call
    swap     two collectives in a row are issued in the opposite order on rank 0
    return   ``if get_rank() != 0: return`` is put before it

A mutant counts as found when a DDP1xx finding's primary span lies on the changed statements. Nothing is written to the
checkouts. Prints one line a kind, and with --misses where each miss was planted.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import itertools
import pathlib
import random
import sys
import textwrap
import time
from collections.abc import Iterator

import click

from ddp_lint.config import Settings
from ddp_lint.engine.checking import check_file
from ddp_lint.knowledge import canonical
from ddp_lint.knowledge.communication import load
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.registry import all_rules
from ddp_lint.source import SourceFile
from ddp_lint.source.imports import dotted_ast

KINDS = ("guard", "else", "arm", "swap", "return")
IMPORT = "import torch.distributed as planted_dist"
RANK = "planted_dist.get_rank()"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Site:
    """A collective's statement: its function, its own lines (1-based, inclusive) and the collective's name."""

    function: Function
    statement: ast.stmt
    op: str

    @property
    def lines(self) -> tuple[int, int]:
        return self.statement.lineno, self.statement.end_lineno or self.statement.lineno


@dataclasses.dataclass(frozen=True)
class Mutant:
    """Lines `first` to `last` of a file replaced by `new`; `right` are the new lines on which a finding is right."""

    kind: str
    path: pathlib.Path
    lines: list[str]
    first: int
    last: int
    new: list[str]
    right: range

    @property
    def text(self) -> str:
        return "\n".join([*self.lines[: self.first - 1], *self.new, *self.lines[self.last :]]) + "\n"

    @property
    def parses(self) -> bool:
        """False where the statement shares its line with others."""
        try:
            ast.parse(self.text)
        except SyntaxError:
            return False
        return True


def sites_of(facts: ModuleFacts, project: Project) -> list[Site]:
    """Statements of the file that are nothing but a call of a world-wide or group collective."""
    found = []
    for function in (n for n in ast.walk(facts.tree) if isinstance(n, Function)):
        for statement in ast.walk(function):
            value = getattr(statement, "value", None)
            if not isinstance(statement, (ast.Expr, ast.Assign)) or not isinstance(value, ast.Call):
                continue
            target = facts.imports.resolve(dotted_ast(value.func))
            entry = load().collectives.get(canonical(project.meanings.canonical(target))) if target else None
            if entry is not None and entry.kind == "collective" and not entry.implicit:
                found.append(Site(function, statement, entry.op))
    return [s for s in found if s.function is _innermost(s.statement, found)]


def _innermost(statement: ast.stmt, sites: list[Site]) -> Function:
    around = [s.function for s in sites if s.statement is statement]
    return max(around, key=lambda f: f.lineno)


def mutants_of(path: pathlib.Path, text: str, sites: list[Site]) -> Iterator[Mutant]:
    lines = text.splitlines()
    by_statement = {id(site.statement): site for site in sites}
    for site in sites:
        first, last = site.lines
        body = _block(lines, first, last)
        for kind, new in (
            ("guard", [IMPORT, f"if {RANK} == 0:", *_indented(body)]),
            ("else", [IMPORT, f"if {RANK} == 0:", "    pass", "else:", *_indented(body)]),
            ("return", [IMPORT, f"if {RANK} != 0:", "    return", *body]),
        ):
            yield _replaced(kind, path, lines, first, last, new)
    for function in {id(s.function): s.function for s in sites}.values():
        for block in _blocks(function):
            for one, two in itertools.pairwise(block):
                a, b = by_statement.get(id(one)), by_statement.get(id(two))
                if a and b and a.op != b.op and not isinstance(one, ast.Assign):
                    yield _swapped(path, lines, a, b)
        yield from _without_an_arm(path, lines, function, by_statement)


def _swapped(path: pathlib.Path, lines: list[str], a: Site, b: Site) -> Mutant:
    one, two = _block(lines, *a.lines), _block(lines, *b.lines)
    new = [IMPORT, f"if {RANK} == 0:", *_indented(two), *_indented(one), "else:", *_indented(one), *_indented(two)]
    return _replaced("swap", path, lines, a.lines[0], b.lines[1], new)


def _without_an_arm(
    path: pathlib.Path, lines: list[str], function: Function, sites: dict[int, Site]
) -> Iterator[Mutant]:
    """An `if` that asks for a rank and calls the same collective once in each arm loses the call of its `else`."""
    for test in (n for n in ast.walk(function) if isinstance(n, ast.If)):
        here = [sites[id(s)] for s in test.body if id(s) in sites]
        there = [sites[id(s)] for s in test.orelse if id(s) in sites]
        if len(here) == len(there) == 1 and here[0].op == there[0].op and "rank" in ast.unparse(test.test):
            yield _replaced("arm", path, lines, *there[0].lines, ["pass"], right=range(test.lineno, there[0].lines[1]))


def _replaced(
    kind: str,
    path: pathlib.Path,
    lines: list[str],
    first: int,
    last: int,
    new: list[str],
    right: range | None = None,
) -> Mutant:
    indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
    changed = [indent + line if line else line for line in new]
    return Mutant(kind, path, lines, first, last, changed, right or range(first, first + len(new)))


def _block(lines: list[str], first: int, last: int) -> list[str]:
    return textwrap.dedent("\n".join(lines[first - 1 : last])).splitlines()


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _blocks(function: Function) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


# ---- running


def planted(root: pathlib.Path, settings: Settings) -> Iterator[Mutant]:
    """All mutants of a checkout, in functions that are clean as they stand."""
    project = Project(root)
    for path in sorted(root.rglob("*.py")):
        facts = project.modules.facts_of(path) if path.is_file() else None
        sites = sites_of(facts, project) if facts is not None else []
        if facts is None or not sites:
            continue
        flagged = [f.span.line for f in check_file(facts.file, path, project, settings)]
        clean = [s for s in sites if not any(_within(line, s.function) for line in flagged)]
        yield from mutants_of(path, facts.file.text, clean)


def _within(line: int, function: Function) -> bool:
    return function.lineno <= line <= (function.end_lineno or function.lineno)


def found(mutant: Mutant, root: pathlib.Path, settings: Settings) -> bool:
    project = Project(root)
    file = SourceFile.of_text(project.paths.shown(mutant.path), mutant.text)
    return any(f.span.line in mutant.right for f in check_file(file, mutant.path, project, settings))


@click.command(help=__doc__)
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path))
@click.option("--each", default=25, show_default=True, help="Mutants of each kind, drawn over all checkouts.")
@click.option("--seed", default=0, show_default=True)
@click.option("--misses", is_flag=True, help="Print where each miss was planted.")
def main(paths: tuple[pathlib.Path, ...], each: int, seed: int, misses: bool) -> None:
    codes = frozenset(code for code in all_rules() if code.startswith("DDP1"))
    pool: dict[str, list[tuple[pathlib.Path, Mutant]]] = collections.defaultdict(list)
    for root in (path.resolve() for path in paths):
        for mutant in planted(root, Settings(root, codes)):
            pool[mutant.kind].append((root, mutant))
    draw, started, total, hits = random.Random(seed), time.perf_counter(), 0, 0
    for kind in KINDS:
        order = draw.sample(pool[kind], len(pool[kind]))
        drawn = list(itertools.islice(((root, m) for root, m in order if m.parses), each))
        missed = [(root, m) for root, m in drawn if not found(m, root, Settings(root, codes))]
        total, hits = total + len(drawn), hits + len(drawn) - len(missed)
        print(f"{kind:8} {len(drawn) - len(missed):4} of {len(drawn):4} found, {len(pool[kind])} possible")
        if misses:
            for root, m in missed:
                print(f"    missed {root.name}/{m.path.relative_to(root)}:{m.first}")
    share = f"{hits / total:.0%}" if total else "none planted"
    print(f"{'all':8} {hits:4} of {total:4} found ({share}) in {time.perf_counter() - started:.0f} s", file=sys.stdout)


if __name__ == "__main__":
    main()

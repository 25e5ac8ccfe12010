"""The verdicts of `verify` on the programs of docs/real-bugs, each of which is a bug of public code in small.

    python benchmarks/real_bugs.py [--check] [PROGRAM ...]

Writes docs/real-bugs/verdicts.tsv, of which `ddp-lint dev docs` makes the table; with --check it is compared, and what
differs ends in 1. The first line of a program says where the bug was found, and what happens.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "docs" / "real-bugs"
TABLE = PROGRAMS / "verdicts.tsv"
HEAD = ("repository", "program", "code", "verdict", "reason")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="*", help="names of programs (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing, and tell what is no longer so")
    options = parser.parse_args()
    before = {row["program"]: row for row in known()}
    names = options.programs or sorted(path.stem for path in PROGRAMS.glob("*.py"))
    found = {name: judged(PROGRAMS / f"{name}.py") for name in names}
    wrong = [name for name, row in found.items() if row["verdict"] != before.get(name, {}).get("verdict")]
    for name in names:
        print(f"{name}: {found[name]['code']} {found[name]['verdict']}: {found[name]['reason']}")
    if options.check:
        return 1 if wrong else 0
    out = io.StringIO()
    rows = csv.DictWriter(out, HEAD, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, escapechar="\\")
    rows.writeheader()
    rows.writerows(row for _, row in sorted((before | found).items()))
    TABLE.write_text(out.getvalue(), encoding="utf-8")
    return 0


def known() -> list[dict[str, str]]:
    """The rows of the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def arguments(program: str) -> list[str]:
    """What `verify` is run with on a program."""
    text = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
    wraps = [] if "init_process_group" in text else ["--wrap", "ddp"]
    return [f"{program}.py", "--device", "cpu", "--nproc", "2", "--timeout", "8", *wraps]


def judged(program: pathlib.Path) -> dict[str, str]:
    """A row of the table: what `verify` says of the finding in a program."""
    said = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    run = subprocess.run(
        [sys.executable, "-m", "ddp_lint", "verify", *arguments(program.stem), "--output-format", "json"],
        cwd=program.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode not in (0, 1):
        raise RuntimeError(run.stderr)
    (finding,) = json.loads(run.stdout)["findings"]
    verdict = {"code": finding["code"], "verdict": finding["verdict"], "reason": finding["reason"]}
    return {"repository": said.partition(":")[0], "program": program.stem, **verdict}


if __name__ == "__main__":
    sys.exit(main())

"""Does `verify` say what is true? Runs every case of truth_cases.py and compares the verdict with the measured outcome.

    python benchmarks/verify_truth.py [--device cuda] [--jobs 8] [--only REGEX] [--out table.md]

A line for each case and wrap: right, undecided (inconclusive, not reached), wrong, or not flagged (no rule fired, so
there was no verdict; what the run discovered is told). With `--device cuda` on two GPUs and 8 jobs: a few minutes.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

from truth_cases import CASES, CUDA_ONLY, HARMFUL, HARMLESS, Case


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One case under one wrap."""

    case: Case
    wrap: str
    said: str
    mark: str
    reason: str
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 3))
    parser.add_argument("--only", default="", help="a regular expression on case:wrap")
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    todo = [(case, wrap) for case in CASES for wrap in case.truth if re.search(given.only, f"{case.name}:{wrap}")]
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        outcomes = []
        for outcome in pool.map(lambda one: examine(*one, device=given.device, timeout=given.timeout), todo):
            outcomes.append(outcome)
            print(f"{outcome.mark:11} {outcome.case.name}:{outcome.wrap} {outcome.said}", file=sys.stderr, flush=True)
    text = table(outcomes) + f"\n{given.device}, {time.monotonic() - started:.0f} s with {given.jobs} at once\n"
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    sys.exit(any(outcome.mark == "WRONG" for outcome in outcomes))


def examine(case: Case, wrap: str, *, device: str, timeout: float) -> Outcome:
    """Run `ddp-lint verify` on one case and compare."""
    command = [sys.executable, "-m", "ddp_lint", "verify", "train.py", "--device", device, "--preview", "--quiet"]
    command += ["--output-format", "json", "--timeout", str(timeout)]
    command += ["--wrap", wrap] if wrap != "script" else []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "train.py").write_text(case.source, encoding="utf-8")
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    seconds = time.monotonic() - started
    try:
        report = json.loads(done.stdout)
    except ValueError:
        return Outcome(case, wrap, "error", "WRONG", done.stderr.strip()[-200:], seconds)
    said, reason = _said(case, report)
    return Outcome(case, wrap, said, _mark(said, case.truth[wrap], device), reason, seconds)


def _said(case: Case, report: dict[str, Any]) -> tuple[str, str]:
    """The strongest verdict among the rules that look for the case (any rule for a safe twin), and its reason."""
    findings = [f for f in report["findings"] if not case.rules or f["code"].startswith(case.rules)]
    for verdict in ("confirmed", "refuted", "inconclusive", "not reached"):
        for finding in findings:
            if finding["verdict"] == verdict:
                return verdict, f"{finding['code']} {finding['reason']}"
    if report["discovered"]:
        return "discovered", report["discovered"][0]["message"]
    return "silent", ""


def _mark(said: str, truth: str, device: str) -> str:
    if truth == CUDA_ONLY:
        truth = HARMFUL if device == "cuda" else CUDA_ONLY
    if said in ("inconclusive", "not reached"):
        return "right" if truth == CUDA_ONLY else "undecided"
    harmful = said in ("confirmed", "discovered")
    if said in ("discovered", "silent") and truth == HARMFUL:
        return "not flagged"
    if truth == CUDA_ONLY:
        return "WRONG" if said == "refuted" else "not flagged"
    return "right" if harmful == (truth == HARMFUL) else "WRONG"


def table(outcomes: list[Outcome]) -> str:
    rows = ["| case | wrap | truth | verdict | | reason |", "|---|---|---|---|---|---|"]
    for one in outcomes:
        reason = " ".join(one.reason.split()).replace("|", "/")[:150]
        cells = (one.case.name, one.wrap, one.case.truth[one.wrap], one.said, one.mark, reason)
        rows.append(f"| {' | '.join(cells)} |")
    counts = collections.Counter(one.mark for one in outcomes)
    judged = sum(counts[mark] for mark in ("right", "undecided", "WRONG"))
    harmless = sum(one.case.truth[one.wrap] == HARMLESS for one in outcomes)
    share = (counts["right"] + counts["WRONG"]) / judged if judged else 0.0
    rows.append("")
    rows.append(
        f"{len(outcomes)} entries ({harmless} harmless): {counts['right']} right, {counts['WRONG']} wrong, "
        f"{counts['undecided']} undecided, {counts['not flagged']} not flagged; decided {share:.0%} of {judged}"
    )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()

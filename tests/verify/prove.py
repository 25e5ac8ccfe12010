"""Prove rules by running their pages: `python -m tests.verify.prove DEVICE` reads `CODE SECTION` from each line of its
standard input and answers with the verdict as one line of JSON. All runs of one such process share a launch.

The Example must be confirmed where the rule flags it. The Use instead has no finding: the rule's oracles are asked
about every line of it at once, and must refute; no run may fail, and nothing may be discovered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import traceback

from ddp_lint.config import Configuration, Overrides
from ddp_lint.findings import Confidence, Finding, Span
from ddp_lint.output import Sources
from ddp_lint.rules.page import Page
from ddp_lint.rules.registry import all_rules
from ddp_lint.verify.finding_context import Situation, situation
from ddp_lint.verify.options import Options
from ddp_lint.verify.pool import Pool
from ddp_lint.verify.results import Verification
from ddp_lint.verify.session import prove, verify
from ddp_lint.verify.target import resolve

EXAMPLE, USE_INSTEAD = "example", "use_instead"
#: Where the page has the program of each.
HEADINGS = {EXAMPLE: "Example", USE_INSTEAD: "Use instead"}
#: What pages import and a proof has no use for: a module in its place, where the package is not installed.
STAND_INS = {"wandb": "def init(**settings): ...\n\n\ndef log(values): ...\n"}
#: FSDP1 too, for the rules whose hazard is its own.
WRAPS = ("ddp", "fsdp2")


def main(device: str) -> None:
    options = Options(wraps=WRAPS, device=device, timeout=float(os.environ.get("DDP_LINT_PROOF_TIMEOUT", "15")))
    with tempfile.TemporaryDirectory() as folder, Pool(pathlib.Path(folder), options, device) as pool:
        for line in sys.stdin:
            try:
                answer = proof(*line.split(), options, pool)
            except Exception:
                answer = {"error": traceback.format_exc()[-3000:]}
            print(json.dumps(answer), flush=True)


def proof(code: str, section: str, options: Options, pool: Pool) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        path = pathlib.Path("train.py")
        path.write_text(Page.of(all_rules()[code]).code(HEADINGS[section]))
        for name, text in STAND_INS.items():
            if f"import {name}\n" in path.read_text() and importlib.util.find_spec(name) is None:
                pathlib.Path(f"{name}.py").write_text(text)
        prove_it = example if section == EXAMPLE else use_instead
        found = prove_it(code, options, path, pool)
    return {
        "verdicts": [judged.verdict.value for judged in found.findings],
        "reasons": [judged.reason for judged in found.findings],
        "evidence": [[dataclasses.astuple(one) for one in judged.evidence] for judged in found.findings],
        "discovered": [discovery.message for discovery in found.discovered],
        "runs": [(e.run.wrap, e.run.stimuli, e.run.outcome, e.run.message, e.run.seconds) for e in found.runs],
        "logs": [outcome.log[-1500:] for e in found.runs if not e.completed for outcome in e.run.ranks],
    }


def example(code: str, options: Options, _path: pathlib.Path, pool: Pool) -> Verification:
    settings = Configuration(Overrides(select=(code,), isolated=True)).of(pathlib.Path.cwd())
    return verify("train.py", options, settings, Sources(), lambda _: None, pool)


def use_instead(code: str, options: Options, path: pathlib.Path, pool: Pool) -> Verification:
    target = resolve("train.py", options)
    return prove("train.py", target, [everywhere(code, path)], options, lambda _: None, pool)


def everywhere(code: str, path: pathlib.Path) -> Situation:
    """A finding that points at the whole file."""
    lines = path.read_text().splitlines()
    span = Span(path.name, 1, 1, len(lines), len(lines[-1]) + 1)
    finding = Finding(code, "", "", span, Confidence.HIGH)
    numbers = frozenset(range(1, len(lines) + 1))
    return dataclasses.replace(situation(finding, lines), lines=numbers, ran=numbers, guards=(), tests=frozenset())


if __name__ == "__main__":
    main(sys.argv[1])

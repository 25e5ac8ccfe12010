"""The `ddp_lint_example()` that is suggested for a model."""

from __future__ import annotations

import dataclasses
import pathlib

from ddp_lint.verify.launch import Launcher, Progress
from ddp_lint.verify.options import Options, UsageError
from ddp_lint.verify.target import EXAMPLE, resolve


def example(text: str, options: Options, progress: Progress) -> tuple[pathlib.Path, str]:
    """The file of the target and the function for its first model. Raises UsageError when there is none to write."""
    target = resolve(text, options)
    if target.kind != "model":
        raise UsageError(f"{target.path}: a script needs no {EXAMPLE}(); name a model in it: {text}:Class")
    if target.entry or f"def {EXAMPLE}(" in target.path.read_text(encoding="utf-8", errors="replace"):
        raise UsageError(f"{target.path}: already has a {target.entry or EXAMPLE}()")
    with Launcher(dataclasses.replace(target, models=target.models[:1]), options, progress) as launcher:
        plan = launcher.probe(sketch=True)
    source = next((text for text in plan.examples.values() if text), "")
    if not source:
        raise UsageError(f"{target.path}: the model offers its own inputs; nothing to write")
    return target.path, source

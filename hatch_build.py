"""Puts into the wheel what all rules declare, so that the first start need not import them all to find out."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RuleIndex(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # rules change there, and what is kept beside the bytecode follows them
            return
        root = pathlib.Path(self.root)
        script = "import json; from ddp_lint.rules.registry import shipped_index; print(json.dumps(shipped_index()))"
        command = [sys.executable, "-B", "-c", script]
        made = subprocess.run(
            command, cwd=root, env={"PYTHONPATH": str(root / "src")}, check=True, capture_output=True, text=True
        )
        place = root / "build" / "index.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(json.loads(made.stdout)), encoding="utf-8")
        build_data["force_include"][str(place)] = "ddp_lint/rules/index.json"

"""Puts into the wheel what all rules declare, so that the first start need not import them all to find out."""

from __future__ import annotations

import json
import os
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
        # What is importable here is so by the environment's own ways (pip's overlay, a virtual environment).
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), *filter(None, sys.path)])}
        made = subprocess.run(command, cwd=root, env=environment, check=False, capture_output=True, text=True)
        if made.returncode:  # without it each start of a fresh installation is slower, that is all
            self.app.display_warning(f"the index of rules is left out: {made.stderr.strip()[-500:]}")
            return
        place = root / "build" / "index.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(json.loads(made.stdout)), encoding="utf-8")
        build_data["force_include"][str(place)] = "ddp_lint/rules/index.json"

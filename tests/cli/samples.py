"""Code with a finding that does not depend on any rule's judgement, and code with a real hazard."""

from __future__ import annotations

from ddp_lint.rules.page import Page
from ddp_lint.rules.registry import documented

#: DDP002 on line 1, with a safe fix.
UNUSED = "x = 1  # noqa: DDP999\n"
FIXED = "x = 1\n"
CLEAN = "x = 1\n"
#: DDP601 (forward-bypasses-wrapper), which is on by default.
HAZARD = Page.of(documented()["DDP601"]).example.replace("  # <- DDP601", "")

"""Causes of what a run shows: why it came about, what to do about it, and the rule that looks for it."""

from __future__ import annotations

import dataclasses

from ddp_lint.knowledge import table
from ddp_lint.verify.trace import Frame


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why, in one sentence, what to do, where it is, and the rule. All empty where the traces do not show it."""

    text: str = ""
    fix: str = ""
    site: Frame | None = None
    code: str = ""

    @classmethod
    def of(cls, damage: str, site: Frame | None = None, /, **facts: object) -> Cause:
        """An entry of `damage.toml` with the facts of this run filled in; one without a cause takes it from `why`."""
        row = table("damage")[damage]
        text = row.get("cause", "{why}").format(**facts)
        return cls(text, row["fix"].format(**facts), site, row.get("code", ""))

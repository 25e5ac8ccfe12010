"""A rule's docstring, taken apart into its documentation page."""

from __future__ import annotations

import dataclasses
import re

from ddp_lint.rules.base import Documented

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Page:
    """Summary line and sections (heading to Markdown body) of one rule."""

    rule: type[Documented]
    sections: dict[str, str]

    @classmethod
    def of(cls, rule: type[Documented]) -> Page:
        parts = _HEADING.split(rule.documentation)[1:]
        return cls(rule, {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)})

    @property
    def example(self) -> str:
        return self.code("Example")

    def code(self, section: str) -> str:
        """The program of a section."""
        match = _CODE.search(self.sections[section])
        if match is None:
            raise ValueError(f"{self.rule.code}: section '{section}' has no python code block")
        return match[1]

    def markdown(self) -> str:
        """The page as docs/rules/DDPNNN.md shows it."""
        rule = self.rule
        state = rule.state() if rule.default else f"{rule.state()}: select it, or use --preview"
        head = f"# {rule.code}: {rule.slug}\n\n{rule.summary}\n\nConfidence {rule.confidence.value}, {state}.\n"
        return head + "".join(f"\n## {title}\n\n{body}\n" for title, body in self.sections.items())

"""What rules about environment variables share: they look at every place that sets one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Finding, Fix, Span
from ddp_lint.launch.environment import TEXT_FILES, Write, in_text, writes
from ddp_lint.rules.base import Rule
from ddp_lint.source import SourceFile
from ddp_lint.view import Module
from ddp_lint.view.edits import replace


def default_instead(module: Module, write: Write, title: str) -> Fix | None:
    """``os.environ.setdefault`` in place of an assignment; None for any other way to set a variable."""
    if not isinstance(write.node, cst.Assign) or write.value is None:
        return None
    text = f"os.environ.setdefault({module.code(write.key)}, {module.code(write.value)})"
    return Fix(title, Applicability.UNSAFE, (replace(module, write.node, text),))


class WriteRule(Rule):
    """A rule that looks at each variable that a file sets."""

    def visit_Assign(self, node: cst.Assign) -> None:
        self._visit(node)

    def visit_Call(self, node: cst.Call) -> None:
        self._visit(node)

    def _visit(self, node: cst.Assign | cst.Call) -> None:
        for write in writes(self.module, node):
            self.check(write)

    def check(self, write: Write) -> None:
        """Look at one variable that is set."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Misnamed:
    """What is wrong with a variable's name, what to do, and the name to write instead, '' for none."""

    message: str
    advice: str
    right: str = ""
    #: How sure it is that anyone has to act; None: as sure as the rule.
    confidence: Confidence | None = None

    def fix(self, span: Span, text: str) -> Fix | None:
        return Fix(f"write {self.right}", Applicability.UNSAFE, (Edit(span, text),)) if self.right else None


class NameRule(WriteRule):
    """A rule about the names of variables, in Python and in the scripts that launch it."""

    files = TEXT_FILES

    @classmethod
    def problem(cls, name: str) -> Misnamed | None:
        """What is wrong with a variable of this name."""
        raise NotImplementedError

    def is_meant(self, write: Write, found: Misnamed) -> bool:
        """Whether the project shows that the name is right all the same."""
        raise NotImplementedError

    @classmethod
    def is_meant_in_text(cls, name: str, found: Misnamed, text: str) -> bool:
        """Whether a script shows that the name is right all the same."""
        raise NotImplementedError

    def check(self, write: Write) -> None:
        found = self.problem(write.name)
        if found is not None and not self.is_meant(write, found):
            text = self.module.code(write.key).replace(write.name, found.right)
            fix = found.fix(self.module.span(write.key), text)
            self.report(write.key, found.message, help=found.advice, fix=fix, confidence=found.confidence)

    @classmethod
    def in_text(cls, file: SourceFile) -> Iterator[Finding]:
        for name, span in in_text(file):
            found = cls.problem(name)
            if found is not None and not cls.is_meant_in_text(name, found, file.text):
                fix = found.fix(span, found.right)
                yield cls.finding(span, found.message, help=found.advice, fix=fix, confidence=found.confidence)

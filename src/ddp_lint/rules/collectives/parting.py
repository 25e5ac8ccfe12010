"""What the rules of rank divergence share: each is for one kind of parting that the analysis finds."""

from __future__ import annotations

import ast
from typing import ClassVar

from ddp_lint.divergence import Kind, Parting, analyse
from ddp_lint.divergence.one_process import is_of_one_process
from ddp_lint.findings import CallSite, Cause, Confidence, Sharing
from ddp_lint.rules.base import Rule
from ddp_lint.rules.collectives.headlines import facts as facts_of
from ddp_lint.rules.collectives.headlines import headline, remedy
from ddp_lint.source.syntax import walk
from ddp_lint.tensors.operations import words_of

#: What a test of ranks that part is named after.
_CONSEQUENCES = frozenset(
    {"timeout", "timeouts", "hang", "hangs", "deadlock", "desync", "stall", "mismatch", "watchdog"}
)


class PartingRule(Rule):
    """A rule whose findings are the partings of one kind.

    The analysis (`ddp_lint.divergence`) says where the ranks part and what each of them does, `headlines` what comes of
    it. The rule visits no nodes: the analysis reads whole files, and is done once a file for all these rules.
    """

    kind: ClassVar[Kind]
    oracles: ClassVar[tuple[str, ...]] = ("sequence", "stall")
    follows_calls: ClassVar[bool] = True

    def finish(self) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None:
            return
        for parting in analyse(facts, project):
            doubtful = parting.confidence is Confidence.LOW or is_of_one_process(self.module.file)
            if self.concerns(parting) and not doubtful and not self._is_meant(parting):
                self.report(
                    parting.span,
                    headline(parting),
                    labels=[(label.span, label.message) for label in parting.labels],
                    notes=facts_of(parting),
                    help=remedy(parting),
                    confidence=parting.confidence,
                    witness=parting.witness,
                    cause=_cause(parting),
                )

    def concerns(self, parting: Parting) -> bool:
        """Partings by files and by exceptions have rules of their own: they need more than the code to be real."""
        return parting.kind is self.kind and parting.cause not in ("file", "exception")

    def _is_meant(self, parting: Parting) -> bool:
        """Does a test let its ranks part on purpose: one of what comes of it, by the name of the file or function?"""
        path = self.module.file.path
        if not self.module.file.is_test or self.module.facts is None:
            return False
        line = parting.span.line
        around = [node for node in walk(self.module.facts.tree) if isinstance(node, ast.FunctionDef)]
        names = [node.name for node in around if node.lineno <= line <= (node.end_lineno or line)]
        return any(words_of(name) & _CONSEQUENCES for name in (path.rpartition("/")[2].partition(".")[0], *names))


def _cause(parting: Parting) -> Cause | None:
    """The branch, and the way to the collective."""
    if parting.branch is None:
        return None
    own = CallSite(parting.span, parting.call)
    way, beside = (tuple(CallSite(step.span, step.callee) for step in of) for of in (parting.way, parting.beside))
    shared = Sharing.NEVER
    if parting.cause == "rank" and way:
        shared = Sharing.ALWAYS if parting.kind is Kind.IMPLICIT else Sharing.ALONE
    return Cause(parting.branch, (own, *way) if way else (), beside, shared)

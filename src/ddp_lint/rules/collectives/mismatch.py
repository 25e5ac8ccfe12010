"""What the rules of rank divergence share: each is for one kind of mismatch that the analysis finds."""

from __future__ import annotations

import ast
from typing import ClassVar

from ddp_lint.divergence import Kind, Mismatch, analyse
from ddp_lint.divergence.one_process import (
    is_name_of_one_process,
    is_of_one_process,
    is_script_of_one_process,
    spawned_alone,
)
from ddp_lint.findings import CallSite, Cause, Confidence, Sharing
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.ranks import is_for_one_process
from ddp_lint.rules.base import Rule
from ddp_lint.rules.collectives.headlines import facts as facts_of
from ddp_lint.rules.collectives.headlines import headline, remedy
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import SourceFile
from ddp_lint.source.syntax import blocks_at

#: What a test of ranks that part is named after.
_CONSEQUENCES = frozenset(
    {"timeout", "timeouts", "hang", "hangs", "deadlock", "desync", "stall", "mismatch", "watchdog"}
)


class MismatchRule(Rule):
    """A rule whose findings are the mismatches of one kind.

    The analysis (`ddp_lint.divergence`) shows where the ranks diverge and what each of them does, `headlines` what
    follows. The rule visits no nodes: the analysis reads whole files, and is done once a file for all these rules.
    """

    triggers = Triggers(communicating=True)
    kind: ClassVar[Kind]
    oracles: ClassVar[tuple[str, ...]] = ("sequence", "stall")

    def finish(self) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or is_of_one_process(self.module.file):
            return
        found = analyse(facts, project)
        for mismatch in found:
            if mismatch.confidence is Confidence.LOW or not self.concerns(mismatch):
                continue
            around = names_around(mismatch.span.line, facts.tree)
            if not around and mismatch.way and is_script_of_one_process(self.module.file):
                continue
            called = (mismatch.call, *(step.callee for step in mismatch.way))
            alone = any(is_name_of_one_process(name.rpartition(".")[2]) for name in (*around, *called))
            alone = alone or bool(spawned_alone(facts.tree).intersection(around))
            alone = alone or is_for_one_process(facts, project, mismatch.span.line)
            if not alone and not is_meant(self.module.file, around):
                self.report(
                    mismatch.span,
                    headline(mismatch),
                    labels=[(label.span, label.message) for label in mismatch.labels],
                    notes=facts_of(mismatch),
                    help=remedy(mismatch),
                    confidence=mismatch.confidence,
                    witness=mismatch.witness,
                    cause=_cause(mismatch),
                )

    def concerns(self, mismatch: Mismatch) -> bool:
        """Mismatches by files and by exceptions have rules of their own: they need more than the code to be real."""
        return mismatch.kind is self.kind and mismatch.cause != "file" and not by_exception(mismatch)


def is_meant(file: SourceFile, around: list[str]) -> bool:
    """Does a test let its ranks diverge on purpose, by the name of the file or of the functions around?"""
    if not file.is_test:
        return False
    name = file.path.rpartition("/")[2].partition(".")[0]
    return any(words_of(each) & _CONSEQUENCES for each in (name, *around))


def by_exception(mismatch: Mismatch) -> bool:
    """Does an exception decide? A lack of memory does so too, as ranks mostly allocate alike: of its readings at a
    collective none was real. What it does to a backward or a step is another matter: there most were."""
    out_of_memory = mismatch.cause == "memory" and mismatch.caught and mismatch.kind is Kind.CONDITION
    return mismatch.cause == "exception" or out_of_memory


def names_around(line: int, tree: ast.Module) -> list[str]:
    """The names of the functions that the line lies in."""
    return [block.name for block in blocks_at(tree, line) if isinstance(block, ast.FunctionDef)]


def _cause(mismatch: Mismatch) -> Cause | None:
    """The branch, and the way to the collective."""
    if mismatch.branch is None:
        return None
    own = CallSite(mismatch.span, mismatch.call)
    way, beside = (tuple(CallSite(step.span, step.callee) for step in of) for of in (mismatch.way, mismatch.beside))
    shared = Sharing.NEVER
    if mismatch.cause == "rank" and way:
        shared = Sharing.ALWAYS if mismatch.kind is Kind.IMPLICIT else Sharing.ALONE
    return Cause(mismatch.branch, (own, *way) if way else (), beside, shared)

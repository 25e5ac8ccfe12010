"""What the rules of rank divergence share: each words one kind of parting that the analysis finds."""

from __future__ import annotations

import ast
from typing import ClassVar

from ddp_lint.divergence import Kind, Parting, analyse
from ddp_lint.divergence.one_process import is_of_one_process
from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.source.syntax import walk
from ddp_lint.tensors.operations import words_of

#: What a test of ranks that part is named after.
_CONSEQUENCES = frozenset(
    {"timeout", "timeouts", "hang", "hangs", "deadlock", "desync", "stall", "mismatch", "watchdog"}
)
_SKIP = "let all ranks skip the round together: all_reduce the decision before the `continue` (MAX: any rank skips)"
_EXIT = "let all ranks leave together: broadcast the decision before the exit, or raise an error, which ends the job"


class PartingRule(Rule):
    """A rule whose findings are the partings of one kind.

    The analysis (`ddp_lint.divergence`) says where the ranks part and what each of them does; the rule says what
    comes of it. It visits no nodes: the analysis reads whole files, and is done once a file for all these rules.
    """

    kind: ClassVar[Kind]
    oracles: ClassVar[tuple[str, ...]] = ("sequence", "stall")

    def finish(self) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None:
            return
        for parting in analyse(facts, project):
            doubtful = parting.confidence is Confidence.LOW or is_of_one_process(self.module.file)
            if self.concerns(parting) and not doubtful and not self._is_meant(parting):
                self.report(
                    parting.span,
                    self.message(parting),
                    labels=[(label.span, label.message) for label in parting.labels],
                    notes=parting.notes,
                    help=self._help(parting),
                    confidence=parting.confidence,
                    witness=parting.witness,
                )

    def _help(self, parting: Parting) -> str:
        if parting.exit is None:
            return self.remedy(parting)
        return _SKIP if parting.skips else _EXIT

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

    def message(self, parting: Parting) -> str:
        """One line: what the one rank does, what the other does."""
        raise NotImplementedError

    def remedy(self, parting: Parting) -> str:
        """What to write instead."""
        raise NotImplementedError


def reached_by(parting: Parting) -> str:
    """Who gets to the call, for use after "runs": "on rank 0 only", "under ..., which depends on ..."."""
    if parting.rounds:
        return f"in the loop over `{parting.condition}`, whose number of rounds depends on {parting.says}"
    if parting.cause in ("rank", "membership"):
        return "on rank 0 only" if parting.ranks[0] == "rank 0" else f"on some ranks only, {without(parting)}"
    if not parting.condition:
        return f"only on some ranks, depending on {parting.says}"
    if parting.exit is not None:
        return f"unless the rank has left before, under `{parting.condition}`, which depends on {parting.says}"
    return f"under `{parting.condition}`, which depends on {parting.says}"


def without(parting: Parting) -> str:
    """Who is missing: "not on rank 0", or "not on every rank" where each rank decides for itself."""
    return "not on every rank" if parting.ranks[1] == "another rank" else f"not on {parting.ranks[1]}"


def operation(parting: Parting) -> str:
    """The call as written, with the collective that it stands for where the two differ, and the group."""
    called = parting.call.rpartition(".")[2]
    through = "" if called == parting.op else f" ({parting.op})"
    return f"`{parting.call}`{through}" + (f" on {parting.group}" if parting.group else "")


def whenever(parting: Parting) -> str:
    """The condition under which the call communicates at all: " (when ...)" or ''."""
    return f" (when {parting.when})" if parting.when else ""

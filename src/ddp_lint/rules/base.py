"""What a rule is: one class, one file, whose docstring is its documentation page."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import libcst as cst

from ddp_lint.findings import Cause, Confidence, Finding, Fix, Label, RankTrace, Span, fitted
from ddp_lint.launch.alone import shown_alone
from ddp_lint.launch.failing import fails_before
from ddp_lint.launch.given import needs_constant_changed, needs_option_left_off, needs_other_values
from ddp_lint.launch.importable import cannot_be_imported, is_put_together
from ddp_lint.launch.never_none import needs_none
from ddp_lint.launch.one_process import as_one_process
from ddp_lint.launch.reached.walk import is_never_reached_from_programs
from ddp_lint.launch.unused import is_left_file, is_unused
from ddp_lint.rules.calibrated import calibrated, surest_at
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import SourceFile
from ddp_lint.source.control_flow import is_never_reached
from ddp_lint.view import Module

RULE_FILE = re.compile(r"\.ddp(\d{3})_(\w+)$")


def _docstring(of: type) -> str:
    """The docstring of a class, read from its file where Python leaves docstrings out (``-OO``)."""
    if of.__doc__ is None:
        (definition,) = ast.parse(inspect.getsource(of)).body
        return ast.get_docstring(definition) or "" if isinstance(definition, ast.ClassDef) else ""
    return inspect.cleandoc(of.__doc__)


class Documented:
    """What has a code and a page: rules, and the findings about the run itself (DDP0xx).

    Code and slug come from the file name (``ddp401_load_without_map_location.py``), the summary from the docstring's
    first line; the docstring is the documentation page.
    """

    code: ClassVar[str]
    slug: ClassVar[str]
    documentation: ClassVar[str]
    summary: ClassVar[str]
    #: By the readings of its findings, where there are enough (`calibrated`), else as declared by the rule.
    confidence: ClassVar[Confidence] = Confidence.HIGH
    #: No finding has a higher confidence than the readings.
    ceiling: ClassVar[Confidence] = Confidence.HIGH
    #: False: found only when selected by name or with --preview, because its measured precision does not carry it.
    default: ClassVar[bool] = True
    #: Its findings in tests are as sure as elsewhere (`calibrated.surest_at`).
    in_tests_too: ClassVar[bool] = False
    #: True, of a rule that is off by default: source cannot decide and a run can, so it is on in `verify`.
    run_decides: ClassVar[bool] = False
    #: What it finds harms several ranks alone: of low confidence where the project starts a program with one process,
    #: and where a test says that there is one.
    of_several: ClassVar[bool] = False
    #: What it finds costs time, or a status: of low confidence where it needs an option that no command turns on, or a
    #: switch at the top of the file that is off.
    of_small_harm: ClassVar[bool] = False
    #: The PyTorch release from which on the hazard does not exist: with `target-torch` at it or above, the rule is off.
    gone_in: ClassVar[tuple[int, int] | None] = None

    @classmethod
    def state(cls) -> str:
        """Whether it is on by default."""
        if cls.default:
            return "on by default"
        return "off by default, except in `verify`" if cls.run_decides else "off by default"

    def __init_subclass__(cls) -> None:
        match = RULE_FILE.search(cls.__module__)
        if match:
            cls.code = f"DDP{match[1]}"
            cls.slug = match[2].replace("_", "-")
            cls.documentation = _docstring(cls)
            cls.summary = cls.documentation.partition("\n")[0]
            cls.confidence = calibrated("rules", cls.code) or cls.confidence
            cls.ceiling = calibrated("rules", cls.code) or Confidence.HIGH


class Rule(Documented):
    """A visitor of one file.

    Subclasses define `visit_<Node>` / `leave_<Node>` for LibCST node types and call `report`. One instance is made per
    file; state lives on it. `start` runs before the walk, `finish` after it.

    `triggers` says where the rule looks: definitions (and files) without a trigger of any active rule are not parsed.
    """

    triggers: ClassVar[Triggers] = Triggers()
    #: Globs on the names of files other than Python that the rule reads as well, by `in_text`: shell scripts, YAML.
    files: ClassVar[tuple[str, ...]] = ()
    #: What `verify` must observe to confirm the hazard: names of `verify.oracles.ORACLES`, any of which suffices.
    oracles: ClassVar[tuple[str, ...]] = ()
    #: True where gloo on a CPU cannot show the hazard (TRUTH: "Where gloo and NCCL disagree").
    needs_cuda: ClassVar[bool] = False

    def __init__(self, module: Module, emit: Callable[[Finding], None]) -> None:
        self.module = module
        self._emit = emit

    @classmethod
    def in_text(cls, file: SourceFile) -> Iterator[Finding]:
        """The findings in a file that one of the globs `files` matches."""
        return iter(())

    @classmethod
    def finding(
        cls, span: Span, message: str, *, help: str = "", fix: Fix | None = None, confidence: Confidence | None = None
    ) -> Finding:
        """A finding of this rule in a file that is not Python."""
        return Finding(cls.code, cls.slug, fitted(message), span, confidence or cls.confidence, help=help, fix=fix)

    def start(self) -> None:
        """Called before the walk."""

    def finish(self) -> None:
        """Called after the walk."""

    def report(  # noqa: PLR0913 - one argument for each part of a finding
        self,
        where: cst.CSTNode | Span,
        message: str,
        *,
        labels: Iterable[tuple[cst.CSTNode | Span, str]] = (),
        notes: Iterable[str] = (),
        help: str = "",
        confidence: Confidence | None = None,
        witness: Iterable[RankTrace] = (),
        fix: Fix | None = None,
        cause: Cause | None = None,
        needs_cuda: bool = False,
        needs_nodes: bool = False,
    ) -> None:
        """Emit a finding.

        `message` is one sentence of at most `findings.HEADLINE` characters (code in backquotes is cut to fit) that says
        what goes wrong for the user; `labels` point at the places that explain it, `notes` give further facts, `cause`
        is what others may depend on too; `needs_cuda` says that gloo on a CPU cannot show this one, `needs_nodes` that
        ranks of one machine cannot. What no run reaches is not reported; what nothing in the project uses, or what no
        program that it shows meets, is of low confidence.
        """
        if isinstance(where, cst.CSTNode) and is_never_reached(self.module, where):
            return
        if self._sure(confidence or self.confidence) is not Confidence.LOW and self._meets_no_run(where):
            confidence = Confidence.LOW
        span_of = self._span_of
        self._emit(
            Finding(
                code=self.code,
                slug=self.slug,
                message=fitted(message),
                span=span_of(where),
                confidence=self._sure(confidence or self.confidence),
                labels=tuple(Label(span_of(at), text) for at, text in labels),
                notes=tuple(notes),
                help=help,
                witness=tuple(witness),
                fix=fix,
                cause=cause,
                needs_cuda=needs_cuda,
                needs_nodes=needs_nodes,
            )
        )

    def _meets_no_run(self, where: cst.CSTNode | Span) -> bool:
        """Whether the project shows no run that comes to a place, or none with ranks that what is found needs."""
        project, facts = self.module.project, self.module.facts
        if project is None or facts is None:
            return False
        if is_put_together(project, facts):
            return True
        if not facts.name:
            return False
        if cannot_be_imported(project, facts) or (self.of_several and shown_alone(facts, project)):
            return True
        line = self._span_of(where).line
        if is_left_file(project, facts) or fails_before(project, facts, line):
            return True
        if is_unused(project, facts, line) or is_never_reached_from_programs(project, facts, line):
            return True
        if not isinstance(where, cst.CSTNode):
            return False
        if needs_none(self.module, where) or needs_other_values(self.module, where):
            return True
        if self.of_several and as_one_process(self.module, where):
            return True
        needs = (needs_option_left_off, needs_constant_changed)
        return self.of_small_harm and any(asks(self.module, where) for asks in needs)

    def _sure(self, confidence: Confidence) -> Confidence:
        return confidence.at_most(self.ceiling).at_most(
            surest_at(self.module.file.place, in_tests_too=self.in_tests_too)
        )

    def _span_of(self, where: cst.CSTNode | Span) -> Span:
        return where if isinstance(where, Span) else self.module.span(where)

"""One file in, its findings out."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from ddp_lint.config import Settings
from ddp_lint.engine import suppressions
from ddp_lint.engine.fingerprints import with_fingerprints
from ddp_lint.engine.focus import Focus, Selection
from ddp_lint.engine.frames import with_room
from ddp_lint.engine.report import FileResult, rule_crashed
from ddp_lint.findings import Confidence, Finding, spans_in
from ddp_lint.knowledge.project_names import Names
from ddp_lint.project import Asked, Project
from ddp_lint.project.changing import change, edit
from ddp_lint.rules.calibrated import surest_at
from ddp_lint.rules.registry import Declaration, declared, following_calls, rules_for_text
from ddp_lint.source import SourceFile, Unreadable

if TYPE_CHECKING:
    from ddp_lint.project.communication import Reach

#: What may be the number of a line in a text.
_PLACE = re.compile(r"\.py:\d|\bline \d")
#: A stack of 8 MB holds twice as many.
_FRAMES = 5000
#: Comments that suppress nothing: known when all rules have looked.
_ABOUT_ALL = frozenset({"DDP002"})


class Checker:
    """Checks files of one project, one after the other, and keeps what it learns about other files.

    `for_cache`: results record what they depend on. `changing`: files may change, which `change` reports. `reach`:
    which functions of the project can communicate, if known. `project`: with what is known of its files already.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        for_cache: bool = False,
        changing: bool = False,
        reach: Reach | None = None,
        project: Project | None = None,
    ) -> None:
        self._settings = settings
        self._for_cache = for_cache
        self.project = project or Project(settings.root, names=settings.names, changing=changing)
        self.project.communication.reach = reach
        if not (for_cache or self.project.is_changing):
            self.project.stop_recording()

    def change(self, path: pathlib.Path, file: SourceFile | None) -> bool:
        """From now on `file` is the content of `path`; None: what is on disk, as it is now. Whether the change lies
        within functions and moves no line."""
        analysed = "ddp_lint.divergence.analyse" in sys.modules  # nothing to forget where nothing was analysed
        if file is not None and edit(self.project, path, file):
            if analysed:
                from ddp_lint.divergence.analyse import let_go_of_edited

                let_go_of_edited(self.project)
            return True
        if analysed:
            from ddp_lint.divergence.analyse import let_go

            let_go(self.project, path)
        change(self.project, path, file)
        return False

    def look(
        self, file: SourceFile, path: pathlib.Path, before: Iterable[Finding], edited: Collection[int]
    ) -> tuple[Finding, ...] | None:
        """The findings after a change within functions, at a first look; None where it takes more than that.

        What the rules that visit nodes find in the changed functions is new. All else is as it was `before`, but for
        what depends on one of the `edited` lines: for effects of the change elsewhere see `check_file`.
        """
        active = self._settings.enabled - self._settings.ignored_in(path) - _ABOUT_ALL - self._left_out(file)
        from ddp_lint.engine.file_visit import visit_edited

        with _deep_recursion():
            look = visit_edited(file, path, self.project, self._focus(file, active))
        if look is None:
            return None
        again = active - following_calls()

        def remains(finding: Finding) -> bool:
            spans = [span for span in spans_in((finding,)) if span.path == file.path]
            if any(line in edited for span in spans for line in range(span.line, span.end_line + 1)):
                return False
            return not (finding.code in again and look.holds(finding))

        found = self._reported(look.found, file, path, active)
        return tuple(sorted([*filter(remains, before), *found], key=lambda f: f.sort_key))

    def check(self, path: pathlib.Path) -> FileResult:
        """The result for one file. Raises nothing: what goes wrong is in the result."""
        shown = self.project.paths.shown(path)
        try:
            file = SourceFile.read(path, shown, self.project.paths.inside(path))
        except Unreadable as e:
            return FileResult(shown, error=str(e))
        return self.check_file(file, path)

    def check_file(self, file: SourceFile, path: pathlib.Path) -> FileResult:
        """The result for what is taken as the content of `path`."""
        before = self.project.charges.turn_to(file.path)
        try:
            with self.project.recording() as asked, _deep_recursion():
                findings, parsed = self._found_in(file, path)
            dependencies = self._dependencies(asked, findings) if self._for_cache else ()
            searched = tuple(self.project.contents.searched()) if self._for_cache else ()
            outcomes = tuple(self.project.outcomes.take(file.inside))
        except Exception as e:  # a defect of ours must not cost the other files
            return FileResult(file.path, error=f"ddp-lint failed on it, please report: {type(e).__name__}: {e}")
        finally:
            self.project.charges.turn_to(before)
        charges = self.project.charges.take()
        return FileResult(
            file.path, tuple(findings), "", dependencies, searched, outcomes, charges=charges, parsed=parsed
        )

    def _dependencies(self, asked: set[Asked], findings: list[Finding]) -> tuple[tuple[str, str], ...]:
        """What a result depends on: all of the text of files that it shows places in."""
        shown = {span.path for span in spans_in(tuple(findings))}
        places = any(_PLACE.search(text) for f in findings for text in (f.message, f.help, *f.notes))
        return tuple(
            self.project.answers.dependencies(
                asked, map(self.project.paths.inside_of_shown, shown), places=places
            ).items()
        )

    @with_room
    def _found_in(self, file: SourceFile, path: pathlib.Path, *, focused: bool = True) -> tuple[list[Finding], bool]:
        """The findings of a file, and whether LibCST had to parse anything."""
        self.project.modules.hold(path, file)
        active = self._settings.enabled - self._settings.ignored_in(path)
        readers = rules_for_text(path.name, file.first_line)
        if readers:
            found = _in_text(file, [rule for rule in readers if rule.code in active])
            return self._reported(found, file, path, active), False
        looked_for = active - self._left_out(file)
        found, parsed = self._visit(file, path, active, looked_for, focused=focused)
        return self._reported(found, file, path, looked_for), parsed

    def _left_out(self, file: SourceFile) -> frozenset[str]:
        """The codes that need not be looked for, as all that they find would be left out for the place of the file."""
        return frozenset(
            code
            for code in self._settings.sure & _rules()
            if surest_at(file.place, in_tests_too=declared()[code].in_tests_too) is Confidence.LOW
        )

    def _visit(
        self, file: SourceFile, path: pathlib.Path, active: frozenset[str], looked_for: frozenset[str], *, focused: bool
    ) -> tuple[list[Finding], bool]:
        """What the rules with the codes that are `looked_for` find in Python. A file that concerns any `active` rule
        has to be parsed: a syntax error is reported."""
        if not self._focus(file, active):
            return [], False
        focus = self._focus(file, looked_for, communicating=self.project.communication.may_be_in(file.inside))
        if not focus and self.project.modules.facts_of(path) is not None:
            return [], False
        from ddp_lint.engine.file_visit import (
            visit,  # with LibCST, which takes longer to import than most files to check
        )

        return visit(file, path, self.project, focus, focused)

    def _focus(self, file: SourceFile, active: frozenset[str], *, communicating: bool = True) -> Focus:
        selection = _selection(active, self.project.own.names)
        return selection.concerned(file.text, test=file.is_test, communicating=communicating)

    def _reported(
        self, found: list[Finding], file: SourceFile, path: pathlib.Path, active: frozenset[str]
    ) -> list[Finding]:
        """The findings that neither comments nor settings suppress, sorted, with fingerprints."""
        ignored = self._settings.ignored_in(path)
        found = [finding for finding in found if finding.code not in ignored]
        found = suppressions.apply(file, found, active, noqa=self._settings.noqa)
        # A comment that suppresses a doubtful finding is in use, so these go last.
        found = [f for f in found if f.confidence is not Confidence.LOW or f.code not in self._settings.sure]
        found = with_fingerprints(found, file, self.project.paths.inside(path))
        return list(map(file.cells.located, found)) if file.cells else found


@contextlib.contextmanager
def _deep_recursion() -> Iterator[None]:
    """What `parsing.check_depth` lets pass is looked into by functions that call themselves, some frames a level."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def check_file(
    file: SourceFile, path: pathlib.Path, project: Project, settings: Settings, *, focus: bool = True
) -> list[Finding]:
    """The findings of one file, as `Checker.check_file` has them, where a defect of ours raises its error.

    `path` is absolute; `file` is what to take for its content. `focus=False` parses the whole file, for comparison:
    the findings are the same.
    """
    checker = Checker(settings, for_cache=True, reach=project.communication.reach, project=project)
    return checker._found_in(file, path, focused=focus)[0]


def preload(settings: Settings) -> None:
    """Import all that a large run needs, before processes are forked off."""
    from ddp_lint.engine import file_visit  # noqa: F401

    for rule in declared().values():
        if rule.code in settings.enabled:
            rule.rule()


@functools.cache
def _rules() -> frozenset[str]:
    """The codes of all that looks at files, other than what is found about the run itself."""
    return frozenset(code for code, rule in declared().items() if rule.looks)


@functools.lru_cache(maxsize=64)
def _selection(active: frozenset[str], names: Names) -> Selection:
    return Selection((rule for code, rule in declared().items() if rule.looks and code in active), names)


def _in_text(file: SourceFile, readers: list[Declaration]) -> list[Finding]:
    """The findings in a shell script, a Dockerfile or YAML."""
    found: list[Finding] = []
    for rule in (rule.rule() for rule in readers):
        try:
            found += rule.in_text(file)
        except Exception as e:  # one rule's defect must not cost the file
            found.append(rule_crashed(file, rule, e))
    return found

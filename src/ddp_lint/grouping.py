"""One cause, one finding: findings that depend on the same branch, or on the same callee, are reported once.

What the others say is kept with the first as its `paths`. Which is the first decides where the reader is sent: to the
place nearest to the branch, not to a caller far away. Grouping goes by the findings' typed causes alone.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Iterator

from ddp_lint.findings import HEADLINE, CallSite, Confidence, Finding, Label, Sharing, fitted
from ddp_lint.project import Project
from ddp_lint.project.uses import uses

_SURENESS = list(Confidence)
#: Replicas that drift apart; where ranks also hang, the hang is what one sees first.
_SECONDARY = frozenset({"DDP109"})


def grouped(findings: Iterable[Finding], project: Project) -> list[Finding]:
    """The findings, sorted, each cause once. `project` answers who else calls a callee."""
    of_places = [_one(group) for group in _by_place(findings)]
    callers = _Callers(project, of_places)
    found: list[Finding] = []
    for group in _by_callee(of_places):
        if len(group) > 1 and callers.are_all_in(group):
            found.append(_of_callee(group))
        else:
            found += group
    return sorted(found, key=lambda f: f.sort_key)


def words_of(findings: Iterable[Finding]) -> list[str]:
    """The words that `grouped` may search the project for."""
    causes = [f.cause for f in findings if f.cause is not None and f.cause.shared is not Sharing.NEVER]
    ends = collections.Counter(cause.way[-1].span for cause in causes)
    return sorted({f"{_name(site)}(" for cause in causes if ends[cause.way[-1].span] > 1 for site in cause.way[:-1]})


def _by_place(findings: Iterable[Finding]) -> Iterator[list[Finding]]:
    groups: dict[Hashable, list[Finding]] = {}
    for number, finding in enumerate(findings):
        groups.setdefault(finding.cause.place if finding.cause else number, []).append(finding)
    yield from groups.values()


def _by_callee(findings: Iterable[Finding]) -> Iterator[list[Finding]]:
    """Findings by the collective in a callee that they lead to, where it can be what has to change."""
    groups: dict[Hashable, list[Finding]] = {}
    for number, finding in enumerate(findings):
        cause = finding.cause
        shared = cause is not None and cause.shared is not Sharing.NEVER
        key = (finding.code, cause.way[-1].span) if cause is not None and shared else number
        groups.setdefault(key, []).append(finding)
    yield from groups.values()


def _one(group: list[Finding]) -> Finding:
    first, *others = sorted(group, key=_distance)
    here = (first.span.path, first.span.line)
    paths: dict[Hashable, Label] = {}
    for other in (each for each in others if (each.span.path, each.span.line) != here):
        paths.setdefault((other.code, other.span.path, other.span.line), _path(other))
    return dataclasses.replace(first, paths=(*first.paths, *paths.values())) if paths else first


def _distance(finding: Finding) -> tuple[object, ...]:
    """How far from its cause a finding is, the surest and nearest first."""
    cause, span = finding.cause, finding.span
    away = cause is not None and span.path != cause.place.path
    outside = cause is not None and not cause.place.line <= span.line <= cause.place.end_line
    return (_SURENESS.index(finding.confidence), away, finding.code in _SECONDARY, outside, finding.sort_key)


def _of_callee(group: list[Finding]) -> Finding:
    first, *others = sorted(group, key=_distance)
    paths = [*first.paths, *(path for other in others for path in (_path(other), *other.paths))]
    count = f". {len(paths) + 1} call paths"
    message = fitted(first.message, room=HEADLINE - len(count)) + count
    return dataclasses.replace(first, message=message, paths=tuple(paths))


def _path(finding: Finding) -> Label:
    return Label(finding.span, f"{finding.code} {finding.message}")


class _Callers:
    """Who calls the functions of a project, by name."""

    def __init__(self, project: Project, findings: Iterable[Finding]) -> None:
        self._project = project
        self._known: dict[str, set[tuple[str, int]]] = {}
        for cause in (finding.cause for finding in findings if finding.cause is not None):
            for site in (*cause.way[:-1], *cause.beside):
                self._known.setdefault(_name(site), set()).add((site.span.path, site.span.line))

    def are_all_in(self, group: list[Finding]) -> bool:
        """Is the callee that these findings lead to their one cause? See `Sharing`.

        Nobody reaches it in another way if all calls of the functions on the way are on the way of some finding.
        """
        causes = [finding.cause for finding in group if finding.cause is not None]
        if all(cause.shared is Sharing.ALWAYS for cause in causes):
            return True
        names = {_name(site) for cause in causes for site in cause.way[:-1]}
        return all(self._calls_are_at(name, self._known[name]) for name in sorted(names))

    def _calls_are_at(self, name: str, known: set[tuple[str, int]]) -> bool:
        for path in self._project.contents.holding(f"{name}("):
            facts = self._project.modules.facts_of(path)
            if facts is None:
                return False
            calls = (use.call for use in uses(facts, name) if use.call is not None)
            if any((facts.file.path, call.lineno) not in known for call in calls):
                return False
        return True


def _name(site: CallSite) -> str:
    return site.callee.rpartition(".")[2]

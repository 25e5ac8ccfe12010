"""Why a collective is not reported: silence is a result, and a reader may ask for its reason."""

from __future__ import annotations

import ast
import dataclasses
import functools
import operator
import pathlib
from collections.abc import Iterator

from ddp_lint.divergence.analyse import Result, Root, result_of, roots, summaries_of, word_of
from ddp_lint.divergence.frame import span_of
from ddp_lint.divergence.groups import Group, can_part
from ddp_lint.divergence.summaries import Summaries
from ddp_lint.divergence.values import Condition
from ddp_lint.divergence.words import Choice, Emit, Letter, Loop, Node, TooLarge, Words
from ddp_lint.findings import Label, Span
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts

#: Functions with larger words are explained by their size alone: what governs a letter costs the square of it.
_BOUND = 4_000
#: A column behind the end of every line.
_LINE_END = 10_000


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What the analysis holds of one collective, or of one call that it holds to be none.

    `parts` tells whether ranks part there; `reason` is one line; `labels` are the tests that decide who gets there.
    """

    span: Span
    what: str
    parts: bool
    reason: str
    labels: tuple[Label, ...] = ()


def explain(path: pathlib.Path, project: Project, line: int | None = None) -> list[Explanation]:
    """The collectives of a file; with `line`, those on it, else the other calls on it. [] for a file without Python."""
    facts = project.facts_of(path)
    if facts is None:
        return []
    found = [e for e in _collectives(facts, project) if line is None or e.span.line <= line <= e.span.end_line]
    if line is not None and not found:
        found = list(_other_calls(facts, project, line))
    return sorted(set(found), key=lambda e: (e.span, e.what, e.reason))


# ---- collectives


def _collectives(facts: ModuleFacts, project: Project) -> Iterator[Explanation]:
    result, summaries = result_of(facts, project), summaries_of(project)
    for root in roots(facts, summaries):
        if root.seen_from is not None:
            continue  # the method is another file's; what it means for this one is in the result
        skipped = (getattr(root.node, "lineno", 1), root.name) in result.skipped
        span = span_of(facts, root.node)
        size = Explanation(
            span, root.name, False, "the function is larger than the analysis looks at, so it stays silent"
        )
        words = None if skipped else _words(root, facts, summaries)
        if words is None or len(words.nodes) > _BOUND:
            yield size
            continue
        yield from _of_words(words, result)


def _words(root: Root, facts: ModuleFacts, summaries: Summaries) -> Words | None:
    try:
        return word_of(root, facts, summaries)[0]
    except (TooLarge, RecursionError):
        return None


def _of_words(words: Words, result: Result) -> Iterator[Explanation]:
    parted = {parting.span: parting for parting in result.partings}
    guards = _guards(words)
    for node in words.nodes:
        if not isinstance(node, Emit):
            continue
        letter, tests = node.letter, guards[node.number]
        labels = tuple(dict.fromkeys(_label(test, condition) for test in tests if (condition := _condition(test))))
        parting = parted.get(letter.span)
        if parting is not None:
            reason = f"it depends on {parting.says or parting.condition}, and the ranks part there"
        else:
            reason = _reason(letter, tests)
        yield Explanation(letter.span, _name(letter), parting is not None, reason, labels)


def _label(test: Choice | Loop, condition: Condition) -> Label:
    """The test, at the first line of its statement."""
    end = test.span.end_column if test.span.end_line == test.span.line else _LINE_END
    head = dataclasses.replace(test.span, end_line=test.span.line, end_column=end)
    return Label(head, f"`{condition.text}` decides who gets here")


def _name(letter: Letter) -> str:
    return f"{letter.op} (through {letter.call})" if letter.chain else letter.op


def _reason(letter: Letter, tests: list[Choice | Loop]) -> str:
    """Why ranks do not part at a letter that is governed by `tests`."""
    conditions = [condition for test in tests if (condition := _condition(test))]
    if not conditions:
        return "no test decides who gets here: every rank that enters the function does"
    varying = [condition for condition in conditions if condition.varies is not None]
    if not varying:
        return f"{_quoted(conditions)} chosen alike by all ranks, as far as the analysis can tell"
    stream = letter.stream
    if isinstance(stream, Group) and not any(can_part(c.varies, stream) for c in varying if c.varies):
        return f"{_quoted(varying)} chosen alike by all members of its group: only they take part"
    return (
        f"whatever {_quoted(varying, verb=False)} says, the ranks take part in the same collectives in the same order"
    )


def _quoted(conditions: list[Condition], verb: bool = True) -> str:
    texts = list(dict.fromkeys(f"`{condition.text}`" for condition in conditions))
    listed = " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))
    return f"{listed} {'is' if len(texts) == 1 else 'are'}" if verb else listed


def _condition(test: Choice | Loop) -> Condition | None:
    return test.condition if isinstance(test, Choice) else test.rounds


def _guards(words: Words) -> list[list[Choice | Loop]]:
    """For each node the choices and loops that decide whether it is reached: it is on one way only."""
    reach: list[int] = []  # a bit for every node that can follow, itself included
    guards: list[list[Choice | Loop]] = [[] for _ in words.nodes]
    for node in words.nodes:
        ways = [reach[way.number] for way in _ways(node)]
        reach.append(functools.reduce(operator.or_, ways, 1 << node.number))
        if isinstance(node, Choice):
            decided = ways[0] ^ ways[1]
        elif isinstance(node, Loop):
            decided = ways[0] & ~ways[1]
        else:
            continue
        for other in range(node.number):
            if decided >> other & 1:
                guards[other].append(node)
    return guards


def _ways(node: Node) -> list[Node]:
    if isinstance(node, Emit):
        return [node.after]
    if isinstance(node, Choice):
        return [node.yes, node.no]
    return [node.body, node.after] if isinstance(node, Loop) else []


# ---- calls that are no collectives


def _other_calls(facts: ModuleFacts, project: Project, line: int) -> Iterator[Explanation]:
    for node in ast.walk(facts.tree):
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno):
            name = project.meaning(facts, node.func)
            if name:
                reason = "as far as ddp-lint knows, no rank waits for another one in it"
            else:
                reason = "the call is not resolved, and what is not resolved never makes a finding"
            yield Explanation(span_of(facts, node), name or ast.unparse(node.func), False, reason)

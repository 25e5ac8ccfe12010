"""What each rank called: a lane for each rank, a row for each meeting of a group."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from ddp_lint.output import Sources
from ddp_lint.verify.match import Row, describe, place
from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.report import excerpts
from ddp_lint.verify.results import Examined
from ddp_lint.verify.trace import Collective

#: Rows of a run that are shown at once: the first, and those around the mismatch or the end.
_HEAD_ROWS, _TAIL_ROWS = 8, 16
#: Longest run of rows that is looked for as a pattern that repeats.
_LONGEST_PATTERN = 24


def table(examined: Examined) -> str:
    """The lanes of a run."""
    run = examined.run
    ranks = [outcome.rank for outcome in run.ranks]
    head = "".join(f"<th>rank {rank}</th>" for rank in ranks)
    ends = "".join(_end(outcome) for outcome in run.ranks)
    return (
        f'<div class="scroll"><table class="lanes"><thead><tr><th>step</th>{head}</tr></thead>'
        f"<tbody>{''.join(_rows(examined.rows, ranks))}<tr><td></td>{ends}</tr></tbody></table></div>"
    )


def branch(examined: Examined, sources: Sources) -> str:
    """The calls at which the ranks diverge, with the conditions around them."""
    if not examined.mismatches:
        return ""
    first = examined.mismatches[0]
    calls = [call for call in first.calls.values() if call is not None]
    calls += [culprit.collective for culprit in first.culprits[:2]]
    places: dict[str, list[int]] = {}
    for call in calls:
        path, line = place(call)
        if line:
            places.setdefault(shown(path), []).append(line)
    found = "".join(excerpts.of_branch(path, lines, sources) for path, lines in places.items())
    return f'<div class="branch"><p><b>Where the ranks diverge</b></p>{found}</div>' if found else ""


# ---- rows


class _Stretch(NamedTuple):
    """Rows `first` to `last` (exclusive): shown, or the text in their place."""

    first: int
    last: int
    instead: str = ""


def _rows(rows: Sequence[Row], ranks: Sequence[int]) -> Iterator[str]:
    mismatch_at = next((n for n, row in enumerate(rows) if row.mismatch), None)
    step: int | None = None
    for stretch in _stretches(rows, mismatch_at):
        if stretch.instead:
            empty = "<td></td>" * (len(ranks) - 1)
            yield f'<tr class="fold"><td></td><td>{escape(stretch.instead)}</td>{empty}</tr>'
            continue
        for number in range(stretch.first, stretch.last):
            here = _step(rows[number])
            after = mismatch_at is not None and number > mismatch_at
            yield from _row(rows[number], ranks, after=after, step=here if here != step else None)
            step = here


def _stretches(rows: Sequence[Row], mismatch_at: int | None) -> Iterator[_Stretch]:
    """The beginning, with repetitions shown once, and what leads up to the mismatch or the end."""
    total = len(rows)
    focus = total if mismatch_at is None else min(total, mismatch_at + _TAIL_ROWS // 2)
    even = total if mismatch_at is None else mismatch_at
    shown_rows, at = 0, 0
    for first, length, times in _patterns([_key(row) for row in rows[:even]]):
        last = first + length * times
        if times == 1 or last > even:
            continue
        if shown_rows + length > _HEAD_ROWS + _LONGEST_PATTERN:
            break
        if first > at:
            yield from _plain(at, first, focus)
        yield _Stretch(first, first + length)
        steps = _step_range(rows[first + length : last])
        what = f"the same {length} calls" if length > 1 else "the same call"
        yield _Stretch(first + length, last, f"{what} {times - 1} more time{'s' * (times > 2)}{steps}")
        shown_rows += length
        at = last
    yield from _plain(at, focus, focus)
    if focus < total:
        yield _Stretch(focus, total, f"{total - focus} more rows")


def _plain(first: int, last: int, focus: int) -> Iterator[_Stretch]:
    """Rows without a pattern: all of a few, else the first and the last of them."""
    if last - first <= _HEAD_ROWS + _TAIL_ROWS:
        yield _Stretch(first, last)
        return
    tail = _TAIL_ROWS if last == focus else 0
    yield _Stretch(first, first + _HEAD_ROWS)
    yield _Stretch(first + _HEAD_ROWS, last - tail, f"{last - tail - first - _HEAD_ROWS} more rows that line up")
    yield _Stretch(last - tail, last)


def _patterns(keys: Sequence[object]) -> Iterator[tuple[int, int, int]]:
    """(first, length, times): runs of rows that repeat; of several the one that covers most."""
    at = 0
    while at < len(keys):
        length, times = 1, 1
        for candidate in range(1, min(_LONGEST_PATTERN, len(keys) - at) + 1):
            count = _repeats(keys, at, candidate)
            if count > 1 and count * candidate > length * times:
                length, times = candidate, count
        if times > 1 and length * times < 4:
            length, times = 1, 1
        yield at, length, times
        at += length * times


def _repeats(keys: Sequence[object], at: int, length: int) -> int:
    pattern = keys[at : at + length]
    return sum(1 for _ in itertools.takewhile(lambda n: keys[n : n + length] == pattern, range(at, len(keys), length)))


def _key(row: Row) -> object:
    """What is shown of a row, without its step."""
    return row.group, tuple((rank, _text(call)) for rank, call in row.calls.items())


def _text(call: Collective | None) -> tuple[object, ...]:
    return (describe(call), place(call), call.issued_by) if call is not None else ()


def _step(row: Row) -> int:
    return max((call.step for call in row.calls.values() if call is not None), default=0)


def _step_range(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    first, last = _step(rows[0]) + 1, _step(rows[-1]) + 1
    return f", steps {first} to {last}" if last > first else f", step {last}"


def _row(row: Row, ranks: Sequence[int], *, after: bool, step: int | None) -> Iterator[str]:
    kind = "part" if row.mismatch else "after" if after else ""
    cells = "".join(_cell(row.calls[rank]) if rank in row.calls else "<td></td>" for rank in ranks)
    if row.mismatch:
        text = f"the lanes diverge here: {row.mismatch.kind.value}"
        yield f'<tr class="part-note"><td></td><td colspan="{len(ranks)}">{escape(text)}</td></tr>'
    number = "" if step is None else str(step + 1)
    yield f'<tr class="{kind}"><td class="step">{number}</td>{cells}</tr>'


def _cell(call: Collective | None) -> str:
    if call is None:
        return '<td class="none">nothing</td>'
    path, line = place(call)
    op, _, rest = describe(call).partition(" ")
    who = {"ddp": "DDP, ", "fsdp": "FSDP, ", "torch": "torch, "}.get(call.issued_by, "")
    at = (
        f'<span class="at">{who}{escape(shown(path))}:{line}</span>'
        if line
        else f'<span class="at">{who}no user line</span>'
    )
    return f"<td><b>{escape(op)}</b> {escape(rest)}{at}</td>"


def _end(outcome: RankOutcome) -> str:
    trouble = "" if outcome.how == "completed" else " trouble"
    frame = outcome.last.frame
    at = (
        f'<span class="at">{escape(shown(frame.path))}:{frame.line} in {escape(frame.function)}</span>' if frame else ""
    )
    message = f" {escape(' '.join(outcome.message.split())[:300])}" if outcome.message else ""
    return f'<td class="end{trouble}"><b>{escape(outcome.how.replace("_", " "))}</b>{message}{at}</td>'

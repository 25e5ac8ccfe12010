"""One self-contained page: verdicts beside their source, and a lane for each rank with its collectives in order."""

from __future__ import annotations

import collections
import importlib.resources
from collections.abc import Iterator, Sequence
from html import escape

from ddp_lint import __version__
from ddp_lint.findings import Finding, Label, Span
from ddp_lint.output import Sources
from ddp_lint.verify.match import Row, describe, place
from ddp_lint.verify.options import RankOutcome
from ddp_lint.verify.oracles import shown
from ddp_lint.verify.report.full import run_name
from ddp_lint.verify.results import Discovery, Evidence, Examined, Judged, Verdict, Verification
from ddp_lint.verify.spec import STIMULI
from ddp_lint.verify.trace import Collective

#: Lines of context around the primary span.
_CONTEXT = 2
#: Rows of a run that are shown at once: the first, and those around the mismatch or the end.
_HEAD_ROWS, _TAIL_ROWS = 8, 16


def render(verification: Verification, sources: Sources, color: bool) -> str:
    css = importlib.resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(_body(verification, sources))
    title = escape(f"{verification.target}: ddp-lint verify")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _body(verification: Verification, sources: Sources) -> Iterator[str]:
    several = len({examined.run.model for examined in verification.runs}) > 1
    yield f"<header><h1>{escape(verification.target)}</h1>{_where(verification)}{_counts(verification)}</header>"
    yield f"<section><h2>Runs</h2>{_runs(verification.runs, several)}</section>"
    if verification.findings:
        cards = "".join(_finding(judged, sources) for judged in sorted(verification.findings, key=_weight))
        yield f"<section><h2>Findings</h2>{cards}</section>"
    if verification.discovered:
        cards = "".join(_discovery(discovery) for discovery in verification.discovered)
        yield f"<section><h2>Discovered by running, without a static finding</h2>{cards}</section>"
    yield "<section><h2>What each rank called</h2>"
    yield from (_lanes(examined, several) for examined in verification.runs)
    yield f"</section><footer>ddp-lint {escape(__version__)}</footer>"


def _weight(judged: Judged) -> int:
    return [Verdict.CONFIRMED, Verdict.INCONCLUSIVE, Verdict.NOT_REACHED, Verdict.REFUTED].index(judged.verdict)


# ---- head


def _where(verification: Verification) -> str:
    where = verification.environment
    text = f"{where['nproc']} ranks on {where['backend']} ({where['device']}), torch {where['torch']}"
    return f'<p class="soft">{escape(text)}</p>'


def _counts(verification: Verification) -> str:
    counts = collections.Counter(judged.verdict for judged in verification.findings)
    badges = [
        f"<li>{_badge(verdict.value, f'{counts[verdict]} {verdict.value}')}</li>"
        for verdict in Verdict
        if counts[verdict]
    ]
    if verification.discovered:
        badges.append(f"<li>{_badge('discovered', f'{len(verification.discovered)} discovered')}</li>")
    if not badges:
        badges.append(f"<li>{_badge('refuted', 'no findings')}</li>")
    return f'<ul class="counts">{"".join(badges)}</ul>'


def _badge(kind: str, text: str = "") -> str:
    known = {"hang": "hung", "crash": "failed", "exception": "failed", "exit": "failed", "oom": "failed"}
    name = known.get(kind, kind).replace(" ", "-").replace("_", "-")
    return f'<span class="badge {escape(name)}">{escape(text or kind)}</span>'


def _runs(runs: Sequence[Examined], several: bool) -> str:
    rows = []
    for examined in runs:
        run = examined.run
        first = str(examined.mismatches[0]) if examined.mismatches else "" if examined.completed else run.message
        rows.append(
            f"<tr><td>{escape(run_name(examined, several))}</td><td>{_badge(run.outcome)}</td>"
            f'<td class="number">{run.seconds:.1f} s</td><td>{escape(first) or "the ranks never part"}</td></tr>'
        )
    head = '<tr><th>run</th><th>outcome</th><th class="number">time</th><th>first mismatch</th></tr>'
    return f'<div class="scroll"><table class="runs"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'


# ---- findings


def _finding(judged: Judged, sources: Sources) -> str:
    finding = judged.finding
    advice = (
        f"<p><b>Instead:</b> {escape(finding.help)}</p>"
        if finding.help and judged.verdict is not Verdict.REFUTED
        else ""
    )
    return (
        f'<article class="card" id="{escape(finding.fingerprint)}"><header>{_badge(judged.verdict.value)}'
        f"<h3>{escape(finding.code)} {escape(finding.slug)}</h3>"
        f'<span class="soft mono">{escape(finding.span.path)}:{finding.span.line}</span></header>'
        f"<p>{escape(finding.message)}</p>{_sources(finding, sources)}"
        f'<p class="reason">{escape(judged.reason)}</p>{_evidence(judged.evidence)}{advice}</article>'
    )


def _sources(finding: Finding, sources: Sources) -> str:
    """The lines around the finding and its labels, file by file."""
    labels = [Label(finding.span, ""), *finding.labels]
    paths = dict.fromkeys(label.span.path for label in labels)
    tables = []
    for path in paths:
        lines = sources.lines(path)
        here = [label for label in labels if label.span.path == path]
        if lines:
            tables.append(_excerpt(path, lines, here, finding.span))
    return "".join(tables)


def _excerpt(path: str, lines: Sequence[str], labels: Sequence[Label], primary: Span) -> str:
    wanted: set[int] = set()
    for label in labels:
        context = _CONTEXT if label.span == primary else 0
        wanted |= set(range(label.span.line - context, min(label.span.end_line, label.span.line + 6) + context + 1))
    rows, previous = [], 0
    for number in sorted(line for line in wanted if 1 <= line <= len(lines)):
        if previous and number > previous + 1:
            rows.append('<tr class="gap"><td>⋮</td><td></td></tr>')
        previous = number
        rows.append(f"<tr><td>{number}</td><td>{_marked(lines[number - 1], number, labels, primary)}</td></tr>")
        for label in labels:
            if label.span.end_line == number and label.message:
                kind = "note primary" if label.span == primary else "note"
                rows.append(f'<tr class="{kind}"><td></td><td>↑ {escape(label.message)}</td></tr>')
    return f'<div class="code"><table><caption class="mono">{escape(path)}</caption>{"".join(rows)}</table></div>'


def _marked(text: str, number: int, labels: Sequence[Label], primary: Span) -> str:
    """The line with its marked stretches; where marks overlap, the one that starts first stands."""
    out, at = [], 0
    marks = sorted((*_columns(text, number, label.span), label.span == primary) for label in labels)
    for start, end, is_primary in marks:
        if start < max(at, 0) or end <= start:
            continue
        kind = "" if is_primary else ' class="label"'
        out.append(f"{escape(text[at:start])}<mark{kind}>{escape(text[start:end])}</mark>")
        at = end
    return "".join(out) + escape(text[at:])


def _columns(text: str, number: int, span: Span) -> tuple[int, int]:
    """The stretch of a line that a span covers, as character offsets; empty when it does not touch the line."""
    if not span.line <= number <= span.end_line:
        return 0, 0
    start = span.column - 1 if number == span.line else len(text) - len(text.lstrip())
    end = span.end_column - 1 if number == span.end_line else len(text.rstrip())
    return start, min(end, len(text))


def _evidence(evidence: Sequence[Evidence]) -> str:
    items = []
    for one in evidence:
        who = one.wrap if one.rank is None else f"{one.wrap}, rank {one.rank}"
        at = f' <span class="soft mono">{escape(one.path)}:{one.line}</span>' if one.line else ""
        items.append(
            f'<li><span class="where">{escape(who)}<br>{escape(one.kind.replace("_", " "))}</span>'
            f"<p>{escape(one.message)}{at}</p></li>"
        )
    return f'<ul class="evidence">{"".join(items)}</ul>' if items else ""


def _discovery(discovery: Discovery) -> str:
    cause = f"<p>{escape(discovery.cause)}</p>" if discovery.cause else ""
    fix = f"<p><b>Instead:</b> {escape(discovery.fix)}</p>" if discovery.fix else ""
    name = f"{discovery.code} {discovery.kind}".strip().replace("_", " ")
    return (
        f'<article class="card"><header>{_badge("discovered")}<h3>{escape(name)}</h3></header>'
        f'<p class="reason">{escape(discovery.message)}</p>{cause}{_evidence(discovery.evidence)}{fix}</article>'
    )


# ---- lanes


def _lanes(examined: Examined, several: bool) -> str:
    """A column for each rank, a row for each meeting of a group."""
    run = examined.run
    ranks = [outcome.rank for outcome in run.ranks]
    head = "".join(f"<th>rank {rank}</th>" for rank in ranks)
    stimuli = "".join(f"<p>{escape(STIMULI[name])}</p>" for name in run.stimuli)
    ends = "".join(_end(outcome) for outcome in run.ranks)
    table = (
        f'<div class="scroll"><table class="lanes"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(_lane_rows(examined.rows, ranks))}<tr><td></td>{ends}</tr></tbody></table></div>"
    )
    name = escape(run_name(examined, several))
    return (
        f'<article class="card"><header><h3>{name}</h3>{_badge(run.outcome)}'
        f'<span class="soft">{escape(run.message)}</span></header>{stimuli}{table}</article>'
    )


def _lane_rows(rows: Sequence[Row], ranks: Sequence[int]) -> Iterator[str]:
    parted = next((n for n, row in enumerate(rows) if row.mismatch), None)
    for first, last, hidden in _stretches(len(rows), parted):
        if hidden:
            text = f"{last - first} more rows" + ("" if parted is not None and first > parted else " that line up")
            yield f'<tr class="fold"><td></td><td>{text}</td>{"<td></td>" * (len(ranks) - 1)}</tr>'
            continue
        for number in range(first, last):
            yield from _lane_row(rows[number], number, ranks, after=parted is not None and number > parted)


def _stretches(total: int, parted: int | None) -> Iterator[tuple[int, int, bool]]:
    """(first, past the last, hidden): the beginning, and what leads up to the mismatch or the end."""
    focus = total if parted is None else min(total, parted + _TAIL_ROWS // 2)
    start = max(_HEAD_ROWS, focus - _TAIL_ROWS)
    yield 0, min(_HEAD_ROWS, total), False
    if start > _HEAD_ROWS:
        yield _HEAD_ROWS, start, True
    yield min(start, total), min(focus, total), False
    if focus < total:
        yield focus, total, True


def _lane_row(row: Row, number: int, ranks: Sequence[int], after: bool) -> Iterator[str]:
    kind = "part" if row.mismatch else "after" if after else ""
    cells = "".join(_cell(row.calls[rank]) if rank in row.calls else "<td></td>" for rank in ranks)
    if row.mismatch:
        text = f"the lanes part here: {row.mismatch.kind.value}"
        yield f'<tr class="part-note"><td></td><td colspan="{len(ranks)}">{escape(text)}</td></tr>'
    yield f'<tr class="{kind}"><td>{number + 1}</td>{cells}</tr>'


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

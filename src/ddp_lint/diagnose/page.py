"""The answer as one HTML file that needs nothing else: the timeline of the ranks, and what was read."""

from __future__ import annotations

import html
from collections.abc import Iterator

from ddp_lint.diagnose.records import Event
from ddp_lint.diagnose.report import full
from ddp_lint.diagnose.session import Answer
from ddp_lint.output import in_markup
from ddp_lint.output.style import Style
from ddp_lint.verify.match import describe

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; color: #1c1e21; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1.05rem; margin-top: 2rem }
pre { background: #f4f5f7; padding: 1rem; overflow-x: auto; border-radius: 6px }
table { border-collapse: collapse; width: 100% } td, th { padding: .2rem .5rem; text-align: left; vertical-align: top }
tr + tr td { border-top: 1px solid #e3e5e8 }
td.text { font-family: ui-monospace, monospace; font-size: 12px; word-break: break-word }
.lane { position: relative; height: 22px; border-bottom: 1px solid #e3e5e8 }
.lane span { position: absolute; left: 0; width: 5.5rem }
.track { position: absolute; left: 6rem; right: 0; top: 0; bottom: 0 }
.dot { position: absolute; top: 6px; width: 10px; height: 10px; margin-left: -5px;
  border-radius: 50%; background: #9aa0a6 }
.own, .exit { background: #d93025 } .hang, .diverged { background: #e8710a }
.secondary, .launcher { background: #9aa0a6 }
.warning, .note { background: #fbbc04 } .root { outline: 3px solid #1a73e8 }
@media (prefers-color-scheme: dark) { body { background: #17181a; color: #e8eaed } pre { background: #24262a }
tr + tr td, .lane { border-color: #3c4043 } }
"""
_MOST = 2000


def page(answer: Answer) -> str:
    """The whole document. Everything from the log is escaped."""
    found = answer.diagnosis
    title = f"{found.verdict}: {found.kind}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_e(title)}</h1>",
        f"<pre>{_e(full(answer, Style(False)))}</pre>",
        "<h2>The ranks' events, in the order of the log</h2>",
        *_lanes(answer),
        "<h2>All events</h2>",
        *_events(answer),
        *_flight(answer),
        "</body></html>\n",
    ]
    return in_markup("\n".join(parts))


def _e(text: object) -> str:
    return html.escape(str(text))


def _lanes(answer: Answer) -> Iterator[str]:
    """One line for each rank; a dot's place is that of its line in the log."""
    events = answer.reading.events[:_MOST]
    last = max((event.order for event in events), default=1) or 1
    lanes: dict[int | None, list[Event]] = {}
    for event in events:
        lanes.setdefault(event.rank, []).append(event)
    for rank in sorted(lanes, key=lambda rank: (rank is None, rank or 0)):
        dots = "".join(_dot(event, last, answer) for event in lanes[rank])
        name = "no rank" if rank is None else f"rank {rank}"
        yield f'<div class="lane"><span>{name}</span><div class="track">{dots}</div></div>'


def _dot(event: Event, last: int, answer: Answer) -> str:
    root = " root" if _is_root(event, answer) else ""
    return (
        f'<i class="dot {_e(event.role)}{root}" style="left:{100 * event.order / last:.2f}%" '
        f'title="{_e(f"{event.quote.source}:{event.quote.number} {event.quote.text[:300]}")}"></i>'
    )


def _is_root(event: Event, answer: Answer) -> bool:
    return any((q.source, q.number) == (event.quote.source, event.quote.number) for q in answer.diagnosis.root)


def _events(answer: Answer) -> Iterator[str]:
    yield "<table><tr><th>line</th><th>rank</th><th>role</th><th>kind</th><th>text</th></tr>"
    for event in answer.reading.events[:_MOST]:
        mark = " <b>(root)</b>" if _is_root(event, answer) else ""
        rank = "" if event.rank is None else event.rank
        yield (
            f"<tr><td>{_e(event.quote.source)}:{event.quote.number}</td><td>{rank}</td><td>{_e(event.role)}{mark}</td>"
            f'<td>{_e(event.kind)}</td><td class="text">{_e(event.quote.text[:600])}</td></tr>'
        )
    yield "</table>"


def _flight(answer: Answer) -> Iterator[str]:
    flight = answer.flight
    if flight is None:
        return
    yield "<h2>Last collectives of each rank</h2><table><tr><th>rank</th>"
    yield (
        "".join(f"<th>call {row.position}{' (the ranks diverge)' if row.mismatch else ''}</th>" for row in flight.rows)
        + "</tr>"
    )
    for dump in flight.dumps[:_MOST]:
        cells = []
        for row in flight.rows:
            call = row.calls.get(dump.rank)
            site = f" at {call.site.path}:{call.site.line}" if call is not None and call.site else ""
            cells.append(f'<td class="text">{_e(describe(call) + site) if call is not None else "-"}</td>')
        yield f"<tr><td>{dump.rank}</td>{''.join(cells)}</tr>"
    yield "</table>"

"""The answer for people and for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ddp_lint.diagnose.records import Diagnosis, Event, Quote
from ddp_lint.diagnose.session import Answer
from ddp_lint.knowledge.signatures import kind_in_words, next_of, of_subkind
from ddp_lint.output import in_json, one_line, visible
from ddp_lint.output.style import Style
from ddp_lint.verify.match import describe
from ddp_lint.verify.trace import Frame

_WIDTH = 160
#: What names the parameter, the key or the rank in a message of many lines.
_TELLING = re.compile(
    r"did not receive grad|key\(s\)|Unsupported|missing ranks|error msg|Process \d+: |Original exception|"
    r"Last error|Duplicate"
)
_COLLECT = (
    "run again with `torchrun --log-dir logs --tee 3`, @record on main(), TORCH_FR_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and pass the folder to diagnose"
)
_HANG_ENVIRONMENT = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_DISTRIBUTED_DEBUG=DETAIL"


def place_text(frame: Frame | None) -> str | None:
    """`train.py:88`: the path as the job saw it may be another one here."""
    return f"{frame.path.replace(chr(92), '/').rpartition('/')[2]}:{frame.line}" if frame else None


def full(answer: Answer, style: Style, verbose: bool = False) -> str:
    """At most twelve lines in the common case; all events with `verbose`."""
    lines = list(_lines(answer, style))
    if verbose:
        lines += ["", *_timeline(answer, style)]
    return "\n".join(lines) + "\n"


def _lines(answer: Answer, style: Style) -> Iterator[str]:
    found = answer.diagnosis
    yield _headline(found, style)
    for quote in _shown(found):
        yield f"  {style.dim(_where(quote))} {_cut(quote.text)}"
    if found.who:
        yield _line("ranks", _cut(found.who, 2 * _WIDTH), style)
    if found.secondary:
        yield _line("follows", _consequences(found), style)
    if found.launcher:
        yield _line("launcher", found.launcher, style)
    yield from _joined(answer, style)
    cause, sure = _cause(found)
    yield _line("cause", f"{cause} ({sure})" if sure else cause, style)
    if fix := _fix(found):
        yield _line("fix", fix, style)
    yield _line("next", next_step(answer), style)


def _headline(found: Diagnosis, style: Style) -> str:
    paint = {"OK": style.green, "UNKNOWN": style.yellow}.get(found.verdict, style.red)
    parts = [paint(style.bold(found.verdict))]
    if found.rank is not None:
        parts.append(f"rank {found.rank}")
    if found.place is not None:
        function = f" in {found.place.function}" if found.place.function not in ("", "<module>") else ""
        parts.append(one_line(f"{found.place.path}:{found.place.line}{function}"))
    name = found.kind + (f", {found.subkind}" if found.subkind else "")
    what = kind_in_words(found.kind) if found.kind != "unknown" else "the log does not show why the job ended"
    if found.benign:
        what = kind_in_words("no-failure") if found.subkind == "benign" else f"a false alarm: {what}"
    return f"{'  '.join(parts)}  {what} [{visible(name)}]"


def _shown(found: Diagnosis) -> list[Quote]:
    """Three lines: the first, and those of a long message that name something."""
    first, *others = found.root or (None,)
    telling = sorted(others, key=lambda quote: _TELLING.search(quote.text) is None)[:2]
    return [] if first is None else [first, *sorted(telling, key=others.index)]


def _where(quote: Quote) -> str:
    return one_line(f"{quote.source}:{quote.number}:")


def _cut(text: str, width: int = _WIDTH) -> str:
    text = visible(" ".join(text.split()))
    return text if len(text) <= width else text[: width - 1] + "…"


def _line(name: str, text: str, style: Style) -> str:
    return f"  {style.bold((name + ':').ljust(10))}{one_line(text)}"


def _consequences(found: Diagnosis) -> str:
    first = found.secondary[0]
    more = len(found.secondary) - 1
    also = f" and {more} more line{'s' * (more > 1)}" if more else ""
    return f"{_where(first)} {_cut(first.text, 90)}{also} only follow{'s' * (not more)} from it"


def _joined(answer: Answer, style: Style) -> Iterator[str]:
    joined = answer.joined
    if joined is None:
        return
    finding = joined.finding
    at = f"{joined.local.path.name}:{joined.local.frame.line}"
    if finding is None:
        yield _line("check", f"no rule of check fires at {at} or in the function around it", style)
        return
    place = finding.cause.place if finding.cause is not None else None
    branch = next((label for label in finding.labels if label.span == place), None)
    where = f"{branch.span.path}:{branch.span.line}: {branch.message}; " if branch else ""
    yield _line("check", f"{where}{finding.span.path}:{finding.span.line} {finding.code} {finding.message}", style)


def _of_subkind(found: Diagnosis) -> tuple[str, str] | None:
    """Cause and fix that the sub-kind adds, where the error text does not tell it by itself."""
    if found.known is not None and found.known.subkind == found.subkind:
        return None
    named = len(found.event.named) if found.event is not None else 0
    return of_subkind(found.subkind, blamed=1 if found.rank is not None else named if named > 1 else 0)


def _cause(found: Diagnosis) -> tuple[str, str]:
    if found.kind == "early-exit-zero":
        return (
            "A rank ended without an error (sys.exit(0), os._exit(0), a return) while its peers still communicate.",
            found.sure,
        )
    if found.kind == "unknown":
        return "unknown", ""
    if special := _of_subkind(found):
        return special[0], found.sure
    if found.known is not None:
        return found.known.cause, found.sure
    if found.cut_off:
        return "The log ends before the exception: what failed at that line is not in it.", found.sure
    what = found.what[:300].strip("*_`").rstrip(".: ")
    if found.place is None:
        stop = "" if what.endswith(("?", "!")) else "."
        return f"{what}{stop} The log does not show which line of your own code led to it.", found.sure
    of = " on the data or state of this rank" if found.rank is not None else ""
    return f"{what}: the code at that line failed{of}.", found.sure


def _fix(found: Diagnosis) -> str:
    if found.kind == "early-exit-zero":
        return (
            "Let all ranks leave together (all_reduce the decision to stop), and do not exit with status 0 in an "
            "except or finally."
        )
    if special := _of_subkind(found):
        return special[1]
    if found.known is not None:
        return found.known.fix
    if found.kind == "unknown":
        return ""
    if found.cut_off:
        return (
            "Get the lines that follow: the exception's name and message stand below the last frame (torchrun "
            "--log-dir logs --tee 3 keeps each rank's output)."
        )
    if found.place is None:
        return "Start from the exception's own words, and look for the frames above it in the whole log."
    if found.rank is None:
        return "Fix that line."
    return "Fix that line; if only some ranks can fail there, let all of them stop together."


def next_step(answer: Answer) -> str:
    """What to do now: a command, or what to collect in the next run."""
    found = answer.diagnosis
    if found.subkind == "false-positive" and found.known is not None:
        return found.known.next
    if found.verdict == "OK":
        return "nothing to fix; if the job died, its cause is not in this log: " + _COLLECT
    if found.verdict == "UNKNOWN":
        return _COLLECT
    if found.known is not None and found.known.next:
        return found.known.next
    path = answer.joined.local.path if answer.joined else None
    command = f"ddp-lint check {_relative(path)}" if path else _named_check(found)
    if found.verdict in ("HANG", "DIVERGENCE") and answer.flight is None:
        return f"{command}; for the next run set {_HANG_ENVIRONMENT}"
    return command


def _relative(path: Any) -> str:
    import pathlib

    here = pathlib.Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _named_check(found: Diagnosis) -> str:
    if found.place is not None:
        return f"ddp-lint check {place_text(found.place).rpartition(':')[0]}"  # type: ignore[union-attr]
    if step := next_of(found.kind):
        return step
    if found.known is not None and found.known.code:
        return f"ddp-lint rule {found.known.code}"
    return "ddp-lint check ."


def _timeline(answer: Answer, style: Style) -> Iterator[str]:
    """All events in the order of the log, then the last collectives of each rank."""
    yield style.bold("events")
    root = {(quote.source, quote.number) for quote in answer.diagnosis.root}
    for event in answer.reading.events:
        mark = "*" if (event.quote.source, event.quote.number) in root else " "
        who = f"rank {event.rank}" if event.rank is not None else "-"
        times = f" (x{event.count})" if event.count > 1 else ""
        name = event.known.id if event.known else _cut(event.type) or "event"
        yield f" {mark}{_where(event.quote):>14} {who:8} {event.role:10} {name:24} {_cut(event.quote.text, 90)}{times}"
    if answer.flight is not None:
        yield from _table(answer, style)


def _table(answer: Answer, style: Style) -> Iterator[str]:
    """Ranks x last collectives."""
    flight = answer.flight
    assert flight is not None
    yield style.bold("last collectives (* not complete, ! where the ranks diverge)")
    for dump in flight.dumps[:64]:
        cells = []
        for row in flight.rows:
            call = row.calls.get(dump.rank)
            state = "" if call is None or flight.state(dump.rank, call) == "completed" else "*"
            mark = "!" if row.mismatch else ""
            site = f"@{call.site.line}" if call is not None and call.site else ""
            cells.append(one_line(f"{mark}{describe(call)}{site}{state}") if call is not None else f"{mark}-")
        yield f"  rank {dump.rank:<5} {' | '.join(cells)}"
    if len(flight.dumps) > 64:
        yield f"  and {len(flight.dumps) - 64} more ranks"


# ---- JSON


def as_dict(answer: Answer) -> dict[str, Any]:
    """The contract of --output-format json (docs/diagnose.schema.json)."""
    found = answer.diagnosis
    cause, sure = _cause(found)
    return {
        "version": 1,
        "verdict": found.verdict,
        "kind": found.kind,
        "subkind": found.subkind or None,
        "culprit_rank": found.rank,
        "line": place_text(found.place),
        "place": _frame(found.place),
        "root": [quote.text for quote in found.root],
        "secondary": [quote.text for quote in found.secondary],
        "evidence": [_quote(quote) for quote in found.root],
        "ranks": found.who or None,
        "launcher": found.launcher or None,
        "cause": cause,
        "confidence": sure or "low",
        "fix": _fix(found) or None,
        "codes": list(found.known.codes) if found.known else [],
        "signature": found.known.id if found.known else None,
        "check": _check(answer),
        "next": next_step(answer),
        "events": [_event(event) for event in answer.reading.events[:1000]],
        "flight": _flight(answer),
        "problems": list(answer.problems),
        "lines": answer.reading.lines,
    }


def _frame(frame: Frame | None) -> dict[str, Any] | None:
    return {"path": frame.path, "line": frame.line, "function": frame.function or None} if frame else None


def _quote(quote: Quote) -> dict[str, Any]:
    return {"source": quote.source, "line": quote.number, "rank": quote.rank, "text": quote.text}


def _event(event: Event) -> dict[str, Any]:
    return {
        **_quote(event.quote),
        "rank": event.rank,
        "kind": event.kind,
        "role": event.role,
        "signature": event.known.id if event.known else None,
        "place": _frame(event.site.user),
        "count": event.count,
    }


def _check(answer: Answer) -> dict[str, Any] | None:
    joined = answer.joined
    if joined is None:
        return None
    finding = joined.finding
    return {
        "path": str(joined.local.path),
        "line": joined.local.frame.line,
        "code": finding.code if finding else None,
        "message": finding.message if finding else None,
        "at": f"{finding.span.path}:{finding.span.line}" if finding else None,
        "labels": [{"at": f"{x.span.path}:{x.span.line}", "message": x.message} for x in finding.labels]
        if finding
        else [],
    }


def _flight(answer: Answer) -> dict[str, Any] | None:
    flight = answer.flight
    if flight is None:
        return None
    return {
        "ranks": [dump.rank for dump in flight.dumps],
        "without_dump": list(flight.without),
        "mismatches": [
            {"kind": m.kind.value, "group": m.group, "position": m.position, "text": str(m)[:2000]}
            for m in flight.mismatches[:20]
        ],
        "last": [
            {
                "position": row.position,
                "parts": row.mismatch is not None,
                "calls": {str(rank): describe(call) if call else None for rank, call in row.calls.items()},
            }
            for row in flight.rows
        ],
    }


def as_json(answer: Answer) -> str:
    return in_json(json.dumps(as_dict(answer), indent=2, ensure_ascii=False)) + "\n"

"""The format for people: each finding with its source, verdict and evidence; what was discovered; the runs.

DDP201 parameter-written-in-forward: ...
  --> model.py:14:9
   |
14 |         self.fc.weight.data.mul_(0.9)
   |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
   |
confirmed: under fsdp2: ...
  fsdp2  rank 0  write  line 14  mul_ wrote fc.weight into the copy that FSDP gathers ...
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from ddp_lint.knowledge.signatures import secondary
from ddp_lint.output import Sources, one_line, visible, visible_finding
from ddp_lint.output.full import excerpt, headline
from ddp_lint.output.style import Style
from ddp_lint.verify.missing_requirements import last_lines
from ddp_lint.verify.report.notes import all_notes
from ddp_lint.verify.results import Discovery, Evidence, Examined, Judged, Verdict, Verification

#: Lines of its own output that are shown of each rank of a run that hangs.
_LAST_OF_HANG = 2


def render(verification: Verification, sources: Sources, color: bool) -> str:
    style = Style(color)
    blocks = [_finding(judged, sources, style) for judged in verification.findings]
    if verification.lacks:
        blocks.append([f"{style.red('could not run')}: {visible(verification.lacks)}"])
    if verification.discovered:
        blocks.append([style.bold("Discovered by running, without a static finding")])
        blocks += [_discovery(discovery, sources, style) for discovery in verification.discovered]
    blocks.append([*_table(verification, style), *_notes(verification, style)])
    blocks.append([_summary(verification)])
    return "\n".join("".join(f"{row.rstrip()}\n" for row in block) for block in blocks)


def _finding(judged: Judged, sources: Sources, style: Style) -> list[str]:
    finding = visible_finding(judged.finding)
    rows = [headline(finding, style), *excerpt(finding, sources, style)]
    rows.append(f"{_painted(judged.verdict, style)}: {visible(judged.reason)}")
    rows += _evidence(judged.evidence, finding.span.path, style)
    if finding.help and judged.verdict is not Verdict.REFUTED:
        rows.append(f"{style.cyan('help')}: {finding.help}")
    return rows


def _painted(verdict: Verdict, style: Style) -> str:
    paint = {Verdict.CONFIRMED: style.red, Verdict.REFUTED: style.green, Verdict.INCONCLUSIVE: style.yellow}
    return paint.get(verdict, style.bold)(verdict.value)


def _evidence(evidence: Sequence[Evidence], path: str, style: Style) -> list[str]:
    """One line each, in columns: wrap, rank, kind, place, what was seen."""
    cells = [
        (
            one.wrap,
            "" if one.rank is None else f"rank {one.rank}",
            one.kind,
            "" if not one.line else f"line {one.line}" if one.path == path else f"{one.path}:{one.line}",
        )
        for one in evidence
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if cells else []
    rows = []
    for one, row in zip(evidence, cells, strict=True):
        head = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width)
        rows.append(f"  {style.blue(one_line(head))}  {visible(one.message)}")
    return rows


def _notes(verification: Verification, style: Style) -> list[str]:
    texts = [f"{name} was left out: {_why(reason)}" for name, reason in verification.left_out.items()]
    return [f"{style.cyan('note')}: {visible(text)}" for text in (*texts, *all_notes(verification.runs))]


def _why(reason: str) -> str:
    """Of why a model could not be built the error; the lines to add are shown while it is tried."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 else reason


def _discovery(discovery: Discovery, sources: Sources, style: Style) -> list[str]:
    head = f"{discovery.code} " if discovery.code else ""
    rows = [f"{style.red(visible(head + discovery.kind))}: {style.bold(visible(discovery.message))}"]
    rows += [f"  {style.blue(one_line(_place(one)))}" for one in discovery.evidence if one.line]
    rows += source_line(discovery, sources)
    if discovery.cause:
        rows.append(f"{style.cyan('cause')}: {visible(discovery.cause)}")
    if discovery.fix:
        rows.append(f"{style.cyan('help')}: {visible(discovery.fix)}")
    return rows


def source_line(discovery: Discovery, sources: Sources) -> list[str]:
    """The line that a discovery points at, with its number."""
    lines = sources.lines(discovery.path) if discovery.line else []
    if not 0 < discovery.line <= len(lines):
        return []
    return [f"{discovery.line:>6} | {visible(lines[discovery.line - 1].rstrip())}"]


def _place(evidence: Evidence) -> str:
    rank = "" if evidence.rank is None else f" rank {evidence.rank}"
    model = f"{evidence.model} " if evidence.model else ""
    return f"{model}{evidence.wrap}{rank}  {evidence.path}:{evidence.line}"


def _table(verification: Verification, style: Style) -> list[str]:
    """A line for each run: wrap, outcome, seconds, the first mismatch or how the ranks ended."""
    runs = verification.runs
    several = len({examined.run.model for examined in runs}) > 1
    names = [one_line(run_name(examined, several)) for examined in runs]
    wide = max((len(name) for name in names), default=4)
    rows = [style.bold(f"{'run'.ljust(wide)}  outcome    seconds  first mismatch")] if runs else []
    for name, examined in zip(names, runs, strict=True):
        run = examined.run
        paint = style.green if examined.completed else style.red
        first = (
            str(examined.mismatches[0])
            if examined.mismatches
            else run.message
            if run.message != "completed"
            else "none"
        )
        rows.append(f"{name.ljust(wide)}  {paint(run.outcome.ljust(9))}  {run.seconds:7.1f}  {visible(first)}")
        if run.stimuli:
            continue
        lines = [] if examined.completed else _ends(examined)
        lines += [] if verification.lacks else _last_words(examined)
        rows += [f"{' ' * wide}  {visible(line)}" for line in lines]
    return rows


def run_name(examined: Examined, several: bool) -> str:
    """`ddp`, `Net ddp` where there are several models, `ddp (seeds, nan)` with stimuli."""
    run = examined.run
    name = f"{run.model} {run.wrap}" if several else run.wrap
    return f"{name} ({', '.join(run.stimuli)})" if run.stimuli else name


def _ends(examined: Examined) -> list[str]:
    ends = []
    for outcome in examined.run.ranks:
        last = outcome.last
        at = f", last line {last.frame.line} of {last.frame.function}" if last.frame else ""
        call = f", last collective {last.collective}" if last.collective else ""
        module = f", in {last.module}" if last.module else ""
        message = f" ({' '.join(outcome.message.split())[:160]})" if outcome.message else ""
        ends.append(f"rank {outcome.rank}: {outcome.how}{message}{at}{module}{call}")
    return ends


def _last_words(examined: Examined) -> list[str]:
    """What the target itself printed at its end, where there is no exception: by the first rank that ended so. Where
    ranks wait for each other, the last that each of them printed: it may show why a rank skipped something."""
    ended = [rank for rank in examined.run.ranks if rank.how in ("exit", "signal", "oom", "not_started")]
    first = min(ended, key=lambda rank: rank.ended_at, default=None)
    if first is not None:
        words = last_lines(first).splitlines()
        return [f"rank {first.rank} printed:", *words] if words else []
    if examined.run.outcome not in ("hang", "completed") or not examined.mismatches:
        return []
    printed = {rank.rank: last_lines(rank, _LAST_OF_HANG).splitlines() for rank in examined.run.ranks}
    printed = {rank: words for rank, words in printed.items() if not secondary(" ".join(words))}  # it was made to end
    return [line for rank, words in printed.items() if words for line in (f"rank {rank} printed last:", *words)]


def _summary(verification: Verification) -> str:
    counts = collections.Counter(judged.verdict for judged in verification.findings)
    parts = [f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict]] or ["no findings"]
    if verification.discovered:
        parts.append(f"{len(verification.discovered)} discovered")
    where = verification.environment
    world = max((examined.world for examined in verification.runs), default=where["nproc"])
    ranks = f"{where['nproc']} rank{'s' * (where['nproc'] != 1)}"
    if world > where["nproc"]:
        ranks = f"{where['nproc']} of {world} ranks (each node reports its own ranks)"
    parts += [*(["the target could not run"] if verification.lacks else []), *verification.not_run]
    if where.get("world"):
        return f"{', '.join(parts)}; dry run of {where['nproc']} of {where['world']} ranks, torch {where['torch']}"
    return f"{', '.join(parts)}; {ranks} on {where['backend']} ({where['device']}, torch {where['torch']})"

"""One self-contained page: verdicts next to their source, and for each run where its ranks diverge or drift apart."""

from __future__ import annotations

import collections
import importlib.resources
from collections.abc import Iterator, Sequence
from html import escape

from ddp_lint import __version__
from ddp_lint.output import Sources
from ddp_lint.verify.report import excerpts, lanes, plot
from ddp_lint.verify.report.full import run_name
from ddp_lint.verify.report.notes import notes
from ddp_lint.verify.results import Discovery, Evidence, Examined, Judged, Verdict, Verification
from ddp_lint.verify.spec import STIMULI


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
    if verification.lacks:
        lacks = escape(verification.lacks)
        yield f'<section><h2>Could not run</h2><pre class="card">{lacks}</pre></section>'
    if verification.findings:
        cards = "".join(_finding(judged, sources) for judged in sorted(verification.findings, key=_weight))
        yield f"<section><h2>Findings</h2>{cards}</section>"
    if verification.discovered:
        cards = "".join(_discovery(discovery, sources) for discovery in verification.discovered)
        yield f"<section><h2>Discovered by running, without a static finding</h2>{cards}</section>"
    yield "<section><h2>What each rank called</h2>"
    yield from (_run(examined, several, sources) for examined in verification.runs)
    yield f"</section><footer>ddp-lint {escape(__version__)}</footer>"


def _weight(judged: Judged) -> int:
    return [Verdict.CONFIRMED, Verdict.INCONCLUSIVE, Verdict.NOT_REACHED, Verdict.REFUTED].index(judged.verdict)


# ---- head


def _where(verification: Verification) -> str:
    where = verification.environment
    if where.get("world"):
        return f'<p class="soft">Dry run of {where["nproc"]} of {where["world"]} ranks: nothing was sent.</p>'
    ranks = f"{where['nproc']} rank{'s' * (where['nproc'] != 1)}"
    text = f"{ranks} on {where['backend']} ({where['device']}), torch {where['torch']}"
    paragraphs = "".join(f'<p class="reason">{escape(text)}</p>' for text in verification.not_run)
    return f'<p class="soft">{escape(text)}</p>{paragraphs}'


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
            f'<td class="number">{run.seconds:.1f} s</td><td>{escape(first) or "the ranks never diverge"}</td></tr>'
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
        f"<p>{escape(finding.message)}</p>{excerpts.of_finding(finding, sources)}"
        f'<p class="reason">{escape(judged.reason)}</p>{_evidence(judged.evidence)}{advice}</article>'
    )


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


def _discovery(discovery: Discovery, sources: Sources) -> str:
    cause = f"<p>{escape(discovery.cause)}</p>" if discovery.cause else ""
    fix = f"<p><b>Instead:</b> {escape(discovery.fix)}</p>" if discovery.fix else ""
    name = f"{discovery.code} {discovery.kind}".strip().replace("_", " ")
    source = excerpts.of_line(discovery.path, discovery.line, sources)
    return (
        f'<article class="card"><header>{_badge("discovered")}<h3>{escape(name)}</h3></header>'
        f'<p class="reason">{escape(discovery.message)}</p>{source}{cause}'
        f"{_evidence(discovery.evidence)}{fix}</article>"
    )


# ---- runs


def _run(examined: Examined, several: bool, sources: Sources) -> str:
    """How a run ended, where its ranks diverge or drift, and what each of them called."""
    run = examined.run
    stimuli = "".join(f"<p>{escape(STIMULI[name])}</p>" for name in run.stimuli)
    paragraphs = "".join(f'<p class="soft">{escape(text)}</p>' for text in notes(examined))
    return (
        f'<article class="card run"><header><h3>{escape(run_name(examined, several))}</h3>{_badge(run.outcome)}'
        f'<span class="soft">{escape(run.message)}</span></header>{stimuli}{paragraphs}'
        f"{lanes.branch(examined, sources)}{plot.drift(examined)}{lanes.table(examined)}</article>"
    )

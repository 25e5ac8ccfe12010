"""The lines around the findings: how many, how often each rule, and under which settings."""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence

from ddp_lint.cli.console import count
from ddp_lint.config import Settings
from ddp_lint.engine.report import Report
from ddp_lint.files import shown
from ddp_lint.findings import Applicability, Confidence, Finding
from ddp_lint.output.style import Style


def summary(report: Report, fixed: int, style: Style, hidden: int = 0) -> str:
    """How many findings, of how many files; how many are not quite sure, fixable, or `hidden` by a baseline."""
    more = [f"{count(fixed, 'finding')} fixed."] if fixed else []
    more += [f"{hidden} more in the baseline."] if hidden else []
    checked = report.statistics.files
    if not report.findings:
        clean = [] if report.errors else [style.green(f"Nothing found in {count(checked, 'file')}.")]
        return " ".join([*clean, *more]) + "\n" if clean or more else ""
    files = len({f.span.path for f in report.findings})
    found = style.bold(f"{count(len(report.findings), 'finding')} in {count(files, 'file')}, {checked} checked.")
    sure = collections.Counter(f.confidence for f in report.findings)
    unsure = ", ".join(f"{sure[c]} of {c.value} confidence" for c in (Confidence.MEDIUM, Confidence.LOW) if sure[c])
    kinds = collections.Counter(f.fix.applicability for f in report.findings if f.fix)
    how = {Applicability.SAFE: "--fix", Applicability.UNSAFE: "--fix --unsafe-fixes"}
    can = ", ".join(f"{kinds[kind]} with {options}" for kind, options in how.items() if kinds[kind])
    facts = [f"{unsure}." if unsure else "", f"Fixable: {can}." if can else ""]
    return " ".join(filter(None, [found, *facts, *more])) + "\n"


def statistics(findings: Sequence[Finding], output_format: str) -> str:
    """How often each rule found something, most often first."""
    counts = collections.Counter((f.code, f.slug) for f in findings)
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if output_format == "json":
        return json.dumps([{"code": c, "slug": s, "count": n} for (c, s), n in rows], indent=2) + "\n"
    width = max((len(str(n)) for _, n in rows), default=0)
    return "".join(f"{n:>{width}}  {code}  {slug}\n" for (code, slug), n in rows)


def settings_text(settings: Settings) -> str:
    """What --show-settings prints, a line a key."""
    rows = {
        "configuration": shown(settings.source) if settings.source else "none",
        "root": shown(settings.root),
        "enabled": ", ".join(sorted(settings.enabled)),
        "ignored": ", ".join(sorted(settings.ignored)),
        "exclude": ", ".join(pattern for globs in settings.exclude for pattern in globs.patterns),
        "per-file-ignores": "; ".join(map(str, settings.per_file_ignores)),
        "force-exclude": str(settings.force_exclude).lower(),
        "respect-gitignore": str(settings.respect_gitignore).lower(),
        "preview": str(settings.preview).lower(),
        "target-torch": ".".join(map(str, settings.target_torch)) if settings.target_torch else "",
        "rank-expressions": ", ".join(settings.names.rank_expressions),
        "wrappers": ", ".join(settings.names.wrappers),
        "collectives": ", ".join(settings.names.collectives),
        "baseline": shown(settings.baseline) if settings.baseline else "",
        "output-format": settings.output_format or "full",
    }
    return "".join(f"{key} = {value}".rstrip() + "\n" for key, value in rows.items())

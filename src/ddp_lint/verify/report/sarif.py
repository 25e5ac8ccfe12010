"""SARIF 2.1.0: the results of `check`, each with its verdict.

A confirmed finding fails; a refuted one passes; what was not reached or not decided is open, as SARIF calls it.
"""

from __future__ import annotations

import json
from typing import Any

from ddp_lint.findings import Span
from ddp_lint.output import Sources
from ddp_lint.output.sarif import document, location, result
from ddp_lint.verify.results import Discovery, Evidence, Judged, Verdict, Verification

_KIND = {
    Verdict.CONFIRMED: "fail",
    Verdict.REFUTED: "pass",
    Verdict.NOT_REACHED: "open",
    Verdict.INCONCLUSIVE: "open",
}


def render(verification: Verification, sources: Sources, color: bool) -> str:
    results = [_finding(judged) for judged in verification.findings]
    results += [_discovered(discovery) for discovery in verification.discovered]
    return json.dumps(document(results), indent=2, ensure_ascii=False) + "\n"


def _finding(judged: Judged) -> dict[str, Any]:
    out = result(judged.finding)
    out["kind"] = _KIND[judged.verdict]
    if out["kind"] != "fail":  # the standard allows a level with failures only
        out["level"] = "none"
    out["message"] = {"text": f"{judged.verdict.value}: {judged.reason}\n{out['message']['text']}"}
    evidence = [_evidence(one) for one in judged.evidence]
    out["properties"] |= {"verdict": judged.verdict.value, "reason": judged.reason, "evidence": evidence}
    return out


def _discovered(discovery: Discovery) -> dict[str, Any]:
    text = "\n".join(filter(None, [discovery.message, discovery.cause, discovery.fix]))
    first = next((one for one in discovery.evidence if one.line), None)
    at = [location(Span(first.path, first.line, 1, first.line, 1))] if first else []
    return {
        "ruleId": discovery.code or f"verify-{discovery.kind}",
        "kind": "fail",
        "level": "error",
        "message": {"text": text},
        "locations": at,
        "properties": {"verdict": "discovered", "evidence": [_evidence(one) for one in discovery.evidence]},
    }


def _evidence(evidence: Evidence) -> str:
    rank = "" if evidence.rank is None else f" rank {evidence.rank}"
    at = f" ({evidence.path}:{evidence.line})" if evidence.line else ""
    return f"{evidence.wrap}{rank} {evidence.kind}: {evidence.message}{at}"

"""Graph breaks of TorchDynamo at the finding's lines, in the user's compiled code or in our explanation of it."""

from __future__ import annotations

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Call, GraphBreak, Note


def testify(case: Case) -> Opinion:
    hits = list(case.hits(GraphBreak))
    if hits:
        rank, event, frame = hits[0]
        text = f"TorchDynamo breaks the graph here: {' '.join(event.reason.split())[:300]}"
        return Opinion((case.evidence("graph_break", text, rank=rank, frame=frame),))
    if case.run.wrap != "script":
        failed = next((n.text for trace in case.traces for n in trace.of(Note) if "explain failed" in n.text), "")
        return (
            Opinion(blind=failed) if failed else Opinion(silent="TorchDynamo compiles the model without a break here")
        )
    if any(call.name == "compile" for trace in case.traces for call in trace.of(Call)):
        return Opinion(silent="TorchDynamo compiled without a break here")
    return Opinion(blind="nothing was compiled in this run")

"""Graph breaks of TorchDynamo at the finding's lines, in the user's compiled code or in our explanation of it."""

from __future__ import annotations

from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Call, GraphBreak


def testify(case: Case) -> Opinion:
    hits = list(case.hits(GraphBreak))
    if hits:
        rank, event, frame = hits[0]
        text = f"TorchDynamo breaks the graph here: {' '.join(event.reason.split())[:300]}"
        return Opinion((case.evidence("graph_break", text, rank=rank, frame=frame),))
    for trace in case.traces:
        for call in trace.of(Call):
            if call.name == "explain":
                error = call.arguments.get("error")
                if error:
                    return Opinion(blind=f"TorchDynamo could not explain the model: {error}")
                graphs = call.arguments.get("graphs", 1)
                return Opinion(silent=f"TorchDynamo compiled the model in {graphs} graphs, none parted here")
    compiled = any(call.name == "compile" for trace in case.traces for call in trace.of(Call))
    if compiled:
        return Opinion(silent="TorchDynamo compiled without a break here")
    return Opinion(blind="nothing was compiled in this run")

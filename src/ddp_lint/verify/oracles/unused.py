"""Whether DDP's search for unused parameters found any: what every rank reached in every backward that was averaged."""

from __future__ import annotations

import pathlib

from ddp_lint.verify.branches import drawn_conditions
from ddp_lint.verify.compare import spoken
from ddp_lint.verify.oracles import Case, Opinion
from ddp_lint.verify.trace import Call, Searched


def testify(case: Case) -> Opinion:
    if case.run.stimuli or not case.examined.completed:
        return Opinion(blind="only a complete run without stimuli shows what every step uses")
    searches = [(trace.rank, event) for trace in case.traces for event in trace.of(Searched)]
    searches = [(rank, event) for rank, event in searches if case.hit(event)] or searches
    if not searches:
        if any(call.name == "DistributedDataParallel" for trace in case.traces for call in trace.of(Call)):
            return Opinion(silent="no DDP wrapper of this run searches for unused parameters")
        return Opinion(blind="nothing was wrapped with DDP")
    for rank, event in searches:
        if event.unused:
            return Opinion(silent=f"the search finds some: on rank {rank} a backward left out {spoken(event.unused)}")
    fewest = min(event.backwards for _, event in searches)
    if not fewest:
        return Opinion(blind="no backward was seen whose gradients DDP averages")
    files = sorted({path for t in case.traces for call in t.of(Call) for path in call.arguments.get("files", ())})
    drawn = next(drawn_conditions(files), None)
    if drawn is not None:
        here = f"line {drawn.line} of {pathlib.Path(drawn.path).name}"
        text = f"{here} draws at random what runs: in {fewest} backwards nothing was left out, in another one it may be"
        return Opinion(doubt=text)
    text = f"every parameter got a gradient in each of {fewest} backwards on every rank: the search finds nothing"
    return Opinion((case.evidence("unused", text, frame=case.hit(searches[0][1])),))

"""The witnesses. An oracle looks at one finding and one run and says what it saw.

A rule names its oracles; any one that fires confirms. An oracle is a pure function of the finding and of the traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ddp_lint.verify.oracles import failures, host, order, replicas, training
from ddp_lint.verify.oracles.case import Case, Opinion

#: By the name that rules use.
ORACLES: Mapping[str, Callable[[Case], Opinion]] = {
    oracle.__name__: oracle
    for oracle in (
        failures.exception, failures.exit, failures.arguments,
        host.value, host.sync, host.graph_break, host.recompile, host.device, host.environment,
        host.started,
        order.sequence, order.stall, order.files, order.lost, order.resummed, order.streams,
        replicas.gradient, replicas.parameter, replicas.state, replicas.identity, replicas.reference, replicas.write,
        replicas.unused, replicas.nograd, replicas.finite, replicas.apart,
        training.samples, training.divided, training.overlap, training.split, training.dealt, training.repeated,
        training.epochs, training.seeds, training.clipped, training.cleared, training.redivided,
        training.schedule, training.converted, training.gathered, training.scaled, training.saved, training.kept,
        training.metric,
    )
}  # fmt: skip

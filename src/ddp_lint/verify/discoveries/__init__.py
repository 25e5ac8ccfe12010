"""Damage of the runs that no confirmed finding explains, with its cause where it is known: one file for each kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from ddp_lint.verify.discoveries.batches import unlike_batches
from ddp_lint.verify.discoveries.deaths import deaths_of
from ddp_lint.verify.discoveries.exceptions import exceptions_of
from ddp_lint.verify.discoveries.hidden import (
    by_the_clock,
    divided_sums,
    hidden_failures,
    one_device,
    overwritten,
    unordered,
)
from ddp_lint.verify.discoveries.mismatches import in_another_order, led_to, mismatched
from ddp_lint.verify.discoveries.replicas import modes_apart, unlike_replicas
from ddp_lint.verify.discoveries.waiting import calls_of_forks, crossing_threads, stalls_of
from ddp_lint.verify.match import unrelated
from ddp_lint.verify.results import Discovery, Examined, Judged, Verdict

#: Which kinds of damage one confirmed finding accounts for: what a rank-dependent write also desynchronises is one
#: fault, not two.
_EXPLAINS = {
    "sequence": {"mismatch", "stall", "exception", "death"},
    "stall": {"mismatch", "stall", "exception", "death"},
    "exception": {"exception", "death", "stall", "mismatch", "gradients", "parameters"},
    "exit": {"exit", "exception", "mismatch", "stall", "death"},
    "arguments": {"exit", "exception", "death", "stall"},
    "write": {"parameters", "reference", "exception", "gradients"},
    "gradient": {"gradients", "parameters", "reference", "nograd"},
    "parameter": {"gradients", "parameters", "reference", "buffers"},
    "reference": {"reference", "parameters", "gradients", "nograd"},
    "identity": {"reference", "parameters", "gradients", "nograd", "exception"},
    "nograd": {"nograd", "reference", "gradients", "parameters"},
    "value": {"race", "reference", "parameters", "gradients"},
    "streams": {"race", "reference", "parameters", "gradients"},
    "finite": {"reference", "exception"},
    "samples": {"reference", "samples"},
    "epochs": {"reference", "epochs"},
    "environment": {"exception", "stall", "death", "mismatch"},
    "device": {"exception", "death"},
}

#: What is wrong in a run besides, whether it completed or not.
_BESIDES = (
    hidden_failures,
    overwritten,
    divided_sums,
    unordered,
    in_another_order,
    one_device,
    by_the_clock,
    modes_apart,
    unlike_replicas,
    unlike_batches,
)


def discover(runs: Sequence[Examined], judged: Sequence[Judged]) -> list[Discovery]:
    """Damage of plain runs that no confirmed finding of the same run explains, once for all wraps.

    A run with a stimulus discovers nothing: the stimulus provokes failures.
    """
    explained = _explained(judged)
    found: dict[tuple[str, str], list[Discovery]] = {}
    for examined in runs:
        if examined.run.stimuli:
            continue
        for discovery in _damage(examined):
            if (examined.run.wrap, discovery.kind) not in explained:
                evidence = discovery.evidence[0]
                place_of = f"{evidence.path}:{evidence.line}" if evidence.line else discovery.message
                place_of += f" {evidence.model}"
                found.setdefault((discovery.kind, place_of), []).append(discovery)
    return [_merged(same) for same in found.values()]


def _explained(judged: Sequence[Judged]) -> set[tuple[str, str]]:
    return {
        (evidence.wrap, kind)
        for one in judged
        if one.verdict is Verdict.CONFIRMED
        for evidence in one.evidence
        for kind in _EXPLAINS.get(evidence.kind, ())
    }


def _merged(same: Sequence[Discovery]) -> Discovery:
    first = same[0]
    evidence = tuple(dict.fromkeys(e for discovery in same for e in discovery.evidence))
    return dataclasses.replace(first, evidence=evidence)


def _damage(examined: Examined) -> Iterator[Discovery]:
    """The cause first: a rank that died by itself makes its peers wait, and a mismatch ends in a timeout."""
    raised, crossing = list(exceptions_of(examined)), list(crossing_threads(examined))
    strangers = unrelated(examined.rows) if raised else None
    if strangers is not None:
        raised = [led_to(examined, strangers, raised[0])]
    yield from crossing
    orphans = list(calls_of_forks(examined))
    yield from orphans
    if orphans and not examined.completed:
        return
    if crossing and not examined.completed:
        yield from raised  # how else it ended comes of the order in which the threads happened to call
        return
    causes = [*raised, *deaths_of(examined)]
    mismatches = [mismatched(examined, examined.mismatches[0])] if examined.mismatches else []
    if mismatches and not causes:
        yield from mismatches
    yield from causes
    if not causes and not mismatches:
        yield from stalls_of(examined)
    for look in _BESIDES:
        yield from look(examined)

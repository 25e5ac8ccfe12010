"""How far the ranks drift apart: a curve for each tensor, drawn as inline SVG."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from html import escape

from ddp_lint.verify.compare import Desync, Replicas, desyncs, replicas_of, update_of
from ddp_lint.verify.oracles.case import shown
from ddp_lint.verify.results import Examined
from ddp_lint.verify.trace import REPLICATED, Frame, Hashes

#: Tensors that get a curve; of more, those that end furthest apart.
_CURVES = 6
_WIDTH, _HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 34
_WHEN = ("after_wrap", "after_step", "at_end")


@dataclasses.dataclass(frozen=True)
class Drift:
    """One tensor: (step, distance between the ranks) of each comparison, and the first step at which they differ.

    The distance is the 2-norm of the difference, the largest among all pairs of ranks, taken from the sketches of the
    values: exact for small tensors.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    start: int
    site: Frame | None


def drifts(examined: Examined) -> list[Drift]:
    """The parameters that were equal on all ranks (or should have been) and are not any more, the furthest first.

    Tensors that are sharded, and models that no wrapper keeps equal, are left out.
    """
    moments: dict[tuple[Replicas, int], dict[int, Hashes]] = collections.defaultdict(dict)
    for outcome in examined.run.ranks:
        for event in outcome.trace.of(Hashes):
            if event.what == "parameters" and event.when in _WHEN and event.wrap in REPLICATED:
                moments[replicas_of(event), update_of(event)][outcome.rank] = event
    by_model: dict[Replicas, list[tuple[int, Mapping[int, Hashes]]]] = collections.defaultdict(list)
    for (model, step), events in sorted(moments.items()):
        if len(events) > 1:
            by_model[model].append((step, events))
    # A fingerprint of the whole model, taken at every step, may show an earlier one than the comparisons of tensors.
    traces = [outcome.trace for outcome in examined.run.ranks]
    apart = list(desyncs(traces, "parameters", _WHEN, REPLICATED))
    found = [
        drift
        for model, series in by_model.items()
        for drift in _of_model(series, [desync for desync in apart if replicas_of(desync) == model])
    ]
    return sorted(found, key=lambda drift: -_finite(drift.points[-1][1]))


def _of_model(series: Sequence[tuple[int, Mapping[int, Hashes]]], apart: Sequence[Desync]) -> list[Drift]:
    names = dict.fromkeys(name for _, events in series for event in events.values() for name in event.digests)
    found = []
    for name in names:
        points, start, site = [], None, None
        for step, events in series:
            digests = {event.digests.get(name) for event in events.values()}
            if None in digests or any(name in event.sharded for event in events.values()):
                continue
            points.append((step, _distance([event.sketches.get(name, ()) for event in events.values()], digests)))
            if len(digests) > 1 and start is None:
                start, site = step, next(iter(events.values())).site
        if start is not None:
            start = min([start, *(desync.update for desync in apart if name in desync.names)])
            found.append(Drift(name, tuple(points), start, site))
    return found


def _distance(sketches: Sequence[tuple[float, ...]], digests: Collection[str | None]) -> float:
    """Between the two ranks that are furthest apart: 0 where all hold the same values, to the last bit."""
    return max(itertools.starmap(math.dist, itertools.combinations(sketches, 2))) if len(digests) > 1 else 0.0


def drift(examined: Examined) -> str:
    """The curves of a run, "" when nothing drifts."""
    found = drifts(examined)
    if not found:
        return ""
    first = min(found, key=lambda one: one.start)
    at = f" ({shown(first.site.path)}:{first.site.line})" if first.site else ""
    more = f"; of {len(found)} tensors the {_CURVES} that end furthest apart" if len(found) > _CURVES else ""
    text = f"Distance of the parameters between the ranks, which drift apart from step {first.start} on{at}{more}"
    keys = "".join(f'<li><span class="key curve{n}"></span>{_label(one)}</li>' for n, one in enumerate(found[:_CURVES]))
    keys += "".join(f"<li>{_label(one)}</li>" for one in found[_CURVES:])
    return (
        f'<figure class="drift"><figcaption>{escape(text)}</figcaption>{_svg(found[:_CURVES], first.start)}'
        f"<ul>{keys}</ul></figure>"
    )


def _label(one: Drift) -> str:
    step, distance = one.points[-1]
    return f"{escape(one.name)}: from step {one.start}, {distance:.2g} apart after step {step}"


def _svg(found: Sequence[Drift], start: int) -> str:
    steps = [step for one in found for step, _ in one.points]
    low, high = min(steps), max(*steps, min(steps) + 1)
    top = max((_finite(value) for one in found for _, value in one.points), default=0.0) or 1.0

    def x(step: float) -> float:
        return _LEFT + (step - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - _finite(value) / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<line class="axis" x1="{_LEFT}" y1="{y(0):.1f}" x2="{_WIDTH - _RIGHT}" y2="{y(0):.1f}"/>',
        f'<line class="start" x1="{x(start):.1f}" y1="{_TOP}" x2="{x(start):.1f}" y2="{y(0):.1f}"/>',
        f'<text x="{_LEFT - 6}" y="{y(top) + 4:.1f}" text-anchor="end">{top:.2g}</text>',
        f'<text x="{_LEFT - 6}" y="{y(0) + 4:.1f}" text-anchor="end">0</text>',
    ]
    for step in _ticks(low, high):
        parts.append(f'<text x="{x(step):.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 1}" text-anchor="middle">optimizer step</text>')
    for n, one in enumerate(found):
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in one.points)
        parts.append(f'<polyline class="curve{n}" points="{points}"><title>{escape(one.name)}</title></polyline>')
        parts += [
            f'<circle class="curve{n}" cx="{x(step):.1f}" cy="{y(value):.1f}" r="3"><title>{escape(one.name)}, '
            f"step {step}: {value:.3g}</title></circle>"
            for step, value in one.points
        ]
    label = "distance of the parameters between the ranks over the steps"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _ticks(low: int, high: int) -> range:
    return range(low, high + 1, max(1, math.ceil((high - low) / 8)))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0

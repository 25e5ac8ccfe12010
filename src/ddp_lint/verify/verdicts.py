"""Evidence becomes verdicts: pure functions of findings and examined runs.

Of one run: *confirmed* when an oracle of the rule fired; *not reached* when no rank ran the finding's lines;
*refuted* when they ran, every oracle that could look stayed silent, the run completed, and the condition that
the finding depends on took both values; else *inconclusive*. Over all runs: confirmed in any is confirmed; a run that
decided nothing keeps the others from refuting; a pass with a stimulus can confirm, and can settle a condition that
took one value only.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddp_lint.rules.base import Rule
from ddp_lint.rules.registry import all_rules
from ddp_lint.verify import conditions
from ddp_lint.verify.causes import cause_of, first_desync
from ddp_lint.verify.cpu_limits import undecided
from ddp_lint.verify.finding_context import Situation
from ddp_lint.verify.oracles import ORACLES
from ddp_lint.verify.oracles.case import Case, Opinion, real
from ddp_lint.verify.results import Evidence, Examined, Judged, Verdict
from ddp_lint.verify.spec import STIMULI
from ddp_lint.verify.trace import Clocked, Start
from ddp_lint.verify.wording import how_often

#: Oracles of hazards in which the ranks take different ways: a condition seen with one value proves nothing for them.
_DIVERGENCE = frozenset({"sequence", "stall"})
#: Oracles whose silence on the plain inputs proves little: numbers overflow with larger ones.
_NEEDS_STIMULUS = frozenset({"finite"})

#: Oracles whose silence alone refutes nothing where the reference could not be looked at.
_WEAK = frozenset({"exception", "identity", "nograd", "stall", "write"})
#: Oracles that compare with a run without stimuli.
_PLAIN_ONLY = frozenset({"reference", "identity", "nograd"})


@dataclasses.dataclass(frozen=True)
class Ruling:
    """The verdict on one finding in one run."""

    case: Case
    verdict: Verdict
    reason: str
    evidence: tuple[Evidence, ...] = ()
    #: Another pass could decide: the line was not reached, or its condition took one value only.
    open: bool = False
    #: Place or name ties what fired to the finding.
    linked: bool = True


def judge(situations: Sequence[Situation], runs: Sequence[Examined]) -> list[Judged]:
    """The verdict on each finding over all runs, in the findings' order."""
    table = [_settle([_rule_on(Case(at, examined)) for at in situations]) for examined in runs]
    return [_over_runs(at, [rulings[n] for rulings in table]) for n, at in enumerate(situations)]


def wanted_stimuli(situations: Sequence[Situation], runs: Sequence[Examined]) -> list[tuple[str, ...]]:
    """The passes, each with its stimuli, that could decide what the plain one left open; none when nothing is open."""
    rulings = [_rule_on(Case(at, examined)) for at in situations for examined in runs if examined.completed]
    decided = {id(r.case.situation) for r in rulings if _decides(r)}
    still_open = [r.case.situation for r in rulings if r.open and id(r.case.situation) not in decided]
    passes: list[tuple[str, ...]] = []
    if any(not _NEEDS_STIMULUS & set(_oracles(at)) for at in still_open):
        passes += [("seeds", "nan"), ("short",)]
    if any(_NEEDS_STIMULUS & set(_oracles(at)) for at in still_open):
        passes.append(("large",))
    return passes


def _decides(ruling: Ruling) -> bool:
    return ruling.verdict in (Verdict.CONFIRMED, Verdict.REFUTED) and not ruling.open


def _rule(at: Situation) -> type[Rule] | None:
    return all_rules().get(at.finding.code)


def _oracles(at: Situation) -> tuple[str, ...]:
    rule = _rule(at)
    return rule.oracles if rule else ()


def _rule_on(case: Case) -> Ruling:
    """One finding, one run, nothing else known."""
    rule = _rule(case.situation)
    if rule is None or not rule.oracles:
        return Ruling(case, Verdict.INCONCLUSIVE, "no oracle of `verify` looks for this rule's hazard")
    stimuli = case.run.stimuli
    opinions = {name: ORACLES[name](case) for name in rule.oracles if not (stimuli and name in _PLAIN_ONLY)}
    if (rule.needs_cuda or case.situation.finding.needs_cuda) and case.run.device == "cpu":
        reason = undecided("needs-cuda")
        return Ruling(case, Verdict.INCONCLUSIVE, reason, (case.evidence("backend", reason), *_facts(case)))
    fired = tuple(e for opinion in opinions.values() for e in opinion.fired if _counts(e, case))
    if fired:
        linked = any(evidence.linked for evidence in fired)
        return Ruling(case, Verdict.CONFIRMED, _first(fired).message, (*fired, *_facts(case)), linked=linked)
    if not case.ran:
        return _not_reached(case)
    if case.situation.finding.needs_nodes and len(case.run.ranks) == case.examined.world:
        reason = undecided("needs-nodes")
        return Ruling(case, Verdict.INCONCLUSIVE, reason, (case.evidence("backend", reason), *_facts(case)))
    return _unconfirmed(case, opinions)


def _counts(evidence: Evidence, case: Case) -> bool:
    """Where the line did not run, or a stimulus changed the run, only what happened at the finding's place counts.

    Another class of the file may be to blame for what its own run shows, and a stimulus may hang or desynchronise the
    ranks all by itself.
    """
    if not case.ran:
        return evidence.tie == "place"
    return not case.run.stimuli or evidence.linked or evidence.kind in _NEEDS_STIMULUS


def _first(fired: Sequence[Evidence]) -> Evidence:
    return next((evidence for evidence in fired if evidence.linked), fired[0])


def _not_reached(case: Case) -> Ruling:
    if not case.run.ranks or all(outcome.how == "not_started" for outcome in case.run.ranks):
        return Ruling(case, Verdict.INCONCLUSIVE, f"the run did not start: {case.run.message}")
    if unseen := _unseen(case):
        return Ruling(case, Verdict.INCONCLUSIVE, unseen)
    unmet = conditions.unmet(case)
    if not case.examined.completed and not case.run.stimuli:
        reason = f"the line had not run when the run ended ({case.run.message})"
        return Ruling(case, Verdict.NOT_REACHED, reason, (case.evidence("lines", unmet),))
    facts = (case.evidence("lines", unmet), *_guards(case))
    return Ruling(case, Verdict.NOT_REACHED, unmet, facts, open=not conditions.for_good(case))


def _unconfirmed(case: Case, opinions: Mapping[str, Opinion]) -> Ruling:
    facts = tuple(_facts(case))
    doubt = tuple(case.evidence(name, opinion.doubt) for name, opinion in opinions.items() if opinion.doubt)
    if not case.examined.completed:
        reason = doubt[0].message if doubt else f"the line ran, but the run ended early: {case.run.message}"
        return Ruling(case, Verdict.INCONCLUSIVE, reason, facts)
    seen = tuple(case.evidence(name, opinion.silent) for name, opinion in opinions.items() if opinion.silent)
    blind = tuple(case.evidence(name, opinion.blind) for name, opinion in opinions.items() if opinion.blind)
    backend = tuple(case.evidence("backend", opinion.backend) for opinion in opinions.values() if opinion.backend)
    missed = backend or doubt or (blind if not seen else _missed(case, blind, seen))
    if missed:
        return Ruling(case, Verdict.INCONCLUSIVE, missed[0].message, (*missed, *seen, *facts))
    divergence = bool(_DIVERGENCE & set(opinions))
    if divergence and case.examined.world > len(case.run.ranks):
        reason = f"{len(case.run.ranks)} of {case.examined.world} ranks ran here: those of other nodes may diverge"
        return Ruling(case, Verdict.INCONCLUSIVE, reason, (*seen, *facts))
    clock = _by_its_clock(case)
    if clock:
        return Ruling(case, Verdict.INCONCLUSIVE, clock, (*seen, *facts))
    luck = conditions.by_luck(case) if divergence else ""
    if luck:
        # No further pass: with a NaN for a loss an endless loop may have no end.
        return Ruling(case, Verdict.INCONCLUSIVE, luck, (*seen, *facts))
    one_sided = conditions.one_sided(case) if divergence else ""
    if one_sided:
        reason = f"{one_sided}; the other outcome was not seen"
        return Ruling(case, Verdict.INCONCLUSIVE, reason, (*seen, *facts), open=True)
    reason = f"{_times(case)}, and {seen[0].message}{_gone(case)}"
    return Ruling(case, Verdict.REFUTED, reason, (*facts, *seen), open=bool(_NEEDS_STIMULUS & set(opinions)))


def _gone(case: Case) -> str:
    """That another release of PyTorch may have the hazard."""
    rule = _rule(case.situation)
    release = rule.gone_in if rule else None
    return f"; PyTorch before {'.'.join(map(str, release))} may behave otherwise" if release else ""


def _by_its_clock(case: Case) -> str:
    """The time decided on a rank when to leave a loop at a line that the finding names: that none hung is luck."""
    for trace in case.traces:
        for event in trace.of(Clocked):
            at = event.asked[0]
            if (real(at.path), at.line) in case.situation.named:
                luck = "this time all left in the same iteration"
                return f"rank {trace.rank} left a loop because of its own clock (line {at.line}): {luck}"
    return ""


def _missed(case: Case, blind: Sequence[Evidence], seen: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """The reference of a model, which could have looked and did not, where only weak oracles stayed silent."""
    if case.run.wrap == "script" or not all(evidence.kind in _WEAK for evidence in seen):
        return ()
    return tuple(evidence for evidence in blind if evidence.kind == "reference")


def _settle(rulings: list[Ruling]) -> list[Ruling]:
    """Damage of the run as a whole is one finding's when nothing else explains it.

    Where a finding of the run is tied to the damage by place or name, the others are not confirmed by the mere
    presence of damage; where several are not linked to it, the cause of the damage may name the rule of one, else it
    is unknown which of them it is.
    """
    untied = [r for r in rulings if r.verdict is Verdict.CONFIRMED and not r.linked]
    tied = [r for r in rulings if r.verdict is Verdict.CONFIRMED and r.linked]
    rivals = {r.case.situation.finding.code for r in untied}
    if len(rivals) > 1 and not tied:
        shown = _shown_by_damage(untied[0].case)
        tied = [r for r in untied if r.case.situation.finding.code == shown]
        untied = [r for r in untied if r not in tied]
    return [_attributed(r, tied, len(rivals)) if r in untied else r for r in rulings]


def _shown_by_damage(case: Case) -> str:
    """The rule that the cause of the damage names, '' for none."""
    desync = first_desync(case.traces)
    cause = cause_of(case.traces, desync) if desync is not None else None
    return cause.code if cause is not None else ""


def _attributed(ruling: Ruling, tied: Sequence[Ruling], rivals: int) -> Ruling:
    damage = ruling.evidence[0]
    if tied:
        other = tied[0].case.situation.finding
        reason = f"{damage.message}, which {other.code} at line {other.span.line} explains already"
        return dataclasses.replace(ruling, verdict=Verdict.INCONCLUSIVE, reason=reason)
    if rivals > 1:
        reason = f"{damage.message}; {rivals} rules would explain it: fix one finding and run again"
        return dataclasses.replace(ruling, verdict=Verdict.INCONCLUSIVE, reason=reason)
    return ruling


def _over_runs(at: Situation, rulings: Sequence[Ruling]) -> Judged:
    """One verdict over all wraps and passes."""
    plain = [r for r in rulings if not r.case.run.stimuli]
    skewed = [r for r in rulings if r.case.run.stimuli]
    confirmed = [r for r in rulings if r.verdict is Verdict.CONFIRMED]
    if confirmed:
        return Judged(at.finding, Verdict.CONFIRMED, _text(confirmed), _merged(confirmed))
    if not plain:
        return Judged(at.finding, Verdict.INCONCLUSIVE, "nothing ran")
    decided = [*plain, *(r for r in skewed if r.verdict is Verdict.REFUTED)]
    undecided_runs = [r for r in plain if r.verdict is Verdict.INCONCLUSIVE and not _settled(r, skewed)]
    if undecided_runs:
        return Judged(at.finding, Verdict.INCONCLUSIVE, _text(undecided_runs), _merged(plain + skewed))
    refuted = [r for r in decided if r.verdict is Verdict.REFUTED]
    if refuted:
        return Judged(at.finding, Verdict.REFUTED, _text(refuted), _merged(refuted))
    return Judged(at.finding, Verdict.NOT_REACHED, _text(plain), _merged(plain + skewed))


def _settled(ruling: Ruling, skewed: Sequence[Ruling]) -> bool:
    """A pass with a stimulus saw what the plain one left open."""
    return ruling.open and any(r.verdict is Verdict.REFUTED for r in skewed)


def _text(rulings: Sequence[Ruling]) -> str:
    """The reason of the first ruling, with the stimulus as its precondition and the wraps that share it."""
    first = rulings[0]
    wraps = list(dict.fromkeys(r.case.run.wrap for r in rulings if r.case.run.wrap != "script"))
    stimuli = first.case.run.stimuli if first.verdict is Verdict.CONFIRMED else ()
    under = f"under {', '.join(wraps)}: " if wraps else ""
    when = f" when {' and '.join(STIMULI[name] for name in stimuli)}" if stimuli else ""
    return f"{under}{first.reason}{when}"


def _merged(rulings: Iterable[Ruling]) -> tuple[Evidence, ...]:
    merged = []
    for ruling in rulings:
        stimuli = [STIMULI[name] for name in ruling.case.run.stimuli]
        if stimuli and ruling.verdict is Verdict.CONFIRMED:
            merged.append(ruling.case.evidence("stimulus", "with a stimulus: " + " and ".join(stimuli)))
        merged += ruling.evidence
    return tuple(dict.fromkeys(merged))


def _facts(case: Case) -> Iterator[Evidence]:
    yield case.evidence("lines", _times(case))
    yield from _guards(case)


def _guards(case: Case) -> Iterator[Evidence]:
    for rank, message, line in conditions.outcomes(case):
        evidence = case.evidence("guard", message, rank=rank)
        yield dataclasses.replace(evidence, line=line)


def _unseen(case: Case) -> str:
    """Why nobody knows whether the line ran."""
    late = any(start.late for trace in case.traces for start in trace.of(Start))
    if case.situation.function or case.ran or not late:
        return ""
    return "the script starts its ranks by itself: what they run as they import the file is not seen"


def _times(case: Case) -> str:
    """`ran 3 times on every rank`, or each rank's count."""
    counts = collections.Counter(case.counts.values())
    if len(counts) == 1:
        (times,) = counts
        if not times:
            return _unseen(case) or f"the line ran on none of {len(case.counts)} ranks"
        return f"the line ran {how_often(times)} on each of {len(case.counts)} ranks"
    each = ", ".join(f"{how_often(count)} on rank {rank}" for rank, count in sorted(case.counts.items()))
    return f"the line ran {each}"

"""From a finding and hand-written traces to a verdict: one test for each way to come to one."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from ddp_lint.findings import Cause, Confidence, Finding, Label, RankTrace, Span
from ddp_lint.rules.base import Rule
from ddp_lint.rules.registry import all_rules
from ddp_lint.verify.discoveries import discover
from ddp_lint.verify.finding_context import Loop, Situation, situation
from ddp_lint.verify.oracles import ORACLES
from ddp_lint.verify.results import Examined, Judged, Verdict
from ddp_lint.verify.trace import (
    Call,
    Done,
    Event,
    Exit,
    FileAccess,
    Fingerprint,
    Frame,
    GraphBreak,
    Hashes,
    Lines,
    Mapped,
    NoGrad,
    Ordered,
    Phase,
    Race,
    Raised,
    Reference,
    Round,
    Samples,
    Searched,
    Stall,
    Start,
    Storage,
    Sync,
    Unordered,
    Value,
    Write,
)  # fmt: skip
from ddp_lint.verify.verdicts import judge, wanted_stimuli

from .traces import call, run

SOURCE = """\
import torch.distributed as dist


def train(model, batch, rank):
    loss = model(batch)
    if loss > 3:
        dist.all_reduce(loss)
    model.head = build()
    dist.barrier()
"""
ALL_REDUCE, HEAD, BARRIER, TEST = 7, 8, 9, 6


@pytest.fixture
def path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SOURCE)
    return str((tmp_path / "train.py").resolve())


def rule_with(*oracles: str, needs_cuda: bool = False) -> str:
    """The code of some shipped rule that names these oracles, so that tests follow the real registry."""
    for code, rule in all_rules().items():
        if rule.needs_cuda == needs_cuda and set(oracles) <= set(rule.oracles):
            return code
    pytest.skip(f"no rule with the oracles {oracles}")


def at(code: str, line: int, *labels: int) -> Situation:
    text = SOURCE.splitlines()[line - 1]
    span = Span("train.py", line, len(text) - len(text.lstrip()) + 1, line, len(text) + 1)
    marks = tuple(Label(Span("train.py", label, 1, label, 2), "here") for label in labels)
    return situation(Finding(code, "slug", "message", span, Confidence.HIGH, labels=marks), SOURCE.splitlines())


def lines(path: str, counts: Mapping[int, int], guard: tuple[int, int] | None = None) -> Lines:
    guards = {path: {TEST: guard}} if guard else {}
    return Lines(counts={path: {5: 3, TEST: 3, **counts}}, guards=guards, values={path: {TEST: {"loss": "0.5"}}})


def verdict(situation: Situation, *runs: Examined) -> Judged:
    (judged,) = judge([situation], runs)
    return judged


def frames(path: str, line: int) -> tuple[Frame, ...]:
    return (Frame(path, line, "train"),)


# ---- confirmed


@pytest.mark.parametrize(("name", "linked"), [("head.weight", True), ("body.weight", False)])
def test_an_error_about_missing_gradients_is_about_those_parameters(path: str, name: str, linked: bool) -> None:
    message = "Expected to have finished reduction in the prior iteration before starting a new one."
    raised = Raised(type="RuntimeError", message=message, where="main", frames=frames(path, 5))
    rank = [lines(path, {HEAD: 1}), NoGrad(names=(name,), reference=(name,)), raised]
    judged = verdict(at("DDP624", HEAD), run(rank, rank, outcome="exception", how=["exception", "exception"]))
    assert judged.verdict is Verdict.CONFIRMED and judged.evidence[0].linked is linked


def test_a_collective_that_one_rank_does_not_call_confirms(path: str) -> None:
    code = rule_with("sequence")
    zero = [lines(path, {ALL_REDUCE: 1}, (1, 2)), call(ALL_REDUCE, path=path), call(BARRIER, "barrier", path=path)]
    one = [lines(path, {}, (0, 3)), call(BARRIER, "barrier", path=path)]
    examined = run(zero, one, outcome="hang", how=["stalled", "stalled"])
    judged = verdict(at(code, ALL_REDUCE, TEST), examined)
    assert judged.verdict is Verdict.CONFIRMED
    assert "rank 0 calls all_reduce [4]" in judged.reason and "rank 1 calls barrier" in judged.reason
    assert (judged.evidence[0].path, judged.evidence[0].line, judged.evidence[0].rank) == ("train.py", ALL_REDUCE, 0)
    assert discover([examined], [judged]) == []


def test_a_rank_waits_in_the_call_that_has_not_returned(path: str) -> None:
    """The works of earlier ones may never be told to be complete."""
    code = rule_with("stall")
    before = [call(BARRIER, "reduce_scatter", path=path), Done(of=0), lines(path, {ALL_REDUCE: 1}, (1, 2))]
    stuck = Stall(pending=(0,), seconds=3.0, frames=frames(path, ALL_REDUCE))
    zero = [*before, call(ALL_REDUCE, path=path), stuck]
    examined = run(zero, before, outcome="hang", how=["stalled", "stalled"])
    said = [evidence.message for evidence in verdict(at(code, ALL_REDUCE, TEST), examined).evidence]
    assert f"rank 0 waits at line {ALL_REDUCE} in all_reduce [4] since 3 s" in said


def test_a_rank_waits_in_the_functional_call_of_its_line(path: str) -> None:
    """It leaves no work of which the end would be known, and an older one may have ended without a wait."""
    code = rule_with("stall")
    before = [call(BARRIER, "reduce_scatter", path=path), Done(of=0), lines(path, {ALL_REDUCE: 1}, (1, 2))]
    gather = dataclasses.replace(call(ALL_REDUCE, "all_gather", path=path), functional=True)
    stuck = Stall(pending=(0,), seconds=3.0, frames=gather.frames)
    examined = run([*before, gather, Done(of=3), stuck], before, outcome="hang", how=["stalled", "stalled"])
    said = [evidence.message for evidence in verdict(at(code, ALL_REDUCE, TEST), examined).evidence]
    assert f"rank 0 waits at line {ALL_REDUCE} in all_gather [4] since 3 s" in said


def test_of_two_rules_that_explain_a_drift_the_cause_names_the_one(path: str) -> None:
    def rank(digest: str) -> list[Event]:
        return [
            Call(name="no_sync", frames=frames(path, 5)),
            Phase(phase="backward"),
            Hashes(what="gradients", when="before_step", wrap="ddp", digests={"fc.weight": digest}),
            lines(path, {HEAD: 1, BARRIER: 1}),
        ]

    def judged(*codes: str) -> list[Judged]:
        places = zip(codes, (HEAD, BARRIER), strict=False)
        return judge([at(code, line) for code, line in places], [run(rank("a"), rank("b"))])

    one, other = judged("DDP601", "DDP605")
    assert (one.verdict, other.verdict) == (Verdict.INCONCLUSIVE, Verdict.CONFIRMED)
    assert one.reason.endswith(f"which DDP605 at line {BARRIER} explains already")
    for undecided in judged("DDP601", "DDP622"):
        assert undecided.verdict is Verdict.INCONCLUSIVE and "2 rules would explain it" in undecided.reason


def test_gradients_that_differ_confirm_what_names_them(path: str) -> None:
    code = rule_with("gradient")

    def rank(digest: str) -> list[Event]:
        return [
            Hashes(what="gradients", when="before_step", wrap="ddp", digests={"fc.weight": "0", "head.weight": digest}),
            lines(path, {HEAD: 1}),
        ]  # fmt: skip

    judged = verdict(at(code, HEAD), run(rank("a"), rank("b")))
    assert judged.verdict is Verdict.CONFIRMED
    assert "gradients differ between rank 0 and rank 1 before optimizer step 1: head.weight" in judged.reason


@pytest.mark.parametrize(
    ("oracle", "event"),
    [
        ("exception", Raised(type="RuntimeError", message="boom", where="main")),
        ("exit", Exit(how="os._exit", status=0, pending="ValueError")),
        ("graph_break", GraphBreak(reason="Unsupported Tensor.item()")),
        ("sync", Sync(cause="item", value=1.0)),
        ("value", Race(access="read", op="aten.add", before=1.0)),
    ],
)
def test_an_event_at_the_findings_line_confirms(path: str, oracle: str, event: Event) -> None:
    code = rule_with(oracle)
    here = dataclasses.replace(event, frames=frames(path, HEAD))
    elsewhere = dataclasses.replace(event, frames=frames(path, BARRIER))
    count = lines(path, {HEAD: 1, BARRIER: 1})
    assert verdict(at(code, HEAD), run([count, here], [count])).verdict is Verdict.CONFIRMED
    other = verdict(at(code, HEAD), run([count, elsewhere], [count]))
    assert other.verdict is not Verdict.CONFIRMED


@pytest.mark.parametrize(
    ("read", "expected"),
    [((1.0, 2.0), Verdict.CONFIRMED), ((1.0, 1.0), Verdict.REFUTED), ((math.nan, math.nan), Verdict.REFUTED)],
)
def test_ranks_that_read_another_number_disagree(path: str, read: tuple[float, float], expected: Verdict) -> None:
    ranks = [[lines(path, {HEAD: 1}), Sync(cause="item", value=one, frames=frames(path, HEAD))] for one in read]
    assert verdict(at(rule_with("metric"), HEAD), run(*ranks)).verdict is expected


def test_gradients_of_models_that_are_averaged_by_hand_decide_nothing(path: str) -> None:
    average = dataclasses.replace(call(BARRIER, path=path, name="fc.weight"), step=4, phase="after_step")
    ranks = [
        [lines(path, {HEAD: 1}), Hashes(what="gradients", when="before_step", wrap="ddp", digests={"fc.weight": text})]
        for text in "ab"
    ]
    assert verdict(at("DDP605", HEAD), run(*ranks)).verdict is Verdict.CONFIRMED
    judged = verdict(at("DDP605", HEAD), run(*([*events, average] for events in ranks)))
    assert judged.verdict is Verdict.INCONCLUSIVE and "averaged by hand now and then" in judged.reason


def test_a_search_for_unused_parameters_is_needed_where_one_rank_leaves_one_out_once(path: str) -> None:
    def of_run(*unused: str, backwards: int = 3, line: int = HEAD, **how: Any) -> Judged:
        here = Searched(backwards=3, frames=frames(path, HEAD))
        there = Searched(backwards=backwards, unused=unused, frames=frames(path, line))
        count = lines(path, {HEAD: 1, BARRIER: 1})
        return verdict(at(rule_with("unused"), HEAD), run([count, here], [count, there], **how))

    nothing, some = of_run(), of_run("head.weight")
    assert nothing.verdict is Verdict.CONFIRMED and "in each of 3 backwards on every rank" in nothing.reason
    assert some.verdict is Verdict.REFUTED and "on rank 1 a backward left out head.weight" in some.reason
    assert of_run("head.weight", line=BARRIER).verdict is Verdict.CONFIRMED, "another wrapper's search"
    assert of_run(backwards=0).verdict is Verdict.INCONCLUSIVE, "nothing was trained"
    assert of_run(outcome="failed", how=["completed", "raised"]).verdict is Verdict.INCONCLUSIVE, "steps are missing"


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("torch.rand(()) < self.drop", Verdict.INCONCLUSIVE),
        ("skips", Verdict.INCONCLUSIVE),
        ("self.training", Verdict.CONFIRMED),
    ],
)
def test_a_search_for_unused_parameters_may_be_needed_where_what_runs_is_drawn(
    path: str, test: str, expected: Verdict
) -> None:
    model = pathlib.Path(path).with_name("model.py")
    model.write_text(
        "class Block:\n    def __init__(self):\n        if random() < 1:\n            pass\n\n"
        "    def forward(self, x):\n"
        f"        skips = random.random() < 0.1\n        noise = 1\n        if {test}:\n            return x\n"
    )
    wrapped = Call(name="wrapped", arguments={"classes": {}, "files": [str(model)]})
    rank = [lines(path, {HEAD: 1}), wrapped, Searched(backwards=3, frames=frames(path, HEAD))]
    judged = verdict(at(rule_with("unused"), HEAD), run(rank, rank))
    assert judged.verdict is expected
    assert ("line 9 of model.py draws at random" in judged.reason) is (expected is Verdict.INCONCLUSIVE)


def test_leaving_a_branch_with_success_confirms_what_the_branch_tells_of(path: str) -> None:
    code = rule_with("exit")
    left = Exit(how="sys.exit", status=0)
    for line, expected in ((ALL_REDUCE, Verdict.CONFIRMED), (HEAD, Verdict.REFUTED)):
        rank = [lines(path, {line: 1}, (1, 0)), dataclasses.replace(left, frames=frames(path, line))]
        assert verdict(at(code, line), run(rank, rank)).verdict is expected


def test_a_write_confirms_by_what_became_of_it(path: str) -> None:
    code = rule_with("write")
    write = Write(op="aten.mul_", name="head.weight", phase="forward", frames=frames(path, HEAD))
    count = lines(path, {HEAD: 3})
    same = Hashes(what="parameters", when="after_step", wrap="ddp", digests={"head.weight": "0"})
    assert verdict(at(code, HEAD), run([write, count, same], [write, count, same])).verdict is Verdict.REFUTED
    assert verdict(at(code, HEAD), run([write, count], [write, count])).verdict is Verdict.INCONCLUSIVE
    lost = verdict(at(code, HEAD), run([write, count], [write, count], wrap="fsdp2"))
    assert lost.verdict is Verdict.CONFIRMED and "frees after it" in lost.reason
    stale = Call(name="stale", arguments={"name": "head.weight", "op": "aten.mul_"}, frames=frames(path, HEAD))
    used = verdict(at(code, HEAD), run([write, stale, count, same], [write, count, same]))
    assert used.verdict is Verdict.CONFIRMED and "backward computes with the new value" in used.reason
    far = Reference(parameters={"head.weight": 0.1}, scale={"head.weight": 0.5})
    assert verdict(at(code, HEAD), run([write, count, far], [write, count, far])).verdict is Verdict.CONFIRMED


def test_a_scheduler_that_decided_alike_by_unlike_numbers_is_not_refuted(path: str) -> None:
    code = rule_with("parameter")
    place = frames(path, HEAD)
    same = Hashes(what="parameters", when="after_step", wrap="ddp", digests={"head.weight": "0"})

    def ranks(*metrics: float) -> list[list[Event]]:
        return [[lines(path, {HEAD: 2}), same, Value(what="plateau", local=one, frames=place)] for one in metrics]

    judged = verdict(at(code, HEAD), run(*ranks(0.5, 0.7)))
    assert judged.verdict is Verdict.INCONCLUSIVE and "0.5 on rank 0 and 0.7 on rank 1" in judged.reason
    assert verdict(at(code, HEAD), run(*ranks(0.5, 0.5))).verdict is Verdict.REFUTED
    left = [
        [*events, Value(what="rate", local=r, frames=place)] for events, r in zip(ranks(1, 2), (0.1, 0.3), strict=True)
    ]
    judged = verdict(at(code, HEAD), run(*left))
    assert judged.verdict is Verdict.CONFIRMED and "a learning rate of 0.1 on rank 0 and 0.3" in judged.reason


def test_unequal_updates_confirm_but_not_a_model_that_only_one_rank_still_holds_at_the_end(path: str) -> None:
    code = rule_with("parameter")
    count = lines(path, {HEAD: 2})
    step = Hashes(what="parameters", when="after_step", wrap="ddp", digests={"head.weight": "0"})
    end = dataclasses.replace(step, when="at_end")
    assert verdict(at(code, HEAD), run([count, step, end], [count, step])).verdict is Verdict.REFUTED
    other = dataclasses.replace(step, model=1, update=7)
    assert verdict(at(code, HEAD), run([count, step, other], [count, step])).verdict is Verdict.REFUTED
    once, twice = (dataclasses.replace(step, update=update) for update in (1, 2))
    unequal = verdict(at(code, HEAD), run([count, once, twice], [count, once]))
    assert unequal.verdict is Verdict.CONFIRMED and "2 optimizer steps on rank 0, 1 optimizer steps" in unequal.reason
    other = dataclasses.replace(end, digests={"head.weight": "1"})
    drifted = verdict(at(code, HEAD), run([count, step, end], [count, step, other]))
    assert drifted.verdict is Verdict.CONFIRMED and "at the end" in drifted.reason


def test_confirmed_in_one_wrap_is_confirmed_and_the_evidence_says_which(path: str) -> None:
    code = rule_with("write")
    write = Write(op="aten.mul_", name="head.weight", phase="forward", frames=frames(path, HEAD))
    rank = [write, lines(path, {HEAD: 3})]
    judged = verdict(at(code, HEAD), run(rank, rank, wrap="ddp"), run(rank, rank, wrap="fsdp2"))
    assert judged.verdict is Verdict.CONFIRMED
    assert judged.reason.startswith("under fsdp2: ")
    assert {evidence.wrap for evidence in judged.evidence} == {"fsdp2"}


# ---- refuted, not reached, inconclusive


def test_refuted_says_how_often_the_line_ran_and_which_oracle_stayed_silent(path: str) -> None:
    code = rule_with("sequence")
    zero = [lines(path, {ALL_REDUCE: 2}, (2, 1)), call(ALL_REDUCE, path=path)]
    judged = verdict(at(code, ALL_REDUCE, TEST), run(zero, zero))
    assert judged.verdict is Verdict.REFUTED
    assert "ran twice on each of 2 ranks" in judged.reason and "line up" in judged.reason
    assert any(e.kind == "guard" and "true twice and false once" in e.message for e in judged.evidence)


def test_a_line_that_no_rank_ran_is_not_reached_and_its_condition_is_named(path: str) -> None:
    rank = [lines(path, {}, (0, 3))]
    situation = at(rule_with("sequence"), ALL_REDUCE, TEST)
    judged = verdict(situation, run(rank, rank))
    assert judged.verdict is Verdict.NOT_REACHED
    assert "`loss > 3` (line 6) was false all 6 times (loss = 0.5)" in judged.reason
    assert wanted_stimuli([situation], [run(rank, rank)])


def test_the_option_that_a_condition_hangs_on_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.replace("loss > 3", "args.log_all").replace("def", "parser.add_argument('--log-all')\n\ndef", 1)
    source = source.replace("\n\n\n", "\n", 1)
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", source)
    pathlib.Path(path).write_text(source)
    rank = [lines(path, {}, (0, 3))]
    situation = at(rule_with("sequence"), ALL_REDUCE, TEST)
    judged = verdict(situation, run(rank, rank))
    assert "(line 6) was false all 6 times (loss = 0.5): `-- --log-all` gets there" in judged.reason
    assert wanted_stimuli([situation], [run(rank, rank)]) == []


def test_a_condition_that_hangs_on_more_than_options_is_given_other_inputs(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCE.replace("loss > 3", "args.log_all and loss > 3")
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", source)
    pathlib.Path(path).write_text(source + "\n\nparser.add_argument('--log-all')\n")
    rank = [lines(path, {}, (0, 3))]
    assert wanted_stimuli([at(rule_with("sequence"), ALL_REDUCE, TEST)], [run(rank, rank)])


def test_a_condition_that_is_tested_before_anything_trains_is_given_no_other_inputs(path: str) -> None:
    rank = [dataclasses.replace(lines(path, {}, (0, 3)), early={path: (TEST,)})]
    assert wanted_stimuli([at(rule_with("sequence"), ALL_REDUCE, TEST)], [run(rank, rank)]) == []


def test_a_condition_that_went_another_way_on_each_rank_as_often_refutes_nothing(path: str) -> None:
    """The ranks were equally often in the call by luck; in one order on all ranks the condition is one for all."""
    situation = at(rule_with("sequence"), ALL_REDUCE, TEST)
    ranks = [
        [dataclasses.replace(lines(path, {ALL_REDUCE: 2}, (2, 1)), orders={path: {TEST: order}}), call(7, path=path)]
        for order in (5, 6)
    ]
    judged = verdict(situation, run(*ranks))
    assert judged.verdict is Verdict.INCONCLUSIVE and "but in another order on each" in judged.reason
    assert verdict(situation, run(ranks[0], ranks[0])).verdict is Verdict.REFUTED


def test_a_condition_of_numbers_that_differ_between_the_ranks_refutes_nothing(path: str) -> None:
    """The ranks went the same way this time, because their losses happened to be on one side of the bound."""
    situation = at(rule_with("sequence"), ALL_REDUCE, TEST)
    tested = lines(path, {ALL_REDUCE: 2}, (2, 1))
    ranks = [
        [dataclasses.replace(tested, values={path: {TEST: {"loss": loss, "evaluate()": "True"}}}), call(7, path=path)]
        for loss in ("3.5", "4e-05")
    ]
    judged = verdict(situation, run(*ranks))
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "`loss` in the condition of line 6 was 3.5 on rank 0 and 4e-05 on rank 1" in judged.reason
    assert verdict(situation, run(ranks[0], ranks[0])).verdict is Verdict.REFUTED


def test_a_loop_that_is_equally_long_on_all_ranks_by_their_own_data_refutes_nothing(path: str) -> None:
    """A DistributedSampler makes it so with any data, and so do the same samples on all ranks."""
    around = dataclasses.replace(at(rule_with("sequence"), BARRIER), loop=Loop(TEST, ALL_REDUCE, range(7, 10)))
    counted = [lines(path, {ALL_REDUCE: 4, BARRIER: 4}), call(BARRIER, path=path)]

    def fed(*batches: str, replicas: int = 0) -> Judged:
        epochs = [
            Samples(count=8, dataset=8, batches=(each,), replicas=replicas, frames=frames(path, TEST))
            for each in batches
        ]
        return verdict(around, run(*([*counted, epoch] for epoch in epochs)))

    judged = verdict(around, run(counted, counted))
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "the loop of line 6 ran 4 times on each rank with the data of this run" in judged.reason
    assert fed("one", "other").verdict is Verdict.INCONCLUSIVE
    assert fed("one", "one").verdict is Verdict.REFUTED
    assert fed("one", "other", replicas=2).verdict is Verdict.REFUTED


def used(path: str, what: str, file: str = "/data/vocab.json") -> FileAccess:
    return FileAccess(what=what, path=file, frames=frames(path, HEAD))


def test_uses_of_one_file_are_a_race_unless_a_collective_orders_them(path: str) -> None:
    code = rule_with("files")
    ran = lines(path, {HEAD: 1})
    writes, reads = used(path, "write"), used(path, "read")
    other = used(path, "write", "/data/rank1.json")

    def of(first: list[Event], second: list[Event]) -> Judged:
        return verdict(at(code, HEAD), run([ran, *first], [ran, *second]))

    raced = of([writes], [reads])
    assert raced.verdict is Verdict.CONFIRMED
    assert "rank 0 writes /data/vocab.json, which rank 1 reads" in raced.reason
    assert "ranks 0 and 1 both write" in of([writes], [writes]).reason
    meet = call(BARRIER, "barrier", path=path)
    ordered = of([writes, meet], [meet, reads])
    assert (ordered.verdict, "a collective stands between" in ordered.reason) == (Verdict.REFUTED, True)
    assert of([writes, meet], [reads, meet]).verdict is Verdict.CONFIRMED
    from_reader, from_writer = (call(BARRIER, "broadcast", path=path, root=root) for root in (1, 0))
    assert of([writes, from_reader], [from_reader, reads]).verdict is Verdict.CONFIRMED, "the reader does not wait"
    assert of([writes, from_writer], [from_writer, reads]).verdict is Verdict.REFUTED
    assert of([writes], [other]).verdict is Verdict.REFUTED and of([reads], [reads]).verdict is Verdict.REFUTED


def test_a_file_that_nobody_was_seen_to_use_refutes_nothing(path: str) -> None:
    judged = verdict(at(rule_with("files"), HEAD), run([lines(path, {HEAD: 1})], [lines(path, {HEAD: 1})]))
    assert judged.verdict is Verdict.INCONCLUSIVE and "no use of a file was seen" in judged.reason


@pytest.mark.parametrize(
    ("test", "outcome"), [("not os.path.exists(path)", Verdict.INCONCLUSIVE), ("rank == 0", Verdict.REFUTED)]
)
def test_a_rank_that_found_the_file_as_it_looked_refutes_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, test: str, outcome: Verdict
) -> None:
    monkeypatch.chdir(tmp_path)
    source = f"def prepare(path, rank):\n    if {test}:\n        os.makedirs(path)\n"
    (tmp_path / "train.py").write_text(source)
    path = str((tmp_path / "train.py").resolve())
    span = Span("train.py", 3, 9, 3, 26)
    where = situation(Finding(rule_with("files"), "slug", "message", span, Confidence.HIGH), source.splitlines())
    made = FileAccess(what="make", path="/out", frames=frames(path, 3))
    ran, left_out = (Lines(counts={path: {2: 1, 3: times}}) for times in (1, 0))
    assert verdict(where, run([ran, made], [left_out])).verdict is outcome


def test_a_function_that_nobody_calls_is_not_reached(path: str) -> None:
    nothing = [Lines(counts={path: {4: 1}})]
    judged = verdict(at(rule_with("sequence"), BARRIER), run(nothing, nothing))
    assert (judged.verdict, "no rank called `train`" in judged.reason) == (Verdict.NOT_REACHED, True)


def test_a_condition_with_one_value_refutes_nothing_until_a_stimulus_shows_the_other(path: str) -> None:
    situation = at(rule_with("sequence"), ALL_REDUCE, TEST)
    always = [lines(path, {ALL_REDUCE: 3}, (3, 0)), call(ALL_REDUCE, path=path)]
    plain = run(always, always)
    judged = verdict(situation, plain)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert "`loss > 3` was true all 6 times, on every rank" in judged.reason
    both = [lines(path, {ALL_REDUCE: 2}, (2, 1)), call(ALL_REDUCE, path=path)]
    assert verdict(situation, plain, run(both, both, stimuli=("seeds",))).verdict is Verdict.REFUTED
    parted = run(always, [lines(path, {}, (0, 3))], stimuli=("seeds",), outcome="hang", how=["stalled", "completed"])
    judged = verdict(situation, plain, parted)
    assert judged.verdict is Verdict.CONFIRMED
    assert "another random seed" in judged.reason
    assert wanted_stimuli([situation], [plain]) == [("seeds", "nan"), ("short",)]


def test_a_run_that_ends_early_refutes_nothing(path: str) -> None:
    rank = [lines(path, {HEAD: 1})]
    broken = run(rank, rank, outcome="exception", how=["exception", "stopped"], message="rank 0 ValueError")
    judged = verdict(at(rule_with("write"), HEAD), broken)
    assert judged.verdict is Verdict.INCONCLUSIVE and "rank 0 ValueError" in judged.reason


LOOP = """\
import torch.distributed as dist


def train(batches, rank, x):
    for batch in batches:
        with autocast():
            dist.all_reduce(batch)
        if rank == 0:
            dist.barrier()
    dist.broadcast(x, 0)
"""


@pytest.mark.parametrize(
    ("headers", "other", "expected"),
    [(2, 7, Verdict.INCONCLUSIVE), (3, 7, Verdict.CONFIRMED), (2, 10, Verdict.CONFIRMED)],
)
def test_uneven_rounds_are_not_confirmed_by_ranks_that_diverge_within_one(
    path: str, headers: int, other: int, expected: Verdict
) -> None:
    """All are in the loop: (2, 7). Rank 1 was through with it once: (3, 7). It is behind it: (2, 10)."""
    span, cause = Span("train.py", 7, 13, 7, 35), Cause(Span("train.py", 5, 5, 5, 25))
    finding = Finding(rule_with("sequence", "stall"), "slug", "message", span, Confidence.HIGH, cause=cause)
    zero = [lines(path, {5: 2, 7: 2}), call(7, path=path), call(7, path=path)]
    one = [lines(path, {5: headers, 7: 2}), call(7, path=path), call(other, shape=(8,), path=path)]
    examined = run(zero, one, outcome="hang", how=["stalled", "stalled"])
    judged = verdict(situation(finding, LOOP.splitlines()), examined)
    assert judged.verdict is expected
    assert expected is Verdict.CONFIRMED or "no rank has left the loop of line 5" in judged.reason


@pytest.mark.parametrize(("known", "expected"), [(True, Verdict.INCONCLUSIVE), (False, Verdict.CONFIRMED)])
def test_uneven_rounds_are_not_confirmed_by_sizes_that_differ_in_one_round(
    path: str, known: bool, expected: Verdict
) -> None:
    """Rank 1 dies over the sizes, and rank 0 goes on: how often each was counted says nothing."""
    pathlib.Path(path).write_text(LOOP)
    span, cause = Span("train.py", 7, 13, 7, 35), Cause(Span("train.py", 5, 5, 5, 25))
    finding = Finding(rule_with("sequence", "stall"), "slug", "message", span, Confidence.HIGH, cause=cause)
    stood = (Round(0, 5, "batch", "1"),) if known else ()
    ranks: list[list[Event]] = [
        [lines(path, {5: n, 7: 1}), dataclasses.replace(call(7, shape=(n,), path=path), rounds=stood)] for n in (2, 1)
    ]
    judged = verdict(situation(finding, LOOP.splitlines()), run(*ranks, outcome="crash", how=["completed", "signal"]))
    assert judged.verdict is expected
    assert not known or "in the same round of the loop of line 5" in judged.reason


def test_uneven_rounds_are_not_confirmed_where_a_rank_went_past_a_call_before(path: str) -> None:
    """Rank 1 is a round ahead since its second one, and through while rank 0 waits in the loop."""
    pathlib.Path(path).write_text(LOOP)
    span, cause = Span("train.py", 7, 13, 7, 35), Cause(Span("train.py", 5, 5, 5, 25))
    finding = Finding(rule_with("sequence", "stall"), "slug", "message", span, Confidence.HIGH, cause=cause)

    def rounds(*numbers: str) -> list[Event]:
        calls = [dataclasses.replace(call(7, path=path), rounds=(Round(0, 5, "batch", n),)) for n in numbers]
        return [lines(path, {5: 4, 7: len(calls)}), *calls]

    examined = run(rounds("0", "1", "2"), rounds("0", "2"), outcome="hang", how=["stalled", "completed"])
    judged = verdict(situation(finding, LOOP.splitlines()), examined)
    assert judged.verdict is Verdict.INCONCLUSIVE and "is 1 on rank 0 and 2 on rank 1" in judged.reason
    examined = run(rounds("0", "1", "2"), rounds("0", "1"), outcome="hang", how=["stalled", "completed"])
    assert verdict(situation(finding, LOOP.splitlines()), examined).verdict is Verdict.CONFIRMED


def test_rounds_are_counted_by_a_line_that_runs_once_in_each() -> None:
    """The line of a comprehension runs for each of its items."""
    source = "for i in range(0, len(mine), 4):\n    x = torch.tensor([j / 2 for j in mine])\n    y = x\n    step(y)\n"
    finding = Finding(rule_with("sequence"), "s", "m", Span("t.py", 4, 5, 4, 9), Confidence.HIGH)
    loop = situation(dataclasses.replace(finding, cause=Cause(Span("t.py", 1, 1, 1, 5))), source.splitlines()).loop
    assert loop is not None and loop.each == 3


def test_what_needs_cuda_is_inconclusive_on_cpu(path: str) -> None:
    rank = [lines(path, {HEAD: 1})]
    judged = verdict(at(rule_with(needs_cuda=True), HEAD), run(rank, rank))
    assert judged.verdict is Verdict.INCONCLUSIVE and "--device cuda" in judged.reason


def test_a_finding_about_several_nodes_is_not_refuted_on_one(path: str) -> None:
    where = at(rule_with("files"), HEAD)
    where = dataclasses.replace(where, finding=dataclasses.replace(where.finding, needs_nodes=True))
    used = [lines(path, {HEAD: 1}), FileAccess(what="make", path="/tmp/x", frames=frames(path, HEAD))]
    rank = [lines(path, {HEAD: 1})]
    judged = verdict(where, run(used, rank))
    assert judged.verdict is Verdict.INCONCLUSIVE and "on another machine" in judged.reason


def test_one_finding_of_a_rule_may_need_cuda(path: str) -> None:
    situation_ = at(rule_with("sequence", "stall"), HEAD)
    finding = dataclasses.replace(situation_.finding, needs_cuda=True)
    rank = [lines(path, {HEAD: 1})]
    judged = verdict(dataclasses.replace(situation_, finding=finding), run(rank, rank))
    assert judged.verdict is Verdict.INCONCLUSIVE and "--device cuda" in judged.reason


def test_parameters_that_share_memory_are_undecided_on_cpu_and_confirmed_on_cuda(path: str) -> None:
    code = rule_with("identity")
    rule = all_rules()[code]
    rank = [lines(path, {HEAD: 1}), Storage(when="before_wrap", overlaps=(("head", "body"),))]
    if set(rule.oracles) == {"identity"}:
        assert verdict(at(code, HEAD), run(rank, rank)).verdict is Verdict.INCONCLUSIVE
    assert verdict(at(code, HEAD), run(rank, rank, device="cuda")).verdict is Verdict.CONFIRMED


def test_a_tie_that_the_wrap_broke_confirms(path: str) -> None:
    rank = [lines(path, {HEAD: 1}), Storage(when="after_wrap", untied=(("head.weight", "body.weight"),))]
    assert verdict(at("DDP611", HEAD), run(rank, rank)).verdict is Verdict.CONFIRMED


def test_what_needs_the_ranks_of_all_nodes_is_not_refuted_on_one(path: str) -> None:
    situation = at(rule_with("sequence"), ALL_REDUCE, TEST)
    for world, expected in ((2, Verdict.REFUTED), (4, Verdict.INCONCLUSIVE)):
        rank = [Start(world=world), lines(path, {ALL_REDUCE: 2}, (1, 1)), call(ALL_REDUCE, path=path)]
        assert verdict(situation, run(rank, rank)).verdict is expected


def test_unordered_streams_are_confirmed_and_watched_ones_refuted(path: str) -> None:
    count = lines(path, {HEAD: 1})
    race = Unordered(
        op="c10d.allreduce_", writes=True, earlier_op="aten.add_", streams=("the default stream", "stream 0x7"),
        frames=frames(path, BARRIER), earlier=frames(path, HEAD),
    )  # fmt: skip
    ordered = [count, Ordered(streams=2, launches=9)]
    assert verdict(at("DDP901", HEAD), run(ordered, ordered, device="cuda")).verdict is Verdict.REFUTED
    judged = verdict(at("DDP901", HEAD), run(ordered, [*ordered, race], device="cuda"))
    assert judged.verdict is Verdict.CONFIRMED
    assert "aten.add_ on the default stream (" in judged.reason and "the two are not ordered" in judged.reason
    assert verdict(at("DDP901", HEAD), run([race], [race], device="cuda")).verdict is Verdict.NOT_REACHED


def test_a_race_of_streams_that_nobody_watched_needs_a_changed_value(path: str) -> None:
    count = lines(path, {HEAD: 1})

    def read(again: float) -> Sync:
        return Sync(cause="item", value=1.0, again=again, device="cuda", frames=frames(path, BARRIER))

    won, lost = ([count, read(again)] for again in (1.0, 2.0))
    assert verdict(at("DDP901", HEAD), run(won, won, device="cuda")).verdict is Verdict.INCONCLUSIVE
    assert verdict(at("DDP901", HEAD), run(won, lost, device="cuda")).verdict is Verdict.CONFIRMED


def test_a_checkpoint_that_lands_on_another_ranks_device_confirms(path: str) -> None:
    count = lines(path, {HEAD: 1})
    loads = [
        Call(name="torch.load", arguments={"landed": [device]}, frames=frames(path, HEAD))
        for device in ("cuda:0", "cuda:1")
    ]
    own = run(*([count, load] for load in loads), device="cuda")
    assert verdict(at("DDP401", HEAD), own).verdict is Verdict.REFUTED
    foreign = run(*([count, loads[0]] for _ in range(2)), device="cuda")
    assert verdict(at("DDP401", HEAD), foreign).verdict is Verdict.CONFIRMED


def test_a_stimulus_that_hangs_the_run_by_itself_confirms_nothing(path: str) -> None:
    situation = at(rule_with("sequence"), ALL_REDUCE, TEST)
    plain = [lines(path, {ALL_REDUCE: 2}, (2, 1)), call(ALL_REDUCE, path=path)]
    short = run(
        [*plain, call(BARRIER, "barrier", path=path)],
        plain,
        stimuli=("short",),
        outcome="hang",
        how=["stalled", "completed"],
    )
    assert verdict(situation, run(plain, plain), short).verdict is Verdict.REFUTED
    assert discover([short], []) == []


def test_damage_that_another_finding_explains_is_not_counted_twice(path: str) -> None:
    code = rule_with("gradient", "parameter")

    def rank(digest: str) -> list[Event]:
        return [
            Hashes(what="gradients", when="before_step", wrap="ddp", digests={"head.weight": digest}),
            lines(path, {HEAD: 1, BARRIER: 1}),
        ]  # fmt: skip

    tied, other = judge([at(code, HEAD), at(code, BARRIER)], [run(rank("a"), rank("b"))])
    assert (tied.verdict, other.verdict) == (Verdict.CONFIRMED, Verdict.INCONCLUSIVE)
    assert "explains already" in other.reason


# ---- discovered


def test_damage_without_a_finding_is_discovered_and_explained(path: str) -> None:
    text = "Expected to have finished reduction in the prior iteration before starting a new one."
    raised = Raised(type="RuntimeError", message=text, where="main", frames=frames(path, 5))
    (found,) = discover([run([raised], [], outcome="exception", how=["exception", "stopped"])], [])
    assert "no gradient in the step before" in found.cause
    assert (found.evidence[0].path, found.evidence[0].line) == ("train.py", 5)


def test_the_peer_of_a_rank_that_died_is_not_to_blame(path: str) -> None:
    first = Raised(type="ValueError", message="bad batch", where="main", frames=frames(path, 5))
    second = Raised(type="RuntimeError", message="Connection closed by peer [127.0.0.1]:1", where="main")
    examined = run([second, call(7)], [first], outcome="exception", how=["exception", "exception"])
    (found,) = discover([examined], [])
    assert "rank 1 raised ValueError: bad batch" in found.message


def test_silent_damage_is_discovered_once_for_all_wraps(path: str) -> None:
    far = [Reference(parameters={"a": 0.5}, scale={"a": 1.0}), NoGrad(names=("b",), reference=("b",))]
    (found,) = discover([run(far, far, wrap="fsdp1"), run(far, far, wrap="fsdp2")], [])
    assert found.kind == "reference"
    assert [evidence.wrap for evidence in found.evidence] == ["fsdp1", "fsdp2"]


def test_rounding_is_no_damage(path: str) -> None:
    near = [Reference(parameters={"a": 2e-6, "b": 8e-5}, scale={"a": 0.01, "b": 1.0})]
    assert discover([run(near, near)], []) == []


def test_every_rule_names_oracles_that_exist() -> None:
    assert not [code for code, rule in all_rules().items() if not set(rule.oracles) <= ORACLES.keys()]
    assert all(issubclass(rule, Rule) and rule.oracles for rule in all_rules().values())


# ---- replicas that come apart in silence


def replica(digests: tuple[str, ...], rates: tuple[float, ...]) -> list[Event]:
    """A rank that steps with these rates, and holds these parameters after each step."""
    steps = enumerate(zip(digests, rates, strict=True), 1)
    return [
        Fingerprint(wrap="ddp", step=step, digest=digest, rates=(rate,), frames=(Frame("/p/train.py", 21, "main"),))
        for step, (digest, rate) in steps
    ]


def test_a_step_between_two_full_looks_is_compared_too() -> None:
    examined = run(replica(("a", "b", "c"), (0.1, 0.1, 0.1)), replica(("a", "b", "d"), (0.1, 0.1, 0.05)))
    (found,) = discover([examined], [])
    assert "parameters differ between the ranks after optimizer step 3" in found.message
    assert "different learning rates from optimizer step 3 on: 0.1 on rank 0 and 0.05 on rank 1" in found.cause
    assert found.evidence[0].line == 21


def test_replicas_that_never_averaged_have_the_line_of_no_sync() -> None:
    def rank(digest: str) -> list[Event]:
        return [
            Call(name="no_sync", frames=(Frame("/p/train.py", 26, "main"),)),
            Phase(phase="backward"),
            Hashes(what="gradients", when="before_step", wrap="ddp", digests={"weight": digest}),
        ]

    (found,) = discover([run(rank("a"), rank("b"))], [])
    assert "no_sync()" in found.cause and found.evidence[0].line == 26


def test_ranks_that_were_not_compared_are_no_evidence(path: str) -> None:
    code = rule_with("write", "parameter")
    write = Write(op="aten.mul_", name="head.weight", phase="forward", frames=frames(path, HEAD))
    bare = [lines(path, {HEAD: 1}), write]
    assert verdict(at(code, HEAD), run(bare, bare, wrap="none")).verdict is Verdict.INCONCLUSIVE
    seen = [*bare, *replica(("a", "b"), (0.1, 0.1))]
    judged = verdict(at(code, HEAD), run(seen, seen, wrap="ddp"))
    assert judged.verdict is not Verdict.CONFIRMED
    assert any("up to optimizer step 2" in one.message for one in judged.evidence)


def test_a_call_in_the_place_of_another_is_neither_confirmed_nor_refuted(path: str) -> None:
    """The ranks made unlike calls, and the run came to the right end all the same."""
    code = rule_with("sequence", "stall")
    here = at(code, ALL_REDUCE, BARRIER)
    here = dataclasses.replace(here, finding=dataclasses.replace(here.finding, witness=(RankTrace("rank 0", ()),)))
    one = [lines(path, {ALL_REDUCE: 1}, (1, 2)), call(ALL_REDUCE, path=path), call(ALL_REDUCE, path=path)]
    other = [lines(path, {ALL_REDUCE: 1}, (1, 2)), call(ALL_REDUCE, path=path), call(BARRIER, path=path)]
    judged = verdict(here, run(one, other))
    assert judged.verdict is Verdict.INCONCLUSIVE and "these are not the same call" in judged.reason


def test_unordered_streams_are_discovered_without_a_finding() -> None:
    def at_line(line: int) -> tuple[Frame, ...]:
        return (Frame("/p/train.py", line, "main"),)

    race = Unordered(op="aten.addmm", earlier_op="aten.div_", frames=at_line(38), earlier=at_line(25))
    (found,) = discover([run([race], [], device="cuda")], [])
    assert found.kind == "race" and found.evidence[0].line == 38 and "line 25" in found.message


def test_what_a_release_does_not_have_is_refuted_for_that_release(path: str) -> None:
    rank = [lines(path, {HEAD: 1})]
    judged = verdict(at("DDP206", HEAD), run(rank, rank, wrap="script"))
    assert judged.verdict is Verdict.REFUTED and judged.reason.endswith("PyTorch before 2.13 may behave otherwise")


@pytest.mark.parametrize(("uses", "found"), [("cuda", ["device"]), ("torch.cuda", [])])
def test_who_only_asks_for_gpus_has_chosen_none(uses: str, found: list[str]) -> None:
    rank = [Mapped(requested="nccl", actual="gloo"), Mapped(requested=uses, actual="cpu"), call(7)]
    assert [one.kind for one in discover([run(rank, rank, wrap="script")], [])] == found


def test_a_rank_that_waits_for_a_store_that_nobody_starts_is_told_so() -> None:
    joining = Call(name="init_process_group", arguments={"unserved": "tcp://host:1"}, frames=frames("/p/train.py", 3))
    (found,) = discover([run([joining], [joining], outcome="hang", how=["stalled", "stalled"])], [])
    assert found.kind == "stall" and found.cause.endswith("none starts one at tcp://host:1")


def test_a_signal_is_told_once_and_with_what_mostly_sends_it() -> None:
    examined = run([call(7)], [call(7)], outcome="crash", how=["signal", "stopped"])
    first, second = examined.run.ranks
    killed = dataclasses.replace(first, signal="SIGKILL", message="ended by SIGKILL")
    result = dataclasses.replace(examined.run, ranks=(killed, second))
    (found,) = discover([dataclasses.replace(examined, run=result)], [])
    assert found.message == "rank 0 died of SIGKILL" and "for want of host memory" in found.cause and not found.code
    sent = Exit(how="a signal", status=-9, frames=frames("/p/train.py", 8))
    examined = run([call(7), sent], [call(7)], outcome="crash", how=["signal", "stopped"])
    result = dataclasses.replace(examined.run, ranks=(dataclasses.replace(examined.run.ranks[0], signal="SIGKILL"),))
    (found,) = discover([dataclasses.replace(examined, run=result)], [])
    assert found.line == 8 and found.cause.startswith("the program sends this signal to its own process (line 8 in ")


@pytest.mark.parametrize(("late", "expected"), [(True, Verdict.INCONCLUSIVE), (False, Verdict.NOT_REACHED)])
def test_what_a_rank_ran_before_it_was_known_to_be_one_is_not_called_unreached(
    path: str, late: bool, expected: Verdict
) -> None:
    code = rule_with("exception")
    rank = [Start(late=late), lines(path, {})]
    span = Span("train.py", 1, 1, 1, 5)
    judged = verdict(situation(Finding(code, "s", "m", span, Confidence.HIGH), SOURCE.splitlines()), run(rank, rank))
    assert judged.verdict is expected

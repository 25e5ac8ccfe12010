"""Discoveries: where they lie and what is said of their cause."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from ddp_lint.verify.child.loops import rounds
from ddp_lint.verify.compare import compared
from ddp_lint.verify.discoveries import discover
from ddp_lint.verify.discoveries.places import placed
from ddp_lint.verify.options import Last
from ddp_lint.verify.results import Discovery, Evidence, examine
from ddp_lint.verify.sampling import unlike_data
from ddp_lint.verify.trace import (
    Call,
    Collective,
    Event,
    Frame,
    Hashes,
    NoGrad,
    Phase,
    Raised,
    Reference,
    Round,
    Samples,
    Switched,
    Tensor,
    Write,
)

from .traces import call, run

SIZES = "op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size."
STEP = (Frame("/p/train.py", 9, "train"),)


def hashes(what: str, rank: int, when: str) -> Hashes:
    return Hashes(what=what, when=when, wrap="ddp", step=1, frames=STEP, digests={"fc.weight": str(rank)})


def test_a_drift_lies_at_the_write_that_makes_it() -> None:
    write = Write(op="mul_", name="fc.weight", step=0, frames=(Frame("/p/model.py", 4, "training_step"),))
    ranks = [[write, hashes("parameters", rank, "after_step")] for rank in (0, 1)]
    (found,) = discover([run(*ranks)], [])
    assert (found.path, found.line) == ("/p/model.py", 4)
    assert found.cause.startswith("mul_ in training_step writes fc.weight on each rank")


@pytest.mark.parametrize(("values", "told"), [(("'a'", "'b'"), True), (("4", "5"), False), (("'a'", "'a'"), False)])
def test_sums_of_other_names_that_met_are_why_gradients_differ(
    tmp_path: pathlib.Path, values: tuple[str, str], told: bool
) -> None:
    """Numbers may be those of each rank's own share."""
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    calls = [dataclasses.replace(_at(path, (67, "by_name"), key_66=value), issued_by="ddp") for value in values]
    ranks = [[call, hashes("gradients", rank, "before_step")] for rank, call in enumerate(calls)]
    (found,) = discover([run(*ranks)], [])
    assert bool(found.cause) is told
    assert not told or (
        found.line == 67 and "`key` of the loop `for key in sorted(values)` (line 66) is" in found.cause
    )


def test_a_folder_that_another_rank_had_made_first_is_told_so() -> None:
    raised = Raised(type="FileExistsError", message="File exists: 'out'", frames=STEP)
    (found,) = discover([run([raised], [call(3)], outcome="exception", how=["exception", "stopped"])], [])
    assert found.cause.startswith("rank 1 had made it first, although rank 0 had looked before")
    (found,) = discover([run([raised], [raised], outcome="exception", how=["exception", "exception"])], [])
    assert not found.cause


def test_a_drift_without_a_write_lies_at_the_step() -> None:
    (found,) = discover([run(*([hashes("parameters", rank, "after_step")] for rank in (0, 1)))], [])
    assert (found.path, found.line, found.cause) == ("/p/train.py", 9, "")


def test_replicas_without_a_wrapper_that_never_were_alike() -> None:
    """Of a model whose gradients the user's code averages; one that nobody averages may be another on each rank."""
    mine = [[dataclasses.replace(hashes("parameters", rank, "after_step"), wrap="by_hand")] for rank in (0, 1)]
    (found,) = discover([run(*mine)], [])
    assert "started with different parameters" in found.cause and found.line == 9
    later = [[dataclasses.replace(event, step=4) for event in events] for events in mine]
    assert not discover([run(*later)], [])[0].cause
    nobody = [[dataclasses.replace(hashes("parameters", rank, "after_step"), wrap="none")] for rank in (0, 1)]
    assert discover([run(*nobody)], []) == []
    copied = [[call(2, "broadcast", root=0), *events] for events in mine]
    assert not discover([run(*copied)], [])[0].cause


def test_replicas_are_compared_in_the_group_that_holds_them() -> None:
    """Of four ranks two hold one stage of a pipeline each: the stages are of one shape, and differ."""
    stages = [
        [dataclasses.replace(hashes("parameters", rank // 2, "after_step"), among=(rank // 2 * 2, rank // 2 * 2 + 1))]
        for rank in range(4)
    ]
    assert discover([run(*stages)], []) == []
    stages[3] = [dataclasses.replace(stages[3][0], digests={"fc.weight": "drifted"})]
    (found,) = discover([run(*stages)], [])
    assert found.kind == "parameters"


def test_replicas_that_are_averaged_by_hand_now_and_then_train_by_themselves() -> None:
    """Nor is it said of them that they were compared."""
    average = dataclasses.replace(call(7, name="fc.weight"), step=4, phase="after_step")
    ranks = [[hashes("gradients", rank, "before_step"), hashes("parameters", rank, "after_step")] for rank in (0, 1)]
    assert discover([run(*([*events, average] for events in ranks))], []) == []
    traces = [outcome.trace for outcome in run(*([*events, average] for events in ranks)).run.ranks]
    assert not compared(traces, "parameters", ("after_step",), ("ddp",)).times
    for other in (
        dataclasses.replace(average, step=0),
        dataclasses.replace(average, phase="forward"),
        call(7, name="fc.bias"),
    ):
        (found,) = discover([run(*([*events, other] for events in ranks))], [])
        assert found.kind == "gradients"


def test_a_copy_of_the_model_that_never_was_alike() -> None:
    for when, cause in (
        ("after_wrap", "it was copied while the ranks had different parameters"),
        ("at_end", ""),
    ):
        mine = [[dataclasses.replace(hashes("parameters", rank, when), wrap="copy")] for rank in (0, 1)]
        (found,) = discover([run(*mine)], [])
        assert "a copy of the model under DDP" in found.message and found.cause.startswith(cause)


def test_a_copy_of_a_model_that_began_alike_was_changed_since() -> None:
    """Where it ran only after one rank had updated it, that rank's update is the cause."""
    begun = dataclasses.replace(hashes("parameters", 0, "before_wrap"), wrap="none")
    first = [dataclasses.replace(hashes("parameters", rank, "after_wrap"), wrap="copy") for rank in (0, 1)]
    (found,) = discover([run(*([begun, look] for look in first))], [])
    assert found.cause.startswith("the ranks made or changed it differently before its first forward")
    update = Write(op="lerp_", name="fc.weight", wrap="copy", frames=(Frame("/p/train.py", 4, "ema"),))
    (found,) = discover([run([begun, update, first[0]], [begun, first[1]])], [])
    assert found.cause.startswith("lerp_ in ema writes fc.weight on rank 0 only")


def test_an_update_by_hand_with_a_number_of_each_rank() -> None:
    def written(*numbers: float) -> list[Event]:
        return [Write(op="add_", name="fc.weight", numbers=(n,), frames=STEP) for n in numbers]

    ranks = [[*written(-4, last), hashes("parameters", rank, "at_end")] for rank, last in enumerate((-4, -1))]
    (found,) = discover([run(*ranks)], [])
    assert found.cause.endswith("updates fc.weight by other numbers on each rank: -4 on rank 0 and -1 on rank 1")
    ranks = [[*written(-4), hashes("parameters", rank, "at_end")] for rank in (0, 1)]
    (found,) = discover([run(*ranks)], [])
    assert "with what this rank has" in found.cause


def test_a_copy_that_one_rank_alone_updates_lies_at_the_update() -> None:
    update = Write(op="mul_", name="fc.weight", frames=(Frame("/p/train.py", 4, "ema"),))
    mine = [[dataclasses.replace(hashes("parameters", rank, "at_end"), wrap="copy")] for rank in (0, 1)]
    (found,) = discover([run([update, *mine[0]], mine[1])], [])
    assert (found.line, found.cause) == (
        4,
        "mul_ in ema writes fc.weight on rank 0 only: no wrapper sends that to the others",
    )


def test_what_is_copied_names_the_test_that_its_update_is_below(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "def is_main():\n    return dist.get_rank() == 0\n\n\n"
        "class Average:\n    def update(self, p):\n        self.shadow[0] = p\n\n"
        "    def use(self, p):\n        p.copy_(self.shadow[0])\n\n\n"
        "def train():\n    if is_main():\n        average.update(p)\n    average.use(p)\n"
    )
    write = Write(op="copy_", name="fc.weight", frames=(Frame(str(path), 10, "use"),))
    (found,) = discover([run(*([write, hashes("parameters", rank, "after_step")] for rank in (0, 1)))], [])
    assert "shadow is updated by update (line 6), which is called below `if is_main()` (line 14)" in found.cause
    path.write_text(path.read_text().replace("if is_main()", "if True"))
    (found,) = discover([run(*([write, hashes("parameters", rank, "after_step")] for rank in (0, 1)))], [])
    assert "shadow" not in found.cause


def test_of_a_model_that_is_split_by_hand_what_ranks_hold_alike_stays_equal() -> None:
    """Not the layer that sums, whose rows may be others on each rank; nor what ranks exchange in the end, or hand out
    work for (experts)."""

    def seen(digest: str, when: str) -> Hashes:
        digests = {"norm.weight": digest, "embed.weight": digest}
        return dataclasses.replace(hashes("parameters", 0, when), wrap="split_by_hand", digests=digests)

    def ranks(last: list[str], *ops: str) -> list[list[Event]]:
        calls = [dataclasses.replace(call(5, op), phase="forward", module="embed") for op in ops]
        return [
            [*calls, seen("a", "after_wrap"), seen(str(rank), "after_step"), seen(end, "at_end")]
            for rank, end in enumerate(last)
        ]

    (found,) = discover([run(*ranks(["b", "c"], "all_reduce"))], [])
    assert "norm.weight" in found.message and "embed" not in found.message and found.line == 5
    assert discover([run(*ranks(["b", "b"], "all_reduce"))], []) == []
    assert discover([run(*ranks(["b", "c"], "all_reduce", "all_to_all_single"))], []) == []


def test_what_tensor_parallelism_leaves_whole_stays_equal() -> None:
    """Unless each rank has begun with its own (experts)."""

    def seen(rank: int, when: str, norm: str) -> Hashes:
        digests = {"norm.weight": norm, "expert.weight": str(rank)}
        return dataclasses.replace(hashes("parameters", rank, when), wrap="tensor_parallel", digests=digests)

    equal = [[seen(rank, "after_wrap", "a"), seen(rank, "after_step", "b")] for rank in (0, 1)]
    assert discover([run(*equal)], []) == []
    apart = [[seen(rank, "after_wrap", "a"), seen(rank, "after_step", str(rank))] for rank in (0, 1)]
    (found,) = discover([run(*apart)], [])
    assert "norm.weight" in found.message and "expert" not in found.message and "the same input" in found.fix


def test_gradients_that_are_edited_after_the_average_name_the_edit() -> None:
    """What torch or the user's code did to them before, or to others, is none of it."""
    average = dataclasses.replace(call(3), step=1)
    differ = [hashes("gradients", rank, "before_step") for rank in (0, 1)]
    for role, step, named in (("gradient", 1, True), ("gradient", 0, False), ("parameter", 1, False)):
        edit = Write(op="mul_", name="fc.weight", role=role, step=step, frames=(Frame("/p/train.py", 7, "train"),))
        (found,) = discover([run(*([average, edit, one] for one in differ))], [])
        assert ("mul_ in train changes the gradient of fc.weight" in found.cause and found.line == 7) is named


def test_gradients_that_are_never_averaged_name_the_no_sync() -> None:
    call = Call(name="no_sync", frames=(Frame("/p/train.py", 5, "train"),))
    events = [dataclasses.replace(event, step=1) for event in (call, Phase(phase="backward"))]
    (found,) = discover([run(*([*events, hashes("gradients", rank, "before_step")] for rank in (0, 1)))], [])
    assert found.code == "DDP605" and "no_sync()" in found.cause
    assert (found.path, found.line) == ("/p/train.py", 5)


@pytest.mark.parametrize(
    ("averages", "backwards", "code"),
    [(False, [9], "DDP623"), (True, [8, 9], "DDP622"), (True, [9], ""), (None, [9], "")],
)
def test_gradients_that_the_wrapper_did_not_average_say_why(
    averages: bool | None, backwards: list[int], code: str
) -> None:
    """The forward went through the wrapper, which left the averaging out, or did it in an earlier backward."""
    forward = Call(name="ddp_forward", arguments={"model": 0, "averages": averages}, frames=(Frame("/p/t.py", 5, "f"),))
    before: list[Event] = [forward] if averages is not None else []
    for number, line in enumerate(backwards, 2 - len(backwards)):
        phase = Phase(phase="backward", step=number, frames=(Frame("/p/t.py", line, "f"),))
        before += [phase, Phase(phase="after_backward", step=number)]
    (found,) = discover([run(*([*before, hashes("gradients", rank, "before_step")] for rank in (0, 1)))], [])
    assert found.code == code and found.line == (5 if code == "DDP623" else 9)
    assert ("(line 5)" in found.cause) is bool(code) and ("(line 8)" in found.cause) is (code == "DDP622")
    assert ("did not go through the wrapper" in found.cause) is (not code)


@pytest.mark.parametrize(("averages", "skips"), [(True, False), (False, False), (False, True)])
def test_gradients_that_a_hook_makes_name_it(averages: bool, skips: bool) -> None:
    """Unless all of the backward ran under no_sync()."""
    made = Call(name="register_comm_hook", arguments={"hook": "largest", "of": ["/p/hooks.py", 3]}, frames=STEP)
    before: list[Event] = [made, Phase(phase="backward", step=1)]
    before += [dataclasses.replace(call(9), step=1)] if averages else []
    before += [Call(name="no_sync", step=1, frames=STEP)] if skips else []
    ranks = [[*before, hashes("gradients", rank, "before_step")] for rank in range(2)]
    (found,) = discover([run(*ranks)], [])
    assert ("no_sync" if skips else "the communication hook largest (line 3)") in found.cause
    assert (found.path, found.line) == (("/p/train.py", 9) if skips else ("/p/hooks.py", 3))


def test_unused_parameters_are_named() -> None:
    text = "Expected to have finished reduction in the prior iteration before starting a new one."
    events: list[Event] = [
        NoGrad(names=("head.weight", "head.bias")),
        Raised(type="RuntimeError", message=text, frames=STEP),
    ]
    (found,) = discover([run(events, events, outcome="exception", how=["exception"] * 2)], [])
    assert found.message.endswith("; parameters without a gradient: head.weight, head.bias")
    for cut_off, line in ((("head.weight", "head.bias", "body.weight"), 7), (("head.weight",), 0)):
        gather = dataclasses.replace(call(7, "all_gather"), cut_off=cut_off)
        behind: list[Event] = [gather, *events]
        (found,) = discover([run(behind, behind, outcome="exception", how=["exception"] * 2)], [])
        assert found.cause.startswith(f"all_gather (line {line})") is bool(line)


def test_the_condition_that_unused_parameters_are_used_below_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.py"
    source = "class Net:\n    def __init__(self):\n        self.box = Linear()\n        self.box.reset()\n\n"
    source += "    def forward(self, x):\n        if len(x):\n            return self.box(x)\n        return x\n"
    wrapped = Call(name="wrapped", arguments={"classes": {}, "files": [str(path)]})
    for text, cause in (
        (source, "box is used only at line 8, depending on `if len(x)` (line 7)"),
        (source + "\n    def other(self, x):\n        self.box(x)\n", "Some parameters that DDP manages"),
    ):
        path.write_text(text)
        events: list[Event] = [
            wrapped,
            NoGrad(names=("box.0.weight", "box.0.bias")),
            Raised(type="RuntimeError", message=UNFINISHED, frames=STEP),
        ]
        (found,) = discover([run(events, events, outcome="exception", how=["exception"] * 2)], [])
        assert found.cause.startswith(cause)


def test_the_condition_on_the_part_of_a_round_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "class Routed:\n    def forward(self, x):\n        for i, expert in enumerate(self.experts):\n"
        "            rows = x[index == i]\n            if not len(rows):\n                continue\n"
        "            out.add(expert(rows))\n        return out\n"
    )
    wrapped = Call(name="wrapped", arguments={"classes": {}, "files": [str(path)]})
    names = NoGrad(names=("experts.0.weight", "experts.3.weight"))
    events: list[Event] = [wrapped, names, Raised(type="RuntimeError", message=UNFINISHED, frames=STEP)]
    (found,) = discover([run(events, events, outcome="exception", how=["exception"] * 2)], [])
    assert found.cause.startswith("experts is used only at line 7, depending on `if not len(rows)` (line 5)")


def test_a_rank_in_the_next_round_has_skipped_the_call_of_the_last_one(tmp_path: pathlib.Path) -> None:
    """It waits at a line before that of the other rank."""
    path = tmp_path / "train.py"
    path.write_text(
        "def hook(grad):\n    if grad.max() < 1:\n        return grad\n    return mean(grad)\n\n\n"
        "def main():\n    build()\n    for step in range(9):\n        out = model(x)\n        out.backward()\n"
    )
    built = _at(path, (8, "main"))
    behind = dataclasses.replace(_at(path, (4, "hook"), (11, "main")), rounds=(Round(1, 9, "step", "0"),))
    ahead = dataclasses.replace(_at(path, (10, "main"), step_9="1"), op="broadcast")
    (found,) = discover([run([built, behind], [built, ahead], outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause.startswith("rank 0 reached line 4 after `if grad.max() < 1` (line 2); rank 1 skipped it")


def test_of_what_made_tensors_of_unlike_size_that_which_names_the_rank_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "def main():\n    data = torch.randn(21, 6)\n    model = Net(data)\n    mine = data[rank::world]\n"
        "    out = model(mine)\n    dist.all_gather(parts, out)\n"
    )
    ranks = [[dataclasses.replace(_at(path, (6, "main"), shape=size), op="all_gather")] for size in (11, 10)]
    (found,) = discover([run(*ranks, outcome="hang", how=["stalled"] * 2)], [])
    assert "`out = model(mine)` (line 5); `mine = data[rank::world]` (line 4)" in found.cause
    assert "Net" not in found.cause


def test_what_made_tensors_of_unlike_dtype_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "def main():\n    total = 0\n    for x in mine:\n        total += net(x).item()\n"
        "    found = torch.tensor([total])\n    dist.all_reduce(found)\n"
    )
    kinds = [Tensor(shape=(1,), dtype=dtype) for dtype in ("float32", "int64")]
    ranks = [[dataclasses.replace(_at(path, (6, "main")), tensors=(kind,))] for kind in kinds]
    (found,) = discover([run(*ranks, outcome="hang", how=["stalled"] * 2)], [])
    made = "`found = torch.tensor([total])` (line 5); `total += net(x).item()` (line 4); `total = 0` (line 2)"
    assert made in found.cause and "a different dtype on each" in found.cause


def test_the_condition_in_a_part_that_is_always_used_is_named(tmp_path: pathlib.Path) -> None:
    """Of several parts of one class each may leave its own parts out."""
    path = tmp_path / "model.py"
    path.write_text(
        "class Net:\n    def forward(self, x):\n        for part in self.parts:\n            x = part(x)\n"
        "        return x\n\n\n"
        "class Part:\n    def forward(self, x):\n        if drop():\n            return x\n"
        "        return self.fc(self.norm(x))\n\n\nclass Other:\n    def forward(self, x):\n        return self.fc(x)\n"
    )
    classes = {"": "Net", "parts": "ModuleList", "parts.1": "Part"}
    wrapped = Call(name="wrapped", arguments={"classes": classes, "files": [str(path)]})
    for names, cause in (
        (
            ("parts.1.norm.weight", "parts.1.fc.bias"),
            "parts.1.norm, parts.1.fc are used only at line 12, depending on `if drop()` (li",
        ),
        (("parts.1.norm.weight", "head.weight"), "Some parameters that DDP manages"),
    ):
        raised = Raised(type="RuntimeError", message=UNFINISHED, frames=STEP)
        events: list[Event] = [wrapped, NoGrad(names=names), raised]
        (found,) = discover([run(events, events, outcome="exception", how=["exception"] * 2)], [])
        assert found.cause.startswith(cause), found.cause


@pytest.mark.parametrize(
    ("inner", "code"), [("/site/torch/serialization.py:9 load", "DDP401"), ("/p/train.py:9 train", "")]
)
def test_memory_that_ran_out_is_a_checkpoints_only_in_a_load(inner: str, code: str) -> None:
    message = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"
    events: list[Event] = [Raised(type="RuntimeError", message=message, frames=STEP, inner=inner)]
    (found,) = discover([run(events, events, outcome="exception", how=["exception"] * 2)], [])
    assert found.code == code and ("torch.load" in found.fix) is bool(code)


@pytest.mark.parametrize(
    ("one", "other", "unlike"),
    [
        (("a 0", "b 1"), ("a 0", "b 1"), False),
        (("a 0", "b 1"), ("c 0", "d 1"), False),
        (("a 0", "b 1"), ("c 1", "d 2"), True),
        (("a 0", "b 0"), ("c 0", "d 0"), True),
        ((), (), False),
        (("a 0 1", "b 0 2"), ("a 0 3", "c 0 4"), False),
    ],
    ids=["copies", "augmented", "parts", "parts of one label", "unknown", "padded"],
)
def test_equal_numbers_of_unlike_data(one: tuple[str, ...], other: tuple[str, ...], unlike: bool) -> None:
    mine, theirs = (Samples(first=(3, 5), rows=rows) for rows in (one, other))
    assert unlike_data(mine, theirs) is unlike


@pytest.mark.parametrize(
    ("shares", "drawn", "overlaps"),
    [
        ((range(32), range(16, 48)), 32, True),
        ((range(32), range(32, 64)), 32, False),
        ((range(33), range(31, 64)), 33, False),
        ((range(32), range(16, 48)), 64, False),
    ],
    ids=["overlap", "parts", "filled up", "all of the data"],
)
def test_shares_of_the_data_that_samplers_draw_overlap(shares: tuple[range, range], drawn: int, overlaps: bool) -> None:
    """Each rank draws its share; who draws all of the data in an order of its own divides nothing."""
    averaged = dataclasses.replace(call(9), issued_by="ddp", phase="backward")
    epochs = [Samples(sample=tuple(share), count=drawn, dataset=64, steps=4, frames=STEP) for share in shares]
    found = discover([run(*([averaged, epoch] for epoch in epochs))], [])
    assert [one.kind for one in found] == ["samples"] * overlaps
    assert not overlaps or "16 of 32 samples of rank 0 that were compared are among those of rank 1" in found[0].message


UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates"
)
BUILT = (Frame("/p/train.py", 3, "main"),)


def test_what_was_frozen_after_the_wrap_is_named() -> None:
    switched = Switched(frozen=("body.weight",), built=BUILT, frames=(Frame("/p/train.py", 5, "freeze"),))
    events: list[Event] = [switched, Raised(type="RuntimeError", message=UNFINISHED, frames=STEP)]
    (found,) = discover([run(events, events, outcome="exception", how=["exception"] * 2)], [])
    assert found.message.endswith("starting a new one; frozen since DDP was built: body.weight")
    assert found.code == "DDP603" and "(line 3), and lost it in freeze (line 5)" in found.cause


def test_replicas_apart_by_what_was_switched_after_the_wrap() -> None:
    backward = Phase(phase="backward", frames=STEP)
    thawed = Switched(thawed=("fc.weight", "fc.bias"), built=BUILT)
    averaged = dataclasses.replace(call(7), step=0)

    def found(*events: Event) -> str:
        ranks = [[*events, hashes("parameters", rank, "after_step")] for rank in (0, 1)]
        return discover([run(*ranks)], [])[0].cause

    assert "made trainable: DDP averages only" in found(thawed, backward, averaged)
    assert "made trainable" not in found(dataclasses.replace(thawed, thawed=("other",)), backward, averaged)
    frozen = Switched(frozen=("body.weight",), built=BUILT)
    assert "waits for their gradients" in found(frozen, backward)
    assert "waits for" not in found(frozen, backward, averaged)


def samples(batches: tuple[str, ...] = ("a", "b"), steps: int = 2, **fields: Any) -> Samples:
    return Samples(sampler="DistributedSampler", digest="x", first=(3, 1), batches=batches, steps=steps, **fields)


@pytest.mark.parametrize(
    ("ranks", "code"),
    [
        ([samples(), samples()], "DDP706"),
        ([samples(dataset=64), samples(dataset=64)], "DDP707"),
        ([samples(), samples(("a", "c"))], ""),
        ([samples(("a", "b", "c")), samples(("a", "b"))], "DDP706"),
        ([samples(("a", "a")), samples(("a", "a"))], ""),
        ([samples(steps=0), samples(steps=0)], ""),
    ],
    ids=["iterable", "mapped", "divided", "one has more", "made up", "evaluation"],
)
def test_ranks_that_train_on_the_same_samples(ranks: list[Samples], code: str) -> None:
    averages = dataclasses.replace(call(7), issued_by="ddp", phase="backward")
    found = discover([run(*([averages, event] for event in ranks))], [])
    assert [one.code for one in found] == ([code] if code else [])
    together = dataclasses.replace(call(6, "all_gather"), phase="forward")
    assert discover([run(*([averages, together, event] for event in ranks))], []) == []
    assert discover([run(*([event] for event in ranks))], []) == [], "nobody averages their gradients"


@pytest.mark.parametrize(
    ("replicas", "cause"),
    [
        (0, "the data is not divided"),
        (1, "its DistributedSampler was made for 1 of the 2 ranks"),
        (2, "was given one rank"),
    ],
)
def test_a_sampler_that_divides_the_data_in_another_way(replicas: int, cause: str) -> None:
    averages = dataclasses.replace(call(7), issued_by="ddp", phase="backward")
    (found,) = discover([run(*([averages, samples(dataset=64, replicas=replicas)] for _ in range(2)))], [])
    assert cause in found.cause


def test_a_sampler_that_is_never_told_the_epoch() -> None:
    def found(told: Sequence[Event] = (), **fields: Any) -> list[Discovery]:
        epochs = [*told, *(samples(takes_epoch=True, epoch=0, **fields) for _ in range(2))]
        return discover([run(epochs, epochs)], [])

    assert [(one.code, one.cause) for one in found()] == [
        ("DDP701", "it shuffles by the epoch number, which was never set")
    ]
    told = [Call(name="set_epoch", arguments={"epoch": 3}) for _ in range(2)]
    assert "set_epoch(3) was called for each epoch" in found(told)[0].cause
    assert "never set" in found([told[0]])[0].cause
    assert found(steps=0) == [], "an evaluation may have one order"


def test_a_group_that_not_all_ranks_make() -> None:
    made = dataclasses.replace(call(5, "new_group"), members=(0,), tensors=())
    (found,) = discover([run([made, call(7)], [call(7)])], [])
    assert found.code == "DDP106" and found.message.startswith("new_group is called by rank 0 and not by rank 1")
    assert "this run completed" in found.message
    other = dataclasses.replace(made, members=(1,))
    (found,) = discover([run([made], [other], outcome="hang", how=["stalled"] * 2)], [])
    assert found.message.endswith("rank 0 calls new_group of rank 0, rank 1 calls new_group of rank 1")
    swapped = dataclasses.replace(made, members=(1, 0)), dataclasses.replace(made, members=(0, 1))
    assert discover([run([swapped[0]], [swapped[1]])], []) == []


def test_calls_that_do_not_belong_together_name_the_condition_between_them(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("def main():\n    if epoch:\n        if rank == 0:\n            save()\n        reduce()\n")
    caller = Frame(str(path), 9, "<module>")
    ranks = [
        dataclasses.replace(call(line, op, path=str(path)), frames=(Frame(str(path), line, "main"), caller))
        for line, op in ((4, "barrier"), (5, "all_reduce"))
    ]
    (found,) = discover([run(*([one] for one in ranks), outcome="hang")], [])
    assert found.cause == "rank 0 is below `if rank == 0` (line 3) at line 4, rank 1 at line 5 is not"
    (found,) = discover([run(*([one] for one in reversed(ranks)), outcome="hang")], [])
    assert found.cause.startswith("rank 1 is below `if rank == 0` (line 3)")


def test_the_test_of_the_rank_in_what_is_called_is_named(tmp_path: pathlib.Path) -> None:
    """What it is called below may be the same on all ranks; a test of the rank there is not."""
    path = tmp_path / "train.py"
    path.write_text(
        "class Saver:\n    def __init__(self):\n        self.path, self.main = PATH, dist.get_rank() == 0\n\n"
        "    def save(self):\n        if not self.main:\n            return\n        gather()\n\n\n"
        "def main():\n    for step in range(9):\n        train()\n        if step % 3 == 0:\n            saver.save()\n"
    )
    saves = (Frame(str(path), 8, "save"), Frame(str(path), 15, "main"))
    ranks = [
        [dataclasses.replace(call(9, op), frames=frames)]
        for op, frames in (("all_gather", saves), ("all_reduce", (Frame(str(path), 13, "main"),)))
    ]
    (found,) = discover([run(*ranks, outcome="hang")], [])
    assert (
        found.cause == "rank 0 reached line 8 after `if not self.main` (line 6); rank 1 skipped it and reached line 13"
    )
    path.write_text(path.read_text().replace("step % 3 == 0", "rank == 0"))
    (found,) = discover([run(*ranks, outcome="hang")], [])
    assert found.cause.startswith("rank 0 is below `if rank == 0` (line 14)")
    path.write_text(path.read_text().replace("rank == 0", "late").replace("dist.get_rank() == 0", "True"))
    (found,) = discover([run(*ranks, outcome="hang")], [])
    assert found.cause.startswith("rank 0 is below `if late` (line 14)")


def test_the_test_of_the_rank_is_named_below_which_one_rank_alone_makes_calls(tmp_path: pathlib.Path) -> None:
    """The loop around its call is no reason: the other rank has never been in it."""
    path = tmp_path / "train.py"
    path.write_text(
        "def validate():\n    for batch in loader:\n        model(batch)\n\n\n"
        "def fit():\n    step()\n    if rank == 0:\n        validate()\n    last()\n"
    )
    step = dataclasses.replace(call(7), frames=(Frame(str(path), 7, "fit"),))
    alone = dataclasses.replace(call(3), frames=(Frame(str(path), 3, "validate"), Frame(str(path), 9, "fit")))
    (found,) = discover([run([step, alone], [step], outcome="hang", how=["stalled", "completed"])], [])
    assert found.cause == "rank 0 is below `if rank == 0` (line 8) at line 9, where rank 1 has made no call"
    (found,) = discover([run([alone, alone], [alone], outcome="hang", how=["stalled", "completed"])], [])
    assert found.cause.startswith("rank 1 is out of the loop `for batch in loader` (line 2)")


LOOPS = """\
def main():
    for batch in loader:
        step(batch)
        log(batch)
    dist.barrier()


def serve():
    while True:
        step(1)
        if stop or flag.item():
            for part in parts:
                break
            break
    return


def nested():
    for part in parts:
        for batch in loader:
            step(batch)


def epochs():
    for epoch in range(3):
        for batch in loader:
            step(batch)


def stops():
    for epoch in range(9):
        for batch in loader:
            step(batch)
        value = validate()
        if patience.done(value):
            break


def resumed(first):
    for epoch in range(first, 9):
        for number in range(4):
            step(number)


def saves():
    for batch in loader:
        step(batch)
        log(batch)


def log(batch):
    if rank != 0 or not batch:
        return
    if verbose:
        norm(batch)


def by_hand():
    for p in parameters:
        if p.grad is None:
            continue
        all_reduce(p.grad)


def by_name(values):
    for key in sorted(values):
        all_reduce(values[key])


def evaluates():
    for epoch in range(2):
        for batch in loader:
            step(batch)
        compute()


def compute():
    if not total:
        return
    all_reduce(total)


def catches():
    for number in range(6):
        try:
            step(number)
        except RuntimeError:
            continue
    dist.barrier()


def reads():
    run()
    dist.barrier()


def run():
    for number in count():
        try:
            step(number)
        except StopIteration:
            break


def chooses():
    for expert in experts:
        chosen = index == expert
        if chosen.any():
            step(chosen)
    dist.barrier()


def patient():
    for epoch in range(40):
        for number in range(0, 32, 8):
            step(number)
        if stopper.stop:
            break
    dist.barrier()


def skips():
    for number, x in enumerate(batches):
        try:
            loss = model(x)
        except RuntimeError:
            continue
        step(loss)
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("function", "lines", "cause"),
    [
        (
            "main",
            (3, 5),
            "rank 1 is out of the loop `for batch in loader` (line 2), rank 0 is in it: the ranks repeat it a "
            "different number of times",
        ),
        (
            "serve",
            (10, 0),
            "rank 1 is out of the loop `while True` (line 9), rank 0 is in it: the only way out is line 14, below "
            "`if stop or flag.item()` (line 11)",
        ),
        ("nested", (21, 0), ""),
        (
            "epochs",
            (27, 0),
            "rank 1 is out of the loop `for batch in loader` (line 26), rank 0 is in it: the ranks repeat it a "
            "different number of times",
        ),
        ("main", (3, 4), ""),
    ],
    ids=["rounds", "way out", "one of two", "epochs", "same round"],
)
def test_the_loop_that_one_rank_has_left_is_named(
    tmp_path: pathlib.Path, function: str, lines: tuple[int, int], cause: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    caller = Frame(str(path), 30, "<module>")
    ranks = [
        [dataclasses.replace(call(line, op), frames=(Frame(str(path), line, function), caller))] if line else []
        for line, op in zip(lines, ("all_reduce", "barrier"), strict=True)
    ]
    (found,) = discover([run(*ranks, outcome="hang", how=["stalled", "completed"])], [])
    assert found.cause == cause and bool(found.fix) is bool(cause)


def _at(path: pathlib.Path, *lines: tuple[int, str], shape: int = 4, name: str = "", **rounds: str) -> Collective:
    """A call below these lines, the innermost first; `rounds` are the loops of its innermost function by line."""
    frames = tuple(Frame(str(path), line, function) for line, function in lines)
    stood = tuple(Round(0, int(key.split("_")[1]), key.split("_")[0], value) for key, value in rounds.items())
    return dataclasses.replace(call(1, shape=(shape,), name=name), frames=frames, rounds=stood)


@pytest.mark.parametrize("known", [True, False])
def test_of_loops_that_a_rank_has_left_the_one_is_named_that_ranks_may_leave_apart(
    tmp_path: pathlib.Path, known: bool
) -> None:
    """The inner one is equally long for all ranks."""
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    rounds = ({"epoch_114": "0", "number_115": "24"}, {"epoch_114": "1", "number_115": "0"})
    calls = [_at(path, (116, "patient"), **(one if known else {})) for one in rounds]
    barrier = dataclasses.replace(_at(path, (119, "patient")), op="barrier", tensors=())
    (found,) = discover([run(calls, [calls[0], barrier], outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause == (
        "rank 1 is out of the loop `for epoch in range(40)` (line 114), rank 0 is in it: the only way out but for its "
        "end is line 118, below `if stopper.stop` (line 117)"
    )


def test_a_round_that_a_handler_ends_early_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    barrier = dataclasses.replace(_at(path, (129, "skips")), op="barrier", tensors=())
    (found,) = discover([run([_at(path, (128, "skips"))], [barrier], outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause.endswith(
        "rank 0 is in it: line 126 continues it after an exception, or the ranks repeat it a different number of times"
    )


def test_of_calls_in_other_rounds_the_test_is_named_that_they_are_below(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    calls = [_at(path, (109, "chooses"), **{"expert_106": value}) for value in ("7", "6")]
    others = [_at(path, (110, "chooses"), shape=size) for size in (8, 2)]
    examined = run(
        *([one, other] for one, other in zip(calls, others, strict=True)), outcome="hang", how=["stalled"] * 2
    )
    (found,) = discover([examined], [])
    assert "is 7 on rank 0 and 6 on rank 1, where line 109 is below `if chosen.any()` (line 108)" in found.cause


@pytest.mark.parametrize(
    ("ranks", "cause"),
    [
        (
            ([[(34, "stops")], [(33, "stops")]], [[(34, "stops")]]),
            "rank 1 is out of the loop `for epoch in range(9)` (line 31), rank 0 is in it: the only way out but for "
            "its end is line 36, below `if patience.done(value)` (line 35)",
        ),
        (
            ([[(33, "stops")], [(33, "stops")]], [[(33, "stops")]]),
            "",
        ),
    ],
    ids=["begun anew", "one of two"],
)
def test_the_loop_that_was_begun_anew_is_the_one_that_was_left(
    tmp_path: pathlib.Path, ranks: tuple[list[list[tuple[int, str]]], ...], cause: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    events = [[_at(path, *lines) for lines in calls] for calls in ranks]
    (found,) = discover([run(*events, outcome="hang", how=["stalled", "completed"])], [])
    assert found.cause == cause


def test_a_rank_that_begins_with_another_round(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    rounds = [[(2, 0), (2, 1)], [(0, 0), (0, 1), (1, 0)]]
    events = [
        [_at(path, (42, "resumed"), epoch_40=str(epoch), number_41=str(number)) for epoch, number in rank]
        for rank in rounds
    ]
    (found,) = discover([run(*events, outcome="hang", how=["completed", "stalled"])], [])
    assert found.cause == (
        "rank 0 is out of the loop `for epoch in range(first, 9)` (line 40), rank 1 is in it: the ranks repeat it a "
        "different number of times; `epoch` of the loop `for epoch in range(first, 9)` (line 40) is 2 on rank 0 and 0 "
        "on rank 1"
    )


@pytest.mark.parametrize(("of", "apart"), [("rows[rank::world]", False), ("rows[:9]", True)], ids=["shares", "rows"])
def test_rounds_over_a_share_are_no_rounds_apart(tmp_path: pathlib.Path, of: str, apart: bool) -> None:
    """Each rank goes over elements of its own, from the first round on."""
    path = tmp_path / "train.py"
    path.write_text(f"def main():\n    mine = {of}\n    for row in mine:\n        step(row)\n    barrier()\n")
    events = [
        [_at(path, (4, "main"), row_3=first), _at(path, (last, "main"), row_3=first, shape=last)]
        for first, last in (("0", 4), ("1", 5))
    ]
    (found,) = discover([run(*events, outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause.startswith("rank 1 is out of the loop `for row in mine` (line 3), rank 0 is in it")
    assert ("`row` of the loop" in found.cause) is apart


def test_a_loop_in_what_is_called_may_be_gone_round_alike_and_skip_the_call(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    calls = [
        dataclasses.replace(call(1, op), frames=tuple(Frame(str(path), line, name) for line, name in at))
        for op, at in (
            ("all_reduce", ((109, "chooses"), (93, "reads"))),
            ("barrier", ((94, "reads"),)),
        )
    ]
    (found,) = discover([run(*([one] for one in calls), outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause == (
        "rank 1 is out of the loop `for expert in experts` (line 106), rank 0 is in it: the ranks repeat it a "
        "different number of times, or line 109 runs in other rounds on each rank, behind `if chosen.any()` (line 108)"
    )


def test_a_rank_that_has_begun_anew_has_left_the_inner_loop_as_well(tmp_path: pathlib.Path) -> None:
    """The other one is at what comes behind that loop: the first one went past it."""
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    before = [_at(path, (73, "evaluates"), epoch_71="0")]
    extra, others = _at(path, (80, "compute"), (74, "evaluates"), shape=2), _at(path, (73, "evaluates"), epoch_71="1")
    (found,) = discover([run([*before, extra], [*before, others], outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause == (
        "rank 0 reached line 80 after `if not total` (line 78); rank 1 skipped it and reached line 73"
    )


def test_a_round_that_an_exception_cut_short_is_none_too_few(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    ranks = [[_at(path, (86, "catches"), number_84=str(number)) for number in rounds] for rounds in ([0, 1, 2], [0, 2])]
    ranks[1].append(dataclasses.replace(_at(path, (89, "catches")), op="barrier"))
    (found,) = discover([run(*ranks, outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause == (
        "rank 1 is out of the loop `for number in range(6)` (line 84), rank 0 is in it: line 87 continues it after "
        "an exception, without what comes behind that; `number` of the loop `for number in range(6)` (line 84) is 1 on "
        "rank 0 and 2 on rank 1"
    )


def test_the_loop_in_what_a_line_calls_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    ended, goes_on = _at(path, (94, "reads")), _at(path, (100, "run"), (93, "reads"))
    ranks = [[dataclasses.replace(ended, op="barrier")], [goes_on]]
    (found,) = discover([run(*ranks, outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause == (
        "rank 0 is out of the loop `for number in count()` (line 98), rank 1 is in it: the only way out but for its "
        "end is line 102"
    )


def test_tensors_of_one_shape_that_should_not_meet_are_told_by_name() -> None:
    events = [[call(5, name=f"{name}.grad")] for name in "ab"]
    (found,) = discover([run(*events, outcome="hang", how=["stalled"] * 2)], [])
    assert "rank 0 calls all_reduce [4] of a.grad (line 5), rank 1 calls all_reduce [4] of b.grad" in found.message


def test_one_line_that_is_given_unlike_tensors() -> None:
    (found,) = discover([run([call(5, shape=(4,))], [call(5, shape=(8,))], outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause.startswith("one line got different tensors")


@pytest.mark.parametrize("last", [[(47, "saves")], []], ids=["known", "first call"])
def test_the_condition_that_one_rank_went_past_is_named(tmp_path: pathlib.Path, last: list[tuple[int, str]]) -> None:
    """The one that asks for the rank, where there are several."""
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    before = [_at(path, *last)] if last else []
    extra, others = _at(path, (55, "log"), (48, "saves"), shape=8), _at(path, (47, "saves"))
    (found,) = discover([run([*before, extra], [*before, others], outcome="hang", how=["stalled"] * 2)], [])
    came = "rank 0 reached line 55 after `if rank != 0 or not batch` (line 52); rank 1 skipped it and reached line 47"
    assert found.cause == (came if last else "")


def test_unlike_tensors_at_one_line_name_the_condition_of_the_round(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    events = [[_at(path, (62, "by_hand"), shape=size, name=f"{name}.grad")] for size, name in ((8, "a"), (4, "b"))]
    (found,) = discover([run(*events, outcome="hang", how=["stalled"] * 2)], [])
    assert found.cause == (
        "at line 62 a.grad of rank 0 meets b.grad of rank 1: `if p.grad is None` (line 60) differs between ranks"
    )


def test_sizes_that_meet_by_luck_are_told_by_the_round_they_came_from(tmp_path: pathlib.Path) -> None:
    """An abort over sizes at calls of unlike lines is not about sizes."""
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    names = [("cat", "dog"), ("bird", "cat")]
    events: list[list[Collective]] = [
        [_at(path, (67, "by_name"), key_66=repr(name)) for name in rank] for rank in names
    ]
    events[0].append(_at(path, (42, "resumed"), shape=8))
    events[1].append(_at(path, (67, "by_name"), key_66="'dog'"))
    examined = run(*events, outcome="crash", how=["exception", "signal"])
    ranks = list(examined.run.ranks)
    ranks[1] = dataclasses.replace(ranks[1], signal="SIGABRT", message=SIZES)
    examined = dataclasses.replace(examined, run=dataclasses.replace(examined.run, ranks=tuple(ranks)))
    (found,) = discover([examined], [])
    assert found.kind == "death" and not found.code
    assert found.cause.startswith(
        "`key` of the loop `for key in sorted(values)` (line 66) is 'cat' on rank 0 and 'bird'"
    )
    assert found.fix.startswith("make the same calls")


@pytest.mark.parametrize(("rounds", "told"), [([[0, 0, 1], [0, 1]], True), ([[0, 1, 2], [1, 2]], False)])
def test_a_message_of_another_round_is_named(tmp_path: pathlib.Path, rounds: list[list[int]], told: bool) -> None:
    """Rank 1 leaves out the last message of the first round: it meets what it receives first in the second one. A rank
    that is one round behind from the first message on is so by intention."""
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    calls = [
        [
            dataclasses.replace(_at(path, (27, "epochs"), epoch_25=str(epoch)), op=op, peer=1 - rank)
            for epoch in rounds[rank]
        ]
        for rank, op in enumerate(("send", "recv"))
    ]
    raised = Raised(type="ValueError", message="Expected 2, got 4", frames=STEP)
    (found,) = discover([run(calls[0], [*calls[1], raised], outcome="exception", how=["stopped", "exception"])], [])
    assert found.message.startswith("rank 1 raised ValueError")
    assert bool(found.cause) is told
    assert not told or found.cause == (
        "what was sent at line 27 of rank 0 was received at line 27 of rank 1 in another round: `epoch` of the loop "
        "`for epoch in range(3)` (line 25) is 0 there and 1 here; one of them left a message out before"
    )


def test_a_call_that_is_tried_again_names_what_goes_on(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "def step(x):\n    model(x)\n    loss.backward()\n\n\ndef retried(x):\n    for attempt in range(3):\n"
        "        try:\n            return step(x)\n        except OSError:\n            pass\n"
    )
    ranks = []
    for line, attempt in ((3, "0"), (2, "1")):
        frames = (Frame(str(path), line, "step"), Frame(str(path), 9, "retried"))
        stood = (Round(1, 7, "attempt", attempt),)
        ranks.append([dataclasses.replace(call(1, shape=(line,)), frames=frames, rounds=stood)])
    (found,) = discover([run(*ranks, outcome="hang", how=("stalled", "stalled"))], [])
    assert "is 0 on rank 0 and 1 on rank 1; line 10 continues it after an exception" in found.cause


def test_a_call_amid_an_exception_names_that() -> None:
    raised = (Frame("/p/train.py", 46, "main"),)
    leaving = dataclasses.replace(call(19, "barrier"), amid="IndexError: out of range", raised=raised)
    (found,) = discover([run([call(49)], [leaving], outcome="hang", how=("stalled", "stalled"))], [])
    assert found.cause.startswith("rank 1 has raised IndexError: out of range at line 46 in main, and communicates")
    both = dataclasses.replace(call(49), amid="StopIteration: ", raised=raised)
    (found,) = discover([run([both], [leaving], outcome="hang", how=("stalled", "stalled"))], [])
    assert not found.cause


def test_what_an_optimizer_calls_is_called_as_often_as_a_rank_asks_for(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "def fit():\n    def closure():\n        loss().backward()\n\n    opt.step(closure)\n    dist.barrier()\n"
    )
    frames = (Frame(str(path), 3, "closure"), Frame(str(path), 5, "fit"))
    asked = dataclasses.replace(call(1), frames=frames)
    ranks = [[asked], [dataclasses.replace(call(1, "barrier"), frames=(Frame(str(path), 6, "fit"),))]]
    (found,) = discover([run(*ranks, outcome="hang", how=("stalled", "stalled"))], [])
    assert found.cause.startswith("`opt.step(closure)` (line 5) calls closure as often as the loss")


def test_ranks_that_share_a_forward_draw_alike_in_it() -> None:
    def ranks(*states: tuple[str, str]) -> list[list[Event]]:
        digests = {"norm.weight": "a"}
        first = Hashes(what="parameters", when="after_wrap", wrap="split_by_hand", digests=digests)
        sums = dataclasses.replace(call(5), phase="forward", module="mlp")
        return [
            [
                first,
                *(dataclasses.replace(sums, random=state) for state in of),
                *(
                    dataclasses.replace(first, when=when, step=1, digests={"norm.weight": str(rank)})
                    for when in ("after_step", "at_end")
                ),
            ]
            for rank, of in enumerate(states)
        ]

    (found,) = discover([run(*ranks(("a", "b"), ("c", "d")))], [])
    assert "draw different random numbers" in found.cause and found.line == 5
    for states in ((("a", "b"), ("a", "b")), (("a", "a"), ("c", "c"))):
        (found,) = discover([run(*ranks(*states))], [])
        assert "get a gradient from this rank's part only" in found.cause


def test_who_looks_again_and_again_for_what_does_not_come(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("def wait():\n    while not os.path.exists(flag):\n        time.sleep(1)\n")
    hung = run([call(25)], [], outcome="hang", how=("stalled", "stalled"))
    at = dataclasses.replace(hung.run.ranks[1], last=Last(frame=Frame(str(path), 3, "wait")))
    (found,) = discover([examine(dataclasses.replace(hung.run, ranks=(hung.run.ranks[0], at)))], [])
    assert found.line == 3 and found.cause.startswith("it repeats `while not os.path.exists(flag)` (line 2) again")
    path.write_text(path.read_text().replace("time.sleep(1)", "work()"))
    (found,) = discover([examine(dataclasses.replace(hung.run, ranks=(hung.run.ranks[0], at)))], [])
    assert not found.cause


def test_who_waits_for_a_key_that_nobody_sets() -> None:
    frame = Frame("/p/train.py", 18, "share")
    asks = Call(name="store", arguments={"asks": "get", "key": "run_name"}, frames=(frame,))
    hung = run([call(25)], [asks], outcome="hang", how=("stalled", "stalled"))
    ranks = [hung.run.ranks[0], dataclasses.replace(hung.run.ranks[1], last=Last(frame=frame))]
    hung = examine(dataclasses.replace(hung.run, ranks=tuple(ranks)))
    (found,) = discover([hung], [])
    assert found.line == 18 and found.cause == "get() waits until a rank has set 'run_name' in this store"


def test_where_the_loops_around_a_call_stand() -> None:
    def inner() -> tuple[Round, ...]:
        for _name in ("w",):
            for _tensor in (None,):
                return rounds(sys._getframe())
        return ()

    for _step in (7,):
        found = inner()
    assert [(one.depth, one.name, one.value) for one in found] == [(0, "_name", "'w'"), (1, "_step", "7")]


def test_two_ranks_that_both_receive_first() -> None:
    calls = [dataclasses.replace(call(line, "recv"), peer=1 - rank) for rank, line in ((0, 3), (1, 7))]
    (found,) = discover([run(*([one] for one in calls), outcome="hang", how=["stalled"] * 2)], [])
    assert "rank 0 calls recv" in found.message and "rank 1 calls recv" in found.message
    assert found.cause == "each receives first and waits for what the other one sends afterwards"


def test_a_file_that_one_rank_misses_is_told_with_where_the_other_one_was() -> None:
    missed = Raised(type="FileNotFoundError", message="data.pt", frames=STEP)
    examined = run([], [missed], wrap="script", outcome="exception", how=["stopped", "exception"])
    there = dataclasses.replace(examined.run.ranks[0], last=Last(frame=Frame("/p/train.py", 4, "prepare")))
    ranks = (there, examined.run.ranks[1])
    (found,) = discover([dataclasses.replace(examined, run=dataclasses.replace(examined.run, ranks=ranks))], [])
    assert found.cause == "only rank 1 missed it: rank 0 got as far as line 4 in prepare"


def test_a_rank_that_was_not_started_when_the_user_ended_the_run_did_not_die() -> None:
    how = ["completed", "not_started"]
    interrupted = run([], [], wrap="script", outcome="interrupted", how=how)
    assert discover([interrupted], []) == []
    ended = [dataclasses.replace(rank, how="signal", signal="SIGTERM") for rank in interrupted.run.ranks]
    by_us = dataclasses.replace(interrupted, run=dataclasses.replace(interrupted.run, ranks=tuple(ended)))
    assert discover([by_us], []) == []
    assert discover([run([], [], wrap="script", outcome="not_started", how=how)], [])


def test_every_discovery_has_a_place(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("class Other:\n    pass\nclass Net:\n    def __init__(self):\n        self.head = Linear()\n")

    def line(*names: str) -> int:
        evidence = Evidence("ddp", 0, "exception", "raised", model="Net")
        (found,) = placed([Discovery("exception", "raised", evidence=(evidence,), names=names)], path)
        assert pathlib.Path(found.path).name == "net.py"
        return found.line

    assert line("head.weight", "head.bias") == 5
    assert line("scale") == 3


def test_what_an_assignment_to_data_loses_under_fsdp_lies_there(tmp_path: pathlib.Path) -> None:
    """No operator shows it in the run, under DDP the parameter has the value."""
    path = tmp_path / "net.py"
    path.write_text(
        "class Net:\n    def __init__(self):\n        self.k.data = self.q.data\n"
        "    def follow(self, k, q):\n        k.data = 0.9 * k.data + 0.1 * q.data\n"
    )
    for wrap, line in (("fsdp2", 5), ("ddp", 1)):
        evidence = Evidence(wrap, 0, "reference", "parameters differ", model="Net")
        (found,) = placed([Discovery("reference", "parameters differ", evidence=(evidence,), names=("w",))], path)
        assert found.line == line and found.cause.startswith("the assignment to `.data` in follow") is (wrap == "fsdp2")


def test_a_write_to_a_gathered_parameter_is_the_cause_of_what_differs_from_the_reference() -> None:
    write = Write(op="aten.mul_", name="w", phase="forward", frames=(Frame("/p/net.py", 4, "forward"),))
    far = Reference(parameters={"w": 0.5}, separable=True, repeatable=True)
    (found,) = discover([run([write, far], [write, far], wrap="fsdp2")], [])
    assert found.line == 4 and found.cause.startswith("aten.mul_ in forward writes to the copy that FSDP gathers")
    (found,) = discover([run([write, far], [write, far])], [])
    assert not found.cause


def test_a_rank_that_waits_for_a_thread_which_raised_is_told_so() -> None:
    raised = Raised(type="OSError", message="cannot read", where="thread", frames=STEP)
    examined = run([call(3), call(3)], [call(3), raised], outcome="hang", how=["stalled", "stalled"])
    zero, one = examined.run.ranks
    one = dataclasses.replace(one, last=Last(frame=Frame("/p/train.py", 31, "main")))
    (found,) = discover([dataclasses.replace(examined, run=dataclasses.replace(examined.run, ranks=(zero, one)))], [])
    assert "rank 1 waits at line 31 in main for what the thread was to bring" in found.cause


def test_arms_of_a_branch_before_a_mismatch_are_not_where_the_ranks_part(tmp_path: pathlib.Path) -> None:
    """A call that another rank does not make is met by what that one calls next, and so are all that follow."""
    path = tmp_path / "train.py"
    path.write_text(LOOPS)
    arms = [[_at(path, (2, "main"))], [_at(path, (3, "main"))]]
    last = [_at(path, (6, "main"), shape=rank + 1) for rank in (0, 1)]
    (found,) = discover([run(*([*arm, call] for arm, call in zip(arms, last, strict=True)))], [])
    assert found.message.startswith("the ranks call different collectives: shape:")
    extra = [_at(path, (3, "main")), _at(path, (6, "main")), last[0]]
    (found,) = discover([run(extra, [_at(path, (6, "main")), last[1]])], [])
    assert "these matched by chance; then shape: rank 0 calls all_reduce [4]" in found.message and found.line == 3


def test_messages_of_one_tag_fit_what_they_are_received_into() -> None:
    def message(op: str, peer: int, size: int, tag: int) -> Collective:
        return dataclasses.replace(call(3, op, (size,)), peer=peer, tag=tag)

    sent = [message("send", 1, 4, 0), message("send", 1, 2, 7)]
    taken = [message("recv", 0, 2, 7), message("recv", 0, 4, 0)]
    assert discover([run(sent, taken)], []) == []
    (found,) = discover([run(sent, [*taken[:1], message("recv", 0, 3, 0)])], [])
    assert found.cause.startswith("a message does not fill the tensor") and found.fix

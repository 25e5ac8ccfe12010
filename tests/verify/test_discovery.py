"""Discoveries: where they lie and what is said of their cause."""

from __future__ import annotations

import dataclasses
import pathlib

from ddp_lint.verify.discovery import discover, placed
from ddp_lint.verify.results import Discovery, Evidence
from ddp_lint.verify.trace import Call, Event, Frame, Hashes, NoGrad, Phase, Raised, Write

from .traces import run

STEP = (Frame("/p/train.py", 9, "train"),)


def hashes(what: str, rank: int, when: str) -> Hashes:
    return Hashes(what=what, when=when, wrap="ddp", step=1, frames=STEP, digests={"fc.weight": str(rank)})


def test_a_drift_lies_at_the_write_that_makes_it() -> None:
    write = Write(op="mul_", name="fc.weight", step=0, frames=(Frame("/p/model.py", 4, "training_step"),))
    ranks = [[write, hashes("parameters", rank, "after_step")] for rank in (0, 1)]
    (found,) = discover([run(*ranks)], [])
    assert (found.path, found.line) == ("/p/model.py", 4)
    assert found.cause.startswith("mul_ in training_step writes fc.weight on each rank")


def test_a_drift_without_a_write_lies_at_the_step() -> None:
    (found,) = discover([run(*([hashes("parameters", rank, "after_step")] for rank in (0, 1)))], [])
    assert (found.path, found.line, found.cause) == ("/p/train.py", 9, "")


def test_replicas_without_a_wrapper_that_never_were_alike() -> None:
    """Of a model whose gradients the user's code averages; one that nobody averages may be another on each rank."""
    mine = [[dataclasses.replace(hashes("parameters", rank, "after_step"), wrap="by_hand")] for rank in (0, 1)]
    (found,) = discover([run(*mine)], [])
    assert "began with parameters of their own" in found.cause and found.line == 9
    later = [[dataclasses.replace(event, step=4) for event in events] for events in mine]
    assert not discover([run(*later)], [])[0].cause
    nobody = [[dataclasses.replace(hashes("parameters", rank, "after_step"), wrap="none")] for rank in (0, 1)]
    assert discover([run(*nobody)], []) == []


def test_gradients_that_are_never_averaged_name_the_no_sync() -> None:
    call = Call(name="no_sync", frames=(Frame("/p/train.py", 5, "train"),))
    events = [dataclasses.replace(event, step=1) for event in (call, Phase(phase="backward"))]
    (found,) = discover([run(*([*events, hashes("gradients", rank, "before_step")] for rank in (0, 1)))], [])
    assert found.code == "DDP605" and "no_sync()" in found.cause
    assert (found.path, found.line) == ("/p/train.py", 5)


def test_unused_parameters_are_named() -> None:
    text = "Expected to have finished reduction in the prior iteration before starting a new one."
    events: list[Event] = [
        NoGrad(names=("head.weight", "head.bias")),
        Raised(type="RuntimeError", message=text, frames=STEP),
    ]
    (found,) = discover([run(events, events, outcome="exception", how=["exception"] * 2)], [])
    assert found.message.endswith("; parameters without a gradient: head.weight, head.bias")


def test_every_discovery_has_a_place(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("class Other:\n    pass\nclass Net:\n    def __init__(self):\n        self.head = Linear()\n")

    def line(message: str) -> int:
        evidence = Evidence("ddp", 0, "exception", message, model="Net")
        (found,) = placed([Discovery("exception", message, evidence=(evidence,))], path)
        assert pathlib.Path(found.path).name == "net.py"
        return found.line

    assert line("parameters without a gradient: head.weight, head.bias") == 5
    assert line("something else") == 3

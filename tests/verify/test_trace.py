"""The trace file: what is written is read back, and a file that was cut off anywhere still reads."""

from __future__ import annotations

import pathlib

from ddp_lint.verify.trace import Collective, End, Frame, Lines, Stall, Tensor, Trace, Writer, decode

EVENTS = (
    Collective(
        frames=(Frame("/a.py", 3, "f"),),
        ranks=(0, 1),
        op="broadcast",
        tensors=(Tensor(shape=(2, 3), dtype="float32"),),
        root=0,
    ),
    Lines(
        counts={"/a.py": {3: 2}},
        guards={"/a.py": {4: (1, 0)}},
        values={"/a.py": {4: {"rank": "0"}}},
        orders={"/a.py": {4: 7}},
    ),
    Stall(seconds=5.0, pending=(0,), stacks={"main": (Frame("/a.py", 3, "f"),)}),
    End(seconds=1.0),
)


def test_round_trip(tmp_path: pathlib.Path) -> None:
    writer = Writer(tmp_path / "rank1.jsonl")
    for event in EVENTS:
        writer.write(event)
    trace = Trace.load(tmp_path, 1)
    assert [event.n for event in trace.events] == [0, 1, 2, 3]
    stamps = {"n", "t"}
    for written, back in zip(EVENTS, trace.events, strict=True):
        assert type(back) is type(written)
        assert {k: v for k, v in vars(back).items() if k not in stamps} == {
            k: v for k, v in vars(written).items() if k not in stamps
        }
    collective = trace.last(Collective)
    assert trace.ended and collective is not None and collective.root == 0


def test_a_file_that_was_cut_off(tmp_path: pathlib.Path) -> None:
    writer = Writer(tmp_path / "rank0.jsonl")
    for event in EVENTS:
        writer.write(event)
    whole = (tmp_path / "rank0.jsonl").read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "rank0.jsonl").write_bytes(whole[:length])
        assert len(Trace.load(tmp_path, 0).events) <= len(EVENTS)
    assert decode('{"kind": "from a later version"}') is None
    assert Trace.load(tmp_path, 7).events == ()

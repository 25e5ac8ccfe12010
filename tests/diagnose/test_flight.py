"""Dumps of the Flight Recorder: pickle and JSON, complete and not, and those that want to run code."""

import json
import os
import pickle

import pytest
from click.testing import CliRunner

from ddp_lint.cli import main


def entry(seq, op, line, *, shape=(4,), state="completed", group=("0", "default_pg"), frames=True, dtype="Float"):
    return {
        "frames": [
            {
                "name": op,
                "filename": "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
                "line": 9,
            },
            {"name": "main", "filename": "/job/train.py", "line": line},
        ]
        if frames
        else [],
        "record_id": seq,
        "process_group": group,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{op}",
        "input_sizes": [list(shape)],
        "input_dtypes": [dtype],
        "output_sizes": [list(shape)],
        "output_dtypes": [dtype],
        "state": state,
        "time_created_ns": seq * 10**9,
        "is_p2p": False,
    }


def dump(folder, rank, entries, *, world=2, form="pickle"):
    content = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
        "pg_status": {},
        "entries": entries,
    }
    if form == "json":
        (folder / f"trace_{rank}.json").write_text(json.dumps(content))
    else:
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))


def answer(*paths):
    result = CliRunner().invoke(main, ["diagnose", "--no-source", "--output-format", "json", *map(str, paths)])
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_collective_that_one_rank_skipped(tmp_path, form):
    both = [entry(n, "all_reduce", 10) for n in (1, 2, 3)]
    for rank in range(4):
        more = [entry(4, "all_gather", 20, state="started")] if rank != 2 else []
        dump(tmp_path, rank, both + more, world=4, form=form)
    found = answer(tmp_path)
    assert (found["kind"], found["culprit_rank"], found["line"]) == ("fr-missing-rank", 2, "train.py:20")
    assert found["flight"]["ranks"] == [0, 1, 2, 3]


def test_an_extra_call_of_one_rank_shifts_all_that_follow(tmp_path):
    step = [("all_reduce", 10, (4,)), ("all_reduce", 11, (8,))] * 3
    plain = [entry(n, op, line, shape=shape) for n, (op, line, shape) in enumerate(step)]
    shifted = [*step[:2], ("broadcast", 30, (1,)), *step[2:]]
    dump(tmp_path, 0, [entry(n, op, line, shape=shape) for n, (op, line, shape) in enumerate(shifted)])
    dump(tmp_path, 1, plain)
    found = answer(tmp_path)
    assert (found["kind"], found["line"]) == ("fr-mismatch", "train.py:30")


def test_shapes_that_differ_on_one_rank_of_three(tmp_path):
    for rank in range(3):
        dump(tmp_path, rank, [entry(1, "all_reduce", 10, shape=(4 + (rank == 1),), state="started")], world=3)
    found = answer(tmp_path)
    assert (found["kind"], found["subkind"], found["culprit_rank"]) == ("fr-mismatch", "shape", 1)


def test_the_ring_has_forgotten_other_calls_on_each_rank(tmp_path):
    calls = [entry(n, "all_reduce", 10 + n % 3, shape=(n,)) for n in range(20)]
    dump(tmp_path, 0, calls[5:])
    dump(tmp_path, 1, calls[9:])
    assert answer(tmp_path)["kind"] == "unknown"


def test_a_rank_that_left_no_dump_is_the_one_waited_for(tmp_path):
    for rank in (0, 1, 3):
        dump(tmp_path, rank, [entry(1, "all_reduce", 10, state="started")], world=4)
    found = answer(tmp_path)
    assert (found["kind"], found["culprit_rank"], found["flight"]["without_dump"]) == ("fr-missing-rank", 2, [2])


def test_without_stacks_the_ranks_are_still_told(tmp_path):
    dump(tmp_path, 0, [entry(1, "all_reduce", 0, state="started", frames=False)])
    dump(tmp_path, 1, [entry(1, "broadcast", 0, state="started", frames=False)])
    found = answer(tmp_path)
    assert (found["kind"], found["line"]) == ("fr-mismatch", None)


def test_the_log_wins_where_a_rank_failed_by_itself(tmp_path):
    dump(tmp_path, 0, [entry(1, "all_reduce", 10, state="started")])
    dump(tmp_path, 1, [])
    (tmp_path / "job.log").write_text(
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 5, in main\n'
        "[rank1]: KeyError: 'dog'\n[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [::1]:1\n"
    )
    found = answer(tmp_path)
    assert (found["kind"], found["culprit_rank"], found["line"]) == ("python-exception", 1, "train.py:5")


class Hostile:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


def test_a_hostile_pickle_is_refused(tmp_path):
    mark = tmp_path / "ran"
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [Hostile(mark)]}, protocol=2))
    result = CliRunner().invoke(main, ["diagnose", str(tmp_path / "nccl_trace_rank_0")])
    assert result.exit_code == 2
    assert "rejected" in result.stderr
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02garbage",
        b"\x80\x04.",
        pickle.dumps([1, 2]),
        b'{"entries": [',
        b'{"entries": [{"frames": 3}], "pg_config": {}}',
    ],
)
def test_damaged_dumps_get_a_message(tmp_path, data):
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)
    result = CliRunner().invoke(main, ["diagnose", str(tmp_path)])
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert "nccl_trace_rank_0" in result.stderr


def test_verbose_shows_ranks_by_last_collectives(tmp_path):
    dump(tmp_path, 0, [entry(1, "all_reduce", 10, state="started")])
    dump(tmp_path, 1, [])
    output = CliRunner().invoke(main, ["diagnose", "--no-source", "-v", str(tmp_path)]).stdout
    assert "all_reduce [4] Float@10*" in output

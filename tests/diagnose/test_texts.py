"""What pieces of logs are diagnosed as: forms of several releases and launchers."""

import json

import pytest

from tests.diagnose import diagnosed
from tests.diagnose.samples import MARKS, SAMPLES, SUBKINDS, TRACE, TWO, WORDS


@pytest.mark.parametrize(
    ("name", "kind", "rank", "line", "root", "log"), SAMPLES, ids=[sample[0] for sample in SAMPLES]
)
def test_sample(name, kind, rank, line, root, log):
    found = diagnosed(log.split("\n"))
    assert (found["kind"], found["culprit_rank"], found["line"]) == (kind, rank, line)
    assert root is None or any(root in quoted for quoted in found["root"])


@pytest.mark.parametrize(("raised", "cause", "fix"), WORDS)
def test_words(raised, cause, fix):
    found = diagnosed((TRACE.format(line=7, code="run()") + raised).split("\n"))
    assert cause in found["cause"] and fix in found["fix"]


def test_what_a_copy_cannot_pickle_is_an_fsdp_model():
    copies = '  File "/usr/lib/python3.11/copy.py", line 161, in deepcopy\n    rv = reductor(4)\n'
    log = TRACE.format(line=7, code="ema = copy.deepcopy(model)") + copies + "TypeError: cannot pickle 'module' object"
    assert diagnosed(log.split("\n"))["codes"] == ["DDP609"]


def test_what_is_no_pickle_is_a_file_where_one_is_read():
    reads = '  File "/opt/lib/python3.11/site-packages/torch/serialization.py", line 1470, in load\n    raise\n'
    error = "_pickle.UnpicklingError: invalid load key, 'v'."
    found = diagnosed((TRACE.format(line=7, code="torch.load(path)") + reads + error).split("\n"))
    assert (found["kind"], found["signature"]) == ("python-exception", "file-damaged")
    assert diagnosed((TRACE.format(line=7, code="gather()") + error).split("\n"))["kind"] == "collective-mismatch"


def test_an_exception_without_a_line_of_the_user_blames_none():
    found = diagnosed(["RuntimeError: the loader gave up"])
    assert (
        found["line"] is None and "does not show which line" in found["cause"] and "Fix that line" not in found["fix"]
    )


def test_a_rank_that_timed_out_by_itself_waited():
    log = next(log for name, *_, log in SAMPLES if name.startswith("a rank dumps because"))
    found = diagnosed(log.split("\n"))
    assert found["ranks"] == "ranks 1, 2 wait in a collective (work 22)"
    assert "told this one" not in found["cause"] and "peers never called" in found["cause"]


def test_a_log_that_ends_before_the_exception_does_not_blame_the_line():
    found = diagnosed(TRACE.format(line=7, code="dist.barrier()").split("\n"))
    assert (found["kind"], found["line"], found["confidence"]) == ("python-exception", "train.py:7", "low")
    assert "ends before the exception" in found["cause"]
    assert found["fix"].startswith("Get the lines that follow")


@pytest.mark.parametrize(("mark", "shows_rank"), MARKS, ids=[mark for mark, _ in MARKS])
def test_lines_that_a_collector_has_marked(mark, shows_rank):
    lines = [mark.format(rank=rank, text=text, quoted=json.dumps(text)) for rank, text in TWO]
    if not shows_rank and "{rank}" not in mark:  # nothing distinguishes the two processes
        lines = [mark.format(text=text) for of in (0, 1) for rank, text in TWO if rank == of]
    found = diagnosed(lines)
    assert (found["kind"], found["line"]) == ("python-exception", "train.py:88")
    assert found["culprit_rank"] == (1 if shows_rank else None)
    assert set(found["root"]) <= set(lines)


def test_a_rank_that_the_log_does_not_show_is_not_called_that_rank():
    log = next(log for name, *_, log in SAMPLES if name.startswith("every rank that the log shows"))
    found = diagnosed(log.split("\n"))
    assert (found["subkind"], found["culprit_rank"]) == ("missing-rank", None)
    assert found["cause"].startswith("A rank of the group")
    assert found["ranks"].endswith("rank 3 waits in ALLREDUCE (work 1580)")


@pytest.mark.parametrize(("name", "kind", "subkind", "verdict", "log"), SUBKINDS, ids=[entry[0] for entry in SUBKINDS])
def test_subkind(name, kind, subkind, verdict, log):
    found = diagnosed(log.split("\n"))
    assert (found["kind"], found["subkind"], found["verdict"]) == (kind, subkind, verdict)


def test_a_false_alarm_is_called_so():
    log = next(log for name, *_, log in SUBKINDS if name.startswith("a timeout of milliseconds"))
    found = diagnosed(log.split("\n"))
    assert "shorter than a second" in found["cause"] and found["next"].startswith("run again with a longer timeout")


def test_several_ranks_that_did_not_come():
    log = next(log for name, *_, log in SUBKINDS if name.startswith("several ranks"))
    found = diagnosed(log.split("\n"))
    assert found["ranks"] == "ranks 2, 3 did not come" and found["cause"].startswith("These ranks never came")


def test_a_record_of_a_logger_is_no_part_of_a_message():
    log = "RuntimeError: the shard is gone\n[trainer] 2025-03-01 10:00:00,000 - trainer - ERROR - process 1 has failed"
    assert diagnosed(log.split("\n"))["root"] == ["RuntimeError: the shard is gone"]
    assert len(diagnosed(log.replace("[trainer] 2025", "of 2025").split("\n"))["root"]) == 2

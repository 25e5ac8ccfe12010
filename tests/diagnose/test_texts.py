"""What pieces of logs are diagnosed as: forms of several releases and launchers."""

import json

import pytest

from tests.diagnose import diagnosed
from tests.diagnose.samples import MARKS, SAMPLES, TWO


@pytest.mark.parametrize(
    ("name", "kind", "rank", "line", "root", "log"), SAMPLES, ids=[sample[0] for sample in SAMPLES]
)
def test_sample(name, kind, rank, line, root, log):
    found = diagnosed(log.split("\n"))
    assert (found["kind"], found["culprit_rank"], found["line"]) == (kind, rank, line)
    assert root is None or any(root in quoted for quoted in found["root"])


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

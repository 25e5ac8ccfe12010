"""What pieces of logs are diagnosed as: forms of several releases and launchers."""

import pytest

from ddp_lint.diagnose.report import as_dict
from ddp_lint.diagnose.session import diagnose_lines
from tests.diagnose.samples import SAMPLES


@pytest.mark.parametrize(
    ("name", "kind", "rank", "line", "root", "log"), SAMPLES, ids=[sample[0] for sample in SAMPLES]
)
def test_sample(name, kind, rank, line, root, log):
    found = as_dict(diagnose_lines(log.split("\n")))
    assert (found["kind"], found["culprit_rank"], found["line"]) == (kind, rank, line)
    assert root is None or any(root in quoted for quoted in found["root"])


def test_a_rank_that_the_log_does_not_show_is_not_called_that_rank():
    log = next(log for name, *_, log in SAMPLES if name.startswith("every rank that the log shows"))
    found = as_dict(diagnose_lines(log.split("\n")))
    assert (found["subkind"], found["culprit_rank"]) == ("missing-rank", None)
    assert found["cause"].startswith("A rank of the group")
    assert found["ranks"].endswith("rank 3 waits in ALLREDUCE (work 1580)")

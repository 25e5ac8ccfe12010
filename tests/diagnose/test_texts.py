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

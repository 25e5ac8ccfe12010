"""Faults that we put into small programs, diagnosed from what torchrun and its ranks really print."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

from tests.diagnose import diagnosed

pytestmark = pytest.mark.launch

HERE = pathlib.Path(__file__).parent
SCRIPT = HERE / "faults.py"
#: fault -> (kind, rank to blame). The line is that of the comment `# here: fault`.
FAULTS = {
    "exception": ("python-exception", 1),
    "exception_everywhere": ("python-exception", None),
    "exit_zero": ("early-exit-zero", 1),
    "returns_early": ("early-exit-zero", 1),
    "sigkill": ("exit-sigkill", 1),
    "sigsegv": ("exit-sigsegv", 1),
    "sigabrt": ("exit-sigabrt", 1),
    "slow_rank": ("gloo-timeout", 0),
    "three_minority": ("gloo-timeout", 2),
    "detail_mismatch": ("collective-mismatch", 0),
    "detail_missing": ("monitored-barrier", 1),
    "sizes": ("gloo-size-mismatch", None),
    "monitored": ("monitored-barrier", 1),
    "unused": ("ddp-unused-params", None),
    "static_graph": ("ddp-static-graph", None),
    "inplace": ("inplace-version", None),
    "models_differ": ("ddp-param-mismatch", None),
    "weights_only": ("weights-only", None),
    "prefix": ("ckpt-prefix", None),
    "open_files": ("fd-limit", 1),
    "worker_exception": ("python-exception", None),
    "no_memory": ("host-oom", 1),
    "nan_loss": ("nan-loss", 1),
    "uneven": ("gloo-timeout", 1),
}
SUBKINDS = {"slow_rank": "slow-rank", "uneven": "uneven-inputs", "detail_mismatch": "rank-conditional"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="0")
    launcher = [sys.executable, str(HERE / "launch_faults.py"), str(folder), str(SCRIPT), *FAULTS]
    subprocess.run(launcher, env=environment, timeout=570, check=True)
    return folder


def line_of(fault):
    for number, line in enumerate(SCRIPT.read_text(encoding="utf-8").splitlines(), 1):
        if re.search(rf"# here: {fault}$", line):
            return f"faults.py:{number}"
    return None


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(logs, fault):
    text = (logs / f"{fault}.log").read_text(encoding="utf-8")
    found = diagnosed(text.split("\n"))
    told = (found["kind"], found["culprit_rank"])
    assert told == FAULTS[fault], text[-3000:]
    assert found["subkind"] == SUBKINDS.get(fault, found["subkind"])
    if line_of(fault):
        assert found["line"] == line_of(fault)
    assert found["root"]
    assert not any("closing signal" in quoted or "(SIGTERM)" in quoted for quoted in found["root"])


def launched(*command, **environment):
    done = subprocess.run(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    return diagnosed(done.stdout.split("\n"))


def test_started_without_torchrun():
    found = launched(str(SCRIPT), "exception")
    assert found["kind"] == "env-missing"
    assert found["line"].startswith("faults.py:")


def test_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = launched(str(SCRIPT), "exception", RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    assert found["kind"] == "port-in-use"


def test_a_node_that_never_joins():
    found = launched(
        "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0", "--rdzv-conf=join_timeout=2,last_call_timeout=1", str(SCRIPT), "exception",
    )  # fmt: skip
    assert found["kind"] == "rendezvous-timeout"

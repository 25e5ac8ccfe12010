"""Every rule is proven by running: its Example is confirmed, its Use instead is refuted.

All programs run first, as many at once as there are processors for two ranks each; then each test looks at its own.
"""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import json
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ddp_lint.rules.registry import all_rules

from .prove import EXAMPLE, USE_INSTEAD

RULES = all_rules()
ROOT = pathlib.Path(__file__).parents[2]
#: A proof that takes longer than this hangs.
LIMIT = 240
#: Rules that no run proves, off by default: what `verify` says of their Example and their Use instead, and why.
UNPROVEN = {
    "DDP809": ("inconclusive", "inconclusive", "which of two names the allocator went by cannot be asked"),
}
_INSTALLED = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
ON_CPU = [
    code for code, rule in RULES.items() if not rule.needs_cuda and (rule.gone_in is None or rule.gone_in > _INSTALLED)
]
ON_CUDA = list(RULES)

pytestmark = pytest.mark.launch

_HOMES = ("HOME", "USERPROFILE", "TMPDIR")


class Prover:
    """A process that proves one rule after the other, and is replaced when it hangs or dies."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._process: subprocess.Popen[str] | None = None
        #: The home of the process: pages write into the user's cache.
        self._home = tempfile.TemporaryDirectory(prefix="proof-")

    def proof(self, code: str, section: str) -> dict[str, Any]:
        self._process = self._process or self._started()
        assert self._process.stdin is not None and self._process.stdout is not None
        watch = threading.Timer(LIMIT, self._process.kill)
        watch.start()
        try:
            print(code, section, file=self._process.stdin, flush=True)
            return dict(json.loads(self._process.stdout.readline()))
        except (ValueError, OSError) as error:
            self.close()
            return {"error": f"the prover ended: {error}"}
        finally:
            watch.cancel()

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.verify.prove", self._device]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **dict.fromkeys(_HOMES, self._home.name)}
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


class Proofs:
    """All of a device's proofs, started in order and waited for one by one."""

    def __init__(self, codes: list[str], device: str, at_once: int) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(at_once)
        self._provers: queue.SimpleQueue[Prover] = queue.SimpleQueue()
        for _ in range(at_once):
            self._provers.put(Prover(device))
        self._futures = {
            (code, section): self._pool.submit(self._prove, code, section)
            for code in codes
            for section in (EXAMPLE, USE_INSTEAD)
        }

    def _prove(self, code: str, section: str) -> dict[str, Any]:
        prover = self._provers.get()
        try:
            return prover.proof(code, section)
        finally:
            self._provers.put(prover)

    def of(self, code: str, section: str) -> dict[str, Any]:
        return self._futures[code, section].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        while not self._provers.empty():
            self._provers.get().close()


@pytest.fixture(scope="session")
def cpu_proofs(request: pytest.FixtureRequest) -> Iterator[Proofs]:
    proofs = Proofs(_chosen(request, ON_CPU), "cpu", max(2, (os.cpu_count() or 2) // 2))
    yield proofs
    proofs.close()


@pytest.fixture(scope="session")
def cuda_proofs(request: pytest.FixtureRequest) -> Iterator[Proofs]:
    import torch

    if not torch.cuda.device_count():
        pytest.skip("needs a CUDA device: run `make gpu-test` on a machine that has one")
    proofs = Proofs(_chosen(request, ON_CUDA), "cuda", min(12, max(1, (os.cpu_count() or 2) // 3)))
    yield proofs
    proofs.close()


def _chosen(request: pytest.FixtureRequest, codes: list[str]) -> list[str]:
    """The rules of the tests that will run: -k must not start all the others."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    wanted = {item.callspec.params.get("code") for item in items}
    return [code for code in codes if code in wanted]


@pytest.mark.parametrize("code", ON_CPU)
def test_rule_is_proven_on_two_gloo_ranks(code: str, cpu_proofs: Proofs) -> None:
    prove(cpu_proofs, code)


@pytest.mark.gpu
@pytest.mark.parametrize("code", ON_CUDA)
def test_rule_is_proven_on_two_nccl_ranks(code: str, cuda_proofs: Proofs) -> None:
    import torch

    if "device" in RULES[code].oracles and torch.cuda.device_count() < 2:
        pytest.skip("where tensors lie shows with a GPU for each rank only")
    prove(cuda_proofs, code)


def prove(proofs: Proofs, code: str) -> None:
    hazard, remedy = proofs.of(code, EXAMPLE), proofs.of(code, USE_INSTEAD)
    flagged, unflagged, _ = UNPROVEN.get(code, ("confirmed", "refuted", ""))
    assert hazard.get("verdicts") and set(hazard["verdicts"]) == {flagged}, told(hazard)
    assert remedy.get("verdicts") == [unflagged], told(remedy)
    assert not remedy["discovered"], told(remedy)


def test_what_no_run_proves_is_off_by_default() -> None:
    assert not [code for code in UNPROVEN if RULES[code].default]


def told(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=1)

"""The exit status of training that a shell script hands to `tee` (DDP503)."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence

RUN = "torchrun --nproc_per_node 4 train.py 2>&1 | tee train.log"


def found(folder: pathlib.Path, text: str, name: str = "run.sh") -> list[tuple[int, str, Confidence]]:
    (folder / name).write_text(text)
    report = check_paths([folder / name], Settings(folder, frozenset({"DDP503"})))
    assert not report.errors
    lines = text.splitlines()
    return [
        (f.span.line, lines[f.span.line - 1][f.span.column - 1 : f.span.end_column - 1], f.confidence)
        for f in report.findings
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"set -e\n{RUN}\ntouch done\n",
        f"set -eu\nif [ $stage -le 0 ]; then\n  {RUN}\nfi\n",
        f"#!/bin/bash -e\n{RUN}\n",
        f"set -o errexit\n{RUN}\n",
        f"{RUN} && touch done\n",
        f"{RUN} || exit 1\n",
        f"{RUN}\nif [ $? -ne 0 ]; then exit 1; fi\n",
        f"{RUN}; status=$?\n",
        f"set -e\nsource venv/bin/activate\nOMP_NUM_THREADS=1 {RUN}\n",
        "set -e\nsrun python train.py --lr 1 2>&1 | tee -a train.log\n",
        "set -e\naccelerate launch train.py |& tee log\n",
        "set -e\nmpirun -n 4 python train.py | ts | tee log\n",
        "set -e\npython -m torch.distributed.run --nproc-per-node 2 \\\n  train.py \\\n  | tee log\ncp a b\n",
    ],
)
def test_status_of_tee(tmp_path: pathlib.Path, text: str) -> None:
    assert [confidence for _, _, confidence in found(tmp_path, text)] == [Confidence.MEDIUM]


def test_a_test_of_the_pipe(tmp_path: pathlib.Path) -> None:
    assert len(found(tmp_path, f"if {RUN}; then touch done; fi\n")) == 1


def test_place(tmp_path: pathlib.Path) -> None:
    text = "set -e\ncd exp\n  torchrun --standalone \\\n    train.py 2>&1 | tee log\n"
    assert found(tmp_path, text) == [(3, "torchrun --standalone", Confidence.MEDIUM)]


def test_a_script_that_reads_another_one(tmp_path: pathlib.Path) -> None:
    assert [c for *_, c in found(tmp_path, f"set -e\n. ./path.sh\n{RUN}\n")] == [Confidence.LOW]


@pytest.mark.parametrize(
    "text",
    [
        f"set -euo pipefail\n{RUN}\ntouch done\n",
        f"set -e\nset -o pipefail\n{RUN}\n",
        f"{RUN}\nexit ${{PIPESTATUS[0]}}\n",
        f"{RUN}\ntouch done\n",
        f"set -e\nset +e\n{RUN}\nset -e\n",
        f"{RUN}\nset -e\ncp net.pt best.pt\n",
        f"set -e\n{RUN} &\nwait\n",
        f"set -e\n{RUN} || true\n",
        f"set -e\n# {RUN}\n",
        f'set -e\necho "{RUN}"\n',
        f'set -e\nCMD="{RUN}"\n',
        f"set -e\ncat > job.sh <<EOF\n{RUN}\nEOF\nsbatch job.sh\n",
        f"sbatch <<'EOF'\n{RUN}\nEOF\nset -e\n",
        "set -e\ntorchrun train.py > train.log 2>&1\n",
        "set -e\ntorchrun train.py | grep -q accuracy\n",
        "set -e\npython evaluate.py | tee log\n",
        "set -e\necho start | tee train.log\ntorchrun train.py\n",
        f"{RUN}\necho done\n[ $? -eq 0 ] && touch done\n",
    ],
)
def test_near_misses(tmp_path: pathlib.Path, text: str) -> None:
    assert found(tmp_path, text) == []

"""What is known of a program before it runs: whether torch may be there already, and who starts its ranks."""

from __future__ import annotations

import pathlib
import random
import sys

import pytest
import torch

from ddp_lint.verify.child import zygote
from ddp_lint.verify.options import Options
from ddp_lint.verify.preload import compiles, may_fork, uses_streams
from ddp_lint.verify.self_launching import starts_own_ranks
from ddp_lint.verify.target import resolve

TRAIN = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked on Linux only")
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\nrank = int(os.environ['RANK'])\nport = os.environ.get('MASTER_PORT')\n", True),
        ("import os\nhere = 'RANK' in os.environ\n", True),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '2'\n", False),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\n", True),  # as torchrun does
        ("import os\nos.environ.setdefault('OMP_NUM_THREADS', '8')\n", True),
        ("import os, torch\ndef main():\n    os.environ['OMP_NUM_THREADS'] = '2'\n", True),
        ("import os\nif fast:\n    import torch\nos.environ['OMP_NUM_THREADS'] = '2'\n", False),
        ("import os\nos.environ['PYTHONHASHSEED'] = str(seed)\n", True),  # for processes that it starts
        ("names = sorted(set(ours) | set(theirs))\n", True),
        ("names = list(set(ours) | set(theirs))\n", False),
        ("import os\nos.environ['TORCH_DISTRIBUTED_DEBUG'] = 'INFO'\nimport torch\n", False),
        ("import os, torch\nos.environ['TORCHINDUCTOR_COMPILE_THREADS'] = '1'\n", False),
        ("from os import environ\nenviron.setdefault('NCCL_DEBUG', 'INFO')\n", True),
        ("import os\nos.environ.update(NCCL_HOSTID=host, GLOO_SOCKET_IFNAME='lo')\n", True),
        ("import os\nos.environ.update({'NCCL_DEBUG': 'INFO', 'MKL_CBWR': 'COMPATIBLE'})\n", False),
        ("import os\nos.environ.update(settings)\n", False),
        ("import os\nos.environ |= {'MASTER_ADDR': 'localhost', 'CUDA_LAUNCH_BLOCKING': '1'}\n", True),
        ("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\nos.environ['TORCH_NCCL_NAN_CHECK'] = '1'\n", True),
        ("import os\nrun(command, env=os.environ)\nprint(dict(os.environ), {**os.environ, 'A': 'b'})\n", True),
        ("import os\ndel os.environ['OMP_NUM_THREADS']\n", False),
        ("import os\nos.environ['MASTER_PORT'] = '29501'\nos.environ.setdefault('WANDB_MODE', 'offline')\n", True),
        ("import os\nos.environ[name] = '1'\n", False),
        ("import os\nconfigure(os.environ)\n", False),
        ("import os\nos.putenv('A', 'b')\n", False),
        ("from helper import setup\nsetup()\n", False),
        ("import lib.tools\n", False),
        ("for name in set(metrics):\n    reduce(name)\n", False),
        ("names = {'loss', 'accuracy'}\n", False),
        ("seen = set()\nseen.add(name)\nfor one in seen:\n    reduce(one)\n", False),
        ("decay, rest = set(), set()\nfill(decay, rest)\ngroup = [params[name] for name in decay]\n", False),
        ("seen = set()\nseen.add(name)\nnames = list(seen)\n", False),
        ("decay, rest = set(), set()\nassert not decay & rest\n", True),
        ("seed = hash(name) % 100\n", False),
        ("seen = set()\nif name not in seen:\n    seen.add(name)\n", True),
        ("if name in {'loss', 'accuracy'}:\n    pass\nfor one in sorted(set(names)):\n    pass\n", True),
    ],
)
def test_a_script_that_writes_to_the_environment_or_walks_a_set_has_a_python_of_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, source: str, expected: bool
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "helper.py").write_text("import os\ndef setup():\n    os.environ.update(MKL_A='b')\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "tools.py").write_text("from .more import x\n")
    (tmp_path / "lib" / "more.py").write_text("import os\nos.environ['MKL_A'] = x = 'b'\n")
    path = tmp_path / "train.py"
    path.write_text(source + TRAIN)
    assert may_fork(resolve(str(path), Options())) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(main, nprocs=2)\n", True),
        ("from torch.multiprocessing import spawn\nspawn(main, nprocs=2)\n", True),
        ("import torch\ntorch.multiprocessing.start_processes(main, nprocs=2)\n", True),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'torch.distributed.run', 'x.py'])\n", True),
        ("import os\nos.system('torchrun --nproc-per-node 2 train.py')\n", True),
        ("from multiprocessing import Process\nProcess(target=f, args=(0,)).start()\n"
         "def f(r):\n    dist.init_process_group('gloo', rank=r, world_size=2)\n", True),
        ("from multiprocessing import get_context\nget_context('spawn').Process(target=f, args=(0,)).start()\n"
         "def f(r):\n    os.environ.update(RANK=str(r))\n    dist.init_process_group('gloo')\n", True),
        ("import multiprocessing\nmultiprocessing.Process(target=f, args=(0,)).start()\n"
         "def f(r):\n    os.environ['RANK'] = str(r)\n    dist.init_process_group('gloo')\n", True),
        ('"""Run with torchrun."""\nimport subprocess\nsubprocess.run(["git", "status"])\n', False),
        ("from helper import launch\nlaunch(main, 2)\n", True),
        ("import game\ngame.spawn(monster)\n", False),
        ("from multiprocessing import Process\nProcess(target=log).start()\ndist.init_process_group('gloo')\n", False),
        (TRAIN, False),
    ],
)  # fmt: skip
def test_who_starts_the_ranks(tmp_path: pathlib.Path, source: str, expected: bool) -> None:
    (tmp_path / "helper.py").write_text("import torch.multiprocessing as mp\ndef launch(f, n): mp.spawn(f, nprocs=n)\n")
    path = tmp_path / "train.py"
    path.write_text(source)
    assert starts_own_ranks(resolve(str(path), Options(arguments=("--a-script",)))) is expected


@pytest.mark.parametrize(("source", "expected"), [("side = torch.cuda.Stream()\n", True), ("stream = 1\n", False)])
def test_streams_are_followed_where_the_source_speaks_of_them(
    tmp_path: pathlib.Path, source: str, expected: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\n" + source + TRAIN)
    assert uses_streams(resolve(str(path), Options())) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [("self.f = torch.compile(f)", True), ("self.f = re.compile(f)", False), ("self.f = f", False)],
)
def test_models_that_are_compiled(tmp_path: pathlib.Path, source: str, expected: bool) -> None:
    """Of a script it is not known whether it compiles."""
    path = tmp_path / "net.py"
    model = (
        f"class Net(torch.nn.Module):\n    def __init__(self, f):\n        {source}\n    def forward(self, x): ...\n"
    )
    path.write_text(f"import re\nimport torch\n{model}")
    assert compiles(resolve(str(path), Options())) is expected
    path.write_text(f"{path.read_text()}\n\nif __name__ == '__main__':\n    torch.distributed.init_process_group()\n")
    assert not compiles(resolve(str(path), Options()))


def test_numbers_that_nobody_seeds_differ_between_forked_ranks() -> None:
    def drawn(rank: int) -> tuple[float, float]:
        zygote.draw_apart(rank)
        return random.random(), float(torch.rand(1))

    assert all(one != other for one, other in zip(drawn(0), drawn(1), strict=True))
    assert drawn(1) == drawn(1), "a run can be repeated"

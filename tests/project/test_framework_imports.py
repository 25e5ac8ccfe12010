"""Which files can use a framework of several ranks."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.config import Configuration, Overrides
from ddp_lint.engine.checking import Checker
from ddp_lint.engine.runner import check_text
from ddp_lint.knowledge.project_names import Names
from ddp_lint.project import Project
from ddp_lint.source import SourceFile

HANGS = "def f(comm, rank):\n    if rank == 0:\n        comm.wait_for_everyone()\n"
#: What libraries do that wrap no model themselves: they take the model out of its wrapper.
UNWRAPS = """import torch
from torch.nn.parallel import DistributedDataParallel as DDP
def f(m):
    if isinstance(m, DDP):
        return m.module
    return m
"""
IN_PLACE = """class A:
    def f(self):
        import torch
        from torch.nn.parallel import (
            DataParallel, DistributedDataParallel,
        )
        kinds = None
        model = self.m.module if isinstance(self.m, (DataParallel, DistributedDataParallel)) and kinds else self.m
        return model(self.m)
"""


@pytest.mark.parametrize(
    ("files", "uses"),
    [
        ({"a.py": "from jax import lax\ndef f(x):\n    return lax.all_gather(x, 'i')\n"}, False),
        ({"a.py": "import torch\n"}, False),  # a library of arrays
        ({"a.py": "import torch\n", "b.py": "import torch.distributed\n"}, True),
        ({"a.py": "import torch\n", "b.py": "import torch\nn = torch.nn.SyncBatchNorm(3)\n"}, True),
        ({"a.py": "import torch\n", "b.py": "import lightning\n"}, True),
        ({"a.py": "import torch\n", "b.py": "import torch\ntorch.distributed.barrier()\n"}, True),
        ({"a.py": "# distributed under the License\nimport torch\n  # barrier, distributed\n"}, False),
        ({"a.py": "import torch\nbarrier = 1  # a name\n"}, False),
        (
            {"a.py": '"""For DDP, or torch.barrier()."""\nimport torch\ndef f(distributed): "FSDP: x.barrier()"\n'},
            False,
        ),
        ({"a.py": "import torch\ndef test_distributed_data(): pass\n"}, False),
        ({"a.py": "import torch\nd = __import__('torch.distributed')\n"}, True),
        ({"a.py": UNWRAPS}, False),
        ({"a.py": UNWRAPS + "def g(m):\n    return DDP(m)\n"}, True),
        ({"a.py": UNWRAPS.replace("return m.module", "m.require_backward_grad_sync = False; return m.module")}, True),
        ({"a.py": UNWRAPS.replace("isinstance", "not isinstance")}, True),
        ({"a.py": UNWRAPS.replace("return m.module", "return m(m.module)")}, True),
        ({"a.py": IN_PLACE}, False),
        ({"a.py": IN_PLACE.replace("module if", "module.f(self.m) if")}, True),
        (
            {"a.py": "import torch\ndef f(m):\n    return isinstance(m, torch.nn.DistributedDataParallel)\n"},
            True,
        ),
        ({"a.py": "import torch\nfrom utils import sync as s\ns.barrier()\n"}, True),
        ({"a.py": "import jax\ndef f(gpu):\n    import torch\n    gpu.barrier()\n"}, False),  # of warps
        ({"a.py": "import jax\nimport torch.distributed as d\n"}, True),
        ({"a.py": "import jax\ndef f(strategy, x):\n    return strategy.reduce(x)\n"}, False),
        ({"a.py": "from jax import distributed\n"}, False),
        ({"a.py": "import torch\ndef save(engine):\n    engine.save_checkpoint('x')\n"}, True),
        ({"a.py": "import jax, torch\ndef f(strategy, x):\n    return strategy.reduce(x)\n"}, False),
        ({"a.py": "def f(strategy, x):\n    return strategy.reduce(x)\n"}, True),
        ({"a.py": "def f():\n    import accelerate as a\n"}, True),
        ({"a.py": "import b\n", "b.py": "from c import f\n", "c.py": "import os, torch.distributed as dist\n"}, True),
        ({"a.py": "import b\n", "b.py": "import a\n"}, False),
        ({"p/__init__.py": "import torch.distributed\n", "p/q.py": "", "a.py": "import p.q\n"}, True),
        ({"p/__init__.py": "", "p/q.py": "import accelerate\n", "p/r.py": "", "a.py": "from p import r\n"}, False),
        (
            {"p/__init__.py": "", "p/q.py": "import accelerate\n", "p/a.py": "from .q import (\n    f,  # used\n)\n"},
            True,
        ),
        ({"p/__init__.py": "", "p/q.py": "import torch.distributed\n", "p/a.py": "from . import q\n"}, True),
        ({"a.py": "from company.distributed import barrier\n"}, True),
        ({"a.py": "from distutils.dist import Distribution\n"}, False),
        ({"a.py": "from distributed import Client, wait\n"}, False),  # Dask's
        ({"a.py": "def save(accelerator):\n    accelerator.gather(1)\n"}, True),
        ({"a.py": "def save(engine):\n    engine.save_checkpoint('x')\n"}, True),
        ({"a.py": "def save(engine):\n    with engine.begin() as c:\n        engine.dispose()\n"}, False),
        ({"a.py": "def save(accelerator):\n    return accelerator\n"}, False),
        ({"a.py": HANGS}, True),
        ({"a.py": "@rank_zero_only\ndef f(): ...\n"}, True),
        ({"a.py": "def f(mesh, scheduler):\n    mesh.barrier()\n    scheduler.step()\n"}, False),
    ],
)
def test_a_file_uses_what_it_and_its_imports_import(files: dict[str, str], uses: bool, tmp_path: pathlib.Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    project = Project(tmp_path)
    last = next(reversed(files)) if "p/__init__.py" in files else "a.py"
    assert project.communication.uses_frameworks(last) is uses


def test_names_of_the_projects_own_may_communicate_anywhere(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.py").write_text("def f(x):\n    mine(x)\n")
    assert Project(tmp_path, names=Names(collectives=("a.mine",))).communication.uses_frameworks("a.py")


def test_where_files_change_an_import_elsewhere_counts_at_once(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    user = "from helper import get_rank, sync\nif get_rank() == 0:\n    sync()\n"
    silent = "def get_rank(): ...\ndef sync(): ...\n"
    speaks = "from torch.distributed import get_rank, barrier as sync\n"
    settings = Configuration(Overrides(select=("DDP101",))).of(tmp_path)
    checker = Checker(settings, changing=True)
    path, helper = tmp_path / "a.py", tmp_path / "helper.py"
    path.write_text(user)
    helper.write_text(silent)
    counts = []
    for text in (silent, speaks, silent):
        checker.change(helper, SourceFile.of_text("helper.py", text, "helper.py"))
        file = SourceFile.of_text("a.py", user, "a.py")
        counts.append(len(checker.check_file(file, path).findings))
    assert counts == [0, 1, 0]


def test_a_file_that_is_not_saved_yet_has_ranks_of_its_own(tmp_path: pathlib.Path) -> None:
    """The text of an editor, or of standard input, for a path at which there is no file."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "other.py").write_text("import os\n")
    settings = Configuration(Overrides(isolated=True)).of(tmp_path)
    source = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
    assert [finding.code for finding in check_text(source, tmp_path / "new.py", settings).findings] == ["DDP101"]

"""Scripts that say cuda on a machine without it: each mapping, in one process of its own."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from . import forked

#: What a script may say, run as the user's code after the shim is in place.
SCRIPT = """
import torch, torch.distributed as dist
from torch import nn

cuda = torch.device("cuda", 1)
assert torch.cuda.is_available() and torch.cuda.device_count() == 2
torch.cuda.set_device(cuda)
assert torch.cuda.current_device() == 1
assert torch.cuda.get_device_capability() >= (8, 0) and torch.cuda.get_device_properties(0).total_memory
assert torch.accelerator.current_accelerator().type == "cuda"
for made in (
    torch.zeros(2, device="cuda"), torch.randn(2, device=cuda), torch.tensor([1.0], device="cuda:0"),
    torch.ones(1).to("cuda"), torch.ones(1).to(0), torch.ones(1).to(cuda, torch.float16), torch.ones(1).cuda(),
    torch.ones(1).cuda(1, non_blocking=True), torch.empty(2, 2, device=cuda, pin_memory=False),
    torch.ones(2).pin_memory().to(device="cuda", non_blocking=True), torch.ones(1).new_zeros(3, device=cuda),
    torch.zeros_like(torch.ones(1), device="cuda"), torch.cuda.FloatTensor(2), nn.Linear(2, 2, device="cuda").weight,
    nn.Linear(2, 2).cuda().weight, nn.Linear(2, 2).to("cuda:1").weight, nn.Linear(2, 2).to(1).weight,
    torch.randperm(4, generator=torch.Generator(device="cuda"), device="cuda"),
):
    assert made.device.type == "cpu", made
assert torch.ones(1).to(torch.float64).dtype == torch.float64
with torch.device("cuda"):
    assert torch.zeros(1).device.type == "cpu"
with torch.autocast("cuda", dtype=torch.bfloat16), torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
    assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.bfloat16
with torch.cuda.amp.autocast(enabled=False):
    pass
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record(); end.record(); torch.cuda.synchronize(); start.elapsed_time(end)
torch.cuda.current_stream().wait_stream(torch.cuda.Stream())
with torch.random.fork_rng(devices=[cuda], device_type="cuda"):  # as torch.distributed.pipelining does
    torch.rand(1)
torch.cuda.manual_seed_all(1); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 0
torch.save({"w": torch.ones(2)}, "w.pt")
assert torch.load("w.pt", map_location={"cuda:0": "cuda:1"})["w"].sum() == 2
assert torch.load("w.pt", map_location="cuda:0")["w"].device.type == "cpu"
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=cuda)
assert dist.get_backend() == "gloo"
dist.barrier(device_ids=[1])
group = dist.new_group([0], backend="nccl")
assert dist.get_backend(group) == "gloo"
model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2).to(cuda), device_ids=[1], output_device=1)
scaler = torch.amp.GradScaler("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler.scale(model(torch.ones(1, 2, device="cuda")).sum()).backward()
scaler.step(optimizer); scaler.update()
assert torch.compile(nn.Linear(2, 2).to("cuda"), backend="eager")(torch.ones(1, 2, device="cuda")).requires_grad
from torch.distributed.device_mesh import init_device_mesh
assert init_device_mesh("cuda", (1,)).device_type == "cpu"
def compiled(x: torch.Tensor):
    return x + torch.zeros(2) + torch.zeros_like(x)
assert torch.jit.script(compiled)(torch.ones(2)).sum() == 2
norms = nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3))
synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(norms[1])
assert nn.parallel.DistributedDataParallel(synchronised)
batches = [torch.arange(24.0).view(2, 3, 2, 2).square().requires_grad_() for _ in norms]
for norm, batch in zip((norms[0], synchronised), batches):
    (norm(batch) * torch.arange(24.0).view(2, 3, 2, 2)).sum().backward()
torch.testing.assert_close(batches[0].grad, batches[1].grad, atol=1e-3, rtol=1e-3)
for mine, theirs in zip(synchronised.state_dict().values(), norms[0].state_dict().values()):
    torch.testing.assert_close(mine, theirs)
"""


def _run(folder: pathlib.Path, device: str, script: str) -> str:
    """Run a script below the shim; what it mapped, in order."""
    (folder / "script.py").write_text(script)
    code = (
        "import runpy, torch.jit._builtins\n"
        "torch.jit._builtins._get_builtin_table()\n"  # as after an import that compiles something
        "from ddp_lint.verify.child.shim import Shim\n"
        f"Shim(lambda said, meant: print(said, meant), 2).install({device!r})\n"
        "runpy.run_path('script.py')"
    )
    return forked.run(code, folder)


def test_everything_that_says_cuda(tmp_path: pathlib.Path) -> None:
    assert _run(tmp_path, "cpu", SCRIPT).splitlines() == [
        "torch.cuda cpu",
        "cuda:1 cpu",
        "cuda cpu",
        "cuda:0 cpu",
        "nccl gloo",
        "SyncBatchNorm the same sums by all_reduce",
    ]


def test_libraries_hear_the_truth(tmp_path: pathlib.Path) -> None:
    """A library that is told of a GPU would look for its driver."""
    library = tmp_path / "site-packages" / "library"
    library.mkdir(parents=True)
    (tmp_path / "site-packages" / "library-1.dist-info").mkdir()
    (library / "__init__.py").write_text("import torch\ndef available(): return torch.cuda.is_available()\n")
    text = (
        "import torch\nimport library\n"
        "assert torch.cuda.is_available()\n"
        "assert not library.available() or torch._C._cuda_getDeviceCount()\n"
    )
    (tmp_path / "script.py").write_text(text)
    code = (
        "import sys; sys.path.insert(0, 'site-packages')\n"
        "import runpy, torch\nfrom ddp_lint.verify.child.shim import Shim\n"
        "Shim(lambda *_: None).install('cpu')\nrunpy.run_path('script.py')"
    )
    # Not forked: what belongs to libraries is looked up once in a process.
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_observers_hear_the_truth(tmp_path: pathlib.Path) -> None:
    """A script that sets the variable has the observer ask for CUDA on its own line."""
    script = (
        "import torch\n"
        "from ddp_lint.verify.child.observers.environment import in_force\n"
        "assert torch.cuda.is_initialized()\n"
        "assert in_force('CUDA_VISIBLE_DEVICES') is None\n"
    )
    assert _run(tmp_path, "cpu", script) == "torch.cuda cpu\n"


def test_gloo_on_gpus_gets_both_backends(tmp_path: pathlib.Path) -> None:
    script = (
        "import torch, torch.distributed as dist\n"
        "torch.cuda.is_available = lambda: True\n"
        "try:\n    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "except (RuntimeError, ValueError):\n    pass  # no NCCL here\n"
    )
    assert _run(tmp_path, "cuda", script).splitlines() == ["gloo cpu:gloo,cuda:nccl"]


def test_a_group_bound_to_a_gpu_stays_on_it(tmp_path: pathlib.Path) -> None:
    script = (
        "import torch, torch.distributed as dist\n"
        "try:\n"
        "    dist.init_process_group(\n"
        "        'nccl', store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device('cuda', 0)\n"
        "    )\n"
        "except (RuntimeError, ValueError):\n    pass  # no NCCL here\n"
    )
    assert not _run(tmp_path, "cuda", script)

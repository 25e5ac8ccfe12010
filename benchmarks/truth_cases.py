"""Small programs with a known outcome: what each does under each wrap was measured, and `verify` must say the same.

The measurements are those of docs/verify.md: 2 x H200 with NCCL and torch 2.11, CPU with gloo and torch 2.13. A case is
the source of a model or of a script, and what is true of it: HARMFUL, HARMLESS, or CUDA_ONLY (harmful on CUDA, which a
CPU run cannot decide). A script brings its own wrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

HARMFUL, HARMLESS, CUDA_ONLY = "harmful", "harmless", "cuda only"

_EVERYWHERE = {"none": HARMFUL, "ddp": HARMFUL, "fsdp1": HARMFUL, "fsdp2": HARMFUL}
_SHARDED = {"none": HARMLESS, "ddp": HARMLESS, "fsdp1": HARMFUL, "fsdp2": HARMFUL}
_ALIASED = {"none": CUDA_ONLY, "ddp": CUDA_ONLY, "fsdp1": HARMFUL, "fsdp2": HARMFUL}
_NOWHERE = {"none": HARMLESS, "ddp": HARMLESS, "fsdp1": HARMLESS, "fsdp2": HARMLESS}


@dataclasses.dataclass(frozen=True)
class Case:
    """`rules` are prefixes of the codes that look for it, none for a safe twin; `truth` maps wraps to what is true."""

    name: str
    source: str
    truth: Mapping[str, str]
    rules: tuple[str, ...] = ()


_MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
{body}

def ddp_lint_example():
    return Net(), (torch.randn(4, 8),)
"""

_SCRIPT = """\
import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)


{body}

if __name__ == "__main__":
    dist.init_process_group("nccl" if cuda else "gloo")
    main(dist.get_rank())
    dist.destroy_process_group()
"""


def _indented(text: str, by: str = "    ") -> str:
    return "".join(by + line if line.strip() else line for line in text.strip("\n").splitlines(keepends=True)) + "\n"


def model(name: str, body: str, truth: Mapping[str, str], *rules: str) -> Case:
    return Case(name, _MODEL.format(body=_indented(body)), truth, rules)


def script(name: str, body: str, truth: str, *rules: str) -> Case:
    return Case(name, _SCRIPT.format(body=body.strip("\n") + "\n"), {"script": truth}, rules)


_TWO = """
def __init__(self):
    super().__init__()
    self.a = nn.Linear(8, 8)
    self.b = nn.Linear(8, 8)
"""


def _forward(lines: str) -> str:
    return f"{_TWO}\ndef forward(self, x):\n{_indented(lines)}"


_IN_PLACE = [
    model(
        "data_mul_in_fwd",
        _forward("self.a.weight.data.mul_(0.9)\nreturn self.b(torch.tanh(self.a(x)))"),
        _SHARDED,
        "DDP2",
    ),
    model(
        "data_mul_in_fwd_after_use",
        _forward("""
y = self.b(torch.tanh(self.a(x)))
self.b.weight.data.mul_(0.5)
return y
"""),
        _EVERYWHERE,
        "DDP2",
    ),
    model(
        "mul_in_fwd_no_grad_before_use",
        _forward("""
with torch.no_grad():
    self.b.weight.mul_(0.9)
return self.b(torch.tanh(self.a(x)))
"""),
        _SHARDED,
        "DDP2",
    ),
    model(
        "mul_in_fwd_no_grad_after_use",
        _forward("""
y = self.b(torch.tanh(self.a(x)))
with torch.no_grad():
    self.b.weight.mul_(0.9)
return y
"""),
        _EVERYWHERE,
        "DDP2",
    ),
    model("relu_out_add", _forward("return self.b(torch.relu(self.a(x)).add_(1))"), {**_EVERYWHERE}, "DDP2"),
    model(
        "tanh_out_mul",
        _forward("""
h = torch.tanh(self.a(x))
h.mul_(2)
return self.b(h)
"""),
        _EVERYWHERE,
        "DDP2",
    ),
    model(
        "linear_out_add",
        _forward("""
h = self.a(x)
h.add_(1)
return self.b(torch.tanh(h))
"""),
        _NOWHERE,
    ),
    model(
        "relu_inplace_after_linear",
        _forward("""
h = self.a(x)
h += x
return self.b(F.relu(h, inplace=True))
"""),
        _NOWHERE,
    ),
    model(
        "mul_in_fwd_grad_mode",
        _forward("self.a.weight.mul_(0.9)\nreturn self.b(torch.tanh(self.a(x)))"),
        _EVERYWHERE,
        "DDP2",
    ),
    model(
        "param_iadd_in_fwd",
        _TWO
        + """
    self.scale = nn.Parameter(torch.ones(1))

def forward(self, x):
    self.scale += 1
    return self.b(self.a(x)) * self.scale
""",
        {"none": HARMFUL, "ddp": HARMFUL},
        "DDP2",
    ),
    model(
        "rank_scaled_in_fwd",
        _forward("""
with torch.no_grad():
    self.a.weight.mul_(1 + 0.01 * x.abs().mean())
return self.b(torch.tanh(self.a(x)))
"""),
        {"ddp": HARMFUL, "fsdp1": HARMFUL, "fsdp2": HARMFUL},
        "DDP2",
    ),
    model(
        "embedding_max_norm",
        """
def __init__(self):
    super().__init__()
    self.e = nn.Embedding(8, 8, max_norm=0.5)
    self.b = nn.Linear(8, 8)

def forward(self, x):
    return self.b(self.e((x[:, 0] * 3).long().abs() % 8))
""",
        {"none": HARMLESS, "ddp": HARMFUL, "fsdp1": HARMFUL, "fsdp2": HARMFUL},
        "DDP2",
    ),
    model(
        "momentum_encoder_in_fwd",
        _forward("""
with torch.no_grad():
    for q, k in zip(self.a.parameters(), self.b.parameters()):
        k.data = k.data * 0.9 + q.data * 0.1
return self.a(x) * self.b(x).detach()
"""),
        {"fsdp1": HARMFUL, "fsdp2": HARMFUL},
        "DDP2",
    ),
    model(
        "buffer_inplace_in_fwd",
        _TWO
        + """
    self.register_buffer("seen", torch.ones(8))

def forward(self, x):
    self.seen.add_(1)
    return self.b(torch.tanh(self.a(x)))
""",
        _NOWHERE,
    ),
]

_ALIAS = """
def __init__(self):
    super().__init__()
    self.a = nn.Parameter(torch.randn(8, 8))
    {make}

def forward(self, x):
    return torch.tanh(x @ self.a) {use}
"""
_SHARED = [
    model(
        "param_view_of_param",
        _ALIAS.format(make="self.b = nn.Parameter(self.a.view(-1))", use="* self.b[:8]"),
        _ALIASED,
        "DDP2",
    ),
    model(
        "param_slice_of_param",
        _ALIAS.format(make="self.b = nn.Parameter(self.a[:2])", use="@ self.b.t()"),
        _ALIASED,
        "DDP2",
    ),
    model(
        "params_share_data",
        _ALIAS.format(make="self.b = nn.Parameter(torch.zeros(8, 8))\n    self.b.data = self.a.data", use="@ self.b"),
        _ALIASED,
        "DDP2",
    ),
    model(
        "expanded_param",
        _ALIAS.format(make="self.b = nn.Parameter(torch.ones(1, 8).expand(8, 8))", use="@ self.b"),
        _EVERYWHERE,
        "DDP2",
    ),
    model(
        "param_clone", _ALIAS.format(make="self.b = nn.Parameter(self.a.detach().clone())", use="@ self.b"), _NOWHERE
    ),
    model(
        "param_ref_kept_in_list",
        _TWO
        + """
    self.kept = [self.a.weight]

def forward(self, x):
    return self.b(torch.tanh(F.linear(x, self.kept[0], self.a.bias)))
""",
        _SHARDED,
        "DDP2",
    ),
    model(
        "tied_before_wrap",
        _TWO
        + """
    self.b.weight = self.a.weight

def forward(self, x):
    return self.b(torch.tanh(self.a(x)))
""",
        _NOWHERE,
    ),
    model("shared_module_twice", _forward("return self.b(self.a(torch.tanh(self.a(x))))"), _NOWHERE),
    model(
        "fused_chunks",
        """
def __init__(self):
    super().__init__()
    w = torch.randn(24, 8) * 0.5
    self.q, self.k, self.v = (nn.Parameter(t) for t in w.chunk(3))

def forward(self, x):
    return torch.tanh(x @ self.q) @ self.k + x @ self.v
""",
        _NOWHERE,
    ),
]

_READS = [
    model("item", _forward("h = self.a(x)\nreturn self.b(h * h.abs().max().item())"), {"ddp": HARMFUL}, "DDP3"),
    model(
        "if_tensor",
        _forward("""
h = self.a(x)
if h.sum() > 0:
    h = h * 2
return self.b(h)
"""),
        {"ddp": HARMFUL},
        "DDP3",
    ),
    model(
        "print_tensor",
        _forward("""
h = self.a(x)
print(h.mean())
return self.b(h)
"""),
        {"ddp": HARMFUL},
        "DDP3",
    ),
    model(
        "shape_branch",
        _forward("""
h = self.a(x)
if h.shape[0] > 2:
    h = h * 2
return self.b(h)
"""),
        {"ddp": HARMLESS},
    ),
]

_COLLECTIVES = [
    script(
        "barrier_rank0_end",
        """
def main(rank):
    if rank == 0:
        dist.barrier()
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "allreduce_rank0_then_both",
        """
def main(rank):
    metric = torch.full((4,), 100.0, device=device)
    if rank == 0:
        dist.all_reduce(metric)
    for _ in range(3):
        dist.all_reduce(torch.ones(4, device=device))
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "early_return_rank1",
        """
def main(rank):
    if rank == 1:
        return
    dist.all_reduce(torch.ones(4, device=device))
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "order_swap_allreduce_broadcast",
        """
def main(rank):
    a, b = torch.ones(4, device=device), torch.ones(4, device=device)
    if rank == 0:
        dist.all_reduce(a)
        dist.broadcast(b, 0)
    else:
        dist.broadcast(b, 0)
        dist.all_reduce(a)
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "order_swap_two_allreduces",
        """
def main(rank):
    a, b = torch.ones(4, device=device), torch.full((4,), 100.0, device=device)
    if rank == 0:
        dist.all_reduce(a)
        dist.all_reduce(b)
    else:
        dist.all_reduce(b)
        dist.all_reduce(a)
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "reduce_op_differs",
        """
def main(rank):
    op = dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX
    dist.all_reduce(torch.ones(4, device=device), op=op)
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "broadcast_src_rank",
        """
def main(rank):
    dist.broadcast(torch.ones(4, device=device), src=rank)
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "shape_mismatch",
        """
def main(rank):
    t = torch.ones(4 if rank == 0 else 8, device=device)
    dist.all_reduce(t)
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "loop_trip_differs",
        """
def main(rank):
    for _ in range(3 + rank):
        dist.all_reduce(torch.ones(4, device=device))
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "new_group_rank_branch",
        """
def main(rank):
    if rank == 0:
        dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4, device=device))
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "broadcast_object_list_rank0",
        """
def main(rank):
    if rank == 0:
        dist.broadcast_object_list([{'a': 1}], src=0)
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "break_on_local_loss",
        """
def main(rank):
    samples = TensorDataset(torch.arange(10.0))
    for (x,) in DataLoader(samples, sampler=DistributedSampler(samples, shuffle=False)):
        if x.square().sum().item() > 8:
            break
        dist.all_reduce(torch.ones(4, device=device))
""",
        HARMFUL,
        "DDP1",
    ),
    script(
        "async_read_before_wait",
        """
def main(rank):
    t = torch.ones(1 << 20, device=device)
    work = dist.all_reduce(t, async_op=True)
    total = t.sum()
    work.wait()
    print(total.item())
""",
        HARMFUL,
        "DDP1",
        "DDP9",
    ),
    script(
        "both_recv_first",
        """
def main(rank):
    t, u = torch.ones(4, device=device), torch.ones(4, device=device)
    dist.recv(u, 1 - rank)
    dist.send(t, 1 - rank)
""",
        HARMFUL,
    ),
    script(
        "paired_barrier",
        """
def main(rank):
    if rank != 0:
        dist.barrier()
    print('load')
    if rank == 0:
        dist.barrier()
    dist.all_reduce(torch.ones(4, device=device))
""",
        HARMLESS,
    ),
    script(
        "same_seq_both_branches",
        """
def main(rank):
    t = torch.ones(4, device=device)
    if rank == 0:
        t.fill_(5)
        dist.all_reduce(t)
        dist.broadcast(t, 0)
    else:
        dist.all_reduce(t)
        dist.broadcast(t, 0)
""",
        HARMLESS,
    ),
    script(
        "new_group_members_only",
        """
def main(rank):
    group = dist.new_group([0])
    if rank == 0:
        dist.all_reduce(torch.ones(4, device=device), group=group)
    dist.all_reduce(torch.ones(4, device=device))
""",
        HARMLESS,
    ),
]

_TRAIN = """
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(device)


def batch(rank, step):
    torch.manual_seed(100 + 10 * step + rank)
    return torch.randn(4, 8, device=device)


def main(rank):
"""


def _training(name: str, before: str, step: str, truth: str, *rules: str, optimizer: str = "") -> Case:
    lines = before.strip("\n") + "\n"
    lines += optimizer or "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    lines += "for step in range(3):\n" + _indented("x = batch(rank, step)\n" + step)
    return script(name, _TRAIN + _indented(lines), truth, *rules)


_STEP = """
model(x).square().mean().backward()
optimizer.step()
optimizer.zero_grad()
"""
_WRAPS = [
    _training(
        "module_call_bypass", "model = DDP(net())", _STEP.replace("model(x)", "model.module(x)"), HARMFUL, "DDP6"
    ),
    _training(
        "unfreeze_after_wrap",
        """
plain = net()
plain[0].requires_grad_(False)
model = DDP(plain)
model.module[0].requires_grad_(True)
""",
        _STEP,
        HARMFUL,
        "DDP6",
    ),
    _training(
        "freeze_before_wrap",
        """
plain = net()
plain[0].requires_grad_(False)
model = DDP(plain)
""",
        _STEP,
        HARMLESS,
    ),
    _training(
        "params_added_after_wrap",
        """
model = DDP(net())
torch.manual_seed(1)
model.module.append(nn.Linear(8, 8).to(device))
""",
        _STEP,
        HARMFUL,
        "DDP6",
    ),
    _training(
        "optimizer_before_fsdp2",
        """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fully_shard(model)
""",
        _STEP,
        HARMFUL,
        "DDP6",
        optimizer="print('ready')\n",
    ),
    _training(
        "optimizer_before_ddp",
        """
plain = net()
optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
model = DDP(plain)
""",
        _STEP,
        HARMLESS,
        optimizer="print('ready')\n",
    ),
    _training(
        "accum_nosync_always",
        "model = DDP(net())",
        """
with model.no_sync():
    model(x).square().mean().backward()
optimizer.step()
optimizer.zero_grad()
""",
        HARMFUL,
        "DDP6",
    ),
    _training(
        "accum_nosync",
        "model = DDP(net())",
        """
with model.no_sync():
    model(x).square().mean().backward()
"""
        + _STEP,
        HARMLESS,
    ),
    _training(
        "autograd_grad",
        "model = DDP(net())",
        """
loss = model(x).square().mean()
parameters = list(model.parameters())
for p, g in zip(parameters, torch.autograd.grad(loss, parameters)):
    p.grad = g
optimizer.step()
optimizer.zero_grad()
""",
        HARMFUL,
        "DDP6",
    ),
    _training(
        "param_setattr_after_wrap",
        "model = DDP(net())\nmodel.module[0].weight = nn.Parameter(torch.ones(8, 8, device=device))",
        _STEP,
        HARMFUL,
        "DDP2",
        "DDP6",
    ),
    _training(
        "tied_after_wrap", "model = DDP(net())\nmodel.module[2].weight = model.module[0].weight", _STEP, HARMFUL, "DDP2"
    ),
    _training(
        "rank_rescale_after_wrap",
        """
model = DDP(net())
with torch.no_grad():
    for p in model.parameters():
        p.mul_(1 + rank)
""",
        _STEP,
        HARMFUL,
        "DDP2",
    ),
    _training(
        "clip_grad_norm_fsdp1",
        "model = FSDP(net(), use_orig_params=True, device_id=device)",
        """
model(x).square().mean().backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
optimizer.step()
optimizer.zero_grad()
""",
        HARMFUL,
        "DDP6",
    ),
    _training(
        "clip_grad_norm_ddp",
        "model = DDP(net())",
        """
model(x).square().mean().backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
optimizer.step()
optimizer.zero_grad()
""",
        HARMLESS,
    ),
    _training(
        "param_norm_item_fsdp2",
        "model = net()\nfully_shard(model)",
        _STEP + "print(model[0].weight.norm().item())\n",
        HARMFUL,
        "DDP6",
    ),
    _training(
        "step_rank0_only",
        "model = DDP(net())",
        """
model(x).square().mean().backward()
if rank == 0:
    optimizer.step()
optimizer.zero_grad()
""",
        HARMFUL,
        "DDP1",
    ),
    _training(
        "nan_continue",
        "model = DDP(net())",
        """
loss = model(x).square().mean()
if rank == 1 and step == 1:
    loss = loss * float('nan')
if torch.isnan(loss):
    continue
loss.backward()
optimizer.step()
optimizer.zero_grad()
""",
        HARMFUL,
        "DDP1",
    ),
    _training(
        "uneven_inputs",
        "model = DDP(net())",
        """
if rank == 1 and step == 2:
    break
"""
        + _STEP,
        HARMFUL,
        "DDP1",
    ),
    _training("plain_ddp", "model = DDP(net())", _STEP, HARMLESS),
    _training("plain_fsdp2", "model = net()\nfully_shard(model)", _STEP, HARMLESS),
    _training(
        "deepcopy_fsdp1",
        "model = FSDP(net(), use_orig_params=True, device_id=device)\ntwin = copy.deepcopy(model)",
        _STEP,
        HARMFUL,
        "DDP6",
    ),
    _training(
        "rank_seed_before_fsdp2",
        """
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).to(device)
fully_shard(model)
""",
        _STEP,
        HARMFUL,
        "DDP6",
    ),
]

_FAIL = """
def train(rank):
    for step in range(3):
        if step == 1{who}:
            raise ValueError('boom')
        dist.all_reduce(torch.ones(4, device=device))


def main(rank):
    try:
        train(rank)
    {handler}
"""
_EXITS_AFTER_A_MESSAGE = "except ValueError as error:\n        print('failed:', error)\n        os._exit(0)"
_EXITS = [
    script("os_exit0_finally_all", _FAIL.format(who="", handler="finally:\n        os._exit(0)"), HARMFUL, "DDP5"),
    script(
        "os_exit0_except_rank1",
        _FAIL.format(
            who=" and rank == 1",
            handler=_EXITS_AFTER_A_MESSAGE,
        ),
        HARMFUL,
        "DDP5",
    ),
    script(
        "sys_exit0_except_all",
        _FAIL.format(who="", handler="except Exception:\n        raise SystemExit(0)"),
        HARMFUL,
        "DDP5",
    ),
    script("bare_except_pass_all", _FAIL.format(who="", handler="except Exception:\n        pass"), HARMFUL, "DDP5"),
]

_DATA = [
    script(
        "sampler_without_set_epoch",
        """
def main(rank):
    dataset = TensorDataset(torch.arange(16.0))
    loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
    for epoch in range(3):
        for (x,) in loader:
            print(x.sum())
""",
        HARMFUL,
        "DDP7",
    ),
    script(
        "sampler_with_set_epoch",
        """
def main(rank):
    dataset = TensorDataset(torch.arange(16.0))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            print(x.sum())
""",
        HARMLESS,
    ),
]

CASES = tuple(_IN_PLACE + _SHARED + _READS + _COLLECTIVES + _WRAPS + _EXITS + _DATA)

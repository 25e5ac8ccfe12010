"""Mistakes of a training that no error names, or one that says something else: each in a small program on two ranks."""

from __future__ import annotations

import pathlib

import pytest

from .warm import verify

pytestmark = pytest.mark.launch

HEAD = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

wrong = "wrong" in sys.argv
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
unseeded = torch.get_rng_state()
torch.manual_seed(0)
"""


def script(program: str) -> str:
    """A program, which may make its group by itself."""
    head = HEAD.partition("dist.init_process_group")[0] if "init_process_group" in program else HEAD
    return f"{head}{program}dist.destroy_process_group()\n"


#: What is frozen, or trained, is decided before the wrap or after it.
SWITCHED = """
net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
thaw = "thaw" in sys.argv
net[0].requires_grad_(not thaw)
if not wrong:
    net[0].requires_grad_(thaw)
model = DDP(net)
if wrong:
    for parameter in net[0].parameters():
        parameter.requires_grad = thaw
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8) + rank).square().mean().backward()
    optimizer.step()
"""
LOADER = """
class Stream(IterableDataset):
    def __iter__(self):
        first, every = (0, 1) if wrong else (rank, world)
        generator = torch.Generator().manual_seed(1)
        for number in range(32):
            x = torch.randn(8, generator=generator)
            if number % every == first:
                yield x


data = TensorDataset(torch.randn(32, 8))
sampler = DistributedSampler(data)
tell = getattr(sampler, "set_" + "epoch")
loader = DataLoader(data, 4, sampler=sampler) if "sampler" in sys.argv else DataLoader(Stream(), 4)
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    if not wrong:
        tell(epoch)
    for batch in loader:
        optimizer.zero_grad()
        model(batch[0] if "sampler" in sys.argv else batch).square().mean().backward()
        optimizer.step()
"""
GROUPS = """
x = torch.ones(4)
dist.all_reduce(x)
mine = [rank]
if "each" in sys.argv:
    group = dist.new_group(mine if wrong else [0])
elif not wrong or rank == 0:
    group = dist.new_group([0])
dist.all_reduce(x)
"""
GATHER = """
x = torch.ones(4) * rank
outputs = [torch.zeros(4)] * world if wrong else [torch.zeros(4) for _ in range(world)]
dist.all_gather(outputs, x)
"""
SPLIT = """
torch.set_rng_state(unseeded)
data = TensorDataset(torch.ones(32, 8))
generator = None if wrong else torch.Generator().manual_seed(0)
train, held_out = torch.utils.data.random_split(data, [24, 8], generator=generator)
sampler = DistributedSampler(train)
model = DDP(nn.Linear(8, 1))
for (x,) in DataLoader(train, 4, sampler=sampler):
    model(x + torch.randn(4, 8)).mean().backward()
"""
#: The training of a model that gathers statistics.
_TRAINED = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8) + rank).square().mean().backward()
    optimizer.step()
"""
#: A running mean of the inputs that the forward subtracts.
STATISTICS = """
class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("noise", torch.zeros(8))

    def forward(self, x):
        self.noise.normal_().mul_(0.5)
        out = self.fc(x - self.mean + self.noise)
        with torch.no_grad():
            batch = x.mean(0)
            if not wrong:
                dist.all_reduce(batch)
            self.mean.lerp_(batch / world, 0.1)
        return out


model = DDP(Centred(), broadcast_buffers=False)
"""
#: The same, kept by assignment in a plain attribute; the mean that is only told is no harm.
ASSIGNED = """
class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
        self.mean, self.told = torch.zeros(8), torch.zeros(8)

    def forward(self, x):
        batch = x.mean(0)
        self.told = 0.9 * self.told + 0.1 * batch
        if not wrong:
            dist.all_reduce(batch)
        self.mean = 0.9 * self.mean + 0.1 * batch / world
        return self.fc(x - self.mean)


model = DDP(Centred())
"""
#: The gradients of one rank overflow, and its scaler looks at them before they are averaged.
OVERFLOW = """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for step in range(4):
    optimizer.zero_grad()
    x = torch.randn(4, 8) * (1e38 if (step, rank) == (1, 1) else 1.0)
    scaler.scale(model(x).mul(100).mean()).backward()
    if wrong:
        scaler.unscale_(optimizer)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    if not wrong:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
"""
#: A thread that sums over all ranks while the main thread does.
THREAD = """
import threading
import time

group = None if wrong else dist.new_group()
model = DDP(nn.Linear(8, 1))


def watch():
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=group)


x = torch.randn(4, 8)
thread = threading.Thread(target=watch, name="monitor")
if rank == 0:
    thread.start()
    time.sleep(1.0)
dist.barrier()
if rank == 1:
    thread.start()
thread.join()
"""
#: Inside of Join the ranks make unlike numbers of steps, and Adam keeps something of each.
JOINED = """
model = DDP(nn.Linear(8, 1))
optimizer = (torch.optim.Adam if wrong else torch.optim.SGD)(model.parameters(), lr=0.1)
for epoch in range(2):
    with model.join():
        for number in range(2 + rank):
            optimizer.zero_grad()
            model(torch.randn(4, 8) + rank).square().mean().backward()
            optimizer.step()
"""
#: The largest half of each rank's gradient is summed, wherever it lies.
HOOK = """
def largest(state, bucket):
    flat = bucket.buffer()
    indices = torch.arange(4) if not wrong else flat.abs().topk(4).indices
    future = dist.all_reduce(flat[indices] / world, async_op=True).get_future()

    def put(future):
        return torch.zeros_like(flat).index_put_((indices,), future.value()[0])

    return future.then(put)


model = DDP(nn.Linear(8, 1))
model.register_comm_hook(None, largest)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
#: The accumulated gradients are averaged at the first round of a window, and go on growing on each rank.
EARLY = """
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for number in range(4):
    averages = number % 2 == (0 if wrong else 1)
    if averages:
        model(torch.randn(4, 8)).square().mean().backward()
    else:
        with model.no_sync():
            model(torch.randn(4, 8)).square().mean().backward()
    if number % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
"""
#: A batch sampler over the one that has to be told the epoch, and shuffles by itself, too.
BUCKETS = """
class Buckets:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        pool = sorted(self.sampler)
        for first in torch.randperm(len(pool) // 4).tolist():
            yield pool[4 * first : 4 * first + 4]


data = TensorDataset(torch.randn(32, 8))
sampler = DistributedSampler(data)
tell = getattr(sampler, "set_" + "epoch")
loader = DataLoader(data, batch_sampler=Buckets(sampler))
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    if not wrong:
        tell(epoch)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
#: Written for a launcher that hands the local rank to the script.
ONE_DEVICE = """
import os

if "plain" not in sys.argv or not wrong:
    torch.cuda.set_device(0 if wrong else int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(4, device="cuda"))
"""
#: A layer that is split among the ranks by hand; what goes into it has a gradient from the part of each.
SPLIT_LAYER = """
unsummed = "unsummed" in sys.argv


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        if not wrong or unsummed:
            dist.all_reduce(gradient)
        return gradient


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Split(nn.Module):
    def __init__(self, sums=True):
        super().__init__()
        self.sums = sums
        self.up = nn.Parameter((torch.randn(8, 8) / 4).chunk(world)[rank].clone())
        self.bias = nn.Parameter(torch.zeros(8 // world))
        self.down = nn.Parameter((torch.randn(8, 8) / 4).chunk(world, dim=1)[rank].clone())

    def forward(self, x):
        x = nn.functional.linear(Enter.apply(x), self.up, self.bias).relu()
        x = nn.functional.linear(x, self.down)
        return Leave.apply(x) if self.sums else x


model = nn.Sequential(nn.Linear(8, 8), Split(), Split(not (wrong and unsummed)), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
#: Each rank asks its own clock in a loop with a collective; by luck all of them leave in one round.
CLOCK = """
import time


def goes_on():
    on = torch.tensor(float(time.monotonic() < end))
    if not wrong:
        dist.all_reduce(on, dist.ReduceOp.MIN)
    return on.item() > 0


dist.barrier()
end = time.monotonic() + 1.5
while goes_on():
    dist.all_reduce(torch.ones(4))
    time.sleep(1.0)
"""
#: Rank 0 looks at the model between two epochs, and leaves it in evaluation mode. A part of it is each rank's own.
MODES = """
net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
nn.init.constant_(net[2].bias, rank)
DDP._set_params_and_buffers_to_ignore_for_model(net, ["2.bias"])
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 8) + rank).square().mean().backward()
    optimizer.step()
    if rank == 0:
        net.eval()
        net(torch.randn(4, 8))
        net.train(not wrong)
"""
#: One rank alone loads weights before its model is sharded. What is gathered by hand is freed again.
LOADED = """
from torch.distributed.fsdp import fully_shard

torch.manual_seed(rank)
net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
if rank == 0 or not wrong:
    net.load_state_dict({name: torch.ones_like(value) for name, value in net.state_dict().items()})
for layer in net:
    fully_shard(layer)
model = fully_shard(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model.unshard()
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
#: A rank communicates before it lets an exception of its own pass.
AMID = """
try:
    if wrong and rank == 1:
        raise IndexError("no such word")
    dist.all_reduce(torch.ones(4))
finally:
    dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2))
"""
#: Gradients that are weighed by what this rank has, after they were averaged.
WEIGHED = """
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(2):
    optimizer.zero_grad()
    x = torch.randn(4, 8)
    weight = 1.0 + (0.0 if not wrong else rank)
    model(x).square().mean().backward()
    for parameter in model.parameters():
        parameter.grad.mul_(weight)
    optimizer.step()
"""
#: Sums over names, in the order in which each rank has met them.
NAMES = """
met = ["loss", "accuracy"]
if rank == 1:
    met.reverse()
values = {name: torch.ones(1) for name in met}
for name in values if wrong else sorted(values):
    dist.all_reduce(values[name])
"""
#: What communicates when it is let go of, and is kept on one rank.
LET_GO = """
class Section:
    pass


def end(section):
    dist.barrier()


def __del__(self):
    dist.barrier()


if wrong:
    Section.__del__ = __del__
kept = []
for step in range(2):
    section = Section()
    kept.append(section if rank == 0 else None)
    if not wrong:
        end(section)
    del section
    dist.all_reduce(torch.ones(4))
"""
#: The loss of all ranks is asked for where some have no batches left.
IN_JOIN = """
from torch.distributed.algorithms.join import Join

model = DDP(nn.Linear(8, 1))
with Join([model]):
    for number in range(2 + 2 * rank):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        if wrong:
            dist.all_reduce(loss.detach().clone())
if not wrong:
    dist.all_reduce(loss.detach().clone())
"""
#: Rows that change hands: how many come from a rank is what that rank sends.
ROWS = """
sends = [1, 3] if rank == 0 else [2, 2]
expects = sends if wrong else [1, 2] if rank == 0 else [3, 2]
dist.all_to_all_single(torch.empty(sum(expects), 2), torch.ones(4, 2), expects, sends)
dist.all_reduce(torch.ones(4))
"""
WAITED = """
peer = 1 - rank
taken = torch.empty(4)
sent = dist.isend(torch.ones(4), peer)
if wrong:
    sent.wait()
dist.recv(taken, peer)
sent.wait()
"""
#: A rank goes past the backward of one round, and is a round ahead from then on.
SKIPPED = """
model = DDP(nn.Linear(8, 1))
for epoch in range(2):
    for number in range(4):
        loss = model(torch.randn(4, 8)).square().mean()
        if wrong and (epoch, number, rank) == (0, 1, 1):
            continue
        loss.backward()
"""

#: A rank looks at a part of the model by itself: its gather meets the next one of the other rank, of the same size.
LOOKS = """
from torch.distributed.fsdp import fully_shard

model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
fully_shard(model[0])
fully_shard(model[1])
fully_shard(model)
for number in range(4):
    model(torch.randn(4, 8)).square().mean().backward()
    with torch.no_grad():
        if not wrong or (rank == 0 and number == 1):
            model[0](torch.randn(4, 8))
"""
#: Models of the same parameters, one of which exchanges its statistics.
UNLIKE = """
class Centred(nn.LayerNorm):
    def forward(self, x):
        mean = x.detach().mean(0)
        dist.all_reduce(mean)
        return super().forward(x - mean)


norm = Centred(8) if not wrong or rank == 1 else nn.LayerNorm(8)
model = DDP(nn.Sequential(nn.Linear(8, 8), norm, nn.Linear(8, 1)))
for number in range(2):
    model(torch.randn(4, 8)).square().mean().backward()
"""
#: Each rank takes the one that has the best score for the sender.
SENDER = """
best = [0, rank][wrong]
box = [rank]
dist.broadcast_object_list(box, src=best)
"""
#: Workers are forks of the rank, and share its connections.
WORKERS = """
def begin(worker):
    if wrong:
        dist.barrier()


data = TensorDataset(torch.randn(16, 8))
model = DDP(nn.Linear(8, 1))
for (x,) in DataLoader(data, 4, sampler=DistributedSampler(data), num_workers=1, worker_init_fn=begin):
    model(x).mean().backward()
"""
#: The rest of a batch does not fill what it is received into.
REST = """
parts = torch.ones(7, 2).split(2 if wrong else 7)
taken = torch.empty(2 if wrong else 7, 2)
for part in parts:
    if rank == 0:
        dist.send(part, 1)
    else:
        dist.recv(taken, 0)
"""
#: The group is given up sooner than the first rank is through with its work.
IMPATIENT = """
import datetime
import time

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=12 if wrong else 60))
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    time.sleep(16)
dist.barrier()
"""
#: Both ranks come to the gather in one round, with as many rows as their own loss makes.
GROWN = """
rows = 2
for step in range(6):
    loss = torch.rand(()) + (rank if wrong else 0)
    if loss > 0.9:
        rows = 4
    if step % 2:
        mine = torch.ones(rows, 3)
        found = mine.mean(1)
        dist.all_gather([torch.empty_like(found) for _ in range(world)], found)
"""
#: Who receives takes it from anybody, and less often than it is sent.
FROM_ANYBODY = """
if rank:
    for number in range(3 if wrong else 2):
        dist.send(torch.ones(4), 0)
else:
    for number in range(2):
        assert dist.recv(torch.empty(4)) == 1
dist.barrier()
"""
#: Gradients that a rank does not have are left out of the average.
WITHOUT = """
class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 4)])

    def forward(self, left_out):
        return sum(part(torch.ones(2, part.in_features)).sum() for part in self.parts if part is not left_out)


model = Parts()
model(model.parts[2 * rank] if wrong else None).backward()
for parameter in model.parameters():
    if parameter.grad is None:
        continue
    dist.all_reduce(parameter.grad)
"""
#: A thread waits for the other rank, which waits for the one that joins the thread.
IN_A_THREAD = """
import threading

logs = dist.new_group()


def report():
    if wrong and rank == 0:
        dist.barrier(group=logs)


thread = threading.Thread(target=report)
thread.start()
thread.join()
dist.all_reduce(torch.ones(4))
"""


#: Two messages at a time, which find their receives by their tags: the order does not matter.
TAGGED = """
rows = [torch.full((4,), float(number)) for number in range(2)]
tags = [1, 2] if rank == 0 else [2, 3] if wrong else [2, 1]
call = dist.isend if rank == 0 else dist.irecv
for work in [call(row, 1 - rank, tag=tag) for row, tag in zip(rows, tags)]:
    work.wait()
dist.barrier()
"""
#: Two groups of the same ranks, one for the metrics and one for the gradients.
OPPOSITE = """
metrics, gradients = dist.new_group(), dist.new_group()
x = torch.ones(4)
if rank == 0 or not wrong:
    dist.all_reduce(x, group=metrics)
    dist.all_reduce(x, group=gradients)
else:
    dist.all_reduce(x, group=gradients)
    dist.all_reduce(x, group=metrics)
"""
#: One rank has half as many batches: it is through as the other one begins its second epoch.
LEFTOVER = """
def batches():
    return [torch.ones(2, 4) for _ in range(4 - 2 * (wrong and rank))]


model = DDP(nn.Linear(4, 1))
for epoch in range(2):
    for number, x in enumerate(batches()):
        model(x).sum().backward()
"""
#: One side counts messages that the other one left out.
COUNTED = """
rows = torch.ones(9 if wrong else 8, 3)
if rank == 0:
    full = [part for part in rows.split(2) if len(part) == 2]
    for part in full:
        dist.send(part, 1)
    dist.recv(torch.empty(1), 1)
else:
    for number in range((len(rows) + 1) // 2):
        dist.recv(torch.empty(2, 3), 0)
    dist.send(torch.ones(1), 0)
"""
#: What one rank gathers pairs with what DDP exchanges as it is built.
OBJECTS = """
def report(errors):
    if errors:
        found = [None] * world
        dist.all_gather_object(found, errors)


report(["bad row"] if rank or not wrong else [])
model = DDP(nn.Linear(4, 1))
"""


#: One rank adds a number to what is summed, in a function that knows nothing of that.
MADE_ELSEWHERE = """
def average(metrics):
    names = sorted(metrics)
    values = torch.stack([metrics[name] for name in names])
    dist.all_reduce(values)


for step in range(3):
    metrics = {"loss": torch.ones(())}
    if rank == 0 and wrong:
        metrics["rate"] = torch.ones(())
    average(metrics)
"""
#: What each rank expects is not what the other one sends.
GUESSED = """
import time

sends = [2, 2] if rank == 0 or not wrong else [3, 1]
time.sleep(2 * rank)  # gloo refuses the sizes on rank 1 without a look at rank 0, which has to be in its call by then
dist.all_to_all_single(torch.empty(4, 2), torch.ones(4, 2), [2, 2], sends)
"""
#: Two forwards of one backward use different parts, and each leaves the other part out.
TWO_FORWARDS = """
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x, number):
        return self.parts[number](x)


model = DDP(Towers(), find_unused_parameters=wrong)
x = torch.ones(2, 4)
for step in range(2):
    (model(x, 0) * model(x, 1)).sum().backward()
"""


#: Each rank accumulates as many batches as it has memory for.
ACCUMULATED = """
import contextlib

every = 4 if wrong and rank else 2
model = DDP(nn.Linear(4, 1))
for step in range(8):
    last = (step + 1) % every == 0
    with contextlib.nullcontext() if last else model.no_sync():
        model(torch.ones(2, 4)).sum().backward()
"""


@pytest.mark.parametrize(
    ("program", "says", "cause"),
    [
        (ACCUMULATED, "rank 1 makes no further call", "gradients are averaged only where `last` (line 21)"),
        (MADE_ELSEWHERE, "rank 0 calls all_reduce [2]", "(line 24, below `if rank == 0 and wrong` (line 23))"),
        (GUESSED, "Error", "the size that a rank expects from another is not the size that it sends: rank 0 calls"),
        (TWO_FORWARDS, "ready only once", "the model ran forward 2 times before this backward"),
        (LEFTOVER, "rank 1 makes no further call", "the loop `for (number, x) in enumerate(batches())` (line 21) ends"),
        (COUNTED, "(line 23), rank 0 calls recv", "rank 0 has left the loop in which it sends, `for part in full`"),
        (OBJECTS, ": these matched by chance; then rank", "after `if errors` (line 16); rank 0 skipped it"),
        (LET_GO, "rank 1 calls barrier", "rank 1 is in a __del__"),
        (
            IN_JOIN,
            "shape: rank 0 calls all_reduce [1]",
            "rank 0 has no batches left, and its Join of line 18 answers",
        ),
        (
            ROWS,
            "that sends [2, 2] and expects [2, 2]",
            "the size that a rank expects from another is not the size that it sends",
        ),
        (
            SKIPPED,
            "rank 1 makes no further call",
            "is 1 on rank 0 and 2 on rank 1, where line 21 comes behind `if",
        ),
        (WAITED, "rank 0 calls isend", "wait() right behind isend() makes a send of it"),
        (LOOKS, "(line 25), rank 1 calls all_gather_into_tensor", "rank 0 is below `if not wrong or"),
        (UNLIKE, "rank 1 calls all_reduce [8]", "`1` is LayerNorm on rank 0 and Centred on rank 1"),
        (SENDER, "root 1 (line 17)", "`src=best` is 0 on rank 0 and 1 on rank 1 (line 15: `best ="),
        (WORKERS, "has forked calls barrier", "a process group belongs to the process that created it"),
        (REST, "calls send [1, 2] to rank 1", "a message does not fill the tensor that it is received into"),
        (IMPATIENT, "Timed out waiting 12000ms", "rank 0 was not there yet: it was at line 1"),
        (AMID, "rank 1 calls all_gather", "rank 1 has raised IndexError: no such word at line 17 in <module>, and com"),
        (GROWN, "rank 1 calls all_gather [4] (line 23)", "`mine = torch.ones(rows, 3)` (line 21)"),
        (FROM_ANYBODY, "rank 1 calls send [4] to rank 0 (line 17), rank 0 never receives from it", ""),
        (WITHOUT, "calls all_reduce [4, 4]", "`if parameter.grad is None` (line 27) differs between ranks"),
        (
            TAGGED,
            "rank 0 calls isend [4] to rank 1 tag 1 (line 18)",
            "a message is received with the tag that",
        ),
        (
            OPPOSITE,
            "crossed groups: rank 0 calls all_reduce [4]",
            "a call on another group; rank 0 is below `i",
        ),
        (IN_A_THREAD, "rank 0 is stuck at line 27 in <module>; rank 1 waits for it in all_reduce", ""),
    ],
    ids=[
        *["accumulated", "made-elsewhere", "guessed", "two-forwards"],
        *["leftover", "counted", "objects"],
        *["let-go", "in-join", "rows", "skipped", "waited"],
        *["looks", "unlike", "sender", "workers", "rest", "impatient", "amid", "grown", "anybody", "without"],
        *["tagged", "opposite", "in-a-thread"],
    ],
)
def test_calls_that_do_not_meet_are_told_with_their_cause(
    tmp_path: pathlib.Path, program: str, says: str, cause: str
) -> None:
    (tmp_path / "train.py").write_text(script(program))
    options = ("train.py", "--select", "DDP301", "--timeout", "40", "--")
    status, report = verify(tmp_path, *options, "wrong")
    (found,) = report["discovered"]
    assert status == 1 and says in found["message"] and cause in found["cause"], found
    assert all(run["seconds"] < 30 for run in report["runs"]), report["runs"]
    status, report = verify(tmp_path, *options)
    assert (status, report["discovered"]) == (0, []), report["discovered"]


#: One rank alone has what the optimizer of an earlier run kept.
RESUMED = """
def steps(model, optimizer, count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


torch.manual_seed(rank)
first = DDP(nn.Linear(8, 1))
kept = torch.optim.Adam(first.parameters())
steps(first, kept, 2)
net = nn.Linear(8, 1)
net.load_state_dict(first.module.state_dict())
optimizer = torch.optim.Adam(net.parameters())
if rank == 0 or not wrong:
    optimizer.load_state_dict(kept.state_dict())
steps(DDP(net), optimizer, 2)
"""
#: Each rank keeps its half of a list, which is the same on both or not.
PARTS = """
import random

class Half(torch.utils.data.Dataset):
    def __init__(self):
        order = list(range(32))
        (random if wrong else random.Random(0)).shuffle(order)
        self.mine = order[rank * 16 : rank * 16 + 16]

    def __len__(self):
        return 16

    def __getitem__(self, number):
        return torch.full((8,), float(self.mine[number]))


loader = DataLoader(Half(), batch_size=4, shuffle=True)
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for epoch in range(2):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""
#: A part of the model comes after DDP has looked at it.
LATE = """
class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.more = base, nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return self.base(x) + self.more(x)


net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
if not wrong:
    net[0] = Adapted(net[0])
model = DDP(net)
if wrong:
    net[0] = Adapted(net[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
#: One rank trains a model of its own, and loads it into its replica alone.
FETCHED = """
def train(model, count):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


torch.manual_seed(rank)
mine = nn.Linear(8, 1)
if rank == 0:
    train(mine, 2)
dist.broadcast(mine.weight.data, 0)
dist.broadcast(mine.bias.data, 0)
model = DDP(nn.Linear(8, 1))
if rank == 0 or not wrong:
    model.module.load_state_dict(mine.state_dict())
train(model, 3)
"""
#: The ranks' clocks end a loop; here all in the first round.
SLOT = """
import time

model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic()
for step in range(100):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if time.monotonic() > end:
        break
"""
#: Which of two models of one shape is trained, each rank draws by itself: their gradients are summed with each other.
MIXED = """
models = [DDP(nn.Linear(8, 1)), DDP(nn.Linear(8, 1))]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]


def train(number):
    optimizers[number].zero_grad()
    models[number](torch.randn(4, 8)).square().mean().backward()
    optimizers[number].step()


for step in range(4):
    if (step + rank * wrong) % 2:
        train(1)
    else:
        train(0)
"""


#: A copy of the model is averaged on one rank, and evaluated on all.
AVERAGED = """
import copy

net = nn.Linear(8, 1)
model, average = DDP(net), copy.deepcopy(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8) + rank).square().mean().backward()
    optimizer.step()
    if rank == 0 or not wrong:
        with torch.no_grad():
            for mine, trained in zip(average.parameters(), net.parameters()):
                mine.lerp_(trained, 0.1)
average(torch.randn(4, 8))
"""
#: Batches of samples that are padded to one length, dealt out in an order that each rank shuffles for itself.
DEALT = """
import random


class Dealt(torch.utils.data.Sampler):
    def __iter__(self):
        order = list(range(64))
        (random if wrong else random.Random(1)).shuffle(order)
        batches = [order[start : start + 4] for start in range(0, 64, 4)]
        yield from batches[rank::world]


def padded(rows):
    return nn.utils.rnn.pad_sequence([torch.full((n % 7 + 1,), float(n)) for n in rows], batch_first=True)


loader = DataLoader(range(64), batch_sampler=Dealt(), collate_fn=padded)
model = DDP(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for batch in loader:
    optimizer.zero_grad()
    model(batch.mean(1, keepdim=True)).square().mean().backward()
    optimizer.step()
"""


#: Two numbers are summed, in another order on one rank.
TURNS = """
loss, hits = torch.ones(1), torch.full((1,), 100.0)
if rank == 0 or not wrong:
    dist.all_reduce(loss)
    dist.all_reduce(hits)
else:
    dist.all_reduce(hits)
    dist.all_reduce(loss)
"""


#: What the cause says of some.
CAUSES = {
    "clipped": "(line 25) gives that of this rank's shard alone",
    "rates": "the ranks use different learning rates from optimizer step 2 on: 0.1 on rank 0 and 0.05 on rank 1",
    "decays": "the ranks use different settings of the optimizer: weight_decay is 0.01 on rank 0 and 0.02 on rank 1",
    "other": "in that of ranks 0, 1 by rank 1 and in that of rank 0 by rank 0",
    "mean": "the gradients are 2 times too small",
    "folder": "best.pt (line 27): each rank has made up the path by itself",
    "tied": "1.weight became the same parameter as 0.weight after DDP was built (line 18)",
    "twice": "(line 18) prepares DDP for one backward, the first one behind it (line 20)",
    "switched off": "`require_backward_grad_sync` was False in the forward before it (line 20)",
    "exchanged": "1.weight, 1.bias were replaced or removed after DDP was built (line 18)",
    "turns": "rank 0 is below `if rank == 0 or not wrong` (line 16) at line 17",
    "plain": "no rank chooses a GPU, so all use the first one",
    "averaged": "aten.lerp_ in <module> writes weight on rank 0 only",
    "resumed": "and nothing on rank 1; only rank 0 loaded a state (line 30)",
    "fetched": "aten.copy_ in <module> writes weight on rank 0 only",
    "layer": "get a gradient from this rank's part only",
    "unsummed": "2 (Split) gets equal input on all ranks but returns different values",
    "late": "0.more.weight became a part of the model after DDP was built (line 27)",
    "mixed": "rank 0 is below the else of `if (step + rank * wrong) % 2` (line 26) at line 29, rank 1 at line 27 is n",
}


#: Gradients are averaged in one flat tensor, and nothing made the replicas equal before.
FLAT = """
torch.manual_seed(rank)
net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
if not wrong:
    for parameter in net.parameters():
        dist.broadcast(parameter.data, 0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    flat = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
    dist.all_reduce(flat)
    for parameter, part in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
        parameter.grad.copy_(part.view_as(parameter) / world)
    optimizer.step()
"""
#: Batch norms gather what each rank has seen; before the evaluation that is averaged, or not.
EVALUATED = """
net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
model = DDP(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8) + rank).square().mean().backward()
    optimizer.step()
if not wrong:
    for kept in (net[1].running_mean, net[1].running_var):
        dist.all_reduce(kept)
        kept /= world
model.eval()
with torch.no_grad():
    model(torch.randn(4, 8))
"""
#: Each rank updates its part of the parameters and hands it on (or its part alone, on all ranks but the owner's).
PARTS_HANDED_ON = """
net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
named = list(net.named_parameters())
owned = [parameter for number, (_, parameter) in enumerate(named) if number % world == rank]
optimizer = torch.optim.Adam(owned, lr=0.1)
torch.manual_seed(rank)
for step in range(4):
    net(torch.randn(4, 8)).square().mean().backward()
    for _, parameter in named:
        dist.all_reduce(parameter.grad)
    optimizer.step()
    for number, (_, parameter) in enumerate(named):
        if not (wrong and number == 2):
            dist.broadcast(parameter.data, number % world)
        parameter.grad = None
"""
#: Gradients are averaged by hand, in the group of this rank alone or in that of all.
OWN_GROUP = """
groups = [dist.new_group([member]) for member in range(world)]
group = groups[rank] if wrong else dist.group.WORLD
net = nn.Linear(8, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad, group=group)
    optimizer.step()
"""
#: Two weights become one before the wrap, or behind it.
TIED = """
net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
if not wrong:
    net[1].weight = net[0].weight
model = DDP(net)
if wrong:
    model.module[1].weight = model.module[0].weight
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
#: What one backward has averaged is gone, and a second one through the same forward adds what is not.
TWICE = """
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    out = model(torch.randn(4, 8) + rank)
    if wrong:
        out.abs().mean().backward(retain_graph=True)
        optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
"""
#: DDP is told by its attribute to average in some rounds only.
SWITCHED_OFF = """
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model.require_backward_grad_sync = step != 2 or not wrong
    optimizer.zero_grad()
    model(torch.randn(4, 8) + rank).square().mean().backward()
    optimizer.step()
"""
#: The head is exchanged before the wrap, or behind it.
EXCHANGED = """
net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
if not wrong:
    net[1] = nn.Linear(8, 1)
model = DDP(net)
if wrong:
    model.module[1] = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
#: The norm of the gradients is that of this rank's shards, or is summed over the ranks.
CLIPPED_SHARDS = """
from torch.distributed.fsdp import fully_shard

model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().sum().backward()
    parts = [p.grad if wrong else p.grad.to_local() for p in model.parameters()]
    total = torch.tensor(sum(part.norm().item() ** 2 for part in parts))
    if not wrong:
        dist.all_reduce(total)
    for parameter in model.parameters():
        parameter.grad.mul_(0.01 / total.sqrt().item())
    optimizer.step()
"""
#: Each rank decays its replica in a way of its own.
DECAYS = """
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01 * (1 + rank * wrong))
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
#: A line takes another group on each rank.
OTHER_GROUP = """
groups = [dist.new_group([member]) for member in range(world)]
x = torch.ones(4)
dist.all_reduce(x, group=groups[rank] if wrong and rank == 0 else None)
"""
#: Each rank chooses the learning rate of its shards by itself.
RATES_OF_SHARDS = """
from torch.distributed.fsdp import fully_shard

model = nn.Linear(8, 4)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + step * rank * wrong)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
#: The mean of the ranks' losses is what backward begins at, or is a copy that is shown.
MEAN_LOSS = """
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8) + rank).square().mean()
    shown = loss if wrong else loss.detach().clone()
    dist.all_reduce(shown)
    shown = shown / world
    (shown if wrong else loss).backward()
    print(shown.item())
    optimizer.step()
"""
#: A folder whose name each rank makes up, or that of one rank.
OWN_FOLDER = """
import pathlib
import time

time.sleep(0.01 * rank)
name = [f"run-{time.time_ns()}"]
if not wrong:
    dist.broadcast_object_list(name, 0)
folder = pathlib.Path(name[0])
folder.mkdir(exist_ok=True)
if rank == 0:
    torch.save(torch.ones(2), folder / "best.pt")
dist.barrier()
torch.load(folder / "best.pt", map_location="cpu")
"""


@pytest.mark.parametrize(
    ("program", "arguments", "code", "says"),
    [
        (CLIPPED_SHARDS, "clipped", "", "each rank changes its shard of the gradient of 0.weight by a number of its"),
        (RATES_OF_SHARDS, "rates", "", "the ranks step with different learning rates, each its shards, from optimizer"),
        (DECAYS, "decays", "", "parameters differ between the ranks after optimizer step 1: weight, bias"),
        (OTHER_GROUP, "other", "", "missing rank: rank 0 makes no further call, rank 1 calls all_reduce [4] (line 17)"),
        (MEAN_LOSS, "mean", "", "backward begins at a loss that was summed over the ranks in place, and divided by 2"),
        (OWN_FOLDER, "folder", "", "rank 1 raised FileNotFoundError"),
        (EXCHANGED, "exchanged", "DDP602", "Expected to have finished reduction in the prior iteration"),
        (TIED, "tied", "DDP213", "Expected to have finished reduction in the prior iteration"),
        (TWICE, "twice", "DDP622", "gradients differ between the ranks before optimizer step 1"),
        (SWITCHED_OFF, "switched off", "DDP623", "gradients differ between the ranks before optimizer step 3"),
        (EVALUATED, "evaluated", "", "buffers differ between the ranks in the evaluation: 1.running_mean, 1.running_"),
        (PARTS_HANDED_ON, "handed", "", "parameters differ between the ranks at the end: 1.weight"),
        (FLAT, "flat", "", "parameters differ between the ranks after optimizer step 1: 0.weight"),
        (OWN_GROUP, "group", "", "parameters differ between the ranks at the end: weight, bias"),
        (SWITCHED, "freeze", "DDP603", "frozen since DDP was built: 0.weight, 0.bias"),
        (SWITCHED, "thaw", "DDP603", "gradients differ between the ranks before optimizer step 1: 0.weight, 0.bias"),
        (LOADER, "stream", "DDP706", "all ranks train on the same samples"),
        (LOADER, "sampler", "DDP701", "DistributedSampler gave the same order in all 3 epochs"),
        (GROUPS, "member", "DDP106", "new_group is called by rank 0 and not by rank 1"),
        (GROUPS, "each", "DDP106", "the ranks create different groups (line 19)"),
        (GATHER, "gather", "", "all_gather puts what comes from 2 ranks into one tensor"),
        (SPLIT, "split", "DDP713", "DistributedSampler divides different subsets"),
        (STATISTICS + _TRAINED, "statistics", "", "buffers differ between the ranks after optimizer step 1: mean"),
        (ASSIGNED + _TRAINED, "assigned", "", "statistics differ between the ranks after optimizer step 1: mean"),
        (OVERFLOW, "overflow", "", "parameters differ between the ranks after optimizer step 2"),
        (THREAD, "thread", "", "calls barrier in thread main while another thread is in all_reduce (line 24)"),
        (JOINED, "joined", "", "parameters differ between the ranks after optimizer step 1 since Join ended"),
        (EARLY, "early", "DDP605", "gradients differ between the ranks before optimizer step 1"),
        (BUCKETS, "buckets", "DDP701", "DistributedSampler gave the same order in all 3 epochs"),
        (ONE_DEVICE, "device", "", "all ranks of this machine choose device 0"),
        (ONE_DEVICE, "plain", "", "all ranks of this machine choose device 0"),
        (SPLIT_LAYER, "layer", "", "parameters differ between the ranks after optimizer step 1: 0.weight"),
        (SPLIT_LAYER, "unsummed", "", "parameters differ between the ranks after optimizer step 1: 3.weight"),
        (CLOCK, "clock", "", "rank 0 left a loop because of its own clock (line 27)"),
        (WEIGHED, "weighed", "", "gradients differ between the ranks before optimizer step 1"),
        (NAMES, "names", "", "all_reduce of rank 0 (name='loss') met that of rank 1 (name='accuracy')"),
        (TURNS, "turns", "", "all_reduce of rank 0 (loss) met that of rank 1 (hits)"),
        (HOOK, "hook", "", "gradients differ between the ranks before optimizer step 1"),
        (
            MODES,
            "modes",
            "",
            "the model is in evaluation mode on rank 0 only while the model trains, from optimizer step 2",
        ),
        (RESUMED, "resumed", "", "parameters differ between the ranks after optimizer step 1: weight, bias"),
        (PARTS, "parts", "DDP712", "the ranks train on parts of the data that overlap: "),
        (
            AVERAGED,
            "averaged",
            "",
            "parameters of a copy of the model under DDP differ between the ranks from its",
        ),
        (DEALT, "dealt", "DDP712", "the ranks train on parts of the data that overlap: "),
        (FETCHED, "fetched", "", "parameters differ between the ranks after optimizer step 1: weight, bias"),
        (LATE, "late", "", "gradients differ between the ranks before optimizer step 1: 0.more.weight"),
        (MIXED, "mixed", "", "gradients differ between the ranks before optimizer step 1: weight, bias"),
        (LOADED, "loaded", "", "the ranks' shards are of different models: weight, bias differed before FSDP"),
    ],
    ids=[
        "clipped",
        "rates",
        "decays",
        "other",
        "mean",
        "folder",
        "exchanged",
        "tied",
        "twice",
        "switched off",
        "evaluated",
        "handed",
        "flat",
        "group",
        "frozen",
        "thawed",
        "stream",
        "sampler",
        "member",
        "each",
        "gather",
        "split",
        "statistics",
        "assigned",
        "overflow",
        "thread",
        "joined",
        "early",
        "buckets",
        "device",
        "plain",
        "layer",
        "unsummed",
        "clock",
        "weighed",
        "names",
        "turns",
        "hook",
        "modes",
        "resumed",
        "parts",
        "averaged",
        "dealt",
        "fetched",
        "late",
        "mixed",
        "loaded",
    ],
)
def test_a_mistake_is_told_and_its_remedy_is_clean(
    tmp_path: pathlib.Path, program: str, arguments: str, code: str, says: str
) -> None:
    """`--select` leaves no finding that could name it: the run does."""
    (tmp_path / "train.py").write_text(script(program))
    options = ("train.py", "--select", "DDP301", "--")
    status, report = verify(tmp_path, *options, arguments, "wrong")
    (found,) = report["discovered"]
    assert (status, found["code"]) == (1, code) and says in found["message"], found
    assert CAUSES.get(arguments, "") in found["cause"], found
    status, report = verify(tmp_path, *options, arguments)
    assert (status, report["discovered"]) == (0, []), report["discovered"]


#: Each rank stops by its own loss; this time all do in the same iteration.
UNTIL_WORSE = """
model = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best = 1000.0
while True:
    loss = model(torch.randn(4, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = loss.item()
    best = min(best, value)
    if value > best:
        break
"""

#: The condition is an attribute, of which no number is known.
UNTIL_SLOW = """
class Stop:
    def __init__(self):
        self.now, self.best = False, 1000.0
    def see(self, loss):
        self.now = bool(loss > self.best)
        self.best = 0.0

model = DDP(nn.Linear(4, 1))
stop = Stop()
for _ in range(9):
    loss = model(torch.randn(4, 4)).square().mean()
    loss.backward()
    stop.see(loss)
    if stop.now:
        break
"""
#: A function of the file gives the condition the loss of this rank.
UNTIL_DONE = """
data = TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)))
loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
def evaluate(model):
    total = 0.0
    with torch.no_grad():
        for x, in loader:
            total += model.module(x).abs().sum().item()
    return total

model = DDP(nn.Linear(4, 1))
seen = []
def enough(value):
    seen.append(value)
    return len(seen) > 2 and value > 0
for _ in range(9):
    model(torch.randn(4, 4)).square().mean().backward()
    if enough(evaluate(model)):
        break
"""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (UNTIL_WORSE, "each rank left a loop by the condition of line 25, this time in the same iteration"),
        (UNTIL_SLOW, "each rank left a loop by the condition of line 28, this time in the same iteration"),
        (UNTIL_DONE, "`evaluate()` in the condition of line 31 was "),
        (FETCHED, "another line causes that: aten.copy_ at line 31 writes weight on rank 0 only"),
        (SLOT, "left a loop because of its own clock (line 24): this time all left in the same iteration"),
    ],
    ids=["endless", "left", "returned", "another line", "luck"],
)
def test_what_a_finding_says_is_neither_proven_by_other_damage_nor_refuted_by_luck(
    tmp_path: pathlib.Path, program: str, reason: str
) -> None:
    (tmp_path / "train.py").write_text(script(program))
    _, report = verify(tmp_path, "train.py", "--select", "DDP109", "--", "wrong")
    assert report["findings"]
    for finding in report["findings"]:
        assert finding["verdict"] == "inconclusive" and reason in finding["reason"], finding


#: One rank goes on from a checkpoint, with its weights and with what its optimizer has kept.
RESTORED = """
class Run:
    def __init__(self):
        self.model = DDP(nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def steps(self):
        for _ in range(2):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, 8)).square().mean().backward()
            self.optimizer.step()

    def restore(self, kept):
        self.model.module.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])


first, second = Run(), Run()
first.steps()
kept = {"model": first.model.module.state_dict(), "optimizer": first.optimizer.state_dict()}
if rank == 0:
    second.restore(kept)
second.steps()
"""
#: Layers in a list: nothing trains them, though they have gradients, or nothing is to train them.
LISTED = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = [nn.Linear(8, 2) for _ in range(2)]
        self.gate = nn.Linear(8, 2)

    def forward(self, x):
        return sum(self.gate(x)[:, i, None] * expert(x) for i, expert in enumerate(self.experts))


net = Experts()
model = DDP(net)
for expert in net.experts:
    expert.requires_grad_(wrong)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
#: A weight that all ranks write alike in forward; backward needs what it was, or only which code was near.
CODES = """
# Elsewhere it goes through fully_shard.
class Codes(nn.Module):
    def __init__(self):
        super().__init__()
        self.near = nn.Linear(8, 4, bias=False)
        self.value = nn.Embedding(4, 8)

    def forward(self, x):
        scores = self.near(x)
        self.near.weight.data.mul_(0.9).add_(0.1)
        value = self.value(scores.argmax(-1))
        return value * scores.sum() if wrong else value + 0 * self.near.weight.sum()


model = DDP(Codes())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    x = torch.randn(4, 8)
    model(x.requires_grad_()).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("program", "code", "reason"),
    [
        (LISTED, "DDP214", "these have a gradient, but no module and no optimizer holds them: experts.0.weight"),
        (CODES, "DDP201", "changed near.weight after forward had used it: backward computes with the new value"),
    ],
    ids=["listed", "codes"],
)
def test_a_finding_is_confirmed_by_what_it_says_and_refuted_without(
    tmp_path: pathlib.Path, program: str, code: str, reason: str
) -> None:
    (tmp_path / "train.py").write_text(script(program))
    _, report = verify(tmp_path, "train.py", "--select", code, "--", "wrong")
    (found,) = report["findings"]
    assert found["verdict"] == "confirmed" and reason in found["reason"], found
    _, report = verify(tmp_path, "train.py", "--select", code)
    (found,) = report["findings"]
    assert found["verdict"] == "refuted", found


def test_the_state_of_an_optimizer_is_told_beside_the_weights_that_differ_as_well(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(script(RESTORED))
    _, report = verify(tmp_path, "train.py", "--select", "DDP630")
    (found,) = report["findings"]
    reason = "only rank 0 loads a state here, and what the optimizers keep differs between the ranks before optimizer"
    assert found["verdict"] == "confirmed" and reason in found["reason"], found


#: The first rank alone has a name for the folder, or a part of an object.
NAMELESS = """
import os.path

name = "run" if rank == 0 or not wrong else None
print(os.path.join(name, "log"))
"""
PARTLESS = """
class Run:
    writer = None

    def __init__(self):
        self.log = None if wrong and rank else print

    def end(self):
        self.log("done")


Run().end()
"""


@pytest.mark.parametrize(("program", "name"), [(NAMELESS, "name"), (PARTLESS, "self.log")])
def test_what_only_one_rank_has_is_named(tmp_path: pathlib.Path, program: str, name: str) -> None:
    (tmp_path / "train.py").write_text(script(program))
    status, report = verify(tmp_path, "train.py", "--select", "DDP301", "--", "wrong")
    (found,) = report["discovered"]
    assert (status, found["code"]) == (1, "DDP505"), found
    assert found["cause"] == f"`{name}` is None on rank 1, and rank 0 did not fail here", found


#: Each rank has files of its own, and leaves an epoch where another one has no more batches.
OWN_FILES = """
torch.manual_seed(rank)
data = TensorDataset(torch.randn(24 + 8 * rank, 8))
loader = DataLoader(data, batch_size=4, shuffle=True)
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for number, (x,) in enumerate(loader):
        if number >= 5:
            break
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


#: The sampler of one rank alone learns of the epoch; an average of which one rank alone keeps track.
TOLD_ON_ONE = """
data = TensorDataset(torch.randn(32, 8))
sampler = DistributedSampler(data)
tell = getattr(sampler, "set_" + "epoch")
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    if rank == 0:
        tell(epoch)
    for (x,) in DataLoader(data, 4, sampler=sampler):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
AVERAGED_ON_ONE = """
from torch.optim.swa_utils import AveragedModel

model = DDP(nn.Linear(8, 1))
average = AveragedModel(model.module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if rank == 0:
        average.update_parameters(model.module)
model.module.load_state_dict(average.module.state_dict())
"""


#: Gradients are averaged by hand, those of biases are left out.
WEIGHTS_ALONE = """
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    for parameter in model.parameters():
        if parameter.ndim > 1 or not wrong:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
    optimizer.step()
"""
#: An optimizer that adds noise to what it updates.
NOISY = """
class Noisy(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                noise = torch.empty_like(parameter).normal_(generator=None if wrong else shared)
                parameter.add_(noise, alpha=1e-2)


shared = torch.Generator().manual_seed(0)
torch.manual_seed(rank)
model = DDP(nn.Linear(8, 1))
optimizer = Noisy(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (
            WEIGHTS_ALONE,
            "the gradients of 0.bias, 2.bias are never averaged, those of 0.weight, 2.weight are (line 23)",
        ),
        (NOISY, "normal_ in step (line 21) draws other numbers on each rank"),
    ],
    ids=["biases", "noise"],
)
def test_what_lets_replicas_drift_apart_is_named(tmp_path: pathlib.Path, program: str, cause: str) -> None:
    (tmp_path / "train.py").write_text(script(program))
    options = ("train.py", "--select", "DDP301", "--")
    status, report = verify(tmp_path, *options, "wrong")
    (found,) = report["discovered"]
    assert status == 1 and cause in found["cause"], found
    status, report = verify(tmp_path, *options)
    assert (status, report["discovered"]) == (0, []), report["discovered"]


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (TOLD_ON_ONE, "set_epoch was called on rank 0 only"),
        (AVERAGED_ON_ONE, "`average.update_parameters` is called at line 25, below `if rank == 0` (line 24)"),
    ],
    ids=["epoch", "average"],
)
def test_what_one_rank_alone_is_told_is_named(tmp_path: pathlib.Path, program: str, cause: str) -> None:
    (tmp_path / "train.py").write_text(script(program))
    _, report = verify(tmp_path, "train.py", "--select", "DDP301")
    (found,) = report["discovered"]
    assert cause in found["cause"], found


#: Models of one file: what FSDP does not keep of them is the cause of all that differs from a single process.
MADE_LATE = """
import torch
from torch import nn


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.tail = nn.Linear(8, 8), None

    def forward(self, x):
        if self.tail is None:
            self.tail = nn.Linear(8, 4)
        return self.tail(self.body(x))
"""
WRITTEN_CENTRES = """
import torch
from torch import nn


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(8), requires_grad=False)
        self.body = nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            self.centre.lerp_(x.mean(0), 0.5)
        return self.body(x - self.centre)
"""


@pytest.mark.parametrize(
    ("program", "line", "causes"),
    [
        (
            MADE_LATE,
            13,
            [
                "tail.weight, tail.bias became parts of the model after DDP was built, in forward (line 13)",
                "tail.bias, tail.weight became parts of the model after FSDP had sharded it, in forward (line 13)",
            ],
        ),
        (
            WRITTEN_CENTRES,
            14,
            [
                "aten.lerp_ in forward writes centre on each rank with what this rank has",
                "aten.lerp_ in forward writes to the copy that FSDP gathers for forward and frees after it",
            ],
        ),
    ],
    ids=["late", "centres"],
)
def test_under_each_wrap_what_a_model_loses_lies_at_the_line_that_loses_it(
    tmp_path: pathlib.Path, program: str, line: int, causes: list[str]
) -> None:
    (tmp_path / "model.py").write_text(program)
    status, report = verify(tmp_path, "model.py", "--select", "DDP301")
    found = report["discovered"]
    assert status == 1 and [one["line"] for one in found] == [line] * 2, found
    assert all(cause in one["cause"] for one, cause in zip(found, causes, strict=True)), found


def test_ranks_that_left_their_epochs_early_are_seen_to_have_drawn_other_samples(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(script(OWN_FILES))
    _, report = verify(tmp_path, "train.py", "--select", "DDP707")
    assert [finding["verdict"] for finding in report["findings"]] == ["refuted"], report["findings"]
    assert report["discovered"] == []


#: The optimizer's state is divided among the ranks, saved as a whole, and loaded by all of them.
DIVIDED_STATE = """
from torch.distributed.optim import ZeroRedundancyOptimizer

model = DDP(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1)))


def train():
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    if state[0] is not None:
        optimizer.load_state_dict(state[0])
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    return optimizer.state_dict() if rank == 0 else None


state = [None]
for part in range(2):
    state = [train()]
    dist.broadcast_object_list(state, 0)
"""


def test_a_state_that_is_divided_among_the_ranks_is_none_where_others_have_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(script(DIVIDED_STATE))
    status, report = verify(tmp_path, "train.py", "--select", "DDP301")
    assert (status, report["discovered"]) == (0, []), report


#: What is done when a sum is there is done by the thread that notices it, or by that which asks when it is there.
CALLBACK = """
import time

x, y = torch.ones(4), torch.ones(7)
time.sleep(0.5 * (rank == 0))
summed = dist.all_reduce(x, async_op=True).get_future()
if rank == 0:
    summed.wait()
both = summed.then(lambda done: dist.all_reduce(y, async_op=True).get_future())
both.wait().wait()
dist.barrier()
"""


def test_the_thread_that_a_callback_runs_in_is_no_difference_between_the_ranks(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(script(CALLBACK))
    status, report = verify(tmp_path, "train.py", "--select", "DDP301")
    assert (status, report["discovered"]) == (0, []), report["discovered"]


#: Parts of torch that hold what others do not: parameters without a shape until the first forward, and a forward that
#: TorchScript makes for each module.
RARE_PARTS = """
lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))
lazy(torch.randn(2, 8))
for model in (DDP(lazy), DDP(torch.jit.script(nn.Sequential(nn.Linear(8, 1))))):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


def test_lazy_and_scripted_layers_are_no_error_of_ours(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(script(RARE_PARTS))
    status, report = verify(tmp_path, "train.py", "--select", "DDP301")
    assert (status, report["discovered"]) == (0, []), report["discovered"]


def test_a_second_backward_through_a_freed_graph_is_the_targets_error(tmp_path: pathlib.Path) -> None:
    """The graph no longer knows what the loss was divided by."""
    (tmp_path / "train.py").write_text(
        script("loss = DDP(nn.Linear(8, 1))(torch.randn(4, 8)).mean() / 2\nloss.backward()\nloss.backward()\n")
    )
    status, report = verify(tmp_path, "train.py", "--select", "DDP301")
    (found,) = report["discovered"]
    assert status == 1 and "Trying to backward through the graph a second time" in found["message"], found


def test_a_group_that_asks_for_more_ranks_than_there_are_is_told_at_once(tmp_path: pathlib.Path) -> None:
    """torch waits for minutes, and lets no other thread of the rank look at the time."""
    (tmp_path / "train.py").write_text(
        "import os\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo', rank=int(os.environ['RANK']), world_size=3)\n"
    )
    status, report = verify(tmp_path, "train.py", "--timeout", "60")
    (found,) = report["discovered"]
    assert status == 1 and found["line"] == 3
    assert found["message"].endswith("in init_process_group, which waits for 3 ranks: 2 were started")
    assert all(run["seconds"] < 30 for run in report["runs"]), report["runs"]


def test_an_address_that_nobody_serves_under_torchrun_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nimport torch.distributed as dist\n"
        "rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "dist.init_process_group('gloo', 'tcp://127.0.0.1:1', rank=rank, world_size=world)\n"
    )
    status, report = verify(tmp_path, "train.py", "--timeout", "3")
    (found,) = report["discovered"]
    assert status == 1 and found["line"] == 4 and "none starts one at tcp://127.0.0.1:1" in found["cause"], found

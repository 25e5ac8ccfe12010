"""A small program with one fault, named by its first argument: run under torchrun on gloo, it dies of it.

The line to blame carries a comment `# here: <fault>`.
"""

import ctypes
import datetime
import faulthandler
import os
import pathlib
import resource
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.a, self.b = nn.Linear(4, width), nn.Linear(width, 4)

    def forward(self, x, skip=False):
        return self.a(x) if skip else self.b(self.a(x))


def exception(rank):
    for step in range(3):
        table = {0: "cat", 1: "dog"}
        print(f"step {step}", table[step if rank else 0], flush=True)  # here: exception
        dist.all_reduce(torch.ones(2))


def exception_everywhere(rank):
    dist.barrier()
    raise ValueError("learning rate must be positive")  # here: exception_everywhere


def exception_in_helper(rank):
    def load(index):
        return [1, 2, 3][index]  # here: exception_in_helper

    load(5 if rank == 0 else 1)
    dist.barrier()


def exit_zero(rank):
    dist.barrier()
    if rank == 1:
        os._exit(0)
    dist.all_reduce(torch.ones(2))  # here: exit_zero


def returns_early(rank):
    dist.barrier()
    if rank == 1:
        print("rank 1: nothing to do", flush=True)
        return
    dist.all_reduce(torch.ones(2))  # here: returns_early


def sigkill(rank):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(2))


def sigsegv(rank):
    dist.barrier()
    if rank == 1:
        faulthandler.enable()
        ctypes.string_at(0)  # here: sigsegv
    dist.all_reduce(torch.ones(2))


def sigabrt(rank):
    dist.barrier()
    if rank == 1:
        os.abort()
    dist.all_reduce(torch.ones(2))


def slow_rank(rank):
    dist.barrier()
    if rank == 0:
        time.sleep(9)
    dist.all_reduce(torch.ones(2))  # here: slow_rank


def missing_rank(rank):
    dist.barrier()
    if rank == 0:
        dist.all_reduce(torch.ones(2))  # here: missing_rank
    else:
        time.sleep(12)


def detail_mismatch(rank):
    dist.barrier()
    if rank == 0:
        dist.broadcast(torch.ones(2), 0)
    else:
        dist.all_reduce(torch.ones(2))


def detail_missing(rank):
    dist.barrier()
    if rank == 1:
        time.sleep(30)
    dist.all_reduce(torch.ones(2))  # here: detail_missing


def sizes(rank):
    # Rank 0 aborts in a thread of gloo and prints no line; torchrun may end rank 1 before it has printed its own.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.barrier()
    dist.all_reduce(torch.ones(4 + 2 * rank))  # here: sizes


def monitored(rank):
    if rank == 1:
        time.sleep(10)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=3))  # here: monitored


def unused(rank):
    net = DistributedDataParallel(Net())
    for step in range(3):
        net(torch.randn(2, 4), skip=step == 1).sum().backward()  # here: unused


def static_graph(rank):
    net = DistributedDataParallel(Net(), static_graph=True)
    for step in range(4):
        net(torch.randn(2, 4), skip=step == 2).sum().backward()  # here: static_graph


def inplace(rank):
    net = DistributedDataParallel(Net())
    out = net(torch.randn(2, 4)).sigmoid()
    out.mul_(2)
    out.sum().backward()  # here: inplace


def models_differ(rank):
    DistributedDataParallel(Net(4 + rank))  # here: models_differ


def weights_only(rank):
    import argparse

    path = f"/tmp/ddp_lint_faults_{os.environ['MASTER_PORT']}_{rank}.pt"
    torch.save(argparse.Namespace(lr=1), path)
    try:
        torch.load(path)  # here: weights_only
    finally:
        pathlib.Path(path).unlink()


def prefix(rank):
    wrapped = DistributedDataParallel(Net())
    Net().load_state_dict(wrapped.state_dict())  # here: prefix


def open_files(rank):
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
    if rank == 1:
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]  # here: open_files
        print(files)
    dist.barrier()


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return [0][index]  # here: worker_exception


def worker_exception(rank):
    for _ in torch.utils.data.DataLoader(Broken(), num_workers=1):
        dist.barrier()


class Dying(Broken):
    def __getitem__(self, index):
        os._exit(3)


def worker_exits(rank):
    if rank == 0:
        for _ in torch.utils.data.DataLoader(Dying(), num_workers=1):  # here: worker_exits
            pass
    dist.barrier()


def no_memory(rank):
    if rank == 1:
        torch.empty(1 << 52)  # here: no_memory
    dist.barrier()


def nan_loss(rank):
    loss = torch.tensor(float("nan") if rank == 1 else 1.0)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"loss is {loss.item()}, stopping training")  # here: nan_loss
    dist.barrier()


def uneven(rank):
    net = DistributedDataParallel(Net())
    for step in range(4 - rank):
        print(f"[rank {rank}] step {step}", flush=True)
        net(torch.randn(2, 4)).sum().backward()
    dist.barrier()  # here: uneven


def three_minority(rank):
    dist.barrier()
    if rank == 2:
        dist.broadcast(torch.ones(2), 2)  # here: three_minority
        time.sleep(9)
    dist.all_reduce(torch.ones(2))


#: Faults that show by the timeout of the group.
TIMED_OUT = {"slow_rank", "missing_rank", "uneven", "three_minority", "monitored"}


def meet():
    """Wait until all ranks have imported torch: on a busy machine that takes them unlike times, longer than a timeout
    that is short enough for a test."""
    if "TORCHELASTIC_USE_AGENT_STORE" not in os.environ:
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=datetime.timedelta(seconds=120))
    store.add("here", 1)
    while store.add("here", 0) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.05)


def main():
    fault = sys.argv[1]
    meet()
    # A busy machine may need long to connect the ranks: no fault may become a failed connection, or a timeout that is
    # not its own. With TORCH_DISTRIBUTED_DEBUG=DETAIL the timeout of a group cannot be changed later.
    seconds = 12 if fault == "detail_missing" else 90
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    if fault in TIMED_OUT:
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=4))
    globals()[fault](dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

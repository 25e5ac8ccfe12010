"""What runs after the last line: a thread that is waited for, or a handler that rank 0 alone registers."""

import atexit
import sys
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(2))


def save() -> None:
    time.sleep(1.5 * rank)
    dist.barrier()
    dist.destroy_process_group()


if sys.argv[1] == "thread":
    threading.Thread(target=save).start()
elif rank == 0:
    atexit.register(dist.barrier)  # line: alone

"""Rank 1 ends in the way that the first argument names, while rank 0 waits for it in an all_reduce."""

import atexit
import ctypes
import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.ones(4)
dist.all_reduce(total)
model = torch.nn.Linear(4, 4)
model(total)


def die(how: str) -> None:
    if how == "segv":
        ctypes.string_at(0)  # line: segv
    if how == "os._exit":
        try:
            raise ValueError("lost")
        finally:
            os._exit(0)  # line: os._exit
    if how == "raise":
        raise ValueError("only here")  # line: raise
    if how == "kill":
        os.kill(os.getpid(), 9)  # line: kill
    if how == "busy":
        for _ in range(70):
            began = time.process_time()
            while time.process_time() - began < 0.02:
                pass
            threading.Event().wait(0.08)
    if how == "teardown":
        atexit.register(ctypes.PyDLL(None).sleep, 600)
    if how == "children":  # that a signal to its own session does not reach, and that nobody waits for
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        if not os.fork():
            os.setsid()
        time.sleep(600)
    if how == "hang":
        time.sleep(600)  # line: hang


if rank == 1:
    die(sys.argv[1])
dist.all_reduce(total)  # line: wait

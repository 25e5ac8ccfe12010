"""torchrun; where all ranks are on this machine, its stores listen on the loopback interface alone, as do the ranks'.

PyTorch's own listen on every interface, where any process that reaches the port can read and write their contents.
Besides, it forks the zygote of the launch. `python -m ddp_lint.verify.torchrun` imports torch and then reads from its
standard input, as one line of JSON, what to do: {"fork", "arguments", "environment"}. It ends where there is none.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from typing import Any

gc.disable()  # importing torch makes hundreds of thousands of objects, none of them garbage

import torch.distributed as dist  # noqa: E402 - with the collector at rest

from ddp_lint.lifetime import adopt_orphans, below, end  # noqa: E402
from ddp_lint.verify.child import zygote  # noqa: E402
from ddp_lint.verify.spec import LOOPBACK, loopback_interface  # noqa: E402


class _LocalStore(dist.TCPStore):  # type: ignore[misc]  # PyTorch does not say what it is
    """A store whose server, if this is it, is bound to the loopback interface."""

    def __init__(self, host_name: str, port: int = 0, *args: Any, is_master: bool = False, **kwargs: Any) -> None:
        if is_master and not args:
            listening = socket.socket()
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((LOOPBACK, port))
            listening.listen(socket.SOMAXCONN)
            host_name, port = listening.getsockname()
            kwargs["master_listen_fd"] = listening.detach()  # the store closes it
        super().__init__(host_name, port, *args, is_master=is_master, **kwargs)


def main() -> None:
    """Run torchrun as asked for."""
    line = sys.stdin.readline()
    if not line:
        return
    request = json.loads(line)
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    adopt_orphans()
    if request["fork"]:
        zygote.start()  # before there are threads
    gc.enable()
    if "--standalone" in sys.argv:
        dist.TCPStore = _LocalStore  # before torchrun takes it from there
        if interface := loopback_interface():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    from torch.distributed.run import main as torchrun

    try:
        torchrun()
    finally:
        end(below(os.getpid()))


if __name__ == "__main__":
    main()

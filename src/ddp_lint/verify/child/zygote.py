"""The process that the ranks of a launch are forked from: it has torch imported, so that a rank starts in milliseconds.

It is itself forked from torchrun's process before that starts threads, and after it has imported torch, which thus
happens once for all ranks. Supervisors send requests over a socket in the folder of the launch, one connection for each
process (JSON lines): {"run", "log", "cwd", "environment", "compiles"} is answered by {"pid"} (0: ranks cannot be
forked here), and at its end by {"code"}. A process whose supervisor goes is ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pathlib
import pkgutil
import random
import selectors
import signal
import socket
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from ddp_lint.lifetime import end_with_parent

#: The socket, below the folder of the launch, which is the working directory of all its processes: such a name may
#: not be long.
SOCKET = "zygote"
_POLL = 0.02
#: What wrappers, optimizers and loaders import on their first use, besides what observers need.
_MODULES = ("torch.nn.parallel", "torch.distributed.tensor", "torch.utils.data", "torch._dynamo")
#: What the first compilation imports, which takes as long as a whole run of a small model.
_COMPILER = ("torch._inductor.compile_fx", "torch._dynamo.backends.debugging")
#: Seed of rank 0 where the program sets none: the same in each run, so that runs can be repeated.
_SEED = 6_728_042_131
_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def start() -> None:
    """Fork the zygote from this process, which must have one thread only."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(SOCKET)
    listening.listen(socket.SOMAXCONN)
    if os.fork() == 0:
        try:
            _Zygote(listening).serve()
        finally:
            os._exit(1)
    listening.close()


def import_all() -> None:
    """Import torch and the observers, for all processes that are forked from this one."""
    from ddp_lint.verify.child import observers, patching, rank  # noqa: F401 - for the ranks

    found = pkgutil.iter_modules(observers.__path__, f"{observers.__name__}.")
    _import([*(module.name for module in found), *_MODULES])


def _import(names: Sequence[str]) -> None:
    from ddp_lint.verify.child import patching

    gc.disable()
    with _without_driver():
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    patching.holders_of_functions()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = (
            False  # of operators that libraries have defined, which every rank would take down one by one
        )
    gc.freeze()  # with the little that is garbage: to look for it takes a third of a second
    gc.enable()


def print_to(log: pathlib.Path) -> None:
    """From here on this process prints to the end of a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


def draw_apart(rank: int) -> None:
    """Random numbers that the program does not seed differ between processes; forked ones would all draw alike. CUDA's
    generators do not: each begins with one and the same number."""
    random.seed(_SEED + rank)
    sys.modules["torch"].default_generator.manual_seed(_SEED + rank)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed((_SEED + rank) % (1 << 32))


class Forked:
    """A process that the zygote of this launch has forked, as its supervisor sees it."""

    def __init__(self, run: Sequence[str], log: pathlib.Path, cwd: str, compiles: bool) -> None:
        """`run`: what it is (`_become`); `compiles`: it compiles a model. Raises OSError where there is no zygote, or
        it cannot fork."""
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(SOCKET)
        self._answers = self._connection.makefile("rb")
        about = {"log": str(log), "cwd": cwd, "environment": dict(os.environ), "compiles": compiles}
        request = {"run": list(run), **about}
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid = int(json.loads(self._answers.readline() or b'{"pid": 0}')["pid"])
        self._code: int | None = None
        if not self.pid:
            self._connection.close()
            raise OSError("ranks cannot be forked here")
        self._connection.setblocking(False)

    def poll(self) -> int | None:
        """Its exit code (negative: the signal that ended it), None while it runs."""
        if self._code is None:
            with contextlib.suppress(BlockingIOError):
                # The answer comes in one piece; none at all: the zygote has ended, and what it forked with it.
                answer = self._connection.recv(1 << 10)
                self._code = int(json.loads(answer)["code"]) if answer else -signal.SIGKILL
        return self._code


class _Zygote:
    def __init__(self, listening: socket.socket) -> None:
        end_with_parent()
        self._listening = listening
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        self._forked: dict[int, socket.socket] = {}
        import_all()

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select(_POLL):
                if key.fileobj is self._listening:
                    self._fork(self._listening.accept()[0])
                else:
                    self._end(key.data)
            self._reap()

    def _fork(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as file:
            line = file.readline()
        if not line:
            connection.close()
            return
        request = json.loads(line)
        if request["compiles"] and _COMPILER[0] not in sys.modules:
            _import(_COMPILER)
        pid = 0 if _has_cuda() else os.fork() or self._become(request, connection)
        connection.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        if not pid:
            connection.close()
            return
        self._forked[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ, pid)

    def _become(self, request: Mapping[str, Any], connection: socket.socket) -> NoReturn:
        """In the child: become the requested process, with nothing left of the zygote."""
        try:
            os.setsid()
            self._selector.close()
            for one in (self._listening, connection, *self._forked.values()):
                one.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            print_to(request["log"])
            os.environ.clear()
            os.environ.update(request["environment"])
            os.chdir(request["cwd"])
            draw_apart(int(os.environ.get("RANK", "0")))
            sys.path[0] = request["cwd"]  # as in a Python that was started there with -m
            _main(*request["run"])
        finally:
            os._exit(1)

    def _end(self, pid: int) -> None:
        """The supervisor of a process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._selector.unregister(self._forked[pid])

    def _reap(self) -> None:
        while self._forked:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = self._forked.pop(pid)
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection)
            connection.close()


def _main(what: str, *arguments: str) -> None:
    if what == "rank":
        from ddp_lint.verify.child import rank

        sys.argv = [rank.__file__, *arguments]
        rank.leave(rank.main(*arguments))
    from ddp_lint.verify.child import probe

    probe.main(*arguments)
    sys.stdout.flush()
    os._exit(0)


@contextlib.contextmanager
def _without_driver() -> Iterator[None]:
    """Inside, the presence of a GPU is read from NVML, which does not initialise the CUDA driver."""
    asked = os.environ.get(_NVML)
    os.environ[_NVML] = "1"
    try:
        yield
    finally:
        if asked is None:
            del os.environ[_NVML]
        else:
            os.environ[_NVML] = asked


def _has_cuda() -> bool:
    """The CUDA driver is in use here, which no child could use any more."""
    with contextlib.suppress(OSError):
        for link in pathlib.Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if "nvidia-uvm" in str(link.readlink()):
                    return True
    return False

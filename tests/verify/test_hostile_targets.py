"""Targets that get in the way of who watches them: what each gives, and that nothing of it stays.

A new kind is one entry of `KINDS`. All of them share one launch of `warm`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sys
import time

import pytest

from .warm import Warm

pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

HEAD = """\
import atexit, builtins, os, pathlib, shutil, signal, sys
import torch
import torch.distributed as dist

"""
MEETS = 'dist.init_process_group("gloo")\nrank = dist.get_rank()\ndist.all_reduce(torch.ones(1))\n'
#: Rank 0 alone goes on to a collective.
PARTS = "if rank == 0:\n    dist.all_reduce(torch.ones(1))\n"


@dataclasses.dataclass(frozen=True)
class Kind:
    """A script, the exit status, how its run ends, and what is said of it."""

    name: str
    text: str
    status: int = 0
    outcome: str = "completed"
    says: str = ""


def script(name: str, text: str, status: int = 0, outcome: str = "completed", says: str = "") -> Kind:
    return Kind(name, HEAD + text, status, outcome, says)


#: A process of its own: two of the targets end what starts the ranks.
WARM = Warm()
HANG = (1, "hang", "rank 1 completed")
KINDS = [
    script("deletes its own file", f"{MEETS}pathlib.Path(__file__).unlink(missing_ok=True)\n{PARTS}", *HANG),
    script("closes what it prints to", f"os.close(1); os.close(2)\n{MEETS}{PARTS}", *HANG),
    script("prints where nothing listens", f"{MEETS}os.close(1)\nprint(flush=True)\n", 1, "exception", "OSError: [Errno 9]"),
    script("prints bytes", f"{MEETS}os.write(1, bytes(range(256)) * 99)\nraise ValueError('\\x1b[31m')\n", 1, "exception", "ValueError"),
    script("prints without end", f"{MEETS}for _ in range(4000): os.write(1, b'y' * 999 + b'\\n')\n{PARTS}", *HANG),
    script("catches all", f"{MEETS}try:\n    rank or dist.barrier()\n    raise KeyboardInterrupt\nexcept BaseException:\n    pass\n", 1, "completed"),
    script("leaves at once", f"{MEETS}os._exit(7)\n", 1, "exit", "left by os._exit(7)"),
    script("leaves before the group", "sys.exit(3)\n", 2, "exit", "left by sys.exit(3)"),
    script("leaves as if all were well", "sys.exit(0)\n", 2, "completed", "nothing distributed ran"),
    script("removes its folder", f"{MEETS}os.makedirs(f'{{rank}}/y'); os.chdir(f'{{rank}}/y'); shutil.rmtree(f'../../{{rank}}')\n{PARTS}", *HANG),
    script("sets another environment", f"{MEETS}getattr(os, 'environ').update(RANK='7', WORLD_SIZE='x', TMPDIR='/nowhere')\n{PARTS}", *HANG),
    script("raises at its end", f"{MEETS}@atexit.register\ndef end(): raise ValueError('late')\n"),
    script("never ends its recursion", f"{MEETS}def f(): f()\nf()\n", 1, "exception", "RecursionError"),
    script("takes print away", f"{MEETS}builtins.print = builtins.open = None\n{PARTS}", *HANG),
    script("takes our modules away", f"{MEETS}for name in [n for n in sys.modules if n.startswith('ddp_lint')]: del sys.modules[name]\n{PARTS}", *HANG),
    script("blocks signals", f"{MEETS}signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n{PARTS}", *HANG),
    script("starts a daemon of no environment", f"{MEETS}import subprocess\nsubprocess.Popen(['sleep', '99'], env={{}}, start_new_session=True)\n{PARTS}", *HANG),
    script("leaves a daemon to nobody", f"{MEETS}if not os.fork():\n    os.setsid()\n    if os.fork(): os._exit(0)\n    os.execve('/bin/sleep', ['sleep', '99'], {{}})\n{PARTS}", *HANG),
    script("stops itself", f"{MEETS}rank and os.kill(os.getpid(), signal.SIGSTOP)\n{PARTS}", 1, "hang", "rank 0"),
    script("has a file that is a pipe", f"os.mkfifo(f'p{{os.getpid()}}')\n{MEETS}rank and open(f'p{{os.getpid()}}')\n{PARTS}", 1, "hang", "no progress for 4 s"),
    script("prints itself without end", f"{MEETS}class A:\n    def __repr__(self): return repr(self)\nraise ValueError(A())\n", 1, "exception", "ValueError"),
    script("prints for ever in a thread", f"{MEETS}import threading\nthreading.Thread(target=lambda: [print('y' * 999) for _ in iter(int, 1)], daemon=True).start()\n{PARTS}", *HANG),
    script("writes to every file that is open", f"{MEETS}for n in range(3, 99):\n    try: os.write(n, b'\\xff' * 99)\n    except OSError: pass\n{PARTS}", 1, ""),
    script("closes every file", f"{MEETS}os.closerange(3, 99)\n{PARTS}", 1, ""),
    script("may write no file", f"{MEETS}import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n{PARTS}", 1, ""),
    script("may open no file", f"{MEETS}import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\n{PARTS}", 1, ""),
    script("ends a thread of its own", f"{MEETS}import threading\nt = threading.Thread(target=sys.exit, args=(9,)); t.start(); t.join()\n{PARTS}", *HANG),
    script("ends in a thread", f"{MEETS}import threading, time\nrank and threading.Thread(target=os._exit, args=(9,)).start()\ntime.sleep(1)\n{PARTS}", 1, "exit", "rank 1 left with exit code 9"),
    script("ends with a number of many digits", f"{MEETS}sys.exit(2**99)\n", 1, ""),
    script("ends with an object that ends", f"{MEETS}class A:\n    def __str__(self): sys.exit(self)\nsys.exit(A())\n", 1, ""),
    script("ends with a message of escapes", f"{MEETS}sys.exit('\\x1b[2J\\x00\\ud800' * 9)\n", 1, ""),
    script("raises groups in groups", f"{MEETS}e = ValueError('\\ud800')\nfor n in range(500): e = ExceptionGroup('g', [e])\nraise e\n", 1, "exception", "ExceptionGroup"),
    script("raises a message of 50 MB", f"{MEETS}raise ValueError('\\x1b' * 50_000_000)\n", 1, "exception", "ValueError"),
    script("hangs at its import", "import time\nwhile True: time.sleep(9)\n" + MEETS, 1, "hang"),
    script("reads an address that does not exist", f"{MEETS}import ctypes\nctypes.string_at(8)\n", 1, "", "SIGSEGV"),
    script("ignores what ends it", f"{MEETS}for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n{PARTS}", 1, "hang", "rank 1"),
    script("starts processes that start processes", f"{MEETS}for _ in range(5): os.fork()\nimport time; time.sleep(99)\n", 1, ""),
    script("turns time back", f"{MEETS}import time, json\ntime.time = time.monotonic = time.perf_counter = lambda: -1e300\njson.dumps = repr\n{PARTS}", 1, "hang", "rank 1"),
    script("makes files that nobody may read", f"os.umask(0o777)\n{MEETS}{PARTS}", *HANG),
    script("is no UTF-8 that Python reads", f"# coding: utf-7\n{MEETS}{PARTS}", 1, ""),
    script("watches itself", f"{MEETS}sys.settrace(None); sys.setprofile(lambda *_: None)\n{PARTS}", *HANG),
    # The last ones: they end what starts the ranks, and a run after them pays for its launch.
    script("kills what started it", f"{MEETS}os.kill(os.getppid(), signal.SIGKILL)\n{PARTS}", 1, ""),
    script("kills its group", f"{MEETS}os.killpg(0, signal.SIGKILL)\n", 1, ""),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_target(kind: Kind, tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(kind.text)
    status, report = WARM.verify(tmp_path, "train.py", "--select", "DDP301", "--timeout", "4")
    said = [f"{run['outcome']}: {run['message']}" for run in report["runs"]]
    assert (status, bool(report["discovered"])) == (kind.status, kind.status == 1), said
    assert any(one.startswith(kind.outcome) and kind.says in one for one in said), said
    until = time.monotonic() + 5
    while (left := _below(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


def _below(folder: pathlib.Path) -> list[str]:
    """Processes that work in the folder."""
    found = []
    for path in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if path.name.isdigit() and str((path / "cwd").readlink()).startswith(str(folder)):
                found.append((path / "cmdline").read_text())
    return found

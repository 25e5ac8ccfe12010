"""Runs torchrun once for each fault given as an argument, several at a time, and keeps what it printed in a folder.

    python launch_faults.py FOLDER SCRIPT FAULT...

torchrun is forked from one process that has imported it already: that is a third of what a run costs.
"""

import os
import pathlib
import sys

import torch.distributed.run as torchrun

AT_A_TIME = 4


def launch(fault: str, script: str, folder: pathlib.Path) -> int:
    """The process that is torchrun for this fault."""
    process = os.fork()
    if process:
        return process
    out = os.open(folder / f"{fault}.log", os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if fault.startswith("detail"):
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    ranks = "3" if fault.startswith("three") else "2"
    sys.argv = ["torchrun", "--standalone", f"--nproc-per-node={ranks}", script, fault]
    status = 1
    try:
        torchrun.main(sys.argv[1:])
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    folder, script, faults = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    running: set[int] = set()
    for fault in faults:
        while len(running) >= AT_A_TIME:
            running.discard(os.wait()[0])
        running.add(launch(fault, script, folder))
    while running:
        running.discard(os.wait()[0])


if __name__ == "__main__":
    main()

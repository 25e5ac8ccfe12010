"""Fails where the rank, or a process above it up to torchrun, listens to others than this machine."""

import pathlib

import torch
import torch.distributed as dist

LOOPBACK = ("0100007F:", "0" * 24 + "01000000:")


def is_torchrun(pid: int) -> bool:
    return b"ddp_lint.verify.torchrun" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()


def chain(pid: int) -> list[int]:
    """A process with those above it, up to torchrun (ranks are forked from it, and have its command line)."""
    parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return [pid, *(() if is_torchrun(pid) and not is_torchrun(parent) else chain(parent))]


def listening(pid: int) -> set[str]:
    links = [str(link.readlink()) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    rows = [
        row.split() for name in ("tcp", "tcp6") for row in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links}


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
above = chain(int(pathlib.Path("/proc/self").readlink().name))
found = {address for pid in above for address in listening(pid)}
assert len(above) > 1, above
assert found, "nothing listens"
assert all(address.startswith(LOOPBACK) for address in found), found
dist.destroy_process_group()

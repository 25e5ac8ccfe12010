"""mlfoundations/open_clip: rank 0 alone leaves when its experiment exists already; the others wrap the model."""

import pathlib
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(logs: pathlib.Path) -> int:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0 and logs.exists():
        print("Error. Experiment already exists.")
        return -1
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.randn(2, 4)).sum().backward()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    main(pathlib.Path(tempfile.gettempdir()))

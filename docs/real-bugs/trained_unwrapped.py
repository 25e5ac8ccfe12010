"""huggingface/diffusers: a VAE is trained through what was taken out of its wrapper; its gradients are not averaged."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 2)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    vae = DistributedDataParallel(VAE())
    optimizer = torch.optim.SGD(vae.parameters(), 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(3):
        loss = vae.module.encode(torch.randn(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

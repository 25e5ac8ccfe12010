"""speechbrain/speechbrain: this rank's loss decides whether backward and step run."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
dataset = TensorDataset(torch.randn(4) * torch.tensor([[1.0], [-1.0]]).repeat(8, 1))  # the ranks' losses differ in sign
loader = DataLoader(dataset, batch_size=2, sampler=DistributedSampler(dataset, shuffle=False))
for (batch,) in loader:
    loss = model(batch).mean()
    if loss.item() > 0:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()

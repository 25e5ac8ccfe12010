"""What one process comes to, which wrapped runs are compared with."""

from __future__ import annotations

import pathlib

import pytest

torch = pytest.importorskip("torch")

from ddp_lint.verify.child import reference  # noqa: E402
from ddp_lint.verify.child.inputs import Builder, find_recipe, load  # noqa: E402

MOVING_MEAN = """\
import torch
from torch import nn


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return h - self.mean.clone()


def ddp_lint_example():
    return M(), (torch.randn(4, 4),)
"""


def test_buffers_are_those_of_rank_0_under_ddp_and_each_ranks_own_under_fsdp(tmp_path: pathlib.Path) -> None:
    """A buffer that the output depends on makes another reference of each."""
    path = tmp_path / "model.py"
    path.write_text(MOVING_MEAN)
    module = load(str(path), str(tmp_path))
    builder = Builder(module, "M", find_recipe(module, "M", "ddp_lint_example"))
    twins = {
        wrap: reference.compute(builder, 2, 2, torch.device("cpu"), wrap) for wrap in ("ddp", "fsdp2", "fsdp1", "none")
    }
    weights = {wrap: twin.replicas.parameters["fc.weight"] for wrap, twin in twins.items()}
    assert torch.equal(weights["fsdp2"], weights["fsdp1"]) and torch.equal(weights["ddp"], weights["none"])
    assert not torch.allclose(weights["fsdp2"], weights["ddp"], atol=1e-5)
    assert torch.allclose(weights["fsdp2"], _by_hand(builder), atol=1e-6)


SMALL_GRADIENTS = """\
import torch
from torch import nn


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.out = nn.Conv2d(16, 4, 1)

    def forward(self, x):
        return self.out(self.stem(x))


def ddp_lint_example():
    return M(), (torch.randn(4, 3, 32, 32),)
"""


def test_a_model_whose_gradients_depend_on_the_batch_is_no_mean_over_samples(tmp_path: pathlib.Path) -> None:
    """Batch norm makes the gradients of the layer before it so small that its weights hardly move."""
    path = tmp_path / "model.py"
    path.write_text(SMALL_GRADIENTS)
    module = load(str(path), str(tmp_path))
    builder = Builder(module, "M", find_recipe(module, "M", "ddp_lint_example"))
    twin = reference.compute(builder, 3, 2, torch.device("cpu"), "ddp")
    assert twin.full is not None
    moved = reference.differences(twin.full.parameters, twin.replicas.parameters)
    assert moved["stem.0.weight"] < 1e-5 and not twin.separable, moved


def test_sparse_gradients_are_compared() -> None:
    rows = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]).to_sparse()
    assert reference.differences({"w": rows}, {"w": rows * 2}) == {"w": 4.0}


def _by_hand(builder: Builder) -> torch.Tensor:
    """Two replicas that share nothing but the mean of their gradients."""
    replicas = [builder.build(), builder.build()]
    for step in range(2):
        for rank, replica in enumerate(replicas):
            replica.zero_grad()
            (batch,) = builder.batch(step, rank).args
            replica(batch).square().mean().backward()
        for mine, other in zip(*(replica.parameters() for replica in replicas), strict=True):
            gradient = (mine.grad + other.grad) / 2
            for p in (mine, other):
                p.data -= reference.LEARNING_RATE * gradient
    found: torch.Tensor = replicas[0].fc.weight
    return found

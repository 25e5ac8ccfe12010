"""What a rank writes of its tensors, so that others can be compared with it."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from ddp_lint.verify.child.models import Models  # noqa: E402
from ddp_lint.verify.child.observers.hashes import sketch  # noqa: E402


@pytest.mark.parametrize(("shape", "share"), [((), 1e-6), ((4, 8), 1e-6), ((100, 99), 0.3), ((1300, 1000), 0.3)])
def test_the_distance_of_sketches_is_that_of_the_tensors(shape: tuple[int, ...], share: float) -> None:
    """Also of those that are so large that a sample stands for them."""
    generator = torch.Generator().manual_seed(3)
    one = torch.randn(shape, generator=generator)
    other = one + 0.01 * torch.randn(shape, generator=generator)
    found = math.dist(sketch(one), sketch(other))
    assert found == pytest.approx(float((one.double() - other.double()).norm()), rel=share)
    assert math.dist(sketch(one), sketch(one.clone())) == 0.0


def test_what_has_no_real_values_has_no_sketch() -> None:
    assert (
        sketch(torch.empty(3, device="meta")) == sketch(torch.empty(0)) == sketch(torch.ones(2, dtype=torch.complex64))
    )


def test_parameters_whose_gradients_are_averaged_by_hand_are_compared() -> None:
    """And no others of the model: they may be a part of it that each rank has for itself."""
    root = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    models = Models()
    model = models.add(root)
    assert model.replicated == "none"
    root(torch.ones(1, 2)).sum().backward()
    models.averaged(torch.ones(2))
    assert model.replicated == "none"
    models.averaged(root[1].weight.grad.data)
    models.averaged(root[1].bias.grad)
    assert model.replicated == "by_hand" and list(model.compared()) == ["1.weight", "1.bias"]

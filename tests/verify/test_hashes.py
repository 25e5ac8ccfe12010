"""What a rank writes of its tensors, so that others can be compared with it."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import post_localSGD_hook  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from ddp_lint.verify.child.models import Models  # noqa: E402
from ddp_lint.verify.child.observers.calls import Calls  # noqa: E402
from ddp_lint.verify.child.observers.hashes import digest, sketch  # noqa: E402
from ddp_lint.verify.child.observers.modes import Modes  # noqa: E402
from ddp_lint.verify.child.observers.phases import Phases  # noqa: E402
from ddp_lint.verify.child.recorder import Recorder  # noqa: E402


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


def test_memory_that_was_digested_can_be_freed() -> None:
    """FSDP2 resizes the storages of parameters, also of those that its user has gathered before the forward."""
    tensor = torch.ones(3)
    assert digest(tensor) == digest(torch.ones(3)) != digest(torch.zeros(3))
    tensor.untyped_storage().resize_(0)


def test_parameters_whose_gradients_are_averaged_by_hand_are_compared() -> None:
    """And no others of the model: they may be a part of it that each rank has for itself."""
    root = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    models = Models()
    model = models.add(root)
    assert model.replicated == "none"
    root(torch.ones(1, 2)).sum().backward()
    models.averaged(torch.ones(2), (0, 1))
    assert model.replicated == "none"
    models.averaged(root[1].weight.grad.data, (0, 1))
    models.averaged(root[1].bias.grad, (0, 1))
    assert model.replicated == "by_hand" and list(model.compared()) == ["1.weight", "1.bias"]


def test_a_model_that_is_like_one_under_ddp_is_a_copy_of_it() -> None:
    models = Models()
    wrapped, copied, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)
    models.add(wrapped).wrap = "ddp"
    assert models.add(copied).replicated == "copy"
    assert models.add(other).replicated == "none"


def test_what_ddp_leaves_to_each_rank_is_not_compared() -> None:
    """Neither what it was told to ignore, nor models that its user averages now and then."""
    group = dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert group is None
    try:
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["0.weight", "1.running_mean"])
        models = Models()
        wrapped = DistributedDataParallel(net)
        model = models.add(wrapped)
        assert list(model.compared()) == ["0.bias", "1.weight", "1.bias"] and "1.running_mean" not in model.buffers()
        assert model.replicated == "ddp"
        calls = Calls(cast(Recorder, SimpleNamespace(active=False)), models)
        calls._hook(wrapped, None, post_localSGD_hook)
        assert model.replicated == "none"
    finally:
        dist.destroy_process_group()


class OfTheUser(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    def forward(self, x: Any) -> Any:
        return x


def test_the_files_of_a_wrapped_model_are_told() -> None:
    told: list[Any] = []
    recorder = SimpleNamespace(emit=lambda _, **fields: told.append(fields["arguments"]))
    net = torch.nn.Sequential(OfTheUser(), torch.nn.Linear(2, 2))
    model = SimpleNamespace(replicated="ddp", inner=net)
    Calls(cast(Recorder, recorder), Models()).wrapped(cast(Any, model))
    assert told == [{"classes": {"": "Sequential", "0": "OfTheUser", "1": "Linear"}, "files": [__file__]}]


def test_the_modules_that_evaluate_are_told_when_they_change() -> None:
    told: list[Any] = []
    recorder = SimpleNamespace(active=True, here=lambda: (), emit=lambda _, **fields: told.append(fields["names"]))
    models = Models()
    root = SimpleNamespace(module=torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()))
    models.find = lambda _: SimpleNamespace(wrap="ddp", number=0, shared_number=0, updates=1)  # type: ignore[assignment, method-assign]
    modes = Modes(cast(Recorder, recorder), models)
    for change in (root.module.train, root.module[1].eval, root.module.eval, root.module.eval, root.module.train):
        change()
        modes.before_forward(root)
    with torch.no_grad():
        root.module.eval()
        modes.before_forward(root)
    assert told == [("1",), ("",), ()]


def test_who_is_out_of_batches_trains_nothing() -> None:
    """Inside of `Join` optimizers step on ranks that only answer the others' calls."""
    told: list[Any] = []
    noting = SimpleNamespace(before_step=told.append, after_step=told.append)
    recorder = SimpleNamespace(
        active=True, step=0, enter=lambda _: None, quieted=contextlib.nullcontext, spec=SimpleNamespace(kind="model"),
        emit=lambda *_, **fields: told.append(fields["name"]),
    )  # fmt: skip
    phases = Phases(cast(Recorder, recorder), Models(), cast(Any, [noting]))

    def step() -> None:
        phases._before_step(told, (), {})
        phases._after_step(told, (), {})

    phases._join(step)
    assert told == ["join"] and recorder.step == 0
    step()
    assert recorder.step == 1


def test_models_bear_the_number_that_they_have_on_the_other_ranks() -> None:
    """Where this rank has made another model before, which is of no wrapper."""
    models = Models()
    mine, trained = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    models.add(mine)
    model = models.add(trained)
    model.wrap = "ddp"
    assert (model.number, model.shared_number) == (1, 0)
    assert models.add(torch.nn.Linear(2, 2)).shared_number == 0, "the first without a wrapper that was asked for it"


def test_an_optimizer_that_steps_by_another_one_steps_once() -> None:
    """What it does behind the other one's step belongs to it: it may hand the parameters round."""
    told: list[Any] = []
    noting = SimpleNamespace(before_step=lambda one: told.append(("before", one)), after_step=told.append)
    recorder = SimpleNamespace(
        active=True, step=0, enter=lambda _: None, quieted=contextlib.nullcontext, spec=SimpleNamespace(kind="model")
    )
    phases = Phases(cast(Recorder, recorder), Models(), cast(Any, [noting]))
    outer, inner = object(), object()
    for _ in range(2):
        phases._before_step(outer, (), {})
        phases._before_step(inner, (), {})
        phases._after_step(inner, (), {})
        phases._after_step(outer, (), {})
    assert told == 2 * [("before", outer), outer] and recorder.step == 2
    phases._before_step(outer, (), {})  # and raises
    phases._before_step(inner, (), {})
    told.clear()
    phases._before_step(outer, (), {})
    phases._after_step(outer, (), {})
    assert told == [("before", outer), outer]

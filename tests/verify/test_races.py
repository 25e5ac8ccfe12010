"""Which uses of a tensor race with a collective that nobody has waited for."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from ddp_lint.verify.child.models import Models
from ddp_lint.verify.child.observers.collectives import Collectives
from ddp_lint.verify.child.observers.races import Races, _filled, _Flight, _storages
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.trace import Race

aten, c10d = torch.ops.aten, torch.ops.c10d


@pytest.mark.parametrize(
    ("collective", "op", "access"),
    [
        (c10d.send.default, aten.empty_like.default, ""),
        (c10d.send.default, aten.neg.default, ""),
        (c10d.send.default, aten.zero_.default, "write"),
        (c10d.recv_.default, aten.empty_like.default, ""),
        (c10d.recv_.default, aten.neg.default, "read"),
        (c10d.allreduce_.default, aten.view.default, ""),
        (c10d.allreduce_.default, aten.neg.default, "read"),
        (c10d.allreduce_.default, aten.zero_.default, "write"),
    ],
)
def test_only_what_a_collective_fills_may_not_be_read(collective: Any, op: Any, access: str) -> None:
    emitted: list[dict[str, Any]] = []
    recorder = SimpleNamespace(
        quieted=contextlib.nullcontext, here=tuple, emit=lambda cls, **fields: emitted.append({"cls": cls, **fields})
    )
    races = Races(cast(Recorder, recorder), cast(Models, None), cast(Collectives, None))
    x = torch.ones(4)
    filled = _storages(_filled(collective, {"tensors": [x]}, [x]))
    races._flying = [_Flight(0, None, [x], _storages([x]), filled)]
    races.before(op, (x, [4]) if op is aten.view.default else (x,), {})
    assert [(one["cls"], one["access"]) for one in emitted] == ([(Race, access)] if access else [])


def test_a_gather_fills_its_outputs() -> None:
    x, out = torch.ones(4), torch.empty(8)
    given = {"output_tensor": out, "input_tensor": x}
    assert _filled(c10d._allgather_base_.default, given, [out, x]) == [out]

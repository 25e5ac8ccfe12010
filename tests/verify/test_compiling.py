"""Models under torch.compile: what TorchDynamo makes of them runs, and no code is generated for it."""

from __future__ import annotations

import pathlib

import pytest

pytest.importorskip("torch")

from . import forked

PROGRAM = """
import torch
from ddp_lint.verify.child.compiling import trace_only

graphs = []
trace_only(lambda: graphs.append(1))


@torch.compile
def twice(x):
    y = x * 2
    if y.sum().item() > 0:
        y = y + 1
    return y


x = torch.ones(3, requires_grad=True)
twice(x).sum().backward()
assert x.grad.tolist() == [2.0, 2.0, 2.0] and len(graphs) == 2, graphs


def generates(*_, **__):
    raise AssertionError("inductor has it")


import torch._inductor.compile_fx
torch._inductor.compile_fx.compile_fx = generates
torch._dynamo.reset()
assert twice(x).tolist() == [3.0, 3.0, 3.0]
"""


def test_graphs_run_as_they_are_traced(tmp_path: pathlib.Path) -> None:
    forked.run(PROGRAM, tmp_path)

"""The fixture `ddp_lint` in a suite of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

SUITE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.used = nn.Linear(width, 2)
        self.unused = nn.Linear(width, 2)
    def forward(self, *, x):
        return self.used(x)

def test_ddp(ddp_lint):
    ddp_lint.verify(Net, 6, inputs={"x": torch.randn(4, 6)}, wraps=["ddp"], device="cpu")

def test_local(ddp_lint):
    class Local(nn.Module):
        pass
    ddp_lint.verify(Local)

def test_instance(ddp_lint):
    ddp_lint.verify(nn.Linear(2, 2))

def test_without_it():
    pass
"""


@pytest.mark.launch
def test_the_verdicts_are_the_message(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_model.py").write_text(SUITE)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ddp_lint.pytest_plugin", "test_model.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "3 failed, 1 passed" in done.stdout, done.stdout
    assert "parameters without a gradient: unused.weight, unused.bias" in done.stdout
    assert "forward(x=float32[4, 6])" in done.stdout, "what the model was given is said"
    assert "Local is defined in a function" in done.stdout
    assert "takes the model's class and its arguments" in done.stdout
    assert "Traceback" not in done.stdout

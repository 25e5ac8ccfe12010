"""A first look at an edit: what it finds at once, what it leaves to the check, and where there is none."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.server.workplace import Checked, Document, Workplace

TEXT = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def helper(model):
    return torch.load(model, map_location="cpu")


def load(model, path):
    model.load_state_dict(torch.load(path))


def resume(model, path):
    model.load_state_dict(torch.load(path, map_location="cpu"))


def run(x, model):
    model = DistributedDataParallel(model)
    if dist.get_rank() == 0:
        helper(model)
        torch.save(model.state_dict(), "last.pt")
    return model
"""


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path / "train.py"


def codes(checked: Checked | None) -> list[str]:
    assert checked is not None
    return [f"{f.code}:{f.span.line}" for f in checked.findings]


def test_an_edit_within_a_function_is_looked_at(file: pathlib.Path) -> None:
    workplace = Workplace()
    assert workplace.look(Document(file, TEXT)) is None  # nothing is known of the file
    assert codes(workplace.check(Document(file, TEXT))) == ["DDP401:11"]
    edited = TEXT.replace('torch.load(path, map_location="cpu")', "torch.load(path)")
    assert codes(workplace.look(Document(file, edited))) == ["DDP401:11", "DDP401:15"]
    mended = edited.replace("torch.load(path)", 'torch.load(path, map_location="cpu")', 1)
    assert codes(workplace.look(Document(file, mended))) == ["DDP401:15"]
    assert codes(workplace.check(Document(file, mended))) == ["DDP401:15"]


def test_what_the_edit_means_to_other_functions_is_for_the_check(file: pathlib.Path) -> None:
    workplace = Workplace()
    workplace.check(Document(file, TEXT))
    edited = Document(file, TEXT.replace('(model, map_location="cpu")', '(model, map_location="cpu"), dist.barrier()'))
    assert codes(workplace.look(edited)) == ["DDP401:11"]
    assert codes(workplace.check(edited)) == ["DDP401:11", "DDP101:21"]
    # It names the edited line, and is gone with it.
    again = Document(file, edited.text.replace("dist.barrier()", "dist.get_rank()"))
    assert codes(workplace.look(again)) == ["DDP401:11"]
    assert codes(workplace.check(again)) == ["DDP401:11"]


@pytest.mark.parametrize(
    "edited",
    [
        TEXT.replace("    return model", "    other = model\n    return other"),  # lines move
        TEXT.replace("import torch\n", "import torch as t\n"),  # outside of functions
        TEXT.replace("    return model", "    return ("),  # no Python
    ],
)
def test_any_other_edit_is_checked(file: pathlib.Path, edited: str) -> None:
    workplace = Workplace()
    workplace.check(Document(file, TEXT))
    assert workplace.look(Document(file, edited)) is None
    fresh = Workplace().check(Document(file, edited))
    assert workplace.check(Document(file, edited)).findings == fresh.findings

"""What TARGET means, and what is said when it means nothing."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.verify.options import Options, UsageError
from ddp_lint.verify.target import resolve

MODELS = """
import torch.nn as nn
class Base(nn.Module):
    pass
class Part(nn.Module):
    def forward(self, x): return x
class Whole(Base):
    def __init__(self): self.part = Part()
    def forward(self, x): return self.part(x)
class Other(nn.Sequential):
    pass
"""


def write(folder: pathlib.Path, text: str) -> str:
    path = folder / "target.py"
    path.write_text(text)
    return str(path)


def test_models_are_the_modules_that_no_other_definition_uses(tmp_path: pathlib.Path) -> None:
    target = resolve(write(tmp_path, MODELS), Options())
    assert (target.kind, target.models) == ("model", ("Whole", "Other"))


def test_a_named_class(tmp_path: pathlib.Path) -> None:
    assert resolve(write(tmp_path, MODELS) + ":Part", Options()).models == ("Part",)
    with pytest.raises(UsageError, match="no class 'Hole'; did you mean 'Whole'"):
        resolve(write(tmp_path, MODELS) + ":Hole", Options())


def test_a_dotted_module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('never imported')")
    (package / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    target = resolve("package.models:Whole", Options())
    assert (target.path, target.models) == ((package / "models.py").resolve(), ("Whole",))


@pytest.mark.parametrize(
    "tail",
    [
        "if __name__ == '__main__':\n    dist.init_process_group('nccl')\n",
        "import os\nrank = int(os.environ['LOCAL_RANK'])\nfor batch in []:\n    loss.backward()\n",
    ],
)
def test_a_file_that_trains_is_a_script(tmp_path: pathlib.Path, tail: str) -> None:
    assert resolve(write(tmp_path, MODELS + tail), Options()).kind == "script"


def test_a_self_test_under_the_main_guard_makes_no_script(tmp_path: pathlib.Path) -> None:
    text = MODELS + "if __name__ == '__main__':\n    print(Whole()(1))\n"
    assert resolve(write(tmp_path, text), Options()).kind == "model"


def test_arguments_make_it_a_script(tmp_path: pathlib.Path) -> None:
    target = resolve(write(tmp_path, MODELS), Options(arguments=("--lr", "1")))
    assert (target.kind, target.arguments) == ("script", ("--lr", "1"))


def test_the_example_function_comes_first(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, MODELS + "def ddp_lint_example():\n    return Whole(), (1,)\ndef mine(): pass\n")
    assert resolve(path, Options()).entry == "ddp_lint_example"
    assert resolve(path, Options(entry="mine")).entry == "mine"
    with pytest.raises(UsageError, match="no function 'mime'; did you mean 'mine'"):
        resolve(path, Options(entry="mime"))


@pytest.mark.parametrize(
    ("text", "message"),
    [("X = 1\n", "nothing to run"), ("def f(:\n", "not Python"), (None, "no such file")],
)
def test_nothing_to_run(tmp_path: pathlib.Path, text: str | None, message: str) -> None:
    place = str(tmp_path / "absent.py") if text is None else write(tmp_path, text)
    with pytest.raises(UsageError, match=message):
        resolve(place, Options())

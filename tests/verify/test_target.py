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
    [("X = 1\n", "nothing to run"), ("def f(:\n", r"\.py:1: not Python"), (None, "no such file")],
)
def test_nothing_to_run(tmp_path: pathlib.Path, text: str | None, message: str) -> None:
    place = str(tmp_path / "absent.py") if text is None else write(tmp_path, text)
    with pytest.raises(UsageError, match=message):
        resolve(place, Options())


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    folder = tmp_path / "package" / "inner"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent):
        (path / "__init__.py").write_text("raise RuntimeError('never imported')")
    (folder / "train.py").write_text("from .net import Net\nprint(Net())\n")
    (folder / "plain.py").write_text("import os\nprint(os.environ['LOCAL_RANK'])\n")
    (folder.parent / "__main__.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_module_is_run_as_python_does(package: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = resolve("package.inner.train", Options(module=True, arguments=("--lr", "1")))
    assert (target.kind, target.module, target.root) == ("script", "package.inner.train", tmp_path)
    assert target.path == (package / "train.py").resolve() and target.arguments == ("--lr", "1")
    assert resolve("package", Options(module=True)).path == (tmp_path / "package" / "__main__.py").resolve()
    for name, message in (("package.inner", "without a __main__.py"), ("package.absent", "no module of that name")):
        with pytest.raises(UsageError, match=message):
            resolve(name, Options(module=True))


def test_a_script_that_imports_from_its_package_runs_as_a_part_of_it(package: pathlib.Path) -> None:
    target = resolve(str(package / "train.py"), Options())
    assert (target.module, target.root) == ("package.inner.train", package.parents[1].resolve())
    assert resolve(str(package / "plain.py"), Options()).module == ""


def test_pythonpath(package: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve("package.inner.train", Options(module=True)).path == (package / "train.py").resolve()


@pytest.mark.parametrize(
    "how", ["from base import Base", "from .base import Base as Base", "from lib.base import Base"]
)
def test_a_base_class_in_another_file(tmp_path: pathlib.Path, how: str) -> None:
    text = "from torch import nn\nclass Base(nn.Module):\n    pass\nclass Plain:\n    pass\n"
    (tmp_path / "lib").mkdir()
    for path in (tmp_path / "base.py", tmp_path / "lib" / "base.py"):
        path.write_text(text)
    plain = "class Other(Plain):\n    def run(self, x): return x\n"
    whole = f"{how}\nfrom base import Plain\nclass Net(Base):\n    def call(self, x): return x\n{plain}"
    assert resolve(write(tmp_path, whole), Options()).models == ("Net",)

"""Files that import from the project what is not there."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.launch.importable import cannot_be_imported, is_put_together
from ddp_lint.project import Project

SETUP = "from setuptools import setup\nsetup(name='pkg')\n"


def cannot(root: pathlib.Path, files: dict[str, str], module: str = "train") -> bool:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    project = Project(root)
    facts = project.modules.facts(module)
    assert facts is not None
    return cannot_be_imported(project, facts)


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": "from model import Net\n", "model.py": "class Network: ...\n"},
        {"train.py": "from lib.model import Net\n", "lib/model.py": "class Network: ...\n", "lib/__init__.py": ""},
        {"train.py": "from lib.old.model import Net\n", "lib/new.py": "", "lib/__init__.py": ""},
        {"train.py": "from model import Net\n", "model/__init__.py": "x = 1\n", "model/nets.py": "class Net: ...\n"},
        {"train.py": "from model import Net\n", "model.py": "def build(name):\n    exec(f'from nets import {name}')\n"},
        {"train.py": "from model import Net\n", "model.py": "# from nets import Net\nx = 1\n"},
        {
            "train.py": "from model import Net\n",
            "model/__init__.py": "# from .nets import Net\nfrom .other import *\n",
            "model/other.py": "x = 1\n",
        },
        {"train.py": "from model.loss import L\nfrom model.net import Net\n", "model/loss.py": "L = 1\n"},
    ],
)
def test_a_name_that_is_not_there(tmp_path: pathlib.Path, files: dict[str, str]) -> None:
    assert cannot(tmp_path, files)


def test_a_folder_that_an_import_goes_through_twice(tmp_path: pathlib.Path) -> None:
    files = {"train.py": "", "models/loss.py": "from models.registry import LOSSES\nfrom models.net import Net\n"}
    files |= {"models/registry.py": "LOSSES = 1\n", "models/net.py": "class Net: ...\n"}
    assert not cannot(tmp_path, files, "models.loss")


def test_of_a_package_that_the_project_is(tmp_path: pathlib.Path) -> None:
    files = {"pkg/__init__.py": "", "examples/train.py": "from pkg.gone.model import Net\n"}
    assert not cannot(tmp_path, files, "examples.train")  # another package of that name may be installed
    assert cannot(tmp_path, {**files, "setup.py": SETUP}, "examples.train")


@pytest.mark.parametrize(
    "files",
    [
        {"model.py": "class Net: ...\n"},
        {"model.py": "from torch.nn import *\n"},
        {"model.py": "for name in ['Net']:\n    globals()[name] = type(name, (), {})\n"},
        {"model.py": "def __getattr__(name):\n    return name\n"},
        {"model.py": "try:\n    from fast import Net\nexcept ImportError:\n    Net = None\n"},
        {"model/__init__.py": "", "model/Net.py": ""},
        {"model/__init__.py": "", "model/Net.pyx": ""},
        {"model/__init__.py": "", "model/Net/small.py": ""},
        {"model.py": "for name in ('Ne',):\n    exec(f'{name}t = None')\n"},
        {"model.py": "def load(text):\n    exec(text, globals())\nload('Ne' + 't = 1')\n"},
        {"model/__init__.py": "from .nets import *\n", "model/nets.py": "class Net: ...\n"},
        {"train.py": "try:\n    from model import Net\nexcept ImportError:\n    Net = None\n", "model.py": "x = 1\n"},
        {"train.py": "def build():\n    from model import Net\n", "model.py": "x = 1\n"},
        {"train.py": "import sys\nsys.path.insert(0, 'lib')\nfrom model import Net\n", "model.py": "x = 1\n"},
        {"train.py": "from model import *\n", "model.py": "x = 1\n"},
        {"train.py": "from somewhere import Net\n"},
        {"model/__init__.py": "from .other import *\n", "model/other.py": "from torch.nn import *\n"},
        {
            "train.py": "from model.loss import L\nfrom model.net import Net\n",
            "model/loss.py": "L = 1",
            "model/net.pyi": "",
        },
        {
            "train.py": "from model.loss import L\nfrom model.net import Net\n",
            "model/loss.py": "L = 1",
            "model/net/a.py": "",
        },
        {"train.py": "from model.net import Net\n", "model/loss.py": ""},  # perhaps another package of that name
    ],
)
def test_what_may_be_there(tmp_path: pathlib.Path, files: dict[str, str]) -> None:
    assert not cannot(tmp_path, {"train.py": "from model import Net\n", **files})


@pytest.mark.parametrize(
    ("text", "together"),
    [
        ("x = 1\nfrom __future__ import annotations\n", True),
        ('"""A file."""\nfrom __future__ import annotations\nx = 1\nfrom __future__ import division\n', True),
        ("if __name__ == '__main__':\n    x = 1\n" * 3, True),
        ('"""A file."""\nfrom __future__ import annotations\nfrom __future__ import division\nx = 1\n', False),
        ("if __name__ == '__main__':\n    x = 1\n" * 2, False),
    ],
)
def test_several_programs_in_one_file(tmp_path: pathlib.Path, text: str, together: bool) -> None:
    (tmp_path / "train.py").write_text(text)
    project = Project(tmp_path)
    facts = project.modules.facts("train")
    assert facts is not None
    assert is_put_together(project, facts) is together

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.project import Project
from ddp_lint.project.requirements import requires_older


@pytest.mark.parametrize(
    ("file", "text", "older"),
    [
        ("requirements.txt", "albumentations==1.3.1\n", True),
        ("requirements.txt", "albumentations[imgaug] == 1.4.20\n", True),
        ("requirements.txt", "albumentations>=1.0,<1.4\n", True),
        ("requirements-dev.txt", "albumentations<=0.5.2\n", True),
        ("requirements.txt", "albumentations~=1.3.0\n", True),
        ("environment.yml", "dependencies:\n  - albumentations=1.3.1\n", True),
        ("setup.py", 'setup(install_requires=["torch", "albumentations==1.3.0"])\n', True),
        ("pyproject.toml", 'albumentations = "1.3.0"\n', True),
        ("requirements.txt", "albumentations==1.4.21\n", False),
        ("requirements.txt", "albumentations==2.0.8\n", False),
        ("requirements.txt", "albumentations>=1.3\n", False),
        ("requirements.txt", "albumentations~=1.3\n", False),
        ("requirements.txt", "albumentations<2\n", False),
        ("requirements.txt", "albumentations\ntorch==1.3\n", False),
        ("requirements.txt", "my-albumentations==1.3\n", False),
        ("notes.txt", "albumentations==1.3.1\n", False),
    ],
)
def test_what_is_pinned(tmp_path: pathlib.Path, file: str, text: str, older: bool) -> None:
    (tmp_path / file).write_text(text)
    assert requires_older(Project(tmp_path), "albumentations", "1.4.21") is older


@pytest.mark.parametrize(
    ("page", "text", "older"),
    [
        ("README.md", "Pytorch=1.6.0", True),
        ("README.md", "* pytorch 1.3", True),
        ("README.rst", "The code is tested with Python 3.9, **PyTorch** 1.13.1, and CUDA 11.6.", True),
        ("README.md", "pip install torch==1.8.0+cu111 torchvision==0.9.0+cu111", True),
        ("docs/INSTALL.md", "conda install pytorch==1.12.0 -c pytorch", True),
        ("assets/install.md", "conda install pytorch==1.12.0 -c pytorch", True),
        ("external/install.md", "conda install pytorch==1.12.0 -c pytorch", False),
        ("environment.yml", "dependencies:\n  - pytorch=1.12\n", True),
        (
            "README.md",
            "pip install mmcv-full -f https://download.openmmlab.com/mmcv/dist/cu111/torch1.9.0/index.html",
            True,
        ),
        ("README.md", "pip install torch-scatter -f https://data.pyg.org/whl/torch-1.10.0+cu113.html", True),
        ("README.md", "pip install mmcv-full==1.3.14", True),
        ("requirements.txt", "mmcv-full>=1.3.1,<=1.4.0\n", True),
        ("requirements.txt", "mmcv-full==1.7.1\n", False),
        ("requirements.txt", "mmcv-full>=1.3.1\n", False),
        ("requirements.txt", "mmcv==1.3.14\n", False),
        ("README.md", "pip install torch-scatter -f https://data.pyg.org/whl/torch-2.1.0+cu118.html", False),
        (
            "README.md",
            "* Install PyTorch [v1.7.1](https://pytorch.org/get-started/previous-versions/) and others.",
            True,
        ),
        (
            "README.md",
            "* Install PyTorch [v2.1.0](https://pytorch.org/get-started/previous-versions/) and others.",
            False,
        ),
        ("README.md", "PyTorch 1.6+", False),
        ("README.md", "PyTorch >= 1.8.0 (with torchvision >= 0.9.0)", False),
        ("README.md", "PyTorch 1.8 or later", False),
        ("README.md", "PyTorch 1.8 - 2.1", False),
        ("README.md", "made with PyTorch 1.8.1, since then tested with PyTorch 2.3.0", False),
        ("README.md", "conda install pytorch3d-0.5.0-py38_cu111_pyt180.tar.bz2, torchvision 0.9.0", False),
        ("CHANGES.md", "PyTorch 1.8.1", False),
    ],
)
def test_what_a_page_says(tmp_path: pathlib.Path, page: str, text: str, older: bool) -> None:
    (tmp_path / page).parent.mkdir(exist_ok=True)
    (tmp_path / page).write_text(text)
    assert requires_older(Project(tmp_path), "torch", "2.0") is older


@pytest.mark.parametrize(
    ("file", "text", "older"),
    [
        ("Pipfile", '[packages]\ntorch = "*"\n\n[requires]\npython_version = "3.6"\n', True),
        ("environment.yml", "dependencies:\n  - python=3.7.4=h265db76_1\n  - pytorch\n", True),
        ("Pipfile", '[requires]\npython_version = "3.8"\n', False),
        ("environment.yml", "dependencies:\n  - python=3.10\n  - pytorch\n", False),
        ("environment.yml", "dependencies:\n  - python>=3.6\n  - ipython=3.6\n", False),
        ("requirements.txt", "typing-extensions; python_version == '3.6'\ntorch\n", False),
    ],
)
def test_what_a_python_is_too_old_for(tmp_path: pathlib.Path, file: str, text: str, older: bool) -> None:
    (tmp_path / file).write_text(text)
    assert requires_older(Project(tmp_path), "torch", "2.0") is older


@pytest.mark.parametrize(
    ("files", "older"),
    [
        ({"detection/requirements.txt": "torch==1.12.0\n"}, True),
        (
            {"detection/requirements/base.txt": "x\n", "detection/requirements/requirements.txt": "torch==1.12.0\n"},
            True,
        ),
        ({"requirements.txt": "torch==1.12.0\n"}, True),
        ({"requirements.txt": "torch==1.12.0\n", "detection/requirements.txt": "numpy\n"}, True),
        ({"requirements.txt": "torch==1.12.0\n", "detection/requirements.txt": "torch>=1.10\n"}, False),
        ({"requirements.txt": "torch>=2.1\n", "detection/tools/environment.yml": "- pytorch=1.12\n"}, True),
        ({"segmentation/requirements.txt": "torch==1.12.0\n"}, False),
        ({"README.md": "PyTorch 2.1\n", "detection/README.md": "pip install torch==1.8.1\n"}, True),
        ({"README.md": "PyTorch 1.8.1\n", "detection/README.md": "detects boxes\n"}, True),
        ({"README.md": "PyTorch 1.8.1\n", "detection/README.md": "conda install pytorch==2.1.0\n"}, False),
        ({"segmentation/README.md": "pip install torch==1.8.1\n"}, False),
        ({"detection/requirements.txt": "torch>=1.6\n", "detection/tools/README.md": "PyTorch 1.7.1\n"}, True),
        ({"detection/requirements.txt": "torch>=1.6\n", "README.md": "PyTorch 1.7.1\n"}, False),
    ],
)
def test_the_nearest_folder_that_limits_a_package_counts(
    tmp_path: pathlib.Path, files: dict[str, str], older: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert requires_older(Project(tmp_path), "torch", "2.0", "detection/tools/train.py") is older


@pytest.mark.parametrize("name", ["pytorch-lightning", "pytorch_lightning"])
def test_names_that_pip_takes_for_one(tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"{name}==1.9.0\n")
    assert requires_older(Project(tmp_path), "pytorch_lightning", "2.1")

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.project import Project
from ddp_lint.project.requirements import asks_for_older


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
    assert asks_for_older(Project(tmp_path), "albumentations", "1.4.21") is older

"""What takes long is done once, and only where a rule can use it."""

from __future__ import annotations

import pathlib

from ddp_lint.project import Project
from ddp_lint.project.handed_on import wrapping_functions


def test_files_that_wrapping_ones_import_are_not_read_for_their_names(tmp_path: pathlib.Path) -> None:
    texts = {
        "train.py": "import torch\nfrom models import Net\nfrom torch.nn.parallel import DistributedDataParallel as D\n"
        "def wrap(net):\n    return D(net)\n",
        "models.py": "class Net: ...\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    project = Project(tmp_path)
    assert set(wrapping_functions(project, "ddp")) == {"train.wrap"}
    assert project.known_facts(tmp_path / "models.py") is None

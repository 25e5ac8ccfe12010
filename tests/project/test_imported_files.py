"""The files that one file imports, directly or not."""

from __future__ import annotations

import pathlib

from ddp_lint.project import Project
from ddp_lint.project.dependents import imported_files


def test_the_nearest_come_first_with_the_packages_around_them(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    files = {
        "train.py": "import os\nfrom pkg import a, \\\n    b\n# import unused\n",
        "pkg/__init__.py": "",
        "pkg/a.py": "def f():\n    from .sub import deep\n",
        "pkg/b.py": "from . import a\nimport train\n",
        "pkg/sub/__init__.py": "",
        "pkg/sub/deep.py": "from ..c import x\n",
        "pkg/c.py": "x = 1\n",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = [path.relative_to(tmp_path).as_posix() for path in imported_files(tmp_path / "train.py", Project(tmp_path))]
    assert found[0] == "train.py" and set(found[1:4]) == {"pkg/a.py", "pkg/b.py", "pkg/__init__.py"}
    assert set(found[4:]) == {"pkg/sub/__init__.py", "pkg/sub/deep.py", "pkg/c.py"}

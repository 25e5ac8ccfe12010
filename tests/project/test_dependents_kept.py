"""Imports that are kept from run to run."""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from ddp_lint.project import Project, dependents


def test_imports_are_read_again_where_a_file_or_the_layout_has_changed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependents, "YOUNG", 0)
    for name, text in {"a.py": "import b\n", "b.py": "import c\n", "c.py": "", "d.py": "import os\n"}.items():
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (time.time() - 100,) * 2)
    kept = tmp_path / ".ddp_lint_cache"
    kept.mkdir()
    read: list[str] = []
    imported = dependents._imported
    monkeypatch.setattr(
        dependents, "_imported", lambda path, project: read.append(path.name) or imported(path, project)
    )

    def found() -> tuple[list[str], list[str]]:
        read.clear()
        files = sorted(tmp_path.glob("*.py"))
        told = dependents.dependents(files, [tmp_path / "c.py"], Project(tmp_path), kept)
        return sorted(path.name for path in told), sorted(read)

    everything = ["a.py", "b.py", "c.py", "d.py"]
    assert found() == (["a.py", "b.py"], everything)
    assert found() == (["a.py", "b.py"], [])
    (tmp_path / "d.py").write_text("from a import x\n")
    assert found() == (["a.py", "b.py", "d.py"], ["d.py"])
    (tmp_path / "e.py").write_text("import d\n")
    assert found() == (["a.py", "b.py", "d.py", "e.py"], [*everything, "e.py"])
    (kept / "imports.json").write_text("[" * 100_000)
    assert found() == (["a.py", "b.py", "d.py", "e.py"], [*everything, "e.py"])

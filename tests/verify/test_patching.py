"""Functions of other packages are replaced wherever they are, and as soon as they are there."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import sys
from types import ModuleType

import pytest

from ddp_lint.verify.child import patching


def test_everyone_who_waits_for_a_module_is_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "awaited.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[tuple[str, int]] = []

    def waits(name: str) -> None:
        def notice(module: ModuleType) -> None:
            told.append((name, module.value))

        patching.when_imported("awaited", notice)

    before = list(sys.meta_path)
    waits("first")
    waits("second")
    assert importlib.util.find_spec("awaited") is not None, "many packages ask so whether another one is there"
    assert told == []
    importlib.import_module("awaited")
    waits("late")
    assert told == [("first", 1), ("second", 1), ("late", 1)]
    assert sys.meta_path == before
    del sys.modules["awaited"]


def test_modules_are_gone_through_again_only_when_one_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    holders = patching._holders
    monkeypatch.setattr(patching, "_holders", lambda modules: looks.append(len(modules)) or holders(modules))
    patching.holders_of_functions()
    looks.clear()
    for _ in range(3):
        patching.holders_of_functions()
    assert not looks
    late = ModuleType("torch.late")
    late.function = len  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.late", late)
    assert (late, "function") in patching.holders_of_functions()[id(len)] and len(looks) == 1
    monkeypatch.delitem(sys.modules, "torch.late")
    patching.holders_of_functions()

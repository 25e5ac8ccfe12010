"""What a target compiles is kept where torch keeps it: `verify` leaves no folder of its own behind."""

from __future__ import annotations

import os
import pathlib
import pwd
import tempfile

import pytest

from ddp_lint.verify.pool import processes


@pytest.mark.parametrize("user", ["", "a", "a/b:c", "nobody at all"])
def test_the_cache_of_compiled_code_is_that_of_torch(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    if user:
        monkeypatch.setenv("USER", user)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with processes(tmp_path) as environment:
        assert environment["TORCHINDUCTOR_CACHE_DIR"] == default_cache_dir()


def test_a_user_without_a_name_has_a_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with processes(tmp_path) as environment:
        assert environment["TORCHINDUCTOR_CACHE_DIR"].endswith(f"/torchinductor_uid_{os.getuid()}")


def test_a_cache_that_is_set_stays(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    with processes(tmp_path) as environment:
        assert environment["TORCHINDUCTOR_CACHE_DIR"] == "/mine"

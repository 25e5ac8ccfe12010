"""What a target prints must not fill the disk."""

from __future__ import annotations

import pathlib

from ddp_lint.verify.spec import keep_end


def test_of_what_is_printed_without_end_the_end_is_kept(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as printed:
        printed.write(b"first\n" + b"y" * 9_999_993 + b"\n")
        keep_end(log)
        assert log.read_bytes().startswith(b"first\n")
        printed.write(b"z" * 9_999_999 + b"\n")
        keep_end(log)
        printed.write(b"last\n")
    assert len(log.read_bytes()) < 2_000_000
    assert log.read_bytes().endswith(b"z\nlast\n")


def test_what_is_printed_nowhere_is_not_shortened(tmp_path: pathlib.Path) -> None:
    keep_end(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())

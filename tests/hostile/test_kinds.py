"""Every kind of hostile input gives what the table says: in bounds of time and memory, without a traceback."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import re
import resource
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from ddp_lint.cli import main

from .kinds import GOOD, KINDS, Kind

#: What no kind comes near, beside what the process of the tests has: bounds, not timings.
MEMORY, SECONDS = 3 * 2**30, 30
#: All rules, the costly ones that are off by default too; one process, so that the bounds hold for all of the run.
COMMON = ["--select", "ALL", "--preview", "--jobs", "1", "--output-format", "concise", "--color", "never"]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs fork, and limits that hold")


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a check imports and reads is there before processes are forked, and no search for garbage copies it."""
    good = tmp_path_factory.mktemp("warm") / "good.py"
    good.write_text(GOOD)
    CliRunner().invoke(main, ["check", *COMMON, str(good)])
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    yield tmp_path
    remove = ["rm", "-rf", tmp_path]  # deeper than Python would remove
    for _ in range(50):  # a kind may still write there for some seconds
        if not subprocess.run(remove, check=False).returncode:
            return
        time.sleep(0.1)
    subprocess.run(remove, check=True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kind(kind: Kind, place: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (place / "good.py").write_text(GOOD)
    for name, content in kind.files.items():
        _make(place / name, content)
    status, out = _checked(kind, place, tmp_path_factory.mktemp("out") / "said")
    assert (status, kind.says in out) == (kind.status, True), out[:2000]
    assert not re.search(r"Traceback|DDP001|please report", out), out[:2000]
    assert not kind.others or kind.verb != "check" or "good.py:4:5: DDP101" in out
    assert not [c for c in out if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"]
    assert not re.search(r"^\s*::|##\[|##vso\[", out, re.MULTILINE)


def test_there_are_enough_kinds_and_each_has_a_name_of_its_own() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 120


def _make(path: pathlib.Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else str(content).encode("utf-8", "surrogateescape"))


def _checked(kind: Kind, folder: pathlib.Path, said: pathlib.Path) -> tuple[int, str]:
    """The exit status and all that is said, of a process of its own with bounds."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            _run(kind, folder, said)
        os._exit(99)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, said.read_text(errors="replace")


def _run(kind: Kind, folder: pathlib.Path, said: pathlib.Path) -> None:
    os.chdir(folder)
    given = os.open(said.with_suffix(".in"), os.O_RDWR | os.O_CREAT)
    os.write(given, kind.stdin)
    os.lseek(given, 0, os.SEEK_SET)
    os.dup2(given, 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (an open handle)
    handle = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115 (open handles)
    beside = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (beside + MEMORY, beside + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        common = COMMON if kind.verb == "check" else ()
        main([kind.verb, *common, *kind.args], prog_name="ddp-lint")
    except SystemExit as e:
        if not sys.stdout.closed:  # as the server leaves it
            sys.stdout.flush()
        os._exit(int(e.code or 0))
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.flush()
        raise

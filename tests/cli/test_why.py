"""`check --why FILE:LINE` and `check -v`: the reason for every silence."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

import pytest

from .conftest import Check

SOURCE = """\
import time

import torch.distributed as dist


def save(model, rank, flag, group):
    dist.barrier()
    if rank == 0:
        dist.barrier()
    else:
        time.sleep(1)
        dist.barrier()
    if flag:
        dist.all_reduce(model.x)
    model.sync()
    for _ in range(3):
        dist.all_reduce(model.x)
    if dist.get_rank() == 0:
        dist.broadcast(model.y, 0)
"""
REASONS = {
    7: "`dist.barrier` is not reported: every rank runs this",
    9: "`dist.barrier` is not reported: equal events: ",
    11: "`time.sleep` is not reported: not known to communicate",
    14: "`dist.all_reduce` is not reported: the guard is uniform: nothing here makes `flag` differ",
    15: "`model.sync` is not reported: not known to communicate: the callee is not resolved",
    17: "`dist.all_reduce` is not reported: every rank runs this",
    19: "`dist.broadcast` is reported: DDP101 ",
}


@pytest.mark.parametrize("line", REASONS)
def test_the_reason_is_told(check: Check, project: pathlib.Path, line: int) -> None:
    (project / "m.py").write_text(SOURCE)
    result = check("--why", f"m.py:{line}")
    assert result.exit_code == 0
    assert result.stdout.startswith(REASONS[line])
    assert f"--> m.py:{line}:" in result.stdout


def test_what_is_reported_but_suppressed_says_so(check: Check, project: pathlib.Path) -> None:
    (project / "m.py").write_text(SOURCE.replace("(model.y, 0)", "(model.y, 0)  # noqa"))
    said = check("--why", "m.py:19").stdout
    assert said.startswith("`dist.broadcast` is not reported: its rule is off, or it is suppressed")


DOUBTS = """\
import torch.distributed as dist


def share(rows, out, group, mesh):
    for name in {row.name for row in rows}:
        dist.all_gather_object(out, name)
    if dist.get_rank(group) != mesh.get_local_rank("tp"):
        dist.barrier()
"""


def test_the_doubt_is_told(check: Check, project: pathlib.Path) -> None:
    (project / "m.py").write_text(DOUBTS)
    rows = check("-v").stderr.splitlines()
    assert rows[0] == (
        "m.py:6: `dist.all_gather_object` is not reported: in doubt: it is the same call for every element"
    )
    assert rows[1].startswith("m.py:8: `dist.barrier` is not reported: in doubt: `dist.get_rank(group) == mesh.")
    assert rows[1].endswith("` may be the same on all ranks of the group")


def test_what_other_files_ask_of_a_file_is_told_apart(check: Check, project: pathlib.Path) -> None:
    helper = "import torch.distributed as dist\n\ndef sync(x):\n" + "    x = x + 1\n" * 500 + "    dist.all_reduce(x)\n"
    (project / "b.py").write_text(helper)
    (project / "a.py").write_text("import torch.distributed as dist\nfrom b import sync\n\ndef f(x):\n    sync(x)\n")
    rows = [row for row in check("-v", "a.py").stderr.splitlines() if "CPU s" in row]
    told = {row.split()[3].rstrip(","): row.endswith(" of them for other files that use it") for row in rows}
    assert told["b.py"] and not told["a.py"]


def test_what_is_held_back_in_a_test_says_so(check: Check, project: pathlib.Path) -> None:
    (project / "test_m.py").write_text(SOURCE)
    said = "`dist.broadcast` is not reported: findings in a test are shown only with --preview"
    assert check("--why", "test_m.py:19").stdout.startswith(said)
    assert f"test_m.py:19: {said}" in check("-v").stderr
    assert check("--preview", "--why", "test_m.py:19").stdout.startswith("`dist.broadcast` is reported: DDP")


def test_verbose_lists_every_silence(check: Check, project: pathlib.Path) -> None:
    (project / "m.py").write_text(SOURCE)
    result = check("-v", "--output-format", "concise")
    told = {int(row.split(":")[1]) for row in result.stderr.splitlines() if " is not reported: " in row}
    assert told == {7, 9, 12, 14, 17}
    assert "1 file checked in" in result.stderr
    assert "DDP101" in result.stdout


def test_verbose_checks_each_file_once(check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "m.py").write_text(SOURCE)
    (project / "plain.py").write_text("def add(a, b):\n    return max(a, b)\n")
    roots, checked = [], []

    def counted(module: str, name: str, seen: list[str]) -> None:
        of = importlib.import_module(module)
        original = getattr(of, name)

        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(getattr(first, "name", ""))
            return original(first, *args, **kwargs)

        monkeypatch.setattr(of, name, call)

    counted("ddp_lint.divergence.why", "graph_of", roots)
    for module in ("ddp_lint.engine.runner", "ddp_lint.cli.why"):
        counted(module, "check_paths", checked)
    assert "m.py:7: " in check("-v", "-j1", "--no-cache").stderr
    assert len(checked) == 1  # what the run has found is known
    assert "save" in roots
    assert "add" not in roots  # it cannot communicate


def test_verbose_tells_of_classes_with_more_bases_than_count(check: Check, project: pathlib.Path) -> None:
    chain = "".join(f"class N{n + 1}(N{n}):\n    pass\n" for n in range(64))
    (project / "m.py").write_text(f"import torch.distributed as dist\nclass N0:\n    pass\n{chain}")
    told = [row for row in check("-v").stderr.splitlines() if "inherits from" in row]
    said = "inherits from very many classes: the 64 nearest were looked at"
    assert told == [f"m.py:128: `N63` {said}", f"m.py:130: `N64` {said}"]


def test_verbose_tells_of_messages_that_were_not_followed(check: Check, project: pathlib.Path) -> None:
    loop = "    for n in range({}):\n        seen = n\n    dist.send(x, 1)\n\n\n"
    (project / "m.py").write_text(
        f"import torch.distributed as dist\n\n\ndef few(x):\n{loop.format(9)}def many(x):\n{loop.format(10**6)}"
    )
    told = [row for row in check("-v").stderr.splitlines() if "not followed" in row]
    said = "the sends and receives of `many` were not followed: the programs of the file take too many steps"
    assert told == [f"m.py:10: {said}"]


def test_where_there_is_nothing(check: Check, project: pathlib.Path) -> None:
    (project / "m.py").write_text(SOURCE)
    assert check("--why", "m.py:2").stdout == "m.py:2: there is no call here\n"
    (project / "bad.py").write_text("def (\n")
    (project / "binary.py").write_bytes(b"\0")
    for place, said in {
        "bad.py:1": "bad.py cannot be parsed: ", "binary.py:1": "binary.py cannot be read",
        "gone.py:1": "gone.py: no such file", "m.py:0": "m.py has no line 0", "m.py:99": "m.py has no line 99",
    }.items():  # fmt: skip
        result = check("--why", place)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {said}")

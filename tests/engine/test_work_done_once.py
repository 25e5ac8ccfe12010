"""What takes long is done once, and only where a rule can use it."""

from __future__ import annotations

import ast
import pathlib
import re
from typing import Any

import libcst as cst
import pytest

from ddp_lint.config import Configuration, Overrides
from ddp_lint.engine.checking import Checker
from ddp_lint.launch import cuda, one_process, search, single_process
from ddp_lint.project import Project, handed_on
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.handed_on import wrapping_functions
from ddp_lint.rules.wrapping.ddp625_keys_of_another_wrap import KeysOfAnotherWrap
from ddp_lint.tensors import TensorFile


def _check(path: pathlib.Path, code: str, files: dict[str, str]) -> set[int]:
    """The lines of the findings of one rule in the first of these files."""
    for name, text in files.items():
        (path / name).write_text(text)
    settings = Configuration(Overrides(select=(code,), preview=True)).of(path)
    result = Checker(settings).check(path / next(iter(files)))
    assert not result.error
    return {finding.span.line for finding in result.findings}


SETS = """import torch
import torch.distributed as dist

def prepare(rank):
    x = 1
    return x

def start(rank):
    prepare(rank)
    prepare(rank)
    torch.ones(1, device="cuda")
    torch.cuda.set_device(rank)

def main(rank):
    dist.init_process_group("nccl", rank=rank)
    prepare(rank)
    start(rank)
"""


def test_what_a_function_does_first_with_a_gpu_is_looked_up_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[tuple[object, int]] = []
    within = cuda.Initialiser.within

    def noted(self: cuda.Initialiser, facts: ModuleFacts, body: list[ast.stmt], depth: int = 3) -> cuda.Place | None:
        if depth == 3:  # asked for by itself, not on the way through a caller
            entered.append((self.counts, body[0].lineno))
        return within(self, facts, body, depth)

    monkeypatch.setattr(cuda.Initialiser, "within", noted)
    assert _check(tmp_path, "DDP404", {"m.py": SETS}) == {11}
    assert len(entered) == len(set(entered))


@pytest.mark.parametrize("rank", ["rank", "int(os.environ['LOCAL_RANK'])"])
def test_whether_one_node_runs_a_file_is_searched_for_a_local_rank(
    rank: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    importers = search.programs

    def noted(project: Project, name: str, *, holding: tuple[str, ...]) -> object:
        searched.append(name)
        return importers(project, name, holding=holding)

    monkeypatch.setattr(single_process, "programs", noted)
    text = f"import os\nimport torch.distributed as dist\n\ndef f(rank):\n    dist.init_process_group(rank={rank})\n"
    found = _check(tmp_path, "DDP406", {"m.py": text})
    assert found == ({5} if rank != "rank" else set())
    assert searched == ["m"] * len(found)


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
    assert project.modules.known_facts(tmp_path / "models.py") is None


@pytest.mark.parametrize("text", ["def f(x): ...\n", "def wrap(net):\n    return DDP(net)\n"])
def test_callers_of_wrapping_functions_are_looked_for_where_there_are_any(
    text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.py").write_text(f"from torch.nn.parallel import DistributedDataParallel as DDP\n{text}")
    looked: list[object] = []
    wrappings = handed_on._wrappings

    def noted(project: Project, facts: ModuleFacts, kind: handed_on.Kind, known: handed_on.Wrappings) -> object:
        looked.append(facts)
        return wrappings(project, facts, kind, known)

    monkeypatch.setattr(handed_on, "_wrappings", noted)
    found = wrapping_functions(Project(tmp_path), "ddp")
    assert len(looked) == (2 if found else 1)


READS = """import torch

def norm(x):
    return x.norm().item()

def other(x):
    return x.norm().item()

def clip(model):
    for p in model.parameters():
        norm(p.grad)
"""


def test_tensors_are_followed_where_a_read_can_be_for_every_gradient(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: set[str] = set()
    flow = TensorFile.flow

    def noted(self: TensorFile, function: cst.FunctionDef) -> object:
        followed.add(function.name.value)
        return flow(self, function)

    monkeypatch.setattr(TensorFile, "flow", noted)
    assert _check(tmp_path, "DDP304", {"m.py": READS}) == {4}
    assert followed == {"norm"}


class _Counted:
    """A pattern that notes how often it is searched for."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.searches = 0

    def search(self, text: str) -> re.Match[str] | None:
        self.searches += 1
        return self._pattern.search(text)


def test_what_a_whole_file_shows_is_searched_for_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = _Counted(one_process._ON_TPUS)
    monkeypatch.setattr(one_process, "_ON_TPUS", counted)
    loads = "".join(f"    model.load_state_dict(torch.load('last{i}.pt'))\n" for i in range(20))
    head = "import torch\nfrom torch.nn.parallel import DistributedDataParallel\n\n"
    body = f"def f(model):\n    model = DistributedDataParallel(model)\n{loads}"
    assert len(_check(tmp_path, "DDP401", {"m.py": head + body})) == 20
    assert counted.searches == 1


def test_a_state_that_is_loaded_is_compared_with_those_saved_at_its_path(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []
    is_same = KeysOfAnotherWrap._is_same

    def noted(self: KeysOfAnotherWrap, *states: Any) -> bool:
        compared.append(states)
        return is_same(self, *states)

    monkeypatch.setattr(KeysOfAnotherWrap, "_is_same", noted)
    saves = "".join(f"    torch.save(ddp.state_dict(), 'a{i}.pt')\n" for i in range(20))
    loads = "".join(f"    ddp.module.load_state_dict(torch.load('a{i}.pt'))\n" for i in range(10, 30))
    head = "import torch\nfrom torch.nn.parallel import DistributedDataParallel\n\n"
    body = f"def f(model):\n    ddp = DistributedDataParallel(model)\n{saves}{loads}"
    assert _check(tmp_path, "DDP625", {"m.py": head + body}) == set(range(26, 36))
    assert len(compared) == 10

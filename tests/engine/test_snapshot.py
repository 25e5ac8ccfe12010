"""What has changed in a project since results were kept: found by the states of its files, then by their content."""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.engine.snapshot import Snapshot
from ddp_lint.grouping import grouped, words_of
from ddp_lint.project import Project, states
from ddp_lint.project.answers import Answers
from ddp_lint.project.words import WordSearch

from .samples import ALL, HAZARD, OPS, check, codes, write


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "project"
    write(root, {"ops.py": OPS, "a.py": HAZARD, "sub/__init__.py": "", "sub/b.py": "import torch\n"})
    _age(root)
    return root


def _age(root: pathlib.Path) -> None:
    """Let all files be old enough for their times to count."""
    past = time.time() - 100
    for path in root.rglob("*.py"):
        os.utime(path, (past, past))


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file counts at once: the tests change its size."""
    monkeypatch.setattr(states, "YOUNG", 0)


def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that are asked of the project from now on, to find out whether a result holds."""
    questions: list[str] = []
    answer = Answers.answer

    def noted(self: Answers, question: str) -> str:
        questions.append(question)
        return answer(self, question)

    monkeypatch.setattr(Answers, "answer", noted)
    return questions


def test_where_nothing_has_changed_nothing_is_asked(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = root / ".ddp_lint_cache"
    first = check(root, cache=cache)
    questions = asked(monkeypatch)
    second = check(root, cache=cache)
    assert (second.statistics.cached, questions) == (4, [])
    assert second.findings == first.findings and codes(second) == ["DDP250"]


@pytest.mark.parametrize("change", ["content", "new file", "file gone", "time alone"])
def test_what_has_changed_is_seen(root: pathlib.Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = root / ".ddp_lint_cache"
    check(root, cache=cache)
    if change == "content":
        write(root, {"ops.py": "def softmax(x, dim):\n    return x\n"})
    elif change == "new file":
        write(root, {"ops/__init__.py": "def softmax(x, dim):\n    return x\n"})
    elif change == "file gone":
        (root / "ops.py").unlink()
    else:
        os.utime(root / "ops.py", (1, 1))
    questions = asked(monkeypatch)
    report = check(root, cache=cache)
    assert questions
    assert codes(report) == (["DDP250"] if change == "time alone" else [])
    questions.clear()
    assert check(root, cache=cache).findings == report.findings
    assert not questions


def test_a_file_that_changed_a_moment_ago_is_read_again(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "YOUNG", 10**12)
    cache = root / ".ddp_lint_cache"
    check(root, cache=cache)
    questions = asked(monkeypatch)
    assert check(root, cache=cache).statistics.cached == 4
    assert questions


def test_words_are_found_again_without_a_search(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> dict[str, list[str]]:
        project = Project(root)
        kept = Snapshot(project, root / "kept")
        words = {
            word: sorted(p.name for p in project.contents.holding(word)) for word in ("torch", "softmax(", "class A")
        }
        kept.add_words(project.contents.searched())
        kept.write()
        return words

    first = found()
    assert first == {"torch": ["a.py", "b.py", "ops.py"], "softmax(": ["a.py"], "class A": []}
    with monkeypatch.context() as patch:
        patch.setattr(WordSearch, "_content", None)
        assert found() == first
    write(root, {"sub/c.py": "class A: pass\n", "a.py": "import os\n"})
    (root / "sub" / "b.py").unlink()
    after = {"torch": ["ops.py"], "softmax(": [], "class A": ["c.py"]}
    assert found() == found() == after


def test_the_words_that_grouping_asks_for_are_kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = "import torch.distributed as dist\nfrom saving import save\n\nif dist.get_rank() == 0:\n    save()\n"
    saving = "import torch.distributed as dist\n\ndef save():\n    dist.barrier()\n"
    write(tmp_path, {"a.py": caller, "b.py": caller, "saving.py": saving})
    _age(tmp_path)
    cache = tmp_path / ".ddp_lint_cache"
    first = check(tmp_path, cache=cache)
    told = grouped(first.findings, Project(tmp_path))
    project = Project(tmp_path)
    files = sorted(tmp_path.glob("*.py"))
    monkeypatch.setattr(WordSearch, "_content", None)
    again = check_paths(files, Settings(tmp_path, ALL), cache_dir=cache, project=project)
    assert words_of(again.findings) == ["save("]
    assert grouped(again.findings, project) == told
    assert len(told) < len(first.findings)


def test_the_index_of_words_finds_what_a_search_through_all_files_finds(tmp_path: pathlib.Path) -> None:
    texts = {
        "a.py": "train_step(x)\nclass Model: pass\nmodel.step()\n",
        "b.py": "step (x)\nsteps = 1\nclass ModelOutput: pass\n",
        "c.py": "# é step\nx = 'path/to.pt'\n",
        "d.py": "def step(x): ...\nasync def schritté(): ...\ncpdef name(): ...\n",
        "e.py": "    def step(self): ...\ndef steps(): ...\n# def name()\n",
    }
    write(tmp_path, texts)
    paths = sorted(str(path) for path in tmp_path.glob("*.py"))
    plain, indexed = WordSearch(lambda: paths), WordSearch(lambda: paths)
    indexed.prepare()
    words = ["step(", ".step(", "class Model", "step", "st", "é", "to.pt", "path/to.pt", "= ", "(x)", "nothing", "é s"]
    words += ["def step(", "def name(", "def steps(", "def schritté(", "def nothing("]
    for word in words:
        holding = [path for path in paths if word in pathlib.Path(path).read_text(encoding="utf-8")]
        assert list(plain.holding(word)) == list(indexed.holding(word)) == holding, word

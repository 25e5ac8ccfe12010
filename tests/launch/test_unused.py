"""Definitions that nothing uses, and what may use them after all."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence

LEFT = pathlib.Path(__file__).parents[1] / "fixtures" / "failures" / "DDP503_left" / "left.py"
RUNNER = """import left


class Runner:
    def begin(self):
        print("begin")

    def go_on(self):
        left.training()


if __name__ == "__main__":
"""


@pytest.mark.parametrize(
    ("other", "confidence"),
    [
        ("import importlib\nf = getattr(importlib.import_module(m), name)\nprint('training')", Confidence.MEDIUM),
        ("import importlib\nf = getattr(importlib.import_module(m), name)\nprint('working')", Confidence.LOW),
        ("print('training')", Confidence.LOW),  # nothing looks for a function by a name
        ("import left\nleft.training()", Confidence.MEDIUM),
        ("# training of the other model\ndone = 1", Confidence.LOW),
        (f"{RUNNER}    Runner().begin()", Confidence.LOW),  # a method that nothing calls uses it
        (f"{RUNNER}    Runner().go_on()", Confidence.MEDIUM),
    ],
)
def test_a_word_that_many_files_hold(tmp_path: pathlib.Path, other: str, confidence: Confidence) -> None:
    for number in range(30):
        (tmp_path / f"file{number}.py").write_text("# for training\n")
    (tmp_path / "other.py").write_text(f"{other}\n")
    shutil.copy(LEFT, tmp_path)
    (finding,) = check_paths([tmp_path / "left.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


LOOKS_UP = "import importlib\nf = getattr(importlib.import_module(m), name)\n"


@pytest.mark.parametrize(
    ("files", "confidence"),
    [
        ({}, Confidence.LOW),
        ({"find.py": LOOKS_UP}, Confidence.LOW),
        ({"find.py": LOOKS_UP, "conf.yaml": "start: training\n"}, Confidence.MEDIUM),
        ({"find.py": LOOKS_UP, "conf.yaml": "start: trainings\n"}, Confidence.LOW),
        ({"find.py": "import importlib\nf = getattr(importlib.import_module(m), f'{n}ing')\n"}, Confidence.MEDIUM),
    ],
)
def test_a_name_that_the_settings_may_give(
    tmp_path: pathlib.Path, files: dict[str, str], confidence: Confidence
) -> None:
    shutil.copy(LEFT, tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (finding,) = check_paths([tmp_path / "left.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


STARTS = """import multiprocessing

import torch.distributed as dist


def work(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)


class Pool{base}:
    def start_old_parts(self):
        worker = multiprocessing.Process(target=work, args=(0,))
        worker.start()
        worker.join()
"""


@pytest.mark.parametrize(
    ("files", "confidence"),
    [
        ({}, Confidence.LOW),  # an old copy, which nothing mentions
        ({"train.py": "import pools_old\npools_old.Pool().start_old_parts()\n"}, Confidence.MEDIUM),
        ({"conf.yaml": "pool: pools_old\n"}, Confidence.MEDIUM),
        ({"train.py": "name = 'pools_old'\n"}, Confidence.MEDIUM),
        (
            {"setup.py": "from setuptools import setup\nsetup(name='pools')\n"},
            Confidence.MEDIUM,
        ),  # for others to import
        ({"run.py": ""}, Confidence.MEDIUM),  # nor anything beside it
    ],
)
def test_a_file_that_nothing_imports(tmp_path: pathlib.Path, files: dict[str, str], confidence: Confidence) -> None:
    (tmp_path / "pools_old.py").write_text(STARTS.replace("{base}", ""))
    (tmp_path / "pools.py").write_text(STARTS.replace("{base}", ""))
    (tmp_path / "run.py").write_text("import pools\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (finding,) = check_paths([tmp_path / "pools_old.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


@pytest.mark.parametrize(
    ("imports", "confidence"),
    [
        ("import_module('parts.current')", Confidence.LOW),
        ("__import__('os')", Confidence.LOW),
        ("import_module(name)", Confidence.LOW),  # nothing has the name of the file
        ("import_module(name)\n    print('parts.replaced', 'Other', x.start_old_parts)", Confidence.MEDIUM),
        ("import_module('parts.' + name)", Confidence.MEDIUM),
        (
            "import_module('parts.' + name)\n    print('replaced')",
            Confidence.LOW,
        ),  # nothing has a name of what it holds
        ("import_module('parts.' + name).Other().start_old_parts()", Confidence.MEDIUM),
        ("import_module(f'parts.{name}').Other().start_old_parts()", Confidence.MEDIUM),
        ("vars(import_module(f'parts.{name}'))", Confidence.MEDIUM),
    ],
)
def test_a_file_beside_one_that_is_imported(tmp_path: pathlib.Path, imports: str, confidence: Confidence) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "replaced.py").write_text(STARTS.replace("{base}", "").replace("Pool", "Other"))
    (tmp_path / "parts" / "current.py").write_text(STARTS.replace("{base}", ""))
    imported = "from parts.current import Pool\nfrom importlib import import_module\n"
    (tmp_path / "run.py").write_text(f"{imported}\nif __name__ == '__main__':\n    {imports}\n")
    path = tmp_path / "parts" / "replaced.py"
    (finding,) = check_paths([path], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


@pytest.mark.parametrize(
    ("base", "use", "confidence"),
    [
        ("", "Pool()", Confidence.LOW),
        ("", "Pool()  # .start_parts()", Confidence.LOW),
        ("", "Pool()\nclass Copy:\n    def start_parts(self): pass", Confidence.LOW),
        ("", "Pool()\ndef parts():\n    start_parts = 1\n    return start_parts", Confidence.LOW),
        ("", "Pool()\nclass Copy:\n    start_parts = None\n    begin = start_parts", Confidence.LOW),
        ("", "Pool().start_parts()", Confidence.MEDIUM),
        ("", "Pool()\nOther().start_parts()", Confidence.MEDIUM),  # it may be of this class as well
        ("", "call(Pool(), 'start_parts')", Confidence.MEDIUM),
        ("(framework.Callback)", "Pool()", Confidence.MEDIUM),  # the framework may call it
    ],
)
def test_a_method_that_nothing_mentions(tmp_path: pathlib.Path, base: str, use: str, confidence: Confidence) -> None:
    text = f"import framework\n{STARTS.replace('{base}', base)}".replace("start_old_parts", "start_parts")
    (tmp_path / "pools.py").write_text(text)
    (tmp_path / "train.py").write_text(f"from pools import Pool\n{use}\n")
    (finding,) = check_paths([tmp_path / "pools.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


@pytest.mark.parametrize(
    ("call", "confidence"),
    [
        ('getattr(self, f"start_{kind}")()', Confidence.MEDIUM),
        ('getattr(self, "start_" + kind)()', Confidence.MEDIUM),
        ("getattr(self, kind)()", Confidence.MEDIUM),
        ("getattr(self, kind, 0)", Confidence.LOW),
        ('getattr(self, "begin")(kind)', Confidence.LOW),
    ],
)
def test_a_method_that_its_class_finds_by_name(tmp_path: pathlib.Path, call: str, confidence: Confidence) -> None:
    text = STARTS.replace("{base}", "").replace("start_old_parts", "start_parts")
    (tmp_path / "pools.py").write_text(f"{text}\n    def begin(self, kind):\n        return {call}\n")
    (tmp_path / "train.py").write_text("from pools import Pool\nPool().begin('parts')\n")
    (finding,) = check_paths([tmp_path / "pools.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


INSIDE = """import sys
import torch.multiprocessing as mp


def train(kind):
    def start_parts():
        workers = [mp.Process(target=print) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def print_parts():
        print("parts")

    {use}
    print(kind)


if __name__ == "__main__":
    train("parts")
"""


@pytest.mark.parametrize(
    ("use", "confidence"),
    [
        ("print_parts()", Confidence.LOW),
        ("print_parts()  # start_parts()", Confidence.LOW),
        ("print_parts(start_parts=1)", Confidence.LOW),
        ("start_parts()", Confidence.MEDIUM),
        ("run(start_parts)", Confidence.MEDIUM),
        ("locals()[f'start_{kind}']()", Confidence.MEDIUM),
    ],
)
def test_a_function_inside_another_one(tmp_path: pathlib.Path, use: str, confidence: Confidence) -> None:
    (tmp_path / "train.py").write_text(INSIDE.replace("{use}", use))
    (finding,) = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


CALLERS = """

    def begin_old(self):
        self._begin()

    def _begin(self):
        self.start_parts()
        {more}
"""


@pytest.mark.parametrize(
    ("more", "use", "confidence"),
    [
        ("print(1)", "Pool()", Confidence.LOW),
        ("self.begin_old()", "Pool()", Confidence.LOW),
        ("print(1)", "Pool()  # .begin_old()", Confidence.LOW),
        ("print(1)", "Pool().begin_old()", Confidence.MEDIUM),
        ("other._begin()", "Pool()", Confidence.LOW),
        ("print(1)", "Pool()\nother._begin()", Confidence.MEDIUM),  # of an object that is not seen
        ("print(self.start_parts)", "Pool()", Confidence.LOW),
        ("print(self.start_parts)", "Pool().begin_old()", Confidence.MEDIUM),
    ],
)
def test_methods_that_call_each_other(tmp_path: pathlib.Path, more: str, use: str, confidence: Confidence) -> None:
    text = STARTS.replace("{base}", "").replace("start_old_parts", "start_parts") + CALLERS.replace("{more}", more)
    (tmp_path / "pools.py").write_text(text)
    (tmp_path / "train.py").write_text(f"from pools import Pool\n{use}\n")
    (finding,) = check_paths([tmp_path / "pools.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


@pytest.mark.parametrize(
    ("defined", "confidence"),
    [("def eval(model):\n    print(model)\n", Confidence.LOW), ("", Confidence.MEDIUM)],
)
def test_a_function_of_its_own_named_eval(tmp_path: pathlib.Path, defined: str, confidence: Confidence) -> None:
    text = LEFT.read_text().replace(
        'if __name__ == "__main__":', f'{defined}\n\nif __name__ == "__main__":\n    eval(1)'
    )
    assert "eval(1)" in text
    (tmp_path / "left.py").write_text(text)
    (finding,) = check_paths([tmp_path / "left.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


@pytest.mark.parametrize(
    ("decorator", "use", "confidence"),
    [
        ("", "import pickle\nPool(pickle.load(open('x', 'rb')))", Confidence.LOW),  # what another package has
        ("", "import tools\nPool(tools.load('x'))", Confidence.LOW),  # a function
        ("", "from tools import kept\nPool(kept.load('x'))", Confidence.MEDIUM),
        ("", "Pool()\nhelp = 'which weights to load'", Confidence.LOW),  # prose
        ("", "call(Pool(), 'load')", Confidence.MEDIUM),
        ("", "Pool().load()", Confidence.MEDIUM),
        ("", "Pool()\ndef run(model):\n    model.load()", Confidence.LOW),  # that nothing calls itself
        ("", "Pool()\ndef run(model):\n    model.load()\nrun(other)", Confidence.MEDIUM),
        ("@torch.no_grad()", "Pool()", Confidence.LOW),  # the decorator keeps no method
        ("@torch.no_grad()", "Pool().load()", Confidence.MEDIUM),
        ("@register", "Pool()", Confidence.MEDIUM),
    ],
)
def test_what_only_looks_like_a_use(tmp_path: pathlib.Path, decorator: str, use: str, confidence: Confidence) -> None:
    (tmp_path / "tools.py").write_text("def load(path): ...\n\n\nkept = make()\n")
    text = STARTS.replace("{base}", "").replace("start_old_parts", "load")
    text = text.replace("    def load", f"    {decorator}\n    def load") if decorator else text
    (tmp_path / "pools.py").write_text(f"import torch\nfrom registry import register\n{text}")
    (tmp_path / "train.py").write_text(f"from pools import Pool\n{use}\n")
    (finding,) = check_paths([tmp_path / "pools.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert finding.confidence is confidence


LAUNCHES = "    subprocess.run(['torchrun', '--nproc_per_node=2', 'train.py'])\n"


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        (f"@unittest.skip('slow')\ndef test_training():\n{LAUNCHES}", True),
        (f"@pytest.mark.skip\ndef test_training():\n{LAUNCHES}", True),
        (
            f"@pytest.mark.skip(reason='slow')\nclass TestIt:\n    def test_training(self):\n    {LAUNCHES}",
            True,
        ),
        (f"pytestmark = [pytest.mark.gpu, pytest.mark.skip('slow')]\ndef test_training():\n{LAUNCHES}", True),
        (f"pytestmark = pytest.mark.skip('slow')\ndef train():\n{LAUNCHES}", False),
        (f"pytestmark = pytest.mark.skipif(SMALL, reason='slow')\ndef test_training():\n{LAUNCHES}", False),
        (f"@unittest.skipIf(SMALL, 'slow')\ndef test_training():\n{LAUNCHES}", False),
        (f"@unittest.skip('slow')\ndef test_other():\n    pass\n\ndef test_training():\n{LAUNCHES}", False),
        (f"def test_training():\n    if SMALL:\n        pytest.skip('slow')\n{LAUNCHES}", False),
    ],
)
def test_a_test_that_is_skipped(tmp_path: pathlib.Path, text: str, skipped: bool) -> None:
    head = "import os\nimport subprocess\nimport unittest\n\nimport pytest\n\nSMALL = 'SMALL' in os.environ\n\n"
    (tmp_path / "test_training.py").write_text(head + text)
    (finding,) = check_paths([tmp_path / "test_training.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert (finding.confidence is Confidence.LOW) is skipped


@pytest.mark.parametrize("first", ["raise unittest.SkipTest('slow')", "pytest.skip('slow')", "self.skipTest('slow')"])
def test_a_test_that_skips_itself(tmp_path: pathlib.Path, first: str) -> None:
    text = f"import subprocess\nimport unittest\n\nimport pytest\n\n\ndef test_training(self):\n    {first}\n{LAUNCHES}"
    (tmp_path / "test_training.py").write_text(text)
    found = check_paths([tmp_path / "test_training.py"], Settings(tmp_path, frozenset({"DDP503"}))).findings
    assert not found


SUMMARY = """import torch.distributed as dist


class Loading:
    def load(self, path):
        dist.barrier()
        {call}

    def summarize_times(self):
        if dist.get_rank() == 0:
            dist.barrier()
{more}

def load(path):
    Loading().load(path)
"""


@pytest.mark.parametrize(
    ("call", "more", "confidence"),
    [
        ("# self.summarize_times()", "", Confidence.LOW),
        ("self.summarize_times()", "", Confidence.MEDIUM),
        ("# summarize_times, which takes long, is for others", "", Confidence.MEDIUM),
        (
            "# self.summarize_times()",
            "\n    def __getattr__(self, name):\n        return self.summarize_times\n",
            Confidence.MEDIUM,
        ),
    ],
)
def test_a_method_whose_only_call_is_a_comment(
    tmp_path: pathlib.Path, call: str, more: str, confidence: Confidence
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "loading"\n')
    package = tmp_path / "loading"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "load.py").write_text(SUMMARY.format(call=call, more=more))
    (finding,) = check_paths([package / "load.py"], Settings(tmp_path, frozenset({"DDP101"}))).findings
    assert finding.confidence is confidence

"""Arms that no call of the project asks for: none of the values that a name is given leads to them."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Confidence

TRAIN = """import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main():
    dist.init_process_group("nccl")
    model = torch.nn.Linear(2, 2)

    def save(epoch, is_best=False, path=None):
        if {test}:
            worker = mp.Process(target=main)
            worker.start()
            worker.join()

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    for epoch in range(3):
        ddp(torch.ones(2)).sum().backward()
        save({given})
    {also}


if __name__ == "__main__":
    main()
"""

TOP = """import torch.multiprocessing as mp


def work(rank):
    print(rank)


def start(count, several=False):
    if several:
        workers = [mp.Process(target=work, args=(rank,)) for rank in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    start({given})
"""


def _confidence(tmp_path: pathlib.Path, text: str) -> list[Confidence]:
    (tmp_path / "train.py").write_text(text)
    report = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP503"})))
    return [finding.confidence for finding in report.findings]


@pytest.mark.parametrize(
    ("test", "given", "also", "is_met"),
    [
        ("is_best", "epoch", "", False),
        ("epoch and is_best", "epoch", "", False),
        ("path is not None", "epoch", "", False),
        ("not is_best", "epoch", "", True),
        ("path is None", "epoch", "", True),
        ("is_best or epoch", "epoch", "", True),
        ("is_best", "epoch, is_best=True", "", True),
        ("is_best", "epoch, epoch == 2", "", True),
        ("is_best", "epoch, **{}", "", True),
        ("is_best", "epoch", "model.save = save", True),
    ],
)
def test_what_no_call_asks_for(tmp_path: pathlib.Path, test: str, given: str, also: str, is_met: bool) -> None:
    (found,) = _confidence(tmp_path, TRAIN.format(test=test, given=given, also=also))
    assert (found is not Confidence.LOW) is is_met


@pytest.mark.parametrize(("given", "is_met"), [("2", False), ("2, True", True), ("*[2]", True)])
def test_functions_at_the_top(tmp_path: pathlib.Path, given: str, is_met: bool) -> None:
    (found,) = _confidence(tmp_path, TOP.format(given=given))
    assert (found is not Confidence.LOW) is is_met


def test_others_may_call_what_is_installed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "setup.py").write_text("from setuptools import setup\n\nsetup(name='train', py_modules=['train'])\n")
    (found,) = _confidence(tmp_path, TOP.format(given="2"))
    assert found is not Confidence.LOW


@pytest.mark.parametrize(
    ("also", "is_met"),
    [
        ("", True),
        ("[tool.uv]\nmanaged = true\n", False),
        ("[tool.uv.sources]\ntorch = { index = 'cpu' }\n", False),
        ("[tool.uv]\npackage = true\n", True),
        ("[tool.uv]\n\n[build-system]\nrequires = ['hatchling']\n", True),
    ],
)
def test_uv_installs_no_project_without_a_build_system(tmp_path: pathlib.Path, also: str, is_met: bool) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'train'\nversion = '1'\n\n{also}")
    (found,) = _confidence(tmp_path, TOP.format(given="2"))
    assert (found is not Confidence.LOW) is is_met


SCHEMES = """import sys

import torch
import torch.distributed as dist


class Rounding(torch.nn.Module):
    def __init__(self, scheme="naive", strict=False):
        super().__init__()
        self.scheme = scheme
        self.strict = strict if scheme == "naive" else False

    def check(self):
        if len(self.scheme) > 20:
            print("Error: invalid scheme")
            sys.exit()

    def apply_to(self, model):
        {method}


def convert(model, scheme):
    return convert_by(model, 2, scheme=scheme)


def convert_by(model, bits, scheme):
    kind = "one"
    if {first}:
        model.round()
    elif {second}:
        model.double()
    else:
        print("Error: invalid scheme")
        sys.exit()


def main(args):
    dist.init_process_group("nccl")
    model = torch.nn.Linear(2, 2)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    {call}
    Rounding({made}).apply_to(model)
    ddp(torch.ones(2)).sum().backward()


if __name__ == "__main__":
    main(sys.argv)
"""


def _leaves(tmp_path: pathlib.Path, **parts: str) -> list[bool]:
    """Whether each finding in the program is met by a run."""
    given = {"method": "pass", "first": "bits", "second": "bits", "call": "pass", "made": ""} | parts
    (tmp_path / "train.py").write_text(SCHEMES.format(**given))
    report = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP501"})))
    return [finding.confidence is not Confidence.LOW for finding in report.findings]


@pytest.mark.parametrize(
    ("first", "second", "call", "is_met"),
    [
        ('scheme == "naive"', 'scheme == "prob"', 'convert(model, "naive")', False),
        ('scheme in ["naive", "prob"]', "bits == 4", 'convert(model, scheme="prob")', False),
        ('scheme == "naive"', 'scheme == "prob"', 'convert(model, "naive"); convert(model, "prob")', False),
        ('scheme == "naive"', 'scheme != "naive"', 'convert(model, "other")', False),
        ("scheme is None", "not scheme", 'convert(model, "")', False),
        ("len(scheme) > 2", 'scheme == "prob"', 'convert(model, "prob")', False),
        ('kind == "two"', 'kind == "one"', "convert(model, args[1])", False),
        # near misses
        ('scheme == "naive"', 'scheme == "prob"', 'convert(model, "other")', True),
        ('scheme == "naive"', 'scheme == "prob"', 'convert(model, "naive"); convert(model, args[1])', True),
        ('scheme == "naive"', 'scheme == "prob"', 'convert(model, "naive"); args.append(convert)', True),
        ('scheme == "naive"', 'scheme == "prob"', 'convert(model, *["naive"])', True),
        ('scheme.lower() == "naive"', 'scheme == "prob"', 'convert(model, "naive")', True),
        ("scheme is True", "scheme == 2", "convert(model, 1)", True),
        ('kind == "two"', 'kind == "three"', "convert(model, args[1])", True),
    ],
)
def test_what_all_calls_give(tmp_path: pathlib.Path, first: str, second: str, call: str, is_met: bool) -> None:
    assert _leaves(tmp_path, first=first, second=second, call=call)[-1] is is_met


@pytest.mark.parametrize(
    ("method", "made", "also", "is_met"),
    [
        ("if self.strict: self.check()", "", "", False),
        ('if self.scheme != "naive": self.check()', "strict=True", "", False),
        ("if self.strict: self.check()", "", "class Strict(Rounding):\n    pass\n", True),
        ("if self.strict: self.check()", "", "def set(rounding):\n    rounding.strict = True\n", True),
        ("if self.strict: self.check()", "", "SCHEMES = [Rounding]\n", True),
        ("if self.strict: self.check()", "strict=True", "", True),
        ('if self.scheme != "naive": self.check()', "args[1]", "", True),
        ("if self.training: self.check()", "", "", True),
        ("self.check() if self.strict else model.round(); self.check()", "", "", True),
    ],
)
def test_what_an_object_is_made_with(tmp_path: pathlib.Path, method: str, made: str, also: str, is_met: bool) -> None:
    (tmp_path / "other.py").write_text(f"from train import Rounding\n\n\n{also}")
    assert _leaves(tmp_path, method=method, made=made)[0] is is_met


TRAINED = """import sys

import torch
import torch.distributed as dist


class Net(torch.nn.Module):
    def {name}(self, mode=True):
        if not mode:
            print("Error: it cannot be evaluated")
            sys.exit()


if __name__ == "__main__":
    dist.init_process_group("nccl")
    net = Net()
    net.{name}()
    torch.nn.parallel.DistributedDataParallel(net)
    net.eval()
"""


@pytest.mark.parametrize(("name", "is_met"), [("train", True), ("prepare_for", False)])
def test_torch_calls_methods_itself(tmp_path: pathlib.Path, name: str, is_met: bool) -> None:
    (tmp_path / "train.py").write_text(TRAINED.format(name=name))
    (found,) = check_paths([tmp_path / "train.py"], Settings(tmp_path, frozenset({"DDP501"}))).findings
    assert (found.confidence is not Confidence.LOW) is is_met


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("start: 3", False),  # a key of the settings calls nothing
        ("To start it, edit the settings.", False),
        ("from train import start", True),
        ("`start(3, several=True)` has several processes.", True),
        ("run: train:start", True),
    ],
)
def test_a_text_that_calls_a_function(tmp_path: pathlib.Path, text: str, is_met: bool) -> None:
    (tmp_path / "README.md").write_text(text)
    (found,) = _confidence(tmp_path, TOP.replace("{given}", "2"))
    assert (found is not Confidence.LOW) is is_met


IN_FOLDER = """import os
import torch.multiprocessing as mp


def work(rank):
    print(rank)


def start(folder=None):
    {above}
    if folder is None:
        folder = None
        workers = [mp.Process(target=work, args=(rank,)) for rank in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    print(folder)


if __name__ == "__main__":
    start({given})
"""


@pytest.mark.parametrize(
    ("given", "above", "is_met"),
    [
        ("os.path.join('a', 'b')", "", False),
        ("f'{os.getcwd()}/a'", "", False),
        ("os.environ.get('FOLDER')", "", True),
        ("None", "", True),
        ("os.path.join('a', 'b')", "folder = os.environ.get('FOLDER')", True),
    ],
)
def test_a_parameter_that_is_asked_for_before_it_is_set(
    tmp_path: pathlib.Path, given: str, above: str, is_met: bool
) -> None:
    (found,) = _confidence(tmp_path, IN_FOLDER.replace("{given}", given).replace("{above}", above))
    assert (found is not Confidence.LOW) is is_met


@pytest.mark.parametrize(("also", "is_met"), [("", False), ("from train import start\nstart(2, True)\n", True)])
def test_a_name_that_many_files_have(tmp_path: pathlib.Path, also: str, is_met: bool) -> None:
    for number in range(30):
        (tmp_path / f"file{number}.py").write_text("def start():\n    print('other')\n")
    (tmp_path / "use.py").write_text(also)
    (found,) = _confidence(tmp_path, TOP.format(given="2"))
    assert (found is not Confidence.LOW) is is_met


ABOVE = """import torch.multiprocessing as mp


def work(rank):
    print(rank)


class Starter:
    def __init__(self, count):
        {above}
        if {test}:
            workers = [mp.Process(target=work, args=(rank,)) for rank in range(count)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

    def choose(self, count):
        self.several = count > 1


def start(count, kind):
    starter = Starter(count)
    starter.several = kind == "several"
    return starter


if __name__ == "__main__":
    start(2, "one")
"""


@pytest.mark.parametrize(
    ("above", "test", "is_met"),
    [
        ("self.several = False", "self.several", False),
        ("self.several = False; self.count = count", "self.several", True),
        ("self.several = False\n        self.count = 2", "count > 1 and self.several", False),
        ("self.several = False\n        self.choose(count)", "self.several", True),
        ("several = False\n        print(count)", "several", False),
        ("several = False\n        several |= count > 1", "several", True),
        ("several = count > 1", "several", True),
        ("self.several = True", "self.several", True),
    ],
)
def test_what_is_set_right_above_decides(tmp_path: pathlib.Path, above: str, test: str, is_met: bool) -> None:
    (found,) = _confidence(tmp_path, ABOVE.format(above=above, test=test))
    assert (found is not Confidence.LOW) is is_met

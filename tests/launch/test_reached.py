"""What the programs of a project come to, by one walk over what the code names."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.launch.reached import walk
from ddp_lint.launch.reached.names import FileNames, names_of
from ddp_lint.launch.reached.walk import is_never_reached_from_programs, is_reached_from, reached
from ddp_lint.project import Project
from ddp_lint.project.changing import change
from ddp_lint.source import SourceFile

#: The function that is asked about is in `parts/losses.py`, beside one that is called.
LOSSES = """import torch


def used(x):
    return x


def total(x):
    return x.sum()


class Head(torch.nn.Module):
    def forward(self, x):
        return x

    def restore(self, path):
        return path


class Deep(Head):
    pass
"""
NOTEBOOK = """{"cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": null,
"source": ["from parts.losses import total"]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"""
START = "\n\nif __name__ == '__main__':\n    "


def _project(folder: pathlib.Path, files: dict[str, str]) -> Project:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Project(folder)


def _is_left(project: Project, file: str, text: str) -> bool:
    facts = project.modules.facts_of(project.root / file)
    assert facts is not None
    line = facts.source.text.split("\n").index(text) + 1
    return is_never_reached_from_programs(project, facts, line)


@pytest.mark.parametrize(
    ("program", "is_left"),
    [
        ("from parts.losses import used{start}used(1)", True),
        ("from parts.losses import total, used{start}used(1)", True),  # imported alone
        ("from parts.losses import total{start}total(1)", False),
        ("from parts import losses{start}losses.total(1)", False),
        ("import parts.losses{start}parts.losses.total(1)", False),
        ("from parts.losses import *{start}total(1)", False),
        ("from parts.losses import total as of_all{start}of_all(1)", False),
        ("from parts.losses import used{start}total = used(1)\n    print(total)", True),
        ("import parts.losses as total{start}print(total.used)", True),
        ("from parts import losses{start}getattr(losses, 'total')(1)", False),
        ("from parts import losses{start}getattr(losses, name)(1)", False),
        ("from parts import losses{start}losses.__dict__[name](1)", False),
        ("from parts.losses import *{start}globals()[name](1)", False),
        ("from parts.losses import *{start}globals()['total'](1)", False),
        ("from parts.losses import *{start}print(globals()['__file__'])", True),
        ("from parts.losses import used{start}getattr(options, name)", True),  # of no module
        ("import parts.losses\n\n\ndef one():\n    parts.losses.total(1){start}print(1)", True),  # that nothing calls
        ("import parts.losses\n\n\ndef one():\n    parts.losses.total(1){start}one()", False),
        ("import parts.losses\n\n\nclass A:\n    def one(self):\n        parts.losses.total(1){start}A()", True),
        ("import parts.losses\n\n\nclass A:\n    def one(self):\n        parts.losses.total(1){start}A().one()", False),
        ("import parts.losses\n\n\nclass A:\n    def __call__(self):\n        parts.losses.total(1){start}A()", False),
        ("import parts.losses\n\n\n@register\ndef one():\n    parts.losses.total(1){start}print(1)", False),
        ("import parts.losses\n\n\n@torch.no_grad()\ndef one():\n    parts.losses.total(1){start}print(1)", True),
        ("import parts.losses\nimport lib\n\n\nclass A(lib.B):\n    def one(self):\n        parts.losses.total(1)"
         "{start}A()", False),  # the other package may call it
        ("import parts.losses\nimportlib.import_module(name){start}print('total')", False),
    ],
)  # fmt: skip
def test_a_function(tmp_path: pathlib.Path, program: str, is_left: bool) -> None:
    files = {"train.py": program.format(start=START), "parts/__init__.py": "", "parts/losses.py": LOSSES}
    assert _is_left(_project(tmp_path, files), "parts/losses.py", "    return x.sum()") is is_left


@pytest.mark.parametrize(
    ("program", "is_left"),
    [
        ("from parts.losses import Head{start}Head()(1)", True),
        ("from parts.losses import Head{start}Head().restore(1)", False),
        ("from parts.losses import Deep{start}Deep().restore(1)", False),  # inherited
        ("from parts.losses import Head{start}other.restore(Head())", False),  # an object of any class
        ("import lib\nfrom parts.losses import Head{start}lib.restore(Head())", True),  # of another package
        ("from parts.losses import Head{start}getattr(Head(), f'rest{{kind}}')()", False),
        ("from parts.losses import Head{start}print('restore', Head())", False),
        ("from parts.losses import Head\n\n\nclass Own(Head):\n    def __init__(self):\n        self.restore(1)"
         "{start}Own()", False),
        ("from parts.losses import Head\n\n\nclass Own(Head):\n    def __init__(self):\n        super().restore(1)"
         "{start}Own()", False),
        ("from parts.losses import Head\n\n\nclass Other:\n    def __init__(self):\n        self.restore(1)"
         "{start}Head(Other())", True),  # a method of that class alone, which it lacks
        ("from parts.losses import Head{start}print(isinstance(other, (Head, int)), other.restore(1))", True),  # none
        ("from parts.losses import Head{start}Head.restore(None, 1)", False),  # it needs no object
        ("from parts.losses import Head\n\n\nclass Own(Head):\n    def restore(self):\n        pass"
         "{start}Own().restore()", True),  # no object has that of the base
        ("from parts.losses import Head\n\n\nclass Own(Head):\n    def restore(self):\n        super().restore(1)"
         "{start}Own().restore()", False),
        ("from parts.losses import Head\n\n\nclass Own(Head):\n    def restore(self):\n        of = super()\n"
         "        of.restore(1){start}Own().restore()", False),
        ("from parts.losses import Head\n\n\nclass Own(Head):\n    def restore(self):\n        pass\n\n\n"
         "class Plain(Head):\n    pass{start}Own().restore(Plain())", False),
    ],
)  # fmt: skip
def test_a_method(tmp_path: pathlib.Path, program: str, is_left: bool) -> None:
    files = {"train.py": program.format(start=START), "parts/__init__.py": "", "parts/losses.py": LOSSES}
    assert _is_left(_project(tmp_path, files), "parts/losses.py", "        return path") is is_left


@pytest.mark.parametrize(
    ("files", "is_left"),
    [
        ({}, True),
        ({"setup.py": "from setuptools import setup\nsetup()\n"}, False),  # others use what is installed
        ({"README.md": "Call `total(x)`."}, False),
        ({"README.md": "The total is printed."}, True),
        ({"look.ipynb": NOTEBOOK}, False),
        ({"configs/a.yaml": "loss: total\n"}, False),
        ({"test_losses.py": "from parts.losses import total\ntotal(1)\n"}, True),
        ({"show.py": f"from parts.losses import total{START}total(1)\n"}, False),
        ({"show.py": "from parts.losses import total\nprint(total(1))\n"}, False),  # a script without a test
        ({"conf.py": "import hydra\n"}, True),
        ({"show.py": "from lib import KINDS\nfrom parts.losses import total\nKINDS.append(total)\n"}, True),
    ],
)
def test_what_else_the_project_has(tmp_path: pathlib.Path, files: dict[str, str], is_left: bool) -> None:
    program = f"from parts.losses import used{START}used(1)\n"
    known = {"train.py": program, "parts/__init__.py": "", "parts/losses.py": LOSSES}
    assert _is_left(_project(tmp_path, known | files), "parts/losses.py", "    return x.sum()") is is_left


def test_without_programs_nothing_is_left(tmp_path: pathlib.Path) -> None:
    files = {"train.py": "from parts.losses import used\n\n\ndef main():\n    used(1)\n", "parts/losses.py": LOSSES}
    assert not _is_left(_project(tmp_path, files), "train.py", "    used(1)")
    assert not _is_left(Project(tmp_path), "parts/losses.py", "    return x")


@pytest.mark.parametrize(
    ("test", "is_left"), [("typing.TYPE_CHECKING", True), ("TYPE_CHECKING", True), ("FAST", False)]
)
def test_what_is_imported_for_the_types_alone(tmp_path: pathlib.Path, test: str, is_left: bool) -> None:
    files = {
        "train.py": f"from parts.losses import used{START}used(1)\n",
        "parts/__init__.py": f"if {test}:\n    from parts.confs import scale\n",
        "parts/losses.py": LOSSES,
        "parts/confs.py": "from parts.losses import total\n\nscale = total(1)\n",
    }
    assert _is_left(_project(tmp_path, files), "parts/losses.py", "    return x.sum()") is is_left


def test_one_of_two_programs(tmp_path: pathlib.Path) -> None:
    files = {
        "train.py": f"from parts.losses import used{START}used(1)\n",
        "show.py": f"from parts.losses import total{START}total(1)\n",
        "parts/losses.py": LOSSES,
    }
    project = _project(tmp_path, files)
    train, show, losses = (project.modules.facts_of(tmp_path / name) for name in files)
    assert train is not None
    assert show is not None
    assert losses is not None
    line = LOSSES.split("\n").index("    return x.sum()") + 1
    assert is_reached_from(project, show.name, losses, line)
    assert not is_reached_from(project, train.name, losses, line)


def test_a_program_that_is_no_module_of_the_walk(tmp_path: pathlib.Path) -> None:
    """Tests are started by others: what they come to is not asked for."""
    project = _project(tmp_path, {"tests/run.py": f"import losses{START}losses.total(1)\n", "losses.py": LOSSES})
    run, losses = (
        project.modules.facts_of(tmp_path / "tests" / "run.py"),
        project.modules.facts_of(tmp_path / "losses.py"),
    )
    assert run is not None
    assert losses is not None
    assert is_reached_from(project, run.name, losses, 9)


def test_a_name_that_modules_import_from_each_other_in_circles(tmp_path: pathlib.Path) -> None:
    """Each module has one meaning of the name, however many ways lead there."""
    names = [f"part{number}" for number in range(8)]
    files = {
        f"{name}.py": "".join(f"from {other} import total\n" for other in names if other != name) for name in names
    }
    files |= {"train.py": f"from part0 import total{START}total(1)\n", "losses.py": LOSSES}
    files["part7.py"] += "from losses import total\n"
    project = _project(tmp_path, files)
    assert not _is_left(project, "losses.py", "    return x.sum()")


@pytest.mark.parametrize(
    ("program", "is_left"),
    [
        ("open('confs.json')", True),
        ("open('models/confs.bin')", True),
        ("print('parts.confs')", False),
        ("print('parts/confs.py')", False),
        ("print('parts.confs.scale')", False),
        ("print('parts.confs.other')", True),  # it has no such name
        ("import boto3\n    boto3.confs.scale()", True),  # an attribute of another package
        ("from other.parts.confs import scale", False),  # the project in a folder of another name
        ("from other.models.confs import scale", True),
        ("print(v_target_old.allocate(1))", True),
        ("print(hydra.main)", True),  # by names in settings, which have none
        ("importlib.import_module(name)", True),
        ("print('confs')", True),
        ("importlib.import_module(name)\n    print('confs')", False),
        ("make(name).load('confs')\n\n\ndef make(name):\n    return importlib.import_module(name)", False),
        (
            "print('confs')\n\n\ndef version(name):\n    package = importlib.import_module(name)\n"
            "    return package.__version__",
            True,
        ),  # of another package
        ("importlib.import_module(name)\n    print('other.confs')", False),
        ("importlib.import_module(f'parts.{name}')", False),
        ("importlib.import_module('parts.{}'.format(name))", False),
        ("importlib.import_module('.'.join(['parts', name]))", False),
        ("importlib.import_module(f'{name}_scale')", True),
        ("importlib.import_module(f'con{name}')", False),
        ("importlib.import_module('.' + name, 'show')", False),  # beside it, or below
        ("importlib.import_module(os.listdir('parts')[0])", False),
    ],
)
def test_what_may_name_a_module(tmp_path: pathlib.Path, program: str, is_left: bool) -> None:
    files = {
        "train.py": f"from parts.losses import used{START}used(1)\n",
        "parts/__init__.py": "",
        "parts/losses.py": LOSSES,
        "parts/confs.py": "from parts.losses import total\n\nscale = total(1)\n",
        "show.py": f"{START}{program}\n",
    }
    assert _is_left(_project(tmp_path, files), "parts/losses.py", "    return x.sum()") is is_left


@pytest.mark.parametrize(
    ("program", "files", "is_left"),
    [
        ("importlib.import_module('parts.losses' + name)", {}, True),
        ("getattr(importlib.import_module('parts.losses' + name), 'total')", {}, False),
        ("getattr(importlib.import_module('parts.losses' + name), f'tot{kind}')", {}, False),
        ("importlib.import_module('parts.losses' + name).total(1)", {}, False),
        ("print(vars(importlib.import_module('parts.losses' + name)))", {}, False),
        ("print(dir(importlib.import_module('parts.losses' + name)))", {}, False),
        ("print('Model' in dir(importlib.import_module('parts.losses' + name)))", {}, True),
        ("__import__('parts.losses' + name, globals(), locals(), [])", {}, True),
        ("importlib.import_module('parts.losses' + name)", {"a.sh": "python show.py --loss Total\n"}, False),
        ("importlib.import_module('parts.losses' + name)", {"look.py": "inspect.getmembers(module)\n"}, False),
        ("importlib.import_module('parts.losses' + name)", {"configs/a.py": "loss = 'total'\n"}, False),
    ],
)
def test_what_may_be_taken_from_a_module_of_a_computed_name(
    tmp_path: pathlib.Path, program: str, files: dict[str, str], is_left: bool
) -> None:
    known = {"train.py": "", "show.py": f"import importlib{START}{program}\n", "parts/losses.py": LOSSES}
    assert _is_left(_project(tmp_path, known | files), "parts/losses.py", "    return x.sum()") is is_left


RUNNERS = """class Trainer:
    def restore(self):
        return 1


class Tester:
    def restore(self):
        return 2


class Loud(Tester):
    pass


class Passing:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


def make(kind):
    return Tester() if kind else Trainer()
"""


@pytest.mark.parametrize(
    ("program", "is_left"),
    [
        ("trainer = Trainer()\n    trainer.restore()", True),
        ("trainer = Trainer()\n    tester = Tester()\n    trainer.restore()\n    print(tester)", True),
        ("main()\n\n\ndef main():\n    trainer = Trainer().to(0)\n    trainer.restore()", True),
        ("trainer = Tester()\n    trainer.restore()", False),
        ("trainer = Loud()\n    trainer.restore()", False),
        ("trainer = make(0)\n    trainer.restore()", False),
        ("trainer = Trainer()\n    trainer = Tester()\n    trainer.restore()", False),
        ("trainer = Passing(Tester())\n    trainer.restore()", False),
        ("main()\n\n\ndef main(trainer=None):\n    trainer = trainer or Tester()\n    trainer.restore()", False),
        ("trainer = Trainer()\n    run(trainer)\n\n\ndef run(trainer):\n    trainer.restore()", False),
    ],
)
def test_a_variable_that_holds_one_object_has_the_methods_of_its_class(
    tmp_path: pathlib.Path, program: str, is_left: bool
) -> None:
    imports = "from runners import Loud, Passing, Tester, Trainer, make\n\nmade = [Tester(), Trainer()]"
    files = {"runners.py": RUNNERS, "show.py": f"{imports}{START}{program}\n"}
    assert _is_left(_project(tmp_path, files), "runners.py", "        return 2") is is_left


def test_an_edit_reads_and_walks_no_more_than_it_changes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"losses.py": LOSSES, "train.py": f"from losses import used{START}used(1)\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    project, read = Project(tmp_path, changing=True), list[str]()

    def reading(text: str) -> FileNames | None:
        read.append(text)
        return names_of(text)

    monkeypatch.setattr(walk, "names_of", reading)

    def after(edited: str) -> tuple[bool, int]:
        """Whether `total` is reached after an edit of the program, and how many files were read for that."""
        read.clear()
        change(project, tmp_path / "train.py", SourceFile.of_text("train.py", edited, "train.py"))
        return reached(project).has(("losses.py", "total")), len(read)

    assert after(files["train.py"]) == (False, 2)
    known = reached(project)
    assert after(f"# Said above.\n{files['train.py']}") == (False, 0)
    assert reached(project) is known
    project.forget_memories()
    assert reached(project) is known  # it holds names and no trees, and takes long
    assert after(files["train.py"].replace("used", "total")) == (True, 1)


NAMED = """class Reader:
    kind = "Writer"

    def run(self):
        return {how}


class Writer:
    def run(self):
        return 2
"""


@pytest.mark.parametrize(
    ("page", "how", "is_met"),
    [("", "1", False), ("Writer().run()", "1", False), ("", "getattr(kinds, self.kind)()", True)],
)
def test_what_the_code_of_a_program_comes_to(tmp_path: pathlib.Path, page: str, how: str, is_met: bool) -> None:
    """A string leads to a class where something is taken by a name; what a page calls is another program."""
    start = f"import kinds{START}kinds.Reader().run()"
    files = {"kinds.py": NAMED.format(how=how), "run.py": start, "README.md": f"```python\n{page}\n```\n"}
    known, body = reached(_project(tmp_path, files)), ("kinds.py", "Writer.run")
    assert known.coming_to(body) == {"run.py"}
    assert known.coming_by_code(body) == ({"run.py"} if is_met else set())

"""What a module name means where it is imported."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint import files
from ddp_lint.files import lies_in
from ddp_lint.project import Project
from ddp_lint.project.layout import Layout


@pytest.fixture
def project(tmp_path: pathlib.Path) -> Project:
    files = {
        "pyproject.toml": "",
        "src/pkg/__init__.py": "from pkg.ops import *\nfrom .dist import reduce_all\n",
        "src/pkg/ops.py": "from torch.distributed import all_reduce\n",
        "src/pkg/dist.py": "from torch.distributed import all_reduce as reduce_all\nclass Base: pass\n",
        "src/pkg/deep/__init__.py": "",
        "src/pkg/deep/net.py": "from ..dist import Base\nclass Net(Base): pass\n",
        "recipes/asr/train.py": "from utils import barrier\nfrom local.data import load\nfrom pkg.dist import Base\n",
        "recipes/asr/utils.py": "from torch.distributed import barrier\n",
        "recipes/asr/local/data.py": "import utils\n",
        "recipes/tts/utils.py": "def barrier(): pass\n",
        "recipes/tts/train.py": "from utils import barrier\n",
        "recipes/v1.5/train.py": "from utils import barrier\n",
        "recipes/v1.5/utils.py": "from torch.distributed import barrier\n",
        "src/pkg/tool.py": "import torch, logging\nimport ops\n",
        "src/pkg/logging.py": "",
        "src/pkg/vendor/__init__.py": "",
        "src/pkg/vendor/tts/__init__.py": "",
        "src/pkg/vendor/tts/ops.py": "from torch.distributed import barrier\n",
        "src/pkg/vendor/tts/bin/train.py": "from tts.ops import barrier\nfrom tts.absent import x\n",
        "src/pkg/vendor/use.py": "from tts.ops import barrier\n",
        "src/pkg/torch/__init__.py": "",
        "src/pkg/torch/distributed.py": "def barrier(): pass\n",
        "src/pkg/torch/use.py": "from torch.distributed import barrier\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Project(tmp_path)


def names(project: Project, file: str) -> dict[str, str]:
    facts = project.modules.facts_of(project.root / file)
    assert facts is not None
    return {name: project.meanings.canonical(target) for name, target in facts.imports.names.items()}


def test_every_file_has_a_name_that_leads_back_to_it(project: Project) -> None:
    for path in project.root.rglob("*.py"):
        name, is_package = project.modules.name_of(path)
        assert project.modules.find(name) == path
        assert is_package == (path.name == "__init__.py")
    assert project.modules.name_of(project.root / "src/pkg/deep/net.py")[0] == "pkg.deep.net"


def test_a_recipe_means_the_module_beside_it(project: Project) -> None:
    assert names(project, "recipes/asr/train.py") == {
        "barrier": "torch.distributed.barrier",
        "load": "recipes.asr.local.data.load",
        "Base": "pkg.dist.Base",
    }
    assert names(project, "recipes/tts/train.py")["barrier"] == "recipes.tts.utils.barrier"
    assert names(project, "recipes/v1.5/train.py")["barrier"] == "torch.distributed.barrier"


def test_a_module_below_a_recipe_means_the_recipe_s_modules(project: Project) -> None:
    assert names(project, "recipes/asr/local/data.py")["utils"] == "recipes.asr.utils"


def test_inside_a_package_absolute_imports_are_absolute(project: Project) -> None:
    found = names(project, "src/pkg/tool.py")
    assert (found["logging"], found["ops"]) == ("logging", "ops")


def test_a_package_that_was_copied_into_another_imports_itself_by_its_old_name(project: Project) -> None:
    assert names(project, "src/pkg/vendor/tts/bin/train.py") == {
        "barrier": "torch.distributed.barrier",
        "x": "tts.absent.x",
    }
    assert names(project, "src/pkg/vendor/use.py") == {"barrier": "tts.ops.barrier"}  # an installed package
    assert names(project, "src/pkg/torch/use.py") == {"barrier": "torch.distributed.barrier"}  # PyTorch's own


def test_a_file_has_no_modules(tmp_path: pathlib.Path) -> None:
    """In ``pkg/policy/pkg.py``, ``pkg.models.head`` is of the package around, which has no `__init__.py`."""
    for name in ("pkg/models/head.py", "pkg/policy/pkg.py", "pkg/policy/base.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    layout, folder = Layout(tmp_path), str(tmp_path / "pkg/policy")
    assert layout.locate("pkg.models.head.Head", folder, script=False) == "pkg.models.head.Head"
    assert layout.locate("pkg.Policy", folder, script=False) == "pkg.policy.pkg.Policy"


def test_re_exports_are_followed(project: Project) -> None:
    assert project.meanings.canonical("pkg.all_reduce") == "torch.distributed.all_reduce"
    assert project.meanings.canonical("pkg.reduce_all") == "torch.distributed.all_reduce"
    assert project.meanings.canonical("pkg.nothing") == "pkg.nothing"


def test_classes_inherit_across_files(project: Project) -> None:
    assert project.classes.lineage("pkg.deep.net.Net") == ("pkg.deep.net.Net", "pkg.dist.Base")
    assert project.classes.subclass_of("pkg.deep.net.Net", "pkg.dist.Base")
    assert project.classes.subclass_of("torch.nn.Linear", "torch.nn.Module")
    assert not project.classes.subclass_of("torch.nn.functional", "torch.nn.Module")


def test_what_is_remembered_passes_its_questions_on(project: Project) -> None:
    project.remember(("test", 1), lambda: project.modules.facts("pkg.dist"))
    with project.recording() as asked:
        project.remember(("test", 1), lambda: None)
    ((question, answer),) = [
        item for item in project.answers.dependencies(asked).items() if item[0].endswith("src/pkg/dist.py")
    ]
    assert Project(project.root).answers.holds(question, answer)
    (project.root / "src/pkg/dist.py").write_text("changed = 1\n")
    assert not Project(project.root).answers.holds(question, answer)


def test_a_star_brings_what_modules_define_and_no_other_file_is_parsed_for_it(tmp_path: pathlib.Path) -> None:
    files = {
        "pyproject.toml": "",
        "pkg/__init__.py": "from .models import *\n__version__ = '1'\n",
        "pkg/models/__init__.py": "from .a import *\nfrom .b import *\n",
        "pkg/models/a.py": "from torch.distributed import all_reduce\n",
        "pkg/models/b.py": "from torch.distributed import barrier\n_own = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    project = Project(tmp_path)
    with project.recording() as asked:
        assert project.meanings.canonical("pkg.__version__") == "pkg.__version__"
        assert project.meanings.canonical("pkg._own") == "pkg._own"
    assert {q for q in project.answers.dependencies(asked) if q.endswith(("models/a.py", "models/b.py"))} <= {
        f"says:{words}:pkg/models/{name}.py"
        for words in ("__version__", "_own", "import *", "models")
        for name in ("a", "b")
    }
    assert project.meanings.canonical("pkg.barrier") == "torch.distributed.barrier"
    with project.recording() as asked:
        assert project.meanings.canonical("pkg.absent") == "pkg.absent"
    before = project.answers.dependencies(asked)
    # An answer that rests on what is not there rests on the file.
    (tmp_path / "pkg/models/a.py").write_text("absent = 1\n")
    assert not all(Project(tmp_path).answers.holds(question, answer) for question, answer in before.items())


@pytest.mark.parametrize(
    ("path", "folder", "inside"),
    [
        ("/a/b", "/a", True),
        ("/a", "/a", True),
        ("/ab", "/a", False),
        ("/a", "/", True),
        ("/", "/", True),
        ("/", "/a", False),
    ],
)
def test_what_lies_in_a_folder(path: str, folder: str, inside: bool) -> None:
    assert lies_in(pathlib.Path(path), pathlib.Path(folder)) is inside


@pytest.mark.parametrize(
    ("folder", "path", "below"),
    [("/", "/a.py", "a.py"), ("/", "/", "."), ("/a", "/a/b.py", "b.py"), ("/a", "/ab", "/ab")],
)
def test_paths_below_a_folder(folder: str, path: str, below: str) -> None:
    assert files.below(folder, path) == below


def test_a_project_may_be_all_files() -> None:
    """A script in the root of a container, with no configuration: the search for what it imports comes to an end."""
    layout = Layout(pathlib.Path("/"))
    assert layout.locate("no_module_of_this_name", "/", script=True) == "no_module_of_this_name"
    assert layout.locate("usr.no_module_of_this_name", "/usr/lib", script=True) == "usr.no_module_of_this_name"
    assert layout.name_of("/train.py") == ("train", False)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('sys.path.append("lib/nets")', "tool.lib.nets.droid.Droid"),
        (
            'sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib", "nets"))',
            "tool.lib.nets.droid.Droid",
        ),
        ('sys.path.append(str(Path(__file__).parent / "lib" / "nets"))', "tool.lib.nets.droid.Droid"),
        ('LIB_DIR = "../lib/nets/"\nsys.path.extend([LIB_DIR])', "tool.lib.nets.droid.Droid"),
        ('# sys.path.append("lib/nets")', "droid.Droid"),
        ('sys.path.append("nets")', "droid.Droid"),
        ('LIB_DIR = "lib/nets"', "droid.Droid"),
    ],
)
def test_a_program_means_the_modules_of_a_folder_that_it_puts_on_the_path(
    tmp_path: pathlib.Path, line: str, found: str
) -> None:
    files = {
        "pyproject.toml": "",
        "other/lib/nets/droid.py": "class Droid: pass\n",
        "tool/lib/nets/__init__.py": "",
        "tool/lib/nets/droid.py": "class Droid: pass\n",
        "tool/lib/nets/json.py": "",
        "tool/bin/demo.py": f"import os, sys\nfrom pathlib import Path\n{line}\nfrom droid import Droid\nimport json\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    project = Project(tmp_path)
    with project.recording() as asked:
        imported = names(project, "tool/bin/demo.py")
    assert (imported["Droid"], imported["json"]) == (found, "json")
    again = Project(tmp_path)
    assert all(again.answers.holds(*item) for item in project.answers.dependencies(asked).items())
    (tmp_path / "tool/lib/nets/droid.py").unlink()
    changed = Project(tmp_path)
    kept = all(changed.answers.holds(*item) for item in project.answers.dependencies(asked).items())
    assert kept is (found == "droid.Droid")


def test_a_package_around_a_program_may_be_on_the_path(tmp_path: pathlib.Path) -> None:
    files = {
        "pyproject.toml": "",
        "pkg/__init__.py": "",
        "pkg/nets.py": "class Net: pass\n",
        "pkg/bin/__init__.py": "",
        "pkg/bin/here.py": "import os, sys\nsys.path.append(os.path.dirname(os.getcwd()))\nfrom nets import Net\n",
        "pkg/bin/there.py": "from nets import Net\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    project = Project(tmp_path)
    assert names(project, "pkg/bin/here.py")["Net"] == "pkg.nets.Net"
    assert names(project, "pkg/bin/there.py")["Net"] == "nets.Net"

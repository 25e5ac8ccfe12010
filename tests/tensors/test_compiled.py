"""Which functions `torch.compile` reaches, in whatever way a file starts it."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.modules import Modules
from ddp_lint.tensors.compiled import compiled_functions

STARTS = {
    "call": "import torch\ndef f(x):\n    return x\ng = torch.compile(f)\n",
    "another name": "from torch import compile as fast\ndef f(x):\n    return x\ng = fast(f)\n",
    "another name over lines": "from torch import (\n    compile as fast,\n)  # torch.compile\n"
    "def f(x):\n    return x\ng = fast(f)\n",
    "decorator": "import torch\n@torch.compile\ndef f(x):\n    return x\n",
    "decorator with options": "import torch\n@torch.compile(fullgraph=True)\ndef f(x):\n    return x\n",
    "partial": "import functools\nimport torch\n@functools.partial(\n    torch.compile, dynamic=True\n)\n"
    "def f(x):\n    return x\n",
    "optimize": "import torch._dynamo as dynamo  # compiles\n@dynamo.optimize('inductor')\ndef f(x):\n    return x\n",
    "question": "import torch\ndef f(x):\n    return x if torch.compiler.is_compiling() else -x\n",
    "method": "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    "net = Net()\nnet.compile()\n",
}


@pytest.mark.parametrize("how", STARTS)
def test_is_found_however_it_starts(how: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.py").write_text(STARTS[how])
    assert set(compiled_functions(Project(tmp_path))) == {"m.Net.forward" if how == "method" else "m.f"}


def test_what_only_speaks_of_the_compiler_is_not_parsed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    facts_of = Modules.facts_of

    def noted(self: Modules, path: pathlib.Path) -> ModuleFacts | None:
        parsed.append(path.name)
        return facts_of(self, path)

    monkeypatch.setattr(Modules, "facts_of", noted)
    (tmp_path / "speaks.py").write_text('"""For torch.compile."""\nimport re\nimport torch\nWORD = re.compile("a")\n')
    (tmp_path / "starts.py").write_text(STARTS["call"])
    assert set(compiled_functions(Project(tmp_path))) == {"starts.f"}
    assert parsed == ["starts.py"]

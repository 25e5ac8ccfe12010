"""How models get their arguments and inputs, tried on one process without a launch."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from ddp_lint.verify.child.inputs import Builder, CannotBuild, call, find_recipe, load  # noqa: E402

HEAD = "import dataclasses\nimport torch\nfrom torch import nn\n"
LINEAR = "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.l = nn.Linear(6, 2)\n"
CASES = {
    "inferred": "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.l = nn.Linear(6, 2)\n"
    " def forward(self, x): return self.l(x)\n",
    "a convolution": "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.c = nn.Conv2d(1, 4, 3)\n"
    " def forward(self, x): return self.c(x).mean((2, 3))\n",
    "two inputs": "class M(nn.Module):\n def __init__(self):\n  super().__init__()\n"
    "  self.e = nn.Embedding(9, 4); self.h = nn.Linear(4, 3)\n"
    " def forward(self, idx, targets):\n"
    "  return nn.functional.cross_entropy(self.h(self.e(idx)).flatten(0, 1), targets.flatten())\n",
    "a recurrent layer": "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.r = nn.GRU(5, 7, 1)\n"
    " def forward(self, x): return self.r(x)[0]\n",
    "a configuration": "@dataclasses.dataclass\nclass MConfig:\n n_embd: int = 768\n vocab_size: int = 50304\n"
    "class M(nn.Module):\n def __init__(self, config):\n  super().__init__()\n"
    "  self.e = nn.Embedding(config.vocab_size, config.n_embd); self.h = nn.Linear(config.n_embd, 2)\n"
    " def forward(self, idx): return self.h(self.e(idx))\n",
    "arguments by name": "class M(nn.Module):\n def __init__(self, hidden_dim, num_heads, dropout):\n"
    "  super().__init__()\n  self.a = nn.MultiheadAttention(hidden_dim, num_heads, dropout, batch_first=True)\n"
    " def forward(self, x): return self.a(x, x, x)[0]\n",
    "example_input_array": "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.l = nn.Linear(6, 2)\n"
    "  self.example_input_array = (torch.zeros(4, 6), 'plain')\n def forward(self, x, mode): return self.l(x)\n",
    "dummy_inputs": "class M(nn.Module):\n dummy_inputs = {'x': torch.zeros(4, 6)}\n def __init__(self):\n"
    "  super().__init__(); self.l = nn.Linear(6, 2)\n def forward(self, *, x): return {'loss': self.l(x).mean()}\n",
    "kernelbench": "class M(nn.Module):\n def __init__(self, n):\n  super().__init__(); self.l = nn.Linear(n, 2)\n"
    " def forward(self, x): return self.l(x)\n"
    "def get_init_inputs(): return [11]\ndef get_inputs(): return [torch.randn(4, 11)]\n",
}


@pytest.fixture(autouse=True)
def _forget_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("model_of_test"):
            del sys.modules[name]


@pytest.mark.parametrize("name", CASES)
def test_found_without_set_up(tmp_path: pathlib.Path, name: str) -> None:
    path = tmp_path / "model_of_test.py"
    path.write_text(HEAD + CASES[name])
    module = load(str(path), str(tmp_path))
    recipe = find_recipe(module, "M", "")
    assert recipe["source"] in (name, "inferred")
    builder = Builder(module, "M", recipe)
    model = builder.build()
    first, again, other = builder.batch(0, 0), builder.batch(0, 0), builder.batch(0, 1)
    tensors = [[v for v in (*b.args, *b.kwargs.values()) if isinstance(v, torch.Tensor)] for b in (first, again, other)]
    assert all(torch.equal(a, b) for a, b in zip(tensors[0], tensors[1], strict=True)), "the same on every call"
    assert any(not torch.equal(a, b) for a, b in zip(tensors[0], tensors[2], strict=True)), "other ranks, other samples"
    joined = builder.full_batch(0, 2)
    assert joined is not None
    call(model, joined)
    assert sum(p.numel() for p in model.parameters()) < 100_000, "sizes of configurations are made small"


def test_the_entry_function(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model_of_test.py"
    path.write_text(HEAD + "def mine():\n return nn.Linear(3, 3), {'input': torch.ones(2, 3)}\ndef bad():\n return 1\n")
    module = load(str(path), str(tmp_path))
    assert find_recipe(module, "", "mine")["source"] == "entry"
    with pytest.raises(CannotBuild, match=r"bad\(\) must return \(module, inputs\)"):
        find_recipe(module, "", "bad")

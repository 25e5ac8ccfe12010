"""How models get their arguments and inputs, tried on one process without a launch."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from ddp_lint.verify.child.arguments import CannotBuild  # noqa: E402
from ddp_lint.verify.child.example import of_recipe  # noqa: E402
from ddp_lint.verify.child.inputs import Builder, call, find_recipe, load  # noqa: E402
from ddp_lint.verify.child.loss import loss_of  # noqa: E402

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
    "a recurrent cell": "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.c = nn.GRUCell(5, 7)\n"
    " def forward(self, xs, h=None):\n"
    "  for t in range(xs.size(1)): h = self.c(xs[:, t], h)\n  return h\n",
    "a configuration": "@dataclasses.dataclass\nclass MConfig:\n n_embd: int = 768\n vocab_size: int = 50304\n"
    "class M(nn.Module):\n def __init__(self, config):\n  super().__init__()\n"
    "  self.e = nn.Embedding(config.vocab_size, config.n_embd); self.h = nn.Linear(config.n_embd, 2)\n"
    " def forward(self, idx): return self.h(self.e(idx))\n",
    "arguments by name": "class M(nn.Module):\n def __init__(self, hidden_dim, num_heads, dropout):\n"
    "  super().__init__()\n  self.a = nn.MultiheadAttention(hidden_dim, num_heads, dropout, batch_first=True)\n"
    " def forward(self, x): return self.a(x, x, x)[0]\n",
    "an annotated configuration": "class C:\n def __init__(self, vocab_size=30522, hidden_size=768, kind='a'):\n"
    "  self.vocab_size, self.hidden_size = vocab_size, hidden_size\n"
    "class M(nn.Module):\n def __init__(self, c: C):\n  super().__init__()\n"
    "  self.e = nn.Embedding(c.vocab_size, c.hidden_size); self.h = nn.Linear(c.hidden_size, 2)\n"
    " def forward(self, input_ids=None, labels=None):\n  return {'logits': self.h(self.e(input_ids))}\n",
    "a namespace": "class M(nn.Module):\n def __init__(self, args):\n  super().__init__()\n"
    "  self.l = nn.Linear(args.hidden_dim, args.num_classes if args.wide else 3)\n"
    " def forward(self, x): return self.l(x)\n",
    "a dict of settings": "class M(nn.Module):\n def __init__(self, cfg):\n  super().__init__()\n"
    "  self.l = nn.Linear(cfg['hidden'], cfg['classes'])\n def forward(self, x): return self.l(x)\n",
    "a dict": "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.e = nn.Embedding(9, 4)\n"
    " def forward(self, batch): return self.e(batch['input_ids']) * batch['attention_mask'].unsqueeze(-1)\n",
    "a tuple": "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.l = nn.Linear(6, 3)\n"
    " def forward(self, batch):\n  x, y = batch\n  return nn.functional.cross_entropy(self.l(x), y)\n",
    "a list of samples": "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.l = nn.Linear(6, 3)\n"
    " def forward(self, xs, labels):\n  y = torch.cat([self.l(x[None]) for x in xs])\n"
    "  return nn.functional.cross_entropy(y, torch.stack(labels))\n",
    "records of samples": "class M(nn.Module):\n def __init__(self):\n  super().__init__()\n"
    "  self.c = nn.Linear(6, 3); self.b = nn.Linear(6, 4)\n"
    " def forward(self, xs, targets=None):\n  if targets is None: return self.c(xs)\n  loss = 0.0\n"
    "  for i, (x, t) in enumerate(zip(xs, targets)):\n"
    "   loss = loss + (self.b(x).expand_as(t['boxes']) - t['boxes']).abs().mean()\n"
    "   loss = loss + nn.functional.cross_entropy(self.c(x).expand(len(t['labels']), -1), t['labels'])\n"
    "  return {'loss': loss}\n",
    "lists of sizes": "class M(nn.Module):\n"
    " def __init__(self, widths, hidden: list[int], ends: tuple[int, int, int]):\n"
    "  super().__init__()\n  sizes = [*widths, *hidden, *ends]\n"
    "  self.l = nn.Sequential(*[nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])\n"
    " def forward(self, x): return self.l(x)\n",
    "short names": "class M(nn.Module):\n def __init__(self, in_ch, nf, out_nc):\n  super().__init__()\n"
    "  self.c = nn.Sequential(nn.Conv2d(in_ch, nf, 3), nn.Conv2d(nf, out_nc, 1))\n"
    " def forward(self, img): return self.c(img)\n",
    "a class of the file": "class Block(nn.Module):\n def __init__(self, a, b):\n"
    "  super().__init__(); self.c = nn.Conv2d(a, b, 1)\n def forward(self, x): return self.c(x)\n"
    "class M(nn.Module):\n def __init__(self, block, num_blocks, num_classes=3):\n  super().__init__()\n"
    "  self.b = nn.Sequential(block(3, 4), *[block(4, 4) for _ in range(num_blocks[3])])\n"
    "  self.l = nn.Linear(4, num_classes)\n def forward(self, x): return self.l(self.b(x).mean((2, 3)))\n",
    "a layer": "class M(nn.Module):\n def __init__(self, body: nn.Module, d_model: int):\n  super().__init__()\n"
    "  self.body = body; self.l = nn.Linear(d_model, 3)\n def forward(self, x): return self.l(self.body(x))\n",
    "lengths": "class M(nn.Module):\n def __init__(self):\n  super().__init__()\n"
    "  self.e = nn.Embedding(9, 4); self.r = nn.GRU(4, 5, batch_first=True)\n"
    " def forward(self, text, lengths):\n  pack = nn.utils.rnn.pack_padded_sequence\n"
    "  return self.r(pack(self.e(text), lengths.cpu(), batch_first=True, enforce_sorted=False))[1]\n",
    "keywords only": "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.l = nn.Linear(6, 3)\n"
    " def forward(self, *, pixel_values): return self.l(pixel_values)\n",
    "a state": "class M(nn.Module):\n def __init__(self, ntoken):\n  super().__init__()\n"
    "  self.e = nn.Embedding(ntoken, 5); self.r = nn.LSTM(5, 7, 2)\n"
    " def forward(self, input, hidden): return self.r(self.e(input), hidden)[0]\n",
    "a state of batches first": "class M(nn.Module):\n def __init__(self):\n  super().__init__()\n"
    "  self.r = nn.GRU(5, 7, bidirectional=True, batch_first=True)\n"
    " def forward(self, x, h0): return self.r(x, h0)[1]\n",
    "a layer of its own": "class L(nn.Module):\n def __init__(self, a, b):\n  super().__init__()\n"
    "  self.w = nn.Parameter(torch.ones(b, a))\n def forward(self, x): return x @ self.w.T\n"
    "class M(nn.Module):\n def __init__(self, dim=23):\n  super().__init__(); self.l = L(dim, 3)\n"
    " def forward(self, feats): return self.l(feats)\n",
    "parts that the caller builds": "class Encoder(nn.Module):\n def __init__(self):\n"
    "  super().__init__(); self.l = nn.Linear(6, 16)\n def forward(self, x): return self.l(x)\n"
    "class M(nn.Module):\n def __init__(self, encoder, head, act, loss_fn):\n  super().__init__()\n"
    "  self.encoder, self.head = encoder, head; self.act = act; self.loss_fn = loss_fn\n"
    " def forward(self, x):\n  y = self.act(self.head(self.encoder(x)))\n"
    "  return self.loss_fn(y, torch.zeros_like(y))\n",
    "a transposed convolution": "class M(nn.Module):\n def __init__(self, nz=20):\n  super().__init__()\n"
    "  self.c = nn.ConvTranspose2d(nz, 4, 4)\n def forward(self, z): return self.c(z.view(z.size(0), -1, 1, 1))\n",
    "a flat generator": "class M(nn.Module):\n def __init__(self, nz=20):\n  super().__init__()\n"
    "  self.c = nn.ConvTranspose2d(nz, 4, 4)\n def forward(self, z): return self.c(z[:, :, None, None])\n",
    "names that say nothing": "class Head(nn.Module):\n def __init__(self, a, tags):\n  super().__init__()\n"
    "  self.l = nn.Linear(a, 2 * tags)\n def forward(self, x): return self.l(x)\n"
    "class M(nn.Module):\n def __init__(self, tally, tag_count):\n  super().__init__()\n"
    "  self.l = nn.Linear(6, tally); self.h = Head(tally, tags=tag_count)\n"
    " def forward(self, x): return self.h(self.l(x))\n",
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
    tensors: list[list[torch.Tensor]] = [[], [], []]
    for found, one in zip(tensors, (first, again, other), strict=True):
        one.map(lambda tensor, into=found: (into.append(tensor), tensor)[1])
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
    path.write_text(path.read_text() + "def rest():\n x = torch.ones(2, 3)[..., :2]\n return nn.Linear(2, ...), x\n")
    module = load(str(path), str(tmp_path))
    with pytest.raises(CannotBuild, match=r"model_of_test.py:10: rest\(\) still has `...` for a value"):
        find_recipe(module, "", "rest")
    with pytest.raises(CannotBuild, match=r"bad\(\) must return \(module, inputs\)"):
        find_recipe(module, "", "bad")


def _recipe(folder: pathlib.Path, text: str) -> tuple[dict[str, object], Builder]:
    path = folder / "model_of_test.py"
    path.write_text(HEAD + text)
    module = load(str(path), str(folder))
    recipe = find_recipe(module, "M", "")
    return recipe, Builder(module, "M", recipe)


OPTIONAL = (
    "class M(nn.Module):\n def __init__(self):\n  super().__init__()\n"
    "  self.l = nn.Linear(6, 2); self.c = nn.Linear(4, 2)\n"
    " def forward(self, x, *, context=None, scale=1.0{more}):\n  y = self.l(x)\n"
    "  return (y if context is None else y + self.c({use})) * scale\n"
)


def test_optional_inputs_that_reach_more_of_the_model(tmp_path: pathlib.Path) -> None:
    recipe, _ = _recipe(tmp_path, OPTIONAL.format(use="context", more=""))
    assert list(recipe["keywords"]) == ["context"] and "left_out" not in recipe  # type: ignore[call-overload]
    assert recipe["described"] == ("forward(float32[4, 6], context=float32[4, 4]), loss: the mean square of the output")


def test_records_of_samples_are_joined_by_sample(tmp_path: pathlib.Path) -> None:
    recipe, builder = _recipe(tmp_path, CASES["records of samples"])
    assert recipe["described"] == (
        "forward(float32[4, 6], [4 x {labels: int64[8], boxes: float32[8, 4]}]), loss: the output's `loss`"
    )
    joined = builder.full_batch(0, 2)
    assert joined is not None
    assert joined.args[0].shape == (8, 6) and [record["boxes"].shape for record in joined.args[1]] == [(8, 4)] * 8


def test_what_only_the_guess_leaves_out_is_frozen(tmp_path: pathlib.Path) -> None:
    recipe, builder = _recipe(tmp_path, OPTIONAL.format(use="context.nodes[0]", more=""))
    assert recipe["left_out"] == ["c.weight", "c.bias"]
    assert {n for n, p in builder.build().named_parameters() if not p.requires_grad} == {"c.weight", "c.bias"}


def test_a_flag_that_reaches_more(tmp_path: pathlib.Path) -> None:
    text = OPTIONAL.replace("context=None", "context=False").replace("is None", "is False").replace("{use}", "x[:, :4]")
    recipe, _ = _recipe(tmp_path, text.format(more=""))
    assert recipe["keywords"] == {"context": {"kind": "value", "value": True}}


def test_an_unused_layer_is_the_models_fault(tmp_path: pathlib.Path) -> None:
    text = LINEAR.replace("self.l = nn.Linear(6, 2)", "self.l = nn.Linear(6, 2); self.u = nn.Linear(6, 2)")
    recipe, builder = _recipe(tmp_path, text + " def forward(self, x): return self.l(x)\n")
    assert "left_out" not in recipe
    assert all(p.requires_grad for p in builder.build().parameters())


def test_all_that_trains_is_in_the_loss(tmp_path: pathlib.Path) -> None:
    text = LINEAR + " def forward(self, x):\n  y = self.l(x)\n  return y, (self.l.weight ** 2).sum()\n"
    recipe, builder = _recipe(tmp_path, text)
    assert str(recipe["described"]).endswith("loss: 1 scalar + the mean square of the output")
    model = builder.build()
    loss_of(call(model, builder.batch(0, 0))).backward()
    assert model.l.bias.grad is not None  # type: ignore[union-attr]


def test_what_a_distribution_is_made_of_is_in_the_loss(tmp_path: pathlib.Path) -> None:
    recipe, builder = _recipe(
        tmp_path,
        "class M(nn.Module):\n def __init__(self, obs_dim, n_actions):\n  super().__init__()\n"
        "  self.p = nn.Linear(obs_dim, n_actions); self.v = nn.Linear(obs_dim, 1)\n"
        " def forward(self, obs): return torch.distributions.Categorical(logits=self.p(obs)), self.v(obs)\n",
    )
    assert str(recipe["described"]).endswith("loss: the mean squares of 2 outputs")
    model = builder.build()
    loss_of(call(model, builder.batch(0, 0))).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_labels_give_the_models_own_loss(tmp_path: pathlib.Path) -> None:
    text = (
        LINEAR + " def forward(self, x, labels=None):\n  y = self.l(x)\n"
        "  loss = None if labels is None else nn.functional.cross_entropy(y, labels)\n  return {'loss': loss, 'y': y}\n"
    )
    recipe, _ = _recipe(tmp_path, text)
    assert str(recipe["described"]).endswith("int64[4]), loss: the output's `loss`")


TRAINING = (
    "class M(nn.Module):\n def __init__(self):\n  super().__init__(); self.l = nn.Linear(6, 2)\n"
    " def forward(self, x): raise RuntimeError('not what is trained')\n"
    " def training_step(self, batch, batch_idx):\n  x, y = batch\n"
    "  return nn.functional.cross_entropy(self.l(x), y)\n"
)


def test_a_training_step_runs_inside_of_the_wrapper(tmp_path: pathlib.Path) -> None:
    recipe, builder = _recipe(tmp_path, TRAINING)
    assert recipe["method"] == "training_step"

    class Wrapper(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module
            self.entered = 0

        def forward(self, *args: object) -> object:
            self.entered += 1
            return self.module(*args)

    wrapper = Wrapper(builder.build())
    assert call(wrapper, builder.batch(0, 0)).requires_grad and wrapper.entered == 1
    assert "forward" not in vars(wrapper.module), "the module is as it was"


def test_a_training_step_that_cannot_be_run_is_said(tmp_path: pathlib.Path) -> None:
    text = LINEAR + " def forward(self, x): return self.l(x)\n def training_step(self, tree): return tree.leaf()\n"
    recipe, _ = _recipe(tmp_path, text)
    assert "method" not in recipe or not recipe["method"]
    assert str(recipe["not_run"]).startswith("training_step: no batch was found")


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("example_input_array", "dummy_inputs", "kernelbench")]
)
def test_the_written_example_works_as_it_is(tmp_path: pathlib.Path, name: str) -> None:
    recipe, _ = _recipe(tmp_path, CASES[name])
    path = tmp_path / "model_of_test.py"
    source = of_recipe(sys.modules["model_of_test"], "M", recipe)
    path.write_text(path.read_text() + source)
    del sys.modules["model_of_test"]
    module = load(str(path), str(tmp_path))
    builder = Builder(module, "", find_recipe(module, "", "ddp_lint_example"))
    loss_of(call(builder.build(), builder.batch(0, 0))).backward()


def test_the_suggested_lines_fit_the_model(tmp_path: pathlib.Path) -> None:
    """Token ids are integers, a dict means keywords, what cannot be guessed is left to fill in."""
    path = tmp_path / "model_of_test.py"
    path.write_text(
        HEAD + "class M(nn.Module):\n def __init__(self, hidden_dim):\n  super().__init__()\n"
        "  self.e = nn.Embedding(7, hidden_dim)\n"
        " def forward(self, input_ids, *, graph): return self.e(input_ids) + graph.missing.edge\n"
    )
    module = load(str(path), str(tmp_path))
    with pytest.raises(CannotBuild) as error:
        find_recipe(module, "M", "")
    assert "model = M(hidden_dim=16)" in str(error.value)
    assert "(torch.randint(0, 7, (4, 8)),), {'graph': torch" in str(error.value)

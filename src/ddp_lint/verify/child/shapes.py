"""What a tensor that a model takes may look like: from the model's layers and from the name of the argument.

A specification is plain JSON: `kind` float, int (below `high`), ones (integers), bool (all true) or full (of the
integer `value`) with a `shape`; dict and tuple with `items`; list with `count` times `item`, one for each sample;
value with a `value` that is no tensor.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ddp_lint.verify.child.arguments import BATCH, SIZE

Spec = Mapping[str, Any]

_LENGTH = 8
_TARGETS = ("target", "label", "y", "tgt_ids", "targets", "labels")
_MASKS = ("mask",)
_BOXES = {"box", "boxes", "bbox", "bboxes"}
_LENGTHS = {"length", "lengths", "len", "lens", "seqlen", "seqlens"}
_STATES = {"hidden", "hiddens", "state", "states", "hx", "h", "prev"}
_IDS = ("ids", "idx", "id", "tokens", "token", "input", "indices", "index")
#: Candidates of one input that are tried.
_CANDIDATES = 12


def in_order(columns: list[list[dict[str, Any]]]) -> Iterator[tuple[dict[str, Any], ...]]:
    """Combinations, those of likely (early) candidates first."""
    indexed = itertools.product(*(list(enumerate(column[:_CANDIDATES])) for column in columns))
    chosen = sorted(itertools.islice(indexed, 20_000), key=lambda row: sum(index for index, _ in row))
    return (tuple(spec for _, spec in row) for row in chosen)


def candidates(model: nn.Module) -> Iterator[dict[str, Any]]:
    """What an input may look like, from the layers in order of registration."""
    seen = set()
    for spec in itertools.chain.from_iterable(_of_layer(layer) for layer in model.modules()):
        key = repr(spec)
        if key not in seen:
            seen.add(key)
            yield spec
    for layer in model.modules():
        if layer is not model and not type(layer).__module__.startswith("torch."):  # a layer of the user's own
            weights = (parameter for parameter in layer.parameters(recurse=False) if parameter.dim() > 1)
            for weight in itertools.islice(weights, 1):
                yield from (floats(BATCH, weight.shape[-1]), floats(BATCH, _LENGTH, weight.shape[-1]))
    for parameter in model.parameters(recurse=False):
        if parameter.dim():
            yield from (floats(BATCH, parameter.shape[-1]), floats(BATCH, parameter.shape[0]))
    yield from (floats(BATCH, SIZE), floats(BATCH, 4), floats(BATCH, 3, 32, 32), integers(4, BATCH, _LENGTH))


def _of_layer(layer: nn.Module) -> list[dict[str, Any]]:
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return [integers(layer.num_embeddings, BATCH, _LENGTH), integers(layer.num_embeddings, BATCH)]
    if isinstance(layer, nn.Linear):
        n = layer.in_features
        side = round((n // 3) ** 0.5)
        flat = [floats(BATCH, n), floats(BATCH, _LENGTH, n)]
        if n == 784:
            return [floats(BATCH, 1, 28, 28), *flat]
        return [*flat, *([floats(BATCH, 3, side, side)] if side * side * 3 == n else [])]
    if isinstance(layer, nn.modules.conv._ConvNd):
        return _of_convolution(layer)
    if isinstance(layer, nn.RNNBase):
        return [floats(BATCH, _LENGTH, layer.input_size)]
    if isinstance(layer, nn.RNNCellBase):
        return [floats(BATCH, layer.input_size), floats(BATCH, _LENGTH, layer.input_size)]
    if isinstance(layer, nn.MultiheadAttention):
        return [floats(BATCH, _LENGTH, layer.embed_dim)]
    if isinstance(layer, nn.Transformer):
        return [floats(BATCH, _LENGTH, layer.d_model)]
    if isinstance(layer, nn.LayerNorm):
        return [floats(BATCH, *layer.normalized_shape), floats(BATCH, _LENGTH, *layer.normalized_shape)]
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        n = layer.num_features
        return [floats(BATCH, n), floats(BATCH, n, SIZE), floats(BATCH, n, SIZE, SIZE)]
    if isinstance(layer, nn.GroupNorm):
        return [floats(BATCH, layer.num_channels, SIZE), floats(BATCH, layer.num_channels, SIZE, SIZE)]
    if isinstance(layer, nn.Bilinear):
        return [floats(BATCH, layer.in1_features), floats(BATCH, layer.in2_features)]
    return []


def _of_convolution(layer: nn.modules.conv._ConvNd) -> list[dict[str, Any]]:
    n, space = layer.in_channels, len(layer.kernel_size)
    if layer.transposed:  # of a generator: its input is noise, of small size
        return [floats(BATCH, n, *([1] * space)), floats(BATCH, n), floats(BATCH, n, *([_LENGTH] * space))]
    sizes = (32, 64, 224, 28) if space == 2 else (32, 16)
    return [floats(BATCH, n, *([size] * space)) for size in sizes]


def named_candidates(name: str, model: nn.Module) -> Iterator[dict[str, Any]]:
    """What the name of an argument says."""
    name = name.lower()
    heads = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)]
    tokens = [layer.num_embeddings for layer in model.modules() if isinstance(layer, nn.Embedding)]
    words = set(re.split(r"[^a-z]+", name))
    alike = [
        layer.num_embeddings
        for at, layer in model.named_modules()
        if isinstance(layer, nn.Embedding) and words & set(re.split(r"[^a-z]+", at.lower()))
    ]
    if is_target(name):
        high = heads[-1] if heads else 2
        yield from (integers(high, BATCH), integers(high, BATCH, _LENGTH))
        low = min((n for n in heads if n > 1), default=high)
        if low < high:
            yield from (integers(low, BATCH), integers(low, BATCH, _LENGTH))
        yield floats(BATCH, high)
    elif any(word in name for word in _MASKS):
        yield from (ones(BATCH, _LENGTH), {**ones(BATCH, _LENGTH), "kind": "ones"}, ones(_LENGTH, _LENGTH))
    elif name in ("t", "timestep", "timesteps"):
        yield from (integers(100, BATCH), floats(BATCH))
    elif words & _LENGTHS:
        yield from ({"shape": [BATCH], "kind": "full", "value": _LENGTH}, {"kind": "value", "value": _LENGTH})
    elif words & _STATES:
        yield from _states(model)
    elif words & _BOXES:
        yield floats(BATCH, _LENGTH, 4)
    elif "edge" in words:
        yield integers(BATCH, 2, _LENGTH)
    elif alike:
        shapes = [(BATCH,), (BATCH, _LENGTH)] if "id" in words else [(BATCH, _LENGTH), (BATCH,)]
        yield from (integers(min(alike), *shape) for shape in shapes)
    elif tokens and words & set(_IDS):
        for high in dict.fromkeys((max(tokens), min(tokens))):
            yield from (integers(high, BATCH, _LENGTH), integers(high, BATCH))


def _states(model: nn.Module) -> Iterator[dict[str, Any]]:
    """What a recurrent layer is given as its state, for a batch as its first or its second dimension."""
    layers = (layer for layer in model.modules() if isinstance(layer, nn.RNNBase))
    for layer in itertools.islice(layers, 1):
        for samples_ in (BATCH, _LENGTH) if layer.batch_first else (_LENGTH, BATCH):
            state = floats(layer.num_layers * (1 + layer.bidirectional), samples_, layer.hidden_size)
            yield {"kind": "tuple", "items": [state, state]} if isinstance(layer, nn.LSTM) else state


def is_target(name: str) -> bool:
    """The argument is what a loss compares with."""
    return name.lower() in _TARGETS


def floats(*shape: int) -> dict[str, Any]:
    return {"shape": list(shape), "kind": "float"}


def integers(high: int, *shape: int) -> dict[str, Any]:
    return {"shape": list(shape), "kind": "int", "high": high}


def ones(*shape: int) -> dict[str, Any]:
    return {"shape": list(shape), "kind": "bool"}


def samples(spec: Spec) -> dict[str, Any]:
    """A list that has one value for each sample of the batch that `spec` describes."""
    return {"kind": "list", "count": BATCH, "item": _sample(spec)}


def _sample(spec: Spec) -> Spec:
    if spec["kind"] == "dict":
        return {**spec, "items": {key: _sample(item) for key, item in spec["items"].items()}}
    return {**spec, "shape": spec["shape"][1:]}


def make(spec: Spec, generator: torch.Generator) -> Any:
    """A value of that specification."""
    if spec["kind"] == "dict":
        return {key: make(item, generator) for key, item in spec["items"].items()}
    if spec["kind"] == "tuple":
        return tuple(make(item, generator) for item in spec["items"])
    if spec["kind"] == "list":
        return [make(spec["item"], generator) for _ in range(spec["count"])]
    if spec["kind"] == "value":
        return spec["value"]
    if spec["kind"] == "int":
        return torch.randint(0, max(int(spec["high"]), 1), spec["shape"], generator=generator)
    if spec["kind"] == "full":
        return torch.full(spec["shape"], spec["value"])
    if spec["kind"] in ("bool", "ones"):
        return torch.ones(spec["shape"], dtype=torch.bool if spec["kind"] == "bool" else torch.long)
    return torch.randn(spec["shape"], generator=generator)


def source(spec: Spec) -> str:
    """The expression that makes such a value."""
    if spec["kind"] == "dict":
        return "{" + ", ".join(f"{key!r}: {source(item)}" for key, item in spec["items"].items()) + "}"
    if spec["kind"] == "tuple":
        return "(" + "".join(f"{source(item)}, " for item in spec["items"]).rstrip(" ") + ")"
    if spec["kind"] == "list":
        return f"[{source(spec['item'])} for _ in range({spec['count']})]"
    if spec["kind"] == "value":
        return repr(spec["value"])
    shape = ", ".join(map(str, spec["shape"]))
    if spec["kind"] == "int":
        return f"torch.randint(0, {spec['high']}, ({shape}{',' * (len(spec['shape']) == 1)}))"
    if spec["kind"] == "full":
        return f"torch.full(({shape}{',' * (len(spec['shape']) == 1)}), {spec['value']})"
    if spec["kind"] in ("bool", "ones"):
        return f"torch.ones({shape}, dtype=torch.{'bool' if spec['kind'] == 'bool' else 'long'})"
    return f"torch.randn({shape})"


def words(spec: Spec) -> str:
    """`float [4, 16]`, `{input_ids: int [4, 8]}`: for people."""
    if spec["kind"] == "dict":
        return "{" + ", ".join(f"{key}: {words(item)}" for key, item in spec["items"].items()) + "}"
    if spec["kind"] == "tuple":
        return "(" + ", ".join(map(words, spec["items"])) + ")"
    if spec["kind"] == "list":
        return f"list of {spec['count']} {words(spec['item'])}"
    return repr(spec["value"]) if spec["kind"] == "value" else f"{spec['kind']} {list(spec['shape'])}"

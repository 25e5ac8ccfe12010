"""How a model gets its arguments and inputs: from what its file offers, else inferred from its first layers."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import itertools
import pathlib
import random
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ddp_lint.verify.child.loss import loss_of

EXAMPLE = "ddp_lint_example"
BATCH = 4
_LENGTH = 8
_SIZE = 16
_TRIALS = 200
#: What an argument without a default is probably for, by parts of its name; the first that matches counts.
_ARGUMENTS: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("dropout", "drop_rate", "drop_path", "p_drop"), 0.0),
    (("upscale", "upsample", "factor", "ratio", "expansion", "mult"), 2),
    (("eps", "lr", "temperature", "scale", "alpha", "beta", "gamma"), 0.1),
    (("kernel",), 3),
    (("stride", "dilation", "groups"), 1),
    (("padding",), 1),
    (("in_channels", "in_chans", "n_channels", "num_channels", "input_channels", "img_channels"), 3),
    (("head",), 2),
    (("layer", "depth", "block_num", "num_blocks", "n_blocks"), 2),
    (("expert",), 2),
    (("vocab", "num_embeddings", "n_token", "ntoken"), 32),
    (("class", "out_features", "out_dim", "output", "num_labels"), 4),
    (("patch",), 4),
    (("image_size", "img_size", "resolution"), 32),
    (("block_size", "seq", "max_len", "context", "length", "max_position"), _SIZE),
    (("batch",), BATCH),
    (("bias", "use_", "is_", "with_"), False),
)  # fmt: skip
_SIZES = (
    "dim",
    "hidden",
    "embd",
    "embed",
    "width",
    "channels",
    "features",
    "size",
    "model",
    "planes",
    "in_",
    "n_",
    "num",
)
_TARGETS = ("target", "label", "y", "tgt_ids", "targets", "labels")
_MASKS = ("mask",)
#: In errors of autograd about what the model does to its tensors, not about what it was given.
_AUTOGRAD_OBJECTS = ("inplace", "in-place", "a leaf Variable", "does not require grad")


class CannotBuild(Exception):
    """The model cannot be built or run on one process: the message says what to add."""


class HazardInTrial(CannotBuild):
    """The inputs fit, and the model's own code fails in autograd: that is for the ranks to show."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """What one call of the model gets."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to(self, device: torch.device | str) -> Batch:
        return Batch(_map(self.args, lambda t: t.to(device)), _map(dict(self.kwargs), lambda t: t.to(device)))

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        return Batch(_map(self.args, change), _map(dict(self.kwargs), change))


def call(model: Callable[..., Any], batch: Batch) -> Any:
    return model(*batch.args, **batch.kwargs)


def seed_all(number: int) -> None:
    """Seed every generator that a model may draw from."""
    random.seed(number)
    torch.manual_seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % (1 << 32))


def load(path: str, root: str) -> ModuleType:
    """Import the target's file under its own name, in its package when it lies in one."""
    file = pathlib.Path(path)
    folder, parts = file.parent, [file.stem]
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    for entry in (root, str(folder)):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    if len(parts) > 1:
        return importlib.import_module(".".join(parts))
    spec = importlib.util.spec_from_file_location(file.stem, path)
    if spec is None or spec.loader is None:
        raise CannotBuild(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


class Builder:
    """Builds the model afresh and makes its batches, by a recipe.

    A recipe is plain JSON: `source` (entry, example_input_array, dummy_inputs, kernelbench, inferred), the name of the
    entry function, `overrides` (constructor arguments by name that were guessed), `inputs` (inferred specifications
    by position) and `keywords` (by name). Batches differ by step and rank and are the same on every call.
    """

    def __init__(self, module: ModuleType, name: str, recipe: Mapping[str, Any]) -> None:
        self._module = module
        self._name = name
        self._recipe = recipe
        self._example: Batch | None = None

    def build(self, device: torch.device | str = "cpu") -> nn.Module:
        """A new model, with the same weights on every call in every process, unless its own code differs by rank.

        It is made on the device: moving it there would give parameters that share memory a storage each.
        """
        with torch.device(device):
            return self._build().to(device)

    def _build(self) -> nn.Module:
        seed_all(0)
        source = self._recipe["source"]
        if source == "entry":
            model, inputs = _example_of(self._module, self._recipe["entry"])
            self._example = _as_batch(inputs)
            return model
        model = construct(self._class, self._module, self._recipe.get("shrink", True))
        if source != "inferred":
            self._example = _offered(self._module, model, source)
        return model

    @property
    def _class(self) -> type[nn.Module]:
        return typing.cast(type[nn.Module], getattr(self._module, self._name))

    def batch(self, step: int, rank: int) -> Batch:
        """The batch of a rank in a step."""
        generator = torch.Generator().manual_seed(1000 + 100 * step + rank)
        if self._example is None and self._recipe["source"] != "inferred":
            self.build()  # which is what makes the example
        if self._example is not None:
            return self._example.map(lambda tensor: _vary(tensor, generator))
        made = {key: _make(spec, generator) for key, spec in self._recipe["keywords"].items()}
        return Batch(tuple(_make(spec, generator) for spec in self._recipe["inputs"]), made)

    def full_batch(self, step: int, world: int) -> Batch | None:
        """The batches of all ranks as one, None when they cannot be joined (no tensor has a batch dimension)."""
        batches = [self.batch(step, rank) for rank in range(world)]
        flat = [_tensors(batch) for batch in batches]
        sizes = [tensor.shape[0] for tensor in flat[0] if tensor.dim()]
        if not sizes:
            return None
        joined = iter(
            [
                torch.cat(row) if row[0].dim() and row[0].shape[0] == sizes[0] else row[0]
                for row in zip(*flat, strict=True)
            ]
        )
        return batches[0].map(lambda _: next(joined))


# ---- finding a recipe


def find_recipe(module: ModuleType, name: str, entry: str) -> dict[str, Any]:
    """The first way that works, tried on one process. Raises CannotBuild."""
    if entry:
        recipe: dict[str, Any] = {"source": "entry", "entry": entry}
        with contextlib.suppress(HazardInTrial):
            _try(Builder(module, name, recipe), entry)
        return recipe
    cls = getattr(module, name)
    reasons: list[str] = []
    for shrink in (True, False):
        try:
            seed_all(0)
            model = construct(cls, module, shrink)
        except Exception as error:
            reasons.append(f"{name}({', '.join(_required(cls))}) could not be made: {_line(error)}")
            continue
        for source in _offers(module, model):
            recipe = {"source": source, "shrink": shrink}
            try:
                _try(Builder(module, name, recipe), name)
                return recipe
            except HazardInTrial:
                return recipe
            except CannotBuild as error:
                reasons.append(str(error))
        found = _infer(module, name, model, shrink, reasons)
        if found is not None:
            return found
    raise CannotBuild(advice(module, cls, reasons))


def _try(builder: Builder, what: str) -> None:
    """One forward and backward. Raises HazardInTrial when the inputs fit and autograd objects, else CannotBuild."""
    fits = False
    try:
        model = builder.build()
        loss = loss_of(call(model, builder.batch(0, 0)))
        fits = True
        loss.backward()
    except CannotBuild:
        raise
    except Exception as error:
        objected = fits or any(words in str(error) for words in _AUTOGRAD_OBJECTS)
        text = f"{what}: one training step on one process fails: {_line(error)}"
        raise (HazardInTrial if objected else CannotBuild)(text) from error


def _example_of(module: ModuleType, entry: str) -> tuple[nn.Module, Any]:
    made = getattr(module, entry)()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise CannotBuild(f"{entry}() must return (module, inputs), inputs a tuple or a dict; it returned {type(made)}")
    return made


def _offers(module: ModuleType, model: nn.Module) -> Iterator[str]:
    if getattr(model, "example_input_array", None) is not None:
        yield "example_input_array"
    if _dummy_inputs(model) is not None:
        yield "dummy_inputs"
    if callable(getattr(module, "get_inputs", None)):
        yield "kernelbench"


def _offered(module: ModuleType, model: nn.Module, source: str) -> Batch:
    if source == "example_input_array":
        return _as_batch(model.example_input_array)
    if source == "dummy_inputs":
        return _as_batch(_dummy_inputs(model))
    return _as_batch(module.get_inputs())


def _dummy_inputs(model: nn.Module) -> Any:
    """transformers' `dummy_inputs` (a property of its models)."""
    return getattr(model, "dummy_inputs", None)


def _as_batch(inputs: Any) -> Batch:
    if isinstance(inputs, Mapping):
        return Batch((), dict(inputs))
    if isinstance(inputs, list | tuple):
        if len(inputs) == 2 and isinstance(inputs[0], tuple) and isinstance(inputs[1], dict):
            return Batch(inputs[0], inputs[1])
        return Batch(tuple(inputs))
    return Batch((inputs,))


# ---- the constructor's arguments


def construct(cls: Any, module: ModuleType, shrink: bool) -> Any:
    """An instance: KernelBench's `get_init_inputs()`, else defaults, guessed values for what has none.

    `shrink` replaces sizes in dataclass configurations by small ones (a GPT of 124 million parameters tests nothing
    that one of two small layers does not).
    """
    offered = getattr(module, "get_init_inputs", None)
    if callable(offered):
        given = offered()
        return cls(**given) if isinstance(given, dict) else cls(*given)
    return cls(**{p.name: _guess(p, cls, module, shrink) for p in _parameters(cls) if _needed(p)})


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _needed(parameter: inspect.Parameter) -> bool:
    named = parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return named and parameter.default is inspect.Parameter.empty


def _required(function: Any) -> list[str]:
    return [parameter.name for parameter in _parameters(function) if _needed(parameter)]


def _guess(parameter: inspect.Parameter, owner: Any, module: ModuleType, shrink: bool) -> Any:
    """A value for a constructor's argument, from its annotation and its name."""
    kind = _annotation(parameter, owner, module)
    name = parameter.name.lower()
    if dataclasses.is_dataclass(kind):
        return _config(kind, module, shrink)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, nn.Module):
        return construct(kind, module, shrink)
    if kind is inspect.Parameter.empty and name in ("config", "cfg", "args", "conf", "hparams", "opt", "params"):
        configs = [value for key, value in vars(module).items() if _is_config(key, value, module)]
        if configs:
            return _config(configs[0], module, shrink)
    if kind is torch.device or name == "device":
        return "cpu"
    if kind is torch.dtype or name == "dtype":
        return torch.float32
    return _by_name(name, kind)


def _annotation(parameter: inspect.Parameter, owner: Any, module: ModuleType) -> Any:
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    scope = {**vars(typing), **vars(module)}
    try:
        return eval(parameter.annotation, scope)
    except Exception:
        return inspect.Parameter.empty


def _is_config(name: str, value: Any, module: ModuleType) -> bool:
    own = getattr(value, "__module__", None) == module.__name__
    return own and isinstance(value, type) and any(word in name for word in ("Config", "Args", "Params"))


def _config(kind: Any, module: ModuleType, shrink: bool) -> Any:
    """A configuration object of the file's own: its defaults, guessed where there are none, sizes made small."""
    if not dataclasses.is_dataclass(kind):
        return construct(kind, module, shrink)
    given = {}
    for field in dataclasses.fields(kind):
        default = field.default
        missing = default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if not field.init or not (missing or shrink):
            continue
        if missing:
            parameter = inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=field.type)
            given[field.name] = _guess(parameter, kind, module, shrink)
        elif type(default) is int and default > 4:
            given[field.name] = _by_name(field.name.lower(), int)
    return kind(**given)  # type: ignore[operator]


def _by_name(name: str, kind: Any) -> Any:
    if kind is bool:
        return False
    if kind is str or "type" in name:
        return "LSTM" if "rnn" in name else ""
    for words, value in _ARGUMENTS:
        if any(word in name for word in words):
            return float(value) if kind is float else int(value) if kind is int else value
    if kind is float:
        return 0.1
    if kind is int or any(word in name for word in _SIZES):
        return _SIZE
    if typing.get_origin(kind) in (list, tuple) or kind in (list, tuple) or name.endswith("s"):
        return [_SIZE, _SIZE]
    raise CannotBuild(f"no value for the argument {name!r}")


# ---- the inputs


def _infer(module: ModuleType, name: str, model: nn.Module, shrink: bool, reasons: list[str]) -> dict[str, Any] | None:
    """Inputs that the model's forward takes, from its first layers, by trial."""
    required = [p for p in _parameters(model.forward) if _needed(p)]
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in _parameters(model.forward)) and not required:
        required = [inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    layers = list(_candidates(model))
    columns = [list(_named_candidates(p.name.lower(), model)) + layers for p in required]
    first_error = ""
    objected: dict[str, Any] | None = None
    for specs in itertools.islice(_in_order(columns), _TRIALS):
        recipe = {"source": "inferred", "shrink": shrink, "inputs": list(specs), "keywords": {}}
        try:
            _try(Builder(module, name, recipe), name)
            return recipe
        except HazardInTrial:
            objected = objected or recipe
        except CannotBuild as error:
            first_error = first_error or str(error)
    if first_error and objected is None:
        reasons.append(f"with inputs {_show(columns)}: {first_error}")
    return objected


def _in_order(columns: list[list[dict[str, Any]]]) -> Iterator[tuple[dict[str, Any], ...]]:
    """Combinations, those of likely (early) candidates first."""
    indexed = itertools.product(*(list(enumerate(column[:12])) for column in columns))
    chosen = sorted(itertools.islice(indexed, 20_000), key=lambda row: sum(index for index, _ in row))
    return (tuple(spec for _, spec in row) for row in chosen)


def _candidates(model: nn.Module) -> Iterator[dict[str, Any]]:
    """What an input may look like, from the layers in order of registration."""
    seen = set()
    for spec in itertools.chain.from_iterable(_of_layer(layer) for layer in model.modules()):
        key = repr(spec)
        if key not in seen:
            seen.add(key)
            yield spec
    for parameter in model.parameters(recurse=False):
        if parameter.dim():
            yield from (_floats(BATCH, parameter.shape[-1]), _floats(BATCH, parameter.shape[0]))
    yield from (_floats(BATCH, _SIZE), _floats(BATCH, 4), _floats(BATCH, 3, 32, 32), _integers(4, BATCH, _LENGTH))


def _of_layer(layer: nn.Module) -> list[dict[str, Any]]:
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return [_integers(layer.num_embeddings, BATCH, _LENGTH), _integers(layer.num_embeddings, BATCH)]
    if isinstance(layer, nn.Linear):
        n = layer.in_features
        side = round((n // 3) ** 0.5)
        flat = [_floats(BATCH, n), _floats(BATCH, _LENGTH, n)]
        if n == 784:
            return [_floats(BATCH, 1, 28, 28), *flat]
        return [*flat, *([_floats(BATCH, 3, side, side)] if side * side * 3 == n else [])]
    if isinstance(layer, nn.modules.conv._ConvNd):
        space = len(layer.kernel_size)
        sizes = (32, 64, 224, 28) if space == 2 else (32, 16)
        return [_floats(BATCH, layer.in_channels, *([size] * space)) for size in sizes]
    if isinstance(layer, nn.RNNBase):
        return [_floats(BATCH, _LENGTH, layer.input_size)]
    if isinstance(layer, nn.RNNCellBase):
        return [_floats(BATCH, layer.input_size)]
    if isinstance(layer, nn.MultiheadAttention):
        return [_floats(BATCH, _LENGTH, layer.embed_dim)]
    if isinstance(layer, nn.Transformer):
        return [_floats(BATCH, _LENGTH, layer.d_model)]
    if isinstance(layer, nn.LayerNorm):
        return [_floats(BATCH, *layer.normalized_shape), _floats(BATCH, _LENGTH, *layer.normalized_shape)]
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        n = layer.num_features
        return [_floats(BATCH, n), _floats(BATCH, n, _SIZE), _floats(BATCH, n, _SIZE, _SIZE)]
    if isinstance(layer, nn.GroupNorm):
        return [_floats(BATCH, layer.num_channels, _SIZE), _floats(BATCH, layer.num_channels, _SIZE, _SIZE)]
    if isinstance(layer, nn.Bilinear):
        return [_floats(BATCH, layer.in1_features), _floats(BATCH, layer.in2_features)]
    return []


def _named_candidates(name: str, model: nn.Module) -> Iterator[dict[str, Any]]:
    """What the name of an argument says."""
    heads = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)]
    tokens = [layer.num_embeddings for layer in model.modules() if isinstance(layer, nn.Embedding)]
    if name in _TARGETS:
        high = heads[-1] if heads else 2
        yield from (_integers(high, BATCH), _integers(high, BATCH, _LENGTH), _floats(BATCH, high))
    elif any(word in name for word in _MASKS):
        yield from (_ones(BATCH, _LENGTH), _ones(_LENGTH, _LENGTH))
    elif name in ("t", "timestep", "timesteps"):
        yield from (_integers(100, BATCH), _floats(BATCH))
    elif tokens and any(word in name for word in ("ids", "idx", "tokens", "input")):
        yield _integers(tokens[0], BATCH, _LENGTH)


def _floats(*shape: int) -> dict[str, Any]:
    return {"shape": list(shape), "kind": "float"}


def _integers(high: int, *shape: int) -> dict[str, Any]:
    return {"shape": list(shape), "kind": "int", "high": high}


def _ones(*shape: int) -> dict[str, Any]:
    return {"shape": list(shape), "kind": "bool"}


def _make(spec: Mapping[str, Any], generator: torch.Generator) -> torch.Tensor:
    if spec["kind"] == "int":
        return torch.randint(0, max(int(spec["high"]), 1), spec["shape"], generator=generator)
    if spec["kind"] == "bool":
        return torch.ones(spec["shape"], dtype=torch.bool)
    return torch.randn(spec["shape"], generator=generator)


def _vary(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Another batch like the example: noise on numbers, samples drawn anew from its own for the rest."""
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        return tensor + 0.1 * torch.randn(tensor.shape, generator=generator).to(tensor.dtype) * (tensor.abs() + 0.1)
    if tensor.dim() and tensor.shape[0] > 1:
        return tensor[torch.randint(0, tensor.shape[0], (tensor.shape[0],), generator=generator)]
    return tensor.clone()


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Nested tuples, lists and dicts with their tensors changed; other values copied."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_map(item, change) for item in value)
    return copy.copy(value)


def _tensors(batch: Batch) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    batch.map(lambda tensor: (found.append(tensor), tensor)[1])  # type: ignore[func-returns-value]
    return found


# ---- when nothing fits


def advice(module: ModuleType, cls: Any, reasons: list[str]) -> str:
    """What failed, and the lines to add, with the class's own signature."""
    made = ", ".join(f"{name}=..." for name in _required(cls))
    inputs = "".join(f"{name}, " for name in _required(cls.forward)[1:]) or "x, "
    shapes = "\n".join(f"    {name.strip()} = torch.randn(4, ...)" for name in inputs.split(",") if name.strip())
    return (
        f"{module.__file__}: {cls.__name__}: no arguments and inputs found that work"
        + "".join(f"\n  {reason}" for reason in list(dict.fromkeys(reasons))[:3])
        + f"\nAdd this to the file (or name such a function with --entry):\n\n"
        f"def {EXAMPLE}():\n"
        f"    # {cls.__name__}{_signature(cls)}\n"
        f"    # forward{_signature(cls.forward)}\n"
        f"    model = {cls.__name__}({made})\n{shapes}\n"
        f"    return model, ({inputs.strip()})\n"
    )


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return "(...)"


def _show(columns: list[list[dict[str, Any]]]) -> str:
    return ", ".join(f"{column[0]['kind']}{column[0]['shape']}" for column in columns if column)


def _line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}"

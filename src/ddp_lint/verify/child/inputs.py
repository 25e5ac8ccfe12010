"""How a model gets its arguments and inputs: from what its file offers, else inferred from its first layers."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import pathlib
import random
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ddp_lint.verify.child import loss, shapes
from ddp_lint.verify.child.arguments import BATCH, CannotBuild, construct, named, needed, parameters, required
from ddp_lint.verify.child.arrangements import Arrangement, arrangements
from ddp_lint.verify.child.dispatch import changed
from ddp_lint.verify.child.example import advice, left_open
from ddp_lint.verify.child.loss import loss_of
from ddp_lint.verify.frames import in_package

#: How a LightningModule trains.
TRAINING_STEP = "training_step"
_TRIALS = 200
#: Trials for what the forward takes besides.
_MORE_TRIALS = 8
#: In errors of autograd about what the model does to its tensors, not about what it was given.
_AUTOGRAD_OBJECTS = ("inplace", "in-place", "a leaf Variable", "does not require grad")


class HazardInTrial(CannotBuild):
    """The inputs fit, and the model's own code fails in autograd: that is for the ranks to show."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """What one call of the model gets. `method` is what is called inside of the wrapper, "" for its forward."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    method: str = ""

    def to(self, device: torch.device | str) -> Batch:
        return self.map(lambda tensor: tensor.to(device))

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        return Batch(changed(self.args, change), changed(dict(self.kwargs), change), self.method)


def call(model: Callable[..., Any], batch: Batch) -> Any:
    """Call the model as its training does: another method than forward runs inside of the wrapper's own forward, as
    Lightning does it, so that the wrapper prepares and gathers what it has to."""
    if not batch.method:
        return model(*batch.args, **batch.kwargs)
    inner: Any = getattr(model, "module", model)
    before = vars(inner).get("forward")

    def redirected(*args: Any, **kwargs: Any) -> Any:
        restore()
        return getattr(inner, batch.method)(*args, **kwargs)

    def restore() -> None:
        vars(inner).pop("forward", None)
        if before is not None:
            inner.forward = before

    inner.forward = redirected
    try:
        return model(*batch.args, **batch.kwargs)
    finally:
        restore()


def seed_all(number: int) -> None:
    """Seed every generator that a model may draw from."""
    random.seed(number)
    torch.manual_seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % (1 << 32))


def load(path: str, root: str) -> ModuleType:
    """Import the target's file under its own name, in its package when it lies in one."""
    folder, name = in_package(pathlib.Path(path))
    for entry in (root, str(folder)):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    if "." in name:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CannotBuild(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Builder:
    """Builds the model afresh and makes its batches, by a recipe.

    A recipe is plain JSON: `source` (entry, given, example_input_array, dummy_inputs, kernelbench, inferred), the name
    of the entry function, `file` (of what was given), `inputs` (specifications by position), `keywords` (by name),
    `method` (what is called, "" for forward), `left_out` (parameters that these inputs do not reach although others
    might), `described` (inputs and loss in words). Batches differ by step and rank and are the same on every call.
    """

    def __init__(self, module: ModuleType, name: str, recipe: Mapping[str, Any]) -> None:
        self._module = module
        self._name = name
        self._recipe = recipe
        self._example: Batch | None = None

    def build(self, device: torch.device | str = "cpu") -> nn.Module:
        """A new model, with the same weights on every call in every process, unless its own code differs by rank.

        It is made on the device: moving it there would give parameters that share memory a storage each. What the
        guessed inputs do not reach is frozen: that it gets no gradient is no property of the model.
        """
        with torch.device(device):
            model = self._build().to(device)
        for name in self._recipe.get("left_out", ()):
            model.get_parameter(name).requires_grad_(False)
        return model

    def _build(self) -> nn.Module:
        seed_all(0)
        source = self._recipe["source"]
        if source == "entry":
            model, inputs = _example_of(self._module, self._recipe["entry"])
            self._example = _as_batch(inputs)
            return model
        if source == "given":
            given = torch.load(self._recipe["file"], weights_only=False)
            self._example = _as_batch(given["inputs"])
            return typing.cast(nn.Module, self._class(*given["args"], **given["kwargs"]))
        model = construct(self._class, self._module, self._recipe.get("shrink", True)).value
        if source != "inferred":
            self._example = _offered(self._module, model, source)
        return typing.cast(nn.Module, model)

    @property
    def _class(self) -> type[nn.Module]:
        found: Any = self._module
        for part in self._name.split("."):
            found = getattr(found, part)
        return typing.cast(type[nn.Module], found)

    def batch(self, step: int, rank: int) -> Batch:
        """The batch of a rank in a step."""
        generator = torch.Generator().manual_seed(1000 + 100 * step + rank)
        if self._example is None and self._recipe["source"] != "inferred":
            self.build()  # which is what makes the example
        if self._example is not None:
            return self._example.map(lambda tensor: _vary(tensor, generator))
        made = {key: shapes.make(spec, generator) for key, spec in self._recipe["keywords"].items()}
        inputs = tuple(shapes.make(spec, generator) for spec in self._recipe["inputs"])
        return Batch(inputs, made, self._recipe.get("method", ""))

    def full_batch(self, step: int, world: int) -> Batch | None:
        """The batches of all ranks as one, None when they cannot be joined (no tensor has a batch dimension)."""
        batches = [self.batch(step, rank) for rank in range(world)]
        sizes = [tensor.shape[0] for tensor in _tensors(batches[0]) if tensor.dim()]
        if not sizes:
            return None
        guessed = self._example is None
        size = BATCH if guessed else sizes[0]
        args, kwargs = _joined([(batch.args, dict(batch.kwargs)) for batch in batches], size, of_samples=guessed)
        return Batch(args, kwargs, batches[0].method)


def _joined(values: Sequence[Any], size: int, *, of_samples: bool) -> Any:
    """The values of several batches of `size` samples as that of one. `of_samples`: a list has one value for each
    sample; else it has tensors that have a batch dimension, as a tuple does."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _joined([value[key] for value in values], size, of_samples=of_samples) for key in first}
    if isinstance(first, list) and of_samples:
        return [sample for value in values for sample in value]
    if isinstance(first, list | tuple) and not hasattr(first, "_fields"):
        rows = zip(*values, strict=True)
        return type(first)(_joined(row, size, of_samples=of_samples) for row in rows)
    if isinstance(first, torch.Tensor) and first.dim() and first.shape[0] == size:
        return torch.cat(list(values))
    if isinstance(first, torch.Tensor) and of_samples and first.dim() > 1 and first.shape[1] == size:
        return torch.cat(list(values), 1)  # the state of a recurrent layer
    return first


# ---- finding a recipe


def find_recipe(module: ModuleType, name: str, entry: str, given: str = "") -> dict[str, Any]:
    """The first way that works, tried on one process. Raises CannotBuild."""
    line = left_open(getattr(module, entry, None)) if entry else 0
    if line:
        raise CannotBuild(
            f"{module.__file__}:{line}: {entry}() still has `...` for a value: replace it by one that fits"
        )
    if entry or given:
        recipe: dict[str, Any] = {"source": "entry", "entry": entry} if entry else {"source": "given", "file": given}
        with contextlib.suppress(HazardInTrial):
            recipe["described"] = _try(Builder(module, name, recipe), entry or name).described
        return recipe
    cls = getattr(module, name)
    reasons: list[str] = []
    for shrink in (True, False):
        try:
            seed_all(0)
            model = construct(cls, module, shrink).value
        except Exception as error:
            why = str(error) if isinstance(error, CannotBuild) else _line(error)
            reasons.append(f"{name}({', '.join(required(cls))}) could not be made: {why}")
            continue
        found = _for_model(module, name, model, shrink, reasons)
        if found is not None:
            return found
    raise CannotBuild(advice(module, cls, reasons))


def _for_model(
    module: ModuleType, name: str, model: nn.Module, shrink: bool, reasons: list[str]
) -> dict[str, Any] | None:
    """A recipe for a model that could be made. Lightning's way of training comes before its forward."""
    if callable(getattr(model, TRAINING_STEP, None)):
        found = _Search(module, name, model, shrink, TRAINING_STEP).run(reasons)
        if found is not None:
            return found
    for source in _offers(module, model):
        recipe: dict[str, Any] = {"source": source, "shrink": shrink}
        try:
            return _complete(recipe, model, _try(Builder(module, name, recipe), name))
        except HazardInTrial:
            return _complete(recipe, model, None)
        except CannotBuild as error:
            reasons.append(str(error))
    return _Search(module, name, model, shrink, "").run(reasons)


def _complete(recipe: dict[str, Any], model: nn.Module, trial: Trial | None) -> dict[str, Any]:
    """What the report says of the recipe."""
    if trial is not None:
        recipe["described"] = trial.described
    if callable(getattr(model, TRAINING_STEP, None)) and not recipe.get("method"):
        recipe["not_run"] = f"{TRAINING_STEP}: no batch was found that it takes; forward was run instead"
    return recipe


class Trial(typing.NamedTuple):
    """One training step on one process: the inputs and the loss in words, the parameters without a gradient."""

    described: str
    unreached: tuple[str, ...]


def _try(builder: Builder, what: str) -> Trial:
    """One forward and backward. Raises HazardInTrial when the inputs fit and autograd objects, else CannotBuild."""
    fits = False
    try:
        model = builder.build()
        batch = builder.batch(0, 0)
        output = call(model, batch)
        value = loss_of(output)
        fits = True
        value.backward()
    except CannotBuild:
        raise
    except Exception as error:
        objected = fits or any(words in str(error) for words in _AUTOGRAD_OBJECTS)
        text = f"{what}: one training step on one process fails: {_line(error)}"
        raise (HazardInTrial if objected else CannotBuild)(text) from error
    without = tuple(name for name, p in model.named_parameters() if p.requires_grad and p.grad is None)
    arguments = ", ".join([*map(_shown, batch.args), *(f"{key}={_shown(item)}" for key, item in batch.kwargs.items())])
    return Trial(f"{batch.method or 'forward'}({arguments}), loss: {loss.described(output)}", without)


def _shown(value: Any) -> str:
    """A value in a report: dtype and shape of a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        shown = [_shown(item) for item in value]
        return f"[{len(shown)} x {shown[0]}]" if len(shown) > 1 and len(set(shown)) == 1 else f"[{', '.join(shown)}]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_shown, value)) + ")"
    return repr(value)[:40]


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


# ---- the inputs


class _Search:
    """Inputs that a method of the model takes, by trial: what it needs first, then what reaches more of the model."""

    def __init__(self, module: ModuleType, name: str, model: nn.Module, shrink: bool, method: str) -> None:
        self._module = module
        self._name = name
        self._model = model
        self._recipe: dict[str, Any] = {"source": "inferred", "shrink": shrink, "method": method}
        self._function = getattr(model, method or "forward")
        self._layers = [*_example_specs(model), *shapes.candidates(model)]

    def run(self, reasons: list[str]) -> dict[str, Any] | None:
        """A recipe; None, with the first error in `reasons`, when nothing was found."""
        objected: dict[str, Any] | None = None
        first_error = ""
        for names in self._calls():
            for specs in self._filled(names):
                recipe = self._with(specs)
                try:
                    trial = _try(Builder(self._module, self._name, recipe), self._name)
                except HazardInTrial:
                    objected = objected or recipe
                except CannotBuild as error:
                    first_error = first_error or f"with {', '.join(map(shapes.words, specs.values()))}: {error}"
                else:
                    return _complete(*self._extended(specs, trial))
        if first_error and objected is None:
            reasons.append(first_error)
        return _complete(objected, self._model, None) if objected is not None else None

    def _calls(self) -> Iterator[list[str]]:
        """The arguments to pass: those without a default; where there are none, the first, or the first two."""
        found = [p for p in parameters(self._function) if named(p)]
        names = [p.name for p in found if needed(p)]
        if names or not found:
            variable = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters(self._function))
            yield names or (["x"] if variable else [])
            return
        yield from ([p.name for p in found[:count]] for count in (1, 2) if len(found) >= count)

    def _filled(self, names: Sequence[str]) -> Iterator[dict[str, shapes.Spec]]:
        """Specifications for these arguments, the likely ones first, each way of taking them apart in its turn."""
        ways = [self._ways(name) for name in names]
        for chosen in itertools.islice(itertools.product(*ways), 8):
            leaves = [leaf for way in chosen for leaf in way.leaves]
            columns = [self._candidates(leaf) for leaf in leaves]
            for row in itertools.islice(shapes.in_order(columns), _TRIALS // max(len(ways), 1)):
                rest = iter(row)
                yield {
                    name: way.filled(tuple(itertools.islice(rest, len(way.leaves))))
                    for name, way in zip(names, chosen, strict=True)
                }

    def _ways(self, name: str) -> list[Arrangement]:
        if name == "batch_idx":
            return [Arrangement("tensor", (name,))]
        return arrangements(name, self._function)

    def _candidates(self, leaf: str) -> list[dict[str, Any]]:
        if leaf == "batch_idx":
            return [{"kind": "value", "value": 0}]
        return [*shapes.named_candidates(leaf, self._model), *self._layers]

    def _with(self, specs: Mapping[str, shapes.Spec]) -> dict[str, Any]:
        """The recipe that passes these arguments, in their order where the signature takes them by position."""
        kinds = {p.name: p.kind for p in parameters(self._function)}
        order = [p.name for p in parameters(self._function) if p.name in specs]
        by_position: list[str] = []
        for name in order or list(specs):
            if kinds.get(name) is inspect.Parameter.KEYWORD_ONLY or len(by_position) != _position(name, kinds, specs):
                break
            by_position.append(name)
        return {
            **self._recipe,
            "inputs": [specs[name] for name in by_position],
            "keywords": {name: spec for name, spec in specs.items() if name not in by_position},
        }

    def _extended(self, specs: dict[str, shapes.Spec], trial: Trial) -> tuple[dict[str, Any], nn.Module, Trial]:
        """With the optional arguments that a user would pass as well: what the loss compares with, and what reaches
        parameters that are not reached so far."""
        optional = [p for p in parameters(self._function) if named(p) and not needed(p) and p.name not in specs]
        passed_over = 0
        for parameter in optional:
            if not (trial.unreached or shapes.is_target(parameter.name)):
                continue
            better = self._better(specs, trial, parameter)
            if better is None:
                passed_over += parameter.default is None or isinstance(parameter.default, bool)
            else:
                specs, trial = better
        recipe = self._with(specs)
        if trial.unreached and passed_over:
            recipe["left_out"] = list(trial.unreached)
        return recipe, self._model, trial

    def _better(
        self, specs: dict[str, shapes.Spec], trial: Trial, parameter: inspect.Parameter
    ) -> tuple[dict[str, shapes.Spec], Trial] | None:
        """With one more argument, when that works and reaches more (a target: when it works)."""
        for spec in self._optional(parameter):
            more = {**specs, parameter.name: spec}
            with contextlib.suppress(CannotBuild):
                found = _try(Builder(self._module, self._name, self._with(more)), self._name)
                if len(found.unreached) < len(trial.unreached):
                    return more, found
                if shapes.is_target(parameter.name) and len(found.unreached) == len(trial.unreached):
                    return more, found
        return None

    def _optional(self, parameter: inspect.Parameter) -> Iterator[shapes.Spec]:
        if isinstance(parameter.default, bool):
            yield {"kind": "value", "value": not parameter.default}
        elif parameter.default is None:
            for way in self._ways(parameter.name):
                rows = shapes.in_order([self._candidates(leaf) for leaf in way.leaves])
                yield from map(way.filled, itertools.islice(rows, _MORE_TRIALS * len(way.leaves)))
            yield {"kind": "value", "value": True}


def _position(name: str, kinds: Mapping[str, Any], specs: Mapping[str, Any]) -> int:
    """Where the signature has an argument; what it does not name (`*args`) comes in the order given."""
    names = list(kinds) if name in kinds else list(specs)
    return names.index(name)


def _example_specs(model: nn.Module) -> Iterator[dict[str, Any]]:
    """What a Lightning module says of its input, for the first tensor of its batch."""
    example = getattr(model, "example_input_array", None)
    for value in (example if isinstance(example, list | tuple) else [example])[:1]:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            yield shapes.floats(*value.shape)


def _vary(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Another batch like the example: noise on numbers, samples drawn again from its own for the rest."""
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        return tensor + 0.1 * torch.randn(tensor.shape, generator=generator).to(tensor.dtype) * (tensor.abs() + 0.1)
    if tensor.dim() and tensor.shape[0] > 1:
        return tensor[torch.randint(0, tensor.shape[0], (tensor.shape[0],), generator=generator)]
    return tensor.clone()


def _tensors(batch: Batch) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    batch.map(lambda tensor: (found.append(tensor), tensor)[1])  # type: ignore[func-returns-value]
    return found


def _line(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}"

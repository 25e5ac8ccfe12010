"""What a model's constructor is given where it has no defaults: guessed from annotations, names and the source."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import inspect
import itertools
import textwrap
import types
import typing
from collections import abc
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ddp_lint.source.imports import last_part
from ddp_lint.verify.control_flow import assigned

BATCH = 4
SIZE = 16
#: What an argument without a default is probably for, by parts of its name; the first that matches counts.
_ARGUMENTS: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("dropout", "drop_rate", "drop_path", "p_drop", "pdrop", "prob"), 0.0),
    (("upscale", "upsample", "factor", "ratio", "expansion", "mult"), 2),
    (("eps", "lr", "temperature", "scale", "alpha", "beta", "gamma", "decay", "std", "initializer_range"), 0.1),
    (("kernel",), 3),
    (("stride", "dilation", "groups"), 1),
    (("padding_idx", "pad_token"), 0),
    (("padding",), 1),
    (("in_ch", "ch_in", "input_nc", "n_channels", "num_channels", "input_channels", "img_channels"), 3),
    (("head",), 2),
    (("num_hidden_layers", "layer", "depth", "block_num", "num_blocks", "n_blocks"), 2),
    (("expert",), 2),
    (("type_vocab",), 2),
    (("vocab", "num_embeddings", "n_token", "ntoken"), 32),
    (("class", "out_features", "out_dim", "output", "num_labels"), 4),
    (("patch",), 4),
    (("image_size", "img_size", "resolution"), 32),
    (("block_size", "seq", "max_len", "context", "length", "max_position", "n_positions"), SIZE),
    (("batch",), BATCH),
    (("bias", "use_", "is_", "with_", "tie_"), False),
)  # fmt: skip
_SIZES = (
    "dim", "hidden", "embd", "embed", "width", "channels", "features", "size", "model", "planes", "in_", "n_", "num",
    "units", "neurons", "filters", "emb", "feat", "hid",
)  # fmt: skip
#: Sizes by a whole word of their name.
_SIZE_WORDS = frozenset(("ch", "nc", "nf", "ngf", "ndf", "cin", "cout", "inp", "oup", "nin", "nout", "nz"))
#: What takes a list of any length, and loops that do.
_DEPTH = 3
_TAKERS = ("len", "zip", "enumerate", "list", "tuple", "sum", "reversed", "pairwise")
_CONFIGS = ("config", "cfg", "args", "conf", "hparams", "opt", "params", "options")
_ACTIVATIONS = ("act", "nonlinearity")
#: Default sizes above this are made small.
_SMALL = 4


class CannotBuild(Exception):
    """The model cannot be built or run on one process: the message says what to add."""


class Given(typing.NamedTuple):
    """A value and the expression that makes it."""

    value: Any
    text: str


def construct(cls: Any, module: ModuleType, shrink: bool) -> Given:
    """An instance: KernelBench's `get_init_inputs()`, else defaults, guessed values for what has none.

    `shrink` replaces sizes in configurations by small ones (a GPT of 124 million parameters tests nothing that one of
    two small layers does not).
    """
    offered = getattr(module, "get_init_inputs", None)
    if callable(offered):
        given = offered()
        named = isinstance(given, dict)
        return Given(
            cls(**given) if named else cls(*given), f"{cls.__name__}({'**' if named else '*'}get_init_inputs())"
        )
    return _made(cls, {p.name: _guess(p, cls, module, shrink) for p in parameters(cls) if needed(p)})


def _made(cls: Any, given: Mapping[str, Given]) -> Given:
    text = ", ".join(f"{name}={one.text}" for name, one in given.items())
    return Given(cls(**{name: one.value for name, one in given.items()}), f"{cls.__name__}({text})")


def parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def needed(parameter: inspect.Parameter) -> bool:
    return named(parameter) and parameter.default is inspect.Parameter.empty


def named(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def required(function: Any) -> list[str]:
    return [parameter.name for parameter in parameters(function) if needed(parameter)]


def _guess(parameter: inspect.Parameter, owner: Any, module: ModuleType, shrink: bool) -> Given:
    """A value for a constructor's argument, from its annotation and its name."""
    kind = _annotation(parameter, owner, module)
    name = parameter.name.lower()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        first = next(iter(kind))
        return Given(first, f"{kind.__name__}.{first.name}")
    if kind is nn.Module:  # any layer: one that keeps the size
        return Given(nn.Linear(SIZE, SIZE), f"torch.nn.Linear({SIZE}, {SIZE})")
    if isinstance(kind, type) and issubclass(kind, nn.Module):
        return construct(kind, module, shrink)
    if _is_plain_class(kind):
        return _config(kind, module, shrink)
    if name in _CONFIGS:
        return _unnamed_config(parameter.name, kind, owner, module, shrink)
    if kind is torch.device or name == "device":
        return Given("cpu", "'cpu'")
    if kind is torch.dtype or name == "dtype":
        return Given(torch.float32, "torch.float32")
    made = _class_of_file(parameter, owner, module)
    if made is not None:
        return Given(made, made.__name__)
    if kind is inspect.Parameter.empty and _is_part(parameter.name, owner):
        return _part(name, owner, module, shrink)
    uses = [*_uses_as_list(parameter, owner)]
    value: Any
    if _is_sequence(kind) or uses:
        value = [*_listed(name, kind, max(uses, default=2))]
    elif kind is inspect.Parameter.empty and _is_size_of_layer(parameter.name, owner, module):
        number = by_name_or(name, SIZE)  # `n_actions` is no activation
        value = number if isinstance(number, int | float) else SIZE
    else:
        value = by_name(name, kind)
    return Given(value, repr(value))


def _is_size_of_layer(name: str, owner: Any, module: ModuleType, depth: int = _DEPTH) -> bool:
    """The constructor computes an argument of a layer of torch from it, also through a class of the file: whatever its
    name is, it is a number."""
    calls = (node for node in ast.walk(syntax(getattr(owner, "__init__", None))) if isinstance(node, ast.Call))
    for call in calls:
        layer = last_part(call.func)
        given = [*enumerate(call.args), *((word.arg, word.value) for word in call.keywords)]
        held = [at for at, value in given if name in _read_in(value)]
        if held and layer in vars(nn) and layer != "Parameter":
            return True
        inner = getattr(module, layer, None)
        own = isinstance(inner, type) and issubclass(inner, nn.Module) and inner is not owner
        takes = [one.name for one in parameters(inner)] if own and held and depth else []
        names = (takes[at] if isinstance(at, int) and at < len(takes) else str(at) for at in held)
        if any(_is_size_of_layer(one, inner, module, depth - 1) for one in names if takes):
            return True
    return False


def _read_in(value: ast.expr) -> set[str]:
    """The names that a number is computed from; what is called, or asked for an attribute, is none."""
    if isinstance(value, ast.Name):
        return {value.id}
    return set().union(*map(_read_in, (value.left, value.right))) if isinstance(value, ast.BinOp) else set()


def _class_of_file(parameter: inspect.Parameter, owner: Any, module: ModuleType) -> type[nn.Module] | None:
    """The layer of the file that an argument without an annotation is for, which the class calls: ``block(planes)``."""
    word = parameter.name.lower().partition("_")[0]
    called = (node.func for node in ast.walk(syntax(owner)) if isinstance(node, ast.Call))
    if not any(isinstance(function, ast.Name) and function.id == parameter.name for function in called):
        return None
    layers = (cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, nn.Module))
    own = (cls for cls in layers if cls is not owner and cls.__module__ == module.__name__)
    return next((cls for cls in own if word in cls.__name__.lower()), None)


def _is_part(name: str, owner: Any) -> bool:
    """A module that the caller builds: the constructor keeps it, and a method calls it as `self.NAME(...)`."""
    nodes = list(ast.walk(syntax(owner)))
    kept = {
        last_part(target)
        for node in nodes
        for target, value in assigned(node)
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Name) and value.id == name
    }
    called = (node.func for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return any(function.attr in kept and last_part(function.value) == "self" for function in called)


def _part(name: str, owner: Any, module: ModuleType, shrink: bool) -> Given:
    """The class of the file that has the argument's name, else a layer that keeps the size."""
    if any(word in name for word in ("loss", "criterion")):
        return Given(nn.MSELoss(), "torch.nn.MSELoss()")
    if any(name.startswith(word) or f"_{word}" in name for word in _ACTIVATIONS):
        return Given(nn.ReLU(), "torch.nn.ReLU()")
    layers = (cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, nn.Module))
    own = (cls for cls in layers if cls is not owner and cls.__module__ == module.__name__)
    word = name.replace("_", "")
    found = next((cls for cls in own if word in cls.__name__.lower()), None)
    if found is not None:
        return construct(found, module, shrink)
    return Given(nn.Linear(SIZE, SIZE), f"torch.nn.Linear({SIZE}, {SIZE})")


def _is_sequence(kind: Any) -> bool:
    """The annotation asks for a list or a tuple of plain values."""
    origin = typing.get_origin(kind) or kind
    plain = all(item in (int, float, str, bool, ...) for item in typing.get_args(kind))
    return plain and origin in (list, tuple, abc.Sequence, abc.Iterable, abc.Collection)


def _listed(name: str, kind: Any, length: int) -> Iterator[Any]:
    """Values for a list or tuple: as many as its annotation counts, else as many as are read."""
    items = [item for item in typing.get_args(kind) if item is not ...] or [inspect.Parameter.empty]
    fixed = typing.get_origin(kind) is tuple and ... not in typing.get_args(kind)
    for item in items if fixed else items[:1] * length:
        yield by_name_or(name, SIZE) if item is inspect.Parameter.empty else by_name(name, item)


def _uses_as_list(parameter: inspect.Parameter, owner: Any) -> Iterator[int]:
    """How long the list must be at least that a parameter without a plain annotation is given, for each place where the
    constructor goes through it or takes an item by its number: ``for width in widths``, ``blocks[3]``."""
    if parameter.annotation in (int, float, str, bool, "int", "float", "str", "bool"):
        return
    for node in ast.walk(syntax(getattr(owner, "__init__", None))):
        taken: list[ast.expr] = []
        least = 2
        if isinstance(node, ast.For | ast.comprehension):
            taken = [node.iter]
        elif isinstance(node, ast.Starred):
            taken = [node.value]
        elif isinstance(node, ast.Subscript) and (index := _number(node.slice)) is not None:
            taken, least = [node.value], max(index + 1, -index, 2)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TAKERS:
            taken = node.args
        if any(isinstance(one, ast.Name) and one.id == parameter.name for one in taken):
            yield least


def _number(index: ast.expr) -> int | None:
    """The number of an item; of a slice 0; None for a key."""
    if isinstance(index, ast.Slice):
        return 0
    try:
        value = ast.literal_eval(index)
    except ValueError:
        return None
    return value if isinstance(value, int) else None


def _is_plain_class(kind: Any) -> bool:
    """A class of settings of the program or of a library: no builtin, no typing construct, nothing of torch."""
    return (
        isinstance(kind, type)
        and kind is not inspect.Parameter.empty
        and kind.__module__.partition(".")[0] not in ("builtins", "typing", "collections", "torch", "types", "argparse")
    )


def _annotation(parameter: inspect.Parameter, owner: Any, module: ModuleType) -> Any:
    """The annotation as an object; of an optional one what it is when it is given."""
    kind = parameter.annotation
    if isinstance(kind, str):
        scope = {**vars(typing), **vars(module), **vars(inspect.getmodule(owner) or module)}
        try:
            kind = eval(kind, scope)
        except Exception:
            return inspect.Parameter.empty
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return options[0] if union and options else kind


# ---- configurations


def _unnamed_config(name: str, kind: Any, owner: Any, module: ModuleType, shrink: bool) -> Given:
    """A configuration that is known by the argument's name only: the file's own class for it, else an object (or dict)
    that holds what the model reads."""
    own = getattr(owner, "config_class", None)
    found = own if isinstance(own, type) else _config_class(owner, module)
    if found is not None and kind is not dict:
        return _config(found, module, shrink)
    attributes, keys = _read_of(name, module)
    if (keys and not attributes) or kind is dict:
        items = {key: by_name_or(key.lower(), SIZE) for key in keys}
        return Given(items, repr(items))
    if not attributes:
        raise CannotBuild(f"no value for the argument {name!r}")
    items = {attribute: by_name_or(attribute.lower(), SIZE) for attribute in attributes}
    text = ", ".join(f"{key}={value!r}" for key, value in items.items())
    return Given(types.SimpleNamespace(**items), f"types.SimpleNamespace({text})")


def _config_class(owner: Any, module: ModuleType) -> type | None:
    """The class of the file (or one that it imports) that configures `owner`: the one whose name is most alike."""
    found = [
        value
        for key, value in vars(module).items()
        if isinstance(value, type)
        and any(word in key for word in ("Config", "Args", "Params"))
        and not issubclass(value, nn.Module)
    ]
    own = [kind for kind in found if kind.__module__ == module.__name__] or found
    name = getattr(owner, "__name__", "")
    return max(own, key=lambda kind: _alike(kind.__name__, name), default=None)


def _alike(one: str, other: str) -> int:
    """How many letters two names have in common at their beginning."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _config(kind: Any, module: ModuleType, shrink: bool) -> Given:
    """A configuration object: its defaults, guessed where there are none, sizes made small."""
    if dataclasses.is_dataclass(kind):
        return _made(kind, dict(_fields(kind, module, shrink)))
    given = {
        p.name: _guess(p, kind, module, shrink) if needed(p) else _smaller(p.name, p.default)
        for p in parameters(kind)
        if needed(p) or (shrink and named(p) and _is_size(p.default))
    }
    made = _made(kind, given)
    if not given and shrink:  # settings as attributes of the class
        for name, value in vars(kind).items():
            if not name.startswith("_") and _is_size(value):
                setattr(made.value, name, _smaller(name, value).value)
    return made


def _fields(kind: Any, module: ModuleType, shrink: bool) -> Iterator[tuple[str, Given]]:
    for field in dataclasses.fields(kind):
        default = field.default
        missing = default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        unset = default is None and _read_as_size(field.name)
        if field.init and (missing or (shrink and unset)):
            parameter = inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=field.type)
            yield field.name, _guess(parameter, kind, module, shrink)
        elif field.init and shrink and _is_size(default):
            yield field.name, _smaller(field.name, default)


def _read_as_size(name: str) -> bool:
    """A setting that is None until the program sets it, and that no model works without."""
    return any(word in name.lower() for word in ("vocab", "block_size", "n_layer", "n_head", "n_embd"))


def _is_size(value: Any) -> bool:
    return type(value) is int and value > _SMALL


def _smaller(name: str, value: Any) -> Given:
    """A size made small; what its name shows nothing about stays."""
    small = by_name_or(name.lower(), value)
    return Given(small, repr(small)) if type(small) is int else Given(value, repr(value))


def _read_of(name: str, module: ModuleType) -> tuple[list[str], list[str]]:
    """The attributes and the keys that the file's classes read of a variable (or `self.NAME`) of this name."""
    attributes: dict[str, None] = {}
    keys: dict[str, None] = {}
    for node in ast.walk(syntax(module)):
        value = getattr(node, "value", None)
        base = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
        if base != name:
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            attributes[node.attr] = None
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            keys[str(node.slice.value)] = None
    for method in ("get", "items", "keys", "values", "update", "to_dict"):
        attributes.pop(method, None)
    return list(attributes), list(keys)


def syntax(source: Any) -> ast.AST:
    """The syntax of a module, class or function; an empty one where the source is not there."""
    with contextlib.suppress(OSError, TypeError, SyntaxError, IndentationError):
        return ast.parse(textwrap.dedent(inspect.getsource(source)))
    return ast.Module([], [])


def by_name_or(name: str, default: Any) -> Any:
    with contextlib.suppress(CannotBuild):
        return by_name(name, inspect.Parameter.empty)
    return default


def by_name(name: str, kind: Any) -> Any:
    """A plain value for what has this name. Raises CannotBuild when the name says nothing."""
    if kind is bool:
        return False
    if any(name.startswith(word) or f"_{word}" in name for word in _ACTIVATIONS) and kind in (
        str,
        inspect.Parameter.empty,
    ):
        return "relu"
    if kind is str or "type" in name.split("_")[-1:]:
        return "LSTM" if "rnn" in name else ""
    for words, value in _ARGUMENTS:
        if any(word in name for word in words):
            return float(value) if kind is float else int(value) if kind is int else value
    if kind is float:
        return 0.1
    if kind is int or any(word in name for word in _SIZES) or _SIZE_WORDS & set(name.split("_")):
        return SIZE
    if typing.get_origin(kind) in (list, tuple) or kind in (list, tuple) or name.endswith("s"):
        return [SIZE, SIZE]
    raise CannotBuild(f"no value for the argument {name!r}")

"""What tensor operations return, write and keep for backward: `knowledge/tensors.toml` as sets."""

from __future__ import annotations

import ast
import functools
import re
from typing import Any

from ddp_lint.knowledge import table
from ddp_lint.source.syntax import argument_at

_LEVELS = {
    "debug", "info", "warning", "warn", "error", "critical", "exception", "log",
    "debug_once", "info_once", "warning_once", "warn_once", "error_once",
}  # fmt: skip
_LOGGERS = {"logging", "logger", "log", "LOGGER", "LOG", "_logger"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@functools.cache
def names(section: str, key: str) -> frozenset[str]:
    """One list of `knowledge/tensors.toml` as a set."""
    return frozenset(table("tensors")[section][key])


def is_tensor_function(qualified: str) -> bool:
    """Whether a function by its canonical name returns a tensor (or a tuple of them)."""
    namespace, _, last = qualified.rpartition(".")
    if qualified in names("functions", "not_tensors") or not last:
        return False
    if qualified in names("functions", "factories"):
        return True
    if last.startswith(tuple(names("functions", "not_tensor_prefixes"))):
        return False
    return namespace in names("functions", "namespaces") and last[0].islower()


def is_factory(qualified: str) -> bool:
    """Whether a function makes a tensor out of Python values, on the host by default."""
    return qualified in names("functions", "factories")


def layer_kind(maker: str) -> str:
    """`Conv2d` for ``torch.nn.Conv2d`` (also for its long path), '' for what is no layer of torch.nn."""
    head, _, last = maker.rpartition(".")
    below = head == names_of_layers() or head.startswith(names_of_layers() + ".modules")
    return last if below and last[:1].isupper() else ""


def has_no_parameters(maker: str) -> bool:
    """Whether a class by its canonical name is one of a package whose modules have no parameters."""
    return any(maker.startswith(f"{package}.") for package in names("layers", "without_parameters"))


def names_of_layers() -> str:
    namespace: Any = table("tensors")["layers"]["namespace"]
    return str(namespace)


def is_tensor_method(method: str) -> bool:
    """Whether tensors have a method of that name, as far as the tables know."""
    return any(
        method in names(section, "methods")
        for section in ("evidence", "views", "saves_output", "saves_input", "python_values", "answers")
    ) or method in names("evidence", "reductions") | names("views", "maybe")


def is_discrete(operation: str) -> bool:
    """Whether no gradient flows out of an operation (canonical function, or method name with a leading dot)."""
    return _keeps("discrete", operation)


def keeps_output(operation: str) -> bool:
    """Whether backward of an operation (canonical function, or method name with a leading dot) reads its output."""
    return _keeps("saves_output", operation)


def keeps_input(operation: str) -> bool:
    """Whether backward of an operation (canonical function, or method name with a leading dot) reads its inputs."""
    return _keeps("saves_input", operation)


def takes_rows(operation: str) -> bool:
    """Whether an operation makes a matrix of its input, one row for each vector: it saves a copy of one whose vectors
    cannot be read in their order."""
    return operation in names("saves_input", "rows") or layer_kind(operation) in names("saves_input", "rows")


def _keeps(section: str, operation: str) -> bool:
    namespace, _, last = operation.rpartition(".")
    if namespace in ("", "torch", "torch.nn.functional", "torch.special", "torch.Tensor") and last in names(
        section, "methods"
    ):
        return True
    return operation in names(section, "functions") or layer_kind(operation) in names(section, "layers")


def writes(method: str) -> bool:
    """Whether a method name is an in-place write of values: `add_`, `copy_`, not `requires_grad_` or `__init__`."""
    return method.endswith("_") and not method.startswith("_") and method not in names("in_place", "not_writes")


def layer_writes(kind: str, made: ast.AST | None) -> bool:
    """Whether a layer of torch.nn, made by this call, writes what it is given: ``nn.ReLU(inplace=True)``."""
    if not isinstance(made, ast.Call) or kind not in names("in_place", "layers") | names("in_place", "dropouts"):
        return False
    if kind in names("in_place", "dropouts"):
        probability = argument_at(made, 0, "p")
        if probability is not None and not (isinstance(probability, ast.Constant) and probability.value):
            return False  # 0 writes nothing, and another value is not known
    flags = (keyword.value for keyword in made.keywords if keyword.arg == "inplace")
    return any(isinstance(flag, ast.Constant) and flag.value is True for flag in flags)


def is_log(name: str) -> bool:
    """Whether a dotted name is a logging call: ``logger.info``, ``self.log.warning``."""
    owner, _, method = name.rpartition(".")
    return method in _LEVELS and owner.rpartition(".")[2] in _LOGGERS


def is_average(name: str) -> bool:
    """Whether a dotted name is that of a moving average of a model, whose parameters require no gradient."""
    return "ema" in words_of(name.rpartition(".")[2])


def words_of(name: str) -> set[str]:
    """The words of an identifier, lower case: `logPerStep` and `log_per_step` -> {log, per, step}."""
    return {w.lower() for part in name.split("_") for w in _WORD.findall(part)}

"""Typed entries from TOML tables: what a dataclass has no field for, or a field no such value, is refused."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import pathlib
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal


class KnowledgeError(ValueError):
    """A knowledge file says something that nothing understands."""


def parsed(file: pathlib.Path) -> dict[str, Any]:
    """The content of a TOML file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(file.read_text(encoding="utf-8"))


def values_of(kind: type[Any], entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of a table as the fields of a dataclass want them. Raises KnowledgeError for one that does not fit."""
    hints, values = _hints(kind), {}  # type: ignore[arg-type]
    for key, value in entry.items():
        field = key.replace("-", "_")
        if field not in hints:
            raise KnowledgeError(f"{where}: unknown key '{key}'{nearest(field, hints)}")
        values[field] = checked(value, hints[field], f"{where}: {key}")
    missing = [
        f.name
        for f in dataclasses.fields(kind)
        if f.default is f.default_factory is dataclasses.MISSING and f.name not in values
    ]
    if missing:
        raise KnowledgeError(f"{where}: lacks {', '.join(missing)}")
    return values


def checked(value: Any, hint: Any, where: str) -> Any:
    """The value as its field wants it (lists become tuples, tables dataclasses), or a KnowledgeError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in arguments:
            known = f", known: {', '.join(map(str, arguments))}"
            raise KnowledgeError(f"{where}: unknown word '{value}'{nearest(str(value), map(str, arguments)) or known}")
        return value
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise KnowledgeError(f"{where}: must be a table, got {value!r}")
        return hint(**values_of(hint, value, where))
    if origin is tuple and dataclasses.is_dataclass(arguments[0]):
        if not isinstance(value, list):
            raise KnowledgeError(f"{where}: must be a list of tables, got {value!r}")
        return tuple(checked(item, arguments[0], where) for item in value)
    if origin is tuple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise KnowledgeError(f"{where}: must be a list of strings, got {value!r}")
        return tuple(value)
    if origin is not None and issubclass(origin, Mapping):
        return _table(value, hint, arguments[1], where)
    if type(value) is not hint:
        raise KnowledgeError(f"{where}: must be of type {hint.__name__}, got {value!r}")
    return value


def nearest(word: str, known: Iterable[str]) -> str:
    """`, did you mean '...'?` for a word that is spelt like a known one, else ''."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f", did you mean '{near[0]}'?" if near else ""


def _table(value: Any, hint: Any, of: Any, where: str) -> Any:
    if isinstance(value, dict) and typing.get_origin(of) is tuple:
        return {key: checked(item, of, f"{where}.{key}") for key, item in value.items()}
    permitted = typing.get_args(of) if typing.get_origin(of) is types.UnionType else (of,)
    if not isinstance(value, dict) or not all(isinstance(item, permitted) for item in value.values()):
        raise KnowledgeError(f"{where}: must be a table of {hint}, got {value!r}")
    return value


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)

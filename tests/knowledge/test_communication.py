"""The knowledge files say only what the loader understands, and name only what exists."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest

from ddp_lint.knowledge import canonical
from ddp_lint.knowledge.communication import build, load
from ddp_lint.knowledge.frameworks import Framework, frameworks, wrappers
from ddp_lint.knowledge.schema import KnowledgeError

ENTRY = {"names": ["pkg.all_reduce"], "takes": ["tensor", "group"], "group": "group", "evidence": "pkg/x.py"}


def test_every_file_loads_and_names_are_canonical() -> None:
    known = load()
    names = [*known.collectives, *known.types, *known.gates, *known.groups]
    assert [name for name in names if canonical(name) != name] == []


def test_arguments_that_an_entry_mentions_are_parameters() -> None:
    """A parameter that is not positional may be absent from `takes`; a misspelt positional one is caught here."""
    wrong = []
    for entry in load().collectives.values():
        mentioned = {entry.root, entry.reduce_op, entry.asynchronous, entry.ranks, *entry.payload, *entry.uniform}
        unknown = mentioned - {"", *entry.takes}
        if entry.takes and unknown:
            wrong.append((entry.name, unknown))
    assert wrong == []


def test_methods_belong_to_a_listed_type() -> None:
    known = load()
    orphans = []
    for name in known.collectives:
        owner, _, method = name.rpartition(".")
        if owner.rpartition(".")[2][:1].isupper() and owner != "torch.Tensor" and owner not in known.types:
            orphans.append(name)
        assert method
    assert orphans == []


@pytest.mark.parametrize("framework", [f for f in frameworks() if any(map(importlib.util.find_spec, f.packages))])
def test_every_name_of_an_installed_framework_exists(framework: Framework) -> None:
    known = load()
    names = [*known.collectives, *known.types, *wrappers(), *(n for (what, n) in known.sources if what == "call")]
    names += [name for what, name in [*known.ranks, *known.uniforms] if what == "call"]
    names += [name for entry in framework.searching for name in entry.names]
    of_it = tuple(f"{package}." for package in framework.packages)
    assert [name for name in names if name.startswith(of_it) and not _exists(name)] == []


def test_positional_parameters_are_those_of_the_installed_torch() -> None:
    pytest.importorskip("torch")
    import inspect

    wrong = []
    for entry in load().collectives.values():
        if entry.name.startswith("torch.distributed.") and entry.takes and entry.kind == "collective":
            parameters = [p for p in inspect.signature(_resolve(entry.name)).parameters if p not in {"self", "cls"}]
            if entry.name.startswith("torch.distributed._functional_collectives"):
                parameters = list(inspect.signature(_resolve(entry.name)).parameters)
            for parameter in {entry.group, entry.root, entry.reduce_op, entry.asynchronous, *entry.uniform} - {""}:
                if parameter not in parameters:
                    wrong.append((entry.name, parameter))
                elif parameter in entry.takes and parameters.index(parameter) != entry.takes.index(parameter):
                    wrong.append((entry.name, f"{parameter} is at {parameters.index(parameter)}"))
    assert wrong == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grup": "group"}, "unknown key 'grup', did you mean 'group'"),
        ({"kind": "colective"}, "unknown word 'colective', did you mean 'collective'"),
        ({"when": "shard"}, "unknown word 'shard', did you mean 'sharded'"),
        ({"implicit": "yes"}, "implicit: must be of type bool"),
        ({"takes": "tensor"}, "takes: must be a list of strings"),
        ({"turns": {"module": 1}}, "turns: must be a table"),
        ({"names": []}, "'names' must be a list of one or more names"),
        ({"names": ["pkg.a", "pkg.a"]}, "'pkg.a' is listed twice"),
    ],
)
def test_a_mistake_is_refused_with_file_and_entry(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KnowledgeError, match=message) as error:
        build([("pkg", {"collective": [{**ENTRY, **change}]})])
    assert "collective" in str(error.value)


def test_an_entry_without_evidence_is_refused() -> None:
    with pytest.raises(KnowledgeError, match="lacks evidence"):
        build([("pkg", {"collective": [{"names": ["pkg.all_reduce"]}]})])


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(KnowledgeError, match=r"\[\[colective\]\] is not one of collective"):
        build([("pkg", {"colective": [ENTRY]})])


def _exists(name: str) -> bool:
    try:
        _resolve(name)
    except (ImportError, AttributeError):
        return False
    return True


def _resolve(name: str) -> Any:
    """The object that a dotted name stands for: the longest importable module, then attributes."""
    head, parts = name, []
    while head:
        try:
            found = importlib.import_module(head)
            break
        except ImportError:
            head, _, last = head.rpartition(".")
            parts.insert(0, last)
    else:
        raise ImportError(name)
    for part in parts:
        found = getattr(found, part)
    return found

"""Which files a single process runs: servers, demos, deployment, where no other rank waits."""

from __future__ import annotations

import functools
import re

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.joining import joining_call
from ddp_lint.launch.search import importers, programs
from ddp_lint.project import Project
from ddp_lint.source import dotted
from ddp_lint.view import Module


def one_process(module: Module) -> bool:
    """Whether a file belongs to what serves or shows a model: by its folders, or by the server that it imports."""
    *folders, _ = module.file.place.split("/")
    if any(words_of(folder) & _words() for folder in folders):
        return True
    return any(target.partition(".")[0] in _servers() for target in module.imports.names.values())


def is_benchmark(module: Module) -> bool:
    """Whether a file measures something, by the folders it is in or its name: one node runs it, and nothing is
    trained."""
    *folders, name = module.file.place.split("/")
    return any(_BENCHMARK.fullmatch(folder) for folder in folders) or bool(_BENCHMARK.match(name))


def on_one_node(module: Module) -> bool:
    """Whether a file puts the meeting point of its ranks on this machine, where no rank of another node finds it, or
    says that it is started for one node (``torchrun --standalone``); or the function that it joins by does, or all
    files that import it and form a group, or all programs that import a file which forms it.
    """
    return _is_said(module, _LOCAL)


def counts_one_node(module: Module) -> bool:
    """Whether a file forms a group of as many ranks as its machine has GPUs, which those of one node alone are; or
    those that it is used by do, as for `on_one_node`."""
    return _is_said(module, _COUNTED)


def _is_said(module: Module, pattern: re.Pattern[str]) -> bool:
    """Whether a file has the pattern, or else all those have it that decide where its ranks are."""
    if pattern.search(module.file.text) is not None:
        return True
    if module.project is None or not module.name:
        return False
    if pattern.search(_joined_by(module)) is not None:
        return True
    forms = _FORMS_GROUP in module.file.text
    users = programs if forms else importers
    found = list(users(module.project, module.name, holding=("__main__" if forms else _FORMS_GROUP,)))
    return bool(found) and all(pattern.search(facts.file.text) for facts in found)


def _joined_by(module: Module) -> str:
    """The text of the function of the project that a file joins the group by, which decides where its ranks are; none
    of one that only falls back on this machine."""
    facts, project = module.facts, module.project
    call = joining_call(facts, project) if facts is not None and project is not None else None
    if facts is None or project is None or call is None:
        return ""
    found = project.meanings.definition(project.meanings.of(facts, call.func))
    text = "\n".join(found[0].file.lines[found[1].lineno - 1 : found[1].end_lineno]) if found is not None else ""
    return "" if _FALLS_BACK.search(text) else text


def gives_local_ranks(project: Project) -> bool:
    """Whether all files of a project that form a group give it the local rank as the rank, as one node alone can."""
    texts = [project.contents.text(path) or "" for path in project.contents.holding(_FORMS_GROUP)]
    forming = [text for text in texts if f"{_FORMS_GROUP}(" in text]
    return bool(forming) and all(map(_BY_LOCAL_RANK.search, forming))


def transforms_samples(module: Module, node: cst.CSTNode) -> bool:
    """Whether a place is in what a data set does with single samples, on the CPU and without gradients: by the name of
    its file or folder, or by what its class inherits from."""
    *folders, name = module.file.place.split("/")
    if words_of(name.removesuffix(".py")) & _AUGMENTING or {"transform", "transforms", "transforms.py"} & {
        *folders,
        name,
    }:
        return True
    owner = module.class_of(node)
    bases = [dotted(base.value).rpartition(".")[2] for base in owner.bases] if owner is not None else []
    return any(base in ("Transform", "BaseTransform") for base in bases)


_AUGMENTING = frozenset({"augment", "augmentation", "augmentations"})


def starts_its_ranks(module: Module) -> bool:
    """Whether the ranks of a file are those that a Lightning Trainer starts on this machine: one for each of its
    `devices`, and no number of nodes."""
    text = module.file.text
    trainers = [c for c in module.of_type(cst.Call) if module.callee(c).endswith("Trainer")]
    lightning = any("lightning" in module.callee(call) for call in trainers)
    return lightning and "num_nodes" not in text and "init_process_group(" not in text


_LOCAL = re.compile(
    r"""MASTER_ADDR["']\] *= *["'](localhost|127\.0\.0\.1)|tcp://(localhost|127\.)"""
    r"""|torchrun[^\n]* (--standalone|--nnodes[= ]1)\b"""
)
_FALLS_BACK = re.compile(r"""MASTER_ADDR["'] not in|get(env)?\(["']MASTER_ADDR""")
_FORMS_GROUP = "init_process_group"
_COUNTED = re.compile(rf"{_FORMS_GROUP}\((?:[^()]|\([^()]*\))*?\bworld_size *= *torch\.cuda\.device_count\(\)\s*[,)]")
_BY_LOCAL_RANK = re.compile(rf"{_FORMS_GROUP}\([^()]*\brank *= *(args\.)?local_rank\b")
_BENCHMARK = re.compile(r"(micro)?bench(mark(s|ing)?)?(_\w+)?", re.IGNORECASE)


@functools.cache
def _words() -> frozenset[str]:
    return frozenset(table("launch")["one_process"]["folders"])


@functools.cache
def _servers() -> frozenset[str]:
    return frozenset(table("launch")["one_process"]["servers"])

"""Code that a single process runs: tests and notebooks that start no others, scripts and functions for one device."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from ddp_lint.project.parts import kept_by_node
from ddp_lint.source import notebook
from ddp_lint.source.file import SourceFile
from ddp_lint.source.imports import last_part
from ddp_lint.source.occurring import may_occur, occurs
from ddp_lint.source.syntax import FunctionNode, below, walk

#: What a test or a notebook that several processes run says somewhere: how they are started, or which of them runs it.
#: What is "distributed under the License" says nothing.
_SEVERAL = re.compile(
    r"distributed(?! (under|on)\b)|torchrun|spawn|nproc|mpirun|multi_?(process|gpu|node)|world_?size|"
    r"num_(processes|nodes|gpus|workers_per)|\brank|_rank|devices\s*=\s*[^1,)\s]|launch|main_process|is_global_zero|subprocess|ddp|fsdp|horovod|\bdist\b|nccl|gloo",
    re.IGNORECASE,
)
#: What a script says besides that leaves it to a framework to start or to join them.
_FRAMEWORK = re.compile(r"accelerat|deepspeed|lightning|trainer|\b(init|setup)\w*\(|(^|_)dist_", re.IGNORECASE)
#: The name of a script, or of its folder, for one device of one process.
_SINGLE = re.compile(r"(^|[_/])(single|one)_(device|gpu|process|card)([_/.]|$)")
#: The name of a function for a job that is not distributed.
_ALONE = re.compile(
    r"(^|_)(wo|without|no|non|not)_?(ddp|dist|distributed)(_|$)|(^|_)(single|one)_(device|gpu|process|card)(_|$)"
)


#: A script sets up a job of one process for all that it does.
_SET_UP = re.compile(r"""^os\.environ\[["']WORLD_SIZE["']\]\s*=\s*(str\()?["']?1["']?\)?\s*(#.*)?$""", re.MULTILINE)
#: A model whose layers Accelerate spreads over the GPUs: it refuses to train that with several processes.
_SPREAD = re.compile(r"""\bdevice_map\s*(:\s*\w+\s*)?=\s*["']auto["']""")
_ACCELERATOR = re.compile(r"\bAccelerator\(([^()]*)")
_ON_HOST = re.compile(r"\bcpu\s*=\s*True\b")


@functools.lru_cache(maxsize=256)
def is_of_one_process(file: SourceFile) -> bool:
    """Is it run by one process, as far as it and its name say?"""
    if _SINGLE.search(file.place) is not None or occurs(_SET_UP, file.text) or _asks_for_one(file.text):
        return True
    return (file.is_test or file.place.endswith(notebook.SUFFIX)) and _SEVERAL.search(file.text) is None


def _asks_for_one(text: str) -> bool:
    """``Accelerator(cpu=True)``, which is documented to run one process alone, with a model on several GPUs, which
    Accelerate trains with no other number of them."""
    made = _ACCELERATOR.findall(text) if may_occur(_SPREAD, text) and may_occur(_ACCELERATOR, text) else []
    return bool(made) and all(map(_ON_HOST.search, made)) and _SPREAD.search(text) is not None


def is_script_of_one_process(file: SourceFile) -> bool:
    """Does one process run what the file does outside of functions, as far as it says? What it imports may be for
    several, and finds out that there are none."""
    return _SEVERAL.search(file.text) is None and _FRAMEWORK.search(file.text) is None


@kept_by_node(256)
def spawned_alone(tree: ast.Module) -> frozenset[str]:
    """The functions that the file starts in a single process each: ``spawn(worker, nprocs=1)``."""
    alone: set[str] = set()
    several: set[str] = set()
    for scope in walk(tree):
        if isinstance(scope, (ast.FunctionDef, ast.Module)):
            calls = [node for node in _own(scope) if isinstance(node, ast.Call) and last_part(node.func) == "spawn"]
            for call in calls:
                given: dict[str | None, ast.expr] = dict(zip(("fn", "args", "nprocs"), call.args, strict=False))
                given.update((keyword.arg, keyword.value) for keyword in call.keywords)
                (alone if _is_one(given.get("nprocs"), scope) else several).add(last_part(given.get("fn")))
    return frozenset(alone - several)


def _own(scope: ast.FunctionDef | ast.Module) -> Iterator[ast.AST]:
    """What a function or a module consists of, without the functions defined in it."""
    stack: list[ast.AST] = list(scope.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, FunctionNode):
            stack += below(node)


def _is_one(count: ast.expr | None, scope: ast.FunctionDef | ast.Module) -> bool:
    """Is it 1, or a name that one assignment of the scope gives a 1?"""
    if isinstance(count, ast.Name):
        values = [
            node.value for node in _own(scope)
            if isinstance(node, ast.Assign) and any(last_part(target) == count.id for target in node.targets)
        ]  # fmt: skip
        count = values[0] if len(values) == 1 else None
    return isinstance(count, ast.Constant) and count.value == 1


def is_name_of_one_process(function: str) -> bool:
    """Does the name of a function say that it is for a job of one process: ``fit_without_ddp``?"""
    return _ALONE.search(function.lower()) is not None

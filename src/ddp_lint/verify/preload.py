"""What a rank may find imported when it starts: from a process that has torch it is forked in milliseconds.

A program that sets environment variables before it imports torch must have the same effect as without verify, so one
that may set what an import of torch reads gets its own Python. So does one that may iterate over a set or call `hash`:
forked ranks have one seed for the hashes of strings, where processes of their own have one each. Reads the source only.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator, Mapping

from ddp_lint.launch.environment import read_at
from ddp_lint.source.imports import last_part
from ddp_lint.verify.spec import CAN_FORK
from ddp_lint.verify.target import Target, trees

_READS = frozenset({"get", "keys", "values", "items", "copy", "__getitem__", "__contains__"})
_STORES = frozenset({"setdefault", "pop", "__setitem__", "__delitem__"})
#: Functions that look into what they are given, and a keyword for the environment of another process.
_LOOK = frozenset({"dict", "len", "list", "print", "repr", "sorted", "str"})
_ENVIRONMENT = "env"
#: How the names begin of what torch, the libraries below it, or Python itself may look at once. What `import torch` and
#: `zygote.import_all` read was observed with getenv interposed (torch 2.13).
_READ_AT_IMPORT = (
    "AOT", "ATEN", "BLIS", "C10", "CUBLAS", "CUDA", "CUDNN", "DISABLE", "DNNL", "FUNCTORCH", "GOMP", "HIP", "INDUCTOR",
    "KINETO", "KMP", "LD_", "MALLOC", "MKL", "NCCL", "NPY", "NUMEXPR", "NUMPY", "NV", "OMP", "ONEDNN", "OPENBLAS",
    "PATH", "PYTHON", "PYTORCH", "ROC", "TEMP", "TMP", "TORCH", "TRITON", "UCC", "XLA",
)  # fmt: skip
#: What of it is read before a program begins, or by a later point of it (of `environment.toml`); and by CUDA and cuBLAS
#: as they are first used.
_OTHER_POINTS = frozenset({"start", "group", "collective", "driver", "cuda", "allocation"})
_READ_LATE = frozenset({"CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING"})
#: What torchrun sets for its ranks where the user has not.
_OF_TORCHRUN = {"OMP_NUM_THREADS": "1"}
_WRITERS = frozenset({"putenv", "unsetenv", "load_dotenv"})
_SETS = frozenset({"set", "frozenset"})
#: What returns the same for a set in any order of iteration.
_ORDERLESS = frozenset({"sorted", "len", "min", "max", "sum", "any", "all", "bool", "isinstance"})
#: What walks its argument.
_WALKS = frozenset({"list", "tuple", "iter", "enumerate", "map", "zip", "join", "chain", "extend"})
_STREAMS = frozenset({"Stream", "ExternalStream", "wait_stream", "record_stream"})


@functools.lru_cache(maxsize=1)
def may_fork(target: Target, nproc: int = 2) -> bool:
    """Ranks of this target may find torch imported. Those that build a model import it before its file in any case."""
    given = {**(_OF_TORCHRUN if nproc > 1 else {}), **os.environ}
    apart = (_Writes(tree, given).found() or _depends_on_hashes(tree) for tree in trees(target))
    return CAN_FORK and (target.kind != "script" or not any(apart))


def compiles(target: Target) -> bool:
    """Models of the target are compiled: what the first compilation imports is better imported once for all ranks. A
    script often compiles only if it is asked to."""
    nodes = (node for tree in trees(target) for node in ast.walk(tree)) if target.kind != "script" else ()
    return any(isinstance(n, ast.Attribute) and n.attr == "compile" and last_part(n.value) != "re" for n in nodes)


def uses_streams(target: Target) -> bool:
    """The target, or a file that it imports, mentions CUDA streams: their order is worth following."""
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for tree in trees(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    }
    return bool(names & _STREAMS)


def _depends_on_hashes(tree: ast.Module) -> bool:
    """It makes a set that it does more with than to look into it, to count or to sort it, walks one that it fills
    later, or calls `hash`."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    walked = set(_walked(tree))
    for node in ast.walk(tree):
        made = last_part(node.func) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if made == "hash":
            return True
        outer = parents.get(node)
        if isinstance(node, ast.Call) and made in _SETS and not node.args:
            while isinstance(outer, ast.Tuple | ast.List):
                outer = parents.get(outer)
            if isinstance(outer, ast.Assign | ast.AnnAssign) and walked & set(_targets(outer)):
                return True
        elif isinstance(node, ast.Set | ast.SetComp) or made in _SETS:
            while isinstance(outer, ast.BinOp):  # a union of sets is one, too
                outer = parents.get(outer)
            orderless = isinstance(outer, ast.Call) and last_part(outer.func) in _ORDERLESS
            if not orderless and not isinstance(outer, ast.Compare):
                return True
    return False


def _walked(tree: ast.Module) -> Iterator[str]:
    """The last parts of the names that something goes through one by one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            yield last_part(node.iter)
        elif isinstance(node, ast.Call) and last_part(node.func) in _WALKS:
            yield from map(last_part, node.args)
        elif isinstance(node, ast.Starred):
            yield last_part(node.value)


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    """The last parts of the names that are assigned to, those of `a, b = ...` as well."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        yield from filter(None, map(last_part, target.elts if isinstance(target, ast.Tuple | ast.List) else [target]))


class _Writes:
    """What one file stores into `os.environ`."""

    def __init__(self, tree: ast.Module, given: Mapping[str, str]) -> None:
        """`given`: the environment that a rank starts with."""
        self._tree = tree
        self._given = given
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._torch = _line_of_torch(tree)

    def found(self) -> bool:
        """It stores what an import of torch may read, or hands the environment to someone who may."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute | ast.Name):
                name = node.attr if isinstance(node, ast.Attribute) else node.id
                if name in _WRITERS or (name == "environ" and not self._harmless_use(node)):
                    return True
        return False

    def _harmless_use(self, node: ast.expr) -> bool:
        outer = self._parents.get(node)
        if isinstance(outer, ast.Subscript):
            statement = self._parents.get(outer)
            value = statement.value if isinstance(statement, ast.Assign) else None
            return isinstance(outer.ctx, ast.Load) or self._harmless(outer.slice, value)
        if isinstance(outer, ast.Attribute):
            call = self._parents.get(outer)
            return outer.attr in _READS or (isinstance(call, ast.Call) and self._harmless_call(outer.attr, call))
        if isinstance(outer, ast.AugAssign):
            return self._harmless_items(outer.value)
        if isinstance(outer, ast.Call):
            return last_part(outer.func) in _LOOK
        return isinstance(outer, ast.Compare | ast.Dict) or (
            isinstance(outer, ast.keyword) and outer.arg == _ENVIRONMENT
        )

    def _harmless_call(self, method: str, call: ast.Call) -> bool:
        if method == "update":
            named = (k.arg is not None and self._harmless_name(k.arg, k.value, call.lineno) for k in call.keywords)
            return all(named) and all(map(self._harmless_items, call.args))
        value = call.args[1] if len(call.args) > 1 else None
        default = method == "setdefault"
        return method in _STORES and bool(call.args) and self._harmless(call.args[0], value, default=default)

    def _harmless_items(self, given: ast.expr) -> bool:
        return isinstance(given, ast.Dict) and all(
            key is not None and self._harmless(key, value) for key, value in zip(given.keys, given.values, strict=True)
        )

    def _harmless(self, name: ast.expr, value: ast.expr | None, *, default: bool = False) -> bool:
        plain = isinstance(name, ast.Constant) and isinstance(name.value, str)
        return plain and self._harmless_name(str(ast.literal_eval(name)), value, name.lineno, default=default)

    def _harmless_name(self, name: str, value: ast.expr | None, line: int, *, default: bool = False) -> bool:
        """It is read by another library, or when it is needed, or was read by then, or has this value already."""
        if not name.startswith(_READ_AT_IMPORT) or name in _READ_LATE:
            return True
        point = (read_at(name) or {}).get("at")
        if point in _OTHER_POINTS or (point == "import" and line > self._torch):
            return True
        held = self._given.get(name)
        return held is not None and (default or (isinstance(value, ast.Constant) and value.value == held))


def _line_of_torch(tree: ast.Module) -> float:
    """The line at which a file imports torch whenever it runs at all: what is below runs later."""
    for node in tree.body:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
        if any(name.partition(".")[0] == "torch" for name in modules):
            return node.lineno
    return float("inf")

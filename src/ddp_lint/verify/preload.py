"""What a rank may find imported when it starts: from a process that has torch it is forked in milliseconds.

A program that sets environment variables before it imports torch must have the same effect as without verify, so one
that touches the environment gets its own Python. So does one that may iterate over a set or call `hash`: forked ranks
have one seed for the hashes of strings, where processes of their own have one each. Reads the source only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.source.imports import last_part
from ddp_lint.verify.spec import CAN_FORK
from ddp_lint.verify.target import Target, trees

_READS = frozenset({"get", "keys", "values", "items", "copy", "__getitem__", "__contains__"})
_STORES = frozenset({"setdefault", "pop", "__setitem__", "__delitem__"})
#: How the names begin of what torch, the libraries below it, or Python itself may look at once.
_READ_AT_IMPORT = (
    "AOT", "ATEN", "BLIS", "C10", "CUBLAS", "CUDA", "CUDNN", "DISABLE", "DNNL", "FUNCTORCH", "GLOO", "GOMP", "HIP",
    "INDUCTOR", "KINETO", "KMP", "LD_", "MALLOC", "MKL", "NCCL", "NUMEXPR", "NV", "OMP", "ONEDNN", "OPENBLAS", "PATH",
    "PYTHON", "PYTORCH", "ROC", "TEMP", "TMP", "TORCH", "TRITON", "UCC", "XLA",
)  # fmt: skip
_WRITERS = frozenset({"putenv", "unsetenv", "load_dotenv"})
_SETS = frozenset({"set", "frozenset"})
#: What returns the same for a set in any order of iteration.
_ORDERLESS = frozenset({"sorted", "len", "min", "max", "sum", "any", "all", "bool", "isinstance"})
#: What walks its argument.
_WALKS = frozenset({"list", "tuple", "iter", "enumerate", "map", "zip", "join", "chain", "extend"})
_STREAMS = frozenset({"Stream", "ExternalStream", "wait_stream", "record_stream"})


def may_fork(target: Target) -> bool:
    """Ranks of this target may find torch imported. Those that build a model import it before its file in any case."""
    apart = (_writes_environment(tree) or _depends_on_hashes(tree) for tree in trees(target))
    return CAN_FORK and (target.kind != "script" or not any(apart))


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


def _writes_environment(tree: ast.Module) -> bool:
    """It stores into `os.environ` what an import of torch may read, or hands it to someone who may."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in _WRITERS or (name == "environ" and not _only_read(node, parents)):
                return True
    return False


def _only_read(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    outer = parents.get(node)
    if isinstance(outer, ast.Subscript):
        return isinstance(outer.ctx, ast.Load) or _harmless(outer.slice)
    if isinstance(outer, ast.Attribute):
        call = parents.get(outer)
        stores = outer.attr in _STORES and isinstance(call, ast.Call) and bool(call.args)
        return outer.attr in _READS or (stores and isinstance(call, ast.Call) and _harmless(call.args[0]))
    return isinstance(outer, ast.Compare)


def _harmless(name: ast.expr) -> bool:
    """A variable that is read when it is needed (MASTER_PORT), or by another library."""
    return isinstance(name, ast.Constant) and isinstance(name.value, str) and not name.value.startswith(_READ_AT_IMPORT)

"""What a rank may find imported when it starts: from a process that has torch it is forked in milliseconds.

A program that sets environment variables before it imports torch shall have the effect that it has without us, so one
that touches the environment gets a Python of its own. Reads the source only.
"""

from __future__ import annotations

import ast

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
_STREAMS = frozenset({"Stream", "ExternalStream", "wait_stream", "record_stream"})


def may_fork(target: Target) -> bool:
    """Ranks of this target may find torch imported. Those that build a model import it before its file in any case."""
    return CAN_FORK and (target.kind != "script" or not any(map(_writes_environment, trees(target))))


def uses_streams(target: Target) -> bool:
    """The target, or a file that it imports, mentions CUDA streams: their order is worth following."""
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for tree in trees(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name)
    }
    return bool(names & _STREAMS)


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

"""Whether the replicas of a model write the same into a parameter: what they compute from what they have in common."""

from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.knowledge.tensors import names, words_of
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import walk
from ddp_lint.source.tree import children, method_of
from ddp_lint.tensors import Flow, Write
from ddp_lint.tensors.values import Kind
from ddp_lint.view import Module


class Replicas:
    """Asked about the writes of one function. What is not understood may differ."""

    def __init__(self, module: Module, flow: Flow) -> None:
        self._module = module
        self._flow = flow

    def write_alike(self, write: Write) -> bool:
        """Whether the values of a write, its place and the tests around it come from parameters and settings alone."""
        tests = (test for test, _ in conditions(self._module, write.node))
        return not any(self._flow.value(test).inputs for test in tests) and self._is_common(write.node, frozenset())

    def _is_common(self, node: cst.CSTNode, followed: frozenset[str]) -> bool:
        value = self._flow.value(node)
        if value.inputs or value.kind is Kind.BUFFER:  # a buffer may hold the statistics of this rank's batches
            return False
        if isinstance(node, cst.Name):
            return self._is_common_name(node, followed)
        if isinstance(node, cst.Attribute):
            ranked = words_of(node.attr.value) & {"rank"} or self._module.listed("ranks", node)
            return not ranked and (bool(dotted(node)) or self._is_common(node.value, followed))
        if isinstance(node, cst.Call):
            return self._is_common_call(node, followed)
        if isinstance(node, cst.AssignTarget):
            return self._is_common(node.target, followed)
        return all(self._is_common(child, followed) for child in children(node) if not _is_sign(child))

    def _is_common_name(self, node: cst.Name, followed: frozenset[str]) -> bool:
        value = self._flow.value(node)
        if value.kind in (Kind.PYTHON, Kind.PARAMETER, Kind.LAYER) or node.value in ("self", *followed):
            return True
        given = self._module.assignments(node)
        return bool(given) and all(self._is_common(v, followed | {node.value}) for v in given)

    def _is_common_call(self, node: cst.Call, followed: frozenset[str]) -> bool:
        qualified = self._module.qualified(node.func)
        called = (qualified or dotted(node.func) or _method(node)).rpartition(".")[2]
        if called.strip("_") in names("random", "calls"):
            return False
        receiver = node.func.value if isinstance(node.func, cst.Attribute) and not qualified else None
        converts = receiver is not None and called in names("views", "maybe")
        understood = self._flow.value(node).kind is not Kind.UNKNOWN or self._is_plain(node) or converts
        return (
            understood
            and (receiver is None or self._is_common(receiver, followed))
            and all(self._is_common(arg.value, followed) for arg in node.args)
        )

    def _is_plain(self, call: cst.Call) -> bool:
        """Whether a function of the project is called that works with its arguments alone: it draws nothing at random,
        reads no rank, and no object of its own."""
        name, project = self._module.callee(call), self._module.project
        found = project.meanings.definition(project.meanings.canonical(name)) if name and project is not None else None
        function = found[1] if found is not None else None
        if not isinstance(function, ast.FunctionDef):
            return False
        random = names("random", "calls")
        for node in walk(function):
            called = dotted_ast(node.func).rpartition(".")[2].strip("_") if isinstance(node, ast.Call) else ""
            named = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if called in random or words_of(named) & {"rank", "self"} or isinstance(node, ast.Global):
                return False
        return True


def _method(call: cst.Call) -> str:
    return method_of(call)


def _is_sign(node: cst.CSTNode) -> bool:
    """What holds no value: operators, the names of a keyword argument."""
    return isinstance(node, (cst.BaseBinaryOp, cst.BaseUnaryOp, cst.BaseAugOp, cst.BaseCompOp, cst.BaseBooleanOp))

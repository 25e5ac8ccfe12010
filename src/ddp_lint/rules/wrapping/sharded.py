"""Calls on a model whose parameters a wrap has sharded: one look, a rule for each call that no longer works there."""

from __future__ import annotations

from typing import ClassVar

import libcst as cst

from ddp_lint.rules.base import Rule
from ddp_lint.source import dotted
from ddp_lint.view.wraps import Wrap


class CallOnSharded(Rule):
    """A rule about one call: which model it concerns, and what is wrong where that is sharded in one of the `kinds`."""

    #: Ways to wrap (`Wrap.kind`) under which the call is wrong.
    kinds: ClassVar[tuple[str, ...]] = ("fsdp1", "fsdp2")

    def visit_Call(self, node: cst.Call) -> None:
        name = self.model_of(node)
        wrap = self.module.wraps.of(name, node) if name else None
        if wrap is not None and wrap.kind in self.kinds:
            self.found(node, name, wrap)

    def model_of(self, node: cst.Call) -> str:
        """The dotted name of the model that the call concerns, '' for any other call."""
        raise NotImplementedError

    def found(self, node: cst.Call, name: str, wrap: Wrap) -> None:
        """Report the call: `name` is the model, sharded by `wrap`."""
        raise NotImplementedError


def owner_of(node: cst.Call, method: str) -> str:
    """The dotted name of the object whose method is called, '' for another method."""
    owner, _, name = dotted(node.func).rpartition(".")
    return owner if name == method else ""


def first_argument(node: cst.Call) -> str:
    """The dotted name of a call's first argument, '' where there is none."""
    return dotted(node.args[0].value) if node.args else ""

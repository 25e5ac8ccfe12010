"""The view of one file that a rule works on."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from ddp_lint.findings import Span
from ddp_lint.knowledge import canonical
from ddp_lint.source.imports import ImportTable
from ddp_lint.source.tree import children

if TYPE_CHECKING:
    from ddp_lint.project import Project
    from ddp_lint.source.file import SourceFile

Function = cst.FunctionDef | cst.Lambda


def dotted(node: cst.CSTNode | None) -> str:
    """`a.b.c` for a chain of names and attributes, else ''."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return ""
    parts.append(node.value)
    return ".".join(reversed(parts))


class Module:
    """One file: its (focused) LibCST tree and what rules ask about it.

    The tree may leave out definitions that no active rule could have an interest in (see `engine.focus`);
    `line_map[i]` is then the file's line of the tree's line i+1, so that spans are always those of the file.
    """

    def __init__(
        self,
        file: SourceFile,
        tree: cst.Module,
        imports: ImportTable,
        *,
        name: str = "",
        project: Project | None = None,
        line_map: list[int] | None = None,
    ) -> None:
        self.file = file
        self.tree = tree
        self.imports = imports
        self.name = name
        self.project = project
        self._line_map = line_map

    # ---- structure

    @functools.cached_property
    def _parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        parents: dict[cst.CSTNode, cst.CSTNode] = {}
        stack: list[cst.CSTNode] = [self.tree]
        while stack:
            node = stack.pop()
            for child in children(node):
                parents[child] = node
                stack.append(child)
        return parents

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """From the parent outwards to the module."""
        up = self._parents.get(node)
        while up is not None:
            yield up
            up = self._parents.get(up)

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The nearest enclosing `def` (lambdas and comprehensions are looked through)."""
        return next((a for a in self.ancestors(node) if isinstance(a, cst.FunctionDef)), None)

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """The nearest enclosing class, also from inside one of its methods."""
        return next((a for a in self.ancestors(node) if isinstance(a, cst.ClassDef)), None)

    # ---- names

    def qualified(self, node: cst.CSTNode | None) -> str:
        """The canonical dotted name that an expression stands for through this file's imports.

        ``DDP`` -> ``torch.nn.parallel.DistributedDataParallel`` after ``from torch.nn.parallel import
        DistributedDataParallel as DDP``. '' for anything that does not start at an imported name: a local that
        merely shares a name with an API is never that API.
        """
        name = dotted(node)
        target = self.imports.resolve(name) if name else None
        if target is None:
            return ""
        if self.project is not None:
            target = self.project.canonical(target)
        return canonical(target)

    # ---- places

    @functools.cached_property
    def _positions(self) -> dict[cst.CSTNode, CodeRange]:
        wrapper = MetadataWrapper(self.tree, unsafe_skip_copy=True)
        return dict(wrapper.resolve(PositionProvider))  # type: ignore[arg-type]

    def span(self, node: cst.CSTNode, end: cst.CSTNode | None = None) -> Span:
        """The span of a node, or from `node` to the end of `end`. Positions are computed on first use."""
        first, last = self._positions[node], self._positions[end or node]
        return Span(
            self.file.path,
            self._line(first.start.line),
            first.start.column + 1,
            self._line(last.end.line),
            last.end.column + 1,
        )

    def _line(self, line: int) -> int:
        return self._line_map[line - 1] if self._line_map else line

    def code(self, node: cst.CSTNode) -> str:
        """The source text of a node, on one line."""
        return " ".join(self.tree.code_for_node(node).split())

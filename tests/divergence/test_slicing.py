"""What an attribute rests on: the statements of a method that decide what it stores in it."""

from __future__ import annotations

import ast
import textwrap

import pytest

from ddp_lint.divergence.slicing import storing

CASES = {
    "what the value rests on, and the branches around it": (
        """
        def run(self, loader):
            log("starts")
            size = len(loader)
            other = make()
            if size > 3:
                self.count = size * 2
            train(other)
        """,
        """
        size = len(loader)
        if size > 3:
            self.count = size * 2
        """,
    ),
    "an exit beside a store, none in a block of its own, and none behind the last": (
        """
        def run(self, loader):
            if loader is None:
                raise ValueError(loader)
            if rank != 0:
                self.count = 0
                return compute()
            self.count = 1
            return self
        """,
        """
        if rank != 0:
            self.count = 0
            return
        self.count = 1
        """,
    ),
    "calls that may change what it rests on": (
        """
        def run(self, loader):
            total = torch.zeros(1)
            dist.all_reduce(total)
            self.report(total)
            self.gather(total)
            dist.broadcast(self.count, 0)
            self.count = total.item()
        """,
        """
        total = torch.zeros(1)
        dist.all_reduce(total)
        self.gather(total)
        dist.broadcast(self.count, 0)
        self.count = total.item()
        """,
    ),
    "a class whose objects differ in their group alone": (
        """
        def run(self, loader):
            group = make_group()
            prompts = self.prepare(loader)
            self.count = Counter(prompts, group=group)
        """,
        """
        group = make_group()
        self.count = Counter(prompts, group=group)
        """,
    ),
    "blocks of every kind": (
        """
        def run(self, loader):
            import math
            for batch in loader:
                skip(batch)
            with lock as held:
                try:
                    self.count = held
                except ValueError as error:
                    warn(error)
                    self.count = 0
                else:
                    done()
            match loader:
                case [first, *_]:
                    self.count = first
        """,
        """
        import math
        with lock as held:
            try:
                self.count = held
            except ValueError as error:
                self.count = 0
            else:
                pass
        match loader:
            case [first, *_]:
                self.count = first
        """,
    ),
    "another attribute": ("def run(self, loader):\n    self.other = loader\n", ""),
    "more than is worth it": (
        "def run(self, n):\n" + "    n = n + 1\n" * 100 + "    if n:\n        n = n + 1\n    self.count = n\n",
        "self.count = n",
    ),
    "more than is worth it, and what its own block binds": (
        "def run(self, n):\n" + "    n = n + 1\n" * 100 + "    a, (b, c) = gather(n)\n    self.count = b / 2\n",
        "a, (b, c) = gather(n)\nself.count = b / 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_slice(case: str) -> None:
    source, expected = CASES[case]
    method = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(method, ast.FunctionDef)
    before = ast.dump(method)
    found = "\n".join(ast.unparse(statement) for statement in storing(method, "count"))
    assert found == textwrap.dedent(expected).strip()
    assert ast.dump(method) == before

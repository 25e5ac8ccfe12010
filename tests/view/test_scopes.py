"""What is known of a local name."""

from __future__ import annotations

import pathlib

import libcst as cst
import pytest

from ddp_lint.project import Project
from ddp_lint.source import SourceFile
from ddp_lint.source.tree import descendants
from ddp_lint.view import Module

TEXT = """\
import torch
import torch.nn as nn
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel as DDP
from typing import Optional
from base import Base


class Net(nn.Module):
    def __init__(self, acc: "Optional[Accelerator]" = None):
        self.acc = acc
        self.inner = nn.Linear(1, 2).to("cuda")

    def go(self):
        self.acc.call_annotated()
        self.inner.call_attribute()
        self.go.nothing()


class Sub(Base):
    def go(self):
        self.wrapped.call_inherited()
        self.call_own()


def make() -> "Net":
    return None


def build():
    net = Net()
    return net


def use(dist, default=Accelerator()):
    dist.call_shadowed()
    model = Net()
    model.call_before()
    model = DDP(model)
    model.call_after()
    make().call_returned()
    build().call_built()
    default.call_default()
    with Accelerator() as acc:
        acc.call_with()
    first, second = make(), 1
    first.call_unpacked()
    [torch.call_in_comprehension() for torch in ()]
    torch.call_global()


def local():
    import os as torch
    torch.call_local_import()
    if (walrus := Net()):
        walrus.call_walrus()
"""
BASE = """\
from torch.nn.parallel import DistributedDataParallel
class Base:
    def setup(self):
        self.wrapped = DistributedDataParallel(1)
"""


@pytest.fixture
def module(tmp_path: pathlib.Path) -> Module:
    (tmp_path / "base.py").write_text(BASE)
    path = tmp_path / "a.py"
    path.write_text(TEXT)
    project = Project(tmp_path)
    facts = project.modules.facts_of(path)
    assert facts is not None
    file = SourceFile("a.py", TEXT)
    return Module(file, cst.parse_module(TEXT), facts.imports, name="a", project=project, path=path)


def test_calls_are_named_by_the_class_of_their_receiver(module: Module) -> None:
    calls = (node for node in descendants(module.tree) if isinstance(node, cst.Call))
    named = {callee.rpartition(".")[2]: callee.rpartition(".")[0] for callee in map(module.callee, calls)}
    ddp = "torch.nn.parallel.DistributedDataParallel"
    expected = {
        "call_annotated": "accelerate.Accelerator",
        "call_attribute": "torch.nn.Linear",
        "call_inherited": ddp,
        "call_own": "a.Sub",
        "call_before": "a.Net",
        "call_after": ddp,
        "call_returned": "a.Net",
        "call_built": "a.Net",
        "call_default": "accelerate.Accelerator",
        "call_with": "accelerate.Accelerator",
        "call_unpacked": "a.Net",
        "call_global": "torch",
        "call_local_import": "os",
        "call_walrus": "a.Net",
    }
    assert {name: owner for name, owner in named.items() if name.startswith("call_")} == expected


def test_bindings_say_where_a_value_is_unpacked_from(module: Module) -> None:
    tree = cst.parse_module("a, (b, *c) = f()\nfor a in g(): pass\na += 1\nx.y = 2\n")
    other = Module(SourceFile("b.py", tree.code), tree, module.imports)
    assert [(b.kind, b.index) for b in other.bindings("a")] == [("assign", (0,)), ("for", ()), ("augment", ())]
    assert [(b.kind, b.index) for b in other.bindings("c")] == [("assign", (1, 1))]
    assert [other.code(value) for value in other.assignments("x.y")] == ["2"]
    assert other.assignments("a") == []


def test_subclasses(module: Module) -> None:
    classes = {node.name.value: node for node in descendants(module.tree) if isinstance(node, cst.ClassDef)}
    assert module.is_subclass(classes["Net"], "torch.nn.Module")
    assert module.is_subclass(classes["Sub"], "base.Base")
    assert not module.is_subclass(classes["Sub"], "torch.nn.Module")
    assert module.name_of(classes["Net"]) == "a.Net"

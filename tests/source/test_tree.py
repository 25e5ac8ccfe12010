"""LibCST trees as the rules walk them."""

import abc

import libcst as cst
import pytest

from ddp_lint.source.tree import descendants


def test_every_type_of_node_is_hashed_and_tested_without_python() -> None:
    stack = [cst.CSTNode]
    while stack:
        kind = stack.pop()
        assert kind.__hash__ is object.__hash__, kind
        assert type(kind).__instancecheck__ is type.__instancecheck__, kind
        stack += kind.__subclasses__()
    tree = cst.parse_module("a = a + a")
    assert len({node for node in descendants(tree) if isinstance(node, cst.Name)}) == 3


def test_types_of_nodes_are_still_abstract_and_can_be_inherited_from() -> None:
    class Own(cst.Name, abc.ABC):
        """As another tool in the same process may have one."""

    assert isinstance(Own("a"), cst.BaseExpression)
    assert not isinstance(cst.Name("a"), Own)
    with pytest.raises(TypeError, match="abstract"):
        cst.BaseExpression()  # type: ignore[abstract]

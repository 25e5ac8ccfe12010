"""LibCST trees as the rules walk them."""

import libcst as cst

from ddp_lint.source.tree import descendants


def test_every_type_of_node_is_hashed_by_identity_without_python() -> None:
    stack = [cst.CSTNode]
    while stack:
        kind = stack.pop()
        assert kind.__hash__ is object.__hash__, kind
        stack += kind.__subclasses__()
    tree = cst.parse_module("a = a + a")
    assert len({node for node in descendants(tree) if isinstance(node, cst.Name)}) == 3

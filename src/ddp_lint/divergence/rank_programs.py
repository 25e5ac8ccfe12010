"""Role programs: one rank runs one program, the others another, and both talk to each other in loops."""

from __future__ import annotations

from ddp_lint.divergence.event_graph import Choice, End, EventGraph, EventNode, Loop


def roles(graph: EventGraph) -> frozenset[int]:
    """Identities of the rank conditions that give out roles: each outcome leads to communicating loops that the other
    does not have. How many rounds of the one match how many of the other no comparison of graphs can show."""
    spans = {node.span: index for index, node in enumerate(graph.nodes) if isinstance(node, Loop) and node.streams}
    if len(spans) < 2:
        return frozenset()
    reached = [0] * len(graph.nodes)
    found: set[int] = set()
    for node in graph.nodes:
        if isinstance(node, Choice):
            yes, no = reached[node.yes.number], reached[node.no.number]
            reached[node.number] = yes | no
            varies = node.condition.varies
            if yes & ~no and no & ~yes and varies is not None and varies.cause in ("rank", "membership"):
                found.add(id(node.condition))
        elif isinstance(node, EventNode):
            reached[node.number] = reached[node.after.number]
        elif isinstance(node, Loop):
            inside = reached[node.body.number] | reached[node.after.number]
            reached[node.number] = inside | (1 << spans[node.span] if node.span in spans else 0)
        else:
            assert isinstance(node, End)
    return frozenset(found)

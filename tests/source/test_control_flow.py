"""What leads to a place, and what of it holds there."""

import libcst as cst
from libcst import matchers

from ddp_lint.source import ImportTable, Module, SourceFile
from ddp_lint.source.control_flow import conditions, holding

TEXT = """
def f(a, b, c, d):
    if a:
        return
    while b:
        if c:
            continue
        if not d:
            pass
        elif c and g():
            x = 1
        else:
            y = 1
"""


def _told(text: str, name: str) -> tuple[list[tuple[str, bool]], list[str]]:
    tree = cst.parse_module(text)
    module = Module(SourceFile("m.py", text), tree, ImportTable({}))
    place = matchers.findall(tree, matchers.Name(name))[0]
    return (
        [(module.code(test), taken) for test, taken in conditions(module, place)],
        list(map(module.code, holding(module, place))),
    )


def test_what_holds_are_the_conditions_that_are_taken() -> None:
    failed = [("c", False), ("b", True), ("a", False)]
    assert _told(TEXT, "x") == ([("c and g()", True), ("not d", False), *failed], ["c and g()", "b"])
    assert _told(TEXT, "y") == ([("c and g()", False), ("not d", False), *failed], ["b"])
    assert _told(TEXT, "g") == ([("c", True), ("not d", False), *failed], ["c", "b"])


def test_what_has_failed_before_is_not_gone_through_for_what_holds() -> None:
    text = (
        "def f(a):\n" + "".join(f"    if a == {n}:\n        return\n" for n in range(50)) + "    if a:\n        x = 1\n"
    )
    before, held = _told(text, "x")
    assert (len(before), held) == (51, ["a"])

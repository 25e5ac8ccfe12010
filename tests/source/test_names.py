"""The names of a function: what is taken back, what was changed, and what is forgotten."""

import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from ddp_lint.divergence.analyse import result_of
from ddp_lint.project import Project
from ddp_lint.source.names import Names


def test_what_is_set_for_a_while_is_taken_back() -> None:
    names = Names({"x": 1, "x.a": 2})
    with names.for_a_while():
        names["x"], names["y"] = 3, 4
        names.forget_parts("x")
        with names.for_a_while():
            names["x"] = 5
            del names["y"]
        assert names == {"x": 3, "y": 4}
    assert names == {"x": 1, "x.a": 2}


def test_only_the_parts_of_a_name_are_forgotten() -> None:
    names = Names({"x": 0, "x.a": 1, "x[0]": 2, "x.a.b": 3, "xa.b": 4})
    copy = Names(names)
    copy["x.c[1].d"] = 5
    copy.forget_parts("x.a")
    assert copy.keys() == {"x", "x.a", "x[0]", "xa.b", "x.c[1].d"}
    copy.forget_parts("x")
    assert copy.keys() == {"x", "xa.b"}
    assert names.keys() == {"x", "x.a", "x[0]", "x.a.b", "xa.b"}


def test_two_arms_differ_in_what_they_have_changed() -> None:
    names = Names({f"n{n}": n for n in range(100)})
    yes, no = Names(names), Names(names)
    yes["n1"] = no["m"] = 0
    del no["n2"]
    assert set(yes.differing(no)) == set(no.differing(yes)) == {"n1", "m", "n2"}
    assert set(yes.differing(names)) == {"n1"}
    outer = Names(names)
    inner = Names(outer)
    inner["n3"] = 0
    outer = inner.gone_on_from(outer)
    outer["n4"] = 0
    assert outer["n3"] == 0
    assert set(outer.differing(yes)) == {"n1", "n3", "n4"}


def test_copies_of_different_states_may_differ_in_all() -> None:
    names = Names({"a": 1, "b": 2})
    earlier = Names(names)
    names["a"] = 3
    assert set(earlier.differing(Names(names))) >= {"a"}
    assert set(earlier.differing(names)) >= {"a"}
    assert set(names.differing(Names({"c": 1}))) >= {"a", "b", "c"}


def test_names_that_are_set_together_are_changed_too() -> None:
    names = Names({"x": 1, "x.a": 2})
    copy = Names(names)
    copy.update({"x": 3, "y.b": 4})
    copy |= {"z": 5}
    assert set(copy.differing(names)) == {"x", "y.b", "z"}
    copy.forget_parts("y")
    assert copy == {"x": 3, "x.a": 2, "z": 5}


def test_where_an_arm_is_missing_its_names_are_not_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Of a function with thousands of names and of branches, each copy of the names would count."""
    copied: list[int] = []
    make = Names.__init__

    def counted(self: Names[Any], names: Mapping[str, Any] | None = None) -> None:
        copied.append(len(names or ()))
        make(self, names)

    monkeypatch.setattr(Names, "__init__", counted)
    arms = "".join(f"    if c[{n}]:\n        y{n} = x + {n}\n" for n in range(50))
    text = (
        f"import torch.distributed as dist\ndef f(c, x):\n{arms}    if y7 == dist.get_rank():\n        dist.barrier()\n"
    )
    (tmp_path / "a.py").write_text(text)
    project = Project(tmp_path)
    facts = project.modules.facts_of(tmp_path / "a.py")
    assert facts is not None
    assert [m.span.line for m in result_of(facts, project).mismatches] == [104]
    assert sum(length > 25 for length in copied) <= 30  # once for each arm of the later half


def test_names_differ_from_their_copies_in_what_was_set_since() -> None:
    names = Names({f"n{n}": n for n in range(100)})
    first = Names(names)
    names["n1"] = 0
    second = Names(names)
    names["n2"] = 0
    second["n3"] = 0
    assert set(first.differing(names)) == {"n1", "n2"}
    assert set(names.differing(second)) == {"n2", "n3"}


def test_names_of_a_later_state_differ_in_what_was_set_in_between() -> None:
    """Loops in a row: the names behind one are a copy of those before it."""
    names = start = Names({f"n{n}": n for n in range(100)})
    for n in range(5):
        end = Names(names)
        end[f"m{n}"] = 0
        names = Names(names).gone_on_from(names)
        assert set(end.differing(names)) == {f"m{n}"}
        names.update({f"m{n}": 1})
    assert set(names.differing(start)) == set(start.differing(names)) == {f"m{n}" for n in range(5)}


def test_a_copy_of_what_holds_for_a_while_differs_from_what_was_before() -> None:
    names = Names({"x": 1, "y": 2})
    with names.for_a_while():
        names["x"] = 3
        copy = Names(names)
    assert "x" in copy.differing(names)

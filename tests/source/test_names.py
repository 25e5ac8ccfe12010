"""The names of a function: what is taken back, what was changed, and what is forgotten."""

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

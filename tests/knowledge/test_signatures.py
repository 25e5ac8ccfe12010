"""Signatures are searched for where a text holds what they need: that leaves out none."""

import pytest

from ddp_lint.knowledge.signatures import explain, needed_by, signatures


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        ("plain text", {"plain text"}),
        (r"to (gather|scatter) a list\?", {" a list?"}),
        ("colou?r of things", {"r of things"}),
        (r"abc+\d{2,3}defg", {"defg"}),
        (r"first one|[Ss]econd.{0,40}one", {"first one", "econd"}),
        ("first one|ab", set()),
        ("(first|second)", set()),
        ("(?i)plain text", set()),
        (r"a[|)(]bcd|\|efg", {"bcd", "|efg"}),
    ],
)
def test_what_a_pattern_needs(pattern, needed):
    assert needed_by(pattern) == needed


def test_no_signature_is_left_out():
    for known in signatures():
        first = next((each for each in signatures() if each.searches.search(known.seen)), None)
        assert explain(known.seen) is first
    assert sum(not needed_by(known.pattern) for known in signatures()) < 10

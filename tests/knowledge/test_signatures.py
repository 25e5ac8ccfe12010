"""Signatures are searched for where a text holds what they need: that leaves out none."""

import pytest

from ddp_lint.knowledge.signatures import explain, needed_by, signatures


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        ("Plain text", [[{"plain text"}]]),
        (r"to (gather|scatter) a list\?", [[{"to "}, {"gather", "scatter"}, {" a list?"}]]),
        ("colou?r of things", [[{"colo"}, {"r of things"}]]),
        (r"abc+\d{2,3}defg", [[{"abc"}, {"defg"}]]),
        (r"first one|[Ss]econd.{0,40}one", [[{"first one"}], [{"econd"}, {"one"}]]),
        ("first one|ab", [[{"first one"}], []]),
        ("abc(first|second)?d", [[{"abc"}]]),
        ("abc(first|second){0,2}def", [[{"abc"}, {"def"}]]),
        ("abc(?!def)(?:ghi|j)", [[{"abc"}]]),
        ("(?i)Loss (is|was).{0,20}(nan|inf(inite)?)", [[{"loss "}, {"nan", "inf"}]]),
        (r"a[|)(]bcd|\|efg", [[{"bcd"}], [{"|efg"}]]),
    ],
)
def test_what_a_pattern_needs(pattern, needed):
    assert [[set(one_of) for one_of in needs] for needs in needed_by(pattern)] == needed


def test_no_signature_is_left_out():
    for known in signatures():
        first = next((each for each in signatures() if each.searches.search(known.seen)), None)
        assert explain(known.seen) is first
    assert all(all(needed_by(known.pattern)) for known in signatures())

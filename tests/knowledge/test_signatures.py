"""Signatures are searched for where a text holds what they need: that leaves out none."""

from ddp_lint.knowledge.signatures import explain, signatures
from ddp_lint.source.occurring import needed


def test_no_signature_is_left_out():
    for known in signatures():
        first = next((each for each in signatures() if each.searches.search(known.seen)), None)
        assert explain(known.seen) is first


def test_no_signature_is_searched_for_in_every_text():
    assert all(needed(known.searches) for known in signatures())

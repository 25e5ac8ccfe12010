"""Headlines that fit: code is cut, words are not."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from ddp_lint.findings import HEADLINE, fitted


def test_code_is_cut_in_its_middle_the_longest_first() -> None:
    short = "`x` is read here: the ranks diverge"
    assert fitted(short) == short
    long = f"`{'a' * 200}.item()` of `loss` is read on the host: each rank waits for its GPU"
    told = fitted(long)
    assert len(told) == HEADLINE
    assert told.startswith("`aaa")
    assert told.endswith("m()` of `loss` is read on the host: each rank waits for its GPU")
    assert fitted("two\n lines") == "two lines"


@hypothesis.given(st.text(alphabet="ab `…\n", max_size=400))
def test_whatever_it_holds_a_headline_is_one_line_and_fits(message: str) -> None:
    told = fitted(message)
    assert len(told) <= HEADLINE
    assert "\n" not in told

"""What a text holds, searched for once or many times."""

from __future__ import annotations

from ddp_lint.source.searching import SearchedText

TEXT = "".join(f"def step_{n}(x):\n    x.more{n} (1)\n" for n in range(100)) + "é_call(x)\nself.last"
WORDS = [f"step_{n}(" for n in range(0, 200, 2)] + [
    "tep_7(",
    "p_77(",
    "more3(",
    "é_call(",
    "call(",
    "(",
    "last(",
    ".last",
    *[f"more{n}" for n in range(0, 200, 3)],
    "ore9",
    "é_cal",
    "self.last",
]


def test_the_indexes_find_what_a_search_finds() -> None:
    searched = SearchedText(TEXT)
    for _ in range(2):
        assert [searched.holds(word) for word in WORDS] == [word in TEXT for word in WORDS]

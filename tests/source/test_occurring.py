"""A text without what every match of a pattern has is not searched by the pattern."""

import re

import pytest

from ddp_lint.knowledge.project_names import Names, wrapping_pattern
from ddp_lint.source.occurring import may_occur, occurs


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\bDataParallel\(", "x = nn.DataParallel(net)"),
        (r"noqa|ddp-lint\s*:", "x = 1  # noqa"),
        (r"(?i)noqa", "x = 1  # NoQA"),
        (r"(?i:noqa)\b|flake8", "x = 1  # NOQA"),
        (r"a(bcd)?e", "ae"),
        (r"(abc|d)+", "d"),
        (r"(?:abc){0,2}x", "x"),
        (r"(?x) wo rld  # not this", "world"),
        (r"(?<=one)two(?!three)", "onetwo"),
        (r"(?!.*abc)def", "def"),
        (r"distributed(data|model)parallel", "distributedmodelparallel"),
        (r"^import\b", "\nimport x"),
        (r"(\w+)\.(?P<name>attr)\b(?P=name)?", "x.attr"),
    ],
)
def test_what_matches_may_occur(pattern: str, text: str) -> None:
    compiled = re.compile(pattern, re.MULTILINE)
    assert compiled.search(text)
    assert may_occur(compiled, text)
    assert occurs(compiled, text)


def test_a_text_without_any_of_the_words_is_not_searched() -> None:
    assert not may_occur(wrapping_pattern(Names()), "import torch\nmodel = Net()\n" * 3)
    assert may_occur(wrapping_pattern(Names()), "model = DDP(Net())")
    assert may_occur(wrapping_pattern(Names(wrappers=("wrap_it",))), "model = wrap_it(Net())")


def test_letters_that_equal_longer_ones_are_searched_for() -> None:
    pattern = re.compile("kelvin", re.IGNORECASE)
    assert occurs(pattern, "\N{KELVIN SIGN}elvin")
    assert not may_occur(pattern, "celsius")


def test_a_part_without_comments_is_a_part_of_the_text() -> None:
    pattern = re.compile(r"f\(\s*word")
    assert may_occur(pattern, "f(  # why\n word)")

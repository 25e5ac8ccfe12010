"""What tests for old versions of torch come to."""

from __future__ import annotations

import ast

import pytest

from ddp_lint.source.torch_versions import holds_today


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("digit_version(TORCH_VERSION) >= digit_version('1.6.0')", True),
        ("TORCH_VERSION != 'parrots' and digit_version(TORCH_VERSION) >= digit_version('1.6.0')", True),
        ("TORCH_VERSION == 'parrots' or digit_version(TORCH_VERSION) < digit_version('1.1')", False),
        ("LooseVersion(torch.__version__) < LooseVersion('1.6')", False),
        ("LooseVersion(torch.__version__) < '1.6'", False),
        ("not version.parse(torch.__version__) < version.parse('1.7')", True),
        ("tuple(map(int, torch.__version__.split('.')[:2])) > (1, 6)", True),
        ("TORCH_VERSION[:2] < (1, 5)", False),
        # A torch that somebody may run, one number of it, a text, another package.
        ("parse(torch.__version__) >= parse('2.4')", None),
        ("torch.__version__ < '1.6'", None),
        ("TORCH_VERSION[0] < (1, 5)", None),
        ("int(torch.__version__[0]) > 0", None),
        ("parse(transformers.__version__) < parse('1.6')", None),
        ("parse(torch.__version__) < parse(needed)", None),
        ("parse(torch.__version__) == parse('1.6')", None),
        ("use_old and parse(torch.__version__) >= parse('1.6')", None),
        ("use_old or parse(torch.__version__) >= parse('1.6')", True),
    ],
)
def test_tests_for_old_versions_come_to_one_thing_today(test: str, outcome: bool | None) -> None:
    assert holds_today(ast.parse(test, mode="eval").body) is outcome

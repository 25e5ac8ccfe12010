"""The table of causes, and the code that fills it in."""

from __future__ import annotations

import pathlib
import re
import string

import ddp_lint
from ddp_lint.knowledge import table

_SOURCE = "\n".join(
    file.read_text(encoding="utf-8") for file in pathlib.Path(ddp_lint.__file__).parent.glob("verify/**/*.py")
)


def test_each_cause_is_given_somewhere_and_each_that_is_given_is_in_the_table() -> None:
    entries = table("damage")
    assert not [name for name in entries if f'"{name}"' not in _SOURCE]
    assert not set(re.findall(r'Cause\.of\(\s*"([\w-]+)"', _SOURCE)) - entries.keys()


def test_each_cause_says_what_to_do_and_names_its_facts() -> None:
    for name, entry in table("damage").items():
        assert set(entry) <= {"code", "cause", "fix"} and entry["fix"], name
        facts = [field for text in entry.values() for _, field, _, _ in string.Formatter().parse(text) if field]
        assert all(field.isidentifier() for field in facts), name

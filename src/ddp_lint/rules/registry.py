"""Rules by discovery: every module `rules/<family>/ddpNNN_slug.py` holds one rule. Nothing is listed by hand."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from ddp_lint import rules
from ddp_lint.rules.base import RULE_FILE, Rule


@functools.cache
def all_rules() -> dict[str, type[Rule]]:
    """Code to rule class, in order of codes."""
    found: dict[str, type[Rule]] = {}
    for info in pkgutil.walk_packages(rules.__path__, rules.__name__ + "."):
        if RULE_FILE.search(info.name):
            rule = _rule_of(info.name)
            found[rule.code] = rule
    return dict(sorted(found.items()))


def _rule_of(module_name: str) -> type[Rule]:
    module = importlib.import_module(module_name)
    (rule,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module_name
    )
    return rule

"""Rules by discovery: every module `rules/<family>/ddpNNN_slug.py` holds one rule. Nothing is listed by hand."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import pkgutil

from ddp_lint import rules
from ddp_lint.rules.base import RULE_FILE, Documented, Rule


@functools.cache
def documented() -> dict[str, type[Documented]]:
    """Code to class of everything that has a page, in order of codes: the rules, and DDP0xx for the run itself."""
    found: dict[str, type[Documented]] = {}
    for info in pkgutil.walk_packages(rules.__path__, rules.__name__ + "."):
        if RULE_FILE.search(info.name):
            entry = _documented_in(info.name)
            found[entry.code] = entry
    return dict(sorted(found.items()))


@functools.cache
def all_rules() -> dict[str, type[Rule]]:
    """Code to rule class, in order of codes."""
    return {code: entry for code, entry in documented().items() if issubclass(entry, Rule)}


@functools.cache
def text_globs() -> tuple[str, ...]:
    """Globs on the names of the files other than Python that some rule reads: shell scripts, Dockerfiles, YAML."""
    return tuple(sorted({glob for rule in all_rules().values() for glob in rule.files}))


def rules_for_text(name: str) -> dict[str, type[Rule]]:
    """The rules that read a file of this name as text; none for Python files."""
    return {c: r for c, r in all_rules().items() if any(fnmatch.fnmatch(name, glob) for glob in r.files)}


def _documented_in(module_name: str) -> type[Documented]:
    module = importlib.import_module(module_name)
    (entry,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Documented) and value.__module__ == module_name
    )
    return entry

"""Rules by discovery: every module `rules/<family>/ddpNNN_slug.py` holds one rule. Nothing is listed by hand.

What a rule declares about itself is kept from run to run (`ddp_lint.derived`), so that a run imports only the rules
that concern its files.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib
import json
import pathlib
import pkgutil
import re
from typing import TYPE_CHECKING, Any

from ddp_lint import rules
from ddp_lint.derived import derived
from ddp_lint.rules.triggers import Triggers

if TYPE_CHECKING:
    from ddp_lint.rules.base import Documented, Rule


_PYTHON = (".py", ".pyi", ".pyw", ".ipynb")
_HERE = pathlib.Path(__file__).parent
_SHELL = re.compile(r"#!.*[/\s](ba|da|k|z|a)?sh\b")
_INTERPRETER = re.compile(r"#!.*[/\s](python[\d.]*|pypy[\d.]*|uv)\b")


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What a rule says about itself, known without importing it. `looks`: it is a rule, and no DDP0xx."""

    module: str
    name: str
    code: str
    slug: str
    default: bool
    looks: bool
    files: tuple[str, ...] = ()
    triggers: Triggers = dataclasses.field(default_factory=Triggers)
    visits: bool = False
    gone_in: tuple[int, int] | None = None
    run_decides: bool = False
    in_tests_too: bool = False

    @classmethod
    def of(cls, entry: type[Documented]) -> Declaration:
        from ddp_lint.rules.base import Rule

        who = (entry.__module__, entry.__qualname__, entry.code, entry.slug, entry.default)
        if not issubclass(entry, Rule):
            return cls(*who, looks=False, gone_in=entry.gone_in, run_decides=entry.run_decides)
        visits = any(name.startswith(("visit_", "leave_")) for name in dir(entry))
        decided = (entry.gone_in, entry.run_decides, entry.in_tests_too)
        return cls(*who, True, entry.files, entry.triggers, visits, *decided)

    @classmethod
    def from_json(cls, row: list[Any]) -> Declaration:
        rule = dict(zip((field.name for field in dataclasses.fields(cls)), row, strict=True))
        what, file, tests, communicating = rule.pop("triggers")
        rule = {name: tuple(value) if isinstance(value, list) else value for name, value in rule.items()}
        return cls(**rule, triggers=Triggers(*what, file=file, tests=tests, communicating=communicating))

    def rule(self) -> type[Rule]:
        """The rule itself, imported."""
        found: type[Rule] = getattr(importlib.import_module(self.module), self.name)
        return found


@functools.cache
def declared() -> dict[str, Declaration]:
    """Code to declaration of everything that has a page, in order of codes."""
    rows = _shipped() or derived(pathlib.Path(__file__), _rows)
    return {rule.code: rule for rule in map(Declaration.from_json, rows)}


def _rows() -> list[Any]:
    return [dataclasses.astuple(Declaration.of(entry)) for entry in documented().values()]


def shipped_index() -> dict[str, Any]:
    """What a wheel holds of the rules: their declarations, and the size of every file that these come from."""
    return {"sizes": _sizes(), "rows": _rows()}


def _shipped() -> list[Any]:
    """The declarations that came with the wheel; none where the files are not those of the wheel any more."""
    try:
        index = json.loads((_HERE / "index.json").read_bytes())
        return list(index["rows"]) if index["sizes"] == _sizes() else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _sizes() -> dict[str, int]:
    """Rules are Python, what they know is TOML."""
    files = (*_HERE.glob("**/*.py"), *(_HERE.parent / "knowledge").rglob("*"))
    return {
        path.relative_to(_HERE.parent).as_posix(): path.stat().st_size
        for path in sorted(files)
        if path.suffix in (".py", ".toml")
    }


@functools.cache
def documented() -> dict[str, type[Documented]]:
    """Code to class of everything that has a page, in order of codes: the rules, and DDP0xx for the run itself."""
    from ddp_lint.rules.base import RULE_FILE

    found: dict[str, type[Documented]] = {}
    for info in pkgutil.walk_packages(rules.__path__, rules.__name__ + "."):
        if RULE_FILE.search(info.name):
            entry = _documented_in(info.name)
            found[entry.code] = entry
    return dict(sorted(found.items()))


@functools.cache
def all_rules() -> dict[str, type[Rule]]:
    """Code to rule class, in order of codes."""
    from ddp_lint.rules.base import Rule

    return {code: entry for code, entry in documented().items() if issubclass(entry, Rule)}


@functools.cache
def text_globs() -> tuple[str, ...]:
    """Globs on the names of the files other than Python that some rule reads: shell scripts, Dockerfiles, YAML."""
    return tuple(sorted({glob for rule in declared().values() for glob in rule.files}))


def following_calls() -> frozenset[str]:
    """The codes of the rules that follow calls into other files: those that visit nothing, whose findings are the
    analysis of divergence."""
    return frozenset(rule.code for rule in declared().values() if rule.looks and not rule.visits)


def rules_for_text(name: str, first_line: str = "") -> list[Declaration]:
    """The rules that read a file as text, by its name or by the shell that its first line calls; none for Python."""
    found = [rule for rule in declared().values() if any(fnmatch.fnmatch(name, glob) for glob in rule.files)]
    if found or name.endswith(_PYTHON) or not _SHELL.match(first_line):
        return found
    return rules_for_text("script.sh")


def is_for_rules(name: str, first_line: str) -> bool:
    """Whether a file is Python, or text that some rule reads, by its name and by what its first line calls."""
    return bool(name.endswith(_PYTHON) or _INTERPRETER.match(first_line) or rules_for_text(name, first_line))


def _documented_in(module_name: str) -> type[Documented]:
    from ddp_lint.rules.base import Documented

    module = importlib.import_module(module_name)
    (entry,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Documented) and value.__module__ == module_name
    )
    return entry

"""[tool.ddp-lint] -> frozen Settings. One loader for the command line, flake8 and pre-commit.

The configuration of a file is that of the nearest folder above it with a `.ddp-lint.toml`, a `ddp-lint.toml`, or a
`pyproject.toml` that has a `[tool.ddp-lint]` table; nothing is merged from folders further up.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import pathlib
import re
import reprlib
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ddp_lint.files import absolute, inner, read, read_stream, reason_of, shown
from ddp_lint.findings import UNCHECKED
from ddp_lint.globs import Globs, problem
from ddp_lint.knowledge.project_names import Names
from ddp_lint.project.layout import Roots

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMATS = ("full", "concise", "json", "sarif", "github", "gitlab", "junit")
FILES = (".ddp-lint.toml", "ddp-lint.toml", "pyproject.toml")
#: Folders that hold no code of the project's own.
DEFAULT_EXCLUDE = (
    ".bzr", ".cache", ".ddp_lint_cache", ".direnv", ".eggs", ".git", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox",
    ".pants.d", ".pyenv", ".pytest_cache", ".pytype", ".ruff_cache", ".svn", ".tox", ".venv", ".vscode", "__pycache__",
    "__pypackages__", "_build", "buck-out", "build", "dist", "node_modules", "site-packages", "venv",
)  # fmt: skip


class ConfigError(Exception):
    """Wrong configuration or a wrong option: `message` is one line that says what to do, `place` says where."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.message = message
        self.place = place


@dataclasses.dataclass(frozen=True)
class FileIgnores:
    """Codes that are not reported in the files that match, or `elsewhere` than in them."""

    globs: Globs
    codes: frozenset[str]
    elsewhere: bool = False

    def cover(self, path: str) -> bool:
        """Whether they are for the file (absolute path)."""
        return bool(self.globs.decide(path)) is not self.elsewhere

    def __str__(self) -> str:
        return f"{'!' * self.elsewhere}{', '.join(self.globs.patterns)}: {', '.join(sorted(self.codes))}"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one run for the files of one project.

    `enabled` holds rule codes after select, ignore and preview were applied, `ignored` the codes that were ignored by
    name. Of the codes in `sure` no finding of low confidence is reported. With `noqa` False, `# noqa` comments are left
    to the caller (flake8).
    """

    root: pathlib.Path
    enabled: frozenset[str]
    ignored: frozenset[str] = frozenset()
    sure: frozenset[str] = frozenset()
    per_file_ignores: tuple[FileIgnores, ...] = ()
    exclude: tuple[Globs, ...] = ()
    target_torch: tuple[int, int] | None = None
    names: Names = dataclasses.field(default_factory=Names)
    noqa: bool = True
    preview: bool = False
    force_exclude: bool = False
    respect_gitignore: bool = True
    output_format: str | None = None
    source: pathlib.Path | None = None
    baseline: pathlib.Path | None = None

    @property
    def cache_folder(self) -> pathlib.Path:
        """Where results are kept from run to run."""
        return self.root / ".ddp_lint_cache"

    def ignored_in(self, path: pathlib.Path) -> frozenset[str]:
        """The codes that are not reported for this file (absolute path)."""
        found = self.ignored
        for ignores in self.per_file_ignores:
            if ignores.cover(str(path)):
                found |= ignores.codes
        return found


# ---- the options, once: what is read, checked, documented and put into the JSON schema


@dataclasses.dataclass(frozen=True)
class Option:
    """A key of the table: `kind` names its type (see `TYPES`), `help` is one line of Markdown."""

    key: str
    kind: str
    help: str
    example: str


OPTIONS = (
    Option(
        "select", "strings", "Codes, prefixes or slugs to check, instead of those on by default.", '["DDP1", "DDP4"]'
    ),
    Option("extend-select", "strings", "More codes, in addition to `select` or the default.", '["DDP301"]'),
    Option("ignore", "strings", "Codes, prefixes or slugs not to check.", '["DDP002"]'),
    Option(
        "per-file-ignores",
        "ignores",
        "Patterns, each with the codes not to report for files that match.",
        '{ "tests/" = ["DDP5"] }',
    ),
    Option(
        "exclude",
        "strings",
        "Patterns of files and folders to exclude, instead of the default list.",
        '["third_party/"]',
    ),
    Option(
        "extend-exclude",
        "strings",
        "More patterns, in addition to `exclude` or the default.",
        '["vendor/", "*_pb2.py"]',
    ),
    Option(
        "force-exclude",
        "flag",
        "Exclude files even if they are named on the command line, and files that no rule reads.",
        "true",
    ),
    Option("respect-gitignore", "flag", "Exclude what `.gitignore` files exclude. Default: true.", "false"),
    Option(
        "target-torch",
        "version",
        "The oldest PyTorch that the code must run with: rules for hazards that it no longer has are off.",
        '"2.4"',
    ),
    Option(
        "preview", "flag", "Also check rules that are off by default, and report findings of low confidence.", "true"
    ),
    Option(
        "rank-expressions",
        "names",
        "Names of this project that hold or return the rank of a process.",
        '["cfg.dist.rank", "my_rank"]',
    ),
    Option(
        "wrappers",
        "names",
        "Functions or classes of this project that return a model wrapped in DDP or FSDP.",
        '["myproject.parallel.wrap"]',
    ),
    Option(
        "collectives",
        "names",
        "Functions of this project that all ranks must call together.",
        '["myproject.dist.sync_all"]',
    ),
    Option(
        "baseline",
        "file",
        "A baseline (`--write-baseline`), whose findings are not reported; relative to the configuration.",
        '"ddp-lint-baseline.json"',
    ),
    Option("output-format", "format", f"One of {', '.join(f'`{name}`' for name in FORMATS)}.", '"concise"'),
)

#: A dotted name, as it is imported or is in the code; of a function also with the brackets of its call.
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(\(\))?")

#: Bytes that a configuration file may have: a page of settings, and the rest of a large pyproject.toml.
LIMIT = 2**20
_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){100}""")
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxlong = 4, 120, 120


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type of values: what messages call it, its JSON schema, and whether a value is of it."""

    words: str
    schema: dict[str, Any]
    fits: Callable[[Any], bool]


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_STRINGS = {"type": "array", "items": {"type": "string"}}
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
TYPES = {
    "strings": Kind("a list of strings", _STRINGS, _are_strings),
    "names": Kind("a list of dotted names", _STRINGS, lambda v: _are_strings(v) and all(map(_NAME.fullmatch, v))),
    "flag": Kind("true or false", {"type": "boolean"}, lambda v: isinstance(v, bool)),
    "version": Kind(
        'a version as a string, such as "2.4"',
        {"type": "string", "pattern": f"^{_VERSION.pattern}$"},
        lambda v: isinstance(v, str) and _VERSION.fullmatch(v) is not None,
    ),
    "format": Kind(f"one of {', '.join(FORMATS)}", {"enum": list(FORMATS)}, lambda v: v in FORMATS),
    "file": Kind("the name of a file", {"type": "string"}, lambda v: isinstance(v, str) and bool(v) and "\0" not in v),
    "ignores": Kind(
        "a table of lists of strings",
        {"type": "object", "additionalProperties": _STRINGS},
        lambda v: isinstance(v, dict) and all(map(_are_strings, v.values())),
    ),
}


def json_schema() -> dict[str, Any]:
    """The JSON schema of the table, for editors."""
    properties = {o.key: {"description": o.help, **TYPES[o.kind].schema} for o in OPTIONS}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of ddp-lint",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


# ---- finding and reading the table


@dataclasses.dataclass(frozen=True)
class Table:
    """The checked content of a configuration file; `file` is None where there is none."""

    file: pathlib.Path | None
    values: Mapping[str, Any]
    text: str = ""

    @property
    def base(self) -> pathlib.Path:
        """The folder that the table's patterns are relative to."""
        return self.file.parent if self.file else pathlib.Path.cwd()

    def error(self, key: str, message: str) -> ConfigError:
        line = _line_of(self.text, key)
        return ConfigError(message, f"{_shown(self.file)}:{line}" if line else _shown(self.file))

    def in_key(self, key: str, error: ConfigError) -> ConfigError:
        """An error in the value of a key."""
        return self.error(key, f"in '{key}': {error.message}")


EMPTY = Table(None, {})


def read_table(file: pathlib.Path) -> Table | None:
    """The checked table of one file; None for a pyproject.toml without one. Raises ConfigError."""
    try:
        text = _text(file)
        values: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"not valid TOML: {e}", _shown(file)) from None
    except RecursionError:
        raise ConfigError("it is nested too deeply to be read", _shown(file)) from None
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot be read: {reason_of(e)}", _shown(file)) from None
    except ValueError as e:  # a number of more digits than Python reads
        raise ConfigError(f"not valid TOML: {e}", _shown(file)) from None
    if file.name == "pyproject.toml":
        tool = values.get("tool")
        if not isinstance(tool, dict):
            return None
        if "ddp-lint" not in tool:
            _deny_near_name(Table(file, {}, text), tool)
            return None
        values = tool["ddp-lint"]
    table = Table(file, values, text)
    if not isinstance(values, dict):
        raise table.error("ddp-lint", "[tool.ddp-lint] must be a table")
    for key, value in values.items():
        _check(table, key, value)
    return table


def _text(file: pathlib.Path) -> str:
    """The text of a configuration file. Raises OSError, UnicodeDecodeError, ConfigError."""
    if stat.S_ISREG(file.stat().st_mode):
        data = read(file, LIMIT)
    else:  # what --config names may be a pipe: the file is what a command prints
        with file.open("rb") as stream:
            data = read_stream(stream, LIMIT)
    text = data.decode("utf-8-sig").replace("\r\n", "\n")
    if deep := _DEEP_KEY.search(text):
        # The parser takes time with the square of a key's parts.
        raise ConfigError("the key has too many parts", f"{_shown(file)}:{text.count(chr(10), 0, deep.start()) + 1}")
    return text


def _deny_near_name(table: Table, tool: Iterable[str]) -> None:
    for name in tool:
        if re.sub(r"[-_.\s]", "", name.lower()) == "ddplint":
            raise table.error(name, f"the table is called [tool.ddp-lint], not [tool.{name}]")


def _check(table: Table, key: str, value: object) -> None:
    option = next((o for o in OPTIONS if o.key == key), None)
    if option is None and key == "tool":
        raise table.error(key, f"in {_shown(table.file)} write the keys without the table [tool.ddp-lint]")
    if option is None:
        known = [o.key for o in OPTIONS]
        raise table.error(key, f"unknown key '{key}'{did_you_mean(key, known)} (known: {', '.join(known)})")
    if not TYPES[option.kind].fits(value):
        raise table.error(
            key, f"'{key}' must be {TYPES[option.kind].words}, not {_toml(value)}; write {key} = {option.example}"
        )
    for pattern in value if key in _PATTERNS and isinstance(value, (list, dict)) else ():
        if wrong := problem(pattern):
            raise table.error(key, f"in '{key}': the pattern {_toml(pattern)} matches nothing: {wrong}")


_PATTERNS = ("exclude", "extend-exclude", "per-file-ignores")


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else _SHORT.repr(value)


def _line_of(text: str, key: str) -> int | None:
    """The line of a key in the source text: below the table's own header where there is one."""
    lines = text.splitlines()
    name = rf"""["']?{re.escape(key)}["']?"""
    header = next((n for n, line in enumerate(lines) if re.match(r"\s*\[\s*tool\s*\.\s*[\"']?ddp-lint", line)), 0)
    pattern = re.compile(
        rf"\s*(tool\.ddp-lint\.)?{name}\s*[=.]"
        rf"|\s*\[\s*(tool\s*\.\s*([\"']?ddp-lint[\"']?\s*\.\s*)?)?{name}\s*[\].]"
    )
    for number in range(header, len(lines)):
        if pattern.match(lines[number]):
            return number + 1
    return header + 1 if lines else None


def _shown(file: pathlib.Path | None) -> str:
    return shown(file) if file is not None else "command line"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word, else ''."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean '{near[0]}'?" if near else ""


# ---- codes


def codes_of(selector: str) -> frozenset[str]:
    """The codes that a code, prefix, slug or ALL stands for. Raises ConfigError with the nearest name."""
    from ddp_lint.rules.registry import declared

    known = declared()
    prefix = "DDP" if selector.upper() == "ALL" else selector.upper()
    found = {code for code, rule in known.items() if code.startswith(prefix or "?") or rule.slug == selector.lower()}
    if not found:
        slugs = [rule.slug for rule in known.values()]
        near = did_you_mean(selector.lower(), slugs) or did_you_mean(prefix, known)
        raise ConfigError(f"no rule is called '{selector}'{near or '; `ddp-lint rule --all` shows them'}")
    return frozenset(found)


@dataclasses.dataclass(frozen=True)
class _Choice:
    """What one source says of which rules run: the file (`table`), or the command line."""

    select: tuple[str, ...] | None
    extend: tuple[str, ...]
    ignore: tuple[str, ...]
    table: Table | None = None

    def over(self, before: frozenset[str], default: frozenset[str]) -> frozenset[str]:
        """The codes to look for where `before` are those of the source before it.

        A full code or a slug selects its rule in any case, a prefix those of its rules that are in `default`. Where
        select and ignore name the same rule the longer name wins, and ignore between equals. Raises ConfigError.
        """
        steps = [(_specificity(s), False, self._codes(k, s, default)) for k, s in self._selecting()]
        steps += [(_specificity(s), True, self._codes("ignore", s)) for s in self.ignore]
        chosen = before if self.select is None else UNCHECKED
        for _, ignored, codes in sorted(steps, key=lambda step: step[:2]):
            chosen = chosen - codes if ignored else chosen | codes
        return chosen

    def ignored(self) -> frozenset[str]:
        """The codes that it ignores by any name."""
        return frozenset(code for selector in self.ignore for code in codes_of(selector))

    def named(self) -> frozenset[str]:
        """The codes that it selects one by one: all that is found of them is wanted, however doubtful."""
        exact = (selector for _, selector in self._selecting() if _specificity(selector) == _EXACT)
        return frozenset(code for selector in exact for code in codes_of(selector))

    def _selecting(self) -> Iterator[tuple[str, str]]:
        yield from (("select", selector) for selector in self.select or ())
        yield from (("extend-select", selector) for selector in self.extend)

    def _codes(self, key: str, selector: str, default: frozenset[str] | None = None) -> frozenset[str]:
        try:
            return codes_of(selector) if default is None else _selected(selector, default)
        except ConfigError as e:
            raise (self.table.in_key(key, e) if self.table else e) from None


def _enabled(choices: Iterable[_Choice], preview: bool, proving: bool) -> frozenset[str]:
    """The codes to look for, by what is on by default and by the choices, each over those before it.

    What a run decides counts as on by default where findings are proved by running (`proving`).
    """
    from ddp_lint.rules.registry import declared

    default = {code for code, rule in declared().items() if rule.default or preview or (proving and rule.run_decides)}
    chosen = UNCHECKED | default
    for choice in choices:
        chosen = choice.over(chosen, frozenset(default))
    return chosen


def gone_by(target: tuple[int, int] | None) -> frozenset[str]:
    """The codes whose hazard no PyTorch from `target` on has."""
    from ddp_lint.rules.registry import declared

    if target is None:
        return frozenset()
    return frozenset(code for code, rule in declared().items() if rule.gone_in is not None and rule.gone_in <= target)


def _selected(selector: str, default: frozenset[str]) -> frozenset[str]:
    codes = codes_of(selector)
    if _specificity(selector) == _EXACT:
        return codes
    if not codes & default:
        names = ", ".join(sorted(codes))
        raise ConfigError(f"all rules of '{selector}' are off by default: add --preview, or name them ({names})")
    return codes & default


_EXACT = len("DDP000")


def _specificity(selector: str) -> int:
    """The length of a prefix, with ALL as the shortest; slugs are as exact as codes."""
    if selector.upper() == "ALL":
        return 0
    return len(selector) if re.fullmatch(r"D|DD|DDP\d{0,2}", selector.upper()) else _EXACT


# ---- settings


@dataclasses.dataclass(frozen=True)
class Overrides:
    """What the command line (or flake8) says; None and empty leave it to the file."""

    select: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    preview: bool | None = None
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] = ()
    force_exclude: bool | None = None
    output_format: str | None = None
    noqa: bool = True
    #: The findings will be proved by running (`verify`).
    proving: bool = False
    #: Read this file, whatever is near the files that are checked.
    config: pathlib.Path | None = None
    #: Read no file.
    isolated: bool = False


class Configuration:
    """The settings of every folder, under the overrides of this run. Folders that agree share one Settings object.

    Raises ConfigError at once where the overrides themselves are wrong.
    """

    def __init__(self, overrides: Overrides | None = None) -> None:
        self._overrides = overrides = overrides or Overrides()
        for selector in (*(overrides.select or ()), *overrides.extend_select, *overrides.ignore):
            codes_of(selector)
        for pattern in (*(overrides.exclude or ()), *overrides.extend_exclude):
            if wrong := problem(pattern):
                raise ConfigError(f"the pattern {_toml(pattern)} matches nothing: {wrong}")
        self._given = _given(overrides)
        self._settings: dict[tuple[pathlib.Path | None, pathlib.Path], Settings] = {}
        self._tables: dict[pathlib.Path, Table] = {}
        self._roots = Roots()

    def of(self, folder: pathlib.Path, start: pathlib.Path | None = None) -> Settings:
        """The settings for files in `folder` (absolute), found by a search from `start`. Raises ConfigError."""
        table, root = self._given or self._nearest(folder), self._roots.of(folder, start)
        key = (table.file, root)
        if key not in self._settings:
            self._settings[key] = _settings(table, root, self._overrides)
        return self._settings[key]

    def _nearest(self, folder: pathlib.Path) -> Table:
        asked = []
        while (table := self._tables.get(folder)) is None:
            asked.append(folder)
            here = (read_table(folder / name) for name in FILES if (folder / name).is_file())
            table = next((found for found in here if found), EMPTY if folder.parent == folder else None)
            if table is not None:
                break
            folder = folder.parent
        self._tables.update(dict.fromkeys(asked, table))
        return table


def _given(overrides: Overrides) -> Table | None:
    """The table that holds for all files, where the overrides say so. Raises ConfigError."""
    if overrides.config is None:
        return EMPTY if overrides.isolated else None
    if overrides.isolated:
        raise ConfigError("--config reads a file and --isolated reads none: use one of them")
    table = read_table(absolute(overrides.config))
    if table is None:
        raise ConfigError("there is no [tool.ddp-lint] table in it", str(overrides.config))
    return table


def _settings(table: Table, root: pathlib.Path, over: Overrides) -> Settings:
    values = table.values
    preview = values.get("preview", False) if over.preview is None else over.preview
    of_file = _Choice(
        tuple(values["select"]) if "select" in values else None,
        tuple(values.get("extend-select", ())),
        tuple(values.get("ignore", ())),
        table,
    )
    choices = [of_file, _Choice(over.select, over.extend_select, over.ignore)]
    enabled = _enabled(choices, preview, over.proving)
    ignored = (choice.ignored() for choice in (choices if over.select is None else choices[1:]))
    named = frozenset[str]().union(*(choice.named() for choice in choices))
    torch = values.get("target-torch")
    target = (int(torch.split(".")[0]), int(torch.split(".")[1])) if torch else None
    return Settings(
        root=root,
        enabled=enabled - gone_by(target),
        ignored=frozenset().union(*ignored) - enabled,
        sure=frozenset() if preview or over.proving else enabled - named,
        per_file_ignores=_per_file_ignores(table, root),
        exclude=_exclude(table, over, root),
        target_torch=target,
        names=Names(*(_names(table, key) for key in ("rank-expressions", "wrappers", "collectives"))),
        noqa=over.noqa,
        preview=preview,
        force_exclude=values.get("force-exclude", False) if over.force_exclude is None else over.force_exclude,
        respect_gitignore=values.get("respect-gitignore", True),
        output_format=over.output_format or values.get("output-format"),
        source=table.file,
        baseline=table.base / values["baseline"] if "baseline" in values else None,
    )


def _names(table: Table, key: str) -> tuple[str, ...]:
    return tuple(name.removesuffix("()") for name in table.values.get(key, ()))


def _per_file_ignores(table: Table, root: pathlib.Path) -> tuple[FileIgnores, ...]:
    key, found = "per-file-ignores", []
    for pattern, selectors in table.values.get(key, {}).items():
        try:
            codes = frozenset(code for selector in selectors for code in codes_of(selector))
        except ConfigError as e:
            raise table.in_key(key, e) from None
        elsewhere = pattern.startswith("!")
        found.append(FileIgnores(_globs(table.base, root, [pattern[elsewhere:]]), codes, elsewhere))
    return tuple(found)


def _exclude(table: Table, over: Overrides, root: pathlib.Path) -> tuple[Globs, ...]:
    """Patterns of the file are relative to its folder, those of the command line to the working directory."""
    here = pathlib.Path.cwd()
    if over.exclude is not None:
        found = [_globs(here, root, over.exclude)]
    else:
        found = [_globs(table.base, root, table.values.get("exclude", DEFAULT_EXCLUDE))]
    found.append(_globs(table.base, root, table.values.get("extend-exclude", ())))
    found.append(_globs(here, root, over.extend_exclude))
    return tuple(globs for globs in found if globs.patterns)


def _globs(base: pathlib.Path, root: pathlib.Path, patterns: Sequence[str]) -> Globs:
    """Patterns relative to `base`, and for files of the project outside of it relative to the project's `root`."""
    inside, outside = (tuple(_anchored(p, base, folder) for p in patterns) for folder in (base, root))
    return Globs(base, inside, None if root.is_relative_to(base) else Globs(root, outside))


def _anchored(pattern: str, base: pathlib.Path, folder: pathlib.Path) -> str:
    """A pattern for what is below `folder`, also where it is a path as shells write it: ``./src``, ``/home/me/src``."""
    mark = "!" if pattern.startswith("!") else ""
    path = pattern[len(mark) :]
    if path.startswith(("./", "../", "/")):
        absolute = os.path.normpath(os.path.join(base, path))  # noqa: PTH118 (a pattern, not a path)
        start = inner(str(folder))
        if absolute.startswith(start):
            return mark + absolute[len(start) - 1 :].replace(os.sep, "/") + "/" * path.endswith("/")
    return pattern

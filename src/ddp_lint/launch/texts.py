"""Which words the scripts, settings and texts of a project hold: what they name, a program may look up by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ddp_lint.knowledge import table
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import imports_in, is_within

#: Files that are read: in a project with more, any name may be in one of them.
_FILES = 2000
#: What the files have that say how a project is installed.
_INSTALLED = re.compile(r"\bsetup\(|(?m:^\[(?:project|tool\.poetry|metadata)\])")
#: How `setup.py` names packages, and what else it may install or take packages for.
_PACKAGES = re.compile(r"\bpackages *=")
_OTHERWISE = re.compile(r"\bpy_modules\b|\bpackage_dir\b|find_namespace_packages|PEP420|\bwhere *=")
_BY_UV = re.compile(r"(?m)^\[+tool\.uv\b")
_BUILT = re.compile(r"(?m)^\[(?:build-system\]|tool\.(?:setuptools|hatch|poetry|flit|pdm)\b)|^package *= *true\b")
_WORD = re.compile(r"[A-Za-z_]\w*")
#: What code looks like that calls a function or gets hold of it: ``train(``, ``pkg.train``, ``pkg:train``.
_CALLED = re.compile(r"\b[A-Za-z_]\w*(?=\()|(?<=[.:])[A-Za-z_]\w*")
_IMPORTING = re.compile(r"\bimport\b[^\n]*")


def named_in_texts(project: Project, name: str) -> bool:
    """Whether a script, a file of settings or another text of the project may hold a word."""
    words = words_of_texts(project)
    return words is None or name in words


def is_worded_in_texts(project: Project, pattern: re.Pattern[str]) -> bool:
    """Whether a script, a file of settings or another text of the project may hold a word in which a pattern occurs."""
    words = words_of_texts(project)
    return words is None or any(map(pattern.search, words))


def words_of_texts(project: Project) -> frozenset[str] | None:
    """The words of the scripts, settings and other texts of a project; None where there are too many to read."""
    return project.remember(("words of texts",), lambda: _words(project))


def called_in_texts(project: Project, name: str) -> bool:
    """Whether a script, a file of settings or another text of the project may call a function or import it: more than
    holding its name, which ``train:`` in the settings does."""
    words = calls_of_texts(project)
    return words is None or name in words


def words_of_settings(project: Project) -> frozenset[str] | None:
    """The words of the files of settings of a project; None where there are too many to read."""
    patterns = f"{table('launch')['starts']['settings']} *.yaml *.yml"
    return project.remember(("words of settings",), lambda: gathered(project, "words", _WORD.findall, patterns))


def calls_of_notebooks(project: Project) -> frozenset[str] | None:
    """What the notebooks of a project call and import; None where there are too many to read."""
    return project.remember(("calls of notebooks",), lambda: gathered(project, "calls", _called, "*.ipynb"))


def calls_of_texts(project: Project) -> frozenset[str] | None:
    """What the scripts, settings and other texts of a project may call or import; None where there are too many."""
    return project.remember(("calls of texts",), lambda: gathered(project, "calls", _called))


def _called(text: str) -> set[str]:
    return {*_CALLED.findall(text), *(word for line in _IMPORTING.findall(text) for word in _WORD.findall(line))}


def is_installed(project: Project, facts: ModuleFacts | None = None) -> bool:
    """Whether the project is a package that is installed: by what its files say, or as it lies below `src`. Of a file,
    whether who has installed it may import that: not what lies beside the packages, as programs at the root do."""
    found: bool = project.remember(("is installed",), lambda: _is_installed(project))
    return found and (facts is None or not _lies_beside(project, facts))


def _lies_beside(project: Project, facts: ModuleFacts) -> bool:
    """Whether a file is in none of the packages that `setup.py` installs: it names packages alone, and a folder above
    the file is none."""
    setup, _, pyproject = _how_to_install(project)
    if not _PACKAGES.search(setup) or _OTHERWISE.search(setup) or _INSTALLED.search(pyproject):
        return False
    packages = project.remember(("packages",), lambda: frozenset(project.contents.named("__init__.py")))
    above = facts.source.inside.split("/")[:-1]
    return not above or any("/".join((*above[:n], "__init__.py")) not in packages for n in range(1, len(above) + 1))


def _is_installed(project: Project) -> bool:
    setup, settings, pyproject = _how_to_install(project)
    if _is_run_in_place(pyproject):
        return any(map(_INSTALLED.search, (setup, settings)))
    if any(map(_INSTALLED.search, (setup, settings, pyproject))):
        return True
    packages = project.remember(("packages",), lambda: frozenset(project.contents.named("__init__.py")))
    if not any(path.startswith("src/") and path.count("/") == 2 for path in packages):
        return False
    # Programs beside the packages run in place, and so does what imports `src` itself: nothing installs that name.
    beside = (path for path in project.contents.named("*.py") if path.startswith("src/") and path.count("/") == 1)
    imported = (
        name for path in project.contents.holding("src") for name, _ in imports_in(project.contents.text(path) or "")
    )
    return not any(beside) and not any(is_within(name, ("src",)) for name in imported)


def _is_run_in_place(pyproject: str) -> bool:
    """Whether uv installs what a project depends on, and not the project: by its documentation it builds none without a
    build system, unless it is told to."""
    return _BY_UV.search(pyproject) is not None and _BUILT.search(pyproject) is None


def is_installed_as(project: Project, name: str) -> bool:
    """Whether the project is installed by a name."""
    called = re.compile(rf"""(?m)\bname\s*=\s*["']?{re.escape(name)}\b""")
    return is_installed(project) and any(map(called.search, _how_to_install(project)))


def may_be_entry_point(project: Project, name: str) -> bool:
    """Whether what says how the project is installed has a word, as it names functions that are commands then."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return any(map(word.search, _how_to_install(project)))


def _how_to_install(project: Project) -> tuple[str, str, str]:
    """The texts of the files that say how the project is installed."""

    def text(name: str) -> str:
        return project.contents.text(project.root / name) or ""

    return text("setup.py"), text("setup.cfg"), text("pyproject.toml")


def holding_words(text: str) -> str:
    """The words of a text (`parts.TESTS`)."""
    return " ".join(sorted(set(_WORD.findall(text))))


def holding_calls(text: str) -> str:
    """What a text may call (`parts.TESTS`)."""
    return " ".join(sorted(_called(text)))


def _words(project: Project) -> frozenset[str] | None:
    return gathered(project, "words", _WORD.findall)


def gathered(
    project: Project, test: str, read: Callable[[str], Iterable[str]], patterns: str = ""
) -> frozenset[str] | None:
    """What the scripts, settings and other texts of a project have together (or the files with names like `patterns`):
    of each what `read` finds in it, and no more of it than its `test` (`parts.TESTS`) counts for who asks. None where
    there are too many to read."""
    starts = table("launch")["starts"]
    files = project.contents.named(patterns or f"{starts['scripts']} {starts['texts']} {starts['settings']}")
    if len(files) > _FILES:
        return None
    texts = (project.texts.read_for(inside, test) for inside in files)
    return frozenset(found for text in texts if text is not None for found in read(text))

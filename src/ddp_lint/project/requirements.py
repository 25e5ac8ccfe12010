"""Which versions of a package a project requires, by the files and the pages at its root that say so."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from ddp_lint.knowledge import frameworks
from ddp_lint.project.project import Project

#: Looked for by name, so that a result depends on each of them being there or not.
_NAMES = (
    "requirements.txt", "environment.yml", "environment.yaml", "setup.py", "setup.cfg", "pyproject.toml", "Pipfile",
)  # fmt: skip
_LISTS = "*requirements*.txt *environment*.y*ml conda*.y*ml"
_LIST_FOLDERS = ("", "requirements")
#: Pages that say by what the project was made or is installed: ``PyTorch 1.8.1``, ``pip install torch==1.8.1``.
_PAGES = "readme* install* get*started*"
_PAGE_FOLDERS = ("", "doc", "docs", "assets")
_PAGE_ENDS = (".md", ".rst", ".txt")
#: What a package is called elsewhere than in pip's files: in conda's, and in prose.
_NAMES_OF = {"torch": "(?:py)?torch"}

_PYTHON = re.compile(
    r"""^\s*(?:-\s*["']?python\s*={1,2}\s*|python_(?:full_)?version\s*=\s*["'])(?P<number>\d+\.\d+(?:\.\d+)*)""",
    re.MULTILINE,
)

#: A page that shows how to make the environment: ``conda create -n seg python=3.7``.
_CREATED = re.compile(r"\b(?:conda|mamba) create\b[^\n]*?\bpython\s*={1,2}\s*(?P<number>\d+\.\d+)")


def requires_older(project: Project, package: str, version: str, inside: str = "") -> bool:
    """Whether the project keeps a package below a version, or its pages name versions of it below that alone, or it
    needs a release of another package that runs with older ones alone. What nothing says is today's. Of a file, by its
    path `inside` the root, the nearest folder above it counts that limits the package, and the nearest one whose pages
    name versions: a repository may hold several projects."""
    if _keeps_older(project, package, version, inside):
        return True
    holding = _holding_below(package, _numbers(version))
    return any(_keeps_older(project, other, release, inside) for other, release in holding)


def _holding_below(package: str, version: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Other packages, each with the release from which on it runs with such a version of a package."""
    held = frameworks.every(lambda each: each.held_below.items() if package in each.packages else ())
    limits = (limit.partition("<") for limit, below in held if _numbers(below) <= version)
    return tuple((other, release) for other, _, release in limits)


def _keeps_older(project: Project, package: str, version: str, inside: str) -> bool:
    folder = next((f for f in _above(inside) if any(_limits(text, package) for text in _required(project, f))), "")
    described = next((f for f in _above(inside) if _names_any(_pages(project, f), package)), "")

    def found() -> bool:
        wanted, texts = _numbers(version), _required(project, folder)
        if any(_is_older(how, number, wanted) for text in texts for how, number in _pins(text, package)):
            return True
        python = _oldest_python(package, wanted)
        if python and any(number < python for text in texts for number in _pythons(text)):
            return True  # under which no such release can be installed
        # What a folder requires counts before what a page farther up says of the whole repository.
        near = not folder or f"{described}/".startswith(f"{folder}/")
        return near and _name_older(_pages(project, described), package, wanted)

    return project.remember(("requires older", package, version, folder, described), found)


def _above(inside: str) -> Iterator[str]:
    """The folders above a file, from the nearest on; '' for the root."""
    while inside := posixpath.dirname(inside):
        yield inside


def _required(project: Project, folder: str) -> list[str]:
    """The texts of the requirements in a folder."""

    def found() -> list[str]:
        texts = [project.contents.text(project.root / folder / name) or "" for name in _NAMES]
        return texts + _texts(project, _LISTS, folder, _LIST_FOLDERS)

    return project.remember(("requirements", folder), found)


def _pages(project: Project, folder: str) -> list[str]:
    """The texts of the pages of a folder."""
    return project.remember(("pages", folder), lambda: _texts(project, _PAGES, folder, _PAGE_FOLDERS))


def page_requires_older(project: Project, inside: str, package: str, version: str) -> bool:
    """Whether a page of the project, by its path below the root, names versions of a package below one alone."""
    text = project.contents.text(project.root / inside) if inside.lower().endswith(_PAGE_ENDS) else None
    return text is not None and _name_older([text], package, _numbers(version))


def _name_older(pages: list[str], package: str, version: tuple[int, ...]) -> bool:
    python = _oldest_python(package, version)
    made = [_numbers(each["number"]) for text in pages for each in _CREATED.finditer(text)]
    if python and made and max(made) < python:
        return True
    named = [number for text in pages for number in _named_versions(text, package)]
    return bool(named) and max(named) < version


def _names_any(pages: list[str], package: str) -> bool:
    """Whether pages say for which version of a package, or of Python, they are."""
    return any(_CREATED.search(text) or next(_named_versions(text, package), None) for text in pages)


def _oldest_python(package: str, version: tuple[int, ...]) -> tuple[int, ...]:
    """The Python that a release of a package needs, () where that is not known."""
    releases = frameworks.every(lambda each: each.pythons.items() if package in each.packages else ())
    needs = [(_numbers(release), _numbers(python)) for release, python in releases]
    return max((pair for pair in needs if pair[0] <= version), default=((), ()))[1]


def _pythons(text: str) -> Iterator[tuple[int, ...]]:
    """The Python that an environment of conda or pipenv has: ``- python=3.6``, ``python_version = "3.6"``."""
    return (_numbers(found["number"]) for found in _PYTHON.finditer(text))


def _texts(project: Project, names: str, folder: str, below: tuple[str, ...]) -> list[str]:
    """The texts of the files by such names in a folder of the project, in those of its folders that are named."""
    folders = [posixpath.join(folder, each).rstrip("/") for each in below]
    inside = (path for path in project.contents.named(names) if posixpath.dirname(path) in folders)
    return [project.contents.text(project.root / path) or "" for path in inside]


def _limits(text: str, package: str) -> bool:
    """Whether a file of requirements says anything of the version of a package."""
    return re.search(_required_as(package) + "[<>=~]", text, re.IGNORECASE) is not None


def _pins(text: str, package: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """How a file of requirements limits a package, and at which version: ``torch>=1.8,<2.0`` as ``<`` and 2, 0."""
    pins = re.finditer(
        _required_as(package) + r"""(?:>=?[^<,\n]*,\s*)?(?P<how>={1,3}|<=?|~=)\s*["']?(?P<number>\d+(?:\.\d+)*)""",
        text,
        re.IGNORECASE,
    )
    return ((pin["how"], _numbers(pin["number"])) for pin in pins)


def _named_versions(text: str, package: str) -> Iterator[tuple[int, ...]]:
    """The versions of a package that a page names, as a link too (``PyTorch [v1.7.1](..)``): not ``1.8+``, ``>=1.8``,
    ``1.8 or later``, ``1.8 - 2.1``; also those that the packages are built for which it installs:
    ``https://../cu111/torch1.8.0/index.html``."""
    named = re.finditer(
        rf"""{_word(package)}[*_`"')\]]*(?: version)?:? ?(?:={{1,2}} ?)?[(\[]?v?(?P<number>\d+(?:\.\d+)+)"""
        r"""(?![\w.]|\+(?!cu|cpu)|[*_`"')\]]* ?(?:or|and|and up|to|-|~|<|<=|>|>=|/)(?![\w]))""",
        text,
        re.IGNORECASE,
    )
    built_for = re.finditer(
        rf"/{_NAMES_OF.get(package, re.escape(package))}-?(?P<number>\d+(?:\.\d+)+)(?:/index|\+\w+)?\.html", text
    )
    return (_numbers(name["number"]) for name in (*named, *built_for))


def _required_as(package: str) -> str:
    """A package in a file of requirements, up to what limits it: ``torch[extra] ``."""
    return rf"""{_word(package)}(?:\[[^\]\n]*\])?["']?\s*"""


def _word(package: str) -> str:
    return r"(?<![\w./-])" + _NAMES_OF.get(package, re.escape(package).replace("_", "[-_.]"))


def _is_older(how: str, pinned: tuple[int, ...], version: tuple[int, ...]) -> bool:
    if how == "~=" and len(pinned) < len(version):
        return False  # any later version of the same first number
    return pinned <= version if how == "<" else pinned < version


def removed_by(package: str, version: str) -> frozenset[str]:
    """The modules of a package that its releases from a version on do not have."""
    removed = frameworks.every(lambda each: each.removed.items() if package in each.packages else ())
    return frozenset(module for module, since in removed if _numbers(since) <= _numbers(version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))

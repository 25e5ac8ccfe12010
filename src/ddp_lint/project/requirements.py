"""Which versions of a package a project asks for, by the files at its root that say so."""

from __future__ import annotations

import re

from ddp_lint.project.project import Project

#: Looked for by name, so that a result depends on each of them being there or not.
_NAMES = (
    "requirements.txt", "environment.yml", "environment.yaml", "setup.py", "setup.cfg", "pyproject.toml", "Pipfile",
)  # fmt: skip
_PATTERNS = ("*requirements*.txt", "requirements/*.txt", "*environment*.y*ml", "conda*.y*ml")


def asks_for_older(project: Project, package: str, version: str) -> bool:
    """Whether the project keeps a package below a version. What it does not pin is today's."""

    def found() -> bool:
        paths = [project.root / name for name in _NAMES]
        paths += (path for pattern in _PATTERNS for path in sorted(project.root.glob(pattern)))
        texts = [project.text(path) or "" for path in dict.fromkeys(paths)]
        return any(_pins_older(text, package, version) for text in texts)

    return project.remember(("asks for older", package, version), found)


def _pins_older(text: str, package: str, version: str) -> bool:
    pins = re.finditer(
        rf"""(?<![\w./-]){re.escape(package)}(?:\[[^\]\n]*\])?["']?\s*(?:>=?[^<,\n]*,\s*)?"""
        r"""(?P<how>={1,3}|<=?|~=)\s*["']?(?P<number>\d+(?:\.\d+)*)""",
        text,
        re.IGNORECASE,
    )
    return any(_is_older(pin["how"], _numbers(pin["number"]), _numbers(version)) for pin in pins)


def _is_older(how: str, pinned: tuple[int, ...], version: tuple[int, ...]) -> bool:
    if how == "~=" and len(pinned) < len(version):
        return False  # any later version of the same first number
    return pinned <= version if how == "<" else pinned < version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))

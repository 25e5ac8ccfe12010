"""Which versions of a package a project asks for, by the files at its root that say so."""

from __future__ import annotations

import re

from ddp_lint.project.project import Project

_FILES = (
    "*requirements*.txt", "requirements/*.txt", "*environment*.y*ml", "conda*.y*ml", "setup.py", "setup.cfg",
    "pyproject.toml", "Pipfile",
)  # fmt: skip


def asks_for_older(project: Project, package: str, version: str) -> bool:
    """Whether the project keeps a package below a version. What it does not pin is today's."""

    def found() -> bool:
        paths = (path for pattern in _FILES for path in sorted(project.root.glob(pattern)))
        return any(_pins_older(project.text(path) or "", package, version) for path in paths)

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

"""ANSI colours, or none."""

from __future__ import annotations


class Style:
    """Wraps text in colour codes when `color` is on."""

    def __init__(self, color: bool) -> None:
        self._color = color

    def _paint(self, codes: str, text: str) -> str:
        return f"\x1b[{codes}m{text}\x1b[0m" if self._color and text else text

    def bold(self, text: str) -> str:
        return self._paint("1", text)

    def dim(self, text: str) -> str:
        return self._paint("2", text)

    def red(self, text: str) -> str:
        return self._paint("1;31", text)

    def green(self, text: str) -> str:
        return self._paint("32", text)

    def blue(self, text: str) -> str:
        return self._paint("1;94", text)

    def cyan(self, text: str) -> str:
        return self._paint("1;36", text)

    def yellow(self, text: str) -> str:
        return self._paint("1;33", text)

"""Paths of a project's files: absolute, below its root, and as findings show them."""

from __future__ import annotations

import os
import pathlib

from ddp_lint import files


class Paths:
    """Paths below one root (absolute and normal), as seen from one working directory."""

    def __init__(self, root: str, cwd: pathlib.Path | None) -> None:
        self._root = root
        self._cwd = os.path.normpath(cwd or pathlib.Path.cwd())

    def shown(self, path: str | pathlib.Path) -> str:
        """The path as findings show it: relative to the working directory when below it."""
        return files.shown_from(self._cwd, path)

    def inside(self, path: str | pathlib.Path) -> str:
        """The path relative to the project's root: what settings and fingerprints go by, wherever one runs from."""
        return self.relative(os.path.normpath(path))

    def inside_of_shown(self, path: str) -> str:
        """The path relative to the root for one as findings show it."""
        return self.relative(os.path.normpath(os.path.join(self._cwd, path)))

    def relative(self, path: str) -> str:
        """`inside`, for a path that is normal."""
        return files.below(self._root, path)

    def absolute(self, path: str) -> str:
        """The inverse of `inside`."""
        return os.path.normpath(os.path.join(self._root, path))

"""Which lines of which files have changed since a revision, by git (`touching`: which findings that touches)."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping

from ddp_lint.config import ConfigError
from ddp_lint.findings import Span

_HUNK = re.compile(rb"^@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
#: What a checkout that nobody vouches for must not decide: a program that git asks what has changed, hooks, and that a
#: folder of it is a repository with a configuration of its own.
_SAFE = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "safe.bareRepository=explicit")
#: No file is fetched from a server that it names, with the programs that it names for that; nothing is written.
_ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_OPTIONAL_LOCKS": "0"}
#: What shows a difference: no program of its configuration, and no submodules, which have one of their own.
_DIFF = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
#: Seconds that git is given: it would wait for ever for a named pipe.
_PATIENCE = 300
_OWN = ("local", "worktree")
#: The lines of a file that counts as changed from end to end.
EVERY_LINE = range(1, 10**9)


@dataclasses.dataclass(frozen=True)
class Change:
    """Changed files (absolute) with the lines of each that are new, or next to removed ones."""

    lines: dict[pathlib.Path, tuple[range, ...]]

    def meets(self, span: Span) -> bool:
        """Whether a line of the place has changed."""
        path = pathlib.Path(span.path)  # a link keeps its own name
        return overlap(range(span.line, span.end_line + 1), self.lines.get(path.parent.resolve() / path.name, ()))

    def with_whole(self, files: Iterable[pathlib.Path]) -> Change:
        """The change with files that count as changed from end to end."""
        return Change({**self.lines, **dict.fromkeys(files, (EVERY_LINE,))})


def overlap(lines: range, changed: Iterable[range]) -> bool:
    """Whether lines have one in common with any of the changed ranges."""
    return any(lines.start < other.stop and other.start < lines.stop for other in changed)


def since(revision: str, folder: pathlib.Path | None = None) -> Change:
    """The change of the working tree (index, untracked files) against the place where HEAD left `revision`, in the
    repository that holds the folder (by default the working directory). Raises ConfigError."""
    top = pathlib.Path(os.fsdecode(_git(folder or pathlib.Path.cwd(), "rev-parse", "--show-toplevel").rstrip(b"\n")))
    base = _base(top, revision)
    changed: dict[pathlib.Path, tuple[range, ...]] = {}
    for name in _names(_git(top, *_DIFF, "--name-only", "-z", base, "--")):
        changed[top / name] = ()
    patch = _git(
        top, "-c", "core.quotePath=false", *_DIFF,
        "--src-prefix=a/", "--dst-prefix=b/", "--unified=0", "--inter-hunk-context=0", base, "--",
    )  # fmt: skip
    for name, lines in _hunks(patch):
        changed[top / name] = (*changed.get(top / name, ()), lines)
    untracked = _names(_git(top, "ls-files", "--others", "--exclude-standard", "-z"))
    return Change(changed).with_whole(top / name for name in untracked)


def _base(top: pathlib.Path, revision: str) -> str:
    """The commit to compare with; the empty tree for HEAD before the first commit."""
    found = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", fails=True)
    if not found:
        if revision == "HEAD":
            return os.fsdecode(_git(top, "hash-object", "-t", "tree", os.devnull).strip())
        raise ConfigError(f"--since: git knows no revision '{revision}' here (a shallow clone? fetch it first)")
    shared = _git(top, "merge-base", os.fsdecode(found.strip()), "HEAD", fails=True)
    return os.fsdecode((shared or found).strip())


def _git(folder: pathlib.Path, *args: str, fails: bool = False) -> bytes:
    """What git prints; nothing where it fails and may. Raises ConfigError."""
    result = _run(folder, args, _without_filters(folder))
    if result.returncode and not fails:
        reason = os.fsdecode(result.stderr).strip().splitlines() or ["no reason given"]
        partial = not _run(folder, ("config", "extensions.partialClone"), {}).returncode
        hint = " (a partial clone: `git diff --stat` with the revision fetches what is needed)" if partial else ""
        raise ConfigError(f"--since: git fails: {reason[0].removeprefix('fatal: ')}{hint}")
    return b"" if result.returncode else result.stdout


def _run(
    folder: pathlib.Path, args: Iterable[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Raises ConfigError."""
    safe = (part for setting in _SAFE for part in ("-c", setting))
    try:
        return subprocess.run(
            ("git", *safe, *args),
            cwd=folder, env={**os.environ, **_ENVIRONMENT, **environment}, stdin=subprocess.DEVNULL,
            capture_output=True, check=False, timeout=_PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--since: git has not answered within {_PATIENCE} s") from None
    except OSError:
        raise ConfigError("--since needs git, which is not installed") from None


@functools.cache
def _without_filters(folder: pathlib.Path) -> dict[str, str]:
    """The environment in which git runs no filter (`filter.NAME.clean`) of the repository's own configuration; those of
    the user's stay. Raises ConfigError."""
    listed = _run(folder, ("config", "--show-scope", "--name-only", "-z", "--get-regexp", r"^filter\..*\."), {}).stdout
    parts = list(_names(listed))
    own = {key.rpartition(".")[0] for scope, key in zip(parts[::2], parts[1::2], strict=False) if scope in _OWN}
    values = ("clean", ""), ("smudge", ""), ("process", ""), ("required", "false")
    settings = [(f"{name}.{key}", value) for name in sorted(own) for key, value in values]
    given = os.environ.get("GIT_CONFIG_COUNT", "")
    first = int(given) if given.isdecimal() else 0
    pairs: dict[str, str] = {}
    for number, (key, value) in enumerate(settings, first):
        pairs |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**pairs, "GIT_CONFIG_COUNT": str(first + len(settings))} if settings else {}


def _names(listing: bytes) -> Iterator[str]:
    return (os.fsdecode(name) for name in listing.split(b"\0") if name)


def _hunks(patch: bytes) -> Iterator[tuple[str, range]]:
    name = ""
    left = 0  # lines of a hunk: they are text, also one that looks like a header
    for line in patch.split(b"\n"):
        if left and line[:1] in (b"+", b"-"):
            left -= 1
        elif line.startswith(b"+++ "):
            name = _name(line[4:])
        elif match := _HUNK.match(line):
            removed, start, count = int(match[1] or b"1"), int(match[2]), int(match[3] or b"1")
            left = removed + count
            if name:
                yield name, range(start, start + count) if count else range(max(start, 1), start + 2)


def _name(text: bytes) -> str:
    """The path after `+++`; '' for a file that is gone. Git quotes a name that holds quotes or control characters."""
    text = text.rstrip(b"\t\r")
    if text.startswith(b'"'):
        text = text[1:-1].decode("unicode_escape").encode("latin-1")
    return os.fsdecode(text[2:]) if text.startswith(b"b/") else ""

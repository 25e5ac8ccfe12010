"""What has changed since a revision (git), and which findings touch it."""

from __future__ import annotations

import ast
import bisect
import dataclasses
import functools
import os
import pathlib
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping

from ddp_lint.config import ConfigError
from ddp_lint.findings import Finding, Span
from ddp_lint.source.file import SourceFile, Unreadable
from ddp_lint.source.imports import last_part
from ddp_lint.source.parsing import CannotParse, parse
from ddp_lint.source.syntax import FunctionNode, first_line, last_line

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
_EVERY = range(1, 10**9)


@dataclasses.dataclass(frozen=True)
class Change:
    """Changed files (absolute) with the lines of each that are new, or next to removed ones."""

    lines: dict[pathlib.Path, tuple[range, ...]]

    def meets(self, span: Span) -> bool:
        """Whether a line of the place has changed."""
        path = pathlib.Path(span.path)  # a link keeps its own name
        return _meets(range(span.line, span.end_line + 1), self.lines.get(path.parent.resolve() / path.name, ()))

    def with_whole(self, files: Iterable[pathlib.Path]) -> Change:
        """The change with files that count as changed from end to end."""
        return Change({**self.lines, **dict.fromkeys(files, (_EVERY,))})


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


# ---- what touches a change


class Touched:
    """The lines that a change touches: changed ones, and all of the functions that hold them.

    A changed statement of a module or class also touches the functions there that use the names that it binds.
    """

    def __init__(self, change: Change) -> None:
        self._change = change
        self._lines: dict[pathlib.Path, _Lines] = {}
        self._calls: dict[pathlib.Path, dict[int, set[str]]] = {}
        self._here = pathlib.Path.cwd()

    def by(self, finding: Finding) -> bool:
        """Whether the finding is in what has changed, or any of its places is: a label, a step of a rank, a call on its
        way. Also where its ranks diverge around a call of a changed function: what that does no more has no place."""
        return any(map(self._holds, _places(finding))) or (finding.cause is not None and self._calls_changed(finding))

    def _holds(self, span: Span) -> bool:
        return self._of(self._here / span.path).meet(span.line, span.end_line)

    def _of(self, path: pathlib.Path) -> _Lines:
        if path not in self._lines:
            ranges = self._change.lines.get(path)
            self._lines[path] = _Lines() if ranges is None else _touched(path, ranges)
        return self._lines[path]

    def _calls_changed(self, finding: Finding) -> bool:
        names = {name for path in self._change.lines for name in self._of(path).functions}
        path = self._here / finding.span.path
        if path not in self._calls:
            self._calls[path] = _calls_by_line(path) if names else {}
        places = (finding.span, finding.cause.place) if finding.cause is not None else ()
        lines = {n for span in places if span.path == finding.span.path for n in range(span.line, span.end_line + 1)}
        return any(names & called for line, called in self._calls[path].items() if line in lines)


@dataclasses.dataclass
class _Lines:
    """Touched lines of one file, as ranges in order, and the names of its touched functions."""

    ranges: tuple[range, ...] = ()
    functions: frozenset[str] = frozenset()

    def meet(self, first: int, last: int) -> bool:
        at = bisect.bisect_right(self.ranges, last, key=lambda lines: lines.start)
        return any(lines.stop > first for lines in self.ranges[:at])


def _touched(path: pathlib.Path, changed: tuple[range, ...]) -> _Lines:
    tree = _tree(path)
    if tree is None or _EVERY in changed:
        functions = [node for node in ast.walk(tree) if isinstance(node, FunctionNode)] if tree is not None else []
        return _Lines((_EVERY,) if tree is None else changed, frozenset(node.name for node in functions))
    touched = list(changed)
    names: set[str] = set()
    for function in _functions_around(tree, changed):
        touched.append(_range(function))
        names.add(function.name)
    bound = set(_bound(tree, changed))
    for function in (node for node in ast.walk(tree) if isinstance(node, FunctionNode)):
        if bound and bound & set(_used(function)):
            touched.append(_range(function))
            names.add(function.name)
    return _Lines(tuple(sorted(touched, key=lambda lines: lines.start)), frozenset(names))


def _functions_around(tree: ast.Module, changed: Iterable[range]) -> Iterator[FunctionNode]:
    """The innermost functions that hold changed lines."""
    functions = sorted((n for n in ast.walk(tree) if isinstance(n, FunctionNode)), key=lambda n: -_range(n).start)
    for lines in changed:
        left = set(lines)
        for function in functions:  # the innermost start last
            inside = left & set(_range(function))
            if inside:
                left -= inside
                yield function


def _bound(tree: ast.Module, changed: tuple[range, ...]) -> Iterator[str]:
    """Names that changed statements of the module and of its classes bind."""
    bodies: list[list[ast.stmt]] = [tree.body]
    while bodies:
        for statement in bodies.pop():
            if isinstance(statement, ast.ClassDef):
                bodies.append(statement.body)
            elif not isinstance(statement, FunctionNode) and _meets(_range(statement), changed):
                for node in ast.walk(statement):
                    if isinstance(node, ast.alias):
                        yield (node.asname or node.name).partition(".")[0]
                    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        yield node.id


def _used(function: FunctionNode) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _range(node: ast.stmt) -> range:
    """The lines of a statement, with its decorators."""
    return range(first_line(node), last_line(node) + 1)


def _meets(lines: range, changed: Iterable[range]) -> bool:
    return any(lines.start < other.stop and other.start < lines.stop for other in changed)


def _calls_by_line(path: pathlib.Path) -> dict[int, set[str]]:
    """The last parts of the names that each line calls."""
    found: dict[int, set[str]] = {}
    tree = _tree(path)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call):
            name = last_part(node.func)
            found.setdefault(node.lineno, set()).add(name)
    return found


def _tree(path: pathlib.Path) -> ast.Module | None:
    """The `ast` of a file; None for one that is gone, broken or no Python."""
    try:
        return parse(SourceFile.read(path, str(path)).text) if path.suffix in (".py", ".pyi") else None
    except (Unreadable, CannotParse):
        return None


def _places(finding: Finding) -> Iterator[Span]:
    yield finding.span
    yield from (label.span for label in (*finding.labels, *finding.paths))
    yield from (step.span for trace in finding.witness for step in trace.steps)
    if finding.cause is not None:
        yield finding.cause.place
        yield from (site.span for site in (*finding.cause.way, *finding.cause.beside))

"""Patterns of .gitignore: git itself says what they match, and no pattern takes long."""

from __future__ import annotations

import pathlib
import random
import subprocess

import pytest

from ddp_lint.globs import Globs, problem

NAMES = ("a", "b", "ab", "a.py", "[x]", "a-b", "]", "foo", "x y", "a\\b", "A", "1", " a", "!a", "#a")
ATOMS = (
    "a", "b", "ab", "*", "**", "?", "[ab]", "[!a]", "[a-c]", "[]x]", "[[:alpha:]]", "[^[:digit:]]", "/", "\\", "\\a",
    "\\*", ".py", "foo", "!", "#", " ", "[", "]", "-", "x", "[a-", "[[:foo:]]", "[--0]", "[z-a]", "[!]a-]", "[\\]]",
    "[a/b]", "[[:]", "[!!]", "[:a]", "A", "1", "\\ ",
)  # fmt: skip


def _tree(root: pathlib.Path, chance: random.Random) -> tuple[list[str], set[str]]:
    """Paths below `root`, and those of them that are folders."""
    paths = {"/".join(chance.choices(NAMES, k=chance.randint(1, 4))) for _ in range(150)}
    folders = {path[:at] for path in paths for at, character in enumerate(path) if character == "/"}
    for path in folders:
        (root / path).mkdir(parents=True, exist_ok=True)
    for path in paths - folders:
        (root / path).touch()
    return sorted(paths | folders), folders


def _pattern(chance: random.Random) -> str:
    """Any pattern, but for stars behind literal text and before a slash: there git's own shortcut for literal prefixes
    takes ``a**/b`` for ``a/**/b``, against its documentation."""
    atoms: list[str] = []
    for atom in chance.choices(ATOMS, k=chance.randint(1, 6)):
        alone = not atoms or atoms[-1] == "/"
        atoms += [atom] if atom != "**" or alone else ["*"]
        if atom == "**":
            atoms.append("/")
    return "".join(atoms)


@pytest.mark.parametrize("seed", range(4))
def test_patterns_match_what_git_says(tmp_path: pathlib.Path, seed: int) -> None:
    chance = random.Random(seed)
    paths, folders = _tree(tmp_path, chance)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    command = ["git", "-c", "core.excludesFile=", "check-ignore", "-z", "--stdin", "--no-index", "-v", "-n"]
    for _ in range(40):
        patterns = tuple(_pattern(chance) for _ in range(chance.randint(1, 3)))
        (tmp_path / ".gitignore").write_text("\n".join(patterns) + "\n")
        asked = "\0".join(paths).encode()
        said = subprocess.run(command, cwd=tmp_path, input=asked, capture_output=True, check=False).stdout.decode()
        rows = said.split("\0")
        git = {
            path: bool(found) and not found.startswith("!") for found, path in zip(rows[2::4], rows[3::4], strict=False)
        }
        ours = {path: _ignored(Globs(tmp_path, patterns), tmp_path, path, folders) for path in git}
        assert (patterns, ours) == (patterns, git)


def _ignored(globs: Globs, root: pathlib.Path, path: str, folders: set[str]) -> bool:
    """Git's walk: what is in an ignored folder is ignored."""
    parts = path.split("/")
    inside = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    return any(globs.decide(f"{root}/{p}", p != path or p in folders, itself=True) for p in inside)


@pytest.mark.parametrize(
    "pattern",
    [
        "*a" * 2000 + "b", "**/" * 500 + "b", "/".join(["**", "*a*b"] * 100), "?*" * 2000 + "[!a]z", "[!b]*" * 1000,
        "a**" * 2000 + "/b", "*" * 100_000, "[" * 10_000, "[[:alpha:]]" * 5000, "\\*" * 5000, "?" * 1_000_000,
    ],
    ids=lambda pattern: pattern[:12],
)  # fmt: skip
def test_no_pattern_takes_long(pattern: str) -> None:
    """An expression that tries every way to share out the text would not end."""
    globs = Globs(pathlib.Path("/r"), (pattern, f"/{pattern}", f"x/{pattern}"))
    for path in ("a" * 255, "/".join(["a" * 20] * 100), "ab" * 100, "/".join(["a"] * 300)):
        globs.decide(f"/r/{path}")
        globs.decide(f"/r/{path}", itself=True)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("!", "it is empty"),
        ("a\\", "backslash"),
        ("[a", "is not closed"),
        ("[[:x:]]", "[:x:]"),
        ("a b", ""),
        ("#", ""),
    ],
)
def test_what_can_match_nothing_is_told(pattern: str, said: str) -> None:
    assert said in problem(pattern)
    assert bool(problem(pattern)) == bool(said)

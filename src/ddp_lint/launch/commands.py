"""How the scripts and the documentation of a project start its programs: by which launcher, with what."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Literal

from ddp_lint.launch.search import importers
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts

#: Files that hold commands, at the root and in folders below it.
_PATTERNS = tuple(
    f"{folder}{name}"
    for folder in ("", "*/", "*/*/")
    for name in ("*.sh", "*.bash", "*.slurm", "*.sbatch", "README*", "*.md", "Makefile")
)
_MOST_FILES = 400
#: Characters of a file that are looked at.
_LONGEST = 200_000

#: `launch` passes the local rank as an argument, unless it is asked to leave it in the environment alone.
Launcher = Literal["launch", "torchrun"]

_STARTS = re.compile(
    r"(?P<launch>\btorch\.distributed\.launch\b)|(?P<torchrun>\btorchrun\b|\btorch\.distributed\.run\b)"
)
_FROM_ENVIRONMENT = re.compile(r"--use[_-]env\b")
_CONTINUED = re.compile(r"\\\r?\n")
#: A program in a command: ``tools/train.py``, ``$(dirname "$0")/test.py``, ``-m package.train``.
_PROGRAM = re.compile(r"""(?P<path>[\w./$(){}"' -]*?\b(?P<file>[\w.-]+\.py))(?=["'`\s]|$)|\s-m\s+(?P<module>[\w.]+)""")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that starts ranks: `program` is the path of a Python file as far as it is written, or the name of a
    module; `place`: the file and the line that it is in."""

    launcher: Launcher
    program: str
    place: str


def commands(project: Project) -> tuple[Command, ...]:
    """The commands in scripts and documentation of a project that start ranks."""
    return project.remember(("commands",), lambda: tuple(_commands(project)))


def starting(project: Project, facts: ModuleFacts, among: tuple[Command, ...]) -> Command | None:
    """The first of some commands that starts a file, or a program that imports it."""
    own = next((c for c in among if _names(project, c, facts)), None)
    if own is not None or not facts.name or facts.file.holds("__main__"):
        return own
    users = importers(project, facts.name, holding=("__main__", "parse_args"))
    return next((c for user in users for c in among if _names(project, c, user)), None)


def _commands(project: Project) -> Iterator[Command]:
    found = itertools.chain.from_iterable(sorted(project.root.glob(pattern)) for pattern in _PATTERNS)
    for path in itertools.islice(dict.fromkeys(p for p in found if "/." not in p.as_posix()), _MOST_FILES):
        text = project.text(path) if path.is_file() and path.stat().st_size <= _LONGEST else None
        if text is not None and _STARTS.search(text) is not None:
            yield from commands_in(text, project.inside(path))


def commands_in(text: str, name: str) -> Iterator[Command]:
    """The commands of a text; a command ends with its line, unless a backslash continues it."""
    number = 1
    for line in _CONTINUED.sub("\0", text).split("\n"):
        written, place = line.replace("\0", " "), f"{name}:{number}"
        number += 1 + line.count("\0")
        start = _STARTS.search(written)
        if start is None or written.lstrip().startswith("#"):
            continue
        behind = written[start.end() :]
        program = _PROGRAM.search(behind)
        if program is not None:
            by_argument = start["launch"] is not None and _FROM_ENVIRONMENT.search(behind[: program.start()]) is None
            path = program["module"] or program["path"].strip().rpartition(" ")[2]
            yield Command("launch" if by_argument else "torchrun", path, place)


def _names(project: Project, command: Command, facts: ModuleFacts) -> bool:
    """Whether a command starts a file: what is written of the path is the end of the file's own. Where no folder is
    written, or one is a variable, the file is next to the script, or the only one of its name."""
    if not command.program.endswith(".py"):
        return facts.name == command.program or facts.name.endswith(f".{command.program}")
    own = facts.file.place
    folder, _, name = command.program.strip("\"'").rpartition("/")
    if own.rpartition("/")[2] != name:
        return False
    plain = folder.removeprefix("./")
    if plain.strip("./") and _PLAIN.fullmatch(plain):
        return f"/{own}".endswith(f"/{plain.removeprefix('../').strip('/')}/{name}")
    beside = command.place.rpartition(":")[0].rpartition("/")[0] == own.rpartition("/")[0]
    return beside or _is_only_one(project, name)


_PLAIN = re.compile(r"[\w./-]*")


def _is_only_one(project: Project, name: str) -> bool:
    return sum(path.rpartition("/")[2] == name for path in project.python_files()) == 1

"""With how many processes the scripts of a project start its programs."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
import posixpath
import re
from collections.abc import Iterator

from ddp_lint.knowledge import table
from ddp_lint.project import Project

#: Files with commands that are looked at: of a project with more nothing is said.
_FILES = 2000
#: Characters of a command, also with what its variables stand for.
_LENGTH = 4000
_PASSES = 4
#: What a line has that may start a program.
_HINT = re.compile(r"\.py\b|-m\b|torchrun|\$")
_GIVEN = re.compile(
    r"""^(?P<in>[ \t]*)(?:export[ \t]+|local[ \t]+|set[ \t]+)?(?P<name>[A-Za-z_]\w*)(?P<more>\+?)="""
    r"""(?:"(?P<double>[^"]{0,4000})"|'(?P<single>[^']{0,4000})'|\((?P<list>[^)]{0,4000})\)|(?P<word>[^\s;&|]*))""",
    re.MULTILINE,
)
#: Where else a variable may be given something.
_MAY_GIVE = re.compile(r"(?<![\w$.{/-])([A-Za-z_]\w*)\+?=|\bfor[ \t]+(\w+)|\bread\b([^\n;|]*)")
_USE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[@\]|\[\*\])?\}|([A-Za-z_]\w*))")
_JOINED = re.compile(r"\\[ \t]*\n[ \t]*")
#: An entry of a command that YAML has as a list, which goes on from the line before.
_ENTRY = re.compile(r"\n[ \t]*- +(?=[\w\"'./$-])")
_BETWEEN = re.compile(r";|&&|\|\|?|`|\n")
_QUOTES = str.maketrans("\"'[],()", "       ")
_PYTHON = re.compile(
    r"(?<![\w./-])(?:\S{0,200}/)?python[\d.]*(?: +-[A-Za-z]+(?<!-m))* +(?P<target>-m +\S+|\S+\.py(?=\s|$))"
)
_CHANGES_FOLDER = re.compile(r"(?m)^[ \t]*(?:cd|pushd)\b|(?:&&|;)[ \t]*cd\b")


@dataclasses.dataclass(frozen=True)
class Start:
    """A command that starts a program: its file as the command has it ('' where a variable holds it), and with how many
    processes: "one" by a launcher, "several", or a number of a launcher that is not seen, "plain" by Python alone,
    "other" by a command that is not known. `said`: it is in a comment, and nothing runs it."""

    target: str
    how: str
    said: bool = False


def starts_several(project: Project) -> bool:
    """Whether a script of the project starts a program with several processes, or a number that is not seen."""
    return any(start.how == "several" and not start.said for _, found in _scripts(project) for start in found)


def started_alone(project: Project, inside: str) -> str:
    """How the scripts of the project start a program, by its path below the root: "one" or "plain" (`Start`) where all
    that start it do so with one process each, and other programs with several; '' for any other."""
    return project.remember(("started alone", inside), lambda: _started_alone(project, inside))


def _started_alone(project: Project, inside: str) -> str:
    if not starts_several(project):
        return ""
    base = posixpath.basename(inside)
    same = frozenset(project.named(base.lower()))
    hows = set()
    for script, found in _scripts(project):
        for start in found:
            meant = same if not start.target and not start.said else _meant(start.target, script, same)
            if inside in meant:
                hows.add(start.how if len(meant) == 1 and not start.said else _doubted(start.how))
    for path in project.holding(base):  # its own text says how it is started, or another program starts it
        found = _starts_in(project, project.inside(path))
        hows |= {start.how for start in found if start.how == "several" and inside in _meant(start.target, "", same)}
    hows |= _in_texts(project, inside, same)
    hows.discard("")
    return ("plain" if "plain" in hows else "one") if hows and hows <= {"one", "plain"} else ""


def _doubted(how: str) -> str:
    """What a command says of one of several programs that it may start, or one that nothing runs."""
    return how if how == "several" else ""


def _in_texts(project: Project, inside: str, same: frozenset[str]) -> set[str]:
    """Whether texts show how to start a program with several processes."""
    texts = _texts(project)
    found = (start for text, starts in texts for start in starts if inside in _meant(start.target, text, same))
    return {"several" for start in found if start.how == "several"}


def _meant(target: str, script: str, same: frozenset[str]) -> frozenset[str]:
    """The files that a command in a script may mean, of those with the name that it has."""
    name = posixpath.normpath(re.sub(r"^(?:\$\{?\w+\}?/|\./|\.\./)+", "", target)) if target else ""
    if not name or posixpath.basename(name) not in {posixpath.basename(path) for path in same}:
        return frozenset()
    here = {posixpath.normpath(posixpath.join(posixpath.dirname(script), target)), posixpath.normpath(target)}
    exact = same & here
    return exact or frozenset(path for path in same if path == name or path.endswith(f"/{name}"))


Starts = tuple[tuple[str, tuple[Start, ...]], ...]


def _scripts(project: Project) -> Starts:
    return project.remember(("scripts",), lambda: _all_starts(project, table("launch")["starts"]["scripts"]))


def _texts(project: Project) -> Starts:
    return project.remember(("texts of commands",), lambda: _all_starts(project, table("launch")["starts"]["texts"]))


def _all_starts(project: Project, names: str) -> Starts:
    files = project.named(names)
    every = ((inside, _starts_in(project, inside)) for inside in (files if len(files) <= _FILES else ()))
    return tuple((inside, starts) for inside, starts in every if starts)


def _starts_in(project: Project, inside: str) -> tuple[Start, ...]:
    path = project.absolute(inside)
    if not project.tested(path, "starts"):
        return ()
    with project.recording(apart=True):  # it depends on no more of the text
        text = project.text(pathlib.Path(path))
    return tuple(_starts(text or ""))


def starting(text: str) -> str:
    """How a text starts programs, '' where it starts none (`parts.TESTS`)."""
    return "\n".join(f"{start.target} {start.how} {start.said}" for start in _starts(text))


# ---- commands


def _starts(text: str) -> Iterator[Start]:
    """The commands of a text that start programs. Whether a script has changed its folder is part of what they say:
    then a path is none from where the script is."""
    given = _given(text)
    moved = _CHANGES_FOLDER.search(text) is not None
    for line in _ENTRY.sub(" ", _JOINED.sub(" ", _values_joined(text))).split("\n"):
        if len(line) > _LENGTH or _HINT.search(line) is None:
            continue
        stripped = line.lstrip()
        said = stripped.startswith(("#", "rem ", "REM ", "::"))
        for command in _BETWEEN.split(_expanded(re.sub(r"\s#.*", "", stripped), given)):
            start = _start(command.translate(_QUOTES))
            if start is not None:
                target = f"$moved/{start.target}" if moved and start.target else start.target
                yield dataclasses.replace(start, target=target, said=said)


def _values_joined(text: str) -> str:
    """A text with each value of a variable on one line."""
    return _GIVEN.sub(lambda given: _JOINED.sub(" ", given[0]).replace("\n", " "), text)


def _given(text: str) -> dict[str, str]:
    """What the variables of a script stand for that are given a value in one place, under no condition."""
    found: dict[str, str] = {}
    for given in _GIVEN.finditer(text):
        value = next((v for v in given.group("double", "single", "list", "word") if v is not None), "")
        name = given["name"]
        once = not given["in"] and not given["more"] and name not in found and len(value) < _LENGTH
        found[name] = _JOINED.sub(" ", value).replace("\n", " ") if once else f"${name}"
    given_at = collections.Counter(name for each in _MAY_GIVE.findall(text) for part in each for name in part.split())
    return {name: value for name, value in found.items() if given_at[name] == 1}


def _expanded(command: str, given: dict[str, str]) -> str:
    """A command with what its variables stand for."""
    for _ in range(_PASSES):
        longer = _USE.sub(lambda use: given.get(use[1] or use[2], use[0]), command)
        if longer == command or len(longer) > _LENGTH:
            break
        command = longer
    return command


def _start(command: str) -> Start | None:
    """The program that one command starts."""
    for launcher, pattern in _launchers():
        found = pattern.search(command)
        if found is not None:
            return _launched(command, found, launcher)
    found = _PYTHON.search(command)
    if found is None:
        other = re.search(r"(?<!\S)\S+\.py(?!\S)", command)
        return Start(other[0], "other") if other is not None else None
    several = _multiplies(command[: found.start()]) or command.rstrip().endswith("&")
    several = several or _options(table("launch")["starts"]["several"]).search(command, found.end()) is not None
    return Start(_file_of(found["target"]), "several" if several else "plain")


def _launched(command: str, found: re.Match[str], launcher: dict[str, str]) -> Start | None:
    rest = command[found.end() :]
    target = re.search(r"(?<!\S)(?:(?:-m|--module) +[\w.]+|[^\s=]+\.py)(?!\S)", rest)
    if target is None:
        return Start("", "several") if "$" in rest and not re.match(r"\w+ *=", command) else None
    before = rest[: target.start()]
    processes = [option["value"] for option in _options(launcher["processes"]).finditer(before)]
    nodes = [option["value"] for option in _options(launcher["nodes"]).finditer(before)]
    open_ = re.search(r"(?:^|(?<!\S)(?!-)\S+ +|=\S+ +)\$", before.strip()) is not None
    alone = (
        processes in (["1"], ["1x1"])
        and nodes in ([], ["1"])
        and not open_
        and not _multiplies(command[: found.start()])
    )
    return Start(_file_of(target[0]), "one" if alone else "several")


def _file_of(target: str) -> str:
    """The file of a program as a command has it: ``-m pkg.train`` is ``pkg/train.py``."""
    module = re.match(r"(?:-m|--module) +(\S+)", target)
    return f"$moved/{module[1].replace('.', '/')}.py" if module is not None else target


def _multiplies(before: str) -> bool:
    return not {word.rpartition("/")[2] for word in before.split()}.isdisjoint(table("launch")["starts"]["multiplying"])


@functools.cache
def _options(names: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\S)--?(?:{names})(?:=| +|$)(?P<value>\S*)")


@functools.cache
def _launchers() -> tuple[tuple[dict[str, str], re.Pattern[str]], ...]:
    known = table("launch")["starts"]["launchers"]
    return tuple((each, re.compile(rf"(?<![\w./-])(?:\S{{0,200}}/)?{each['command']}(?=\s|$)")) for each in known)

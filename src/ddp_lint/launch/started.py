"""By which launcher, and with how many processes, the scripts of a project start its programs."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
import posixpath
import re
from collections.abc import Callable, Iterator

from ddp_lint.knowledge import table
from ddp_lint.launch.search import importers, programs
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.results import OfNames

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
#: An entry of a command that YAML has as a list, which goes on from the line before; one of several words that begins
#: with no option or program is a command of its own.
_ENTRY = re.compile(r"\n[ \t]*- +(?=[\w\"'./$-])(?![\w./]+(?<!\.py) +\S)")
_BETWEEN = re.compile(r";|&&|\|\|?|`|\n")
#: A folder that a command works out: ``$(dirname "$0")/train.py``.
_WORKED_OUT = re.compile(r"""(?:\$\((?:[^()\n]|\([^()\n]*\)){0,200}\)|`dirname [^`\n]{0,200}`)["']?(?=/)""")
#: What stands for a folder that is not known.
_SOMEWHERE = "$moved"
#: In a line that is made of several, where another one began.
_BEGAN = "\0"
_QUOTES = str.maketrans("\"'[],()", "       ")
#: What is between the numbers of one word: ``localhost:0,1``.
_NUMBERS = re.compile(r"(?<=\d),(?=\d)")
_PYTHON = re.compile(
    r"(?<![\w./-])(?:\S{0,200}/)?python[\d.]*(?: +-[A-Za-z]+(?<!-m))* +(?P<target>-m +\S+|\S+\.py(?=\s|$))"
)
#: The numbers of nodes that a script asks its scheduler for, and where it leaves them to whoever starts it.
_ASKED_NODES = re.compile(r"(?m)^#(?:SBATCH|PBS|BSUB)\b.*?(?:--nodes[= ]+|-N +|-l +(?:nodes|select)=)(\d+)")
_OPEN_NODES = re.compile(r"(?<![\w$])(?:nnodes|num[-_]nodes|num[-_]machines|nodes|hostfile|N|h)[= ]+[\"']?\$")
#: Options of a program that tell it which process of several it is.
_ONE_OF_SEVERAL = re.compile(r"(?<!\S)--?(?:\w*rank|world[-_]size|n(?:um)?[-_]?nodes|nodes|nr|\w*launcher)(?:=| +|$)")
#: What an option for the nodes has that means this one.
_ONE_NODE = re.compile(r"1|1:1|1x\S+|localhost\S*")
#: A file with the settings of a launcher, and what it has where there is one node.
_SETTINGS = re.compile(r"\S+\.(?:ya?ml|json)")
_ONE_MACHINE = re.compile(r"(?m)^[ \t\"]*num_machines[\"]?: *1\b")
#: What a program of several nodes has of how many there are, or which of them it is on.
_COUNTS_NODES = re.compile(
    # A graph has nodes as well: ``g.num_nodes()``.
    r"(?i)\b(?:nnodes|num_machines|node_?rank|slurm_(?:nodeid|nnodes|job_num_nodes)|group_rank)\b"
    r"|(?:--|\b(?:args|cfg|config|opt|trainer|hparams)\.)n(?:um)?[-_]?nodes\b|\bnum_nodes *="
    # On one node, the global rank would be the number of the GPU.
    r"|\b(?:global_)?rank(?:\(\))? *% *torch\.cuda\.device_count\(\)"
)
#: The backend that a launcher's settings choose.
_BACKEND = re.compile(r"(?m)^[ \t\"]*distributed_type\"?: *[\"']?(\w+)")
#: A program, below a command in a comment, that is started in place of the command's own: ``# test.py --all``, also in
#: a list of these: ``# test.py, test.yaml``.
_INSTEAD = re.compile(r"#+[ \t]*(?!\S*python)([\w./$-]+\.py)(?![^\s,])")
_CHANGES_FOLDER = re.compile(r"(?m)^[ \t]*(?:cd|pushd)\b|(?:&&|;)[ \t]*cd\b")


@dataclasses.dataclass(frozen=True)
class Start(OfNames):
    """A command that starts a program: its file as the command has it ('' where a variable holds it), and with how many
    processes: "one" by a launcher, "several", or a number of a launcher that is not seen, "plain" by Python alone,
    "other" by a command that is not known. `said`: it is in a comment, and nothing runs it. `launcher`: its name, ''
    for none; `local_rank`: whether it passes each process its local rank as an "argument" or leaves it in the
    "environment" alone, '' where that is not known. `nodes`: "one" where all its processes are on one node, the file
    with the settings that say it, or ''. `settings`: the file that the launcher is told to take its settings from."""

    target: str
    how: str
    said: bool = False
    launcher: str = ""
    local_rank: str = ""
    nodes: str = ""
    settings: str = ""


@dataclasses.dataclass(frozen=True)
class Launch:
    """A command that starts a program of the project, and the file that has it, by its path below the root."""

    start: Start
    inside: str


def starts_several(project: Project) -> bool:
    """Whether a script of the project starts a program with several processes, or a number that is not seen."""
    return any(start.how == "several" and not start.said for _, found in _scripts(project) for start in found)


def started_alone(project: Project, inside: str) -> str:
    """How the scripts of the project start a program, by its path below the root: "one" or "plain" (`Start`) where all
    that start it do so with one process each, and other programs with several; '' for any other."""
    return project.remember(("started alone", inside), lambda: _started_alone(project, inside))


def _started_alone(project: Project, inside: str) -> str:
    hows = _hows(project, inside) if starts_several(project) else frozenset()
    return ("plain" if "plain" in hows else "one") if hows and hows <= {"one", "plain"} else ""


def launched_alone(project: Project, inside: str) -> bool:
    """Whether all commands of the project that start a program, by its path below the root, do so by a launcher with
    one process."""
    return project.remember(("launched alone", inside), lambda: _hows(project, inside)) == {"one"}


def _hows(project: Project, inside: str) -> frozenset[str]:
    """How the scripts and texts of the project start a program (`Start.how`), as far as that is known."""
    base = posixpath.basename(inside)
    same = frozenset(project.contents.named(base.lower()))
    hows = set()
    for script, found in _scripts(project):
        for start in found:
            meant = same if not start.target and not start.said else _meant(start.target, script, same)
            if inside in meant:
                hows.add(start.how if len(meant) == 1 and not start.said else _doubted(start.how))
    for path in project.contents.holding(base):  # its own text says how it is started, or another program starts it
        found = _starts_in(project, project.paths.inside(path))
        hows |= {start.how for start in found if start.how == "several" and inside in _meant(start.target, "", same)}
    hows |= _in_texts(project, inside, same)
    return frozenset(hows - {""})


def is_started(project: Project, facts: ModuleFacts) -> bool:
    """Whether a script or a text of the project starts a file, or a program that imports it."""
    key = ("is started", facts.source.inside)
    return project.remember(
        key, lambda: any(_hows(project, each.source.inside) for each in _with_programs(project, facts))
    )


def started_on_one_node(project: Project | None, facts: ModuleFacts | None) -> bool:
    """Whether all commands in the scripts and the texts of the project that start a program, or those that import a
    file, start it on one node; of one that none starts, whether all commands of launchers do. A program that itself
    has an option or a variable for the number of nodes, or takes its rank modulo the GPUs of a node, is for several."""
    if project is None or facts is None:
        return False
    key = ("started on one node", facts.source.inside)
    return project.remember(key, lambda: _are_on_one_node(project, facts))


def _are_on_one_node(project: Project, facts: ModuleFacts) -> bool:
    # A file that a text names is not therefore started.
    texts = ((text, tuple(s for s in starts if s.how != "other")) for text, starts in _texts(project))
    every = (*_scripts(project), *texts)
    found = set()
    for program in _with_programs(project, facts):
        if _COUNTS_NODES.search(program.file.text) is not None:
            return False
        inside = program.source.inside
        same = frozenset(project.contents.named(posixpath.basename(inside).lower()))
        own = tuple(start for start in _starts_in(project, inside) if start.how != "other")
        for script, starts in ((inside, own), *every):
            reached = same if _is_above(script, inside) else frozenset()
            meant = {s: reached if not s.target and not s.said else _meant(s.target, script, same) for s in starts}
            found |= {_nodes_of(project, start) for start, files in meant.items() if inside in files}
    others = {_nodes_of(project, start) for _, starts in every for start in starts if start.launcher}
    return (found or others) == {"one"}


def _is_above(script: str, program: str) -> bool:
    """Whether a script that starts the program it is given may be for one: those below the folder that the script, or
    its own folder of scripts, is in."""
    around = posixpath.dirname(posixpath.dirname(script))
    return not around or program.startswith(f"{around}/")


def _nodes_of(project: Project, start: Start) -> str:
    """On how many nodes a command starts a program, also by the settings of its launcher that it names."""
    if _SETTINGS.fullmatch(start.nodes) is None:
        return start.nodes
    files = project.contents.named(posixpath.basename(start.nodes).lower())
    texts = [project.contents.text(pathlib.Path(project.paths.absolute(inside))) or "" for inside in files]
    return "one" if texts and all(_ONE_MACHINE.search(text) for text in texts) else ""


def launched_under(project: Project, facts: ModuleFacts) -> frozenset[str]:
    """The backends that the settings choose (``distributed_type: DEEPSPEED``) with which commands of the project launch
    a file, or a program that imports it; '' among them for a command that gives its launcher no such settings."""
    return project.remember(("launched under", facts.source.inside), lambda: _backends(project, facts))


def _backends(project: Project, facts: ModuleFacts) -> frozenset[str]:
    commands = _commands_of(project, facts, lambda start: bool(start.launcher))
    return frozenset(backend for _, start in commands for backend in _backends_of(project, start))


def _commands_of(project: Project, facts: ModuleFacts, counts: Callable[[Start], bool]) -> Iterator[tuple[str, Start]]:
    """The commands in a file itself, the scripts and the texts of the project that start the file, or a program that
    imports it, each with the file that it is in. `counts`: which of them are looked for."""
    own = facts.source.inside
    every = ((own, _starts_in(project, own)), *_scripts(project), *_texts(project))
    among = [(script, start) for script, found in every for start in found if counts(start) and not start.said]
    for program in _with_programs(project, facts, importers) if among else ():
        inside = program.source.inside
        same = frozenset(project.contents.named(posixpath.basename(inside).lower()))
        yield from ((script, start) for script, start in among if _is_meant(inside, start.target, script, same))


def _backends_of(project: Project, start: Start) -> set[str]:
    """The backends that the settings of a command may choose."""
    files = project.contents.named(posixpath.basename(start.settings).lower()) if start.settings else ()
    same = _meant(start.settings, "", frozenset(files)) or files
    found = {_backend_in(project, inside) for inside in same or _in_place_of(project, start.settings)}
    return (found if same else found - {""}) or {""}


def _backend_in(project: Project, inside: str) -> str:
    text = project.contents.text(pathlib.Path(project.paths.absolute(inside))) or ""
    return found[1] if (found := _BACKEND.search(text)) else ""


def _in_place_of(project: Project, settings: str) -> list[str]:
    """The files that a command may mean which leaves the name of its settings to whoever runs it, in a folder of the
    project: by a variable (``configs/${ZERO}.yaml``), or by a name that no file has (``configs/YOUR_SETTINGS``)."""
    folder, _, name = settings.rpartition("/")
    if not folder or "$" in folder or "{" in folder:
        return []
    known = re.split(r"\$\{?\w+\}?|\{[^{}]*\}", name)
    fits = re.compile(r"[^/]*".join(map(re.escape, known)) if len(known) > 1 else r"[^/]+")
    below = posixpath.normpath(re.sub(r"^(?:\.\.?/)+", "", f"{folder}/"))
    files = project.contents.named("*.yaml *.yml *.json")
    beside = [each for each in files if f"/{posixpath.dirname(each)}".endswith(f"/{below}")]
    return [each for each in beside if fits.fullmatch(posixpath.basename(each))]


def _with_programs(
    project: Project, facts: ModuleFacts, find: Callable[..., Iterator[ModuleFacts]] = programs
) -> Iterator[ModuleFacts]:
    """A file and, where it is no program itself, the programs that import it, directly or through another file; with
    `importers` directly."""
    yield facts
    if facts.name and not facts.file.holds("__main__"):
        yield from find(project, facts.name, holding=("__main__", "parse_args"))


def launched(project: Project, facts: ModuleFacts, local_rank: str, *, several: bool = False) -> Launch | None:
    """The first command in a file itself, the scripts and the texts of the project that starts the file, or else a
    program that imports it, by a launcher that passes the local rank in one way (`Start.local_rank`); with `several`
    one that may start more than one process."""

    def counts(start: Start) -> bool:
        return start.local_rank == local_rank and not (several and start.how != "several")

    return next((Launch(start, script) for script, start in _commands_of(project, facts, counts)), None)


def launched_as_several(project: Project, facts: ModuleFacts) -> Launch | None:
    """The first command of the project that starts a file itself, or a program that imports it, by a launcher that may
    start more than one process."""
    commands = _commands_of(project, facts, lambda start: bool(start.launcher) and start.how == "several")
    return next((Launch(start, script) for script, start in commands), None)


def place_of(project: Project, launch: Launch) -> str:
    """The file and the line that a command is in: ``run.sh:3``. Who asks depends on the whole text of the file; the
    line is no part of a `Start`, so that who does not ask depends on no line."""
    text = project.contents.text(pathlib.Path(project.paths.absolute(launch.inside))) or ""
    line = next((line for line, start in _starts(text) if start == launch.start), 1)
    return f"{launch.inside}:{line}"


def _is_meant(inside: str, target: str, script: str, same: frozenset[str]) -> bool:
    """Whether a command means a file: of several with the name, the one beside the script, or those in a folder that
    the command has."""
    meant = _meant(target, script, same)
    beside = posixpath.dirname(script) == posixpath.dirname(inside)
    return inside in meant and (len(meant) == 1 or beside or "/" in _written(target))


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
    name = _written(target)
    if not name or posixpath.basename(name) not in {posixpath.basename(path) for path in same}:
        return frozenset()
    here = {posixpath.normpath(posixpath.join(posixpath.dirname(script), target)), posixpath.normpath(target)}
    exact = same & here
    return exact or frozenset(path for path in same if path == name or path.endswith(f"/{name}"))


def _written(target: str) -> str:
    """What a command has of the path of a program behind the folders that are not known."""
    _, unknown, behind = target.rpartition("$")
    path = behind.partition("/")[2] if unknown else target
    return posixpath.normpath(re.sub(r"^(?:\.\.?/)+", "", path)) if path else ""


Starts = tuple[tuple[str, tuple[Start, ...]], ...]


def _scripts(project: Project) -> Starts:
    return project.remember(("scripts",), lambda: _all_starts(project, table("launch")["starts"]["scripts"]))


def _texts(project: Project) -> Starts:
    return project.remember(("texts of commands",), lambda: _all_starts(project, table("launch")["starts"]["texts"]))


def _all_starts(project: Project, names: str) -> Starts:
    files = project.contents.named(names)
    every = ((inside, _starts_in(project, inside)) for inside in (files if len(files) <= _FILES else ()))
    return tuple((inside, starts) for inside, starts in every if starts)


def _starts_in(project: Project, inside: str) -> tuple[Start, ...]:
    text = project.texts.read_for(inside, "starts")
    return tuple(start for _, start in _starts(text)) if text is not None else ()


def starting(text: str) -> str:
    """How a text starts programs, '' where it starts none (`parts.TESTS`)."""
    return "\n".join(" ".join(map(str, dataclasses.astuple(start))) for _, start in _starts(text))


# ---- commands


def _starts(text: str) -> Iterator[tuple[int, Start]]:
    """The commands of a text that start programs, each with its line. Whether a script has changed its folder is part
    of what they say: then a path is none from where the script is."""
    given = _given(text)
    moved = _CHANGES_FOLDER.search(text) is not None
    asked, left_open = set(_ASKED_NODES.findall(text)), _OPEN_NODES.search(text) is not None
    above = 0
    last: tuple[int, Start] | None = None  # the command above by a launcher, with the line below it
    for joined in _ENTRY.sub(f"{_BEGAN} ", _JOINED.sub(f"{_BEGAN} ", _values_joined(text))).split("\n"):
        line, number = joined.replace(_BEGAN, ""), above + 1
        above = number + joined.count(_BEGAN)
        if len(line) > _LENGTH or _HINT.search(line) is None:
            continue
        stripped = line.lstrip()
        said = stripped.startswith(("#", "rem ", "REM ", "::"))
        instead = _INSTEAD.match(stripped)
        if instead is not None and last is not None and last[0] == number:
            last = number + 1, dataclasses.replace(last[1], target=_moved(instead[1], moved))
            yield number, last[1]
            continue
        expanded = _expanded(re.sub(r"\s#.*", "", stripped), given)
        for command in _BETWEEN.split(_WORKED_OUT.sub(_SOMEWHERE, expanded)):
            start = start_of(command)
            if start is not None:
                several = left_open or (asked != {"1"} and (bool(asked) or start.nodes == "as asked"))
                nodes = "" if several else "one" if start.nodes == "as asked" else start.nodes
                start = dataclasses.replace(start, target=_moved(start.target, moved), said=said, nodes=nodes)
                last = (above + 1, start) if start.launcher and not said else last
                yield number, start


def _moved(target: str, moved: bool) -> str:
    """A program as a script has it that may have changed its folder."""
    return f"{_SOMEWHERE}/{target}" if moved and target else target


def _values_joined(text: str) -> str:
    """A text with each value of a variable on one line."""
    return _GIVEN.sub(lambda given: _JOINED.sub(f"{_BEGAN} ", given[0]).replace("\n", f"{_BEGAN} "), text)


def _given(text: str) -> dict[str, str]:
    """What the variables of a script stand for that are given a value in one place, under no condition."""
    found: dict[str, str] = {}
    for given in _GIVEN.finditer(text):
        value = next((v for v in given.group("double", "single", "list", "word") if v is not None), "")
        name = given["name"]
        once = not given["in"] and not given["more"] and name not in found and len(value) < _LENGTH
        once = once and not value.startswith(("$(", "`"))  # worked out: the value goes on behind a space
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


def start_of(command: str) -> Start | None:
    """The program that one command starts, as it is written."""
    return _start(_NUMBERS.sub("+", command).translate(_QUOTES))


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
    of_more = _ONE_OF_SEVERAL.search(command, found.end()) is not None
    nodes = "" if of_more else "as asked" if _multiplies(command[: found.start()]) else "one"
    return Start(_file_of(found["target"]), "several" if several else "plain", nodes=nodes)


def _launched(command: str, found: re.Match[str], launcher: dict[str, str]) -> Start | None:
    rest = command[found.end() :]
    target = re.search(r"(?<!\S)(?:(?:-m|--module) +[\w.]+|[^\s=]+\.py)(?!\S)", rest)
    if target is None:
        return Start("", "several") if "$" in rest and not re.match(r"\w+ *=", command) else None
    before = rest[: target.start()]
    processes = [option["value"] for option in _options(launcher["processes"]).finditer(before)]
    nodes = [option["value"] for option in _options(launcher["nodes"]).finditer(before)]
    open_ = re.search(r"(?:^|(?<!\S)(?!-)\S+ +|=\S+ +)\$", before.strip()) is not None
    slots = [o["value"] for o in _options(launcher["slots"]).finditer(before)] if "slots" in launcher else []
    of_one = processes in (["1"], ["1x1"]) and nodes in ([], ["1"])
    alone = (
        (of_one or (not processes and nodes == slots and _is_one_slot(slots)))
        and not open_
        and not _multiplies(command[: found.start()])
    )
    left = "unless" in launcher and _options(launcher["unless"]).search(before) is not None
    local_rank = "environment" if left else launcher.get("local_rank", "")
    how = "one" if alone else "several"
    on_one = all(_ONE_NODE.fullmatch(number) for number in nodes) and not open_
    on_nodes = "" if not on_one else "as asked" if _multiplies(command[: found.start()]) else "one"
    if len(nodes) == 1 and _SETTINGS.fullmatch(nodes[0]) is not None:
        on_nodes = nodes[0]
    settings = [o["value"] for o in _options(launcher["settings"]).finditer(before)] if "settings" in launcher else []
    return Start(
        _file_of(target[0]),
        how,
        launcher=launcher["name"],
        local_rank=local_rank,
        nodes=on_nodes,
        settings=settings[0] if len(settings) == 1 else "",
    )


def _is_one_slot(slots: list[str]) -> bool:
    """Whether a launcher is given one GPU of one machine: ``--include localhost:2``."""
    return len(slots) == 1 and re.fullmatch(r"[\w.-]+:\d+", slots[0]) is not None


def _file_of(target: str) -> str:
    """The file of a program as a command has it: ``-m pkg.train`` is ``pkg/train.py``."""
    module = re.match(r"(?:-m|--module) +(\S+)", target)
    return f"{_SOMEWHERE}/{module[1].replace('.', '/')}.py" if module is not None else target


def _multiplies(before: str) -> bool:
    return not {word.rpartition("/")[2] for word in before.split()}.isdisjoint(table("launch")["starts"]["multiplying"])


@functools.cache
def _options(names: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\S)--?(?:{names})(?:=| +|$)(?P<value>\S*)")


@functools.cache
def _launchers() -> tuple[tuple[dict[str, str], re.Pattern[str]], ...]:
    known = table("launch")["starts"]["launchers"]
    return tuple((each, re.compile(rf"(?<![\w./-])(?:\S{{0,200}}/)?{each['command']}(?=\s|$)")) for each in known)

"""Where a program sets environment variables."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge import table
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import SourceFile, dotted
from ddp_lint.source.control_flow import exclusive
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import calls_below, walk
from ddp_lint.view import Module

_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Names that get the value of one another which are gone through.
_HANDED = 3
_SETTERS = ("os.environ.setdefault", "os.putenv")
#: Calls whose result is a variable of the environment.
READS = ("os.environ.get", "os.getenv", "os.environ.pop", "os.environ.setdefault")
#: Files that set variables for the training that they launch, by the names of their files.
TEXT_FILES = (
    "*.sh", "*.bash", "*.zsh", "*.slurm", "*.sbatch", "Dockerfile*", "Containerfile*", "*.dockerfile",
    "*.yaml", "*.yml", "*.env", ".envrc",
)  # fmt: skip
_COMMENT = re.compile(r"(^|\s)#.*")
#: `NAME=`, `NAME:` (YAML), `ENV NAME value` (Dockerfile), `name: NAME` (a list of variables in YAML).
_IN_TEXT = re.compile(
    r"(?<![\w$.{/-])(?P<name>[A-Z][A-Z0-9_]{5,})(?=\s*=|:(\s|$))"
    r"|(?<=\bENV )(?P<docker>[A-Z][A-Z0-9_]{5,})(?=\s)|(?<=\bname: )(?P<yaml>[A-Z][A-Z0-9_]{5,})\s*$"
)
_CLOSE = 0.93
#: The same for a first word alone, which has that many letters at least (``HCCL_`` is not a slip of ``NCCL_``).
_CLOSE_WORD = 0.85
_LONG = 5


@dataclasses.dataclass(frozen=True)
class Write:
    """One variable that is set: its name, the node of the name, the value, the expression or statement that sets it.

    `own`: it is set in this process (`os.environ`), not in a dictionary that may be some child's environment.
    """

    name: str
    key: cst.CSTNode
    value: cst.BaseExpression | None
    node: cst.CSTNode
    own: bool
    default: bool = False


def writes(module: Module, node: cst.CSTNode) -> Iterator[Write]:
    """The variables that one node (an assignment or a call) sets in `os.environ` or in a copy of it."""
    if isinstance(node, cst.Assign):
        for target in node.targets:
            yield from _subscript(module, target.target, node)
            if _is_environment(target.target) and _extends_environment(module, node.value):
                yield from _entries(node.value, node.value, own=False)
    elif isinstance(node, cst.Call):
        yield from _call(module, node)


def shows_own_gpu(module: Module) -> bool:
    """Whether a file shows each rank the GPU of its number alone, which is `cuda:0` to it, or the ranks of the project
    see no other: ``assert torch.cuda.device_count() == 1`` where they join, there or in a file that it imports from."""
    facts = module.facts
    if _asserts_one_gpu(module):
        return True
    if facts is None or _VISIBLE not in module.file.text:
        return False
    assigned = (node for node in walk(facts.tree) if isinstance(node, ast.Assign))
    values = (n.value for n in assigned if any(_is_variable(t, _VISIBLE, facts) for t in n.targets))
    names = (dotted_ast(part).rpartition(".")[2] for value in values for part in walk(value))
    return not {*names}.isdisjoint(table("checkpoints")["ranks"])


def _asserts_one_gpu(module: Module) -> bool:
    project, facts = module.project, module.facts
    joining = (
        [path for path in project.contents.holding("device_count") if _asserts_one(project, path)] if project else []
    )
    if project is None or facts is None or not joining:
        return False
    found = (project.meanings.split(target) for target in module.imports.names.values())
    names = {facts.name, *(each[0].name for each in found if each is not None)}
    return any(project.modules.find(name) in joining for name in names if name)


def _asserts_one(project: Project, path: pathlib.Path) -> bool:
    text = project.contents.text(path) or ""
    return "init_process_group(" in text and _ASSERTS_ONE.search(text) is not None


_ASSERTS_ONE = re.compile(r"^ *assert torch\.cuda\.device_count\(\) *== *1\b", re.MULTILINE)


def shows_one_gpu(module: Module) -> bool:
    """Whether a file shows its process one GPU, whatever its rank, before it does anything else: then there is no other
    to load onto."""
    facts = module.facts
    if facts is None or _VISIBLE not in module.file.text:
        return False
    shown = [n for n in facts.tree.body if isinstance(n, ast.Assign) and _is_variable(n.targets[0], _VISIBLE, facts)]
    values = [n.value.value for n in shown if isinstance(n.value, ast.Constant)]
    return bool(shown) and len(values) == len(shown) and all(isinstance(v, str) and v.isdigit() for v in values)


def names_first_gpus(module: Module, value: cst.BaseExpression | None) -> bool:
    """Whether a value of the variable for the visible GPUs is the first ones of the machine in their order: "0", "0,1",
    or a list of these that is joined. A process which does not get it uses the same first GPU."""
    numbers = [part.strip() for part in _listed(module, value).split(",")] if value is not None else []
    return bool(numbers) and numbers == [str(number) for number in range(len(numbers))]


def _listed(module: Module, value: cst.BaseExpression) -> str:
    """GPUs as the variable lists them, as far as they are constants; else ''."""
    value = _as_written(module, value) or value
    if not isinstance(value, cst.Call) or not value.args:
        return text_of(value)
    first = value.args[0].value
    if dotted(value.func) == "str":
        return first.value if isinstance(first, cst.Integer) else ""
    if not isinstance(value.func, cst.Attribute) or value.func.attr.value != "join":
        return ""
    if isinstance(first, cst.Call) and dotted(first.func) == "map" and len(first.args) > 1:
        first = first.args[1].value
    elif isinstance(first, cst.GeneratorExp):
        first = first.for_in.iter
    given = _as_written(module, first) or first
    elements = given.elements if isinstance(given, (cst.List, cst.Tuple)) else ()
    numbers = [e.value.value for e in elements if isinstance(e.value, cst.Integer)]
    return ",".join(numbers) if len(numbers) == len(elements) else ""


def _is_variable(target: ast.expr, name: str, facts: ModuleFacts) -> bool:
    """Whether a target is a variable of this process: ``os.environ["NAME"]``."""
    if not isinstance(target, ast.Subscript) or facts.qualified(target.value) != "os.environ":
        return False
    return isinstance(target.slice, ast.Constant) and target.slice.value == name


def _subscript(module: Module, target: cst.BaseExpression, node: cst.Assign) -> Iterator[Write]:
    if not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return
    index = target.slice[0].slice
    name = text_of(index.value) if isinstance(index, cst.Index) else ""
    own = module.qualified(target.value) == "os.environ"
    if name and isinstance(index, cst.Index) and (own or _is_environment(target.value)):
        yield Write(name, index.value, node.value, node, own)
    elif own and isinstance(index, cst.Index):
        yield from _looped_over(module, index.value)


def _is_environment(node: cst.BaseExpression) -> bool:
    """Whether a name is that of variables: ``child_env``."""
    return "env" in dotted(node).rpartition(".")[2].lower()


def _extends_environment(module: Module, value: cst.BaseExpression) -> bool:
    """Whether a dictionary is a copy of this process's environment with more: ``{**os.environ, "NAME": "1"}``."""
    starred = [e.value for e in value.elements if isinstance(e, cst.StarredDictElement)] if _is_dict(value) else []
    return any(module.qualified(getattr(e, "func", e)).startswith("os.environ") for e in starred)


def _is_dict(value: cst.BaseExpression | None) -> TypeGuard[cst.Dict]:
    return isinstance(value, cst.Dict)


def _entries(value: cst.BaseExpression | None, node: cst.CSTNode, *, own: bool) -> Iterator[Write]:
    """The variables that a dictionary holds, set by a node."""
    for element in value.elements if _is_dict(value) else ():
        if isinstance(element, cst.DictElement) and text_of(element.key):
            yield Write(text_of(element.key), element.key, element.value, node, own)


def _looped_over(module: Module, name: cst.BaseExpression) -> Iterator[Write]:
    """What a loop sets for which a name holds the keys: ``for name, value in settings.items()``."""
    for up in module.ancestors(name):
        if isinstance(up, cst.For) and isinstance(up.target, cst.Tuple) and isinstance(up.iter, cst.Call):
            over, first = up.iter.func, dotted(up.target.elements[0].value)
            if first and first == dotted(name) and isinstance(over, cst.Attribute) and over.attr.value == "items":
                yield from _entries(_as_written(module, over.value), up.iter, own=True)


def _as_written(module: Module, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """A value as it is written, or as a name is given it once."""
    given = module.assignments(value) if dotted(value) else [value]
    return given[0] if len(given) == 1 else None


def _call(module: Module, node: cst.Call) -> Iterator[Write]:
    name = module.qualified(node.func)
    if name in _SETTERS and node.args:
        value = node.args[1].value if len(node.args) > 1 else None
        yield Write(text_of(node.args[0].value), node.args[0].value, value, node, True, name == _SETTERS[0])
        return
    own = name == "os.environ.update"
    updates = isinstance(node.func, cst.Attribute) and node.func.attr.value == "update"
    copies = updates and isinstance(node.func, cst.Attribute) and _is_environment(node.func.value)
    for arg in node.args:
        if arg.keyword is not None and arg.keyword.value.isupper():
            yield Write(arg.keyword.value, arg.keyword, arg.value, node, own)
        elif own or copies:
            yield from _entries(_as_written(module, arg.value), node, own=own)
        elif arg.keyword is not None and arg.keyword.value == "env":  # ``subprocess.run(command, env={..})``
            yield from _entries(arg.value, node, own=False)


def hands_on_visible(module: Module, write: Write) -> bool:
    """Whether a variable for the visible GPUs gets the value of one that the process has had: ``val =
    os.environ.pop("HIP_VISIBLE_DEVICES")``, ``os.environ["CUDA_VISIBLE_DEVICES"] = val``."""
    names = table("environment")["visible"]
    return write.name in names and _is_read_from(module, write.value, write.node, names, _HANDED)


def _is_read_from(
    module: Module, value: cst.BaseExpression | None, at: cst.CSTNode, names: Sequence[str], depth: int
) -> bool:
    """Whether all that a value may be is what the process has in some variables."""
    if not isinstance(value, cst.Name):
        sets = isinstance(value, cst.Call) and module.qualified(value.func) in _SETTERS
        return value is not None and not sets and variable_read(module, value) in names
    bound = module.scopes.last_before(module.bindings(value, at), at) if depth else []
    met = [each for each in bound if not exclusive(module, each.node, at)]
    return bool(met) and all(
        each.kind == "assign" and not each.index and _is_read_from(module, each.value, each.node, names, depth - 1)
        for each in met
    )


def variable_read(module: Module, node: cst.BaseExpression) -> str:
    """`RANK` for ``os.environ["RANK"]``, ``os.environ.get("RANK", 0)``, ``os.getenv("RANK")``; else ''."""
    if isinstance(node, cst.Subscript) and module.qualified(node.value) == "os.environ" and len(node.slice) == 1:
        index = node.slice[0].slice
        return text_of(index.value) if isinstance(index, cst.Index) else ""
    if isinstance(node, cst.Call) and module.qualified(node.func) in READS and node.args:
        return text_of(node.args[0].value)
    return ""


def makes_engine(facts: ModuleFacts) -> bool:
    """Whether a file makes an object that starts processes of its own: ``sglang.Engine(..)``, ``vllm.LLM(..)``."""
    engines = [each.rpartition(".") for each in table("environment")["engines"]]
    if not any(facts.file.holds(last) and facts.file.holds(package) for package, _, last in engines):
        return False
    made = {facts.qualified(call.func) for call in calls_below(facts.tree)}
    names = {(name.partition(".")[0], name.rpartition(".")[2]) for name in made}
    return any((package, last) in names for package, _, last in engines)


def text_of(node: cst.CSTNode) -> str:
    """The value of a plain string literal, else ''."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else ""
    return value if isinstance(value, str) else ""


def in_text(file: SourceFile) -> Iterator[tuple[str, Span]]:
    """The variables that a shell script, Dockerfile or YAML file sets, each with the place of its name."""
    for number, line in enumerate(file.lines, 1):
        for match in _IN_TEXT.finditer(_COMMENT.sub("", line)):
            group = match.lastgroup or "name"
            yield match[group], Span(file.path, number, match.start(group) + 1, number, match.end(group) + 1)


@functools.cache
def reads() -> tuple[dict[str, Any], ...]:
    """The points of a program at which variables are read, with their names."""
    return tuple(table("environment")["read"])


def read_at(name: str) -> dict[str, Any] | None:
    """The point at which a variable is read, None when it is not known to be read once."""
    for entry in reads():
        if name in entry.get("names", ()) or ("prefix" in entry and name.startswith(entry["prefix"])):
            return entry if name not in entry.get("anew", ()) else None
    return None


@functools.cache
def _known() -> frozenset[str]:
    section = table("environment")
    names = {
        *table("environment_names")["names"],
        *section["renamed"],
        *section["renamed_lately"],
        *section["renamed"].values(),
    }
    for entry in section["read"]:
        names |= set(entry.get("names", ()))
    return frozenset(names | set(section["unread"]))


def misspelt(name: str) -> str:
    """The known variable that `name` is a slip of the pen away from; '' when it is known itself or like none."""
    if name in _known():
        return ""
    if not name.startswith(tuple(table("environment_names")["prefixes"])):
        return _misspelt_first_word(name)
    letters, size = _letters(name), len(name)
    # What has too few letters in common is no close match, which is soon seen; to compare the others takes long.
    alike = [
        known
        for known, of_known in _known_letters()
        if 2 * (letters & of_known).bit_count() >= _CLOSE * (size + len(known))
    ]
    close = difflib.get_close_matches(name, alike, n=1, cutoff=_CLOSE)
    return close[0] if close and _differ_in_letters(name, close[0]) else ""


@functools.cache
def _known_letters() -> tuple[tuple[str, int], ...]:
    return tuple((name, _letters(name)) for name in _known())


def _letters(name: str) -> int:
    """The letters of a name as bits, one for the first time that a letter is there, one for the second, ..: two names
    have no more in common than both have set."""
    found, seen = 0, dict[int, int]()
    for letter in name:
        place = ord(letter) % 64
        found |= 1 << (place + 64 * seen.get(place, 0))
        seen[place] = seen.get(place, 0) + 1
    return found


def _misspelt_first_word(name: str) -> str:
    """``PYTOCH_ENABLE_MPS_FALLBACK``: everything but the first word is a known variable's, and that one is near."""
    first, _, rest = name.partition("_")
    if not rest or len(first) < _LONG:
        return ""
    rights = (prefix + rest for prefix in table("environment_names")["prefixes"] if "_" not in prefix[:-1])
    near = (right for right in rights if right in _known())
    return next(
        (right for right in near if difflib.get_close_matches(first, right.partition("_")[:1], 1, _CLOSE_WORD)), ""
    )


def _differ_in_letters(one: str, other: str) -> bool:
    """Names that differ in a number (``NCCL_IB_HCA2``) or in a whole word are names of their own."""
    if re.sub(r"\d", "", one) == re.sub(r"\d", "", other):
        return False
    return len(one.split("_")) == len(other.split("_")) or one.replace("_", "") == other.replace("_", "")

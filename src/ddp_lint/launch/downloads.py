"""Which calls fetch a file or data set under its last name, or unpack an archive: who looks meanwhile finds a part."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.launch.file_access import mode_of
from ddp_lint.launch.locks import is_in_turn
from ddp_lint.launch.own_paths import values_of
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

#: Calls that run a command, given as a text or a list.
_SHELLS = frozenset(
    {"os.system", *(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen"))}
)
#: What puts a file that is complete in its place.
_PLACES = frozenset({"os.replace", "os.rename", "shutil.move"})
#: What separates the words of a command that is written as a list.
_BETWEEN = re.compile(r"[\"',\[\]\s]+")


def words() -> tuple[str, ...]:
    """A word of each of such calls, or of what they are made on, for the triggers of rules."""
    known = (*_known()["functions"], *_known()["unpacking"], *_known()["requests"])
    modules = {name.partition(".")[0] if name.startswith("requests.") else name.rpartition(".")[2] for name in known}
    return ("download", "extractall", "subprocess", "system", *sorted(modules))


@dataclasses.dataclass(frozen=True)
class Download:
    """A call that fetches or unpacks files, and what says where to: a path, or the command that holds it."""

    call: cst.Call
    path: cst.BaseExpression
    #: The class of data sets that does it, by ``download=True``.
    data_set: str = ""
    #: Whether the files come from an archive that is there.
    unpacks: bool = False


def download_of(module: Module, call: cst.Call) -> Download | None:
    """The download that a call is, unless the ranks of its function take turns."""
    name = module.qualified(call.func)
    found = _by_name(module, call, name) if name else None
    if found is None and called(call) == "extractall" and _is_of_archive(module, call):
        found = _into(call, argument(call, 0, "path"), unpacks=True)
    if found is None and called(call) == "open" and is_fetched(module, call):
        found = _into(call, argument(call, 0, "file"))
    return None if found is None or is_in_turn(module, call, found.data_set) else found


def comes_with(module: Module, one: Download, other: Download) -> bool:
    """Whether a rank that comes to one download behind another has it from there: another part of the same data set,
    fetched under no more tests."""
    if not one.data_set or one.data_set != other.data_set:
        return False
    if one.data_set.rpartition(".")[2] not in _known()["one_archive"] or _part(module, one) == _part(module, other):
        return False
    tests, others = ({(module.code(t), taken) for t, taken in conditions(module, d.call)} for d in (one, other))
    return others <= tests


def _part(module: Module, download: Download) -> str:
    given = (
        argument(download.call, place, name) for place, name in ((1, "train"), (None, "split"), (None, "image_set"))
    )
    return " ".join(module.code(each) for each in given if each is not None)


def _by_name(module: Module, call: cst.Call, name: str) -> Download | None:
    known = _known()
    for key in ("functions", "unpacking"):
        if name in known[key]:
            return _into(call, argument(call, *known[key][name]), unpacks=key == "unpacking")
    if name.startswith(tuple(f"{each}." for each in known["data_sets"])):
        asked = argument(call, None, "download")
        wanted = asked is not None and dotted(asked) == "True"
        return _into(call, argument(call, 0, "root"), data_set=name) if wanted else None
    command = argument(call, 0, "args") if name in _SHELLS else None
    texts = (_BETWEEN.sub(" ", module.code(each)) for each in (values_of(module, command) if command else ()))
    return _into(call, command) if any(map(re.compile(known["commands"]).search, texts)) else None


def _into(
    call: cst.Call, path: cst.BaseExpression | None, *, data_set: str = "", unpacks: bool = False
) -> Download | None:
    return Download(call, path, data_set, unpacks) if path is not None else None


def _is_of_archive(module: Module, call: cst.Call) -> bool:
    """Whether the object whose method is called is an archive that is read: ``with tarfile.open(path) as archive``."""
    held = call.func.value if isinstance(call.func, cst.Attribute) else None
    bound = (b.value for b in module.bindings(held)) if isinstance(held, cst.Name) else ()
    return any(isinstance(v, cst.Call) and module.qualified(v.func) in _known()["archives"] for v in (held, *bound))


def is_fetched(module: Module, call: cst.Call) -> bool:
    """Whether what a call opens is written with the answer to a request, under its last name already."""
    function = module.function_of(call)
    if function is None or "b" not in mode_of(call, 1, "mode") or "w" not in mode_of(call, 1, "mode"):
        return False
    requests = _known()["requests"]
    if not any(module.file.holds(name.rpartition(".")[2]) for name in requests):
        return False
    made = {module.qualified(each.func) for each in calls_in(function.body)}
    return not made.isdisjoint(requests) and made.isdisjoint(_PLACES)


@functools.cache
def _known() -> dict[str, Any]:
    return dict(table("launch")["downloading"])

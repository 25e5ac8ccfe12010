"""Which calls fetch a file or data set under its last name, or unpack an archive: who looks meanwhile finds a part."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.launch.file_access import mode_of
from ddp_lint.launch.locks import Turns
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
    return ("download", "extractall", "subprocess", "system", *sorted(set(map(_word, known))))


@dataclasses.dataclass(frozen=True)
class Download:
    """A call that fetches or unpacks files, and what says where to: a path, or the command that holds it."""

    call: cst.Call
    path: cst.BaseExpression
    #: The class of data sets that does it, by ``download=True``.
    data_set: str = ""
    #: Whether the files come from an archive that is there.
    unpacks: bool = False


class Downloads:
    """The calls of a module that are downloads."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._turns = Turns(module)
        self._requesting: dict[cst.FunctionDef, bool] = {}

    def of(self, call: cst.Call) -> Download | None:
        """The download that a call is, unless the ranks of its function take turns."""
        found = self.whoever_runs(call)
        return None if found is None or self._turns.has(call, found.data_set) else found

    def whoever_runs(self, call: cst.Call) -> Download | None:
        """The download that a call is, also where one rank makes it before the others."""
        name = self.module.qualified(call.func)
        found = self._by_name(call, name) if name else None
        if found is None and called(call) == "extractall" and self._is_of_archive(call):
            found = _into(call, argument(call, 0, "path"), unpacks=True)
        if found is None and called(call) == "open" and self.is_fetched(call):
            found = _into(call, argument(call, 0, "file"))
        return found

    def is_fetched(self, call: cst.Call) -> bool:
        """Whether what a call opens is written with the answer to a request, under its last name already."""
        function, mode = self.module.function_of(call), mode_of(call, 1, "mode")
        if function is None or not {"w", "b"} <= set(mode):
            return False
        if not any(self.module.file.holds(_word(name)) for name in _known()["requests"]):
            return False
        if function not in self._requesting:
            made = {self.module.qualified(each.func) for each in calls_in(function.body)}
            self._requesting[function] = not made.isdisjoint(_known()["requests"]) and made.isdisjoint(_PLACES)
        return self._requesting[function]

    def _by_name(self, call: cst.Call, name: str) -> Download | None:
        known = _known()
        for key in ("functions", "unpacking"):
            if name in known[key]:
                return _into(call, argument(call, *known[key][name]), unpacks=key == "unpacking")
        if name.startswith(tuple(f"{each}." for each in known["data_sets"])):
            asked = argument(call, None, "download")
            wanted = asked is not None and dotted(asked) == "True"
            return _into(call, argument(call, 0, "root"), data_set=name) if wanted else None
        command = argument(call, 0, "args") if name in _SHELLS else None
        given = values_of(self.module, command) if command is not None else ()
        texts = (_BETWEEN.sub(" ", self.module.code(each)) for each in given)
        return _into(call, command) if any(map(re.compile(known["commands"]).search, texts)) else None

    def _is_of_archive(self, call: cst.Call) -> bool:
        """Whether the object whose method is called is an archive: ``with tarfile.open(path) as archive``."""
        held = call.func.value if isinstance(call.func, cst.Attribute) else None
        bound = (b.value for b in self.module.bindings(held)) if isinstance(held, cst.Name) else ()
        made = (each.func for each in (held, *bound) if isinstance(each, cst.Call))
        return any(self.module.qualified(each) in _known()["archives"] for each in made)


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


def _into(
    call: cst.Call, path: cst.BaseExpression | None, *, data_set: str = "", unpacks: bool = False
) -> Download | None:
    return Download(call, path, data_set, unpacks) if path is not None else None


def _word(name: str) -> str:
    """The part of a name that the files which call it hold, however they import it."""
    return "requests" if name.startswith("requests.") else name.rpartition(".")[2]


@functools.cache
def _known() -> dict[str, Any]:
    return dict(table("launch")["downloading"])

"""Which path a call writes, makes or removes, where that harms another rank that does the same at the same time."""

from __future__ import annotations

import bisect
import enum
import functools
from typing import Any

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.launch.downloads import Downloads
from ddp_lint.launch.file_access import LOOKS, mode_of
from ddp_lint.launch.locks import Turns, is_locked
from ddp_lint.launch.one_rank import on_one_rank
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions, raises
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import called
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument

#: Calls behind a file that is emptied which are looked at.
_LOOKED_AT = 200
#: What no rank leaves before all have come.
_MEETING = frozenset(
    {
        *(f"torch.distributed.{name}" for name in ("barrier", "all_reduce", "all_gather", "all_gather_object")),
        "torch.nn.parallel.DistributedDataParallel",
    }
)
#: Functions that make a folder; the method of that name makes the one that it is called on.
FOLDER_MAKERS = frozenset({"os.makedirs", "os.mkdir"})
#: Calls that remove a path: its position and name, and what makes them tolerate a missing one.
_REMOVE = {
    "shutil.rmtree": ("path", "ignore_errors"),
    "shutil.move": ("src", ""),
    "os.remove": ("path", ""),
    "os.unlink": ("path", ""),
    "os.rmdir": ("path", ""),
    "os.rename": ("src", ""),
}
#: Methods of a `pathlib.Path` that fail when it exists already or does not exist any more, and what allows that.
_PATH_METHODS = {"mkdir": "exist_ok", "unlink": "missing_ok", "rmdir": ""}
_PATHS = frozenset({"pathlib.Path", "pathlib.PosixPath"})
#: The last words of such calls, for the triggers of rules.
WRITING = ("save", "save_pretrained", "dump", "basicConfig", "FileHandler", "open")
MAKING = ("makedirs", "mkdir")
REMOVING = tuple(name.rpartition(".")[2] for name in _REMOVE)


class Outcome(enum.Enum):
    """What a call does to a path."""

    WRITTEN = "writes"
    MADE = "makes"
    REMOVED = "removes"


class WrittenPaths:
    """The paths that the calls of a module write, make or remove."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._downloads, self._turns = Downloads(module), Turns(module)
        self._steps: dict[cst.CSTNode, list[cst.Call]] = {}

    def outcome(self, call: cst.Call) -> Outcome:
        """What a call that has a path does to it."""
        name = self.module.qualified(call.func)
        method = called(call) if not name else ""
        if name in FOLDER_MAKERS or method == "mkdir":
            return Outcome.MADE
        return Outcome.REMOVED if name in _REMOVE or method in _PATH_METHODS else Outcome.WRITTEN

    def of(self, call: cst.Call) -> cst.BaseExpression | None:
        """The path that a call writes, makes and fails on when it exists, or removes and fails on when it does not."""
        name = self.module.qualified(call.func)
        if name in _REMOVE:
            keyword, bears = _REMOVE[name]
            tolerant = bool(bears) and argument(call, 1, bears) is not None
            return None if tolerant or self._asked_before(call) else argument(call, 0, keyword)
        if name in FOLDER_MAKERS:
            allowed = argument(call, 2, "exist_ok")
            return None if allowed is not None or self._asked_before(call) else argument(call, 0, "name")
        path = self._written(call, name)
        if path is not None:
            return None if is_locked(self.module, call) else path
        return self._path_of(call) if not name else None

    def _written(self, call: cst.Call, name: str) -> cst.BaseExpression | None:
        """The path of the file that a call writes."""
        if name in _writers():
            writer = _writers()[name]
            writes = "modes" not in writer or self._opens_to_write(call, *writer["modes"])
            return argument(call, *writer["path"]) if writes else None
        if isinstance(call.func, cst.Name) and call.func.value == "open":
            writes = self._opens_to_write(call, 1, "mode") and not self._downloads.is_fetched(call)
            return argument(call, 0, "file") if writes else None
        if called(call) in _writing_methods() and isinstance(call.func, cst.Attribute):
            return self._written_by_method(call, call.func.value)
        return None

    def _opens_to_write(self, call: cst.Call, *place: int | str) -> bool:
        how = mode_of(call, *place)
        return "x" in how or ("w" in how and not self._only_empties(call))

    def _written_by_method(self, call: cst.Call, receiver: cst.BaseExpression) -> cst.BaseExpression | None:
        """The path of a call of a method that writes a file, of an object that has it by its name or what made it."""
        for method in _writing_methods()[called(call)]:
            if "unless" in method and argument(call, None, method["unless"]) is not None:
                continue
            if dotted(receiver).lower().endswith(tuple(method.get("of", ()))) or self._is_made(receiver, method):
                return argument(call, *method["path"])
        return None

    def _is_made(self, receiver: cst.BaseExpression, method: dict[str, Any]) -> bool:
        made = (v for v in self.module.assignments(receiver) if isinstance(v, cst.Call)) if "made" in method else ()
        return any(self.module.qualified(value.func) in method["made"] for value in made)

    def _only_empties(self, call: cst.Call) -> bool:
        """``with open(path, "w"): pass``: what each rank leaves is the empty file that the others leave, too, unless
        one of them goes on to write before the ranks have met."""
        block = self.module.parent(self.module.parent(call) or call)
        if not isinstance(block, cst.With) or not all(map(_does_nothing, block.body.body)):
            return False
        path, line = argument(call, 0, "file"), self.module.span(block).line
        known = self._meeting_or_opening(self.module.scope_of(call))
        start = bisect.bisect_right(known, line, key=lambda each: self.module.span(each).line)
        for other in known[start : start + _LOOKED_AT]:
            if called(other) != "open":
                if not on_one_rank(self.module, other):
                    return True
            elif path is not None and any(arg.value.deep_equals(path) for arg in other.args):
                return False
        return len(known) - start <= _LOOKED_AT

    def _meeting_or_opening(self, scope: cst.FunctionDef | cst.Module) -> list[cst.Call]:
        """The calls of a function, in order, at which its ranks meet or open a file."""
        if scope not in self._steps:
            self._steps[scope] = [
                call
                for call in calls_in(scope.body if isinstance(scope, cst.FunctionDef) else scope)
                if called(call) in ("open", "backward") or self.module.qualified(call.func) in _MEETING
            ]
        return self._steps[scope]

    def _path_of(self, call: cst.Call) -> cst.BaseExpression | None:
        """The path whose method a call is, where the method fails if another rank was faster: ``path.mkdir()``."""
        if not isinstance(call.func, cst.Attribute) or any(arg.keyword is None for arg in call.args):
            return None
        method, path = call.func.attr.value, call.func.value
        allowing = _PATH_METHODS.get(method)
        if allowing is None or self._asked_before(call) or not self._is_path(path):
            return None
        allowed = argument(call, None, allowing) if allowing else None
        return path if allowed is None or dotted(allowed) == "False" else None

    def _is_path(self, node: cst.BaseExpression, depth: int = 3) -> bool:
        """Whether a value is a `pathlib.Path`: made from one, ``folder / "name"`` or annotated."""
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, cst.Divide)
        if depth <= 0:
            return False
        if isinstance(node, cst.Call):
            made = self.module.qualified(node.func) in _PATHS
            return made or (isinstance(node.func, cst.Attribute) and self._is_path(node.func.value, depth - 1))
        if isinstance(node, cst.Attribute) and node.attr.value in ("parent", "absolute"):
            return self._is_path(node.value, depth - 1)
        bound = self.module.bindings(node) if isinstance(node, (cst.Name, cst.Attribute)) else ()
        return any(b.kind == "assign" and b.value is not None and self._is_path(b.value, depth - 1) for b in bound)

    def _asked_before(self, call: cst.Call) -> bool:
        """In a `try` that takes FileExistsError, FileNotFoundError or OSError, under `contextlib.suppress`, or behind a
        question for the path that ranks ask in turn."""
        around = list(self.module.ancestors(call))
        held = (item.item for up in around if isinstance(up, cst.With) for item in up.items)
        suppressed = any(isinstance(each, cst.Call) and called(each) == "suppress" for each in held)
        if suppressed or any(isinstance(up, cst.Try) and _takes(up) for up in around):
            return True
        asked = any(LOOKS.search(self.module.code(test)) for test, _ in conditions(self.module, call))
        return asked and self._turns.has(call)


@functools.cache
def _writers() -> dict[str, dict[str, Any]]:
    """The functions that write a file, by their names."""
    return {name: entry for entry in table("launch")["writing"]["functions"] for name in entry["names"]}


@functools.cache
def _writing_methods() -> dict[str, list[dict[str, Any]]]:
    """The methods that write a file, by their names."""
    methods: dict[str, list[dict[str, Any]]] = {}
    for entry in table("launch")["writing"]["methods"]:
        methods.setdefault(entry["name"], []).append(entry)
    return methods


def _does_nothing(statement: cst.CSTNode) -> bool:
    """``pass``, ``...`` or a text, alone on its line."""
    parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
    return all(
        isinstance(part, cst.Pass)
        or (isinstance(part, cst.Expr) and isinstance(part.value, (cst.Ellipsis, cst.SimpleString)))
        for part in parts
    )


def _takes(block: cst.Try) -> bool:
    """Whether a `try` goes on after an exception that it takes: a handler does not raise again at its end."""
    bodies = [handler.body for handler in block.handlers if handler.body.body]
    return not bodies or not all(map(raises, bodies))

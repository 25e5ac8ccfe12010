from __future__ import annotations

import ast
import collections
import dataclasses
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.frameworks import wrappers
from ddp_lint.launch.callers import CallSite, call_sites, comes_first
from ddp_lint.project import Project
from ddp_lint.project.handed_on import given_wrapped
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.rules.wrapping.plain_loads import PlainLoad, path_of, plain_loads
from ddp_lint.rules.wrapping.wrapped_classes import ddp_calls, kinds_of
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import opposed
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import function_at, walk
from ddp_lint.tensors.classes import is_module_class
from ddp_lint.view.as_ast import as_ast
from ddp_lint.view.wraps import Wrap, argument, assigned_name

_DEPTH = 5  # steps from a value to the call that makes it
#: Code that takes the prefix off, or puts it on.
_HANDLED = re.compile(r"""["']module\.|consume_prefix|remove_prefix|removeprefix|strip_prefix|startswith\(["']module""")
#: What a program calls the file that a run of its own has left, and what it calls one that comes from elsewhere.
_RESUMED = re.compile(r"resum|ckpt|checkpoint|snapshot|restart|restore|continu", re.IGNORECASE)
_FOREIGN = re.compile(r"pre_?train|http|url|init|teacher|backbone|fine_?tun|weight|hub", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class _State:
    """A call of `state_dict` or `load_state_dict`.

    `wrap`: what wraps the model, None for a model that nothing wraps. `inside`: the call is one of the inner module of
    it, or of the module before the wrap. `key`: under which key of a checkpoint, '' for all of it. `path`: of the
    file, as code, '' where nothing shows it.
    """

    call: cst.Call
    wrap: Wrap | None
    inside: bool
    key: str
    path: str
    saving: cst.Call | None = None


def _entry(state: _State, inside: bool) -> tuple[bool, str, str]:
    """What finds the states of one side: under the key of a state, or where it is all of a checkpoint at its path."""
    return inside, state.key, "" if state.key else state.path


class KeysOfAnotherWrap(Rule):
    """A checkpoint is saved from the DDP wrapper and loaded into the inner model, or the other way round.

    ## What it does

    Finds, in one file (whose helpers may get the models from others), `torch.save(model.state_dict(), path)` after
    `model = DDP(model)` together with `model.load_state_dict(torch.load(path))` before the wrap (or on
    `model.module`), and the reverse: saved from `model.module`, loaded into the wrapper. Also if the state is one
    entry of a checkpoint, `checkpoint["model"]`, and another entry matches what was saved, or the name of the path says
    that a run of the program has left it (`args.resume`, `options["ckpt"]`). Finds as well what another program of the
    project, which wraps nothing, loads into a plain model of the same class: from the same path (also by the defaults
    of options), or with `strict=False` under a key that the project saves one state dict under.

    ## Why it breaks

    DDP keeps the model as its attribute `module`, so each key of its state begins with `module.`. Training and saving
    work; when the run is resumed, `load_state_dict` raises `Missing key(s) in state_dict` on rank 0 and rank 1. With
    `strict=False` nothing is loaded and nothing raises: training starts from the beginning. Measured on 2 x H200:
    DDP's state into the plain model raises; FSDP1 names its parameters without a prefix.

    ## Example

    ```python
    import os
    import tempfile

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    path = os.path.join(tempfile.gettempdir(), f"ddp_lint_resumed_{os.environ['MASTER_PORT']}.pt")


    def train(resume):
        model = torch.nn.Linear(4, 4)
        epoch = 0
        if resume:
            checkpoint = torch.load(path, map_location="cpu")
            model.load_state_dict(checkpoint["model"])  # <- DDP625
            epoch = checkpoint["epoch"]
        model = DDP(model)
        model(torch.randn(8, 4)).square().mean().backward()
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "epoch": epoch + 1}, path)
        dist.barrier()


    train(resume=False)
    train(resume=True)
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os
    import tempfile

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    path = os.path.join(tempfile.gettempdir(), f"ddp_lint_resumed_{os.environ['MASTER_PORT']}.pt")


    def train(resume):
        model = torch.nn.Linear(4, 4)
        epoch = 0
        if resume:
            checkpoint = torch.load(path, map_location="cpu")
            model.load_state_dict(checkpoint["model"])
            epoch = checkpoint["epoch"]
        model = DDP(model)
        model(torch.randn(8, 4)).square().mean().backward()
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "epoch": epoch + 1}, path)
        dist.barrier()


    train(resume=False)
    train(resume=True)
    dist.destroy_process_group()
    ```

    ## When it is silent

    Both sides wrapped, or both not; programs that load and wrap or unwrap something; files that mention the prefix
    `module.` or remove it; a checkpoint that is not known to be saved by this file; saving and loading in branches that
    exclude each other; FSDP.

    ## How to confirm

    `ddp-lint verify train.py`, if the run loads what it has saved: the RuntimeError on every rank.

    ## Fix safety

    No automatic fix: the keys of existing checkpoints cannot be changed.

    ## References

    - https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "load_state_dict",
        "state_dict",
        "DistributedDataParallel",
        file=("torch", "DistributedDataParallel"),
        tests=False,
    )
    oracles = ("exception",)

    def start(self) -> None:
        self._calls: list[cst.Call] = []

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("state_dict", "load_state_dict"):
            self._calls.append(node)

    def finish(self) -> None:
        if self.module.file.shows(_HANDLED):
            return
        saved: dict[tuple[bool, str, str], list[_State]] = collections.defaultdict(list)
        for state in (s for call in self._calls for s in self._saved(call)):
            saved[_entry(state, state.inside)].append(state)
        for call in self._calls if saved else ():
            for loaded in self._loaded(call):
                others = saved.get(_entry(loaded, not loaded.inside), ())
                save = next((s for s in others if self._is_same(s, loaded)), None)
                if save is not None:
                    self._report(save, loaded)
        for (inside, _, _), states in saved.items():
            for state in states if not inside else ():
                self._report_elsewhere(state)

    def _report_elsewhere(self, save: _State) -> None:
        """Report what another program loads into the plain model."""
        project, facts, wrap = self.module.project, self.module.facts, save.wrap
        if project is None or facts is None or wrap is None or wrap.handed is not None:
            return
        line = self.module.span(wrap.call).line
        calls = (call for each, call in ddp_calls(project) if each.name == facts.name and call.lineno == line)
        kinds = {kind for call in calls for kind in kinds_of(project, facts, call, call.args[0])}
        path = self._text_of_path(save)
        loads = [load for load in plain_loads(project) if load.kind in kinds and load.key == save.key]
        load = next((each for each in loads if each.facts is not facts and self._is_of(save, path, each)), None)
        if load is None:
            return
        outcome = "nothing is loaded, without an error" if load.lenient else "that raises"
        where = load.facts.source.inside.rpartition("/")[2]
        self.report(
            save.call,
            f"these keys begin with `module.`; `{where}` loads them into the plain model: {outcome}",
            labels=[(load.facts.file.span_of(load.call), "loaded here"), (wrap.place, "the wrapper")],
            help="save model.module.state_dict()",
        )

    def _is_of(self, save: _State, path: str, load: PlainLoad) -> bool:
        """Whether a checkpoint that another program loads is the one that is saved: by its path, or, where keys that do
        not match go unnoticed, as the one thing that the project saves under its key."""
        if path and path == load.path:
            return True
        assert self.module.project is not None
        own = load.lenient and bool(save.key) and not (path and load.path) and _FOREIGN.search(load.path) is None
        return own and _saved_under(self.module.project, save.key) == 1

    def _text_of_path(self, save: _State) -> str:
        call = save.saving
        saving = as_ast(self.module, call) if call is not None else None
        project, facts = self.module.project, self.module.facts
        if project is None or facts is None or not isinstance(saving, ast.Call) or len(saving.args) < 2:
            return ""
        return path_of(project, facts, function_at(facts.tree, saving.lineno), saving.args[1])

    def _report(self, save: _State, loaded: _State) -> None:
        strict = argument(loaded.call, 1, "strict")
        lenient = strict is not None and self.module.code(strict) == "False"
        outcome = "nothing is loaded, without an error" if lenient else "it raises on every rank"
        keys = "begin with `module.`, those of the model do not" if loaded.inside else "lack the prefix `module.`"
        wrap = loaded.wrap or save.wrap
        self.report(
            loaded.call,
            f"the keys of this checkpoint {keys}: {outcome}",
            labels=[
                (save.call, f"saved from {'the inner module' if save.inside else 'the DDP wrapper'}"),
                *([(wrap.place, "the wrapper")] if wrap is not None else ()),
            ],
            help="save model.module.state_dict(), and load it into the model before the wrap or into model.module",
        )

    def _is_same(self, save: _State, loaded: _State) -> bool:
        """Whether what is loaded under a key is what was saved under it, by a name for the other side of the same
        wrap."""
        if save.wrap is None:
            return False
        if opposed(self.module, save.call, save.wrap.call) or opposed(self.module, save.call, loaded.call):
            return False
        if not loaded.inside and comes_first(self.module, loaded.call, save.wrap.call):
            return False  # it is loaded into the model before the wrap
        if save.path and save.path == loaded.path:
            return loaded.wrap is None or loaded.wrap.call is save.wrap.call
        if loaded.wrap is not save.wrap or not save.key:
            return False
        own = _RESUMED.search(loaded.path) is not None and _FOREIGN.search(loaded.path) is None
        return own or bool(self._other_keys(save) & self._keys_read(loaded))

    # ---- the two sides

    def _saved(self, call: cst.Call) -> Iterator[_State]:
        side = self._side(call, "state_dict")
        if side is None:
            return
        up = self.module.parent(call)
        if isinstance(up, cst.Arg) and self._is_save(self.module.parent(up)):
            yield self._saved_by(call, side, "", self.module.parent(up))
        elif isinstance(up, cst.DictElement) and isinstance(up.key, cst.SimpleString):
            entries = self.module.parent(up)
            yield self._saved_by(call, side, str(up.key.evaluated_value), self._saving(entries))

    def _saved_by(self, call: cst.Call, side: tuple[Wrap | None, bool], key: str, saving: cst.CSTNode | None) -> _State:
        return _State(call, *side, key, self._path(saving, 1), saving if isinstance(saving, cst.Call) else None)

    def _loaded(self, call: cst.Call) -> Iterator[_State]:
        side = self._side(call, "load_state_dict")
        given = argument(call, 0, "state_dict") if side is not None else None
        if side is None or given is None:
            return
        key = ""
        if isinstance(given, cst.Subscript) and len(given.slice) == 1 and isinstance(given.slice[0].slice, cst.Index):
            index = given.slice[0].slice.value
            key = str(index.evaluated_value) if isinstance(index, cst.SimpleString) else ""
            given = given.value if key else given
        made = given if isinstance(given, cst.Call) else next(reversed(self.module.assignments(given)), None)
        if isinstance(made, cst.Call) and self.module.qualified(made.func) == "torch.load":
            yield _State(call, *side, key, self._path(made, 0))

    def _side(self, call: cst.Call, method: str) -> tuple[Wrap | None, bool] | None:
        """The DDP wrap that a call of a model's method belongs to, and whether it is one of the inner module; None
        where nothing shows it."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != method:
            return None
        head, dot, rest = dotted(call.func.value).partition(".")
        given = self._given(head, call)
        if given and self.module.assignments(head, call):
            return None  # the helper may take the model out of its wrapper: ``model = model.module``
        if given:  # a helper: what all who call it give it
            sides = [self._side_of(f"{dotted(value)}{dot}{rest}", value) for value in given]
            return sides[0] if all(side == sides[0] for side in sides) else None
        return self._side_of(dotted(call.func.value), call.func.value) or self._plain_elsewhere(call.func.value)

    def _plain_elsewhere(self, model: cst.BaseExpression) -> tuple[None, bool] | None:
        """The same for a parameter that all who call the function, in other files, give a module that nothing wraps."""
        function, project, name = self.module.function_of(model), self.module.project, dotted(model)
        if function is None or project is None or self.module.assignments(model):
            return None
        sites = [(site, site.given(function, name)) for site in call_sites(self.module, function)]
        handed = (self.module.name_of(function), name) in given_wrapped(project)
        return (None, True) if sites and not handed and all(_is_module(project, *each) for each in sites) else None

    def _given(self, name: str, at: cst.CSTNode) -> list[cst.BaseExpression]:
        """What the calls in this file give a function for the parameter `name`; empty where it is none, or one of them
        does not show it."""
        function = self.module.function_of(at)
        if function is None or not name or self.module.class_of(function) is not None:
            return []
        places = [p.name.value for p in function.params.params]
        if name not in places:
            return []
        calls = (n for n in self.module.calls_named(function.name.value) if isinstance(n.func, cst.Name))
        values = [argument(call, places.index(name), name) for call in calls]
        return [v for v in values if v is not None] if None not in values else []

    def _side_of(self, name: str, call: cst.BaseExpression) -> tuple[Wrap | None, bool] | None:
        """The same for the model with a name at a place."""
        wraps = self.module.wraps
        head, _, last = name.rpartition(".")
        wrap = wraps.of(head, call) if last == "module" else None
        if wrap is not None:
            return (wrap, True) if _counts(wrap) else None
        wrap = wraps.of(name, call)
        if wrap is not None:
            return (wrap, False) if _counts(wrap) else None
        wrap = wraps.twin(name, call) or next((w for w in wraps.all if w.inner == name and wraps.before(call, w)), None)
        here = self.module.function_of(call)
        near = [w for w in wraps.all if name.startswith("self.") or self.module.function_of(w.call) is here]
        if wrap is None and name and all(name not in (w.inner, w.outer) for w in near):
            made = self.module.constructed_by(call)
            return (None, True) if is_module_class(self.module.project, made) else None
        return (wrap, True) if name and wrap is not None and _counts(wrap) else None

    # ---- the file between them

    def _is_save(self, node: cst.CSTNode | None) -> bool:
        return isinstance(node, cst.Call) and self.module.qualified(node.func) == "torch.save"

    def _saving(self, entries: cst.CSTNode | None) -> cst.CSTNode | None:
        """The call of `torch.save` that gets a dictionary, directly or by its name."""
        up = self.module.parent(entries) if entries is not None else None
        if isinstance(up, cst.Arg):
            return self.module.parent(up)
        name = assigned_name(self.module, entries) if entries is not None else ""
        scope = self.module.function_of(entries) if entries is not None else None
        return next(
            (
                call
                for call in calls_in(scope or self.module.tree)
                if name and self._is_save(call) and call.args and dotted(call.args[0].value) == name
            ),
            None,
        )

    def _path(self, call: cst.CSTNode | None, position: int) -> str:
        path = argument(call, position, "f") if isinstance(call, cst.Call) else None
        given = {self.module.code(value) for value in self._given(dotted(path), path)} if path is not None else set()
        if not given and path is not None:
            given = self._given_elsewhere(path)
        return given.pop() if len(given) == 1 else self.module.code(path) if path is not None else ""

    def _given_elsewhere(self, path: cst.BaseExpression) -> set[str]:
        """What the calls of a function in other files give a parameter."""
        function = self.module.function_of(path)
        sites = call_sites(self.module, function) if function is not None and isinstance(path, cst.Name) else ()
        given = [
            site.given(function, path.value) for site in sites if function is not None and isinstance(path, cst.Name)
        ]
        return {ast.unparse(value) for value in given if value is not None}

    def _other_keys(self, save: _State) -> set[str]:
        entries = self.module.parent(self.module.parent(save.call) or save.call)
        elements = entries.elements if isinstance(entries, cst.Dict) else ()
        keys = (e.key for e in elements if isinstance(e, cst.DictElement))
        return {str(k.evaluated_value) for k in keys if isinstance(k, cst.SimpleString)} - {save.key}

    def _keys_read(self, loaded: _State) -> set[str]:
        """The keys that the function reads of the checkpoint besides."""
        given = argument(loaded.call, 0, "state_dict")
        name = dotted(given.value) if isinstance(given, cst.Subscript) else ""
        function = self.module.function_of(loaded.call)
        text = self.module.code(function.body) if function is not None else self.module.file.code
        read = re.findall(rf"""\b{re.escape(name)}(?:\.get\(|\[)["'](\w+)["']""", text) if name else []
        return set(read) - {loaded.key}


def _saved_under(project: Project, key: str) -> int:
    """How many dictionaries of the project have a state dict under a key."""

    def found() -> int:
        files = project.modules.but_tests(project.contents.holding("state_dict()"))
        return sum(_has(node, key) for facts in files for node in walk(facts.tree) if isinstance(node, ast.Dict))

    return project.remember(("saved under", key), found)


def _has(node: ast.Dict, key: str) -> bool:
    pairs = zip(node.keys, node.values, strict=True)
    return any(isinstance(k, ast.Constant) and k.value == key and "state_dict" in ast.unparse(v) for k, v in pairs)


def _is_module(project: Project, site: CallSite, value: ast.expr | None) -> bool:
    """Whether what a call gives is surely a module, not the wrapper of one."""
    kind = project.types.of(value, site.facts, site.around, None, _DEPTH) if value is not None else ""
    return bool(kind) and kind not in wrappers() and is_module_class(project, kind)


def _counts(wrap: Wrap) -> bool:
    return wrap.kind == "ddp" and not wrap.tested and wrap.given is not None

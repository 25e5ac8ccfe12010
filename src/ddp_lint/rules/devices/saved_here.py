"""What a file itself saves under the path that it loads: by the parts of the path, however they are put together."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.knowledge import table
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import assigned_to
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, walk

#: Names that stand for what they are assigned, one after the other.
_DEPTH = 3
#: Calls of one argument whose result is the same path.
_SAME_PATH = frozenset({"str", "os.fspath", "pathlib.Path"})
_TO_GPUS = frozenset({"cuda", "to"})
#: Words of what only speaks of a model: ``{"model_name": name}``.
_DESCRIBING = frozenset({"name", "names", "path", "type", "config", "cfg", "args", "id", "step", "epoch"})
#: What saves in ways that do not show what is in the file.
_OTHER_SAVES = ("save_pretrained(", "save_checkpoint(", "save_model(", "Trainer(", "save_state(")
#: How what is no text in a path begins.
_OPEN = "\0"


def is_save(facts: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call saves its first argument under the path of its second one: also ``accelerator.save(state, path)``,
    which leaves the writing to `torch.save`."""
    if len(call.args) < 2:
        return False
    if facts.qualified(call.func) == "torch.save":
        return True
    *owner, method = dotted_ast(call.func).split(".")
    return method == "save" and bool(owner) and (owner[-1] == "xm" or "accelerator" in words_of(owner[-1]))


def saved_under(facts: ModuleFacts, load: ast.Call) -> list[tuple[ast.expr, FunctionNode]]:
    """What a file saves under the path of a load of it, each with the function around: in the same function, or
    anywhere in the file where no name in the path is one of a function alone."""
    around = function_at(facts.tree, load.lineno)
    if around is None or not load.args or (path := _path(load.args[0], around, facts)) is None:
        return []
    shared = _means_the_same_elsewhere(path, facts)
    owner = facts.method_at(load.lineno)
    found = []
    for save in (call for call in calls_below(facts.tree) if is_save(facts, call)):
        inside = function_at(facts.tree, save.lineno)
        if inside is None or (inside is not around and not shared):
            continue
        other = facts.method_at(save.lineno)
        if (other and other[0]) is (owner and owner[0]) and _path(save.args[1], inside, facts) == path:
            found.append((save.args[0], inside))
    return found


def _path(path: ast.expr, function: FunctionNode, facts: ModuleFacts) -> tuple[str, ...] | None:
    """The parts of a path: its texts, put together where they follow each other, and the code of what else is in it."""
    parts = [*_parts(path, function, facts, _DEPTH)]
    if None in parts:
        return None
    joined: list[str] = []
    for part in filter(None, parts):
        if joined and not part.startswith(_OPEN) and not joined[-1].startswith(_OPEN):
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(part.replace("//", "/") for part in joined)


def _parts(node: ast.expr, function: FunctionNode, facts: ModuleFacts, depth: int) -> Iterator[str | None]:
    """None for a name that is assigned several things."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _parts(value, function, facts, depth)
    elif isinstance(node, ast.FormattedValue) and node.format_spec is None:
        yield from _parts(node.value, function, facts, depth)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        yield from _parts(node.left, function, facts, depth)
        yield from ["/"] if isinstance(node.op, ast.Div) else []
        yield from _parts(node.right, function, facts, depth)
    elif isinstance(node, ast.Call) and facts.qualified(node.func) == "os.path.join":
        for place, arg in enumerate(node.args):
            yield from ["/"] if place else []
            yield from _parts(arg, function, facts, depth)
    elif isinstance(node, ast.Call) and len(node.args) == 1 and facts.qualified(node.func) in _SAME_PATH:
        yield from _parts(node.args[0], function, facts, depth)
    elif isinstance(node, ast.Name) and (given := assigned_to(node.id, function)):
        if len(given) > 1 or not depth:
            yield None
        else:
            yield from _parts(given[0], function, facts, depth - 1)
    else:
        yield _OPEN + ast.unparse(node)


def _means_the_same_elsewhere(path: tuple[str, ...], facts: ModuleFacts) -> bool:
    """Whether no name in a path is one of a function: ``self.folder``, ``CACHE``."""
    code = [part.removeprefix(_OPEN) for part in path if part.startswith(_OPEN)]
    names = {n.id for part in code for n in ast.walk(ast.parse(part, mode="eval")) if isinstance(n, ast.Name)}
    return all(name == "self" or name in facts.values for name in names)


def saves_what_fits(project: Project, facts: ModuleFacts, keys: frozenset[str]) -> bool:
    """Whether a run of a file may have saved what a load of it reads, by the parts that it has: by one of some keys, or
    whole where there are none. ``load_state_dict(torch.load(path))`` takes no ``[model.state_dict(), optimizer]``.
    Other files count where they surely save such a thing."""
    if any(project.contents.holding(word) for word in _OTHER_SAVES):
        return True
    here = [_fits(value, around, keys) for value, around in _saved(facts)]
    if not here or any(fit is not False for fit in here):
        return True
    others = (project.modules.facts_of(path) for path in project.contents.holding("torch.save("))
    return any(_fits(v, around, keys) for each in others if each is not None for v, around in _saved(each))


def _saved(facts: ModuleFacts) -> Iterator[tuple[ast.expr, ast.AST]]:
    for call in calls_below(facts.tree):
        if is_save(facts, call):
            yield call.args[0], function_at(facts.tree, call.lineno) or facts.tree


def _fits(value: ast.expr, around: ast.AST, keys: frozenset[str]) -> bool | None:
    """None where the parts of what is saved cannot be seen."""
    given = assigned_to(value.id, around) if isinstance(value, ast.Name) else [value]
    if len(given) != 1:
        return None
    whole = given[0]
    if isinstance(whole, (ast.List, ast.Tuple)):
        return False if whole.elts else None
    if isinstance(whole, ast.Dict):
        entries = [*_entries(whole), *(_put_in(value.id, around) if isinstance(value, ast.Name) else ())]
        saved = {key for key, _ in entries}
        return None if not saved or "" in saved else bool(saved & keys)
    if isinstance(whole, ast.Call) and last_part(whole.func) == "state_dict":
        return True if not keys else None
    return None


def hides_states(value: ast.expr, function: ast.AST) -> bool:
    """Whether what is saved may hold the state of a model by a name that does not show it, ``{"model": weights}``, or
    what the function has moved to a GPU."""
    wholes = [value, *(assigned_to(value.id, function) if isinstance(value, ast.Name) else ())]
    entries = [entry for whole in wholes for entry in _entries(whole)]
    if isinstance(value, ast.Name):
        entries += _put_in(value.id, function)
    states = frozenset(table("checkpoints")["states"]) - frozenset(table("checkpoints")["ambiguous"])
    for key, part in entries:
        if any(last_part(call.func) in _TO_GPUS for call in calls_below(part)):
            return True
        last = dotted_ast(part).rpartition(".")[2]
        if last == "state_dict":
            return True
        named = words_of(key) | words_of(last)
        if not isinstance(part, (ast.Constant, ast.Call)) and named & states and not named & _DESCRIBING:
            return True
    return False


def _entries(value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The parts of a dictionary or list, with the text of the key."""
    if isinstance(value, ast.Dict):
        for key, part in zip(value.keys, value.values, strict=True):
            yield (str(key.value) if isinstance(key, ast.Constant) else ""), part
    elif isinstance(value, (ast.List, ast.Tuple)):
        yield from (("", part) for part in value.elts)


def _put_in(name: str, function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What a function puts into a dictionary or list: ``saved["model"] = weights``, ``saved.append(weights)``."""
    for node in walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            if dotted_ast(target.value) == name:
                yield (str(target.slice.value) if isinstance(target.slice, ast.Constant) else ""), node.value
        elif isinstance(node, ast.Call) and dotted_ast(node.func) in {f"{name}.{m}" for m in ("append", "extend")}:
            yield from (("", arg.func if isinstance(arg, ast.Call) else arg) for arg in node.args)

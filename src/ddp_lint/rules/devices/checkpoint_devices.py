"""The devices of tensors in files of `torch.save`: what was saved from the CPU is loaded onto the CPU."""

from __future__ import annotations

import ast
import collections
import functools
import re
from collections.abc import Iterator, Mapping, Sequence

from ddp_lint.knowledge import table
from ddp_lint.knowledge.tensors import is_factory, words_of
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.parts import assigned_to, kept_by_node
from ddp_lint.rules.devices.saved_here import hides_states, is_save, saved_under
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, walk

#: A layer, and not what wraps a model: ``torch.nn.parallel.DistributedDataParallel``.
_LAYER = re.compile(r"torch\.nn\.[A-Z]\w*$")
#: What models are called, as attributes of an object.
_NETS = frozenset({"net", "module", "encoder", "decoder", "generator"})
#: Files that define a function of one name, and functions that return what another returns, that are looked at.
_FILES, _DEPTH = 8, 3


def saved_from_cpu(facts: ModuleFacts, scope: ast.AST, project: Project | None = None) -> bool:
    """Whether a module, or a function of it, saves, and all that it saves by `torch.save` comes from the CPU; with
    a `project`, also by a function of it that moves all that it returns there."""
    saved = [call.args[0] for call in _calls_with_arguments(scope) if facts.qualified(call.func) == "torch.save"]
    return bool(saved) and all(
        _is_on_cpu(value, facts) or (project is not None and _is_returned_from_cpu(project, value)) for value in saved
    )


def saves_samples(facts: ModuleFacts) -> bool:
    """Whether a module saves anything that is not surely a checkpoint, as what a dataset loads never is one: neither
    ``{"model": model.state_dict()}`` nor ``self._state_dict(epoch)``, whatever the name of the file ends in."""
    return any(
        facts.qualified(call.func) == "torch.save" and not _is_checkpoint(call.args[0], facts)
        for call in _calls_with_arguments(facts.tree)
    )


def _is_checkpoint(value: ast.expr, facts: ModuleFacts) -> bool:
    if isinstance(value, ast.Call) and "state" in words_of(last_part(value.func)):
        return True
    return holds_states(value, function_at(facts.tree, value.lineno) or facts.tree) is True


def _is_returned_from_cpu(project: Project, value: ast.expr, among: frozenset[str] = frozenset()) -> bool:
    """Whether a value is the result of a call, and every function of that name in the project returns what lies on the
    CPU: ``{key: value.cpu() for key, value in state.items()}``. `among`: the functions that this is asked of."""
    if not isinstance(value, ast.Call) or len(among) >= _DEPTH:
        return False
    name = last_part(value.func)
    if not name or name == "state_dict" or hasattr(dict, name):  # those of torch, too
        return False
    if name in among:
        return True
    paths = project.contents.holding(f"def {name}(")
    found = [facts for path in paths[:_FILES] if (facts := project.modules.facts_of(path)) is not None]
    returned = [
        (facts, given)
        for facts in found
        for node in walk(facts.tree)
        if isinstance(node, FunctionNode) and node.name == name
        for given in _returned(node)
    ]
    return (
        bool(returned)
        and len(paths) <= _FILES
        and all(
            _is_on_cpu(given, facts) or _is_returned_from_cpu(project, given, among | {name})
            for facts, given in returned
        )
    )


def _returned(function: ast.AST) -> list[ast.expr]:
    """What a function returns, ``None`` where it says nothing."""
    nothing = ast.Constant(None)
    return [n.value or nothing for n in walk(function) if isinstance(n, ast.Return)]


@kept_by_node(256)
def _calls_with_arguments(scope: ast.AST) -> tuple[ast.Call, ...]:
    return tuple(n for n in calls_below(scope) if n.args)


def saved_elsewhere(project: Project, file: str) -> bool:
    """Whether the project saves files of that name, and none of them with the state of a model or an optimizer."""
    states = []
    for path in project.contents.holding(file):
        facts = project.modules.facts_of(path)
        if facts is not None:
            saves = project.remember(("saves by place",), functools.partial(_saves, facts), facts.kept)
            states += [_is_stateless(call.args[0], function) for call, function in saves.get(file, ())]
    return bool(states) and all(states)


def saved_here_without_states(facts: ModuleFacts, load: ast.Call) -> bool:
    """Whether a file saves under the path of a load itself, and nothing there with the state of a model or an optimizer
    on a GPU: the data that a class has tokenised, or weights that it moves to the CPU."""
    saved = saved_under(facts, load)
    return bool(saved) and all(_is_stateless(v, around) or _is_on_cpu(v, facts) for v, around in saved)


def _is_stateless(value: ast.expr, function: ast.AST) -> bool:
    return holds_states(value, function) is False and not hides_states(value, function)


def _saves(facts: ModuleFacts) -> Mapping[object, Sequence[tuple[ast.Call, ast.AST]]]:
    """The calls that save in a file, each with the functions around it, by the constants in the place, or in what
    its name is assigned there."""
    found: dict[object, list[tuple[ast.Call, ast.AST]]] = collections.defaultdict(list)
    for function in (n for n in walk(facts.tree) if isinstance(n, FunctionNode)):
        for call in (n for n in calls_below(function) if len(n.args) > 1):
            if is_save(facts, call):
                place = call.args[1]
                values = [place, *(assigned_to(place.id, function) if isinstance(place, ast.Name) else ())]
                for text in {n.value for value in values for n in walk(value) if isinstance(n, ast.Constant)}:
                    found[text].append((call, function))
    return found


def models_saved_from_cpu(project: Project) -> bool:
    """Whether the project saves models, and always moves them to the CPU first, in any of its files."""
    return project.remember(("models saved from the CPU",), lambda: _moves_models(project))


def _moves_models(project: Project) -> bool:
    plain = frozenset((*table("checkpoints")["plain_receivers"], *table("checkpoints")["optimizers"]))
    moved: list[bool] = []
    for path in project.contents.holding("torch.save("):
        facts = project.modules.facts_of(path)
        functions = [n for n in walk(facts.tree) if isinstance(n, FunctionNode)] if facts is not None else []
        for function in functions:
            calls = (n for n in calls_below(function) if n.args)
            saved = [c.args[0] for c in calls if facts is not None and facts.qualified(c.func) == "torch.save"]
            for value in saved:
                on_cpu = facts is not None and _is_on_cpu(value, facts)
                if on_cpu or holds_states(value, function, plain) is not False:
                    moved.append(on_cpu)
    return bool(moved) and all(moved)


def holds_states(
    value: ast.expr, function: ast.AST, plain: frozenset[str] | None = None, within: frozenset[str] = frozenset()
) -> bool | None:
    """Whether what is saved holds states of a model or an optimizer: ``model.state_dict()``, ``model``. None when it
    cannot be seen: a parameter, the result of a call. `plain`: the words of what has a state that does not count.
    `within`: the names that this value is a part of, as a dictionary may hold itself."""
    if isinstance(value, ast.Name):
        if value.id in within:
            return False
        within |= {value.id}
        given = assigned_to(value.id, function)
        states = [holds_states(v, function, plain, within) for v in given if not isinstance(v, ast.Name)]
        parts = [n.value for n in walk(function) if isinstance(n, ast.Assign) and _is_part(n.targets[0], value.id)]
        states += [
            _state(part, plain) if isinstance(part, ast.Attribute) else holds_states(part, function, plain, within)
            for part in parts
        ]
        if not given or None in states:
            return True if True in states else None
        return True in states
    if isinstance(value, ast.Dict):
        states = [_state(part, plain) for part in value.values]
        return True in states
    return _state(value, plain) if isinstance(value, (ast.Call, ast.Constant, ast.List, ast.Tuple)) else None


@functools.cache
def _named_states() -> frozenset[str]:
    """The words of the names of models, optimizers and their states: of attributes no more than ``best_score`` is."""
    return (frozenset(table("checkpoints")["states"]) - frozenset(table("checkpoints")["ambiguous"])) | _NETS


def _is_part(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id == name


def _state(value: ast.expr, plain: frozenset[str] | None) -> bool | None:
    """Whether one value is the state of what may lie on a GPU."""
    for call in _calls_of(value, "state_dict"):
        receiver = dotted_ast(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if not words_of(receiver.rpartition(".")[2]) & (plain or frozenset(table("checkpoints")["plain_receivers"])):
            return True
    if isinstance(value, ast.Attribute) and words_of(value.attr) & _named_states():
        return True  # the model itself
    if isinstance(value, (ast.Constant, ast.Attribute, ast.Subscript, ast.BinOp, ast.List, ast.Tuple)):
        return False
    if isinstance(value, ast.Call):
        return False if any(True for _ in _calls_of(value, "state_dict")) else None
    return None


def _is_on_cpu(value: ast.expr, facts: ModuleFacts) -> bool:
    """Whether a value lies on the CPU, or one of those that its name gets. In a dict, what is no state may be anything
    as long as something does."""
    if isinstance(value, ast.Dict):
        others = [part for part in value.values if not _is_on_cpu(part, facts)]
        return len(others) < len(value.values) and not any(".state_dict()" in ast.unparse(part) for part in others)
    if isinstance(value, ast.Name):
        # Another function of the file may have the weights that it loads, and moves to its GPU, by the same name.
        around = function_at(facts.tree, value.lineno)
        given = (assigned_to(value.id, around) if around is not None else []) or assigned_to(value.id, facts.tree)
        if any(_is_part(n.targets[0], value.id) and _comes_from_cpu(n.value, facts) for n in _assigned_in_loops(facts)):
            return True
        if around is not None and _has_states_from_cpu(value.id, around, given, facts):
            return True
        return any(_comes_from_cpu(v, facts) for v in given) and not any(_calls(v, "cuda") for v in given)
    return _comes_from_cpu(value, facts)


def _has_states_from_cpu(name: str, function: FunctionNode, given: list[ast.expr], facts: ModuleFacts) -> bool:
    """Whether a dictionary gets states by its keys, and all of them from the CPU: ``saved["model"] =
    to_cpu(model.state_dict())``."""
    parts = [n.value for n in walk(function) if isinstance(n, ast.Assign) and _is_part(n.targets[0], name)]
    states = [part for part in parts if _state(part, None) is not False]
    made_with = any(_state(part, None) for whole in given for part in getattr(whole, "values", ()))
    return bool(states) and not made_with and all(_comes_from_cpu(part, facts) for part in states)


def _assigned_in_loops(facts: ModuleFacts) -> Iterator[ast.Assign]:
    """``for key, value in state.items(): state[key] = value.cpu()``: each part in turn."""
    for loop in walk(facts.tree):
        if isinstance(loop, ast.For):
            yield from (n for n in walk(loop) if isinstance(n, ast.Assign))


def _is_made_here(value: ast.expr, facts: ModuleFacts) -> bool:
    """Whether it is the state of a layer that the function has just made, and moved nowhere."""
    function = _states(facts.tree).get(value)
    layer = value.func.value if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else None
    if not isinstance(layer, ast.Name) or function is None:
        return False
    made = [v.func for v in assigned_to(layer.id, function) if isinstance(v, ast.Call)]
    moved = _called_in(function) & {f"{layer.id}.to", f"{layer.id}.cuda"}
    return bool(made) and all(_LAYER.match(facts.qualified(f)) for f in made) and not moved


@kept_by_node(32)
def _states(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """The calls of ``state_dict()`` in functions, each with the outermost function around it."""
    found: dict[ast.AST, ast.AST] = {}
    for function in (n for n in walk(tree) if isinstance(n, FunctionNode)):
        for node in calls_below(function):
            if getattr(node.func, "attr", "") == "state_dict":
                found.setdefault(node, function)
    return found


@kept_by_node(256)
def _called_in(function: ast.AST) -> frozenset[str]:
    return frozenset(dotted_ast(n.func) for n in calls_below(function))


def _comes_from_cpu(value: ast.expr, facts: ModuleFacts) -> bool:
    if isinstance(value, ast.Call) and is_factory(facts.qualified(value.func)):
        return not any(keyword.arg in ("device", None) for keyword in value.keywords)
    return (
        any("cpu" in words_of(last_part(call.func)) for call in calls_below(value))  # `.cpu()`, `to_cpu(state)`
        or _is_made_here(value, facts)
        or any(
            isinstance(arg, ast.Constant) and arg.value == "cpu"
            for call in _calls_of(value, "to")
            for arg in (*call.args, *(keyword.value for keyword in call.keywords))
        )
    )


def _calls(value: ast.expr, method: str) -> bool:
    return any(True for _ in _calls_of(value, method))


def _calls_of(value: ast.expr, method: str) -> Iterator[ast.Call]:
    for node in calls_below(value):
        if isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node

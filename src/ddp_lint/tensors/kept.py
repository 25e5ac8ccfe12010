"""What a call of the project's own modules, methods and functions keeps for backward: its result, if the operation that
makes it saves that, and the arguments that it gives to operations which save their input."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from ddp_lint.knowledge import tensors as operations
from ddp_lint.knowledge.tensors import layer_kind, names
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast, of_self
from ddp_lint.source.syntax import below, calls_below, parameters, walk, yields
from ddp_lint.tensors.classes import Attribute, ModuleClass, ModuleClasses, Role, in_training
from ddp_lint.tensors.contexts import body_without_gradient

#: Calls within each other that are read.
_DEPTH = 12
#: Layers that hand on a view of their input.
_VIEWS = frozenset({"Identity", "Flatten", "Unflatten"})


@dataclasses.dataclass(frozen=True)
class Saved:
    """`what`: the operation that saves a tensor; `certain`: gradients surely flow there, also if none flow into the
    call; `as_rows`: it saves a copy of a tensor whose rows do not lie one after the other."""

    what: str
    certain: bool
    as_rows: bool = False


@dataclasses.dataclass(frozen=True)
class Kept:
    """`output`: what saves the result; `inputs`: what saves an argument, by its position; `same`: the argument that
    the result is, or is a view of; `learned`: the result is computed from parameters; `names`: those of the arguments,
    as far as they are known."""

    output: Saved | None = None
    inputs: Mapping[int, Saved] = dataclasses.field(default_factory=dict)
    same: int | None = None
    learned: bool = False
    names: tuple[str, ...] = ()


NOTHING = Kept()


@dataclasses.dataclass
class _State:
    """`names`: local names to tensors; `saved`: tensors to what keeps them; `learned`: those computed from
    parameters."""

    names: dict[str, int]
    saved: dict[int, Saved] = dataclasses.field(default_factory=dict)
    learned: set[int] = dataclasses.field(default_factory=set)
    left: bool = False

    def copy(self) -> _State:
        return _State(dict(self.names), dict(self.saved), set(self.learned), self.left)

    def become(self, arms: list[_State]) -> None:
        """Go on with what holds after each arm that is not left."""
        going_on = [arm for arm in arms if not arm.left]
        self.left = not going_on
        if going_on:
            first, *others = going_on
            same = {n: t for n, t in first.names.items() if all(arm.names.get(n) == t for arm in others)}
            kept = {t: s for t, s in first.saved.items() if all(t in arm.saved for arm in others)}
            self.names, self.saved = same, kept
            self.learned = set().union(*(arm.learned for arm in going_on))

    def save(self, tensor: int, save: Saved) -> None:
        """Something saves a tensor; of several the first that surely does is named."""
        known = self.saved.get(tensor)
        if known is None or (save.certain and not known.certain):
            self.saved[tensor] = save

    def apply(self, kept: Kept, given: list[int | None], new: int) -> int | None:
        """The result of a call, `new` if it is a new tensor, and what it saves."""
        flows = any(tensor in self.learned for tensor in given)
        for place, save in kept.inputs.items():
            if (tensor := _at(given, place)) is not None:
                self.save(tensor, Saved(save.what, save.certain or flows, save.as_rows))
        if kept.same is not None:
            return _at(given, kept.same)
        if flows or kept.learned:
            self.learned.add(new)
        if kept.output is not None:
            self.saved[new] = Saved(kept.output.what, kept.output.certain or flows)
        return new


def _at(given: list[int | None], place: int) -> int | None:
    return given[place] if place < len(given) else None


def _outcome(given: list[int], ends: list[tuple[int | None, _State]]) -> Kept:
    """What a call keeps, by what holds at each of the places where it ends, and the tensor that it returns there."""
    if not ends:
        return NOTHING
    states = [state for _, state in ends]
    inputs = {place: save for place, tensor in enumerate(given) if (save := _surely([tensor] * len(ends), states))}
    results = [tensor for tensor, _ in ends]
    learned = all(tensor in state.learned for tensor, state in ends)
    if len(set(results)) == 1 and results[0] in given:
        return Kept(inputs=inputs, same=given.index(results[0]), learned=learned)
    return Kept(_surely(results, states), inputs, learned=learned)


def _surely(tensors: list[int | None], states: list[_State]) -> Saved | None:
    """What saves a tensor, wherever the function ends."""
    return _all_of(
        [state.saved.get(tensor) if tensor is not None else None for tensor, state in zip(tensors, states, strict=True)]
    )


def _all_of(found: list[Saved | None]) -> Saved | None:
    """What saves all of several tensors; None where one is not saved, and for none at all."""
    saves = [save for save in found if save is not None]
    if not saves or len(saves) < len(found):
        return None
    return Saved(saves[0].what, all(save.certain for save in saves), any(save.as_rows for save in saves))


class Keeping:
    """Answers for the modules and functions that one file uses. What cannot be read keeps nothing."""

    def __init__(self, classes: ModuleClasses) -> None:
        self.classes = classes
        self._known: dict[ast.FunctionDef, Kept] = {}
        self._depth = 0

    def of_call(self, call: ast.Call, facts: ModuleFacts, owner: ModuleClass | None) -> Kept:
        """A call as it stands in a file, in a method of `owner`; of a method of a tensor the tensor is the first
        argument."""
        written = dotted_ast(call.func)
        if owner is not None and (name := of_self(written)):
            attribute = owner.attribute(name)
            return self.of_attribute(attribute) if attribute is not None else self.of_method(owner, name)
        qualified = facts.qualified(call.func)
        if qualified.startswith("torch."):
            return Kept(same=0) if qualified in names("views", "functions") else _of_operation(qualified, call)
        if qualified or not isinstance(call.func, ast.Attribute):
            return self.of_function(written, facts)
        return _of_operation(f".{call.func.attr}", call)

    def of_attribute(self, attribute: Attribute) -> Kept:
        """A call of a layer that is an attribute of a module."""
        if attribute.role is not Role.LAYER:
            return NOTHING
        return self._of_layer(attribute.maker, attribute.value, attribute.facts)

    def of_element(self, owner: ModuleClass, name: str) -> Kept:
        """A call of one of the layers in a container, ``self.layers[i](x)``: what each of them keeps."""
        made = [a for a in owner.attributes.get(name, ()) if a.role is Role.LAYER]
        parts = [(part, a.facts) for a in made for part in _parts(a.value)]
        parts += [(part, cls.facts) for cls in owner.lineage for part in _appended(cls, name)]
        return _each([self._of_part(*part) for part in parts])

    def of_method(self, owner: ModuleClass, name: str) -> Kept:
        """A call of a method on `self`, without `self` among the arguments."""
        cls, method = owner.methods.get(name, (owner, None))
        if method is None or any(dotted_ast(d) in ("staticmethod", "property") for d in method.decorator_list):
            return NOTHING
        return self._of_function(method, cls.facts, owner)

    def of_function(self, written: str, facts: ModuleFacts) -> Kept:
        """A call of a function of the project, by its name in a file."""
        found = self.classes.function(written, facts)
        return self._of_function(found[1], found[0], None) if found is not None else NOTHING

    # ---- layers

    def _of_layer(self, maker: str, value: ast.expr | None, facts: ModuleFacts) -> Kept:
        kind = layer_kind(maker)
        if kind == "Sequential":
            return self._of_sequence(value, facts)
        if kind:
            return _of_torch_layer(kind, maker, value)
        cls = self.classes.resolve(maker, facts) or self.classes.imported(maker)
        return self.of_method(cls, "forward") if cls is not None else NOTHING

    def _of_sequence(self, value: ast.expr | None, facts: ModuleFacts) -> Kept:
        """``nn.Sequential(a, b)``: each part takes what the one before it makes."""
        state, tensor = _State({}), 0
        for new, part in enumerate(value.args if isinstance(value, ast.Call) else [], 1):
            made = state.apply(self._of_part(part, facts), [tensor], new)
            tensor = new if made is None else made
        return _outcome([0], [(tensor, state)]) if tensor else NOTHING

    def _of_part(self, part: ast.expr, facts: ModuleFacts) -> Kept:
        if not isinstance(part, ast.Call):
            return NOTHING
        written = dotted_ast(part.func)
        return self._of_layer(self.classes.qualified(written, facts) or written, part, facts)

    # ---- functions

    def _of_function(self, function: ast.FunctionDef, facts: ModuleFacts, owner: ModuleClass | None) -> Kept:
        known = self._known.get(function)
        if known is not None or self._depth == _DEPTH:
            return known or NOTHING
        self._known[function] = NOTHING  # for the calls of itself
        self._depth += 1
        reading = _Reading(self, function, facts, owner)
        kept = dataclasses.replace(reading.kept(), names=reading.arguments)
        self._known[function] = kept
        self._depth -= 1
        return kept


def _parts(made: ast.expr | None) -> Iterator[ast.expr]:
    """The layers that a container is made of: ``nn.ModuleList([A(), B()])``, ``nn.Sequential(*[A() for _ in x])``."""
    for given in made.args if isinstance(made, ast.Call) else ():
        listed = given.value if isinstance(given, ast.Starred) else given
        if isinstance(listed, (ast.List, ast.Tuple)):
            yield from listed.elts
        else:
            yield listed.elt if isinstance(listed, (ast.ListComp, ast.GeneratorExp)) else listed


def _appended(cls: ModuleClass, name: str) -> Iterator[ast.expr]:
    """What the class puts into a container afterwards: ``self.layers.append(A())``."""
    for call in (node for node in calls_below(cls.node) if node.args):
        if dotted_ast(call.func) in (f"self.{name}.append", f"self.{name}.add_module", f"self.{name}.extend"):
            yield call.args[-1]


def _each(kept: list[Kept]) -> Kept:
    """What all of several layers keep of their arguments and results, whichever of them is called."""
    places = set(kept[0].inputs).intersection(*(other.inputs for other in kept)) if kept else set()
    inputs = {p: save for p in places if (save := _all_of([k.inputs[p] for k in kept])) is not None}
    names = {k.names for k in kept}
    learned = all(k.learned for k in kept)
    output = _all_of([k.output for k in kept])
    return Kept(output, inputs, learned=learned, names=names.pop() if len(names) == 1 else ())


def _of_torch_layer(kind: str, maker: str, value: ast.expr | None) -> Kept:
    if kind in _VIEWS:
        return Kept(same=0)
    parametric = kind in names("saves_input", "parametric")
    save = Saved(kind, certain=parametric, as_rows=operations.takes_rows(maker))
    if kind in names("in_place", "layers") and isinstance(value, ast.Call) and _asks_for_in_place(value):
        return Kept(inputs={0: save} if operations.keeps_output(maker) else {}, same=0)
    output = save if operations.keeps_output(maker) else None
    return Kept(output, {0: save} if operations.keeps_input(maker) else {}, learned=parametric)


class _Reading:
    """One pass over a function in the order of execution; a loop's body is read for what it returns alone."""

    def __init__(
        self, keeping: Keeping, function: ast.FunctionDef, facts: ModuleFacts, owner: ModuleClass | None
    ) -> None:
        self._keeping, self._facts, self._owner = keeping, facts, owner
        self._function = function
        self._tensors = itertools.count()
        given = [p.arg for p in parameters(function)][owner is not None :]
        self._start = {name: next(self._tensors) for name in given}
        self._returned: list[tuple[int | None, _State]] = []

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the function's arguments, without `self`."""
        return tuple(self._start)

    def kept(self) -> Kept:
        if body_without_gradient(self._function, self._facts) or yields(self._function):
            return NOTHING
        state = _State(dict(self._start))
        self._block(self._function.body, state)
        return _outcome(list(self._start.values()), [*self._returned, *([] if state.left else [(None, state)])])

    # ---- statements

    def _block(self, body: list[ast.stmt], state: _State) -> None:
        for statement in body:
            if state.left:
                return
            self._statement(statement, state)

    def _statement(self, node: ast.stmt, state: _State) -> None:
        if isinstance(node, ast.Return):
            self._returned.append((self._result(node.value, state) if node.value is not None else None, state.copy()))
            state.left = True
        elif isinstance(node, ast.Raise):
            state.left = True
        elif isinstance(node, ast.Assign):
            self._bind(node.targets, self._value(node.value, state), state)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind([node.target], self._value(node.value, state), state)
        elif isinstance(node, ast.AugAssign):
            self._value(node.value, state)  # `x += y` writes to the tensor that `x` is
        elif isinstance(node, ast.If):
            self._if(node, state)
        elif isinstance(node, ast.With):
            self._with(node, state)
        elif isinstance(node, (ast.For, ast.While, ast.Try)):
            self._block(node.body, state.copy())
            for name in _stored(node):
                state.names.pop(name, None)
        elif isinstance(node, ast.Expr):
            self._value(node.value, state)

    def _if(self, node: ast.If, state: _State) -> None:
        self._value(node.test, state)
        trained = in_training(node)
        if trained is not None:  # evaluation needs no backward
            self._block(trained, state)
            return
        arms = [state.copy(), state.copy()]
        self._block(node.body, arms[0])
        self._block(node.orelse, arms[1])
        state.become(arms)

    def _with(self, node: ast.With, state: _State) -> None:
        if body_without_gradient(node, self._facts):
            for name in _stored(node):
                state.names.pop(name, None)
            return
        self._block(node.body, state)

    def _bind(self, targets: list[ast.expr], tensor: int | None, state: _State) -> None:
        for whole in targets:
            for name in _stored(whole):
                state.names.pop(name, None)
            target = whole.elts[0] if isinstance(whole, ast.Tuple) and whole.elts else whole  # `out, (h, c) = lstm(x)`
            if isinstance(target, ast.Name) and tensor is not None:
                state.names[target.id] = tensor

    # ---- expressions

    def _result(self, node: ast.expr, state: _State) -> int | None:
        """What is returned; a tuple counts as one tensor, which is saved and learned if each of its elements is."""
        if not isinstance(node, ast.Tuple):
            return self._value(node, state)
        elements, whole = [self._value(each, state) for each in node.elts], next(self._tensors)
        save = _surely(elements, [state] * len(elements))
        if save is not None:
            state.saved[whole] = save
        if elements and state.learned.issuperset(elements):
            state.learned.add(whole)
        return whole

    def _value(self, node: ast.expr, state: _State) -> int | None:
        """The tensor that an expression is, as far as that can be seen; looks at all its parts on the way."""
        if isinstance(node, ast.Name):
            return state.names.get(node.id)
        if isinstance(node, ast.Call):
            return self._call(node, state)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node, state)
        if isinstance(node, ast.Subscript):  # of a tuple of results, or a view
            return self._value(node.value, state)
        if isinstance(node, ast.Attribute):
            on = self._value(node.value, state)
            return on if node.attr in names("views", "attributes") and node.attr != "data" else None
        if not isinstance(node, (ast.Lambda, ast.IfExp, ast.BoolOp)):
            for part in below(node):
                if isinstance(part, ast.expr):
                    self._value(part, state)
        return None

    def _arithmetic(self, node: ast.BinOp, state: _State) -> int | None:
        operands = [self._value(node.left, state), self._value(node.right, state)]
        if isinstance(node.op, (ast.Mult, ast.Div, ast.MatMult)):
            sign = "@" if isinstance(node.op, ast.MatMult) else "*"
            for kept, other in (operands, operands[::-1]):
                if kept is not None and other in state.learned:
                    state.save(kept, Saved(sign, certain=True))
        return self._applied(NOTHING, operands, state)

    def _call(self, node: ast.Call, state: _State) -> int | None:
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        on = self._value(node.func.value, state) if isinstance(node.func, ast.Attribute) else None
        given = [self._value(argument, state) for argument in node.args]
        for keyword in node.keywords:
            self._value(keyword.value, state)
        if on is not None and method in names("views", "methods") and method != "detach":
            return on
        kept = self._keeping.of_call(node, self._facts, self._owner)
        return self._applied(kept, given if on is None else [on, *given], state)

    def _applied(self, kept: Kept, given: list[int | None], state: _State) -> int | None:
        return state.apply(kept, given, next(self._tensors))


def _of_operation(operation: str, call: ast.Call) -> Kept:
    """A function of torch by its canonical name, a method of a tensor with a dot before it."""
    what = operation.rpartition(".")[2]
    save = Saved(what, certain=False, as_rows=operations.takes_rows(operation))
    if operations.writes(what) and operation == f".{what}":  # those of torch.nn.init are for parameters
        return Kept(same=0)
    if _asks_for_in_place(call) and operation.startswith("torch.nn.functional."):
        return Kept(inputs={0: save} if operations.keeps_output(operation) else {}, same=0)
    inputs = dict.fromkeys(range(3), save) if operations.keeps_input(operation) else {}
    return Kept(save if operations.keeps_output(operation) else None, inputs)


def _asks_for_in_place(call: ast.Call) -> bool:
    flags = (keyword.value for keyword in call.keywords if keyword.arg == "inplace")
    return any(isinstance(flag, ast.Constant) and flag.value is True for flag in flags)


def _stored(node: ast.AST) -> Iterator[str]:
    """The names that anything below a node binds."""
    yield from (n.id for n in walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))

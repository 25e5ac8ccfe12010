"""What an expression is: the part of the reading of a function that looks at expressions."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import libcst as cst

from ddp_lint.knowledge import table
from ddp_lint.knowledge import tensors as operations
from ddp_lint.knowledge.tensors import layer_kind, names, words_of
from ddp_lint.source import dotted
from ddp_lint.source.imports import of_self
from ddp_lint.source.tree import children, descendants, names_in, parameters_of, subtree
from ddp_lint.tensors.classes import PARAMETER_MAKERS, ModuleClass, Role
from ddp_lint.tensors.kept import NOTHING, Keeping, Kept
from ddp_lint.tensors.state import Save, State
from ddp_lint.tensors.values import PYTHON, UNKNOWN, Kind, Value, computed_from, concatenated, group, is_cut, join
from ddp_lint.view import Module
from ddp_lint.view.wraps import argument, assigned_name

#: What is read as one piece: a function, or the top level of a file.
Code = cst.FunctionDef | cst.Module
Written = Callable[[cst.CSTNode, cst.CSTNode, Value, State], None]

_PYTHON_ANNOTATIONS = {"int", "float", "bool", "str", "bytes"}
_CONTAINER_ANNOTATIONS = {"list", "List", "Sequence", "Iterable", "tuple", "Tuple"}
_PYTHON_CALLS = {
    "len",
    "int",
    "float",
    "bool",
    "str",
    "range",
    "isinstance",
    "hasattr",
    "callable",
    "id",
    "type",
    "round",
}
_TRANSPARENT_CALLS = {"list", "tuple", "reversed", "sorted", "iter", "next", "set"}
_PARAMETER_ITERATORS = {"parameters", "named_parameters"}
_REORDERING = {"transpose", "swapaxes", "swapdims", "permute"}
_PACKED = "torch.nn.utils.rnn.PackedSequence"
_ROLES = {Role.PARAMETER: Kind.PARAMETER, Role.BUFFER: Kind.BUFFER, Role.LAYER: Kind.LAYER}


#: Operators that compare objects, and look at no number of a tensor.
_OF_OBJECTS = (cst.Is, cst.IsNot, cst.In, cst.NotIn)


def compares_objects(node: cst.Comparison) -> bool:
    """Whether the outcome of a comparison is known to be no tensor by its form. A tensor is never equal to a text, a
    list or a tuple: Python says so without a look at its values."""
    if any(isinstance(comparison.operator, _OF_OBJECTS) for comparison in node.comparisons):
        return True
    compared = (node.left, *(c.comparator for c in node.comparisons))
    literal = (cst.BaseString, cst.List, cst.Tuple, cst.Dict)
    return any(isinstance(n, literal) or dotted(n) in ("None", "True", "False") for n in compared)


class Evaluator:
    """Values of the expressions of one function, as `Flow` comes by them. `values` keeps the last value of each."""

    def __init__(
        self,
        module: Module,
        function: Code,
        owner: ModuleClass | None,
        keeping: Keeping,
        written: Written,
        on_host: frozenset[str] = frozenset(),
    ) -> None:
        self.values: dict[cst.CSTNode, Value] = {}
        self._module = module
        self._function = function
        self._owner = owner
        self._classes = keeping.classes
        self._keeping = keeping
        self._written = written
        self._given_on_host = on_host
        self._storages = itertools.count(1)

    # ---- arguments

    def arguments(self) -> dict[str, Value]:
        """What the function's arguments are: by annotation, else by what the function does with them."""
        found: dict[str, Value] = {}
        if isinstance(self._function, cst.Module):
            return found
        parameters = parameters_of(self._function)
        own = () if self._owner is None else ("self",)
        bare = any(param.annotation is None and param.name.value not in own for param in parameters)
        used = self._used_as_tensors(self._function) if bare else set[str]()  # an annotation says it better
        for param in parameters:
            name = param.name.value
            found[name] = self._argument(param, name in used)
        given = [p.name.value for p in parameters_of(self._function) if p.name.value != "self"]
        if given and self._is_loss(self._function) and not words_of(given[0]) & names("in_place", "written_arguments"):
            found[given[0]] = dataclasses.replace(found[given[0]], learned=True)
        for name in (self._lengths_of_packed(self._function) | self._given_on_host) & found.keys():
            found[name] = dataclasses.replace(found[name], on_host=True)
        if self._owner is not None:
            found.pop("self", None)
        return found

    def _is_loss(self, function: cst.FunctionDef) -> bool:
        """The forward of a loss, or a function that is named after one: its first argument is what the model predicts,
        so gradients flow through it."""
        by_class = self._owner is not None and function.name.value == "forward"
        name = self._owner.name if self._owner is not None and by_class else function.name.value
        return bool(words_of(name) & names("losses", "words"))

    def _argument(self, param: cst.Param, used_as_tensor: bool) -> Value:
        name = param.name.value
        annotation = self._module.code(param.annotation.annotation) if param.annotation is not None else ""
        words = set(annotation.replace("[", " ").replace("]", " ").replace(",", " ").replace("|", " ").split())
        last_words = {w.strip("\"'").rpartition(".")[2] for w in words}
        tensor = Value(Kind.TENSOR, frozenset({next(self._storages)}), inputs=True, argument=name)
        if param.annotation is not None and _may_be_plain(param.annotation.annotation):
            return dataclasses.replace(tensor, kind=Kind.UNKNOWN)
        if last_words == {"PackedSequence"}:
            return self._packed()
        if last_words & {"Tensor", "FloatTensor", "LongTensor"}:
            grouped = Value(Kind.GROUP, inputs=True, argument=name, each=tensor)
            of_containers = bool(last_words & _CONTAINER_ANNOTATIONS)
            if last_words & {"dict", "Dict", "Mapping"}:
                return Value(Kind.GROUP, inputs=True, each=grouped if of_containers else tensor)
            return grouped if of_containers else tensor
        if last_words & _PYTHON_ANNOTATIONS and last_words <= _PYTHON_ANNOTATIONS | {"Optional", "None", "Union"}:
            return PYTHON
        if not annotation and name.rpartition("_")[2] in names("python_values", "endings"):
            return PYTHON
        if not annotation and used_as_tensor:
            return tensor
        default = param.default
        if isinstance(default, (cst.BaseNumber, cst.BaseString)) or dotted(default) in ("True", "False"):
            return PYTHON
        return Value(Kind.UNKNOWN, frozenset({next(self._storages)}), inputs=True, argument=name)

    def _used_as_tensors(self, function: cst.FunctionDef) -> set[str]:
        """Names that the function treats as only tensors can be: `x.shape`, `x.view(..)`, `self.conv(x)`. What a
        comprehension or a lambda calls by the name of an argument is another value: ``[x.view(-1) for x in x]``."""
        found: set[str] = set()
        telling = names("evidence", "attributes") | names("evidence", "methods")
        body = list(descendants(function.body))
        others = {n for inner in body if isinstance(inner, (cst.BaseComp, cst.Lambda)) for n in _bound_within(inner)}
        for node in body:
            if type(node) in (cst.Attribute, cst.Call) and node in others:
                continue
            if type(node) is cst.Attribute and type(node.value) is cst.Name:
                if node.attr.value in telling:
                    found.add(node.value.value)
            elif type(node) is cst.Call and node.args and type(node.args[0].value) is cst.Name:
                layer = self._layer(dotted(node.func))
                called = self._module.qualified(node.func)
                computes = operations.is_tensor_function(called) and not operations.is_factory(called)
                if computes or (layer is not None and layer_kind(layer.maker)):
                    found.add(node.args[0].value.value)
        return found

    def _lengths_of_packed(self, function: cst.FunctionDef) -> set[str]:
        """Arguments that a packed sequence takes its lengths from as they are: torch takes them from the host alone."""
        if not any(self._module.file.holds(maker.rpartition(".")[2]) for maker in names("packed", "packing")):
            return set()
        calls = [n for n in descendants(function.body) if isinstance(n, cst.Call)]
        packing = [c for c in calls if self._module.qualified(c.func) in names("packed", "packing")]
        given = [(c, argument(c, 1, "lengths")) for c in packing]
        return {
            lengths.value
            for call, lengths in given
            if isinstance(lengths, cst.Name)
            and all(b.kind == "parameter" for b in self._module.bindings(lengths, call))
        }

    def _packed(self) -> Value:
        """A packed sequence: a named tuple of tensors, some of which lie on the host always."""
        host = names("packed", "host")
        items = tuple(
            Value(Kind.TENSOR, frozenset({next(self._storages)}), inputs=True, on_host=field in host)
            for field in table("tensors")["packed"]["fields"]
        )
        return dataclasses.replace(group(items), maker=_PACKED)

    def _layer(self, name: str) -> Value | None:
        if self._owner is None or not name.startswith("self.") or name.count(".") != 1:
            return None
        attribute = self._owner.attribute(name[5:])
        if attribute is None:
            return None
        kind = _ROLES[attribute.role]
        return Value(kind, maker=attribute.maker, name="" if kind is Kind.BUFFER else name)

    # ---- expressions

    def value(self, node: cst.CSTNode, state: State) -> Value:
        """The value of an expression; looks at all parts of it on the way."""
        method = getattr(self, f"_{type(node).__name__}", None)
        value: Value = method(node, state) if method else self._parts(node, state)
        self.values[node] = value
        return value

    def _parts(self, node: cst.CSTNode, state: State) -> Value:
        for child in children(node):
            self.value(child, state)
        return PYTHON if isinstance(node, (cst.BaseNumber, cst.BaseString)) else UNKNOWN

    def _Name(self, node: cst.Name, state: State) -> Value:
        if node.value in ("None", "True", "False"):
            return PYTHON
        return state.names.get(node.value, UNKNOWN)

    def _Attribute(self, node: cst.Attribute, state: State) -> Value:
        name = dotted(node)
        if name in state.names:
            self.value(node.value, state)
            return state.names[name]
        attribute = node.attr.value
        of_class = self._layer(name)
        if of_class is not None:
            storage = self._storage_of(name, state)
            return dataclasses.replace(of_class, storages=storage if of_class.tensor else frozenset())
        base = self.value(node.value, state)
        if base.kind is Kind.LAYER:
            return self._attribute_of_layer(base, name, attribute, state)
        if name in self._parameters_set:
            return Value(Kind.PARAMETER, self._storage_of(name, state), name=name)
        if attribute in names("python_values", "attributes"):
            return PYTHON
        if attribute in names("packed", "host"):
            return Value(Kind.TENSOR, inputs=True, on_host=True)
        if base.maker == _PACKED and attribute in names("packed", "fields"):
            fields: list[str] = table("tensors")["packed"]["fields"]
            return base.items[fields.index(attribute)]
        if base.tensorish and attribute in names("views", "attributes"):
            return base.view(detached=attribute == "data")
        if base.tensorish and attribute == "grad":
            return Value(Kind.LIKELY, inputs=base.inputs)
        return Value(Kind.UNKNOWN, inputs=base.inputs)

    @functools.cached_property
    def _parameters_set(self) -> frozenset[str]:
        """The attributes of other objects that the function makes parameters of: ``layer.bias = nn.Parameter(b)``. What
        they held before is one too."""
        if not self._module.file.holds("Parameter"):
            return frozenset()
        made = (n for n in descendants(self._function) if isinstance(n, cst.Assign) and isinstance(n.value, cst.Call))
        targets = (
            dotted(target.target)
            for assign in made
            if self._module.qualified(cst.ensure_type(assign.value, cst.Call).func) in PARAMETER_MAKERS
            for target in assign.targets
        )
        return frozenset(name for name in targets if "." in name and not name.startswith("self."))

    def _attribute_of_layer(self, layer: Value, name: str, attribute: str, state: State) -> Value:
        if attribute in ("weight", "bias"):
            return Value(Kind.PARAMETER, self._storage_of(name, state), name=name or f"{layer.name}.{attribute}")
        cls = self._classes.imported(layer.maker) or (
            self._classes.named(layer.maker) if layer.maker and "." not in layer.maker else None
        )
        found = cls.attribute(attribute) if cls is not None else None
        if found is None:
            return UNKNOWN
        kind = _ROLES[found.role]
        storages = self._storage_of(name, state) if kind is not Kind.LAYER else frozenset()
        return Value(kind, storages, maker=found.maker, name="" if kind is Kind.BUFFER else name)

    def _storage_of(self, name: str, state: State) -> frozenset[int]:
        """The storage of a parameter or buffer: the same whenever its name is read."""
        key = f"{name}."  # no Python name ends in a dot
        if name and key not in state.names:
            state.names[key] = Value(Kind.UNKNOWN, frozenset({next(self._storages)}))
        return state.names[key].storages if name else frozenset()

    def _Subscript(self, node: cst.Subscript, state: State) -> Value:
        base = self.value(node.value, state)
        index = [self._index(element.slice, state) for element in node.slice]
        if base.kind is Kind.GROUP:
            return _chosen(base, node.slice)
        if base.kind is Kind.LAYER:
            return base.element
        if not base.tensorish:
            return Value(Kind.PYTHON if base.kind is Kind.PYTHON else Kind.UNKNOWN, inputs=base.inputs)
        if not all(v.kind is Kind.PYTHON for v in index):  # indexing by a mask or a tensor copies
            return computed_from([base], Kind.TENSOR if base.tensor else base.kind, next(self._storages))
        key = node.slice[0].slice
        if base.kind is Kind.LIKELY and isinstance(key, cst.Index) and isinstance(key.value, cst.SimpleString):
            # What a module returned is a dictionary, with a tensor of its own under each key.
            own = f"{sorted(base.storages)}[{key.value.value}]"
            return dataclasses.replace(base.view(), storages=self._storage_of(own, state))
        return base.view()

    def _index(self, index: cst.BaseSlice, state: State) -> Value:
        if isinstance(index, cst.Index):
            return PYTHON if isinstance(index.value, cst.Ellipsis) else self.value(index.value, state)
        for bound in children(index):
            self.value(bound, state)
        return PYTHON

    def _BinaryOperation(self, node: cst.BinaryOperation, state: State) -> Value:
        operands = [self.value(node.left, state), self.value(node.right, state)]
        operator = type(node.operator)
        if operator is cst.Add and all(v.kind is Kind.GROUP for v in operands):
            return concatenated(*operands)
        result = self.binary(operands)
        if operator in (cst.Multiply, cst.Divide, cst.MatrixMultiply):
            for kept, other in (operands, operands[::-1]):
                if operator is cst.MatrixMultiply or other.tensorish:
                    self._keep(node, [kept], _SIGNS[operator], state, certain=other.carries_gradient)
        elif operator is cst.Power and operands[0].carries_gradient and not _is_one(node.right):
            self._keep(node, operands[:1], "**", state, certain=True)
        return result

    def binary(self, operands: Sequence[Value]) -> Value:
        """The result of arithmetic on operands."""
        if any(v.tensor for v in operands):
            return computed_from(operands, Kind.TENSOR, next(self._storages))
        if any(v.tensorish for v in operands):
            return computed_from(operands, Kind.LIKELY, next(self._storages))
        if all(v.kind is Kind.PYTHON for v in operands):
            return PYTHON
        return Value(Kind.UNKNOWN, inputs=any(v.inputs for v in operands))

    def _UnaryOperation(self, node: cst.UnaryOperation, state: State) -> Value:
        operand = self.value(node.expression, state)
        if isinstance(node.operator, cst.Not):
            return PYTHON
        return self.binary([operand])

    def _BooleanOperation(self, node: cst.BooleanOperation, state: State) -> Value:
        return join([self.value(node.left, state), self.value(node.right, state)])

    def _Comparison(self, node: cst.Comparison, state: State) -> Value:
        operands = [self.value(node.left, state)]
        for comparison in node.comparisons:
            operands.append(self.value(comparison.comparator, state))
            if isinstance(comparison.operator, _OF_OBJECTS):
                return PYTHON
        if compares_objects(node):
            return PYTHON
        compared = dataclasses.replace(self.binary(operands), learned=any(v.learned for v in operands))
        return compared.discrete()

    def _IfExp(self, node: cst.IfExp, state: State) -> Value:
        self.value(node.test, state)
        taken, other = self.arms(node.test, state)
        return join([self.value(node.body, taken), self.value(node.orelse, other)])

    def arms(self, test: cst.BaseExpression, state: State) -> tuple[State, State]:
        """The state where a test holds and where it does not: what fails ``isinstance(x, Tensor)`` is no tensor."""
        holds, fails = state.copy(), state.copy()
        self._learn(test, holds, outcome=True)
        self._learn(test, fails, outcome=False)
        return holds, fails

    def _learn(self, test: cst.BaseExpression, state: State, *, outcome: bool) -> None:
        """Take up what the outcome of a test says of names."""
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            self._learn(test.expression, state, outcome=not outcome)
        elif isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And if outcome else cst.Or):
            self._learn(test.left, state, outcome=outcome)
            self._learn(test.right, state, outcome=outcome)
        elif isinstance(test, cst.Call) and test.args and (name := dotted(test.args[0].value)):
            kind = self._asked_for(test)
            if kind == "torch.Tensor" and not outcome:
                state.names[name] = PYTHON
            elif kind == _PACKED and outcome:
                state.names[name] = self._packed()
        elif (device := _device_asked_for(test)) is not None:
            tensor, of_host = device
            if (name := dotted(tensor)) and tensor in self.values:
                # In both arms, or an attribute would be unknown behind them.
                value = self.values[tensor]
                state.names[name] = dataclasses.replace(value, on_host=value.on_host or of_host == outcome)

    def _asked_for(self, test: cst.Call) -> str:
        """The class that ``isinstance(x, torch.Tensor)`` or ``torch.is_tensor(x)`` tests for, '' for other tests."""
        if dotted(test.func) == "isinstance" and len(test.args) == 2:
            return self._module.qualified(test.args[1].value)
        return "torch.Tensor" if self._module.qualified(test.func) == "torch.is_tensor" else ""

    def _NamedExpr(self, node: cst.NamedExpr, state: State) -> Value:
        value = self.value(node.value, state)
        state.names[dotted(node.target)] = value
        return value

    def _Tuple(self, node: cst.Tuple | cst.List, state: State) -> Value:
        values = [self.value(element.value, state) for element in node.elements]
        if not any(isinstance(element, cst.StarredElement) for element in node.elements):
            return group(values)
        parts = zip(node.elements, values, strict=True)
        return concatenated(*(v if isinstance(e, cst.StarredElement) else group([v]) for e, v in parts))

    _List = _Tuple

    def _Dict(self, node: cst.Dict, state: State) -> Value:
        keys, values = [], []
        for element in node.elements:
            if isinstance(element, cst.DictElement):
                self.value(element.key, state)
                keys.append(_text(element.key))
            values.append(self.value(element.value, state))
        return _dictionary(keys, values)

    def _ListComp(self, node: cst.ListComp | cst.GeneratorExp | cst.SetComp, state: State) -> Value:
        inner = state.copy()
        self._comprehension(node.for_in, inner)
        each = self.value(node.elt, inner)
        state.saved |= inner.saved
        return Value(Kind.GROUP, each=each)

    _GeneratorExp = _SetComp = _ListComp

    def _DictComp(self, node: cst.DictComp, state: State) -> Value:
        inner = state.copy()
        self._comprehension(node.for_in, inner)
        self.value(node.key, inner)
        return Value(Kind.GROUP, each=self.value(node.value, inner), keys=("",))

    def _comprehension(self, loop: cst.CompFor, state: State) -> None:
        iterated = self.value(loop.iter, state)
        self._bind_names(loop.target, iterated.element, state)
        for condition in loop.ifs:
            self.value(condition.test, state)
        if loop.inner_for_in is not None:
            self._comprehension(loop.inner_for_in, state)

    def _bind_names(self, target: cst.CSTNode, value: Value, state: State) -> None:
        if isinstance(target, (cst.Tuple, cst.List)):
            for element, part in zip(target.elements, unpacked(value, target.elements), strict=True):
                self._bind_names(element.value, part, state)
        elif dotted(target):
            state.names[dotted(target)] = value

    def _Lambda(self, node: cst.Lambda, state: State) -> Value:
        return UNKNOWN

    def _FormattedString(self, node: cst.FormattedString, state: State) -> Value:
        self._parts(node, state)
        return PYTHON

    # ---- calls

    def _Call(self, node: cst.Call, state: State) -> Value:
        operands = [self.value(arg.value, state) for arg in node.args]
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in _PARAMETER_ITERATORS:
            return _parameters_of(node.func)
        qualified = self._module.qualified(node.func)
        if qualified:
            return self._function_call(node, qualified, operands, state)
        if isinstance(node.func, cst.Attribute):
            if operations.is_average(dotted(node.func)):
                return self._unknown_call(operands).without_gradient()
            called = self.value(node.func, state)
            if called.kind is Kind.LAYER:
                return self._layer_call(node, called, operands, state)
            # Its receiver was evaluated on the way: evaluating it again would double the work with each call of a
            # chain.
            on, known = node.func.value, self.values
            receiver = known[on] if on in known and not isinstance(on, cst.Name) else self.value(on, state)
            return self._method_call(node, receiver, operands, state)
        called = self.value(node.func, state)
        if called.kind is Kind.LAYER:
            return self._layer_call(node, called, operands, state)
        return self._local_call(node, operands, state)

    def _local_call(self, node: cst.Call, operands: list[Value], state: State) -> Value:
        name = dotted(node.func)
        if name in _PYTHON_CALLS:
            return PYTHON
        if name in _TRANSPARENT_CALLS and operands:
            return operands[0].element if name == "next" else operands[0]
        if name == "enumerate" and operands:
            return _in_step([PYTHON, operands[0]])
        if name == "zip":
            given = zip(node.args, operands, strict=True)
            return _in_step([v for arg, v in given if arg.keyword is None])
        if name == "dict" and all(arg.keyword is not None for arg in node.args):
            return _dictionary([arg.keyword.value for arg in node.args if arg.keyword is not None], operands)
        if name in ("max", "min", "sum", "abs"):
            flat = [v.element if v.kind is Kind.GROUP else v for v in operands]
            return self.binary(flat) if flat else UNKNOWN
        return self._project_call(node, operands, state)

    def _project_call(self, node: cst.Call, operands: list[Value], state: State) -> Value:
        """A call of a function of the project, or of a method of the same object."""
        name = dotted(node.func)
        own = self._owner is not None and bool(of_self(name))
        if own and self._owner is not None:
            kept = self._keeping.of_method(self._owner, of_self(name))
        else:
            facts = self._module.facts
            kept = self._keeping.of_function(name, facts) if facts is not None and name else NOTHING
        same = operands[kept.same] if kept.same is not None and kept.same < len(operands) else UNKNOWN
        result = same if same.tensorish else self._unknown_call(operands)
        if kept.output is not None and kept.same is None:
            made = computed_from(operands, Kind.TENSOR, next(self._storages))
            result = made.with_parameters() if kept.learned else made
        self._keep_by_call(node, kept, operands, result, name, state)
        return result if state.gradient else result.without_gradient()

    def _keep_by_call(
        self, node: cst.Call, kept: Kept, operands: list[Value], result: Value, name: str, state: State
    ) -> None:
        """What the body of a call saves for backward."""
        flows = any(v.carries_gradient for v in operands if v.tensorish)
        keywords = {arg.keyword.value: given for arg, given in zip(node.args, operands, strict=True) if arg.keyword}
        for place, save in kept.inputs.items():
            by_name = keywords.get(kept.names[place], UNKNOWN) if place < len(kept.names) else UNKNOWN
            given = operands[place] if place < len(operands) and node.args[place].keyword is None else by_name
            copied = save.as_rows and place < len(node.args) and _reorders(node.args[place].value)
            if given.tensorish and not copied:
                self._keep(node, [given], f"{save.what} in {name}", state, certain=save.certain or flows)
        if kept.output is not None:
            certain = kept.output.certain or flows
            self._keep(node, [result], f"{kept.output.what} in {name}", state, certain=certain, as_output=True)

    def _unknown_call(self, operands: Iterable[Value]) -> Value:
        """The result of a function that is not read: likely a tensor if it got one that is computed."""
        known = list(operands)
        if any(v.tensorish and (v.inputs or v.learned) for v in known):
            return computed_from(known, Kind.LIKELY, next(self._storages))
        inputs, learned = any(v.inputs for v in known), any(v.learned for v in known)
        return Value(Kind.UNKNOWN, inputs=inputs, learned=learned, cut=is_cut(known))

    def _function_call(self, node: cst.Call, qualified: str, operands: list[Value], state: State) -> Value:
        if qualified.partition(".")[0] in names("python_values", "packages"):
            return PYTHON
        if operations.is_factory(qualified):
            on_host = self._on_host(node)
            return Value(Kind.TENSOR, frozenset({next(self._storages)}), inputs=not on_host, on_host=on_host)
        if qualified in names("packed", "makers"):
            return self._packed()
        if qualified in names("packed", "unpacking"):
            padded = Value(Kind.TENSOR, frozenset({next(self._storages)}), inputs=True, learned=True)
            return group([padded, Value(Kind.TENSOR, inputs=True, on_host=True)])
        if qualified in PARAMETER_MAKERS:
            frozen = any(a.keyword is not None and a.keyword.value == "requires_grad" for a in node.args)
            kind = Kind.BUFFER if frozen else Kind.PARAMETER
            name = "" if frozen else assigned_name(self._module, node)
            return Value(kind, frozenset({next(self._storages)}), name=name)
        if layer_kind(qualified):
            return Value(Kind.LAYER, maker=qualified)
        if not operations.is_tensor_function(qualified):
            return UNKNOWN if qualified.startswith("torch.") else self._project_call(node, operands, state)
        first = operands[0] if operands else UNKNOWN
        if qualified in names("views", "functions") and first.tensorish:
            return first.view()
        in_place = qualified.endswith("_") or _asks_for_in_place(node)
        if in_place and first.tensorish:
            self._written(node, node.args[0].value, first, state)
            return first
        flat = [v.element if v.kind is Kind.GROUP else v for v in operands]
        result = computed_from(flat, Kind.TENSOR, next(self._storages))
        self._operation(node, qualified, flat, result, state)
        result = result.discrete() if operations.is_discrete(qualified) else result
        return result if state.gradient else result.without_gradient()

    def _on_host(self, node: cst.Call) -> bool:
        device = next((a.value for a in node.args if a.keyword is not None and a.keyword.value == "device"), None)
        return device is None or self._is_host(device)

    def _moves_to_host(self, node: cst.Call) -> bool:
        """``x.to("cpu")``, ``x.to(device="cpu", dtype=...)``."""
        return any(self._is_host(a.value) for a in node.args if a.keyword is None or a.keyword.value == "device")

    def _may_leave_host(self, node: cst.Call, method: str) -> bool:
        """``x.cuda()``, ``x.to(device)``, ``x.to(other)``; not ``x.to(torch.float32)``."""
        if method != "to":
            return method in names("views", "moving")
        given = [a.value for a in node.args if a.keyword is None or a.keyword.value in ("device", "other")]
        return any(not self._is_host(value) and not self._is_dtype(value) for value in given)

    def _is_dtype(self, value: cst.BaseExpression) -> bool:
        is_own = isinstance(value, cst.Attribute) and value.attr.value == "dtype"
        return is_own or self._module.qualified(value).startswith("torch.") or dotted(value) in ("True", "False")

    def _is_host(self, device: cst.BaseExpression) -> bool:
        if isinstance(device, cst.Call) and self._module.qualified(device.func) == "torch.device" and device.args:
            device = device.args[0].value
        return isinstance(device, cst.SimpleString) and "cpu" in device.value

    def _layer_call(self, node: cst.Call, layer: Value, operands: list[Value], state: State) -> Value:
        kind = layer_kind(layer.maker)
        known_tensor = (
            bool(kind) and kind not in names("layers", "tuples") and kind not in names("layers", "containers")
        )
        first = operands[0] if operands else UNKNOWN
        if kind == "Identity":
            return first
        if first.tensorish and self._layer_works_in_place(layer, kind):
            self._written(node, node.args[0].value, first, state)
            return first
        result = computed_from(operands, Kind.TENSOR if known_tensor else Kind.LIKELY, next(self._storages))
        unknown = not kind and not operations.has_no_parameters(layer.maker)
        parametric = unknown or kind in names("saves_input", "parametric") or kind == "Sequential"
        result = dataclasses.replace(result, on_host=False, inputs=True)
        result = result.with_parameters() if parametric else result
        if kind:
            certain = kind in names("saves_input", "parametric")
            self._operation(node, layer.maker, operands, result, state, called=layer.name, certain=certain)
        if not kind or kind == "Sequential":
            self._keep_by_call(node, self._kept_by(layer), operands, result, layer.name, state)
        return result if state.gradient else result.without_gradient()

    def _kept_by(self, layer: Value) -> Kept:
        attribute = self._owner.attribute(layer.name[5:]) if self._owner and layer.name.startswith("self.") else None
        if attribute is None or self._owner is None:
            return NOTHING
        held = layer_kind(attribute.maker)
        if not layer.maker and (held == "Sequential" or held in names("layers", "containers")):
            return self._keeping.of_element(self._owner, layer.name[5:])
        return self._keeping.of_attribute(attribute)

    def _layer_works_in_place(self, layer: Value, kind: str) -> bool:
        attribute = self._owner.attribute(layer.name[5:]) if self._owner and layer.name.startswith("self.") else None
        return attribute is not None and operations.layer_writes(kind, attribute.value)

    def _method_call(self, node: cst.Call, receiver: Value, operands: list[Value], state: State) -> Value:
        assert isinstance(node.func, cst.Attribute)
        method = node.func.attr.value
        if dotted(node.func.value) == "self":
            return self._project_call(node, operands, state)
        if receiver.kind is Kind.PYTHON or method in names("python_values", "methods"):
            return PYTHON
        if receiver.kind is Kind.GROUP and receiver.keys and method in ("items", "values"):
            values = dataclasses.replace(receiver, keys=())
            return values if method == "values" else _in_step([PYTHON, values])
        if method in ("items", "values", "keys"):
            return Value(Kind.UNKNOWN, inputs=receiver.inputs)
        if receiver.kind is Kind.GROUP and method in _GROWS and dotted(node.func.value):
            added = operands[-1] if operands else UNKNOWN
            grown = concatenated(receiver, added if method == "extend" and added.kind is Kind.GROUP else group([added]))
            state.names[dotted(node.func.value)] = grown
            return PYTHON
        if receiver.tensorish:
            return self._tensor_method(node, method, receiver, operands, state)
        if method in names("evidence", "methods") or method in names("evidence", "reductions"):
            result = computed_from([receiver, *operands], Kind.LIKELY, next(self._storages))
            # What a call returned is computed; what an attribute holds may have been put there on the host.
            on_host = receiver.on_host
            is_attribute = isinstance(node.func.value, cst.Attribute)
            inputs = result.inputs or not (is_attribute or on_host)
            result = dataclasses.replace(result, inputs=inputs, on_host=result.on_host or on_host)
            return result.without_gradient() if method == "detach" else result
        return self._unknown_call([receiver, *operands])

    def _tensor_method(
        self, node: cst.Call, method: str, receiver: Value, operands: list[Value], state: State
    ) -> Value:
        assert isinstance(node.func, cst.Attribute)
        if operations.writes(method):
            self._written(node, node.func.value, receiver, state)
            return receiver
        kind = Kind.TENSOR if receiver.tensor else receiver.kind
        if method in names("views", "methods"):
            return receiver.view(detached=method == "detach")
        if method.endswith("_"):
            return receiver
        if method in names("views", "maybe"):
            stays = receiver.on_host and not self._may_leave_host(node, method)
            on_host = method == "cpu" or stays or self._moves_to_host(node)
            own = frozenset({next(self._storages)})
            result = dataclasses.replace(receiver.view(), storages=own, on_host=on_host, argument="", name="")
            return result.discrete() if operations.is_discrete(f".{method}") else result
        if not operations.is_tensor_method(method):  # what was taken for a tensor is something else
            return self._unknown_call([])
        if kind is Kind.LIKELY and method in names("evidence", "methods") | names("evidence", "reductions"):
            kind = Kind.TENSOR
        result = computed_from([receiver, *operands], kind, next(self._storages))
        self._operation(node, f".{method}", [receiver, *operands], result, state)
        result = result.discrete() if operations.is_discrete(f".{method}") else result
        return result if state.gradient else result.without_gradient()

    # ---- what autograd keeps

    def _operation(
        self,
        node: cst.Call,
        operation: str,
        operands: Sequence[Value],
        result: Value,
        state: State,
        called: str = "",
        certain: bool = False,
    ) -> None:
        copied = operations.takes_rows(operation) and bool(node.args) and _reorders(node.args[0].value)
        tensors = [v for v in (operands[1:] if copied else operands) if v.tensorish]
        carrying = certain or any(v.carries_gradient for v in tensors)
        what = called or operation.lstrip(".").removeprefix("torch.nn.functional.").removeprefix("torch.")
        if operations.keeps_input(operation):
            self._keep(node, tensors, what, state, certain=carrying)
        if operations.keeps_output(operation):
            self._keep(node, [result], what, state, certain=carrying, as_output=True)

    def _keep(
        self,
        node: cst.CSTNode,
        tensors: Iterable[Value],
        what: str,
        state: State,
        *,
        certain: bool,
        as_output: bool = False,
    ) -> None:
        if not state.gradient:
            return
        save = Save(node, what, as_output, certain)
        for tensor in tensors:
            if certain or tensor.inputs:  # thousands of branches may each have given it another storage
                state.saved |= dict.fromkeys(tensor.storages.difference(state.saved), save)


def unpacked(value: Value, targets: Sequence[cst.BaseElement]) -> list[Value]:
    """What each of several targets gets of a value: ``a, b = pair``, ``first, *others = outs``."""
    starred = [i for i, target in enumerate(targets) if isinstance(target, cst.StarredElement)]
    count, items = len(value.items) - len(targets), value.items
    if value.keys or (count if not starred else count < -1):
        rest = Value(Kind.GROUP, each=value.element)
        return [rest if isinstance(target, cst.StarredElement) else value.element for target in targets]
    if not starred:
        return list(items)
    first = starred[0]
    end = first + count + 1
    return [*items[:first], group(items[first:end]), *items[end:]]


#: Methods by which a list gets another element.
_GROWS = frozenset({"append", "extend"})


def _text(node: cst.BaseExpression) -> str:
    return str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""


def _dictionary(keys: list[str], values: list[Value]) -> Value:
    """A dictionary by its keys, where all of them are texts; else one of any of its values under each."""
    made = group(values)
    if all(keys) and len(set(keys)) == len(values) == len(made.items):
        return dataclasses.replace(made, keys=tuple(keys))
    return dataclasses.replace(made, items=(), each=join(values), keys=("",))


def _chosen(base: Value, index: Sequence[cst.SubscriptElement]) -> Value:
    """The element of a group that a constant index or key chooses; a part of it for a slice, any of them else."""
    at = index[0].slice
    if isinstance(at, cst.Slice):
        return dataclasses.replace(base, items=(), each=base.element) if base.items else base
    number = _axis(at.value) if isinstance(at, cst.Index) else None
    if base.keys:
        key = _text(at.value) if isinstance(at, cst.Index) else ""
        return base.items[base.keys.index(key)] if base.items and key in base.keys else base.element
    if number is not None and -len(base.items) <= number < len(base.items):
        return base.items[number]
    return base.element


def _in_step(operands: Sequence[Value]) -> Value:
    """What ``zip`` gives, and ``enumerate`` with a number in the first place: tuples, as many as are known of
    one of them."""
    counts = [len(v.items) for v in operands if v.items and not v.keys]
    if counts:
        rows = range(min(counts))
        return group(group(v.items[i] if v.items and not v.keys else v.element for v in operands) for i in rows)
    return Value(Kind.GROUP, each=group(v.element for v in operands))


def _device_asked_for(test: cst.BaseExpression) -> tuple[cst.BaseExpression, bool] | None:
    """The tensor that a test asks for its device, and whether the test holds for one on the host: ``x.is_cuda``,
    ``x.is_cpu``, ``x.device.type == "cpu"``."""
    if isinstance(test, cst.Attribute):
        return (test.value, test.attr.value == "is_cpu") if test.attr.value in ("is_cuda", "is_cpu") else None
    if not isinstance(test, cst.Comparison) or not isinstance(test.comparisons[0].operator, cst.Equal):
        return None
    kind, device = test.left, test.comparisons[0].comparator
    if not isinstance(kind, cst.Attribute) or not isinstance(kind.value, cst.Attribute):
        return None
    asked = isinstance(device, cst.SimpleString) and device.evaluated_value in ("cpu", "cuda")
    asked = asked and (kind.value.attr.value, kind.attr.value) == ("device", "type")
    return (kind.value.value, cst.ensure_type(device, cst.SimpleString).evaluated_value == "cpu") if asked else None


def _bound_within(inner: cst.BaseComp | cst.Lambda) -> Iterator[cst.CSTNode]:
    """What a comprehension or a lambda does to the names that it binds itself: ``x.shape``, ``conv(x)``."""
    if isinstance(inner, cst.Lambda):
        own, body = {param.name.value for param in parameters_of(inner)}, list(subtree(inner.body))
    else:
        loops, loop = [inner.for_in], inner.for_in
        while loop.inner_for_in is not None:
            loop = loop.inner_for_in
            loops.append(loop)
        own = {name for each in loops for name in names_in(each.target)}
        outside = set(subtree(inner.for_in.iter))
        body = [node for node in descendants(inner) if node not in outside]
    for node in body:
        at = node.value if isinstance(node, cst.Attribute) else None
        if isinstance(node, cst.Call) and node.args:
            at = node.args[0].value
        if isinstance(at, cst.Name) and at.value in own:
            yield node


def _may_be_plain(annotation: cst.BaseExpression) -> bool:
    """``int | Tensor``, ``list[int] | Tensor``: one of the kinds that the annotation allows holds no tensor."""
    plain = _PYTHON_ANNOTATIONS | _CONTAINER_ANNOTATIONS
    kinds = [{dotted(n).rpartition(".")[2] for n in subtree(a)} - {""} for a in _alternatives(annotation)]
    return len(kinds) > 1 and any(words and words <= plain for words in kinds)


def _alternatives(annotation: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The kinds that ``A | B``, ``Union[A, B]`` and ``Optional[A]`` allow."""
    if isinstance(annotation, cst.BinaryOperation) and isinstance(annotation.operator, cst.BitOr):
        yield from _alternatives(annotation.left)
        yield from _alternatives(annotation.right)
    elif isinstance(annotation, cst.Subscript) and dotted(annotation.value).rpartition(".")[2] in ("Union", "Optional"):
        for element in annotation.slice:
            if isinstance(element.slice, cst.Index):
                yield from _alternatives(element.slice.value)
    else:
        yield annotation


_SIGNS: dict[type[cst.BaseBinaryOp], str] = {cst.Multiply: "*", cst.Divide: "/", cst.MatrixMultiply: "@"}


def _parameters_of(iterator: cst.Attribute) -> Value:
    """What ``model.parameters()`` or ``model.named_parameters()`` gives."""
    parameter = Value(Kind.PARAMETER, name=f"{dotted(iterator)}()" if dotted(iterator) else "")
    return Value(Kind.GROUP, each=parameter if iterator.attr.value == "parameters" else group([PYTHON, parameter]))


def _reorders(node: cst.BaseExpression) -> bool:
    """A view of several matrices whose rows do not follow on each other: ``x.transpose(1, 2)``, ``x.permute(0, 2, 1)``.
    Those of a single matrix do, in any order: ``x.transpose(0, 1)``, ``x.permute(1, 2, 0)``."""
    method = node.func.attr.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else ""
    axes = [_axis(arg.value) for arg in node.args] if isinstance(node, cst.Call) and method in _REORDERING else []
    order = [axis for axis in axes if axis is not None]
    if not order or len(order) < len(axes):
        return False
    if method != "permute":
        return set(order) not in ({0, 1}, {0, -1})
    rows = [axis % len(order) for axis in order[:-1]]
    return any(after != before + 1 for before, after in itertools.pairwise(rows))


def _axis(node: cst.BaseExpression) -> int | None:
    """A number as it is written: ``1``, ``-1``."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        axis = _axis(node.expression)
        return None if axis is None else -axis
    return node.evaluated_value if isinstance(node, cst.Integer) else None


def _is_one(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Integer) and node.value == "1"


def _asks_for_in_place(node: cst.Call) -> bool:
    return any(a.keyword is not None and a.keyword.value == "inplace" and dotted(a.value) == "True" for a in node.args)

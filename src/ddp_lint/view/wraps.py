"""Where a file wraps modules for several ranks, and what comes before and after the wrap."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from ddp_lint.findings import Span
from ddp_lint.knowledge import table
from ddp_lint.knowledge.frameworks import Kind, wrappers
from ddp_lint.project.handed_on import ASKING, ASKS, Given, Handed, given_wrapped, keywords_given, wrapping_functions
from ddp_lint.project.handed_on import Wrapping as FunctionWrapping
from ddp_lint.project.project_names import Wrapping
from ddp_lint.source.control_flow import arms, conditions, exclusive, outcomes
from ddp_lint.source.tree import descendants, dotted, names_in, positional_of, subtree
from ddp_lint.view.module import Module

_KINDS: tuple[Kind, ...] = ("ddp", "fsdp1", "fsdp2")
#: From so many wraps of one name on they are looked up by where they are.
_MANY = 8
#: Stands for a wrap that is in no function of the file.
_ELSEWHERE = cst.Call(cst.Name("wrapped_elsewhere"))


@dataclasses.dataclass(frozen=True)
class Wrap:
    """One wrap: `call` turns the module named `inner` into the wrapped one named `outer` (dotted, '' if unnamed).

    `outer == inner` when the name is rebound or the wrap is in place; otherwise `inner` is the unwrapped twin.
    A test ``isinstance(model, DDP)`` counts as a wrap of that name, which is `tested`: where it holds, the name is
    wrapped, though not here. `given` are the keywords that a wrapper of the project's own adds to those of the call,
    None where they cannot be seen (`project.project_names.Wrapping`). `handed`: the call of another function that hands
    the wrapped model over; `call` is then none of the file's.
    """

    kind: str
    call: cst.Call
    inner: str
    outer: str
    tested: bool = False
    given: frozenset[str] | None = frozenset()
    handed: Handed | None = None

    @property
    def place(self) -> Span | cst.Call:
        """What a reader is shown as the wrap."""
        return self.handed.span if self.handed is not None else self.call

    def lacks(self, keyword: str) -> bool:
        """Whether the wrapper was surely made without an argument."""
        return self.given is not None and keyword not in self.given and argument(self.call, None, keyword) is None


class Wraps:
    """All wraps of one file, and the order of things around them."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._any_own = module.project is not None and bool(module.project.own.wrappers)
        self.all = [wrap for call in module.of_type(cst.Call) for wrap in self._wraps_of(call)]
        self._by_outer: dict[str, list[Wrap]] = collections.defaultdict(list)
        self._by_inner: dict[str, list[Wrap]] = collections.defaultdict(list)
        for wrap in self.all:
            self._by_outer[wrap.outer].append(wrap)
            self._by_inner[wrap.inner].append(wrap)

    @functools.cached_property
    def _calls(self) -> dict[str, list[cst.Call]]:
        """The calls of the file by what they call."""
        found = collections.defaultdict[str, list[cst.Call]](list)
        for call in self._module.of_type(cst.Call):
            found[dotted(call.func)].append(call)
        return found

    @functools.cached_property
    def _tests(self) -> dict[tuple[str, str], set[int]]:
        """The ids of the tests whether an object is wrapped, by its name and the way."""
        found = collections.defaultdict[tuple[str, str], set[int]](set)
        for wrap in self.all:
            if wrap.tested:
                found[wrap.outer, wrap.kind].add(id(wrap.call))
        return found

    @functools.cached_property
    def _made_in(self) -> dict[tuple[str, cst.FunctionDef | None], list[Wrap]]:
        found = collections.defaultdict[tuple[str, "cst.FunctionDef | None"], list[Wrap]](list)
        for wrap in self.all:
            found[wrap.outer, self._module.function_of(wrap.call)].append(wrap)
        return found

    def made_in(self, name: str, function: cst.FunctionDef | None) -> Sequence[Wrap]:
        """The wraps that make the object of this name in one function, in order."""
        return self._made_in.get((name, function), ())

    def made_by(self, value: cst.BaseExpression, name: str) -> list[Wrap]:
        """The wraps in an expression that make the object of this name, in order."""
        calls = (node for node in subtree(value) if isinstance(node, cst.Call))
        return [wrap for call in calls for wrap in self._by_call.get(call, ()) if wrap.outer == name]

    @functools.cached_property
    def _by_call(self) -> dict[cst.Call, list[Wrap]]:
        found = collections.defaultdict[cst.Call, list[Wrap]](list)
        for wrap in self.all:
            found[wrap.call].append(wrap)
        return found

    def _wraps_of(self, call: cst.Call) -> Iterator[Wrap]:
        if dotted(call.func) == "isinstance" and len(call.args) == 2:
            name, kind = dotted(call.args[0].value), self._kind_of(call.args[1].value)
            if kind and name:
                yield Wrap(kind, call, name, name, tested=True)
            return
        entry = wrappers().get(self._module.qualified(call.func))
        if entry is None:
            if self._any_own or self._functions:
                yield from self._by_own_wrapper(call)
            return
        inner = dotted(unmoved(argument(call, 0, entry.module)))
        assigned = assigned_name(self._module, _moved(self._module, call))
        yield Wrap(entry.kind, call, inner, inner if entry.in_place else assigned)
        if entry.in_place and assigned not in ("", inner):  # `self.model = fully_shard(model)`: one object, two names
            yield Wrap(entry.kind, call, assigned, assigned)

    def _kind_of(self, node: cst.BaseExpression) -> str:
        """How objects of a class are wrapped, '' for a class that wraps nothing."""
        entry, own = wrappers().get(self._module.qualified(node)), self._own(node)
        return entry.kind if entry is not None else own.kind if own is not None else ""

    def _own(self, node: cst.CSTNode) -> Wrapping | None:
        """How a wrapper of the project's own wraps, None for anything that the configuration does not call one."""
        project = self._module.project
        if project is None or not self._any_own or not self._module.listed("wrappers", node):
            return None
        return project.own.wrapping(self._module.spellings(node)[-1])

    def _by_own_wrapper(self, call: cst.Call) -> Iterator[Wrap]:
        """The wrap by a wrapper of the project's own."""
        own = self._own(call)
        if own is None:
            yield from self._by_function(call)
        else:
            given = (argument(call, 0, keyword) for keyword in ("module", "model"))
            inner = dotted(next(filter(None, given), None))
            in_place = own.kind == "fsdp2" and isinstance(self._module.parent(call), cst.Expr)
            outer = inner if in_place else assigned_name(self._module, _moved(self._module, call))
            yield Wrap(own.kind, call, inner, outer, given=own.given)

    @functools.cached_property
    def _functions(self) -> dict[str, tuple[Kind, FunctionWrapping]]:
        """The functions of the project that wrap models in one way, by their canonical names."""
        project, found = self._module.project, collections.defaultdict[str, list[tuple[Kind, FunctionWrapping]]](list)
        for kind in _KINDS if project is not None else ():
            for name, wrapping in wrapping_functions(project, kind).items() if project is not None else ():
                found[name].append((kind, wrapping))
        return {name: ways[0] for name, ways in found.items() if len(ways) == 1}

    def _by_function(self, call: cst.Call) -> Iterator[Wrap]:
        """The wraps by a function of the project that wraps what it is given, or returns what it has wrapped."""
        name = self._module.qualified(call.func)
        if not name and isinstance(call.func, cst.Name) and call.func.value in self._last_names:
            name = self._module.callee(call)
        found = self._functions.get(name) if name else None
        if found is None or self._module.project is None:
            return
        kind, function = found
        given = keywords_given(self._module.project, kind)
        outer = assigned_name(self._module, _moved(self._module, call))
        for place in function.in_place:
            model = dotted(argument(call, *place))
            yield from (Wrap(kind, call, each, each, given=given) for each in {model, outer or model} - {""})
        if -1 in function.returned and outer and not function.in_place:
            inner = dotted(unmoved(argument(call, *function.of))) if function.of is not None else ""
            yield Wrap(kind, call, inner, outer, given=given)

    @functools.cached_property
    def _last_names(self) -> frozenset[str]:
        return frozenset(name.rpartition(".")[2] for name in self._functions)

    def of(self, name: str, at: cst.CSTNode) -> Wrap | None:
        """The wrap that made the object that `name` (dotted) refers to at `at`, None when there is none before."""
        if not name:
            return None
        wrap = next((w for w in self._near(self._by_outer, name, at) if self.after(w, at)), None)
        if wrap is None:
            return self._given(name, at) or self._handed(name, at)
        return None if self._is_another_one(name, wrap, at) or self._is_excluded(wrap, at) else wrap

    def _is_excluded(self, wrap: Wrap, at: cst.CSTNode) -> bool:
        """Whether `at` is reached only where a test has shown that the object is not wrapped in this way."""
        tests = self._tests.get((wrap.outer, wrap.kind), ())
        for part, taken in outcomes(conditions(self._module, at)) if tests else ():
            negated = isinstance(part, cst.UnaryOperation) and isinstance(part.operator, cst.Not)
            asked = part.expression if isinstance(part, cst.UnaryOperation) else part
            if negated == taken and id(asked) in tests:
                return True
        return False

    def _given(self, name: str, at: cst.CSTNode) -> Wrap | None:
        """The wrap of what every call in the file gives a function for the parameter `name`, None where one of them
        gives something else, or all of them are in functions that get it themselves."""
        function = self._module.function_of(at)
        if not self.all or function is None or self._module.class_of(function) is not None:
            return None
        places = [p.name.value for p in positional_of(function)]
        if name not in places or self._module.assignments(name, at):
            return None
        calls = self._calls.get(function.name.value, ())
        found = [self._made(argument(call, places.index(name), name), call) for call in calls]
        first = found[0] if found else None
        return first if first is not None and all(w is not None and w.kind == first.kind for w in found) else None

    @functools.cached_property
    def _handed_by_kind(self) -> dict[Kind, Given]:
        project = self._module.project
        return {kind: given_wrapped(project, kind) for kind in _KINDS} if project is not None else {}

    def _handed(self, name: str, at: cst.CSTNode) -> Wrap | None:
        """The wrap of what another function of the project gives the one around for the parameter `name`, or the
        constructor of the class around for an attribute, unless a test asks how it is wrapped."""
        project, function, owner = self._module.project, self._module.function_of(at), self._module.class_of(at)
        if project is None or function is None or (not name.isidentifier() and not name.startswith("self.")):
            return None
        around = owner if owner is not None and (name.startswith("self.") or is_init(function)) else function
        key = (self._module.name_of(around), name)
        found = {kind: handed[key] for kind, handed in self._handed_by_kind.items() if key in handed}
        if len(found) != 1 or self._rebinds(name, function) or self._asks(at):
            return None
        kind, handed = next(iter(found.items()))
        return Wrap(kind, _ELSEWHERE, name, name, given=keywords_given(project, kind), handed=handed)

    def _rebinds(self, name: str, function: cst.FunctionDef) -> bool:
        """Whether a function gives a name to something else than it got."""
        own = [b for b in self._module.bindings(name, function.body) if self._module.function_of(b.node) is function]
        return any(b.kind != "parameter" for b in own) and not is_init(function)

    def _asks(self, at: cst.CSTNode) -> bool:
        """Whether a test around a place asks how a model is wrapped, or how many ranks there are."""
        texts = (self._module.code(test).lower() for test, _ in conditions(self._module, at))
        return any(word in text for text in texts for word in (*ASKS, *ASKING))

    def _made(self, value: cst.BaseExpression | None, call: cst.Call) -> Wrap | None:
        name = dotted(value)
        return next((w for w in self._near(self._by_outer, name, call) if name and self.after(w, call)), None)

    def _is_another_one(self, name: str, wrap: Wrap, at: cst.CSTNode) -> bool:
        """Whether every way from the wrap to `at` gives the name to an object that does not come from the wrapped."""
        function = self._module.function_of(at)
        if function is None or function is not self._module.function_of(wrap.call):
            return False
        order = self._module.order
        start, end = order[wrap.call], order[at]
        between = [value for value in self._module.assignments(name, at) if start < order[value] < end]
        around = {id(up) for up in self._module.ancestors(at)} if between else set()
        return any(name not in names_in(value) and id(self._block_of(value)) in around for value in between)

    def _block_of(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return next((up for up in self._module.ancestors(node) if isinstance(up, (cst.BaseSuite, cst.Module))), None)

    def twin(self, name: str, at: cst.CSTNode) -> Wrap | None:
        """The wrap whose unwrapped module `name` still is at `at`: another name holds the wrapped one."""
        for wrap in self._near(self._by_inner, name, at):
            if wrap.outer not in (name, "") and self.after(wrap, at):
                return wrap
        return None

    def around(self, path: str, at: cst.CSTNode) -> Wrap | None:
        """The wrap before `at` of the model that an object is, or is part of, by its dotted name: of `model` for
        ``model.module.fc``, also where `model` is the unwrapped twin. Parts of a DDP object are behind `.module`."""
        parts = path.split(".")
        for end in range(len(parts), 0, -1):
            name, wrap = ".".join(parts[:end]), self.of(".".join(parts[:end]), at)
            if wrap is not None and (wrap.kind != "ddp" or parts[end : end + 1] in ([], ["module"])):
                return wrap
            if (twin := self.twin(name, at)) is not None:
                return twin
        return None

    def _near(self, wraps: Mapping[str, Sequence[Wrap]], name: str, at: cst.CSTNode) -> Sequence[Wrap]:
        """Of the wraps by this name those that `at` can be after, last first: not those in functions beside it."""
        found = wraps.get(name, ())
        if len(found) < _MANY:
            return found[::-1]
        if (id(wraps), name) not in self._by_place:
            by_place = self._by_place[id(wraps), name] = collections.defaultdict(list)
            for number, wrap in enumerate(found):
                by_place[self._module.function_of(wrap.call)].append((number, wrap))
                if (owner := self._module.class_of(wrap.call)) is not None:
                    by_place[owner].append((number, wrap))
        places = (None, *(up for up in self._module.ancestors(at) if isinstance(up, (cst.FunctionDef, cst.ClassDef))))
        near = dict(each for place in places for each in self._by_place[id(wraps), name].get(place, ()))
        return [near[number] for number in sorted(near, reverse=True)]

    @functools.cached_property
    def _by_place(self) -> dict[tuple[int, str], dict[cst.CSTNode | None, list[tuple[int, Wrap]]]]:
        """The wraps by a name, numbered, by the functions and classes that they are in."""
        return {}

    def after(self, wrap: Wrap, at: cst.CSTNode) -> bool:
        """Whether `at` runs after the wrap on some path, and mentions the same names.

        In one function: later in the source and not in the other arm of an `if`; what is inside a function that is
        defined there runs where that one is called or handed out. Across methods of a class, for names on `self`: the
        wrap is in a constructor-like method and `at` in another one.
        """
        here, there = self._module.function_of(wrap.call), self._module.function_of(at)
        if here is there:
            follows = self._module.order[at] > self._module.order[wrap.call] and not self._is_argument(wrap, at)
            apart = follows and exclusive(self._module, wrap.call, at, holds=wrap.tested)
            return follows and not apart and not self._is_flagged_apart(wrap, at)
        if self._is_entered_after(wrap, at):
            return True
        same_class = self._module.class_of(wrap.call) is self._module.class_of(at) is not None
        return (
            same_class
            and wrap.outer.startswith("self.")
            and here is not None
            and is_constructor(here.name.value)
            and there is not None
            and not is_constructor(there.name.value)
            and not self._called_before(there.name.value, wrap, here)
        )

    def _is_argument(self, wrap: Wrap, at: cst.CSTNode) -> bool:
        """Whether `at` is in the arguments of the wrap, which are evaluated first: ``DDP(model.half())``."""
        return not wrap.tested and any(up is wrap.call for up in self._module.ancestors(at))

    def _is_entered_after(self, wrap: Wrap, at: cst.CSTNode) -> bool:
        """Whether all that runs the function around `at`, which sees the name of the wrapped model, is behind the
        wrap, and nothing binds that name again."""
        here, name = self._module.scope_of(wrap.call), wrap.outer.partition(".")[0]
        if not name or wrap.tested or name in ("self", "cls") or self._module.scope_of(at) is here:
            return False
        if self._module.scopes.scope_of(name, at) is not here:
            return False
        places = self._module.closures.entries(at, here)
        bound = self._module.assignments(wrap.outer, wrap.call)
        is_last = not any(
            self._module.order[value] > self._module.order[wrap.call] and name not in names_in(value) for value in bound
        )
        return is_last and places is not None and all(self.after(wrap, place) for place in places)

    def _is_flagged_apart(self, wrap: Wrap, at: cst.CSTNode) -> bool:
        """Whether another `if` of the same flag keeps `at` apart from the wrap: ``if distributed:``. What else a test
        asks may have another answer behind the wrap, and so has a flag that is set anew."""
        here = arms(self._module, wrap.call)
        there = arms(self._module, at) if here else here
        flags = (test for test, arm in here.items() if there.get(test, arm) != arm and _is_dotted(test))
        return any(not self._is_bound_between(flag, wrap.call, at) for flag in flags)

    def _is_bound_between(self, name: str, first: cst.CSTNode, second: cst.CSTNode) -> bool:
        places = (self._module.order.get(b.node, 0) for b in self._module.bindings(name, second))
        return any(self._module.order[first] < place < self._module.order[second] for place in places)

    def _called_before(self, method: str, wrap: Wrap, constructor: cst.FunctionDef) -> bool:
        """Whether all calls of a method in the file are in the constructor, above the wrap."""
        functions = ((call, call.func) for call in self._module.of_type(cst.Call))
        calls = [c for c, func in functions if isinstance(func, cst.Attribute) and func.attr.value == method]
        return bool(calls) and all(
            self._module.function_of(call) is constructor and self._module.order[call] < self._module.order[wrap.call]
            for call in calls
        )

    def before(self, at: cst.CSTNode, wrap: Wrap) -> bool:
        """Whether `at` runs before the wrap in the same function. A test wraps nothing: what comes before it may come
        after the wrap."""
        same = self._module.function_of(wrap.call) is self._module.function_of(at)
        return (
            same
            and not wrap.tested
            and self._module.order[at] < self._module.order[wrap.call]
            and not exclusive(self._module, at, wrap.call)
        )

    def leads_to(self, at: cst.CSTNode, wrap: Wrap) -> bool:
        """Whether the method around `at` calls, behind it, the method of the same class that wraps an attribute."""
        here, there = self._module.function_of(at), self._module.function_of(wrap.call)
        owner = self._module.class_of(at)
        if here is None or there is None or owner is None or owner is not self._module.class_of(wrap.call):
            return False
        calls = (n for n in descendants(here.body) if isinstance(n, cst.Call))
        wraps = (call for call in calls if dotted(call.func) == f"self.{there.name.value}")
        return any(self.follows(call, at) and not exclusive(self._module, at, call) for call in wraps)

    def is_called_first(self, at: cst.CSTNode, wrap: Wrap) -> bool:
        """Whether a method of the class calls the method around `at` above the one that wraps an attribute, and none
        calls them the other way round."""
        here, there = self._module.function_of(at), self._module.function_of(wrap.call)
        owner = self._module.class_of(at)
        if here is None or there is None or here is there or owner is None:
            return False
        if owner is not self._module.class_of(wrap.call) or not wrap.inner.startswith("self."):
            return False
        orders = list[bool]()
        for method in owner.body.body:
            if isinstance(method, cst.FunctionDef):
                calls = [n for n in descendants(method.body) if isinstance(n, cst.Call)]
                first = [call for call in calls if dotted(call.func) == f"self.{here.name.value}"]
                second = [call for call in calls if dotted(call.func) == f"self.{there.name.value}"]
                orders += [self.follows(b, a) for a in first for b in second if not exclusive(self._module, a, b)]
        return bool(orders) and all(orders)

    def is_constructed_first(self, at: cst.CSTNode, wrap: Wrap) -> bool:
        """Whether the constructor always comes to `at`, and another method of the class, which the constructor does
        not lead to, wraps an attribute: that one runs on the object that is made."""
        here, there = self._module.function_of(at), self._module.function_of(wrap.call)
        owner = self._module.class_of(at)
        if here is None or there is None or here is there or owner is None or not is_init(here):
            return False
        if owner is not self._module.class_of(wrap.call) or not wrap.inner.startswith("self."):
            return False
        if not any(
            self._module.parent(up) is here.body
            for up in self._module.ancestors(at)
            if isinstance(up, cst.SimpleStatementLine)
        ):
            return False
        methods = {each.name.value: each for each in owner.body.body if isinstance(each, cst.FunctionDef)}
        left, reached = [here], {here.name.value}
        while left:
            named = {dotted(n) for n in descendants(left.pop().body) if isinstance(n, cst.Attribute)}
            new = {name for name in methods if f"self.{name}" in named} - reached
            reached |= new
            left += [methods[name] for name in new]
        return methods.get(there.name.value) is there and there.name.value not in reached

    def follows(self, later: cst.CSTNode, earlier: cst.CSTNode) -> bool:
        """Whether `later` is behind `earlier` in the source."""
        return self._module.order[later] > self._module.order[earlier]


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def unmoved(node: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The module that an expression is: ``model`` of ``model.cuda()``, ``model.to(device)`` and
    ``SyncBatchNorm.convert_sync_batchnorm(model)``."""
    while isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute) and _returns_module(node.func):
            node = node.func.value
        elif node.args and _returns_argument(node.func):
            node = node.args[0].value
        else:
            break
    return node


def _moved(module: Module, call: cst.Call) -> cst.Call:
    """The whole expression that still is the module that a call makes: ``DDP(model).to(device)``, ``cast(Net,
    DDP(model))``."""
    while True:
        up = module.parent(call)
        around = module.parent(up) if isinstance(up, (cst.Arg, cst.Attribute)) else None
        if not isinstance(around, cst.Call):
            return call
        if isinstance(up, cst.Attribute) and not (_returns_module(up) and around.func is up):
            return call
        converts = _returns_argument(around.func) and up is around.args[0]
        if isinstance(up, cst.Arg) and not converts and module.qualified(around.func) != "typing.cast":
            return call
        call = around


def _returns_argument(function: cst.BaseExpression) -> bool:
    return dotted(function).rpartition(".")[2] in table("tensors")["layers"]["returning_argument"]


def _returns_module(method: cst.Attribute) -> bool:
    return method.attr.value in table("tensors")["layers"]["returning_module"]


def argument(call: cst.Call, position: int | None, keyword: str) -> cst.BaseExpression | None:
    """The value of an argument by keyword, else by position; None when absent or hidden behind a star."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg.value
    if position is not None and position < len(call.args):
        if any(arg.star or arg.keyword is not None for arg in call.args[: position + 1]):
            return None
        return call.args[position].value
    return None


def assigned_name(module: Module, value: cst.CSTNode) -> str:
    """The dotted name that a value is assigned to, also as one of two tuples: ``a, b = f(x), f(y)``. '' when it is not
    assigned to one name."""
    up = module.parent(value)
    if isinstance(up, cst.IfExp):
        up = module.parent(up)
    if isinstance(up, cst.Assign) and len(up.targets) == 1:
        return dotted(up.targets[0].target)
    if isinstance(up, cst.AnnAssign):
        return dotted(up.target)
    return _paired_name(module, up) if isinstance(up, cst.Element) else ""


def _paired_name(module: Module, element: cst.Element) -> str:
    """The name of a tuple that gets a part of the tuple which is assigned to it, '' where they are not written so."""
    given = module.parent(element)
    assign = module.parent(given) if isinstance(given, cst.Tuple) else None
    if not isinstance(given, cst.Tuple) or not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return ""
    names = assign.targets[0].target
    if not isinstance(names, cst.Tuple) or len(names.elements) != len(given.elements):
        return ""
    if not all(isinstance(each, cst.Element) for each in (*names.elements, *given.elements)):
        return ""
    return dotted(names.elements[given.elements.index(element)].value)


def is_init(function: cst.FunctionDef) -> bool:
    return function.name.value == "__init__"


def is_constructor(name: str) -> bool:
    """Methods that set an object up before it is used: `__init__`, `setup`, `build_model`, `configure_ddp` ..."""
    return name in ("__init__", "__post_init__", "setup") or name.lstrip("_").startswith(
        ("init", "setup", "build", "configure", "prepare", "wrap", "create", "make", "load_model")
    )


def root_name(node: cst.BaseExpression) -> str:
    """The dotted name at the root of a chain of calls, subscripts and attributes: `model.module[0].parameters()`
    -> ``model.module``."""
    while True:
        if isinstance(node, cst.Call):
            node = node.func
            if isinstance(node, cst.Attribute):
                node = node.value
        elif isinstance(node, cst.Subscript) or (isinstance(node, cst.Attribute) and not dotted(node)):
            node = node.value
        else:
            return dotted(node)

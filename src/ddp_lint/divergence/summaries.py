"""Function summaries on demand, bottom-up, each made once: what a callee does and returns for given arguments."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from ddp_lint import knowledge
from ddp_lint.divergence import closures, conditions, expressions, iteration, targets
from ddp_lint.divergence import references as ref
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.calls import call, invoke
from ddp_lint.divergence.calls_by_name import is_agreement, of_arms, unwrapped
from ddp_lint.divergence.collectives import agree, communicate, turn
from ddp_lint.divergence.compaction import compacted, whole_if_diverging
from ddp_lint.divergence.definitions import (
    attributes_in,
    hands_on,
    is_generator,
    is_never_none,
    literals_yielded,
    makes_what_it_yields,
    plainly_kept,
    returns_pairs,
    stores_in,
)
from ddp_lint.divergence.effects import Effect, Inline, Leave, choices, communicates, levels_of_generators
from ddp_lint.divergence.event_graph import TooLarge
from ddp_lint.divergence.evidence import Evidence
from ddp_lint.divergence.expressions import dotted, evaluate
from ddp_lint.divergence.frame import (
    Frame,
    Handlers,
    Returned,
    either_way,
    entering,
    leaving,
    none,
    reference_of,
    span_of,
)  # fmt: skip
from ddp_lint.divergence.groups import OF_MACHINES, handed_out, named, names_group, seen_through
from ddp_lint.divergence.inheritance import Answers
from ddp_lint.divergence.one_process import is_name_of_one_process
from ddp_lint.divergence.parameters import annotated, bound, general, passed_on, widened, without_constants
from ddp_lint.divergence.references import FunctionRef
from ddp_lint.divergence.resolve import Linker, known
from ddp_lint.divergence.selections import of_one_shape
from ddp_lint.divergence.slicing import storing
from ddp_lint.divergence.statements import attributes_left, run
from ddp_lint.divergence.summary_cache import Key, Memory, Summary
from ddp_lint.divergence.values import (
    KEYED,
    NEVER,
    WORLD_SIZE,
    Component,
    Known,
    Test,
    Value,
    Variation,
    argument_key,
    constant,
    holding,
    is_absent,
    is_numbered,
    is_whether_sharded,
    leaves,
    merge,
    symbols_in,
    unknown,
)
from ddp_lint.divergence.variables import Variables
from ddp_lint.knowledge.communication import Collective
from ddp_lint.project import Answered, Project
from ddp_lint.project.effort import Bound
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.project_names import Own
from ddp_lint.source.names import Names
from ddp_lint.source.syntax import FunctionNode, first_name, parameters, positional

#: Different argument lists that one evaluation of a caller has a function summarised for. Of those that follow only
#: flags, groups, models and functions count (`parameters.widened`), and after as many again the arguments are unknown.
#: Each evaluation by itself: what a call does must not depend on what was evaluated before, for this root or others.
_CONTEXTS = 12
#: Calls that numbers, and flags, are followed through: each function of a chain that calls the next one twice, with
#: numbers of its own, doubles the argument lists of all that follow. Programs hand few of them on that far.
_PASSED_ON, _FLAGS_PASSED_ON = 4, 5
#: Arguments of a call that take as long as a statement, which they count as.
_AS_A_STATEMENT = 32
#: Calls of one function within each other that are distinguished by their arguments.
_RECURSION = 2
#: Decorators under which the type of an argument decides which body runs: the decorated one is for types that nobody
#: registered, and often does nothing but raise.
_DISPATCHING = frozenset({"functools.singledispatch", "functools.singledispatchmethod"})


#: In the name of a function that communicates: what it returns is made of what all ranks had.
_AGGREGATES = "aggregat"

_NOTHING = Summary([], unknown("recursion"))
#: What a function leaves: all its names, not one attribute.
_ALL_NAMES = "*"


class Given(NamedTuple):
    """The arguments of a call, and the tests that lead to it."""

    arguments: dict[str, Value]
    path: tuple[Test, ...]


class Summaries:
    """All evaluations of one project. Raises TooLarge out of a root that costs more than its bound."""

    #: Statements that the evaluation of one function may take besides its own, in callees: some seconds. Those of the
    #: largest engines take 34,000. What was kept of other functions counts as if it was made for this one, so that what
    #: was evaluated before means nothing.
    BOUND = 40_000
    #: Statements that all roots of a file may take together, those of a callee once: so many, and these for each line.
    #: Models of the largest engines take 73,000.
    BOUND_OF_FILE, BOUND_OF_LINE = 80_000, 4
    #: Of these, what functions may take again and again, beyond a multiple of their size: for one root, and for all of
    #: a file, which has one more for each of its lines. Roots of real trainers on top of Megatron were seen to take
    #: 10,000; what the roots of a file have in common, which is most of it, counts once.
    REPEATED, REPEATED_OF_FILE, REPEATED_OF_LINE = 12_000, 16_000, 1
    #: What evaluates each kind of expression.
    handlers: ClassVar[Handlers] = {
        **expressions.HANDLERS, **conditions.HANDLERS, **iteration.HANDLERS, **targets.HANDLERS, ast.Call: call,
    }  # fmt: skip

    def __init__(self, project: Project, *, whole: bool = True) -> None:
        self.linker = Linker(project)
        #: A callee that makes the ranks diverge is one event to its callers: it is reported where it is.
        self.whole = whole
        self._watched: ast.AST | None = None
        self._given: list[Given] = []
        #: What the configuration says of the project's own names, None where it says nothing.
        self.own: Own | None = project.own or None
        #: Counts the statements that roots and files take.
        self.effort = project.effort
        self._bound = Bound(self.BOUND, self.REPEATED)
        self._bound_of_file = Bound(self.BOUND_OF_FILE, self.REPEATED_OF_FILE)
        #: The keys that each running evaluation has asked for, by function; the first is for what is asked outside.
        self._asked: list[dict[ast.AST, set[Key]]] = [{}]
        #: By key: the deciding arguments that the summary under that key alone was made for.
        self._decided: dict[Key, tuple[tuple[str, tuple[Component, ...]], ...]] = {}
        self.variables = Variables(self)
        self._memory = Memory(self.linker, self.variables)
        self.evidence = Evidence(self.linker)
        self.parameters: dict[Hashable, Answered[tuple[dict[str, Value], Answers]]] = {}
        self._decorated: dict[Hashable, Answered[Value]] = {}
        self._decorating: set[Hashable] = set()
        #: What roots do, where files change: kept by who analyses them.
        self.reads: dict[Hashable, Answered[Any]] = {}

    def let_go(self, facts: ModuleFacts) -> None:
        """Let go of what was kept of a module."""
        self.linker.let_go(facts)
        self.variables.let_go(facts)
        self._memory.forget_dropped()

    def let_go_of_all(self) -> None:
        """Nobody uses the summaries any more: what they hold is freed now. They refer to one another, and to find out
        that nothing else refers to them the garbage collector would go over all objects, for seconds."""
        for part in (self, self.linker, self.variables, self._memory):
            for held in vars(part).values():
                if isinstance(held, dict):
                    held.clear()

    def let_go_of_stale(self) -> None:
        """Drop what was stored for summaries that are no longer cached."""
        self._memory.forget_dropped()
        self._decided = {key: components for key, components in self._decided.items() if key in self._memory}

    def spend(self) -> None:
        """A statement is about to be run."""
        self.effort.step()
        self.check()

    def check(self) -> None:
        """Raises TooLarge where the root takes more than its bound."""
        if self.effort.part.exceeds(self._bound):
            raise TooLarge

    def start_file(self, lines: int) -> None:
        """Before the roots of another file."""
        self.effort.start_whole()
        self._bound_of_file = Bound(
            self.BOUND_OF_FILE + self.BOUND_OF_LINE * lines, self.REPEATED_OF_FILE + self.REPEATED_OF_LINE * lines
        )

    @property
    def is_exhausted(self) -> bool:
        """Whether the roots of the file have taken more than all of a file may."""
        return self.effort.whole.exceeds(self._bound_of_file)

    @property
    def is_half_exhausted(self) -> bool:
        return self.effort.whole.exceeds_half(self._bound_of_file)

    @contextlib.contextmanager
    def watching(self, node: ast.AST) -> Iterator[list[Given]]:
        """Collects what a function is called with meanwhile."""
        self._watched, self._given = node, []
        try:
            yield self._given
        finally:
            self._watched = None

    # ---- calls

    def enter(self, frame: Frame, function: FunctionRef, arguments: Arguments, node: ast.Call) -> Value:
        """Call a project function: its effects are added to the frame, its value is returned."""
        entry = _documented_collective(function)
        if entry is not None:
            return communicate(frame, entry, arguments, node)
        decorated = None if function.bare else self._as_decorated(frame, function)
        if decorated is not None:
            return self._enter_decorated(frame, function, decorated, arguments, node)
        env = bound(self, frame, function, arguments)
        for _ in range(len(env) // _AS_A_STATEMENT):
            self.spend()
        if frame.apart:
            env |= _apart_in(frame, function, _given_paths(function, arguments, node))
        if function.node is self._watched and not self._memory.depth:  # what is kept already is not entered again
            self._given.append(Given(env, tuple(frame.path)))
        summary = self._summary(function, env, passed_on(frame, arguments))
        nested = _is_within(frame, function)
        inline = Inline(summary.effects, frame.span(node), function.name, frame.text(node.func), nested=nested)
        inline.quiet = frame.is_quiet
        if _never_returns(function.node):
            frame.effects.append(Leave("raise"))
        if is_generator(function.node):
            inline.levels = summary.levels
            literal = literals_yielded(function.node)
            makes = makes_what_it_yields(function.node)
            quiet = not communicates(summary.effects)
            of = env.get(hands_on(function.node)) if quiet else None
            generator = ref.Generator(inline, id(node), summary.switched, literal, summary.yields, makes, of)
            return unknown(frame.key(node), generator)
        if summary.effects and not frame.single:
            frame.effects.append(inline)
            self._agree(frame, function, summary, arguments)
        if summary.single:
            frame.env[summary.single] = constant(1)
        self._set_attributes(frame, function, summary, arguments, node)
        returned = self._returned(frame, function, arguments, node, summary, env)
        plain = returned.constant is None and returned.missing is None
        return dataclasses.replace(returned, missing=NEVER) if plain and is_never_none(function.node) else returned

    def _as_decorated(self, frame: Frame, function: FunctionRef) -> Value | None:
        return self._decorate(function) if getattr(function.node, "decorator_list", None) else None

    def _enter_decorated(
        self, frame: Frame, function: FunctionRef, decorated: Value, arguments: Arguments, node: ast.Call
    ) -> Value:
        receiver = (function.receiver,) if function.is_bound else ()
        shifted = dataclasses.replace(arguments, positional=(*receiver, *arguments.positional), nodes={})
        outer, frame.effects = frame.effects, []
        result = invoke(frame, decorated, shifted, node)
        inner, frame.effects = frame.effects, outer
        frame.effects += whole_if_diverging(inner, function.name) if self.whole else inner
        return result

    def _returned(
        self, frame: Frame, function: FunctionRef, arguments: Arguments, node: ast.Call, summary: Summary,
        env: dict[str, Value],
    ) -> Value:  # fmt: skip
        """What the call gives, with what the function's name says of it."""
        returned = _in_group(leaving(summary.returned), frame, arguments)
        if is_name_of_one_process(function.name) and isinstance(returned.reference, ref.Instance):
            return returned.with_reference(ref.ON_ONE_DEVICE)
        if any(value.agreed for value in arguments.values):
            returned = of_one_shape(returned)
        named_rank = self._rank_by_name(frame, function, node) if returned.varies is not None else None
        if named_rank is not None and named_rank.varies is not None and _is_of_part(named_rank.varies):
            return named_rank  # the name gives the axis, regardless of the body
        agrees = is_agreement(function.name) or _AGGREGATES in function.name
        if summary.effects and returned.constant is None and agrees:
            agreed = unknown((frame.key(node), "returned"), returned.reference, agreed=True)
            return dataclasses.replace(agreed, missing=returned.missing)
        if returned.varies is None and _is_unknown(returned):
            ranked = self._rank_by_name(frame, function, node)
            if ranked is not None:
                return ranked
            group = handed_out(function.name, arguments.values)
            if group is not None:
                return unknown((frame.key(node), "returned"), ref.GroupRef(group))
        if isinstance(returned.constant, Known) or returned.varies is not None or returned.reference is not None:
            return returned
        if returned.kind == WORLD_SIZE or is_whether_sharded(returned):
            return returned
        # The same question twice has one answer, so that a condition of the callee is one with the caller's.
        asked = (function.node, tuple(value.key for value in env.values())) if not summary.effects else frame.key(node)
        of = self._annotated(function)
        return dataclasses.replace(returned, components=unknown((asked, "returned")).components, reference=of)

    def _annotated(self, function: FunctionRef) -> ref.Instance | None:
        """The object of the project that a function returns by its annotation. A module is none: it communicates where
        it was made parallel, which a function that builds one has not done yet."""
        found = annotated(self.linker, function.facts, getattr(function.node, "returns", None))
        if found is None or not isinstance(found.of, ref.ClassRef) or self.linker.is_module(found.of):
            return None
        return found

    def _set_attributes(
        self, frame: Frame, function: FunctionRef, summary: Summary, arguments: Arguments, node: ast.Call
    ) -> None:
        """What a call does to the objects that it gets: ``stopper(loss)`` with each rank's own loss, or on one rank."""
        paths = _given_paths(function, arguments, node)
        for name, value in summary.left.items():
            parameter, _, attribute = name.partition(".")
            path = f"{paths[parameter]}.{attribute}" if paths.get(parameter) else ""
            if path and (value.varies is not None or value.agreed or path in frame.env):
                frame.env[path] = leaving(value)
                if value.varies is not None:
                    frame.apart.add(path)
        of = paths.get(_first(function)) if function.owner is not None else None
        if of and any(test.varying() is not None for test in frame.path):
            self._set_flags(frame, function, of, node)

    def _set_flags(self, frame: Frame, function: FunctionRef, path: str, node: ast.Call) -> None:
        """Flags that the method sets, called where only some ranks come."""
        assert function.owner is not None
        for name, stores in stores_in(function.owner.node).items():
            sets = any(method is function.node for method, _ in stores)
            flag = sets and any(isinstance(getattr(value, "value", None), bool) for _, value in stores)
            now = frame.env.get(f"{path}.{name}") or self.variables.attribute_of(function.owner, name) if flag else None
            if flag and (now is None or now.same):
                frame.env[f"{path}.{name}"] = unknown(("set by", frame.key(node), name))

    def _rank_by_name(self, frame: Frame, function: FunctionRef, node: ast.Call) -> Value | None:
        """A project's own `get_rank()` whose body shows nothing: what its name says.

        A name for a pair (rank, world size) does not describe a function that returns another tuple.
        """
        entry = known().rank("call", f"*.{function.name}")
        if entry is None or node.args or (entry.item >= 0 and not returns_pairs(function.node)):
            return None
        return frame.rank_value(entry, node)

    def enter_unseen(self, frame: Frame, function: FunctionRef, at: ast.expr) -> Value:
        """Call without an `ast.Call` of its own: `__enter__`, a property."""
        call = ast.copy_location(ast.Call(func=at, args=[], keywords=[]), at)
        return self.enter(frame, function, Arguments(), call)

    def property_value(self, frame: Frame, function: FunctionRef, base: Value, node: ast.AST) -> Value:
        bound = dataclasses.replace(function, receiver=base, of=function.of, bare=True)
        if not isinstance(node, ast.expr):
            return unknown(frame.key(node))
        value = self.enter_unseen(frame, bound, node)
        if isinstance(node, ast.Attribute) and value.varies is not None:
            scope = seen_through(value.varies.scope, frame.text(node.value))
            value = dataclasses.replace(value, varies=dataclasses.replace(value.varies, scope=scope))
        if value.varies is None and value.reference is None:
            ranked = frame.named_rank("attribute", function.name, node)
            if ranked is not None and value.constant is None:
                return ranked
        return value

    def _agree(self, frame: Frame, function: FunctionRef, summary: Summary, arguments: Arguments) -> None:
        """Arguments that the callee changes: ``all_reduce(x)``, ``fully_shard(model)`` in a helper."""
        names = [a.arg for a in positional(function.node)]
        if function.is_bound:
            names = names[1:]
        for index, name in enumerate(names):
            argument = arguments.nodes.get(index) or arguments.nodes.get(name)
            if name in summary.agreed:
                agree(frame, argument)
            elif name in summary.turned:
                turn(frame, argument, summary.turned[name])

    def _decorate(self, function: FunctionRef) -> Value | None:
        """The function as its decorators leave it; None where they leave it as it is."""
        key = (function.node, function.owner, function.of)
        bare = dataclasses.replace(function, bare=True)
        if key in self._decorating:
            return None
        value = self.linker.project.remember(key, lambda: self._with_decorators(key, function, bare), self._decorated)
        return None if value.reference == bare else value

    def _with_decorators(self, key: Hashable, function: FunctionRef, bare: FunctionRef) -> Value:
        self._decorating.add(key)
        outer = Frame(self, function.facts, None, owner=function.owner, closure=dict(function.closure or {}))
        value = unknown(("decorated", function.name), bare)
        try:
            for decorator in reversed(getattr(function.node, "decorator_list", [])):
                value = self._apply(outer, decorator, value, function)
        finally:
            self._decorating.discard(key)
        return value

    def decorated(self, function: FunctionRef, env: Mapping[str, Value] | None = None) -> Frame | None:
        """The function called through its decorators, for arguments unknown or for those in `env`; None where they
        leave it as it is."""
        if not getattr(function.node, "decorator_list", None) or is_generator(function.node):
            return None
        frame = Frame(self, function.facts, None, function.owner, function.receiver)
        value = self._decorate(dataclasses.replace(function, bare=False))
        if value is None:
            return None
        name = ast.copy_location(ast.Name(function.name, ast.Load()), function.node)
        name.end_lineno, name.end_col_offset = name.lineno, name.col_offset + 3
        node = ast.copy_location(ast.Call(func=name, args=[], keywords=[]), name)
        receiver = (function.receiver,) if function.is_bound else ()
        names = [parameter.arg for parameter in parameters(function.node)][len(receiver) :]
        given = {name: env[name] for name in names if name in env} if env is not None else {}
        invoke(frame, value, Arguments(receiver, given, starred=env is None), node)
        return frame if frame.effects else None

    def _apply(self, outer: Frame, decorator: ast.expr, inner: Value, function: FunctionRef) -> Value:
        if isinstance(decorator, ast.Attribute) and decorator.attr in ("setter", "getter", "deleter"):
            return inner
        maker = evaluate(outer, decorator)
        reference = reference_of(maker)
        call = ast.copy_location(ast.Call(func=decorator, args=[], keywords=[]), decorator)
        if isinstance(reference, ref.External):
            if reference.name in _DISPATCHING:
                return unknown(("dispatched", function.name))
            gate = known().gate(reference.name)
            if gate is None or gate.what != "decorator":
                return inner
            return unknown(("gated", function.name), ref.Partial(inner, (gate,), identity=id(decorator)))
        if isinstance(reference, (FunctionRef, ref.Partial)):
            result = invoke(outer, maker, Arguments((inner,)), call)
            if isinstance(reference_of(result), (FunctionRef, ref.Partial)):
                return result
            return inner
        made_by = reference_of(evaluate(outer, decorator.func)) if isinstance(decorator, ast.Call) else None
        external = isinstance(made_by, ref.External)
        name = made_by.name if external else ast.unparse(decorator).partition("(")[0]  # type: ignore[union-attr]
        gate = known().gate(name) if isinstance(reference, ref.Method) or reference is None else None
        if isinstance(reference, ref.Method) and reference.of:
            gate = known().gates.get(f"{reference.of}.{reference.name}") or gate
        if gate is not None and gate.what == "decorator":
            return unknown(("gated", function.name), ref.Partial(inner, (gate,), identity=id(decorator)))
        return inner

    def _summary(self, function: FunctionRef, env: dict[str, Value], came: int) -> Summary:
        """`came`: through how many calls the constants among the arguments have come."""
        if self._memory.depth_in(function.node) >= _RECURSION:
            env, came = general(self, function, heuristic=False), 0
        elif came > _PASSED_ON:
            env = without_constants(self, function, env, flags=came > _FLAGS_PASSED_ON)
            came = min(came, _FLAGS_PASSED_ON + 1)
        key = self._key(function, env, came=came)
        asked = self._asked[-1].setdefault(function.node, set())
        if key not in asked and len(asked) >= _CONTEXTS:
            env = widened(self, function, env)
            key = self._key(function, env, came=came)
            if key not in asked and len(asked) >= 2 * _CONTEXTS:
                env = general(self, function, heuristic=False)
                key = self._key(function, env)
        asked.add(key)
        summary = self._kept(key, function, env)
        if not summary.deciding:
            return summary
        # It depends on which arguments there are, not on what is known of them: a condition belongs to the caller.
        components = tuple((name, leaves(env[name])) for name in summary.deciding)
        exact = key._replace(deciding=components)
        first = self._decided.setdefault(key, components)
        if components == first or (exact not in asked and len(asked) >= 3 * _CONTEXTS):
            return summary
        asked.add(exact)
        return self._kept(exact, function, env)

    def _kept(self, key: Key, function: FunctionRef, env: dict[str, Value]) -> Summary:
        if not self._memory.can_give(key):
            return _NOTHING
        try:
            return self._memory.keep(key, function, lambda: self._summarised(function, env, key.came))
        except RecursionError:
            return _NOTHING

    def _summarised(self, function: FunctionRef, env: dict[str, Value], came: int) -> Summary:
        frame = self.evaluate(function, env, came=came)
        effects, returned = compacted(frame, function), _folded(frame)
        left = _attributes(frame, function, agreed=bool(effects))
        # A generator is not one event to its callers: each look at it goes through all generators that lie in it.
        levels = 1 + levels_of_generators(effects) if is_generator(function.node) else 0
        for _ in range(1, levels):
            self.spend()
        return Summary(
            effects, returned, {}, frozenset(frame.agreed), frame.turned, left, frame.switched,
            yields=_numbered(frame.yielded), levels=levels, single=_leaves_single(frame),
            deciding=_deciding(env, effects, returned),
        )  # fmt: skip

    def _key(self, function: FunctionRef, env: dict[str, Value], left: str = "", came: int = 0) -> Key:
        # Sorted by name, regardless of their order in the call; an object comes first.
        given = list(env)
        first = int(function.is_bound)
        arguments = tuple((name, argument_key(env[name])) for name in (*given[:first], *sorted(given[first:])))
        rebound, closure = self.variables.rebound(), closures.seen(function)
        return Key(function.node, function.of, arguments, rebound, closure, left, came)

    def evaluate(
        self, function: FunctionRef, env: dict[str, Value], body: list[ast.stmt] | None = None, came: int = 0
    ) -> Frame:
        """Run the function's body, or what is given of it."""
        closure = dict(function.closure) if function.closure is not None else None
        frame = Frame(
            self,
            function.facts,
            function.node,
            function.owner,
            function.receiver,
            Names(env),
            closure,
            depth=self._memory.depth,
            came=came,
            apart={name for name in env if not name.isidentifier()},
            values_alone=body is not None,
        )
        self._asked.append({})
        try:
            if isinstance(function.node, ast.Lambda):
                frame.returned.append(Returned(None, evaluate(frame, function.node.body)))
            else:
                run(frame, function.node.body if body is None else body)
        finally:
            self._asked.pop()
        return frame

    def forget(self, own: int) -> None:
        """Before a new root, which has so many statements of its own: no function is running."""
        self._asked = [{}]
        self.variables.forget()
        self._memory.forget()
        self.effort.start_part()
        self._bound = Bound(self.BOUND + own, self.REPEATED)

    def names_after(self, function: FunctionRef) -> dict[str, Value] | None:
        """The names that a function leaves, evaluated for arguments unknown; None while it is running."""
        env = general(self, function, heuristic=True)
        return self._left_by(function, env, _ALL_NAMES, lambda: self.evaluate(function, env).env)

    def attribute_after(self, method: FunctionRef, attribute: str) -> Value | None:
        """What a method leaves in an attribute of its object, likewise."""
        assert isinstance(method.node, FunctionNode)
        path = f"{first_name(method.node)}.{attribute}"
        env = general(self, method, heuristic=True)
        body = storing(method.node, attribute)
        for name, kept in self._kept_by(method, attribute).items():
            if name in env and env[name].varies is None:
                env[name] = unknown(("attribute", f"{first_name(method.node)}.{kept}"), env[name].reference)

        def left() -> dict[str, Value]:
            names = self.evaluate(method, env, body).env
            return {path: names[path]} if path in names else {}

        return (self._left_by(method, env, path, left) or {}).get(path)

    def entries_after(self, method: FunctionRef, attribute: str) -> Value | None:
        """What a method makes of a dictionary in an attribute of its object that is empty before."""
        path = f"{first_name(method.node)}.{attribute}"
        empty = holding(unknown((KEYED, path)), entries={})
        env = {**general(self, method, heuristic=True), path: empty}

        def left() -> dict[str, Value]:
            return {path: self.evaluate(method, env).env.get(path, empty)}

        return (self._left_by(method, env, f"{path}[]", left) or {}).get(path)

    @staticmethod
    def _kept_by(method: FunctionRef, attribute: str) -> dict[str, str]:
        """The parameters of a constructor behind an attribute that are attributes as well: one flag, two names."""
        assert isinstance(method.node, FunctionNode)
        if method.owner is None or method.name != "__init__":
            return {}
        return plainly_kept(method.owner.node, method.node, attribute)

    def _left_by(
        self, function: FunctionRef, env: dict[str, Value], what: str, left: Callable[[], dict[str, Value]]
    ) -> dict[str, Value] | None:
        key = self._key(function, env, what)
        if not self._memory.can_give(key):
            return None
        try:
            return self._memory.keep(key, function, lambda: Summary([], none(), left())).env
        except RecursionError:
            return None


def _never_returns(node: ast.AST) -> bool:
    """Does the annotation say ``NoReturn`` or ``Never``?"""
    returns = getattr(node, "returns", None)
    return returns is not None and dotted(returns).rpartition(".")[2] in ("NoReturn", "Never")


def _documented_collective(function: FunctionRef) -> Collective | None:
    """In the code of a framework itself: a function that the knowledge has an entry for, under its public name."""
    if function.owner is not None or function.closure is not None:
        return None
    module = function.facts.name
    for package in (module, module.rpartition(".")[0]):
        entry = known().collectives.get(knowledge.canonical(f"{package}.{function.name}")) if package else None
        if entry is not None:
            return entry
    return None


def _folded(frame: Frame) -> Value:
    """The returned value: the first return whose tests hold."""
    if not frame.returned:
        return none()
    result = none() if frame.alive else frame.returned[-1].value
    pending = frame.returned if frame.alive else frame.returned[:-1]
    for known_test, value, _ in reversed(pending):
        test = known_test or either_way(frame, frame.function)
        merged = merge(test, value, result, ("returned", frame.facts.name, getattr(frame.function, "lineno", 0)))
        result = of_arms(merged, unwrapped(value, result), value, result, test)
    return result


def _numbered(yielded: list[Value]) -> tuple[Value | None, ...]:
    """What each position of the tuples that a generator yields holds, where it is numbered: ``yield i, batch``."""
    tuples = [value.items for value in yielded if value.items is not None]
    if not tuples or len(tuples) < len(yielded) or len({len(items) for items in tuples}) > 1:
        return ()
    return tuple(parts[-1] if all(map(is_numbered, parts)) else None for parts in zip(*tuples, strict=True))


def _leaves_single(frame: Frame) -> str:
    """By which name the function has set up a job of one process or left the job, unless it says by its value that it
    has not (``return False``); '' if it has not."""
    *early, last = [*(returned.value for returned in frame.returned), *([none()] if frame.alive else [])] or [none()]
    values = [value.constant for value in early]
    refused = all(value is not None and not value.value for value in values)
    done = not early or (refused and last.constant is not None and bool(last.constant.value))
    return frame.single if done else ""


def _deciding(env: dict[str, Value], effects: list[Effect], returned: Value) -> tuple[str, ...]:
    """Parameters whose values are in a condition of the effects, or in what is returned as a formula."""
    atoms = [*choices(effects), *(returned.test.atoms() if returned.test is not None else ())]
    if not atoms:
        return ()
    asked = symbols_in(dict.fromkeys(truth for atom in atoms for truth in atom.truths))
    return tuple(name for name, value in env.items() if any(leaf in asked for leaf in leaves(value)))


def _is_unknown(returned: Value) -> bool:
    """Is it of unknown kind, or the value of a rank or a group where no job runs?"""
    plain = isinstance(returned.reference, ref.Method) and not returned.reference.of
    return (returned.reference is None or plain) and (returned.constant is None or is_absent(returned))


def _is_of_part(varies: Variation) -> bool:
    """Is it a place along one parallel axis, or membership, and no place among all ranks?"""
    return varies.cause == "membership" or varies.scope not in OF_MACHINES


def _in_group(value: Value, frame: Frame, arguments: Arguments) -> Value:
    """The rank that a function returns for a group argument is the rank in that group."""
    if value.varies is None or value.varies.cause != "rank" or value.varies.scope != "world":
        return value
    names = [frame.text(node) for node in arguments.nodes.values()]
    group = next((named(name) for name in names if names_group(name)), None)
    if group is None or group.is_world:
        return value
    return dataclasses.replace(value, varies=dataclasses.replace(value.varies, scope=f"group:{group.key}"))


def _first(function: FunctionRef) -> str:
    """The name that a method has for its object."""
    return first_name(function.node) if function.is_bound else ""


def _given_paths(function: FunctionRef, arguments: Arguments, node: ast.Call) -> dict[str, str]:
    """The caller's names for the objects that a function gets, by its parameters."""
    names = [a.arg for a in positional(function.node)]
    first = _first(function)
    paths = {name: dotted(given) for name, given in arguments.nodes.items() if isinstance(name, str)}
    places = enumerate(names[1:] if first else names)
    paths |= {name: dotted(arguments.nodes[place]) for place, name in places if place in arguments.nodes}
    if first:
        called = node.func
        method = isinstance(called, ast.Attribute) and called.attr == function.name
        paths[first] = dotted(called.value if method and isinstance(called, ast.Attribute) else called)
    return paths


def _apart_in(frame: Frame, function: FunctionRef, paths: Mapping[str, str]) -> dict[str, Value]:
    """The attributes of what a function gets that are not the same on all ranks; of those that follow from each rank's
    own data, what it reads itself."""
    found: dict[str, Value] = {}
    for path in frame.apart & frame.env.keys():
        of, part = _split(path)
        if frame.env[path].open and part[1:] not in attributes_in(function.node):
            continue
        found |= {name + part: entering(frame.env[path]) for name, given in paths.items() if given == of}
    return found


def _split(path: str) -> tuple[str, str]:
    """An object and its attribute or entry: ``config`` and ``.saves``, or ``["saves"]``."""
    place = path.rindex("[") if path.endswith("]") else path.rindex(".")
    return path[:place], path[place:]


def _attributes(frame: Frame, function: FunctionRef, *, agreed: bool) -> dict[str, Value]:
    """The attributes that a function sets of what it gets, ``self.stop``, as they are at its end. Where it
    communicates, the ranks have agreed on those that are no longer each rank's own: ``meter.all_reduce()``."""
    left = attributes_left(frame)
    if not left:
        return {}
    parameters = {a.arg for a in positional(function.node)}
    own = {path: value for path, value in left.items() if path.partition(".")[0] in parameters}
    if not agreed:
        return {name: value for name, value in own.items() if value.varies is not None or value.reference is None}
    alike = ((name, value) for name, value in own.items() if value.varies is None)
    return {name: dataclasses.replace(value, agreed=value.agreed or _is_flag(value)) for name, value in alike}


def _is_flag(value: Value) -> bool:
    """Is it a number or a flag that only the run knows, for all that is seen of it?"""
    return value.reference is None and value.constant is None and value.items is None and value.entries is None


def _is_within(frame: Frame, function: FunctionRef) -> bool:
    """Is the function defined in the one that calls it, or in the same function as its caller?"""
    if function.closure is None or frame.function is None or frame.facts is not function.facts:
        return False
    beside = reference_of((frame.closure or {}).get(function.name))
    if isinstance(beside, FunctionRef) and beside.node is function.node:
        return True
    outer = span_of(frame.facts, frame.function)
    return outer.line < span_of(function.facts, function.node).line <= outer.end_line

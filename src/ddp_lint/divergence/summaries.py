"""Function summaries on demand, bottom-up, each made once: what a callee does and returns for given arguments."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence

from ddp_lint import knowledge
from ddp_lint.divergence import references as ref
from ddp_lint.divergence import signals, worlds
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.build import build
from ddp_lint.divergence.calls import invoke
from ddp_lint.divergence.collectives import agree, communicate, turn
from ddp_lint.divergence.definitions import (
    assignments_in,
    defaults_of,
    documentation_of,
    is_generator,
    is_positive,
    rebinders_in,
    rebound_in,
    returns_pairs,
    stores_in,
)
from ddp_lint.divergence.effects import Branch, Effect, Emitted, Inline, Leave, choices, matters, size
from ddp_lint.divergence.expressions import dotted, evaluate
from ddp_lint.divergence.frame import Frame, argument_key, entering, leaving, none, reference_of, span_of
from ddp_lint.divergence.groups import Group, handed_out, named, seen_through
from ddp_lint.divergence.hooks import is_batch
from ddp_lint.divergence.names import is_agreement
from ddp_lint.divergence.references import ClassRef, FunctionRef
from ddp_lint.divergence.resolve import Linker, known
from ddp_lint.divergence.statements import run
from ddp_lint.divergence.values import (
    Condition,
    Known,
    Test,
    Value,
    Variation,
    constant,
    divergent,
    merge,
    negated,
    unknown,
)
from ddp_lint.divergence.words import (
    CONFIDENCES,
    Emit,
    Letter,
    Projection,
    TooLarge,
    Words,
    guards_of_all,
    streams_of,
)
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge.communication import Collective
from ddp_lint.project import Answered, Project
from ddp_lint.project.facts import ModuleFacts

#: Different argument lists that one function is summarised for; the next is summarised for arguments unknown.
_CONTEXTS = 12
#: Ways to rebind a module's variable that are followed from call to call.
_FOLLOWED = ("counted", "switched")
#: Functions that a module variable is asked for.
_REBINDING = 3
#: Calls within calls.
_DEPTH = 14
#: Effects of a callee that are spliced into its caller; a larger one stays one letter.
_SPLICED = 160
_SHOWS = {
    "sharded": re.compile(
        r"FullyShardedDataParallel|\bFSDP\b|\bfsdp(_config|_plugin)?\b|fully_shard|zero_stage|ZeRO|stage3|zero3|deepspeed|DTensor|distribute_tensor"
    ),
    "buffers": re.compile(r"BatchNorm|register_buffer|broadcast_buffers=True"),
    "metric-sync": re.compile(r"torchmetrics|sync_dist"),
    "statistics": re.compile(r"SyncBatchNorm|sync_bn"),
    "launched": re.compile(r"accelerat|deepspeed|FSDP", re.IGNORECASE),
}
#: Parameters that hold a rank's own data.
_BATCHES = frozenset({"batch", "minibatch", "mini_batch", "micro_batch", "microbatch", "batch_data", "data_batch"})
_OF_DICTIONARY = re.compile(r"\.(values|items|keys|parameters|named_parameters)\(\)\)?$")
_GROUP = re.compile(r"(^|[._])(process_)?(group|pg)$")
_DISTRIBUTED = re.compile(
    r"DistributedDataParallel|\bDDP\b|FullyShardedDataParallel|fully_shard|deepspeed\.initialize|Accelerator\(|"
    r"prepare_ddp|DataParallel\b.*dist|Fabric\(|accelerator\.prepare|_wrap_distributed|get_model_ddp"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """What a call does (a tree that returns at its end) and what it gives back."""

    effects: list[Effect]
    returned: Value
    env: dict[str, Value] = dataclasses.field(default_factory=dict)
    #: Parameters that the function makes the same on all ranks.
    agreed: frozenset[str] = frozenset()
    #: Parameters that it makes objects of another class.
    turned: Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Attributes of its object that a method leaves with a value of each rank's own.
    left: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    #: Variables of modules as they are where a generator hands over.
    switched: dict[tuple[str, str], Value] = dataclasses.field(default_factory=dict)


_NOTHING = Summary([], unknown("recursion"))


class Summaries:
    """All evaluations of one project. Raises TooLarge out of a root that costs more than its bound."""

    #: Statements that the evaluation of one function may run, its callees included.
    BOUND = 60_000

    def __init__(self, project: Project) -> None:
        self.linker = Linker(project)
        self.left = self.BOUND
        self._memo: dict[Hashable, Answered[Summary]] = {}
        self._contexts: dict[ast.AST, int] = {}
        self._running: set[Hashable] = set()
        self._modules: dict[str, dict[str, Answered[Value]]] = {}
        self._pending_modules: set[Hashable] = set()
        self._attributes: dict[Hashable, Answered[Value | None]] = {}
        self._pending_attributes: set[Hashable] = set()
        self._overlay: dict[tuple[str, str], Value] = {}
        self._texts: dict[Hashable, bool] = {}
        self._decorated: dict[Hashable, Answered[Value]] = {}
        self._decorating: set[Hashable] = set()
        self._depth = 0

    @property
    def modules_read(self) -> int:
        return len(self._modules)

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooLarge

    # ---- calls

    def enter(self, frame: Frame, function: FunctionRef, arguments: Arguments, node: ast.Call) -> Value:
        """Call a project function: its effects are added to the frame, its value is returned."""
        entry = _documented_collective(function)
        if entry is not None:
            return communicate(frame, entry, arguments, node)
        if not function.bare and getattr(function.node, "decorator_list", None):
            decorated = self._decorate(frame, function)
            if decorated is not None:
                receiver = () if function.receiver is None or _is_static(function) else (function.receiver,)
                shifted = dataclasses.replace(arguments, positional=(*receiver, *arguments.positional), nodes={})
                outer, frame.effects = frame.effects, []
                result = invoke(frame, decorated, shifted, node)
                inner, frame.effects = frame.effects, outer
                frame.effects += self._whole_if_parted(inner, function.name)
                return result
        env = self._bind(frame, function, arguments, node)
        summary = self._summary(function, env)
        nested = _is_within(frame, function)
        inline = Inline(summary.effects, frame.span(node), function.name, frame.text(node.func), nested=nested)
        if is_generator(function.node):
            return unknown(frame.key(node), ref.Generator(inline, id(node), summary.switched))
        if summary.effects:
            frame.effects.append(inline)
            self._agree(frame, function, summary, arguments)
        if function.owner is not None:
            self._set_attributes(frame, function, summary, node)
        returned = _in_group(leaving(summary.returned), frame, arguments)
        named_rank = self._rank_by_name(frame, function, node) if returned.varies is not None else None
        if named_rank is not None and named_rank.varies is not None and _is_of_part(named_rank.varies):
            return named_rank  # whatever the body asks for: the name tells along which axis
        if summary.effects and returned.constant is None and is_agreement(function.name):
            return unknown((frame.key(node), "returned"), returned.reference, agreed=True)
        if (
            returned.varies is None
            and returned.reference is None
            and (returned.constant is None or _is_absent(returned))
        ):
            ranked = self._rank_by_name(frame, function, node)
            if ranked is not None:
                return ranked
            group = handed_out(function.name)
            if group is not None:
                return unknown((frame.key(node), "returned"), ref.GroupRef(group))
        if isinstance(returned.constant, Known) or returned.varies is not None or returned.reference is not None:
            return returned
        return dataclasses.replace(returned, components=unknown((frame.key(node), "returned")).components)

    def _set_attributes(self, frame: Frame, function: FunctionRef, summary: Summary, node: ast.Call) -> None:
        """What a method does to its object: ``stopper(loss)`` with each rank's own loss, or on rank 0 alone."""
        of = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == function.name else node.func
        path = dotted(of)
        if not path:
            return
        frame.env.update({f"{path}.{name}": leaving(value) for name, value in summary.left.items()})
        if any(test.varying() is not None for test in frame.path):
            self._set_flags(frame, function, path, node)

    def _set_flags(self, frame: Frame, function: FunctionRef, path: str, node: ast.Call) -> None:
        """Flags that the method sets, called where only some ranks come."""
        assert function.owner is not None
        for name, stores in stores_in(function.owner.node).items():
            sets = any(method is function.node for method, _ in stores)
            flag = sets and any(isinstance(getattr(value, "value", None), bool) for _, value in stores)
            now = frame.env.get(f"{path}.{name}") or self.attribute_of(function.owner, name) if flag else None
            if flag and (now is None or now.same):
                frame.env[f"{path}.{name}"] = unknown(("set by", frame.key(node), name))

    def _rank_by_name(self, frame: Frame, function: FunctionRef, node: ast.Call) -> Value | None:
        """A project's own `get_rank()` whose body tells nothing: what its name says.

        A name that stands for a pair (rank, world size) says nothing of a function that returns another tuple.
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
        names = [a.arg for a in (*function.node.args.posonlyargs, *function.node.args.args)]
        if function.receiver is not None and names:
            names = names[1:]
        for index, name in enumerate(names):
            argument = arguments.nodes.get(index) or arguments.nodes.get(name)
            if name in summary.agreed:
                agree(frame, argument)
            elif name in summary.turned:
                turn(frame, argument, summary.turned[name])

    def _bind(self, frame: Frame, function: FunctionRef, arguments: Arguments, node: ast.Call) -> dict[str, Value]:
        """The callee's parameters."""
        signature = function.node.args
        names = [a.arg for a in (*signature.posonlyargs, *signature.args)]
        env: dict[str, Value] = {}
        if function.receiver is not None and names and not _is_static(function):
            env[names[0]] = function.receiver
            names = names[1:]
            arguments = _without_receiver(arguments, function)
        for index, (name, value) in enumerate(zip(names, arguments.positional, strict=False)):
            env[name] = _named_group(frame, name, entering(value), arguments.nodes.get(index))
        named = {*names, *(a.arg for a in signature.kwonlyargs)}
        for name, value in arguments.keywords.items():
            if name in named:
                env[name] = _named_group(frame, name, entering(value), arguments.nodes.get(name))
        if not arguments.starred:
            env |= _collected(frame, signature, len(names), named, arguments)
        defaults = defaults_of(function.node)
        for parameter in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs):
            if parameter.arg in env:
                env[parameter.arg] = self._typed(function, parameter, env[parameter.arg])
                continue
            default = defaults.get(parameter.arg)
            if default is not None and not arguments.starred:
                env[parameter.arg] = self._default(function, default)
            else:
                env[parameter.arg] = self.parameter(function, parameter, heuristic=False)
        return env

    def _default(self, function: FunctionRef, default: ast.expr) -> Value:
        if isinstance(default, (ast.Constant, ast.UnaryOp)):  # also ``rank=-1``
            return evaluate(Frame(self, function.facts, None), default)
        return unknown(("default", ast.dump(default)[:80]))

    def parameter(self, function: FunctionRef, parameter: ast.arg, heuristic: bool) -> Value:
        """A parameter that no caller is known for: its class by annotation; what its name says."""
        frame = Frame(self, function.facts, function.node)
        if heuristic and not is_positive(defaults_of(function.node).get(parameter.arg)):
            ranked = frame.named_rank("name", parameter.arg, parameter)
            if ranked is not None:
                return ranked
        if heuristic and (parameter.arg in _BATCHES or is_batch(self.linker, function, parameter)):
            label = Label(span_of(function.facts, parameter), "each rank gets a batch of its own here")
            says = "the batches of this rank"
            varies = Variation("data", says, origin=label, confidence=Confidence.MEDIUM)
            return divergent(("parameter", parameter.arg), varies)
        of = self._annotated(function.facts, parameter.annotation) or self._documented(function, parameter.arg)
        if of is None:
            guess = known().guessed_type(parameter.arg)
            of = ref.Instance(guess, guessed=True) if guess else None
        return unknown(("parameter", parameter.arg), of)

    def _typed(self, function: FunctionRef, parameter: ast.arg, value: Value) -> Value:
        """An argument of which the caller knows nothing is what the parameter's annotation says."""
        if parameter.annotation is None or value.constant is not None or value.varies is not None:
            return value
        if value.reference is not None and not (isinstance(value.reference, ref.Method) and not value.reference.of):
            return value
        of = self._annotated(function.facts, parameter.annotation)
        return value.with_reference(of) if of is not None else value

    def _annotated(self, facts: ModuleFacts, annotation: ast.expr | None) -> ref.Instance | None:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except (SyntaxError, ValueError):
                return None
        if isinstance(annotation, ast.BinOp):  # X | None
            return self._annotated(facts, annotation.left)
        if isinstance(annotation, ast.Subscript):
            if isinstance(annotation.value, ast.Name) and annotation.value.id == "Optional":
                return self._annotated(facts, annotation.slice)
            return None
        reference = self.linker.expression(facts, annotation) if annotation is not None else None
        if isinstance(reference, ClassRef):
            return ref.Instance(reference)
        if isinstance(reference, ref.External) and reference.name in known().types:
            return ref.Instance(reference.name)
        return None

    def _documented(self, function: FunctionRef, name: str) -> ref.Instance | None:
        """The class that the docstring of the function or class gives: ``name : Optional[package.Class]``."""
        for node in (function.node, function.owner.node if function.owner is not None else None):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            documentation = documentation_of(node)
            if name not in documentation:
                continue
            match = re.search(rf"^\s*{re.escape(name)}\s*(?::|\()\s*(.+)$", documentation, re.M)
            for path in re.findall(r"[A-Za-z_][\w.]*\.[A-Z]\w*|\b[A-Z]\w+", match[1]) if match else ():
                reference = self.linker.dotted(path) if "." in path else self.linker.in_module(function.facts, path)
                if isinstance(reference, ClassRef):
                    return ref.Instance(reference)
        return None

    def _decorate(self, frame: Frame, function: FunctionRef) -> Value | None:
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

    def decorated(self, function: FunctionRef) -> Frame | None:
        """The function called through its decorators, arguments unknown; None where they leave it as it is."""
        if not getattr(function.node, "decorator_list", None) or is_generator(function.node):
            return None
        frame = Frame(self, function.facts, None, function.owner, function.receiver)
        value = self._decorate(frame, dataclasses.replace(function, bare=False))
        if value is None:
            return None
        name = ast.copy_location(ast.Name(function.name, ast.Load()), function.node)
        name.end_lineno, name.end_col_offset = name.lineno, name.col_offset + 3
        node = ast.copy_location(ast.Call(func=name, args=[], keywords=[]), name)
        receiver = () if function.receiver is None or _is_static(function) else (function.receiver,)
        invoke(frame, value, Arguments(receiver, starred=True), node)
        return frame if frame.effects else None

    def _apply(self, outer: Frame, decorator: ast.expr, inner: Value, function: FunctionRef) -> Value:
        if isinstance(decorator, ast.Attribute) and decorator.attr in ("setter", "getter", "deleter"):
            return inner
        maker = evaluate(outer, decorator)
        reference = reference_of(maker)
        call = ast.copy_location(ast.Call(func=decorator, args=[], keywords=[]), decorator)
        if isinstance(reference, ref.External):
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

    def _summary(self, function: FunctionRef, env: dict[str, Value]) -> Summary:
        key = self._key(function, env)
        if key not in self._memo:
            seen = self._contexts.get(function.node, 0)
            if seen >= _CONTEXTS:
                env = self.general(function, heuristic=False)
                key = self._key(function, env)
            self._contexts[function.node] = seen + 1
        if key not in self._memo and (key in self._running or self._depth >= _DEPTH):
            return _NOTHING
        try:
            return self.linker.project.remember(key, lambda: self._summarised(key, function, env), self._memo)
        except RecursionError:
            return _NOTHING

    def _summarised(self, key: Hashable, function: FunctionRef, env: dict[str, Value]) -> Summary:
        frame = self._run_once(key, function, env)
        effects, returned = self._compact(frame, function), _folded(frame)
        left = _own_attributes(frame, function) if function.receiver is not None and not effects else {}
        return Summary(effects, returned, {}, frozenset(frame.agreed), frame.turned, left, frame.switched)

    def _run_once(self, key: Hashable, function: FunctionRef, env: dict[str, Value]) -> Frame:
        """`evaluate`, with `key` marked as running meanwhile."""
        self._running.add(key)
        self._depth += 1
        try:
            return self.evaluate(function, env)
        finally:
            self._depth -= 1
            self._running.discard(key)

    def _key(self, function: FunctionRef, env: dict[str, Value]) -> Hashable:
        overlay = (
            tuple(sorted((name, value.components) for name, value in self._overlay.items())) if self._overlay else ()
        )
        closure = id(function.closure) if function.closure is not None else 0
        return (
            function.node,
            function.of,
            tuple((name, argument_key(value)) for name, value in env.items()),
            overlay,
            closure,
        )

    def general(self, function: FunctionRef, heuristic: bool) -> dict[str, Value]:
        """Parameters for a function of which no call is known."""
        signature = function.node.args
        env: dict[str, Value] = {}
        parameters = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs]
        for index, parameter in enumerate(parameters):
            if index == 0 and function.receiver is not None and not _is_static(function):
                env[parameter.arg] = function.receiver
            else:
                env[parameter.arg] = self.parameter(function, parameter, heuristic)
        return env

    def evaluate(self, function: FunctionRef, env: dict[str, Value]) -> Frame:
        """Run the function's body."""
        closure = dict(function.closure) if function.closure is not None else None
        frame = Frame(
            self,
            function.facts,
            function.node,
            function.owner,
            function.receiver,
            dict(env),
            closure,
            depth=self._depth,
        )
        if isinstance(function.node, ast.Lambda):
            frame.returned.append((None, evaluate(frame, function.node.body)))
        else:
            run(frame, function.node.body)
        return frame

    def _compact(self, frame: Frame, function: FunctionRef) -> list[Effect]:
        """The callee as its callers need it: nothing, its effects, or one letter for a large or unbalanced one."""
        effects = frame.effects
        if not matters(effects):
            last = effects[-1] if effects else None
            if not isinstance(last, Leave) or last.what not in ("raise", "exit") or frame.returned:
                return []
            # an abstract method is another one at run time, which goes on
            return [Leave(last.what)] if last.raised != "NotImplementedError" else []
        if is_generator(function.node):
            return effects
        if size(effects) > _SPLICED:
            return self._whole(effects, function.name)
        return effects if function.closure is not None else self._whole_if_parted(effects, function.name)

    def _whole_if_parted(self, effects: list[Effect], name: str) -> list[Effect]:
        """What parts the ranks by itself is reported where it stands; around it, it is one letter."""
        if not matters(effects) or not any(condition.may_part for condition in choices(effects)):
            return effects
        words = Words()
        start = build(effects, words)
        if any(atom.varies is not None and atom.varies.foreign for atom in _atoms(words)):
            return effects
        parted = any(_parts(words, start, stream) for stream in list(streams_of(words.nodes)))
        return self._whole(effects, name) if parted else effects

    def _whole(self, effects: list[Effect], name: str) -> list[Effect]:
        words = Words()
        start = build(effects, words)
        streams = frozenset(streams_of(words.nodes))
        letters = [node.letter for node in reversed(words.nodes) if isinstance(node, Emit)]
        if not letters:
            return []
        surest = max(letters, key=lambda letter: CONFIDENCES.index(letter.confidence))
        whole: Letter = dataclasses.replace(
            surest, op=name, kind="collective", group=Group(), streams=streams, root=None, reduce_op=None
        )
        kept: list[Effect] = [Emitted(whole)]
        for condition, outcome in guards_of_all(words, start):
            atom = Test("atom", atom=condition)
            kept = [Branch(atom if outcome else negated(atom), kept, [], whole.span)]
        return kept

    # ---- modules and classes

    def module_name(self, frame: Frame, node: ast.Name) -> Value:
        """A name that is no local one: a definition, an import, a variable of the module, a builtin."""
        reference = self.linker.in_module(frame.facts, node.id)
        if isinstance(reference, ref.ModuleRef):
            variable = self.variable_at(reference.name)
            if variable is not None:
                return variable
        if reference is not None:
            if isinstance(reference, ref.External):
                ranked = frame.named_rank("attribute", reference.name, node)
                if ranked is not None:
                    return ranked
            return unknown(("name", getattr(reference, "name", node.id)), reference)
        overlaid = self._overlay.get((frame.facts.name, node.id))
        if overlaid is not None:
            return overlaid
        variable = self.module_variable(frame.facts, node.id)
        if variable is not None and (variable.varies is not None or variable.reference is not None):
            return variable
        ranked = frame.named_rank("name", node.id, node)
        if ranked is not None and (variable is None or variable.constant is None or _is_absent(variable)):
            return ranked
        if variable is not None:
            return variable
        guess = known().guessed_type(node.id)
        return unknown(("name", node.id), ref.Instance(guess, guessed=True) if guess else None)

    def variable_at(self, name: str) -> Value | None:
        """A module-level variable by absolute dotted name."""
        found = self.linker.project.split(name)
        if found is None or not found[1] or "." in found[1]:
            return None
        return self.module_variable(*found)

    def module_variable(self, facts: ModuleFacts, name: str) -> Value | None:
        """What top-level statements assign to the name, joined; a variable that functions rebind is unknown, but for
        counters, which are taken to be as they start."""
        values = self._modules.setdefault(facts.name, {})
        assigned = assignments_in(facts.tree).get(name) if name not in values else ()
        if name not in values and (not assigned or (facts.name, name) in self._pending_modules):
            return None
        return self.linker.project.remember(name, lambda: self._joined(facts, name, assigned or ()), values)

    def _joined(self, facts: ModuleFacts, name: str, assigned: Sequence[tuple[ast.expr, ast.expr]]) -> Value:
        heard = signals.of_variable(facts, name)
        if heard is not None:
            return divergent(("signal", facts.name, name), heard)
        self._pending_modules.add((facts.name, name))
        frame = Frame(self, facts, None)
        result: Value | None = None
        try:
            for target, value in assigned:
                current = evaluate(frame, value) if isinstance(target, ast.Name) else unknown(frame.key(value))
                either = _either_way(frame, value)
                result = current if result is None else merge(either, result, current, frame.key(value))
        finally:
            self._pending_modules.discard((facts.name, name))
        assert result is not None
        rebound = rebound_in(facts.tree).get(name)
        counter = rebound in _FOLLOWED and isinstance(getattr(result.constant, "value", None), int)
        if rebound and not counter and result.varies is None:
            result = self._rebound_to(facts, name) or unknown(("global", facts.name, name), result.reference)
        return result

    def _rebound_to(self, facts: ModuleFacts, name: str) -> Value | None:
        """What a function of the module makes of its variable, where that tells one rank from another."""
        for node in rebinders_in(facts.tree).get(name, ())[:_REBINDING]:
            function = FunctionRef(node, facts, bare=True)
            env = self._names_after(function)
            value = env.get(name) if env is not None else None
            if value is not None and value.varies is not None and value.varies.cause == "rank" and not value.open:
                return value
        return None

    def set_global(self, frame: Frame, name: str, value: Value) -> None:
        """A function rebinds a variable of its module; callees see it until it is as it was."""
        if rebound_in(frame.facts.tree).get(name) not in _FOLLOWED:
            return
        start = self.module_variable(frame.facts, name)
        key = (frame.facts.name, name)
        if start is not None and start.components == value.components:
            self._overlay.pop(key, None)
        else:
            self._overlay[key] = value

    @contextlib.contextmanager
    def switched(self, variables: Mapping[tuple[str, str], Value]) -> Iterator[None]:
        """For the body of a `with`: variables of modules are as its manager has set them."""
        kept = dict(self._overlay)
        self._overlay.update(variables)
        try:
            yield
        finally:
            self._overlay.clear()
            self._overlay.update(kept)

    def hand_over(self, frame: Frame) -> None:
        """At a `yield`: what is set now holds for the body of the `with`."""
        frame.switched = dict(self._overlay)

    def begin(self) -> None:
        """Before a new file: how exactly its calls are followed must not depend on the files that were read before."""
        self._contexts.clear()

    def forget(self) -> None:
        """Before a new root: no function is running."""
        self._overlay.clear()
        self.left = self.BOUND
        self._depth = 0
        self._running.clear()

    def class_variable(self, of: ClassRef, name: str) -> Value | None:
        for owner in self.linker.linearised(of)[0]:
            for statement in owner.node.body:
                targets = statement.targets if isinstance(statement, ast.Assign) else []
                if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                    assert isinstance(statement, ast.Assign)
                    value = evaluate(Frame(self, owner.facts, None, owner), statement.value)
                    plain = value.constant is None and value.varies is None and value.reference is None
                    # two members of an enumeration are two values, though both are `auto()`
                    return unknown(("class", owner.node.name, name)) if plain else value
        return None

    def attribute_of(self, of: ClassRef, name: str) -> Value | None:
        """What the methods of the class assign to `self.name`, joined; None when none does."""
        key = (of, name)
        if key in self._pending_attributes:
            return None
        return self.linker.project.remember(key, lambda: self._assigned_to(of, name), self._attributes)

    def _assigned_to(self, of: ClassRef, name: str) -> Value | None:
        self._pending_attributes.add((of, name))
        result: Value | None = None
        try:
            for owner in self.linker.linearised(of)[0]:
                heard = signals.of_attribute(owner.node, owner.facts, name)
                if heard is not None:
                    return divergent(("signal", of.node.name, name), heard)
                for method, value in stores_in(owner.node).get(name, ())[:4]:
                    current = self._stored(of, owner, method, name, value)
                    if current is None or (result is not None and current.constant == Known(None)):
                        continue
                    if result is None or result.constant == Known(None):
                        result = current
                    else:
                        frame = Frame(self, owner.facts, None)
                        result = merge(_either_way(frame, value), result, current, ("attribute", name))
        finally:
            self._pending_attributes.discard((of, name))
        if result is None:
            result = self._declared(of, name)
        if result is not None and result.constant is not None and result.constant.value is not None:
            return unknown(("self", of.node.name, name))
        return result

    def _declared(self, of: ClassRef, name: str) -> Value | None:
        """``trainer: Trainer`` in the class body."""
        for owner in self.linker.linearised(of)[0]:
            for statement in owner.node.body:
                if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == name:
                    instance = self._annotated(owner.facts, statement.annotation)
                    return unknown(("declared", name), instance) if instance else None
        return None

    def _stored(
        self, of: ClassRef, owner: ClassRef, method: ast.FunctionDef | ast.AsyncFunctionDef, name: str, value: ast.expr
    ) -> Value | None:
        """The value of `self.name` after the method, evaluated for arguments unknown."""
        receiver = unknown(("object", of.node.name), ref.Instance(of))
        function = FunctionRef(method, owner.facts, owner, receiver, of, bare=True)
        if not method.args.args:
            return None
        env = self._names_after(function)
        return env.get(f"{method.args.args[0].arg}.{name}") if env is not None else None

    def _names_after(self, function: FunctionRef) -> dict[str, Value] | None:
        """The names that a function leaves, evaluated for arguments unknown; None while it is running."""
        env = self.general(function, heuristic=True)
        key = ("stores", self._key(function, env))
        if key not in self._memo and (key in self._running or self._depth >= _DEPTH):
            return None
        try:
            return self.linker.project.remember(key, lambda: self._leaving_names(key, function, env), self._memo).env
        except RecursionError:
            return None

    def _leaving_names(self, key: Hashable, function: FunctionRef, env: dict[str, Value]) -> Summary:
        return Summary([], none(), self._run_once(key, function, env).env)

    def dynamic_attribute(self, frame: Frame, base: Value | None, node: ast.Call) -> Value:
        """`getattr(self, name)` with a computed name: any hook that the class of the object overrides."""
        reference = reference_of(base)
        if isinstance(reference, ref.Instance) and isinstance(reference.of, ClassRef):
            return unknown(frame.key(node), ref.Dynamic(reference.of, base))
        return unknown(frame.key(node))

    # ---- what a file is about

    def is_distributed(self, facts: ModuleFacts, owner: ClassRef | None) -> bool:
        """Does the file, or one that a base class is from, wrap models for several ranks?"""
        return self._mentions(facts, owner, "wrap", _DISTRIBUTED)

    def shows(self, facts: ModuleFacts, owner: ClassRef | None, when: str) -> bool:
        pattern = _SHOWS.get(when)
        return pattern is not None and self._mentions(facts, owner, when, pattern)

    def _mentions(self, facts: ModuleFacts, owner: ClassRef | None, what: str, pattern: re.Pattern[str]) -> bool:
        files = {facts.name: facts}
        for base in self.linker.linearised(owner)[0] if owner is not None else ():
            files[base.facts.name] = base.facts
        for name, file in files.items():
            key = (what, name)
            if key not in self._texts:
                self._texts[key] = pattern.search(file.file.text) is not None
            if self._texts[key]:
                return True
        return False

    def is_batch_iterator(self, node: ast.Call) -> bool:
        text = ast.unparse(node.args[0]).lower() if node.args else ""
        if _OF_DICTIONARY.search(text):
            return False  # any one entry of a dictionary
        fresh = re.fullmatch(r"iter\((.*)\)", text)
        if fresh is not None and "loader" not in fresh[1]:
            return False  # the first entry of a data set
        return "loader" in text or "iter" in text or "stream" in text

    def is_collective_name(self, name: str) -> bool:
        return name in _collective_names()


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


@functools.cache
def _collective_names() -> frozenset[str]:
    prefix = "torch.distributed."
    return frozenset(name[len(prefix) :] for name in known().collectives if name.startswith(prefix))


def _atoms(words: Words) -> list[Condition]:
    from ddp_lint.divergence.words import Choice

    return [node.condition for node in words.nodes if isinstance(node, Choice)]


def _parts(words: Words, start: object, stream: Hashable) -> bool:
    projection = Projection(words, stream)
    numbers = {projection.numbers[world][start.number] for world in range(worlds.COUNT)}  # type: ignore[attr-defined]
    return len(numbers) > 1


def _folded(frame: Frame) -> Value:
    """The returned value: the first return whose tests hold."""
    if not frame.returned:
        return none()
    result = none() if frame.alive else frame.returned[-1][1]
    pending = frame.returned if frame.alive else frame.returned[:-1]
    for test, value in reversed(pending):
        result = merge(
            test or _either_way(frame, frame.function),
            value,
            result,
            ("returned", frame.facts.name, getattr(frame.function, "lineno", 0)),
        )
    return result


def _either_way(frame: Frame, node: ast.AST | None) -> Test:
    return Test("atom", atom=Condition((("either", frame.facts.name, getattr(node, "lineno", 0)),) * worlds.COUNT, ""))


def _collected(
    frame: Frame, signature: ast.arguments, count: int, named: set[str], arguments: Arguments
) -> dict[str, Value]:
    """What ``*args`` and ``**kwargs`` of the callee hold, so that a wrapper hands on what it was given."""
    found: dict[str, Value] = {}
    if signature.vararg is not None:
        given = enumerate(arguments.positional[count:], count)
        items = tuple(_kept_group(frame, entering(value), arguments.nodes.get(index)) for index, value in given)
        found[signature.vararg.arg] = dataclasses.replace(unknown(("arguments", signature.vararg.arg)), items=items)
    if signature.kwarg is not None:
        entries: dict[Hashable, Value] = {
            name: _kept_group(frame, entering(value), arguments.nodes.get(name))
            for name, value in arguments.keywords.items()
            if name not in named
        }
        found[signature.kwarg.arg] = dataclasses.replace(unknown(("arguments", signature.kwarg.arg)), entries=entries)
    return found


def _kept_group(frame: Frame, value: Value, node: ast.expr | None) -> Value:
    """The same where no parameter's name says what is passed on: the argument's own name has to."""
    text = frame.text(node) if node is not None else ""
    return _named_group(frame, text, value, node) if _GROUP.search(text) else value


def _named_group(frame: Frame, name: str, value: Value, node: ast.expr | None) -> Value:
    """A group that is passed on keeps the name that the caller has for it."""
    if value.reference is None and value.constant is None and node is not None and ("group" in name or name == "pg"):
        text = frame.text(node)
        if not text.endswith("WORLD"):
            return value.with_reference(ref.GroupRef(named(text)))
        return constant(None)
    return value


def _is_of_part(varies: Variation) -> bool:
    """Is it a place along one parallel axis, or membership, and no place among all ranks?"""
    return varies.cause == "membership" or varies.scope not in ("world", "node")


def _in_group(value: Value, frame: Frame, arguments: Arguments) -> Value:
    """A rank that a function was asked for with a group at hand is the rank in that group."""
    if value.varies is None or value.varies.cause != "rank" or value.varies.scope != "world":
        return value
    names = [frame.text(node) for node in arguments.nodes.values()]
    group = next((named(name) for name in names if _GROUP.search(name)), None)
    if group is None or group.is_world:
        return value
    return dataclasses.replace(value, varies=dataclasses.replace(value.varies, scope=f"group:{group.key}"))


def _own_attributes(frame: Frame, method: FunctionRef) -> dict[str, Value]:
    """Attributes of `self` whose values are each rank's own where the method ends."""
    parameters = method.node.args.args
    if not parameters:
        return {}
    receiver = parameters[0].arg + "."
    own = {path.removeprefix(receiver): value for path, value in frame.env.items() if path.startswith(receiver)}
    return {name: value for name, value in own.items() if value.varies is not None and value.open}


def _is_within(frame: Frame, function: FunctionRef) -> bool:
    """Is the function defined in the one that calls it, or beside it in another function?"""
    if function.closure is None or frame.function is None or frame.facts is not function.facts:
        return False
    beside = reference_of((frame.closure or {}).get(function.name))
    if isinstance(beside, FunctionRef) and beside.node is function.node:
        return True
    outer = span_of(frame.facts, frame.function)
    return outer.line < span_of(function.facts, function.node).line <= outer.end_line


def _without_receiver(arguments: Arguments, function: FunctionRef) -> Arguments:
    """What a wrapper hands on to the method that it decorates has the object in front, which is bound already."""
    first = arguments.positional[0].reference if arguments.positional else None
    if not function.bare or not isinstance(first, ref.Instance) or first != reference_of(function.receiver):
        return arguments
    nodes = {key - 1 if isinstance(key, int) else key: node for key, node in arguments.nodes.items() if key != 0}
    return dataclasses.replace(arguments, positional=arguments.positional[1:], nodes=nodes)


def _is_static(function: FunctionRef) -> bool:
    decorators = getattr(function.node, "decorator_list", ())
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in decorators)


def _is_absent(value: Value) -> bool:
    return value.constant in (Known(None), Known(-1), Known(0))

"""Parameters: what a callee gets from its caller, by default, or by what its annotation, docstring and name say."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Hashable

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.definitions import defaults_of, documented, is_flag, is_rank_of_matrix
from ddp_lint.divergence.expressions import evaluate
from ddp_lint.divergence.frame import Evaluation, Frame, entering, reference_of, span_of
from ddp_lint.divergence.groups import named, names_group
from ddp_lint.divergence.hooks import is_batch
from ddp_lint.divergence.iteration import emptiness
from ddp_lint.divergence.references import ClassRef, FunctionRef, GroupRef
from ddp_lint.divergence.resolve import Linker, known
from ddp_lint.divergence.selections import GRADIENTS, are_gradients
from ddp_lint.divergence.shards import is_input
from ddp_lint.divergence.values import NEVER, Value, Variation, constant, divergent, holding, unknown, world_size
from ddp_lint.findings import Confidence, Label
from ddp_lint.knowledge.communication import Rank
from ddp_lint.launch.joining import spawned_functions
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.syntax import Definition, first_name, parameters, positional

_NUMBER_OF_PROCESS = Rank(name="torch.multiprocessing.spawn", what="call", value="local_rank")
#: What a number of processes is called next to a rank.
SIZES = re.compile(r"(world_?)?size|n(um)?_?(ranks|proc(s|esses)?|gpus)")
#: Parameters that hold a rank's own data.
_BATCHES = frozenset({"batch", "minibatch", "mini_batch", "micro_batch", "microbatch", "batch_data", "data_batch"})


def bound(summaries: Evaluation, frame: Frame, function: FunctionRef, arguments: Arguments) -> dict[str, Value]:
    """The callee's parameters."""
    signature = function.node.args
    names, named, every = _names_of(function.node)
    env: dict[str, Value] = {}
    if function.is_bound and names:
        env[names[0]] = function.receiver
        named = named - {names[0]}
        names = names[1:]
        arguments = _without_receiver(arguments, function)
    for index, (name, value) in enumerate(zip(names, arguments.positional, strict=False)):
        env[name] = _named_group(frame, name, entering(value), arguments.nodes.get(index))
    for name, value in arguments.keywords.items():
        if name in named:
            env[name] = _named_group(frame, name, entering(value), arguments.nodes.get(name))
    if not arguments.starred and (signature.vararg is not None or signature.kwarg is not None):
        env |= _collected(frame, signature, len(names), named, arguments)
    defaults = defaults_of(function.node)
    for parameter in every:
        given = env.get(parameter.arg)
        default = defaults.get(parameter.arg)
        if given is not None:
            typed = _typed(summaries, function, parameter, given)
            if _is_given_rank(typed, parameter, default):
                typed = dataclasses.replace(typed, missing=NEVER)
            env[parameter.arg] = typed
        elif default is not None and not arguments.starred:
            env[parameter.arg] = _default(summaries, function, default)
        else:
            env[parameter.arg] = unseen(summaries, function, parameter, heuristic=False)
    return env


@functools.lru_cache(maxsize=8192)
def _names_of(function: Definition) -> tuple[tuple[str, ...], frozenset[str], tuple[ast.arg, ...]]:
    """The names of the parameters that a call can give by position, those that it can give by name, and all of them."""
    every = tuple(parameters(function))
    return tuple(a.arg for a in positional(function)), frozenset(a.arg for a in every), every


def _is_given_rank(value: Value, parameter: ast.arg, default: ast.expr | None) -> bool:
    """Is it another's rank, which the caller says: ``is_passive(peer)`` of ``def is_passive(self, rank=None)``?"""
    own = not isinstance(default, ast.Constant) or default.value is not None
    if own or known().rank("name", parameter.arg) is None:
        return False
    return value.constant is None and value.missing is None and value.kind != "parameter"


def general(summaries: Evaluation, function: FunctionRef, heuristic: bool) -> dict[str, Value]:
    """Parameters for a function of which no call is known. Each attribute that a constructor sets requires them."""
    every = _names_of(function.node)[2]
    bound_first = bool(every) and function.is_bound
    given = every[bound_first:]

    def each() -> dict[str, Value]:
        return {parameter.arg: unseen(summaries, function, parameter, heuristic) for parameter in given}

    questions = summaries.linker.questions
    key = (function.node, function.owner, function.of, bound_first, heuristic)
    env, answers = summaries.linker.project.remember(key, lambda: questions.apart(each), summaries.parameters)
    questions.note_all(answers)
    return {every[0].arg: function.receiver, **env} if bound_first else dict(env)


def widened(summaries: Evaluation, function: FunctionRef, env: dict[str, Value]) -> dict[str, Value]:
    """Parameters for a function that is called again and again with other arguments: flags (``sync=False``) and what
    it communicates with (a group, a model, a function to call) are the caller's, anything else is unknown."""
    known_of_none = general(summaries, function, heuristic=False)
    return {name: _as_given(value, env.get(name)) for name, value in known_of_none.items()}


def _as_given(unknown_one: Value, given: Value | None) -> Value:
    if given is None:
        return unknown_one
    if _is_flag(given):
        return given
    kept = isinstance(given.reference, (GroupRef, ref.Instance, FunctionRef)) and given.varies is None
    return unknown_one.with_reference(given.reference) if kept else unknown_one


def passed_on(frame: Frame, arguments: Arguments) -> int:
    """Through how many calls the constants among the arguments have come: one that the caller writes there through this
    one alone, any other may be made of what the caller was given itself. 0 where there is none."""
    come = 0
    given: list[tuple[int | str, Value]] = [*enumerate(arguments.positional), *arguments.keywords.items()]
    for place, value in given:
        if not _holds_constant(value):
            continue
        if not isinstance(arguments.nodes.get(place), (ast.Constant, ast.UnaryOp)):
            return frame.came + 1
        come = 1
    return come


def _holds_constant(value: Value) -> bool:
    parts = (*(value.items or ()), *(value.entries or {}).values())
    return value.constant is not None or any(map(_holds_constant, parts))


def without_constants(
    summaries: Evaluation, function: FunctionRef, env: dict[str, Value], *, flags: bool
) -> dict[str, Value]:
    """Parameters for constants that have come through many calls: these are unknown, flags only if `flags` says so."""
    known_of_none = general(summaries, function, heuristic=False)

    def as_unknown(name: str, value: Value) -> bool:
        return name in known_of_none and _holds_constant(value) and (flags or not _is_flag(value))

    return {name: known_of_none[name] if as_unknown(name, value) else value for name, value in env.items()}


def _is_flag(value: Value) -> bool:
    return value.constant is not None and value.constant.value in (True, False, None)


def _default(summaries: Evaluation, function: FunctionRef, default: ast.expr) -> Value:
    if isinstance(default, (ast.Constant, ast.UnaryOp)):  # also ``rank=-1``
        return evaluate(Frame(summaries, function.facts, None), default)
    return unknown(("default", ast.dump(default)[:80]))


def unseen(summaries: Evaluation, function: FunctionRef, parameter: ast.arg, heuristic: bool) -> Value:
    """A parameter that no caller is known for: its class by annotation; what its name says."""
    frame = Frame(summaries, function.facts, function.node)
    if heuristic and not is_rank_of_matrix(function.node, parameter.arg):
        ranked = frame.named_rank("name", parameter.arg, parameter)
        if ranked is None and _is_number_of_process(summaries.linker, function, parameter):
            ranked = frame.rank_value(_NUMBER_OF_PROCESS, parameter)
        if ranked is not None:
            return ranked
        if _counts_ranks(function, parameter):
            return world_size("")
    named_so = parameter.arg in _BATCHES and getattr(function.node, "name", "") != "__init__"  # there it is a size
    named_so = named_so or (heuristic and is_input(summaries.linker, function, parameter))
    if heuristic and (named_so or is_batch(summaries.linker, function, parameter)):
        label = Label(span_of(function.facts, parameter), "each rank gets its own batch here")
        return divergent(("parameter", parameter.arg), Variation.of_data("batches", label, Confidence.MEDIUM))
    flag = is_flag(parameter, defaults_of(function.node).get(parameter.arg))
    if heuristic and are_gradients(parameter.arg) and not flag:
        named = ast.copy_location(ast.Name(parameter.arg, ast.Load()), parameter)
        return emptiness(frame, named, unknown((GRADIENTS, ("parameter", parameter.arg))))
    linker = summaries.linker
    of = annotated(linker, function.facts, parameter.annotation) or _documented(linker, function, parameter.arg)
    if of is None and (only := linker.only_class(parameter.arg, function.owner)) is not None:
        of = ref.Instance(only)
    if of is None:
        guess = known().guessed_type(parameter.arg)
        of = ref.Instance(guess, guessed=True) if guess else None
    return unknown(("parameter", parameter.arg), of)


def _counts_ranks(function: FunctionRef, parameter: ast.arg) -> bool:
    """Is it the number of ranks, which a function is given after its own (``def run(rank, size)``)?"""
    if SIZES.fullmatch(parameter.arg) is None:
        return False
    before = _parameter_before(function.node).get(parameter.arg)
    if before is None:
        return False
    ranked = known().rank("name", before)
    return ranked is not None and ranked.value == "rank"


@functools.lru_cache(maxsize=8192)
def _parameter_before(function: Definition) -> dict[str, str]:
    """The parameters that a call can give by position, each with the one before it; without the first."""
    names = _names_of(function)[0]
    return dict(zip(names[1:], names, strict=False))


def _is_number_of_process(linker: Linker, function: FunctionRef, parameter: ast.arg) -> bool:
    """Is it what ``mp.spawn`` gives a function first?"""
    first = first_name(function.node) == parameter.arg and function.owner is None
    name = getattr(function.node, "name", "")
    of = f"{function.facts.name}.{name}" if function.facts.name else name
    return first and bool(name) and of in spawned_functions(linker.project)


def _typed(summaries: Evaluation, function: FunctionRef, parameter: ast.arg, value: Value) -> Value:
    """An argument of which the caller knows nothing is what the parameter's annotation says."""
    if parameter.annotation is None or value.constant is not None or value.varies is not None:
        return value
    if value.reference is not None and not (isinstance(value.reference, ref.Method) and not value.reference.of):
        return value
    of = annotated(summaries.linker, function.facts, parameter.annotation)
    return value.with_reference(of) if of is not None else value


def annotated(linker: Linker, facts: ModuleFacts, annotation: ast.expr | None) -> ref.Instance | None:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except (SyntaxError, ValueError):
            return None
    if isinstance(annotation, ast.BinOp):  # X | None
        return annotated(linker, facts, annotation.left)
    if isinstance(annotation, ast.Subscript):
        if isinstance(annotation.value, ast.Name) and annotation.value.id == "Optional":
            return annotated(linker, facts, annotation.slice)
        return None
    reference = linker.expression(facts, annotation) if annotation is not None else None
    if isinstance(reference, ClassRef):
        return ref.Instance(reference)
    if isinstance(reference, ref.External):
        is_known = reference.name in known().types or linker.project.own.is_class(reference.name)
        return ref.Instance(reference.name) if is_known else None
    return None


def _documented(linker: Linker, function: FunctionRef, name: str) -> ref.Instance | None:
    """The class that the docstring of the function or class gives: ``name : Optional[package.Class]``."""
    for node in (function.node, function.owner.node if function.owner is not None else None):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for path in documented(node).get(name, ()):
            reference = linker.dotted(path) if "." in path else linker.in_module(function.facts, path)
            if isinstance(reference, ClassRef):
                return ref.Instance(reference)
    return None


def _collected(
    frame: Frame, signature: ast.arguments, count: int, named: frozenset[str], arguments: Arguments
) -> dict[str, Value]:
    """What ``*args`` and ``**kwargs`` of the callee hold, so that a wrapper passes on what it was given."""
    found: dict[str, Value] = {}
    if signature.vararg is not None:
        given = enumerate(arguments.positional[count:], count)
        items = tuple(_kept_group(frame, entering(value), arguments.nodes.get(index)) for index, value in given)
        found[signature.vararg.arg] = holding(unknown(("arguments", signature.vararg.arg)), items)
    if signature.kwarg is not None:
        entries: dict[Hashable, Value] = {
            name: _kept_group(frame, entering(value), arguments.nodes.get(name))
            for name, value in arguments.keywords.items()
            if name not in named
        }
        found[signature.kwarg.arg] = holding(unknown(("arguments", signature.kwarg.arg)), entries=entries)
    return found


def _kept_group(frame: Frame, value: Value, node: ast.expr | None) -> Value:
    """The same where no parameter's name says what is passed on: the argument's own name has to."""
    text = frame.text(node) if node is not None else ""
    return _named_group(frame, text, value, node) if names_group(text) else value


def _named_group(frame: Frame, name: str, value: Value, node: ast.expr | None) -> Value:
    """A group that is passed on keeps the name that the caller has for it."""
    if value.reference is None and value.constant is None and node is not None and ("group" in name or name == "pg"):
        text = frame.text(node)
        if not text.endswith("WORLD"):
            return value.with_reference(ref.GroupRef(named(text)))
        return constant(None)
    return value


def _without_receiver(arguments: Arguments, function: FunctionRef) -> Arguments:
    """What a wrapper passes on to the method that it decorates has the object in front, which is bound already."""
    first = arguments.positional[0].reference if arguments.positional else None
    if not function.bare or not isinstance(first, ref.Instance) or first != reference_of(function.receiver):
        return arguments
    nodes = {key - 1 if isinstance(key, int) else key: node for key, node in arguments.nodes.items() if key != 0}
    return dataclasses.replace(arguments, positional=arguments.positional[1:], nodes=nodes)

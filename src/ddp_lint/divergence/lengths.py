"""Loops over batches of which each rank has a number of its own."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, TypeGuard

from ddp_lint.divergence import references as ref
from ddp_lint.divergence.batches import have_one_length, show_unlike_lengths
from ddp_lint.divergence.effects import Effect, EventStep, Leave, flat
from ddp_lint.divergence.frame import Frame
from ddp_lint.divergence.resolve import iterated, known
from ddp_lint.divergence.values import FIELD, GROWN, Known, Symbol, Value, Variation, divergent, unknown
from ddp_lint.findings import Confidence, Label, Span
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts, assigned_in
from ddp_lint.project.parts import assigned_to, children, inside, kept_by_node
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import (
    FunctionNode,
    argument_at,
    blocks_at,
    calls_below,
    either_of,
    function_at,
    names_in,
    positional,
    walk,
)

#: What pads the data of all ranks to one length.
_SAMPLER = "DistributedSampler"
#: A loader by name; what holds several loaders hands out loaders.
_LOADER_NAME = re.compile(r"(?<!down)loader(?!s)")
#: ... and what a training loop goes through.
_FEEDING = re.compile(r"(^|_)(dl|ds|data(set|iter)?|iter(ator)?|batch(es)?|stream|samples|generator|gen|train)$")
_COUNTING = frozenset({"range", "trange", "count", "arange"})
_STREAM = "torch.utils.data.IterableDataset"
#: A name for what hands out batches until a rank's data end, unlike a loader, whose length a sampler has made equal.
_ITERATOR = re.compile(
    r"(^|_)(data_?iter|batch_?iter|iterator|(?<!mini_)batch\w*_generator|batches_gen|packed_batches)(_|$)"
)
#: Calls that pass on what they are given, one by one.
_HANDING_ON = frozenset({"enumerate", "tqdm", "iter"})
#: Methods of a list that add elements to it.
_ADDING = frozenset({"append", "extend", "insert"})
#: A loop variable for a batch, not for its number.
_BATCH = re.compile(r"^(?!.*_(idx|index|ids?|num|size)$)(.*_)?(\w*batch\w*|samples?|examples?)(_|$)")
#: The file copes with numbers of batches that differ: its loops end together.
_COPING = re.compile(
    r"\bJoin\b|\.join\(\s*\)|join_uneven_inputs|even_batches|itertools\.cycle|\.with_epoch\("
    r"|itertools\.islice(?!\([^()]*\brank\b)"  # with the rank it deals the elements out
)
#: ... or it makes those of the loaders equal that it gives a sampler.
_DIVIDING = re.compile(r"DistributedSampler|DistributedBatchSampler|drop_last\s*=\s*True")
#: ... or one process reads all batches for it and hands out their parts: Accelerate's loaders.
_DISPATCHING = re.compile(r"\bdispatch_batches\s*=\s*True\b")


def is_loader(iterable: Value, text: str) -> bool:
    """Is it a data loader, by type or, when nothing resolves it, by name?"""
    reference = iterable.reference
    if isinstance(reference, ref.Instance) and isinstance(reference.of, str):
        return not reference.whole and known().source("iterate", reference.of) is not None and reference.of != ref.SET
    return is_loader_name(text) and not text.startswith("range(")  # numbers, of whatever they count


def is_loader_name(text: str) -> bool:
    return _LOADER_NAME.search(text.lower()) is not None


def feeds_training(frame: Frame, node: ast.expr) -> bool:
    """Is it what a training loop goes through, by what is done with its elements and, loosely, by its name?

    Outer loops go through epochs, folds or tasks, so only the innermost one around a `backward()` counts.
    """
    if not isinstance(frame.function, FunctionNode):
        return False
    if node not in _fed(frame.function):
        return False
    source = assigned_once(frame, node)
    while last_part(getattr(source, "func", None)) not in _COUNTING and (over := iterated(source)) is not None:
        source = assigned_once(frame, over)
    if isinstance(source, (ast.List, ast.Tuple, ast.Call)):
        return False
    return any(_FEEDING.search(last_part(getattr(each, "func", each))) is not None for each in (node, source))


@kept_by_node(4096)
def _fed(function: FunctionNode) -> frozenset[ast.AST]:
    """What the innermost loops of a function go through that call `backward` and use their elements in a call."""
    loops = [node for node in inside(function) if isinstance(node, ast.For) and _goes_backward(node)]
    fed = (loop for loop in loops if not any(_goes_backward(n) for n in children(loop) if isinstance(n, ast.For)))
    return frozenset(part for loop in fed for part in walk(loop.iter))


def _goes_backward(loop: ast.For) -> bool:
    calls = [node for node in children(loop) if isinstance(node, ast.Call)]
    elements = names_in(loop.target)
    given = (part for call in calls for part in (*call.args, *(keyword.value for keyword in call.keywords)))
    used = any(elements & names_in(part) for part in given)
    return used and any(last_part(call.func) == "backward" for call in calls)


def is_undivided(iterable: Value) -> bool:
    """Is it a loader that gives all ranks the same batches?"""
    return isinstance(iterable.reference, ref.Instance) and iterable.reference.whole


def own_length(
    frame: Frame, iterable: Value, node: ast.expr, target: ast.AST | None, *, ends: bool = False
) -> Variation | None:
    """Why the number of batches is a rank's own, if it is: a loader over a stream, or an iterator by its name; its
    name does not matter where it `ends` the loop."""
    reference = iterable.reference
    streamed = isinstance(reference, ref.Instance) and reference.streams
    if not streamed and not (reference is None or isinstance(reference, ref.Generator)):
        return None
    if not streamed and (not _hands_out_batches(node, target, ends) or _is_sequence(frame, node)):
        return None
    if not streamed and _goes_through_sized(frame, node):
        return None
    project = frame.linker.project
    if _copes(project, frame.facts) or (not streamed and (equalised(project, frame.facts) or _is_divided(frame))):
        return None  # a sampler says nothing about a loader that was made without one
    source = known().source("iterate", _STREAM)
    if source is None:
        return None
    origin = Label(frame.span(node), "these batches end with this rank's own data")
    # What a caller has handed over ends on its account: the ranks diverge at the call.
    depth = reference.handed if isinstance(reference, ref.Instance) else 0
    return dataclasses.replace(Variation.of_source(source, origin), call_depth=depth)


def _is_divided(frame: Frame) -> bool:
    """Does another file of the project divide data by a sampler, so that an iterator may be one of a padded loader?"""
    project = frame.linker.project
    held = (project.modules.facts_of(path) for path in project.contents.holding(_SAMPLER))
    return any(facts is not None and not facts.source.is_test for facts in held)


def _hands_out_batches(node: ast.expr, target: ast.AST | None, ends: bool) -> bool:
    name = last_part(_handed_on(node))
    names = [part.id for part in walk(target) if isinstance(part, ast.Name)] if target is not None else []
    return (ends or bool(_ITERATOR.search(name))) and any(_BATCH.search(each) for each in names)


def _is_sequence(frame: Frame, node: ast.expr) -> bool:
    """Does the function take items of it, or add some? An iterator has none, and its name is that of what it was."""
    return frame.function is not None and dotted_ast(_handed_on(node)) in _sequences(frame.function)


def _goes_through_sized(frame: Frame, node: ast.expr) -> bool:
    """Is what is called an iterator made of an object whose length is known beforehand, as is that of any loader:
    ``iterator = tqdm(loader)``?"""
    source = _handed_on(node)
    if (given := _handed_on(assigned_once(frame, source))) is source:
        return False
    around = [block for block in blocks_at(frame.facts.tree, node.lineno) if isinstance(block, FunctionNode)]
    assigned = (values for block in reversed(around) if (values := assigned_in(block, dotted_ast(given))))
    made = next(assigned, [given])[-1]
    name = dotted_ast(made.func) if isinstance(made, ast.Call) else ""
    of = frame.linker.in_module(frame.facts, name) if name else None
    return isinstance(of, ref.ClassRef) and frame.linker.method(of, "__len__") is not None


def _handed_on(node: ast.expr) -> ast.expr:
    """What a loop over ``enumerate(tqdm(batches))`` goes through in the end."""
    while (over := iterated(node)) is not None and getattr(getattr(node, "func", None), "id", "") in _HANDING_ON:
        node = over
    return node


@kept_by_node(1024)
def _sequences(function: ast.AST) -> frozenset[str]:
    """The names of which a function takes items, or to which it adds some."""
    found = set()
    for node in inside(function):
        if isinstance(node, ast.Subscript):
            found.add(dotted_ast(node.value))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _ADDING:
            found.add(dotted_ast(getattr(node.func, "value", None)))
    return frozenset(filter(None, found))


def equalised(project: Project, facts: ModuleFacts) -> bool:
    """Does the file make the numbers of batches equal, or cope with unequal ones?"""
    return bool(project.texts.tested(project.paths.absolute(facts.source.inside), "equalises"))


def _copes(project: Project, facts: ModuleFacts) -> bool:
    """Does the file cope with numbers of batches that differ?"""
    return bool(project.texts.tested(project.paths.absolute(facts.source.inside), "copes"))


def equalising(text: str) -> str:
    """Whether a text makes numbers of batches equal, or copes with unequal ones, '' where not (`parts.TESTS`)."""
    return "equalises" if _DIVIDING.search(text) else coping(text)


def coping(text: str) -> str:
    """Whether a text copes with unequal ones, '' where not (`parts.TESTS`)."""
    return "copes" if _COPING.search(text) else ""


def dispatching(text: str) -> str:
    """Whether one process reads the batches for all, '' where not (`parts.TESTS`)."""
    return "dispatches" if _DISPATCHING.search(text) else ""


def as_dispatched(frame: Frame, iterable: Value, node: ast.expr) -> Value:
    """A loader as the loop over it finds it: where one process reads the batches and hands out their parts, what the
    other ranks have made theirs of counts for nothing."""
    if iterable.varies is None or iterable.varies.cause != "rank" or not is_loader(iterable, frame.text(node)):
        return iterable
    project = frame.linker.project
    dispatches = project.texts.tested(project.paths.absolute(frame.facts.source.inside), "dispatches")
    return unknown(("dispatched", iterable.key), iterable.reference) if dispatches else iterable


def streams(frame: Frame, dataset: Value | None) -> bool:
    """Is it an iterable dataset of the project whose length depends on the data?"""
    reference = dataset.reference if dataset is not None else None
    if not isinstance(reference, ref.Instance) or not isinstance(reference.of, ref.ClassRef):
        return False
    if _STREAM not in frame.linker.outside(reference.of):
        return False
    if frame.linker.method(reference.of, "__len__") is not None:  # known beforehand, mostly rounded for all ranks
        return False
    method = frame.linker.method(reference.of, "__iter__")
    if method is None or _endless(method.node) or _goes_through_sampler(method.node):
        return False
    if _copes(frame.linker.project, reference.of.facts):
        return False
    return not _hands_on_endless(frame, reference.of, method.node)


@kept_by_node(1024)
def _goes_through_sampler(method: ast.AST) -> bool:
    """Does a data set hand out what a sampler of its own says, ``for indices in self.sampler:``? That deals the data
    out by their number, to equal parts or to each rank all."""
    loops = (node.iter for node in inside(method) if isinstance(node, ast.For))
    parts = (part for each in loops for part in walk(each) if isinstance(part, ast.Attribute))
    return any("sampler" in part.attr for part in parts)


def reads_files_of_its_own(frame: Frame, dataset: Value | None) -> bool:
    """Does an iterable dataset deal out whole files, each of which holds as much as it does: ``for path in
    paths[rank::world]: for line in open(path): yield line``? What it deals out line by line is nearly as long on all
    ranks."""
    reference = dataset.reference if dataset is not None else None
    of = reference.of if isinstance(reference, ref.Instance) else None
    if not isinstance(of, ref.ClassRef):
        return False
    method, (above, _) = frame.linker.method(of, "__iter__"), frame.linker.linearised(of)
    return method is not None and any(_knows_rank(each.node) for each in above) and _goes_through_files(method.node)


@kept_by_node(1024)
def _knows_rank(class_: ast.ClassDef) -> bool:
    """Does a class have a rank, by which it may divide? One that divides between workers alone gives all ranks all."""
    names = (getattr(node, field, None) for node in walk(class_) for field in ("id", "attr", "arg"))
    return any(isinstance(name, str) and _RANKS.search(name) is not None for name in names)


_RANKS = re.compile(r"rank|replica|process_index|process_id|num_processes")


@kept_by_node(1024)
def _goes_through_files(method: ast.AST) -> bool:
    """Does a generator yield what it finds in each element of a list, all of it?"""
    loops = [loop for loop in children(method) if isinstance(loop, ast.For)]
    stops = any(isinstance(node, (ast.Break, ast.Return)) for loop in loops for node in children(loop))
    return not stops and any(map(_hands_out_contents, loops))


#: In the body of a loop: what deals out, limits or counts what is handed out there.
_DEALING = re.compile(r"rank|world|replica|shard_id|process_index|num_processes|islice|%|len\(|range\(")


def _hands_out_contents(loop: ast.For) -> bool:
    """``for path in paths: for line in open(path): yield line``, ``for path in paths: yield from read(path)``."""
    inner = [node for node in children(loop) if isinstance(node, ast.For)]
    yields = any(isinstance(node, ast.Yield) for each in inner for node in children(each))
    names = names_in(loop.target)
    handed_on = any(isinstance(node, ast.YieldFrom) and names & names_in(node.value) for node in children(loop))
    return (yields or handed_on) and _DEALING.search("\n".join(map(ast.unparse, loop.body))) is None


def _hands_on_endless(frame: Frame, of: ref.ClassRef, method: ast.AST) -> bool:
    """Does a dataset hand on what another one gives, which begins again once its data end, as the file of its class
    makes it: ``data = Lines(paths)``, ``data = Mapped(data, decode)``?"""
    project, init = frame.linker.project, frame.linker.method(of, "__init__")
    if init is None:
        return False

    def found() -> bool:
        given = (value for name in _sources(method, init.node) for value in _given(of, init, name))
        names = (project.meanings.of(of.facts, value.func) for value in given if isinstance(value, ast.Call))
        iterating = (project.classes.method(name, "__iter__") for name in names if name)
        return any(each is not None and _endless(each[1]) for each in iterating)

    endless: bool = project.remember(("hands on an endless one", of.node.name), found, of.facts.kept)
    return endless


def _sources(method: ast.AST, init: ast.AST) -> frozenset[str]:
    """The parameters of a constructor that hold what the object's ``__iter__`` goes through: ``self.source``."""
    calls = (n for n in inside(method) if isinstance(n, ast.Call) and dotted_ast(n.func) == "iter" and n.args)
    loops = (n.iter for n in inside(method) if isinstance(n, ast.For))
    passed = {dotted_ast(node) for node in (*(call.args[0] for call in calls), *loops)}
    stored = (n for n in inside(init) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Name))
    return frozenset(
        dotted_ast(n.value)
        for n in stored
        for target in n.targets
        if isinstance(target, ast.Attribute) and dotted_ast(target) in passed
    )


def _given(of: ref.ClassRef, init: ref.FunctionRef, name: str) -> Iterator[ast.expr]:
    """What the file of a class gives a parameter of its constructor; for a name, all that it is assigned there."""
    places = [parameter.arg for parameter in positional(init.node)][1:]
    place, tree = places.index(name) if name in places else len(places), of.facts.tree
    for call in calls_below(tree):
        value = argument_at(call, place, name) if dotted_ast(call.func) == of.node.name else None
        if isinstance(value, ast.Name):
            yield from assigned_to(value.id, function_at(tree, call.lineno) or tree)
        elif value is not None:
            yield value


@kept_by_node(1024)
def rounds_or_repeats(method: ast.AST) -> bool:
    """Does it round a number, ``total - total % world``, ``len(data) // world``, ``ceil(..)``, or go on for ever?"""
    return _endless(method) or any(
        (isinstance(node, ast.expr) and _rounds_up(node)) or _leaves_rest(node) for node in inside(method)
    )


def _leaves_rest(node: ast.AST) -> bool:
    """``total % world``, ``len(data) // world``, by no number that is written there."""
    divides = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv))
    return divides and not isinstance(getattr(node, "right", None), ast.Constant)


def is_share(value: Value | None) -> bool:
    """Is it the part of a collection that falls to this rank, which may be longer than that of another one?"""
    return value is not None and value.varies is not None and value.varies.aspect == "share" and not value.even


def deals(node: ast.Call) -> bool:
    """Is a loader made with a sampler, which may deal the data out to the ranks?"""
    return any(keyword.arg in ("sampler", "batch_sampler", None) for keyword in node.keywords)


def drops_last(node: ast.Call) -> bool:
    """``DataLoader(..., drop_last=True)``: shares of nearly one length make as many batches, mostly."""
    return any(k.arg == "drop_last" and getattr(k.value, "value", True) is not False for k in node.keywords)


def _endless(node: ast.AST) -> bool:
    """Does a generator begin again once its data end: ``while True:``, or ``while n < steps: for x in data: yield``?"""
    loops = [child for child in children(node) if isinstance(child, ast.While)]
    return any((isinstance(loop.test, ast.Constant) and bool(loop.test.value)) or _goes_through(loop) for loop in loops)


def _goes_through(loop: ast.While) -> bool:
    """Does each round of the loop go through the data?"""
    passes = (child for child in children(loop) if isinstance(child, ast.For))
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for each in passes for part in children(each))


def of_batches(varies: Variation | None) -> TypeGuard[Variation]:
    """Does it vary with the batches of the rank, and not with the share of a collection that falls to it?"""
    return varies is not None and varies.aspect == "batches"


def grown_by_key(frame: Frame, at: ast.AST, name: ast.expr, key: Value) -> Value | None:
    """A dictionary once it has a key for each that the rank's own batches have, ``hits[name] += 1``, or for each round
    of a loop that ranks go round as often as their own data say; None where the key is none of these."""
    if frame.uneven is not None and isinstance(name, ast.Name):
        return divergent((GROWN, frame.key(at)), frame.uneven)
    if key.kind not in (FIELD, "item") or not of_batches(key.varies):
        return None
    return grown(frame.key(at), frame.span(at))


def grown(key: Hashable, at: Span) -> Value:
    """A dictionary that has a key for each that the rank's own batches have, as the code at a place adds them."""
    origin = Label(at, "a key here follows from each rank's own batches")
    varies = Variation("data", "which keys this rank's own batches have", origin=origin, confidence=Confidence.MEDIUM)
    return divergent((GROWN, key), varies)


def size_of(of: Hashable, varies: Variation) -> Value:
    """How many samples a batch holds, or its shape, of which that is the first number.

    A loader gives all ranks as many, but one may have filtered all of its own away.
    """
    return dataclasses.replace(divergent(("size", of), varies), even=True)


#: How the key of a piece begins that the code cuts off from a rank's own batch, by bounds that all ranks share.
PIECE: Final = "piece"
_SHAPE_OF_PIECE: Final = "shape of a piece"


def length_of(value: Value, of: Value) -> Value:
    """How many there are in `of`: a piece of a batch has the same length on all ranks."""
    if value.varies is None:
        return value
    return dataclasses.replace(value, even=True) if of.kind == PIECE else size_of(value.key, value.varies)


def shape_of(key: Hashable, base: Value) -> Value | None:
    """``batch.shape``, or that of a piece of it; None for anything else."""
    if not of_batches(base.varies):
        return None
    if base.kind == PIECE:
        return dataclasses.replace(divergent((_SHAPE_OF_PIECE, key), base.varies), even=True)
    return size_of(key, base.varies)


def dimension_of(project: Project, shape: Value, dimension: Known | None) -> Value | None:
    """``batch.shape[0]``; None where it is no shape. Of a dimension with a name (``shape[TIME]``) nothing is known: the
    rows and the length are mostly written as a number; nor of the third (``video.shape[2] >= 16``) and those behind it,
    which the settings of the data mostly give."""
    if shape.varies is None or shape.kind not in ("size", _SHAPE_OF_PIECE):
        return None
    if dimension is None or (isinstance(dimension.value, int) and dimension.value > 1):
        return unknown(("item", shape.key))
    key = (shape.key, dimension)
    if dimension != Known(0):
        return extent_of(project, key, shape.varies)
    if shape.kind == "size":
        return size_of(key, shape.varies)
    return dataclasses.replace(divergent(("item", key), shape.varies), even=True)


def is_size(value: Value) -> bool:
    return value.kind == "size"


def extent_of(project: Project, of: Hashable, varies: Variation) -> Value:
    """How long a batch's sequences are, or how wide its images: another number on each rank, and 0 on none. Where all
    samples have one length, nothing of it differs."""
    return unknown(("item", of)) if have_one_length(project) else divergent((_EXTENT, of), varies)


_EXTENT = "extent"


def is_extent(value: Value) -> bool:
    return value.kind == _EXTENT


def may_be_one_for_all(project: Project, value: Value) -> bool:
    """Is it such a number, where nothing shows that samples differ in it?"""
    return follows_from_extent(value) and not show_unlike_lengths(project)


def follows_from_extent(value: Value) -> bool:
    """Is it such a number, or one that was computed from it?"""
    return value.varies is not None and _mentions_extent(getattr(value.components[0], "key", None))


#: Parts of a key that are looked at: what a number is computed from is near its top.
_LOOKED_AT = 60


def _mentions_extent(key: object) -> bool:
    stack = [key]
    for _ in range(_LOOKED_AT):
        if not stack:
            return False
        part = stack.pop(0)
        if isinstance(part, Symbol):
            stack.append(part.key)
        elif isinstance(part, tuple):
            if part[:1] == (_EXTENT,):
                return True
            stack += part
    return False


#: What cuts a tensor or an array into pieces, as many as an argument says.
_CUTTING = frozenset({"chunk", "tensor_split", "array_split", "split"})


def dealt_evenly(frame: Frame, dealt: ast.expr, step: ast.expr) -> bool:
    """Was the collection made a multiple of the number that it is dealt out to: cut into so many pieces
    (``x.chunk(n * world)``), cut off (``x[:n * world]``) or filled up (``while len(x) % world: x.append(..)``)?"""
    pieces = assigned_once(frame, dealt)
    if isinstance(pieces, ast.Subscript) and isinstance(pieces.slice, ast.Slice) and pieces.slice.upper is not None:
        return _is_multiple(frame, assigned_once(frame, pieces.slice.upper), frame.text(step))
    if isinstance(frame.function, FunctionNode):
        nodes = inside(frame.function)
        if any(_fills_up(n, frame.text(dealt)) for n in nodes) and any(_rounds(frame, n, step) for n in nodes):
            return True
    if not isinstance(pieces, ast.Call) or not isinstance(pieces.func, ast.Attribute):
        return False
    if pieces.func.attr not in _CUTTING:
        return False
    return any(_is_multiple(frame, assigned_once(frame, count), frame.text(step)) for count in pieces.args[:2])


def is_cut_to_multiple(frame: Frame, call: ast.Call) -> bool:
    """Is what a call shares out among the processes cut to a multiple of their number before: ``end = len(files) -
    len(files) % state.num_processes``, ``files = files[:end]``?"""
    dealt = _assigned_before(frame, call.args[0], call) if call.args else None
    if not isinstance(dealt, ast.Subscript) or not isinstance(dealt.slice, ast.Slice):
        return False
    if dealt.slice.lower is not None or dealt.slice.step is not None or dealt.slice.upper is None:
        return False
    number = _assigned_before(frame, dealt.slice.upper, dealt)
    parts = [each for each in walk(number) if isinstance(each, ast.BinOp)]
    counts = (each.right for each in parts if isinstance(each.op, (ast.Mod, ast.FloorDiv)))
    return any(last_part(of) in _PROCESSES and _is_multiple(frame, number, frame.text(of)) for of in counts)


#: The number of processes that a job has.
_PROCESSES = frozenset({"num_processes", "world_size"})


def _assigned_before(frame: Frame, node: ast.expr, place: ast.expr) -> ast.expr:
    """What a name of the function was assigned last, above a place; any other expression itself."""
    if not isinstance(node, ast.Name) or not isinstance(frame.function, FunctionNode):
        return node
    above = [value for value in assigned_in(frame.function, node.id) if value.lineno < place.lineno]
    return above[-1] if above else node


def is_one_of_split(frame: Frame, piece: ast.expr) -> bool:
    """``np.array_split(indices, world_size)[rank]``, also as a list: the first pieces have one element more."""
    piece = assigned_once(frame, piece)
    while isinstance(piece, ast.Call) and (last_part(piece.func) in ("tolist", "list")):
        of = piece.func.value if isinstance(piece.func, ast.Attribute) else next(iter(piece.args), piece.func)
        piece = assigned_once(frame, of)
    split = assigned_once(frame, piece.value) if isinstance(piece, ast.Subscript) else piece
    return isinstance(split, ast.Call) and last_part(split.func) == "array_split"


def is_last_of_split(frame: Frame, pieces: ast.expr) -> bool:
    """``torch.split(nodes, math.ceil(len(nodes) / world))``: pieces of one size, which is rounded up, so that the last
    rank has fewer, or none."""
    split = assigned_once(frame, pieces)
    if (
        not isinstance(split, ast.Call)
        or last_part(split.func) != "split"
        or any(k.arg == "dim" for k in split.keywords)
    ):
        return False
    given = [*split.args, *(k.value for k in split.keywords if k.arg in ("split_size_or_sections", "split_size"))]
    sizes = [assigned_once(frame, each) for each in given]
    counts = [each for each in sizes if _rounds_up(each)]
    return any(_HOW_MANY.search(frame.text(each)) is not None for each in counts)


#: The number of what is divided, within an expression.
_HOW_MANY = re.compile(r"len\(|\.shape\[0\]|\.size\(0\)|\.numel\(\)|\bnum_\w+|\bn_\w+")


def _is_multiple(frame: Frame, number: ast.expr, of: str) -> bool:
    """``n * world``, ``len(x) - len(x) % world``."""
    if not isinstance(number, ast.BinOp):
        return False
    if isinstance(number.op, ast.Sub):
        rest = assigned_once(frame, number.right)
        return isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.Mod) and frame.text(rest.right) == of
    return isinstance(number.op, ast.Mult) and of in (frame.text(number.left), frame.text(number.right))


def _rounds(frame: Frame, node: ast.AST, to: ast.expr) -> bool:
    """Does a number get rounded there to a multiple: ``% world``, ``math.ceil(n / world)``?"""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return frame.text(node.right) == frame.text(to)
    return isinstance(node, ast.expr) and _rounds_up(node)


def cuts_unevenly(frame: Frame, cut: ast.expr, bounds: ast.Slice) -> bool:
    """``files[rank * n : (rank + 1) * n]`` where n is rounded up, so that the last rank has fewer, or where that ends
    with the list, so that it has more; unless the list was filled up before."""
    if not isinstance(frame.function, FunctionNode):
        return False
    bounded = [part for bound in (bounds.lower, bounds.upper) if bound is not None for part in walk(bound)]
    sizes = [assigned_in(frame.function, part.id) for part in bounded if isinstance(part, ast.Name)]
    uneven = any(len(values) == 1 and _rounds_up(values[0]) for values in sizes)
    uneven = uneven or _takes_rest(frame, cut, bounds.upper)
    return uneven and not any(_fills_up(node, frame.text(cut)) for node in children(frame.function))


def cuts_alike(frame: Frame, bounds: ast.Slice, values: Sequence[Value]) -> bool:
    """``mine[: len(files) // world_size]``, ``mine[:shortest]``: does it leave each rank as much of its share as all of
    them have for certain, the number of all that falls to a rank, or one that they have agreed on?"""
    if bounds.upper is None or bounds.lower is not None or bounds.step is not None:
        return False
    number = assigned_once(frame, bounds.upper)
    divided = isinstance(number, ast.BinOp) and isinstance(number.op, ast.FloorDiv) and not _rounds_up(number)
    return values[0].agreed or (divided and values[0].varies is None)


def _takes_rest(frame: Frame, cut: ast.expr, upper: ast.expr | None) -> bool:
    """``end = len(files) if rank == world_size - 1 else start + n``: on one rank the end of what is cut, on the others
    another place."""
    assert isinstance(frame.function, FunctionNode)
    ends = assigned_in(frame.function, upper.id) if isinstance(upper, ast.Name) else [upper] if upper else []
    arms = [arm for end in ends for arm in either_of(end)]
    whole = f"len({frame.text(cut)})"
    return len(arms) > 1 and any(frame.text(assigned_once(frame, arm)) == whole for arm in arms)


def gives_rest(frame: Frame, node: ast.expr) -> bool:
    """``if rank >= n % world_size: mine.append(None)``: ranks that have got one element less get another one. `node` is
    the list, or a name for what goes through it."""
    if not isinstance(frame.function, FunctionNode):
        return False
    branches = [node for node in children(frame.function) if isinstance(node, ast.If) and _is_after_rest(node.test)]
    values = assigned_in(frame.function, node.id) if isinstance(node, ast.Name) and branches else []
    named = names_in(node).union(*map(names_in, values)) if branches else frozenset()
    filled = (part for branch in branches for statement in branch.body for part in walk(statement))
    return any(_fills_up(part, name) for part in filled for name in named)


def _is_after_rest(test: ast.expr) -> bool:
    """``rank >= n % world_size``"""
    compared = (node for node in walk(test) if isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDER))
    sides = (side for node in compared for side in (node.left, *node.comparators))
    return any(isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod) for side in sides)


def _fills_up(node: ast.AST, name: str) -> bool:
    """``files += files[:missing]``, ``files.extend(...)``, ``files = files + ...``."""
    if isinstance(node, ast.AugAssign):
        return dotted_ast(node.target) == name
    if isinstance(node, ast.Assign):
        return any(dotted_ast(t) == name for t in node.targets) and any(
            isinstance(n, ast.BinOp) for n in walk(node.value)
        )
    return isinstance(node, ast.Call) and dotted_ast(node.func) in (f"{name}.extend", f"{name}.append")


def _rounds_up(node: ast.expr) -> bool:
    """``math.ceil(n / size)``, ``n // size + 1``, ``(n + size - 1) // size``."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "int" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Call):
        return last_part(node.func) == "ceil"
    if not isinstance(node, ast.BinOp):
        return False
    if isinstance(node.op, ast.FloorDiv):
        return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) for part in walk(node.left))
    divides = isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.FloorDiv)
    return isinstance(node.op, ast.Add) and divides and getattr(node.right, "value", None) == 1


def dealt_alike(frame: Frame, node: ast.expr) -> bool:
    """Is it what a list holds for this rank, ``inputs[rank]``, unless that list comes from cutting something up?"""
    picked = assigned_once(frame, node)
    if not isinstance(picked, ast.Subscript) or isinstance(picked.slice, ast.Slice):
        return False
    dealt = assigned_once(frame, picked.value)
    function = dealt.func if isinstance(dealt, ast.Call) else None
    return last_part(function) not in _CUTTING


def padded_to(frame: Frame, target: ast.expr, addition: ast.expr) -> ast.expr | None:
    """The length that `target` has after ``target += [None] * (n - len(target))`` or ``target += rest[: n -
    len(target)]``: n; None where it is no padding."""
    if isinstance(addition, ast.Subscript) and isinstance(addition.slice, ast.Slice):
        parts = [addition.slice.upper] if addition.slice.upper is not None and addition.slice.lower is None else []
    elif isinstance(addition, ast.BinOp) and isinstance(addition.op, ast.Mult):
        parts = [addition.left, addition.right]
        parts = parts if any(isinstance(part, (ast.List, ast.Tuple)) for part in parts) else []
    else:
        return None
    for part in parts:
        lacking = assigned_once(frame, part)
        if isinstance(lacking, ast.Call) and getattr(lacking.func, "id", "") == "max" and len(lacking.args) == 2:
            candidates = [assigned_once(frame, each) for each in lacking.args]
            lacking = next((each for each in candidates if isinstance(each, ast.BinOp)), lacking)
        if not isinstance(lacking, ast.BinOp) or not isinstance(lacking.op, ast.Sub):
            continue
        here = assigned_once(frame, lacking.right)
        counted = here.args if isinstance(here, ast.Call) and getattr(here.func, "id", "") == "len" else []
        if len(counted) == 1 and frame.text(counted[0]) == frame.text(target):
            return lacking.left
    return None


def assigned_once(frame: Frame, node: ast.expr) -> ast.expr:
    """The value of a name of the function that is assigned once; else the expression itself."""
    if not isinstance(node, ast.Name) or not isinstance(frame.function, FunctionNode):
        return node
    values = assigned_in(frame.function, node.id)
    return values[0] if len(values) == 1 else node


_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
#: What makes bytes of an object, as many as it takes, and what hands bytes on.
_SERIALISING = frozenset({"dumps", "encode", "getvalue"})
_OF_BYTES = frozenset({"from_buffer", "frombuffer", "list", "bytearray", "bytes", "copy"})


def is_serialised(frame: Frame, node: ast.expr) -> bool:
    """Are these the bytes of an object of the rank's own: ``ByteStorage.from_buffer(pickle.dumps(results))``?"""
    made = assigned_once(frame, node)
    if not isinstance(made, ast.Call):
        return False
    if last_part(made.func) in _SERIALISING:
        return True
    of = made.args[0] if made.args else getattr(made.func, "value", None)
    return last_part(made.func) in _OF_BYTES and of is not None and is_serialised(frame, of)


def of_numbers(frame: Frame, node: ast.AST) -> bool:
    """Does a set hold numbers, as an element shows that is one for certain? Their hash is the same in all processes,
    and so is the order that the set has them in."""
    given = node.args[0] if isinstance(node, ast.Call) and node.args else node
    given = assigned_once(frame, given) if isinstance(given, ast.expr) else given
    if isinstance(given, (ast.List, ast.Tuple, ast.Set)):
        return any(_is_number(frame, element) for element in given.elts)
    if isinstance(given, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return _is_number(frame, given.elt)
    return _is_range(given)


def _is_number(frame: Frame, node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_range(assigned_once(frame, node.value))
    if isinstance(node, ast.Call):
        return dotted_ast(node.func) in ("int", "float", "len", "round")
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _is_range(node: ast.AST) -> bool:
    """``range(n)``, ``list(range(n))``."""
    if isinstance(node, ast.Call) and dotted_ast(node.func) in ("list", "tuple", "sorted") and node.args:
        node = node.args[0]
    return isinstance(node, ast.Call) and dotted_ast(node.func) == "range"


def agrees_to_stop(body: list[Effect]) -> bool:
    """Does a round leave the loop after a collective: what the ranks have agreed on ends it for all of them?"""
    communicated = False
    for effect in flat(body):
        if isinstance(effect, EventStep) and effect.event.kind == "collective":
            communicated = True
        elif isinstance(effect, Leave) and effect.what in ("break", "return") and communicated:
            return True
    return False


def own_share(frame: Frame, node: ast.AST) -> Variation:
    """Why a rank has as many elements as fall to it."""
    origin = Label(frame.span(node), "each rank takes its own elements, not always equally many")
    return Variation.of_data("share", origin, Confidence.HIGH)


__all__ = [
    "PIECE",
    "agrees_to_stop",
    "as_dispatched",
    "assigned_once",
    "cuts_alike", "cuts_unevenly",
    "deals",
    "dealt_alike",
    "dealt_evenly",
    "dimension_of",
    "drops_last",
    "extent_of",
    "feeds_training",
    "follows_from_extent",
    "gives_rest",
    "grown", "grown_by_key",
    "is_extent",
    "is_last_of_split",
    "is_loader_name",
    "is_one_of_split",
    "is_serialised",
    "is_share",
    "is_size",
    "length_of",
    "may_be_one_for_all",
    "of_batches",
    "of_numbers",
    "own_length",
    "own_share",
    "padded_to",
    "rounds_or_repeats",
    "shape_of",
    "size_of",
    "streams",
]  # fmt: skip

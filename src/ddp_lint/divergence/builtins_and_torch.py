"""Builtins, the standard library and torch: what their calls return without communication."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Callable, Hashable, Sequence

from ddp_lint.divergence import references as ref
from ddp_lint.divergence import worlds
from ddp_lint.divergence.arguments import Arguments
from ddp_lint.divergence.calls_by_name import from_source, is_wrapped
from ddp_lint.divergence.effects import left_before
from ddp_lint.divergence.expressions import attribute, consume, environment, is_set, passed_on, unordered, write
from ddp_lint.divergence.frame import JOB_SIZE, LEFT_JOB, Frame, reference_of
from ddp_lint.divergence.iteration import element_of, emptiness, own_rounds, pair, streamed
from ddp_lint.divergence.iterators import hands_out_share, length_by_class
from ddp_lint.divergence.lengths import (
    assigned_once,
    deals,
    dealt_evenly,
    drops_last,
    equalised,
    is_one_of_split,
    is_serialised,
    is_share,
    is_size,
    length_of,
    of_batches,
    own_length,
    own_share,
    reads_files_of_its_own,
    streams,
)
from ddp_lint.divergence.progress import PROGRESS_BARS, progress
from ddp_lint.divergence.records import record
from ddp_lint.divergence.resolve import iterated, known
from ddp_lint.divergence.selections import (
    GRADIENTS,
    MAKING,
    SELECTING,
    SELECTION,
    SIZED,
    is_selection,
    own_size,
    selection,
    tensor_in,
)
from ddp_lint.divergence.undivided import hands_out_all, is_whole
from ddp_lint.divergence.values import (
    ALWAYS,
    GROWN,
    KEYED,
    MADE,
    NEVER,
    SET,
    Condition,
    Known,
    Test,
    Value,
    combine,
    constant,
    divergent,
    holding,
    is_filled,
    is_whether_sharded,
    unknown,
    whether_sharded,
)
from ddp_lint.knowledge.communication import Rank
from ddp_lint.source.syntax import gives_object

_JOINED_AS = Rank(name="torch.distributed.init_process_group", what="call", value="rank")
_KEPT = frozenset({"int", "float", "bool", "abs", "round", "min", "max", "sum", "any", "all", "str", "divmod", "pow"})
_SHAPELESS = frozenset(
    {"isinstance", "hasattr", "callable", "type", "print", "repr", "id", "issubclass", "vars", "dir"}
)


#: Classes of Python that no loader is an object of, nor an object of a class that derives from none of another package;
#: other ones that no loader is an object of.
_PLAIN = frozenset({"int", "float", "bool", "str", "bytes", "list", "tuple", "dict", "set"})
_NO_LOADER = re.compile(
    r"^((collections\.abc|typing)\.(Iterator|Generator|Sequence|Mapping)|torch\.Tensor|numpy\.ndarray)$"
)
_LOADER = "torch.utils.data.DataLoader"
#: Classes whose objects hold a part of the parameters on each rank.
_OF_SHARDS = re.compile(r"(^|\.)(FullyShardedDataParallel|FSDP|FSDPModule|DTensor|ShardedTensor|DeepSpeedEngine)$")


def _isinstance(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``isinstance(model, (FSDP, FSDPModule))`` tests whether the job shards its models."""
    of = arguments.positional[1] if len(arguments.positional) > 1 else None
    classes = of.items or (of,) if of is not None else ()
    wrapped = arguments.positional[0] if arguments.positional else None
    if wrapped is not None and isinstance(wrapped.reference, ref.OneOf) and wrapped.reference.tests:
        of_class = functools.partial(_is_of_class, frame, [value.reference for value in classes])
        return dataclasses.replace(_shapeless(frame, node, arguments), test=_made_of(wrapped, of_class))
    if (
        wrapped is not None
        and is_wrapped(wrapped)
        and _is_of_class(frame, [value.reference for value in classes], wrapped.reference)
    ):
        return constant(True)
    if classes and all(_is_of_shards(frame, value.reference) for value in classes):
        return whether_sharded(frame.text(node), frame.text(node))
    if wrapped is not None and len(node.args) == 2 and _is_none_of(frame, wrapped.reference, node.args[1], classes):
        return constant(False)
    return _shapeless(frame, node, arguments)


def _is_none_of(frame: Frame, one: object, asked: ast.expr, classes: Sequence[Value]) -> bool:
    """``isinstance(batches, int)`` of a loader: is it surely an object of none of these classes?"""
    if not isinstance(one, ref.Instance) or one.guessed:
        return False
    loads = one.of == _LOADER
    if not loads and (isinstance(one.of, str) or not _has_known_bases(frame, one.of)):
        return False
    nodes = asked.elts if isinstance(asked, ast.Tuple) else [asked]
    return len(nodes) == len(classes) and all(
        (isinstance(node, ast.Name) and node.id in _PLAIN and value.reference is None)
        or (loads and isinstance(value.reference, ref.External) and bool(_NO_LOADER.match(value.reference.name)))
        for node, value in zip(nodes, classes, strict=True)
    )


def _has_known_bases(frame: Frame, of: ref.ClassRef) -> bool:
    """Does a class derive from classes of the project alone?"""
    above, outside = frame.linker.linearised(of)
    return not outside and sum(len(each.node.bases) for each in above) < len(above)


def _made_of(value: Value, of_class: Callable[[object], bool]) -> Test:
    """When what is one of several objects, or is wrapped in one of several ways, is an object of one of these
    classes."""
    if not isinstance(value.reference, ref.OneOf):
        return ALWAYS if of_class(value.reference) else NEVER
    each = zip(value.reference.tests, value.reference.values, strict=True)
    return Test("or", tuple(Test("and", (test, _made_of(one, of_class))) for test, one in each))


def _is_of_class(frame: Frame, classes: Sequence[object], one: object) -> bool:
    names = {of.name for of in classes if isinstance(of, ref.External)}
    if not isinstance(one, ref.Instance):  # a function
        return False
    if isinstance(one.of, str):
        return one.of in names
    above, outside = frame.linker.linearised(one.of)
    return any(of in above for of in classes) or not names.isdisjoint(outside)


def _is_of_shards(frame: Frame, of: object) -> bool:
    """Is it such a class, or one of the project that derives from one?"""
    bases = frame.linker.outside(of) if isinstance(of, ref.ClassRef) else ()
    names = (of.name,) if isinstance(of, ref.External) else bases
    return any(map(_OF_SHARDS.search, names))


def _kept(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """int(rank) is the rank."""
    for value in arguments.values:
        consume(frame, value)
    if len(arguments.values) == 1 and is_whether_sharded(arguments.values[0]):
        return whether_sharded(frame.key(node), frame.text(node))
    assert isinstance(node.func, ast.Name)
    kept: dict[str, Callable[..., object]] = {"int": int, "bool": bool, "str": str, "abs": abs, "float": float}
    function = kept.get(node.func.id, _nothing)
    if len(arguments.positional) == 1 and not arguments.keywords:
        value = arguments.positional[0]
        if value.test is SET and node.func.id in ("int", "float"):
            return dataclasses.replace(value, test=None)
        if value.test is not None and node.func.id in ("bool", "int"):
            return value
        result = combine(function, (value,), (node.func.id, value.key))
        return dataclasses.replace(result, agreed=True) if value.agreed else result
    if not arguments.values:
        return unknown(frame.key(node))
    return combine(function, tuple(arguments.values), (node.func.id, tuple(v.key for v in arguments.values)))


def _written(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``print(meter)``, ``str(meter)``: they call the `__str__` of the object."""
    for place, argument in arguments.nodes.items():
        if isinstance(place, int) and not arguments.starred:
            write(frame, arguments.positional[place], argument)
    name = getattr(node.func, "id", "")
    if name == "print":  # gives None, and may have long texts
        return unknown(frame.key(node))
    return (_kept if name == "str" else _shapeless)(frame, node, arguments)


def _nothing(*_: object) -> object:
    raise TypeError


def _length(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    if not arguments.positional:
        return unknown(frame.key(node))
    of = arguments.positional[0]
    if (own := length_by_class(frame, of, node)) is not None:
        return own
    key = ("len", of.key)
    if is_size(of):  # ``len(x.shape)``: how many dimensions it has
        return unknown(key)
    if is_selection(of):
        return divergent(key, own_size(frame, node))
    if of.kind == GRADIENTS:
        return emptiness(frame, node, unknown((GRADIENTS, key)))
    if is_filled(of):
        return unknown(key)
    if of.kind == GROWN and of.varies is not None:
        return divergent(key, of.varies)
    streamed = isinstance(of.reference, ref.Instance) and of.reference.streams
    if streamed and (ends := own_length(frame, of, node.args[0], None)) is not None:
        return divergent(key, ends)
    value = passed_on(frame, node, arguments.values, key)
    return length_of(value, of) if of_batches(value.varies) else value


def _selected(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    if node.keywords:  # a tuple, with counts or places besides
        return passed_on(frame, node, arguments.values)
    return selection(frame, node, arguments.values)


def _joined(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``torch.cat(parts)``: as long as the parts are together."""
    value = passed_on(frame, node, arguments.values)
    first = arguments.positional[0] if arguments.positional else None
    tensor = tensor_in(first) if first is not None else None
    if tensor is None and first is not None and not first.even and (first.kind == GROWN or is_share(first)):
        tensor = ref.Instance(SELECTION)  # of as many parts as the rank has
    return value.with_reference(tensor) if tensor is not None and not value.agreed else value


def _tensor(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``torch.tensor(scores)``: as long as the list, of which each rank may have another one."""
    value = passed_on(frame, node, arguments.values, ("call", "torch.tensor", tuple(v.key for v in arguments.values)))
    given = arguments.positional[0] if arguments.positional else None
    made = assigned_once(frame, node.args[0]) if node.args else None
    listed = given is not None and (given.kind == GROWN or (isinstance(made, ast.ListComp) and is_share(given)))
    own = listed and given is not None and not given.even and not value.agreed
    own = own or (bool(node.args) and is_serialised(frame, node.args[0]) and not value.agreed)
    handed = given.varies.call_depth if given is not None and given.varies is not None else 0
    return value.with_reference(ref.Instance(SELECTION, handed=handed)) if own else value


def _made(count: int, frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``torch.zeros(rank + 1)``: a tensor of another shape on each rank. The first `count` arguments are the size (0:
    all)."""
    sizes = [
        *arguments.positional[: count or None],
        *(value for key, value in arguments.keywords.items() if key == "size"),
    ]
    parts = [part for size in sizes for part in (size.items or (size,))]
    varies = next((p.varies for p in parts if p.by_rank), None)
    if varies is None:
        return passed_on(frame, node, arguments.values)
    return dataclasses.replace(unknown(frame.key(node), ref.Instance(SIZED)), varies=varies)


def _range(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    if len(arguments.positional) == _WITH_STEP and _is_place(arguments.positional[0]):
        count = arguments.positional[1].constant
        if count is not None and isinstance(count.value, int) and count.value % _SHARED_OUT == 0:
            return unknown(("share", frame.key(node)))
        return divergent(("share", frame.key(node)), own_share(frame, node))  # ``range(rank, len(data), world_size)``
    return combine(_nothing, tuple(arguments.values), ("range", tuple(v.key for v in arguments.values)))


def _is_place(value: Value) -> bool:
    return value.by_rank and not value.open


#: A number of elements that is a multiple of it falls to as many ranks as jobs mostly have.
_SHARED_OUT = 8
#: Arguments of a `range` that has a step.
_WITH_STEP = 3


def _islice(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``islice(files, rank, None, world_size)``: what ``files[rank::world_size]`` is."""
    given, key = arguments.positional, ("slice", frame.key(node))
    if len(given) <= _WITH_STEP or not _is_place(given[1]) or given[2].constant is None or given[0].varies is not None:
        return passed_on(frame, node, arguments.values)
    if given[2].constant.value is not None:
        return dataclasses.replace(unknown(key), varies=given[1].varies)  # as many of a block for each, perhaps
    share = divergent(key, own_share(frame, node))
    return dataclasses.replace(share, even=True) if dealt_evenly(frame, node.args[0], node.args[3]) else share


def _subset(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``Subset(data, indices)``: as many as there are indices."""
    indices, given = arguments.get("indices", ("dataset", "indices"))
    if indices is None or indices.varies is None:
        return unknown(frame.key(node))
    if is_share(indices):
        return divergent(frame.key(node), indices.varies)
    split = given is not None and indices.varies.cause == "rank" and is_one_of_split(frame, given)
    return divergent(frame.key(node), own_share(frame, node)) if split else unknown(frame.key(node))


def _shapeless(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    return unknown(("call", frame.text(node)))


def _getattr(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    name = arguments.positional[1].constant if len(arguments.positional) > 1 else None
    if name is None or not isinstance(name.value, str):
        return _computed(frame, arguments.positional[0] if arguments.positional else None, node)
    base = arguments.positional[0]
    path = f"{frame.text(node.args[0])}.{name.value}"
    return frame.env.get(path) or attribute(frame, base, name.value, node, path)


def _computed(frame: Frame, base: Value | None, node: ast.Call) -> Value:
    """`getattr(self, name)` with a computed name: any hook that the class of the object overrides, unless the object
    itself is the default."""
    reference = reference_of(base)
    if isinstance(reference, ref.Instance) and isinstance(reference.of, ref.ClassRef) and not gives_object(node):
        return unknown(frame.key(node), ref.Dynamic(reference.of, _beginning(frame, node.args[1:2]), base))
    return unknown(frame.key(node))


def _beginning(frame: Frame, name: list[ast.expr]) -> str:
    """The text that a computed name begins with: ``"sample_" + kind``, ``f"sample_{kind}"``."""
    first: ast.expr | None = assigned_once(frame, name[0]) if name else None
    while isinstance(first, (ast.BinOp, ast.JoinedStr)):
        if isinstance(first, ast.JoinedStr):
            first = first.values[0] if first.values else None
        else:
            first = first.left if isinstance(first.op, ast.Add) else None
    text = first.value if isinstance(first, ast.Constant) else None
    return text if isinstance(text, str) else ""


def _next(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    for value in arguments.positional[:1]:
        consume(frame, value)
    source = known().source("call", "next")
    if len(node.args) == 2 and (own := own_rounds(frame, arguments.positional[0], node.args[0])) is not None:
        key = ("next or default", frame.key(node))
        ended = Test("atom", atom=Condition((key,) * worlds.COUNT, frame.text(node), own, open=True))
        value = divergent(key, own)
        is_none = arguments.positional[1].constant == Known(None)
        return dataclasses.replace(value, missing=ended) if is_none else value
    if source is None or len(node.args) > 1:
        return passed_on(frame, node, arguments.values)
    reference = arguments.positional[0].reference if arguments.positional else None
    if isinstance(reference, ref.Enumerated):
        return pair(frame, node, reference.element)
    if isinstance(reference, ref.Generator) and reference.makes:
        return unknown(frame.key(node))
    if isinstance(reference, ref.Instance) and reference.whole:
        return unknown(frame.key(node), agreed=True)
    return from_source(frame, source, arguments.values, node)


def _collected(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    for value in arguments.values:
        consume(frame, value)
    assert isinstance(node.func, ast.Name)
    iterable = arguments.get("iterable", ("iterable",))[0]
    if iterable is None:
        return passed_on(frame, node, arguments.values)
    over = iterated(node)
    if node.func.id in ("list", "tuple", "iter", "enumerate", "reversed") and len(arguments.positional) < 2:
        if node.func.id == "enumerate" and over is not None and not isinstance(iterable.reference, ref.Generator):
            numbered = ref.Enumerated(iterable.reference, element_of(frame, iterable, over))
            return dataclasses.replace(iterable, items=None, reference=numbered)
        return dataclasses.replace(iterable, items=None) if node.func.id in ("enumerate", "reversed") else iterable
    if node.func.id == "sorted" and iterable.kind == GROWN:
        return iterable
    value = passed_on(frame, node, arguments.values)
    if node.func.id == "zip" and any(map(is_set, arguments.positional)):
        return unordered(frame, node)
    if node.func.id == "zip":  # as long as the shortest of them
        stream = streamed(*arguments.positional)
        return value if stream is None else value.with_reference(stream)
    return value


def _dictionary(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``dict(loss=x)``, ``OrderedDict([("loss", x)])``: with what is known of its entries."""
    for value in arguments.values:
        consume(frame, value)
    value = passed_on(frame, node, arguments.values)
    entries = _entries_of(arguments.positional[0]) if arguments.positional else {}
    return value if arguments.starred or entries is None else holding(value, entries=entries | arguments.keywords)


def _entries_of(given: Value) -> dict[Hashable, Value] | None:
    """What a dictionary holds that is made of another one, or of pairs; None where that is not known."""
    pairs = [item.items or () for item in given.items or ()]
    if given.entries is None and (given.items is None or any(len(items) != 2 for items in pairs)):
        return None
    named = [(items[0].constant, items[1]) for items in pairs]
    if any(name is None for name, _ in named):
        return None
    return {**(given.entries or {}), **{name.value: value for name, value in named if name is not None}}


def _combined(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``product(set(modules), names)``: in the order of the set."""
    if any(map(is_set, arguments.positional)):
        return unordered(frame, node)
    value, stream = passed_on(frame, node, arguments.values), streamed(*arguments.positional)
    return value if stream is None else value.with_reference(stream)


def _own_part(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``split_dataset_by_node(data, rank, world_size)``: the part of the data that falls to this rank."""
    if equalised(frame.linker.project, frame.facts):
        return unknown(frame.key(node))
    return divergent(("share", frame.key(node)), own_share(frame, node))


def _web_dataset(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """A data set of shards: those of this rank where a `nodesplitter` deals them out, without end if `resampled`."""
    splits = [k.value for k in node.keywords if k.arg == "nodesplitter" and getattr(k.value, "value", 0) is not None]
    endless = any(k.arg in ("resampled", "repeat") for k in node.keywords)
    return _own_part(frame, node, arguments) if splits and not endless else unknown(frame.key(node))


def _namespace(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    return record(unknown((MADE, frame.key(node))), (), arguments)


def _keyed(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``defaultdict(list)``: a dictionary, which has a key once it was asked for one."""
    return holding(unknown((KEYED, frame.key(node))), entries={})


def _loader(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    dataset, made = arguments.get("dataset", ("dataset",))
    share = not deals(node) and (is_share(dataset) or is_share(length_by_class(frame, dataset, node)))
    sampled = any(hands_out_share(frame, arguments.keywords.get(name), node) for name in ("sampler", "batch_sampler"))
    stream = streams(frame, dataset) and not hands_out_all(frame, dataset, made)
    # Without the last batch shares of nearly one length are as long; files of any length are not.
    own = stream and reads_files_of_its_own(frame, dataset) if drops_last(node) else share or sampled or stream
    whole = is_whole(frame, node, arguments) and not own and (dataset is None or dataset.varies is None)
    return unknown(frame.key(node), ref.Instance(_LOADER, whole=whole, streams=own))


def _loader_of_nodes(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``NeighborLoader(graph, [15, 10], input_nodes=mine)``: as many batches as the nodes make that it starts from."""
    nodes, _ = arguments.get("input_nodes", ("data", "num_neighbors", "input_nodes"))
    own = is_share(nodes) and not drops_last(node)
    return unknown(frame.key(node), ref.Instance(_LOADER, streams=own))


def _set(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    return unordered(frame, node)


def _super(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    if frame.owner is None or frame.receiver is None:
        return unknown(frame.key(node))
    instance = reference_of(frame.receiver)
    of = instance.of if isinstance(instance, ref.Instance) and isinstance(instance.of, ref.ClassRef) else frame.owner
    return unknown(("super",), ref.Super(of, frame.owner, frame.receiver))


def _environ_get(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    key = arguments.positional[0].constant if arguments.positional else None
    return environment(frame, key.value, node) if key is not None else unknown(frame.key(node))


def _functools_partial(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    if not arguments.positional:
        return unknown(frame.key(node))
    partial = ref.Partial(
        arguments.positional[0], arguments.positional[1:], tuple(arguments.keywords.items()), identity=id(node)
    )
    return unknown(frame.key(node), partial)


def _same(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    return arguments.positional[0] if arguments.positional else unknown(frame.key(node))


def _job(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``init_process_group(backend, rank=0, world_size=1)``: from here on the function is alone."""
    frame.effects[:] = left_before(frame.effects)
    size = arguments.keywords.get("world_size")
    frame.env.pop(LEFT_JOB, None)
    if size is not None:
        frame.env[JOB_SIZE] = size
    _is_rank(frame, arguments.keywords.get("rank"), arguments.nodes.get("rank"))
    return unknown(frame.key(node))


def _is_rank(frame: Frame, given: Value | None, node: ast.expr | None) -> None:
    """What a process joins with as its rank is its rank, whatever it is called: ``rank=proc_id``."""
    if given is None or node is None or given.constant is not None or given.varies is not None:
        return
    if isinstance(node, (ast.Name, ast.Attribute)):
        rank = frame.rank_value(_JOINED_AS, node)
        same = [name for name, value in frame.env.items() if value.key == given.key]
        frame.env.update(dict.fromkeys((*same, frame.text(node)), rank))


def _environ_update(frame: Frame, node: ast.Call, arguments: Arguments) -> Value:
    """``os.environ.update(settings)``: the variables that are known of it are set."""
    given: dict[Hashable, Value] = {}
    if arguments.positional:
        given.update(arguments.positional[0].entries or {})
    given.update(arguments.keywords)
    for name, value in given.items():
        frame.env[f"os.environ[{name!r}]"] = value
    return constant(None)


_Handler = Callable[[Frame, ast.Call, Arguments], Value]


BUILTINS: dict[str, _Handler] = {
    **dict.fromkeys(_KEPT, _kept), **dict.fromkeys(_SHAPELESS, _shapeless),
    "isinstance": _isinstance, "len": _length, "range": _range,
    **dict.fromkeys(("print", "str", "repr"), _written),
    "getattr": _getattr, "next": _next, "super": _super, "set": _set, "frozenset": _set,
    **dict.fromkeys(("list", "tuple", "iter", "enumerate", "sorted", "reversed", "zip"), _collected),
    "dict": _dictionary,
}  # fmt: skip


LIBRARY: dict[str, _Handler] = {
    "os.environ.get": _environ_get, "os.getenv": _environ_get, "os.environ.update": _environ_update,
    "functools.partial": _functools_partial,
    **{f"torch.{name}": _joined for name in ("cat", "concat", "concatenate", "stack", "hstack", "vstack")},
    "torch.nn.utils.rnn.pad_sequence": _joined,
    **dict.fromkeys(("torch.tensor", "torch.as_tensor", "torch.ByteTensor", "torch.frombuffer"), _tensor),
    **{f"torch.{name}": _selected for name in SELECTING},
    **{f"torch.{name}": functools.partial(_made, count) for name, count in MAKING.items()},
    "copy.copy": _same, "copy.deepcopy": _same, "torch.compile": _same,
    # Only layers that have statistics are replaced.
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm": _same,
    **dict.fromkeys(PROGRESS_BARS, progress),
    **dict.fromkeys(("torch.utils.data.DataLoader", "torchdata.stateful_dataloader.StatefulDataLoader"), _loader),
    **dict.fromkeys(
        ("torch_geometric.loader.NeighborLoader", "torch_geometric.loader.NeighborSampler"), _loader_of_nodes
    ),
    "torch.utils.data.Subset": _subset, "webdataset.WebLoader": _loader, "webdataset.WebDataset": _web_dataset,
    "datasets.distributed.split_dataset_by_node": _own_part, "collections.defaultdict": _keyed,
    "collections.OrderedDict": _dictionary,
    **{f"itertools.{name}": _combined for name in ("product", "chain", "permutations", "combinations", "zip_longest")},
    "itertools.islice": _islice, "torch.distributed.init_process_group": _job,
    **dict.fromkeys(("types.SimpleNamespace", "argparse.Namespace"), _namespace),
    # The worlds are those of a distributed job.
    "torch.distributed.is_initialized": lambda frame, node, arguments: constant(True),
    "torch.distributed.is_available": lambda frame, node, arguments: constant(True),
    **dict.fromkeys(("torch.is_tensor", "torch.is_floating_point", "torch.is_complex"), _shapeless),
    "typing.cast": lambda frame, node, arguments: arguments.positional[-1] if arguments.positional else constant(None),
}  # fmt: skip

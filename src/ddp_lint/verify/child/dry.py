"""One rank of a dry run: a process group that does not communicate, and the values that it would have received.

torch's fake backend makes groups of any size in one process. What it gives back is what this rank put in; a value that
in a real run is the same on all ranks would then differ between them, and a branch on it would part ranks that never
part. So the ranks run twice, one after the other. In the first pass each is given what the first rank got, and leaves
what it puts in; in the second each gets what the ranks that were run put in, combined as the collective combines it.
What none of them knows (the message of a rank that was not run) is made up, and from the first time that the program
reads such a value on the host its trace counts no more.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.dispatch import arguments, tensors
from ddp_lint.verify.child.models import Models, local, pointer
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.observers.collectives import OUTPUT_NAMES, Collectives, global_rank, reduce_op_of
from ddp_lint.verify.child.recorder import Recorder

#: What earlier ranks left, by (kind, group or sender and receiver, number): pickled, loaded by who forks the ranks.
known: dict[tuple[Any, ...], bytes] = {}
#: Larger tensors are not passed on: they are gradients and parameters, on which no program branches.
_LARGEST = 1 << 16
#: Operators whose result is the same on all members.
_SHARED = ("allreduce", "all_reduce", "broadcast", "allgather", "all_gather")
#: Operators after which this rank holds what other ranks sent to it alone.
_RECEIVED = ("recv", "scatter", "alltoall", "all_to_all", "gather_", "reduce_scatter")
#: Operators that let Python see a value.
_READS = frozenset({"_local_scalar_dense", "item", "equal", "nonzero", "is_nonzero", "allclose"})


class Log:
    """What this rank leaves for those that run after it: records appended to one file."""

    def __init__(self, directory: str) -> None:
        self._path = pathlib.Path(directory, "values")

    def put(self, key: tuple[Any, ...], value: Any) -> None:
        if key not in known:
            with self._path.open("ab") as file:
                pickle.dump((key, pickle.dumps(value)), file)


def get(key: tuple[Any, ...]) -> Any:
    """What an earlier rank left, None when none did."""
    return pickle.loads(known[key]) if key in known else None


class Groups:
    """Makes every process group a fake one of the size of the job. Installed before the observers."""

    def __init__(self, world: int) -> None:
        self._world = world

    def install(self) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        rank = int(os.environ["RANK"])

        def init(original: Callable[..., Any], *_: Any, **__: Any) -> Any:
            return original("fake", store=FakeStore(), rank=rank, world_size=self._world)

        def group(original: Callable[..., Any], ranks: Any = None, *_: Any, **kwargs: Any) -> Any:
            return original(ranks, **{key: kwargs[key] for key in ("group_desc",) if key in kwargs})

        def ddp(original: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            hooks(wrapper, None, _averaged)

        wrapper = torch.nn.parallel.DistributedDataParallel
        hooks = wrapper.register_comm_hook
        c10d = dist.distributed_c10d
        patching.around(c10d, "init_process_group", init)
        patching.around(c10d, "new_group", group)
        patching.around(c10d, "monitored_barrier", lambda _, group=None, *_args, **_kwargs: dist.barrier(group))
        patching.replace(wrapper, "register_comm_hook", lambda _: lambda *_args, **_kwargs: None)
        patching.around(wrapper, "__init__", ddp)


def _averaged(_state, bucket):  # type: ignore[no-untyped-def] # DDP reads the annotations of a hook
    """DDP's own averaging, for which the reducer needs a work with a result, and the fake backend's has none."""
    buffer = bucket.buffer()
    buffer.div_(dist.get_world_size())
    dist.all_reduce(buffer)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(buffer)
    return future


class Values(Observer):
    """Gives each collective the result that the first rank had, and notes when the program reads a made-up one."""

    def __init__(self, recorder: Recorder, models: Models, collectives: Collectives) -> None:
        super().__init__(recorder, models)
        self._collectives = collectives
        self._log = Log(recorder.spec.directory)
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._made_up: set[int] = set()
        self._read = False

    def install(self) -> None:
        c10d = dist.distributed_c10d
        patching.around(c10d, "broadcast_object_list", self._broadcast_objects)
        patching.around(c10d, "all_gather_object", self._gather_objects)
        patching.around(c10d, "scatter_object_list", self._scatter_objects)
        patching.around(c10d, "gather_object", self._to_one)

    # ---- tensors

    def wants(self, op: Any) -> bool:
        return True

    def before(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if op.namespace in ("c10d", "_c10d_functional"):
            return op, arguments(op, args, kwargs)
        if not self._made_up:
            return None
        touched = any(pointer(t) in self._made_up for t in [*tensors(list(args)), *tensors(list(kwargs.values()))])
        if touched and op._opname in _READS and not self._read:
            self._read = True
            self.recorder.emit(trace.MadeUp, op=op._opname)
        return (None, None) if touched else None

    def after(self, token: Any, result: Any) -> None:
        op, given = token
        if op is None:
            self._made_up |= {pointer(tensor) for tensor in tensors([result] if torch.is_tensor(result) else result)}
            return
        with self.recorder.quieted():
            self._received(op._opname, given, result)

    def _received(self, name: str, given: dict[str, Any], result: Any) -> None:
        if name.startswith(("send", "isend")):
            self._sent(given)
        elif name.startswith(_RECEIVED):
            self._came(name, given, result)
        elif name.startswith(_SHARED):
            self._shared(name, given, result)

    def _shared(self, name: str, given: dict[str, Any], result: Any) -> None:
        """The same on all members: a combination of what those put in that were run."""
        label, ranks = self._collectives.group_of(given)
        outputs = _outputs(given, result)
        number = self._next("shared", label)
        self._made_up -= {pointer(tensor) for tensor in outputs}
        if sum(tensor.numel() for tensor in outputs) > _LARGEST:
            return
        put_in = {rank: found for rank in ranks if (found := get(("in", label, number, rank))) is not None}
        own = put_in.get(self.recorder.rank)
        if own is None:
            inputs = outputs if name.startswith(("allreduce", "broadcast")) else _inputs(given)
            own = [local(tensor).detach().clone() for tensor in inputs]
            self._log.put(("in", label, number, self.recorder.rank), own)
        put_in = put_in or {self.recorder.rank: own}
        combined = _combined(name, given, ranks, put_in)
        if [tuple(t.shape) for t in combined] == [tuple(local(t).shape) for t in outputs]:
            for mine, theirs in zip(outputs, combined, strict=True):
                local(mine).copy_(theirs)
        root = given.get("root_rank")
        if name.startswith("broadcast") and isinstance(root, int) and ranks[root] not in put_in:
            self._made_up |= {pointer(tensor) for tensor in outputs}

    def _sent(self, given: dict[str, Any]) -> None:
        peer = global_rank(self._collectives.group_of(given)[1], given["dst"])
        key = ("message", self.recorder.rank, peer, self._next(self.recorder.rank, peer))
        moved = tensors(given["tensors"])
        if sum(tensor.numel() for tensor in moved) <= _LARGEST:
            self._log.put(key, [tensor.detach().clone() for tensor in moved])

    def _came(self, name: str, given: dict[str, Any], result: Any) -> None:
        outputs = _outputs(given, result)
        if name.startswith("recv") and "src" in given:
            peer = global_rank(self._collectives.group_of(given)[1], given["src"])
            before = get(("message", peer, self.recorder.rank, self._next(peer, self.recorder.rank)))
            if before is not None and [t.shape for t in before] == [t.shape for t in outputs]:
                for mine, theirs in zip(outputs, before, strict=True):
                    mine.copy_(theirs)
                return
        self._made_up |= {pointer(tensor) for tensor in outputs}

    def _next(self, *key: Any) -> int:
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        return number

    # ---- objects

    def _broadcast_objects(
        self,
        _original: Any,
        object_list: list[Any],
        src: Any = None,
        group: Any = None,
        *_: Any,
        group_src: Any = None,
        **__: Any,
    ) -> None:
        with self._call("broadcast", "broadcast_object_list", group, src, group_src) as (key, root):
            before = get(key)
            if before is not None:
                object_list[:] = before
            elif root == self.recorder.rank:
                self._log.put(key, list(object_list))
            else:
                self._unknown("broadcast_object_list")

    def _gather_objects(self, _original: Any, object_list: list[Any], obj: Any, group: Any = None) -> None:
        with self._call("all_gather", "all_gather_object", group) as (key, _):
            ranks = self._collectives.groups.name(group or dist.group.WORLD)[1]
            self._log.put((*key, self.recorder.rank), obj)
            put_in = {rank: get((*key, rank)) for rank in ranks if (*key, rank) in known}
            object_list[:] = [put_in.get(rank, next(iter(put_in.values()), obj)) for rank in ranks]

    def _scatter_objects(
        self,
        _original: Any,
        output: list[Any],
        given: Any = None,
        src: Any = None,
        group: Any = None,
        group_src: Any = None,
    ) -> None:
        with self._call("scatter", "scatter_object_list", group, src, group_src) as (key, root):
            before = get(key)
            if root == self.recorder.rank:
                self._log.put(key, list(given))
                before = given
            if before is not None:
                output[0] = before[dist.get_rank(group)]
            else:
                self._unknown("scatter_object_list")

    def _to_one(
        self, _original: Any, obj: Any, gathered: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None
    ) -> None:
        with self._call("gather", "gather_object", group, dst, group_dst) as (_, root):
            if root == self.recorder.rank and gathered is not None:
                gathered[:] = [obj] * dist.get_world_size(group)

    @contextlib.contextmanager
    def _call(
        self, op: str, api: str, group: Any, root: int | None = None, in_group: int | None = None
    ) -> Iterator[tuple[tuple[Any, ...], int | None]]:
        """Record a call that moves objects, as one collective; its key and the global rank of its root."""
        label, ranks = self._collectives.groups.name(group or dist.group.WORLD)
        rooted = op in ("broadcast", "scatter", "gather")
        at = ranks[in_group] if in_group is not None else root if root is not None else ranks[0] if rooted else None
        number = self._collectives.groups.next(label)
        self.recorder.emit(trace.Collective, group=label, ranks=ranks, seq=number, op=op, api=api, root=at)
        with self.recorder.quieted():
            yield ("object", label, self._next("object", label)), at

    def _unknown(self, api: str) -> None:
        """Objects are Python values: their first use is a read."""
        if not self._read:
            self._read = True
            self.recorder.emit(trace.MadeUp, op=api)


def _outputs(given: dict[str, Any], result: Any) -> list[torch.Tensor]:
    """What an operator filled: its result (functional), its outputs, else what it works on in place."""
    for name in OUTPUT_NAMES:
        if name in given:
            return tensors(given[name])
    found = tensors(given.get("tensors"))
    return found or (tensors(result) if torch.is_tensor(result) else tensors(given.get("tensor")))


def _inputs(given: dict[str, Any]) -> list[torch.Tensor]:
    """What a gathering operator takes in."""
    for name in ("input_tensors", "input_tensor", "inputs", "input"):
        if name in given:
            return tensors(given[name])
    return tensors(given.get("tensors"))


def _combined(
    name: str, given: dict[str, Any], ranks: tuple[int, ...], put_in: dict[int, list[torch.Tensor]]
) -> list[torch.Tensor]:
    """The result of a collective of which some members' inputs are known; the others put in what the first did."""
    first = put_in[min(put_in)]
    if name.startswith("broadcast"):
        root = given.get("root_rank", given.get("src", 0))
        return put_in.get(ranks[root] if isinstance(root, int) else ranks[0], first)
    if "gather" in name:
        whole = [put_in.get(rank, first) for rank in ranks]
        if name.startswith("allgather_") and "into" not in name:
            return [tensor for one in whole for tensor in one]
        return [torch.cat([one[0] for one in whole])] if first and first[0].dim() else first
    op = reduce_op_of(given, {}) or "SUM"
    combined = []
    for column in zip(*put_in.values(), strict=False):
        if len({tuple(tensor.shape) for tensor in column}) > 1:
            return first
        stacked = torch.stack(list(column))
        if op in ("MIN", "MAX"):
            combined.append(stacked.amin(0) if op == "MIN" else stacked.amax(0))
        elif op in ("SUM", "AVG"):
            total = stacked.sum(0) * (len(ranks) if op == "SUM" else 1)
            whole_numbers = not (total.is_floating_point() or total.is_complex())
            combined.append(total // len(column) if whole_numbers else total / len(column))
        else:
            combined.append(column[0])
    return combined

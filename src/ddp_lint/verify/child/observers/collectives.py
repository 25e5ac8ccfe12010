"""Every collective that this rank issues: by the user, DDP's reducer, FSDP, DTensor, functional, on any thread."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import hashlib
import os
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist

from ddp_lint.verify import trace
from ddp_lint.verify.child import patching
from ddp_lint.verify.child.dispatch import arguments, tensors
from ddp_lint.verify.child.loops import loop_variables, rounds
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.frames import is_user, outwards, traceback_frames
from ddp_lint.verify.spec import longest_wait

#: Taken before a sleep of the program counts as its activity: a wait of ours does not.
_sleep = time.sleep
#: Operators of c10d and _c10d_functional whose name is not the one that users know.
_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "recv_any_source_": "recv",
    "isend": "send",
    "irecv": "recv",
}
_LABEL_LIMIT = 120
#: Collectives whose outputs are other tensors than what they are given.
_GATHERS = frozenset({"all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "gather"})
#: Optimizer steps in which a gather's inputs are looked at, and nodes of a graph that are.
_STEPS_LOOKED_AT, _MOST_NODES = 2, 20_000
#: Seconds that a collective may take beyond the time for which a busy peer is waited for.
_MARGIN = 30.0
_NO_COLLECTIVE = {"check_for_nan", "wait_tensor", "wait_tensors", "_wrap_tensor_autograd"}
_ROOT_NAMES = ("root_rank", "src")
_PEER_NAMES = {"send": "dst", "recv_": "src", "isend": "dst", "irecv": "src"}
#: What the operators call the tensors that they fill.
OUTPUT_NAMES = ("output_tensors", "output_tensor", "output", "out", "outputs")
_ASYNCHRONOUS = ("isend", "irecv", "batch_isend_irecv")
#: Which part of torch issued a collective, by the files between the operator and the user's frame.
_ISSUERS = (
    ("torch/distributed/fsdp/", "fsdp"),
    ("torch/distributed/_composable/", "fsdp"),
    ("torch/nn/parallel/distributed.py", "ddp"),
    ("torch/distributed/algorithms/", "ddp"),
    ("torch/distributed/tensor/", "torch"),
    ("torch/distributed/checkpoint/", "torch"),
    ("torch/nn/", "torch"),
    ("torch/optim/", "torch"),
)
#: Where a call of the user's goes through.
APIS = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py")


class Groups:
    """Names of process groups that are the same on all members."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._made: collections.Counter[tuple[int, ...]] = collections.Counter()
        self._issued: collections.Counter[str] = collections.Counter()

    def name(self, group: Any) -> tuple[str, tuple[int, ...]]:
        """The group's name and its global ranks. Groups of the same ranks are distinguished by the order of making."""
        key = str(group.group_name)
        if key not in self._names:
            ranks = tuple(dist.get_process_group_ranks(group))
            if group is dist.group.WORLD:
                label = "world"
            else:
                number = self._made[ranks]
                self._made[ranks] += 1
                label = ",".join(map(str, ranks)) + (f"#{number}" if number else "")
            self._names[key] = (label, ranks)
        return self._names[key]

    def forget(self) -> None:
        """All groups were destroyed: the next ones may bear their names."""
        self._names.clear()

    def next(self, label: str) -> int:
        number = self._issued[label]
        self._issued[label] += 1
        return number


@dataclasses.dataclass(frozen=True)
class _Origin:
    """`api`: the outermost function of torch.distributed that was called, `variables`: those of the innermost;
    `module`: FSDP's name of the module that it gathers or reduces for."""

    issuer: str
    api: str
    module: str
    variables: dict[str, Any]
    #: The user's frame, None where there is none.
    frame: FrameType | None = None


class Collectives(Observer):
    """Writes a Collective before the operator runs and a Done when it returned to Python.

    Process groups, also those that user code makes, time out soon after the watchdog would have ended the rank. Nothing
    else is done to them: a collective of our own would make what the target's first one makes, and fail in its stead.
    """

    def prepare(self) -> None:
        self.groups = Groups()
        self._timeout = datetime.timedelta(seconds=longest_wait(self.recorder.spec.timeout) + _MARGIN)
        #: The latest works by event number, to check whether they are complete.
        self.works: collections.OrderedDict[int, Any] = collections.OrderedDict()
        #: By thread how many callbacks of futures run in it, one in the other.
        self._callbacks: collections.Counter[int] = collections.Counter()
        #: The collective issued last is an asynchronous one of the user's.
        self.latest_is_users_asynchronous = False
        #: It is a message; the latest of those that this rank sent.
        self.latest_is_asynchronous_send = False
        self.sending: collections.deque[int] = collections.deque(maxlen=8)
        #: Set by the session: called with the line of the user's code, before each collective.
        self.before_call_at: Callable[[CodeType, int], None] = lambda _code, _line: None
        #: Set by the session: called before the group is destroyed, where NCCL may wait for the peers and let no thread
        #: of Python run until the process is ended.
        self.before_teardown: Callable[[], None] = lambda: None

    def install(self) -> None:
        patching.around(dist.distributed_c10d, "init_process_group", self._init)
        patching.around(sys.modules["torch.distributed.rendezvous"], "_create_c10d_store", self._keys_apart)
        patching.around(dist.distributed_c10d, "new_group", self._new_group)
        patching.before(dist.distributed_c10d, "destroy_process_group", self._destroy)
        patching.before(dist.Work, "wait", self._waits)
        for name in ("then", "add_done_callback"):
            patching.around(torch._C.Future, name, self._then)

    def _then(self, original: Any, future: Any, callback: Callable[..., Any]) -> Any:
        def called(*args: Any) -> Any:
            me = threading.get_ident()
            self._callbacks[me] += 1
            try:
                return callback(*args)
            finally:
                self._callbacks[me] -= 1

        return original(future, called)

    # ---- operators

    def wants(self, op: Any) -> bool:
        return op.namespace in ("c10d", "_c10d_functional") and op._opname not in _NO_COLLECTIVE

    def before(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._callbacks.get(threading.get_ident()):
            return None  # in this thread by chance, as what the callback waits for was there already
        given = arguments(op, args, kwargs)
        group, ranks = self.group_of(given)
        origin = self._origin(sys._getframe(2))
        if origin.frame is not None:
            self.before_call_at(origin.frame.f_code, origin.frame.f_lineno)
        name = self.name_of(op)
        peer = given.get(_PEER_NAMES.get(op._opname, ""))
        root = None if peer is not None else next((given[key] for key in _ROOT_NAMES if key in given), None)
        asynchronous = bool(origin.variables.get("async_op", False) or origin.api in _ASYNCHRONOUS)
        self.latest_is_users_asynchronous = asynchronous and origin.issuer == "user"
        self.latest_is_asynchronous_send = asynchronous and name == "send"
        drawn = ""
        if name == "all_reduce" and origin.issuer == "user":
            for tensor in (t for value in given.values() for t in tensors(value)):
                self.models.averaged(tensor, ranks)
            if self.recorder.phase == "forward" and len(ranks) == self.recorder.world:
                with self.recorder.quieted():
                    self.models.sums_in_forward()
                    drawn = _random_state() if self.recorder.step < _STEPS_LOOKED_AT else ""
        sends, expects = _splits(name, given)
        return self.recorder.emit(
            trace.Collective,
            group=group,
            ranks=ranks,
            seq=-1 if name in ("send", "recv") else self.groups.next(group),
            op=name,
            api=origin.api if origin.issuer == "user" else "",
            tensors=self._described(given, outputs=False),
            outputs=self._described(given, outputs=True),
            reduce_op=reduce_op_of(given, origin.variables),
            root=global_rank(ranks, root),
            peer=global_rank(ranks, peer) if name != "recv" or peer is not None else self._only_other(ranks),
            tag=int(given.get("tag") or 0),
            asynchronous=asynchronous,
            functional=op.namespace == "_c10d_functional",
            issued_by=origin.issuer,
            cut_off=self._cut_off(name, given) if origin.issuer == "user" else (),
            label=self._label(given, origin.frame) if origin.issuer == "user" else "",
            rounds=rounds(origin.frame),
            random=drawn,
            **(_in_flight() if origin.issuer == "user" else {}),
            sends=sends,
            expects=expects,
            overlapping=_overlapping([t for key in OUTPUT_NAMES for t in tensors(given.get(key))]),
            module=origin.module or (self.recorder.modules or [""])[-1],
        )

    def _only_other(self, ranks: tuple[int, ...]) -> int | None:
        """Who sends what is received from anybody: known where there is one other rank."""
        others = [rank for rank in ranks if rank != self.recorder.rank]
        return others[0] if len(others) == 1 else None

    def after(self, token: Any, result: Any) -> None:
        work = work_of(result)
        if work is not None:
            self.works[token] = work
            if self.latest_is_asynchronous_send:
                self.sending.append(token)
            while len(self.works) > 8:
                self.works.popitem(last=False)
        self.recorder.emit(trace.Done, frames=(), of=token)

    def _waits(self, work: Any, *_args: Any, **_kwargs: Any) -> None:
        number = next((number for number in self.sending if self.works.get(number) is work), None)
        if number is not None and self.recorder.active:
            self.recorder.emit(trace.Awaited, frames=(), of=number)

    def pending(self) -> tuple[int, ...]:
        """The events of the latest collectives that are not known to be complete."""
        return tuple(number for number, work in self.works.items() if not _complete(work))

    def name_of(self, op: Any) -> str:
        """The operation as users know it."""
        return _NAMES.get(op._opname, str(op._opname).rstrip("_"))

    def group_of(self, given: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
        if "process_group" in given:
            return self.groups.name(dist.ProcessGroup.unbox(given["process_group"]))
        from torch.distributed.distributed_c10d import _resolve_process_group

        name = given.get("group_name")
        return self.groups.name(_resolve_process_group(name) if isinstance(name, str) else name)

    def _described(self, given: dict[str, Any], *, outputs: bool) -> tuple[trace.Tensor, ...]:
        """What comes out, or what goes in (all of it where the operator works in place)."""
        moved = [t for name, value in given.items() if (name in OUTPUT_NAMES) is outputs for t in tensors(value)]
        return tuple(map(self._describe, moved))

    def _describe(self, tensor: torch.Tensor) -> trace.Tensor:
        return trace.Tensor(
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=str(tensor.device),
            name=self.models.tensor_name(tensor) if self.recorder.phase != "backward" else "",
        )

    def _origin(self, frame: FrameType | None) -> _Origin:
        """Who issued the collective, by the frames between the operator and the user's."""
        api, issuer, module = "", "", ""
        variables: dict[str, Any] = {}
        for here in outwards(frame):
            path = here.f_code.co_filename
            if is_user(path):  # the reducer's calls come from no function of torch.distributed
                return _Origin(issuer or ("" if api else self._reducer()) or "user", api, module, variables, here)
            if path.endswith(APIS) and not issuer and not here.f_code.co_name.startswith("_"):
                api = here.f_code.co_name
                variables = variables or dict(here.f_locals)
            elif not issuer:
                issuer = next((who for part, who in _ISSUERS if part in path), "")
            if issuer == "fsdp" and not module:
                module = str(getattr(here.f_locals.get("self"), "_module_fqn", "") or "")
        return _Origin(issuer or self._reducer() or "user", api, module, variables)

    def _reducer(self) -> str:
        """A backward is under way that DDP's reducer may hook into."""
        return "ddp" if self.recorder.phase == "backward" and any(m.wrap == "ddp" for m in self.models) else ""

    def _cut_off(self, name: str, given: dict[str, Any]) -> tuple[str, ...]:
        """The parameters behind the inputs of a gather, in the first steps: later ones do the same."""
        if name not in _GATHERS or self.recorder.step >= _STEPS_LOOKED_AT or not torch.is_grad_enabled():
            return ()
        inputs = [t for key, value in given.items() if key not in OUTPUT_NAMES for t in tensors(value)]
        return tuple(filter(None, map(self.models.tensor_name, _leaves(inputs))))

    def _label(self, given: dict[str, Any], frame: FrameType | None) -> str:
        """The name of the first tensor on the user's line, and the state of the loops around it."""
        if frame is None:
            return ""
        moved = next((t for value in given.values() for t in tensors(value)), None)
        variables = frame.f_locals
        names = [name for name, value in variables.items() if value is moved] if moved is not None else []
        loops = loop_variables(frame.f_code.co_filename, frame.f_lineno)
        where = [f"{name}={value!r}" for name in loops if isinstance(value := variables.get(name), str)]
        return ", ".join([*names[:1], *where])[:_LABEL_LIMIT]

    # ---- groups

    def _init(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.recorder.group_of = os.getpid()
        if self.recorder.quiet:
            return original(*args, **kwargs)
        arguments = {**kwargs, **_unserved(kwargs.get("init_method", args[1] if len(args) > 1 else None))}
        self.recorder.emit(trace.Call, name="init_process_group", arguments=_plain(arguments))
        if 0 < self.recorder.world < _asked(kwargs):
            self._wait_in_vain()
        kwargs["timeout"] = min(kwargs.get("timeout") or self._timeout, self._timeout)
        result = original(*args, **kwargs)
        self.groups.forget()
        self.recorder.marks.set(self.recorder.rank, "joined")
        return result

    def _wait_in_vain(self) -> None:
        """The group requires more ranks than there are. Where all of them get here the launcher ends them: torch waits
        for minutes, and holds the interpreter's lock."""
        self.recorder.marks.set(self.recorder.rank, "incomplete")
        until = time.monotonic() + self.recorder.spec.timeout
        while time.monotonic() < until:
            time.sleep(0.05)

    def _keys_apart(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """The runs of a launch share torchrun's store, where the keys of one must not meet those of another."""
        store = original(*args, **kwargs)
        job = self.recorder.spec.job
        return dist.PrefixStore(f"run{job}", store) if job else store

    def _new_group(self, original: Any, ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self.recorder.quiet or not dist.is_initialized():
            return original(ranks, *args, **kwargs)
        members = tuple(ranks) if ranks is not None else tuple(range(dist.get_world_size()))
        if not args:
            kwargs["timeout"] = min(kwargs.get("timeout") or self._timeout, self._timeout)
        number = None
        if not kwargs.get("use_local_synchronization"):
            number = self._emit_new_group(members)
        with self.recorder.quieted():
            group = original(ranks, *args, **kwargs)
        if number is not None:
            self.recorder.emit(trace.Done, frames=(), of=number)
        if isinstance(group, dist.ProcessGroup):
            self.groups.name(group)
        return group

    def _emit_new_group(self, members: tuple[int, ...]) -> int:
        world, ranks = self.groups.name(dist.group.WORLD)
        return self.recorder.emit(
            trace.Collective,
            group=world,
            ranks=ranks,
            seq=self.groups.next(world),
            op="new_group",
            api="new_group",
            members=members,
        )

    def let_peers_join(self) -> None:
        """Wait for the ranks of this machine that still connect: gloo raises in them when this one closes its ends.

        In the program itself that is a matter of microseconds, here observers (and a busy machine) delay each rank.
        """
        marks, rank, spec = self.recorder.marks, self.recorder.rank, self.recorder.spec
        if spec.device != "cpu" or spec.world or not marks.has(rank, "joined"):
            return
        until = time.monotonic() + spec.timeout / 2
        peers = [peer for peer in self.recorder.local_ranks if peer != rank]
        while time.monotonic() < until:
            if all(any(marks.has(peer, mark) for mark in ("joined", "dying", "over", "exit")) for peer in peers):
                return
            time.sleep(0.02)

    def _let_calls_end(self) -> None:
        """Wait for what the GPU has not done yet. NCCL's teardown waits for it too, but may hold the interpreter, and
        the watchdog could not tell where this rank hangs."""
        while self.recorder.spec.device == "cuda" and self.pending():
            _sleep(0.1)

    def _destroy(self, *args: Any, **kwargs: Any) -> None:
        if self.recorder.active:
            self.before_teardown()
            self.let_peers_join()
            self.recorder.emit(trace.Call, name="destroy_process_group")
            if not any(args) and not kwargs.get("group"):
                self._let_calls_end()
                self.groups.forget()
                self.recorder.marks.set(self.recorder.rank, "left")


def _asked(kwargs: dict[str, Any]) -> int:
    """For how many ranks init_process_group waits."""
    given = kwargs.get("world_size", -1)
    text = os.environ.get("WORLD_SIZE", "")
    return given if isinstance(given, int) and given > 0 else int(text) if text.isdigit() else 0


def _unserved(init_method: Any) -> dict[str, str]:
    """The address at which nobody answers: under torchrun no rank makes a store, because torchrun has made one."""
    address = urllib.parse.urlsplit(init_method if isinstance(init_method, str) else "")
    by_the_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not by_the_agent or address.scheme != "tcp" or str(address.port) == os.environ.get("MASTER_PORT"):
        return {}
    return {"unserved": init_method}


def _random_state() -> str:
    return hashlib.blake2b(bytes(torch.get_rng_state().tolist()), digest_size=8).hexdigest()


def _in_flight() -> dict[str, Any]:
    """The exception that the user's code is dealing with, and where it was raised."""
    error = sys.exc_info()[1]
    frames = tuple(traceback_frames(error.__traceback__)[0]) if isinstance(error, Exception) else ()
    return {"amid": f"{type(error).__name__}: {error}"[:_LABEL_LIMIT], "raised": frames} if frames else {}


def work_of(result: Any) -> Any:
    """The Work in what an operator of c10d returned, the very object that the user's code gets; None without one."""
    last = result[-1] if isinstance(result, list | tuple) and result else result
    if isinstance(last, torch.ScriptObject) and hasattr(dist.Work, "unbox"):
        return dist.Work.unbox(last)
    return None


def reduce_op_of(given: dict[str, Any], variables: dict[str, Any]) -> str:
    """The name of the operation by which an operator reduces, "" of one that does not; `variables` of who called it."""
    op = given.get("reduce_op")
    if op is None:
        return ""
    if isinstance(op, str):
        return op.upper()
    asked = op.op() if hasattr(op, "op") else variables.get("op", "")
    names = {int(value): name for name, value in dist.ReduceOp.RedOpType.__members__.items()}
    return names.get(asked, str(asked)) if isinstance(asked, int) else str(asked).rpartition(".")[2]


def global_rank(ranks: tuple[int, ...], number: Any) -> int | None:
    """The global rank of a rank of the group; one that does not exist, as gloo waits for it, is its number."""
    if not isinstance(number, int) or number < 0:
        return None
    return ranks[number] if number < len(ranks) else number


def _overlapping(filled: list[torch.Tensor]) -> bool:
    """Two of some tensors begin at one place."""
    starts = [tensor.data_ptr() for tensor in filled if type(tensor) is torch.Tensor and tensor.numel()]
    return len(set(starts)) < len(starts)


def _leaves(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that the graphs of some tensors begin with."""
    queue = [tensor.grad_fn for tensor in given if tensor.grad_fn is not None]
    seen = set(queue)
    leaves = []
    while queue and len(seen) < _MOST_NODES:
        node: Any = queue.pop()
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for inner, _ in node.next_functions:
            if inner is not None and inner not in seen:
                seen.add(inner)
                queue.append(inner)
    return leaves


def _splits(name: str, given: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What an all_to_all sends to each rank and expects from each, where it says so: rows, or elements."""
    if name == "all_to_all_single":
        sends, expects = given.get("input_split_sizes"), given.get("output_split_sizes")
    elif name == "all_to_all":
        sends, expects = ([t.numel() for t in tensors(given.get(key))] for key in ("input_tensors", "output_tensors"))
    else:
        return (), ()
    return (tuple(sends), tuple(expects)) if sends and expects else ((), ())


def _complete(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except RuntimeError:
        return True


def _plain(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value if isinstance(value, int | float | str) else str(value) for key, value in kwargs.items()}

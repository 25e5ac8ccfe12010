"""What the observers write and the oracles read: one JSON line per event, one append-only file per rank and run.

The file of rank N of a run is ``<run directory>/rankN.jsonl``. Every event is flushed as it happens, so that the trace
survives SIGSEGV and `os._exit`; a last line that was cut off is skipped. Nothing here imports torch.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import json
import os
import pathlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

#: What a model is wrapped in whose gradients the user's own code averages over all ranks.
BY_HAND = "by_hand"
#: The name of the wrap of a model without one: a copy of a model under DDP (an average of it, a teacher, a target
#: network), and one whose layers tensor parallelism splits (the parameters that it does not split are replicas).
COPY, TENSOR_PARALLEL = "copy", "tensor_parallel"
#: The same of a model in whose forward the user's own code sums over all ranks, and whose gradients are not averaged.
SPLIT_BY_HAND = "split_by_hand"
#: Wraps that keep one replica of the model on each rank.
REPLICATED = ("ddp", BY_HAND, COPY, TENSOR_PARALLEL, SPLIT_BY_HAND)


class Frame(NamedTuple):
    """A place in the user's code: absolute path, 1-based line, function name."""

    path: str
    line: int
    function: str

    def in_function_of(self, other: Frame) -> bool:
        return (self.path, self.function) == (other.path, other.function)


class Round(NamedTuple):
    """The state of a loop around a call: the number of the frame (0: the innermost), the loop's line, the name that it
    binds and what that holds."""

    depth: int
    line: int
    name: str
    value: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """What every event carries.

    `n` counts the events of this rank from 0; `t` is wall time in seconds since the epoch; `thread` is "main" or the
    thread's name. `phase` is build, wrap, after_wrap, forward, between (after a forward, before its backward),
    backward, after_backward, step (in an optimizer), after_step, or script (before the first forward of a script);
    `step` counts optimizer steps that have ended (0 in the first training step). `frames` are the user's frames,
    innermost first; `attributed` says that they were borrowed from the latest `.backward()`, because the event came
    from an autograd thread, which has no user frame of its own. `module` is the qualified name of the innermost
    module whose forward runs ("" at the root or outside).
    """

    n: int = 0
    t: float = 0.0
    thread: str = "main"
    phase: str = ""
    step: int = 0
    frames: tuple[Frame, ...] = ()
    attributed: bool = False
    module: str = ""

    @property
    def site(self) -> Frame | None:
        """The innermost user frame."""
        return self.frames[0] if self.frames else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start(Event):
    """A rank began. `stimuli` say in words how this pass differs from a plain one ("" entries never occur). `late`: the
    program has started it by itself, and what it ran as it imported its modules is not in the trace."""

    rank: int = 0
    world: int = 1
    pid: int = 0
    wrap: str = ""
    model: str = ""
    python: str = ""
    torch: str = ""
    device: str = ""
    backend: str = ""
    stimuli: tuple[str, ...] = ()
    late: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase(Event):
    """The phase changed to the event's own `phase`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor that a collective moves: shape, dtype ("float32"), and its name when it is known.

    `name` is the qualified name of the parameter, buffer or gradient ("fc.weight", "fc.weight.grad"), else "".
    """

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective(Event):
    """A collective (or send/recv, or the making of a group) as this rank issued it.

    `group` is the same string on all members: "world", or the ranks ("0,2") with "#k" for the k-th group of the same
    ranks; `ranks` are global; `seq` counts this rank's collectives on that group from 0. `op` is the operation
    (all_reduce, broadcast, all_gather, reduce_scatter, barrier, all_to_all, gather, scatter, reduce, send, recv,
    new_group, ...); `api` the torch.distributed function the user called (broadcast_object_list), "" for the reducer
    and FSDP. `root` and `peer` are global ranks. `issued_by`: user, ddp, fsdp or torch (DTensor, optimizer, ...).
    """

    group: str = "world"
    ranks: tuple[int, ...] = ()
    seq: int = 0
    op: str = ""
    api: str = ""
    tensors: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    reduce_op: str = ""
    root: int | None = None
    peer: int | None = None
    #: Of a message: those of one tag meet in order.
    tag: int = 0
    #: The members of the group that a `new_group` makes.
    members: tuple[int, ...] = ()
    asynchronous: bool = False
    functional: bool = False
    issued_by: str = "user"
    #: Parameters that take part in what a gather of the user's was given: its outputs hand no gradient back to them.
    cut_off: tuple[str, ...] = ()
    #: Of an all_to_all with sizes of its own how much goes to each rank, and is expected from each.
    sends: tuple[int, ...] = ()
    expects: tuple[int, ...] = ()
    #: Two of the tensors that it fills are the same memory.
    overlapping: bool = False
    #: What the user's own call is for, where its line says it: the variables of the loops around it ("name='loss'").
    label: str = ""
    #: The state of the loops around the call that count or iterate over names.
    rounds: tuple[Round, ...] = ()
    #: In the first forwards of a model that the user's code splits: the state of torch's random numbers.
    random: str = ""
    #: The exception in flight (in an `except`, a `finally`, an `__exit__`), and where the user's code raised it.
    amid: str = ""
    raised: tuple[Frame, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Done(Event):
    """The collective with event number `of` returned to Python (on gloo: it is complete; on NCCL: it is queued)."""

    of: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Awaited(Event):
    """This rank waits for the message with event number `of`, which it sent asynchronously."""

    of: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crossing(Event):
    """A thread calls `op` on a group in which another thread is in a call of `amid`, at `earlier`."""

    op: str = ""
    group: str = ""
    amid: str = ""
    earlier: tuple[Frame, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clocked(Event):
    """The test of a `while`, or of an `if` that left a loop (at `asked`), has read the time on this rank, the last
    time when `since` events had been written; `body` are the first and the last line of the loop's body. Written at
    the end of the run."""

    asked: tuple[Frame, ...] = ()
    body: tuple[int, int] = (0, 0)
    since: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Orphaned(Event):
    """A process that this rank has forked calls `op` on a group that the rank has made. Written by that process."""

    op: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Race(Event):
    """A tensor of the asynchronous collective `of` was read or written (`access`) before its `wait()`.

    Written at the access, with the tensor's first element then as `before`; and again when the wait is reached
    (`waited`), with the same element re-read as `after`. Equal values prove nothing: it is a race. `access` never:
    there was no wait until the end of the run, and no read (`frames` are those of the collective).
    """

    of: int = 0
    access: str = ""
    op: str = ""
    before: float | None = None
    after: float | None = None
    waited: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resummed(Event):
    """An all_reduce of the user's is about to sum a tensor that holds what an earlier one has summed over the ranks."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unordered(Event):
    """Two operations on two CUDA streams touch the same memory, one of them writes (`writes`: this, the later one),
    and nothing orders them. `earlier` are the frames of the first, `streams` the names of both in that order; `freed`:
    the memory was given back in between, and the allocator did not know that the first stream still used it."""

    op: str = ""
    writes: bool = False
    earlier_op: str = ""
    earlier: tuple[Frame, ...] = ()
    streams: tuple[str, str] = ("", "")
    freed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordered(Event):
    """The end of a run in which the order of streams was watched: how many streams and launches there were."""

    streams: int = 0
    launches: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Write(Event):
    """An operation that mutates its argument hit the storage of a parameter or buffer of the model.

    Writes of optimizers, DDP and FSDP themselves are left out. `role` is parameter or buffer, or gradient (that of the
    parameter `name`, which a line of the user's edits between backward and step); `sharded`: the write hit a shard;
    `wrap`: that of the model (as in Hashes), "" where it is not known.
    """

    op: str = ""
    name: str = ""
    role: str = "parameter"
    wrap: str = ""
    sharded: bool = False
    #: The numbers that the operation was given, such as a learning rate.
    numbers: tuple[float, ...] = ()
    #: Of a buffer: forwards compute with it, while autograd records.
    computed_with: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gathers(Event):
    """A line of the user's gathers statistics in this attribute of a module by assignment; it may be a buffer."""

    name: str = ""
    buffer: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assign(Event):
    """`p.data = tensor`: the parameter's storage was exchanged since the last look (at the end of every module's
    forward and around every step), so that there is no frame: `phase`, `module` and `name` must do."""

    name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage(Event):
    """Which parameters and buffers share storage, looked at `when`: before_wrap, after_wrap, optimizer or end.

    `overlaps` are pairs of names whose elements overlap in memory; `aliases` pairs that share a storage without a
    common element (chunks of a fused weight). One parameter under two names (tied) is `tied`; with `when` after_wrap
    `untied` are the pairs that were tied before the wrap and are two parameters now. With `when` optimizer: `foreign`
    are the shapes of optimizer entries that are no parameter of the wrapped model, `missing` the trainable parameters
    that no optimizer holds. With `when` end: `replaced` are names that hold another object than after the wrap, `added`
    and `removed` those that came or went, `tied` those that became the same parameter as another one,
    with that, `moved` those whose storage was exchanged.
    """

    when: str = ""
    overlaps: tuple[tuple[str, str], ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    untied: tuple[tuple[str, str], ...] = ()
    foreign: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hashes(Event):
    """Digests of tensors, by qualified name, to compare across ranks.

    `what`: parameters, gradients, buffers, statistics (what modules gather by assignment) or states (what an optimizer
    keeps of each parameter); `when`: before_wrap, after_wrap, averaged (by hand for the first time), before_step,
    after_step (of the first steps, and then of fewer and fewer: a Fingerprint is written at each), in_evaluation
    (batch norms' statistics as an evaluation begins), or at_end. `digests`
    maps a name to 16 hex digits of the values; `norms` to the 2-norm; `sketches` (of replicas' parameters) to a few
    sums of the values with random signs, the same on all ranks: the distance of two sketches is that of the tensors,
    exactly for small ones, else within a fifth or so. `sharded` names hold a shard (or are gathered by the wrapper),
    for which equality across ranks is neither expected nor a proof. `wrap` is ddp, fsdp1, fsdp2, by_hand (then
    the tensors are those whose gradients the user's code averages), copy, tensor_parallel or none: what this very model
    is wrapped in (a script may hold several models; `model` is its number among those of its wrap, `update` how many
    optimizer steps it has seen: what is compared has the same ones on all ranks, whichever others a rank has made or
    trained). `among` are the ranks that hold replicas of it, none for all. The ranks may make different numbers of
    steps inside of `Join`: `joins` counts how often it has ended, and `update` begins again then.
    """

    what: str = ""
    when: str = ""
    wrap: str = "none"
    model: int = 0
    update: int = -1
    joins: int = 0
    among: tuple[int, ...] = ()
    digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    norms: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sketches: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    sharded: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fingerprint(Event):
    """One number over all parameters of a replica after an optimizer step (or an update by hand), made on the device:
    ranks whose numbers agree hold the same values. Written at every step, where Hashes are at some.

    `wrap`, `model`, `update`, `joins` and `among` as in Hashes; `rates` are the learning rates of the
    optimizer's groups.
    """

    wrap: str = "none"
    model: int = 0
    update: int = -1
    joins: int = 0
    among: tuple[int, ...] = ()
    digest: str = ""
    rates: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference(Event):
    """The wrapped run against one process without a wrapper, after the last step.

    `parameters` and `gradients` (of the first step) map names to the largest absolute difference against the run on
    the full batch; `shard_parameters` and `shard_gradients` against a run that averages the gradients of each rank's
    batch, which is right also for models that are no mean over samples (BatchNorm, dropout). `separable`: those two
    references agree with each other. `repeatable`: the full-batch run gave the same parameters twice. `missing` are
    names that one side lacks; `error` says why there is no reference. `scale` maps names to the size (largest
    absolute value) of the reference parameter.
    """

    parameters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    gradients: Mapping[str, float] = dataclasses.field(default_factory=dict)
    shard_parameters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    shard_gradients: Mapping[str, float] = dataclasses.field(default_factory=dict)
    scale: Mapping[str, float] = dataclasses.field(default_factory=dict)
    separable: bool = True
    repeatable: bool = True
    missing: tuple[str, ...] = ()
    error: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoGrad(Event):
    """At `step()`, trainable parameters whose `.grad` is None. `reference` are those of them that have none in the
    single-process reference either (an unused parameter, not a damage of the wrapper)."""

    names: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Searched(Event):
    """The end of a run of a DDP model that was built with `find_unused_parameters`, where it was built (`frames`).

    `backwards` counts the backwards whose gradients were averaged; `unused` are the parameters that got no gradient of
    this rank's own in one of them."""

    model: int = 0
    backwards: int = 0
    unused: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switched(Event):
    """At a forward of a DDP model, `requires_grad` of some parameters is not what it was when DDP was built (at
    `built`): `frozen` are those whose gradients its reducer still waits for, `thawed` those that it does not know.
    `frames` are where one of them was changed last, none where that is unknown. Written when either list changes."""

    model: int = 0
    frozen: tuple[str, ...] = ()
    thawed: tuple[str, ...] = ()
    built: tuple[Frame, ...] = ()


class Passed(NamedTuple):
    """A module that ran: its name, its class, where its forward is defined ("" and 0 for torch's own), and numbers for
    the tensors that it was given and that it returned ("" for none)."""

    name: str
    type: str
    path: str
    line: int
    given: str
    made: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activations(Event):
    """The modules that ran in the first forward of a model in which the user's code sums over all ranks, in the order
    in which they were entered."""

    passed: tuple[Passed, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluates(Event):
    """A forward of a DDP model that autograd records, in which these modules (the outermost; "" is the whole) are in
    evaluation mode. Written when they are others than at the forward before; `model` and `update` as in Hashes,
    `frames` are where `eval()` was called, none where that is unknown."""

    model: int = 0
    update: int = 0
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphBreak(Event):
    """TorchDynamo broke the graph, in user code or in our own `torch._dynamo.explain` of the model."""

    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recompile(Event):
    """TorchDynamo compiled a function again, because something at the event's frame was not as before (`reason`)."""

    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sync(Event):
    """The host waited for the device (on CPU: it would on CUDA). `cause` is the operation; `device` of the tensor.

    `value` is what was read, for `.item()` and the like; `sharded`: of a DTensor or of a parameter that FSDP shards;
    `again`: re-read after `torch.cuda.synchronize()`, where side streams are in use (another value is a race).
    """

    cause: str = ""
    device: str = "cpu"
    value: float | None = None
    again: float | None = None
    sharded: bool = False
    #: Names of parameters or gradients that were read directly.
    name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Call(Event):
    """A function that the oracles care for was called.

    `name`: torch.load, torch.save, share_memory_, os._exit, sys.exit, set_device, init_process_group,
    destroy_process_group, DistributedDataParallel, FullyShardedDataParallel, fully_shard, DataLoader,
    DistributedSampler, set_epoch, clip_grad_norm_, GradScaler.update, multiprocessing, subprocess, manual_seed,
    autograd.grad, no_sync, compile, start_run ...
    `arguments` hold what matters of the call, as JSON values; the docstring of each observer says what.
    """

    name: str = ""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples(Event):
    """The indices that a sampler gave in one epoch: number, digest and the first 64; `dataset` is the length."""

    sampler: str = ""
    epoch: int = 0
    count: int = 0
    digest: str = ""
    #: Digest of the sorted indices: the same set in another order has the same.
    members: str = ""
    first: tuple[int, ...] = ()
    #: Of an epoch that ended and repeated no index, the drawn ones that a fixed order of all numbers puts first: where
    #: ranks draw the same numbers, they are among these of both.
    sample: tuple[int, ...] = ()
    dataset: int | None = None
    #: Digests of the first batches that the loop received, from any loader.
    batches: tuple[str, ...] = ()
    #: Of the samples that `first` names digests of what the loop was given, a word for each part of a batch; fewer
    #: where a batch does not distinguish its samples.
    rows: tuple[str, ...] = ()
    #: Optimizer steps between its first and its last batch.
    steps: int = 0
    #: The sampler has a `set_epoch`.
    takes_epoch: bool = False
    #: Among how many ranks a DistributedSampler divides the data, 0 where it is none.
    replicas: int = 0
    #: Digest of the indices of the `Subset` that a DistributedSampler divides among the ranks, "" where it is none.
    divided: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment(Event):
    """User code wrote an environment variable. The facts say what had happened before; `in_force` is what the reader
    of the variable uses now, where it can be read (at the write, and again at the end of the run as `final`)."""

    name: str = ""
    value: str | None = None
    torch_imported: bool = False
    cuda_initialized: bool = False
    group_up: bool = False
    ddp_built: bool = False
    in_force: str | None = None
    final: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Value(Event):
    """A number of this rank, to compare across ranks: `what` is clip_grad_norm_ (the total norm that it returned),
    scale (of a GradScaler after `update`), plateau (what ReduceLROnPlateau decides by), rate (that it left the first
    group with) or loss (of our own training loop)."""

    what: str = ""
    local: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(Event):
    """How often lines ran since the start: `counts` maps a path to {line: times}, for the watched lines.

    `guards` maps a path to {line: [times true, times false]}; `values` to {line: {name: repr}} of the names in the
    guard, and as NAME() of what the functions in it returned, when it was last tested (a guard whose body is on its
    own line has no outcome). Written every second that changed something, before a death, and at the end; the last
    one counts.
    """

    counts: Mapping[str, Mapping[int, int]] = dataclasses.field(default_factory=dict)
    guards: Mapping[str, Mapping[int, tuple[int, int]]] = dataclasses.field(default_factory=dict)
    values: Mapping[str, Mapping[int, Mapping[str, str]]] = dataclasses.field(default_factory=dict)
    #: By path and line a digest of the outcomes of a guard in their order.
    orders: Mapping[str, Mapping[int, int]] = dataclasses.field(default_factory=dict)
    #: The guards, by path, that a script tested before the first forward of any model alone.
    early: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileAccess(Event):
    """A watched line is about to use a file or folder. `what`: read, write, make (a folder) or remove (also by moving
    it away); `path` is absolute, without links."""

    what: str = ""
    path: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Raised(Event):
    """An exception. `where`: main (uncaught), thread, worker (of a DataLoader), process (a forked
    child), caught (swallowed by user code; seen
    only in the files with findings) or ignored. `frames` are the traceback's user frames, innermost first."""

    type: str = ""
    message: str = ""
    where: str = "main"
    #: The innermost frame of all, in or outside the user's code: "path:line function".
    inner: str = ""
    #: A module of a library raised it while the user's code imported that.
    importing: bool = False
    #: The variables and attributes that are None in the user's expression that raised it.
    none: tuple[str, ...] = ()
    #: Of an OSError the path that it is about.
    file: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exit(Event):
    """The user's code ends the process; `how` is os._exit or sys.exit, `pending` the exception in flight."""

    how: str = ""
    status: int = 0
    pending: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stall(Event):
    """Stacks of all threads. `reason`: timeout (nothing moved for `--timeout`), mismatch (the launcher saw that what is
    called here meets nothing), lock (nothing is left to release the lock that this rank waits for), slow (nothing was
    recorded for several timeouts, but `doing` says what the rank was busy with), peer (another rank is dying).

    The event's own `frames` are the user frames of the main thread; `pending` are the event numbers of collectives
    that are not known to have completed, the oldest first; `seconds` since the last progress;
    `recorder` are the last entries of torch's Flight Recorder, where it is on.
    """

    reason: str = "timeout"
    doing: str = ""
    seconds: float = 0.0
    pending: tuple[int, ...] = ()
    stacks: Mapping[str, tuple[Frame, ...]] = dataclasses.field(default_factory=dict)
    recorder: tuple[Mapping[str, Any], ...] = ()

    @property
    def stuck(self) -> bool:
        """The rank was ended because it was stuck."""
        return self.reason in ("timeout", "mismatch", "lock")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note(Event):
    """Something the reader should know: an observer that is off and why, a stimulus that could not be applied."""

    text: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken(Event):
    """An observer failed, which ends the rank: nothing is concluded from this run. `inner` as of Raised."""

    message: str = ""
    inner: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mapped(Event):
    """The user's code requested a device or backend that the run does not use (`requested`: cuda, nccl) and got another
    one (`actual`: cpu, gloo). Written once for each pair, at its first use."""

    requested: str = ""
    actual: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeUp(Event):
    """In a dry run the program read (`op`) a value that in a real one comes from another rank and is unknown
    here. What it does from here on may differ from a real run."""

    op: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class End(Event):
    """The completion marker: the training loop or the script completed on this rank. `arguments`: those that the
    program had then."""

    seconds: float = 0.0
    arguments: tuple[str, ...] = ()


SCRIPT_PHASE = "script"
AnyEvent = TypeVar("AnyEvent", bound=Event)
KINDS: Mapping[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {kind: vars(cls()) for kind, cls in KINDS.items()}
#: `json.dumps` would make an encoder for each event.
_ENCODE = json.JSONEncoder(default=vars, check_circular=False).encode


class Writer:
    """Appends events to the file of one rank; safe to call from any thread."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._file: io.TextIOWrapper = path.open("a", encoding="utf-8")
        self.pid = os.getpid()
        #: Held while an event is written. Who writes an excerpt of what other threads change too holds it from the
        #: excerpt on: else an older one may be written after a newer one.
        self.lock = threading.RLock()
        self.written = 0

    def write(self, event: Event) -> int:
        """Number, stamp and flush the event; returns its number."""
        with self.lock:
            number = self.written
            self.written += 1
            kind = type(event).__name__
            defaults = _DEFAULTS[kind]
            fields = {name: value for name, value in vars(event).items() if value != defaults[name]}
            fields["n"], fields["t"] = number, time.time()
            self._file.write(_ENCODE({"kind": kind, **fields}) + "\n")
            self._file.flush()
            return number


def read(path: pathlib.Path) -> list[Event]:
    """The events of one rank in order. A missing file has none; a line that was cut off or is unknown is skipped."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")  # a program may write to every file that is open
    return [event for line in text.splitlines() if (event := decode(line)) is not None]


def decode(line: str) -> Event | None:
    """One line of a trace, None when it is cut off or of an unknown kind."""
    try:
        fields = json.loads(line)
        cls = KINDS[fields.pop("kind")]
    except (ValueError, KeyError, AttributeError):
        return None
    known = {field.name for field in dataclasses.fields(cls)}
    return cls(**{key: _DECODERS.get(key, _plain)(value) for key, value in fields.items() if key in known})


def _plain(value: Any) -> Any:
    """JSON lists are tuples in events, also inside other lists."""
    return tuple(_plain(item) for item in value) if isinstance(value, list) else value


def _frames(value: Any) -> tuple[Frame, ...]:
    return tuple(Frame(*item) for item in value)


def _rounds(value: Any) -> tuple[Round, ...]:
    return tuple(Round(*item) for item in value)


def _tensors(value: Any) -> tuple[Tensor, ...]:
    return tuple(Tensor(**{key: _plain(item) for key, item in tensor.items()}) for tensor in value)


def _by_line(value: Any) -> dict[str, dict[int, Any]]:
    return {path: {int(line): _plain(item) for line, item in lines.items()} for path, lines in value.items()}


_DECODERS: Mapping[str, Any] = {
    "frames": _frames,
    "earlier": _frames,
    "built": _frames,
    "asked": _frames,
    "raised": _frames,
    "rounds": _rounds,
    "passed": lambda value: tuple(Passed(*item) for item in value),
    "tensors": _tensors,
    "outputs": _tensors,
    "counts": _by_line,
    "guards": _by_line,
    "values": _by_line,
    "orders": _by_line,
    "early": lambda value: {path: tuple(lines) for path, lines in value.items()},
    "stacks": lambda value: {thread: _frames(frames) for thread, frames in value.items()},
    "sketches": lambda value: {name: tuple(sums) for name, sums in value.items()},
}


@dataclasses.dataclass(frozen=True)
class Trace:
    """All events of one rank, and the most frequent queries about them."""

    rank: int
    events: tuple[Event, ...]

    @classmethod
    def load(cls, directory: pathlib.Path, rank: int) -> Trace:
        return cls(rank, tuple(read(directory / f"rank{rank}.jsonl")))

    def of(self, kind: type[AnyEvent]) -> Iterator[AnyEvent]:
        """The events of one class, in order."""
        return (event for event in self.events if isinstance(event, kind))

    def last(self, kind: type[AnyEvent]) -> AnyEvent | None:
        return next(iter(collections.deque(self.of(kind), maxlen=1)), None)

    def calls(self, *names: str) -> Iterator[Call]:
        """The calls of some functions, in order."""
        return (call for call in self.of(Call) if call.name in names)

    def hashes(self, what: str, when: str) -> Iterator[Hashes]:
        """The digests that were taken of some tensors at some moment of each step, in order."""
        return (event for event in self.of(Hashes) if (event.what, event.when) == (what, when))

    @property
    def communicates(self) -> bool:
        """The rank made a process group or issued a collective."""
        return self.last(Collective) is not None or any(self.calls("init_process_group"))

    @property
    def ended(self) -> bool:
        """The rank reached its completion marker."""
        return self.last(End) is not None

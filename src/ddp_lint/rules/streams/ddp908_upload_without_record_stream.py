from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import table
from ddp_lint.rules.base import Rule
from ddp_lint.rules.streams.stream import side_stream
from ddp_lint.rules.streams.training_loops import all_wait
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.tree import called, descendants, subtree

_RECORDS = re.compile(r"record\w*_stream|stream\w*_record")
_WAITS = {"wait_stream", "wait_event", "wait"}
#: Calls after which the GPU has done what it was given.
_HOST_WAITS = {"synchronize", "item", "tolist"}


class UploadWithoutRecordStream(Rule):
    """A batch that a side stream uploaded is used on another stream without keeping its memory.

    ## What it does

    Finds a tensor that is moved to the GPU inside `with torch.cuda.stream(side):` and read after
    `torch.cuda.current_stream().wait_stream(side)`, in a class or function that never calls `record_stream`, never lets
    `side` wait for the other stream and never synchronizes: the data prefetcher that many repositories copy.

    ## Why it breaks

    The allocator returns memory to the stream on which it was allocated. `wait_stream` orders the upload before its
    use, but when Python drops the batch its memory is free for `side` at once, and `side` does not wait: the next
    upload overwrites it while the main stream still reads it. Each rank trains on a mixture of two batches, without an
    error, depending on timing. Measured on 2 x H200: a tensor used on another stream without record_stream gave a
    wrong sum in 7 of 8 tries.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")


    class Prefetcher:
        def __init__(self, batches):
            self.batches = iter(batches)
            self.stream = torch.cuda.Stream()
            self.preload()

        def preload(self):
            self.batch = next(self.batches, None)
            if self.batch is not None:
                with torch.cuda.stream(self.stream):
                    self.batch = self.batch.to(device, non_blocking=True)  # <- DDP908

        def next(self):
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.batch
            self.preload()
            return batch


    prefetcher = Prefetcher(torch.full((1 << 22,), float(step)).pin_memory() for step in range(6))
    total = torch.zeros((), device=device)
    batch = prefetcher.next()
    while batch is not None:
        total += batch.sum()
        batch = prefetcher.next()
    dist.all_reduce(total)
    print(dist.get_rank(), total.item())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")


    class Prefetcher:
        def __init__(self, batches):
            self.batches = iter(batches)
            self.stream = torch.cuda.Stream()
            self.preload()

        def preload(self):
            self.batch = next(self.batches, None)
            if self.batch is not None:
                with torch.cuda.stream(self.stream):
                    self.batch = self.batch.to(device, non_blocking=True)

        def next(self):
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.batch
            if batch is not None:
                batch.record_stream(torch.cuda.current_stream())
            self.preload()
            return batch


    prefetcher = Prefetcher(torch.full((1 << 22,), float(step)).pin_memory() for step in range(6))
    total = torch.zeros((), device=device)
    batch = prefetcher.next()
    while batch is not None:
        total += batch.sum()
        batch = prefetcher.next()
    dist.all_reduce(total)
    print(dist.get_rank(), total.item())

    dist.destroy_process_group()
    ```

    ## When it is silent

    A `record_stream`, also in a helper; `side` waits for the other stream; a `synchronize()` or a value read on the
    host in the same class or function; memory made outside the block and filled with `copy_` inside; a class in a
    project all of whose training loops read a value of each round on the host (`loss.item()`): a batch is freed in the
    round after its own, and the GPU has read it by the end of that.

    ## How to confirm

    `ddp-lint verify train.py --device cuda` follows launches, events, waits and the allocator, and names two accesses
    to one memory that nothing orders, whether or not the first happened to finish in time.

    ## Fix safety

    No automatic fix: each tensor of the batch needs its `record_stream`. With many tensors, one
    `side.wait_stream(torch.cuda.current_stream())` before the block is enough for all.

    ## References

    - https://pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html
    - https://github.com/NVIDIA/apex/commit/d5e2bb4bdeedd27b1dfaf5bb2b24d6c000dee9be
    """

    triggers = Triggers("wait_stream", "record_stream", file=("stream",))
    oracles = ("streams",)
    needs_cuda = True
    confidence = Confidence.MEDIUM

    def start(self) -> None:
        self._reported: set[cst.Call] = set()

    def visit_With(self, node: cst.With) -> None:
        stream = self._stream(node)
        function = self.module.function_of(node)
        if not stream or function is None or function.name.value == "__init__":
            return
        owner = self.module.class_of(function) or function
        inside = list(descendants(owner))
        calls = [n for n in inside if isinstance(n, cst.Call)]
        if any(map(self._records, inside)) or any(self._waits(call, stream) for call in calls):
            return
        if self.module.project is not None and owner is not function and all_wait(self.module.project):
            return
        for handover in calls:
            if called(handover) == "wait_stream" and [dotted(a.value) for a in handover.args] == [stream]:
                upload = self._upload_read_after(handover, node)
                if upload is not None and handover not in self._reported:
                    self._reported.add(handover)
                    self._report(*upload, stream, handover)
                    return

    def _report(self, upload: cst.Assign, name: str, stream: str, handover: cst.Call) -> None:
        self.report(
            upload,
            f"the next upload on `{stream}` overwrites `{name}` while the stream that uses it still reads it",
            notes=[f"`{name}` is memory of `{stream}`, which can reuse it as soon as Python drops the tensor"],
            labels=[(handover, f"the stream that uses it waits for `{stream}`, but `{stream}` does not wait")],
            help="call record_stream(torch.cuda.current_stream()) on each tensor after this wait, or let "
            f"`{stream}` wait for the current stream before the block",
        )

    def _stream(self, block: cst.With) -> str:
        """The side stream of a block, '' where it is the one in use anyway."""
        stream = next(filter(None, (side_stream(self.module, item.item) for item in block.items)), "")
        values = self.module.assignments(stream, block) if stream else []
        current = any(isinstance(v, cst.Call) and called(v) in ("current_stream", "default_stream") for v in values)
        return "" if current else stream

    def _records(self, node: cst.CSTNode) -> bool:
        """Whether a name is `record_stream`, or that of a helper that records, called or passed on."""
        if not isinstance(node, cst.Name):
            return False
        return _RECORDS.search(node.value) is not None or node.value in self._recorders

    @functools.cached_property
    def _recorders(self) -> set[str]:
        """The functions of this file, other than methods, that record streams."""
        names = (n for n in self.module.nodes if isinstance(n, cst.Name) and _RECORDS.search(n.value))
        functions = {f for f in map(self.module.function_of, names) if f is not None}
        return {f.name.value for f in functions if self.module.class_of(f) is None}

    def _waits(self, call: cst.Call, stream: str) -> bool:
        """Whether a call makes `stream`, or the host, wait for who reads the memory."""
        receiver, name = dotted(call.func).rpartition(".")[0], called(call)
        if name in _HOST_WAITS:
            return True
        waiting = dotted(call.args[0].value) if name == "wait" and call.args else receiver
        return name in _WAITS and (waiting == stream or self._inside_block(call))

    def _inside_block(self, call: cst.Call) -> bool:
        return any(isinstance(up, cst.With) and self._stream(up) for up in self.module.ancestors(call))

    def _upload_read_after(self, handover: cst.Call, block: cst.With) -> tuple[cst.Assign, str] | None:
        """An upload of the block, and its name, that the function of the wait goes on to read outside of the block."""
        function = self.module.function_of(handover)
        if function is None:
            return None
        inside = set(descendants(block))
        after = itertools.dropwhile(lambda n: n is not handover, descendants(function.body))
        read = {dotted(n) for n in _read(after) if n not in inside}
        local = function is self.module.function_of(block)
        uploads = self._uploads(block)
        return next(((upload, name) for upload, name in uploads if name in read and (local or "." in name)), None)

    def _uploads(self, block: cst.With) -> Iterator[tuple[cst.Assign, str]]:
        for node in descendants(block.body):
            if isinstance(node, cst.Assign) and any(map(self._is_upload, subtree(node.value))):
                for target in node.targets:
                    yield from ((node, name) for name in _names(target.target))

    def _is_upload(self, node: cst.CSTNode) -> bool:
        if not isinstance(node, cst.Call):
            return False
        name, known = called(node), table("devices")["uploads"]
        if name not in known["methods"]:
            return re.fullmatch(known["helpers"], name) is not None
        return name == "cuda" or any(
            "cpu" not in self.module.code(a.value).lower() and not self.module.qualified(a.value).startswith("torch.")
            for a in node.args
            if a.keyword is None or a.keyword.value == "device"
        )


def _names(target: cst.BaseExpression) -> Iterator[str]:
    """What a target binds, or changes an element of."""
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _names(element.value)
    elif name := dotted(target.value if isinstance(target, cst.Subscript) else target):
        yield name


def _read(nodes: Iterable[cst.CSTNode]) -> Iterator[cst.CSTNode]:
    """The names and attributes among nodes that are no target of an assignment or a loop."""
    written: set[cst.CSTNode] = set()
    for node in nodes:
        if isinstance(node, (cst.AssignTarget, cst.For, cst.CompFor)):
            written |= {node.target, *descendants(node.target)}
        if isinstance(node, (cst.Name, cst.Attribute)) and node not in written:
            yield node

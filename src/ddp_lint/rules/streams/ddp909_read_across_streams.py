from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Collection, Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.rules.base import Rule
from ddp_lint.rules.streams.stream import stream_of
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import chosen_apart, opposed
from ddp_lint.source.imports import of_self
from ddp_lint.source.queries import calls_in, options
from ddp_lint.source.tree import called, descendants, names_in, subtree
from ddp_lint.tensors import TensorFile
from ddp_lint.view.wraps import argument

#: Calls after which the order is not known: events, and the host waiting.
_ORDER_ALL = frozenset({"synchronize", "wait_event", "wait", "stream_synchronize", "block", "record_event"})
_WAITS = _ORDER_ALL | {"wait_stream"}
#: Methods that end with an underscore and compute nothing.
_COMPUTE_NOTHING = frozenset(
    {"requires_grad_", "detach_", "resize_", "set_", "share_memory_", "unsqueeze_", "squeeze_", "transpose_", "t_"}
)
#: What looks at a tensor without its values, is the handle of one that will be there, or may upload one of the host.
_LOOKS = frozenset(
    {
        "wait",
        "result",
        "cuda",
        "to",
        "cpu",
        "shape",
        "size",
        "dim",
        "ndim",
        "device",
        "dtype",
        "numel",
        "is_cuda",
        "stride",
        "record_stream",
        "requires_grad",
        *_COMPUTE_NOTHING,
    }
)
_VIEWS = frozenset(
    {"view", "reshape", "transpose", "permute", "expand", "unsqueeze", "squeeze", "narrow", "chunk", "detach"}
)
_CURRENT = ("current_stream", "default_stream")
#: In the names of what may order one stream behind another, in a class or where it is used.
_MAY_ORDER = re.compile(r"wait|(?<!a)sync|event", re.IGNORECASE)
_ORDERS = re.compile(r"\bwait_stream\b|\bwait_event\b|\bsynchronize\b|\bEvent\(")


@dataclasses.dataclass(frozen=True)
class _Made:
    """A name that gets a tensor, or whose tensor is written, on a stream ('': the one that is current in the
    function); `value`: what it gets, or the name itself."""

    node: cst.Assign | cst.Expr
    value: cst.BaseExpression
    stream: str
    end: tuple[int, int]

    @property
    def is_write(self) -> bool:
        return isinstance(self.node, cst.Expr)


class ReadAcrossStreams(Rule):
    """A tensor is computed on one stream and read on another that never waits for the first.

    ## What it does

    Finds a tensor that a function computes on the current stream and uses under `with torch.cuda.stream(side)` without
    `side.wait_stream(...)` in between, and one that is computed on the side stream and used after the block without
    `torch.cuda.current_stream().wait_stream(side)`. What is copied there asynchronously counts as computed, whatever
    holds it: `batch["x"].cuda(non_blocking=True)`. So does what is written there: in place (`x.mul_(2)`), or by a call
    that gets a buffer without values (`torch.empty`, or a part of it) and whose result nobody takes. Finds a prefetcher
    as well that hands out what it copies on a stream of its own (`self.x = self.x.cuda(non_blocking=True)`), if no
    method of the class waits for that stream, nor any file that names the class.

    ## Why it breaks

    Streams run concurrently: the reader starts while the writer still runs, and reads the current content of the
    memory. It depends on timing, so in one step rank 0 may be correct and rank 1 not, and the following collective
    sends the wrong values to all ranks. Measured on 2 x H200 (NCCL, torch 2.11): without a wait before the block wrong
    final values in 3 of 4 runs, different on each rank; without a wait after it 1.0 instead of 2.0 in 4 of 4. A wait
    of another stream than that of the block changes nothing: 2.0 instead of 4.0 in 4 of 4 (H100).

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")


    def doubled(x: torch.Tensor):
        side = torch.cuda.Stream()
        for _ in range(50):
            x = x @ x
        scaled = x + 1
        with torch.cuda.stream(side):
            total = scaled * 2  # <- DDP909
        torch.cuda.current_stream().wait_stream(side)
        return total


    x = doubled(torch.eye(4096, device=device))
    dist.all_reduce(x)
    print(dist.get_rank(), x.sum().item())

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


    def doubled(x: torch.Tensor):
        side = torch.cuda.Stream()
        for _ in range(50):
            x = x @ x
        scaled = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total = scaled * 2
            scaled.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        total.record_stream(torch.cuda.current_stream())
        return total


    x = doubled(torch.eye(4096, device=device))
    dist.all_reduce(x)
    print(dist.get_rank(), x.sum().item())

    dist.destroy_process_group()
    ```

    ## When it is silent

    If the reader has waited since, directly or through a third stream. If an event, `synchronize()` or the `wait()` of
    a handle is in between. Tensors on the host, whose upload is ordered by its stream; uses of only the shape or the
    device; results that a function returns or stores, whose user may wait, but for those of such a class; calls of
    functions after the block, which may also wait; tensors from another function.

    ## How to confirm

    `ddp-lint verify train.py --device cuda`: an access to memory that nothing orders after the one before it.

    ## Fix safety

    No automatic fix.

    ## References

    - https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("stream", file=("torch",), tests=False)
    oracles = ("streams",)
    needs_cuda = True

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        sides = {self._side(n) for n in descendants(node.body) if isinstance(n, cst.With)} - {""}
        if not sides:
            return
        waits = [(self._place(call), call) for call in calls_in(node.body) if called(call) in _WAITS]
        self._waits = sorted(waits, key=lambda wait: wait[0])
        made: dict[str, list[_Made]] = {}
        for statement in descendants(node.body):
            if isinstance(statement, (cst.Assign, cst.Expr)) and self.module.function_of(statement) is node:
                self._note(statement, made)
        all_made = [m for found in made.values() for m in found]
        reported: set[cst.CSTNode] = set()
        for name in descendants(node.body):
            if isinstance(name, cst.Name) and name.value in made and self.module.function_of(name) is node:
                self._visit_read(name, made[name.value], all_made, reported)

    # ---- classes that hand out what they copy

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        blocks = [n for n in descendants(node.body) if isinstance(n, cst.With) and of_self(self._side(n))]
        if not blocks or any(self._is_of_project(base.value) for base in node.bases) or self._may_order(node):
            return
        copied = {name: copy for block in blocks for name, copy in self._copies(block)}
        for read, name in self._handed_out(node, copied.keys()) if copied else ():
            stream = self._stream_at(copied[name])
            if self._is_side_stream(stream, copied[name]):
                self.report(
                    read,
                    f"`{name}` is handed out, but nothing waits for `{stream}`, which copies it: it may be half done",
                    notes=["this depends on timing: in one step rank 0 may be correct and rank 1 not"],
                    labels=[(copied[name], f"copied on `{stream}`")],
                    help=f"torch.cuda.current_stream().wait_stream({stream}) before it is handed out",
                )
                return

    def _is_of_project(self, base: cst.BaseExpression) -> bool:
        """Whether a base class may have methods that wait: any but those of PyTorch, and `object`."""
        name = self.module.qualified(base)
        return not name.startswith("torch.") and dotted(base) != "object"

    def _may_order(self, owner: cst.ClassDef) -> bool:
        """Whether a name in a class sounds as if it waited, or a file of the project that uses the class may do so."""
        if any(isinstance(n, cst.Name) and _MAY_ORDER.search(n.value) for n in descendants(owner)):
            return True
        project = self.module.project
        if project is None:
            return True
        texts = (project.contents.text(path) or "" for path in project.contents.holding(owner.name.value))
        return any(_ORDERS.search(text) for text in texts)

    def _copies(self, block: cst.With) -> Iterator[tuple[str, cst.Assign]]:
        """The attributes that a block gives what it copies asynchronously."""
        for node in descendants(block.body):
            if not isinstance(node, cst.Assign) or not any(
                isinstance(n, cst.Call) and self._is_uploaded(n) for n in subtree(node.value)
            ):
                continue
            for target in node.targets:
                to = target.target.value if isinstance(target.target, cst.Subscript) else target.target
                if of_self(dotted(to)):
                    yield dotted(to), node

    def _handed_out(self, owner: cst.ClassDef, copied: Collection[str]) -> Iterator[tuple[cst.CSTNode, str]]:
        """The places where a method returns one of the attributes, or gives it to a name that it returns."""
        for function in (n for n in owner.body.body if isinstance(n, cst.FunctionDef)):
            inside = list(descendants(function.body))
            returned = [n.value for n in inside if isinstance(n, (cst.Return, cst.Yield)) and n.value is not None]
            named = {name for value in returned if isinstance(value, cst.BaseExpression) for name in names_in(value)}
            taken = [n for n in inside if isinstance(n, cst.Assign) and named & _bound_by(n)]
            for value in (*returned, *(n.value for n in taken)):
                if not isinstance(value, cst.BaseExpression) or self._stream_at(value):
                    continue
                parts = [e.value for e in value.elements] if isinstance(value, cst.Tuple) else [value]
                yield from ((part, dotted(part)) for part in parts if dotted(part) in copied)

    def _is_side_stream(self, stream: str, at: cst.CSTNode) -> bool:
        """Whether an attribute always holds a stream that the class makes, or None."""
        values = options(self.module.assignments(stream, at))
        made = [v for v in values if isinstance(v, cst.Call) and self.module.qualified(v.func) == "torch.cuda.Stream"]
        return bool(made) and all(v in made or dotted(v) == "None" for v in values)

    def _place(self, node: cst.CSTNode) -> tuple[int, int]:
        span = self.module.span(node)
        return (span.line, span.column)

    def _note(self, statement: cst.Assign | cst.Expr, made: dict[str, list[_Made]]) -> None:
        if isinstance(statement, cst.Assign):
            targets = [target.target for target in statement.targets]
            found = [(name, statement.value) for name in targets if isinstance(name, cst.Name)]
        else:
            found = [(name, name) for name in self._written(statement.value, made)]
        span, stream = self.module.span(statement), self._stream_at(statement) if found else ""
        for name, value in found:
            last = _Made(statement, value, stream, (span.end_line, span.end_column))
            made.setdefault(name.value, []).append(last)

    def _written(self, call: cst.BaseExpression, made: dict[str, list[_Made]]) -> list[cst.Name]:
        """The tensors that a call writes whose result nobody takes: in place, or a buffer that it gets, which holds
        nothing yet."""
        if not isinstance(call, cst.Call):
            return []
        on = call.func.value if isinstance(call.func, cst.Attribute) else None
        if isinstance(on, cst.Name) and called(call).endswith("_") and called(call) not in _COMPUTE_NOTHING:
            return [on]
        given = [arg.value for arg in call.args if isinstance(arg.value, cst.Name)]
        return [name for name in given if self._is_empty(name.value, made)]

    def _is_empty(self, name: str, made: dict[str, list[_Made]]) -> bool:
        """Whether a name was last given memory without values, or a part of such."""
        value = made[name][-1].value if name in made else None
        while isinstance(value, cst.Subscript):
            value = value.value
        if isinstance(value, cst.Name) and value.value != name:
            return self._is_empty(value.value, made)
        return isinstance(value, cst.Call) and called(value) in ("empty", "empty_like", "new_empty", "empty_strided")

    def _computes(self, value: cst.BaseExpression) -> bool:
        """Whether work is done on the stream: a view is none, and what is pinned lies on the host."""
        if isinstance(value, cst.Call):
            pinned = any(called(c) == "pin_memory" for c in subtree(value) if isinstance(c, cst.Call))
            return called(value) not in _VIEWS and not pinned
        return isinstance(value, cst.BinaryOperation)

    def _is_uploaded(self, value: cst.BaseExpression) -> bool:
        """Whether it is an asynchronous copy of a tensor, whatever holds it: ``batch["x"].cuda(non_blocking=True)``."""
        if not isinstance(value, cst.Call) or called(value) not in ("cuda", "to"):
            return False
        asynchronous = dotted(argument(value, None, "non_blocking")) == "True"
        return asynchronous and "cpu" not in self.module.code(value).lower()

    def _visit_read(self, name: cst.Name, made: list[_Made], all_made: list[_Made], reported: set[cst.CSTNode]) -> None:
        stream = self._stream_at(name)
        earlier = bisect.bisect_right(made, self._place(name), key=lambda m: m.end)
        last = made[earlier - 1] if earlier else None
        if last is None or last.stream == stream or last.node in reported or not self._uses(name, stream):
            return
        if opposed(self.module, last.node, name) or self._is_ordered(last, name, stream):
            return
        function = self.module.function_of(name)
        value = TensorFile.of(self.module).flow(function).value(last.value) if function is not None else None
        known = value is not None and (value.computed if not last.stream else value.tensor)
        if value is None or not (known or (last.stream and self._is_uploaded(last.value))) or value.on_host:
            return
        if not last.is_write and not self._computes(last.value):
            return
        reported.update(m.node for m in all_made if m.stream == last.stream)
        side = stream or last.stream
        here = "the current stream"
        on = f"`{stream}`" if stream else here
        source = f"`{last.stream}`" if last.stream else here
        self.report(
            name,
            f"`{name.value}` is read on {on}, which does not wait for the stream that makes it: it may be half written",
            notes=["this depends on timing: in one step rank 0 may be correct and rank 1 not"],
            labels=[
                (last.node, f"{'written' if last.is_write else 'made'} on {source}"),
                *((wait, "waits for another stream") for wait in self._waits_of(stream, last, name)),
            ],
            help=f"{side}.wait_stream({last.stream or 'torch.cuda.current_stream()'}) before the block"
            if stream
            else f"torch.cuda.current_stream().wait_stream({side}) after the block",
        )

    # ---- streams

    def _side(self, node: cst.With) -> str:
        return next(filter(None, (self._name(stream_of(self.module, item.item), node) for item in node.items)), "")

    def _name(self, stream: str, at: cst.CSTNode) -> str:
        """'' for a name of the current stream, which is no other one."""
        values = self.module.assignments(stream, at) if stream else []
        return "" if any(isinstance(v, cst.Call) and called(v) in _CURRENT for v in values) else stream

    def _stream_at(self, node: cst.CSTNode) -> str:
        """The stream that work at a place goes to, '' for the one that is current when the function is called."""
        below: cst.CSTNode = node
        for up in self.module.ancestors(node):
            if isinstance(up, cst.FunctionDef):
                return ""
            if isinstance(up, cst.With) and below is up.body and (side := self._side(up)):
                return side
            below = up
        return ""

    def _named(self, node: cst.BaseExpression) -> str:
        """The stream that an expression refers to, '' for the current one."""
        if isinstance(node, cst.Call) and called(node) in _CURRENT:
            return self._stream_at(node)
        return self._name(dotted(node), node)

    def _is_ordered(self, made: _Made, read: cst.Name, stream: str) -> bool:
        """Whether the reader's stream has waited for the maker's between the two."""
        ready = {made.stream}
        for call in self._waits_between(made, read):
            if called(call) in _ORDER_ALL:
                return True
            if isinstance(call.func, cst.Attribute) and call.args and self._named(call.args[0].value) in ready:
                ready.add(self._named(call.func.value))
        return stream in ready

    def _waits_between(self, made: _Made, read: cst.Name) -> list[cst.Call]:
        first, end = (bisect.bisect_left(self._waits, at, key=lambda w: w[0]) for at in (made.end, self._place(read)))
        waits = (call for _, call in self._waits[first:end])
        return [w for w in waits if not opposed(self.module, w, read) and not chosen_apart(self.module, w, read)]

    def _waits_of(self, stream: str, made: _Made, read: cst.Name) -> list[cst.Call]:
        """The last wait of the reader's stream before the read: it is for another one."""
        waits = [w for w in self._waits_between(made, read) if isinstance(w.func, cst.Attribute)]
        return [w for w in waits if isinstance(w.func, cst.Attribute) and self._named(w.func.value) == stream][-1:]

    # ---- reads

    def _uses(self, name: cst.Name, stream: str) -> bool:
        """Whether the values are read there: in an operation, a method, a call. What is called behind the block may
        wait by itself, unless it is PyTorch's."""
        up = self.module.parent(name)
        if isinstance(up, cst.Attribute):
            call = self.module.parent(up)
            return up.value is name and up.attr.value not in _LOOKS and isinstance(call, cst.Call) and call.func is up
        if isinstance(up, cst.BinaryOperation):
            return True
        if not isinstance(up, cst.Arg):
            return False
        call = self.module.parent(up)
        if not isinstance(call, cst.Call) or called(call) in _ORDER_ALL:
            return False
        return bool(stream) or self.module.qualified(call.func).startswith("torch.")


def _bound_by(assign: cst.Assign) -> set[str]:
    return {name for target in assign.targets for name in names_in(target.target)} - {"self"}

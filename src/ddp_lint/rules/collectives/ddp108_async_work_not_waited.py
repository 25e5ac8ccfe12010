from __future__ import annotations

import ast
import bisect
import collections
import dataclasses
import functools
import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge.communication import Collective, load
from ddp_lint.knowledge.tensors import names, words_of
from ddp_lint.launch.callers import CallSite, call_sites
from ddp_lint.launch.helpers import helper_of
from ddp_lint.project import Project
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.queries import is_false, last_name
from ddp_lint.source.syntax import defaults, walk
from ddp_lint.source.tree import descendants, method_of, names_in, parameters_of, subtree
from ddp_lint.view.wraps import argument

#: Reading these of a tensor does not read its elements.
_METADATA = frozenset(
    {
        *("shape", "size", "numel", "nelement", "element_size", "itemsize", "nbytes", "dim", "ndim", "stride"),
        *("dtype", "device", "is_cuda", "record_stream"),
    }
)
#: The flag of a call that an expression decides.
_DECIDED = "..."
#: Methods that keep a tensor somewhere, and functions by their words: nothing is read.
_KEEPING = frozenset({"append", "appendleft", "insert", "store", "push", "put", "enqueue"})
#: A call of something so named, between the collective and the use, makes the use safe.
_SYNCHRONISES = re.compile(r"(?<!a)sync|wait|barrier", re.IGNORECASE)

#: What makes a tensor in memory of its own.
_MAKING = frozenset(f"torch.{name}" for name in ("cat", "empty", "full", "ones", "stack", "tensor", "zeros", "Tensor"))
_COPYING = frozenset({"clone", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"})


class AsyncWorkNotWaited(Rule):
    """An asynchronous collective is never waited for, or its tensor is used before the wait.

    ## What it does

    Finds calls with `async_op=True` (and `isend`, `irecv`), also in methods of the project that return the work.
    Reported if the handle is dropped, stored in a name or list that is not used again, or waited for only after the
    tensor has been read or written.

    ## Why it breaks

    `async_op=True` returns at once; the communication continues in the background on its own stream. A tensor that is
    read before `work.wait()` has its old value, the reduced value or a mixture, depending on timing, and no error is
    raised. Measured on two ranks: an `all_reduce` read too early gave 1.0 instead of 2.0 in 2 of 3 runs with NCCL and
    in 3 of 3 with gloo; writing too early left 11 and 20 mixed in one tensor.

    ## Example

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    count = torch.ones(1 << 24, device=device)
    work = dist.all_reduce(count, async_op=True)  # <- DDP108
    print(rank, count[-1].item())
    work.wait()

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import os

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()

    count = torch.ones(1 << 24, device=device)
    work = dist.all_reduce(count, async_op=True)
    work.wait()
    print(rank, count[-1].item())

    dist.destroy_process_group()
    ```

    ## When it is silent

    If `async_op` is a parameter that is False by default and no call in the project changes it (without any call, as of
    the `forward` of an `autograd.Function`, the finding needs `--preview`). If the handle is returned, stored in an
    object, passed on or appended to a list that is used again, because other code may wait, unless a further loop over
    the same tensors comes first; of a handle that an object keeps, what reads the elements in the same block before any
    call of that object is reported. If a `synchronize()`, `wait_stream()` or `barrier()` is in between, or only shape,
    dtype or device of the tensor are read, also by a function of the project. If the function makes the tensor and
    mentions it no more. Inside a coalescing manager, and for functional collectives, whose results wait by themselves.
    Reading the *input* of an `all_gather` is allowed.

    ## How to confirm

    `ddp-lint verify train.py`: the value read differs from the value after `wait()`.

    ## Fix safety

    No automatic fix: the place of the wait determines which work overlaps.

    ## References

    - PyTorch, "Synchronous and asynchronous collective operations":
      https://pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-collective-operations
    """

    confidence = Confidence.HIGH
    triggers = Triggers(
        "async_op",
        "isend",
        "irecv",
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "reduce_scatter",
        "reduce_scatter_tensor",
    )
    oracles = ("value",)

    def visit_Call(self, node: cst.Call) -> None:
        entry = load().collectives.get(self.module.qualified(node.func)) or self._handed_on(node)
        if entry is None or entry.returns != "work":
            return
        flag = _flag(entry, node)
        if flag is None or self._in_coalescing_manager(node):
            return
        asked = self._asked_for(node, flag)
        if asked is False:
            return
        outputs, inputs = (_buffers(entry, node, outputs=written) for written in (True, False))
        pending = _Pending(entry, node, outputs, inputs, self._asks_for_metadata)
        parent = self.module.parent(node)
        if isinstance(parent, cst.Expr):
            # What an expression decides, the code behind it may ask again: `async_op=device is None`.
            self._dropped(pending, certain=flag == "True", asked=asked is True and flag != _DECIDED)
        elif flag == "True" and isinstance(parent, cst.Assign) and len(parent.targets) == 1:
            self._assigned(pending, dotted(parent.targets[0].target))
        elif flag == "True" and isinstance(parent, cst.Arg):
            self._appended(pending, parent)

    def _handed_on(self, node: cst.Call) -> Collective | None:
        """The collective whose work a method of the project passes on, if it is asked for: ``comm.all_reduce(x,
        async_op=True)``."""
        project, name = self.module.project, method_of(node)
        entry = load().collectives.get(f"torch.distributed.{name}")
        if entry is None or project is None or dotted(argument(node, None, "async_op")) != "True":
            return None
        found = project.remember(("hands work on", name), lambda: [*_hands_work_on(project, name)])
        return entry if found and all(found) else None

    def _in_coalescing_manager(self, node: cst.Call) -> bool:
        blocks = (a for a in self.module.ancestors(node) if isinstance(a, cst.With))
        return any("coalescing" in self.module.code(item.item) for block in blocks for item in block.items)

    def _asked_for(self, node: cst.Call, flag: str) -> bool | None:
        """Whether a call in the project requests asynchronous work; None where the flag is a parameter, False by
        default, and no call of the function is seen, or only one that passes on a parameter of that kind."""
        function = self.module.function_of(node)
        if function is None:
            return True
        if flag not in _false_by_default(function):
            return None if self._is_applied(function) and flag in _names_of_parameters(function) else True
        sites = call_sites(self.module, function)
        given = [(site, value) for site in sites if not _is_off(value := site.given(function, flag))]
        if not given:
            return False if sites else None
        return None if all(_hands_on(site, value) for site, value in given) else True

    def _is_applied(self, function: cst.FunctionDef) -> bool:
        """Whether it is what `apply` of an `autograd.Function` calls: what that is given is not seen."""
        owner = self.module.class_of(function)
        return owner is not None and self.module.is_subclass(owner, "torch.autograd.Function")

    # ---- the three ways to lose a handle

    def _dropped(self, pending: _Pending, certain: bool, asked: bool) -> None:
        touched = self._touched(pending, handle="")
        if touched is None and (not certain or self._synchronised_later(pending.call)):
            return
        if touched is None and pending.outputs and all(map(self._is_never_read, pending.outputs)):
            return
        if touched is None and pending.outputs and all(self._is_done_with(n, pending.call) for n in pending.outputs):
            return
        called = self.module.code(pending.call.func)
        self.report(
            pending.call,
            f"`{called}(...)` drops its handle, so no code can wait for it",
            notes=[_later(pending, touched)],
            labels=[(touched, "used here while the communication may still run")] if touched is not None else [],
            help="keep the handle and call `.wait()` on it before the tensor is used, or omit `async_op`",
            confidence=Confidence.LOW if not asked
            else Confidence.HIGH if certain and touched is not None
            else Confidence.MEDIUM,
        )  # fmt: skip

    def _is_never_read(self, name: str) -> bool:
        """Whether the file makes a tensor and gives it to collectives, and nothing else: ranks meet by it."""
        mentions = [n for n in self.module.of_type(cst.Name) if n.value == name] if "." not in name else []
        return len(mentions) > 1 and all(map(self._is_made_or_sent, mentions))

    def _is_done_with(self, name: str, call: cst.Call) -> bool:
        """Whether a tensor is made in the function, in memory of its own, and mentioned no more behind the collective:
        nothing reads what the others send."""
        function = self.module.function_of(call)
        mentions = self._names_of(function).get(name, []) if function is not None else []
        if function is None or "." in name or not mentions:
            return False
        if any(self.module.function_of(each) is not function for each in mentions):
            return False
        stores = [each for each in mentions if isinstance(self.module.parent(each), cst.AssignTarget)]
        made = stores and stores[0] is mentions[0] and all(map(self._is_new, stores))
        return bool(made) and mentions[-1] in descendants(call)

    def _is_new(self, name: cst.Name) -> bool:
        """``x = torch.zeros(n)``, ``x = y.clone()``, and no view of another tensor."""
        assignment = self.module.parent(self.module.parent(name) or name)
        made = assignment.value if isinstance(assignment, cst.Assign) else None
        if not isinstance(made, cst.Call):
            return False
        return self.module.qualified(made.func) in _MAKING or method_of(made) in _COPYING

    def _is_made_or_sent(self, mention: cst.Name) -> bool:
        up = self.module.parent(mention)
        call = self.module.parent(up) if isinstance(up, cst.Arg) else None
        if isinstance(call, cst.Call):
            return self.module.qualified(call.func) in load().collectives
        if isinstance(up, cst.AssignTarget):
            assignment = self.module.parent(up)
            return isinstance(assignment, cst.Assign) and isinstance(assignment.value, cst.Call)
        return isinstance(up, cst.Attribute) and up.value is mention and up.attr.value == "record_stream"

    def _assigned(self, pending: _Pending, handle: str) -> None:
        if not handle:
            return  # unpacked, or kept in a list: the holder waits
        called = self.module.code(pending.call.func)
        if "." not in handle and not self._used_again(handle, pending.call):
            self.report(
                pending.call,
                f"no code waits for the handle `{handle}` of `{called}(...)`",
                notes=[_later(pending, None)],
                help=f"call `{handle}.wait()` before the tensor is used",
                confidence=Confidence.MEDIUM,
            )
            return
        touched = self._touched(pending, handle)
        if touched is not None and "." in handle and not self._is_read_at_once(pending, handle, touched):
            return  # kept in an object: other code may wait, and then hand the tensor out
        if touched is not None:
            self.report(
                pending.call,
                f"`{pending.name_in(self.module.code(touched))}` is used before `{handle}.wait()`: "
                "a rank may read it before the others' data has arrived",
                labels=[(touched, f"used here before the wait for `{handle}`")],
                help=f"call `{handle}.wait()` first, or use other tensors in between",
            )

    def _is_read_at_once(self, pending: _Pending, handle: str, touched: cst.CSTNode) -> bool:
        """Whether the elements of a tensor are read behind the collective in the same block, where no call of the
        object that keeps the handle stands between the two: one of its methods may wait."""
        places = [up for up in self.module.ancestors(pending.call) if isinstance(up, cst.SimpleStatementLine)]
        block = self.module.parent(places[0]) if places else None
        if not isinstance(block, (cst.IndentedBlock, cst.Module)) or touched not in block.body:
            return False
        between = block.body[block.body.index(places[0]) + 1 : block.body.index(touched)]
        owner = handle.rpartition(".")[0]
        used = (part for each in between for part in descendants(each) if isinstance(part, cst.Call))
        if any(owner in names_in(call) or f"{owner}." in f"{dotted(call.func)}." for call in used):
            return False
        return any(self._is_read(part) for part in subtree(touched) if dotted(part) in pending.outputs)

    def _is_read(self, tensor: cst.CSTNode) -> bool:
        """``x.to(dtype)``, ``x + y``: a use that is no view, no other name, and nothing that hands the tensor on."""
        outer = self.module.parent(tensor)
        if isinstance(outer, cst.Attribute) and outer.value is tensor:
            method = outer.attr.value
            call = self.module.parent(outer)
            views = names("views", "methods") | _METADATA
            return isinstance(call, cst.Call) and call.func is outer and method not in views
        return isinstance(outer, (cst.BinaryOperation, cst.UnaryOperation))

    def _appended(self, pending: _Pending, argument: cst.Arg) -> None:
        append = self.module.parent(argument)
        if not isinstance(append, cst.Call) or not dotted(append.func).endswith(".append"):
            return
        handles = dotted(append.func).rpartition(".")[0]
        touched = self._touched_in_next_loop(pending, handles)
        if touched is not None:
            self.report(
                pending.call,
                f"`{pending.name_in(self.module.code(touched))}` is used before any wait for `{handles}`",
                notes=[_later(pending, touched)],
                labels=[(touched, "used here while the communication may still run")],
                help=f"for work in {handles}: work.wait(), before the loop that uses the tensors",
                confidence=Confidence.HIGH,
            )
            return
        if "." in handles or self._used_again(handles, pending.call, append_is_use=False):
            return
        self.report(
            pending.call,
            f"no code waits for the handles in `{handles}`",
            notes=[_later(pending, None)],
            labels=[(append, f"`{handles}` is only appended to")],
            help=f"for work in {handles}: work.wait()",
            confidence=Confidence.MEDIUM,
        )

    def _touched_in_next_loop(self, pending: _Pending, handles: str) -> cst.CSTNode | None:
        """What touches the tensors of a loop in a further loop over the same ones, before the handles are used:
        ``for p in params: p.grad.div_(n)`` behind ``for p in params: works.append(all_reduce(p.grad, ..))``."""
        loop = next(
            (up for up in self.module.ancestors(pending.call) if isinstance(up, (cst.For, cst.FunctionDef))), None
        )
        block = self.module.parent(loop) if isinstance(loop, cst.For) else None
        if not isinstance(loop, cst.For) or not isinstance(block, (cst.IndentedBlock, cst.Module)) or not handles:
            return None
        same = (self.module.code(loop.target), self.module.code(loop.iter))
        for statement in block.body[block.body.index(loop) + 1 :]:
            said = self._said_by(statement)
            if handles.rpartition(".")[2] in said.names or handles in said.names or said.synchronises:
                return None
            alike = isinstance(statement, cst.For) and same == (
                self.module.code(statement.target),
                self.module.code(statement.iter),
            )
            if isinstance(statement, cst.For) and alike and not said.communicates:
                places = [n for n in descendants(statement.body) if isinstance(n, cst.SimpleStatementLine)]
                return next((place for place in places if pending.touched_by(place) is not None), None)
            if not isinstance(statement, cst.SimpleStatementLine):
                return None  # what another block does to the tensors is not followed
        return None

    # ---- what happens afterwards

    def _touched(self, pending: _Pending, handle: str) -> cst.CSTNode | None:
        """The first statement afterwards that touches a buffer, before the handle is used or all is in sync."""
        buffers = pending.outputs | pending.inputs
        for statement in self._that_matter(pending.call, buffers, handle):
            said = self._said_by(statement)
            if (handle and handle in said.names) or said.synchronises:
                return None
            if said.names.isdisjoint(buffers) and not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
                continue
            use = None if said.communicates else pending.touched_by(statement)
            if use is not None:
                return statement if isinstance(statement, cst.SimpleStatementLine) else use
            if pending.rebound_by(said.stores) or isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
                return None
        return None

    def _said_by(self, statement: cst.CSTNode) -> _Said:
        if statement not in self._said:
            self._said[statement] = _Said(
                names_in(statement), _synchronises(statement), self._communicates(statement), [*_stores(statement)]
            )
        return self._said[statement]

    @functools.cached_property
    def _said(self) -> dict[cst.CSTNode, _Said]:
        return {}

    def _communicates(self, statement: cst.CSTNode) -> bool:
        """A further collective on the tensor is queued behind the first."""
        calls = (n for n in descendants(statement) if isinstance(n, cst.Call))
        return any(self.module.qualified(call.func) in load().collectives for call in calls)

    def _asks_for_metadata(self, call: cst.Call) -> bool:
        """Whether a function of the project is called that reads the size of a tensor alone: ``num_bytes(x)``."""
        helper = helper_of(self.module, call)
        if helper is None or len(call.args) != 1 or len(helper.positional) != 1:
            return False
        body = list(walk(helper.function))
        asked = {id(n.value) for n in body if isinstance(n, ast.Attribute) and n.attr in _METADATA}
        uses = [n for n in body if isinstance(n, ast.Name) and n.id == helper.positional[0]]
        return bool(uses) and all(id(use) in asked for use in uses)

    def _synchronised_later(self, call: cst.Call) -> bool:
        function = self.module.function_of(call)
        return _synchronises(function if function is not None else self.module.tree)

    def _that_matter(self, call: cst.Call, buffers: frozenset[str] | set[str], handle: str) -> Iterator[cst.CSTNode]:
        """What follows the call's statement in its block, then in the blocks around it, within one function: of that
        the statements which may decide something, by the names in them."""
        statement: cst.CSTNode = call
        for outer in self.module.ancestors(call):
            if isinstance(outer, (cst.IndentedBlock, cst.Module)):
                block = self._index(outer)
                yield from (outer.body[place] for place in block.behind(block.places[statement], buffers, handle))
            if isinstance(outer, (cst.FunctionDef, cst.ClassDef)):
                return
            statement = outer

    def _index(self, block: cst.IndentedBlock | cst.Module) -> _Index:
        if block not in self._indexes:
            self._indexes[block] = found = _Index({each: place for place, each in enumerate(block.body)})
            for each, place in found.places.items():
                found.note(self._said_by(each), place, defines=isinstance(each, (cst.FunctionDef, cst.ClassDef)))
        return self._indexes[block]

    @functools.cached_property
    def _indexes(self) -> dict[cst.CSTNode, _Index]:
        return {}

    def _used_again(self, name: str, call: cst.Call, append_is_use: bool = True) -> bool:
        """Whether the function mentions a local name other than to assign it (or to append to it)."""
        function = self.module.function_of(call)
        for node in self._names_of(function if function is not None else self.module.tree).get(name, ()):
            parent = self.module.parent(node)
            if isinstance(parent, (cst.AssignTarget, cst.AnnAssign)):
                continue
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                continue
            if not append_is_use and isinstance(parent, cst.Attribute) and parent.attr.value == "append":
                continue
            return True
        return False

    def _names_of(self, scope: cst.CSTNode) -> dict[str, list[cst.Name]]:
        """The names in a scope, by what they are."""
        if scope not in self._names:
            found = self._names[scope] = collections.defaultdict(list)
            for node in descendants(scope):
                if isinstance(node, cst.Name):
                    found[node.value].append(node)
        return self._names[scope]

    @functools.cached_property
    def _names(self) -> dict[cst.CSTNode, dict[str, list[cst.Name]]]:
        return {}


@dataclasses.dataclass(frozen=True)
class _Said:
    """What each collective before a statement asks of it: all names in it, whether it waits for all, whether it
    communicates, and what it assigns to (`_stores`)."""

    names: set[str]
    synchronises: bool
    communicates: bool
    stores: list[tuple[set[str], set[str]]]


@dataclasses.dataclass(frozen=True)
class _Index:
    """Which statements of a block may decide something about communication that is under way, by their places: each of
    thousands of collectives asks for those behind it."""

    places: dict[cst.CSTNode, int]
    #: Those that end the search for any tensor.
    stops: list[int] = dataclasses.field(default_factory=list)
    #: Those that have a name, and of these the ones that may touch the tensor of that name.
    mentions: dict[str, list[int]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))
    touches: dict[str, list[int]] = dataclasses.field(default_factory=lambda: collections.defaultdict(list))

    def note(self, said: _Said, place: int, *, defines: bool) -> None:
        """Take up the next statement."""
        if said.synchronises or defines:
            self.stops.append(place)
        for name in said.names:
            self.mentions[name].append(place)
        # A further collective is queued behind the first; it may give the name another tensor.
        for name in {n for targets, _ in said.stores for n in targets} if said.communicates else said.names:
            self.touches[name].append(place)

    def behind(self, place: int, buffers: Iterable[str], handle: str) -> Iterator[int]:
        """The places behind one that may decide something for these tensors and that handle, in order."""
        listed = [self.stops, self.mentions.get(handle, []), *(self.touches.get(name, []) for name in sorted(buffers))]
        later = [map(each.__getitem__, range(bisect.bisect_right(each, place), len(each))) for each in listed]
        yield from (number for number, _ in itertools.groupby(heapq.merge(*later)))


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A collective that is under way: what it writes may not be touched, what it reads may not be written."""

    entry: Collective
    call: cst.Call
    outputs: frozenset[str]
    inputs: frozenset[str]
    #: Whether a call reads nothing of the elements of its one argument.
    harmless: Callable[[cst.Call], bool]

    def touched_by(self, statement: cst.CSTNode) -> cst.CSTNode | None:
        for node in subtree(statement):
            if isinstance(node, (cst.Name, cst.Attribute)) and dotted(node) in self.outputs | self.inputs:
                if _is_metadata(statement, node, self.harmless) or _is_renamed(statement, node):
                    continue
                if self.rebound_by(_stores(statement)):
                    continue
                if dotted(node) in self.outputs or _is_written(statement, node):
                    return node
        return None

    def rebound_by(self, stores: Iterable[tuple[set[str], set[str]]]) -> bool:
        """`x = other`: the name refers to another tensor from here on (if the other is not computed from it)."""
        return next((not used & self.outputs for targets, used in stores if targets & self.outputs), False)

    def name_in(self, code: str) -> str:
        return next((n for n in sorted(self.outputs | self.inputs) if n in code), "the tensor")


def _stores(statement: cst.CSTNode) -> Iterator[tuple[set[str], set[str]]]:
    """The assignments in a statement: the names that they set, and those of the value."""
    for node in subtree(statement):
        if isinstance(node, cst.Assign):
            yield {dotted(t.target) for t in node.targets}, names_in(node.value)


def _hands_work_on(project: Project, name: str) -> Iterator[bool]:
    """For each function of that name that can run in the background: does it return the work?"""
    for path in project.contents.holding(f"def {name}("):
        facts = project.modules.facts_of(path)
        for node in walk(facts.tree) if facts is not None else ():
            if isinstance(node, ast.FunctionDef) and node.name == name and _takes_flag(node):
                returned = (n.value for n in walk(node) if isinstance(n, ast.Return))
                calls = (value.func for value in returned if isinstance(value, ast.Call))
                yield facts is not None and any(facts.qualified(c) == f"torch.distributed.{name}" for c in calls)


def _takes_flag(function: ast.FunctionDef) -> bool:
    return any(parameter.arg == "async_op" for parameter, _ in defaults(function.args))


def _false_by_default(function: cst.FunctionDef) -> set[str]:
    params = parameters_of(function)
    return {p.name.value for p in params if isinstance(p.default, cst.Name) and p.default.value == "False"}


def _names_of_parameters(function: cst.FunctionDef) -> set[str]:
    return {p.name.value for p in parameters_of(function)}


def _hands_on(site: CallSite, value: ast.expr | None) -> bool:
    """Whether a call gives a parameter of the function around it, which is False by default."""
    if not isinstance(value, ast.Name) or site.around is None:
        return False
    options = {arg.arg for arg, default in defaults(site.around.args) if default is not None and _is_off(default)}
    return value.id in options


def _is_off(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def _flag(entry: Collective, call: cst.Call) -> str | None:
    """The name that is the `async_op` argument, `_DECIDED` for another expression, 'True' for calls that are always
    asynchronous, None for synchronous."""
    if not entry.asynchronous:
        return "True"
    value = _argument(entry, call, entry.asynchronous)
    if value is None or is_false(value):
        return None
    return value.value if isinstance(value, cst.Name) else _DECIDED


def _argument(entry: Collective, call: cst.Call, parameter: str) -> cst.BaseExpression | None:
    for position, arg in enumerate(call.args):
        if arg.star:
            return None
        name = arg.keyword.value if arg.keyword else entry.takes[position] if position < len(entry.takes) else ""
        if name == parameter:
            return arg.value
    return None


def _buffers(entry: Collective, call: cst.Call, *, outputs: bool) -> frozenset[str]:
    """Dotted names of the tensors that the call writes (`outputs`) or only reads."""
    written = {*entry.uniform, *(p for p in entry.takes if p.startswith(("output", "gather_list")))}
    if entry.name.endswith((".reduce", ".irecv")):
        written.update(entry.payload)
    parameters = written if outputs else {*entry.payload, *(p for p in entry.takes if p.startswith("input"))} - written
    names = (dotted(_argument(entry, call, parameter)) for parameter in parameters)
    return frozenset(name for name in names if name)


def _later(pending: _Pending, touched: cst.CSTNode | None) -> str:
    if touched is not None:
        return "its tensor is used while the data of the other ranks may still be in transit"
    if pending.outputs:
        return f"the next read of `{min(pending.outputs)}` may precede the data of the other ranks"
    return "its buffer may be reused or freed while a peer still needs it"


def _synchronises(node: cst.CSTNode) -> bool:
    calls = (n for n in subtree(node) if isinstance(n, cst.Call))
    return any(_SYNCHRONISES.search(last_name(call.func)) for call in calls)


def _is_metadata(statement: cst.CSTNode, node: cst.CSTNode, harmless: Callable[[cst.Call], bool]) -> bool:
    """`x.shape`, `x.size(0)`, `len(x)`, `x is None`: nothing of the elements is read."""
    for outer in descendants(statement):
        if isinstance(outer, cst.Attribute) and outer.value is node:
            return outer.attr.value in _METADATA
        if isinstance(outer, cst.Call) and any(a.value is node for a in outer.args):
            return dotted(outer.func) in ("len", "isinstance", "id", "type") or harmless(outer)
        if isinstance(outer, cst.Comparison) and outer.left is node:
            return all(isinstance(c.operator, (cst.Is, cst.IsNot)) for c in outer.comparisons)
        if isinstance(outer, cst.Del):
            return True
    return False


def _is_renamed(statement: cst.CSTNode, node: cst.CSTNode) -> bool:
    """`y = x`, `parts.append(x)`, `store(x)`: another name or place for the tensor, nothing is read."""
    for outer in descendants(statement):
        if isinstance(outer, cst.Assign) and outer.value is node:
            return True
        if isinstance(outer, cst.Call) and words_of(last_name(outer.func)) & _KEEPING:
            return any(argument.value is node for argument in outer.args)
    return False


def _is_written(statement: cst.CSTNode, node: cst.CSTNode) -> bool:
    """`x.add_(...)`, `x[i] = ...`, `x += ...`."""
    for outer in subtree(statement):
        if isinstance(outer, cst.AugAssign) and node in subtree(outer.target):
            return True
        target = outer.target if isinstance(outer, cst.AssignTarget) else None
        if isinstance(target, cst.Subscript) and node in subtree(target.value):
            return True
        if isinstance(outer, cst.Attribute) and outer.value is node and outer.attr.value.endswith("_"):
            return not outer.attr.value.startswith("_")
    return False

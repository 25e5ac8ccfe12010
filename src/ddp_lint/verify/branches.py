"""Which conditions or loop the call of one rank is in and that of another is not, by the source at their stacks."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddp_lint.knowledge import table
from ddp_lint.source.imports import last_part
from ddp_lint.verify.match import Call, Cells, Kind, Mismatch, Streams, messages, place, present
from ddp_lint.verify.trace import Collective, Frame, Round

#: The largest number of conditions that are named: with more of them, any one could be the cause.
_MOST = 3
#: What functions call the rank that sends, or receives.
_ROOTS = ("src", "dst", "group_src", "group_dst")
#: Collectives whose root receives.
_TO_ONE = ("reduce", "gather")
#: Arguments of a `range` with a step.
_WITH_STEP = 3


def between(mismatch: Mismatch) -> str:
    """Of two calls that met and do not belong together: the conditions above the one that has some of its own; or the
    test of the rank in a function that it calls below conditions that test no rank."""
    for one, other in itertools.permutations(present(mismatch.calls), 2):
        here = _first_apart(one.collective.frames, other.collective.frames)
        there = _first_apart(other.collective.frames, one.collective.frames)
        if here is None or there is None or (here.path, here.function) != (there.path, there.function):
            continue
        conditions = [(text, asks) for text, lines, asks in _conditions(here, there.line) if there.line not in lines]
        if 0 < len(conditions) <= _MOST:
            if not any(asks for _, asks in conditions) and any(asks for _, asks in _gates_below(one, here)):
                return _went_past(one, other, here, there)
            above = " and ".join(text for text, _ in conditions)
            return (
                f"rank {one.rank} is below {above} at line {here.line}, rank {other.rank} at line {there.line} is not"
            )
    return ""


def paths_apart(cells: Cells) -> tuple[str, Frame] | None:
    """For calls that match by op and shape: the condition that one rank passed and another did not, and where."""
    calls = [call for call in cells.values() if call is not None]
    for one, another in itertools.combinations(calls, 2):
        here = _first_apart(one.frames, another.frames)
        if here is not None and _first_apart(another.frames, one.frames) is not None:
            met = Mismatch(Kind.ORDER, one.group, -1, cells)
            text = between(met) or passed_by(met, ())
            return (text, here) if text else None
    return None


class LeftLoop(NamedTuple):
    """A loop that the ranks go round a different number of times, by its line, and that in words."""

    line: int
    text: str


def left_loop(mismatch: Mismatch, earlier: Sequence[Cells] = ()) -> LeftLoop | None:
    """Of a call in a loop that another rank has left: the loop, and the ways out of it. `earlier` are the calls of the
    group that met before. Of a rank that calls nothing more it is known that it has left all loops: which of several
    it left too early says the one that the other rank has begun again since the last call that they had in common."""
    calls = present(mismatch.calls)
    for (rank, one), (other, another) in itertools.permutations(calls, 2):
        here, there = _first_apart(one.frames, another.frames), _first_apart(another.frames, one.frames)
        if here is not None and there is not None and (here.path, here.function) == (there.path, there.function):
            loops = [loop for loop in _loops(here) if there.line not in _lines(loop.body)]
            before = earlier[-1].get(rank) if earlier else None
            anew = _begun_anew(before, one) if before is not None else None
            if anew is not None and there.line in _lines(anew.body):
                continue  # it had left the loop as well, and passed the other one's line
            if loops and there.line > loops[-1].lineno:
                return _out_of(loops[-1], rank, other, one)
            inner = _inner_loop(one, here, anew) if there.line > here.line else None
            if inner is not None:
                return _out_of(inner, rank, other, one)
    if len(calls) == 1 and mismatch.absent:
        rank, call = calls[0]
        before = earlier[-1].get(rank) if earlier else None
        loop = (_begun_anew(before, call) if before is not None else None) or _only_loop(call)
        if loop is not None and not _fixed(loop):
            return _out_of(loop, rank, mismatch.absent[0], call)
    return None


def left_while_received(mismatch: Mismatch, streams: Streams) -> str:
    """Of a receive that no message comes for: the loop in which this rank has received until now, and the one in which
    its peer has sent, and which that has left. '' where the peer has sent nothing, or is in the same round."""
    calls = [(rank, call) for rank, call in present(mismatch.calls) if call.op == "recv"]
    for rank, call in calls:
        ways = messages(streams).get((-1 if call.peer is None else call.peer, rank))
        met = list(zip(ways["send"], ways["recv"], strict=False)) if ways is not None else []
        peers = mismatch.calls.get(call.peer if call.peer is not None else -1)
        if not met or place(met[-1][1]) != place(call) or not met[-1][0].frames:
            continue
        sent = met[-1][0].frames[0]
        mine, theirs = _loops(call.frames[0])[-1:], _loops(sent)[-1:]
        line = _line_in(sent, peers)
        if mine and theirs and (peers is None or (line and line not in _lines(theirs[0].body))):
            return (
                f"rank {rank} waits for another message in the loop `{_head(mine[0])}` (line {mine[0].lineno}), rank "
                f"{call.peer} has left the loop in which it sends, `{_head(theirs[0])}` (line {theirs[0].lineno})"
            )
    return ""


def apart_since(mismatch: Mismatch, earlier: Sequence[Cells]) -> int | None:
    """The position in `earlier` at which a rank made a call that another one did not make: it met a call of another
    line, which the rank itself made later, and all that came between are apart as well. None without such a call."""
    rows = [*earlier, mismatch.calls]
    found = None
    for position in range(len(earlier) - 1, -1, -1):
        calls = present(rows[position])
        pairs = [pair for pair in itertools.permutations(calls, 2) if not _same_step(pair[0][1], pair[1][1])]
        if not pairs:
            break
        unlike = [(rank, other) for (rank, one), (_, other) in pairs if _first_apart(one.frames, other.frames)]
        if any(_same_step(row.get(rank), other) for rank, other in unlike for row in rows[position + 1 :]):
            found = position
    return found


def _same_step(one: Collective | None, another: Collective | None) -> bool:
    """Two calls from one line, for one module, in one round of all loops that are known."""
    if one is None or another is None:
        return False
    marks = [(c.op, [f[:2] for f in c.frames], c.module, [r.value for r in c.rounds]) for c in (one, another)]
    return marks[0] == marks[1]


def unlike_root(mismatch: Mismatch) -> str:
    """Of one line at which each rank names another source or destination: what it is computed from."""
    calls = present(mismatch.calls)
    frame = next((frame for _, call in calls for frame in call.frames[:1]), None)
    if mismatch.kind is not Kind.ROOT or frame is None or len({place(call) for _, call in calls}) > 1:
        return ""
    asked = (node for node in ast.walk(_tree(frame)) if isinstance(node, ast.Call) and node.lineno == frame.line)
    words = (word for node in asked for word in node.keywords if word.arg in _ROOTS)
    word = next((word for word in words if not isinstance(word.value, ast.Constant)), None)
    if word is None:
        return ""
    table_of = word.value.value if isinstance(word.value, ast.Subscript) else word.value
    names = (ast.unparse(word.value), ast.unparse(table_of))
    assigned = (node for node in ast.walk(_tree(frame)) if isinstance(node, ast.Assign) and node.lineno < frame.line)
    made = [node for node in assigned if ast.unparse(node.targets[0]) in names]
    described = " and ".join(f"{call.root} on rank {rank}" for rank, call in calls)
    of = f" (line {made[-1].lineno}: `{ast.unparse(made[-1])}`)" if made else ""
    who = "receiver" if calls[0][1].op in _TO_ONE else "sender"
    return f"`{word.arg}={ast.unparse(word.value)}` is {described}{of}: each rank chooses its own {who}"


def joined(mismatch: Mismatch) -> str:
    """Of a rank that is through with its batches and answers in `Join` for what hooks into that, and one that calls
    something else inside of it."""
    calls = present(mismatch.calls)
    for (rank, one), (other, another) in itertools.permutations(calls, 2):
        here, there = _first_apart(one.frames, another.frames), _first_apart(another.frames, one.frames)
        if here is None or there is None or one.issued_by == "user" or another.issued_by != "user":
            continue
        inside = (node for node in ast.walk(_tree(here)) if isinstance(node, ast.With) and node.lineno == here.line)
        block = next((node for node in inside if there.line in _lines(node.body)), None)
        asked = (
            [last_part(item.context_expr.func) for item in block.items if isinstance(item.context_expr, ast.Call)]
            if block is not None
            else []
        )
        if not {"Join", "join"}.isdisjoint(asked):
            return (
                f"rank {rank} has no batches left, and its Join of line {here.line} answers only for what is joined "
                f"there, not for the {another.api or another.op} of rank {other} (line {place(another)[1]})"
            )
    return ""


def passed_by(mismatch: Mismatch, earlier: Sequence[Cells]) -> str:
    """Of calls that met and are not the same: the conditions on the way to the one that comes next in the program
    after the last calls that belong together, which the other rank skipped; or those in the round of a loop, where
    both ranks are at one line with different tensors."""
    calls = present(mismatch.calls)
    for one, other in itertools.combinations(calls, 2):
        here = _first_apart(one.collective.frames, other.collective.frames)
        there = _first_apart(other.collective.frames, one.collective.frames)
        if here is None and there is None and mismatch.kind in (Kind.SHAPE, Kind.BUFFER):
            return _at_one_line(one, other)
        if here is None or there is None or (here.path, here.function) != (there.path, there.function):
            continue
        since = _line_in(here, earlier[-1].get(one.rank) if earlier else None)
        ways = [(one, other, here, there), (other, one, there, here)]
        ways.sort(key=lambda way: _flow(way[2].line, since))
        # At the line of the last call a rank may be in the same round, or in the next one.
        ways = ways if since in (here.line, there.line) else ways[:1]
        text = next(filter(None, itertools.starmap(_went_past, ways)), "")
        if text:
            return text
    return ""


def _went_past(one: Call, other: Call, here: Frame, there: Frame) -> str:
    """`here` and `there`: the outermost frames in which the stacks of two calls differ."""
    frames = one.collective.frames
    gates = _tests_of(_gates_below(one, here))
    if not gates:
        return ""
    of = f" of {pathlib.Path(frames[0].path).name}" if frames[0].path != there.path else ""
    came = f"rank {one.rank} reached line {frames[0].line}{of} after {gates}"
    return f"{came}; rank {other.rank} skipped it and reached line {there.line}"


def _gates_below(call: Call, here: Frame) -> Iterator[_Gate]:
    """The tests in what the line of `here` calls, on the way to a call."""
    frames = call.collective.frames
    return (gate for frame in reversed(frames[: frames.index(here)]) for gate in _gates(frame))


def _at_one_line(one: Call, other: Call) -> str:
    frame = next(iter(one.collective.frames), None)
    gates = _tests_of(_gates(frame, in_round=True)) if frame is not None else ""
    if frame is None or not gates:
        return ""
    met = " meets ".join(_tensor_of(call) for call in (one, other))
    return f"at line {frame.line} {met}: {gates} differs between ranks"


def _in_one_round(one: Call, other: Call) -> bool:
    """Both ranks are at one line, outside of any loop or in the same round of the nearest loop around it, as far as
    that is known of it, and of those around that."""
    if _first_apart(one.collective.frames, other.collective.frames) is not None:
        return False
    known = {(at.depth, at.line) for at in one.collective.rounds}
    around = (
        (depth, loop.lineno) for depth, frame in enumerate(one.collective.frames) for loop in reversed(_loops(frame))
    )
    nearest = next(around, None)
    return (nearest is None or nearest in known) and one.collective.rounds == other.collective.rounds


def made_of(mismatch: Mismatch) -> str:
    """Of a line at which ranks in the same iteration have tensors of different sizes: the assignments that made them,
    the latest one first, in the functions that called this one as well; with the test of the rank that one is below."""
    calls = present(mismatch.calls)
    if mismatch.kind is not Kind.SHAPE or len(calls) < 2 or not _in_one_round(calls[0], calls[1]):
        return ""
    found: list[tuple[Frame, ast.Assign]] = []
    wanted: set[str] | None = None
    inner = None
    for frame in calls[0].collective.frames:
        asked = [n for n in ast.walk(_tree(frame)) if isinstance(n, ast.Call) and n.lineno == frame.line]
        if inner is not None:
            asked = [node for node in asked if last_part(node.func) == inner.function] if wanted else []
        wanted = {name for node in asked for arg in node.args for name in _names(arg)}
        function = next((f for f in reversed(_functions(_tree(frame))) if frame.line in _lines(f.body)), None)
        assigned = [n for n in ast.walk(function or _tree(frame)) if isinstance(n, ast.Assign)]
        for node in sorted(assigned, key=lambda one: -one.lineno):
            made = set().union(*map(_names, node.targets))
            if node.lineno < frame.line and made & wanted and len(found) <= _MOST:
                found.append((frame, node))
                wanted = wanted - made | _names(node.value) | (made if _stores_item(node) else set())
        wanted &= {arg.arg for arg in function.args.args} if function is not None else set()
        inner = frame
    sizes = "; ".join(_assigned_at(frame, node) for frame, node in found)
    text = "both ranks are in the same iteration, where the tensor has a different size on each"
    return f"{text}: {sizes}" if sizes else ""


def _stores_item(node: ast.Assign) -> bool:
    """It changes what a name stands for, which another assignment has made."""
    return any(isinstance(target, ast.Subscript) for target in node.targets)


def _assigned_at(frame: Frame, node: ast.Assign) -> str:
    test = _tests_of(gate for gate in _gates(Frame(frame.path, node.lineno, frame.function)) if gate[1])
    return f"`{ast.unparse(node)}` (line {node.lineno}{', below ' * bool(test)}{test})"


@dataclasses.dataclass(frozen=True)
class RoundsApart:
    """Two calls of one line that met in different rounds of a loop, in words, too. `skips`: there is a way past the
    line in a round. `inner`: the loop in it whose end one rank came to first, where it is clear which one that is."""

    path: str
    line: int
    text: str
    skips: bool = False
    inner: LeftLoop | None = None


def rounds_apart(mismatch: Mismatch, earlier: Sequence[Cells]) -> RoundsApart | None:
    """The first calls on one line that matched although the loops around them had different names or numbers, with the
    outermost of those loops; or those that met in the end, by the loops around what their stacks have in common."""
    for cells in (*earlier, mismatch.calls):
        calls = present(cells)
        for (rank, one), (other, another) in itertools.combinations(calls, 2):
            part = _first_apart(one.frames, another.frames)
            if part is not None and cells is not mismatch.calls:
                continue
            common = one.frames.index(part) + 1 if part is not None else 0
            there = {_from_outside(another, theirs): theirs.value for theirs in another.rounds}
            for mine in _outermost_first(one):
                value = there.get(_from_outside(one, mine), mine.value) if mine.depth >= common else mine.value
                loop = _loop_of(one, mine) if mine.value != value else None
                if loop is not None and not _divides(one.frames[mine.depth], loop):
                    values = f"{mine.value} on rank {rank} and {value} on rank {other}"
                    text = f"`{mine.name}` of the loop `{_head(loop)}` (line {loop.lineno}) is {values}"
                    frame = one.frames[mine.depth]
                    skips = _tests_of((test, asks) for test, asks in _gates(frame, in_round=True, below=False))
                    text += f", where line {frame.line} comes behind {skips}" if skips else ""
                    averages = _averaged_where(frame) if not skips else ""
                    text += f"; gradients are averaged only where {averages}" if averages else ""
                    caught = _handler(loop, frame.line) if part is not None else None
                    text += f"; line {caught.lineno} continues it after an exception" if caught is not None else ""
                    inner = _left_first(one, mine, loop) if part is None and not skips else None
                    return RoundsApart(frame.path, loop.lineno, text, bool(skips), inner)
    return None


def _averaged_where(frame: Frame) -> str:
    """The test that decides whether `no_sync` is around a line: `with nullcontext() if last else model.no_sync():`,
    also by a name that is assigned."""
    tree = _tree(frame)
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.With) and frame.line in _lines(n.body)]
    entered = [item.context_expr for block in blocks for item in block.items]
    names = {node.id for node in entered if isinstance(node, ast.Name)}
    made = [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and names & set().union(*map(_names, n.targets))
    ]
    for chosen in (node for node in (*entered, *made) if isinstance(node, ast.IfExp)):
        skips = ["no_sync" in _names(arm) for arm in (chosen.body, chosen.orelse)]
        if any(skips):
            negated = "" if skips[1] else "not "
            return f"`{negated}{ast.unparse(chosen.test)}` (line {chosen.lineno})"
    return ""


def _left_first(call: Collective, outer: Round, loop: _Loop) -> LeftLoop | None:
    """Calls of one line are in different rounds of a loop: that in it around the call ends at different times. Of
    several that is the outermost one, if it is known that the ranks would otherwise have diverged in its earlier
    rounds."""
    frames = call.frames[: outer.depth + 1]
    found = [inner for frame in reversed(frames) for inner in _loops(frame)]
    inside = [inner for inner in found[found.index(loop) + 1 :] if not _counted(inner)] if loop in found else []
    bound = {one.line for one in call.rounds if one.depth <= outer.depth}
    if not inside or (len(inside) > 1 and inside[0].lineno not in bound):
        return None
    text = f"the loop `{_head(inside[0])}` (line {inside[0].lineno}) ends on one rank before it does on another"
    how = _how_left(inside[0], frames[0]) if list(_ways_out(inside[0].body)) else ""
    return LeftLoop(inside[0].lineno, text + how)


def _from_outside(call: Collective, one: Round) -> tuple[int, int, str]:
    """A loop's variable by the place of its frame in the stack, the outermost first."""
    return len(call.frames) - one.depth, one.line, one.name


def asked_anew(mismatch: Mismatch) -> str:
    """Of a call in what an optimizer's step is handed: it is called as often as this rank's loss makes it."""
    for call in mismatch.calls.values():
        for inner, outer in itertools.pairwise(call.frames if call is not None else ()):
            for node in ast.walk(_tree(outer)):
                if isinstance(node, ast.Call) and node.lineno == outer.line and last_part(node.func) == "step":
                    handed = [*node.args, *(word.value for word in node.keywords)]
                    if any(last_part(one) == inner.function for one in handed):
                        asks = f"`{ast.unparse(node)}` (line {outer.line}) calls {inner.function}"
                        return f"{asks} as often as the loss of each rank makes it (a line search)"
    return ""


def polling(here: Frame) -> str:
    """For the line at which a rank waits: the loop around it that polls with `sleep`."""
    loops = [loop for loop in _loops(here) if isinstance(loop, ast.While)]
    for loop in reversed(loops):
        if any(isinstance(node, ast.Call) and last_part(node.func) == "sleep" for node in ast.walk(loop)):
            return f"it repeats `{_head(loop)}` (line {loop.lineno}) again and again: its condition never becomes true"
    return ""


def used_below(files: Sequence[str], classes: Mapping[str, str], names: Sequence[str]) -> str:
    """Of parameters: the conditions that every use of the parts of a model is below which hold them, '' where one of
    those is always used. `classes` are those of its modules by name: a part that is always used may have a
    forward that uses its own parts below a condition."""
    for depth in range(max((name.count(".") for name in names), default=0)):
        found = dict.fromkeys(_part_below(files, classes, name, depth) for name in names)
        parts = [part for part in found if part is not None]
        if len(parts) == len(found):
            return "; ".join(_used_at(list(same)) for _, same in itertools.groupby(parts, lambda part: part.gates))
    return ""


class _Part(NamedTuple):
    """A part of a model, the lines that use it, and the conditions that all of them are below."""

    name: str
    lines: tuple[int, ...]
    gates: tuple[str, ...]


def _used_at(parts: Sequence[_Part]) -> str:
    """Of parts that are used below the same conditions."""
    names = ", ".join(part.name for part in parts)
    lines = sorted({line for part in parts for line in part.lines})
    used = f"{names} {'are' if len(parts) > 1 else 'is'} used only at line{'s' * (len(lines) > 1)} "
    return f"{used}{', '.join(map(str, lines))}, depending on {' and '.join(parts[0].gates)}"


def _part_below(files: Sequence[str], classes: Mapping[str, str], name: str, depth: int) -> _Part | None:
    """The part at this depth that holds a parameter; None where it is always used."""
    path = name.split(".")
    if depth >= len(path) - 1:
        return None
    owner = classes.get(".".join(path[:depth]), "") if depth else ""
    uses = [frame for file in files for frame in _uses(file, path[depth], owner)] if owner or not depth else []
    gates = tuple(dict.fromkeys(_tests_of(_gates(frame)) for frame in uses))
    if not gates or not all(gates):
        return None
    return _Part(".".join(path[: depth + 1]), tuple(frame.line for frame in uses), gates)


def _uses(path: str, part: str, owner: str) -> Iterator[Frame]:
    """Where methods of a file (of one class, where it is named) read an attribute of this name, but for those that
    build."""
    tree = _tree(Frame(path, 0, ""))
    within = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == owner]
    for function in (one for scope in (within if owner else [tree]) for one in _functions(scope)):
        for node in ast.walk(function) if function.name != "__init__" else ():
            if isinstance(node, ast.Attribute) and node.attr == part and isinstance(node.ctx, ast.Load):
                yield Frame(path, node.lineno, function.name)


def drawn_conditions(files: Sequence[str]) -> Iterator[Frame]:
    """The tests in methods of these files that a random number decides: what runs in a forward is another part each
    time."""
    draws = frozenset(table("tensors")["random"]["calls"])
    for path in files:
        for function in _functions(_tree(Frame(path, 0, ""))):
            drawn = {
                name
                for node in ast.walk(function)
                if isinstance(node, ast.Assign) and not draws.isdisjoint(_called(node.value))
                for name in _names(node.targets[0])
            }
            nodes = ast.walk(function) if function.name != "__init__" else ()
            for test in (node.test for node in nodes if isinstance(node, ast.If | ast.IfExp)):
                if not draws.isdisjoint(_called(test)) or not drawn.isdisjoint(_names(test)):
                    yield Frame(path, test.lineno, function.name)


def _called(node: ast.AST) -> set[str]:
    return {last_part(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call)}


def on_the_way_out(mismatch: Mismatch) -> str:
    """Of a call that one rank makes while an exception of its own is in flight."""
    calls = present(mismatch.calls)
    amid = [(rank, call) for rank, call in calls if call.amid and call.raised]
    if not amid or len(amid) == len(calls) > 1:
        return ""
    rank, call = amid[0]
    at, here = call.raised[0], call.frames[0] if call.frames else Frame("", 0, "")
    text = f"rank {rank} has raised {call.amid} at line {at.line} in {at.function}, and communicates before it lets"
    return f"{text} that pass, at line {here.line} in {here.function}: the others have met no exception"


def unlike_messages(streams: Streams) -> str:
    """The first message that was received in another round of a loop than the one in which it was sent, after some
    that were not: stages of a pipeline may be a step apart from the first one on."""
    for (sender, receiver), ways in messages(streams).items():
        agreed: set[tuple[str, int, str]] = set()
        for sent, received in zip(ways["send"], ways["recv"], strict=False):
            there = {_loop_at(received, one): one.value for one in received.rounds}
            for one in _outermost_first(sent):
                at = _loop_at(sent, one)
                if there.get(at) == one.value:
                    agreed.add(at)
                loop = _loop_of(sent, one) if at in agreed and there.get(at, one.value) != one.value else None
                if loop is not None and not _divides(sent.frames[one.depth], loop):
                    lines = (
                        f"line {place(sent)[1]} of rank {sender} was received at line {place(received)[1]} of rank "
                        f"{receiver}"
                    )
                    values = f"{one.value} there and {there[at]} here"
                    return (
                        f"what was sent at {lines} in another round: `{one.name}` of the loop `{_head(loop)}` (line "
                        f"{loop.lineno}) is {values}; one of them left a message out before"
                    )
    return ""


def _loop_at(call: Collective, one: Round) -> tuple[str, int, str]:
    """A loop's variable by its place: two functions that are called in it have stacks of different depth."""
    return (call.frames[one.depth].path if one.depth < len(call.frames) else ""), one.line, one.name


_Loop = ast.For | ast.While


def _outermost_first(call: Collective) -> list[Round]:
    return sorted(call.rounds, key=lambda one: (-one.depth, one.line))


def _loop_of(call: Collective, where: Round) -> _Loop | None:
    if where.depth >= len(call.frames):
        return None
    return next((loop for loop in _loops(call.frames[where.depth]) if loop.lineno == where.line), None)


def _divides(frame: Frame, loop: _Loop) -> bool:
    """The loop hands out rounds to the ranks: `range(rank, count, world)`, or a name for `data[rank::world]`."""
    if not isinstance(loop, ast.For):
        return False
    nodes = list(ast.walk(loop.iter))
    steps = any(isinstance(node, ast.Call) and len(node.args) == _WITH_STEP for node in nodes)
    if steps or any(isinstance(node, ast.Slice) for node in nodes) or _names_rank(loop.iter):
        return True
    names = _names(loop.iter) if not _is_range(loop.iter) else set()
    made = [value for one in ast.walk(_tree(frame)) for to, value in _assigned(one) if last_part(to) in names]
    return any(isinstance(value, ast.Subscript) and _is_share(value.slice) for value in made)


def _is_share(index: ast.expr) -> bool:
    return isinstance(index, ast.Slice) and (index.step is not None or _names_rank(index))


def _names_rank(node: ast.AST) -> bool:
    return not _rank_words().isdisjoint(_names(node))


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "range"


@functools.cache
def _rank_words() -> frozenset[str]:
    """How code calls the number of a rank, as the last part of a name."""
    return frozenset(name.rpartition(".")[2] for row in table("ranks")["rank"] for name in row["names"]) | {"rank"}


def _begun_anew(before: Collective, call: Collective) -> _Loop | None:
    """The loop of which a new round began between two calls of a rank; None where that is not known.

    Known from the variables of loops that count or iterate over names, else from the order of the lines.
    """
    earlier = {one[:3]: one.value for one in before.rounds}
    apart = _first_apart(call.frames, before.frames)
    found: list[_Loop] = []
    for depth in range(len(call.frames) - 1, -1, -1):
        frame = call.frames[depth]
        since = _line_in(frame, before)
        if not since:
            break
        for loop in _loops(frame):
            bound = [one for one in call.rounds if (one.depth, one.line) == (depth, loop.lineno)]
            if since not in _lines(loop.body):
                continue
            if any(_value_at(one, call, before, earlier) != one.value for one in bound):
                return loop
            if not bound:
                found.append(loop)
        if apart is not None and (frame.path, frame.function) == (apart.path, apart.function):
            return found[-1] if found and since > apart.line else None
    return found[0] if len(found) == 1 else None


def _value_at(one: Round, call: Collective, before: Collective, earlier: dict[tuple[int, int, str], str]) -> str:
    """What the same variable held at the earlier call, whose stack may be of another depth."""
    return earlier.get((one.depth + len(before.frames) - len(call.frames), one.line, one.name), one.value)


def _only_loop(call: Collective) -> _Loop | None:
    around = [loop for frame in call.frames for loop in _loops(frame) if not _counted(loop)]
    return around[0] if len(around) == 1 else None


def _inner_loop(call: Collective, here: Frame, anew: _Loop | None) -> _Loop | None:
    """The loop in what a line calls that a rank is in which has not come back to that line: the one begun again, or the
    only one."""
    loops = [loop for frame in call.frames[: call.frames.index(here)] for loop in _loops(frame)]
    if anew is not None and anew.lineno in {loop.lineno for loop in loops}:
        return anew
    open_ended = [loop for loop in loops if not _counted(loop)]
    return open_ended[0] if len(open_ended) == 1 else None


def _line_in(frame: Frame, call: Collective | None) -> int:
    """The line at which a call is in the function of a frame, 0 outside of it."""
    same = (
        one.line for one in (call.frames if call else ()) if (one.path, one.function) == (frame.path, frame.function)
    )
    return next(same, 0)


def _flow(line: int, since: int) -> tuple[bool, int]:
    """A sort key: the lines behind the last one in common come before those of the next round."""
    return line < since, line


def _tensor_of(call: Call) -> str:
    names = [tensor.name or f"a tensor {list(tensor.shape)}" for tensor in call.collective.tensors[:1]]
    return f"{', '.join(names)} of rank {call.rank}"


_Gate = tuple[str, bool]


def _tests_of(gates: Iterator[_Gate]) -> str:
    """Tests as text, only those of the rank where there are any; '' where there are too many."""
    known = list(gates)
    asked = [text for text, asks in known if asks] or [text for text, _ in known]
    return " and ".join(asked) if len(asked) <= _MOST else ""


def _gates(frame: Frame, *, in_round: bool = False, below: bool = True) -> Iterator[_Gate]:
    """The tests on the way to a line of its function (of the innermost loop around it), the outermost first: those
    that it is below (with `below`), and those before it that leave. With each whether it tests the rank."""
    blocks = [_tree(frame).body]
    found: list[ast.If] = []
    while blocks:
        body = blocks.pop()
        for node in body:
            if isinstance(node, ast.If) and (node.end_lineno or node.lineno) < frame.line and _leaves(node):
                found.append(node)
            if frame.line not in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (in_round and _is_loop(node)):
                found.clear()
            if below and isinstance(node, ast.If):
                found.append(node)
            blocks.append(_children(node))
    for test in found:
        yield f"`if {ast.unparse(test.test)}` (line {test.lineno})", _tests_rank(frame, test)


def _tests_rank(frame: Frame, node: ast.If) -> bool:
    """It names the rank, or a function of its file, a variable or an attribute whose value does."""
    tree, names = _tree(frame), _names(node.test)
    made: list[ast.AST] = [one for one in _functions(tree) if one.name in names]
    made += [value for one in ast.walk(tree) for target, value in _assigned(one) if last_part(target) in names]
    return not _rank_words().isdisjoint(names.union(*map(_names, made)))


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What an assignment assigns to what, each part of a tuple by itself."""
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else []
        yield from zip(parts, values if len(values) == len(parts) > 1 else [node.value] * len(parts), strict=True)


def _names(node: ast.AST) -> set[str]:
    """Every name in some code, also those of attributes."""
    return {getattr(inner, "id", getattr(inner, "attr", "")) for inner in ast.walk(node)} - {""}


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def kept_apart(site: Frame) -> str:
    """Of a line that copies what an object keeps: the function of its file that updates that, where it is called below
    a test of the rank, and the test."""
    tree = _tree(site)
    read = {node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.lineno == site.line}
    kept = {node.attr for node in read} - {
        last_part(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)
    }
    for function in _functions(tree):
        if function.name == "__init__" or site.line in _lines(function.body) or not _updates(function, kept):
            continue
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_part(n.func) == function.name]
        gates = [_tests_of(gate for gate in _gates(Frame(site.path, call.lineno, "")) if gate[1]) for call in calls]
        if gates and all(gates):
            what = ", ".join(sorted(kept & _names(function)))
            return f"{what} is updated by {function.name} (line {function.lineno}), which is called below {gates[0]}"
    return _updated_apart(site, tree)


def _updated_apart(site: Frame, tree: ast.Module) -> str:
    """The same of an object that a line reads: each call of its `update...()` is below a test of the rank."""
    at_line = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.lineno == site.line]
    read = {name for node in at_line for arg in node.args for name in _names(arg)}
    updates = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("update")
        and last_part(node.func.value) in read
    ]
    gates = [_tests_of(gate for gate in _gates(Frame(site.path, call.lineno, "")) if gate[1]) for call in updates]
    if not gates or not all(gates):
        return ""
    first = updates[0]
    return f"`{ast.unparse(first.func)}` is called at line {first.lineno}, below {gates[0]}"


def _updates(function: ast.FunctionDef, kept: set[str]) -> bool:
    """It assigns to one of these attributes or to their items, or calls what changes them in place."""
    for node in ast.walk(function):
        stored = isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
        changes = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")
        target = node.func if changes and isinstance(node, ast.Call) else node
        if (stored or changes) and not kept.isdisjoint(_names(target)):
            return True
    return False


def _is_loop(node: ast.stmt) -> bool:
    return isinstance(node, ast.For | ast.While | ast.AsyncFor)


def _leaves(node: ast.If) -> bool:
    return any(arm and isinstance(arm[-1], ast.Return | ast.Continue | ast.Break) for arm in (node.body, node.orelse))


def _loops(frame: Frame) -> list[_Loop]:
    """The loops around a line in its function, the outermost first."""
    found: list[_Loop] = []
    body = list(_tree(frame).body)
    while body:
        node = body.pop()
        if frame.line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.clear()
            if isinstance(node, ast.For | ast.While) and frame.line in _lines(node.body):
                found.append(node)
            body = _children(node)
    return found


def _counted(loop: _Loop) -> bool:
    """`for epoch in range(...)` without another way out: ranks go round it alike."""
    return isinstance(loop, ast.For) and _is_range(loop.iter) and not any(_ways_out(loop.body))


def _fixed(loop: _Loop) -> bool:
    """`for step in range(100)`: no rank can go round it more often."""
    return _counted(loop) and isinstance(loop, ast.For) and not any(isinstance(n, ast.Name) for n in _bounds(loop))


def _bounds(loop: ast.For) -> list[ast.AST]:
    arguments = loop.iter.args if isinstance(loop.iter, ast.Call) else [loop.iter]
    return [node for argument in arguments for node in ast.walk(argument)]


def _children(node: ast.stmt) -> list[ast.stmt]:
    """The statements of the bodies of another one."""
    blocks = [getattr(node, name, ()) for name in ("body", "orelse", "finalbody")]
    blocks += [part.body for name in ("handlers", "cases") for part in getattr(node, name, ())]
    return [one for block in blocks for one in block]


def _lines(body: Sequence[ast.stmt]) -> range:
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)


def _out_of(loop: _Loop, rank: int, other: int, call: Collective) -> LeftLoop:
    """`call`: of the rank that is in the loop."""
    text = f"rank {other} is out of the loop `{_head(loop)}` (line {loop.lineno}), rank {rank} is in it"
    inside = (frame for frame in call.frames if any(around is loop for around in _loops(frame)))
    return LeftLoop(loop.lineno, text + _how_left(loop, next(inside, call.frames[0])))


def _how_left(loop: _Loop, here: Frame) -> str:
    endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
    ways = list(_ways_out(loop.body))
    if len(ways) == 1:
        way = f"{ways[0].lineno}{_below_test(loop, ways[0])}"
        return f": the only way out {'' if endless else 'but for its end '}is line {way}"
    caught = _handler(loop, here.line)
    goes_on = f"line {caught.lineno} continues it after an exception" if caught is not None else ""
    if goes_on and _counted(loop):
        return f": {goes_on}, without what comes behind that"
    if not ways and not endless:
        tests = _tests_of(_gates(here, in_round=True))
        skips = f"line {here.line} runs in other rounds on each rank, behind {tests}" if tests else ""
        return ": " + ", or ".join(filter(None, ("the ranks go round it a different number of times", goes_on, skips)))
    return ""


def _handler(loop: _Loop, line: int) -> ast.ExceptHandler | None:
    """What swallows an exception that is raised before a line of a loop."""
    tries = [node for node in ast.walk(loop) if isinstance(node, ast.Try) and line in _lines(node.body)]
    handlers = (one for node in tries for one in node.handlers)
    return next((one for one in handlers if not any(isinstance(node, ast.Raise) for node in ast.walk(one))), None)


def _head(loop: _Loop) -> str:
    if isinstance(loop, ast.While):
        return f"while {ast.unparse(loop.test)}"
    return f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"


def _ways_out(body: Sequence[ast.stmt], own: bool = True) -> Iterator[ast.Break | ast.Return]:
    """The statements that leave a loop; `own`: a break here is not one of an inner loop."""
    for node in body:
        if isinstance(node, ast.Return) or (own and isinstance(node, ast.Break)):
            yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inner_loop = isinstance(node, ast.For | ast.While | ast.AsyncFor)
        yield from _ways_out(_children(node), own and not inner_loop)


def _below_test(loop: _Loop, way: ast.stmt) -> str:
    """The innermost test that a way out is below."""
    tests = [n for n in ast.walk(loop) if isinstance(n, ast.If) and way.lineno in _lines([*n.body, *n.orelse])]
    return f", below `if {ast.unparse(tests[-1].test)}` (line {tests[-1].lineno})" if tests else ""


def _first_apart(one: Sequence[Frame], another: Sequence[Frame]) -> Frame | None:
    """The outermost frame in which a stack (the innermost frame first) differs from another one."""
    known = [(frame.path, frame.line) for frame in reversed(another)]
    for number, frame in enumerate(reversed(one)):
        if number >= len(known) or known[number] != (frame.path, frame.line):
            return frame
    return None


def _tree(frame: Frame) -> ast.Module:
    """The file of a frame; an empty one where it cannot be read."""
    path = pathlib.Path(frame.path)
    try:
        return _parsed(path, path.stat().st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


@functools.lru_cache(maxsize=32)
def _parsed(path: pathlib.Path, _changed: int) -> ast.Module:
    """Many frames of many calls are of one file. Raises OSError, SyntaxError, ValueError."""
    return ast.parse(path.read_bytes())


def _conditions(frame: Frame, other: int) -> Iterator[tuple[str, range, bool]]:
    """The tests above a line, the outermost first, each with the lines of the arm that the line is in, and whether it
    tests the rank.

    Where both ways have an arm, and the other line is in neither, the test is not what makes them diverge.
    """
    for node in ast.walk(_tree(frame)):
        if not isinstance(node, ast.If):
            continue
        if node.orelse and other not in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            continue
        for arm, word in ((node.body, ""), (node.orelse, "the else of ")):
            lines = _lines(arm) if arm else range(0)
            if frame.line in lines:
                yield f"{word}`if {ast.unparse(node.test)}` (line {node.lineno})", lines, _tests_rank(frame, node)

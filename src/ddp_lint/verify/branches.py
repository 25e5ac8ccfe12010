"""Which conditions or loop the call of one rank is in and that of another is not, by the source at their stacks."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import calls_below, function_at
from ddp_lint.verify.control_flow import (
    MOST,
    Gate,
    Loop,
    averaged_where,
    below_test,
    calls_at,
    conditions_above,
    divides,
    gates_before,
    handler_around,
    handler_before,
    head,
    is_counted,
    is_fixed,
    loops_around,
    names_of,
    names_rank,
    rank_tests,
    tests_of,
    tree_at,
    ways_out,
)
from ddp_lint.verify.match import Call, Cells, Kind, Mismatch, Streams, messages, place, present
from ddp_lint.verify.sources import lines_of
from ddp_lint.verify.trace import Collective, Frame, Round

#: What functions call the rank that sends, or receives.
_ROOTS = ("src", "dst", "group_src", "group_dst")
#: Collectives whose root receives.
_TO_ONE = ("reduce", "gather")


def between(mismatch: Mismatch) -> str:
    """Of two calls that met and do not belong together: the conditions above the one that has some of its own; or the
    test of the rank in a function that it calls below conditions that test no rank."""
    for one, other, here, there in _stacks_apart(present(mismatch.calls)):
        if not here.in_function_of(there):
            continue
        conditions = [(text, asks) for text, arm, asks in conditions_above(here, there.line) if there.line not in arm]
        if 0 < len(conditions) <= MOST:
            if not any(asks for _, asks in conditions) and any(asks for _, asks in _gates_below(one, here)):
                return _went_past(one, other, here, there)
            above = " and ".join(text for text, _ in conditions)
            return (
                f"rank {one.rank} is below {above} at line {here.line}, rank {other.rank} at line {there.line} is not"
            )
    return ""


def came_alone(mismatch: Mismatch, earlier: Sequence[Cells]) -> str:
    """Of a call that a rank makes when the other one has ended: the outermost test of the rank above it, or above what
    led to it, below which the other rank has made no call. `earlier` are the calls of the group that met before."""
    calls = present(mismatch.calls)
    if len(calls) > 1 or not mismatch.absent:
        return ""
    (rank, call), other = calls[0], mismatch.absent[0]
    made = [frame for cells in earlier if (past := cells.get(other)) is not None for frame in past.frames]
    for here in reversed(call.frames):
        for text, arm, asks in conditions_above(here, here.line):
            if asks and not any(frame.path == here.path and frame.line in arm for frame in made):
                return f"rank {rank} is below {text} at line {here.line}, where rank {other} has made no call"
    return ""


def paths_apart(cells: Cells) -> tuple[str, Frame] | None:
    """For calls that match by op and shape: the condition that one rank passed and another did not, and where."""
    for one, _, here, _ in _stacks_apart(present(cells)):
        met = Mismatch(Kind.ORDER, one.collective.group, -1, cells)
        text = between(met) or passed_by(met, ())
        return (text, here) if text else None
    return None


def names_apart(cells: Cells) -> tuple[str, Frame] | None:
    """For calls of one line that match by op and shape: the loop over names that was at another one on each rank, and
    where. Numbers may well be others on each rank: those of its own share."""
    calls = present(cells)
    apart = rounds_apart(Mismatch(Kind.ORDER, calls[0].collective.group, -1, cells), ()) if calls else None
    frame = next(iter(calls[0].collective.frames), None) if calls else None
    values = {one.value for _, call in calls for one in call.rounds if apart is not None and one.line == apart.line}
    if apart is None or frame is None or not all(value[:1] in "'\"" for value in values):
        return None
    return apart.text, frame


class LeftLoop(NamedTuple):
    """A loop that the ranks repeat a different number of times, by its line, and that in words."""

    line: int
    text: str


def left_loop(mismatch: Mismatch, earlier: Sequence[Cells] = ()) -> LeftLoop | None:
    """Of a call in a loop that another rank has left: the loop, and the ways out of it. `earlier` are the calls of the
    group that met before. Of a rank that calls nothing more it is known that it has left all loops: which of several
    it left too early says the one that the other rank has begun again since the last call that they had in common."""
    calls = present(mismatch.calls)
    for (rank, one), (other, _), here, there in _stacks_apart(calls):
        if here.in_function_of(there):
            loops = [loop for loop in loops_around(here) if there.line not in lines_of(loop.body)]
            before = earlier[-1].get(rank) if earlier else None
            anew = _begun_anew(before, one) if before is not None else None
            if anew is not None and there.line in lines_of(anew.body):
                continue  # it had left the loop as well, and passed the other one's line
            if loops and there.line > loops[-1].lineno:
                return _out_of(_left_of(loops, anew), rank, other, one)
            inner = _inner_loop(one, here, anew) if there.line > here.line else None
            if inner is not None:
                return _out_of(inner, rank, other, one)
    if len(calls) == 1 and mismatch.absent:
        rank, call = calls[0]
        before = earlier[-1].get(rank) if earlier else None
        loop = (_begun_anew(before, call) if before is not None else None) or _only_loop(call)
        if loop is not None and not is_fixed(loop):
            return _out_of(loop, rank, mismatch.absent[0], call)
    return None


def _left_of(loops: Sequence[Loop], anew: Loop | None) -> Loop:
    """Of several loops around a call, all of which another rank has left, that which it left too early: the one that
    this rank has begun again since their last common call, else the innermost one that ranks may leave at different
    times."""
    if anew is not None and anew in loops:
        return anew
    return [*filter(is_fixed, loops), *itertools.filterfalse(is_fixed, loops)][-1]


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
        mine, theirs = loops_around(call.frames[0])[-1:], loops_around(sent)[-1:]
        line = _line_in(sent, peers)
        if mine and theirs and (peers is None or (line and line not in lines_of(theirs[0].body))):
            return (
                f"rank {rank} waits for another message in the loop `{head(mine[0])}` (line {mine[0].lineno}), rank "
                f"{call.peer} has left the loop in which it sends, `{head(theirs[0])}` (line {theirs[0].lineno})"
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
    words = (word for node in calls_at(frame) for word in node.keywords if word.arg in _ROOTS)
    word = next((word for word in words if not isinstance(word.value, ast.Constant)), None)
    if word is None:
        return ""
    table_of = word.value.value if isinstance(word.value, ast.Subscript) else word.value
    names = (ast.unparse(word.value), ast.unparse(table_of))
    assigned = (node for node in ast.walk(tree_at(frame)) if isinstance(node, ast.Assign) and node.lineno < frame.line)
    made = [node for node in assigned if ast.unparse(node.targets[0]) in names]
    described = " and ".join(f"{call.root} on rank {rank}" for rank, call in calls)
    of = f" (line {made[-1].lineno}: `{ast.unparse(made[-1])}`)" if made else ""
    who = "receiver" if calls[0][1].op in _TO_ONE else "sender"
    return f"`{word.arg}={ast.unparse(word.value)}` is {described}{of}: each rank chooses its own {who}"


def joined(mismatch: Mismatch) -> str:
    """Of a rank that is through with its batches and answers in `Join` for what hooks into that, and one that calls
    something else inside of it."""
    for (rank, one), (other, another), here, there in _stacks_apart(present(mismatch.calls)):
        if one.issued_by == "user" or another.issued_by != "user":
            continue
        inside = (node for node in ast.walk(tree_at(here)) if isinstance(node, ast.With) and node.lineno == here.line)
        block = next((node for node in inside if there.line in lines_of(node.body)), None)
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
        if here is None or there is None or not here.in_function_of(there):
            continue
        since = _line_in(here, earlier[-1].get(one.rank) if earlier else None)
        ways = [(one, other, here, there), (other, one, there, here)]
        ways.sort(key=lambda way: _flow(way[2].line, since))
        # At the line of the last call a rank may be in the same round, or in the next one; of some loops it is known.
        either = since in (here.line, there.line) or _in_unlike_rounds(one.collective, other.collective)
        ways = ways if either else ways[:1]
        text = next(filter(None, itertools.starmap(_went_past, ways)), "")
        if text:
            return text
    return ""


def _went_past(one: Call, other: Call, here: Frame, there: Frame) -> str:
    """`here` and `there`: the outermost frames in which the stacks of two calls differ."""
    frames = one.collective.frames
    gates = tests_of(_gates_below(one, here))
    if not gates:
        return ""
    of = f" of {pathlib.Path(frames[0].path).name}" if frames[0].path != there.path else ""
    came = f"rank {one.rank} reached line {frames[0].line}{of} after {gates}"
    return f"{came}; rank {other.rank} skipped it and reached line {there.line}"


def _gates_below(call: Call, here: Frame) -> Iterator[Gate]:
    """The tests in what the line of `here` calls, on the way to a call."""
    frames = call.collective.frames
    return (gate for frame in reversed(frames[: frames.index(here)]) for gate in gates_before(frame))


def _at_one_line(one: Call, other: Call) -> str:
    frame = next(iter(one.collective.frames), None)
    gates = tests_of(gates_before(frame, in_round=True)) if frame is not None else ""
    if frame is None or not gates:
        return ""
    met = " meets ".join(_tensor_of(call) for call in (one, other))
    return f"at line {frame.line} {met}: {gates} differs between ranks"


def in_one_round(mismatch: Mismatch) -> bool:
    """Whether all ranks have come to one line, in the same round of the loops around it."""
    calls = present(mismatch.calls)
    return len(calls) == len(mismatch.calls) and all(_in_one_round(calls[0], call) for call in calls[1:])


def _in_one_round(one: Call, other: Call) -> bool:
    """Both ranks are at one line, outside of any loop or in the same round of the nearest loop around it, as far as
    that is known of it, and of those around that."""
    if _first_apart(one.collective.frames, other.collective.frames) is not None:
        return False
    known = {(at.depth, at.line) for at in one.collective.rounds}
    frames = enumerate(one.collective.frames)
    nearest = next(((at, loop.lineno) for at, frame in frames for loop in reversed(loops_around(frame))), None)
    return (nearest is None or nearest in known) and one.collective.rounds == other.collective.rounds


def made_of(mismatch: Mismatch) -> str:
    """Of a line at which ranks in the same iteration have tensors of different sizes or dtypes: the assignments that
    made them, the latest one first, in the functions that called this one as well; with the test of the rank that one
    is below. The last one is the first of the program that follows from the rank: what is before it is the same on all
    ranks."""
    calls = present(mismatch.calls)
    what = {Kind.SHAPE: "size", Kind.DTYPE: "dtype"}.get(mismatch.kind)
    if what is None or len(calls) < 2 or not _in_one_round(calls[0], calls[1]):
        return ""
    found: list[tuple[Frame, ast.Assign | ast.AugAssign]] = []
    # What a number is added to keeps its size, and may become another dtype.
    kinds = (ast.Assign, ast.AugAssign) if mismatch.kind is Kind.DTYPE else (ast.Assign,)
    wanted: set[str] | None = None
    inner = None
    for frame in calls[0].collective.frames:
        asked = calls_at(frame)
        if inner is not None:
            asked = [node for node in asked if last_part(node.func) == inner.function] if wanted else []
        wanted = {name for node in asked for arg in node.args for name in names_of(arg)}
        function = function_at(tree_at(frame), frame.line)
        assigned = [n for n in ast.walk(function or tree_at(frame)) if isinstance(n, kinds)]
        for node in sorted(assigned, key=lambda one: -one.lineno):
            made = set().union(*map(names_of, _targets(node)))
            if node.lineno < frame.line and made & wanted and len(found) <= MOST:
                found.append((frame, node))
                wanted = wanted - made | names_of(node.value) | (made if _keeps(node) else set())
        wanted &= {arg.arg for arg in function.args.args} if function is not None else set()
        inner = frame
    unlike = [at for at, (frame, n) in enumerate(found) if _follows_rank(n) or rank_tests(frame.path, n.lineno)]
    found = found[: unlike[-1] + 1] if unlike else found
    sizes = "; ".join(_assigned_at(frame, node) for frame, node in found)
    text = f"both ranks are in the same iteration, where the tensor has a different {what} on each"
    return f"{text}: {sizes}" if sizes else ""


def _targets(node: ast.Assign | ast.AugAssign) -> Sequence[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _keeps(node: ast.Assign | ast.AugAssign) -> bool:
    """It changes what a name stands for, which another assignment has made."""
    return isinstance(node, ast.AugAssign) or any(isinstance(target, ast.Subscript) for target in node.targets)


def _follows_rank(node: ast.Assign | ast.AugAssign) -> bool:
    """Whether an assignment makes something else of the rank, and is not that of the rank itself."""
    return names_rank(node.value) and not any(map(names_rank, _targets(node)))


def _assigned_at(frame: Frame, node: ast.Assign | ast.AugAssign) -> str:
    test = rank_tests(frame.path, node.lineno)
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
                if loop is not None and not divides(one.frames[mine.depth], loop):
                    values = f"{mine.value} on rank {rank} and {value} on rank {other}"
                    text = f"`{mine.name}` of the loop `{head(loop)}` (line {loop.lineno}) is {values}"
                    frame = one.frames[mine.depth]
                    skips = tests_of((test, asks) for test, asks in gates_before(frame, in_round=True, below=False))
                    text += f", where line {frame.line} comes behind {skips}" if skips else _below(frame, loop)
                    averages = averaged_where(frame) if not skips else ""
                    text += f"; gradients are averaged only where {averages}" if averages else ""
                    caught = handler_around(loop, frame.line) if part is not None else None
                    text += f"; line {caught.lineno} continues it after an exception" if caught is not None else ""
                    inner = _left_first(one, mine, loop) if part is None and not skips else None
                    return RoundsApart(frame.path, loop.lineno, text, bool(skips), inner)
    return None


def _below(frame: Frame, loop: Loop) -> str:
    """The tests that a line is below in a round of a loop, by which a rank may have passed it."""
    inside = [gate for gate in gates_before(frame, in_round=True) if loops_around(frame)[-1:] == [loop]]
    tests = tests_of(iter(inside))
    return f", where line {frame.line} is below {tests}" if tests else ""


def _left_first(call: Collective, outer: Round, loop: Loop) -> LeftLoop | None:
    """Calls of one line are in different rounds of a loop: that in it around the call ends at different times. Of
    several that is the outermost one, if it is known that the ranks would otherwise have diverged in its earlier
    rounds."""
    frames = call.frames[: outer.depth + 1]
    found = [inner for frame in reversed(frames) for inner in loops_around(frame)]
    inside = [inner for inner in found[found.index(loop) + 1 :] if not is_counted(inner)] if loop in found else []
    bound = {one.line for one in call.rounds if one.depth <= outer.depth}
    if not inside or (len(inside) > 1 and inside[0].lineno not in bound):
        return None
    text = f"the loop `{head(inside[0])}` (line {inside[0].lineno}) ends on one rank before it does on another"
    how = _how_left(inside[0], frames[0]) if list(ways_out(inside[0].body)) else ""
    return LeftLoop(inside[0].lineno, text + how)


def _in_unlike_rounds(one: Collective, another: Collective) -> bool:
    there = {_from_outside(another, theirs): theirs.value for theirs in another.rounds}
    return any(there.get(_from_outside(one, mine), mine.value) != mine.value for mine in one.rounds)


def _from_outside(call: Collective, one: Round) -> tuple[int, int, str]:
    """A loop's variable by the place of its frame in the stack, the outermost first."""
    return len(call.frames) - one.depth, one.line, one.name


def asked_anew(mismatch: Mismatch) -> str:
    """Of a call in what an optimizer's step is handed: it is called as often as this rank's loss makes it."""
    for call in mismatch.calls.values():
        for inner, outer in itertools.pairwise(call.frames if call is not None else ()):
            for node in calls_at(outer):
                if last_part(node.func) == "step":
                    handed = [*node.args, *(word.value for word in node.keywords)]
                    if any(last_part(one) == inner.function for one in handed):
                        asks = f"`{ast.unparse(node)}` (line {outer.line}) calls {inner.function}"
                        return f"{asks} as often as the loss of each rank makes it (a line search)"
    return ""


def polling(here: Frame) -> str:
    """For the line at which a rank waits: the loop around it that polls with `sleep`."""
    loops = [loop for loop in loops_around(here) if isinstance(loop, ast.While)]
    for loop in reversed(loops):
        if any(last_part(node.func) == "sleep" for node in calls_below(loop)):
            return f"it repeats `{head(loop)}` (line {loop.lineno}) again and again: its condition never becomes true"
    return ""


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
                if loop is not None and not divides(sent.frames[one.depth], loop):
                    lines = (
                        f"line {place(sent)[1]} of rank {sender} was received at line {place(received)[1]} of rank "
                        f"{receiver}"
                    )
                    values = f"{one.value} there and {there[at]} here"
                    return (
                        f"what was sent at {lines} in another round: `{one.name}` of the loop `{head(loop)}` (line "
                        f"{loop.lineno}) is {values}; one of them left a message out before"
                    )
    return ""


def _loop_at(call: Collective, one: Round) -> tuple[str, int, str]:
    """A loop's variable by its place: two functions that are called in it have stacks of different depth."""
    return (call.frames[one.depth].path if one.depth < len(call.frames) else ""), one.line, one.name


def _outermost_first(call: Collective) -> list[Round]:
    return sorted(call.rounds, key=lambda one: (-one.depth, one.line))


def _loop_of(call: Collective, where: Round) -> Loop | None:
    if where.depth >= len(call.frames):
        return None
    return next((loop for loop in loops_around(call.frames[where.depth]) if loop.lineno == where.line), None)


def _begun_anew(before: Collective, call: Collective) -> Loop | None:
    """The loop of which a new round began between two calls of a rank; None where that is not known.

    Known from the variables of loops that count or iterate over names, else from the order of the lines.
    """
    earlier = {one[:3]: one.value for one in before.rounds}
    apart = _first_apart(call.frames, before.frames)
    found: list[Loop] = []
    for depth in range(len(call.frames) - 1, -1, -1):
        frame = call.frames[depth]
        since = _line_in(frame, before)
        if not since:
            break
        for loop in loops_around(frame):
            bound = [one for one in call.rounds if (one.depth, one.line) == (depth, loop.lineno)]
            if since not in lines_of(loop.body):
                continue
            if any(_value_at(one, call, before, earlier) != one.value for one in bound):
                return loop
            if not bound:
                found.append(loop)
        if apart is not None and frame.in_function_of(apart):
            return found[-1] if found and since > apart.line else None
    return found[0] if len(found) == 1 else None


def _value_at(one: Round, call: Collective, before: Collective, earlier: dict[tuple[int, int, str], str]) -> str:
    """What the same variable held at the earlier call, whose stack may be of another depth."""
    return earlier.get((one.depth + len(before.frames) - len(call.frames), one.line, one.name), one.value)


def _only_loop(call: Collective) -> Loop | None:
    around = [loop for frame in call.frames for loop in loops_around(frame) if not is_counted(loop)]
    return around[0] if len(around) == 1 else None


def _inner_loop(call: Collective, here: Frame, anew: Loop | None) -> Loop | None:
    """The loop in what a line calls that a rank is in which has not come back to that line: the one begun again, or the
    only one."""
    loops = [loop for frame in call.frames[: call.frames.index(here)] for loop in loops_around(frame)]
    if anew is not None and anew.lineno in {loop.lineno for loop in loops}:
        return anew
    open_ended = [loop for loop in loops if not is_counted(loop)]
    return open_ended[0] if len(open_ended) == 1 else None


def _line_in(frame: Frame, call: Collective | None) -> int:
    """The line at which a call is in the function of a frame, 0 outside of it."""
    return next((one.line for one in (call.frames if call else ()) if one.in_function_of(frame)), 0)


def _flow(line: int, since: int) -> tuple[bool, int]:
    """A sort key: the lines behind the last one in common come before those of the next round."""
    return line < since, line


def _tensor_of(call: Call) -> str:
    names = [tensor.name or f"a tensor {list(tensor.shape)}" for tensor in call.collective.tensors[:1]]
    return f"{', '.join(names)} of rank {call.rank}"


def _out_of(loop: Loop, rank: int, other: int, call: Collective) -> LeftLoop:
    """`call`: of the rank that is in the loop."""
    text = f"rank {other} is out of the loop `{head(loop)}` (line {loop.lineno}), rank {rank} is in it"
    inside = (frame for frame in call.frames if any(around is loop for around in loops_around(frame)))
    return LeftLoop(loop.lineno, text + _how_left(loop, next(inside, call.frames[0])))


def _how_left(loop: Loop, here: Frame) -> str:
    endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
    ways = list(ways_out(loop.body))
    if len(ways) == 1:
        way = f"{ways[0].lineno}{below_test(loop, ways[0])}"
        return f": the only way out {'' if endless else 'but for its end '}is line {way}"
    caught = handler_around(loop, here.line) or handler_before(loop, here.line)
    goes_on = f"line {caught.lineno} continues it after an exception" if caught is not None else ""
    if goes_on and is_counted(loop):
        return f": {goes_on}, without what comes behind that"
    if not ways and not endless:
        tests = tests_of(gates_before(here, in_round=True))
        skips = f"line {here.line} runs in other rounds on each rank, behind {tests}" if tests else ""
        return ": " + ", or ".join(filter(None, (goes_on, "the ranks repeat it a different number of times", skips)))
    return ""


def _stacks_apart(calls: Sequence[Call]) -> Iterator[tuple[Call, Call, Frame, Frame]]:
    """Each call with each other one, and the outermost frames in which their stacks differ, where both have one."""
    for one, other in itertools.permutations(calls, 2):
        here = _first_apart(one.collective.frames, other.collective.frames)
        there = _first_apart(other.collective.frames, one.collective.frames)
        if here is not None and there is not None:
            yield one, other, here, there


def _first_apart(one: Sequence[Frame], another: Sequence[Frame]) -> Frame | None:
    """The outermost frame in which a stack (the innermost frame first) differs from another one."""
    known = [(frame.path, frame.line) for frame in reversed(another)]
    for number, frame in enumerate(reversed(one)):
        if number >= len(known) or known[number] != (frame.path, frame.line):
            return frame
    return None

"""Random programs: what the interpreter says that each rank sends and receives, against what Python does with them."""

from __future__ import annotations

import pathlib
import random
import types
from collections.abc import Callable
from typing import Any

import pytest

from ddp_lint.messages.interpreter import Interpreter
from ddp_lint.messages.job import Place
from ddp_lint.messages.senders import senders_of
from ddp_lint.messages.values import Exits, GiveUp, Impossible, Message, Steps, Wait
from ddp_lint.project import Project

from .programs import HEAD

PROGRAMS = 150
SIZES = (2, 3, 4)


class Writer:
    """Writes one program; equal seeds write equal programs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.functions = 0

    def program(self) -> str:
        self.lines = ["rank, size = dist.get_rank(), dist.get_world_size()", "x, works, count = torch.ones(4), [], 0"]
        self.lines += ["after, before = (rank + 1) % size, (rank - 1) % size"]
        for _ in range(self.random.randint(1, 4)):
            self.statement(0, [])
        return "\n".join(self.lines) + "\n"

    def write(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def number(self, names: list[str]) -> str:
        plain = ["rank", "size", "after", "before", "count", "0", "1", "2", *names, *names]
        one, two = self.random.choice(plain), self.random.choice(plain)
        forms = (one, one, f"({one} + {two})", f"({one} - {two})", f"({one} * {two} % 3)", f"max({one}, {two})")
        return self.random.choice(forms)

    def peer(self, names: list[str]) -> str:
        return self.random.choice(("after", "before", f"{self.number(names)} % size", "0", "1", "size - 1", "rank ^ 1"))

    def test(self, names: list[str]) -> str:
        one, two = self.number(names), self.number(names)
        sign = self.random.choice(("==", "!=", "<", "<=", ">", ">="))
        base = f"{one} {sign} {two}"
        forms = (base, base, f"not {base}", f"{base} and rank > 0", f"rank == 0 or {base}", "rank % 2 == 0", "works")
        return self.random.choice(forms)

    def statement(self, depth: int, names: list[str]) -> None:
        kinds: list[Callable[[int, list[str]], None]] = [self.message, self.message, self.works, self.assign]
        if depth < 3:
            kinds += [self.branch, self.branch, self.loop, self.rounds, self.function, self.batch]
        self.random.choice(kinds)(depth, names)

    def block(self, depth: int, names: list[str], ending: str = "") -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(depth, names)
        if ending:
            self.write(depth, ending)

    def message(self, depth: int, names: list[str]) -> None:
        peer = self.peer(names)
        way, name = self.random.choice((("send", "dst"), ("recv", "src")))
        background = self.random.random() < 0.4
        given = self.random.choice((peer, f"{name}={peer}"))
        call = f"dist.{'i' * background}{way}(x, {given})"
        forms = (f"works.append({call})", f"work = {call}", f"{call}.wait()") if background else (call,)
        self.write(depth, self.random.choice(forms))

    def works(self, depth: int, names: list[str]) -> None:
        self.write(depth, "for each in works:")
        self.write(depth + 1, "each.wait()")
        self.write(depth, self.random.choice(("works = []", "works.clear()")))

    def assign(self, depth: int, names: list[str]) -> None:
        name = self.random.choice(("count", "after", "before", *names))
        self.write(depth, self.random.choice((f"{name} = {self.number(names)}", "count += 1", f"count -= {name}")))

    def branch(self, depth: int, names: list[str]) -> None:
        self.write(depth, f"if {self.test(names)}:")
        self.block(depth + 1, names)
        if self.random.random() < 0.5:
            self.write(depth, self.random.choice(("else:", f"elif {self.test(names)}:")))
            self.block(depth + 1, names)

    def loop(self, depth: int, names: list[str]) -> None:
        name = f"n{depth}"
        over = self.random.choice(("range(size)", "range(1, size)", "range(3)", "reversed(range(size))", "[0, rank]"))
        self.write(depth, f"for {name} in {over}:")
        if self.random.random() < 0.5:
            self.write(depth + 1, f"if {self.test([*names, name])}:")
            self.write(depth + 2, self.random.choice(("break", "continue")))
        self.block(depth + 1, [*names, name])

    def rounds(self, depth: int, names: list[str]) -> None:
        name = f"w{depth}"
        self.write(depth, f"{name} = {self.random.choice(('0', 'rank', '1'))}")
        self.write(depth, f"while {name} < {self.random.choice(('size', '3'))}:")
        self.write(depth + 1, f"{name} += {self.random.choice(('1', '2'))}")
        self.block(depth + 1, [*names, name], self.random.choice(("", "", "break")))

    def function(self, depth: int, names: list[str]) -> None:
        self.functions += 1
        name = f"part{self.functions}"
        self.write(depth, f"def {name}(one, two=1, *, works=works, after=after, before=before, count=count):")
        self.write(depth + 1, f"if {self.test(['one', 'two'])}:")
        self.write(depth + 2, "return one")
        self.block(depth + 1, ["one", "two"], "return two")
        given = self.random.choice(
            (f"{self.number(names)}", f"{self.number(names)}, {self.number(names)}", "1, two=rank")
        )
        self.write(depth, f"count = {name}({given})")

    def batch(self, depth: int, names: list[str]) -> None:
        operations = [
            f"dist.P2POp(dist.{self.random.choice(('isend', 'irecv'))}, x, {self.peer(names)})" for _ in range(2)
        ]
        self.write(depth, f"operations = [{operations[0]}]")
        self.write(depth, f"if {self.test(names)}:")
        self.write(depth + 1, f"operations.append({operations[1]})")
        self.write(depth, "for each in dist.batch_isend_irecv(operations):")
        self.write(depth + 1, "each.wait()")


class Work:
    def __init__(self, said: list[object], what: object) -> None:
        self._said, self._what = said, what

    def wait(self) -> None:
        self._said.append(("wait", self._what))


def run(text: str, rank: int, size: int) -> list[object] | None:
    """What Python does on a rank; None where it speaks to a rank that is not there."""
    said: list[object] = []

    def call(way: str, name: str) -> Callable[..., Any]:
        def made(x: object, peer: int | None = None, **named: int) -> Any:
            peer = named.get(name, peer)
            if peer is None or not 0 <= peer < size:
                raise IndexError
            said.append((way, peer))
            return Work(said, (way, peer))

        return made

    def batch(operations: list[Any]) -> list[Work]:
        return [operation() for operation in operations]

    def operation(way: Callable[..., Any], x: object, peer: int) -> Callable[[], Work]:
        if not 0 <= peer < size:
            raise IndexError
        return lambda: way(x, peer)

    ways = {f"{i}{way}": call(way, name) for i in ("", "i") for way, name in (("send", "dst"), ("recv", "src"))}
    dist = types.SimpleNamespace(
        get_rank=lambda: rank, get_world_size=lambda: size, P2POp=operation, batch_isend_irecv=batch, **ways
    )
    try:
        exec(text, {"dist": dist, "torch": types.SimpleNamespace(ones=lambda n: object())})
    except (IndexError, ValueError, TypeError):
        return None
    return said


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_the_interpreter_does_what_python_does(seed: int, tmp_path: pathlib.Path) -> None:
    text = Writer(seed).program()
    path = tmp_path / "program.py"
    path.write_text(HEAD + text)
    project = Project(tmp_path)
    facts = project.modules.facts_of(path)
    assert facts is not None
    for size in SIZES:
        for rank in range(size):
            on = Interpreter(Place(rank, size), senders_of(project), Steps(500_000))
            try:
                on.block(facts.tree.body, on.module(facts))
            except (GiveUp, Impossible, Exits) as e:
                assert isinstance(e, GiveUp) or run(text, rank, size) is None, text
                continue
            said: list[object] = []
            for operation in on.program.operations:
                message = operation.message if isinstance(operation, Wait) else operation
                assert isinstance(message, Message)
                what = ("send" if message.sends else "recv", message.peer)
                said.append(("wait", what) if isinstance(operation, Wait) else what)
            assert said == run(text, rank, size), f"rank {rank} of {size}\n{text}"

"""Random programs whose ranks may diverge by a condition that a callee, a name, an object or a group carries; and what
two ranks do when they run them.

A program is a few scenes. Each is run on two ranks, threads of which one runs at a time, for every answer that its
flags (the same on both ranks) and its clocks (each rank's own) can give. It hangs when one rank waits in a collective
that the other never joins in any of these runs.
"""

from __future__ import annotations

import itertools
import random
import threading
import types
from collections.abc import Callable

HEAD = "import time\nimport torch\nimport torch.distributed as dist\n"
FLAGS = ("a", "b", "c")
WORLD = 2


# ---- what a program is written of


class Writer:
    """Writes one program; equal seeds write equal programs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.above: list[str] = []
        self.body: list[str] = ["rank = dist.get_rank()"]

    def program(self) -> str:
        for number in range(self.random.randint(1, 3)):
            self.random.choice(SCENES)(self, number)
            if self.random.random() < 0.3:
                self.body.append(self.event())
        lines = [f"    {line}" for line in self.body]
        return "\n".join([HEAD, *self.above, "def main(x, cfg, deadline):", *lines]) + "\n"

    def event(self) -> str:
        return self.random.choice(("dist.barrier()", "dist.all_reduce(x)", "dist.broadcast(x, src=0)"))

    def flag(self) -> str:
        one, other = self.random.sample(FLAGS, 2)
        return self.random.choice((f"cfg.{one}", f"(cfg.{one} and not cfg.{other})", f"(cfg.{one} or cfg.{other})"))

    def against(self, flag: str) -> str:
        """Mostly the opposite of a flag, which keeps its ranks out; else the flag, or another one."""
        return self.random.choice((f"not {flag}", f"not {flag}", flag, self.flag()))

    def of_rank(self) -> str:
        return self.random.choice(("rank == 0", "rank != 0", "dist.get_rank() == 0", "not rank"))


def early_return(write: Writer, n: int) -> None:
    write.above += [f"def early{n}(x, on):", "    if not on:", "        return", f"    {write.event()}", ""]
    flag = write.flag()
    write.body += [f"if {write.of_rank()} and {write.against(flag)}:", f"    early{n}(x, {flag})"]


def same_question(write: Writer, n: int) -> None:
    flag = write.flag()
    write.above += [f"def asked{n}(cfg):", f"    return {flag}", ""]
    write.above += [f"def asks{n}(x, cfg):", f"    if asked{n}(cfg):", f"        {write.event()}", ""]
    write.body += [f"if {write.of_rank()}:", f"    if {write.against(f'asked{n}(cfg)')}:", f"        asks{n}(x, cfg)"]


def flag_in_a_name(write: Writer, n: int) -> None:
    flag = write.flag()
    write.body += [f"on{n} = {flag}", f"if {write.of_rank()} and {write.against(flag)}:"]
    write.body += [f"    if on{n}:", f"        {write.event()}"]


def object_with_a_flag(write: Writer, n: int) -> None:
    flag = write.random.choice(FLAGS)
    write.above += [f"class Object{n}:", "    def __init__(self, cfg, sync):", f"        self.on = cfg.{flag}"]
    write.above += ["        self.sync = sync", "", "    def go(self, x):", "        if self.on and self.sync:"]
    write.above += [f"            {write.event()}", ""]
    write.body += [f"object{n} = Object{n}(cfg, {write.random.choice(('True', 'False'))})"]
    write.body += [f"if {write.of_rank()} and {write.against(f'cfg.{flag}')}:", f"    object{n}.go(x)"]


def group(write: Writer, n: int) -> None:
    members = write.random.choice(("[0]", "[1]", "[0, 1]"))
    write.body += [f"group{n} = dist.new_group({members})"]
    test = write.random.choice((f"rank in {members}", "rank == 0", "rank != 0"))
    write.body += [f"if {test}:", f"    dist.all_reduce(x, group=group{n})"]


def generator(write: Writer, n: int) -> None:
    write.above += [f"def rounds{n}(many):", "    for number in range(many):", "        yield number", ""]
    many = write.random.choice(("2", "2", "rank + 1", "dist.get_world_size()"))
    write.body += [f"for number in rounds{n}({many}):", f"    {write.event()}"]


def exception(write: Writer, n: int) -> None:
    test = write.random.choice((write.flag(), write.flag(), "time.time() > deadline", write.of_rank()))
    write.above += [f"def check{n}(bad):", "    if bad:", "        raise ValueError('bad')", ""]
    write.body += ["try:", f"    check{n}({test})", "except ValueError:"]
    write.body += [f"    {write.random.choice(('return', 'pass'))}", write.event()]


def size_first(write: Writer, n: int) -> None:
    source = write.random.choice(("time.time() > deadline", write.flag()))
    write.body += [f"sent{n} = [bool({source})]"]
    write.body += [f"dist.broadcast_object_list(sent{n}, src=0)"] if write.random.random() < 0.7 else []
    write.body += [f"if sent{n}[0]:", f"    if {write.of_rank()}:", "        dist.broadcast(x, src=0)"]
    write.body += ["    else:", "        dist.broadcast(torch.zeros(1), src=0)"]


def nothing_there(write: Writer, n: int) -> None:
    flag = write.flag()
    write.body += [f"extra{n} = None", f"if {flag}:", f"    extra{n} = [x, x]"]
    write.body += [f"if {write.of_rank()} and {write.against(flag)}:", f"    if extra{n} is not None:"]
    write.body += [f"        {write.event()}"]


def made_up_for(write: Writer, n: int) -> None:
    event = write.event()
    write.above += [f"def before{n}(x):", "    if dist.get_rank() != 0:", f"        {event}", ""]
    write.above += [f"def after{n}(x):", "    if dist.get_rank() == 0:", f"        {event}", ""]
    write.body += [f"before{n}(x)"]
    write.body += [f"after{n}(x)"] if write.random.random() < 0.7 else [f"if {write.flag()}:", f"    after{n}(x)"]


def lazy(write: Writer, n: int) -> None:
    """A generator that communicates, as often as it is asked: made by all ranks, gone through by some."""
    write.above += [
        f"def parts{n}(x):",
        "    for part in range(2):",
        f"        {write.event()}",
        "        yield part",
        "",
    ]
    write.above += [f"def take{n}(parts):", "    for part in parts:", "        pass", ""]
    write.body += [f"lazy{n} = parts{n}(x)", f"if {write.random.choice((write.of_rank(), write.flag()))}:"]
    write.body += [f"    take{n}(lazy{n})"]


def flags_in_a_dictionary(write: Writer, n: int) -> None:
    flag = write.flag()
    write.above += [f"class Flags{n}:", "    def __init__(self, cfg):"]
    write.above += [f"        self.all = {{'main': dist.get_rank() == 0, 'on': {flag}}}", ""]
    write.above += ["    def go(self, x):", f"        if self.all['{write.random.choice(('main', 'on'))}']:"]
    write.above += [f"            {write.event()}", ""]
    write.body += [f"flags{n} = Flags{n}(cfg)", f"flags{n}.go(x)"]


def last_rank(write: Writer, n: int) -> None:
    write.body += [f"if rank in {{{write.random.choice(('-1', '1'))}, dist.get_world_size() - 1}}:"]
    write.body += [f"    {write.event()}"]
    write.body += ["else:", f"    {write.event()}"] if write.random.random() < 0.5 else []


SCENES: tuple[Callable[[Writer, int], None], ...] = (
    early_return, same_question, flag_in_a_name, object_with_a_flag, group, generator, exception, size_first,
    nothing_there, made_up_for, lazy, flags_in_a_dictionary, last_rank,
)  # fmt: skip


# ---- what two ranks do


class Stuck(BaseException):
    """Ends a rank that waits for nobody."""


class Job:
    """Two ranks; one runs until it waits in a collective or ends."""

    def __init__(self, code: types.CodeType, flags: dict[str, bool], late: tuple[bool, ...]) -> None:
        self.code, self.flags, self.late = code, flags, late
        self.waiting: dict[int, tuple[object, ...]] = {}
        self.given: dict[int, object] = {}
        self.ended: dict[int, bool] = {}
        self.turns = [threading.Semaphore(0) for _ in range(WORLD)]
        self.back = threading.Semaphore(0)
        self.over = False

    def hangs(self) -> bool:
        threads = [threading.Thread(target=self._rank, args=(rank,), daemon=True) for rank in range(WORLD)]
        for thread in threads:
            thread.start()
        stuck = self._run()
        self.over = True
        for rank, thread in enumerate(threads):
            self.turns[rank].release()
            thread.join()
        return stuck

    def _run(self) -> bool:
        ready = list(range(WORLD))
        while True:
            for rank in ready:
                self.turns[rank].release()
                self.back.acquire()
                if self.ended.get(rank) is False:
                    return False  # an error ends the job on all ranks
            ready = [rank for rank in self.waiting if self._is_complete(self.waiting[rank])]
            if not ready:
                return bool(self.waiting)
            value = self.given[min(ready)]
            for rank in ready:
                del self.waiting[rank]
                self.given[rank] = value

    def _is_complete(self, call: tuple[object, ...]) -> bool:
        members = call[-1]
        assert isinstance(members, tuple)
        return all(self.waiting.get(member) == call for member in members)

    def _rank(self, rank: int) -> None:
        self.turns[rank].acquire()
        try:
            if not self.over:
                self._execute(rank)
            self.ended[rank] = True
        except Stuck:
            self.ended[rank] = True
        except Exception:
            self.ended[rank] = False
        self.back.release()

    def _execute(self, rank: int) -> None:
        everybody = tuple(range(WORLD))

        def wait(op: str, members: tuple[int, ...] = everybody, gives: object = None) -> object:
            if rank not in members:
                return None
            self.waiting[rank], self.given[rank] = (op, members), gives
            self.back.release()
            self.turns[rank].acquire()
            if self.over:
                raise Stuck
            return self.given[rank]

        def send(objects: list[object], src: int) -> None:
            objects[:] = wait("objects", gives=list(objects))  # type: ignore[call-overload]

        dist = types.SimpleNamespace(
            get_rank=lambda: rank, get_world_size=lambda: WORLD, barrier=lambda: wait("barrier"),
            all_reduce=lambda x, group=everybody: wait("all_reduce", group),
            broadcast=lambda x, src: wait("broadcast"), broadcast_object_list=send,
            new_group=lambda members: wait("new_group") or tuple(members),
        )  # fmt: skip
        torch = types.SimpleNamespace(distributed=dist, zeros=lambda size: [0] * size)
        clock = types.SimpleNamespace(time=lambda: float(self.late[rank] if self.late else 0))
        names: dict[str, object] = {"torch": torch, "dist": dist, "time": clock}
        exec(self.code, names)
        names["main"]([1.0], types.SimpleNamespace(**self.flags), 0.5)  # type: ignore[operator]


def hangs(program: str) -> bool:
    """Do two ranks hang in it, for some answer of its flags and clocks?"""
    code = compile(program.removeprefix(HEAD), "<program>", "exec")
    answers = itertools.product((False, True), repeat=len(FLAGS))
    lates = list(itertools.product((False, True), repeat=WORLD if "time.time()" in program else 0))
    return any(Job(code, dict(zip(FLAGS, flags, strict=True)), late).hangs() for flags in answers for late in lates)

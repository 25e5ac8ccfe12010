"""Sends and receives that nobody answers, on programs that were run and on what the interpreter must not guess."""

from __future__ import annotations

import pathlib
import textwrap

import pytest

from ddp_lint.messages import find
from ddp_lint.messages.find import Hang, Result, result_of
from ddp_lint.project import Project

from .programs import ENDING, HANGING, HEAD


def found(text: str, folder: pathlib.Path, **others: str) -> list[Hang]:
    return [*result(text, folder, **others).hangs]


def result(text: str, folder: pathlib.Path, **others: str) -> Result:
    for name, other in others.items():
        folder.joinpath(f"{name}.py").write_text(HEAD + textwrap.dedent(other))
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(text))
    facts = Project(folder).modules.facts_of(path)
    assert facts is not None
    return result_of(facts, Project(folder))


def lines(hanging: list[Hang]) -> list[int]:
    return [hang.first.message.node.lineno for hang in hanging if hang.first.message is not None]


def marked(text: str) -> list[int]:
    return [number for number, line in enumerate((HEAD + text).splitlines(), 1) if line.endswith("# waits")]


@pytest.mark.parametrize("name", HANGING)
def test_a_rank_that_waits_for_ever_is_found_where_it_waits(name: str, tmp_path: pathlib.Path) -> None:
    assert lines(found(HANGING[name], tmp_path)) == marked(HANGING[name])


@pytest.mark.parametrize("name", ENDING)
def test_programs_that_end_are_silent(name: str, tmp_path: pathlib.Path) -> None:
    assert found(ENDING[name], tmp_path) == []


#: What only the run, or a caller, knows.
UNDECIDED = {
    "one end in each of two functions": """
        def send_forward(x, rank, world_size):
            if rank < world_size - 1:
                dist.send(x, rank + 1)

        def recv_forward(x, rank, world_size):
            if rank > 0:
                dist.recv(x, rank - 1)

        def step(schedule, x):
            for name in schedule:
                globals()[name](x, dist.get_rank(), dist.get_world_size())
        """,
    "a peer that the caller knows": """
        def exchange(x, y, peer):
            dist.recv(y, peer)
            dist.send(x, peer)
        """,
    "a role that a process is given": """
        dist.init_process_group("gloo")
        x = torch.ones(4)
        if args.role == "server":
            dist.recv(x, 1)
        else:
            dist.send(x, 0)
        """,
    "a test that may be of the rank": """
        dist.init_process_group("gloo")
        rank, x = dist.get_rank(), torch.ones(4)
        if config.is_first_stage:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        """,
    "a server that runs on one rank": """
        def serve(size):
            for worker in range(1, dist.get_world_size()):
                dist.recv(torch.zeros(4), worker)
                dist.send(torch.zeros(4), worker)

        def work():
            dist.send(torch.zeros(4), 0)
            dist.recv(torch.zeros(4), 0)

        def main(config):
            dist.init_process_group("gloo")
            config.roles[dist.get_rank()]()
        """,
    "each rank's own number of messages": """
        dist.init_process_group("gloo")
        rank, x = dist.get_rank(), torch.ones(4)
        if rank == 0:
            for task in tasks:
                dist.send(x, 1)
        elif rank == 1:
            for _ in range(expected):
                dist.recv(x, 0)
        """,
    "a job of another size": """
        dist.init_process_group("gloo")
        rank, x = dist.get_rank(), torch.ones(4)
        assert dist.get_world_size() == 8
        if rank == 0:
            dist.send(x, 1)
        """,
    "a peer that jobs of eight have": """
        dist.init_process_group("gloo")
        rank, x = dist.get_rank(), torch.ones(4)
        if rank == 0:
            dist.send(x, 7)
        """,
    "a thread that receives": """
        import threading

        def listen(x):
            dist.recv(x, 0)

        dist.init_process_group("gloo")
        rank, x = dist.get_rank(), torch.ones(4)
        if rank == 0:
            dist.send(x, 1)
        elif rank == 1:
            threading.Thread(target=listen, args=(x,)).start()
        """,
    "a program that only two ranks can run": """
        dist.init_process_group("gloo")
        rank, x = dist.get_rank(), torch.ones(4)
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        """,
    "an error for all but two ranks": """
        dist.init_process_group("gloo")
        rank, size, x = dist.get_rank(), dist.get_world_size(), torch.ones(4)
        if size != 2:
            raise ValueError("two ranks")
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        """,
    "ranks of a group": """
        dist.init_process_group("gloo")
        group = make_groups()
        rank, size, x = dist.get_rank(group), dist.get_world_size(group), torch.ones(4)
        dist.send(x, (rank + 1) % size, group=group)
        dist.recv(x, (rank - 1) % size, group=group)
        """,
    "a rank that a function of the module sets": """
        rank = 0

        def setup():
            global rank
            dist.init_process_group("gloo")
            rank = numbered()

        def main():
            setup()
            x = torch.ones(4)
            if rank == 0:
                dist.send(x, 1)
            elif rank == 1:
                dist.recv(x, 0)

        main()
        """,
    "a generator that receives": """
        def batches():
            while True:
                x = torch.ones(4)
                dist.recv(x, 0)
                yield x

        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.send(torch.ones(4), 1)
        elif dist.get_rank() == 1:
            next(batches())
        """,
    "the program of one rank": """
        dist.init_process_group("gloo", init_method="tcp://192.168.0.1:1234", world_size=2, rank=0)
        dist.barrier()
        dist.send(torch.ones(4), 1)
        """,
    "sockets": """
        def main(rank, connection):
            dist.init_process_group("gloo")
            if rank == 0:
                connection.send(b"isend")
            else:
                connection.recv(4)
        """,
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_nothing_is_said_of_what_only_the_run_knows(name: str, tmp_path: pathlib.Path) -> None:
    assert found(UNDECIDED[name], tmp_path) == []


def test_what_an_imported_file_receives_may_answer(tmp_path: pathlib.Path) -> None:
    program = """
        from {module} import {name}

        dist.init_process_group("gloo")
        runner = {name}()
        if dist.get_rank() == 0:
            dist.send(torch.ones(4), 1)  # waits
        elif dist.get_rank() == 1:
            runner.run()
        """
    worker = """
        class Worker:
            def run(self):
                dist.recv(torch.ones(4), 0)
        """
    other = """
        class Other:
            def run(self):
                print("ready")
        """
    assert not found(program.format(module="worker", name="Worker"), tmp_path, worker=worker)
    alone = textwrap.dedent(program.format(module="other", name="Other"))
    assert lines(found(alone, tmp_path, other=other)) == marked(alone)


def test_a_helper_of_another_file_is_shown_where_the_program_calls_it(tmp_path: pathlib.Path) -> None:
    helper = """
        def give(x, peer):
            dist.send(x, peer)

        def take(x, peer):
            dist.recv(x, peer)
        """
    program = """
        from helper import give, take

        def exchange(x):
            peer = 1 - dist.get_rank()
            take(x, peer)  # waits
            give(x, peer)

        if __name__ == "__main__":
            dist.init_process_group("gloo")
            exchange(torch.ones(4))
        """
    text = textwrap.dedent(program)
    (hang,) = found(text, tmp_path, helper=helper)
    facts = Project(tmp_path).modules.facts_of(tmp_path / "train.py")
    assert facts is not None and hang.first.message is not None
    assert [node.lineno for _, node in hang.first.message.way][-1:] == marked(text)


ROUNDS = """
    dist.init_process_group("gloo")
    rank, x = dist.get_rank(), torch.ones(4)
    for step in range(args.steps):
        if step % args.interval == 0:
            if rank == 0:
                dist.send(x, 1)
            elif rank == 1:
                dist.recv(x, 0){more}
    """


def test_every_so_many_rounds(tmp_path: pathlib.Path) -> None:
    more = ROUNDS.format(more="\n                dist.recv(x, 0)")
    assert not found(ROUNDS.format(more=""), tmp_path)
    assert lines(found(more, tmp_path)) == [11]
    assert not found(more.replace("step % args.interval == 0", "args.first"), tmp_path)


def test_a_program_that_hangs_in_one_of_the_jobs_that_it_can_run_in_is_silent(tmp_path: pathlib.Path) -> None:
    pipeline = """
        dist.init_process_group("gloo")
        rank, size, x = dist.get_rank(), dist.get_world_size(), torch.ones(4)
        if rank == 0:
            dist.send(x, 1)  # waits
        elif rank < size{limit}:
            dist.recv(x, rank - 1)
        """
    assert not found(pipeline.format(limit=""), tmp_path)
    alone = textwrap.dedent(pipeline.format(limit=" - size"))
    assert lines(found(alone, tmp_path)) == marked(alone)


LOOPING = """
    def spread(x):
        for number in range({rounds}):
            seen = number
        dist.send(x, {peer})

    def own(x):
        other = 1 - dist.get_rank()
        dist.recv(x, other)
        dist.send(x, other)
"""


@pytest.mark.parametrize(
    ("rounds", "peer", "names"),
    [("200", "1", []), ("25_000", "1", ["spread"]), ("3", "x.peer", []), ("range(9) * 10 ** 9", "1", [])],
    ids=["many", "too many", "a peer that only the run knows", "an error of the program"],
)
def test_what_takes_too_many_steps_is_told_apart_from_what_nobody_knows(
    rounds: str, peer: str, names: list[str], tmp_path: pathlib.Path
) -> None:
    given = result(LOOPING.format(rounds=rounds, peer=peer), tmp_path)
    assert [name for _, name, _ in given.left_out] == names
    assert [hang.first.message.node.lineno for hang in given.hangs if hang.first.message] == [11]


def test_the_steps_of_a_file_are_counted_together(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_MOST", 200)
    text = textwrap.dedent(LOOPING.format(rounds=9, peer=1))
    others = "".join(text.replace("spread", f"spread{n}").replace("own", f"own{n}") for n in range(9))
    names = [name for _, name, _ in result(others, tmp_path).left_out]
    assert "own8" in names and "spread0" not in names

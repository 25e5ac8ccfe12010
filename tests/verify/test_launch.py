"""Real launches of two gloo ranks: what the observers see, and every way to die."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from ddp_lint.verify import trace
from ddp_lint.verify.launch import Launcher
from ddp_lint.verify.live import Live
from ddp_lint.verify.match import Kind
from ddp_lint.verify.missing_requirements import lacking
from ddp_lint.verify.options import InternalError, Options, RankOutcome, RunResult, UsageError, Watch
from ddp_lint.verify.pool import Pool
from ddp_lint.verify.results import examine
from ddp_lint.verify.spec import TOKEN, Spec
from ddp_lint.verify.target import resolve

pytest.importorskip("torch")
pytestmark = pytest.mark.launch

TARGETS = pathlib.Path(__file__).parent / "targets"
CPU = Options(device="cpu", timeout=4.0)


def run(path: pathlib.Path, options: Options) -> list[RunResult]:
    """One plain pass over all models and wraps of a target."""
    with Launcher(resolve(str(path), options), options) as launcher:
        return launcher.run(launcher.probe(), Watch())


def line_of(name: str, mark: str) -> int:
    lines = (TARGETS / name).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# line: {mark}"))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One launch for all runs that may share one: starting it costs more than they do."""
    with Pool(tmp_path_factory.mktemp("pool"), CPU, "cpu") as started:
        yield started


def launch(target: str | pathlib.Path, options: Options, pool: Pool, watch: Watch | None = None) -> list[RunResult]:
    resolved = resolve(str(TARGETS / target), options)
    with Launcher(resolved, options, pool=pool) as launcher:
        return launcher.run(launcher.probe(), watch or Watch())


def watch(name: str, *, lines: tuple[str, ...] = (), guards: tuple[str, ...] = (), graph_breaks: bool = False) -> Watch:
    path = str(TARGETS / name)
    return Watch(
        lines={path: frozenset(line_of(name, mark) for mark in lines)},
        guards={path: frozenset(line_of(name, mark) for mark in guards)},
        graph_breaks=graph_breaks,
    )


def sites(rank: RankOutcome, kind: type[trace.Event]) -> set[int]:
    return {event.site.line for event in rank.trace.of(kind) if event.site is not None}


def test_what_runs_after_the_last_line_belongs_to_the_program(pool: Pool) -> None:
    (thread,) = launch("endings.py", dataclasses.replace(CPU, arguments=("thread",)), pool)
    assert thread.outcome == "completed" and not examine(thread).mismatches, thread.message
    (handler,) = launch("endings.py", dataclasses.replace(CPU, arguments=("handler",)), pool)
    (mismatch,) = examine(handler).mismatches
    assert mismatch.kind is Kind.MISSING and mismatch.absent == (1,)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_listens_is_reached_from_this_machine_alone(pool: Pool) -> None:
    (result,) = launch("listens.py", CPU, pool)
    assert result.outcome == "completed", [rank.message for rank in result.ranks]


def test_a_model_under_ddp_and_fsdp2(tmp_path: pathlib.Path, pool: Pool) -> None:
    options = dataclasses.replace(CPU, traces=tmp_path)
    ddp, fsdp2 = launch(
        "hazards.py", options, pool, watch("hazards.py", lines=("write",), guards=("guard",), graph_breaks=True)
    )
    written, guard = line_of("hazards.py", "write"), line_of("hazards.py", "guard")
    for result in (ddp, fsdp2):
        assert (result.outcome, result.model, result.backend) == ("completed", "Net", "gloo")
        for rank in result.ranks:
            write = next(rank.trace.of(trace.Write))
            assert (write.name, write.phase) == ("block.linear.weight", "forward")
            assert sites(rank, trace.Write) == {written} and not write.sharded
            assert guard in sites(rank, trace.Sync)
            lines = rank.trace.last(trace.Lines)
            assert lines is not None
            assert lines.counts[str(TARGETS / "hazards.py")] == {written: 3}
            assert lines.guards[str(TARGETS / "hazards.py")] == {guard: (0, 3)}
        assert guard in sites(result.ranks[0], trace.GraphBreak)
        streams = [[(e.group, e.op, e.tensors) for e in r.trace.of(trace.Collective)] for r in result.ranks]
        assert streams[0] == streams[1] and streams[0]
    largest = {result.wrap: max(_reference(result).parameters.values()) for result in (ddp, fsdp2)}
    assert largest["ddp"] < 1e-6 and largest["fsdp2"] > 1e-3
    assert not (tmp_path / "ddp" / "tmp").exists()


def _reference(result: RunResult) -> trace.Reference:
    found = result.ranks[0].trace.last(trace.Reference)
    assert found is not None and not found.error and found.separable and found.repeatable
    return found


def test_a_script(tmp_path: pathlib.Path, pool: Pool) -> None:
    options = dataclasses.replace(CPU, arguments=(str(tmp_path / "checkpoint"),))
    (result,) = launch("script.py", options, pool, watch("script.py", lines=("raise",), guards=("rank guard",)))
    assert result.outcome == "completed", result.ranks[0].log
    for rank in result.ranks:
        events = rank.trace
        environment = {event.name: event for event in events.of(trace.Environment) if event.final}
        assert environment["OMP_NUM_THREADS"].in_force == "2", "set before the script imports torch: honoured"
        assert environment["TORCH_DISTRIBUTED_DEBUG"].in_force != "DETAIL", "set after it: ignored"
        assert sites(rank, trace.Race) == {line_of("script.py", "race")}
        assert any(event.where == "caught" and event.type == "KeyError" for event in events.of(trace.Raised))
        assert [event.epoch for event in events.of(trace.Samples)] == [0, 0]
        loaded = next(event for event in events.of(trace.Call) if event.name == "torch.load")
        path = str(tmp_path / f"checkpoint{rank.rank}")
        assert loaded.arguments == {"map_location": "", "storages": ["cpu"], "landed": ["cpu"], "path": path}
        reduced = next(event for event in events.of(trace.Collective) if event.op == "reduce")
        assert (reduced.group, reduced.root, reduced.reduce_op) == ("0,1", 1, "MAX")
        assert reduced.site is not None and reduced.site.line == line_of("script.py", "reduce")
        objects = [event for event in events.of(trace.Collective) if event.api == "broadcast_object_list"]
        assert {event.root for event in objects} == {1}
        lines = events.last(trace.Lines)
        assert lines is not None
        assert list(lines.guards[str(TARGETS / "script.py")].values()) == [(rank.rank, 1 - rank.rank)]
    gradients = [
        next(event for event in rank.trace.of(trace.Hashes) if event.what == "gradients").digests
        for rank in result.ranks
    ]
    assert gradients[0] != gradients[1], "model.module(x) bypasses DDP: gradients are not reduced"


@pytest.mark.parametrize(
    ("how", "outcome", "exit", "name", "mark"),
    [
        ("segv", "crash", None, "SIGSEGV", "segv"),
        ("kill", "crash", None, "SIGKILL", "kill"),
        ("os._exit", "exit", 0, "", "os._exit"),
        ("raise", "exception", 1, "", "raise"),
    ],
)
def test_one_rank_dies(how: str, outcome: str, exit: int | None, name: str, mark: str | None, pool: Pool) -> None:
    (result,) = launch("deaths.py", dataclasses.replace(CPU, arguments=(how,)), pool)
    assert result.outcome == outcome, result.message
    rank0, rank1 = result.ranks
    assert (rank1.exit, rank1.signal) == (exit, name)
    assert "all_reduce(float32[4]) #0" in rank1.last.collective and "#1" in rank0.last.collective
    assert rank0.last.frame is not None and rank0.last.frame.line == line_of("deaths.py", "wait")
    assert rank1.last.module == ""  # the forward is over
    if mark is not None:
        assert rank1.last.frame is not None and rank1.last.frame.line == line_of("deaths.py", mark)
    if how == "os._exit":
        left = rank1.trace.last(trace.Exit)
        assert left is not None and left.pending == "ValueError"


def test_a_hang_ends_with_both_stacks(pool: Pool) -> None:
    (result,) = launch("deaths.py", dataclasses.replace(CPU, timeout=2.0, arguments=("hang",)), pool)
    assert result.outcome == "hang"
    for rank, mark in zip(result.ranks, ("wait", "hang"), strict=True):
        stall = rank.trace.last(trace.Stall)
        assert stall is not None and stall.site is not None and stall.site.line == line_of("deaths.py", mark)
    pending = result.ranks[0].trace.last(trace.Stall)
    assert pending is not None and pending.pending, "rank 0 waits in a collective"


def test_a_hang_after_the_last_line_ends_too(pool: Pool) -> None:
    """In C with the GIL held, where no thread of the rank can notice."""
    (result,) = launch("deaths.py", dataclasses.replace(CPU, timeout=2.0, arguments=("teardown",)), pool)
    assert result.outcome == "hang"
    assert [rank.how for rank in result.ranks] == ["completed", "stalled"]
    assert "teardown" in result.message


TORN_DOWN = """
import ctypes
import torch.distributed as dist

dist.init_process_group("gloo")
last = dist.get_rank()
dist.destroy_process_group()
getattr(ctypes.CDLL(None), "raise")(9)
"""


def test_lines_before_a_teardown_that_does_not_return_count(tmp_path: pathlib.Path, pool: Pool) -> None:
    """With NCCL it waits for the peers, and lets nothing of Python run until the process is ended."""
    path = tmp_path / "train.py"
    path.write_text(TORN_DOWN)
    (result,) = launch(path, CPU, pool, Watch({str(path): frozenset({6})}))
    for rank in result.ranks:
        lines = rank.trace.last(trace.Lines)
        assert lines is not None and lines.counts == {str(path): {6: 1}}


def test_a_rank_that_has_not_imported_torch_yet_is_not_stuck(tmp_path: pathlib.Path, pool: Pool) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    time.sleep(3)\n"
        "    raise ValueError('boom')\n"
        "time.sleep(20)\n"
    )
    (result,) = launch(tmp_path / "train.py", dataclasses.replace(CPU, timeout=2.0), pool)
    assert result.outcome == "exception"
    assert [rank.how for rank in result.ranks] == ["exception", "stopped"], result.message


def test_a_rank_that_computes_is_not_stuck(pool: Pool) -> None:
    (result,) = launch("deaths.py", dataclasses.replace(CPU, timeout=5.0, arguments=("busy",)), pool)
    assert result.outcome == "completed", result.message


def test_a_rank_that_sleeps_for_a_set_time_is_not_stuck(tmp_path: pathlib.Path, pool: Pool) -> None:
    """And of two ranks that part, the run ends at once, whatever the timeout."""
    path = tmp_path / "train.py"
    path.write_text(
        "import time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 0:\n"
        "    time.sleep(9)\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 0:\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "dist.barrier()\n"
    )
    (result,) = launch(path, dataclasses.replace(CPU, timeout=8.0), pool)
    first, second = (rank.trace.last(trace.Stall) for rank in result.ranks)
    assert result.outcome == "hang" and first is not None and second is not None
    assert {first.reason, second.reason} == {"mismatch"}, result.message
    assert first.site is not None and first.site.line == 7


@pytest.mark.parametrize(("hangs", "how"), [(True, "spawn"), (False, "fork")])
def test_a_script_that_starts_its_ranks(tmp_path: pathlib.Path, hangs: bool, how: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import sys, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
        "def main(rank, world, store):\n"
        "    torch.cuda.set_device(rank); dist.init_process_group('nccl', store, rank=rank, world_size=world)\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "    if rank == 0 and 'hangs' in sys.argv:\n"
        "        dist.barrier()\n"
        "if __name__ == '__main__':\n"
        "    gpus = torch.cuda.device_count()\n"
        f"    mp.start_processes(main, (gpus, 'file://{tmp_path}/store'), gpus, start_method={how!r})\n"
    )
    options = dataclasses.replace(CPU, arguments=("hangs",) if hangs else ("",))
    (result,) = run(path, options)
    # Whether gloo told rank 0 of the end of its peer, or the watch saw it wait.
    assert result.outcome == ("hang" if hangs else "completed"), result.message
    assert [rank.how for rank in result.ranks] == ["stalled" if hangs else "completed", "completed"]
    missing = [(one.kind, one.absent) for one in examine(result).mismatches]
    assert missing == ([(Kind.MISSING, (1,))] if hangs else [])
    assert sites(result.ranks[0], trace.Collective) == ({4, 6} if hangs else {4})


def test_a_script_that_starts_a_process_for_each_rank_and_sets_its_variables(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import multiprocessing, os, torch, torch.distributed as dist\n"
        "def main(rank):\n"
        "    os.environ.update(RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT='29641')\n"
        "    dist.init_process_group('gloo')\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('fork')\n"
        "    ranks = [context.Process(target=main, args=(rank,)) for rank in range(2)]\n"
        "    for rank in ranks: rank.start()\n"
        "    for rank in ranks: rank.join()\n"
    )
    (result,) = run(path, CPU)
    assert result.outcome == "completed", result.message
    assert [sites(rank, trace.Collective) for rank in result.ranks] == [{5}, {5}]


def test_a_signal_that_ends_a_rank_which_the_script_has_started(tmp_path: pathlib.Path) -> None:
    """It leaves no time to note that."""
    path = tmp_path / "train.py"
    path.write_text(
        "import os, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
        "def main(rank, world, store):\n"
        "    dist.init_process_group('gloo', store, rank=rank, world_size=world)\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "    if rank == 1:\n"
        "        os.kill(os.getpid(), 9)\n"
        "    dist.barrier()\n"
        "if __name__ == '__main__':\n"
        f"    mp.start_processes(main, (2, 'file://{tmp_path}/store'), 2, start_method='fork')\n"
    )
    (result,) = run(path, CPU)
    assert result.outcome == "crash" and result.ranks[1].signal == "SIGKILL", result.message
    assert result.ranks[0].how != "signal"


def test_a_script_that_fails_before_it_starts_its_ranks(tmp_path: pathlib.Path) -> None:
    """It ran as far as it can: once."""
    path = tmp_path / "train.py"
    path.write_text(
        "import pathlib, torch.multiprocessing as mp\n"
        f"pathlib.Path('{tmp_path}/runs').open('a').write('.')\n"
        "import not_installed_here\n"
        "mp.spawn(print, nprocs=2)\n"
    )
    (result,) = run(path, CPU)
    assert result.outcome == "exception" and "pip install not_installed_here" in lacking([result])
    assert (tmp_path / "runs").read_text() == "."


def test_a_launch_that_dies_is_started_anew_for_the_runs_that_are_left(tmp_path: pathlib.Path) -> None:
    target = resolve(str(TARGETS / "clean.py"), CPU)
    with Launcher(target, dataclasses.replace(CPU, wraps=("ddp",), traces=tmp_path)) as launcher:
        plan = launcher.probe()
        (first,) = launcher.run(plan, Watch())
        supervisor = json.loads((tmp_path / "ddp" / "rank0.pid").read_text())["supervisor"]
        os.kill(supervisor, signal.SIGKILL)
        (second,) = launcher.run(plan, Watch())
    assert first.outcome == second.outcome == "completed", second.message


def test_of_four_ranks_the_last_one_is_missing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]\n"
        "dist.all_reduce(torch.ones(1), group=pair)\n"
        "if dist.get_rank() < dist.get_world_size() - 1:\n"
        "    dist.all_reduce(torch.ones(1))\n"
    )
    options = dataclasses.replace(CPU, nproc=4, timeout=8.0)
    (result,) = run(path, options)
    assert result.outcome == "hang", result.message
    # gloo tells some of those that wait, and the first that ends ends the others.
    assert {rank.how for rank in result.ranks[:3]} <= {"stalled", "stopped"} and result.ranks[3].how == "completed"
    assert [(one.kind, one.absent) for one in examine(result).mismatches] == [(Kind.MISSING, (3,))]


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = dataclasses.replace(CPU, wraps=("ddp",), launcher=(f"--master-port={taken.getsockname()[1]}",))
        (result,) = run(TARGETS / "clean.py", options)
    assert result.outcome == "port_in_use"
    assert [rank.how for rank in result.ranks] == ["not_started", "not_started"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_after_ctrl_c_or_a_kill(tmp_path: pathlib.Path, number: int) -> None:
    how = "hang" if number == signal.SIGKILL else "children"
    code = (
        "from ddp_lint.verify.launch import Launcher; from ddp_lint.verify.target import resolve\n"
        "from ddp_lint.verify.options import Options, Watch\n"
        f"o = Options(device='cpu', timeout=60.0, arguments=({how!r},))\n"
        f"with Launcher(resolve({str(TARGETS / 'deaths.py')!r}, o), o, print) as launcher:\n"
        "    launcher.run(launcher.probe(), Watch())"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL) as parent:
        until = time.monotonic() + 180
        while time.monotonic() < until and not list(tmp_path.glob("*/script/rank1.ready")):
            time.sleep(0.1)
        parent.send_signal(number)
        parent.wait(120)
    until = time.monotonic() + (60 if number == signal.SIGKILL else 0)
    while _processes_below(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _processes_below(tmp_path)
    assert number == signal.SIGKILL or not list(tmp_path.glob("ddp-lint*")), "who is killed cannot clean up its folder"


def test_a_script_that_runs_for_long_is_told_how_to_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp_lint.verify.launch._PATIENCE", -1.0)
    told: list[str] = []
    launcher = Launcher(resolve(str(TARGETS / "script.py"), CPU), CPU, told.append)
    live = cast(Live, SimpleNamespace(poll=lambda: None))
    endless = Spec(directory="", kind="script", path="", root="")
    for spec in (endless, dataclasses.replace(endless, steps=3), dataclasses.replace(endless, kind="model")):
        poll = launcher._watched(live, spec)
        poll()
        poll()
    (text,) = told
    assert "--steps N ends it after N optimizer steps" in text


def _processes_below(folder: pathlib.Path) -> list[int]:
    """Processes of runs whose workspace lay in the folder."""
    found = []
    for path in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            environment = (path / "environ").read_bytes() if path.name.isdigit() else b""
            if TOKEN.encode() in environment and str(folder).encode() in environment:
                found.append(int(path.name))
    return found


def test_a_model_that_cannot_be_built_says_what_to_add(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text(
        "from torch import nn\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self, grammar, *, width=4):\n"
        "        super().__init__(); self.l = nn.Linear(width, width); self.g = grammar.rules\n"
        "    def forward(self, tree, depth):\n"
        "        return self.l(tree.leaves[depth])\n"
    )
    with pytest.raises(UsageError) as error:
        run(path, CPU)
    message = str(error.value)
    assert "def ddp_lint_example():" in message and "(grammar, *, width=4)" in message
    assert (
        "model = Odd(grammar=...)" in message
        and "# inputs: tree, depth" in message
        and "return model, (..., ...)" in message
    )


ENDLESS = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.05)
"""
BREAKS_AN_OBSERVER = """
import torch
import torch.distributed as dist
from ddp_lint.verify.child.observers.hashes import Hashes

dist.init_process_group("gloo")
Hashes.{what} = lambda *_: {{}}["of no program"]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
except KeyError:
    pass
"""


def test_a_run_with_a_limit_ends_at_it(tmp_path: pathlib.Path, pool: Pool) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    (result,) = launch(tmp_path / "train.py", dataclasses.replace(CPU, limit=2.0), pool)
    assert result.outcome == "slow" and "given up after 2 s" in result.message
    assert [rank.how for rank in result.ranks] == ["stopped", "stopped"]


@pytest.mark.parametrize("what", ["before_step", "wrapped"])
def test_what_an_observer_raises_says_nothing_of_the_program(tmp_path: pathlib.Path, pool: Pool, what: str) -> None:
    (tmp_path / "train.py").write_text(BREAKS_AN_OBSERVER.format(what=what))
    with pytest.raises(InternalError, match=r"ddp-lint failed, not the target: KeyError: 'of no program'"):
        launch(tmp_path / "train.py", CPU, pool)

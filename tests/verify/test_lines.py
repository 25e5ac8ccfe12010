"""Line counts and the outcomes of guards, on whatever Python runs the tests (`sys.monitoring` or `sys.settrace`)."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from ddp_lint.verify import trace

WATCHED = """\
def run(n):
    for i in range(n):
        if i % 2:
            x = 1
        if i == 3: return i
    try:
        int("x")
    except ValueError:
        y = 1
        y = 2
    while n > 0:
        n -= 1
    return n
"""
PROGRAM = """
import sys
from ddp_lint.verify.child.observers.lines import Lines
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.spec import Spec
folder, path = sys.argv[1:]
lines, guards = {path: (4, 10, 12)}, {path: (3, 5, 11)}
spec = Spec(directory=folder, kind="script", path=path, root=folder, lines=lines, guards=guards)
lines = Lines(Recorder(spec))
lines.install()
sys.path.insert(0, folder)
import watched
watched.run(2)
lines.recorder.phase = "forward"
watched.run(5)
lines.finish()
"""
UNDER_WAY = """
def main(lines):
    lines.install()
    x = 1
    x = 2
"""


def test_the_lines_of_functions_that_are_under_way_count(tmp_path: pathlib.Path) -> None:
    """A program that starts its own ranks is observed from within the function that a rank runs."""
    path = tmp_path / "watched.py"
    path.write_text(UNDER_WAY)
    program = PROGRAM.replace("(4, 10, 12)", "(5,)").replace("lines.install()", "").replace("watched.run(2)", "")
    program = program.replace("watched.run(5)", "watched.main(lines)")
    subprocess.run([sys.executable, "-c", program, str(tmp_path), str(path)], check=True)
    last = trace.Trace.load(tmp_path, 0).last(trace.Lines)
    assert last is not None and last.counts[str(path)] == {5: 1}


def test_a_test_of_a_tensor_shows_its_number_where_it_reads_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "watched.py"
    lines = ["import torch", "def run(n):", "    loss = torch.tensor(n + 0.5)"]
    program = PROGRAM.replace("(3, 5, 11)", "(4,)")
    for test in ("if torch.isfinite(loss): n = 0", "if n > 9 and loss > 1: n = 0", "if loss is None: n = 0"):
        path.write_text("\n".join([*lines, f"    {test}", "    return n", ""]))
        subprocess.run([sys.executable, "-c", program, str(tmp_path), str(path)], check=True)
    found = [event.values[str(path)][4] for event in trace.Trace.load(tmp_path, 0).of(trace.Lines)]
    assert [values.get("loss") for values in found] == ["5.5", None, None]


def test_outcomes_of_a_guard_in_another_order_have_another_digest(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "watched.py"
    found = []
    for test in ("i % 2", "not i % 2", "i % 2 == 1"):
        path.write_text(WATCHED.replace("i % 2", test))
        subprocess.run([sys.executable, "-c", PROGRAM.replace("(5)", "(2)"), str(tmp_path), str(path)], check=True)
        last = trace.Trace.load(tmp_path, 0).last(trace.Lines)
        assert last is not None and last.guards[str(path)][3] == (2, 2)
        found.append(last.orders[str(path)][3])
    assert found[0] == found[2] != found[1]


def test_counts_guards_and_swallowed_exceptions(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "watched.py"
    path.write_text(WATCHED)
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), str(path)], check=True)
    events = trace.Trace.load(tmp_path, 0)
    last = events.last(trace.Lines)
    assert last is not None
    assert last.counts[str(path)] == {4: 3, 10: 1, 12: 2}
    assert last.guards[str(path)] == {3: (3, 3), 5: (1, 5), 11: (2, 1)}
    assert last.values[str(path)][11] == {"n": "0"}
    assert last.early[str(path)] == (11,), "the others were tested when a model had run, too"
    assert [(event.type, event.where) for event in events.of(trace.Raised)] == [("ValueError", "caught")]


BESIDE = """
import threading, time
emit, started, written = lines.recorder.emit, threading.Event(), threading.Event()
def late(*args, **kwargs):
    if threading.current_thread() is not threading.main_thread():
        started.set()
        written.wait(0.3)
    emit(*args, **kwargs)
    written.set()
lines.recorder.emit = late
watchdog = threading.Thread(target=lines.flush)
watchdog.start()
started.wait()
watched.run(5)
"""


def test_the_last_counts_are_written_last(tmp_path: pathlib.Path) -> None:
    """The watchdog writes them every second, at any time: what it has read may be older than what the end writes."""
    path = tmp_path / "watched.py"
    path.write_text(WATCHED)
    program = PROGRAM.replace("watched.run(5)\n", BESIDE)
    subprocess.run([sys.executable, "-c", program, str(tmp_path), str(path)], check=True)
    events = [event.counts[str(path)][4] for event in trace.Trace.load(tmp_path, 0).of(trace.Lines)]
    assert events == [1, 3]


ASKING = """
import statistics
class Stop:
    def good(self, value):
        return value > 1
def measure(n):
    return n / 2
def run(n):
    stop = Stop()
    measure(7)
    statistics.mean([8])
    if stop.good(measure(n)) and statistics.mean([n, n]) > 1:
        n += 1
    return n
"""


def test_what_the_functions_of_a_guard_returned_is_recorded(tmp_path: pathlib.Path) -> None:
    """Those of other files, too, which may have returned before; calls elsewhere do not count."""
    path = tmp_path / "watched.py"
    path.write_text(ASKING)
    program = PROGRAM.replace("(3, 5, 11)", "(12,)").replace("watched.run(5)", "")
    program = program.replace("watched.run(2)", "watched.run(5); watched.measure(9)")
    subprocess.run([sys.executable, "-c", program, str(tmp_path), str(path)], check=True)
    last = trace.Trace.load(tmp_path, 0).last(trace.Lines)
    assert last is not None
    assert last.values[str(path)][12] == {"n": "5", "measure()": "2.5", "good()": "True", "mean()": "5"}

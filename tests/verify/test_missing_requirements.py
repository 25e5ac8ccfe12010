"""What a target lacks, what was not run, and the exit status that follows; all without a launch."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
import torch

from ddp_lint.output import Sources
from ddp_lint.verify import frames
from ddp_lint.verify.discoveries import discover
from ddp_lint.verify.missing_requirements import lacking, last_lines, missing_module
from ddp_lint.verify.options import Last
from ddp_lint.verify.report import render
from ddp_lint.verify.results import Discovery, Examined, Verification
from ddp_lint.verify.trace import TENSOR_PARALLEL, Call, Event, Exit, Frame, Hashes, Mapped, Note, Phase, Raised

from .traces import call, run

WHERE = {"torch": "2.13.0", "device": "cpu", "backend": "gloo", "nproc": 2, "wraps": ["script"]}


def test_frames_of_ours_are_not_what_a_rank_said() -> None:
    ours = frames.__file__
    said = [
        "Traceback (most recent call last):",
        f'  File "{ours}", line 54, in _run_script',
        "    return runpy.run_path(spec.path)",
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^",
        '  File "<frozen runpy>", line 291, in run_path',
        '  File "/p/train.py", line 3, in <module>',
        "    fail()",
        f'  File "{ours}", line 7, in __torch_dispatch__',
        "    result = func(*args)",
        "RuntimeError: bad",
    ]
    (rank,) = run([], how=["exit"]).run.ranks
    lines = [line.strip() for line in last_lines(dataclasses.replace(rank, log="\n".join(said))).splitlines()]
    assert lines == [said[0], said[5].strip(), "fail()", said[9]]


def test_the_warnings_of_libraries_are_not_what_a_rank_said() -> None:
    library, user = str(pathlib.Path(torch.__file__).parent / "nn.py"), "/p/train.py"
    log = f"{library}:3: UserWarning: a view\n  output = hook(output)\nskipping\n{user}:5: UserWarning: odd\n  x = 1\n"
    outcome = dataclasses.replace(run([], []).run.ranks[0], log=log)
    assert last_lines(outcome).split("\n") == ["  skipping", f"  {user}:5: UserWarning: odd", "    x = 1"]


def raised(kind: str, message: str) -> list[Event]:
    return [Raised(type=kind, message=message, frames=(Frame("/p/train.py", 3, "<module>"),))]


def ended(events: list[Event], how: str, *, log: str = "", status: int = 1) -> Examined:
    """Both ranks of a script ended so."""
    examined = run(events, events, wrap="script", outcome=how, how=[how] * 2)
    ranks = tuple(dataclasses.replace(rank, log=log, exit=status) for rank in examined.run.ranks)
    return dataclasses.replace(examined, run=dataclasses.replace(examined.run, ranks=ranks))


def test_an_extension_that_cannot_be_built_is_no_verdict() -> None:
    """Another rank waits for the file that is never made; the same error of the target's own code is one."""
    inner = "/site/torch/utils/cpp_extension.py:2841 _join_cuda_home"
    (error,) = raised("OSError", "CUDA_HOME environment variable is not set.")
    assert isinstance(error, Raised)
    said = lacking([ended([dataclasses.replace(error, inner=inner)], "exception").run])
    assert said.startswith("OSError: CUDA_HOME") and "lacks a compiler for it, or the CUDA toolkit" in said
    assert not lacking([ended([dataclasses.replace(error, inner="/p/train.py:3 <module>")], "exception").run])


@pytest.mark.parametrize(
    ("kind", "message", "says"),
    [
        ("ModuleNotFoundError", "No module named 'yaml'", "pip install pyyaml"),
        ("ModuleNotFoundError", "No module named 'sklearn.metrics'", "pip install scikit-learn"),
        ("URLError", "<urlopen error [Errno -2] Name or service not known>", "needs a download"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'data.bin'", "data.bin' (/p/train.py:3)"),
    ],
)
def test_what_is_not_there(kind: str, message: str, says: str) -> None:
    assert says in lacking([ended(raised(kind, message), "exception").run])


def test_a_package_that_does_not_work() -> None:
    """mpi4py without an MPI library, a build for another torch: no mistake of the target's."""
    (event,) = raised("OSError", "cannot load libmpi.so")
    assert isinstance(event, Raised) and not lacking([ended([event], "exception").run])
    broken = dataclasses.replace(event, importing=True, inner="/lib/mpi4py/__init__.py:9 <module>")
    assert "does not work here (raised at /lib/mpi4py" in lacking([ended([broken], "exception").run])


def test_a_name_that_an_installed_package_no_longer_has(tmp_path: pathlib.Path) -> None:
    message = f"cannot import name 'AdamW' from 'torch.nn' ({torch.nn.__file__})"
    assert "torch is installed, and has no AdamW" in lacking([ended(raised("ImportError", message), "exception").run])
    own = message.replace(str(torch.nn.__file__), str(tmp_path / "nn.py"))
    assert "another version" not in lacking([ended(raised("ImportError", own), "exception").run])


@pytest.mark.parametrize(("passed", "says"), [(True, "data.bin"), (False, "")])
def test_a_file_that_a_rank_misses_which_is_ahead_of_the_others(passed: bool, says: str) -> None:
    """A rank that torchrun ends on the way there would have missed it too; one that is elsewhere may make it."""
    seeded = Call(name="manual_seed", frames=(Frame("/p/train.py", 2, "set_seed"),))
    missed = raised("FileNotFoundError", "data.bin")
    examined = run(
        [seeded], [*([seeded] if passed else []), *missed], wrap="script", outcome="exception",
        how=["stopped", "exception"],
    )  # fmt: skip
    first = dataclasses.replace(examined.run.ranks[0], last=Last(frame=seeded.frames[0]))
    examined = dataclasses.replace(
        examined, run=dataclasses.replace(examined.run, ranks=(first, examined.run.ranks[1]))
    )
    assert says in lacking([examined.run]) and bool(lacking([examined.run])) is passed
    assert ["only rank 1" in found.cause for found in discover([examined], [])] == [not passed]


def test_the_targets_own_message() -> None:
    log = "usage: train.py [-h] --data DATA\ntrain.py: error: the following arguments are required: --data\n"
    examined = ended([], "exit", log=log, status=2)
    assert "the following arguments are required: --data" in lacking([examined.run])
    text = render(Verification("train.py", WHERE, runs=(examined,), lacks=lacking([examined.run])), "full", Sources())
    assert text.count("arguments are required") == 1 and "the target could not run; 2 ranks" in text


def test_a_program_that_becomes_another_one() -> None:
    left: list[Event] = [Exit(how="os.exec", frames=(Frame("/p/train.py", 7, "<module>"),))]
    assert "another program by os.exec*() (/p/train.py:7)" in lacking([ended(left, "exit", status=0).run])


def test_errors_of_the_program_are_no_lack() -> None:
    assert not lacking([ended(raised("ValueError", "shapes differ"), "exception").run])
    absent = raised("FileNotFoundError", "checkpoint.pt")
    assert not lacking([ended([call(1), *absent], "exception").run]), "on its way, after it communicated"
    wrap = dataclasses.replace(call(1, "broadcast"), issued_by="ddp")
    assert lacking([ended([wrap, *absent], "exception").run]), "DDP has made the replicas equal, and nothing trained"
    assert not lacking([ended([wrap, Phase(phase="step"), *absent], "exception").run])
    one_rank = run(raised("FileNotFoundError", "x"), [call(1)], wrap="script", outcome="exception",
                   how=["exception", "completed"])  # fmt: skip
    assert not lacking([one_rank.run])
    early = run(raised("FileNotFoundError", "x"), [], wrap="script", outcome="exception",
                how=["exception", "stopped"])  # fmt: skip
    assert not lacking([early.run]), "the other rank was elsewhere, maybe about to make it"
    assert not lacking([])


def test_a_status_after_the_group_came_up_is_a_result() -> None:
    events: list[Event] = [Call(name="init_process_group")]
    assert not lacking([ended(events, "exit", status=3).run])


def test_the_pip_line() -> None:
    assert missing_module("cv2").startswith("pip install opencv-python ")
    assert missing_module("package.part").startswith("pip install package ")
    assert missing_module("Bio.SeqIO").startswith("pip install biopython ")
    assert missing_module("google.protobuf").startswith("pip install protobuf ")
    assert missing_module("google").startswith("pip install protobuf ")
    assert "is not on PyPI" in missing_module("clip") and "github.com/openai/CLIP" in missing_module("clip")
    assert missing_module("yaml.none").lower().startswith("yaml (of pyyaml) is installed, and has no none: ")
    assert missing_module("torch._six") == "torch is installed, and has no _six: the target needs another version of it"


def test_exit_status_tells_what_did_not_run() -> None:
    clean = run([call(1)], [call(1)])
    silent = run([], [], wrap="script")
    assert Verification("t", WHERE, runs=(clean,)).exit_code == 0
    left = Verification("t", WHERE, runs=(clean,), left_out={"Net": "cannot be built"})
    assert left.exit_code == 2 and left.not_run == ("Net was left out",)
    found = dataclasses.replace(left, discovered=(Discovery("exception", "x"),))
    assert found.exit_code == 1, "what was found counts more than what was not run"
    assert Verification("t", WHERE, runs=(silent,)).exit_code == 2
    step = dataclasses.replace(clean, run=dataclasses.replace(clean.run, not_run="training_step: no batch"))
    assert Verification("t", WHERE, runs=(step,)).not_run == ("the model: training_step: no batch",)
    assert "Net was left out" in render(left, "full", Sources()).splitlines()[-1]
    assert "note: Net was left out: cannot be built" in render(left, "full", Sources())


@pytest.mark.parametrize(
    ("line", "kind", "message", "says"),
    [
        ("assert world_size == 4", "AssertionError", "", "not run on this number of ranks (`world_size == 4`): pass"),
        ("assert loss > 0", "AssertionError", "", ""),
        (
            "config = open(sys.argv[1])",
            "IndexError",
            "list index out of range",
            "takes arguments that it was not given",
        ),
        ("_, a, b = sys.argv", "ValueError", "not enough values to unpack (expected 3, got 1)", "takes arguments"),
        ("n = int(sys.argv[1])", "ValueError", "invalid literal for int() with base 10: 'x'", ""),
        ("x = batch[1]", "IndexError", "list index out of range", ""),
        ("data = os.environ['DATA']", "KeyError", "'DATA'", "the environment variable DATA: set it"),
        ("rank = os.environ['LOCAL_RANK']", "KeyError", "'LOCAL_RANK'", ""),
        ("data = table['DATA']", "KeyError", "'DATA'", ""),
    ],
)
def test_arguments_and_variables_that_a_program_asks_for_are_no_verdict(
    tmp_path: pathlib.Path, line: str, kind: str, message: str, says: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import os, sys\n{line}\n")
    event = Raised(type=kind, message=message, frames=(Frame(str(path), 2, "<module>"),))
    said = lacking([ended([event], "exception").run])
    assert says in said and bool(said) is bool(says)


def test_a_script_that_shows_nothing_says_what_was_compared() -> None:
    def hashes(step: int, wrap: str = "ddp") -> Hashes:
        return Hashes(what="parameters", when="after_step", wrap=wrap, update=step, digests={"w": "a"}, step=step)

    plain = render(Verification("t", WHERE, runs=(run([call(1)], [call(1)], wrap="script"),)), "full", Sources())
    assert "note: the ranks' collectives line up (1 on each); parameters were not compared, because no" in plain
    rank = [call(1), hashes(1), call(1), hashes(2)]
    text = render(Verification("t", WHERE, runs=(run(rank, rank, wrap="script"),)), "full", Sources())
    assert "(2 on each); parameters were compared 2 times, up to optimizer step 2" in text
    rank = [call(1), hashes(1, TENSOR_PARALLEL)]
    text = render(Verification("t", WHERE, runs=(run(rank, rank, wrap="script"),)), "full", Sources())
    assert "parameters that are not split were compared 1 time, up to optimizer step 1" in text


def test_notes_say_what_stood_in_for_what() -> None:
    site = (Frame("/p/train.py", 7, "main"),)
    events: list[Event] = [
        Mapped(requested="nccl", actual="gloo", frames=site),
        Note(text="ended after --steps 5"),
        call(1),
    ]
    examined = run(events, events)
    described = dataclasses.replace(
        examined.run, inputs="forward(float32[4, 6]), loss: the output", left_out=("c.weight",)
    )
    text = render(Verification("t", WHERE, runs=(dataclasses.replace(examined, run=described),)), "full", Sources())
    assert "note: nccl ran as gloo (/p/train.py:7); --no-shim leaves the script as it is" in text
    assert text.count("note: ended after --steps 5") == 1
    assert "note: forward(float32[4, 6]), loss: the output" in text
    assert "not trained, because the guessed inputs do not reach it: c.weight" in text

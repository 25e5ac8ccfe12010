"""What can be handed to `ddp-lint diagnose`, and what it prints: as a user runs it."""

import gzip
import json
import os
import pathlib
import subprocess
import sys
import threading

import jsonschema
import pytest
from click.testing import CliRunner

from ddp_lint.cli import main
from tests.diagnose.samples import SAMPLES

ROOT = pathlib.Path(__file__).parents[2]
LOG = next(sample[-1] for sample in SAMPLES if sample[0] == "a broken GPU")
TRACE = """Traceback (most recent call last):
  File "/job/train.py", line 3, in main
    {code}
{error}
"""


def run(*arguments, stdin=None):
    return CliRunner().invoke(main, ["diagnose", "--no-source", *map(str, arguments)], input=stdin)


def answer(*arguments, stdin=None):
    result = run("--output-format", "json", *arguments, stdin=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return json.loads(result.stdout)


def told(found):
    return found["kind"], found["culprit_rank"]


def test_the_answer_is_short_and_in_order(tmp_path):
    log = tmp_path / "job.log"
    log.write_text(LOG)
    result = run(log)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("ROOT  rank 5  /home/u/train.py:7 in step")
    assert f"{log}:4:" in result.output
    order = [
        line.split(":")[0].strip()
        for line in lines
        if line.split(":")[0].strip() in ("follows", "cause", "fix", "next")
    ]
    assert order == ["follows", "cause", "fix", "next"]


def test_a_pipe_that_is_given_by_name_is_read(tmp_path):
    """As a shell hands it over: `ddp-lint diagnose <(kubectl logs job)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(LOG,), daemon=True)
    writer.start()
    assert told(answer(pipe)) == ("hardware-ecc", 5)


def test_a_pipe_in_a_folder_is_passed_by(tmp_path):
    os.mkfifo(tmp_path / "pipe.log")  # whoever opened it would wait for ever
    (tmp_path / "job.log").write_text(LOG)
    assert told(answer(tmp_path)) == ("hardware-ecc", 5)


@pytest.mark.parametrize("form", ["plain", "gzip", "crlf", "utf-16", "colours", "kubernetes", "rubbish", "no end"])
def test_forms_of_one_log(tmp_path, form):
    log = tmp_path / "job.log"
    data = LOG.encode()
    if form == "gzip":
        data = gzip.compress(data)
    elif form == "crlf":
        data = data.replace(b"\n", b"\r\n")
    elif form == "utf-16":
        data = LOG.encode("utf-16")
    elif form == "colours":
        data = b"".join(b"\x1b[31m" + line + b"\x1b[0m\n" for line in data.splitlines())
    elif form == "kubernetes":
        data = b"".join(b"2024-05-01T10:00:00.123456789Z stderr F " + line + b"\n" for line in data.splitlines())
    elif form == "rubbish":
        data = bytes(range(256)) * 50 + b"\n" + data + b"\xff\xfe\x00" * 999
    elif form == "no end":
        data = data.rstrip(b"\n")
    log.write_bytes(data)
    assert told(answer(log)) == ("hardware-ecc", 5)


def test_standard_input_of_a_pipe():
    command = [sys.executable, "-m", "ddp_lint", "diagnose", "-", "--no-source"]
    result = subprocess.run(command, input=LOG, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith("ROOT  rank 5")
    assert "standard input:4:" in result.stdout


@pytest.mark.parametrize(
    "name",
    ["run/attempt_0/{}/stderr.log", "slurm-77_{}.out", "rank{}.log", "out.{}.txt"],
    ids=["torchrun --log-dir", "SLURM %t", "rankN", "numbers from 0 on"],
)
def test_a_file_for_each_rank(tmp_path, name):
    for rank in range(3):
        log = tmp_path / name.format(rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        error = "KeyError: 'dog'" if rank == 2 else "RuntimeError: [pair.cc:553] Connection closed by peer [::1]:1"
        log.write_text(TRACE.format(code="step()", error=error))
    found = answer(tmp_path)
    assert told(found) == ("python-exception", 2)
    assert len(found["secondary"]) == 2


def test_the_error_file_of_record(tmp_path):
    folder = tmp_path / "attempt_0" / "1"
    folder.mkdir(parents=True)
    message = {"message": "x", "extraInfo": {"py_callstack": TRACE.format(code="x", error="KeyError: 'dog'")}}
    (folder / "error.json").write_text(json.dumps({"message": message}))
    found = answer(tmp_path)
    assert found["kind"] == "python-exception"
    assert found["line"] == "train.py:3"


def test_stacks_of_processes_that_hang(tmp_path):
    waits = """Process {pid}: python train.py --local_rank={rank}
Python v3.10.12 (/usr/bin/python3.10)

Thread {pid} (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2501)
    wrapper (torch/distributed/c10d_logger.py:75)
    train (train.py:88)
    <module> (train.py:120)
"""
    saves = waits.replace("    all_reduce (torch/distributed/distributed_c10d.py:2501)\n", "").replace(
        "    wrapper (torch/distributed/c10d_logger.py:75)\n", "    save (train.py:41)\n"
    )
    for rank in range(3):
        text = (saves if rank == 1 else waits).format(pid=100 + rank, rank=rank)
        (tmp_path / f"spy_{100 + rank}.txt").write_text(text)
    found = answer(tmp_path)
    assert (found["verdict"], found["culprit_rank"], found["line"]) == ("HANG", 1, "train.py:41")


def test_what_cannot_be_read(tmp_path):
    result = run(tmp_path / "none.log")
    assert result.exit_code == 2
    assert "no such file" in result.stderr
    (tmp_path / "half.gz").write_bytes(gzip.compress(LOG.encode() * 99)[:200])
    result = run(tmp_path / "half.gz")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert run(tmp_path / "empty").exit_code == 2


def test_one_damaged_file_does_not_lose_the_others(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(LOG.encode() * 99)[:200])
    (tmp_path / "b.log").write_text(LOG)
    result = run(tmp_path)
    assert result.exit_code == 0
    assert result.stdout.startswith("ROOT  rank 5")
    assert "a.gz" in result.stderr


def test_nothing_found_says_what_to_collect(tmp_path):
    (tmp_path / "job.log").write_text("epoch 1\nepoch 2\n")
    result = run(tmp_path / "job.log")
    assert result.exit_code == 1
    assert result.stdout.startswith("UNKNOWN")
    assert "TORCH_FR_BUFFER_SIZE" in result.stdout


def test_json_keeps_its_contract(tmp_path):
    schema = json.loads((ROOT / "docs" / "diagnose.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    for name, *_, log in SAMPLES:
        (tmp_path / "job.log").write_text(log)
        try:
            jsonschema.validate(answer(tmp_path / "job.log"), schema)
        except jsonschema.ValidationError as e:
            raise AssertionError(name) from e


def test_html_escapes_what_the_log_holds(tmp_path):
    (tmp_path / "job.log").write_text("[rank1]: ValueError: <script>alert(1)</script>\n" + LOG)
    result = run(tmp_path / "job.log", "--output-format", "html", "-o", tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert result.exit_code == 0
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "rank 5" in page


def test_terminal_sequences_of_a_log_are_not_passed_on(tmp_path):
    (tmp_path / "job.log").write_text("[rank1]: ValueError: \x1b]0;owned\x07 bad \x1b[2J\n")
    assert "\x1b" not in run(tmp_path / "job.log").output


def test_marks_of_direction_and_numbers_without_an_end(tmp_path):
    frame = f'  File "a.py", line {"9" * 5000}, in f\n    f()\n'
    (tmp_path / "job.log").write_text(
        f"Traceback (most recent call last):\n{frame}ValueError: \u202ebad\u2066 \x9b31m\n"
    )
    result = run(tmp_path / "job.log")
    assert result.exit_code in (0, 1)
    assert not {"\u202e", "\u2066", "\x9b"} & set(result.output)


def test_verbose_lists_all_events(tmp_path):
    (tmp_path / "job.log").write_text(LOG)
    output = run(tmp_path / "job.log", "-v").output
    assert "rank 4" in output
    assert "secondary" in output


def test_an_error_text_alone():
    result = CliRunner().invoke(
        main, ["diagnose", "--text", "RuntimeError: Expected to mark a variable ready only once."]
    )
    assert result.exit_code == 0
    assert "use_reentrant=False" in result.output
    assert CliRunner().invoke(main, ["diagnose", "--text", "all is well"]).exit_code == 1


def test_large_logs_are_skimmed_and_the_error_is_found(tmp_path):
    lines = "".join(f"step {n} of the training, all is well and nothing to see\n" for n in range(400_000))
    (tmp_path / "big.log").write_text(lines + LOG + lines)
    found = answer(tmp_path / "big.log")
    assert told(found) == ("hardware-ecc", 5)
    assert found["evidence"][0]["line"] == 400_004
    assert found["lines"] == 800_000 + LOG.count("\n")


TRACEBACK = """{prefix}Traceback (most recent call last):
{prefix}  File "/x/data.py", line 7, in load
{prefix}    return read(path)
{prefix}OSError: sample {n} cannot be read
"""


def test_tracebacks_that_repeat_themselves_hide_no_other_one(tmp_path):
    repeated = [TRACEBACK.format(prefix=f"[rank{n % 8}]: ", n=n) for n in range(60_000)]
    at = sum(text.count("\n") for text in repeated[:50_000])
    (tmp_path / "big.log").write_text("".join((*repeated[:50_000], LOG, *repeated[50_000:])))
    found = answer(tmp_path / "big.log")
    assert ("ecc", at + 4) in {(event["signature"], event["line"]) for event in found["events"]}
    assert max(event["count"] for event in found["events"]) < 20_000  # the others were passed by


def test_ranks_that_say_the_same_are_all_heard(tmp_path):
    filler = "".join(f"step {n} of the training, all is well and nothing to see\n" for n in range(100_000))
    lines = "".join(
        f"[E ProcessGroupNCCL.cpp:475] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={7 if rank == 900 else 8}, OpType=ALLREDUCE)\n"
        for rank in range(1024)
    )
    (tmp_path / "big.log").write_text(filler + lines)
    found = answer(tmp_path / "big.log")
    assert found["culprit_rank"] == 900

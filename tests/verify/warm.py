"""`ddp-lint verify` many times over, at the cost of one launch.

`python -m tests.verify.warm` reads a folder and arguments from each line of its standard input (JSON) and answers with
the exit status and the report.

All is as in a process of its own but for what comes up once: the interpreter, the import of torch, torchrun.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from ddp_lint.cli import main
from ddp_lint.verify import starting
from ddp_lint.verify.options import Options
from ddp_lint.verify.pool import Pool

ROOT = pathlib.Path(__file__).parents[2]
OPTIONS = ("--device", "cpu", "--output-format", "json", "-q")
#: Seconds that one verification may take.
LIMIT = 300


class Warm:
    """The process; started by the first call, and again when it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def verify(self, folder: pathlib.Path, *arguments: str) -> tuple[int, dict[str, Any]]:
        process = self._process or self._started()
        assert process.stdin is not None and process.stdout is not None
        watch = threading.Timer(LIMIT, process.kill)
        watch.start()
        try:
            print(json.dumps([str(folder), *OPTIONS, *arguments]), file=process.stdin, flush=True)
            answer = process.stdout.readline()
        finally:
            watch.cancel()
        if not answer:
            self.close()
        assert answer, "the process ended"
        status, report = json.loads(answer)
        assert report is not None, status
        return status, report

    def _started(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.verify.warm"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)
        return self._process

    def close(self) -> None:
        atexit.unregister(self.close)
        process, self._process = self._process, None
        if process is not None:
            process.communicate()


verify = Warm().verify


def serve() -> None:
    with tempfile.TemporaryDirectory() as folder, Pool(pathlib.Path(folder), Options(device="cpu"), "cpu") as pool:

        @contextlib.contextmanager
        def started(_target: str, _options: Options) -> Iterator[Pool]:
            yield pool

        starting.started = started
        for line in sys.stdin:
            where, *arguments = json.loads(line)
            report = pathlib.Path(folder) / "report.json"
            report.unlink(missing_ok=True)
            try:
                with contextlib.chdir(where):
                    main(["verify", "-o", str(report), *arguments])
                status: int | str | None = 0
            except SystemExit as left:
                status = left.code
            print(json.dumps([status, json.loads(report.read_text()) if report.exists() else None]), flush=True)


if __name__ == "__main__":
    serve()

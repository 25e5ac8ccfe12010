"""Runs the target under torchrun, a launch for each model and wrap, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ddp_lint.verify.lifetime import PREFIX, end_with_parent, remove_left_behind
from ddp_lint.verify.options import Options, RunResult, UsageError, Watch
from ddp_lint.verify.outcome import rank_outcome, run_outcome
from ddp_lint.verify.spec import TOKEN, Marks, Spec
from ddp_lint.verify.target import Target

Progress = Callable[[str], None]

SCRIPT = "script"
_STEPS_OF_A_MODEL = 3
#: Seconds that importing torch and meeting at the rendezvous may take on a cold disk.
_START_LIMIT = 120.0
#: Seconds more that the nodes of a job wait for each other.
_NODES_LIMIT = 600.0
#: Seconds for torchrun to end after all its ranks have, or after it was told to.
_GRACE = 10.0
#: Seconds without progress after which its own watchdog (`child/observers/watchdog.py`) ends a rank at the latest.
_WATCHDOG_LIMIT, _WATCHDOG_TIMEOUTS = 90.0, 6


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the probe found: the machine, and how each model is built (`recipes`, by class name).

    `skipped` maps the classes that cannot be built to the reason.
    """

    device: str
    backend: str
    torch: str
    recipes: Mapping[str, Mapping[str, Any]]
    skipped: Mapping[str, str]


def run(
    target: Target,
    options: Options,
    watch: Watch,
    *,
    stimuli: tuple[str, ...] = (),
    plan: Plan | None = None,
    progress: Progress = lambda _: None,
) -> list[RunResult]:
    """One result for each model and wrap (for a script one: its wraps are its own).

    `stimuli` are names of `spec.STIMULI`; `plan` is what `probe` returned, if it ran before. Raises UsageError when
    nothing can be run: no model can be built, or torch is not installed.
    """
    with _workspace(options.traces) as folder:
        plan = plan or probe(target, options, progress=progress)
        results = []
        for model in plan.recipes:
            for wrap in (SCRIPT,) if target.kind == SCRIPT else options.wraps:
                spec = _spec(folder, target, options, watch, plan, model=model, wrap=wrap, stimuli=stimuli)
                results.append(_Launch(spec, options, plan, progress).result())
        return results


def probe(target: Target, options: Options, *, progress: Progress = lambda _: None) -> Plan:
    """Ask one process which device there is and how each model can be built. Raises UsageError."""
    if target.kind == SCRIPT:
        return _plan({"": {}}, {}, options)
    progress("building the model once on one process")
    with _workspace(None) as folder:
        request = {
            "path": str(target.path),
            "root": str(target.root),
            "models": target.models,
            "entry": target.entry,
            "nproc": options.nproc,
            "timeout": max(options.timeout, 10.0),
        }
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        answer_path = folder / "answer.json"
        command = [sys.executable, "-m", "ddp_lint.verify.child.probe", str(folder / "request.json"), str(answer_path)]
        with (folder / "log").open("wb") as log, _processes(folder) as environment:
            child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
            child.wait()
        if not answer_path.is_file():
            raise UsageError(f"{target.path}: building the model ended the process: {_tail(folder / 'log')}")
        answer = json.loads(answer_path.read_text(encoding="utf-8"))
    if "error" in answer:
        raise UsageError(answer["error"])
    if not answer["recipes"]:
        raise UsageError("\n".join(answer["skipped"].values()))
    return _plan(answer["recipes"], answer["skipped"], options)


def _plan(recipes: Mapping[str, Any], skipped: Mapping[str, str], options: Options) -> Plan:
    torch, devices = installed_torch()
    if options.device == "cuda" and devices < options.nproc:
        raise UsageError(
            f"--device cuda --nproc {options.nproc}: {devices} CUDA devices here that torch {torch} can use; "
            "take --device cpu"
        )
    cuda = options.device != "cpu" and devices >= options.nproc
    device, backend = ("cuda", "nccl") if cuda else ("cpu", "gloo")
    return Plan(device=device, backend=backend, torch=torch, recipes=recipes, skipped=skipped)


def installed_torch() -> tuple[str, int]:
    """The version of torch and the number of CUDA devices that it can use, without the seconds of importing it.

    Raises UsageError when it is not installed.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"verify needs torch in this Python ({sys.executable}); pip install 'ddp-lint[verify]'")
    library = pathlib.Path(spec.submodule_search_locations[0], "lib")
    cuda = any((library / name).exists() for name in ("libtorch_cuda.so", "torch_cuda.dll"))
    return importlib.metadata.version("torch"), _cuda_devices() if cuda else 0


def _cuda_devices() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return len([path for path in pathlib.Path("/dev").glob("nvidia*") if path.name[6:].isdigit()])
    return len([line for line in listed.splitlines() if line.startswith("GPU ")])


def _spec(
    folder: pathlib.Path,
    target: Target,
    options: Options,
    watch: Watch,
    plan: Plan,
    *,
    model: str,
    wrap: str,
    stimuli: tuple[str, ...],
) -> Spec:
    several = len(plan.recipes) > 1
    name = "-".join([*([model] if several else []), wrap, *stimuli])
    directory = folder / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return Spec(
        directory=str(directory),
        kind=target.kind,
        path=str(target.path),
        root=str(target.root),
        name=model,
        entry=target.entry,
        arguments=target.arguments,
        wrap=wrap,
        device=plan.device,
        steps=options.steps or (0 if target.kind == SCRIPT else _STEPS_OF_A_MODEL),
        timeout=options.timeout,
        stimuli=stimuli,
        recipe=plan.recipes[model],
        lines={path: tuple(sorted(lines)) for path, lines in watch.lines.items()},
        guards={path: tuple(sorted(lines)) for path, lines in watch.guards.items()},
        graph_breaks=watch.graph_breaks,
        streams=watch.streams,
    )


class _Launch:
    """One torchrun from its start to the end of its last process."""

    def __init__(self, spec: Spec, options: Options, plan: Plan, progress: Progress) -> None:
        self.spec = spec
        self.options = options
        self.plan = plan
        self.progress = progress
        self.directory = pathlib.Path(spec.directory)
        self.marks = Marks(self.directory)
        self.title = self.directory.name

    def result(self) -> RunResult:
        self.progress(f"{self.title}: {self.options.nproc} ranks, {self.plan.backend}")
        started = time.monotonic()
        code = self._run()
        seconds = time.monotonic() - started
        ranks = tuple(rank_outcome(self.directory, rank) for rank in self._ranks())
        outcome, message = run_outcome(ranks, code, self.directory / "torchrun.log")
        self.progress(f"{self.title}: {message} ({seconds:.1f} s)")
        return RunResult(
            name=self.title,
            wrap=self.spec.wrap,
            model=self.spec.name,
            stimuli=self.spec.stimuli,
            outcome=outcome,
            message=message,
            seconds=seconds,
            nproc=self.options.nproc,
            device=self.plan.device,
            backend=self.plan.backend,
            torch=self.plan.torch,
            ranks=ranks,
            directory=self.directory,
            launcher_exit=code,
        )

    def _ranks(self) -> range:
        """The ranks of this machine: those that torchrun numbered, else (none came up) as many as were asked for."""
        numbers = [int(path.name.removeprefix("rank").partition(".")[0]) for path in self.directory.glob("rank*.pid")]
        first = min(numbers, default=0)
        first -= first % self.options.nproc
        return range(first, first + self.options.nproc)

    def _run(self) -> int:
        spec_path = self.directory / "spec.json"
        self.spec.save(spec_path)
        command = [sys.executable, "-m", "torch.distributed.run", *self._torchrun_options()]
        command += ["-m", "ddp_lint.verify.child", str(spec_path)]
        with (self.directory / "torchrun.log").open("wb") as log, _processes(self.directory) as environment:
            if self.plan.device == "cpu":
                environment["CUDA_VISIBLE_DEVICES"] = ""
            launcher = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                # Told to, torchrun ends its ranks: nothing stays when this process is killed.
                preexec_fn=functools.partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - one thread runs here
            )
            return self._wait(launcher)

    def _torchrun_options(self) -> list[str]:
        given = list(self.options.launcher)
        names = {option.partition("=")[0].replace("_", "-") for option in given}
        alone = not names & {"--nnodes", "--node-rank", "--rdzv-backend", "--rdzv-endpoint", "--master-port"}
        if self.options.several_nodes:
            # A node that is through with one launch shall not meet one that is still in it.
            identity = next((option.partition("=")[2] for option in given if option.startswith("--rdzv-id=")), "verify")
            given.append(f"--rdzv-id={identity}-{self.title}")
        return [f"--nproc-per-node={self.options.nproc}", *(["--standalone"] if alone else []), *given]

    def _wait(self, launcher: subprocess.Popen[bytes]) -> int:
        """torchrun's exit code; ends it when its ranks never start, hang where their watchdog cannot end them, or when
        it does not end after they all have."""
        start_limit = time.monotonic() + _START_LIMIT + (_NODES_LIMIT if self.options.several_nodes else 0)
        end_limit = float("inf")
        while (code := launcher.poll()) is None:
            time.sleep(0.05)
            if all(self.marks.has(rank, "exit") for rank in self._ranks()):
                end_limit = min(end_limit, time.monotonic() + _GRACE)
            never = time.monotonic() > start_limit and not any(self.marks.has(rank, "ready") for rank in self._ranks())
            if never or time.monotonic() > end_limit or self._beyond_rescue():
                launcher.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return launcher.wait(_GRACE)
                launcher.kill()
        return code

    def _beyond_rescue(self) -> bool:
        """Every rank that is left hangs where no Python runs: in the teardown of CUDA, or in C with the GIL held."""
        left = [rank for rank in self._ranks() if self.marks.has(rank, "pid") and not self.marks.has(rank, "exit")]
        if not left or not all(map(self._overdue, left)):
            return False
        for rank in left:
            self.marks.set(rank, "overdue")
        return True

    def _overdue(self, rank: int) -> bool:
        last = [self.marks.time(rank, mark) for mark in ("pid", "beat", "dumped", "over")]
        ending = any(last[2:])
        patience = self.spec.timeout if ending else max(_WATCHDOG_TIMEOUTS * self.spec.timeout, _WATCHDOG_LIMIT)
        return time.time() - max(last) > patience + _GRACE


@contextlib.contextmanager
def _workspace(kept: pathlib.Path | None) -> Iterator[pathlib.Path]:
    """The folder for traces: the user's, or one that goes away."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    remove_left_behind(pathlib.Path(tempfile.gettempdir()))
    prefix = f"{PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


@contextlib.contextmanager
def _processes(folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """The environment for the processes of a run; whatever still carries its token afterwards is ended.

    torchrun starts each rank in a session of its own, so that no process group holds them all: the token does.
    """
    token = uuid.uuid4().hex
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = dict(os.environ)
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
    environment.update({TOKEN: token, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"})
    try:
        yield environment
    finally:
        _end_all(token, folder)
        shutil.rmtree(temporary, ignore_errors=True)


def _end_all(token: str, folder: pathlib.Path) -> None:
    """SIGKILL every process that carries the token, until none is left (each may have started others meanwhile)."""
    for _ in range(50):
        alive = _carriers(token) if pathlib.Path("/proc/self/environ").exists() else _recorded(folder)
        if not alive:
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _carriers(token: str) -> list[int]:
    """Processes with the token in their environment (Linux); zombies have none."""
    mark = f"{TOKEN}={token}".encode()
    found = []
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes():
                    found.append(int(path.name))
    return found


def _recorded(folder: pathlib.Path) -> list[int]:
    """Where there is no /proc: the processes of the ranks' own process groups that still exist."""
    found = []
    for path in folder.glob("rank*.pid"):
        pids = json.loads(path.read_text(encoding="utf-8"))
        for pid in (pids["rank"], pids["supervisor"]):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 0)
                found.append(pid)
    return found


def _tail(path: pathlib.Path, lines: int = 3) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in text[-lines:]) or "no message"

"""Runs the target: one run for each model and wrap, one after the other in one launch."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from ddp_lint.verify.live import Live
from ddp_lint.verify.options import InternalError, Options, RunResult, UsageError, Watch
from ddp_lint.verify.outcome import ended_by_the_user, ended_by_us, left_waiting, rank_outcome, run_outcome
from ddp_lint.verify.pool import Ended, Pool, tail, workspace
from ddp_lint.verify.preload import compiles, may_fork
from ddp_lint.verify.self_launching import starts_own_ranks
from ddp_lint.verify.spec import Spec
from ddp_lint.verify.target import Target
from ddp_lint.verify.trace import Broken

Progress = Callable[[str], None]

SCRIPT = "script"
_STEPS_OF_A_MODEL = 3
#: Seconds after which the user is shown how a script can be cut short.
_PATIENCE = 60.0
_STILL_RUNNING = "still running: --steps N ends it after N optimizer steps, Ctrl-C prints the results so far"


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
    #: How many GPUs the ranks of this machine share; 0: each has its own, or there is none.
    shared_gpus: int = 0
    #: For each model the source of a `ddp_lint_example()` that builds it as the recipe does ("" where there is one).
    examples: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Launcher:
    """Runs a target, any number of times, in one pool of processes. A context manager."""

    def __init__(
        self, target: Target, options: Options, progress: Progress = lambda _: None, pool: Pool | None = None
    ) -> None:
        self.target = target
        self.options = options
        self.progress = progress
        self._stack = contextlib.ExitStack()
        self._given = pool

    def __enter__(self) -> Launcher:
        self._device, self._torch, self._shared_gpus = device_of(self.options)
        self._fork = may_fork(self.target, self.options.nproc)
        self._compiles = self._device == "cpu" and compiles(self.target)
        self._own_ranks = starts_own_ranks(self.target)
        self._folder = self._stack.enter_context(workspace(self.options.traces))
        # Processes start with the first run.
        self._pool = self._given or self._stack.enter_context(
            Pool(self._folder, self.options, self._device, fork=self._fork)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def probe(self, *, sketch: bool = False) -> Plan:
        """Ask one process how each model can be built. Raises UsageError when none can; with `sketch` not for models
        that cannot be built, whose `examples` are then to be filled in."""
        answer: Mapping[str, Any] = {"recipes": {"": {}}, "skipped": {}}
        if self.target.kind != SCRIPT:
            self.progress("building the model once on one process")
            answer = self._asked(sketch)
        return Plan(
            device=self._device,
            backend="nccl" if self._device == "cuda" else "gloo",
            torch=self._torch,
            recipes=answer["recipes"],
            skipped=answer["skipped"],
            shared_gpus=self._shared_gpus,
            examples=answer.get("examples", {}),
        )

    def _asked(self, sketch: bool) -> Mapping[str, Any]:
        target, options = self.target, self.options
        request = {
            "path": str(target.path),
            "root": str(target.root),
            "models": target.models,
            "entry": target.entry,
            "nproc": options.nproc,
            "compiles": self._compiles,
            "given": options.given,
            "shim": options.shim and options.device != "cuda",
            "timeout": max(options.timeout, 10.0),
        }
        folder = self._folder / ".probe"
        folder.mkdir(exist_ok=True)
        request_path, answer_path = folder / "request.json", folder / "answer.json"
        request_path.write_text(json.dumps(request), encoding="utf-8")
        log = self._pool.call(request_path, answer_path)
        if not answer_path.is_file():
            raise UsageError(f"{target.path}: building the model ended the process: {tail(log)}")
        answer: dict[str, Any] = json.loads(answer_path.read_text(encoding="utf-8"))
        shutil.rmtree(folder, ignore_errors=True)
        if "error" in answer:
            raise UsageError(answer["error"])
        if not answer["recipes"] and not (sketch and answer["examples"]):
            raise UsageError("\n".join(answer["skipped"].values()))
        return answer

    def run(
        self, plan: Plan, watch: Watch, options: Options | None = None, stimuli: tuple[str, ...] = ()
    ) -> list[RunResult]:
        """One result for each model and wrap (for a script one: its wraps are its own).

        `options` may differ from those of the launcher in wraps, steps and timeout; `stimuli` are names of
        `spec.STIMULI`.
        """
        options = options or self.options
        wraps = (SCRIPT,) if self.target.kind == SCRIPT else options.wraps
        results = []
        for model in plan.recipes:
            for wrap in wraps:
                name = "-".join([*([model] if len(plan.recipes) > 1 else []), wrap, *stimuli])
                spec = dataclasses.replace(
                    specification(self.target, options, watch, _emptied(self._folder / name), wrap),
                    name=model,
                    device=plan.device,
                    shared_gpus=plan.shared_gpus,
                    recipe=plan.recipes[model],
                    stimuli=stimuli,
                    fork=self._fork,
                    compiles=self._compiles or (watch.graph_breaks and plan.device == "cpu"),
                    job_alone=options.several_nodes,
                    cwd=str(pathlib.Path.cwd()),
                )
                results.append(self._result(spec, plan))
                if results[-1].outcome == "interrupted":
                    return results
        return results

    def _result(self, spec: Spec, plan: Plan) -> RunResult:
        directory = pathlib.Path(spec.directory)
        ranks_of = "its own ranks" if self._own_ranks else f"{self.options.nproc} ranks"
        self.progress(f"{directory.name}: {ranks_of}, {plan.backend}")
        started = time.monotonic()
        ended = self._ended(spec)
        seconds = time.monotonic() - started
        ranks = left_waiting(tuple(rank_outcome(directory, rank) for rank in ended.ranks))
        failure = next((error for rank in ranks for error in rank.trace.of(Broken)), None)
        if failure is not None:
            raise InternalError(f"ddp-lint failed, not the target: {failure.message}, in {failure.inner}")
        outcome, message = run_outcome(ranks, ended.code, directory / "torchrun.log")
        if ended.interrupted:
            ranks = ended_by_the_user(ranks)
            outcome, message = "interrupted", "interrupted; these are the results so far"
        if ended.given_up:
            ranks = ended_by_us(ranks)
            outcome, message = "slow", f"given up after {spec.limit:.0f} s, longer than the plain run took"
        self.progress(f"{directory.name}: {message} ({seconds:.1f} s)")
        return RunResult(
            name=directory.name,
            wrap=spec.wrap,
            model=spec.name,
            stimuli=spec.stimuli,
            outcome=outcome,
            message=message,
            seconds=seconds,
            nproc=len(ranks) or self.options.nproc,
            device=plan.device,
            backend=plan.backend,
            torch=plan.torch,
            ranks=ranks,
            directory=directory,
            shared_gpus=plan.shared_gpus,
            **described(spec.recipe),
        )

    def _ended(self, spec: Spec) -> Ended:
        """Run it: as it is where it starts its ranks by itself, else under torchrun."""
        directory = pathlib.Path(spec.directory)
        if self._own_ranks and not spec.stimuli:
            live = Live(directory, None)
            with contextlib.closing(live):
                poll = self._watched(live, spec)
                own = dataclasses.replace(spec, own_ranks=True, launcher=os.getpid(), local_world=self.options.nproc)
                ended = self._pool.run_own(own, self._command(), poll)
            if ended.ranks or ended.interrupted:
                return ended
            self.progress("it started no ranks by itself: running it under torchrun")
        live = Live(directory, range(0 if self.options.several_nodes else self.options.nproc))
        with contextlib.closing(live):
            return self._pool.run(spec, self._watched(live, spec))

    def _command(self) -> list[str]:
        module = self.target.module
        return [sys.executable, *(["-m", module] if module else [str(self.target.path)]), *self.target.arguments]

    def _watched(self, live: Live, spec: Spec) -> Callable[[], None]:
        """What is done again and again while the ranks run: look at what they call, and say once that they do."""
        remind_at = [time.monotonic() + _PATIENCE] if spec.kind == SCRIPT and not spec.steps else []

        def poll() -> None:
            mismatch = live.poll()
            if mismatch is not None:
                self.progress(f"the ranks diverge: {mismatch}")
            if remind_at and time.monotonic() > remind_at[0]:
                remind_at.clear()
                self.progress(_STILL_RUNNING)

        return poll


def device_of(options: Options) -> tuple[str, str, int]:
    """cuda or cpu, the version of torch, and how many GPUs the ranks share (0: none). Raises UsageError."""
    torch, devices = installed_torch()
    if options.device == "cuda" and not devices:
        raise UsageError(f"--device cuda: no CUDA device here that torch {torch} can use; use --device cpu")
    if options.device == "cuda" and devices < options.nproc:
        return "cuda", torch, devices
    return "cuda" if options.device != "cpu" and devices >= options.nproc else "cpu", torch, 0


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


def specification(target: Target, options: Options, watch: Watch, directory: pathlib.Path, wrap: str = SCRIPT) -> Spec:
    """A run of a target with these traces, wherever it runs."""
    return Spec(
        directory=str(directory),
        kind=target.kind,
        path=str(target.path),
        root=str(target.root),
        entry=target.entry,
        arguments=target.arguments,
        module=target.module,
        wrap=wrap,
        steps=options.steps or (0 if target.kind == SCRIPT else _STEPS_OF_A_MODEL),
        timeout=options.timeout,
        lines={path: tuple(sorted(lines)) for path, lines in watch.lines.items()},
        guards={path: tuple(sorted(lines)) for path, lines in watch.guards.items()},
        graph_breaks=watch.graph_breaks,
        streams=watch.streams,
        files=watch.files,
        shim=options.shim,
        limit=options.limit,
    )


def _emptied(directory: pathlib.Path) -> pathlib.Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def described(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What a result says of the recipe by which its model was built and called."""
    return {
        "inputs": recipe.get("described", ""),
        "left_out": tuple(recipe.get("left_out", ())),
        "not_run": recipe.get("not_run", ""),
    }

"""`ddp-lint verify`: run the target on two ranks and prove each finding."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ddp_lint.cli import completing
from ddp_lint.cli.console import (
    COLOR,
    FAILED,
    INTERRUPTED,
    OUTPUT_FILE,
    QUIET,
    end_with,
    listed,
    say,
    wants_color,
    write,
)
from ddp_lint.output import Sources
from ddp_lint.verify.options import WRAPS, Options, UsageError, ranks_of
from ddp_lint.verify.report import FORMATS

if TYPE_CHECKING:
    from ddp_lint.config import Settings

#: torchrun's own options that are passed on as they are.
_LAUNCHER = ("nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port")
#: Of one machine: the launcher starts as many processes as it is told, until the machine has no memory left.
_MOST_RANKS = 1024


def _wraps(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(listed([value])))
    unknown = [wrap for wrap in chosen if wrap not in WRAPS]
    if unknown or not chosen:
        raise click.BadParameter(f"{unknown[0]!r} is not one of {', '.join(WRAPS)}" if unknown else "name at least one")
    return chosen


def _launcher_options(command: Any) -> Any:
    for name in reversed(_LAUNCHER):
        flag = name.replace("_", "-")
        command = click.option(f"--{flag}", name, metavar="VALUE", help=f"torchrun's --{flag}.")(command)
    return command


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("target", required=False, shell_complete=completing.files)
@click.argument("script_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS]")
@click.option("-m", "module", metavar="MODULE", help="Run a module like `python -m` instead of TARGET.")
@click.option(
    "--nproc",
    "--nproc-per-node",
    type=click.IntRange(1, _MOST_RANKS),
    default=2,
    show_default=True,
    help="Number of ranks on this machine.",
)
@click.option(
    "--wrap",
    "wraps",
    default="ddp,fsdp2",
    callback=_wraps,
    show_default=True,
    metavar="LIST",
    help=f"The wrappers to try, from {', '.join(WRAPS)}.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="auto: CUDA if there is a GPU for each rank. cuda: ranks share the GPUs if there are fewer.",
)
@click.option(
    "--steps",
    type=click.IntRange(2),
    help="Training steps of a model (some damage shows only in the second). A script ends after that many optimizer "
    "steps.  [default: 3, for a script all]",
)
@click.option(
    "--shim/--no-shim",
    default=True,
    show_default=True,
    help="On the CPU: replace cuda and nccl in the script by cpu and gloo.",
)
@click.option(
    "--write-example", is_flag=True, help="Write the suggested ddp_lint_example() into TARGET, without running it."
)
@click.option("--since", metavar="REV", help="Check only findings on lines that changed since this git revision.")
@click.option(
    "--world-size",
    type=click.IntRange(1),
    metavar="N",
    help="Dry run as ranks of a job of N: compare their calls, without communication.",
)
@click.option("--ranks", metavar="LIST", help="With --world-size: the ranks to run, such as 0,1,8-15,63 or all.")
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=20.0,
    show_default=True,
    help="Seconds without progress after which a rank counts as stuck.",
)
@click.option("--entry", default="", metavar="FUNCTION", help="The function of TARGET that returns (module, inputs).")
@click.option(
    "--select",
    multiple=True,
    metavar="CODES",
    help="Check only these codes, prefixes or slugs (comma-separated).",
    shell_complete=completing.codes,
)
@click.option("--preview/--no-preview", default=None, help="Also check rules that are off by default.")
@click.option("--output-format", type=click.Choice(FORMATS), default="full", show_default=True)
@OUTPUT_FILE
@click.option(
    "--keep-traces",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    metavar="DIR",
    help="Keep what each rank recorded in DIR.",
)
@QUIET
@COLOR
@_launcher_options
def verify(target: str | None, script_args: tuple[str, ...], **given: Any) -> None:
    """Run TARGET under torchrun and report for each finding whether it is confirmed, refuted, not
    reached or inconclusive.

    TARGET is a file with models, module:Class, or a training script, whose own arguments follow after --.

    Exit status: 0 every run completed and nothing was confirmed or discovered; 1 something was, or a run died or
    hung; 2 it could not run.
    """
    with _interruptible():
        end_with(lambda: _run(target, script_args, given), UsageError)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a verification as Ctrl-C does: with a report, and with nothing left behind."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(target: str | None, script_args: tuple[str, ...], given: dict[str, Any]) -> int:
    """The whole of it; the exit status. Raises UsageError."""
    from ddp_lint.verify.starting import started

    _need_torch()
    target, script_args = _target(target, script_args, given["module"])
    options = _options(given, script_args)
    if given["write_example"]:
        return _write_example(target, options)
    progress = _progress(given["quiet"])
    sources = Sources()
    with started(target, options) as pool:
        from ddp_lint.verify.report import prepare, render
        from ddp_lint.verify.session import verify as run

        prepare(given["output_format"])
        verification = run(target, options, _settings(target, given), sources, progress, pool)
        color = given["output_file"] is None and wants_color(given["color"], sys.stdout)
        write(render(verification, given["output_format"], sources, color), given["output_file"])
    interrupted = any(examined.run.outcome == "interrupted" for examined in verification.runs)
    return INTERRUPTED if interrupted else verification.exit_code


def _settings(target: str, given: dict[str, Any]) -> Settings:
    """What `check` is to look for in the target. Raises UsageError."""
    from ddp_lint.config import ConfigError, Configuration, Overrides  # not before the processes come up

    select = listed(given["select"])
    place = pathlib.Path(target)
    try:
        configuration = Configuration(Overrides(select=select or None, preview=given["preview"], proving=True))
        return configuration.of((place.parent if place.suffix else pathlib.Path()).resolve())
    except ConfigError as error:
        raise UsageError(str(error)) from error


def _target(target: str | None, script_args: tuple[str, ...], module: str | None) -> tuple[str, tuple[str, ...]]:
    """What to run. After -m everything that is no option belongs to the module."""
    if module is not None:
        return module, (*([target] if target is not None else []), *script_args)
    if target is None:
        raise UsageError("name a file with a model or a training script, module:Class, or -m MODULE")
    return target, script_args


def _options(given: dict[str, Any], script_args: tuple[str, ...]) -> Options:
    if given["ranks"] and not given["world_size"]:
        raise UsageError("--ranks names ranks of a dry run: give its --world-size as well")
    return Options(
        nproc=given["nproc"],
        wraps=given["wraps"],
        device=given["device"],
        steps=given["steps"] or 0,
        timeout=given["timeout"],
        entry=given["entry"],
        arguments=script_args,
        launcher=tuple(f"--{name.replace('_', '-')}={given[name]}" for name in _LAUNCHER if given[name] is not None),
        traces=given["keep_traces"],
        module=given["module"] is not None,
        shim=given["shim"],
        since=given["since"] or "",
        world=given["world_size"] or 0,
        ranks=ranks_of(given["ranks"], given["world_size"]) if given["world_size"] else (),
    )


def _write_example(text: str, options: Options) -> int:
    """Append the suggested function to the target's file; the exit status."""
    from ddp_lint.verify.suggest import example

    path, source = example(text, options, _progress(quiet=False))
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n\n{source}")
    to_do = " (replace each `...` by a value that fits)" if "..." in source else ""
    say(f"written to {path}{to_do}:\n\n{source}")
    return 0


def _need_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        say("error: verify runs the target with torch, which is not installed here: pip install 'ddp-lint[verify]'")
        sys.exit(FAILED)


def _progress(quiet: bool) -> Callable[[str], None]:
    """What is being done, with the seconds since the start, on standard error: the report goes to standard output."""
    started = time.monotonic()

    def progress(text: str) -> None:
        if not quiet:
            say(f"[{time.monotonic() - started:5.1f} s] {text}")

    return progress

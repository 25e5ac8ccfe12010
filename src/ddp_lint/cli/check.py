"""`ddp-lint check`: find, print, and fix."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import click

from ddp_lint.cli import completing
from ddp_lint.cli.console import (
    CLEAN,
    COLOR,
    FAILED,
    FOUND,
    OUTPUT_FILE,
    count,
    end_with,
    listed,
    say,
    say_errors,
    wants_color,
    write,
)
from ddp_lint.cli.narrowing import Narrowing, Part
from ddp_lint.cli.progress import Progress
from ddp_lint.cli.summary import settings_text, statistics, summary
from ddp_lint.config import FORMATS, ConfigError, Configuration, Overrides, Settings
from ddp_lint.discovery import Discovered, discover, is_left_out
from ddp_lint.engine.report import Report
from ddp_lint.files import absolute, is_folder, read_stream, reason_of, shown
from ddp_lint.output import Run, Sources, one_line, render, visible, without_commands
from ddp_lint.output.style import Style
from ddp_lint.project import Project

_CODES: dict[str, Any] = {"metavar": "CODES", "multiple": True, "shell_complete": completing.codes}
_GLOBS: dict[str, Any] = {"metavar": "PATTERNS", "multiple": True}
#: Formats whose readers take nothing but a report of findings.
_REPORTS = ("sarif", "gitlab", "junit")
#: Set by services that look for workflow commands in what is printed.
_SERVICES = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options beyond the settings of the files."""

    output_format: str | None
    output_file: pathlib.Path | None
    statistics: bool
    exit_zero: bool
    no_cache: bool
    jobs: int
    stdin_filename: str
    fix: bool
    unsafe_fixes: bool
    diff: bool
    quiet: bool
    verbose: bool
    color: str
    baseline: pathlib.Path | None
    write_baseline: bool
    prune: bool
    add_ignore: bool
    since: str | None
    staged: bool


def _options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATHS]...", shell_complete=completing.files)
@_options(
    click.option("--select", **_CODES, help="Check only these codes, prefixes or slugs (comma-separated)."),
    click.option("--extend-select", **_CODES, help="Check these in addition."),
    click.option("--ignore", **_CODES, help="Do not check these."),
    click.option(
        "--preview/--no-preview",
        default=None,
        help="Also check rules that are off by default, and report findings of low confidence.",
    ),
    click.option("--fix", is_flag=True, help="Apply safe fixes."),
    click.option(
        "--unsafe-fixes", is_flag=True, help="With --fix or --diff: also apply fixes that may change behaviour."
    ),
    click.option("--diff", is_flag=True, help="Print what --fix would change, without changing files."),
)
@_options(
    click.option(
        "--since", metavar="REV", help="Report only findings that the changes since this git revision affect."
    ),
    click.option("--staged", is_flag=True, help="For pre-commit: like --since HEAD, with PATHS as the changed files."),
    click.option(
        "--baseline",
        type=click.Path(dir_okay=False, path_type=pathlib.Path),
        help="Do not report the findings in this baseline file.",
    ),
    click.option(
        "--write-baseline", is_flag=True, help="Write all findings to the baseline, so that they are accepted."
    ),
    click.option("--prune", is_flag=True, help="Remove findings that no longer occur from the baseline."),
    click.option(
        "--add-ignore", is_flag=True, help="Write an ignore comment for each finding, with a reason to fill in."
    ),
)
@_options(
    click.option(
        "--output-format", type=click.Choice(FORMATS), envvar="DDP_LINT_OUTPUT_FORMAT", help="[default: full]"
    ),
    OUTPUT_FILE,
    click.option("--statistics", is_flag=True, help="Print the number of findings per rule instead of the findings."),
    click.option("--exit-zero", is_flag=True, help="Exit with status 0 even if there are findings."),
    click.option("-q", "--quiet", is_flag=True, help="Print only the findings."),
    click.option(
        "-v", "--verbose", is_flag=True, help="Also print statistics of the run, and why collectives were not reported."
    ),
    COLOR,
)
@_options(
    click.option(
        "--exclude", **_GLOBS, help="Exclude these patterns (comma-separated) instead of those in the configuration."
    ),
    click.option("--extend-exclude", **_GLOBS, help="Exclude these patterns in addition."),
    click.option(
        "--force-exclude/--no-force-exclude", default=None, help="Exclude files even if they are named in PATHS."
    ),
    click.option(
        "--stdin-filename",
        default="stdin.py",
        metavar="NAME",
        help="The file name of the text, if PATHS is -.",
        shell_complete=completing.files,
    ),
)
@_options(
    click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
        help="Read this configuration file instead of the nearest one.",
    ),
    click.option("--isolated", is_flag=True, help="Read no configuration file."),
    click.option("--no-cache", is_flag=True, envvar="DDP_LINT_NO_CACHE", help="Neither read nor write the cache."),
    click.option(
        "-j",
        "--jobs",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="Number of processes. [default: chosen by the amount of work]",
    ),
    click.option("--watch", is_flag=True, help="Check again whenever a file changes, until Ctrl-C."),
    click.option("--show-files", is_flag=True, help="Print the files that would be checked, and exit."),
    click.option("--show-settings", is_flag=True, help="Print the settings for these files, and exit."),
    click.option("--why", metavar="FILE:LINE", help="Explain why the collectives on this line are reported or not."),
)
def check(paths: tuple[str, ...], **given: Any) -> None:
    """Check files and folders (default: the working directory) for hangs and silent errors under DDP and FSDP.

    Exit status: 0 no findings, 1 findings, 2 wrong usage or configuration, or a file that cannot be read.
    """
    end_with(lambda: _run(paths, given), ConfigError, given["color"])


@dataclasses.dataclass
class _Outcome:
    """The outcome of a run besides its report."""

    report: Report
    sources: Sources
    seconds: float
    fixed: int = 0
    hidden: int = 0
    failures: list[tuple[str, str]] = dataclasses.field(default_factory=list)


def _run(paths: tuple[str, ...], given: dict[str, Any]) -> int:
    """The whole of a run; the exit status. Raises ConfigError."""
    try:
        pathlib.Path.cwd()
    except OSError:
        raise ConfigError("the working directory does not exist any more; change to another one") from None
    configuration = Configuration(_overrides(given))
    options = _Options(**{f.name: given[f.name] for f in dataclasses.fields(_Options)})
    if given["why"]:
        from ddp_lint.cli.why import why

        return why(given["why"], configuration, options.color)
    if "-" in paths and len(paths) > 1:
        raise ConfigError("- (standard input) cannot be combined with other paths")
    if options.statistics and options.output_format in _REPORTS:
        raise ConfigError(f"--statistics cannot be printed as {options.output_format}")
    _deny_together(paths, options)
    only_show = given["show_files"] or given["show_settings"]
    if given["watch"] and not only_show:
        return _watch(paths or (".",), given, options)
    if "-" in paths and not only_show:
        return _run_stdin(configuration, options)
    everywhere = (".", *paths) if options.staged else paths or (".",)
    discovered = _named(options, configuration) if "-" in paths else discover(everywhere, configuration)
    if not only_show:
        staged = paths if options.staged else None
        return _run_files(discovered, options, Narrowing(options.baseline, options.since, staged))
    if given["show_files"]:
        write("".join(f"{one_line(shown(file))}\n" for file in discovered.files), options.output_file)
    else:
        groups = [settings for settings, _ in discovered.groups()] or [configuration.of(pathlib.Path.cwd())]
        write("\n".join(visible(settings_text(settings)) for settings in groups), options.output_file)
    say_errors(discovered.errors, options.color)
    return FAILED if discovered.errors else CLEAN


def _watch(paths: tuple[str, ...], given: dict[str, Any], options: _Options) -> int:
    from ddp_lint.cli.watch import watch

    if "-" in paths:
        raise ConfigError("--watch checks files; it cannot check standard input")

    def again() -> None:
        gc.unfreeze()  # of the run before
        narrowing = Narrowing(options.baseline, options.since, None)
        _run_files(discover(paths, Configuration(_overrides(given))), options, narrowing)

    return watch(paths, again, options.color)


def _overrides(given: dict[str, Any]) -> Overrides:
    return Overrides(
        select=listed(given["select"]) or None,
        extend_select=listed(given["extend_select"]),
        ignore=listed(given["ignore"]),
        preview=given["preview"],
        exclude=listed(given["exclude"]) or None,
        extend_exclude=listed(given["extend_exclude"]),
        force_exclude=given["force_exclude"],
        config=given["config"],
        isolated=given["isolated"],
    )


# ---- files


def _deny_together(paths: tuple[str, ...], options: _Options) -> None:
    """Raises ConfigError where options contradict each other."""
    writes = {
        "--write-baseline": options.write_baseline,
        "--add-ignore": options.add_ignore,
        "--fix": options.fix,
        "--diff": options.diff,
    }
    both = [name for name, given in writes.items() if given]
    if len(both) > 1 and both != ["--fix", "--diff"]:
        raise ConfigError(f"{both[0]} and {both[1]} cannot be combined: run one after the other")
    since = "--staged" if options.staged else "--since" if options.since else ""
    if since and options.write_baseline:
        raise ConfigError(f"--write-baseline and {since} cannot be combined: a baseline accepts all findings")
    if options.staged and options.since:
        raise ConfigError("--staged and --since cannot be combined: --staged is --since HEAD")
    for name in (*(name for name in both[:1] if name in ("--write-baseline", "--add-ignore")), since):
        if name and "-" in paths:
            raise ConfigError(f"{name} cannot be used with - (standard input)")


def _run_files(discovered: Discovered, options: _Options, narrowing: Narrowing) -> int:
    started = time.perf_counter()
    if not discovered.files and not discovered.errors and not options.quiet:
        say("warning: no files to check: name a folder with *.py or *.ipynb files", options.color)
    output_format = _format(options, discovered.files.values())
    parts = _check(discovered, options, narrowing)
    if options.write_baseline:
        narrowing.write(parts, options.color)
        return _failures(Report([], [*discovered.errors, *(e for part in parts for e in part.report.errors)]), options)
    report = _report_of(parts, discovered, narrowing)
    if options.prune or not options.quiet:
        narrowing.say_gone(parts, prune=options.prune, color=options.color)
    if options.add_ignore:
        return _add_ignore(parts, discovered, options)
    if options.diff or options.fix:
        from ddp_lint.cli.fix import fix_files

        findings = [f for part in parts for f in part.reported]
        fix = functools.partial(fix_files, findings, discovered.files, unsafe=options.unsafe_fixes)
    if options.diff:
        result = fix(dry=True)
        return _finish_diff(result.patch, result.fixed, [*report.errors, *result.failures], options)
    outcome = _Outcome(report, Sources(), 0)
    if options.fix:
        result = fix(dry=False)
        outcome.fixed, outcome.failures = result.fixed, result.failures
        if result.fixed:  # a fix in one file can change what is found in another
            narrowing = narrowing.again()
            parts = _check(discovered, options, narrowing)
            outcome.report = _report_of(parts, discovered, narrowing)
    outcome.hidden = narrowing.hidden
    outcome.seconds = time.perf_counter() - started
    gc.freeze()  # the process is about to end: no search for garbage among what the run has made
    if options.verbose:
        _explain_silence(parts, options)
    return _finish(outcome, output_format, options)


def _check(discovered: Discovered, options: _Options, narrowing: Narrowing) -> list[Part]:
    from ddp_lint.engine.runner import check_paths
    from ddp_lint.rules.registry import following_calls

    progress = Progress(len(discovered.files), quiet=options.quiet)

    def one(settings: Settings, files: list[pathlib.Path]) -> Part:
        cache_dir = None if options.no_cache else settings.cache_folder
        wanted, depend = narrowing.files(settings, files, cache_dir)
        project = Project(settings.root, names=settings.names)
        run = functools.partial(check_paths, jobs=options.jobs or None, cache_dir=cache_dir)
        reports = [run(wanted, settings, done=progress, project=project)]
        if depend:
            following = dataclasses.replace(settings, enabled=settings.enabled & following_calls())
            reports.append(run(depend, following))
        return Part(settings, wanted, Report.merged(reports), project)

    try:
        return [one(*group) for group in discovered.groups()]
    finally:
        progress.close()


def _report_of(parts: list[Part], discovered: Discovered, narrowing: Narrowing) -> Report:
    """What is reported: all that was found but for what is accepted or untouched, each cause once."""
    report = Report.merged((part.report for part in parts), discovered.errors)
    return dataclasses.replace(report, findings=narrowing.reported(parts))


def _add_ignore(parts: list[Part], discovered: Discovered, options: _Options) -> int:
    from ddp_lint.cli.ignoring import add_ignores

    done = add_ignores((finding for part in parts for finding in part.reported), discovered.files, options.jobs or None)
    for finding in done.left:
        say(f"no comment: {finding.span.path}:{finding.span.line}: {finding.code} {finding.message}", options.color)
    errors = [*(e for part in parts for e in part.report.errors), *discovered.errors, *done.failures]
    if not options.quiet:
        say(
            f"{count(done.findings, 'finding')} ignored in {count(done.files, 'file')}: fill in the reasons",
            options.color,
        )
    return _failures(Report(done.left, errors), options)


def _failures(report: Report, options: _Options) -> int:
    say_errors(report.errors, options.color)
    return _status(report, options)


def _explain_silence(parts: Iterable[Part], options: _Options) -> None:
    from ddp_lint.cli.why import silence

    for part in parts:
        for line in silence(part.files, part.settings, part.project, part.report.findings):
            say(line, options.color)


# ---- standard input


def _run_stdin(configuration: Configuration, options: _Options) -> int:
    from ddp_lint.engine.runner import check_text
    from ddp_lint.source.file import SourceFile, Unreadable, decode

    started = time.perf_counter()
    path, settings = _stdin_place(options, configuration)
    output_format = _format(options, [settings])
    data = _standard_input()
    left_out = is_left_out(path, settings)
    if left_out and not (options.fix or options.diff):
        return _finish(_Outcome(Report([], []), Sources(), 0), output_format, options)
    try:
        text = decode(data)
        SourceFile.of_text(str(path), text)
    except Unreadable as e:
        return _finish(_Outcome(Report([], [(shown(path), str(e))]), Sources(), 0), output_format, options)
    if left_out:
        write(b"" if options.diff else data, options.output_file)
        return CLEAN
    if options.fix or options.diff:
        from ddp_lint.cli.fix import fix_text
        from ddp_lint.fixes import Text

        source = Text.of(path, data)
        result = fix_text(source, settings, unsafe=options.unsafe_fixes)
        if options.diff:
            return _finish_diff(result.patch, result.fixed, [], options)
        # What is left goes to standard error, where an editor shows it.
        write(source.encoded(result.text), options.output_file)
        left = check_text(result.text, path, settings)
        for f in left.findings:
            say(f"{f.span.place}:{f.span.line}:{f.span.column}: {f.code} {f.message}", options.color)
        return _status(left, options)
    cache_dir = None if options.no_cache else settings.cache_folder
    report = check_text(text, path, settings, cache_dir=cache_dir)
    part = Part(settings, [path], report, Project(settings.root, names=settings.names))
    narrowing = Narrowing(options.baseline, None, None)
    report = dataclasses.replace(report, findings=narrowing.reported([part]))
    sources = Sources({f.span.path: text for f in report.findings})
    outcome = _Outcome(report, sources, time.perf_counter() - started, hidden=narrowing.hidden)
    return _finish(outcome, output_format, options)


def _standard_input() -> bytes:
    """Raises ConfigError."""
    try:
        return read_stream(sys.stdin.buffer if sys.stdin is not None else None)
    except OSError as e:
        raise ConfigError(f"standard input cannot be read: {reason_of(e)}") from None


def _stdin_place(options: _Options, configuration: Configuration) -> tuple[pathlib.Path, Settings]:
    """The path of the text on standard input, and its settings."""
    path = absolute(options.stdin_filename)
    return path, configuration.of(path.parent if is_folder(path.parent) else pathlib.Path.cwd())


def _named(options: _Options, configuration: Configuration) -> Discovered:
    path, settings = _stdin_place(options, configuration)
    return Discovered({} if is_left_out(path, settings) else {path: settings}, [])


# ---- printing


def _format(options: _Options, settings: Iterable[Settings]) -> str:
    """The command line's format, else the configuration's (of the first file, where there are several), else full."""
    first = next(iter(settings), None)
    return options.output_format or (first and first.output_format) or "full"


def _finish(outcome: _Outcome, output_format: str, options: _Options) -> int:
    """Print the outcome of a run; its exit status."""
    report = outcome.report
    report.errors += outcome.failures
    color = wants_color(options.color, sys.stdout)
    if options.statistics:
        write(statistics(report.findings, output_format), options.output_file)
    else:
        run = Run(report.findings, report.errors, outcome.sources, _in_color(options))
        write(render(run, output_format), options.output_file)
    say_errors(report.errors, options.color)
    if not options.quiet and (output_format in ("full", "concise")):
        write(summary(report, outcome.fixed, Style(color), outcome.hidden), None)
    if options.verbose:
        _say_work(outcome, options)
    return _status(report, options)


def _in_color(options: _Options) -> bool:
    """Whether the report is in colour; in a file only with --color always."""
    return wants_color(options.color, sys.stdout) and (options.output_file is None or options.color == "always")


def _finish_diff(patch: str, fixed: int, errors: list[tuple[str, str]], options: _Options) -> int:
    to_terminal = options.output_file is None and sys.stdout is not None and sys.stdout.isatty()
    to_service = options.output_file is None and any(os.environ.get(name) for name in _SERVICES)
    write(visible(patch) if to_terminal else without_commands(patch) if to_service else patch, options.output_file)
    say_errors(errors, options.color)
    if not options.quiet:
        say(f"{count(fixed, 'finding')} would be fixed", options.color)
    return FAILED if errors else FOUND if patch and not options.exit_zero else CLEAN


def _status(report: Report, options: _Options) -> int:
    if report.errors:
        return FAILED
    return FOUND if report.findings and not options.exit_zero else CLEAN


def _say_work(outcome: _Outcome, options: _Options) -> None:
    done = outcome.report.statistics
    say(
        f"{count(done.files, 'file')} checked in {outcome.seconds:.2f} s: {done.parsed} parsed, {done.cached} cached",
        options.color,
    )
    for path, seconds in done.slowest[:3]:
        others = done.for_others.get(path, 0.0) if path else 0.0
        shared = f", {others:.2f} of them for other files that use it" if others > seconds / 2 else ""
        say(f"  {seconds:6.2f} CPU s  {path or 'the project as a whole'}{shared}", options.color)

"""One `ddp-lint verify` from target to verdicts: lint, run, examine, judge, run again what a stimulus could settle."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

from ddp_lint.changes import since
from ddp_lint.config import ConfigError, Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.findings import Finding
from ddp_lint.output import Sources
from ddp_lint.project import Project
from ddp_lint.project.dependents import imported_files
from ddp_lint.rules.registry import all_rules
from ddp_lint.verify import dry_run, launch
from ddp_lint.verify.discoveries import discover
from ddp_lint.verify.discoveries.places import placed
from ddp_lint.verify.finding_context import Situation, situation, watch
from ddp_lint.verify.missing_requirements import lacking
from ddp_lint.verify.options import Options, RunResult, UsageError
from ddp_lint.verify.pool import Pool
from ddp_lint.verify.preload import uses_streams
from ddp_lint.verify.results import Examined, Verification, examine
from ddp_lint.verify.target import Target, resolve
from ddp_lint.verify.verdicts import judge, wanted_stimuli

Progress = Callable[[str], None]
#: A pass with a stimulus may hang by the stimulus alone: it gets no more than this without progress.
_STIMULUS_TIMEOUT = 8.0
#: It may also go on for ever by the stimulus (a loss that is NaN meets no end condition): it gets as many times the
#: seconds of the plain pass, and so many at least.
_STIMULUS_FACTOR, _STIMULUS_SECONDS = 2.0, 30.0
#: Where a target imports so many files of its project, what is found in them is kept for the next run, as `check` does.
_MANY_FILES = 20


def verify(
    text: str,
    options: Options,
    settings: Settings,
    sources: Sources,
    progress: Progress,
    pool: Pool | None = None,
) -> Verification:
    """Everything that the runs say about a target. `pool` as for `prove`. Raises UsageError when it cannot be run."""
    target = resolve(text, options)
    try:
        change = since(options.since, target.path.resolve().parent) if options.since else None
    except ConfigError as error:
        raise UsageError(str(error)) from error
    findings = [finding for finding in lint(target, settings) if change is None or change.meets(finding.span)]
    progress(f"{len(findings)} finding{'s' * (len(findings) != 1)} to check in {text}")
    situations = [situation(finding, sources.lines(finding.span.path)) for finding in findings]
    if options.world:
        return _dry(text, target, situations, options, progress)
    return prove(text, target, situations, options, progress, pool)


def _dry(text: str, target: Target, at: Sequence[Situation], options: Options, progress: Progress) -> Verification:
    """The same on a process group that does not communicate."""
    rules = all_rules()
    oracles = {s.finding.code: tuple(rules[s.finding.code].oracles) for s in at}
    examined = dry_run.run(target, options, watch(at, {name for names in oracles.values() for name in names}), progress)
    judged = dry_run.limited(judge(at, [examined]), examined, oracles)
    lacks = lacking([examined.run])
    discovered = [] if lacks else placed(dry_run.discover(examined, discover([examined], judged)), target.path)
    environment = {**_environment(options, [examined]), "world": options.world}
    return Verification(text, environment, tuple(judged), tuple(discovered), (examined,), lacks=lacks)


def prove(
    text: str,
    target: Target,
    situations: Sequence[Situation],
    options: Options,
    progress: Progress,
    pool: Pool | None = None,
) -> Verification:
    """Run the target and judge the findings, wherever they come from. `text` is the target as the user named it; `pool`
    is one that is starting already (`starting.started`), or that several targets share."""
    with launch.Launcher(target, options, progress, pool) as launcher:
        plan = launcher.probe()
        for reason in plan.skipped.values():
            progress(f"left out: {reason}")
        runs = _runs(launcher, plan, options, situations)
        judged = judge(situations, runs)
        lacks = lacking([examined.run for examined in runs])
        discovered = [] if lacks else placed(discover(runs, judged), target.path)
    environment = _environment(options, runs)
    return Verification(text, environment, tuple(judged), tuple(discovered), tuple(runs), plan.skipped, lacks)


def lint(target: Target, settings: Settings) -> list[Finding]:
    """The findings in the target and in the files of the project that it imports, without those of the tool itself."""
    files = imported_files(target.path, Project(settings.root))
    kept = settings.cache_folder
    pays = kept.is_dir() or len(files) >= _MANY_FILES
    cache_dir = kept if pays and not os.environ.get("DDP_LINT_NO_CACHE") else None
    known = all_rules()
    return [f for f in check_paths(files, settings, cache_dir=cache_dir).findings if f.code in known]


def _runs(launcher: launch.Launcher, plan: launch.Plan, options: Options, at: Sequence[Situation]) -> list[Examined]:
    watched = watch(at, {oracle for s in at for oracle in all_rules()[s.finding.code].oracles})

    watched = dataclasses.replace(watched, streams=watched.streams or uses_streams(launcher.target))

    def one_pass(chosen: Options, stimuli: tuple[str, ...]) -> list[Examined]:
        return [examine(result) for result in launcher.run(plan, watched, chosen, stimuli)]

    runs = one_pass(options, ())
    if options.several_nodes:  # each judges by its own ranks: they would not agree on another pass
        return runs
    limit = max(_STIMULUS_SECONDS, _STIMULUS_FACTOR * max((examined.run.seconds for examined in runs), default=0.0))
    for stimuli in wanted_stimuli(at, runs):
        if any(examined.run.outcome == "interrupted" for examined in runs):
            break
        timeout = min(options.timeout, _STIMULUS_TIMEOUT)
        chosen = dataclasses.replace(options, wraps=options.wraps[:1], timeout=timeout, limit=limit)
        runs += one_pass(chosen, stimuli)
    return runs


def _environment(options: Options, runs: Sequence[Examined]) -> dict[str, object]:
    run: RunResult | None = runs[0].run if runs else None
    return {
        "torch": run.torch if run else "",
        "device": run.device if run else options.device,
        "backend": run.backend if run else "",
        "nproc": run.nproc if run else options.nproc,
        "shared_gpus": run.shared_gpus if run else 0,
        "wraps": list(dict.fromkeys(examined.run.wrap for examined in runs)),
    }

"""Whether the generators of the ranks, which each process has for itself, are in another state on each of them: where a
program seeds them by the rank, or nothing does."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Literal

from ddp_lint.findings import Span
from ddp_lint.knowledge import frameworks, table
from ddp_lint.launch.by_rank import Place, assigned_above, called_function, is_by_rank
from ddp_lint.launch.callers import CallSite, sites_that_run
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, calls_below, function_at, is_none, main_guards, walk

#: Calls that are followed: to the callers of a place, and into functions that may seed.
_CALLERS, _INTO = 5, 3
#: What a function is called that seeds, sets the state of a generator, or has a framework do so.
_MAY_SEED = re.compile(r"seed|determinis|reproducib|rng_state|LightningCLI", re.IGNORECASE)
#: What seeds by the rank where an argument asks for it. Source: accelerate/utils/random.py, set_seed.
_BY_ARGUMENT = "device_specific"
#: Packages of frameworks that leave the generators alone until a program has its data.
_PLAIN = frozenset({"torch", "transformers", "accelerate", "deepspeed", "lightning", "pytorch_lightning", "horovod"})

Generator = Literal["torch", "random", "numpy"]


@dataclasses.dataclass(frozen=True)
class Apart:
    """The generator is in another state on each rank: by the seed at `seeded`, or, where it is None, by no seed."""

    seeded: Span | None


#: What a call makes of a generator: the same state on all ranks, another one on each, or one that cannot be told.
_State = Literal["alike", "apart", "unknown"]


@dataclasses.dataclass(frozen=True)
class _Seeding:
    state: _State
    span: Span
    #: Whatever happens, not under a test.
    always: bool = True


def draws_apart(project: Project, draw: ast.Call, place: Place, files: Iterable[ModuleFacts]) -> Apart | None:
    """How what a call draws differs between the ranks: by the generator that it is given, the object whose method it
    is, or the one that the process keeps. None where it may be the same on all."""
    name = place.facts.qualified(draw.func)
    seed = next((k.value for k in draw.keywords if k.arg in _SEEDS_OF_CALL), None)
    if seed is not None and not is_none(seed):
        return _by_object(project, seed, place)
    is_method = isinstance(draw.func, ast.Attribute) and last_part(draw.func) in table("data")["draw_methods"]
    if is_method and isinstance(draw.func, ast.Attribute) and not name.startswith(_OF_PACKAGES):
        return _by_object(project, draw.func.value, place)
    generator = _generator_of(name or f".{last_part(draw.func)}")
    return state_at(project, draw, place, generator, files) if generator is not None else None


#: What the functions of packages are called that draw from the generator of the process.
_OF_PACKAGES = ("random.", "numpy.random.", "torch.")
#: Arguments of a draw that say from which generator, or by which seed.
_SEEDS_OF_CALL = frozenset({"generator", "random_state", "seed"})


def _generator_of(name: str) -> Generator | None:
    """The package from whose generator a function draws; scikit-learn and datasets take NumPy's."""
    if name.startswith(("numpy.random.", "sklearn.")) or name.endswith(".train_test_split"):
        return "numpy"
    return "torch" if name.startswith("torch.") else "random" if name.startswith("random.") else None


def _by_object(project: Project, given: ast.expr, place: Place) -> Apart | None:
    """The same of a seed, or of a generator that is an object, by what it is made with or seeded by in the function."""
    held = assigned_above(place, dotted_ast(given), given.lineno) if dotted_ast(given) else [given]
    if dotted_ast(given):
        scope = place.around or place.facts.tree
        seeds = (c for c in calls_below(scope) if (c.end_lineno or c.lineno) < given.lineno and c.args)
        text = f"{dotted_ast(given)}.manual_seed"
        last = next((c for c in reversed(list(seeds)) if dotted_ast(c.func) == text), None)
        held = [last] if last is not None else held
    span_of = place.facts.file.span_of
    for value in held:
        if not isinstance(value, ast.Call):
            continue
        if last_part(value.func) == "manual_seed" and value.args:
            return Apart(span_of(value)) if is_by_rank(project, value.args[0], place) else None
        if place.facts.qualified(value.func) in table("data")["generators"]:
            seed = next(iter((*value.args, *(k.value for k in value.keywords))), None)
            if seed is None or is_none(seed):
                return Apart(None)
            return Apart(span_of(value)) if is_by_rank(project, seed, place) else None
    return Apart(span_of(given)) if is_by_rank(project, given, place) else None


def state_at(
    project: Project, node: ast.AST, place: Place, generator: Generator, files: Iterable[ModuleFacts]
) -> Apart | None:
    """How the ranks' generators differ above a node; None where they may be alike. `files` are those of the programs
    that come to it."""
    held = list(files)
    if not any(_may_seed(facts, project) for facts in held):
        return Apart(None) if _is_whole(held) else None
    found = _last_seed(project, getattr(node, "lineno", 0), place, generator, _CALLERS)
    if found is None or found.state != "apart" or _seeds_alike_elsewhere(project, held, generator):
        return None
    return Apart(found.span)


def is_alike(project: Project, node: ast.AST, place: Place, generator: Generator, files: Iterable[ModuleFacts]) -> bool:
    """Whether the generator has one state on all ranks at a node: the last seed above it is made whatever happens, and
    no seed of the programs (`files`) has the rank in it, or is the system's."""
    return alike_by(project, node, place, generator, files) is not None


def alike_by(
    project: Project, node: ast.AST, place: Place, generator: Generator, files: Iterable[ModuleFacts]
) -> Span | None:
    """The seed by which it has."""
    found = _last_seed(project, getattr(node, "lineno", 0), place, generator, _CALLERS)
    if found is None or found.state != "alike" or not found.always or _seeds_apart(project, files):
        return None
    return found.span


def _seeds_apart(project: Project, files: Iterable[ModuleFacts]) -> bool:
    for facts in files:
        for call in calls_below(facts.tree) if facts.file.shows(_MAY_SEED) else ():
            if not _MAY_SEED.search(last_part(call.func)):
                continue
            given = (*call.args, *(keyword.value for keyword in call.keywords))
            place = Place(facts, function_at(facts.tree, call.lineno))
            drawn = not given and last_part(call.func) == "seed"
            by_rank = _BY_ARGUMENT in {keyword.arg for keyword in call.keywords}
            if drawn or by_rank or any(is_by_rank(project, each, place) for each in given):
                return True
    return False


def _is_whole(files: list[ModuleFacts]) -> bool:
    """Whether the files have a program, and no framework that may seed for it."""
    packages = set[str]().union(*(facts.imports.packages for facts in files))
    others = frameworks.packages(lambda each: _PLAIN.isdisjoint(each.packages))
    return others.isdisjoint(packages) and any(bool(main_guards(f.tree)) or _acts(f.tree) for f in files)


def _acts(tree: ast.Module) -> bool:
    """Whether a file is a script that calls something at its top."""
    return any(isinstance(n, ast.Expr) and isinstance(n.value, ast.Call) for n in tree.body)


def _may_seed(facts: ModuleFacts, project: Project) -> bool:
    """Whether a file calls, imports or hands on what may seed a generator that a process keeps."""

    def found() -> bool:
        return any(_MAY_SEED.search(name) for name in _names_used(facts))

    return facts.file.shows(_MAY_SEED) and bool(project.remember(("may seed",), found, facts.kept))


def _names_used(facts: ModuleFacts) -> Iterator[str]:
    for node in walk(facts.tree):
        if isinstance(node, ast.Call) and not _is_of_object(facts, node):
            yield last_part(node.func)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def _is_of_object(facts: ModuleFacts, call: ast.Call) -> bool:
    """``generator.manual_seed(0)`` of an object, not of the package."""
    of_package = facts.qualified(call.func).startswith(("torch.manual_seed", "torch.random."))
    return last_part(call.func) == "manual_seed" and isinstance(call.func, ast.Attribute) and not of_package


# ---- the last seed before a place


def _last_seed(project: Project, line: int, place: Place, generator: Generator, above: int) -> _Seeding | None:
    """What the last call above a line makes of a generator: in the function, or in those that call it; where they
    disagree, or a caller may have been started with any state, nothing is known."""
    scope: ast.AST = place.around if place.around is not None else place.facts.tree
    perhaps = None
    for call, always in _calls_above(scope, line):
        seeding = _seeding(project, call, place, generator, _INTO)
        if seeding is not None and (always or seeding.state != "apart"):
            return dataclasses.replace(seeding, always=always and seeding.always)
        perhaps = perhaps or seeding
    callers = _callers(project, place) if above else ()
    found = [_last_seed(project, site.node.lineno, at, generator, above - 1) for site, at in callers]
    seen = [each for each in found if each is not None]
    if seen and len(seen) == len(found) and len({each.state for each in seen}) == 1:
        return dataclasses.replace(seen[0], always=all(each.always for each in seen))
    return None if any(each.state != "apart" for each in seen) else perhaps


def _callers(project: Project, place: Place) -> tuple[tuple[CallSite, Place], ...]:
    """The calls of the function around; of a constructor those that make an object of its class, and of a method that
    Lightning calls those that have it do so."""
    if place.around is None or place.way:
        return place.callers(project)
    sites = sites_that_run(project, place.facts, place.around) or _hooked(project, place.facts, place.around)
    return tuple((site, Place(site.facts, site.around)) for site in sites)


def _hooked(project: Project, facts: ModuleFacts, hook: FunctionNode) -> tuple[CallSite, ...]:
    """The calls by which a trainer gets an object that has a hook: ``trainer.fit(model, datamodule=data)``."""
    owner, _ = facts.method_at(hook.lineno) or (None, None)
    if owner is None or hook.name not in _HOOKS:
        return ()
    name = project.classes.of(facts, owner).name
    if not any(project.classes.subclass_of(name, base) for base in _HOOKED):
        return ()

    def found() -> tuple[CallSite, ...]:
        return tuple(
            CallSite(each, call, function_at(each.tree, call.lineno), bound=True)
            for each in project.modules.but_tests(project.contents.holding(f".{_FIT}("))
            for call in calls_below(each.tree)
            if last_part(call.func) == _FIT and any(_has(project, each, call, given, hook) for given in _given(call))
        )

    return project.remember(("fits", name, hook.name), found)


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _has(project: Project, facts: ModuleFacts, call: ast.Call, value: ast.expr, hook: FunctionNode) -> bool:
    """Whether a value is an object whose class has this method, itself or from one that it inherits from."""
    kind = project.types.of(value, facts, function_at(facts.tree, call.lineno), None, _INTO)
    found = project.classes.method(kind, hook.name) if kind else None
    return found is not None and found[1] is hook


#: Methods that Lightning calls in `fit` before it trains, of which classes. Source: trainer/call.py, _call_setup_hook.
_FIT = "fit"
_HOOKS = frozenset({"setup", "train_dataloader", "val_dataloader", "configure_model"})
_HOOKED = ("lightning.pytorch.LightningDataModule", "lightning.pytorch.LightningModule")


def _calls_above(scope: ast.AST, line: int) -> list[tuple[ast.Call, bool]]:
    """The calls that a function, or a file at its top, makes above a line, the last one first, each with whether it is
    made whatever happens."""
    found = []
    for statement in getattr(scope, "body", ()):
        if isinstance(statement, (FunctionNode, ast.ClassDef)):
            continue
        always = not isinstance(statement, (ast.If, ast.For, ast.While, ast.Try)) or statement in _main(scope)
        found += [(call, always) for call in calls_below(statement) if (call.end_lineno or call.lineno) < line]
    return sorted(found, key=lambda each: (each[0].lineno, each[0].col_offset), reverse=True)


def _main(scope: ast.AST) -> list[ast.If]:
    return main_guards(scope) if isinstance(scope, ast.Module) else []


def _seeding(project: Project, call: ast.Call, place: Place, generator: Generator, depth: int) -> _Seeding | None:
    """What a call makes of a generator, itself or in the functions of the project that it runs; None where it leaves it
    as it is."""
    span = place.facts.file.span_of(call)
    if place.facts.qualified(call.func) in table("data")["seeders"][generator]:
        return _Seeding(_by_seed(project, call, place), span)
    found = called_function(project, call, place)
    if found is None:
        may_seed = _MAY_SEED.search(last_part(call.func)) and not _is_of_object(place.facts, call)
        of_other = place.facts.qualified(call.func) in _every_seeder()
        return _Seeding(_by_framework(project, call, place), span) if may_seed and not of_other else None
    if not _seeds_inside(project, *found, generator, depth):
        return None
    inside, perhaps = place.called(call, *found), None
    for each, always in _calls_above(found[1], (found[1].end_lineno or found[1].lineno) + 1) if depth else ():
        seeding = _seeding(project, each, inside, generator, depth - 1)
        if seeding is not None and (always or seeding.state != "apart"):
            return _Seeding(seeding.state, span, always and seeding.always)
        perhaps = perhaps or seeding
    return _Seeding("apart", span) if perhaps is not None else None


def _every_seeder() -> frozenset[str]:
    """What seeds the generator of one package; `torch.cuda.manual_seed` is that of the GPUs."""
    cuda = ("torch.cuda.manual_seed", "torch.cuda.manual_seed_all")
    return frozenset(name for names in table("data")["seeders"].values() for name in names) | frozenset(cuda)


def _by_seed(project: Project, call: ast.Call, place: Place) -> _State:
    seed = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg in ("seed", "a")), None)
    if seed is None:
        return "unknown"
    return "apart" if is_by_rank(project, seed, place) else "alike"


def _by_framework(project: Project, call: ast.Call, place: Place) -> _State:
    """What a function of another package does that seeds all generators, by what it is called."""
    asked = next((k.value for k in call.keywords if k.arg == _BY_ARGUMENT), None)
    if asked is not None:
        return "apart" if isinstance(asked, ast.Constant) and asked.value is True else "unknown"
    if last_part(call.func) not in table("data")["seed_helpers"]:
        return "unknown"
    return _by_seed(project, call, place)


def _seeds_inside(
    project: Project, facts: ModuleFacts, function: FunctionNode, generator: Generator, depth: int
) -> bool:
    """Whether a function of the project seeds a generator, or calls what does."""

    def found() -> bool:
        at = Place(facts, function)
        for call in calls_below(function):
            if facts.qualified(call.func) in table("data")["seeders"][generator]:
                return True
            inner = called_function(project, call, at)
            if inner is None and _MAY_SEED.search(last_part(call.func)) and not _is_of_object(facts, call):
                return True
            if inner is not None and depth and _seeds_inside(project, *inner, generator, depth - 1):
                return True
        return False

    key = ("seeds inside", function.name, function.lineno, generator, depth)
    return bool(project.remember(key, found, facts.kept))


def _seeds_alike_elsewhere(project: Project, files: list[ModuleFacts], generator: Generator) -> bool:
    """Whether the files of the programs also seed the generator by a constant, perhaps between the seed by the rank and
    the place."""
    for facts in files:
        if facts.source.is_test or not facts.file.shows(_MAY_SEED):
            continue
        for call in calls_below(facts.tree):
            seeds = facts.qualified(call.func) in table("data")["seeders"][generator] and call.args
            if seeds and isinstance(call.args[0], ast.Constant):
                return True
    return False

"""What the rules about data share: samplers, loaders, and where a project sets the epoch."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.files import lies_in
from ddp_lint.findings import Span
from ddp_lint.knowledge import frameworks, table
from ddp_lint.knowledge.tensors import words_of
from ddp_lint.launch.by_rank import Place, assigned_above, is_by_rank
from ddp_lint.launch.one_rank import mentions_own_rank
from ddp_lint.launch.search import imported_through, importers, programs
from ddp_lint.launch.unused import is_unused_at
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.requirements import requires_older
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.queries import options
from ddp_lint.source.syntax import FunctionNode, argument_at, calls_below, function_at, main_guards, parameters, walk
from ddp_lint.source.tree import subtree
from ddp_lint.view import Module
from ddp_lint.view.as_ast import as_ast
from ddp_lint.view.wraps import argument, assigned_name

SAMPLER = "torch.utils.data.DistributedSampler"
_RANDOM = "torch.utils.data.RandomSampler"
#: Classes whose constructor takes what `torch.utils.data.DataLoader` takes, by the same names.
LOADERS = frozenset(table("data")["loaders"])
#: What divides data between ranks, forms their group, or adds up what they have.
_DIVIDES = re.compile(r"DistributedSampler|num_replicas|split_dataset_by_node|split_by_node|\.shard\(")
_SHARES = re.compile(rf"{_DIVIDES.pattern}|init_process_group|all_?reduce")
#: By what a program may choose the samples of a rank itself.
_CHOOSES = re.compile(r"rank|world|process_index|num_(tasks|processes|shards|parts)|device_id", re.IGNORECASE)
_AT_END = re.compile(r"[\w.]+(?=\(?$)")
#: What makes the seed of a generator another one on each rank.
_RANK = re.compile(r"rank|process_index", re.IGNORECASE)
#: What a function says that gives each rank its part.
_BY_RANK = re.compile(r"rank\b|world_size|process_index|num_processes|shard")
#: Values that the data of one loader is followed through.
_VALUES = 12
#: Files that import a helper which are looked at as programs.
_USERS = 8


def is_sampler(module: Module, call: cst.Call) -> bool:
    """Whether a call builds a DistributedSampler itself (subclasses may have an order of their own).

    Also through a name: ``make = RandomSampler if local_rank == -1 else DistributedSampler``.
    """
    if module.qualified(call.func) == SAMPLER:
        return True
    if not isinstance(call.func, cst.Name):
        return False
    values = module.assignments(call.func)
    return any(module.qualified(option) == SAMPLER for option in options(values))


def framework_loads(module: Module | ModuleFacts) -> bool:
    """Whether the file hands its loaders to a framework that sets the epoch (`Framework.sets_epoch`)."""
    return not _packages_that_load(module.file.code).isdisjoint(module.imports.packages)


@functools.lru_cache(maxsize=8)  # asked for each loader of a file
def _packages_that_load(code: str) -> frozenset[str]:
    """The packages of the frameworks that set the epoch in a file with this text."""

    def sets(framework: frameworks.Framework) -> bool:
        return framework.sets_epoch and (not framework.loops or any(word in code for word in framework.loops))

    return frozenset(frameworks.packages(sets))


def is_evaluation(text: str) -> bool:
    """Whether a name or an expression mentions validation or test data."""
    return re.search(table("data")["evaluation"], text, re.IGNORECASE) is not None


def mentions_nearby(module: Module, word: str, *, other_programs: bool = True) -> bool:
    """Whether `word` occurs in the code that runs together with the file, and maybe in other programs of its folder.

    That is: the file, its package (for a script without one, its folder and what is below), the project's packages
    that it imports, and the files that import it. Another example of the same repository is not nearby.
    """
    if module.project is None or module.path is None:
        return word in module.file.code
    project, path = module.project, module.path
    near = _nearby(module, project, path, word) if other_programs else _together(module, project, path, word)
    return any(_writes(project, each, word) for each in near)


def sets_epoch_nearby(module: Module) -> bool:
    """Whether the code that runs together with the file sets the epoch of something that may be a sampler: that of a
    dataset (``loader.dataset.set_epoch(epoch)``) is no sampler's."""
    if module.project is None or module.path is None:
        return "set_epoch" in module.file.code
    project = module.project
    near = (project.modules.facts_of(path) for path in _together(module, project, module.path, "set_epoch"))
    return any(facts is None or _sets_epoch(project, facts) for facts in near)


def programs_set_epoch(module: Module) -> bool:
    """Whether a program that imports the file, or a helper which does, sets the epoch of something that may be a
    sampler."""
    project = module.project
    users = programs(project, module.name, holding=("set_epoch",)) if project is not None else ()
    return project is not None and any(_sets_epoch(project, user) for user in users)


def _sets_epoch(project: Project, facts: ModuleFacts) -> bool:
    def found() -> bool:
        datasets = (n for n in walk(facts.tree) if isinstance(n, ast.ClassDef) and _is_dataset(n))
        own = {id(n) for each in datasets for n in each.body if isinstance(n, FunctionNode)}
        return any(_names_setter(node) for node in walk(facts.tree) if id(node) not in own)

    return "set_epoch" in facts.file.code and project.remember(("sets an epoch", facts.name), found)


def _is_dataset(node: ast.ClassDef) -> bool:
    return any(name.endswith("Dataset") for name in (node.name, *map(dotted_ast, node.bases)))


def _names_setter(node: ast.AST) -> bool:
    """Whether a node names `set_epoch`, of something else than a dataset."""
    if isinstance(node, ast.Attribute):
        return node.attr == "set_epoch" and not last_part(node.value).lower().endswith("dataset")
    if isinstance(node, FunctionNode | ast.alias | ast.Name):
        return getattr(node, "name", getattr(node, "id", "")) == "set_epoch"
    if isinstance(node, ast.keyword | ast.arg):
        return node.arg == "set_epoch"
    return isinstance(node, ast.Constant) and node.value == "set_epoch"


def mentioned_in_run(module: Module, word: str) -> bool:
    """Whether `word` occurs in the code of the programs that come to the file: in it, in what it imports, and in the
    files that import it with what they import."""
    return any(word in facts.file.code for facts in files_of_programs(module))


def _writes(project: Project, path: pathlib.Path, word: str) -> bool:
    """Whether a file that holds a word has it outside of comments, as far as it can be read."""
    facts = project.modules.facts_of(path)
    return facts is None or word in facts.file.code


def done_nearby(module: Module, word: str) -> Span | None:
    """Where the code that runs together with the file has `word` in a line that is no comment and no docstring. Not in
    what the programs of the file do not import, nor in what they do not use."""
    if module.project is None or module.path is None:
        return None
    if word.endswith("(") and _is_defined_otherwise(module.project, word.rstrip("(")):
        return None
    # ``sample_augment(`` may draw more items of a list: a small word counts as the name, not as the end of one.
    begins = re.compile(rf"(?<![^\W_])(?<!\w_){re.escape(word)}" if word[0].islower() else re.escape(word))
    for path in _together(module, module.project, module.path, word):
        facts = module.project.modules.facts_of(path)
        for number, line in enumerate(facts.file.lines if facts is not None else (), 1):
            if facts is None or word not in line or number in facts.prose:
                continue
            place = begins.search(line)
            if place is None or _draws_by_itself(module.project, facts, line[: place.end()]):
                continue
            if _is_run(module, module.project, facts, number):
                start = place.start() + 1
                return Span(facts.file.path, number, start, number, start + len(word))
    return None


def _is_defined_otherwise(project: Project, name: str) -> bool:
    """Whether the project defines functions of a name, and in none of them is anything of chance: ``def augment(self,
    columns):`` adds columns."""

    def found() -> bool:
        files = (
            facts
            for path in project.contents.holding(f"def {name}(")
            if (facts := project.modules.facts_of(path)) is not None
        )
        nodes = (node for facts in files for node in walk(facts.tree) if isinstance(node, FunctionNode))
        defined = [node for node in nodes if node.name == name]
        return bool(defined) and not any(map(_is_of_chance, defined))

    return project.remember(("defined otherwise", name), found)


def _is_of_chance(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return any(_OF_CHANCE.search(ast.unparse(statement)) for statement in statements)


#: What code says that changes samples at random, also by the functions that it calls.
_OF_CHANCE = re.compile(
    r"rand|shuffl|choice|sampl|nois|permut|crop|flip|jitter|rotat|transform|augment|mix|mask|drop|erase|blur",
    re.IGNORECASE,
)


def _draws_by_itself(project: Project, facts: ModuleFacts, line: str) -> bool:
    """Whether the name at the end of a line is of a package that draws from its own generator, in the version that the
    project asks for: no seed of `random` or NumPy reaches that."""
    name = _AT_END.search(line)
    if name is None:
        return False
    package = (facts.imports.resolve(name[0]) or name[0]).partition(".")[0]
    since = table("data")["own_generators"].get(package)
    return since is not None and not requires_older(project, package, since)


def _is_run(module: Module, project: Project, facts: ModuleFacts, line: int) -> bool:
    """Whether a program that the file is part of comes by a line of another one: it imports that file, and uses the
    function or class around the line. A package has the data of many programs."""
    among = _of_programs(module, project)
    own = module.facts is not None and facts.name == module.facts.name
    if facts.name not in among:
        return own or _imports_each_module(project, facts.name.rpartition(".")[0], among)
    if not own and any(line in range(guard.lineno, (guard.end_lineno or 0) + 1) for guard in main_guards(facts.tree)):
        return False
    return not is_unused_at(project, facts, line, among)


def _imports_each_module(project: Project, package: str, among: frozenset[str]) -> bool:
    """Whether a package among these imports its modules by names that it computes: ``import_module(f"data.{name}")``.
    What is in them is found by a name in the configuration, too."""
    facts = project.modules.facts(package) if package in among else None
    calls = calls_below(facts.tree) if facts is not None and facts.file.holds("import_module") else ()
    names = (call.args[0] for call in calls if last_part(call.func) == "import_module" and call.args)
    return any(not isinstance(name, ast.Constant) for name in names)


def ranks_share(module: Module) -> bool:
    """Whether something in the programs of a file, itself or what they import, divides data between ranks or has them
    share a model. Of many trainers that a launcher finds by name each may be run on several ranks, but without that
    they are copies of one training, for which one seed is right."""
    project = module.project
    if project is None or not any(_shares(project, facts) for facts in files_of_programs(module)):
        return False
    return not _shuffles_alike(module, project)


def _shares(project: Project, facts: ModuleFacts, how: re.Pattern[str] = _SHARES) -> bool:
    sharing = frameworks.packages(lambda each: each.launch != frameworks.Launch() and "torch" not in each.packages)
    if not sharing.isdisjoint(facts.imports.packages) or project.texts.shows(facts, "wraps"):
        return True
    return facts.file.shows(how)


def _shuffles_alike(module: Module, project: Project) -> bool:
    """Whether all ranks read the same samples: the loaders shuffle by torch's generator, which the file seeds, nothing
    that the program imports divides data or wraps a model, and neither the file nor its datasets know a rank."""
    facts = module.facts
    if facts is None or "torch.manual_seed(" not in facts.file.code or _knows_rank(facts):
        return False
    loaders = module.calls_to(LOADERS)
    trained = [call for call in loaders if not is_evaluation(assigned_name(module, call))]
    if not trained or not all(_shuffles_itself(module, call) for call in trained):
        return False
    files = [*files_of_programs(module)]
    if any(_shares(project, each, _DIVIDES) for each in files):
        return False
    return not any(_knows_rank(each) for each in files if "Dataset" in each.file.code or "Sampler" in each.file.code)


def _knows_rank(facts: ModuleFacts) -> bool:
    names = (getattr(node, key, None) for node in walk(facts.tree) for key in ("id", "attr", "arg"))
    return any(isinstance(name, str) and _CHOOSES.search(name) for name in names)


def _shuffles_itself(module: Module, loader: cst.Call) -> bool:
    """Whether a loader draws its order from torch's generator: ``shuffle=True``, or a RandomSampler without another."""
    sampler, shuffle = argument(loader, 3, "sampler"), argument(loader, 2, "shuffle")
    if argument(loader, None, "generator") is not None or argument(loader, 4, "batch_sampler") is not None:
        return False
    if sampler is None:
        return shuffle is not None and dotted(shuffle) == "True"
    made = options([sampler, *module.assignments(sampler)]) if dotted(sampler) else [sampler]
    calls = [each for each in made if isinstance(each, cst.Call)]
    return bool(calls) and all(
        module.qualified(call.func) == _RANDOM and argument(call, 3, "generator") is None for call in calls
    )


def files_of_programs(module: Module) -> Iterator[ModuleFacts]:
    """The files of the programs that come to a file: it, those that import it, and what all of these import."""
    project = module.project
    names = _of_programs(module, project) if project is not None else ()
    yield from (
        facts for name in sorted(names) if project is not None and (facts := project.modules.facts(name)) is not None
    )


def _of_programs(module: Module, project: Project) -> frozenset[str]:
    """The modules that the file imports, directly or through others, and so do the files that import it."""

    def found() -> frozenset[str]:
        assert module.facts is not None
        direct = _users(project, module.name)
        users = {facts.name: facts for facts in (*direct, *(f for d in direct for f in _users(project, d.name)))}
        each = (module.facts, *users.values())
        return frozenset[str]().union(*(imported_through(project, facts) for facts in each))

    if module.facts is None or not module.name:
        return frozenset()
    return project.remember(("of programs", module.name), found)


def is_made_by_rank(module: Module, data: cst.BaseExpression) -> bool:
    """Whether a function or class of the project that the data comes from mentions the rank."""
    values = [data]
    for value in values:
        parts = list(subtree(value))
        calls = (module.callee(n) for n in parts if isinstance(n, cst.Call))
        if any(_mentions_rank(module, name) for name in calls if name):
            return True
        if len(values) < _VALUES:
            values += (v for n in parts if isinstance(n, cst.Name) for v in module.assignments(n) if v not in values)
    return False


def is_part_of_rank(module: Module, data: cst.BaseExpression) -> bool:
    """Whether data is the part that a rank takes by its number: ``Subset(data, range(rank, n, world))``,
    ``data.shard(world, rank)``, ``split_dataset_by_node(data, rank, world)``."""
    project, facts = module.project, module.facts
    for value in [data, *module.assignments(data)] if project is not None and facts is not None else ():
        call = as_ast(module, value) if isinstance(value, cst.Call) else None
        if not isinstance(call, ast.Call) or project is None or facts is None:
            continue
        place = Place(facts, function_at(facts.tree, call.lineno))
        if facts.qualified(call.func) == "torch.utils.data.Subset":
            indices = argument_at(call, 1, "indices")
            if indices is not None and _is_cut_by_rank(project, indices, place):
                return True
        elif project.meanings.of(facts, call.func) == "datasets.distributed.split_dataset_by_node":
            index = argument_at(call, 1, "rank")
            if index is not None and is_by_rank(project, index, place):
                return True
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "shard":
            index = argument_at(call, 1, "index")
            if index is not None and is_by_rank(project, index, place):
                return True
    return False


def _is_cut_by_rank(project: Project, indices: ast.expr, place: Place) -> bool:
    """Whether indices begin at the number of the rank: ``range(rank, n, world)``, ``order[rank::world]``."""
    held = assigned_above(place, indices.id, indices.lineno) if isinstance(indices, ast.Name) else [indices]
    begins = [
        value.args[0] if isinstance(value, ast.Call) else _begin(value)
        for value in map(_unlisted, held)
        if not isinstance(value, ast.Call) or (last_part(value.func) == "range" and len(value.args) > 1)
    ]
    return any(begin is not None and is_by_rank(project, begin, place) for begin in begins)


def _unlisted(value: ast.expr) -> ast.expr:
    """``list(range(..))`` is the range."""
    wraps = isinstance(value, ast.Call) and last_part(value.func) in ("list", "tuple") and len(value.args) == 1
    return value.args[0] if isinstance(value, ast.Call) and wraps else value


def _begin(value: ast.expr) -> ast.expr | None:
    return value.slice.lower if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice) else None


def _mentions_rank(module: Module, name: str) -> bool:
    project = module.project
    found = project.meanings.definition(project.meanings.canonical(name)) if project is not None else None
    if found is None:
        return False
    facts, definition = found
    words = "\n".join(facts.file.lines[definition.lineno - 1 : definition.end_lineno])
    return _BY_RANK.search(words) is not None or mentions_own_rank(module, words)


def _users(project: Project, name: str) -> list[ModuleFacts]:
    """The files that import a module. A package that passes its names on is none: its users are."""
    found = importers(project, name, holding=(name.rpartition(".")[2],)) if name else iter(())
    return [f for f in found if not f.source.is_test and not f.source.place.endswith("__init__.py")][:_USERS]


def reads_alike(module: Module) -> bool:
    """Whether the samplers that run together with the file, one at least, are of one replica: all ranks read the same
    samples, and may have to draw the same, as the stages of a pipeline do."""
    if module.project is None or module.path is None:
        return False
    files = map(module.project.modules.facts_of, _together(module, module.project, module.path, "num_replicas"))
    calls = (n for facts in files if facts is not None for n in calls_below(facts.tree))
    given = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "num_replicas"]
    return bool(given) and all(isinstance(value, ast.Constant) and value.value == 1 for value in given)


def seeds_workers_by_rank(module: Module) -> bool:
    """Whether the programs of a file have Lightning seed the workers of each rank by their own numbers and by the rank:
    ``seed_everything(seed, workers=True)``, or the variable that this sets."""
    return any(facts.file.holds("PL_SEED_WORKERS") or _seeds_workers(facts) for facts in files_of_programs(module))


def _seeds_workers(facts: ModuleFacts) -> bool:
    calls = calls_below(facts.tree) if facts.file.holds("seed_everything") else ()
    given = (k.value for call in calls if last_part(call.func) == "seed_everything" for k in call.keywords
             if k.arg == "workers")  # fmt: skip
    return any(isinstance(value, ast.Constant) and value.value is True for value in given)


def generator_has_rank(module: Module) -> bool:
    """Whether a loader of the programs of a file has workers, and draws their seeds from a generator that is seeded by
    the rank."""
    return any(facts.file.holds("manual_seed") and _gives_generator(facts) for facts in files_of_programs(module))


def _gives_generator(facts: ModuleFacts) -> bool:
    calls = calls_below(facts.tree)
    seeds = (call.args[0] for call in calls if last_part(call.func) == "manual_seed" and call.args
             and facts.qualified(call.func) != "torch.manual_seed")  # fmt: skip
    if not any(_RANK.search(ast.unparse(seed)) for seed in seeds):
        return False
    loaders = (call for call in calls_below(facts.tree) if facts.qualified(call.func) in LOADERS)
    given = ({keyword.arg: keyword.value for keyword in call.keywords} for call in loaders)
    return any("generator" in each and _is_positive(each.get("num_workers")) for each in given)


def _is_positive(number: ast.expr | None) -> bool:
    return number is not None and not (isinstance(number, ast.Constant) and number.value == 0)


def drawn_in_samples(module: Module) -> tuple[str, Span] | None:
    """What a dataset that runs together with the file draws from `random` or NumPy for each of its samples, and
    where."""
    if module.project is None or module.path is None:
        return None
    for path in _together(module, module.project, module.path, "def __getitem__"):
        facts = module.project.modules.facts_of(path)
        if facts is None or facts.source.is_test:
            continue
        for draw in _draws_of_samples(facts):
            if _is_run(module, module.project, facts, draw.lineno):
                return ast.unparse(draw.func), facts.file.span_of(draw.func)
    return None


def _draws_of_samples(facts: ModuleFacts) -> Iterator[ast.Call]:
    """The draws in the `__getitem__` of the training datasets of a file, from a generator that it does not seed for
    each sample."""
    for method in _sampling(facts):
        seeded = _seeded_by_item(facts, method)
        for call in calls_below(method):
            name = facts.qualified(call.func)
            if name in table("data")["draws"] and call.lineno < seeded.get(name.partition(".")[0], call.lineno + 1):
                yield call


def _sampling(facts: ModuleFacts) -> Iterator[ast.FunctionDef]:
    """The `__getitem__` of the training datasets of a file."""
    for cls in facts.definitions.values():
        if isinstance(cls, ast.ClassDef) and not is_evaluation(" ".join(words_of(cls.name))):
            yield from (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__getitem__")


def _seeded_by_item(facts: ModuleFacts, method: ast.FunctionDef) -> dict[str, int]:
    """The packages whose generators a `__getitem__` seeds by the number of the sample (``random.seed(seed + index)``),
    and in which line. What is drawn below is the same wherever the sample is read, and another for each other one."""
    index = [each.arg for each in parameters(method)][1:2]
    seeds = (c for c in calls_below(method) if last_part(c.func) in ("seed", "manual_seed") and len(c.args) == 1)
    by_item = (c for c in seeds if any(isinstance(n, ast.Name) and n.id in index for n in walk(c.args[0])))
    return {facts.qualified(call.func).partition(".")[0]: call.lineno for call in by_item}


def seeds_each_sample(module: Module) -> bool:
    """Whether all training datasets that the programs of a file use seed torch and `random` or NumPy for each sample by
    its number: no other seed decides what their transforms draw."""
    project = module.project
    files = [facts for facts in files_of_programs(module) if facts.file.holds("__getitem__")]
    if project is None or not any(facts.file.holds("manual_seed") for facts in files):
        return False
    used = [(f, n) for f in files for n in _sampling(f) if _is_run(module, project, f, n.lineno)]
    seeded = [_seeded_by_item(facts, method) for facts, method in used]
    return bool(seeded) and all("torch" in each and len(each) > 1 for each in seeded)


def _nearby(module: Module, project: Project, path: pathlib.Path, word: str) -> Iterator[pathlib.Path]:
    """The files that hold `word` and run together with the file, itself first."""
    holding = project.contents.holding(word)
    if path in holding:
        yield path
    homes = [_home(path), *(_home(p) for p in _imported_files(module, project))]
    yield from (other for other in holding if other != path and any(lies_in(other, home) for home in homes))
    for facts in importers(project, module.name, holding=(word,)):
        importing = project.modules.find(facts.name)
        if importing is not None:
            yield importing


def _together(module: Module, project: Project, path: pathlib.Path, word: str) -> Iterator[pathlib.Path]:
    """The same without other programs: files that are started by themselves, whose names no other file has, and that do
    not import this one."""
    importing = {project.modules.find(facts.name) for facts in importers(project, module.name, holding=(word,))}
    for near in _nearby(module, project, path, word):
        facts = project.modules.facts_of(near) if near != path and near not in importing else None
        if facts is None or not _is_program(project, near, facts):
            yield near


def _is_program(project: Project, path: pathlib.Path, facts: ModuleFacts) -> bool:
    return bool(main_guards(facts.tree)) and all(other == path for other in project.contents.holding(path.stem))


def _home(path: pathlib.Path) -> pathlib.Path:
    """The outermost package around a file; the folder of a script that is in none."""
    folder = path.parent
    while (folder.parent / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _imported_files(module: Module, project: Project) -> list[pathlib.Path]:
    found = {project.modules.find(target.partition(".")[0]) for target in module.imports.names.values()}
    return [path for path in found if path is not None]

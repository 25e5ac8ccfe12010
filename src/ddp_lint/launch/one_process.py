"""What says that there is one process: sizes and devices that a file gives, and tests of how many there are."""

from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.launch.arms import is_joined_elsewhere, is_told_no_rank
from ddp_lint.launch.given import is_always
from ddp_lint.launch.joining import spawns
from ddp_lint.launch.search import importers
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source import SourceFile
from ddp_lint.source.control_flow import asserted, conditions, conditions_at, conjuncts, outcomes
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.occurring import occurs
from ddp_lint.source.syntax import (
    FunctionNode,
    calls_below,
    function_at,
    statements,
    text_of,
)
from ddp_lint.view import Module

#: What a file has that gives a number of processes.
SIZE = re.compile(r"world_size|WORLD_SIZE|\bdevices *= *\w")
#: Where a file may have a number of devices that is 1, or a parameter.
_DEVICES = re.compile(r"\bdevices *= *\w")
#: What is given a world size that holds for the whole file.
_TRAINERS = frozenset({"Fabric", "Trainer"})
_ONE = ast.Constant(1)
_SETS_WORLD = frozenset({"Namespace", "SimpleNamespace", "init_process_group"})


def is_world_of_one(facts: ModuleFacts, project: Project) -> bool:
    """Does a file say that it is one process: a world size of 1, which it may pass on as ``args.world_size``, or have
    from where those settings are, or one device for each trainer of Lightning?"""
    if has_one_device(facts, project):
        return True
    sizes = _world_sizes(facts.tree)
    if not sizes and "init_process_group" not in facts.file.text:
        sizes = _sizes_set(facts.tree)
    sizes += _sizes_exported(facts.tree)
    handed_on = [size for size in sizes if isinstance(size, ast.Attribute) and size.attr == "world_size"]
    ones = [size for size in sizes if is_one(size)]
    if len(ones) + len(handed_on) < len(sizes):
        return False
    return bool(ones) or any(_is_one_elsewhere(size.value, facts, project) for size in handed_on)


def makes_groups_of_one(facts: ModuleFacts, project: Project) -> bool:
    """Whether a file makes process groups, each of a world size that is written as 1: one process that may have several
    GPUs."""

    def found() -> bool:
        made = [call for call in calls_below(facts.tree) if last_part(call.func) == "init_process_group"]
        sizes = [{k.arg: k.value for k in call.keywords}.get("world_size") for call in made]
        return bool(sizes) and all(size is not None and is_one(size) for size in sizes)

    return occurs(_SIZE_OF_ONE, facts.file.text) and project.remember(("groups of one",), found, facts.kept)


_SIZE_OF_ONE = re.compile(r"world_size *= *1\b")


def has_one_device(facts: ModuleFacts, project: Project) -> bool:
    """Whether a file makes trainers of Lightning for one device alone, and no process group: ``Fabric(devices=1)``."""
    if not occurs(_DEVICES, facts.file.text) or "init_process_group" in facts.file.text:
        return False
    found: bool = project.remember(("one device",), lambda: _makes_for_one_device(facts, project), facts.kept)
    return found


def is_run_by_others(facts: ModuleFacts, project: Project) -> bool:
    """Whether a file that imports one makes trainers itself, for more devices: what the other one starts is a trial."""
    users = importers(project, facts.name, holding=tuple(_TRAINERS)) if facts.name else ()
    return any(_trainers(user, project) and not has_one_device(user, project) for user in users)


def _trainers(facts: ModuleFacts, project: Project) -> list[ast.Call]:
    """The calls that make trainers of Lightning."""
    calls = (n for n in calls_below(facts.tree) if last_part(n.func) in _TRAINERS)
    return [call for call in calls if "lightning" in project.meanings.of(facts, call.func).partition(".")[0]]


def _makes_for_one_device(facts: ModuleFacts, project: Project) -> bool:
    made = _trainers(facts, project)
    given = [(call, {keyword.arg: keyword.value for keyword in call.keywords}) for call in made]
    return bool(given) and all(
        "devices" in each
        and _is_one_device(each["devices"], call, facts, project)
        and is_one(each.get("num_nodes", _ONE))
        for call, each in given
    )


def _is_one_device(count: ast.expr, call: ast.Call, facts: ModuleFacts, project: Project) -> bool:
    """Whether a trainer has one device: also where it is left to choose on a machine without a GPU, whose CPU is one:
    ``1 if torch.cuda.is_available() else None``, and where the number is a parameter that nobody gives another one."""
    if isinstance(count, ast.Name):
        function = function_at(facts.tree, call.lineno)
        return function is not None and is_always(project, facts, function, count.id, (1, "1"))
    if not isinstance(count, ast.IfExp) or not isinstance(count.test, ast.Call):
        return is_one(count)
    on_cpu = count.orelse
    left_open = isinstance(on_cpu, ast.Constant) and on_cpu.value in (None, 1, "auto")
    return left_open and is_one(count.body) and facts.qualified(count.test.func) == "torch.cuda.is_available"


def _world_sizes(tree: ast.AST) -> list[ast.expr]:
    return [
        keyword.value
        for node in calls_below(tree)
        if last_part(node.func) in _SETS_WORLD
        for keyword in node.keywords
        if keyword.arg == "world_size"
    ]


def _sizes_set(tree: ast.AST) -> list[ast.expr]:
    """What a file sets world sizes to: ``params["world_size"] = 1``."""
    assignments = (node for node in statements(tree) if isinstance(node, ast.Assign))
    return [a.value for a in assignments if any("world_size" in text_of(target) for target in a.targets)]


def _sizes_exported(tree: ast.AST) -> list[ast.expr]:
    """What a file sets the variable of the size to, under no condition: ``os.environ["WORLD_SIZE"] = "1"``."""
    fallbacks = {id(n) for node in statements(tree) if isinstance(node, (ast.If, ast.Try)) for n in statements(node)}
    assignments = (node for node in statements(tree) if isinstance(node, ast.Assign) and id(node) not in fallbacks)
    return [a.value for a in assignments if any(map(_is_exported_size, a.targets))]


def _is_exported_size(target: ast.expr) -> bool:
    if not isinstance(target, ast.Subscript) or not dotted_ast(target.value).endswith("environ"):
        return False
    return isinstance(target.slice, ast.Constant) and target.slice.value == "WORLD_SIZE"


def is_one(size: ast.expr) -> bool:
    """Whether a size is given as the number 1."""
    return isinstance(size, ast.Constant) and size.value in (1, "1")


def _is_one_elsewhere(settings: ast.expr, facts: ModuleFacts, project: Project) -> bool:
    """Whether settings come from a file of the project that has a world size of 1 alone."""
    found = project.meanings.split(project.meanings.of(facts, settings))
    sizes = _world_sizes(found[0].tree) if found is not None and found[0] is not facts else []
    return bool(sizes) and all(map(is_one, sizes))


def is_of_several(module: Module, test: cst.BaseExpression) -> bool:
    """Whether a test holds where there are several processes."""
    text = module.code(test)
    return _SEVERAL.fullmatch(text) is not None and not text.startswith("not ")


#: Tests of how many processes there are: of several where they hold, or of one.
_SEVERAL = re.compile(
    r"(not )?(dist|[\w.]*distributed)\.is_initialized\(\)|(not )?[\w.]*(\b|_)(distributed|ddp)(\(\))?|"
    r"(not )?[\w.]+\[[\"'](\w+_)?(distributed|ddp)[\"']\]|"
    r"[\w.]*(world_size|num_processes)(\(\))? *(> *1|>= *2|!= *1)|([\w.]*[._])?rank is not None"
)
_ALONE = re.compile(r"[\w.]*(world_size|num_processes)(\(\))? *(< *2|<= *1|== *1)|([\w.]*[._])?rank is None")
_DDP = r"[\"'](?i:ddp|DistributedDataParallel)[\"']"
_IS_DDP = re.compile(rf"[\w.]+ *== *{_DDP}")
_IS_NONE = re.compile(r"([\w.]+) *(?:is|==) *None")
#: What a file knows besides of models that several ranks train.
_OTHER_KINDS = re.compile(r"fsdp|FullyShardedDataParallel|fully_shard|deepspeed|horovod|hvd|\btpu\b|xla", re.IGNORECASE)
#: Where ranks may be started by no call that is seen.
_ON_TPUS = re.compile(r"\btpu\b|xla", re.IGNORECASE)
#: A test of whether one process has several GPUs, where there is a wrap for that: a rank has one.
_SEVERAL_GPUS = re.compile(r"[\w.]*n_gpus? *(> *1|>= *2|!= *1)")
_DATA_PARALLEL = re.compile(r"\bDataParallel\(")


def uses_data_parallel(file: SourceFile) -> bool:
    """Whether a file wraps a model by `nn.DataParallel`, which trains on all GPUs in one process."""
    return file.shows(_DATA_PARALLEL)


def as_one_process(module: Module, node: cst.CSTNode) -> bool:
    """Whether a test around `node`, or an `assert` above it, says that there is one process: ``if world_size < 2``,
    ``if not distributed``, ``if rank is None``, ``if "RANK" not in os.environ``, the other branch of ``if
    args.parallel == "DDP"`` where a file knows no other kind, ``if n_gpu > 1`` before DataParallel, or a setting for
    which the file makes no group; or all groups that the file makes are of one process."""
    if asserts_one_process(module, node):
        return True
    if module.facts is not None and module.project is not None and makes_groups_of_one(module.facts, module.project):
        return True
    for part, taken in outcomes(conditions(module, node)):
        text = module.code(part)
        if is_told_no_rank(module, part, taken):
            return True
        if taken and _SEVERAL_GPUS.fullmatch(text) and uses_data_parallel(module.file):
            return True
        if not taken and _IS_DDP.fullmatch(text) and not module.file.shows(_OTHER_KINDS):
            return True
        if taken and _is_of_no_kind(module, text):
            return True
        if _is_of_one(text, taken):
            return True
    return _has_ranks_of_group(module) and is_joined_elsewhere(module, node)


def is_kept_to_one_process(function: FunctionNode | ast.Module, node: ast.AST) -> bool:
    """Whether a test around a node of a function says that there is one process, as far as its text shows."""
    tests = ((part, taken) for test, taken in conditions_at(function, node) for part in conjuncts(test))
    return any(_is_of_one(cst.Module(()).code_for_node(part), taken) for part, taken in tests)


def _has_ranks_of_group(module: Module) -> bool:
    """Whether the ranks of a file are those that make its group: on TPUs they may do without, unless the file spawns
    them itself as processes of PyTorch."""
    if not module.file.shows(_ON_TPUS):
        return True
    facts, project = module.facts, module.project
    return facts is not None and project is not None and any(spawns(facts, project))


def _is_of_no_kind(module: Module, text: str) -> bool:
    """Whether a test says that a name is None for which the file knows the kind of several processes alone:
    ``if parallel_type is None``, where others are for ``parallel_type != "ddp"``."""
    found = _IS_NONE.fullmatch(text)
    if found is None or module.file.shows(_OTHER_KINDS):
        return False
    return re.search(rf"{re.escape(found[1])} *[=!]= *{_DDP}", module.file.code) is not None


def asserts_one_process(module: Module, node: cst.CSTNode) -> bool:
    """Whether an `assert` above `node` says that there is one process: ``assert not cfg.distributed``."""
    held = (part for test in asserted(module, node) for part in conjuncts(test))
    return any(_is_of_one(module.code(part), True) for part in held)


def _is_of_one(text: str, taken: bool) -> bool:
    """Whether the outcome of a test of how many processes there are is that of one."""
    if _SEVERAL.fullmatch(text):
        return text.startswith("not ") == taken
    return taken and _ALONE.fullmatch(text) is not None

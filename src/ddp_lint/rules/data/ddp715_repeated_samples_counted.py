from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.by_rank import Place, assigned_above
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.project import Project
from ddp_lint.project.facts import paired
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import LOADERS, SAMPLER
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast, last_part, of_self
from ddp_lint.source.syntax import FunctionNode, argument_at, function_at, parameters, statements, walk
from ddp_lint.view.as_ast import as_ast

_ACCELERATOR = "accelerate.Accelerator"
_GATHERS = frozenset({"torch.distributed.all_gather", "torch.distributed.all_gather_into_tensor"})
#: What takes the repeated samples away again, or keeps accelerate from repeating any.
_CUTS = re.compile(
    r"\[\s*:\s*[\w(-]|samples_seen|remainder|gather_for_metrics|even_batches|unique\(|drop_duplicates|dedup|\bids?\b"
    r"|(image|sample|example|item|video|question|query|doc|row|file|u|gu)_?ids?\b|\bidx|ind(ex|ice)s?\b|\bset\("
)
_EVALUATES = re.compile(r"\.eval\(\)|no_grad|inference_mode|enable_grad\(False|grad_enabled\(False")
#: What a value is computed by that has an entry for each sample, and what makes one number of them.
_OF_EACH = re.compile(r"argmax\(|\.generate\(|topk\(|logits|sigmoid\(|softmax\(|\.max\(")
_OF_ALL = re.compile(r"\.(sum|mean|item|any|all|max)\(\)|\blen\(|torch\.(tensor|sum|mean)\(|loss|criterion")
_OF_EACH_BY_NAME = re.compile(r"^(all_)?(preds?|predictions?|predicted|labels?|targets?|references?)$")
#: Methods of what was gathered that leave its entries as they are.
_KEEP = frozenset({"cpu", "numpy", "tolist", "detach", "float", "long", "int", "to", "view", "reshape", "flatten"})
_PREPARES = frozenset({"prepare", "prepare_data_loader"})
_STEPS = 3


class RepeatedSamplesCounted(Rule):
    """Samples that are repeated to fill up the last batches are gathered and counted in the evaluation.

    ## What it does

    Finds, in an evaluation, `accelerator.gather(...)` of predictions or labels in a loop over a loader that accelerate
    has prepared, where nothing cuts the repeated ones off again. With low confidence also `all_gather` in a loop over a
    loader with a `DistributedSampler` of the same kind.

    ## Why it breaks

    All ranks have to make the same number of forwards, so that accelerate gives the ranks that run short samples from
    the beginning again, and `DistributedSampler` does so up to a multiple of the number of ranks. `gather` brings all
    of them. Measured with accelerate 1.15 on two ranks: of 9 samples in batches of 2, `gather` brings 12, the first
    three twice, from rank 0 and from rank 1, and `gather_for_metrics` brings 9. The accuracy is that of another set,
    which changes with the number of GPUs and the size of a batch, and a file of predictions has too many lines.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")

    data = TensorDataset(torch.arange(9.0), torch.arange(9) % 2)
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    found = []
    with torch.no_grad():
        for x, labels in loader:
            predictions = (x > 4).long()
            parts = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, (predictions == labels).long())  # <- DDP715
            found += parts
    print(torch.cat(found).float().mean().item())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Subset, TensorDataset

    dist.init_process_group("gloo")

    data = TensorDataset(torch.arange(9.0), torch.arange(9) % 2)
    mine = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
    counts = torch.zeros(2)
    with torch.no_grad():
        for x, labels in DataLoader(mine, batch_size=2):
            predictions = (x > 4).long()
            counts += torch.tensor([(predictions == labels).sum(), len(x)])
    dist.all_reduce(counts)
    print((counts[0] / counts[1]).item())

    dist.destroy_process_group()
    ```

    With accelerate: `accelerator.gather_for_metrics((predictions, labels))`.

    ## When it is silent

    Losses and other numbers that are one for a batch; functions that cut what they have gathered, or gather the numbers
    of the samples as well; loaders with `drop_last=True`; loaders that nothing is seen to prepare or divide; training.

    ## How to confirm

    `ddp-lint verify evaluate.py`: the ranks drew more samples together than the data has.

    ## Fix safety

    No automatic fix: `gather_for_metrics` changes the figures.

    ## References

    - https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.gather_for_metrics
    - https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("gather", "all_gather", "all_gather_into_tensor", tests=False)
    of_several = True
    oracles = ("repeated",)

    def start(self) -> None:
        self._reported: set[ast.For] = set()

    def visit_Call(self, node: cst.Call) -> None:
        facts, project = self.module.facts, self.module.project
        if facts is None or project is None or self.module.file.is_test:
            return
        by_accelerate = self._is_of_accelerator(node)
        if not by_accelerate and self.module.qualified(node.func) not in _GATHERS:
            return
        call = as_ast(self.module, node)
        place = Place(facts, function_at(facts.tree, call.lineno)) if call is not None else None
        if place is None or not isinstance(call, ast.Call) or not call.args:
            return
        scope = place.around or facts.tree
        loop = _loop_around(scope, call)
        given = call.args[0] if by_accelerate else call.args[-1]
        if loop is None or loop in self._reported or not _evaluates(scope, loop):
            return
        if not any(_has_one_for_each(place, loop, part) for part in _parts(given)) or _is_summed_up(scope, call):
            return
        if any(_CUTS.search(text) for text in _texts_around(project, place)):
            return
        loader = _loader_of(loop.iter)
        if by_accelerate and loader is not None and _is_prepared(project, place, loader, _STEPS):
            self._report_prepared(node, loop)
        elif not by_accelerate and loader is not None and _is_divided(project, place, loader, _STEPS):
            self._report_divided(node, loop)

    def _is_of_accelerator(self, node: cst.Call) -> bool:
        """``accelerator.gather(...)`` of an Accelerator."""
        func = node.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "gather":
            return False
        known = self.module.constructed_by(func.value)
        named = dotted(func.value).rpartition(".")[2].strip("_") == "accelerator"
        return known == _ACCELERATOR or (not known and named and "accelerate" in self.module.imports.packages)

    def _report_prepared(self, node: cst.Call, loop: ast.For) -> None:
        self._reported.add(loop)
        self.report(
            node,
            "`gather` keeps the samples that accelerate repeats to fill up the last batch: they are counted twice",
            notes=["of 9 samples in batches of 2 on two ranks it brings 12, the first three again"],
            help="accelerator.gather_for_metrics(...) drops them",
        )

    def _report_divided(self, node: cst.Call, loop: ast.For) -> None:
        if several_ranks(self.module, node) is None:
            return
        self._reported.add(loop)
        self.report(
            node,
            "the samples that DistributedSampler repeats to fill up are gathered as well: they are counted twice",
            notes=["none is repeated where the number of samples is a multiple of the number of ranks"],
            help="cut what was gathered to the number of samples, or add up counts of what each rank has for itself",
            confidence=Confidence.LOW,
        )


def _loop_around(scope: ast.AST, call: ast.Call) -> ast.For | None:
    """The innermost loop around a call."""
    loops = (n for n in statements(scope) if isinstance(n, ast.For) and any(part is call for part in walk(n)))
    return max(loops, key=lambda each: each.lineno, default=None)


def _evaluates(scope: ast.AST, loop: ast.For) -> bool:
    calls = (n for n in walk(loop) if isinstance(n, ast.Call))
    if any(last_part(call.func) in ("backward", "step") for call in calls):
        return False
    decorated = [ast.unparse(each) for each in getattr(scope, "decorator_list", ())]
    lines = (ast.unparse(node) for node in walk(scope) if isinstance(node, (ast.Call, ast.withitem)))
    return any(_EVALUATES.search(text) for text in (*decorated, *lines))


def _parts(given: ast.expr) -> Iterator[ast.expr]:
    """What is gathered: the entries of a tuple, a list or a dictionary, each in its turn."""
    if isinstance(given, (ast.Tuple, ast.List)):
        yield from given.elts
    elif isinstance(given, ast.Dict):
        yield from given.values
    else:
        yield given


def _has_one_for_each(place: Place, loop: ast.For, part: ast.expr) -> bool:
    """Whether a value has an entry for each sample of the batch: it is a part of the batch, or is computed as one."""
    text = ast.unparse(part)
    if _OF_ALL.search(text):
        return False
    batch = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    compared = [side for n in walk(part) if isinstance(n, ast.Compare) for side in (n.left, *n.comparators)]
    if any(_root(each) in batch for each in (part, *compared)):
        return True
    values = [each for each in assigned_above(place, text, part.lineno) if each.lineno >= loop.lineno]
    if any(_OF_ALL.search(ast.unparse(value)) for value in values):
        return False
    computed = any(_OF_EACH.search(ast.unparse(value)) for value in (part, *values))
    return computed or (bool(_OF_EACH_BY_NAME.match(last_part(part))) and bool(values))


def _root(part: ast.expr) -> str:
    """The name that an entry or attribute is of: ``batch["labels"]``."""
    while isinstance(part, (ast.Subscript, ast.Attribute)):
        part = part.value
    return part.id if isinstance(part, ast.Name) else ""


def _is_summed_up(scope: ast.AST, call: ast.Call) -> bool:
    """Whether one number is made of what was gathered right away: ``gather(x).mean()``."""
    above = {id(child): node for node in walk(scope) for child in ast.iter_child_nodes(node)}
    up = above.get(id(call))
    return isinstance(up, ast.Attribute) and up.attr not in _KEEP


def _texts_around(project: Project, place: Place) -> Iterator[str]:
    """The code of the function around, of its class, and of what calls it."""
    for at in (place, *(at for _, at in place.callers(project))):
        if at.around is None:
            top = (n for n in at.facts.tree.body if not isinstance(n, (FunctionNode, ast.ClassDef)))
            yield from map(ast.unparse, top)
            continue
        yield ast.unparse(at.around)
        owner, _ = at.facts.method_at(at.around.lineno) or (None, None)
        if owner is not None and at is place:
            yield ast.unparse(owner)


def _loader_of(iterated: ast.expr) -> ast.expr | None:
    """The loader that a loop goes over, also within ``tqdm(loader)`` and ``enumerate(loader)``."""
    while isinstance(iterated, ast.Call):
        if not iterated.args:
            return None
        iterated = iterated.args[0]
    return iterated if dotted_ast(iterated) else None


def _made(place: Place, loader: ast.expr) -> Iterator[ast.expr]:
    """What a loader's name or attribute is given here, unpacked as well: of ``a, b = f(x, y)`` the call."""
    name = dotted_ast(loader)
    scope: ast.AST = place.around or place.facts.tree
    if of_self(name) and place.around is not None:
        scope = next(iter(place.facts.method_at(place.around.lineno) or ()), scope)
    for node in walk(scope):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            for each, value in paired(target, node.value):
                names = each.elts if isinstance(each, (ast.Tuple, ast.List)) else [each]
                if any(dotted_ast(part) == name for part in names):
                    yield value


def _is_prepared(project: Project, place: Place, loader: ast.expr, steps: int) -> bool:
    """Whether accelerate has prepared a loader that fills up its last batch, here or where a caller has it from."""
    made = [value for value in _made(place, loader) if isinstance(value, ast.Call)]
    if any(_drops_last(value) for value in made):
        return False
    if any(last_part(value.func) in _PREPARES for value in made):
        return True
    return any(_is_prepared(project, at, given, steps - 1) for given, at in _given(project, place, loader, steps))


def _is_divided(project: Project, place: Place, loader: ast.expr, steps: int) -> bool:
    """Whether a DistributedSampler that keeps the order, and fills up, divides what a loader reads."""
    for value in _made(place, loader):
        if not isinstance(value, ast.Call) or place.facts.qualified(value.func) not in LOADERS or _drops_last(value):
            continue
        sampler = argument_at(value, 3, "sampler")
        held = [sampler, *assigned_above(place, dotted_ast(sampler), value.lineno)] if sampler is not None else []
        if any(isinstance(each, ast.Call) and _fills_up(place, each) for each in held):
            return True
    return any(_is_divided(project, at, given, steps - 1) for given, at in _given(project, place, loader, steps))


def _fills_up(place: Place, call: ast.Call) -> bool:
    shuffles = argument_at(call, 3, "shuffle")
    keeps = isinstance(shuffles, ast.Constant) and shuffles.value is False
    return place.facts.qualified(call.func) == SAMPLER and keeps and not _drops_last(call)


def _drops_last(call: ast.Call) -> bool:
    """Whether a loader or sampler leaves the last samples out, or may do so."""
    given = next((each.value for each in call.keywords if each.arg == "drop_last"), None)
    return given is not None and not (isinstance(given, ast.Constant) and given.value is False)


def _given(project: Project, place: Place, loader: ast.expr, steps: int) -> Iterator[tuple[ast.expr, Place]]:
    """What the callers of a function give it as a loader."""
    if place.around is None or not steps or not isinstance(loader, ast.Name):
        return
    if loader.id in {each.arg for each in parameters(place.around)}:
        for site, at in place.callers(project):
            given = site.given(place.around, loader.id)
            if given is not None and dotted_ast(given):
                yield given, at

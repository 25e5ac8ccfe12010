from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.launch.by_rank import Place
from ddp_lint.launch.joining import is_before_ranks
from ddp_lint.launch.one_rank import comes_on_one_rank
from ddp_lint.launch.random_state import Apart, draws_apart
from ddp_lint.launch.ranks import several_ranks
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.loading import files_of_programs, is_made_by_rank, ranks_share
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.imports import dotted_ast, last_part
from ddp_lint.source.syntax import FunctionNode, function_at, statements, text_of, walk
from ddp_lint.source.tree import called
from ddp_lint.view.as_ast import as_ast

#: Functions that split data at random themselves.
_SPLITS = frozenset({"torch.utils.data.random_split", "sklearn.model_selection.train_test_split"})
#: What draws an order of all numbers up to one, and what brings a list into one.
_ORDERS = frozenset({"torch.randperm", "numpy.random.permutation"})
_SHUFFLES = frozenset({"random.shuffle", "numpy.random.shuffle"})
#: What a function does in which the ranks have their own data already, agree on a split, or keep it in a file.
_AGREES = re.compile(
    r"rank\s*::|shard|split_dataset_by_node|broadcast|gather|exists\(|isfile\(|is_file\(|\bsave\w*\(|\bdump\(|load\("
    r"|main_process_first|scatter"
)
#: Methods in which one rank runs alone, or a worker of a loader.
_ELSEWHERE = frozenset({"prepare_data", "__getitem__", "__iter__"})


class SplitDiffersByRank(Rule):
    """Each rank splits the data at random for itself: what one rank validates on, others train on.

    ## What it does

    Finds a split into training and validation data that code of several ranks draws from a generator which is in
    another state on each rank: seeded by the rank, or by nothing in the program. That is `random_split` without a
    generator of one seed, `train_test_split` of scikit-learn or datasets, and an order (`torch.randperm`,
    `numpy.random.permutation`, a shuffled list) whose begin and end are taken apart (`order[:n]`, `order[n:]`).

    ## Why it breaks

    Rank 0 holds out other samples than rank 1. The ranks share one model, so it is trained on almost all samples that
    any rank validates on, and the validation shows no overfitting. There is no error, and a DistributedSampler hides
    it: the sizes agree. A process that nobody seeds starts with a state of its own. Measured on gloo (two ranks, torch
    2.13) with 48 samples to train on and 16 to validate on: rank 1 trains on 10 to 12 of the 16 that rank 0 holds out,
    unseeded as well as seeded by the rank.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())

    data = TensorDataset(torch.arange(64.0).unsqueeze(1))
    train, val = random_split(data, [48, 16])  # <- DDP713
    for part in (train, val):
        for (x,) in DataLoader(part, batch_size=8, sampler=DistributedSampler(part, shuffle=False)):
            print(dist.get_rank(), x.flatten().tolist())

    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())

    data = TensorDataset(torch.arange(64.0).unsqueeze(1))
    train, val = random_split(data, [48, 16], generator=torch.Generator().manual_seed(0))
    for part in (train, val):
        for (x,) in DataLoader(part, batch_size=8, sampler=DistributedSampler(part, shuffle=False)):
            print(dist.get_rank(), x.flatten().tolist())

    dist.destroy_process_group()
    ```

    ## When it is silent

    A generator or a `random_state` of one seed; programs that call or import anything that may seed, unless the last
    seed above the split is seen to have the rank in it; data that each rank has for itself; functions that agree on the
    split (a broadcast, a file that is saved and loaded); a split whose rest is dropped (`part, _ = ...`); what one rank
    alone runs, or the process that spawns the ranks; programs that divide no data between ranks and form no group.

    ## How to confirm

    `ddp-lint verify train.py`: the samplers of the ranks divide different subsets.

    ## Fix safety

    No automatic fix: another split gives other figures.

    ## References

    - https://pytorch.org/docs/stable/data.html#torch.utils.data.random_split
    """

    triggers = Triggers("random_split", "train_test_split", "randperm", "permutation", "shuffle", tests=False)
    of_several = True
    oracles = ("split",)
    confidence = Confidence.MEDIUM

    def visit_Call(self, node: cst.Call) -> None:
        facts, project = self.module.facts, self.module.project
        name = called(node)
        if facts is None or project is None or name not in self.triggers.words or self.module.file.is_test:
            return
        draw = as_ast(self.module, node)
        if not isinstance(draw, ast.Call):
            return
        around = function_at(facts.tree, draw.lineno)
        if not self._splits(facts, draw, around) or self._is_agreed_on(node, facts, draw, around):
            return
        apart = draws_apart(project, draw, Place(facts, around), list(files_of_programs(self.module)))
        if apart is None or several_ranks(self.module, node) is None or not ranks_share(self.module):
            return
        self._report(node, apart)

    def _report(self, node: cst.Call, apart: Apart) -> None:
        why = "nothing in the program seeds what it draws from: each process starts with a state of its own"
        self.report(
            node,
            "each rank draws another split: what one holds out to validate on, the others train on",
            notes=[] if apart.seeded is not None else [why],
            labels=[(apart.seeded, "seeded by the rank")] if apart.seeded is not None else [],
            help="draw the split by one seed on all ranks: generator=torch.Generator().manual_seed(0)",
        )

    def _splits(self, facts: ModuleFacts, draw: ast.Call, around: FunctionNode | None) -> bool:
        """Whether a call draws a split of which both parts are taken."""
        name = facts.qualified(draw.func)
        if any(k.arg == "shuffle" and isinstance(k.value, ast.Constant) and not k.value.value for k in draw.keywords):
            return False
        if name in _SPLITS or _is_of_datasets(facts, draw):
            return not _drops_rest(around or facts.tree, draw)
        scope = around or facts.tree
        if name in _ORDERS or last_part(draw.func) == "permutation":
            return any(_is_cut(scope, target, draw.lineno) for target in _targets(scope, draw))
        if draw.args and (name in _SHUFFLES or last_part(draw.func) == "shuffle"):
            return _is_cut(scope, dotted_ast(draw.args[0]), draw.lineno)
        return False

    def _is_agreed_on(self, node: cst.Call, facts: ModuleFacts, draw: ast.Call, around: FunctionNode | None) -> bool:
        """Whether the ranks have one split all the same, or none but one draws it, or each has data of its own."""
        project = self.module.project
        assert project is not None
        if around is not None and (around.name in _ELSEWHERE or _AGREES.search(ast.unparse(around))):
            return True
        if around is not None and is_before_ranks(facts, project, draw, around):
            return True
        if comes_on_one_rank(self.module, node):
            return True
        return bool(node.args) and is_made_by_rank(self.module, node.args[0].value)


def _is_of_datasets(facts: ModuleFacts, draw: ast.Call) -> bool:
    """``data.train_test_split(test_size=0.1)`` of Hugging Face datasets."""
    is_method = isinstance(draw.func, ast.Attribute) and not facts.qualified(draw.func).startswith("sklearn")
    named = {k.arg for k in draw.keywords} <= {"test_size", "train_size", "shuffle", "seed"} and len(draw.args) < 3
    return is_method and last_part(draw.func) == "train_test_split" and named and "datasets" in facts.imports.packages


def _drops_rest(scope: ast.AST, draw: ast.Call) -> bool:
    """``train, _ = random_split(...)``, or one part alone: ``random_split(...)[0]``."""
    for node in walk(scope):
        if isinstance(node, ast.Assign) and node.value is draw and isinstance(node.targets[0], ast.Tuple):
            names = [dotted_ast(each) for each in node.targets[0].elts]
            return sum(not name.startswith("_") for name in names) < 2
        if isinstance(node, ast.Subscript) and node.value is draw:
            return True
    return False


def _targets(scope: ast.AST, draw: ast.Call) -> Iterator[str]:
    """The names that a drawn order is given, also as a list: ``order = torch.randperm(n).tolist()``."""
    for node in statements(scope):
        if isinstance(node, ast.Assign) and any(part is draw for part in walk(node.value)):
            yield from filter(None, map(dotted_ast, node.targets))


def _is_cut(scope: ast.AST, name: str, line: int) -> bool:
    """Whether a list is cut in two below a line: ``order[:n]`` and ``order[n:]``."""
    cuts = [n.slice for n in walk(scope) if isinstance(n, ast.Subscript) and dotted_ast(n.value) == name
            and n.lineno >= line and isinstance(n.slice, ast.Slice) and n.slice.step is None]  # fmt: skip
    begins = {text_of(cut.upper) for cut in cuts if cut.lower is None and cut.upper is not None}
    return bool(name) and any(cut.lower is not None and text_of(cut.lower) in begins for cut in cuts)

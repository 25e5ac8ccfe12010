"""What all batches of a project have in common, by how it makes its loaders."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.source.imports import last_part
from ddp_lint.source.syntax import FunctionNode, main_guards, walk

#: What may leave a batch without a sample.
_CHOOSING = ("collate", "batch_sampler", "IterableDataset", "batch_size=None", "webdataset")
#: What puts samples of unlike lengths into one batch, or each into one of its own.
_OF_UNLIKE_LENGTHS = (
    *_CHOOSING,
    "pad_sequence",
    ".pad(",
    "pad_to",
    "padding=True",
    "longest",
    "batch_size=1",
    "packed",
)
#: What makes batches of as many samples as their lengths allow, or ends them with the data of a stream.
_OF_UNLIKE_SIZES = ("batch_sampler=", "batch_size=None", "IterableDataset", "webdataset", "bucket")
#: What shows that samples are of unlike lengths.
_PADDING = ("pad_sequence", "pad_to", "padding=True", "pad_token", "longest", "packed", "collate_fn=")


def keep_samples(project: Project) -> bool:
    """Whether the project makes its loaders, and nothing of it chooses what comes into a batch: each has a sample."""
    return _makes_loaders_without(project, _CHOOSING)


def hardly_lack_samples(project: Project, facts: ModuleFacts) -> bool:
    """Whether the project makes its loaders, and none of its functions that put samples together, but for those of
    other programs than a file, leaves some out: what it makes of no sample at all, most fail in before."""

    def found() -> bool:
        if not project.contents.holding("DataLoader("):
            return False
        return not any(map(_leaves_out, _putting_together(project, facts)))

    answer: bool = project.remember(("hardly lack samples",), found, facts.kept)
    return answer


#: How functions and classes are called that put the samples of a batch together.
_PUTS_TOGETHER = "collat"


def _putting_together(project: Project, asking: ModuleFacts) -> Iterator[FunctionNode]:
    """The functions of the project that put samples together, by their names or that of their class."""
    words = (_PUTS_TOGETHER, _PUTS_TOGETHER.capitalize())
    for facts in project.modules.but_tests(path for word in words for path in project.contents.holding(word)):
        if facts is not asking and any(True for _ in main_guards(facts.tree)):
            continue  # another program
        for node in walk(facts.tree):
            if isinstance(node, (FunctionNode, ast.ClassDef)) and _PUTS_TOGETHER in node.name.lower():
                yield from (n for n in walk(node) if isinstance(n, FunctionNode))


def _leaves_out(function: FunctionNode) -> bool:
    """Whether a function leaves out samples: ``[s for s in batch if s is not None]``, ``filter(..)``, ``continue``."""
    return any(
        (isinstance(n, ast.comprehension) and n.ifs)
        or (isinstance(n, ast.Call) and last_part(n.func) == "filter")
        or isinstance(n, ast.Continue)
        for n in walk(function)
    )


def have_one_length(project: Project) -> bool:
    """Whether the project makes its loaders, and nothing of it pads or collates: PyTorch's own function, which makes a
    batch of its samples, takes those of one shape alone (`torch.utils.data.default_collate`), so that a data set whose
    samples have unlike lengths fails in its first batch."""
    return _makes_loaders_without(project, _OF_UNLIKE_LENGTHS)


def show_unlike_lengths(project: Project) -> bool:
    """Whether the project shows that the samples of its batches have unlike lengths: it pads them, packs them, or has a
    function that puts them together."""
    return any(map(project.contents.holding, _PADDING))


def have_unlike_sizes(project: Project) -> bool:
    """Whether the project shows that batches hold unlike numbers of samples: a sampler or buckets choose how many, or
    they are of a stream, which ends in the midst of one."""
    return any(map(project.contents.holding, _OF_UNLIKE_SIZES))


def _makes_loaders_without(project: Project, words: tuple[str, ...]) -> bool:
    def found() -> bool:
        return bool(project.contents.holding("DataLoader(")) and not any(map(project.contents.holding, words))

    return project.remember(("makes loaders without", words), found)

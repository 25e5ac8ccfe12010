"""What all batches of a project have in common, by how it makes its loaders."""

from __future__ import annotations

from ddp_lint.project import Project

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

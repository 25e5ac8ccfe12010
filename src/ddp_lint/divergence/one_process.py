"""Code that a single process runs: tests that start no others, scripts and functions for one device."""

from __future__ import annotations

import functools
import re

from ddp_lint.source.file import SourceFile

#: What a test that several processes run says somewhere: how they are started, or which of them runs it.
_SEVERAL = re.compile(
    r"distributed|torchrun|spawn|nproc|mpirun|multi_?(process|gpu|node)|num_(processes|nodes|gpus|workers_per)|world_?size|"
    r"\brank|_rank|devices\s*=\s*[^1,)\s]|launch|main_process|is_global_zero|subprocess|ddp|fsdp|horovod|\bdist\b|nccl|gloo",
    re.IGNORECASE,
)
#: The name of a script, or of its folder, for one device of one process.
_SINGLE = re.compile(r"(^|[_/])(single|one)_(device|gpu|process|card)([_/.]|$)")
#: The name of a function for a job that is not distributed.
_ALONE = re.compile(
    r"(^|_)(wo|without|no|non|not)_?(ddp|dist|distributed)(_|$)|(^|_)(single|one)_(device|gpu|process|card)(_|$)"
)


@functools.lru_cache(maxsize=256)
def is_of_one_process(file: SourceFile) -> bool:
    """Is it run by one process, as far as it and its name say?"""
    return _SINGLE.search(file.place) is not None or (file.is_test and _SEVERAL.search(file.text) is None)


def is_name_of_one_process(function: str) -> bool:
    """Does the name of a function say that it is for a job of one process: ``fit_without_ddp``?"""
    return _ALONE.search(function.lower()) is not None

"""What the text of a file shows: models that are replicated or sharded, metrics that ranks synchronise."""

from __future__ import annotations

import re
from collections.abc import Hashable

from ddp_lint.divergence.references import ClassRef
from ddp_lint.divergence.resolve import Linker
from ddp_lint.knowledge.project_names import last
from ddp_lint.program.events import wrapping_pattern
from ddp_lint.project.facts import ModuleFacts

_SHOWS = {
    "sharded": re.compile(
        r"FullyShardedDataParallel|\bFSDP\b|\bfsdp(_config|_plugin)?\b|fully_shard|zero_stage|ZeRO|stage3|zero3|deepspeed|DTensor|distribute_tensor"
    ),
    "buffers": re.compile(
        r"BatchNorm|register_buffer|broadcast_buffers=True|\bresne[x]?t\d+|\bdensenet\d+|efficientnet|mobilenet|"
        r"inception_v3|regnet|shufflenet|timm\.create_model|\bAutoModel\w*\.from_|\b(Bert|Roberta|Llama)\w*\.from_pretrained"
    ),
    "metric-sync": re.compile(r"torchmetrics|sync_dist"),
    "statistics": re.compile(r"SyncBatchNorm|sync_bn"),
    "launched": re.compile(r"accelerat|deepspeed|FSDP", re.IGNORECASE),
}


class Evidence:
    """What files show, each asked for once."""

    def __init__(self, linker: Linker) -> None:
        self._linker = linker
        self._wraps = wrapping_pattern(last(name) for name in linker.project.own.names.wrappers)
        self._texts: dict[Hashable, bool] = {}

    def is_distributed(self, facts: ModuleFacts, owner: ClassRef | None) -> bool:
        """Does the file, or one that a base class is from, wrap models for several ranks?"""
        return self._mentions(facts, owner, "wrap", self._wraps)

    def shows(self, facts: ModuleFacts, owner: ClassRef | None, when: str) -> bool:
        pattern = _SHOWS.get(when)
        return pattern is not None and self._mentions(facts, owner, when, pattern)

    def _mentions(self, facts: ModuleFacts, owner: ClassRef | None, what: str, pattern: re.Pattern[str]) -> bool:
        files = {facts.name: facts}
        for base in self._linker.linearised(owner)[0] if owner is not None else ():
            files[base.facts.name] = base.facts
        for name, file in files.items():
            key = (what, name)
            if key not in self._texts:
                self._texts[key] = pattern.search(file.file.text) is not None
            if self._texts[key]:
                return True
        return False

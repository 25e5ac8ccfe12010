"""What the text of a file shows: models that are replicated or sharded, metrics that ranks synchronise."""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ddp_lint.divergence.references import ClassRef
from ddp_lint.divergence.resolve import Linker
from ddp_lint.knowledge.communication import Condition
from ddp_lint.knowledge.frameworks import every
from ddp_lint.launch.started import launched_under
from ddp_lint.launch.texts import is_worded_in_texts
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.tensors.classes import ModuleClasses

#: What a script creates whose backend the configuration of the launcher decides.
_SCRIPT = "Accelerator("
#: How code enables a backend that shards, or makes an option of it.
_ENABLING: Final = (
    "DeepSpeedPlugin(", "FullyShardedDataParallelPlugin(", "FullyShardedDataParallel(", "FSDP(", "fully_shard(",
    "deepspeed.initialize(", "use_deepspeed", "use_fsdp", "--deepspeed", "--fsdp", "deepspeed=", "fsdp=",
)  # fmt: skip
#: ... and how a word of a text does.
_ENABLED: Final = re.compile(r"(?i)deepspeed|fsdp|zero_?stage|zero_?optimization")


class Evidence:
    """What files show, each looked up once."""

    def __init__(self, linker: Linker) -> None:
        self._linker = linker

    def is_distributed(self, facts: ModuleFacts, owner: ClassRef | None) -> bool:
        """Does the file, or one that a base class is from, wrap models for several ranks?"""
        return self._is_shown(facts, owner, "wraps")

    def shows(self, facts: ModuleFacts, owner: ClassRef | None, when: Condition) -> bool:
        if when == "launched":
            shown = self._is_shown(facts, owner, when) or self._is_beside(facts, when)
            return (shown and _may_be_enabled(self._linker.project)) or bool(self._chosen_by_settings(facts))
        return not when or self._is_shown(facts, owner, when)

    def backends(self, facts: ModuleFacts, owner: ClassRef | None, names: Sequence[str]) -> list[str]:
        """Those of the backends (`frameworks.Shown`) that the file shows, or, where it shows none, its folder."""
        chosen = self._chosen_by_settings(facts)
        shown = [name for name in names if name in chosen or self._is_shown(facts, owner, name)]
        return shown or [name for name in names if self._is_beside(facts, name)]

    def _chosen_by_settings(self, facts: ModuleFacts) -> frozenset[str]:
        """The backends that the settings choose with which commands of the project launch the file."""
        project = self._linker.project
        if not project.contents.holding(_SCRIPT):
            return frozenset()
        of_settings = _of_settings()
        return frozenset(of_settings[word] for word in launched_under(project, facts) if word in of_settings)

    def _is_beside(self, facts: ModuleFacts, what: str) -> bool:
        """Does another script of this folder support FSDP or DeepSpeed? The launcher decides which backend a script
        runs under, and scripts of one folder are launched in the same way."""
        project = self._linker.project
        folder = posixpath.dirname(facts.source.inside)
        beside = (p for p in project.contents.holding(_SCRIPT) if posixpath.dirname(project.paths.inside(p)) == folder)
        others = filter(None, map(project.modules.facts_of, beside))
        return any(not other.source.is_test and project.texts.shows(other, what) for other in others)

    def has_buffers(self, model: ClassRef) -> bool:
        """Does a model whose class is seen surely have buffers, by itself or in a part of it?"""

        def has() -> bool:
            classes = ModuleClasses(model.facts, self._linker.project)
            found = classes.named(model.node.name)
            return found is not None and classes.has_buffers(found)

        return self._linker.project.remember(("has buffers", model.facts.name, model.node.name), has)

    def _is_shown(self, facts: ModuleFacts, owner: ClassRef | None, what: str) -> bool:
        files = {facts.name: facts}
        for base in self._linker.linearised(owner)[0] if owner is not None else ():
            files[base.facts.name] = base.facts
        return any(self._linker.project.texts.shows(file, what) for file in files.values())


@functools.cache
def _of_settings() -> Mapping[str, str]:
    """The backends by the words for them in the settings of a launcher: the members of the enumeration in code."""
    return {
        member: backend
        for entry in every(lambda framework: framework.backend)
        for member, backend in entry.members.items()
    }


def _may_be_enabled(project: Project) -> bool:
    """Does anything in the project enable a backend that shards: code that makes its plugin or wraps by it, or a word
    of a script, a file of settings or another text? Many scripts ask for a backend that nobody runs them under."""

    def found() -> bool:
        return any(map(project.contents.holding, _ENABLING)) or is_worded_in_texts(project, _ENABLED)

    enabled: bool = project.remember(("backend that shards",), found)
    return enabled

"""A project: what the answers about its files are made of."""

from __future__ import annotations

import pathlib
from typing import Any

from ddp_lint.knowledge.project_names import Names
from ddp_lint.project.answers import Answers
from ddp_lint.project.classes import Classes
from ddp_lint.project.communication import Communication
from ddp_lint.project.contents import Contents
from ddp_lint.project.layout import Layout
from ddp_lint.project.meanings import Meanings
from ddp_lint.project.modules import Modules
from ddp_lint.project.outcomes import KeptOutcomes
from ddp_lint.project.paths import Paths
from ddp_lint.project.project_names import Own
from ddp_lint.project.results import KeptResults
from ddp_lint.project.texts import Texts
from ddp_lint.project.types import Types


class Project(KeptResults):
    """The files below one root. Nothing is read before it is needed.

    What is read of other files is recorded as a *question* (`KeptResults`), whose answer is a digest (`Answers`).
    `names`: what the configuration says of names of the project's own, whose changes are no questions: the key of the
    cache includes all settings.

    With `changing`, files may change while the project is in use, as in an editor: `changing.change` has to be called.
    """

    def __init__(
        self, root: pathlib.Path, cwd: pathlib.Path | None = None, names: Names | None = None, *, changing: bool = False
    ) -> None:
        super().__init__(changing=changing)
        self.root = root
        #: Where the modules lie.
        self.layout = Layout(root)
        self.paths = Paths(self.layout.root, cwd)
        self.contents = Contents(self, self.paths, self.layout)
        self.texts = Texts(self, self.paths, self.contents, names or Names())
        self.modules = Modules(self, self.paths, self.layout, self.contents)
        self.meanings = Meanings(self, self.layout, self.contents, self.modules)
        self.classes = Classes(self, self.modules, self.meanings)
        self.types = Types(self, self.meanings, self.classes)
        self.own = Own(self, self.meanings, names or Names())
        self.communication = Communication(self, self.paths, self.layout, self.contents, self.modules, self.own)
        self.answers = Answers(
            self, self.paths, self.contents, self.texts, self.modules, self.meanings, self.communication
        )
        self.outcomes = KeptOutcomes(self, self.answers)
        #: What an analysis keeps for as long as the project lives. It refers to the project, so a table of its own with
        #: the project as a weak key would never be emptied.
        self.attached: dict[str, Any] = {}

    def forget_memories(self) -> None:
        """Let go of the syntax trees as well that are kept no longer."""
        super().forget_memories()
        self.modules.let_go_of_trees()

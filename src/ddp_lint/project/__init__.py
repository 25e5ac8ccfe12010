"""The project around a file: which module a name means, and what other files define, read on demand."""

from ddp_lint.project.parts import Asked
from ddp_lint.project.project import Project
from ddp_lint.project.results import Answered

__all__ = ["Answered", "Asked", "Project"]

"""The project around a file: which module a name means, and what other files define, read on demand."""

from ddp_lint.project.memory import Answered
from ddp_lint.project.parts import Asked
from ddp_lint.project.project import Project

__all__ = ["Answered", "Asked", "Project"]

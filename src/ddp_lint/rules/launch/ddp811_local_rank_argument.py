from __future__ import annotations

import re

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix
from ddp_lint.launch.importable import imports_removed
from ddp_lint.launch.started import launched, place_of
from ddp_lint.project import Project
from ddp_lint.project.requirements import requires_older
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.tree import called
from ddp_lint.view.wraps import argument

_OLD, _NEW = "--local_rank", "--local-rank"
#: torch.distributed.launch passes the new spelling from this release on.
_RELEASE = "2.0"
#: ``args.local_rank = ..``, ``setattr(args, "local_rank", ..)``: the program finds its local rank in another way.
_SETS = re.compile(r"""\.local_rank\s*(:\s*\w+\s*)?=[^=]|["']local_rank["']\s*[,\]]""")


class LocalRankArgument(Rule):
    """A program knows its local rank by `--local_rank` alone, which its launcher does not pass.

    ## What it does

    Finds `add_argument("--local_rank")` in a program that a script or the documentation of the project starts by
    `python -m torch.distributed.launch` (without `--use_env`), where the parser does not know `--local-rank` and
    refuses unknown arguments; and in one that they start by `torchrun`, or with `--use_env`, which is the same, where
    nothing in the project reads `LOCAL_RANK`.

    ## Why it breaks

    Since torch 2.0 `torch.distributed.launch` passes `--local-rank=0`: `parse_args` ends every rank with status 2,
    "unrecognized arguments: --local-rank=0". `torchrun` passes no argument at all: every rank has the default, so that
    all of them take the same GPU, or each believes that it is the only process. Measured with torch 2.13.

    ## Example

    ```python
    \"\"\"Start with: python -m torch.distributed.launch --nproc-per-node 2 train.py\"\"\"

    import argparse
    import os
    import sys

    import torch.distributed as dist

    if "LOCAL_RANK" in os.environ:
        sys.argv[1:] = [f"--local-rank={os.environ['LOCAL_RANK']}"]  # as this launcher does
    dist.init_process_group("gloo")
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)  # <- DDP811
    args = parser.parse_args()
    print("local rank", args.local_rank)
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    \"\"\"Start with: python -m torch.distributed.launch --nproc-per-node 2 train.py\"\"\"

    import argparse
    import os
    import sys

    import torch.distributed as dist

    if "LOCAL_RANK" in os.environ:
        sys.argv[1:] = [f"--local-rank={os.environ['LOCAL_RANK']}"]  # as this launcher does
    dist.init_process_group("gloo")
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    args = parser.parse_args()
    print("local rank", args.local_rank)
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Parsers with both spellings, `parse_known_args`, projects that keep torch below 2.0 (or whose README names older
    versions alone), programs that import what torch 2.0 does not have (`torch._six`) or that no script or page of the
    project starts by one of the two launchers, `deepspeed` (which passes `--local_rank`); for torchrun also projects
    that read `LOCAL_RANK` anywhere or set `args.local_rank` themselves, programs that do not use the argument, tests.

    ## How to confirm

    Start the program as the script does; `ddp-lint verify` starts programs by torchrun, and shows what becomes of the
    default.

    ## Fix safety

    Safe for the spelling: the program then takes both. There is no fix for torchrun.

    ## References

    - https://docs.pytorch.org/docs/stable/distributed.html#launch-utility
    - https://docs.pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("add_argument", file=("local_rank",), tests=False)
    oracles = ("arguments",)

    def visit_Call(self, node: cst.Call) -> None:
        if called(node) != "add_argument" or not isinstance(node.func, cst.Attribute):
            return
        texts = [a.value for a in node.args if isinstance(a.value, cst.SimpleString) and a.keyword is None]
        flags = [str(text.evaluated_value) for text in texts]
        project, facts = self.module.project, self.module.facts
        if _OLD not in flags or _NEW in flags or project is None or facts is None or self.module.file.is_test:
            return
        launch = launched(project, facts, "argument")
        older = requires_older(project, "torch", _RELEASE) or imports_removed(project, facts, "torch", _RELEASE)
        if launch is not None and self._refuses() and not older:
            self._report_spelling(node, launch.start.launcher, place_of(project, launch))
            return
        launch = launched(project, facts, "environment")
        if launch is not None and self._relies_on_it(project):
            self._report_default(node, place_of(project, launch))

    def _report_spelling(self, node: cst.Call, launcher: str, place: str) -> None:
        flag = next(a.value for a in node.args if isinstance(a.value, cst.SimpleString) and _OLD in a.value.value)
        edit = Edit(self.module.span(flag), f'{self.module.code(flag)}, "{_NEW}"')
        self.report(
            node,
            f"`{launcher}` passes `{_NEW}` since torch {_RELEASE}: `parse_args` ends every rank",
            notes=[f"{place} starts it by {launcher}"],
            help=f'add_argument("{_NEW}", "{_OLD}", ..), or read LOCAL_RANK and start it by torchrun',
            fix=Fix("take both spellings", Applicability.SAFE, (edit,)),
        )

    def _report_default(self, node: cst.Call, place: str) -> None:
        given = argument(node, None, "default")
        default = self.module.code(given) if given is not None else "None"
        self.report(
            node,
            f"torchrun passes no `{_OLD}`: each rank has the default {default}, and nothing reads LOCAL_RANK",
            notes=[f"{place} starts it by torchrun"],
            help='default=int(os.environ.get("LOCAL_RANK", 0))',
        )

    def _refuses(self) -> bool:
        """Whether the arguments are parsed so that unknown ones end the program."""
        parses = self.module.file.holds("parse_args") or self.module.file.holds("ArgumentParser")
        return parses and not self.module.file.holds("parse_known_args")

    def _relies_on_it(self, project: Project) -> bool:
        """Whether the argument is the only way by which the program learns its local rank, and is used."""
        if any(
            map(project.contents.holding, ("LOCAL_RANK", "get_local_rank", "local_process_index", "TrainingArguments"))
        ):
            return False
        texts = [project.contents.text(path) or "" for path in project.contents.holding("local_rank")]
        return any(".local_rank" in text for text in texts) and not any(map(_SETS.search, texts))

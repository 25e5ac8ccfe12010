from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.findings import Applicability, Confidence, Edit, Fix
from ddp_lint.launch.importable import imports_removed
from ddp_lint.launch.started import Launch, launched, place_of
from ddp_lint.project import Project
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.project.requirements import page_requires_older, requires_older
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.syntax import calls_below, walk
from ddp_lint.source.tree import called
from ddp_lint.view.wraps import argument

_OLD, _NEW = "--local_rank", "--local-rank"
#: How a parser takes arguments that it does not know: it ends the program, or drops them.
_REFUSES, _DROPS = "parse_args", "parse_known_args"
#: torch.distributed.launch passes the new spelling from this release on.
_RELEASE = "2.0"
#: ``args.local_rank = ..``, ``setattr(args, "local_rank", ..)``: the program finds its local rank in another way.
_SETS = re.compile(r"""\.local_rank\s*(:\s*\w+\s*)?=[^=]|["']local_rank["']\s*[,\]]""")


#: ``os.environ["LOCAL_RANK"]``, but not the entry of settings with that name, ``config.LOCAL_RANK``.
_READS = re.compile(r"(?<!\.)LOCAL_RANK")


class LocalRankArgument(Rule):
    """A program knows its local rank by `--local_rank` alone, which its launcher does not pass.

    ## What it does

    Finds `add_argument("--local_rank")` in a program that a script or the documentation of the project starts by
    `python -m torch.distributed.launch` (without `--use_env`), where the parser does not know `--local-rank` and
    refuses unknown arguments, or drops them (`parse_known_args`) while the argument is required, or nothing in the
    project reads `LOCAL_RANK`; and in one that they start by `torchrun`, or with `--use_env`, which is the same, where
    the argument is required, or nothing in the project reads `LOCAL_RANK`.

    ## Why it breaks

    Since torch 2.0 `torch.distributed.launch` passes `--local-rank=0`: `parse_args` ends every rank with status 2,
    "unrecognized arguments: --local-rank=0", and so does a parser of what `parse_known_args` of another one has left.
    `parse_known_args` alone drops it, and `torchrun` passes no argument at all: every rank ends where the argument is
    required, or has the default, so that all of them take the same GPU, or each believes that it is the only process.
    Measured with torch 2.13.

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

    Parsers with both spellings (as one argument or two), `parse_known_args` where the program reads what it leaves,
    projects that keep torch below 2.0 (or whose README, or page that starts the program, names older versions alone, or
    that need a release of another package which runs with older ones alone, as `mmcv-full==1.3.17`), programs that
    import what torch 2.0 does not have (`torch._six`) or that no script or page of the project starts by one of the two
    launchers, `deepspeed` (which passes `--local_rank`); for the default also commands of one process, projects that
    read `LOCAL_RANK` anywhere or set `args.local_rank` themselves, programs that do not use the argument, tests.

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
        if self._takes_new_beside(node.func.value, facts):
            return
        parse = self._parse_of(node.func.value, facts)
        if not self._report_for_launch(node, parse, project, facts):
            self._report_for_torchrun(node, parse, project, facts)

    def _takes_new_beside(self, parser: cst.BaseExpression, facts: ModuleFacts) -> bool:
        """Whether the parser has the new spelling as an argument of its own."""
        adds = f"{dotted(parser)}.add_argument"
        calls = (call for call in calls_below(facts.tree) if dotted_ast(call.func) == adds)
        return any(isinstance(each, ast.Constant) and each.value == _NEW for call in calls for each in call.args)

    def _report_for_launch(self, node: cst.Call, parse: str, project: Project, facts: ModuleFacts) -> bool:
        """Reports what becomes of the argument under a launcher that passes it in the new spelling."""
        launch = launched(project, facts, "argument") if parse else None
        if launch is None or _is_older(project, facts, launch):
            return False
        if parse == _REFUSES:
            what = "`parse_args` ends every rank"
        elif self.module.file.holds(_NEW):
            return False
        elif _is_required(node):
            what = f"every rank ends, as `{_OLD}` is required"
        else:
            launch = launched(project, facts, "argument", several=True)
            if launch is None or not self._relies_on_it(project):
                return False
            what = f"each rank has the default {self._default(node)}"
        launcher = launch.start.launcher
        flag = next(a.value for a in node.args if isinstance(a.value, cst.SimpleString) and _OLD in a.value.value)
        edit = Edit(self.module.span(flag), f'{self.module.code(flag)}, "{_NEW}"')
        self.report(
            node,
            f"`{launcher}` passes `{_NEW}` since torch {_RELEASE}: {what}",
            notes=[f"{place_of(project, launch)} starts it by {launcher}"],
            help=f'add_argument("{_NEW}", "{_OLD}", ..), or read LOCAL_RANK and start it by torchrun',
            fix=Fix("take both spellings", Applicability.SAFE, (edit,)),
        )
        return True

    def _report_for_torchrun(self, node: cst.Call, parse: str, project: Project, facts: ModuleFacts) -> None:
        """Reports what becomes of the argument under a launcher that passes none."""
        launch = launched(project, facts, "environment")
        if launch is None:
            return
        if parse and _is_required(node) and not _names_argument(project, launch):
            what = "every rank ends, as it is required"
        else:
            launch = launched(project, facts, "environment", several=True)
            if launch is None or not self._relies_on_it(project):
                return
            what = f"each rank has the default {self._default(node)}, and nothing reads LOCAL_RANK"
        self.report(
            node,
            f"torchrun passes no `{_OLD}`: {what}",
            notes=[f"{place_of(project, launch)} starts it by torchrun"],
            help='default=int(os.environ.get("LOCAL_RANK", 0))',
        )

    def _default(self, node: cst.Call) -> str:
        given = argument(node, None, "default")
        return self.module.code(given) if given is not None else "None"

    def _parse_of(self, parser: cst.BaseExpression, facts: ModuleFacts) -> str:
        """By which method the parser of an argument parses what the launcher passes: one that ends the program where it
        does not know an argument, or one that drops it; '' where that is not known."""
        if not self.module.file.holds(_DROPS):
            parses = self.module.file.holds(_REFUSES) or self.module.file.holds("ArgumentParser")
            return _REFUSES if parses else ""
        name, left = dotted(parser), _left_over(facts)
        calls = [call for call in calls_below(facts.tree) if isinstance(call.func, ast.Attribute)]
        calls = [call for call in calls if name and dotted_ast(call.func) in (f"{name}.{_REFUSES}", f"{name}.{_DROPS}")]
        for how in (_REFUSES, _DROPS):
            if calls and all(dotted_ast(call.func) == f"{name}.{how}" for call in calls):
                return how if all(_gets_all(call, left, facts) for call in calls) else ""
        return ""

    def _relies_on_it(self, project: Project) -> bool:
        """Whether the argument is the only way by which the program learns its local rank, and is used."""
        if any(map(project.contents.holding, ("get_local_rank", "local_process_index", "TrainingArguments"))):
            return False
        texts = [project.contents.text(path) or "" for path in project.contents.holding("LOCAL_RANK")]
        if any(map(_READS.search, texts)):
            return False
        texts = [project.contents.text(path) or "" for path in project.contents.holding("local_rank")]
        return any(".local_rank" in text for text in texts) and not any(map(_SETS.search, texts))


def _is_older(project: Project, facts: ModuleFacts, launch: Launch) -> bool:
    """Whether a program is for a torch whose launcher passes the old spelling."""
    return (
        requires_older(project, "torch", _RELEASE, facts.source.inside)
        or imports_removed(project, facts, "torch", _RELEASE)
        or page_requires_older(project, launch.inside, "torch", _RELEASE)
    )


def _is_required(node: cst.Call) -> bool:
    required = argument(node, None, "required")
    return required is not None and dotted(required) == "True"


def _left_over(facts: ModuleFacts) -> dict[ast.expr, str]:
    """What the calls that know not all arguments leave, by the name that gets it: ``args, rest = parse_known_args()``;
    '' where only the first of both is taken."""
    found: dict[ast.expr, str] = {}
    for node in walk(facts.tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            found[node.value] = ""
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            rest = node.targets[0].elts[-1]
            if isinstance(rest, ast.Name):
                found[node.value] = rest.id
    return {call: name for call, name in found.items() if isinstance(call, ast.Call) and _called(call) == _DROPS}


def _gets_all(call: ast.Call, left: dict[ast.expr, str], facts: ModuleFacts) -> bool:
    """Whether a call parses the arguments of the program, or those that another parser has left of them; and where it
    leaves some itself, whether nothing reads them."""
    if call.keywords or (call.args and [dotted_ast(arg) for arg in call.args] not in [[n] for n in left.values() if n]):
        return False
    if _called(call) == _REFUSES:
        return True
    names = (n for n in walk(facts.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return call in left and not any(name.id == left[call] for name in names)


def _called(call: ast.Call) -> str:
    return dotted_ast(call.func).rpartition(".")[2]


def _names_argument(project: Project, launch: Launch) -> bool:
    """Whether the file with a command has the argument, which the command may then give."""
    return _OLD in (project.contents.text(project.root / launch.inside) or "")

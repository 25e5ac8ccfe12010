from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import frameworks
from ddp_lint.launch.ranks import Evidence, evidence_in
from ddp_lint.rules.base import Rule
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.imports import dotted_ast
from ddp_lint.source.queries import literal_text
from ddp_lint.source.syntax import calls_below
from ddp_lint.source.tree import descendants, subtree
from ddp_lint.view.wraps import argument

_STARTERS = (
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "subprocess.Popen",
)
_SCRIPT = re.compile(r"^[\w./-]+\.py$")
_RANKS = ("RANK", "LOCAL_RANK", "init_process_group", "SLURM_PROCID")
_CLEANED = re.compile(
    r"(pop|del|remove|discard)\b[^\n]*[\"'](RANK|WORLD_SIZE|LOCAL_RANK|MASTER_\w+)|not in (_?\w*RANK\w*|\w*VARS)",
)


class ChildInheritsRank(Rule):
    """A rank starts a process that inherits RANK, WORLD_SIZE and MASTER_ADDR and creates its own group.

    ## What it does

    Finds `subprocess` calls in code that runs as a rank which start a Python program that calls `init_process_group`
    (or uses Lightning or Accelerate), and pass on the environment unchanged.

    ## Why it breaks

    The child of rank 0 reads RANK=0 and WORLD_SIZE=2 and waits at MASTER_ADDR:MASTER_PORT for a rank 1 that only
    exists in the parent's job: it hangs, or fails because the parent's store already listens on the port
    (`Address already in use`). If every rank starts the child, two jobs use the same rendezvous.

    ## Example

    ```python
    import datetime
    import subprocess
    import sys

    import torch.distributed as dist

    EVALUATE = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier()"

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    if dist.get_rank() == 0:
        subprocess.run([sys.executable, "-c", EVALUATE], check=True, timeout=20)  # <- DDP804
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import datetime
    import os
    import subprocess
    import sys

    import torch.distributed as dist

    EVALUATE = "import os; print('evaluates alone:', 'RANK' not in os.environ)"
    OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    if dist.get_rank() == 0:
        environment = {name: value for name, value in os.environ.items() if name not in OURS}
        subprocess.run([sys.executable, "-c", EVALUATE], env=environment, check=True, timeout=20)
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## When it is silent

    Parents that are not known to be ranks; children that create no group, or that torchrun starts (it sets the
    variables again); an environment from which the ranks' variables are removed; tests; a file that starts the ranks
    itself and contains the function that creates their group.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks stall while the child waits, or the child fails to bind the port.

    ## Fix safety

    No fix: which variables the child needs is the author's choice.

    ## References

    - https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        "run",
        "call",
        "check_call",
        "check_output",
        "Popen",
        "subprocess",
        "executable",
        "CalledProcessError",
        file=("subprocess",),
        tests=False,
    )
    oracles = ("stall", "exception", "exit")

    def start(self) -> None:
        self._rank = self._evidence()
        self._helpers: dict[str, int] = {}

    def visit_Module(self, node: cst.Module) -> None:
        if self._rank is None:
            return
        for function in descendants(node):
            if isinstance(function, cst.FunctionDef):
                self._note_helper(function)

    def visit_Call(self, node: cst.Call) -> None:
        if self._rank is None:
            return
        if self.module.qualified(node.func) in _STARTERS and not self._own_environment(node):
            self._visit_start(node, node.args[0].value if node.args else None)
        elif isinstance(node.func, cst.Name) and node.func.value in self._helpers:
            position = self._helpers[node.func.value]
            self._visit_start(node, node.args[position].value if position < len(node.args) else None)

    def _evidence(self) -> Evidence | None:
        """What shows that this process is a rank: it reads RANK, or builds the group itself."""
        text = self.module.file.code
        if self.module.facts is None or self.module.project is None:
            return None
        if not any(re.search(rf"\b{word}\b", text) for word in _RANKS) or _CLEANED.search(text):
            return None
        return evidence_in(self.module.facts, self.module.project, _RANKS)

    def _note_helper(self, function: cst.FunctionDef) -> None:
        """A function that hands one of its parameters to subprocess as the command."""
        names = [p.name.value for p in function.params.params]
        for call in descendants(function.body):
            if isinstance(call, cst.Call) and call.args and self.module.qualified(call.func) in _STARTERS:
                command = dotted(call.args[0].value)
                if command in names:
                    self._helpers[function.name.value] = names.index(command)

    def _visit_start(self, node: cst.Call, command: cst.BaseExpression | None) -> None:
        what = next(self._group_builders(command), "") if command is not None else ""
        if not what or self._rank is None or self._is_launcher(node):
            return
        self.report(
            node,
            f"{what} inherits this rank's RANK and MASTER_ADDR: it joins or blocks the parent's job",
            notes=["it waits for ranks of another job, or finds the port taken, and this rank's peers wait with it"],
            labels=[(self._rank.span, f"`{self._rank.word}`: this process is a rank")],
            help="start it with an environment without RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
        )

    def _is_launcher(self, node: cst.Call) -> bool:
        """Whether the file starts the ranks itself: what builds the group is a function that only other files call, and
        the start is in one that only this file calls."""
        facts, here = self.module.facts, self.module.function_of(node)
        if facts is None or here is None or self._rank is None or self._rank.word != "init_process_group":
            return False
        line = self._rank.span.line
        functions = (n for n in facts.tree.body if isinstance(n, ast.FunctionDef))
        builder = next((f for f in functions if f.lineno <= line <= (f.end_lineno or line)), None)
        if builder is None or builder.name == here.name.value:
            return False
        called = {dotted_ast(n.func) for n in calls_below(facts.tree)}
        return builder.name not in called and here.name.value in called

    def _own_environment(self, node: cst.Call) -> bool:
        given = argument(node, None, "env")
        return isinstance(given, (cst.Dict, cst.DictComp))

    def _group_builders(self, command: cst.BaseExpression) -> Iterator[str]:
        """What of a command builds a group: program text, or a script of the project. A launcher sets its own ranks."""
        for value in (command, *(self.module.assignments(command) if isinstance(command, cst.Name) else ())):
            texts = list(self._texts(value))
            if frameworks.commands().search(" ".join(texts)):
                continue
            for text in texts:
                if "init_process_group(" in text:
                    yield "this program"
                elif _SCRIPT.match(text) and self._builds_group(text):
                    yield f"`{text}`"

    def _texts(self, command: cst.BaseExpression) -> Iterator[str]:
        """The literals of a command, also those that its names are assigned."""
        for node in subtree(command):
            yield literal_text(node)
            for value in self.module.assignments(node) if isinstance(node, cst.Name) and node is not command else ():
                yield from (literal_text(n) for n in subtree(value))

    def _builds_group(self, script: str) -> bool:
        project = self.module.project
        if project is None:
            return False
        path = project.root / script
        words = ("init_process_group", "Accelerator(", "Trainer(", "Fabric(", "init_distributed", "setup_distributed")
        text = project.contents.text(path) if path.is_file() else None
        return text is not None and any(word in text for word in words)

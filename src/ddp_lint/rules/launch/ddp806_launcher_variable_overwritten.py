from __future__ import annotations

import ast
import re

import libcst as cst

from ddp_lint.findings import Confidence
from ddp_lint.knowledge import frameworks
from ddp_lint.launch.environment import Write
from ddp_lint.launch.helpers import helper_of
from ddp_lint.launch.single_process import starts_its_ranks
from ddp_lint.rules.launch.variables import WriteRule, default_instead
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source import dotted
from ddp_lint.source.control_flow import conditions
from ddp_lint.source.queries import calls_in
from ddp_lint.source.tree import names_in, positional_of, subtree
from ddp_lint.view.wraps import argument

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR")
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_READS = re.compile(r"""(environ\[|environ\.get\(\s*|getenv\(\s*)["'](LOCAL_RANK|RANK)["']\]?(?!\]?\s*=[^=])""")
_SEEDS = re.compile(r"\brandom\.seed\(|seed_everything\(|set_seed\(")
_FREE = re.compile(r"getsockname\(")
_STARTS = re.compile(r"\b(spawn|start_processes|Process|Popen|subprocess|SLURM_\w+|OMPI_\w+|MPI|mpi4py|ray)\b")


class LauncherVariableOverwritten(WriteRule):
    """The script overwrites a variable with which torchrun sets the number and address of each rank.

    ## What it does

    Finds `os.environ["RANK"]`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` or `MASTER_PORT` set to a constant in a file
    that also reads its rank from the environment, so that a launcher starts it.

    ## Why it breaks

    torchrun has set them, `RANK` and `LOCAL_RANK` differently for each rank. With `RANK` a constant both processes
    register as the same rank and wait for the other. torchrun itself listens on `MASTER_PORT`: with another one rank 0
    and rank 1 connect to a port on which nobody does. Measured: `RANK` overwritten hangs (still running after 40 s on
    NCCL), `MASTER_PORT` overwritten fails after 18 to 23 s.

    ## Example

    ```python
    import datetime
    import os

    import torch.distributed as dist

    os.environ["RANK"] = "0"  # <- DDP806
    print("GPU", os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## Use instead

    ```python
    import datetime
    import os

    import torch.distributed as dist

    os.environ.setdefault("MASTER_PORT", "29500")
    print("GPU", os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    dist.barrier()
    dist.destroy_process_group()
    ```

    ## When it is silent

    `setdefault`; a test that the variable is unset; values that are computed (from Slurm or MPI, or `f"{gpus * nodes}"`
    for `WORLD_SIZE`); files that start their own processes, unless each of these draws a port; tests. The address of
    ranks that a Lightning Trainer starts on one machine, and `localhost`, which is right on one node. The port where
    the file uses DeepSpeed and names no other launcher: DeepSpeed's hosts no store, so that rank 0 listens on the new
    port.

    ## How to confirm

    `ddp-lint verify train.py`: the ranks stall in `init_process_group`, or it fails.

    ## Fix safety

    Unsafe: with `setdefault` the launcher's value is used if there is one.

    ## References

    - https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers("environ", file=("LOCAL_RANK", "RANK", "MASTER_PORT"))
    oracles = ("stall", "exception", "environment")

    def start(self) -> None:
        text = self.module.file.code
        self._launched = bool(_READS.search(text)) and not _STARTS.search(text) and not self.module.file.is_test

    def check(self, write: Write) -> None:
        sets = self._launched and write.own and not write.default and write.name in _VARIABLES
        sets = sets and not (write.name.startswith("MASTER_") and starts_its_ranks(self.module))
        # The address is one for all ranks, also where it is put together; a number of ranks that is, is computed.
        literals = (cst.SimpleString, cst.FormattedString) if write.name.startswith("MASTER_") else cst.SimpleString
        if sets and isinstance(write.value, literals) and not self._asked(write) and not self._finds_itself(write):
            self.report(
                write.key,
                f"{write.name} is overwritten with the same value on every rank: the ranks do not find each other",
                notes=[self._outcome(write.name)],
                help=f'os.environ.setdefault("{write.name}", ...) keeps what the launcher set',
                fix=default_instead(self.module, write, "keep the launcher's value"),
            )

        elif write.own and not write.default and write.name == "MASTER_PORT" and self._each_draws(write):
            self.report(
                write.key,
                "each rank draws a MASTER_PORT of its own: the ranks do not find each other",
                notes=["rank 0 listens on its port, rank 1 connects to another one, and init_process_group fails"],
                help="draw the port once, before the ranks are started, and give it to all of them",
            )

    def _each_draws(self, write: Write) -> bool:
        """Whether a port is drawn in a function that joins the job as one of several ranks, or in a file that a
        launcher starts for each rank."""
        if self.module.file.is_test or self._asked(write) or not self._is_drawn(write.value):
            return False
        function = self.module.function_of(write.node)
        if function is None:
            return self._launched
        joins = [
            call
            for call in calls_in(function.body)
            if self.module.qualified(call.func) == "torch.distributed.init_process_group"
        ]
        places = {parameter.name.value for parameter in positional_of(function)}
        joins = [call for call in joins if self._asks_environment(call)]
        ranks = {dotted(argument(call, 4, "rank")).partition(".")[0] for call in joins}
        return not places.isdisjoint(ranks) or (self._launched and bool(joins))

    def _asks_environment(self, join: cst.Call) -> bool:
        """Whether the ranks meet at the port of the environment."""
        method = argument(join, 1, "init_method")
        return method is None or (isinstance(method, cst.SimpleString) and method.evaluated_value == "env://")

    def _is_drawn(self, value: cst.BaseExpression | None) -> bool:
        """Whether a port comes from a generator of random numbers that nothing seeds, or is any that is free."""
        seeded = _SEEDS.search(self.module.file.code) is not None
        given = (
            []
            if value is None
            else [value, *(v for name in names_in(value) for v in self.module.assignments(name, value))]
        )
        for call in (node for each in given for node in subtree(each) if isinstance(node, cst.Call)):
            helper = helper_of(self.module, call)
            if not seeded and self.module.qualified(call.func).startswith(("random.", "numpy.random.")):
                return True
            if helper is not None and any(_FREE.search(ast.unparse(each)) for each in helper.function.body):
                return True
        return False

    def _finds_itself(self, write: Write) -> bool:
        """Whether the ranks meet all the same: on the one node whose own address it is, or at another port than the
        launcher's, where rank 0 listens and not the launcher."""
        if write.name == "MASTER_ADDR":
            return isinstance(write.value, cst.SimpleString) and write.value.evaluated_value in _THIS_MACHINE
        return write.name == "MASTER_PORT" and self._rank_hosts_store()

    def _rank_hosts_store(self) -> bool:
        packages = frameworks.packages(lambda framework: framework.launch.rank_hosts_store)
        others = frameworks.every(lambda f: () if f.launch.rank_hosts_store else f.launch.commands)
        named = re.search("|".join(others), self.module.file.text)
        return named is None and not packages.isdisjoint(self.module.imports.packages)

    def _outcome(self, variable: str) -> str:
        """What comes of it: the launcher gives all ranks one address, and each a number of its own."""
        if variable.startswith("MASTER_"):
            return (
                "if the launcher has set another one, rank 1 connects to the wrong address and init_process_group fails"
            )
        if variable == "WORLD_SIZE":
            return "with any other number of ranks rank 0 and rank 1 wait for each other in init_process_group"
        return (
            "the launcher gave rank 0 and rank 1 different values, and they wait for each other in init_process_group"
        )

    def _asked(self, write: Write) -> bool:
        """Under a condition: the branch of a run without a launcher, or any other the author chose."""
        guard = next(
            (a for a in self.module.ancestors(write.node) if isinstance(a, (cst.Else, cst.ExceptHandler))), None
        )
        return guard is not None or next(conditions(self.module, write.node), None) is not None

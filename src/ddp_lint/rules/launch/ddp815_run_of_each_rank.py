from __future__ import annotations

import ast

import libcst as cst

from ddp_lint.findings import Confidence, Span
from ddp_lint.knowledge.trackers import Tracker, trackers
from ddp_lint.launch.callers import CallSite
from ddp_lint.launch.joining import is_done_before_ranks
from ddp_lint.launch.on_all_ranks import reached_by_all
from ddp_lint.launch.one_process import as_one_process
from ddp_lint.launch.one_rank import comes_on_one_rank, on_one_rank
from ddp_lint.launch.ranks import runs_alone
from ddp_lint.launch.shown_in_file import ShownInFile
from ddp_lint.launch.started import launched_as_several
from ddp_lint.launch.trackers import is_for_agent, is_left_to_rank, is_switched_off, starts_own
from ddp_lint.launch.waiting import ends_while_others_wait
from ddp_lint.project.facts import ModuleFacts
from ddp_lint.rules.base import Rule
from ddp_lint.rules.data.trainers import is_shared_by_trainers
from ddp_lint.rules.triggers import Triggers
from ddp_lint.source.queries import calls_in
from ddp_lint.source.syntax import function_at
from ddp_lint.view.as_ast import as_ast


class RunOfEachRank(Rule):
    """Every rank starts its own run of an experiment tracker: one training shows as several, each with its own metrics.

    ## What it does

    Finds calls that start a run of an experiment tracker (`wandb.init`, `mlflow.start_run`, `aim.Run`,
    `neptune.init_run`, `comet_ml.Experiment`, `swanlab.init`, `trackio.init`, clearml's `Task.init`) outside of any
    test for the rank, in a function that every rank runs: it creates the process group, wraps the model, makes
    accelerate's `Accelerator`, reads its rank or trains, or is called by such a function, also in another file; and in
    programs that a command of the project starts as several processes, or a `Trainer` of Lightning.

    ## Why it breaks

    A job of eight ranks makes eight runs in the dashboard, by one name. Each has the loss of its rank's own batches,
    and none that of the whole; who looks at one of them sees an eighth of the data. All of them upload, also copies of
    one checkpoint, and count against the limits of the server. The trackers tell ranks from each other only where
    they are told to. Measured with two processes: two runs.

    ## Example

    ```python
    import torch
    import torch.distributed as dist
    import wandb


    def main():
        dist.init_process_group("gloo")
        wandb.init(project="demo")  # <- DDP815
        for step in range(3):
            loss = torch.rand(())
            wandb.log({"loss": loss.item()})
        dist.destroy_process_group()


    main()
    ```

    ## Use instead

    ```python
    import torch
    import torch.distributed as dist
    import wandb


    def main():
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            wandb.init(project="demo")
        for step in range(3):
            loss = torch.rand(())
            dist.all_reduce(loss)
            if dist.get_rank() == 0:
                wandb.log({"loss": loss.item() / dist.get_world_size()})
        dist.destroy_process_group()


    main()
    ```

    ## When it is silent

    Runs that are started under a test for the rank, also of the caller, or by the process that spawns the ranks; that
    belong together (`group=` of wandb and swanlab, `run_id=` of mlflow, `run_hash=` of aim), that may be switched off
    (`mode="disabled"`, `mode=..` by a test, `WANDB_MODE` and `wandb.setup` by the rank), or have the rank in their
    name, folder or tags: one run for each rank on purpose. Settings that something in the project makes of the rank
    (`args.log = args.log and rank == 0`), and those that a call unpacks and the function does not write down. The
    loggers of Lightning, transformers and accelerate, which start runs on the first rank alone. Agents of sweeps. Code
    that only programs without a group come to, and tests. TensorBoard's `SummaryWriter` of each rank: it writes a file
    of its own, and whether their curves are read as one is up to who reads them.

    Only with `--preview`: what accelerate prepares, which may be started as one process, what is reached by way of
    other functions, and programs that a command of the project, or Lightning's `Trainer`, starts as several processes.

    ## How to confirm

    `ddp-lint verify train.py`: several ranks start a run at this line.

    ## Fix safety

    No fix: what logs to the run on the other ranks has to go, too.

    ## References

    - https://docs.wandb.ai/guides/track/log/distributed-training/
    - https://github.com/huggingface/pytorch-image-models/issues/1309
    """

    confidence = Confidence.MEDIUM
    triggers = Triggers(
        *sorted({name.rpartition(".")[2] for name in trackers()}),
        file=sorted({tracker.package for tracker in trackers().values()}),
        tests=False,
    )
    of_several = True
    oracles = ("started",)

    def start(self) -> None:
        self._shown = ShownInFile(self.module)
        self._starts: dict[cst.FunctionDef | None, list[tuple[cst.Call, Tracker]]] = {}
        for call in self.module.of_type(cst.Call):
            tracker = trackers().get(self.module.qualified(call.func))
            if tracker is not None:
                self._starts.setdefault(self.module.function_of(call), []).append((call, tracker))

    def visit_Module(self, node: cst.Module) -> None:
        found = self._of_all(None)
        calls = list(calls_in(node)) if found else []
        shown = self._shown.at_top(calls) or self._shown.prepared_at_top(calls)
        if shown is not None and not on_one_rank(self.module, shown.call):
            self._report(found, shown.call, doubtful=not shown.surely)
        elif found and self.module.facts is not None and self._starts_several(self.module.facts):
            self._report(found, found[0][0], doubtful=True)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        found = self._of_all(node)
        shown = self._shown.of(node) if found else None
        if shown is not None and not on_one_rank(self.module, shown.call):
            calls = set(shown.of(list(calls_in(node.body))))
            counted = [each for each in found if each[0] in calls]
            self._report(counted, shown.call, doubtful=not shown.surely)
            if counted:
                return
        reached = reached_by_all(self.module, node, self._starts_several) if found else None
        if reached is not None:
            self._report(found, reached.span, reached.way)

    def _starts_several(self, program: ModuleFacts) -> bool:
        """Whether a command of the project starts a program as several processes, or a trainer of Lightning does."""
        project = self.module.project
        if project is None:
            return False
        return launched_as_several(project, program) is not None or is_shared_by_trainers(project, program)

    def _of_all(self, function: cst.FunctionDef | None) -> list[tuple[cst.Call, Tracker]]:
        module = self.module
        return [
            (call, tracker)
            for call, tracker in self._starts.get(function, ())
            if not comes_on_one_rank(module, call)
            and not as_one_process(module, call)
            and not runs_alone(module, call)
            and not ends_while_others_wait(module, call)
            and starts_own(module, call, tracker)
            and not self._is_before_ranks(call)
        ]

    def _is_before_ranks(self, call: cst.Call) -> bool:
        project, facts = self.module.project, self.module.facts
        if project is None or facts is None:
            return False
        node = as_ast(self.module, call)
        if not isinstance(node, ast.Call):
            return False
        return is_done_before_ranks(facts, project, node, function_at(facts.tree, node.lineno))

    def _report(
        self,
        found: list[tuple[cst.Call, Tracker]],
        every: cst.Call | Span,
        way: tuple[CallSite, ...] = (),
        *,
        doubtful: bool = False,
    ) -> None:
        project, facts = self.module.project, self.module.facts
        if project is None or facts is None or is_for_agent(facts):
            return
        files = {id(each): each for each in (facts, *(site.facts for site in way))}
        left = [each for each in found if not is_left_to_rank(self.module, each[0], way)]
        if not left or any(is_switched_off(project, each) for each in files.values()):
            return
        call, tracker = left[0]
        self.report(
            call,
            f"every rank starts a {tracker.package} run of its own: one training shows as several runs",
            confidence=Confidence.LOW if doubtful or way else None,
            labels=[(every, "every rank runs this function")],
            help="start it on the first rank only, and log reduced values there",
        )

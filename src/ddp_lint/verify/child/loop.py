"""Trains a model for a few steps under one wrap, and compares the result with one process on the full batch."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn

from ddp_lint.verify import trace
from ddp_lint.verify.child import compiling, guard, reference
from ddp_lint.verify.child.inputs import Batch, Builder, call, load
from ddp_lint.verify.child.loss import loss_of
from ddp_lint.verify.child.observers.skew import SEED_STRIDE, enlarge
from ddp_lint.verify.child.session import Session
from ddp_lint.verify.child.wraps import wrap
from ddp_lint.verify.spec import Spec

_NAN_STEP = 1


def train(spec: Spec, session: Session) -> None:
    """The whole life of a rank whose target is a model."""
    note = {compiling.NOTE}

    def compiles() -> None:
        while note:
            session.recorder.emit(trace.Note, frames=(), text=note.pop())

    compiling.trace_only(compiles)
    _Training(spec, session).run()


class _Training:
    def __init__(self, spec: Spec, session: Session) -> None:
        self.spec = spec
        self.session = session
        self.recorder = session.recorder
        self.rank, self.world = self.recorder.rank, self.recorder.world
        index = self.recorder.local_rank % spec.shared_gpus if spec.shared_gpus else self.recorder.local_rank
        self.device = torch.device("cuda", index) if spec.device == "cuda" else torch.device("cpu")

    def run(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        with self.recorder.quieted():
            self.builder = Builder(load(self.spec.path, self.spec.root), self.spec.name, self.spec.recipe)
            _round_alike(self.builder.build())
            twin, why = self._twin()
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            **({"device_id": self.device} if self.device.type == "cuda" else {}),
        )
        self.session.watch_lines()
        self.recorder.enter("build")
        model = self.builder.build(self.device)
        self.session.phases.adopt(model)
        root = self._wrap(model)
        gradients = self._steps(root)
        if self._all_arrived():
            self._compare(root, twin, why, gradients)
        self._explain()

    def _twin(self) -> tuple[reference.Twin | None, str]:
        """The single-process reference, or why there is none."""
        if self.spec.stimuli:
            return None, "the pass is skewed"
        try:
            twin = reference.compute(self.builder, self.spec.steps, self.world, self.device, self.spec.wrap)
        except Exception as error:
            return None, f"a single process fails: {type(error).__name__}: {str(error)[:200]}"
        self.recorder.reference_without_gradient = twin.replicas.no_gradient
        return twin, ""

    def _wrap(self, model: nn.Module) -> nn.Module:
        self.recorder.enter("wrap")
        root = wrap(model, self.spec.wrap, self.device)
        self.recorder.enter("after_wrap")
        if self.spec.wrap == "none":
            self.session.phases.tell_wrapped(root)
        return root

    def _steps(self, root: nn.Module) -> reference.Tensors:
        """Train; the gradients of the first step."""
        optimizer = reference.optimizer_of(root)
        gradients: reference.Tensors = {}
        offset = self.rank * SEED_STRIDE if "seeds" in self.spec.stimuli else 0
        for step in range(self.spec.steps):
            reference.seed_step(step, offset)
            loss = loss_of(call(root, self._batch(step)))
            with self.recorder.quieted():
                self.recorder.emit(trace.Value, frames=(), what="loss", local=float(loss.detach()))
            loss.backward()
            if step == 0:
                with self.recorder.quieted():
                    model = self.session.models.find(root)
                    gradients = reference.gradients_now(model) if model is not None else {}
            optimizer.step()
            optimizer.zero_grad()
        return gradients

    def _batch(self, step: int) -> Batch:
        """This rank's batch (unwrapped: the full batch), changed by the stimuli."""
        full = self.builder.full_batch(step, self.world) if self.spec.wrap == "none" else None
        batch = full or self.builder.batch(step, self.rank)
        stimuli = self.spec.stimuli
        if "seeds" in stimuli and self.rank % 2:
            batch = batch.map(lambda tensor: -tensor if tensor.is_floating_point() else tensor)
        if "large" in stimuli:
            batch = batch.map(enlarge)
        if "nan" in stimuli and step == _NAN_STEP and self.rank == self.world - 1:
            batch = batch.map(lambda tensor: tensor * float("nan") if tensor.is_floating_point() else tensor)
        return batch.to(self.device)

    def _all_arrived(self) -> bool:
        """Every rank of this machine came through its steps: collectives from here on meet their partners."""
        marks, ranks = self.recorder.marks, self.recorder.local_ranks
        marks.set(self.rank, "trained")
        until = time.monotonic() + self.spec.timeout
        while time.monotonic() < until:
            if all(marks.has(rank, "trained") for rank in ranks):
                return len(ranks) == self.world or self.spec.wrap != "fsdp1"
            time.sleep(0.02)
        return False

    def _compare(self, root: nn.Module, twin: reference.Twin | None, why: str, gradients: reference.Tensors) -> None:
        model = self.session.models.find(root)
        if twin is None or model is None:
            self.recorder.emit(trace.Reference, frames=(), error=why or "the wrapped model does not exist any more")
            return
        if model.wrap == "none" and twin.full is None:
            why = "unwrapped ranks average nothing, and their batches cannot be joined into one"
            self.recorder.emit(trace.Reference, frames=(), error=why)
            return
        # FSDP1 gathers there, which its ranks may not come through; any other error is one of ours.
        compare = reference.compare if model.wrap == "fsdp1" else guard.guarded(reference.compare)
        with self.recorder.quieted():
            event = compare(model, twin, gradients, self.rank, self.world)
        self.recorder.emit(trace.Reference, frames=(), **{k: v for k, v in vars(event).items() if k in _REFERENCE})

    def _explain(self) -> None:
        """What torch.compile would break, once for all ranks of the machine."""
        if not self.spec.graph_breaks or self.recorder.local_rank or self.spec.stimuli:
            return
        with self.session.paused():
            batch = self.builder.batch(0, self.rank)
            self.session.breaks.explain(self.builder.build(), batch.args, dict(batch.kwargs))


_REFERENCE = set(vars(trace.Reference())) - set(vars(trace.Event()))


def _round_alike(model: nn.Module) -> None:
    """cuDNN uses TF32 by default, and rounds to 1e-3; its recurrent layers differ under FSDP2 without TF32,
    too (by 5e-4 after 5 steps: H100, torch 2.11), and would seem to differ from one process by more than damage does.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    if any(isinstance(part, nn.RNNBase) for part in model.modules()):
        torch.backends.cudnn.enabled = False

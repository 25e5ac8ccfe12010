"""Where the training is: forward, backward, step; which modules run; when a model is wrapped."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ddp_lint.verify import trace
from ddp_lint.verify.child import guard, patching
from ddp_lint.verify.child.models import Models
from ddp_lint.verify.child.observers.base import Observer
from ddp_lint.verify.child.recorder import Recorder


class EnoughSteps(BaseException):
    """`--steps` steps have been made: the script ends here."""


class Phases(Observer):
    """Keeps the recorder's position up to date and notifies the other observers of wraps and steps.

    Calls that it records: DistributedDataParallel, FullyShardedDataParallel, fully_shard (with the class of the
    module), ddp_forward (with the model's number, and whether its backward averages), autograd.grad, compile, join (the
    rank is out of batches, inside of `Join`).
    """

    def __init__(self, recorder: Recorder, models: Models, others: list[Observer]) -> None:
        super().__init__(recorder, models)
        self._others = others
        self._wrapping = 0
        #: The optimizers whose step runs, the outermost first: one may step by another one, and then do more
        #: (ZeroRedundancyOptimizer hands the parameters round).
        self._stepping: list[int] = []
        #: This rank is out of batches and answers the calls of those that have some (`Join`): its steps train nothing.
        self._joined = False
        #: Every module in order of creation: a root is created before its parts.
        self._created: list[weakref.ref[nn.Module]] = []
        self._announced: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def install(self) -> None:
        patching.before(nn.Module, "__init__", lambda module, *_, **__: self._created.append(weakref.ref(module)))
        register_module_forward_pre_hook(guard.guarded(self._enter_module))
        register_module_forward_hook(guard.guarded(self._leave_module), always_call=True)
        register_optimizer_step_pre_hook(guard.guarded(self._before_step))
        register_optimizer_step_post_hook(guard.guarded(self._after_step))
        patching.around(torch.autograd, "backward", self._backward)
        patching.before(torch.autograd, "grad", lambda *args, **kwargs: self._call("autograd.grad"))
        patching.before(torch, "compile", lambda *args, **kwargs: self._call("compile"))
        patching.before(nn.Module, "compile", lambda *args, **kwargs: self._call("compile"))
        patching.around(Join, "__exit__", self._join)
        self._watch_wrapper(nn.parallel.DistributedDataParallel)
        for name in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"):  # the second one before torch 2.6
            patching.when_imported(name, self._watch_fsdp)

    def _watch_fsdp(self, package: Any) -> None:
        if hasattr(package, "FullyShardedDataParallel"):
            self._watch_wrapper(package.FullyShardedDataParallel)
        patching.around(package, "fully_shard", self._fully_shard)

    def _call(self, name: str, /, **arguments: Any) -> None:
        if self.recorder.active and not torch.compiler.is_compiling():
            self.recorder.emit(trace.Call, name=name, arguments=arguments)

    # ---- modules

    def _enter_module(self, module: nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling() or self.recorder.quiet:
            return
        stack = self.recorder.modules
        if not stack and not self.models.knows(module) and any(True for _ in module.parameters()):
            self.tell_wrapped(module)
        if isinstance(module, nn.parallel.DistributedDataParallel):
            self._prepares(module)
        self.recorder.enter_module(self.models.name_of_module(module))
        if len(stack) == 1 and self.recorder.phase not in ("backward", "step"):
            model = self.models.find(module)
            self.models.running = model
            if model is not None:
                model.look()
            self._tell("before_forward", module)
            self.recorder.enter("forward")

    def _prepares(self, wrapper: nn.parallel.DistributedDataParallel) -> None:
        """A forward with gradients prepares DDP for one backward, unless it is told to leave the averaging out."""
        model = self.models.find(wrapper) if torch.is_grad_enabled() else None
        if model is not None:
            averages = bool(wrapper.require_backward_grad_sync)
            self._call("ddp_forward", model=model.shared_number, averages=averages)

    def _leave_module(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if torch.compiler.is_compiling() or self.recorder.quiet:
            return
        self.recorder.leave_module()
        if not self.recorder.modules and self.recorder.phase == "forward":
            self.recorder.enter("between")

    # ---- wraps

    def _watch_wrapper(self, cls: Any) -> None:
        def init(original: Any, wrapper: nn.Module, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            self._wrap(cls.__name__, wrapper, module, kwargs, lambda: original(wrapper, module, *args, **kwargs))

        patching.around(cls, "__init__", init)

    def _fully_shard(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        return self._wrap("fully_shard", module, module, kwargs, lambda: original(module, *args, **kwargs))

    def _wrap(self, name: str, wrapper: nn.Module, module: Any, options: dict[str, Any], build: Any) -> Any:
        """Run a wrapper's constructor in the phase wrap; nested ones (auto-wrapped units) belong to the outermost."""
        if self.recorder.quiet or self._wrapping or not isinstance(module, nn.Module):
            return build()
        phase = self.recorder.phase
        self._wrapping += 1
        self._call(name, module=type(module).__name__, **_plain(options))
        root = self._root_of(module)
        if root not in self._announced:
            self.adopt(root)
        self.recorder.enter("wrap")
        try:
            result = build()
        finally:
            self._wrapping -= 1
            self.recorder.enter(phase)
        if name != "fully_shard" or root is module:
            self.tell_wrapped(wrapper)
        return result

    def _root_of(self, module: nn.Module) -> nn.Module:
        """The outermost module that holds this one (FSDP2 is applied to the parts first)."""
        for reference in self._created:
            outer = reference()
            if outer is not None and (outer is module or any(part is module for part in outer.modules())):
                return outer
        return module

    def adopt(self, module: nn.Module) -> None:
        """A whole model is about to be wrapped, in one piece or in several."""
        self._announced.add(module)
        self._tell("before_wrap", module)

    def tell_wrapped(self, root: nn.Module) -> None:
        """The model is wrapped (or will be used as it is)."""
        model = self.models.add(root)
        self._tell("wrapped", model)

    @guard.guarded
    def _tell(self, what: str, about: Any) -> None:
        """Call a method of all other observers, who do not observe each other."""
        with self.recorder.quieted():
            for other in self._others:
                getattr(other, what)(about)

    # ---- backward and step

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        if recorder.quiet or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        outer = recorder.phase
        recorder.backward_frames = recorder.here()
        self.models.backward_begins()
        recorder.enter("backward")
        result = original(*args, **kwargs)
        recorder.enter(outer if outer in ("forward", "backward") else "after_backward")
        return result

    def _join(self, original: Any, *args: Any) -> Any:
        self._call("join")
        self._joined = True
        try:
            return original(*args)
        finally:
            self._joined = False
            for model in self.models:
                model.updates, model.joins = 0, model.joins + 1

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self.recorder.active or self._joined:
            return
        if id(optimizer) in self._stepping:  # its last step raised
            self._stepping.clear()
        self._stepping.append(id(optimizer))
        if len(self._stepping) == 1:
            self._tell("before_step", optimizer)
            self.recorder.enter("step")

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        recorder = self.recorder
        if not recorder.active or self._joined:
            return
        if id(optimizer) in self._stepping[1:]:
            del self._stepping[self._stepping.index(id(optimizer)) :]
            return
        self._stepping.clear()
        recorder.step += 1
        recorder.enter("after_step")
        self._tell("after_step", optimizer)
        if recorder.spec.kind == "script" and recorder.spec.steps and recorder.step >= recorder.spec.steps:
            raise EnoughSteps


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments that are plain values (find_unused_parameters, sync_module_states ...)."""
    return {name: value for name, value in options.items() if isinstance(value, bool | int | float | str)}

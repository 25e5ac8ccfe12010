"""What an observer is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddp_lint.verify.child.recorder import Recorder

if TYPE_CHECKING:
    from ddp_lint.verify.child.models import Model, Models


class Observer:
    """Watches one kind of thing. All methods are called on the thread where the thing happens, never while quiet."""

    #: `finish` reads tensors, which may never return when the device is stuck after a failure.
    reads_device = False

    def __init__(self, recorder: Recorder, models: Models | None = None) -> None:
        self.recorder = recorder
        self._models = models
        self.prepare()

    @property
    def models(self) -> Models:
        """The models of this process (there are none before torch is imported)."""
        assert self._models is not None
        return self._models

    def prepare(self) -> None:
        """Make what it keeps."""

    def install(self) -> None:
        """Patch what has to be patched."""

    def wants(self, op: Any) -> bool:
        """Whether `before` and `after` are called for this operator (an `OpOverload`); queried once for each."""
        return False

    def before(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator is about to run; what is returned is given to `after`."""

    def after(self, token: Any, result: Any) -> None:
        """The operator returned."""

    def before_wrap(self, module: Any) -> None:
        """A module is about to be wrapped."""

    def wrapped(self, model: Model) -> None:
        """A model was wrapped, or (unwrapped) ran for the first time."""

    def before_forward(self, root: Any) -> None:
        """A root module is about to run."""

    def before_step(self, optimizer: Any) -> None:
        """An optimizer is about to step."""

    def after_step(self, optimizer: Any) -> None:
        """An optimizer has stepped."""

    def finish(self) -> None:
        """The training loop or script has reached its end on this rank."""

"""The functions of torch that take a device, replaced so that they get another one than the program names.

Only entry points are replaced: those that make or move tensors, load them, or make a generator. `torch.device` itself
stays what it is: a program that compares devices goes the way it goes on the machine that it was written for.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ddp_lint.verify.child import patching

#: Called with the device that the code requests and the one that it gets.
Notice = Callable[[str, str], None]

_OWN = str(pathlib.Path(__file__).parent) + os.sep


class Devices:
    """Installed once per process, before the observers, right after the import of torch.

    `notice` is called once for each pair.
    """

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._reported: set[tuple[str, str]] = set()

    def device(self, value: Any, *, number: bool = False) -> Any:
        """An existing device for the requested one; `number`: an int here is the index of a device."""
        raise NotImplementedError

    def report(self, requested: str, actual: str) -> None:
        if (requested, actual) not in self._reported:
            self._reported.add((requested, actual))
            self._notice(requested, actual)

    def install_tensors(self) -> None:
        import torch
        from torch.utils._device import DeviceContext, _device_constructors

        makers = _device_constructors()  # its cache has to hold the originals
        for name, function in list(vars(torch).items()):
            if callable(function) and not isinstance(function, type) and _hashable(function) and function in makers:
                replacement = functools.wraps(function)(self.with_device(function))
                patching.tell_torchscript(function, replacement)
                setattr(torch, name, replacement)
        for name in ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"):
            patching.replace(torch.Tensor, name, self.with_device)
        for name in ("empty_like", "full_like", "ones_like", "zeros_like", "rand_like", "randn_like", "randint_like"):
            patching.replace(torch, name, self.with_device)
        for owner in (torch.Tensor, torch.nn.Module):
            patching.replace(owner, "to", self.at(1))
        patching.around(torch, "load", self._load)
        patching.replace(DeviceContext, "__init__", self.at(1))
        torch.Generator = _generator(torch.Generator, self)

    def with_device(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`device=` is mapped."""

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") is not None:
                kwargs["device"] = self.device(kwargs["device"], number=True)
            return original(*args, **kwargs)

        return replacement

    def at(self, position: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """The argument at a position, or `device=`, is mapped."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            mapped = self.with_device(original)

            def replacement(*args: Any, **kwargs: Any) -> Any:
                if len(args) > position:
                    args = (*args[:position], self.device(args[position], number=True), *args[position + 1 :])
                return mapped(*args, **kwargs)

            return replacement

        return make

    def _load(self, original: Callable[..., Any], file: Any, at: Any = None, *args: Any, **kwargs: Any) -> Any:
        at = kwargs.pop("map_location", at)
        if isinstance(at, dict):
            at = {key: self.device(value) for key, value in at.items()}
        return original(file, self.device(at, number=True), *args, **kwargs)

    def answer(self, owner: Any, name: str, answer: Callable[..., Any]) -> None:
        """In place of a function of torch: those that `is_told` picks out get the answer, everybody else the truth."""
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)  # observers unwrap it: they need the true value
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return (answer if self.is_told(name) else original)(*args, **kwargs)

        setattr(owner, name, replacement)

    def is_told(self, name: str) -> bool:
        """Whether the caller of this function gets our answer."""
        raise NotImplementedError


def caller() -> FrameType | None:
    """The frame that called the function of torch in whose place ours runs, maybe through an observer."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _generator(original: type, devices: Devices) -> type:
    """`torch.Generator(device="cuda")`; what it makes is a generator of the original class, as is what torch makes."""

    class Meta(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, original)

        def __call__(cls, device: Any = "cpu") -> Any:
            return original(devices.device(device, number=True))

    return Meta("Generator", (), {})

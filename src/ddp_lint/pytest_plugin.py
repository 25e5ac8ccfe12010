"""The pytest plugin: a fixture that proves a model on two ranks. A suite that does not use it pays nothing for it."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ddp_lint.verify.results import Verification

__tracebackhide__ = True


class Verifier:
    """What the fixture `ddp_lint` is."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def verify(
        self,
        model: Any,
        *args: Any,
        inputs: Any = None,
        wraps: Sequence[str] = ("ddp", "fsdp2"),
        nproc: int = 2,
        device: str = "auto",
        steps: int = 0,
        timeout: float = 20.0,
        select: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Verification:
        """Train `model(*args, **kwargs)` on `inputs` for a few steps under each of `wraps`, as `ddp-lint verify` does,
        and fail the test with its report when something is confirmed or discovered, or could not be run.

        `model` is a class that can be imported by name; `inputs` what one call gets, a tuple or, for
        keywords, a dict (without any, they are inferred; then `args` and `kwargs` cannot be given). Tensors in them are
        one batch of one rank: each rank and step gets another one like it.
        """
        __tracebackhide__ = True
        verification, report = self._run(
            model, args, kwargs, inputs, {"wraps": tuple(wraps), "nproc": nproc, "device": device, "steps": steps,
                                          "timeout": timeout}, select,
        )  # fmt: skip
        if verification.exit_code:
            pytest.fail(report, pytrace=False)
        return verification

    def _run(
        self,
        model: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Any,
        options: Mapping[str, Any],
        select: Sequence[str] | None,
    ) -> tuple[Verification, str]:
        __tracebackhide__ = True
        from ddp_lint.config import Configuration, Overrides
        from ddp_lint.output import Sources
        from ddp_lint.verify.options import Options, UsageError
        from ddp_lint.verify.report import render
        from ddp_lint.verify.session import verify
        from ddp_lint.verify.starting import started

        path, name = _place(model)
        given = self._write(args, kwargs, inputs)
        text, asked = f"{path}:{name}", Options(**options, given=given)
        overrides = Overrides(select=tuple(select) if select else None, proving=True)
        sources = Sources()
        try:
            with started(text, asked) as pool:
                settings = Configuration(overrides).of(path.parent)
                verification = verify(text, asked, settings, sources, lambda _: None, pool)
        except UsageError as error:
            pytest.fail(f"ddp-lint verify: {error}", pytrace=False)
        return verification, render(verification, "full", sources)

    def _write(self, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: Any) -> str:
        """The file from which the ranks read arguments and inputs, "" when they are to be inferred."""
        __tracebackhide__ = True
        if inputs is None:
            if args or kwargs:
                pytest.fail("ddp_lint.verify: pass inputs= as well as the model's arguments", pytrace=False)
            return ""
        import torch

        path = self._folder / "given.pt"
        torch.save({"args": tuple(args), "kwargs": dict(kwargs), "inputs": inputs}, path)
        return str(path)


def _place(model: Any) -> tuple[pathlib.Path, str]:
    """The file and the name by which another process finds a class. Fails the test when it cannot."""
    __tracebackhide__ = True
    if not inspect.isclass(model):
        pytest.fail(f"ddp_lint.verify takes the model's class and its arguments, not {model!r:.80}", pytrace=False)
    file = inspect.getsourcefile(model)
    if file is None or "<locals>" in model.__qualname__:
        pytest.fail(
            f"ddp_lint.verify: {model.__qualname__} is defined in a function, where other processes cannot import it: "
            "define it at the top of a module",
            pytrace=False,
        )
    return pathlib.Path(file).resolve(), model.__qualname__


@pytest.fixture
def ddp_lint(tmp_path: pathlib.Path) -> Verifier:
    """`ddp_lint.verify(Net, inputs=(x,))`: the model trained on two ranks under DDP and FSDP2, compared with one
    process. A test that uses it starts processes and takes seconds."""
    return Verifier(tmp_path)

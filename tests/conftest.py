"""What holds for all tests."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

#: How long an example takes is no property of the program: machines that test are shared.
_PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
#: Other examples each time: `pytest --hypothesis-profile=random`. A run of the whole suite gives the same answer twice.
hypothesis.settings.register_profile("random", _PATIENT)
hypothesis.settings.register_profile("same", _PATIENT, derandomize=True)
hypothesis.settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """In the background a shell starts programs with SIGINT ignored, and what the tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> None:
    """What the tests start keeps bytecode, also where the environment says that Python keeps none, as images of
    containers do: each of hundreds of processes would compile the tool, and make the tables of its rules, again."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

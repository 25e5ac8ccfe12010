"""What holds for all tests."""

from __future__ import annotations

import signal

import hypothesis
import pytest

#: How long an example takes is no property of the program: machines that test are shared.
hypothesis.settings.register_profile(
    "no deadline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("no deadline")


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """In the background a shell starts programs with SIGINT ignored, and what the tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

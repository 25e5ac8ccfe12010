"""A rank that is through at once does not close its connections while its peer still connects."""

from __future__ import annotations

import pathlib
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

from ddp_lint.verify.child.models import Models
from ddp_lint.verify.child.observers.collectives import Collectives
from ddp_lint.verify.child.recorder import Recorder
from ddp_lint.verify.spec import Marks


def observer(folder: pathlib.Path, **spec: Any) -> Collectives:
    told = SimpleNamespace(**{"device": "cpu", "world": 0, "timeout": 600.0, **spec})
    recorder = SimpleNamespace(rank=0, local_ranks=range(2), marks=Marks(folder), spec=told)
    return Collectives(cast(Recorder, recorder), Models())


@pytest.mark.parametrize("mark", ["joined", "dying", "over", "exit"])
def test_it_waits_until_the_peer_is_there_or_gone(tmp_path: pathlib.Path, mark: str) -> None:
    collectives, marks = observer(tmp_path), Marks(tmp_path)
    marks.set(0, "joined")
    waiting = threading.Thread(target=collectives.let_peers_join, daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    marks.set(1, mark)
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.parametrize(("joined", "spec"), [(False, {}), (True, {"device": "cuda"}), (True, {"world": 64})])
def test_it_does_not_wait_where_nothing_is_connected(
    tmp_path: pathlib.Path, joined: bool, spec: dict[str, Any]
) -> None:
    if joined:
        Marks(tmp_path).set(0, "joined")
    observer(tmp_path, **spec).let_peers_join()

"""Programs that hang only at 4, 8, 16 or 64 ranks, and programs that do not: told apart without communication."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

pytest.importorskip("torch")

from ddp_lint.verify import dry_run
from ddp_lint.verify.options import Options, UsageError, Watch, ranks_of
from ddp_lint.verify.results import Examined
from ddp_lint.verify.target import resolve

TARGETS = sorted(pathlib.Path(__file__).parent.glob("targets/*.py"))


def _options(path: pathlib.Path) -> tuple[Options, bool]:
    """The size of the job, the ranks to run, and whether it hangs, as the program's first line says."""
    world, ranks, end = path.read_text().splitlines()[0].removeprefix("# dry: ").split()
    size = int(world.removeprefix("world="))
    return Options(world=size, ranks=ranks_of(ranks.removeprefix("ranks="), size)), end == "hang"


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Examined]:
    """All programs in one process: torch is imported once."""
    folder = tmp_path_factory.mktemp("dry")
    specs = []
    for path in TARGETS:
        options = dataclasses.replace(_options(path)[0], timeout=10.0)
        specs.append(dry_run.specification(resolve(str(path), options), options, Watch(), folder / path.stem))
    dry_run.zygote(specs, folder)
    return {path.name: dry_run.examine(spec, 0.0, "") for path, spec in zip(TARGETS, specs, strict=True)}


@pytest.mark.launch
@pytest.mark.parametrize("path", TARGETS, ids=lambda path: path.stem)
def test_a_hang_is_told_by_its_line_and_nothing_else_is_one(path: pathlib.Path, examined: dict[str, Examined]) -> None:
    found = examined[path.name]
    hangs = _options(path)[1]
    assert found.run.outcome == ("hang" if hangs else "completed"), found.run.message
    if hangs:
        lines = path.read_text().splitlines()
        line = next(number for number, text in enumerate(lines, 1) if text.endswith("# hang"))
        discovered = dry_run.discover(found, [])
        places = {one.line for discovery in discovered for one in discovery.evidence}
        places |= {
            call.site.line for one in found.mismatches for call in one.calls.values() if call is not None and call.site
        }
        assert line in places, found.run.message


def test_ranks() -> None:
    assert ranks_of("0,1,8-10,63", 64) == (0, 1, 8, 9, 10, 63)
    assert ranks_of(None, 64) == (0, 1, 32, 63)
    assert ranks_of("all", 4) == (0, 1, 2, 3)
    for text, message in (("64", "has ranks 0 to 63"), ("a", "'a' is no rank"), ("", "has ranks")):
        with pytest.raises(UsageError, match=message):
            ranks_of(text, 64)


def test_a_model_is_no_target_of_a_dry_run(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("from torch import nn\nclass Net(nn.Module):\n    def forward(self, x): return x\n")
    options = Options(world=8, ranks=(0,))
    with pytest.raises(UsageError, match="takes a training script"):
        dry_run.run(resolve(str(path), options), options, Watch(), lambda _: None)

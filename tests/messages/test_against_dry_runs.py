"""What is found in the source of a program, against what its ranks call in dry runs of several sizes."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")

from ddp_lint.verify import dry_run
from ddp_lint.verify.options import Options, Watch, ranks_of
from ddp_lint.verify.results import Examined
from ddp_lint.verify.target import resolve

from .programs import ENDING, HANGING, HEAD

SIZES = (2, 3)
#: What a dry run does not know: what is received, and where a rank waits for a work.
NOT_IN_DRY_RUNS = {
    "a send that returns at once, waited for",
    "a ring that waits for its send at once",
    "both wait for their receive before they send",
    "tasks until one says that it is the last",
    "as many messages as a rank has told the others",
    "receives from any rank, which are answered",
    "receives from any rank",
}


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Examined]:
    """All programs in one process: torch is imported once."""
    folder = tmp_path_factory.mktemp("dry")
    specs = {}
    for number, (name, text) in enumerate({**HANGING, **ENDING}.items()):
        path = folder / f"program{number}.py"
        path.write_text(HEAD + text)
        for size in SIZES:
            options = dataclasses.replace(Options(world=size, ranks=ranks_of("all", size)), timeout=10.0)
            place = folder / f"{number}-{size}"
            specs[name, size] = dry_run.specification(resolve(str(path), options), options, Watch(), place)
    dry_run.zygote(list(specs.values()), folder)
    return {key: dry_run.examine(spec, 0.0, "") for key, spec in specs.items()}


@pytest.mark.launch
@pytest.mark.parametrize("name", [name for name in {**HANGING, **ENDING} if name not in NOT_IN_DRY_RUNS])
def test_a_dry_run_of_two_ranks_ends_as_the_source_says(name: str, examined: dict[tuple[str, int], Examined]) -> None:
    found = {size: examined[name, size].run for size in SIZES}
    if name in ENDING:
        assert found[2].outcome == "completed", found[2].message
    else:
        assert any(run.outcome == "hang" for run in found.values()), [run.message for run in found.values()]

"""What is found in the source of a program, against what its ranks call in dry runs of two ranks."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")

from ddp_lint.verify import dry_run
from ddp_lint.verify.options import Options, Watch, ranks_of
from ddp_lint.verify.results import Examined
from ddp_lint.verify.target import resolve

from .programs import ENDING, HANGING, HEAD

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
PROGRAMS = {name: text for name, text in {**HANGING, **ENDING}.items() if name not in NOT_IN_DRY_RUNS}


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Examined]:
    """All programs in one process: torch is imported once."""
    folder = tmp_path_factory.mktemp("dry")
    specs = {}
    for number, name in enumerate(PROGRAMS):
        path = folder / f"program{number}.py"
        path.write_text(HEAD + PROGRAMS[name])
        options = dataclasses.replace(Options(world=2, ranks=ranks_of("all", 2)), timeout=10.0)
        specs[name] = dry_run.specification(resolve(str(path), options), options, Watch(), folder / str(number))
    dry_run.zygote(list(specs.values()), folder)
    return {name: dry_run.examine(spec, 0.0, "") for name, spec in specs.items()}


@pytest.mark.launch
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_dry_run_of_two_ranks_ends_as_the_source_says(name: str, examined: dict[str, Examined]) -> None:
    run = examined[name].run
    assert run.outcome == ("completed" if name in ENDING else "hang"), run.message

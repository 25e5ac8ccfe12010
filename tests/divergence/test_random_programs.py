"""A fixed sample of random programs: what is found is what two ranks do when they run them."""

import pathlib

import pytest
from random_programs import Writer, hangs

from ddp_lint.divergence import analyse
from ddp_lint.findings import Confidence
from ddp_lint.project import Project

SAMPLE = 100


def found(program: str, folder: pathlib.Path) -> bool:
    (folder / "pyproject.toml").touch()
    path = folder / "program.py"
    path.write_text(program)
    project = Project(folder, folder)
    facts = project.modules.facts_of(path)
    assert facts is not None
    return any(p.confidence is not Confidence.LOW for p in analyse(facts, project))


@pytest.mark.parametrize("seed", range(SAMPLE))
def test_what_is_found_is_what_the_ranks_do(seed: int, tmp_path: pathlib.Path) -> None:
    program = Writer(seed).program()
    assert found(program, tmp_path) == hangs(program), program

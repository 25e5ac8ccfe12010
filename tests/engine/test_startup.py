"""What a run has to load before it does anything, and what is kept of it from run to run."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import ddp_lint
from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths
from ddp_lint.rules.registry import Declaration, declared, documented, shipped_index

PACKAGE = pathlib.Path(ddp_lint.__file__).parent
#: What is kept goes beside Python's bytecode, and nowhere where Python is told to keep none.
KEEPING = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
HAZARD = "import torch\n\n\ndef loss(x):\n    return torch.log(torch.sigmoid(x))\n"
_LOADED = """
import sys
from ddp_lint.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("loaded", *(name for name in sys.modules if name == "libcst" or ".ddp" in name))
"""


def loaded_by(folder: pathlib.Path, *args: str) -> set[str]:
    """The rule modules, and LibCST, that a command line imports."""
    command = [sys.executable, "-c", _LOADED, *args]
    done = subprocess.run(command, cwd=folder, env=KEEPING, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("loaded")
    return {name.rpartition(".")[2][:6] for name in lines[-1].split()[1:]}


@pytest.mark.slow
def test_only_rules_that_concern_the_files_are_imported_and_none_where_the_cache_answers(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "a.py").write_text(HAZARD)
    loaded_by(tmp_path, "check", "--no-cache", "a.py")  # what rules declare is kept from here on
    first = loaded_by(tmp_path, "check", "a.py")
    assert {"libcst", "ddp250"} <= first
    assert "ddp701" not in first
    assert loaded_by(tmp_path, "check", "a.py") == set()
    assert loaded_by(tmp_path, "--help") == set()


@pytest.mark.slow
def test_a_file_that_no_rule_concerns_needs_no_libcst_and_is_parsed_all_the_same(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plain.py").write_text("def area(width, height):\n    return width * height\n")
    (tmp_path / "talking.py").write_text("import torch.distributed as dist\n\ndist.barrier()\n")
    (tmp_path / "broken.py").write_text("def area(width, height:\n")
    loaded_by(tmp_path, "check", "--no-cache", "plain.py")  # what rules declare is kept from here on
    assert loaded_by(tmp_path, "check", "--no-cache", "plain.py") == set()
    assert "ddp101" in loaded_by(tmp_path, "check", "--no-cache", "talking.py")
    (found,) = check_paths([tmp_path / "broken.py"], Settings(tmp_path, frozenset(declared())), jobs=1).findings
    assert found.code == "DDP000"


def test_what_is_kept_of_the_rules_is_what_they_declare() -> None:
    assert list(declared()) == list(documented())
    for code, entry in documented().items():
        assert declared()[code] == Declaration.of(entry)
        assert declared()[code].rule() is entry


@pytest.mark.slow
def test_what_is_kept_is_made_again_when_a_rule_or_what_it_knows_changes(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "ddp_lint"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "verify", "index.json"))
    rule = package / "rules" / "devices" / "ddp407_shared_memory_per_sample.py"
    table = package / "knowledge" / "environment.toml"

    def triggers(code: str) -> str:
        script = f"from ddp_lint.rules.registry import declared; print(*declared()[{code!r}].triggers.words)"
        environment = {**KEEPING, "PYTHONPATH": str(tmp_path)}
        result = subprocess.run(
            [sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return result.stdout

    assert triggers("DDP407") == triggers("DDP407") == "share_memory_\n"
    assert list((package / "rules" / "__pycache__").glob("registry.*.json"))
    rule.write_text(rule.read_text().replace('Triggers("share_memory_")', 'Triggers("shared")'))
    assert triggers("DDP407") == "shared\n"
    assert "NCCL_BLOCKING_WAIT" in triggers("DDP803")
    table.write_text(table.read_text().replace("NCCL_BLOCKING_WAIT", "NCCL_OTHER_WAIT"))
    assert "NCCL_OTHER_WAIT" in triggers("DDP803")


def test_a_damaged_index_is_made_again(tmp_path: pathlib.Path) -> None:
    from ddp_lint.derived import derived

    source = tmp_path / "subject.toml"
    made = [dataclasses.asdict(declared()["DDP407"])["slug"]]
    assert derived(source, lambda: made) == made
    for place in (tmp_path / "__pycache__").glob("*.json"):
        place.write_text("[1")
    assert derived(source, lambda: made) == made


@pytest.mark.slow
def test_a_wheel_says_what_its_rules_declare_until_one_of_them_changes(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "ddp_lint"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "verify"))
    (package / "rules" / "index.json").write_text(json.dumps(shipped_index()))
    rule = package / "rules" / "devices" / "ddp407_shared_memory_per_sample.py"
    script = (
        "import sys; from ddp_lint.rules.registry import declared; print(*declared()['DDP407'].triggers.words, "
        "any('.ddp4' in name for name in sys.modules))"
    )

    def told() -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert told() == "share_memory_ False\n"
    rule.write_text(rule.read_text().replace('Triggers("share_memory_")', 'Triggers("shared")'))
    assert told() == "shared True\n"

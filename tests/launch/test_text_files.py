"""Rules that also read shell scripts, Dockerfiles and YAML."""

from __future__ import annotations

import pathlib

import pytest

from ddp_lint.config import Settings
from ddp_lint.engine.runner import check_paths

CODES = frozenset({"DDP802", "DDP803"})


def found(folder: pathlib.Path, name: str, text: str) -> list[tuple[str, int, str]]:
    file = folder / name
    file.write_text(text)
    report = check_paths([file], Settings(folder, CODES))
    assert not report.errors
    return [
        (f.code, f.span.line, text.splitlines()[f.span.line - 1][f.span.column - 1 : f.span.end_column - 1])
        for f in report.findings
    ]


@pytest.mark.parametrize("name", ["run.sh", "job.slurm", "train.sbatch"])
def test_shell(tmp_path: pathlib.Path, name: str) -> None:
    text = "#!/bin/bash\nexport NCCL_TIMEOUT=1800\nNCCL_BLOCKING_WAIT=1 NCCL_IB_DISABEL=1 torchrun train.py\n"
    assert found(tmp_path, name, text) == [
        ("DDP802", 2, "NCCL_TIMEOUT"),
        ("DDP803", 3, "NCCL_BLOCKING_WAIT"),
        ("DDP802", 3, "NCCL_IB_DISABEL"),
    ]


def test_shell_that_only_mentions(tmp_path: pathlib.Path) -> None:
    text = '# NCCL_TIMEOUT=1800\necho "$NCCL_TIMEOUT ${NCCL_TIMEOUT}"\nexport NCCL_DEBUG=INFO # NCCL_TIMEOUT=1\n'
    assert found(tmp_path, "run.sh", text) == []


def test_dockerfile(tmp_path: pathlib.Path) -> None:
    text = "FROM base\nENV NCCL_TIMEOUT 1800\nENV NCCL_DEBUG=INFO NCCL_ASYNC_ERROR_HANDLING=0\n"
    assert found(tmp_path, "Dockerfile", text) == [
        ("DDP802", 2, "NCCL_TIMEOUT"),
        ("DDP803", 3, "NCCL_ASYNC_ERROR_HANDLING"),
    ]


def test_yaml(tmp_path: pathlib.Path) -> None:
    text = 'env:\n  NCCL_TIMEOUT: "1800"\n  NCCL_DEBUG: INFO\nlist:\n  - name: NCCL_DESYNC_DEBUG\n    value: "1"\n'
    assert found(tmp_path, "job.yaml", text) == [("DDP802", 2, "NCCL_TIMEOUT"), ("DDP803", 5, "NCCL_DESYNC_DEBUG")]


@pytest.mark.parametrize(("value", "lines"), [('"1"', []), ("1", []), ('"0"', [3]), ('"10"', [3])])
def test_yaml_sets_the_old_name_as_torchrun_sets_the_new_one(
    tmp_path: pathlib.Path, value: str, lines: list[int]
) -> None:
    text = f"spec:\n  env:\n    - name: NCCL_ASYNC_ERROR_HANDLING\n      value: {value}\n    - name: OTHER_ONE\n"
    assert [line for _, line, _ in found(tmp_path, "job.yaml", text)] == lines


def test_yaml_that_reads_what_it_sets(tmp_path: pathlib.Path) -> None:
    text = "env:\n  TORCH_VERSIONS: 2.1\n  NCCL_TIMEOUT: 1\nrun: |\n  for v in $TORCH_VERSIONS; do test $v; done\n"
    assert found(tmp_path, "job.yml", text) == [("DDP802", 3, "NCCL_TIMEOUT")]


def test_a_variable_that_begins_with_the_name_of_what_is_built(tmp_path: pathlib.Path) -> None:
    """It is no variable of torch with another beginning."""
    line = "export PYTORCH3D_BUILD_NUMBER=1\n"
    assert found(tmp_path, "build.sh", f"{line}conda build packaging/pytorch3d\n") == []
    assert found(tmp_path, "other.sh", f"{line}conda build packaging/other\n") == [
        ("DDP802", 1, "PYTORCH3D_BUILD_NUMBER")
    ]
    text = "export PYTOCH_BUILD_NUMBER=1\nconda build pytoch\nexport NCCL_IB_DISABEL=1  # nccl\n"
    assert found(tmp_path, "typo.sh", text) == [("DDP802", 3, "NCCL_IB_DISABEL")]

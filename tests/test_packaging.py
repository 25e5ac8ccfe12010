"""What people meet outside of the program: the action, the templates, the metadata, the README on PyPI."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from ddp_lint import __version__

yaml = pytest.importorskip("yaml")

ROOT = pathlib.Path(__file__).parents[1]


def test_links_of_the_readme_work_outside_of_the_repository() -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
    links = re.findall(r"\]\(([^)\s]+)", text)
    assert links
    assert all(link.startswith("https://") for link in links)
    for link in links:
        inside = link.partition("/blob/main/")[2] or f"docs/{link.partition('.github.io/ddp-lint/')[2]}"
        assert (ROOT / inside).exists(), link


@pytest.mark.parametrize("name", ["CITATION.cff", "README.md", "docs/ci.md", "templates/ddp-lint.gitlab-ci.yml"])
def test_versions_are_that_of_the_package(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    found = set(re.findall(r"(?:v|^version: |ddp-lint:v)(\d+\.\d+\.\d+)\b", text, re.M))
    assert found == {__version__}


@pytest.mark.parametrize(
    "path",
    [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / "action.yml", *(ROOT / "templates").glob("*.yml")],
    ids=lambda path: path.name,
)
def test_yaml_is_yaml_and_its_scripts_are_bash(path: pathlib.Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    jobs = document.get("jobs", {"": document.get("runs", {})})
    for job in jobs.values():
        for step in job.get("steps", []):
            if "run" in step:
                script = re.sub(r"\$\{\{.*?\}\}", "x", step["run"])
                subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.slow
def test_the_action_annotates_counts_and_fails(tmp_path: pathlib.Path) -> None:
    """Its step is run as a runner does, with this ddp-lint in place of an installed one."""
    steps = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    script = next(step["run"] for step in steps if step.get("id") == "check")
    (tmp_path / "my code").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("x = 1  # noqa: DDP101\n")
    tools = tmp_path / "ddp-lint" / "bin"
    tools.mkdir(parents=True)
    (tools / "ddp-lint").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ddp_lint "$@"\n')
    (tools / "python").symlink_to(sys.executable)
    (tools / "ddp-lint").chmod(0o755)
    output = tmp_path / "output"
    environment = {
        **os.environ,
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(output),
        "ARGS": "--isolated --no-cache",
        "PATHS": "src",
        "SINCE": "all",
        "BASE": "",
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "::error file=src/a.py,line=1" in done.stdout
    assert output.read_text().split() == ["findings=1", "status=1"]
    assert (tmp_path / "ddp-lint.sarif").is_file()

"""The configuration file: which one counts, what it may hold, and what is said when it is wrong."""

from __future__ import annotations

import json
import pathlib

import jsonschema
import pytest

from ddp_lint.config import OPTIONS, json_schema, read_table

from .conftest import Check
from .samples import UNUSED


def write(project: pathlib.Path, text: str, name: str = "pyproject.toml") -> None:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(text)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[tool.ddp-lint]\nselect = ["DDP1"]\nignroe = ["DDP2"]\n', 3, "unknown key 'ignroe'; did you mean 'ignore'?"),
        ('x = 1\n[tool.ddp-lint]\n\nselect = "DDP1"\n', 4, "'select' must be a list of strings, not 'DDP1'"),
        ("[tool.ddp-lint]\npreview = 1\n", 2, "'preview' must be true or false, not 1; write preview = true"),
        ("[tool.ddp-lint]\ntarget-torch = 2.4\n", 2, 'a version as a string, such as "2.4"'),
        ('[tool.ddp-lint]\noutput-format = "xml"\n', 2, "'output-format' must be one of full, concise"),
        ('[tool.ddp-lint.per-file-ignores]\n"a.py" = "DDP1"\n', 1, "a table of lists of strings"),
        ('[tool.ddp-lint]\nignore = ["DDP60l"]\n', 2, "in 'ignore': no rule is called 'DDP60l'"),
        ('[tool.ddp-lint]\nselect = ["sharde-read-as-whole"]\n', 2, "did you mean 'shard-read-as-whole'?"),
        ('[tool.ddp-lint.per-file-ignores]\n"a.py" = ["DDPX"]\n', 1, "no rule is called 'DDPX'"),
        ("[tool]\nddp-lint = 3\n", 2, "must be a table"),
        (
            '[tool.ddp-lint]\nselect = ["DDP1"]\nextend-select = ["DDP80"]\nignore = ["DD9"]\n',
            4,
            "in 'ignore': no rule",
        ),
        ("[tool.x]\n[tool.ddp_lint]\npreview = true\n", 2, "the table is called [tool.ddp-lint], not [tool.ddp_lint]"),
        ("[tool]\nddplint = {}\n", 2, "the table is called [tool.ddp-lint], not [tool.ddplint]"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    check: Check, project: pathlib.Path, text: str, line: int, said: str
) -> None:
    write(project, text)
    write(project, UNUSED, "a.py")
    result = check("a.py")
    assert result.exit_code == 2
    assert f"error: pyproject.toml:{line}: " in result.stderr
    assert said in result.stderr


def test_toml_that_does_not_parse(check: Check, project: pathlib.Path) -> None:
    write(project, "select = [\n", "ddp-lint.toml")
    result = check(".")
    assert result.exit_code == 2
    assert "error: ddp-lint.toml: not valid TOML" in result.stderr


def test_a_file_of_its_own_has_no_table(check: Check, project: pathlib.Path) -> None:
    write(project, "\n[tool.ddp-lint]\npreview = true\n", "ddp-lint.toml")
    result = check(".")
    assert result.exit_code == 2
    assert "ddp-lint.toml:2: in ddp-lint.toml write the keys without the table [tool.ddp-lint]" in result.stderr


def test_a_broken_file_in_one_folder_leaves_the_others(check: Check, project: pathlib.Path) -> None:
    write(project, "nope = 1\n", "bad/ddp-lint.toml")
    for folder in ("bad", "bad/deeper", "good"):
        write(project, UNUSED, f"{folder}/m.py")
    result = check("--output-format", "json")
    assert result.exit_code == 2
    out = json.loads(result.stdout)
    assert [f["path"] for f in out["findings"]] == ["good/m.py"]
    assert [e["path"] for e in out["errors"]] == ["bad/ddp-lint.toml:1"]


def test_nearest_file_counts_alone(check: Check, project: pathlib.Path) -> None:
    write(project, '[tool.ddp-lint]\nignore = ["DDP002"]\n')
    write(project, UNUSED, "m.py")
    write(project, UNUSED, "inner/m.py")
    write(project, UNUSED, "plain/m.py")
    write(project, "preview = false\n", "inner/ddp-lint.toml")
    write(project, "[tool.other]\n", "plain/pyproject.toml")  # says nothing about ddp-lint
    concise = lambda *args: check("--output-format", "concise", "-q", *args).stdout  # noqa: E731
    assert concise().split(":")[0] == "inner/m.py"
    assert concise().count("\n") == 1
    assert concise("--isolated").count("\n") == 3
    assert concise("--config", "inner/ddp-lint.toml").count("\n") == 3
    assert concise("--ignore", "DDP002") == ""


def test_file_names_in_one_folder(check: Check, project: pathlib.Path) -> None:
    write(project, "[tool.ddp-lint]\nnope = 1\n")
    write(project, 'ignore = ["DDP002"]\n', "ddp-lint.toml")
    write(project, UNUSED, "m.py")
    assert check().exit_code == 0
    write(project, "", ".ddp-lint.toml")
    assert check().exit_code == 1


def test_the_command_line_is_over_the_file(check: Check, project: pathlib.Path) -> None:
    write(
        project,
        '[tool.ddp-lint]\nselect = ["DDP6"]\nignore = ["DDP002"]\nexclude = ["gen/"]\nextend-exclude = ["vendor"]\n',
    )
    for folder in ("gen", "vendor", "build"):
        write(project, UNUSED, f"{folder}/m.py")
    assert check("--show-files").stdout == "build/m.py\n"  # `exclude` replaces the default list
    assert check("--show-files", "--exclude", "build").stdout == "gen/m.py\n"
    assert check("build", "-q").stdout == ""
    assert "DDP002" in check("build", "-q", "--select", "DDP002").stdout
    assert "DDP002" in check("build", "-q", "--select", "DDP0").stdout


def test_what_the_command_line_adds_goes_before_the_file(check: Check, project: pathlib.Path) -> None:
    write(project, UNUSED, "m.py")
    enabled = lambda *args: check("--show-settings", *args).stdout.split("enabled = ")[1].split("\n")[0].split(", ")  # noqa: E731
    write(project, '[tool.ddp-lint]\nignore = ["DDP002"]\nextend-select = ["DDP111"]\n')
    assert "DDP002" not in enabled()
    assert "DDP002" in enabled("--extend-select", "DDP002")
    assert check("--extend-select", "DDP002", "-q").exit_code == 1
    assert "DDP111" in enabled()
    assert "DDP111" not in enabled("--ignore", "DDP1")
    assert enabled("--select", "DDP601") == ["DDP000", "DDP001", "DDP601"]


def test_a_prefix_that_means_no_rule_is_told_with_its_line_or_without(check: Check, project: pathlib.Path) -> None:
    write(project, UNUSED, "m.py")
    write(project, '[tool.ddp-lint]\npreview = false\nselect = ["DDP809"]\nextend-select = ["DDP8x"]\n')
    assert "error: pyproject.toml:4: in 'extend-select': no rule is called 'DDP8x'" in check("m.py").stderr
    assert "DDP8x" in check("m.py", "--select", "DDP1").stderr  # also where the command line is over it
    assert check("m.py", "--select", "DDP8x", "--isolated").stderr.startswith("error: no rule is called 'DDP8x'")


def test_one_letter_is_a_prefix_too(check: Check, project: pathlib.Path) -> None:
    write(project, "", "m.py")
    assert check("--show-settings", "--select", "D").stdout == check("--show-settings", "--select", "ALL").stdout


def test_patterns_written_as_paths(check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/m.py", "b/m.py", "b/a/m.py"):
        write(project, UNUSED, name)
    files = lambda *args: check("--show-files", *args).stdout.split()  # noqa: E731
    assert files("--exclude", "./a") == ["b/a/m.py", "b/m.py"]
    assert files("--extend-exclude", f"{project}/b/") == ["a/m.py"]
    write(project, 'exclude = ["./b", "!./b/a"]\n[per-file-ignores]\n"./a/m.py" = ["DDP002"]\n', "ddp-lint.toml")
    assert files() == ["a/m.py"]
    assert check().exit_code == 0
    monkeypatch.chdir(project / "b")
    assert files("..", "--exclude", "../a") == ["a/m.py", "m.py"]


def test_patterns_hold_outside_of_the_folder_that_they_are_relative_to(
    check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = project / "other"
    for name in ("a.py", "gen/m.py", ".venv/m.py", "sub/gen/m.py", "sub/b.py"):
        write(other, UNUSED, name)
    write(other, "", "setup.py")
    write(project, 'extend-exclude = ["/gen"]\n[per-file-ignores]\n"sub/" = ["DDP002"]\n', "here/shared.toml")
    monkeypatch.chdir(project / "here")
    files = lambda *args: [f.removeprefix(f"{other}/") for f in check("--show-files", "../other", *args).stdout.split()]  # noqa: E731
    assert files() == ["a.py", "gen/m.py", "setup.py", "sub/b.py", "sub/gen/m.py"]
    assert files("--extend-exclude", "gen") == ["a.py", "setup.py", "sub/b.py"]
    assert files("--extend-exclude", "sub/gen") == ["a.py", "gen/m.py", "setup.py", "sub/b.py"]
    assert files("--config", "shared.toml") == ["a.py", "setup.py", "sub/b.py", "sub/gen/m.py"]
    found = json.loads(check("../other", "--config", "shared.toml", "--output-format", "json").stdout)["findings"]
    assert [f["path"] for f in found] == [f"{other}/a.py"]


def test_everywhere_but(check: Check, project: pathlib.Path) -> None:
    write(project, '[tool.ddp-lint.per-file-ignores]\n"!src/" = ["DDP002"]\n')
    for name in ("tests/a.py", "top.py", "src/a.py", "lib/src/a.py"):
        write(project, UNUSED, name)
    found = json.loads(check("--output-format", "json").stdout)["findings"]
    assert [f["path"] for f in found] == ["lib/src/a.py", "src/a.py"]
    assert "per-file-ignores = !src/: DDP002\n" in check("--show-settings").stdout


def test_per_file_ignores(check: Check, project: pathlib.Path) -> None:
    write(
        project,
        '[tool.ddp-lint.per-file-ignores]\n"tests/" = ["DDP002"]\n"*_pb2.py" = ["DDP0"]\n'
        '"/top.py" = ["unused-suppression"]\n',
    )
    for name in ("tests/a.py", "tests/deep/a.py", "x_pb2.py", "top.py", "src/top.py", "src/tests.py"):
        write(project, UNUSED, name)
    write(project, "def (", "y_pb2.py")
    result = check("--output-format", "json")
    assert [f["path"] for f in json.loads(result.stdout)["findings"]] == ["src/tests.py", "src/top.py"]


@pytest.mark.parametrize(("target", "told"), [("2.12", True), ("2.13", False), ("2.14.1", False)])
def test_a_rule_is_off_where_the_oldest_torch_no_longer_has_its_hazard(
    check: Check, project: pathlib.Path, target: str, told: bool
) -> None:
    write(project, f'[tool.ddp-lint]\ntarget-torch = "{target}"\n')
    write(project, "", "m.py")
    assert ("DDP206" in check("--show-settings").stdout) is told


def test_what_the_analyses_are_told(check: Check, project: pathlib.Path) -> None:
    write(
        project,
        '[tool.ddp-lint]\ntarget-torch = "2.4.1"\nrank-expressions = ["cfg.rank"]\nwrappers = ["p.wrap"]\n'
        'collectives = ["p.sync"]\npreview = true\n',
    )
    write(project, "", "m.py")
    shown = check("--show-settings").stdout
    for row in ("target-torch = 2.4", "rank-expressions = cfg.rank", "wrappers = p.wrap", "collectives = p.sync"):
        assert row + "\n" in shown
    assert "preview = true\n" in shown
    assert "preview = false\n" in check("--show-settings", "--no-preview").stdout


def test_every_example_is_valid_for_the_loader_and_for_the_schema(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "ddp-lint.toml"
    file.write_text("".join(f"{o.key} = {o.example}\n" for o in OPTIONS))
    table = read_table(file)
    assert table is not None
    assert set(table.values) == {o.key for o in OPTIONS}
    jsonschema.validate(dict(table.values), json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"selcet": []}, json_schema())

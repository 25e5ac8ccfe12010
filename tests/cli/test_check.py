"""`ddp-lint check` as a user meets it: options, exit statuses, and messages for what is wrong."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

import click.testing
import pytest

from ddp_lint import __version__
from ddp_lint.cli import main
from ddp_lint.config import OPTIONS, Settings
from ddp_lint.engine.runner import check_texts
from ddp_lint.project import Project
from ddp_lint.rules.registry import documented
from ddp_lint.source import SourceFile

from .conftest import Check
from .samples import CLEAN, FIXED, HAZARD, UNUSED


def found(result: click.testing.Result) -> list[tuple[str, str, int]]:
    return [(f["path"], f["code"], f["line"]) for f in json.loads(result.stdout)["findings"]]


# ---- exit statuses


def test_clean_is_0_findings_are_1(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(CLEAN)
    assert (check().exit_code, check().stdout) == (0, "Nothing found in 1 file.\n")
    (project / "b.py").write_text(UNUSED)
    assert check().exit_code == 1
    assert check("--exit-zero").exit_code == 0


def test_a_path_that_is_not_there_is_2_and_the_others_are_still_checked(check: Check, project: pathlib.Path) -> None:
    (project / "b.py").write_text(UNUSED)
    result = check("nowhere.py", "b.py", "--output-format", "json")
    assert result.exit_code == 2
    assert found(result) == [("b.py", "DDP002", 1)]
    assert json.loads(result.stdout)["errors"] == [{"path": "nowhere.py", "message": "no such file or directory"}]
    assert "error: nowhere.py: no such file or directory" in result.stderr


@pytest.mark.parametrize(("name", "content"), [("a.py", b"x = 1\0"), ("a.py", b"# coding: nope\n"), ("a.ipynb", b"{}")])
def test_a_file_that_is_no_python_text_is_2(check: Check, project: pathlib.Path, name: str, content: bytes) -> None:
    (project / name).write_bytes(content)
    result = check(name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {name}: ")
    assert "Traceback" not in result.output


def test_a_file_that_does_not_parse_is_a_finding(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(HAZARD + "def f(:\n")
    (project / "b.py").write_text(UNUSED)
    result = check("--output-format", "json", "--select", "DDP601,DDP002")
    assert result.exit_code == 1
    assert [code for _, code, _ in found(result)] == ["DDP000", "DDP002"]
    assert [code for _, code, _ in found(check("--output-format", "json", "--ignore", "DDP000"))] == ["DDP002"]


def test_verify_starts_no_more_ranks_than_a_machine_can_have(project: pathlib.Path) -> None:
    """The launcher starts as many as it is told, until no memory is left."""
    result = click.testing.CliRunner().invoke(main, ["verify", "train.py", "--nproc", "1000000"])
    assert result.exit_code == 2 and "is not in the range" in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--select", "DDP60l"], "no rule is called 'DDP60l'"),
        (["--ignore", "forward-bypases-wrapper"], "did you mean 'forward-bypasses-wrapper'?"),
        (["--output-format", "xml"], "'xml' is not one of"),
        (["--fixx"], "No such option"),
        (["-", "a.py"], "cannot be combined"),
        (["--why", "a.py"], "FILE:LINE"),
        (["--statistics", "--output-format", "sarif"], "cannot be printed as sarif"),
        (["--config", "none.toml"], "does not exist"),
        (["--config", "pyproject.toml", "--isolated"], "use one of them"),
        ([""], "no such file or directory"),
        (["--output-file", "no/such/folder/out.txt"], "cannot write"),
    ],
)
def test_wrong_usage_is_2_with_a_line_that_helps(check: Check, args: list[str], said: str) -> None:
    result = check(*args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_unknown_command(project: pathlib.Path) -> None:
    result = click.testing.CliRunner().invoke(main, ["chek"])
    assert result.exit_code == 2
    assert "did you mean 'check'?" in result.stderr


def test_a_file_in_place_of_a_command(project: pathlib.Path) -> None:
    (project / "train.py").write_text("x = 1\n")
    result = click.testing.CliRunner().invoke(main, ["train.py", "--fix"])
    assert result.exit_code == 2
    assert "did you mean `ddp-lint check train.py --fix`?" in result.stderr


# ---- which rules


def test_select_ignore_and_prefixes(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(HAZARD + UNUSED)
    codes = lambda *args: [code for _, code, _ in found(check(*args, "--output-format", "json"))]  # noqa: E731
    assert codes("--select", "DDP6") == ["DDP601"]
    assert codes("--select", "forward-bypasses-wrapper") == ["DDP601"]
    assert codes("--select", "ddp601,DDP002") == ["DDP601", "DDP002"]
    assert codes("--select", "DDP002", "--extend-select", "DDP601") == ["DDP601", "DDP002"]
    assert codes("--select", "DDP6,DDP002", "--ignore", "DDP601") == ["DDP002"]
    assert codes("--select", "DDP601,DDP002", "--ignore", "DDP6") == ["DDP601", "DDP002"]  # the more specific one wins
    assert codes("--ignore", "ALL") == []


def test_a_prefix_leaves_out_what_is_off_by_default(check: Check) -> None:
    off = [code for code, rule in documented().items() if not rule.default]
    enabled = lambda *args: check("--show-settings", *args).stdout  # noqa: E731
    for code in off:
        assert code not in enabled("--select", "ALL")
        assert code in enabled("--select", "ALL", "--preview")
        assert code in enabled("--select", code)
        assert code in enabled("--select", documented()[code].slug)


def test_what_is_doubtful_waits_for_preview_or_its_name(check: Check, project: pathlib.Path) -> None:
    doubtful = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x: torch.Tensor):\n"
    doubtful += "        return x[: x.sum().item()]\n"
    (project / "a.py").write_text(doubtful)
    count = lambda *args: len(found(check(*args, "--output-format", "json")))  # noqa: E731
    assert [count(), count("--select", "DDP3"), count("--ignore", "DDP2")] == [0, 0, 0]
    assert [count("--preview"), count("--select", "DDP301"), count("--extend-select", "tensor-read-on-host")] == [1] * 3
    (project / "a.py").write_text(doubtful.replace(".item()]", ".item()]  # noqa: DDP301"))
    assert [count(), count("--preview")] == [0, 0]  # the comment is in use


# ---- where


def test_excluded_files_are_checked_only_when_named(check: Check, project: pathlib.Path) -> None:
    for folder in ("build", "gen", "src"):
        (project / folder).mkdir()
        (project / folder / "m.py").write_text(UNUSED)
    files = lambda *args: check("--show-files", *args).stdout.split()  # noqa: E731
    assert files() == ["gen/m.py", "src/m.py"]
    assert files("--exclude", "gen") == ["build/m.py", "src/m.py"]
    assert files("--extend-exclude", "gen/,nothing") == ["src/m.py"]
    assert files("build/m.py") == ["build/m.py"]
    assert files("build") == ["build/m.py"]
    assert files("build/m.py", "src", "--force-exclude") == ["src/m.py"]
    assert check("build/m.py", "--force-exclude").exit_code == 0


def test_paths_are_relative_to_the_working_directory(
    check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src").mkdir()
    (project / "src" / "m.py").write_text(UNUSED)
    monkeypatch.chdir(project / "src")
    assert check(str(project), "--output-format", "concise", "-q").stdout.startswith("m.py:1:8: DDP002")


# ---- standard input


def test_stdin(check: Check, project: pathlib.Path) -> None:
    (project / "pyproject.toml").write_text('[tool.ddp-lint.per-file-ignores]\n"quiet.py" = ["DDP002"]\n')
    result = check("-", "--stdin-filename", "pkg/loud.py", input=UNUSED)
    assert result.exit_code == 1
    assert "pkg/loud.py:1:8" in result.stdout
    assert "x = 1  # noqa: DDP999" in result.stdout  # the excerpt comes from the text, not from a file
    assert check("-", "--stdin-filename", "quiet.py", input=UNUSED).exit_code == 0
    assert check("-", "--stdin-filename", "build/m.py", "--force-exclude", input=UNUSED).exit_code == 0
    assert check("-", input=b"x\0").exit_code == 2


def test_stdin_in_any_format_and_with_what_is_only_shown(check: Check, project: pathlib.Path) -> None:
    out = json.loads(check("-", "--output-format", "json", "--stdin-filename", "pkg/a.py", input=b"x\0").stdout)
    assert (out["findings"], [e["path"] for e in out["errors"]]) == ([], ["pkg/a.py"])
    left_out = ["-", "--stdin-filename", "build/m.py", "--force-exclude"]
    result = check(*left_out, "--output-format", "json", input=b"x\0")
    assert (json.loads(result.stdout)["findings"], result.exit_code) == ([], 0)
    assert check(*left_out, "--fix", input=UNUSED).stdout == UNUSED
    assert check(*left_out, "--diff", input=UNUSED).stdout == ""
    assert check("-", "--show-files", "--stdin-filename", "pkg/a.py", input=UNUSED).stdout == "pkg/a.py\n"
    assert check(*left_out, "--show-files", input=UNUSED).stdout == ""
    (project / "pkg").mkdir()
    (project / "pkg" / "ddp-lint.toml").write_text("preview = true\n")
    shown = check("-", "--show-settings", "--stdin-filename", "pkg/a.py", input=UNUSED).stdout
    assert shown.startswith("configuration = pkg/ddp-lint.toml\n")


@pytest.mark.parametrize(
    "text",
    [b"\xef\xbb\xbf# \xc3\xa9\r\nx = 1%s\r\ny = 2\r\n", b"# coding: latin-1\n# \xe9\nx = 1%s", b"x = 1%s\ry = 2\r"],
)
def test_stdin_fix_keeps_encoding_and_line_ends(check: Check, project: pathlib.Path, text: bytes) -> None:
    before = text % b"  # noqa: DDP999"
    assert check("-", "--fix", input=before).stdout_bytes == text % b""
    check("-", "--fix", "-o", "fixed.py", input=before)
    assert (project / "fixed.py").read_bytes() == text % b""
    left_out = check("-", "--fix", "--stdin-filename", "build/m.py", "--force-exclude", input=before)
    assert left_out.stdout_bytes == before


def test_stdin_fix_prints_the_fixed_text(check: Check) -> None:
    result = check("-", "--fix", input=UNUSED)
    assert (result.stdout, result.exit_code) == (FIXED, 0)
    result = check("-", "--fix", input=HAZARD)
    assert (result.stdout, result.exit_code) == (HAZARD, 1)
    assert "DDP601" in result.stderr
    result = check("-", "--diff", input=UNUSED)
    assert "-x = 1  # noqa: DDP999\n+x = 1\n" in result.stdout


# ---- fixes


def test_fix_diff_and_what_they_leave(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(HAZARD + UNUSED)
    result = check("--diff")
    assert result.exit_code == 1
    assert (project / "a.py").read_text() == HAZARD + UNUSED
    patch = result.stdout
    result = check("--fix", "--output-format", "concise")
    assert result.exit_code == 1  # the hazard is left
    assert "1 finding fixed" in result.stdout
    assert (project / "a.py").read_text() == HAZARD + FIXED
    assert check("--diff").exit_code == 0
    (project / "a.py").write_text(HAZARD + UNUSED)
    subprocess.run(["patch", "-p0"], input=patch, text=True, cwd=project, check=True, capture_output=True)
    assert (project / "a.py").read_text() == HAZARD + FIXED


def test_files_are_fixed_together(check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round checks the files that the one before has changed, with the texts that all have by then."""
    rounds: list[tuple[dict[str, str], list[str]]] = []

    def watched(texts: Mapping[pathlib.Path, str], wanted: Sequence[pathlib.Path], settings: Settings) -> object:
        rounds.append(({path.name: text for path, text in texts.items()}, [path.name for path in wanted]))
        return check_texts(texts, wanted, settings)

    monkeypatch.setattr("ddp_lint.cli.fix.check_texts", watched)
    for name in "abc":
        (project / f"{name}.py").write_text(UNUSED)
    (project / "d.py").write_text(CLEAN)
    assert check("--diff").stdout.count("+x = 1") == 3
    names = ["a.py", "b.py", "c.py"]
    assert rounds == [(dict.fromkeys(names, text), names) for text in (UNUSED, FIXED)]
    rounds.clear()
    assert check("--fix").exit_code == 0
    assert [wanted for _, wanted in rounds] == [names, names]
    assert [(project / name).read_text() for name in names] == [FIXED] * 3


def test_texts_are_checked_as_if_they_were_on_disk(project: pathlib.Path) -> None:
    """Where one says what another one does, and where one holds a word that is searched for."""
    lib, train = project / "lib.py", project / "train.py"
    lib.write_text("def sync():\n    pass\n")
    train.write_text(
        "import torch.distributed as dist\nfrom lib import sync\n"
        "def main():\n    if dist.get_rank() == 0:\n        sync()\n"
    )
    settings = Settings(project, frozenset({"DDP101"}))
    texts = {lib: lib.read_text(), train: train.read_text()}
    assert check_texts(texts, [train], settings) == {train: ()}
    texts[lib] = "import torch.distributed as dist\ndef sync():\n    dist.barrier()\n"
    assert [f.code for f in check_texts(texts, [train], settings)[train]] == ["DDP101"]
    searching = Project(project)
    searching.contents.take_instead({lib: SourceFile("lib.py", texts[lib], "lib.py")})
    assert searching.contents.holding("barrier") == (lib,)
    assert searching.contents.holding("pass") == ()


def test_fix_leaves_suppressed_lines_alone(check: Check, project: pathlib.Path) -> None:
    text = "x = 1  # noqa: DDP999  # ddp-lint: ignore[DDP002] to be looked at\n" + UNUSED
    (project / "a.py").write_text(text)
    assert check("--fix").exit_code == 0
    assert (project / "a.py").read_text() == text.removesuffix(UNUSED) + FIXED


def test_fix_keeps_encoding_and_line_ends(check: Check, project: pathlib.Path) -> None:
    before = "\ufeff# é\r\nx = 1  # noqa: DDP999\r\ny = 2\n".encode()
    (project / "a.py").write_bytes(before)
    check("--fix")
    assert (project / "a.py").read_bytes() == before.replace(b"  # noqa: DDP999", b"")
    (project / "b.py").write_bytes(b"# coding: latin-1\n# \xe9\nx = 1  # noqa: DDP999\n")
    check("--fix")
    assert (project / "b.py").read_bytes() == b"# coding: latin-1\n# \xe9\nx = 1\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_is_2(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(UNUSED)
    (project / "a.py").chmod(0o444)
    result = check("--fix")
    assert result.exit_code == 2
    assert "cannot be fixed" in result.stderr


# ---- what is printed


def test_statistics_quiet_and_output_file(check: Check, project: pathlib.Path) -> None:
    (project / "a.py").write_text(UNUSED + UNUSED)
    assert check("--statistics", "-q").stdout == "2  DDP002  unused-suppression\n"
    rows = json.loads(check("--statistics", "--output-format", "json").stdout)
    assert rows == [{"code": "DDP002", "slug": "unused-suppression", "count": 2}]
    assert "2 findings in 1 file" in check().stdout
    assert "2 findings" not in check("-q").stdout
    check("-o", "files.txt", "--show-files")
    assert (project / "files.txt").read_text() == "a.py\n"
    result = check("-o", "out.json", "--output-format", "json")
    assert result.exit_code == 1
    assert len(json.loads((project / "out.json").read_text())["findings"]) == 2
    assert result.stdout == ""


def test_color(check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "a.py").write_text(UNUSED)
    colored = lambda *args: "\x1b[" in check(*args).stdout  # noqa: E731
    assert not colored()  # no terminal
    assert colored("--color", "always")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert colored()
    assert not colored("--color", "never")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colored()
    assert colored("--color", "always")
    assert not colored("--output-format", "json", "--color", "always")
    monkeypatch.delenv("NO_COLOR")
    in_file = lambda *args: check("-o", "out.txt", *args) and "\x1b[" in (project / "out.txt").read_text()  # noqa: E731
    assert not in_file()  # FORCE_COLOR is about the terminal
    assert "\x1b[" in check("-o", "out.txt").stdout
    assert in_file("--color", "always")


def test_format_from_the_environment_and_the_configuration(
    check: Check, project: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "a.py").write_text(UNUSED)
    (project / "pyproject.toml").write_text('[tool.ddp-lint]\noutput-format = "concise"\n')
    assert check("-q").stdout.startswith("a.py:1:8:")
    monkeypatch.setenv("DDP_LINT_OUTPUT_FORMAT", "json")
    assert json.loads(check().stdout)["version"] == __version__
    assert check("-q", "--output-format", "github").stdout.startswith("::error ")


def test_the_same_for_any_jobs(check: Check, project: pathlib.Path) -> None:
    for n in range(12):
        (project / f"m{n}.py").write_text(HAZARD + UNUSED)
    one = check("--no-cache", "--jobs", "1", "--output-format", "json").stdout
    assert len(json.loads(one)["findings"]) == 24
    assert check("--no-cache", "--jobs", "3", "--output-format", "json").stdout == one
    assert check("--output-format", "json").stdout == one  # fills the cache
    assert check("--output-format", "json").stdout == one  # is answered from it


def test_no_files(check: Check) -> None:
    result = check()
    assert result.exit_code == 0
    assert "no files to check" in result.stderr


# ---- the command itself


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)


def test_module_and_version() -> None:
    result = python("-m", "ddp_lint", "--version")
    assert (result.returncode, __version__ in result.stdout) == (0, True)


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs a device that is full")
def test_output_that_cannot_be_written_is_2(project: pathlib.Path) -> None:
    (project / "a.py").write_text(UNUSED)
    command = f"{shlex.quote(sys.executable)} -m ddp_lint check --no-cache"
    shell = lambda line: subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)  # noqa: E731
    result = shell(f"{command} >/dev/full")
    assert (result.returncode, result.stderr) == (
        2,
        "error: cannot write to standard output: no space left on device\n",
    )
    assert shell(f"{command} -o /dev/full").returncode == 2
    assert (shell(f"{command} >&-").returncode, shell(f"{command} >&-").stderr) == (1, "")
    assert shell(f"{command} nowhere.py 2>&-").returncode == 2
    assert shell(f"{command} | true").stderr == ""


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from ddp_lint.cli import main
main(["--help"], standalone_mode=False)
print([name for name in ("libcst", "torch", "ddp_lint.rules") if name in sys.modules], file=sys.stderr)
"""
    result = python("-c", code)
    assert result.stderr == "[]\n"
    assert "check " in result.stdout


@pytest.mark.slow
def test_check_never_imports_torch(project: pathlib.Path) -> None:
    (project / "a.py").write_text(HAZARD)
    code = """
import atexit, sys
from ddp_lint.cli import main
atexit.register(lambda: print("torch" in sys.modules))
main(["check", "-q", "--jobs", "1"])
"""
    assert python("-c", code).stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    result = click.testing.CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_DDP_LINT_COMPLETE" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("ddp-lint ch", ["plain,check"]),
        ("ddp-lint check tr", ["file,tr"]),
        ("ddp-lint check - --stdin-filename tr", ["file,tr"]),
        ("ddp-lint check --select DDP9,ddp60", ["plain,DDP9,DDP601", "plain,DDP9,DDP602"]),
        ("ddp-lint check --ignore forward-by", ["plain,forward-bypasses-wrapper"]),
        ("ddp-lint rule DDP601", ["plain,DDP601"]),
        ("ddp-lint verify tr", ["file,tr"]),
        ("ddp-lint verify t.py --select DDP601", ["plain,DDP601"]),
    ],
)
def test_completion_knows_verbs_files_and_rules(words: str, offered: list[str]) -> None:
    last = str(len(words.split()) - 1)
    env = {**os.environ, "_DDP_LINT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": last}
    code = "from ddp_lint.cli import main; main(prog_name='ddp-lint')"
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines()[: len(offered)] == offered


def test_rule_pages() -> None:
    run = lambda *args: click.testing.CliRunner().invoke(main, ["rule", *args])  # noqa: E731
    assert "## Why it breaks" in run("DDP601").stdout
    assert run("forward-bypasses-wrapper").stdout == run("ddp601").stdout
    assert all(f"# {code}: " in run("--all").stdout for code in documented())
    assert len(run("--list").stdout.splitlines()) == len(documented())
    assert [row["code"] for row in json.loads(run("DDP00", "--output-format", "json").stdout)] == [
        "DDP000",
        "DDP001",
        "DDP002",
    ]
    assert run("DDP6O1").exit_code == 2
    assert "did you mean 'DDP6" in run("DDP6O1").stderr
    assert run().stdout == run("--list").stdout


def test_options_of_the_configuration() -> None:
    run = lambda *args: click.testing.CliRunner().invoke(main, ["config", *args])  # noqa: E731
    assert [line.split()[0] for line in run().stdout.splitlines()] == [option.key for option in OPTIONS]
    assert "target-torch: a version" in run("target_torch").stdout
    assert 'target-torch = "2.4"' in run("target-torch").stdout
    assert ".venv" in run("exclude").stdout
    assert json.loads(run("--output-format", "json", "select").stdout)[0]["key"] == "select"
    wrong = run("selct")
    assert wrong.exit_code == 2
    assert "did you mean 'select'?" in wrong.stderr


@pytest.mark.parametrize("key", [option.key for option in OPTIONS])
def test_an_option_is_explained_by_lines_that_the_configuration_takes(key: str, project: pathlib.Path) -> None:
    told = click.testing.CliRunner().invoke(main, ["config", key]).stdout
    (project / "pyproject.toml").write_text(told.partition("# pyproject.toml\n")[2])
    result = click.testing.CliRunner().invoke(main, ["check", "--show-settings"])
    assert result.exit_code == 0, result.output
    assert "configuration = pyproject.toml" in result.stdout
